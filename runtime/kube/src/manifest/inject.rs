//! Adds to a Pod what other objects gave it at admission. Pure.

use serde_json::Value;

use crate::kinds::applied::AppliedPreset;
use crate::kinds::{limit_range, pod_preset, runtime_class};

/// Adds to a defaulted Pod what it got at admission: from its RuntimeClass and LimitRanges, and from presets in their
/// order.
///
/// # Errors
/// The presets conflict with the Pod or with each other; the message is that of Kubernetes' admission. The Pod is
/// unchanged.
pub fn inject(pod: &mut Value, presets: &[AppliedPreset]) -> Result<(), String> {
    let mut new = pod.clone();
    // Only the first one may be what RuntimeClass and LimitRanges give.
    let presets = match presets {
        [defaults, rest @ ..] if limit_range::is_defaults(defaults) => {
            runtime_class::apply(&mut new, defaults)?;
            limit_range::apply(&mut new, defaults);
            rest
        }
        presets => presets,
    };
    pod_preset::apply(&mut new, presets)?;
    *pod = new;
    Ok(())
}
