//! Pods with configuration: variables and files from ConfigMaps, Secrets and the downward API.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nodlet_tests::{Device, Kubectl, files_with, manifest};

mod mounts;

/// A value that may be nowhere but in the Secret, in its volume and in the environment of its container.
const SECRET: &str = "hunter2-is-secret";

fn object(kind: &str, name: &str, rest: &str) -> String {
    format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n{rest}\n")
}

/// A pod whose container sleeps, with these lines in its container and its spec.
fn sleeper(container: &str, spec: &str) -> String {
    manifest::pod_of("web", &[manifest::container("app", "env then print up then sleep", container)], spec)
}

#[test]
fn two_sources_of_which_one_makes_a_file_the_directory_of_the_other_are_named_in_the_event() {
    let device = Device::start();
    device.write_manifest("c.yaml", &object("ConfigMap", "c", "data: {x: one, z: two}"));
    let volume = "volumes: [{name: all, projected: {sources: [{configMap: {name: c}}, \
                  {configMap: {name: c, items: [{key: z, path: x/y}]}}]}}]";
    device.write_manifest("web.yaml", &sleeper("volumeMounts: [{name: all, mountPath: /v}]", volume));
    let expected =
        "MountVolume.SetUp failed for volume \"all\" : \"x\" is a file, and the directory of \"x/y\"";
    device.pod("web").wait_event_of("FailedMount", expected);
}

#[test]
fn variables_come_from_objects_and_from_the_pod_itself_and_are_in_sub_paths() {
    let device = Device::start();
    device.write_manifest("c.yaml", &object("ConfigMap", "c", "data: {mode: fast, level: \"3\"}"));
    device.write_manifest("s.yaml", &object("Secret", "s", &format!("stringData: {{password: {SECRET}}}")));
    let container = "envFrom: [{prefix: C_, configMapRef: {name: c}}, {secretRef: {name: none, optional: true}}]\n\
         resources: {limits: {memory: 64Mi}}\n\
         env:\n\
         - {name: LEVEL, valueFrom: {configMapKeyRef: {name: c, key: level}}}\n\
         - {name: PASSWORD, valueFrom: {secretKeyRef: {name: s, key: password}}}\n\
         - {name: URL, value: \"http://me:$(PASSWORD)@$(C_mode)\"}\n\
         - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}\n\
         - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}\n\
         - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}\n\
         volumeMounts: [{name: logs, mountPath: /mine, subPathExpr: \"of/$(POD)\"}, {name: logs, mountPath: /all}]\n";
    device.write_pod("web", &sleeper(container, "volumes: [{name: logs}]\n")).wait_log("app", "up");
    let logged = device.pod("web").logs("app");
    let cpus = std::thread::available_parallelism().expect("it is known");
    for line in [
        "C_level=3".to_owned(),
        "C_mode=fast".to_owned(),
        "LEVEL=3".to_owned(),
        format!("URL=http://me:{SECRET}@fast"),
        "MEMORY=64".to_owned(),
        format!("CPUS={cpus}"),
    ] {
        assert!(logged.lines().any(|logged| logged == line), "{line} is not in {logged}");
    }
    // A sub-path has the variables of its container.
    device.pod("web").demo("app", "write /mine/a here").ok();
    assert_eq!(cat(&device, "/all/of/web/a").trim(), "here");
}

#[test]
fn a_container_starts_the_moment_its_object_appears() {
    let device = Device::start();
    let container = "env: [{name: A, valueFrom: {configMapKeyRef: {name: late, key: a}}}]\n";
    device.write_manifest("web.yaml", &sleeper(container, ""));
    let waits = |message: &str| {
        device.wait_for(message, || device.pod("web").container("app").message() == message);
        assert_eq!(device.pod("web").container("app").reason(), "CreateContainerConfigError");
    };
    waits("configmap \"late\" not found");
    let failed = "Failed: Error: configmap \"late\" not found";
    assert!(
        device.pod("web").events().iter().any(|event| event == failed),
        "{:?}",
        device.pod("web").events()
    );
    device.write_manifest("late.yaml", &object("ConfigMap", "late", "data: {b: \"1\"}"));
    waits("couldn't find key a in ConfigMap default/late");
    device.write_manifest("late.yaml", &object("ConfigMap", "late", "data: {a: \"1\"}"));
    device.pod("web").wait_log("app", "A=1");
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}

