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
    for (name, more, expected) in [
        ("plain", json!({}), "fits"),
        ("classy", json!({"storageClassName": "fast"}), "fast"),
        ("block", json!({"volumeMode": "Block"}), "raw"),
        ("shared", json!({"accessModes": ["ReadWriteMany"]}), "many"),
        ("chosen", json!({"selector": {"matchLabels": {"size": "10Gi"}}}), "big"),
        (
            "matched",
            json!({"selector": {"matchExpressions": [
                {"key": "size", "operator": "In", "values": ["20Gi", "30Gi"]},
            ]}}),
            "huge",
        ),
        ("later", json!({}), "kept"),
        ("named", json!({"volumeName": "small"}), "-"),
        ("last", json!({}), "-"),
    ] {
        claim(world, name, "1Gi", more);
        let bound = bind(world);
        let phase = if expected == "-" { "Pending" } else { "Bound" };
        let expected = if name == "named" { "small" } else { expected };
        assert!(bound.contains(&format!("{name} {phase} {expected}")), "{name}: {bound}");
    }
    let why = |name: &str| {
        let spec = json!({"containers": [{"name": "app", "image": "app:1"}], "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": name}},
        ]});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
        let bytes = pod.to_string();
        let read = manifest::contents("p", bytes.as_bytes(), Validation::Strict, NODE).expect("it is right");
        world.registry.claimed_volumes(&read.pods[0].pod, &SortedMap::new()).map_err(|(_, why)| why)
    };
    for (name, expected) in [
        ("named", "Cannot bind to requested volume \"small\": requested PV is too small"),
        ("last", "no persistent volumes available for this claim and no storage class is set"),
        ("none", "persistentvolumeclaim \"none\" not found"),
    ] {
        let told = why(name).expect_err(expected);
        assert!(told.ends_with(expected), "{told}");
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
    without.registry.restore_bindings(Ok(b"[{")).expect_err("it is damaged");
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
}

#[test]
fn damaged_bindings_bind_nothing() {
    let binding = |volume: &str, claim: &str| json!({"volume": volume, "namespace": "default", "claim": claim, "uid": "u"});
    for (saved, expected) in [
        (json!([1]), "binding 0 has no volume"),
        (json!([{"volume": "a", "namespace": "default", "claim": ""}]), "binding 0 has no claim"),
        (json!([binding("a", "x"), binding("a", "y")]), "the volume a is bound twice"),
        (json!([binding("a", "x"), binding("b", "x")]), "the claim default/x is bound twice"),
        (json!({}), "it is no list"),
    ] {
        let mut world = World::new();
        let bytes = saved.to_string();
        assert_eq!(world.registry.restore_bindings(Ok(bytes.as_bytes())), Err(expected.to_owned()));
    }
    let mut world = World::new();
    let bytes = json!([binding("a", "x"), binding("b", "y")]).to_string();
    assert_eq!(world.registry.restore_bindings(Ok(bytes.as_bytes())), Ok(()));
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
        let claimed = world.registry.claimed_volumes(&read.pods[0].pod, &SortedMap::new());
        assert_eq!(claimed.map(|_| ()), Err(("v".to_owned(), expected.to_owned())));
    }
}
