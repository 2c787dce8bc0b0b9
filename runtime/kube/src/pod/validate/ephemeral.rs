//! Rules for ephemeral containers: their fields, and that existing ones do not change.

use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::MAX_CONTAINERS;
use serde_json::Value;

use super::container::{common, count};
use crate::object::check::Field;
use crate::object::field::Errors;
use crate::object::value::{list, text};

/// Container fields that an ephemeral container does not have, in the order of Kubernetes' internal type.
const NOT_ALLOWED: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// Kubernetes' error for these fields.
const WHY: &str = "cannot be set for an Ephemeral Container";

/// Checks all of `spec.ephemeralContainers`.
pub(super) fn all(spec: Field<'_, '_>, volumes: &SortedSet<&str>) {
    let others = count(spec.value);
    let all = others + list(spec.value, "ephemeralContainers").len();
    if all > MAX_CONTAINERS {
        if others <= MAX_CONTAINERS {
            spec.child("ephemeralContainers").too_many(all, MAX_CONTAINERS);
        }
        return;
    }
    let names_of = |field| list(spec.value, field).iter().map(|container| text(container, "name"));
    let others: SortedSet<&str> = names_of("containers").chain(names_of("initContainers")).collect();
    let mut names = others.clone();
    for container in spec.items("ephemeralContainers") {
        common(spec, container, volumes);
        super::image(container);
        container.child("name").unique(&mut names);
        let target = container.child("targetContainerName");
        if !target.text().is_empty() && !others.contains(target.text()) {
            target.not_found();
        }
        for name in NOT_ALLOWED {
            let Some(field) = container.get(name) else { continue };
            // For fields that are pointers in Kubernetes, an empty value counts too.
            let is_pointer = !["resources", "ports"].contains(&name);
            if is_pointer || field.value.as_object().is_none_or(|fields| !fields.is_empty()) {
                field.forbidden(WHY);
            }
        }
        for mount in container.items("volumeMounts") {
            for field in ["subPath", "subPathExpr"] {
                if !text(mount.value, field).is_empty() {
                    mount.child(field).forbidden(WHY);
                }
            }
        }
    }
}

/// Checks `new` as the ephemeral containers of a pod that has `old`: existing ones may neither be removed nor
/// changed.
pub(crate) fn only_added(old: &[Value], new: &[Value], errors: &mut Errors) {
    let spec = Field::root(&Value::Null, "spec", errors);
    for old in old {
        let name = text(old, "name");
        let why = match new.iter().rfind(|new| text(new, "name") == name) {
            None => format!("existing ephemeral containers \"{name}\" may not be removed\n"),
            Some(new) if new != old => {
                format!("existing ephemeral containers \"{name}\" may not be changed\n{}", diff(old, new))
            }
            Some(_) => continue,
        };
        spec.child("ephemeralContainers").forbidden(why);
    }
}

