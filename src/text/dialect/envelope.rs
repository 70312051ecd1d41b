//! Calls as JSON objects: `{"name": …, "arguments": {…}}`, one or a list of them.

use super::{
    arguments::{Arguments, Taken},
    calls::Progress,
    form::Form,
    header::is_name,
    json::{JsonExtent, Place},
    parts::Parts,
    schema::Tools,
};
use serde_json::Value;

/// Reads such objects after the marker that begins them.
#[derive(Debug, Clone)]
pub(super) struct Envelope {
    form: Form,
    at: At,
    list: bool,
    /// Objects read.
    done: usize,
    item: Item,
}

/// What is known of the object that is being read.
#[derive(Debug, Clone, Default)]
struct Item {
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before what has to be told first.
    arguments: Option<String>,
    /// The call was told already.
    told: bool,
}

#[derive(Debug, Clone)]
enum At {
    Open,
    Item,
    Key,
    KeyText(String, JsonExtent),
    Colon(Key),
    Value(Key),
    ValueText(Key, String, JsonExtent),
    Arguments(Arguments),
    Next,
    ItemEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Name,
    Id,
    Arguments,
    Type,
    Other,
}

impl Envelope {
    pub(super) fn new(form: Form) -> Envelope {
        Envelope { form, at: At::Open, list: false, done: 0, item: Item::default() }
    }

    pub(super) fn push(&mut self, c: char, tools: &Tools, parts: &mut Parts) -> Progress {
        match std::mem::replace(&mut self.at, At::Open) {
            At::Arguments(mut arguments) => match arguments.push(c, parts) {
                Taken::Inside => self.go(At::Arguments(arguments)),
                Taken::Last => self.go(At::Next),
                Taken::Marker => Progress::End,
                Taken::After => {
                    self.at = At::Next;
                    self.push(c, tools, parts)
                }
            },
            At::KeyText(text, extent) => self.key_text(c, text, extent),
            At::ValueText(key, text, extent) => self.value_text(c, (key, text, extent), tools, parts),
            at if c.is_whitespace() => self.go(at),
            At::Open => match c {
                '[' if !self.list => {
                    self.list = true;
                    self.go(At::Item)
                }
                '{' => self.go(At::Key),
                _ => Progress::Not,
            },
            At::Item => match c {
                '{' => self.go(At::Key),
                ']' if self.done > 0 => Progress::End,
                _ => Progress::Not,
            },
            At::Key => match c {
                '"' => self.key_text(c, String::new(), JsonExtent::new()),
                '}' => self.close(parts),
                _ => self.wrong(c),
            },
            At::Colon(key) if c == ':' => self.go(At::Value(key)),
            At::Colon(_) => self.wrong(c),
            At::Value(key) => self.value(c, key, tools, parts),
            At::Next => match c {
                ',' => self.go(At::Key),
                '}' => self.close(parts),
                _ => self.wrong(c),
            },
            At::ItemEnd => match c {
                ',' => self.go(At::Item),
                ']' => Progress::End,
                _ => Progress::Rest(c.into()),
            },
        }
    }

    /// The answer ended here.
    pub(super) fn finish(&mut self, parts: &mut Parts) {
        if let At::Arguments(arguments) = &mut self.at {
            arguments.finish(parts);
        }
    }

    fn go(&mut self, at: At) -> Progress {
        let between = self.done > 0 && matches!(at, At::Item | At::ItemEnd);
        self.at = at;
        if self.item.told || between { Progress::Taken } else { Progress::Held }
    }

    /// Where no JSON can go on: after a call was told, it ends here.
    fn wrong(&self, c: char) -> Progress {
        if self.item.told { Progress::Rest(c.into()) } else { Progress::Not }
    }

