//! `[limits]` and `[images]` of a profile: limits of the agent's memory, and of its image store.

use serde::Deserialize;

use super::is_size;

/// Limits of what the agent keeps in memory. Without a key, the default of `nodlet agent` applies.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limits {
    /// The most pods at a time.
    #[serde(default)]
    max_pods: Option<u32>,
    /// The most events that are kept, of all objects together.
    #[serde(default)]
    max_events: Option<u32>,
    /// The most clients of the API at a time.
    #[serde(default)]
    max_connections: Option<u32>,
    /// The most applied pods that are kept after their end.
    #[serde(default)]
    terminated_pods: Option<u32>,
}

/// Limits of the image store.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Images {
    /// The size limit of loaded images, as a Kubernetes quantity; baked images do not count.
    #[serde(default)]
    pub max_size: Option<String>,
    /// Percent of the size limit, or of the data partition, at which unused images are removed.
    #[serde(default)]
    gc_high_threshold: Option<u32>,
    /// Percent down to which unused images are removed.
    #[serde(default)]
    gc_low_threshold: Option<u32>,
    /// Seconds for which an unused image is kept.
    #[serde(default)]
    minimum_age: Option<u32>,
}

impl Limits {
    /// The flags of `nodlet agent` for these limits.
    pub(super) fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        let text = |number: Option<u32>| number.map(|number| number.to_string());
        vec![
            ("--max-pods", text(self.max_pods)),
            ("--max-events", text(self.max_events)),
            ("--max-connections", text(self.max_connections)),
            ("--terminated-pod-gc-threshold", text(self.terminated_pods)),
        ]
    }

    /// Checks these limits by the ranges of `nodlet agent`.
    pub(super) fn check(&self) -> Result<(), String> {
        for (key, value, range) in [
            ("max-pods", self.max_pods, 1..=110),
            ("max-events", self.max_events, 1..=10_000),
            ("max-connections", self.max_connections, 4..=1024),
            ("terminated-pods", self.terminated_pods, 1..=110),
        ] {
            if value.is_some_and(|value| !range.contains(&value)) {
                let (least, most) = (range.start(), range.end());
                return Err(format!("limits: {key} must be from {least} to {most}"));
            }
        }
        Ok(())
    }
}

impl Images {
    /// The flags of `nodlet agent` for these limits; `max-size` is written to a file in the image instead.
    pub(super) fn flags(&self) -> Vec<(&'static str, Option<String>)> {
        let text = |number: Option<u32>| number.map(|number| number.to_string());
        vec![
            ("--image-gc-high-threshold", text(self.gc_high_threshold)),
            ("--image-gc-low-threshold", text(self.gc_low_threshold)),
            ("--minimum-image-ttl-duration", self.minimum_age.map(|seconds| format!("{seconds}s"))),
        ]
    }

    /// Checks these limits.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(size) = self.max_size.as_deref().filter(|size| !is_size(size)) {
            return Err(format!("images: max-size {size:?} must be a number of Ki, Mi or Gi, as \"64Mi\""));
        }
        let Some(high) = self.gc_high_threshold else {
            return match self.gc_low_threshold.or(self.minimum_age) {
                Some(_) => Err("images: gc-low-threshold and minimum-age need gc-high-threshold".to_owned()),
                None => Ok(()),
            };
        };
        if !(1..=99).contains(&high) {
            return Err("images: gc-high-threshold must be from 1 to 99 percent".to_owned());
        }
        match self.gc_low_threshold {
            Some(low) if low >= high => {
                Err(format!("images: gc-low-threshold {low} must be less than gc-high-threshold {high}"))
            }
            Some(_) | None => Ok(()),
        }
    }
}
