//! The images that a container waits for: that of its next run, and that which the spec names while the current run has
//! another one. `update.rs` and `pull.rs` plan the search.

use crate::facts::{MissingImage, StartFailure, StartFailureReason};
use crate::pod::backoff::Pulls;
use crate::pod::new_image::NewImage;
use crate::time::{Instant, Moment};

/// The images that a container waits for.
///
/// A missing image stays known while it is searched for again.
#[derive(Clone, Debug, Default)]
pub(in crate::pod) struct Images {
    /// The state of the search for the image in the spec, while the run has another image.
    new_image: NewImage,
    /// The image in the spec, if it was missing at the latest check.
    missing: Option<Box<MissingImage>>,
    /// The pulls of the images for the next run.
    pulls: Pulls,
    /// The image of a volume for which the latest start looked in vain.
    awaited_volume: Option<Box<str>>,
}

impl Images {
    pub(in crate::pod) fn new_image(&self) -> &NewImage {
        &self.new_image
    }

    pub(in crate::pod) fn missing(&self) -> Option<&MissingImage> {
        self.missing.as_deref()
    }

    pub(in crate::pod) fn awaited_volume(&self) -> Option<&str> {
        self.awaited_volume.as_deref()
    }

    /// Whether an image was pulled for the next run.
    pub(in crate::pod) fn is_pulled(&self) -> bool {
        self.pulls.is_pulled()
    }

    /// Records that the spec names another image: earlier failures no longer apply.
    pub(super) fn redefine(&mut self) {
        self.new_image.mark_outdated();
        self.missing = None;
        self.pulls = Pulls::default();
    }

    /// Records that images were added.
    pub(super) fn images_changed(&mut self) {
        self.new_image.images_changed();
    }

    /// Records that a run has started, and whether it has another image than the spec. Returns whether its image was
    /// pulled for it.
    pub(super) fn run_began(&mut self, is_outdated: bool) -> bool {
        self.new_image.run_began(is_outdated);
        self.keep_missing_if(is_outdated);
        self.pulls.run_began()
    }

    /// Discards the missing image of a run that has the image of the spec.
    pub(super) fn keep_missing_if(&mut self, is_outdated: bool) {
        self.missing.take_if(|_| !is_outdated);
    }

    /// Records for which image of a volume the latest start looked in vain.
    pub(super) fn await_volume(&mut self, image: &Option<Box<str>>) {
        self.awaited_volume.clone_from(image);
    }

    /// Records that `CheckImage` is in flight.
    pub(in crate::pod) fn begin_check(&mut self) {
        self.new_image = NewImage::Checking { is_stale: false };
    }

    /// Records whether the image of the spec is on the board. Returns why it cannot be started, unless a pull may help.
    pub(in crate::pod) fn checked(&mut self, failure: Option<StartFailure>) -> Option<StartFailure> {
        match self.new_image {
            NewImage::Checking { is_stale: false } => {}
            NewImage::Checking { is_stale: true } => {
                self.new_image = NewImage::Unknown;
                return None;
            }
            NewImage::Unknown | NewImage::Present | NewImage::Missing { .. } => return None,
            NewImage::ToPull | NewImage::Pulling => return None,
        }
        let Some(failure) = failure else {
            self.new_image = NewImage::Present;
            self.missing = None;
            return None;
        };
        if failure.reason == StartFailureReason::ImageToPull && !self.pulls.is_pulled() {
            // The status stays as it is until the pull has failed.
            self.new_image = NewImage::ToPull;
            return None;
        }
        self.pulls = Pulls::default();
        Some(failure)
    }

    /// Records why the image of the spec cannot be started, and when to look again. Returns whether this reason is new.
    pub(in crate::pod) fn set_missing(
        &mut self,
        now: Instant,
        retry_at: Option<Instant>,
        image: &str,
        (reason, message): (&str, Box<str>),
    ) -> bool {
        self.new_image = NewImage::Missing { retry_at };
        let before = self.missing.take();
        let is_new = before.as_ref().is_none_or(|before| *before.reason != *reason);
        let since = before.map_or(Moment::ThisBoot(now), |before| before.since);
        let missing = MissingImage { image: image.into(), since, reason: reason.into(), message };
        self.missing = Some(Box::new(missing));
        is_new
    }

    /// Restores the missing image that a previous agent knew, if the spec still names it.
    pub(super) fn restore_missing(&mut self, missing: Option<&MissingImage>, image: &str) {
        self.missing = missing.filter(|missing| *missing.image == *image).map(|one| Box::new(one.clone()));
    }

    /// Records that the pull of the image of the spec is in flight.
    pub(super) fn begin_pull(&mut self) {
        self.new_image = NewImage::Pulling;
    }

    /// Records that an image was pulled.
    pub(in crate::pod) fn pulled(&mut self) {
        self.pulls = Pulls::succeeded();
    }

    /// Looks for the image of the spec, and leases it, after it was pulled.
    pub(in crate::pod) fn recheck_image(&mut self) {
        self.new_image = NewImage::Unknown;
    }

    /// Records that a pull for a start failed, and returns when to try again.
    pub(super) fn pull_failed(&mut self, now: Instant) -> Instant {
        self.pulls.failed(now)
    }
}
