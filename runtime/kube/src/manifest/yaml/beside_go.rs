//! The reader beside `sigs.k8s.io/yaml`, with which kubectl and the kubelet read. `cargo xtask check unit` builds the
//! program that answers for it, and runs these tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nodlet_fuzz::{Random, setting};
use serde_json::Value;

use super::read;

/// Forms of YAML that people write. Whatever Go says of each, our reader says, too.
const FORMS: [&str; 65] = [
    // Lists and mappings in flow style that go on in further lines.
    "c:\n- args: [\n    a,\n    b\n  ]\n",
    "c:\n- args: [\n  a\n  ]\n  name: x\n",
    "c:\n- args: [\"a\",\n  \"b\"]\n",
    "c:\n  - args: [\"a\",\n    \"b\"]\n    name: x\n",
    "a: [\n1,\n2\n]\n",
    "a: [\n]\nb: 1\n",
    "a: {\n}\nb: 1\n",
    "a:\n  b: {\n  c: 1,\n  d: [1, 2,],\n  }\n  e: 2\n",
    "a: {b: 1,\nc: 2}\n",
    "- [a,\n b]\n- {c: d,\ne: f}\n",
    "a: [b: 1, c: 2]\n",
    "a: [{b: 1}, {c: 2}]\n",
    "a: {b, c: 1}\n",
    "{\n  \"a\": [\n    1\n  ]\n}\n",
    "a: {\"b\":1,\"c\":[2]}\n",
    "a: [x, y # why\n , z]\n",
    "a: [http://x:80/y, 'z']\n",
    "a:\n- {b: [c,\n  d\n  ],\n  e: f\n  }\n",
    // Quoted scalars that go on in further lines.
    "m:\n  a: \"b\n  c\"\n",
    "m:\n    a: '[{\n    \"name\": \"i\"\n    }]'\n    b: x\n",
    "a: \"b\nc\"\n",
    "a: 'b\n\n  c'\n",
    "a: \"b \\\n   c\"\n",
    "a: \"\\x41\\u00e9\\t\"\n",
    "- \"a\n- b\"\n",
    // Plain and block scalars.
    "a: b\n  c\n",
    "a: b\nc\n",
    "a: |\n  x\n\n   y\nb: >-\n  z\n  w\n",
    "a: |2\n   x\n  y\n",
    "a: >+\n  x\n\nb: 1\n",
    "a: |\n x\n  y\n z\n",
    // Blocks in a last line without a line feed.
    "a: |\n x\n y",
    "a: >+\n x",
    "a: |-\n x",
    "a: |\n x\n   ",
    "a: |\n x\n ",
    "a: |\n x\n# y",
    "a: x#y\nb: x #y\n",
    "a: b:c\nd: ::e\n",
    "a: -\n",
    "a: - b\n",
    // Keys, lists without indentation, tabs, tags, anchors.
    "? a\n: - b\n  - c\n",
    "a:\n- b\n-\n  c: 1\n- - d\n",
    "a:\tb\nc:  # d\n  e\n",
    "a:\n\tb: 1\n",
    "a: &x {b: 1}\nc:\n  <<: *x\n  d: 2\n",
    "a: !!str 1\nb: !x y\nc: ! 3\n",
    // Comments right behind another token.
    "a: [b, c]# d\ne: {f: g}#h\n",
    "a: \"b\"# c\nd: 'e'#f\n",
    "a: |# b\n c\nd: >-#\n e\n",
    "a: [# b\n  c,# d\n  e\n]\n",
    // A colon at the end of a text in brackets.
    "a: [http://x:, b:]\nc: {d: e:, f:}\n",
    "a: [x:80:, \"y\":, {z:}]\n",
    "a: {b:[1]}\n",
    // Lines within quotes that are indented by tabs.
    "m:\n  a: '[\n\t{}\n\t]'\n  b: \"x\n \ty\n\n\t\tz\"\n",
    // Lines in brackets that are indented by tabs, and tabs between tokens.
    "a: [\n\tb,\n\tc\n]\n",
    "a: {\n\t\"b\": 1,\n\t\t\"c\": [\n\t1,\n\t2 ]\n}\nd:\n- e: {\n\t\tf: g }\n",
    "a: [\tb,\tc\t, d ]\ne: {f:\tg}\n",
    "a:\t\tb\nc: \td\n",
    "a: [\n\tb ]\nc:\n\td: 1\n",
    "a: 1\n\tb: 2\n",
    // A single quote that is escaped in double quotes.
    "a: [sh, \"echo \\'b\\' \\\\\"]\n",
    "a: \"\\\\'\\q\"\n",
    "'a' : 1\n\"b\": 2\n3: 4\n",
    "a : b\n c: d\n",
];

