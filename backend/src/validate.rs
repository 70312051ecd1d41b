//! What the borrow checker would have said about device memory, said once at load: order, aliasing, shapes, use.

use crate::{
    Act, Op, Program, Rows, Store, StoreDecl, Weight, WeightFormat,
    op::{
        Attention, ExpertGatedLinear, ExpertGroups, ExpertLinear, GateScope, GatedDelta, HeadLinear, Linear, Mamba1,
        Mamba2, Output, ReadMemory, RopeStore, Route,
    },
    store::{Decay, PageLayout, Policy, StateDecl},
};

/// A program that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// An op reads what no op before it wrote.
    #[error("op {op} reads {act} before any op writes it")]
    ReadBeforeWrite {
        /// Index of the op.
        op: usize,
        /// Name of the activation.
        act: String,
    },
    /// An op that cannot run in place is asked to.
    #[error("op {op} writes {act}, which it also reads")]
    OutputAliasesInput {
        /// Index of the op.
        op: usize,
        /// Name of the activation.
        act: String,
    },
    /// A shape does not fit.
    #[error("op {op}: {what}")]
    Shape {
        /// Index of the op.
        op: usize,
        /// What does not fit.
        what: String,
    },
    /// A declared weight nobody uses.
    #[error("weight {0} is declared and not used")]
    UnusedWeight(String),
    /// A declared store nobody uses.
    #[error("store {0} is declared and not used")]
    UnusedStore(usize),
}

/// What an op touches. An op that updates in place lists the activation in both `reads` and `writes`.
#[derive(Debug, Default)]
pub struct Touches {
    /// Activations read.
    pub reads: Vec<Act>,
    /// Activations written.
    pub writes: Vec<Act>,
    /// Weights read.
    pub weights: Vec<Weight>,
    /// Stores read or written.
    pub stores: Vec<Store>,
}

impl Op {
    /// What this op reads, writes and uses.
    pub fn touches(&self) -> Touches {
        let touches = |reads: &[Act], writes: &[Act], weights: &[Weight], stores: &[Store]| Touches {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            weights: weights.to_vec(),
            stores: stores.to_vec(),
        };
        match self {
            Op::Embed(o) => touches(&[], &[o.out], &[o.table], &[]),
            Op::GatherRows(o) => touches(&[o.x], &[o.out], &[], &[]),
            Op::Norm(o) => touches(&[o.x], &[o.out], &[o.weight], &[]),
            Op::Linear(o) => {
                let mut all = touches(&[o.x], &[o.out], &[o.weight], &[]);
                all.reads.extend(o.row_gate);
                all.reads.extend((o.output == Output::Accumulate).then_some(o.out));
                all.weights.extend(o.bias);
                all
            }
            Op::GatedLinear(o) => touches(&[o.x], &[o.out], &[o.gate, o.up], &[]),
            Op::HeadLinear(o) => touches(&[o.x], &[o.out], &[o.weight], &[]),
            Op::RopeStore(o) => {
                let mut all = touches(&[o.q, o.k, o.v], &[o.q, o.k], &[], &[o.store]);
                all.weights.extend(o.rope.as_ref().and_then(|rope| rope.factors));
                all
            }
            Op::Attention(o) => {
                let mut all = touches(&[o.q], &[o.out], &[], &[o.store]);
                all.reads.extend(o.gate);
                all
            }
            Op::ReadMemory(o) => {
                let weights = [o.fc1[0], o.fc1[1], o.fc2[0], o.fc2[1], o.share];
                let mut all = touches(&[o.q, o.out], &[o.out], &weights, &[o.store]);
                all.reads.extend(o.gate);
                all
            }
            Op::CausalConv(o) => {
                let mut all = touches(&[o.x], &[o.x], &[o.weight], &[o.store]);
                all.weights.extend(o.bias);
                all
            }
            Op::ShortConv(o) => touches(&[o.bcx], &[o.out], &[o.weight], &[o.store]),
            Op::GatedDelta(o) => touches(&[o.qkv, o.alpha, o.beta], &[o.out], &[o.a, o.dt], &[o.store]),
            Op::Mamba2(o) => touches(&[o.xbc, o.dt], &[o.out], &[o.dt_bias, o.a, o.d], &[o.store]),
            Op::Mamba1(o) => touches(&[o.x, o.dt, o.b, o.c], &[o.out], &[o.d], &[o.store]),
            Op::GatedNorm(o) => {
                let mut all = touches(&[o.x, o.gate], &[o.x], &[], &[]);
                all.weights.extend(o.weight);
                all
            }
            Op::Route(o) => {
                let mut all = touches(&[o.logits], &[o.experts, o.weights], &[], &[]);
                all.weights.extend(o.bias);
                all
            }
            Op::ExpertGatedLinear(o) => {
                let mut all = touches(&[o.x, o.experts], &[o.out], &[o.up], &[]);
                all.weights.extend(o.gate);
                all
            }
            Op::ExpertLinear(o) => {
                let mut all = touches(&[o.x, o.experts, o.weights], &[o.out], &[o.weight], &[]);
                all.reads.extend((o.output == Output::Accumulate).then_some(o.out));
                all
            }
        }
    }

