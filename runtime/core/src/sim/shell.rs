//! The state of a pod in an agent's shell, and the files that the shell writes for the next agent: the record
//! on flash, and next to the supervisor's files those that do not outlive the boot. They are serialised as by
//! the shell, and parsed again by the next agent. The status that an agent showed before it was killed is
//! compared with the first one of the next agent.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::Value;

use super::{Happening, Sim, WorldSandbox, started_for};
use crate::facts::*;
use crate::pod::PodState;
use crate::record_file::{self, Admitted};
use crate::spec::*;
use crate::time::{Anchor, Instant};

/// The files of one pod below the run-time directory, and the state of the pod in the shell.
#[derive(Clone, Debug, Default)]
pub(super) struct PodFiles {
    /// When the pod's directory was created.
    created: Option<Instant>,
    /// The handover of the status, which is in a directory of its own. It is serialised when it is read, since most
    /// handovers are replaced unread.
    status: Option<StatusHandover>,
    /// The newest run of each container that the supervisor was asked for.
    facts: BTreeMap<ContainerIndex, u32>,
    /// The status that is shown, if any.
    shown: Option<Rc<Value>>,
    /// The deletion that is shown of the pod with this index.
    deletion: Option<(PodIndex, Deletion)>,
    /// Whether the pod was deleted by force.
    is_hidden: bool,
}

/// The status of a pod that was shown when its agent was killed.
pub(super) struct Shown {
    pod: Rc<Pod>,
    status: Rc<Value>,
    deletion: Option<Deletion>,
    /// Whether the agent had received all reports.
    is_up_to_date: bool,
}

impl PodFiles {
    pub(super) fn make_directory(&mut self, now: Instant) {
        self.created = Some(now);
    }

    pub(super) fn remove_directory(&mut self) {
        (self.created, self.facts) = (None, BTreeMap::new());
    }

    /// Records that the pod was deleted by force.
    pub(super) fn hide(&mut self) {
        self.is_hidden = true;
    }

    /// The handover, as the next agent reads it.
    pub(super) fn read_status(&self) -> Option<Box<StatusHandover>> {
        let bytes =
            self.status.as_ref().map(|status| serde_json::to_vec(status).expect("no map has odd keys"));
        bytes.map(|bytes| serde_json::from_slice(&bytes).expect("a status"))
    }

    /// Checks that the status, the handover and the deletion of the pod are those that are shown.
    pub(super) fn check_shown(&self, state: &PodState, log: &str) {
        let uid = &state.pod().uid;
        let status = crate::status::of(state, Anchor(0), Some([192, 168, 1, 7].into()));
        let shown = self.shown.as_deref().unwrap_or(&Value::Null);
        // Comparing is fast; finding the differences is not.
        let stale = if *shown == status { Vec::new() } else { differences(shown, &status) };
        assert!(stale.is_empty(), "{uid}: the change of {} was not published\n{log}", stale.join(", "));
        let deletion = self.deletion.map(|(_, deletion)| deletion);
        assert_eq!(deletion, state.deletion(), "{uid}: its deletion was not published\n{log}");
    }

    /// Removes the state of the pod from the handover. What was shown is not compared with the first status of
    /// the next agent.
    pub(super) fn forget_handover(&mut self) {
        if let Some(status) = &mut self.status {
            status.state = None;
        }
        self.shown = None;
    }

    pub(super) fn write_facts(&mut self, attempt: Attempt) {
        self.facts.insert(attempt.container, attempt.number);
    }
}

impl Sim {
    /// Makes a record durable.
    pub(super) fn write(&mut self, uid: &Uid, record: &Record) {
        let bytes = record_file::render(record, &self.boot_id, Admitted::default(), Anchor(0));
        let parsed = record_file::parse(&bytes, &self.boot_id).expect("what was rendered is a record");
        let world = self.of(uid);
        (world.flash, world.record) = (bytes, Some(parsed));
    }

    /// Shows the current status of a pod, and writes the files for the next agent that `engine/pod_objects.rs`
    /// writes. Returns the status, if the pod is here.
    pub(super) fn publish(&mut self, index: PodIndex) -> Option<Rc<Value>> {
        let state = self.node.pod(index)?;
        let uid = state.pod().uid.clone();
        let status = crate::status::of(state, Anchor(0), Some([192, 168, 1, 7].into()));
        let left = state.handover();
        let deletion = state.deletion();
        let world = self.pods.iter_mut().find(|world| world.pod.uid == uid).expect("a pod of this world");
        let files = &mut world.shell;
        if let Some((_, before)) = files.deletion.filter(|(of, _)| *of == index) {
            let is_no_later = |after: Deletion| after.at <= before.at && after.grace <= before.grace;
            assert!(deletion.is_some_and(is_no_later), "{uid}: {before:?} became {deletion:?}\n{}", self.log);
        }
        files.deletion = deletion.map(|deletion| (index, deletion));
        files.status = Some(left);
        files.shown = Some(Rc::new(status));
        files.shown.clone()
    }

