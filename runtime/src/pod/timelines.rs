//! The rules of a pod's life, as a person would write down what takes place.

use super::sim::*;
use crate::node::*;
use crate::spec::*;

#[test]
fn a_container_that_ignores_term_is_killed_when_its_grace_is_over() {
    let mut sim = Sim::new(pod(RestartPolicy::Always), |_, _| Fate::IgnoresTerm);
    sim.run_until(secs(5));
    sim.unwant(&"u1".into(), None);
    sim.run_until(secs(60));
    assert_eq!(sim.trace, "   0s app#0 start\n   5s app#0 Term\n  35s app#0 Kill\n  35s app#0 exits 137\n");
    assert!(sim.is_gone(&"u1".into()));
}
