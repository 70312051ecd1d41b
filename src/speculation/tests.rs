//! The index against a naive search, and the choice of lengths against what it should come to.

use super::{Acceptance, Confidence, Costs, DraftRequest, Drafter, DrafterChoice, DrafterKind, Index, Lookup, Match};
use crate::memory::SequenceId;
use kvas_backend::conformance::Random;

/// What the index is to find, token by token.
fn naive(tokens: &[u32]) -> Option<Match> {
    let length = |at: usize| {
        let pairs = tokens[..=at].iter().rev().zip(tokens.iter().rev());
        pairs.take(32).take_while(|(a, b)| a == b).count()
    };
    let places = (1..tokens.len().saturating_sub(1)).rev().filter(|at| length(*at) >= 2).take(16);
    let found = places.map(|at| Match { at, length: length(at) });
    found.reduce(|best, other| if other.length > best.length { other } else { best })
}

#[test]
fn the_index_finds_what_a_search_finds_however_the_text_grows_and_shrinks() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let vocab = 2 + random.below(12);
        let (mut index, mut tokens, mut found) = (Index::default(), Vec::new(), 0);
        for _ in 0..300 {
            match random.below(12) {
                0 => tokens.truncate(tokens.len() - random.below(tokens.len() + 1)),
                // A passage again.
                1 if !tokens.is_empty() => {
                    let from = random.below(tokens.len());
                    tokens.extend_from_within(from..tokens.len().min(from + 12));
                }
                2 if !tokens.is_empty() => {
                    let at = random.below(tokens.len());
                    tokens[at] = random.below(vocab) as u32;
                }
                _ => tokens.push(random.below(vocab) as u32),
            }
            index.follow(&tokens);
            assert_eq!(index.find(), naive(&tokens), "{tokens:?}");
            if let Some(place) = index.find() {
                found += 1;
                let mut text = tokens.clone();
                (0..9).for_each(|at| text.push(text[place.at + 1 + at]));
                assert_eq!(index.following(place, 9), text[tokens.len()..]);
            }
        }
        assert!(found > 20, "{found} found");
    }
}

#[test]
fn a_long_text_is_forgotten_but_for_its_end() {
    let mut index = Index::default();
    let mut text: Vec<u32> = (0..150_000).collect();
    text.extend([5, 6]);
    index.follow(&text);
    assert_eq!(index.find(), None, "what stood at the beginning is forgotten");
    text.extend([149_000, 149_001]);
    index.follow(&text);
    let found = index.find().unwrap();
    assert_eq!((found.length, index.following(found, 3)), (2, vec![149_002, 149_003, 149_004]));
    index.follow(&text[..10]);
    assert_eq!(index.find(), None);
    index.follow(&[1, 2, 3, 1, 2]);
    assert_eq!(index.find(), Some(Match { at: 1, length: 2 }));
}

#[test]
fn every_sequence_has_an_index_of_its_own() {
    let (mut lookup, text) = (Lookup::default(), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]);
    let (one, other) = (SequenceId(1), SequenceId(2));
    assert_eq!(lookup.look(one, &text), Some(Confidence::Rather));
    assert_eq!(lookup.look(other, &text[..8]), None);
    let mut asked = [(one, &text[..]), (other, &text[..3])].map(|(id, tokens)| DraftRequest {
        id,
        tokens,
        most: 6,
        drafts: vec![],
    });
    lookup.draft(&mut asked).unwrap();
    assert_eq!(asked.map(|asked| asked.drafts), [vec![5, 6, 7, 8, 1, 2], vec![]]);
    lookup.forget(one);
    assert_eq!((lookup.kind(), lookup.watches()), (DrafterKind::Ngram, false));
}

#[test]
fn what_is_looked_up_is_that_of_the_tokens_there_are_whatever_was_there_before() {
    let (id, mut changed) = (SequenceId(1), 0);
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let vocab = 2 + random.below(6);
        let (mut lookup, mut tokens) = (Lookup::default(), Vec::new());
        for _ in 0..200 {
            if random.below(10) > 0 || tokens.is_empty() {
                (0..random.below(4)).for_each(|_| tokens.push(random.below(vocab) as u32));
            } else {
                // Another request: what it begins with may differ anywhere, at the same length too.
                lookup.begins(id);
                let at = random.below(tokens.len());
                tokens[at] = random.below(vocab) as u32;
                tokens.truncate(tokens.len() - random.below(tokens.len() / 2 + 1));
                changed += 1;
            }
            let asked = |lookup: &mut Lookup| {
                let request = DraftRequest { id, tokens: &tokens, most: 5, drafts: vec![] };
                let (mut requests, sure) = ([request], lookup.look(id, &tokens));
                lookup.draft(&mut requests).unwrap();
                (sure, std::mem::take(&mut requests[0].drafts))
            };
            assert_eq!(asked(&mut lookup), asked(&mut Lookup::default()), "{tokens:?}");
        }
    }
    assert!(changed > 100, "{changed} requests");
}

