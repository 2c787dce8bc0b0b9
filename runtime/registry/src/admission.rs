//! Admission of pods: what a written pod becomes, once. Its presets, its priority and its identity
//! are kept with it from then on, so that neither a later definition nor a later agent changes it.
//!
//! [`admit`] is called once for each pod that a source wants, and once more where the pod has
//! ephemeral containers, which no source has. [`as_update_of`] is called for each object that a
//! client sends in the place of another. Neither parses or validates anew what needs no presets
//! and has no ephemeral containers.

use std::rc::Rc;

use serde_json::Value;

use super::request::refused;
use super::{DefinitionsByName, Status, Wanted, definitions, ephemeral};
use crate::objects::Objects;
use nodlet_core::facts::{Event, Record};
use nodlet_core::spec::Pod;
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::update::{self, Update};
use nodlet_kube::manifest::{self, Applied, Classes, Definition, Manifest, Priority};

/// Bytes that presets may add to the object of a pod: what is added is kept for each pod and each of its
/// containers, and a preset is written once for all of them.
const MAX_PRESET_BYTES: usize = 64 * 1024;

/// The reason of the event about presets which contradict a pod, or each other.
const CONFLICT: &str = "PodPresetConflict";

/// The definitions that pods are admitted by.
#[derive(Debug)]
pub struct Policy {
    /// All PodPresets, with their `resourceVersion`.
    presets: Vec<(Rc<Definition>, u64)>,
    classes: Classes,
    node: String,
}

/// What a pod is admitted on the base of.
#[derive(Clone, Debug)]
pub enum Base {
    /// Nothing: it was never admitted before. It gets all presets that match it.
    New,
    /// The pod was admitted before, and keeps what it was admitted with.
    Before {
        /// Its presets.
        presets: Vec<Applied>,
        /// Its priority, as long as it asks for the same class.
        priority: Option<Priority>,
    },
    /// `spec.ephemeralContainers`, which are added to a pod that is admitted already.
    Ephemeral(Value),
}

