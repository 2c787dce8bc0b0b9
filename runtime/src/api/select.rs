//! `labelSelector` and `fieldSelector`: parsing of selectors, and matching of objects.

use std::cmp::Ordering;

use nodlet_core::sorted::SortedSet;
use nodlet_kube::manifest::{self, go_quoted};
use serde_json::Value;

use super::Status;

/// The maximum number of requirements in one selector, because each object is compared with all of them.
const MAX_REQUIREMENTS: usize = 64;

/// Fields with a boolean value.
const FLAGS: [&str; 2] = ["spec.hostNetwork", "spec.unschedulable"];

/// The selector of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    In(SortedSet<String>),
    NotIn(SortedSet<String>),
    Exists,
    DoesNotExist,
    /// The number of the label is greater, or less.
    Compares(Ordering, i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    /// With a dot before each name but the first.
    name: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// Parses the selectors.
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Selector, Status> {
        let labels = parse_labels(labels).map_err(Status::bad_request)?;
        let fields = parse_fields(fields).map_err(Status::bad_request)?;
        if labels.len() + fields.len() > MAX_REQUIREMENTS {
            return Err(Status::bad_request(format!(
                "a selector can have at most {MAX_REQUIREMENTS} requirements"
            )));
        }
        Ok(Selector { labels, fields })
    }

    /// Checks that objects can be selected by the fields. `known` are the supported fields of the resource.
    pub(super) fn require(&self, known: &[&str]) -> Result<(), Status> {
        let mut names = self.fields.iter().map(|field| &*field.name);
        let Some(name) = names.find(|name| !known.contains(name)) else { return Ok(()) };
        // Kubernetes has another text for kinds without fields of their own.
        Err(Status::bad_request(if known.iter().all(|field| field.starts_with("metadata.")) {
            let known: Vec<String> = known.iter().map(|field| go_quoted(field)).collect();
            format!("{} is not a known field selector: only {}", go_quoted(name), known.join(", "))
        } else {
            format!("field label not supported: {name} (supported: {})", known.join(", "))
        }))
    }

    /// Whether the selector matches everything, so that objects need not be parsed.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|requirement| {
            let value = labels[requirement.key.as_str()].as_str();
            match &requirement.operator {
                Operator::In(values) => value.is_some_and(|value| values.contains(value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
                Operator::Compares(than, number) => {
                    let value = value.and_then(|value| value.parse::<i64>().ok());
                    value.is_some_and(|value| value.cmp(number) == *than)
                }
            }
        }) && self.fields.iter().all(|requirement| {
            let pointer = format!("/{}", requirement.name.replace('.', "/"));
            let value = match object.pointer(&pointer) {
                Some(Value::String(text)) => text,
                Some(Value::Bool(true)) => "true",
                // Of these fields, an absent one is shown as false.
                _ if FLAGS.contains(&&*requirement.name) => "false",
                _ => "",
            };
            (value == requirement.value) == requirement.equal
        })
    }
}

/// The tokens of a label selector (`labels.Lexer`). A token is an identifier unless it is empty, at the end, or begins
/// with one of [`SYMBOLS`].
struct Tokens<'a> {
    rest: &'a str,
}

const SYMBOLS: &[char] = &['=', '!', '(', ')', ',', '<', '>'];
const BLANKS: &[char] = &[' ', '\t', '\r', '\n'];

impl<'a> Tokens<'a> {
    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.rest = self.rest.trim_start_matches(BLANKS).get(token.len()..).unwrap_or("");
        token
    }

    fn peek(&self) -> &'a str {
        let text = self.rest.trim_start_matches(BLANKS);
        let is_symbol = text.starts_with(SYMBOLS);
        let end = match text.get(..2) {
            Some("==" | "!=") => 2,
            _ if is_symbol => 1,
            _ => text.find(|c| SYMBOLS.contains(&c) || BLANKS.contains(&c)).unwrap_or(text.len()),
        };
        text.get(..end).unwrap_or(text)
    }
}

fn is_identifier(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(SYMBOLS)
}

/// Parses a label selector: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1` (`labels.Parser`).
fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut tokens = Tokens { rest: text };
    let mut requirements = Vec::new();
    loop {
        match tokens.peek() {
            "" => return Ok(requirements),
            token if is_identifier(token) || token == "!" => {}
            token => return Err(format!("found '{token}', expected: !, identifier, or 'end of string'")),
        }
        let requirement = parse_requirement(&mut tokens);
        requirements.push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
        match tokens.next() {
            "" => return Ok(requirements),
            "," => match tokens.peek() {
                token if is_identifier(token) || token == "!" => {}
                token => return Err(format!("found '{token}', expected: identifier after ','")),
            },
            token => return Err(format!("found '{token}', expected: ',' or 'end of string'")),
        }
    }
}

