//! How far ahead of what is computed with weights are fetched, in how many streams they are read, and where states are fetched to:
//! what keeps the memory busy is not the same on all processors.

use crate::packed::BESIDE;
use std::sync::LazyLock;

/// How weights are fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fetching {
    /// Bytes from what is computed with to what is fetched into the first-level cache, through the panels that follow.
    pub(crate) near: usize,
    /// Bytes to what is fetched into the second-level cache besides: the hardware alone does not keep memory busy with one stream a
    /// core.
    pub(crate) far: usize,
    /// Whether activations, if they are few, meet two panels at once, one of the first half and one of the second.
    pub(crate) by_pairs: bool,
}

impl Fetching {
    /// Without what is far, four sequences take 1.20 times as long on a Xeon of the fifth generation; with half of it 8 and 16 take
    /// 1.20 and 1.13 times as long on Zen 4 (llama-3.2-1b in Q8_0, two cores). Two streams give a core of a Xeon up to a tenth more
    /// than one.
    const USUAL: Self = Self { near: 1024, far: 8192, by_pairs: true };
    /// For few activations on Zen 5: one row reads 38 to 42 GB/s of products in Q8_0 and 34 in Q4_K and Q6_K as is usual, 44 and 43
    /// so; with two streams that are fetched as far, 41 and 34 (two cores, of which reading alone takes 47). Sixteen rows in Q8_0
    /// would take 1.12 times as long.
    const FEW_ON_ZEN_5: Self = Self { near: 3072, far: 6144, by_pairs: false };

    /// What suits this processor and so many activations.
    pub(crate) fn of(count: usize) -> Self {
        if count <= BESIDE && *HAS_ZEN_5 {
            Self::FEW_ON_ZEN_5
        } else {
            Self { by_pairs: count <= BESIDE, ..Self::USUAL }
        }
    }

    /// Whether so many activations meet two panels of 16-bit floats at once.
    pub(crate) fn has_two_of_floats(self, count: usize) -> bool {
        self.by_pairs || (count >= MANY_OF_FLOATS && *HAS_ZEN_5)
    }

    /// These of `R` activations: known when code is made where they are many, for registers that hold distances are missing there.
    #[inline(always)]
    pub(crate) const fn of_group<const R: usize>(self) -> Self {
        if R > BESIDE { Self::USUAL } else { self }
    }
}

/// Activations from which on they meet panels of 16-bit floats in pairs on Zen 5, which multiplies as many vectors in a cycle as it
/// loads.
const MANY_OF_FLOATS: usize = 6;

/// Whether states come into the first-level cache ahead of time, instead of the second, which waits for more lines at a time on most
/// processors: on Zen 5 a token takes 0.8 to 0.95 times as long where states are read.
/// Where they are written it takes 0.97 to 1.04 times as long on two threads, 0.9 times on one.
pub(crate) fn states_come_near() -> bool {
    *HAS_ZEN_5
}

static HAS_ZEN_5: LazyLock<bool> = LazyLock::new(has_zen_5);

/// Whether this is a processor of AMD's family 1Ah or later.
#[cfg(target_arch = "x86_64")]
fn has_zen_5() -> bool {
    use std::arch::x86_64::__cpuid;
    let maker = __cpuid(0);
    let name = [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes);
    name.as_flattened() == b"AuthenticAMD" && family(__cpuid(1).eax) >= 0x1a
}

#[cfg(not(target_arch = "x86_64"))]
fn has_zen_5() -> bool {
    false
}

/// The family in what processors say of themselves.
#[cfg(any(target_arch = "x86_64", test))]
fn family(signature: u32) -> u32 {
    match signature >> 8 & 15 {
        15 => 15 + (signature >> 20 & 255),
        family => family,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_read_as_their_makers_write_them() {
        // An EPYC 9005, an EPYC 9004, an EPYC 7003 and a Xeon of the fifth generation.
        assert_eq!([0x00b0_0f21, 0x00a1_0f11, 0x00a0_0f11, 0x000c_06f2].map(family), [0x1a, 0x19, 0x19, 6]);
    }
}
