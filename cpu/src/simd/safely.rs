//! Methods of proofs around what is unsafe without one: the intrinsics of an instruction set; and loops without one.

/// Operations that need nothing but the instruction set.
macro_rules! operations {
    ($(fn $name:ident $(<const $number:ident: $kind:ty>)? ($self:ident $(, $arg:ident: $type:ty)*) -> $out:ty { $body:expr })*) => {$(
        #[inline(always)]
        fn $name $(<const $number: $kind>)? ($self $(, $arg: $type)*) -> $out {
            // SAFETY: a value of `Self` exists only if the processor has the features; references are valid for the
            // unaligned loads of their size.
            unsafe { $body }
        }
    )*};
}

/// Loads and stores, whose addresses the caller answers for.
macro_rules! memory {
    ($(fn $name:ident ($self:ident, $($arg:ident: $type:ty),*) -> $out:ty { $body:expr })*) => {$(
        #[inline(always)]
        unsafe fn $name($self, $($arg: $type),*) -> $out {
            // SAFETY: a value of `Self` exists only if the processor has the features; the caller answers for the
            // address, and the instruction needs no alignment.
            unsafe { $body }
        }
    )*};
}
/// Repeats a block for numbers, as far as they are below a limit, a constant. The sums stay in registers only if no loop is
/// left, and the compiler leaves large ones. What is not below is never compiled: the same for all conditions in `const`.
macro_rules! unrolled {
    ($number:ident in [$($value:literal)*] below $limit:expr => $body:block) => {$(
        if const { $value < $limit } {
            const $number: usize = $value;
            $body
        }
    )*};
}
pub(super) use {memory, operations, unrolled};
