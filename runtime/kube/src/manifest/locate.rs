//! Finds the line of a field in the text that it was read from, for messages. The text was parsed before; a
//! field that is not found is not an error.

use std::cell::Cell;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::yaml::{Text, indented};

/// The line, from 1, of the field at `path` in the `document`-th object of a text, from 0. If the field does
/// not exist, the line of the nearest enclosing field.
pub(super) fn line(text: &str, document: usize, path: &str) -> Option<usize> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = indented(text);
    let marks = Rc::new(Cell::new(0));
    let mut search = Search { parser: Parser::new(Text::new(&text, &marks)), marks };
    let mut objects = 0;
    loop {
        match search.next()? {
            (Event::StreamEnd, _) => return None,
            (Event::DocumentStart(_), _) => {
                let (event, span) = search.next()?;
                // An empty document does not count.
                if matches!(event, Event::Scalar(_, ScalarStyle::Plain, ..)) {
                    continue;
                }
                if objects == document {
                    return search.descend(event, path, span.start.line());
                }
                objects += 1;
                search.skip(event)?;
            }
            _ => {}
        }
    }
}

/// Parses the text exactly as the reader does, by the same code.
struct Search<'text> {
    parser: Parser<'text, Text<'text>>,
    /// The marks that [`Text`] has counted since the latest event.
    marks: Rc<Cell<usize>>,
}

impl<'text> Search<'text> {
    fn next(&mut self) -> Option<(Event<'text>, Span)> {
        self.marks.set(0);
        self.parser.next_event()?.ok()
    }

    /// The line of `path` below the value that begins with `event`, whose own line is `line`.
    fn descend(&mut self, event: Event<'text>, path: &str, line: usize) -> Option<usize> {
        match event {
            _ if path.is_empty() => Some(line),
            Event::MappingStart(..) => loop {
                let (key, span) = self.next()?;
                let rest = match &key {
                    Event::MappingEnd => return Some(line),
                    Event::Scalar(key, ..) => strip_key(path, key),
                    _ => None,
                };
                self.skip(key)?;
                let (value, _) = self.next()?;
                match rest {
                    Some(rest) => return self.descend(value, rest, span.start.line()),
                    None => self.skip(value)?,
                }
            },
            Event::SequenceStart(..) => {
                for index in 0.. {
                    let (element, span) = self.next()?;
                    if matches!(element, Event::SequenceEnd) {
                        break;
                    }
                    match path.strip_prefix(&format!("[{index}]")) {
                        Some(rest) => return self.descend(element, rest, span.start.line()),
                        None => self.skip(element)?,
                    }
                }
                Some(line)
            }
            _ => Some(line),
        }
    }

    /// Skips the rest of the value that begins with `event`.
    fn skip(&mut self, event: Event<'text>) -> Option<()> {
        let mut open = depth(&event);
        while open > 0 {
            open += depth(&self.next()?.0);
        }
        Some(())
    }
}

fn depth(event: &Event<'_>) -> i32 {
    match event {
        Event::MappingStart(..) | Event::SequenceStart(..) => 1,
        Event::MappingEnd | Event::SequenceEnd => -1,
        _ => 0,
    }
}

/// The rest of a path below `key`: `.key…`, `key…` at its beginning, or `[key]…`.
fn strip_key<'path>(path: &'path str, key: &str) -> Option<&'path str> {
    let bracketed = path
        .strip_prefix('[')
        .and_then(|rest| rest.strip_prefix(key))
        .and_then(|rest| rest.strip_prefix(']'));
    if bracketed.is_some() {
        return bracketed;
    }
    let rest = path.strip_prefix('.').unwrap_or(path).strip_prefix(key)?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::line;

    const TEXT: &str = "\
# a remark
---
kind: List
---
metadata:
  name: web
  labels: {a.b/c: d}
spec:
  containers:
  - name: a
    image: x
  -
    name: b
    args: [one,
      two]
    resources:
      limits:
        cpu: 1
";

    #[test]
    fn the_line_of_a_field_is_found() {
        for (path, expected) in [
            ("metadata.name", 6),
            ("metadata.labels[a.b/c]", 7),
            ("spec", 8),
            ("spec.containers", 9),
            ("spec.containers[0]", 10),
            ("spec.containers[0].image", 11),
            ("spec.containers[1].name", 13),
            ("spec.containers[1].args[1]", 15),
            ("spec.containers[1].resources.limits[cpu]", 18),
            // A missing field is reported at the line of its parent.
            ("spec.containers[1].image", 13),
            ("spec.containers[7].image", 9),
            ("spec.restartPolicy", 8),
            ("status", 5),
        ] {
            assert_eq!(line(TEXT, 1, path), Some(expected), "{path}");
        }
        assert_eq!(line(TEXT, 0, "kind"), Some(3));
        assert_eq!(line(TEXT, 2, "kind"), None);
        assert_eq!(line("{\"a\":\n {\"b\": [1,\n 2]}}", 0, "a.b[1]"), Some(3));
        assert_eq!(line("a: [", 0, "a[3]"), None);
        // A tab after a colon, which the reader allows.
        assert_eq!(line("a:\t1\nb:\n  c:\t2\n", 0, "b.c"), Some(3));
    }
}
