//! Invariants of admission: the pods with a sandbox request no more than the node has, only a critical pod
//! preempts others, and a rejected pod never starts.

use std::rc::Rc;

use serde_json::Value;

use super::Sim;
use crate::facts::*;
use crate::pod::{NODE_LOW, PodState};
use crate::pressure::StarvedResource;
use crate::spec::*;

impl Sim {
    /// Sets the Node object, for this agent and the next ones.
    pub(crate) fn on(mut self, info: NodeInfo) -> Self {
        self.info = Some(info);
        self.observe_node();
        self
    }

    pub(super) fn observe_node(&mut self) {
        if let Some(info) = self.info.clone() {
            self.observe(Observation::Node(Box::new(info)));
        }
    }

    /// Checks that a new sandbox fits beside the existing ones.
    pub(super) fn check_room(&self, new: &Rc<Pod>) {
        if self.info.is_none() {
            return;
        }
        self.check_amounts(new);
        let state = self.node.index_of(&new.uid).and_then(|index| self.node.pod(index));
        assert!(!state.is_some_and(PodState::is_rejected), "{} was rejected, and begins", new.uid);
    }

    /// Checks that a preempted pod makes room for a critical pod of a higher priority.
    pub(super) fn check_preemption(&self, victim: &Pod) {
        let is_more = |world: &&super::WorldPod| {
            world.wanted && world.pod.is_critical() && world.pod.priority > victim.priority
        };
        assert!(self.pods.iter().any(|world| is_more(&world)), "{} is preempted for nobody", victim.uid);
    }

    /// Checks that no pod is evicted for disk space while files of another evicted pod exist.
    pub(super) fn check_eviction(&self, victim: PodIndex, message: &str) {
        let resources =
            [StarvedResource::EphemeralStorage, StarvedResource::Inodes].map(StarvedResource::name);
        if !resources.iter().any(|name| message.starts_with(&format!("{NODE_LOW}{name}."))) {
            return;
        }
        for other in self.node.pods().filter(|other| other.index() != victim && other.is_victim()) {
            let world = self.pods.iter().find(|world| world.pod.uid == other.pod().uid);
            let has_files = world.is_some_and(|world| world.volumes);
            assert!(
                !has_files,
                "{}: another pod is evicted before its files are gone\n{}",
                other.pod().uid,
                self.log
            );
        }
    }

    /// Checks that `DisruptionTarget` of a preempted or interrupted pod is shown together with the terminal
    /// phase: when no process of the pod is left (pod-semantics 6.2).
    pub(super) fn check_disruption(&self, state: &PodState, status: &Value) {
        let uid = &state.pod().uid;
        let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        let is_disrupted = conditions.any(|one| one["reason"] == "TerminationByKubelet");
        assert!(
            !is_disrupted || world.alive.is_empty(),
            "{uid} is said to be disrupted, and runs\n{}",
            self.log
        );
    }
}
