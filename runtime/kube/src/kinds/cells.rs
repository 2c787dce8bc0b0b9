//! Parts of the cells of tables: fields of objects, conditions, ages.

use serde_json::Value;

use nodlet_core::time::Timestamp;

/// `status` of a condition, empty if there is none of this type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    array(&object["status"]["conditions"])
        .find(|condition| condition["type"] == kind)
        .map_or("", |condition| text(&condition["status"]))
}

pub(super) fn array(value: &Value) -> std::slice::Iter<'_, Value> {
    list(value).iter()
}

/// The elements of a list; none if it is missing.
pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A string; empty if it is missing.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn none_if_empty(text: &str) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

pub(super) fn timestamp(value: &Value) -> Option<Timestamp> {
    // Objects come from the engine, but what is in them may not.
    value.as_str().filter(|text| text.is_ascii()).and_then(Timestamp::parse)
}

/// The time since `then`, as kubectl writes ages.
pub(super) fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or_else(|| "<unknown>".into(), |then| human_duration(now.0 - then.0))
}

/// apimachinery's `duration.HumanDuration`.
fn human_duration(nanos: i64) -> String {
    let seconds = nanos / 1_000_000_000;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let two = |first: i64, unit: char, second: i64, small: char| match second {
        0 => format!("{first}{unit}"),
        _ => format!("{first}{unit}{second}{small}"),
    };
    if seconds < -1 {
        "<invalid>".into()
    } else if seconds < 0 {
        "0s".into()
    } else if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        two(hours / 24, 'd', hours % 24, 'h')
    } else if hours < 24 * 365 * 2 {
        format!("{}d", hours / 24)
    } else if hours < 24 * 365 * 8 {
        two(hours / 24 / 365, 'y', hours / 24 % 365, 'd')
    } else {
        format!("{}y", hours / 24 / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_written_as_kubectl_writes_them() {
        const MINUTE: i64 = 60;
        const HOUR: i64 = 60 * MINUTE;
        const DAY: i64 = 24 * HOUR;
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (10 * MINUTE - 1, "9m59s"),
            (10 * MINUTE, "10m"),
            (180 * MINUTE - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + MINUTE, "3h1m"),
            (8 * HOUR, "8h"),
            (48 * HOUR - 1, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY, "8d"),
            (730 * DAY - 1, "729d"),
            (730 * DAY, "2y"),
            (731 * DAY, "2y1d"),
            (8 * 365 * DAY, "8y"),
        ] {
            let now = Timestamp(2_000_000_000_000_000_000);
            assert_eq!(age(Some(Timestamp(now.0 - seconds * 1_000_000_000)), now), expected);
        }
        assert_eq!(age(None, Timestamp(0)), "<unknown>");
    }
}
