//! Special files in the places of files and directories of nodlet: see `docs/guarantees.md`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nodlet_tests::{Device, demo_archive, manifest};

use super::{Precious, backup, link_in_the_place_of};

/// Makes something of this kind at a path.
fn make(kind: &str, path: &Path, precious: &Precious) {
    let node = |kind: SFlag, number: u64| -> io::Result<()> {
        Ok(mknod(path, kind, Mode::S_IRUSR | Mode::S_IWUSR, number)?)
    };
    let made = match kind {
        "fifo" => node(SFlag::S_IFIFO, 0),
        "socket" => node(SFlag::S_IFSOCK, 0),
        "device" => node(SFlag::S_IFCHR, makedev(1, 5)),
        "file" => fs::write(path, ""),
        "directory" => fs::create_dir(path),
        "full-directory" => fs::create_dir_all(path.join("within")),
        "link to a file" => symlink(precious.path.join("app/notes"), path),
        "link" => symlink(&precious.path, path),
        "dangling link" => symlink("/nothing", path),
        _ => unreachable!("{kind}"),
    };
    made.expect("the directory can be written to");
}

/// Removes whatever is at a path.
fn remove(path: &Path) {
    let is_directory = fs::symlink_metadata(path).expect("it is there").is_dir();
    if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it can be removed");
}

/// Moves a directory to the name of [`backup`], and makes something of this kind in its place.
fn replace(kind: &str, directory: &Path, precious: &Precious) {
    fs::rename(directory, backup(directory)).expect("it is there");
    make(kind, directory, precious);
}

