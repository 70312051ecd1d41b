//! Bytes a linear attention layer moves per token: written every step, replayed, verified, or kept as inputs only
//! (ALGORITHMS 2.10). The benchmarks print these beside what they measure; plans take their optima from them.

use kvas_backend::store::StateDecl;

/// Bytes of one element of each kind. Decays and gates are always f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elements {
    /// Of the checkpoint.
    pub state: usize,
    /// Of `u` and `k` in the replay ring.
    pub ring: usize,
    /// Of what a layer reads and writes besides: q, k, v and its output.
    pub activation: usize,
}

impl Elements {
    /// Everything f32.
    pub const F32: Elements = Elements { state: 4, ring: 4, activation: 4 };
}

/// What a token adds to the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// Its value, corrected by what the state already answers to its key: a decay and a gate per head.
    Delta,
    /// Its value: a decay per head.
    Additive,
}

/// Whether folding a ring into the checkpoint is a pass of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// The pass that reads the state for a token writes it too.
    Fused,
    /// Another pass reads and writes the state, and reads the ring.
    Separate,
}

/// Bytes of one layer for one sequence and one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StateTraffic {
    /// The state, moved once.
    pub state: f64,
    /// One entry of the replay ring: u, k and the decays.
    pub entry: f64,
    /// q, k, v, gates and the output.
    pub activations: f64,
}

const DECAY_BYTES: usize = 4;

impl StateTraffic {
    /// Bytes of a layer of these shapes.
    pub fn new(decl: &StateDecl, elements: Elements, write: Write) -> Self {
        let (keys, values) = (decl.key_heads * decl.key_dim, decl.value_heads * decl.value_dim);
        let decays = decl.value_heads * decl.decays();
        let gates = match write {
            Write::Delta => decl.value_heads,
            Write::Additive => 0,
        };
        Self {
            state: (decl.state_elements() * elements.state) as f64,
            entry: ((keys + values) * elements.ring + decays * DECAY_BYTES) as f64,
            activations: (2 * (keys + values) * elements.activation + (decays + gates) * DECAY_BYTES) as f64,
        }
    }

    /// The state is read and written every token.
    pub fn recurrent(&self) -> f64 {
        2.0 * self.state + self.activations
    }

    /// The state is read every token and written every `history` of them; the mean token replays half a ring.
    pub fn replay(&self, history: f64, flush: Flush) -> f64 {
        let (writes, reads) = self.flush(flush);
        self.state
            + writes * self.state / history
            + self.entry * (history - 1.0) / 2.0
            + (1.0 + reads) * self.entry
            + self.activations
    }

    /// Passes over the state that a flush adds, and how often every ring entry is read for it.
    fn flush(&self, flush: Flush) -> (f64, f64) {
        match flush {
            Flush::Fused => (1.0, 0.0),
            Flush::Separate => (2.0, 1.0),
        }
    }

    /// The history with the fewest bytes per token.
    pub fn best_history(&self, flush: Flush) -> f64 {
        (2.0 * self.flush(flush).0 * self.state / self.entry).sqrt()
    }

    /// One token after `tokens` others that are kept as inputs: there is no state.
    pub fn inputs_only(&self, tokens: f64) -> f64 {
        self.entry * tokens + self.activations + self.entry
    }

    /// Verifies `window` tokens one after the other, in place; none can be taken back.
    pub fn verify_serially(&self, window: f64) -> f64 {
        window * self.recurrent()
    }

    /// Verifies `window` tokens one after the other, each into a state of its own.
    pub fn verify_with_snapshots(&self, window: f64) -> f64 {
        (1.0 + window) * self.state + window * self.activations
    }

    /// Verifies `window` tokens in one pass over the state and folds the accepted ones in another, every step.
    pub fn verify_and_flush(&self, window: f64) -> f64 {
        3.0 * self.state + window * (self.activations + 2.0 * self.entry)
    }

    /// Verifies `window` tokens, of which `accepted` are kept, in one pass over the state and a ring that holds up to
    /// `history` entries; the mean over the steps between two flushes.
    pub fn verify_by_replay(&self, window: f64, accepted: f64, history: f64) -> f64 {
        let room = history - window;
        let held = (room + accepted) / 2.0;
        let steps = ((room + accepted) / accepted).max(1.0);
        self.state + window * (self.activations + self.entry) + self.entry * held + self.state / steps
    }
}

/// What all layers that share one ring length move together; `None` if there are none. Gates, which no optimum depends
/// on, are left out.
fn together<'a>(decls: impl Iterator<Item = &'a StateDecl>, elements: Elements) -> Option<StateTraffic> {
    let add = |sum: StateTraffic, layer: StateTraffic| StateTraffic {
        state: sum.state + layer.state,
        entry: sum.entry + layer.entry,
        activations: sum.activations + layer.activations,
    };
    decls.map(|decl| StateTraffic::new(decl, elements, Write::Additive)).reduce(add)
}

