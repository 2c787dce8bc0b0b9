//! Changes of a pod in place, and their effect on its containers.
//!
//! A container is identified by its name and its image. When the spec names another image than
//! the one a container runs, the core first asks whether that image is on the board:
//!
//! ```text
//!            plan              ImageChecked
//! Unknown ─────────► Checking ──────────────► Present   the run ends, the next one has the new image
//!    ▲                  │                        │
//!    │                  ├──────────────────► Missing    the run continues; the status says what is missing
//!    └──────────────────│───────────────────────┘  ▲
//!    ▲ images were added, or the spec names yet    │
//!    │ another image    │                          │
//!    │                  └─► ToPull ─────► Pulling ─┘    a registry may have the image
//!    └───────────────────────────────────────┘
//!                                ImagePulled
//! ```
//!
//! A missing image stays known, and published, while it is searched for again, by this agent or the next one,
//! until it is on the board or the spec names yet another image.
//!
//! A run that continues may end for another reason. The next run has the image of the spec if that is on the
//! board by then, and otherwise the image that ran before (`ContainerState::fallback`). This also holds after
//! a reboot: the record names that image.
//!
//! A run that ends because its image changed ends like any other; another run follows whatever
//! `restartPolicy` says. An init container finishes with the image that it began with, and one that has
//! succeeded does not run again. The handover and the record say that a run ends for its image, the former
//! before the run is asked to end, the latter before another image can be found missing.

use std::rc::Rc;
use std::time::Duration;

use crate::facts::{Action, Attempt, Draft, Events, MissingImage, StartFailure, StartFailureReason};
use crate::spec::{ContainerIndex, Pod, Role};
use crate::time::Instant;

use super::container::{ContainerState, reason_name};
use super::new_image::NewImage;
use super::start::{never_pulled, warn_of_image};
use super::{PodState, SYNC_RETRY};

/// The delay after which a registry is asked again for the new image of a container that runs another one.
const PULL_RETRY: Duration = Duration::from_secs(300);

impl PodState {
    /// Changes the pod in place. If its last scheduling gate was removed, the pod counts as accepted now.
    pub(super) fn update(&mut self, now: Instant, pod: Rc<Pod>) {
        if self.pod.is_gated() && !pod.is_gated() {
            self.acceptance.accept(now);
        }
        let before = std::mem::replace(&mut self.pod, pod);
        if (&before.labels, &before.annotations) != (&self.pod.labels, &self.pod.annotations) {
            self.volume_files.mark_outdated(&self.pod.spec);
            // A container may wait because of what an annotation requests.
            self.containers.objects_changed(now);
        }
        let image = |pod: &Pod, index: ContainerIndex| pod.spec.container(index).image.clone();
        let indexes = before.spec.init_indexes().chain(before.spec.regular_indexes());
        for index in indexes.filter(|index| image(&before, *index) != image(&self.pod, *index)) {
            // A rejected pod has no containers.
            if let Some(container) = self.containers.get_mut(index) {
                container.has_another_image(now);
            }
        }
        self.touch();
        self.settle(now);
    }

    /// Restarts the containers of the pod, or the one with this name, for a user. Init containers that have ended, and
    /// containers that are complete, stay as they are.
    pub(crate) fn restart(&mut self, name: Option<&str>) {
        if !self.may_run() {
            return;
        }
        for (index, container) in self.containers.indexed_mut() {
            let spec = self.pod.spec.container(index);
            let is_long_lived = matches!(container.role(), Role::Regular | Role::Sidecar);
            if is_long_lived && name.is_none_or(|name| *spec.name == *name) {
                container.restart();
            }
        }
        self.touch();
    }

    /// Plans to check whether the images are on the board that running containers wait for.
    pub(super) fn plan_image_checks(&mut self, now: Instant, draft: &mut Draft) {
        if !self.may_run() {
            return;
        }
        for (index, container) in self.containers.indexed_mut() {
            let is_due = match container.images.new_image() {
                NewImage::Unknown => true,
                NewImage::Missing { retry_at, .. } => retry_at.is_some_and(|at| at <= now),
                NewImage::Checking { .. } | NewImage::Present => false,
                NewImage::ToPull | NewImage::Pulling => false,
            };
            let is_due = is_due
                && !container.is_redefined()
                && container.is_outdated(&self.pod.spec.container(index).image);
            if is_due && draft.push(self.index, Action::CheckImage(container.attempt(index))) {
                container.images.begin_check();
            }
        }
    }

    /// Records whether the image of the spec is on the board, while another image runs.
    pub(super) fn image_checked(
        &mut self,
        now: Instant,
        attempt: Attempt,
        failure: Option<StartFailure>,
        events: &mut Events,
    ) {
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        let Some(failure) = container.images.checked(failure) else { return };
        self.new_image_missing(now, attempt, &failure, events);
    }

    /// Records why a running container cannot have the image of the spec.
    pub(super) fn new_image_missing(
        &mut self,
        now: Instant,
        attempt: Attempt,
        failure: &StartFailure,
        events: &mut Events,
    ) {
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        let spec = self.pod.spec.container(attempt.container);
        let retry_at = match failure.reason {
            StartFailureReason::ImageInspectError => Some(now + SYNC_RETRY),
            StartFailureReason::ImageToPull => Some(now + PULL_RETRY),
            StartFailureReason::InvalidImageName
            | StartFailureReason::ErrImageNeverPull
            | StartFailureReason::ErrImagePull
            | StartFailureReason::CreateContainerConfigError
            | StartFailureReason::ObjectNotFound
            | StartFailureReason::CreateContainerError
            | StartFailureReason::RunContainerError => None,
        };
        let message = match failure.reason {
            StartFailureReason::ErrImageNeverPull => never_pulled(&spec.image),
            _ => failure.message.clone(),
        };
        let why = (reason_name(failure.reason), message);
        if !container.images.set_missing(now, retry_at, &spec.image, why) {
            self.touch();
            return;
        }
        let at = Some(attempt.container);
        warn_of_image(self.index, at, &spec.image, failure, events);
        let old = container.started().map_or("", |started| &started.spec_image);
        let text = format!(
            "Back-off pulling image \"{}\": container {} keeps running image \"{old}\" until it is present",
            spec.image, spec.name
        );
        events.warn(self.index, at, "BackOff", text.into());
        self.touch();
    }

    /// The images that running containers wait for. A pod that is being stopped waits for none.
    pub(crate) fn missing_images(&self) -> impl Iterator<Item = (ContainerIndex, &MissingImage)> {
        let waits = |index, container: &ContainerState| {
            self.is_active() && container.is_outdated(&self.pod.spec.container(index).image)
        };
        let waiting = self.containers().filter(move |(index, container)| waits(*index, container));
        waiting.filter_map(|(index, container)| Some((index, container.images.missing()?)))
    }

    /// Marks runs to be ended whose image the spec no longer names, if the new image is on the board.
    pub(super) fn mark_redefined_runs(&mut self) {
        if !self.may_run() {
            return;
        }
        let mut any = false;
        for (index, container) in self.containers.indexed_mut() {
            let is_outdated = container.is_outdated(&self.pod.spec.container(index).image);
            if !container.is_redefined() && is_outdated && *container.images.new_image() == NewImage::Present
            {
                container.redefine();
                any = true;
            }
        }
        if any {
            self.touch();
        }
    }
}
