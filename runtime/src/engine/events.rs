//! Events of pods as objects that `kubectl get events` and `describe` show.
//! Bounded: the oldest goes when there is no room; what repeats is counted.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use serde_json::{Value, json};

use crate::node::{Event, PodIndex};
use crate::objects::{Key, Objects};
use crate::sources::{Refusal, Wanted};
use crate::time::{Anchor, Instant};

use super::Shell;

/// Events that are kept, of all pods.
const EVENTS: usize = 512;

/// Bytes of an event's message: as many as Kubernetes takes.
const MESSAGE: usize = 1024;

/// The events that are shown now.
pub(super) struct Events {
    objects: Rc<Objects>,
    kept: VecDeque<Kept>,
    serial: u64,
    /// Hashes of the manifests that were refused when last looked: each is told once, however many
    /// there are.
    refused: BTreeSet<u64>,
}

struct Kept {
    key: Key,
    same: Same,
    count: u32,
    first: Instant,
    last: Instant,
}

/// What makes two events one.
#[derive(PartialEq, Eq)]
struct Same {
    uid: String,
    container: Option<String>,
    reason: String,
    message: String,
}

/// What an event is about.
#[derive(Clone, Copy)]
struct Involved<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    /// `fieldPath` of the container, if it is about one.
    container: Option<&'a str>,
}

impl Events {
    pub(super) fn new(objects: Rc<Objects>) -> Events {
        Events { objects, kept: VecDeque::new(), serial: 0, refused: BTreeSet::new() }
    }

    /// All manifests that are not obeyed; those that were not among them the last time are told.
    pub(super) fn refused(&mut self, refusals: &[Refusal], anchor: Anchor) {
        let mut now = BTreeSet::new();
        for refusal in refusals {
            let mut hasher = DefaultHasher::new();
            (&refusal.source, &refusal.pod, &refusal.message).hash(&mut hasher);
            now.insert(hasher.finish());
            if self.refused.contains(&hasher.finish()) {
                continue;
            }
            let stem = refusal.source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (namespace, name) = refusal.pod.clone().unwrap_or_else(|| ("default".into(), stem));
            let involved = Involved { namespace: &namespace, name: &name, uid: "", container: None };
            self.record(&involved, "Warning", "FailedValidation", &refusal.message, anchor, "");
        }
        self.refused = now;
    }

    /// The clock was set: all times are shown by `anchor`.
    fn clock_was_set(&self, anchor: Anchor) {
        for kept in &self.kept {
            let shown = self.objects.get(&kept.key).map(|object| serde_json::from_str(&object.json));
            if let Some(Ok(mut object)) = shown {
                kept.show_times(&mut object, anchor);
                self.objects.put(kept.key.clone(), object);
            }
        }
    }

    fn record(
        &mut self,
        involved: &Involved<'_>,
        kind: &str,
        reason: &str,
        message: &str,
        anchor: Anchor,
        node: &str,
    ) {
        let now = Instant::now();
        let same = Same {
            uid: format!("{}/{}/{}", involved.namespace, involved.name, involved.uid),
            container: involved.container.map(str::to_owned),
            reason: reason.to_owned(),
            message: message[..message.floor_char_boundary(MESSAGE)].to_owned(),
        };
        let position = self.kept.iter().position(|kept| kept.same == same);
        let mut kept = match position.and_then(|position| self.kept.remove(position)) {
            Some(kept) => kept,
            None => {
                self.serial += 1;
                let serial = (anchor.timestamp(now).0 as u64).wrapping_add(self.serial);
                let name = format!("{}.{serial:016x}", involved.name);
                let key = Key::new("events", involved.namespace, &name);
                Kept { key, same, count: 0, first: now, last: now }
            }
        };
        kept.count += 1;
        kept.last = now;
        let mut object = object(involved, kind, &kept, node);
        kept.show_times(&mut object, anchor);
        self.objects.put(kept.key.clone(), object);
        self.kept.push_back(kept);
        while self.kept.len() > EVENTS {
            if let Some(oldest) = self.kept.pop_front() {
                self.objects.delete(&oldest.key);
            }
        }
    }
}

impl Kept {
    fn show_times(&self, object: &mut Value, anchor: Anchor) {
        let first = anchor.timestamp(self.first).to_string();
        object["metadata"]["creationTimestamp"] = first.as_str().into();
        object["firstTimestamp"] = first.into();
        object["lastTimestamp"] = anchor.timestamp(self.last).to_string().into();
    }
}

/// Without its times.
fn object(involved: &Involved<'_>, kind: &str, kept: &Kept, node: &str) -> Value {
    let mut about = json!({
        "apiVersion": "v1", "kind": "Pod", "namespace": involved.namespace, "name": involved.name, "uid": involved.uid,
    });
    if let Some(container) = involved.container {
        about["fieldPath"] = container.into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": &*kept.key.name,
            "namespace": involved.namespace,
        },
        "involvedObject": about,
        "reason": kept.same.reason,
        "message": kept.same.message,
        "type": kind,
        "count": kept.count,
        "source": { "component": "kubelet", "host": node },
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    })
}

