//! `/completion`: llama.cpp's own form of an answer.

use crate::{
    engine::Reported,
    sampling::TokenProbability,
    scheduler::Finish,
    server::{
        ApiError, Body, Caller, Fields, Server,
        fields::wrong,
        generate::{self, End, EndOfAnswer, GenerateRequest, Piece, TokenPiece},
        openai::{
            completions::{MOST_PROMPTS, prompts},
            timings,
        },
        options,
        reports::Reports,
        served::Served,
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
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// Goes on with a prompt: a text, tokens, or a mix of both in a list.
pub async fn completion(
    State(server): State<Arc<Server>>,
    caller: Caller,
    Body(body): Body,
) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    respond((&server, &served), &fields, caller, &|| all(&fields, &served)).await
}

/// Writes what stands between two texts; the options are those of `/completion`.
pub async fn infill(State(server): State<Arc<Server>>, caller: Caller, Body(body): Body) -> Result<Response, ApiError> {
    let fields = Fields::of(&body)?;
    let served = server.model(fields.text("model")?).await?;
    respond((&server, &served), &fields, caller, &|| Ok(vec![super::infill::prompt(&fields, &served)?])).await
}

/// Goes on with these prompts, which are made when the rest of the request is known to be right.
async fn respond(
    (server, served): (&Arc<Server>, &Arc<Served>),
    fields: &Fields<'_>,
    caller: Caller,
    prompts: &(dyn Fn() -> Result<Vec<Vec<u32>>, ApiError> + Sync),
) -> Result<Response, ApiError> {
    let mut ask = options::ask(fields, served, caller.scope)?;
    ask.top_tokens = fields.count(&["n_probs"], (0, options::MOST_LIKELIEST))?.filter(|count| *count > 0);
    let reported = if fields.flag("post_sampling_probs")?.unwrap_or(false) { Reported::Drawn } else { Reported::Model };
    ask.reported = reported;
    // 0 and less are llama.cpp's ways to say that there is no limit.
    let predict = fields.whole(&["t_max_predict_ms"])?.and_then(|ms| u64::try_from(ms).ok());
    ask.predict = predict.filter(|ms| *ms > 0).map(Duration::from_millis);
    if let Some(grammar) = options::grammar(fields)? {
        ask.stages = vec![options::stage(served, &grammar)?];
    }
    let answers = options::answers(fields)?;
    let (reports, streamed) = (Reports::of(fields)?, fields.flag("stream")?.unwrap_or(false));
    ask.progress = streamed && reports.are_wanted();
    let return_tokens = fields.flag("return_tokens")?.unwrap_or(streamed);
    let wanted = fields.texts("response_fields")?;
    let prompts = prompts()?;
    let count = prompts.len() * answers;
    let form = NativeForm {
        served: served.clone(),
        prompts: prompts.clone(),
        return_tokens,
        reported,
        settings: settings(&ask)?,
        wanted,
        answers,
        said: vec![],
        told: vec![0; count],
        reports,
    };
    let one = |(number, prompt)| {
        let mut ask = GenerateRequest { prompt, ..ask.clone() };
        ask.slot_request.arrival = Arrival::of_prompt(number);
        options::several(ask, answers)
    };
    let asks: Vec<Vec<GenerateRequest>> = prompts.into_iter().enumerate().map(one).collect();
    if streamed {
        return Ok(stream::respond(generate::begin_all(server, served, asks).await?, count, form, Wire::Events));
    }
    // Before any is answered.
    asks.iter().try_for_each(|asks| generate::check(served, asks))?;
    let asked = asks.into_iter().map(|asks| whole(server, served, asks)).collect();
    let answered = generate::at_once(served, asked).await?;
    let of_prompts = answered.iter().enumerate().flat_map(|(number, all)| all.iter().map(move |one| (number, one)));
    let reply = |(number, answer): (usize, &Whole)| form.whole(number * answers + answer.index, answer);
    let mut replies: Vec<Value> = of_prompts.map(reply).collect();
    let reply = if count == 1 { replies.swap_remove(0) } else { json!(replies) };
    Ok(Json(reply).into_response())
}

/// What a request came to, as llama.cpp repeats it.
fn settings(ask: &GenerateRequest) -> Result<Value, ApiError> {
    let mut settings = options::settings(&ask.params)?;
    settings["n_predict"] = ask.max_tokens.map_or(json!(-1), |most| json!(most));
    settings["n_probs"] = json!(ask.top_tokens.unwrap_or(0));
    settings["stop"] = json!(ask.stop_strings);
    settings["ignore_eos"] = json!(ask.end == EndOfAnswer::Never);
    settings["post_sampling_probs"] = json!(ask.reported == Reported::Drawn);
    Ok(settings)
}

/// The answers to one prompt.
async fn whole(server: &Arc<Server>, served: &Arc<Served>, asks: Vec<GenerateRequest>) -> Result<Vec<Whole>, ApiError> {
    let answers = asks.len();
    collect(generate::begin(server, served, asks).await?, answers).await
}

/// All prompts of a request.
fn all(fields: &Fields<'_>, served: &Served) -> Result<Vec<Vec<u32>>, ApiError> {
    let given = fields.need("prompt", "a text or a list of tokens")?;
    let is_mixed = |list: &[Value]| list.iter().any(Value::is_number) && list.iter().any(Value::is_string);
    match given.as_array().filter(|list| is_mixed(list)) {
        Some(list) => Ok(vec![mixed(list, served)?]),
        None => prompts((given, MOST_PROMPTS), served, Bos::Add),
    }
}

/// Texts and tokens one after the other.
fn mixed(list: &[Value], served: &Served) -> Result<Vec<u32>, ApiError> {
    let mut tokens = Vec::new();
    for (number, item) in list.iter().enumerate() {
        let bos = if number == 0 { Bos::Add } else { Bos::Omit };
        match item.as_str() {
            Some(text) => tokens.extend(served.tokens(text, Special::Parse, bos)),
            None => {
                let id = item.as_u64().and_then(|id| u32::try_from(id).ok());
                tokens.push(id.ok_or_else(|| wrong(&format!("prompt[{number}]"), item, "a text or a token"))?);
            }
        }
    }
    Ok(tokens)
}

/// Pieces in llama.cpp's own form.
struct NativeForm {
    served: Arc<Served>,
    prompts: Vec<Vec<u32>>,
    return_tokens: bool,
    /// Which probabilities are told.
    reported: Reported,
    /// What the request came to.
    settings: Value,
    /// The fields of a whole reply, and of the last message of a stream, by their paths; none: all of them.
    wanted: Vec<String>,
    /// How many answers there are to each prompt.
    answers: usize,
    /// Tokens whose text has not been sent yet, with their answers.
    said: Vec<(usize, TokenPiece)>,
    /// How many tokens of each streamed answer were sent.
    told: Vec<usize>,
    reports: Reports,
}

impl NativeForm {
    fn probabilities(&self, tokens: &[TokenPiece]) -> Value {
        let (name, list) = match self.reported {
            Reported::Model => ("logprob", "top_logprobs"),
            Reported::Drawn => ("prob", "top_probs"),
        };
        let entry = |id: u32, bytes: &[u8], probability: &TokenProbability| {
            let mut entry = json!({"id": id, "token": String::from_utf8_lossy(bytes), "bytes": bytes});
            entry[name] = match self.reported {
                Reported::Model => json!(probability.log_probability.max(-9999.0)),
                Reported::Drawn => json!(probability.probability),
            };
            entry
        };
        let one = |token: &TokenPiece| {
            let top_tokens = token.probabilities.top_tokens.iter();
            let bytes = |id: u32| self.served.tokenizer.piece(id, Control::Show).unwrap_or_default();
            let top: Vec<Value> = top_tokens.map(|other| entry(other.token, bytes(other.token), other)).collect();
            let mut value = entry(token.id, &token.bytes, &token.probabilities.chosen);
            value[list] = json!(top);
            value
        };
        json!(tokens.iter().map(one).collect::<Vec<_>>())
    }

    /// The tokens of a message, if they are wanted.
    fn tokens(&mut self, index: usize, tokens: &[u32]) -> Value {
        self.told[index] += tokens.len();
        if self.return_tokens { json!(tokens) } else { json!([]) }
    }

    /// The prompt of an answer.
    fn prompt(&self, index: usize) -> &[u32] {
        &self.prompts[index / self.answers]
    }

    /// A message on the way to the end of an answer.
    fn chunk(&mut self, index: usize, text: &str, ids: &[u32]) -> Value {
        let ids = self.tokens(index, ids);
        let mut chunk = json!({
            "index": index,
            "content": text,
            "tokens": ids,
            "stop": false,
            "id_slot": -1,
            "tokens_predicted": self.told[index],
            "tokens_evaluated": self.prompt(index).len(),
        });
        self.reports.add_to(index, &mut chunk);
        chunk
    }

    /// What is said of an answer when it is over.
    fn last(&self, index: usize, end: &End) -> Value {
        let prompt = self.prompt(index);
        let (stop, word) = match (&end.finish, &end.stop_string) {
            (_, Some(word)) => ("word", word.as_str()),
            (Finish::Stop, None) => ("eos", ""),
            (Finish::Length | Finish::Cancelled, None) => ("limit", ""),
        };
        json!({
            "stop": true,
            "id_slot": end.slot,
            "model": self.served.name,
            "tokens_predicted": end.timings.generated_tokens,
            "tokens_evaluated": prompt.len(),
            "tokens_cached": prompt.len() + end.timings.generated_tokens,
            "prompt": self.served.tokenizer.decode(prompt, Control::Show).unwrap_or_default(),
            "generation_settings": self.settings,
            "truncated": false,
            "stop_type": stop,
            "stopping_word": word,
            "has_new_line": false,
            "timings": timings(&end.timings, end.queued),
        })
    }

    fn whole(&self, index: usize, answer: &Whole) -> Value {
        let mut reply = self.last(index, &answer.end);
        reply["index"] = json!(index);
        reply["content"] = json!(answer.content);
        reply["has_new_line"] = json!(answer.content.contains('\n'));
        reply["tokens"] = if self.return_tokens { json!(answer.end.tokens) } else { json!([]) };
        if !answer.tokens.is_empty() {
            reply["completion_probabilities"] = self.probabilities(&answer.tokens);
        }
        self.wanted_of(reply)
    }

    /// The fields of a reply that are wanted, each under its path; those that are not there are left out.
    fn wanted_of(&self, reply: Value) -> Value {
        if self.wanted.is_empty() {
            return reply;
        }
        let at = |path: &String| {
            let mut names = path.split('/');
            let found = names.try_fold(&reply, |value, name| value.as_object()?.get(name));
            found.map(|value| (path.clone(), value.clone()))
        };
        Value::Object(self.wanted.iter().filter_map(at).collect())
    }
}

impl StreamFormat for NativeForm {
    fn piece(&mut self, index: usize, piece: Piece) -> Vec<Message> {
        match piece {
            Piece::Token(token) => {
                self.said.push((index, token));
                Vec::new()
            }
            Piece::Part(Part::Content(text), ids) => {
                let said = self.said.extract_if(.., |(of, _)| *of == index);
                let tokens: Vec<TokenPiece> = said.map(|(_, token)| token).collect();
                let mut chunk = self.chunk(index, &text, &ids);
                if !tokens.is_empty() {
                    chunk["completion_probabilities"] = self.probabilities(&tokens);
                }
                vec![Message::plain(chunk)]
            }
            Piece::Progress(how_far) => {
                let told = self.reports.note(index, how_far);
                let with = |progress| {
                    let mut chunk = self.chunk(index, "", &[]);
                    chunk["prompt_progress"] = progress;
                    Message::plain(chunk)
                };
                told.map(with).into_iter().collect()
            }
            Piece::OfPrompt(_)
            | Piece::Hidden(_)
            | Piece::Part(Part::Reasoning(_) | Part::Call { .. } | Part::Arguments { .. }, _) => Vec::new(),
            Piece::Done(end) => {
                let mut last = self.last(index, &end);
                last["index"] = json!(index);
                last["content"] = json!("");
                last["tokens"] = self.tokens(index, &end.tokens[self.told[index]..]);
                vec![Message::plain(self.wanted_of(last))]
            }
            Piece::Failed(error) => vec![self.error(&error)],
        }
    }

    fn error(&mut self, error: &ApiError) -> Message {
        Message::plain(error.native_body())
    }
}
