//! Which PersistentVolumeClaim is bound to which PersistentVolume: the decisions of Kubernetes' PV controller, for volumes
//! that exist already.
//!
//! A binding is recorded, and lasts until claim or volume is gone: a better volume that appears later changes nothing.
//! The record is durable before a pod uses the volume (`engine/claims.rs` saves it), so that the next agent binds no claim
//! to another volume. A volume whose claim is gone is `Released`, and no claim gets it before its `claimRef` is removed or
//! it is created anew: it may have data. `volumes_in_use.rs` decides which pods may use a volume at a time.
//!
//! ```text
//!             claim appears            claim is gone
//!  Available ───────────────► Bound ──────────────────► Released ─► claimRef removed ─► Available
//! ```
//!
//! With the reclaim policy `Delete`, a released volume is `Failed`: nothing deletes it.

use std::rc::Rc;

use nodlet_core::sorted::{SortedMap, SortedSet};
use serde_json::{Value, json};

use super::live_objects::{DefinitionName, key};
use super::{Registry, Wanted};
use nodlet_core::spec::volume::{ClaimedVolume, HostPathType};
use nodlet_core::spec::{Pod, Quantity};
use nodlet_kube::kinds::{Kind, limit_range, persistent_volume, persistent_volume_claim, selects};
use nodlet_kube::manifest::TextError;

/// The bindings of all claims.
#[derive(Debug, Default)]
pub(super) struct Claims {
    bindings: Vec<Binding>,
    /// Why the saved bindings are unknown.
    damage: Option<String>,
    /// Whether the bindings have changed since [`Registry::unsaved_bindings`].
    is_unsaved: bool,
    /// Why a claim is not bound.
    unbound: SortedMap<(Rc<str>, Rc<str>), String>,
    /// The published objects of this module.
    published: SortedSet<DefinitionName>,
    /// Claims of `ephemeral` volumes, as they were published.
    ephemeral: SortedMap<(Rc<str>, Rc<str>), Value>,
}

/// A claim and its volume.
#[derive(Clone, Debug, PartialEq)]
struct Binding {
    volume: Rc<str>,
    namespace: Rc<str>,
    claim: Rc<str>,
    /// The UID of the claim when it was bound, for `claimRef`.
    uid: String,
    /// The claim is gone.
    is_released: bool,
    /// The claim was seen by this agent. If not, its file may not have been read yet.
    is_seen: bool,
}

impl Binding {
    fn is_of(&self, claim: &Claim) -> bool {
        !self.is_released && self.namespace == claim.namespace && self.claim == claim.name
    }
}

struct Claim {
    namespace: Rc<str>,
    name: Rc<str>,
    object: Value,
}

impl Claim {
    fn key(&self) -> (Rc<str>, Rc<str>) {
        (self.namespace.clone(), self.name.clone())
    }
}

struct Volume {
    name: Rc<str>,
    object: Value,
}

impl Registry {
    /// Restores the bindings that an earlier agent saved.
    ///
    /// # Errors
    /// The saved claims could not be read, with this message, or are damaged. Then no claim is bound: it might get another volume than
    /// before.
    pub fn restore_bindings(&mut self, read: Result<&[u8], &str>) -> Result<(), TextError> {
        let saved = read.map_err(|message| TextError::from(message.to_owned())).and_then(|bytes| {
            let saved: Value =
                serde_json::from_slice(bytes).map_err(|error| TextError::new(error.to_string(), error))?;
            match saved {
                Value::Array(saved) => Ok(saved),
                _ => Err("it is not a list".to_owned().into()),
            }
        });
        let saved = saved.and_then(|saved| check_bindings(&saved).map(|()| saved).map_err(TextError::from));
        let saved = saved.inspect_err(|error| self.claims.damage = Some(error.to_string()))?;
        let binding = |saved: &Value| Binding {
            volume: text(&saved["volume"]).into(),
            namespace: text(&saved["namespace"]).into(),
            claim: text(&saved["claim"]).into(),
            uid: text(&saved["uid"]).to_owned(),
            is_released: saved["released"] == true,
            is_seen: false,
        };
        self.claims.bindings = saved.iter().map(binding).collect();
        Ok(())
    }

