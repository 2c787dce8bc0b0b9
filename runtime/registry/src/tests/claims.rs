use nodlet_core::facts::PodIndex;
use nodlet_fuzz::Random;
use nodlet_fuzz::cases;

use super::*;

/// The phases of all volumes, and the volume of each claim.
fn bind(world: &mut World) -> String {
    let labels = [("kubernetes.io/hostname".to_owned(), NODE.to_owned())].into();
    world.registry.bind_claims(NOW, &labels);
    let of = |kind: Kind| world.objects.list(kind.resource(), None).0;
    let object = |(_, object): (Key, crate::objects::Object)| -> Value {
        serde_json::from_str(&object.json).expect("it is JSON")
    };
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let volumes = of(Kind::PersistentVolume).into_iter().map(object);
    let volumes =
        volumes.map(|one| format!("{} {}", text(&one["metadata"]["name"]), text(&one["status"]["phase"])));
    let claims = of(Kind::PersistentVolumeClaim).into_iter().map(object);
    let claims = claims.map(|one| {
        let (name, phase) = (text(&one["metadata"]["name"]), text(&one["status"]["phase"]));
        format!("{name} {phase} {}", text(&one["spec"]["volumeName"]))
    });
    volumes.chain(claims).collect::<Vec<_>>().join(", ")
}

/// The file of a volume with this capacity and further fields.
fn volume(world: &mut World, name: &str, storage: &str, more: Value) {
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "labels": {"size": storage}},
        "spec": {"capacity": {"storage": storage}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}},
    });
    merge(&mut object["spec"], more);
    world.file(&format!("/site/pv-{name}.json"), &object.to_string());
}

fn claim(world: &mut World, name: &str, storage: &str, more: Value) {
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"resources": {"requests": {"storage": storage}}, "accessModes": ["ReadWriteOnce"]},
    });
    merge(&mut object["spec"], more);
    world.file(&format!("/site/pvc-{name}.json"), &object.to_string());
}

fn merge(into: &mut Value, more: Value) {
    into.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
}

#[test]
fn a_claim_gets_the_smallest_volume_that_satisfies_it() {
    let world = &mut World::new();
    volume(world, "big", "10Gi", json!({}));
    volume(world, "fits", "2Gi", json!({}));
    volume(world, "huge", "20Gi", json!({}));
    volume(world, "small", "1Mi", json!({}));
    volume(world, "odd", "3Gi", json!({}));
    volume(world, "even", "4Gi", json!({}));
    volume(world, "fast", "1Gi", json!({"storageClassName": "fast"}));
    volume(world, "raw", "1Gi", json!({"volumeMode": "Block"}));
    volume(world, "many", "1Gi", json!({"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}));
    volume(world, "kept", "1Gi", json!({"claimRef": {"namespace": "default", "name": "later"}}));
    let affinity = |node: &str| {
        json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]},
        ]}}})
    };
    volume(world, "elsewhere", "1Gi", affinity("other"));
    for [name, more, expected] in cases(
        r#"
            plain => {} => fits
            classy => {"storageClassName": "fast"} => fast
            block => {"volumeMode": "Block"} => raw
            shared => {"accessModes": ["ReadWriteMany"]} => many
            chosen => {"selector": {"matchLabels": {"size": "10Gi"}}} => big
            matched
                => {"selector": {"matchExpressions": [{"key": "size", "operator": "In", "values": ["20Gi", "30Gi"]}]}}
                => huge
            later => {} => kept
            opposite
                => {"selector": {"matchExpressions": [{"key": "size", "operator": "NotIn", "values": ["3Gi"]}]}}
                => even
            keyed => {"selector": {"matchExpressions": [{"key": "colour", "operator": "DoesNotExist"}]}} => odd
            named => {"volumeName": "small"} => -
            last => {} => -
        "#,
    ) {
        let more: Value = serde_json::from_str(more).expect("JSON");

        claim(world, name, "1Gi", more);
        let bound = bind(world);
        let phase = if expected == "-" { "Pending" } else { "Bound" };
        let expected = if name == "named" { "small" } else { expected };
        assert!(bound.contains(&format!("{name} {phase} {expected}")), "{name}: {bound}");
    }
    let mut why = |name: &str| {
        let spec = json!({"containers": [{"name": "app", "image": "app:1"}], "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": name}},
        ]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
        let bytes = pod.to_string();
        let read = manifest::contents("p", bytes.as_bytes(), Validation::Strict, NODE).expect("it is right");
        world.registry.take_volumes(PodIndex(1), &read.pods[0].pod, &SortedMap::new()).map_err(|(_, why)| why)
    };
    for (name, expected) in [
        ("named", "Cannot bind to requested volume \"small\": requested PV is too small"),
        ("last", "no persistent volumes available for this claim and no storage class is set"),
        ("none", "persistentvolumeclaim \"none\" not found"),
    ] {
        let error = why(name).expect_err(expected);
        assert!(error.ends_with(expected), "{error}");
    }
    let found = why("plain").expect("it is bound");
    assert_eq!((&*found[0].persistent_volume, &*found[0].path), ("fits", "/a"));
}

