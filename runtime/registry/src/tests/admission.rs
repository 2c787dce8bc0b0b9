use super::*;
use nodlet_fuzz::assert_starts_with;

fn written(spec: &str) -> Rc<Wanted> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, labels: {{app: web}}}}\nspec: {{containers: [{{name: app, image: 'a:1'}}], {spec}}}\n"
    );
    let manifests = manifest::parse("/site/web.yaml", text.as_bytes(), Validation::Strict, NODE);
    let manifest = manifests.unwrap_or_else(|error| panic!("{text}: {error}")).remove(0);
    Rc::new(Wanted::new(manifest, Path::new("/site/web.yaml")))
}

fn preset(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: settings.k8s.io/v1alpha1\nkind: PodPreset\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"
    )
}

fn class(name: &str, fields: &str) -> String {
    format!("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\n{fields}\n")
}

fn policy(definitions: &[String]) -> Policy {
    let mut world = World::new();
    world.file("/site/definitions.yaml", &definitions.join("---\n"));
    world.registry.policy()
}

/// The result of a pod's admission: the class, the priority, the variables of its container, and the problem.
fn admitted(base: Base, new: &Rc<Wanted>, policy: &Policy) -> String {
    let Admitted { wanted, problem } = match admit(base, new, policy) {
        Ok(admitted) => admitted,
        Err(why) => return why.to_string(),
    };
    let object: Value = serde_json::from_str(wanted.object.get()).expect("it is JSON");
    assert_eq!(object["spec"]["priority"], wanted.pod.priority, "the object and the pod say the same");
    assert_eq!(new.as_written().get(), wanted.as_written().get(), "what was written stays known");
    let env = object["spec"]["containers"][0]["env"].as_array().into_iter().flatten();
    let env: Vec<&str> = env.filter_map(|variable| variable["name"].as_str()).collect();
    let problem = match problem {
        Some(Problem::Conflict(event)) => format!(" {}: {}", event.reason, event.message),
        Some(Problem::Lost(why)) => format!(" lost: {why}"),
        None => String::new(),
    };
    format!("{}={} [{}]{problem}", wanted.pod.spec.priority_class_name, wanted.pod.priority, env.join(" "))
}

#[test]
fn a_pod_keeps_the_fields_of_its_runtime_class_and_the_defaults_of_limit_ranges() {
    let small = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: small}\nhandler: nodlet\n\
                 overhead: {podFixed: {memory: 16Mi}}\n";
    let range = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: r}\nspec: {limits: [{type: Container, \
                 default: {memory: 1Mi}}]}\n";
    let new = written("runtimeClassName: small");
    let memory = |base: Base, definitions: &[&str]| {
        let definitions: Vec<String> = definitions.iter().map(|one| (*one).to_owned()).collect();
        let policy =
            if definitions.is_empty() { World::new().registry.policy() } else { policy(&definitions) };
        let admitted = admit(base, &new, &policy).map_err(|why| why.to_string())?;
        let object: Value = serde_json::from_str(admitted.wanted.object.get()).expect("it is JSON");
        let limit = object["spec"]["containers"][0]["resources"]["limits"]["memory"].as_str();
        let overhead = object["spec"]["overhead"]["memory"].as_str().unwrap_or("none");
        let text = format!("{overhead} {}", limit.unwrap_or("none"));
        Ok::<_, String>((text, admitted.wanted.presets.to_vec()))
    };
    let (text, presets) = memory(Base::New, &[small, range]).expect("admitted");
    assert_eq!(text, "16Mi 1Mi");
    assert_eq!(memory(Base::New, &[small]).expect("admitted").0, "16Mi none");
    let before = Base::Before { presets, priority: None };
    assert_eq!(memory(before, &[]).expect("admitted before").0, "16Mi 1Mi");
    let refused = memory(Base::New, &[range]).expect_err("there is no class");
    assert_eq!(refused, "pod rejected: RuntimeClass \"small\" not found");
}

