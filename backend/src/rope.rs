//! Rotary position encoding as data: which columns are paired, at which frequencies.

use crate::Weight;

/// Which two columns of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Columns `2 i` and `2 i + 1` (GGUF "NORM").
    Adjacent,
    /// Columns `i` and `i + dims / 2` (GGUF "NEOX").
    Halves,
}

/// How positions beyond the training length are mapped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Context extension.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023): low frequencies interpolated, high ones kept, magnitude corrected.
    Yarn {
        /// Context extension.
        factor: f32,
        /// Training length.
        original_context: f32,
        /// Rotations above which a dimension is kept.
        beta_fast: f32,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f32,
        /// Multiplies the magnitude on top of YaRN's own ([`yarn_magnitude`]).
        attention_factor: f32,
    },
}

/// What YaRN multiplies rotated columns by where nothing is said of it, for a context that is extended by a factor.
pub fn yarn_magnitude(factor: f32) -> f32 {
    0.1 * factor.ln() + 1.0
}

/// The rotation of the first `dims` columns of every head; the rest passes through.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Rotated columns of a head, even.
    pub dims: usize,
    /// Which columns pair.
    pub pairing: Pairing,
    /// Base of the frequencies.
    pub base: f32,
    /// Beyond the training length.
    pub scaling: Scaling,
    /// `[dims / 2]`: each frequency is divided by its factor (`rope_freqs.weight`).
    pub factors: Option<Weight>,
}

impl Rope {
    /// Radians per position of each pair: `[dims / 2]`. `factors` are the values of `self.factors`.
    pub fn frequencies(&self, factors: Option<&[f32]>) -> Vec<f32> {
        let dims = self.dims as f64;
        (0..self.dims / 2)
            .map(|pair| {
                let factor = factors.map_or(1.0, |factors| f64::from(factors[pair]));
                let plain = f64::from(self.base).powf(-2.0 * pair as f64 / dims) / factor;
                self.scaled(plain, pair) as f32
            })
            .collect()
    }

    fn scaled(&self, plain: f64, pair: usize) -> f64 {
        match self.scaling {
            Scaling::None => plain,
            Scaling::Linear { factor } => plain / f64::from(factor),
            Scaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
                let dims = self.dims as f64;
                // The pair that makes `rotations` turns over the training length.
                let pair_of = |rotations: f32| {
                    dims * (f64::from(original_context) / (f64::from(rotations) * std::f64::consts::TAU)).ln()
                        / (2.0 * f64::from(self.base).ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(dims - 1.0);
                let interpolated = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                plain / f64::from(factor) * interpolated + plain * (1.0 - interpolated)
            }
        }
    }

    /// Multiplies the rotated columns (YaRN's magnitude correction), 1 otherwise.
    pub fn magnitude(&self) -> f32 {
        match self.scaling {
            Scaling::None | Scaling::Linear { .. } => 1.0,
            Scaling::Yarn { factor, attention_factor, .. } => attention_factor * yarn_magnitude(factor),
        }
    }

    /// The two columns of a pair.
    pub const fn columns(&self, pair: usize) -> (usize, usize) {
        match self.pairing {
            Pairing::Adjacent => (2 * pair, 2 * pair + 1),
            Pairing::Halves => (pair, pair + self.dims / 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: Scaling) -> Rope {
        Rope { dims: 64, pairing: Pairing::Halves, base: 10000.0, scaling, factors: None }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let plain = rope(Scaling::None).frequencies(None);
        let yarn = rope(Scaling::Yarn {
            factor: 4.0,
            original_context: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
        });
        let scaled = yarn.frequencies(None);
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[31] / scaled[31] - 4.0).abs() < 1e-5);
        assert!(scaled.iter().zip(&plain).all(|(s, p)| *s <= *p && *s >= *p / 4.001));
        assert!((yarn.magnitude() - 1.138_629_4).abs() < 1e-6);
    }

    #[test]
    fn factors_divide() {
        let mut factors = vec![1.0; 32];
        factors[3] = 8.0;
        let (plain, scaled) = (rope(Scaling::None).frequencies(None), rope(Scaling::None).frequencies(Some(&factors)));
        assert!((plain[3] / scaled[3] - 8.0).abs() < 1e-5);
        assert_eq!(plain[4], scaled[4]);
    }
}
