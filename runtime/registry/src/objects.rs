//! All objects that the local API serves, as JSON, and one ring of the latest changes, in which watchers are
//! cursors.
//!
//! The store does not know kinds: the callers of [`Objects::put`] define the content of an object. The store
//! is not a source of truth either: a new agent fills a new store with what it finds. A watcher has only a
//! waker in the store, so that a slow or dead watcher costs nothing: its position leaves the ring, and it
//! gets [`Expired`]. Read next: `api.rs`, which serves the objects.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use nodlet_core::sorted::SortedMap;
use serde_json::Value;

use crate::waiting::Waiting;

/// The number of changes that are kept for watchers. A pod's start is about five changes, so that all pods of
/// a board may start between two reads of a watcher.
const CHANGES: usize = 512;

/// The size of objects in bytes that only the ring still contains. Older changes beyond it are forgotten,
/// because memory is more important than a slow watcher.
const CHANGED_BYTES: usize = 256 * 1024;

/// The key of an object: `resource` is the plural of its kind, as in a URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// `pods`, `events`, `nodes`.
    pub resource: &'static str,
    /// `metadata.namespace`; empty for objects without a namespace.
    pub namespace: Rc<str>,
    /// `metadata.name`.
    pub name: Rc<str>,
}

impl Key {
    /// Creates the key of the object `name` in `namespace`.
    pub fn new(resource: &'static str, namespace: &str, name: &str) -> Self {
        Key { resource, namespace: namespace.into(), name: name.into() }
    }
}

/// One object as it was at one version.
#[derive(Clone, Debug)]
pub struct Object {
    /// `metadata.resourceVersion`.
    pub version: u64,
    /// The whole object, including `resourceVersion`.
    pub json: Rc<str>,
}

/// The kind of a change, in the words of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// The object is new.
    Added,
    /// The object has changed.
    Modified,
    /// The object is gone.
    Deleted,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct ObjectChange {
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The object that changed.
    pub key: Key,
    /// The object after the change, or the last state of a deleted object with the version of the deletion.
    pub object: Object,
    /// The object before the change, to know whether a selector matched until now.
    pub before: Option<Object>,
}

/// The changes after the requested version are no longer, or not yet, in the ring: the client must list
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    /// The requested version.
    pub requested: u64,
    /// The oldest version that could have been requested.
    pub oldest: u64,
}

/// The store of published objects. One thread owns it: the engine writes, and the API's tasks read.
#[derive(Debug)]
pub struct Objects {
    state: RefCell<State>,
    watchers: Waiting,
}

#[derive(Debug)]
struct State {
    objects: SortedMap<Key, Object>,
    version: u64,
    /// Changes after this version are in the ring.
    oldest: u64,
    changes: VecDeque<ObjectChange>,
    changed_bytes: usize,
}

impl Objects {
    /// Creates an empty store whose first change has the version after `version`. So that versions never
    /// decrease across agents, the caller derives `version` from a clock that ticks faster than objects
    /// change: microseconds since boot.
    pub fn new(version: u64) -> Self {
        let state = State {
            objects: SortedMap::new(),
            version,
            oldest: version,
            changes: VecDeque::new(),
            changed_bytes: 0,
        };
        Objects { state: RefCell::new(state), watchers: Waiting::default() }
    }

    /// The version of the newest change.
    pub fn version(&self) -> u64 {
        self.state.borrow().version
    }

    /// Adds or replaces an object, and sets its `metadata.resourceVersion`. An identical object is no change.
    pub fn put(&self, key: Key, mut object: Value) -> Object {
        let mut state = self.state.borrow_mut();
        let before = state.objects.get(&key).cloned();
        if let Some(before) = &before
            && *at_version(&mut object, before.version) == *before.json
        {
            return before.clone();
        }
        state.version += 1;
        let version = state.version;
        let object = Object { version, json: at_version(&mut object, version) };
        state.objects.insert(key.clone(), object.clone());
        let kind = if before.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        state.remember(ObjectChange { kind, key, object: object.clone(), before });
        drop(state);
        self.watchers.wake();
        object
    }

