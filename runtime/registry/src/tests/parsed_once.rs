//! The pod of the core is the one that was parsed when it came in: no later step parses its object again.

use super::*;

/// Prepares and applies a pod as the engine does. Returns the file to write.
fn write_of(world: &mut World, mut object: Value, options: RequestOptions) -> Box<Write> {
    let identity = Identity::new([7; 16], [0; 5], NOW.to_owned());
    world.registry.prepare(Kind::Pod, &mut object, options.new, &identity).expect("it is right");
    let published = world.pods.get(&Registry::name_of(&object)).cloned();
    let known = ReplacedPod { published, waiting: None, has_terminal_phase: false };
    match world.registry.apply(object, options, &known) {
        Ok(Decision::Write(write)) => write,
        other => panic!("{other:?}"),
    }
}

fn parsed(write: &Write) -> Rc<Pod> {
    match &write.of {
        Written::Pod(pod) => pod.clone(),
        Written::Definition(name) => panic!("{name:?}"),
    }
}

#[test]
fn an_applied_pod_reaches_the_core_as_it_was_parsed_in_the_request() {
    let mut world = World::new();
    for (image, options) in [("a:1", CREATE), ("a:2", APPLY)] {
        let write = write_of(&mut world, pod("web", image), options);
        let parsed = parsed(&write);
        world.carry_out(Decision::Write(write)).expect("it is written");
        let desired = world.registry.desired(&pod_name("web")).expect("it is desired");
        assert_eq!(desired.pod.spec.containers[0].image, image);
        assert!(Rc::ptr_eq(&desired.pod, &parsed), "{image}: its file was parsed again");
    }
}

#[test]
fn a_pod_of_a_file_reaches_the_core_as_it_was_parsed_from_the_file() {
    let mut world = World::new();
    let text = pod("web", "a:1").to_string();
    let path = Path::new("/site/web.json");
    let file = parse(&world.registry.sources, path, &text).expect("it is right");
    let parsed = file.wanted[0].pod.clone();
    world.registry.sources.put(path, file).expect("there is room");
    world.read();
    let desired = world.registry.desired(&pod_name("web")).expect("it is desired");
    assert!(Rc::ptr_eq(&desired.pod, &parsed), "its object was parsed again");
}

#[test]
fn a_pod_with_more_values_than_a_file_may_have_by_its_defaults_is_rejected() {
    let mut world = World::new();
    let object = |count: usize| {
        let variable = |at: usize| json!({"name": format!("A{at}"), "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
        let mut object = pod("web", "a:1");
        object["spec"]["containers"][0]["env"] = (0..count).map(variable).collect();
        object
    };
    // A variable has five values, and a sixth by default: `apiVersion`.
    let too_large = object(nodlet_kube::manifest::VALUES / 11 * 2);
    assert!(crate::patch::values_of(&too_large) < nodlet_kube::manifest::VALUES);
    let mut apply = |mut object: Value| {
        let identity = Identity::new([7; 16], [0; 5], NOW.to_owned());
        world.registry.prepare(Kind::Pod, &mut object, CREATE.new, &identity).expect("it is right");
        world.registry.apply(
            object,
            CREATE,
            &ReplacedPod { published: None, waiting: None, has_terminal_phase: false },
        )
    };
    let Err(refused) = apply(too_large) else { panic!("it was accepted") };
    assert!(refused.message.contains("25000 values, those of defaults included"), "{}", refused.message);
    assert!(matches!(apply(object(20)), Ok(Decision::Write(_))));
}
