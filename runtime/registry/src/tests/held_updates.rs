use super::*;
use crate::held_updates::{Activity, Effect, LookUp, NodePods, Waits};

fn wanted(uid: &str, spec: &str) -> Rc<Wanted> {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, uid: {uid}}}\nspec: {{containers: [{{name: app, {spec}}}]}}\n"
    );
    let manifests = manifest::parse("/applied/web.yaml", text.as_bytes(), Validation::Strict, NODE);
    let manifest = manifests.unwrap_or_else(|error| panic!("{text}: {error}")).remove(0);
    Rc::new(Wanted::new(manifest, Path::new("/applied/web.yaml")))
}

/// The pods that the core has.
#[derive(Default)]
struct Pods(Vec<(Rc<Wanted>, Activity)>);

impl NodePods for Pods {
    fn activity(&self, uid: &Uid) -> Activity {
        let known = self.0.iter().find(|(pod, _)| pod.pod.uid == *uid);
        known.map_or(Activity::Ended, |(_, activity)| *activity)
    }

    fn named(&self, name: &PodName) -> Vec<Rc<Wanted>> {
        let named = self.0.iter().filter(|(pod, _)| *name == pod_name(&pod.pod.name));
        named.map(|(pod, _)| pod.clone()).collect()
    }
}

/// The held updates of one pod, `web`, on a board.
#[derive(Default)]
struct Board {
    held: HeldUpdates,
    desired: WantedByName,
    pods: Pods,
    /// Look-ups without a result.
    look_ups: Vec<LookUp>,
    seconds: u64,
}

impl Board {
    /// A board on which a pod runs.
    fn running(pod: &Rc<Wanted>) -> Board {
        let mut board = Board { pods: Pods(vec![(pod.clone(), Activity::Started)]), ..Board::default() };
        board.desired.insert(pod_name("web"), pod.clone());
        board
    }

    /// Decides a second later about a change to `new`: the pod that is to run, and the effects.
    fn decide(&mut self, new: &Rc<Wanted>) -> (String, Vec<String>) {
        self.seconds += 1;
        let mut wanted = WantedByName::from([(pod_name("web"), new.clone())]);
        let now = Instant(self.seconds);
        let effects = self.held.hold_back(&mut wanted, &self.desired, &self.pods, now);
        let mut lines = Vec::new();
        for effect in effects {
            lines.push(match effect {
                Effect::Emit(pod, event) => format!("event of {}: {}", pod.pod.uid, event.reason),
                Effect::KeepOnFlash(pod) => format!("keep {}", pod.pod.uid),
                Effect::RemoveKept(uid) => format!("remove {uid}"),
                Effect::Publish(uid) => format!("publish {uid}"),
                Effect::LookUp(look_up) => {
                    let line = format!("look up {}", look_up.images.join(" "));
                    self.look_ups.push(look_up);
                    line
                }
            });
        }
        (wanted[&pod_name("web")].pod.uid.0.to_string(), lines)
    }

    /// The result of the oldest look-up: all its images are on the board, or none is.
    fn looked_up(&mut self, is_present: bool) -> bool {
        let look_up = self.look_ups.remove(0);
        let present = vec![is_present; look_up.images.len()];
        self.held.looked_up(look_up, present)
    }

    /// The images that the pod with this UID waits for, and since when.
    fn waits(&self, uid: &str) -> Option<(u64, String)> {
        self.held.waits_of(&Uid::from(uid)).map(|waits| (waits.since.0, waits.missing.join(" ")))
    }
}

fn lines(pod: &str, effects: &[&str]) -> (String, Vec<String>) {
    (pod.to_owned(), effects.iter().map(|&effect| effect.to_owned()).collect())
}

const MISSING: [&str; 5] =
    ["event of old: Failed", "event of old: Failed", "event of old: BackOff", "keep old", "publish old"];

