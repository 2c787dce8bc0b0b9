use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Manifest, ManifestCause, ManifestError, Validation, admit, node_name_of, parse, to_yaml, written,
};
use nodlet_core::spec::container::{EnvSource, PullPolicy};
use nodlet_core::spec::pod::DnsPolicy;
use nodlet_core::spec::probe::PortOrName;
use nodlet_core::spec::volume::{HostPathType, MountPropagation};
use nodlet_core::spec::{ContainerIndex, ProbeAction, QosClass, Quantity, RestartPolicy, Role, VolumeSource};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app, image: 'localhost/demo:1'}]}\n";

fn read(text: &str) -> Vec<Manifest> {
    parse("web.yaml", text.as_bytes(), Validation::Strict, "board")
        .unwrap_or_else(|error| panic!("{text}\n{error}"))
}

fn one(text: &str) -> Manifest {
    let mut manifests = read(text);
    assert_eq!(manifests.len(), 1, "{text}");
    manifests.remove(0)
}

fn refused(text: &str) -> ManifestError {
    parse("web.yaml", text.as_bytes(), Validation::Strict, "board").expect_err(text)
}

/// A pod with these additional fields in its spec and in its container, in flow style.
fn pod(spec: &str, container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: app, image: 'app:1', {container}}}], {spec}}}\n"
    )
}

#[test]
fn a_simple_pod_becomes_a_spec_and_a_defaulted_object() {
    let manifest = one(POD);
    assert_eq!((&*manifest.pod.name, &*manifest.pod.namespace), ("web", "default"));
    assert_eq!(manifest.pod.uid.to_string().len(), 32);
    assert_eq!(manifest.object["metadata"]["uid"], manifest.pod.uid.to_string());
    assert_eq!(manifest.object["spec"]["nodeName"], "board");
    assert_eq!(manifest.object["spec"]["terminationGracePeriodSeconds"], 30);
    assert!(manifest.warnings.is_empty(), "{:?}", manifest.warnings);
}

#[test]
fn defaults_are_those_of_a_cluster() {
    for (written, defaulted, class) in [
        (include_str!("golden/full.yaml"), include_str!("golden/full.defaulted.yaml"), QosClass::Burstable),
        (
            include_str!("golden/images.yaml"),
            include_str!("golden/images.defaulted.yaml"),
            QosClass::BestEffort,
        ),
        (
            include_str!("golden/resources.yaml"),
            include_str!("golden/resources.defaulted.yaml"),
            QosClass::Burstable,
        ),
    ] {
        let Manifest { pod, mut object, .. } = one(written);
        object["spec"].as_object_mut().unwrap().remove("nodeName");
        object["metadata"].as_object_mut().unwrap().remove("uid");
        assert_eq!(to_yaml(&object), defaulted);
        assert_eq!(pod.spec.qos_class(), class);
        // The defaulted object gives the same pod when it is parsed again.
        assert_eq!(one(defaulted).pod.spec, pod.spec);
    }
}