#[test]
fn a_new_pod_is_admitted_with_the_current_definitions() {
    let high = class("high", "value: 1000");
    let usual = class("usual", "value: 7\nglobalDefault: true");
    let for_web = preset("p", "selector: {matchLabels: {app: web}}, env: [{name: A, value: '1'}]");
    let for_db = preset("q", "selector: {matchLabels: {app: db}}, env: [{name: B, value: '1'}]");
    let for_all = preset("r", "selector: {}, env: [{name: C, value: '1'}]");
    let contrary = preset("s", "selector: {}, env: [{name: A, value: '2'}]");
    for (definitions, spec, expected) in [
        (vec![], "", "=0 []"),
        (vec![&high], "", "=0 []"),
        (vec![&high], "priorityClassName: high", "high=1000 []"),
        (vec![&high, &usual], "", "usual=7 []"),
        (vec![], "priorityClassName: high", "no PriorityClass with name high was found"),
        (vec![], "priorityClassName: system-node-critical", "system-node-critical=2000001000 []"),
        (
            vec![&high],
            "priorityClassName: high, priority: 3",
            "the integer value of priority (3) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name",
        ),
        (vec![&for_web], "", "=0 [A]"),
        (vec![&for_db], "", "=0 []"),
        (vec![&for_web, &for_db, &for_all], "", "=0 [A C]"),
        (vec![&usual, &for_web], "", "usual=7 [A]"),
        (
            vec![&for_web, &contrary],
            "",
            "=0 [] PodPresetConflict: conflict occurred while applying podpresets: p,s on pod: web err: merging env for s has a conflict on A: \n{\"name\":\"A\",\"value\":\"2\"}\ndoes not match\n{\"name\":\"A\",\"value\":\"1\"}\n in container",
        ),
    ] {
        let definitions: Vec<String> = definitions.into_iter().cloned().collect();
        let policy =
            if definitions.is_empty() { World::new().registry.policy() } else { policy(&definitions) };
        assert_eq!(admitted(Base::New, &written(spec), &policy), expected, "{definitions:?} {spec}");
    }
}

#[test]
fn presets_that_add_more_than_the_limit_are_a_conflict() {
    let large = preset("p", &format!("selector: {{}}, env: [{{name: A, value: '{}'}}]", "x".repeat(70_000)));
    let expected = "=0 [] PodPresetConflict: conflict occurred while applying podpresets: p on pod: web err: the presets add more than 64 KiB to the pod";
    assert_eq!(admitted(Base::New, &written(""), &policy(&[large])), expected);
}

#[test]
fn a_pod_keeps_the_additions_of_its_admission() {
    let one =
        policy(&[class("high", "value: 1000"), preset("p", "selector: {}, env: [{name: A, value: '1'}]")]);
    let other = policy(&[
        class("high", "value: 5"),
        class("low", "value: 1"),
        preset("q", "selector: {}, env: [{name: B, value: '1'}]"),
    ]);
    let Admitted { wanted, .. } =
        admit(Base::New, &written("priorityClassName: high"), &one).expect("it is right");
    let base =
        || Base::Before { presets: wanted.presets.to_vec(), priority: wanted.priority.as_deref().cloned() };
    for (policy, spec, expected) in [
        (&one, "priorityClassName: high", "high=1000 [A]"),
        (&other, "priorityClassName: high", "high=1000 [A]"),
        // Another class makes another pod.
        (&other, "priorityClassName: low", "low=1 [A]"),
        (&one, "priorityClassName: low", "no PriorityClass with name low was found"),
    ] {
        assert_eq!(admitted(base(), &written(spec), policy), expected, "{spec}");
    }
    // A pod that was admitted before there were presets gets none.
    let none = Base::Before { presets: Vec::new(), priority: None };
    assert_eq!(admitted(none, &written(""), &one), "=0 []");
    let mut presets = wanted.presets.to_vec();
    presets.push(AppliedPreset {
        name: "z".into(),
        version: "1".into(),
        spec: json!({"env": [{"name": "A", "value": "2"}]}),
    });
    let contrary = admitted(Base::Before { presets, priority: None }, &written(""), &one);
    assert_starts_with(&contrary, "=0 [] lost: default/web: merging env for z has a conflict on A: ");
    assert!(contrary.ends_with(" in container; the pod continues without its presets"), "{contrary}");
}