    /// Whether an activation may be both read and written by this op.
    fn allows_in_place(&self, act: Act) -> bool {
        match self {
            Op::Norm(_) | Op::RopeStore(_) | Op::CausalConv(_) => true,
            Op::GatedNorm(o) => act == o.x && act != o.gate,
            Op::Linear(o) => act == o.out && act != o.x && o.row_gate != Some(act),
            Op::ExpertLinear(o) => act == o.out && act != o.x,
            Op::ReadMemory(o) => act == o.out && act != o.q && o.gate != Some(act),
            Op::Embed(_)
            | Op::GatherRows(_)
            | Op::GatedLinear(_)
            | Op::HeadLinear(_)
            | Op::Attention(_)
            | Op::ShortConv(_)
            | Op::GatedDelta(_)
            | Op::Mamba2(_)
            | Op::Mamba1(_)
            | Op::Route(_)
            | Op::ExpertGatedLinear(_) => false,
        }
    }
}

impl Program {
    /// Checks order, aliasing, shapes and use; backends rely on it and do not check again.
    pub fn validate(&self) -> Result<(), Invalid> {
        let mut written = vec![false; self.acts.len()];
        let mut weights = vec![false; self.weights.len()];
        let mut stores = vec![false; self.stores.len()];
        let name = |act: Act| self.act(act).name.clone();
        for (index, op) in self.ops.iter().enumerate() {
            let touches = op.touches();
            if let Some(&act) = touches.reads.iter().find(|act| !written[act.0 as usize]) {
                return Err(Invalid::ReadBeforeWrite { op: index, act: name(act) });
            }
            let aliased = |act: &&Act| touches.reads.contains(act) && !op.allows_in_place(**act);
            if let Some(&act) = touches.writes.iter().find(aliased) {
                return Err(Invalid::OutputAliasesInput { op: index, act: name(act) });
            }
            self.check_shape(op).map_err(|what| Invalid::Shape { op: index, what })?;
            touches.writes.iter().for_each(|act| written[act.0 as usize] = true);
            touches.weights.iter().for_each(|weight| weights[weight.0 as usize] = true);
            touches.stores.iter().for_each(|store| stores[store.0 as usize] = true);
        }
        for store in &self.stores {
            if let StoreDecl::State(StateDecl { decay: Decay::Rates(weight), .. }) = store {
                weights[weight.0 as usize] = true;
            }
        }
        if let Some(at) = weights.iter().position(|used| !used) {
            return Err(Invalid::UnusedWeight(self.weights[at].name.clone()));
        }
        stores.iter().position(|used| !used).map_or(Ok(()), |at| Err(Invalid::UnusedStore(at)))
    }

    fn columns(&self, act: Act) -> usize {
        self.act(act).columns
    }

    fn equal(&self, what: &str, found: usize, expected: usize) -> Result<(), String> {
        if found == expected { Ok(()) } else { Err(format!("{what} is {found}, expected {expected}")) }
    }

    /// A weight of this shape; `f32` also fixes the format.
    fn weight_is(&self, weight: Weight, shape: [usize; 2], format: Option<WeightFormat>) -> Result<(), String> {
        let decl = self.weight(weight);
        if decl.shape != shape {
            return Err(format!("{} has shape {:?}, expected {shape:?}", decl.name, decl.shape));
        }
        if format.is_some_and(|format| format != decl.format) {
            return Err(format!("{} must be handed over as F32", decl.name));
        }
        let rows: usize = decl.parts.iter().map(|part| part.rows).sum();
        self.equal(&format!("rows of the parts of {}", decl.name), rows, shape[0])
    }

