//! JSON values as YAML, in the style of `kubectl -o yaml`.

use serde_json::Value;

/// One document, its line end included.
pub(crate) fn yaml(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => block(&mut out, value, 0),
        Value::Array(items) if !items.is_empty() => block(&mut out, value, 0),
        scalar => {
            out.push_str(&flat(scalar, 0));
            out.push('\n');
        }
    }
    out
}

/// A mapping or sequence that is not empty. The cursor is at column `indent`.
fn block(out: &mut String, value: &Value, indent: usize) {
    let mut first = true;
    let mut begin = |out: &mut String| {
        if !std::mem::take(&mut first) {
            out.extend(std::iter::repeat_n(' ', indent));
        }
    };
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                begin(out);
                out.push_str(&plain_or_quoted(key));
                out.push(':');
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        out.push('\n');
                        out.extend(std::iter::repeat_n(' ', indent + 2));
                        block(out, value, indent + 2);
                    }
                    // A sequence stands below its key, not further in.
                    Value::Array(inner) if !inner.is_empty() => {
                        out.push('\n');
                        out.extend(std::iter::repeat_n(' ', indent));
                        block(out, value, indent);
                    }
                    scalar => {
                        out.push(' ');
                        out.push_str(&flat(scalar, indent + 2));
                        out.push('\n');
                    }
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                begin(out);
                out.push_str("- ");
                match item {
                    Value::Object(inner) if !inner.is_empty() => block(out, item, indent + 2),
                    Value::Array(inner) if !inner.is_empty() => block(out, item, indent + 2),
                    scalar => {
                        out.push_str(&flat(scalar, indent + 2));
                        out.push('\n');
                    }
                }
            }
        }
        _ => {}
    }
}

fn flat(value: &Value, indent: usize) -> String {
    match value {
        Value::String(text) if is_literal(text) => literal(text, indent),
        Value::String(text) => plain_or_quoted(text),
        Value::Object(_) => "{}".into(),
        Value::Array(_) => "[]".into(),
        other => other.to_string(),
    }
}

/// Several lines that a `|` block can hold as they are.
fn is_literal(text: &str) -> bool {
    text.contains('\n')
        && !text.starts_with([' ', '\n'])
        && text.chars().all(|c| c == '\n' || c == '\t' || !c.is_control())
}

fn literal(text: &str, indent: usize) -> String {
    let (body, chomping) = match text.strip_suffix('\n') {
        None => (text, "-"),
        Some(body) if body.ends_with('\n') => (body, "+"),
        Some(body) => (body, ""),
    };
    let mut block = format!("|{chomping}");
    for line in body.split('\n') {
        block.push('\n');
        if !line.is_empty() {
            block.extend(std::iter::repeat_n(' ', indent));
            block.push_str(line);
        }
    }
    block
}

fn plain_or_quoted(text: &str) -> String {
    if text.chars().any(char::is_control) {
        return serde_json::to_string(text).expect("a string can be written as JSON");
    }
    if is_plain(text) {
        return text.into();
    }
    // Of two ways to quote, the one that kubectl's library takes.
    if text.contains('\'') || !reads_as_something_else(text) {
        if text.contains('\'') && !text.contains('"') && !text.contains('\\') {
            return format!("\"{text}\"");
        }
        return format!("'{}'", text.replace('\'', "''"));
    }
    format!("\"{text}\"")
}

fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    !reads_as_something_else(text)
        && !"-?:,[]{}#&*!|>'\"%@` ".contains(first)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        || text.len() > 1 && first == '-' && is_word(&text[1..])
        || text.len() > 1 && first == ':' && is_word(&text[1..])
}

/// `-c`, `:8080`: an indicator, and no blank after it.
fn is_word(rest: &str) -> bool {
    rest.starts_with(|c: char| c.is_ascii_alphabetic())
        && !rest.ends_with(':')
        && !rest.contains(": ")
        && !rest.contains(" #")
}

/// Unquoted, it would come back as a number, a truth, nothing or a time.
fn reads_as_something_else(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    if matches!(
        lower.as_str(),
        "" | "~"
            | "null"
            | "true"
            | "false"
            | "yes"
            | "no"
            | "on"
            | "off"
            | "y"
            | "n"
            | ".nan"
            | ".inf"
            | "-.inf"
            | "+.inf"
            | "<<"
            | "="
    ) {
        return true;
    }
    let digits = lower.trim_start_matches(['-', '+']);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return false;
    }
    let number = digits.replace('_', "");
    let radix = |prefix: &str, radix| {
        number
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c: char| c.is_digit(radix)))
    };
    number.parse::<f64>().is_ok()
        || radix("0x", 16)
        || radix("0o", 8)
        || radix("0b", 2)
        || is_date(&lower)
        || is_sexagesimal(&number)
}

/// YAML 1.1 reads `2026-01-31` and what begins like it as a time.
fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut parts = text.splitn(3, '-');
    bytes.len() >= 8
        && parts.next().is_some_and(|year| year.len() == 4 && year.bytes().all(|b| b.is_ascii_digit()))
        && parts.next().is_some_and(|month| month.len() <= 2 && month.bytes().all(|b| b.is_ascii_digit()))
        && parts.next().is_some_and(|day| day.starts_with(|c: char| c.is_ascii_digit()))
}

/// YAML 1.1 reads `1:30` as ninety.
fn is_sexagesimal(text: &str) -> bool {
    text.contains(':')
        && text.split(':').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_laid_out_as_kubectl_lays_them_out() {
        let object = json!({
            "apiVersion": "v1",
            "items": [{"metadata": {"labels": {}, "name": "web"}, "args": ["-c", "sleep 1", ["x", "y"]]}, []],
            "spec": {"ok": true, "n": 3, "none": null, "text": "one\ntwo\n"},
        });
        assert_eq!(
            yaml(&object),
            "apiVersion: v1\n\
             items:\n\
             - args:\n\
             \x20 - -c\n\
             \x20 - sleep 1\n\
             \x20 - - x\n\
             \x20   - \"y\"\n\
             \x20 metadata:\n\
             \x20   labels: {}\n\
             \x20   name: web\n\
             - []\n\
             spec:\n\
             \x20 \"n\": 3\n\
             \x20 none: null\n\
             \x20 ok: true\n\
             \x20 text: |\n\
             \x20   one\n\
             \x20   two\n"
        );
    }

    #[test]
    fn strings_are_quoted_where_they_would_read_as_something_else() {
        for (text, expected) in [
            ("web", "web"),
            ("", "\"\""),
            ("true", "\"true\""),
            ("80", "\"80\""),
            ("1.5", "\"1.5\""),
            ("0x1f", "\"0x1f\""),
            ("1e3", "\"1e3\""),
            ("100m", "100m"),
            ("128Mi", "128Mi"),
            ("10.88.0.2", "10.88.0.2"),
            ("2026-01-31T12:00:00Z", "\"2026-01-31T12:00:00Z\""),
            ("docker.io/library/nginx:1.27", "docker.io/library/nginx:1.27"),
            ("a: b", "'a: b'"),
            ("a:", "'a:'"),
            ("#x", "'#x'"),
            ("-", "'-'"),
            ("-c", "-c"),
            ("* all", "'* all'"),
            ("it's", "it's"),
            ("'q'", "\"'q'\""),
            ("{}", "'{}'"),
            (" x", "' x'"),
            ("a\tb", "\"a\\tb\""),
        ] {
            assert_eq!(plain_or_quoted(text), expected, "{text:?}");
        }
    }
}
