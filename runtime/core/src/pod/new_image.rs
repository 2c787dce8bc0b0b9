//! The search for the image that the spec of a running container names. `update.rs` plans it, and `pull.rs` its pull.

use crate::time::Instant;

/// The state of the search for the image in the spec, while the container's run has another image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum NewImage {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// `CheckImage` is in flight.
    Checking {
        /// Whether images were added, or the spec changed again, so that the answer is out of date.
        is_stale: bool,
    },
    /// The image is absent, and a registry may have it.
    ToPull,
    /// `PullImage` is in flight.
    Pulling,
    /// The image is on the board.
    Present,
    /// The image cannot be started, for the reason in `ContainerState::missing_image`.
    Missing {
        /// When to look again, unless only added images can help.
        retry_at: Option<Instant>,
    },
}

impl NewImage {
    /// Records that the spec names another image.
    pub(crate) fn mark_outdated(&mut self) {
        match self {
            NewImage::Checking { is_stale } => *is_stale = true,
            NewImage::Unknown | NewImage::ToPull | NewImage::Pulling => *self = NewImage::Unknown,
            NewImage::Present | NewImage::Missing { .. } => *self = NewImage::Unknown,
        }
    }

    /// Records that images were added. The end of a pull is reported.
    pub(crate) fn images_changed(&mut self) {
        match self {
            NewImage::Pulling => {}
            NewImage::Checking { .. } | NewImage::Unknown | NewImage::ToPull => self.mark_outdated(),
            NewImage::Present | NewImage::Missing { .. } => self.mark_outdated(),
        }
    }

    /// Records that a run has started. An answer about an earlier run is not accepted.
    pub(crate) fn run_began(&mut self, is_outdated: bool) {
        match self {
            NewImage::Missing { .. } if is_outdated => {}
            NewImage::Missing { .. } | NewImage::Checking { .. } | NewImage::Unknown => {
                *self = NewImage::Unknown;
            }
            NewImage::ToPull | NewImage::Pulling | NewImage::Present => *self = NewImage::Unknown,
        }
    }

    /// When to look again.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        match self {
            NewImage::Missing { retry_at, .. } => *retry_at,
            NewImage::Unknown | NewImage::Checking { .. } | NewImage::ToPull => None,
            NewImage::Pulling | NewImage::Present => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::at;

    #[test]
    fn a_run_with_the_present_image_forgets_what_was_missing_and_any_answer_under_way() {
        let missing = || NewImage::Missing { retry_at: Some(at(9)) };
        let after = |mut state: NewImage, is_outdated| {
            state.run_began(is_outdated);
            state
        };
        assert_eq!(after(missing(), true), missing());
        assert_eq!(after(missing(), false), NewImage::Unknown);
        let checking = NewImage::Checking { is_stale: false };
        for state in [checking, NewImage::ToPull, NewImage::Pulling, NewImage::Present, NewImage::Unknown] {
            assert_eq!(after(state.clone(), true), NewImage::Unknown);
            assert_eq!(after(state, false), NewImage::Unknown);
        }
        assert_eq!(missing().retry_at(), Some(at(9)));
        assert_eq!(NewImage::Present.retry_at(), None);
    }

    #[test]
    fn added_images_end_no_pull_and_another_image_in_the_spec_does() {
        let mut state = NewImage::Pulling;
        state.images_changed();
        assert_eq!(state, NewImage::Pulling);
        state.mark_outdated();
        assert_eq!(state, NewImage::Unknown);
    }
}
