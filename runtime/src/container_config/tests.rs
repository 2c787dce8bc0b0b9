use std::fs;
use std::rc::Rc;

use nodlet_fuzz::cases;

use super::*;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::ContainerIndex;
use nodlet_host::launch::{MountConfig, MountSource, Propagation};
use nodlet_host::log_files;
use nodlet_kube::manifest::{self, Validation};

fn pod(container: &str, spec: &str) -> Rc<Pod> {
    crate::testing::pod("name: p, labels: {app: web}", container, spec)
}

fn image() -> ImageConfig {
    ImageConfig {
        entrypoint: vec!["/entry".into()],
        cmd: vec!["cmd".into()],
        env: vec!["A=image".into(), "B=image".into()],
        ..ImageConfig::default()
    }
}

fn config_of(container: &str, spec: &str, image: &ImageConfig) -> Result<ContainerConfig, StartFailure> {
    config_with(container, spec, image, &ConfigObjects::default())
}

/// With these ConfigMaps and Secrets, as manifests.
fn config_with(
    container: &str,
    spec: &str,
    image: &ImageConfig,
    objects: &ConfigObjects,
) -> Result<ContainerConfig, StartFailure> {
    config_beside(container, spec, image, objects, &[])
}

/// With these ConfigMaps and Secrets, and these variables of Services.
fn config_beside(
    container: &str,
    spec: &str,
    image: &ImageConfig,
    objects: &ConfigObjects,
    services: &[(&str, &str)],
) -> Result<ContainerConfig, StartFailure> {
    let services = services.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let volumes = Volumes::from([
        ("data".into(), MountSource::Host("/data".into())),
        ("mem".into(), MountSource::Memory("mem".into())),
    ]);
    let facts = Facts {
        seccomp_file: None,
        app_armor_profiles: None,
        ip: Some(Ipv4Addr::new(10, 0, 0, 2)),
        host_ip: Some(Ipv4Addr::new(192, 168, 0, 1)),
        ipv6: None,
        host_ipv6: None,
        node_name: "node",
        host_name: "machine",
        dns: &ClusterDns::default(),
        services,
        memory: 1 << 30,
        cgroup: CgroupPaths::default(),
        volumes: &volumes,
        layers: Vec::new(),
        image_volumes: &[],
        file_values: &SortedMap::new(),
        open_files: nodlet_core::spec::OpenFiles::DEFAULT,
        logs: LogLimits { max_size: 4096, max_files: 2 },
        objects,
        devices: Vec::new(),
        cdi: cdi::Injected::default(),
        allocatable: Amounts { cpu: 2000, memory: 1 << 30, ephemeral_storage: 1 << 32, pods: 110 },
    };
    let attempt = Attempt { container: ContainerIndex(0), number: 3 };
    container_config(&pod(container, spec), attempt, image, &Paths::new(Path::new("/r")), &facts)
}

fn config(container: &str, spec: &str) -> ContainerConfig {
    config_of(container, spec, &image()).unwrap_or_else(|failure| panic!("{}", failure.message))
}

#[test]
fn variables_of_services_are_beside_the_images_and_lose_against_the_containers_own() {
    let services =
        [("A", "service"), ("DB_SERVICE_HOST", "10.86.0.7"), ("DB_SERVICE_PORT", "5432"), ("DB_PORT", "s")];
    let container = "command: [a, $(DB_SERVICE_HOST)], env: [{name: URL, value: 'db://$(DB_SERVICE_HOST):$(DB_SERVICE_PORT)'}, \
                     {name: DB_SERVICE_PORT, value: '1'}, {name: DB_PORT, value: 'of $(DB_PORT)'}, \
                     {name: LATER, value: $(DB_SERVICE_PORT)}]";
    let objects = ConfigObjects::default();
    let config = config_beside(container, "", &image(), &objects, &services)
        .unwrap_or_else(|failure| panic!("{}", failure.message));
    assert_eq!(config.process.args, ["a", "10.86.0.7"]);
    for expected in [
        "A=service",
        "B=image",
        "DB_SERVICE_HOST=10.86.0.7",
        "URL=db://10.86.0.7:5432",
        "DB_SERVICE_PORT=1",
        // A kubelet forgets the variable of the Service before it expands the value.
        "DB_PORT=of $(DB_PORT)",
        "LATER=1",
    ] {
        assert!(config.process.env.contains(&expected.to_owned()), "{expected}: {:?}", config.process.env);
    }
}