    fn check_shape(&self, op: &Op) -> Result<(), String> {
        let f32 = Some(WeightFormat::F32);
        match op {
            Op::Embed(o) => self.equal("width", self.columns(o.out), self.weight(o.table).shape[1]),
            Op::GatherRows(o) => {
                self.equal("width", self.columns(o.out), self.columns(o.x))?;
                match (self.act(o.x).rows, self.act(o.out).rows) {
                    (Rows::Step, Rows::Outputs) => Ok(()),
                    other => Err(format!("gather_rows goes from step rows to output rows, not {other:?}")),
                }
            }
            Op::Norm(o) => {
                let group = self.weight(o.weight).shape[1];
                self.weight_is(o.weight, [1, group], f32)?;
                self.equal("columns", self.columns(o.out), self.columns(o.x))?;
                self.equal("columns beyond whole groups", self.columns(o.x) % group, 0)
            }
            Op::Linear(o) => self.check_linear(o),
            Op::GatedLinear(o) => {
                let shape = [self.columns(o.out), self.columns(o.x)];
                self.weight_is(o.gate, shape, None)?;
                self.weight_is(o.up, shape, None)
            }
            Op::RopeStore(o) => self.check_rope_store(o),
            Op::Attention(o) => self.check_attention(o),
            Op::ReadMemory(o) => self.check_read_memory(o),
            Op::HeadLinear(o) => self.check_head_linear(o),
            Op::CausalConv(o) => {
                self.check_conv(o.store, o.weight, self.columns(o.x))?;
                o.bias.map_or(Ok(()), |bias| self.weight_is(bias, [1, self.columns(o.x)], f32))
            }
            Op::ShortConv(o) => {
                self.equal("bcx columns", self.columns(o.bcx), 3 * self.columns(o.out))?;
                self.check_conv(o.store, o.weight, self.columns(o.out))
            }
            Op::GatedDelta(o) => self.check_gated_delta(o),
            Op::Mamba2(o) => self.check_mamba2(o),
            Op::Mamba1(o) => self.check_mamba1(o),
            Op::GatedNorm(o) => {
                self.equal("gate columns", self.columns(o.gate), self.columns(o.x))?;
                let Some(weight) = o.weight else { return Ok(()) };
                let [groups, group] = self.weight(weight).shape;
                self.weight_is(weight, [groups, group], f32)?;
                match groups {
                    1 => self.equal("columns beyond whole groups", self.columns(o.x) % group, 0),
                    _ => self.equal("columns", self.columns(o.x), groups * group),
                }
            }
            Op::Route(o) => self.check_route(o),
            Op::ExpertGatedLinear(o) => self.check_expert_gated_linear(o),
            Op::ExpertLinear(o) => self.check_expert_linear(o),
        }
    }

    fn check_linear(&self, o: &Linear) -> Result<(), String> {
        let outputs = self.weight(o.weight).shape[0];
        self.weight_is(o.weight, [outputs, self.columns(o.x)], None)?;
        if o.column + outputs > self.columns(o.out) {
            let end = o.column + outputs;
            return Err(format!("writes up to column {end} of {}", self.columns(o.out)));
        }
        if let Some(bias) = o.bias {
            self.weight_is(bias, [1, outputs], Some(WeightFormat::F32))?;
        }
        if let Some(gate) = o.row_gate {
            self.equal("row gate columns", self.columns(gate), 1)?;
        }
        match self.act(o.x).rows == self.act(o.out).rows {
            true => Ok(()),
            false => Err("input and output have different rows".into()),
        }
    }

    fn check_head_linear(&self, o: &HeadLinear) -> Result<(), String> {
        let [rows, inputs] = self.weight(o.weight).shape;
        self.weight_is(o.weight, [rows, inputs], None)?;
        self.equal("weight rows beyond whole heads", rows % o.heads, 0)?;
        self.equal("x columns beyond whole heads", self.columns(o.x) % o.heads, 0)?;
        let Some(left_over) = (self.columns(o.x) / o.heads).checked_sub(inputs) else {
            return Err(format!("a head of x has {} columns, expected at least {inputs}", self.columns(o.x) / o.heads));
        };
        self.equal("out columns", self.columns(o.out), o.heads * (rows / o.heads + left_over))
    }

    fn check_conv(&self, store: Store, weight: Weight, channels: usize) -> Result<(), String> {
        let StoreDecl::Conv(conv) = self.store(store) else {
            return Err("a convolution needs a conv store".into());
        };
        self.equal("channels", channels, conv.channels)?;
        self.weight_is(weight, [conv.channels, conv.taps], Some(WeightFormat::F32))
    }

