//! Looks up the images that a change of a pod requires, and warns the client of those that are not on the board.

pub(super) mod collection;
pub(super) mod pull;

use nodlet_rootfs::{Reference, Store};

use crate::api::{Accepted, Reply};
use nodlet_registry::AwaitedImage;

use super::Engine;
use super::stores::Stores;
pub use collection::{ImageCollection, ImageLimitError, image_store_limit};
pub use pull::{LOOK, PULL};

impl Engine {
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
pub(super) fn are_present(stores: &Stores, images: Vec<String>) -> impl Future<Output = Vec<bool>> + 'static {
    let store = stores.images.clone();
    stores.storage.run(move || images.iter().map(|image| is_present(&store, image)).collect())
}

/// Whether the image is completely on the board.
fn is_present(store: &Store, image: &str) -> bool {
    Reference::parse(image).is_ok_and(|name| matches!(store.find(&name), Ok(Some(_))))
}