const VOLUMES: &str = "volumes:\n\
    - {name: c, configMap: {name: c, items: [{key: a, path: dir/a, mode: 256}, {key: b, path: b}]}}\n\
    - {name: s, secret: {secretName: s, defaultMode: 288}}\n\
    - {name: d, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}\n\
    - name: all\n  projected: {sources: [{configMap: {name: c, optional: true}}, {secret: {name: s}}, \
      {downwardAPI: {items: [{path: uid, fieldRef: {fieldPath: metadata.uid}}]}}]}\n";

const MOUNTS: &str = "volumeMounts:\n\
    - {name: c, mountPath: /c}\n\
    - {name: c, mountPath: /one, subPath: b}\n\
    - {name: s, mountPath: /s}\n\
    - {name: d, mountPath: /d}\n\
    - {name: all, mountPath: /all}\n";

/// Variables of each kind, some of which change nothing.
const VARIABLES: &str = "envFrom: [{configMapRef: {name: c}}, {prefix: P_, secretRef: {name: s, optional: true}}]\n\
    env:\n\
    - {name: ONE, valueFrom: {configMapKeyRef: {name: c, key: a}}}\n\
    - {name: TWO, valueFrom: {secretKeyRef: {name: none, key: a, optional: true}}}\n\
    - {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}\n\
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}\n\
    resources: {requests: {memory: 1500Ki}}\n";

fn write_objects(device: &Device, a: &str) {
    device.write_manifest("c.yaml", &object("ConfigMap", "c", &format!("data: {{a: {a}, b: \"{a} b\"}}")));
    device.write_manifest("s.yaml", &object("Secret", "s", &format!("stringData: {{password: {SECRET}}}")));
}

fn cat(device: &Device, file: &str) -> String {
    device.pod("web").demo("app", &format!("cat {file}")).stdout
}

#[test]
fn volumes_show_objects_and_follow_their_changes() {
    let mut device = Device::start();
    // The pod starts the moment its objects appear.
    device.write_pod("web", &sleeper(MOUNTS, VOLUMES));
    let missing = "FailedMount: MountVolume.SetUp failed for volume \"c\" : configmap \"c\" not found";
    let misses = |device: &Device| device.pod("web").events().iter().any(|event| event == missing);
    device.wait_for(missing, || misses(&device));
    assert_eq!(device.pod("web").container("app").reason(), "ContainerCreating");
    write_objects(&device, "old");
    device.pod("web").wait_log("app", "up");
    for (file, content) in [
        ("/c/dir/a", "old"),
        ("/c/b", "old b"),
        ("/one", "old b"),
        ("/s/password", SECRET),
        ("/all/a", "old"),
        ("/all/password", SECRET),
        ("/all/uid", &device.pod("web").uid()),
    ] {
        assert_eq!(cat(&device, file), content, "{file}");
    }
    let refused = device.pod("web").demo("app", "write /c/x x");
    assert!(refused.stderr.contains("Read-only file system"), "{}", refused.stderr);
    let mode = |file: &str| device.pod("web").demo("app", &format!("stat {file}")).ok();
    assert!(mode("/c/..data/dir/a").contains("400"), "{}", mode("/c/..data/dir/a"));
    assert!(mode("/s/..data/password").contains("440"), "{}", mode("/s/..data/password"));

    write_objects(&device, "new");
    device.wait_for("the new value", || cat(&device, "/c/dir/a") == "new");
    device.wait_for("the new value", || cat(&device, "/all/a") == "new");
    // The inode that was mounted stays, as in Kubernetes.
    assert_eq!(cat(&device, "/one"), "old b");
    assert_eq!(device.pod("web").container("app").restart_count(), 0);

    // While no agent runs.
    device.kill_agent();
    write_objects(&device, "newer");
    device.start_agent();
    device.wait_for("the newer value", || cat(&device, "/c/dir/a") == "newer");
    assert!(!misses(&device), "events are those of this agent");

    // A deleted object stays visible where it is needed, and goes where it is optional.
    device.remove_manifest("c.yaml");
    device.wait_for(missing, || misses(&device));
    assert_eq!(cat(&device, "/c/dir/a"), "newer");
    assert!(device.pod("web").container("app").is_running());
    // It keeps no other volume back.
    device.write_manifest("s.yaml", &object("Secret", "s", "stringData: {password: rotated}"));
    device.wait_for("the new Secret", || cat(&device, "/s/password") == "rotated");
    device.remove_pod("web");
    assert_eq!(files_with(&device.path("run"), &[SECRET]), Vec::<String>::new());
}

