//! The fields of volumes and of their mounts.

use super::Observation::{Log, Status};
use super::{Row, row};

const SUCCEEDED: &str = r#""phase":"Succeeded""#;
const UNMOUNTED: &str = "FailedMount: ";

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row("VolumeMount.mountPath", Log("app"),
        "containers: [{name: app, [[mounts]], volumeMounts: [{name: v, mountPath: /@}]}], volumes: [{name: v, emptyDir: {}}]",
        &[("one", " /one "), ("two", " /two ")]),
    row("VolumeMount.mountPropagation", Log("app"),
        "containers: [{name: app, [[cat /proc/self/mountinfo]], securityContext: {privileged: true}, \
           volumeMounts: [{name: v, mountPath: /v, @}]}], \
         volumes: [{name: v, hostPath: {path: $DIR}}], tolerations: [{operator: Exists}]",
        &[("", " /v rw,relatime - "), ("mountPropagation: HostToContainer", " /v rw,relatime master:"),
          ("mountPropagation: Bidirectional", " /v rw,relatime shared:")]).tainted(),
    row("VolumeMount.name", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: @, mountPath: /v}]}], \
         volumes: [{name: map, configMap: {name: fast}}, {name: secret, secret: {secretName: mine}}]",
        &[("map", "level\nmode\n"), ("secret", "user\nword\n")]),
    row("VolumeMount.readOnly", Status,
        "containers: [{name: app, [[touch /v/new]], volumeMounts: [{name: v, mountPath: /v, @}]}], volumes: [{name: v, emptyDir: {}}]",
        &[("", SUCCEEDED), ("readOnly: true", r#""phase":"Failed""#)]),
    row("VolumeMount.recursiveReadOnly", Log("app"),
        "containers: [{name: app, [[cat /proc/self/mountinfo]], volumeMounts: [{name: v, mountPath: /v, readOnly: true, @}]}], \
         volumes: [{name: v, hostPath: {path: $DIR}}]",
        &[("", " /v/sub/deep rw,"), ("recursiveReadOnly: Enabled", " /v/sub/deep ro,"),
          ("recursiveReadOnly: IfPossible", " /v/sub/deep ro,")]),
    row("VolumeMount.subPath", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v, @}]}], volumes: [{name: v, hostPath: {path: $DIR}}]",
        &[("", "one\nsub\ntwo\n"), ("subPath: sub", "inner\n")]),
    row("VolumeMount.subPathExpr", Log("app"),
        "containers: [{name: app, [[ls /v]], env: [{name: A, value: sub}], volumeMounts: [{name: v, mountPath: /v, @}]}], \
         volumes: [{name: v, hostPath: {path: $DIR}}]",
        &[("", "one\nsub\ntwo\n"), ("subPathExpr: $(A)", "inner\n")]),

    row("Volume.configMap", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, @}]",
        &[("emptyDir: {}", ""), ("configMap: {name: fast}", "level\nmode\n")]).with(&["Volume.emptyDir"]),
    row("Volume.downwardAPI", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, @}]",
        &[("emptyDir: {}", ""), ("downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}", "name\n")])
        .with(&["Volume.emptyDir"]),
    row("Volume.emptyDir", Status,
        "containers: [{name: app, [[touch /v/new]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, @}]",
        &[("configMap: {name: fast}", r#""phase":"Failed""#), ("emptyDir: {}", SUCCEEDED)]).with(&["Volume.configMap"]),
    row("Volume.hostPath", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, @}]",
        &[("emptyDir: {}", ""), ("hostPath: {path: $DIR}", "one\nsub\ntwo\n")]).with(&["Volume.emptyDir"]),
    row("Volume.name", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [@]",
        &[("{name: v, configMap: {name: fast}}, {name: w, configMap: {name: fast, items: [{key: mode, path: other}]}}", "mode\n"),
          ("{name: w, configMap: {name: fast}}, {name: v, configMap: {name: fast, items: [{key: mode, path: other}]}}", "other\n")]),
    row("Volume.projected", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, @}]",
        &[("emptyDir: {}", ""), ("projected: {sources: [{secret: {name: mine}}]}", "user\nword\n")]).with(&["Volume.emptyDir"]),
    row("Volume.secret", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, @}]",
        &[("emptyDir: {}", ""), ("secret: {secretName: mine}", "user\nword\n")]).with(&["Volume.emptyDir"]),

    row("ConfigMapVolumeSource.defaultMode", Log("app"),
        "containers: [{name: app, [[stat /v/..data/mode]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, configMap: {name: fast, @}}]",
        &[("", "file 0644 "), ("defaultMode: 0400", "file 0400 ")]),
    row("ConfigMapVolumeSource.items", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, configMap: {name: fast, @}}]",
        &[("", "level\nmode\n"), ("items: [{key: mode, path: other}]", "other\n")]),
    row("ConfigMapVolumeSource.name", Log("app"),
        "containers: [{name: app, [[cat /v/mode]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, configMap: {name: @}}]",
        &[("fast", "quick"), ("slow", "lazy")]),
    row("ConfigMapVolumeSource.optional", Status,
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, configMap: {name: none, @}}]",
        &[("", UNMOUNTED), ("optional: true", SUCCEEDED)]),
    row("KeyToPath.key", Log("app"),
        "containers: [{name: app, [[cat /v/file]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, configMap: {name: fast, items: [{key: @, path: file}]}}]",
        &[("mode", "quick"), ("level", "3")]),
    row("KeyToPath.mode", Log("app"),
        "containers: [{name: app, [[stat /v/..data/file]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, configMap: {name: fast, items: [{key: mode, path: file, @}]}}]",
        &[("", "file 0644 "), ("mode: 0400", "file 0400 ")]),
    row("KeyToPath.path", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, configMap: {name: fast, items: [{key: mode, path: @}]}}]",
        &[("one", "one\n"), ("two", "two\n")]),

    row("DownwardAPIVolumeSource.defaultMode", Log("app"),
        "containers: [{name: app, [[stat /v/..data/file]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, downwardAPI: {@ items: [{path: file, fieldRef: {fieldPath: metadata.name}}]}}]",
        &[("", "file 0644 "), ("defaultMode: 0400,", "file 0400 ")]),
    row("DownwardAPIVolumeSource.items", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, downwardAPI: {@}}]",
        &[("", ""), ("items: [{path: file, fieldRef: {fieldPath: metadata.name}}]", "file\n")]),
    row("DownwardAPIVolumeFile.fieldRef", Log("app"),
        "containers: [{name: app, [[cat /v/file]], resources: {limits: {memory: 64Mi}}, volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, downwardAPI: {items: [{path: file, @}]}}]",
        &[("resourceFieldRef: {containerName: app, resource: limits.memory}", "67108864"),
          ("fieldRef: {fieldPath: metadata.namespace}", "default")]).with(&["DownwardAPIVolumeFile.resourceFieldRef"]),
    row("DownwardAPIVolumeFile.mode", Log("app"),
        "containers: [{name: app, [[stat /v/..data/file]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, downwardAPI: {items: [{path: file, @ fieldRef: {fieldPath: metadata.name}}]}}]",
        &[("", "file 0644 "), ("mode: 0400,", "file 0400 ")]),
    row("DownwardAPIVolumeFile.path", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, downwardAPI: {items: [{path: @, fieldRef: {fieldPath: metadata.name}}]}}]",
        &[("one", "one\n"), ("two", "two\n")]),
    row("DownwardAPIVolumeFile.resourceFieldRef", Log("app"),
        "containers: [{name: app, [[cat /v/file]], resources: {limits: {memory: 64Mi}}, volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, downwardAPI: {items: [{path: file, @}]}}]",
        &[("fieldRef: {fieldPath: metadata.namespace}", "default"),
          ("resourceFieldRef: {containerName: app, resource: limits.memory}", "67108864")])
        .with(&["DownwardAPIVolumeFile.fieldRef"]),

    row("EmptyDirVolumeSource.medium", Log("app"),
        "containers: [{name: app, [[mounts]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, emptyDir: {@}}]",
        &[("", " /v "), ("medium: Memory", " /v rw,nosuid,nodev,relatime - tmpfs ")]),
    row("EmptyDirVolumeSource.sizeLimit", Log("app"),
        "containers: [{name: app, [[mounts]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, emptyDir: {medium: Memory, @}}]",
        &[("", " /v rw,nosuid,nodev,relatime - tmpfs "), ("sizeLimit: 2Mi", "size=2048k")]),
    row("HostPathVolumeSource.path", Log("app"),
        "containers: [{name: app, [[cat /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, hostPath: {path: $DIR/@}}]",
        &[("one", "one of the host\n"), ("two", "two of the host\n")]),
    // The path does not exist, and is of this pod alone, because some types create it.
    row("HostPathVolumeSource.type", Status,
        "containers: [{name: app, [[stat /v then exit 1]], terminationMessagePolicy: FallbackToLogsOnError, \
         volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, hostPath: {path: $DIR/$POD, type: @}}]",
        &[("File", "is not a file"), ("FileOrCreate", r#""message":"file 0644 0:0 0"#),
          ("Directory", "is not a directory"), ("DirectoryOrCreate", r#""message":"dir 0755 "#),
          ("''", r#""message":"dir 0755 "#), ("Socket", "is not a socket file"),
          ("CharDevice", "is not a character device"), ("BlockDevice", "is not a block device")]),

    row("ProjectedVolumeSource.defaultMode", Log("app"),
        "containers: [{name: app, [[stat /v/..data/mode]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {@ sources: [{configMap: {name: fast}}]}}]",
        &[("", "file 0644 "), ("defaultMode: 0400,", "file 0400 ")]),
    row("ProjectedVolumeSource.sources", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{configMap: {name: fast}}@]}}]",
        &[("", "level\nmode\n"), (", {secret: {name: mine}}", "level\nmode\nuser\nword\n")]),
    row("VolumeProjection.configMap", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{secret: {name: mine}}@]}}]",
        &[("", "user\nword\n"), (", {configMap: {name: fast}}", "level\nmode\nuser\nword\n")]),
    row("VolumeProjection.downwardAPI", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{secret: {name: mine}}@]}}]",
        &[("", "user\nword\n"), (", {downwardAPI: {items: [{path: file, fieldRef: {fieldPath: metadata.name}}]}}", "file\nuser\nword\n")]),
    row("VolumeProjection.secret", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{configMap: {name: fast}}@]}}]",
        &[("", "level\nmode\n"), (", {secret: {name: mine}}", "level\nmode\nuser\nword\n")]),
    row("ConfigMapProjection.items", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{configMap: {name: fast, @}}]}}]",
        &[("", "level\nmode\n"), ("items: [{key: mode, path: other}]", "other\n")]),
    row("ConfigMapProjection.name", Log("app"),
        "containers: [{name: app, [[cat /v/mode]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{configMap: {name: @}}]}}]",
        &[("fast", "quick"), ("slow", "lazy")]),
    row("ConfigMapProjection.optional", Status,
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{configMap: {name: none, @}}]}}]",
        &[("", UNMOUNTED), ("optional: true", SUCCEEDED)]),
    row("DownwardAPIProjection.items", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{downwardAPI: {@}}]}}]",
        &[("", ""), ("items: [{path: file, fieldRef: {fieldPath: metadata.name}}]", "file\n")]),
    row("SecretProjection.items", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{secret: {name: mine, @}}]}}]",
        &[("", "user\nword\n"), ("items: [{key: user, path: other}]", "other\n")]),
    row("SecretProjection.name", Log("app"),
        "containers: [{name: app, [[cat /v/user]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{secret: {name: @}}]}}]",
        &[("mine", "me"), ("yours", "you")]),
    row("SecretProjection.optional", Status,
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, projected: {sources: [{secret: {name: none, @}}]}}]",
        &[("", UNMOUNTED), ("optional: true", SUCCEEDED)]),
    row("SecretVolumeSource.defaultMode", Log("app"),
        "containers: [{name: app, [[stat /v/..data/user]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, secret: {secretName: mine, @}}]",
        &[("", "file 0644 "), ("defaultMode: 0400", "file 0400 ")]),
    row("SecretVolumeSource.items", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, secret: {secretName: mine, @}}]",
        &[("", "user\nword\n"), ("items: [{key: user, path: other}]", "other\n")]),
    row("SecretVolumeSource.optional", Status,
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, secret: {secretName: none, @}}]",
        &[("", UNMOUNTED), ("optional: true", SUCCEEDED)]),
    row("SecretVolumeSource.secretName", Log("app"),
        "containers: [{name: app, [[cat /v/user]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, secret: {secretName: @}}]",
        &[("mine", "me"), ("yours", "you")]),
];
