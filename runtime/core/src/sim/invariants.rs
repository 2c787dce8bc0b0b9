//! The invariants of the world that hold at any moment, and of the published statuses.

use serde_json::{Value, json};

use super::{Sim, WorldPod, WorldSandbox};
use crate::facts::*;
use crate::node::*;
use crate::spec::*;
use crate::time::Instant;

impl Sim {
    /// Checks that the shown status of each pod is up to date: the core has reported each change.
    pub(super) fn check_published(&self) {
        for state in self.node.pods() {
            let uid = &state.pod().uid;
            let world = self.pods.iter().find(|world| world.pod.uid == *uid).expect("a pod of this world");
            world.shell.check_shown(state, &self.log);
        }
    }

    /// Checks that nothing is due right before `next`, the next moment at which the engine plans: otherwise the
    /// core has asked to be woken too late.
    pub(super) fn check_idle(&mut self, next: Instant) {
        let before = Instant(next.0.saturating_sub(1));
        if before <= self.now {
            return;
        }
        let plan = self.node.plan(before);
        assert!(plan.actions.is_empty(), "asks to be woken too late for {:?}\n{}", plan.actions, self.log);
        let changes = self.node.take_changed();
        assert!(changes.is_empty(), "a status changes though nobody was woken: {changes:?}\n{}", self.log);
    }

    /// Records when pods began to stop, also those that need no action yet.
    pub(super) fn note_stops(&mut self) {
        for state in self.node.pods().filter(|state| state.termination_grace().is_some()) {
            let uid = &state.pod().uid;
            if let Some(world) = self.pods.iter_mut().find(|world| world.pod.uid == *uid) {
                world.order.notes_stop(self.now, state.termination_grace());
            }
        }
    }

    /// Checks the invariants of the world, and of the published statuses.
    pub(super) fn watch(&mut self) {
        let now = self.now;
        for change in self.node.take_changed() {
            let index = match change {
                NodeChange::Status(index) => index,
                NodeChange::Gone { index, again, .. } => {
                    let world = self.pods.iter().find(|world| world.index == Some(index));
                    let is_gone = |world: &WorldPod| world.is_still() && world.sandbox == WorldSandbox::None;
                    assert!(world.is_none_or(is_gone), "{index:?} is dropped too early\n{}", self.log);
                    self.resumed.extend(again.map(|again| again.resumes));
                    continue;
                }
            };
            let Some(status) = self.publish(index) else { continue };
            let Some(state) = self.node.pod(index) else { continue };
            let (uid, phase) = (state.pod().uid.clone(), state.phase());
            self.check_gates(state, &status);
            self.check_disruption(state, &status);
            let durable = state.is_unwanted();
            let world = self.pods.iter_mut().find(|world| world.pod.uid == uid).expect("a pod of this world");
            world.check_shown_runs(now, &status, &self.log);
            // `lastState` and `user` do not survive a reboot.
            let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
            let containers = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
            let mut containers: Vec<Value> =
                containers.map(|one| json!([one["name"], one["state"], one["restartCount"]])).collect();
            match &world.shown_terminal {
                Some((shown, before)) => {
                    // A finished pod may get ephemeral containers, which never start.
                    containers.retain(|one| before.iter().any(|before| before[0] == one[0]));
                    assert_eq!(*shown, phase, "{uid} had a terminal phase\n{}", self.log);
                    assert_eq!(before, &containers, "{uid} had a terminal phase\n{}", self.log);
                }
                None if state.is_interrupted() => {
                    assert!(!phase.is_terminal() || world.is_still(), "{uid} has a terminal phase and runs");
                }
                None if phase.is_terminal() => {
                    assert!(world.is_still(), "{uid} has a terminal phase and runs\n{}", self.log);
                    let on_flash = world.record.as_ref().is_some_and(|record| record.phase == phase);
                    assert!(on_flash || durable, "{uid} has a terminal phase that is not on flash");
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
        self.check_promises();
        let executes = |((index, attempt, kind), _): &&((PodIndex, Attempt, ProbeKind), Instant)| {
            self.pods.iter().filter(|world| world.index == Some(*index)).any(|world| {
                let probe = world.pod.spec.container(attempt.container).probe(*kind);
                let exec = probe.is_some_and(|probe| matches!(probe.action, ProbeAction::Exec(_)));
                exec && world.alive.contains_key(attempt)
            })
        };
        let probes: Vec<_> = self.probes_in_flight.iter().filter(executes).collect();
        let places =
            probes.iter().filter(|(_, began)| self.now.since(*began) < EXEC_PROBE_HOLDS_PLACE).count();
        assert!(places <= EXEC_PROBES_AT_ONCE, "{places} exec probes hold places at once\n{}", self.log);
        for world in &self.pods {
            let of_pod = probes.iter().filter(|((index, ..), _)| world.index == Some(*index)).count();
            assert!(of_pod <= EXEC_PROBES_OF_A_POD, "{of_pod} exec probes of a pod at once\n{}", self.log);
        }
        let writes = self.pods.iter().filter(|world| world.save_in_flight).count();
        assert!(writes <= WRITES_AT_ONCE, "{writes} records are written at once");
    }
}
