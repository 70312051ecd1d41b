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

/// The same for the codes of the first half of a block.
macro_rules! first_below {
    ($activations:literal) => {
        for_all!(
            $activations
            "vpbroadcastd zmm31, [{x} + {numbers} + 96 + 4*\\r]"
            "vpslld zmm31, zmm31, {shift}"
            "vpxord zmm\\r, zmm\\r, zmm\\r"
            "vpsubd zmm\\r, zmm\\r, zmm31"
            "vmovdqa64 zmm1\\r, zmm\\r"
        )
    };
}

/// And for those of the second.
macro_rules! second_below {
    ($activations:literal) => {
        for_all!(
            $activations
            "vpbroadcastd zmm31, [{x} + {numbers} + 96 + 4*\\r]"
            "vpbroadcastd zmm\\r, [{x} + {numbers} + 64 + 4*\\r]"
            "vpslld zmm31, zmm31, {shift}"
            "vpsrad zmm\\r, zmm\\r, {back}"
            "vpaddd zmm\\r, zmm\\r, zmm31"
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
    (
        ($own:literal, $e:literal $f:literal $g:literal $h:literal), $begin:ident,
        [$a:literal $b:literal $c:literal $d:literal], $added:tt
    ) => {
        concat!(
            $begin!($own),
            multiply!($own, $a),
            add!($e, $added),
            multiply!($own, $b),
            add!($f, $added),
            multiply!($own, $c),
            add!($g, $added),
            multiply!($own, $d),
            add!($h, $added),
        )
    };
}
macro_rules! first_four {
    ($($work:tt)*) => { multiply_four!(("0,1,2,3", "4" "5" "6" "7"), $($work)*) };
}
macro_rules! last_four {
    ($($work:tt)*) => { multiply_four!(("4,5,6,7", "0" "1" "2" "3"), $($work)*) };
}

/// Bytes of a block of a group.
const GROUP_BYTES: usize = RECORD * GROUP * size_of::<Word>();
/// Where in it the scales of all eight are, then the scaled sums, what integers begin with, and the sums of the first half.
const NUMBERS: usize = BLOCK * GROUP;
type Block = Unpacked<Avx512>;
const FIRST: usize = offset_of!(Block, scales);
const SECOND: usize = FIRST + size_of::<__m512>();
const MINIMUMS: usize = offset_of!(Block, minimums);

/// How much too large the codes of a layout are, as a power of two.
struct Shift<L>(PhantomData<L>);

impl<L: Layout> Shift<L> {
    const TOO_LARGE: u32 = match L::SHIFT {
        Some(shift) => shift,
        None => 0,
    };
    /// From what 128 too much makes.
    const BACK: u32 = QuantisedBlock::WIDE - Self::TOO_LARGE;
}

/// Goes through all blocks: what comes first, what goes on until the next block, what goes on into it, and what is left.
macro_rules! every_block {
    (($blocks:ident, $x:ident, $sums:ident), $first:expr, $block:expr, $next:expr, $last:expr; $($name:ident = $value:expr),*) => {
        asm!(
            $first,
            "2:",
            $block,
            "add {blocks}, {pair}",
            "add {x}, {group}",
            "dec {count}",
            "jz 3f",
            $next,
            "jmp 2b",
            "3:",
            $last,
            blocks = inout(reg) $blocks.as_ptr() => _, x = inout(reg) $x.as_ptr() => _, count = inout(reg) $blocks.len() => _,
            sums = in(reg) &raw mut *$sums, block = const size_of::<Block>(), pair = const 2 * size_of::<Block>(),
            group = const GROUP_BYTES, numbers = const NUMBERS, $($name = const $value,)*
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _, out("zmm12") _, out("zmm13") _, out("zmm14") _,
            out("zmm15") _, out("zmm16") _, out("zmm17") _, out("zmm30") _, out("zmm31") _,
            options(nostack),
        )
    };
}

/// [`every_block`] for blocks with one scale.
macro_rules! whole_blocks {
    ($given:tt, $begin:ident, ($($at:literal),*); $($name:ident = $value:expr),*) => {
        every_block!(
            $given,
            concat!($begin!("0,1,2,3"), multiply!("0,1,2,3", "0,1,2,3,4,5,6,7")),
            last_four!($begin, ["0,1" "2,3" "4,5" "6,7"], ("{x}", "{blocks}", $($at),*)),
            first_four!($begin, ["0,1" "2,3" "4,5" "6,7"], ("{x} - {group}", "{blocks} - {pair}", $($at),*)),
            add!("4,5,6,7", ("{x} - {group}", "{blocks} - {pair}", $($at),*));
            $($name = $value),*
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
    assert!(!blocks.is_empty() && size_of_val(x) >= blocks.len() * GROUP_BYTES, "a block of the group for each");
    // SAFETY: what is read are the blocks, as many of the group, and the sums, which are written as well; blocks and sums are
    // aligned as vectors are. Registers that are written are said to be.
    unsafe {
        if L::HALVES {
            every_block!(
                (blocks, x, sums),
                concat!(first_below!("0,1,2,3"), multiply!("0,1,2,3", "0,1,2,3")),
                concat!(
                    last_four!(first_below, ["0" "1" "2" "3"], ("{x}", "{blocks}", "{first_scales}")),
                    first_four!(second_below, ["4" "5" "6" "7"], ("{x}", "{blocks}", "{first_scales}")),
                    last_four!(second_below, ["4" "5" "6" "7"], ("{x}", "{blocks}", "{second_scales}")),
                ),
                first_four!(first_below, ["0" "1" "2" "3"], ("{x} - {group}", "{blocks} - {pair}", "{second_scales}")),
                add!("4,5,6,7", ("{x} - {group}", "{blocks} - {pair}", "{second_scales}"));
                first_scales = FIRST, second_scales = SECOND, shift = Shift::<L>::TOO_LARGE, back = Shift::<L>::BACK
            );
        } else if L::MINIMUMS {
            whole_blocks!(
                (blocks, x, sums), at_zero, ("{scales}", "{minimums}"); scales = FIRST, minimums = MINIMUMS
            );
        } else if L::Coding::WIDE {
            whole_blocks!((blocks, x, sums), below, ("{scales}"); scales = FIRST);
        } else {
            whole_blocks!((blocks, x, sums), less_below, ("{scales}"); scales = FIRST, back = Shift::<L>::BACK);
        }
    }
}
