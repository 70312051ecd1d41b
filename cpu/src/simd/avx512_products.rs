//! Products of many activations with AVX-512: eight meet two panels at once, whose blocks are unpacked before. What is multiplied
//! comes to a register once for both, since a processor that begins two products in a cycle begins two loads as well, no more.
//!
//! Integers of four activations become sums while those of the other four are multiplied: a block takes 83 cycles on Zen 5, of
//! which 64 are the products and 16 their scales, and 90 if all eight are multiplied first. In assembly, since the compiler hands
//! what is in registers from one to the next (100 cycles).

use super::{
    avx512::Avx512,
    panels::{GROUP, QuantisedBlock},
};
use crate::packed::{BLOCK, Layout, RECORD, Unpacked, Word, coding::Coding};
use std::{
    arch::{asm, x86_64::__m512},
    marker::PhantomData,
    mem::offset_of,
};

/// Instructions for every activation `\r` of some: registers `\r` and `1\r` are its integers with the first and the second panel.
macro_rules! for_all {
    ($activations:literal $($line:expr)*) => { concat!(".irp r,", $activations, "\n", $($line, "\n",)* ".endr\n") };
}

/// Begins integers at zero.
macro_rules! at_zero {
    ($activations:literal) => {
        for_all!($activations "vpxord zmm\\r, zmm\\r, zmm\\r" "vpxord zmm1\\r, zmm1\\r, zmm1\\r")
    };
}

/// Begins integers where the products of codes that are 128 too large end right.
macro_rules! below {
    ($activations:literal) => {
        for_all!($activations "vpbroadcastd zmm\\r, [{x} + {numbers} + 64 + 4*\\r]" "vmovdqa64 zmm1\\r, zmm\\r")
    };
}

/// The same for codes that are `1 << shift` too large.
macro_rules! less_below {
    ($activations:literal) => {
        for_all!(
            $activations
            "vpbroadcastd zmm\\r, [{x} + {numbers} + 64 + 4*\\r]"
            "vpsrad zmm\\r, zmm\\r, {back}"
            "vmovdqa64 zmm1\\r, zmm\\r"
        )
    };
}

/// Adds the products of some fours of codes.
macro_rules! multiply {
    ($activations:literal, $fours:literal) => {
        concat!(
            ".irp i,", $fours, "\n",
            "vmovdqa64 zmm8, [{blocks} + 64*\\i]\n",
            "vmovdqa64 zmm9, [{blocks} + {block} + 64*\\i]\n",
            for_all!(
                $activations
                "vpbroadcastd zmm30, [{x} + 32*\\r + 4*\\i]"
                "vpdpbusd zmm\\r, zmm8, zmm30"
                "vpdpbusd zmm1\\r, zmm9, zmm30"
            ),
            ".endr\n",
        )
    };
}

/// Adds integers of an activation, times the scales at `$scales` of `$blocks`, to its sums, and minimums, if there are any.
macro_rules! add {
    ($activation:literal, ($x:literal, $blocks:literal, $scales:literal $(, $minimums:literal)?)) => {
        for_all!(
            $activation
            concat!("vbroadcastss zmm31, [", $x, " + {numbers} + 4*\\r]")
            "vcvtdq2ps zmm\\r, zmm\\r"
            "vcvtdq2ps zmm1\\r, zmm1\\r"
            concat!("vmulps zmm30, zmm31, [", $blocks, " + ", $scales, "]")
            concat!("vmulps zmm31, zmm31, [", $blocks, " + {block} + ", $scales, "]")
            "vfmadd213ps zmm\\r, zmm30, [{sums} + 64*\\r]"
            "vfmadd213ps zmm1\\r, zmm31, [{sums} + 512 + 64*\\r]"
            $(
                concat!("vbroadcastss zmm31, [", $x, " + {numbers} + 32 + 4*\\r]")
                concat!("vfmadd231ps zmm\\r, zmm31, [", $blocks, " + ", $minimums, "]")
                concat!("vfmadd231ps zmm1\\r, zmm31, [", $blocks, " + {block} + ", $minimums, "]")
            )?
            "vmovaps [{sums} + 64*\\r], zmm\\r"
            "vmovaps [{sums} + 512 + 64*\\r], zmm1\\r"
        )
    };
}

