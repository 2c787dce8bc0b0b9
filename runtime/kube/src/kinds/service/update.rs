//! The rules of an update of a Service (`ValidateServiceUpdate`).

use serde_json::Value;

use super::addresses::is_headless;
use super::validate::needs_health_check;
use crate::kinds::definition;
use crate::object::check::Field;
use crate::object::error::ManifestError;
use crate::object::field::Errors;
use crate::object::value::{list, text};

const UNCHANGED: &str = "may not change once set";

/// Checks an update of a Service by a client.
///
/// # Errors
/// An immutable field has changed; the message is that of Kubernetes.
pub(super) fn check_update(old: &Value, new: &Value) -> Result<(), ManifestError> {
    let mut errors = Errors::default();
    let (old, spec) = (&old["spec"], Field::root(&new["spec"], "spec", &mut errors));
    let is_name = |spec: &Value| text(spec, "type") == "ExternalName";
    if !is_name(old) && !is_name(spec.value) {
        let (was_headless, is_headless) = (is_headless(old), is_headless(spec.value));
        if !(was_headless && is_headless) {
            cluster_ips(old, spec);
        }
        if !was_headless && !is_headless {
            families(old, spec);
        }
    }
    let is_balancer = |spec: &Value| text(spec, "type") == "LoadBalancer";
    let class = spec.child("loadBalancerClass");
    if is_balancer(old) && is_balancer(spec.value) && old["loadBalancerClass"] != *class.value {
        class.invalid_json(UNCHANGED);
    }
    if needs_health_check(old)
        && needs_health_check(spec.value)
        && old["healthCheckNodePort"] != spec.value["healthCheckNodePort"]
    {
        spec.child("healthCheckNodePort").forbidden("field is immutable");
    }
    definition::refuse_update(new, errors)
}

/// `validateUpgradeDowngradeClusterIPs`
fn cluster_ips(old: &Value, spec: Field<'_, '_>) {
    let (was, is) = (list(old, "clusterIPs"), list(spec.value, "clusterIPs"));
    let changed = |index| {
        spec.item("clusterIPs", index).with(&spec.value["clusterIPs"]).invalid_json(UNCHANGED);
    };
    if was.len() == is.len() {
        (0..was.len()).filter(|index| was[*index] != is[*index]).for_each(changed);
    } else if is.is_empty() {
        spec.item("clusterIPs", 0)
            .with(&spec.value["clusterIPs"])
            .invalid_json("primary clusterIP can not be unset");
    } else {
        if !was.is_empty() && was[0] != is[0] {
            changed(0);
        }
        if was.len() > is.len() {
            single(spec, "must be set to 'SingleStack' when releasing the secondary clusterIP");
        }
    }
}

/// `validateUpgradeDowngradeIPFamilies`. A Service that names no families keeps those that it has.
fn families(old: &Value, spec: Field<'_, '_>) {
    let (was, is) = (list(old, "ipFamilies"), list(spec.value, "ipFamilies"));
    if was.is_empty() || is.is_empty() {
        return;
    }
    let first = spec.item("ipFamilies", 0).with(&spec.value["ipFamilies"]);
    if was.len() == is.len() && was != is || was[0] != is[0] {
        first.invalid_json(UNCHANGED);
    }
    if was.len() > is.len() {
        single(spec, "must be set to 'SingleStack' when releasing the secondary ipFamily");
    }
}

fn single(spec: Field<'_, '_>, detail: &str) {
    let policy = spec.child("ipFamilyPolicy");
    if policy.text() != "SingleStack" {
        policy.invalid_json(detail);
    }
}
