//! Parts of lists and texts as Python cuts them. The engine goes one too far where the step is negative, and cannot turn
//! around what is empty.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

/// What stands in the place of the operator.
pub(super) const SLICE: &str = "__slice";

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_function(SLICE, |value: &Value, start: &Value, stop: &Value, step: &Value| {
        let number = |bound: &Value| match bound.is_none() {
            true => Ok(None),
            false => i64::try_from(bound.clone()).map(Some),
        };
        let step = number(step)?.unwrap_or(1);
        if step == 0 {
            return Err(Error::new(ErrorKind::InvalidOperation, "cannot slice by step size of 0"));
        }
        let bounds = [number(start)?, number(stop)?];
        part(value, bounds, step)
    });
}

/// The items from one place to another, in steps.
#[allow(clippy::wildcard_enum_match_arm, reason = "nothing else has an order")]
pub(super) fn part(value: &Value, bounds: [Option<i64>; 2], step: i64) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if step > 0 && bounds.iter().flatten().all(|bound| *bound >= 0) {
            // From the beginning on, without a copy of it all.
            let [start, stop] = bounds.map(|bound| bound.map(|bound| bound as usize));
            let start = start.unwrap_or(0);
            let mut chosen = behind(text, start);
            if let Some(stop) = stop {
                let rest = behind(chosen, stop.saturating_sub(start));
                chosen = &chosen[..chosen.len() - rest.len()];
            }
            return Ok(match step {
                1 => Value::from(chosen),
                _ => Value::from(chosen.chars().step_by(step as usize).collect::<String>()),
            });
        }
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(places(chars.len(), bounds, step).map(|at| chars[at]).collect::<String>()));
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            let chosen: Vec<Value> = places(items.len(), bounds, step).map(|at| items[at].clone()).collect();
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            Ok(if is_tuple { Value::from(Tuple::from(chosen)) } else { Value::from(chosen) })
        }
        kind => Err(Error::new(ErrorKind::InvalidOperation, format!("value of type {kind} cannot be sliced"))),
    }
}

/// A text without so many characters at its beginning.
fn behind(text: &str, count: usize) -> &str {
    let mut chars = text.chars();
    if count > 0 {
        let _ = chars.nth(count - 1);
    }
    chars.as_str()
}

/// The places that Python's `slice(start, stop, step).indices(length)` names.
fn places(length: usize, [start, stop]: [Option<i64>; 2], step: i64) -> impl Iterator<Item = usize> {
    let length = length as i64;
    // Backwards, the place before the first one is an end, too.
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamped = |bound: i64| if bound < 0 { bound.saturating_add(length) } else { bound }.clamp(lowest, highest);
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (start.map_or(first, clamped), stop.map_or(last, clamped));
    let goes_on = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start).filter(goes_on), move |at| at.checked_add(step).filter(goes_on))
        .map(|at| at as usize)
}
