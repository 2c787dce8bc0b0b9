//! YAML as `kubectl get -o yaml` prints it: keys sorted, lists not indented, strings
//! in quotes where a reader of YAML 1.1 would take them for something else.

use serde_json::Value;

/// The text of a value, ending with a line feed.
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    node(value, 0, &mut out);
    out
}

/// Writes a value that begins on a line of its own, at an indentation.
fn node(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (index, (key, value)) in map.iter().enumerate() {
                if index > 0 {
                    spaces(indent, out);
                }
                scalar(key, indent, true, out);
                out.push(':');
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        out.push('\n');
                        spaces(indent + 2, out);
                        node(value, indent + 2, out);
                    }
                    Value::Array(list) if !list.is_empty() => {
                        out.push('\n');
                        spaces(indent, out);
                        node(value, indent, out);
                    }
                    value => {
                        out.push(' ');
                        node(value, indent + 2, out);
                    }
                }
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for (index, value) in list.iter().enumerate() {
                if index > 0 {
                    spaces(indent, out);
                }
                out.push_str("- ");
                node(value, indent + 2, out);
            }
        }
        Value::Object(_) => out.push_str("{}\n"),
        Value::Array(_) => out.push_str("[]\n"),
        Value::Null => out.push_str("null\n"),
        Value::Bool(value) => out.push_str(if *value { "true\n" } else { "false\n" }),
        Value::Number(number) => {
            out.push_str(&number.to_string());
            out.push('\n');
        }
        Value::String(text) => {
            scalar(text, indent, false, out);
            out.push('\n');
        }
    }
}

fn spaces(count: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', count));
}

fn scalar(text: &str, indent: usize, key: bool, out: &mut String) {
    let printable = text.chars().all(|c| {
        c == '\n'
            || (c >= ' '
                && !c.is_control()
                && c != '\u{feff}'
                && c != '\u{2028}'
                && c != '\u{2029}'
                && c != '\u{85}')
    });
    if !printable {
        return double_quoted(text, out);
    }
    if text.contains('\n') {
        // A block cannot begin a key, and cannot keep spaces that end a line.
        if key || text.starts_with([' ', '\n']) || text.contains(" \n") || text.ends_with(' ') {
            return double_quoted(text, out);
        }
        return block(text, indent, out);
    }
    if misread(text) {
        out.push('"');
        out.push_str(text);
        out.push('"');
    } else if plain(text) {
        out.push_str(text);
    } else {
        out.push('\'');
        out.push_str(&text.replace('\'', "''"));
        out.push('\'');
    }
}

/// A plain scalar that would be read as something else than a string.
fn misread(text: &str) -> bool {
    !matches!(super::yaml::plain(text), Some(Value::String(_))) && !text.is_empty() && plain(text)
        || base_60(text)
        || timestamp(text)
}

/// `190:20:30`, which old readers take for a number of base 60.
fn base_60(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.contains(':')
        && digits.split(':').enumerate().all(|(index, part)| {
            let part = part.split('.').next().unwrap_or_default();
            let fits = index == 0 || part.len() <= 2 && part.parse::<u8>().is_ok_and(|value| value < 60);
            !part.is_empty() && fits && part.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
        })
}

/// `2001-12-14`, with or without a time.
fn timestamp(text: &str) -> bool {
    let mut parts = text.splitn(3, '-');
    let number = |part: Option<&str>, length: std::ops::RangeInclusive<usize>| {
        part.is_some_and(|part| {
            length.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    let (year, month, rest) = (parts.next(), parts.next(), parts.next());
    let day = rest.map(|rest| rest.split(['T', 't', ' ']).next().unwrap_or_default());
    number(year, 4..=4) && number(month, 1..=2) && number(day, 1..=2)
}

/// May stand without quotes.
fn plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let second = text.chars().nth(1);
    let bad_start = match first {
        '-' | '?' | ':' => second.is_none_or(|c| c == ' '),
        ',' | '[' | ']' | '{' | '}' | '#' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`'
        | ' ' => true,
        _ => false,
    };
    !(bad_start
        || text.starts_with("---")
        || text.starts_with("...")
        || text.ends_with([' ', ':'])
        || text.contains(": ")
        || text.contains(" #"))
}

/// `|`, with what is to be done with the line feeds at the end.
fn block(text: &str, indent: usize, out: &mut String) {
    let chomp = if !text.ends_with('\n') {
        "|-"
    } else if text.ends_with("\n\n") || text == "\n" {
        "|+"
    } else {
        "|"
    };
    out.push_str(chomp);
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            spaces(indent.max(2), out);
            out.push_str(line);
        }
    }
}

fn double_quoted(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\x0b' => out.push_str("\\v"),
            '\x0c' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\x1b' => out.push_str("\\e"),
            '\u{85}' => out.push_str("\\N"),
            '\u{2028}' => out.push_str("\\L"),
            '\u{2029}' => out.push_str("\\P"),
            '\u{feff}' => out.push_str("\\uFEFF"),
            c if c.is_control() => out.push_str(&format!("\\x{:02X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}