#[test]
fn a_text_that_goes_on_is_forgotten_but_for_its_end() {
    let (mut lookup, id) = (Lookup::default(), SequenceId(1));
    let text: Vec<u32> = (0..150_000).chain([140_000, 140_001, 5, 6]).collect();
    for end in (1..150_000).step_by(997).chain([150_002]) {
        lookup.look(id, &text[..end]);
    }
    assert_eq!(lookup.look(id, &text[..150_002]), Some(Confidence::Hardly));
    assert_eq!(lookup.look(id, &text), None, "what stood at the beginning is forgotten");
}

/// Rounds in which every token is accepted with a probability; how many tokens were drafted a round in the end, and
/// the tokens of all rounds over their cost.
fn rounds(rate: f64, costs: &[f64], count: usize) -> (f64, f64) {
    let (mut random, mut acceptance) = (Random::new(7), Acceptance::default());
    let (mut tokens, mut spent, mut late) = (0.0, 0.0, 0);
    for round in 0..count {
        let drafted = acceptance.drafts(Confidence::Rather, costs);
        let accepted = (0..drafted).take_while(|_| (random.below(1000) as f64) < rate * 1000.0).count();
        if drafted > 0 {
            acceptance.learn(Confidence::Rather, drafted, accepted);
        }
        tokens += 1.0 + accepted as f64;
        spent += costs[drafted];
        late += if 2 * round >= count { drafted } else { 0 };
    }
    (late as f64 / (count / 2) as f64, tokens / spent)
}

#[test]
fn drafts_are_as_long_as_pays_off() {
    let costs = |slope: f64| (0..8).map(|drafts| 1.0 + slope * drafts as f64).collect::<Vec<_>>();
    // Nothing is accepted: all but a few trials are left.
    let (drafted, gain) = rounds(0.0, &costs(0.3), 600);
    assert!(drafted < 0.05 && gain > 0.98, "{drafted}, {gain}");
    // Everything is: as long as possible.
    let (drafted, gain) = rounds(1.0, &costs(0.3), 600);
    assert!(drafted > 6.9 && gain > 2.4, "{drafted}, {gain}");
    // In between: neither, and more than without drafts.
    let (drafted, gain) = rounds(0.7, &costs(0.3), 600);
    assert!((1.0..4.0).contains(&drafted) && gain > 1.15, "{drafted}, {gain}");
    // Rows that cost as much as steps never pay off, and free ones always do.
    let (drafted, gain) = rounds(0.7, &costs(1.0), 600);
    assert!(drafted < 0.1 && gain > 0.98, "{drafted}, {gain}");
    assert!(rounds(0.5, &costs(0.0), 600).0 > 5.0);
    assert_eq!(Acceptance::default().drafts(Confidence::Model, &[1.0]), 0, "no room for drafts");
}

#[test]
fn what_was_not_tried_after_a_wrong_token_does_not_count() {
    let (mut whole, mut first) = (Acceptance::default(), Acceptance::default());
    for _ in 0..50 {
        whole.learn(Confidence::Quite, 8, 1);
        first.learn(Confidence::Quite, 2, 1);
    }
    assert_eq!(whole.rate(Confidence::Quite), first.rate(Confidence::Quite));
    assert!((whole.rate(Confidence::Quite) - 0.5).abs() < 0.01);
    assert!((whole.rate(Confidence::Rather) - 0.5).abs() < 1e-9, "others stay as they were");
}

#[test]
fn costs_are_those_measured_and_lie_between_them() {
    let mut costs = Costs::default();
    let near = |found: &[f64], expected: &[f64]| {
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.02), "{found:?}, expected {expected:?}");
    };
    near(&costs.relative(1, 2, 0.0), &[1.0, 1.3, 1.6]);
    assert!(costs.is_stale(1));
    for _ in 0..100 {
        costs.learn(1, 1, 2.0);
        costs.learn(1, 3, 3.0);
        costs.learn(4, 4, 8.0);
    }
    // A process that came between.
    costs.learn(1, 1, 200.0);
    assert!(!costs.is_stale(1) && costs.relative(1, 1, 0.0)[1] > 0.5);
    for _ in 0..60 {
        costs.learn(1, 1, 2.0);
    }
    near(&costs.relative(1, 4, 0.0), &[1.0, 1.25, 1.5, 1.75, 2.0]);
    near(&costs.relative(1, 2, 0.2), &[1.0, 1.35, 1.7]);
    near(&costs.relative(5, 1, 0.0), &[1.0, 1.3]);
    (0..200).for_each(|_| costs.learn(1, 3, 3.0));
    assert!(costs.is_stale(1));
}

#[test]
fn names_are_those_of_flags() {
    for name in ["ngram", "mtp", "draft"] {
        let Some(DrafterChoice::Only(kind)) = DrafterChoice::from_name(name) else { panic!("{name}") };
        assert!(kind.name() == name && DrafterChoice::Auto.allows(kind) && !DrafterChoice::Off.allows(kind));
    }
    assert_eq!((DrafterChoice::from_name("auto"), DrafterChoice::from_name("no")), (Some(DrafterChoice::Auto), None));
    assert!(!DrafterChoice::Only(DrafterKind::Mtp).allows(DrafterKind::Draft));
}
