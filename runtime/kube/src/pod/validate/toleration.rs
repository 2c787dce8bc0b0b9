//! Tolerations.

use crate::object::check::Field;
use crate::object::rules;

/// Checks the tolerations of a pod or of a class.
pub(crate) fn tolerations(owner: Field<'_, '_>) {
    for toleration in owner.items("tolerations") {
        let (key, operator) = (toleration.child("key"), toleration.child("operator"));
        let (value, effect) = (toleration.child("value").text(), toleration.child("effect"));
        if !key.text().is_empty() {
            key.check(rules::qualified_name);
        } else if operator.text() != "Exists" {
            operator.invalid(
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if toleration.get("tolerationSeconds").is_some() && effect.text() != "NoExecute" {
            effect.invalid("effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator.text() {
            "Equal" | "" => {
                let details = rules::label_value(value);
                if !details.is_empty() {
                    operator.invalid_text(value, details.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                operator.invalid_text(value, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            "Lt" | "Gt" => operator.not_supported(&["Equal", "Exists", "Lt", "Gt"]),
            _ => operator.not_supported(&["Equal", "Exists"]),
        }
        if !effect.text().is_empty() {
            effect.supported(&["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}
