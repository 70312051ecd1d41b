//! `/v1/completions`: text goes on.

use super::{
    extras::{Extras, by_id, stop_reason},
    finish_reason, timings, unique, usage,
};
use crate::{
    engine::Probabilities,
    server::{
        ApiError, Body, Caller, Fields, Server,
        fields::wrong,
        generate::{self, End, GenerateRequest, Piece, TokenPiece},
        options,
        reports::Reports,
        served::{Served, now},
        slots::Arrival,
        stream::{self, Message, StreamFormat, Wire},
        whole::{Whole, collect},
    },
    text::{Bos, Control, Part, Special},
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Tokens of an answer where the request says nothing, as OpenAI has it.
const DEFAULT_TOKENS: usize = 16;
/// Most prompts of a request.
pub const MOST_PROMPTS: usize = 128;

/// Goes on with prompts.
pub async fn completions(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    let wanted = Wanted::of(&fields, &served, caller)?;
    let head = json!({
        "id": unique("cmpl-"),
        "object": "text_completion",
        "created": now(),
        "model": served.name,
        "system_fingerprint": super::FINGERPRINT,
    });
    if fields.flag("stream")?.unwrap_or(false) {
        if wanted.best_of > wanted.answers {
            return Err(ApiError::field("best_of", "more than n, expected a reply that is not streamed"));
        }
        return wanted.stream(&server, &served, head).await;
    }
    let (mut choices, mut ends) = (Vec::new(), Vec::new());
    // Where there are several answers, each tells its own durations.
    let is_one = wanted.prompts.len() * wanted.answers == 1;
    let asks = wanted.asks(wanted.best_of);
    // Before any is answered.
    asks.iter().try_for_each(|asks| generate::check(&served, asks))?;
    let asked = asks.into_iter().map(|asks| wanted.answer(&server, &served, asks)).collect();
    let answered = generate::at_once(&served, asked).await?;
    for (number, (prompt, (generated, all))) in wanted.prompts.iter().zip(answered).enumerate() {
        for answer in generated.iter().take(wanted.answers) {
            let mut choice = wanted.choice(&served, number * wanted.answers + answer.index, prompt, answer);
            if !is_one {
                choice["timings"] = timings(&answer.end.timings, answer.end.queued);
            }
            choices.push(choice);
        }
        ends.push(all);
    }
    let mut reply = head;
    reply["choices"] = json!(choices);
    if let Some(end) = ends.iter().flatten().next().filter(|_| is_one) {
        reply["timings"] = timings(&end.timings, end.queued);
    }
    reply["usage"] = wanted.usage(&ends);
    Ok(Json(reply).into_response())
}

/// A prompt, as text and as tokens.
#[derive(Debug, Clone)]
struct Prompt {
    text: String,
    tokens: Vec<u32>,
}

#[derive(Debug)]
struct Wanted {
    prompts: Vec<Prompt>,
    ask: GenerateRequest,
    answers: usize,
    best_of: usize,
    echo: Echo,
    with_usage: bool,
    reports: Reports,
    extras: Extras,
}

/// Whether a reply begins with its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Echo {
    Prompt,
    Nothing,
}

/// The prompts of a request: a text, tokens, or a list of at most `most` of either.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other kinds of JSON are refused")]
pub fn prompts((value, most): (&Value, usize), served: &Served, bos: Bos) -> Result<Vec<Vec<u32>>, ApiError> {
    let refuse = |found: &Value| wrong("prompt", found, "a text, a list of tokens, or a list of these");
    let tokens = |list: &[Value]| -> Option<Vec<u32>> {
        list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
    };
    let one = |value: &Value| match value {
        Value::String(text) => Ok(served.tokens(text, Special::Parse, bos)),
        Value::Array(list) => tokens(list).ok_or_else(|| refuse(value)),
        _ => Err(refuse(value)),
    };
    match value.as_array().filter(|list| list.first().is_some_and(|first| !first.is_number())) {
        Some(list) => {
            if list.len() > most {
                let what = format!("{} of them, expected 1 to {most}", list.len());
                return Err(ApiError::field("prompt", what));
            }
            list.iter().map(one).collect()
        }
        None => Ok(vec![one(value)?]),
    }
}

