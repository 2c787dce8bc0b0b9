//! Random stories of a whole node: files and requests go through the registry into the core, whose pods live in the
//! simulated world of the tests of the core, while agents die and power is cut.
//!
//! The world of the core checks its own rules, such as that no two pods of one UID or name run at a time, that nothing
//! starts without the objects that it needs, and that a stopped pod ends within its grace period.

use std::time::Duration;

use nodlet_fuzz::Random;

use super::*;

const NAMES: [&str; 3] = ["web", "db", "log"];
const MAPS: [&str; 2] = ["m0", "m1"];

/// `NODLET_SEED=42 NODLET_ROUNDS=1` runs a single story.
#[test]
fn random_changes_by_files_and_clients_survive_a_crash() {
    for_each_seed(40, story);
}

fn story(seed: u64) {
    let mut random = Random::of(seed);
    let mut world = World::new();
    world.node = Some(NodeWorld::new(seed));
    let mut known = SortedMap::new();
    for _ in 0..25 {
        step(&mut random, &mut world);
        check(&world, &mut known);
        let time = Duration::from_millis(random.below(40_000) as u64);
        node(&mut world).run(time);
        // A pod of a file that comes back later has the same UID, and begins anew.
        known.retain(|uid, _| !node(&mut world).is_gone(uid));
    }
    for map in MAPS {
        world.apply(config_map(map, "9"), APPLY).expect("it is right");
    }
    check(&world, &mut known);
    node(&mut world).finish();
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
    match random.below(8) {
        0 => spec["hostname"] = "h".into(),
        1 => spec["restartPolicy"] = some(random, &["Never", "OnFailure"]).into(),
        2 => spec["volumes"] = json!([{"name": "m", "configMap": {"name": some(random, &MAPS)}}]),
        3 => spec["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": some(random, &MAPS)}}]),
        4 => object["metadata"]["labels"] = json!({"a": random.below(3).to_string()}),
        _ => {}
    }
    object
}

fn step(random: &mut Random, world: &mut World) {
    let file = format!("/{}/{}", some(random, &["vendor", "site", "run"]), some(random, &["x", "y"]));
    match random.below(14) {
        0 | 1 => drop(world.file(&file, &some_pod(random).to_string())),
        2 => drop(world.remove(&file)),
        3 => {
            let range = "apiVersion: v1\nkind: LimitRange\nmetadata: {name: l}\n\
                spec: {limits: [{type: Container, default: {memory: 64Mi}}]}\n";
            match random.one_in(2) {
                true => drop(world.file("/site/range", range)),
                false => drop(world.remove("/site/range")),
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
