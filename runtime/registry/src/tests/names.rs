use super::*;
use nodlet_core::facts::PodIndex;

#[test]
fn of_several_pods_with_one_name_the_oldest_visible_one_is_published() {
    let pods: Vec<Rc<Pod>> = [("a", "web"), ("b", "web"), ("a", "db"), ("a", "web"), ("a", "web")]
        .map(|(namespace, name)| {
            let mut object = pod(name, "a:1");
            object["metadata"]["namespace"] = namespace.into();
            object["metadata"]["uid"] = "u".into();
            manifest::read_new(object, Validation::Strict, NODE).unwrap_or_else(|error| panic!("{error}")).pod
        })
        .to_vec();
    for (name, gone, hidden, expected) in [
        (("a", "web"), &[][..], &[][..], Some(1)),
        (("b", "web"), &[], &[], Some(2)),
        (("a", "db"), &[], &[], Some(3)),
        (("b", "db"), &[], &[], None),
        (("a", "web"), &[1], &[], Some(4)),
        (("a", "web"), &[], &[1], Some(4)),
        (("a", "web"), &[], &[4], Some(1)),
        (("a", "web"), &[1], &[4], Some(5)),
        (("a", "web"), &[], &[1, 4, 5], None),
        (("a", "db"), &[], &[1, 4, 5], Some(3)),
    ] {
        let indexes = (1..).map(PodIndex).zip(&pods);
        let left = indexes.filter(|(index, _)| !gone.contains(&index.0)).map(|(index, pod)| (index, &**pod));
        // Whatever the order in which they are listed.
        let all: Vec<(PodIndex, &Pod)> = left.collect();
        let is_hidden = |index: PodIndex| hidden.contains(&index.0);
        for pods in [all.clone(), all.into_iter().rev().collect()] {
            let shown = crate::names::shown(name, pods.into_iter(), is_hidden).map(|index| index.0);
            assert_eq!(shown, expected, "{name:?} without {gone:?}, {hidden:?} hidden");
        }
    }
}
