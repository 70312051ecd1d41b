//! The one way from requests to their answers, whatever the API: what is asked, what an answer consists of, and how
//! several of one request are begun.

mod answering;

use super::{ApiError, Server, served::Served, slots::SlotRequest, token_rules::TokenRules};
use crate::{
    engine::{Cache, Probabilities, Progress, PromptOutput, Reported, Timings},
    grammar::Stage,
    policy::BoundOverrides,
    sampling::SamplerParams,
    scheduler::Finish,
    speculation,
    text::{AnswerReader, Part},
};
use answering::{Answering, CountedPrompt};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};

/// What is asked for: one answer to one prompt.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Its text, if it is a conversation whose next turn will repeat it.
    pub text: Option<String>,
    /// How tokens are chosen.
    pub params: SamplerParams,
    /// Most tokens to generate; none: to the end of the context.
    pub max_tokens: Option<usize>,
    /// Tokens before which the answer cannot end.
    pub min_tokens: usize,
    /// Texts that end the answer.
    pub stop_strings: Vec<String>,
    /// Whether the model may end the answer.
    pub end: EndOfAnswer,
    /// Which tokens it may have, which else end it, and which are shown.
    pub rules: TokenRules,
    /// How many likeliest tokens to report with each token.
    pub top_tokens: Option<usize>,
    /// Which probabilities these are.
    pub reported: Reported,
    /// How long tokens may come, counted from the first, once there is a line.
    pub predict: Option<Duration>,
    /// Whether it is told on the way how far the answer is.
    pub progress: bool,
    /// Whether reasoning is left out.
    pub hides_reasoning: bool,
    /// What is wanted of the prompt itself.
    pub score: Option<PromptOutput>,
    /// What the answer has to look like.
    pub stages: Vec<Stage>,
    /// Whether to begin with what is known of the prompt.
    pub cache: Cache,
    /// Which slot.
    pub slot_request: SlotRequest,
    /// When its request was read: the time of a request is one for all its prompts and answers.
    pub asked: Instant,
    /// How long it may take from then on.
    pub patience: Option<Duration>,
    /// Takes the text apart; none: it is all content.
    pub reader: Option<AnswerReader>,
    /// How many tokens the sequence holds.
    pub bound: BoundOverrides,
    /// Who drafts it.
    pub speculation: speculation::DraftOptions,
}

impl GenerateRequest {
    /// When its time is over; where it says nothing it has `most`. One that no clock reaches is none.
    fn deadline(&self, most: Option<Duration>) -> Option<Instant> {
        self.patience.or(most).and_then(|patience| self.asked.checked_add(patience))
    }
}

/// Whether the model may end an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfAnswer {
    /// With a token that ends a generation.
    ByModel,
    /// It goes on until something else ends it.
    Never,
}

/// What an answer consists of, in order. `Done` or `Failed` is the last.
#[derive(Debug, Clone)]
pub enum Piece {
    /// A token whose probability was asked for; its text follows as soon as it is whole.
    Token(TokenPiece),
    /// A token of the prompt whose probability was asked for, from the second one on.
    OfPrompt(TokenPiece),
    /// The hidden state of the prompt.
    Hidden(Vec<f32>),
    /// How far the answer is, if that was asked for: before the part it is told with.
    Progress(HowFar),
    /// A part of the answer, and the tokens that came since the one before it.
    Part(Part, Vec<u32>),
    /// The answer is over.
    Done(Box<End>),
    /// It cannot be had.
    Failed(ApiError),
}

/// How far an answer is.
#[derive(Debug, Clone)]
pub struct HowFar {
    /// As the engine has it.
    pub progress: Progress,
    /// From the request to the slot.
    pub queued: Duration,
}

/// A token of an answer.
#[derive(Debug, Clone)]
pub struct TokenPiece {
    /// Its id.
    pub id: u32,
    /// The bytes it stands for.
    pub bytes: Vec<u8>,
    /// Its probability and the likeliest tokens.
    pub probabilities: Box<Probabilities>,
}

impl TokenPiece {
    /// How many of the first of these tokens only lead to a text: marks and white space that are no part of it. Where it is
    /// not found, none.
    pub fn before(tokens: &[Self], text: &str) -> usize {
        let all: Vec<u8> = tokens.iter().flat_map(|token| token.bytes.iter().copied()).collect();
        let mut places = all.windows(text.len().max(1));
        let Some(begin) = places.rposition(|bytes| bytes == text.as_bytes()) else { return 0 };
        let ends = tokens.iter().scan(0, |end, token| {
            *end += token.bytes.len();
            Some(*end)
        });
        ends.take_while(|end| *end <= begin).count()
    }
}

/// How an answer ended.
#[derive(Debug, Clone)]
pub struct End {
    /// Why.
    pub finish: Finish,
    /// The stop string that ended it.
    pub stop_string: Option<String>,
    /// The token that ended it, if the request had named it.
    pub stop_token: Option<u32>,
    /// Counts and durations.
    pub timings: Timings,
    /// From the request to the slot.
    pub queued: Duration,
    /// The slot that served it.
    pub slot: usize,
    /// Generated tokens, the stop token included.
    pub tokens: Vec<u32>,
}

