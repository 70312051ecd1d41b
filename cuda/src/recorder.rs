//! Steps as graphs. What a step puts into the stream is recorded and compared with that of earlier steps: if every
//! launch is the same to the bit, a graph of all of them takes one call. So a graph can never be stale, and gives the
//! bits that its launches give one by one. Of a step whose shape was seen with that graph nothing is recorded: ops see
//! no more of it than the shape.

use crate::{
    device::{Device, Graph, Ptr, failed},
    launch::Launched,
    shape::Shape,
};
use kvas_backend::DeviceError;
use std::{
    collections::VecDeque,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
};

/// Something that is put into a stream.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Kernel(Launched),
    Copy { from: Ptr, to: Ptr, bytes: usize },
    Fill { at: Ptr, byte: u8, bytes: usize },
}

impl Call {
    fn now(&self, device: &Device) -> Result<(), DeviceError> {
        match self {
            Call::Kernel(launched) => launched.now(device),
            Call::Copy { from, to, bytes } => device.copy_now(*from, *to, *bytes),
            Call::Fill { at, byte, bytes } => device.fill_now(*at, *byte, *bytes),
        }
    }
}

/// Calls that wait for the end of their step.
#[derive(Default)]
pub(crate) struct Recorder {
    is_on: bool,
    calls: Vec<Call>,
    /// Some calls were not waited with: the step is none to make a graph of.
    is_broken: bool,
}

impl Device {
    /// Puts something into the stream, at the latest when the step ends.
    pub(crate) fn call(&self, call: Call) -> Result<(), DeviceError> {
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        if recorder.is_on {
            recorder.calls.push(call);
            return Ok(());
        }
        drop(recorder);
        self.bind()?;
        call.now(self)
    }

    /// Makes what follows wait for [`Device::end_step`].
    pub(crate) fn begin_step(&self) -> Result<(), DeviceError> {
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        recorder.calls.clear();
        (recorder.is_on, recorder.is_broken) = (true, false);
        Ok(())
    }

    /// Puts what waits into the stream, as a graph if the same was asked for often enough.
    pub(crate) fn end_step(&self, graphs: &mut Graphs, shape: &Shape) -> Result<(), DeviceError> {
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        let (calls, is_broken) = (std::mem::take(&mut recorder.calls), recorder.is_broken);
        recorder.is_on = false;
        drop(recorder);
        self.bind()?;
        if is_broken { run_all(&calls, self) } else { graphs.run(calls, shape, self) }
    }

    /// Forgets what waits: its step failed.
    pub(crate) fn abandon_step(&self) {
        if let Ok(mut recorder) = self.recorder.lock() {
            recorder.calls.clear();
            recorder.is_on = false;
        }
    }

    /// Puts what waits into the stream now: something comes that must be after it and cannot wait.
    pub(crate) fn run_recorded(&self) -> Result<(), DeviceError> {
        self.bind()?;
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        let calls = std::mem::take(&mut recorder.calls);
        recorder.is_broken |= !calls.is_empty();
        drop(recorder);
        run_all(&calls, self)
    }
}

fn run_all(calls: &[Call], device: &Device) -> Result<(), DeviceError> {
    calls.iter().try_for_each(|call| call.now(device))
}

/// A graph, what it puts into the stream, and shapes of steps that did; the last used first.
struct CachedGraph {
    calls: Vec<Call>,
    graph: Graph,
    shapes: VecDeque<Shape>,
}

/// Shapes of a graph that are remembered.
const SHAPES: usize = 16;

/// Graphs of steps that came again.
pub(crate) struct Graphs {
    /// None are made.
    is_eager: bool,
    /// The last used first.
    graphs: VecDeque<CachedGraph>,
    /// Hashes of the last steps that had no graph, and how often each came.
    seen: VecDeque<(u64, u32)>,
}

/// Graphs that are kept.
const KEPT: usize = 24;
/// Steps without a graph that are remembered.
const SEEN: usize = 64;
/// A graph is made when a step comes for this time: making one costs as much as a few steps.
const OFTEN: u32 = 3;
/// Steps of more calls than this are those of long prompts on deep models; of fewer, nothing is gained.
const CALLS: std::ops::RangeInclusive<usize> = 4..=20_000;

