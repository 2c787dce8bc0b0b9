//! The errors of Pods, in Kubernetes' words and order. Every expected text was printed by Kubernetes 1.36.3
//! itself (`ValidatePodCreate` after its own defaults).

use super::pod;
use crate::manifest::documents::documents;
use crate::object::walk;
use crate::pod::{defaults, set_server_fields};
use crate::schema;

/// Long texts of rules, and the names that stand for them in the tables below.
#[rustfmt::skip]
const TEXTS: [(&str, &str); 7] = [
    ("<label>", "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"),
    ("<subdomain>", r#"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#),
    ("<search>", r#"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"#),
    ("<name>", "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"),
    ("<value>", "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"),
    ("<env>", "a valid environment variable name must consist only of printable ASCII characters other than '='"),
    ("<key>", "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"),
];

/// Whole Pods, without `apiVersion` and `kind`.
#[rustfmt::skip]
const PODS: &[(&str, &[&str])] = &[
    ("metadata: {name: p}\nspec: {}",
        &["spec.containers: Required value"]),
    ("metadata: {name: p}\nspec: {containers: []}",
        &["spec.containers: Required value"]),
    ("metadata: {name: p}\nspec: {containers: [{}]}", &[
        "spec.containers[0].name: Required value",
        "spec.containers[0].image: Required value",
    ]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}, {name: a, image: i}]}",
        &[r#"spec.containers[1].name: Duplicate value: "a""#]),
    ("metadata: {name: p}\nspec: {containers: [{name: A_b, image: i}]}",
        &[r#"spec.containers[0].name: Invalid value: "A_b": <label>"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: a.b, image: i}]}",
        &[r#"spec.containers[0].name: Invalid value: "a.b": must not contain dots"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, image: i}]}",
        &[r#"spec.containers[0].name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be no more than 63 characters"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}], readinessGates: [{conditionType: ex.com/a}, {conditionType: a b}]}",
        &[r#"spec.readinessGates[1].conditionType: Invalid value: "a b": <name>"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}], schedulingGates: [{name: a}, {name: a b}, {name: a}]}", &[
        r#"spec.schedulingGates[1]: Invalid value: "a b": <name>"#,
        r#"spec.schedulingGates[2]: Duplicate value: "a""#,
    ]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}], schedulingGates: [{name: a}], nodeName: board}",
        &["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]),
    ("metadata: {name: p}\nspec: {containers: [{name: -a, image: \" i \"}]}", &[
        r#"spec.containers[0].name: Invalid value: "-a": <label>"#,
        r#"spec.containers[0].image: Invalid value: " i ": must not have leading or trailing whitespace"#,
    ]),
    ("spec: {containers: [{name: a, image: i}]}",
        &["metadata.name: Required value: name or generateName is required"]),
    ("metadata: {name: UP}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "UP": <subdomain>"#]),
    ("metadata: {name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be no more than 253 characters"#]),
    ("metadata: {name: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb": must have no more than 210 characters in this namespace: the directory of the pod's logs is named NAMESPACE_NAME_UID"#]),
    ("metadata: {name: a..b}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "a..b": <subdomain>"#]),
];

/// Specs with one container `c` and these init containers.
#[rustfmt::skip]
const INIT: &[(&str, &[&str])] = &[
    ("initContainers: [{name: a, image: i}, {name: b, image: i, restartPolicy: Always}]", &[]),
    ("initContainers: [{}, {}]", &[
        "spec.initContainers[0].name: Required value",
        "spec.initContainers[0].image: Required value",
        "spec.initContainers[1].name: Required value",
        "spec.initContainers[1].image: Required value",
    ]),
    (r#"initContainers: [{name: a, image: i}, {name: a, image: i}, {name: c, image: " i"}]"#, &[
        r#"spec.initContainers[1].name: Duplicate value: "a""#,
        r#"spec.initContainers[2].name: Duplicate value: "c""#,
        r#"spec.initContainers[2].image: Invalid value: " i": must not have leading or trailing whitespace"#,
    ]),
    ("initContainers: [{name: a, image: i, livenessProbe: {exec: {command: [x]}}, readinessProbe: {}, startupProbe: {tcpSocket: {port: 1}}, lifecycle: {}}]", &[
        "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
        "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        "spec.initContainers[0].startupProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
    ]),
    ("initContainers: [{name: a, image: i, restartPolicy: Always, livenessProbe: {successThreshold: 2, exec: {command: [x]}}, readinessProbe: {}, startupProbe: {tcpSocket: {port: 0}}}]", &[
        "spec.initContainers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        "spec.initContainers[0].readinessProbe: Required value: must specify a handler type",
        "spec.initContainers[0].startupProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
    ]),
    ("initContainers: [{name: a, image: i, restartPolicy: Sometimes, startupProbe: {}}]", &[
        r#"spec.initContainers[0].restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure""#,
        "spec.initContainers[0].startupProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
    ]),
    (r#"initContainers: [{name: a, image: i, restartPolicy: ""}]"#,
        &[r#"spec.initContainers[0].restartPolicy: Unsupported value: "": supported values: "Always", "Never", "OnFailure""#]),
    ("initContainers: [{name: A, image: i, ports: [{containerPort: 0}], volumeMounts: [{name: v, mountPath: /v}], terminationMessagePolicy: X}]", &[
        r#"spec.initContainers[0].name: Invalid value: "A": <label>"#,
        r#"spec.initContainers[0].terminationMessagePolicy: Unsupported value: "X": supported values: "File", "FallbackToLogsOnError""#,
        "spec.initContainers[0].ports[0].containerPort: Required value",
        r#"spec.initContainers[0].volumeMounts[0].name: Not found: "v""#,
    ]),
    ("initContainers: [{name: a, image: i, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]",
        &[r#"spec.initContainers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1"#]),
    ("initContainers: [{name: a, image: i, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}]",
        &[r#"spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: "RestartContainer": must not be set to 'RestartContainer' for non-sidecar initContainers"#]),
    ("initContainers: [{name: a, image: i, restartPolicy: Always, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}]", &[]),
    // The ports of the second container are reported with the index of the first one: each container is
    // checked alone.
    ("hostNetwork: true, initContainers: [{name: a, image: i}, {name: b, image: i, ports: [{containerPort: 1}, {containerPort: 1}]}, {name: d, image: i, ports: [{containerPort: 1, hostPort: 2}]}]",
        &[r#"spec.initContainers[0].ports[1].hostPort: Duplicate value: "TCP//1""#]),
];

/// Fields of `metadata` in addition to a name.
#[rustfmt::skip]
const METADATA: &[(&str, &[&str])] = &[
    ("namespace: A",
        &[r#"metadata.namespace: Invalid value: "A": <label>"#]),
    ("namespace: a.b",
        &[r#"metadata.namespace: Invalid value: "a.b": must not contain dots"#]),
    ("generation: -1",
        &["metadata.generation: Invalid value: -1: must be greater than or equal to 0"]),
    (r#"labels: {"a b": c}"#,
        &[r#"metadata.labels: Invalid value: "a b": <name>"#]),
    (r#"labels: {a: "-c"}"#,
        &[r#"metadata.labels: Invalid value: "-c": <value>"#]),
    (r#"labels: {a: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#,
        &[r#"metadata.labels: Invalid value: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": must be no more than 63 bytes"#]),
    ("labels: {/a: b}",
        &[r#"metadata.labels: Invalid value: "/a": prefix part must be non-empty"#]),
    ("labels: {x/: b}", &[
        r#"metadata.labels: Invalid value: "x/": name part must be non-empty"#,
        r#"metadata.labels: Invalid value: "x/": <name>"#,
    ]),
    ("labels: {a/b/c: d}",
        &[r#"metadata.labels: Invalid value: "a/b/c": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"#]),
    ("labels: {A.b/c: d}",
        &[r#"metadata.labels: Invalid value: "A.b/c": prefix part <subdomain>"#]),
    (r#"labels: {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/c": d}"#,
        &[r#"metadata.labels: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/c": prefix part must be no more than 253 bytes"#]),
    (r#"labels: {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": d}"#,
        &[r#"metadata.labels: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": name part must be no more than 63 bytes"#]),
    (r#"labels: {"": ""}"#, &[
        r#"metadata.labels: Invalid value: "": name part must be non-empty"#,
        r#"metadata.labels: Invalid value: "": <name>"#,
    ]),
    ("annotations: {A/B: c}", &[]),
    (r#"annotations: {"a b": c}"#,
        &[r#"metadata.annotations: Invalid value: "a b": <name>"#]),
    ("annotations: {controller.kubernetes.io/pod-deletion-cost: x}",
        &[r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "x": must be a 32bit integer"#]),
    ("annotations: {container.apparmor.security.beta.kubernetes.io/none: unconfined}",
        &[r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/none]: Invalid value: "none": container not found"#]),
    ("annotations: {container.apparmor.security.beta.kubernetes.io/c: strict}",
        &[r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Invalid value: "strict": invalid AppArmor profile name: "strict""#]),
    ("annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}", &[]),
    ("annotations: {seccomp.security.alpha.kubernetes.io/pod: strict}",
        &[r#"metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value: "strict": must be a valid seccomp profile"#]),
    ("annotations: {container.seccomp.security.alpha.kubernetes.io/c: localhost/../x}",
        &[r#"metadata.annotations.container.seccomp.security.alpha.kubernetes.io/c: Invalid value: "../x": must not contain '..'"#]),
    ("annotations: {seccomp.security.alpha.kubernetes.io/pod: localhost/x}", &[]),
    (r#"finalizers: [a, "b c"]"#, &[
        r#"metadata.finalizers: Invalid value: "b c": <name>"#,
        r#"metadata.finalizers[0]: Invalid value: "a": name is neither a standard finalizer name nor is it fully qualified"#,
        r#"metadata.finalizers[1]: Invalid value: "b c": name is neither a standard finalizer name nor is it fully qualified"#,
    ]),
    ("ownerReferences: [{}]", &[
        r#"metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty"#,
        r#"metadata.ownerReferences.kind: Invalid value: "": must not be empty"#,
        r#"metadata.ownerReferences.name: Invalid value: "": must not be empty"#,
        r#"metadata.ownerReferences.uid: Invalid value: "": must not be empty"#,
    ]),
];

/// Fields of `spec` in addition to a container.
#[rustfmt::skip]
const SPEC: &[(&str, &[&str])] = &[
    ("volumes: [{}]",
        &["spec.volumes[0].name: Required value"]),
    ("volumes: [{name: A, emptyDir: {}}]",
        &[r#"spec.volumes[0].name: Invalid value: "A": <label>"#]),
    ("volumes: [{name: v}, {name: v}]",
        &[r#"spec.volumes[1].name: Duplicate value: "v""#]),
    ("volumes: [{name: v, emptyDir: {}, hostPath: {path: /x}}]",
        &["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"]),
    ("volumes: [{name: v, emptyDir: {medium: HugePages}}]",
        &[r#"spec.volumes[0].emptyDir.medium: Invalid value: "HugePages": hugePages storage requested, but there is no resource request for huge pages"#]),
    ("volumes: [{name: v, emptyDir: {medium: HugePages-2Mi}}]",
        &[r#"spec.volumes[0].emptyDir.medium: Invalid value: "HugePages-2Mi": hugePages storage requested, but there is no resource request for huge pages"#]),
    ("volumes: [{name: v, emptyDir: {medium: Disk}}]",
        &[r#"spec.volumes[0].emptyDir.medium: Unsupported value: "Disk": supported values: "", "HugePages", "HugePages-<size>", "Memory""#]),
    ("resources: {limits: {hugepages-2Mi: 2Mi, memory: 1Gi}}, volumes: [{name: v, emptyDir: {medium: HugePages}}]", &[]),
    ("resources: {limits: {hugepages-2Mi: 2Mi, hugepages-1Gi: 1Gi, memory: 1Gi}}, volumes: [{name: v, emptyDir: {medium: HugePages}}]",
        &[r#"spec.volumes[0].emptyDir.medium: Invalid value: "HugePages": can't be used if container requests multiple huge page sizes"#]),
    (r#"volumes: [{name: v, emptyDir: {sizeLimit: "-1"}}]"#,
        &["spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity"]),
    ("volumes: [{name: v, hostPath: {}}]",
        &["spec.volumes[0].hostPath.path: Required value"]),
    ("volumes: [{name: v, hostPath: {path: /a/../b}}]",
        &[r#"spec.volumes[0].hostPath.path: Invalid value: "/a/../b": must not contain '..'"#]),
    ("volumes: [{name: v, hostPath: {path: /a, type: Dir}}]",
        &[r#"spec.volumes[0].hostPath.type: Unsupported value: "Dir": supported values: "", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket""#]),
    ("volumes: [{name: v, hostPath: {path: /a..b/..c}}]", &[]),
    ("volumes: [{name: v, configMap: {defaultMode: 512, items: [{key: a, path: /a}, {path: .., mode: -1}, {key: b, path: ..b}, {key: c, path: c/../d}]}}]", &[
        "spec.volumes[0].configMap.name: Required value",
        "spec.volumes[0].configMap.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
        r#"spec.volumes[0].configMap.items[0].path: Invalid value: "/a": must be a relative path"#,
        "spec.volumes[0].configMap.items[1].key: Required value",
        r#"spec.volumes[0].configMap.items[1].path: Invalid value: "..": must not contain '..'"#,
        r#"spec.volumes[0].configMap.items[1].path: Invalid value: "..": must not start with '..'"#,
        "spec.volumes[0].configMap.items[1].mode: Invalid value: -1: must be a number between 0 and 0777 (octal), both inclusive",
        r#"spec.volumes[0].configMap.items[2].path: Invalid value: "..b": must not start with '..'"#,
        r#"spec.volumes[0].configMap.items[3].path: Invalid value: "c/../d": must not contain '..'"#,
    ]),
    ("volumes: [{name: v, secret: {items: [{key: a, path: ''}]}}]", &[
        "spec.volumes[0].secret.secretName: Required value",
        "spec.volumes[0].secret.items[0].path: Required value",
    ]),
    ("volumes: [{name: v, secret: {secretName: a}, configMap: {name: a}}]",
        &["spec.volumes[0].configMap: Forbidden: may not specify more than 1 volume type"]),
    ("volumes: [{name: v, downwardAPI: {items: [{path: a}, {path: b, fieldRef: {fieldPath: status.podIP}}, {path: c, resourceFieldRef: {resource: limits.cpu}}, {path: d, fieldRef: {fieldPath: metadata.labels}, resourceFieldRef: {}}]}}]", &[
        "spec.volumes[0].downwardAPI: Required value: one of fieldRef and resourceFieldRef is required",
        r#"spec.volumes[0].downwardAPI.fieldRef.fieldPath: Unsupported value: "status.podIP": supported values: "metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid""#,
        "spec.volumes[0].downwardAPI.resourceFieldRef.containerName: Required value",
        r#"spec.volumes[0].downwardAPI: Invalid value: "resource": fieldRef and resourceFieldRef can not be specified simultaneously"#,
    ]),
    ("volumes: [{name: v, projected: {sources: [{secret: {items: [{key: a, path: p}]}}, {configMap: {name: c, items: [{key: a, path: p}]}}, {downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}, secret: {name: s}}]}}]", &[
        "spec.volumes[0].projected.sources[0].secret.name: Required value",
        r#"spec.volumes[0].projected: Invalid value: "c": conflicting duplicate paths"#,
        r#"spec.volumes[0].projected: Invalid value: "p": conflicting duplicate paths"#,
        "spec.volumes[0].projected.sources[2]: Forbidden: may not specify more than 1 volume type per source",
    ]),
    ("restartPolicy: always",
        &[r#"spec.restartPolicy: Unsupported value: "always": supported values: "Always", "OnFailure", "Never""#]),
    ("dnsPolicy: None",
        &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"]),
    ("dnsPolicy: X",
        &[r#"spec.dnsPolicy: Unsupported value: "X": supported values: "ClusterFirstWithHostNet", "ClusterFirst", "Default", "None""#]),
    ("dnsPolicy: None, dnsConfig: {}",
        &["spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None"]),
    (r#"dnsConfig: {nameservers: [1.1.1.1, x, 1.2.3.04, "::ffff:1.2.3.4"]}"#, &[
        r#"spec.dnsConfig.nameservers: Invalid value: ["1.1.1.1","x","1.2.3.04","::ffff:1.2.3.4"]: must not have more than 3 nameservers"#,
        r#"spec.dnsConfig.nameservers[1]: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
        r#"spec.dnsConfig.nameservers[2]: Invalid value: "1.2.3.04": must not have leading 0s"#,
        r#"spec.dnsConfig.nameservers[3]: Invalid value: "::ffff:1.2.3.4": must not be an IPv4-mapped IPv6 address"#,
    ]),
    (r#"dnsConfig: {nameservers: [300.1.1.1, "::1", "FE80::1", 1.1.1]}"#, &[
        r#"spec.dnsConfig.nameservers: Invalid value: ["300.1.1.1","::1","FE80::1","1.1.1"]: must not have more than 3 nameservers"#,
        r#"spec.dnsConfig.nameservers[0]: Invalid value: "300.1.1.1": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
        r#"spec.dnsConfig.nameservers[3]: Invalid value: "1.1.1": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
    ]),
    ("dnsConfig: {searches: [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32]}",
        &[r#"spec.dnsConfig.searches: Invalid value: ["a0","a1","a2","a3","a4","a5","a6","a7","a8","a9","a10","a11","a12","a13","a14","a15","a16","a17","a18","a19","a20","a21","a22","a23","a24","a25","a26","a27","a28","a29","a30","a31","a32"]: must not have more than 32 search paths"#]),
    ("dnsConfig: {searches: [., a., _b.c_d, A]}",
        &[r#"spec.dnsConfig.searches[3]: Invalid value: "A": <search>"#]),
    (r#"dnsConfig: {searches: [""]}"#,
        &[r#"spec.dnsConfig.searches[0]: Invalid value: "": <search>"#]),
    ("dnsConfig: {options: [{value: x}]}",
        &["spec.dnsConfig.options[0]: Required value: must not be empty"]),
    (r#"nodeSelector: {"a b": "c d"}"#, &[
        r#"spec.nodeSelector: Invalid value: "a b": <name>"#,
        r#"spec.nodeSelector: Invalid value: "c d": <value>"#,
    ]),
    ("securityContext: {runAsUser: -1, runAsGroup: 2147483648, fsGroup: -5, supplementalGroups: [1, -1]}", &[
        "spec.securityContext.fsGroup: Invalid value: -5: must be between 0 and 2147483647, inclusive",
        "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        "spec.securityContext.runAsGroup: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive",
        "spec.securityContext.supplementalGroups[1]: Invalid value: -1: must be between 0 and 2147483647, inclusive",
    ]),
    ("securityContext: {sysctls: [{name: '', value: a}, {name: net.x, value: a}, {name: net.x, value: a}, {name: ../x, value: a}]}", &[
        "spec.securityContext.sysctls[0].name: Required value",
        r#"spec.securityContext.sysctls[2].name: Duplicate value: "net.x""#,
        r#"spec.securityContext.sysctls[3].name: Invalid value: "../x": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"#,
    ]),
    ("hostNetwork: true, hostIPC: true, securityContext: {sysctls: [{name: net.x, value: a}, {name: kernel.sem, value: a}]}", &[
        r#"spec.securityContext.sysctls[0].name: Invalid value: "net.x": may not be specified when 'hostNetwork' is true"#,
        r#"spec.securityContext.sysctls[1].name: Invalid value: "kernel.sem": may not be specified when 'hostIPC' is true"#,
    ]),
    ("hostUsers: false, hostNetwork: true, hostPID: true, hostIPC: true", &[
        "spec.hostNetwork: Forbidden: when `hostUsers` is false",
        "spec.HostPID: Forbidden: when `hostUsers` is false",
        "spec.HostIPC: Forbidden: when `hostUsers` is false",
    ]),
    ("hostUsers: true, hostNetwork: true, hostPID: true, hostIPC: true", &[]),
    ("hostnameOverride: A, setHostnameAsFQDN: true, hostNetwork: true", &[
        "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true",
        "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
        r#"spec.hostnameOverride: Invalid value: "A": <subdomain>"#,
    ]),
    ("securityContext: {fsGroupChangePolicy: X}",
        &[r#"spec.securityContext.fsGroupChangePolicy: Unsupported value: "X": supported values: "Always", "OnRootMismatch""#]),
    ("securityContext: {supplementalGroupsPolicy: X}",
        &[r#"spec.securityContext.supplementalGroupsPolicy: Unsupported value: "X": supported values: "Merge", "Strict""#]),
    ("securityContext: {seLinuxChangePolicy: X}",
        &[r#"spec.securityContext.seLinuxChangePolicy: Unsupported value: "X": supported values: "Recursive""#]),
    ("shareProcessNamespace: true, hostPID: true",
        &["spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled"]),
    ("securityContext: {seccompProfile: {}}",
        &["spec.securityContext.seccompProfile.type: Required value: type is required when seccompProfile is set"]),
    ("securityContext: {seccompProfile: {type: X}}",
        &[r#"spec.securityContext.seccompProfile.type: Unsupported value: "X": supported values: "Localhost", "RuntimeDefault", "Unconfined""#]),
    ("securityContext: {seccompProfile: {type: Unconfined, localhostProfile: a}}",
        &[r#"spec.securityContext.seccompProfile.localhostProfile: Invalid value: {"Type":"Unconfined","LocalhostProfile":"a"}: can only be set when seccomp type is Localhost"#]),
    ("securityContext: {seccompProfile: {type: Localhost}}",
        &["spec.securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost"]),
    ("securityContext: {seccompProfile: {type: Localhost, localhostProfile: /a/../b}}", &[
        r#"spec.securityContext.seccompProfile.localhostProfile: Invalid value: "/a/../b": must be a relative path"#,
        r#"spec.securityContext.seccompProfile.localhostProfile: Invalid value: "/a/../b": must not contain '..'"#,
    ]),
    ("activeDeadlineSeconds: 0",
        &["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"]),
    ("activeDeadlineSeconds: 2147483648",
        &["spec.activeDeadlineSeconds: Invalid value: 2147483648: must be between 1 and 2147483647, inclusive"]),
    ("hostname: A, subdomain: b.c", &[
        r#"spec.hostname: Invalid value: "A": <label>"#,
        r#"spec.subdomain: Invalid value: "b.c": must not contain dots"#,
    ]),
    ("nodeName: A",
        &[r#"spec.nodeName: Invalid value: "A": <subdomain>"#]),
    ("serviceAccountName: A",
        &[r#"spec.serviceAccountName: Invalid value: "A": <subdomain>"#]),
    ("priorityClassName: A",
        &[r#"spec.priorityClassName: Invalid value: "A": <subdomain>"#]),
    ("preemptionPolicy: X",
        &[r#"spec.preemptionPolicy: Unsupported value: "X": supported values: "PreemptLowerPriority", "Never""#]),
    (r#"preemptionPolicy: """#,
        &["spec.preemptionPolicy: Required value"]),
    ("os: {}",
        &["spec.os.name: Required value"]),
    ("os: {name: plan9}",
        &[r#"spec.os: Unsupported value: "plan9": supported values: "linux", "windows""#]),
    ("hostAliases: [{}]",
        &[r#"spec.hostAliases[0].ip: Invalid value: "": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#]),
    ("hostAliases: [{ip: 1.2.3, hostnames: [a, B]}]", &[
        r#"spec.hostAliases[0].ip: Invalid value: "1.2.3": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
        r#"spec.hostAliases[0].hostnames[1]: Invalid value: "B": <subdomain>"#,
    ]),
    ("tolerations: [{}]",
        &[r#"spec.tolerations[0].operator: Invalid value: "": operator must be Exists when `key` is empty, which means "match all values and all keys""#]),
    (r#"tolerations: [{key: "a b", operator: X, effect: Z}]"#, &[
        r#"spec.tolerations[0].key: Invalid value: "a b": <name>"#,
        r#"spec.tolerations[0].operator: Unsupported value: "X": supported values: "Equal", "Exists""#,
        r#"spec.tolerations[0].effect: Unsupported value: "Z": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
    ]),
    ("tolerations: [{operator: Exists, value: x, tolerationSeconds: 3}]", &[
        r#"spec.tolerations[0].effect: Invalid value: "": effect must be 'NoExecute' when `tolerationSeconds` is set"#,
        r#"spec.tolerations[0].operator: Invalid value: "x": value must be empty when `operator` is 'Exists'"#,
    ]),
    (r#"tolerations: [{key: a, operator: Gt, value: "1"}]"#,
        &[r#"spec.tolerations[0].operator: Unsupported value: "Gt": supported values: "Equal", "Exists", "Lt", "Gt""#]),
    (r#"tolerations: [{key: a, value: "a b"}]"#,
        &[r#"spec.tolerations[0].operator: Invalid value: "a b": <value>"#]),
    ("terminationGracePeriodSeconds: -5", &[]),
];

/// Fields of the container in addition to name and image.
#[rustfmt::skip]
const CONTAINER: &[(&str, &[&str])] = &[
    ("ports: [{}]",
        &["spec.containers[0].ports[0].containerPort: Required value"]),
    ("ports: [{containerPort: 65536}]",
        &["spec.containers[0].ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive"]),
    ("ports: [{containerPort: -1}]",
        &["spec.containers[0].ports[0].containerPort: Invalid value: -1: must be between 1 and 65535, inclusive"]),
    ("ports: [{containerPort: 80, name: http}, {containerPort: 81, name: http}]",
        &[r#"spec.containers[0].ports[1].name: Duplicate value: "http""#]),
    ("ports: [{containerPort: 80, name: UPPER}]", &[
        r#"spec.containers[0].ports[0].name: Invalid value: "UPPER": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"#,
        r#"spec.containers[0].ports[0].name: Invalid value: "UPPER": must contain at least one letter (a-z)"#,
    ]),
    (r#"ports: [{containerPort: 80, name: "80"}]"#,
        &[r#"spec.containers[0].ports[0].name: Invalid value: "80": must contain at least one letter (a-z)"#]),
    ("ports: [{containerPort: 80, name: a--b}]",
        &[r#"spec.containers[0].ports[0].name: Invalid value: "a--b": must not contain consecutive hyphens"#]),
    ("ports: [{containerPort: 80, name: -a-}]",
        &[r#"spec.containers[0].ports[0].name: Invalid value: "-a-": must not begin or end with a hyphen"#]),
    ("ports: [{containerPort: 80, name: averyveryverylongname}]",
        &[r#"spec.containers[0].ports[0].name: Invalid value: "averyveryverylongname": must be no more than 15 characters"#]),
    ("ports: [{containerPort: 80, protocol: tcp}]",
        &[r#"spec.containers[0].ports[0].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP""#]),
    ("ports: [{containerPort: 80, protocol: SCTP}]", &[]),
    ("env: [{}]",
        &["spec.containers[0].env[0].name: Required value"]),
    (r#"env: [{name: "a=b"}]"#,
        &[r#"spec.containers[0].env[0].name: Invalid value: "a=b": <env>"#]),
    (r#"env: [{name: "ü"}]"#,
        &[r#"spec.containers[0].env[0].name: Invalid value: "ü": <env>"#]),
    (r#"env: [{name: "a b", value: x}]"#, &[]),
    ("env: [{name: a, valueFrom: {}}]",
        &[r#"spec.containers[0].env[0].valueFrom: Invalid value: "": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"#]),
    ("env: [{name: a, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]",
        &[r#"spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty"#]),
    ("env: [{name: a, valueFrom: {fieldRef: {}}}]",
        &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Required value"]),
    ("env: [{name: a, valueFrom: {fieldRef: {fieldPath: metadata.labels}}}]",
        &[r#"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "metadata.labels": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs""#]),
    ("env: [{name: a, valueFrom: {fieldRef: {fieldPath: status.phase}}}]",
        &[r#"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "status.phase": supported values: "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs""#]),
    ("env: [{name: a, valueFrom: {fieldRef: {fieldPath: foo}}}]",
        &[r#"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: "foo": error converting fieldPath: field label not supported: foo"#]),
    (r#"env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a b']"}}}]"#,
        &[r#"spec.containers[0].env[0].valueFrom.fieldRef: Invalid value: "a b": <name>"#]),
    (r#"env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['A B']"}}}]"#,
        &[r#"spec.containers[0].env[0].valueFrom.fieldRef: Invalid value: "a b": <name>"#]),
    (r#"env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.name['a']"}}}]"#,
        &[r#"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: "metadata.name['a']": error converting fieldPath: field label does not support subscript: metadata.name['a']"#]),
    ("env: [{name: a, valueFrom: {fieldRef: {apiVersion: v2, fieldPath: metadata.name}}}]",
        &[r#"spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: "metadata.name": error converting fieldPath: unsupported pod version: v2"#]),
    (r#"env: [{name: a, valueFrom: {fieldRef: {fieldPath: "metadata.labels['a']"}}}, {name: b, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]"#, &[]),
    ("env: [{name: a, valueFrom: {fieldRef: {fieldPath: spec.host}}}]", &[]),
    ("env: [{name: a, valueFrom: {configMapKeyRef: {name: A, key: a/b}}}, {name: b, valueFrom: {secretKeyRef: {}}}]", &[
        r#"spec.containers[0].env[0].valueFrom.configMapKeyRef.name: Invalid value: "A": <subdomain>"#,
        r#"spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Invalid value: "a/b": <key>"#,
        r#"spec.containers[0].env[1].valueFrom.secretKeyRef.name: Invalid value: "": <subdomain>"#,
        "spec.containers[0].env[1].valueFrom.secretKeyRef.key: Required value",
    ]),
    ("env: [{name: a, valueFrom: {configMapKeyRef: {name: a, key: a}, secretKeyRef: {name: a, key: a}}}]",
        &[r#"spec.containers[0].env[0].valueFrom: Invalid value: "": may not have more than one field specified at a time"#]),
    ("env: [{name: a, valueFrom: {configMapKeyRef: {name: a, key: .a, optional: true}}}, {name: b, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}}]", &[]),
    ("env: [{name: a, valueFrom: {resourceFieldRef: {}}}, {name: b, valueFrom: {resourceFieldRef: {resource: limits.gpu}}}]", &[
        "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource: Required value",
        r#"spec.containers[0].env[1].valueFrom.resourceFieldRef.resource: Unsupported value: "limits.gpu": supported values: "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage", "requests.memory""#,
    ]),
    ("env: [{name: a, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 2}}}]",
        &[r#"spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "limits.cpu": only divisor's values 1m and 1 are supported with the cpu resource"#]),
    ("env: [{name: a, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 2Mi}}}]",
        &[r#"spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value: "requests.memory": only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource"#]),
    ("envFrom: [{}, {prefix: a=b, configMapRef: {name: a}}, {configMapRef: {}, secretRef: {name: A}}]", &[
        r#"spec.containers[0].envFrom: Invalid value: "": must specify one of: `configMapRef` or `secretRef`"#,
        r#"spec.containers[0].envFrom[1].prefix: Invalid value: "a=b": <env>"#,
        "spec.containers[0].envFrom[2].configMapRef.name: Required value",
        r#"spec.containers[0].envFrom[2].secretRef.name: Invalid value: "A": <subdomain>"#,
        r#"spec.containers[0].envFrom: Invalid value: "": may not have more than one field specified at a time"#,
    ]),
    ("volumeMounts: [{}]", &[
        "spec.containers[0].volumeMounts[0].name: Required value",
        r#"spec.containers[0].volumeMounts[0].name: Not found: """#,
        "spec.containers[0].volumeMounts[0].mountPath: Required value",
    ]),
    ("volumeMounts: [{name: data, mountPath: /d}]",
        &[r#"spec.containers[0].volumeMounts[0].name: Not found: "data""#]),
    ("imagePullPolicy: always",
        &[r#"spec.containers[0].imagePullPolicy: Unsupported value: "always": supported values: "Always", "IfNotPresent", "Never""#]),
    ("terminationMessagePolicy: Log",
        &[r#"spec.containers[0].terminationMessagePolicy: Unsupported value: "Log": supported values: "File", "FallbackToLogsOnError""#]),
    ("securityContext: {appArmorProfile: {}}",
        &["spec.containers[0].securityContext.appArmorProfile.type: Required value: type is required when appArmorProfile is set"]),
    ("securityContext: {appArmorProfile: {type: X}}",
        &[r#"spec.containers[0].securityContext.appArmorProfile.type: Unsupported value: "X": supported values: "Localhost", "RuntimeDefault", "Unconfined""#]),
    ("securityContext: {appArmorProfile: {type: Localhost}}",
        &["spec.containers[0].securityContext.appArmorProfile.localhostProfile: Required value: must be set when AppArmor type is Localhost"]),
    (r#"securityContext: {appArmorProfile: {type: Localhost, localhostProfile: " x"}}"#,
        &[r#"spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: " x": must not be padded with whitespace"#]),
    ("securityContext: {appArmorProfile: {type: Unconfined, localhostProfile: x}}",
        &[r#"spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: "x": can only be set when AppArmor type is Localhost"#]),
    ("securityContext: {runAsUser: -1, runAsGroup: 4294967295}", &[
        "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        "spec.containers[0].securityContext.runAsGroup: Invalid value: 4294967295: must be between 0 and 2147483647, inclusive",
    ]),
    ("securityContext: {procMount: X}",
        &[r#"spec.containers[0].securityContext.procMount: Unsupported value: "X": supported values: "Default", "Unmasked""#]),
    ("securityContext: {procMount: Unmasked}",
        &[r#"spec.containers[0].securityContext.procMount: Invalid value: "Unmasked": `hostUsers` must be false to use `Unmasked`"#]),
    ("securityContext: {allowPrivilegeEscalation: false, privileged: true}",
        &[r#"spec.containers[0].securityContext: Invalid value: {"Capabilities":null,"Privileged":true,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true"#]),
    ("securityContext: {allowPrivilegeEscalation: false, capabilities: {add: [CAP_SYS_ADMIN]}}",
        &[r#"spec.containers[0].securityContext: Invalid value: {"Capabilities":{"Add":["CAP_SYS_ADMIN"],"Drop":null},"Privileged":null,"SELinuxOptions":null,"WindowsOptions":null,"RunAsUser":null,"RunAsGroup":null,"RunAsNonRoot":null,"ReadOnlyRootFilesystem":null,"AllowPrivilegeEscalation":false,"ProcMount":null,"SeccompProfile":null,"AppArmorProfile":null}: cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"#]),
    ("securityContext: {capabilities: {add: [foo, ALL], drop: [bar]}}", &[]),
    (r#"resources: {limits: {cpu: "-1"}}"#, &[
        r#"spec.containers[0].resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
        r#"spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0"#,
    ]),
    ("resources: {requests: {memory: -1Mi}}",
        &[r#"spec.containers[0].resources.requests[memory]: Invalid value: "-1Mi": must be greater than or equal to 0"#]),
    ("resources: {limits: {cpu: 1}, requests: {cpu: 1500m}}",
        &[r#"spec.containers[0].resources.requests: Invalid value: "1500m": must be less than or equal to cpu limit of 1"#]),
    ("resources: {limits: {memory: 1Gi}, requests: {memory: 2048Mi}}",
        &[r#"spec.containers[0].resources.requests: Invalid value: "2Gi": must be less than or equal to memory limit of 1Gi"#]),
    ("resources: {limits: {gpu: 1}}", &[
        r#"spec.containers[0].resources.limits[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified"#,
        r#"spec.containers[0].resources.limits[gpu]: Invalid value: "gpu": must be a standard resource for containers"#,
        r#"spec.containers[0].resources.requests[gpu]: Invalid value: "gpu": must be a standard resource type or fully qualified"#,
        r#"spec.containers[0].resources.requests[gpu]: Invalid value: "gpu": must be a standard resource for containers"#,
    ]),
    ("resources: {limits: {pods: 1}}", &[
        r#"spec.containers[0].resources.limits[pods]: Invalid value: "pods": must be a standard resource for containers"#,
        r#"spec.containers[0].resources.requests[pods]: Invalid value: "pods": must be a standard resource for containers"#,
    ]),
    (r#"resources: {requests: {"a b": 1}}"#, &[
        r#"spec.containers[0].resources.requests[a b]: Invalid value: "a b": <name>"#,
        r#"spec.containers[0].resources.requests[a b]: Invalid value: "a b": must be a standard resource for containers"#,
    ]),
    ("resources: {limits: {example.com/gpu: 0.5}}", &[
        r#"spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "500m": must be an integer"#,
        r#"spec.containers[0].resources.requests[example.com/gpu]: Invalid value: "500m": must be an integer"#,
    ]),
    ("resources: {requests: {example.com/gpu: 1}}",
        &["spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"]),
    ("resources: {limits: {example.com/gpu: 2}, requests: {example.com/gpu: 1}}",
        &[r#"spec.containers[0].resources.requests: Invalid value: "1": must be equal to example.com/gpu limit of 2"#]),
    ("resources: {limits: {requests.example.com/gpu: 1}}", &[
        r#"spec.containers[0].resources.limits[requests.example.com/gpu]: Invalid value: "requests.example.com/gpu": doesn't follow extended resource name standard"#,
        r#"spec.containers[0].resources.requests[requests.example.com/gpu]: Invalid value: "requests.example.com/gpu": doesn't follow extended resource name standard"#,
    ]),
    ("resources: {limits: {kubernetes.io/x: 1}}", &[]),
    ("resources: {limits: {hugepages-2Mi: 3Mi, cpu: 1}}", &[
        r#"spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi"#,
        r#"spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi"#,
    ]),
    ("resources: {limits: {hugepages-2Mi: 2Mi}}",
        &["spec.containers[0].resources: Forbidden: HugePages require cpu or memory"]),
    ("resources: {limits: {requests.cpu: 1}}", &[
        r#"spec.containers[0].resources.limits[requests.cpu]: Invalid value: "requests.cpu": must be a standard resource for containers"#,
        r#"spec.containers[0].resources.requests[requests.cpu]: Invalid value: "requests.cpu": must be a standard resource for containers"#,
    ]),
    (r#"resources: {limits: {"": 1}}"#, &[
        r#"spec.containers[0].resources.limits[]: Invalid value: "": name part must be non-empty"#,
        r#"spec.containers[0].resources.limits[]: Invalid value: "": <name>"#,
        r#"spec.containers[0].resources.limits[]: Invalid value: "": must be a standard resource for containers"#,
        r#"spec.containers[0].resources.requests[]: Invalid value: "": name part must be non-empty"#,
        r#"spec.containers[0].resources.requests[]: Invalid value: "": <name>"#,
        r#"spec.containers[0].resources.requests[]: Invalid value: "": must be a standard resource for containers"#,
    ]),
    ("resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: X}]", &[
        r#"spec.containers[0].resizePolicy[1]: Duplicate value: "cpu""#,
        r#"spec.containers[0].resizePolicy: Unsupported value: "X": supported values: "NotRequired", "RestartContainer""#,
    ]),
    ("resizePolicy: [{resourceName: gpu}]", &[
        r#"spec.containers[0].resizePolicy: Unsupported value: "gpu": supported values: "cpu", "memory""#,
        "spec.containers[0].resizePolicy: Required value",
    ]),
    ("livenessProbe: {}",
        &["spec.containers[0].livenessProbe: Required value: must specify a handler type"]),
    ("livenessProbe: {exec: {}}",
        &["spec.containers[0].livenessProbe.exec.command: Required value"]),
    ("livenessProbe: {exec: {command: [a]}, httpGet: {port: 80}, tcpSocket: {port: 80}}", &[
        "spec.containers[0].livenessProbe.httpGet: Forbidden: may not specify more than 1 handler type",
        "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
    ]),
    ("livenessProbe: {exec: {command: [a]}, successThreshold: 2}",
        &["spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"]),
    ("startupProbe: {exec: {command: [a]}, successThreshold: 2}",
        &["spec.containers[0].startupProbe.successThreshold: Invalid value: 2: must be 1"]),
    ("readinessProbe: {exec: {command: [a]}, successThreshold: 2}", &[]),
    ("readinessProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 3}",
        &["spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 3: must not be set for readinessProbes"]),
    ("livenessProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 0}",
        &["spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0"]),
    ("readinessProbe: {exec: {command: [a]}, initialDelaySeconds: -1, timeoutSeconds: -2, periodSeconds: -3, successThreshold: -4, failureThreshold: -5}", &[
        "spec.containers[0].readinessProbe.initialDelaySeconds: Invalid value: -1: must be greater than or equal to 0",
        "spec.containers[0].readinessProbe.timeoutSeconds: Invalid value: -2: must be greater than or equal to 0",
        "spec.containers[0].readinessProbe.periodSeconds: Invalid value: -3: must be greater than or equal to 0",
        "spec.containers[0].readinessProbe.successThreshold: Invalid value: -4: must be greater than or equal to 0",
        "spec.containers[0].readinessProbe.failureThreshold: Invalid value: -5: must be greater than or equal to 0",
    ]),
    ("livenessProbe: {httpGet: {port: 0}}",
        &["spec.containers[0].livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive"]),
    ("livenessProbe: {httpGet: {}}",
        &["spec.containers[0].livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive"]),
    ("livenessProbe: {httpGet: {port: 65536}}",
        &["spec.containers[0].livenessProbe.httpGet.port: Invalid value: 65536: must be between 1 and 65535, inclusive"]),
    (r#"livenessProbe: {httpGet: {port: ""}}"#, &[
        r#"spec.containers[0].livenessProbe.httpGet.port: Invalid value: "": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"#,
        r#"spec.containers[0].livenessProbe.httpGet.port: Invalid value: "": must contain at least one letter (a-z)"#,
    ]),
    ("livenessProbe: {httpGet: {port: Web_1}}",
        &[r#"spec.containers[0].livenessProbe.httpGet.port: Invalid value: "Web_1": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"#]),
    (r#"livenessProbe: {httpGet: {port: "80"}}"#,
        &[r#"spec.containers[0].livenessProbe.httpGet.port: Invalid value: "80": must contain at least one letter (a-z)"#]),
    ("livenessProbe: {grpc: {port: 0}}",
        &["spec.containers[0].livenessProbe.grpc.port: Invalid value: 0: must be between 1 and 65535, inclusive"]),
    ("livenessProbe: {grpc: {port: 1}, tcpSocket: {port: 1}}",
        &["spec.containers[0].livenessProbe.grpc: Forbidden: may not specify more than 1 handler type"]),
    ("livenessProbe: {httpGet: {port: 80, scheme: http}}",
        &[r#"spec.containers[0].livenessProbe.httpGet.scheme: Unsupported value: "http": supported values: "HTTP", "HTTPS""#]),
    (r#"livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: "a b", value: c}, {}]}}"#, &[
        r#"spec.containers[0].livenessProbe.httpGet.httpHeaders: Invalid value: "a b": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"#,
        r#"spec.containers[0].livenessProbe.httpGet.httpHeaders: Invalid value: "": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"#,
    ]),
    ("livenessProbe: {tcpSocket: {port: -1}}",
        &["spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: -1: must be between 1 and 65535, inclusive"]),
];

/// Fields of `spec` and of its container.
#[rustfmt::skip]
const BOTH: &[((&str, &str), &[&str])] = &[
    (("hostUsers: false", "securityContext: {procMount: Unmasked}"), &[]),
    (("hostUsers: false, volumes: [{name: v, persistentVolumeClaim: {claimName: v}}]", "volumeDevices: [{name: v, devicePath: /dev/v}]"),
        &["spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false"]),
    (("hostNetwork: true", "ports: [{containerPort: 80, hostPort: 81}]"),
        &["spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true"]),
    (("hostNetwork: true", "ports: [{containerPort: 80}, {containerPort: 80}]"),
        &[r#"spec.containers[0].ports[1].hostPort: Duplicate value: "TCP//80""#]),
    (("hostNetwork: true", "ports: [{containerPort: 80, hostIP: 10.0.0.1}, {containerPort: 80, protocol: UDP}]"), &[]),
    (("hostNetwork: true", "ports: [{containerPort: 70000}]"), &[
        "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        "spec.containers[0].ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
    ]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v}]"),
        &["spec.containers[0].volumeMounts[0].mountPath: Required value"]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /d}, {name: v, mountPath: /d}]"),
        &[r#"spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/d": must be unique"#]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /d, subPath: /a}]"),
        &[r#"spec.containers[0].volumeMounts.subPath: Invalid value: "/a": must be a relative path"#]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /d, subPath: a, subPathExpr: /$(A)}, {name: v, mountPath: /e, subPathExpr: $(A)/../b}]"), &[
        r#"spec.containers[0].volumeMounts[0].subPathExpr: Invalid value: "/$(A)": subPathExpr and subPath are mutually exclusive"#,
        r#"spec.containers[0].volumeMounts.subPathExpr: Invalid value: "/$(A)": must be a relative path"#,
        r#"spec.containers[0].volumeMounts.subPathExpr: Invalid value: "$(A)/../b": must not contain '..'"#,
    ]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /d, subPath: a/../../b}]"),
        &[r#"spec.containers[0].volumeMounts.subPath: Invalid value: "a/../../b": must not contain '..'"#]),
    (("volumes: [{name: v}]", r#"volumeMounts: [{name: v, mountPath: "d:e", subPath: a/b}]"#), &[]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /d, mountPropagation: Both}]"),
        &[r#"spec.containers[0].volumeMounts.mountPropagation: Unsupported value: "Both": supported values: "Bidirectional", "HostToContainer", "None""#]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /d, mountPropagation: Bidirectional}]"),
        &["spec.containers[0].volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"]),
    (("volumes: [{name: v}]", "securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /d, mountPropagation: Bidirectional}]"), &[]),
    (("volumes: [{name: v}]", "volumeMounts: [{name: v, mountPath: /d, recursiveReadOnly: Maybe}]"),
        &[r#"spec.containers[0].volumeMounts.recursiveReadOnly: Unsupported value: "Maybe": supported values: "Disabled", "Enabled", "IfPossible""#]),
    (("volumes: [{name: A}]", "volumeMounts: [{name: A, mountPath: /d}]"), &[
        r#"spec.volumes[0].name: Invalid value: "A": <label>"#,
        r#"spec.containers[0].volumeMounts[0].name: Not found: "A""#,
    ]),
    (("restartPolicy: Never", "resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]"),
        &[r#"spec.containers[0].resizePolicy: Invalid value: "RestartContainer": must be 'NotRequired' when pod `restartPolicy` is 'Never'"#]),
];

pub(super) fn check(text: &str, expected: &[&str]) {
    let mut object = documents(text).unwrap().remove(0).value;
    let findings = walk::check(&mut object, schema::find("Pod").unwrap());
    assert!(findings.unknown.is_empty() && findings.errors.is_empty(), "{text}: {findings:?}");
    set_server_fields(&mut object, "board", None);
    defaults::apply(&mut object);
    let errors: Vec<String> = pod(&object).iter().map(ToString::to_string).collect();
    let expand =
        |text: &str| TEXTS.iter().fold(text.to_owned(), |text, (name, rule)| text.replace(name, rule));
    let expected: Vec<String> = expected.iter().map(|text| expand(text)).collect();
    assert_eq!(errors, expected, "{text}");
}

#[test]
fn invalid_pods_are_rejected_with_the_errors_of_kubernetes() {
    for (pod, errors) in PODS {
        check(&format!("apiVersion: v1\nkind: Pod\n{pod}\n"), errors);
    }
}

#[test]
fn invalid_metadata_is_rejected_with_the_errors_of_kubernetes() {
    for (metadata, errors) in METADATA {
        check(
            &format!("metadata: {{name: p, {metadata}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"),
            errors,
        );
    }
}

#[test]
fn invalid_specs_are_rejected_with_the_errors_of_kubernetes() {
    for (spec, errors) in SPEC.iter().chain(INIT) {
        check(
            &format!("metadata: {{name: p}}\nspec: {{containers: [{{name: c, image: i}}], {spec}}}\n"),
            errors,
        );
    }
}

#[test]
fn invalid_containers_are_rejected_with_the_errors_of_kubernetes() {
    for (container, errors) in CONTAINER {
        check(
            &format!("metadata: {{name: p}}\nspec: {{containers: [{{name: c, image: i, {container}}}]}}\n"),
            errors,
        );
    }
}

#[test]
fn containers_that_contradict_their_pod_are_rejected_as_by_kubernetes() {
    for ((spec, container), errors) in BOTH {
        let containers = format!("containers: [{{name: c, image: i, {container}}}]");
        check(&format!("metadata: {{name: p}}\nspec: {{{spec}, {containers}}}\n"), errors);
    }
}

#[test]
fn errors_about_overlong_values_do_not_print_the_value() {
    let long = "x".repeat(262_144);
    check(
        &format!(
            "metadata: {{name: p, annotations: {{a: {long}}}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
        ),
        &["metadata.annotations: Too long: may not be more than 262144 bytes"],
    );
    let searches = vec!["a".repeat(80); 26].join(", ");
    let text = format!(
        "metadata: {{name: p}}\nspec: {{dnsConfig: {{searches: [{searches}]}}, containers: [{{name: c, image: i}}]}}\n"
    );
    let mut object = documents(&text).unwrap().remove(0).value;
    set_server_fields(&mut object, "board", None);
    defaults::apply(&mut object);
    let errors = pod(&object);
    let (errors, more) = errors.into_parts();
    assert_eq!((errors.len(), more), (1, 0));
    assert_eq!(
        errors[0].detail,
        "must not have more than 2048 characters (including spaces) in the search list"
    );
}
