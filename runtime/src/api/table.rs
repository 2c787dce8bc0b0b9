//! `meta.k8s.io/v1` Table: the server decides what a list looks like in a
//! terminal, and every client shows the same.

use serde_json::{Map, Value, json};

use crate::time::Timestamp;

mod pod;

/// A kind's columns: name, type, format, and 1 for those of `-o wide`.
type Column = (&'static str, &'static str, &'static str, u8);

const POD: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Ready", "string", "", 0),
    ("Status", "string", "", 0),
    ("Restarts", "string", "", 0),
    ("Age", "string", "", 0),
    ("IP", "string", "", 1),
    ("Node", "string", "", 1),
    ("Nominated Node", "string", "", 1),
    ("Readiness Gates", "string", "", 1),
];

const EVENT: &[Column] = &[
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

const NODE: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Status", "string", "", 0),
    ("Roles", "string", "", 0),
    ("Age", "string", "", 0),
    ("Version", "string", "", 0),
    ("Internal-IP", "string", "", 1),
    ("External-IP", "string", "", 1),
    ("OS-Image", "string", "", 1),
    ("Kernel-Version", "string", "", 1),
    ("Container-Runtime", "string", "", 1),
];

const NAMESPACE: &[Column] =
    &[("Name", "string", "name", 0), ("Status", "string", "", 0), ("Age", "string", "", 0)];

const PRIORITY_CLASS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Value", "integer", "", 0),
    ("Global-Default", "boolean", "", 0),
    ("Age", "string", "", 0),
    ("PreemptionPolicy", "string", "", 0),
];

/// What Kubernetes shows of kinds of which it knows no more.
const ANY: &[Column] = &[("Name", "string", "name", 0), ("Created At", "date", "", 0)];

/// How much of the object a row carries (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

/// The table of `objects`, all of one `resource`.
pub(super) fn table(
    resource: &str,
    objects: Vec<Value>,
    version: &str,
    include: Include,
    now: Timestamp,
) -> Value {
    let columns: Vec<Value> = columns(resource)
        .iter()
        .map(|(name, kind, format, priority)| {
            json!({"name": name, "type": kind, "format": format, "description": "", "priority": priority})
        })
        .collect();
    let rows: Vec<Value> = objects.into_iter().map(|object| row(resource, object, include, now)).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version},
        "columnDefinitions": columns, "rows": rows,
    })
}

fn columns(resource: &str) -> &'static [Column] {
    match resource {
        "pods" => POD,
        "events" => EVENT,
        "nodes" => NODE,
        "namespaces" => NAMESPACE,
        "priorityclasses" => PRIORITY_CLASS,
        _ => ANY,
    }
}

fn row(resource: &str, mut object: Value, include: Include, now: Timestamp) -> Value {
    let mut row = Map::new();
    let cells = match resource {
        "pods" => {
            let conditions = pod::row_conditions(&object);
            if !conditions.is_null() {
                row.insert("conditions".into(), conditions);
            }
            pod::cells(&object, now)
        }
        "events" => event_cells(&object, now),
        "nodes" => node_cells(&object, now),
        "namespaces" => namespace_cells(&object, now),
        "priorityclasses" => vec![
            text(&object["metadata"]["name"]).into(),
            object["value"].clone(),
            (object["globalDefault"] == true).into(),
            age(timestamp(&object["metadata"]["creationTimestamp"]), now).into(),
            text(&object["preemptionPolicy"]).into(),
        ],
        _ => {
            let metadata = &object["metadata"];
            vec![text(&metadata["name"]).into(), text(&metadata["creationTimestamp"]).into()]
        }
    };
    row.insert("cells".into(), Value::Array(cells));
    match include {
        Include::None => {}
        Include::Metadata => {
            let partial = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"].take(),
            });
            row.insert("object".into(), partial);
        }
        Include::Object => {
            row.insert("object".into(), object);
        }
    }
    Value::Object(row)
}

