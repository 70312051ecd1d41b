//! How many tokens of a sequence each layer holds, and when it gives some up (ALGORITHMS 4, 5). Pure: sees counts and what
//! layers would lose, never a device.

mod eviction_policy;
mod overrides;
mod segments;
mod share;

pub use eviction_policy::{EvictionPolicy, PolicyKind, difference};
pub use overrides::BoundOverrides;
pub use segments::{Absorbing, Schedule, SegmentProgress, can_evict_segments};
pub use share::water_fill;

use eviction_policy::POLICY;
use kvas_backend::{
    EvictionOrder, KvType, Limits, Op, Preference, Program, StoreDecl,
    store::{MomentType, PageLayout, Policy, Slake},
};

/// What tokens are scored by, and layers compared by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EvictionScore {
    /// What the last queries read; layers by the entropy and the variance of that (ALGORITHMS 5.1).
    #[default]
    Cake,
    /// The same tokens; layers by how far their weights and values would move (ALGORITHMS 5.2).
    Vabs,
    /// The first and the last tokens stay, in all layers alike.
    Window,
}

impl EvictionScore {
    /// The name users write: `cake`.
    pub const fn name(self) -> &'static str {
        match self {
            EvictionScore::Cake => "cake",
            EvictionScore::Vabs => "vabs",
            EvictionScore::Window => "window",
        }
    }

    /// The score of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        [EvictionScore::Cake, EvictionScore::Vabs, EvictionScore::Window].into_iter().find(|score| score.name() == name)
    }
}

/// How many tokens a sequence holds, and which.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bound {
    /// Tokens of a layer, on average over layers. What is remembered of the others counts as the tokens it takes the
    /// room of (ALGORITHMS 5.6).
    pub budget: usize,
    /// Last queries that are asked, and last tokens that stay.
    pub window: usize,
    /// First tokens that stay.
    pub sinks: usize,
    /// What tokens and layers are compared by.
    pub score: EvictionScore,
    /// Exponent of how far weights and values would move, for [`EvictionScore::Vabs`].
    pub alpha: f32,
    /// Exponent of the mean entropy, for [`EvictionScore::Vabs`].
    pub beta: f32,
    /// Weight of the variance in the score of a token.
    pub gamma: f32,
    /// Most by which what was evicted counts for more than its mean says, in nats.
    pub mass_cap: f32,
    /// Whether what is evicted is summed up.
    pub moments: bool,
}

impl Bound {
    /// A budget, and what is usual besides.
    pub const fn new(budget: usize) -> Self {
        let (window, sinks, score) = (32, 4, EvictionScore::Cake);
        let (alpha, beta, gamma, mass_cap, moments) = (0.4, 0.2, 200.0, 0.0, true);
        Self { budget, window, sinks, score, alpha, beta, gamma, mass_cap, moments }
    }

    /// Tokens of a layer that it holds in pages.
    pub const fn rows(&self, layout: &BoundedLayers) -> usize {
        let besides = if self.moments { layout.moment_rows } else { 0 };
        self.budget.saturating_sub(besides) / layout.page_size * layout.page_size
    }

    /// Pages of a layer that it holds in any case.
    const fn least_pages(&self, page_size: usize) -> usize {
        (self.window + self.sinks).div_ceil(page_size) + 1
    }

    /// The smallest budget that leaves room for what stays in any case.
    pub const fn least_budget(&self, layout: &BoundedLayers) -> usize {
        let besides = if self.moments { layout.moment_rows } else { 0 };
        self.least_pages(layout.page_size) * layout.page_size + besides
    }

    /// What has to be the same so that one program goes on from what another one has evicted.
    fn identity(&self, layout: &BoundedLayers) -> String {
        let Self { budget, window, sinks, score, alpha, beta, gamma, mass_cap, moments } = self;
        let (name, score) = (PolicyKind::Slake.name(), score.name());
        let moments = if *moments { layout.moments } else { MomentType::Off }.name();
        let BoundedLayers { page_size, most, window: asked, .. } = layout;
        format!(
            "{POLICY} {name} budget {budget} window {window} sinks {sinks} score {score} alpha {alpha} beta {beta} \
             gamma {gamma} mass-cap {mass_cap} moments {moments} page-size {page_size} most-held {most} most-asked {asked}"
        )
    }

