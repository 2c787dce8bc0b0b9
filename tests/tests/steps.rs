//! Supervisors and their helpers are killed before each of their steps, one step a pod. A container never
//! runs twice at once, every run is counted, no recorded exit code is lost, and the pod continues as it
//! should. `cargo xtask long kills` does this for all steps, `cargo xtask check` for some, which
//! `NODLET_SEED` selects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nodlet_tests::steps::{Followed, Role, Step, Steps};
use nodlet_tests::upgrade::inode;
use nodlet_tests::{Device, demo_archive, manifest, seed, shard};
use serde_json::Value;

/// The number of pods on one device: with more, pods would wait for each other longer than a test waits.
const AT_ONCE: usize = 16;

/// The time that a pod may take to settle: it is killed and starts again after a back-off, among many others
/// whose every system call is traced.
const PATIENCE: Duration = Duration::from_secs(300);

/// The number of attempts at a step that was not reached: the number of steps depends on timing.
const ROUNDS: usize = 3;

/// The life of a pod of which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The container fails once, runs again, becomes ready by an exec probe, and is deleted.
    Service,
    /// As `Service`, in a PID namespace that the pod's containers share.
    Shared,
    /// The container runs once and exits with 3.
    Job,
    /// The container runs when its supervisor takes a newer binary over, and is deleted.
    Upgraded,
}

impl Kind {
    fn manifest(self, shared: &str, name: &str) -> String {
        let begins =
            format!("lock /one/{name} then append /one/{name}-starts run then print one then print two");
        let service = (
            format!("{begins} then fail-once /one/{name}-mark then print three then sleep"),
            format!(
                "startupProbe: {{exec: {{command: [/bin/demo, stat, /one/{name}-mark]}}, periodSeconds: 1, \
                 timeoutSeconds: 20, failureThreshold: 60}}\n"
            ),
        );
        let ((steps, probe), spec) = match self {
            Kind::Service => (service, "restartPolicy: Always"),
            Kind::Shared => (service, "restartPolicy: Always\nshareProcessNamespace: true"),
            Kind::Job => ((format!("{begins} then exit 3"), String::new()), "restartPolicy: Never"),
            Kind::Upgraded => {
                ((format!("{begins} then print three then sleep"), String::new()), "restartPolicy: Always")
            }
        };
        let more = format!("{probe}volumeMounts: [{{name: one, mountPath: /one}}]");
        manifest::single(
            name,
            &steps,
            &more,
            &format!("{spec}\nvolumes: [{{name: one, hostPath: {{path: {shared}}}}}]"),
        )
    }

    /// Whether the pod has reached the state in which it stays until it is deleted.
    fn is_settled(self, device: &Device, name: &str) -> bool {
        let pod = device.pod(name);
        match self {
            Kind::Service | Kind::Shared | Kind::Upgraded => {
                pod.is_ready() && pod.logs("app").contains("three\n")
            }
            Kind::Job => pod.phase() == "Failed",
        }
    }

