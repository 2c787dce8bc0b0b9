//! Tests of the registry with a small engine, which performs the decisions of the registry at once.

use std::path::Path;

use nodlet_core::sorted::{SortedMap, SortedSet};
use nodlet_fuzz::setting;
use serde_json::{Value, json};

use super::*;
use crate::objects::Key;
use nodlet_core::sim::NodeWorld;
use nodlet_core::spec::Uid;
use nodlet_core::spec::volume::ClaimedVolume;
use nodlet_core::time::Instant;
use nodlet_fuzz::imports::{circles, imports};
use nodlet_fuzz::purity::impurities;
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::{self, AppliedPreset, Validation};

mod admission;
mod awaited_images;
mod claims;
mod cluster_status;
mod definitions;
mod devices;
mod difference;
mod ephemeral;
mod held_updates;
mod live_objects;
mod lives;
mod names;
mod parsed_once;
mod pods;
mod preconditions;
mod request;
mod seeds;
mod services;
mod warnings;

/// Runs a story for each of `rounds` seeds; `NODLET_SEED` and `NODLET_ROUNDS` choose others.
fn for_each_seed(rounds: u64, story: fn(u64)) {
    let (first, rounds) = (setting("NODLET_SEED", 0), setting("NODLET_ROUNDS", rounds));
    println!("seeds {first} to {}", first.saturating_add(rounds));
    for seed in first..first.saturating_add(rounds) {
        let outcome = std::panic::catch_unwind(|| story(seed));
        assert!(outcome.is_ok(), "NODLET_SEED={seed} NODLET_ROUNDS=1 runs this story alone");
    }
}

pub(super) const NODE: &str = "board";
const NOW: &str = "2026-01-01T00:00:00Z";

/// Options that create an object, with strict validation.
pub(super) const CREATE: RequestOptions =
    RequestOptions { validation: FieldValidation::Strict, dry_run: false, new: true, keeps_claim: false };
/// Options that apply an object.
pub(super) const APPLY: RequestOptions = RequestOptions { new: false, ..CREATE };

/// The registry, and the state that the core and the file system would have.
pub(super) struct World {
    pub(super) registry: Registry,
    pub(super) objects: Rc<Objects>,
    /// The pods that the core was notified of.
    pub(super) pods: SortedMap<PodName, Rc<Wanted>>,
    /// The pods that the node has, or has on flash, as they were admitted.
    admitted: SortedMap<Uid, Rc<Wanted>>,
    /// Pods that are still ending: they are published, but no longer desired.
    pub(super) ending: SortedSet<Uid>,
    /// The text of each file.
    pub(super) files: SortedMap<PathBuf, String>,
    /// The node whose core gets the pods; `None` in tests of the registry alone.
    pub(super) node: Option<NodeWorld>,
    /// The grace period of pods whose files are removed now, if it is not their own.
    pub(super) grace: Option<std::time::Duration>,
    /// The volumes behind the claims of pods, by the pods' UIDs.
    pub(super) claimed: SortedMap<Uid, Vec<ClaimedVolume>>,
    /// The bindings of claims on flash.
    pub(super) bindings: Option<Vec<u8>>,
    /// Whether the board serves Services.
    pub(super) serves: bool,
    /// The allocations of Services on flash.
    pub(super) allocations: Option<Vec<u8>>,
    serial: u8,
}

/// The sources of a board, lowest precedence first.
fn sources() -> Vec<SourceDirectory> {
    let row = |path: &str, owner, hint: Option<&str>| SourceDirectory {
        path: path.into(),
        owner,
        hint: hint.map(str::to_owned),
    };
    vec![
        row("/cluster", Owner::Cluster, Some("change or delete it in the cluster")),
        row("/vendor", Owner::File, Some("a pod of the same name in /site overrides it")),
        row("/site", Owner::File, None),
        row("/applied", Owner::Client, None),
        row("/run", Owner::File, None),
    ]
}