fn mounted<'a>(config: &'a ContainerConfig, path: &str) -> &'a MountConfig {
    config.mounts.iter().find(|mount| mount.destination == Path::new(path)).expect("it is mounted")
}

#[test]
fn a_pod_in_the_hosts_network_is_called_as_the_machine_and_not_as_the_node() {
    for (spec, expected) in [("hostNetwork: true", "HOSTNAME=machine"), ("", "HOSTNAME=p")] {
        assert!(config("", spec).process.env.contains(&expected.to_owned()), "{spec}");
    }
}

#[test]
fn command_and_args_replace_those_of_the_image() {
    let variables = r#"env: [{name: V, value: v}], command: ["$(V)", "$$(V)", "$(W)", "$(A)", "$V", "$(V"]"#;
    for (container, expected) in [
        ("", &["/entry", "cmd"][..]),
        ("args: [x]", &["/entry", "x"]),
        ("command: [a]", &["a"]),
        ("command: [a], args: [x, z]", &["a", "x", "z"]),
        (variables, &["v", "$(V)", "$(W)", "$(A)", "$V", "$(V"]),
    ] {
        assert_eq!(config(container, "").process.args, expected, "{container}");
    }
    let empty = ImageConfig::default();
    let failure = config_of("", "", &empty).expect_err("there is nothing to run");
    assert_eq!(failure.reason, StartFailureReason::CreateContainerError);
}

#[test]
fn variables_of_variables_grow_no_further_than_a_process_can_be_given() {
    let doubled: Vec<String> =
        (1..40).map(|n| format!("{{name: V{n}, value: \"$(V{m})$(V{m})\"}}", m = n - 1)).collect();
    let env = format!("env: [{{name: V0, value: laugh}}, {}]", doubled.join(", "));
    let failure = config_of(&env, "", &ImageConfig::default()).expect_err("it is too long");
    assert_eq!(failure.reason, StartFailureReason::CreateContainerError);
    assert!(failure.message.contains("are longer than 2 MiB"), "{}", failure.message);
    // In the words of a command, too, and in those of a probe.
    let word = "a".repeat(1000);
    let words = vec!["\"$(V)\""; 5000].join(", ");
    let command = format!("env: [{{name: V, value: {word}}}], command: [{words}]");
    config_of(&command, "", &ImageConfig::default()).expect_err("it is too long");
    // One long field of the pod, as the values of many variables.
    let named = |count: usize| {
        let name = "N".repeat(1000);
        let variable =
            |n| format!("{{name: {name}{n}, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}");
        format!("env: [{}]", (0..count).map(variable).collect::<Vec<_>>().join(", "))
    };
    config(&named(100), "");
    config_of(&named(2100), "", &ImageConfig::default()).expect_err("it is too long");
    let few = format!("env: [{{name: V, value: {word}}}], command: [{}]", vec!["\"$(V)\""; 500].join(", "));
    assert_eq!(config(&few, "").process.args, vec![word; 500]);
}

#[test]
fn a_reference_without_an_end_is_text_and_the_one_before_it_a_reference() {
    let of =
        |text: &str| config(&format!("env: [{{name: V, value: v}}], command: [\"{text}\"]"), "").process.args;
    assert_eq!(of("$(V)$(V"), ["v$(V"]);
    assert_eq!(of("$(V$(V)"), ["$(V$(V)"]);
    assert_eq!(of("$($(V))"), ["$($(V))"]);
    assert_eq!(of("$$($(V"), ["$($(V"]);
    assert_eq!(of("x$(V)$"), ["xv$"]);
}

#[test]
fn a_field_reference_to_the_service_account_has_the_name_in_the_pod() {
    let container = "env: [{name: ACCOUNT, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}}]";
    for (spec, expected) in
        [("", "default"), ("serviceAccountName: robot", "robot"), ("serviceAccount: old-name", "old-name")]
    {
        let env = config(container, spec).process.env;
        assert!(env.contains(&format!("ACCOUNT={expected}")), "{spec}: {env:?}");
    }
}

