//! What a step must move and compute at least: the yardstick of `kvas bench`.

use kvas_backend::{Act, KvType, Op, Program, Rows, Span, Step, Store, StoreDecl, Weight, op::Attention};
use kvas_gguf::{GgufFile, Quant};
use std::ops::Add;

/// Lower bounds of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Weight bytes a step of one token reads; a step of more tokens reads them once too, save for experts.
    pub weights_bytes: u64,
    /// Weight bytes there are: no step reads more.
    pub all_weights_bytes: u64,
    /// Multiply-adds with weights, per token.
    pub multiply_adds: u64,
    /// Bytes of keys and values a token of context adds to what attention reads.
    pub kv_bytes: u64,
    /// Multiply-adds with them, per token and token of context.
    pub kv_multiply_adds: u64,
    /// State bytes of one sequence: read once a step.
    pub state_bytes: u64,
    /// Multiply-adds with the state, per token: what is remembered is looked up, the outer product of what is new is
    /// added, and the state is read.
    pub state_multiply_adds: u64,
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weights_bytes: self.weights_bytes + other.weights_bytes,
            all_weights_bytes: self.all_weights_bytes + other.all_weights_bytes,
            multiply_adds: self.multiply_adds + other.multiply_adds,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            kv_multiply_adds: self.kv_multiply_adds + other.kv_multiply_adds,
            state_bytes: self.state_bytes + other.state_bytes,
            state_multiply_adds: self.state_multiply_adds + other.state_multiply_adds,
        }
    }
}

/// Counts a program over the formats of its file, with pages of `kv_type`.
pub fn traffic(program: &Program, file: &GgufFile, kv_type: KvType) -> Traffic {
    let ops = program.ops.iter().map(|op| op_traffic(program, file, kv_type, op));
    ops.fold(Traffic::default(), Traffic::add)
}

/// Committed tokens that a span of a step, by its number, finds in the store of an attention: those that are held.
pub fn held(program: &Program, attention: &Attention, (step, span): (&Step, usize)) -> u64 {
    u64::from(step.held(span, program.page_ordinal(attention.store)))
}

/// Bytes of keys and values that the attention of a step reads: of all its spans what is held, and the new ones.
pub fn kv_bytes(program: &Program, kv_type: KvType, step: &Step) -> u64 {
    let of = |op: &Op| {
        let Op::Attention(op) = op else { return 0 };
        let spans = step.spans().iter().enumerate();
        let tokens: u64 = spans.map(|(span, of)| held(program, op, (step, span)) + u64::from(of.rows)).sum();
        tokens * program.pages(op.store).row_bytes(kv_type) as u64
    };
    program.ops.iter().map(of).sum()
}

/// Multiply-adds of an op in a step, of which `traffic` says what they are of a token: with weights for the rows that they are
/// multiplied with, which of an output matrix are those that are wanted, with keys and values for those before a row.
pub fn op_multiply_adds(program: &Program, op: &Op, traffic: &Traffic, step: &Step) -> u64 {
    let multiplied = op.product(program).map_or(0, |product| rows(program, product.x, step));
    let of_span = |(number, span): (usize, &Span)| {
        // What was given up is not read.
        let context = if let Op::Attention(op) = op { held(program, op, (step, number)) } else { 0 };
        let rows = u64::from(span.rows);
        traffic.kv_multiply_adds * (rows * context + rows * (rows + 1) / 2) + traffic.state_multiply_adds * rows
    };
    traffic.multiply_adds * multiplied as u64 + step.spans().iter().enumerate().map(of_span).sum::<u64>()
}

/// Multiply-adds of a step, all its ops together.
pub fn multiply_adds(program: &Program, file: &GgufFile, kv_type: KvType, step: &Step) -> u64 {
    let of = |op| op_multiply_adds(program, op, &op_traffic(program, file, kv_type, op), step);
    program.ops.iter().map(of).sum()
}

/// Rows of an activation in a step.
pub fn rows(program: &Program, act: Act, step: &Step) -> usize {
    match program.act(act).rows {
        Rows::Step => step.tokens().len(),
        Rows::Outputs => step.outputs().len(),
    }
}

