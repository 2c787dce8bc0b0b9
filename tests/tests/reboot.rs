//! State after a power cut: manifests, records and logs remain, and no process runs. A finished pod stays
//! finished, an interrupted container is reported as interrupted, and all other pods continue where they
//! were.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nodlet_tests::{Device, manifest};
use serde_json::Value;

/// A pod whose container adds a line to `/one/NAME` in each run.
fn noted(shared: &str, name: &str, policy: &str, steps: &str) -> String {
    manifest::single(
        name,
        &format!("print up then append /one/{name} run then {steps}"),
        "volumeMounts: [{name: one, mountPath: /one}, {name: scratch, mountPath: /scratch}]",
        &format!(
            "restartPolicy: {policy}\nvolumes: [{{name: one, hostPath: {{path: {shared}}}}}, {{name: scratch, emptyDir: {{}}}}]"
        ),
    )
}

/// Writes pods of [`noted`] with these names, policies and steps.
fn write_all(device: &Device, pods: &[(&str, &str, &str)]) {
    let (shared, _) = device.shared("one");
    for (name, policy, steps) in pods {
        device.write_pod(name, &noted(&shared, name, policy, steps));
    }
}

/// The number of runs of the container of `noted`.
fn runs(here: &Path, name: &str) -> usize {
    fs::read_to_string(here.join(name)).unwrap_or_default().lines().count()
}

