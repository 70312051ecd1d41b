//! Which ops run on the processor where a GPU runs the others.

use kvas_backend::{Op, Placement, Program};

/// The device of a [`Placement`] that is the GPU, and the one that is the processor.
pub const GPU: usize = 0;
/// See [`GPU`].
pub const PROCESSOR: usize = 1;

/// The last `gpu_layers` layers and what comes after them on the GPU, the others and what comes before them on the
/// processor; products with experts there too if `experts_on_processor`. `None`: nothing is on the processor.
pub fn placement(program: &Program, gpu_layers: usize, experts_on_processor: bool) -> Option<Placement> {
    let layers = layers(program);
    let count = layers.iter().max().map_or(0, |last| last + 1);
    let first = count.saturating_sub(gpu_layers);
    let device = |(op, layer): (&Op, &usize)| {
        let is_expert = matches!(op, Op::ExpertGatedLinear(_) | Op::ExpertLinear(_));
        if *layer < first || (is_expert && experts_on_processor) { PROCESSOR } else { GPU }
    };
    let mut devices: Vec<usize> = program.ops.iter().zip(&layers).map(device).collect();
    if gpu_layers == 0 {
        devices.fill(PROCESSOR);
    }
    devices.contains(&PROCESSOR).then(|| Placement::new(program, devices))
}

/// The layer of every op: that of its weights, or of the op before it.
fn layers(program: &Program) -> Vec<usize> {
    let named = |op: &Op| {
        op.touches().weights.into_iter().find_map(|weight| {
            let tensor = &program.weight(weight).parts.first()?.tensor;
            tensor.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok()
        })
    };
    let mut last = 0;
    let layer = |op: &Op| {
        last = named(op).unwrap_or(last);
        last
    };
    program.ops.iter().map(layer).collect()
}
