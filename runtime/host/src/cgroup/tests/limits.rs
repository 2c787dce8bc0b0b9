//! Limits of pods and containers in the files of their cgroups, and their change.

use super::*;
use nodlet_fuzz::{assert_contains, assert_starts_with};

#[test]
fn requests_and_limits_become_shares_quotas_and_bytes_as_the_kubelets() {
    let of = |resources| ContainerLimits::of(&pod("u", &[resources]), ContainerIndex(0));
    let limits = |cpu_shares, cpu_quota_us, memory| ContainerLimits {
        cpu_shares,
        cpu_quota_us,
        memory,
        ..ContainerLimits::none()
    };
    assert_eq!(of("{}"), limits(2, None, None));
    assert_eq!(of("{requests: {cpu: 250m, memory: 1Mi}}"), limits(256, None, None));
    assert_eq!(of("{requests: {cpu: 1m}}"), limits(2, None, None));
    assert_eq!(of("{requests: {cpu: 1k}}"), limits(262_144, None, None));
    assert_eq!(of("{limits: {cpu: 1500m, memory: 64Mi}}"), limits(1536, Some(150_000), Some(64 << 20)));
    assert_eq!(of("{limits: {cpu: 5m}}"), limits(5, Some(1000), None));
    assert_eq!(of("{limits: {cpu: 0, memory: 0}}"), limits(2, None, None));

    let of_pod = |resources: &[&str]| ContainerLimits::of_pod(&pod("u", resources));
    let (both, memory) = ("{limits: {cpu: 200m, memory: 8Mi}}", "{limits: {memory: 8Mi}}");
    assert_eq!(of_pod(&["{}", "{}"]), limits(2, None, None));
    assert_eq!(of_pod(&[both, both]), limits(409, Some(40_000), Some(16 << 20)));
    assert_eq!(of_pod(&[both, memory]), limits(204, None, Some(16 << 20)));
    assert_eq!(of_pod(&[both, "{}"]), limits(204, None, None));

    // Of the init containers the largest request counts, together with the sidecars that already run beside
    // it.
    let of_all = |init: &[(&str, bool)], regular: &[&str]| {
        let mut all = pod("u", regular);
        let names: Vec<&str> = init.iter().map(|(resources, _)| *resources).collect();
        all.spec.init_containers = pod("u", &names).spec.containers;
        for (container, (_, sidecar)) in all.spec.init_containers.iter_mut().zip(init) {
            container.sidecar = *sidecar;
        }
        ContainerLimits::of_pod(&all)
    };
    let (large, small) = ("{limits: {cpu: 1, memory: 64Mi}}", "{limits: {cpu: 100m, memory: 1Mi}}");
    let whole = |milli: u64, mib: u64| limits(milli * 1024 / 1000, Some(milli as i64 * 100), Some(mib << 20));
    assert_eq!(of_all(&[(large, false), (both, false)], &[both]), whole(1000, 64));
    assert_eq!(of_all(&[(large, true)], &[both]), whole(1200, 72));
    assert_eq!(of_all(&[(small, true), (large, false), (small, true)], &[both]), whole(1100, 65));
    assert_eq!(of_all(&[(large, false), (small, true)], &[large, large]), whole(2100, 129));
    assert_eq!(of_all(&[("{}", false)], &[large]), limits(1024, None, None));
    assert_eq!(of_all(&[("{requests: {cpu: 3}}", false)], &[large]), limits(3072, None, None));
}

