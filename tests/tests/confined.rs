//! How a security context confines processes, read from inside real containers.

use std::fs;

use nodlet_tests::{Device, manifest};

/// The results of the demo program's calls without a filter, as far as a filter changes them.
fn results(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.rsplit_once(": "));
    lines.map(|(name, result)| (name.to_owned(), result.to_owned())).collect()
}

fn result<'a>(results: &'a [(String, String)], name: &str) -> &'a str {
    results.iter().find(|(found, _)| found == name).map_or("missing", |(_, result)| result)
}

const EPERM: &str = "1";
const ENOSYS: &str = "38";

/// The value of a field of /proc/self/status.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let lines = status.lines().filter_map(|line| line.split_once(":\t"));
    lines.filter(|(found, _)| *found == name).map(|(_, value)| value).next().unwrap_or("missing")
}

#[test]
fn runtime_default_filters_the_calls_of_all_processes_of_a_container() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let hook = "lifecycle: {postStart: {exec: {command: [/bin/sh, -c, x]}}}\n";
    let hook = hook.replace("[/bin/sh, -c, x]", "[/bin/demo, write-status, /one/hook]");
    let probe = "startupProbe: {exec: {command: [/bin/demo, write-status, /one/probe]}}\n";
    let mount = "volumeMounts: [{name: one, mountPath: /one}]\n";
    let app = manifest::container("app", "status then calls then sleep", &format!("{hook}{probe}{mount}"));
    let open = manifest::container(
        "open",
        "status then calls then sleep",
        "securityContext: {seccompProfile: {type: Unconfined}}\n",
    );
    let privileged =
        manifest::container("privileged", "status then sleep", "securityContext: {privileged: true}\n");
    let user = manifest::container(
        "user",
        "status then calls then sleep",
        "securityContext: {runAsUser: 1000, allowPrivilegeEscalation: false}\n",
    );
    let spec = format!(
        "securityContext: {{seccompProfile: {{type: RuntimeDefault}}}}\n\
         volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n"
    );
    device.write_manifest("web.yaml", &manifest::pod_of("web", &[app, open, privileged, user], &spec));
    let web = device.pod("web");
    web.wait_ready();
    for container in ["app", "open", "user"] {
        web.wait_log(container, "\nunshare: ");
    }
    web.wait_log("privileged", "Seccomp");
    let of = |container: &str| web.logs(container);
    for container in ["app", "user"] {
        let log = of(container);
        assert_eq!(field(&log, "Seccomp"), "2", "{log}");
        let calls = results(&log);
        for (name, expected) in [
            ("getpid", "ok"),
            ("keyctl", EPERM),
            ("clone3", ENOSYS),
            ("io_uring_setup", EPERM),
            ("personality", EPERM),
            ("socket inet", "ok"),
            ("socket vsock", EPERM),
            ("unknown", ENOSYS),
            ("unshare", EPERM),
        ] {
            assert_eq!(result(&calls, name), expected, "{container} {name}: {log}");
        }
        if cfg!(target_arch = "x86_64") {
            for (name, expected) in
                [("getpid", "ok"), ("keyctl", EPERM), ("io_uring_setup", EPERM), ("unknown", ENOSYS)]
            {
                assert_eq!(result(&calls, &format!("i386 {name}")), expected, "{container} {name}: {log}");
            }
        }
    }
    assert_eq!(field(&of("app"), "NoNewPrivs"), "0");
    assert_eq!(field(&of("user"), "NoNewPrivs"), "1");
    // Without a filter, the same calls have other results.
    let log = of("open");
    let calls = results(&log);
    assert_eq!(field(&log, "Seccomp"), "0");
    for name in ["keyctl", "clone3", "io_uring_setup", "personality", "unshare"] {
        assert!(![EPERM, ENOSYS].contains(&result(&calls, name)), "{name}: {log}");
    }
    assert_eq!(field(&of("privileged"), "Seccomp"), "0");
    for (container, seccomp) in [("app", "2"), ("user", "2"), ("open", "0"), ("privileged", "0")] {
        let status = web.exec(container, ["/bin/demo", "status"]).ok();
        assert_eq!(field(&status, "Seccomp"), seccomp, "{container}");
        for set in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
            assert_eq!(field(&status, set), field(&of(container), set), "{container} {set}");
        }
    }
    for by in ["hook", "probe"] {
        let status = fs::read_to_string(here.join(by)).expect("it was written");
        assert_eq!(field(&status, "Seccomp"), "2", "{by}");
    }
}

#[test]
fn a_filter_applies_where_containers_share_their_processes() {
    let device = Device::start();
    let spec = "shareProcessNamespace: true\nsecurityContext: {seccompProfile: {type: RuntimeDefault}}\n";
    device.write_manifest("web.yaml", &manifest::pod_with("web", "status then calls then sleep", spec));
    let web = device.pod("web");
    web.wait_ready();
    web.wait_log("app", "\nunshare: ");
    let log = web.logs("app");
    assert_eq!((field(&log, "Seccomp"), result(&results(&log), "keyctl")), ("2", EPERM), "{log}");
    let status = web.exec("app", ["/bin/demo", "status"]).ok();
    for name in ["Seccomp", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs"] {
        assert_eq!(field(&status, name), field(&log, name), "{name}");
    }
}

#[test]
fn a_profile_of_the_node_is_applied_or_refused_by_name() {
    let device = Device::start();
    let profiles = device.root().join("var/lib/nodlet/seccomp");
    fs::create_dir_all(profiles.join("sub")).expect("the root can be written to");
    let write = |name: &str, text: &str| fs::write(profiles.join(name), text).expect("it can be written");
    write(
        "sub/no-mkdir.json",
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86"],
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 30}]}"#,
    );
    write("wrong.json", r#"{"defaultAction": "SCMP_ACT_PERMIT"}"#);
    write("text.json", "allow everything");
    fs::write(device.root().join("var/lib/nodlet/outside.json"), r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#)
        .expect("it can be written");
    std::os::unix::fs::symlink("../outside.json", profiles.join("link.json")).expect("it can be made");
    nix::unistd::mkfifo(&profiles.join("fifo.json"), nix::sys::stat::Mode::from_bits_truncate(0o600))
        .expect("it can be made");
    let pod = |name: &str, file: &str| {
        let own =
            format!("securityContext: {{seccompProfile: {{type: Localhost, localhostProfile: {file}}}}}\n");
        let app = manifest::container("app", "status then sleep", &own);
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod_of(name, &[app], ""));
    };
    pod("good", "sub/no-mkdir.json");
    device.pod("good").wait_ready();
    device.pod("good").wait_log("app", "Seccomp");
    assert_eq!(field(&device.pod("good").logs("app"), "Seccomp"), "2");
    let refused = device.pod("good").exec("app", ["/bin/demo", "mkdir", "/tmp/x"]).refused();
    assert!(refused.contains("os error 30"), "{refused}");
    for (name, file, expected) in [
        ("wrong", "wrong.json", "wrong.json\": defaultAction: unsupported value \"SCMP_ACT_PERMIT\""),
        ("text", "text.json", "text.json\": is not JSON"),
        ("link", "link.json", "link.json\": it is outside of the directory of profiles"),
        ("fifo", "fifo.json", "fifo.json\": it is not a file"),
        ("none", "none.json", "none.json\": No such file or directory"),
    ] {
        pod(name, file);
        let waiting = || device.pod(name).container("app");
        device.wait_for(&format!("{name} to be refused"), || waiting().message().contains(expected));
        assert_eq!(waiting().reason(), "CreateContainerError", "{name}");
    }
}
