//! ConfigMaps and Secrets as objects: from files, through nodlet and through the real kubectl.

use std::os::unix::fs::PermissionsExt;

use nodlet_tests::{Device, Kubectl};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

/// A value that no log, message or ring may contain, and its form in a Secret.
const SECRET: &str = "hunter2-is-secret";
const ENCODED: &str = "aHVudGVyMi1pcy1zZWNyZXQ=";

fn object(kind: &str, name: &str, rest: &str) -> String {
    format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: {name}}}\n{rest}\n")
}

/// The first words of each line of a table.
fn words(table: &str, many: usize) -> Vec<String> {
    let line = |line: &str| line.split_whitespace().take(many).collect::<Vec<_>>().join(" ");
    table.lines().map(line).collect()
}

/// What `objects.rs` does not do with objects of every kind: namespaces, selectors of fields, dry runs, immutable objects and
/// wrong fields.
#[test]
fn kubectl_creates_shows_changes_and_deletes_config_maps() {
    let device = Device::start_unwatched();
    let kubectl = Kubectl::new(&device);
    let path = |name: &str, text: &[u8]| device.write_file(name, text).display().to_string();
    let (from_file, raw) = (path("motd", b"good\nmorning\n"), path("raw", &[0xff, 0, 1]));
    let env = path("my.env", b"A=1\n# no\nB=two\n");
    kubectl
        .line(&format!(
            "create configmap web --from-literal=greeting=hello --from-file={from_file} --from-file=raw={raw}"
        ))
        .ok();
    kubectl.line(&format!("create configmap env --from-env-file={env} -n kitchen")).ok();
    for (line, many, expected) in [
        ("get cm", 2, &["NAME DATA", "web 3"][..]),
        ("get configmaps -A -o wide", 3, &["NAMESPACE NAME DATA", "default web 3", "kitchen env 2"]),
        (
            "get cm -A -o custom-columns=IS:.data.greeting,OF:.metadata.namespace",
            2,
            &["IS OF", "hello default", "<none> kitchen"],
        ),
        ("get cm -A --field-selector metadata.namespace=kitchen --no-headers", 2, &["kitchen env"]),
        ("get cm env -n kitchen -o jsonpath={.data}", 1, &[r#"{"A":"1","B":"two"}"#]),
        ("get cm --field-selector metadata.name=none -o name", 1, &[]),
    ] {
        assert_eq!(words(&kubectl.line(line).ok(), many), expected, "{line}");
    }
    let yaml = kubectl.line("get cm web -o yaml").ok();
    assert!(yaml.contains("  motd: |\n    good\n    morning\n") && yaml.contains("  raw: /wAB\n"), "{yaml}");
    // The whole description, which is kubectl's own of what the API has, and nodlet's.
    let described = kubectl.line("describe cm web").ok_with("\nData\n====\ngreeting:\n----\nhello\n\nmotd:\n----\ngood\nmorning\n\n\n\nBinaryData\n====\nraw: 3 bytes\n\n");
    assert_eq!(device.line("describe cm web").ok().trim_end(), described.trim_end());
    assert_eq!(words(&device.line("get cm").ok(), 2), ["NAME DATA", "web 3"]);

    let get = || device.get(&format!("{MAPS}/web")).expect("it is there");
    let before = get();
    kubectl.line("label cm web tier=front").ok();
    kubectl.line(r#"patch cm web --dry-run=server -p {"data":{"greeting":"z"}}"#).ok();
    for field in ["uid", "creationTimestamp"] {
        assert_eq!(get()["metadata"][field], before["metadata"][field]);
    }
    assert_eq!(get()["data"], before["data"]);
    assert_eq!(kubectl.line("get cm -A -l tier=front -o name").ok(), "configmap/web\n");

    let applied = |rest: &str| path("map.yaml", object("ConfigMap", "applied", rest).as_bytes());
    let does = |line: &str, file: &str, said: &str| {
        assert_eq!(kubectl.line(&format!("{line} -f {file}")).ok().trim(), said);
    };
    let file = applied("data: {a: '1'}");
    does("apply --dry-run=server", &file, "configmap/applied created (server dry run)");
    does("apply", &file, "configmap/applied created");
    does("apply", &file, "configmap/applied unchanged");
    does("apply", &applied("data: {b: '2'}\nimmutable: true"), "configmap/applied configured");
    assert_eq!(device.get(&format!("{MAPS}/applied")).expect("it is there")["data"], json!({"b": "2"}));
    applied("data: {b: '3'}\nimmutable: true");
    for verb in ["apply", "replace"] {
        let ran = kubectl.line(&format!("{verb} -f {file}"));
        ran.refused_with("data: Forbidden: field is immutable when `immutable` is set");
    }
    does("replace", &applied("data: {b: '2'}\nimmutable: true\n"), "configmap/applied replaced");
    does("delete", &file, "configmap \"applied\" deleted from default namespace");
    let wrong = path("map.yaml", object("ConfigMap", "wrong", "dota: {b: '3'}").as_bytes());
    kubectl.line(&format!("create -f {wrong}")).refused_with("unknown field \"dota\"");
    // kubectl itself only warns of such a patch.
    kubectl.line(r#"patch cm web -p {"dota":{"more":"z"}}"#).ok_with("patched");
    let deleted = kubectl.line("delete cm --all").ok();
    assert_eq!(deleted.trim(), "configmap \"web\" deleted from default namespace");
    assert_eq!(kubectl.line("get cm -A -o name").ok(), "configmap/env\n");
}

#[test]
fn kubectl_creates_shows_changes_and_deletes_secrets_of_each_type() {
    let device = Device::start_unwatched();
    let kubectl = Kubectl::new(&device);
    let path = |name: &str, content: &[u8]| device.write_file(name, content).display().to_string();
    // `create secret tls` itself wants a pair that belongs together.
    let [certificate, key] =
        [("tls.crt", CERTIFICATE), ("tls.key", KEY)].map(|(name, text)| path(name, text.as_bytes()));
    for line in [
        format!(
            "create secret generic web --from-literal=password={SECRET} --from-file=raw={}",
            path("raw", &[0xff, 0])
        ),
        format!("create secret generic env --from-env-file={}", path("my.env", b"A=1\n# no\nB=two\n")),
        format!("create secret tls pair --cert={certificate} --key={key}"),
        format!(
            "create secret docker-registry pull --docker-server=example.com --docker-username=me --docker-password={SECRET}"
        ),
    ] {
        let said = kubectl.line(&line).ok();
        assert!(said.trim().ends_with(" created"), "{said}");
    }
    assert_eq!(
        words(&kubectl.line("get secrets").ok(), 3),
        [
            "NAME TYPE DATA",
            "env Opaque 2",
            "pair kubernetes.io/tls 2",
            "pull kubernetes.io/dockerconfigjson 1",
            "web Opaque 2"
        ]
    );
    assert_eq!(
        kubectl.line("get secret --field-selector type=kubernetes.io/tls -o name").ok(),
        "secret/pair\n"
    );
    assert_eq!(kubectl.line("get secret web -o jsonpath={.data.password}").ok(), ENCODED);
    let described = kubectl.line("describe secret web").ok();
    assert!(
        described.ends_with("\nType:  Opaque\n\nData\n====\npassword:  17 bytes\nraw:       2 bytes\n"),
        "{described}"
    );
    assert_eq!(device.nodlet(["describe", "secret", "web"]).ok().trim_end(), described.trim_end());

    let secret = |rest: String| kubectl.apply(&object("Secret", "applied", &rest)).ok();
    assert_eq!(secret(format!("stringData: {{a: {SECRET}}}")).trim(), "secret/applied created");
    let applied = device.get(&format!("{SECRETS}/applied")).expect("it is there");
    assert_eq!((&applied["data"]["a"], &applied["stringData"]), (&json!(ENCODED), &Value::Null));
    secret(format!("data: {{a: {ENCODED}}}"));
    assert_eq!(secret(format!("data: {{a: {ENCODED}}}")).trim(), "secret/applied unchanged");
    for (patch, expected) in [
        (r#"{"type":"other"}"#, "type: Invalid value: \"other\": field is immutable"),
        (r#"{"stringData":{"a b":"x"}}"#, "data[a b]: Invalid value: \"a b\": a valid config key"),
    ] {
        kubectl.run(["patch", "secret", "web", "-p", patch]).refused_with(expected);
    }
    assert_eq!(kubectl.line("label secret web a=b").ok().trim(), "secret/web labeled");
    let deleted = kubectl.line("delete secret web env pair pull applied").ok();
    assert_eq!(deleted.lines().count(), 5, "{deleted}");
    assert_eq!(kubectl.line("get secrets -A -o name").ok(), "");
}

#[test]
fn applied_objects_survive_a_restart_in_files_that_only_root_can_read() {
    let mut device = Device::start_unwatched();
    for (kind, rest) in [
        ("ConfigMap", format!("data: {{a: {}}}", "x".repeat(700_000))),
        ("Secret", format!("stringData: {{password: {SECRET}}}")),
    ] {
        let text = object(kind, "web", &rest);
        let said = device.apply(&text);
        assert!(said.ends_with("/web created\n"), "{said}");
        let said = device.apply(&text);
        assert!(said.ends_with("/web unchanged\n"), "{said}");
    }
    let applied = device.path("var/lib/nodlet/manifests");
    let file = applied.join("secret_default_web.json");
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o7777;
    assert_eq!((mode(&applied), mode(&file)), (0o700, 0o600));
    let shown = |device: &Device| {
        let of = |path: &str| {
            let object = device.get(path).ok()?;
            let metadata = &object["metadata"];
            Some((object["data"].clone(), metadata["uid"].clone(), metadata["creationTimestamp"].clone()))
        };
        Some((of(&format!("{MAPS}/web"))?, of(&format!("{SECRETS}/web"))?))
    };
    let before = shown(&device).expect("both are there");
    device.restart_agent();
    device.wait_for("both objects", || shown(&device).is_some());
    assert_eq!(shown(&device), Some(before));
    device.nodlet(["delete", "secret", "web"]).ok();
    device.nodlet(["delete", "configmap", "web"]).ok();
    assert!(!file.exists() && shown(&device).is_none());
    // What is larger than a request may be.
    let large = object("ConfigMap", "large", &format!("data: {{a: {}}}", "x".repeat(1 << 20)));
    let ran = device.nodlet_with_input(["apply", "-f", "-"], &large);
    ran.refused_with("Request entity too large: limit is 1048576");
}

#[test]
fn clients_cannot_change_objects_of_files_and_an_invalid_file_reveals_no_secret() {
    let device = Device::start_unwatched();
    device.write_manifest("a.yaml", &object("ConfigMap", "web", "data: {a: '1'}"));
    device.write_manifest("b.yaml", &object("Secret", "web", &format!("stringData: {{password: {SECRET}}}")));
    device.wait_for("both objects", || {
        device.get(&format!("{MAPS}/web")).is_ok() && device.get(&format!("{SECRETS}/web")).is_ok()
    });
    let changed = json!({"metadata": {"name": "web"}, "data": {"a": "2"}});
    for (method, body) in [("DELETE", None), ("PUT", Some(changed))] {
        let (code, answer) = device.request(method, &format!("{MAPS}/web"), body.as_ref());
        let message = answer["message"].as_str().unwrap_or_default();
        assert_eq!(code, 403, "{answer}");
        assert!(message.starts_with("configmaps \"web\" is forbidden: it is defined by "), "{message}");
        assert!(message.ends_with("/a.yaml; change that file"), "{message}");
    }
    let mut reported = String::new();
    for (wrong, expected) in [
        (
            format!("stringData: {{password: [{SECRET}]}}"),
            "stringData[password]: Invalid value: \"<secret contents redacted>\": must be a string",
        ),
        (
            format!("data: {{password: {SECRET}}}"),
            "data[password]: Invalid value: \"<secret contents redacted>\": illegal base64 data",
        ),
        (format!("passwrod: {SECRET}"), "unknown field \"passwrod\""),
    ] {
        let text = object("Secret", "web", &wrong);
        device.write_manifest("b.yaml", &text);
        device.wait_for("the refusal", || {
            let events = device.nodlet(["get", "events"]).ok();
            events.contains("b.yaml") && events.contains(expected)
        });
        let still = device.get(&format!("{SECRETS}/web")).expect("it is there");
        assert_eq!(still["data"]["password"], ENCODED, "the last right contents stay");
        let applied = text.replace("name: web", "name: other");
        reported += &device.nodlet_with_input(["apply", "-f", "-"], &applied).refused();
        let object = json!({"metadata": {"name": "other"}, "data": {"password": [SECRET]}});
        reported += &device.post(SECRETS, &object.to_string()).1.to_string();
        let operation = json!([{"op": "test", "path": "/data/password", "value": SECRET}]);
        let kind = "application/json-patch+json";
        reported += &device.patch(&format!("{SECRETS}/web"), kind, &operation).1.to_string();
    }
    assert_eq!(device.get(&format!("{MAPS}/web")).expect("it is there")["data"]["a"], "1");
    for words in
        [&["get", "events", "-A", "-o", "yaml"][..], &["ring"], &["doctor"], &["describe", "secret", "web"]]
    {
        let output = device.command(words).output().expect("it runs");
        reported += &String::from_utf8_lossy(&output.stdout);
        reported += &String::from_utf8_lossy(&output.stderr);
    }
    reported += &device.agent_log();
    assert!(reported.contains("redacted") && reported.contains("unknown field \"passwrod\""), "{reported}");
    for secret in [SECRET, ENCODED] {
        assert!(!reported.contains(secret), "{reported}");
    }
}

/// A pair that only this test knows.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUdvJqudvblUv3gh4X8CGv67242AgwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFYm9hcmQwIBcNMjYxMTI1MjE0NTUyWhgPMjEyNjExMDEyMTQ1
NTJaMBAxDjAMBgNVBAMMBWJvYXJkMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
6/R9Ltw1gOs9e8NCnQXxquTvjCz1GTYqQvXTcjm30n7t28PCgHeEFIWLc5APsmm9
Y4rPsE4bI6YjZcd5J1Jc4qNTMFEwHQYDVR0OBBYEFKpuQZ2CvMJ/ZVqsDshcXVee
Zl24MB8GA1UdIwQYMBaAFKpuQZ2CvMJ/ZVqsDshcXVeeZl24MA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgKIohzXs+2/ocTuOErQN7tvOFKGLYxKMR
Sm6TGzxy93MCIQD4tC9wwZjCw5YYTtr1iyHZPaTFCF5SH6WlihI4h7FOZg==
-----END CERTIFICATE-----
";
const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgqHXFpA7TA2JF7L3n
Fx7XP6nOhtaQqTHEH8OWgTsqKgWhRANCAATr9H0u3DWA6z17w0KdBfGq5O+MLPUZ
NipC9dNyObfSfu3bw8KAd4QUhYtzkA+yab1jis+wThsjpiNlx3knUlzi
-----END PRIVATE KEY-----
";
