//! PersistentVolumeClaims, as `kubectl get` prints them.

use serde_json::Value;

use super::cells::{age, text, timestamp};
use super::generic;
use super::persistent_volume::modes;
use super::strategy::{Column, Describe, Strategy};
use crate::manifest::persistent::CLAIM_READER;
use nodlet_core::time::Timestamp;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: COLUMNS,
    cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(generic::describe),
    reader: Some(CLAIM_READER),
    protobuf: &[],
};

const COLUMNS: &[Column] = &[
    ("Name", "string", "name", 0),
    ("Status", "string", "", 0),
    ("Volume", "string", "", 0),
    ("Capacity", "string", "", 0),
    ("Access Modes", "string", "", 0),
    ("StorageClass", "string", "", 0),
    ("VolumeAttributesClass", "string", "", 0),
    ("Age", "string", "", 0),
    ("VolumeMode", "string", "", 1),
];

fn cells(claim: &Value, now: Timestamp) -> Vec<Value> {
    let (metadata, spec, status) = (&claim["metadata"], &claim["spec"], &claim["status"]);
    vec![
        text(&metadata["name"]).into(),
        text(&status["phase"]).into(),
        text(&spec["volumeName"]).into(),
        text(&status["capacity"]["storage"]).into(),
        modes(&status["accessModes"]).into(),
        text(&spec["storageClassName"]).into(),
        "<unset>".into(),
        age(timestamp(&metadata["creationTimestamp"]), now).into(),
        text(&spec["volumeMode"]).into(),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_unbound_claim_has_empty_cells() {
        let pending = json!({"metadata": {"name": "data"}, "status": {"phase": "Pending"}});
        assert_eq!(
            cells(&pending, Timestamp(0)),
            ["data", "Pending", "", "", "", "", "<unset>", "<unknown>", ""]
        );
    }
}
