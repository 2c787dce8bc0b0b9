//! Random stories of a whole node: files and requests go through the registry into the core, whose pods live in the
//! simulated world of the tests of the core, while agents die and power is cut.
//!
//! The world of the core checks its own rules, such as that no two pods of one UID or name run at a time, that nothing
//! starts without the objects that it needs, and that a stopped pod ends within its grace period.

use std::time::Duration;

use nodlet_core::sim::ClaimNews;
use nodlet_fuzz::Random;

use super::*;

const NAMES: [&str; 3] = ["web", "db", "log"];
const MAPS: [&str; 2] = ["m0", "m1"];
/// The claims, each with the PersistentVolume that it names. One pod at a time may use `alone`.
const CLAIMS: [&str; 2] = ["alone", "data"];

/// `NODLET_SEED=42 NODLET_ROUNDS=1` runs a single story.
#[test]
fn random_changes_by_files_and_clients_survive_a_crash() {
    for_each_seed(40, story);
}

fn story(seed: u64) {
    let mut random = Random::of(seed);
    let mut world = World::new();
    world.node = Some(NodeWorld::new(seed));
    for claim in CLAIMS {
        put_claim(&mut world, claim);
    }
    let mut known = SortedMap::new();
    for _ in 0..25 {
        step(&mut random, &mut world);
        check(&world, &mut known);
        let time = Duration::from_millis(random.below(40_000) as u64);
        run(&mut world, time);
        // A pod of a file that comes back later has the same UID, and begins anew.
        known.retain(|uid, _| !node(&mut world).is_gone(uid));
    }
    for map in MAPS {
        world.apply(config_map(map, "9"), APPLY).expect("it is right");
    }
    for claim in CLAIMS {
        // Anew: a volume whose claim was deleted is not bound again.
        remove_claim(&mut world, claim);
        put_claim(&mut world, claim);
    }
    check(&world, &mut known);
    // The last of the pods that use one volume waits for the others, and runs once they have ended.
    for name in ["first", "second"] {
        let mut object = pod(name, "a:1");
        object["spec"]["volumes"] = json!([{"name": "c", "persistentVolumeClaim": {"claimName": "alone"}}]);
        world.file(&format!("/run/{name}"), &object.to_string());
        run(&mut world, Duration::from_secs(60));
    }
    let other = |wanted: &&Rc<Wanted>| {
        &*wanted.pod.name != "second" && wanted.pod.claims().any(|(_, claim, _)| claim == "alone")
    };
    let next = |world: &World| {
        let mut all = world.registry.desired.values();
        all.find(other).map(|wanted| wanted.source.clone())
    };
    while let Some(source) = next(&world) {
        world.remove(&source.to_string_lossy());
    }
    node(&mut world).heal();
    run(&mut world, Duration::from_secs(1500));
    check(&world, &mut known);
    node(&mut world).finish();
}

/// Lets time pass. The registry decides which pods get the volumes of their claims.
fn run(world: &mut World, time: Duration) {
    let labels = [("kubernetes.io/hostname".to_owned(), NODE.to_owned())].into();
    let end = node(world).now() + time;
    if !world.registry.bind_claims(NOW, &labels).is_empty() {
        let pods = node(world).pods().into_iter().filter(|(_, pod)| pod.claims().next().is_some());
        let pods: Vec<_> = pods.map(|(index, _)| index).collect();
        node(world).claims_changed(pods);
    }
    loop {
        let left = end - node(world).now();
        node(world).run(left);
        let news = node(world).claim_news();
        if news.is_empty() {
            break;
        }
        for news in news {
            match news {
                ClaimNews::Requested(index, pod) => {
                    let taken = world.registry.take_volumes(index, &pod, &labels);
                    if let Some(bindings) = world.registry.unsaved_bindings() {
                        world.bindings = Some(bindings);
                    }
                    let gets = taken.is_ok();
                    if let Ok(volumes) = taken {
                        world.claimed.insert(pod.uid.clone(), volumes);
                    }
                    node(world).answer_claims(index, &pod.uid, gets);
                    check_claims(world);
                }
                ClaimNews::Released(index, uid) => {
                    world.claimed.remove(&uid);
                    let pods = node(world).pods();
                    let pods = pods.iter().map(|(index, pod)| (*index, &**pod));
                    let woken = world.registry.release_volumes(index, pods);
                    node(world).claims_changed(woken);
                }
            }
        }
    }
}

/// Checks that no two pods with a sandbox have a volume that is for one pod at a time.
fn check_claims(world: &World) {
    let with_sandbox = world.node.as_ref().expect("it is here").with_sandbox();
    let mut owners: SortedMap<&str, &Uid> = SortedMap::new();
    for uid in &with_sandbox {
        for volume in world.claimed.get(uid).into_iter().flatten().filter(|volume| volume.is_exclusive) {
            let other = owners.insert(&volume.persistent_volume, uid);
            assert_eq!(other, None, "{uid} has {} as well", volume.persistent_volume);
        }
    }
}