    fn check_rope_store(&self, o: &RopeStore) -> Result<(), String> {
        let StoreDecl::Pages(pages) = self.store(o.store) else {
            return Err("rope_store needs a page store".into());
        };
        self.equal("key_dim", o.key_dim, pages.key_dim)?;
        let key_columns = match pages.layout {
            PageLayout::Separate => pages.key_dim,
            PageLayout::Latent if o.rope.is_some() => return Err("latent keys do not rotate".into()),
            PageLayout::Latent => {
                pages.key_dim.checked_sub(pages.value_dim).ok_or("a latent value is wider than its key")?
            }
        };
        self.equal("k columns", self.columns(o.k), pages.kv_heads * key_columns)?;
        self.equal("v columns", self.columns(o.v), pages.kv_heads * pages.value_dim)?;
        self.equal("q columns beyond whole heads", self.columns(o.q) % o.key_dim, 0)?;
        let Some(rope) = &o.rope else { return Ok(()) };
        if rope.dims > o.key_dim || !rope.dims.is_multiple_of(2) {
            return Err(format!("rope of {} columns, expected an even number up to {}", rope.dims, o.key_dim));
        }
        rope.factors.map_or(Ok(()), |f| self.weight_is(f, [1, rope.dims / 2], Some(WeightFormat::F32)))
    }

    fn check_attention(&self, o: &Attention) -> Result<(), String> {
        let StoreDecl::Pages(pages) = self.store(o.store) else {
            return Err("attention needs a page store".into());
        };
        self.equal("heads beyond whole groups", o.heads % pages.kv_heads, 0)?;
        self.equal("q columns", self.columns(o.q), o.heads * pages.key_dim)?;
        self.equal("out columns", self.columns(o.out), o.heads * pages.value_dim)?;
        match (pages.policy, pages.layout) {
            (Policy::Full, _) => {}
            (Policy::Slake(_) | Policy::Segments(_), PageLayout::Latent) => {
                return Err("latent pages hold all tokens".into());
            }
            (Policy::Slake(slake), PageLayout::Separate) => {
                self.equal("heads of a store that gives up tokens", slake.heads, o.heads)?;
                if slake.window == 0 {
                    return Err("tokens are given up by no query".into());
                }
            }
            (Policy::Segments(segments), PageLayout::Separate) => {
                if segments.window == 0 || segments.segment == 0 {
                    return Err("a window and a segment have tokens".into());
                }
                if self.segments() != Some(&segments) {
                    return Err("pages give up segments in different ways".into());
                }
            }
        }
        o.gate.map_or(Ok(()), |gate| self.equal("gate columns", self.columns(gate), self.columns(o.out)))
    }

    fn check_read_memory(&self, o: &ReadMemory) -> Result<(), String> {
        let (StoreDecl::Pages(pages), f32) = (self.store(o.store), Some(WeightFormat::F32)) else {
            return Err("a memory is that of a page store".into());
        };
        if pages.policy.segments().is_none_or(|segments| segments.memory.matrix().is_none()) {
            return Err("pages keep no memory of segments".into());
        }
        self.equal("heads beyond whole groups", o.heads % pages.kv_heads, 0)?;
        self.equal("q columns", self.columns(o.q), o.heads * pages.key_dim)?;
        self.equal("out columns", self.columns(o.out), o.heads * pages.value_dim)?;
        let hidden = self.weight(o.fc1[0]).shape[0];
        self.weight_is(o.fc1[0], [hidden, pages.value_dim], f32)?;
        self.weight_is(o.fc1[1], [1, hidden], f32)?;
        self.weight_is(o.fc2[0], [pages.value_dim, hidden], f32)?;
        self.weight_is(o.fc2[1], [1, pages.value_dim], f32)?;
        let share = match o.scope {
            GateScope::HeadChannel => [o.heads, pages.value_dim],
            GateScope::Channel => [1, pages.value_dim],
            GateScope::Head => [1, o.heads],
        };
        self.weight_is(o.share, share, f32)?;
        o.gate.map_or(Ok(()), |gate| self.equal("gate columns", self.columns(gate), self.columns(o.out)))
    }

    fn state(&self, store: Store) -> Result<&StateDecl, String> {
        let StoreDecl::State(state) = self.store(store) else {
            return Err("a recurrence needs a state store".into());
        };
        self.equal("value heads beyond whole groups", state.value_heads % state.key_heads, 0)?;
        Ok(state)
    }