#[test]
fn resources_of_the_pod_as_a_whole_limit_it_and_the_containers_without_a_limit() {
    let mut whole = pod("u", &["{requests: {cpu: 100m}, limits: {memory: 8Mi}}", "{}"]);
    let of_pod =
        &pod("u", &["{limits: {cpu: 500m, memory: 64Mi}, requests: {cpu: 300m}}"]).spec.containers[0];
    whole.spec.resources = Some(of_pod.resources.clone().into());
    let limits = |cpu_shares, memory| ContainerLimits {
        cpu_shares,
        cpu_quota_us: Some(50_000),
        memory: Some(memory),
        ..ContainerLimits::none()
    };
    assert_eq!(ContainerLimits::of_pod(&whole), limits(307, 64 << 20));
    assert_eq!(ContainerLimits::of(&whole, ContainerIndex(0)), limits(102, 8 << 20));
    // Without a request, the limit counts.
    assert_eq!(ContainerLimits::of(&whole, ContainerIndex(1)), limits(512, 64 << 20));
    // The overhead of a runtime class comes on top.
    let overhead = &pod("u", &["{limits: {cpu: 100m, memory: 1Mi}}"]).spec.containers[0];
    whole.spec.overhead = Some(overhead.resources.clone().into());
    let with_overhead = ContainerLimits { cpu_quota_us: Some(60_000), ..limits(400 * 1024 / 1000, 65 << 20) };
    assert_eq!(ContainerLimits::of_pod(&whole), with_overhead);
}

#[test]
fn a_leaf_has_the_limits_of_its_container_and_the_pod_their_sum() {
    let scratch = Scratch::new();
    let burstable = pod(
        "b",
        &["{requests: {cpu: 500m}, limits: {cpu: 1, memory: 32Mi}}", "{limits: {cpu: 250m, memory: 8Mi}}"],
    );
    let cgroup = scratch.0.pod(&burstable).unwrap();
    assert_eq!(cgroup.name(), "podb");
    assert!(cgroup.relative.ends_with("kubepods/burstable/podb"));
    let leaf = cgroup
        .leaf(
            "c0",
            3,
            &ContainerLimits { pids: Some(7), ..ContainerLimits::of(&burstable, ContainerIndex(0)) },
        )
        .unwrap();
    assert!(leaf.relative.ends_with("podb/c0-3"));
    let read = |relative: &Path, controller, v1, v2| read(relative, scratch.kernel(), controller, v1, v2);
    assert_eq!(read(&leaf.relative, Controller::Pids, "pids.max", "pids.max"), "7");
    assert_eq!(
        read(&leaf.relative, Controller::Memory, "memory.limit_in_bytes", "memory.max"),
        (32 << 20).to_string()
    );
    let (v1, v2) = ("memory.memsw.limit_in_bytes", "memory.swap.max");
    // Not every kernel accounts for swap.
    if let Ok(swap) = fs::read_to_string(file(&leaf.relative, scratch.kernel(), Controller::Memory, v1, v2)) {
        assert!([(32 << 20).to_string().as_str(), "0"].contains(&swap.trim()), "it may swap: {swap}");
    }
    assert_eq!(
        read(&cgroup.relative, Controller::Memory, "memory.limit_in_bytes", "memory.max"),
        (40 << 20).to_string()
    );
    for (relative, quota, shares) in [(&leaf.relative, 100_000, 512), (&cgroup.relative, 125_000, 768)] {
        let target = Target::new(scratch.kernel(), relative);
        assert!(
            read(relative, Controller::Cpu, "cpu.cfs_quota_us", "cpu.max").starts_with(&quota.to_string())
        );
        assert!(target.shares().unwrap().abs_diff(shares) < 27, "{:?}", target.shares());
    }
    // The shares of the class are the sum of its pods' shares.
    scratch.0.pod(&pod("c", &["{requests: {cpu: 1}}"])).unwrap();
    let class = Target::new(scratch.kernel(), &scratch.0.class(QosClass::Burstable)).shares().unwrap();
    assert!(class.abs_diff(768 + 1024) < 60, "{class}");
}

