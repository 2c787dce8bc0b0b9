//! Kernels that lack a feature: one sentence names the kernel option and the remedy, in the pod's events and
//! in the agent's log; nothing else is affected, and the pod starts by itself once the kernel has the
//! feature.
//!
//! `cargo xtask guest lacking` and `cargo xtask guest off` run these tests, in virtual machines: see `src/guest.rs`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::Duration;

use nodlet_tests::guest::Lacking;
use nodlet_tests::image::Image;
use nodlet_tests::{Device, demo_archive, manifest, nodlet_program};
use serde_json::Value;

/// Without one of these kernel modules, a pod waits with the module's sentence, and starts when the module is loaded.
#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest lacking"]
fn without_a_kernel_module_the_pod_waits_for_it() {
    each_module(
        &[
            (
                "erofs",
                "mount the image: this kernel has no EROFS; load the module erofs, or use a kernel with CONFIG_EROFS_FS",
            ),
            (
                "overlay",
                "mount the image: this kernel has no overlayfs; load the module overlay, or use a kernel with CONFIG_OVERLAY_FS",
            ),
            // The images of a guest are on a tmpfs, from which kernels can only mount EROFS through a loop device.
            (
                "loop",
                "mount the image: this kernel has no loop devices; load the module loop, or use a kernel with CONFIG_BLK_DEV_LOOP",
            ),
            ("veth", "this kernel has no veth; load the module veth, or use a kernel with CONFIG_VETH"),
            (
                "bridge",
                "make a bridge: this kernel has none; load the module bridge, or use a kernel with CONFIG_BRIDGE",
            ),
        ],
        |lacking, sentence| {
            let device = Device::start();
            let web = device.run_pod("web", "print up then sleep").wait_event(sentence);
            assert!(device.agent_log().contains(sentence), "{}", device.agent_log());
            assert_eq!(web.phase(), "Pending");
            lacking.put_back();
            assert_eq!(web.wait_ready().container("app").restart_count(), 0);
        },
    );
}

