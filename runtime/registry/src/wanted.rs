//! Pods of the sources, as written in their files and as admitted.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use nodlet_core::sorted::SortedMap;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use nodlet_core::facts::Event;
use nodlet_core::spec::Pod;
use nodlet_kube::manifest::{self, AppliedPreset, Manifest, Priority};

/// The maximum number of warnings about one pod.
const WARNINGS: usize = 64;
/// The maximum length of a message about a file in bytes: nobody reads a list of a thousand wrong fields.
const MESSAGE: usize = 1024;

/// A desired pod, from a source.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The pod as admitted.
    pub pod: Rc<Pod>,
    /// The object as JSON, defaulted, without a status.
    pub object: Rc<RawValue>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The file that contains the pod.
    pub source: PathBuf,
    /// The presets and defaults that were applied at its admission.
    pub presets: Rc<[AppliedPreset]>,
    /// The priority that the pod was admitted with; none before its admission.
    pub priority: Option<Rc<Priority>>,
    /// The object without presets and priority, if either changed it.
    pub written: Option<Rc<RawValue>>,
}

/// Namespace and name of a pod.
pub type PodName = (Rc<str>, Rc<str>);

/// The desired pods, by namespace and name.
pub type WantedByName = SortedMap<PodName, Rc<Wanted>>;

/// An admitted pod.
#[derive(Debug)]
pub struct Admitted {
    /// The pod.
    pub wanted: Rc<Wanted>,
    /// The part that the pod was admitted without.
    pub problem: Option<Problem>,
}

/// The reason why a pod is admitted without its presets or ephemeral containers.
#[derive(Debug, PartialEq)]
pub enum Problem {
    /// Presets conflict with the pod or with each other, so that none is applied. This is an event of the
    /// pod.
    Conflict(Event),
    /// Presets or ephemeral containers that the pod had before could not be added again. This is a message
    /// for the log.
    Lost(String),
}

impl Wanted {
    /// Creates the desired pod of `manifest`, which was read from `source`.
    pub fn new(manifest: Manifest, source: &Path) -> Wanted {
        Wanted {
            pod: manifest.pod,
            object: to_raw_value(&manifest.object).expect("JSON renders as JSON").into(),
            warnings: manifest.warnings.into_iter().take(WARNINGS).map(shorten).collect(),
            source: source.to_owned(),
            presets: Rc::new([]),
            priority: None,
            written: None,
        }
    }

    /// Creates the desired pod of a manifest that the agent writes to the file `source`, as reading that file
    /// would: without the time of creation, which no file has, and without warnings, which the client gets.
    pub(crate) fn of_own_file(manifest: &Manifest, source: &Path) -> Rc<Wanted> {
        let (pod, mut object) = (manifest.pod.clone(), manifest.object.clone());
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("creationTimestamp");
        }
        Rc::new(Wanted::new(Manifest { pod, object, warnings: Vec::new() }, source))
    }

    /// A copy that runs as `pod`, which differs in the amounts that are allocated to it.
    pub fn with_pod(&self, pod: Rc<Pod>) -> Wanted {
        Wanted { pod, ..self.clone() }
    }

    /// A copy with `presets` added; `manifest` is the result.
    pub(crate) fn with_presets(&self, manifest: Manifest, presets: Rc<[AppliedPreset]>) -> Wanted {
        Wanted { presets, ..self.changed(Manifest { warnings: self.warnings.clone(), ..manifest }) }
    }

    /// A copy with the content of `manifest`, which keeps presets, priority and the object as written.
    pub fn changed(&self, manifest: Manifest) -> Wanted {
        Wanted {
            presets: self.presets.clone(),
            priority: self.priority.clone(),
            written: Some(self.written.as_ref().unwrap_or(&self.object).clone()),
            ..Wanted::new(manifest, &self.source)
        }
    }

    /// A copy with `priority`; `object` is the pod's object.
    pub(crate) fn with_priority(&self, mut object: Value, priority: Priority) -> Wanted {
        priority.show(&mut object);
        let mut pod = self.pod.clone();
        if (pod.priority, &*pod.spec.priority_class_name) != (priority.value(), priority.class()) {
            let pod = Rc::make_mut(&mut pod);
            pod.priority = priority.value();
            priority.class().clone_into(&mut pod.spec.priority_class_name);
        }
        let manifest = Manifest { pod, object, warnings: self.warnings.clone() };
        Wanted { priority: Some(Rc::new(priority)), ..self.changed(manifest) }
    }

    /// Removes the computed priority from `pod`, an object that a client read and sends back.
    pub(crate) fn remove_computed_priority(&self, pod: &mut Value) {
        let read = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or_default();
        manifest::priority::remove_computed(pod, &read(&self.object), &read(self.as_written()));
    }

    /// The object as written in its file: without presets and computed priority.
    pub(crate) fn as_written(&self) -> &RawValue {
        self.written.as_deref().unwrap_or(&self.object)
    }

    /// Whether the core need not be notified of `new`, which has the same UID and object.
    pub fn is_same_as(&self, new: &Wanted) -> bool {
        self.pod.uid == new.pod.uid && self.as_written().get() == new.as_written().get()
    }
}

/// Shortens a message to at most [`MESSAGE`] bytes.
pub(super) fn shorten(mut message: String) -> String {
    if message.len() > MESSAGE {
        message.truncate(message.floor_char_boundary(MESSAGE));
        message.push('…');
        message.shrink_to_fit();
    }
    message
}
