//! LimitRanges (`v1`): defaults and bounds for the resources of the pods of a namespace, applied when a pod is admitted
//! (plugin `LimitRanger` of Kubernetes), and as `kubectl describe` prints them, alone and with their namespace. Pure.
//!
//! The defaults that a pod got are kept with it as presets are ([`AppliedPreset`]), so that neither a later LimitRange nor a
//! later agent changes them.

use crate::object::value::{self, map, text};
use nodlet_core::sorted::SortedSet;

use serde_json::{Map, Value, json};

use super::applied::AppliedPreset;
use super::definition::{self, Read, Reader};
use super::describe::Tabs;
use super::describe::text::{list, of, quantity};
use super::generic;
use super::strategy::Strategy;
use crate::object::check::Field;
use crate::object::field::Errors;
use crate::pod::claim::canonical;
use crate::pod::validate::{of_containers, resources};
use nodlet_core::spec::Quantity;
use nodlet_core::spec::pod::LIMIT_RANGER;

/// The type of the bounds of each container.
const CONTAINER: &str = "Container";
/// The type of the bounds of a pod as a whole.
const POD: &str = "Pod";
/// The type of the bounds of each claim.
const CLAIM: &str = "PersistentVolumeClaim";

pub(super) static STRATEGY: Strategy =
    Strategy { has_events: false, reader: Some(READER), ..Strategy::new(generic::COLUMNS, describe) };

/// Reads LimitRanges.
const READER: Reader = Reader { read: Read::Rules(rules), check_update: definition::any_update };

/// The lists of amounts of a limit, in the order in which Kubernetes checks them.
const LISTS: [&str; 5] = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];

fn limits_of(range: &Value) -> &[Value] {
    value::list(&range["spec"], "limits")
}

fn amount_of(value: &Value) -> Option<Quantity> {
    value.as_str().and_then(|text| Quantity::parse(text).ok())
}

/// The defaults of a LimitRange (`SetDefaults_LimitRangeItem`), and `ValidateLimitRange`.
fn rules(range: &mut Value, _: &Value, errors: &mut Errors) {
    let limits = range.pointer_mut("/spec/limits").and_then(Value::as_array_mut);
    for limit in limits.into_iter().flatten() {
        for amounts in limit.as_object_mut().into_iter().flat_map(Map::values_mut) {
            canonical(amounts);
        }
        if limit["type"] != CONTAINER {
            continue;
        }
        // Each list lacks nothing that the list before it has.
        for (to, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")] {
            for (resource, amount) in limit[from].as_object().cloned().into_iter().flatten() {
                if limit[to].get(&resource).is_none() {
                    limit[to][resource] = amount;
                }
            }
        }
    }
    let mut known = SortedSet::new();
    for limit in Field::root(&range["spec"], "spec", errors).items("limits") {
        let kind = limit.child("type");
        kind.supported(&[CONTAINER, CLAIM, POD]);
        kind.unique(&mut known);
        let kind = kind.text();
        for list in LISTS {
            let amounts = limit.child(list);
            if kind == POD && list.starts_with("default") {
                if map(amounts.value).next().is_some() {
                    amounts.forbidden("may not be specified when `type` is 'Pod'");
                }
                continue;
            }
            for (resource, amount) in amounts.entries() {
                let check = if kind == CLAIM { resources::qualified } else { resources::name };
                check(amount, resource);
            }
        }
        if kind == CLAIM && ["min", "max"].iter().all(|list| limit.value[*list].get("storage").is_none()) {
            let detail = "either minimum or maximum storage value is required, but neither was provided";
            limit.child("limits").required(detail);
        }
        bounds(limit);
    }
}

