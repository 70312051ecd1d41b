//! What a request says about how many tokens its sequence holds, besides what is usual here.

use super::{Bound, BoundedLayers, EvictionPolicy, EvictionScore, PolicyKind};
use kvas_backend::store::MomentType;

/// What a request says; what it does not is as usual.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BoundOverrides {
    /// Which tokens are evicted, if any.
    pub policy: Option<PolicyKind>,
    /// [`Bound::budget`]
    pub budget: Option<usize>,
    /// [`Bound::window`]
    pub window: Option<usize>,
    /// [`Bound::sinks`]
    pub sinks: Option<usize>,
    /// [`Bound::score`]
    pub score: Option<EvictionScore>,
    /// [`Bound::mass_cap`]
    pub mass_cap: Option<f32>,
}

impl BoundOverrides {
    /// What a request is to hold, where `usual` is that of a request that says nothing. Fails in one line if there is no
    /// room for it, or the device holds all tokens.
    pub fn within(
        &self,
        usual: Option<EvictionPolicy>,
        layout: Option<BoundedLayers>,
    ) -> Result<Option<EvictionPolicy>, String> {
        let started = |what: &str, kind: PolicyKind| {
            Err(format!("{what}, expected a server that was started with --kv-policy {}", kind.name()))
        };
        let wanted = self.policy.or(usual.map(|usual| usual.kind())).unwrap_or(PolicyKind::Full);
        // As on the command line: it says something of a policy, and chooses none.
        if let Some(field) = self.of_slake().filter(|_| wanted != PolicyKind::Slake) {
            return match usual {
                Some(EvictionPolicy::Budget(_)) => {
                    Err(format!("{field} with kv_policy {}, expected slake", wanted.name()))
                }
                Some(EvictionPolicy::Segments(_)) | None => started(field, PolicyKind::Slake),
            };
        }
        match (wanted, usual, layout) {
            (PolicyKind::Full, _, _) => Ok(None),
            (PolicyKind::EdgeInfinite, Some(eviction_policy @ EvictionPolicy::Segments(_)), _) => {
                Ok(Some(eviction_policy))
            }
            (PolicyKind::Slake, Some(EvictionPolicy::Budget(usual)), Some(layout)) => {
                self.changed(usual, &layout).map(|bound| Some(bound.into()))
            }
            (kind @ (PolicyKind::EdgeInfinite | PolicyKind::Slake), _, _) => {
                started(&format!("kv_policy {}", kind.name()), kind)
            }
        }
    }

    /// The first field that means something with a budget only.
    fn of_slake(&self) -> Option<&'static str> {
        let fields = [
            ("kv_budget", self.budget.is_some()),
            ("slake_window", self.window.is_some()),
            ("slake_sinks", self.sinks.is_some()),
            ("slake_score", self.score.is_some()),
            ("slake_mass_cap", self.mass_cap.is_some()),
        ];
        fields.into_iter().find(|(_, given)| *given).map(|(field, _)| field)
    }

    /// What is usual, but for what a request says.
    fn changed(&self, usual: Bound, layout: &BoundedLayers) -> Result<Bound, String> {
        let bound = Bound {
            budget: self.budget.unwrap_or(usual.budget),
            window: self.window.unwrap_or(usual.window),
            sinks: self.sinks.unwrap_or(usual.sinks),
            score: self.score.unwrap_or(usual.score),
            mass_cap: self.mass_cap.unwrap_or(usual.mass_cap),
            moments: usual.moments && layout.moments != MomentType::Off,
            ..usual
        };
        bound.check(layout, ["kv_budget", "slake_window"]).map(|()| bound)
    }
}

