//! Tests with the kernel of the machine, below a cgroup named after this process; pure conversions as tables.

mod kill;
mod limits;

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::Pid;

use super::hierarchy::Hierarchies;
use super::*;
use crate::launch::DeviceNode;
use nodlet_core::spec::ContainerIndex;
use nodlet_kube::manifest::{self, Validation};

/// Cgroups of one test alone, removed with all their processes at the end of the test.
struct Scratch(Cgroups, Paths);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("nodlet-cgroup-{}-{number}", std::process::id()));
        let paths = Paths::new(&root);
        fs::create_dir_all(paths.run()).expect("a scratch directory");
        Scratch(Cgroups::open(&paths, PodPidsLimit::Share).expect("these tests need root and cgroups"), paths)
    }

    fn kernel(&self) -> &Hierarchies {
        &self.0.hierarchies
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let parent = self.0.parent.clone();
        let _ = tree::kill_all(&self.kernel().unified.join(&parent));
        let all = PodCgroup::new(&self.0.hierarchies, parent);
        wait_until_empty(&all);
        self.0.remove_all().unwrap();
        fs::remove_dir_all(self.1.root()).unwrap();
    }
}

/// Waits until no process of the pod is left, as an agent does.
fn wait_until_empty(cgroup: &PodCgroup) {
    let watches = crate::watches::Watches::default();
    let run = async {
        watches.clone().run().await;
        unreachable!("it runs for ever");
    };
    smol::block_on(smol::future::or(cgroup.emptied(&watches), run));
}

/// A pod with one container for each of `resources`.
fn pod(uid: &str, resources: &[&str]) -> Pod {
    let mut yaml =
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p, uid: \"{uid}\"}}\nspec:\n  containers:\n");
    for (index, resources) in resources.iter().enumerate() {
        yaml += &format!("  - {{name: c{index}, image: i, resources: {resources}}}\n");
    }
    let mut manifests =
        manifest::parse("p.yaml", yaml.as_bytes(), Validation::Strict, "node").expect("a valid manifest");
    Rc::unwrap_or_clone(manifests.remove(0).pod)
}

/// Runs `script` in a shell that joins the leaf first.
fn spawn(leaf: &Leaf, script: &str) -> Child {
    let paths = leaf.paths();
    let mut joined = format!("echo $$ > {}/cgroup.procs || exit 99; ", paths.unified.display());
    for tasks in paths.v1_tasks {
        joined += &format!("echo $$ > {} || exit 99; ", tasks.display());
    }
    let script = format!("{joined}{script}");
    Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The leaf's file in the hierarchy of `controller`.
fn file(leaf: &Path, kernel: &Hierarchies, controller: Controller, v1: &str, v2: &str) -> PathBuf {
    match kernel.hierarchy_of(controller) {
        ControllerHierarchy::V1(mount) => mount.join(leaf).join(v1),
        ControllerHierarchy::V2 => kernel.unified.join(leaf).join(v2),
        ControllerHierarchy::Missing => panic!("this machine has no {controller:?} controller"),
    }
}

/// The content of the leaf's file in the hierarchy of `controller`.
fn read(leaf: &Path, kernel: &Hierarchies, controller: Controller, v1: &str, v2: &str) -> String {
    fs::read_to_string(file(leaf, kernel, controller, v1, v2)).unwrap().trim().to_owned()
}

/// systemd removes the cgroup of a service that has just ended, while the agent makes cgroups below it.
#[test]
fn cgroups_removed_while_the_agent_creates_them_are_created_again() {
    let scratch = Scratch::new();
    let doomed: Vec<PathBuf> =
        scratch.kernel().mounts().iter().map(|mount| mount.join(scratch.0.kubepods())).collect();
    let tidies = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while tidies.load(Ordering::Relaxed) {
                doomed.iter().for_each(|directory| drop(fs::remove_dir(directory)));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let opened: Vec<_> = (0..200).map(|_| Cgroups::open(&scratch.1, PodPidsLimit::Share)).collect();
        tidies.store(false, Ordering::Relaxed);
        for opened in opened {
            opened.unwrap();
        }
    });
}

#[test]
fn pods_are_found_by_class_and_removed_with_all_their_leaves() {
    let scratch = Scratch::new();
    let guaranteed = pod("g", &["{limits: {cpu: 1, memory: 8Mi}}"]);
    for pod in [&guaranteed, &pod("b", &["{requests: {cpu: 1}}"]), &pod("e", &["{}"])] {
        let cgroup = scratch.0.pod(pod).unwrap();
        let leaf = cgroup.leaf("c0", 0, &ContainerLimits::of(pod, ContainerIndex(0))).unwrap();
        fs::create_dir(leaf.paths().unified.join("exec-1")).unwrap();
        let pause = cgroup.pause_paths(false).unwrap().unified;
        assert!(pause.ends_with("pause") && !pause.exists());
        assert_eq!(cgroup.pause_paths(true).unwrap().unified, pause);
        assert!(pause.is_dir());
    }
    let mut uids: Vec<String> = scratch.0.pods().unwrap().into_iter().map(|(uid, _)| uid).collect();
    uids.sort();
    assert_eq!(uids, ["b", "e", "g"]);
    for (_, cgroup) in scratch.0.pods().unwrap() {
        cgroup.remove().unwrap();
        cgroup.remove().unwrap();
    }
    assert!(scratch.0.pods().unwrap().is_empty());
    let own = scratch.0.supervisor("one").expect("made");
    assert!(scratch.0.supervisor_paths(&own).iter().all(|directory| directory.is_dir()));
}