/// The replay history with the fewest bytes per token, where a flush costs no pass of its own: at least 1. `None`
/// without layers.
pub fn optimum_history<'a>(decls: impl Iterator<Item = &'a StateDecl>, elements: Elements) -> Option<usize> {
    let traffic = together(decls, elements)?;
    Some((traffic.best_history(Flush::Fused).round() as usize).max(1))
}

/// The tokens up to which a sequence moves fewer bytes without a state, as inputs only, than by the best replay. `None`
/// without layers.
pub fn crossover<'a>(decls: impl Iterator<Item = &'a StateDecl>, elements: Elements) -> Option<usize> {
    let traffic = together(decls, elements)?;
    let best = traffic.replay(traffic.best_history(Flush::Fused).max(1.0), Flush::Fused);
    Some(((best - traffic.inputs_only(0.0)) / traffic.entry).round() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::store::Decay;

    /// 16-bit ring and activations, f32 state: the table of ALGORITHMS 2.10.
    const HALF: Elements = Elements { state: 4, ring: 2, activation: 2 };

    const fn decl(heads: (usize, usize), dims: (usize, usize), decay: Decay) -> StateDecl {
        StateDecl { key_heads: heads.0, value_heads: heads.1, key_dim: dims.0, value_dim: dims.1, decay }
    }

    const GDN: StateDecl = decl((16, 32), (128, 128), Decay::PerHead);
    const MAMBA2: StateDecl = decl((8, 128), (128, 64), Decay::PerHead);
    const KDA: StateDecl = decl((32, 32), (128, 128), Decay::PerChannel);

    #[track_caller]
    fn near(found: f64, expected: f64, tolerance: f64) {
        assert!((found - expected).abs() <= tolerance, "{found}, expected {expected}");
    }

    #[test]
    fn entries_and_optima_are_those_of_the_table() {
        for (decl, entry, fused, separate, crosses) in
            [(GDN, 388.0, 18, 26.0, 187), (MAMBA2, 148.0, 21, 30.0, 242), (KDA, 1024.0, 11, 16.0, 75)]
        {
            let traffic = StateTraffic::new(&decl, HALF, Write::Delta);
            assert_eq!(traffic.entry, entry * decl.value_heads as f64);
            assert_eq!(optimum_history([decl].iter(), HALF), Some(fused));
            near(traffic.best_history(Flush::Separate), separate, 0.5);
            assert_eq!(crossover([decl].iter(), HALF), Some(crosses));
            assert_eq!(crossover([decl, decl].iter(), HALF), Some(crosses));
        }
    }

    #[test]
    fn replay_saves_what_the_table_says() {
        for (decl, write, expected) in [
            (GDN, Write::Delta, [1.73, 1.79, 1.76]),
            (MAMBA2, Write::Additive, [1.74, 1.81, 1.80]),
            (KDA, Write::Delta, [1.66, 1.66, 1.54]),
        ] {
            let traffic = StateTraffic::new(&decl, HALF, write);
            for (history, expected) in [8.0, 16.0, 32.0].into_iter().zip(expected) {
                near(traffic.recurrent() / traffic.replay(history, Flush::Fused), expected, 0.01);
            }
            // The table has 2.92 for the last: it counts the gate of a write as wide as its decays.
            let half = StateTraffic::new(&decl, Elements { state: 2, ..HALF }, write);
            let expected = [3.39, 3.47, 2.94][[GDN, MAMBA2, KDA].iter().position(|other| *other == decl).unwrap()];
            near(traffic.recurrent() / half.replay(16.0, Flush::Fused), expected, 0.01);
        }
    }

    #[test]
    fn the_optimum_is_one() {
        let traffic = StateTraffic::new(&GDN, Elements::F32, Write::Delta);
        for flush in [Flush::Fused, Flush::Separate] {
            let best = traffic.best_history(flush);
            let least = traffic.replay(best, flush);
            assert!(least < traffic.replay(best * 0.9, flush) && least < traffic.replay(best * 1.1, flush));
        }
        assert_eq!(optimum_history([decl((1, 1), (1, 1), Decay::PerHead)].iter(), Elements::F32), Some(1));
        assert_eq!((optimum_history([].iter(), HALF), crossover([].iter(), HALF)), (None, None));
    }

    #[test]
    fn verification_saves_what_the_table_says() {
        let traffic = StateTraffic::new(&GDN, HALF, Write::Delta);
        for (window, flushing, one, all) in
            [(2.0, 0.99, 2.5, 2.6), (4.0, 1.63, 3.7, 4.3), (6.0, 2.25, 4.6, 5.8), (8.0, 2.85, 5.4, 7.1)]
        {
            let snapshots = traffic.verify_with_snapshots(window);
            near(snapshots / traffic.verify_and_flush(window), flushing, 0.01);
            let replay = |accepted| snapshots / traffic.verify_by_replay(window, accepted, 16.0);
            near(replay(1.0).min(replay(window)), one, 0.06);
            near(replay(1.0).max(replay(window)), all, 0.06);
        }
        near(traffic.verify_serially(1.0), traffic.recurrent(), 0.0);
    }
}
