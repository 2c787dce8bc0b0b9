//! Hints that `apply` adds to what Kubernetes says of a manifest: where a field belongs, and how a quantity is written.

use nodlet_kube::schema;

/// The hint for an error; empty if there is none.
pub(crate) fn of(error: &str) -> String {
    if error.contains("quantities must match the regular expression") {
        return "\nHint: write amounts as in 500m, 64Mi (of 1024) or 64M (of 1000)".to_owned();
    }
    let place = error.split_once("unknown field \"").and_then(|(_, rest)| Some(rest.split_once('"')?.0));
    match place.and_then(|place| Some((place, owner(place)?))) {
        Some((place, owner)) => {
            let field = place.rsplit('.').next().unwrap_or(place);
            format!("\nHint: {field} is a field of {owner}: check the indentation")
        }
        None => String::new(),
    }
}

/// The object that has the last field of a path, if the field was written one level too high or too low.
fn owner(place: &str) -> Option<&'static str> {
    let (within, field) = place.rsplit_once('.').unwrap_or(("", place));
    let owners = match within {
        "spec" => &[("Container", "the containers, below spec.containers"), ("ObjectMeta", "metadata")][..],
        "" | "metadata" => {
            &[("Pod", "the Pod, at the left margin"), ("PodSpec", "spec"), ("ObjectMeta", "metadata")]
        }
        _ if within.ends_with(']') => &[("PodSpec", "spec")],
        _ => &[],
    };
    owners
        .iter()
        .find(|(name, _)| schema::find(name).is_some_and(|of| of.field(field).is_some()))
        .map(|(_, owner)| *owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misplaced_field_is_named_with_its_owner_and_a_quantity_with_examples() {
        let unknown = |place: &str| of(&format!("strict decoding error: unknown field \"{place}\""));
        for (place, expected) in [
            (
                "spec.image",
                "\nHint: image is a field of the containers, below spec.containers: check the indentation",
            ),
            (
                "metadata.spec",
                "\nHint: spec is a field of the Pod, at the left margin: check the indentation",
            ),
            ("containers", "\nHint: containers is a field of spec: check the indentation"),
            ("labels", "\nHint: labels is a field of metadata: check the indentation"),
            ("spec.labels", "\nHint: labels is a field of metadata: check the indentation"),
            ("spec.containers[0].volumes", "\nHint: volumes is a field of spec: check the indentation"),
            ("spec.frobnicate", ""),
            ("spec.containers[0].frobnicate", ""),
        ] {
            assert_eq!(unknown(place), expected, "{place}");
        }
        let quantity = of("Invalid value: \"64MB\": quantities must match the regular expression '^'");
        assert!(quantity.contains("64Mi"), "{quantity}");
        assert_eq!(of("pods \"web\" not found"), "");
    }
}
