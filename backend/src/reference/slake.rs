//! Giving up tokens: scores, preferences and moments as ALGORITHMS 5 writes them, in f64, with every weight of the
//! window materialised.

use super::{Data, Reference, dot, rope_store::row_at};
use crate::{
    Eviction, EvictionOrder, Holding, Marks, Page, Preference, Remembered, RememberedParts, Slot, Span, Store,
    StoreDecl,
    store::{MomentType, PagesDecl, Slake},
};

/// Added to weights before their logarithm is taken.
const LEAST: f64 = 1e-10;
/// Tokens that are pooled.
const POOL: usize = 5;

/// The tokens that a KV head has evicted.
#[derive(Debug, Clone)]
struct Moments {
    count: f64,
    key: Vec<f64>,
    value: Vec<f64>,
    /// Sums of squares of the columns of the key, and `[key_dim][value_dim]` of its products with the value, around the
    /// means.
    squares: Vec<f64>,
    products: Vec<f64>,
}

impl Moments {
    fn new(decl: &PagesDecl) -> Self {
        let (key, value) = (vec![0.0; decl.key_dim], vec![0.0; decl.value_dim]);
        Self { count: 0.0, squares: key.clone(), products: vec![0.0; key.len() * value.len()], key, value }
    }

    /// One more token (Welford).
    fn add(&mut self, key: &[f32], value: &[f32]) {
        let weight = self.count / (self.count + 1.0);
        self.count += 1.0;
        let from =
            |mean: &[f64], x: &[f32]| -> Vec<f64> { x.iter().zip(mean).map(|(x, m)| f64::from(*x) - m).collect() };
        let (keys, values) = (from(&self.key, key), from(&self.value, value));
        for (key, row) in keys.iter().zip(self.products.chunks_mut(values.len())) {
            row.iter_mut().zip(&values).for_each(|(sum, value)| *sum += weight * key * value);
        }
        self.squares.iter_mut().zip(&keys).for_each(|(sum, key)| *sum += weight * key * key);
        self.key.iter_mut().zip(&keys).for_each(|(mean, key)| *mean += key / self.count);
        self.value.iter_mut().zip(&values).for_each(|(mean, value)| *mean += value / self.count);
    }
}

impl Moments {
    /// Means and variances, and the covariance, each in one piece.
    fn save(&self, vectors: &mut Vec<f32>, covariances: &mut Vec<f32>) {
        let of_one = |sum: &f64| (sum / self.count.max(1.0)) as f32;
        vectors.extend(self.key.iter().map(|x| *x as f32));
        vectors.extend(self.squares.iter().map(of_one));
        vectors.extend(self.value.iter().map(|x| *x as f32));
        covariances.extend(self.products.iter().map(of_one));
    }

    /// The opposite, of so many tokens.
    fn load(decl: &PagesDecl, count: f64, (vectors, covariance): (&[f32], &[f32])) -> Self {
        let all = |values: &[f32], times: f64| values.iter().map(|x| f64::from(*x) * times).collect();
        let (key, rest) = vectors.split_at(decl.key_dim);
        let (squares, value) = rest.split_at(decl.key_dim);
        let (squares, products) = (all(squares, count), all(covariance, count));
        Self { count, key: all(key, 1.0), value: all(value, 1.0), squares, products }
    }
}

/// One more part of a context: the score that its weights are relative to, their sum, and the sum of its values.
pub(super) struct Part {
    pub(super) most: f64,
    pub(super) total: f64,
    pub(super) mixed: Vec<f64>,
}

/// What a slot remembers of a layer.
#[derive(Debug, Clone)]
pub(super) struct SlakeSlot {
    /// Whether tokens were evicted, or could have been.
    bounded: bool,
    /// By KV head the positions of the tokens that stayed.
    stayed: Vec<Vec<u32>>,
    /// The position of the first token since then.
    since: u32,
    /// By KV head and token.
    scores: Vec<Vec<f32>>,
    moments: Vec<Moments>,
    mass_cap: f64,
    /// The last queries, `[heads * key_dim]` rounded to f16, and their positions.
    queries: Vec<(u32, Vec<f32>)>,
}

impl SlakeSlot {
    pub(super) fn new(decl: &PagesDecl) -> Self {
        Self {
            bounded: false,
            stayed: vec![Vec::new(); decl.kv_heads],
            since: 0,
            scores: vec![Vec::new(); decl.kv_heads],
            moments: vec![Moments::new(decl); decl.kv_heads],
            mass_cap: 0.0,
            queries: Vec::new(),
        }
    }