fn parse_requirement(tokens: &mut Tokens<'_>) -> Result<Requirement, String> {
    let is_absent = tokens.peek() == "!";
    if is_absent {
        tokens.next();
    }
    let key = tokens.next();
    if !is_identifier(key) {
        return Err(format!("found '{key}', expected: identifier"));
    }
    let wrong = |path: &str, value: &str, errors: Vec<String>| match &errors[..] {
        [] => Ok(()),
        errors => Err(format!("{path}: Invalid value: {}: {}", go_quoted(value), errors.join("; "))),
    };
    wrong("<nil>", key, manifest::qualified_name(key))?;
    let requirement = |operator| Requirement { key: key.to_owned(), operator };
    if is_absent || matches!(tokens.peek(), "" | ",") {
        return Ok(requirement(if is_absent { Operator::DoesNotExist } else { Operator::Exists }));
    }
    let operator = tokens.next();
    let values: SortedSet<String> = match operator {
        "in" | "notin" => parse_values(tokens)?,
        "=" | "==" | "!=" | ">" | "<" => match tokens.peek() {
            "" | "," => [String::new()].into(),
            token if is_identifier(token) => [tokens.next().to_owned()].into(),
            token => return Err(format!("found '{token}', expected: identifier")),
        },
        token => return Err(format!("found '{token}', expected: in, notin, =, ==, !=, gt, lt")),
    };
    let number = values.iter().next().and_then(|value| value.parse().ok());
    let operator = match (operator, number) {
        ("in" | "=" | "==", _) => Operator::In(values.clone()),
        (">" | "<", None) => {
            let value = values.iter().next().map_or("", |value| value);
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            return wrong("values[0]", value, vec![why.to_owned()]).map(|()| requirement(Operator::Exists));
        }
        (">", Some(number)) => Operator::Compares(Ordering::Greater, number),
        ("<", Some(number)) => Operator::Compares(Ordering::Less, number),
        (_, _) => Operator::NotIn(values.clone()),
    };
    for (index, value) in values.iter().enumerate() {
        wrong(&format!("values[{index}][{key}]"), value, manifest::label_value(value))?;
    }
    Ok(requirement(operator))
}

/// Parses values in parentheses, of which each may be empty.
fn parse_values(tokens: &mut Tokens<'_>) -> Result<SortedSet<String>, String> {
    match tokens.next() {
        "(" => {}
        token => return Err(format!("found '{token}' expected: '('")),
    }
    let mut values = SortedSet::new();
    let mut is_first = true;
    loop {
        let token = tokens.next();
        match token {
            "," => {
                if is_first || matches!(tokens.peek(), "," | ")") {
                    values.insert(String::new());
                }
            }
            ")" if is_first => values = [String::new()].into(),
            ")" => {}
            token if is_identifier(token) => {
                values.insert(token.to_owned());
                if !matches!(tokens.peek(), "," | ")") {
                    return Err(format!("found '{}', expected: ',' or ')'", tokens.peek()));
                }
            }
            token if is_first => return Err(format!("found '{token}', expected: ',', ')' or identifier")),
            token => return Err(format!("found '{token}', expected: ',', or identifier")),
        }
        if token == ")" {
            return Ok(values);
        }
        is_first = false;
    }
}

/// Parses a field selector, in the order of its terms' texts (`fields.ParseSelector`).
fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, String> {
    let mut is_escaped = false;
    let mut terms: Vec<&str> = text
        .split(|c| {
            let ends = c == ',' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        })
        .filter(|term| !term.is_empty())
        .collect();
    terms.sort_unstable();
    let parse = |term: &str| {
        let unknown = || format!("invalid selector: '{text}'; can't understand '{term}'");
        let at = term.find("!=").into_iter().chain(term.find('=')).min().ok_or_else(unknown)?;
        let (name, rest) = term.split_at(at);
        let value = rest.strip_prefix("!=").or(rest.strip_prefix("==")).or(rest.strip_prefix('='));
        let equal = !rest.starts_with('!');
        Ok(FieldRequirement { name: name.to_owned(), equal, value: unescaped(value.unwrap_or_default())? })
    };
    terms.into_iter().map(parse).collect()
}

