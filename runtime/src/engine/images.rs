//! Looks up the images that a change of a pod requires, and warns the client of those that are not on the board.

use nodlet_rootfs::{Reference, Store};

use crate::api::{Accepted, Reply};
use nodlet_core::spec::{Pod, Role};

use super::Engine;
use super::stores::Stores;

/// An image that a running container waits for if it is not on the board.
#[derive(Debug)]
pub(super) struct Awaited {
    container: String,
    image: String,
    /// Describes, for the warning, what runs until the image is loaded.
    instead: String,
}

impl Engine {
    /// The images of `new` that differ from those that the pod of its name runs.
    pub(super) fn awaited_images(&self, new: &Pod) -> Vec<Awaited> {
        let shown = self.shown(&new.namespace, &new.name);
        let Some(state) = shown.and_then(|index| self.node.pod(index)) else { return Vec::new() };
        if !state.is_active() || state.is_unwanted() {
            return Vec::new();
        }
        if self.replaces(state.pod(), new) {
            let all = new.spec.init_containers.iter().chain(&new.spec.containers);
            let awaited = all.map(|container| Awaited {
                container: container.name.clone(),
                image: container.image.clone(),
                instead: "the pod as it is".to_owned(),
            });
            return awaited.collect();
        }
        if new.uid != state.pod().uid {
            return Vec::new();
        }
        let indexes = new.spec.init_indexes().chain(new.spec.regular_indexes());
        let awaited = indexes.filter_map(|index| {
            let (_, started) = state.running(index)?;
            let container = new.spec.container(index);
            let may_end = new.spec.role(index) != Role::Init;
            let differs = *started.spec_image != *container.image && !started.spec_image.is_empty();
            (may_end && differs).then(|| Awaited {
                container: container.name.clone(),
                image: container.image.clone(),
                instead: format!("image \"{}\"", started.spec_image),
            })
        });
        awaited.collect()
    }

    /// Answers a client that changes a pod, with a warning for each of the images that is not on the board.
    pub(super) fn answer_with_images(
        &self,
        mut accepted: Accepted,
        awaited: Vec<Awaited>,
        reply: Reply<Accepted>,
    ) {
        if awaited.is_empty() {
            return drop(reply.try_send(Ok(accepted)));
        }
        let images = awaited.iter().map(|awaited| awaited.image.clone()).collect();
        self.shell.tasks.then(are_present(&self.shell.stores, images), move |_, present| {
            let missing = awaited.iter().zip(present).filter(|(_, present)| !present);
            accepted.warnings.extend(missing.map(|(awaited, _)| {
                let Awaited { container, image, instead } = awaited;
                format!(
                    "image \"{image}\" of container {container} is not on this node: {instead} runs on until it is \
                     loaded with 'nodlet image load FILE'"
                )
            }));
            let _ = reply.try_send(Ok(accepted));
        });
    }
}

/// Looks up whether each of `images` is on the board.
pub(super) fn are_present(stores: &Stores, images: Vec<String>) -> impl Future<Output = Vec<bool>> + 'static {
    let store = stores.images.clone();
    stores.storage.run(move || images.iter().map(|image| is_present(&store, image)).collect())
}

/// Whether the image is completely on the board.
fn is_present(store: &Store, image: &str) -> bool {
    Reference::parse(image).is_ok_and(|name| matches!(store.find(&name), Ok(Some(_))))
}
