//! A conversation over the engine: messages, the prompt they render to, turns, and going back. A second turn reads
//! its new tokens only, an `/undo` or `/regen` those since the engine's last snapshot.

mod answer;
mod saved;
mod saying;
mod transcript;

pub use answer::{Answer, AnswerText, Ends, answer};
pub use transcript::{Replied, Transcript};

use crate::{
    engine::{Constraint, ConversationId, EngineHandle, Failure, Request},
    grammar::{AnswerConstraint, Stage, Vocabulary},
    policy::BoundOverrides,
    sampling::{Sampler, SamplerParams},
    text::{ChatTemplate, Conversation, Dialect, ReasoningMode, Tokenizer},
};
pub use saying::{Said, Saying};
use serde_json::{Map, Value, json};
use std::sync::{Arc, atomic::AtomicBool};

/// How a conversation is held.
#[derive(Debug, Clone)]
pub struct ChatSettings {
    /// How tokens are chosen.
    pub params: SamplerParams,
    /// Most tokens of an answer.
    pub max_tokens: usize,
    /// Most tokens of the reasoning before it.
    pub reasoning_budget: usize,
    /// Texts that end an answer.
    pub stop_strings: Vec<String>,
    /// More variables for the template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
}

impl Default for ChatSettings {
    fn default() -> Self {
        let (params, stop_strings) = (SamplerParams::default(), Vec::new());
        let (max_tokens, reasoning_budget) = (usize::MAX, usize::MAX);
        Self { params, max_tokens, reasoning_budget, stop_strings, template_variables: Map::new() }
    }
}

/// A conversation with one model.
#[derive(Debug)]
pub struct Chat {
    engine: EngineHandle,
    conversation: ConversationId,
    tokenizer: Arc<Tokenizer>,
    /// Its tokens for constraints, once there was one.
    vocabulary: Option<Vocabulary>,
    template: ChatTemplate,
    /// How the model writes reasoning.
    dialect: Dialect,
    /// Settings for the next answer.
    pub settings: ChatSettings,
    /// How many tokens the conversation holds from the next answer on, where it says other than is usual there.
    pub bound: BoundOverrides,
    messages: Vec<Value>,
    known: Transcript,
}

/// A conversation without an engine.
#[derive(Debug, Clone)]
pub struct Talk {
    settings: ChatSettings,
    messages: Vec<Value>,
    known: Transcript,
}

impl Chat {
    /// Opens a conversation.
    pub fn new(
        engine: EngineHandle,
        tokenizer: Arc<Tokenizer>,
        template: ChatTemplate,
        settings: ChatSettings,
    ) -> Result<Self, String> {
        let conversation = engine.open()?;
        let dialect = Dialect::of_template(template.source());
        let (messages, known, bound) = (Vec::new(), Transcript::default(), BoundOverrides::default());
        let vocabulary = None;
        Ok(Self { engine, conversation, tokenizer, vocabulary, template, dialect, settings, bound, messages, known })
    }

    /// What to go on with over another engine of the same model.
    pub fn talk(&self) -> Talk {
        Talk { settings: self.settings.clone(), messages: self.messages.clone(), known: self.known.clone() }
    }

    /// Goes on with a conversation that was held over another engine. Nothing of it was read here: the next answer does.
    pub fn resume(&mut self, talk: Talk) {
        (self.settings, self.messages, self.known) = (talk.settings, talk.messages, talk.known);
    }

    /// The sequence that it is to the engine.
    pub fn conversation(&self) -> ConversationId {
        self.conversation
    }

