//! State-space mixers: Mamba-2, Mamba-1.

use super::header::{Header, bad};
use crate::model::{
    ModelError,
    spec::{Bias, Mamba1, Mamba2, MambaNorm},
};

/// Columns of everything a state-space layer works on.
const INNER: std::ops::RangeInclusive<usize> = 1..=1 << 22;

fn conv_bias(header: &Header, index: usize) -> Bias {
    if header.has_block_tensor(index, "ssm_conv1d.bias") { Bias::Present } else { Bias::None }
}

/// Mamba-2 of one layer: `ssm.time_step_rank` is the number of heads.
pub(super) fn mamba2(header: &Header, index: usize) -> Result<Mamba2, ModelError> {
    let inner = header.count("ssm.inner_size", INNER)?;
    let heads = header.count("ssm.time_step_rank", 1..=1 << 14)?;
    let groups = header.count("ssm.group_count", 1..=1 << 12)?;
    if !inner.is_multiple_of(heads) {
        let expected = format!("a multiple of ssm.time_step_rank = {heads}");
        return Err(bad(&header.key("ssm.inner_size"), inner, &expected));
    }
    if !heads.is_multiple_of(groups) {
        let expected = format!("a divisor of ssm.time_step_rank = {heads}");
        return Err(bad(&header.key("ssm.group_count"), groups, &expected));
    }
    let norm = header.has_block_tensor(index, "ssm_norm.weight");
    Ok(Mamba2 {
        heads,
        head_dim: inner / heads,
        groups,
        state_dim: header.count("ssm.state_size", 1..=1 << 12)?,
        conv_taps: header.taps("ssm.conv_kernel")?,
        conv_bias: conv_bias(header, index),
        norm: if norm { MambaNorm::Present } else { MambaNorm::None },
    })
}

/// Mamba-1 of one layer.
pub(super) fn mamba1(header: &Header, index: usize) -> Result<Mamba1, ModelError> {
    let norm = header.has_block_tensor(index, "ssm_dt_norm.weight");
    Ok(Mamba1 {
        channels: header.count("ssm.inner_size", INNER)?,
        state_dim: header.count("ssm.state_size", 1..=1 << 12)?,
        step_rank: header.count("ssm.time_step_rank", INNER)?,
        conv_taps: header.taps("ssm.conv_kernel")?,
        conv_bias: conv_bias(header, index),
        norm: if norm { MambaNorm::Present } else { MambaNorm::None },
    })
}