    /// Removes an object. Returns its last state.
    pub fn delete(&self, key: &Key) -> Option<Object> {
        let mut state = self.state.borrow_mut();
        let before = state.objects.remove(key)?;
        state.version += 1;
        let version = state.version;
        let mut object = serde_json::from_str(&before.json).expect("every object here was written by put");
        let object = Object { version, json: at_version(&mut object, version) };
        state.remember(ObjectChange {
            kind: ChangeKind::Deleted,
            key: key.clone(),
            object: object.clone(),
            before: Some(before),
        });
        drop(state);
        self.watchers.wake();
        Some(object)
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &Key) -> Option<Object> {
        self.state.borrow().objects.get(key).cloned()
    }

    /// Returns all objects of a resource, in one namespace or in all, by namespace and name, and the version
    /// of this state.
    pub fn list(&self, resource: &'static str, namespace: Option<&str>) -> (Vec<(Key, Object)>, u64) {
        let state = self.state.borrow();
        let from = Key::new(resource, namespace.unwrap_or(""), "");
        let found = state
            .objects
            .range(from..)
            .take_while(|(key, _)| {
                key.resource == resource && namespace.is_none_or(|wanted| *key.namespace == *wanted)
            })
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect();
        (found, state.version)
    }

    /// Returns all objects of a resource as they were at an earlier version.
    ///
    /// # Errors
    /// The ring no longer has all changes since.
    pub fn list_at(
        &self,
        resource: &'static str,
        namespace: Option<&str>,
        version: u64,
    ) -> Result<Vec<(Key, Object)>, Expired> {
        let changes = self.changes_since(version, usize::MAX)?;
        let mut then: SortedMap<Key, Object> = self.list(resource, namespace).0.into_iter().collect();
        for ObjectChange { key, before, .. } in changes.into_iter().rev() {
            if key.resource == resource && namespace.is_none_or(|wanted| *key.namespace == *wanted) {
                match before {
                    Some(before) => drop(then.insert(key, before)),
                    None => drop(then.remove(&key)),
                }
            }
        }
        Ok(then.into_iter().collect())
    }

    /// Returns at most `at_most` changes after `version`, oldest first.
    pub fn changes_since(&self, version: u64, at_most: usize) -> Result<Vec<ObjectChange>, Expired> {
        let state = self.state.borrow();
        if version < state.oldest || version > state.version {
            return Err(Expired { requested: version, oldest: state.oldest });
        }
        let first = state.changes.partition_point(|change| change.object.version <= version);
        Ok(state.changes.range(first..).take(at_most).cloned().collect())
    }

    /// Waits for a change after `version`.
    pub fn changed_since(&self, version: u64) -> impl Future<Output = ()> {
        self.watchers.until(move || self.state.borrow().version > version)
    }
}

impl State {
    fn remember(&mut self, change: ObjectChange) {
        self.changed_bytes += cost(&change);
        self.changes.push_back(change);
        while self.changes.len() > CHANGES || self.changed_bytes > CHANGED_BYTES && self.changes.len() > 1 {
            let Some(forgotten) = self.changes.pop_front() else { break };
            self.changed_bytes -= cost(&forgotten);
            self.oldest = forgotten.object.version;
        }
    }
}

/// The cost of a change in the ring: usually, the state before a change is already counted with the previous
/// change.
fn cost(change: &ObjectChange) -> usize {
    change.object.json.len()
}

