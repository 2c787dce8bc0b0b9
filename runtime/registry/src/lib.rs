//! The desired state: which objects there are to be, from which source, and what becomes of a
//! request that changes them. It decides and answers with data; the agent's engine does it.
//!
//! Nothing here opens a file, reads a clock or waits: the contents of files, the time and what
//! the core knows of a pod come in as arguments. The only thing it changes besides its own state
//! is the store of [`crate::objects`], where it publishes what is defined besides pods.
//!
//! ```text
//! files ─► Sources ─► wanted ─► admit_all ─► hold_back ─► difference ─► the core
//! requests ─► prepare ─► apply | update | delete ─► Decision ─► a file, an observation, a reply
//! ```
//!
//! Read next: `registry/src/sources.rs`, which says which of several objects of one name counts;
//! `registry/src/admission.rs`, what a written pod becomes; `registry/src/pods.rs`, what clients may do.

mod admission;
mod awaited_images;
mod change;
mod definitions;
mod difference;
mod ephemeral;
pub mod held_updates;
pub mod names;
pub mod objects;
mod patch;
mod pods;
mod preconditions;
mod present;
mod published;
mod quota;
mod request;
mod sources;
mod status;
#[cfg(test)]
mod tests;
pub mod waiting;
mod wanted;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::Value;

use crate::held_updates::{Effect, HeldUpdates, LookUp, NodePods};
use crate::objects::Objects;
use nodlet_core::facts::ClientCondition;
use nodlet_core::spec::Pod;
use nodlet_core::time::Instant;
use nodlet_kube::kinds::Kind;

pub use admission::{Admitted, Base, Policy, Problem, admit};
pub use awaited_images::AwaitedImage;
pub use change::{Accepted, Applied, Change, FieldValidation, Part, Preconditions};
pub use definitions::DefinitionName;
pub use difference::{Admissions, Difference, sort_admitted_first};
pub use ephemeral::{list_of as ephemeral_of, with_list as with_ephemeral, without as without_ephemeral};
pub use patch::PatchKind;
pub use pods::{Deletion, Stop, Updating};
pub use present::{Known, Present};
pub use published::Seen;
pub use request::{Identity, RequestOptions};
pub use sources::{DefinitionsByName, MAX_BYTES, MAX_FILES, Size, Sources};
pub use status::Status;
pub use wanted::{PodName, Wanted, WantedByName};

/// The desired state.
#[derive(Debug)]
pub struct Registry {
    /// Where desired objects come from.
    pub sources: Sources,
    /// Changes of pods that wait for images.
    pub held_updates: HeldUpdates,
    places: ManifestPlaces,
    node: String,
    /// Where objects are published.
    objects: Rc<Objects>,
    /// What the core was last told, by namespace and name.
    desired: WantedByName,
    /// What is defined besides pods.
    definitions: DefinitionsByName,
    /// Pods of files that are refused for their priority.
    without_class: BTreeMap<PodName, Refusal>,
}

/// The directories that requests and their answers are about.
#[derive(Clone, Debug)]
pub struct ManifestPlaces {
    /// Holds what clients apply.
    pub applied: PathBuf,
    /// Part of the device's image: nobody can change it there.
    pub vendor: PathBuf,
    /// Overrides `vendor`.
    pub site: PathBuf,
}

/// What a request comes to.
#[derive(Debug)]
pub enum Decision {
    /// Answer with this; nothing changes. If it is about a pod, warn of its images that are missing.
    Reply(Accepted, Option<Rc<Pod>>),
    /// Answer with the pod as it is published; nothing changes.
    Published(Vec<String>),
    /// Tell the core of the conditions of others, and answer with the pod as it is then.
    ClientConditions(Rc<[ClientCondition]>, Vec<String>),
    /// Write a file, read it as files are read, and answer then. Room for it is taken.
    Write(Box<Write>),
}