    fn check_gated_delta(&self, o: &GatedDelta) -> Result<(), String> {
        let state = self.state(o.store)?;
        if matches!(state.decay, Decay::Rates(_)) {
            return Err("gated_delta decays per head or per channel".into());
        }
        let (values, decays) = (state.value_heads * state.value_dim, state.value_heads * state.decays());
        self.equal("qkv columns", self.columns(o.qkv), 2 * state.key_heads * state.key_dim + values)?;
        self.equal("alpha columns", self.columns(o.alpha), decays)?;
        self.equal("beta columns", self.columns(o.beta), state.value_heads)?;
        self.equal("out columns", self.columns(o.out), values)?;
        self.weight_is(o.a, [1, state.value_heads], Some(WeightFormat::F32))?;
        self.weight_is(o.dt, [1, decays], Some(WeightFormat::F32))
    }

    fn check_mamba2(&self, o: &Mamba2) -> Result<(), String> {
        let state = self.state(o.store)?;
        if state.decay != Decay::PerHead {
            return Err("mamba2 decays per head".into());
        }
        let values = state.value_heads * state.value_dim;
        self.equal("xbc columns", self.columns(o.xbc), values + 2 * state.key_heads * state.key_dim)?;
        self.equal("dt columns", self.columns(o.dt), state.value_heads)?;
        self.equal("out columns", self.columns(o.out), values)?;
        let per_head = |weight| self.weight_is(weight, [1, state.value_heads], Some(WeightFormat::F32));
        [o.dt_bias, o.a, o.d].into_iter().try_for_each(per_head)
    }

    fn check_mamba1(&self, o: &Mamba1) -> Result<(), String> {
        let state = self.state(o.store)?;
        let Decay::Rates(rates) = state.decay else {
            return Err("mamba1 decays by rates".into());
        };
        self.equal("key heads", state.key_heads, 1)?;
        self.equal("columns of a value head", state.value_dim, 1)?;
        let channels = state.value_heads;
        self.weight_is(rates, [channels, state.key_dim], Some(WeightFormat::F32))?;
        for (name, act, columns) in [
            ("x", o.x, channels),
            ("dt", o.dt, channels),
            ("out", o.out, channels),
            ("b", o.b, state.key_dim),
            ("c", o.c, state.key_dim),
        ] {
            self.equal(&format!("{name} columns"), self.columns(act), columns)?;
        }
        self.weight_is(o.d, [1, channels], Some(WeightFormat::F32))
    }

    fn check_route(&self, o: &Route) -> Result<(), String> {
        self.equal("weights columns", self.columns(o.weights), self.columns(o.experts))?;
        let (active, experts) = (self.columns(o.experts), self.columns(o.logits));
        if let Some(bias) = o.bias {
            self.weight_is(bias, [1, experts], Some(WeightFormat::F32))?;
        }
        let ExpertGroups { groups, active: looked_into } = o.groups.unwrap_or(ExpertGroups { groups: 1, active: 1 });
        let whole = groups > 0 && experts.is_multiple_of(groups) && looked_into <= groups;
        let group = if whole { experts / groups } else { 0 };
        match active <= looked_into * group && (group > 1 || groups == 1) {
            true => Ok(()),
            false => Err(format!("{active} active experts of {looked_into} of {groups} groups of {experts} experts")),
        }
    }

    fn check_expert_gated_linear(&self, o: &ExpertGatedLinear) -> Result<(), String> {
        let (active, inputs) = (self.columns(o.experts), self.columns(o.x));
        self.equal("out columns beyond whole experts", self.columns(o.out) % active, 0)?;
        let rows = self.weight(o.up).shape[0];
        self.equal("stacked rows beyond whole experts", rows % (self.columns(o.out) / active), 0)?;
        o.gate.map_or(Ok(()), |gate| self.weight_is(gate, [rows, inputs], None))?;
        self.weight_is(o.up, [rows, inputs], None)
    }

    fn check_expert_linear(&self, o: &ExpertLinear) -> Result<(), String> {
        let active = self.columns(o.experts);
        self.equal("weights columns", self.columns(o.weights), active)?;
        self.equal("x columns beyond whole experts", self.columns(o.x) % active, 0)?;
        let rows = self.weight(o.weight).shape[0];
        self.equal("stacked rows beyond whole experts", rows % self.columns(o.out), 0)?;
        self.weight_is(o.weight, [rows, self.columns(o.x) / active], None)
    }
}
