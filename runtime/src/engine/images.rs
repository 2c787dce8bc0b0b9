//! The images on the board: publishes them, has unused ones removed (`images/collection.rs`), looks up those that a
//! change of a pod requires, and pulls missing ones (`images/pull.rs`).

pub(super) mod collection;
pub(super) mod pull;

use nodlet_core::pod::PodState;
use nodlet_host::error::chain;
use nodlet_rootfs::{Image, Reference, Store, StoreError};

use crate::api::{Accepted, Reply};
use nodlet_registry::{AwaitedImage, NodeImage, node_images};

use super::Engine;
use super::flash::Flash;
use super::message::{ImageCheck, ImageNews, Message};
pub use collection::{ImageCollection, ImageLimitError, image_store_limit};
pub use pull::{CHECK_REGISTRY, PULL};

impl Engine {
    /// Publishes the images in the status of the Node, on a board that has joined a cluster: only schedulers use them.
    pub(super) fn list_images(&self) {
        if !self.cluster.is_followed() {
            return;
        }
        let store = self.shell.stores.images.clone();
        let listed = self.shell.stores.storage.run(move || store.images());
        self.shell.tasks.then(listed, |listed| Message::Images(ImageNews::Listed(listed)));
    }

    /// Continues with what a task has reported of the images.
    pub(super) fn image_news(&mut self, news: ImageNews) {
        match news {
            ImageNews::Listed(Ok(images)) => {
                let of = |image: Image| NodeImage {
                    id: image.id.hex(),
                    names: image.repo_digests.into_iter().chain(image.names).collect(),
                    size: image.size,
                };
                let images = node_images(images.into_iter().map(of).collect());
                if *self.shell.machine.images.borrow() != images {
                    self.shell.machine.images.replace(images);
                    self.publish_node();
                }
            }
            ImageNews::Listed(Err(error)) => log::error!("failed to list images: {}", chain(&error)),
            ImageNews::Checked(check) => self.images_checked(check),
            ImageNews::Due => self.collect_images(),
        }
    }

    /// Continues when unused images were looked for.
    pub(super) fn images_checked(&mut self, check: Result<ImageCheck, StoreError>) {
        if self.image_use.end_check(&self.shell.tasks, check) {
            self.collect_images();
        }
    }

    /// Records which images are in use, and removes some if the thresholds require that.
    pub(super) fn collect_images(&mut self) {
        if self.shell.config.down {
            return;
        }
        let pods = self.node.pods().map(PodState::pod).map(|pod| &**pod);
        let pods = pods.chain(self.registry.held_updates.pods());
        let parts = (&*self.shell.tasks, &*self.shell.stores, &self.shell.paths);
        self.image_use.check(self.shell.config.image_collection, parts, || {
            let mut names = Vec::new();
            for pod in pods {
                let of_containers = pod.spec.all_containers().map(|container| &*container.image);
                for image in of_containers.chain(pod.spec.image_volumes().map(|(_, image, _)| image)) {
                    if !names.iter().any(|known| known == image) {
                        names.push(image.to_owned());
                    }
                }
            }
            names
        });
    }

    /// Answers a client that changes a pod, with a warning for each of the images that is not on the board.
    pub(super) fn answer_with_images(
        &self,
        mut accepted: Accepted,
        awaited: Vec<AwaitedImage>,
        reply: Reply<Accepted>,
    ) {
        if awaited.is_empty() {
            return drop(reply.try_send(Ok(accepted)));
        }
        let images = awaited.iter().map(|awaited| awaited.image.clone()).collect();
        let present = are_present(&self.shell.stores, images);
        self.shell.tasks.spawn(async move {
            let missing = awaited.iter().zip(present.await).filter(|(_, present)| !present);
            accepted.warnings.extend(missing.map(|(awaited, _)| awaited.warning()));
            let _ = reply.try_send(Ok(accepted));
        });
    }
}

/// Looks up whether each of `images` is on the board.
pub(super) fn are_present(stores: &Flash, images: Vec<String>) -> impl Future<Output = Vec<bool>> + 'static {
    let store = stores.images.clone();
    stores.storage.run(move || images.iter().map(|image| is_present(&store, image)).collect())
}

/// Whether the image is completely on the board.
fn is_present(store: &Store, image: &str) -> bool {
    Reference::parse(image).is_ok_and(|name| matches!(store.find(&name), Ok(Some(_))))
}
