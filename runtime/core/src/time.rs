//! Time as the core knows it: [`Instant`], which only moves forward and starts with the boot, and
//! [`Timestamp`], which is for people and never compared.
//!
//! A board without a battery-backed clock boots in 1970 and jumps decades when the clock is set. Therefore
//! every time of this boot is kept as an `Instant`, and converted to a `Timestamp` only when it is shown,
//! with the current [`Anchor`].

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instant(pub u64);

impl Instant {
    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, by: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Wall time: nanoseconds since 1970 in UTC. For display only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// RFC 3339 in UTC with nanoseconds, as in log lines.
    pub fn nanos(self) -> impl fmt::Display {
        Rfc3339 { time: self, nanos: true }
    }

    /// Parses `metav1.Time` and `metav1.MicroTime`: RFC 3339, with or without a fraction.
    pub fn parse(text: &str) -> Option<Timestamp> {
        let (seconds, nanos) = civil(text)?;
        Some(Timestamp(seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?))
    }

    /// Whether a text is an RFC 3339 time, of whatever year.
    pub fn is_time(text: &str) -> bool {
        civil(text).is_some()
    }
}

/// Parses an RFC 3339 text into seconds since 1970 and the nanoseconds beyond them.
fn civil(text: &str) -> Option<(i64, i64)> {
    let bytes = text.as_bytes();
    // `parse` would also accept a sign.
    let number = |text: &str| -> Option<i64> {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
    };
    let field = |place: usize, numbers: std::ops::RangeInclusive<i64>| {
        number(text.get(place..place + 2)?).filter(|number| numbers.contains(number))
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if bytes.len() < 20 || separators.iter().any(|(place, separator)| bytes[*place] != *separator) {
        return None;
    }
    let (year, month, day) = (number(text.get(0..4)?)?, field(5, 1..=12)?, field(8, 1..=31)?);
    let days = days_from_civil(year, month, day);
    if civil_from_days(days) != (year, month, day) {
        return None;
    }
    let time = field(11, 0..=23)? * 3600 + field(14, 0..=59)? * 60 + field(17, 0..=59)?;
    let mut seconds = days * 86_400 + time;
    let mut rest = &text[19..];
    let mut nanos = 0i64;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 || digits > 9 {
            return None;
        }
        nanos = fraction[..digits].parse::<i64>().ok()? * 10i64.pow(9 - digits as u32);
        rest = &fraction[digits..];
    }
    if rest != "Z" {
        let sign = match rest.as_bytes().first()? {
            b'+' => 1,
            b'-' => -1,
            _ => return None,
        };
        if rest.len() != 6 || !rest.is_ascii() {
            return None;
        }
        if rest.as_bytes()[3] != b':' {
            return None;
        }
        let (hours, minutes) = (number(&rest[1..3])?, number(&rest[4..6])?);
        if hours > 24 || minutes > 60 {
            return None;
        }
        seconds -= sign * (hours * 3600 + minutes * 60);
    }
    Some((seconds, nanos))
}

/// Formats like `metav1.Time`: RFC 3339 in UTC, whole seconds.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Rfc3339 { time: *self, nanos: false }.fmt(f)
    }
}

struct Rfc3339 {
    time: Timestamp,
    nanos: bool,
}

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.time.0.div_euclid(1_000_000_000);
        let nanos = self.time.0.rem_euclid(1_000_000_000);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(days);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
            second / 3600,
            second / 60 % 60,
            second % 60
        )?;
        if self.nanos {
            write!(f, ".{nanos:09}")?;
        }
        f.write_str("Z")
    }
}

/// Days from 1970-01-01 to a day of the proleptic Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`].
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The wall time at instant zero, as far as it is known. It is taken again only when the clock is set, so
/// that times already shown do not flicker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor(pub i64);

impl Anchor {
    /// The wall time of `instant`. A later instant than the type can represent (in 2262) becomes the last one
    /// it can: a grace period may be as long as its number allows.
    pub fn timestamp(self, instant: Instant) -> Timestamp {
        Timestamp(self.0.saturating_add(i64::try_from(instant.0).unwrap_or(i64::MAX)))
    }
}

/// When something took place, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// In this boot: the current anchor converts it to wall time.
    ThisBoot(Instant),
    /// Before this boot: only the wall time of then is known.
    Earlier(Timestamp),
}

impl Moment {
    /// The wall time to show.
    pub fn timestamp(self, anchor: Anchor) -> Timestamp {
        match self {
            Moment::ThisBoot(instant) => anchor.timestamp(instant),
            Moment::Earlier(timestamp) => timestamp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_as_kubernetes_does() {
        for (nanos, short, long) in [
            (0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_001, "2000-02-29T00:00:00Z", "2000-02-29T00:00:00.000000001Z"),
            (1_767_225_599_999_999_999, "2025-12-31T23:59:59Z", "2025-12-31T23:59:59.999999999Z"),
            (-1_000_000_000, "1969-12-31T23:59:59Z", "1969-12-31T23:59:59.000000000Z"),
        ] {
            assert_eq!(Timestamp(nanos).to_string(), short);
            assert_eq!(Timestamp(nanos).nanos().to_string(), long);
            assert_eq!(Timestamp::parse(long), Some(Timestamp(nanos)));
        }
        assert_eq!(Timestamp::parse("2026-01-31T12:00:00+02:00"), Timestamp::parse("2026-01-31T10:00:00Z"));
        for wrong in [
            "",
            "2026",
            "2026-01-31 12:00:00",
            "2026-01-31T12:00:00",
            "2026-01-31T12:00:00.Z",
            "2026-01-31 12:00:00Z",
            "2026-+1-31T12:00:00Z",
            "2026-13-31T12:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T12:00:00+02 00",
            "2026-01-31T12:00:00++2:00",
            "2026-01-31T12:00:00+1ü:0",
        ] {
            assert_eq!(Timestamp::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_unrepresentable_time_is_shown_as_the_last_representable_one() {
        let anchor = Anchor(1_767_225_600_000_000_000);
        let never = Instant(5) + Duration::from_secs(u64::MAX);
        for instant in [never, Instant(5) + Duration::from_secs(250 * 365 * 86_400), Instant(u64::MAX / 2)] {
            assert_eq!(anchor.timestamp(instant).to_string(), "2262-04-11T23:47:16Z");
        }
    }
}
