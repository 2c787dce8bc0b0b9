//! What the mounts of these volumes allow: programs in them, and other volumes below them.

use std::fs;

use nodlet_tests::{Device, manifest};

use super::{cat, object};

const IMAGE: &str = "localhost/demo:1";

/// A script that prints itself.
const SCRIPT: &str = "#!/bin/demo cat\n";

/// A pod with a script in a volume of each kind, which an init container each, a hook and a probe execute.
fn scripts(name: &str, spec: &str) -> String {
    let init = ["configMap", "secret", "projected", "downward"].map(|kind| {
        format!(
            "- {{name: {}, image: {}, command: [/{kind}/run.sh], volumeMounts: [{{name: {}, mountPath: /{kind}}}]}}",
            kind.to_lowercase(),
            IMAGE,
            kind.to_lowercase(),
        )
    });
    format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {{script: {SCRIPT:?}}}}}
spec:
  {spec}
  volumes:
  - {{name: configmap, configMap: {{name: scripts, defaultMode: 0755}}}}
  - {{name: secret, secret: {{secretName: scripts, defaultMode: 0755}}}}
  - {{name: projected, projected: {{defaultMode: 0755, sources: [{{configMap: {{name: scripts}}}}]}}}}
  - name: downward
    downwardAPI: {{defaultMode: 0755, items: [{{path: run.sh, fieldRef: {{fieldPath: \"metadata.annotations['script']\"}}}}]}}
  initContainers:
  {}
  containers:
  - name: app
    image: {}
    args: [sleep]
    volumeMounts: [{{name: configmap, mountPath: /hooks}}, {{name: secret, mountPath: /one.sh, subPath: run.sh}}]
    lifecycle: {{postStart: {{exec: {{command: [/hooks/run.sh]}}}}}}
    readinessProbe: {{exec: {{command: [/one.sh]}}}}
",
        init.join("\n  "),
        IMAGE,
    )
}

#[test]
fn scripts_in_volumes_are_executed_where_run_is_mounted_noexec() {
    let mut device = Device::new();
    device.run_in_memory_without_programs();
    device.start_agent_with_demo();
    device
        .write_manifest("c.yaml", &object("ConfigMap", "scripts", &format!("data: {{run.sh: {SCRIPT:?}}}")));
    device.write_manifest(
        "s.yaml",
        &object("Secret", "scripts", &format!("stringData: {{run.sh: {SCRIPT:?}}}")),
    );
    for (name, spec) in [("own", ""), ("users", "hostUsers: false")] {
        let pod = device.write_pod(name, &scripts(name, spec)).wait_ready();
        for container in ["configmap", "secret", "projected", "downward"] {
            assert_eq!(pod.logs(container), SCRIPT, "{name} {container}");
        }
        // The mounts have attributes of their own, whatever holds the files.
        let mounts = pod.demo("app", "cat /proc/self/mountinfo").ok();
        let of_hooks = mounts.lines().find(|line| line.contains(" /hooks ")).expect("it is mounted");
        assert!(of_hooks.contains(" /hooks ro,nosuid,nodev,relatime"), "{of_hooks}");
        assert!(!of_hooks.contains("noexec"), "{of_hooks}");
    }
    let doctor = device.nodlet(["doctor"]);
    let line = doctor.stdout.lines().find(|line| line.contains("scripts in volumes")).unwrap_or_default();
    assert!(line.starts_with("ok ") && line.contains("noexec"), "{doctor:?}");
}

#[test]
fn volumes_are_mounted_below_volumes_of_each_kind_of_files() {
    let device = Device::start();
    for kind in ["ConfigMap", "Secret"] {
        let data = if kind == "Secret" { "stringData" } else { "data" };
        device.write_manifest(&format!("{kind}.yaml"), &object(kind, "c", &format!("{data}: {{a: old}}")));
    }
    let mounts = ["config", "secret", "projected", "downward"].map(|kind| {
        format!(
            "{{name: {kind}, mountPath: /{kind}}}, {{name: data, mountPath: /{kind}/data/deeper}}, \
             {{name: config, mountPath: /{kind}/data/deeper/most}}, {{name: secret, mountPath: /{kind}/one, subPath: a}}"
        )
    });
    let volumes = "volumes: [{name: data, emptyDir: {}}, {name: config, configMap: {name: c}}, \
                   {name: secret, secret: {secretName: c}}, {name: projected, projected: {sources: [{configMap: {name: c}}]}}, \
                   {name: downward, downwardAPI: {items: [{path: a, fieldRef: {fieldPath: metadata.name}}]}}]\n\
                   securityContext: {fsGroup: 2000}";
    let fields = format!("volumeMounts: [{}]\nsecurityContext: {{runAsUser: 1000}}", mounts.join(", "));
    // Two containers, which mount the same volumes at the same time.
    let containers = ["app", "other"].map(|name| {
        manifest::container(
            name,
            &format!("write /config/data/deeper/{name} x then print up then sleep"),
            &fields,
        )
    });
    let web = device.run_pod_of("web", &containers, volumes);
    for name in ["app", "other"] {
        web.wait_log(name, "up");
    }
    for kind in ["config", "secret", "projected", "downward"] {
        assert_eq!(cat(&device, &format!("/{kind}/data/deeper/other")), "x\n", "{kind}");
        assert_eq!(cat(&device, &format!("/{kind}/data/deeper/most/a")), "old", "{kind}");
        assert_eq!(cat(&device, &format!("/{kind}/one")), "old", "{kind}");
        let refused = web.demo("app", &format!("write /{kind}/x x"));
        assert!(refused.stderr.contains("Read-only file system"), "{kind}: {}", refused.stderr);
    }
    // The volume follows its object, and the mounts in it stay.
    device.write_manifest("ConfigMap.yaml", &object("ConfigMap", "c", "data: {a: new}"));
    device.wait_for("the new value", || cat(&device, "/config/a") == "new");
    device.wait_for("the new value", || cat(&device, "/config/data/deeper/most/a") == "new");
    assert_eq!(cat(&device, "/config/data/deeper/other"), "x\n");
    assert_eq!(web.container("app").restart_count(), 0);

    // A directory of the board gets no mount point through a read-only mount, and the message names it.
    let (path, here) = device.shared("usr/share/board");
    let container = manifest::container(
        "app",
        "sleep",
        "volumeMounts: [{name: board, mountPath: /board, readOnly: true}, {name: data, mountPath: /board/data}]",
    );
    let volumes =
        format!("volumes: [{{name: data, emptyDir: {{}}}}, {{name: board, hostPath: {{path: {path}}}}}]");
    device.run_pod_of("board", &[container], &volumes);
    let why = "the volume at /board, in which it is mounted, is read-only for the container and has no such directory";
    device.pod("board").wait_message("app", why);
    assert_eq!(fs::read_dir(&here).expect("it is there").count(), 0);
    fs::create_dir(here.join("data")).expect("it can be written to");
    device.pod("board").wait_ready();
}
