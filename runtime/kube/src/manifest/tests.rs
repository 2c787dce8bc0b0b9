use nodlet_fuzz::cases;
use nodlet_fuzz::{assert_contains, assert_ends_with, assert_starts_with};
use serde_json::json;

use super::{Manifest, ManifestCause, ManifestError, Validation, parse, written};
use crate::kind::Kind;

/// The manifest of a pod.
pub(crate) const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: app, image: 'localhost/demo:1'}]}\n";

/// Reads the pods of a valid manifest.
pub(crate) fn read(text: &str) -> Vec<Manifest> {
    parse("web.yaml", text.as_bytes(), Validation::Strict, "board")
        .unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// Reads the only pod of a valid manifest.
pub(crate) fn one(text: &str) -> Manifest {
    let mut manifests = read(text);
    assert_eq!(manifests.len(), 1, "{text}");
    manifests.remove(0)
}

/// Reads an invalid manifest.
pub(crate) fn refused(text: &str) -> ManifestError {
    parse("web.yaml", text.as_bytes(), Validation::Strict, "board").expect_err(text)
}

/// A pod with these additional fields in its spec and in its container, in flow style.
pub(crate) fn pod(spec: &str, container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: app, image: 'app:1', {container}}}], {spec}}}\n"
    )
}

#[test]
fn unknown_and_repeated_fields_are_errors_warnings_or_nothing() {
    let text = POD.replace("image:", "imag: x, image:") + "kind: Pod\n";
    let expected = "web.yaml: Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: line 5: key \"kind\" already set in map";
    assert_eq!(refused(&text).to_string(), expected);
    let text = POD.replace("image:", "imag: x, comand: [], image:");
    assert_eq!(
        refused(&text).to_string(),
        "web.yaml, line 4: Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: \
         unknown field \"spec.containers[0].comand\" (did you mean \"command\"?), \
         unknown field \"spec.containers[0].imag\" (did you mean \"image\"?)"
    );
    let warned = parse("f", text.as_bytes(), Validation::Warn, "n").unwrap();
    assert_eq!(warned[0].warnings.len(), 2);
    assert!(warned[0].object["spec"]["containers"][0].get("imag").is_none());
    let ignored = parse("f", text.as_bytes(), Validation::Ignore, "n").unwrap();
    assert!(ignored[0].warnings.is_empty());

    // For a client that sends the object to an agent: the agent cannot see duplicate keys any more.
    let text = POD.replace("image:", "image: j, image:");
    let twice = ["line 4: key \"image\" already set in map"];
    assert_eq!(written("f", text.as_bytes(), Validation::Warn).unwrap().0[0].warnings, twice);
    assert!(written("f", text.as_bytes(), Validation::Ignore).unwrap().0[0].warnings.is_empty());
    let refused_too = written("f", text.as_bytes(), Validation::Strict).unwrap().1[0].to_string();
    assert!(refused_too.ends_with(twice[0]), "{refused_too}");

    // A document that is not for nodlet does not affect the other documents.
    let text = format!("{POD}---\napiVersion: apps/v1\nkind: Deployment\n---\n{POD}");
    let (objects, others) = written("f", text.as_bytes(), Validation::Strict).unwrap();
    assert_eq!(objects.iter().map(|written| written.document).collect::<Vec<_>>(), [Some(1), Some(3)]);
    let texts: Vec<String> = others.iter().map(ToString::to_string).collect();
    assert!(
        texts.len() == 1 && texts[0].starts_with("f, document 2, line 6: Deployment apps/v1"),
        "{texts:?}"
    );

    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    assert!(refused(json).to_string().ends_with("strict decoding error: duplicate field \"metadata.name\""));
    let warned = parse("f", json.as_bytes(), Validation::Warn, "n").unwrap();
    let expected = ("b", &["duplicate field \"metadata.name\"".to_owned()][..]);
    assert_eq!((&*warned[0].pod.name, &warned[0].warnings[..]), expected);
}

