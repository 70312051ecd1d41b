//! A conversation in a session file: messages, settings, and the text its tokens stand for.

use super::{Chat, ChatSettings, Transcript};
use crate::{
    memory::Scope,
    sampling::SamplerParams,
    session::{ModelId, Session, VersionGuard, Writer},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{path::Path, sync::Arc};

impl ChatSettings {
    /// All settings as one JSON object: the sampler's, and those of the answer.
    pub fn to_json(&self) -> Map<String, Value> {
        // Through text: an f32 then keeps its short form.
        let params = serde_json::to_string(&self.params).expect("parameters are numbers and texts");
        let mut all: Map<String, Value> = serde_json::from_str(&params).expect("parameters are an object");
        // No bound is -1, as in `-n`.
        let count = |most: usize| if most == usize::MAX { json!(-1) } else { json!(most) };
        all.insert("max_tokens".into(), count(self.max_tokens));
        all.insert("reasoning_budget".into(), count(self.reasoning_budget));
        all.insert("stop".into(), json!(self.stop_strings));
        all.insert("template".into(), Value::Object(self.template_variables.clone()));
        all
    }

    /// The settings of such an object; one line says which is missing or out of range.
    pub fn of_json(mut all: Map<String, Value>) -> Result<Self, String> {
        let count = |name: &str, most: Value| match most {
            most if most == json!(-1) => Ok(usize::MAX),
            most => match most.as_u64() {
                Some(most) => Ok(usize::try_from(most).unwrap_or(usize::MAX)),
                None => Err(format!("{name}, expected a whole number, or -1 for no bound")),
            },
        };
        // Files from before there was a bound have none.
        let reasoning_budget = count("reasoning_budget", all.remove("reasoning_budget").unwrap_or(json!(-1)))?;
        let mut take = |name: &str| all.remove(name).ok_or_else(|| format!("{name} is missing"));
        let max_tokens = count("max_tokens", take("max_tokens")?)?;
        let stop_strings = serde_json::from_value(take("stop")?).map_err(|_| "stop, expected a list of texts")?;
        let Value::Object(template_variables) = take("template")? else {
            return Err("template, expected an object".into());
        };
        let params: SamplerParams = serde_json::from_value(Value::Object(all)).map_err(|error| error.to_string())?;
        params.validate().map_err(|error| error.to_string())?;
        Ok(Self { params, max_tokens, reasoning_budget, stop_strings, template_variables })
    }
}

/// What a session file says of a conversation; its tokens are the session's.
#[derive(Serialize, Deserialize)]
struct Saved {
    messages: Vec<Value>,
    settings: Map<String, Value>,
    text: String,
    marks: Vec<(usize, usize)>,
}

impl Chat {
    /// Writes the conversation, and what the engine keeps of it, to a session file of `model`; the bytes of the file.
    /// Fails in one line.
    pub fn save(&self, path: &Path, model: &ModelId) -> Result<u64, String> {
        self.write(Writer::new(path, model, self.known.ids.clone(), self.saved()?))
    }

    /// The same to a file that is claimed. Refused if another program has changed it.
    pub fn keep(&self, claim: &VersionGuard, model: &ModelId) -> Result<u64, String> {
        self.write(Writer::claimed(claim, model, self.known.ids.clone(), self.saved()?))
    }

    fn write(&self, writer: Writer) -> Result<u64, String> {
        self.engine.save(self.conversation, writer)
    }

    /// What its file says of it.
    fn saved(&self) -> Result<String, String> {
        let (messages, mut settings) = (self.messages.clone(), self.settings.to_json());
        // A file says the largest number for no bound: all who read its version read that, and not all read -1.
        settings.insert("max_tokens".into(), json!(u64::try_from(self.settings.max_tokens).unwrap_or(u64::MAX)));
        // Nor do all know this setting.
        if self.settings.reasoning_budget == usize::MAX {
            settings.remove("reasoning_budget");
        }
        let saved = Saved { messages, settings, text: self.known.text.clone(), marks: self.known.marks.clone() };
        serde_json::to_string(&saved).map_err(|error| error.to_string())
    }

    /// Goes on with the conversation of a session file of `model`: the next question reads its own tokens only, unless the
    /// line that is returned says otherwise. A file that is refused, which one line says, leaves the conversation as it is.
    pub fn load(&mut self, path: &Path, model: &ModelId) -> Result<Option<String>, String> {
        let session = Session::open(path).map_err(|error| error.to_string())?;
        session.check_model(model).map_err(|error| error.to_string())?;
        let fail = |what: String| format!("{}: section conversation: {what}", path.display());
        if session.conversation().is_empty() {
            return Err(fail("there is none, expected the session of a chat".into()));
        }
        let saved: Saved = serde_json::from_str(session.conversation()).map_err(|error| fail(error.to_string()))?;
        check_messages(&saved.messages).map_err(fail)?;
        let settings = ChatSettings::of_json(saved.settings).map_err(fail)?;
        let known = Transcript::new(saved.text, session.tokens().to_vec(), saved.marks).map_err(fail)?;
        // A live sequence would take the room of the one to come; what it has read is kept where there is room for it.
        self.engine.reset(self.conversation)?;
        let note = self.engine.load(Arc::new(session), Scope::default())?;
        (self.messages, self.settings, self.known) = (saved.messages, settings, known);
        Ok(note)
    }
}

/// That each message is an object with a `role` and a `content` of text.
fn check_messages(messages: &[Value]) -> Result<(), String> {
    for (number, message) in messages.iter().enumerate() {
        for field in ["role", "content"] {
            if !message.get(field).is_some_and(Value::is_string) {
                return Err(format!("message {number}: {field} is missing, expected text"));
            }
        }
    }
    Ok(())
}
