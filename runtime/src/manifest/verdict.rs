//! Holds a Pod against what nodlet acts on: refuses what would run otherwise than it
//! says, warns about what has no effect here. The column is [`crate::schema`]'s.

use serde_json::{Map, Value};

use super::field::{Errors, FieldError, First, Path};
use super::validate::list;
use crate::schema::{self, Field, Shape, Type, Verdict};
use crate::spec::Quantity;
use crate::spec::container::CAPABILITIES;

/// What a Pod asks for that it does not get.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    pub(super) refused: Errors,
    pub(super) warnings: First<String>,
}

/// How messages name the program.
const NODLET: &str =
    concat!("nodlet ", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

/// Old annotations that once said what fields say now, and that Kubernetes ignores.
const OLD_ANNOTATIONS: [(&str, &str); 2] = [
    ("pod.alpha.kubernetes.io/init-containers", "spec.initContainers"),
    ("pod.beta.kubernetes.io/init-containers", "spec.initContainers"),
];

/// Judges a Pod as it was written, before defaults.
pub(super) fn judge(pod: &Value) -> Verdicts {
    let mut verdicts = Verdicts::default();
    metadata(pod, &mut verdicts);
    if let (Some(spec), Some(owner)) = (pod["spec"].as_object(), schema::find("PodSpec")) {
        let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
        let path = Path::root("spec");
        Judge { host_network, verdicts: &mut verdicts }.object(spec, owner, &path);
        for field in ["containers", "initContainers", "ephemeralContainers"] {
            let path = path.child(field);
            for (index, container) in list(&pod["spec"], field).iter().enumerate() {
                let path = path.index(index);
                capabilities(container, &path, &mut verdicts);
                fractions(container, &path, &mut verdicts);
            }
        }
    }
    verdicts
}

fn metadata(pod: &Value, verdicts: &mut Verdicts) {
    let path = Path::root("metadata");
    if pod["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()) {
        verdicts.warnings.push(warning(&path.child("finalizers"), "waits for no finalizers"));
    }
    for (annotation, field) in OLD_ANNOTATIONS {
        if pod["metadata"]["annotations"].get(annotation).is_some() {
            let path = path.child("annotations");
            verdicts.warnings.push(format!(
                "{}: has had no effect since Kubernetes 1.8: its init containers will not run; they belong into {field}",
                path.key(annotation)
            ));
        }
    }
}

struct Judge<'a> {
    host_network: bool,
    verdicts: &'a mut Verdicts,
}

impl Judge<'_> {
    fn object(&mut self, map: &Map<String, Value>, owner: &Type, path: &Path<'_>) {
        for (name, value) in map {
            let path = path.child(name);
            // Without a verdict, what holds the field was refused already.
            if let (Some(field), Some(verdict)) = (owner.field(name), schema::verdict(owner.name, name)) {
                let verdict = match verdict {
                    Verdict::InMemoryOnly(_)
                        if map.get("medium").is_some_and(|medium| medium == "Memory") =>
                    {
                        Verdict::Acts
                    }
                    other => other,
                };
                self.field(value, field, verdict, &path);
            }
        }
    }

    fn field(&mut self, value: &Value, field: &Field, verdict: Verdict, path: &Path<'_>) {
        let is_one_of = |values: &[&str]| values.contains(&value.to_string().as_str());
        match verdict {
            Verdict::Acts => self.below(value, field, path),
            Verdict::Only(values, why) | Verdict::Refuses(why, values) => {
                if !is_one_of(values) {
                    self.refuse(path, why);
                }
            }
            Verdict::HostNetworkOnly(why, values) => {
                if !self.host_network && !is_one_of(values) {
                    self.refuse(path, why);
                }
            }
            Verdict::Warns(why, values) => {
                if !is_one_of(values) {
                    self.verdicts.warnings.push(warning(path, why));
                }
            }
            Verdict::InMemoryOnly(why) => self.verdicts.warnings.push(warning(path, why)),
            Verdict::Resources => {
                for (name, amount) in value.as_object().into_iter().flatten() {
                    match name.as_str() {
                        "cpu" | "memory" => {}
                        "ephemeral-storage" if field.name == "requests" => {}
                        "ephemeral-storage" => {
                            self.verdicts
                                .warnings
                                .push(warning(&path.key(name), "does not limit what containers write yet"));
                        }
                        // Who asks for none has all that they ask for.
                        _ if is_none(amount) => {}
                        _ => self.refuse(
                            &path.key(name),
                            "has no resources but cpu, memory and ephemeral-storage",
                        ),
                    }
                }
            }
        }
    }

    /// What lies below a field that is acted on.
    fn below(&mut self, value: &Value, field: &Field, path: &Path<'_>) {
        let Some(owner) = field.object() else { return };
        match (field.shape, value) {
            (Shape::List(_), Value::Array(list)) => {
                for (index, element) in list.iter().enumerate() {
                    if let Value::Object(map) = element {
                        self.object(map, owner, &path.index(index));
                    }
                }
            }
            (Shape::One, Value::Object(map)) => self.object(map, owner, path),
            _ => {}
        }
    }

    fn refuse(&mut self, path: &Path<'_>, why: &str) {
        self.verdicts.refused.push(FieldError::forbidden(path, format!("{NODLET} {why}")));
    }
}

/// A name that no kernel has gives nothing, and takes nothing away.
fn capabilities(container: &Value, path: &Path<'_>, verdicts: &mut Verdicts) {
    let (context, field) = (path.child("securityContext"), "capabilities");
    let path = context.child(field);
    for list in ["add", "drop"] {
        let path = path.child(list);
        let names = container["securityContext"][field][list].as_array();
        for (index, name) in names.into_iter().flatten().enumerate() {
            let name = name.as_str().unwrap_or_default();
            let upper = name.to_uppercase();
            let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
            if bare != "ALL" && !CAPABILITIES.contains(&bare) {
                let path = path.index(index);
                let warning =
                    format!("{path}: has no effect: {name:?} is none of the capabilities that Linux has");
                verdicts.warnings.push(warning);
            }
        }
    }
}

/// As Kubernetes' API warns (`GetWarningsForPod`): with `m` for thousandths where `M` was meant.
fn fractions(container: &Value, path: &Path<'_>, verdicts: &mut Verdicts) {
    let path = path.child("resources");
    for field in ["limits", "requests"] {
        let path = path.child(field);
        for name in ["memory", "ephemeral-storage"] {
            let Some(text) = container["resources"][field][name].as_str() else { continue };
            if Quantity::parse(text).is_ok_and(|amount| !amount.is_whole()) {
                let path = path.key(name);
                verdicts
                    .warnings
                    .push(format!("{path}: fractional byte value {text:?} is invalid, must be an integer"));
            }
        }
    }
}

fn is_none(amount: &Value) -> bool {
    match amount {
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => Quantity::parse(text).is_ok_and(|amount| amount.is_zero()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn warning(path: &Path<'_>, why: &str) -> String {
    format!("{path}: has no effect: {NODLET} {why}")
}
