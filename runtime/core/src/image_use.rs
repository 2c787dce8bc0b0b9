//! Which images are removed when the disk or the image store fills up, by the rules of the kubelet: of those that no
//! pod uses, the least recently used first, and none before a minimum age.

use std::time::Duration;

use crate::time::Instant;

/// Loaded images by their IDs, and since when no pod uses them; `None` while a pod does.
#[derive(Clone, Debug)]
pub struct ImageUse<I>(Vec<(I, Option<Instant>)>);

/// The next step of a removal of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageRemoval<I> {
    /// Remove this image.
    Remove(I),
    /// No image is old enough for this time.
    Wait(Duration),
    /// Every other image is in use.
    Nothing,
}

impl<I> Default for ImageUse<I> {
    fn default() -> Self {
        ImageUse(Vec::new())
    }
}

impl<I: Clone + PartialEq> ImageUse<I> {
    /// Records which images are loaded, and which of them are `used` by pods.
    pub fn update(&mut self, loaded: Vec<I>, used: &[I], now: Instant) {
        self.0.retain(|(image, _)| loaded.contains(image));
        for image in loaded {
            if !self.0.iter().any(|(known, _)| *known == image) {
                self.0.push((image, Some(now)));
            }
        }
        for (image, since) in &mut self.0 {
            *since = if used.contains(image) { None } else { since.or(Some(now)) };
        }
    }

    /// Records that an image was removed.
    pub fn removed(&mut self, image: &I) {
        self.0.retain(|(known, _)| known != image);
    }

    /// Decides what to remove next. `kept` are images that could not be removed. The first one of several that are
    /// unused for the same time is the one that was found first.
    pub fn next(&self, kept: &[I], minimum_age: Duration, now: Instant) -> ImageRemoval<I> {
        let unused = self.0.iter().filter(|(image, _)| !kept.contains(image));
        let unused = unused.filter_map(|(image, since)| Some(((*since)?, image)));
        match unused.min_by_key(|(since, _)| *since) {
            None => ImageRemoval::Nothing,
            Some((since, image)) => match minimum_age.checked_sub(now.since(since)) {
                None | Some(Duration::ZERO) => ImageRemoval::Remove(image.clone()),
                Some(wait) => ImageRemoval::Wait(wait),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(0) + Duration::from_secs(seconds)
    }

    const AGE: Duration = Duration::from_secs(60);

    #[test]
    fn the_image_that_is_unused_for_the_longest_time_is_removed_first() {
        let mut images = ImageUse::default();
        images.update(vec!["a", "b", "c"], &["a", "b"], at(0));
        images.update(vec!["a", "b", "c", "d"], &["a"], at(10));
        assert_eq!(images.next(&[], AGE, at(59)), ImageRemoval::Wait(Duration::from_secs(1)));
        assert_eq!(images.next(&[], AGE, at(60)), ImageRemoval::Remove("c"));
        images.removed(&"c");
        assert_eq!(images.next(&[], AGE, at(60)), ImageRemoval::Wait(Duration::from_secs(10)));
        assert_eq!(images.next(&[], AGE, at(70)), ImageRemoval::Remove("b"));
        // A pod that is being changed still holds it.
        assert_eq!(images.next(&["b"], AGE, at(70)), ImageRemoval::Remove("d"));
        assert_eq!(images.next(&["b", "d"], AGE, at(70)), ImageRemoval::Nothing);
    }

    #[test]
    fn an_image_that_is_used_again_or_loaded_anew_counts_from_then_on() {
        let mut images = ImageUse::default();
        images.update(vec!["a", "b"], &[], at(0));
        images.update(vec!["b"], &["b"], at(30));
        assert_eq!(images.next(&[], AGE, at(1000)), ImageRemoval::Nothing);
        images.update(vec!["a", "b"], &[], at(40));
        assert_eq!(images.next(&[], AGE, at(99)), ImageRemoval::Wait(Duration::from_secs(1)));
        images.update(vec!["a", "b"], &[], at(50));
        assert_eq!(images.next(&[], AGE, at(100)), ImageRemoval::Remove("b"));
    }
}