impl World {
    pub(super) fn new() -> World {
        let objects = Rc::new(Objects::new(100));
        let registry = Registry::new(sources(), NODE, objects.clone());
        let mut world = World {
            registry,
            objects,
            pods: SortedMap::new(),
            admitted: SortedMap::new(),
            ending: SortedSet::new(),
            files: SortedMap::new(),
            node: None,
            grace: None,
            claimed: SortedMap::new(),
            bindings: None,
            serves: false,
            allocations: None,
            serial: 0,
        };
        world.read();
        world
    }

    /// Ends the agent, and starts another one with the files and the admissions that are on flash.
    pub(super) fn crash(&mut self, power: bool) {
        if let Some(node) = &mut self.node {
            node.crash(power);
        }
        self.objects = Rc::new(Objects::new(self.objects.version()));
        self.registry = Registry::new(sources(), NODE, self.objects.clone());
        if let Some(bindings) = &self.bindings {
            self.registry.restore_bindings(Ok(bindings)).expect("they are what was saved");
        }
        if self.serves {
            self.serve();
        }
        if let Some(saved) = &self.allocations {
            self.registry.restore_allocations(saved).expect("they are what was saved");
        }
        for (path, text) in self.files.clone() {
            self.put(&path, &text);
        }
        self.read();
        if let Some(node) = &self.node {
            let with_sandbox = node.with_sandbox();
            self.claimed.retain(|uid, _| with_sandbox.contains(uid));
            for (index, pod) in node.pods() {
                if let Some(volumes) = self.claimed.get(&pod.uid) {
                    self.registry.adopt_volumes(index, volumes.clone());
                }
            }
        }
    }

    /// Serves Services of both families.
    pub(super) fn serve(&mut self) {
        self.serves = true;
        let range = |text: &str, prefix| (text.parse().expect("an address"), prefix);
        let ranges = [range("10.96.0.0", 24), range("fd96::", 112)];
        self.registry.serve_ranges(&ranges, 30_000..=32_767, vec![range("198.51.100.0", 24)]);
    }

    /// Writes this text to a file. Returns the notifications of the core and the rejections.
    pub(super) fn file(&mut self, path: &str, text: &str) -> Vec<String> {
        self.put(Path::new(path), text);
        self.read()
    }

    fn put(&mut self, path: &Path, text: &str) {
        let sources = &mut self.registry.sources;
        let put = parse(sources, path, text).map_err(|error| error.to_string());
        if let Err(message) = put.and_then(|contents| sources.put(path, contents)) {
            sources.refuse(path, message);
        }
        self.files.insert(path.to_owned(), text.to_owned());
    }

    /// Removes a file. Returns the notifications of the core and the rejections.
    pub(super) fn remove(&mut self, path: &str) -> Vec<String> {
        self.registry.sources.remove(Path::new(path));
        self.files.remove(Path::new(path));
        self.read()
    }

    /// Notifies the core of the difference. Returns the notifications and the rejections.
    pub(super) fn read(&mut self) -> Vec<String> {
        let mut changes = Vec::new();
        let mut read = self.registry.read(NOW, NOW);
        let (mut refusals, changed) = (std::mem::take(&mut read.refusals), std::mem::take(&mut read.changed));
        let new = self.registry.unadmitted(&read);
        let known = |uid: &Uid| match &self.node {
            Some(node) => self.admitted.get(uid).filter(|_| !node.is_gone(uid)),
            None => self.pods.values().find(|known| known.pod.uid == *uid),
        };
        let base = |new: &Wanted| match known(&new.pod.uid) {
            Some(known) => {
                Base::Before { presets: known.presets.to_vec(), priority: known.priority.as_deref().cloned() }
            }
            None => Base::New,
        };
        let bases = new.into_iter().map(|(name, new)| (name, base(new))).collect();
        let (admitted, admissions) = self.registry.admit_all(read, bases, drop);
        refusals.extend(admissions.refusals);
        let difference = self.registry.difference(admitted.all_due(), None);
        for uid in difference.unwanted {
            let name = self.pods.iter().find(|(_, pod)| pod.pod.uid == uid).map(|(name, _)| name.clone());
            let name = name.expect("only what the core knows is unwanted");
            changes.push(format!("{} goes", name.1));
            if let Some(node) = &mut self.node {
                node.unwant(&uid, self.grace);
            }
            self.gone(&name);
        }
        for ((_, name), new) in difference.wanted {
            changes.push(format!("{name} is {}", new.pod.spec.containers[0].image));
            self.registry.set_desired(new.clone());
            if let Some(node) = &mut self.node {
                node.want(&new.pod);
                self.admitted.insert(new.pod.uid.clone(), new.clone());
            }
            self.publish(new);
        }
        for (_, _, name) in changed.iter().filter(|name| name.0 == Kind::ConfigMap) {
            let exists = self.objects.get(&Key::new("configmaps", "default", name)).is_some();
            if let Some(node) = &mut self.node {
                node.set_config_map(name, exists);
            }
        }
        for (_, problem) in admissions.problems {
            changes.push(match problem {
                Problem::Conflict(event) => format!("{}: {}", event.reason, event.message),
                Problem::Lost(why) => why,
            });
        }
        changes.extend(refusals.into_iter().map(|refusal| refusal.message));
        if let Some(saved) = self.registry.allocations() {
            self.allocations = Some(saved);
        }
        changes
    }

