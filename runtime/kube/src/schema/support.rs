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
    fields.iter().find(|(name, _)| *name == field).map(|(_, support)| *support)
}

use FieldSupport::{Acts, Rejects, Resources, Warns};

const NO_SCHEDULER: &str = "schedules nothing: the pod runs on the node that has its manifest";
const NO_TOKENS: &str = "has no service accounts: no token is mounted";
const NO_SERVICES: &str = "creates variables of Services only on a board in a cluster";
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

/// Every field that an accepted pod can have, by type.
#[rustfmt::skip]
pub(super) const SUPPORT: &[(&str, &[(&str, FieldSupport)])] = &[
    ("PodSpec", &[
        ("activeDeadlineSeconds", Acts),
        ("affinity", Acts),
        ("automountServiceAccountToken", Warns(NO_TOKENS, &["false"])),
        ("containers", Acts),
        ("dnsConfig", Acts),
        ("dnsPolicy", Acts),
        ("enableServiceLinks", Warns(NO_SERVICES, &["false"])),
        ("ephemeralContainers", Acts),
        ("hostAliases", Acts),
        ("hostIPC", Acts),
        ("hostNetwork", Acts),
        ("hostPID", Acts),
        ("hostUsers", Acts),
        ("hostname", Acts),
        ("hostnameOverride", Acts),
        ("imagePullSecrets", Acts),
        ("initContainers", Acts),
        ("nodeName", Acts),
        ("nodeSelector", Acts),
        ("os", Acts),
        ("overhead", Acts),
        ("preemptionPolicy", Warns(NO_SCHEDULER, &["\"PreemptLowerPriority\""])),
        ("priority", Acts),
        ("priorityClassName", Acts),
        ("readinessGates", Acts),
        ("resourceClaims", Rejects("does not allocate devices by resource claims", &["[]"])),
        ("resources", Acts),
        ("restartPolicy", Acts),
        ("runtimeClassName", Acts),
        ("schedulerName", Warns(NO_SCHEDULER, &["\"\"", "\"default-scheduler\""])),
        ("schedulingGates", Acts),
        ("schedulingGroup", Warns(NO_SCHEDULER, &["{}"])),
        ("securityContext", Acts),
        ("serviceAccount", Warns(NO_TOKENS, &["\"\"", "\"default\""])),
        ("serviceAccountName", Warns(NO_TOKENS, &["\"\"", "\"default\""])),
        ("setHostnameAsFQDN", Acts),
        ("shareProcessNamespace", Acts),
        ("subdomain", Acts),
        ("terminationGracePeriodSeconds", Acts),
        ("tolerations", Acts),
        ("topologySpreadConstraints", Warns(NO_SCHEDULER, &["[]"])),
        ("volumes", Acts),
    ]),
    ("Container", &[
        ("args", Acts),
        ("command", Acts),
        ("env", Acts),
        ("envFrom", Acts),
        ("image", Acts),
        ("imagePullPolicy", Acts),
        ("lifecycle", Acts),
        ("livenessProbe", Acts),
        ("name", Acts),
        ("ports", Acts),
        ("readinessProbe", Acts),
        ("resizePolicy", Acts),
        ("resources", Acts),
        ("restartPolicy", Acts),
        ("restartPolicyRules", Acts),
        ("securityContext", Acts),
        ("startupProbe", Acts),
        ("stdin", Acts),
        ("stdinOnce", Acts),
        ("terminationMessagePath", Acts),
        ("terminationMessagePolicy", Acts),
        ("tty", Acts),
        ("volumeDevices", Acts),
        ("volumeMounts", Acts),
        ("workingDir", Acts),
    ]),
    // Validation rejects the fields that Kubernetes does not allow, in Kubernetes' words.
    ("EphemeralContainer", &[
        ("args", Acts),
        ("command", Acts),
        ("env", Acts),
        ("envFrom", Acts),
        ("image", Acts),
        ("imagePullPolicy", Acts),
        ("lifecycle", Rejects(NOT_EPHEMERAL, &["{}"])),
        ("livenessProbe", Rejects(NOT_EPHEMERAL, &[])),
        ("name", Acts),
        ("ports", Rejects(NOT_EPHEMERAL, &["[]"])),
        ("readinessProbe", Rejects(NOT_EPHEMERAL, &[])),
        ("resizePolicy", Rejects(NOT_EPHEMERAL, &["[]"])),
        ("resources", Rejects(NOT_EPHEMERAL, &["{}"])),
        ("restartPolicy", Rejects(NOT_EPHEMERAL, &[])),
        ("restartPolicyRules", Rejects(NOT_EPHEMERAL, &["[]"])),
        ("securityContext", Acts),
        ("startupProbe", Rejects(NOT_EPHEMERAL, &[])),
        ("stdin", Acts),
        ("stdinOnce", Acts),
        ("targetContainerName", Acts),
        ("terminationMessagePath", Acts),
        ("terminationMessagePolicy", Acts),
        ("tty", Acts),
        ("volumeDevices", Acts),
        ("volumeMounts", Acts),
        ("workingDir", Acts),
    ]),
    ("ContainerPort", &[
        ("containerPort", Acts),
        ("hostIP", Acts),
        ("hostPort", Acts),
        ("name", Acts),
        ("protocol", Acts),
    ]),
    ("EnvVar", &[("name", Acts), ("value", Acts), ("valueFrom", Acts)]),
    ("EnvVarSource", &[
        ("configMapKeyRef", Acts),
        ("fieldRef", Acts),
        ("fileKeyRef", Acts),
        ("resourceFieldRef", Acts),
        ("secretKeyRef", Acts),
    ]),
    ("FileKeySelector", &[("key", Acts), ("optional", Acts), ("path", Acts), ("volumeName", Acts)]),
    ("ConfigMapKeySelector", &[("key", Acts), ("name", Acts), ("optional", Acts)]),
    ("SecretKeySelector", &[("key", Acts), ("name", Acts), ("optional", Acts)]),
    ("ResourceFieldSelector", &[("containerName", Acts), ("divisor", Acts), ("resource", Acts)]),
    ("EnvFromSource", &[("configMapRef", Acts), ("prefix", Acts), ("secretRef", Acts)]),
    ("ConfigMapEnvSource", &[("name", Acts), ("optional", Acts)]),
    ("SecretEnvSource", &[("name", Acts), ("optional", Acts)]),
    ("ObjectFieldSelector", &[("apiVersion", Acts), ("fieldPath", Acts)]),
    ("ResourceRequirements", &[
        ("claims", Rejects("does not allocate devices by resource claims", &["[]"])),
        ("limits", Resources),
        ("requests", Resources),
    ]),
    ("VolumeDevice", &[("devicePath", Acts), ("name", Acts)]),
    ("VolumeMount", &[
        ("mountPath", Acts),
        ("mountPropagation", Acts),
        ("name", Acts),
        ("readOnly", Acts),
        ("recursiveReadOnly", Acts),
        ("subPath", Acts),
        ("subPathExpr", Acts),
    ]),
    ("Probe", &[
        ("exec", Acts),
        ("failureThreshold", Acts),
        ("grpc", Acts),
        ("httpGet", Acts),
        ("initialDelaySeconds", Acts),
        ("periodSeconds", Acts),
        ("successThreshold", Acts),
        ("tcpSocket", Acts),
        ("terminationGracePeriodSeconds", Acts),
        ("timeoutSeconds", Acts),
    ]),
    ("ContainerResizePolicy", &[("resourceName", Acts), ("restartPolicy", Acts)]),
    ("ContainerRestartRule", &[("action", Acts), ("exitCodes", Acts)]),
    ("ContainerRestartRuleOnExitCodes", &[("operator", Acts), ("values", Acts)]),
    ("Lifecycle", &[("postStart", Acts), ("preStop", Acts), ("stopSignal", Acts)]),
    ("LifecycleHandler", &[("exec", Acts), ("httpGet", Acts), ("sleep", Acts), ("tcpSocket", Acts)]),
    ("SleepAction", &[("seconds", Acts)]),
    ("ExecAction", &[("command", Acts)]),
    ("HTTPGetAction", &[
        ("host", Acts),
        ("httpHeaders", Acts),
        ("path", Acts),
        ("port", Acts),
        ("scheme", Acts),
    ]),
    ("GRPCAction", &[("port", Acts), ("service", Acts)]),
    ("HTTPHeader", &[("name", Acts), ("value", Acts)]),
    ("TCPSocketAction", &[("host", Acts), ("port", Acts)]),
    ("SecurityContext", &[
        ("allowPrivilegeEscalation", Acts),
        ("appArmorProfile", Acts),
        ("capabilities", Acts),
        ("privileged", Acts),
        ("procMount", Acts),
        ("readOnlyRootFilesystem", Acts),
        ("runAsGroup", Acts),
        ("runAsNonRoot", Acts),
        ("runAsUser", Acts),
        ("seLinuxOptions", Rejects(NO_SELINUX, &["{}", UNCONFINED])),
        ("seccompProfile", Acts),
        ("windowsOptions", Rejects(NO_WINDOWS, &["{}"])),
    ]),
    ("Capabilities", &[("add", Acts), ("drop", Acts)]),
    ("SeccompProfile", &[("localhostProfile", Acts), ("type", Acts)]),
    ("AppArmorProfile", &[
        ("localhostProfile", Acts),
        ("type", Acts),
    ]),
    ("PodSecurityContext", &[
        ("appArmorProfile", Acts),
        ("fsGroup", Acts),
        ("fsGroupChangePolicy", Acts),
        ("runAsGroup", Acts),
        ("runAsNonRoot", Acts),
        ("runAsUser", Acts),
        ("seLinuxChangePolicy", Warns(NO_SELINUX, &[])),
        ("seLinuxOptions", Rejects(NO_SELINUX, &["{}", UNCONFINED])),
        ("seccompProfile", Acts),
        ("supplementalGroups", Acts),
        ("supplementalGroupsPolicy", Acts),
        ("sysctls", Acts),
        ("windowsOptions", Rejects(NO_WINDOWS, &["{}"])),
    ]),
    ("Sysctl", &[("name", Acts), ("value", Acts)]),
    ("LocalObjectReference", &[("name", Acts)]),
    ("PodOS", &[("name", Acts)]),
    ("Affinity", &[
        ("nodeAffinity", Acts),
        ("podAffinity", Warns(NO_SCHEDULER, &["{}"])),
        ("podAntiAffinity", Warns(NO_SCHEDULER, &["{}"])),
    ]),
    ("NodeAffinity", &[
        ("preferredDuringSchedulingIgnoredDuringExecution", Warns(NO_SCHEDULER, &["[]"])),
        ("requiredDuringSchedulingIgnoredDuringExecution", Acts),
    ]),
    ("NodeSelector", &[("nodeSelectorTerms", Acts)]),
    ("NodeSelectorTerm", &[("matchExpressions", Acts), ("matchFields", Acts)]),
    ("NodeSelectorRequirement", &[("key", Acts), ("operator", Acts), ("values", Acts)]),
    ("Toleration", &[
        ("effect", Acts),
        ("key", Acts),
        ("operator", Acts),
        ("tolerationSeconds", Warns(NO_EVICTION, &[])),
        ("value", Acts),
    ]),
    ("PodReadinessGate", &[("conditionType", Acts)]),
    ("PodSchedulingGate", &[("name", Acts)]),
    ("HostAlias", &[("hostnames", Acts), ("ip", Acts)]),
    ("PodDNSConfig", &[("nameservers", Acts), ("options", Acts), ("searches", Acts)]),
    ("PodDNSConfigOption", &[("name", Acts), ("value", Acts)]),
    ("Volume", &[
        ("awsElasticBlockStore", Rejects(NO_VOLUME, &[])),
        ("azureDisk", Rejects(NO_VOLUME, &[])),
        ("azureFile", Rejects(NO_VOLUME, &[])),
        ("cephfs", Rejects(NO_VOLUME, &[])),
        ("cinder", Rejects(NO_VOLUME, &[])),
        ("configMap", Acts),
        ("csi", Rejects(NO_VOLUME, &[])),
        ("downwardAPI", Acts),
        ("emptyDir", Acts),
        ("ephemeral", Acts),
        ("fc", Rejects(NO_VOLUME, &[])),
        ("flexVolume", Rejects(NO_VOLUME, &[])),
        ("flocker", Rejects(NO_VOLUME, &[])),
        ("gcePersistentDisk", Rejects(NO_VOLUME, &[])),
        ("gitRepo", Rejects(NO_GIT, &[])),
        ("glusterfs", Rejects(NO_VOLUME, &[])),
        ("hostPath", Acts),
        ("image", Acts),
        ("iscsi", Rejects(NO_VOLUME, &[])),
        ("name", Acts),
        ("nfs", Rejects(NO_VOLUME, &[])),
        ("persistentVolumeClaim", Acts),
        ("photonPersistentDisk", Rejects(NO_VOLUME, &[])),
        ("portworxVolume", Rejects(NO_VOLUME, &[])),
        ("projected", Acts),
        ("quobyte", Rejects(NO_VOLUME, &[])),
        ("rbd", Rejects(NO_VOLUME, &[])),
        ("scaleIO", Rejects(NO_VOLUME, &[])),
        ("secret", Acts),
        ("storageos", Rejects(NO_VOLUME, &[])),
        ("vsphereVolume", Rejects(NO_VOLUME, &[])),
    ]),
    ("EmptyDirVolumeSource", &[
        ("medium", Acts),
        ("sizeLimit", Acts),
    ]),
    ("HostPathVolumeSource", &[("path", Acts), ("type", Acts)]),
    ("PersistentVolumeClaimVolumeSource", &[("claimName", Acts), ("readOnly", Acts)]),
    ("ImageVolumeSource", &[("pullPolicy", Acts), ("reference", Acts)]),
    ("EphemeralVolumeSource", &[("volumeClaimTemplate", Acts)]),
    ("PersistentVolumeClaimTemplate", &[("metadata", Acts), ("spec", Acts)]),
    ("ObjectMeta", &[
        ("annotations", Acts),
        ("creationTimestamp", Rejects(NO_TEMPLATE, &[])),
        ("deletionGracePeriodSeconds", Rejects(NO_TEMPLATE, &[])),
        ("deletionTimestamp", Rejects(NO_TEMPLATE, &[])),
        ("finalizers", Rejects(NO_TEMPLATE, &["[]"])),
        ("generateName", Rejects(NO_TEMPLATE, &["\"\""])),
        ("generation", Rejects(NO_TEMPLATE, &[])),
        ("labels", Acts),
        ("managedFields", Rejects(NO_TEMPLATE, &["[]"])),
        ("name", Rejects(NO_TEMPLATE, &["\"\""])),
        ("namespace", Rejects(NO_TEMPLATE, &["\"\""])),
        ("ownerReferences", Rejects(NO_TEMPLATE, &["[]"])),
        ("resourceVersion", Rejects(NO_TEMPLATE, &["\"\""])),
        ("selfLink", Rejects(NO_TEMPLATE, &["\"\""])),
        ("uid", Rejects(NO_TEMPLATE, &["\"\""])),
    ]),
    ("PersistentVolumeClaimSpec", &[
        ("accessModes", Acts),
        ("dataSource", Rejects(NO_DATA_SOURCE, &[])),
        ("dataSourceRef", Rejects(NO_DATA_SOURCE, &[])),
        ("resources", Acts),
        ("selector", Acts),
        ("storageClassName", Acts),
        ("volumeAttributesClassName", Rejects("has no classes of volume attributes", &["\"\""])),
        ("volumeMode", Acts),
        ("volumeName", Acts),
    ]),
    ("VolumeResourceRequirements", &[
        ("limits", Warns(NO_LIMITS, &["{}"])),
        ("requests", Acts),
    ]),
    ("LabelSelector", &[("matchExpressions", Acts), ("matchLabels", Acts)]),
    ("LabelSelectorRequirement", &[("key", Acts), ("operator", Acts), ("values", Acts)]),
    ("ConfigMapVolumeSource", &[("defaultMode", Acts), ("items", Acts), ("name", Acts), ("optional", Acts)]),
    ("SecretVolumeSource", &[("defaultMode", Acts), ("items", Acts), ("optional", Acts), ("secretName", Acts)]),
    ("DownwardAPIVolumeSource", &[("defaultMode", Acts), ("items", Acts)]),
    ("ProjectedVolumeSource", &[("defaultMode", Acts), ("sources", Acts)]),
    ("VolumeProjection", &[
        ("clusterTrustBundle", Rejects(NO_CLUSTER, &[])),
        ("configMap", Acts),
        ("downwardAPI", Acts),
        ("podCertificate", Rejects(NO_CLUSTER, &[])),
        ("secret", Acts),
        ("serviceAccountToken", Rejects(NO_CLUSTER, &[])),
    ]),
    ("ConfigMapProjection", &[("items", Acts), ("name", Acts), ("optional", Acts)]),
    ("SecretProjection", &[("items", Acts), ("name", Acts), ("optional", Acts)]),
    ("DownwardAPIProjection", &[("items", Acts)]),
    ("KeyToPath", &[("key", Acts), ("mode", Acts), ("path", Acts)]),
    ("DownwardAPIVolumeFile", &[("fieldRef", Acts), ("mode", Acts), ("path", Acts), ("resourceFieldRef", Acts)]),
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
            .flat_map(|(owner, fields)| fields.iter().map(move |(field, _)| (*owner, *field)))
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
        for (owner, fields) in SUPPORT {
            for (field, support) in *fields {
                let values = match support {
                    FieldSupport::Acts | FieldSupport::Resources => continue,
                    FieldSupport::Warns(_, values) | FieldSupport::Rejects(_, values) => values,
                };
                for text in *values {
                    let value: serde_json::Value = serde_json::from_str(text).unwrap();
                    assert_eq!(value.to_string(), *text, "{owner}.{field}");
                }
            }
        }
    }
}
