//! Removes images that no pod uses when the disk or the image store fills up, by the rules of the kubelet: the least
//! recently used first, from the high threshold down to the low one.
//!
//! A kubelet checks every five minutes. This agent checks when an image was loaded, a pod is gone, or the agent
//! starts, and again when images that were too young have reached the minimum age. Which image is removed next is
//! decided in the core (`core/src/image_use.rs`).

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nodlet_rootfs::{Digest, Reference, RemoveError, Store, StoreError, Usage};

use nodlet_core::image_use::ImageRemoval;
use nodlet_core::spec::Quantity;
use nodlet_core::time::Instant;
use nodlet_host::error::chain;
use nodlet_host::paths::Paths;

use crate::engine::flash::Flash;
use crate::engine::message::{ImageCheck, ImageNews, Message};
use crate::engine::tasks::Tasks;

/// The thresholds of image removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageCollection {
    /// Percentage of the disk, or of the store's limit, above which images are removed: the kubelet's
    /// `imageGCHighThresholdPercent`. No usage reaches more than 100.
    pub high: u8,
    /// Percentage down to which images are removed: the kubelet's `imageGCLowThresholdPercent`.
    pub low: u8,
    /// Time for which an unused image stays: the kubelet's `imageMinimumGCAge`.
    pub minimum_age: Duration,
    /// Time after which an unused image is removed, however much space there is: the kubelet's `imageMaximumGCAge`.
    pub maximum_age: Option<Duration>,
}

/// Under pressure, all unused images of the kubelet's minimum age are removed.
const UNDER_PRESSURE: ImageCollection =
    ImageCollection { high: 0, low: 0, minimum_age: Duration::from_secs(120), maximum_age: None };

/// Without thresholds, no image is removed.
const NEVER: ImageCollection = ImageCollection { high: u8::MAX, ..UNDER_PRESSURE };

/// The loaded images, and since when no pod uses them.
type Images = nodlet_core::image_use::ImageUse<Digest>;

/// The use of images, as found by the last check.
#[derive(Debug, Default)]
pub(in crate::engine) struct ImageUse {
    images: Images,
    is_checking: bool,
    /// Another check follows the present one.
    is_check_due: bool,
    /// The disk is under pressure: the next check removes all unused images.
    for_pressure: bool,
    /// The check that follows when an image is old enough.
    later: Option<smol::Task<()>>,
}

impl ImageUse {
    /// Has the next check remove all unused images, because the disk is under pressure.
    pub(in crate::engine) fn require_reclaim(&mut self) {
        self.for_pressure = true;
    }

    /// Begins a check, which records the images in use and removes some if the thresholds require that. During another
    /// check, it follows that. `names` returns the names of the images that pods use.
    pub(in crate::engine) fn check(
        &mut self,
        configured: Option<ImageCollection>,
        (tasks, stores, paths): (&Tasks, &Flash, &Paths),
        names: impl FnOnce() -> Vec<String>,
    ) {
        if self.is_checking {
            self.is_check_due = true;
            return;
        }
        self.is_checking = true;
        let for_pressure = std::mem::take(&mut self.for_pressure);
        let configured = configured.unwrap_or(NEVER);
        let rule = if for_pressure {
            ImageCollection { minimum_age: configured.minimum_age, ..UNDER_PRESSURE }
        } else {
            configured
        };
        let (store, paths, names) = (stores.images.clone(), paths.clone(), names());
        let images = std::mem::take(&mut self.images);
        let checked = stores.storage.run(move || {
            let limit = if rule == NEVER { Ok(None) } else { image_store_limit(&paths) };
            let max = limit.map_err(|error| log::error!("failed to {}", chain(&error))).ok();
            collect(&store, rule, max.flatten(), &names, images, nodlet_host::clock::instant())
        });
        let news = move |check| {
            if for_pressure {
                Message::ImagesReclaimed(check)
            } else {
                Message::Images(ImageNews::Checked(check))
            }
        };
        tasks.then(checked, news);
    }

    /// Records the result of a check. Returns whether another check is to begin.
    pub(in crate::engine) fn end_check(
        &mut self,
        tasks: &Tasks,
        check: Result<ImageCheck, StoreError>,
    ) -> bool {
        self.is_checking = false;
        match check {
            Ok(check) => self.update(tasks, check),
            Err(error) => log::error!("failed to look for unused images: {}", chain(&error)),
        }
        std::mem::take(&mut self.is_check_due)
    }

    fn update(&mut self, tasks: &Tasks, check: ImageCheck) {
        for (image, why) in &check.removed {
            log::info!("image {image}: removed, since no pod uses it and {why}");
        }
        if check.older.is_none() && check.excess > 0 {
            log::warn!(
                "images and disk exceed their low threshold by {} bytes, and every other image is in use",
                check.excess
            );
        }
        self.later = check.older.map(|wait| {
            let messages = tasks.messages.clone();
            tasks.start(async move {
                smol::Timer::after(wait).await;
                let _ = messages.send(Message::Images(ImageNews::Due)).await;
            })
        });
        self.images = check.images;
    }
}

