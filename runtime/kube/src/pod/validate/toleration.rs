//! Tolerations.

use serde_json::Value;

use crate::object::check::invalid;
use crate::object::field::{Errors, FieldError, Path};
use crate::object::rules;
use crate::object::value::text;

pub(crate) fn tolerations(tolerations: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let (key, operator, value, effect) = (
            text(toleration, "key"),
            text(toleration, "operator"),
            text(toleration, "value"),
            text(toleration, "effect"),
        );
        if !key.is_empty() {
            invalid(&path.child("key"), key, rules::qualified_name(key), errors);
        } else if operator != "Exists" {
            errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if toleration.get("tolerationSeconds").is_some() && effect != "NoExecute" {
            errors.push(FieldError::invalid(
                &path.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            ));
        }
        match operator {
            "Equal" | "" => {
                let details = rules::label_value(value);
                if !details.is_empty() {
                    errors.push(FieldError::invalid(&path.child("operator"), value, details.join(";")));
                }
            }
            "Exists" if !value.is_empty() => errors.push(FieldError::invalid(
                &path.child("operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            )),
            "Exists" => {}
            "Lt" | "Gt" => errors.push(FieldError::not_supported(
                &path.child("operator"),
                operator,
                &["Equal", "Exists", "Lt", "Gt"],
            )),
            _ => errors.push(FieldError::not_supported(
                &path.child("operator"),
                operator,
                &["Equal", "Exists"],
            )),
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.is_empty() && !effects.contains(&effect) {
            errors.push(FieldError::not_supported(&path.child("effect"), effect, &effects));
        }
    }
}
