//! The tensor formats: one table of names, ids and block sizes; one file per block format.

// `$d` is a dollar sign for the macro that this one makes.
macro_rules! quants {
    ($d:tt $($variant:ident $id:literal $name:literal $len:literal $bytes:literal [$($words:expr),*];)*) => {
        /// How the elements of a tensor are stored.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the variants are the format's own names")]
        pub enum Quant { $($variant,)* }

        impl Quant {
            /// Every format, in the order of the ids.
            pub const ALL: &[Quant] = &[$(Quant::$variant,)*];

            /// The id in a tensor directory.
            pub const fn id(self) -> u32 { match self { $(Quant::$variant => $id,)* } }

            /// The format of an id; `None` for unknown and removed ids.
            pub const fn from_id(id: u32) -> Option<Quant> {
                match id { $($id => Some(Quant::$variant),)* _ => None }
            }

            /// The name users know: `Q4_K`.
            pub const fn name(self) -> &'static str { match self { $(Quant::$variant => $name,)* } }

            /// Elements in one block (1 for plain numbers).
            pub const fn block_len(self) -> usize { match self { $(Quant::$variant => $len,)* } }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize { match self { $(Quant::$variant => $bytes,)* } }

            /// The multi-byte numbers of one block: (first byte, bytes of each, how many of them).
            const fn words(self) -> &'static [(usize, usize, usize)] {
                match self { $(Quant::$variant => &[$($words),*],)* }
            }
        }

        /// Runs an expression with a name bound to the block type of a format: the one place where formats are told
        /// apart. `for_each_block!(quant, B => size_of::<B>())`.
        #[macro_export]
        macro_rules! for_each_block {
            ($d quant:expr, $d block:ident => $d body:expr) => {
                match $d quant {
                    $($crate::quant::Quant::$variant => {
                        type $d block = $crate::quant::$variant;
                        $d body
                    })*
                }
            };
        }
    };
}

quants! {
    $
    F32 0 "F32" 1 4 [(0, 4, 1)];
    F16 1 "F16" 1 2 [(0, 2, 1)];
    Q4_0 2 "Q4_0" 32 18 [(0, 2, 1)];
    Q4_1 3 "Q4_1" 32 20 [(0, 2, 2)];
    Q5_0 6 "Q5_0" 32 22 [(0, 2, 1)];
    Q5_1 7 "Q5_1" 32 24 [(0, 2, 2)];
    Q8_0 8 "Q8_0" 32 34 [(0, 2, 1)];
    Q2K 10 "Q2_K" 256 84 [(80, 2, 2)];
    Q3K 11 "Q3_K" 256 110 [(108, 2, 1)];
    Q4K 12 "Q4_K" 256 144 [(0, 2, 2)];
    Q5K 13 "Q5_K" 256 176 [(0, 2, 2)];
    Q6K 14 "Q6_K" 256 210 [(208, 2, 1)];
    Q8K 15 "Q8_K" 256 292 [(0, 4, 1), (260, 2, 16)];
    Iq2Xxs 16 "IQ2_XXS" 256 66 [(0, 2, 33)];
    Iq2Xs 17 "IQ2_XS" 256 74 [(0, 2, 33)];
    Iq3Xxs 18 "IQ3_XXS" 256 98 [(0, 2, 1)];
    Iq1S 19 "IQ1_S" 256 50 [(0, 2, 1), (34, 2, 8)];
    Iq4Nl 20 "IQ4_NL" 32 18 [(0, 2, 1)];
    Iq3S 21 "IQ3_S" 256 110 [(0, 2, 1)];
    Iq2S 22 "IQ2_S" 256 82 [(0, 2, 1)];
    Iq4Xs 23 "IQ4_XS" 256 136 [(0, 2, 2)];
    I8 24 "I8" 1 1 [];
    I16 25 "I16" 1 2 [(0, 2, 1)];
    I32 26 "I32" 1 4 [(0, 4, 1)];
    I64 27 "I64" 1 8 [(0, 8, 1)];
    F64 28 "F64" 1 8 [(0, 8, 1)];
    Iq1M 29 "IQ1_M" 256 56 [];
    Bf16 30 "BF16" 1 2 [(0, 2, 1)];
    Tq1_0 34 "TQ1_0" 256 54 [(52, 2, 1)];
    Tq2_0 35 "TQ2_0" 256 66 [(64, 2, 1)];
    Mxfp4 39 "MXFP4" 32 17 [];
    Nvfp4 40 "NVFP4" 64 36 [];
    Q1_0 41 "Q1_0" 128 18 [(0, 2, 1)];
    Q2_0 42 "Q2_0" 64 18 [(0, 2, 1)];
}

// After the table, whose macro they use.
mod dispatch;
pub mod iq_grids;
mod nest;
mod search;

mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod numbers;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod q8_k;
mod tq1_0;
mod tq2_0;

pub use dispatch::{Block, QuantizeBlock, Quantizer, blocks, f16_bytes, f16_value};
pub use iq1_m::Iq1M;
pub use iq1_s::Iq1S;
pub use iq2_s::Iq2S;
pub use iq2_xs::Iq2Xs;
pub use iq2_xxs::{Iq2Xxs, signs_of};
pub use iq3_s::Iq3S;
pub use iq3_xxs::Iq3Xxs;
pub use iq4_nl::{IQ4_LEVELS, Iq4Nl};
pub use iq4_xs::Iq4Xs;
pub use mxfp4::{MXFP4_LEVELS, Mxfp4};
pub use numbers::{Bf16, F16, F32, F64, I8, I16, I32, I64};
pub use nvfp4::Nvfp4;
pub use q1_0::Q1_0;
pub use q2_0::Q2_0;
pub use q2_k::Q2K;
pub use q3_k::Q3K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::{Q4K, scales_and_mins};
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5K;
pub use q6_k::Q6K;
pub use q8_0::Q8_0;
pub use q8_k::Q8K;
pub use tq1_0::Tq1_0;
pub use tq2_0::Tq2_0;

impl Quant {
    /// The format of a name, in any case: `q4_k`, `BF16`.
    pub fn from_name(name: &str) -> Option<Quant> {
        Quant::ALL.iter().copied().find(|quant| quant.name().eq_ignore_ascii_case(name))
    }

    /// Bytes of a row of `columns` elements; `None` if the row is not a whole number of blocks or overflows.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_len()) {
            return None;
        }
        (columns / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Turns whole blocks from one byte order to the other, in place.
    pub(crate) fn swap_bytes(self, blocks: &mut [u8]) {
        for block in blocks.chunks_exact_mut(self.block_bytes()) {
            for &(first, width, count) in self.words() {
                block[first..first + width * count].chunks_exact_mut(width).for_each(<[u8]>::reverse);
            }
        }
    }
}

impl std::fmt::Display for Quant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
