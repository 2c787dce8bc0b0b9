//! AppArmor profiles of pods and containers: which profile each process of a container has, read from inside through
//! `/proc`.
//!
//! The ignored test needs a kernel with AppArmor and `apparmor_parser`: `cargo xtask guest apparmor` runs it in a
//! virtual machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodlet_tests::{Device, manifest};

const KEY: &str = "container.apparmor.security.beta.kubernetes.io";

/// The line of the demo program's step `effective` that shows the profile of the calling process.
fn profile(text: &str) -> &str {
    text.lines().find_map(|line| line.strip_prefix("attr/current: ")).unwrap_or("missing")
}

#[test]
fn a_pod_that_names_a_profile_is_rejected_where_apparmor_is_not_enabled() {
    if fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with(b"Y")) {
        eprintln!("not run: AppArmor is enabled on this machine");
        return;
    }
    let device = Device::start();
    let strict = "{type: Localhost, localhostProfile: strict}";
    let of_pod = format!("securityContext: {{appArmorProfile: {strict}}}\n");
    device.run_pod_with("pod", "sleep", &of_pod);
    let own = "securityContext: {appArmorProfile: {type: RuntimeDefault}}\n";
    device.run_pod_of("own", &[manifest::container("app", "sleep", own)], "");
    let annotated = manifest::pod("annotated", "sleep").replacen(
        "name: annotated",
        &format!("name: annotated\n  annotations: {{{KEY}/app: localhost/strict}}"),
        1,
    );
    device.write_manifest("annotated.yaml", &annotated);
    let open = "securityContext: {appArmorProfile: {type: Unconfined}}\n";
    device.run_pod_with("open", "sleep", open);
    for name in ["pod", "own", "annotated"] {
        let pod = device.pod(name).wait_phase("Failed");
        let status = pod.status();
        assert_eq!(status["reason"], "AppArmor", "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("Cannot enforce AppArmor: AppArmor is not enabled on the host"),
            "{message}"
        );
    }
    let set = &device.pod("annotated").object().expect("it is there")["spec"]["containers"][0];
    assert_eq!(set["securityContext"]["appArmorProfile"]["localhostProfile"], "strict", "{set}");
    device.pod("open").wait_ready();
}

/// Loads a profile with the rules of `rules`.
fn load(name: &str, rules: &str) {
    let text = format!("profile {name} flags=(attach_disconnected,mediate_deleted) {{\n{rules}\n}}\n");
    let file = std::env::temp_dir().join(format!("{name}.apparmor"));
    fs::write(&file, text).expect("it can be written");
    load_file(&file);
}

fn load_file(file: &Path) {
    let loaded = Command::new("apparmor_parser")
        .args(["--config-file", "/dev/null", "--replace", "--skip-cache"])
        .arg(file)
        .output();
    let loaded = loaded.expect("apparmor_parser can be executed");
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
}

