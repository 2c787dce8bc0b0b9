//! Randomised tests, which write files and send requests in any order.

use nodlet_fuzz::Random;

use super::*;

const NAMES: [&str; 3] = ["web", "db", "log"];
const IMAGES: [&str; 3] = ["a:1", "a:2", "a:3"];

/// `NODLET_SEED=42 NODLET_ROUNDS=1` runs a single story.
#[test]
fn each_object_has_one_owner_after_random_requests() {
    for_each_seed(30, story);
}

fn story(seed: u64) {
    let mut random = Random::of(seed);
    let mut world = World::new();
    // In some stories the quota is nearly used up.
    let is_full = random.one_in(6);
    if is_full {
        let mut full = pod("full", "b:1");
        full["metadata"]["annotations"] = json!({"a": "x".repeat(200_000)});
        full["spec"]["containers"][0]["args"] = vec!["x".repeat(1_300_000); 3].into();
        world.file("/vendor/full", &full.to_string());
        assert_eq!(world.image("full"), "b:1");
    }
    for _ in 0..40 {
        step(&mut random, &mut world, if is_full { 60_000 } else { 10 });
    }
}

/// A pod of at most this many bytes.
fn some_pod(random: &mut Random, size: usize) -> Value {
    let mut object = pod(NAMES[random.below(3)], IMAGES[random.below(3)]);
    match random.below(6) {
        0 => object["spec"]["hostname"] = "h".into(),
        1 => object["metadata"]["labels"] = json!({"a": "b"}),
        2 => object["spec"]["priorityClassName"] = "high".into(),
        3 => object["metadata"]["annotations"] = json!({"a": "x".repeat(size)}),
        4 => object["spec"]["colour"] = "red".into(),
        _ => {}
    }
    object
}

fn some_file(random: &mut Random) -> String {
    let directory = ["vendor", "site", "run"][random.below(3)];
    format!("/{directory}/{}", ["x", "y"][random.below(2)])
}

fn step(random: &mut Random, world: &mut World, size: usize) {
    let (files, version) = (world.files.clone(), world.objects.version());
    let pods: Vec<(PodName, Uid)> =
        world.pods.iter().map(|(name, pod)| (name.clone(), pod.pod.uid.clone())).collect();
    let is_refused = match random.below(8) {
        0 | 1 => {
            let path = some_file(random);
            world.file(&path, &some_pod(random, size).to_string());
            false
        }
        2 => {
            world.remove(&some_file(random));
            false
        }
        3 => {
            let class =
                "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 9\n";
            if random.one_in(2) {
                world.file("/site/class", class)
            } else {
                world.remove("/site/class")
            };
            false
        }
        4 | 5 => {
            let (object, is_new) = (some_pod(random, size), random.one_in(2));
            let dry_run = random.one_in(6);
            let name = object["metadata"]["name"].as_str().expect("it has one").to_owned();
            let owner = world.pods.get(&pod_name(&name)).map(|pod| pod.source.clone());
            let options = RequestOptions {
                validation: FieldValidation::Strict,
                dry_run,
                new: is_new,
                keeps_claim: false,
            };
            let answer = world.apply(object, options);
            if let (Ok(accepted), Some(owner)) = (&answer, &owner)
                && owner.starts_with("/run")
            {
                // The object belongs to a file, so that the client gets a warning.
                let overrides = format!("{} overrides this: ", owner.display());
                assert!(
                    accepted.warnings.iter().any(|warning| warning.starts_with(&overrides)),
                    "{accepted:?}"
                );
                assert_eq!(world.pods[&pod_name(&name)].source, *owner);
            }
            answer.is_err() || dry_run
        }
        6 => {
            let object = some_pod(random, size);
            let name = object["metadata"]["name"].as_str().expect("it has one").to_owned();
            let answer = world.update(&name, Change::Replace(object), false);
            if let Some(pod) = world.pods.get(&pod_name(&name)).filter(|_| answer.is_ok()) {
                assert!(pods.iter().any(|(_, uid)| *uid == pod.pod.uid), "an update made another pod");
            }
            answer.is_err()
        }
        _ => {
            let name = NAMES[random.below(3)];
            let owner = world.pods.get(&pod_name(name)).map(|pod| pod.source.clone());
            let answer = world.delete(name, &Preconditions::default());
            let is_applied = owner.is_some_and(|owner| owner.starts_with("/applied"));
            assert_eq!(answer.is_ok(), is_applied, "{answer:?}");
            answer.is_err()
        }
    };
    if is_refused {
        assert_eq!(files, world.files, "a refused request changed a file");
        let now = world.pods.iter().map(|(name, pod)| (name.clone(), pod.pod.uid.clone()));
        assert_eq!(pods, now.collect::<Vec<_>>(), "a refused request changed a pod");
        assert_eq!(version, world.objects.version(), "a refused request changed an object");
    }
    check(world, version);
}

fn check(world: &mut World, version: u64) {
    assert!(world.objects.version() >= version, "a version went back");
    // The core has the pod of the file with precedence.
    let (wanted, _) = world.registry.sources.wanted();
    let mut uids = SortedSet::new();
    for (name, pod) in &world.pods {
        assert!(uids.insert(pod.pod.uid.clone()), "two pods have uid {}", pod.pod.uid);
        let desired = world.registry.desired(name).expect("what the core has is desired");
        assert!(Rc::ptr_eq(desired, pod), "{} is another than what is desired", name.1);
        assert!(world.files.contains_key(&pod.source), "no file has {}", name.1);
        if let Some(wanted) = wanted.get(name)
            && wanted.source == pod.source
            && wanted.is_same_as(pod)
        {
            continue;
        }
        // The file became invalid, or names a class that does not exist: the pod stays unchanged.
        let (wanted, refusals) = world.registry.sources.wanted();
        let lacks_class = wanted.get(name).is_some_and(|new| !new.pod.spec.priority_class_name.is_empty());
        let is_wrong = refusals.iter().any(|refusal| refusal.source == pod.source);
        assert!(lacks_class || is_wrong, "{} is not what {} says", name.1, pod.source.display());
    }
    // The quota is respected.
    let used = world.registry.sources.used_beside(Path::new(""));
    assert!(used.bytes <= 4 << 20 && used.pods <= 1024, "{used:?} are kept");
    // Each published object has its own version.
    let mut versions = SortedSet::new();
    for (_, object) in world.objects.list("pods", None).0 {
        assert!(versions.insert(object.version), "two objects have one version");
    }
    assert_eq!(versions.len(), world.pods.len());
    // Reading the same files again changes nothing.
    let version = world.objects.version();
    let changes = world.read();
    let is_change = |changes: &&String| changes.ends_with(" goes") || changes.contains(" is a:");
    assert_eq!(changes.iter().filter(is_change).count(), 0, "{changes:?}");
    assert_eq!(world.objects.version(), version);
}