    /// The bindings as bytes for [`Registry::restore_bindings`], if they have changed since the last call.
    pub fn unsaved_bindings(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.claims.is_unsaved) {
            return None;
        }
        let binding = |binding: &Binding| {
            json!({
                "volume": &*binding.volume, "namespace": &*binding.namespace, "claim": &*binding.claim,
                "uid": binding.uid, "released": binding.is_released,
            })
        };
        let all: Value = self.claims.bindings.iter().map(binding).collect();
        Some(all.to_string().into_bytes())
    }

    /// Binds claims to volumes, and publishes both. Returns the claims that have changed. `labels` are those of the node.
    pub fn bind_claims(&mut self, now: &str, labels: &SortedMap<String, String>) -> Vec<DefinitionName> {
        let claims = self.claims_to_bind(now);
        let of_kind = |kind| self.definitions.iter().filter(move |(name, _)| name.0 == kind);
        let volumes = of_kind(Kind::PersistentVolume).map(|((.., name), (definition, _))| Volume {
            name: name.clone(),
            object: self.with_creation(definition, now),
        });
        let volumes: Vec<Volume> = volumes.collect();
        if volumes.is_empty() && claims.is_empty() && self.claims.bindings.is_empty() {
            return self.publish_claims(Vec::new());
        }
        self.review(&volumes, &claims);
        self.claims.unbound.clear();
        // A claim that names its volume comes first.
        let (named, others): (Vec<_>, Vec<_>) =
            claims.iter().partition(|claim| !text(&claim.object["spec"]["volumeName"]).is_empty());
        for claim in named.into_iter().chain(others) {
            if self.claims.bindings.iter().any(|binding| binding.is_of(claim)) {
                continue;
            }
            let found = match (&self.claims.damage, self.check_claim(&claim.namespace, &claim.object)) {
                (Some(damage), _) => Err(format!("failed to read which claims were bound: {damage}")),
                (None, Err(why)) => {
                    Err(format!("persistentvolumeclaims \"{}\" is forbidden: {why}", claim.name))
                }
                (None, Ok(())) => find(claim, &volumes, &self.claims.bindings, &self.node, labels),
            };
            match found {
                Ok(volume) => {
                    self.claims.bindings.push(Binding {
                        volume: volume.name.clone(),
                        namespace: claim.namespace.clone(),
                        claim: claim.name.clone(),
                        uid: text(&claim.object["metadata"]["uid"]).to_owned(),
                        is_released: false,
                        is_seen: true,
                    });
                    self.claims.is_unsaved = true;
                }
                Err(why) => drop(self.claims.unbound.insert(claim.key(), why)),
            }
        }
        let claims: Vec<(DefinitionName, Value)> = claims
            .into_iter()
            .map(|claim| {
                let name = (Kind::PersistentVolumeClaim, claim.namespace.clone(), claim.name.clone());
                (name, self.shown_claim(claim, &volumes))
            })
            .collect();
        let volumes: Vec<(DefinitionName, Value)> = volumes
            .into_iter()
            .map(|volume| {
                let name = (Kind::PersistentVolume, Rc::from(""), volume.name.clone());
                (name, self.shown_volume(volume, &claims))
            })
            .collect();
        self.publish_claims(volumes.into_iter().chain(claims).collect())
    }

    /// All claims: those of the sources, and those that pods make for their `ephemeral` volumes.
    fn claims_to_bind(&mut self, now: &str) -> Vec<Claim> {
        let mut claims = Vec::new();
        for ((kind, namespace, name), (definition, _)) in &self.definitions {
            if *kind == Kind::PersistentVolumeClaim {
                let object = self.with_creation(definition, now);
                claims.push(Claim { namespace: namespace.clone(), name: name.clone(), object });
            }
        }
        let mut ephemeral = SortedMap::new();
        for wanted in self.desired.values() {
            for (volume, claim, _) in wanted.pod.claims().filter(|(.., is_ephemeral)| *is_ephemeral) {
                let (namespace, name) = (wanted.pod.namespace.clone(), Rc::from(claim));
                let exists = self.definitions.contains_key(&(
                    Kind::PersistentVolumeClaim,
                    namespace.clone(),
                    Rc::clone(&name),
                ));
                if exists {
                    continue;
                }
                let known = self.claims.ephemeral.get(&(namespace.clone(), name.clone()));
                let known = known.filter(|known| is_made_for(known, &wanted.pod));
                let object = known.cloned().unwrap_or_else(|| made_for(wanted, volume, &name, now));
                ephemeral.insert((namespace.clone(), name.clone()), object.clone());
                claims.push(Claim { namespace, name, object });
            }
        }
        self.claims.ephemeral = ephemeral;
        claims
    }

    /// Checks a new claim against the LimitRanges of its namespace.
    ///
    /// # Errors
    /// The message of Kubernetes' admission.
    pub(super) fn check_claim(&self, namespace: &str, claim: &Value) -> Result<(), String> {
        let ranges =
            self.definitions.iter().filter(|(name, _)| name.0 == Kind::LimitRange && *name.1 == *namespace);
        let ranges: Vec<Value> = ranges.map(|(_, (range, _))| range.object()).collect();
        limit_range::check_claim(claim, &ranges)
    }

    /// Releases volumes whose claims are gone, and forgets bindings of which nothing exists any more.
    fn review(&mut self, volumes: &[Volume], claims: &[Claim]) {
        let mut bindings = std::mem::take(&mut self.claims.bindings);
        let before = bindings.clone();
        let is_missing = |binding: &Binding| {
            !claims.iter().any(|claim| binding.is_of(claim))
                || !volumes.iter().any(|volume| volume.name == binding.volume)
        };
        // An unread file may define what is missing.
        let all_read = bindings.iter().any(is_missing) && self.all_read();
        bindings.retain_mut(|binding| {
            let exists = claims.iter().any(|claim| binding.is_of(claim));
            binding.is_seen |= exists;
            binding.is_released |= !exists && (binding.is_seen || all_read);
            let volume = volumes.iter().find(|volume| volume.name == binding.volume);
            !binding.is_released || volume.is_some() || !(all_read || binding.is_seen)
        });
        let saved = |bindings: &[Binding]| {
            let part = |one: &Binding| (one.volume.clone(), one.claim.clone(), one.is_released);
            bindings.iter().map(part).collect::<Vec<_>>()
        };
        self.claims.is_unsaved |= saved(&bindings) != saved(&before);
        self.claims.bindings = bindings;
    }

    /// A claim with its volume and its status.
    fn shown_claim(&self, claim: Claim, volumes: &[Volume]) -> Value {
        let binding = self.claims.bindings.iter().find(|binding| binding.is_of(&claim));
        let mut object = claim.object;
        let Some(binding) = binding else {
            object["status"] = json!({"phase": "Pending"});
            return object;
        };
        object["spec"]["volumeName"] = (*binding.volume).into();
        object["status"] = match volumes.iter().find(|volume| volume.name == binding.volume) {
            None => json!({"phase": "Lost"}),
            Some(volume) => {
                let spec = &volume.object["spec"];
                json!({
                    "phase": "Bound", "accessModes": spec["accessModes"],
                    "capacity": {"storage": spec["capacity"]["storage"]},
                })
            }
        };
        object
    }

    /// A volume with its claim and its status.
    fn shown_volume(&self, volume: Volume, claims: &[(DefinitionName, Value)]) -> Value {
        let binding = self.claims.bindings.iter().find(|binding| binding.volume == volume.name);
        let mut object = volume.object;
        let phase = match binding {
            Some(binding) => {
                let reference = &mut object["spec"]["claimRef"];
                if !reference.is_object() {
                    *reference = json!({});
                }
                reference["apiVersion"] = "v1".into();
                reference["kind"] = "PersistentVolumeClaim".into();
                reference["namespace"] = (*binding.namespace).into();
                reference["name"] = (*binding.claim).into();
                reference["uid"] = binding.uid.as_str().into();
                if binding.is_released { "Released" } else { "Bound" }
            }
            None => match text(&object["spec"]["claimRef"]["uid"]) {
                "" => "Available",
                uid if claims.iter().any(|(_, claim)| claim["metadata"]["uid"] == uid) => "Available",
                _ => "Released",
            },
        };
        object["status"] = json!({"phase": phase});
        if phase == "Released"
            && let Some(why) = persistent_volume::delete_failure(&object)
        {
            object["status"] = json!({"phase": "Failed", "message": why});
        }
        object
    }

    /// Publishes these objects, and withdraws those that were published before and are none of them. Returns the claims
    /// that have changed, with those of volumes that have changed.
    fn publish_claims(&mut self, objects: Vec<(DefinitionName, Value)>) -> Vec<DefinitionName> {
        let mut changed = Vec::new();
        let names = objects.iter().map(|(name, _)| name.clone()).collect();
        let before = std::mem::replace(&mut self.claims.published, names);
        for name in before.into_iter().filter(|name| !self.claims.published.contains(name)) {
            self.objects.delete(&key(&name));
            changed.push(name);
        }
        for (name, object) in objects {
            let version = self.objects.version();
            if self.objects.put(key(&name), object).version > version {
                changed.push(name);
            }
        }
        for name in changed.iter_mut().filter(|name| name.0 == Kind::PersistentVolume) {
            if let Some(binding) = self.claims.bindings.iter().find(|binding| binding.volume == name.2) {
                *name = (Kind::PersistentVolumeClaim, binding.namespace.clone(), binding.claim.clone());
            }
        }
        changed
    }

    /// Records that a client removes `claimRef` of a volume. A volume that is still claimed keeps its claim.
    pub(super) fn unclaim(&mut self, volume: &str) {
        let before = self.claims.bindings.len();
        self.claims.bindings.retain(|binding| *binding.volume != *volume || !binding.is_released);
        self.claims.is_unsaved |= self.claims.bindings.len() < before;
    }

    /// The volumes behind the claims of a pod.
    ///
    /// # Errors
    /// A claim is missing or not bound, or the node cannot have its volume: the name of the pod's volume, and a text of
    /// Kubernetes' scheduler.
    pub(super) fn claimed_volumes(
        &self,
        pod: &Pod,
        labels: &SortedMap<String, String>,
    ) -> Result<Vec<ClaimedVolume>, (String, String)> {
        let claims = pod.claims().map(|(volume, claim, is_ephemeral)| {
            let found = self.claimed_volume(pod, (volume, &claim, is_ephemeral), labels);
            found.map_err(|why| (volume.to_owned(), why))
        });
        claims.collect()
    }

    fn claimed_volume(
        &self,
        pod: &Pod,
        (volume, claim, is_ephemeral): (&str, &str, bool),
        labels: &SortedMap<String, String>,
    ) -> Result<ClaimedVolume, String> {
        let name = (Kind::PersistentVolumeClaim, pod.namespace.clone(), Rc::from(claim));
        let published =
            self.claims.published.contains(&name).then(|| self.published_definition(&name)).flatten();
        let found = published.ok_or_else(|| {
            if is_ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim {claim:?}"
                )
            } else {
                format!("persistentvolumeclaim {claim:?} not found")
            }
        })?;
        if is_ephemeral && !is_made_for(&found, pod) {
            return Err(format!(
                "PVC {}/{claim} was not created for pod {}/{} (pod is not owner)",
                pod.namespace, pod.namespace, pod.name
            ));
        }
        let bound_to = text(&found["spec"]["volumeName"]);
        let why = self.claims.unbound.get(&(pod.namespace.clone(), Rc::from(claim)));
        match text(&found["status"]["phase"]) {
            "Bound" => {}
            "Lost" => {
                return Err(format!(
                    "persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {bound_to:?}"
                ));
            }
            _ => {
                let why = why.map_or("", String::as_str);
                return Err(format!(
                    "pod has unbound immediate PersistentVolumeClaims: {}/{claim}: {why}",
                    pod.namespace
                ));
            }
        }
        let bound = (Kind::PersistentVolume, Rc::from(""), Rc::from(bound_to));
        let bound = self.published_definition(&bound).unwrap_or_default();
        if !persistent_volume::placement(&bound).matches(&self.node, labels) {
            return Err("node(s) had volume node affinity conflict".to_owned());
        }
        let spec = &bound["spec"];
        let is_block = text(&spec["volumeMode"]) == "Block";
        if is_block && spec["hostPath"].is_object() {
            return Err(format!(
                "MapVolume.FindMapperPluginBySpec failed to find BlockVolumeMapper plugin: hostPath of persistentvolume \
                 {bound_to:?} cannot have volumeMode Block; use local"
            ));
        }
        let source = if spec["local"].is_object() { &spec["local"] } else { &spec["hostPath"] };
        Ok(ClaimedVolume {
            volume: volume.to_owned(),
            claim: claim.to_owned(),
            persistent_volume: bound_to.to_owned(),
            path: text(&source["path"]).to_owned(),
            host_path: spec["hostPath"].is_object().then(|| HostPathType::named(text(&source["type"]))),
            is_exclusive: has_mode(&found["spec"], persistent_volume_claim::EXCLUSIVE),
            is_block,
            device: None,
        })
    }
}

