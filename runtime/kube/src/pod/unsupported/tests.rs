use nodlet_fuzz::cases;
use serde_json::{Value, json};

use crate::manifest::tests::{POD, one, pod, refused};
use crate::manifest::{ManifestCause, Validation, parse};

#[test]
fn unsupported_fields_that_change_behaviour_are_rejected_with_their_path() {
    for (spec, container, path) in [
        ("resourceClaims: [{name: a}]", "", "spec.resourceClaims"),
        ("volumes: [{name: v, nfs: {server: s, path: /}}]", "", "spec.volumes[0].nfs"),
        ("volumes: [{name: v, csi: {driver: d}}]", "", "spec.volumes[0].csi"),
        ("volumes: [{name: v, gitRepo: {repository: r}}]", "", "spec.volumes[0].gitRepo"),
        (
            "volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: token}}]}}]",
            "",
            "spec.volumes[0].projected.sources[0].serviceAccountToken",
        ),
        (
            "volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: b, path: ca.crt}}]}}]",
            "",
            "spec.volumes[0].projected.sources[0].clusterTrustBundle",
        ),
        (
            "volumes: [{name: v, projected: {sources: [{podCertificate: {signerName: example.com/s, keyType: ED25519, \
             credentialBundlePath: bundle.pem}}]}}]",
            "",
            "spec.volumes[0].projected.sources[0].podCertificate",
        ),
        (
            "",
            "resources: {limits: {example.com/gpu: 1}}",
            "spec.containers[0].resources.limits[example.com/gpu]",
        ),
        (
            "",
            "securityContext: {seLinuxOptions: {level: s0}}",
            "spec.containers[0].securityContext.seLinuxOptions",
        ),
    ] {
        let error = refused(&pod(spec, container));
        let ManifestCause::Invalid { errors, .. } = &error.cause else { panic!("{error}") };
        assert_eq!(errors[0].path, path);
        let text = errors[0].to_string();
        assert!(text.starts_with(&format!("{path}: Forbidden: nodlet 0.2 ")), "{text}");
        assert!(!text.contains("yet"), "it is refused for ever, and the text has the way out: {text}");
    }
    let expected = "web.yaml, line 4: The Pod \"web\" is invalid: spec.ephemeralContainers: Forbidden: cannot be set on create";
    assert_eq!(refused(&pod("ephemeralContainers: [{name: a, image: b}]", "")).to_string(), expected);
}

#[test]
fn values_that_equal_the_default_are_accepted_without_warnings() {
    let spec = "initContainers: [], hostUsers: true, schedulingGates: null, schedulerName: default-scheduler, \
                serviceAccountName: default, automountServiceAccountToken: false, enableServiceLinks: false, os: {name: linux}, \
                securityContext: {seccompProfile: {type: Unconfined}, fsGroupChangePolicy: Always}, volumes: [{name: v, emptyDir: {medium: ''}}]";
    let container = "stdin: false, tty: false, envFrom: [], ports: [{containerPort: 80, hostPort: 0}], lifecycle: {}, \
                     livenessProbe: {httpGet: {port: 80, scheme: HTTP}}, securityContext: {appArmorProfile: {type: Unconfined}, procMount: Default}, \
                     resources: {limits: {example.com/gpu: 0, hugepages-2Mi: 0Mi, cpu: 1}, requests: {example.com/gpu: '0'}}";
    assert_eq!(one(&pod(spec, container)).warnings, Vec::<String>::new());
    assert!(
        one(&pod("", "ports: [{containerPort: 80, hostPort: 8080, hostIP: 10.0.0.1}]")).warnings.is_empty()
    );
    // The type of a container that SELinux does not confine.
    let unconfined = "securityContext: {seLinuxOptions: {type: spc_t}}";
    assert_eq!(one(&pod(unconfined, unconfined)).warnings, Vec::<String>::new());
    refused(&pod("", "securityContext: {seLinuxOptions: {type: spc_t, level: s0}}"));
}

