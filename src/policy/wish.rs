//! What a request says about how many tokens its sequence holds, besides what is usual here.

use super::{Bound, Layout, Score};
use kvas_backend::store::MomentType;

/// What a request says; what it does not is as usual.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BoundWish {
    /// Whether tokens are given up at all.
    pub on: Option<bool>,
    /// [`Bound::budget`]
    pub budget: Option<usize>,
    /// [`Bound::window`]
    pub window: Option<usize>,
    /// [`Bound::sinks`]
    pub sinks: Option<usize>,
    /// [`Bound::score`]
    pub score: Option<Score>,
    /// [`Bound::mass_cap`]
    pub mass_cap: Option<f32>,
}

impl BoundWish {
    /// The bound of a request, where `usual` is that of a request that says nothing. Fails in one line if there is no
    /// room for it, or the device holds all tokens.
    pub fn within(&self, usual: Option<Bound>, layout: Option<Layout>) -> Result<Option<Bound>, String> {
        let says_more = *self != Self { on: self.on, ..Self::default() };
        match (self.on, usual, layout) {
            (Some(false), _, _) => Ok(None),
            (None, None, _) if !says_more => Ok(None),
            (_, _, None) | (_, None, _) => {
                Err("kv_policy slake, expected a server that was started with --kv-policy slake".into())
            }
            (_, Some(usual), Some(layout)) => {
                let bound = Bound {
                    budget: self.budget.unwrap_or(usual.budget),
                    window: self.window.unwrap_or(usual.window),
                    sinks: self.sinks.unwrap_or(usual.sinks),
                    score: self.score.unwrap_or(usual.score),
                    mass_cap: self.mass_cap.unwrap_or(usual.mass_cap),
                    moments: usual.moments && layout.moments != MomentType::Off,
                    ..usual
                };
                bound.check(&layout, ["kv_budget", "slake_window"]).map(|()| Some(bound))
            }
        }
    }
}

impl Bound {
    /// Refuses in one line what there is no room for, by these names of the budget and the window.
    pub fn check(&self, layout: &Layout, [budget, window]: [&str; 2]) -> Result<(), String> {
        if self.window == 0 || self.window > layout.window {
            return Err(format!("{window} {}, expected 1 to {}", self.window, layout.window));
        }
        let least = self.least_budget(layout);
        if self.budget < least {
            let (own, besides) = (self.window + self.sinks, if self.moments { layout.moment_rows } else { 0 });
            return Err(format!(
                "{budget} {}, expected at least {least}: {own} tokens stay in any case, and moments take the room of {besides}",
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

    const LAYOUT: Layout =
        Layout { layers: 2, page_size: 16, most: 1024, moment_rows: 60, window: 32, moments: MomentType::F32 };

    #[test]
    fn a_request_changes_what_is_usual_or_nothing() {
        let usual = Some(Bound::new(512));
        let none = BoundWish::default();
        assert_eq!(none.within(None, None), Ok(None));
        assert_eq!(none.within(usual, Some(LAYOUT)), Ok(usual));
        assert_eq!(BoundWish { on: Some(false), ..none }.within(usual, Some(LAYOUT)), Ok(None));
        let smaller = BoundWish { budget: Some(200), score: Some(Score::Vabs), ..none };
        let bound = smaller.within(usual, Some(LAYOUT)).unwrap().unwrap();
        assert_eq!((bound.budget, bound.score, bound.window), (200, Score::Vabs, 32));
        for refused in [
            smaller.within(None, None),
            BoundWish { on: Some(true), ..none }.within(None, None),
            BoundWish { on: Some(true), ..none }.within(None, Some(LAYOUT)),
            BoundWish { budget: Some(100), ..none }.within(usual, Some(LAYOUT)),
            BoundWish { budget: Some(5000), ..none }.within(usual, Some(LAYOUT)),
            BoundWish { window: Some(33), ..none }.within(usual, Some(LAYOUT)),
            BoundWish { window: Some(0), ..none }.within(usual, Some(LAYOUT)),
        ] {
            let error = refused.unwrap_err();
            assert!(!error.contains('\n') && (error.contains("kv_") || error.contains("slake_")), "{error}");
        }
    }
}
