//! Changes of existing pods, and their invariants.

use std::collections::VecDeque;
use std::rc::Rc;

use super::{Sim, WorldPod, secs};
use crate::facts::*;
use crate::spec::*;

impl Sim {
    /// Changes a pod in place, if it is wanted and not being removed.
    pub(crate) fn update(&mut self, uid: &Uid, change: impl FnOnce(&mut Pod)) -> &mut Self {
        let state = self.node.index_of(uid).and_then(|index| self.node.pod(index));
        let Some(state) = state.filter(|state| !state.is_unwanted()) else { return self };
        let runs: Vec<bool> =
            state.pod().spec.container_indexes().map(|index| state.running(index).is_some()).collect();
        if !self.of(uid).wanted {
            return self;
        }
        let world = self.of(uid);
        let mut pod = Pod::clone(&world.pod);
        change(&mut pod);
        pod.generation += 1;
        assert!(pod.is_update_of(&world.pod), "{uid} would be another pod");
        for index in pod.spec.container_indexes() {
            let alive = world.alive.keys().any(|attempt| attempt.container == index);
            let image = |pod: &Pod| pod.spec.container(index).image.clone();
            if (alive || runs[usize::from(index.0)]) && image(&pod) != image(&world.pod) {
                world.outdated.insert(index);
            }
            if image(&pod) != image(&world.pod) {
                world.restarts.forget(index);
            }
        }
        world.is_resized |= !pod.has_amounts_of(&world.pod);
        world.pod = pod.into();
        let pod = world.pod.clone();
        self.observe(Observation::Wanted { pod, record: None, status: None });
        self
    }

    /// Restarts a container of the pod for a user, or all that run.
    pub(crate) fn restart(&mut self, uid: &Uid, container: Option<&str>) -> &mut Self {
        if let Some(state) = self.node.index_of(uid).and_then(|index| self.node.pod(index)) {
            let indexes: Vec<_> = state.pod().spec.container_indexes().collect();
            for index in indexes {
                let world = self.of(uid);
                let is_named = container.is_none_or(|name| world.pod.spec.container(index).name == name);
                if is_named && world.alive.keys().any(|attempt| attempt.container == index) {
                    world.outdated.insert(index);
                }
                world.restarts.forget(index);
            }
        }
        self.observe(Observation::Restart { uid: uid.clone(), container: container.map(Into::into) });
        self
    }

    /// Loads an image, like `image load`.
    pub(crate) fn load_image(&mut self, image: &str) -> &mut Self {
        self.absent.remove(image);
        self.later(secs(0), Observation::ImagesChanged);
        self
    }

    /// The image with which a start takes place: the image of the spec, otherwise the one that ran before.
    pub(super) fn image_to_start(
        &self,
        pod: &Pod,
        container: ContainerIndex,
        fallback: Option<Rc<str>>,
    ) -> Result<Rc<str>, StartFailureReason> {
        let image: Rc<str> = pod.spec.container(container).image.as_str().into();
        [Some(image), fallback]
            .into_iter()
            .flatten()
            // After a reboot the image that ran before has its full name.
            .find(|image| !self.absent.contains(image.trim_start_matches("docker.io/library/")))
            .ok_or(self.absent_reason())
    }

    /// The reason why an absent image cannot be started.
    fn absent_reason(&self) -> StartFailureReason {
        match self.registry {
            None => StartFailureReason::ErrImagePull,
            Some(_) => StartFailureReason::ImageToPull,
        }
    }

    /// Answers what the registry does next.
    pub(super) fn pull_image(&mut self, index: PodIndex, attempt: Attempt, image: &str) {
        self.note(&format!("pull {image}"));
        let outcome = self.registry.as_mut().and_then(VecDeque::pop_front);
        let result = match outcome.unwrap_or(Err("not found")) {
            Ok(how) => {
                self.absent.remove(image);
                Ok(how.into())
            }
            Err(error) => Err(error.into()),
        };
        self.answer_of(index, PodObservation::ImagePulled { attempt, result });
    }

    /// Answers whether the image of the spec is on the board.
    pub(super) fn check_image(&mut self, uid: &Uid, index: PodIndex, attempt: Attempt) {
        let image = self.of(uid).pod.spec.container(attempt.container).image.clone();
        let failure = self
            .absent
            .contains(&image)
            .then(|| StartFailure::new(self.absent_reason(), format!("image {image} is not on this node")));
        self.answer_of(index, PodObservation::ImageChecked { attempt, failure });
    }
}

impl WorldPod {
    /// The image that a container runs; it must be that of the spec after everything has settled.
    pub(crate) fn image_of(&self, container: ContainerIndex) -> Option<&str> {
        let mut alive = self.alive.iter().filter(|(attempt, _)| attempt.container == container);
        alive.next().map(|(_, process)| &*process.image)
    }
}
