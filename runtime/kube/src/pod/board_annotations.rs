//! nodlet's own annotations of pods, for what Kubernetes has no field: exclusive cpus and real-time priorities of
//! containers. Their keys name a container, as those for AppArmor profiles did.

use serde_json::Value;

use crate::object::check::Field;
use crate::object::value::{list, text};
use nodlet_core::spec::{Container, Pod};

/// How many exclusive cpus a container gets.
pub(super) const EXCLUSIVE_CPUS: &str = "exclusive-cpus.nodlet.dev/";
/// The highest real-time priority that a container may use.
pub(super) const RTPRIO: &str = "rtprio.nodlet.dev/";

/// The annotations with their highest values.
const KNOWN: [(&str, i64); 2] = [(EXCLUSIVE_CPUS, 1024), (RTPRIO, 99)];

/// Validates nodlet's annotations of a Pod.
pub(super) fn check(pod: &Value, annotations: Field<'_, '_>) {
    for (key, annotation) in annotations.entries() {
        let known = KNOWN.iter().find_map(|(prefix, most)| Some((key.strip_prefix(prefix)?, *most)));
        let Some((container, most)) = known else { continue };
        let mut all =
            ["initContainers", "containers"].into_iter().flat_map(|field| list(&pod["spec"], field));
        if !all.any(|known| text(known, "name") == container) {
            annotation.invalid_text(container, "container not found");
        }
        let value = annotation.text();
        let is_plain = value.bytes().all(|byte| byte.is_ascii_digit()) && !value.starts_with('0');
        if !is_plain || !value.parse().is_ok_and(|number: i64| (1..=most).contains(&number)) {
            annotation.invalid(format!("must be a number from 1 to {most}"));
        }
    }
}

/// Why an annotation in nodlet's domain has no effect. `None` for others, and for those with an effect.
pub(super) fn without_effect(key: &str) -> Option<String> {
    // The name of the container may have been forgotten, and the slash with it.
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let is_ours = domain.ends_with(".nodlet.dev") || key.starts_with("nodlet.dev/");
    let is_known = KNOWN.iter().any(|(prefix, _)| key.starts_with(prefix));
    (is_ours && !is_known)
        .then(|| format!("has no effect: nodlet acts on {EXCLUSIVE_CPUS}<container> and {RTPRIO}<container>"))
}

/// Puts the values of nodlet's annotations into the containers that they name.
pub(super) fn apply(pod: &mut Pod) {
    let Pod { annotations, spec, .. } = pod;
    for (key, value) in annotations.iter() {
        let mut with = |prefix: &str, set: fn(&mut Container, u16)| {
            let (Some(name), Ok(number)) = (key.strip_prefix(prefix), value.parse()) else { return };
            let mut all = spec.init_containers.iter_mut().chain(&mut spec.containers);
            if let Some(container) = all.find(|container| container.name == name) {
                set(container, number);
            }
        };
        with(EXCLUSIVE_CPUS, |container, number| {
            let name = nodlet_core::spec::container::EXCLUSIVE_CPUS;
            container.resources.exclusive_cpus = vec![(name.into(), number.into())];
        });
        with(RTPRIO, |container, number| container.resources.rtprio = number.into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::field::Errors;

    fn is_valid(pod: &Value) -> bool {
        let mut errors = Errors::default();
        check(pod, Field::root(&pod["metadata"]["annotations"], "metadata", &mut errors));
        errors.is_empty()
    }

    #[test]
    fn values_go_to_the_container_that_the_key_names() {
        let object = json!({
            "metadata": { "annotations": {
                "exclusive-cpus.nodlet.dev/app": "2",
                "rtprio.nodlet.dev/app": "50",
                "rtprio.nodlet.dev/init": "1",
            } },
            "spec": {
                "initContainers": [{ "name": "init" }],
                "containers": [{ "name": "app" }, { "name": "other" }],
            },
        });
        assert!(is_valid(&object));
        let spec = crate::pod::convert::pod(&object).spec;
        let of = |container: &Container| {
            let resources = &container.resources;
            (resources.exclusive_cpus.first().map_or(0, |(_, count)| *count), resources.rtprio)
        };
        assert_eq!(spec.containers.iter().map(of).collect::<Vec<_>>(), [(2, 50), (0, 0)]);
        assert_eq!(spec.init_containers.iter().map(of).collect::<Vec<_>>(), [(0, 1)]);
    }

    #[test]
    fn values_are_plain_numbers_within_their_bounds() {
        for (value, is_right) in [
            ("1", true),
            ("99", true),
            ("0", false),
            ("100", false),
            ("+1", false),
            ("010", false),
            ("", false),
        ] {
            let object = json!({
                "metadata": { "annotations": { "rtprio.nodlet.dev/app": value } },
                "spec": { "containers": [{ "name": "app" }] },
            });
            assert_eq!(is_valid(&object), is_right, "{value:?}");
        }
    }

    #[test]
    fn other_domains_are_left_alone() {
        for key in ["nodlet.dev/x", "x.nodlet.dev/app", "rtpri.nodlet.dev/app", "rtprio.nodlet.dev"] {
            assert!(without_effect(key).is_some(), "{key}");
        }
        for key in ["nodlet.dev", "example.com/nodlet.dev", "mynodlet.dev/x", "rtprio.nodlet.dev/app"] {
            assert_eq!(without_effect(key), None, "{key}");
        }
    }
}