#[test]
fn a_secret_of_the_site_overrides_that_of_the_vendor_in_a_running_pod() {
    let device = Device::start();
    let secret = |value: &str| object("Secret", "s", &format!("stringData: {{password: {value}}}"));
    device.write_file("/usr/lib/nodlet/manifests/s.yaml", secret("of-the-vendor"));
    let mount = "volumeMounts: [{name: s, mountPath: /s}]\n\
        env: [{name: P, valueFrom: {secretKeyRef: {name: s, key: password}}}]\n";
    device.write_pod("web", &sleeper(mount, "volumes: [{name: s, secret: {secretName: s}}]\n"));
    device.pod("web").wait_log("app", "P=of-the-vendor");
    assert_eq!(cat(&device, "/s/password"), "of-the-vendor");
    // By the name of the object, whatever the files are called.
    device.write_manifest("other.yaml", &secret("of-the-site"));
    device.wait_for("the site's", || cat(&device, "/s/password") == "of-the-site");
    device.write_manifest("second.yaml", &secret("of-nobody"));
    device.wait_for("the second file to be named", || {
        let events = device.get("/api/v1/events").expect("the API has events").to_string();
        events.contains("second.yaml: secret default/s is ignored: ")
    });
    let path = "/api/v1/namespaces/default/secrets/s";
    let (code, refused) =
        device.patch(path, "merge", &serde_json::json!({"stringData": {"password": "mine"}}));
    assert_eq!(code, 403, "{refused}");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains("it is defined by ")), "{refused}");
    assert_eq!(cat(&device, "/s/password"), "of-the-site");
    device.remove_manifest("second.yaml");
    device.remove_manifest("other.yaml");
    device.wait_for("the vendor's again", || cat(&device, "/s/password") == "of-the-vendor");
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
    for value in ["of-the-vendor", "of-the-site", "of-nobody"] {
        assert!(!device.agent_log().contains(value), "{}", device.agent_log());
    }
}

#[test]
fn the_next_agent_removes_what_a_killed_one_has_half_written_into_a_volume() {
    let mut device = Device::start();
    write_objects(&device, "old");
    device.write_pod("web", &sleeper(MOUNTS, VOLUMES)).wait_log("app", "up");
    let inside = format!("run/nodlet/pods/{}/volumes/kubernetes.io~configmap/c", device.pod("web").uid());
    let volume = device.path(&inside);
    let hidden = |device: &Device| {
        let mut names = device.names(&inside);
        names.retain(|name| name.starts_with(".."));
        names
    };
    let before = hidden(&device);
    assert_eq!(before.len(), 2, "{before:?}");
    // The moment at which the files are half written, and that at which the link has not yet taken its place.
    for (link, changes) in [(false, true), (true, true), (false, false), (true, false)] {
        device.kill_agent();
        let half = volume.join("..2026_01_31_12_00_00.123456789");
        fs::create_dir(&half).expect("it is new");
        fs::create_dir(half.join("dir")).expect("it is new");
        fs::write(half.join("dir/a"), "ha").expect("it is new");
        if link {
            std::os::unix::fs::symlink("..2026_01_31_12_00_00.123456789", volume.join("..data_tmp"))
                .expect("it is new");
        }
        let value = if changes { format!("new-{link}") } else { "new-true".to_owned() };
        write_objects(&device, &value);
        device.start_agent();
        device.wait_for("the value", || cat(&device, "/c/dir/a") == value);
        device.wait_for(&format!("the rest to go: {link} {changes}"), || hidden(&device).len() == 2);
        assert!(!half.exists());
    }
    assert_eq!(device.pod("web").container("app").restart_count(), 0);
}

