//! A device with a small program on it, driven step by step, and the clock.

use super::report::{Cycle, Times};
use crate::cli::{device, flags::ComputeFlags};
use kvas_backend::{Backend, Limits, Outputs, Program, Slot, Step, WeightSource};
use std::{sync::Arc, time::Instant};

/// A prepared device and the step in progress.
pub(super) struct Harness {
    pub(super) backend: Box<dyn Backend>,
    pub(super) program: Arc<Program>,
    pub(super) step: Step,
}

/// A sequence: where its state lives, and its committed tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sequence {
    pub(super) slot: Slot,
    pub(super) context: u32,
}

impl Sequence {
    /// Empty sequences in the first slots.
    pub(super) fn first(count: usize) -> Vec<Self> {
        (1..=count as u32).map(|slot| Self { slot: Slot(slot), context: 0 }).collect()
    }
}

impl Harness {
    /// Prepares a device; all its slots are empty.
    pub(super) fn new(
        flags: &ComputeFlags,
        program: &Arc<Program>,
        weights: &mut dyn WeightSource,
        limits: Limits,
    ) -> anyhow::Result<Self> {
        let mut backend = device::backend(flags)?;
        backend.prepare(program.clone(), weights, limits)?;
        backend.clear_slots(&(0..limits.slots as u32).map(Slot).collect::<Vec<_>>())?;
        Ok(Self { backend, program: program.clone(), step: Step::default() })
    }

    /// Makes a step of `rows` rows of every sequence, of a program without pages.
    pub(super) fn fill_step(&mut self, sequences: &[Sequence], rows: usize) {
        let tokens = vec![0; rows];
        self.step.clear();
        for sequence in sequences {
            self.step.push(sequence.slot, sequence.context, &tokens, Outputs::None, []);
        }
    }

    /// Runs the step; its seconds.
    pub(super) fn run(&mut self) -> anyhow::Result<f64> {
        let started = Instant::now();
        self.backend.run(&self.program, &self.step)?;
        // Devices that work on their own are waited for.
        self.backend.read(self.program.logits, 0, &mut [])?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Keeps `accepted` rows of every sequence of the step; the seconds that takes.
    pub(super) fn commit(&mut self, sequences: &mut [Sequence], accepted: u32) -> anyhow::Result<f64> {
        let all: Vec<(Slot, u32)> = sequences.iter().map(|sequence| (sequence.slot, accepted)).collect();
        let started = Instant::now();
        self.backend.commit(&all)?;
        let seconds = started.elapsed().as_secs_f64();
        sequences.iter_mut().for_each(|sequence| sequence.context += accepted);
        Ok(seconds)
    }
}

/// One way to do a piece of work.
pub(super) trait Subject {
    /// Does it for a cycle.
    fn cycle(&mut self) -> anyhow::Result<Cycle>;
}

/// Times every subject `repetitions` times, in turn, so that what else the machine does meets all of them alike. A
/// first round warms caches and is not counted.
pub(super) fn measure(subjects: &mut [Box<dyn Subject>], repetitions: u32) -> anyhow::Result<Vec<Times>> {
    let mut times = vec![Times::default(); subjects.len()];
    for round in 0..=repetitions {
        for (subject, times) in subjects.iter_mut().zip(&mut times) {
            let cycle = subject.cycle()?;
            if round > 0 {
                times.push(cycle);
            }
        }
    }
    Ok(times)
}
