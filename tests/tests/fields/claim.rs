//! The fields of claims, image volumes, files with variables, and of what a test of their own shows.

use super::Observation::{Claim, Log, Status};
use super::{Row, elsewhere, row};

const SUCCEEDED: &str = r#""phase":"Succeeded""#;
const RESIZES: &str = "the field shows when a running pod is resized";
const RESIZE: &str = "resources::a_container_restarts_only_for_the_resource_and_policy_that_it_names";
const BLOCK: &str =
    "tests/tests/claims/block.rs::a_block_volume_is_a_device_of_the_container_and_of_no_other";

/// A pod whose init container writes files with variables, without the source of the variable `X`.
macro_rules! from_file {
    ($source:literal) => {
        concat!(
            "initContainers: [{name: first, [[write /v/env A='one' then append /v/env B='two' \
             then write /v/other A='three' then write /w/env A='four']], volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}], \
             containers: [{name: app, [[env]], env: [{name: X, valueFrom: {",
            $source,
            "}}]}], volumes: [{name: v, emptyDir: {}}, {name: w, emptyDir: {}}]"
        )
    };
}

/// A pod with the volume `v` at `/v` that shows its mounts.
macro_rules! mounting {
    ($volume:literal) => {
        concat!(
            "containers: [{name: app, [[mounts]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, ",
            $volume,
            "}]"
        )
    };
}

/// The pod of [`mounting`] whose volume is of a claim with this spec.
macro_rules! claiming {
    ($spec:literal) => {
        concat!(
            "containers: [{name: app, [[mounts]], volumeMounts: [{name: v, mountPath: /v}]}], \
             volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {",
            $spec,
            "}}}}]"
        )
    };
}

/// The pod of [`claiming`] whose claim is of this storage class and has this selector.
macro_rules! selecting {
    ($class:literal, $selector:literal) => {
        concat!(
            "containers: [{name: app, [[mounts]], volumeMounts: [{name: v, mountPath: /v}]}], \
             volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], \
             resources: {requests: {storage: 1Mi}}, storageClassName: ",
            $class,
            ", selector: {",
            $selector,
            "}}}}}]"
        )
    };
}

