//! A simulated world for the core: processes that live and end as a test decides, a disk, an engine that
//! carries out plans, and time that costs nothing.
//!
//! The world knows what really takes place, and panics if the core lets something happen that never may: two
//! live runs of a container, two pods of one name, a start that is not on flash, a container that starts
//! before its turn, a sidecar that is asked to end before the containers that it serves, a plan that spins.
//! `timelines.rs` compares traces with expected texts, `seeds.rs` generates events at random.

mod admission;
mod devices;
mod disaster;
mod fate;
mod gates;
mod hooks;
mod invariants;
mod node_world;
mod objects;
mod order;
mod recorded;
mod resize;
mod restarts;
mod sample;
#[cfg(test)]
mod seeds;
mod shell;
#[cfg(test)]
mod timeline;
mod update;
mod wear;
mod world;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::facts::*;
use crate::pod::PodState;

use crate::node::*;
use crate::spec::*;
use crate::time::{Anchor, Instant};

pub(crate) use fate::*;
pub use node_world::{ClaimNews, NodeWorld};
pub(crate) use objects::*;
pub(crate) use sample::*;
#[cfg(test)]
pub(crate) use timeline::*;

/// A future event of the world.
#[derive(Clone, Debug)]
enum Happening {
    /// The engine receives an observation.
    Observed(Observation),
    /// The engine receives an observation of a pod, whichever index the pod has then.
    ObservedOf(PodIndex, PodObservation),
    Executed(Uid, PodIndex, Attempt),
    Ended(Uid, Attempt, i32, bool),
    GivenUp(Uid, Attempt),
    SandboxMade(Uid, PodIndex),
    SandboxGone(Uid, PodIndex),
    Written(Uid, PodIndex, u64, Box<Record>),
    Erased(Uid, PodIndex),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldSandbox {
    None,
    Exists,
    /// The supervisor is dead, and the rest of the sandbox still exists.
    Remains,
}

#[derive(Clone, Debug)]
struct Process {
    fate: Fate,
    /// The image in the pod's spec when the run was started.
    image: Rc<str>,
    /// When the process was executed; `None` before that.
    started: Option<Instant>,
    asked_to_end: Option<Instant>,
    hooks: hooks::Seen,
    /// The probes of this run whose success was reported to the core.
    succeeded: Vec<ProbeKind>,
    /// Whether a failure of the liveness or startup probe of this run was reported to the core.
    probe_failed: bool,
    /// Whether it replaces a run with another image or one that a user restarted.
    was_outdated: bool,
}

/// The true state of one pod.
#[derive(Clone, Debug)]
pub(crate) struct WorldPod {
    pub(crate) pod: Rc<Pod>,
    pub(crate) wanted: bool,
    sandbox: WorldSandbox,
    /// The versions of the objects that the volumes show.
    shown: objects::Shown,
    /// Whether the interface of the board is in the network of the pod.
    has_interface: bool,
    /// When the sandbox was made.
    made_at: Instant,
    /// Runs that are alive or about to be.
    alive: BTreeMap<Attempt, Process>,
    /// Whether processes live that outlasted the loss of their sandbox.
    orphans: bool,
    /// Whether volumes or writable layers of the pod exist.
    volumes: bool,
    /// Whether `RemoveVolumes` is in flight.
    removing_volumes: bool,
    /// Whether files of the volumes are being written.
    updating: bool,
    /// The finished runs that the supervisor remembers.
    finished: Vec<FoundAttempt>,
    /// The record on flash, as an agent of this boot reads it.
    pub(crate) record: Option<Box<Record>>,
    /// The bytes of the record on flash.
    flash: Vec<u8>,
    /// The files and the state that the agent's shell has of the pod, some of it for the next agent.
    shell: shell::PodFiles,
    pub(crate) saves: u64,
    /// The time after which no process of the pod may live.
    pub(crate) gone_by: Option<Instant>,
    /// The terminal status that was shown.
    pub(crate) shown_terminal: Option<(PodPhase, Vec<Value>)>,
    index: Option<PodIndex>,
    /// The runs of each container that were started, in all boots.
    pub(crate) begun: Vec<Vec<u32>>,
    save_in_flight: bool,
    /// Containers that ran when their image changed, and have not restarted since.
    outdated: BTreeSet<ContainerIndex>,
    /// The amounts that the cgroup of each container has.
    limits: BTreeMap<ContainerIndex, [String; 4]>,
    /// Whether other amounts were wanted than at first.
    is_resized: bool,
    /// The bytes that each container and each volume use on disk.
    pub(crate) usage: StorageUsage,
    order: order::Order,
    restarts: restarts::Restarts,
    wear: wear::Wear,
    /// When the newest run of each container ended.
    ended_at: BTreeMap<ContainerIndex, Instant>,
    /// Containers whose newest run was asked to end before it ended.
    pub(crate) stopped: BTreeSet<ContainerIndex>,
}

impl WorldPod {
    /// Whether no process of the pod lives.
    fn is_still(&self) -> bool {
        self.alive.is_empty() && !self.orphans
    }
}

pub(crate) struct Sim {
    pub(crate) node: Node,
    pub(crate) now: Instant,
    /// The trace of container events.
    pub(crate) trace: String,
    /// All actions and reports, for failure messages.
    pub(crate) log: String,
    /// Events as `reason: message`.
    pub(crate) events: Vec<String>,
    pub(crate) pods: Vec<WorldPod>,
    /// Of each pod that followed another one under its uid, whether it was the same pod again.
    pub(crate) resumed: Vec<bool>,
    pub(crate) weather: Weather,
    /// No record can be written.
    pub(crate) is_disk_full: bool,
    /// Records can neither be written nor removed.
    pub(crate) is_read_only: bool,
    pub(crate) chance: Chance,
    pub(crate) largest_plan: usize,
    queue: BTreeMap<(Instant, u64), Happening>,
    count: u64,
    fate: Box<Fates>,
    answer: Box<Answers>,
    hook: Box<HookFates>,
    /// With the time at which each began.
    probes_in_flight: Vec<((PodIndex, Attempt, ProbeKind), Instant)>,
    wake_at: Option<Instant>,
    /// Images that are not on the board.
    pub(crate) absent: BTreeSet<String>,
    /// Results of the next pulls from a registry, if there is one: the rest of the event's text, or the error.
    pub(crate) registry: Option<VecDeque<Result<&'static str, &'static str>>>,
    /// The ConfigMaps that exist.
    objects: objects::WorldObjects,
    devices: devices::WorldDevices,
    /// Questions and reports about the claims of pods that the world has not handled.
    claim_news: Vec<node_world::ClaimNews>,
    /// Whether a shutdown is under way.
    down: bool,
    /// The Node object that is reported to the core; without one, the node has room for all pods.
    pub(crate) info: Option<NodeInfo>,
    /// The ID of the current boot.
    boot_id: String,
    boots: u32,
    /// All observations and actions of this agent's core.
    ring: Ring,
    recorded: Vec<(u64, Instant, Entry)>,
    /// The pods that were reported whole to this agent's core, in that order.
    recorded_pods: Vec<Rc<Pod>>,
}

/// The time in whole seconds, for traces.
fn stamp(now: Instant) -> String {
    format!("{:>4}s", now.0 / 1_000_000_000)
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn at(seconds: u64) -> Instant {
    Instant(0) + secs(seconds)
}

impl Sim {
    /// A world with one wanted pod; `fate` decides what happens to each run.
    pub(crate) fn new(pod: Pod, fate: impl FnMut(&str, u32) -> Fate + 'static) -> Self {
        let mut sim = Sim::empty(fate);
        sim.want(pod);
        sim
    }

    pub(crate) fn empty(fate: impl FnMut(&str, u32) -> Fate + 'static) -> Self {
        let mut sim = Sim {
            node: Node::new(),
            now: Instant(0),
            trace: String::new(),
            log: String::new(),
            events: Vec::new(),
            pods: Vec::new(),
            resumed: Vec::new(),
            weather: Weather::default(),
            is_disk_full: false,
            is_read_only: false,
            chance: Chance(1),
            largest_plan: 0,
            queue: BTreeMap::new(),
            count: 0,
            fate: Box::new(fate),
            answer: Box::new(|_, _, _| ProbeResult::Success),
            hook: Box::new(|_, _, _| HookFate::Succeeds(Duration::ZERO)),
            probes_in_flight: Vec::new(),
            wake_at: None,
            absent: BTreeSet::new(),
            registry: None,
            objects: objects::WorldObjects::default(),
            devices: devices::WorldDevices::default(),
            claim_news: Vec::new(),
            down: false,
            info: None,
            boot_id: "boot-0".to_owned(),
            boots: 0,
            ring: Ring::default(),
            recorded: Vec::new(),
            recorded_pods: Vec::new(),
        };
        sim.later(secs(0), Observation::SourcesSeen);
        sim
    }

    /// Sets the results of probes, by container, kind and age of the run.
    pub(crate) fn probes(
        mut self,
        answer: impl FnMut(&str, ProbeKind, Duration) -> ProbeResult + 'static,
    ) -> Self {
        self.answer = Box::new(answer);
        self
    }

    /// Sets what happens to hooks, by container, kind and number of the run.
    pub(crate) fn hooks(mut self, hook: impl FnMut(&str, HookKind, u32) -> HookFate + 'static) -> Self {
        self.hook = Box::new(hook);
        self
    }

    /// Replaces the fates of all runs that start from now on.
    pub(crate) fn fates(&mut self, fate: impl FnMut(&str, u32) -> Fate + 'static) -> &mut Self {
        self.fate = Box::new(fate);
        self
    }

    /// Makes a source want the pod from now on.
    pub(crate) fn want(&mut self, pod: Pod) -> Uid {
        let pod = Rc::new(pod);
        let uid = pod.uid.clone();
        match self.pods.iter_mut().find(|known| known.pod.uid == uid) {
            Some(known) => known.wanted = true,
            None => self.pods.push(WorldPod {
                begun: vec![Vec::new(); pod.spec.container_count()],
                order: order::Order::default(),
                restarts: restarts::Restarts::default(),
                wear: wear::Wear::default(),
                ended_at: BTreeMap::new(),
                stopped: BTreeSet::new(),
                pod: pod.clone(),
                wanted: true,
                sandbox: WorldSandbox::None,
                shown: objects::Shown::new(),
                has_interface: false,
                made_at: self.now,
                alive: BTreeMap::new(),
                orphans: false,
                volumes: false,
                removing_volumes: false,
                updating: false,
                finished: Vec::new(),
                record: None,
                flash: Vec::new(),
                shell: shell::PodFiles::default(),
                saves: 0,
                gone_by: None,
                shown_terminal: None,
                index: None,
                save_in_flight: false,
                outdated: BTreeSet::new(),
                limits: BTreeMap::new(),
                is_resized: false,
                usage: StorageUsage::default(),
            }),
        }
        let known = self.of(&uid);
        // Added ephemeral containers are in no manifest.
        let bare = |pod: &Pod| Pod::clone(pod).without_ephemeral();
        let pod = if bare(&known.pod) == bare(&pod) { known.pod.clone() } else { pod };
        let record = known.record.clone();
        self.observe(Observation::Wanted { pod, record, status: None });
        uid
    }

    /// Adds an ephemeral container to a pod, unless the pod is being removed.
    pub(crate) fn debug(&mut self, uid: &Uid, container: Container) -> &mut Self {
        let state = self.node.index_of(uid).and_then(|index| self.node.pod(index));
        if state.is_none_or(PodState::is_unwanted) || !self.of(uid).wanted {
            return self;
        }
        let world = self.of(uid);
        let mut pod = Pod::clone(&world.pod);
        pod.spec.ephemeral_containers.push(container);
        pod.generation += 1;
        world.pod = Rc::new(pod);
        world.begun.push(Vec::new());
        let pod = world.pod.clone();
        self.observe(Observation::Wanted { pod, record: None, status: None });
        self
    }

    /// Makes no source want the pod from now on.
    pub(crate) fn unwant(&mut self, uid: &Uid, grace: Option<Duration>) -> &mut Self {
        let slack = self.slack();
        let now = self.now;
        let known = self.node.index_of(uid).is_some();
        let pod = self.of(uid);
        pod.wanted = false;
        if !known {
            return self;
        }
        let asked = grace.unwrap_or(pod.pod.spec.termination_grace_period).max(secs(2));
        let gone_by = now + asked + pod.last_window() + slack;
        pod.gone_by = Some(pod.gone_by.map_or(gone_by, |earlier| earlier.min(gone_by)));
        self.observe(Observation::Unwanted { uid: uid.clone(), grace });
        self
    }

    /// Deletes the pod by force: the API no longer returns it.
    pub(crate) fn delete_by_force(&mut self, uid: &Uid) -> &mut Self {
        let is_unwanted = self.node.index_of(uid).and_then(|index| self.node.pod(index)).is_some();
        self.unwant(uid, None);
        if is_unwanted {
            self.observe(Observation::Hidden { uid: uid.clone() });
            self.of(uid).shell.hide();
            self.watch();
        }
        self
    }

    /// Reports an observation to the node after this time.
    pub(crate) fn later(&mut self, after: Duration, seen: Observation) -> &mut Self {
        self.after(after, Happening::Observed(seen));
        self
    }

    /// Lets time pass until `end`, or until there is news about claims.
    pub(crate) fn run_until(&mut self, end: Duration) -> &mut Self {
        let end = Instant(0) + end;
        self.settle();
        loop {
            if !self.claim_news.is_empty() {
                return self;
            }
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            let next = [next, self.wake_at].into_iter().flatten().min();
            self.check_idle(next.map_or(end, |next| next.min(end)));
            match next.filter(|next| *next <= end) {
                Some(next) => self.now = self.now.max(next),
                None => break,
            }
            while let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let happening = entry.remove();
                self.happen(happening);
            }
            self.settle();
        }
        self.now = end;
        self.settle();
        self.check_published();
        self
    }

    /// Plans until nothing is left to do at this moment, as the engine does.
    fn settle(&mut self) {
        let mut rounds = 0;
        loop {
            let plan = self.node.plan(self.now);
            self.note_stops();
            self.ring.planned(self.now, &self.node, &plan);
            self.keep_recorded();
            self.largest_plan = self.largest_plan.max(plan.actions.len());
            self.wake_at = plan.wake_at;
            rounds += 1;
            assert!(rounds < 1000, "the core spins at {}: {:?}", stamp(self.now), plan.actions);
            assert!(plan.wake_at.is_none_or(|at| at > self.now), "asks to be woken in the past");
            let done = plan.actions.is_empty() && !plan.more;
            for (index, action) in plan.actions {
                self.perform(index, action);
            }
            self.watch();
            if done {
                break;
            }
        }
    }

    /// Whether no process, sandbox or record of a pod is left.
    pub(crate) fn is_gone(&self, uid: &Uid) -> bool {
        let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
        world.is_still()
            && world.sandbox == WorldSandbox::None
            && world.record.is_none()
            && self.node.index_of(uid).is_none()
    }

    /// The number of the live run of a container.
    pub(crate) fn alive(&self, uid: &Uid, container: u8) -> Option<u32> {
        let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
        world.alive.keys().find(|attempt| attempt.container.0 == container).map(|attempt| attempt.number)
    }

    /// The status of the pod that is shown.
    pub(crate) fn status(&self, uid: &Uid) -> Value {
        let state =
            self.node.index_of(uid).and_then(|index| self.node.pod(index)).expect("a pod that is here");
        crate::status::of(state, Anchor(0), Some([192, 168, 1, 7].into()))
    }

    pub(crate) fn of(&mut self, uid: &Uid) -> &mut WorldPod {
        self.pods.iter_mut().find(|world| world.pod.uid == *uid).expect("a pod of this world")
    }

    /// An upper bound of the answers that a stop waits for.
    fn slack(&self) -> Duration {
        if self.weather.failures > 0 { secs(10_000) } else { self.weather.latency * 4 + secs(3) }
    }

    fn fails(&mut self) -> bool {
        self.weather.failures > 0 && self.chance.percent(self.weather.failures)
    }

    fn observe_of(&mut self, index: PodIndex, seen: PodObservation) {
        if self.weather.repeats > 0 && self.chance.percent(self.weather.repeats) {
            let again = Duration::from_millis(self.chance.below(5_000));
            // A report without a unique number is not repeated.
            let numbered = matches!(
                seen,
                PodObservation::Started { .. }
                    | PodObservation::Exited { .. }
                    | PodObservation::Probed { .. }
                    | PodObservation::Hooked { .. }
                    | PodObservation::Saved { .. }
            );
            if numbered {
                self.after(again, Happening::ObservedOf(index, seen.clone()));
            }
        }
        self.after(Duration::ZERO, Happening::ObservedOf(index, seen));
    }

    fn answer_of(&mut self, index: PodIndex, seen: PodObservation) {
        self.after_latency(Happening::ObservedOf(index, seen));
    }

    fn after_latency(&mut self, happening: Happening) {
        let latency = self.weather.latency.as_millis() as u64;
        let after = if latency == 0 { 0 } else { self.chance.below(latency) };
        self.after(Duration::from_millis(after), happening);
    }

    fn after(&mut self, after: Duration, happening: Happening) {
        self.count += 1;
        self.queue.insert((self.now + after, self.count), happening);
    }

    fn label(&self, pod: &Pod, container: ContainerIndex) -> String {
        let name = &pod.spec.container(container).name;
        if self.pods.len() > 1 { format!("{}/{name}", pod.uid) } else { name.clone() }
    }

    fn note(&mut self, what: &str) {
        let _ = writeln!(self.trace, "{} {what}", stamp(self.now));
        self.note_log(what);
    }

    fn note_log(&mut self, what: &str) {
        let _ = writeln!(self.log, "{} {what}", stamp(self.now));
    }
}

/// The report of a run that started.
pub(crate) fn started(at: Instant, attempt: Attempt) -> StartedContainer {
    started_for(at, attempt, "app:1".into())
}

/// The report of a run that was created and could not be executed.
fn created(attempt: Attempt) -> Box<RunIdentity> {
    let StartedContainer { id, image, image_id, user, stop_signal, .. } = started(Instant(0), attempt);
    Box::new(RunIdentity { id, image, image_id, process: Some(RunProcess { user, stop_signal }) })
}

/// The report of a run that was started for this image.
fn started_for(at: Instant, attempt: Attempt, spec_image: Rc<str>) -> StartedContainer {
    StartedContainer {
        at,
        id: format!("{:060}{:04}", attempt.container.0, attempt.number).into(),
        image: "docker.io/library/app:1".into(),
        image_id: "docker.io/library/app@sha256:00".into(),
        spec_image,
        user: User { uid: 1000, gid: 1000, supplemental_groups: vec![1000] },
        stop_signal: 15,
    }
}
