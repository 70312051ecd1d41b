//! ModelSpec -> Program. The only place that knows the order of ops in a layer and the tensors they read.

mod attention;
mod delta;
mod ffn;
mod state_space;

use super::spec::{Ffn, LayerSpec, Mixer, ModelSpec};
use kvas_backend::{
    Act, ActDecl, Op, Program, RowBlock, Rows, Store, StoreDecl, Weight, WeightDecl, WeightFormat,
    op::{self, Output},
    store::{Policy, Segments},
};
use std::ops::Range;

/// The program that runs a model.
pub fn lower(spec: &ModelSpec) -> Program {
    lower_trunk(Lowering::new(spec))
}

/// The program of a model whose layers of attention evict segments. If they keep a memory of them, the layers have the
/// gates that read it.
pub fn lower_segments(spec: &ModelSpec, segments: Segments) -> Program {
    lower_trunk(Lowering { policy: Policy::Segments(segments), ..Lowering::new(spec) })
}

fn lower_trunk(mut lowering: Lowering<'_>) -> Program {
    let spec = lowering.spec;
    let residual = lowering.act("residual", spec.width);
    let table = lowering.matrix("token_embd.weight".into(), [spec.vocab, spec.width]);
    lowering.op(Op::Embed(op::Embed { table, scale: spec.scales.embedding, out: residual }));
    for (index, layer) in spec.layers.iter().enumerate() {
        lowering.layer(index, layer, residual);
    }
    let tensor = if spec.tied_output { "token_embd.weight" } else { "output.weight" };
    lowering.output(residual, spec.output_norm.into(), tensor);
    lowering.program
}

/// The weights of the prediction heads: those of their layers, and those that make the input of a head from the
/// embedding of the next token and the trunk's last hidden state (GGUF_HYBRID 11). `exists` tells which of the
/// tensors that heads may share with the trunk the file has.
pub fn prediction_weights(spec: &ModelSpec, exists: impl Fn(&str) -> bool) -> Vec<WeightDecl> {
    let mut lowering = Lowering::new(spec);
    let residual = lowering.act("residual", spec.width);
    for (head, layer) in spec.prediction.iter().enumerate() {
        let block = spec.layers.len() + head;
        lowering.matrix(of(block, "nextn.eh_proj.weight"), [spec.width, 2 * spec.width]);
        for norm in ["enorm", "hnorm", "shared_head_norm"] {
            let name = of(block, &format!("nextn.{norm}.weight"));
            if norm != "shared_head_norm" || exists(&name) {
                lowering.small(name, [1, spec.width]);
            }
        }
        for table in ["embed_tokens", "shared_head_head"] {
            let name = of(block, &format!("nextn.{table}.weight"));
            if exists(&name) {
                lowering.matrix(name, [spec.vocab, spec.width]);
            }
        }
        lowering.layer(block, layer, residual);
    }
    lowering.program.weights
}

/// The program of a model's first prediction head, and the activation `[rows, 2 width]` that it begins with: the normed
/// embedding of a token beside the normed state of the one before it, which are written from outside. It gives the
/// logits of the token after that one.
pub fn lower_prediction(spec: &ModelSpec, exists: impl Fn(&str) -> bool) -> Option<(Program, Act)> {
    let (layer, block) = (spec.prediction.first()?, spec.layers.len());
    let mut lowering = Lowering::new(spec);
    let joined = lowering.act("joined", 2 * spec.width);
    let residual = lowering.act("residual", spec.width);
    let weight = lowering.matrix(of(block, "nextn.eh_proj.weight"), [spec.width, 2 * spec.width]);
    lowering.linear(joined, weight, residual);
    lowering.layer(block, layer, residual);
    let own = |stem: &str| Some(of(block, &format!("nextn.{stem}.weight"))).filter(|name| exists(name));
    let norm = own("shared_head_norm").unwrap_or_else(|| spec.output_norm.into());
    let trunk = if spec.tied_output { "token_embd.weight" } else { "output.weight" };
    lowering.output(residual, norm, &own("shared_head_head").unwrap_or_else(|| trunk.into()));
    Some((lowering.program, joined))
}

/// The weights of the memory gates of all attention layers, which the program itself does not read.
pub fn memory_weights(spec: &ModelSpec) -> Vec<WeightDecl> {
    let mut lowering = Lowering::new(spec);
    for (index, layer) in spec.layers.iter().enumerate() {
        for mixer in &layer.mixers {
            match mixer {
                Mixer::Attention(attention) => {
                    lowering.memory_gates(index, attention);
                }
                Mixer::LatentAttention(_)
                | Mixer::GatedDelta(_)
                | Mixer::Mamba2(_)
                | Mixer::Mamba1(_)
                | Mixer::ShortConv(_) => {}
            }
        }
    }
    lowering.program.weights
}

/// The name of a tensor of a block.
fn of(block: usize, stem: &str) -> String {
    format!("blk.{block}.{stem}")
}

struct Lowering<'a> {
    spec: &'a ModelSpec,
    /// What becomes of the tokens of layers of attention.
    policy: Policy,
    program: Program,
}

/// (tensor, first row, rows)
type Part = (String, usize, usize);

impl<'a> Lowering<'a> {
    fn new(spec: &'a ModelSpec) -> Self {
        let (ops, acts, weights, stores) = (vec![], vec![], vec![], vec![]);
        Self { spec, policy: Policy::Full, program: Program { ops, acts, weights, stores, logits: Act(0) } }
    }