/// Multiplies four activations, and meanwhile adds what the other four have multiplied.
macro_rules! multiply_four {
    (($own:literal, $a:literal $b:literal $c:literal $d:literal), $begin:ident, $added:tt) => {
        concat!(
            $begin!($own),
            multiply!($own, "0,1"),
            add!($a, $added),
            multiply!($own, "2,3"),
            add!($b, $added),
            multiply!($own, "4,5"),
            add!($c, $added),
            multiply!($own, "6,7"),
            add!($d, $added),
        )
    };
}

/// Bytes of a block of a group.
const GROUP_BYTES: usize = RECORD * GROUP * size_of::<Word>();
/// Where in it the scales of all eight are, then the scaled sums, what integers begin with, and the sums of the first half.
const NUMBERS: usize = BLOCK * GROUP;
type Block = Unpacked<Avx512>;
const SCALES: usize = offset_of!(Block, scales);
const MINIMUMS: usize = offset_of!(Block, minimums);

/// How far what is 128 times the sum of values is shifted back for codes that are less too large.
struct Back<L>(PhantomData<L>);

impl<L: Layout> Back<L> {
    const BITS: u32 = match L::SHIFT {
        Some(shift) => QuantisedBlock::WIDE - shift,
        None => 0,
    };
}

/// Goes through all blocks: of each, the last four activations meet it while the first four, which met it before, are added, and
/// then the first four meet the next.
macro_rules! every_block {
    (($blocks:ident, $x:ident, $sums:ident), $begin:ident, ($($at:literal),*); $($name:ident = $value:expr),*) => {
        asm!(
            $begin!("0,1,2,3"),
            multiply!("0,1,2,3", "0,1,2,3,4,5,6,7"),
            "2:",
            multiply_four!(("4,5,6,7", "0" "1" "2" "3"), $begin, ("{x}", "{blocks}", $($at),*)),
            "add {blocks}, {pair}",
            "add {x}, {group}",
            "dec {count}",
            "jz 3f",
            multiply_four!(("0,1,2,3", "4" "5" "6" "7"), $begin, ("{x} - {group}", "{blocks} - {pair}", $($at),*)),
            "jmp 2b",
            "3:",
            add!("4,5,6,7", ("{x} - {group}", "{blocks} - {pair}", $($at),*)),
            blocks = inout(reg) $blocks.as_ptr() => _, x = inout(reg) $x.as_ptr() => _, count = inout(reg) $blocks.len() => _,
            sums = in(reg) &raw mut *$sums, block = const size_of::<Block>(), pair = const 2 * size_of::<Block>(),
            group = const GROUP_BYTES, numbers = const NUMBERS, scales = const SCALES, $($name = const $value,)*
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _, out("zmm14") _,
            out("zmm15") _, out("zmm16") _, out("zmm17") _, out("zmm30") _, out("zmm31") _,
            options(nostack),
        )
    };
}

/// [`super::panels::Panels::add_to_pair`].
///
/// # Safety
/// The processor has AVX-512 F and VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) unsafe fn add_to_pair<L: Layout>(blocks: &[[Block; 2]], x: &[Word], sums: &mut [[__m512; GROUP]; 2]) {
    assert!(!L::HALVES, "one scale for all codes of a block");
    assert!(!blocks.is_empty() && size_of_val(x) >= blocks.len() * GROUP_BYTES, "a block of the group for each");
    // SAFETY: what is read are the blocks, as many of the group, and the sums, which are written as well; blocks and sums are
    // aligned as vectors are. Registers that are written are said to be.
    unsafe {
        if L::MINIMUMS {
            every_block!((blocks, x, sums), at_zero, ("{scales}", "{minimums}"); minimums = MINIMUMS);
        } else if L::Coding::WIDE {
            every_block!((blocks, x, sums), below, ("{scales}"););
        } else {
            every_block!((blocks, x, sums), less_below, ("{scales}"); back = Back::<L>::BITS);
        }
    }
}
