//! Pods of the cluster: which of them this board runs, and what it reports about them. Pure.
//!
//! A pod becomes a manifest of the board, as a pod of any other source: the copy has no fields that only the cluster
//! acts on, and gets its service account's token from a Secret of the board.

mod copy;
mod status;

use std::time::Duration;

use serde_json::Value;

pub use copy::{
    LocalPod, TOKEN_PREFIX, Token, deny_own_objects, digest, local, local_object, local_volume,
    token_renewal, token_request, token_secret,
};
pub use status::{
    NotRun, Retirement, ended, final_deletion, first_deletion, is_held_back, is_sent_before, rejection,
    rejection_event, retirement, runs_again, status_patch, unready,
};

/// The annotation of a mirror pod: the hash of the pod that it shows (`ConfigMirrorAnnotationKey`).
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether a pod of the cluster is a mirror pod.
pub fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"][MIRROR].is_string()
}

/// The next step for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, or nothing yet.
    Nothing,
    /// Write the manifest, if it differs.
    Run,
    /// Remove the manifest, and end the pod within this time; `None` for the pod's own.
    End(Option<Duration>),
    /// Delete the pod from the cluster: it has ended here.
    Delete,
}

/// Decides about a pod as the cluster has it. `has_manifest` is whether this board has its manifest; `is_present`,
/// whether anything of it may still run here.
pub fn step(pod: &Value, has_manifest: bool, is_present: bool) -> Step {
    let metadata = &pod["metadata"];
    let has_terminal_phase = has_terminal_phase(pod);
    match (metadata["deletionTimestamp"].is_string(), has_manifest, is_present) {
        (true, true, _) => {
            let grace = metadata["deletionGracePeriodSeconds"].as_u64();
            // The smallest grace period of a kubelet.
            Step::End(grace.map(|seconds| Duration::from_secs(seconds.max(1))))
        }
        (true, false, true) => Step::Nothing,
        // Deleted already; others are to remove their finalizers.
        (true, false, false)
            if metadata["deletionGracePeriodSeconds"] == 0
                && metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty()) =>
        {
            Step::Nothing
        }
        (true, false, false) => Step::Delete,
        (false, true, _) => Step::Run,
        // Neither finished nor rejected pods run again.
        (false, false, _) if has_terminal_phase => Step::Nothing,
        (false, false, _) => Step::Run,
    }
}

/// Whether the phase of a pod is final.
pub fn has_terminal_phase(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// The ephemeral containers of a pod.
pub fn ephemeral(pod: &Value) -> &[Value] {
    pod["spec"]["ephemeralContainers"].as_array().map_or(&[], Vec::as_slice)
}

/// The ephemeral containers of a pod that the board's own pod lacks. That one may have others besides (`nodlet debug`).
pub fn new_ephemeral<'a>(pod: &'a Value, local: &Value) -> Vec<&'a Value> {
    let is_new = |new: &&Value| !ephemeral(local).iter().any(|known| known["name"] == new["name"]);
    ephemeral(pod).iter().filter(is_new).collect()
}

#[cfg(test)]
mod tests {
    mod damaged;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_of_a_deleted_node_is_deleted_ends_here_and_is_then_gone() {
        let pod = |metadata: Value| json!({ "metadata": metadata });
        let deleted =
            |grace: u64| pod(json!({ "deletionTimestamp": "now", "deletionGracePeriodSeconds": grace }));
        let mirror = |mut pod: Value| {
            pod["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "hash" });
            pod
        };
        for (object, is_present, expected) in [
            (pod(json!({})), true, Retirement::Begin),
            (pod(json!({})), false, Retirement::Begin),
            (deleted(30), true, Retirement::Await),
            (deleted(30), false, Retirement::Finish),
            (deleted(0), true, Retirement::Await),
            (deleted(0), false, Retirement::Done),
            (mirror(pod(json!({}))), false, Retirement::Finish),
            (mirror(deleted(30)), true, Retirement::Finish),
            (mirror(deleted(0)), false, Retirement::Done),
        ] {
            assert_eq!(retirement(&object, is_present), expected, "{object} {is_present}");
        }
    }

    #[test]
    fn new_ephemeral_containers_are_those_whose_names_the_board_does_not_know() {
        let pod = |names: &[&str]| {
            let all: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
            json!({ "spec": { "ephemeralContainers": all } })
        };
        for (cluster, board, new) in [
            (&["a"][..], &[][..], &["a"][..]),
            (&["a"], &["local"], &["a"]),
            (&["a", "b"], &["a", "local"], &["b"]),
            (&["a"], &["a", "local"], &[]),
            (&[], &["local"], &[]),
        ] {
            let (cluster, board) = (pod(cluster), pod(board));
            let found: Vec<&str> =
                new_ephemeral(&cluster, &board).iter().filter_map(|new| new["name"].as_str()).collect();
            assert_eq!(found, new, "{cluster} {board}");
        }
    }

    #[test]
    fn a_pod_runs_ends_and_is_deleted_once() {
        let pod = |phase: &str, grace: Option<u64>| {
            let mut pod = json!({ "metadata": {}, "status": { "phase": phase } });
            if let Some(grace) = grace {
                pod["metadata"] = json!({ "deletionTimestamp": "t", "deletionGracePeriodSeconds": grace });
            }
            pod
        };
        let seconds = |seconds| Step::End(Some(Duration::from_secs(seconds)));
        for (phase, grace, has_manifest, is_present, expected) in [
            ("Pending", None, false, false, Step::Run),
            ("Running", None, true, true, Step::Run),
            // Known to the cluster from before a reboot without its manifest: it is to run.
            ("Running", None, false, false, Step::Run),
            ("Failed", None, false, false, Step::Nothing),
            ("Succeeded", None, false, true, Step::Nothing),
            ("Succeeded", None, true, true, Step::Run),
            ("Running", Some(30), true, true, seconds(30)),
            ("Running", Some(0), true, true, seconds(1)),
            ("Running", Some(30), false, true, Step::Nothing),
            ("Running", Some(30), false, false, Step::Delete),
            ("Failed", Some(0), false, false, Step::Delete),
        ] {
            let found = step(&pod(phase, grace), has_manifest, is_present);
            assert_eq!(found, expected, "{phase} {grace:?} {has_manifest} {is_present}");
        }
    }

    #[test]
    fn a_pod_that_waits_for_its_finalizers_is_not_deleted_again() {
        let mut pod = json!({
            "metadata": { "deletionTimestamp": "t", "deletionGracePeriodSeconds": 30, "finalizers": ["a.b/c"] },
            "status": { "phase": "Failed" },
        });
        assert_eq!(step(&pod, false, false), Step::Delete);
        pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        assert_eq!(step(&pod, false, false), Step::Nothing);
        assert_eq!(step(&pod, true, true), Step::End(Some(Duration::from_secs(1))));
        pod["metadata"]["finalizers"] = json!([]);
        assert_eq!(step(&pod, false, false), Step::Delete);
    }
}
