//! The desired state: the objects that should exist, their sources, and the decisions on requests that change
//! them. The registry returns its decisions as data; the agent's engine performs them.
//!
//! The registry opens no file, reads no clock and never waits: the contents of files, the time and the core's
//! knowledge of a pod are arguments. Besides its own state, it changes only the store of [`crate::objects`],
//! in which it publishes definitions.
//!
//! ```text
//! files ─► Sources ─► read ─► admit_all ─► hold_back ─► difference ─► the core
//! requests ─► prepare ─► apply | update | delete ─► Decision ─► a file, an observation, a reply
//! ```
//!
//! Read next: `registry/src/sources.rs`, on the precedence among objects of one name;
//! `registry/src/admission.rs`, on the admission of pods; `registry/src/pods.rs`, on the requests of clients.

mod admission;
mod awaited_images;
mod change;
mod claims;
mod config_objects;
mod definitions;
mod devices;
mod difference;
mod ephemeral;
mod events;
pub mod held_updates;
mod live_objects;
pub mod names;
pub mod objects;
mod patch;
mod pods;
mod preconditions;
mod present;
mod quota;
mod request;
mod services;
mod set_aside;
mod sources;
mod status;
#[cfg(test)]
mod tests;
mod this_node;
mod transitions;
mod volumes_in_use;
pub mod waiting;
mod wanted;

use std::path::PathBuf;
use std::rc::Rc;

use nodlet_core::sorted::SortedMap;
use serde_json::Value;

use crate::held_updates::{HeldUpdates, LookUp, NodePods};
use crate::objects::Objects;
use nodlet_core::facts::ClientCondition;
use nodlet_core::spec::Pod;
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::AllowedAnnotations;

pub use admission::{AdmissionError, Base, Policy, admit};
pub use awaited_images::AwaitedImage;
pub use change::{Accepted, Applied, Change, FieldValidation, Part, Preconditions};
pub use config_objects::{ConfigData, ConfigObjects, refers_to};
pub use devices::{
    DeviceOfRun, DeviceRetry, FoundDevice, SeenDevices, device_events, grant_devices, grant_interfaces,
    interface_returned, requested_devices,
};
pub use difference::{Admissions, AdmittedPods, Difference, DuePods, Read, sort_admitted_first};
pub use ephemeral::{list_of as ephemeral_of, with_list as with_ephemeral, without as without_ephemeral};
pub use events::{EVENTS, Events};
pub use live_objects::{DefinitionName, LiveFields};
pub use patch::PatchKind;
pub use pods::{Deletion, Stop, Updating};
pub use preconditions::parse_version;
pub use present::{Present, ReplacedPod, as_published};
pub use request::{Identity, RequestOptions, check_types};
pub use services::ServiceView;
pub use set_aside::{DEATHS, Handled, Suspects, Verdict};
use sources::DefinitionsByName;
pub use sources::{MAX_BYTES, MAX_FILES, Owner, SourceDirectory, SourceFile, Sources};
pub use status::Status;
pub use this_node::{
    NodeEvent, NodeFacts, NodeImage, NodeState, architecture, excessive_reservations, memory_of_all_pods,
    node_images, node_info, node_object,
};
pub use transitions::Transitions;
pub use wanted::{Admitted, PodName, Problem, Wanted, WantedByName};

/// The desired state.
#[derive(Debug)]
pub struct Registry {
    /// The sources of desired objects.
    pub sources: Sources,
    /// Changes of pods that wait for images.
    pub held_updates: HeldUpdates,
    /// Annotations of pods that may request something of the board.
    pub allowed_annotations: AllowedAnnotations,
    node: String,
    /// The store in which objects are published.
    objects: Rc<Objects>,
    /// The pods that the core was last notified of, by namespace and name.
    desired: WantedByName,
    /// The definitions, with the file of each.
    definitions: DefinitionsByName,
    /// Pods from files that are rejected because of their priority.
    without_class: SortedMap<PodName, Refusal>,
    /// The bindings of PersistentVolumeClaims.
    claims: claims::Claims,
    volumes_in_use: volumes_in_use::VolumesInUse,
    services: services::Services,
}

/// The decision on a request.
#[derive(Debug)]
pub enum Decision {
    /// Reply with this object; nothing changes. If there is a pod, warn about its missing images.
    Reply(Accepted, Option<Rc<Pod>>),
    /// Reply with the published pod, with these warnings; nothing changes.
    Published(Vec<String>),
    /// Notify the core of these client conditions, and reply with the resulting pod.
    ClientConditions(Rc<[ClientCondition]>, Vec<String>),
    /// Write a file, pass its contents to [`Registry::written`], and reply with the result. Until then, no other
    /// request is decided.
    Write(Box<Write>),
}

/// A file to be written.
#[derive(Debug)]
pub struct Write {
    /// The path of the file.
    pub path: PathBuf,
    /// The text of the file.
    pub text: Vec<u8>,
    /// The content of the file.
    pub of: Written,
    file: SourceFile,
    object: Value,
    applied: Applied,
    warnings: Vec<String>,
}

