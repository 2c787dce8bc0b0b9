//! Protobuf: fields of messages, and objects of Kubernetes in the form in which typed clients such as `kubectl create
//! configmap` and `kubectl debug --copy-to` send them. Pure. The fields' numbers are in the table of [`crate::schema`].

use serde_json::{Map, Value as Json};

use crate::base64;
use crate::schema::{self, Field as SchemaField, Shape, Type, Value};
use nodlet_core::time::Timestamp;

/// Prefix of an encoded object (`protobuf.serializer`), after which a `runtime.Unknown` follows.
const MAGIC: &[u8] = b"k8s\0";

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// A varint.
    Number(u64),
    /// A string, bytes, or a message.
    Bytes(&'a [u8]),
    /// A number of fixed length.
    Fixed,
}

impl<'a> Field<'a> {
    /// The string, bytes or message.
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Field::Bytes(bytes) => Some(bytes),
            Field::Number(_) | Field::Fixed => None,
        }
    }
}

/// Removes the next field from a message, and returns its number and value; `None` if the message is invalid.
pub fn field<'a>(message: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let key = varint(message)?;
    let number = Some(key >> 3).filter(|number| *number > 0)?;
    let (length, is_fixed) = match key & 7 {
        0 => return Some((number, Field::Number(varint(message)?))),
        1 => (8, true),
        2 => (usize::try_from(varint(message)?).ok()?, false),
        5 => (4, true),
        _ => return None,
    };
    let (value, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some((number, if is_fixed { Field::Fixed } else { Field::Bytes(value) }))
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The error of a request's body without a valid object in protobuf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtobufError {
    /// The body is not protobuf, or its kind, which is this one, is not read in protobuf.
    Unsupported(String),
    /// The body is not a valid message of its kind.
    Malformed,
    /// The object is encoded once more, by `contentEncoding`.
    ContentEncoding,
    /// The object has more values than are allowed.
    TooManyValues,
}

/// The object of a request, which may have at most `values` values. `is_read` returns whether objects of a kind are
/// read.
///
/// # Errors
/// See [`ProtobufError`].
pub fn object(body: &[u8], values: usize, is_read: fn(&str) -> bool) -> Result<Json, ProtobufError> {
    let failed =
        |left: usize| if left == 0 { ProtobufError::TooManyValues } else { ProtobufError::Malformed };
    let (mut object, mut raw) = (Map::new(), &[][..]);
    let mut left = values;
    let mut rest = body.strip_prefix(MAGIC).ok_or_else(|| ProtobufError::Unsupported(String::new()))?;
    while !rest.is_empty() {
        match field(&mut rest).ok_or(ProtobufError::Malformed)? {
            (1, Field::Bytes(bytes)) => read_type(bytes, &mut object).ok_or(ProtobufError::Malformed)?,
            (2, Field::Bytes(bytes)) => raw = bytes,
            (3, Field::Bytes([_, ..])) => return Err(ProtobufError::ContentEncoding),
            _ => {}
        }
    }
    let kind = object.get("kind").and_then(Json::as_str).unwrap_or_default();
    let of = schema::find(kind)
        .filter(|_| is_read(kind))
        .ok_or_else(|| ProtobufError::Unsupported(kind.to_owned()))?;
    read(raw, of, 0, &mut object, &mut left).ok_or_else(|| failed(left))?;
    Ok(object.into())
}

/// Reads `runtime.TypeMeta`.
fn read_type(mut bytes: &[u8], object: &mut Map<String, Json>) -> Option<()> {
    while !bytes.is_empty() {
        let (number, value) = field(&mut bytes)?;
        if let (1 | 2, Field::Bytes(value)) = (number, value) {
            object.insert(if number == 1 { "apiVersion" } else { "kind" }.to_owned(), text(value)?);
        }
    }
    Some(())
}