    pub(super) fn publish(&mut self, pod: Rc<Wanted>) {
        let object = serde_json::from_str(pod.object.get()).expect("it is JSON");
        self.objects.put(Key::new("pods", &pod.pod.namespace, &pod.pod.name), object);
        self.pods.insert((pod.pod.namespace.clone(), pod.pod.name.clone()), pod);
    }

    /// Records that the pod of this name has ended.
    pub(super) fn gone(&mut self, name: &PodName) {
        self.pods.remove(name);
        self.objects.delete(&Key::new("pods", &name.0, &name.1));
    }

    pub(super) fn present(&self, name: &str) -> Option<Present> {
        let wanted = self.pods.get(&pod_name(name))?.clone();
        let object = serde_json::from_str(wanted.object.get()).expect("it is JSON");
        let is_unwanted = self.ending.contains(&wanted.pod.uid);
        let client_conditions = Rc::new([]);
        Some(Present {
            wanted,
            object,
            is_unwanted,
            has_terminal_phase: false,
            waiting: None,
            client_conditions,
        })
    }

    /// Applies a complete object for a client. Returns the reply.
    pub(super) fn apply(&mut self, mut object: Value, options: RequestOptions) -> Result<Accepted, Status> {
        self.serial += 1;
        let identity = Identity::new([self.serial; 16], [0, 1, 2, 3, 4], NOW.to_owned());
        let options = options.of(&object);
        let kind = object["kind"].as_str().and_then(Kind::named).unwrap_or(Kind::Pod);
        self.registry.prepare(kind, &mut object, options.new, &identity)?;
        let decision = if kind == Kind::Pod {
            let published = self.pods.get(&Registry::name_of(&object)).cloned();
            let node = self.node.as_ref();
            let has_terminal_phase = published
                .as_ref()
                .is_some_and(|pod| node.is_some_and(|node| node.has_terminal_phase(&pod.pod.uid)));
            self.registry.apply(
                object,
                options,
                &ReplacedPod { published, waiting: None, has_terminal_phase },
            )
        } else {
            self.registry.apply_definition(kind, object, options)
        };
        self.carry_out(decision?)
    }

    pub(super) fn carry_out(&mut self, decision: Decision) -> Result<Accepted, Status> {
        match decision {
            Decision::Reply(accepted, _) => Ok(accepted),
            Decision::Published(warnings) | Decision::ClientConditions(_, warnings) => {
                Ok(Accepted { object: Value::Null, applied: Applied::Unchanged, warnings })
            }
            Decision::Write(mut write) => {
                let text = String::from_utf8(std::mem::take(&mut write.text)).expect("it is JSON");
                check_known(&write.file, &write.path, &text);
                self.files.insert(write.path.clone(), text);
                self.registry.written(&mut write);
                self.read();
                Ok(self.registry.reply_to(*write))
            }
        }
    }