#[test]
fn a_binding_lasts_until_its_claim_is_deleted_and_the_volume_is_then_released() {
    let world = &mut World::new();
    volume(world, "b", "1Gi", json!({}));
    claim(world, "data", "1Gi", json!({}));
    assert_eq!(bind(world), "b Bound, data Bound b");
    let saved = world.registry.unsaved_bindings().expect("it has changed");
    volume(world, "a", "1Gi", json!({}));
    assert_eq!(bind(world), "a Available, b Bound, data Bound b");
    assert_eq!(world.registry.unsaved_bindings(), None, "nothing to write");
    world.remove("/site/pv-b.json");
    assert_eq!(bind(world), "a Available, data Lost b");
    volume(world, "b", "1Gi", json!({}));
    assert_eq!(bind(world), "a Available, b Bound, data Bound b");
    world.remove("/site/pvc-data.json");
    assert_eq!(bind(world), "a Available, b Released");
    claim(world, "data", "1Gi", json!({}));
    assert_eq!(bind(world), "a Bound, b Released, data Bound a");
    world.remove("/site/pv-b.json");
    assert_eq!(bind(world), "a Bound, data Bound a");
    volume(world, "b", "1Gi", json!({}));
    assert_eq!(bind(world), "a Bound, b Available, data Bound a");

    // Another agent, which reads the files one after another.
    let later = &mut World::new();
    later.registry.restore_bindings(Ok(&saved)).expect("it is right");
    later.file("/site/wrong.yaml", "kind: [");
    volume(later, "a", "1Gi", json!({}));
    volume(later, "b", "1Gi", json!({}));
    assert_eq!(bind(later), "a Available, b Bound", "the claim may be in the file that is wrong");
    claim(later, "data", "1Gi", json!({}));
    assert_eq!(bind(later), "a Available, b Bound, data Bound b");

    let without = &mut World::new();
    let damaged = without.registry.restore_bindings(Ok(b"[{")).expect_err("it is damaged");
    let source = std::error::Error::source(&damaged).expect("the error of the parser");
    assert_eq!(damaged.to_string(), source.to_string());
    volume(without, "a", "1Gi", json!({}));
    claim(without, "data", "1Gi", json!({}));
    assert_eq!(bind(without), "a Available, data Pending -");
}