#[test]
fn a_secret_is_on_no_flash_but_in_its_own_file_and_in_no_message() {
    let device = Device::start();
    write_objects(&device, "a");
    let container =
        format!("{MOUNTS}env: [{{name: P, valueFrom: {{secretKeyRef: {{name: s, key: password}}}}}}]\n");
    let app = manifest::container("app", "print up then sleep", &container);
    device.run_pod_of("web", &[app], VOLUMES).wait_log("app", "up");
    let found = files_with(device.root(), &[SECRET]);
    let elsewhere: Vec<&String> = found
        .iter()
        .filter(|path| !path.ends_with("/s.yaml"))
        .filter(|path| !(path.contains("/run/nodlet/pods/") && path.contains("/volumes/kubernetes.io~")))
        .collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    let ring = device.nodlet(["ring"]).ok();
    let described = device.nodlet(["describe", "pod", "web"]).ok();
    let pod = device.nodlet(["get", "pod", "web", "-o", "yaml"]).ok();
    for text in [ring, described, pod, device.agent_log()] {
        assert!(!text.contains(SECRET), "{text}");
    }
    let volumes = device.path("run/nodlet/pods").join(device.pod("web").uid()).join("volumes");
    assert_eq!(fs::metadata(volumes).expect("it is there").mode() & 0o777, 0o700);

    // What a Secret makes of a command or of a path is in no message either.
    let variable = "env: [{name: P, valueFrom: {secretKeyRef: {name: s, key: password}}}, \
                    {name: ABSOLUTE, value: /$(P)}, {name: ABOVE, value: ../$(P)}]\n";
    let path = |expression: &str| {
        format!("{variable}volumeMounts: [{{name: x, mountPath: /x, subPathExpr: \"{expression}\"}}]\n")
    };
    let file = device.write_file("/srv/file", "no directory");
    let source = format!("volumes: [{{name: x, hostPath: {{path: {}}}}}]\n", file.display());
    for (name, container, message) in [
        ("command", format!("{variable}command: [\"/bin/$(P)\"]\n"), "exec: \"/bin/$(P)\": stat /bin/$(P): "),
        ("absolute", path("$(ABSOLUTE)"), "error SubPath `$(ABSOLUTE)` must not be an absolute path"),
        ("above", path("$(ABOVE)"), "unable to provision SubPath `$(ABOVE)`: must not contain '..'"),
        ("below", path("$(P)/more"), "subPath $(P)/more"),
    ] {
        let app = manifest::container("app", "print up then sleep", &container);
        device.write_manifest("bad.yaml", &manifest::pod_of(name, &[app], &source));
        let found = || {
            let pod = device.pod(name);
            pod.container("app").message().contains(message) || pod.has_event(message)
        };
        device.wait_for(message, found);
        let object = device.pod(name).object().expect("it is there").to_string();
        let described = device.nodlet(["describe", "pod", name]).ok();
        let ring = device.nodlet(["ring"]).ok();
        for text in [object, described, ring, device.agent_log()] {
            assert!(!text.contains(SECRET), "{name}: {text}");
        }
        device.remove_manifest("bad.yaml");
        device.pod(name).wait_gone();
    }
}