/// Forms that Go reads otherwise, as `docs/differences.md` documents, and which of both accepts them.
const DIFFERENT: [(&str, Accepts); 22] = [
    // Text behind the end of the first value, which Go ignores.
    ("{a: 1}\nb: 2\n", Accepts::Go),
    ("{a: 1}}\n", Accepts::Go),
    ("[a, b]]\n", Accepts::Go),
    // A block of text whose mark begins in the column of its key.
    ("a:\n|\n b\n", Accepts::Go),
    ("a:\n  b:\n  >-\n   c\n", Accepts::Go),
    // A block of nothing but a line of spaces, and a comment that is indented less.
    ("a: |\n    \n  # b\nc: 1\n", Accepts::Go),
    // Tags of other forms.
    ("a: !b,c d\n", Accepts::Go),
    ("a: ![b]\n", Accepts::Go),
    ("a: {!!str :[1]}\n", Accepts::Go),
    // A tab behind a question mark, and a dash alone in brackets.
    ("a: [?\tb]\n", Accepts::Go),
    ("a: {-}\n", Accepts::Go),
    // YAML 1.2 allows more characters in a text without quotes in brackets.
    ("a: [http://b/?c=d]\n", Accepts::Nodlet),
    ("a: {b?: 1}\n", Accepts::Nodlet),
    ("a: [b, >c, |d]\n", Accepts::Nodlet),
    // Tabs that Go takes for indentation.
    ("-\ta: b\n", Accepts::Nodlet),
    ("a: 1\n\t\nb: 2\n", Accepts::Nodlet),
    ("a: |\n \tb\n", Accepts::Nodlet),
    // Tags and anchors of other forms.
    ("a: !<> b\n", Accepts::Nodlet),
    ("a: &. b\n", Accepts::Nodlet),
    ("a: !!int 080\n", Accepts::Nodlet),
    ("a: [&b :c]\n", Accepts::Nodlet),
    // YAML 1.2 has this escape, for JSON; Go knows it only in JSON.
    ("a: \"\\/\"\n", Accepts::Nodlet),
];

/// Forms of which Go reads another value, as `docs/differences.md` documents.
const READ_OTHERWISE: [&str; 3] = ["a: {?b: 1}\n", "a: &b:c 1\n", "a: {!!str :1}\n"];

/// Who accepts a form that the other rejects.
#[derive(Debug, PartialEq)]
enum Accepts {
    Go,
    Nodlet,
}

/// The program that reads YAML with `sigs.k8s.io/yaml`.
struct Go {
    child: Child,
    lines: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Go {
    fn start() -> Self {
        let program = std::env::var("NODLET_YAML_JUDGE").expect("`cargo xtask` sets NODLET_YAML_JUDGE");
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, answers }
    }