#[test]
fn the_spec_has_all_that_the_manifest_says() {
    let secs = Duration::from_secs;
    let pod = one(include_str!("golden/full.yaml")).pod;
    assert_eq!(pod.annotations["example.com/note"], "two\nlines\n");
    let spec = &pod.spec;
    assert_eq!(spec.restart_policy, RestartPolicy::OnFailure);
    assert_eq!(spec.termination_grace_period, Duration::ZERO);
    assert_eq!(spec.active_deadline, Some(secs(3600)));
    assert_eq!((spec.hostname.as_deref(), spec.subdomain.as_deref()), (Some("host"), Some("sub")));
    assert!(spec.share_process_namespace && !spec.host_network && !spec.host_pid && !spec.host_ipc);
    assert_eq!(spec.host_aliases[0].hostnames, ["a", "b.c"]);
    assert_eq!(spec.dns_policy, DnsPolicy::None);
    assert_eq!(spec.dns_config.options, ["ndots:2", "edns0"]);
    assert_eq!(spec.security_context.run_as_group, Some(0));
    assert_eq!(spec.security_context.supplemental_groups, [3000, 4000]);
    assert_eq!(spec.security_context.fs_group, Some(2000));
    assert_eq!(spec.volumes[0].source, VolumeSource::EmptyDir { memory: false, size_limit: None });
    let half = Some(Quantity::parse("512Mi").unwrap());
    assert_eq!(spec.volumes[1].source, VolumeSource::EmptyDir { memory: true, size_limit: half });
    let log = VolumeSource::HostPath { path: "/var/log".to_owned(), kind: HostPathType::DirectoryOrCreate };
    assert_eq!(spec.volumes[2].source, log);

    let app = &spec.containers[0];
    assert_eq!(app.image_pull_policy, PullPolicy::Always);
    assert_eq!(app.command.as_deref(), Some(&["/app".to_owned()][..]));
    assert_eq!(app.working_dir.as_deref(), Some("/srv"));
    assert_eq!(app.env[1].value, EnvSource::Value(String::new()));
    assert_eq!(app.env[2].value, EnvSource::Field("status.podIP".to_owned()));
    assert_eq!((app.ports[1].container_port, &*app.ports[1].protocol), (53, "UDP"));
    assert_eq!(app.resources.cpu_request, Some(Quantity::from_milli(500)));
    assert_eq!(app.resources.memory_request, Some(Quantity::from_milli(64 * 1024 * 1024 * 1000)));
    assert_eq!(app.volume_mounts[0].sub_path.as_deref(), Some("a/b"));
    assert!(app.volume_mounts[1].read_only);
    assert_eq!(app.volume_mounts[2].propagation, MountPropagation::HostToContainer);
    let liveness = app.liveness_probe.as_ref().unwrap();
    assert!(
        matches!(&liveness.action, ProbeAction::HttpGet { host: None, port: PortOrName::Name(name), path, .. } if name == "http" && path == "/")
    );
    assert_eq!((liveness.timeout, liveness.period, liveness.failure_threshold), (secs(1), secs(10), 3));
    assert_eq!(liveness.termination_grace_period, Some(secs(3)));
    let readiness = app.readiness_probe.as_ref().unwrap();
    assert_eq!(readiness.action, ProbeAction::Exec(vec!["/app".to_owned(), "check".to_owned()]));
    assert_eq!((readiness.initial_delay, readiness.timeout, readiness.period), (secs(2), secs(3), secs(5)));
    assert_eq!((readiness.success_threshold, readiness.failure_threshold), (2, 1));
    let startup = ProbeAction::TcpSocket { host: Some("127.0.0.1".to_owned()), port: PortOrName::Port(8080) };
    assert_eq!(app.startup_probe.as_ref().unwrap().action, startup);
    assert!(
        app.termination_message_fallback_to_logs && app.termination_message_path == "/dev/termination-log"
    );
    let context = &app.security_context;
    assert!(context.no_new_privileges && context.read_only_root_filesystem && !context.privileged);
    assert_eq!(context.run_as_user, Some(0));
    assert_eq!(
        (&context.capabilities_add[..], &context.capabilities_drop[..]),
        (&["NET_ADMIN".to_owned(), "CHOWN".to_owned()][..], &["ALL".to_owned()][..])
    );
    let second = &spec.containers[1];
    assert_eq!(
        (second.image_pull_policy, second.command.as_ref(), second.args.as_ref()),
        (PullPolicy::Never, None, None)
    );
    let Some(ProbeAction::HttpGet { host, path, headers, .. }) =
        second.liveness_probe.as_ref().map(|probe| &probe.action)
    else {
        panic!("{second:?}");
    };
    assert_eq!((host.as_deref(), path.as_str(), headers.len()), (Some("example.com"), "/x?y=z", 2));
}

#[test]
fn probes_by_https_and_grpc_are_read() {
    let action = |probe: &str| {
        let read = pod("", &format!("readinessProbe: {{{probe}}}"));
        let spec = one(&read).pod.spec.clone();
        spec.containers[0].readiness_probe.as_ref().map(|probe| probe.action.clone())
    };
    let get = |text: &str| match action(text) {
        Some(ProbeAction::HttpGet { secure, .. }) => secure,
        other => panic!("{other:?}"),
    };
    assert!(get("httpGet: {port: 1, scheme: HTTPS}"));
    assert!(!get("httpGet: {port: 1, scheme: HTTP}") && !get("httpGet: {port: 1}"));
    let grpc = |port, service: &str| Some(ProbeAction::Grpc { port, service: service.to_owned() });
    assert_eq!(action("grpc: {port: 50051}"), grpc(50051, ""));
    assert_eq!(action("grpc: {port: 1, service: web.v1}"), grpc(1, "web.v1"));
}

#[test]
fn quality_of_service_follows_requests_and_limits() {
    for (resources, class) in [
        (&["{}"][..], QosClass::BestEffort),
        (&["{limits: {cpu: 0}}"], QosClass::BestEffort),
        (&["{requests: {ephemeral-storage: 1G}}"], QosClass::BestEffort),
        (&["{limits: {cpu: 1, memory: 1Gi}}"], QosClass::Guaranteed),
        (&["{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1000m, memory: 1024Mi}}"], QosClass::Guaranteed),
        (&["{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}"], QosClass::Burstable),
        (&["{limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 0}}"], QosClass::Burstable),
        (&["{limits: {cpu: 1}}"], QosClass::Burstable),
        (&["{requests: {cpu: 1, memory: 1Gi}}"], QosClass::Burstable),
        (&["{limits: {cpu: 1, memory: 1Gi}}", "{}"], QosClass::Burstable),
        (&["{limits: {cpu: 1, memory: 1Gi}}", "{limits: {cpu: 2, memory: 2Gi}}"], QosClass::Guaranteed),
    ] {
        let containers: Vec<String> = resources
            .iter()
            .enumerate()
            .map(|(index, resources)| format!("{{name: c{index}, image: i, resources: {resources}}}"))
            .collect();
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{}]}}\n",
            containers.join(", ")
        );
        assert_eq!(one(&text).pod.spec.qos_class(), class, "{resources:?}");
    }
    // Init containers count like the others.
    let both = "{limits: {cpu: 1, memory: 1Gi}}";
    for (init, regular, class) in [
        ("{requests: {cpu: 1}}", "{}", QosClass::Burstable),
        ("{}", both, QosClass::Burstable),
        (both, both, QosClass::Guaranteed),
    ] {
        let text = pod(
            &format!("initContainers: [{{name: first, image: i, resources: {init}}}]"),
            &format!("resources: {regular}"),
        );
        assert_eq!(one(&text).pod.spec.qos_class(), class, "{init} and {regular}");
    }
}