    /// Appends what is remembered after `position` tokens.
    fn save(&self, decl: &PagesDecl, position: u32, out: &mut Vec<f32>) {
        let layer = Remembered::of(decl).expect("a store that gives up tokens");
        let slake = decl.policy.eviction().expect("a store that gives up tokens");
        let (count, mass_cap) = (self.moments[0].count as f32, self.mass_cap as f32);
        let asked = self.queries.first().zip(self.queries.last());
        let asked = asked.map_or((0, 0), |((first, _), (last, _))| (*first, *last + 1));
        let (bounded, stayed, since) = (self.bounded, self.stayed(), self.since);
        let marks = Marks { bounded, stayed, since, asked, count, mass_cap };
        let padded = |all: Vec<f32>| {
            let mut all = all;
            all.resize(slake.capacity, 0.0);
            all
        };
        let bits = |positions: &Vec<u32>| positions.iter().map(|position| f32::from_bits(*position)).collect();
        let positions: Vec<f32> = self.stayed.iter().flat_map(|stayed| padded(bits(stayed))).collect();
        let scores: Vec<f32> = self.scores.iter().flat_map(|scores| padded(scores.clone())).collect();
        let [mut vectors, mut covariances] = [const { Vec::new() }; 2];
        if slake.moments != MomentType::Off {
            self.moments.iter().for_each(|moments| moments.save(&mut vectors, &mut covariances));
        }
        let columns = slake.heads * decl.key_dim;
        let mut queries = vec![0.0; slake.window * columns];
        for (position, query) in &self.queries {
            queries[*position as usize % slake.window * columns..][..columns].copy_from_slice(query);
        }
        let [positions, scores, vectors] = [&positions, &scores, &vectors];
        let parts = RememberedParts { positions, scores, vectors, covariances: &covariances, queries: &queries };
        layer.join((&marks, position), &parts, out);
    }

    /// The opposite.
    fn load(&mut self, decl: &PagesDecl, values: &[f32]) {
        let slake = decl.policy.eviction().expect("a store that gives up tokens");
        let (marks, parts) = Remembered::of(decl).expect("a store that gives up tokens").split(values);
        *self = Self::new(decl);
        (self.bounded, self.since, self.mass_cap) = (marks.bounded, marks.since, f64::from(marks.mass_cap));
        self.stayed.fill((0..marks.stayed as u32).collect());
        for (head, positions) in parts.positions.chunks_exact(slake.capacity.max(1)).enumerate() {
            self.stayed[head] = positions[..marks.stayed].iter().map(|position| position.to_bits()).collect();
            self.scores[head] = parts.scores[head * slake.capacity..][..slake.capacity].to_vec();
        }
        let vectors = parts.vectors.chunks_exact(2 * decl.key_dim + decl.value_dim);
        let moments = vectors.zip(parts.covariances.chunks_exact(decl.key_dim * decl.value_dim));
        for (moments, values) in self.moments.iter_mut().zip(moments).filter(|_| marks.count > 0.0) {
            *moments = Moments::load(decl, f64::from(marks.count), values);
        }
        let columns = slake.heads * decl.key_dim;
        let query = |position: u32| parts.queries[position as usize % slake.window * columns..][..columns].to_vec();
        self.queries = marks.asked().map(|position| (position, query(position))).collect();
    }

    /// Adds a token to the moments of all heads.
    pub(super) fn absorb(&mut self, decl: &PagesDecl, row: &[f32]) {
        for (head, moments) in self.moments.iter_mut().enumerate() {
            let [key, value] = decl.row_parts(head);
            moments.add(&row[key], &row[value]);
        }
    }

    /// A segment was evicted, and so many tokens stay in order.
    pub(super) fn holds(&mut self, eviction: &Eviction<'_>, keep: u32) {
        (self.bounded, self.since, self.mass_cap) = (true, eviction.context, f64::from(eviction.mass_cap));
        self.stayed.fill((0..keep).collect());
    }

    fn stayed(&self) -> usize {
        self.stayed[0].len()
    }

    fn position(&self, head: usize, token: usize) -> u32 {
        let stayed = &self.stayed[head];
        stayed.get(token).copied().unwrap_or_else(|| self.since + (token - stayed.len()) as u32)
    }