#[test]
fn a_claim_is_bound_to_the_volume_that_it_names() {
    let world = &mut World::new();
    volume(world, "a", "1Gi", json!({}));
    claim(world, "any", "1Gi", json!({}));
    claim(world, "named", "1Gi", json!({"volumeName": "a"}));
    assert_eq!(bind(world), "a Bound, any Pending -, named Bound a");
    volume(world, "old", "1Gi", json!({"claimRef": {"namespace": "default", "name": "any", "uid": "gone"}}));
    assert_eq!(bind(world), "a Bound, old Released, any Pending -, named Bound a");
    // A claim that exists, and cannot have the volume.
    let objects = world.objects.list("persistentvolumeclaims", None).0;
    let (_, any) = objects.into_iter().find(|(key, _)| &*key.name == "any").expect("it is published");
    let any: Value = serde_json::from_str(&any.json).expect("it is JSON");
    let reference = json!({"namespace": "default", "name": "any", "uid": any["metadata"]["uid"]});
    volume(world, "small", "1Mi", json!({"claimRef": reference}));
    assert_eq!(bind(world), "a Bound, old Released, small Available, any Pending -, named Bound a");
}

/// The object of a volume as it is published.
fn published_volume(world: &World, name: &str) -> Value {
    let object = world.objects.get(&Key::new("persistentvolumes", "", name)).expect("it is published");
    serde_json::from_str(&object.json).expect("it is JSON")
}

#[test]
fn a_bound_volume_keeps_the_other_fields_of_its_claim_reference() {
    let world = &mut World::new();
    volume(
        world,
        "a",
        "1Gi",
        json!({"claimRef": {"namespace": "default", "name": "data", "fieldPath": "x"}}),
    );
    volume(world, "b", "1Gi", json!({}));
    claim(world, "data", "1Gi", json!({}));
    claim(world, "other", "1Gi", json!({}));
    assert_eq!(bind(world), "a Bound, b Bound, data Bound a, other Bound b");
    for (name, claim, path) in [("a", "data", json!("x")), ("b", "other", Value::Null)] {
        let reference = &published_volume(world, name)["spec"]["claimRef"];
        assert_eq!((&reference["name"], &reference["fieldPath"]), (&claim.into(), &path), "{reference}");
        assert_eq!(reference["kind"], "PersistentVolumeClaim", "{reference}");
    }
}

#[test]
fn a_client_makes_a_released_volume_available_by_removing_its_claim_reference() {
    let world = &mut World::new();
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "a"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}},
    });
    let dry_run = RequestOptions { dry_run: true, ..APPLY };
    assert_eq!(line(world.apply(object.clone(), APPLY)), "Created");
    assert_eq!(bind(world), "a Available");
    assert_eq!(line(world.apply(object.clone(), APPLY)), "Unchanged", "there is no reference to remove");
    claim(world, "data", "1Gi", json!({}));
    assert_eq!(bind(world), "a Bound, data Bound a");
    let bound = published_volume(world, "a");
    assert!(world.registry.unsaved_bindings().is_some(), "the binding is recorded");
    // The manifest says nothing of the claim, and what was made of the published object does.
    assert_eq!(line(world.apply(object.clone(), APPLY)), "Unchanged", "a manifest keeps the claim");
    let mut unclaimed = object.clone();
    unclaimed["metadata"]["uid"] = bound["metadata"]["uid"].clone();
    // A volume that is still claimed keeps its claim.
    assert_eq!(line(world.apply(unclaimed.clone(), APPLY)), "Configured");
    assert_eq!(world.registry.unsaved_bindings(), None, "nothing has changed");
    assert_eq!(bind(world), "a Bound, data Bound a");
    volume(world, "b", "1Gi", json!({}));
    claim(world, "other", "1Gi", json!({}));
    assert_eq!(bind(world), "a Bound, b Bound, data Bound a, other Bound b");
    world.remove("/site/pvc-data.json");
    world.remove("/site/pvc-other.json");
    assert_eq!(bind(world), "a Released, b Released");
    assert!(world.registry.unsaved_bindings().is_some(), "released volumes are recorded");
    assert_eq!(line(world.apply(object.clone(), APPLY)), "Unchanged", "the manifest is the same");
    assert_eq!(bind(world), "a Released, b Released", "no other claim gets what may have data");
    assert_eq!(line(world.apply(unclaimed.clone(), dry_run)), "Configured");
    assert_eq!(bind(world), "a Released, b Released", "a dry run changes nothing");
    let mut claimed = object;
    claimed["spec"]["claimRef"] = bound["spec"]["claimRef"].clone();
    assert_eq!(line(world.apply(claimed, APPLY)), "Configured");
    assert_eq!(bind(world), "a Released, b Released", "the reference stays");
    assert_eq!(world.registry.unsaved_bindings(), None, "nothing has changed");
    assert_eq!(line(world.apply(unclaimed, APPLY)), "Configured");
    assert!(world.registry.unsaved_bindings().is_some(), "the removed binding is recorded");
    assert_eq!(bind(world), "a Available, b Released", "the other volume stays released");
}