#[test]
fn a_uid_that_is_a_path_names_no_cgroup() {
    let scratch = Scratch::new();
    let mut hostile = pod("u", &["{}"]);
    for uid in ["", "../../x", "a/b"] {
        hostile.uid = uid.into();
        assert!(scratch.0.pod(&hostile).unwrap_err().to_string().contains("metadata.uid"));
        assert!(scratch.0.supervisor(uid).is_err());
    }
}

/// Checks what a shell in the leaf can do with devices, for either kind of filter.
fn check_devices(leaf: &Leaf, expected: &str) {
    let script = "t() { \"$@\" 2>/dev/null && printf y || printf n; }; d=$(mktemp -d); \
        t sh -c 'head -c1 /dev/zero > /dev/null'; t sh -c 'head -c1 /dev/urandom >/dev/null'; t sh -c ': < /dev/kmsg'; \
        t mknod $d/null c 1 3; t sh -c \": > $d/null\"; t mknod $d/kmsg c 1 11; t sh -c \": < $d/kmsg\"; \
        t mknod $d/loop b 7 0; t sh -c \": < $d/loop\"; rm -r $d";
    let output = spawn(leaf, script).wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn a_container_opens_only_the_devices_that_every_container_has() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("d", &["{}"])).unwrap();
    let open = ContainerLimits { all_devices: true, ..ContainerLimits::none() };
    check_devices(&cgroup.leaf("c0", 0, &open).unwrap(), "yyyyyyyyy");
    check_devices(&cgroup.leaf("c1", 0, &ContainerLimits::none()).unwrap(), "yynyyynyn");
    // The same rules as an eBPF program, even if this machine has v1's devices controller.
    let leaf = cgroup.leaf("c2", 0, &open).unwrap();
    devices::filter_v2(&leaf.unified(), &[]).unwrap();
    check_devices(&leaf, "yynyyynyn");
}

#[test]
fn a_container_opens_its_own_devices_and_others_in_their_place_when_they_change() {
    let scratch = Scratch::new();
    let cgroup = scratch.0.pod(&pod("o", &["{}"])).unwrap();
    let node = |block: bool, major: u32, minor: u32, writable: bool| DeviceNode {
        path: "/dev/own".into(),
        block,
        major,
        minor,
        readable: true,
        writable,
        mode: None,
        uid: None,
        gid: None,
    };
    let (kmsg, twice, loop0) = (node(false, 1, 11, false), node(false, 1, 11, true), node(true, 7, 0, true));
    let limits = ContainerLimits { devices: vec![kmsg.clone()], ..ContainerLimits::none() };
    let leaf = cgroup.leaf("c0", 0, &limits).unwrap();
    check_devices(&leaf, "yyyyyyyyn");
    let writes = |leaf: &Leaf| {
        let script =
            "d=$(mktemp -d); mknod $d/k c 1 11; sh -c \": > $d/k\" 2>/dev/null && printf y; rm -r $d";
        String::from_utf8(spawn(leaf, script).wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(writes(&leaf), "", "the device may only be read");
    leaf.change_devices(std::slice::from_ref(&kmsg), &[kmsg.clone(), twice.clone()]).unwrap();
    assert_eq!(writes(&leaf), "y");
    leaf.change_devices(&[kmsg.clone(), twice], std::slice::from_ref(&loop0)).unwrap();
    check_devices(&leaf, "yynyyynyy");
    leaf.change_devices(std::slice::from_ref(&loop0), &[]).unwrap();
    check_devices(&leaf, "yynyyynyn");
    // The same rules as an eBPF program.
    let open = ContainerLimits { all_devices: true, ..ContainerLimits::none() };
    let leaf = cgroup.leaf("c1", 0, &open).unwrap();
    devices::filter_v2(&leaf.unified(), std::slice::from_ref(&kmsg)).unwrap();
    check_devices(&leaf, "yyyyyyyyn");
    assert_eq!(writes(&leaf), "");
    devices::change_filter_v2(&leaf.unified(), &[loop0]).unwrap();
    check_devices(&leaf, "yynyyynyy");
    devices::change_filter_v2(&leaf.unified(), &[]).unwrap();
    check_devices(&leaf, "yynyyynyn");
}

/// A load that ends while another one waits for it must not remove the cgroup that they share.
#[test]
fn loads_of_one_store_share_the_cgroup_of_the_process_that_unpacks() {
    let paths = Paths::new(Path::new(&format!("/tmp/nodlet-unpacker-{}", std::process::id())));
    let make = || UnpackerCgroup::make(&paths, 64 << 20).expect("these tests need root and cgroups");
    let (first, second) = (make(), make());
    let procs = second.procs();
    assert_eq!(first.procs(), procs);
    drop(first);
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(&procs, child.id().to_string()).expect("it is still there");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(second);
    assert!(!procs.exists());
    assert!(!procs.ancestors().nth(2).unwrap().exists(), "nor what it was in");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert!(make().procs().exists(), "it is made, and was taken away");
                }
            });
        }
    });
    assert!(!procs.exists());
}