/// Reads a message of a type into `object`, or, if `within` is not 0, the message with this number within it. If the object
/// has fields already, of an earlier part of the message, the later part replaces scalars and extends lists, maps
/// and messages. Unknown fields, empty strings and values that may have any form are left out.
fn read(
    mut bytes: &[u8],
    of: &'static Type,
    within: u8,
    object: &mut Map<String, Json>,
    left: &mut usize,
) -> Option<()> {
    if object.is_empty() && !bytes.is_empty() {
        // A map begins with space for several values, and a message of two bytes may begin one.
        *left = left.checked_sub(1)?;
    }
    while !bytes.is_empty() {
        *left = left.checked_sub(1)?;
        let (number, value) = field(&mut bytes)?;
        let Ok(number) = u8::try_from(number) else { continue };
        let is_named = |known: &&SchemaField| known.within == within && known.number == number;
        let Some(known) = of.fields.iter().find(is_named) else {
            if within == 0 && of.fields.iter().any(|known| known.within == number) {
                read(value.bytes()?, of, number, object, left)?;
            }
            continue;
        };
        let place = object.entry(known.name).or_insert(Json::Null);
        match (known.shape, known.object()) {
            (Shape::One, Some(of)) => read(value.bytes()?, of, 0, map(place), left)?,
            (Shape::One, None) => *place = scalar(known.value, value)?,
            (Shape::List(_), Some(of)) => {
                let mut element = Map::new();
                read(value.bytes()?, of, 0, &mut element, left)?;
                add(place, element.into());
            }
            (Shape::List(_), None) => add(place, scalar(known.value, value)?),
            (Shape::Map, _) => {
                let (key, value) = pair(value.bytes()?)?;
                let key = std::str::from_utf8(key.bytes()?).ok()?;
                if place.is_null() {
                    *left = left.checked_sub(1)?;
                }
                place[key] = match (of.name, known.name) {
                    ("Secret", "data") | (_, "binaryData") => base64::encode(value.bytes()?).into(),
                    _ => scalar(known.value, value)?,
                };
            }
        }
    }
    // A generation is sent also if there is none yet.
    object.retain(|name, value| *value != "" && !value.is_null() && (name != "generation" || *value != 0));
    Some(())
}

/// The key and the value of an entry of a map. Either is left out if it is empty.
fn pair(mut entry: &[u8]) -> Option<(Field<'_>, Field<'_>)> {
    let (mut key, mut value) = (Field::Bytes(&[]), Field::Bytes(&[]));
    while !entry.is_empty() {
        match field(&mut entry)? {
            (1, sent) => key = sent,
            (2, sent) => value = sent,
            (_, _) => {}
        }
    }
    Some((key, value))
}

/// The value of a field that is no object of a known type, null for one that may have any form.
fn scalar(of: Value, sent: Field<'_>) -> Option<Json> {
    Some(match (of, sent) {
        (Value::Bool, Field::Number(value)) => (value != 0).into(),
        (Value::Int32 | Value::Int64, Field::Number(value)) => value.cast_signed().into(),
        (Value::String, Field::Bytes(value)) => text(value)?,
        // `resource.Quantity`
        (Value::Quantity, Field::Bytes(value)) => match parts(value)? {
            [Field::Bytes(amount), ..] => text(amount)?,
            _ => return None,
        },
        // `intstr.IntOrString`, with the type, the number and the string.
        (Value::IntOrString, Field::Bytes(value)) => match parts(value)? {
            [Field::Number(1), _, Field::Bytes(name)] => text(name)?,
            [_, Field::Number(number), _] => number.cast_signed().into(),
            _ => 0.into(),
        },
        (Value::Time, Field::Bytes(value)) => time(value)?,
        (Value::Any, Field::Bytes(_)) => Json::Null,
        (_, _) => return None,
    })
}

/// `metav1.Time`, of which the zero is empty. Nanoseconds are shown only if there are any, as those of `MicroTime`.
fn time(message: &[u8]) -> Option<Json> {
    if message.is_empty() {
        return Some(Json::Null);
    }
    let [seconds, nanos, _] = parts(message)?.map(|part| match part {
        Field::Number(number) => number.cast_signed(),
        Field::Bytes(_) | Field::Fixed => 0,
    });
    let time = Timestamp(seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?);
    Some(if nanos == 0 { time.to_string() } else { time.nanos().to_string() }.into())
}

/// The fields 1 to 3 of a message; one that is not there is an empty string.
fn parts(mut message: &[u8]) -> Option<[Field<'_>; 3]> {
    let mut parts = [Field::Bytes(&[]); 3];
    while !message.is_empty() {
        let (number, value) = field(&mut message)?;
        if let Some(part) = usize::try_from(number).ok().and_then(|number| parts.get_mut(number - 1)) {
            *part = value;
        }
    }
    Some(parts)
}

/// The map at a place, which is null before the first part of the message.
fn map(place: &mut Json) -> &mut Map<String, Json> {
    if !place.is_object() {
        *place = Map::new().into();
    }
    place.as_object_mut().expect("it is a map now")
}

fn text(bytes: &[u8]) -> Option<Json> {
    std::str::from_utf8(bytes).ok().map(Json::from)
}

fn add(list: &mut Json, value: Json) {
    match list {
        Json::Array(list) => list.push(value),
        other => *other = vec![value].into(),
    }
}

