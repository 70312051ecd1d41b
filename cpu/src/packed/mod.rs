//! Weights in the order products read them. A panel is 16 rows side by side, so that a lane of a vector is a row and
//! no sum crosses lanes: for every 256 columns its scales, then lines of codes, 64 bytes for four columns. Whatever the instruction set and
//! however many activations meet a panel, each result is the same chain of multiply-adds over blocks of 32 columns.

mod activations;
pub(crate) mod coding;
mod floats;
mod layouts;
mod panel;

use crate::simd::panels::ROWS;
pub(crate) use activations::{Quantise, RECORD, Sums, Word, group_len};
pub(crate) use floats::{FloatTimes, float_panel_bytes, pack_floats};
pub(crate) use layouts::*;
pub(crate) use panel::{Ahead, Panel, SECTION, Unpacked, add_block, pack, panel_bytes};
#[cfg(target_arch = "x86_64")]
pub(crate) use panel::{PanelBlock, Record};

/// Values of an activation that share a scale. One form serves all formats: the scale is per 32 values even where the
/// weights have superblocks of 256, which costs two multiplications and gains more than a bit of precision when a few
/// columns are large.
pub(crate) const BLOCK: usize = 32;

/// Bytes of a line of codes.
pub(crate) const LINE: usize = 4 * ROWS;

/// Most activations that meet two panels at once.
pub(crate) const BESIDE: usize = 4;

/// A panel that meets the activations at the same time as another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beside<P> {
    /// Of the same format and as many columns.
    pub(crate) panel: P,
    /// Values of `y` from those of the other panel to its own.
    pub(crate) behind: usize,
}

/// Runs `$body` with the layout of a format, `$otherwise` for formats that are not packed.
macro_rules! with_layout {
    ($quant:expr, |$layout:ident| $body:expr, $otherwise:expr) => {
        $crate::packed::choose_layout!(
            $quant, $layout, $body, $otherwise;
            Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Iq4Nl Mxfp4 Q3K Q4K Q5K Q6K Iq4Xs
        )
    };
}

macro_rules! choose_layout {
    ($quant:expr, $layout:ident, $body:expr, $otherwise:expr; $($name:ident)*) => {
        $(if $quant == kvas_gguf::Quant::$name {
            type $layout = $crate::packed::$name;
            $body
        } else)* {
            $otherwise
        }
    };
}
pub(crate) use {choose_layout, with_layout};

#[cfg(test)]
mod tests;