    /// Whether layers may hold so many tokens: what they evict next can be evicted.
    fn may_hold(&self, layout: &BoundedLayers, held: &[u32], shares: &Shares) -> bool {
        let Shares { stayed, budgets, rows } = shares;
        let least = self.least_pages(layout.page_size) * layout.page_size;
        let is_budget = |budget: &u32| (least..=layout.most).contains(&(*budget as usize));
        [stayed.len(), budgets.len()] == [held.len(); 2]
            && held.iter().zip(stayed).all(|(held, stayed)| stayed <= held)
            && stayed.iter().zip(budgets).all(|(stayed, budget)| stayed <= budget)
            && budgets.iter().all(is_budget)
            && *rows <= layout.most
    }

    /// What decides which tokens stay, of the last queries or of those since the last eviction.
    const fn order(&self, due: Due) -> EvictionOrder {
        match (self.score, due) {
            (EvictionScore::Window, _) => EvictionOrder::Recency,
            (EvictionScore::Cake | EvictionScore::Vabs, Due::Anew) => EvictionOrder::Window { gamma: self.gamma },
            (EvictionScore::Cake | EvictionScore::Vabs, Due::Again) => EvictionOrder::Running,
        }
    }

    /// How much a layer is worth.
    fn worth(&self, preference: &Preference) -> f64 {
        match self.score {
            EvictionScore::Cake => preference.entropy * preference.variance,
            EvictionScore::Vabs => {
                preference.shift.powf(f64::from(self.alpha)) * preference.mean_entropy.powf(f64::from(self.beta))
            }
            EvictionScore::Window => 1.0,
        }
    }
}

/// What there is of the layers that evict tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundedLayers {
    /// Such layers.
    pub layers: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// Most tokens that a layer holds after an eviction, whole pages.
    pub most: usize,
    /// Tokens that take as much room as the moments of a layer, on average.
    pub moment_rows: usize,
    /// Queries that are remembered.
    pub window: usize,
    /// How moments are stored.
    pub moments: MomentType,
}

impl BoundedLayers {
    /// Tokens of a layer that there is room to remember a share of budgets for, on average over layers; whole pages.
    pub const fn budget(&self) -> usize {
        self.most / MOST_SHARES
    }

    /// Of a program; `None` if all of its layers hold all tokens.
    pub fn of(program: &Program, page_size: usize, kv_type: KvType) -> Option<Self> {
        let (mut layers, mut row_bytes, mut moment_bytes, mut of_slake) = (0, 0, 0, None);
        for store in &program.stores {
            if let StoreDecl::Pages(pages) = store
                && let Policy::Slake(slake) = pages.policy
            {
                layers += 1;
                row_bytes += pages.row_bytes(kv_type);
                moment_bytes += pages.kv_heads * slake.moments.bytes(pages.key_dim, pages.value_dim);
                of_slake = Some(slake);
            }
        }
        let Slake { window, capacity, moments, .. } = of_slake?;
        let most = (capacity - window - page_size) / page_size * page_size;
        let moment_rows = moment_bytes.div_ceil(row_bytes);
        Some(Self { layers, page_size, most, moment_rows, window, moments })
    }

    /// Of what a device was prepared for.
    pub fn prepared(program: &Program, limits: &Limits) -> Option<Self> {
        Self::of(program, limits.page_size, limits.kv_type)
    }
}

/// No layer holds more than so many times its share of tokens.
const MOST_SHARES: usize = 4;

/// The program whose layers of attention can evict tokens, down to `bound`. Latent layers hold all of theirs.
pub fn bounded(program: &Program, bound: &Bound, moments: MomentType, page_size: usize) -> Program {
    let mut program = program.clone();
    let capacity = MOST_SHARES * bound.budget.next_multiple_of(page_size) + page_size + bound.window;
    let heads: Vec<Option<usize>> = (0..program.stores.len() as u32).map(|store| heads(&program, store)).collect();
    for (store, heads) in program.stores.iter_mut().zip(heads) {
        if let (StoreDecl::Pages(pages), Some(heads)) = (store, heads)
            && pages.layout == PageLayout::Separate
        {
            pages.policy = Policy::Slake(Slake { heads, window: bound.window, capacity, moments });
        }
    }
    program
}

