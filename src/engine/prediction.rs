//! The prediction head of a model drafts (MTP): from what the model made of a token and from the token after it, it
//! guesses the one after that; further ones from its own results. It runs on a device of its own, with pages for the one
//! layer it has.

use super::Runner;
use crate::{
    memory::{Memory, SequenceId},
    model::{Model, ModelError, lower::lower_prediction, weights::FileWeights},
    speculation::{Confidence, DraftRequest, Drafter, DrafterKind},
};
use kvas_backend::{
    Act, Backend, DeviceError, Limits, Outputs, Program, RowBlock, Step, WeightData, WeightDecl, WeightFormat,
    WeightSource,
};
use std::{collections::HashMap, sync::Arc};

/// A root-mean-square norm, which is done here: its inputs come from another device.
#[derive(Debug)]
struct Norm {
    weight: Vec<f32>,
    eps: f32,
}

impl Norm {
    fn apply(&self, x: &mut [f32]) {
        let squares: f32 = x.iter().map(|x| x * x).sum();
        let scale = 1.0 / (squares / x.len() as f32 + self.eps).sqrt();
        x.iter_mut().zip(&self.weight).for_each(|(x, weight)| *x *= scale * weight);
    }
}

/// The table of embeddings, as it is stored.
#[derive(Debug)]
struct Table {
    data: WeightData,
    width: usize,
    scale: f32,
}

impl Table {
    fn row(&self, token: u32, out: &mut [f32]) -> Result<(), DeviceError> {
        let fail = |what: String| DeviceError::Weight { name: "token_embd.weight".into(), what };
        let row = token as usize;
        self.data.dequantize(row..row + 1, self.width, out).map_err(|error| fail(error.to_string()))?;
        out.iter_mut().for_each(|x| *x *= self.scale);
        Ok(())
    }
}

/// What the head has seen of a sequence.
#[derive(Debug)]
struct Own {
    id: SequenceId,
    /// The position of the model's row that its first row was made of.
    first: usize,
    /// Rows of the model that it has not read yet, normed: `[_, width]`.
    seen: Vec<f32>,
}

/// A sequence of a round of drafts.
struct DraftRow {
    at: usize,
    key: SequenceId,
    /// Tokens to read, and what the model, or the head itself, made of those before them.
    tokens: Vec<u32>,
    rows: Vec<f32>,
    drafts: Vec<u32>,
    most: usize,
}

/// See the module.
#[derive(Debug)]
pub struct PredictionHead {
    runner: Runner,
    memory: Memory,
    sequences: HashMap<SequenceId, Own>,
    joined: Act,
    table: Table,
    /// Of the model's last layer, of embeddings, of hidden states.
    norms: [Norm; 3],
    width: usize,
    step: Step,
}

impl PredictionHead {
    /// What runs the head of a model, if it has one, and where its inputs are written.
    pub fn program(model: &Model) -> Option<(Program, Act)> {
        lower_prediction(&model.spec, |name| model.file.tensor(name).is_some())
    }

    /// Prepares a device for the head.
    pub fn new(
        model: &Model,
        (program, joined): (Program, Act),
        mut backend: Box<dyn Backend>,
        limits: Limits,
    ) -> Result<Self, ModelError> {
        let mut quiet = |_, _| {};
        let mut source = FileWeights::new(&model.file, &mut quiet);
        let program = Arc::new(program);
        backend.prepare(program.clone(), &mut source, limits)?;
        let (spec, block) = (&model.spec, model.spec.layers.len());
        let mut small = |name: String| -> Result<Norm, ModelError> {
            let decl = declaration(name, [1, spec.width], WeightFormat::F32);
            let bytes = source.load(&decl)?.bytes;
            let weight = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            Ok(Norm { weight, eps: spec.norm_eps })
        };
        let of = |stem: &str| format!("blk.{block}.nextn.{stem}.weight");
        let norms = [small(spec.output_norm.into())?, small(of("enorm"))?, small(of("hnorm"))?];
        let own = of("embed_tokens");
        let table = if model.file.tensor(&own).is_some() { own } else { "token_embd.weight".into() };
        let table = declaration(table, [spec.vocab, spec.width], WeightFormat::Stored);
        let data = source.load(&table)?;
        // It may be what the device has made its output matrix of, and has let go of: the model reads it there, too.
        source.settled(&table, true);
        let (width, scale) = (spec.width, spec.scales.embedding);
        let table = Table { data, width, scale };
        let runner = Runner::new(backend, program, limits);
        let memory = runner.memory();
        let sequences = HashMap::new();
        Ok(Self { runner, memory, sequences, joined, table, norms, width, step: Step::default() })
    }