/// The fields that differ, as removed and added lines.
fn diff(old: &Value, new: &Value) -> String {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return String::new() };
    let fields: SortedSet<&String> = old.keys().chain(new.keys()).collect();
    let mut lines = String::new();
    for field in fields.into_iter().filter(|field| old.get(*field) != new.get(*field)) {
        for (sign, value) in [("-", old.get(field)), ("+", new.get(field))] {
            if let Some(value) = value {
                lines.push_str(&format!("{sign} \"{field}\": {value}\n"));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;
    use serde_json::{Value, json};

    use crate::manifest::{Manifest, ManifestError, Validation, read_again, read_ephemeral, read_new};
    use nodlet_core::spec::Role;

    fn pod() -> Value {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "uid": "u1"},
            "spec": {
                "containers": [{"name": "app", "image": "app:1"}],
                "initContainers": [{"name": "first", "image": "app:1"}],
                "volumes": [{"name": "data"}],
            },
        });
        read_new(object, Validation::Strict, "board").expect("it is right").object
    }

    fn given(pod: &Value, containers: Value) -> Result<Manifest, ManifestError> {
        let Value::Array(list) = containers else { panic!("a list") };
        read_ephemeral(pod.clone(), list, Validation::Strict, "board")
    }

    fn refused(pod: &Value, containers: Value) -> String {
        given(pod, containers).expect_err("it is not right").to_string()
    }

    #[test]
    fn forbidden_fields_of_an_ephemeral_container_are_rejected_as_by_kubernetes() {
        let (pod, cannot) = (pod(), "Forbidden: cannot be set for an Ephemeral Container");
        let probe = json!({"exec": {"command": ["true"]}});
        for (field, value) in [
            ("ports", json!([{"containerPort": 80}])),
            ("resources", json!({"limits": {"cpu": "1"}})),
            ("resizePolicy", json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"}])),
            ("restartPolicy", json!("Always")),
            ("livenessProbe", probe.clone()),
            ("readinessProbe", probe.clone()),
            ("startupProbe", probe),
            ("lifecycle", json!({"preStop": {"exec": {"command": ["true"]}}})),
        ] {
            let mut container = json!({"name": "look", "image": "tools"});
            container[field] = value;
            assert_eq!(
                refused(&pod, json!([container])),
                format!("The Pod \"web\" is invalid: spec.ephemeralContainers[0].{field}: {cannot}")
            );
        }
        for [container, expected] in cases(
            r#"
                {"name": "look"} => image: Required value
                {"image": "a"} => name: Required value
                {"name": "A", "image": "a"} => name: Invalid value: "A": a lowercase RFC 1123 label
                {"name": "app", "image": "a"} => name: Duplicate value: "app"
                {"name": "first", "image": "a"} => name: Duplicate value: "first"
                {"name": "look", "image": " a"}
                    => image: Invalid value: " a": must not have leading or trailing whitespace
                {"name": "look", "image": "a", "targetContainerName": "none"}
                    => targetContainerName: Not found: "none"
                {"name": "look", "image": "a", "targetContainerName": "look"}
                    => targetContainerName: Not found: "look"
                {"name": "look", "image": "a", "volumeMounts": [{"name": "data", "mountPath": "/d", "subPath": "s"}]}
                    => volumeMounts[0].subPath: Forbidden: cannot be set for an Ephemeral Container
                {"name": "look", "image": "a", "volumeMounts": [{"name": "other", "mountPath": "/d"}]}
                    => volumeMounts[0].name: Not found: "other"
                {"name": "look", "image": "a", "securityContext": {"seLinuxOptions": {"level": "s0"}}}
                    => securityContext.seLinuxOptions: Forbidden: nodlet 0.2 does not confine containers by SELinux
            "#,
        ) {
            let container: Value = serde_json::from_str(container).expect("JSON");

            let text = refused(&pod, json!([container]));
            let expected = format!("The Pod \"web\" is invalid: spec.ephemeralContainers[0].{expected}");
            assert!(text.starts_with(&expected), "{text}");
        }
        let twice = json!([{"name": "look", "image": "a"}, {"name": "look", "image": "b"}]);
        assert_eq!(
            refused(&pod, twice),
            "The Pod \"web\" is invalid: spec.ephemeralContainers[1].name: Duplicate value: \"look\""
        );
        let unknown = refused(&pod, json!([{"name": "look", "image": "a", "target": "app"}]));
        assert!(unknown.contains("unknown field \"spec.ephemeralContainers[0].target\""), "{unknown}");
        assert!(refused(&pod, json!(["look"])).contains("spec.ephemeralContainers[0]"));
        let many = (0..255).map(|number| json!({"name": format!("c{number}"), "image": "a"})).collect();
        assert_eq!(
            refused(&pod, many),
            "The Pod \"web\" is invalid: spec.ephemeralContainers: Too many: 257: must have at most 256 items"
        );
    }

    #[test]
    fn ephemeral_containers_get_defaults_and_follow_all_other_containers() {
        let look = json!([{"name": "look", "image": "tools", "targetContainerName": "app", "resources": {}, "tty": false}]);
        let manifest = given(&pod(), look).expect("it is right");
        assert_eq!(
            manifest.object["spec"]["ephemeralContainers"],
            json!([{
                "name": "look", "image": "tools", "targetContainerName": "app", "resources": {},
                "imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }])
        );
        let spec = &manifest.pod.spec;
        let index = spec.index_of("look").expect("it is there");
        let expected = (2, Role::Ephemeral, "spec.ephemeralContainers{look}");
        assert_eq!((index.0, spec.role(index), spec.field_path(index).as_str()), expected);
        assert_eq!(spec.container(index).target.as_deref(), Some("app"));
        assert_eq!(spec.init_indexes().count(), 1);
        // The pod is accepted when it is read again.
        let again = read_again(manifest.object.clone(), "board").expect("it was admitted before");
        assert_eq!((&again.pod, &again.object), (&manifest.pod, &manifest.object));
        let new = read_new(manifest.object, Validation::Ignore, "board").expect_err("it is not a new pod");
        let expected =
            "The Pod \"web\" is invalid: spec.ephemeralContainers: Forbidden: cannot be set on create";
        assert_eq!(new.to_string(), expected);
    }

    #[test]
    fn existing_ephemeral_containers_cannot_be_removed_changed_or_reordered() {
        let one = json!({"name": "one", "image": "a:1"});
        let two = json!({"name": "two", "image": "a:1"});
        let first = given(&pod(), json!([one])).expect("it is right").object;
        let both = given(&first, json!([two, one])).expect("one was added").object;
        let names = |object: &Value| -> Vec<String> {
            let list = object["spec"]["ephemeralContainers"].as_array().expect("a list").iter();
            list.map(|container| container["name"].as_str().expect("a name").to_owned()).collect()
        };
        assert_eq!(names(&both), ["one", "two"]);
        assert_eq!(given(&both, json!([one, two])).expect("nothing changed").object, both);
        let invalid =
            |rest: &str| format!("The Pod \"web\" is invalid: spec.ephemeralContainers: Forbidden: {rest}");
        assert_eq!(
            refused(&both, json!([one])),
            invalid("existing ephemeral containers \"two\" may not be removed\n")
        );
        assert_eq!(
            refused(&both, json!([{"name": "one", "image": "b:1"}, two])),
            invalid(
                "existing ephemeral containers \"one\" may not be changed\n- \"image\": \"a:1\"\n+ \"image\": \"b:1\"\n"
            )
        );
        assert_eq!(
            refused(&both, json!([{"name": "one", "image": "a:1", "tty": true}])),
            "The Pod \"web\" is invalid: \n\
             * spec.ephemeralContainers: Forbidden: existing ephemeral containers \"one\" may not be changed\n+ \"tty\": true\n\n\
             * spec.ephemeralContainers: Forbidden: existing ephemeral containers \"two\" may not be removed\n"
        );
    }
}