#[test]
fn a_group_owns_the_files_that_its_pod_reads_as_another_user() {
    let device = Device::start();
    write_objects(&device, "a");
    let spec = format!("securityContext: {{runAsUser: 1000, runAsGroup: 1000, fsGroup: 4242}}\n{VOLUMES}");
    device.write_pod("web", &sleeper(MOUNTS, &spec)).wait_log("app", "up");
    assert_eq!(cat(&device, "/c/dir/a"), "a");
    assert_eq!(cat(&device, "/s/password"), SECRET);
}

#[test]
fn labels_in_a_volume_follow_kubectl_and_a_patched_config_map_its_pod() {
    let device = Device::start_unwatched();
    let kubectl = Kubectl::new(&device);
    kubectl.line("create configmap c --from-literal=a=1 --from-literal=b=2").ok();
    kubectl.line(&format!("create secret generic s --from-literal=password={SECRET}")).ok();
    device.apply(&sleeper(&format!("{MOUNTS}{VARIABLES}"), VOLUMES));
    device.pod("web").wait_log("app", "up");
    kubectl.line("label pod web tier=front").ok();
    device.wait_for("the label", || cat(&device, "/d/labels") == "tier=\"front\"");
    kubectl.line(r#"patch configmap c -p {"data":{"a":"patched"}}"#).ok();
    device.wait_for("the patched value", || cat(&device, "/c/dir/a") == "patched");
    // All of it, but for the ages of events.
    let described = |text: String| text.split("Events:").next().unwrap_or_default().trim_end().to_owned();
    let of_kubectl = described(kubectl.line("describe pod web").ok());
    assert!(of_kubectl.contains("ConfigMap (a volume populated by a ConfigMap)"), "{of_kubectl}");
    assert_eq!(described(device.nodlet(["describe", "pod", "web"]).ok()), of_kubectl);
}

#[test]
fn a_volume_that_a_hostile_container_has_spoilt_blocks_nobody_and_shows_the_next_change() {
    let device = Device::start();
    write_objects(&device, "old");
    let container = format!("{MOUNTS}securityContext: {{capabilities: {{add: [SYS_ADMIN]}}}}\n");
    device.write_pod("web", &sleeper(&container, VOLUMES)).wait_log("app", "up");
    let steps =
        "remount /c then rm /c/..data/b then fifo /c/..data/b then mkdir /c/..data/x then link /etc /c/y";
    device.pod("web").demo("app", steps).ok();
    write_objects(&device, "new");
    device.wait_for("the new value", || cat(&device, "/c/dir/a") == "new");
    assert_eq!(cat(&device, "/c/b"), "new b");
    // The agent has read no FIFO, and runs other pods.
    device.run_pod("other", "print up then sleep").wait_log("app", "up");
}

#[test]
fn a_pod_that_could_not_be_created_leaves_no_secret_behind() {
    let device = Device::start();
    write_objects(&device, "a");
    let spec = "volumes:\n\
        - {name: s, secret: {secretName: s}}\n\
        - {name: bad, hostPath: {path: /nowhere/at/all, type: Directory}}\n";
    device.write_manifest("web.yaml", &sleeper("", spec));
    let failed =
        |event: &String| event.starts_with("FailedMount: MountVolume.SetUp failed for volume \"bad\"");
    device.wait_for("the failure", || device.pod("web").events().iter().any(failed));
    device.remove_pod("web");
    device.wait_for("its files to go", || files_with(&device.path("run"), &[SECRET]).is_empty());
}

#[test]
fn variables_come_from_a_file_that_an_init_container_has_written() {
    let device = Device::start();
    let mount = "volumeMounts: [{name: config, mountPath: /config}]";
    let variable = |name: &str, key: &str, rest: &str| {
        format!(
            "- {{name: {name}, valueFrom: {{fileKeyRef: {{volumeName: config, path: env/file, key: {key}{rest}}}}}}}\n"
        )
    };
    let env = |key: &str| {
        format!(
            "env:\n{}{}- {{name: URL, value: http://$(MODE)}}\n",
            variable("MODE", key, ""),
            variable("NONE", "absent", ", optional: true")
        )
    };
    let text = |name: &str, content: &str, key: &str| {
        let steps = format!("mkdir /config/env then append /config/env/file {content}");
        manifest::pod_behind(
            name,
            &[manifest::container("init", &steps, mount)],
            &[manifest::container("app", "env then print up then sleep", &env(key))],
            "volumes: [{name: config, emptyDir: {}}]",
        )
    };
    device.write_pod("web", &text("web", "MODE='fast'", "MODE")).wait_log("app", "up");
    let logged = device.pod("web").logs("app");
    for line in ["MODE=fast", "URL=http://fast"] {
        assert!(logged.lines().any(|logged| logged == line), "{line} is not in {logged}");
    }
    assert!(!logged.contains("NONE="), "{logged}");
    for (name, content, key, message) in [
        ("none", "MODE='fast'", "OTHER", "environment variable key \"OTHER\" not found in file "),
        (
            "wrong",
            "MODE=fast",
            "MODE",
            "couldn't parse env file: env/file: invalid environment variable format at line 1: value must be enclosed in single quotes",
        ),
    ] {
        device.write_pod(name, &text(name, content, key)).wait_message("app", message);
        assert_eq!(device.pod(name).container("app").reason(), "CreateContainerConfigError");
    }
}

#[test]
fn a_pod_that_reads_ten_thousand_times_while_its_volumes_are_patched_sees_no_torn_view() {
    const CONTENTS: usize = 60;
    let device = Device::start_unwatched();
    // Longer than a page, so that no single copy of the kernel makes it whole.
    let content = |number: usize| vec![number.to_string(); 3000].join(" ");
    let data = |number: usize| serde_json::json!({"one": content(number), "two": content(number)});
    let path = |kind: &str, name: &str| format!("/api/v1/namespaces/default/{kind}/{name}");
    for (kind, name, field) in [("ConfigMap", "c", "data"), ("Secret", "s", "stringData")] {
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": kind, "metadata": {"name": name}, field: data(0),
        });
        device.apply(&object.to_string());
    }
    let app = |volume: &str| {
        let steps = format!("views /v one two 10000 {CONTENTS}");
        let mount = format!("volumeMounts: [{{name: {volume}, mountPath: /v}}]");
        manifest::container(volume, &steps, &mount)
    };
    let spec = "restartPolicy: Never\nvolumes:\n\
        - {name: c, configMap: {name: c}}\n- {name: s, secret: {secretName: s}}\n\
        - {name: all, projected: {sources: [{configMap: {name: c}}]}}\n\
        - name: mixed\n  projected:\n    sources:\n    - {secret: {name: s}}\n    \
        - {configMap: {name: c, items: [{key: one, path: c/one}]}}\n    \
        - {downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}\n";
    const VOLUMES: [&str; 4] = ["c", "s", "all", "mixed"];
    let containers = VOLUMES.map(app);
    device.apply(&manifest::pod_of("web", &containers, spec));
    let web = device.pod("web");
    device.wait_for("the readers", || VOLUMES.iter().all(|name| !web.container(name).id().is_empty()));
    let mut number = 0;
    device.wait_for("the reads", || {
        // The end of a wait between two patches would be the reader's only chance.
        for _ in 0..20 {
            number += 1;
            for (kind, name, field) in [("configmaps", "c", "data"), ("secrets", "s", "stringData")] {
                let patch = serde_json::json!({field: data(number)});
                device.patched(&path(kind, name), "merge", &patch);
            }
            // Another source of the volume with three.
            let patch = serde_json::json!({"metadata": {"labels": {"round": number.to_string()}}});
            device.patched(&path("pods", "web"), "merge", &patch);
        }
        !["Pending", "Running"].contains(&web.phase().as_str())
    });
    for name in VOLUMES {
        let log = web.logs(name);
        assert_eq!(web.container(name).exit_code(), Some(0), "{name}: {log}");
        eprint!("{name}: {number} patches, {log}");
    }
    // Each reader has seen this many contents: the unit test of the files has ten thousand updates.
    assert!(number >= CONTENTS, "{number} patches");
}