    /// Removes everything of a pod from flash.
    pub(super) fn erase(&mut self, uid: &Uid) {
        let world = self.of(uid);
        world.record = None;
        world.flash.clear();
        world.volumes = false;
        world.shell = PodFiles::default();
        world.shown_terminal = None;
        world.gone_by = None;
        world.index = None;
        world.begun.iter_mut().for_each(Vec::clear);
        world.restarts = super::restarts::Restarts::default();
        world.saves = 0;
        // The ephemeral containers belonged to the removed pod.
        world.pod = std::rc::Rc::new(Pod::clone(&world.pod).without_ephemeral());
        world.begun.truncate(world.pod.spec.container_count());
    }

    /// Removes the files of a pod that no source wants and of which nothing runs.
    pub(super) fn sweep(&mut self, place: usize) {
        let uid = self.pods[place].pod.uid.clone();
        self.erase(&uid);
    }

    /// The state of a pod that a starting agent finds, as in `engine/recover.rs`.
    pub(super) fn find(&mut self, place: usize) -> FoundPod {
        let pod = &mut self.pods[place];
        let is_made = pod.sandbox == WorldSandbox::Exists;
        let over = pod.finished.iter().cloned();
        let attempts = if is_made {
            let alive = pod.alive.iter_mut().map(|(attempt, process)| {
                process.forget_agent();
                FoundAttempt {
                    attempt: *attempt,
                    container: started_for(
                        process.started.expect("it runs"),
                        *attempt,
                        process.image.clone(),
                    ),
                    exit: None,
                    health: Health::default(),
                }
            });
            let mut known: Vec<_> = over.chain(alive).collect();
            known.sort_by_key(|found| found.attempt);
            known
        } else {
            // The results of the newest runs are in files, or unknown.
            let over: Vec<_> = over.collect();
            let created = pod.shell.created.unwrap_or(pod.made_at);
            let newest = pod.shell.facts.iter().map(|(container, number)| {
                let attempt = Attempt { container: *container, number: *number };
                let exit = over.iter().find(|found| found.attempt == attempt);
                let image = pod.pod.spec.container(*container).image.as_str().into();
                exit.cloned().unwrap_or_else(|| FoundAttempt {
                    attempt,
                    container: started_for(created, attempt, image),
                    exit: None,
                    health: Health::default(),
                })
            });
            newest.collect()
        };
        FoundPod {
            pod: pod.pod.clone(),
            record: pod.record.clone(),
            sandbox: is_made.then_some(FoundSandbox { ip: Some([10, 85, 0, 2].into()), at: pod.made_at }),
            processes: pod.orphans,
            attempts,
            status: pod.shell.read_status().map(|status| *status).unwrap_or_default(),
        }
    }

    /// The status of each pod that is shown.
    pub(super) fn shown_statuses(&self) -> Vec<Shown> {
        let shown = |world: &super::WorldPod| {
            let index = self.node.index_of(&world.pod.uid)?;
            let is_news_of_it = |happening: &Happening| match happening {
                Happening::Executed(uid, ..)
                | Happening::SandboxMade(uid, _)
                | Happening::SandboxGone(uid, _)
                | Happening::Written(uid, ..)
                | Happening::Erased(uid, _) => *uid == world.pod.uid,
                Happening::ObservedOf(of, seen) => {
                    let counts = !matches!(seen, PodObservation::Probed { .. });
                    *of == index && counts
                }
                Happening::Ended(..) | Happening::GivenUp(..) | Happening::Observed(_) => false,
            };
            let is_interrupted = self.node.pod(index).is_some_and(PodState::is_interrupted);
            let is_up_to_date = !self.queue.values().any(is_news_of_it);
            // Not compared: an interrupted pod, which starts again; a pod being erased, which may be a new
            // pod; and an unwanted pod, which is removed with its sandbox.
            let is_leaving = |happening: &Happening| match happening {
                Happening::Erased(uid, _) => *uid == world.pod.uid,
                Happening::SandboxGone(uid, _) => *uid == world.pod.uid && !world.wanted,
                _ => false,
            };
            if is_interrupted || world.shell.is_hidden || self.queue.values().any(is_leaving) {
                return None;
            }
            let status = world.shell.shown.clone()?;
            (world.wanted || world.sandbox == WorldSandbox::Exists).then_some(Shown {
                pod: self.node.pod(index)?.pod().clone(),
                status,
                deletion: world.shell.deletion.map(|(_, deletion)| deletion),
                is_up_to_date,
            })
        };
        self.pods.iter().filter_map(shown).collect()
    }

    /// Checks that no agent shows a pod that was deleted by force.
    fn check_hidden(&self) {
        for world in self.pods.iter().filter(|world| world.shell.is_hidden) {
            let state = self.node.index_of(&world.pod.uid).and_then(|index| self.node.pod(index));
            let is_shown = state.is_some_and(|state| !state.is_hidden());
            assert!(!is_shown, "{} was deleted by force, and is shown\n{}", world.pod.uid, self.log);
        }
    }