/// A value of a field selector without its backslashes (`fields.UnescapeValue`).
fn unescaped(value: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut letters = value.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some(escaped @ ('\\' | ',' | '=')) => text.push(escaped),
                other => {
                    let other = other.map(String::from).unwrap_or_default();
                    return Err(format!("invalid field selector: invalid escape sequence: \\{other}"));
                }
            },
            ',' | '=' => {
                let code = u32::from(letter);
                return Err(format!("invalid field selector: unescaped character in value: {code}"));
            }
            letter => text.push(letter),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use nodlet_fuzz::cases;
    use serde_json::json;

    use super::*;

    const FIELDS: &[&str] = &["metadata.name", "spec.hostNetwork", "status.phase"];

    fn parse(labels: &str, fields: &str) -> Result<Selector, Status> {
        let selector = Selector::parse(labels, fields)?;
        selector.require(FIELDS)?;
        Ok(selector)
    }

    #[test]
    fn selectors_choose_as_kubernetes_does() {
        let object = json!({
            "metadata": {"name": "web", "labels": {"app": "web", "tier": "front", "index": "4", "app.kubernetes.io/name": "x"}},
            "status": {"phase": "Running"},
        });
        const CASES: &str = r"
            true =>  =>
            true => app=web =>
            true => app==web,tier=front =>
            true => app = web , tier = front =>
            false => app=db =>
            true => app!=db =>
            true => none!=db =>
            false => none= =>
            true => app =>
            false => !app =>
            true => !none =>
            true => app in (web, db),tier notin (back) =>
            false => app in (db) =>
            true => app.kubernetes.io/name=x =>
            false => index=1 =>
            true =>  => metadata.name=web
            false =>  => metadata.name!=web
            true => app=web => metadata.name=web,status.phase!=Failed
            false =>  => status.phase=
            true =>  => spec.hostNetwork=false
            false =>  => spec.hostNetwork=true
            true => index>3 =>
            false => index>4,none<1 =>
            true => index<5 =>
            true => app in (,web) =>
            true => none notin () =>
            false => in in (notin) =>
            true => ! none =>
            false =>  => metadata.name=web\,
        ";
        for [expected, labels, fields] in cases::<3>(CASES) {
            let selector = parse(labels, fields).expect(labels);
            assert_eq!(selector.matches(&object).to_string(), expected, "{labels} {fields}");
        }
        assert!(parse("app\tin\n(web)", "").expect("blanks").matches(&object));
    }

    #[test]
    fn a_kind_without_fields_of_its_own_is_selected_by_metadata() {
        let selector = Selector::parse("", "a=b").expect("it is a selector");
        let refused = selector.require(&["metadata.name", "metadata.namespace"]).expect_err("it is unknown");
        let expected = r#""a" is not a known field selector: only "metadata.name", "metadata.namespace""#;
        assert_eq!(refused.message, expected);
    }

    #[test]
    fn wrong_selectors_are_refused() {
        const WRONG: &str = r#"
            found '=', expected: !, identifier, or 'end of string' => =web =>
            unable to parse requirement: found 'web' expected: '(' => app in web =>
            unable to parse requirement: found '', expected: ',' or ')' => app in (web =>
            found 'tier', expected: ',' or 'end of string' => app=web tier =>
            field label not supported: spec.foo (supported: metadata.name, spec.hostNetwork, status.phase) =>  => spec.foo=1
            invalid selector: 'metadata.name'; can't understand 'metadata.name' =>  => metadata.name
            unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt => a b =>
            found '', expected: identifier after ',' => app=a, =>
            unable to parse requirement: found '!', expected: identifier => !!a =>
            found '=', expected: ',' or 'end of string' => a=b=c =>
            unable to parse requirement: found '=', expected: identifier => a===b =>
            unable to parse requirement: found 'c', expected: ',' or ')' => a in (b c) =>
            unable to parse requirement: found '!', expected: ',', ')' or identifier => a in (!) =>
            unable to parse requirement: values[0]: Invalid value: "x": for 'Gt', 'Lt' operators, the value must be an integer => a>x =>
            unable to parse requirement: <nil>: Invalid value: "/a": prefix part must be non-empty => /a=b =>
            unable to parse requirement: values[0][a]: Invalid value: "-b": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?') => a=-b =>
            invalid field selector: unescaped character in value: 61 =>  => metadata.name=a=b
            invalid field selector: invalid escape sequence: \b =>  => metadata.name=a\b
        "#;
        for [expected, labels, fields] in cases::<3>(WRONG) {
            let refused = parse(labels, fields).expect_err(labels);
            assert_eq!((refused.code, &*refused.message), (400, expected));
        }
        let many = parse(&vec!["a"; MAX_REQUIREMENTS + 1].join(","), "").expect_err("too many");
        assert_eq!(many.message, "a selector can have at most 64 requirements");
    }
}
