//! `ipFamilies` and `ipFamilyPolicy` of a Service (`initIPFamilyFields`).

use serde_json::Value;

use super::pool::AddressRange;
use super::{AllocationError, list, text};
use crate::service::Family;

const POLICY: &str = "spec.ipFamilyPolicy";

/// Completes the families of a valid Service for the families of these ranges, the default one first.
pub(super) fn complete(
    ranges: &[AddressRange],
    old: Option<&Value>,
    spec: &mut Value,
) -> Result<(), AllocationError> {
    if text(spec, "type") == "ExternalName" {
        return Ok(());
    }
    let is_served = |name: &str| ranges.iter().any(|range| range.family().as_str() == name);
    let old = old.map(|old| &old["spec"]).filter(|old| text(old, "type") != "ExternalName");
    if old.is_some_and(|old| is_same_preference(old, spec)) {
        return Ok(());
    }
    let is_headless = text(spec, "clusterIP") == "None";
    let has_selector = spec["selector"].as_object().is_some_and(|selector| !selector.is_empty());
    if text(spec, "ipFamilyPolicy").is_empty() {
        spec["ipFamilyPolicy"] =
            match old.map(|old| text(old, "ipFamilyPolicy")).filter(|policy| !policy.is_empty()) {
                Some(policy) => policy.into(),
                None if is_headless && !has_selector => "RequireDualStack".into(),
                None => "SingleStack".into(),
            };
    }
    let is_single = text(spec, "ipFamilyPolicy") == "SingleStack";
    if let Some(old) = old {
        for (field, name) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
            let (was, is) = (list(old, field), list(spec, field));
            if is_single && was == is && is.len() > 1 {
                spec[field] = is[..1].to_vec().into();
            } else if !is_single && !is.is_empty() && is.len() < was.len() {
                let detail = format!("must be 'SingleStack' to release the secondary {name}");
                return Err(invalid(POLICY, &spec["ipFamilyPolicy"], detail));
            }
        }
    }
    for (field, name) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if is_single && list(spec, field).len() == 2 {
            let detail =
                format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {name} are specified");
            return Err(invalid(POLICY, &spec["ipFamilyPolicy"], detail));
        }
    }
    let mut families = list(spec, "ipFamilies").to_vec();
    if !is_headless {
        for (index, ip) in list(spec, "clusterIPs").iter().enumerate().skip(families.len()) {
            let family = if text_of(ip).contains(':') { Family::V6 } else { Family::V4 }.as_str();
            if !is_served(family) {
                let field = format!("spec.clusterIPs[{index}]");
                return Err(invalid(
                    &field,
                    &spec["clusterIPs"],
                    format!("{family} is not configured on this cluster"),
                ));
            }
            families.push(family.into());
        }
    }
    let is_open = is_headless && !has_selector;
    if !is_open {
        if text(spec, "ipFamilyPolicy") == "RequireDualStack" && ranges.len() < 2 {
            let detail = "this cluster is not configured for dual-stack services".to_owned();
            return Err(invalid(POLICY, &spec["ipFamilyPolicy"], detail));
        }
        let mut all = families.iter().enumerate();
        if let Some((index, family)) = all.find(|(_, family)| !is_served(text_of(family))) {
            let field = format!("spec.ipFamilies[{index}]");
            return Err(invalid(&field, family, "not configured on this cluster".to_owned()));
        }
    }
    if families.is_empty() {
        families.extend(ranges.first().map(|range| Value::from(range.family().as_str())));
    }
    if !is_single && families.len() == 1 && (is_open || ranges.len() == 2) {
        let other = if families[0] == Family::V4.as_str() { Family::V6 } else { Family::V4 };
        families.push(other.as_str().into());
    }
    spec["ipFamilies"] = families.into();
    Ok(())
}

/// `isMatchingPreferDualStackClusterIPFields`: such a Service follows no change of the served families.
fn is_same_preference(old: &Value, new: &Value) -> bool {
    let prefers = |spec: &Value| matches!(text(spec, "ipFamilyPolicy"), "PreferDualStack");
    let is_same = ["type", "clusterIPs", "ipFamilies"].iter().all(|field| old[*field] == new[*field]);
    is_same && prefers(new) && prefers(old) && !list(new, "ipFamilies").is_empty()
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn invalid(field: &str, value: &Value, detail: String) -> AllocationError {
    AllocationError::Invalid { field: field.to_owned(), value: value.to_string(), detail }
}