/// For the log, in which a line says who wrote it: what a container has written must not
/// begin one of its own, nor steer the terminal that shows it.
fn one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut line, letter| {
        if letter.is_control() {
            line.extend(letter.escape_default());
        } else {
            line.push(letter);
        }
        line
    })
}

impl Shell {
    /// Shows an event of a pod.
    pub(super) fn emit(&self, pod: PodIndex, event: &Event) {
        let Some(wanted) = self.wanted(pod) else { return };
        self.emit_of(&wanted, event);
    }

    /// Shows all events by the clock as it was set.
    pub(super) fn retime_events(&self) {
        self.events.borrow().clock_was_set(self.anchor.get());
    }

    /// Shows an event of a pod by what it is wanted to be.
    pub(super) fn emit_of(&self, wanted: &Wanted, event: &Event) {
        let container = event.container.map(|index| wanted.pod.spec.field_path(index));
        let involved = Involved {
            namespace: &wanted.pod.namespace,
            name: &wanted.pod.name,
            uid: &wanted.pod.uid.0,
            container: container.as_deref(),
        };
        let kind = if event.warning { "Warning" } else { "Normal" };
        log::info!("{}/{}: {} {}", involved.namespace, involved.name, event.reason, one_line(&event.message));
        self.events.borrow_mut().record(
            &involved,
            kind,
            event.reason,
            &event.message,
            self.anchor.get(),
            &self.config.node_name,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(events: &mut Events, pod: usize, reason: &str, message: &str) {
        let name = format!("pod-{pod}");
        let involved = Involved {
            namespace: "default",
            name: &name,
            uid: &name,
            container: Some("spec.containers{app}"),
        };
        events.record(&involved, "Warning", reason, message, Anchor(0), "board");
    }

    #[test]
    fn when_the_clock_is_set_all_that_took_place_before_is_shown_by_it() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone());
        record(&mut events, 1, "Failed", "no");
        let shown = |pointer: &str| {
            let (all, _) = objects.list("events", None);
            assert_eq!(all.len(), 1);
            let event: Value = serde_json::from_str(&all[0].1.json).expect("it is JSON");
            event.pointer(pointer).and_then(Value::as_str).unwrap_or_default()[..4].to_owned()
        };
        let times = ["/firstTimestamp", "/lastTimestamp", "/metadata/creationTimestamp"];
        assert_eq!(times.map(shown), ["1970", "1970", "1970"]);
        let fifty_years = 50 * 366 * 86_400 * 1_000_000_000;
        events.clock_was_set(Anchor(fifty_years));
        assert_eq!(times.map(shown), ["2020", "2020", "2020"]);
    }

    #[test]
    fn each_of_many_refused_manifests_is_told_once() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone());
        let refusal = |number: usize| Refusal {
            source: format!("/manifests/{number}.yaml").into(),
            pod: None,
            message: format!("spec: {number}"),
        };
        let many: Vec<Refusal> = (0..2 * EVENTS).map(refusal).collect();
        events.refused(&many, Anchor(0));
        let version = objects.version();
        events.refused(&many, Anchor(0));
        assert_eq!(objects.version(), version);
        // Put right, and wrong again in the same way.
        events.refused(&many[1..], Anchor(0));
        events.refused(&many, Anchor(0));
        assert_eq!(objects.version(), version + 2, "one that is new, and one that makes room");
    }

    #[test]
    fn of_the_events_of_three_hundred_pods_the_newest_are_kept_and_no_more() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone());
        // What a container writes may be long, and of letters that JSON writes with six.
        let long = "\u{1}".repeat(100_000);
        for pod in 0..300 {
            for reason in ["Failed", "BackOff", "Unhealthy", "Killing"] {
                record(&mut events, pod, reason, &long);
            }
        }
        let (kept, _) = objects.list("events", None);
        assert_eq!((kept.len(), events.kept.len()), (EVENTS, EVENTS));
        let bytes: usize = kept.iter().map(|(_, event)| event.json.len()).sum();
        assert!(bytes <= EVENTS * (6 * MESSAGE + 1024), "{bytes}");
        let pods =
            |pod: usize| kept.iter().filter(|(key, _)| key.name.starts_with(&format!("pod-{pod}."))).count();
        assert_eq!((pods(299), pods(300 - EVENTS / 4), pods(299 - EVENTS / 4)), (4, 4, 0));

        // What repeats is counted, and is the newest then.
        for _ in 0..7 {
            record(&mut events, 300 - EVENTS / 4, "Failed", &long);
        }
        assert_eq!(objects.list("events", None).0.len(), EVENTS);
        let newest = events.kept.back().expect("there are some");
        assert_eq!(newest.count, 8);
        let shown = objects.get(&newest.key).expect("it is shown");
        assert!(shown.json.contains("\"count\":8"), "{}", shown.json);
    }

    #[test]
    fn what_a_container_wrote_stays_in_its_line_of_the_log() {
        assert_eq!(one_line("no \"disk\" – Größe 3"), "no \"disk\" – Größe 3");
        assert_eq!(
            one_line("sick\r\nERROR all is lost\u{1b}[2J\n"),
            "sick\\r\\nERROR all is lost\\u{1b}[2J\\n"
        );
    }
}
