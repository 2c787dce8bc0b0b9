//! Prints YAML as `kubectl get -o yaml` does: keys sorted, lists not indented, and strings quoted if a YAML
//! 1.1 reader would read another type.

use serde_json::Value;

use crate::kinds::is_control_character;

/// The YAML text of a value, ending with a line feed.
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    node(value, 0, &mut out);
    out
}

/// Writes a value whose further lines have this indentation.
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

/// The column after which a space becomes a line feed.
const WIDTH: usize = 80;

/// Writes a string. `indent` is the indentation of its further lines.
fn scalar(text: &str, indent: usize, key: bool, out: &mut String) {
    let multiline = text.contains('\n');
    // A block cannot be a key, and cannot keep spaces at the end of a line.
    let no_block = key || text.contains(" \n") || text.ends_with(' ');
    if !text.chars().all(printable) || multiline && no_block {
        double_quoted(text, indent, key, out);
    } else if multiline {
        block(text, indent, out);
    } else if needs_quotes(text) {
        double_quoted(text, indent, key, out);
    } else if plain(text) {
        folded(text, indent, key, out);
    } else {
        out.push('\'');
        folded(&text.replace('\'', "''"), indent, key, out);
        out.push('\'');
    }
}

/// Whether a character needs no escape. Kubernetes' printer escapes all characters beyond the basic plane. This one
/// also escapes those that change the direction of writing, because they steer a terminal.
fn printable(c: char) -> bool {
    let plain = matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}');
    plain && !is_control_character(c)
}

/// Writes a text, and replaces single spaces by line feeds if a line is long.
fn folded(text: &str, indent: usize, key: bool, out: &mut String) {
    let mut column = column(out);
    let mut before = None;
    for (index, c) in text.char_indices() {
        let inner = index > 0 && index + 1 < text.len();
        let alone = before != Some(' ') && !text[index + c.len_utf8()..].starts_with(' ');
        if c == ' ' && column > WIDTH && inner && alone && !key {
            out.push('\n');
            spaces(indent, out);
            column = indent;
        } else {
            out.push(c);
            column += 1;
        }
        before = Some(c);
    }
}

/// The number of characters of the last line.
fn column(out: &str) -> usize {
    out.rsplit('\n').next().unwrap_or_default().chars().count()
}

/// Whether an unquoted text would be read as another type than a string.
fn needs_quotes(text: &str) -> bool {
    !matches!(super::yaml::plain(text), Some(Value::String(_))) || base_60(text) || timestamp(text)
}

/// Whether old readers take the text for a number of base 60, such as `190:20:30`.
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

/// Whether the text is a date such as `2001-12-14`, with or without a time.
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

/// Whether the text needs no quotes.
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

/// Writes a block with `|`, and the indicator for the line feeds at its end.
fn block(text: &str, indent: usize, out: &mut String) {
    out.push('|');
    // If the first line begins with a space, the indentation has to be stated.
    if text.starts_with([' ', '\n']) {
        out.push('2');
    }
    if !text.ends_with('\n') {
        out.push('-');
    } else if text.ends_with("\n\n") || text == "\n" {
        out.push('+');
    }
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            spaces(indent.max(2), out);
            out.push_str(line);
        }
    }
}

fn double_quoted(text: &str, indent: usize, key: bool, out: &mut String) {
    out.push('"');
    let mut column = column(out);
    let mut before = None;
    for (index, c) in text.char_indices() {
        if c == ' ' && before != Some(' ') && column > WIDTH && index > 0 && index + 1 < text.len() && !key {
            out.push('\n');
            spaces(indent, out);
            column = indent;
            // A space at the beginning of a line would be lost.
            if text[index + 1..].starts_with(' ') {
                out.push('\\');
                column += 1;
            }
        } else {
            let start = out.len();
            escaped(c, out);
            column += out[start..].chars().count();
        }
        before = Some(c);
    }
    out.push('"');
}