/// Query heads that attend to a store.
fn heads(program: &Program, store: u32) -> Option<usize> {
    let heads = |op: &Op| if let Op::Attention(op) = op { (op.store.0 == store).then_some(op.heads) } else { None };
    program.ops.iter().find_map(heads)
}

/// Why tokens are evicted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// A prompt was read, or a sequence has become too long: budgets are made.
    Anew,
    /// Tokens came one by one: budgets stay.
    Again,
}

/// What layers hold, in the order of their stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// Tokens that stayed in the last eviction.
    pub stayed: Vec<u32>,
    /// What they may grow to before the next one, less a page.
    pub budgets: Vec<u32>,
    /// [`Bound::rows`] they were made for.
    rows: usize,
}

impl Shares {
    /// What stayed, budgets, and the tokens of a layer that these were made for.
    pub const fn new(stayed: Vec<u32>, budgets: Vec<u32>, rows: usize) -> Self {
        Self { stayed, budgets, rows }
    }

    /// The tokens of a layer that budgets were made for.
    pub const fn rows(&self) -> usize {
        self.rows
    }
}

/// What is to be evicted now.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Tokens that stay of each layer.
    pub keeps: Vec<u32>,
    /// Which.
    pub order: EvictionOrder,
    shares: Shares,
}

impl Planned {
    /// What layers hold afterwards.
    pub fn into_shares(self) -> Shares {
        self.shares
    }
}

/// What has to be found out before anything is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measurement {
    /// How far weights and values would move.
    Values,
    /// What the last queries read.
    Queries,
    /// Nothing: budgets stay, or all layers have the same.
    Nothing,
}

/// What layers hold and may hold.
#[derive(Debug, Clone, Copy)]
pub struct Holdings<'a> {
    /// The bound.
    pub bound: &'a Bound,
    /// The layers.
    pub layout: &'a BoundedLayers,
    /// Tokens that each layer holds.
    pub held: &'a [u32],
    /// What they held after the last eviction, if there was one.
    pub shares: Option<&'a Shares>,
}