    /// Whether flash says that a run has begun whose start had failed, as the previous agent knew. Without a sandbox that
    /// knows better, the run counts as begun: a container that runs once must not run twice.
    fn has_recorded_start(&self, uid: &Uid) -> bool {
        let Some(world) = self.pods.iter().find(|world| world.pod.uid == *uid) else { return false };
        let (status, record) = (world.shell.read_status(), world.record.as_ref());
        let left = status.iter().flat_map(|status| &status.state).flat_map(|state| &state.containers);
        let recorded = record.into_iter().flat_map(|record| &record.containers);
        world.sandbox != WorldSandbox::Exists
            && recorded.zip(left).any(|(new, left)| new.attempts > left.attempts)
    }

    /// Checks that an agent that has just started shows the same statuses as the previous one, except for
    /// changes that took place between the two.
    pub(super) fn compare_shown(&self, before: &[Shown]) {
        self.check_hidden();
        for Shown { pod, status: before, deletion, is_up_to_date } in before {
            let uid = &pod.uid;
            let Some(index) = self.node.index_of(uid) else { panic!("{uid} is shown no more\n{}", self.log) };
            let state = self.node.pod(index).expect("it is here");
            // The manifest may have changed while no agent ran.
            if state.pod() != pod {
                continue;
            }
            assert!(
                deletion.is_none_or(|_| state.deletion() == *deletion),
                "{uid}: {deletion:?} became {:?}\n{}",
                state.deletion(),
                self.log
            );
            let after = crate::status::of(state, Anchor(0), Some([192, 168, 1, 7].into()));
            check_never_back(pod, before, &after, &self.log);
            if !*is_up_to_date || self.has_recorded_start(uid) {
                continue;
            }
            let differences = differences(before, &after);
            assert!(
                differences.is_empty(),
                "{uid} is another after the agent began anew: {}\n{}",
                differences.join(", "),
                self.log
            );
        }
    }
}

/// Checks the parts of a status that never go back, whatever took place between two agents.
fn check_never_back(pod: &Pod, before: &Value, after: &Value, log: &str) {
    let uid = &pod.uid;
    let since = &before["startTime"];
    assert!(since.is_null() || *since == after["startTime"], "{uid}: its startTime moved\n{log}");
    let rank = |status: &Value| match status["phase"].as_str() {
        Some("Pending") => 0,
        Some("Running") => 1,
        _ => 2,
    };
    // An init container that runs again in a new sandbox makes the pod pending (`getPhase`).
    let is_init = |status: &&Value| {
        let mut indexes = pod.spec.init_indexes().filter(|index| pod.spec.role(*index) == Role::Init);
        indexes.any(|index| status["name"] == *pod.spec.container(index).name)
    };
    let statuses = after["initContainerStatuses"].as_array();
    let runs_init =
        statuses.into_iter().flatten().filter(is_init).any(|status| !status["state"]["running"].is_null());
    assert!(
        rank(before) <= rank(after) || (runs_init && rank(before) == 1),
        "{uid}: {} became {}\n{log}",
        before["phase"],
        after["phase"]
    );
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        let all = |status: &Value| status[list].as_array().cloned().unwrap_or_default();
        for (before, after) in all(before).iter().zip(&all(after)) {
            if before["restartCount"] == after["restartCount"] {
                assert_eq!(before["lastState"], after["lastState"], "{uid}: {before}, {after}\n{log}");
            }
        }
    }
    let (before, after) = (leaves(before), leaves(after));
    for (path, count) in before.iter().filter(|(path, _)| path.ends_with("restartCount")) {
        let later = after.get(path).and_then(Value::as_u64);
        assert!(count.as_u64() <= later, "{uid}: {path} went from {count} to {later:?}\n{log}");
    }
}

/// The differences between two statuses; list elements are identified by name or type.
fn differences(before: &Value, after: &Value) -> Vec<String> {
    let (before, after) = (leaves(before), leaves(after));
    let all = before.keys().chain(after.keys().filter(|path| !before.contains_key(*path)));
    let differs = all.filter(|path| before.get(*path) != after.get(*path));
    let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
    differs.map(|path| format!("{path}: {} -> {}", text(before.get(path)), text(after.get(path)))).collect()
}

fn leaves(status: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut left = vec![(String::new(), status)];
    while let Some((path, value)) = left.pop() {
        match value {
            Value::Object(fields) => {
                left.extend(fields.iter().map(|(key, value)| (format!("{path}.{key}"), value)));
            }
            Value::Array(all) if all.iter().all(Value::is_object) => left.extend(all.iter().map(|one| {
                let name = one["name"].as_str().or(one["type"].as_str()).unwrap_or_default();
                (format!("{path}[{name}]"), one)
            })),
            leaf => drop(found.insert(path, leaf.clone())),
        }
    }
    found
}
