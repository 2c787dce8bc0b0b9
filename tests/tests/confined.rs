//! How a security context confines processes, read from inside real containers.

use std::fs;

use nodlet_tests::guest::is_guest;
use nodlet_tests::{Device, Terminal, TestPod, manifest};

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

/// The results of the calls of this processor's programs with 32 bits under the filter of the runtime; none where the
/// processor has no such programs.
fn of_32_bits(log: &str) -> &'static [(&'static str, &'static str)] {
    if cfg!(target_arch = "x86_64") {
        return &[
            ("i386 getpid", "ok"),
            ("i386 keyctl", EPERM),
            ("i386 io_uring_setup", EPERM),
            ("i386 unknown", ENOSYS),
        ];
    }
    // The emulated processor and Debian's kernel have them.
    let is_without = log.contains("arm exec: ") && !is_guest();
    if !cfg!(target_arch = "aarch64") || is_without {
        return &[];
    }
    &[
        ("arm getpid", "ok"),
        ("arm set_tls", "ok"),
        ("arm keyctl", EPERM),
        ("arm clone3", ENOSYS),
        ("arm io_uring_setup", EPERM),
        ("arm personality", EPERM),
        ("arm socket inet", "ok"),
        ("arm unknown", ENOSYS),
        ("arm unshare", EPERM),
    ]
}

