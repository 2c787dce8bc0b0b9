//! Exclusive cpus, real-time priorities, and swap.
//!
//! `cargo xtask guest cores` runs the ignored tests, in a virtual machine with several processors: see `src/guest.rs`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nodlet_tests::{Device, manifest};

/// A pod whose container `app` has this annotation of nodlet.
fn annotated(name: &str, annotation: &str, steps: &str, spec: &str) -> String {
    manifest::pod_with(name, steps, spec).replacen(
        "metadata:\n",
        &format!("metadata:\n  annotations: {{{annotation}}}\n"),
        1,
    )
}

/// A device whose operator allows the annotations of these tests.
fn allowing() -> Device {
    Device::start_with(["--allowed-annotations=exclusive-cpus.nodlet.dev,rtprio.nodlet.dev"])
}

fn exclusive(name: &str, count: u32) -> String {
    annotated(name, &format!("exclusive-cpus.nodlet.dev/app: \"{count}\""), "sleep", "")
}

/// The cgroup of a pod's container `app` in the v2 hierarchy.
fn leaf(device: &Device, pod: &str) -> PathBuf {
    let uid = format!("pod{}", device.pod(pod).uid());
    let groups = device.cgroups();
    let found = groups.iter().find(|group| {
        group.parent().is_some_and(|above| above.ends_with(&uid))
            && group.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"app-"))
    });
    found.unwrap_or_else(|| panic!("{pod} has no cgroup among {groups:?}")).clone()
}

/// A file of the cgroup of a pod's container.
fn of_cgroup(device: &Device, pod: &str, file: &str) -> String {
    let path = leaf(device, pod).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).trim().to_owned()
}

fn cpus(device: &Device, pod: &str) -> String {
    of_cgroup(device, pod, "cpuset.cpus.effective")
}

#[test]
fn a_pod_with_exclusive_cpus_is_rejected_where_there_is_no_cpuset_of_version_2() {
    let device = allowing();
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let is_alone = std::thread::available_parallelism().is_ok_and(|count| count.get() < 2);
    let fast = device.write_pod("fast", &exclusive("fast", 1));
    if controllers.split_whitespace().any(|name| name == "cpuset") && !is_alone {
        fast.wait_ready();
        return;
    }
    let status = fast.wait_phase("Failed").status();
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains("exclusive-cpus.nodlet.dev: this node has no exclusive cpus"), "{message}");
    assert!(message.contains("CONFIG_CPUSETS"), "{message}");
}

#[test]
fn a_pod_with_exclusive_cpus_that_the_operator_does_not_allow_waits_and_takes_none() {
    let mut device = Device::start();
    // More than there are: they are not counted.
    device.write_manifest("fast.yaml", &exclusive("fast", 1024));
    let why = "annotation exclusive-cpus.nodlet.dev/app: the operator of this board does not allow annotations to \
               request exclusive-cpus.nodlet.dev; start nodlet agent with --allowed-annotations=exclusive-cpus.nodlet.dev";
    device.wait_for("the outcome of admission and start", || {
        let pod = device.pod("fast");
        pod.phase() == "Failed" || !pod.container("app").message().is_empty()
    });
    let waiting = |device: &Device| {
        let app = device.pod("fast").container("app");
        (device.pod("fast").phase(), app.reason(), app.message())
    };
    assert_eq!(
        waiting(&device),
        ("Pending".to_owned(), "CreateContainerConfigError".to_owned(), why.to_owned())
    );
    let events = device.pod("fast").events();
    assert!(!events.iter().any(|event| event.contains("Pulled")), "{events:?}");
    device.restart_agent_with(["--allowed-annotations=exclusive-cpus.nodlet.dev"]);
    device.wait_for("the start to fail for another reason", || {
        let (_, reason, message) = waiting(&device);
        reason == "CreateContainerError"
            && (message.contains("1024 exclusive cpus are not free") || message.contains("CONFIG_CPUSETS"))
    });
}

