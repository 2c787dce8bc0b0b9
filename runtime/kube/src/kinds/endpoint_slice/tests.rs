use nodlet_fuzz::{assert_ends_with, cases};
use serde_json::json;

use super::*;
use crate::manifest::contents;

fn read(text: &str) -> Result<Definition, String> {
    let labels = "{kubernetes.io/service-name: web}";
    let text = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web-1, labels: {labels}}}\n{text}\n"
    );
    let read = contents("s.yaml", text.as_bytes(), Validation::Strict, "board");
    read.map(|mut contents| contents.definitions.remove(0)).map_err(|error| error.to_string())
}

#[test]
fn a_slice_has_the_defaults_of_kubernetes() {
    let slice = read("addressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [10.0.0.1]}]")
        .expect("it is valid");
    assert_eq!(slice.object()["ports"], json!([{"name": "", "port": 80, "protocol": "TCP"}]));
    assert_eq!(slice.warnings, [""; 0]);
    let text = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv4\nendpoints: []\n";
    let contents = contents("s.yaml", text.as_bytes(), Validation::Strict, "board").expect("it is valid");
    assert!(contents.definitions[0].warnings[0].contains("kubernetes.io/service-name"));
}

#[test]
fn an_invalid_slice_is_rejected_with_the_errors_of_kubernetes() {
    for [text, expected] in cases(
        r#"
            endpoints: [] => addressType: Required value
            addressType: IPv5\nendpoints: [] => addressType: Unsupported value: "IPv5": supported values: "FQDN", "IPv4", "IPv6"
            addressType: IPv4\nendpoints: [{addresses: []}] => endpoints[0].addresses: Required value: must contain at least 1 address
            addressType: IPv4\nendpoints: [{addresses: ["fd00::1"]}]
                => endpoints[0].addresses: Invalid value: "fd00::1": must be an IPv4 address
            addressType: IPv6\nendpoints: [{addresses: ["::1"]}]
                => endpoints[0].addresses[0]: Invalid value: "::1": may not be in the loopback range (127.0.0.0/8, ::1/128)
            addressType: IPv4\nendpoints: []\nports: [{name: a}, {name: a}] => ports[1].name: Duplicate value: "a"
            addressType: IPv4\nendpoints: []\nports: [{protocol: X}]
                => ports[0].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"
            addressType: FQDN\nendpoints: [{addresses: [local]}]
                => endpoints[0].addresses[0]: Invalid value: "local": should be a domain with at least two segments separated by dots
            addressType: IPv4\nendpoints: [{addresses: [10.0.0.1], hostname: A}] => endpoints[0].hostname: Invalid value: "A"
        "#,
    ) {
        let text = &*text.replace("\\n", "\n");
        let refused = read(text).expect_err(text);
        assert!(refused.contains(expected), "{text}: {refused}");
    }
    let slice = |kind: &str| json!({"kind": "EndpointSlice", "metadata": {"name": "a"}, "addressType": kind});
    let refused = check_update(&slice("IPv4"), &slice("IPv6")).expect_err("another family");
    assert_ends_with(&refused, "addressType: Invalid value: \"IPv6\": field is immutable");
}

#[test]
fn a_slice_is_shown_as_kubectl_shows_it() {
    let slice = json!({
        "metadata": {"name": "web-1", "namespace": "default"}, "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "all", "protocol": "UDP"}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}, "nodeName": "board",
             "targetRef": {"kind": "Pod", "name": "web"}},
            {"addresses": ["10.0.0.2", "10.0.0.3", "10.0.0.4"]},
        ],
    });
    let cells = STRATEGY.cells(&slice, nodlet_core::time::Timestamp(0));
    assert_eq!(cells, ["web-1", "IPv4", "80,all", "10.0.0.1,10.0.0.2,10.0.0.3 + 1 more...", "<unknown>"]);
    let empty = STRATEGY.cells(&json!({}), nodlet_core::time::Timestamp(0));
    assert_eq!(empty[2..4], ["<unset>", "<unset>"]);
    assert_eq!(
        STRATEGY.describe(&slice, &[], None),
        "Name:         web-1\nNamespace:    default\nLabels:       <none>\nAnnotations:  <none>\nAddressType:  IPv4\nPorts:\n\
         \u{20} Name  Port     Protocol\n  ----  ----     --------\n  http  80       TCP\n  all   <unset>  UDP\nEndpoints:\n\
         \u{20} - Addresses:  10.0.0.1\n    Conditions:\n      Ready:    true\n    Hostname:   <unset>\n    TargetRef:  Pod/web\n\
         \u{20}   NodeName:   board\n    Zone:       <unset>\n  - Addresses:  10.0.0.2, 10.0.0.3, 10.0.0.4\n    Conditions:\n\
         \u{20}     Ready:   <unset>\n    Hostname:  <unset>\n    NodeName:  <unset>\n    Zone:      <unset>\n"
    );
}