impl Graphs {
    /// None yet.
    pub(crate) fn new(is_eager: bool) -> Self {
        Self { is_eager, graphs: VecDeque::new(), seen: VecDeque::new() }
    }

    /// Runs the graph of a step of this shape, if there is one.
    pub(crate) fn run_known(&mut self, shape: &Shape, device: &Device) -> Result<bool, DeviceError> {
        let Some(at) = self.graphs.iter().position(|known| known.shapes.contains(shape)) else { return Ok(false) };
        self.use_graph(at).graph.launch(device)?;
        Ok(true)
    }

    /// A graph, which comes before all others from now on.
    fn use_graph(&mut self, at: usize) -> &mut CachedGraph {
        if let Some(found) = self.graphs.remove(at) {
            self.graphs.push_front(found);
        }
        &mut self.graphs[0]
    }

    fn run(&mut self, calls: Vec<Call>, shape: &Shape, device: &Device) -> Result<(), DeviceError> {
        if self.is_eager || !CALLS.contains(&calls.len()) {
            return run_all(&calls, device);
        }
        if let Some(at) = self.graphs.iter().position(|known| known.calls == calls) {
            let known = self.use_graph(at);
            known.shapes.push_front(shape.clone());
            known.shapes.truncate(SHAPES);
            return known.graph.launch(device);
        }
        if self.times_seen(&calls) < OFTEN {
            return run_all(&calls, device);
        }
        let graph = Graph::capture(device, &|| run_all(&calls, device))?;
        if self.graphs.len() == KEPT {
            // It may still run.
            device.synchronize()?;
            self.graphs.pop_back();
        }
        graph.launch(device)?;
        self.graphs.push_front(CachedGraph { calls, graph, shapes: VecDeque::from([shape.clone()]) });
        Ok(())
    }

    /// How often a step came, this time included.
    fn times_seen(&mut self, calls: &[Call]) -> u32 {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(calls);
        let known = self.seen.iter().position(|(known, _)| *known == hash);
        let times = known.and_then(|at| self.seen.remove(at)).map_or(1, |(_, times)| times + 1);
        self.seen.push_front((hash, times));
        self.seen.truncate(SEEN);
        times
    }
}

#[cfg(test)]
mod tests {
    use crate::{Cuda, Device};
    use kvas_backend::{
        Backend, Op, Outputs, Slot, Step,
        conformance::{Build, Random, RandomWeights, without_stores},
        op::Norm,
    };
    use kvas_gguf::Quant;
    use std::sync::Arc;

    /// The same step with other inputs, eight times: the last five are graphs.
    fn outputs(mut backend: Cuda) -> Vec<Vec<f32>> {
        let (mut b, columns, rows) = (Build::default(), 96, 5);
        let acts = [0, 1, 2, 3, 4, 5].map(|i| b.act(&format!("x{i}"), columns));
        let weight = b.small("norm", [1, columns]);
        for pair in acts.windows(2) {
            b.op(Op::Norm(Norm { x: pair[0], weight, eps: 1e-6, out: pair[1] }));
        }
        let program = Arc::new(b.finish(acts[5]));
        backend
            .prepare(program.clone(), &mut RandomWeights { quant: Quant::F32, seed: 1 }, without_stores(rows))
            .unwrap();
        let mut random = Random::new(3);
        let mut step = Step::default();
        step.push(Slot(1), 0, &vec![0; rows], Outputs::All, []);
        let mut one = || {
            let x: Vec<f32> = (0..rows * columns).map(|_| random.normal()).collect();
            let mut out = vec![0.0; x.len()];
            backend.write(acts[0], &x).unwrap();
            backend.run(&program, &step).unwrap();
            backend.read(acts[5], 0, &mut out).unwrap();
            backend.commit(&[(Slot(1), rows as u32)]).unwrap();
            out
        };
        (0..8).map(|_| one()).collect()
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn graphs_give_the_bits_of_their_launches() {
        let device = Device::open(0).unwrap();
        let (eager, graphs) = (outputs(Cuda::new(device.clone()).eager()), outputs(Cuda::new(device)));
        assert!(eager == graphs, "some step differs");
        assert!(eager.windows(2).all(|pair| pair[0] != pair[1]), "every step has other inputs");
    }
}