fn event_cells(event: &Value, now: Timestamp) -> Vec<Value> {
    let time = |field: &str| timestamp(&event[field]);
    let first = time("firstTimestamp").or(time("eventTime"));
    let last = time("lastTimestamp").or(first);
    let involved = &event["involvedObject"];
    let kind = text(&involved["kind"]).to_lowercase();
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

fn node_cells(node: &Value, now: Timestamp) -> Vec<Value> {
    let mut status = match condition(node, "Ready") {
        "True" => "Ready",
        "" | "Unknown" => "Unknown",
        _ => "NotReady",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let labels = node["metadata"]["labels"].as_object();
    let roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(label, _)| label.strip_prefix("node-role.kubernetes.io/"))
        .filter(|role| !role.is_empty())
        .collect();
    let address = |kind: &str| {
        let found = array(&node["status"]["addresses"]).find(|address| address["type"] == kind);
        none_if_empty(found.map_or("", |address| text(&address["address"])))
    };
    let info = &node["status"]["nodeInfo"];
    let known = |field: &str| match text(&info[field]) {
        "" => Value::from("<unknown>"),
        known => known.into(),
    };
    vec![
        text(&node["metadata"]["name"]).into(),
        status.into(),
        none_if_empty(&roles.join(",")),
        age(timestamp(&node["metadata"]["creationTimestamp"]), now).into(),
        text(&info["kubeletVersion"]).into(),
        address("InternalIP"),
        address("ExternalIP"),
        known("osImage"),
        known("kernelVersion"),
        known("containerRuntimeVersion"),
    ]
}

fn namespace_cells(namespace: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        text(&namespace["metadata"]["name"]).into(),
        text(&namespace["status"]["phase"]).into(),
        age(timestamp(&namespace["metadata"]["creationTimestamp"]), now).into(),
    ]
}

/// `status` of a condition, empty if there is none of this type.
fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    array(&object["status"]["conditions"])
        .find(|condition| condition["type"] == kind)
        .map_or("", |condition| text(&condition["status"]))
}

fn array(value: &Value) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator {
    value.as_array().map_or(&[][..], Vec::as_slice).iter()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn none_if_empty(text: &str) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn timestamp(value: &Value) -> Option<Timestamp> {
    // Objects come from the engine, but what is in them may not.
    value.as_str().filter(|text| text.is_ascii()).and_then(Timestamp::parse)
}

/// The time since `then`, as kubectl writes ages.
pub fn age(then: Option<Timestamp>, now: Timestamp) -> String {
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

    #[test]
    fn a_row_carries_as_much_of_its_object_as_was_asked_for() {
        let object = json!({"metadata": {"name": "web"}, "spec": {"x": 1}});
        let row = |include| table("pods", vec![object.clone()], "7", include, Timestamp(0))["rows"][0].take();
        assert!(row(Include::None).get("object").is_none());
        assert_eq!(
            row(Include::Metadata)["object"],
            json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "web"}})
        );
        assert_eq!(row(Include::Object)["object"], object);
    }

    #[test]
    fn events_and_nodes_have_kubectls_columns() {
        let now = Timestamp::parse("2026-01-31T12:00:00Z").expect("a time");
        let event = json!({
            "metadata": {"name": "web.1", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{app}"},
            "reason": "Started", "message": "Started container app\n", "type": "Normal", "count": 3,
            "source": {"component": "kubelet", "host": "board"},
            "firstTimestamp": "2026-01-31T11:00:00Z", "lastTimestamp": "2026-01-31T11:59:30Z",
        });
        assert_eq!(
            Value::Array(event_cells(&event, now)),
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
        let node = json!({
            "metadata": {"name": "board", "labels": {"node-role.kubernetes.io/edge": ""},
                         "creationTimestamp": "2026-01-31T11:00:00Z"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                       "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
                       "nodeInfo": {"kubeletVersion": "v1.36.3", "kernelVersion": "6.12"}},
        });
        assert_eq!(
            Value::Array(node_cells(&node, now)),
            json!([
                "board",
                "Ready",
                "edge",
                "60m",
                "v1.36.3",
                "10.0.0.2",
                "<none>",
                "<unknown>",
                "6.12",
                "<unknown>"
            ])
        );
    }
}
