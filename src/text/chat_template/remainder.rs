//! `%` as Python has it: of a text it writes values into places, of numbers it takes the sign of the divisor.

use minijinja::value::{Kwargs, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// What stands in the place of the operator.
pub(super) const REMAINDER: &str = "__remainder";

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_function(REMAINDER, |state: &mut State<'_, '_>, left: &Value, right: &Value| {
        match (left.as_str(), left.kind(), right.kind()) {
            (Some(format), _, _) => written(state, format, left, right),
            (None, ValueKind::Number | ValueKind::Bool, ValueKind::Number | ValueKind::Bool) => number(left, right),
            (None, ..) => Err(refused(format!("tried to use % operator on {} and {}", left.kind(), right.kind()))),
        }
    });
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// `'%s of %s' % (a, b)`, `'%(name)s' % mapping`, or one value of any other kind.
fn written(state: &mut State<'_, '_>, format: &str, left: &Value, right: &Value) -> Result<Value, Error> {
    let mut arguments = vec![left.clone()];
    if let Some(values) = right.downcast_object_ref::<Tuple>() {
        arguments.extend(values.iter().cloned());
    } else if right.kind() == ValueKind::Map && format.contains("%(") {
        let pairs = right.try_iter()?.map(|key| Ok((key.to_string(), right.get_item(&key)?)));
        let named = pairs.collect::<Result<Vec<(String, Value)>, Error>>()?;
        arguments.push(Value::from(named.into_iter().collect::<Kwargs>()));
    } else {
        arguments.push(right.clone());
    }
    state.apply_filter("format", &arguments)
}

fn number(left: &Value, right: &Value) -> Result<Value, Error> {
    let whole = |value: &Value| match value.kind() == ValueKind::Bool {
        true => Some(i128::from(value.is_true())),
        false if value.is_integer() => i128::try_from(value.clone()).ok(),
        false => None,
    };
    match (whole(left), whole(right)) {
        (_, Some(0)) => Err(refused("division by zero".into())),
        (Some(left), Some(right)) => {
            let rest = left.wrapping_rem(right);
            let is_across = rest != 0 && (rest < 0) != (right < 0);
            Ok(Value::from(if is_across { rest + right } else { rest }))
        }
        (left_whole, right_whole) => {
            let float = |value: &Value, whole: Option<i128>| match whole {
                Some(whole) => Ok(whole as f64),
                None => f64::try_from(value.clone()),
            };
            let (left, right) = (float(left, left_whole)?, float(right, right_whole)?);
            if right == 0.0 {
                return Err(refused("division by zero".into()));
            }
            let rest = left % right;
            let is_across = rest != 0.0 && (rest < 0.0) != (right < 0.0);
            Ok(Value::from(if is_across { rest + right } else { rest }))
        }
    }
}
