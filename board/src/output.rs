//! Formats objects for a terminal: kubectl's tables, JSON and YAML.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

/// Prints a line. This macro takes the place of that of the standard library in all modules of this crate: texts of
/// containers, registries and other machines must not steer the terminal.
macro_rules! println {
    ($($text:tt)*) => { $crate::output::print(&::std::format!("{}\n", ::std::format!($($text)*))) };
}

/// Prints a text, as `println!` of this crate prints a line.
macro_rules! print {
    ($($text:tt)*) => { $crate::output::print(&::std::format!($($text)*)) };
}

/// Prints a line to standard error, as `println!` of this crate does to standard output.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::complain(&::std::format!($($text)*)) };
}

/// Whether a text could not be printed.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Prints a text without what would steer a terminal. If that fails, the verb continues, and returns an error at its end
/// ([`code`]).
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(escaped(text).as_bytes()).and_then(|()| out.flush())
        && !IS_LOST.swap(true, Ordering::Relaxed)
    {
        complain(&format!("error: failed to write to the standard output: {error}"));
    }
}

/// Prints a line to standard error. There is nobody to tell if that fails.
pub(crate) fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{}", escaped(text));
}

/// The exit code of a verb that ends with this one.
pub(crate) fn code(code: ExitCode) -> ExitCode {
    if IS_LOST.load(Ordering::Relaxed) { ExitCode::FAILURE } else { code }
}

pub(crate) use nodlet_kube::kinds::escaped;
pub(crate) use nodlet_kube::manifest::to_yaml as yaml;

/// A line on the standard error that each text replaces, if that is a terminal.
pub(crate) struct StatusLine {
    is_terminal: bool,
    percent: Option<u64>,
}

impl StatusLine {
    pub(crate) fn new() -> Self {
        StatusLine { is_terminal: io::stderr().is_terminal(), percent: None }
    }

    pub(crate) fn show(&self, text: &str) {
        if self.is_terminal {
            let mut err = io::stderr().lock();
            // The cursor returns to the first column, where other reports begin.
            let _ = write!(err, "\r\x1b[K{}\r", escaped(text)).and_then(|()| err.flush());
        }
    }

    /// Shows the part of the bytes that is done, when its percentage has changed.
    pub(crate) fn show_part(&mut self, what: &str, done: u64, total: u64) {
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
        if self.percent.replace(percent) != Some(percent) {
            self.show(&format!("{what}{percent}% of {}", size(total)));
        }
    }

    pub(crate) fn clear(&self) {
        self.show("");
    }
}

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
    /// Writes rows. Cells may contain text of containers and of other machines.
    pub(crate) fn write(&mut self, out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
        let one_line = |cell: &String| escaped(cell).replace(['\n', '\t'], " ");
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(one_line).collect()).collect();
        for row in &rows {
            // The last cell of a row ends the line and needs no width.
            for (column, cell) in row.iter().enumerate().take(row.len().saturating_sub(1)) {
                let width = (cell.chars().count() + PADDING).max(MIN_WIDTH);
                match self.widths.get_mut(column) {
                    Some(known) => *known = (*known).max(width),
                    None => self.widths.push(width),
                }
            }
        }
        for row in &rows {
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
    // Each row must stay one line.
    match text.find(['\n', '\r', '\u{c}']) {
        Some(end) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Formats JSON as `kubectl -o json` does.
pub(crate) fn json(value: &Value) -> String {
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    serde::Serialize::serialize(value, &mut serializer).expect("a Value can be written as JSON");
    escaped_json(String::from_utf8(bytes).expect("JSON is UTF-8"))
}

/// The same JSON text without characters that steer a terminal.
pub(crate) fn escaped_json(text: String) -> String {
    if matches!(escaped(&text), Cow::Borrowed(_)) {
        return text;
    }
    // Such characters are only in strings of a JSON text, which have an escape for them.
    let mut safe = String::with_capacity(text.len() + 64);
    for letter in text.chars() {
        if matches!(escaped(letter.encode_utf8(&mut [0; 4])), Cow::Borrowed(_)) {
            safe.push(letter)
        } else {
            // Writing into a String does not fail.
            let _ = write!(safe, "\\u{:04x}", u32::from(letter));
        }
    }
    safe
}

/// Removes control characters from the texts of another machine, which are printed on this terminal, and characters
/// that are invisible or change the direction of the text.
pub(crate) fn printable(text: &str) -> String {
    let is_format = |c: char| matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    text.chars().filter(|c| *c == '\n' || !c.is_control() && !is_format(*c)).collect()
}

/// Formats a size as other image tools do: `12.3 MB`.
pub(crate) fn size(bytes: u64) -> String {
    let mut amount = bytes as f64;
    for unit in ["B", "kB", "MB"] {
        if amount < 999.5 {
            return if amount < 9.95 && unit != "B" {
                format!("{amount:.1} {unit}")
            } else {
                format!("{amount:.0} {unit}")
            };
        }
        amount /= 1000.0;
    }
    format!("{amount:.1} GB")
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
        assert_eq!(cell(&json!(3)), "3");
    }

    #[test]
    fn no_cell_reaches_the_terminal_unescaped() {
        let bad = "\u{1b}]0;title\u{7}\u{9b}31m\u{202e}";
        for text in
            [bad.to_owned(), format!("{bad}\nsecond"), format!("{bad}\rsecond"), format!("{bad}\u{c}x")]
        {
            let table = json!({
                "columnDefinitions": [{"name": bad, "priority": 0}, {"name": "Status", "priority": 0}],
                "rows": [{"cells": [text, text], "object": {"metadata": {"namespace": text, "labels": {"a": text}}}}],
            });
            let mut out = Vec::new();
            let all = rows(&table, Shown { wide: true, namespace: true, labels: true }, true);
            Columns::default().write(&mut out, &all).expect("memory");
            let out = String::from_utf8(out).expect("it is UTF-8");
            let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert!(!out.contains(steers), "{out:?}");
            assert_eq!(out.lines().count(), 2, "{out:?}");
        }
    }

    #[test]
    fn json_keeps_its_meaning_without_characters_that_steer_a_terminal() {
        let value = json!({"message": "a\u{1b}[2J\u{7f}\u{9b}31m\u{202e}b"});
        let text = json(&value);
        assert!(matches!(escaped(&text), Cow::Borrowed(_)), "{text:?}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("it is JSON"), value);
    }

    #[test]
    fn sizes_are_short() {
        for (bytes, expected) in
            [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (23_400_000, "23 MB"), (1_234_000_000, "1.2 GB")]
        {
            assert_eq!(size(bytes), expected);
        }
    }
}
