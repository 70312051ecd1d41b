//! What a prompt takes that is read layer by layer (ALGORITHMS 5.1): one layer holds all of it, the others what they may, and
//! between layers there are activations of every token.

use super::plan::{CarriedBytes, CarryPlacement, PlanRequest};
use crate::policy::BoundedLayers;
use kvas_backend::Program;

/// Bytes of a prompt that is read layer by layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LayerwisePlan {
    /// Between layers, of a token.
    carried: u64,
    /// Where that is.
    between: CarryPlacement,
    /// Pages of a token: in one layer, and in those that hold all tokens in any case.
    pages: u64,
    /// Pages of what all layers hold beside it, and of those that are not full.
    held: u64,
}

impl LayerwisePlan {
    /// Of a program whose layers evict tokens, on a device that can read a prompt so. None if it has fewer than two bands
    /// or nobody evicts anything.
    pub(super) fn new(program: &Program, request: &PlanRequest) -> Option<Self> {
        let layout = BoundedLayers::of(program, request.page_size, request.kv_type)?;
        let between = request.between?;
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
        Some(Self {
            carried: 4 * columns as u64,
            between,
            pages: (whole * page).div_ceil(request.page_size as u64),
            held,
        })
    }

    /// The longest prompt that so many bytes of the device are enough for.
    pub(super) fn room(&self, bytes: u64) -> usize {
        let (here, by_host) = match self.between {
            CarryPlacement::Here => (self.carried, u64::MAX),
            CarryPlacement::Host(bytes) => (0, bytes / self.carried.max(1)),
        };
        let tokens = (bytes.saturating_sub(self.held) / (here + self.pages).max(1)).min(by_host);
        usize::try_from(tokens).unwrap_or(usize::MAX)
    }

    /// Bytes between layers of a prompt.
    pub(super) fn carried(&self, tokens: usize) -> CarriedBytes {
        let bytes = self.carried.saturating_mul(tokens as u64);
        match self.between {
            CarryPlacement::Here => CarriedBytes { here_bytes: bytes, host_bytes: 0 },
            CarryPlacement::Host(_) => CarriedBytes { here_bytes: 0, host_bytes: bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::plan::{Clamp, MemoryPlan, plan, tests::REQUEST};
    use kvas_backend::{
        Op, StoreDecl,
        conformance::Build,
        op::{self, Output},
        store::{MomentType, PageLayout, PagesDecl, Policy, Slake},
    };

    /// Four layers of attention that evict tokens.
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

    fn planned(between: Option<CarryPlacement>, context: Option<usize>, available_bytes: u64) -> MemoryPlan {
        let request = PlanRequest { context, available_bytes, between, sequences: 1, ..REQUEST };
        plan(&four_layers(), 8192, &request)
    }

    #[test]
    fn what_goes_from_layer_to_layer_on_a_host_takes_no_room_of_its_device() {
        let whole = planned(None, Some(4096), u64::MAX);
        let half = whole.needed_bytes() - whole.pages_bytes() / 2;
        let of = |between| planned(Some(between), Some(4096), half);
        let (here, by_host) = (of(CarryPlacement::Here), of(CarryPlacement::Host(1 << 30)));
        let carried = 4096 * 4 * 8;
        assert_eq!(here.carried, CarriedBytes { here_bytes: carried, host_bytes: 0 });
        assert_eq!(by_host.carried, CarriedBytes { here_bytes: 0, host_bytes: carried });
        assert!(by_host.check().is_ok() && by_host.pool_tokens > here.pool_tokens, "{by_host:?}");
        assert!(by_host.needed_bytes() <= half);
        // The host has room for a prompt of so many tokens, and no more.
        assert_eq!(of(CarryPlacement::Host(carried)), by_host);
        let short = of(CarryPlacement::Host(carried - 1));
        assert!(short.check().is_err() && short.carried.host_bytes == 0, "{short:?}");
        let chosen = planned(Some(CarryPlacement::Host(4 * 8 * 3000)), None, half);
        assert_eq!((chosen.context, chosen.check()), (3000, Ok(())));
    }

    #[test]
    fn a_prompt_that_layers_cannot_hold_at_once_is_read_layer_by_layer() {
        let with = |layerwise: bool, context: Option<usize>, available_bytes: u64| {
            planned(layerwise.then_some(CarryPlacement::Here), context, available_bytes)
        };
        let whole = with(true, Some(4096), u64::MAX);
        assert_eq!((whole.carried.here_bytes, whole.limits.context, &whole.clamps[..]), (0, 0, &[][..]));
        assert_eq!(whole, with(false, Some(4096), u64::MAX));
        // Half of that: the others cannot have it.
        let half = whole.needed_bytes() - whole.pages_bytes() / 2;
        assert!(with(false, Some(4096), half).check().is_err());
        let layers = with(true, Some(4096), half);
        assert!(layers.check().is_ok(), "{layers:?}");
        assert_eq!((layers.context, layers.limits.context, layers.carried.here_bytes), (4096, 4096, 4096 * 4 * 8));
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
        assert!(too_long.check().is_err() && too_long.carried.here_bytes == 0);
    }
}