#[test]
fn damaged_bindings_bind_nothing() {
    let binding = |volume: &str, claim: &str| json!({"volume": volume, "namespace": "default", "claim": claim, "uid": "u"});
    for (saved, expected) in [
        (json!([1]), "binding 0 has no volume"),
        (json!([{"volume": "a", "namespace": "default", "claim": ""}]), "binding 0 has no claim"),
        (json!([binding("a", "x"), binding("a", "y")]), "the volume a is bound twice"),
        (json!([binding("a", "x"), binding("b", "x")]), "the claim default/x is bound twice"),
        (json!({}), "it is not a list"),
    ] {
        let mut world = World::new();
        let bytes = saved.to_string();
        let restored = world.registry.restore_bindings(Ok(bytes.as_bytes()));
        assert_eq!(restored.expect_err(expected).to_string(), expected);
    }
    let mut world = World::new();
    let bytes = json!([binding("a", "x"), binding("b", "y")]).to_string();
    world.registry.restore_bindings(Ok(bytes.as_bytes())).expect("they are complete");
}

/// Each text is in `pkg/scheduler/framework/plugins/volumebinding` of Kubernetes; the reason behind the last colon of
/// an unbound claim is that of an event of the volume controller.
#[test]
fn a_pod_without_its_claims_has_the_texts_of_the_scheduler() {
    let world = &mut World::new();
    volume(world, "gone", "1Gi", json!({}));
    claim(world, "lost", "1Gi", json!({}));
    bind(world);
    world.remove("/site/pv-gone.json");
    claim(world, "pending", "1Gi", json!({}));
    bind(world);
    let named = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
    let spec = json!({"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]});
    for (source, expected) in [
        (named("none"), "persistentvolumeclaim \"none\" not found"),
        (named("lost"), "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"gone\""),
        (
            named("pending"),
            "pod has unbound immediate PersistentVolumeClaims: default/pending: no persistent volumes available for \
             this claim and no storage class is set",
        ),
        (
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}),
            "waiting for ephemeral volume controller to create the persistentvolumeclaim \"web-v\"",
        ),
    ] {
        let mut volume = source;
        volume["name"] = "v".into();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
            "containers": [{"name": "app", "image": "app:1"}], "volumes": [volume],
        }});
        let bytes = pod.to_string();
        let read = manifest::contents("p", bytes.as_bytes(), Validation::Strict, NODE).expect("it is right");
        let claimed = world.registry.take_volumes(PodIndex(0), &read.pods[0].pod, &SortedMap::new());
        assert_eq!(claimed.map(|_| ()), Err(("v".to_owned(), expected.to_owned())));
    }
}

/// A pod with a volume for each of these claims.
fn pod_with(claims: &[&str]) -> Rc<Pod> {
    let volumes: Vec<Value> = (0..)
        .zip(claims)
        .map(|(place, claim)| json!({"name": format!("v{place}"), "persistentVolumeClaim": {"claimName": claim}}))
        .collect();
    let mut object = pod("web", "app:1");
    object["spec"]["volumes"] = volumes.into();
    let text = object.to_string();
    let read = manifest::contents("p", text.as_bytes(), Validation::Strict, NODE).expect("it is right");
    read.pods[0].pod.clone()
}

