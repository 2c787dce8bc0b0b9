//! Events, as `kubectl get events` prints them.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::generic;
use super::strategy::{Column, NAME, Strategy, column, of};
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy::new(COLUMNS, generic::describe);

const COLUMNS: &[Column] = &[
    of("Last Seen", "lastTimestamp", seen),
    column("Type", "/type"),
    column("Reason", "/reason"),
    of("Object", "involvedObject", |event, field, _| {
        let kind = text(&event[field]["kind"]).to_ascii_lowercase();
        match text(&event[field]["name"]) {
            "" => kind.into(),
            name => format!("{kind}/{name}").into(),
        }
    }),
    column("Subobject", "/involvedObject/fieldPath").wide(),
    of("Source", "source", |event, field, _| {
        let parts = ["component", "host"].map(|part| text(&event[field][part]));
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ").into()
    })
    .wide(),
    of("Message", "message", |event, field, _| text(&event[field]).trim().into()),
    of("First Seen", "firstTimestamp", seen).wide(),
    of("Count", "count", |event, field, _| event[field].as_u64().unwrap_or(1).max(1).into()).wide(),
    NAME.wide(),
];

/// The age of the event by this field, or by others that are set instead.
fn seen(event: &Value, field: &str, now: Timestamp) -> Value {
    let times = [field, "firstTimestamp", "eventTime"];
    age(times.into_iter().find_map(|field| timestamp(&event[field])), now).into()
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
            Value::Array(STRATEGY.cells(&event, now)),
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