/// Puts a file or directory back that is at the name of [`backup`].
fn put_back(path: &Path) {
    remove(path);
    fs::rename(backup(path), path).expect("it can be renamed");
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// A pod with the UID `uid-of-NAME`.
fn pod_with_uid(name: &str, steps: &str) -> String {
    manifest::with_metadata(&manifest::pod(name, steps), &format!("uid: uid-of-{name}"))
}

/// Stops the agent, and starts the next one. Returns the length of the log of the agents before.
fn next_agent(device: &mut Device) -> usize {
    device.stop_agent();
    let logged = device.agent_log().len();
    device.start_agent();
    logged
}

/// Starts an agent, which must end with this text in its log.
#[track_caller]
fn assert_refused(device: &mut Device, what: &str, text: &str) {
    let logged = device.agent_log().len();
    device.launch_agent();
    assert_eq!(device.agent_ended(), 1, "{what}");
    let log = &device.agent_log()[logged..];
    assert!(log.contains(text), "{what}: {text}: {log}");
}

#[test]
fn a_link_in_the_place_of_a_pods_directory_is_neither_written_through_nor_emptied() {
    let device = Device::start();
    let precious = Precious::new(&device);
    let place = device.path("/var/lib/nodlet/pods/uid-of-first");
    let expected = format!("{}: it is not a directory: remove it", place.display());
    // A link before the pod starts.
    fs::create_dir_all(place.parent().expect("of all pods")).expect("made");
    symlink(&precious.path, &place).expect("a link can be made");
    let first = device.write_pod("first", &pod_with_uid("first", "wait /tmp/go"));
    first.wait_event(&expected);
    precious.assert_unchanged("before the start");
    fs::remove_file(&place).expect("it is a link");
    first.wait_ready();
    // A link while the pod runs, before its container starts again.
    link_in_the_place_of(&place, &precious.path);
    first.tell("app", "/tmp/go");
    first.wait_event(&expected);
    precious.assert_unchanged("before another run");
    // The removal of the pod removes the link only.
    device.remove_pod("first");
    assert!(fs::symlink_metadata(&place).is_err());
    precious.assert_unchanged("after the end");
}

#[test]
fn special_files_in_the_place_of_nodlets_own_hold_up_only_their_pods() {
    const KINDS: [&str; 5] = ["fifo", "socket", "device", "directory", "link to a file"];
    let mut device = Device::start();
    let precious = Precious::new(&device);
    let mut held_up = Vec::new();
    for kind in KINDS {
        for file in ["hostname", "etc-hosts", "resolv.conf"] {
            let pod = format!("{kind}-{file}").replace(['.', ' '], "-");
            let directory = device.path(&format!("/var/lib/nodlet/pods/uid-of-{pod}"));
            fs::create_dir_all(&directory).expect("made");
            make(kind, &directory.join(file), &precious);
            device.write_pod(&pod, &pod_with_uid(&pod, "sleep"));
            held_up.push((pod, directory.join(file)));
        }
    }
    device.run_pod("other", "sleep").wait_ready();
    for (pod, path) in &held_up {
        device.pod(pod).wait_event(&format!("{}: it is not a regular file", path.display()));
        assert!(!device.pod(pod).is_ready(), "{pod}");
    }
    device.nodlet(["healthcheck"]).ok();
    let (mended, path) = &held_up[0];
    fs::remove_file(path).expect("it is there");
    device.pod(mended).wait_ready();

    let index = device.path("/var/lib/nodlet/images/index.json");
    for kind in KINDS {
        replace(kind, &index, &precious);
        let refusal = device.nodlet(["image", "ls"]).refused();
        assert!(refusal.contains("it is not a regular file"), "{kind}: {refusal}");
        device.run_pod("next", "sleep");
        device.wait_for("the pod to be handled", || device.pod("next").object().is_some());
        device.nodlet(["healthcheck"]).ok();
        device.remove_pod("next");
        put_back(&index);
    }
    device.run_pod("last", "sleep").wait_ready();
    remove(&index);
    make("fifo", &index, &precious);
    next_agent(&mut device);
    device.pod("last").wait_ready();
    device.load_image(demo_archive());
    assert!(fs::symlink_metadata(&index).expect("the load wrote it").is_file());
    remove(&index);
    make("fifo", &index, &precious);
    device.stop_agent();
    device.nodlet(["down"]).ok();
    precious.assert_unchanged("at the end");
}

#[test]
fn a_special_file_in_the_place_of_a_manifest_ends_no_pod_and_an_event_says_what_to_do() {
    // At no time is nothing in the place of the manifest.
    let rename_over = |path: &Path, make: &dyn Fn(&Path)| {
        let new = path.with_file_name(".new");
        make(&new);
        fs::rename(new, path).expect("it is the same directory");
    };
    for kind in ["fifo", "link"] {
        let mut device = Device::start();
        let precious = Precious::new(&device);
        let text = |name: &str| manifest::pod_with(name, "sleep", &manifest::empty_dir("data"));
        device.write_pod("site", &text("site"));
        device.apply(&text("keep"));
        let pods = [
            ("site", device.path("/etc/nodlet/manifests/site.yaml")),
            ("keep", device.path("/var/lib/nodlet/manifests/default_keep.json")),
        ];
        let before = pods.each_ref().map(|(name, path)| {
            let pod = device.pod(name);
            pod.wait_ready();
            let data = pod.empty_dir("data").join("file");
            fs::write(&data, "kept").expect("the emptyDir exists");
            (data, pod.born("app"), fs::read(path).expect("it is there"))
        });
        pods.iter().for_each(|(_, path)| rename_over(path, &|path| make(kind, path, &precious)));
        let new = pods[0].1.with_file_name("new.yaml");
        make(kind, &new, &precious);
        let expected =
            |path: &Path| format!("{}: it is not a regular file: replace it by one", path.display());
        for is_next_agent in [false, true] {
            let logged = if is_next_agent { next_agent(&mut device) } else { 0 };
            for text in pods.iter().map(|(_, path)| path).chain([&new]).map(|path| expected(path)) {
                device.wait_for(&text, || device.agent_log()[logged..].contains(&text));
            }
            for ((name, path), (data, born, _)) in pods.iter().zip(&before) {
                let pod = device.pod(name);
                // The next agent does not know which pod a manifest had that it never read.
                if !is_next_agent {
                    pod.wait_event(&expected(path));
                }
                pod.wait_ready();
                assert_eq!(pod.born("app"), *born, "{kind}: {name}");
                assert_eq!(fs::read_to_string(data).expect("it is kept"), "kept", "{kind}");
            }
        }
        for ((_, path), (.., text)) in pods.iter().zip(&before) {
            rename_over(path, &|new| fs::write(new, text).expect("written"));
        }
        device.run_pod("last", "sleep").wait_ready();
        for ((name, path), (_, born, _)) in pods.iter().zip(&before) {
            assert_eq!(device.pod(name).born("app"), *born, "{kind}: {name}");
            fs::remove_file(path).expect("it is there");
            device.pod(name).wait_gone();
        }
    }
}

/// The directories of nodlet with content that nodlet can make anew.
const SCRATCH: [&str; 6] = [
    "run/nodlet/leases",
    "run/nodlet/locks",
    "run/nodlet/pods",
    "run/nodlet/statuses",
    "var/lib/nodlet/images/staging",
    "var/lib/nodlet/reserve",
];

/// The directories of nodlet with content that nobody can make anew.
const STATE: [&str; 7] = [
    "run/nodlet",
    "run/nodlet/manifests",
    "var/lib/nodlet",
    "var/lib/nodlet/images",
    "var/lib/nodlet/manifests",
    "var/lib/nodlet/pods",
    "var/lib/nodlet/records",
];

#[test]
fn a_special_file_in_the_place_of_a_directory_of_scratch_files_is_removed_and_pods_run() {
    let mut device = Device::start();
    let precious = Precious::new(&device);
    device.run_pod("web", "sleep").wait_ready();
    let places = SCRATCH.map(|place| device.path(place));
    let reserve = &places[5];
    device.wait_for("the reserve", || reserve.exists());
    for kind in ["fifo", "file", "link", "dangling link"] {
        let born = device.pod("web").born("app");
        device.stop_agent();
        places.iter().for_each(|place| replace(kind, place, &precious));
        let logged = device.agent_log().len();
        device.start_agent();
        device.pod("web").wait_ready();
        assert_ne!(device.pod("web").born("app"), born, "{kind}: its supervisor is not found");
        device.run_pod("next", "sleep").wait_ready();
        device.load_image(demo_archive());
        for place in &places {
            device
                .wait_for(&format!("{kind}: {} to be a directory", place.display()), || is_directory(place));
            let text = format!("removed {}, which was not a directory", place.display());
            assert_eq!(device.agent_log()[logged..].matches(&text).count(), 1, "{kind}: {text}");
        }
        device.remove_pod("next");
        precious.assert_unchanged(kind);
        places.iter().for_each(|place| remove(&backup(place)));
        // `nodlet down` without an agent does the same.
        device.stop_agent();
        for place in &places {
            remove(place);
            make(kind, place, &precious);
        }
        device.nodlet(["down"]).ok();
        precious.assert_unchanged(kind);
        device.start_agent();
        device.pod("web").wait_ready();
        device.wait_for("the reserve", || reserve.is_dir());
    }
}

#[test]
fn a_special_file_in_the_place_of_a_directory_of_state_is_refused_with_its_path_and_a_remedy() {
    let mut device = Device::start();
    let precious = Precious::new(&device);
    let born = device.run_pod("web", "sleep").wait_ready().born("app");
    device.stop_agent();
    for place in STATE {
        for kind in ["fifo", "file", "link"] {
            // All of the data may be elsewhere.
            if kind == "link" && ["run/nodlet", "var/lib/nodlet"].contains(&place) {
                continue;
            }
            let (what, path) = (format!("{kind} in the place of {place}"), device.path(place));
            replace(kind, &path, &precious);
            let expected = format!("{}: it is not a directory: remove it", path.display());
            assert_refused(&mut device, &what, &expected);
            let refusal = device.nodlet(["down"]).refused();
            assert!(refusal.contains(&expected), "{what}: down: {refusal}");
            precious.assert_unchanged(&what);
            put_back(&path);
        }
    }
    // Nothing is lost, and the pod has run on.
    device.start_agent();
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").born("app"), born);
}

#[test]
fn a_special_file_in_the_place_of_the_lock_or_the_socket_of_an_agent_is_named_or_replaced() {
    let mut device = Device::new();
    let precious = Precious::new(&device);
    let run = device.path("/run/nodlet");
    fs::create_dir_all(&run).expect("made");
    for (name, kind, text) in [
        ("agent.lock", "fifo", "it is not a regular file: remove it"),
        ("agent.lock", "socket", "it is not a regular file: remove it"),
        ("agent.lock", "directory", "it is not a regular file: remove it"),
        ("api.sock", "directory", "it is a directory: remove it"),
        ("api.sock.new", "directory", "it is a directory: remove it"),
    ] {
        let path = run.join(name);
        make(kind, &path, &precious);
        assert_refused(&mut device, name, &format!("{}: {text}", path.display()));
        assert_eq!(is_directory(&path), kind == "directory", "it stays");
        remove(&path);
    }
    for name in ["api.sock", "api.sock.new"] {
        for kind in ["fifo", "file"] {
            let _ = fs::remove_file(run.join("api.sock"));
            make(kind, &run.join(name), &precious);
            device.start_agent();
            device.nodlet(["healthcheck"]).ok();
            device.stop_agent();
        }
    }
}

#[test]
fn a_pod_is_deleted_at_once_behind_special_files_among_locks_and_leases() {
    // A removal that fails is tried again after 10 s.
    const AT_ONCE: Duration = Duration::from_secs(8);
    let mut device = Device::start();
    let precious = Precious::new(&device);
    let (locks, leases) = (device.path("/run/nodlet/locks"), device.path("/run/nodlet/leases"));
    for kind in ["fifo", "file", "full-directory", "link"] {
        for place in ["lock", "lease", "image", "other", "locks", "leases"] {
            let what = format!("{kind} in the place of the {place}");
            device.apply(&manifest::pod("web", "sleep"));
            device.pod("web").wait_ready();
            let uid = device.pod("web").uid();
            let mut images = fs::read_dir(&leases).expect("read").flatten().map(|entry| entry.path());
            let image = images.find(|path| path.join(&uid).exists()).expect("the pod's lease");
            let path = match place {
                "lock" => locks.join("default_web"),
                "lease" => image.join(&uid),
                "image" => image,
                "locks" => locks.clone(),
                "leases" => leases.clone(),
                _ => locks.join(kind),
            };
            if place == "other" {
                make(kind, &leases.join(kind), &precious);
            } else {
                remove(&path);
            }
            make(kind, &path, &precious);
            let mut deletion = device.command(&["delete", "pod", "web", "--now"]);
            let mut deletion = deletion.spawn().expect("nodlet can be run");
            device.wait_within(AT_ONCE, &what, || deletion.try_wait().expect("a child").is_some());
            assert!(deletion.wait().expect("a child").success(), "{what}");
            precious.assert_unchanged(&what);
            // What is in the place of all leases stays until an agent starts.
            if place == "leases" {
                next_agent(&mut device);
                assert!(is_directory(&leases), "{what}: it is made anew");
            }
        }
    }
}

#[test]
fn the_image_of_a_running_pod_stays_behind_a_special_file_in_the_place_of_the_leases() {
    let mut device = Device::start();
    let precious = Precious::new(&device);
    let leases = device.path("/run/nodlet/leases");
    let apply = |device: &Device, name: &str| drop(device.apply(&manifest::pod(name, "sleep")));
    for name in ["one", "two"] {
        apply(&device, name);
        device.pod(name).wait_ready();
    }
    let born = device.pod("one").born("app");
    replace("fifo", &leases, &precious);
    let expected = format!("{}: it is not a directory: restart the agent", leases.display());
    device.nodlet(["delete", "pod", "two"]).ok();
    apply(&device, "two");
    let two = device.pod("two");
    device.wait_for("the reason", || two.has_event(&expected) || two.is_ready());
    device.nodlet(["delete", "pod", "two"]).ok();
    device.nodlet(["image", "rm", "localhost/demo:1"]).refused_with(&expected);
    apply(&device, "two");
    next_agent(&mut device);
    device.pod("two").wait_ready();
    device.nodlet(["delete", "pod", "two"]).ok();
    assert_eq!(device.pod("one").born("app"), born);
    device
        .nodlet(["image", "rm", "localhost/demo:1"])
        .refused_with("in use by default/one; delete the pods first");
    device.nodlet(["delete", "pod", "one"]).ok();
    device.nodlet(["image", "rm", "localhost/demo:1"]).ok();
}

#[test]
fn a_pod_with_a_link_in_the_place_of_its_run_time_directory_does_not_start_and_says_why() {
    let device = Device::start();
    let precious = Precious::new(&device);
    let place = device.path("/run/nodlet/pods/uid-of-web");
    symlink(&precious.path, &place).expect("a link can be made");
    let web = device.write_pod("web", &pod_with_uid("web", "sleep"));
    web.wait_event(&format!("{}: it is not a directory: remove it", place.display()));
    precious.assert_unchanged("before the start");
    // What failed is removed before the pod starts again, and so is the link.
    web.wait_ready();
    device.remove_pod("web");
    precious.assert_unchanged("after the end");
}