/// Volumes and claims that are bound to each other: `alone` is `ReadWriteOncePod`; `same` has the directory of `shared`,
/// and `mine` that of `alone`.
fn bound(world: &mut World) {
    let alone = json!(["ReadWriteOncePod"]);
    for (name, path, modes) in [
        ("alone", "/alone", &alone),
        ("mine", "/alone", &json!(["ReadWriteOnce"])),
        ("shared", "/shared", &json!(["ReadWriteOnce"])),
        ("same", "/shared", &json!(["ReadWriteOnce"])),
    ] {
        volume(world, name, "1Gi", json!({"accessModes": modes, "hostPath": {"path": path}}));
        claim(world, name, "1Gi", json!({"accessModes": modes, "volumeName": name}));
    }
    bind(world);
}

fn take(world: &mut World, index: u32, claims: &[&str]) -> Result<usize, String> {
    let taken = world.registry.take_volumes(PodIndex(index), &pod_with(claims), &SortedMap::new());
    taken.map(|volumes| volumes.len()).map_err(|(volume, why)| format!("{volume}: {why}"))
}

const IN_USE: &str =
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";

#[test]
fn a_volume_of_read_write_once_pod_has_one_pod_at_a_time() {
    let world = &mut World::new();
    bound(world);
    assert_eq!(take(world, 1, &["shared", "alone"]), Ok(2));
    assert_eq!(take(world, 1, &["shared", "alone"]), Ok(2), "the same pod tries again");
    assert_eq!(take(world, 2, &["shared", "alone"]), Err(format!("v1: {IN_USE}")));
    assert_eq!(take(world, 2, &["mine"]), Err(format!("v0: {IN_USE}")), "the same directory");
    assert_eq!(take(world, 2, &["shared"]), Ok(1));
    assert_eq!(take(world, 3, &["same"]), Ok(1));
    assert_eq!(take(world, 4, &[]), Ok(0));
    let pods =
        [1, 2, 3, 4, 5].map(|index| (PodIndex(index), pod_with(if index == 4 { &[] } else { &["alone"] })));
    let release = |world: &mut World, index: u32| -> Vec<u32> {
        let pods = pods.iter().map(|(index, pod)| (*index, &**pod));
        world.registry.release_volumes(PodIndex(index), pods).into_iter().map(|index| index.0).collect()
    };
    assert_eq!(release(world, 4), [0; 0], "it had none");
    assert_eq!(release(world, 1), [2, 3, 5]);
    assert_eq!(release(world, 1), [0; 0], "it has none any more");
    assert_eq!(take(world, 5, &["mine"]), Ok(1));
    assert_eq!(take(world, 2, &["alone"]), Err(format!("v0: {IN_USE}")), "to have it alone");
    assert_eq!(release(world, 5), [1, 2, 3]);
    // What the sandbox of an earlier agent has.
    let volumes = world.registry.take_volumes(PodIndex(1), &pod_with(&["alone"]), &SortedMap::new());
    let volumes = volumes.expect("nobody has it");
    let next = &mut World::new();
    bound(next);
    next.registry.adopt_volumes(PodIndex(1), volumes);
    next.registry.adopt_volumes(PodIndex(3), Vec::new());
    assert_eq!(take(next, 2, &["alone"]), Err(format!("v0: {IN_USE}")));
    assert_eq!(release(next, 3), [0; 0]);
    assert_eq!(release(next, 1), [2, 3, 5]);
    assert_eq!(take(next, 2, &["alone"]), Ok(1));
}

#[test]
fn a_released_volume_that_should_be_deleted_has_failed_with_the_message_of_kubernetes() {
    let world = &mut World::new();
    for (name, source, message) in [
        (
            "host",
            json!({"hostPath": {"path": "/srv/a"}}),
            "host_path deleter only supports /tmp/.+ but received provided /srv/a",
        ),
        (
            "temporary",
            json!({"hostPath": {"path": "/tmp/a"}}),
            "nodlet removes no data of a volume: remove /tmp/a yourself",
        ),
    ] {
        let mut more = source.clone();
        more["persistentVolumeReclaimPolicy"] = "Delete".into();
        more["storageClassName"] = name.into();
        volume(world, name, "1Gi", more);
        claim(world, name, "1Gi", json!({"storageClassName": name}));
        assert!(bind(world).contains(&format!("{name} Bound {name}")), "{}", bind(world));
        world.remove(&format!("/site/pvc-{name}.json"));
        assert!(bind(world).contains(&format!("{name} Failed")), "{}", bind(world));
        let shown = world.objects.get(&Key::new("persistentvolumes", "", name)).expect("it is published");
        let shown: Value = serde_json::from_str(&shown.json).expect("it is JSON");
        assert_eq!(shown["status"]["message"], message);
    }
}