#[test]
fn the_pods_together_leave_processes_to_the_machine() {
    let scratch = Scratch::new();
    let kubepods = scratch.0.kubepods();
    let most = read(&kubepods, scratch.kernel(), Controller::Pids, "pids.max", "pids.max");
    let threads = fs::read_to_string("/proc/sys/kernel/threads-max").unwrap();
    let (most, threads): (u64, u64) = (most.parse().unwrap(), threads.trim().parse().unwrap());
    assert!(most > 0 && most < threads, "{most} of {threads}");
}

/// Plain files for a v2 cgroup show what is written where, whatever this machine mounts.
#[test]
fn v2_limits_go_into_the_files_of_v2_and_a_missing_controller_has_a_name() {
    let mount = tempfile::tempdir().expect("a scratch directory");
    let leaf = mount.path().join("leaf");
    fs::create_dir_all(&leaf).unwrap();
    let all = Hierarchies::v2_at(mount.path(), &[Controller::Cpu, Controller::Memory, Controller::Pids]);
    let limits = ContainerLimits { pids: Some(9), ..ContainerLimits::none() };
    let limits =
        ContainerLimits { cpu_shares: 1024, cpu_quota_us: Some(150_000), memory: Some(64 << 20), ..limits };
    for (file, value) in
        [("cpu.weight", "100"), ("memory.max", "max"), ("memory.oom.group", "0"), ("pids.max", "max")]
    {
        fs::write(leaf.join(file), value).unwrap();
    }
    let target = Target::new(&all, Path::new("leaf"));
    assert_contains(
        &target.limit(&limits).unwrap_err(),
        "a cpu limit: the kernel cannot (CONFIG_CFS_BANDWIDTH)",
    );
    fs::write(leaf.join("cpu.max"), "max 100000").unwrap();
    target.limit(&limits).unwrap();
    target.end_as_one().unwrap();
    target.limit_swap(&limits).unwrap();
    assert!(!leaf.join("memory.swap.max").exists(), "a kernel without swap has no such file");
    fs::write(leaf.join("memory.swap.max"), "max").unwrap();
    target.limit_swap(&ContainerLimits::none()).unwrap();
    for (file, expected) in [
        ("memory.swap.max", "0"),
        ("cpu.weight", "39"),
        ("cpu.max", "150000 100000"),
        ("memory.max", "67108864"),
        ("memory.oom.group", "1"),
        ("pids.max", "9"),
    ] {
        assert_eq!(fs::read_to_string(leaf.join(file)).unwrap(), expected, "{file}");
    }
    fs::write(leaf.join("memory.events"), "low 0\noom 4\noom_kill 3\noom_group_kill 1\n").unwrap();
    assert_eq!(target.oom_kills().unwrap(), 3);

    let none = Hierarchies::v2_at(mount.path(), &[]);
    let target = Target::new(&none, Path::new("leaf"));
    target.limit(&ContainerLimits::none()).unwrap();
    assert_eq!(target.oom_kills().unwrap(), 0);
    for (limits, option) in [
        (ContainerLimits { cpu_quota_us: Some(1000), ..ContainerLimits::none() }, "CONFIG_CGROUP_SCHED"),
        (ContainerLimits { memory: Some(1 << 20), ..ContainerLimits::none() }, "CONFIG_MEMCG"),
        (ContainerLimits { pids: Some(9), ..ContainerLimits::none() }, "CONFIG_CGROUP_PIDS"),
    ] {
        let error = target.limit(&limits).unwrap_err().to_string();
        assert!(error.contains(option), "{error}");
    }
}

#[test]
fn the_error_of_a_refused_limit_has_the_value_and_the_cause() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("r", &["{}"])).unwrap();
    // The kernel refuses less than a millisecond.
    let error = Target::new(scratch.kernel(), &cgroup.relative).set_quota(7).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    let error = error.to_string();
    assert_starts_with(&error, "set the cpu limit of /");
    assert_contains(&error, " to 7");
}