#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::Kind;

    fn field_of(number: u8, value: &[u8]) -> Vec<u8> {
        let length = u8::try_from(value.len()).expect("short");
        match length {
            0..0x80 => [&[number << 3 | 2, length], value].concat(),
            0x80.. => [&[number << 3 | 2, length, 1], value].concat(),
        }
    }

    /// A request that holds a message of this kind.
    fn request(kind: &str, raw: &[u8]) -> Vec<u8> {
        let of = [field_of(1, b"v1"), field_of(2, kind.as_bytes())].concat();
        [MAGIC, &field_of(1, &of), &field_of(2, raw), &field_of(3, b""), &field_of(4, b"")].concat()
    }

    fn read(body: &[u8]) -> Result<Json, ProtobufError> {
        object(body, 100, |kind| Kind::named(kind).is_some())
    }

    fn pair_of(key: &[u8], value: &[u8]) -> Vec<u8> {
        [field_of(1, key), field_of(2, value)].concat()
    }

    #[test]
    fn protobuf_objects_are_read_like_their_json() {
        let owner = [field_of(1, b"Pod"), field_of(3, b"web"), vec![6 << 3, 1]].concat();
        let metadata = [
            field_of(1, b"a"),
            field_of(2, b""),
            field_of(8, b""),
            vec![7 << 3, 0],
            field_of(11, &pair_of(b"tier", b"")),
            field_of(13, &owner),
            field_of(14, b"example.com/x"),
        ];
        let metadata = field_of(1, &metadata.concat());
        let map = [
            metadata.clone(),
            field_of(2, &pair_of(b"a", b"1")),
            field_of(2, &pair_of(b"b", b"")),
            field_of(3, &pair_of(b"c", &[0xff])),
            vec![4 << 3, 1],
        ];
        let expected = json!({
            "name": "a", "labels": {"tier": ""}, "finalizers": ["example.com/x"],
            "ownerReferences": [{"kind": "Pod", "name": "web", "controller": true}],
        });
        assert_eq!(
            read(&request("ConfigMap", &map.concat())),
            Ok(json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": expected, "immutable": true,
                "data": {"a": "1", "b": ""}, "binaryData": {"c": "/w=="},
            }))
        );
        let secret = [
            field_of(1, &field_of(1, b"s")),
            field_of(2, &pair_of(b"a", b"ab")),
            field_of(3, b"Opaque"),
            field_of(4, &pair_of(b"b", b"text")),
            vec![5 << 3, 0],
        ];
        assert_eq!(
            read(&request("Secret", &secret.concat())),
            Ok(json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "type": "Opaque",
                "data": {"a": "YWI="}, "stringData": {"b": "text"}, "immutable": false,
            }))
        );
    }

    /// Fields of every form: numbers and their lists, amounts, ports by name and number, times, and messages within
    /// messages.
    #[test]
    fn each_form_of_a_field_of_a_pod_is_read() {
        let number = |number: u8, value: u8| vec![number << 3, value];
        let amount = pair_of(b"memory", &field_of(1, b"8Mi"));
        let port = [number(1, 1), number(2, 0), field_of(3, b"web")].concat();
        let get = [field_of(1, b"/"), field_of(2, &port)].concat();
        let probe = [field_of(1, &field_of(2, &get)), number(2, 0), number(4, 10)].concat();
        let tcp = field_of(1, &field_of(3, &field_of(1, &[number(1, 0), number(2, 80)].concat())));
        let container = [
            field_of(1, b"app"),
            field_of(8, &[field_of(1, &amount), field_of(2, &pair_of(b"cpu", &field_of(1, b"1")))].concat()),
            field_of(10, &probe),
            field_of(11, &tcp),
            vec![0x80, 1, 0],
        ];
        let volume = [field_of(1, b"a"), field_of(2, &field_of(2, &field_of(1, b"Memory")))];
        let spec = [
            field_of(1, &volume.concat()),
            field_of(2, &container.concat()),
            number(4, 30),
            field_of(14, &[number(4, 7), number(4, 8)].concat()),
        ];
        let managed = [field_of(1, b"x"), field_of(7, &field_of(1, b"{}"))].concat();
        let metadata = [
            field_of(1, b"p"),
            field_of(8, &[number(1, 60), number(2, 0)].concat()),
            field_of(9, &[]),
            vec![0x8a, 1, u8::try_from(managed.len()).expect("short")],
            managed,
        ];
        let pod = [field_of(1, &metadata.concat()), field_of(2, &spec.concat()), field_of(3, &[])];
        assert_eq!(
            read(&request("Pod", &pod.concat())),
            Ok(json!({
                "apiVersion": "v1", "kind": "Pod", "status": {},
                "metadata": {
                    "name": "p", "creationTimestamp": "1970-01-01T00:01:00Z", "managedFields": [{"manager": "x"}],
                },
                "spec": {
                    "volumes": [{"name": "a", "emptyDir": {"medium": "Memory"}}],
                    "containers": [{
                        "name": "app", "stdin": false,
                        "resources": {"limits": {"memory": "8Mi"}, "requests": {"cpu": "1"}},
                        "livenessProbe": {
                            "httpGet": {"path": "/", "port": "web"}, "initialDelaySeconds": 0, "periodSeconds": 10,
                        },
                        "readinessProbe": {"tcpSocket": {"port": 80}},
                    }],
                    "terminationGracePeriodSeconds": 30,
                    "securityContext": {"supplementalGroups": [7, 8]},
                },
            }))
        );
    }

    /// The reader calls itself for each message within a message.
    #[test]
    fn no_type_contains_itself() {
        fn visit(of: &'static Type, above: &mut Vec<&'static str>) {
            assert!(!above.contains(&of.name), "{above:?} {}", of.name);
            above.push(of.name);
            of.fields.iter().filter_map(SchemaField::object).for_each(|of| visit(of, above));
            above.pop();
        }
        for kind in crate::kind::KINDS {
            if let Some(of) = schema::find(kind.name) {
                visit(of, &mut Vec::new());
            }
        }
    }

    #[test]
    fn a_malformed_or_unsupported_protobuf_object_is_an_error() {
        let right = request("ConfigMap", &field_of(2, &pair_of(b"a", b"1")));
        assert!(read(&right).is_ok());
        for end in 0..right.len() {
            // A cut between two fields leaves a shorter object, and nothing fails worse.
            let _ = read(&right[..end]);
        }
        use ProtobufError::Malformed;
        let unsupported = |kind: &str| ProtobufError::Unsupported(kind.to_owned());
        for (body, expected) in [
            (b"k8s".to_vec(), unsupported("")),
            (b"{}".to_vec(), unsupported("")),
            (request("Node", b""), unsupported("Node")),
            (request("Pod", &field_of(2, &field_of(2, &[7 << 3, 1]))), Malformed),
            (request("Widget", b""), unsupported("Widget")),
            (request("ConfigMap", &[2 << 3, 1]), Malformed),
            (request("ConfigMap", &[0, 1]), Malformed),
            (request("ConfigMap", &field_of(2, &field_of(1, &[0xff]))), Malformed),
            (request("ConfigMap", &[2 << 3 | 2, 0xff]), Malformed),
            (
                [MAGIC, &[2 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]].concat(),
                Malformed,
            ),
        ] {
            assert_eq!(read(&body), Err(expected), "{:?}", &body[..body.len().min(40)]);
        }
        let within =
            |raw: &[u8], values: usize| object(&request("ConfigMap", raw), values, |_| true).map(drop);
        // Maps count once more: labels are a map in a message.
        let labels = field_of(1, &field_of(11, &pair_of(b"a", b"b")));
        for (raw, values) in [([4 << 3, 1].repeat(3), 3), (labels, 4)] {
            assert_eq!(within(&raw, values), Ok(()));
            assert_eq!(within(&raw, values - 1), Err(ProtobufError::TooManyValues));
        }
        let right = request("ConfigMap", b"");
        let encoded = [&right[..], &field_of(3, b"gzip")].concat();
        assert_eq!(read(&encoded), Err(ProtobufError::ContentEncoding));
    }

    #[test]
    fn the_parts_of_a_message_are_merged() {
        let first = [
            field_of(1, b"a"),
            field_of(3, b"one"),
            field_of(11, &pair_of(b"x", b"1")),
            field_of(11, &pair_of(b"y", b"2")),
            field_of(14, b"example.com/x"),
        ];
        let second = [
            field_of(1, b"b"),
            field_of(3, b""),
            field_of(11, &pair_of(b"y", b"3")),
            field_of(14, b"example.com/y"),
        ];
        let parts = [field_of(1, &first.concat()), vec![4 << 3, 1], field_of(1, &second.concat())];
        assert_eq!(
            read(&request("ConfigMap", &parts.concat())),
            Ok(json!({
                "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
                "metadata": {
                    "name": "b", "labels": {"x": "1", "y": "3"},
                    "finalizers": ["example.com/x", "example.com/y"],
                },
            }))
        );
    }

    #[test]
    fn unknown_fields_of_the_pairs_of_maps_are_skipped() {
        let unknown = [field_of(3, b"new"), vec![4 << 3, 1], pair_of(b"a", b"1")].concat();
        let read_data = |pair: &[u8]| read(&request("ConfigMap", &field_of(2, pair)));
        assert_eq!(read_data(&unknown).map(|object| object["data"].clone()), Ok(json!({"a": "1"})));
        // A number in place of the key.
        assert_eq!(read_data(&[1 << 3, 1]), Err(ProtobufError::Malformed));
    }
}