#[test]
fn the_base_of_an_admission_is_the_known_pod_or_its_record() {
    let policy = policy(&[preset("p", "selector: {}, env: [{name: A, value: '1'}]")]);
    let known = admit(Base::New, &written(""), &policy).expect("it is right").wanted;
    let base =
        |spec: &str, known: Option<&Wanted>, recorded| match Base::of(&written(spec), known, || recorded) {
            Base::New => "new".to_owned(),
            Base::Before { presets, priority } => format!("{} {}", presets.len(), priority.is_some()),
            Base::Ephemeral(_) => "ephemeral".to_owned(),
        };
    let recorded = || Ok(Some((known.presets.to_vec(), None)));
    let never = "restartPolicy: Never";
    assert_eq!(base("", Some(&known), Ok(None)), "1 true");
    assert_eq!(base("", Some(&known), Err(())), "1 true");
    assert_eq!(base("", None, recorded()), "1 false");
    assert_eq!(base("", None, Ok(None)), "new");
    assert_eq!(base(never, None, Ok(None)), "new");
    // Without a readable record a pod that may run again starts as if it were new, and another has failed.
    assert_eq!(base("", None, Err(())), "new");
    assert_eq!(base(never, None, Err(())), "0 false");
}

#[test]
fn ephemeral_containers_are_added_to_the_admitted_pod() {
    let policy =
        policy(&[class("high", "value: 1000"), preset("p", "selector: {}, env: [{name: A, value: '1'}]")]);
    let Admitted { wanted, .. } =
        admit(Base::New, &written("priorityClassName: high"), &policy).expect("it is right");
    let list = |fields: Value| {
        let mut container = json!({"name": "debug", "image": "b:1"});
        container.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
        Base::Ephemeral(json!([container]))
    };
    assert_eq!(admitted(list(json!({})), &wanted, &policy), "high=1000 [A]");
    let with = admit(list(json!({})), &wanted, &policy).expect("it is right").wanted;
    assert_eq!(
        (with.pod.generation, with.pod.spec.ephemeral_containers.len()),
        (wanted.pod.generation + 1, 1)
    );
    // The current definitions do not matter.
    assert_eq!(admitted(list(json!({})), &wanted, &World::new().registry.policy()), "high=1000 [A]");
    let again = without_ephemeral(&with);
    assert_eq!(again.pod, wanted.pod);
    assert!(again.is_same_as(&wanted));
    let expected = "high=1000 [A] lost: default/web: The Pod \"web\" is invalid: spec.ephemeralContainers[0].targetContainerName: Not found: \"other\"; the pod continues without its ephemeral containers";
    assert_eq!(admitted(list(json!({"targetContainerName": "other"})), &wanted, &policy), expected);
}

#[test]
fn a_replacement_keeps_the_identity_if_it_may_be_the_same_pod() {
    let manifest = |object: Value| {
        let mut object = object;
        object["metadata"]["uid"] = "new".into();
        object["metadata"]["creationTimestamp"] = NOW.into();
        manifest::read_new(object, Validation::Strict, NODE).unwrap_or_else(|error| panic!("{error}"))
    };
    let with = |pointer: &str, value: Value| {
        let mut object = pod("web", "a:1");
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        object.pointer_mut(parent).expect("it is there")[field] = value;
        object
    };
    let old = {
        let mut object = pod("web", "a:1");
        object["metadata"]["generation"] = 4.into();
        let mut manifest = manifest(object);
        manifest.object["metadata"]["uid"] = "old".into();
        manifest.pod = Rc::new(Pod { uid: Uid("old".into()), ..(*manifest.pod).clone() });
        Wanted::new(manifest, Path::new("/applied/default_web.json"))
    };
    for (object, is_applied, expected) in [
        (pod("web", "a:1"), true, "old 4"),
        (pod("web", "a:2"), true, "old 5"),
        (with("/metadata/labels", json!({"a": "b"})), true, "old 4"),
        (with("/spec/activeDeadlineSeconds", json!(9)), true, "old 5"),
        (with("/spec/containers/0/command", json!(["sh"])), true, "new 1"),
        (with("/spec/restartPolicy", json!("Never")), true, "new 1"),
        (pod("web", "a:1"), false, "new 1"),
        (pod("web", "a:2"), false, "new 1"),
        (
            with("/spec/schedulingGates", json!([{"name": "g"}])),
            true,
            "422 Pod \"web\" is invalid: spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'",
        ),
    ] {
        let new = manifest(object.clone());
        let got = match super::super::admission::as_update_of(&old, is_applied, new) {
            Ok(updated) => {
                // The result is the same as if the pod was read again.
                let again = manifest::read_new(updated.object.clone(), Validation::Ignore, NODE)
                    .expect("it is right");
                assert_eq!((&again.pod, &again.object), (&updated.pod, &updated.object));
                // The core judges likewise whether a pod with the identity of the old one is the same.
                let is_same =
                    Pod { uid: old.pod.uid.clone(), ..(*updated.pod).clone() }.is_update_of(&old.pod);
                assert!(!is_applied || is_same == (updated.pod.uid == old.pod.uid), "{object}");
                format!("{} {}", updated.pod.uid.0, updated.pod.generation)
            }
            Err(status) => format!("{} {}", status.code, status.message),
        };
        assert_eq!(got, expected, "{object}");
    }
}