#[test]
fn a_file_may_contain_several_documents_and_lists() {
    let named = |name: &str| POD.replace("name: web", &format!("name: {name}"));
    let item = |name: &str| named(name).replace('\n', "\n  ");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {}\n- {}\n", item("c"), item("d"));
    let text = format!("{}---\n# nothing\n---\n{}---\n{list}", named("a"), named("b"));
    let names =
        |manifests: Vec<Manifest>| manifests.iter().map(|m| m.pod.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(read(&text)), ["a", "b", "c", "d"]);

    let json = r#"{"metadata":{"name":"x"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
    let list = format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{}},"items":[{json}]}}"#);
    assert_eq!(names(read(&list)), ["x"]);
    let pod = json.replacen('{', r#"{"kind":"Pod","apiVersion":"v1","#, 1);
    assert_eq!(names(read(&format!("{pod}\n{}", pod.replace("\"x\"", "\"y\"")))), ["x", "y"]);
    assert_eq!(
        names(read(
            "{apiVersion: v1, kind: Pod, metadata: {name: f}, spec: {containers: [{name: c, image: i},]}}"
        )),
        ["f"]
    );

    // All objects are accepted or none, and the error names the wrong one.
    let error = refused(&format!("{}---\n{}", named("a"), named("B")));
    assert_starts_with(&error, "web.yaml, document 2, line 8: The Pod \"B\" is invalid: metadata.name: ");
    let error = refused(&format!("{}---\n{}", named("a"), named("a")));
    assert_ends_with(
        &error,
        "pod default/a is in this file twice: give one of them another name or namespace",
    );
    let other = named("a").replace("{name: a}", "{name: a, namespace: other}");
    assert_eq!(read(&format!("{}---\n{other}", named("a"))).len(), 2);
}

#[test]
fn errors_report_line_numbers_where_they_are_known() {
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: A\n  spec:\n    \
                containers:\n    - name: c\n      image: i\n    - image: i\n    restartPolicy: x\n";
    assert_eq!(refused(list).lines, [7, 12, 13]);
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"Pod\",\n \"metadata\": {\"name\": \"a\"},\n \"spec\": {\n  \"kontainers\": []}}";
    assert_eq!(refused(json).lines, [4]);
    assert_eq!(refused(&format!("{POD}{}", "---\nkind: Pod\n")).lines, [6]);
}

#[test]
fn other_kinds_are_rejected_by_name_with_an_alternative() {
    for (head, expected) in [
        (
            "apiVersion: apps/v1\nkind: Deployment\n",
            "Deployment apps/v1: nodlet runs Pods; put spec.template into a Pod manifest",
        ),
        (
            "apiVersion: batch/v1\nkind: CronJob\n",
            "CronJob batch/v1: nodlet runs Pods; put spec.jobTemplate.spec.template into a Pod manifest",
        ),
        ("apiVersion: v1\nkind: pod\n", "no matches for kind \"pod\" in version \"v1\": write kind: Pod"),
        (
            "apiVersion: v1\nkind: Namespace\n",
            "Namespace v1: namespaces need no object; write metadata.namespace into the Pod",
        ),
        (
            "apiVersion: v1\nkind: Endpoints\n",
            "Endpoints v1: write an EndpointSlice of discovery.k8s.io/v1, with the label kubernetes.io/service-name",
        ),
        (
            "apiVersion: example.com/v1\nkind: Widget\n",
            "Widget example.com/v1: nodlet accepts Pods, ConfigMaps, Secrets, PodPresets, PriorityClasses, LimitRanges, RuntimeClasses, PersistentVolumes, PersistentVolumeClaims, Services, EndpointSlices and Lists of them",
        ),
        (
            "apiVersion: v2\nkind: Pod\n",
            "no matches for kind \"Pod\" in version \"v2\": write apiVersion: v1",
        ),
        ("kind: Pod\n", "Object 'apiVersion' is missing: write apiVersion: v1"),
        ("apiVersion: v1\n", "Object 'Kind' is missing: write kind: Pod"),
        (
            "name: gps\nusb: {vendor: \"0403\"}\n",
            "a device file is not a Kubernetes object: put it into etc/nodlet/devices/ below the agent's root directory, it is \
             not applied (docs/devices.md)",
        ),
        ("name: gps\n", "Object 'Kind' is missing: write kind: Pod"),
        ("apiVersion: v1\nkind: [Pod]\n", "Object 'Kind' is missing: write kind: Pod"),
        ("- a\n", "not an object: a Pod has apiVersion, kind, metadata and spec"),
        ("Pod\n", "not an object: a Pod has apiVersion, kind, metadata and spec"),
        ("", "there is no object in it: a Pod has apiVersion, kind, metadata and spec"),
        ("# only this\n---\n", "there is no object in it: a Pod has apiVersion, kind, metadata and spec"),
        ("apiVersion: v1\nkind: List\nitems: {}\n", "items of the List must be a list"),
        (
            "apiVersion: v1\nkind: List\n",
            "there is no object in it: a Pod has apiVersion, kind, metadata and spec",
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Endpoints}]\n",
            "items[0]: Endpoints v1: write an EndpointSlice of discovery.k8s.io/v1, with the label kubernetes.io/service-name",
        ),
    ] {
        assert_eq!(refused(head).to_string(), format!("web.yaml: {expected}"));
    }
}