impl Bound {
    /// Refuses in one line what there is no room for, by these names of the budget and the window.
    pub fn check(&self, layout: &BoundedLayers, [budget, window]: [&str; 2]) -> Result<(), String> {
        if self.window == 0 || self.window > layout.window {
            return Err(format!("{window} {}, expected 1 to {}", self.window, layout.window));
        }
        let least = self.least_budget(layout);
        if self.budget < least {
            let (own, page) = (self.window + self.sinks, layout.page_size);
            let rows = self.least_pages(page) * page;
            let moments = match self.moments {
                true => format!(", and moments take the room of {}", layout.moment_rows),
                false => String::new(),
            };
            return Err(format!(
                "{budget} {}, expected at least {least}: {own} tokens stay in any case, which with a page for what comes \
                 next are {rows} in whole pages of {page}{moments}",
                self.budget
            ));
        }
        if self.rows(layout) > layout.most {
            return Err(format!("{budget} {}, expected at most {}", self.budget, layout.most));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Absorbing, Schedule};
    use kvas_backend::store::{MemoryKeys, SegmentMemory};

    const LAYOUT: BoundedLayers =
        BoundedLayers { layers: 2, page_size: 16, most: 1024, moment_rows: 60, window: 32, moments: MomentType::F32 };

    /// What is said of the smallest budget adds up to it.
    #[test]
    fn the_smallest_budget_is_explained() {
        let said = |bound: Bound| bound.check(&LAYOUT, ["--kv-budget", "--slake-window"]).unwrap_err();
        assert_eq!(
            said(Bound::new(100)),
            "--kv-budget 100, expected at least 124: 36 tokens stay in any case, which with a page for what comes next \
             are 64 in whole pages of 16, and moments take the room of 60"
        );
        assert!(said(Bound { moments: false, ..Bound::new(10) }).ends_with(
            "expected at least 64: 36 tokens stay in any \
             case, which with a page for what comes next are 64 in whole pages of 16"
        ));
    }

    #[test]
    fn a_request_changes_what_is_usual_or_nothing() {
        let usual = Some(EvictionPolicy::from(Bound::new(512)));
        let none = BoundOverrides::default();
        assert_eq!(none.within(None, None), Ok(None));
        assert_eq!(none.within(usual, Some(LAYOUT)), Ok(usual));
        assert_eq!(BoundOverrides { policy: Some(PolicyKind::Full), ..none }.within(usual, Some(LAYOUT)), Ok(None));
        let smaller = BoundOverrides { budget: Some(200), score: Some(EvictionScore::Vabs), ..none };
        let eviction_policy = smaller.within(usual, Some(LAYOUT)).unwrap().unwrap();
        let bound = eviction_policy.budget().unwrap();
        assert_eq!((bound.budget, bound.score, bound.window), (200, EvictionScore::Vabs, 32));
        let (absorbing, memory) = (Absorbing::InPlace, SegmentMemory::Matrix(MemoryKeys::Rotated));
        let schedule = Schedule { sink: 4, window: 8, segment: 16, absorbing, memory };
        let segments = Some(EvictionPolicy::Segments(schedule));
        let edge = BoundOverrides { policy: Some(PolicyKind::EdgeInfinite), ..none };
        assert_eq!((none.within(segments, None), edge.within(segments, None)), (Ok(segments), Ok(segments)));
        assert_eq!(BoundOverrides { policy: Some(PolicyKind::Full), ..none }.within(segments, None), Ok(None));
        for refused in [
            edge.within(None, None),
            edge.within(usual, Some(LAYOUT)),
            BoundOverrides { budget: Some(200), ..none }.within(segments, None),
            BoundOverrides { policy: Some(PolicyKind::Slake), ..none }.within(segments, None),
            smaller.within(None, None),
            BoundOverrides { policy: Some(PolicyKind::Full), ..smaller }.within(usual, Some(LAYOUT)),
            BoundOverrides { policy: Some(PolicyKind::Slake), ..none }.within(None, None),
            BoundOverrides { policy: Some(PolicyKind::Slake), ..none }.within(None, Some(LAYOUT)),
            BoundOverrides { budget: Some(100), ..none }.within(usual, Some(LAYOUT)),
            BoundOverrides { budget: Some(5000), ..none }.within(usual, Some(LAYOUT)),
            BoundOverrides { window: Some(33), ..none }.within(usual, Some(LAYOUT)),
            BoundOverrides { window: Some(0), ..none }.within(usual, Some(LAYOUT)),
        ] {
            let error = refused.unwrap_err();
            assert!(!error.contains('\n') && (error.contains("kv_") || error.contains("slake_")), "{error}");
        }
    }
}
