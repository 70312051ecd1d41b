//! Steps as graphs. What a step puts into the stream is recorded and compared with that of earlier steps: if every
//! launch is the same to the bit, a graph of all of them takes one call. So a graph can never be stale, and gives the
//! bits that its launches give one by one. Of a step whose shape was seen with that graph nothing is recorded: ops see
//! no more of it than the shape. Once a step differs from all graphs there are, what it asks for goes into the stream at
//! once, and a graph of it is made while the device is at work.

use crate::{
    device::{Device, Graph, Ptr, failed},
    launch::Launched,
    shape::Shape,
};
use kvas_backend::DeviceError;
use std::{
    collections::VecDeque,
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Arc,
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

/// The calls of a step, which wait for its end as long as they may be those of a graph.
#[derive(Default)]
pub(crate) struct Recorder {
    is_on: bool,
    calls: Vec<Call>,
    /// What graphs put into the stream that begin with these calls. None: the calls are there already.
    candidates: Vec<Arc<[Call]>>,
    /// Something else came between some calls: the step is none to make a graph of.
    is_broken: bool,
}

impl Recorder {
    /// Whether the calls wait for the end of the step.
    fn waits(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// One more call.
    fn add(&mut self, call: Call, device: &Device) -> Result<(), DeviceError> {
        let at = self.calls.len();
        let waited = self.waits();
        self.candidates.retain(|known| known.get(at) == Some(&call));
        self.calls.push(call);
        match (waited, self.waits()) {
            (_, true) => Ok(()),
            (true, false) => run_all(&self.calls, device),
            (false, false) => self.calls[at].now(device),
        }
    }
}

impl Device {
    /// Puts something into the stream, when the step ends at the latest.
    pub(crate) fn call(&self, call: Call) -> Result<(), DeviceError> {
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        self.bind()?;
        if recorder.is_on {
            return recorder.add(call, self);
        }
        drop(recorder);
        call.now(self)
    }

    /// Makes what follows wait for [`Device::end_step`] as long as a graph puts the same into the stream.
    pub(crate) fn begin_step(&self, graphs: &Graphs) -> Result<(), DeviceError> {
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        let candidates = graphs.graphs.iter().map(|known| known.calls.clone()).collect();
        *recorder = Recorder { is_on: true, candidates, ..Recorder::default() };
        Ok(())
    }

    /// Puts what waits into the stream, by its graph if it has one, and remembers the step.
    pub(crate) fn end_step(&self, graphs: &mut Graphs, shape: &Shape) -> Result<(), DeviceError> {
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        let Recorder { calls, candidates, is_broken, .. } = std::mem::take(&mut *recorder);
        drop(recorder);
        self.bind()?;
        // Those that are left begin with these calls.
        if let Some(same) = candidates.iter().find(|known| known.len() == calls.len()) {
            return graphs.run_same(same, shape, self);
        }
        if !candidates.is_empty() {
            run_all(&calls, self)?;
        }
        if is_broken { Ok(()) } else { graphs.remember(calls, shape, self) }
    }

    /// Forgets what waits: its step failed.
    pub(crate) fn abandon_step(&self) {
        if let Ok(mut recorder) = self.recorder.lock() {
            *recorder = Recorder::default();
        }
    }

    /// Puts what waits into the stream now: something comes that must be after it and cannot wait.
    pub(crate) fn run_recorded(&self) -> Result<(), DeviceError> {
        self.bind()?;
        let mut recorder = self.recorder.lock().map_err(|_| failed("a thread panicked in a step"))?;
        let (calls, waited) = (std::mem::take(&mut recorder.calls), recorder.waits());
        if !calls.is_empty() {
            recorder.is_broken = true;
            recorder.candidates.clear();
        }
        drop(recorder);
        if waited { run_all(&calls, self) } else { Ok(()) }
    }
}

fn run_all(calls: &[Call], device: &Device) -> Result<(), DeviceError> {
    calls.iter().try_for_each(|call| call.now(device))
}

/// A graph, what it puts into the stream, and shapes of steps that did; the last used first.
struct CachedGraph {
    calls: Arc<[Call]>,
    graph: Graph,
    shapes: VecDeque<Shape>,
}

/// Shapes of a graph that are remembered.
const SHAPES: usize = 16;

/// Graphs of steps that came again.
pub(crate) struct Graphs {
    /// No more are made: none are wanted, or not even one could be.
    is_eager: bool,
    /// The last used first.
    graphs: VecDeque<CachedGraph>,
    /// Hashes of the last steps that had no graph, and how often each came.
    seen: VecDeque<(u64, u32)>,
}

/// Graphs that are kept: one sequence with three drafts has four for every 128 tokens of context, which the next conversation has
/// again. A graph takes about 0.3 MiB of the device's memory (32 layers).
const KEPT: usize = 96;
/// Steps without a graph that are remembered.
const SEEN: usize = 256;
/// A graph is made when a step comes for this time: the processor takes about as long for it as for launching the step, while the
/// device is at work.
const OFTEN: u32 = 2;
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

    /// Runs the graph of these calls for a step of another shape, which is remembered.
    fn run_same(&mut self, calls: &Arc<[Call]>, shape: &Shape, device: &Device) -> Result<(), DeviceError> {
        let at = self.graphs.iter().position(|known| Arc::ptr_eq(&known.calls, calls));
        let at = at.expect("graphs come and go between steps only");
        let known = self.use_graph(at);
        known.shapes.push_front(shape.clone());
        known.shapes.truncate(SHAPES);
        known.graph.launch(device)
    }

    /// Remembers what was put into the stream one by one: for the next time, as a graph if it came often enough.
    fn remember(&mut self, calls: Vec<Call>, shape: &Shape, device: &Device) -> Result<(), DeviceError> {
        if self.is_eager || !CALLS.contains(&calls.len()) || self.times_seen(&calls) < OFTEN {
            return Ok(());
        }
        // The step has run, and goes without one if there is no memory for it. The next one has that of the oldest.
        let Ok(graph) = Graph::capture(device, &|| run_all(&calls, device)) else {
            device.synchronize()?;
            self.is_eager = self.graphs.pop_back().is_none();
            return Ok(());
        };
        if self.graphs.len() == KEPT {
            // It may still run.
            device.synchronize()?;
            self.graphs.pop_back();
        }
        self.graphs.push_front(CachedGraph { calls: calls.into(), graph, shapes: VecDeque::from([shape.clone()]) });
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

    /// The same step with other inputs, eight times: the last six are graphs.
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
