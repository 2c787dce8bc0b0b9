//! The reader beside `sigs.k8s.io/yaml`, with which kubectl and the kubelet read. `cargo xtask check unit` builds the
//! program that answers for it, and runs these tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use super::read;

/// Forms of YAML that people write. Whatever Go says of each, our reader says, too.
const FORMS: [&str; 43] = [
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
    "'a' : 1\n\"b\": 2\n3: 4\n",
    "a : b\n c: d\n",
];

/// Forms that Go reads otherwise, as `docs/differences.md` documents, and which of both accepts them.
const DIFFERENT: [(&str, Accepts); 3] = [
    // Lines in brackets that are indented by tabs.
    ("a: [\n\tb,\n\tc\n]\n", Accepts::Go),
    ("a: {\n\t\"b\": 1\n}\n", Accepts::Go),
    // YAML 1.2 has this escape, for JSON; Go knows it only in JSON.
    ("a: \"\\/\"\n", Accepts::Nodlet),
];

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
        let line = format!("{}\n", nodlet_base64::encode(text.as_bytes()));
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