/// Removes unused images until their bytes are no longer above the low threshold.
fn collect(
    store: &Store,
    rule: ImageCollection,
    max: Option<u64>,
    names: &[String],
    mut images: Images,
    now: Instant,
) -> Result<ImageCheck, StoreError> {
    let mut used = Vec::new();
    for name in names {
        // What a pod names and cannot have is no image that is in use.
        if let Ok(name) = Reference::parse(name)
            && let Some(image) = store.find(&name)?
        {
            used.push(image.id);
        }
    }
    images.update(store.loaded()?, &used, now);
    let mut check = ImageCheck { excess: excess(store, rule, max)?, ..ImageCheck::default() };
    let mut kept = Vec::new();
    loop {
        let full = (check.excess > 0).then_some((rule.minimum_age, "the store exceeds its threshold"));
        let old = rule.maximum_age.map(|age| (age, "it is older than the maximum age"));
        // A removal for space may be due earlier, and one for age is due in any case.
        let Some((age, why)) = full.into_iter().chain(old).min() else { break };
        let image = match images.next(&kept, age, now) {
            ImageRemoval::Remove(image) => image,
            ImageRemoval::Wait(wait) => {
                check.older = Some(wait);
                break;
            }
            ImageRemoval::Nothing => break,
        };
        match store.remove(&image.hex()) {
            Ok(removed) => {
                let name = removed.names.into_iter().next().unwrap_or_else(|| image.hex());
                check.removed.push((name, why));
                images.removed(&image);
            }
            // A pod that was changed holds its former image for as long as it is there.
            Err(
                RemoveError::InUse { .. }
                | RemoveError::NotFound { .. }
                | RemoveError::BakedIn { .. }
                | RemoveError::Ambiguous { .. },
            ) => kept.push(image),
            Err(RemoveError::Store(error)) => return Err(error),
        }
        check.excess = excess(store, rule, max)?;
    }
    check.images = images;
    Ok(check)
}

/// Bytes to free on the disk or within the store's limit, if the high threshold is exceeded.
fn excess(store: &Store, rule: ImageCollection, max: Option<u64>) -> Result<u64, StoreError> {
    let of_limit = match max {
        Some(capacity) => {
            let available = capacity.saturating_sub(store.used()?);
            Usage { capacity, available }.excess(rule.high, rule.low)
        }
        None => 0,
    };
    let of_disk = store.disk().map_or(0, |disk| disk.excess(rule.high, rule.low));
    if rule.high == UNDER_PRESSURE.high {
        return Ok(1);
    }
    Ok(of_limit.max(of_disk))
}

/// The limit of the image store cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageLimitError {
    /// The file cannot be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file has another content.
    #[error("read {path}: must be a quantity of bytes, as 64Mi")]
    Invalid {
        /// The file.
        path: PathBuf,
    },
}

/// Bytes that loaded images may take: the content of `etc/nodlet/image-store-limit` below the root, such as `64Mi`;
/// `None` without that file.
///
/// # Errors
/// If the file cannot be read, or holds something else.
pub fn image_store_limit(paths: &Paths) -> Result<Option<u64>, ImageLimitError> {
    let path = paths.image_store_limit();
    match nodlet_kernel::own_file::read_to_string(&path) {
        Ok(text) => {
            let bytes = Quantity::parse(text.trim()).ok();
            let bytes = bytes.and_then(|bytes| u64::try_from(bytes.value()).ok()).filter(|bytes| *bytes > 0);
            bytes.map(Some).ok_or(ImageLimitError::Invalid { path })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ImageLimitError::Read { path, source: error }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_limit_of_the_store_is_a_quantity_in_a_file_and_there_is_none_without_it() {
        let root = std::env::temp_dir().join(format!("nodlet-image-limit-{}", std::process::id()));
        let paths = Paths::new(&root);
        let limit = || image_store_limit(&paths).map_err(|error| error.to_string());
        assert_eq!(limit(), Ok(None));
        let file = paths.image_store_limit();
        fs::create_dir_all(file.parent().expect("it is in a directory")).expect("there is room");
        for (text, bytes) in [("64Mi\n", 64 << 20), ("1000000", 1_000_000)] {
            fs::write(&file, text).expect("there is room");
            assert_eq!(limit(), Ok(Some(bytes)));
        }
        for text in ["", "much", "-1", "0"] {
            fs::write(&file, text).expect("there is room");
            let why = limit().expect_err(text);
            assert!(
                why.ends_with("etc/nodlet/image-store-limit: must be a quantity of bytes, as 64Mi"),
                "{why}"
            );
        }
        fs::remove_dir_all(&root).expect("it is ours");
    }
}
