use nodlet_fuzz::cases;
use serde_json::json;

use super::*;
use crate::manifest::{Validation, contents};

/// Reads an object with this text behind its `kind`.
fn read(kind: &str, text: &str, validation: Validation) -> Result<Definition, String> {
    let text = format!("apiVersion: v1\nkind: {kind}\n{text}\n");
    let read = contents("c.yaml", text.as_bytes(), validation, "board");
    read.map(|mut contents| contents.definitions.remove(0)).map_err(|error| error.to_string())
}

/// The object without what each has.
fn read_object(kind: &str, text: &str) -> Value {
    let mut object =
        read(kind, &format!("metadata: {{name: a}}\n{text}"), Validation::Strict).expect(text).object();
    let fields = object.as_object_mut().expect("an object");
    for field in ["apiVersion", "kind", "metadata"] {
        fields.remove(field).expect(field);
    }
    object
}

const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
                   'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

#[test]
fn valid_objects_get_the_defaults_of_kubernetes() {
    for [kind, text, expected] in cases(
        r#"
            ConfigMap => => {}
            ConfigMap => data: {}; binaryData: null => {}
            ConfigMap => data: {a: x, B-_.9: ''} => {"data": {"a": "x", "B-_.9": ""}}
            ConfigMap => data: {a: null} => {"data": {"a": ""}}
            ConfigMap => binaryData: {b: YWI=}; immutable: false => {"binaryData": {"b": "YWI="}, "immutable": false}
            // As Go does, line ends are left out.
            ConfigMap => binaryData: {b: "YW\r\nI=\n"} => {"binaryData": {"b": "YWI="}}
            Secret => => {"type": "Opaque"}
            Secret => type: '' => {"type": "Opaque"}
            Secret => data: {a: ''}; type: example.com/own => {"data": {"a": ""}, "type": "example.com/own"}
            Secret => data: {a: YQ==, b: Yg==}; stringData: {b: new, c: ''}
                => {"data": {"a": "YQ==", "b": "bmV3", "c": ""}, "type": "Opaque"}
            Secret => type: kubernetes.io/tls; stringData: {tls.crt: '', tls.key: ''}
                => {"data": {"tls.crt": "", "tls.key": ""}, "type": "kubernetes.io/tls"}
            Secret => type: kubernetes.io/basic-auth; stringData: {password: ''}
                => {"data": {"password": ""}, "type": "kubernetes.io/basic-auth"}
            Secret => type: kubernetes.io/dockercfg; stringData: {.dockercfg: '{}'}
                => {"data": {".dockercfg": "e30="}, "type": "kubernetes.io/dockercfg"}
        "#,
    ) {
        let expected: Value = serde_json::from_str(expected).expect("JSON");
        assert_eq!(read_object(kind, &text.replace("; ", "\n")), expected, "{kind} {text}");
    }
    let secret =
        read("Secret", "metadata: {name: a, namespace: kitchen, uid: u}", Validation::Strict).expect("right");
    assert_eq!((&*secret.namespace, &*secret.name), ("kitchen", "a"));
    assert_eq!(secret.object()["metadata"], json!({"name": "a", "namespace": "kitchen", "uid": "u"}));
    // Objects of one name and different kinds are not one object.
    let uid = |kind: &str| {
        read(kind, "metadata: {name: a}", Validation::Strict).expect("right").object()["metadata"]["uid"]
            .take()
    };
    assert_ne!(uid("Secret"), uid("ConfigMap"));
}

