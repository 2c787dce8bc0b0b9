//! Admission of pods. Presets, priority and identity of a pod are decided once and stored with the pod, so
//! that neither a later definition nor a later agent changes them.
//!
//! [`admit`] is called once for each pod of a source, and once more if the pod has ephemeral containers,
//! which are in no source; for a pod that a client sends, also before its file is written, so that the client
//! gets the reason of a rejection. [`as_update_of`] is called for each object with which a client replaces
//! another. Neither function parses or validates a pod again to which nothing is added.

use std::error::Error;
use std::rc::Rc;

use serde_json::Value;

use super::request::refused;
use super::wanted::{Admitted, Problem};
use super::{DefinitionsByName, Registry, Status, Wanted, ephemeral, live_objects};
use crate::objects::Objects;
use nodlet_core::facts::{Event, Record};
use nodlet_core::spec::Pod;
use nodlet_kube::kinds::{Kind, limit_range, priority_class, runtime_class};
use nodlet_kube::manifest::update::{self, Update};
use nodlet_kube::manifest::{self, AppliedPreset, Classes, Definition, Manifest, Priority};

/// The maximum size in bytes that presets may add to the object of a pod: the additions are stored for each
/// pod and each of its containers, whereas a preset exists once.
const MAX_PRESET_BYTES: usize = 64 * 1024;

/// The reason of the event about presets that conflict with a pod or with each other.
const CONFLICT: &str = "PodPresetConflict";

/// The definitions for the admission of pods.
#[derive(Debug)]
pub struct Policy {
    /// All PodPresets, with their `resourceVersion`.
    presets: Vec<(Rc<Definition>, u64)>,
    classes: Classes,
    /// All LimitRanges.
    limit_ranges: Vec<Rc<Definition>>,
    /// All RuntimeClasses.
    runtime_classes: Vec<Rc<Definition>>,
    node: String,
}

/// The basis of a pod's admission.
#[derive(Clone, Debug)]
pub enum Base {
    /// The pod was never admitted before, and gets all matching presets.
    New,
    /// The pod was admitted before, and keeps what it was admitted with.
    Before {
        /// The presets of the earlier admission.
        presets: Vec<AppliedPreset>,
        /// The priority of the earlier admission, which applies as long as the pod names the same class.
        priority: Option<Priority>,
    },
    /// `spec.ephemeralContainers`, which are added to an admitted pod.
    Ephemeral(Value),
}

impl Base {
    /// The base of a pod of a source. `known` is the pod of this UID that the core has. `recorded` reads with what the
    /// pod was admitted according to its record on flash: `Err` if there is a record that cannot be read.
    pub fn of(
        new: &Wanted,
        known: Option<&Wanted>,
        recorded: impl FnOnce() -> Result<Option<(Vec<AppliedPreset>, Option<Priority>)>, ()>,
    ) -> Base {
        if let Some(known) = known {
            let priority = known.priority.as_deref().cloned();
            return Base::Before { presets: known.presets.to_vec(), priority };
        }
        match recorded() {
            Ok(Some((presets, priority))) => Base::Before { presets, priority },
            // The pod counts as failed, and does not start: it gets nothing new.
            Err(()) if Record::unknown(&new.pod.spec, "").is_some() => {
                Base::Before { presets: Vec::new(), priority: None }
            }
            // The pod starts as if it were new.
            Err(()) | Ok(None) => Base::New,
        }
    }
}

impl Policy {
    /// Creates the policy of `definitions`, whose published versions are in `objects`, on the node of this
    /// name.
    pub fn new(definitions: &DefinitionsByName, objects: &Objects, node: &str) -> Policy {
        let mut policy = Policy {
            presets: Vec::new(),
            classes: Classes::new(),
            limit_ranges: Vec::new(),
            runtime_classes: Vec::new(),
            node: node.to_owned(),
        };
        for (name, (definition, _)) in definitions {
            // Other kinds do not affect admission.
            if name.0 == Kind::PriorityClass {
                policy.classes.insert(name.2.clone(), priority_class::class(&definition.object()));
            } else if name.0 == Kind::LimitRange {
                policy.limit_ranges.push(definition.clone());
            } else if name.0 == Kind::RuntimeClass {
                policy.runtime_classes.push(definition.clone());
            } else if name.0 == Kind::PodPreset {
                let version = objects.get(&live_objects::key(name)).map_or(0, |shown| shown.version);
                policy.presets.push((definition.clone(), version));
            }
        }
        policy
    }