    /// Remembers the queries of a span, the last `window` of them.
    fn ask<'a>(&mut self, window: usize, span: Span, rows: impl Iterator<Item = &'a [f32]>) {
        self.queries.retain(|(position, _)| *position < span.context);
        let rounded = |row: &[f32]| row.iter().map(|x| half::f16::from_f32(*x).to_f32()).collect();
        self.queries.extend((span.context..).zip(rows).map(|(position, row)| (position, rounded(row))));
        let follow = self.queries.windows(2).rposition(|pair| pair[0].0 + 1 != pair[1].0).map_or(0, |at| at + 1);
        let first = follow.max(self.queries.len().saturating_sub(window));
        self.queries.drain(..first);
    }

    /// What was evicted, as one more part of the context of a query of a KV head (ALGORITHMS 5.3).
    pub(super) fn part(&self, head: usize, scale: f64, q: &[f32]) -> Option<Part> {
        let Moments { count, key, value, squares, products } = self.moments.get(head)?;
        if *count == 0.0 {
            return None;
        }
        let of = |a: &[f64]| q.iter().zip(a).map(|(q, a)| f64::from(*q) * a).sum::<f64>();
        let mean = scale * of(key);
        let variance: f64 = q.iter().zip(squares).map(|(q, sum)| f64::from(*q).powi(2) * sum / count).sum();
        let most = mean + (0.5 * scale * scale * variance).min(self.mass_cap);
        let mut mixed: Vec<f64> = value.iter().map(|value| count * value).collect();
        for (q, row) in q.iter().zip(products.chunks(value.len())) {
            mixed.iter_mut().zip(row).for_each(|(mixed, sum)| *mixed += scale * f64::from(*q) * sum);
        }
        Some(Part { most, total: *count, mixed })
    }
}

/// A layer of a slot: everything that its scores are made of.
struct Layer<'a> {
    decl: PagesDecl,
    slake: Slake,
    scale: f64,
    page_size: usize,
    values: &'a [f32],
    table: &'a [Page],
    slot: &'a SlakeSlot,
}