    /// The engine behind.
    pub fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// All messages, the system message first.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|message| message["role"] == "system")?["content"].as_str()
    }

    /// Sets or, with an empty text, removes the system message.
    pub fn set_system(&mut self, text: &str) {
        if self.system().is_some() {
            self.messages.remove(0);
        }
        if !text.is_empty() {
            self.messages.insert(0, json!({"role": "system", "content": text}));
        }
    }

    /// Forgets all messages but the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|message| message["role"] == "system");
    }

    /// Takes back the last question and its answer; the question's text, if there was one.
    pub fn undo(&mut self) -> Option<String> {
        let last = self.messages.iter().rposition(|message| message["role"] == "user")?;
        let question = self.messages[last]["content"].as_str().unwrap_or_default().to_string();
        self.messages.truncate(last);
        Some(question)
    }

    /// Asks, and keeps question and answer, its reasoning apart as `reasoning_content`. If nothing could be answered, the
    /// question is not kept either.
    pub fn ask(
        &mut self,
        text: &str,
        interrupted: &AtomicBool,
        sink: &mut dyn FnMut(Said<'_>),
    ) -> Result<Answer, Failure> {
        self.messages.push(json!({"role": "user", "content": text}));
        let answer = self.answer(interrupted, sink);
        if answer.is_err() {
            self.messages.pop();
        }
        answer
    }

    /// Asks question `number`, counted from 1, in other words, and forgets what followed it. If nothing could be
    /// answered, everything stays as it was.
    pub fn edit(
        &mut self,
        number: usize,
        text: &str,
        interrupted: &AtomicBool,
        sink: &mut dyn FnMut(Said<'_>),
    ) -> Result<Answer, Failure> {
        let is_question = |(at, message): (usize, &Value)| (message["role"] == "user").then_some(at);
        let mut questions = self.messages.iter().enumerate().filter_map(is_question);
        let count = questions.clone().count();
        if count == 0 {
            return Err("there is no question to ask in other words".into());
        }
        let at = number.checked_sub(1).and_then(|before| questions.nth(before));
        let at = at.ok_or_else(|| format!("there is no question {number}, expected 1 to {count}"))?;
        let old = self.messages.split_off(at);
        let answer = self.ask(text, interrupted, sink);
        if answer.is_err() {
            self.messages.extend(old);
        }
        answer
    }

    /// Answers the last question again.
    pub fn regenerate(&mut self, interrupted: &AtomicBool, sink: &mut dyn FnMut(Said<'_>)) -> Result<Answer, Failure> {
        let last = self.messages.iter().rposition(|message| message["role"] == "user");
        let last = last.ok_or("there is no question to answer again")?;
        let old = self.messages.split_off(last + 1);
        let answer = self.answer(interrupted, sink);
        if answer.is_err() {
            self.messages.extend(old);
        }
        answer
    }

    fn answer(&mut self, interrupted: &AtomicBool, sink: &mut dyn FnMut(Said<'_>)) -> Result<Answer, Failure> {
        let (text, prompt) = self.prompt()?;
        let sampler = sampler(&self.settings.params, &self.tokenizer)?;
        let request = Request {
            conversation: Some(self.conversation),
            max_tokens: self.settings.max_tokens,
            stop_tokens: self.tokenizer.eog().to_vec(),
            bound: self.bound,
            constraint: self.constraint(&text)?,
            ..Request::new(prompt.clone(), sampler)
        };
        let mut saying = Saying::new(self.dialect.reader(&text, &[], ReasoningMode::Split), sink);
        let ends = Ends {
            stop_strings: self.settings.stop_strings.clone(),
            shown: self.dialect.marker_ids(&self.tokenizer),
            ..Ends::default()
        };
        let mut say = |text: &str| saying.push(text);
        let answer = answer(&self.engine, &self.tokenizer, request, ends, interrupted, &mut say)?;
        self.messages.push(saying.finish());
        self.remember(text, prompt, &answer);
        Ok(answer)
    }

    /// What bounds the reasoning that an answer to a prompt begins with.
    fn constraint(&mut self, prompt: &str) -> Result<Option<Box<dyn Constraint>>, String> {
        let budget = Some(self.settings.reasoning_budget).filter(|budget| *budget < usize::MAX);
        let Some(stage) = budget.and_then(|budget| Stage::reasoning(&self.dialect, prompt, Some(budget))) else {
            return Ok(None);
        };
        let vocabulary = match &self.vocabulary {
            Some(vocabulary) => vocabulary,
            None => self.vocabulary.insert(Vocabulary::new(self.tokenizer.clone())?),
        };
        Ok(Some(Box::new(AnswerConstraint::new(vocabulary, vec![stage], self.tokenizer.eog()))))
    }

    /// What has now been read and generated.
    fn remember(&mut self, text: String, prompt: Vec<u32>, answer: &Answer) {
        let covered = &answer.text[..answer.covered];
        let reply = Replied { text: covered, tokens: generated(&answer.ids, &self.tokenizer) };
        self.known.remember((text, prompt), &reply);
    }

    /// The text and tokens of the messages, ready for an answer.
    fn prompt(&self) -> Result<(String, Vec<u32>), String> {
        let messages = Value::Array(self.dialect.messages(&self.messages)?);
        let variables = self.settings.template_variables.clone();
        let text = render(&self.template, &self.tokenizer, Conversation { variables, ..Conversation::new(&messages) })?;
        let ids = self.known.encode(&self.tokenizer, &text);
        Ok((text, ids))
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        self.engine.close(self.conversation);
    }
}

/// The text of a conversation, with the BOS and EOS tokens of this tokenizer.
pub fn render(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: Conversation<'_>,
) -> Result<String, String> {
    let roles = tokenizer.roles();
    let text_of = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id).ok()).unwrap_or_default();
    let (bos_token, eos_token) = (text_of(roles.bos), text_of(roles.eos));
    template.render(&Conversation { bos_token, eos_token, ..conversation }).map_err(|error| error.to_string())
}

/// Generated tokens that belong to the text. A stop token is left out: the template writes it, or something else.
pub fn generated<'a>(ids: &'a [u32], tokenizer: &Tokenizer) -> &'a [u32] {
    match ids.split_last() {
        Some((last, rest)) if tokenizer.is_eog(*last) => rest,
        _ => ids,
    }
}

