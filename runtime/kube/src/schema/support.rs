//! nodlet's behaviour for each field of a Pod's `spec`: the hand-written column of the table. `docs/pods.md`
//! is generated from it.
//!
//! The rule: a field is rejected if ignoring it would change what runs or what the user was promised. A field
//! that matters only for scheduling, ordering or credentials elsewhere causes a warning. An entry covers
//! everything below the field, except [`FieldSupport::Acts`]: then the fields below have their own entries.
//!
//! A field without an entry fails a test, and so does an entry without a field.

/// nodlet's behaviour for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldSupport {
    /// nodlet does what Kubernetes does.
    Acts,
    /// The field is stored and returned, but has no effect; values other than these, written as JSON, cause a warning.
    Warns(&'static str, &'static [&'static str]),
    /// The pod is rejected unless the field has one of these values, which request nothing.
    Rejects(&'static str, &'static [&'static str]),
    /// A map of resources: `cpu`, `memory`, `ephemeral-storage` and devices (`nodlet.dev/<name>`) have an effect,
    /// all others are rejected.
    Resources,
}

/// The support of `field` of the type `owner`; `None` if the field cannot occur in an accepted pod.
pub(crate) fn support(owner: &str, field: &str) -> Option<FieldSupport> {
    let (_, fields) = SUPPORT.iter().find(|(name, _)| *name == owner)?;
    fields.iter().find(|(_, names)| names.contains(&field)).map(|(support, _)| *support)
}

use FieldSupport::{Acts, Rejects, Resources, Warns};

const NO_SCHEDULER: &str = "schedules nothing: the pod runs on the node that has its manifest";
const NO_TOKENS: &str = "has no service accounts: no token is mounted, and on a board without a cluster there is no Service kubernetes";
const NO_VOLUME: &str = "has no storage drivers: mount the storage on the node, and use hostPath or a PersistentVolume with local";
const NO_GIT: &str = "clones no repositories, and neither does a kubelet by default: let an init container clone it into an emptyDir";
const NO_DATA_SOURCE: &str = "does not fill volumes from other objects";
const NO_TEMPLATE: &str = "sets it itself, as Kubernetes does";
const NO_CLUSTER: &str = "has no cluster that could issue it: use a secret with the file";
const NO_SELINUX: &str = "does not confine containers by SELinux: it labels neither processes nor volumes; use appArmorProfile where the kernel has AppArmor";
/// The `seLinuxOptions` that request no confinement.
const UNCONFINED: &str = r#"{"type":"spc_t"}"#;
const NO_WINDOWS: &str = "runs Linux containers only";
const NO_EVICTION: &str = "does not evict running pods because of taints";
const NO_LIMITS: &str = "binds claims by their requests alone";
const NOT_EPHEMERAL: &str = "does not allow it in ephemeral containers, as Kubernetes does not";

/// Reasons of warnings that do not apply to pods of a cluster: its scheduler and its controllers act on these fields.
pub(crate) const OF_CLUSTER: [&str; 3] = [NO_SCHEDULER, NO_EVICTION, NO_LIMITS];

/// Fields of one type with the same support.
type Fields = (FieldSupport, &'static [&'static str]);

/// Every field that an accepted pod can have, by type.
#[rustfmt::skip]
pub(super) const SUPPORT: &[(&str, &[Fields])] = &[
    ("PodSpec", &[
        (Acts, &[
            "activeDeadlineSeconds", "affinity", "containers", "dnsConfig", "dnsPolicy", "enableServiceLinks", "ephemeralContainers",
            "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname", "hostnameOverride",
            "imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "os", "overhead", "priority",
            "priorityClassName", "readinessGates", "resources", "restartPolicy", "runtimeClassName",
            "schedulingGates", "securityContext", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
            "terminationGracePeriodSeconds", "tolerations", "volumes",
        ]),
        (Warns(NO_TOKENS, &["false"]), &["automountServiceAccountToken"]),
        (Warns(NO_SCHEDULER, &["\"PreemptLowerPriority\""]), &["preemptionPolicy"]),
        (Rejects("does not allocate devices by resource claims", &["[]"]), &["resourceClaims"]),
        (Warns(NO_SCHEDULER, &["\"\"", "\"default-scheduler\""]), &["schedulerName"]),
        (Warns(NO_SCHEDULER, &["{}"]), &["schedulingGroup"]),
        (Warns(NO_TOKENS, &["\"\"", "\"default\""]), &["serviceAccount", "serviceAccountName"]),
        (Warns(NO_SCHEDULER, &["[]"]), &["topologySpreadConstraints"]),
    ]),
    ("Container", &[
        (Acts, &[
            "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name",
            "ports", "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules",
            "securityContext", "startupProbe", "stdin", "stdinOnce", "terminationMessagePath",
            "terminationMessagePolicy", "tty", "volumeDevices", "volumeMounts", "workingDir",
        ]),
    ]),
    // Validation rejects the fields that Kubernetes does not allow, in Kubernetes' words.
    ("EphemeralContainer", &[
        (Acts, &[
            "args", "command", "env", "envFrom", "image", "imagePullPolicy", "name", "securityContext", "stdin",
            "stdinOnce", "targetContainerName", "terminationMessagePath", "terminationMessagePolicy", "tty",
            "volumeDevices", "volumeMounts", "workingDir",
        ]),
        (Rejects(NOT_EPHEMERAL, &["{}"]), &["lifecycle", "resources"]),
        (Rejects(NOT_EPHEMERAL, &[]), &["livenessProbe", "readinessProbe", "restartPolicy", "startupProbe"]),
        (Rejects(NOT_EPHEMERAL, &["[]"]), &["ports", "resizePolicy", "restartPolicyRules"]),
    ]),
    ("ContainerPort", &[(Acts, &["containerPort", "hostIP", "hostPort", "name", "protocol"])]),
    ("EnvVar", &[(Acts, &["name", "value", "valueFrom"])]),
    ("EnvVarSource", &[
        (Acts, &["configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef", "secretKeyRef"]),
    ]),
    ("FileKeySelector", &[(Acts, &["key", "optional", "path", "volumeName"])]),
    ("ConfigMapKeySelector", &[(Acts, &["key", "name", "optional"])]),
    ("SecretKeySelector", &[(Acts, &["key", "name", "optional"])]),
    ("ResourceFieldSelector", &[(Acts, &["containerName", "divisor", "resource"])]),
    ("EnvFromSource", &[(Acts, &["configMapRef", "prefix", "secretRef"])]),
    ("ConfigMapEnvSource", &[(Acts, &["name", "optional"])]),
    ("SecretEnvSource", &[(Acts, &["name", "optional"])]),
    ("ObjectFieldSelector", &[(Acts, &["apiVersion", "fieldPath"])]),
    ("ResourceRequirements", &[
        (Rejects("does not allocate devices by resource claims", &["[]"]), &["claims"]),
        (Resources, &["limits", "requests"]),
    ]),
    ("VolumeDevice", &[(Acts, &["devicePath", "name"])]),
    ("VolumeMount", &[
        (Acts, &[
            "mountPath", "mountPropagation", "name", "readOnly", "recursiveReadOnly", "subPath", "subPathExpr",
        ]),
    ]),
    ("Probe", &[
        (Acts, &[
            "exec", "failureThreshold", "grpc", "httpGet", "initialDelaySeconds", "periodSeconds",
            "successThreshold", "tcpSocket", "terminationGracePeriodSeconds", "timeoutSeconds",
        ]),
    ]),
    ("ContainerResizePolicy", &[(Acts, &["resourceName", "restartPolicy"])]),
    ("ContainerRestartRule", &[(Acts, &["action", "exitCodes"])]),
    ("ContainerRestartRuleOnExitCodes", &[(Acts, &["operator", "values"])]),
    ("Lifecycle", &[(Acts, &["postStart", "preStop", "stopSignal"])]),
    ("LifecycleHandler", &[(Acts, &["exec", "httpGet", "sleep", "tcpSocket"])]),
    ("SleepAction", &[(Acts, &["seconds"])]),
    ("ExecAction", &[(Acts, &["command"])]),
    ("HTTPGetAction", &[(Acts, &["host", "httpHeaders", "path", "port", "scheme"])]),
    ("GRPCAction", &[(Acts, &["port", "service"])]),
    ("HTTPHeader", &[(Acts, &["name", "value"])]),
    ("TCPSocketAction", &[(Acts, &["host", "port"])]),
    ("SecurityContext", &[
        (Acts, &[
            "allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount",
            "readOnlyRootFilesystem", "runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile",
        ]),
        (Rejects(NO_SELINUX, &["{}", UNCONFINED]), &["seLinuxOptions"]),
        (Rejects(NO_WINDOWS, &["{}"]), &["windowsOptions"]),
    ]),
    ("Capabilities", &[(Acts, &["add", "drop"])]),
    ("SeccompProfile", &[(Acts, &["localhostProfile", "type"])]),
    ("AppArmorProfile", &[(Acts, &["localhostProfile", "type"])]),
    ("PodSecurityContext", &[
        (Acts, &[
            "appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser",
            "seccompProfile", "supplementalGroups", "supplementalGroupsPolicy", "sysctls",
        ]),
        (Warns(NO_SELINUX, &[]), &["seLinuxChangePolicy"]),
        (Rejects(NO_SELINUX, &["{}", UNCONFINED]), &["seLinuxOptions"]),
        (Rejects(NO_WINDOWS, &["{}"]), &["windowsOptions"]),
    ]),
    ("Sysctl", &[(Acts, &["name", "value"])]),
    ("LocalObjectReference", &[(Acts, &["name"])]),
    ("PodOS", &[(Acts, &["name"])]),
    ("Affinity", &[
        (Acts, &["nodeAffinity"]),
        (Warns(NO_SCHEDULER, &["{}"]), &["podAffinity", "podAntiAffinity"]),
    ]),
    ("NodeAffinity", &[
        (Acts, &["requiredDuringSchedulingIgnoredDuringExecution"]),
        (Warns(NO_SCHEDULER, &["[]"]), &["preferredDuringSchedulingIgnoredDuringExecution"]),
    ]),
    ("NodeSelector", &[(Acts, &["nodeSelectorTerms"])]),
    ("NodeSelectorTerm", &[(Acts, &["matchExpressions", "matchFields"])]),
    ("NodeSelectorRequirement", &[(Acts, &["key", "operator", "values"])]),
    ("Toleration", &[
        (Acts, &["effect", "key", "operator", "value"]),
        (Warns(NO_EVICTION, &[]), &["tolerationSeconds"]),
    ]),
    ("PodReadinessGate", &[(Acts, &["conditionType"])]),
    ("PodSchedulingGate", &[(Acts, &["name"])]),
    ("HostAlias", &[(Acts, &["hostnames", "ip"])]),
    ("PodDNSConfig", &[(Acts, &["nameservers", "options", "searches"])]),
    ("PodDNSConfigOption", &[(Acts, &["name", "value"])]),
    ("Volume", &[
        (Acts, &[
            "configMap", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "name",
            "persistentVolumeClaim", "projected", "secret",
        ]),
        (Rejects(NO_VOLUME, &[]), &[
            "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume",
            "flocker", "gcePersistentDisk", "glusterfs", "iscsi", "nfs", "photonPersistentDisk", "portworxVolume",
            "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume",
        ]),
        (Rejects(NO_GIT, &[]), &["gitRepo"]),
    ]),
    ("EmptyDirVolumeSource", &[(Acts, &["medium", "sizeLimit"])]),
    ("HostPathVolumeSource", &[(Acts, &["path", "type"])]),
    ("PersistentVolumeClaimVolumeSource", &[(Acts, &["claimName", "readOnly"])]),
    ("ImageVolumeSource", &[(Acts, &["pullPolicy", "reference"])]),
    ("EphemeralVolumeSource", &[(Acts, &["volumeClaimTemplate"])]),
    ("PersistentVolumeClaimTemplate", &[(Acts, &["metadata", "spec"])]),
    ("ObjectMeta", &[
        (Acts, &["annotations", "labels"]),
        (Rejects(NO_TEMPLATE, &[]), &[
            "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation",
        ]),
        (Rejects(NO_TEMPLATE, &["[]"]), &["finalizers", "managedFields", "ownerReferences"]),
        (Rejects(NO_TEMPLATE, &["\"\""]), &[
            "generateName", "name", "namespace", "resourceVersion", "selfLink", "uid",
        ]),
    ]),
    ("PersistentVolumeClaimSpec", &[
        (Acts, &["accessModes", "resources", "selector", "storageClassName", "volumeMode", "volumeName"]),
        (Rejects(NO_DATA_SOURCE, &[]), &["dataSource", "dataSourceRef"]),
        (Rejects("has no classes of volume attributes", &["\"\""]), &["volumeAttributesClassName"]),
    ]),
    ("VolumeResourceRequirements", &[
        (Acts, &["requests"]),
        (Warns(NO_LIMITS, &["{}"]), &["limits"]),
    ]),
    ("LabelSelector", &[(Acts, &["matchExpressions", "matchLabels"])]),
    ("LabelSelectorRequirement", &[(Acts, &["key", "operator", "values"])]),
    ("ConfigMapVolumeSource", &[(Acts, &["defaultMode", "items", "name", "optional"])]),
    ("SecretVolumeSource", &[(Acts, &["defaultMode", "items", "optional", "secretName"])]),
    ("DownwardAPIVolumeSource", &[(Acts, &["defaultMode", "items"])]),
    ("ProjectedVolumeSource", &[(Acts, &["defaultMode", "sources"])]),
    ("VolumeProjection", &[
        (Acts, &["configMap", "downwardAPI", "secret"]),
        (Rejects(NO_CLUSTER, &[]), &["clusterTrustBundle", "podCertificate", "serviceAccountToken"]),
    ]),
    ("ConfigMapProjection", &[(Acts, &["items", "name", "optional"])]),
    ("SecretProjection", &[(Acts, &["items", "name", "optional"])]),
    ("DownwardAPIProjection", &[(Acts, &["items"])]),
    ("KeyToPath", &[(Acts, &["key", "mode", "path"])]),
    ("DownwardAPIVolumeFile", &[(Acts, &["fieldRef", "mode", "path", "resourceFieldRef"])]),
];

#[cfg(test)]
mod tests {
    use nodlet_core::sorted::SortedSet;

    use super::{FieldSupport, SUPPORT, support};
    use crate::schema;

    /// Every (type, field) pair that can occur in a running pod: from PodSpec down through the fields on
    /// which nodlet acts.
    fn reachable_fields() -> SortedSet<(&'static str, &'static str)> {
        let mut reached = SortedSet::new();
        let mut open = vec![schema::find("PodSpec").unwrap()];
        while let Some(owner) = open.pop() {
            for field in owner.fields {
                if reached.insert((owner.name, field.name))
                    && support(owner.name, field.name) == Some(FieldSupport::Acts)
                {
                    open.extend(field.object());
                }
            }
        }
        reached
    }

    #[test]
    fn every_field_of_a_spec_has_an_entry_and_every_entry_a_field() {
        let ruled: Vec<_> = SUPPORT
            .iter()
            .flat_map(|(owner, groups)| {
                groups.iter().flat_map(|(_, names)| *names).map(move |name| (*owner, *name))
            })
            .collect();
        let unique: SortedSet<_> = ruled.iter().copied().collect();
        assert_eq!(unique.len(), ruled.len(), "a field has two entries");
        let reached = reachable_fields();
        assert_eq!(reached.difference(&unique).collect::<Vec<_>>(), Vec::<&(&str, &str)>::new(), "no entry");
        assert_eq!(
            unique.difference(&reached).collect::<Vec<_>>(),
            Vec::<&(&str, &str)>::new(),
            "no such field"
        );
    }

    #[test]
    fn harmless_values_are_written_as_json_writes_them() {
        for (owner, groups) in SUPPORT {
            for (support, fields) in *groups {
                let values = match support {
                    FieldSupport::Acts | FieldSupport::Resources => continue,
                    FieldSupport::Warns(_, values) | FieldSupport::Rejects(_, values) => values,
                };
                for text in *values {
                    let value: serde_json::Value = serde_json::from_str(text).unwrap();
                    assert_eq!(value.to_string(), *text, "{owner}: {fields:?}");
                }
            }
        }
    }
}