#[test]
fn a_claim_beyond_a_limit_range_is_refused_and_from_a_file_it_stays_pending() {
    let world = &mut World::new();
    let range = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"},
        "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}}]},
    });
    world.file("/site/range.json", &range.to_string());
    volume(world, "disk", "10Gi", json!({}));
    claim(world, "big", "3Gi", json!({}));
    assert!(bind(world).contains("big Pending -"), "{}", bind(world));
    let why = "persistentvolumeclaims \"big\" is forbidden: maximum storage usage per PersistentVolumeClaim is 2Gi, but \
               request is 3Gi";
    let taken = world.registry.take_volumes(PodIndex(1), &pod_with(&["big"]), &SortedMap::new());
    let refused = taken.expect_err("it is not bound").1;
    assert!(refused.ends_with(why), "{refused}");
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "big"},
        "spec": {"resources": {"requests": {"storage": "3Gi"}}, "accessModes": ["ReadWriteOnce"]},
    });
    world.remove("/site/pvc-big.json");
    bind(world);
    let refused = world.apply(object.clone(), APPLY).expect_err("too much").to_string();
    assert!(refused.contains(why), "{refused}");
    let mut fits = object;
    fits["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
    world.apply(fits, APPLY).expect("it is right");
}

/// `NODLET_SEED=42 NODLET_ROUNDS=1` runs a single story.
#[test]
fn whatever_pods_come_and_go_no_two_share_a_volume_that_one_has_alone_and_none_waits_for_ever() {
    for_each_seed(40, |seed| {
        let (mut random, world) = (Random::of(seed), &mut World::new());
        bound(world);
        let names = ["alone", "mine", "shared", "same"];
        let pods: Vec<Vec<&str>> =
            (0..5).map(|_| names.iter().filter(|_| random.one_in(2)).copied().collect()).collect();
        let all: Vec<_> =
            (0..).zip(&pods).map(|(index, claims)| (PodIndex(index), pod_with(claims))).collect();
        let (mut running, mut waiting) = (SortedSet::new(), SortedSet::new());
        for _ in 0..60 {
            let index = random.below(pods.len()) as u32;
            if running.remove(&index) {
                let others = all.iter().map(|(index, pod)| (*index, &**pod));
                for woken in world.registry.release_volumes(PodIndex(index), others) {
                    if waiting.remove(&woken.0) {
                        match take(world, woken.0, &pods[woken.0 as usize]) {
                            Ok(_) => drop(running.insert(woken.0)),
                            Err(_) => drop(waiting.insert(woken.0)),
                        }
                    }
                }
            } else if take(world, index, &pods[index as usize]).is_ok() {
                waiting.remove(&index);
                running.insert(index);
            } else {
                waiting.insert(index);
            }
            let has =
                |index: &u32, names: &[&str]| names.iter().any(|name| pods[*index as usize].contains(name));
            let of_alone: Vec<&u32> = running.iter().filter(|index| has(index, &["alone", "mine"])).collect();
            let is_alone = of_alone.iter().any(|index| has(index, &["alone"]));
            assert!(!is_alone || of_alone.len() == 1, "{of_alone:?} share a volume");
            for index in &waiting {
                let blocked =
                    has(index, &["alone"]) && !of_alone.is_empty() || has(index, &["mine"]) && is_alone;
                assert!(blocked, "{index} waits, and nobody has its volumes: {running:?}");
            }
        }
    });
}