#[test]
fn the_output_of_kubectl_run_is_accepted_without_warnings() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  creationTimestamp: null\n  labels:\n    run: web\n  name: web\nspec:\n  \
                containers:\n  - image: nginx\n    name: web\n    resources: {}\n  dnsPolicy: ClusterFirst\n  \
                restartPolicy: Always\nstatus: {}\n";
    assert_eq!(one(text).warnings, Vec::<String>::new());
}

#[test]
fn unknown_names_of_capabilities_cause_a_warning() {
    let container =
        "securityContext: {capabilities: {drop: [ALL, NET_RAWW], add: [net_admin, CAP_SYS_TIME, NET_ADMN]}}";
    let none = |place: &str, name: &str| {
        format!(
            "spec.containers[0].securityContext.capabilities.{place}: has no effect: \"{name}\" is none of the capabilities that Linux has"
        )
    };
    assert_eq!(one(&pod("", container)).warnings, [none("add[2]", "NET_ADMN"), none("drop[1]", "NET_RAWW")]);
}

#[test]
fn a_device_by_host_path_in_a_container_that_is_not_privileged_causes_a_warning() {
    let warnings = |source: &str, container: &str| {
        let spec = format!("volumes: [{{name: v, hostPath: {{{source}}}}}]");
        one(&pod(&spec, &format!("volumeMounts: [{{name: v, mountPath: /v}}]{container}"))).warnings
    };
    for (source, is_warned) in [
        ("path: /dev/ttyS0", true),
        ("path: /dev/ttyS0, type: CharDevice", true),
        ("path: /srv/disk, type: BlockDevice", true),
        ("path: /dev", true),
        ("path: /dev/dri, type: Directory", true),
        ("path: /dev/null, type: CharDevice", false),
        ("path: /dev/net/tun, type: CharDevice", false),
        ("path: /dev/shm", false),
        ("path: /dev/log, type: Socket", false),
        ("path: /device", false),
        ("path: /srv", false),
    ] {
        let warned = warnings(source, "");
        assert_eq!(warned.len(), usize::from(is_warned), "{source}: {warned:?}");
        assert!(warnings(source, ", securityContext: {privileged: true}").is_empty(), "{source}");
    }
    let warned = warnings("path: /dev/ttyS0", "");
    assert!(
        warned[0].starts_with("spec.volumes[0].hostPath: container \"app\" is not privileged")
            && warned[0].contains("nodlet.dev/<name>"),
        "{warned:?}"
    );
    assert!(one(&pod("volumes: [{name: v, hostPath: {path: /dev/ttyS0}}]", "")).warnings.is_empty());
}

#[test]
fn fractional_bytes_cause_the_warning_of_kubernetes() {
    assert_eq!(
        one(&pod("", "resources: {requests: {memory: 1500m, cpu: 5m}}")).warnings,
        [
            "spec.containers[0].resources.requests[memory]: fractional byte value \"1500m\" is invalid, must be an integer"
        ]
    );
    let limits = one(&pod("", "resources: {limits: {memory: .5}}")).warnings;
    assert!(
        limits.len() == 2 && limits[1].contains("requests[memory]: fractional byte value \"500m\""),
        "{limits:?}"
    );
    assert_eq!(one(&pod("", "resources: {limits: {memory: 1.5Ki, cpu: 1m}}")).warnings, Vec::<String>::new());
}