/// Checks that saved bindings are complete, and that each volume and each claim has one at most.
fn check_bindings(saved: &[Value]) -> Result<(), String> {
    let mut volumes = nodlet_core::sorted::SortedSet::new();
    let mut claims = nodlet_core::sorted::SortedSet::new();
    for (index, binding) in saved.iter().enumerate() {
        let field = |name: &str| {
            let value = binding[name].as_str().filter(|value| !value.is_empty());
            value.ok_or_else(|| format!("binding {index} has no {name}"))
        };
        let (volume, claim) = (field("volume")?, (field("namespace")?, field("claim")?));
        if !volumes.insert(volume) {
            return Err(format!("the volume {volume} is bound twice"));
        }
        if binding["released"] != true && !claims.insert(claim) {
            return Err(format!("the claim {}/{} is bound twice", claim.0, claim.1));
        }
    }
    Ok(())
}

/// Finds the volume for a claim (`syncUnboundClaim`, `FindMatchingVolume`), or returns why there is none.
fn find<'a>(
    claim: &Claim,
    volumes: &'a [Volume],
    bindings: &[Binding],
    node: &str,
    labels: &SortedMap<String, String>,
) -> Result<&'a Volume, String> {
    let spec = &claim.object["spec"];
    let is_bound = |volume: &Volume| bindings.iter().any(|binding| binding.volume == volume.name);
    if let name @ [_, ..] = text(&spec["volumeName"]).as_bytes() {
        let Some(volume) = volumes.iter().find(|volume| volume.name.as_bytes() == name) else {
            return Err(format!("volume {:?} not found", text(&spec["volumeName"])));
        };
        let taken = || format!("volume {:?} already bound to a different claim.", &*volume.name);
        return match refers_to(volume, claim) {
            _ if is_bound(volume) => Err(taken()),
            Some(true) => Ok(volume),
            Some(false) => Err(taken()),
            None => unfit(claim, volume).map_or(Ok(volume), |why| {
                Err(format!("Cannot bind to requested volume {:?}: {why}", &*volume.name))
            }),
        };
    }
    let free = volumes.iter().filter(|volume| !is_bound(volume));
    let mut best: Option<(usize, Quantity, &Volume)> = None;
    for volume in free {
        let requested_of = refers_to(volume, claim);
        if requested_of == Some(false) || unfit(claim, volume).is_some() {
            continue;
        }
        if requested_of == Some(true) {
            return Ok(volume);
        }
        let is_selected = selects(&spec["selector"], &volume.object["metadata"]["labels"]);
        if !is_selected || !persistent_volume::placement(&volume.object).matches(node, labels) {
            continue;
        }
        // Fewer access modes come before less capacity: nothing more is given away than has to be.
        let modes = volume.object["spec"]["accessModes"].as_array().map_or(0, Vec::len);
        let capacity = capacity(volume);
        let is_better = best
            .as_ref()
            .is_none_or(|(of_best, least, _)| modes < *of_best || modes == *of_best && capacity < *least);
        if is_better {
            best = Some((modes, capacity, volume));
        }
    }
    best.map(|(.., volume)| volume).ok_or_else(|| match text(&spec["storageClassName"]) {
        "" => "no persistent volumes available for this claim and no storage class is set".to_owned(),
        class => format!("no persistent volume of the storage class {class:?} is available for this claim"),
    })
}

