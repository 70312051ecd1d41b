//! Where keys and values are in a page, and how they are rounded: one layout for every backend (ALGORITHMS 1.1), which
//! may order the keys of a head among themselves as its kernels want them.

use super::{Policy, f8};
use std::ops::Range;

/// Where the values of a page are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageLayout {
    /// Per KV head `K[page_size][key_dim]`, then `V[page_size][value_dim]`.
    Separate,
    /// Per KV head `K[page_size][key_dim]` only: a value is the first `value_dim` columns of its key.
    Latent,
}

/// Keys (after rope) and values of a softmax layer in pages of `Limits::page_size` tokens. Where rows have scales,
/// those of all keys of a KV head and page follow its keys and values, then those of all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagesDecl {
    /// KV heads.
    pub kv_heads: usize,
    /// Columns of a key head.
    pub key_dim: usize,
    /// Columns of a value head.
    pub value_dim: usize,
    /// Where the values are.
    pub layout: PageLayout,
    /// What becomes of tokens that a sequence has no room for.
    pub policy: Policy,
}

/// The key and the value of one KV head and token, in bytes from where the page begins. The value of a latent page is
/// the beginning of its key and has its scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadRow {
    /// Where the key begins; that of the next token follows it.
    pub key: usize,
    /// Where the value begins; that of the next token is [`PagesDecl::value_stride`] elements on.
    pub value: usize,
    /// Where the key's scale is, if the type has one; that of the next token follows it.
    pub key_scale: usize,
    /// As `key_scale`, for the value.
    pub value_scale: usize,
}

impl PagesDecl {
    /// Values of one token over all KV heads.
    pub const fn row_elements(&self) -> usize {
        self.kv_heads * self.head_elements()
    }

    /// Bytes of one token over all KV heads.
    pub const fn row_bytes(&self, kv_type: KvType) -> usize {
        self.page_bytes(1, kv_type)
    }

    /// Bytes of a page of `page_size` tokens; `usize::MAX` if there are more.
    pub const fn page_bytes(&self, page_size: usize, kv_type: KvType) -> usize {
        self.head_bytes(kv_type).saturating_mul(self.kv_heads).saturating_mul(page_size)
    }

    /// Bytes that every slot, one of a snapshot too, takes in this store so that tokens can be evicted.
    pub const fn memory_bytes(&self) -> usize {
        match &self.policy {
            Policy::Full => 0,
            Policy::Slake(slake) => slake.bytes(self.kv_heads, self.key_dim, self.value_dim),
            Policy::Segments(segments) => segments.bytes(self.kv_heads, self.key_dim, self.value_dim),
        }
    }

    /// Elements from one value to the next.
    pub const fn value_stride(&self) -> usize {
        match self.layout {
            PageLayout::Separate => self.value_dim,
            PageLayout::Latent => self.key_dim,
        }
    }

    /// Where token `row` of a page has its key and value of a KV head.
    pub const fn head_row(&self, page_size: usize, kv_type: KvType, head: usize, row: usize) -> HeadRow {
        let (element, scale) = (kv_type.element_bytes(), kv_type.scale_bytes());
        let first_key = head * page_size * self.head_bytes(kv_type);
        let first_scale = first_key + page_size * self.head_elements() * element;
        let (key, key_scale) = (first_key + row * self.key_dim * element, first_scale + row * scale);
        match self.layout {
            PageLayout::Separate => HeadRow {
                key,
                value: first_key + (page_size * self.key_dim + row * self.value_dim) * element,
                key_scale,
                value_scale: key_scale + page_size * scale,
            },
            PageLayout::Latent => HeadRow { key, value: key, key_scale, value_scale: key_scale },
        }
    }

    /// The columns of a token's row of [`PagesDecl::row_elements`] values: for every KV head those of its key, then
    /// those of its value where that is stored beside the key.
    pub fn row_parts(&self, head: usize) -> [Range<usize>; 2] {
        let (first, end) = (head * self.head_elements(), (head + 1) * self.head_elements());
        [first..first + self.key_dim, first + self.key_dim..end]
    }

