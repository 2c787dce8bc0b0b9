//! The errors of Pods, in Kubernetes' words and order. Every expected text was printed by Kubernetes 1.36.3
//! itself (`ValidatePodCreate` after its own defaults).

mod container;
mod spec;

use super::pod;
use crate::manifest::documents::documents;
use crate::object::field::Path;
use crate::object::walk;
use crate::pod::{defaults, set_server_fields};
use crate::schema;

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

/// Whole Pods, without `apiVersion` and `kind`.
#[rustfmt::skip]
const PODS: &[(&str, &[&str])] = &[
    ("metadata: {name: p}\nspec: {}",
        &["spec.containers: Required value"]),
    ("metadata: {name: p}\nspec: {containers: []}",
        &["spec.containers: Required value"]),
    ("metadata: {name: p}\nspec: {containers: [{}]}", &[
        "spec.containers[0].name: Required value",
        "spec.containers[0].image: Required value",
    ]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}, {name: a, image: i}]}",
        &[r#"spec.containers[1].name: Duplicate value: "a""#]),
    ("metadata: {name: p}\nspec: {containers: [{name: A_b, image: i}]}",
        &[r#"spec.containers[0].name: Invalid value: "A_b": <label>"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: a.b, image: i}]}",
        &[r#"spec.containers[0].name: Invalid value: "a.b": must not contain dots"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, image: i}]}",
        &[r#"spec.containers[0].name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be no more than 63 characters"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}], readinessGates: [{conditionType: ex.com/a}, {conditionType: a b}]}",
        &[r#"spec.readinessGates[1].conditionType: Invalid value: "a b": <name>"#]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}], schedulingGates: [{name: a}, {name: a b}, {name: a}]}", &[
        r#"spec.schedulingGates[1]: Invalid value: "a b": <name>"#,
        r#"spec.schedulingGates[2]: Duplicate value: "a""#,
    ]),
    ("metadata: {name: p}\nspec: {containers: [{name: a, image: i}], schedulingGates: [{name: a}], nodeName: board}",
        &["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]),
    ("metadata: {name: p}\nspec: {containers: [{name: -a, image: \" i \"}]}", &[
        r#"spec.containers[0].name: Invalid value: "-a": <label>"#,
        r#"spec.containers[0].image: Invalid value: " i ": must not have leading or trailing whitespace"#,
    ]),
    ("spec: {containers: [{name: a, image: i}]}",
        &["metadata.name: Required value: name or generateName is required"]),
    ("metadata: {name: UP}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "UP": <subdomain>"#]),
    ("metadata: {name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": must be no more than 253 characters"#]),
    ("metadata: {name: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb": must have no more than 210 characters in this namespace: the directory of the pod's logs is named NAMESPACE_NAME_UID"#]),
    ("metadata: {name: a..b}\nspec: {containers: [{name: a, image: i}]}",
        &[r#"metadata.name: Invalid value: "a..b": <subdomain>"#]),
];

/// Fields of `metadata` in addition to a name.
#[rustfmt::skip]
const METADATA: &[(&str, &[&str])] = &[
    ("namespace: A",
        &[r#"metadata.namespace: Invalid value: "A": <label>"#]),
    ("namespace: a.b",
        &[r#"metadata.namespace: Invalid value: "a.b": must not contain dots"#]),
    ("generation: -1",
        &["metadata.generation: Invalid value: -1: must be greater than or equal to 0"]),
    (r#"labels: {"a b": c}"#,
        &[r#"metadata.labels: Invalid value: "a b": <name>"#]),
    (r#"labels: {a: "-c"}"#,
        &[r#"metadata.labels: Invalid value: "-c": <value>"#]),
    (r#"labels: {a: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}"#,
        &[r#"metadata.labels: Invalid value: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx": must be no more than 63 bytes"#]),
    ("labels: {/a: b}",
        &[r#"metadata.labels: Invalid value: "/a": prefix part must be non-empty"#]),
    ("labels: {x/: b}", &[
        r#"metadata.labels: Invalid value: "x/": name part must be non-empty"#,
        r#"metadata.labels: Invalid value: "x/": <name>"#,
    ]),
    ("labels: {a/b/c: d}",
        &[r#"metadata.labels: Invalid value: "a/b/c": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"#]),
    ("labels: {A.b/c: d}",
        &[r#"metadata.labels: Invalid value: "A.b/c": prefix part <subdomain>"#]),
    (r#"labels: {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/c": d}"#,
        &[r#"metadata.labels: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa/c": prefix part must be no more than 253 bytes"#]),
    (r#"labels: {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": d}"#,
        &[r#"metadata.labels: Invalid value: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": name part must be no more than 63 bytes"#]),
    (r#"labels: {"": ""}"#, &[
        r#"metadata.labels: Invalid value: "": name part must be non-empty"#,
        r#"metadata.labels: Invalid value: "": <name>"#,
    ]),
    ("annotations: {A/B: c}", &[]),
    (r#"annotations: {"a b": c}"#,
        &[r#"metadata.annotations: Invalid value: "a b": <name>"#]),
    ("annotations: {cdi.k8s.io/cams: 'vendor.com/cam=front, cam'}",
        &[r#"metadata.annotations[cdi.k8s.io/cams]: Invalid value: "vendor.com/cam=front, cam": "cam" is no CDI device: must be vendor.com/class=device"#]),
    ("annotations: {cdi.k8s.io/cams: 'vendor.com/cam=front, vendor.com/cam=rear'}", &[]),
    ("annotations: {controller.kubernetes.io/pod-deletion-cost: '-5'}", &[]),
    ("annotations: {controller.kubernetes.io/pod-deletion-cost: '+5'}",
        &[r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "+5": must be a 32bit integer"#]),
    ("annotations: {controller.kubernetes.io/pod-deletion-cost: x}",
        &[r#"metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: "x": must be a 32bit integer"#]),
    ("annotations: {container.apparmor.security.beta.kubernetes.io/none: unconfined}",
        &[r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/none]: Invalid value: "none": container not found"#]),
    ("annotations: {container.apparmor.security.beta.kubernetes.io/c: strict}",
        &[r#"metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: Invalid value: "strict": invalid AppArmor profile name: "strict""#]),
    ("annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}", &[]),
    ("annotations: {seccomp.security.alpha.kubernetes.io/pod: strict}",
        &[r#"metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value: "strict": must be a valid seccomp profile"#]),
    ("annotations: {container.seccomp.security.alpha.kubernetes.io/c: localhost/../x}",
        &[r#"metadata.annotations.container.seccomp.security.alpha.kubernetes.io/c: Invalid value: "../x": must not contain '..'"#]),
    ("annotations: {seccomp.security.alpha.kubernetes.io/pod: localhost/x}", &[]),
    (r#"finalizers: [a, "b c"]"#, &[
        r#"metadata.finalizers: Invalid value: "b c": <name>"#,
        r#"metadata.finalizers[0]: Invalid value: "a": name is neither a standard finalizer name nor is it fully qualified"#,
        r#"metadata.finalizers[1]: Invalid value: "b c": name is neither a standard finalizer name nor is it fully qualified"#,
    ]),
    ("generateName: web-", &[]),
    (r#"generateName: "-""#, &[r#"metadata.generateName: Invalid value: "-": <subdomain>"#]),
    ("generateName: Web-", &[r#"metadata.generateName: Invalid value: "Web-": <subdomain>"#]),
    ("ownerReferences: [{apiVersion: a/b/c, kind: K, name: a, uid: u}]",
        &[r#"metadata.ownerReferences.apiVersion: Invalid value: "a/b/c": version must not be empty"#]),
    ("ownerReferences: [{}]", &[
        r#"metadata.ownerReferences.apiVersion: Invalid value: "": version must not be empty"#,
        r#"metadata.ownerReferences.kind: Invalid value: "": must not be empty"#,
        r#"metadata.ownerReferences.name: Invalid value: "": must not be empty"#,
        r#"metadata.ownerReferences.uid: Invalid value: "": must not be empty"#,
    ]),
];

pub(super) fn check(text: &str, expected: &[&str]) {
    let mut object = documents(text).unwrap().remove(0).value;
    let findings = walk::check(&mut object, schema::find("Pod").unwrap());
    assert!(findings.unknown.is_empty() && findings.errors.is_empty(), "{text}: {findings:?}");
    set_server_fields(&mut object, "board", None);
    defaults::apply(&mut object);
    let mut errors = pod(&object);
    super::gates::of_new(&object["spec"], &Path::root("spec"), &mut errors);
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let expand =
        |text: &str| TEXTS.iter().fold(text.to_owned(), |text, (name, rule)| text.replace(name, rule));
    let expected: Vec<String> = expected.iter().map(|text| expand(text)).collect();
    assert_eq!(errors, expected, "{text}");
}

#[test]
fn invalid_pods_are_rejected_with_the_errors_of_kubernetes() {
    for (pod, errors) in PODS {
        check(&format!("apiVersion: v1\nkind: Pod\n{pod}\n"), errors);
    }
}

#[test]
fn invalid_metadata_is_rejected_with_the_errors_of_kubernetes() {
    for (metadata, errors) in METADATA {
        check(
            &format!("metadata: {{name: p, {metadata}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"),
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