/// The pieces of answers, each with the number of its answer.
pub type Pieces = mpsc::UnboundedReceiver<(usize, Piece)>;

/// Refuses asks that cannot be answered, whatever else there is to do.
///
/// # Errors
/// What is wrong with the first of them.
pub fn check(served: &Served, asks: &[GenerateRequest]) -> Result<(), ApiError> {
    let (context, vocab) = (served.facts.context, served.facts.vocab);
    if asks.iter().any(|ask| ask.prompt.is_empty()) {
        return Err(ApiError::field("prompt", "no tokens, expected at least one"));
    }
    if let Some(id) = asks.iter().flat_map(|ask| &ask.prompt).find(|id| **id as usize >= vocab) {
        return Err(ApiError::field("prompt", format!("token {id}, expected less than the vocabulary of {vocab}")));
    }
    if let Some(ask) = asks.iter().find(|ask| ask.prompt.len() >= context) {
        return Err(ApiError::too_long(ask.prompt.len(), context));
    }
    for ask in asks {
        ask.bound.within(served.facts.bound, served.facts.layout).map_err(ApiError::bad)?;
    }
    Ok(())
}

/// Begins answers to several prompts of one request: those to the second are numbered on from those to the first. Refused
/// before anything is said if one cannot be answered, or the first cannot be begun.
pub async fn begin_all(
    server: &Arc<Server>,
    served: &Arc<Served>,
    asked: Vec<Vec<GenerateRequest>>,
) -> Result<Pieces, ApiError> {
    asked.iter().try_for_each(|asks| check(served, asks))?;
    let (all, receiver) = mpsc::unbounded_channel();
    let mut number = 0;
    for asks in asked {
        let (first, all) = (number, all.clone());
        number += asks.len();
        let answers = first..number;
        if first == 0 {
            let pieces = begin(server, served, asks).await?;
            tokio::spawn(pass_on(pieces, first, all));
            continue;
        }
        let (server, served) = (server.clone(), served.clone());
        tokio::spawn(async move {
            let begun = tokio::select! {
                begun = begin(&server, &served, asks) => begun,
                // Who has left does not wait for a slot.
                () = all.closed() => return,
            };
            match begun {
                Ok(pieces) => pass_on(pieces, first, all).await,
                Err(error) => answers.for_each(|answer| drop(all.send((answer, Piece::Failed(error.clone()))))),
            }
        });
    }
    Ok(receiver)
}

/// Passes on pieces of answers, numbered from `first` on, as long as somebody listens.
pub async fn pass_on(mut pieces: Pieces, first: usize, all: mpsc::UnboundedSender<(usize, Piece)>) {
    loop {
        let piece = tokio::select! {
            piece = pieces.recv() => piece,
            () = all.closed() => None,
        };
        match piece {
            Some((index, piece)) => drop(all.send((first + index, piece))),
            None => return,
        }
    }
}

/// Begins answers that share a prompt. Refused before anything is said if the first cannot be begun; the others begin
/// when the first has read the prompt, so that they need not.
pub async fn begin(server: &Arc<Server>, served: &Arc<Served>, asks: Vec<GenerateRequest>) -> Result<Pieces, ApiError> {
    check(served, &asks)?;
    let (pieces, receiver) = mpsc::unbounded_channel();
    let mut asks = asks.into_iter().enumerate();
    let Some((_, first)) = asks.next() else { return Ok(receiver) };
    let prompt = CountedPrompt::new(server, served);
    let first = Answering::begin((server, served), (0, first), pieces.clone(), prompt.clone()).await?;
    let (read, is_read) = watch::channel(());
    tokio::spawn(first.run(Some(read)));
    for (index, ask) in asks {
        let (server, served, pieces, mut is_read) = (server.clone(), served.clone(), pieces.clone(), is_read.clone());
        let prompt = prompt.clone();
        tokio::spawn(async move {
            // An error: the first one is over already.
            let _ = is_read.changed().await;
            let begun = tokio::select! {
                begun = Answering::begin((&server, &served), (index, ask), pieces.clone(), prompt) => begun,
                // Who has left does not wait for a slot.
                () = pieces.closed() => return,
            };
            match begun {
                Ok(answering) => answering.run(None).await,
                Err(error) => drop(pieces.send((index, Piece::Failed(error)))),
            }
        });
    }
    Ok(receiver)
}

/// What was asked about several prompts of one request, in their order: as many at once as there are slots, since more would
/// only wait. The first decides whether the request is let in.
pub async fn at_once<T>(
    served: &Served,
    asked: Vec<impl Future<Output = Result<T, ApiError>>>,
) -> Result<Vec<T>, ApiError> {
    stream::iter(asked).buffered(served.slots.count()).try_collect().await
}