impl Layer<'_> {
    fn row(&self, token: usize) -> &[f32] {
        &self.values[row_at(&self.decl, self.page_size, self.table, token)]
    }

    fn key(&self, head: usize, token: usize) -> &[f32] {
        &self.row(token)[self.decl.row_parts(head)[0].clone()]
    }

    fn value(&self, head: usize, token: usize) -> &[f32] {
        &self.row(token)[self.decl.row_parts(head)[1].clone()]
    }

    fn group(&self) -> usize {
        self.slake.heads / self.decl.kv_heads
    }

    /// The scores of a query head for the first tokens.
    fn scores(&self, query: &[f32], head: usize, tokens: usize) -> Vec<f64> {
        let q = &query[head * self.decl.key_dim..][..self.decl.key_dim];
        let kv_head = head / self.group();
        (0..tokens).map(|token| self.scale * f64::from(dot(q, self.key(kv_head, token)))).collect()
    }

    /// The last queries since the last eviction, `window` at most, oldest first.
    fn window(&self, eviction: &Eviction<'_>) -> Vec<&[f32]> {
        let since = self.slot.since..eviction.context;
        let queries = self.slot.queries.iter().filter(|(position, _)| since.contains(position));
        let queries: Vec<&[f32]> = queries.map(|(_, row)| &row[..]).collect();
        queries[queries.len().saturating_sub(eviction.window as usize)..].to_vec()
    }

    /// By query head and query of the window the scores of all tokens, minus infinity for those it does not see.
    fn window_scores(&self, held: usize, eviction: &Eviction<'_>) -> Vec<Vec<Vec<f64>>> {
        let queries = self.window(eviction);
        let of = |head: usize, (number, query): (usize, &&[f32])| {
            let mut scores = self.scores(query, head, held + 1 + number - queries.len());
            scores.resize(held, f64::NEG_INFINITY);
            scores
        };
        (0..self.slake.heads).map(|head| queries.iter().enumerate().map(|query| of(head, query)).collect()).collect()
    }

    /// By KV head the score of every token (oracle `cake_score`). Tokens that stayed in an earlier eviction are not
    /// pooled: what was beside them is gone.
    fn ranks(&self, scores: &[Vec<Vec<f64>>], held: usize, gamma: f32) -> Vec<Vec<f32>> {
        let (stayed, group) = (self.slot.stayed(), self.group());
        let of_head = |kv_head: usize| {
            let mut sums = vec![0.0; held];
            let queries = scores.first().map_or(0, Vec::len);
            let old = if queries == 0 { 0 } else { held - queries };
            for rows in &scores[kv_head * group..(kv_head + 1) * group] {
                let weights: Vec<Vec<f64>> = rows.iter().map(|row| softmax(row)).collect();
                for (token, sum) in sums.iter_mut().enumerate().take(old) {
                    let (mean, variance) = spread(&weights, token);
                    *sum += (mean + f64::from(gamma) * variance) / group as f64;
                }
            }
            let pooled = |token: usize| {
                if token < stayed || token >= old {
                    return sums[token];
                }
                let near = (token + 1).saturating_sub(POOL.div_ceil(2)).max(stayed)..old.min(token + POOL.div_ceil(2));
                sums[near].iter().sum::<f64>() / POOL as f64
            };
            (0..held).map(|token| pooled(token) as f32).collect()
        };
        (0..self.decl.kv_heads).map(of_head).collect()
    }

    /// By KV head the tokens that are evicted.
    fn chosen(&self, eviction: &Eviction<'_>, holding: &Holding<'_>) -> Vec<Vec<u32>> {
        let held = holding.held as usize;
        let ranks = match eviction.order {
            EvictionOrder::Window { gamma } => self.ranks(&self.window_scores(held, eviction), held, gamma),
            EvictionOrder::Running => self.slot.scores.clone(),
            EvictionOrder::Recency => vec![vec![0.0; held]; self.decl.kv_heads],
        };
        let of_head = |head: usize| {
            let mut gone = Vec::new();
            let mark = |token: u32| (self.slot.position(head, token as usize), ranks[head][token as usize]);
            eviction.choose(holding, mark, &mut gone);
            gone
        };
        (0..self.decl.kv_heads).map(of_head).collect()
    }

    /// Oracle `cake_pref` and `vabs_terms`.
    fn preference(&self, eviction: &Eviction<'_>, holding: &Holding<'_>, values: bool) -> Preference {
        let held = holding.held as usize;
        let scores = self.window_scores(held, eviction);
        let mut preference = Preference::default();
        let rows = scores.iter().map(Vec::len).sum::<usize>().max(1) as f64;
        for rows in &scores {
            let weights: Vec<Vec<f64>> = rows.iter().map(|row| softmax(row)).collect();
            let old = if rows.is_empty() { 0 } else { held - rows.len() };
            preference.entropy += weights.iter().map(|row| entropy(&row[..old])).sum::<f64>();
            preference.variance += (0..old).map(|token| spread(&weights, token).1).sum::<f64>();
            preference.mean_entropy += weights.iter().map(|row| entropy(row)).sum::<f64>();
        }
        preference.mean_entropy /= rows;
        if values {
            let gone = self.chosen(eviction, holding);
            for (head, of_head) in scores.iter().enumerate() {
                let kv_head = head / self.group();
                preference.shift += self.shift(kv_head, of_head, &gone[kv_head]) / rows;
            }
        }
        preference
    }

    /// Total variation times value-aware distance of the weights of a query head with and without the tokens that are
    /// gone, summed over queries.
    fn shift(&self, kv_head: usize, scores: &[Vec<f64>], gone: &[u32]) -> f64 {
        if gone.is_empty() {
            return 0.0;
        }
        let length = |token: usize| f64::from(dot(self.value(kv_head, token), self.value(kv_head, token))).sqrt();
        let lengths: Vec<f64> = (0..scores.first().map_or(0, Vec::len)).map(length).collect();
        let all: f64 = lengths.iter().sum();
        let is_gone = |token: usize| gone.binary_search(&(token as u32)).is_ok();
        let of_query = |row: &Vec<f64>| {
            let weights = softmax(row);
            let mean = gone.iter().map(|token| row[*token as usize]).sum::<f64>() / gone.len() as f64;
            let kept = || (0..row.len()).filter(|token| !is_gone(*token)).map(|token| row[token]);
            let most = kept().fold(mean, f64::max);
            let total = kept().map(|score| (score - most).exp()).sum::<f64>() + gone.len() as f64 * (mean - most).exp();
            let weight = |token: usize| {
                let weight = if is_gone(token) {
                    (mean - most).exp() * (1.0 + row[token] - mean)
                } else {
                    (row[token] - most).exp()
                };
                weight / total
            };
            let moved = |token: usize| (weight(token) - weights[token]).abs();
            let total_variation = 0.5 * (0..row.len()).map(moved).sum::<f64>();
            let value_aware: f64 = (0..row.len()).map(|token| lengths[token] / all * moved(token)).sum();
            total_variation * value_aware.powf(0.1)
        };
        scores.iter().map(of_query).sum()
    }
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = row.iter().map(|score| (score - most).exp()).sum();
    row.iter().map(|score| (score - most).exp() / total).collect()
}