    /// Rows that are still to be read before a sequence can be drafted for, and their tokens: those after them.
    fn pending(&mut self, key: SequenceId, tokens: &[u32]) -> Option<(Vec<u32>, Vec<f32>)> {
        let own = self.sequences.get_mut(&key)?;
        let next = own.first + self.memory.committed(own.id) as usize;
        let count = own.seen.len() / self.width;
        let known = tokens.get(next + 1..)?;
        (count > 0 && known.len() >= count).then(|| (known[..count].to_vec(), std::mem::take(&mut own.seen)))
    }

    /// One step: embeddings of tokens beside hidden states. Who has read all of it has one more draft.
    fn read(&mut self, readings: &mut Vec<DraftRow>) -> Result<(), DeviceError> {
        let (width, limits) = (self.width, *self.runner.limits());
        let (mut left, mut outputs) = (limits.rows, limits.outputs);
        let (mut joined, mut spans) = (Vec::new(), Vec::new());
        self.step.clear();
        for (number, reading) in readings.iter().enumerate() {
            let count = reading.tokens.len().min(left);
            let Some(own) = self.sequences.get(&reading.key).filter(|_| count > 0 && outputs > 0) else { continue };
            let Ok(work) = self.memory.reserve(own.id, count as u32) else { continue };
            self.runner.apply(&work)?;
            let wants = reading.most > 0 && count == reading.tokens.len();
            let wanted = if wants { Outputs::Last } else { Outputs::None };
            let (slot, context) = (self.memory.slot(own.id), self.memory.committed(own.id));
            self.step.push(slot, context, &reading.tokens[..count], wanted, self.memory.tables(own.id));
            for (token, hidden) in reading.tokens[..count].iter().zip(reading.rows.chunks_exact(width)) {
                let at = joined.len();
                joined.resize(at + 2 * width, 0.0);
                let (embedding, state) = joined[at..].split_at_mut(width);
                self.table.row(*token, embedding)?;
                self.norms[1].apply(embedding);
                state.copy_from_slice(hidden);
                self.norms[2].apply(state);
            }
            (left, outputs) = (left - count, outputs - usize::from(wants));
            spans.push((number, count, wants));
        }
        if spans.is_empty() {
            readings.clear();
            return Ok(());
        }
        self.runner.write(self.joined, &joined)?;
        self.runner.run_likeliest(&self.step)?;
        let rows = self.step.outputs().len();
        let own_states: Vec<Vec<f32>> = self.runner.hidden(0..rows)?.map(<[f32]>::to_vec).collect();
        let mut row = 0;
        for (number, count, wants) in spans {
            let reading = &mut readings[number];
            let id = self.sequences[&reading.key].id;
            self.runner.commit(&[(self.memory.slot(id), count as u32)])?;
            self.memory.commit(id, count as u32);
            reading.tokens.drain(..count);
            reading.rows.drain(..count * width);
            if !wants {
                continue;
            }
            let token = self.runner.top_token(row)?;
            reading.drafts.push(token);
            if reading.drafts.len() < reading.most {
                reading.tokens.push(token);
                reading.rows.extend_from_slice(&own_states[row]);
            }
            row += 1;
        }
        Ok(())
    }

    /// Reads on until everybody has what was asked for.
    fn read_all(&mut self, mut readings: Vec<DraftRow>, mut done: impl FnMut(DraftRow)) -> Result<(), DeviceError> {
        while !readings.is_empty() {
            self.read(&mut readings)?;
            readings.extract_if(.., |reading| reading.tokens.is_empty()).for_each(&mut done);
        }
        Ok(())
    }