fn escaped(c: char, out: &mut String) {
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
        c if printable(c) => out.push(c),
        c => {
            let code = u32::from(c);
            out.push_str(&match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::to_yaml;

    /// Strings, and how sigs.k8s.io/yaml 1.6 prints them after `k: `.
    #[rustfmt::skip]
    const STRINGS: &[(&str, &str)] = &[
        ("", "\"\"\n"),
        ("a", "a\n"),
        ("yes", "\"yes\"\n"),
        ("1", "\"1\"\n"),
        ("0644", "\"0644\"\n"),
        ("1.5", "\"1.5\"\n"),
        ("~", "\"~\"\n"),
        ("null", "\"null\"\n"),
        ("2001-01-01", "\"2001-01-01\"\n"),
        ("1:30", "\"1:30\"\n"),
        ("190:20:30", "\"190:20:30\"\n"),
        ("1:60", "1:60\n"),
        ("a: b", "'a: b'\n"),
        ("a:", "'a:'\n"),
        ("a #b", "'a #b'\n"),
        ("#a", "'#a'\n"),
        ("- a", "'- a'\n"),
        ("-", "'-'\n"),
        ("-a", "-a\n"),
        ("--- a", "'--- a'\n"),
        ("... b", "'... b'\n"),
        ("? a", "'? a'\n"),
        (": a", "': a'\n"),
        ("?a", "?a\n"),
        (":a", ":a\n"),
        ("a\nb", "|-\n  a\n  b\n"),
        ("a\nb\n", "|\n  a\n  b\n"),
        ("a\n\n", "|+\n  a\n\n"),
        ("\n", "|2+\n\n"),
        (" a\nb", "|2-\n   a\n  b\n"),
        ("\na\nb", "|2-\n\n  a\n  b\n"),
        ("a \nb", "\"a \\nb\"\n"),
        ("a\nb ", "\"a\\nb \"\n"),
        ("a\tb", "\"a\\tb\"\n"),
        ("it's", "it's\n"),
        ("\"q\"", "'\"q\"'\n"),
        ("'q'", "'''q'''\n"),
        ("é", "é\n"),
        ("😀", "\"\\U0001F600\"\n"),
        ("\u{1}", "\"\\x01\"\n"),
        ("\u{a0}", "\u{a0}\n"),
        ("[a", "'[a'\n"),
        ("{a", "'{a'\n"),
        ("a,b", "a,b\n"),
        ("a]b", "a]b\n"),
        ("*a", "'*a'\n"),
        ("&a", "'&a'\n"),
        ("!a", "'!a'\n"),
        ("|a", "'|a'\n"),
        (">a", "'>a'\n"),
        ("%a", "'%a'\n"),
        ("@a", "'@a'\n"),
        ("`a", "'`a'\n"),
        ("a%b", "a%b\n"),
        ("=", "=\n"),
        ("<<", "<<\n"),
        (".", ".\n"),
        ("..", "..\n"),
        (".5", "\".5\"\n"),
        ("1e3", "\"1e3\"\n"),
        ("0x1f", "\"0x1f\"\n"),
        ("0b1", "\"0b1\"\n"),
        ("1_000", "\"1_000\"\n"),
        ("+1", "\"+1\"\n"),
        ("-1", "\"-1\"\n"),
        ("y", "\"y\"\n"),
        ("n", "\"n\"\n"),
        ("on", "\"on\"\n"),
        ("Off", "\"Off\"\n"),
        ("TRUE", "\"TRUE\"\n"),
        (" a", "' a'\n"),
        ("a ", "'a '\n"),
        ("a\n ", "\"a\\n \"\n"),
        ("a\n  b\n", "|\n  a\n    b\n"),
        ("  a\n", "|2\n    a\n"),
        ("\u{feff}", "\"\\uFEFF\"\n"),
        ("1e999", "1e999\n"),
        (".inf", "\".inf\"\n"),
        ("-.INF", "\"-.INF\"\n"),
        ("0o7", "\"0o7\"\n"),
        ("08", "\"08\"\n"),
        ("12h", "12h\n"),
        ("10.0.0.1", "10.0.0.1\n"),
        ("::1", "::1\n"),
        ("a'b: c", "'a''b: c'\n"),
        ("\\", "\\\n"),
        ("a\\b", "a\\b\n"),
        ("\r\n", "\"\\r\\n\"\n"),
        ("a\rb", "\"a\\rb\"\n"),
        ("2001-12-14T21:59:43Z", "\"2001-12-14T21:59:43Z\"\n"),
        ("2001-1-1", "\"2001-1-1\"\n"),
        ("123456789012345678901234567890", "\"123456789012345678901234567890\"\n"),
    ];

    #[test]
    fn strings_are_printed_as_by_kubectl_and_read_again_unchanged() {
        for (text, printed) in STRINGS {
            check(&json!({"k": text}), &format!("k: {printed}"));
        }
    }

    /// Keys, and how their line is printed.
    #[rustfmt::skip]
    const KEYS: &[(&str, &str)] = &[
        ("", "\"\": v\n"),
        ("yes", "\"yes\": v\n"),
        ("1", "\"1\": v\n"),
        ("a b", "a b: v\n"),
        ("a: b", "'a: b': v\n"),
        ("é", "é: v\n"),
        ("y", "\"y\": v\n"),
        (" x", "' x': v\n"),
        ("#", "'#': v\n"),
        ("null", "\"null\": v\n"),
        ("a:", "'a:': v\n"),
    ];

    #[test]
    fn keys_are_printed_as_kubectl_prints_them() {
        for (key, printed) in KEYS {
            check(&json!({*key: "v"}), printed);
        }
    }

    #[test]
    fn lists_and_objects_are_nested_as_kubectl_nests_them() {
        check(&json!([]), "[]\n");
        check(&json!({}), "{}\n");
        check(
            &json!({
                "a": [], "b": {}, "c": null, "d": [[1, 2], [{"x": 1, "z": [3]}], []], "e": 1.5, "f": true,
                "j": {"k": {"l": "m\nn\n"}}, "n": ["a\nb\n", {"p": "q\nr"}],
            }),
            "a: []\nb: {}\nc: null\nd:\n- - 1\n  - 2\n- - x: 1\n    z:\n    - 3\n- []\ne: 1.5\nf: true\n\
             j:\n  k:\n    l: |\n      m\n      n\n\"n\":\n- |\n  a\n  b\n- p: |-\n    q\n    r\n",
        );
    }

    /// Kubernetes' printer does not escape these.
    #[test]
    fn characters_that_change_the_direction_of_writing_are_escaped() {
        check(&json!({"k": "a\u{202e}b\u{2066}c\u{200f}"}), "k: \"a\\u202Eb\\u2066c\\u200F\"\n");
    }

    #[test]
    fn long_lines_are_folded_at_spaces() {
        let words = "word ".repeat(40) + "end";
        let line = |count: usize| vec!["word"; count].join(" ");
        check(&json!({"k": words}), &format!("k: {}\n  {}\n  {} end\n", line(16), line(16), line(8)));
        for text in [words.clone(), format!("{words}: x"), format!("{words}\t  y  {words}"), "x".repeat(200)]
        {
            let value = json!({"a": [{"k": text}]});
            assert_eq!(read(&to_yaml(&value)), value);
        }
    }

    #[track_caller]
    fn check(value: &Value, printed: &str) {
        assert_eq!(to_yaml(value), printed);
        assert_eq!(read(printed), *value);
    }

    fn read(text: &str) -> Value {
        crate::manifest::yaml::read(text).unwrap().remove(0).value
    }
}