#[test]
fn a_new_pod_gets_the_defaults_of_limit_ranges_and_must_respect_their_bounds() {
    let range = |fields: &str| {
        format!(
            "apiVersion: v1\nkind: LimitRange\nmetadata: {{name: l}}\nspec: {{limits: [{{type: Container, {fields}}}]}}\n"
        )
    };
    let defaults = range("default: {memory: 64Mi}, max: {memory: 128Mi}");
    let bounds = range("min: {memory: 1Mi}, default: {memory: 2Mi}");
    let added = preset("p", "selector: {}, env: [{name: A, value: '1'}]");
    let contrary = preset("q", "selector: {}, env: [{name: A, value: '2'}]");
    let limit = |definitions: &[&String], resources: &str| {
        let definitions: Vec<String> = definitions.iter().map(ToString::to_string).collect();
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: app, image: 'a:1', resources: {{{resources}}}}}]}}\n"
        );
        let manifests = manifest::parse("/site/web.yaml", text.as_bytes(), Validation::Strict, NODE);
        let manifest = manifests.expect("it is right").remove(0);
        let new = Rc::new(Wanted::new(manifest, Path::new("/site/web.yaml")));
        match admit(Base::New, &new, &policy(&definitions)) {
            Err(why) => {
                // A source would be printed once more after the text.
                assert!(std::error::Error::source(&why).is_none(), "{why:?}");
                why.to_string()
            }
            Ok(Admitted { wanted, problem }) => {
                let object: Value = serde_json::from_str(wanted.object.get()).expect("it is JSON");
                let container = &object["spec"]["containers"][0];
                let variables = container["env"].as_array().map_or(0, Vec::len);
                let problem = if problem.is_some() { " conflict" } else { "" };
                format!("{} {variables}{problem}", container["resources"]["limits"]["memory"])
            }
        }
    };
    let beyond = "maximum memory usage per Container is 128Mi, but limit is 256Mi";
    let contradiction = "The Pod \"web\" is invalid: spec.containers[0].resources.requests: Invalid value: \"100Mi\": must be less than or equal to memory limit of 64Mi";
    for (definitions, resources, expected) in [
        (vec![&defaults], "", "\"64Mi\" 0"),
        (vec![&defaults], "limits: {memory: 256Mi}", beyond),
        (vec![&defaults], "requests: {memory: 100Mi}", contradiction),
        (vec![&bounds], "limits: {memory: 1}", "minimum memory usage per Container is 1Mi, but request is 1"),
        // The bounds also count for a pod with presets, and for one whose presets conflict.
        (vec![&defaults, &added], "", "\"64Mi\" 1"),
        (vec![&defaults, &added], "limits: {memory: 256Mi}", beyond),
        (vec![&defaults, &added], "requests: {memory: 100Mi}", contradiction),
        (vec![&defaults, &added, &contrary], "", "\"64Mi\" 0 conflict"),
        (vec![&defaults, &added, &contrary], "limits: {memory: 256Mi}", beyond),
        (vec![&defaults, &added, &contrary], "requests: {memory: 100Mi}", contradiction),
    ] {
        assert_eq!(limit(&definitions, resources), expected, "{definitions:?} {resources}");
    }
}

#[test]
fn an_admission_error_prints_the_error_that_it_contains_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("failed to read the pod")]
    struct Cause(#[source] std::fmt::Error);

    let texts = |error: &crate::AdmissionError| {
        let first: &(dyn std::error::Error + 'static) = error;
        let texts = std::iter::successors(Some(first), |error| error.source());
        texts.map(ToString::to_string).collect::<Vec<_>>()
    };
    let cause = std::fmt::Error.to_string();
    assert_eq!(texts(&crate::AdmissionError::of(Cause(std::fmt::Error))), ["failed to read the pod", &cause]);
    assert_eq!(texts(&"no priority class".to_owned().into()), ["no priority class"]);
}
