//! The simulated world for the tests of other crates: pods come and go as their sources decide, and the world checks
//! all that it checks in the tests of the core.

use std::rc::Rc;
use std::time::Duration;

use super::{Chance, Fate, Sim, Weather, WorldSandbox, secs};
use crate::facts::*;
use crate::pod::PodState;
use crate::spec::{Pod, Uid};

/// A node with its core, and the true state of its pods. Panics if the core breaks a rule.
#[allow(missing_debug_implementations, reason = "it prints its log when a rule is broken")]
pub struct NodeWorld(Sim);

/// Questions and reports of a node about the claims of its pods. No time passes before it is handled.
#[derive(Clone, Debug)]
pub enum ClaimNews {
    /// The pod needs the volumes of its claims: [`NodeWorld::answer_claims`] is called next for it.
    Requested(PodIndex, Rc<Pod>),
    /// The pod has no sandbox any more, and needs no volumes.
    Released(PodIndex, Uid),
}

impl NodeWorld {
    /// A node without pods. `seed` decides what happens to runs, and how long operations take.
    pub fn new(seed: u64) -> NodeWorld {
        let mut sim = Sim::empty(move |name, number| {
            match Chance(seed ^ (name.len() as u64 + u64::from(number) * 31)).below(8) {
                0 => Fate::IgnoresTerm,
                1 => Fate::Exits(1, secs(3)),
                2 => Fate::Exits(0, secs(9)),
                _ => Fate::Runs,
            }
        });
        sim.chance = Chance(seed);
        sim.weather = Weather { latency: secs(seed % 3), failures: 0, remains: 0, repeats: 10 };
        NodeWorld(sim)
    }

    /// Reports a pod of a source to the core, unless the core has it as it is.
    pub fn want(&mut self, pod: &Rc<Pod>) {
        let sim = &mut self.0;
        let uid = &pod.uid;
        let state = sim.node.index_of(uid).and_then(|index| sim.node.pod(index));
        let goes = state.is_none_or(PodState::is_unwanted);
        match sim.pods.iter_mut().find(|known| known.pod.uid == *uid) {
            Some(known) if known.wanted && known.pod == *pod => {}
            Some(known) if known.wanted && !goes => {
                // An update counts the generation.
                let new = Pod { generation: pod.generation - 1, ..Pod::clone(pod) };
                sim.update(uid, |pod| *pod = new);
            }
            Some(known) => {
                known.pod = pod.clone();
                sim.want(Pod::clone(pod));
            }
            None => drop(sim.want(Pod::clone(pod))),
        }
    }

    /// Reports to the core that no source wants the pod any more.
    pub fn unwant(&mut self, uid: &Uid, grace: Option<Duration>) {
        self.0.unwant(uid, grace);
    }

    /// Creates or changes the ConfigMap of this name, or deletes it, and reports that to the core.
    pub fn set_config_map(&mut self, name: &str, exists: bool) {
        self.0.change_object(name, exists);
    }

    /// The time since the node began.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now.0)
    }

    /// Lets this time pass, or less: until there is news about claims.
    pub fn run(&mut self, time: Duration) {
        self.0.run_until(self.now() + time);
    }

    /// The news about claims.
    pub fn claim_news(&mut self) -> Vec<ClaimNews> {
        std::mem::take(&mut self.0.claim_news)
    }

    /// Reports whether a pod gets the volumes of its claims.
    pub fn answer_claims(&mut self, index: PodIndex, uid: &Uid, gets: bool) {
        if gets {
            return self.0.make_sandbox(uid, index);
        }
        let (reason, message) = (SandboxFailure::ObjectNotFound, "no claim".into());
        self.0.answer_of(index, PodObservation::SandboxFailed { reason, remains: false, message });
    }

    /// Reports to the core that the claims of these pods have changed.
    pub fn claims_changed(&mut self, pods: impl IntoIterator<Item = PodIndex>) {
        for index in pods {
            self.0.later(secs(0), Observation::Of(index, PodObservation::ObjectsChanged));
        }
    }

    /// The pods of the core.
    pub fn pods(&self) -> Vec<(PodIndex, Rc<Pod>)> {
        self.0.node.pods().map(|state| (state.index(), state.pod().clone())).collect()
    }

    /// The UIDs of the pods that have a sandbox, or remains of one.
    pub fn with_sandbox(&self) -> Vec<Uid> {
        let made = self.0.pods.iter().filter(|world| world.sandbox != WorldSandbox::None);
        made.map(|world| world.pod.uid.clone()).collect()
    }

    /// Kills the agent, or cuts the power, and starts an agent with the pods of its sources.
    pub fn crash(&mut self, power: bool) {
        _ = if power { self.0.reboot() } else { self.0.restart_agent() };
    }

    /// The pods that sources want.
    pub fn wanted(&self) -> Vec<Rc<Pod>> {
        self.0.pods.iter().filter(|world| world.wanted).map(|world| world.pod.clone()).collect()
    }

    /// Whether the core has the pod, and it has finished.
    pub fn has_terminal_phase(&self, uid: &Uid) -> bool {
        self.0
            .node
            .index_of(uid)
            .and_then(|index| self.0.node.pod(index))
            .is_some_and(PodState::has_terminal_phase)
    }

    /// Whether no process, sandbox or record of the pod is left.
    pub fn is_gone(&self, uid: &Uid) -> bool {
        self.0.pods.iter().all(|world| world.pod.uid != *uid) || self.0.is_gone(uid)
    }

    /// Ends all failures of operations and of containers.
    pub fn heal(&mut self) {
        self.0.weather = Weather::default();
        self.0.fates(|_, _| Fate::Runs);
    }

    /// Checks the end of a story: all failures end, and the wait is long enough for all that is under way. Then no
    /// process, sandbox or record of an unwanted pod is left, wanted pods run or have finished, and their volumes show
    /// the present ConfigMaps.
    pub fn finish(&mut self) {
        self.heal();
        self.run(secs(1500));
        for world in self.0.pods.clone() {
            let uid = &world.pod.uid;
            if !world.wanted {
                assert!(self.0.is_gone(uid), "{uid} is not gone\n{}", self.0.log);
                continue;
            }
            let status = self.0.status(uid);
            let phase = status["phase"].as_str().unwrap_or_default().to_owned();
            let runs = self.0.alive(uid, 0).is_some();
            let has_terminal_phase = phase == "Succeeded" || phase == "Failed";
            assert!(runs != has_terminal_phase, "{uid} is {phase}\n{}", self.0.log);
            self.0.check_volumes(&world);
        }
        self.0.replay();
    }
}
