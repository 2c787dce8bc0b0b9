//! Events, as `kubectl get events` prints them.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(generic::describe),
    reader: None,
};

const COLUMNS: &[Column] = &[
    ("Last Seen", "string", "", 0),
    ("Type", "string", "", 0),
    ("Reason", "string", "", 0),
    ("Object", "string", "", 0),
    ("Subobject", "string", "", 1),
    ("Source", "string", "", 1),
    ("Message", "string", "", 0),
    ("First Seen", "string", "", 1),
    ("Count", "string", "", 1),
    ("Name", "string", "name", 1),
];

fn cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let time = |field: &str| timestamp(&event[field]);
    let first = time("firstTimestamp").or(time("eventTime"));
    let last = time("lastTimestamp").or(first);
    let involved = &event["involvedObject"];
    let kind = text(&involved["kind"]).to_ascii_lowercase();
    let target = match text(&involved["name"]) {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let source = &event["source"];
    let source: Vec<&str> = [text(&source["component"]), text(&source["host"])]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect();
    vec![
        age(last, now).into(),
        text(&event["type"]).into(),
        text(&event["reason"]).into(),
        target.into(),
        text(&involved["fieldPath"]).into(),
        source.join(", ").into(),
        text(&event["message"]).trim().into(),
        age(first, now).into(),
        event["count"].as_u64().unwrap_or(1).max(1).into(),
        text(&event["metadata"]["name"]).into(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_the_cells_of_kubectl() {
        let now = Timestamp::parse("2026-01-31T12:00:00Z").expect("a time");
        let event = json!({
            "metadata": {"name": "web.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{app}"},
            "reason": "Started", "message": "Started container app\n", "type": "Normal", "count": 3,
            "source": {"component": "kubelet", "host": "board"},
            "firstTimestamp": "2026-01-31T11:00:00Z", "lastTimestamp": "2026-01-31T11:59:30Z",
        });
        assert_eq!(
            Value::Array(cells(&event, now)),
            json!([
                "30s",
                "Normal",
                "Started",
                "pod/web",
                "spec.containers{app}",
                "kubelet, board",
                "Started container app",
                "60m",
                3,
                "web.1"
            ])
        );
    }
}
