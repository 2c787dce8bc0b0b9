//! `nodlet doctor`: on this machine, whose kernel runs the pods of the other tests; as a user without rights;
//! and on configurations of other kernels.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::mount::{MntFlags, MsFlags};
use nodlet_tests::{Device, Ran, nodlet_program};
use serde_json::Value;

/// Writes a file, and returns its path.
fn write(device: &Device, name: &str, bytes: impl AsRef<[u8]>) -> String {
    device.write_file(name, bytes).display().to_string()
}

/// Runs `nodlet doctor`. Returns its exit code, standard output and standard error.
fn doctor(words: &[&str]) -> (i32, String, String) {
    let ran = Command::new(nodlet_program()).arg("doctor").args(words).output().expect("nodlet can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.code().expect("it ends by itself"), text(&ran.stdout), text(&ran.stderr))
}

/// The checks in a JSON report.
fn checks(json: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(json).expect("it is JSON");
    report["checks"].as_array().expect("it has checks").clone()
}

#[track_caller]
fn check<'a>(checks: &'a [Value], name: &str) -> &'a Value {
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name} in {checks:#?}"))
}

/// Runs `nodlet doctor` on a device. Returns its output and its checks.
fn of(device: &Device) -> (Ran, Vec<Value>) {
    let ran = device.nodlet(["doctor", "-o", "json"]);
    let found = checks(&ran.stdout);
    (ran, found)
}

#[test]
fn doctor_finds_nothing_missing_on_a_machine_that_runs_pods_and_leaves_nothing_behind() {
    let device = Device::new();
    let links = || fs::read_dir("/sys/class/net").expect("there is a network").count();
    let before = (links(), fs::read_dir(device.root()).expect("the root is there").count());
    let (ran, found) = of(&device);
    assert_eq!(ran.code, 0, "{found:#?}");
    for check in &found {
        let verdict = check["verdict"].as_str().expect("each has one");
        assert!(["ok", "warning", "unknown"].contains(&verdict), "{check:#}");
        let is_explained = check["meaning"] != "" && check["remedy"] != "";
        assert_eq!(is_explained, verdict == "warning", "{check:#}");
    }
    for tried in ["overlayfs", "EROFS", "layer mounts", "veth", "bridge", "writable layers"] {
        assert_eq!(check(&found, tried)["verdict"], "ok", "{found:#?}");
    }
    assert_eq!((links(), fs::read_dir(device.root()).expect("the root is there").count()), before);
    // Exclusive cpus are rejected where cgroup v1 has the controller.
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let in_v2 = controllers.split_whitespace().any(|name| name == "cpuset");
    assert_eq!(
        check(&found, "cpuset controller")["verdict"],
        if in_v2 { "ok" } else { "warning" },
        "{found:#?}"
    );
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
    let app_armor = check(&found, "AppArmor");
    assert_eq!(app_armor["verdict"], if enabled.starts_with('Y') { "ok" } else { "warning" }, "{found:#?}");
    let text = device.nodlet(["doctor"]).ok_with("\nok       overlayfs ");
    assert!(text.ends_with(" unknown\n"), "{text}");
}

#[test]
fn doctor_distinguishes_a_responding_agent_from_one_that_ended() {
    let mut device = Device::new();
    assert_eq!(check(&of(&device).1, "agent")["found"], "none runs here");
    device.start_agent();
    let answers = check(&of(&device).1, "agent")["found"].to_string();
    assert!(answers.contains("answers on"), "{answers}");
    device.kill_agent();
    let (ran, found) = of(&device);
    assert_eq!(check(&found, "agent")["verdict"], "warning", "{found:#?}");
    assert_eq!(ran.code, 0, "pods run on");
    device.start_agent();
}

#[test]
fn an_image_whose_layer_is_lost_is_named() {
    let device = Device::start();
    assert_eq!(check(&of(&device).1, "images")["found"], "1 complete");
    let layers = device.path("/var/lib/nodlet/images/layers");
    for layer in fs::read_dir(layers).expect("an image is loaded").flatten() {
        fs::remove_file(layer.path()).expect("it can be removed");
    }
    let found = of(&device).1;
    let images = check(&found, "images");
    assert_eq!(
        (&images["verdict"], &images["found"]),
        (&"warning".into(), &"damaged: localhost/demo:1".into())
    );
}