#[test]
#[ignore = "needs a kernel with AppArmor and apparmor_parser: `cargo xtask guest apparmor`"]
fn profiles_confine_all_processes_of_a_container() {
    let security = Path::new("/sys/kernel/security");
    if !security.join("apparmor").exists() {
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("securityfs"), security, Some("securityfs"), flags, None::<&str>)
            .expect("the guest's kernel has it");
    }
    load("strict", "  network,\n  capability,\n  file,\n  signal,\n  ptrace,\n  umount,\n  deny /denied w,");
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let strict = "{type: Localhost, localhostProfile: strict}";
    let own = |profile: &str| format!("securityContext: {{appArmorProfile: {profile}}}\n");
    let run = |by: &str| format!("{{exec: {{command: [/bin/demo, effective, /one/{by}]}}}}");
    let more = format!(
        "lifecycle: {{postStart: {}}}\nstartupProbe: {}\nvolumeMounts: [{{name: one, mountPath: /one}}]\n",
        run("hook"),
        run("probe")
    );
    let volumes = format!("volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n");
    let of_pod = |profile: &str| format!("securityContext: {{appArmorProfile: {profile}}}\n{volumes}");
    let steps = "effective then sleep";
    let containers = [
        manifest::container("app", steps, &more),
        manifest::container("open", steps, &own("{type: Unconfined}")),
        manifest::container(
            "user",
            steps,
            &format!(
                "securityContext: {{runAsUser: 1000, allowPrivilegeEscalation: false, appArmorProfile: {strict}}}\n"
            ),
        ),
        manifest::container(
            "privileged",
            steps,
            &format!("securityContext: {{privileged: true, appArmorProfile: {strict}}}\n"),
        ),
    ];
    device.run_pod_of("web", &containers, &of_pod(strict));
    let spec = format!("shareProcessNamespace: true\n{}", of_pod(strict));
    device.run_pod_with("shared", steps, &spec);
    let spec = format!("hostUsers: false\nsecurityContext: {{appArmorProfile: {strict}}}\n");
    device.run_pod_with("mapped", steps, &spec);
    let annotated = manifest::pod("annotated", steps).replacen(
        "name: annotated",
        &format!("name: annotated\n  annotations: {{{KEY}/app: localhost/strict}}"),
        1,
    );
    device.write_manifest("annotated.yaml", &annotated);
    device.run_pod("plain", steps);
    const STRICT: &str = "\"strict (enforce)\\n\"";
    const OPEN: &str = "\"unconfined\\n\"";
    for (pod, container, expected) in [
        ("web", "app", STRICT),
        ("web", "open", OPEN),
        ("web", "user", STRICT),
        ("web", "privileged", STRICT),
        ("shared", "app", STRICT),
        ("mapped", "app", STRICT),
        ("annotated", "app", STRICT),
        // The profile of the runtime is not loaded.
        ("plain", "app", OPEN),
    ] {
        let pod = device.pod(pod).wait_ready().wait_log(container, "\ncwd: ");
        assert_eq!(profile(&pod.logs(container)), expected, "{container}");
        let executed = pod.demo(container, "effective").ok();
        assert_eq!(profile(&executed), expected, "{container}");
    }
    for by in ["hook", "probe"] {
        let text = fs::read_to_string(here.join(by)).expect("it was written");
        assert_eq!(profile(&text), STRICT, "{by}");
    }
    let web = device.pod("web");
    web.demo("app", "touch /denied").refused_with("Permission denied");
    web.demo("open", "touch /denied").ok();

    // What is not loaded is not replaced by less.
    let missing = own("{type: Localhost, localhostProfile: stric}");
    device.run_pod_of("missing", &[manifest::container("app", steps, &missing)], "");
    let default = own("{type: RuntimeDefault}");
    device.run_pod_of("default", &[manifest::container("app", steps, &default)], "");
    for (pod, name) in [("missing", "stric"), ("default", "nodlet-default")] {
        let words = format!("failed to generate apparmor spec opts: apparmor profile not found {name}");
        let app = device.pod(pod).wait_message("app", &words);
        assert!(app.container("app").reason() == "CreateContainerError", "{}", app.status());
    }

    // As soon as the profile of the runtime is loaded, it is that of all others.
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member of the workspace");
    load_file(&example.join("examples/apparmor/nodlet-default"));
    const DEFAULT: &str = "\"nodlet-default (enforce)\\n\"";
    let default = device.pod("default").wait_ready();
    assert_eq!(profile(&default.demo("app", "effective").ok()), DEFAULT);
    let containers = [
        manifest::container("app", steps, ""),
        manifest::container("privileged", steps, "securityContext: {privileged: true}\n"),
    ];
    let later = device.run_pod_of("later", &containers, "").wait_ready();
    assert_eq!(profile(&later.demo("app", "effective").ok()), DEFAULT);
    assert_eq!(profile(&later.demo("privileged", "effective").ok()), OPEN);
    // The rules apply: without a profile, root may open this file, and the kernel fails to write to it.
    for (container, is_denied) in [("app", true), ("privileged", false)] {
        let refused = later.demo(container, "write /proc/uptime x").refused();
        assert_eq!(refused.contains("Permission denied"), is_denied, "{container}: {refused}");
    }
    device.remove_manifest("later.yaml");
    later.wait_gone();

    // The examples do what they say.
    device.write_manifest("example.yaml", include_str!("../../examples/apparmor.yaml"));
    device.pod("apparmor").wait_log("app", "nodlet-default (enforce)");
    device.write_manifest("task.yaml", include_str!("../../examples/tasks/apparmor.yaml"));
    let task = device.pod("apparmor-task").wait_message("app", "apparmor profile not found deny-write");
    load_file(&example.join("examples/apparmor/deny-write"));
    task.wait_ready();
    task.exec("app", ["demo", "write", "/tmp/file", "text"]).refused_with("Permission denied");
    assert_eq!(task.exec("app", ["demo", "cat", "/srv/index.html"]).ok(), "hello from the image\n");
}