    /// Values of one KV head and token.
    const fn head_elements(&self) -> usize {
        match self.layout {
            PageLayout::Separate => self.key_dim + self.value_dim,
            PageLayout::Latent => self.key_dim,
        }
    }

    /// Bytes of one KV head and token.
    const fn head_bytes(&self, kv_type: KvType) -> usize {
        let rows = match self.layout {
            PageLayout::Separate => 2,
            PageLayout::Latent => 1,
        };
        self.head_elements() * kv_type.element_bytes() + rows * kv_type.scale_bytes()
    }
}

/// Element type of keys and values in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    /// 4 bytes, exact.
    F32,
    /// 2 bytes, 11 bits of mantissa.
    #[default]
    F16,
    /// 2 bytes, 8 bits of mantissa, range of F32.
    Bf16,
    /// Integers of 1 byte, with a [`RowScale`] for every key and every value of a head.
    Q8_0,
    /// Floats of 1 byte (E4M3), with a [`RowScale`] as `Q8_0`: errors are relative to each element, not to the largest one.
    F8,
}

impl KvType {
    /// All of them.
    pub const ALL: [KvType; 5] = [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8_0, KvType::F8];

    /// Bytes of one element.
    pub const fn element_bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 | KvType::Bf16 => 2,
            KvType::Q8_0 | KvType::F8 => 1,
        }
    }

    /// The largest number an element is before its scale; `None` if rows have no scales.
    pub const fn largest(self) -> Option<f32> {
        match self {
            KvType::F32 | KvType::F16 | KvType::Bf16 => None,
            KvType::Q8_0 => Some(127.0),
            KvType::F8 => Some(f8::LARGEST),
        }
    }

    /// Bytes of the scale of a key or of a value; 0 if rows have none.
    pub const fn scale_bytes(self) -> usize {
        if self.largest().is_some() { 2 } else { 0 }
    }

    /// The name users write: `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::F8 => "fp8",
        }
    }

    /// Rounds a key or a value of one head to what pages of this type give back.
    pub fn round(self, row: &mut [f32]) {
        match self {
            KvType::F32 => {}
            KvType::F16 => row.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32()),
            KvType::Bf16 => row.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32()),
            KvType::Q8_0 => {
                let scale = RowScale::of(127.0, [row, &[]]);
                row.iter_mut().for_each(|x| *x = f32::from(scale.quantise(*x)) * scale.value());
            }
            KvType::F8 => {
                let scale = RowScale::of(f8::LARGEST, [row, &[]]);
                row.iter_mut().for_each(|x| *x = f8::decode(scale.to_f8(*x)) * scale.value());
            }
        }
    }
}

/// The scale of a row of 8-bit elements, with 8 bits of mantissa: its largest magnitude over [`KvType::largest`], 127 or
/// 448. So few bits that as many times the scale is exact in f32: rows that were read from pages have the scale and the
/// elements they had before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowScale {
    scale: half::bf16,
    inverse: f32,
}

impl RowScale {
    /// Smaller rows are 0, well before a scale loses bits.
    const LEAST: f32 = 1e-30;
    /// Adding it leaves an f32 no bits after the point, and the low bits of the sum are those of the integer.
    const ROUND: f32 = (3 << 22) as f32;

    /// The scale of a row in two parts of which the largest magnitude becomes `most`. Not a number if a value is infinite or
    /// not a number.
    pub fn of(most: f32, parts: [&[f32]; 2]) -> Self {
        // Magnitudes are ordered as their bits are, and what is not finite comes last.
        let bits = |part: &[f32]| part.iter().fold(0, |larger, x| (x.to_bits() & (u32::MAX >> 1)).max(larger));
        let largest = f32::from_bits(bits(parts[0]).max(bits(parts[1])));
        let (scale, inverse) = if !largest.is_finite() {
            (half::bf16::NAN, 0.0)
        } else if largest < Self::LEAST {
            (half::bf16::ZERO, 0.0)
        } else {
            let scale = half::bf16::from_f32(largest / most);
            (scale, 1.0 / scale.to_f32())
        };
        Self { scale, inverse }
    }

