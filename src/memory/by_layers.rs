//! What a prompt takes that is read layer by layer (ALGORITHMS 5.1): one layer holds all of it, the others what they may, and
//! between layers there are activations of every token.

use super::plan::PlanRequest;
use crate::policy::Layout;
use kvas_backend::Program;

/// Bytes of a prompt that is read layer by layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByLayers {
    /// Between layers, of a token.
    pub(super) carried: u64,
    /// Pages of a token: in one layer, and in those that hold all tokens in any case.
    pages: u64,
    /// Pages of what all layers hold beside it, and of those that are not full.
    held: u64,
}

impl ByLayers {
    /// Of a program whose layers give up tokens, on a device that can read a prompt so. None if it has fewer than two bands
    /// or nobody gives up anything.
    pub(super) fn new(program: &Program, request: &PlanRequest) -> Option<Self> {
        let layout = Layout::of(program, request.page_size, request.kv_type).filter(|_| request.by_layers)?;
        let bands = program.bands();
        if bands.len() < 2 {
            return None;
        }
        let columns = bands.iter().map(|band| program.columns_of(&band.carried)).max().unwrap_or(0);
        let page = program.page_bytes(request.page_size, request.kv_type) as u64;
        let whole = (1 + program.page_stores() - layout.layers) as u64;
        // A page more while budgets may still be rounded up, one for what comes next, and one that is not full.
        let pages = layout.layers * (layout.budget() / request.page_size + 3) * request.sequences;
        let held = (pages as u64 + whole) * page;
        Some(Self { carried: 4 * columns as u64, pages: (whole * page).div_ceil(request.page_size as u64), held })
    }

    /// The longest prompt that so many bytes are enough for.
    pub(super) fn room(&self, bytes: u64) -> usize {
        let tokens = bytes.saturating_sub(self.held) / (self.carried + self.pages).max(1);
        usize::try_from(tokens).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::plan::{Clamp, plan, tests::REQUEST};
    use kvas_backend::{
        Op, StoreDecl,
        conformance::Build,
        op::{self, Output},
        store::{MomentType, PageLayout, PagesDecl, Policy, Slake},
    };

    /// Four layers of attention that give up tokens.
    fn four_layers() -> Program {
        let mut b = Build::default();
        let x = b.act("x", 8);
        let [q, k, v, out] = ["q", "k", "v", "out"].map(|name| b.act(name, 16));
        let table = b.matrix("table", [9, 8]);
        b.op(Op::Embed(op::Embed { table, scale: 1.0, out: x }));
        for _ in 0..4 {
            let policy =
                Policy::Slake(Slake { heads: 1, window: 8, capacity: 4 * 64 + 16 + 8, moments: MomentType::Off });
            let decl = PagesDecl { kv_heads: 1, key_dim: 16, value_dim: 16, layout: PageLayout::Separate, policy };
            let store = b.store(StoreDecl::Pages(decl));
            for (from, to, output) in [(x, q, Output::Write), (x, k, Output::Write), (x, v, Output::Write)] {
                let weight = b.matrix("weight", [16, 8]);
                b.linear(from, weight, to, output);
            }
            b.op(Op::RopeStore(op::RopeStore { q, k, v, key_dim: 16, rope: None, store }));
            b.op(Op::Attention(op::Attention { q, gate: None, heads: 1, scale: 1.0, store, out }));
            let weight = b.matrix("weight", [8, 16]);
            b.linear(out, weight, x, Output::Accumulate);
        }
        b.finish(x)
    }

    #[test]
    fn a_prompt_that_layers_cannot_hold_at_once_is_read_layer_by_layer() {
        let with = |by_layers: bool, context: Option<usize>, available_bytes: u64| {
            let request = PlanRequest { context, available_bytes, by_layers, sequences: 1, ..REQUEST };
            plan(&four_layers(), 8192, &request)
        };
        let whole = with(true, Some(4096), u64::MAX);
        assert_eq!((whole.carried_bytes, whole.limits.context, &whole.clamps[..]), (0, 0, &[][..]));
        assert_eq!(whole, with(false, Some(4096), u64::MAX));
        // Half of that: the others cannot have it.
        let half = whole.needed_bytes() - whole.pages_bytes() / 2;
        assert!(with(false, Some(4096), half).check().is_err());
        let layers = with(true, Some(4096), half);
        assert!(layers.check().is_ok(), "{layers:?}");
        assert_eq!((layers.context, layers.limits.context, layers.carried_bytes), (4096, 4096, 4096 * 4 * 8));
        assert!((1000..2048).contains(&layers.pool_tokens), "{}", layers.pool_tokens);
        assert_eq!(layers.clamps, [Clamp::AtOnce { given: layers.pool_tokens }]);
        // One layer that holds all of it, and four that hold 64 tokens and what they need besides.
        let pages = layers.limits.pages - 1;
        assert!(pages >= 4096 / 16 + 1 + 4 * (4 + 3), "{pages}");
        // Without being asked for, no more than leaves half of the room.
        let chosen = with(true, None, half);
        assert!((2048..4096).contains(&chosen.context) && chosen.check().is_ok(), "{}", chosen.context);
        assert!(with(false, None, half).context < chosen.context);
        let too_long = with(true, Some(8192), half / 2);
        assert!(too_long.check().is_err() && too_long.carried_bytes == 0);
    }
}
