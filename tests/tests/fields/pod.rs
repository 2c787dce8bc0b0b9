//! The fields of pods as a whole: admission, names, namespaces, users and DNS.

use crate::Look::{Limits, Log, Spec, Status};
use crate::{Row, elsewhere, row};

const SUCCEEDED: &str = r#""phase":"Succeeded""#;
const RUNNING: &str = r#""phase":"Running""#;
const NOT_THIS_NODE: &str = r#""reason":"NodeAffinity""#;
const NOT_TOLERATED: &str = r#""reason":"TaintToleration""#;

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row("PodSpec.activeDeadlineSeconds", Status, "containers: [{name: app, [[sleep]]}], @",
        &[("", RUNNING), ("activeDeadlineSeconds: 1", r#""reason":"DeadlineExceeded""#)]),
    row("PodSpec.affinity", Status, "containers: [{name: app, [[exit 0]]}], @",
        &[("", SUCCEEDED),
          ("affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: \
            [{matchExpressions: [{key: zone, operator: In, values: [b]}]}]}}}", NOT_THIS_NODE)]),
    row("PodSpec.containers", Status, "containers: [{name: app, [[exit 0]]}@]",
        &[("", SUCCEEDED), (", {name: second, [[exit 3]]}", r#""exitCode":3"#)]),
    row("PodSpec.dnsConfig", Log("app"), "containers: [{name: app, [[cat /etc/resolv.conf]]}], @",
        &[("", "nameserver 192.0.2.9"), ("dnsConfig: {nameservers: [192.0.2.1]}", "nameserver 192.0.2.1")]),
    row("PodSpec.dnsPolicy", Log("app"),
        "containers: [{name: app, [[cat /etc/resolv.conf]]}], dnsConfig: {nameservers: [192.0.2.1]}, @",
        &[("dnsPolicy: None", "nameserver 192.0.2.1"), ("dnsPolicy: Default", "nameserver 192.0.2.9")]),
    row("PodSpec.hostAliases", Log("app"), "containers: [{name: app, [[cat /etc/hosts]]}], @",
        &[("", "localhost"), ("hostAliases: [{ip: 192.0.2.1, hostnames: [far]}]", "192.0.2.1\tfar\n")]),
    row("PodSpec.hostIPC", Log("app"), "containers: [{name: app, [[stat /proc/self/ns/ipc]]}], @",
        &[("", "ipc:["), ("hostIPC: true", "$ipc")]),
    row("PodSpec.hostNetwork", Log("app"), "containers: [{name: app, [[stat /proc/self/ns/net]]}], @",
        &[("", "net:["), ("hostNetwork: true", "$net")]),
    row("PodSpec.hostPID", Log("app"), "containers: [{name: app, [[stat /proc/self/ns/pid]]}], @",
        &[("", "pid:["), ("hostPID: true", "$pid")]),
    row("PodSpec.hostname", Log("app"), "containers: [{name: app, [[hostname]]}], @",
        &[("", "-0"), ("hostname: called", "called\n")]),
    row("PodSpec.initContainers", Status, "containers: [{name: app, [[exit 0]]}], @",
        &[("", SUCCEEDED), ("initContainers: [{name: first, [[exit 0]]}]", r#""initContainerStatuses""#)]),
    elsewhere("PodSpec.nodeName", "runtime/kube/src/manifest/tests.rs::a_pod_for_another_node_is_not_taken",
        "the only accepted value is the node's own name, which has the effect of no value"),
    row("PodSpec.nodeSelector", Status, "containers: [{name: app, [[exit 0]]}], @",
        &[("", SUCCEEDED), ("nodeSelector: {zone: b}", NOT_THIS_NODE), ("nodeSelector: {no: a}", NOT_THIS_NODE)]),
    row("PodSpec.os", Status, "containers: [{name: app, [[exit 0]]}], @",
        &[("", SUCCEEDED), ("os: {name: windows}", r#""reason":"PodOSNotSupported""#)]),
    elsewhere("PodSpec.preemptionPolicy", "admission::a_pod_waits_for_its_priority_class_and_keeps_what_it_was",
        "a class sets it, and one that differs from the class is refused"),
    elsewhere("PodSpec.priority", "admission::a_critical_pod_takes_the_room_of_another_when_that_has_ended_with_its_grace",
        "a class sets it, and one that differs from the class is refused"),
    row("PodSpec.priorityClassName", Spec, "containers: [{name: app, [[exit 0]]}], @",
        &[("", r#""priority":0"#), ("priorityClassName: high", r#""priority":1000"#)])
        .with(&["PodSpec.priority"]),
    row("PodSpec.readinessGates", Status, "containers: [{name: app, [[sleep]]}], @",
        &[("", r#""ready":true"#),
          ("readinessGates: [{conditionType: example.com/a}]", r#""reason":"ReadinessGatesNotReady""#)]),
    row("PodSpec.resources", Limits, "containers: [{name: app, [[sleep]]}], @",
        &[("", ""), ("resources: {limits: {memory: 64Mi}}", "memory.max=67108864\n"),
          ("resources: {limits: {cpu: 500m}}", "cpu.max=50000 100000\n")]),
    row("PodSpec.restartPolicy", Status, "containers: [{name: app, [[exit 1]]}], @",
        &[("restartPolicy: Never", r#""phase":"Failed""#), ("restartPolicy: OnFailure", r#""lastState":{"terminated""#),
          ("restartPolicy: Always", r#""lastState":{"terminated""#)]).policy(""),
    row("PodSpec.schedulingGates", Status, "containers: [{name: app, [[exit 0]]}], @",
        &[("", SUCCEEDED), ("schedulingGates: [{name: example.com/a}]", r#""reason":"SchedulingGated""#)])
        .with(&["PodSpec.nodeName"]),
    row("PodSpec.securityContext", Log("app"), "containers: [{name: app, [[id]]}], @",
        &[("", "uid=0 "), ("securityContext: {runAsUser: 7}", "uid=7 ")]),
    row("PodSpec.shareProcessNamespace", Log("app"), "containers: [{name: app, [[cat /proc/1/comm]]}], @",
        &[("", "demo\n"), ("shareProcessNamespace: true", "pause\n")]),
    row("PodSpec.subdomain", Log("app"), "containers: [{name: app, [[cat /etc/hosts]]}], @",
        &[("", "localhost"), ("subdomain: below", ".below.default.svc")]),
    // The sidecar is stopped when the other container has ended.
    row("PodSpec.terminationGracePeriodSeconds", Status,
        "initContainers: [{name: side, restartPolicy: Always, [[on-term 7 4 then touch /v/up then sleep]], \
           volumeMounts: [{name: v, mountPath: /v}]}], \
         containers: [{name: app, [[wait /v/up]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, emptyDir: {}}], @",
        &[("", r#""exitCode":7"#), ("terminationGracePeriodSeconds: 1", r#""exitCode":137"#)]),
    row("PodSpec.tolerations", Status, "containers: [{name: app, [[exit 0]]}], @",
        &[("", NOT_TOLERATED), ("tolerations: [{operator: Exists}]", SUCCEEDED)]).tainted(),
    row("PodSpec.volumes", Log("app"),
        "containers: [{name: app, [[ls /v]], volumeMounts: [{name: v, mountPath: /v}]}], volumes: [@]",
        &[("{name: v, emptyDir: {}}", ""), ("{name: v, configMap: {name: fast}}", "level\nmode\n")]),

    row("Affinity.nodeAffinity", Status, "containers: [{name: app, [[exit 0]]}], affinity: {@}",
        &[("", SUCCEEDED),
          ("nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: \
            [{matchExpressions: [{key: zone, operator: In, values: [b]}]}]}}", NOT_THIS_NODE)]),
    row("NodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", Status,
        "containers: [{name: app, [[exit 0]]}], affinity: {nodeAffinity: {@}}",
        &[("", SUCCEEDED),
          ("requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: \
            [{matchExpressions: [{key: zone, operator: In, values: [b]}]}]}", NOT_THIS_NODE)]),
    row("NodeSelector.nodeSelectorTerms", Status,
        "containers: [{name: app, [[exit 0]]}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
         {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [b]}]}@]}}}",
        &[("", NOT_THIS_NODE), (", {matchExpressions: [{key: zone, operator: In, values: [a]}]}", SUCCEEDED)]),
    row("NodeSelectorTerm.matchExpressions", Status,
        "containers: [{name: app, [[exit 0]]}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
         {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: NotIn, values: [nobody]}], @}]}}}",
        &[("", SUCCEEDED), ("matchExpressions: [{key: zone, operator: In, values: [b]}]", NOT_THIS_NODE)]),
    row("NodeSelectorTerm.matchFields", Status,
        "containers: [{name: app, [[exit 0]]}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
         {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}], @}]}}}",
        &[("", SUCCEEDED), ("matchFields: [{key: metadata.name, operator: In, values: [nobody]}]", NOT_THIS_NODE)]),
    row("NodeSelectorRequirement.key", Status,
        "containers: [{name: app, [[exit 0]]}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
         {nodeSelectorTerms: [{matchExpressions: [{key: @, operator: In, values: [a]}]}]}}}",
        &[("zone", SUCCEEDED), ("rank", NOT_THIS_NODE)]),
    row("NodeSelectorRequirement.operator", Status,
        "containers: [{name: app, [[exit 0]]}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
         {nodeSelectorTerms: [{matchExpressions: [{key: rank, @}]}]}}}",
        &[("operator: In, values: ['6']", NOT_THIS_NODE), ("operator: NotIn, values: ['6']", SUCCEEDED),
          ("operator: Gt, values: ['6']", SUCCEEDED), ("operator: Lt, values: ['8']", SUCCEEDED),
          ("operator: Exists", SUCCEEDED)])
        .with(&["NodeSelectorRequirement.values"]),
    row("NodeSelectorRequirement.values", Status,
        "containers: [{name: app, [[exit 0]]}], affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: \
         {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [@]}]}]}}}",
        &[("b", NOT_THIS_NODE), ("b, a", SUCCEEDED)]),

    row("PodDNSConfig.nameservers", Log("app"),
        "containers: [{name: app, [[cat /etc/resolv.conf]]}], dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.1@]}",
        &[("", "nameserver 192.0.2.1\n"), (", 192.0.2.2", "nameserver 192.0.2.2\n")]),
    row("PodDNSConfig.options", Log("app"),
        "containers: [{name: app, [[cat /etc/resolv.conf]]}], dnsConfig: {@}",
        &[("", "nameserver"), ("options: [{name: ndots, value: '3'}]", "options ndots:3\n")]),
    row("PodDNSConfig.searches", Log("app"),
        "containers: [{name: app, [[cat /etc/resolv.conf]]}], dnsConfig: {@}",
        &[("", "search of.host\n"), ("searches: [lab.example]", "lab.example\n")]),
    row("PodDNSConfigOption.name", Log("app"),
        "containers: [{name: app, [[cat /etc/resolv.conf]]}], dnsConfig: {options: [{name: @, value: '3'}]}",
        &[("ndots", "options ndots:3\n"), ("attempts", "options attempts:3\n")]),
    row("PodDNSConfigOption.value", Log("app"),
        "containers: [{name: app, [[cat /etc/resolv.conf]]}], dnsConfig: {options: [{name: ndots, value: '@'}]}",
        &[("3", "options ndots:3\n"), ("4", "options ndots:4\n")]),

    row("HostAlias.hostnames", Log("app"),
        "containers: [{name: app, [[cat /etc/hosts]]}], hostAliases: [{ip: 192.0.2.1, hostnames: [far@]}]",
        &[("", "192.0.2.1\tfar\n"), (", away", "192.0.2.1\tfar\taway\n")]),
    row("HostAlias.ip", Log("app"),
        "containers: [{name: app, [[cat /etc/hosts]]}], hostAliases: [{ip: 192.0.2.@, hostnames: [far]}]",
        &[("1", "192.0.2.1\tfar\n"), ("2", "192.0.2.2\tfar\n")]),
    row("PodOS.name", Status, "containers: [{name: app, [[exit 0]]}], os: {name: @}",
        &[("linux", SUCCEEDED), ("windows", r#""reason":"PodOSNotSupported""#)]),
    row("PodReadinessGate.conditionType", Status,
        "containers: [{name: app, [[sleep]]}], readinessGates: [{conditionType: @}]",
        &[("example.com/a", r#"gate \"example.com/a\""#), ("example.com/b", r#"gate \"example.com/b\""#)]),
    elsewhere("PodSchedulingGate.name", "runtime/core/src/timelines/gates.rs::adding_a_scheduling_gate_replaces_the_pod",
        "any name has the same effect in a status; only a change of the pod compares names"),

    row("PodSecurityContext.fsGroup", Log("app"),
        "containers: [{name: app, [[id then stat /v]], volumeMounts: [{name: v, mountPath: /v}]}], \
         volumes: [{name: v, emptyDir: {}}], securityContext: {@}",
        &[("", "dir 0777 0:0"), ("fsGroup: 77", "dir 2777 0:77")]),
    row("PodSecurityContext.runAsGroup", Log("app"), "containers: [{name: app, [[id]]}], securityContext: {@}",
        &[("", " gid=0 "), ("runAsGroup: 8", " gid=8 ")]),
    row("PodSecurityContext.runAsNonRoot", Status, "containers: [{name: app, [[id]]}], securityContext: {@}",
        &[("", SUCCEEDED), ("runAsNonRoot: true", r#""reason":"CreateContainerConfigError""#)]),
    row("PodSecurityContext.runAsUser", Log("app"), "containers: [{name: app, [[id]]}], securityContext: {@}",
        &[("", "uid=0 "), ("runAsUser: 7", "uid=7 ")]),
    row("PodSecurityContext.supplementalGroups", Log("app"), "containers: [{name: app, [[id]]}], securityContext: {@}",
        &[("", " groups=0\n"), ("supplementalGroups: [88]", " groups=0,88\n")]),

    elsewhere("PodSecurityContext.appArmorProfile", "runtime/kube/src/manifest/tests.rs::values_that_equal_the_default_are_accepted_without_warnings",
        "the only accepted value is the default"),
    elsewhere("PodSecurityContext.seccompProfile", "runtime/kube/src/manifest/tests.rs::values_that_equal_the_default_are_accepted_without_warnings",
        "the only accepted value is the default"),
    elsewhere("PodSecurityContext.supplementalGroupsPolicy", "runtime/kube/src/manifest/tests.rs::unsupported_fields_that_change_behaviour_are_rejected_with_their_path",
        "the only accepted value is the default; the test has the other one"),

    row("Toleration.effect", Status,
        "containers: [{name: app, [[exit 0]]}], tolerations: [{key: lab, operator: Exists, effect: @}]",
        &[("NoExecute", SUCCEEDED), ("NoSchedule", NOT_TOLERATED)]).tainted(),
    row("Toleration.key", Status,
        "containers: [{name: app, [[exit 0]]}], tolerations: [{key: @, operator: Exists}]",
        &[("lab", SUCCEEDED), ("other", NOT_TOLERATED)]).tainted(),
    row("Toleration.operator", Status,
        "containers: [{name: app, [[exit 0]]}], tolerations: [{key: lab, @}]",
        &[("operator: Equal", NOT_TOLERATED), ("operator: Exists", SUCCEEDED)]).tainted(),
    row("Toleration.value", Status,
        "containers: [{name: app, [[exit 0]]}], tolerations: [{key: lab, value: @}]",
        &[("x", SUCCEEDED), ("z", NOT_TOLERATED)]).tainted(),
];
