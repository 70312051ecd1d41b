//! Bounds the memory and the time of one rendering, whatever the template.

use super::methods::{self, Bound};
use super::printing::{as_python, printed};
use super::rewrite::ONE;
use super::variadic;
use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Names of the guards. They are no identifiers, so that no template can call or hide them.
pub(super) const GROW: &str = "grow!";
pub(super) const ITER: &str = "iter!";
pub(super) const BUILT: &str = "built!";
pub(super) const OWNED: &str = "owned!";
pub(super) const MADE: &str = "made!";
pub(super) const CONCAT: &str = "concat!";
pub(super) const MACRO: &str = "macro!";
pub(super) const NUMBERS: &str = "numbers!";
pub(super) const ORDER: &str = "order!";
pub(super) const METHOD: &str = "method!";
pub(super) const ITEM: &str = "item!";
/// A loop with an `else` begins, one of its iterations is through, and whether none of them was, where it ends.
pub(super) const BEGUN: &str = "begun!";
pub(super) const THROUGH: &str = "through!";
pub(super) const UNDONE: &str = "undone!";

/// Values nested deeper are refused: dropping, comparing and printing them recurses.
const DEPTH: usize = 200;
/// What an item of a list or map counts, in bytes.
const ITEM_BYTES: usize = 16;
const BYTES: usize = 8 << 20;
const BYTES_PER_INPUT_BYTE: usize = 32;
const FUEL: u64 = 120_000;
const FUEL_PER_INPUT_BYTE: u64 = 40;
const ITEMS: usize = 100_000;
/// The last resort: instructions that compare or search large strings are few per unit of fuel but slow.
const TIME: Duration = Duration::from_secs(1);
const TIME_PER_INPUT_BYTE: Duration = Duration::from_micros(2);

/// What one rendering may still use.
#[derive(Debug)]
pub(super) struct Meter {
    /// Bytes of strings and lists that may still be made, whether or not they are dropped.
    bytes: AtomicUsize,
    /// Values that one value may contain, counted as often as they occur.
    items: usize,
    deadline: Instant,
    failure: Mutex<Option<Failure>>,
    /// Of the loops with an `else` that have begun and not ended, whether no iteration is through.
    loops: Mutex<Vec<bool>>,
}

/// Why a rendering was stopped by the meter or by the template itself.
#[derive(Debug)]
pub(super) enum Failure {
    /// `raise_exception` with this message.
    Raised(String),
    /// A limit was reached.
    Limit(&'static str),
}

impl Meter {
    /// A meter for an input of this many bytes; larger conversations may use more.
    pub(super) fn new(input_bytes: usize) -> Meter {
        let time = TIME_PER_INPUT_BYTE.saturating_mul(u32::try_from(input_bytes).unwrap_or(u32::MAX));
        Meter {
            bytes: AtomicUsize::new(input_bytes.saturating_mul(BYTES_PER_INPUT_BYTE).saturating_add(BYTES)),
            items: ITEMS.saturating_add(input_bytes),
            deadline: Instant::now() + TIME.saturating_add(time),
            failure: Mutex::new(None),
            loops: Mutex::new(Vec::new()),
        }
    }

    /// Instructions that an input of this many bytes allows.
    pub(super) fn fuel(input_bytes: usize) -> u64 {
        (input_bytes as u64).saturating_mul(FUEL_PER_INPUT_BYTE).saturating_add(FUEL)
    }

    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Remembers the cause, which the engine's own error would bury, and gives the error to return.
    pub(super) fn fail(&self, failure: Failure) -> Error {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        Error::new(ErrorKind::InvalidOperation, "stopped")
    }

    pub(super) fn spend(&self, bytes: usize) -> Result<(), Error> {
        let left = self.bytes.load(Ordering::Relaxed);
        let Some(left) = left.checked_sub(bytes) else {
            return Err(self.fail(Failure::Limit("makes more text than its messages justify")));
        };
        self.bytes.store(left, Ordering::Relaxed);
        if Instant::now() > self.deadline {
            return Err(self.fail(Failure::Limit("takes longer than its messages justify")));
        }
        Ok(())
    }

    /// Bytes of a value's text, roughly. Refuses what is nested too deep or too large to walk.
    pub(super) fn measure(&self, value: &Value) -> Result<usize, Error> {
        let mut items = self.items;
        self.walk(value, &mut items, DEPTH, Namespaces::Allowed)
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "objects of other shapes contain no values but for methods")]
    fn walk(&self, value: &Value, items: &mut usize, depth: usize, namespaces: Namespaces) -> Result<usize, Error> {
        if let Some(text) = value.as_str() {
            return Ok(text.len());
        }
        let Some(object) = value.as_object() else { return Ok(ITEM_BYTES) };
        if depth == 0 {
            return Err(self.fail(Failure::Limit("nests values too deep")));
        }
        // A namespace could contain itself, the one way to a value without end.
        if namespaces == Namespaces::Refused && object.type_name().ends_with("::Namespace") {
            return Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot be part of another value"));
        }
        let mut bytes = ITEM_BYTES;
        let mut add = |value: &Value| {
            *items =
                items.checked_sub(1).ok_or_else(|| self.fail(Failure::Limit("makes values that are too large")))?;
            bytes += ITEM_BYTES + self.walk(value, items, depth - 1, namespaces)?;
            Ok::<(), Error>(())
        };
        match object.repr() {
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                object.try_iter().into_iter().flatten().try_for_each(|v| add(&v))?
            }
            ObjectRepr::Map => {
                for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                    add(&key)?;
                    add(&value)?;
                }
            }
            _ => {
                if let Some(method) = object.downcast_ref::<Bound>() {
                    add(&method.value)?;
                }
            }
        }
        Ok(bytes)
    }

    fn loops<T: Into<Value>>(&self, change: impl FnOnce(&mut Vec<bool>) -> T) -> Value {
        change(&mut self.loops.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }

    /// Before `+`, `~` and `*`: pays for the result and gives the operands back, the right one first.
    fn grow(&self, left: &Value, right: &Value) -> Result<Value, Error> {
        let (sizes, times) = match (left.as_usize(), right.as_usize()) {
            (Some(times), None) => (self.measure(right)?, times),
            (None, Some(times)) => (self.measure(left)?, times),
            (Some(_), Some(_)) => (ITEM_BYTES, 1),
            (None, None) => (self.measure(left)?.saturating_add(self.measure(right)?), 1),
        };
        self.spend(sizes.saturating_mul(times.max(1)))?;
        Ok(Value::from(vec![right.clone(), left.clone()]))
    }

    /// After whatever made a value: pays for it, and turns what would be computed item by item later into a list.
    fn made(&self, value: &Value) -> Result<Value, Error> {
        if let Some(text) = value.as_str() {
            self.spend(text.len())?;
        }
        if value.kind() != ValueKind::Iterable {
            return Ok(value.clone());
        }
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            self.spend(ITEM_BYTES)?;
            items.push(item?);
        }
        Ok(Value::from(items))
    }
}