#[test]
fn a_container_that_swaps_a_link_in_thousands_of_times_leads_no_sub_path_out_of_its_volume() {
    const MOUNTS: usize = 40;
    const CONTAINERS: usize = 20;
    // A guest of another processor starts few containers in a minute.
    const ENOUGH: usize = if cfg!(target_arch = "x86_64") { 2000 } else { 200 };
    let device = Device::start_unwatched();
    let (shared, here) = device.shared("volume");
    let (_, outside) = device.shared("outside");
    for (directory, name) in [(here.join("swapped/inner"), "inside"), (outside.join("inner"), "outside")] {
        fs::create_dir_all(&directory).expect("it is new");
        fs::write(directory.join(name), "").expect("it is new");
    }
    let volume = format!("volumes: [{{name: v, hostPath: {{path: {shared}}}}}]\nrestartPolicy: Never\n");
    // With a single cpu, nothing else runs between two swaps unless the container sleeps between them.
    let rests = match std::thread::available_parallelism() {
        Ok(cpus) if cpus.get() > 1 => "0.00005",
        _ => "0.01 0.0001",
    };
    let swapper = manifest::container(
        "app",
        &format!("link ../outside /v/link then print swapping then swap /v/swapped /v/link {rests}"),
        "volumeMounts: [{name: v, mountPath: /v}]",
    );
    device.run_pod_of("swapper", &[swapper], &volume).wait_log("app", "swapping");
    let (mut mounted, mut refused) = (0, 0);
    for round in 0.. {
        // Every second path is missing, and is made.
        let path = |number: usize| match number % 2 {
            0 => "swapped/inner".to_owned(),
            _ => format!("swapped/inner/new-{round}-{number}"),
        };
        let mounts: String = (0..MOUNTS)
            .map(|number| format!("- {{name: v, mountPath: /m/{number}, subPath: {}}}\n", path(number)))
            .collect();
        let steps: Vec<String> = (0..MOUNTS).map(|number| format!("ls /m/{number}")).collect();
        let containers: Vec<String> = (0..CONTAINERS)
            .map(|number| {
                let steps = format!("{} then print whole", steps.join(" then "));
                manifest::container(&format!("c{number}"), &steps, &format!("volumeMounts:\n{mounts}"))
            })
            .collect();
        let name = format!("round-{round}");
        let pod = device.run_pod_of(&name, &containers, &volume);
        let names: Vec<String> = (0..CONTAINERS).map(|number| format!("c{number}")).collect();
        let settled = |name: &String| {
            let container = pod.container(name);
            container.state() == "terminated" || container.message().contains("it leads out of the volume")
        };
        device.wait_for("all containers to have been tried", || names.iter().all(settled));
        for name in &names {
            if pod.container(name).state() == "terminated" {
                let log = pod.logs(name);
                assert!(log.contains("whole") && !log.contains("outside"), "{name}: {log}");
                assert!(log.matches("inside").count() >= MOUNTS / 2, "{name}: {log}");
                mounted += MOUNTS;
            } else {
                refused += 1;
            }
        }
        device.remove_pod(&name);
        if mounted >= ENOUGH && refused >= 10 {
            break;
        }
        assert!(round < 50, "no race: {mounted} sub-paths mounted, {refused} refused");
    }
    eprintln!("{mounted} sub-paths mounted, {refused} starts refused");
    let made: Vec<_> = fs::read_dir(outside.join("inner")).expect("it is there").flatten().collect();
    assert_eq!(made.len(), 1, "nothing is made outside: {made:?}");
    device.remove_pod("swapper");
}