/// Why a volume does not satisfy a claim (`checkVolumeSatisfyClaim`).
fn unfit(claim: &Claim, volume: &Volume) -> Option<&'static str> {
    let (wanted, offered) = (&claim.object["spec"], &volume.object["spec"]);
    let requested = quantity(&wanted["resources"]["requests"]["storage"]);
    let modes = wanted["accessModes"].as_array().into_iter().flatten();
    if capacity(volume) < requested {
        Some("requested PV is too small")
    } else if text(&wanted["storageClassName"]) != text(&offered["storageClassName"]) {
        Some("storageClassName does not match")
    } else if wanted["volumeMode"] != offered["volumeMode"] {
        Some("incompatible volumeMode")
    } else if !modes.filter_map(Value::as_str).all(|mode| has_mode(offered, mode)) {
        Some("incompatible accessMode")
    } else {
        None
    }
}

/// Whether `claimRef` of a volume names the claim; `None` if there is no `claimRef` (`IsVolumeBoundToClaim`).
fn refers_to(volume: &Volume, claim: &Claim) -> Option<bool> {
    let reference = &volume.object["spec"]["claimRef"];
    let uid = text(&reference["uid"]);
    reference.is_object().then(|| {
        text(&reference["namespace"]) == &*claim.namespace
            && text(&reference["name"]) == &*claim.name
            && (uid.is_empty() || claim.object["metadata"]["uid"] == uid)
    })
}

