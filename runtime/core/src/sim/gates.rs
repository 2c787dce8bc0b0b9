//! Gates of a pod, and their invariants: no pod starts before its scheduling gates are removed, and none is
//! ready while one of its readiness gates is closed.

use serde_json::Value;

use super::{Sim, WorldSandbox};
use crate::facts::*;
use crate::pod::PodState;
use crate::spec::*;

impl Sim {
    /// Removes the scheduling gates of a pod, in the manifest and, if the pod is wanted, in the core.
    pub(crate) fn ungate(&mut self, uid: &Uid) -> &mut Self {
        let Some(world) = self.pods.iter_mut().find(|world| world.pod.uid == *uid) else { return self };
        if !world.pod.is_gated() {
            return self;
        }
        let mut free = (*world.pod).clone();
        free.spec.scheduling_gates.clear();
        free.generation += 1;
        world.pod = free.into();
        let (pod, record, wanted) = (world.pod.clone(), world.record.clone(), world.wanted);
        if wanted {
            self.observe(Observation::Wanted { pod, record, status: None });
        }
        self
    }

    /// Changes a label of a pod in place, in the manifest and, if the pod is wanted, in the core.
    pub(crate) fn relabel(&mut self, uid: &Uid, value: u64) {
        let Some(world) = self.pods.iter_mut().find(|world| world.pod.uid == *uid) else { return };
        let mut other = (*world.pod).clone();
        other.labels.insert("tier".into(), value.to_string());
        world.pod = other.into();
        let (pod, record, wanted) = (world.pod.clone(), world.record.clone(), world.wanted);
        if wanted {
            self.observe(Observation::Wanted { pod, record, status: None });
        }
    }

    /// Sets conditions in a pod's status, as a client does.
    pub(crate) fn set_client_conditions(&mut self, uid: &Uid, conditions: Vec<ClientCondition>) -> &mut Self {
        if let Some(index) = self.node.index_of(uid) {
            self.observe(Observation::Of(
                index,
                PodObservation::ClientConditions { conditions: conditions.into() },
            ));
        }
        self
    }

    /// Checks the invariants of gates in a published status.
    pub(super) fn check_gates(&self, state: &PodState, status: &Value) {
        let pod = state.pod();
        let is_true = |kind: &str| {
            let conditions = status["conditions"].as_array().into_iter().flatten();
            conditions.filter(|one| one["type"] == kind).any(|one| one["status"] == "True")
        };
        if pod.is_gated() {
            assert!(status["containerStatuses"].is_null() && status["startTime"].is_null(), "{status}");
            assert!(!is_true("PodScheduled") && !is_true("Ready"), "{status}");
            let world = self.pods.iter().find(|world| world.pod.uid == pod.uid).expect("a pod of this world");
            assert!(
                world.sandbox == WorldSandbox::None && world.alive.is_empty(),
                "{} is gated, and begins",
                pod.uid
            );
        } else if !state.is_rejected() {
            assert!(is_true("PodScheduled"), "{status}");
            let open = pod.spec.readiness_gates.iter().all(|gate| is_true(gate));
            assert_eq!(is_true("Ready"), is_true("ContainersReady") && open, "{status}");
        }
    }
}