#[test]
fn invalid_objects_are_rejected_with_the_errors_of_kubernetes() {
    let table = r#"
        ConfigMap => data: {'a b': x} => data[a b]: Invalid value: "a b": KEY
        ConfigMap => data: {'': x} => data[]: Invalid value: "": KEY
        ConfigMap => data: {.: x} => data[.]: Invalid value: ".": must not be '.'
        ConfigMap => binaryData: {..: YQ==} => binaryData[..]: Invalid value: "..": must not be '..'
        ConfigMap => data: {..a: x} => data[..a]: Invalid value: "..a": must not start with '..'
        Secret => stringData: {LONG: x} => data[LONG]: Invalid value: "LONG": must be no more than 253 characters
        ConfigMap => data: {a: x}; binaryData: {a: YQ==}
            => data[a]: Invalid value: "a": duplicate of key present in binaryData
        ConfigMap => binaryData: {a: 'YQ='}
            => binaryData[a]: Invalid value: "<contents redacted>": illegal base64 data at input byte 3
        Secret => data: {a: 'Y Q='}
            => data[a]: Invalid value: "<secret contents redacted>": illegal base64 data at input byte 1
        Secret => type: kubernetes.io/tls; data: {tls.crt: ''} => data[tls.key]: Required value
        Secret => type: kubernetes.io/basic-auth => * data[username]: Required value; * data[password]: Required value
        Secret => type: kubernetes.io/ssh-auth; data: {ssh-privatekey: ''} => data[ssh-privatekey]: Required value
        Secret => type: kubernetes.io/dockercfg => data[.dockercfg]: Required value
        Secret => type: kubernetes.io/dockerconfigjson; stringData: {.dockerconfigjson: '[]'}
            => data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": must be a JSON object
        Secret => type: kubernetes.io/service-account-token
            => metadata.annotations[kubernetes.io/service-account.name]: Required value
        ConfigMap => dota: {a: x} => unknown field "dota" (did you mean "data"?)
        ConfigMap => stringData: {a: x} => unknown field "stringData"
        ConfigMap => data: {a: 1} => data[a]: Invalid value: 1: must be a string: put it in quotes
        ConfigMap => immutable: 'true' => immutable: Invalid value: "true": must be true or false
    "#;
    let table = table.replace("; ", "\r").replace("KEY", KEY).replace("LONG", &"k".repeat(254));
    for row in cases::<3>(&table) {
        let [kind, text, expected] = row.map(|column| column.replace('\r', "\n"));
        let refused =
            read(&kind, &format!("metadata: {{name: a}}\n{text}"), Validation::Strict).expect_err(&text);
        assert!(refused.contains(&expected), "{text}: {refused}");
        assert!(refused.starts_with("c.yaml, line") && refused.contains(&kind), "{refused}");
    }
    for (metadata, expected) in [
        ("{name: A}", "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 subdomain"),
        ("{}", "metadata.name: Required value: name or generateName is required"),
        ("{name: a, namespace: b.c}", "metadata.namespace: Invalid value: \"b.c\": must not contain dots"),
    ] {
        let refused =
            read("Secret", &format!("metadata: {metadata}"), Validation::Strict).expect_err(metadata);
        assert!(refused.contains(expected), "{metadata}: {refused}");
    }
    let warned =
        read("ConfigMap", "metadata: {name: a}\ndota: {a: x}", Validation::Warn).expect("only a warning");
    assert_eq!(warned.warnings, ["unknown field \"dota\" (did you mean \"data\"?)"]);
}

#[test]
fn the_total_number_of_values_is_limited() {
    let half = "x".repeat(MAX_SIZE / 2);
    let of = |more: &str| {
        let text = format!("metadata: {{name: a}}\ndata: {{a: {half}, b: {half}, c: '{more}'}}");
        read("ConfigMap", &text, Validation::Strict).map(drop)
    };
    assert_eq!(of(""), Ok(()));
    let refused = of("x").expect_err("one byte more");
    assert!(refused.ends_with("is invalid: : Too long: may not be more than 1048576 bytes"), "{refused}");
    let text = format!("metadata: {{name: a}}\nstringData: {{a: {half}, b: {half}, c: x}}");
    let refused = read("Secret", &text, Validation::Strict).expect_err("one byte more");
    assert!(refused.ends_with("data: Too long: may not be more than 1048576 bytes"), "{refused}");
}

