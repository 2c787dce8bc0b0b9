//! Reads YAML as Kubernetes does: the events of a YAML parser become JSON, with scalars resolved as in YAML
//! 1.1 (`yes` is true, `0644` is 420).
//!
//! Hostile input is rejected without delay: depth, aliases and the number of values are bounded. The reader
//! never guesses: a repeated key is reported with its line. Read next: [`crate::object::walk`], which checks the JSON
//! against the schema.

mod indentation;
mod input;
mod messages;
mod resolve;

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;

use nodlet_core::sorted::SortedMap;
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::{Map, Value};

use crate::object::error::SIZE_LIMIT;
use crate::object::field::{First, cut};
use crate::object::json::VALUES;
use indentation::Budget;
use input::MAX_MARKS;
pub(super) use input::Text;

/// Maximum nesting depth of objects and lists. The deepest Pod has 12.
const DEPTH: usize = 64;

/// Maximum bytes of text in one file; text that aliases repeat is counted each time.
const TEXT: usize = SIZE_LIMIT;

/// The reason why a text is not YAML that Kubernetes reads.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct YamlError {
    /// The line, from 1.
    pub(super) line: usize,
    /// The message in lower case, without the line.
    pub(super) message: String,
}

/// One document of a file.
#[derive(Debug, PartialEq)]
pub(super) struct Document {
    pub(super) value: Value,
    /// The line in which the document begins, from 1.
    pub(super) line: usize,
    /// Keys that occur twice, with the line of the second one.
    pub(super) duplicates: First<(String, usize)>,
}

/// Reads all documents; empty ones are omitted.
pub(super) fn read(text: &str) -> Result<Vec<Document>, YamlError> {
    refuse_control_characters(text)?;
    let mut text = Cow::Borrowed(text.strip_prefix('\u{feff}').unwrap_or(text));
    let mut budget = Budget::new();
    loop {
        match attempt(&text) {
            Ok(documents) => return Ok(documents),
            Err(Refused::Value(error)) => return Err(error),
            Err(Refused::Scan(error)) => match budget.indent(&text, &error) {
                Some(indented) => text = Cow::Owned(indented),
                None => return Err(scan_error(&error)),
            },
        }
    }
}

/// The text as the parser reads it: with the lines indented that Kubernetes accepts without indentation.
pub(super) fn indented(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    let mut budget = Budget::new();
    while let Err(Refused::Scan(error)) = attempt(&text)
        && let Some(indented) = budget.indent(&text, &error)
    {
        text = Cow::Owned(indented);
    }
    text
}

/// The reason why an attempt to read a text failed.
enum Refused {
    /// The parser rejects the text.
    Scan(ScanError),
    /// A value is rejected.
    Value(YamlError),
}

impl From<YamlError> for Refused {
    fn from(error: YamlError) -> Self {
        Self::Value(error)
    }
}

/// Reads all documents of a text without byte order mark and control characters.
fn attempt(text: &str) -> Result<Vec<Document>, Refused> {
    let marks = Rc::new(Cell::new(0));
    let mut reader = Reader {
        parser: Parser::new(Text::new(text, &marks)),
        marks,
        anchors: SortedMap::new(),
        duplicates: First::default(),
        values: 0,
        text: 0,
        last_line: last_line(text),
    };
    let mut documents = Vec::new();
    loop {
        let (event, span) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(documents),
            Event::DocumentStart(_) => {
                let (event, span) = reader.next()?;
                let line = span.start.line();
                let value = reader.value(event, &span, 0)?.value;
                let duplicates = std::mem::take(&mut reader.duplicates);
                reader.anchors.clear();
                if !value.is_null() {
                    documents.push(Document { value, line, duplicates });
                }
            }
            Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
            Event::Alias(_)
            | Event::Scalar(..)
            | Event::SequenceStart(..)
            | Event::SequenceEnd
            | Event::MappingStart(..)
            | Event::MappingEnd => {
                return Err(Refused::Value(YamlError {
                    line: span.start.line(),
                    message: "a value outside of a document".to_owned(),
                }));
            }
        }
    }
}

/// The last line of a text that ends without a line feed.
fn last_line(text: &str) -> Option<LastLine<'_>> {
    let (before, line) = text.rsplit_once('\n')?;
    (!line.is_empty()).then(|| LastLine { begins: before.chars().count() + 1, text: line })
}

/// The value of a plain scalar; `None` if it has none.
pub(super) fn plain(text: &str) -> Option<Value> {
    resolve::scalar(text.into(), true, None).ok()
}

/// Rejects control characters: YAML does not allow them, and a NUL would end the file unnoticed.
fn refuse_control_characters(text: &str) -> Result<(), YamlError> {
    let mut line = 1;
    for byte in text.bytes() {
        match byte {
            b'\n' => line += 1,
            b'\t' | b'\r' => {}
            0..0x20 | 0x7f => {
                return Err(YamlError {
                    line,
                    message: format!("control character {byte:#04x} is not allowed"),
                });
            }
            _ => {}
        }
    }
    Ok(())
}

struct Reader<'text> {
    parser: Parser<'text, Text<'text>>,
    /// The marks that [`Text`] has counted since the latest event.
    marks: Rc<Cell<usize>>,
    anchors: SortedMap<usize, Node>,
    duplicates: First<(String, usize)>,
    values: usize,
    text: usize,
    last_line: Option<LastLine<'text>>,
}

/// The last line of a text that ends without a line feed.
#[derive(Clone, Copy)]
struct LastLine<'text> {
    /// The index in characters at which it begins.
    begins: usize,
    text: &'text str,
}

/// A value, and the cost of repeating it.
#[derive(Clone)]
struct Node {
    value: Value,
    values: usize,
    text: usize,
}