#[test]
fn annotations_of_nodlet_are_checked_by_name() {
    let device = Device::start();
    let apply = |name: &str, annotation: &str| {
        let text = annotated(name, annotation, "sleep", "");
        device.nodlet_with_input(["apply", "-f", "-"], &text)
    };
    for (annotation, error) in [
        (
            "exclusive-cpus.nodlet.dev/other: \"1\"",
            "metadata.annotations[exclusive-cpus.nodlet.dev/other]: Invalid value: \"other\": container not found",
        ),
        (
            "exclusive-cpus.nodlet.dev/app: \"0\"",
            "metadata.annotations[exclusive-cpus.nodlet.dev/app]: Invalid value: \"0\": must be a number from 1 to 1024",
        ),
        (
            "rtprio.nodlet.dev/app: high",
            "metadata.annotations[rtprio.nodlet.dev/app]: Invalid value: \"high\": must be a number from 1 to 99",
        ),
    ] {
        apply("wrong", annotation).refused_with(error);
    }
    let applied = apply("unknown", "nodlet.dev/cpus: \"1\"");
    assert!(applied.stderr.contains("metadata.annotations[nodlet.dev/cpus]: has no effect"), "{applied:?}");
    applied.ok();
}

#[test]
fn a_container_that_cannot_have_a_real_time_priority_does_not_start_and_says_why() {
    let device = allowing();
    device.write_manifest("real.yaml", &annotated("real", "rtprio.nodlet.dev/app: \"7\"", "sleep", ""));
    let message = || device.pod("real").container("app").message();
    device.wait_for("the start or its failure", || device.pod("real").is_ready() || !message().is_empty());
    if device.pod("real").is_ready() {
        return;
    }
    let message = message();
    assert!(message.contains("allow real-time priorities (rtprio.nodlet.dev)"), "{message}");
    let why = ["nodlet needs CAP_SYS_RESOURCE", "CONFIG_RT_GROUP_SCHED"];
    assert!(why.iter().any(|why| message.contains(why)), "{message}");
}

#[test]
fn a_pod_gets_no_real_time_priority_that_the_operator_does_not_allow() {
    let mut device = Device::start();
    let text = annotated("real", "rtprio.nodlet.dev/app: \"7\"", "sleep", "");
    let applied = device.nodlet_with_input(["apply", "-f", "-"], &text);
    let why = "annotation rtprio.nodlet.dev/app: the operator of this board does not allow annotations to request \
               rtprio.nodlet.dev; start nodlet agent with --allowed-annotations=rtprio.nodlet.dev";
    assert!(applied.stderr.contains(why), "{applied:?}");
    applied.ok();
    device.wait_for("the container to wait", || device.pod("real").container("app").message() == why);
    assert_eq!(device.pod("real").container("app").reason(), "CreateContainerConfigError");
    // Another annotation is not this one.
    device.restart_agent_with(["--allowed-annotations=exclusive-cpus.nodlet.dev"]);
    device.wait_for("the container to wait", || device.pod("real").container("app").message() == why);
    device.restart_agent_with(["--allowed-annotations=rtprio.nodlet.dev"]);
    let message = || device.pod("real").container("app").message();
    device.wait_for("the start, or what the kernel lacks", || {
        device.pod("real").is_ready() || message().contains("allow real-time priorities")
    });
}

#[test]
#[ignore = "needs cgroup v2 and four cpus: cargo xtask guest cores"]
fn a_container_has_cpus_for_itself_that_no_other_container_uses() {
    let mut device = allowing();
    device.run_pod("first", "sleep").wait_ready();
    assert_eq!(cpus(&device, "first"), "0-3");

    device.write_pod("fast", &exclusive("fast", 1)).wait_ready();
    assert_eq!(cpus(&device, "fast"), "3");
    assert_eq!(cpus(&device, "first"), "0-2");
    device.run_pod("later", "sleep").wait_ready();
    assert_eq!(cpus(&device, "later"), "0-2");

    // One of the others, at least, stays for everybody.
    let status = device.write_pod("greedy", &exclusive("greedy", 3)).wait_phase("Failed").status();
    assert_eq!(status["reason"], "OutOfexclusive-cpus");
    let message = "Node didn't have enough resource: exclusive-cpus, requested: 3, used: 1, capacity: 3";
    assert!(status["message"].as_str().is_some_and(|text| text.ends_with(message)), "{status}");

    // The example takes the last one.
    device.write_pod("cpus", include_str!("../../examples/cpus.yaml")).wait_ready();
    assert_eq!(cpus(&device, "cpus"), "2");
    device.remove_pod("cpus");

    // The next agent knows which cpus are in use.
    device.restart_agent();
    device.write_pod("second", &exclusive("second", 2)).wait_ready();
    assert_eq!(cpus(&device, "second"), "1-2");
    assert_eq!(cpus(&device, "fast"), "3");
    assert_eq!(cpus(&device, "first"), "0");

    device.remove_pod("second");
    device.wait_for("the cpus to be shared", || cpus(&device, "first") == "0-2");
    // The cpus of a container that ends while no agent runs are shared by the next agent.
    let fast = device.pod("fast").uid();
    device.kill_agent();
    device.remove_manifest("fast.yaml");
    device.start_agent();
    device.wait_for("the pod's end", || {
        device.cgroups().iter().all(|group| !group.to_string_lossy().contains(&fast))
    });
    device.wait_for("all cpus to be shared", || {
        cpus(&device, "first") == "0-3" && cpus(&device, "later") == "0-3"
    });
}