#[test]
fn a_kill_lifts_the_cpu_limits_of_container_and_pod_and_the_next_start_renews_that_of_the_pod() {
    let scratch = Scratch::new();
    let (kernel, limited) = (scratch.kernel(), "{limits: {cpu: 100m}}");
    let pod = pod("q", &[limited, limited]);
    let cgroup = scratch.0.pod(&pod).unwrap();
    let limits = ContainerLimits::of(&pod, ContainerIndex(0));
    let [killed, beside] = [("c0", 0), ("c1", 0)].map(|(name, run)| cgroup.leaf(name, run, &limits).unwrap());
    let quota = |of: &Path| {
        let text = read(of, kernel, Controller::Cpu, "cpu.cfs_quota_us", "cpu.max");
        text.split(' ').next().unwrap().parse::<i64>().unwrap_or(-1)
    };
    let all = || [&cgroup.relative, &killed.relative, &beside.relative].map(|relative| quota(relative));
    assert_eq!(all(), [20_000, 10_000, 10_000]);

    // The end of an executed process leaves the limits of its container and pod in force.
    killed.kill_exec(1).unwrap();
    assert_eq!(all(), [20_000, 10_000, 10_000]);
    killed.kill().unwrap();
    assert_eq!(all(), [-1, -1, 10_000]);
    killed.remove().unwrap();
    cgroup.renew_cpu_limit(&pod).unwrap();
    let killed = cgroup.leaf("c0", 1, &limits).unwrap();
    let all = || [&cgroup.relative, &killed.relative, &beside.relative].map(|relative| quota(relative));
    assert_eq!(all(), [20_000, 10_000, 10_000]);

    // Like a supervisor, which knows one path only.
    super::quota::lift_cpu_limits(&beside.unified());
    assert_eq!(all(), [-1, 10_000, -1]);
    cgroup.kill().unwrap();
    // In version 2, a leaf without processes keeps its limit, since nobody waits for its end.
    let [pod, _, beside] = all();
    assert_eq!((pod, beside), (-1, -1));
}

#[test]
fn a_pod_has_a_share_of_the_processes_unless_a_limit_is_configured() {
    let limits = |wanted| {
        let mut scratch = Scratch::new();
        scratch.0 = Cgroups::open(&scratch.1, wanted).unwrap();
        let cgroup = scratch.0.pod(&pod("p", &["{}"])).unwrap();
        let of = |relative| read(relative, scratch.kernel(), Controller::Pids, "pids.max", "pids.max");
        (of(&cgroup.relative), of(&scratch.0.kubepods()).parse::<u64>().unwrap())
    };
    let (share, all) = limits(PodPidsLimit::Share);
    // 15 of the 90 percent that all pods together may have.
    assert!(share.parse::<u64>().unwrap().abs_diff((all / 6).max(64)) <= 2, "{share} of {all}");
    assert_eq!(limits(PodPidsLimit::Of(7)).0, "7");
    assert_eq!(limits(PodPidsLimit::Unlimited).0, "max");
}

#[test]
fn pods_together_leave_memory_to_the_machine() {
    let scratch = Scratch::new();
    let all = || {
        let kubepods = scratch.0.kubepods();
        read(&kubepods, scratch.kernel(), Controller::Memory, "memory.limit_in_bytes", "memory.max")
    };
    for limit in [96 << 20, 64 << 20] {
        scratch.0.limit_memory(limit).unwrap();
        assert_eq!(all(), limit.to_string());
    }
}

/// The limits of a cgroup: memory, cpu quota in microseconds, and cpu weight, as the kernel has them.
fn limits_of(relative: &Path, kernel: &Hierarchies) -> [String; 3] {
    let first = |text: String| text.split_whitespace().next().unwrap_or_default().to_owned();
    [
        first(read(relative, kernel, Controller::Memory, "memory.limit_in_bytes", "memory.max")),
        first(read(relative, kernel, Controller::Cpu, "cpu.cfs_quota_us", "cpu.max")),
        first(read(relative, kernel, Controller::Cpu, "cpu.shares", "cpu.weight")),
    ]
}

