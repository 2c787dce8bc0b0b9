//! Reads JSON objects, one or several in a text, and reports repeated keys.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::field::{First, cut, go_quoted};

/// Maximum number of values in one file or request; values that aliases repeat count each time. This is enough for
/// more Pods than a node accepts. Each value needs some hundred bytes while it is read.
pub const VALUES: usize = 25_000;

/// One object of a file.
#[derive(Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) value: Value,
    /// The line in which the object begins, from 1.
    pub(crate) line: usize,
    /// Paths of fields that occur twice.
    pub(crate) duplicates: First<String>,
}

/// Reads all objects of a text. An error of the category `Data` means that there are too many values.
pub(crate) fn read(text: &str) -> Result<Vec<Document>, serde_json::Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let state = RefCell::new(State::default());
    let mut deserializer = serde_json::Deserializer::from_slice(text.as_bytes());
    let mut documents = Vec::new();
    // `end` fails, and gives the position, as long as something is left.
    while let Err(more) = deserializer.end() {
        let value = Seed { state: &state }.deserialize(&mut deserializer)?;
        let duplicates = std::mem::take(&mut state.borrow_mut().duplicates);
        if !value.is_null() {
            documents.push(Document { value, line: more.line(), duplicates });
        }
    }
    Ok(documents)
}

/// Reads one value, with a text for each field that occurs twice. An error of the category `Data` means that it contains
/// too many values.
pub fn value(text: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let state = RefCell::new(State::default());
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Seed { state: &state }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    let duplicates =
        state.into_inner().duplicates.texts(|path| format!("duplicate field {}", go_quoted(path)));
    Ok((value, duplicates))
}

/// Reads one value without the fields of these names, whatever object they are in. An error of the category `Data` means
/// that the rest contains more than `most` values.
pub fn value_without(
    fields: &'static [&'static str],
    text: &[u8],
    most: usize,
) -> Result<Value, serde_json::Error> {
    let state = RefCell::new(State { most, skipped: fields, ..State::default() });
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Seed { state: &state }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// The state of the reader of one file, besides the current value.
struct State {
    /// The path of the current value: `.name` and `[index]`.
    path: Vec<String>,
    duplicates: First<String>,
    values: usize,
    most: usize,
    /// Fields that are left out.
    skipped: &'static [&'static str],
}

impl Default for State {
    fn default() -> State {
        let duplicates = First::default();
        State { path: Vec::new(), duplicates, values: 0, most: VALUES, skipped: &[] }
    }
}

#[derive(Clone, Copy)]
struct Seed<'state> {
    state: &'state RefCell<State>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let mut state = self.state.borrow_mut();
        state.values += 1;
        if state.values > state.most {
            return Err(D::Error::custom(format!("more than {} values", state.most)));
        }
        drop(state);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            self.state.borrow_mut().path.push(format!("[{}]", list.len()));
            let value = access.next_element_seed(self)?;
            self.state.borrow_mut().path.pop();
            match value {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if self.state.borrow().skipped.contains(&&*key) {
                access.next_value::<IgnoredAny>()?;
                continue;
            }
            self.state.borrow_mut().path.push(format!(".{key}"));
            let value = access.next_value_seed(self)?;
            let state = &mut *self.state.borrow_mut();
            if map.contains_key(&key) {
                let path = || cut(state.path.concat().trim_start_matches('.').to_owned());
                state.duplicates.push_with(path);
            }
            state.path.pop();
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::assert_contains;
    use serde_json::json;

    use super::{read, value_without};

    #[test]
    fn objects_may_follow_each_other() {
        let text = "\u{feff} {\"a\": [1, -2, 1.5, true, null, \"x\"]}{\"b\":{}}\n\n {\"c\":1} \n";
        let documents = read(text).unwrap();
        assert_eq!(
            documents.iter().map(|document| (document.value.clone(), document.line)).collect::<Vec<_>>(),
            [(json!({"a": [1, -2, 1.5, true, null, "x"]}), 1), (json!({"b": {}}), 1), (json!({"c": 1}), 3)]
        );
    }

    #[test]
    fn duplicate_fields_are_reported_with_their_path() {
        let documents =
            read("{\"s\":{\"c\":[{\"n\":1},{\"n\":1,\"n\":2}]},\"s\":3} {\"x\":1,\"x\":1}").unwrap();
        let texts = |document: &super::Document| document.duplicates.texts(String::clone);
        assert_eq!(texts(&documents[0]), ["s.c[1].n", "s"]);
        assert_eq!(texts(&documents[1]), ["x"]);
    }

    #[test]
    fn fields_can_be_left_out_and_do_not_count() {
        let text = format!("{{\"a\":{{\"spec\":[{}1],\"b\":2}},\"spec\":{{}}}}", "1,".repeat(100));
        assert_eq!(value_without(&["spec"], text.as_bytes(), 3).unwrap(), json!({"a": {"b": 2}}));
        assert!(value_without(&["spec"], text.as_bytes(), 2).unwrap_err().is_data());
        assert!(value_without(&[], text.as_bytes(), 100).unwrap_err().is_data());
        assert!(value_without(&["spec"], &text.as_bytes()[1..], 3).unwrap_err().is_syntax());
    }

    #[test]
    fn hostile_objects_are_rejected() {
        assert!(read(&"[".repeat(100_000)).is_err());
        assert!(read(&"{\"a\":".repeat(100_000)).is_err());
        assert!(read("{\"a\":1e999}").is_err());
        assert!(read("{\"a\":\"\u{1}\"}").is_err());
        assert!(read("{\"a\":\"\\ud800\"}").is_err());
        assert_contains(&read(&format!("[{}1]", "1,".repeat(200_000))).unwrap_err(), "more than 25000");
    }
}