#[test]
fn resources_of_the_pod_as_a_whole_are_defaulted_and_count_instead_of_the_containers() {
    let resources = |spec: &str, container: &str| {
        let manifest = one(&pod(&format!("resources: {spec}"), &format!("resources: {container}")));
        (manifest.object["spec"]["resources"].clone(), manifest.pod.spec.qos_class())
    };
    let class = |spec: &str, container: &str| resources(spec, container).1;
    // Requests are those of the containers, or else the limits.
    assert_eq!(
        resources("{limits: {cpu: 2, memory: 1024Mi}}", "{requests: {cpu: 500m}}"),
        (
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}),
            QosClass::Burstable
        )
    );
    // Without limits nothing is defaulted.
    assert_eq!(
        resources("{requests: {cpu: 1}}", "{requests: {memory: 1Mi}}").0,
        json!({"requests": {"cpu": "1"}})
    );
    assert_eq!(class("{limits: {cpu: 1, memory: 1Gi}}", "{}"), QosClass::Guaranteed);
    assert_eq!(class("{limits: {cpu: 1}}", "{limits: {cpu: 1, memory: 1Gi}}"), QosClass::Burstable);
    assert_eq!(class("{requests: {cpu: 0}}", "{limits: {cpu: 0}}"), QosClass::BestEffort);
    assert_eq!(class("{}", "{limits: {cpu: 1, memory: 1Gi}}"), QosClass::BestEffort);
}

#[test]
fn wrong_resources_of_the_pod_as_a_whole_are_refused_in_the_words_of_kubernetes() {
    for (spec, container, expected) in [
        (
            "{requests: {cpu: 1}}",
            "{requests: {cpu: 1500m}}",
            "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate \
             container requests of 1500m",
        ),
        (
            "{limits: {memory: 1Gi}}",
            "{limits: {memory: 2Gi}}",
            // As Kubernetes writes the path.
            "spec.resources.containers[0][memory].limits: Invalid value: \"2Gi\": must be less than or equal to \
             pod limits of 1Gi",
        ),
        (
            "{limits: {ephemeral-storage: 1Gi}}",
            "{}",
            "spec.resources.limits[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported \
             values: \"cpu\", \"hugepages-\", \"memory\"",
        ),
        (
            "{limits: {cpu: 1}, requests: {cpu: 2}}",
            "{}",
            "spec.resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        ("{requests: {cpu: -1}}", "{}", "spec.resources.requests[cpu]: Invalid value: \"-1\""),
        ("{limits: {disk: 1}}", "{}", "spec.resources.limits[disk]: Invalid value: \"disk\""),
        ("{claims: [{name: a}]}", "{}", "spec.resources.claims: Forbidden"),
    ] {
        let text = pod(&format!("resources: {spec}"), &format!("resources: {container}"));
        let refused = refused(&text).to_string();
        assert!(refused.contains(expected), "{spec}, {container}: {refused}");
    }
}

#[test]
fn init_containers_are_read_and_defaulted_as_the_others_are() {
    let init = "initContainers: [{name: first, image: i}, {name: proxy, image: i, restartPolicy: Always, \
                startupProbe: {exec: {command: [a]}}, resources: {limits: {memory: 1Mi}}}]";
    let manifest = one(&pod(init, ""));
    let spec = &manifest.pod.spec;
    let told: Vec<_> = spec
        .container_indexes()
        .map(|index| {
            (
                spec.container(index).name.as_str(),
                spec.role(index),
                spec.index_of(&spec.container(index).name),
            )
        })
        .collect();
    let expected = [("app", Role::Regular), ("first", Role::Init), ("proxy", Role::Sidecar)];
    let expected = (0..).zip(expected).map(|(place, (name, role))| (name, role, Some(ContainerIndex(place))));
    assert_eq!(told, expected.collect::<Vec<_>>());
    assert_eq!(
        spec.init_indexes().map(|index| spec.field_path(index)).collect::<Vec<_>>(),
        ["spec.initContainers{first}", "spec.initContainers{proxy}"]
    );
    let proxy = &manifest.object["spec"]["initContainers"][1];
    assert_eq!(
        (&proxy["terminationMessagePath"], &proxy["startupProbe"]["periodSeconds"]),
        (&"/dev/termination-log".into(), &10.into())
    );
    assert_eq!(proxy["resources"]["requests"]["memory"], "1Mi");
    assert_eq!(proxy["imagePullPolicy"], "Always", "of an image without a tag");
    assert!(manifest.warnings.is_empty(), "{:?}", manifest.warnings);
}

