//! Pods with a user namespace of their own (`hostUsers: false`), read from inside real containers.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nodlet_tests::{Device, TestPod, manifest};

/// The host's ID of a process in a pod, from the host's view.
fn owner(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).expect("it runs").uid()
}

/// The range of IDs of a process: first ID in the pod, first on the host, number.
fn map(text: &str) -> Vec<u32> {
    text.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

#[track_caller]
fn demo(pod: TestPod<'_>, container: &str, step: &str) -> String {
    pod.demo(container, step).ok().trim().to_owned()
}

#[test]
fn files_and_processes_of_a_pod_have_their_own_ids_and_none_of_the_host() {
    let device = Device::start();
    device.write_manifest(
        "cm.yaml",
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: words}, data: {word: hello}}\n",
    );
    let (shared, here) = device.shared("shared");
    fs::write(here.join("of-root"), "from the host").expect("it can be written");
    let mounts = "volumeMounts: [{name: shared, mountPath: /shared}, {name: shared, mountPath: /sub/deep, subPath: a/b}, \
        {name: disk, mountPath: /disk}, {name: disk, mountPath: /disk/inner/words, subPath: words}, {name: memory, mountPath: /memory}, \
        {name: memory, mountPath: /in-memory, subPath: made}, {name: words, mountPath: /words}, {name: info, mountPath: /info}, \
        {name: image, mountPath: /image}]\n\
        lifecycle: {postStart: {exec: {command: [/bin/demo, touch, /shared/hooked]}}}\n\
        readinessProbe: {exec: {command: [/bin/demo, touch, /shared/probed]}}\n";
    let app = manifest::container("app", "effective then touch /made then sleep", mounts);
    let user = manifest::container(
        "user",
        "id then sleep",
        "securityContext: {runAsUser: 1000, runAsGroup: 2000}\n",
    );
    let spec = format!(
        "hostUsers: false\nsecurityContext: {{fsGroup: 3000, supplementalGroups: [4000]}}\n\
         volumes: [{{name: shared, hostPath: {{path: {shared}}}}}, {{name: disk, emptyDir: {{}}}}, \
         {{name: memory, emptyDir: {{medium: Memory}}}}, {{name: words, configMap: {{name: words}}}}, \
         {{name: image, image: {{reference: 'localhost/demo:1'}}}}, \
         {{name: info, downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}]\n"
    );
    let web = device.run_pod_of("web", &[app, user], &spec).wait_ready();
    let ids = map(&demo(web, "app", "cat /proc/self/uid_map"));
    assert_eq!((ids[0], ids[1] % 65536, ids[2]), (0, 0, 65536), "{ids:?}");
    assert!(ids[1] >= 65536, "{ids:?}");
    assert_eq!(map(&demo(web, "app", "cat /proc/self/gid_map")), ids);
    assert_eq!(web.logs("user").trim(), "uid=1000 gid=2000 groups=2000,3000,4000");
    for pid in device.container_processes() {
        assert!((ids[1]..ids[1] + 65536).contains(&owner(pid)), "{pid} is {}", owner(pid));
    }
    // An executed process is as confined as the first one.
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(&demo(web, "app", "effective")), lines(web.logs("app").trim()));

    // In the container, all of its files belong to it.
    for (file, expected) in [
        ("/made", "file 0644 0:0 0"),
        ("/shared/of-root", "file 0644 0:0 13"),
        ("/shared/hooked", "file 0644 0:0 0"),
        ("/shared/probed", "file 0644 0:0 0"),
        ("/sub", "dir 0755 0:0"),
        ("/sub/deep", "dir 0755 0:0"),
        ("/disk", "dir 2777 0:3000"),
        ("/disk/inner", "dir 2755 0:3000"),
        ("/memory", "dir 3777 0:3000"),
        ("/in-memory", "dir 3777 0:3000"),
        ("/dev", "dir 0755 0:0"),
        ("/dev/shm", "dir 1777 0:0"),
        ("/etc/hosts", "file 0644 0:0"),
        ("/bin/demo", "file 0755 0:0"),
        ("/image/bin/demo", "file 0755 0:0"),
        ("/image", "dir 0755 0:0"),
        ("/", "dir 0755 0:0"),
    ] {
        let found = demo(web, "app", &format!("stat {file}"));
        assert!(found.starts_with(expected), "{file}: {found}");
    }
    assert_eq!(demo(web, "app", "cat /words/word"), "hello");
    assert_eq!(demo(web, "app", "cat /info/name"), "web");
    // On the host, those of volumes have the IDs of the container, and those of processes do not.
    for file in ["hooked", "probed", "a/b"] {
        let meta = fs::metadata(here.join(file)).expect("it was made");
        assert_eq!((meta.uid(), meta.gid()), (0, 0), "{file}");
    }
    demo(web, "user", "write /dev/shm/mine x");
    assert!(demo(web, "app", "stat /dev/shm/mine").contains(" 1000:2000 "), "a user of the pod");
    demo(web, "app", "cat /dev/null");
    demo(web, "app", "write /dev/stdout said");
    // Its own network answers pings and has its own ports.
    assert_eq!(demo(web, "app", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start"), "0");
}

#[test]
fn no_two_pods_have_the_same_ids_and_a_new_agent_keeps_them() {
    let mut device = Device::start();
    for name in ["one", "two"] {
        device.run_pod_with(name, "sleep", "hostUsers: false\n");
    }
    device.wait_all_ready(["one", "two"]);
    let first =
        |device: &Device, name: &str| map(&demo(device.pod(name), "app", "cat /proc/self/uid_map"))[1];
    let (one, two) = (first(&device, "one"), first(&device, "two"));
    assert_ne!(one, two);
    let born = device.pod("one").born("app");
    device.restart_agent();
    device.pod("one").wait_ready();
    assert_eq!(
        (device.pod("one").born("app"), first(&device, "one"), first(&device, "two")),
        (born, one, two)
    );
    // A pod that comes while those run gets others; one that comes after them may have theirs.
    device.run_pod_with("three", "sleep", "hostUsers: false\n").wait_ready();
    assert!(![one, two].contains(&first(&device, "three")));
    device.power_cycle();
    device.wait_all_ready(["one", "two", "three"]);
    let mut all = ["one", "two", "three"].map(|name| first(&device, name));
    all.sort_unstable();
    assert!(all[0] < all[1] && all[1] < all[2], "{all:?}");
}

#[test]
fn root_of_a_user_namespace_has_no_power_over_the_host() {
    let device = Device::start();
    let privileged = "securityContext: {privileged: true}\n";
    let all = "securityContext: {capabilities: {add: [ALL]}, procMount: Unmasked}\n";
    let containers = [
        manifest::container("app", "sleep", all),
        manifest::container("strong", "sleep", privileged),
        manifest::container("plain", "sleep", ""),
    ];
    let web = device.run_pod_of("web", &containers, "hostUsers: false\n").wait_ready();
    device.run_pod("other", "sleep").wait_ready();
    let refused = |container: &str, step: &str| web.demo(container, step).refused();
    for container in ["app", "strong", "plain"] {
        // Devices: neither its own, nor those of the host.
        let made = refused(container, "mknod /kmsg 1 11");
        assert!(made.contains("not permitted") || made.contains("EPERM"), "{made}");
        refused(container, "mknod-block /disk 254 0");
        // The host's settings, with and without a mask.
        for file in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory"] {
            let said = refused(container, &format!("write {file} 1"));
            assert!(said.contains("denied") || said.contains("Read-only"), "{container} {file}: {said}");
        }
        // File systems whose parser is the kernel's.
        for kind in ["erofs", "ext4", "debugfs", "cgroup"] {
            refused(container, &format!("mount {kind} /bin/demo /mnt"));
        }
    }
    // What it may: mount in its own namespaces.
    web.demo("app", "mount tmpfs none /own").ok();
    // A privileged container has the host's devices, as nobody's.
    let nodes = demo(web, "strong", "ls /dev");
    assert!(nodes.contains("kmsg"), "{nodes}");
    refused("strong", "open /dev/kmsg");
    // Unmasked: /proc as the kernel has it. Otherwise it is masked.
    let masked =
        |container: &str| demo(web, container, "mounts").lines().any(|line| line.contains(" /proc/sys "));
    assert_eq!((masked("app"), masked("strong"), masked("plain")), (false, false, true));
    let keys = |container: &str| demo(web, container, "stat /proc/keys");
    assert!(keys("app").starts_with("file"), "{}", keys("app"));
    assert!(keys("plain").starts_with("char"), "{}", keys("plain"));
}