/// The prompt that asks for what stands between two texts.
pub fn fill_in(served: &Served, before: &[u32], suffix: &str) -> Result<Vec<u32>, ApiError> {
    let roles = served.tokenizer.roles();
    let bos = roles.bos.filter(|bos| before.first() == Some(bos));
    let after = served.tokens(suffix, Special::Literal, Bos::Omit);
    let filled = served.tokenizer.fill_in(&before[usize::from(bos.is_some())..], &after);
    let what = "this model has no tokens for filling in, expected no suffix";
    Ok(bos.into_iter().chain(filled.ok_or_else(|| ApiError::field("suffix", what))?).collect())
}

impl Wanted {
    fn of(fields: &Fields<'_>, served: &Served, caller: Caller) -> Result<Self, ApiError> {
        let given = fields.need("prompt", "a text or a list of tokens")?;
        let bos = if fields.flag("add_special_tokens")?.unwrap_or(true) { Bos::Add } else { Bos::Omit };
        let mut all = prompts((given, MOST_PROMPTS), served, bos)?;
        if let Some(suffix) = fields.text("suffix")?.filter(|suffix| !suffix.is_empty()) {
            all = all.iter().map(|before| fill_in(served, before, suffix)).collect::<Result<_, _>>()?;
        }
        let with_text = |tokens: Vec<u32>| Prompt { text: served.text(&tokens).unwrap_or_default(), tokens };
        let mut ask = options::ask(fields, served, caller.scope)?;
        ask.max_tokens = ask.max_tokens.or_else(|| (!options::says_length(fields)).then_some(DEFAULT_TOKENS));
        ask.top_tokens = fields.count(&["logprobs"], (0, options::MOST_LIKELIEST))?;
        let echo = if fields.flag("echo")?.unwrap_or(false) { Echo::Prompt } else { Echo::Nothing };
        let extras = Extras::of(fields)?;
        // Scoring harnesses echo a text with its probabilities and want no token more than one.
        ask.score = extras.of_prompt(ask.top_tokens.filter(|_| echo == Echo::Prompt));
        for prompt in &mut all {
            extras.cut(served, ask.max_tokens, prompt);
        }
        if let Some(grammar) = options::grammar(fields)? {
            ask.stages = vec![options::stage(served, &grammar)?];
        }
        let (answers, with_usage) = (options::answers(fields)?, options::with_usage(fields)?);
        let best_of = fields.count(&["best_of"], (1, options::MOST_ANSWERS))?.unwrap_or(answers);
        if best_of < answers {
            return Err(ApiError::field("best_of", format!("{best_of}, expected at least n, {answers}")));
        }
        let reports = Reports::of(fields)?;
        ask.progress = fields.flag("stream")?.unwrap_or(false) && reports.are_wanted();
        let prompts = all.into_iter().map(with_text).collect();
        Ok(Self { prompts, ask, answers, best_of, echo, with_usage, reports, extras })
    }

    fn ask(&self, prompt: &Prompt) -> GenerateRequest {
        let mut ask = GenerateRequest { prompt: prompt.tokens.clone(), ..self.ask.clone() };
        if self.best_of > self.answers {
            ask.top_tokens = ask.top_tokens.or(Some(0));
        }
        ask
    }

    /// What to ask about each prompt to get so many answers.
    fn asks(&self, answers: usize) -> Vec<Vec<GenerateRequest>> {
        let one = |(number, prompt)| {
            let mut ask = self.ask(prompt);
            ask.slot_request.arrival = Arrival::of_prompt(number);
            options::several(ask, answers)
        };
        self.prompts.iter().enumerate().map(one).collect()
    }

    /// What was generated for one prompt, the likeliest first: as many as are wanted are its answers. All are paid for: how
    /// they ended is told in their order.
    async fn answer(
        &self,
        server: &Arc<Server>,
        served: &Arc<Served>,
        asks: Vec<GenerateRequest>,
    ) -> Result<(Vec<Whole>, Vec<End>), ApiError> {
        let mut answers = collect(generate::begin(server, served, asks).await?, self.best_of).await?;
        let ends = answers.iter().map(|answer| answer.end.clone()).collect();
        if self.best_of > self.answers {
            let mean = |answer: &Whole| {
                let sum: f32 = answer.tokens.iter().map(|token| token.probabilities.chosen.log_probability).sum();
                sum / answer.tokens.len().max(1) as f32
            };
            answers.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            answers.iter_mut().enumerate().for_each(|(place, answer)| answer.index = place);
        }
        Ok((answers, ends))
    }