    fn op(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    fn act(&mut self, name: &str, columns: usize) -> Act {
        self.act_of(name, columns, Rows::Step)
    }

    /// Same name, same width: same memory. Layers share activations.
    fn act_of(&mut self, name: &str, columns: usize, rows: Rows) -> Act {
        let acts = &mut self.program.acts;
        let at = acts.iter().position(|act| act.name == name && act.columns == columns).unwrap_or_else(|| {
            acts.push(ActDecl { name: name.into(), columns, rows });
            acts.len() - 1
        });
        Act(at as u32)
    }

    fn store(&mut self, decl: StoreDecl) -> Store {
        self.program.stores.push(decl);
        Store(self.program.stores.len() as u32 - 1)
    }

    fn declare(&mut self, decl: WeightDecl) -> Weight {
        let weights = &mut self.program.weights;
        // Layers may share a tensor (rope factors); they share its declaration.
        let at = weights.iter().position(|known| *known == decl).unwrap_or_else(|| {
            weights.push(decl);
            weights.len() - 1
        });
        Weight(at as u32)
    }

    fn weight(&mut self, name: String, shape: [usize; 2], parts: Vec<Part>) -> Weight {
        let parts = parts.into_iter().map(|(tensor, first, rows)| RowBlock { tensor, first, rows }).collect();
        self.declare(WeightDecl { name, shape, parts, format: WeightFormat::Stored })
    }

    /// A whole matrix, as stored.
    fn matrix(&mut self, name: String, shape: [usize; 2]) -> Weight {
        self.weight(name.clone(), shape, vec![(name, 0, shape[0])])
    }

    /// Some rows of a matrix, as stored; `label` tells them from the others.
    fn rows_of(&mut self, name: &str, label: &str, columns: usize, rows: Range<usize>) -> Weight {
        let part = (name.to_string(), rows.start, rows.len());
        self.weight(format!("{name}/{label}"), [rows.len(), columns], vec![part])
    }

    /// A whole small tensor, as F32.
    fn small(&mut self, name: String, shape: [usize; 2]) -> Weight {
        self.small_of(name.clone(), shape, vec![(name, 0, shape[0])])
    }

    /// Small tensors one after the other, as F32.
    fn small_of(&mut self, name: String, shape: [usize; 2], parts: Vec<Part>) -> Weight {
        let parts = parts.into_iter().map(|(tensor, first, rows)| RowBlock { tensor, first, rows }).collect();
        self.declare(WeightDecl { name, shape, parts, format: WeightFormat::F32 })
    }

    fn norm(&mut self, x: Act, out: Act, name: String) {
        let group = self.spec.width;
        self.group_norm(x, out, name, group);
    }

    fn group_norm(&mut self, x: Act, out: Act, name: String, group: usize) {
        self.norm_with(x, name, (group, self.spec.norm_eps), out);
    }

    /// A norm of groups of so many columns, with an epsilon of its own.
    fn norm_with(&mut self, x: Act, name: String, (group, eps): (usize, f32), out: Act) {
        let weight = self.small(name, [1, group]);
        self.op(Op::Norm(op::Norm { x, weight, eps, out }));
    }

    /// `out = x weight^T`
    fn linear(&mut self, x: Act, weight: Weight, out: Act) {
        self.op(Op::Linear(op::Linear::new(x, weight, out)));
    }

    /// `residual += scale * x weight^T`, with a matrix `[width, columns of x]`.
    fn add_to_residual(&mut self, x: Act, name: String, residual: Act) {
        self.add_biased_to_residual(x, name, None, residual);
    }

    /// `residual += scale * (x weight^T + bias)`, with a bias of the width.
    fn add_biased_to_residual(&mut self, x: Act, name: String, bias: Option<String>, residual: Act) {
        let columns = self.program.act(x).columns;
        let weight = self.matrix(name, [self.spec.width, columns]);
        let bias = bias.map(|name| self.small(name, [1, self.spec.width]));
        let (scale, output) = (self.spec.scales.residual, Output::Accumulate);
        self.op(Op::Linear(op::Linear { bias, scale, output, ..op::Linear::new(x, weight, residual) }));
    }

    /// The logits of the output rows, by the matrix of a tensor.
    fn output(&mut self, residual: Act, norm: String, tensor: &str) {
        let spec = self.spec;
        let last = self.act_of("last", spec.width, Rows::Outputs);
        self.op(Op::GatherRows(op::GatherRows { x: residual, out: last }));
        self.norm(last, last, norm);
        let logits = self.act_of("logits", spec.vocab, Rows::Outputs);
        let parts = vec![(tensor.into(), 0, spec.vocab)];
        let output = self.weight("output.weight".into(), [spec.vocab, spec.width], parts);
        self.op(Op::Linear(op::Linear { scale: spec.scales.logits, ..op::Linear::new(last, output, logits) }));
        self.program.logits = logits;
    }

    fn layer(&mut self, index: usize, layer: &LayerSpec, residual: Act) {
        let normed = self.act("normed", self.spec.width);
        if !layer.mixers.is_empty() {
            self.norm(residual, normed, of(index, "attn_norm.weight"));
        }
        for mixer in &layer.mixers {
            match mixer {
                Mixer::Attention(attention) => self.attention(index, attention, normed, residual),
                Mixer::LatentAttention(attention) => self.latent_attention(index, attention, normed, residual),
                Mixer::GatedDelta(delta) => self.gated_delta(index, delta, normed, residual),
                Mixer::Mamba2(mamba) => self.mamba2(index, mamba, normed, residual),
                Mixer::Mamba1(mamba) => self.mamba1(index, mamba, normed, residual),
                Mixer::ShortConv(conv) => self.short_conv(index, conv, normed, residual),
            }
        }
        if let Some(ffn) = &layer.ffn {
            self.norm(residual, normed, of(index, layer.ffn_norm));
            match ffn {
                Ffn::Dense { hidden, kind } => self.dense(index, *hidden, *kind, normed, residual),
                Ffn::Moe(moe) => self.moe(index, moe, normed, residual),
            }
        }
    }
}