/// A file that is to be written.
#[derive(Debug)]
pub struct Write {
    /// Where.
    pub path: PathBuf,
    /// Its text.
    pub text: Vec<u8>,
    /// What it holds.
    pub of: Written,
    object: Value,
    applied: Applied,
    warnings: Vec<String>,
}

/// What a file holds that is to be written.
#[derive(Debug)]
pub enum Written {
    /// A pod.
    Pod(Rc<Pod>),
    /// What is no pod.
    Definition(DefinitionName),
}

/// A file, or a pod of one, that is not obeyed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub source: PathBuf,
    /// Kind, namespace and name of the object that it would have been, where one is known.
    pub object: Option<(Kind, Rc<str>, Rc<str>)>,
    /// What is wrong and what would be right.
    pub message: String,
}

impl Registry {
    /// The registry of the objects of `sources`, lowest precedence first, on the node of this name.
    pub fn new(sources: Vec<PathBuf>, places: ManifestPlaces, node: &str, objects: Rc<Objects>) -> Registry {
        Registry {
            sources: Sources::new(sources),
            held_updates: HeldUpdates::default(),
            places,
            node: node.to_owned(),
            objects,
            desired: WantedByName::new(),
            definitions: DefinitionsByName::new(),
            without_class: BTreeMap::new(),
        }
    }

    /// The pod of this name that the core was last told.
    pub fn desired(&self, name: &PodName) -> Option<&Rc<Wanted>> {
        self.desired.get(name)
    }

    /// Whether the core was last told a pod that has this uid.
    pub fn desires(&self, uid: &nodlet_core::spec::Uid) -> bool {
        self.desired.values().any(|desired| desired.pod.uid == *uid)
    }

    /// The core was told this pod.
    pub fn set_desired(&mut self, wanted: Rc<Wanted>) {
        self.desired.insert((wanted.pod.namespace.clone(), wanted.pod.name.clone()), wanted);
    }

    /// Replaces pods of `wanted` whose images are not on the board by those that run, see
    /// [`HeldUpdates::hold_back`].
    pub fn hold_back(&mut self, wanted: &mut WantedByName, pods: &dyn NodePods, now: Instant) -> Vec<Effect> {
        self.held_updates.hold_back(wanted, &self.desired, pods, now)
    }

    /// The images to look up before the first [`Registry::hold_back`], see [`HeldUpdates::begin`].
    pub fn begin_held_updates(&mut self, kept: WantedByName, pods: &dyn NodePods) -> LookUp {
        let (wanted, _) = self.sources.wanted();
        self.held_updates.begin(kept, &wanted, &self.desired, pods)
    }

    /// The definitions that pods are admitted by now.
    pub fn policy(&self) -> Policy {
        Policy::new(&self.definitions, &self.objects, &self.node)
    }

    /// The file of a pod that clients apply.
    pub(crate) fn applied_path(&self, namespace: &str, name: &str) -> PathBuf {
        self.places.applied.join(Kind::Pod.row().file(namespace, name))
    }

    /// Whether the pod comes from a client.
    pub fn is_applied(&self, wanted: &Wanted) -> bool {
        wanted.source == self.applied_path(&wanted.pod.namespace, &wanted.pod.name)
    }

    /// The answer to a request whose file was written and read.
    pub fn written(&self, write: Write) -> Accepted {
        let Write { of, object, applied, warnings, .. } = write;
        let published = match &of {
            Written::Pod(pod) => {
                // With what presets have added to it, if it is the one that the core was told.
                let desired = self.desired.get(&(pod.namespace.clone(), pod.name.clone()));
                let desired = desired.filter(|desired| desired.pod.uid == pod.uid);
                desired.and_then(|desired| serde_json::from_str(desired.object.get()).ok())
            }
            Written::Definition(name) => self.published_definition(name),
        };
        Accepted { object: published.unwrap_or(object), applied, warnings }
    }

    /// The room that was taken for a file is given back: it was read, or was not written.
    pub fn release(&mut self, path: &Path) {
        self.sources.release(path);
    }
}