    /// The priority of a pod as written. `before` is the priority that it was admitted with.
    ///
    /// # Errors
    /// The message of Kubernetes' admission.
    pub fn priority(&self, pod: &Value, before: Option<Priority>) -> Result<Priority, String> {
        Priority::of(pod, &self.classes, before)
    }

    /// The reason why a new pod as written is not admitted, whatever else is wrong with it.
    pub(crate) fn refusal(&self, pod: &Value) -> Option<String> {
        let of_class = || self.defaults(pod).err().filter(|why| why.ends_with(" not found"));
        self.priority(pod, None).err().or_else(of_class)
    }

    /// Additions to a new pod from its RuntimeClass and from LimitRanges.
    ///
    /// # Errors
    /// The class does not exist, or the pod contradicts it; the message is that of Kubernetes' admission.
    fn defaults(&self, pod: &Value) -> Result<Option<AppliedPreset>, String> {
        let class = |name: &str| self.runtime_classes.iter().find(|class| *class.name == *name);
        let of_class = runtime_class::applied(pod, |name| class(name).map(|class| class.object()))?;
        Ok(limit_range::defaults(&self.ranges_of(pod), of_class))
    }

    /// Checks the amounts of a pod as admitted.
    ///
    /// # Errors
    /// The pod is out of bounds; the message is that of Kubernetes' admission.
    pub(crate) fn check_limits(&self, pod: &Value) -> Result<(), String> {
        limit_range::check(pod, &self.ranges_of(pod))
    }

    /// The LimitRanges of the namespace of a pod, by name.
    fn ranges_of(&self, pod: &Value) -> Vec<Value> {
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default");
        let own = self.limit_ranges.iter().filter(|range| *range.namespace == *namespace);
        own.map(|range| range.object()).collect()
    }

    fn matching(&self, pod: &Value) -> Vec<AppliedPreset> {
        let matching = self.presets.iter().filter(|(preset, _)| preset.is_for(pod));
        matching.map(|(preset, version)| preset.applied(*version)).collect()
    }
}

/// The reason why a pod is not admitted, in the words of Kubernetes' admission. An underlying error is displayed in its
/// own words and is not a source of this error, whose source is the source of the underlying error.
///
/// A box and no enum, since no code tells the reasons apart: each is the text of a rejection, an event or the log. Those
/// of presets, priority, classes and limits are texts that Kubernetes has in the same words, and the other two, JSON and
/// a manifest that is invalid with what was added to it, are shown as they are.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct AdmissionError(Box<dyn Error>);

impl AdmissionError {
    pub(super) fn of(error: impl Error + 'static) -> AdmissionError {
        AdmissionError(Box::new(error))
    }
}

impl From<String> for AdmissionError {
    fn from(message: String) -> AdmissionError {
        AdmissionError(message.into())
    }
}

/// Admits a pod on the basis of its earlier admission.
///
/// # Errors
/// The reason why the pod has no priority, has no RuntimeClass, or is out of the bounds of a LimitRange.
pub fn admit(base: Base, new: &Rc<Wanted>, policy: &Policy) -> Result<Admitted, AdmissionError> {
    let object: Value = serde_json::from_str(new.object.get()).map_err(AdmissionError::of)?;
    let (presets, before, is_new) = match base {
        Base::New => {
            let mut presets: Vec<AppliedPreset> = policy.defaults(&object)?.into_iter().collect();
            presets.extend(policy.matching(&object));
            (presets, None, true)
        }
        Base::Before { presets, priority } => (presets, priority, false),
        Base::Ephemeral(list) => {
            let object = ephemeral::put_list(object, list);
            return Ok(match manifest::read_again(object, &policy.node) {
                Ok(manifest) => Admitted { wanted: Rc::new(new.changed(manifest)), problem: None },
                // The ephemeral containers refer to a part of the pod that no longer exists: the pod has
                // changed since.
                Err(error) => with_loss(
                    new.clone(),
                    format!("{error}; the pod continues without its ephemeral containers"),
                ),
            });
        }
    };
    let priority = policy.priority(&object, before)?;
    // Presets add no amounts. Defaults do, and are checked with the pod that has them.
    let defaults = usize::from(is_new && presets.first().is_some_and(|first| first.name.is_empty()));
    if is_new && defaults == 0 {
        policy.check_limits(&object)?;
    }
    let plain = Rc::new(new.with_priority(object, priority));
    if presets.is_empty() {
        return Ok(Admitted { wanted: plain, problem: None });
    }
    let names = presets.iter().map(|preset| preset.name.as_str()).filter(|name| !name.is_empty());
    let names: Vec<&str> = names.collect();
    Ok(match inject(&plain, &presets, &policy.node) {
        Ok(manifest) => {
            if defaults > 0 {
                policy.check_limits(&manifest.object)?;
            }
            Admitted { wanted: Rc::new(plain.with_presets(manifest, presets.into())), problem: None }
        }
        // The defaults contradict the pod.
        Err(error) if defaults == presets.len() => return Err(error),
        Err(error) if is_new => {
            let plain = if defaults == 0 {
                plain
            } else {
                let manifest = inject(&plain, &presets[..defaults], &policy.node)?;
                policy.check_limits(&manifest.object)?;
                Rc::new(plain.with_presets(manifest, presets[..defaults].into()))
            };
            let message = format!(
                "conflict occurred while applying podpresets: {} on pod: {} err: {error}",
                names.join(","),
                new.pod.name
            );
            let event =
                Event { warning: true, reason: CONFLICT.into(), message: message.into(), container: None };
            Admitted { wanted: plain, problem: Some(Problem::Conflict(event)) }
        }
        Err(error) => with_loss(plain, format!("{error}; the pod continues without its presets")),
    })
}