#[test]
fn fields_without_effect_on_a_single_node_cause_warnings_with_their_path() {
    for [spec, container, path] in cases(
        "
        affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}]}} => 
            => spec.affinity.podAffinity
        affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1}]}} => 
            => spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution
        tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 1}] => 
            => spec.tolerations[0].tolerationSeconds
        topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}] => 
            => spec.topologySpreadConstraints
        schedulerName: mine =>  => spec.schedulerName
        serviceAccountName: me =>  => spec.serviceAccountName
        volumes: [{name: a, emptyDir: {medium: Memory, sizeLimit: 1Mi}}], schedulerName: mine => 
            => spec.schedulerName
        ",
    ) {
        let warnings = one(&pod(spec, container)).warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with(&format!("{path}: has no effect: nodlet 0.2 ")), "{}", warnings[0]);
    }
    for [metadata, warning] in cases(
        r#"
        annotations: {pod.beta.kubernetes.io/init-containers: '[]'}
            => metadata.annotations[pod.beta.kubernetes.io/init-containers]: has had no effect since Kubernetes 1.8
        annotations: {scheduler.alpha.kubernetes.io/critical-pod: ''}
            => metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the "priorityClassName" field instead
        annotations: {container.seccomp.security.alpha.kubernetes.io/c: unconfined}
            => metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use the "seccompProfile" field instead
        annotations: {kubernetes.io/ingress-bandwidth: 1M}
            => metadata.annotations[kubernetes.io/ingress-bandwidth]: has no effect: nodlet does not limit bandwidth
        annotations: {exclusive-cpu.nodlet.dev/c: '1'}
            => metadata.annotations[exclusive-cpu.nodlet.dev/c]: has no effect: nodlet acts on exclusive-cpus.nodlet.dev/<container> and rtprio.nodlet.dev/<container>
        annotations: {cpu-load-balancing.crio.io: disable}
            => metadata.annotations[cpu-load-balancing.crio.io]: has no effect: it is for CRI-O; use exclusive-cpus.nodlet.dev/<container>
        ownerReferences: [{apiVersion: v1, kind: Node, name: node, uid: u}]
            => metadata.ownerReferences: has no effect: nodlet 0.2 deletes no object with its owner
        "#,
    ) {
        let warnings = one(&POD.replace("{name: web}", &format!("{{name: web, {metadata}}}"))).warnings;
        assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{warnings:?}");
    }
    let own = "annotations: {example.com/mine: x, kubectl.kubernetes.io/default-container: c}";
    let warnings = one(&POD.replace("{name: web}", &format!("{{name: web, {own}}}"))).warnings;
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn unsupported_metadata_is_rejected_with_its_path() {
    let refusal = "metadata.finalizers: Forbidden: nodlet 0.2 does not keep an object for its finalizers";
    let text = POD.replace("{name: web}", "{name: web, finalizers: [example.com/hold]}");
    let refused = parse("web.yaml", text.as_bytes(), Validation::Ignore, "board").expect_err("it is refused");
    assert!(refused.to_string().ends_with(refusal), "{refused}");
}

#[test]
fn apparmor_annotations_become_fields_of_their_containers() {
    const KEY: &str = "container.apparmor.security.beta.kubernetes.io";
    let check = |annotation: &str, of_pod: &str, own: &str, profile: Value, warns: bool| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: web, annotations: {{{KEY}/app: {annotation}}}}}, spec: {{\
             securityContext: {{{of_pod}}}, containers: [{{name: other, image: a}}, {{name: app, image: a{own}}}]}}}}"
        );
        let manifest = one(&text);
        let [other, app] = [0, 1].map(|place| manifest.object["spec"]["containers"][place].clone());
        assert!(other.get("securityContext").is_none(), "{text}");
        assert_eq!(app["securityContext"]["appArmorProfile"], profile, "{text}");
        let warning = format!(
            "metadata.annotations[{KEY}/app]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        );
        let expected = if warns { vec![warning] } else { Vec::new() };
        assert_eq!(manifest.warnings, expected, "{text}");
    };
    let strict = json!({ "type": "Localhost", "localhostProfile": "strict" });
    let default = json!({ "type": "RuntimeDefault" });
    let own = ", securityContext: {appArmorProfile: {type: RuntimeDefault}}";
    check("localhost/strict", "", "", strict.clone(), true);
    check("runtime/default", "", "", default.clone(), true);
    check("unconfined", "", "", json!({ "type": "Unconfined" }), true);
    check("localhost/strict", "", ", securityContext: {runAsUser: 1}", strict.clone(), true);
    check("localhost/strict", "appArmorProfile: {type: Unconfined}", "", strict, true);
    check("runtime/default", "appArmorProfile: {type: RuntimeDefault}", "", Value::Null, false);
    check("localhost/strict", "", own, default, false);
    check("localhost/", "", "", Value::Null, true);
}
