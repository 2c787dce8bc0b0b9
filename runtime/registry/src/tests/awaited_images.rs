use super::*;
use crate::held_updates::{Activity, HeldUpdates, NodePods};
use nodlet_core::facts::{
    Attempt, FoundAttempt, FoundPod, FoundSandbox, Health, Observation, StartedContainer, StatusHandover,
    User,
};
use nodlet_core::node::Node;
use nodlet_core::spec::ContainerIndex;
use nodlet_core::time::Instant;

/// A pod with an init container, which has ended, and the containers `app` and `side`.
fn pod(uid: &str, images: [&str; 3], spec: &str) -> Rc<Pod> {
    let [init, app, side] = images;
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, uid: {uid}}}\nspec: {{{spec} initContainers: [{{name: init, image: '{init}'}}], containers: [{{name: app, image: '{app}'}}, {{name: side, image: '{side}'}}]}}\n"
    );
    let manifests = manifest::parse("/applied/web.yaml", text.as_bytes(), Validation::Strict, NODE);
    manifests.unwrap_or_else(|error| panic!("{text}: {error}")).remove(0).pod
}

/// The core has these pods, and of each the containers `app` and `side` run.
struct Core(Node);

impl Core {
    fn running(pod: &Rc<Pod>) -> Core {
        let attempt = |container: ContainerIndex| {
            let image: Rc<str> = pod.spec.container(container).image.as_str().into();
            FoundAttempt {
                attempt: Attempt { container, number: 0 },
                container: StartedContainer {
                    at: Instant(2),
                    id: "id".into(),
                    image: image.clone(),
                    image_id: "sha256:id".into(),
                    spec_image: image,
                    user: User::default(),
                    stop_signal: 15,
                },
                exit: None,
                health: Health::default(),
            }
        };
        let mut node = Node::new();
        node.observe(
            Instant(3),
            Observation::Found(Box::new(FoundPod {
                pod: pod.clone(),
                record: None,
                sandbox: Some(FoundSandbox { ip: None, at: Instant(1) }),
                processes: false,
                attempts: pod.spec.container_indexes().map(attempt).collect(),
                status: StatusHandover::default(),
            })),
        );
        node.observe(Instant(3), Observation::Wanted { pod: pod.clone(), record: None, status: None });
        Core(node)
    }
}

impl NodePods for Core {
    fn activity(&self, uid: &Uid) -> Activity {
        Activity::of(self.0.index_of(uid).and_then(|index| self.0.pod(index)))
    }

    fn named(&self, _: &PodName) -> Vec<Rc<Wanted>> {
        Vec::new()
    }
}

fn awaited(core: &Core, old: &Pod, new: &Pod) -> Vec<String> {
    let published = core.0.index_of(&old.uid).and_then(|index| core.0.pod(index));
    let awaited = HeldUpdates::default().awaited_images(new, published, core);
    awaited.iter().map(|awaited| awaited.warning()).collect()
}

#[test]
fn an_update_that_waits_for_images_returns_a_warning_with_their_names() {
    let old = pod("old", ["i:1", "a:1", "b:1"], "");
    let mut core = Core::running(&old);
    let warning = |image: &str, container: &str, instead: &str| {
        format!(
            "image \"{image}\" of container {container} is not on this node: {instead} runs on until it is loaded with 'nodlet image load FILE'"
        )
    };
    let all = || {
        [("i:2", "init"), ("a:1", "app"), ("b:2", "side")]
            .map(|(image, container)| warning(image, container, "the pod as it is"))
            .to_vec()
    };
    let changed = ["i:2", "a:1", "b:2"];
    for (new, expected) in [
        (old.clone(), vec![]),
        // In place: those that differ, but for containers that run once.
        (pod("old", changed, ""), vec![warning("b:2", "side", "image \"b:1\"")]),
        // Of another pod: all of them.
        (pod("new", changed, ""), all()),
        (pod("old", changed, "hostname: other,"), all()),
    ] {
        assert_eq!(awaited(&core, &old, &new), expected, "{:?}", new.uid);
    }
    // What is being removed waits for nothing.
    core.0.observe(Instant(4), Observation::Unwanted { uid: old.uid.clone(), grace: None });
    assert_eq!(core.activity(&old.uid), Activity::Ended);
    assert_eq!(awaited(&core, &old, &pod("new", changed, "")), [""; 0]);
}

#[test]
fn the_activity_of_a_pod_comes_from_the_core() {
    let old = pod("old", ["i:1", "a:1", "b:1"], "");
    assert_eq!(Core::running(&old).activity(&old.uid), Activity::Started);
    let mut node = Node::new();
    assert_eq!(Core(Node::new()).activity(&old.uid), Activity::Ended);
    node.observe(Instant(3), Observation::Wanted { pod: old.clone(), record: None, status: None });
    assert_eq!(Core(node).activity(&old.uid), Activity::NotStarted);
}
