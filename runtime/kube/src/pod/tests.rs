use nodlet_fuzz::cases;
use nodlet_fuzz::{assert_contains, assert_ends_with};
use std::time::Duration;

use serde_json::{Value, json};

use crate::manifest::tests::{POD, one, pod, refused};
use crate::manifest::{Manifest, Validation, parse, read_new, to_yaml};
use nodlet_core::spec::container::{EnvSource, PullPolicy};
use nodlet_core::spec::pod::DnsPolicy;
use nodlet_core::spec::probe::PortOrName;
use nodlet_core::spec::volume::{HostPathType, MountPropagation};
use nodlet_core::spec::{ContainerIndex, ProbeAction, QosClass, Quantity, RestartPolicy, Role, VolumeSource};

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
fn all_fields_of_a_manifest_are_converted() {
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
    let expected = (&["NET_ADMIN".to_owned(), "CHOWN".to_owned()][..], &["ALL".to_owned()][..]);
    assert_eq!((&context.capabilities_add[..], &context.capabilities_drop[..]), expected);
    let second = &spec.containers[1];
    let expected = (PullPolicy::Never, None, None);
    assert_eq!((second.image_pull_policy, second.command.as_ref(), second.args.as_ref()), expected);
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
fn resources_of_the_pod_are_defaulted_and_count_instead_of_those_of_containers() {
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
fn invalid_resources_of_a_pod_are_rejected_with_the_errors_of_kubernetes() {
    for [spec, container, expected] in cases(
        r#"
            {requests: {cpu: 1}}
                => {requests: {cpu: 1500m}}
                => spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 1500m
            {limits: {memory: 1Gi}}
                => {limits: {memory: 2Gi}}
                => spec.resources.containers[0][memory].limits: Invalid value: "2Gi": must be less than or equal to pod limits of 1Gi
            {limits: {ephemeral-storage: 1Gi}}
                => {}
                => spec.resources.limits[ephemeral-storage]: Unsupported value: "ephemeral-storage": supported values: "cpu", "hugepages-", "memory"
            {limits: {cpu: 1}, requests: {cpu: 2}}
                => {}
                => spec.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1
            {requests: {cpu: -1}} => {} => spec.resources.requests[cpu]: Invalid value: "-1"
            {limits: {disk: 1}} => {} => spec.resources.limits[disk]: Invalid value: "disk"
            {claims: [{name: a}]} => {} => spec.resources.claims: Forbidden
        "#,
    ) {
        let text = pod(&format!("resources: {spec}"), &format!("resources: {container}"));
        let refused = refused(&text).to_string();
        assert!(refused.contains(expected), "{spec}, {container}: {refused}");
    }
}

#[test]
fn init_containers_are_defaulted_like_other_containers() {
    let init = "initContainers: [{name: first, image: i}, {name: proxy, image: i, restartPolicy: Always, \
                startupProbe: {exec: {command: [a]}}, resources: {limits: {memory: 1Mi}}}]";
    let manifest = one(&pod(init, ""));
    let spec = &manifest.pod.spec;
    let roles: Vec<_> = spec
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
    assert_eq!(roles, expected.collect::<Vec<_>>());
    assert_eq!(
        spec.init_indexes().map(|index| spec.field_path(index)).collect::<Vec<_>>(),
        ["spec.initContainers{first}", "spec.initContainers{proxy}"]
    );
    let proxy = &manifest.object["spec"]["initContainers"][1];
    assert_eq!(
        json!([proxy["terminationMessagePath"], proxy["startupProbe"]["periodSeconds"]]),
        json!(["/dev/termination-log", 10])
    );
    assert_eq!(proxy["resources"]["requests"]["memory"], "1Mi");
    assert_eq!(proxy["imagePullPolicy"], "Always", "of an image without a tag");
    assert!(manifest.warnings.is_empty(), "{:?}", manifest.warnings);
}

#[test]
fn a_pod_with_more_containers_than_the_maximum_is_rejected() {
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
        assert_ends_with(&refused, "spec.containers: Too many: 257: must have at most 256 items");
    }
}

#[test]
fn uids_come_from_the_file_unless_the_manifest_has_one() {
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
fn a_pod_for_another_node_is_rejected() {
    assert_eq!(one(&pod("nodeName: board", "")).pod.spec.containers.len(), 1);
    let expected = "web.yaml, line 4: The Pod \"web\" is invalid: spec.nodeName: Invalid value: \"other\": this node is \"board\": leave the field out";
    assert_eq!(refused(&pod("nodeName: other", "")).to_string(), expected);
}

#[test]
fn the_api_gives_uids_and_generated_names() {
    let object = |meta: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": "Running"},
               "spec": {"containers": [{"name": "c", "image": "i"}]}})
    };
    let uid = "0c2d1f9e-7d5b-4a3c-8e21-5f0c3a9b7d10";
    let read = |meta: Value| read_new(object(meta), Validation::Strict, "board");
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
    assert_contains(
        &read(json!({"uid": uid})).unwrap_err(),
        "metadata.name: Required value: name or generateName is required",
    );
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [object(json!({})), object(json!({}))]});
    assert_contains(&read_new(list, Validation::Strict, "board").unwrap_err(), "a List cannot be created");
    let class = json!({"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "value": 1});
    let refused_class = read_new(class, Validation::Strict, "board").unwrap_err().to_string();
    assert!(refused_class.contains("a PriorityClass cannot be handled as a Pod"), "{refused_class}");
    // The pod of a file would get another name each time the file is read, and so be another pod.
    assert_contains(
        &refused(&POD.replace("name: web", "generateName: web-")),
        "metadata.name: Required value",
    );
}
