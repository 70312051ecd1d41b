//! Sizes written in the tables as arithmetic over named values: `2*heads*head_dim`.

use anyhow::{Result, bail};
use std::collections::HashMap;

/// Named numbers read from a configuration, and what the tables compute from them.
#[derive(Debug, Clone, Default)]
pub(super) struct Values {
    numbers: HashMap<String, f64>,
    origins: HashMap<String, Origin>,
}

/// Which setting a number comes from.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// This one says it.
    Said(String),
    /// None of these do, so that it was computed from others, or is what it is without them.
    Missing { paths: String, default: &'static str },
}

impl Values {
    pub(super) fn set(&mut self, name: &str, value: f64) {
        self.numbers.insert(name.into(), value);
    }

    /// Sets a value and says where it is from, for messages.
    pub(super) fn set_from(&mut self, name: &str, value: f64, origin: Origin) {
        self.set(name, value);
        self.origins.insert(name.into(), origin);
    }

    /// The settings that an expression comes from, with their values. Of an expression that is 0 those are at fault that are
    /// 0 themselves, if there are any.
    pub(super) fn said(&self, expression: &str) -> String {
        let mut said = Vec::new();
        self.collect(expression, &mut said);
        said.join(", ")
    }

    fn collect(&self, expression: &str, said: &mut Vec<String>) {
        let words = expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let names: Vec<&str> = words.filter(|word| self.origins.contains_key(*word)).collect();
        let is_zero = |name: &&&str| self.numbers.get(**name) == Some(&0.0);
        let zeros: Vec<&str> = names.iter().filter(is_zero).copied().collect();
        for name in if zeros.is_empty() { names } else { zeros } {
            let value = self.numbers.get(name).copied().unwrap_or(0.0);
            let one = match self.origins.get(name) {
                Some(Origin::Said(path)) => format!("{path} = {value}"),
                Some(Origin::Missing { paths, default }) => {
                    self.collect(default, said);
                    if paths.is_empty() {
                        continue;
                    }
                    format!("{paths} is missing")
                }
                None => continue,
            };
            if !said.contains(&one) {
                said.push(one);
            }
        }
    }

    /// What is wrong with the value of an expression, after the settings it comes from.
    fn wrong(&self, expression: &str, what: &str) -> String {
        match (self.said(expression), self.origins.get(expression)) {
            (_, Some(Origin::Said(path))) => format!("{path}{what}"),
            (said, Some(Origin::Missing { .. }) | None) if said.is_empty() => format!("{expression}{what}"),
            (said, Some(Origin::Missing { .. }) | None) => format!("{said}: {expression}{what}"),
        }
    }

    /// The value of an expression: names, numbers, `+ - * /`, parentheses, and `floor()` and `ceil()`.
    pub(super) fn evaluate(&self, expression: &str) -> Result<f64> {
        let mut reader = Reader { values: self, rest: expression };
        let value = reader.sum()?;
        if !reader.rest.trim_start().is_empty() {
            bail!("expression {expression}: unexpected {:?}", reader.rest);
        }
        if !value.is_finite() {
            bail!("{}", self.wrong(expression, " is not a finite number"));
        }
        Ok(value)
    }

    /// The value of an expression that counts something.
    pub(super) fn count(&self, expression: &str) -> Result<usize> {
        let value = self.evaluate(expression)?;
        // Above 2^53 an f64 no longer tells neighbouring integers apart.
        if value < 0.0 || value.fract() != 0.0 || value > 9_007_199_254_740_992.0 {
            bail!("{}", self.wrong(expression, &format!(" = {value}, expected a whole number")));
        }
        Ok(value as usize)
    }

    /// The sizes of a list of expressions with commas between them.
    pub(super) fn shape(&self, expressions: &str) -> Result<Vec<usize>> {
        expressions.split(',').map(|expression| self.count(expression.trim())).collect()
    }

    /// True if the expression is not 0; the empty expression holds always.
    pub(super) fn holds(&self, expression: &str) -> Result<bool> {
        Ok(expression.is_empty() || self.evaluate(expression)? != 0.0)
    }
}

struct Reader<'a> {
    values: &'a Values,
    rest: &'a str,
}

impl Reader<'_> {
    fn sum(&mut self) -> Result<f64> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value += self.product()?;
            } else if self.take('-') {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64> {
        let mut value = self.atom()?;
        loop {
            if self.take('*') {
                value *= self.atom()?;
            } else if self.take('/') {
                value /= self.atom()?;
            } else {
                return Ok(value);
            }
        }
    }

    /// What is in the parentheses that must come next.
    fn parenthesis(&mut self) -> Result<f64> {
        let open = self.take('(');
        let value = self.sum()?;
        if !open || !self.take(')') {
            bail!("expression: expected parentheses before {:?}", self.rest);
        }
        Ok(value)
    }

    fn atom(&mut self) -> Result<f64> {
        if self.rest.trim_start().starts_with('(') {
            return self.parenthesis();
        }
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.parse().map_err(|_| anyhow::anyhow!("expression: {word:?} is no number"));
        }
        match word {
            "floor" => return Ok(self.parenthesis()?.floor()),
            "ceil" => return Ok(self.parenthesis()?.ceil()),
            _ => {}
        }
        match self.values.numbers.get(word) {
            Some(&value) => Ok(value),
            None => bail!("expression: unknown value {word:?}"),
        }
    }

    fn take(&mut self, symbol: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_follow_the_usual_precedence() {
        let mut values = Values::default();
        values.set("heads", 4.0);
        values.set("head_dim", 16.0);
        let value = |text: &str| values.evaluate(text).unwrap();
        assert_eq!(value("2*heads*head_dim + 1"), 129.0);
        assert_eq!(value("2 * (heads - 1) / 3"), 2.0);
        assert_eq!(value("1 - heads - 1"), -4.0);
        assert_eq!(value("ceil(floor(heads*2/3)/heads)*5"), 5.0);
        assert_eq!(values.shape("heads*head_dim, 3").unwrap(), [64, 3]);
        assert!(values.holds("").unwrap() && !values.holds("heads-4").unwrap());
        values.set_from("heads", 5.0, Origin::Said("n_heads".into()));
        values.set_from("width", 8.0, Origin::Said("n_embd".into()));
        values.set_from("head_dim", 1.6, Origin::Missing { paths: "head_dim".into(), default: "width/heads" });
        let wrong = |text: &str| values.count(text).unwrap_err().to_string();
        assert_eq!(wrong("width/heads"), "n_embd = 8, n_heads = 5: width/heads = 1.6, expected a whole number");
        assert_eq!(
            wrong("head_dim"),
            "n_embd = 8, n_heads = 5, head_dim is missing: head_dim = 1.6, expected a whole number"
        );
        values.set("width", 0.0);
        values.set("head_dim", 0.0);
        assert_eq!(values.said("heads*head_dim"), "n_embd = 0, head_dim is missing");
        for bad in ["length", "heads/0", "heads heads", "(heads", "0-1", "heads/3", "", "floor", "ceil 2"] {
            assert!(values.count(bad).is_err(), "{bad}");
        }
    }
}
