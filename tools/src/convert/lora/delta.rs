//! What an adapter adds to the rows of one tensor.

use super::super::checkpoint::{Checkpoint, Stored};
use anyhow::{Context, Result};

/// A tensor of an adapter under its name.
type Named = (String, Stored);

/// The tensors that a sum is made of.
#[derive(Debug, Clone)]
pub(crate) enum Matrices {
    /// `b` times `a`, to a matrix; its rows then get the lengths of `magnitude`.
    Product { a: Named, b: Named, magnitude: Option<Named> },
    /// The same of embeddings, turned around.
    Embedding { a: Named, b: Named },
    /// Numbers to a bias.
    Sum(Named),
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
        let (scale, magnitude) = (self.scale, None);
        Ok(match &self.matrices {
            Matrices::Product { a, b, magnitude } => {
                let magnitude = magnitude.as_ref().map(read).transpose()?;
                Loaded { left: read(b)?, right: read(a)?, rank: a.1.shape[0], scale, magnitude }
            }
            Matrices::Embedding { a, b } => {
                let rank = a.1.shape[0];
                Loaded { left: turned(&read(a)?, rank), right: turned(&read(b)?, b.1.shape[0]), rank, scale, magnitude }
            }
            Matrices::Sum(added) => Loaded { left: vec![1.0], right: read(added)?, rank: 1, scale, magnitude },
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
    /// A row of `rank` numbers for each row of the tensor.
    left: Vec<f32>,
    /// As many rows as the rank.
    right: Vec<f32>,
    rank: usize,
    scale: f64,
    /// The length of each row.
    magnitude: Option<Vec<f32>>,
}

impl Loaded {
    /// Changes the numbers of one row of the tensor.
    pub(crate) fn apply(&self, row: usize, numbers: &mut [f32]) {
        let mut sums = vec![0.0; numbers.len()];
        let left = &self.left[row * self.rank..][..self.rank];
        for (left, right) in left.iter().zip(self.right.chunks(numbers.len())) {
            let left = f64::from(*left);
            sums.iter_mut().zip(right).for_each(|(sum, right)| *sum += left * f64::from(*right));
        }
        sums.iter_mut().zip(&*numbers).for_each(|(sum, number)| *sum = *sum * self.scale + f64::from(*number));
        let factor = self
            .magnitude
            .as_ref()
            .map_or(1.0, |magnitude| f64::from(magnitude[row]) / sums.iter().map(|sum| sum * sum).sum::<f64>().sqrt());
        numbers.iter_mut().zip(sums).for_each(|(number, sum)| *number = (sum * factor) as f32);
    }
}
