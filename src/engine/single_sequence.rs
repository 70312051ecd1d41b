//! One sequence that is read by hand, a prompt and then token by token, with a bound or without: what the quality of a
//! bound is measured with.

use super::Runner;
use crate::{
    memory::{Memory, SequenceId},
    policy::Bound,
};
use kvas_backend::{DeviceError, Outputs, Step};

/// See the module.
#[derive(Debug)]
pub struct SingleSequence {
    memory: Memory,
    id: SequenceId,
    /// What was read.
    tokens: Vec<u32>,
}

fn line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl SingleSequence {
    /// An empty sequence on a device that is used for nothing else. Fails in one line.
    pub fn new(runner: &mut Runner) -> Result<Self, String> {
        let mut memory = runner.memory();
        let (id, work) = memory.open().map_err(line)?;
        runner.apply(&work).map_err(line)?;
        Ok(Self { memory, id, tokens: Vec::new() })
    }

    /// Begins a prompt: with what is kept of it, but for its last `asked` tokens, which will be asked what they read.
    /// Returns how many need not be read again.
    pub fn begin(&mut self, runner: &mut Runner, prompt: &[u32], asked: u32) -> Result<usize, String> {
        let emptied = self.memory.bind(self.id, 0).into_iter().chain(self.memory.bind(self.id, asked));
        emptied.into_iter().try_for_each(|work| runner.apply(&work)).map_err(line)?;
        self.tokens.truncate(self.memory.committed(self.id) as usize);
        let reuse = self.memory.attach(self.id, &self.tokens, prompt, 0);
        runner.apply(&reuse.work).map_err(line)?;
        self.tokens = prompt[..reuse.cached as usize].to_vec();
        Ok(self.tokens.len())
    }

    /// Remembers what was read, so that prompts can begin with it.
    pub fn keep(&mut self, runner: &mut Runner) -> Result<(), String> {
        let work = self.memory.seal(self.id, &self.tokens);
        work.map_or(Ok(()), |work| runner.apply(&work)).map_err(line)
    }

    /// Reads more tokens, then evicts what is more than `bound`; if there is no room for them in all layers, layer by
    /// layer and from the start. The logits of the last one are those of the runner's output row 0.
    pub fn push(&mut self, runner: &mut Runner, tokens: &[u32], bound: Option<&Bound>) -> Result<(), String> {
        let rows = runner.limits().rows;
        if let Some(bound) = bound
            && !self.memory.has_room(self.id, tokens.len() as u32)
            && runner.can_prefill_layerwise((&self.memory, self.id), bound, (self.tokens.len() + tokens.len()) as u32)
        {
            return self.push_layerwise(runner, tokens, bound);
        }
        for tokens in tokens.chunks(rows) {
            let work = self.memory.reserve(self.id, tokens.len() as u32).map_err(line)?;
            runner.apply(&work).map_err(line)?;
            self.step(runner, tokens).map_err(line)?;
        }
        bound.map_or(Ok(()), |bound| runner.keep_within(&mut self.memory, self.id, bound)).map_err(line)
    }

    fn push_layerwise(&mut self, runner: &mut Runner, tokens: &[u32], bound: &Bound) -> Result<(), String> {
        let work = self.memory.clear(self.id);
        runner.apply(&work).map_err(line)?;
        self.tokens.extend_from_slice(tokens);
        let prefill = runner.begin_layerwise_prefill((&self.memory, self.id), bound, self.tokens.len() as u32);
        let mut prefill = prefill.map_err(line)?.expect("a device that has said so");
        loop {
            let work = runner.reserve_prefill_step(&mut self.memory, &prefill).map_err(line)?;
            runner.apply(&work).map_err(line)?;
            if runner.run_prefill_step(&mut self.memory, &mut prefill, &self.tokens).map_err(line)? {
                return runner.end_layerwise_prefill().map_err(line);
            }
        }
    }

    fn step(&mut self, runner: &mut Runner, tokens: &[u32]) -> Result<(), DeviceError> {
        let (slot, rows, mut step) = (self.memory.slot(self.id), tokens.len() as u32, Step::default());
        step.push_held(slot, self.tokens.len() as u32, tokens, Outputs::Last, self.memory.held_tables(self.id));
        runner.run_step(&step)?;
        runner.commit(&[(slot, rows)])?;
        self.memory.commit(self.id, rows);
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Tokens that each page store holds.
    pub fn held(&self) -> Vec<u32> {
        self.memory.held_tables(self.id).map(|(_, held)| held).collect()
    }

    /// The most single-layer pages that it ever held.
    pub const fn most_pages(&self) -> usize {
        self.memory.most_pages()
    }
}