impl<'text> Reader<'text> {
    fn next(&mut self) -> Result<(Event<'text>, Span), Refused> {
        let event = self.parser.next_event();
        if self.marks.replace(0) > MAX_MARKS {
            let line = match &event {
                Some(Ok((_, span))) => span.end.line(),
                Some(Err(error)) => error.marker().line(),
                None => 1,
            };
            let message =
                format!("more than {MAX_MARKS} of []{{}},: in one value: write it in lines, or as JSON");
            return Err(Refused::Value(YamlError { line, message }));
        }
        match event {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(Refused::Scan(error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The text of a scalar without the line feed that the parser adds to a block at the end of a text that ends without
    /// one.
    fn without_added_end(&self, text: Cow<'text, str>, style: ScalarStyle, span: &Span) -> Cow<'text, str> {
        let is_block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
        let Some(last) = self.last_line.filter(|last| is_block && span.end.index() > last.begins) else {
            return text;
        };
        let Some(ended) = text.strip_suffix('\n') else { return text };
        let line = ended.rsplit('\n').next().unwrap_or_default();
        let content = last.text.trim_start_matches(' ');
        let is_of_last = if content.is_empty() {
            ended.is_empty() || ended.ends_with('\n') || line.bytes().all(|byte| byte == b' ')
        } else {
            ended.ends_with(content)
        };
        if is_of_last { Cow::Owned(ended.to_owned()) } else { text }
    }

    /// Reads the value that begins with `event`.
    fn value(&mut self, event: Event<'text>, span: &Span, depth: usize) -> Result<Node, Refused> {
        let line = span.start.line();
        if depth > DEPTH {
            return Err(Refused::Value(YamlError {
                line,
                message: format!("nested deeper than {DEPTH} levels"),
            }));
        }
        let (before_values, before_text) = (self.values, self.text);
        self.count(1, 0, line)?;
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count(0, text.len(), line)?;
                let text = self.without_added_end(text, style, span);
                let plain = style == ScalarStyle::Plain;
                let value = resolve::scalar(text, plain, tag_name(tag.as_deref()).as_deref())
                    .map_err(|message| YamlError { line, message })?;
                (value, anchor)
            }
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(Refused::Value(YamlError {
                        line,
                        message: "an alias refers to the node that contains it".to_owned(),
                    }));
                };
                self.count(node.values, node.text, line)?;
                return Ok(node);
            }
            Event::SequenceStart(anchor, _) => {
                let mut list = Vec::new();
                loop {
                    let (event, span) = self.next()?;
                    if matches!(event, Event::SequenceEnd) {
                        break;
                    }
                    list.push(self.value(event, &span, depth + 1)?.value);
                }
                (Value::Array(list), anchor)
            }
            Event::MappingStart(anchor, _) => (Value::Object(self.mapping(depth)?), anchor),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => {
                return Err(Refused::Value(YamlError { line, message: "a value is missing".to_owned() }));
            }
        };
        let node = Node { value, values: self.values - before_values, text: self.text - before_text };
        if anchor != 0 {
            // A value with an anchor is stored a second time.
            self.count(node.values, node.text, line)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    /// Reads the rest of a mapping. Its own keys take precedence over merged ones (`<<`), and earlier merged
    /// ones over later ones.
    fn mapping(&mut self, depth: usize) -> Result<Map<String, Value>, Refused> {
        let mut own = Map::new();
        let mut merged = Map::new();
        loop {
            let (event, span) = self.next()?;
            let line = span.start.line();
            let key = match event {
                Event::MappingEnd => break,
                Event::Scalar(text, ScalarStyle::Plain, 0, None) if text == "<<" => {
                    let (event, span) = self.next()?;
                    let value = self.value(event, &span, depth + 1)?.value;
                    merge(&mut merged, value).ok_or_else(|| YamlError {
                        line,
                        message: "map merge requires map or sequence of maps as the value".to_owned(),
                    })?;
                    continue;
                }
                event => resolve::key(self.value(event, &span, depth + 1)?.value)
                    .map_err(|message| YamlError { line, message })?,
            };
            let (event, span) = self.next()?;
            let value = self.value(event, &span, depth + 1)?.value;
            if own.contains_key(&key) {
                self.duplicates.push_with(|| (cut(key.clone()), line));
            }
            own.insert(key, value);
        }
        for (key, value) in merged {
            own.entry(key).or_insert(value);
        }
        Ok(own)
    }

    fn count(&mut self, values: usize, text: usize, line: usize) -> Result<(), YamlError> {
        self.values = self.values.saturating_add(values);
        self.text = self.text.saturating_add(text);
        if self.values > VALUES || self.text > TEXT {
            return Err(YamlError {
                line,
                message: format!(
                    "more than {VALUES} values or {TEXT} bytes of text, those that aliases repeat included"
                ),
            });
        }
        Ok(())
    }
}

/// Adds the mapping that a `<<` names to `merged`; `None` if it is not a mapping.
fn merge(merged: &mut Map<String, Value>, value: Value) -> Option<()> {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                merged.entry(key).or_insert(value);
            }
            Some(())
        }
        Value::Array(list) => list.into_iter().try_for_each(|value| match value {
            Value::Object(_) => merge(merged, value),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => None,
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// The name of a core tag, such as `str` for `!!str`. To Kubernetes, any other tag only means that the value
/// is a string.
fn tag_name(tag: Option<&Tag>) -> Option<String> {
    tag.map(|tag| if tag.is_yaml_core_schema() { tag.suffix.clone() } else { "str".to_owned() })
}

fn scan_error(error: &ScanError) -> YamlError {
    YamlError { line: error.marker().line(), message: messages::explained(error.info()).to_owned() }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod beside_go;
