//! What steps cost by the rows of their sequences, as measured while answers are generated.

use super::MOST_DRAFTS;

/// Weight of the last step in a running mean; of one that took several times as long, less: something else was running.
const WEIGHT: f64 = 0.15;
const WEIGHT_OF_OUTLIERS: f64 = 0.02;
const OUTLIER: f64 = 2.0;
/// What a row more is assumed to cost of a step, before anything is known.
const PRIOR: f64 = 0.3;
/// Steps after which one without drafts is to be measured again.
const STALE: u64 = 160;
/// Powers of two of sequences in a step.
const BATCHES: usize = 12;

/// A running mean.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    seconds: Option<f64>,
    /// The step it was last measured in.
    at: u64,
}

impl Mean {
    fn learn(&mut self, seconds: f64, at: u64) {
        let before = self.seconds.unwrap_or(seconds);
        let weight = if seconds > OUTLIER * before { WEIGHT_OF_OUTLIERS } else { WEIGHT };
        *self = Self { seconds: Some(before + weight * (seconds - before)), at };
    }
}

/// Seconds of steps that generate answers, by the power of two of their sequences and the rows of each.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    steps: u64,
    table: [[Mean; MOST_DRAFTS + 2]; BATCHES],
}

fn batch(sequences: usize) -> usize {
    (sequences.max(1).ilog2() as usize).min(BATCHES - 1)
}

impl Costs {
    /// A step of `sequences` answers with `rows` rows in all took so long.
    pub fn learn(&mut self, sequences: usize, rows: usize, seconds: f64) {
        self.steps += 1;
        let each = (rows + sequences / 2) / sequences.max(1);
        if let Some(mean) = self.table[batch(sequences)].get_mut(each) {
            mean.learn(seconds, self.steps);
        }
    }

    /// Whether a step of so many sequences without drafts should be measured again, as contexts grow.
    pub fn is_stale(&self, sequences: usize) -> bool {
        let plain = &self.table[batch(sequences)][1];
        plain.seconds.is_none() || self.steps - plain.at > STALE
    }

    /// What steps with 0 to `most` drafts for each of so many sequences cost, of what one without costs; `drafting`
    /// is the time that a drafted token takes before the step. Lengths that were not measured lie between, or on the
    /// line through, those that were.
    pub fn relative(&self, sequences: usize, most: usize, drafting: f64) -> Vec<f64> {
        let known = &self.table[batch(sequences)];
        let plain = known[1].seconds.unwrap_or(0.0);
        if plain <= 0.0 {
            return (0..=most).map(|drafts| 1.0 + PRIOR * drafts as f64).collect();
        }
        let mut points = vec![(1.0, 1.0)];
        for (rows, mean) in known.iter().enumerate().skip(2) {
            let before = points.last().map_or(1.0, |(_, cost)| *cost);
            points.extend(mean.seconds.map(|seconds| (rows as f64, (seconds / plain).max(before))));
        }
        let cost = |rows: f64| {
            let after = points.partition_point(|(known, _)| *known < rows).min(points.len() - 1);
            match (points[after.saturating_sub(1)], points[after]) {
                ((x, y), _) if points.len() == 1 => y + PRIOR * (rows - x),
                ((x0, y0), (x1, y1)) if x1 > x0 => y0 + (y1 - y0) / (x1 - x0) * (rows - x0),
                (_, (_, y)) => y,
            }
        };
        (0..=most).map(|drafts| cost(drafts as f64 + 1.0) + drafting / plain * drafts as f64).collect()
    }
}
