//! The fields of claims, image volumes, files with variables, and of what a test of their own shows.

use crate::Look::{Log, Status};
use crate::{Row, elsewhere, row};

const SUCCEEDED: &str = r#""phase":"Succeeded""#;
const BINDING: &str = "the field decides which volume a claim gets";
const CLAIMS: &str = "the pod needs a PersistentVolume of its own";
const RESIZES: &str = "the field shows when a running pod is resized";
const RESIZE: &str = "resources::a_pod_is_resized_while_it_runs_and_restarts_only_for_what_requires_it";
const BLOCK: &str = "claims::a_block_volume_is_a_device_of_the_container_and_of_no_other";
const DEVICES: &str = "the pod needs a block device";
const SMALLEST: &str =
    "runtime/registry/src/tests/claims.rs::a_claim_gets_the_smallest_volume_that_satisfies_it";
const EPHEMERAL: &str = "claims::an_ephemeral_claim_is_made_for_its_pod_and_goes_with_it";
const OUTLIVES: &str = "claims::a_claim_outlives_its_pods_and_its_volume_keeps_the_data";

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
    row("ImageVolumeSource.reference", Status,
        "containers: [{name: app, [[exit 0]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, image: {reference: 'localhost/@'}}]",
        &[("demo:1", SUCCEEDED), ("absent:1", "localhost/absent:1")]),
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

    elsewhere("Container.volumeDevices", BLOCK, DEVICES),
    elsewhere("EphemeralContainer.volumeDevices", BLOCK, DEVICES),
    elsewhere("VolumeDevice.devicePath", BLOCK, DEVICES),
    elsewhere("VolumeDevice.name", BLOCK, DEVICES),

    elsewhere("Volume.persistentVolumeClaim", OUTLIVES, CLAIMS),
    elsewhere("PersistentVolumeClaimVolumeSource.claimName", OUTLIVES, CLAIMS),
    elsewhere("PersistentVolumeClaimVolumeSource.readOnly", "claims::a_claim_that_is_used_for_reading_is_mounted_read_only", CLAIMS),
    elsewhere("Volume.ephemeral", EPHEMERAL, CLAIMS),
    elsewhere("EphemeralVolumeSource.volumeClaimTemplate", EPHEMERAL, CLAIMS),
    elsewhere("PersistentVolumeClaimTemplate.metadata", EPHEMERAL, CLAIMS),
    elsewhere("PersistentVolumeClaimTemplate.spec", EPHEMERAL, CLAIMS),
    elsewhere("ObjectMeta.annotations", EPHEMERAL, CLAIMS),
    elsewhere("ObjectMeta.labels", EPHEMERAL, CLAIMS),
    elsewhere("PersistentVolumeClaimSpec.accessModes", SMALLEST, BINDING),
    elsewhere("PersistentVolumeClaimSpec.resources", SMALLEST, BINDING),
    elsewhere("VolumeResourceRequirements.requests", SMALLEST, BINDING),
    elsewhere("PersistentVolumeClaimSpec.selector", SMALLEST, BINDING),
    elsewhere("PersistentVolumeClaimSpec.storageClassName", SMALLEST, BINDING),
    elsewhere("PersistentVolumeClaimSpec.volumeMode", SMALLEST, BINDING),
    elsewhere("PersistentVolumeClaimSpec.volumeName",
        "runtime/registry/src/tests/claims.rs::a_claim_is_bound_to_the_volume_that_it_names", BINDING),
    elsewhere("LabelSelector.matchExpressions", SMALLEST, BINDING),
    elsewhere("LabelSelector.matchLabels", SMALLEST, BINDING),
    elsewhere("LabelSelectorRequirement.key", SMALLEST, BINDING),
    elsewhere("LabelSelectorRequirement.operator", SMALLEST, BINDING),
    elsewhere("LabelSelectorRequirement.values", SMALLEST, BINDING),
];