#[test]
fn a_pod_runs_unchanged_until_the_images_of_its_change_are_on_the_board() {
    let (old, new) = (wanted("old", "image: 'a:1'"), wanted("new", "image: 'a:2'"));
    let mut board = Board::running(&old);
    assert_eq!(board.decide(&new), lines("old", &["look up a:2"]));
    // Nothing is reported before the result.
    assert_eq!((board.decide(&new), board.waits("old")), (lines("old", &[]), None));
    assert!(board.looked_up(false));
    assert_eq!(board.decide(&new), lines("old", &MISSING));
    assert_eq!(board.waits("old"), Some((3, "a:2".to_owned())));
    // It is reported once.
    assert_eq!(board.decide(&new), lines("old", &[]));
    assert_eq!(board.waits("old"), Some((3, "a:2".to_owned())));
    assert!(board.held.images_changed());
    assert_eq!(board.decide(&new), lines("old", &["look up a:2"]));
    assert_eq!(board.waits("old"), Some((3, "a:2".to_owned())), "it waits for the result");
    assert!(board.looked_up(true));
    // The kept file stays until the old pod is gone: then the agent removes it with the pod's record.
    assert_eq!(board.decide(&new), lines("new", &[]));
    assert_eq!((board.waits("old"), board.held.images_changed()), (None, false));
}

#[test]
fn a_held_update_that_is_replaced_or_reverted_is_dropped() {
    let (old, new) = (wanted("old", "image: 'a:1'"), wanted("new", "image: 'a:2'"));
    let mut board = Board::running(&old);
    board.decide(&new);
    board.looked_up(false);
    board.decide(&new);
    let newer = wanted("newer", "image: 'a:3'");
    assert_eq!(board.decide(&newer), lines("old", &["look up a:3"]));
    assert_eq!(board.held.newest(&pod_name("web")).map(|pod| &*pod.pod.uid.0), Some("newer"));
    assert!(board.looked_up(false));
    assert_eq!(board.decide(&newer), lines("old", &MISSING));
    assert_eq!(board.waits("old"), Some((4, "a:3".to_owned())));
    assert_eq!(board.decide(&old), lines("old", &["remove old", "publish old"]));
    assert_eq!((board.waits("old"), board.held.pods().count()), (None, 0));
}

#[test]
fn a_result_of_a_lookup_before_a_change_of_images_is_ignored() {
    let (old, new) = (wanted("old", "image: 'a:1'"), wanted("new", "image: 'a:2'"));
    let mut board = Board::running(&old);
    board.decide(&new);
    assert!(board.held.images_changed());
    assert!(!board.looked_up(false));
    assert_eq!(board.decide(&new), lines("old", &["look up a:2"]));
    assert!(board.looked_up(true));
    assert_eq!(board.decide(&new), lines("new", &[]));
}

#[test]
fn only_an_update_that_ends_a_running_pod_is_held_back() {
    let old = wanted("old", "image: 'a:1'");
    for (new, activity, is_held) in [
        (wanted("old", "image: 'a:2'"), Activity::Started, false),
        (wanted("new", "image: 'a:2'"), Activity::Started, true),
        (wanted("old", "image: 'a:2', command: [sh]"), Activity::Started, true),
        (wanted("new", "image: 'a:2'"), Activity::NotStarted, false),
        (wanted("new", "image: 'a:2'"), Activity::Ended, false),
    ] {
        let mut board = Board::running(&old);
        board.pods.0[0].1 = activity;
        board.decide(&new);
        assert_eq!(board.held.of(&old.pod.uid).is_some(), is_held, "{:?} {activity:?}", new.pod.uid);
        assert_eq!(board.held.replaces(&old.pod, &new.pod, &board.pods), is_held);
    }
}

