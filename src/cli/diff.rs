//! `kvas diff`: two devices op by op, and the first op in which they part.

use super::{
    device::{self, MemoryRequest, Place},
    flags::{Device, ModelFlags},
    print,
    score::check_ids,
};
use anyhow::ensure;
use clap::Args;
use kvas::{memory::Memory, model::Model};
use kvas_backend::{Act, Backend, DeviceError, Op, Outputs, Step, conformance::normalised_error};

/// Run a prompt on two devices and compare what every op writes
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kvas diff -m model.gguf --device cuda --against reference\n  kvas diff -m model.gguf --ids 1,2,3 --all"
)]
pub(crate) struct Diff {
    #[command(flatten)]
    model: ModelFlags,
    /// The device to compare with
    #[arg(long, value_enum, default_value_t = Device::Reference)]
    against: Device,
    /// Tokens to read [default: 16 arbitrary ones]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    ids: Vec<u32>,
    /// Largest normalised mean squared error that is no difference
    #[arg(long, value_name = "X", default_value_t = 1e-3)]
    bound: f64,
    /// Show every op, not only the first that parts
    #[arg(long)]
    all: bool,
}

impl Diff {
    /// Exits with 1 if an op parts.
    pub(crate) fn run(self) -> anyhow::Result<u8> {
        ensure!(self.bound >= 0.0, "--bound {}, expected 0 or more", self.bound);
        let model = device::open(&self.model)?;
        let vocab = model.spec.vocab as u32;
        let ids = if self.ids.is_empty() { (1..=16).map(|i| i * 7919 % vocab).collect() } else { self.ids.clone() };
        check_ids(&model, &ids)?;
        let (count, most) = (ids.len(), self.model.run.batch_size);
        let named = if self.ids.is_empty() { "without --ids" } else { "--ids" };
        ensure!(count <= most as usize, "{named}: {count} tokens, expected at most the {most} of --batch-size");
        if let Some(context) = self.model.run.context() {
            ensure!(count <= context, "{named}: {count} tokens, expected at most the context of {context}");
        }
        let mut flags = self.model.clone();
        let names = [Place::of(&flags.run.compute)?, {
            let compute = &mut flags.run.compute;
            (compute.device, compute.n_gpu_layers, compute.cpu_moe) = (self.against, None, false);
            Place::asked(&flags.run.compute, "--against")?
        }];
        // Every op runs on both with the same inputs: what is told is the error of this op, not of those before it.
        let mut backends = Vec::new();
        for (flags, place) in [&self.model, &flags].into_iter().zip(&names) {
            backends.push(prepared(flags, &model, place, &ids)?);
        }
        print(format_args!("{} against {}, {} tokens", names[0].name(), names[1].name(), ids.len()))?;
        let mut parted = 0;
        for (number, op) in model.program.ops.iter().enumerate() {
            for (act, error) in one_op(&model, &mut backends, op, ids.len())? {
                let parts = error.is_nan() || error > self.bound;
                if self.all || (parts && parted == 0) {
                    let (name, act) = (op.name(), &model.program.act(act).name);
                    print(format_args!("{number:>5} {name:<19} {act:<16} {error:.2e}"))?;
                }
                parted += usize::from(parts);
            }
        }
        print(format_args!("{parted} of {} ops part by more than {:.0e}", model.program.ops.len(), self.bound))?;
        Ok(u8::from(parted > 0))
    }
}

/// A device with the model on it and a step begun that reads the tokens.
fn prepared(flags: &ModelFlags, model: &Model, place: &Place, ids: &[u32]) -> anyhow::Result<Box<dyn Backend>> {
    let request = device::memory_request(flags, model, MemoryRequest::once(ids.len(), Some(ids.len())))?;
    let limits = kvas::memory::plan::plan(&model.program, model.spec.context_length, &request).limits;
    let mut backend = place.backend();
    let mut progress = |_, _| {};
    let mut weights = kvas::model::weights::FileWeights::new(&model.file, &mut progress);
    backend.prepare(model.program.clone(), &mut weights, limits)?;
    let mut memory = Memory::in_arenas(&model.program, &limits, &backend.arenas());
    let (id, work) = memory.open()?;
    backend.clear_slots(&work.clear_slots)?;
    memory.reserve(id, ids.len() as u32)?;
    let mut step = Step::default();
    step.push(memory.slot(id), 0, ids, Outputs::All, memory.tables(id));
    backend.begin(&step)?;
    Ok(backend)
}

/// Runs an op on both devices with the inputs that the second one has; the activations it writes, and their errors.
fn one_op(
    model: &Model,
    backends: &mut [Box<dyn Backend>],
    op: &Op,
    rows: usize,
) -> Result<Vec<(Act, f64)>, DeviceError> {
    let touches = op.touches();
    let values = |backend: &mut dyn Backend, act: Act| {
        // Every row is an output.
        let mut values = vec![0.0; rows * model.program.act(act).columns];
        backend.read(act, 0, &mut values).map(|()| values)
    };
    for act in touches.reads {
        let inputs = values(backends[1].as_mut(), act)?;
        backends[0].write(act, &inputs)?;
    }
    backends.iter_mut().try_for_each(|backend| backend.execute(op))?;
    let mut errors = Vec::new();
    for act in touches.writes {
        let (found, expected) = (values(backends[0].as_mut(), act)?, values(backends[1].as_mut(), act)?);
        // What neither has written yet is not a number in the reference.
        let written = expected.iter().zip(&found).filter(|(expected, _)| !expected.is_nan());
        let (expected, found): (Vec<f32>, Vec<f32>) = written.unzip();
        errors.push((act, normalised_error(&expected, &found)));
    }
    Ok(errors)
}
