//! Fields of objects, ages and times, in the form that kubectl prints in descriptions.

use std::time::SystemTime;

use serde_json::Value;

use super::Tabs;
use crate::kinds::cells::age;
pub(in crate::kinds) use crate::kinds::cells::{list, text as of};
use nodlet_core::spec::Quantity;
use nodlet_core::time::Timestamp;

/// A quantity as Kubernetes prints it again.
pub(in crate::kinds) fn quantity(value: &Value) -> Quantity {
    Quantity::parse(of(value)).unwrap_or(Quantity::from_milli(0))
}

fn time(value: &Value) -> Option<Timestamp> {
    Timestamp::parse(value.as_str()?)
}

/// The age of a time, by the clock of this machine.
pub(in crate::kinds) fn since(value: &Value) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    age(time(value), Timestamp(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)))
}

/// A time in the form `time.RFC1123Z`, in the time zone of this machine. A missing time is printed as year 1.
pub(in crate::kinds) fn date(value: &Value) -> String {
    let Some(time) = time(value) else { return "Mon, 01 Jan 0001 00:00:00 +0000".to_owned() };
    let Some(tm) = nodlet_kernel::time::local(time.0.div_euclid(1_000_000_000)) else {
        return time.to_string();
    };
    let name = |names: &[&'static str], index: i32| {
        usize::try_from(index).ok().and_then(|index| names.get(index)).copied().unwrap_or_default()
    };
    let day = name(&["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"], tm.tm_wday);
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = name(&months, tm.tm_mon);
    let (sign, offset) = if tm.tm_gmtoff < 0 { ('-', -tm.tm_gmtoff) } else { ('+', tm.tm_gmtoff) };
    format!(
        "{day}, {:02} {month} {:04} {:02}:{:02}:{:02} {sign}{:02}{:02}",
        tm.tm_mday,
        tm.tm_year + 1900,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        offset / 3600,
        offset / 60 % 60
    )
}

/// `printLabelsMultiline`.
pub(in crate::kinds) fn labels(out: &mut Tabs, title: &str, labels: &Value) {
    let lines = entries(labels).into_iter().map(|(key, value)| format!("{key}={}", of(value)));
    several(out, title, lines);
}

/// The entries of a map, sorted by their keys; none where there is none.
pub(in crate::kinds) fn entries(map: &Value) -> Vec<(&String, &Value)> {
    let mut entries: Vec<(&String, &Value)> = map.as_object().into_iter().flatten().collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// The lines that many descriptions begin with.
pub(in crate::kinds) fn head(out: &mut Tabs, object: &Value) {
    let metadata = &object["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    out.line(0, &format!("Namespace:\t{}", of(&metadata["namespace"])));
    labels(out, "Labels", &metadata["labels"]);
    annotations(out, &metadata["annotations"]);
}

/// A title and values below each other, `<none>` if there are none.
pub(in crate::kinds) fn several(out: &mut Tabs, title: &str, lines: impl Iterator<Item = String>) {
    let mut any = false;
    for line in lines {
        let before = if any { "\t".to_owned() } else { format!("{title}:\t") };
        out.line(0, &format!("{before}{line}"));
        any = true;
    }
    if !any {
        out.line(0, &format!("{title}:\t<none>"));
    }
}

/// Bytes of an annotation that stands in one line with its key.
const ANNOTATION: usize = 140;

/// `printAnnotationsMultiline`.
pub(in crate::kinds) fn annotations(out: &mut Tabs, annotations: &Value) {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let mut lines = Vec::new();
    for (key, value) in entries(annotations).into_iter().filter(|(key, _)| *key != LAST_APPLIED) {
        let value = of(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        if value.len() + key.len() + 2 <= ANNOTATION && !value.contains('\n') {
            lines.push(format!("{key}: {value}"));
            continue;
        }
        lines.push(format!("{key}:"));
        for part in value.split('\n') {
            let end = part.floor_char_boundary(ANNOTATION - 2);
            let more = if part.len() > ANNOTATION - 2 { "..." } else { "" };
            lines.push(format!("  {}{more}", &part[..end]));
        }
    }
    several(out, "Annotations", lines.into_iter());
}