#[test]
fn a_manifest_that_is_not_utf8_or_too_large_is_rejected() {
    let refused =
        |bytes: &[u8]| parse("web.yaml", bytes, Validation::Strict, "board").unwrap_err().to_string();
    assert_eq!(refused(b"a: 1\nb: \xff\n"), "web.yaml, line 2: the text is not UTF-8");
    assert_eq!(refused(b"\xff\xfea\0"), "web.yaml: the text is in UTF-16: save it in UTF-8");
    assert_eq!(refused(&vec![b'#'; 10 * 1024 * 1024 + 1]), "web.yaml: longer than 10 MiB");
    let expected = "web.yaml, line 2: error converting YAML to JSON: control character 0x00 is not allowed";
    assert_eq!(refused(b"a: 1\n\0\n"), expected);
    assert!(refused(b"a: [\n").starts_with("web.yaml, line "));
    assert!(refused(b"{\"a\": 1,\n \"b\" 2}").starts_with("web.yaml, line 2: error converting JSON: "));
    assert_contains(
        &refused(&b"{\"a\":".repeat(1_000_000)),
        "line 1: error converting JSON: recursion limit exceeded",
    );
    // Ten MiB of hostile text are rejected, and do not exhaust the memory.
    for piece in ["- ", "[", "{a: ", "a: &a [*a]\n", "? ", "- - x\n", "\"", "# \n", "---\n", "!!"] {
        refused(piece.repeat(10 * 1024 * 1024 / piece.len()).as_bytes());
    }
}

#[test]
fn the_first_of_ten_thousand_errors_are_listed_and_the_others_counted() {
    let lists = |item: &str| vec![item; 10_000].join(", ");
    let invalid = |spec: &str, container: &str| {
        let error = refused(&pod(spec, container));
        assert!(error.to_string().len() < 64 * 1024, "{} bytes", error.to_string().len());
        assert!(error.status().to_string().len() < 128 * 1024);
        let ManifestCause::Invalid { errors, more, .. } = &error.cause else { panic!("{error}") };
        assert!(error.to_string().ends_with(&format!("\n* and {more} more")), "{error}");
        assert!(error.status()["message"].as_str().unwrap().ends_with(&format!(", and {more} more]")));
        errors.len() + more
    };
    // Each name breaks a rule, and the list as a whole breaks two more.
    assert_eq!(invalid(&format!("dnsConfig: {{searches: [{}]}}", lists("A")), ""), 10_002);
    assert_eq!(invalid("", &format!("args: [{}]", lists("1"))), 10_000);
    assert_eq!(invalid(&format!("tolerations: [{}]", lists("[]")), ""), 10_000);

    let fields: String = (0..10_000).map(|number| format!("comand{number}: 1, ")).collect();
    let unknown = refused(&pod("", &fields)).to_string();
    assert!(unknown.ends_with(", and 9936 more") && unknown.len() < 16 * 1024, "{unknown}");
    let warned = lists("{name: a, hostPath: {path: /a}, emptyDir: {sizeLimit: 1}}");
    let text = pod(&format!("volumes: [{warned}]"), "");
    assert!(refused(&text).to_string().len() < 64 * 1024);
}

#[test]
fn errors_about_duplicate_fields_below_a_long_key_are_short() {
    // The path of each error begins with the long key.
    let (long, twice) = ("x".repeat(100_000), "\"a\":1,".repeat(5_000));
    let text = format!("{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"{long}\":{{{twice}\"a\":1}}}}");
    let error = refused(&text).to_string();
    assert!(error.ends_with(", and 4936 more") && error.len() < 128 * 1024, "{} bytes", error.len());
    let warned = written("f", text.as_bytes(), Validation::Warn).unwrap().0.remove(0).warnings;
    assert_eq!(warned.len(), 65);
    let limits = format!("resources: {{limits: {{\"{long}/a/b\": 1}}}}");
    assert!(refused(&pod("", &limits)).to_string().len() < 64 * 1024);
}