fn at_version(object: &mut Value, version: u64) -> Rc<str> {
    object["metadata"]["resourceVersion"] = Value::String(version.to_string());
    object.to_string().into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> Key {
        Key::new("pods", "default", name)
    }

    fn object(name: &str, phase: &str) -> Value {
        json!({"metadata": {"name": name}, "status": {"phase": phase}})
    }

    fn seen(objects: &Objects, since: u64) -> Vec<String> {
        let changes = objects.changes_since(since, usize::MAX).expect("in the ring");
        changes.iter().map(|change| format!("{:?} {}", change.kind, change.key.name)).collect()
    }

    #[test]
    fn a_list_can_be_of_an_earlier_version() {
        let objects = Objects::new(1000);
        objects.put(pod("a"), object("a", "Pending"));
        objects.put(pod("b"), object("b", "Pending"));
        objects.put(pod("a"), object("a", "Running"));
        objects.delete(&pod("b"));
        objects.put(Key::new("pods", "other", "c"), object("c", "Pending"));
        let names = |version| {
            let found = objects.list_at("pods", Some("default"), version).expect("in the ring");
            let phase = |object: &Object| object.json.split('"').rev().nth(1).map(str::to_owned);
            found.iter().map(|(key, object)| format!("{} {:?}", key.name, phase(object))).collect::<Vec<_>>()
        };
        let show = |list: &[(&str, &str)]| {
            list.iter().map(|(name, phase)| format!("{name} {:?}", Some(phase))).collect::<Vec<_>>()
        };
        assert_eq!(names(1000), show(&[]));
        assert_eq!(names(1002), show(&[("a", "Pending"), ("b", "Pending")]));
        assert_eq!(names(1003), show(&[("a", "Running"), ("b", "Pending")]));
        assert_eq!(names(1005), show(&[("a", "Running")]));
        assert!(objects.list_at("pods", None, 999).is_err());
    }

    #[test]
    fn every_change_has_the_next_version_and_is_seen_in_order() {
        let objects = Objects::new(1000);
        objects.put(pod("a"), object("a", "Pending"));
        objects.put(pod("b"), object("b", "Pending"));
        objects.put(pod("a"), object("a", "Running"));
        objects.delete(&pod("b"));
        assert_eq!(objects.version(), 1004);
        assert_eq!(seen(&objects, 1000), ["Added a", "Added b", "Modified a", "Deleted b"]);
        assert_eq!(seen(&objects, 1003), ["Deleted b"]);
        assert_eq!(seen(&objects, 1004), [""; 0]);
        let a = objects.get(&pod("a")).expect("there");
        assert_eq!(
            &*a.json,
            r#"{"metadata":{"name":"a","resourceVersion":"1003"},"status":{"phase":"Running"}}"#
        );
    }

    #[test]
    fn storing_an_identical_object_does_not_change_the_version() {
        let objects = Objects::new(7);
        objects.put(pod("a"), object("a", "Pending"));
        objects.put(pod("a"), object("a", "Pending"));
        assert_eq!(objects.version(), 8);
        assert!(objects.delete(&pod("none")).is_none());
        assert_eq!(objects.version(), 8);
    }

    #[test]
    fn lists_are_filtered_by_resource_and_namespace() {
        let objects = Objects::new(0);
        for (resource, namespace, name) in [
            ("pods", "default", "b"),
            ("pods", "default", "a"),
            ("pods", "other", "a"),
            ("events", "default", "e"),
            ("nodes", "", "n"),
        ] {
            objects.put(Key::new(resource, namespace, name), object(name, ""));
        }
        let names = |resource, namespace| {
            let (found, version) = objects.list(resource, namespace);
            assert_eq!(version, 5);
            found
                .iter()
                .map(|(key, _)| format!("{}/{}", key.namespace, key.name))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(names("pods", Some("default")), "default/a default/b");
        assert_eq!(names("pods", None), "default/a default/b other/a");
        assert_eq!(names("events", None), "default/e");
        assert_eq!(names("nodes", None), "/n");
        assert_eq!(names("pods", Some("none")), "");
    }

    #[test]
    fn a_watcher_that_is_too_slow_gets_an_error_and_the_ring_stays_bounded() {
        let objects = Objects::new(0);
        for number in 0..CHANGES * 2 {
            objects.put(pod("a"), object("a", &number.to_string()));
        }
        let newest = objects.version();
        let oldest = newest - CHANGES as u64;
        assert_eq!(
            objects.changes_since(oldest - 1, 1).err(),
            Some(Expired { requested: oldest - 1, oldest })
        );
        let expected = Some(CHANGES);
        assert_eq!(objects.changes_since(oldest, usize::MAX).map(|changes| changes.len()).ok(), expected);
        // A version of another boot.
        assert!(objects.changes_since(newest + 1, 1).is_err());

        let large = "x".repeat(CHANGED_BYTES / 4);
        for number in 0..10 {
            objects.put(pod("a"), object("a", &format!("{number}{large}")));
        }
        assert!(objects.state.borrow().changed_bytes <= CHANGED_BYTES);
        assert_eq!(
            objects.changes_since(objects.version() - 2, 9).map(|changes| changes.len()).ok(),
            Some(2)
        );
    }

    #[test]
    fn a_waiting_watcher_is_woken_by_the_next_change() {
        let objects = Objects::new(0);
        smol::block_on(async {
            let mut waiting = Box::pin(objects.changed_since(0));
            assert!(smol::future::poll_once(&mut waiting).await.is_none());
            objects.put(pod("a"), object("a", ""));
            waiting.await;
            objects.changed_since(0).await;
        });
    }
}