    fn choice(&self, served: &Served, index: usize, prompt: &Prompt, answer: &Whole) -> Value {
        let before = if self.echo == Echo::Prompt { &prompt.text } else { "" };
        let first = prompt.tokens.first().copied().filter(|_| self.echo == Echo::Prompt);
        let echoed = if self.echo == Echo::Prompt { &answer.prompt[..] } else { &[] };
        let legacy = |most| Legacy::new(served, most, &self.extras).of(first, (echoed, &answer.tokens), &mut 0);
        let logprobs = self.ask.top_tokens.map(legacy);
        let mut choice = json!({
            "index": index,
            "text": format!("{before}{}", answer.content),
            "logprobs": logprobs,
            "finish_reason": finish_reason(&answer.end, 0),
            "stop_reason": stop_reason(&answer.end),
        });
        if self.extras.prompt_logprobs.is_some() {
            choice["prompt_logprobs"] = self.extras.prompt_log_probabilities(served, &answer.prompt);
        }
        if self.extras.token_ids {
            choice["prompt_token_ids"] = json!(prompt.tokens);
            choice["token_ids"] = json!(answer.end.tokens);
        }
        choice
    }

    /// `usage` of the answers to each prompt, in their order.
    fn usage(&self, ends: &[Vec<End>]) -> Value {
        let mut usage = usage(ends.iter().map(|ends| ends.iter().map(|end| &end.timings)));
        // Each prompt counts once, however many answers it got.
        let prompt: usize = self.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
        let generated: usize = ends.iter().flatten().map(|end| end.timings.generated_tokens).sum();
        usage["prompt_tokens"] = json!(prompt);
        usage["total_tokens"] = json!(prompt + generated);
        usage
    }

    async fn stream(self, server: &Arc<Server>, served: &Arc<Served>, head: Value) -> Result<Response, ApiError> {
        let pieces = generate::begin_all(server, served, self.asks(self.answers)).await?;
        let answers = self.prompts.len() * self.answers;
        let untold = (0..answers).map(|_| Untold::default()).collect();
        let form = TextForm { head, served: served.clone(), wanted: self, untold, ends: vec![None; answers] };
        Ok(stream::respond(pieces, answers, form, Wire::EventsUntilDone))
    }
}

/// Probabilities in the form of the first API: lists side by side.
struct Legacy<'a> {
    served: &'a Served,
    /// How many of the likeliest tokens are told.
    most: usize,
    named_by_id: bool,
}

impl<'a> Legacy<'a> {
    fn new(served: &'a Served, most: usize, extras: &Extras) -> Self {
        Self { served, most, named_by_id: extras.named_by_id }
    }

    fn name(&self, id: u32, bytes: &[u8]) -> String {
        if self.named_by_id { by_id(id) } else { String::from_utf8_lossy(bytes).into_owned() }
    }

    /// Of the first token of an echoed prompt, which has no probability, of its others, and of the answer. `offset` is how
    /// many characters came before, and then how many are there.
    fn of(&self, first: Option<u32>, (prompt, answer): (&[TokenPiece], &[TokenPiece]), offset: &mut usize) -> Value {
        let (mut texts, mut chosen, mut top, mut offsets) = (vec![], vec![], vec![], vec![]);
        let mut push = |(id, bytes): (u32, &[u8]), probabilities: Option<&Probabilities>| {
            let text = self.name(id, bytes);
            offsets.push(*offset);
            *offset += String::from_utf8_lossy(bytes).chars().count();
            let log_probability = |one: &Probabilities| one.chosen.log_probability.max(-9999.0);
            chosen.push(probabilities.map_or(Value::Null, |one| json!(log_probability(one))));
            top.push(probabilities.map_or(Value::Null, |one| self.top_tokens(one, &text)));
            texts.push(text);
        };
        if let Some(first) = first {
            let bytes = self.served.tokenizer.piece_after(None, first, Control::Show).unwrap_or_default();
            push((first, bytes), None);
        }
        for token in prompt.iter().chain(answer) {
            push((token.id, &token.bytes), Some(&token.probabilities));
        }
        json!({"tokens": texts, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets})
    }

    /// The likeliest tokens, and the one that was taken, whose text is `taken`.
    fn top_tokens(&self, probabilities: &Probabilities, taken: &str) -> Value {
        let mut map = Map::new();
        let chosen = &probabilities.chosen;
        map.insert(taken.into(), json!(chosen.log_probability.max(-9999.0)));
        let top = probabilities.top_tokens.iter().take(self.most);
        for other in top.filter(|other| other.token != chosen.token) {
            let bytes = self.served.tokenizer.piece(other.token, Control::Show).unwrap_or_default();
            // Two tokens may have one text: the one that was taken counts, and the likelier one of others.
            let text = self.name(other.token, bytes);
            map.entry(text).or_insert(json!(other.log_probability.max(-9999.0)));
        }
        Value::Object(map)
    }
}