#[test]
fn unsupported_fields_that_change_behaviour_are_rejected_with_their_path() {
    for (spec, container, path) in [
        ("resourceClaims: [{name: a}]", "", "spec.resourceClaims"),
        ("volumes: [{name: v, nfs: {server: s, path: /}}]", "", "spec.volumes[0].nfs"),
        ("volumes: [{name: v, csi: {driver: d}}]", "", "spec.volumes[0].csi"),
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
        assert!(text.starts_with(&format!("{path}: Forbidden: nodlet 0.1 ")), "{text}");
    }
    assert_eq!(
        refused(&pod("ephemeralContainers: [{name: a, image: b}]", "")).to_string(),
        "web.yaml, line 4: The Pod \"web\" is invalid: spec.ephemeralContainers: Forbidden: cannot be set on create"
    );
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
}

#[test]
fn the_output_of_kubectl_run_is_accepted_without_warnings() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  creationTimestamp: null\n  labels:\n    run: web\n  name: web\nspec:\n  \
                containers:\n  - image: nginx\n    name: web\n    resources: {}\n  dnsPolicy: ClusterFirst\n  \
                restartPolicy: Always\nstatus: {}\n";
    assert_eq!(one(text).warnings, Vec::<String>::new());
}

#[test]
fn names_of_capabilities_that_are_none_are_warned_about() {
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
fn thousandths_of_bytes_are_warned_about_as_by_kubernetes() {
    assert_eq!(
        one(&pod("", "resources: {requests: {memory: 1500m, cpu: 5m}}")).warnings,
        [
            "spec.containers[0].resources.requests[memory]: fractional byte value \"1500m\" is invalid, must be an integer"
        ]
    );
    assert_eq!(one(&pod("", "resources: {limits: {memory: 1.5Ki, cpu: 1m}}")).warnings, Vec::<String>::new());
}

#[test]
fn fields_without_effect_on_a_single_node_cause_warnings_with_their_path() {
    for (spec, container, path) in [
        (
            "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}]}}",
            "",
            "spec.affinity.podAffinity",
        ),
        (
            "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{}]}}",
            "",
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        ),
        (
            "tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 1}]",
            "",
            "spec.tolerations[0].tolerationSeconds",
        ),
        ("topologySpreadConstraints: [{}]", "", "spec.topologySpreadConstraints"),
        ("schedulerName: mine", "", "spec.schedulerName"),
        ("serviceAccountName: me", "", "spec.serviceAccountName"),
        ("imagePullSecrets: [{name: a}]", "", "spec.imagePullSecrets"),
        ("enableServiceLinks: true", "", "spec.enableServiceLinks"),
        (
            "volumes: [{name: a, emptyDir: {medium: Memory, sizeLimit: 1Mi}}], schedulerName: mine",
            "",
            "spec.schedulerName",
        ),
    ] {
        let warnings = one(&pod(spec, container)).warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with(&format!("{path}: has no effect: nodlet 0.1 ")), "{}", warnings[0]);
    }
    for (metadata, warning) in [
        (
            "annotations: {pod.beta.kubernetes.io/init-containers: '[]'}",
            "metadata.annotations[pod.beta.kubernetes.io/init-containers]: has had no effect since Kubernetes 1.8",
        ),
        (
            "annotations: {scheduler.alpha.kubernetes.io/critical-pod: ''}",
            "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \
             \"priorityClassName\" field instead",
        ),
        (
            "annotations: {container.seccomp.security.alpha.kubernetes.io/c: unconfined}",
            "metadata.annotations[container.seccomp.security.alpha.kubernetes.io/c]: non-functional in v1.27+; use \
             the \"seccompProfile\" field instead",
        ),
        (
            "annotations: {kubernetes.io/ingress-bandwidth: 1M}",
            "metadata.annotations[kubernetes.io/ingress-bandwidth]: has no effect: nodlet does not limit bandwidth",
        ),
        (
            "ownerReferences: [{apiVersion: v1, kind: Node, name: node, uid: u}]",
            "metadata.ownerReferences: has no effect: nodlet 0.1 deletes no object with its owner",
        ),
    ] {
        let warnings = one(&POD.replace("{name: web}", &format!("{{name: web, {metadata}}}"))).warnings;
        assert!(warnings.len() == 1 && warnings[0].starts_with(warning), "{warnings:?}");
    }
    let own = "annotations: {example.com/mine: x, kubectl.kubernetes.io/default-container: c}";
    let warnings = one(&POD.replace("{name: web}", &format!("{{name: web, {own}}}"))).warnings;
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn unsupported_metadata_is_rejected_with_its_path() {
    for (metadata, refusal) in [
        (
            "annotations: {container.apparmor.security.beta.kubernetes.io/app: localhost/strict}",
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/app]: Forbidden: nodlet 0.1 does not \
             confine containers by AppArmor or SELinux yet",
        ),
        (
            "finalizers: [example.com/hold]",
            "metadata.finalizers: Forbidden: nodlet 0.1 does not keep an object for its finalizers",
        ),
    ] {
        let text = POD.replace("{name: web}", &format!("{{name: web, {metadata}}}"));
        let refused = parse("web.yaml", text.as_bytes(), Validation::Ignore, "board").expect_err(metadata);
        assert!(refused.to_string().ends_with(refusal), "{refused}");
    }
}

