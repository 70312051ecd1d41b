//! What a step must move and compute at least: the yardstick of `kvas bench`.

use kvas_backend::{KvType, Program, StoreDecl};
use kvas_gguf::GgufFile;

/// Lower bounds of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Weight bytes a step of one token reads; a step of more tokens reads them once too, save for experts.
    pub weights_bytes: u64,
    /// Multiply-adds with weights, per token.
    pub multiply_adds: u64,
    /// Bytes of keys and values a token of context adds to what attention reads.
    pub kv_bytes: u64,
    /// State bytes of one sequence: read once a step.
    pub state_bytes: u64,
}

/// Counts a program over the formats of its file, with pages of `kv_type`.
pub fn traffic(program: &Program, file: &GgufFile, kv_type: KvType) -> Traffic {
    let mut total = Traffic::default();
    for product in program.ops.iter().filter_map(|op| op.product(program)) {
        let (active, matrices) = product.matrices(program);
        for decl in product.weights().map(|weight| program.weight(weight)) {
            let [rows, columns] = decl.shape;
            let quant = file.tensor(&decl.parts[0].tensor).map_or(kvas_gguf::Quant::F32, |info| info.quant);
            let bytes = rows * quant.row_bytes(columns).unwrap_or(0);
            total.weights_bytes += (bytes * active / matrices) as u64;
            total.multiply_adds += (rows * columns * active / matrices) as u64;
        }
    }
    for store in &program.stores {
        match store {
            StoreDecl::Pages(pages) => total.kv_bytes += pages.row_bytes(kv_type) as u64,
            StoreDecl::State(state) => total.state_bytes += 4 * state.state_elements() as u64,
            StoreDecl::Conv(conv) => total.state_bytes += 4 * (conv.channels * (conv.taps - 1)) as u64,
        }
    }
    total
}
