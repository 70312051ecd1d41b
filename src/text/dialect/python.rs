//! Calls as Python writes them: `[name(city="Rome", days=2), …]`. Read whole, one after the other.

use super::{
    ArgumentValue,
    call_form::Writes,
    calls::Progress,
    parts::Parts,
    schema::{Parameter, Tools},
};
use serde_json::{Map, Value};
use std::{iter::Peekable, str::Chars};

/// Writes arguments by name. JSON is read here as well as what Python writes.
pub(super) struct Literals;

impl Writes for Literals {
    fn begin(&self, name: &str) -> Option<String> {
        (!name.is_empty() && name.chars().all(is_name)).then(|| format!("{name}="))
    }

    fn value(&self, parameter: &Parameter<'_>) -> (ArgumentValue, &'static str) {
        (ArgumentValue::Json(parameter.schema()), "")
    }
}

/// Reads such a list after the marker that begins it.
#[derive(Debug, Clone, Default)]
pub(super) struct Python {
    at: At,
    done: usize,
}

#[derive(Debug, Clone, Default)]
enum At {
    #[default]
    Open,
    Item(Item),
    After,
}

/// One call as far as it was read.
#[derive(Debug, Clone, Default)]
struct Item {
    text: String,
    depth: usize,
    quote: Option<char>,
    escaped: bool,
}

/// Values nest so deep at most.
const DEEPEST: usize = 64;

impl Python {
    pub(super) fn push(&mut self, c: char, tools: &Tools, parts: &mut Parts) -> Progress {
        match &mut self.at {
            At::Open if c == '[' => self.at = At::Item(Item::default()),
            At::Open if c.is_whitespace() => {}
            At::Open => return Progress::Not,
            At::Item(item) if item.text.is_empty() && c.is_whitespace() => {}
            At::Item(item) if item.text.is_empty() && c == ']' && self.done > 0 => return Progress::End,
            At::Item(item) => match item.push(c) {
                None => return Progress::Not,
                Some(false) => return Progress::Held,
                Some(true) => {
                    let Some((name, arguments)) = call(&item.text, tools) else { return Progress::Not };
                    parts.call(name, None);
                    parts.arguments(&Value::Object(arguments).to_string());
                    self.done += 1;
                    self.at = At::After;
                }
            },
            At::After if c == ',' => self.at = At::Item(Item::default()),
            At::After if c == ']' => return Progress::End,
            At::After if c.is_whitespace() => {}
            At::After => return Progress::Rest(c.into()),
        }
        if self.done > 0 { Progress::Taken } else { Progress::Held }
    }
}