#[test]
fn runtime_default_filters_the_calls_of_all_processes_of_a_container() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    let hook = "lifecycle: {postStart: {exec: {command: [/bin/sh, -c, x]}}}\n";
    let hook = hook.replace("[/bin/sh, -c, x]", "[/bin/demo, effective, /one/hook]");
    let probe = "startupProbe: {exec: {command: [/bin/demo, effective, /one/probe]}}\n";
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
    let web = device.run_pod_of("web", &[app, open, privileged, user], &spec).wait_ready();
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
        for (name, expected) in of_32_bits(&log) {
            assert_eq!(result(&calls, name), *expected, "{container} {name}: {log}");
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
    for (name, filtered) in of_32_bits(&log).iter().filter(|(name, _)| !name.ends_with("unknown")) {
        assert!(*filtered == "ok" || result(&calls, name) != *filtered, "{name}: {log}");
    }
    assert_eq!(field(&of("privileged"), "Seccomp"), "0");
    for (container, seccomp) in [("app", "2"), ("user", "2"), ("open", "0"), ("privileged", "0")] {
        let status = web.demo(container, "status").ok();
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
    let web = device.run_pod_with("web", "status then calls then sleep", spec).wait_ready();
    web.wait_log("app", "\nunshare: ");
    let log = web.logs("app");
    assert_eq!((field(&log, "Seccomp"), result(&results(&log), "keyctl")), ("2", EPERM), "{log}");
    let status = web.demo("app", "status").ok();
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
    write(
        "single.json",
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            {"names": ["clone", "clone3", "fork", "vfork", "sendmsg", "setsid"], "action": "SCMP_ACT_KILL_PROCESS"}]}"#,
    );
    write("wrong.json", r#"{"defaultAction": "SCMP_ACT_PERMIT"}"#);
    write("text.json", "allow everything");
    write(
        "calls.json",
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["raed"], "action": "SCMP_ACT_ERRNO"}]}"#,
    );
    fs::write(device.root().join("var/lib/nodlet/outside.json"), r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#)
        .expect("it can be written");
    std::os::unix::fs::symlink("../outside.json", profiles.join("link.json")).expect("it can be made");
    nix::unistd::mkfifo(&profiles.join("fifo.json"), nix::sys::stat::Mode::from_bits_truncate(0o600))
        .expect("it can be made");
    let pod = |name: &str, file: &str| {
        let own =
            format!("securityContext: {{seccompProfile: {{type: Localhost, localhostProfile: {file}}}}}\n");
        let app = manifest::container("app", "status then sleep", &own);
        device.run_pod_of(name, &[app], "");
    };
    pod("good", "sub/no-mkdir.json");
    device.pod("good").wait_ready().wait_log("app", "Seccomp");
    assert_eq!(field(&device.pod("good").logs("app"), "Seccomp"), "2");
    // Nothing that nodlet does to execute a process needs the calls that this profile forbids.
    for (name, spec) in [("single", ""), ("shared", "shareProcessNamespace: true\n")] {
        let own = "securityContext: {allowPrivilegeEscalation: false, seccompProfile: \
                   {type: Localhost, localhostProfile: single.json}}\n";
        let app = manifest::container("app", "status then sleep", own);
        device.run_pod_of(name, &[app], spec).wait_ready().wait_log("app", "Seccomp");
        let status = device.pod(name).demo("app", "status").ok();
        assert_eq!(field(&status, "Seccomp"), "2", "{name}");
        let killed = device.pod(name).demo("app", "child env");
        assert_eq!(killed.code, 128 + 31, "{killed:?}");
    }
    device.pod("good").demo("app", "mkdir /tmp/x").refused_with("os error 30");
    for (name, file, expected) in [
        ("wrong", "wrong.json", "wrong.json\": defaultAction: unsupported value \"SCMP_ACT_PERMIT\""),
        ("text", "text.json", "text.json\": is not JSON"),
        ("calls", "calls.json", "calls.json\": syscalls: names no system call that this processor has"),
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

#[test]
fn a_profile_without_exit_fails_its_own_container_and_no_other() {
    let device = Device::start();
    let profiles = device.root().join("var/lib/nodlet/seccomp");
    fs::create_dir_all(&profiles).expect("the root can be written to");
    let profile = r#"{"defaultAction": "SCMP_ACT_ERRNO", "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": ["read", "write", "openat", "close", "mmap", "futex"], "action": "SCMP_ACT_ALLOW"}]}"#;
    fs::write(profiles.join("white.json"), profile).expect("it can be written");
    let own = "securityContext: {seccompProfile: {type: Localhost, localhostProfile: white.json}}\n";
    let containers = [manifest::container("locked", "sleep", own), manifest::container("free", "sleep", "")];
    let web = device.run_pod_of("web", &containers, "");
    device.wait_for("the reason", || !web.container("locked").message().is_empty());
    web.wait_running("free");
    device.remove_pod("web");
}

#[test]
fn kernel_parameters_and_host_names_are_those_of_the_manifest() {
    let mut device = Device::start();
    device.agent_arguments(["--allowed-unsafe-sysctls", "kernel.msg*,net.core.somaxconn"]);
    device.stop_agent();
    device.start_agent();
    let spec = "subdomain: sub\nsetHostnameAsFQDN: true\nsecurityContext: {sysctls: [\
        {name: net/ipv4/tcp_syncookies, value: '0'}, {name: kernel.shm_rmid_forced, value: '1'}, \
        {name: net.ipv4.ip_unprivileged_port_start, value: '80'}, {name: kernel.msgmax, value: '4321'}, \
        {name: net.core.somaxconn, value: '77'}]}\n";
    device.run_pod_with("web", "sleep", spec);
    device.run_pod_with("named", "sleep", "hostnameOverride: a.example.com\n");
    let long = format!("subdomain: {}\nsetHostnameAsFQDN: true\n", "s".repeat(60));
    device.run_pod_with("long", "sleep", &long);
    let forbidden = "securityContext: {sysctls: [{name: net.core.wmem_max, value: '1'}]}\n";
    device.run_pod_with("never", "sleep", forbidden);
    // Allowed, but the kernel does not accept the value.
    let wrong = "securityContext: {sysctls: [{name: kernel.msgmax, value: no}]}\n".replace("no}", "'no'}");
    device.run_pod_with("wrong", "sleep", &wrong);
    let (web, named) = (device.pod("web"), device.pod("named"));
    web.wait_ready();
    named.wait_ready();
    for (name, expected) in [
        ("net/ipv4/tcp_syncookies", "0"),
        ("kernel/shm_rmid_forced", "1"),
        ("net/ipv4/ip_unprivileged_port_start", "80"),
        ("net/ipv4/ping_group_range", "0\t2147483647"),
        ("kernel/msgmax", "4321"),
        ("net/core/somaxconn", "77"),
    ] {
        let value = web.demo("app", &format!("cat /proc/sys/{name}")).ok();
        assert_eq!(value.trim(), expected, "{name}");
    }
    assert_ne!(fs::read_to_string("/proc/sys/kernel/msgmax").expect("it is there").trim(), "4321");
    let full = "web.sub.default.svc.cluster.local";
    for (pod, expected) in [(web, full), (named, "a.example.com")] {
        assert_eq!(pod.demo("app", "hostname").ok().trim(), expected);
        assert_eq!(pod.demo("app", "cat /etc/hostname").ok().trim(), expected);
        assert!(pod.demo("app", "env").ok().contains(&format!("HOSTNAME={expected}\n")));
    }
    web.demo("app", "cat /etc/hosts").ok_with(&format!("{}\t{full}\tweb\n", web.ip()));
    device.pod("long").wait_event_of("FailedCreatePodSandBox", "(64 characters is the max, ");
    device.pod("never").wait_phase("Failed");
    let status = device.pod("never").status();
    assert_eq!(status["reason"], "SysctlForbidden");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("forbidden sysctl: \"net.core.wmem_max\" not allowlisted"), "{message}");
    device.pod("wrong").wait_event_of("FailedCreatePodSandBox", "set kernel/msgmax");
}

/// The demo program's lines of what confines a process, by name.
fn effective(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(':')).collect();
    for name in ["CapBnd:", "cgroup:", "scheduling policy:", "descriptor: 2", "variable: \"PATH\""] {
        assert!(lines.iter().any(|line| line.starts_with(name)), "{name} {text}");
    }
    assert!(lines.len() > 50, "{text}");
    lines
}

