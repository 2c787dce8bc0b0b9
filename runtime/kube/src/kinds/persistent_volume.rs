//! PersistentVolumes, as `kubectl get` prints them.

use serde_json::Value;

use super::cells::{age, array, text, timestamp};
use super::generic;
use super::strategy::{Column, Describe, Strategy};
use crate::manifest::persistent::VOLUME_READER;
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(generic::describe),
    reader: Some(VOLUME_READER),
    protobuf: &[],
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Capacity", "string", "", 0),
    ("Access Modes", "string", "", 0),
    ("Reclaim Policy", "string", "", 0),
    ("Status", "string", "", 0),
    ("Claim", "string", "", 0),
    ("StorageClass", "string", "", 0),
    ("VolumeAttributesClass", "string", "", 0),
    ("Reason", "string", "", 0),
    ("Age", "string", "", 0),
    ("VolumeMode", "string", "", 1),
];

fn cells(volume: &Value, now: Timestamp) -> Vec<Value> {
    let (metadata, spec, status) = (&volume["metadata"], &volume["spec"], &volume["status"]);
    let claim = match &spec["claimRef"] {
        Value::Object(claim) => {
            let part = |field| claim.get(field).map_or("", text);
            format!("{}/{}", part("namespace"), part("name"))
        }
        _ => String::new(),
    };
    vec![
        text(&metadata["name"]).into(),
        text(&spec["capacity"]["storage"]).into(),
        modes(&spec["accessModes"]).into(),
        text(&spec["persistentVolumeReclaimPolicy"]).into(),
        text(&status["phase"]).into(),
        claim.into(),
        text(&spec["storageClassName"]).into(),
        "<unset>".into(),
        text(&status["reason"]).into(),
        age(timestamp(&metadata["creationTimestamp"]), now).into(),
        text(&spec["volumeMode"]).into(),
    ]
}

/// `GetAccessModesAsString`: the short names, each once, in a fixed order.
pub(super) fn modes(given: &Value) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| array(given).any(|given| given == mode);
    let short = SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short);
    short.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_those_of_kubectl() {
        let volume = json!({
            "metadata": {"name": "a"},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "fast",
                "volumeMode": "Filesystem", "claimRef": {"namespace": "default", "name": "data"},
            },
            "status": {"phase": "Bound"},
        });
        assert_eq!(
            cells(&volume, Timestamp(0)),
            [
                "a",
                "1Gi",
                "RWO,RWX",
                "Retain",
                "Bound",
                "default/data",
                "fast",
                "<unset>",
                "",
                "<unknown>",
                "Filesystem"
            ]
        );
    }
}