#[test]
fn unknown_and_repeated_fields_are_errors_warnings_or_nothing() {
    let text = POD.replace("image:", "imag: x, image:") + "kind: Pod\n";
    assert_eq!(
        refused(&text).to_string(),
        "web.yaml: Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: line 5: key \"kind\" already set in map"
    );
    let text = POD.replace("image:", "imag: x, comand: [], image:");
    assert_eq!(
        refused(&text).to_string(),
        "web.yaml, line 4: Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: \
         unknown field \"spec.containers[0].comand\" (did you mean \"command\"?), \
         unknown field \"spec.containers[0].imag\" (did you mean \"image\"?)"
    );
    let warned = parse("f", text.as_bytes(), Validation::Warn, "n").unwrap();
    assert_eq!(warned[0].warnings.len(), 2);
    assert!(warned[0].object["spec"]["containers"][0].get("imag").is_none());
    let ignored = parse("f", text.as_bytes(), Validation::Ignore, "n").unwrap();
    assert!(ignored[0].warnings.is_empty());

    // For a client that sends the object to an agent: the agent cannot see duplicate keys any more.
    let text = POD.replace("image:", "image: j, image:");
    let twice = ["line 4: key \"image\" already set in map"];
    assert_eq!(written("f", text.as_bytes(), Validation::Warn).unwrap().0[0].warnings, twice);
    assert!(written("f", text.as_bytes(), Validation::Ignore).unwrap().0[0].warnings.is_empty());
    let refused_too = written("f", text.as_bytes(), Validation::Strict).unwrap().1[0].to_string();
    assert!(refused_too.ends_with(twice[0]), "{refused_too}");

    // A document that is not for nodlet does not affect the other documents.
    let text = format!("{POD}---\napiVersion: apps/v1\nkind: Deployment\n---\n{POD}");
    let (objects, others) = written("f", text.as_bytes(), Validation::Strict).unwrap();
    assert_eq!(objects.iter().map(|written| written.document).collect::<Vec<_>>(), [Some(1), Some(3)]);
    let told: Vec<String> = others.iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].starts_with("f, document 2, line 6: Deployment apps/v1"), "{told:?}");

    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    assert!(refused(json).to_string().ends_with("strict decoding error: duplicate field \"metadata.name\""));
    let warned = parse("f", json.as_bytes(), Validation::Warn, "n").unwrap();
    assert_eq!(
        (&*warned[0].pod.name, &warned[0].warnings[..]),
        ("b", &["duplicate field \"metadata.name\"".to_owned()][..])
    );
}

#[test]
fn a_file_may_contain_several_documents_and_lists() {
    let named = |name: &str| POD.replace("name: web", &format!("name: {name}"));
    let item = |name: &str| named(name).replace('\n', "\n  ");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {}\n- {}\n", item("c"), item("d"));
    let text = format!("{}---\n# nothing\n---\n{}---\n{list}", named("a"), named("b"));
    let names =
        |manifests: Vec<Manifest>| manifests.iter().map(|m| m.pod.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(read(&text)), ["a", "b", "c", "d"]);

    let json = r#"{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    let list = format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{json}]}}"#);
    assert_eq!(names(read(&list)), ["x"]);
    let pod = json.replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1);
    assert_eq!(names(read(&format!("{pod}\n{}", pod.replace("\"x\"", "\"y\"")))), ["x", "y"]);
    assert_eq!(
        names(read(
            "{apiVersion: v1, kind: Pod, metadata: {name: f}, spec: {containers: [{name: c, image: i},]}}"
        )),
        ["f"]
    );

    // All objects are accepted or none, and the error names the wrong one.
    let error = refused(&format!("{}---\n{}", named("a"), named("B")));
    assert!(
        error
            .to_string()
            .starts_with("web.yaml, document 2, line 8: The Pod \"B\" is invalid: metadata.name: "),
        "{error}"
    );
    let error = refused(&format!("{}---\n{}", named("a"), named("a")));
    assert!(
        error
            .to_string()
            .ends_with("pod default/a is in this file twice: give one of them another name or namespace")
    );
    let other = named("a").replace("{name: a}", "{name: a, namespace: other}");
    assert_eq!(read(&format!("{}---\n{other}", named("a"))).len(), 2);
}

