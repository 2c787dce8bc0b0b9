//! A world for the core to decide on: processes that live and end by fate, a
//! disk, an engine that carries plans out, and time that costs nothing.
//!
//! The world knows what really takes place and panics when the core lets
//! something happen that never may: two runs of a container alive, two pods of
//! one name, a start that is not on flash, a plan that spins. `timelines.rs`
//! reads what took place as sentences, `seeds.rs` lets chance write them.

mod disaster;
mod sample;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::node::*;
use crate::replay::Again;
use crate::spec::*;
use crate::time::{Anchor, Instant, Moment};

pub(crate) use sample::*;

/// What becomes of a run.
#[derive(Clone, Debug)]
pub(crate) enum Fate {
    /// Runs until asked to end, then exits 143.
    Runs,
    /// Runs until it is killed.
    IgnoresTerm,
    /// Exits with this code after this long.
    Exits(i32, Duration),
    /// Is killed for its memory after this long.
    OutOfMemory(Duration),
    /// There is never a process.
    FailsToStart(StartFailureReason),
}

/// How the world treats the engine: none of it in timelines, chance in seeds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weather {
    /// Answers take up to this long.
    pub(crate) latency: Duration,
    /// Of a hundred tries of anything that may fail, so many do.
    pub(crate) failures: u64,
    /// Of a hundred pieces of news, so many are told twice.
    pub(crate) repeats: u64,
}

/// Numbers that look random and are the same for the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    pub(crate) fn percent(&mut self, of_a_hundred: u64) -> bool {
        self.below(100) < of_a_hundred
    }
}

