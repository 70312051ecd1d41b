//! One file per op.

pub(crate) mod attention;
pub(crate) mod causal_conv;
pub(crate) mod gated_delta;
pub(crate) mod linear;
pub(crate) mod mamba1;
pub(crate) mod mamba2;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod panels;
pub(crate) mod product;
pub(crate) mod read_memory;
pub(crate) mod recurrence;
pub(crate) mod rope_store;
pub(crate) mod rows;
pub(crate) mod tiles;