/// Checks that the amounts of one entry do not contradict each other, resource by resource.
fn bounds(field: Field<'_, '_>) {
    let limit = field.value;
    let lists = LISTS.iter().filter(|list| text(limit, "type") != POD || !list.starts_with("default"));
    let known: SortedSet<&String> =
        lists.flat_map(|list| map(&limit[*list]).map(|(resource, _)| resource)).collect();
    for resource in known.iter() {
        let amount = |list: &str| limit[list].get(*resource).and_then(amount_of);
        let refuse = |list: &str, value: &Quantity, detail: String| {
            field.child(list).key(resource).invalid_text(&value.to_string(), detail);
        };
        for (list, lower, lower_name, upper, upper_name) in [
            ("min", "min", "min", "max", "max"),
            ("defaultRequest", "min", "min", "defaultRequest", "default request"),
            ("defaultRequest", "defaultRequest", "default request", "max", "max"),
            ("defaultRequest", "defaultRequest", "default request", "default", "default limit"),
            ("default", "min", "min", "default", "default"),
            ("default", "default", "default", "max", "max"),
        ] {
            let (Some(low), Some(high)) = (amount(lower), amount(upper)) else { continue };
            if low > high {
                // Kubernetes shows the bound, and not the value of `default`.
                let shown = if (list == upper) != (list == "default") { &high } else { &low };
                let detail = format!("{lower_name} value {low} is greater than {upper_name} value {high}");
                refuse(list, shown, detail);
            }
        }
        if let Some(ratio) = amount("maxLimitRequestRatio") {
            let list = "maxLimitRequestRatio";
            if ratio < Quantity::from_milli(1000) {
                refuse(list, &ratio, format!("ratio {ratio} is less than 1"));
            }
            if let (Some(least), Some(most)) = (amount("min"), amount("max")) {
                let found = most.milli_value() as f64 / least.milli_value() as f64;
                if ratio.milli_value() as f64 > found * 1000.0 {
                    refuse(list, &ratio, format!("ratio {ratio} is greater than max/min = {found:.6}"));
                }
            }
        }
        if let (Some(limit), Some(request)) = (amount("default"), amount("defaultRequest"))
            && limit != request
            && !resources::may_be_overcommitted(resource)
        {
            let detail =
                format!("default value {limit} must equal to defaultRequest value {request} in {resource}");
            refuse("defaultRequest", &request, detail);
        }
    }
}

/// The defaults of LimitRanges for containers, in the order of `ranges`, and what the pod gets of its RuntimeClass;
/// `None` if there is nothing of either.
pub fn defaults(ranges: &[Value], of_class: Map<String, Value>) -> Option<AppliedPreset> {
    let has_class = !of_class.is_empty();
    let mut spec = Value::Object(of_class);
    for list in ["limits", "requests"] {
        spec[list] = json!({});
    }
    for limit in ranges.iter().flat_map(limits_of) {
        if text(limit, "type") != CONTAINER {
            continue;
        }
        for (to, from) in [("limits", "default"), ("requests", "defaultRequest")] {
            for (resource, amount) in map(&limit[from]) {
                if spec[to].get(resource).is_none() {
                    spec[to][resource] = amount.clone();
                }
            }
        }
    }
    let is_empty = ["limits", "requests"].iter().all(|list| map(&spec[*list]).next().is_none());
    (has_class || !is_empty).then(|| AppliedPreset { name: String::new(), version: String::new(), spec })
}

/// Whether this is what a pod gets from its RuntimeClass and from LimitRanges, and not a preset.
pub(crate) fn is_defaults(applied: &AppliedPreset) -> bool {
    applied.name.is_empty()
}

/// Gives the containers of a pod the defaults that they lack (`mergePodResourceRequirements`).
pub(crate) fn apply(pod: &mut Value, defaults: &AppliedPreset) {
    let mut texts = Vec::new();
    for (field, prefix) in [("containers", "container"), ("initContainers", "init container")] {
        for container in pod["spec"].get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let mut set = |list: &str, what: &str| {
                let mut names = Vec::new();
                for (resource, amount) in map(&defaults.spec[list]) {
                    if container["resources"][list].get(resource).is_none() {
                        names.push(resource.as_str());
                        if !container["resources"].is_object() {
                            container["resources"] = json!({});
                        }
                        if !container["resources"][list].is_object() {
                            container["resources"][list] = json!({});
                        }
                        container["resources"][list][resource] = amount.clone();
                    }
                }
                let name = container["name"].as_str().unwrap_or_default();
                (!names.is_empty()).then(|| format!("{} {what} for {prefix} {name}", names.join(", ")))
            };
            let (limits, requests) = (set("limits", "limit"), set("requests", "request"));
            texts.extend(requests.into_iter().chain(limits));
        }
    }
    if !texts.is_empty() {
        if !pod["metadata"]["annotations"].is_object() {
            pod["metadata"]["annotations"] = json!({});
        }
        pod["metadata"]["annotations"][LIMIT_RANGER] =
            format!("LimitRanger plugin set: {}", texts.join("; ")).into();
    }
}

