//! Texts and numbers as Python's format specifications write them (`>10`, `,`, `.2f`, `05d`, `%`).

use super::json;

/// Digits that a number is written with at most. Python has more; no number here has.
const DIGITS: usize = 10_000;

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) fill: char,
    pub(super) align: Option<char>,
    pub(super) sign: Option<char>,
    pub(super) is_long: bool,
    pub(super) width: usize,
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
    pub(super) kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            fill: ' ',
            align: None,
            sign: None,
            is_long: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

impl Spec {
    /// `None` if the text is none.
    pub(super) fn parse(text: &str) -> Option<Spec> {
        let mut spec = Spec::default();
        let mut chars = text.chars().peekable();
        let mut ahead = text.chars();
        let (first, second) = (ahead.next(), ahead.next());
        let is_align = |char: Option<char>| char.filter(|char| "<>^=".contains(*char));
        let has_fill = is_align(second).is_some();
        if let (Some(fill), Some(align)) = (first, is_align(second)) {
            (spec.fill, spec.align) = (fill, Some(align));
            chars.nth(1);
        } else if let Some(align) = is_align(first) {
            spec.align = Some(align);
            chars.next();
        }
        spec.sign = chars.next_if(|char| "+- ".contains(*char));
        spec.is_long = chars.next_if_eq(&'#').is_some();
        if chars.next_if_eq(&'0').is_some() && !has_fill {
            spec.fill = '0';
            spec.align = spec.align.or(Some('='));
        }
        let number = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            (!digits.is_empty()).then(|| digits.parse().unwrap_or(usize::MAX))
        };
        spec.width = number(&mut chars).unwrap_or(0);
        spec.grouping = chars.next_if(|char| ",_".contains(*char));
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut chars)?);
        }
        spec.kind = chars.next();
        chars.next().is_none().then_some(spec)
    }

    /// The text with what fills its width; `before` goes before everything that lies between a sign and its digits.
    fn padded(&self, before: &str, text: &str, align: char) -> String {
        let missing = self.width.saturating_sub(before.chars().count() + text.chars().count());
        let fill = |count: usize| self.fill.to_string().repeat(count);
        match self.align.unwrap_or(align) {
            '<' => [before, text, &fill(missing)].concat(),
            '^' => [&fill(missing / 2), before, text, &fill(missing - missing / 2)].concat(),
            '=' => [before, &fill(missing), text].concat(),
            _ => [&fill(missing), before, text].concat(),
        }
    }

    fn sign(&self, is_negative: bool) -> &'static str {
        match (is_negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            (false, _) => "",
        }
    }

    /// The precision of a number.
    fn digits(&self, otherwise: usize) -> Result<usize, String> {
        let precision = self.precision.unwrap_or(otherwise);
        if precision > DIGITS {
            return Err(format!("precision {precision}, expected at most {DIGITS}"));
        }
        Ok(precision)
    }

    fn unknown(&self, what: &str) -> String {
        format!("type {:?} of a {what}, expected another", self.kind.unwrap_or(' '))
    }
}

/// A text, cut after the precision. Zeros before a width fill what is behind it.
pub(super) fn text(text: &str, spec: &Spec) -> Result<String, String> {
    if spec.kind.is_some_and(|kind| kind != 's') || spec.sign.is_some() || spec.grouping.is_some() {
        return Err(spec.unknown("text"));
    }
    let kept: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    match (spec.align, spec.fill) {
        (Some('='), '0') => Ok(Spec { align: Some('<'), ..spec.clone() }.padded("", &kept, '<')),
        (Some('='), _) => Err("= of a text, expected <, > or ^".into()),
        _ => Ok(spec.padded("", &kept, '<')),
    }
}

/// A whole number, or one written as a float.
pub(super) fn integer(number: i128, spec: &Spec) -> Result<String, String> {
    let size = number.unsigned_abs();
    let (prefix, digits) = match spec.kind {
        None | Some('d' | 'n') => ("", size.to_string()),
        Some('x') => ("0x", format!("{size:x}")),
        Some('X') => ("0X", format!("{size:X}")),
        Some('o') => ("0o", format!("{size:o}")),
        Some('b') => ("0b", format!("{size:b}")),
        Some('c') => {
            let char = u32::try_from(number).ok().and_then(char::from_u32);
            let char = char.ok_or_else(|| format!("{number} as a character, expected the number of one"))?;
            return Ok(spec.padded("", &char.to_string(), '<'));
        }
        Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => return float(number as f64, spec),
        Some(_) => return Err(spec.unknown("whole number")),
    };
    let digits = format!("{digits:0>least$}", least = spec.digits(0)?);
    let every = if prefix.is_empty() { 3 } else { 4 };
    let before = [spec.sign(number < 0), if spec.is_long { prefix } else { "" }].concat();
    Ok(spec.padded(&before, &grouped(&digits, spec.grouping, every), '>'))
}

pub(super) fn float(number: f64, spec: &Spec) -> Result<String, String> {
    let size = number.abs();
    let precision = spec.digits(6)?;
    let mut text = match spec.kind {
        _ if !size.is_finite() => if size.is_nan() { "nan" } else { "inf" }.into(),
        Some('f' | 'F') => format!("{size:.precision$}"),
        Some('%') => format!("{:.precision$}%", size * 100.0),
        Some('e' | 'E') => exponent(&format!("{size:.precision$e}")),
        Some('g' | 'G' | 'n') => general(size, precision, spec.is_long, 0),
        None => spec.precision.map_or_else(|| json::float(size), |precision| general(size, precision, false, 1)),
        Some(_) => return Err(spec.unknown("float")),
    };
    if spec.kind.is_some_and(|kind| kind.is_ascii_uppercase()) {
        text.make_ascii_uppercase();
    }
    let whole = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let text = grouped(&text[..whole], spec.grouping, 3) + &text[whole..];
    Ok(spec.padded(spec.sign(number.is_sign_negative() && !number.is_nan()), &text, '>'))
}

/// As C writes `%g`: with an exponent if it is far from 1. `point` is 1 where a digit behind the point has to be there.
fn general(size: f64, precision: usize, is_long: bool, point: i64) -> String {
    let precision = precision.max(1);
    let with_exponent = format!("{size:.*e}", precision - 1);
    let digits = with_exponent.split_once('e').and_then(|(_, exponent)| exponent.parse::<i64>().ok()).unwrap_or(0) + 1;
    let places = precision as i64;
    let text = match digits <= -4 || digits > places - point && size != 0.0 {
        true => with_exponent,
        false => format!("{size:.*}", usize::try_from(places - digits).unwrap_or(0)),
    };
    let (mantissa, tail) = text.split_at(text.find('e').unwrap_or(text.len()));
    let shorter = if mantissa.contains('.') && !is_long {
        mantissa.trim_end_matches('0').trim_end_matches('.')
    } else {
        mantissa
    };
    let point = if point > 0 && tail.is_empty() && !shorter.contains('.') { ".0" } else { "" };
    exponent(&[shorter, point, tail].concat())
}

/// An exponent with its sign and two digits at least.
fn exponent(text: &str) -> String {
    let Some((mantissa, exponent)) = text.split_once('e') else { return text.into() };
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
    format!("{mantissa}e{sign}{digits:0>2}")
}

fn grouped(digits: &str, grouping: Option<char>, every: usize) -> String {
    let Some(separator) = grouping else { return digits.into() };
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(every) {
            out.push(separator);
        }
        out.push(digit);
    }
    out
}