/// The claim for an `ephemeral` volume, as the ephemeral volume controller makes it.
fn made_for(wanted: &Wanted, volume: &str, name: &str, now: &str) -> Value {
    let pod = &wanted.pod;
    let object: Value = serde_json::from_str(wanted.object.get()).unwrap_or_default();
    let volumes = object["spec"]["volumes"].as_array().into_iter().flatten();
    let template = volumes.into_iter().find(|one| one["name"] == volume).unwrap_or(&Value::Null);
    let template = &template["ephemeral"]["volumeClaimTemplate"];
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": &*pod.namespace,
            "uid": format!("{}-{volume}", pod.uid),
            "creationTimestamp": now,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": &*pod.name, "uid": &*pod.uid.0,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    });
    for field in ["labels", "annotations"] {
        if template["metadata"][field].is_object() {
            claim["metadata"][field] = template["metadata"][field].clone();
        }
    }
    claim
}

/// `VolumeIsForPod`
fn is_made_for(claim: &Value, pod: &Pod) -> bool {
    claim["metadata"]["ownerReferences"][0]["uid"] == *pod.uid.0
}

fn has_mode(spec: &Value, mode: &str) -> bool {
    spec["accessModes"].as_array().into_iter().flatten().any(|offered| offered == mode)
}

fn capacity(volume: &Volume) -> Quantity {
    quantity(&volume.object["spec"]["capacity"]["storage"])
}

fn quantity(amount: &Value) -> Quantity {
    Quantity::parse(text(amount)).unwrap_or_else(|_| Quantity::from_milli(0))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
