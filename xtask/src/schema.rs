//! Writes `runtime/kube/src/schema/table.rs` from the OpenAPI document that Kubernetes publishes in its Go
//! module and the protobuf definitions in the modules of its types, then `docs/pods.md` from that table and `runtime/kube/src/schema/support.rs`. Uses
//! the network, through `go mod download`. For a new Kubernetes version, change the constant below, run this
//! task, and read the diff.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use nodlet_build::files;
use nodlet_build::task::{Outcome, Task, TaskError, project, run as run_command};
use nodlet_build::toolchain::cargo;
use serde_json::Value;

use self::messages::Messages;

mod messages;

/// The Kubernetes version whose API nodlet implements.
const VERSION: &str = "v1.36.3";

/// The root types of the table besides those of the kinds that clients may create. The table also has every type
/// that a root reaches.
const ROOTS: [&str; 4] = [
    "io.k8s.api.core.v1.Event",
    "io.k8s.api.core.v1.PodList",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
];

/// The task `cargo xtask schema`.
pub(crate) const TASK: Task =
    Task::new("schema", "", "write the table of Kubernetes' fields and docs/pods.md anew (Go, network)", run);

/// Runs `cargo xtask schema`.
pub(super) fn run(_: &[String]) -> Outcome {
    let definitions = definitions()?;
    let table = table(&definitions, &messages()?)?;
    let path = project().join("runtime/kube/src/schema/table.rs");
    files::write(&path, table)?;
    let path = project().join("runtime/kube/src/schema/descriptions.deflate");
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(descriptions(&definitions)?.as_bytes())?;
    files::write(&path, encoder.finish()?)?;
    // The test that checks the page also prints it, because the support of fields is code of that crate.
    run_command(
        cargo()?
            .args(["test", "--package", "nodlet-kube", "--lib", "docs_pods_md"])
            .env("NODLET_WRITE_DOCS", "1"),
    )
}

