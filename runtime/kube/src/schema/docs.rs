//! Prints `docs/pods.md` from the table and `support.rs`. This is a test and not product code: the page is
//! for people, and the test checks that it matches the table.

use std::fmt::Write as _;

use super::{Field, FieldSupport, KUBERNETES, Shape, Type, Value, find, support};

const HEAD: &str = "\
<!-- Printed by `cargo xtask schema` from runtime/kube/src/schema; change support.rs instead. -->

# The fields of a Pod

What nodlet does with each field of a Pod's `spec` in Kubernetes VERSION:

* **acts**: behaves as Kubernetes does.
* **warns**: stores the field and returns it, without any effect; `apply` prints a warning.
* **rejects**: rejects the pod, because the pod would run differently from its manifest.

Values after *except* are accepted: they request nothing, or what nodlet does anyway. Of two fields that act, only one
value is accepted, and every other one is rejected by name: `nodeName` (the node's own name) and the `apiVersion` of a
`fieldRef` (`v1`).

Each field that acts has a row in the tables of `tests/tests/fields.rs`: pods that differ in this field alone, and what a
container or a status then shows; a few rows name another test.

Unknown fields are errors, unless `--validate=warn` or `ignore` is set.
In `metadata`, `finalizers` are rejected; `ownerReferences` and Kubernetes
annotations that nodlet does not act on are stored, with a warning. `status` is dropped.

nodlet has annotations of its own, for what Kubernetes has no field. Others in the domain `nodlet.dev` have no effect, and
`apply` warns about them by name. It also warns about annotations of other container runtimes and of their plugins (CRI-O,
crun, Kata Containers, containerd, Multus, NRI, and the classes of RDT and block I/O), and names what nodlet has instead.

| annotation | effect |
|---|---|
| `exclusive-cpus.nodlet.dev/CONTAINER: \"2\"` | the container runs on this number of cpus, and no other container runs on them. nodlet chooses the cpus, never the first one, when the container starts; a later run may get others. They are counted at admission: a pod that does not fit is `Failed` (`OutOfexclusive-cpus`). Needs cgroup v2 with `CONFIG_CPUSETS` and two cpus; on other nodes the pod is `Failed` (`UnexpectedAdmissionError`) |
| `io.podman.annotations.ulimit: \"nofile=1024:2048\"` | podman's annotation: the soft and the hard limit of open files (`RLIMIT_NOFILE`) of each process in all containers of the pod, in place of `--default-ulimit` of the agent; one number is both, and -1 stands for the hard limit of `--default-ulimit`. It concerns containers that start from then on. The operator has to allow a limit that is higher than that of `--default-ulimit`, and nothing else. A container does not start if nodlet may not raise the limit that far (`CAP_SYS_RESOURCE`, `fs.nr_open`). Other limits of the list, such as `nproc`, have no effect, and `apply` warns about them |
| `rtprio.nodlet.dev/CONTAINER: \"10\"` | processes of the container may choose real-time priorities up to this one (`RLIMIT_RTPRIO`), from 1 to 99. The container does not start if nodlet lacks `CAP_SYS_RESOURCE`, or if the kernel has `CONFIG_RT_GROUP_SCHED` and lets no cgroup of a pod run such processes |

The operator of the board allows each of them with `--allowed-annotations` ([cli.md](cli.md#admission-and-preemption));
otherwise `apply` warns, and the containers of the pod wait (`CreateContainerConfigError`), on a node without exclusive cpus,
too; admission counts no cpus for such a pod.
The container is one of `containers` or `initContainers`. Neither annotation can change in place. A process with a
real-time priority can keep all others off its cpu; `exclusive-cpus.nodlet.dev` keeps it off the cpus of others.

A PodPreset (`settings.k8s.io/v1alpha1`) has `selector`, `env`, `envFrom`, `volumeMounts` and `volumes`. The same rules
apply to these fields as to the fields of the same name of a Pod and its containers.

A PriorityClass (`scheduling.k8s.io/v1`) has `value`, `globalDefault`, `preemptionPolicy` and `description`. At
admission, a pod's `priorityClassName` sets its `priority`, once. Admission compares these requirements of the pod with
the node: `nodeSelector`, the required `nodeAffinity`, `tolerations` of `NoExecute` taints, `requests`, host ports and
`os`. A pod that does not fit is `Failed` with a kubelet's reason; for a critical pod, others are preempted (see
[cli.md](cli.md)).

A pod's network reaches other machines under the address of the board, which reaches the pod by `hostPort`:
[`examples/ports.yaml`](../examples/ports.yaml). `hostIP` restricts the port to one address of the board; without it,
the port is open at all of them, at 127.0.0.1 and for other pods, too, and shows the client's address to the pod. Two
pods cannot have the same `hostPort`, protocol and address. As in a cluster, a `hostPort` takes a port from a program of the
machine that listens on it. UDP works as TCP does: a
sender that began before the pod, or goes on while the pod is replaced, reaches the new pod (`CONFIG_NF_CT_NETLINK`).
SCTP needs `CONFIG_NF_CT_PROTO_SCTP`.
A Service gives several pods one name and one address ([services.md](services.md)).
The kernel needs nf_tables with NAT: `CONFIG_NF_TABLES_INET`, `CONFIG_NFT_NAT`, `CONFIG_NFT_MASQ`, `CONFIG_NFT_CT` and
`CONFIG_NFT_FIB_INET`.

Linux forwards an IPv4 packet if the link by which it comes in has `net.ipv4.conf.LINK.forwarding`. nodlet switches it
on for the bridge of the pods and, because replies come in there, for each link with an IPv4 address, also one that gets
its address later. The global switch `net.ipv4.ip_forward` stays as it is; if it is on, no link but the bridge is
changed. A firewall whose own `forward` chain drops packets still drops those of pods: `nodlet doctor` shows it.

With an IPv6 range (`--pod-cidr 10.85.0.0/24,fd00:10:85::/64`), pods have two addresses (`status.podIPs`), and all of this
holds for both; only `[::1]` leads to no `hostPort`. The host part of a pod's IPv6 address is that of its IPv4 address.
From Linux 6.17 on, IPv6 packets are forwarded link by link, too (`net.ipv6.conf.LINK.force_forwarding`). Earlier kernels
know only the global switch `net.ipv6.conf.all.forwarding`, which makes links ignore router advertisements unless they
have `accept_ra=2`: nodlet leaves it to the owner of the machine, and an event of the node reports it.

A LimitRange (`v1`) gives the containers of new pods of its namespace defaults (`default`, `defaultRequest`), and rejects
pods beyond `min`, `max` or `maxLimitRequestRatio`. A pod keeps the defaults that it was admitted with. Limits of the type
`PersistentVolumeClaim` apply to new claims.

A RuntimeClass (`node.k8s.io/v1`) has `handler`, which must be `nodlet`, `overhead` and `scheduling`. A new pod whose
`runtimeClassName` names the class gets its overhead, node selector and tolerations, and keeps them; a pod whose class
does not exist is rejected. The overhead (`cpu`, `memory` and `ephemeral-storage`) counts as a request of the pod and,
beside other limits, as a limit. The class `nodlet` needs no object.

A ConfigMap (`v1`) has `data`, `binaryData` and `immutable`; a Secret (`v1`) has `data`, `stringData`, `type` and
`immutable`. They are validated as in Kubernetes. Pods refer to them by variables and
volumes; clients create and change them as in a cluster (see [cli.md](cli.md)).

A PersistentVolume (`v1`) has `capacity`, `accessModes`, `claimRef`, `nodeAffinity`, `storageClassName`, `volumeMode`,
`persistentVolumeReclaimPolicy` (`Retain` or `Delete`) and one of the sources `hostPath` and `local`; other sources, and
the policy `Recycle`, are rejected by name. A PersistentVolumeClaim (`v1`) has `accessModes`, `resources`, `selector`, `storageClassName`,
`volumeMode` and `volumeName` (see [cli.md](cli.md)).

A Service (`v1`) has the fields of Kubernetes, with its rules; its addresses and node ports are allocated, kept over reboots
and never given twice. `loadBalancerSourceRanges` is rejected by name; `loadBalancerClass`, `trafficDistribution` and
`healthCheckNodePort` cause a warning. `externalIPs` must be in a range that the board's configuration allows. The agent makes
the EndpointSlices (`discovery.k8s.io/v1`) and Endpoints of Services with a selector; an EndpointSlice for a Service without
one is a manifest.
";

#[test]
fn docs_pods_md_matches_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pods.md");
    let printed = page();
    if std::env::var_os("NODLET_WRITE_DOCS").is_some() {
        std::fs::write(path, &printed).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == printed, "docs/pods.md is out of date: run `cargo xtask schema`");
}

fn page() -> String {
    let mut out = HEAD.replace("VERSION", KUBERNETES);
    let mut printed = Vec::new();
    let mut open = vec![find("PodSpec").unwrap()];
    while let Some(owner) = open.pop() {
        if printed.contains(&owner.name) {
            continue;
        }
        printed.push(owner.name);
        section(owner, &mut out);
        // In the order of the page: the type of the first field comes next.
        open.extend(
            owner
                .fields
                .iter()
                .rev()
                .filter(|field| support(owner.name, field.name) == Some(FieldSupport::Acts))
                .filter_map(Field::object),
        );
    }
    out
}

fn section(owner: &Type, out: &mut String) {
    writeln!(out, "\n## {}\n\n| Field | Type | nodlet |\n|---|---|---|", owner.name).unwrap();
    for field in owner.fields {
        let support = support(owner.name, field.name).unwrap();
        writeln!(out, "| `{}` | {} | {} |", field.name, type_of(field), describe_support(support)).unwrap();
    }
}

fn type_of(field: &Field) -> String {
    let value = match field.value {
        Value::String => "string".to_owned(),
        Value::Bool => "boolean".to_owned(),
        Value::Int32 | Value::Int64 => "integer".to_owned(),
        Value::Quantity => "quantity".to_owned(),
        Value::IntOrString => "integer or string".to_owned(),
        Value::Time => "time".to_owned(),
        Value::Any => "object".to_owned(),
        Value::Object(_) => field.object().unwrap().name.to_owned(),
    };
    match field.shape {
        Shape::One => value,
        Shape::List(_) => format!("list of {value}"),
        Shape::Map => format!("map of {value}"),
    }
}

fn describe_support(support: FieldSupport) -> String {
    let values =
        |values: &[&str]| values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    let except =
        |list: &[&str]| if list.is_empty() { String::new() } else { format!(", except {}", values(list)) };
    match support {
        FieldSupport::Acts => "acts".to_owned(),
        FieldSupport::Warns(why, list) => format!("**warns**: {why}{}", except(list)),
        FieldSupport::Rejects(why, list) => format!("**rejects**: {why}{}", except(list)),
        FieldSupport::Resources => {
            let acts = "acts on `cpu`, `memory`, `ephemeral-storage`, `hugepages-<size>` and `nodlet.dev/<device>` ([devices.md](devices.md))";
            format!("{acts}; **rejects** others, except `0` of them")
        }
    }
}