#[test]
#[ignore = "needs CAP_SYS_RESOURCE: cargo xtask guest cores"]
fn a_container_has_the_real_time_priorities_that_its_annotation_allows_and_no_others() {
    let device = allowing();
    let steps = "realtime 7 then realtime 8 then sleep";
    let user = "securityContext: {runAsUser: 1000, runAsGroup: 1000}";
    device.write_pod("real", &annotated("real", "rtprio.nodlet.dev/app: \"7\"", steps, user));
    device.pod("real").wait_log("app", "realtime 8: ");
    assert_eq!(device.pod("real").logs("app"), "realtime 7: ok\nrealtime 8: 1\n");
    let pid = device.container_processes()[0];
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let limit = limits.lines().find(|line| line.starts_with("Max realtime priority")).unwrap_or_default();
    assert_eq!(limit.split_whitespace().skip(3).collect::<Vec<_>>(), ["7", "7"], "{limits}");
    // The kernel schedules the process by it: fields 40 and 41 of `stat`, of which the first two may contain blanks.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    assert_eq!((fields[40 - 3], fields[41 - 3]), ("7", "1"), "priority and SCHED_FIFO: {stat}");
    // Executed processes have the limit of their container.
    let executed = device.pod("real").demo("app", "realtime 7 then realtime 8");
    assert_eq!(executed.ok(), "realtime 7: ok\nrealtime 8: 1\n");
    // And all else that confines them, field by field.
    device
        .write_pod("idle", &annotated("idle", "rtprio.nodlet.dev/app: \"7\"", "effective then sleep", user))
        .wait_log("app", "variable: \"PATH\"");
    let executed = device.pod("idle").demo("app", "effective").ok();
    assert_eq!(executed, device.pod("idle").logs("app"));

    device.write_manifest("example.yaml", include_str!("../../examples/realtime.yaml"));
    device.pod("realtime").wait_log("app", "realtime 10: ok");

    device.run_pod_with("plain", "realtime 1 then sleep", user).wait_log("app", "realtime 1: ");
    assert_eq!(device.pod("plain").logs("app"), "realtime 1: 1\n");
}

/// Compressed memory as a swap device, as boards have it, until it is dropped. It is not allocated before it is used.
///
/// The kernel swaps more than it must, because it counts a page that is being written as memory and as swap: of a
/// program that needs 10 MiB of swap, up to 17 MiB with this device, and 35 MiB with a file. If the limit of swap is
/// less, the kernel kills the program.
struct Swap;

/// Its device.
const SWAP: &str = "/dev/zram0";

