//! The replay of a ring: calls [`nodlet_core::replay`], and admits the objects of the ring's pods for it.
//!
//! Reads the output of `nodlet ring -f -o json`. `cargo run -p nodlet-runtime --example replay FILE` replays
//! a file; the tests replay the rings of all agents that they start.

pub use nodlet_core::replay::{ReplayError, Replayed};

use nodlet_kube::manifest;

/// Replays the lines of a ring from its first entry on. The last line may be incomplete, since the agent may
/// have been killed while it was written.
///
/// # Errors
/// The lines are not a complete ring, or the core decides otherwise than recorded.
pub fn replay(lines: &str) -> Result<Replayed, ReplayError> {
    nodlet_core::replay::replay(lines, |object, node| {
        manifest::read_again(object, node).map(|admitted| admitted.pod)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Format, SharedRing};
    use nodlet_core::facts::{Observation, PodIndex, PodObservation};
    use nodlet_core::node::Node;
    use nodlet_core::time::Instant;
    use nodlet_kube::manifest::Validation;

    /// The ring of an agent with one pod.
    fn recorded() -> String {
        let (mut node, ring) = (Node::new(), SharedRing::default());
        let yaml =
            b"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}";
        let pods = manifest::parse("a.yaml", yaml, Validation::Strict, "board").expect("it is right");
        let object = serde_json::value::to_raw_value(&pods[0].object).expect("JSON").into();
        let observe = |node: &mut Node, at: u64, seen: Observation| {
            ring.observed(Instant(at), node, &seen, Some(&object));
            node.observe(Instant(at), seen);
            let plan = node.plan(Instant(at));
            ring.planned(Instant(at), node, &plan);
        };
        observe(&mut node, 1, Observation::Wanted { pod: pods[0].pod.clone(), record: None, status: None });
        observe(&mut node, 2, Observation::SourcesSeen);
        let ready = PodObservation::SandboxReady { ip: None, at: Instant(3) };
        observe(&mut node, 3, Observation::Of(PodIndex(1), ready));
        ring.lines(0, usize::MAX, Format::Json).0
    }

    #[test]
    fn the_same_facts_bring_the_same_actions() {
        let lines = recorded();
        assert_eq!(replay(&lines).expect(&lines), Replayed { observations: 3, actions: 2 });
        assert!(replay(&lines[..lines.len() - 9]).is_ok(), "an agent may be killed while it writes");
    }

    #[test]
    fn a_plan_without_actions_is_recorded_and_replayed_too() {
        let lines = recorded();
        // What there was to do came with the first plan; this one moves nothing but stages.
        assert_eq!(lines.matches("{\"Planned\":{\"actions\":0,").count(), 1, "{lines}");
    }

    #[test]
    fn a_replay_reports_the_first_difference_from_the_recording() {
        let lines = recorded();
        let refused =
            |lines: &str| nodlet_host::error::chain(&replay(lines).expect_err("it does not replay"));
        let other = lines.replacen("CreateSandbox", "RemoveSandbox", 1);
        assert_eq!(
            refused(&other),
            "decide the same at entry 2: it asked for RemoveSandbox of pod 1, \
             and now asks for CreateSandbox of pod 1"
        );
        let more = lines.replacen("{\"actions\":1,", "{\"actions\":0,", 1);
        assert!(
            refused(&more).ends_with(
                "at entry 1: it asked for 0 actions, and now asks for 1, the last CreateSandbox of pod 1"
            ),
            "{more}"
        );
        let later = lines.replacen("\"wake_at\":null", "\"wake_at\":7", 1);
        assert_eq!(
            refused(&later),
            "decide the same at entry 1: it asked for the next plan at 7 ns, \
             and now asks for the next plan when there is news"
        );
        let (_, later) = lines.split_once('\n').expect("several lines");
        assert!(refused(later).starts_with("replay: entries before 1 are lost"), "{later}");
        assert!(refused("{}\n{}").starts_with("read line 1: missing field"));
        let large = lines.replacen("\"apiVersion\":\"v1\"", "\"apiVersion\":\"v2\"", 1);
        assert!(refused(&large).starts_with("admit the pod of entry 0:"), "{}", refused(&large));
    }
}
