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
    let (source, name) = world.place(Path::new("/site/web.json"));
    let file = world.registry.sources.parse(source, &name, text.as_bytes(), NODE).expect("it is right");
    let parsed = file.wanted[0].pod.clone();
    let mut used = world.registry.sources.used(source);
    world.registry.sources.put(source, &name, file, &mut used).expect("there is room");
    world.read();
    let desired = world.registry.desired(&pod_name("web")).expect("it is desired");
    assert!(Rc::ptr_eq(&desired.pod, &parsed), "its object was parsed again");
}

#[test]
fn a_file_that_differs_from_the_written_text_is_parsed() {
    let mut world = World::new();
    let write = write_of(&mut world, pod("web", "a:1"), CREATE);
    let text = String::from_utf8(write.text.clone()).expect("it is JSON");
    // Somebody edits the file before it is read.
    assert_eq!(world.file("/applied/default_web.json", &text.replace("a:1", "a:3")), ["web is a:3"]);
    // The text that was announced comes after all, and is known still.
    assert_eq!(world.file("/applied/default_web.json", &text), ["web is a:1"]);
    let desired = world.registry.desired(&pod_name("web")).expect("it is desired");
    assert!(Rc::ptr_eq(&desired.pod, &parsed(&write)));
    // Nothing is kept of what was read, or was not written in the end.
    world.registry.release(&write.path);
    assert_eq!(world.file("/applied/default_web.json", &text.replace("a:1", "a:2")), ["web is a:2"]);
}

const DEFINITIONS: &str = "apiVersion: settings.k8s.io/v1alpha1\nkind: PodPreset\nmetadata: {name: p}\n\
    spec: {selector: {}, env: [{name: A, value: '1'}]}\n---\n\
    apiVersion: v1\nkind: LimitRange\nmetadata: {name: l}\n\
    spec: {limits: [{type: Container, default: {memory: 64Mi}, max: {memory: 128Mi}}]}\n";

/// The admission that was decided in the request for a file.
fn admitted(write: &Write, world: &mut World) -> Rc<Wanted> {
    let (source, name) = world.place(&write.path);
    let file = world.registry.sources.parse(source, &name, &write.text, NODE).expect("it is known");
    let (_, Admitted { wanted, .. }) = file.admitted.as_ref().expect("the pod is new");
    let wanted = wanted.clone();
    world.registry.sources.expect(&write.path, &write.text, file);
    wanted
}

#[test]
fn a_pod_with_additions_reaches_the_core_as_it_was_admitted_in_the_request() {
    let mut world = World::new();
    world.file("/site/definitions", DEFINITIONS);
    let write = write_of(&mut world, pod("web", "a:1"), CREATE);
    let in_request = admitted(&write, &mut world);
    world.carry_out(Decision::Write(write)).expect("it is written");
    let desired = world.registry.desired(&pod_name("web")).expect("it is desired");
    assert!(Rc::ptr_eq(desired, &in_request), "it was admitted again");
    let container = &desired.pod.spec.containers[0];
    assert!(container.resources.memory_limit.is_some() && desired.object.get().contains("\"A\""));
}

#[test]
fn a_pod_is_admitted_again_if_definitions_change_during_the_write_of_its_file() {
    let mut world = World::new();
    let write = write_of(&mut world, pod("web", "a:1"), CREATE);
    let in_request = admitted(&write, &mut world);
    world.file("/site/definitions", DEFINITIONS);
    world.carry_out(Decision::Write(write)).expect("it is written");
    let desired = world.registry.desired(&pod_name("web")).expect("it is desired");
    assert!(!Rc::ptr_eq(desired, &in_request) && desired.object.get().contains("\"A\""));
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