#[test]
fn a_data_directory_that_is_read_only_or_in_memory_is_reported() {
    let device = Device::new();
    let memory = device.mount_tmpfs("/var/lib/nodlet", "mode=755");
    let (ran, found) = of(&device);
    assert_eq!(check(&found, "data directory")["verdict"], "warning", "{found:#?}");
    assert_eq!(ran.code, 0, "{found:#?}");
    memory.remount(MsFlags::MS_RDONLY, "mode=755");
    let (ran, found) = of(&device);
    assert_eq!(check(&found, "data directory")["verdict"], "missing", "{found:#?}");
    assert_eq!(ran.code, 1);
}

/// The kernel rejects an overlay whose changes are in an overlay, as it rejects one on FAT.
#[test]
fn a_data_directory_that_cannot_hold_containers_changes_is_reported() {
    let device = Device::new();
    let data = device.path("/var/lib/nodlet");
    let memory = device.mount_tmpfs("/scratch", "mode=755");
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| device.path("/scratch").join(name));
    for directory in [&data, &lower, &upper, &work] {
        fs::create_dir_all(directory).expect("it can be made");
    }
    let options =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    let kind = Some("overlay");
    nix::mount::mount(kind, &data, kind, MsFlags::empty(), Some(&*options)).expect("pods need overlays, too");
    let (ran, found) = of(&device);
    nix::mount::umount2(&data, MntFlags::MNT_DETACH).expect("it is mounted");
    drop(memory);
    assert_eq!(check(&found, "writable layers")["verdict"], "missing", "{found:#?}");
    assert_eq!(check(&found, "overlayfs")["verdict"], "ok", "{found:#?}");
    assert_eq!(ran.code, 1);
}

#[test]
fn doctor_without_privileges_reports_unknown_results_and_no_defect() {
    let device = Device::new();
    let nodlet = device.path("nodlet");
    fs::copy(nodlet_program(), &nodlet).expect("it can be copied");
    let mut command = Command::new(&nodlet);
    command.args(["doctor", "-o", "json"]).uid(65534).gid(65534);
    let ran = command.output().expect("anybody can execute it");
    let found = checks(&String::from_utf8_lossy(&ran.stdout));
    assert_eq!(ran.status.code(), Some(0), "{found:#?}");
    assert!(found.iter().all(|check| check["verdict"] != "missing"), "{found:#?}");
    for root_only in ["writable layers", "firewall"] {
        assert_eq!(check(&found, root_only)["verdict"], "unknown", "{found:#?}");
    }
    for anybodys in ["network namespaces", "system calls", "cgroup v2", "memory controller", "memory"] {
        assert_eq!(check(&found, anybodys)["verdict"], "ok", "{found:#?}");
    }
}

/// Root lacks capabilities, as in most containers.
#[test]
fn doctor_reports_missing_capabilities_of_root_and_skipped_checks() {
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    let mut command = Command::new(nodlet_program());
    command.args(["doctor", "-o", "json"]);
    // SAFETY: between fork and exec, only one system call is made, which takes numbers only.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let ran = command.output().expect("it can be executed");
    let found = checks(&String::from_utf8_lossy(&ran.stdout));
    assert_eq!(ran.status.code(), Some(1), "{found:#?}");
    let missing: Vec<&Value> = found.iter().filter(|check| check["verdict"] == "missing").collect();
    assert_eq!(missing.len(), 1, "{missing:#?}");
    assert_eq!(missing[0]["found"], "without CAP_SYS_ADMIN");
    assert_eq!(check(&found, "writable layers")["verdict"], "unknown");
}

/// The options that pods need according to `docs/start.md` and decisions, for a kernel before 6.12.
const NEEDED: &str = "NAMESPACES NET_NS IPC_NS UTS_NS PID_NS EPOLL EVENTFD SIGNALFD TIMERFD INOTIFY_USER FILE_LOCKING FUTEX UNIX \
    INET OVERLAY_FS EROFS_FS EROFS_FS_XATTR BLK_DEV_LOOP SHMEM TMPFS PROC_FS SYSFS UNIX98_PTYS POSIX_MQUEUE \
    CGROUPS CGROUP_SCHED FAIR_GROUP_SCHED CFS_BANDWIDTH MEMCG CGROUP_PIDS BPF_SYSCALL CGROUP_BPF VETH BRIDGE";

