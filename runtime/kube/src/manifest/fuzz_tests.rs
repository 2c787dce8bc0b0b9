//! Tests with malformed manifests: text and objects that are changed at random. Nothing may panic, and an
//! accepted object must be accepted again when it is read from its own YAML.

use nodlet_fuzz::{Random, setting};
use serde_json::{Value, json};

use super::{Manifest, Validation, parse, read_new, to_yaml};

const FULL: &str = include_str!("../pod/golden/full.yaml");

/// The seeds to try: `NODLET_SEED` is the first, `NODLET_ROUNDS` their number.
fn seeds() -> std::ops::Range<u64> {
    let first = setting("NODLET_SEED", 1);
    first..first.saturating_add(setting("NODLET_ROUNDS", 500))
}

#[test]
fn text_changed_at_random_is_accepted_or_rejected() {
    const PIECES: [&str; 22] = [
        "\n", " ", "  ", "\t", ":", ": ", "- ", "{", "}", "[", "]", ",", "#", "&a ", "*a", "|", "'", "\"",
        "!!int ", "---\n", "<<: ", "\u{0}",
    ];
    for seed in seeds() {
        let mut random = Random::of(seed);
        let mut text = FULL.to_owned();
        for _ in 0..=random.below(4) {
            let at = random.below(text.len());
            let end = (at + random.below(12)).min(text.len());
            if text.is_char_boundary(at) && text.is_char_boundary(end) {
                text.replace_range(at..end, random.pick::<&str>(&PIECES));
            }
        }
        let read = std::panic::catch_unwind(|| parse("f", text.as_bytes(), Validation::Ignore, "board"));
        let Ok(read) = read else { panic!("seed {seed}:\n{text}") };
        for manifest in read.into_iter().flatten() {
            again(&manifest, seed);
        }
    }
}

/// Any bytes: invalid text, truncated text, repetitions.
#[test]
fn bytes_changed_at_random_are_accepted_or_rejected() {
    let json = parse("f", FULL.as_bytes(), Validation::Strict, "board").unwrap().remove(0).object.to_string();
    let preset = b"{apiVersion: settings.k8s.io/v1alpha1, kind: PodPreset, metadata: {name: p}, spec: {selector: {matchExpressions: [{key: a, operator: In, values: [b]}]}, env: [{name: A}], volumes: [{name: v, emptyDir: {}}], volumeMounts: [{name: v, mountPath: /v}]}}";
    let corpus = [
        FULL.as_bytes().to_vec(),
        json.into_bytes(),
        b"a: &a [*a]\n--- {b: !!binary eA==}\n".to_vec(),
        preset.to_vec(),
    ];
    let words: [&[u8]; 10] = [
        b"\xff",
        b"\0",
        b"---\n",
        b"&a ",
        b"*a",
        b"!!str ",
        b"? ",
        b"{{{{{{{{",
        b"- - - - ",
        b"\xef\xbb\xbf",
    ];
    nodlet_fuzz::fuzz("manifest", 1500, &corpus, &words, |input| {
        match parse("f", input, Validation::Strict, "board") {
            Ok(manifests) => manifests.iter().for_each(|manifest| again(manifest, 0)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

#[test]
fn objects_changed_at_random_are_accepted_or_rejected() {
    let whole = parse("f", FULL.as_bytes(), Validation::Strict, "board").unwrap().remove(0).object;
    let values = [
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e300),
        json!(0.5),
        json!(""),
        json!("x"),
        json!("1Ki"),
        json!("../.."),
        json!("\u{0}\n\u{85}😀"),
        json!([]),
        json!([null]),
        json!([[]]),
        json!({}),
        json!({"": null}),
        json!({"name": {}}),
    ];
    for seed in seeds() {
        let mut random = Random::of(seed);
        let mut object = whole.clone();
        for _ in 0..=random.below(3) {
            let value = random.pick(&values).clone();
            // An object that is no pod any more is rejected before anything else is checked.
            let whole = random.one_in(8) || object.get("spec").is_none();
            let part = if whole { &mut object } else { &mut object["spec"] };
            *place(part, &mut random) = value;
        }
        let text = object.to_string();
        let taken = std::panic::catch_unwind(|| read_new(object, Validation::Strict, "board"));
        match taken {
            Ok(Ok(manifest)) => again(&manifest, seed),
            Ok(Err(error)) => assert!(error.status()["code"].is_number() && !error.to_string().is_empty()),
            Err(_) => panic!("seed {seed}:\n{text}"),
        }
    }
}

/// A random place in an object; deep places are as likely as flat ones.
fn place<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let below = match value {
        Value::Object(map) => map.len(),
        Value::Array(list) => list.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    if below == 0 || random.below(6) == 0 {
        return value;
    }
    let index = random.below(below);
    let child = match value {
        Value::Object(map) => map.values_mut().nth(index),
        Value::Array(list) => list.get_mut(index),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    };
    place(child.expect("the index is below the length"), random)
}

/// Checks that an accepted object can be read from its own YAML, with the same result.
fn again(manifest: &Manifest, seed: u64) {
    let text = to_yaml(&manifest.object);
    let again = parse("f", text.as_bytes(), Validation::Strict, "board")
        .unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
    assert_eq!(again[0].pod, manifest.pod, "seed {seed}:\n{text}");
}
