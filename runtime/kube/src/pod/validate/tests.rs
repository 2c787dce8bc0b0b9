//! The errors of Pods, in Kubernetes' words and order. Every expected text was printed by Kubernetes 1.36.3
//! itself (`ValidatePodCreate` after its own defaults).

use super::pod;
use crate::manifest::documents::documents;
use crate::object::check::Field;
use crate::object::walk;
use crate::pod::{defaults, set_server_fields};

/// Long texts of rules, and the names that stand for them in the tables below.
#[rustfmt::skip]
const TEXTS: [(&str, &str); 7] = [
    ("<label>", "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"),
    ("<subdomain>", r#"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"#),
    ("<search>", r#"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"#),
    ("<name>", "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"),
    ("<value>", "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"),
    ("<env>", "a valid environment variable name must consist only of printable ASCII characters other than '='"),
    ("<key>", "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"),
];

pub(super) fn check(text: &str, expected: &[&str]) {
    let mut object = documents(text).unwrap().remove(0).value;
    let findings = walk::check(&mut object, "Pod");
    assert!(findings.unknown.is_empty() && findings.errors.is_empty(), "{text}: {findings:?}");
    set_server_fields(&mut object, "board", None);
    defaults::apply(&mut object);
    let mut errors = pod(&object);
    super::gates::of_new(Field::root(&object["spec"], "spec", &mut errors));
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let expand =
        |text: &str| TEXTS.iter().fold(text.to_owned(), |text, (name, rule)| text.replace(name, rule));
    let expected: Vec<String> = expected.iter().map(|text| expand(text)).collect();
    assert_eq!(errors, expected, "{text}");
}

/// The tables of errors, and the manifests that `<1>` and `<2>` in them stand for.
const TABLES: [(&str, &str); 5] = [
    (include_str!("../golden/pods.txt"), "apiVersion: v1\nkind: Pod\n<1>\n"),
    (
        include_str!("../golden/metadata.txt"),
        "metadata: {name: p, <1>}\nspec: {containers: [{name: c, image: i}]}\n",
    ),
    (
        include_str!("../golden/container.txt"),
        "metadata: {name: p}\nspec: {containers: [{name: c, image: i, <1>}]}\n",
    ),
    (
        include_str!("../golden/both.txt"),
        "metadata: {name: p}\nspec: {<1>, containers: [{name: c, image: i, <2>}]}\n",
    ),
    (
        include_str!("../golden/spec.txt"),
        "metadata: {name: p}\nspec: {containers: [{name: c, image: i}], <1>}\n",
    ),
];

#[test]
fn invalid_pods_are_rejected_with_the_errors_of_kubernetes() {
    for (table, manifest) in TABLES {
        for row in nodlet_fuzz::rows(table) {
            let inputs = if manifest.contains("<2>") { 2 } else { 1 };
            let text = manifest.replace("<1>", &row[0].replace("\\n", "\n")).replace("<2>", row[inputs - 1]);
            check(&text, &row[inputs..]);
        }
    }
}

#[test]
fn a_field_of_another_version_than_v1_is_rejected() {
    for (version, errors) in [
        ("", &[][..]),
        ("apiVersion: v1, ", &[]),
        (
            "apiVersion: v2, ",
            &["spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"metadata.name\": \
               error converting fieldPath: unsupported pod version: v2"],
        ),
    ] {
        let field = format!("{{{version}fieldPath: metadata.name}}");
        check(
            &format!(
                "metadata: {{name: p}}\n\
                 spec: {{containers: [{{name: c, image: i, env: [{{name: a, valueFrom: {{fieldRef: {field}}}}}]}}]}}\n"
            ),
            errors,
        );
    }
}

#[test]
fn errors_about_overlong_values_do_not_print_the_value() {
    let long = "x".repeat(262_144);
    check(
        &format!(
            "metadata: {{name: p, annotations: {{a: {long}}}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
        ),
        &["metadata.annotations: Too long: may not be more than 262144 bytes"],
    );
    let searches = vec!["a".repeat(80); 26].join(", ");
    let text = format!(
        "metadata: {{name: p}}\nspec: {{dnsConfig: {{searches: [{searches}]}}, containers: [{{name: c, image: i}}]}}\n"
    );
    let mut object = documents(&text).unwrap().remove(0).value;
    set_server_fields(&mut object, "board", None);
    defaults::apply(&mut object);
    let errors = pod(&object);
    let (errors, more) = errors.into_parts();
    assert_eq!((errors.len(), more), (1, 0));
    let expected = "must not have more than 2048 characters (including spaces) in the search list";
    assert_eq!(errors[0].detail, expected);
}