/// A pod with the block devices `v` and `w`, which are the numbers 7,0 and 7,1, and a container with these fields.
macro_rules! with_devices {
    ($container:literal) => {
        concat!(
            "containers: [{name: app, ",
            $container,
            "}], volumes: [{name: v, persistentVolumeClaim: {claimName: disk-0}}, \
             {name: w, persistentVolumeClaim: {claimName: disk-1}}]"
        )
    };
}

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row("EnvVarSource.fileKeyRef", Log("app"), from_file!("@"),
        &[("fieldRef: {fieldPath: metadata.namespace}", "X=default\n"),
          ("fileKeyRef: {volumeName: v, path: env, key: A}", "X=one\n")]).with(&["EnvVarSource.fieldRef"]),
    row("FileKeySelector.key", Log("app"), from_file!("fileKeyRef: {volumeName: v, path: env, key: @}"),
        &[("A", "X=one\n"), ("B", "X=two\n")]),
    row("FileKeySelector.optional", Status, from_file!("fileKeyRef: {volumeName: v, path: env, key: C, @}"),
        &[("", "CreateContainerConfigError"), ("optional: true", SUCCEEDED)]),
    row("FileKeySelector.path", Log("app"), from_file!("fileKeyRef: {volumeName: v, path: @, key: A}"),
        &[("env", "X=one\n"), ("other", "X=three\n")]),
    row("FileKeySelector.volumeName", Log("app"), from_file!("fileKeyRef: {volumeName: @, path: env, key: A}"),
        &[("v", "X=one\n"), ("w", "X=four\n")]),

    row("Volume.image", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, @}]",
        &[("emptyDir: {}", ""), ("image: {reference: 'localhost/demo:1'}", "bin\n")]).with(&["Volume.emptyDir"]),
    row("ImageVolumeSource.reference", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, image: {reference: 'localhost/@:1'}}]",
        &[("demo", "bin\n"), ("other", "only-here\n")]),
    row("ImageVolumeSource.pullPolicy", Status,
        "containers: [{name: app, [[exit 0]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, image: {reference: 'localhost/absent:1', pullPolicy: @}}]",
        &[("IfNotPresent", "ErrImagePull"), ("Never", "ErrImageNeverPull")]),

    elsewhere("Container.resizePolicy", RESIZE, RESIZES),
    elsewhere("ContainerResizePolicy.resourceName", RESIZE, RESIZES),
    elsewhere("ContainerResizePolicy.restartPolicy", RESIZE, RESIZES),
    elsewhere("ContainerPort.hostPort", "ports::a_host_port_is_reached_from_outside_from_the_board_and_from_pods",
        "the field shows on other machines"),
    elsewhere("ContainerPort.hostIP", "ports::a_host_port_has_an_address_and_a_protocol_and_shows_the_client",
        "the field shows on other machines"),

    row("Container.volumeDevices", Log("app"), with_devices!("[[ls /dev]], @"),
        &[("", "null\n"), ("volumeDevices: [{name: v, devicePath: /dev/disk}]", "disk\n")]),
    elsewhere("EphemeralContainer.volumeDevices", BLOCK, "the rows of ephemeral containers have no block device"),
    row("VolumeDevice.devicePath", Log("app"),
        with_devices!("[[ls /dev]], volumeDevices: [{name: v, devicePath: /dev/@}]"),
        &[("one", "one\n"), ("two", "two\n")]),
    row("VolumeDevice.name", Log("app"),
        with_devices!("[[stat /dev/disk]], volumeDevices: [{name: @, devicePath: /dev/disk}]"),
        &[("v", " 7,0\n"), ("w", " 7,1\n")]),

    row("Volume.persistentVolumeClaim", Log("app"), mounting!("@"),
        &[("emptyDir: {}", " /v "), ("persistentVolumeClaim: {claimName: first}", "/claim-first-a /v rw")])
        .with(&["Volume.emptyDir"]),
    row("PersistentVolumeClaimVolumeSource.claimName", Log("app"), mounting!("persistentVolumeClaim: {claimName: @}"),
        &[("first", "/claim-first-a /v "), ("second", "/claim-second-a /v ")]),
    row("PersistentVolumeClaimVolumeSource.readOnly", Log("app"),
        mounting!("persistentVolumeClaim: {claimName: first, readOnly: @}"),
        &[("false", "/claim-first-a /v rw"), ("true", "/claim-first-a /v ro")]),
    row("Volume.ephemeral", Log("app"), mounting!("@"),
        &[("emptyDir: {}", " /v "),
          ("ephemeral: {volumeClaimTemplate: {spec: {storageClassName: one, accessModes: [ReadWriteOnce], \
            resources: {requests: {storage: 1Mi}}}}}", "/one-a /v ")]).with(&["Volume.emptyDir"]),
    row("EphemeralVolumeSource.volumeClaimTemplate", Log("app"), mounting!("ephemeral: {volumeClaimTemplate: {@}}"),
        &[("spec: {storageClassName: template, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}",
           "/template-a /v "),
          ("spec: {storageClassName: template, accessModes: [ReadOnlyMany], resources: {requests: {storage: 1Mi}}}",
           "/template-b /v ")]),
    row("PersistentVolumeClaimTemplate.spec", Log("app"), mounting!("ephemeral: {volumeClaimTemplate: {spec: {@}}}"),
        &[("storageClassName: spec, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}", "/spec-a /v "),
          ("storageClassName: spec, accessModes: [ReadWriteOnce], resources: {requests: {storage: 2Gi}}", "/spec-c /v ")]),
    row("PersistentVolumeClaimTemplate.metadata", Claim,
        mounting!("ephemeral: {volumeClaimTemplate: {metadata: {@}, spec: {storageClassName: none, \
                   accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}"),
        &[("", r#""phase":"Pending""#), ("labels: {of: template}", r#""of":"template""#)]),
    row("ObjectMeta.annotations", Claim,
        mounting!("ephemeral: {volumeClaimTemplate: {metadata: {annotations: {why: @}}, spec: {storageClassName: none, \
                   accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}"),
        &[("because", r#""annotations":{"why":"because"}"#), ("therefore", r#""annotations":{"why":"therefore"}"#)]),
    row("ObjectMeta.labels", Claim,
        mounting!("ephemeral: {volumeClaimTemplate: {metadata: {labels: {tier: @}}, spec: {storageClassName: none, \
                   accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}}"),
        &[("front", r#""labels":{"tier":"front"}"#), ("back", r#""labels":{"tier":"back"}"#)]),
    row("PersistentVolumeClaimSpec.accessModes", Log("app"),
        claiming!("storageClassName: modes, accessModes: [@], resources: {requests: {storage: 1Mi}}"),
        &[("ReadWriteOnce", "/modes-a /v "), ("ReadOnlyMany", "/modes-b /v ")]),
    row("PersistentVolumeClaimSpec.resources", Log("app"),
        claiming!("storageClassName: resources, accessModes: [ReadWriteOnce], resources: {@}"),
        &[("requests: {storage: 1Mi}", "/resources-a /v "), ("requests: {storage: 2Gi}", "/resources-c /v ")]),
    row("VolumeResourceRequirements.requests", Log("app"),
        claiming!("storageClassName: requests, accessModes: [ReadWriteOnce], resources: {requests: {storage: @}}"),
        &[("1Gi", "/requests-a /v "), ("1025Mi", "/requests-c /v ")]),
    row("PersistentVolumeClaimSpec.selector", Log("app"),
        claiming!("storageClassName: selector, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}, @"),
        &[("", "/selector-a /v "), ("selector: {matchLabels: {large: '1'}}", "/selector-c /v ")]),
    row("PersistentVolumeClaimSpec.storageClassName", Log("app"),
        claiming!("storageClassName: @, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}"),
        &[("class", "/class-a /v "), ("other", "/other-a /v ")]),
    row("PersistentVolumeClaimSpec.volumeName", Log("app"),
        claiming!("storageClassName: named, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}, volumeName: @"),
        &[("named-a", "/named-a /v "), ("named-c", "/named-c /v ")]),
    row("LabelSelector.matchExpressions", Log("app"), selecting!("expressions", "matchExpressions: [@]"),
        &[("{key: kind, operator: In, values: [a]}", "/expressions-a /v "),
          ("{key: large, operator: Exists}", "/expressions-c /v ")]),
    row("LabelSelector.matchLabels", Log("app"), selecting!("labels", "matchLabels: {kind: @}"),
        &[("a", "/labels-a /v "), ("c", "/labels-c /v ")]),
    row("LabelSelectorRequirement.key", Log("app"),
        selecting!("key", "matchExpressions: [{key: @, operator: Exists}]"),
        &[("small", "/key-a /v "), ("large", "/key-c /v ")]),
    row("LabelSelectorRequirement.operator", Log("app"),
        selecting!("operator", "matchExpressions: [{key: kind, @}]"),
        &[("operator: In, values: [c]", "/operator-c /v "), ("operator: Exists", "/operator-a /v "),
          ("operator: NotIn, values: [a]", "/operator-without-"), ("operator: DoesNotExist", "/operator-without-")])
        .with(&["LabelSelectorRequirement.values"]),
    row("LabelSelectorRequirement.values", Log("app"),
        selecting!("values", "matchExpressions: [{key: kind, operator: In, values: [@]}]"),
        &[("a", "/values-a /v "), ("c", "/values-c /v ")]),
    row("PersistentVolumeClaimSpec.volumeMode", Status,
        claiming!("storageClassName: mode, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}, volumeMode: @"),
        &[("Filesystem", SUCCEEDED), ("Block", "volume v has volumeMode Block, but is specified in volumeMounts")]),
];

/// The storage classes of the rows, none of which takes a volume of another one.
const CLASSES: &[&str] = &[
    "claim-first",
    "claim-second",
    "one",
    "template",
    "spec",
    "modes",
    "resources",
    "requests",
    "selector",
    "class",
    "other",
    "named",
    "expressions",
    "labels",
    "key",
    "operator",
    "values",
    "mode",
];

/// For each class, a small volume, one that is read by many, and a large one: `<class>-a`, `-b` and `-c`, at the paths
/// of their names below the shared directory; for `operator` also two of medium size without the label `kind`. Besides, the claims `first` and `second`, and block volumes: one for the
/// class `mode`, and those of the claims `disk-0` and `disk-1`.
pub(super) fn volumes() -> String {
    let mut text = String::new();
    const OF_EACH: &[[&str; 4]] = &[
        ["a", "1Gi", "ReadWriteOnce", "kind: a, small: '1'"],
        ["b", "1Gi", "ReadOnlyMany", "kind: b"],
        ["c", "4Gi", "ReadWriteOnce", "kind: c, large: '1'"],
    ];
    const UNLABELLED: &[[&str; 4]] =
        &[["without-1", "2Gi", "ReadWriteOnce", ""], ["without-2", "2Gi", "ReadWriteOnce", ""]];
    for class in CLASSES {
        let further = if *class == "operator" { UNLABELLED } else { &[] };
        for [name, capacity, mode, labels] in OF_EACH.iter().chain(further) {
            text += &format!(
                "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {class}-{name}, labels: {{{labels}}}}}\n\
                 spec: {{storageClassName: {class}, capacity: {{storage: {capacity}}}, accessModes: [{mode}], \
                 hostPath: {{path: $DIR/{class}-{name}}}}}\n"
            );
        }
    }
    for (name, class, disk) in
        [("mode-d", "mode", "disk-0"), ("disk-0", "disk", "disk-0"), ("disk-1", "disk", "disk-1")]
    {
        text += &format!(
            "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{storageClassName: {class}, \
             capacity: {{storage: 1Gi}}, accessModes: [ReadWriteOnce], volumeMode: Block, local: {{path: \
             $DIR/sub/{disk}}}, nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: zone, \
             operator: In, values: [a]}}]}}]}}}}}}\n"
        );
    }
    for disk in ["disk-0", "disk-1"] {
        text += &format!(
            "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {disk}}}\nspec: {{storageClassName: \
             disk, volumeName: {disk}, volumeMode: Block, accessModes: [ReadWriteOnce], resources: {{requests: \
             {{storage: 1Mi}}}}}}\n"
        );
    }
    for claim in ["first", "second"] {
        text += &format!(
            "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {claim}}}\nspec: {{storageClassName: \
             claim-{claim}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}\n"
        );
    }
    text
}