    fn key_text(&mut self, c: char, mut text: String, mut extent: JsonExtent) -> Progress {
        text.push(c);
        if extent.push(c) != Place::Last {
            return self.go(At::KeyText(text, extent));
        }
        let key = match serde_json::from_str::<String>(&text).as_deref() {
            Ok("name") => Key::Name,
            Ok("id") => Key::Id,
            Ok("arguments" | "parameters") => Key::Arguments,
            Ok("type") => Key::Type,
            // Without a marker an object is no call as soon as it holds something else.
            Ok(_) if self.form != Form::Bare || self.item.told => Key::Other,
            Ok(_) | Err(_) if self.item.told => return Progress::Rest(text),
            Ok(_) | Err(_) => return Progress::Not,
        };
        self.go(At::Colon(key))
    }

    /// The first character of a value.
    fn value(&mut self, c: char, key: Key, tools: &Tools, parts: &mut Parts) -> Progress {
        // A list of Mistral has the id after the arguments, and the id is told first.
        let waits = matches!(self.form, Form::Mistral { .. }) && self.item.id.is_none();
        let known = self.item.name.is_some() && !waits && !self.item.told;
        if !(key == Key::Arguments && c == '{' && known) {
            return self.value_text(c, (key, String::new(), JsonExtent::new()), tools, parts);
        }
        self.tell(parts);
        let mut arguments = Arguments::new(self.form.broken_ends());
        arguments.push(c, parts);
        self.go(At::Arguments(arguments))
    }

    fn value_text(
        &mut self,
        c: char,
        (key, mut text, mut extent): (Key, String, JsonExtent),
        tools: &Tools,
        parts: &mut Parts,
    ) -> Progress {
        match extent.push(c) {
            Place::Inside => {
                text.push(c);
                self.go(At::ValueText(key, text, extent))
            }
            Place::Last => {
                text.push(c);
                if self.settle(key, text, tools) { self.go(At::Next) } else { Progress::Not }
            }
            Place::After => {
                if !self.settle(key, text, tools) {
                    return Progress::Not;
                }
                self.at = At::Next;
                self.push(c, tools, parts)
            }
            Place::Bad if self.item.told => Progress::Rest(text + c.encode_utf8(&mut [0; 4])),
            Place::Bad => Progress::Not,
        }
    }

    /// Keeps a value; false if with it this is no call.
    fn settle(&mut self, key: Key, text: String, tools: &Tools) -> bool {
        match key {
            _ if self.item.told => true,
            Key::Name => {
                let name = serde_json::from_str::<String>(&text).ok().filter(|name| is_name(name));
                self.item.name = name.filter(|name| self.form != Form::Bare || tools.find(name).is_some());
                self.item.name.is_some()
            }
            Key::Id => {
                self.item.id = serde_json::from_str::<String>(&text).ok().or(Some(text));
                true
            }
            Key::Arguments => {
                self.item.arguments = Some(plain(text));
                true
            }
            Key::Type | Key::Other => true,
        }
    }

    fn tell(&mut self, parts: &mut Parts) {
        let Item { name, id, told, .. } = &mut self.item;
        parts.call(name.take().expect("told when the name is known"), id.take());
        *told = true;
    }

    /// The object's closing brace.
    fn close(&mut self, parts: &mut Parts) -> Progress {
        if !self.item.told {
            let complete = self.item.arguments.is_some() || self.form != Form::Bare;
            if self.item.name.is_none() || !complete {
                return Progress::Not;
            }
            let arguments = self.item.arguments.take();
            self.tell(parts);
            parts.arguments(arguments.as_deref().unwrap_or("{}"));
        }
        self.item = Item::default();
        self.done += 1;
        if self.list { self.go(At::ItemEnd) } else { Progress::End }
    }
}

/// Arguments that are an object: models write them as a string that holds one at times, or `null` for none.
fn plain(text: String) -> String {
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Null) => "{}".into(),
        Ok(Value::String(inner)) => match serde_json::from_str::<Value>(&inner) {
            Ok(Value::Object(_)) => inner,
            Ok(_) | Err(_) => text,
        },
        Ok(_) | Err(_) => text,
    }
}
