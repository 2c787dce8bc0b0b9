//! The events in the description of an object.

use serde_json::Value;

use super::Tabs;
use super::text::{of, since};

/// Formats the age and the count of an event: `2m (x3 over 5m)`.
pub fn interval(event: &Value) -> String {
    let first = since(&event["firstTimestamp"]);
    match event["count"].as_u64() {
        Some(count) if count > 1 => format!("{} (x{count} over {first})", since(&event["lastTimestamp"])),
        Some(_) | None => first,
    }
}

/// `DescribeEvents`.
pub(in crate::kinds) fn describe(out: &mut Tabs, mut events: Vec<Value>) {
    if events.is_empty() {
        out.line(0, "Events:\t<none>");
        return;
    }
    // As text they are in the order of time.
    events.sort_by(|one, other| of(&one["lastTimestamp"]).cmp(of(&other["lastTimestamp"])));
    out.flush();
    out.line(0, "Events:");
    out.line(1, "Type\tReason\tAge\tFrom\tMessage");
    out.line(1, "----\t------\t----\t----\t-------");
    for event in &events {
        let message = of(&event["message"]).trim();
        let message = match of(&event["involvedObject"]["fieldPath"]) {
            "" => message.to_owned(),
            path => format!("{path}: {message}"),
        };
        let source = match of(&event["source"]["component"]) {
            "" => of(&event["reportingComponent"]),
            source => source,
        };
        let (kind, reason) = (of(&event["type"]), of(&event["reason"]));
        out.line(1, &format!("{kind}\t{reason}\t{}\t{source}\t{message}", interval(event)));
    }
}