/// The format that a weight is stored in.
pub fn stored_as(program: &Program, file: &GgufFile, weight: Weight) -> Quant {
    file.tensor(&program.weight(weight).parts[0].tensor).map_or(Quant::F32, |info| info.quant)
}

/// Counts one op.
pub fn op_traffic(program: &Program, file: &GgufFile, kv_type: KvType, op: &Op) -> Traffic {
    let mut total = Traffic::default();
    if let Some(product) = op.product(program) {
        let (active, matrices) = product.matrices(program);
        for weight in product.weights() {
            let [rows, columns] = program.weight(weight).shape;
            let bytes = rows * stored_as(program, file, weight).row_bytes(columns).unwrap_or(0);
            total.weights_bytes += (bytes * active / matrices) as u64;
            total.all_weights_bytes += bytes as u64;
            total.multiply_adds += (rows * columns * active / matrices) as u64;
        }
    }
    let store = |store: Store| program.store(store);
    if let Op::Attention(op) = op
        && let StoreDecl::Pages(pages) = store(op.store)
    {
        total.kv_bytes = pages.row_bytes(kv_type) as u64;
        total.kv_multiply_adds = (op.heads * (pages.key_dim + pages.value_dim)) as u64;
    }
    if let Op::ReadMemory(op) = op
        && let StoreDecl::Pages(pages) = store(op.store)
    {
        let [hidden, columns] = program.weight(op.fc1[0]).shape;
        total.state_bytes = (pages.memory_bytes() + 2 * 4 * hidden * columns) as u64;
        total.state_multiply_adds = (op.heads * columns * (pages.key_dim + 2 * hidden)) as u64;
    }
    let remembers = match op {
        Op::GatedDelta(op) => Some((op.store, 3)),
        Op::Mamba2(op) => Some((op.store, 2)),
        Op::Mamba1(op) => Some((op.store, 2)),
        Op::CausalConv(op) => Some((op.store, 1)),
        Op::ShortConv(op) => Some((op.store, 1)),
        Op::Embed(_)
        | Op::GatherRows(_)
        | Op::Norm(_)
        | Op::Linear(_)
        | Op::GatedLinear(_)
        | Op::HeadLinear(_)
        | Op::RopeStore(_)
        | Op::Attention(_)
        | Op::ReadMemory(_)
        | Op::GatedNorm(_)
        | Op::Route(_)
        | Op::ExpertGatedLinear(_)
        | Op::ExpertLinear(_) => None,
    };
    if let Some((of, passes)) = remembers {
        let elements = store(of).slot_elements() as u64;
        (total.state_bytes, total.state_multiply_adds) = (4 * elements, passes * elements);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use kvas_backend::{Outputs, Page, Slot};

    /// A prompt needs the output matrix for its last row only, and each row the keys and values before it.
    #[test]
    fn operations_are_those_that_are_done() {
        let model = Model::bundled(None).unwrap();
        let of = |context, rows: usize, outputs| {
            let mut step = Step::default();
            let tables = vec![&[Page(1)][..]; model.program.page_stores()];
            step.push(Slot(1), context, &vec![1; rows], outputs, tables);
            multiply_adds(&model.program, &model.file, KvType::F16, &step)
        };
        let plain = traffic(&model.program, &model.file, KvType::F16);
        let each = plain.multiply_adds + plain.state_multiply_adds;
        assert_eq!(of(0, 1, Outputs::Last), each + plain.kv_multiply_adds);
        assert_eq!(of(100, 1, Outputs::Last), each + 101 * plain.kv_multiply_adds);
        assert_eq!(of(0, 32, Outputs::All), 32 * each + 32 * 33 / 2 * plain.kv_multiply_adds);
        let logits = (model.spec.vocab * model.spec.width) as u64;
        assert_eq!(of(0, 32, Outputs::Last), of(0, 32, Outputs::All) - 31 * logits);
        assert!(logits * 10 > plain.multiply_adds, "it would tell: {logits} of {}", plain.multiply_adds);
    }
}