/// Operands as Python has them, to which True is 1 and False is 0.
fn numbers(left: &Value, right: &Value) -> [Value; 2] {
    let number = |value: &Value| match value.kind() == ValueKind::Bool {
        true => Value::from(i64::from(value.is_true())),
        false => value.clone(),
    };
    match left.kind() == ValueKind::Bool || right.kind() == ValueKind::Bool {
        true => [number(left), number(right)],
        false => [left.clone(), right.clone()],
    }
}

/// Operands that one may be less than the other. As in Python, numbers and text are in no order, and nothing is in one with
/// what is not there.
fn order(left: &Value, right: &Value) -> Result<[Value; 2], Error> {
    let operands = numbers(left, right);
    let [kind, other] = operands.each_ref().map(Value::kind);
    let is_none = |kind| matches!(kind, ValueKind::Undefined | ValueKind::None);
    if is_none(kind) || is_none(other) || (kind != other && [kind, other].iter().any(|kind| is_plain(*kind))) {
        let what = format!("{kind} and {other} are in no order, expected two numbers or two texts");
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    Ok(operands)
}

fn is_plain(kind: ValueKind) -> bool {
    matches!(kind, ValueKind::Number | ValueKind::String)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespaces {
    Allowed,
    Refused,
}

/// One guard of one rendering.
#[derive(Debug)]
struct Guard {
    name: &'static str,
    meter: Arc<Meter>,
}

impl Object for Guard {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let meter = &self.meter;
        match (self.name, args) {
            (GROW, [left, right]) => {
                let [left, right] = numbers(left, right);
                meter.grow(&left, &right)
            }
            (MADE, [value]) => meter.made(value),
            // Python does not loop over None, and a template that tries is told so.
            (ITER, [value]) if value.is_none() => Err(Error::new(ErrorKind::InvalidOperation, "none is not iterable")),
            (ITER, [value]) => match value.as_str() {
                // The engine counts bytes, and finds no last one.
                Some(text) => {
                    meter.spend(text.len().saturating_mul(ITEM_BYTES))?;
                    Ok(text.chars().map(|char| Value::from(char.to_string())).collect())
                }
                None => meter.spend(0).map(|()| value.clone()),
            },
            (CONCAT, [left, right]) => {
                meter.spend(meter.measure(left)?.saturating_add(meter.measure(right)?))?;
                meter.grow(&as_python(left), &as_python(right))
            }
            (NUMBERS, [value]) => Ok(numbers(value, &Value::from(true))[0].clone()),
            (NUMBERS, [left, right]) => {
                let [left, right] = numbers(left, right);
                Ok(Value::from(vec![right, left]))
            }
            (ORDER, [left, right]) => {
                let [left, right] = order(left, right)?;
                Ok(Value::from(vec![right, left]))
            }
            (BEGUN, []) => Ok(meter.loops(|loops| loops.push(true))),
            (THROUGH, []) => Ok(meter.loops(|loops| loops.last_mut().into_iter().for_each(|undone| *undone = false))),
            (UNDONE, []) => Ok(meter.loops(Vec::pop)),
            (METHOD, [value, name]) => Ok(methods::behind_point(value, name)),
            (ITEM, [value, name]) => Ok(Value::from(vec![name.clone(), methods::in_brackets(value, name)])),
            (MACRO, [value]) => variadic::wrapped(value),
            (BUILT | OWNED, [value]) => {
                let mut items = meter.items;
                meter.walk(value, &mut items, DEPTH, Namespaces::Refused)?;
                meter.spend(ITEM_BYTES)?;
                Ok(value.clone())
            }
            _ => Err(Error::new(ErrorKind::InvalidOperation, "a guard was called with other arguments")),
        }
    }
}

/// Makes the guards known, and has everything that is written counted.
pub(super) fn install(environment: &mut Environment<'_>, meter: &Arc<Meter>) {
    for name in [GROW, ITER, BUILT, OWNED, MADE, CONCAT, MACRO, NUMBERS, ORDER, METHOD, ITEM, BEGUN, THROUGH, UNDONE] {
        environment.add_global(name, Value::from_object(Guard { name, meter: meter.clone() }));
    }
    environment.add_global(ONE, 1);
    let meter = meter.clone();
    environment.set_formatter(move |out, state, value| {
        meter.spend(meter.measure(value)?)?;
        match printed(value) {
            Some(text) => out.write_str(&text).map_err(Error::from),
            None => minijinja::escape_formatter(out, state, value),
        }
    });
}
