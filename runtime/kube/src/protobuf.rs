//! Protobuf: fields of messages, and objects of Kubernetes in the form in which typed clients such as `kubectl create
//! configmap` send them. Pure. The fields of a kind's message are a column of [`crate::kinds`].

use serde_json::{Map, Value};

use nodlet_base64 as base64;

/// A message: number, name in JSON and type of each field. Other fields are left out.
pub type Message = &'static [(u64, &'static str, Type)];

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// A string; an empty one is none.
    Text,
    /// A boolean.
    Bool,
    /// A number with a sign.
    Integer,
    /// A list of strings.
    Texts,
    /// A map of strings.
    TextMap,
    /// A map of bytes, in base64 in JSON.
    BytesMap,
    /// A message.
    One(Message),
    /// A list of messages.
    Many(Message),
}

/// `ObjectMeta`, without what only a server sets.
pub(crate) const METADATA: Message = &[
    (1, "name", Type::Text),
    (2, "generateName", Type::Text),
    (3, "namespace", Type::Text),
    (5, "uid", Type::Text),
    (6, "resourceVersion", Type::Text),
    (11, "labels", Type::TextMap),
    (12, "annotations", Type::TextMap),
    (13, "ownerReferences", Type::Many(OWNER)),
    (14, "finalizers", Type::Texts),
];

const OWNER: Message = &[
    (1, "kind", Type::Text),
    (3, "name", Type::Text),
    (4, "uid", Type::Text),
    (5, "apiVersion", Type::Text),
    (6, "controller", Type::Bool),
    (7, "blockOwnerDeletion", Type::Bool),
];

/// `runtime.TypeMeta`
const TYPE: Message = &[(1, "apiVersion", Type::Text), (2, "kind", Type::Text)];

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

/// The object of a request, which may have at most `values` values. `message` returns the fields of a kind.
///
/// # Errors
/// See [`ProtobufError`].
pub fn object(
    body: &[u8],
    values: usize,
    message: fn(&str) -> Option<Message>,
) -> Result<Value, ProtobufError> {
    let failed =
        |left: usize| if left == 0 { ProtobufError::TooManyValues } else { ProtobufError::Malformed };
    let (mut of, mut raw) = (Map::new(), &[][..]);
    let mut left = values;
    let mut rest = body.strip_prefix(MAGIC).ok_or_else(|| ProtobufError::Unsupported(String::new()))?;
    while !rest.is_empty() {
        match field(&mut rest).ok_or(ProtobufError::Malformed)? {
            (1, Field::Bytes(bytes)) => read(bytes, TYPE, &mut of, &mut left).ok_or_else(|| failed(left))?,
            (2, Field::Bytes(bytes)) => raw = bytes,
            (3, Field::Bytes([_, ..])) => return Err(ProtobufError::ContentEncoding),
            _ => {}
        }
    }
    let kind = of.get("kind").and_then(Value::as_str).unwrap_or_default();
    let message = message(kind).ok_or_else(|| ProtobufError::Unsupported(kind.to_owned()))?;
    let mut object = Map::new();
    read(raw, message, &mut object, &mut left).ok_or_else(|| failed(left))?;
    object.append(&mut of);
    Ok(object.into())
}

/// Reads a message into `object`. If that has fields already, of an earlier part of the message, the later part
/// replaces scalars and extends lists, maps and messages.
fn read(mut bytes: &[u8], message: Message, object: &mut Map<String, Value>, left: &mut usize) -> Option<()> {
    while !bytes.is_empty() {
        *left = left.checked_sub(1)?;
        let (number, value) = field(&mut bytes)?;
        let Some((_, name, kind)) = message.iter().find(|(known, ..)| *known == number) else { continue };
        let place = object.entry(*name).or_insert(Value::Null);
        match (kind, value) {
            (Type::Bool, Field::Number(value)) => *place = (value != 0).into(),
            (Type::Integer, Field::Number(value)) => *place = value.cast_signed().into(),
            (Type::Text, Field::Bytes(value)) => *place = text(value)?,
            (Type::One(of), Field::Bytes(value)) => read(value, of, map(place), left)?,
            (Type::Texts, Field::Bytes(value)) => add(place, text(value)?),
            (Type::Many(of), Field::Bytes(value)) => {
                let mut element = Map::new();
                read(value, of, &mut element, left)?;
                add(place, element.into());
            }
            (Type::TextMap | Type::BytesMap, Field::Bytes(mut pair)) => {
                let (mut key, mut value) = (&[][..], &[][..]);
                while !pair.is_empty() {
                    match field(&mut pair)? {
                        (1, Field::Bytes(bytes)) => key = bytes,
                        (2, Field::Bytes(bytes)) => value = bytes,
                        (1 | 2, _) => return None,
                        (_, _) => {}
                    }
                }
                let key = std::str::from_utf8(key).ok()?;
                let value = match kind {
                    Type::BytesMap => base64::encode(value).into(),
                    _ => text(value)?,
                };
                place[key] = value;
            }
            (_, _) => return None,
        }
    }
    object.retain(|_, value| *value != "");
    Some(())
}

