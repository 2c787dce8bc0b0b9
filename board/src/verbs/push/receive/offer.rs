//! The contents of a push, as the sender describes them.

use nodlet_core::sorted::SortedSet;
use nodlet_kube::manifest::Validation;
use nodlet_rootfs::parcel::{self, DocumentTexts, WantedImage};
use nodlet_rootfs::{Digest, Platform};
use serde_json::{Value, json};

use super::end::End;
use super::manifest::Manifest;
use super::missing::Missing;
use super::redo;
use crate::client::Client;
use crate::error::VerbError;
use crate::verbs::apply;
use crate::verbs::files::Object;
use crate::verbs::push::frames::invalid;

/// The most manifests of one push: the agent applies some ten a second, and no other push starts meanwhile.
const MANIFESTS_MAX: usize = 1000;

/// The contents of a push.
pub(super) struct Offer {
    pub(super) archives: Vec<Archive>,
    pub(super) manifests: Vec<Manifest>,
    pub(super) validation: Validation,
    pub(super) dry_run: bool,
    /// Whether the sender supports changed blocks.
    pub(super) blocks: bool,
}

/// An image archive of a push.
pub(super) struct Archive {
    pub(super) documents: DocumentTexts,
    pub(super) images: Vec<WantedImage>,
}

impl Offer {
    pub(super) fn of(message: &Value, platform: &Platform) -> Result<Offer, End> {
        let list = |name: &str| message[name].as_array().ok_or_else(|| invalid("an offer lacks a list"));
        let mut archives = Vec::new();
        for archive in list("archives")? {
            let documents = archive.as_object().ok_or_else(|| invalid("an archive without documents"))?;
            let mut texts = DocumentTexts::new();
            for (name, text) in documents {
                let name =
                    parcel::member_path(name).ok_or_else(|| invalid("a document has an invalid name"))?;
                let text = text.as_str().ok_or_else(|| invalid("a document that is not text"))?;
                texts.insert(name, text.as_bytes().to_vec());
            }
            let images = parcel::wanted(&texts, platform).map_err(|error| VerbError::chain(&error))?;
            archives.push(Archive { documents: texts, images });
        }
        let mut manifests = Vec::new();
        if list("manifests")?.len() > MANIFESTS_MAX {
            return Err(End::Refused(format!(
                "the push has {} manifests, more than the maximum of {MANIFESTS_MAX}: send them in parts",
                list("manifests")?.len()
            )));
        }
        for manifest in list("manifests")? {
            let text = |name: &str| {
                manifest[name]
                    .as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| invalid("a manifest without a place"))
            };
            if !manifest["object"].is_object() {
                return Err(invalid("a manifest without an object").into());
            }
            let mut object =
                Object { value: manifest["object"].clone(), place: text("place")?, warnings: Vec::new() };
            // The record has one object per manifest, and each is applied or rolled back separately.
            if object.value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) {
                return Err(invalid("expected an object, got a list").into());
            }
            redo::settle_name(&mut object.value)?;
            manifests.push(Manifest { namespace: text("namespace")?, object });
        }
        let validation = message["validation"].as_str().and_then(apply::validation_of).unwrap_or_default();
        let (dry_run, blocks) = (message["dryRun"] == true, message["blocks"] == true);
        Ok(Offer { archives, manifests, validation, dry_run, blocks })
    }

    /// The IDs of all images of the push, each with its names.
    pub(super) fn expected(&self) -> Vec<(Digest, Vec<String>)> {
        let images = self.archives.iter().flat_map(|archive| &archive.images);
        let named = |image: &WantedImage| {
            let id = image.id.to_string();
            (image.id, image.names.iter().filter(|name| **name != id).cloned().collect())
        };
        images.map(named).collect()
    }

    /// Lets the agent validate all manifests. Returns what it would do with them, or the errors of all.
    pub(super) fn judge(&self, client: &Client) -> Result<Vec<String>, End> {
        let (mut would, mut wrong) = (Vec::new(), Vec::new());
        for Manifest { namespace, object } in &self.manifests {
            match apply::send(client, object, namespace, self.validation, true) {
                Ok(applied) => would.push(applied.did),
                Err(failure) if failure.is_disconnected() => return Err(failure.into()),
                Err(failure) => wrong.push(format!("{}: {failure}", object.place)),
            }
        }
        if wrong.is_empty() { Ok(would) } else { Err(End::Refused(first(wrong))) }
    }

    /// The report of images and manifests. `new` has the indexes of archives with new images.
    pub(super) fn summary(
        &self,
        missing: &[Missing],
        manifests: Vec<String>,
        new: &SortedSet<usize>,
    ) -> Value {
        let mut images = Vec::new();
        let all = self
            .archives
            .iter()
            .enumerate()
            .flat_map(|(number, archive)| archive.images.iter().map(move |image| (number, image)));
        for (number, (archive, image)) in all.enumerate() {
            let its = |missing: &&Missing| missing.archive == archive && image.layers.contains(&missing.part);
            let members: Vec<&str> =
                missing.iter().filter(its).map(|missing| missing.part.member.as_str()).collect();
            images.push(json!({
                "names": image.names, "layers": image.layers.len(), "archive": archive, "sent": members,
                "new": new.contains(&number),
            }));
        }
        json!({"images": images, "manifests": manifests})
    }
}

/// Joins errors to a text that fits a message. Drops all but the first hundred.
pub(super) fn first(mut wrong: Vec<String>) -> String {
    const MOST: usize = 100;
    let more = wrong.len().saturating_sub(MOST);
    wrong.truncate(MOST);
    for why in &mut wrong {
        why.truncate(why.floor_char_boundary(4096));
    }
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    wrong.join("\n")
}