    /// `x / scale` to the nearest integer, ties to even: at most 127 for values of the row.
    pub fn quantise(self, x: f32) -> i8 {
        (x * self.inverse + Self::ROUND).to_bits() as i8
    }

    /// The code of the 8-bit float next to `x / scale`.
    pub fn to_f8(self, x: f32) -> u8 {
        f8::encode(x * self.inverse)
    }

    /// The scale.
    pub fn value(self) -> f32 {
        self.scale.to_f32()
    }

    /// As it stands in pages.
    pub fn to_bytes(self) -> [u8; 2] {
        self.scale.to_le_bytes()
    }

    /// Read from a page.
    pub fn from_bytes(bytes: [u8; 2]) -> f32 {
        half::bf16::from_le_bytes(bytes).to_f32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{Random, normalised_error};

    const DECLS: [PagesDecl; 3] = [
        PagesDecl { kv_heads: 2, key_dim: 3, value_dim: 5, layout: PageLayout::Separate, policy: Policy::Full },
        PagesDecl { kv_heads: 1, key_dim: 128, value_dim: 128, layout: PageLayout::Separate, policy: Policy::Full },
        PagesDecl { kv_heads: 3, key_dim: 33, value_dim: 17, layout: PageLayout::Latent, policy: Policy::Full },
    ];

    #[test]
    fn heads_of_a_page_fill_it_and_do_not_overlap() {
        for decl in DECLS {
            for kv_type in KvType::ALL {
                for page_size in [1, 4, 32] {
                    let mut taken = vec![0u8; decl.page_bytes(page_size, kv_type)];
                    let mut take = |at: usize, len: usize| taken[at..at + len].iter_mut().for_each(|byte| *byte += 1);
                    for (head, row) in (0..decl.kv_heads).flat_map(|head| (0..page_size).map(move |row| (head, row))) {
                        let (place, size) = (decl.head_row(page_size, kv_type, head, row), kv_type.element_bytes());
                        take(place.key, decl.key_dim * size);
                        take(place.key_scale, kv_type.scale_bytes());
                        if decl.layout == PageLayout::Separate {
                            take(place.value, decl.value_dim * size);
                            take(place.value_scale, kv_type.scale_bytes());
                        } else {
                            assert_eq!((place.value, place.value_scale), (place.key, place.key_scale));
                        }
                    }
                    assert!(taken.iter().all(|byte| *byte == 1), "{decl:?} {kv_type:?} {page_size}");
                }
            }
        }
        assert_eq!(DECLS[1].page_bytes(16, KvType::Q8_0), 16 * (128 + 128 + 2 + 2));
        assert_eq!(DECLS[2].row_bytes(KvType::F8), 3 * (33 + 2));
        assert_eq!(DECLS[1].page_bytes(usize::MAX / 100, KvType::F16), usize::MAX);
    }

    #[test]
    fn rows_read_from_pages_are_rounded_to_the_same_again() {
        let mut random = Random::new(11);
        for kv_type in KvType::ALL {
            for round in 0..20_000 {
                let magnitude = 2.0f32.powi(round % 120 - 80) * (1.0 + random.uniform());
                let mut row: Vec<f32> = (0..1 + round as usize % 9).map(|_| random.normal() * magnitude).collect();
                kv_type.round(&mut row);
                let once = row.clone();
                kv_type.round(&mut row);
                assert_eq!(row, once, "{kv_type:?}");
            }
        }
    }

    #[test]
    fn integers_reach_127_and_are_the_nearest() {
        let mut random = Random::new(12);
        for _ in 0..20_000 {
            let row: Vec<f32> = (0..7).map(|_| random.normal()).collect();
            let scale = RowScale::of(127.0, [&row[..3], &row[3..]]);
            let integers: Vec<i8> = row.iter().map(|x| scale.quantise(*x)).collect();
            assert_eq!(integers.iter().map(|x| x.unsigned_abs()).max(), Some(127), "{row:?}");
            for (x, integer) in row.iter().zip(integers) {
                let error = (x - f32::from(integer) * scale.value()).abs();
                assert!(error <= 0.5001 * scale.value(), "{x} became {integer} times {}", scale.value());
            }
            assert_eq!(RowScale::from_bytes(scale.to_bytes()), scale.value());
        }
        assert_eq!([2.5, -2.5, 3.5, 127.0].map(|x| RowScale::of(127.0, [&[127.0], &[]]).quantise(x)), [2, -2, 4, 127]);
    }

    #[test]
    fn floats_reach_448_and_are_off_by_a_16th_of_themselves_at_most() {
        let mut random = Random::new(13);
        for _ in 0..20_000 {
            let row: Vec<f32> = (0..7).map(|_| random.normal().powi(5)).collect();
            let scale = RowScale::of(f8::LARGEST, [&row[..3], &row[3..]]);
            let codes: Vec<u8> = row.iter().map(|x| scale.to_f8(*x)).collect();
            assert_eq!(codes.iter().map(|code| code & 0x7f).max(), Some(0x7e), "{row:?}");
            for (x, code) in row.iter().zip(codes) {
                let found = f8::decode(code) * scale.value();
                // What is small beside the largest one is a multiple of a 512th of the scale.
                let bound = (x.abs() / 15.99).max(0.5001 / 512.0 * scale.value());
                assert!((x - found).abs() <= bound, "{x} became {found}, scale {}", scale.value());
            }
        }
    }

    /// The table of docs/MEMORY.md: normal numbers, and what is beside one that is 100 times as large.
    #[test]
    fn a_large_channel_takes_nothing_of_the_others_in_fp8() {
        let mut random = Random::new(14);
        let mut errors = |kv_type: KvType, large: f32| {
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for _ in 0..2000 {
                let mut row: Vec<f32> = (0..128).map(|_| random.normal()).collect();
                row[0] = row[0].signum() * large.max(row[0].abs());
                before.extend_from_slice(&row[1..]);
                kv_type.round(&mut row);
                after.extend_from_slice(&row[1..]);
            }
            normalised_error(&before, &after)
        };
        let table = KvType::ALL.map(|kv_type| [0.0, 100.0].map(|large| errors(kv_type, large)));
        println!("{table:?}");
        let [_, [half, _], [bf16, _], [integers, integers_beside], [floats, floats_beside]] = table;
        // Found: 4.3e-8, 2.8e-6, 4.2e-5 and 5.2e-2, 6.6e-4 and 7.1e-4.
        assert!(half < 1e-7 && bf16 < 6e-6 && integers < 8e-5 && floats < 1.4e-3, "{table:?}");
        assert!(integers_beside > 2.5e-2 && floats_beside < 1.4e-3, "{table:?}");
    }

    #[test]
    fn rows_of_nothing_and_rows_that_are_not_finite() {
        for kv_type in [KvType::Q8_0, KvType::F8] {
            let rounded = |mut row: [f32; 3]| {
                kv_type.round(&mut row);
                row
            };
            assert_eq!(rounded([0.0; 3]), [0.0; 3]);
            assert_eq!(rounded([1e-31, -1e-40, 0.0]), [0.0; 3]);
            assert_eq!(rounded([1e-29, -1e-29, 0.0]).map(|x| x > 0.0), [true, false, false]);
            for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                assert!(rounded([1.0, x, 0.0]).iter().all(|x| x.is_nan()), "{kv_type:?}");
            }
        }
    }
}
