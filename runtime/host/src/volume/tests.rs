use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;
use nodlet_kube::manifest::{self, Validation};

fn pod(spec: &str) -> std::rc::Rc<Pod> {
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n");
    let parsed = manifest::parse("p.yaml", text.as_bytes(), Validation::Strict, "node");
    parsed.unwrap_or_else(|error| panic!("{error}")).remove(0).pod
}

#[test]
fn an_empty_dir_is_for_everybody_and_stays_as_it_is() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let paths = Paths::new(scratch.path());
    let pod = pod("{containers: [{name: c, image: i}], volumes: [{name: v, emptyDir: {}}]}");
    let request = Request::new(&pod, &paths, &[]);
    let volumes = set_up(&request).expect("set up");
    let Some(MountSource::Host(path)) = volumes.get("v") else { panic!("{volumes:?}") };
    assert!(path.ends_with(format!("pods/{}/volumes/kubernetes.io~empty-dir/v", pod.uid)));
    assert_eq!(fs::metadata(path).expect("it is there").permissions().mode() & 0o7777, 0o777);
    fs::write(path.join("kept"), "x").expect("written");
    set_up(&request).expect("set up again");
    assert!(path.join("kept").exists());
    assert_eq!(known(&request), volumes);
    tear_down(&paths.pod(&pod.uid.0)).expect("torn down");
    assert!(!paths.pod(&pod.uid.0).exists());
    tear_down(&paths.pod(&pod.uid.0)).expect("what is gone is torn down");
}

#[test]
fn an_empty_dir_belongs_to_the_group_of_the_pod() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let pod = pod(
        "{securityContext: {fsGroup: 2000}, containers: [{name: c, image: i}], volumes: [{name: v, emptyDir: {}}]}",
    );
    let volumes = set_up(&Request::new(&pod, &Paths::new(scratch.path()), &[])).expect("set up");
    let Some(MountSource::Host(path)) = volumes.get("v") else { panic!("{volumes:?}") };
    let metadata = fs::metadata(path).expect("it is there");
    assert_eq!((metadata.gid(), metadata.mode() & 0o7777), (2000, 0o2777));
}

#[test]
fn the_size_of_a_memory_volume_is_the_lowest_limit() {
    let of_all_pods = 8 << 20;
    for (limits, size_limit, expected) in [
        ("", "", of_all_pods),
        ("", "sizeLimit: 1Mi", 1 << 20),
        ("", "sizeLimit: 9Mi", of_all_pods),
        ("resources: {limits: {memory: 512Ki}}", "sizeLimit: 1Mi", 512 << 10),
        ("resources: {limits: {memory: 4Mi}}", "", 4 << 20),
        ("resources: {limits: {memory: 9Mi}}", "sizeLimit: 10Mi", of_all_pods),
    ] {
        let pod = pod(&format!(
            "{{containers: [{{name: c, image: i, {limits}}}], volumes: [{{name: v, emptyDir: {{medium: Memory, {size_limit}}}}}]}}"
        ));
        let size = memory_volumes(&pod, Some(of_all_pods))[0].size;
        assert_eq!(size, Some(expected), "{limits} {size_limit}");
    }
}

#[test]
fn a_host_path_must_match_its_type() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let at = |name: &str| scratch.path().join(name).display().to_string();
    fs::create_dir(scratch.path().join("dir")).expect("made");
    fs::write(scratch.path().join("file"), "").expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path().join("socket")).expect("bound");
    for (path, kind, wrong) in [
        (at("unset"), "", None),
        (at("file"), "", None),
        (at("dir"), "Directory", None),
        (at("file"), "Directory", Some("a directory")),
        (at("nothing"), "Directory", Some("a directory")),
        (at("file"), "File", None),
        (at("dir"), "File", Some("a file")),
        (at("socket"), "Socket", None),
        (at("file"), "Socket", Some("a socket file")),
        ("/dev/null".into(), "CharDevice", None),
        (at("file"), "CharDevice", Some("a character device")),
        (at("file"), "BlockDevice", Some("a block device")),
        (at("new/deep"), "DirectoryOrCreate", None),
        (at("file"), "DirectoryOrCreate", Some("a directory")),
        (at("fresh"), "FileOrCreate", None),
        (at("dir"), "FileOrCreate", Some("a file")),
    ] {
        let pod = pod(&format!(
            "{{containers: [{{name: c, image: i}}], volumes: [{{name: v, hostPath: {{path: {path}, type: \"{kind}\"}}}}]}}"
        ));
        let result = check_host_paths(&Request::new(&pod, &Paths::new(scratch.path()), &[]));
        let expected = wrong.map(|wanted| {
            format!("MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: {path} is not {wanted}")
        });
        assert_eq!(result.err().map(|error| crate::error::chain(&error)), expected, "{path} {kind}");
    }
    let mode = |name: &str| fs::metadata(scratch.path().join(name)).expect("it was made").mode() & 0o7777;
    assert_eq!((mode("new/deep"), mode("unset"), mode("fresh")), (0o755, 0o755, 0o644));
    let pod = pod(&format!(
        "{{containers: [{{name: c, image: i}}], volumes: [{{name: v, hostPath: {{path: {}, type: FileOrCreate}}}}]}}",
        at("no/parent")
    ));
    let request = Request::new(&pod, &Paths::new(scratch.path()), &[]);
    let error = check_host_paths(&request).expect_err("the parent must exist");
    let error = crate::error::chain(&error);
    assert!(error.contains("No such file"), "{error}");
}