fn entropy(weights: &[f64]) -> f64 {
    -weights.iter().map(|weight| weight * (weight + LEAST).ln()).sum::<f64>()
}

/// Mean and unbiased variance of the weights of a token over queries.
fn spread(weights: &[Vec<f64>], token: usize) -> (f64, f64) {
    let mean = weights.iter().map(|row| row[token]).sum::<f64>() / weights.len() as f64;
    let squares: f64 = weights.iter().map(|row| (row[token] - mean).powi(2)).sum();
    (mean, squares / weights.len().saturating_sub(1).max(1) as f64)
}

impl Reference {
    fn layer<'a>(&'a self, slot: Slot, store: Store, table: &'a [Page]) -> Layer<'a> {
        let (program, page_size) = (self.program(), self.limits().page_size);
        let decl = *program.pages(store);
        let slake = *decl.policy.slake().expect("a store of an eviction has a policy");
        let Data::Pages(values) = &self.stores[store.0 as usize] else { panic!("validated: a page store") };
        let slot = &self.slake[store.0 as usize][slot.0 as usize];
        Layer { decl, slake, scale: f64::from(program.attention_scale(store)), page_size, values, table, slot }
    }

    /// Remembers the queries of a span.
    pub(super) fn ask(&mut self, store: Store, (first, span): (usize, Span), q: crate::Act) {
        let Some(slake) = self.program().pages(store).policy.slake().copied() else { return };
        let rows: Vec<Vec<f32>> = (first..first + span.rows as usize).map(|row| self.row(q, row).to_vec()).collect();
        let slot = &mut self.slake[store.0 as usize][span.slot.0 as usize];
        slot.ask(slake.window, span, rows.iter().map(Vec::as_slice));
    }

    /// After the committed rows of a short span their weights are added to the scores of what they have read.
    pub(super) fn rescore(&mut self, slot: Slot, accepted: u32) {
        let (step, program) = (self.step.clone(), self.program.clone().expect("prepared"));
        let span = step.spans().iter().enumerate().find(|(_, span)| span.slot == slot);
        let Some((number, span)) = span else { return };
        for store in program.bounded_stores() {
            let ordinal = program.page_ordinal(store);
            let held = step.held(number, ordinal) as usize;
            let layer = self.layer(slot, store, step.table(number, ordinal));
            if !layer.slot.bounded || span.rows as usize > layer.slake.window {
                continue;
            }
            let mut scores = layer.slot.scores.clone();
            scores.iter_mut().for_each(|scores| scores.resize(held, 0.0));
            for row in 0..accepted {
                let queries = &layer.slot.queries;
                let query = queries.iter().find(|(position, _)| *position == span.context + row);
                let (_, query) = query.expect("the queries of a short span are remembered");
                for scores in &mut scores {
                    scores.push(0.0);
                    scores.iter_mut().for_each(|score| *score *= 0.9);
                }
                for head in 0..layer.slake.heads {
                    let (kv_head, q) =
                        (head / layer.group(), &query[head * layer.decl.key_dim..][..layer.decl.key_dim]);
                    let own = layer.scores(query, head, held + 1 + row as usize);
                    let part = layer.slot.part(kv_head, layer.scale, q);
                    let most = own.iter().copied().chain(part.as_ref().map(|part| part.most));
                    let most = most.fold(f64::NEG_INFINITY, f64::max);
                    let beside = part.map_or(0.0, |part| part.total * (part.most - most).exp());
                    let total = own.iter().map(|score| (score - most).exp()).sum::<f64>() + beside;
                    for (score, own) in scores[kv_head].iter_mut().zip(&own) {
                        *score += ((own - most).exp() / total) as f32;
                    }
                }
            }
            self.slake[store.0 as usize][slot.0 as usize].scores = scores;
        }
    }

