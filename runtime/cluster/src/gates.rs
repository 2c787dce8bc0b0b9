//! Readiness gates of pods of the cluster: their conditions are set there, and decide here whether a pod is ready.

use serde_json::Value;

use nodlet_core::facts::{ClientCondition, MAX_CLIENT_CONDITION_BYTES, MAX_CLIENT_CONDITIONS};

/// The types of the conditions that the readiness gates of a pod require.
pub fn types(pod: &Value) -> impl Iterator<Item = &str> {
    let gates = pod["spec"]["readinessGates"].as_array().into_iter().flatten();
    gates.filter_map(|gate| gate["conditionType"].as_str())
}

/// The conditions that others have set on a pod of this board: those of its readiness gates as in the cluster's status,
/// and further ones as `present`. `None` if the pod has no readiness gates.
pub fn conditions(
    local: &Value,
    status: &Value,
    present: &[ClientCondition],
) -> Option<Vec<ClientCondition>> {
    types(local).next()?;
    let is_gate = |kind: &str| types(local).any(|gate| gate == kind);
    let known = status["conditions"].as_array().into_iter().flatten();
    let known = known.filter(|condition| condition["type"].as_str().is_some_and(is_gate));
    let others = present.iter().filter(|condition| !is_gate(&condition.kind)).cloned();
    let known = known.filter_map(|condition| serde_json::from_value(condition.clone()).ok());
    let mut bytes = 0;
    let has_room = |condition: &ClientCondition| {
        bytes += condition.bytes();
        bytes <= MAX_CLIENT_CONDITION_BYTES
    };
    Some(known.chain(others).take(MAX_CLIENT_CONDITIONS).take_while(has_room).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_conditions_of_gates_are_those_of_the_cluster_and_others_stay() {
        let condition = |kind: &str, status: &str| ClientCondition {
            kind: kind.into(),
            status: status.into(),
            ..ClientCondition::default()
        };
        let local =
            json!({ "spec": { "readinessGates": [{ "conditionType": "a/b" }, { "conditionType": "c" }] } });
        let status = json!({ "conditions": [
            { "type": "Ready", "status": "True" },
            { "type": "a/b", "status": "True", "lastProbeTime": null, "lastTransitionTime": "t" },
        ] });
        let present = [condition("a/b", "False"), condition("c", "True"), condition("mine", "True")];
        let gate = ClientCondition { last_transition_time: Some("t".into()), ..condition("a/b", "True") };
        assert_eq!(conditions(&local, &status, &present), Some(vec![gate, condition("mine", "True")]));
        assert_eq!(conditions(&json!({ "spec": {} }), &status, &present), None);
    }
}