    /// Cuts a sequence back to its first rows: it has pages only.
    fn cut(&mut self, key: SequenceId, rows: u32) {
        if let Some(own) = self.sequences.get(&key) {
            let over = self.memory.committed(own.id).saturating_sub(rows);
            let work = self.memory.take_back(own.id, over);
            assert!(work.rewind.is_none(), "the layers of a head have pages only");
        }
    }
}

fn declaration(name: String, shape: [usize; 2], format: WeightFormat) -> WeightDecl {
    let parts = vec![RowBlock { tensor: name.clone(), first: 0, rows: shape[0] }];
    WeightDecl { name, shape, parts, format }
}

impl Drafter for PredictionHead {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Mtp
    }

    fn look(&mut self, id: SequenceId, tokens: &[u32]) -> Option<Confidence> {
        let own = self.sequences.get(&id)?;
        let seen = own.first + self.memory.committed(own.id) as usize + own.seen.len() / self.width;
        // The row of the token before the one that is to be read next.
        (seen + 1 == tokens.len() && !own.seen.is_empty()).then_some(Confidence::Model)
    }

    fn draft(&mut self, asked: &mut [DraftRequest<'_>]) -> Result<(), DeviceError> {
        let (mut readings, mut known) = (Vec::new(), Vec::new());
        for (at, asked) in asked.iter().enumerate() {
            if let Some((tokens, rows)) = self.pending(asked.id, asked.tokens) {
                let committed = self.memory.committed(self.sequences[&asked.id].id);
                known.push((asked.id, committed + tokens.len() as u32));
                readings.push(DraftRow { at, key: asked.id, tokens, rows, drafts: Vec::new(), most: asked.most });
            }
        }
        self.read_all(readings, |reading| asked[reading.at].drafts = reading.drafts)?;
        // What it made of its own guesses is not what the model will make of them.
        known.into_iter().for_each(|(key, rows)| self.cut(key, rows));
        Ok(())
    }

    fn watches(&self) -> bool {
        true
    }

    fn saw(&mut self, id: SequenceId, tokens: &[u32], first: usize, rows: &[f32]) -> Result<(), DeviceError> {
        if !self.sequences.contains_key(&id) {
            let Ok((own, work)) = self.memory.open() else { return Ok(()) };
            self.runner.apply(&work)?;
            self.sequences.insert(id, Own { id: own, first, seen: Vec::new() });
        }
        let (width, own) = (self.width, &self.sequences[&id]);
        let read = own.first + self.memory.committed(own.id) as usize;
        let next = read + own.seen.len() / width;
        // Gone back, or tokens that others have read lie between: it goes on from here with what it has before.
        let keeps = first <= next && first >= own.first;
        let kept_rows = if keeps { first.min(read) - own.first } else { 0 };
        self.cut(id, kept_rows as u32);
        let Some(own) = self.sequences.get_mut(&id) else { return Ok(()) };
        own.seen.truncate(if keeps { first.saturating_sub(read) * width } else { 0 });
        own.first = if keeps { own.first } else { first };
        for row in rows.chunks_exact(width) {
            let at = own.seen.len();
            own.seen.extend_from_slice(row);
            self.norms[0].apply(&mut own.seen[at..]);
        }
        // A prompt is read along with the model, so that its rows need not be kept.
        if own.seen.len() / width > self.runner.limits().rows / 2
            && let Some((mut tokens, mut rows)) = self.pending(id, tokens)
        {
            let rest = rows.split_off(rows.len() - width);
            tokens.pop();
            let reading = DraftRow { at: 0, key: id, tokens, rows, drafts: Vec::new(), most: 0 };
            self.read_all(vec![reading], drop)?;
            self.sequences.entry(id).and_modify(|own| own.seen = rest);
        }
        Ok(())
    }

    fn forget(&mut self, id: SequenceId) {
        if let Some(own) = self.sequences.remove(&id) {
            self.memory.release(own.id);
        }
    }
}