#[test]
fn a_running_pod_is_resized_up_and_down_but_not_below_its_usage() {
    let scratch = Scratch::new();
    let of = |cpu: u64, mib: u64| {
        let resources = format!("{{limits: {{cpu: {cpu}m, memory: {mib}Mi}}, requests: {{cpu: 50m}}}}");
        pod("resized", &[&resources, &resources])
    };
    let before = of(100, 32);
    let cgroup = scratch.0.pod(&before).unwrap();
    let limits = |index| ContainerLimits::of(&before, ContainerIndex(index));
    let leaves = [
        (cgroup.leaf("c0", 0, &limits(0)).unwrap(), ContainerIndex(0)),
        (cgroup.leaf("c1", 0, &limits(1)).unwrap(), ContainerIndex(1)),
    ];
    // Sixteen MiB that are not given back: the reader does not read.
    let mut child = spawn(&leaves[0].0, "dd if=/dev/zero bs=16M count=1 | sleep 1000");
    let usage = |_: ()| {
        read(
            &leaves[0].0.relative,
            scratch.kernel(),
            Controller::Memory,
            "memory.usage_in_bytes",
            "memory.current",
        )
    };
    until("the memory is used", || usage(()).parse::<u64>().unwrap() > 15 << 20);
    let found = |relative: &Path| {
        let [memory, quota, _] = limits_of(relative, scratch.kernel());
        (memory.parse::<u64>().unwrap() >> 20, quota.parse::<i64>().unwrap() / 100)
    };
    let all = || [found(&cgroup.relative), found(&leaves[0].0.relative), found(&leaves[1].0.relative)];
    assert_eq!(all(), [(64, 200), (32, 100), (32, 100)]);
    scratch.0.resize(&of(300, 96), &leaves).unwrap();
    assert_eq!(all(), [(192, 600), (96, 300), (96, 300)]);
    scratch.0.resize(&of(150, 48), &leaves).unwrap();
    assert_eq!(all(), [(96, 300), (48, 150), (48, 150)]);

    let refused = scratch.0.resize(&of(200, 6), &leaves).unwrap_err().to_string();
    assert_starts_with(
        &refused,
        "cannot decrease memory limits: [attempting to set pod memory limit (12582912)",
    );
    assert_contains(
        &refused,
        "attempting to set container \"c0\" memory limit (6291456) below current usage (",
    );
    assert!(!refused.contains("\"c1\""), "{refused}");
    assert_eq!(all(), [(96, 300), (48, 150), (48, 150)], "nothing was written");
    assert!(child.try_wait().unwrap().is_none(), "the container runs");

    // A container that has ended meanwhile is no error.
    leaves[1].0.remove().unwrap();
    scratch.0.resize(&of(200, 64), &leaves).unwrap();
    assert_eq!((found(&cgroup.relative), found(&leaves[0].0.relative)), ((128, 400), (64, 200)));
    leaves[0].0.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn limited_swap_is_a_part_of_the_machines_swap_for_burstable_containers_alone() {
    let of =
        |resources: &str| limited_swap(&pod("u", &[resources]), ContainerIndex(0), 1000 << 20, 500 << 20);
    assert_eq!(of("{requests: {memory: 100Mi}}"), 50 << 20);
    assert_eq!(of("{requests: {memory: 100Mi}, limits: {memory: 300Mi}}"), 50 << 20);
    assert_eq!(of("{limits: {memory: 100Mi}}"), 0);
    assert_eq!(of("{limits: {memory: 100Mi, cpu: 1}}"), 0);
    assert_eq!(of("{requests: {cpu: 1}}"), 0);
    assert_eq!(of("{}"), 0);
    let mut critical = pod("u", &["{requests: {memory: 100Mi}}"]);
    critical.priority = 2_000_000_000;
    assert_eq!(limited_swap(&critical, ContainerIndex(0), 1000 << 20, 500 << 20), 0);
}