    /// Changes a pod in place for a client. Returns the reply.
    pub(super) fn update(&mut self, name: &str, change: Change, dry_run: bool) -> Result<Accepted, Status> {
        let updating = Updating { change, part: Part::Whole, validation: FieldValidation::Strict, dry_run };
        let present = self.present(name);
        let decision = self.registry.update(name, updating, present.as_ref())?;
        self.carry_out(decision)
    }

    /// Deletes a pod for a client. Returns the reply.
    pub(super) fn delete(&mut self, name: &str, preconditions: &Preconditions) -> Result<(), Status> {
        let present = self.present(name);
        let deletion = self.registry.delete(name, preconditions, None, present.as_ref())?;
        if let Some(desired) = deletion.desired {
            self.remove(&desired.source.to_string_lossy());
        }
        Ok(())
    }

    /// The image of a pod of the core.
    pub(super) fn image(&self, name: &str) -> &str {
        self.pods.get(&pod_name(name)).map_or("none", |pod| &pod.pod.spec.containers[0].image)
    }
}

/// Parses the text of a file of a source.
fn parse(sources: &Sources, path: &Path, text: &str) -> Result<SourceFile, manifest::ManifestError> {
    let owner = sources.owner_of(path).expect("a file of a source");
    SourceFile::parse(path, owner, text.as_bytes(), NODE)
}

/// Checks that the next agent, which parses the text, reads the objects that this agent knows without parsing it.
fn check_known(file: &SourceFile, path: &Path, text: &str) {
    let parsed = manifest::contents(&path.to_string_lossy(), text.as_bytes(), Validation::Strict, NODE);
    let parsed = parsed.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(file.wanted.len(), parsed.pods.len());
    for (known, parsed) in file.wanted.iter().zip(parsed.pods) {
        assert_eq!(known.pod, parsed.pod, "{text}");
        assert_eq!(known.object.get(), parsed.object.to_string(), "{text}");
    }
    assert_eq!(file.definitions.len(), parsed.definitions.len());
    for (known, parsed) in file.definitions.iter().zip(parsed.definitions) {
        let (mut known, mut parsed) = (known.object(), parsed.object());
        if known["kind"] == Kind::PodPreset.as_str() {
            // The next agent shows the time of its own start.
            known["metadata"]["creationTimestamp"].take();
            parsed["metadata"]["creationTimestamp"].take();
        }
        assert_eq!(known, parsed, "{text}");
    }
}

pub(super) fn pod_name(name: &str) -> PodName {
    ("default".into(), name.into())
}

pub(super) fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "app", "image": image}]},
    })
}

/// A reply on one line.
pub(super) fn line(answer: Result<Accepted, Status>) -> String {
    match answer {
        Ok(accepted) => {
            let warnings: String = accepted.warnings.iter().map(|warning| format!("; {warning}")).collect();
            format!("{:?}{warnings}", accepted.applied)
        }
        Err(status) => format!("{} {}: {}", status.code, status.reason, status.message),
    }
}

/// The modules of the standard library that the registry uses. No part of it touches the machine, and none has random results.
const ALLOWED: [&str; 26] = [
    "borrow::Cow",
    "cell",
    "cmp",
    "collections::BTreeMap",
    "collections::BTreeSet",
    "collections::VecDeque",
    "error",
    "ffi::OsStr",
    "ffi::OsString",
    "fmt",
    "future",
    "hash::DefaultHasher",
    "hash::Hash",
    "hash::Hasher",
    "iter",
    "mem",
    "net::IpAddr",
    "ops::RangeInclusive",
    "path::Path",
    "path::PathBuf",
    "pin",
    "rc",
    "task::Context",
    "task::Poll",
    "task::Waker",
    "time::Duration",
];

#[test]
fn the_registry_names_nothing_of_the_standard_library_that_touches_the_machine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    assert!(impurities(&root, &[]).len() > 50, "the source is read");
    assert_eq!(impurities(&root, &ALLOWED), [""; 0]);
}

#[test]
fn no_files_of_the_registry_import_from_each_other() {
    let files = imports(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs"));
    assert!(files.len() > 15 && files["sources"].contains("wanted"), "{files:?}");
    let circles = circles(files);
    assert!(circles.is_empty(), "these import from each other in a circle: {circles:?}");
}
