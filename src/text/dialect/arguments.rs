//! The JSON text of a call's arguments, passed through as it comes.

use super::{
    json::{JsonExtent, Place},
    parts::Parts,
};
use crate::text::StopMatcher;

/// Passes on the arguments of the call that was told last.
#[derive(Debug, Clone)]
pub(super) struct Arguments {
    extent: JsonExtent,
    begun: bool,
    /// Texts that end arguments which are no JSON.
    ends: Vec<&'static str>,
    /// Watches for those, once something that is no JSON was met.
    broken: Option<StopMatcher>,
}

/// What a character was to the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// One of theirs.
    Inside,
    /// Their last.
    Last,
    /// The last of the marker that ends the call.
    Marker,
    /// Not theirs any more.
    After,
}

impl Arguments {
    pub(super) fn new(ends: Vec<&'static str>) -> Arguments {
        Arguments { extent: JsonExtent::new(), begun: false, ends, broken: None }
    }

    pub(super) fn push(&mut self, c: char, parts: &mut Parts) -> Taken {
        if let Some(broken) = &mut self.broken {
            let matched = broken.push(c.encode_utf8(&mut [0; 4]));
            self.begun |= !matched.text.is_empty();
            parts.arguments(&matched.text);
            if matched.stop.is_none() {
                return Taken::Inside;
            }
            // Nothing at all stands for no arguments.
            if !self.begun {
                parts.arguments("{}");
            }
            return Taken::Marker;
        }
        if !self.begun && c.is_whitespace() {
            return Taken::Inside;
        }
        match self.extent.push(c) {
            Place::After => Taken::After,
            Place::Bad => {
                self.broken = Some(StopMatcher::new(&self.ends));
                self.push(c, parts)
            }
            place @ (Place::Inside | Place::Last) => {
                self.begun = true;
                parts.arguments(c.encode_utf8(&mut [0; 4]));
                if place == Place::Last { Taken::Last } else { Taken::Inside }
            }
        }
    }

    /// The answer ended within the arguments.
    pub(super) fn finish(&mut self, parts: &mut Parts) {
        if let Some(broken) = &mut self.broken {
            parts.arguments(&broken.finish());
        }
    }
}