#[test]
fn containers_of_a_user_namespace_share_processes_and_sysctls() {
    let device = Device::start();
    let spec = "hostUsers: false\nshareProcessNamespace: true\n\
        securityContext: {supplementalGroups: [4000], sysctls: [{name: net.ipv4.ping_group_range, value: '0 5'}, {name: kernel.shm_rmid_forced, value: '1'}]}\n";
    let more = "tty: true\nstdin: true\n";
    let containers = [
        manifest::container("app", "sleep", ""),
        manifest::container("term", "tty then id then sleep", more),
    ];
    let web = device.run_pod_of("web", &containers, spec).wait_ready();
    assert_eq!(demo(web, "app", "cat /proc/sys/net/ipv4/ping_group_range"), "0\t5");
    assert_eq!(demo(web, "app", "cat /proc/sys/kernel/shm_rmid_forced"), "1");
    let status = demo(web, "app", "cat /proc/1/status");
    assert!(status.contains("pause") && status.contains("Uid:\t65535"), "{status}");
    web.wait_log("term", "uid=0 gid=0 groups=0,4000");
    assert!(web.logs("term").starts_with("tty"), "{}", web.logs("term"));
    let born = web.born("app");
    web.demo("term", "id").ok();
    assert_eq!(web.born("app"), born);
    device.remove_pod("web");
}