#[test]
fn removing_follows_no_link_and_knows_no_depth() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let outside = scratch.path().join("outside");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("precious"), "x").expect("written");
    let doomed = scratch.path().join("doomed");
    fs::create_dir(&doomed).expect("made");
    symlink(&outside, doomed.join("link")).expect("linked");
    symlink("/", doomed.join("root")).expect("linked");
    let mut deep = doomed.clone();
    for _ in 0..400 {
        deep = deep.join("d");
    }
    fs::create_dir_all(&deep).expect("made");
    for index in 0..3000 {
        fs::write(doomed.join(format!("f{index}")), "").expect("written");
    }
    tear_down(&doomed).expect("removed");
    assert!(!doomed.exists());
    assert!(outside.join("precious").exists());
    assert_eq!(fs::read_dir(scratch.path()).expect("read").count(), 1, "something was moved up and left");
}

/// Makes nested directories below `path`, deeper than a path can express.
fn make_nested(path: &Path, levels: usize) {
    use std::os::fd::AsRawFd;
    let mut at = fs::File::open(path).expect("it is there");
    for _ in 0..levels {
        nix::sys::stat::mkdirat(Some(at.as_raw_fd()), "d", nix::sys::stat::Mode::S_IRWXU).expect("made");
        at = fs::File::open(format!("/proc/self/fd/{}/d", at.as_raw_fd())).expect("opened");
    }
}

/// The thread that removes directories has 256 KiB of stack, and the agent has 1024 descriptors.
#[test]
fn removing_a_deep_tree_uses_bounded_stack_and_descriptors() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let doomed = scratch.path().join("doomed");
    fs::create_dir(&doomed).expect("made");
    make_nested(&doomed, 2_000);
    // The names to which directories are moved may be in use.
    fs::write(doomed.join(".deep-0"), "").expect("written");
    fs::create_dir_all(doomed.join(".deep-1/full")).expect("made");
    let path = doomed.clone();
    let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(move || tear_down(&path));
    thread.expect("started").join().expect("it has room").expect("removed");
    assert_eq!(fs::read_dir(scratch.path()).expect("read").count(), 0, "something was moved up and left");
}

#[test]
fn mounts_within_a_volume_are_unmounted_and_their_sources_stay_intact() {
    use nix::mount::{MsFlags, mount};
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (precious, doomed) = (scratch.path().join("precious"), scratch.path().join("doomed"));
    fs::create_dir_all(precious.join("dir")).expect("made");
    fs::write(precious.join("dir/file"), "x").expect("written");
    fs::create_dir_all(doomed.join("v/mounted")).expect("made");
    fs::write(doomed.join("v/file"), "").expect("written");
    let (source, target) = (precious.clone(), doomed.clone());
    // The mounts are in a mount namespace of this thread alone, and of the same file system, so that no
    // device number reveals them.
    let thread = std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("these tests need root");
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).expect("private");
        for _ in 0..2 {
            mount(Some(&source), &target.join("v/mounted"), none, MsFlags::MS_BIND, none).expect("bound");
            mount(Some(&source.join("dir/file")), &target.join("v/file"), none, MsFlags::MS_BIND, none)
                .expect("bound");
        }
        tear_down(&target)
    });
    thread.join().expect("it is well").expect("removed");
    assert!(!doomed.exists());
    assert_eq!(fs::read_to_string(precious.join("dir/file")).expect("it stays"), "x");
}

/// A pod that may write to `data` replaces a directory there by a link to another directory of the machine.
#[test]
fn creating_a_host_path_never_changes_the_mode_of_a_directory_swapped_in() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let (data, precious) = (scratch.path().join("data"), scratch.path().join("precious"));
    fs::create_dir_all(precious.join("new")).expect("made");
    fs::create_dir(&data).expect("made");
    fs::set_permissions(precious.join("new"), fs::Permissions::from_mode(0o700)).expect("set");
    let pod = pod(&format!(
        "{{containers: [{{name: c, image: i}}], volumes: [{{name: v, hostPath: {{path: {}, type: DirectoryOrCreate}}}}]}}",
        data.join("sub/new").display()
    ));
    let request = Request::new(&pod, &Paths::new(scratch.path()), &[]);
    let done = AtomicBool::new(false);
    let sub = data.join("sub");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if sub.join("new").symlink_metadata().is_ok() && fs::rename(&sub, data.join("aside")).is_ok()
                {
                    let _ = symlink(&precious, &sub);
                    let _ = fs::remove_dir_all(data.join("aside"));
                    let _ = fs::remove_file(&sub);
                }
            }
        });
        let mode = || fs::metadata(precious.join("new")).expect("it is there").mode() & 0o7777;
        for _ in 0..10_000 {
            // The check may fail because of the link, or because the directory was just moved.
            let _ = check_host_paths(&request);
        }
        done.store(true, Ordering::Relaxed);
        assert_eq!(mode(), 0o700);
    });
}

#[test]
fn a_volume_in_huge_pages_has_the_page_size_of_its_medium_or_of_the_request() {
    for (medium, expected) in [("HugePages", Some(2 << 20)), ("HugePages-1Gi", Some(1 << 30))] {
        let other = if medium == "HugePages" { "" } else { "hugepages-1Gi: 1Gi, " };
        let pod = pod(&format!(
            "{{containers: [{{name: c, image: i, resources: {{limits: {{{other}hugepages-2Mi: 4Mi, memory: 1Mi}}}}}}], volumes: [{{name: v, emptyDir: {{medium: {medium}, sizeLimit: 4Mi}}}}]}}"
        ));
        let volumes = memory_volumes(&pod, Some(1 << 20));
        assert_eq!((volumes[0].page_size, volumes[0].size), (expected, Some(4 << 20)), "{medium}");
    }
}