#[test]
fn errors_report_line_numbers_where_they_are_known() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: A\n  spec:\n    \
                containers:\n    - name: c\n      image: i\n    - image: i\n    restartPolicy: x\n";
    assert_eq!(refused(list).lines, [7, 12, 13]);
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\",\n \"metadata\": {\"name\": \"a\"},\n \"spec\": {\n  \"kontainers\": []}}";
    assert_eq!(refused(json).lines, [4]);
    assert_eq!(refused(&format!("{POD}{}", "---\nkind: Pod\n")).lines, [6]);
}

#[test]
fn other_kinds_are_refused_by_name_with_the_way_on() {
    for (head, told) in [
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "Deployment apps/v1: nodlet runs Pods; put spec.template into a Pod manifest",
        ),
        (
            "apiVersion: batch/v1\nkind: CronJob\n",
            "CronJob batch/v1: nodlet runs Pods; put spec.jobTemplate.spec.template into a Pod manifest",
        ),
        ("apiVersion: v1\nkind: pod\n", "no matches for kind \"pod\" in version \"v1\": write kind: Pod"),
        (
            "apiVersion: v1\nkind: Namespace\n",
            "Namespace v1: namespaces need no object; write metadata.namespace into the Pod",
        ),
        (
            "apiVersion: v1\nkind: Service\n",
            "Service v1: not yet; nodlet accepts Pods, ConfigMaps, Secrets, PodPresets, PriorityClasses, LimitRanges, RuntimeClasses, PersistentVolumes, PersistentVolumeClaims and Lists of them",
        ),
        (
            "apiVersion: example.com/v1\nkind: Widget\n",
            "Widget example.com/v1: nodlet accepts Pods, ConfigMaps, Secrets, PodPresets, PriorityClasses, LimitRanges, RuntimeClasses, PersistentVolumes, PersistentVolumeClaims and Lists of them",
        ),
        (
            "apiVersion: v2\nkind: Pod\n",
            "no matches for kind \"Pod\" in version \"v2\": write apiVersion: v1",
        ),
        ("kind: Pod\n", "Object 'apiVersion' is missing: write apiVersion: v1"),
        ("apiVersion: v1\n", "Object 'Kind' is missing: write kind: Pod"),
        ("apiVersion: v1\nkind: [Pod]\n", "Object 'Kind' is missing: write kind: Pod"),
        ("- a\n", "not an object: a Pod has apiVersion, kind, metadata and spec"),
        ("Pod\n", "not an object: a Pod has apiVersion, kind, metadata and spec"),
        ("", "there is no object in it: a Pod has apiVersion, kind, metadata and spec"),
        ("# only this\n---\n", "there is no object in it: a Pod has apiVersion, kind, metadata and spec"),
        ("apiVersion: v1\nkind: List\nitems: {}\n", "items of the List must be a list"),
        (
            "apiVersion: v1\nkind: List\n",
            "there is no object in it: a Pod has apiVersion, kind, metadata and spec",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service}]\n",
            "items[0]: Service v1: not yet; nodlet accepts Pods, ConfigMaps, Secrets, PodPresets, PriorityClasses, LimitRanges, RuntimeClasses, PersistentVolumes, PersistentVolumeClaims and Lists of them",
        ),
    ] {
        assert_eq!(refused(head).to_string(), format!("web.yaml: {told}"));
    }
}

#[test]
fn a_manifest_that_is_not_utf8_or_too_large_is_rejected() {
    let refused =
        |bytes: &[u8]| parse("web.yaml", bytes, Validation::Strict, "board").unwrap_err().to_string();
    assert_eq!(refused(b"a: 1\nb: \xff\n"), "web.yaml, line 2: the text is not UTF-8");
    assert_eq!(refused(b"\xff\xfea\0"), "web.yaml: the text is in UTF-16: save it in UTF-8");
    assert_eq!(refused(&vec![b'#'; 10 * 1024 * 1024 + 1]), "web.yaml: longer than 10 MiB");
    assert_eq!(
        refused(b"a: 1\n\0\n"),
        "web.yaml, line 2: error converting YAML to JSON: control character 0x00 is not allowed"
    );
    assert!(refused(b"a: [\n").starts_with("web.yaml, line "));
    assert!(refused(b"{\"a\": 1,\n \"b\" 2}").starts_with("web.yaml, line 2: error converting JSON: "));
    assert!(
        refused(&b"{\"a\":".repeat(1_000_000))
            .contains("line 1: error converting JSON: recursion limit exceeded")
    );
    // Ten MiB of hostile text are rejected, and do not exhaust the memory.
    for piece in ["- ", "[", "{a: ", "a: &a [*a]\n", "? ", "- - x\n", "\"", "# \n", "---\n", "!!"] {
        refused(piece.repeat(10 * 1024 * 1024 / piece.len()).as_bytes());
    }
}

