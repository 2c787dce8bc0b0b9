//! Pulling the images that a start needs, or that the spec of a running container names. The engine reports that an
//! image is absent and that a registry may have it; the start, or the check of the new image, is planned again when the
//! image was pulled. A failed pull for a start is repeated after ever longer delays, as a kubelet does, one for a running
//! container after five minutes, or the moment the image is loaded.

use crate::facts::{Action, Attempt, Draft, Events, StartFailure, StartFailureReason};
use crate::time::Instant;

use super::PodState;
use super::container::{Run, StartRetry, reason_name};
use super::new_image::NewImage;
use super::start::warn_of_image;

impl PodState {
    /// Plans the pulls that starts and running containers wait for.
    pub(super) fn plan_pulls(&mut self, draft: &mut Draft, events: &mut Events) {
        if !self.may_run() {
            return;
        }
        for (index, container) in self.containers.indexed_mut() {
            let of_spec = &*self.pod.spec.container(index).image;
            let image = match container.run() {
                Run::StartFailed { retry: StartRetry::Pull { is_in_flight: false } } => {
                    container.images.awaited_volume().unwrap_or(of_spec)
                }
                _ if *container.images.new_image() == NewImage::ToPull && container.is_outdated(of_spec) => {
                    of_spec
                }
                _ => continue,
            };
            let action = Action::PullImage { attempt: container.attempt(index), image: image.into() };
            if draft.push(self.index, action) {
                events.note(self.index, Some(index), "Pulling", format!("Pulling image \"{image}\"").into());
                container.begin_pull();
            }
        }
    }

    /// Records that an image was pulled, or could not be.
    pub(super) fn image_pulled(
        &mut self,
        now: Instant,
        attempt: Attempt,
        result: Result<Box<str>, Box<str>>,
        events: &mut Events,
    ) {
        let Some(container) = self.containers.of_attempt(attempt) else { return };
        if !container.is_pulling() {
            return;
        }
        let of_start = container.current.is_pulling();
        let (index, at) = (self.index, Some(attempt.container));
        let image = &self.pod.spec.container(attempt.container).image;
        let volume = container.images.awaited_volume().filter(|_| of_start);
        let pulled = volume.unwrap_or(image);
        let retry = match result {
            Ok(how) => {
                let text = format!("Successfully pulled image \"{pulled}\"{how}");
                events.note(index, at, "Pulled", text.into());
                container.images.pulled();
                StartRetry::At(now)
            }
            Err(message) if !of_start => {
                let failure = StartFailure::new(StartFailureReason::ImageToPull, message);
                return self.new_image_missing(now, attempt, &failure, events);
            }
            Err(message) => {
                let failure = StartFailure {
                    image: container.images.awaited_volume().map(Into::into),
                    ..StartFailure::new(StartFailureReason::ErrImagePull, message)
                };
                warn_of_image(index, at, image, &failure, events);
                container.wait(reason_name(failure.reason), failure.message);
                container.pull_failed(now)
            }
        };
        if !of_start {
            // Look for the image, and lease it.
            container.images.recheck_image();
            return;
        }
        container.retry_start(retry);
        self.touch();
    }
}
