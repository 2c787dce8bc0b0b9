//! The Event objects of pods and of this node, which `kubectl get events`, `events` and `describe` show. They are in
//! memory only, and bounded: the oldest is removed when there is no room, and those older than an hour when the next
//! one is published. `correlate` decides which events are combined.

mod correlate;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::Duration;

use nodlet_core::sorted::SortedSet;
use serde_json::{Value, json};

use super::{NodeEvent, Refusal, Wanted};
use crate::objects::{Key, Objects};
use nodlet_core::facts::Event;
use nodlet_core::time::{Anchor, Instant};
use nodlet_kube::kinds::Kind;

use correlate::{About, Correlator, Occurrence};

/// The default number of events that are kept.
pub const EVENTS: usize = 512;

/// Maximum size of an event's message in bytes: the 10 KiB that a probe's output has in a kubelet, and the words before it.
/// Kubernetes has no maximum for the events of a kubelet.
const MESSAGE: usize = 10 * 1024 + 64;

/// Size in bytes up to which a message of each event is kept whole.
const SHORT: usize = 1024;

/// Maximum size of all longer messages together in bytes, as JSON. When it is reached, a message is cut at [`SHORT`], so
/// that long messages of one pod remove no events of others.
const LONG_MESSAGES: usize = 256 * 1024;

/// Time for which an event is kept that is not repeated, as in an API server.
const KEPT_FOR: Duration = Duration::from_secs(3600);

/// The published events.
#[derive(Debug)]
pub struct Events {
    objects: Rc<Objects>,
    /// The name of the node, which is the source of all events.
    node: String,
    correlator: Correlator,
    kept: VecDeque<Kept>,
    /// The number of events that are kept, of all objects.
    most: usize,
    /// The version of the objects up to which the cluster has the events. Later ones wait for it, however old they are.
    sent: u64,
    /// Events that were removed unsent.
    dropped: u32,
    /// Hashes of the present refusals, of each of which one event was published.
    refused: SortedSet<u64>,
}

#[derive(Debug)]
struct Kept {
    key: Key,
    number: u64,
    first: Instant,
    last: Instant,
    /// The size of its message as JSON, if that is longer than [`SHORT`]; otherwise 0.
    long: usize,
}

impl Events {
    /// Creates an empty list of at most `most` events of the node of this name, which are published in `objects`.
    pub fn new(objects: Rc<Objects>, node: &str, most: usize) -> Events {
        Events {
            objects,
            node: node.to_owned(),
            correlator: Correlator::default(),
            kept: VecDeque::new(),
            most,
            sent: u64::MAX,
            dropped: 0,
            refused: SortedSet::new(),
        }
    }

    /// Records that the cluster has all events up to this version of the objects; `u64::MAX` without a cluster. Returns
    /// how many events were removed unsent since the last call.
    pub fn acknowledge(&mut self, version: u64) -> u32 {
        self.sent = version;
        std::mem::take(&mut self.dropped)
    }

    fn is_sent(&self, kept: &Kept) -> bool {
        self.objects.get(&kept.key).is_none_or(|event| event.version <= self.sent)
    }

    /// Publishes an event of a pod.
    pub fn emit(&mut self, wanted: &Wanted, event: &Event, now: Instant, anchor: Anchor) {
        let field_path = event.container.map(|index| wanted.pod.spec.field_path(index));
        let about = About {
            kind: "Pod",
            namespace: &wanted.pod.namespace,
            name: &wanted.pod.name,
            uid: &wanted.pod.uid.0,
            field_path: field_path.as_deref(),
        };
        let occurrence =
            Occurrence { about, warning: event.warning, reason: &event.reason, message: &event.message };
        self.record(&occurrence, now, anchor);
    }