#[test]
fn the_environment_is_the_images_with_the_containers_over_it() {
    let made = config(
        "env: [{name: A, value: own}, {name: C, value: \"$(A)-$(B)-$(D)\"}, {name: D, value: late},
          {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}},
          {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}},
          {name: APP, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}]",
        "",
    );
    let env: SortedMap<&str, &str> =
        made.process.env.iter().filter_map(|pair| pair.split_once('=')).collect();
    for (name, value) in [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOSTNAME", "p"),
        ("A", "own"),
        ("B", "image"),
        // The image's variables are not for expansion, nor those that come later.
        ("C", "own-$(B)-$(D)"),
        ("NAME", "p"),
        ("IP", "10.0.0.2"),
        ("APP", "web"),
    ] {
        assert_eq!(env.get(name), Some(&value), "{name}");
    }
    assert_eq!(made.process.env.len(), env.len(), "a variable is there twice");
}

#[test]
fn capabilities_begin_with_all_then_add_then_drop() {
    let of = |capabilities: &str| {
        config(&format!("securityContext: {{capabilities: {capabilities}}}"), "").process.capabilities
    };
    assert_eq!(of("{}").len(), 14);
    assert!(of("{add: [NET_ADMIN]}").contains(&"CAP_NET_ADMIN".to_owned()));
    assert!(!of("{drop: [CHOWN]}").contains(&"CAP_CHOWN".to_owned()));
    assert_eq!(of("{drop: [ALL], add: [NET_ADMIN]}"), ["CAP_NET_ADMIN"]);
    assert_eq!(of("{add: [ALL], drop: [SYS_ADMIN]}").len(), 40);
    assert_eq!(of("{drop: [ALL]}"), Vec::<String>::new());
    assert_eq!(config("securityContext: {privileged: true}", "").process.capabilities.len(), 41);
}

#[test]
fn a_violated_run_as_non_root_is_rejected_with_the_kubelets_text() {
    let root = "container has runAsNonRoot and image will run as root";
    let named =
        "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root";
    for (value, user, expected) in [
        ("true, runAsUser: 0", "", Some("container's runAsUser breaks non-root policy")),
        ("true", "", Some(root)),
        ("true", "0:5", Some(root)),
        ("true", "web", Some(named)),
        ("true", "7", None),
        ("true, runAsUser: 7", "web", None),
        ("false", "", None),
    ] {
        let container = format!("securityContext: {{runAsNonRoot: {value}}}");
        let failure = config_of(&container, "", &ImageConfig { user: user.into(), ..image() }).err();
        let is_of_config =
            |failure: &StartFailure| failure.reason == StartFailureReason::CreateContainerConfigError;
        assert!(failure.iter().all(is_of_config), "{container} as {user:?}");
        let text = failure.as_ref().map(|failure| &*failure.message);
        let shown = text.map(|text| text.split_once(" (pod: \"p_default(").expect(text).0);
        assert_eq!(shown, expected, "{container} as {user:?}");
    }
}