/// The map at a place, which is null before the first part of the message.
fn map(place: &mut Value) -> &mut Map<String, Value> {
    if !place.is_object() {
        *place = Map::new().into();
    }
    place.as_object_mut().expect("it is a map now")
}

fn text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

fn add(list: &mut Value, value: Value) {
    match list {
        Value::Array(list) => list.push(value),
        other => *other = vec![value].into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::{self, Kind};

    fn field_of(number: u8, value: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(value.len()).expect("short")], value].concat()
    }

    /// A request that holds a message of this kind.
    fn request(kind: &str, raw: &[u8]) -> Vec<u8> {
        let of = [field_of(1, b"v1"), field_of(2, kind.as_bytes())].concat();
        [MAGIC, &field_of(1, &of), &field_of(2, raw), &field_of(3, b""), &field_of(4, b"")].concat()
    }

    fn read(body: &[u8]) -> Result<Value, ProtobufError> {
        object(body, 100, |kind| {
            Some(kinds::strategy(Kind::named(kind)?).protobuf).filter(|fields| !fields.is_empty())
        })
    }

    fn pair(key: &[u8], value: &[u8]) -> Vec<u8> {
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
            field_of(11, &pair(b"tier", b"")),
            field_of(13, &owner),
            field_of(14, b"example.com/x"),
        ];
        let metadata = field_of(1, &metadata.concat());
        let map = [
            metadata.clone(),
            field_of(2, &pair(b"a", b"1")),
            field_of(2, &pair(b"b", b"")),
            field_of(3, &pair(b"c", &[0xff])),
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
            field_of(2, &pair(b"a", b"ab")),
            field_of(3, b"Opaque"),
            field_of(4, &pair(b"b", b"text")),
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

    #[test]
    fn a_malformed_or_unsupported_protobuf_object_is_an_error() {
        let right = request("ConfigMap", &field_of(2, &pair(b"a", b"1")));
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
            (request("Pod", b""), unsupported("Pod")),
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
        let within = |values: usize| {
            object(&request("ConfigMap", &[4 << 3, 1].repeat(3)), values, |_| {
                Some(kinds::strategy(Kind::ConfigMap).protobuf)
            })
        };
        // With two values of the type.
        assert!(within(5).is_ok());
        assert_eq!(within(4), Err(ProtobufError::TooManyValues));
        let right = request("ConfigMap", b"");
        let encoded = [&right[..], &field_of(3, b"gzip")].concat();
        assert_eq!(read(&encoded), Err(ProtobufError::ContentEncoding));
    }

    #[test]
    fn the_parts_of_a_message_are_merged() {
        let first = [
            field_of(1, b"a"),
            field_of(3, b"one"),
            field_of(11, &pair(b"x", b"1")),
            field_of(11, &pair(b"y", b"2")),
            field_of(14, b"example.com/x"),
        ];
        let second = [
            field_of(1, b"b"),
            field_of(3, b""),
            field_of(11, &pair(b"y", b"3")),
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
        let unknown = [field_of(3, b"new"), vec![4 << 3, 1], pair(b"a", b"1")].concat();
        let read_data = |pair: &[u8]| read(&request("ConfigMap", &field_of(2, pair)));
        assert_eq!(read_data(&unknown).map(|object| object["data"].clone()), Ok(json!({"a": "1"})));
        // A number in place of the key.
        assert_eq!(read_data(&[1 << 3, 1]), Err(ProtobufError::Malformed));
    }
}