/// Checks a defaulted pod against LimitRanges (`PodValidateLimitFunc`).
///
/// # Errors
/// The message of Kubernetes' admission.
pub fn check(pod: &Value, ranges: &[Value]) -> Result<(), String> {
    let spec = &pod["spec"];
    let mut errors = Vec::new();
    for limit in ranges.iter().flat_map(limits_of) {
        match text(limit, "type") {
            CONTAINER => {
                for container in
                    value::list(spec, "containers").iter().chain(value::list(spec, "initContainers"))
                {
                    let amount = |list: &str, resource: &str| {
                        container["resources"][list].get(resource).and_then(amount_of)
                    };
                    check_one(limit, CONTAINER, amount, &mut errors);
                }
            }
            POD => {
                let amount = |list: &str, resource: &str| {
                    let own = spec["resources"][list].get(resource).and_then(amount_of);
                    own.or_else(|| of_containers(spec, list, resource))
                };
                check_one(limit, POD, amount, &mut errors);
            }
            _ => {}
        }
    }
    joined(&errors)
}

/// Checks a new claim against the LimitRanges of its namespace (`PersistentVolumeClaimValidateLimitFunc`).
///
/// # Errors
/// The message of Kubernetes' admission.
pub fn check_claim(claim: &Value, ranges: &[Value]) -> Result<(), String> {
    let requests = &claim["spec"]["resources"]["requests"];
    let mut errors = Vec::new();
    for limit in ranges.iter().flat_map(limits_of).filter(|limit| text(limit, "type") == CLAIM) {
        for (list, what) in [("min", "minimum"), ("max", "maximum")] {
            for (resource, value) in map(&limit[list]) {
                let Some(bound) = amount_of(value) else { continue };
                let usage = format!("{what} {resource} usage per {CLAIM} is {bound}");
                match requests.get(resource).and_then(amount_of) {
                    None => errors.push(format!("{usage}.  No request is specified")),
                    Some(request) if if list == "min" { request < bound } else { request > bound } => {
                        errors.push(format!("{usage}, but request is {request}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    joined(&errors)
}

/// Errors as Kubernetes joins them.
fn joined(errors: &[String]) -> Result<(), String> {
    match errors {
        [] => Ok(()),
        [error] => Err(error.clone()),
        errors => Err(format!("[{}]", errors.join(", "))),
    }
}

/// Checks the amounts of one container or pod against one entry of a LimitRange.
fn check_one(
    limit: &Value,
    kind: &str,
    amount: impl Fn(&str, &str) -> Option<Quantity>,
    errors: &mut Vec<String>,
) {
    let enforced = |list: &str| {
        let given = map(&limit[list]).filter_map(|(resource, value)| Some((resource, amount_of(value)?)));
        given.collect::<Vec<_>>()
    };
    let of = |resource: &str| (amount("requests", resource), amount("limits", resource));
    for (resource, least) in enforced("min") {
        let usage = format!("minimum {resource} usage per {kind} is {least}");
        match of(resource) {
            (None, _) => errors.push(format!("{usage}.  No request is specified")),
            (Some(request), _) if request < least => {
                errors.push(format!("{usage}, but request is {request}"));
            }
            (_, Some(limit)) if limit < least => errors.push(format!("{usage}, but limit is {limit}")),
            _ => {}
        }
    }
    for (resource, most) in enforced("max") {
        let usage = format!("maximum {resource} usage per {kind} is {most}");
        match of(resource) {
            (_, None) => errors.push(format!("{usage}.  No limit is specified")),
            (_, Some(limit)) if limit > most => errors.push(format!("{usage}, but limit is {limit}")),
            (Some(request), _) if request > most => {
                errors.push(format!("{usage}, but request is {request}"));
            }
            _ => {}
        }
    }
    for (resource, ratio) in enforced("maxLimitRequestRatio") {
        let usage = format!("{resource} max limit to request ratio per {kind} is {ratio}");
        let is_set = |amount: &Quantity| !amount.is_zero();
        let (request, limit) = of(resource);
        match (request.filter(is_set), limit.filter(is_set)) {
            (None, _) => errors.push(format!("{usage}, but no request is specified or request is 0")),
            (_, None) => errors.push(format!("{usage}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let found = limit.milli_value() as f64 / request.milli_value() as f64;
                if found * 1000.0 > ratio.milli_value() as f64 {
                    errors.push(format!("{usage}, but provided ratio is {found:.6}"));
                }
            }
        }
    }
}

const HEAD: &str = "Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio";
const LINE: &str = "----\t--------\t---\t---\t---------------\t-------------\t-----------------------";

/// The fields of a limit, in the order of the columns.
const FIELDS: [&str; 5] = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];

fn describe(out: &mut Tabs, range: &Value, _: &[Value]) {
    let metadata = &range["metadata"];
    out.line(0, &format!("Name:\t{}", of(&metadata["name"])));
    out.line(0, &format!("Namespace:\t{}", of(&metadata["namespace"])));
    out.line(0, HEAD);
    out.line(0, LINE);
    limits(out, range, "");
}

/// Describes all LimitRanges of a namespace.
pub(super) fn of_namespace(out: &mut Tabs, ranges: &[Value]) {
    if ranges.is_empty() {
        return out.line(0, "No LimitRange resource.");
    }
    out.line(0, "Resource Limits");
    out.line(0, &format!(" {HEAD}"));
    out.line(0, &format!(" {LINE}"));
    ranges.iter().for_each(|range| limits(out, range, " "));
}

fn limits(out: &mut Tabs, range: &Value, prefix: &str) {
    for limit in list(&range["spec"]["limits"]) {
        // kubectl prints the resources in random order.
        let resources: SortedSet<&String> = FIELDS
            .iter()
            .filter_map(|field| limit[field].as_object())
            .flat_map(|amounts| amounts.keys())
            .collect();
        for resource in resources {
            let mut line = format!("{prefix}{}\t{resource}", of(&limit["type"]));
            for field in FIELDS {
                match &limit[field][resource] {
                    Value::Null => line.push_str("\t-"),
                    amount => line.push_str(&format!("\t{}", quantity(amount))),
                }
            }
            out.line(0, &line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Validation, contents, inject, parse};
    use nodlet_fuzz::{assert_ends_with, cases};

    fn range(limits: &str) -> Result<Value, String> {
        let text = format!(
            "apiVersion: v1\nkind: LimitRange\nmetadata: {{name: r, uid: a}}\nspec: {{limits: [{limits}]}}\n"
        );
        let read = contents("r.yaml", text.as_bytes(), Validation::Strict, "board");
        read.map(|mut contents| contents.definitions.remove(0).object()).map_err(|error| error.to_string())
    }

    fn pod(resources: &str) -> Value {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers: [{{name: app, image: i, \
             resources: {resources}}}]\n"
        );
        parse("p.yaml", text.as_bytes(), Validation::Strict, "board").expect("valid").remove(0).object
    }

    #[test]
    fn containers_get_missing_defaults_and_an_annotation_lists_them() {
        let range = range(
            "{type: Container, max: {cpu: 1}, default: {memory: 64Mi}, defaultRequest: {cpu: 100m}, min: {cpu: 50m}}",
        )
        .expect("valid");
        let defaults = defaults(std::slice::from_ref(&range), Map::new()).expect("there are some");
        let mut bare = pod("{}");
        inject(&mut bare, std::slice::from_ref(&defaults)).expect("nothing contradicts it");
        assert_eq!(
            bare["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "100m", "memory": "64Mi"}})
        );
        let expected = "LimitRanger plugin set: cpu, memory request for container app; cpu, memory limit for container app";
        assert_eq!(bare["metadata"]["annotations"][LIMIT_RANGER], expected);
        assert_eq!(check(&bare, std::slice::from_ref(&range)), Ok(()));
        let mut again = bare.clone();
        inject(&mut again, std::slice::from_ref(&defaults)).expect("nothing contradicts it");
        assert_eq!(again, bare);
        let mut own = pod("{limits: {cpu: 500m}}");
        inject(&mut own, &[defaults]).expect("nothing contradicts it");
        assert_eq!(own["spec"]["containers"][0]["resources"]["requests"]["cpu"], "500m");
    }

    #[test]
    fn a_pod_out_of_bounds_is_rejected_with_the_texts_of_kubernetes() {
        for [limits, resources, expected] in cases(
            "
            {type: Container, min: {cpu: 100m}} => {}
                => minimum cpu usage per Container is 100m.  No request is specified
            {type: Container, min: {cpu: 100m}} => {requests: {cpu: 50m}}
                => minimum cpu usage per Container is 100m, but request is 50m
            {type: Pod, max: {memory: 1Gi}, min: {memory: 1Mi}} => {requests: {memory: 2Mi}, limits: {memory: 2Gi}}
                => maximum memory usage per Pod is 1Gi, but limit is 2Gi
            {type: Container, min: {cpu: 100m}, max: {memory: 1Gi}} => {}
                => [minimum cpu usage per Container is 100m.  No request is specified, maximum memory usage per Container is 1Gi.  No limit is specified]
            {type: Container, maxLimitRequestRatio: {cpu: 2}} => {requests: {cpu: 100m}}
                => cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0
            {type: Pod, max: {memory: 1Gi}} => {} => maximum memory usage per Pod is 1Gi.  No limit is specified
            {type: Pod, max: {memory: 1Gi}} => {limits: {memory: 2Gi}}
                => maximum memory usage per Pod is 1Gi, but limit is 2Gi
            {type: Container, maxLimitRequestRatio: {cpu: 2}} => {requests: {cpu: 100m}, limits: {cpu: 250m}}
                => cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000
            {type: Container, maxLimitRequestRatio: {cpu: 2}} => {limits: {memory: 1Gi}}
                => cpu max limit to request ratio per Container is 2, but no request is specified or request is 0
            ",
        ) {
            let range = range(limits).expect("valid");
            assert_eq!(check(&pod(resources), &[range]), Err(expected.to_owned()), "{limits}");
        }
    }

    #[test]
    fn a_claim_out_of_bounds_is_rejected_with_the_texts_of_kubernetes() {
        let mut range =
            range("{type: PersistentVolumeClaim, min: {storage: 1Gi}, max: {storage: 2Gi}}").expect("valid");
        let limits = range["spec"]["limits"].as_array_mut().expect("it is a list");
        limits.push(json!({"type": "Pod", "max": {"storage": "1"}}));
        for (storage, expected) in [
            ("1Gi", Ok(())),
            ("2Gi", Ok(())),
            ("1Mi", Err("minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi")),
            ("3Gi", Err("maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi")),
        ] {
            let claim = json!({"spec": {"resources": {"requests": {"storage": storage}}}});
            let checked = check_claim(&claim, std::slice::from_ref(&range));
            assert_eq!(checked, expected.map_err(str::to_owned), "{storage}");
        }
        let none = check_claim(&json!({}), &[range]).expect_err("it requests nothing");
        assert_ends_with(&none, "usage per PersistentVolumeClaim is 2Gi.  No request is specified]");
    }

    #[test]
    fn a_limit_range_that_contradicts_itself_is_rejected() {
        for [limits, expected] in cases(
            r#"
            {type: Container, min: {cpu: 2}, max: {cpu: 1}}
                => spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1
            {type: Container, default: {cpu: 2}, max: {cpu: 1}}
                => spec.limits[0].default[cpu]: Invalid value: "1": default value 2 is greater than max value 1
            {type: Container, default: {cpu: 1}, defaultRequest: {cpu: 1}, min: {cpu: 2}}
                => spec.limits[0].default[cpu]: Invalid value: "2": min value 2 is greater than default value 1
            {type: Container, min: {cpu: 1}, max: {cpu: 2}, maxLimitRequestRatio: {cpu: 3}}
                => spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "3": ratio 3 is greater than max/min = 2.000000
            {type: Container, default: {a.b/c: 2}, defaultRequest: {a.b/c: 1}}
                => spec.limits[0].defaultRequest[a.b/c]: Invalid value: "1": default value 2 must equal to defaultRequest value 1 in a.b/c
            {type: Container, max: {gpu: 1}}
                => spec.limits[0].max[gpu]: Invalid value: "gpu": must be a standard resource for containers
            {type: Pod, default: {cpu: 2}}
                => spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'
            {type: Pod}, {type: Pod} => spec.limits[1].type: Duplicate value: "Pod"
            {type: PersistentVolumeClaim, max: {cpu: 1}}
                => spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided
            {type: Node} => spec.limits[0].type: Unsupported value: "Node"
            {type: Container, maxLimitRequestRatio: {cpu: 500m}}
                => spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: "500m": ratio 500m is less than 1
            "#,
        ) {
            let refused = range(limits).expect_err("it contradicts itself");
            assert!(refused.contains(expected), "{limits}: {refused}");
        }
    }
}
