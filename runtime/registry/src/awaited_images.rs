//! Images of which a client that changes a pod is warned if they are not on the board.

use crate::held_updates::{HeldUpdates, NodePods};
use nodlet_core::pod::PodState;
use nodlet_core::spec::{Pod, Role};

/// An image that a change of a running pod waits for if it is not on the board.
#[derive(Debug, PartialEq, Eq)]
pub struct AwaitedImage {
    /// The name of the image.
    pub image: String,
    user: String,
    /// Describes what runs until the image is loaded.
    instead: String,
}

impl AwaitedImage {
    /// The warning that the image is not on the board.
    pub fn warning(&self) -> String {
        let AwaitedImage { image, user, instead } = self;
        format!(
            "image \"{image}\" of {user} is not on this node: {instead} runs on until it is loaded \
             with 'nodlet image load FILE'"
        )
    }
}

impl HeldUpdates {
    /// The images that a change to `new` waits for if they are not on the board. `published` is the pod that is
    /// published under its name: all images of `new` if the change ends that pod, and those that differ from the
    /// running ones if it is a change in place.
    pub fn awaited_images(
        &self,
        new: &Pod,
        published: Option<&PodState>,
        pods: &dyn NodePods,
    ) -> Vec<AwaitedImage> {
        let Some(state) = published.filter(|state| state.is_active() && !state.is_unwanted()) else {
            return Vec::new();
        };
        if self.replaces(state.pod(), new, pods) {
            let all = new.spec.init_containers.iter().chain(&new.spec.containers);
            let awaited = all.map(|container| AwaitedImage {
                image: container.image.clone(),
                user: format!("container {}", container.name),
                instead: "the pod as it is".to_owned(),
            });
            let of_volumes = new.spec.image_volumes().map(|(volume, image, _)| AwaitedImage {
                image: image.to_owned(),
                user: format!("volume {volume}"),
                instead: "the pod as it is".to_owned(),
            });
            return awaited.chain(of_volumes).collect();
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
            (may_end && differs).then(|| AwaitedImage {
                image: container.image.clone(),
                user: format!("container {}", container.name),
                instead: format!("image \"{}\"", started.spec_image),
            })
        });
        awaited.collect()
    }
}