impl Registry {
    /// Adds ephemeral containers that the pod had before, `list`, to the pod `plain` of a manifest. A pod to which they
    /// cannot be added continues without them.
    pub fn add_ephemeral_again(&self, plain: &Rc<Wanted>, list: Value) -> Admitted {
        admit(Base::Ephemeral(list), plain, &self.policy())
            .unwrap_or_else(|error| with_loss(plain.clone(), error.to_string()))
    }
}

/// The pod, admitted without presets or ephemeral containers that it had before.
fn with_loss(wanted: Rc<Wanted>, why: String) -> Admitted {
    let message = format!("{}/{}: {why}", wanted.pod.namespace, wanted.pod.name);
    Admitted { wanted, problem: Some(Problem::Lost(message)) }
}

/// Returns the manifest of `wanted` with `presets`.
fn inject(wanted: &Wanted, presets: &[AppliedPreset], node: &str) -> Result<Manifest, AdmissionError> {
    let mut object = serde_json::from_str(wanted.object.get()).map_err(AdmissionError::of)?;
    manifest::inject(&mut object, presets)?;
    let manifest = manifest::read_again(object, node).map_err(AdmissionError::of)?;
    let kept: usize = presets.iter().map(|preset| preset.spec.to_string().len()).sum();
    let added = manifest.object.to_string().len().saturating_sub(wanted.object.get().len());
    if added.max(kept) > MAX_PRESET_BYTES {
        let message = format!("the presets add more than {} KiB to the pod", MAX_PRESET_BYTES / 1024);
        return Err(message.into());
    }
    Ok(manifest)
}

/// Returns an object that replaces `old`, with the identity of `old` if it may be the same pod. Only applied
/// pods keep their identity (`is_applied`): pods from files have the identity of their file.
///
/// # Errors
/// The new object has scheduling gates that `old` lacks.
pub(super) fn as_update_of(old: &Wanted, is_applied: bool, new: Manifest) -> Result<Manifest, Status> {
    let mut before: Value = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
    old.remove_computed_priority(&mut before);
    update::no_new_gates(&before, &new.object).map_err(|error| refused(&error))?;
    // An object from a file or a client does not contain presets, but an object that was read from the API
    // and patched does. Presets of `old` are added to both.
    let mut after = new.object.clone();
    if !old.presets.is_empty() && manifest::inject(&mut after, &old.presets).is_err() {
        return Ok(new);
    }
    let spec = match update::compare(&before, &after) {
        _ if !is_applied => return Ok(new),
        Update::Other(_) => return Ok(new),
        Update::Nothing => false,
        Update::InPlace { spec } => spec,
    };
    Ok(with_identity(old, &before, new, spec))
}

/// Returns `new` with the identity of `old`, whose object is `before`; `spec` means that the spec changes.
pub(super) fn with_identity(old: &Wanted, before: &Value, new: Manifest, spec: bool) -> Manifest {
    let generation = old.pod.generation + u64::from(spec);
    let Manifest { pod, mut object, warnings } = new;
    let metadata = &mut object["metadata"];
    metadata["uid"] = (*old.pod.uid.0).into();
    metadata["generation"] = generation.into();
    match before["metadata"].get("creationTimestamp") {
        Some(created) => metadata["creationTimestamp"] = created.clone(),
        None => drop(metadata.as_object_mut().map(|metadata| metadata.remove("creationTimestamp"))),
    }
    // The rest of the pod was validated already.
    let pod = Rc::new(Pod { uid: old.pod.uid.clone(), generation, ..Rc::unwrap_or_clone(pod) });
    Manifest { pod, object, warnings }
}