#[test]
fn the_first_of_ten_thousand_errors_are_listed_and_the_others_counted() {
    let lists = |item: &str| vec![item; 10_000].join(", ");
    let invalid = |spec: &str, container: &str| {
        let error = refused(&pod(spec, container));
        assert!(error.to_string().len() < 64 * 1024, "{} bytes", error.to_string().len());
        assert!(error.status().to_string().len() < 128 * 1024);
        let ManifestCause::Invalid { errors, more, .. } = &error.cause else { panic!("{error}") };
        assert!(error.to_string().ends_with(&format!("\n* and {more} more")), "{error}");
        assert!(error.status()["message"].as_str().unwrap().ends_with(&format!(", and {more} more]")));
        errors.len() + more
    };
    // Each name breaks a rule, and the list as a whole breaks two more.
    assert_eq!(invalid(&format!("dnsConfig: {{searches: [{}]}}", lists("A")), ""), 10_002);
    assert_eq!(invalid("", &format!("args: [{}]", lists("1"))), 10_000);
    assert_eq!(invalid(&format!("tolerations: [{}]", lists("[]")), ""), 10_000);

    let fields: String = (0..10_000).map(|number| format!("comand{number}: 1, ")).collect();
    let unknown = refused(&pod("", &fields)).to_string();
    assert!(unknown.ends_with(", and 9936 more") && unknown.len() < 16 * 1024, "{unknown}");
    let warned = lists("{name: a, hostPath: {path: /a}, emptyDir: {sizeLimit: 1}}");
    let text = pod(&format!("volumes: [{warned}]"), "");
    assert!(refused(&text).to_string().len() < 64 * 1024);
}

#[test]
fn a_long_key_with_many_below_it_that_are_there_twice_is_told_in_few_words() {
    // The path of each error begins with the long key.
    let (long, twice) = ("x".repeat(100_000), "\"a\":1,".repeat(5_000));
    let text = format!("{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"{long}\":{{{twice}\"a\":1}}}}");
    let told = refused(&text).to_string();
    assert!(told.ends_with(", and 4936 more") && told.len() < 128 * 1024, "{} bytes", told.len());
    let warned = written("f", text.as_bytes(), Validation::Warn).unwrap().0.remove(0).warnings;
    assert_eq!(warned.len(), 65);
    let limits = format!("resources: {{limits: {{\"{long}/a/b\": 1}}}}");
    assert!(refused(&pod("", &limits)).to_string().len() < 64 * 1024);
}

#[test]
fn a_pod_has_no_more_containers_than_an_index_has_numbers() {
    let with = |count: usize| {
        let containers: Vec<String> =
            (0..count).map(|number| format!("{{name: c{number}, image: i}}")).collect();
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{}]}}\n",
            containers.join(", ")
        )
    };
    let spec = one(&with(256)).pod.spec.clone();
    let names: Vec<_> = spec.container_indexes().map(|index| &spec.container(index).name).collect();
    assert_eq!(names, spec.containers.iter().map(|container| &container.name).collect::<Vec<_>>());
    let more = with(256).replace("containers:", "initContainers: [{name: first, image: i}], containers:");
    for many in [with(257), more] {
        let refused = refused(&many).to_string();
        assert!(
            refused.ends_with("spec.containers: Too many: 257: must have at most 256 items"),
            "{refused}"
        );
    }
}

#[test]
fn uids_are_those_of_the_file_unless_given() {
    let uid = |text: &str, file: &str, node: &str| {
        parse(file, text.as_bytes(), Validation::Strict, node).unwrap()[0].pod.uid.to_string()
    };
    let first = uid(POD, "/m/web.yaml", "board");
    assert_eq!(
        first,
        uid(&format!("# with a remark\n{POD}"), "/m/web.yaml", "board"),
        "a remark is no change"
    );
    assert_eq!(first, uid(&POD.replace("{name: web}", "{name: web, labels: {}}"), "/m/web.yaml", "board"));
    assert_ne!(first, uid(&POD.replace("demo:1", "demo:2"), "/m/web.yaml", "board"));
    assert_ne!(first, uid(POD, "/m/other.yaml", "board"));
    assert_ne!(first, uid(POD, "/m/web.yaml", "other"));
    assert_eq!(
        uid(&POD.replace("{name: web}", "{name: web, uid: my-uid}"), "/m/web.yaml", "board"),
        "my-uid"
    );
    let from_server = POD.replace(
        "{name: web}",
        "{name: web, resourceVersion: '5', deletionTimestamp: '2026-01-01T00:00:00Z'}",
    );
    assert_eq!(first, uid(&format!("{from_server}status: {{phase: Running}}\n"), "/m/web.yaml", "board"));
    assert!(one(&from_server).object["metadata"].get("deletionTimestamp").is_none());
    // A uid becomes the name of directories.
    for uid in ["../../etc", "a/b", ".", "A", "%s"] {
        let error = refused(&POD.replace("{name: web}", &format!("{{name: web, uid: '{uid}'}}")));
        assert!(error.to_string().contains("metadata.uid: Invalid value"), "{error}");
    }
}

#[test]
fn a_pod_for_another_node_is_not_taken() {
    assert_eq!(one(&pod("nodeName: board", "")).pod.spec.containers.len(), 1);
    assert_eq!(
        refused(&pod("nodeName: other", "")).to_string(),
        "web.yaml, line 4: The Pod \"web\" is invalid: spec.nodeName: Invalid value: \"other\": this node is \"board\": leave the field out"
    );
}

