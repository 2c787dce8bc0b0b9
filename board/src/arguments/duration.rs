//! Durations on the command line.

use std::time::Duration;

use crate::failure::Failure;

/// Parses a duration as Go writes it: `1h30m`, `90s`. Zero is returned as `None`.
pub(crate) fn go_duration(flag: &str, text: &str) -> Result<Option<Duration>, Failure> {
    let invalid =
        || Failure::new(format!("invalid value {text:?} for {flag}: must be a duration like 5s, 2m or 3h"));
    let mut total = 0f64;
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
        let number: f64 = number.parse().map_err(|_| invalid())?;
        let end = more.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(more.len());
        let (unit, more) = more.split_at(end);
        total += number
            * match unit {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                _ => return Err(invalid()),
            };
        rest = more;
    }
    let total = Duration::try_from_secs_f64(total.ceil()).map_err(|_| invalid())?;
    Ok(Some(total).filter(|total| !total.is_zero()))
}