/// A sampler, with its DRY sequence breakers as this tokenizer can write them.
pub fn sampler(params: &SamplerParams, tokenizer: &Tokenizer) -> Result<Sampler, String> {
    // How many breakers there may be is checked before they are looked for.
    params.validate().map_err(|error| error.to_string())?;
    let breakers = if params.wants_dry() { tokenizer.spellings(&params.dry_sequence_breakers) } else { Vec::new() };
    Sampler::new(params.clone(), tokenizer.vocab(), &breakers).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{
        Bos, Special,
        tokenizer::tests::{build, small_bpe},
    };

    /// A token that contains a breaker ends a repetition, and is not penalised itself.
    #[test]
    fn a_repetition_ends_with_any_token_that_contains_a_breaker() {
        let tokenizer = build(&small_bpe());
        let ids = tokenizer.encode("the and", Special::Literal, Bos::Omit);
        let [_, breaker, other] = ids[..] else { panic!("{ids:?}") };
        let params = SamplerParams {
            dry_multiplier: 10.0,
            dry_allowed_length: 1,
            dry_sequence_breakers: vec!["h".into()],
            ..SamplerParams::greedy()
        };
        let chosen = |history: &[u32], likeliest: u32| {
            let mut sampler = sampler(&params, &tokenizer).unwrap();
            history.iter().for_each(|token| sampler.accept(*token));
            let mut logits = vec![0.0; tokenizer.vocab()];
            logits[likeliest as usize] = 5.0;
            sampler.sample(&mut logits).unwrap()
        };
        let last = tokenizer.encode("!", Special::Literal, Bos::Omit)[0];
        assert_eq!(chosen(&[other, breaker, other], breaker), breaker, "it may follow again");
        assert_eq!(chosen(&[breaker, other, last, breaker], other), other, "nothing goes on behind it");
        assert_ne!(chosen(&[other, last, breaker, other], last), last, "a repetition is penalised");
    }
}