#[test]
fn mounts_come_in_the_order_of_their_paths_and_a_volume_hides_the_agents_file() {
    let volumes = "volumes: [{name: data, emptyDir: {}}, {name: mem, emptyDir: {medium: Memory}}]";
    let config = config(
        "volumeMounts: [{name: mem, mountPath: /b/c, readOnly: true}, {name: data, mountPath: /b, subPath: s},
          {name: data, mountPath: /etc/hosts, subPath: h}]",
        volumes,
    );
    let destinations: Vec<&str> =
        config.mounts.iter().filter_map(|mount| mount.destination.to_str()).collect();
    assert_eq!(destinations, ["/b", "/b/c", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf"]);
    assert_eq!(config.mounts[0].sub_path.as_deref(), Some(Path::new("s")));
    let memory = &config.mounts[1];
    assert_eq!((&memory.source, memory.read_only), (&MountSource::Memory("mem".into()), true));
    assert_eq!(config.mounts[3].source, MountSource::Host("/data".into()));
}

#[test]
fn the_user_of_a_container_overrides_that_of_its_pod() {
    let config = config(
        "securityContext: {runAsUser: 5}",
        "securityContext: {runAsUser: 1, runAsGroup: 2, fsGroup: 3, supplementalGroups: [4]}",
    );
    let user = &config.process.user;
    assert_eq!((user.run_as_user, user.run_as_group), (Some(5), Some(2)));
    assert_eq!(user.additional_gids, [4, 3]);
}

#[test]
fn the_oom_score_follows_the_class() {
    for (container, expected) in [
        ("", 1000),
        ("resources: {limits: {cpu: 1, memory: 1Mi}}", -997),
        ("resources: {requests: {memory: 512Mi}}", 500),
        ("resources: {requests: {memory: 2Gi}}", 3),
        ("resources: {requests: {cpu: 100m}}", 999),
    ] {
        assert_eq!(config(container, "").oom_score_adj, expected, "{container}");
    }
    // What the node is nothing without goes as late, whatever it requests; other critical pods do not.
    for (class, priority, expected) in [
        ("system-node-critical", 2_000_001_000, -997),
        ("system-cluster-critical", 2_000_000_000, 500),
        ("other", 2_000_001_000, 500),
    ] {
        let init = "initContainers: [{name: first, image: i}]";
        let mut pod = (*pod("resources: {requests: {memory: 512Mi}}", init)).clone();
        pod.spec.priority_class_name = class.into();
        pod.priority = priority;
        for container in pod.spec.containers.iter().chain(&pod.spec.init_containers) {
            let own = if expected < 0 || container.name != "first" { expected } else { 999 };
            assert_eq!(super::oom_score_adj(&pod, container, 1 << 30), own, "{class}: {}", container.name);
        }
    }
    // A sidecar goes no earlier than the one with the least that it serves.
    for (policy, own, expected) in [
        ("restartPolicy: Always", 0, 500),
        ("restartPolicy: Always", 768, 250),
        ("restartPolicy: Always", 1, 500),
        ("", 256, 750),
    ] {
        let own = format!("resources: {{requests: {{memory: {own}Mi}}}}");
        let init = format!("initContainers: [{{name: first, image: i, {own}, {policy}}}]");
        let pod = pod("resources: {requests: {memory: 512Mi}}", &init);
        assert_eq!(super::oom_score_adj(&pod, &pod.spec.init_containers[0], 1 << 30), expected, "{init}");
    }
}

#[test]
fn a_stop_signal_has_a_name_or_a_number() {
    assert_eq!(stop_signal(None), 15);
    // Numbers of real-time signals are as systemd and every other program of a distribution counts them.
    const CASES: &str = "
        SIGQUIT => 3
        quit => 3
        9 => 9
        0 => 15
        NONSENSE => 15
        SIGRTMIN+3 => 37
        rtmin => 34
        SIGRTMAX-14 => 50
        SIGRTMAX => 64
        SIGRTMIN+99 => 15
        SIGRTMAX-99 => 15
        SIGRTMINX => 15
    ";
    for [named, expected] in cases::<2>(CASES) {
        assert_eq!(stop_signal(Some(named)).to_string(), expected, "{named:?}");
    }
}

#[test]
fn a_mount_path_is_normalised_from_the_root() {
    const CASES: &str = "
        /a/b => /a/b
        rel => /rel
        /a//b/ => /a/b
        /../../x/../y => /y
        /./a => /a
        / => /
    ";
    for [path, expected] in cases::<2>(CASES) {
        assert_eq!(absolute(path), Path::new(expected), "{path}");
    }
}

#[test]
fn only_etc_hosts_stays_writable_in_a_read_only_root() {
    let config = config("securityContext: {readOnlyRootFilesystem: true}", "");
    let read_only = |path: &str| mounted(&config, path).read_only;
    assert!(!read_only("/etc/hosts"));
    assert!(read_only("/etc/resolv.conf") && read_only("/etc/hostname"));
}

#[test]
fn a_run_has_its_own_id_log_and_layer() {
    let config = config("", "");
    assert_eq!(config.id.len(), 64);
    assert_eq!((config.log.max_size, config.log.max_files), (4096, 2));
    let path = config.log.path.display().to_string();
    assert!(path.starts_with("/r/var/log/pods/default_p_") && path.ends_with("/c/3.log"), "{path}");
    assert!(config.log.link.display().to_string().ends_with(&format!("/p_default_c-{}.log", config.id)));
    assert!(config.upper_dir.ends_with("containers/c/3/upper"));
    let message = config.termination_message.expect("there is one by default");
    assert_eq!(message.path, Path::new("/dev/termination-log"));
    assert!(link_name("n", &"x".repeat(250), "c", &config.id).len() <= 255);
}

#[test]
fn discarding_a_run_keeps_the_newest_two_logs() {
    let root = tempfile::tempdir().expect("a directory");
    let paths = Paths::new(root.path());
    let directory = paths.pod_logs("n", "p", "u").join("c");
    fs::create_dir_all(&directory).expect("made");
    for name in ["0.log", "1.log", "1.log.20260101-000000", "2.log", "3.log"] {
        fs::write(directory.join(name), "x").expect("written");
    }
    log_files::remove_earlier_runs(&paths, ("n", "p", "u"), "c", 3).expect("discarded");
    let mut left: Vec<_> =
        fs::read_dir(&directory).expect("read").flatten().map(|entry| entry.file_name()).collect();
    left.sort();
    assert_eq!(left, ["3.log"]);
    log_files::remove_pod(&paths, "n", "p", "u").expect("removed");
    assert!(!paths.pod_logs("n", "p", "u").exists());
}

/// ConfigMaps and Secrets as a registry would give them to a pod that refers to all.
fn objects(manifests: &str) -> ConfigObjects {
    let read = manifest::contents("o.yaml", manifests.as_bytes(), Validation::Strict, "node");
    read.unwrap_or_else(|error| panic!("{error}")).definitions.into_iter().map(Rc::new).collect()
}

const OBJECTS: &str = "
kind: ConfigMap
apiVersion: v1
metadata: {name: c}
data: {a: \"1\", b: two, \"d.e\": x}
binaryData: {bin: AAE=}
---
kind: Secret
apiVersion: v1
metadata: {name: s}
stringData: {a: hidden}
data: {bin: /w==}
";

#[test]
fn variables_come_from_objects_and_later_ones_win() {
    let made = config_with(
        "envFrom: [{configMapRef: {name: c}}, {prefix: P_, secretRef: {name: t, optional: true}},
           {prefix: P_, configMapRef: {name: c}}],
         env: [{name: b, value: own}, {name: K, valueFrom: {configMapKeyRef: {name: c, key: b}}},
           {name: S, valueFrom: {secretKeyRef: {name: s, key: a}}}, {name: T, value: $(S)-$(P_a)},
           {name: M, valueFrom: {secretKeyRef: {name: s, key: none, optional: true}}},
           {name: O, valueFrom: {configMapKeyRef: {name: none, key: none, optional: true}}}]",
        "",
        &ImageConfig { env: Vec::new(), ..image() },
        &objects(OBJECTS),
    );
    let env = made.map(|made| made.process.env).unwrap_or_else(|failure| panic!("{}", failure.message));
    let own = ["a=1", "b=own", "d.e=x", "P_a=1", "P_b=two", "P_d.e=x", "K=two", "S=hidden", "T=hidden-1"];
    assert_eq!(env[2..], own.map(str::to_owned));
}

#[test]
fn a_missing_object_or_key_of_a_variable_is_reported_with_the_kubelets_text() {
    let of = |reference: &str| format!("env: [{{name: A, valueFrom: {{{reference}}}}}]");
    let no_text = "the value of the environment variable \"A\" from secret \"s\" is not text: mount the object as a volume";
    for (container, expected) in [
        ("envFrom: [{configMapRef: {name: none}}]", "configmap \"none\" not found"),
        ("envFrom: [{secretRef: {name: none}}]", "secret \"none\" not found"),
        (&of("configMapKeyRef: {name: c, key: none}"), "couldn't find key none in ConfigMap default/c"),
        (&of("configMapKeyRef: {name: c, key: bin}"), "couldn't find key bin in ConfigMap default/c"),
        (&of("secretKeyRef: {name: s, key: none}"), "couldn't find key none in Secret default/s"),
        (&of("secretKeyRef: {name: s, key: bin}"), no_text),
    ] {
        let failure = config_with(container, "", &image(), &objects(OBJECTS)).expect_err(container);
        let is_missing = failure.reason == StartFailureReason::ObjectNotFound;
        assert!(is_missing || failure.reason == StartFailureReason::CreateContainerError, "{container}");
        assert_eq!((is_missing, &*failure.message), (expected != no_text, expected));
    }
}

#[test]
fn resources_are_rounded_up_to_the_divisor_and_missing_limits_are_the_nodes() {
    let some = "{limits: {cpu: 1500m, memory: 100M, ephemeral-storage: 3}, requests: {cpu: 250m}}";
    let of_pod = "resources: {limits: {cpu: 700m, memory: 50Mi}, requests: {cpu: 300m, memory: 20Mi}}";
    const CASES: &str = "
        SOME =>  => limits.cpu => 2
        SOME =>  => limits.cpu, divisor: 1m => 1500
        SOME =>  => requests.cpu => 1
        SOME =>  => requests.cpu, divisor: 1m => 250
        SOME =>  => limits.memory, divisor: 1Mi => 96
        SOME =>  => requests.memory => 100000000
        SOME =>  => limits.ephemeral-storage, divisor: 1k => 1
        SOME =>  => limits.hugepages-2Mi => 0
        {limits: {hugepages-2Mi: 4Mi, cpu: 1}} =>  => requests.hugepages-2Mi, divisor: 1Mi => 4
        SOME =>  => limits.cpu, containerName: c, divisor: 1m => 1500
        {} =>  => limits.cpu => 2
        {} =>  => limits.memory, divisor: 1Gi => 1
        {} =>  => requests.memory => 0
        // A limit of the pod as a whole comes before what the node has, and after a limit of the container. Its request
        // is of no container.
        {} => POD => limits.cpu, divisor: 1m => 700
        {} => POD => limits.cpu => 1
        {} => POD => limits.memory, divisor: 1Mi => 50
        {} => POD => limits.memory, containerName: c => 52428800
        {} => POD => requests.cpu, divisor: 1m => 0
        {} => POD => requests.memory => 0
        {limits: {cpu: 200m}} => POD => limits.cpu, divisor: 1m => 200
        {limits: {cpu: 200m}} => POD => limits.memory, divisor: 1Mi => 50
        {} => resources: {limits: {cpu: 700m}} => limits.memory, divisor: 1Gi => 1
        {} => resources: {limits: {memory: 50Mi}} => limits.cpu => 2
        {} => resources: {limits: {memory: 0}} => limits.memory, divisor: 1Gi => 1
        {} => POD => limits.ephemeral-storage => 4294967296
    ";
    for [resources, spec, field, expected] in cases::<4>(CASES) {
        let resources = resources.replace("SOME", some);
        let container = format!(
            "resources: {resources}, env: [{{name: R, valueFrom: {{resourceFieldRef: {{resource: {field}}}}}}}]"
        );
        let env = config(&container, &spec.replace("POD", of_pod)).process.env;
        let found = env.into_iter().find_map(|pair| Some(pair.strip_prefix("R=")?.to_owned()));
        assert_eq!(found.as_deref(), Some(expected), "{resources} {spec} {field}");
    }
    let elsewhere =
        "env: [{name: R, valueFrom: {resourceFieldRef: {containerName: none, resource: limits.cpu}}}]";
    let failure = config_of(elsewhere, "", &image()).expect_err("there is no such container");
    assert_eq!(&*failure.message, "container none not found");
}

#[test]
fn sub_paths_have_the_variables_of_the_container_and_stay_relative() {
    let of = |expression: &str, env: &str| {
        let container = format!(
            "env: [{{name: A, value: \"{env}\"}}, {{name: EMPTY, value: \"\"}}], \
             volumeMounts: [{{name: data, mountPath: /d, subPathExpr: \"{expression}\"}}]"
        );
        match config_of(&container, "volumes: [{name: data}]", &image()) {
            Ok(made) => mounted(&made, "/d").sub_path.as_ref().expect("a path").display().to_string(),
            Err(failure) => failure.message.into(),
        }
    };
    for (expression, env, expected) in [
        ("x/$(A)/y", "one", "x/one/y"),
        ("$$(A)-$A-$(A", "one", "$(A)-$A-$(A"),
        ("$(NONE)/$(EMPTY)/$(A)/$(NONE)", "one", "missing value for EMPTY, NONE"),
        ("$(A)", "/etc", "error SubPath `/etc` must not be an absolute path"),
        ("$(A)/etc", "..", "unable to provision SubPath `../etc`: must not contain '..'"),
    ] {
        assert_eq!(of(expression, env), expected);
    }
}

#[test]
fn no_message_shows_what_a_secret_or_a_file_made_of_an_expression() {
    let secret = objects(
        "{apiVersion: v1, kind: Secret, metadata: {name: s}, stringData: {key: /../hunter2, PATH: /hunter2}}",
    );
    let of = |env: &str, command: &str, path: &str| {
        let container = format!(
            "env: [{env}], {command}, volumeMounts: [{{name: data, mountPath: /d, subPathExpr: \"{path}\"}}]"
        );
        config_with(&container, "volumes: [{name: data, emptyDir: {}}]", &image(), &secret)
    };
    let key = "{name: P, valueFrom: {secretKeyRef: {name: s, key: key}}}";
    let derived = format!("{key}, {{name: Q, value: \"x$(P)\"}}");
    let written = "{name: P, value: /../hunter2}";
    for (env, path, expected) in [
        (key, "$(P)", "error SubPath `$(P)` must not be an absolute path"),
        (&derived, "a$(Q)", "unable to provision SubPath `a$(Q)`: must not contain '..'"),
        (written, "a$(P)", "unable to provision SubPath `a/../hunter2`: must not contain '..'"),
    ] {
        assert_eq!(*of(env, "args: []", path).expect_err(path).message, *expected);
    }
    let all = format!("{derived}, {{name: NAME, value: prog}}");
    let path = "{name: NAME, value: prog}, {name: PATH, valueFrom: {secretKeyRef: {name: s, key: PATH}}}";
    for (env, command, expected) in [
        (&*all, "command: [\"$(P)\"]", Some("$(P)")),
        (&all, "command: [\"a$(Q)\", b]", Some("a$(Q)")),
        (&all, "command: [\"$(NAME)\", \"$(P)\"]", None),
        // The program is the image's.
        (&all, "args: [\"$(P)\"]", None),
        (path, "command: [\"$(NAME)\"]", Some("prog")),
    ] {
        let made = of(env, command, "$(NAME)").expect(command);
        assert_eq!(made.process.program_shown.as_deref(), expected, "{command}");
        assert_eq!(made.mounts.iter().find_map(|mount| mount.sub_path_shown.as_deref()), None);
    }
    let below = "{name: P, valueFrom: {secretKeyRef: {name: s, key: PATH}}}";
    let made = of(below, "args: []", "a$(P)").expect("a relative path");
    let mount = made.mounts.iter().find(|mount| mount.sub_path.is_some()).expect("it has a path");
    assert_eq!(mount.sub_path.as_deref(), Some(Path::new("a/hunter2")));
    assert_eq!(mount.sub_path_shown.as_deref(), Some("a$(P)"));
}

#[test]
fn an_object_is_decoded_once_however_many_variables_refer_to_it() {
    use nodlet_core::spec::reference::{ConfigKind, ObjectReference};
    let objects = objects(OBJECTS);
    let secret = ObjectReference { kind: ConfigKind::Secret, name: "s".into(), optional: false };
    let data = || objects.get(&secret).expect("it is there");
    assert!(Rc::ptr_eq(&data(), &data()));
}

#[test]
fn files_of_the_agent_are_read_only_and_no_mount_of_a_container_reaches_them() {
    let container = "securityContext: {privileged: true}, \
         volumeMounts: [{name: data, mountPath: /d, mountPropagation: Bidirectional}]";
    for (volume, expected) in [
        ("emptyDir: {}", (false, Propagation::Shared)),
        ("configMap: {name: c}", (true, Propagation::Private)),
        ("secret: {secretName: s}", (true, Propagation::Private)),
    ] {
        let made = config(container, &format!("volumes: [{{name: data, {volume}}}]"));
        let mount = mounted(&made, "/d");
        assert_eq!((mount.read_only, mount.propagation), expected, "{volume}");
    }
}