impl Item {
    /// Takes a character; true if the call is complete with it, `None` if this is none.
    fn push(&mut self, c: char) -> Option<bool> {
        if self.depth == 0 && !(c == '(' && !self.text.is_empty() || is_name(c)) {
            return None;
        }
        self.text.push(c);
        match self.quote {
            Some(_) if self.escaped => self.escaped = false,
            Some(_) if c == '\\' => self.escaped = true,
            Some(quote) if c == quote => self.quote = None,
            Some(_) => {}
            None => match c {
                '"' | '\'' => self.quote = Some(c),
                '(' | '[' | '{' => self.depth += 1,
                ')' | ']' | '}' => self.depth -= 1,
                _ => {}
            },
        }
        Some(self.depth == 0 && c == ')')
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// The name and the arguments of a call, which ends with the text.
fn call(text: &str, tools: &Tools) -> Option<(String, Map<String, Value>)> {
    let (name, rest) = text.split_once('(')?;
    let mut reader = Reader { rest: rest.chars().peekable() };
    let mut arguments = Map::new();
    while reader.next_is(')').is_none() {
        let argument = match reader.keyword() {
            Some(argument) => argument,
            None => tools.find(name)?.parameter(arguments.len())?.to_owned(),
        };
        arguments.insert(argument, reader.value(0)?);
        if reader.next_is(',').is_none() {
            reader.next_is(')')?;
            break;
        }
    }
    reader.rest.peek().is_none().then(|| (name.to_owned(), arguments))
}

#[derive(Clone)]
struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
}

impl Reader<'_> {
    /// The next character that is no space.
    fn peek(&mut self) -> Option<char> {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    /// Takes that character if it is this one.
    fn next_is(&mut self, c: char) -> Option<()> {
        (self.peek() == Some(c)).then(|| self.rest.next()).map(drop)
    }

    fn word(&mut self) -> String {
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(|&c| is_name(c) || c == '+') {
            word.push(c);
        }
        word
    }

    /// `name=`, which is taken, or nothing is.
    fn keyword(&mut self) -> Option<String> {
        let mut ahead = self.clone();
        ahead.peek();
        let word = Some(ahead.word()).filter(|word| !word.is_empty())?;
        ahead.next_is('=')?;
        *self = ahead;
        Some(word)
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEEPEST {
            return None;
        }
        match self.peek()? {
            '"' | '\'' => self.string().map(Value::String),
            '[' => self.list(']', depth).map(|(items, _)| Value::Array(items)),
            '(' => match self.list(')', depth)? {
                (mut items, false) if items.len() == 1 => items.pop(),
                (items, _) => Some(Value::Array(items)),
            },
            '{' => self.dict(depth).map(Value::Object),
            _ => plain(&self.word()),
        }
    }

    /// Values up to the bracket `close`, and whether a comma came after the last.
    fn list(&mut self, close: char, depth: usize) -> Option<(Vec<Value>, bool)> {
        self.rest.next();
        let (mut items, mut comma) = (Vec::new(), false);
        while self.next_is(close).is_none() {
            if !items.is_empty() && !comma {
                return None;
            }
            items.push(self.value(depth + 1)?);
            comma = self.next_is(',').is_some();
        }
        Some((items, comma))
    }

    fn dict(&mut self, depth: usize) -> Option<Map<String, Value>> {
        self.rest.next();
        let (mut items, mut comma) = (Map::new(), true);
        while self.next_is('}').is_none() {
            if !comma {
                return None;
            }
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                Value::Number(key) => key.to_string(),
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
            };
            self.next_is(':')?;
            items.insert(key, self.value(depth + 1)?);
            comma = self.next_is(',').is_some();
        }
        Some(items)
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.next()?;
        let mut text = String::new();
        loop {
            match self.rest.next()? {
                c if c == quote => return Some(text),
                '\\' => self.escape(&mut text)?,
                c => text.push(c),
            }
        }
    }

    /// What stands after a backslash.
    fn escape(&mut self, text: &mut String) -> Option<()> {
        let c = self.rest.next()?;
        let code = match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            '0' => '\0',
            '\n' => return Some(()),
            '\\' | '\'' | '"' | '/' => c,
            'x' => char::from_u32(self.code(2)?)?,
            'U' => char::from_u32(self.code(8)?)?,
            'u' => match self.code(4)? {
                high @ 0xD800..=0xDBFF => {
                    let low = (self.rest.next()? == '\\' && self.rest.next()? == 'u').then(|| self.code(4))??;
                    char::from_u32(0x10000 + ((high - 0xD800) << 10) + low.checked_sub(0xDC00)?)?
                }
                code => char::from_u32(code)?,
            },
            // Python keeps a backslash that escapes nothing.
            _ => {
                text.push('\\');
                c
            }
        };
        text.push(code);
        Some(())
    }

    fn code(&mut self, digits: usize) -> Option<u32> {
        (0..digits).try_fold(0, |code, _| Some(code << 4 | self.rest.next()?.to_digit(16)?))
    }
}

fn plain(word: &str) -> Option<Value> {
    match word {
        "True" | "true" => Some(Value::Bool(true)),
        "False" | "false" => Some(Value::Bool(false)),
        "None" | "null" => Some(Value::Null),
        _ => {
            let number = word.replace('_', "");
            let exact = serde_json::from_str::<Value>(&number).ok().filter(Value::is_number);
            let begins = number.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
            exact.or_else(|| number.parse::<f64>().ok().filter(|value| begins && value.is_finite()).map(Value::from))
        }
    }
}

/// A call as it is read by this module; arguments that are no object stand as they are.
pub(super) fn written(name: &str, arguments: &Value) -> String {
    let arguments = match arguments {
        Value::Object(arguments) => {
            let arguments = arguments.iter().map(|(name, value)| format!("{name}={}", literal(value)));
            arguments.collect::<Vec<_>>().join(", ")
        }
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => arguments.to_string(),
    };
    format!("{name}({arguments})")
}

fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(_) | Value::String(_) => value.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Object(items) => {
            let items = items.iter().map(|(key, item)| format!("{}: {}", Value::from(key.as_str()), literal(item)));
            format!("{{{}}}", items.collect::<Vec<_>>().join(", "))
        }
    }
}
