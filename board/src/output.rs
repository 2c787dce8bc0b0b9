//! Formats objects for a terminal: kubectl's tables, JSON and YAML.

use std::io::{self, Write};

use serde_json::Value;

pub(crate) use nodlet_kube::kinds::escaped;
pub(crate) use nodlet_kube::manifest::to_yaml as yaml;

/// Spaces between two columns, as in kubectl.
const PADDING: usize = 3;

/// The narrowest column, including padding.
const MIN_WIDTH: usize = 6;

/// Aligns columns. Keeps the widths from one batch of rows to the next, so that the rows of a watch line up
/// with those of the list.
#[derive(Default)]
pub(crate) struct Columns {
    widths: Vec<usize>,
}

impl Columns {
    pub(crate) fn write(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        for row in rows {
            // The last cell of a row ends the line and needs no width.
            for (column, cell) in row.iter().enumerate().take(row.len().saturating_sub(1)) {
                let width = (cell.chars().count() + PADDING).max(MIN_WIDTH);
                match self.widths.get_mut(column) {
                    Some(known) => *known = (*known).max(width),
                    None => self.widths.push(width),
                }
            }
        }
        for row in rows {
            for (column, cell) in row.iter().enumerate() {
                if column + 1 == row.len() {
                    writeln!(out, "{cell}")?;
                } else {
                    write!(out, "{cell:<width$}", width = self.widths[column])?;
                }
            }
        }
        out.flush()
    }
}

/// The columns of a Table to show besides the plain ones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    pub(crate) wide: bool,
    pub(crate) namespace: bool,
    pub(crate) labels: bool,
}

/// The rows of a Table, preceded by a header row if requested.
pub(crate) fn rows(table: &Value, what: Shown, headers: bool) -> Vec<Vec<String>> {
    let definitions = table["columnDefinitions"].as_array().map_or(&[][..], Vec::as_slice);
    let shown: Vec<usize> = definitions
        .iter()
        .enumerate()
        .filter(|(_, definition)| what.wide || definition["priority"].as_i64().unwrap_or(0) == 0)
        .map(|(index, _)| index)
        .collect();
    let mut rows = Vec::new();
    if headers {
        let names =
            shown.iter().map(|&index| definitions[index]["name"].as_str().unwrap_or("").to_ascii_uppercase());
        let labels = what.labels.then(|| "LABELS".to_owned());
        rows.push(
            what.namespace.then(|| "NAMESPACE".to_owned()).into_iter().chain(names).chain(labels).collect(),
        );
    }
    for row in table["rows"].as_array().into_iter().flatten() {
        let metadata = &row["object"]["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or("").to_owned();
        let cells = shown.iter().map(|&index| cell(&row["cells"][index]));
        let labels = what.labels.then(|| labels(&metadata["labels"]));
        rows.push(what.namespace.then_some(namespace).into_iter().chain(cells).chain(labels).collect());
    }
    rows
}

/// Formats labels like `labels.FormatLabels` of Kubernetes.
fn labels(labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    let mut labels: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    labels.sort();
    if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") }
}

fn cell(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".into(),
        other => other.to_string(),
    };
    // Text from a container may contain anything, but each row must stay one line.
    match text.find(['\n', '\r', '\u{c}']) {
        Some(end) => format!("{}...", &text[..end]),
        None => text.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
    }
}

/// Formats JSON as `kubectl -o json` does.
pub(crate) fn json(value: &Value) -> String {
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    serde::Serialize::serialize(value, &mut serializer).expect("a Value can be written as JSON");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

/// Removes control characters from the texts of another machine, which are printed on this terminal, and characters
/// that are invisible or change the direction of the text.
pub(crate) fn printable(text: &str) -> String {
    let is_format = |c: char| matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    text.chars().filter(|c| *c == '\n' || !c.is_control() && !is_format(*c)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_kubectls_and_stay_so() {
        let table = json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0}, {"name": "Ready", "priority": 0},
                {"name": "Node", "priority": 1}, {"name": "Age", "priority": 0}],
            "rows": [
                {"cells": ["web", "1/1", "board", "5s"], "object": {"metadata": {
                    "namespace": "default", "labels": {"b": "2", "a": "1"}}}},
                {"cells": ["database", "0/1", "board", "10m"], "object": {"metadata": {"namespace": "x"}}}],
        });
        let mut columns = Columns::default();
        let mut out = Vec::new();
        columns.write(&mut out, &rows(&table, Shown::default(), true)).expect("memory");
        let late = json!({
            "columnDefinitions": table["columnDefinitions"], "rows": [{"cells": ["a", "1/1", "board", "1s"]}],
        });
        columns.write(&mut out, &rows(&late, Shown::default(), false)).expect("memory");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "NAME       READY   AGE\n\
             web        1/1     5s\n\
             database   0/1     10m\n\
             a          1/1     1s\n"
        );
        let mut out = Vec::new();
        Columns::default()
            .write(&mut out, &rows(&table, Shown { wide: true, namespace: true, labels: true }, true))
            .expect("memory");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "NAMESPACE   NAME       READY   NODE    AGE   LABELS\n\
             default     web        1/1     board   5s    a=1,b=2\n\
             x           database   0/1     board   10m   <none>\n"
        );
    }

    #[test]
    fn control_characters_are_escaped_before_they_reach_the_terminal() {
        for (text, shown) in [
            ("plain, \u{e4}\u{4e2d}\n\ttext", "plain, \u{e4}\u{4e2d}\n\ttext"),
            ("\u{1b}[2J\r", "^[[2J\\r"),
            ("\u{7}\u{8}\u{7f}", "\\u{7}\\u{8}\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}gnp.exe", "\\u{202e}gnp.exe"),
        ] {
            assert_eq!(escaped(text), shown);
        }
    }

    #[test]
    fn a_cell_cannot_break_its_line() {
        assert_eq!(cell(&json!("one\ntwo")), "one...");
        assert_eq!(cell(&json!("\u{1b}[31mred")), "?[31mred");
        assert_eq!(cell(&json!(3)), "3");
    }
}
