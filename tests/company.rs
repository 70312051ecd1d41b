//! Sequences at once say what each says alone: with drafts, and with contexts of many lengths.

use crate::{
    golden::{converted, fixture},
    speculation::{Right, Script, answers, greedy, hear, prompt, start_on, texts},
};
use kvas::speculation::{Drafter, Effort};
use kvas_backend::Backend;
use kvas_cpu::Cpu;
use kvas_gguf::Quant;

/// Some sequences at once, for which right and wrong tokens are drafted, say what each says alone and without drafts.
pub(crate) fn drafts_change_no_bit(
    (name, quant): (&str, Quant),
    counts: &[usize],
    backend: &dyn Fn() -> Box<dyn Backend>,
) {
    let drafts = [Right::Always(1), Right::Always(3), Right::random()].map(Some);
    company_changes_no_bit((name, quant), (8, 1, 60), (counts, &drafts), backend);
}

/// The same of sequences whose contexts go past several multiples of 128 tokens, each at another step, without drafts as well.
pub(crate) fn lengths_change_no_bit(name: &str, backend: &dyn Fn() -> Box<dyn Backend>) {
    company_changes_no_bit((name, Quant::Q8_0), (6, 7, 140), (&[6], &[None, Some(Right::random())]), backend);
}

/// So many prompts, of which each has seven times `longer` tokens more than the one before, and so many tokens of an answer.
fn company_changes_no_bit(
    (name, quant): (&str, Quant),
    (prompts, longer, max_tokens): (usize, usize, usize),
    (counts, drafts): (&[usize], &[Option<Right>]),
    backend: &dyn Fn() -> Box<dyn Backend>,
) {
    let model = converted(&fixture(name), quant);
    let start = |drafters: Vec<Box<dyn Drafter>>| start_on(&model, backend(), drafters, Effort::Most);
    let vocab = model.spec.vocab;
    let prompts: Vec<_> = (0..prompts).map(|number| prompt(longer * number, vocab)).collect();
    let ask = |prompt: &Vec<u32>| greedy(prompt.clone(), max_tokens, vocab);
    let engine = start(vec![]);
    let plain: Vec<_> = prompts.iter().map(|prompt| hear(&engine.submit(ask(prompt)))).collect();
    for (count, right) in counts.iter().flat_map(|count| drafts.iter().map(move |right| (*count, right))) {
        let script =
            |right: &Right| Script { texts: texts(&prompts, &plain), right: right.clone(), vocab: vocab as u32 };
        let drafters = right.iter().map(|right| Box::new(script(right)) as Box<dyn Drafter>).collect();
        let found = answers(&start(drafters), prompts[..count].iter().map(ask).collect());
        for (at, (found, plain)) in found.iter().zip(&plain).enumerate() {
            assert!(found.0 == plain.0, "{name}: sequence {at} of {count}");
            assert!(right.is_none() || found.2.drafted_tokens > 10);
        }
    }
}

/// Eight sequences at once, of which a step drafts for as many as its outputs have room for.
#[test]
fn many_sequences_at_once_say_what_each_says_alone() {
    for name in ["qwen35", "nemotron_h_moe", "lfm2", "llama"] {
        drafts_change_no_bit((name, Quant::F32), &[2, 5, 8], &|| Box::new(Cpu::new(1)));
    }
}

#[test]
fn sequences_of_many_lengths_say_what_each_says_alone() {
    for name in ["qwen35", "falcon-h1"] {
        lengths_change_no_bit(name, &|| Box::new(Cpu::new(1)));
    }
}
