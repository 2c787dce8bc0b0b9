//! Rules for where a Pod may run: its affinity and its topology spread constraints.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::object::check::Field;
use crate::object::rules;
use crate::object::value::{list, text};

/// The terms that a node must match.
pub(crate) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// The terms that nodes should match.
pub(crate) const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Checks `spec.affinity` (`validateAffinity`).
pub(super) fn all(affinity: Field<'_, '_>) {
    let node = affinity.child("nodeAffinity");
    if let Some(required) = node.get(REQUIRED) {
        selector(required);
    }
    for preferred in node.items(PREFERRED) {
        weight(preferred.child("weight"));
        term(preferred.child("preference"), false);
    }
    for field in ["podAffinity", "podAntiAffinity"] {
        let affinity = affinity.child(field);
        affinity.items(REQUIRED).for_each(pod_term);
        for preferred in affinity.items(PREFERRED) {
            weight(preferred.child("weight"));
            pod_term(preferred.child("podAffinityTerm"));
        }
    }
}

fn weight(weight: Field<'_, '_>) {
    if !(1..=100).contains(&weight.number()) {
        weight.invalid_number(weight.number(), "must be in the range 1-100");
    }
}

/// `validatePodAffinityTerm`.
fn pod_term(term: Field<'_, '_>) {
    for field in ["labelSelector", "namespaceSelector"] {
        term.child(field).label_selector();
    }
    for name in list(term.value, "namespaces") {
        // Kubernetes' own word, without the index.
        term.child("namespace").with(name).check(rules::dns_label);
    }
    label_keys(term);
    let key = term.child("topologyKey");
    if key.text().is_empty() {
        key.required("can not be empty");
    }
    key.check(rules::qualified_name);
}

/// `ValidateMatchLabelKeysAndMismatchLabelKeys`.
fn label_keys(owner: Field<'_, '_>) {
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        if owner.get("labelSelector").is_none() && !list(owner.value, field).is_empty() {
            owner.child(field).forbidden("must not be specified when labelSelector is not set");
            continue;
        }
        for key in owner.items(field) {
            key.check(rules::qualified_name);
        }
    }
    let mismatch: BTreeSet<&str> =
        list(owner.value, "mismatchLabelKeys").iter().filter_map(Value::as_str).collect();
    for key in owner.items("matchLabelKeys") {
        if mismatch.contains(key.text()) {
            key.invalid("exists in both matchLabelKeys and mismatchLabelKeys");
        }
    }
}

/// Checks `spec.topologySpreadConstraints` (`validateTopologySpreadConstraints`).
pub(super) fn spread(spec: Field<'_, '_>) {
    const POSITIVE: &str = "must be greater than zero";
    let pair = |constraint| (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
    let constraints = list(spec.value, "topologySpreadConstraints").iter().enumerate();
    let last: BTreeMap<_, usize> = constraints.map(|(index, one)| (pair(one), index)).collect();
    for (index, one) in spec.items("topologySpreadConstraints").enumerate() {
        let (key, when) = (one.child("topologyKey"), one.child("whenUnsatisfiable"));
        let (skew, domains) = (one.child("maxSkew"), one.child("minDomains"));
        if skew.number() <= 0 {
            skew.invalid_number(skew.number(), POSITIVE);
        }
        if key.text().is_empty() {
            key.required("can not be empty");
        }
        when.supported(&["DoNotSchedule", "ScheduleAnyway"]);
        let (key, when) = (key.text(), when.text());
        if last.get(&(key, when)).is_some_and(|last| *last > index) {
            one.child("{topologyKey, whenUnsatisfiable}").duplicate_of(&format!("{{{key}, {when}}}"));
        }
        if let Some(number) = domains.value.as_i64() {
            if number <= 0 {
                domains.invalid(POSITIVE);
            }
            if when != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
                domains.invalid(detail);
            }
        }
        for policy in
            ["nodeAffinityPolicy", "nodeTaintsPolicy"].into_iter().filter_map(|field| one.get(field))
        {
            policy.supported(&["Honor", "Ignore"]);
        }
        label_keys(one);
        one.child("labelSelector").label_selector();
    }
}

/// Checks a node selector (`ValidateNodeSelector`).
pub(crate) fn selector(selector: Field<'_, '_>) {
    if list(selector.value, "nodeSelectorTerms").is_empty() {
        selector.child("nodeSelectorTerms").required("must have at least one node selector term");
    }
    selector.items("nodeSelectorTerms").for_each(|one| term(one, true));
}

/// `ValidateNodeSelectorTerm`; the values of labels are checked if `values` says so.
fn term(term: Field<'_, '_>, values: bool) {
    term.items("matchExpressions").for_each(|requirement| of_labels(requirement, values));
    term.items("matchFields").for_each(of_fields);
}

fn of_labels(requirement: Field<'_, '_>, check_values: bool) {
    requirement.operator_has_values();
    let operator = requirement.child("operator");
    match operator.text() {
        "Gt" | "Lt" if list(requirement.value, "values").len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            requirement.child("values").required(why);
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => operator.invalid(NOT_AN_OPERATOR),
    }
    requirement.child("key").check(rules::qualified_name);
    if check_values {
        requirement.label_values();
    }
}

fn of_fields(requirement: Field<'_, '_>) {
    let (operator, key) = (requirement.child("operator"), requirement.child("key"));
    match operator.text() {
        "In" | "NotIn" if list(requirement.value, "values").len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            requirement.child("values").required(why);
        }
        "In" | "NotIn" => {}
        _ => operator.invalid(NOT_AN_OPERATOR),
    }
    if key.text() != "metadata.name" {
        return key.invalid("not a valid field selector key");
    }
    for value in requirement.items("values") {
        value.check(rules::dns_subdomain);
    }
}

const NOT_AN_OPERATOR: &str = "not a valid selector operator";
