use serde_json::json;

use super::*;
use crate::manifest::{Validation, contents};

fn read(kind: &str, spec: &str) -> Result<Value, String> {
    let text = format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a, uid: b}}\nspec: {spec}\n");
    let read = contents("c.yaml", text.as_bytes(), Validation::Strict, "board");
    read.map(|mut contents| contents.definitions.remove(0).object()).map_err(|error| error.to_string())
}

const VOLUME: &str = "PersistentVolume";
const CLAIM: &str = "PersistentVolumeClaim";
const LOCAL: &str = "local: {path: /a}, nodeAffinity: {required: {nodeSelectorTerms: \
    [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [board]}]}]}}";

#[test]
fn volumes_and_claims_have_the_defaults_of_kubernetes() {
    let volume =
        read(VOLUME, "{capacity: {storage: 1024Mi}, accessModes: [ReadWriteOnce], hostPath: {path: /a}}");
    assert_eq!(
        volume.expect("it is right")["spec"],
        json!({
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a", "type": ""},
            "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
        })
    );
    let local =
        read(VOLUME, &format!("{{capacity: {{storage: 1}}, accessModes: [ReadWriteOncePod], {LOCAL}}}"));
    let placement = placement(&local.expect("it is right"));
    let labels = |host: &str| [("kubernetes.io/hostname".to_owned(), host.to_owned())].into();
    assert!(placement.matches("board", &labels("board")) && !placement.matches("board", &labels("other")));
    let claim = read(CLAIM, "{accessModes: [ReadWriteOnce], resources: {requests: {storage: 1000}}}");
    let claim = claim.expect("it is right");
    assert_eq!(
        json!([claim["spec"]["volumeMode"], claim["metadata"]["namespace"]]),
        json!(["Filesystem", "default"])
    );
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1k");
    let tiny = read(CLAIM, "{accessModes: [ReadWriteOnce], resources: {requests: {storage: 0.1m}}}");
    assert_eq!(tiny.expect("it is right")["spec"]["resources"]["requests"]["storage"], "1m");
}

#[test]
fn invalid_volumes_and_claims_are_rejected_with_the_errors_of_kubernetes() {
    let of_volume =
        |rest: &str| format!("{{capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], {rest}}}");
    let of_claim = |rest: &str| format!("{{resources: {{requests: {{storage: 1Gi}}}}, {rest}}}");
    for (kind, spec, expected) in [
        (VOLUME, "{}".to_owned(), "spec.accessModes: Required value"),
        (VOLUME, "{}".to_owned(), "spec.capacity: Required value"),
        (VOLUME, "{}".to_owned(), "spec: Required value: must specify a volume type"),
        (
            VOLUME,
            of_volume("local: {path: /a}"),
            "spec.nodeAffinity: Required value: Local volume requires node affinity",
        ),
        (
            VOLUME,
            of_volume("hostPath: {path: /a/../b}"),
            "spec.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        (
            VOLUME,
            of_volume(&format!("hostPath: {{path: /a}}, {LOCAL}")),
            "spec.local: Forbidden: may not specify more than 1 volume type",
        ),
        (
            VOLUME,
            of_volume("nfs: {server: a, path: /}"),
            "spec.nfs: Forbidden: nodlet provides no PersistentVolumes but those of hostPath and local",
        ),
        (
            VOLUME,
            of_volume("hostPath: {path: /a}, persistentVolumeReclaimPolicy: Recycle"),
            "spec.persistentVolumeReclaimPolicy: Forbidden: Recycle: deprecated by Kubernetes",
        ),
        (
            VOLUME,
            of_volume("hostPath: {path: /a}, persistentVolumeReclaimPolicy: Keep"),
            "Unsupported value: \"Keep\": supported values: \"Delete\", \"Recycle\", \"Retain\"",
        ),
        (
            VOLUME,
            of_volume("hostPath: {path: /a}, mountOptions: [ro]"),
            "spec.mountOptions: Forbidden: may not specify mount options for this volume type",
        ),
        (
            VOLUME,
            of_volume("hostPath: {path: /a}, volumeMode: Raw"),
            "spec.volumeMode: Unsupported value: \"Raw\": supported values: \"Block\", \"Filesystem\"",
        ),
        (
            VOLUME,
            "{capacity: {storage: 0}, accessModes: [ReadWriteOnce], hostPath: {path: /a}}".to_owned(),
            "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
        ),
        (
            CLAIM,
            of_claim("accessModes: []"),
            "spec.accessModes: Required value: at least 1 access mode is required",
        ),
        (
            CLAIM,
            of_claim("accessModes: [Once]"),
            "spec.accessModes: Unsupported value: \"Once\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
        ),
        (
            CLAIM,
            of_claim("accessModes: [ReadWriteOncePod, ReadWriteOnce]"),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
        ),
        (CLAIM, "{accessModes: [ReadWriteOnce]}".to_owned(), "spec.resources[storage]: Required value"),
        (
            CLAIM,
            of_claim("accessModes: [ReadWriteOnce], dataSource: {kind: PersistentVolumeClaim, name: b}"),
            "spec.dataSource: Forbidden: nodlet does not fill volumes",
        ),
        (
            CLAIM,
            of_claim("accessModes: [ReadWriteOnce], selector: {matchExpressions: [{key: a, operator: In}]}"),
            "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ),
        (
            CLAIM,
            of_claim("accessModes: [ReadWriteOnce], selector: {matchLabels: {a: b c}}"),
            "spec.selector.matchLabels: Invalid value: \"b c\"",
        ),
        (
            CLAIM,
            of_claim(
                "accessModes: [ReadWriteOnce], selector: {matchExpressions: [{key: a, operator: In, values: [b c]}]}",
            ),
            "spec.selector.matchExpressions[0].values[0]: Invalid value: \"b c\"",
        ),
    ] {
        let refused = read(kind, &spec).expect_err(expected);
        assert!(refused.contains(expected), "{spec}: {refused}");
    }
}

#[test]
fn the_source_of_a_volume_is_immutable() {
    let volume =
        |path: &str| json!({"kind": VOLUME, "metadata": {"name": "a"}, "spec": {"hostPath": {"path": path}}});
    let refused = check_update(&volume("/a"), &volume("/b")).expect_err("another path").to_string();
    assert!(refused.contains("spec.persistentvolumesource: Forbidden"), "{refused}");
    assert!(check_update(&volume("/a"), &volume("/a")).is_ok());
}

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
        STRATEGY.cells(&volume, Timestamp(0)),
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