impl Base {
    /// The base of a pod of a source. `known` is the pod of this UID that the core has. `recorded` reads with what the
    /// pod was admitted according to its record on flash: `Err` if there is a record that cannot be read.
    pub fn of(
        new: &Wanted,
        known: Option<&Wanted>,
        recorded: impl FnOnce() -> Result<Option<(Vec<Applied>, Option<Priority>)>, ()>,
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

/// A pod as it was admitted.
#[derive(Debug)]
pub struct Admitted {
    /// The pod.
    pub wanted: Rc<Wanted>,
    /// What it could not be admitted with.
    pub problem: Option<Problem>,
}

/// Why a pod is admitted without a part of what it was to have.
#[derive(Debug, PartialEq)]
pub enum Problem {
    /// Presets contradict it or each other: it has none of them. An event of the pod.
    Conflict(Event),
    /// Presets or ephemeral containers that the pod had before could not be added again. For the log.
    Lost(String),
}

impl Policy {
    /// Admission by `definitions`, as they are published among `objects`, on the node of this name.
    pub fn new(definitions: &DefinitionsByName, objects: &Objects, node: &str) -> Policy {
        let mut policy = Policy { presets: Vec::new(), classes: Classes::new(), node: node.to_owned() };
        for (name, (definition, _)) in definitions {
            // Of no other kind does anything count for admission.
            if name.0 == Kind::PriorityClass {
                policy.classes.insert(name.2.clone(), manifest::class::class(&definition.object()));
            } else if name.0 == Kind::PodPreset {
                let version = objects.get(&definitions::key(name)).map_or(0, |shown| shown.version);
                policy.presets.push((definition.clone(), version));
            }
        }
        policy
    }

    /// The priority of a written pod. `before`: the priority that it was admitted with.
    ///
    /// # Errors
    /// In the words of Kubernetes' admission.
    pub fn priority(&self, pod: &Value, before: Option<Priority>) -> Result<Priority, String> {
        Priority::of(pod, &self.classes, before)
    }

    fn matching(&self, pod: &Value) -> Vec<Applied> {
        let matching = self.presets.iter().filter(|(preset, _)| preset.is_for(pod));
        matching.map(|(preset, version)| preset.applied(*version)).collect()
    }
}

/// Admits a pod on the base of what it was admitted with before.
///
/// # Errors
/// Why there is no priority for it.
pub fn admit(base: Base, new: &Rc<Wanted>, policy: &Policy) -> Result<Admitted, String> {
    let object: Value = serde_json::from_str(new.object.get()).map_err(|error| error.to_string())?;
    let (presets, before, is_new) = match base {
        Base::New => (policy.matching(&object), None, true),
        Base::Before { presets, priority } => (presets, priority, false),
        Base::Ephemeral(list) => {
            let object = ephemeral::put_list(object, list);
            return Ok(match manifest::admit_again(object, &policy.node) {
                Ok(manifest) => Admitted { wanted: Rc::new(new.changed(manifest)), problem: None },
                // What they refer to is no longer there, so this is another pod than they were given to.
                Err(error) => {
                    without_presets(new.clone(), format!("{error}; it is without ephemeral containers"))
                }
            });
        }
    };
    let priority = policy.priority(&object, before)?;
    let plain = Rc::new(new.with_priority(object, priority));
    if presets.is_empty() {
        return Ok(Admitted { wanted: plain, problem: None });
    }
    let names: Vec<&str> = presets.iter().map(|preset| preset.name.as_str()).collect();
    Ok(match inject(&plain, &presets, &policy.node) {
        Ok(manifest) => {
            Admitted { wanted: Rc::new(plain.with_presets(manifest, presets.into())), problem: None }
        }
        Err(error) if is_new => {
            let message = format!(
                "conflict occurred while applying podpresets: {} on pod: {} err: {error}",
                names.join(","),
                new.pod.name
            );
            let event = Event { warning: true, reason: CONFLICT, message: message.into(), container: None };
            Admitted { wanted: plain, problem: Some(Problem::Conflict(event)) }
        }
        Err(error) => without_presets(plain, format!("{error}; it goes on without")),
    })
}

fn without_presets(wanted: Rc<Wanted>, why: String) -> Admitted {
    let message = format!("{}/{}: {why}", wanted.pod.namespace, wanted.pod.name);
    Admitted { wanted, problem: Some(Problem::Lost(message)) }
}

/// `wanted` with `presets`.
fn inject(wanted: &Wanted, presets: &[Applied], node: &str) -> Result<Manifest, String> {
    let mut object = serde_json::from_str(wanted.object.get()).map_err(|error| error.to_string())?;
    manifest::inject(&mut object, presets)?;
    let manifest = manifest::admit_again(object, node).map_err(|error| error.to_string())?;
    let kept: usize = presets.iter().map(|preset| preset.spec.to_string().len()).sum();
    let added = manifest.object.to_string().len().saturating_sub(wanted.object.get().len());
    if added.max(kept) > MAX_PRESET_BYTES {
        return Err(format!("they add more than {} KiB to it", MAX_PRESET_BYTES / 1024));
    }
    Ok(manifest)
}

/// An object that takes the place of `old`: with its identity, if it may be the same pod. Only pods
/// that were applied keep it (`is_applied`): those of files have the identity of their file.
///
/// # Errors
/// It has scheduling gates that `old` has not.
pub(super) fn as_update_of(old: &Wanted, is_applied: bool, new: Manifest) -> Result<Manifest, Status> {
    let mut before: Value = serde_json::from_str(old.object.get()).map_err(Status::internal)?;
    old.remove_computed_priority(&mut before);
    update::no_new_gates(&before, &new.object).map_err(|error| refused(&error))?;
    // What comes from a file or a client knows nothing of presets; what was read from here, and
    // patched, has them. Either would be given those of `old`.
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
    let generation = old.pod.generation + u64::from(spec);
    let Manifest { pod, mut object, warnings } = new;
    let metadata = &mut object["metadata"];
    metadata["uid"] = (*old.pod.uid.0).into();
    metadata["generation"] = generation.into();
    match before["metadata"].get("creationTimestamp") {
        Some(created) => metadata["creationTimestamp"] = created.clone(),
        None => drop(metadata.as_object_mut().map(|metadata| metadata.remove("creationTimestamp"))),
    }
    // All else of it was validated as it came.
    let pod = Rc::new(Pod { uid: old.pod.uid.clone(), generation, ..Rc::unwrap_or_clone(pod) });
    Ok(Manifest { pod, object, warnings })
}
