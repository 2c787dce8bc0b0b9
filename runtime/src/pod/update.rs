//! What changes of a pod that is there, and what its containers make of it.
//!
//! A container is known by its name and its image. One that runs with another image than its
//! pod has by now is asked to end as with any other end, and begins again with the new one
//! whatever its `restartPolicy` says; an init container does its work with the image that it
//! began with, and one that has done it does not run again. That a run ends for this is known
//! to a later agent before the run is asked, and is on record before another can be missing.

use std::rc::Rc;

use crate::spec::{ContainerIndex, Pod, Role};
use crate::time::{Instant, Moment};

use super::PodState;
use super::backoff::CrashBackoff;
use super::container::{ContainerState, Run, StartRetry};

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

    /// Notices what runs with an image that its pod has no longer.
    pub(super) fn pass_redefined(&mut self) {
        if !self.may_run() {
            return;
        }
        for (index, container) in self.pod.spec.container_indexes().zip(&mut self.containers) {
            if !container.redefined && container.is_outdated(&self.pod.spec.container(index).image) {
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
        self.backoff = CrashBackoff::default();
        match &mut self.run {
            Run::StartFailed { retry } => *retry = StartRetry::At(now),
            Run::Starting { images_changed } => *images_changed = true,
            Run::Waiting | Run::Recording | Run::Running => {}
            Run::Terminating { .. } | Run::Killing { .. } | Run::Exited => {}
        }
    }

    /// It runs, and was started for another image.
    fn is_outdated(&self, image: &str) -> bool {
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