#[test]
fn no_message_has_a_value_of_a_secret() {
    for text in [
        "data: {password: hunter2}",
        "data: hunter2",
        "data: [hunter2]",
        "data: {password: {is: hunter2}}",
        "stringData: hunter2",
        "stringData: {password: [hunter2]}",
        "stringData: {password: 54321, other: {hunter2: x}}",
        "stringData: {password: !!int hunter2}",
        "stringData: {password: !!binary '*hunter2*'}",
        "stringData: {password: hunter2}\nimmutable: hunter2",
        "stringData: {password: hunter2}\ntype: [hunter2]",
        "stringData: {password: hunter2, password: hunter2}",
        "stringData: {password: hunter2}\npasswrod: hunter2",
        "stringData: {password: hunter2, 'a b': hunter2}",
        "stringData: {.dockercfg: hunter2}\ntype: kubernetes.io/dockercfg",
        "stringData: {password: hunter2",
        "stringData: {password: \"hunter2}\n",
        "stringData: {password: *hunter2}",
    ] {
        for metadata in [
            "{name: a}",
            "{name: a, annotations: {kubectl.kubernetes.io/last-applied-configuration: [hunter2]}}",
        ] {
            let text = format!("metadata: {metadata}\n{text}");
            let refused = read("Secret", &text, Validation::Strict).expect_err(&text);
            assert!(!refused.contains("hunter2") && !refused.contains("54321"), "{text}: {refused}");
            if let Ok(definition) = read("Secret", &text, Validation::Warn) {
                assert!(
                    !definition.warnings.concat().contains("hunter2"),
                    "{text}: {:?}",
                    definition.warnings
                );
            }
        }
    }
}

#[test]
fn a_repeated_key_is_an_error_of_the_kind_of_its_object() {
    for kind in ["ConfigMap", "Secret"] {
        let refused = read(kind, "metadata: {name: a}\ndata: {a: YQ==, a: YQ==}", Validation::Strict);
        let refused = refused.expect_err("the key is there twice");
        let expected = format!(
            "{kind} in version \"v1\" cannot be handled as a {kind}: strict decoding error: line 4: key \"a\" already set in map"
        );
        assert!(refused.ends_with(&expected), "{refused}");
    }
}

#[test]
fn immutable_objects_and_the_type_of_a_secret_cannot_be_changed() {
    let object = |kind: &str, fields: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "a"}});
        object.as_object_mut().expect("an object").extend(fields.as_object().cloned().unwrap_or_default());
        object
    };
    let fixed = json!({"data": {"a": "YQ=="}, "immutable": true});
    let stays = |field: &str| format!("{field}: Forbidden: field is immutable when `immutable` is set");
    for (kind, old, new, expected) in [
        ("ConfigMap", json!({"data": {"a": "YQ=="}}), fixed.clone(), String::new()),
        ("ConfigMap", json!({"data": {"a": "YQ=="}, "immutable": false}), json!({}), String::new()),
        ("ConfigMap", fixed.clone(), fixed.clone(), String::new()),
        ("ConfigMap", fixed.clone(), json!({"data": {"a": "YQ=="}}), stays("immutable")),
        ("Secret", fixed.clone(), json!({"data": {"a": "YQ=="}, "immutable": false}), stays("immutable")),
        ("Secret", fixed.clone(), json!({"data": {"a": "Yg=="}, "immutable": true}), stays("data")),
        (
            "ConfigMap",
            fixed.clone(),
            json!({"data": {"a": "YQ=="}, "binaryData": {}, "immutable": true}),
            stays("binaryData"),
        ),
        (
            "Secret",
            json!({"type": "Opaque"}),
            json!({"type": "other"}),
            "type: Invalid value: \"other\": field is immutable".to_owned(),
        ),
    ] {
        let checked = check_update(&object(kind, old.clone()), &object(kind, new.clone()));
        let expected =
            if expected.is_empty() { expected } else { format!("The {kind} \"a\" is invalid: {expected}") };
        assert_eq!(
            checked.map_or_else(|error| error.to_string(), |()| String::new()),
            expected,
            "{old} {new}"
        );
    }
}
