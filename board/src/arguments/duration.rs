//! Durations on the command line.

use std::time::Duration;

use lexopt::{Parser, ValueExt};

use super::refused;
use crate::error::VerbError;

/// The duration that is the value of a flag.
pub(crate) fn duration(parser: &mut Parser, flag: &str) -> Result<Option<Duration>, VerbError> {
    go_duration(flag, &parser.value()?.string()?)
}

/// Parses a duration as Go writes it: `1h30m`, `90s`. Zero is returned as `None`.
pub(crate) fn go_duration(flag: &str, text: &str) -> Result<Option<Duration>, VerbError> {
    let invalid = || refused(flag, text, "a duration like 5s, 2m or 3h");
    const SECOND: u64 = 1_000_000_000;
    let mut total = 0u64;
    let mut rest = text;
    if rest == "0" {
        return Ok(None);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, more) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let end = more.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(more.len());
        let (unit, more) = more.split_at(end);
        let unit = match unit {
            "h" => 3600 * SECOND,
            "m" => 60 * SECOND,
            "s" => SECOND,
            "ms" => SECOND / 1000,
            _ => return Err(invalid()),
        };
        let amount = nanoseconds(whole, fraction, unit).ok_or_else(invalid)?;
        total = total.checked_add(amount).ok_or_else(invalid)?;
        rest = more;
    }
    Ok(Some(Duration::from_secs(total.div_ceil(SECOND))).filter(|total| !total.is_zero()))
}

/// The nanoseconds of a decimal number of a unit, truncated. `None` if it is no number, or too large.
fn nanoseconds(whole: &str, fraction: &str, unit: u64) -> Option<u64> {
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let mut total = 0u64;
    for byte in whole.bytes() {
        total = total.checked_mul(10)?.checked_add(digit(byte)?)?;
    }
    total = total.checked_mul(unit)?;
    let mut part = unit;
    for byte in fraction.bytes() {
        part /= 10;
        total = total.checked_add(digit(byte)?.checked_mul(part)?)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_writes_them_and_rounded_up_to_seconds() {
        let read =
            |text: &str| go_duration("--wait", text).ok().map(|read| read.unwrap_or_default().as_secs());
        for (text, seconds) in [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("90s", Some(90)),
            ("1h30m", Some(5400)),
            ("1.5h", Some(5400)),
            (".5m", Some(30)),
            ("2.m", Some(120)),
            ("100ms", Some(1)),
            ("1.0000000001s", Some(1)),
            ("1.000000001s", Some(2)),
            ("1s1500ms", Some(3)),
            ("", None),
            ("5", None),
            (".", None),
            (".s", None),
            ("1.2.3s", None),
            ("-1s", None),
            ("1d", None),
            ("5124096h", None),
            ("18446744073709551616s", None),
        ] {
            assert_eq!(read(text), seconds, "{text}");
        }
    }
}