/// Something that will take place.
#[derive(Clone, Debug)]
enum Happening {
    /// The engine hears of it.
    Told(Observation),
    /// The same about a pod, whichever index it has then.
    ToldOf(PodIndex, PodObservation),
    Executed(Uid, PodIndex, Attempt),
    Ended(Uid, Attempt, i32, bool),
    SandboxMade(Uid, PodIndex),
    SandboxGone(Uid, PodIndex),
    Written(Uid, PodIndex, u64, Box<Record>),
    Erased(Uid, PodIndex),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldSandbox {
    None,
    Made,
    /// Its supervisor is dead.
    Remains,
}

#[derive(Clone, Debug)]
struct Process {
    fate: Fate,
    /// `None` until its process is executed.
    started: Option<Instant>,
    asked_to_end: Option<Instant>,
}

/// What really is of one pod.
#[derive(Clone, Debug)]
pub(crate) struct WorldPod {
    pub(crate) pod: Rc<Pod>,
    pub(crate) wanted: bool,
    sandbox: WorldSandbox,
    /// Runs that are alive or about to be.
    alive: BTreeMap<Attempt, Process>,
    /// What the supervisor remembers.
    over: Vec<FoundAttempt>,
    pub(crate) record: Option<Box<Record>>,
    pub(crate) saves: u64,
    /// No process may live after this time.
    pub(crate) gone_by: Option<Instant>,
    /// The terminal status that was shown.
    pub(crate) shown_terminal: Option<(PodPhase, Value)>,
    index: Option<PodIndex>,
    /// Runs of each container that were begun, in all boots.
    pub(crate) begun: Vec<Vec<u32>>,
    save_in_flight: bool,
}

/// How a run of a container goes, by the container's name and the run's number.
type Fates = dyn FnMut(&str, u32) -> Fate;

/// What a probe of a container finds so long after its start.
type Answers = dyn FnMut(&str, ProbeKind, Duration) -> ProbeResult;

pub(crate) struct Sim {
    pub(crate) node: Node,
    pub(crate) now: Instant,
    /// What took place with containers.
    pub(crate) trace: String,
    /// What was done and told besides.
    pub(crate) log: String,
    /// Events as `reason: message`.
    pub(crate) events: Vec<String>,
    pub(crate) pods: Vec<WorldPod>,
    pub(crate) weather: Weather,
    pub(crate) chance: Chance,
    pub(crate) largest_plan: usize,
    queue: BTreeMap<(Instant, u64), Happening>,
    count: u64,
    fate: Box<Fates>,
    answer: Box<Answers>,
    probes_in_flight: Vec<(PodIndex, Attempt, ProbeKind)>,
    wake_at: Option<Instant>,
    /// Everything is being taken down.
    down: bool,
    /// What this agent's core was told and asked for, all of it.
    ring: Ring,
    told: Vec<(u64, Instant, Entry)>,
    /// The pods that it was told whole, in that order.
    told_pods: Vec<Rc<Pod>>,
}

/// For failures in time order, seconds with a fraction where there is one.
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
    /// One wanted pod; `fate` says what becomes of each run.
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
            weather: Weather::default(),
            chance: Chance(1),
            largest_plan: 0,
            queue: BTreeMap::new(),
            count: 0,
            fate: Box::new(fate),
            answer: Box::new(|_, _, _| ProbeResult::Success),
            probes_in_flight: Vec::new(),
            wake_at: None,
            down: false,
            ring: Ring::default(),
            told: Vec::new(),
            told_pods: Vec::new(),
        };
        sim.later(secs(0), Observation::SourcesSeen);
        sim
    }

    /// What probes find, by container, kind and age of the run.
    pub(crate) fn probes(
        mut self,
        answer: impl FnMut(&str, ProbeKind, Duration) -> ProbeResult + 'static,
    ) -> Self {
        self.answer = Box::new(answer);
        self
    }

    /// From now on, other fates.
    pub(crate) fn fates(&mut self, fate: impl FnMut(&str, u32) -> Fate + 'static) {
        self.fate = Box::new(fate);
    }

    /// A source wants the pod from now on.
    pub(crate) fn want(&mut self, pod: Pod) -> Uid {
        let pod = Rc::new(pod);
        let uid = pod.uid.clone();
        match self.pods.iter_mut().find(|known| known.pod.uid == uid) {
            Some(known) => known.wanted = true,
            None => self.pods.push(WorldPod {
                begun: vec![Vec::new(); pod.spec.containers.len()],
                pod: pod.clone(),
                wanted: true,
                sandbox: WorldSandbox::None,
                alive: BTreeMap::new(),
                over: Vec::new(),
                record: None,
                saves: 0,
                gone_by: None,
                shown_terminal: None,
                index: None,
                save_in_flight: false,
            }),
        }
        let record = self.of(&uid).record.clone();
        self.tell(Observation::Wanted { pod, record });
        uid
    }

    /// No source wants it from now on.
    pub(crate) fn unwant(&mut self, uid: &Uid, grace: Option<Duration>) {
        let slack = self.slack();
        let now = self.now;
        let known = self.node.index_of(uid).is_some();
        let pod = self.of(uid);
        pod.wanted = false;
        if !known {
            return;
        }
        let asked = grace.unwrap_or(pod.pod.spec.termination_grace_period).max(secs(2));
        let gone_by = now + asked + slack;
        pod.gone_by = Some(pod.gone_by.map_or(gone_by, |earlier| earlier.min(gone_by)));
        self.tell(Observation::Unwanted { uid: uid.clone(), grace });
    }

    /// Told to the node after this time.
    pub(crate) fn later(&mut self, after: Duration, seen: Observation) {
        self.after(after, Happening::Told(seen));
    }

    /// Lets time pass.
    pub(crate) fn run_until(&mut self, end: Duration) {
        let end = Instant(0) + end;
        self.settle();
        loop {
            let next = self.queue.first_key_value().map(|((at, _), _)| *at);
            let next = [next, self.wake_at].into_iter().flatten().min();
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
    }

    /// Plans until nothing is left to do at this moment, as the engine does.
    fn settle(&mut self) {
        let mut rounds = 0;
        loop {
            let plan = self.node.plan(self.now);
            self.ring.planned(self.now, &self.node, &plan);
            self.keep_told();
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

    fn perform(&mut self, index: PodIndex, action: Action) {
        let now = self.now;
        let state = self.node.pod(index).expect("actions are of pods that are here");
        let (pod, uid) = (state.pod().clone(), state.pod().uid.clone());
        let name = |container: ContainerIndex| pod.spec.container(container).name.clone();
        self.of(&uid).index = Some(index);
        match action {
            Action::CreateSandbox => {
                self.note_log(&format!("{} create sandbox", pod.name));
                assert_eq!(self.of(&uid).sandbox, WorldSandbox::None, "{uid} has a sandbox already");
                for other in
                    self.pods.iter().filter(|other| other.pod.uid != uid && other.pod.name == pod.name)
                {
                    assert!(other.alive.is_empty(), "{uid} starts while {} lives", other.pod.uid);
                    assert_eq!(other.sandbox, WorldSandbox::None, "{uid} starts beside {}", other.pod.uid);
                }
                if self.fails() {
                    let message = "no such device".into();
                    self.answer_of(
                        index,
                        PodObservation::SandboxFailed { reason: SandboxFailure::Sandbox, message },
                    );
                } else {
                    self.of(&uid).sandbox = WorldSandbox::Made;
                    self.after_latency(Happening::SandboxMade(uid, index));
                }
            }
            Action::Start(attempt) => {
                let what = format!("{}#{} start", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                self.check_start(&uid, attempt);
                let fate = (self.fate)(&name(attempt.container), attempt.number);
                let world = self.of(&uid);
                if let Fate::FailsToStart(reason) = fate {
                    let failure = StartFailure { reason, message: "it cannot be".into() };
                    self.answer_of(index, PodObservation::StartFailed { attempt, failure });
                } else {
                    world.begun[usize::from(attempt.container.0)].push(attempt.number);
                    world.alive.insert(attempt, Process { fate, started: None, asked_to_end: None });
                    self.after_latency(Happening::Executed(uid, index, attempt));
                }
            }
            Action::Probe(attempt, kind) => {
                let asked = (index, attempt, kind);
                assert!(!self.probes_in_flight.contains(&asked), "asked twice: {asked:?}");
                self.probes_in_flight.push(asked);
                let Some(process) = self.of(&uid).alive.get(&attempt) else { return };
                let age = now.since(process.started.expect("only what runs is probed"));
                let result = (self.answer)(&name(attempt.container), kind, age);
                self.answer_of(index, PodObservation::Probed { attempt, kind, result });
            }
            Action::Terminate(attempt) => {
                let what = format!("{}#{} Term", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                if let Some(process) = self.of(&uid).alive.get_mut(&attempt) {
                    process.asked_to_end.get_or_insert(now);
                }
                if self.fails() {
                    self.answer_of(index, PodObservation::StopFailed { attempt, message: "no".into() });
                    return;
                }
                if let Some(process) = self.of(&uid).alive.get_mut(&attempt) {
                    match process.fate {
                        Fate::IgnoresTerm => {}
                        Fate::Runs | Fate::Exits(..) | Fate::OutOfMemory(_) | Fate::FailsToStart(_) => {
                            self.after_latency(Happening::Ended(uid, attempt, 143, false));
                        }
                    }
                }
            }
            Action::Kill(attempt) => {
                let what = format!("{}#{} Kill", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                if let Some(asked) =
                    self.of(&uid).alive.get(&attempt).and_then(|process| process.asked_to_end)
                {
                    assert!(now.since(asked) >= secs(1), "killed right after it was asked");
                }
                if self.fails() {
                    self.answer_of(index, PodObservation::StopFailed { attempt, message: "no".into() });
                    return;
                }
                self.after_latency(Happening::Ended(uid, attempt, 137, false));
            }
            Action::Discard(attempt) => {
                assert!(!self.of(&uid).alive.contains_key(&attempt), "a living run is discarded");
                // With it goes what the supervisor remembers of it.
                self.of(&uid).over.retain(|found| found.attempt != attempt);
                self.note_log(&format!("{}#{} discard", self.label(&pod, attempt.container), attempt.number));
            }
            Action::RemoveSandbox => {
                self.note_log(&format!("{} remove sandbox", pod.name));
                assert!(self.of(&uid).alive.is_empty(), "the sandbox of {uid} goes before its processes");
                // With its supervisor goes what is known of the exits.
                let needed = !self.down && self.node.pod(index).is_some_and(|pod| !pod.is_unwanted());
                let world = self.of(&uid);
                let known = world.record.as_ref().is_some_and(|record| record.phase.is_terminal());
                assert!(
                    !needed || known || world.sandbox == WorldSandbox::Remains,
                    "the exits of {uid} go before they are on flash"
                );
                if self.fails() {
                    self.of(&uid).sandbox = WorldSandbox::Remains;
                    self.answer_of(index, PodObservation::SandboxRemoveFailed { message: "busy".into() });
                } else {
                    self.after_latency(Happening::SandboxGone(uid, index));
                }
            }
            Action::Save { record, generation } => {
                self.note_log(&format!("{} save {:?}", pod.name, record.phase));
                let fails = self.fails();
                let world = self.of(&uid);
                assert!(!std::mem::replace(&mut world.save_in_flight, true), "two saves at once");
                world.saves += 1;
                if fails {
                    self.answer_of(index, PodObservation::SaveFailed { message: "no space".into() });
                } else {
                    self.after_latency(Happening::Written(uid, index, generation, record));
                }
            }
            Action::Forget => {
                self.note_log(&format!("{} forget", pod.name));
                let world = self.of(&uid);
                assert!(!world.wanted || self.node.pod(index).is_some_and(PodState::is_unwanted));
                let world = self.of(&uid);
                assert!(world.alive.is_empty() && world.sandbox == WorldSandbox::None, "{uid} is not gone");
                if self.fails() {
                    self.answer_of(index, PodObservation::ForgetFailed { message: "busy".into() });
                } else {
                    self.after_latency(Happening::Erased(uid, index));
                }
            }
            Action::Emit(event) => {
                let kind = if event.warning { "Warning" } else { "Normal" };
                let _ = writeln!(self.log, "{} {kind} {}", stamp(now), event.reason);
                self.events.push(format!("{}: {}", event.reason, event.message));
            }
        }
    }

    fn check_start(&mut self, uid: &Uid, attempt: Attempt) {
        let world = self.of(uid);
        let pod = world.pod.clone();
        assert_eq!(world.sandbox, WorldSandbox::Made, "{uid} starts {attempt:?} without a sandbox");
        assert!(world.shown_terminal.is_none(), "{uid} starts {attempt:?} though it is over");
        for (other, process) in &world.alive {
            assert!(other.container != attempt.container, "{uid}: {attempt:?} starts while {other:?} lives");
            assert!(process.started.is_some(), "{uid}: {attempt:?} starts before {other:?} has");
        }
        if pod.spec.restart_policy == RestartPolicy::Never {
            let place = usize::from(attempt.container.0);
            let recorded = world.record.as_ref().and_then(|record| record.containers.get(place));
            assert!(
                recorded.is_some_and(|recorded| recorded.attempts > attempt.number),
                "{uid}: {attempt:?} starts and flash does not know"
            );
            assert!(world.begun[place].is_empty(), "{uid}: {attempt:?} of a Never pod is not its first");
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Told(seen) => {
                self.down |= matches!(seen, Observation::Shutdown);
                self.tell(seen);
            }
            Happening::ToldOf(index, seen) => {
                if let PodObservation::Probed { attempt, kind, .. } = seen {
                    self.probes_in_flight.retain(|asked| *asked != (index, attempt, kind));
                }
                if let PodObservation::SaveFailed { .. } = seen
                    && let Some(world) = self.pods.iter_mut().find(|world| world.index == Some(index))
                {
                    world.save_in_flight = false;
                }
                self.tell(Observation::Of(index, seen));
            }
            Happening::Executed(uid, index, attempt) => {
                let now = self.now;
                let Some(process) = self.of(&uid).alive.get_mut(&attempt) else { return };
                process.started = Some(now);
                match process.fate {
                    Fate::Exits(code, after) => {
                        self.after(after, Happening::Ended(uid, attempt, code, false))
                    }
                    Fate::OutOfMemory(after) => self.after(after, Happening::Ended(uid, attempt, 137, true)),
                    Fate::Runs | Fate::IgnoresTerm | Fate::FailsToStart(_) => {}
                }
                let container = Box::new(started(now, attempt));
                self.tell_of(index, PodObservation::Started { attempt, container });
            }
            Happening::Ended(uid, attempt, code, oom_killed) => {
                let now = self.now;
                let pod = self.of(&uid).pod.clone();
                let index = self.node.index_of(&uid);
                let Some(process) = self.of(&uid).alive.remove(&attempt) else { return };
                let what = format!("{}#{} exits {code}", self.label(&pod, attempt.container), attempt.number);
                self.note(&what);
                let started_at = process.started.unwrap_or(now);
                let exit = Exit {
                    code,
                    oom_killed,
                    reason: None,
                    message: "".into(),
                    started_at: Moment::ThisBoot(started_at),
                    finished_at: Moment::ThisBoot(now),
                };
                self.of(&uid).over.push(FoundAttempt {
                    attempt,
                    container: started(started_at, attempt),
                    exit: Some(exit.clone()),
                    health: Health::default(),
                });
                if let Some(index) = index {
                    self.tell_of(index, PodObservation::Exited { attempt, exit: Box::new(exit) });
                }
            }
            Happening::SandboxMade(_, index) => {
                let ip = Some([10, 85, 0, 2].into());
                self.tell_of(index, PodObservation::SandboxReady { ip, at: self.now });
            }
            Happening::SandboxGone(uid, index) => {
                let world = self.of(&uid);
                world.sandbox = WorldSandbox::None;
                world.over.clear();
                self.tell_of(index, PodObservation::SandboxRemoved);
            }
            Happening::Written(uid, index, generation, record) => {
                let world = self.of(&uid);
                world.record = Some(record);
                world.save_in_flight = false;
                self.tell_of(index, PodObservation::Saved { generation });
            }
            Happening::Erased(uid, index) => {
                self.erase(&uid);
                self.tell_of(index, PodObservation::Forgotten);
            }
        }
    }

    fn erase(&mut self, uid: &Uid) {
        let world = self.of(uid);
        world.record = None;
        world.shown_terminal = None;
        world.gone_by = None;
        world.index = None;
        world.begun.iter_mut().for_each(Vec::clear);
        world.saves = 0;
    }

    /// What is always true, of the world and of what is shown of it.
    fn watch(&mut self) {
        let now = self.now;
        for change in self.node.take_changed() {
            let Change::Status(index) = change else { continue };
            let Some(state) = self.node.pod(index) else { continue };
            let (uid, phase) = (state.pod().uid.clone(), state.phase());
            let status = crate::status::of(state, Anchor(0), None);
            let durable = state.is_unwanted();
            let world = self.pods.iter_mut().find(|world| world.pod.uid == uid).expect("a pod of this world");
            // `lastState` and `user` do not outlive a reboot.
            let containers = status["containerStatuses"].as_array().into_iter().flatten();
            let containers =
                containers.map(|one| json!([one["name"], one["state"], one["restartCount"]])).collect();
            match &world.shown_terminal {
                Some((shown, before)) => {
                    assert_eq!(*shown, phase, "{uid} was over\n{}", self.log);
                    assert_eq!(before, &containers, "{uid} was over");
                }
                None if phase.is_terminal() => {
                    assert!(world.alive.is_empty(), "{uid} is said to be over, and runs");
                    let on_flash = world.record.as_ref().is_some_and(|record| record.phase == phase);
                    assert!(on_flash || durable, "{uid} is said to be over, and flash does not know");
                    world.shown_terminal = Some((phase, containers));
                }
                None => {}
            }
        }
        for world in &self.pods {
            if let Some(gone_by) = world.gone_by {
                assert!(
                    now <= gone_by || world.alive.is_empty(),
                    "{} outlives its grace\n{}",
                    world.pod.uid,
                    self.log
                );
            }
        }
        let executes = |(index, attempt, kind): &&(PodIndex, Attempt, ProbeKind)| {
            self.pods.iter().filter(|world| world.index == Some(*index)).any(|world| {
                let probe = world.pod.spec.container(attempt.container).probe(*kind);
                let exec = probe.is_some_and(|probe| matches!(probe.action, ProbeAction::Exec(_)));
                exec && world.alive.contains_key(attempt)
            })
        };
        let probes = self.probes_in_flight.iter().filter(executes).count();
        assert!(probes <= EXEC_PROBES_AT_ONCE, "{probes} exec probes at once\n{}", self.log);
        let writes = self.pods.iter().filter(|world| world.save_in_flight).count();
        assert!(writes <= WRITES_AT_ONCE, "{writes} records are written at once");
    }

    /// Nothing of a pod is alive, and nothing of it is left.
    pub(crate) fn is_gone(&self, uid: &Uid) -> bool {
        let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
        world.alive.is_empty()
            && world.sandbox == WorldSandbox::None
            && world.record.is_none()
            && self.node.index_of(uid).is_none()
    }

    /// Runs of a container that really are alive.
    pub(crate) fn alive(&self, uid: &Uid, container: u8) -> Option<u32> {
        let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
        world.alive.keys().find(|attempt| attempt.container.0 == container).map(|attempt| attempt.number)
    }

    /// The status that is shown of the pod.
    pub(crate) fn status(&self, uid: &Uid) -> Value {
        let state =
            self.node.index_of(uid).and_then(|index| self.node.pod(index)).expect("a pod that is here");
        crate::status::of(state, Anchor(0), Some([192, 168, 1, 7].into()))
    }

    pub(crate) fn of(&mut self, uid: &Uid) -> &mut WorldPod {
        self.pods.iter_mut().find(|world| world.pod.uid == *uid).expect("a pod of this world")
    }

    /// Longer than all answers that a stop waits for.
    fn slack(&self) -> Duration {
        if self.weather.failures > 0 { secs(10_000) } else { self.weather.latency * 4 + secs(3) }
    }

    fn fails(&mut self) -> bool {
        self.weather.failures > 0 && self.chance.percent(self.weather.failures)
    }

    /// Told at once.
    fn tell(&mut self, seen: Observation) {
        if let Observation::Wanted { pod, .. } | Observation::Found(Found { pod, .. }) = &seen {
            self.told_pods.push(pod.clone());
        }
        self.ring.observed(self.now, &self.node, &seen, None);
        self.keep_told();
        self.node.observe(self.now, seen);
    }

    /// A ring holds the last; here all are kept.
    fn keep_told(&mut self) {
        let next = self.told.last().map_or(0, |(number, ..)| number + 1);
        let new = self.ring.since(next).map(|(number, line)| (number, line.at, line.entry.clone()));
        self.told.extend(new);
    }

    /// Tells another core what that of this agent was told: it must ask for the same.
    pub(crate) fn replay(&mut self) {
        self.ring = Ring::default();
        let (mut again, mut pods) = (Again::default(), std::mem::take(&mut self.told_pods).into_iter());
        for (number, at, entry) in std::mem::take(&mut self.told) {
            let told = again.entry(number, at, entry, |_| Ok(pods.next().expect("one for each entry")));
            told.unwrap_or_else(|error| panic!("{error}\n{}", self.log));
        }
    }

    fn tell_of(&mut self, index: PodIndex, seen: PodObservation) {
        if self.weather.repeats > 0 && self.chance.percent(self.weather.repeats) {
            let again = Duration::from_millis(self.chance.below(5_000));
            // What carries no number that is used once is told once.
            let numbered = matches!(
                seen,
                PodObservation::Started { .. }
                    | PodObservation::Exited { .. }
                    | PodObservation::Probed { .. }
                    | PodObservation::Saved { .. }
            );
            if numbered {
                self.after(again, Happening::ToldOf(index, seen.clone()));
            }
        }
        self.after(Duration::ZERO, Happening::ToldOf(index, seen));
    }

    fn answer_of(&mut self, index: PodIndex, seen: PodObservation) {
        self.after_latency(Happening::ToldOf(index, seen));
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

/// What is known of a run that started.
pub(crate) fn started(at: Instant, attempt: Attempt) -> StartedContainer {
    StartedContainer {
        at,
        id: format!("{:060}{:04}", attempt.container.0, attempt.number).into(),
        image: "docker.io/library/app:1".into(),
        image_id: "docker.io/library/app@sha256:00".into(),
        user: User { uid: 1000, gid: 1000, supplemental_groups: vec![1000] },
        stop_signal: 15,
    }
}