impl Holdings<'_> {
    fn due(&self) -> Option<Due> {
        let (page_size, rows) = (self.layout.page_size, self.bound.rows(self.layout));
        let all: usize = self.held.iter().map(|held| *held as usize).sum();
        let is_over = all >= self.layout.layers * (rows + page_size);
        let Some(shares) = self.shares else { return is_over.then_some(Due::Anew) };
        let appended = self.held.iter().zip(&shares.stayed).map(|(held, stayed)| (held - stayed) as usize);
        let appended = appended.max().unwrap_or(0);
        if appended > page_size + self.bound.window || rows < shares.rows {
            return is_over.then_some(Due::Anew);
        }
        let is_full = |(held, budget): (&u32, &u32)| (held - budget.min(held)) as usize >= page_size;
        self.held.iter().zip(&shares.budgets).any(is_full).then_some(Due::Again)
    }

    /// What has to be found out, if tokens are to be evicted now.
    pub fn wanted(&self) -> Option<Measurement> {
        Some(match (self.due()?, self.bound.score) {
            (Due::Again, _) | (Due::Anew, EvictionScore::Window) => Measurement::Nothing,
            (Due::Anew, EvictionScore::Cake) => Measurement::Queries,
            (Due::Anew, EvictionScore::Vabs) => Measurement::Values,
        })
    }

    /// What each layer would hold if all had the same: what preferences are found out for.
    pub fn alike(&self) -> Vec<u32> {
        let rows = self.bound.rows(self.layout) as u32;
        self.held.iter().map(|held| rows.min(*held)).collect()
    }

    /// What is to be evicted now; `preferences` of every layer, if they were wanted.
    pub fn plan(&self, preferences: &[Preference]) -> Option<Planned> {
        let due = self.due()?;
        let budgets = match (due, self.shares) {
            (Due::Again, Some(shares)) => shares.budgets.clone(),
            (Due::Again | Due::Anew, _) => self.budgets(preferences, self.held),
        };
        let keeps: Vec<u32> = self.held.iter().zip(&budgets).map(|(held, budget)| *held.min(budget)).collect();
        let shares = Shares::new(keeps.clone(), budgets, self.bound.rows(self.layout));
        Some(Planned { keeps, order: self.bound.order(due), shares })
    }

    /// Whether so many tokens of a layer are so many that some are evicted.
    pub fn is_over(bound: &Bound, layout: &BoundedLayers, tokens: u32) -> bool {
        let held = vec![tokens; layout.layers];
        Holdings { bound, layout, held: &held, shares: None }.wanted().is_some()
    }

    /// What the first layers keep of a prompt of `tokens` tokens that the others have not read yet, all that layers keep
    /// being shared out among these (ALGORITHMS 5.1, the cascade): of those before the last of them less than before,
    /// what they may still be given a page of by rounding when others join. After the last layer it is what
    /// [`Holdings::plan`] says of all at once.
    pub fn cascade(&self, preferences: &[Preference], tokens: u32) -> Planned {
        let read = self.held.len();
        let budgets = self.budgets(preferences, &vec![tokens; read]);
        let spare = if read < self.layout.layers { self.layout.page_size as u32 } else { 0 };
        let keeps: Vec<u32> =
            self.held.iter().zip(&budgets).map(|(held, budget)| *held.min(&(budget + spare))).collect();
        let shares = Shares::new(keeps.clone(), budgets, self.bound.rows(self.layout));
        Planned { keeps, order: self.bound.order(Due::Anew), shares }
    }

    /// Which tokens layers keep that have chosen before by an order, of the same queries: those of the highest scores.
    pub const fn again(order: EvictionOrder) -> EvictionOrder {
        match order {
            EvictionOrder::Window { .. } | EvictionOrder::Running => EvictionOrder::Running,
            EvictionOrder::Recency => EvictionOrder::Recency,
        }
    }

    /// Shares the pages of all layers out by what they are worth, beyond those that each has in any case, among those
    /// that have read `held` tokens.
    fn budgets(&self, preferences: &[Preference], held: &[u32]) -> Vec<u32> {
        let BoundedLayers { layers, page_size, most, .. } = *self.layout;
        let least = self.bound.least_pages(page_size);
        let total = layers * (self.bound.rows(self.layout) / page_size).saturating_sub(least);
        let cap = |held: &u32| (*held as usize).div_ceil(page_size).min(most / page_size).saturating_sub(least);
        let caps: Vec<usize> = held.iter().map(cap).collect();
        let worth: Vec<f64> = match preferences {
            [] => vec![1.0; held.len()],
            preferences => preferences.iter().map(|preference| self.bound.worth(preference)).collect(),
        };
        let pages = water_fill(&worth, total, &caps);
        pages.into_iter().map(|pages| ((pages + least) * page_size) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_backend::conformance::Random;

    const LAYOUT: BoundedLayers =
        BoundedLayers { layers: 3, page_size: 16, most: 1024, moment_rows: 60, window: 32, moments: MomentType::F32 };

    fn preferences(worth: [f64; 3]) -> [Preference; 3] {
        worth.map(|entropy| Preference { entropy, variance: 1.0, ..Preference::default() })
    }

    #[test]
    fn moments_count_as_the_tokens_they_take_the_room_of() {
        let bound = Bound::new(256);
        assert_eq!(bound.rows(&LAYOUT), 192);
        assert_eq!(Bound { moments: false, ..bound }.rows(&LAYOUT), 256);
        // 36 tokens are 3 pages, and one more.
        assert_eq!(bound.least_budget(&LAYOUT), 64 + 60);
        assert_eq!(Bound { budget: 124, ..bound }.rows(&LAYOUT), 64);
    }

    /// The oracle's `cascade`: whatever layers turn out to be worth, each keeps at last what it would keep if all were asked
    /// at once, and never more than all may hold together and a page of each.
    #[test]
    fn a_cascade_ends_with_what_is_shared_out_at_once() {
        let mut random = Random::new(9);
        for _ in 0..500 {
            let layers = 2 + random.below(30);
            let layout = BoundedLayers { layers, ..LAYOUT };
            let bound = Bound { moments: false, ..Bound::new(64 + random.below(400)) };
            let tokens = (bound.budget + 16 + random.below(2000)) as u32;
            let worth = |random: &mut Random| f64::from(random.normal() * 2.0).exp();
            let preferences: Vec<Preference> = (0..layers)
                .map(|_| Preference { entropy: worth(&mut random), variance: 1.0, ..Preference::default() })
                .collect();
            let mut held = Vec::new();
            let mut last = None;
            for read in 1..=layers {
                held.push(tokens);
                let holdings = Holdings { bound: &bound, layout: &layout, held: &held, shares: None };
                let planned = holdings.cascade(&preferences[..read], tokens);
                assert!(planned.keeps.iter().zip(&held).all(|(keep, held)| keep <= held), "nothing comes back");
                held.clone_from(&planned.keeps);
                let all: u32 = held.iter().sum();
                assert!(all as usize <= layers * (bound.rows(&layout) + 16), "{all} tokens after {read} layers");
                last = Some(planned);
            }
            let alike = vec![tokens; layers];
            let at_once = Holdings { bound: &bound, layout: &layout, held: &alike, shares: None };
            assert!(Holdings::is_over(&bound, &layout, tokens));
            assert_eq!(last, at_once.plan(&preferences));
        }
    }

    #[test]
    fn nothing_is_given_up_before_there_is_a_page_too_many() {
        let bound = Bound { moments: false, ..Bound::new(128) };
        let of = |held: u32, shares: Option<&Shares>| {
            let held = [held; 3];
            let holdings = Holdings { bound: &bound, layout: &LAYOUT, held: &held, shares };
            holdings.wanted().map(|wanted| (wanted, holdings.plan(&preferences([1.0; 3])).unwrap()))
        };
        assert_eq!(of(143, None), None);
        let (wanted, planned) = of(144, None).unwrap();
        assert_eq!((wanted, planned.order), (Measurement::Queries, EvictionOrder::Window { gamma: 200.0 }));
        assert_eq!(planned.keeps, [128; 3]);
        let shares = planned.into_shares();
        assert_eq!(of(143, Some(&shares)), None);
        let (wanted, planned) = of(144, Some(&shares)).unwrap();
        assert_eq!(
            (wanted, planned.order, &planned.keeps[..]),
            (Measurement::Nothing, EvictionOrder::Running, &[128; 3][..])
        );
        // More than came one by one: a prompt.
        assert_eq!(of(128 + 49, Some(&shares)).unwrap().0, Measurement::Queries);
    }

    #[test]
    fn budgets_follow_what_layers_are_worth_and_add_up() {
        for score in [EvictionScore::Cake, EvictionScore::Window] {
            let bound = Bound { moments: false, score, ..Bound::new(256) };
            for (worth, held) in [([1.0, 2.0, 4.0], 1000), ([0.0, 0.0, 1.0], 400), ([1.0, 1e9, 3.0], 5000)] {
                let held = [held; 3];
                let holdings = Holdings { bound: &bound, layout: &LAYOUT, held: &held, shares: None };
                let known = if score == EvictionScore::Window { vec![] } else { preferences(worth).to_vec() };
                let keeps = holdings.plan(&known).unwrap().keeps;
                assert_eq!(keeps.iter().sum::<u32>(), 3 * 256, "{worth:?}");
                assert!(keeps.iter().all(|keep| keep.is_multiple_of(16) && *keep >= 64), "{keeps:?}");
                let is_sorted = score == EvictionScore::Window || worth[0] > worth[2] || keeps[0] <= keeps[2];
                assert!(is_sorted, "{worth:?}: {keeps:?}");
            }
        }
    }
}