/// Pieces as `text_completion` chunks.
struct TextForm {
    head: Value,
    served: Arc<Served>,
    wanted: Wanted,
    /// Of each answer.
    untold: Vec<Untold>,
    ends: Vec<Option<End>>,
}

/// Tokens of an answer whose probabilities have not been sent yet.
#[derive(Default)]
struct Untold {
    /// The first token of an echoed prompt.
    first: Option<u32>,
    /// Its others.
    prompt: Vec<TokenPiece>,
    answer: Vec<TokenPiece>,
    /// How many characters were sent with their tokens.
    offset: usize,
    /// How many ids were sent.
    ids: usize,
}

impl TextForm {
    fn chunk(&mut self, index: usize, (text, ids): (&str, &[u32]), finish: Option<&End>) -> Message {
        let untold = &mut self.untold[index];
        let (first, prompt) = (untold.first.take(), std::mem::take(&mut untold.prompt));
        let parts = (&prompt[..], &std::mem::take(&mut untold.answer)[..]);
        let extras = &self.wanted.extras;
        let legacy = |most| Legacy::new(&self.served, most, extras).of(first, parts, &mut untold.offset);
        let logprobs = self.wanted.ask.top_tokens.map(legacy);
        let mut chunk = self.head.clone();
        chunk["choices"] = json!([{
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish.map(|end| finish_reason(end, 0)),
            "stop_reason": finish.map_or(Value::Null, stop_reason),
        }]);
        if extras.token_ids && (finish.is_some() || !ids.is_empty()) {
            let choice = &mut chunk["choices"][0];
            // Once: with the first tokens of the answer.
            if untold.ids == 0 {
                choice["prompt_token_ids"] = json!(self.wanted.prompts[index / self.wanted.answers].tokens);
            }
            choice["token_ids"] = json!(ids);
            untold.ids += ids.len();
        }
        self.wanted.reports.add_to(index, &mut chunk);
        Message::plain(chunk)
    }
}

impl StreamFormat for TextForm {
    fn begin(&mut self) -> Vec<Message> {
        if self.wanted.echo == Echo::Nothing {
            return Vec::new();
        }
        let answers = self.untold.len();
        let one = |index: usize| {
            let Prompt { text, tokens } = self.wanted.prompts[index / self.wanted.answers].clone();
            let message = self.chunk(index, (&text, &[]), None);
            // An echoed prompt's probabilities are known when its text has been sent already: they come with the first token.
            self.untold[index].first = tokens.first().copied();
            message
        };
        (0..answers).map(one).collect()
    }

    fn piece(&mut self, index: usize, piece: Piece) -> Vec<Message> {
        match piece {
            Piece::Token(token) => {
                self.untold[index].answer.push(token);
                Vec::new()
            }
            Piece::Part(Part::Content(text), ids) => vec![self.chunk(index, (&text, &ids), None)],
            Piece::OfPrompt(token) => {
                self.untold[index].prompt.push(token);
                Vec::new()
            }
            Piece::Progress(how_far) => {
                let told = self.wanted.reports.note(index, how_far);
                let with = |progress| {
                    let mut message = self.chunk(index, ("", &[]), None);
                    message.data["prompt_progress"] = progress;
                    message
                };
                told.map(with).into_iter().collect()
            }
            Piece::Hidden(_) | Piece::Part(Part::Reasoning(_) | Part::Call { .. } | Part::Arguments { .. }, _) => {
                Vec::new()
            }
            Piece::Done(end) => {
                let mut last = self.chunk(index, ("", &end.tokens[self.untold[index].ids..]), Some(&end));
                last.data["timings"] = timings(&end.timings, end.queued);
                self.ends[index] = Some(*end);
                vec![last]
            }
            Piece::Failed(error) => vec![self.error(&error)],
        }
    }

    fn end(&mut self) -> Vec<Message> {
        if !self.wanted.with_usage {
            return Vec::new();
        }
        let mut chunk = self.head.clone();
        chunk["choices"] = json!([]);
        let of_prompts = self.ends.chunks(self.wanted.answers);
        let ends: Vec<Vec<End>> = of_prompts.map(|ends| ends.iter().flatten().cloned().collect()).collect();
        chunk["usage"] = self.wanted.usage(&ends);
        vec![Message::plain(chunk)]
    }

    fn error(&mut self, error: &ApiError) -> Message {
        Message::plain(error.body())
    }
}