    pub(super) fn preferences(&self, eviction: &Eviction<'_>, values: bool) -> Vec<Preference> {
        let of = |holding: &Holding<'_>| {
            self.layer(eviction.slot, holding.store, holding.table).preference(eviction, holding, values)
        };
        eviction.holdings.iter().map(of).collect()
    }

    /// Gives up the tokens of one layer.
    pub(super) fn evict_by_head(&mut self, eviction: &Eviction<'_>, holding: &Holding<'_>) {
        let layer = self.layer(eviction.slot, holding.store, holding.table);
        let (decl, page_size, held) = (layer.decl, layer.page_size, holding.held as usize);
        let mut slot = layer.slot.clone();
        let gone = layer.chosen(eviction, holding);
        if let EvictionOrder::Window { gamma } = eviction.order {
            slot.scores = layer.ranks(&layer.window_scores(held, eviction), held, gamma);
        }
        let mut moves = Vec::new();
        for (head, gone) in gone.iter().enumerate() {
            let absorbed = gone.iter().filter(|_| eviction.absorb);
            for token in absorbed.map(|token| *token as usize) {
                slot.moments[head].add(layer.key(head, token), layer.value(head, token));
            }
            let mut positions: Vec<u32> = (0..held).map(|token| layer.slot.position(head, token)).collect();
            slot.scores[head].resize(held, 0.0);
            for (from, to) in holding.moves(gone) {
                moves.push((head, from as usize, to as usize));
                positions[to as usize] = positions[from as usize];
                slot.scores[head][to as usize] = slot.scores[head][from as usize];
            }
            positions.truncate(holding.keep as usize);
            slot.scores[head].truncate(holding.keep as usize);
            slot.stayed[head] = positions;
        }
        (slot.bounded, slot.since, slot.mass_cap) = (true, eviction.context, f64::from(eviction.mass_cap));
        self.slake[holding.store.0 as usize][eviction.slot.0 as usize] = slot;
        let Data::Pages(values) = &mut self.stores[holding.store.0 as usize] else { panic!("a page store") };
        for (head, from, to) in moves {
            let (from, to) =
                (row_at(&decl, page_size, holding.table, from), row_at(&decl, page_size, holding.table, to));
            for part in decl.row_parts(head) {
                values.copy_within(from.start + part.start..from.start + part.end, to.start + part.start);
            }
        }
    }

    /// The slot holds all of its tokens again, or what another one holds.
    pub(super) fn reset(&mut self, slot: Slot, from: Option<Slot>) {
        let (program, live) = (self.program.clone().expect("prepared"), self.limits().slots as u32);
        for store in program.marked_stores() {
            let slots = &mut self.slake[store.0 as usize];
            let fresh = || SlakeSlot::new(program.pages(store));
            // Of one that holds all of its tokens a snapshot remembers nothing.
            let lasts = |value: &SlakeSlot| value.bounded || slot.0 < live;
            let value = from.and_then(|from| Some(slots[from.0 as usize].clone()).filter(lasts));
            let value = value.unwrap_or_else(fresh);
            slots[slot.0 as usize] = value;
        }
    }

    /// Appends what a slot remembers of what was evicted, layer by layer.
    pub(super) fn save_remembered(&self, (slot, position): (Slot, u32), out: &mut Vec<f32>) {
        let stores = self.program().stores.iter().zip(&self.slake).zip(&self.memories);
        for ((decl, slake), memories) in stores {
            let (StoreDecl::Pages(pages), at) = (decl, slot.0 as usize) else { continue };
            slake.get(at).into_iter().for_each(|slot| slot.save(pages, position, out));
            memories.get(at).into_iter().for_each(|memory| memory.save(pages.evicted_elements(), out));
        }
    }

    /// The opposite, for so many tokens that were evicted.
    pub(super) fn load_remembered(&mut self, (slot, tokens): (Slot, u32), mut values: &[f32]) {
        let program = self.program.clone().expect("prepared");
        for ((decl, slake), memories) in program.stores.iter().zip(&mut self.slake).zip(&mut self.memories) {
            let (StoreDecl::Pages(pages), at) = (decl, slot.0 as usize) else { continue };
            let own = values.split_off(..pages.evicted_elements()).expect("as many values as the slot remembers");
            slake.get_mut(at).into_iter().for_each(|slot| slot.load(pages, own));
            memories
                .get_mut(at)
                .filter(|_| !own.is_empty())
                .into_iter()
                .for_each(|memory| memory.load(pages, tokens, own));
        }
    }
}