/// Runs commands of a shell.
fn shell(commands: &str) -> String {
    let output = Command::new("/bin/sh").args(["-ec", commands]).output().expect("a guest has a shell");
    assert!(output.status.success(), "{commands}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

impl Swap {
    fn on(mib: u32) -> Swap {
        shell(&format!("echo {mib}M >/sys/block/zram0/disksize; mkswap {SWAP} >/dev/null; swapon {SWAP}"));
        Swap
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        shell(&format!("swapoff {SWAP}; echo 1 >/sys/block/zram0/reset"));
    }
}

/// A number of KiB of /proc/meminfo, in bytes.
fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("it can be read");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel has it");
    let kib: u64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse().expect("it is a number");
    kib * 1024
}

#[test]
#[ignore = "needs cgroup v2 and swap: cargo xtask guest cores"]
fn a_burstable_container_swaps_as_much_as_the_kubelet_lets_it() {
    const MIB: u64 = 1 << 20;
    let swap = Swap::on(2048);
    let device = Device::start_with(["--memory-swap-behavior=LimitedSwap"]);
    let pod = |name: &str, steps: &str, resources: &str| {
        let container = manifest::container("app", steps, &format!("resources: {{{resources}}}"));
        device.run_pod_of(name, &[container], "").wait_ready();
    };
    // 10 MiB more than its memory limit.
    pod("burstable", "hog 100 then sleep", "requests: {memory: 80Mi}, limits: {memory: 90Mi}");
    pod("guaranteed", "sleep", "limits: {memory: 80Mi, cpu: 100m}");
    pod("besteffort", "sleep", "");

    let (memory, all) = (meminfo("MemTotal:"), meminfo("SwapTotal:"));
    let expected = 80 * MIB * all / memory / 4096 * 4096;
    assert_eq!(of_cgroup(&device, "burstable", "memory.swap.max"), expected.to_string());
    assert!(expected > 40 * MIB, "{expected}");
    for name in ["guaranteed", "besteffort"] {
        assert_eq!(of_cgroup(&device, name, "memory.swap.max"), "0", "{name}");
    }
    let number = |file: &str| of_cgroup(&device, "burstable", file).parse::<u64>().expect("it is a number");
    device.wait_for("the container to swap", || number("memory.swap.current") > 0);
    assert!(number("memory.current") <= 90 * MIB);
    assert!(number("memory.swap.current") <= expected);
    assert_eq!(device.pod("burstable").container("app").restart_count(), 0);
    // Its share of the swap would change with its request.
    let app = manifest::container("app", "sleep", "resources: {requests: {memory: 16Mi}}");
    device.apply(&manifest::pod_of("applied", &[app], ""));
    device.pod("applied").wait_ready();
    let body = serde_json::json!({
        "spec": {"containers": [{"name": "app", "resources": {"requests": {"memory": "24Mi"}}}]}
    });
    device.patched("/api/v1/namespaces/default/pods/applied/resize", "strategic-merge", &body);
    device.wait_for("the refusal", || {
        let status = device.pod("applied").status().to_string();
        status.contains("Infeasible")
            && status.contains("In-place resize of containers with swap is not supported.")
    });
    println!(
        "memory.swap.max {expected} of {all} swap and {memory} memory; memory.swap.current {}",
        number("memory.swap.current")
    );
    drop(device);
    drop(swap);
}

#[test]
#[ignore = "needs a kernel with project quotas: cargo xtask guest cores"]
fn an_empty_dir_of_a_pod_with_its_own_users_is_measured_by_a_project_quota_of_ext4() {
    let mut device = Device::new();
    device.run_on_a_disk_made_with("mkfs.ext4", &["-O", "quota,project"], "");
    expect_measurement_by_a_project_quota(device);
}

#[test]
#[ignore = "needs a kernel with project quotas: cargo xtask guest cores"]
fn an_empty_dir_of_a_pod_with_its_own_users_is_measured_by_a_project_quota_of_xfs() {
    let mut device = Device::new();
    device.run_on_a_disk_made_with("mkfs.xfs", &[], "prjquota");
    expect_measurement_by_a_project_quota(device);
}

fn expect_measurement_by_a_project_quota(mut device: Device) {
    device.start_agent_with_demo();
    let pod = |name: &str, spec: &str| {
        let container = manifest::container(
            "app",
            "wait /data/go then spam-file /data/file 6000000 then sleep",
            "volumeMounts: [{name: data, mountPath: /data}]",
        );
        let spec = format!("volumes: [{{name: data, emptyDir: {{sizeLimit: 4Mi}}}}]\n{spec}");
        device.run_pod_of(name, &[container], &spec).wait_ready();
        let pods = device.path("/var/lib/nodlet/pods");
        let found =
            format!("{}/{}/volumes/kubernetes.io~empty-dir/data", pods.display(), device.pod(name).uid());
        let listed = shell(&format!("lsattr -pd {found}"));
        let project = listed.split_whitespace().next().and_then(|project| project.parse::<u32>().ok());
        (PathBuf::from(found), project.unwrap_or_else(|| panic!("{listed}")))
    };
    let (own, project) = pod("own", "hostUsers: false");
    assert!(project >= 0x4000_0000, "{project}");
    let (shared, none) = pod("shared", "");
    assert_eq!(none, 0);
    for (name, directory) in [("own", own), ("shared", shared)] {
        fs::write(directory.join("go"), "").expect("it can be written");
        device.pod(name).wait_phase("Failed");
        let status = device.pod(name).status();
        assert_eq!(status["reason"], "Evicted", "{name}");
        let message = "Usage of EmptyDir volume \"data\" exceeds the limit \"4Mi\". ";
        assert_eq!(status["message"], message, "{name}");
    }
}