    /// The value of the first document, or the error.
    fn read(&mut self, text: &str) -> Result<Value, String> {
        let line = format!("{}\n", crate::base64::encode(text.as_bytes()));
        self.lines.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        match answer.trim_end().split_at_checked(1) {
            Some(("+", json)) => Ok(serde_json::from_str(json).unwrap()),
            Some(("-", error)) => Err(error.to_owned()),
            _ => panic!("the program ended at:\n{text}"),
        }
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What our reader makes of the first document, as Kubernetes' reader presents it.
fn ours(text: &str) -> Result<Value, String> {
    let documents = read(text).map_err(|error| format!("line {}: {error}", error.line))?;
    Ok(documents.into_iter().next().map_or(Value::Null, |document| document.value))
}

#[test]
fn no_manifest_is_excused_before_it_is_changed() {
    for text in FORMS.into_iter().chain([FULL]) {
        assert!(!has_odd_anchor(text) && !begins_with_question_mark(text), "{text}");
        assert!(!has_colon_behind_tag(text), "{text}");
    }
    assert!(!has_odd_tag(FULL) && begins_with_question_mark("a: [x,?<<: y]"));
    assert!(has_odd_anchor("a: &a:\"") && has_odd_anchor("&x? {b: 1}"));
}

#[test]
fn the_page_on_differences_has_each_form() {
    let page = include_str!("../../../../../docs/differences.md");
    for text in DIFFERENT.iter().map(|(text, _)| text).chain(&READ_OTHERWISE) {
        let shown = text.trim_end_matches('\n').replace('\n', "⏎").replace('\t', "⇥");
        assert!(page.contains(&format!("`{shown}`")), "{text}: {shown}");
    }
}

#[test]
#[ignore = "it needs a program in Go, with which `cargo xtask check unit` runs it"]
fn forms_are_read_beside_go() {
    let mut go = Go::start();
    let different: Vec<String> = FORMS.iter().filter_map(|text| difference(&mut go, text)).collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
#[ignore = "it needs a program in Go, with which `cargo xtask check unit` runs it"]
fn documented_differences_to_go_stay_as_they_are() {
    let mut go = Go::start();
    for (text, accepts) in DIFFERENT {
        let found = match (go.read(text), ours(text)) {
            (Ok(_), Err(_)) => Accepts::Go,
            (Err(_), Ok(_)) => Accepts::Nodlet,
            answers => panic!("no longer a difference: {text}\n{answers:?}"),
        };
        assert_eq!(found, accepts, "{text}");
    }
    for text in READ_OTHERWISE {
        let both = (go.read(text), ours(text));
        assert!(matches!(&both, (Ok(theirs), Ok(ours)) if theirs != ours), "{text}: {both:?}");
    }
}

/// How the answers differ, if they do.
fn difference(go: &mut Go, text: &str) -> Option<String> {
    let (theirs, ours) = (go.read(text), ours(text));
    let equal = match (&theirs, &ours) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        (Err(_), Err(_)) => true,
        (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
    };
    (!equal).then(|| format!("{text}\n  Go: {theirs:?}\nours: {ours:?}"))
}

/// A manifest that is changed at random.
const FULL: &str = include_str!("../../pod/golden/full.yaml");

/// Texts that are put into a manifest.
const PIECES: [&str; 29] = [
    "\n", "\n  ", " ", "  ", ":", ": ", "- ", "{", "}", "[", "]", ",", "#", " #", "&a ", "*a", "|\n", ">-\n",
    "'", "\"", "!!int ", "!!str ", "<<: ", "? ", "~", "0x1f", "1_000", "\\", "\\'",
];

/// A text that is changed at some places.
fn changed(random: &mut Random) -> String {
    let mut text = if random.one_in(2) { FULL } else { *random.pick(&FORMS) }.to_owned();
    for _ in 0..=random.below(3) {
        let at = random.below(text.len());
        let end = (at + random.below(8)).min(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(end) {
            text.replace_range(at..end, random.pick::<&str>(&PIECES));
        }
    }
    text
}

/// Kinds of differences that `docs/differences.md` documents: who accepts such a text, and a part of the other's error.
const KINDS: [(Accepts, &str); 26] = [
    // YAML 1.2 allows more characters in a text without quotes in brackets: `[a?b]`, `{a:b}`, `[:a]`.
    (Accepts::Nodlet, "did not find expected ',' or '}'"),
    (Accepts::Nodlet, "did not find expected ',' or ']'"),
    (Accepts::Nodlet, "did not find expected node content"),
    // `|` and `>` in brackets, and a line that has only a tab.
    (Accepts::Nodlet, "found character that cannot start any token"),
    (Accepts::Nodlet, "found a tab character that violates indentation"),
    // A tab behind the indentation of the first line of a block of text.
    (Accepts::Nodlet, "found a tab character where an indentation space is expected"),
    // A tag of an odd form.
    (Accepts::Nodlet, "did not find expected whitespace or line break"),
    (Accepts::Go, "a ! begins a tag"),
    // Go ignores what follows the end of the first value.
    (Accepts::Go, "this text follows the end of the document's value"),
    (Accepts::Go, "this bracket closes nothing"),
    // `"a"b`.
    (Accepts::Go, "text follows the closing quote"),
    (Accepts::Go, "a comment is between the lines of a text"),
    // `{a: b:}`, where Go sees the text `b:`, and a mapping as key.
    (Accepts::Go, "while parsing a flow mapping, did not find expected ',' or '}'"),
    (Accepts::Go, "a key must be a string, not a list or a mapping"),
    (Accepts::Go, "illegal placement of ':' indicator"),
    // An anchor without a name, and a tag of an odd form.
    (Accepts::Nodlet, "did not find expected alphabetic or numeric character"),
    (Accepts::Nodlet, "did not find expected tag URI"),
    // A comment in the place of the first line of a block.
    (Accepts::Go, "a line of a block of text is indented less"),
    // `{a :[1]}`, `[?<<: 1]`, and `&a: [{b: 1}]`, where Go sees the key `&a`.
    (Accepts::Go, "a blank must follow the colon of a key"),
    (Accepts::Nodlet, "map merge requires map or sequence of maps as the value"),
    (Accepts::Nodlet, "mapping values are not allowed in this context"),
    // `!!int 080`, and an anchor as key.
    (Accepts::Nodlet, "cannot decode !!float"),
    (Accepts::Nodlet, "unsupported map key of type: %!s(<nil>)"),
    // `[?<TAB>a]` and `{-}`.
    (Accepts::Go, "a tab cannot follow a ? or a -"),
    (Accepts::Go, "a - in front of a bracket or a comma"),
    // A block of text whose mark begins in the column of its key.
    (Accepts::Go, "a line here or above is neither `key: value`"),
];

/// Whether a text has a tag that neither the documents nor Kubernetes know.
fn has_odd_tag(text: &str) -> bool {
    let known = ["!!int ", "!!str ", "!!binary ", "!x ", "! "];
    known.iter().fold(text.to_owned(), |text, tag| text.replace(tag, "")).contains('!')
}

/// What follows this character where it begins a token.
fn behind(text: &str, first: char) -> impl Iterator<Item = &str> {
    let begins = |at: usize| text[..at].ends_with([' ', '\n', '\t', '[', '{', ',', '-', ':']) || at == 0;
    text.match_indices(first).filter(move |(at, _)| begins(*at)).map(|(at, found)| &text[at + found.len()..])
}

/// Whether the name of an anchor has other characters than letters, digits, `-` and `_`, as in `&a:b`: Go ends the name
/// before them, or refuses it.
fn has_odd_anchor(text: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let is_odd = |name: &str| {
        let next = name.trim_start_matches(is_of_name).chars().next();
        name.starts_with(is_of_name) && next.is_some_and(|next| !next.is_whitespace())
    };
    behind(text, '&').any(is_odd)
}

/// Whether a text without quotes begins with a `?`, as in `{?a: 1}`, where Go sees the key `a` and YAML 1.2 the key `?a`.
fn begins_with_question_mark(text: &str) -> bool {
    behind(text, '?').any(|rest| rest.starts_with(|c: char| !c.is_whitespace()))
}

/// Whether a text without quotes behind a tag begins with a colon, as in `{!!str :a}`, where Go sees an empty key.
fn has_colon_behind_tag(text: &str) -> bool {
    let mut tags =
        ["!!int ", "!!str ", "!!binary ", "!x ", "! "].iter().flat_map(|tag| text.match_indices(tag));
    tags.any(|(at, tag)| text[at + tag.len()..].trim_start().starts_with(':'))
}

/// Whether a text ends with a line of spaces without a line feed, of which it is unclear whether it ends a block.
fn ends_with_spaces(text: &str) -> bool {
    text.rsplit('\n').next().is_some_and(|line| line.bytes().all(|byte| byte == b' ') && !line.is_empty())
}

/// An answer about a manifest, which is a mapping: any other value is refused by its reader.
fn manifest(answer: Result<Value, String>) -> Result<Value, String> {
    answer.and_then(|value| if value.is_object() { Ok(value) } else { Err("no mapping".to_owned()) })
}

#[test]
#[ignore = "it needs a program in Go, with which `cargo xtask check unit` and `cargo xtask long yaml` run it"]
fn manifests_changed_at_random_are_read_beside_go() {
    let mut go = Go::start();
    let first = setting("NODLET_SEED", 1);
    let rounds = setting("NODLET_ROUNDS", 500);
    let mut counts = [0; KINDS.len()];
    let mut unknown = Vec::new();
    for seed in first..first.saturating_add(rounds) {
        let text = changed(&mut Random::of(seed));
        let (accepts, error) = match (manifest(go.read(&text)), manifest(ours(&text))) {
            (Ok(theirs), Ok(ours)) if theirs == ours => continue,
            (Err(_), Err(_)) => continue,
            (Ok(_), Err(_)) if has_odd_tag(&text) => continue,
            (Ok(_), Err(error)) => (Accepts::Go, error),
            (Err(_), Ok(_)) if has_odd_anchor(&text) => continue,
            (Err(error), Ok(_)) => (Accepts::Nodlet, error),
            (Ok(_), Ok(_)) if has_odd_tag(&text) || ends_with_spaces(&text) => continue,
            (Ok(_), Ok(_)) if has_odd_anchor(&text) || begins_with_question_mark(&text) => continue,
            (Ok(_), Ok(_)) if has_colon_behind_tag(&text) => continue,
            (Ok(theirs), Ok(ours)) => {
                unknown.push(format!("seed {seed}: other values\n{text}\n  Go: {theirs}\nours: {ours}"));
                continue;
            }
        };
        match KINDS.iter().position(|(who, part)| *who == accepts && error.contains(part)) {
            Some(kind) => counts[kind] += 1,
            None => unknown.push(format!("seed {seed}: {accepts:?} accepts, the other says {error}\n{text}")),
        }
    }
    for ((who, part), count) in KINDS.iter().zip(counts).filter(|(_, count)| *count > 0) {
        println!("{count} of {rounds}: {who:?} accepts, the other says: {part}");
    }
    assert!(unknown.is_empty(), "{} unknown differences:\n{}", unknown.len(), unknown.join("\n"));
}