#[test]
fn errors_are_answered_as_the_api_answers_them() {
    let error = refused(&pod("restartPolicy: always", "imagePullPolicy: never"));
    assert_eq!(
        error.to_string(),
        "web.yaml, line 4: The Pod \"web\" is invalid: \n\
         * spec.containers[0].imagePullPolicy: Unsupported value: \"never\": supported values: \"Always\", \"IfNotPresent\", \"Never\"\n\
         * spec.restartPolicy: Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\""
    );
    let status = error.status();
    assert_eq!(
        (&status["kind"], &status["status"], &status["reason"], &status["code"]),
        (&json!("Status"), &json!("Failure"), &json!("Invalid"), &json!(422))
    );
    assert_eq!(status["details"]["name"], "web");
    assert_eq!(
        status["details"]["causes"][1],
        json!({
            "field": "spec.restartPolicy",
            "reason": "FieldValueNotSupported",
            "message": "Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        })
    );
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .starts_with("Pod \"web\" is invalid: [spec.containers[0].imagePullPolicy: Unsupported value")
    );
    let one = refused(&pod("restartPolicy: always", "")).status();
    assert_eq!(
        one["message"],
        "Pod \"web\" is invalid: spec.restartPolicy: Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\""
    );

    let unknown = refused(&pod("restartPolcy: Always", "")).status();
    assert_eq!((&unknown["reason"], &unknown["code"]), (&json!("BadRequest"), &json!(400)));
    assert!(unknown["message"].as_str().unwrap().contains("unknown field \"spec.restartPolcy\""));
}

#[test]
fn the_api_gives_uids_and_generated_names() {
    let object = |meta: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": "Running"},
               "spec": {"containers": [{"name": "c", "image": "i"}]}})
    };
    let uid = "0c2d1f9e-7d5b-4a3c-8e21-5f0c3a9b7d10";
    let read = |meta: Value| admit(object(meta), Validation::Strict, "board");
    let named = read(json!({"name": "a", "uid": uid})).unwrap();
    assert_eq!((&*named.pod.name, named.pod.uid.to_string()), ("a", uid.to_owned()));
    assert!(named.object.get("status").is_none(), "a status is not the client's to say");
    let generated = read(json!({"generateName": "web-", "uid": uid})).unwrap();
    assert!(
        generated.pod.name.starts_with("web-") && generated.pod.name.len() == 9,
        "{}",
        generated.pod.name
    );
    assert!(read(json!({"name": "a"})).unwrap_err().to_string().contains("metadata.uid: Required value"));
    assert!(
        read(json!({"uid": uid}))
            .unwrap_err()
            .to_string()
            .contains("metadata.name: Required value: name or generateName is required")
    );
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [object(json!({})), object(json!({}))]});
    assert!(
        admit(list, Validation::Strict, "board")
            .unwrap_err()
            .to_string()
            .contains("one object is created at a time")
    );
    let class = json!({"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "value": 1});
    let refused_class = admit(class, Validation::Strict, "board").unwrap_err().to_string();
    assert!(refused_class.contains("a PriorityClass cannot be handled as a Pod"), "{refused_class}");
    // The pod of a file would get another name each time the file is read, and so be another pod.
    assert!(
        refused(&POD.replace("name: web", "generateName: web-"))
            .to_string()
            .contains("metadata.name: Required value")
    );
}

#[test]
fn all_examples_are_taken_without_warnings() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut seen = 0;
    let entries = |dir: &std::path::Path| {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let (directories, mut files): (Vec<_>, Vec<_>) =
        entries(dir.as_ref()).into_iter().partition(|path| path.is_dir());
    for directory in directories {
        let below = entries(&directory);
        if directory.ends_with("devices") {
            for path in below {
                let bytes = std::fs::read(&path).unwrap();
                assert_eq!(super::parse_device_file(&path.display().to_string(), &bytes).unwrap().len(), 1);
            }
        } else {
            files.extend(below.into_iter().filter(|path| path.is_file()));
        }
    }
    for path in files {
        let bytes = std::fs::read(&path).unwrap();
        let manifests = parse(&path.display().to_string(), &bytes, Validation::Strict, "board")
            .unwrap_or_else(|error| panic!("{error}"));
        for manifest in manifests {
            assert_eq!(manifest.warnings, Vec::<String>::new(), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 20);
}

#[test]
fn a_host_name_of_linux_becomes_a_name_that_a_node_may_have() {
    for (host, node) in [
        ("board", Some("board")),
        ("qemu-x86_64", Some("qemu-x86-64")),
        ("My_Host.Example.", Some("my-host.example")),
        ("_a_._b", Some("a.b")),
        ("(none)", Some("none")),
        ("___", None),
        ("", None),
    ] {
        assert_eq!(node_name_of(host).as_deref(), node, "{host}");
    }
}