#[test]
fn a_user_that_cannot_be_mapped_is_reported_and_its_container_never_started() {
    let device = Device::start();
    let mount = |path: &str, more: &str| format!("volumeMounts: [{{name: v, mountPath: {path}{more}}}]\n");
    let privileged = "securityContext: {privileged: true}\n";
    for (name, container, path) in [
        ("ids", "securityContext: {runAsUser: 65536}\n".to_owned(), "/tmp"),
        ("kernel", mount("/host", ""), "/sys/kernel"),
        ("late", mount("/sys/fs/cgroup", ", readOnly: true"), "/tmp"),
        ("shared", privileged.to_owned() + &mount("/v", ", mountPropagation: Bidirectional"), "/tmp"),
    ] {
        let spec = format!("hostUsers: false\nvolumes: [{{name: v, hostPath: {{path: {path}}}}}]\n");
        device.write_single(name, "sleep", &container, &spec);
    }
    for (name, said) in [
        ("late", "with hostUsers: false, no volume can be in /proc, in /sys or at a device"),
        ("shared", "with hostUsers: false, mountPropagation cannot be Bidirectional"),
        ("ids", "use the ID 65536: with hostUsers: false, a pod has the IDs 0 to 65535"),
        ("kernel", "mount the volume at /host: this kernel cannot map the IDs of its file system"),
    ] {
        let pod = device.pod(name);
        device.wait_for(name, || pod.container("app").message().contains(said));
        assert_eq!(pod.container("app").state(), "waiting");
        assert!(pod.has_event(said), "{:?}", pod.events());
    }
    assert!(device.container_processes().is_empty());
}