#[test]
fn a_held_update_is_decided_again_when_the_running_pod_ends() {
    let (old, new) = (wanted("old", "image: 'a:1'"), wanted("new", "image: 'a:2'"));
    let mut board = Board::running(&old);
    board.decide(&new);
    board.looked_up(false);
    board.decide(&new);
    assert!(!board.held.is_any_over(&board.pods));
    board.pods.0[0].1 = Activity::Ended;
    assert!(board.held.is_any_over(&board.pods));
    assert_eq!(board.decide(&new), lines("new", &["remove old", "publish old"]));
    assert!(!board.held.is_any_over(&board.pods));
}

#[test]
fn a_later_agent_continues_to_hold_back_an_update() {
    let (old, new) = (wanted("old", "image: 'a:1'"), wanted("new", "image: 'a:2'"));
    let waits = Waits { since: Instant(7), missing: vec!["a:2".to_owned()] };
    for is_present in [false, true] {
        let mut board = Board::running(&old);
        board.desired.clear();
        board.held.adopt("old".into(), waits.clone());
        assert_eq!(board.waits("old"), Some((7, "a:2".to_owned())));
        let wanted = WantedByName::from([(pod_name("web"), new.clone())]);
        let look_up = board.held.begin(WantedByName::new(), &wanted, &board.desired, &board.pods);
        assert_eq!(look_up.images, ["a:2"]);
        board.held.looked_up(look_up, vec![is_present]);
        let expected = if is_present { lines("new", &[]) } else { lines("old", &[]) };
        assert_eq!(board.decide(&new), expected);
        assert_eq!(board.waits("old").is_none(), is_present);
    }
    // No change waits any more.
    let mut board = Board::running(&old);
    board.held.adopt("old".into(), waits);
    assert_eq!(board.decide(&old), lines("old", &["publish old"]));
    assert_eq!(board.waits("old"), None);
}

#[test]
fn after_a_reboot_the_old_pod_runs_until_the_images_of_its_update_are_present() {
    let (old, new) = (wanted("old", "image: 'a:1'"), wanted("new", "image: 'a:2'"));
    let begin = |new: &Rc<Wanted>, is_present| {
        let mut board = Board::default();
        let kept = WantedByName::from([(pod_name("web"), old.clone())]);
        let wanted = WantedByName::from([(pod_name("web"), new.clone())]);
        let look_up = board.held.begin(kept, &wanted, &board.desired, &board.pods);
        let present = vec![is_present; look_up.images.len()];
        board.held.looked_up(look_up, present);
        board
    };
    let mut board = begin(&new, false);
    assert_eq!(board.decide(&new), lines("old", &MISSING));
    board.desired.insert(pod_name("web"), old.clone());
    // It is held back although no container of this boot has run yet.
    board.pods.0.push((old.clone(), Activity::NotStarted));
    assert!(!board.held.is_any_over(&board.pods));
    assert_eq!(board.decide(&new), lines("old", &[]));
    // With the images on the board the pod does not start again, and its file goes.
    assert_eq!(begin(&new, true).decide(&new), lines("new", &["remove old"]));
    assert_eq!(begin(&old, false).decide(&old), lines("old", &["remove old"]));
}

#[test]
fn images_of_unchanged_pods_are_not_looked_up() {
    let old = wanted("old", "image: 'a:1'");
    let mut board = Board::running(&old);
    let unchanged = WantedByName::from([(pod_name("web"), old)]);
    let look_up = board.held.begin(WantedByName::new(), &unchanged, &board.desired, &board.pods);
    assert_eq!(look_up.images, [""; 0]);
}

#[test]
fn a_pod_that_is_kept_is_read_again_as_it_was_written_and_a_damaged_file_is_not() {
    let old = wanted("a", "image: a:1");
    let bytes = crate::held_updates::kept_bytes(&old).expect("it is JSON");
    let read = crate::held_updates::read_kept(&bytes, NODE).expect("it is right");
    assert!(read.is_same_as(&old) && read.source == old.source && read.pod == old.pod);
    for damaged in [&bytes[1..], b"{}", br#"{"source": "/a", "object": {"kind": "Pod"}}"#] {
        assert!(crate::held_updates::read_kept(damaged, NODE).is_none());
    }
}