/// Requires that two processes are confined alike, and names only the lines that differ.
#[track_caller]
fn assert_same(one: &[&str], first: &[&str], what: &str) {
    let without = |lines: &[&str], others: &[&str]| {
        let differ = lines.iter().filter(|line| !others.contains(line));
        differ.map(|line| (*line).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(without(one, first), without(first, one), "{what}");
    assert_eq!(one, first, "{what}: the order");
}

/// The lines of a process on a terminal, which ends lines as terminals do.
fn on_terminal(device: &Device, pod: &str, container: &str) -> String {
    let words = ["exec", "-it", pod, "-c", container, "--", "/bin/demo", "effective"];
    let mut terminal = Terminal::start(device.command(&words));
    assert_eq!(terminal.ended(), 0, "{}", terminal.screen());
    terminal.screen().replace('\r', "")
}

#[test]
fn executed_processes_probes_and_hooks_are_confined_as_the_first_process_field_by_field() {
    let device = Device::start();
    let (shared, here) = device.shared("one");
    nix::unistd::chown(&here, Some(nix::unistd::Uid::from_raw(1000)), None).expect("root owns it");
    let spec = format!(
        "hostname: named\n\
         securityContext: {{fsGroup: 4000, supplementalGroups: [3000], sysctls: [{{name: net.ipv4.tcp_syncookies, value: '0'}}]}}\n\
         volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n"
    );
    let contexts = [
        ("root", ""),
        ("user", "runAsUser: 1000, runAsGroup: 1001"),
        ("filtered", "seccompProfile: {type: RuntimeDefault}"),
        (
            "bound",
            "runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}",
        ),
        (
            "added",
            "capabilities: {add: [NET_ADMIN, SYS_PTRACE], drop: [MKNOD]}, seccompProfile: {type: RuntimeDefault}",
        ),
        ("ready", "readOnlyRootFilesystem: true"),
        ("strong", "privileged: true"),
    ];
    let containers = contexts.map(|(name, context)| {
        let run = |by: &str| format!("{{exec: {{command: [/bin/demo, effective, /one/{name}-{by}]}}}}");
        let more = format!(
            "securityContext: {{{context}}}\nlifecycle: {{postStart: {}}}\nstartupProbe: {}\nworkingDir: /one\n\
             resources: {{requests: {{cpu: 10m, memory: 1Mi}}, limits: {{memory: 64Mi, cpu: 500m}}}}\nvolumeMounts: [{{name: one, mountPath: /one}}]\n",
            run("hook"),
            run("probe")
        );
        manifest::container(name, "effective then sleep", &more)
    });
    let web = device.run_pod_of("web", &containers, &spec).wait_ready();
    for (name, _) in contexts {
        web.wait_log(name, "cwd: ");
        let log = web.logs(name);
        let first = effective(&log);
        let others = [
            ("exec", web.demo(name, "effective").ok()),
            ("probe", fs::read_to_string(here.join(format!("{name}-probe"))).expect("the probe wrote it")),
            ("hook", fs::read_to_string(here.join(format!("{name}-hook"))).expect("the hook wrote it")),
        ];
        for (by, text) in others {
            assert_same(&effective(&text), &first, &format!("{name}: {by}"));
        }
    }
    let of = |name: &str, field: &str| {
        let log = web.logs(name);
        let lines = log.lines().filter_map(|line| line.split_once(':'));
        let value =
            lines.filter(|(found, _)| *found == field).map(|(_, value)| value.trim().to_owned()).next();
        value.unwrap_or_default()
    };
    assert_eq!(of("user", "Uid"), "1000\t1000\t1000\t1000");
    assert_eq!(of("user", "Gid"), "1001\t1001\t1001\t1001");
    assert_eq!([of("bound", "CapBnd"), of("bound", "CapEff")], ["0000000000000000"; 2]);
    assert_eq!([of("bound", "NoNewPrivs"), of("bound", "Seccomp")], ["1", "2"]);
    assert_eq!([of("root", "CapBnd"), of("root", "CapEff")], ["00000000a80425fb"; 2]);
    assert_eq!(of("added", "CapBnd"), "00000000a00c35fb");
    assert_eq!(of("user", "Groups"), "1001 2000 3000 4000");
}

/// A container that writes what confines its first process, its probes and its hooks.
fn confined_in_all_ways(name: &str, more: &str) -> String {
    let run = |by: &str| format!("{{exec: {{command: [/bin/demo, effective, /one/{name}-{by}]}}}}");
    let ways = format!(
        "lifecycle: {{postStart: {}, preStop: {}}}\nstartupProbe: {}\nlivenessProbe: {}\nreadinessProbe: {}\n\
         workingDir: /one\nvolumeMounts: [{{name: one, mountPath: /one}}]\n\
         env: [{{name: EMPTY, value: ''}}, {{name: TWICE, value: a}}, {{name: TWICE, value: b}}, {{name: SPACES, value: ' a  b '}}]\n",
        run("postStart"),
        run("preStop"),
        run("startup"),
        run("liveness"),
        run("readiness"),
    );
    manifest::container(name, "effective then sleep", &format!("{ways}{more}"))
}

/// Compares the processes of a ready pod with its first one, those of `exec` too, and ends the pod.
fn compare_all(device: &Device, pod: TestPod<'_>, name: &str, here: &std::path::Path) {
    // With a terminal of its own, its log is what the terminal showed.
    pod.wait_log("app", "variable: \"SPACES\"");
    let log = pod.logs("app").replace('\r', "");
    let first = effective(&log);
    let check = |by: &str, text: &str| assert_same(&effective(text), &first, &format!("{name}: {by}"));
    check("exec", &pod.demo("app", "effective").ok());
    // As with containerd, a terminal has a type.
    let seen = on_terminal(device, name, "app");
    let lines = effective(&seen).into_iter().filter(|line| *line != r#"variable: "TERM"="xterm""#);
    let of_first = first.iter().copied().filter(|line| *line != r#"variable: "TERM"="xterm""#);
    assert_same(&lines.collect::<Vec<_>>(), &of_first.collect::<Vec<_>>(), &format!("{name}: exec -t"));
    device.remove_pod(name);
    for by in ["startup", "liveness", "readiness", "postStart", "preStop"] {
        let text = fs::read_to_string(here.join(format!("app-{by}")));
        let text = text.unwrap_or_else(|error| panic!("{name}: {by} wrote nothing: {error}"));
        check(by, &text);
    }
}

#[test]
fn processes_of_all_kinds_of_pods_are_confined_as_their_first_process() {
    let device = Device::start();
    for (name, spec, of_container) in [
        ("plain", "", ""),
        ("shared", "shareProcessNamespace: true\n", ""),
        ("of-host", "hostPID: true\nhostIPC: true\n", ""),
        ("mapped", "hostUsers: false\n", ""),
        (
            "mapped-user",
            "hostUsers: false\nsecurityContext: {runAsUser: 1000, runAsGroup: 1001, fsGroup: 4000}\n",
            "",
        ),
        ("mapped-shared", "hostUsers: false\nshareProcessNamespace: true\n", ""),
        (
            "mapped-bound",
            "hostUsers: false\nsecurityContext: {runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}\n",
            "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n",
        ),
        (
            "shared-bound",
            "shareProcessNamespace: true\nsecurityContext: {runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}\n",
            "securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [CHOWN]}}\n",
        ),
        ("terminal", "", "tty: true\nstdin: true\n"),
        ("guaranteed", "", "resources: {limits: {cpu: 100m, memory: 64Mi}}\n"),
    ] {
        let (shared, here) = device.shared(name);
        fs::set_permissions(&here, std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .expect("root owns it");
        let spec = format!("{spec}volumes: [{{name: one, hostPath: {{path: {shared}}}}}]\n");
        let app = confined_in_all_ways("app", of_container);
        let pod = device.run_pod_of(name, &[app], &spec).wait_ready();
        compare_all(&device, pod, name, &here);
    }
}

#[test]
fn an_ephemeral_container_is_confined_as_its_context_says_and_so_are_its_processes() {
    let device = Device::start();
    let context =
        "securityContext: {runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}";
    let app = manifest::container("app", "effective then sleep", context);
    let spec = "securityContext: {seccompProfile: {type: RuntimeDefault}, supplementalGroups: [3000]}\n";
    let web = device.run_pod_of("web", &[app], spec).wait_ready();
    let target = "/api/v1/namespaces/default/pods/web/ephemeralcontainers";
    let container = |name: &str, rest: serde_json::Value| {
        let mut container = serde_json::json!({
            "name": name, "image": "localhost/demo:1", "args": ["effective", "then", "sleep"],
            "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        });
        if rest.is_string() {
            container["targetContainerName"] = rest;
        }
        container
    };
    let added = serde_json::json!({"spec": {"ephemeralContainers": [
        container("look", serde_json::Value::Null), container("inside", "app".into()),
    ]}});
    device.patched(target, "strategic-merge", &added);
    let main = web.logs("app");
    for name in ["look", "inside"] {
        web.wait_log(name, "variable: \"PATH\"");
        let log = web.logs(name);
        let first = effective(&log);
        let executed = web.demo(name, "effective").ok();
        assert_same(&effective(&executed), &first, name);
        // Compared with the container of the same context, only what is of one container alone differs.
        let own = ["cgroup", "mnt", "pid", "oom_score_adj"];
        let same = |line: &&str| !own.iter().any(|own| line.starts_with(&format!("{own}:")));
        let of_main: Vec<&str> = effective(&main).into_iter().filter(same).collect();
        assert_same(&first.into_iter().filter(same).collect::<Vec<_>>(), &of_main, name);
    }
    let namespace =
        |log: &str| effective(log).iter().find_map(|line| line.strip_prefix("pid: ").map(str::to_owned));
    assert_eq!(namespace(&web.logs("inside")), namespace(&main), "it has the processes of its target");
    assert_ne!(namespace(&web.logs("look")), namespace(&main));
}

#[test]
fn strict_groups_leave_out_those_of_the_image() {
    let device = Device::start();
    for policy in ["Merge", "Strict"] {
        let spec = format!(
            "securityContext: {{runAsUser: 1000, supplementalGroups: [3000], fsGroup: 4000, \
             fsGroupChangePolicy: OnRootMismatch, supplementalGroupsPolicy: {policy}}}\n"
        );
        let name = policy.to_lowercase();
        let pod = device.run_pod_with(&name, "status then sleep", &spec).wait_ready();
        pod.wait_log("app", "Groups");
        let expected: &[u64] =
            if policy == "Strict" { &[1000, 3000, 4000] } else { &[1000, 2000, 3000, 4000] };
        let text: Vec<String> = expected.iter().map(u64::to_string).collect();
        let status = pod.demo("app", "status").ok();
        for status in [&status, &pod.logs("app")] {
            assert_eq!(field(status, "Groups").trim(), text.join(" "), "{policy}");
        }
        let user = &pod.status()["containerStatuses"][0]["user"]["linux"];
        assert_eq!(user["supplementalGroups"], serde_json::json!(expected), "{policy}");
    }
}

/// As runc's default device rules: OpenVPN and WireGuard in user space need no `privileged`.
#[test]
fn a_container_with_net_admin_opens_the_tun_device_without_being_privileged() {
    let device = Device::start();
    if !std::path::Path::new("/dev/net/tun").exists() {
        println!("this kernel has no TUN: what the filter says is tested in nodlet-host");
        return;
    }
    let pod = |name: &str, more: &str, volumes: &str| {
        let container = manifest::container("app", "open /dev/net/tun then print opened", more);
        device.run_pod_of(name, &[container], &format!("restartPolicy: Never\n{volumes}"));
    };
    let host = "volumes: [{name: tun, hostPath: {path: /dev/net/tun, type: CharDevice}}]";
    let mount = "volumeMounts: [{name: tun, mountPath: /dev/net/tun}]";
    pod("tun", &format!("{mount}\nsecurityContext: {{capabilities: {{add: [NET_ADMIN]}}}}"), host);
    device.pod("tun").wait_phase("Succeeded");
    assert_eq!(device.pod("tun").logs("app"), "opened\n");
    // Another device of the board stays closed.
    let container = manifest::container(
        "app",
        "mknod /dev/kvm 10 232 then open /dev/kvm",
        "securityContext: {capabilities: {add: [NET_ADMIN]}}",
    );
    device.run_pod_of("kvm", &[container], "restartPolicy: Never").wait_phase("Failed");
    let log = device.pod("kvm").logs("app");
    assert!(log.contains("Operation not permitted"), "{log}");
}
