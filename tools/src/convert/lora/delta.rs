//! What an adapter adds to the rows of one tensor.

use super::super::checkpoint::{Checkpoint, Stored};
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A tensor of an adapter under its name.
type Named = (String, Stored);

/// The tensors that a sum is made of.
#[derive(Debug, Clone)]
pub(crate) enum Matrices {
    /// `b` times `a`, to a matrix; its rows then get the lengths of `magnitude`.
    Product { a: Named, b: Named, magnitude: Option<Named> },
    /// The same of embeddings, turned around.
    Embedding { a: Named, b: Named },
    /// A product for each expert.
    Experts { shared: Shared, rank: usize, experts: Experts },
    /// Numbers to a bias.
    Sum(Named),
    /// Rows in the places of these.
    Rows { rows: Named, places: Vec<usize> },
}

/// Which rows of which experts a tensor has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experts {
    /// How many experts there are.
    pub(super) count: usize,
    /// The one that it is of; `None` for all of them, one after the other.
    pub(super) expert: Option<usize>,
    /// The first row of the product that it has, and how many there are for an expert.
    pub(super) first: usize,
    pub(super) rows: usize,
}

/// The numbers of two matrices.
#[derive(Debug)]
struct Pair {
    left: Vec<f32>,
    right: Vec<f32>,
}

/// Two matrices that many tensors of a checkpoint share: they are in memory once while any of these is being written.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    a: Named,
    b: Named,
    loaded: Arc<Mutex<Weak<Pair>>>,
}

impl Shared {
    pub(super) fn new(a: Named, b: Named) -> Shared {
        Shared { a, b, loaded: Arc::default() }
    }

    fn load(&self, read: impl Fn(&Named) -> Result<Vec<f32>>) -> Result<Arc<Pair>> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pair) = loaded.upgrade() {
            return Ok(pair);
        }
        let pair = Arc::new(Pair { left: read(&self.b)?, right: read(&self.a)? });
        *loaded = Arc::downgrade(&pair);
        Ok(pair)
    }
}

/// What is added to a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Delta {
    matrices: Matrices,
    scale: f64,
    /// Where the tensors are, for messages.
    file: String,
}

impl Matrices {
    /// This, multiplied by `scale`.
    pub(super) fn of(self, file: String, scale: f64) -> Delta {
        Delta { matrices: self, scale, file }
    }
}

impl Delta {
    /// Reads it.
    pub(crate) fn load(&self, checkpoint: &Checkpoint) -> Result<Loaded> {
        let read = |(name, stored): &Named| checkpoint.numbers(name, stored).with_context(|| self.file.clone());
        let of = |left, right, rank| Loaded {
            pair: Arc::new(Pair { left, right }),
            rank,
            scale: self.scale,
            magnitude: None,
            experts: None,
            places: None,
        };
        Ok(match &self.matrices {
            Matrices::Product { a, b, magnitude } => {
                let magnitude = magnitude.as_ref().map(read).transpose()?;
                Loaded { magnitude, ..of(read(b)?, read(a)?, a.1.shape[0]) }
            }
            Matrices::Embedding { a, b } => {
                let rank = a.1.shape[0];
                of(turned(&read(a)?, rank), turned(&read(b)?, b.1.shape[0]), rank)
            }
            Matrices::Experts { shared, rank, experts } => Loaded {
                pair: shared.load(read)?,
                rank: *rank,
                scale: self.scale,
                magnitude: None,
                experts: Some(*experts),
                places: None,
            },
            Matrices::Rows { rows, places } => {
                let places = places.iter().enumerate().map(|(at, place)| (*place, at)).collect();
                Loaded { places: Some(places), ..of(Vec::new(), read(rows)?, 0) }
            }
            Matrices::Sum(added) => of(vec![1.0], read(added)?, 1),
        })
    }
}

/// A matrix of so many rows with its columns as rows.
fn turned(numbers: &[f32], rows: usize) -> Vec<f32> {
    let columns = numbers.len() / rows;
    (0..columns).flat_map(|column| numbers[column..].iter().step_by(columns).copied()).collect()
}

/// What is added to a tensor, in memory.
pub(crate) struct Loaded {
    /// On the left a row of `rank` numbers for each row of the tensor, on the right as many rows as the rank; of experts the
    /// left has these numbers of all of them in turn, and the right such rows for one after the other.
    pair: Arc<Pair>,
    rank: usize,
    scale: f64,
    /// The length of each row.
    magnitude: Option<Vec<f32>>,
    experts: Option<Experts>,
    /// The rows on the right by those whose places they take; nothing is multiplied then.
    places: Option<HashMap<usize, usize>>,
}

impl Loaded {
    /// Where the numbers for a row of the tensor begin on the left, how far they are from each other, and which rows on the
    /// right they are for.
    fn place(&self, row: usize) -> (usize, usize, usize) {
        let Some(Experts { count, expert, first, rows }) = self.experts else { return (row * self.rank, 1, 0) };
        let (expert, row) = match expert {
            Some(expert) => (expert, first + row),
            None => (row / rows, row % rows),
        };
        (row * self.rank * count + expert, count, expert * self.rank)
    }

    /// Changes the numbers of one row of the tensor.
    pub(crate) fn apply(&self, row: usize, numbers: &mut [f32]) {
        if let Some(places) = &self.places {
            let Some(at) = places.get(&row) else { return };
            let new = &self.pair.right[at * numbers.len()..][..numbers.len()];
            let moved = |old: f32, new: f32| f64::from(old) + self.scale * (f64::from(new) - f64::from(old));
            numbers.iter_mut().zip(new).for_each(|(number, new)| *number = moved(*number, *new) as f32);
            return;
        }
        let mut sums = vec![0.0; numbers.len()];
        let (start, step, first) = self.place(row);
        let left = self.pair.left[start..].iter().step_by(step).take(self.rank);
        for (left, right) in left.zip(self.pair.right[first * numbers.len()..].chunks(numbers.len())) {
            let left = f64::from(*left);
            sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += left * f64::from(*right));
        }
        sums.iter_mut().zip(&*numbers).for_each(|(sum, number)| *sum = *sum * self.scale + f64::from(*number));
        let length = sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt();
        // What is nothing but zeros has no direction, and stays.
        let magnitude = self.magnitude.as_ref().filter(|_| length > 0.0);
        let factor = magnitude.map_or(1.0, |magnitude| f64::from(magnitude[row]) / length);
        numbers.iter_mut().zip(sums).for_each(|(number, sum)| *number = (sum * factor) as f32);
    }
}
