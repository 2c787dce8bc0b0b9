use serde_json::{Value, json};

use super::read;

fn one(text: &str) -> Value {
    let mut documents =
        read(text).unwrap_or_else(|error| panic!("{text}: line {}: {}", error.line, error.message));
    assert_eq!(documents.len(), 1, "{text}");
    documents.remove(0).value
}

fn refused(text: &str) -> (usize, String) {
    let error = read(text).expect_err(text);
    (error.line, error.message)
}

#[test]
fn scalars_are_resolved_as_in_yaml_1_1() {
    for (text, value) in [
        ("yes", json!(true)),
        ("Yes", json!(true)),
        ("yES", json!("yES")),
        ("on", json!(true)),
        ("y", json!(true)),
        ("true", json!(true)),
        ("no", json!(false)),
        ("N", json!(false)),
        ("Off", json!(false)),
        ("FALSE", json!(false)),
        ("null", Value::Null),
        ("~", Value::Null),
        ("", Value::Null),
        ("Null", Value::Null),
        ("nULL", json!("nULL")),
        ("0644", json!(420)),
        ("01777", json!(1023)),
        ("0o644", json!(420)),
        ("-010", json!(-8)),
        ("+12", json!(12)),
        ("0x1F", json!(31)),
        ("0X1f", json!(31)),
        ("0b101", json!(5)),
        ("-0b11", json!(-3)),
        ("1_000_000", json!(1_000_000)),
        ("0_644", json!(420)),
        ("08", json!(8)),
        ("089", json!(89)),
        ("0", json!(0)),
        ("00", json!(0)),
        ("-0", json!(0)),
        ("9223372036854775808", json!(9_223_372_036_854_775_808_u64)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1.5", json!(1.5)),
        ("80.0", json!(80)),
        (".5", json!(0.5)),
        ("5.", json!(5)),
        ("1e3", json!(1000)),
        ("1E-2", json!(0.01)),
        ("6.02e+23", json!(6.02e23)),
        ("1.2.3", json!("1.2.3")),
        ("1.5Gi", json!("1.5Gi")),
        ("500m", json!("500m")),
        ("1:30", json!("1:30")),
        ("190:20:30", json!("190:20:30")),
        ("2001-12-14", json!("2001-12-14")),
        ("2001-12-14T21:59:43Z", json!("2001-12-14T21:59:43Z")),
        ("0x", json!("0x")),
        ("0xg", json!("0xg")),
        ("-", json!([null])),
        ("--5", json!("--5")),
        ("+-5", json!("+-5")),
        ("1e", json!("1e")),
        (".", json!(".")),
        ("..", json!("..")),
        (".e5", json!(".e5")),
        ("1e999", json!("1e999")),
        ("=", json!("=")),
        ("'yes'", json!("yes")),
        ("\"0644\"", json!("0644")),
        ("'12'", json!("12")),
        ("\"\"", json!("")),
        ("!!str 12", json!("12")),
        ("!!str yes", json!("yes")),
        ("! 12", json!("12")),
        ("!!int '12'", json!(12)),
        ("!!float 1", json!(1)),
        ("!!bool \"no\"", json!(false)),
        ("!!null ''", Value::Null),
        ("!!binary aGVsbG8=", json!("hello")),
        ("!custom 12", json!("12")),
        ("\"a\\x41\\u00e9\\n\"", json!("aAé\n")),
        ("'it''s'", json!("it's")),
    ] {
        let text = format!("v: {text}\n");
        // A list entry needs its own line.
        let text = if text == "v: -\n" { "v:\n- \n".to_owned() } else { text };
        assert_eq!(one(&text), json!({ "v": value }), "{text}");
    }
    for text in ["v: .nan", "v: -.Inf", "v: !!int x", "v: !!bool 3", "v: !!binary '!'"] {
        assert_eq!(refused(text).0, 1, "{text}");
    }
}

#[test]
fn keys_of_other_types_become_strings() {
    assert_eq!(
        one("1: a\n0x10: b\nyes: c\n'null': d\n1.5: e\n"),
        json!({"1": "a", "16": "b", "true": "c", "null": "d", "1.5": "e"})
    );
    assert_eq!(refused("a: 1\n? [b]\n: c\n").0, 2);
    assert_eq!(refused("~: 1\n").0, 1);
    assert_eq!(one("? a\n: b\n? c\n"), json!({"a": "b", "c": null}));
}

#[test]
fn documents_are_split_and_empty_ones_left_out() {
    for (text, values) in [
        ("", vec![]),
        ("\n# nothing\n", vec![]),
        ("---\n---\n...\n", vec![]),
        ("a: 1\n---\nb: 2\n", vec![json!({"a": 1}), json!({"b": 2})]),
        ("---\na: 1\n...\n---\n# c\n---\nb: 2\n...\n", vec![json!({"a": 1}), json!({"b": 2})]),
        ("%YAML 1.1\n---\na: 1\n", vec![json!({"a": 1})]),
        ("\u{feff}a: 1\n", vec![json!({"a": 1})]),
        ("a: 1\r\nb:\r\n- c\r\n", vec![json!({"a": 1, "b": ["c"]})]),
        ("--- # first\na: 1\n--- {b: 2}\n", vec![json!({"a": 1}), json!({"b": 2})]),
    ] {
        let read: Vec<Value> = read(text).unwrap().into_iter().map(|document| document.value).collect();
        assert_eq!(read, values, "{text:?}");
    }
    assert_eq!(
        read("# one\na: 1\n---\n\nb: 2\n").unwrap().iter().map(|d| d.line).collect::<Vec<_>>(),
        [2, 5]
    );
}

#[test]
fn flow_style_may_have_trailing_commas_and_comments() {
    assert_eq!(
        one("{a: 1, b: [x, 'y', ], # why\n c: {d: ~,},\n}"),
        json!({"a": 1, "b": ["x", "y"], "c": {"d": null}})
    );
    assert_eq!(one("a: {\"b\":\"c\"}"), json!({"a": {"b": "c"}}));
    assert_eq!(
        one("args: [\"-c\", \"echo hi # no comment\"] # comment\n"),
        json!({"args": ["-c", "echo hi # no comment"]})
    );
}

#[test]
fn lines_within_brackets_and_quotes_need_no_indentation() {
    assert_eq!(one("c:\n- args: [\n  a\n  ]\n  name: x\n"), json!({"c": [{"args": ["a"], "name": "x"}]}));
    assert_eq!(one("c:\n- args: [\"a\",\n  \"b\"]\n"), json!({"c": [{"args": ["a", "b"]}]}));
    assert_eq!(
        one("m:\n    a: '[{\n    \"it''s\": \"i\"\n\n    }]'\n    b: x\n"),
        json!({"m": {"a": "[{ \"it's\": \"i\"\n}]", "b": "x"}})
    );
    assert_eq!(one("m:\n  a: \"b \\\n c\"\n"), json!({"m": {"a": "b c"}}));
    // The mark of a document ends the text even in quotes.
    refused("m:\n  a: \"b\n---\nc\"\n");
    // Many such lines: rejected or accepted without delay.
    let _ = read(&format!("m:\n  a: [\n{}  ]\n", " x,\n".repeat(100_000)));
}

#[test]
fn block_scalars_keep_their_line_breaks_as_indicated() {
    assert_eq!(
        one("a: |\n  x\n   y\n\nb: >-\n  p\n  q\nc: |+\n  z\n\n"),
        json!({"a": "x\n y\n", "b": "p q", "c": "z\n\n"})
    );
    assert_eq!(one("a: |\n  0644\n"), json!({"a": "0644\n"}));
}

#[test]
fn anchors_are_repeated_and_merge_keys_merged() {
    assert_eq!(one("a: &x [1, 2]\nb: *x\n"), json!({"a": [1, 2], "b": [1, 2]}));
    assert_eq!(
        one("base: &b {p: 1, q: 2}\na:\n  q: 3\n  <<: *b\nb:\n  <<: [{p: 7}, *b]\n"),
        json!({"base": {"p": 1, "q": 2}, "a": {"p": 1, "q": 3}, "b": {"p": 7, "q": 2}})
    );
    assert_eq!(one("'<<': 1\n"), json!({"<<": 1}));
    let expected = (2, "map merge requires map or sequence of maps as the value".to_owned());
    assert_eq!(refused("a: 1\n<<: 2\n"), expected);
    assert_eq!(refused("a: *b\n").0, 1);
    assert_eq!(refused("a: &a [*a]\n").0, 1);
    // An anchor is valid only in its document.
    assert_eq!(refused("a: &a 1\n---\nb: *a\n").0, 3);
}

#[test]
fn a_duplicate_key_is_reported_with_its_line() {
    let documents = read("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n---\nx: 1\nx: 1\n").unwrap();
    let texts = |document: &super::Document| document.duplicates.texts(|(key, line)| format!("{key} {line}"));
    assert_eq!(texts(&documents[0]), ["c 4", "a 5"]);
    assert_eq!(texts(&documents[1]), ["x 8"]);
}

#[test]
fn a_tab_may_stand_between_a_key_and_its_value() {
    assert_eq!(
        one("a:\tx\nb:\t\ty z\t# said\nd:\t-1\ne: \t'f'\n"),
        json!({"a": "x", "b": "y z", "d": -1, "e": "f"})
    );
    assert_eq!(one("a: {b:\tx,\tc: [1,\t2]}\n"), json!({"a": {"b": "x", "c": [1, 2]}}));
    assert_eq!(one("a: |\n  b:\tx\nb: 'c:\td'\n"), json!({"a": "b:\tx\n", "b": "c:\td"}));
    for text in ["a:\tb: c\n", "a:\t- b\n", "a:\t-\n", "a:\n\tb: c\n", "a: 1\n\tb: 2\n"] {
        refused(text);
    }
}

#[test]
fn invalid_yaml_is_rejected_with_its_line_number() {
    for (text, line) in [
        ("a: 1\n\tb: 2\n", 1),
        ("a: [1, 2\nb: 3\n", 2),
        ("a: 'x\n", 1),
        ("a: 1\n b: 2\n", 2),
        ("a: b: c\n", 1),
        ("a: 1\nb: \u{0}2\n", 2),
        ("a: \u{7}\n", 1),
        ("a: @x\n", 1),
        ("- 1\nb: 2\n", 2),
        ("a: %x\n", 1),
    ] {
        assert_eq!(refused(text).0, line, "{text:?}: {:?}", refused(text));
    }
}

#[test]
fn frequent_errors_have_messages_that_say_what_is_right() {
    for (text, line, message) in [
        ("a: {b: 1}\nc: 2]\n]\n", 3, "this bracket closes nothing"),
        ("{a: 1}\nb: 2\n", 2, "begin another document with ---"),
        ("a: 1\nb\nc: 2\n", 3, "neither `key: value` nor"),
        ("a:\n|\n b\n", 4, "also the | or > of a block of text"),
        ("a: |\n    \n  b\n", 3, "remove the spaces of the empty line"),
        ("a: !b,c d\n", 1, "put a text that begins with ! in quotes"),
        ("a:\n  b: 1\n\tc: 2\n", 2, "use spaces"),
        ("a:\n\tb: 1\n", 2, "use spaces"),
        ("a: \"b\" c\n", 1, "put all of the text in the quotes"),
        ("a:\n    b: 1\n  c: 2\n", 3, "indent all keys of a mapping alike"),
        ("a: b\n # c\n d\n", 3, "indent all keys of a mapping alike"),
    ] {
        let (found, said) = refused(text);
        assert!(said.contains(message) && found == line, "{text:?}: {found}: {said}");
    }
}

#[test]
fn tabs_indent_lines_in_brackets_and_no_others() {
    let text = "a: [\n\tb,\n\t{\n\t\t\"c\": 1,\n\t\td: \"2\"\n\t}\n]\ne: x\n";
    assert_eq!(one(text), json!({ "a": ["b", { "c": 1, "d": "2" }], "e": "x" }));
    for text in ["a: [b]\nc:\n\td: 1\n", "a: '['\nb:\n\tc: 1\n", "# [\na:\n\tb: 1\n"] {
        assert_eq!(refused(text).0, 3, "{text}: {}", refused(text).1);
    }
    // Each such line is read again, and the sum is bounded.
    let many = "- [\n\tb ]\n".repeat(3000);
    assert!(refused(&many).1.contains("use spaces"));
}

#[test]
fn hostile_documents_are_rejected_in_bounded_time_and_memory() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    assert!(refused(&bomb).1.contains("aliases repeat"));

    let text = format!("a: &a '{}'\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 1000].join(", "));
    assert!(refused(&text).1.contains("aliases repeat"));

    assert!(
        refused(&"[".repeat(100_000)).1.contains("nested deeper") || refused(&"[".repeat(100_000)).0 == 1
    );
    assert!(refused(&"- ".repeat(100_000)).1.contains("nested deeper"));
    assert!(refused(&"{a: ".repeat(5_000)).0 == 1);
    assert!(refused(&"? ".repeat(5_000)).0 == 1);

    // Each anchor keeps a copy of its whole content.
    let anchors: String = (0..50).map(|level| format!("&a{level} [")).collect();
    let nested = format!("a: {anchors}{}{}\n", "x, ".repeat(20_000), "]".repeat(50));
    assert!(refused(&nested).1.contains("aliases repeat"), "{:?}", refused(&nested));

    let many = "- 1\n".repeat(200_000);
    assert!(refused(&many).1.contains("more than 25000 values"));
}