    /// Publishes an event of this node. Returns reason and message if it is a warning.
    pub fn emit_of_node<'a>(
        &mut self,
        event: NodeEvent<'a>,
        now: Instant,
        anchor: Anchor,
    ) -> Option<(&'a str, Cow<'a, str>)> {
        let (warning, reason, message) = event.text();
        // A kubelet has the name in place of the uid, too (`nodeRef`).
        let name = &*self.node.clone();
        let about = About { kind: "Node", namespace: "", name, uid: name, field_path: None };
        self.record(&Occurrence { about, warning, reason, message: &message }, now, anchor);
        warning.then_some((reason, message))
    }

    /// Publishes an event for each refusal that was not among those of the previous call. `refusals` are all present
    /// ones.
    pub fn refused(&mut self, refusals: &[Refusal], now: Instant, anchor: Anchor) {
        let mut present = SortedSet::new();
        for refusal in refusals {
            let mut hasher = DefaultHasher::new();
            (&refusal.source, &refusal.object, &refusal.message).hash(&mut hasher);
            present.insert(hasher.finish());
            if self.refused.contains(&hasher.finish()) {
                continue;
            }
            let stem = refusal.source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (kind, namespace, name) =
                refusal.object.clone().unwrap_or_else(|| (Kind::Pod, "default".into(), stem.into()));
            let kind = kind.as_str();
            let about = About { kind, namespace: &namespace, name: &name, uid: "", field_path: None };
            let occurrence =
                Occurrence { about, warning: true, reason: "FailedValidation", message: &refusal.message };
            self.record(&occurrence, now, anchor);
        }
        self.refused = present;
    }

    /// Publishes all events again, with times by `anchor`, after the clock was set.
    pub fn clock_was_set(&self, anchor: Anchor) {
        for kept in &self.kept {
            let shown = self.objects.get(&kept.key).map(|object| serde_json::from_str(&object.json));
            if let Some(Ok(mut object)) = shown {
                kept.show_times(&mut object, anchor);
                self.objects.put(kept.key.clone(), object);
            }
        }
    }

    fn record(&mut self, occurrence: &Occurrence<'_>, now: Instant, anchor: Anchor) {
        while let Some(old) = self.kept.front()
            && now.since(old.last) > KEPT_FOR
            && self.is_sent(old)
        {
            self.objects.delete(&old.key);
            self.kept.pop_front();
        }
        let message = cut(occurrence.message, MESSAGE);
        let Some(shown) = self.correlator.correlate(now, &Occurrence { message, ..*occurrence }) else {
            return;
        };
        let position = self.kept.iter().position(|kept| kept.number == shown.number);
        let mut kept = match position.and_then(|position| self.kept.remove(position)) {
            Some(kept) => kept,
            None => {
                let serial = (anchor.timestamp(now).0 as u64).wrapping_add(shown.number);
                // Events of what has no namespace are in the default one.
                let namespace = if occurrence.about.namespace.is_empty() {
                    "default"
                } else {
                    occurrence.about.namespace
                };
                let key = Key::new("events", namespace, &format!("{}.{serial:016x}", occurrence.about.name));
                Kept { key, number: shown.number, first: shown.first, last: now, long: 0 }
            }
        };
        kept.last = now;
        kept.long = size_if_long(&shown.message);
        let others: usize = self.kept.iter().map(|kept| kept.long).sum();
        let message = if others + kept.long > LONG_MESSAGES {
            kept.long = 0;
            cut(&shown.message, SHORT)
        } else {
            &shown.message
        };
        let mut object = object(occurrence, shown.count, message, &kept.key, &self.node);
        kept.show_times(&mut object, anchor);
        self.objects.put(kept.key.clone(), object);
        self.kept.push_back(kept);
        while self.kept.len() > self.most {
            if let Some(oldest) = self.kept.pop_front() {
                self.dropped += u32::from(!self.is_sent(&oldest));
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

/// At most `bytes` of `text`, in whole characters.
fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The size of a message as JSON; 0 if the message is not longer than [`SHORT`].
fn size_if_long(message: &str) -> usize {
    if message.len() > SHORT { Value::from(message).to_string().len() } else { 0 }
}

/// The Event object without its times.
fn object(occurrence: &Occurrence<'_>, count: u32, message: &str, key: &Key, node: &str) -> Value {
    let version = Kind::named(occurrence.about.kind).unwrap_or(Kind::Pod).version();
    let mut about =
        json!({ "apiVersion": version, "kind": occurrence.about.kind, "name": occurrence.about.name });
    for (field, value) in [
        ("namespace", occurrence.about.namespace),
        ("uid", occurrence.about.uid),
        ("fieldPath", occurrence.about.field_path.unwrap_or_default()),
    ] {
        if !value.is_empty() {
            about[field] = value.into();
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": &*key.name,
            "namespace": &*key.namespace,
        },
        "involvedObject": about,
        "reason": occurrence.reason,
        "message": message,
        "type": if occurrence.warning { "Warning" } else { "Normal" },
        "count": count,
        "eventTime": null,
        "source": { "component": "kubelet", "host": node },
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(events: &mut Events, pod: usize, reason: &str, message: &str) {
        record_at(events, pod, reason, message, Instant(0));
    }

    fn record_at(events: &mut Events, pod: usize, reason: &str, message: &str, now: Instant) {
        let name = format!("pod-{pod}");
        let field_path = Some("spec.containers{app}");
        let about = About { kind: "Pod", namespace: "default", name: &name, uid: &name, field_path };
        events.record(&Occurrence { about, warning: true, reason, message }, now, Anchor(0));
    }

    #[test]
    fn events_older_than_an_hour_are_removed_with_the_next_event() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone(), "board", EVENTS);
        let at = |seconds: u64| Instant(0) + Duration::from_secs(seconds);
        record_at(&mut events, 1, "Failed", "no", at(0));
        record_at(&mut events, 2, "Failed", "no", at(10));
        record_at(&mut events, 1, "Failed", "no", at(3000));
        record_at(&mut events, 3, "Failed", "no", at(3611));
        let names = |_: ()| -> Vec<String> {
            let (all, _) = objects.list("events", None);
            all.iter().map(|(key, _)| key.name.split('.').next().unwrap_or_default().to_owned()).collect()
        };
        assert_eq!(names(()), ["pod-1", "pod-3"], "the first was said again since");
        record_at(&mut events, 3, "Failed", "no", at(6601));
        assert_eq!(names(()), ["pod-3"]);
    }

    #[test]
    fn events_that_wait_for_the_cluster_are_kept_longer_and_counted_when_they_are_dropped() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone(), "board", 3);
        let at = |hours: u64| Instant(0) + Duration::from_secs(hours * 3601);
        let count = || objects.list("events", None).0.len();
        events.acknowledge(0);
        for pod in 0..3 {
            record_at(&mut events, pod, "Failed", "no", at(pod as u64));
        }
        assert_eq!(count(), 3);
        record_at(&mut events, 3, "Failed", "no", at(3));
        record_at(&mut events, 4, "Failed", "no", at(4));
        assert_eq!((count(), events.acknowledge(objects.version())), (3, 2));
        // The cluster has them.
        record_at(&mut events, 5, "Failed", "no", at(9));
        assert_eq!((count(), events.acknowledge(0)), (1, 0));
    }

    #[test]
    fn earlier_events_are_shown_by_the_new_time_after_the_clock_is_set() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone(), "board", EVENTS);
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
    fn each_rejected_manifest_is_reported_once() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone(), "board", EVENTS);
        let refusal = |number: usize| Refusal {
            source: format!("/manifests/{number}.yaml").into(),
            object: None,
            message: format!("spec: {number}"),
        };
        let many: Vec<Refusal> = (0..2 * EVENTS).map(refusal).collect();
        events.refused(&many, Instant(0), Anchor(0));
        let version = objects.version();
        events.refused(&many, Instant(0), Anchor(0));
        assert_eq!(objects.version(), version);
        // Put right, and wrong again in the same way.
        events.refused(&many[1..], Instant(0), Anchor(0));
        events.refused(&many, Instant(0), Anchor(0));
        assert_eq!(objects.version(), version + 2, "one that is new, and one that makes room");
    }

    #[test]
    fn the_event_of_a_rejected_manifest_names_the_object_of_its_file() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone(), "board", EVENTS);
        for (object, expected) in [
            (None, json!({"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "web"})),
            (
                Some((Kind::PriorityClass, "".into(), "high".into())),
                json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "name": "high"}),
            ),
        ] {
            let (source, message) = ("/manifests/web.yaml".into(), "it is wrong".to_owned());
            events.refused(&[Refusal { source, object, message }], Instant(0), Anchor(0));
            let newest = objects.get(&events.kept.back().expect("there is one").key).expect("it is shown");
            let event: Value = serde_json::from_str(&newest.json).expect("it is JSON");
            assert_eq!(event["involvedObject"], expected);
            assert_eq!(event["metadata"]["namespace"], "default");
        }
    }

    #[test]
    fn long_messages_are_whole_until_all_together_are_too_long() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone(), "board", EVENTS);
        let long = format!("Liveness probe failed: {}", "x".repeat(10 * 1024));
        let newest = |events: &Events| -> (String, Value) {
            let key = events.kept.back().expect("there is one").key.clone();
            let event = objects.get(&key).expect("it is shown");
            let event: Value = serde_json::from_str(&event.json).expect("it is JSON");
            (event["message"].as_str().unwrap_or_default().to_owned(), event["count"].clone())
        };
        let room = LONG_MESSAGES / long.len();
        for pod in 0..room {
            record(&mut events, pod, "Unhealthy", &long);
            assert_eq!(newest(&events), (long.clone(), json!(1)), "{pod}");
        }
        record(&mut events, room, "Unhealthy", &long);
        assert_eq!(newest(&events), (long[..SHORT].to_owned(), json!(1)));
        record(&mut events, room, "Unhealthy", "it is short");
        assert_eq!(newest(&events), ("it is short".to_owned(), json!(1)));

        // What repeats is the same event, long or cut.
        record(&mut events, 0, "Unhealthy", &long);
        assert_eq!(newest(&events), (long.clone(), json!(2)));
        record(&mut events, room, "Unhealthy", &long);
        assert_eq!(newest(&events), (long[..SHORT].to_owned(), json!(2)));

        // Those that are removed leave their room to others.
        let later = Instant(0) + KEPT_FOR + Duration::from_secs(1);
        record_at(&mut events, room, "Unhealthy", &long, later);
        assert_eq!(newest(&events), (long, json!(3)));
    }

    #[test]
    fn only_the_newest_events_are_kept_up_to_the_limit() {
        let objects = Rc::new(Objects::new(0));
        let mut events = Events::new(objects.clone(), "board", EVENTS);
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
        assert!(bytes <= EVENTS * (6 * SHORT + 1024) + LONG_MESSAGES, "{bytes}");
        let pods =
            |pod: usize| kept.iter().filter(|(key, _)| key.name.starts_with(&format!("pod-{pod}."))).count();
        assert_eq!((pods(299), pods(300 - EVENTS / 4), pods(299 - EVENTS / 4)), (4, 4, 0));

        // What repeats is counted, and is the newest then.
        for _ in 0..7 {
            record(&mut events, 300 - EVENTS / 4, "Failed", &long);
        }
        assert_eq!(objects.list("events", None).0.len(), EVENTS);
        let newest = events.kept.back().expect("there are some");
        let shown = objects.get(&newest.key).expect("it is shown");
        assert!(shown.json.contains("\"count\":8"), "{}", shown.json);
    }
}
