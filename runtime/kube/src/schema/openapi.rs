//! The schemas of OpenAPI v3 with which `kubectl explain` shows the fields of a kind, from the table of types: those that
//! nodlet acts on or warns about, and not those that it rejects.

use std::io::Read;

use serde_json::{Map, Value as Json, json};

use super::support::{SUPPORT, support};
use super::{Field, FieldSupport, Shape, Type, Value, find, table};

/// What `cargo xtask schema` writes: the first sentence of Kubernetes' description of each type, and of each of its
/// fields, a line for each in the order of the table. `*` precedes that of a required field.
static DESCRIPTIONS: &[u8] = include_bytes!("descriptions.deflate");

/// The descriptions of types and fields.
#[derive(Debug)]
pub struct Descriptions(String);

impl Descriptions {
    /// Unpacks the descriptions, which takes some 80 KiB of memory.
    pub fn unpack() -> Descriptions {
        let mut text = String::new();
        let read = flate2::read::DeflateDecoder::new(DESCRIPTIONS).read_to_string(&mut text);
        Descriptions(if read.is_ok() { text } else { String::new() })
    }

    /// The lines about a type and its fields.
    fn of(&self, of: &Type) -> impl Iterator<Item = &str> {
        let earlier = table::TYPES.iter().take_while(|earlier| earlier.name != of.name);
        self.0.split('\n').skip(earlier.map(|earlier| 1 + earlier.fields.len()).sum())
    }
}

/// Adds the schema of a kind and of all types that it reaches to `schemas`. `gvk` is its group, version and kind.
pub fn add_kind(name: &str, gvk: Json, texts: &Descriptions, schemas: &mut Map<String, Json>) {
    match find(name) {
        Some(of) => add(of, texts, schemas),
        // A kind of nodlet's own, or one whose objects are only shown.
        None => drop(schemas.insert(name.to_owned(), json!({"type": "object"}))),
    }
    schemas[name]["x-kubernetes-group-version-kind"] = json!([gvk]);
}

fn add(of: &'static Type, texts: &Descriptions, schemas: &mut Map<String, Json>) {
    if schemas.contains_key(of.name) {
        return;
    }
    // Types may contain themselves.
    schemas.insert(of.name.to_owned(), Json::Null);
    let (mut properties, mut required) = (Map::new(), Vec::new());
    let mut lines = texts.of(of);
    let about = lines.next().unwrap_or_default();
    for (field, line) in of.fields.iter().zip(lines).filter(|(field, _)| is_accepted(of, field)) {
        if let Some(object) = field.object() {
            add(object, texts, schemas);
        }
        let mut shown = property(field);
        let text = line.strip_prefix('*').unwrap_or(line);
        if text.len() < line.len() {
            required.push(field.name);
        }
        shown["description"] = match support(of.name, field.name) {
            Some(FieldSupport::Warns(why, _)) => format!("{text}. nodlet {why}.").into(),
            _ => text.into(),
        };
        properties.insert(field.name.to_owned(), shown);
    }
    let shown =
        json!({"type": "object", "description": about, "properties": properties, "required": required});
    schemas.insert(of.name.to_owned(), shown);
}

/// Whether an accepted object can have the field.
fn is_accepted(of: &Type, field: &Field) -> bool {
    if of.name == "PersistentVolumeSpec" {
        let is_source = field.object().is_some_and(|object| object.name.ends_with("VolumeSource"));
        return !is_source || ["hostPath", "local"].contains(&field.name);
    }
    match support(of.name, field.name) {
        Some(FieldSupport::Rejects(..)) => false,
        Some(_) => true,
        None => SUPPORT.iter().all(|(owner, _)| *owner != of.name),
    }
}

fn property(field: &Field) -> Json {
    let value = match (field.value, field.object()) {
        (_, Some(object)) => json!({"$ref": format!("#/components/schemas/{}", object.name)}),
        (Value::Bool, _) => json!({"type": "boolean"}),
        (Value::Int32 | Value::Int64, _) => json!({"type": "integer"}),
        (Value::Any | Value::Object(_), _) => json!({"type": "object"}),
        (Value::Quantity | Value::IntOrString | Value::String | Value::Time, _) => json!({"type": "string"}),
    };
    match field.shape {
        Shape::One if value["$ref"].is_string() => json!({"allOf": [value]}),
        Shape::One => value,
        Shape::List(_) => json!({"type": "array", "items": value}),
        Shape::Map => json!({"type": "object", "additionalProperties": value}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodlet_fuzz::assert_ends_with;

    #[test]
    fn each_field_of_the_table_has_a_line_and_what_is_accepted_a_description() {
        let texts = Descriptions::unpack();
        let fields: usize = table::TYPES.iter().map(|of| 1 + of.fields.len()).sum();
        assert_eq!(texts.0.split('\n').count(), fields);
        let mut schemas = Map::new();
        add_kind("Pod", json!({"group": "", "version": "v1", "kind": "Pod"}), &texts, &mut schemas);
        let container = &schemas["Container"];
        assert_eq!(container["required"], json!(["name"]));
        let expected = "A single application container that you want to run within a pod";
        assert_eq!(container["description"], expected);
        let ports = &container["properties"]["ports"];
        assert_eq!(ports["items"]["$ref"], "#/components/schemas/ContainerPort");
        assert_eq!(ports["description"], "List of ports to expose from the container");
        let spec = &schemas["PodSpec"]["properties"];
        let scheduler = spec["preemptionPolicy"]["description"].as_str().expect("a text");
        assert_ends_with(
            &scheduler,
            "nodlet schedules nothing: the pod runs on the node that has its manifest.",
        );
        // What is rejected is not explained.
        assert!(spec.get("resourceClaims").is_none() && !schemas.contains_key("PodResourceClaim"));
        let undescribed: Vec<&String> = schemas
            .iter()
            .filter(|(_, schema)| {
                schema["properties"]
                    .as_object()
                    .is_some_and(|all| all.values().any(|one| one["description"] == ""))
            })
            .map(|(name, _)| name)
            .collect();
        assert!(undescribed.is_empty(), "{undescribed:?}");
    }
}