#[test]
fn errors_are_answered_as_the_api_answers_them() {
    let error = refused(&pod("restartPolicy: always", "imagePullPolicy: never"));
    assert_eq!(
        error.to_string(),
        "web.yaml, line 4: The Pod \"web\" is invalid: \n\
         * spec.containers[0].imagePullPolicy: Unsupported value: \"never\": supported values: \"Always\", \"IfNotPresent\", \"Never\"\n\
         * spec.restartPolicy: Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\""
    );
    let status = error.status();
    assert_eq!(
        json!([status["kind"], status["status"], status["reason"], status["code"]]),
        json!(["Status", "Failure", "Invalid", 422])
    );
    assert_eq!(status["details"]["name"], "web");
    assert_eq!(
        status["details"]["causes"][1],
        json!({
            "field": "spec.restartPolicy",
            "reason": "FieldValueNotSupported",
            "message": "Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        })
    );
    assert_starts_with(
        &status["message"].as_str().unwrap(),
        "Pod \"web\" is invalid: [spec.containers[0].imagePullPolicy: Unsupported value",
    );
    let one = refused(&pod("restartPolicy: always", "")).status();
    let expected = "Pod \"web\" is invalid: spec.restartPolicy: Unsupported value: \"always\": supported values: \"Always\", \"OnFailure\", \"Never\"";
    assert_eq!(one["message"], expected);

    let unknown = refused(&pod("restartPolcy: Always", "")).status();
    assert_eq!(json!([unknown["reason"], unknown["code"]]), json!(["BadRequest", 400]));
    assert!(unknown["message"].as_str().unwrap().contains("unknown field \"spec.restartPolcy\""));
}

#[test]
fn all_examples_are_accepted_without_warnings() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut seen = 0;
    let entries = |dir: &std::path::Path| {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let (directories, mut files): (Vec<_>, Vec<_>) =
        entries(dir.as_ref()).into_iter().partition(|path| path.is_dir());
    for directory in directories {
        let below = entries(&directory);
        if directory.ends_with("devices") {
            for path in below {
                let bytes = std::fs::read(&path).unwrap();
                assert_eq!(super::parse_device_file(&path.display().to_string(), &bytes).unwrap().len(), 1);
            }
        } else {
            let is_manifest = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "yaml");
            files.extend(below.into_iter().filter(is_manifest));
        }
    }
    for path in files {
        let bytes = std::fs::read(&path).unwrap();
        let manifests = parse(&path.display().to_string(), &bytes, Validation::Strict, "board")
            .unwrap_or_else(|error| panic!("{error}"));
        for manifest in manifests {
            assert_eq!(manifest.warnings, Vec::<String>::new(), "{}", path.display());
            seen += 1;
        }
    }
    assert!(seen >= 20);
}

#[test]
fn the_source_of_a_syntax_error_is_the_error_of_the_parser() {
    let refused =
        |bytes: &[u8]| parse("f", bytes, Validation::Strict, "board").expect_err("it is no manifest");
    let source = |error: &ManifestError| std::error::Error::source(error).map(ToString::to_string);
    let json = refused(b"{\"a\" \"b\"}");
    assert_eq!(json.to_string(), "f, line 1: error converting JSON: expected `:`");
    assert_eq!(source(&json).as_deref(), Some("expected `:` at line 1 column 6"));
    let yaml = refused(b"a: [1");
    let of_parser = source(&yaml).expect("the error of the parser");
    assert_eq!(yaml.to_string(), format!("f, line 2: error converting YAML to JSON: {of_parser}"));
    let not_text = refused(b"a: \xff");
    assert_eq!(not_text.to_string(), "f, line 1: the text is not UTF-8");
    assert_eq!(source(&not_text).as_deref(), Some("invalid utf-8 sequence of 1 bytes from index 3"));
    assert_eq!(source(&refused(b"kind: Pod")), None);
}

#[test]
fn the_types_of_the_fields_of_a_server_are_checked() {
    let check = |object: serde_json::Value, whole: bool| {
        super::check_types(&object, Kind::Pod, whole)
            .map_or_else(|error| error.to_string(), |()| String::new())
    };
    for [object, expected] in cases(
        r#"
            {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}} =>
            {"metadata": {"name": "p", "creationTimestamp": "/a"}}
                => The Pod "p" is invalid: metadata.creationTimestamp: Invalid value: "/a": must be a time as in RFC 3339, such as 2006-01-02T15:04:05Z
            {"metadata": "p"}
                => The Pod "" is invalid: metadata: Invalid value: "p": must be an object with fields of its own
            {"status": {"phase": 1}}
                => The Pod "" is invalid: status.phase: Invalid value: 1: must be a string: put it in quotes
            {"spec": []} =>
        "#,
    ) {
        let object: serde_json::Value = serde_json::from_str(object).expect("JSON");

        assert_eq!(check(object, false), expected);
    }
    assert_ends_with(
        &check(json!({"spec": []}), true),
        "spec: Invalid value: []: must be an object with fields of its own",
    );
}