/// Reads `definitions` of `api/openapi-spec/swagger.json`.
fn definitions() -> Result<BTreeMap<String, Value>, TaskError> {
    let path = module(&format!("k8s.io/kubernetes@{VERSION}"))?.join("api/openapi-spec/swagger.json");
    let document: Value = serde_json::from_str(&files::read_text(&path)?)?;
    let definitions = document["definitions"].as_object().ok_or("the OpenAPI document has no definitions")?;
    Ok(definitions.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Reads the protobuf messages of the groups that have types in the table. The modules of the types have version 0 of the
/// same minor version.
fn messages() -> Result<Messages, TaskError> {
    let version = VERSION.replacen("v1.", "v0.", 1);
    let api = module(&format!("k8s.io/api@{version}"))?;
    let groups =
        ["core", "discovery", "node", "scheduling"].map(|group| api.join(group).join("v1/generated.proto"));
    let meta = module(&format!("k8s.io/apimachinery@{version}"))?.join("pkg/apis/meta/v1/generated.proto");
    let texts: Result<Vec<String>, TaskError> =
        groups.iter().chain([&meta]).map(|path| files::read_text(path)).collect();
    Messages::read(&texts?.concat())
}

/// The folder with the sources of a Go module, fetched if it is not there yet.
fn module(module: &str) -> Result<PathBuf, TaskError> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(std::env::temp_dir())
        .output()
        .map_err(|error| format!("failed to run go: {error}; install Go to fetch {module}"))?;
    let answer: Value = serde_json::from_slice(&output.stdout)?;
    let Some(dir) = answer["Dir"].as_str() else {
        return Err(TaskError(format!(
            "go mod download {module}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    };
    Ok(PathBuf::from(dir))
}

/// The Rust source of the table.
fn table(definitions: &BTreeMap<String, Value>, messages: &Messages) -> Result<String, TaskError> {
    let reached = reach(definitions, |_, _| true)?;
    let mut types = BTreeMap::new();
    for name in &reached {
        if scalar(name).is_none()
            && let Some(other) = types.insert(short(name), name)
        {
            return Err(TaskError(format!("{name} and {other} have one short name")));
        }
    }
    let index: BTreeMap<&str, usize> = types.keys().enumerate().map(|(index, name)| (*name, index)).collect();

    let mut merges: Vec<String> = Vec::new();
    let mut body = String::new();
    for (name, full) in &types {
        writeln!(body, "    Type {{ name: \"{name}\", fields: &[")?;
        let empty = serde_json::Map::new();
        let properties = definitions[full.as_str()]["properties"].as_object().unwrap_or(&empty);
        let sorted: BTreeMap<&String, &Value> = properties.iter().collect();
        for (field, schema) in sorted {
            let (shape, element) = if schema["type"] == "array" {
                let merge = merge(schema)?;
                let position = merges.iter().position(|known| *known == merge).unwrap_or_else(|| {
                    merges.push(merge);
                    merges.len() - 1
                });
                (format!("Shape::List({position})"), &schema["items"])
            } else if schema["additionalProperties"].is_object() {
                ("Shape::Map".to_owned(), &schema["additionalProperties"])
            } else {
                ("Shape::One".to_owned(), schema)
            };
            let value = value(element, &index)
                .ok_or_else(|| format!("{name}.{field}: no value type for {element}"))?;
            let (within, number) = messages.number(name, field)?;
            writeln!(body, "        field(\"{field}\", {within}, {number}, {shape}, {value}),")?;
        }
        writeln!(body, "    ] }},")?;
    }

    let mut out = format!(
        "//! Generated by `cargo xtask schema` from the OpenAPI document of Kubernetes {VERSION}.\n\
         //! Change nothing here.\n\n\
         use super::{{ListType, Merge, Shape, Type, Value, field}};\n\n\
         /// The version of Kubernetes that this table is of.\n\
         pub const KUBERNETES: &str = \"{VERSION}\";\n\n\
         /// Every type, sorted by name; [`Value::Object`] is an index into it.\n\
         pub(super) static TYPES: &[Type] = &[\n{body}];\n\n\
         /// How lists merge; [`Shape::List`] is an index into it.\n\
         pub(super) static MERGES: &[Merge] = &[\n"
    );
    for merge in merges {
        writeln!(out, "    {merge},")?;
    }
    out.push_str("];\n");
    Ok(out)
}

/// The first sentence about each type and each of its fields, a line for each, in the order of the table; `*` precedes that
/// of a required field. The line is empty for what no accepted object has.
fn descriptions(definitions: &BTreeMap<String, Value>) -> Result<String, TaskError> {
    let path = project().join("runtime/kube/src/schema/support.rs");
    let support = files::read_text(&path)?;
    let accepted = accepted(&support);
    let is_accepted = |owner: &str, field: &str| {
        let of = reference(&definitions[owner]["properties"][field]).map_or("", short);
        match short(owner) {
            // Nobody asks for an explanation of lists, options and answers.
            "DeleteOptions" | "PodList" | "Preconditions" | "Status" => false,
            "PersistentVolumeSpec" => !of.ends_with("VolumeSource") || ["hostPath", "local"].contains(&field),
            owner => accepted.get(owner).is_none_or(|fields| fields.contains(&field)),
        }
    };
    let (all, shown) = (reach(definitions, |_, _| true)?, reach(definitions, is_accepted)?);
    let types: BTreeMap<&str, &String> =
        all.iter().filter(|name| scalar(name).is_none()).map(|name| (short(name), name)).collect();
    let mut lines = Vec::new();
    for full in types.values() {
        let definition = &definitions[full.as_str()];
        let is_shown = shown.contains(*full);
        lines.push(if is_shown { sentence(definition).to_owned() } else { String::new() });
        let required = |field: &str| {
            definition["required"].as_array().is_some_and(|all| all.iter().any(|one| one == field))
        };
        let properties = definition["properties"].as_object();
        let sorted: BTreeMap<&String, &Value> = properties.into_iter().flatten().collect();
        lines.extend(sorted.into_iter().map(|(field, schema)| {
            if is_shown && is_accepted(full, field) {
                format!("{}{}", if required(field) { "*" } else { "" }, sentence(schema))
            } else {
                String::new()
            }
        }));
    }
    Ok(lines.join("\n"))
}

/// The fields that accepted objects can have, of each type in the column of the behaviour.
fn accepted(support: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut types: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for of_type in support.split("\n    (\"").skip(1) {
        let Some((owner, groups)) = of_type.split_once("\", &[") else { continue };
        let fields = types.entry(owner).or_default();
        // The names are the last list of a group: one before it has values of a warning.
        let mut starts: Vec<usize> = ["(Acts,", "(Warns(", "(Rejects(", "(Resources,"]
            .iter()
            .flat_map(|support| groups.match_indices(support).map(|(at, _)| at))
            .collect();
        starts.sort_unstable();
        for (place, start) in starts.iter().enumerate() {
            let group = &groups[*start..starts.get(place + 1).copied().unwrap_or(groups.len())];
            let names = group.rsplit_once("&[").map_or("", |(_, names)| names);
            if !group.starts_with("(Rejects(") {
                fields.extend(names.split('"').skip(1).step_by(2));
            }
        }
    }
    types
}

fn sentence(schema: &Value) -> &str {
    let text = schema["description"].as_str().unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    line.split_once(". ").map_or(line, |(first, _)| first).trim_end_matches('.')
}

/// Every definition that the root types reach by fields for which `follows` is true.
fn reach(
    definitions: &BTreeMap<String, Value>,
    follows: impl Fn(&str, &str) -> bool,
) -> Result<BTreeSet<String>, TaskError> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<String> = ROOTS.iter().map(|root| (*root).to_owned()).collect();
    let kinds = project().join("runtime/kube/src/kind.rs");
    let rows = files::read_text(&kinds)?;
    let of_kinds = roots(&rows);
    // A kind that Kubernetes has removed has no type.
    open.extend(of_kinds.into_iter().filter(|root| definitions.contains_key(root)));
    while let Some(name) = open.pop() {
        if !reached.insert(name.clone()) {
            continue;
        }
        let definition =
            definitions.get(&name).ok_or_else(|| format!("the OpenAPI document has no {name}"))?;
        let properties = definition["properties"].as_object();
        for (field, schema) in properties.into_iter().flatten() {
            if !follows(&name, field) {
                continue;
            }
            for place in [schema, &schema["items"], &schema["additionalProperties"]] {
                open.extend(reference(place).map(str::to_owned));
            }
        }
    }
    Ok(reached)
}

/// The types of the kinds that clients may create, by the rows of the table of kinds. The text is read, since this
/// task must also run while the table of the schema does not fit the kinds.
fn roots(text: &str) -> Vec<String> {
    let value = |row: &str, field: &str| {
        let (_, rest) = row.split_once(&format!("        {field}: \""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let root = |row: &str| {
        let (head, fields) = row.split_once(" {\n")?;
        let (name, _) = head.lines().last()?.trim_start().split_once(" in ")?;
        let version = value(row, "version").unwrap_or_else(|| "v1".to_owned());
        let (group, version) = version.split_once('/').unwrap_or(("core", &version));
        let group = group.split_once('.').map_or(group, |(first, _)| first);
        (!fields.contains("verbs: READ_VERBS")).then(|| format!("io.k8s.api.{group}.{version}.{name}"))
    };
    let rows = text.split_once("\nkinds! {\n").map_or("", |(_, rows)| rows);
    rows.split("\n    }\n").filter_map(root).collect()
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix("#/definitions/")
}

fn short(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The scalar for types of Kubernetes that are encoded as one.
fn scalar(name: &str) -> Option<&'static str> {
    match short(name) {
        "Quantity" => Some("Value::Quantity"),
        "IntOrString" => Some("Value::IntOrString"),
        "Time" | "MicroTime" => Some("Value::Time"),
        "FieldsV1" => Some("Value::Any"),
        _ => None,
    }
}

fn value(schema: &Value, index: &BTreeMap<&str, usize>) -> Option<String> {
    if let Some(name) = reference(schema) {
        return match scalar(name) {
            Some(value) => Some(value.to_owned()),
            None => index.get(short(name)).map(|index| format!("Value::Object({index})")),
        };
    }
    let value = match (schema["type"].as_str()?, schema["format"].as_str()) {
        ("string", _) => "Value::String",
        ("boolean", _) => "Value::Bool",
        ("integer", Some("int32")) => "Value::Int32",
        ("integer", _) => "Value::Int64",
        ("object", _) => "Value::Any",
        _ => return None,
    };
    Some(value.to_owned())
}

/// The Rust source of a list's merge rule.
fn merge(schema: &Value) -> Result<String, TaskError> {
    let kind = match schema["x-kubernetes-list-type"].as_str() {
        Some("map") => "Map",
        Some("set") => "Set",
        Some("atomic") | None => "Atomic",
        Some(other) => return Err(TaskError(format!("unknown x-kubernetes-list-type {other}"))),
    };
    let keys: Vec<String> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|key| key.as_str().map(|key| format!("\"{key}\"")))
        .collect();
    let strategy = schema["x-kubernetes-patch-strategy"].as_str().unwrap_or_default();
    Ok(format!(
        "Merge {{ list: ListType::{kind}, map_keys: &[{}], patch_merge: {}, patch_retain_keys: {}, patch_merge_key: \"{}\" }}",
        keys.join(", "),
        strategy.split(',').any(|word| word == "merge"),
        strategy.split(',').any(|word| word == "retainKeys"),
        schema["x-kubernetes-patch-merge-key"].as_str().unwrap_or_default(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str) -> String {
        files::read_text(&project().join(path)).expect("a source of the project")
    }

    #[test]
    fn the_kinds_that_clients_may_create_are_found_in_their_table() {
        let roots = roots(&source("runtime/kube/src/kind.rs"));
        for wanted in [
            "core.v1.Pod",
            "core.v1.ConfigMap",
            "scheduling.v1.PriorityClass",
            "core.v1.PersistentVolumeClaim",
        ] {
            assert!(roots.contains(&format!("io.k8s.api.{wanted}")), "{wanted}: {roots:?}");
        }
        assert!(!roots.iter().any(|root| root.ends_with(".Node") || root.ends_with(".Event")), "{roots:?}");
    }

    #[test]
    fn the_fields_that_are_accepted_are_found_in_their_table() {
        let support = source("runtime/kube/src/schema/support.rs");
        let types = accepted(&support);
        let has = |owner: &str, field: &str| types.get(owner).is_some_and(|fields| fields.contains(field));
        assert!(
            has("PodSpec", "affinity") && has("PodSpec", "enableServiceLinks") && has("Container", "image")
        );
        assert!(
            has("ResourceRequirements", "limits")
                && !has("PodSpec", "false")
                && !has("PodSpec", "resourceClaims")
        );
        assert!(types.values().map(BTreeSet::len).sum::<usize>() > 250);
    }
}
