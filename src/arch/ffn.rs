//! Feed-forward halves: dense, experts, shared experts.

use super::header::{Header, bad};
use crate::model::{
    ModelError,
    spec::{Bias, ExpertProjection, Ffn, FfnKind, Moe, Router, SharedExpert, SharedGate},
};
use kvas_backend::op::{ExpertGroups, RouterScoring};

/// What an architecture says about its routers where the file does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct RouterDefaults {
    pub(super) scoring: RouterScoring,
    pub(super) normalise: bool,
}

/// Softmax over all experts, the weights of the chosen divided by their sum.
pub(super) const SOFTMAX: RouterDefaults = RouterDefaults { scoring: RouterScoring::Softmax, normalise: true };

/// Sigmoid of each expert, the weights of the chosen divided by their sum.
pub(super) const SIGMOID: RouterDefaults = RouterDefaults { scoring: RouterScoring::Sigmoid, normalise: true };

/// Dense SwiGLU, or experts in the layers that have a router.
pub(super) fn ffn(header: &Header, index: usize) -> Result<Ffn, ModelError> {
    routed(header, index, FfnKind::SwiGlu, SOFTMAX)
}

/// Dense, or experts in the layers that have a router.
pub(super) fn routed(
    header: &Header,
    index: usize,
    kind: FfnKind,
    defaults: RouterDefaults,
) -> Result<Ffn, ModelError> {
    let has = |stem: &str| header.has_block_tensor(index, stem);
    let dense = || Ok(Ffn::Dense { hidden: header.hidden("feed_forward_length", index)?, kind });
    let Some((experts, active)) = header.experts()? else { return dense() };
    if index < header.count_opt("leading_dense_block_count", 0..=512)?.unwrap_or(0) || !has("ffn_gate_inp.weight") {
        return dense();
    }
    let own = header.metadata.get(&header.key("expert_feed_forward_length")).is_some();
    let hidden = header.hidden(if own { "expert_feed_forward_length" } else { "feed_forward_length" }, index)?;
    let fused = has("ffn_gate_up_exps.weight");
    Ok(Ffn::Moe(Moe {
        experts,
        active,
        hidden,
        kind,
        latent: header.count_opt("moe_latent_size", 1..=1 << 20)?,
        shared: shared(header, index, hidden)?,
        router: router(header, index, defaults)?,
        projection: if fused { ExpertProjection::Fused } else { ExpertProjection::Separate },
    }))
}

/// The shared expert: its width is a key, or a number of experts.
fn shared(header: &Header, index: usize, expert: usize) -> Result<Option<SharedExpert>, ModelError> {
    let has = |stem: &str| header.has_block_tensor(index, stem);
    if !has("ffn_up_shexp.weight") {
        return Ok(None);
    }
    let hidden = match header.count_opt("expert_shared_feed_forward_length", 0..=1 << 24)? {
        Some(hidden) if hidden > 0 => hidden,
        _ => expert * header.count("expert_shared_count", 1..=1 << 8)?,
    };
    let gate = if has("ffn_gate_inp_shexp.weight") { SharedGate::Sigmoid } else { SharedGate::None };
    Ok(Some(SharedExpert { hidden, gate }))
}

fn router(header: &Header, index: usize, defaults: RouterDefaults) -> Result<Router, ModelError> {
    let key = header.key("expert_gating_func");
    let scoring = match header.metadata.uint_opt(&key)? {
        None | Some(0) => defaults.scoring,
        Some(1) => RouterScoring::Softmax,
        Some(2) => RouterScoring::Sigmoid,
        Some(other) => return Err(bad(&key, other, "1 (softmax) or 2 (sigmoid)")),
    };
    let normalise = header.metadata.bool_opt(&header.key("expert_weights_norm"))?;
    let bias = header.has_block_tensor(index, "exp_probs_b.bias");
    Ok(Router {
        scoring,
        bias: if bias { Bias::Present } else { Bias::None },
        groups: groups(header)?,
        normalise: normalise.unwrap_or(defaults.normalise),
        scale: header.positive_opt("expert_weights_scale")?.unwrap_or(1.0),
    })
}

/// Groups of experts of which the best are looked into. What a group is worth is the sum of its best two experts.
fn groups(header: &Header) -> Result<Option<ExpertGroups>, ModelError> {
    let groups = header.count_opt("expert_group_count", 0..=1 << 12)?.unwrap_or(0);
    let Some((experts, used)) = header.experts()?.filter(|_| groups > 1) else { return Ok(None) };
    if !experts.is_multiple_of(groups) || experts == groups {
        let expected = format!("groups of two or more of {} = {experts}", header.key("expert_count"));
        return Err(bad(&header.key("expert_group_count"), groups, &expected));
    }
    let fewest = used.div_ceil(experts / groups);
    Ok(Some(ExpertGroups { groups, active: header.count("expert_group_used_count", fewest..=groups)? }))
}
