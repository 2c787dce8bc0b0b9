//! Changes of a pod in place, and what they do to its containers.
//!
//! A container is identified by its name and its image. When the spec names another image than
//! the one a container runs, the core first asks whether that image is on the board:
//!
//! ```text
//!            plan              ImageChecked
//! Unknown ─────────► Checking ──────────────► Present   the run ends, the next one has the new image
//!    ▲                  │                        │
//!    │                  └──────────────────► Missing    the run goes on; the status says what is missing
//!    └──────────────────────────────────────────┘
//!              images were added, or the spec names yet another image
//! ```
//!
//! What is known of a missing image stays known, and published, while it is looked for again, by this
//! agent or the next one; until it is on the board, or the spec names yet another.
//!
//! A run that goes on may end for another reason. The next run then has the image of the spec if
//! it is on the board by that time, and the image that ran before if it is not
//! (`ContainerState::fallback`), also after a reboot: the record names that image.
//!
//! A run that ends for its image ends as with any other end; another run follows whatever
//! `restartPolicy` says. An init container finishes with the image that it began with, and one that
//! has succeeded does not run again. That a run ends for its image is known to a later agent before
//! the run is asked to end, and is on record before another image can be found missing.

use std::rc::Rc;

use crate::facts::{Action, Attempt, Draft, Events, MissingImage, StartFailure, StartFailureReason};
use crate::spec::{ContainerIndex, Pod, Role};
use crate::time::{Instant, Moment};

use super::backoff::CrashBackoff;
use super::container::{ContainerState, Run, StartRetry, reason_word};
use super::start::{never_pulled, warn_of_image};
use super::{PodState, SYNC_RETRY};

/// How far the search for the image is that the spec names, while the container's run has another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum NewImage {
    /// Nothing yet.
    #[default]
    Unknown,
    /// `CheckImage` is in flight.
    Checking {
        /// Images were added, or the spec was changed again: the answer is out of date.
        is_stale: bool,
    },
    /// It is on the board.
    Present,
    /// It cannot be started, for the reason in `ContainerState::missing_image`.
    Missing {
        /// When to look again, if not only when images are added.
        retry_at: Option<Instant>,
    },
}

impl NewImage {
    /// What was known may not be true any more.
    pub(crate) fn look_again(&mut self) {
        match self {
            NewImage::Checking { is_stale } => *is_stale = true,
            NewImage::Unknown | NewImage::Present | NewImage::Missing { .. } => *self = NewImage::Unknown,
        }
    }

    /// A run has begun. An answer that is about an earlier run does not arrive.
    pub(crate) fn run_began(&mut self, is_outdated: bool) {
        match self {
            NewImage::Missing { .. } if is_outdated => {}
            NewImage::Missing { .. } | NewImage::Checking { .. } | NewImage::Unknown | NewImage::Present => {
                *self = NewImage::Unknown;
            }
        }
    }

    /// When to look again.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        match self {
            NewImage::Missing { retry_at, .. } => *retry_at,
            NewImage::Unknown | NewImage::Checking { .. } | NewImage::Present => None,
        }
    }
}

impl PodState {
    /// It is the same pod with what may change in place. With its last gate gone it is accepted
    /// now, as if it had come now.
    pub(super) fn update(&mut self, now: Instant, pod: Rc<Pod>) {
        if self.pod.is_gated() && !pod.is_gated() {
            self.start_time = Moment::ThisBoot(now);
            self.active_since = now;
        }
        let before = std::mem::replace(&mut self.pod, pod);
        let image = |pod: &Pod, index: ContainerIndex| pod.spec.container(index).image.clone();
        let indexes = before.spec.init_indexes().chain(before.spec.regular_indexes());
        for index in indexes.filter(|index| image(&before, *index) != image(&self.pod, *index)) {
            // Of one that was refused there are none.
            if let Some(container) = self.containers.get_mut(usize::from(index.0)) {
                container.has_another_image(now);
            }
        }
        self.touch();
        self.settle(now);
    }

    /// Asks whether the images are on the board that running containers are to have.
    pub(super) fn plan_image_checks(&mut self, now: Instant, draft: &mut Draft) {
        if !self.may_run() {
            return;
        }
        for (index, container) in self.pod.spec.container_indexes().zip(&mut self.containers) {
            let is_due = match &container.new_image {
                NewImage::Unknown => true,
                NewImage::Missing { retry_at, .. } => retry_at.is_some_and(|at| at <= now),
                NewImage::Checking { .. } | NewImage::Present => false,
            };
            let is_due = is_due
                && !container.redefined
                && container.is_outdated(&self.pod.spec.container(index).image);
            if is_due && draft.push(self.index, Action::CheckImage(container.attempt(index))) {
                container.new_image = NewImage::Checking { is_stale: false };
            }
        }
    }