/// The options that make pods better or safer.
const USEFUL: &str = "USER_NS EROFS_FS_SECURITY TMPFS_XATTR SECCOMP SECCOMP_FILTER KEYS SECURITY_LANDLOCK SECURITY_APPARMOR \
    BLK_CGROUP CPUSETS PSI NET_SCH_INGRESS NET_CLS_BPF WATCHDOG RTC_CLASS RTC_HCTOSYS";

/// The configuration of a Linux 6.1 with every option but one.
fn without(option: &str) -> String {
    let mut text =
        "#\n# Automatically generated file; DO NOT EDIT.\n# Linux/arm64 6.1.77 Kernel Configuration\n#\n"
            .to_owned();
    for own in NEEDED.split(' ').chain(USEFUL.split(' ')) {
        if own == option {
            text.push_str(&format!(
                "# CONFIG_{own} is not set
"
            ))
        } else {
            text.push_str(&format!(
                "CONFIG_{own}=y
"
            ))
        }
    }
    text
}

#[test]
fn a_kernel_with_all_that_pods_need_is_sufficient_by_its_configuration_alone() {
    let device = Device::new();
    let plain = write(&device, "config", without(""));
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, without("").as_bytes()).expect("memory");
    let packed = write(&device, "config.gz", packed.finish().expect("memory"));
    for file in [plain, packed] {
        let (code, out, err) = doctor(&["--kernel-config", &file]);
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.contains(&file) && out.contains("6.1.77"), "{out}");
        assert!(!out.contains("data directory"), "a file alone: {out}");
        assert!(
            out.ends_with("\nnothing that pods need is missing: 0 missing, 0 warnings, 0 unknown\n"),
            "{out}"
        );
    }
}

#[test]
fn each_option_that_is_not_set_is_named() {
    let device = Device::new();
    for option in NEEDED.split(' ').chain(USEFUL.split(' ')) {
        let file = write(&device, "config", without(option));
        let (code, out, _) = doctor(&["--kernel-config", &file, "-o", "json"]);
        assert_eq!(code, i32::from(NEEDED.split(' ').any(|needed| needed == option)), "{option}: {out}");
        let name = format!("CONFIG_{option}");
        let found = checks(&out);
        let names = |check: &&Value| {
            let remedy = check["remedy"].as_str().unwrap_or_default();
            remedy.split([' ', ',', '.']).any(|word| word == name)
        };
        let naming: Vec<&Value> =
            found.iter().filter(|check| check["verdict"] != "ok").filter(names).collect();
        assert!(!naming.is_empty(), "{option}: {found:#?}");
        assert!(naming.iter().all(|check| check["meaning"] != ""), "{naming:#?}");
    }
}

#[test]
fn files_that_are_no_configuration_are_refused_by_name() {
    let device = Device::new();
    let cut = &without("").into_bytes()[..];
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, cut).expect("memory");
    let packed = packed.finish().expect("memory");
    let program = fs::read(nodlet_program()).expect("it is there");
    for (name, bytes, sentence) in [
        ("empty", &b""[..], "no line CONFIG_NAME=VALUE"),
        ("program", &program[..100_000], "neither text nor gzip"),
        ("cut.gz", &packed[..packed.len() / 2], "cannot be unpacked"),
        ("pod.yaml", b"kind: Pod\n", "line 1 must be CONFIG_NAME=VALUE"),
        ("buildroot", b"BR2_aarch64=y\n", "Buildroot's own configuration"),
    ] {
        let file = write(&device, name, bytes);
        let (code, out, err) = doctor(&["--kernel-config", &file]);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.starts_with("error: ") && err.contains(&file) && err.contains(sentence), "{err}");
    }
    let absent = device.path("absent").display().to_string();
    for file in [absent.as_str(), device.root().to_str().expect("it is text")] {
        let (code, _, err) = doctor(&["--kernel-config", file]);
        assert!(code == 2 && err.contains(file), "{err}");
    }
}

#[test]
fn doctor_reports_wrong_arguments_with_an_exit_code_of_their_own() {
    for words in [&["-o", "yaml"][..], &["kernel"], &["--kernel-config"], &["--nonsense"]] {
        let (code, out, err) = doctor(words);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.starts_with("error: "), "{err}");
    }
}
