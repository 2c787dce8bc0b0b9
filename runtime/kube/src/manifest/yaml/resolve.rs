//! Resolves scalars as in YAML 1.1, like Kubernetes' reader.

use std::borrow::Cow;

use serde_json::{Number, Value};

use crate::base64;

/// The value of a scalar. `tag` is the name of a core tag, such as `str`.
pub(super) fn scalar(text: Cow<'_, str>, plain: bool, tag: Option<&str>) -> Result<Value, String> {
    let resolved = match tag {
        None if !plain => return Ok(Value::String(text.into_owned())),
        None => return untagged(text),
        Some("str") => return Ok(Value::String(text.into_owned())),
        Some("binary") => return binary(&text),
        Some("bool" | "int" | "float" | "null") => untagged(Cow::Borrowed(&text))?,
        // `!!timestamp` and custom tags stay as written.
        Some(_) => return Ok(Value::String(text.into_owned())),
    };
    let fits = match tag {
        Some("bool") => resolved.is_boolean(),
        Some("null") => resolved.is_null(),
        Some("int") => resolved.is_i64() || resolved.is_u64(),
        _ => resolved.is_number(),
    };
    if fits {
        Ok(resolved)
    } else {
        // Without the value, which may be a Secret's.
        Err(format!("cannot decode the value as a !!{}", tag.unwrap_or_default()))
    }
}

/// The text of a key, which may be any scalar except null.
pub(super) fn key(value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null => Err("a key is missing, or is null".to_owned()),
        Value::Array(_) | Value::Object(_) => {
            Err("a key must be a string, not a list or a mapping".to_owned())
        }
    }
}

fn untagged(text: Cow<'_, str>) -> Result<Value, String> {
    Ok(match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
        | "-.Inf" | "-.INF" => return Err(format!("`{text}` is not a number that JSON has")),
        other => match number(other) {
            Some(number) => Value::Number(number),
            None => Value::String(text.into_owned()),
        },
    })
}

/// The number that a plain scalar represents, if it does.
fn number(text: &str) -> Option<Number> {
    let first = text.bytes().next().unwrap_or_default();
    if first == b'.' {
        return if is_float(text) { float(text) } else { None };
    }
    if !(first.is_ascii_digit() || first == b'+' || first == b'-') {
        return None;
    }
    let plain: String = text.chars().filter(|c| *c != '_').collect();
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
    };
    let (radix, digits) = radix(digits);
    // Go's ParseInt accepts no second sign, Rust's would.
    if digits.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && let Ok(magnitude) = u64::from_str_radix(digits, radix)
    {
        if !negative {
            return Some(magnitude.into());
        }
        if let Ok(value) = i64::try_from(-i128::from(magnitude)) {
            return Some(value.into());
        }
    }
    if is_float(&plain) { float(&plain) } else { None }
}

/// Base and digits of an integer as Go's `ParseInt(…, 0, …)` reads them.
fn radix(digits: &str) -> (u32, &str) {
    let lower = digits.get(..2).map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    }
}

/// Whether a text matches `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa = match mantissa.split_once('.') {
        Some(("", fraction)) => !fraction.is_empty() && digits(fraction),
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent = exponent.is_none_or(|text| {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        !unsigned.is_empty() && digits(unsigned)
    });
    mantissa && exponent
}

/// The number of a float; `None` if it is too large, so that it stays a string.
fn float(text: &str) -> Option<Number> {
    let (sign, unsigned) = match text.strip_prefix(['+', '-']) {
        Some(unsigned) => (if text.starts_with('-') { "-" } else { "" }, unsigned),
        None => ("", text),
    };
    let (mantissa, exponent) = unsigned.split_at(unsigned.find(['e', 'E']).unwrap_or(unsigned.len()));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    // JSON allows neither `.5` nor `5.` nor `05`.
    let (whole, fraction) = (or_zero(whole.trim_start_matches('0')), or_zero(fraction));
    let json = format!("{sign}{whole}.{fraction}{exponent}");
    // Read as in manifests in JSON: Rust's own reader of floats is one more, with a table of 10 KB.
    let value = serde_json::from_str::<Number>(&json).ok()?.as_f64()?;
    // Kubernetes converts by way of JSON, where 80.0 is written 80.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return Some((value as i64).into());
    }
    Number::from_f64(value)
}

fn or_zero(digits: &str) -> &str {
    if digits.is_empty() { "0" } else { digits }
}

fn binary(text: &str) -> Result<Value, String> {
    let compact: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    let bytes = base64::decode(compact.as_bytes())
        .map_err(|_| "!!binary value contains invalid base64 data".to_owned())?;
    String::from_utf8(bytes).map(Value::String).map_err(|_| "!!binary value is not valid UTF-8".to_owned())
}