    /// Whether a process of this role makes steps in the life of an undisturbed pod.
    fn has(self, role: Role) -> bool {
        match role {
            Role::Supervisor => true,
            Role::SandboxHelper | Role::StartHelper | Role::Intermediate | Role::Init => {
                self != Kind::Upgraded
            }
            Role::Pause => self == Kind::Shared,
            Role::ExecHelper => matches!(self, Kind::Service | Kind::Shared),
            Role::Trial | Role::Successor => self == Kind::Upgraded,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics with it")
}

/// Runs one pod for each aim, all on one device. Returns the steps of each pod.
fn live(kind: Kind, aims: &[Option<Step>]) -> Vec<Followed> {
    let mut device = Device::new();
    let binaries = ["first", "second"].map(|name| device.newer_binary(name));
    if kind == Kind::Upgraded {
        device.install(&binaries[0]);
    }
    device.start_agent();
    device.load_image(demo_archive());
    let (shared, here) = device.shared("one");
    let names: Vec<String> = (0..aims.len()).map(|number| format!("life-{number}")).collect();
    let aim_of: BTreeMap<String, Step> =
        names.iter().cloned().zip(aims).filter_map(|(name, aim)| Some((name, (*aim)?))).collect();
    let run_pods = device.path("/run/nodlet/pods");
    let recorded: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let note = recorded.clone();
    let known: Mutex<BTreeMap<String, Option<Step>>> = Mutex::default();
    let aim = move |uid: &str| {
        // Whether the end of the first run is on record when the process is killed.
        if run_pods.join(uid).join("exits/app_0").exists() {
            lock(&note).insert(uid.to_owned());
        }
        let find = || {
            let bytes = fs::read(run_pods.join(uid).join("pod.json")).ok()?;
            let pod: Value = serde_json::from_slice(&bytes).ok()?;
            aim_of.get(pod["object"]["metadata"]["name"].as_str()?).copied()
        };
        *lock(&known).entry(uid.to_owned()).or_insert_with(find)
    };
    let write_manifests = || {
        for name in &names {
            device.write_pod(name, &kind.manifest(&shared, name));
        }
    };
    let steps = if kind == Kind::Upgraded {
        write_manifests();
        for name in &names {
            device.wait_within(PATIENCE, &format!("{name} to settle"), || kind.is_settled(&device, name));
        }
        device.stop_agent();
        let supervisors = device.supervisors().into_iter().map(|(uid, supervisor)| (uid, supervisor.pid));
        let steps = Steps::follow_supervisors(supervisors.collect(), aim);
        device.install(&binaries[1]);
        device.start_agent();
        steps
    } else {
        let steps = Steps::follow(device.agent_pid(), aim);
        write_manifests();
        steps
    };
    let mut uids = Vec::new();
    for (name, aim) in names.iter().zip(aims) {
        let what = format!("{name} ({aim:?}) to settle");
        device.wait_within(PATIENCE, &what, || kind.is_settled(&device, name));
        let uid = device.pod(name).uid();
        let followed = steps.of(&uid);
        let seen = Seen {
            killed: followed.killed_before.as_ref().and(*aim).map(|step| step.role),
            on_record: lock(&recorded).contains(&uid),
            what: format!("{name}, {aim:?} before {:?}", followed.killed_before),
        };
        check(kind, &device, &here, name, &seen);
        if kind == Kind::Upgraded {
            let executes = device.supervisors().get(&uid).map(|supervisor| supervisor.executes);
            // A supervisor that was not upgraded continues as it was.
            let expected = &binaries[usize::from(seen.killed != Some(Role::Trial))];
            assert_eq!(executes, Some(inode(expected)), "{}", seen.what);
        }
        uids.push(uid);
    }
    for name in &names {
        device.remove_manifest(&format!("{name}.yaml"));
    }
    for name in &names {
        device.pod(name).wait_gone();
    }
    assert!(device.container_processes().is_empty());
    let twice: Vec<_> = names.iter().filter(|name| here.join(format!("{name}.twice")).exists()).collect();
    assert!(twice.is_empty(), "two at once: {twice:?}");
    // Collected before the device ends, since its processes are followed.
    uids.iter().map(|uid| steps.of(uid)).collect()
}

/// The outcome of a pod of which a process was to be killed.
struct Seen {
    /// The role of the process that was killed, if any.
    killed: Option<Role>,
    /// Whether the end of the first run was on record by then.
    on_record: bool,
    what: String,
}

/// Checks the state that a pod must have, whatever process was killed.
fn check(kind: Kind, device: &Device, here: &Path, name: &str, seen: &Seen) {
    let (was_killed, what) = (seen.killed.is_some(), &seen.what);
    let pod = device.pod(name);
    let app = pod.container("app");
    let starts = fs::read_to_string(here.join(format!("{name}-starts"))).unwrap_or_default().lines().count();
    let restarts = usize::try_from(app.restart_count()).expect("it has a status");
    assert!(starts <= restarts + 1, "{what}: it ran {starts} times, and {restarts} restarts are reported");
    let lost = (Value::from(137), Value::from("ContainerStatusUnknown"));
    // Only a supervisor that is alive can know that its container was killed.
    let was_killed_itself = |end: &(Value, Value)| end.0 == 137 && seen.killed != Some(Role::Supervisor);
    match kind {
        Kind::Service | Kind::Shared => {
            let last = (app.of_last("exitCode"), app.of_last("reason"));
            assert_eq!(pod.logs("app"), "one\ntwo\nthree\n", "{what}");
            if !was_killed {
                assert_eq!((starts, restarts), (2, 1), "{what}");
                assert_eq!(last, (1.into(), "Error".into()), "{what}");
                let before = device.nodlet(["logs", "-p", name]).ok();
                assert!(before.starts_with("one\ntwo\n"), "{what}: {before}");
            }
            assert!(last.0 == 1 || last == lost || was_killed_itself(&last), "{what}: {last:?}");
        }
        Kind::Job => {
            let end = (app.of_state("exitCode"), app.of_state("reason"));
            assert_eq!(restarts, 0, "{what}");
            if !was_killed || seen.on_record {
                assert_eq!(end, (3.into(), "Error".into()), "{what}");
                assert_eq!((starts, pod.logs("app").as_str()), (1, "one\ntwo\n"), "{what}");
            }
            assert!(end.0 == 3 || end == lost || was_killed_itself(&end), "{what}: {end:?}");
        }
        Kind::Upgraded => {
            assert_eq!(pod.logs("app"), "one\ntwo\nthree\n", "{what}");
            let is_lost = matches!(seen.killed, Some(Role::Supervisor | Role::Successor));
            assert_eq!((starts, restarts), if is_lost { (2, 1) } else { (1, 0) }, "{what}");
        }
    }
    let logs = device.path("/var/log/pods");
    for directory in fs::read_dir(logs).expect("it is there").flatten() {
        if !directory.file_name().to_string_lossy().starts_with(&format!("default_{name}_")) {
            continue;
        }
        for file in fs::read_dir(directory.path().join("app")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(file.path()).expect("it can be read");
            let whole = |line: &str| line.splitn(4, ' ').count() == 4;
            assert!(text.lines().all(whole) && (text.is_empty() || text.ends_with('\n')), "{what}: {text}");
        }
    }
}

/// All steps of an undisturbed pod. On a busy machine a pod may live for one probe more than another, so only
/// those steps are returned that each of a few pods makes.
fn steps_of(kind: Kind) -> Vec<Step> {
    const LIVES: usize = 3;
    let lives = live(kind, &[None; LIVES]);
    for role in Role::ALL {
        for followed in &lives {
            assert_eq!(followed.made.contains_key(&role), kind.has(role), "{role:?} of a {kind:?}");
        }
    }
    let made = |role| lives.iter().filter_map(|followed| followed.made.get(&role).copied()).min();
    let steps = |role| (1..=made(role).unwrap_or(0)).map(move |number| Step { role, number });
    Role::ALL.into_iter().flat_map(steps).collect()
}

/// Kills before each of these steps, on as many devices at once as the machine can run. Returns the steps at
/// which a process was killed.
fn kill_at(kind: Kind, wanted: &[Step]) -> BTreeSet<Step> {
    let covered = Mutex::new(BTreeSet::new());
    for _ in 0..ROUNDS {
        let left: Vec<Option<Step>> =
            wanted.iter().filter(|step| !lock(&covered).contains(*step)).copied().map(Some).collect();
        let chunks = Mutex::new(left.chunks(AT_ONCE));
        let work = || {
            while let Some(aims) = { lock(&chunks).next() } {
                let followed = live(kind, aims);
                let hit = aims.iter().zip(&followed).filter(|(_, pod)| pod.killed_before.is_some());
                let mut covered = lock(&covered);
                covered.extend(hit.filter_map(|(aim, _)| *aim));
                println!("{kind:?}: {} of {} so far", covered.len(), wanted.len());
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get() + 1) {
                scope.spawn(work);
            }
        });
    }
    covered.into_inner().expect("nobody panics with it")
}

fn whole(kind: Kind) {
    let (part, of) = shard();
    let all: Vec<Step> = steps_of(kind).into_iter().skip(part - 1).step_by(of).collect();
    let covered = kill_at(kind, &all);
    for role in Role::ALL.into_iter().filter(|role| kind.has(*role)) {
        let of = |steps: &mut dyn Iterator<Item = &Step>| steps.filter(|step| step.role == role).count();
        println!(
            "{kind:?}, {role:?}: killed at {} of {} steps",
            of(&mut covered.iter()),
            of(&mut all.iter())
        );
    }
    let left: Vec<&Step> = all.iter().filter(|step| !covered.contains(step)).collect();
    println!("{kind:?}: killed at {} of {} steps; not come to: {left:?}", covered.len(), all.len());
    // A step that only some pods make, such as a second probe, may not be reached again. The steps of the
    // other roles do not depend on timing.
    let hangs_on_time = |step: &Step| matches!(step.role, Role::Supervisor | Role::ExecHelper);
    assert!(left.iter().all(|step| hangs_on_time(step)), "a step was not come to");
    assert!(covered.len() * 100 >= all.len() * 97, "too few were come to");
}

#[test]
#[ignore = "takes long: cargo xtask long kills"]
fn killed_before_any_step_of_a_service_it_runs_on_and_never_twice() {
    whole(Kind::Service);
}

#[test]
#[ignore = "takes long: cargo xtask long kills"]
fn killed_before_any_step_of_a_service_that_shares_its_processes_it_runs_on_and_never_twice() {
    whole(Kind::Shared);
}

#[test]
#[ignore = "takes long: cargo xtask long kills"]
fn killed_before_any_step_of_a_job_it_runs_once_and_its_end_is_reported() {
    whole(Kind::Job);
}

#[test]
#[ignore = "takes long: cargo xtask long kills"]
fn killed_before_any_step_of_an_upgrade_it_goes_on_or_runs_again() {
    whole(Kind::Upgraded);
}

/// Kills before a few of the steps.
fn some(kind: Kind) {
    let mut seed = seed();
    let all = steps_of(kind);
    // Always includes the steps at which helper and container wait for each other: either may die first.
    let mut chosen = Vec::new();
    for role in [Role::StartHelper, Role::Init, Role::Pause, Role::Trial, Role::Successor] {
        chosen.extend(all.iter().rev().filter(|step| step.role == role).take(2).copied().map(Some));
    }
    chosen.extend((0..4).map(|_| Some(*seed.choose(&all))));
    let hit = live(kind, &chosen).iter().filter(|pod| pod.killed_before.is_some()).count();
    println!("{kind:?}: killed at {hit} of {} chosen out of {} steps: {chosen:?}", chosen.len(), all.len());
    assert!(hit > 0, "nothing was killed: {chosen:?}");
}

#[test]
fn killed_before_some_steps_of_a_service_it_runs_on_and_never_twice() {
    some(Kind::Service);
}

#[test]
fn killed_before_some_steps_of_a_job_it_runs_once_and_its_end_is_reported() {
    some(Kind::Job);
}

#[test]
fn killed_before_some_steps_of_a_service_that_shares_its_processes_it_runs_on_and_never_twice() {
    some(Kind::Shared);
}

#[test]
fn killed_before_some_steps_of_an_upgrade_it_goes_on_or_runs_again() {
    some(Kind::Upgraded);
}