/// The content of a file to be written.
#[derive(Debug)]
pub enum Written {
    /// A pod.
    Pod(Rc<Pod>),
    /// A definition.
    Definition(DefinitionName),
}

/// The rejection of a file, or of a pod in a file, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub source: PathBuf,
    /// Kind, namespace and name of the rejected object, if known.
    pub object: Option<(Kind, Rc<str>, Rc<str>)>,
    /// A description of the error and of the correct form.
    pub message: String,
}

impl Registry {
    /// Creates the registry for these sources, lowest precedence first, on the node of this name.
    pub fn new(sources: Vec<SourceDirectory>, node: &str, objects: Rc<Objects>) -> Registry {
        Registry {
            sources: Sources::new(sources),
            held_updates: HeldUpdates::default(),
            allowed_annotations: AllowedAnnotations::default(),
            node: node.to_owned(),
            objects,
            desired: WantedByName::new(),
            definitions: DefinitionsByName::new(),
            without_class: SortedMap::new(),
            claims: claims::Claims::default(),
            volumes_in_use: volumes_in_use::VolumesInUse::default(),
            services: services::Services::default(),
        }
    }

    /// Whether all files are valid, so that a pod that is not desired is in no file.
    pub fn all_read(&self) -> bool {
        self.without_class.is_empty() && self.sources.wanted().1.is_empty()
    }

    /// The pod of this name that the core was last notified of.
    pub fn desired(&self, name: &PodName) -> Option<&Rc<Wanted>> {
        self.desired.get(name)
    }

    /// Whether the pods that the core was last notified of include one with this UID.
    pub fn desires(&self, uid: &nodlet_core::spec::Uid) -> bool {
        self.desired.values().any(|desired| desired.pod.uid == *uid)
    }

    /// Records that the core was notified of this pod.
    pub fn set_desired(&mut self, wanted: Rc<Wanted>) {
        self.desired.insert((wanted.pod.namespace.clone(), wanted.pod.name.clone()), wanted);
    }

    /// The images to look up before the first [`Registry::hold_back`], see [`HeldUpdates::begin`].
    pub fn begin_held_updates(&mut self, kept: WantedByName, pods: &dyn NodePods) -> LookUp {
        let (wanted, _) = self.sources.wanted();
        self.held_updates.begin(kept, &wanted, &self.desired, pods)
    }

    /// The current definitions for the admission of pods.
    pub fn policy(&self) -> Policy {
        Policy::new(&self.definitions, &self.objects, &self.node)
    }

    /// The file of a pod that clients apply.
    pub(crate) fn applied_path(&self, namespace: &str, name: &str) -> PathBuf {
        self.sources.applied_path(&Kind::Pod.row().file(namespace, name))
    }

    /// Whether the pod comes from a client.
    pub(crate) fn is_applied(&self, wanted: &Wanted) -> bool {
        wanted.source == self.applied_path(&wanted.pod.namespace, &wanted.pod.name)
    }

    /// Whether the pod comes from the API, of this board or of its cluster, and not from a file of the board.
    pub(crate) fn is_from_api(&self, wanted: &Wanted) -> bool {
        match self.owner_of(wanted) {
            None => false,
            // People may put files of other names beside those of clients.
            Some(Owner::Client) => self.is_applied(wanted),
            Some(owner) => owner.is_api(),
        }
    }

    /// The owner of the source of a pod; none if the file is in no source.
    pub fn owner_of(&self, wanted: &Wanted) -> Option<Owner> {
        self.sources.owner_of(&wanted.source)
    }

    /// The desired pods from the sources of one owner, except those that another source overrides.
    pub fn wanted_of(&self, owner: Owner) -> Vec<Rc<Wanted>> {
        let (wanted, _) = self.sources.wanted();
        wanted.into_values().filter(|one| self.owner_of(one) == Some(owner)).collect()
    }

    /// Records the contents of a file that was written for a request.
    pub fn written(&mut self, write: &mut Write) {
        self.sources.put_written(&write.path, std::mem::take(&mut write.file));
    }

    /// The reply to a request whose file was written, and of which the core was notified.
    pub fn reply_to(&self, write: Write) -> Accepted {
        let Write { of, object, applied, warnings, .. } = write;
        let published = match &of {
            Written::Pod(pod) => {
                // Includes the additions of presets, if the core was notified of this pod.
                let desired = self.desired.get(&(pod.namespace.clone(), pod.name.clone()));
                let desired = desired.filter(|desired| desired.pod.uid == pod.uid);
                desired.and_then(|desired| serde_json::from_str(desired.object.get()).ok())
            }
            Written::Definition(name) => self.published_definition(name),
        };
        Accepted { object: published.unwrap_or(object), applied, warnings }
    }

    /// The file of a definition that clients apply. Pods' files have one underscore in their names.
    fn definition_path(&self, name: &DefinitionName) -> PathBuf {
        self.sources.applied_path(&name.0.row().file(&name.1, &name.2))
    }
}