    /// Whether the image of the spec is on the board, while another runs.
    pub(super) fn image_checked(
        &mut self,
        now: Instant,
        attempt: Attempt,
        failure: Option<StartFailure>,
        events: &mut Events,
    ) {
        let (pod, index) = (self.pod.clone(), self.index);
        let Some(container) = self.container_of(attempt) else { return };
        match container.new_image {
            NewImage::Checking { is_stale: false } => {}
            NewImage::Checking { is_stale: true } => {
                container.new_image = NewImage::Unknown;
                return;
            }
            NewImage::Unknown | NewImage::Present | NewImage::Missing { .. } => return,
        }
        let Some(failure) = failure else {
            container.new_image = NewImage::Present;
            container.missing_image = None;
            return;
        };
        let spec = pod.spec.container(attempt.container);
        let retry_at = match failure.reason {
            StartFailureReason::ImageInspectError => Some(now + SYNC_RETRY),
            StartFailureReason::InvalidImageName
            | StartFailureReason::ErrImageNeverPull
            | StartFailureReason::ErrImagePull
            | StartFailureReason::CreateContainerConfigError
            | StartFailureReason::CreateContainerError
            | StartFailureReason::RunContainerError => None,
        };
        let message = match failure.reason {
            StartFailureReason::ErrImageNeverPull => never_pulled(&spec.image),
            _ => failure.message.clone(),
        };
        container.new_image = NewImage::Missing { retry_at };
        let before = container.missing_image.take();
        let missing = MissingImage {
            image: spec.image.as_str().into(),
            since: before.as_ref().map_or(Moment::ThisBoot(now), |before| before.since),
            reason: reason_word(failure.reason).into(),
            message,
        };
        let is_known = before.is_some_and(|before| before.reason == missing.reason);
        container.missing_image = Some(Box::new(missing));
        if is_known {
            self.touch();
            return;
        }
        let at = Some(attempt.container);
        warn_of_image(index, at, &spec.image, &failure, events);
        let old = container.started.as_ref().map_or("", |started| &started.spec_image);
        let text = format!(
            "Back-off pulling image \"{}\": container {} keeps running image \"{old}\" until it is present",
            spec.image, spec.name
        );
        events.warn(index, at, "BackOff", text.into());
        self.touch();
    }

    /// The images that running containers wait for. A pod that stops waits for none.
    pub(crate) fn missing_images(&self) -> impl Iterator<Item = (ContainerIndex, &MissingImage)> {
        let waits = |index, container: &ContainerState| {
            self.is_active() && container.is_outdated(&self.pod.spec.container(index).image)
        };
        let waiting = self.containers().filter(move |(index, container)| waits(*index, container));
        waiting.filter_map(|(index, container)| Some((index, container.missing_image.as_deref()?)))
    }

    /// Ends the runs of images that the spec no longer names and whose successor is on the board.
    pub(super) fn pass_redefined(&mut self) {
        if !self.may_run() {
            return;
        }
        for (index, container) in self.pod.spec.container_indexes().zip(&mut self.containers) {
            let is_outdated = container.is_outdated(&self.pod.spec.container(index).image);
            if !container.redefined && is_outdated && container.new_image == NewImage::Present {
                container.redefined = true;
                container.backoff = CrashBackoff::default();
                self.changed = true;
                self.journal.stale();
            }
        }
    }
}

impl ContainerState {
    /// What kept it from starting, or held it back, was about the image before.
    fn has_another_image(&mut self, now: Instant) {
        self.new_image.look_again();
        self.missing_image = None;
        self.backoff = CrashBackoff::default();
        match &mut self.run {
            Run::StartFailed { retry } => *retry = StartRetry::At(now),
            Run::Starting { images_changed } => *images_changed = true,
            Run::Waiting | Run::Recording | Run::Running => {}
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => {}
        }
    }

    /// The image that ran before, if the spec names another by now: what to start if the new one is
    /// not on the board.
    pub(super) fn fallback(&self, image: &str) -> Option<Rc<str>> {
        let before = match (&self.started, &self.recorded) {
            (Some(started), _) => &started.spec_image,
            (None, Some(recorded)) => &recorded.image,
            (None, None) => return None,
        };
        (!before.is_empty() && **before != *image).then(|| before.clone())
    }

    /// It runs, and was started for another image.
    pub(super) fn is_outdated(&self, image: &str) -> bool {
        let runs = match self.run {
            Run::Running => true,
            Run::Waiting | Run::Recording | Run::Starting { .. } | Run::StartFailed { .. } => false,
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => false,
        };
        let may_end = match self.role {
            Role::Regular => true,
            // What waits for it goes on first.
            Role::Sidecar => self.health().started,
            Role::Init | Role::Ephemeral => false,
        };
        let started_for = self.started.as_ref().map_or("", |started| &started.spec_image);
        runs && may_end && !started_for.is_empty() && started_for != image
    }
}