/// Checks something without each of these modules, and reports every module with which the check failed.
fn each_module(modules: &[(&'static str, &str)], check: impl Fn(Lacking, &str)) {
    let fails = |(module, expected): &&(&'static str, &str)| {
        eprintln!("without {module}:");
        catch_unwind(AssertUnwindSafe(|| check(Lacking::new(module), expected))).is_err()
    };
    let failed: Vec<&str> = modules.iter().filter(fails).map(|(module, _)| *module).collect();
    assert!(failed.is_empty(), "failed without {}: see above", failed.join(", "));
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest lacking"]
fn without_veth_and_bridges_pods_with_host_network_run() {
    let _veth = Lacking::new("veth");
    let _bridge = Lacking::new("bridge");
    let device = Device::start();
    let pod = manifest::pod_with("web", "print up then sleep", "hostNetwork: true");
    device.write_pod("web", &pod).wait_ready();
    assert!(!device.agent_log().contains("CONFIG_"), "{}", device.agent_log());
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest off"]
fn when_the_memory_controller_is_off_a_pod_runs_only_without_a_memory_limit() {
    let device = Device::start();
    device.run_pod("web", "print up then sleep").wait_ready();
    let option = "CONFIG_MEMCG; cgroup_enable=memory on its command line";
    assert!(device.agent_log().contains(&format!("no memory (the kernel needs {option})")));

    let limited = manifest::container("app", "sleep", "resources: {limits: {memory: 64Mi}}");
    device.run_pod_of("limited", &[limited], "");
    let sentence =
        "set a memory limit: the kernel cannot (CONFIG_MEMCG; cgroup_enable=memory on its command line)";
    device.pod("limited").wait_event(sentence);
    assert!(device.agent_log().contains(sentence), "{}", device.agent_log());
    assert!(device.pod("web").is_ready());
    let uid = device.pod("limited").uid();
    device.remove_pod("limited");
    assert!(device.cgroups().iter().all(|path| !path.to_string_lossy().contains(&uid)));
}

/// The checks that `nodlet doctor` finds missing, without an agent, and the check with this name.
fn doctor(name: &str) -> (Vec<String>, Value) {
    let device = Device::new();
    let ran = device.nodlet(["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:#?}"));
    let checks = report["checks"].as_array().cloned().unwrap_or_default();
    let missing = checks.iter().filter(|check| check["verdict"] == "missing");
    let missing: Vec<String> = missing.filter_map(|check| Some(check["name"].as_str()?.to_owned())).collect();
    assert_eq!(ran.code, i32::from(!missing.is_empty()));
    let found = checks.iter().find(|check| check["name"] == name);
    (missing, found.unwrap_or_else(|| panic!("{name} in {report:#}")).clone())
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest lacking"]
fn doctor_names_each_module_that_is_not_loaded() {
    let modules = [
        ("erofs", "EROFS"),
        ("overlay", "overlayfs"),
        ("loop", "layer mounts"),
        ("veth", "veth"),
        ("bridge", "bridge"),
    ];
    each_module(&modules, |lacking, name| {
        let (missing, check) = doctor(name);
        assert!(missing.iter().any(|own| own == name), "{check:#}");
        let remedy = check["remedy"].as_str().unwrap_or_default();
        assert!(remedy.contains(&format!("Load the module {} ", lacking.module())), "{check:#}");
        lacking.put_back();
        assert_eq!(doctor(name).0, [""; 0], "with the module again");
    });
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest off"]
fn doctor_finds_the_memory_controller_and_landlock_off() {
    let (missing, check) = doctor("memory controller");
    assert_eq!(missing, ["memory controller"], "{check:#}");
    let remedy = check["remedy"].as_str().unwrap_or_default();
    assert!(remedy.starts_with("Remove cgroup_disable=memory from the kernel's command line"), "{check:#}");
    let landlock = doctor("Landlock").1;
    assert_eq!(landlock["verdict"], "warning", "{landlock:#}");
    assert!(landlock["remedy"].as_str().is_some_and(|remedy| remedy.starts_with("Add landlock to lsm=")));
    assert_eq!(doctor("device filter").1["verdict"], "ok", "by a program: there is no cgroup v1");
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest off"]
fn without_landlock_images_are_loaded_and_other_users_get_a_warning() {
    let device = Device::start();
    let baked = device.path("/baked");
    let archive = device.path("/other.tar");
    let image = Image::of_demo("localhost/other:1");
    image.write_oci_archive(&archive).expect("it can be written");
    // In a directory where the user who bakes a device image can execute it.
    let nodlet = device.path("/nodlet-of-nobody");
    fs::copy(nodlet_program(), &nodlet).expect("it can be copied");
    fs::create_dir(&baked).expect("the root can be written to");
    std::os::unix::fs::chown(&baked, Some(65534), Some(65534)).expect("root can give it away");
    let load = |user: u32| {
        let ran = Command::new(&nodlet)
            .args(["image", "load", "--root"])
            .arg(if user == 0 { device.root() } else { &baked })
            .arg(&archive)
            .uid(user)
            .gid(user)
            .stdin(Stdio::null())
            .output()
            .expect("it can be executed");
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8_lossy(&ran.stderr).into_owned()
    };
    assert_eq!(load(0), "", "namespaces confine root's");
    let reported = load(65534);
    assert!(reported.contains("unpacked with less protection"), "{reported}");
    assert!(
        reported.contains("(CONFIG_SECURITY_LANDLOCK, Linux 5.13), and this kernel has none"),
        "{reported}"
    );
    let other = manifest::pod("web", "print up then sleep").replace("localhost/demo:1", "localhost/other:1");
    device.write_pod("web", &other).wait_ready();
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest lacking"]
fn without_a_cgroup_file_system_the_agent_reports_how_to_mount_it() {
    let mut device = Device::new();
    let none = nix::mount::MntFlags::MNT_DETACH;
    nix::mount::umount2("/sys/fs/cgroup", none).expect("it is mounted, and nobody uses it");
    device.launch_agent();
    assert_ne!(device.agent_ended(), 0);
    assert!(device.agent_log().contains("mount -t cgroup2 cgroup2 /sys/fs/cgroup"), "{}", device.agent_log());

    let (none, cgroup2) = (nix::mount::MsFlags::empty(), Some("cgroup2"));
    nix::mount::mount(cgroup2, "/sys/fs/cgroup", cgroup2, none, None::<&str>).expect("it can be mounted");
    device.start_agent();
}

/// One of the kernel's limits of inotify; the previous value is restored on drop.
struct Limit(&'static str, String);

impl Limit {
    fn set(file: &'static str, to: &str) -> Limit {
        let before = fs::read_to_string(file).expect("the kernel has inotify");
        fs::write(file, to).expect("it can be set");
        Limit(file, before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = fs::write(self.0, &self.1);
    }
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest lacking"]
fn without_watches_manifests_are_looked_at_from_time_to_time_and_down_works() {
    for file in ["/proc/sys/fs/inotify/max_user_instances", "/proc/sys/fs/inotify/max_user_watches"] {
        let mut device = Device::new();
        let limit = Limit::set(file, "0");
        let resolvers = device.path("resolv.conf");
        fs::write(&resolvers, "nameserver 192.0.2.1\n").expect("the directory can be written to");
        device.agent_arguments(["--resolv-conf", &resolvers.to_string_lossy()]);
        device.start_agent();
        device.run_pod_with("web", "print up then sleep", "dnsPolicy: Default");
        device.wait_for("the pod to wait for its image", || !device.pod("web").events().is_empty());
        device.load_image(demo_archive());
        assert!(device.agent_log().contains("until that is possible they are read every 10 s"));
        device.wait_within(Duration::from_secs(120), "the pod", || device.pod("web").is_ready());
        let log = device.agent_log();
        assert!(log.contains(&format!("failed to watch {}: ", resolvers.display())), "{log}");
        assert!(log.contains("until that is possible it is read every 10 s"), "{log}");
        fs::write(&resolvers, "nameserver 192.0.2.2\n").expect("the directory can be written to");
        device.wait_within(Duration::from_secs(120), "the other name server", || {
            let shown = device.pod("web").demo("app", "cat /etc/resolv.conf").ok();
            shown.contains("192.0.2.2")
        });
        device.nodlet(["down"]).ok();
        drop(limit);
    }
}

/// Moves the calling thread, and processes that it starts, to the file system into which the kernel unpacked
/// the initramfs, as if the guest's first process had not left it.
fn return_to_the_initial_root() {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let none = None::<&str>;
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("this is root");
    let private = nix::mount::MsFlags::MS_REC | nix::mount::MsFlags::MS_PRIVATE;
    nix::mount::mount(none, "/", none, private, none).expect("mounts can be made private");
    let places = [c"/proc", c"/sys", c"/dev", c"/run", c"/tmp"];
    let mounts = places.map(|place| {
        let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as libc::c_uint;
        // SAFETY: a C string that outlives the call, which returns a new descriptor.
        unsafe {
            let fd = libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, place.as_ptr(), flags);
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd as i32)
        }
    });
    let own = fs::File::open("/proc/thread-self/ns/mnt").expect("/proc is there");
    nix::mount::umount2("/", nix::mount::MntFlags::MNT_DETACH).expect("the root can be taken away");
    // Entering the namespace again makes its first mount, or what is mounted over that, the root.
    nix::sched::setns(own, nix::sched::CloneFlags::CLONE_NEWNS).expect("it is this thread's own");
    for (mount, place) in mounts.iter().zip(places) {
        // SAFETY: C strings that outlive the call.
        let moved = unsafe {
            let from = mount.as_raw_fd();
            let flags = libc::MOVE_MOUNT_F_EMPTY_PATH;
            libc::syscall(libc::SYS_move_mount, from, c"".as_ptr(), libc::AT_FDCWD, place.as_ptr(), flags)
        };
        assert!(moved == 0, "{place:?}: {}", std::io::Error::last_os_error());
    }
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("/proc is there");
    assert!(mounts.lines().any(|line| line.contains(" / / ") && line.contains(" - rootfs ")), "{mounts}");
}

#[test]
#[ignore = "needs a kernel of its own: cargo xtask guest lacking"]
fn on_an_initramfs_that_was_not_left_the_pod_says_what_to_do() {
    return_to_the_initial_root();
    let (missing, check) = doctor("root file system");
    assert!(missing.iter().any(|own| own == "root file system"), "{check:#}");
    let device = Device::start();
    device.run_pod("web", "print up then sleep");
    let sentence = "nodlet runs on the kernel's initial root file system (an initramfs), which no process can \
                    leave; let its init mount a tmpfs or a disk and `switch_root` to it before it starts nodlet";
    device.pod("web").wait_event(sentence);
    assert_eq!(device.pod("web").phase(), "Pending");
}