/// A pod's record on flash; `Null` if there is none.
fn record(device: &Device, uid: &str) -> Value {
    let bytes = fs::read(device.path(&format!("/var/lib/nodlet/records/{uid}.json"))).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Waits until the record on flash counts this many started runs of the container.
fn wait_recorded(device: &Device, pod: &str, attempts: u64) {
    let uid = device.pod(pod).uid();
    device.wait_for(&format!("{attempts} runs of {pod} to be on flash"), || {
        record(device, &uid)["containers"][0]["attempts"] == attempts
    });
}

/// The paths of everything on disk that belongs to the pod with this uid.
fn on_disk(device: &Device, uid: &str) -> Vec<String> {
    let mut found = Vec::new();
    for directory in
        ["/var/lib/nodlet/pods", "/var/lib/nodlet/records", "/var/log/pods", "/var/log/containers"]
    {
        for entry in fs::read_dir(device.path(directory)).expect("it is there").flatten() {
            // The links are named after pod and container; the uid is in their targets.
            let target = fs::read_link(entry.path()).unwrap_or_default();
            if format!("{}{}", entry.path().display(), target.display()).contains(uid) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    found
}

#[test]
fn after_a_power_cut_finished_pods_stay_finished_and_others_follow_their_restart_policy() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    write_all(
        &device,
        &[
            ("done", "OnFailure", "exit 0"),
            ("broken", "Never", "exit 3"),
            ("long", "Never", "sleep"),
            ("job", "OnFailure", "sleep"),
            ("gone", "Always", "sleep"),
        ],
    );
    // No manifest file names this pod: it is applied.
    let always = noted(&shared, "always", "Always", "fail-once /scratch/mark then sleep");
    device.apply(&always);

    device.pod("done").wait_phase("Succeeded");
    device.pod("broken").wait_phase("Failed");
    device.wait_all_ready(["long", "job", "gone", "always"]);
    device.wait_for("the second run", || runs(&here, "always") == 2);
    for (name, attempts) in [("done", 1), ("broken", 1), ("long", 1), ("job", 1), ("gone", 1), ("always", 2)]
    {
        wait_recorded(&device, name, attempts);
    }
    let before = |name: &str| (device.pod(name).uid(), device.pod(name).status()["startTime"].clone());
    let names = ["done", "broken", "long", "job", "always"];
    let were = names.map(before);
    let gone = device.pod("gone").uid();
    assert!(on_disk(&device, &gone).len() >= 4, "{:?}", on_disk(&device, &gone));
    assert_eq!(device.pod("always").container("app").restart_count(), 1);

    device.cut_power();
    assert!(device.container_processes().is_empty());
    device.remove_manifest("gone.yaml");
    device.write_manifest("bad.yaml", "kind: Pod");
    device.start_agent();

    device.wait_all_ready(["always", "job"]);
    device.pod("long").wait_phase("Failed");
    assert_eq!(
        names.map(|name| (device.pod(name).uid(), device.pod(name).status()["startTime"].clone())),
        were
    );

    let ended = |name: &str| {
        let app = device.pod(name).container("app");
        (device.pod(name).phase(), app.exit_code(), app.reason(), app.restart_count())
    };
    assert_eq!(ended("done"), ("Succeeded".into(), Some(0), "Completed".into(), 0));
    assert_eq!(ended("broken"), ("Failed".into(), Some(3), "Error".into(), 0));
    assert_eq!(ended("long"), ("Failed".into(), Some(137), "ContainerStatusUnknown".into(), 0));
    for (name, restarts) in [("always", 2), ("job", 1)] {
        let app = device.pod(name).container("app");
        assert_eq!(app.restart_count(), restarts, "{name}: the run that was cut off counts");
        assert_eq!(
            (app.of_last("exitCode"), app.of_last("reason")),
            (137.into(), "ContainerStatusUnknown".into())
        );
    }
    device.wait_for("both to have begun", || (runs(&here, "always"), runs(&here, "job")) == (3, 2));
    for name in ["done", "broken", "long"] {
        assert_eq!(runs(&here, name), 1, "{name} ran again");
        assert_eq!(device.pod(name).logs("app"), "up\n", "the log of {name} outlives the boot");
    }
    assert_eq!(
        fs::read(device.path(&format!(
            "/var/lib/nodlet/pods/{}/volumes/kubernetes.io~empty-dir/scratch/mark",
            were[4].0
        )))
        .ok(),
        Some(b"failed\n".to_vec()),
        "an emptyDir lives as long as its pod"
    );

    assert!(device.pod("gone").object().is_none());
    // The faulty file may be the one that defines the pod, so its data is kept until all files are valid.
    assert!(!on_disk(&device, &gone).is_empty());
    device.remove_manifest("bad.yaml");
    device.wait_for("all that gone left to be swept", || on_disk(&device, &gone).is_empty());
    assert_eq!(runs(&here, "gone"), 1);
    assert_eq!(device.container_processes().len(), 2);
}

#[test]
fn a_record_that_cannot_be_read_makes_no_pod_run_that_may_not_run_again() {
    let mut device = Device::start();
    let (_, here) = device.shared("one");
    write_all(
        &device,
        &[
            ("done", "Never", "exit 0"),
            ("torn", "Never", "exit 0"),
            ("long", "Never", "sleep"),
            ("web", "Always", "sleep"),
        ],
    );
    for name in ["done", "torn"] {
        device.pod(name).wait_phase("Succeeded");
    }
    device.wait_all_ready(["long", "web"]);
    let names = ["done", "torn", "long", "web"];
    for name in names {
        wait_recorded(&device, name, 1);
    }
    let paths =
        names.map(|name| device.path(&format!("/var/lib/nodlet/records/{}.json", device.pod(name).uid())));
    let damage = || {
        for path in &paths {
            fs::remove_file(path).expect("it is there");
            fs::write(path, "{\"version\":1,").expect("there is space");
        }
        fs::remove_file(&paths[0]).expect("it is there");
        // The file's bytes cannot be read either: the path becomes a link to itself.
        std::os::unix::fs::symlink(&paths[0], &paths[0]).expect("it is gone");
    };

    // Supervisors know the pods that are running.
    device.stop_agent();
    damage();
    device.start_agent();
    for name in ["long", "web"] {
        device.pod(name).wait_ready();
        wait_recorded(&device, name, 1);
    }
    assert_eq!(names.map(|name| runs(&here, name)), [1; 4]);

    device.cut_power();
    damage();
    device.start_agent();
    for name in ["done", "torn", "long"] {
        let pod = device.pod(name).wait_phase("Failed");
        assert_eq!(pod.status()["reason"], "ContainerStatusUnknown");
        let message = pod.status()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(&format!("/records/{}.json", pod.uid())), "{message}");
    }
    device.pod("web").wait_ready();
    device.wait_for("web to run again", || runs(&here, "web") == 2);
    assert_eq!(names.map(|name| runs(&here, name)), [1, 1, 1, 2]);
    let uids = names.map(|name| device.pod(name).uid());
    for name in names {
        device.remove_manifest(&format!("{name}.yaml"));
    }
    device.wait_for("all of them to go", || uids.iter().all(|uid| on_disk(&device, uid).is_empty()));
}

#[test]
fn an_agent_that_starts_again_and_finds_all_as_it_was_writes_nothing_to_flash() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    write_all(&device, &[("done", "Never", "exit 0"), ("web", "Always", "sleep")]);
    let again = noted(&shared, "again", "Always", "fail-once /scratch/mark then sleep");
    device.apply(&again);
    device.pod("done").wait_phase("Succeeded");
    device.pod("web").wait_ready();
    device.wait_for("the second run", || runs(&here, "again") == 2);
    for (name, attempts) in [("done", 1), ("web", 1), ("again", 2)] {
        wait_recorded(&device, name, attempts);
    }

    let flash = Flash::watch(&device);
    device.stop_agent();
    device.start_agent();
    device.wait_all_ready(["web", "again"]);
    // Differences from the record on flash are written after a delay: the record of a pod that was created
    // after the agent's start is written after everything that the agent had to write by then.
    let uid = device.write_pod("late", &noted(&shared, "late", "Always", "sleep")).wait_ready().uid();
    wait_recorded(&device, "late", 1);
    let is_late = |line: &String| line.contains(&uid) || line.contains("late.yaml");
    let (late, others): (Vec<String>, Vec<String>) = flash.written().into_iter().partition(is_late);
    assert!(late.iter().any(|line| line.contains("records")), "the watch sees nothing: {late:#?}");
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn pods_are_cleaned_up_and_restarted_after_all_processes_were_killed() {
    let mut device = Device::start();
    let (shared, here) = device.shared("one");
    for (name, policy) in [("web", "Always"), ("long", "Never"), ("gone", "Always")] {
        device.write_pod(name, &noted(&shared, name, policy, "sleep"));
    }
    for name in ["web", "long", "gone"] {
        device.pod(name).wait_ready();
        device.wait_for("it to have begun", || runs(&here, name) == 1);
    }
    let gone = device.pod("gone").uid();
    let cgroups = |device: &Device| {
        device.cgroups().iter().filter(|path| path.display().to_string().contains(&gone)).count()
    };

    device.kill_everything();
    assert!(device.container_processes().is_empty());
    assert!(cgroups(&device) > 0 && device.path(&format!("/run/nodlet/pods/{gone}")).exists());
    device.remove_manifest("gone.yaml");
    device.start_agent();

    device.wait_for("web to run again", || runs(&here, "web") == 2);
    device.pod("web").wait_ready();
    assert_eq!(device.pod("web").container("app").restart_count(), 1);
    device.pod("long").wait_phase("Failed");
    let app = device.pod("long").container("app");
    assert_eq!((app.exit_code(), app.reason().as_str()), (Some(137), "ContainerStatusUnknown"));
    device.wait_for("nothing of gone to be left", || {
        cgroups(&device) == 0
            && on_disk(&device, &gone).is_empty()
            && !device.path(&format!("/run/nodlet/pods/{gone}")).exists()
    });
    assert!(device.pod("gone").object().is_none());
    assert_eq!((runs(&here, "long"), runs(&here, "gone")), (1, 1));
}

#[test]
fn unknown_entries_of_the_run_directory_are_removed_at_the_next_start() {
    let mut device = Device::start();
    device.run_pod("web", "sleep").wait_ready();
    let born = device.pod("web").born("app");
    device.stop_agent();
    let pods = device.path("/run/nodlet/pods");
    fs::write(pods.join("notes.txt"), "not ours").expect("written");
    fs::create_dir(pods.join("nobody")).expect("made");
    std::os::unix::fs::symlink(device.path("/etc"), pods.join("elsewhere")).expect("linked");
    std::os::unix::fs::symlink("/nowhere", pods.join("dangling")).expect("linked");
    device.start_agent();
    let names = || -> Vec<String> {
        let entries = fs::read_dir(&pods).expect("it is there").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let uid = device.pod("web").uid();
    device.wait_for("only the pod to be left", || names() == [uid.as_str()]);
    assert!(device.manifests().join("web.yaml").exists(), "a link is removed, not what it leads to");
    assert_eq!(device.pod("web").born("app"), born);
    assert!(device.agent_log().contains("notes.txt is not a directory of a pod; removing it"));
}

/// Watches writes to `/var` and `/etc` of a device, except to logs, which continue to grow.
struct Flash {
    inotify: Inotify,
    watches: BTreeMap<WatchDescriptor, PathBuf>,
}

impl Flash {
    fn watch(device: &Device) -> Flash {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).expect("the kernel has inotify");
        let mut flash = Flash { inotify, watches: BTreeMap::new() };
        for path in ["/var/lib/nodlet", "/etc", "/usr"] {
            flash.watch_below(&device.path(path));
        }
        flash
    }

    fn watch_below(&mut self, directory: &Path) {
        let what = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_DONT_FOLLOW;
        let Ok(watch) = self.inotify.add_watch(directory, what) else { return };
        self.watches.insert(watch, directory.to_owned());
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.watch_below(&entry.path());
            }
        }
    }

    /// A line with the path for each write since the watch began.
    fn written(&self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Ok(events) = self.inotify.read_events() {
            for event in events {
                assert!(!event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW), "more than the kernel tells");
                let directory = self.watches.get(&event.wd).cloned().unwrap_or_default();
                let path = event.name.map_or(directory.clone(), |name| directory.join(name));
                lines.push(format!("{:?} {}", event.mask, path.display()));
            }
        }
        lines
    }
}
