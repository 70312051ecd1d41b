//! What can be said of rules before they are translated: which are reached, which can end, which are regular.

use super::{Node, Rules};

/// Most parts of a regular rule with all rules it names: a larger one stays a rule.
const LARGEST: usize = 4000;

/// Deepest nesting of a regular rule with all rules it names.
const DEEPEST: usize = 60;

/// How large a part is with all rules it names, if it is regular: no rule comes back to itself, and no token is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    parts: usize,
    depth: usize,
}

impl Size {
    fn checked(self) -> Option<Size> {
        (self.parts <= LARGEST && self.depth <= DEEPEST).then_some(self)
    }
}

impl Rules {
    /// Refuses rules that no text can fit: a text that follows one would never end.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut ends = vec![false; self.rules.len()];
        loop {
            let mut found = false;
            for (place, rule) in self.rules.iter().enumerate() {
                if !ends[place] && can_end(&rule.node, &ends) {
                    ends[place] = true;
                    found = true;
                }
            }
            if !found {
                break;
            }
        }
        match self.rules.iter().zip(&ends).find(|(_, ends)| !**ends) {
            Some((rule, _)) => Err(format!(
                "grammar: line {}: the rule {} goes on for ever, expected a way to end it",
                rule.line, rule.name
            )),
            None => Ok(()),
        }
    }

    /// The size of every rule that is regular and small enough.
    pub(super) fn regular(&self) -> Vec<Option<Size>> {
        let mut sizes = vec![None; self.rules.len()];
        // A rule is known once all that it names are, so that one which comes back to itself never is.
        loop {
            let mut found = false;
            for (place, rule) in self.rules.iter().enumerate() {
                if sizes[place].is_none()
                    && let Some(size) = size(&rule.node, &sizes)
                {
                    sizes[place] = Some(size);
                    found = true;
                }
            }
            if !found {
                return sizes;
            }
        }
    }
}

fn can_end(node: &Node, ends: &[bool]) -> bool {
    match node {
        Node::Char(_) | Node::Token { .. } => true,
        Node::Sequence(parts) => parts.iter().all(|part| can_end(part, ends)),
        Node::Choice(choices) => choices.iter().any(|choice| can_end(choice, ends)),
        Node::Repeat(part, min, _) => *min == 0 || can_end(part, ends),
        Node::Rule(place) => ends[*place],
    }
}

/// The size of a part if it is regular and small enough.
pub(super) fn size(node: &Node, rules: &[Option<Size>]) -> Option<Size> {
    let size = match node {
        Node::Char(chars) => Size { parts: chars.len(), depth: 1 },
        Node::Sequence(parts) | Node::Choice(parts) => {
            let mut sum = Size { parts: 1, depth: 0 };
            for part in parts {
                let part = size(part, rules)?;
                sum = Size { parts: sum.parts + part.parts, depth: sum.depth.max(part.depth) };
            }
            Size { depth: sum.depth + 1, ..sum }
        }
        Node::Repeat(part, _, _) => {
            let part = size(part, rules)?;
            Size { parts: part.parts + 1, depth: part.depth + 1 }
        }
        Node::Rule(place) => rules[*place]?,
        Node::Token { .. } => return None,
    };
    size.checked()
}
