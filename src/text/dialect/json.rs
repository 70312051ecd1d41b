//! Finds where a JSON value ends, one character at a time.

/// Follows one JSON value. Lenient where a mistake does not change where the value ends: words are not checked, a comma
/// may be last, strings may hold line ends.
#[derive(Debug, Clone)]
pub(super) struct JsonExtent {
    want: Want,
    /// Open brackets; true for those of objects.
    open: Vec<bool>,
}

#[derive(Debug, Clone, Copy)]
enum Want {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    InString { key: bool, escaped: bool },
    InWord,
}

/// Where a character stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the value, or before it.
    Inside,
    /// The value's last character.
    Last,
    /// The value ended before it.
    After,
    /// Where no JSON can go on.
    Bad,
}

impl JsonExtent {
    pub(super) fn new() -> JsonExtent {
        JsonExtent { want: Want::Value, open: Vec::new() }
    }

    pub(super) fn push(&mut self, c: char) -> Place {
        if let Want::InString { key, escaped } = self.want {
            return self.in_string(c, key, escaped);
        }
        if matches!(self.want, Want::InWord) {
            if c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_') {
                return Place::Inside;
            }
            if self.open.is_empty() {
                return Place::After;
            }
            self.want = Want::CommaOrEnd;
        }
        if matches!(c, ' ' | '\n' | '\r' | '\t') {
            return Place::Inside;
        }
        match (self.want, c) {
            (Want::Value | Want::ValueOrEnd, _) if self.begins(c) => Place::Inside,
            (Want::KeyOrEnd, '"') => self.go(Want::InString { key: true, escaped: false }),
            (Want::Colon, ':') => self.go(Want::Value),
            (Want::CommaOrEnd, ',') if self.open.last() == Some(&true) => self.go(Want::KeyOrEnd),
            (Want::CommaOrEnd, ',') => self.go(Want::ValueOrEnd),
            (Want::CommaOrEnd | Want::KeyOrEnd, '}') if self.open.last() == Some(&true) => self.close(),
            (Want::CommaOrEnd | Want::ValueOrEnd, ']') if self.open.last() == Some(&false) => self.close(),
            _ => Place::Bad,
        }
    }

    fn in_string(&mut self, c: char, key: bool, escaped: bool) -> Place {
        match c {
            '"' if !escaped && key => self.go(Want::Colon),
            '"' if !escaped => self.ended(),
            _ => self.go(Want::InString { key, escaped: c == '\\' && !escaped }),
        }
    }

    /// Begins a value if the character can.
    fn begins(&mut self, c: char) -> bool {
        self.want = match c {
            '{' => Want::KeyOrEnd,
            '[' => Want::ValueOrEnd,
            '"' => Want::InString { key: false, escaped: false },
            '-' => Want::InWord,
            _ if c.is_ascii_alphanumeric() => Want::InWord,
            _ => return false,
        };
        if matches!(c, '{' | '[') {
            self.open.push(c == '{');
        }
        true
    }

    fn go(&mut self, want: Want) -> Place {
        self.want = want;
        Place::Inside
    }

    fn close(&mut self) -> Place {
        self.open.pop();
        self.ended()
    }

    /// A value ended; it may have been the outermost.
    fn ended(&mut self) -> Place {
        self.want = Want::CommaOrEnd;
        if self.open.is_empty() { Place::Last } else { Place::Inside }
    }
}

/// Adds a character to the inside of a JSON string.
pub(super) fn escape(c: char, text: &mut String) {
    match c {
        '"' => text.push_str("\\\""),
        '\\' => text.push_str("\\\\"),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        c if c.is_control() && c.is_ascii() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => text.push(c),
    }
}