fn put_claim(world: &mut World, name: &str) {
    let modes = json!([if name == "alone" { "ReadWriteOncePod" } else { "ReadWriteOnce" }]);
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": modes, "hostPath": {"path": format!("/{name}")}},
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": modes, "volumeName": name},
    });
    world.file(&format!("/site/pv-{name}.json"), &volume.to_string());
    world.file(&format!("/site/pvc-{name}.json"), &claim.to_string());
}

/// Removes a claim and its volume.
fn remove_claim(world: &mut World, name: &str) {
    for kind in ["pvc", "pv"] {
        world.remove(&format!("/site/{kind}-{name}.json"));
    }
    let labels = SortedMap::new();
    world.registry.bind_claims(NOW, &labels);
}

fn node(world: &mut World) -> &mut NodeWorld {
    world.node.as_mut().expect("it is here")
}

fn some<'a>(random: &mut Random, choices: &[&'a str]) -> &'a str {
    choices[random.below(choices.len())]
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": value}})
}

fn some_pod(random: &mut Random) -> Value {
    let mut object = pod(some(random, &NAMES), some(random, &["a:1", "a:2", "a:3"]));
    let spec = &mut object["spec"];
    spec["terminationGracePeriodSeconds"] = random.below(20).into();
    match random.below(9) {
        0 => spec["hostname"] = "h".into(),
        1 => spec["restartPolicy"] = some(random, &["Never", "OnFailure"]).into(),
        2 => spec["volumes"] = json!([{"name": "m", "configMap": {"name": some(random, &MAPS)}}]),
        3 => spec["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": some(random, &MAPS)}}]),
        4 => object["metadata"]["labels"] = json!({"a": random.below(3).to_string()}),
        5 | 6 => {
            let claim = some(random, &CLAIMS);
            spec["volumes"] = json!([{"name": "c", "persistentVolumeClaim": {"claimName": claim}}]);
        }
        _ => {}
    }
    object
}

fn step(random: &mut Random, world: &mut World) {
    let file =
        format!("/{}/{}", some(random, &["cluster", "vendor", "site", "run"]), some(random, &["x", "y"]));
    match random.below(16) {
        0 | 1 => drop(world.file(&file, &some_pod(random).to_string())),
        2 => drop(world.remove(&file)),
        3 => {
            let range = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: l}\n\
                spec: {limits: [{type: Container, default: {memory: 64Mi}}]}\n";
            if random.one_in(2) {
                drop(world.file("/site/range", range))
            } else {
                drop(world.remove("/site/range"))
            }
        }
        4 => {
            let map = config_map(some(random, &MAPS), &random.below(3).to_string());
            world.apply(map, APPLY).expect("it is right");
        }
        5 => drop(world.remove(&format!("/applied/configmap_default_{}.json", some(random, &MAPS)))),
        6..=8 => {
            let (object, is_new) = (some_pod(random), random.one_in(2));
            let name = object["metadata"]["name"].as_str().expect("it has one").to_owned();
            let image = object["spec"]["containers"][0]["image"].clone();
            let answer = world.apply(object, if is_new { CREATE } else { APPLY });
            let path = format!("/applied/default_{name}.json");
            if let Ok(accepted) = answer
                && accepted.applied != Applied::Unchanged
            {
                // What was acknowledged is on flash.
                let text = &world.files[Path::new(&path)];
                assert!(text.contains(image.as_str().expect("a text")), "{text}");
            }
        }
        9 => {
            let name = some(random, &NAMES);
            let patch =
                json!({"spec": {"containers": [{"name": "app", "image": some(random, &["a:1", "a:2"])}]}});
            let change = Change::Patch(PatchKind::Strategic, patch);
            let _ = world.update(name, change, false);
        }
        10 | 11 => {
            world.grace = random.one_in(2).then(|| Duration::from_secs(random.below(20) as u64));
            let _ = world.delete(some(random, &NAMES), &Preconditions::default());
            world.grace = None;
        }
        12 => {
            let claim = some(random, &CLAIMS);
            if random.one_in(2) { remove_claim(world, claim) } else { put_claim(world, claim) }
        }
        _ => {
            let before = desired(world);
            world.crash(random.one_in(2));
            assert_eq!(before, desired(world), "the next agent wants other pods");
        }
    }
}

/// The pods that the registry wants, by UID.
fn desired(world: &World) -> SortedMap<Uid, String> {
    let pods = world.registry.desired.values();
    pods.map(|wanted| (wanted.pod.uid.clone(), format!("{:?}", wanted.pod))).collect()
}

/// Checks that the core has the pods that the registry wants, that no generation falls, and that each change of a spec
/// has a generation of its own. `known` has the generation and the spec of each pod that was wanted.
fn check(world: &World, known: &mut SortedMap<Uid, (u64, String)>) {
    let wanted = world.node.as_ref().expect("it is here").wanted();
    let of_node: SortedMap<Uid, String> =
        wanted.iter().map(|pod| (pod.uid.clone(), format!("{pod:?}"))).collect();
    assert_eq!(of_node, desired(world), "the core and the registry differ");
    for pod in wanted {
        let now = (pod.generation, format!("{:?}", pod.spec));
        if let Some(before) = known.insert(pod.uid.clone(), now.clone()) {
            assert!(now == before || now.0 > before.0, "{}: {now:?} follows {before:?}", pod.name);
        }
    }
}
