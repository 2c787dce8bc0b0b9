use nodlet_core::time::Timestamp;
use nodlet_fuzz::{assert_ends_with, cases};
use serde_json::json;

use super::*;
use crate::manifest::contents;

fn read(text: &str) -> Result<Definition, String> {
    let text = format!("apiVersion: v1\nkind: Service\nmetadata: {{name: web, uid: a}}\n{text}\n");
    let read = contents("s.yaml", text.as_bytes(), Validation::Strict, "board");
    read.map(|mut contents| contents.definitions.remove(0)).map_err(|error| error.to_string())
}

#[test]
fn a_service_has_the_defaults_of_kubernetes() {
    let service =
        read("spec: {selector: {app: web}, ports: [{port: 80}], clusterIP: 10.0.0.1}").expect("it is valid");
    assert_eq!(
        service.object()["spec"],
        json!({
            "selector": {"app": "web"}, "type": "ClusterIP", "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        })
    );
    let balancer =
        read("spec: {type: LoadBalancer, sessionAffinity: ClientIP, ports: [{port: 80, targetPort: http}]}");
    let spec = balancer.expect("it is valid").object()["spec"].clone();
    assert_eq!(spec["allocateLoadBalancerNodePorts"], true);
    assert_eq!(spec["externalTrafficPolicy"], "Cluster");
    assert_eq!(spec["sessionAffinityConfig"], json!({"clientIP": {"timeoutSeconds": 10800}}));
    let name = read("spec: {type: ExternalName, externalName: db.example.com.}").expect("it is valid");
    assert_eq!(
        name.object()["spec"],
        json!({"type": "ExternalName", "externalName": "db.example.com.", "sessionAffinity": "None"})
    );
    assert!(
        read("spec: {clusterIP: None, selector: {app: web}}").is_ok(),
        "a headless Service needs no ports"
    );
}

#[test]
fn an_invalid_service_is_rejected_with_the_errors_of_kubernetes() {
    for [text, expected] in cases(
        r#"
            spec: {} => spec.ports: Required value
            spec: {ports: [{port: 0}]} => spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive
            spec: {ports: [{port: 1}, {port: 2}]} => spec.ports[0].name: Required value
            spec: {ports: [{port: 1, name: a}, {port: 2, name: a}]} => spec.ports[1].name: Duplicate value: "a"
            spec: {ports: [{port: 1, protocol: HTTP}]}
                => spec.ports[0].protocol: Unsupported value: "HTTP": supported values: "SCTP", "TCP", "UDP"
            spec: {ports: [{port: 1, nodePort: 30000}]}
                => spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'
            spec: {type: NodePort, clusterIP: None, ports: [{port: 1}]}
                => spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services
            spec: {type: NodePort, ports: [{port: 1, name: a, nodePort: 30000}, {port: 2, name: b, nodePort: 30000}]}
                => spec.ports[1].nodePort: Duplicate value: 30000
            spec: {ports: [{port: 1, name: a}, {port: 1, name: b}]}
                => spec.ports[1]: Duplicate value: {"AppProtocol":null,"Name":"","NodePort":0,"Port":1,"Protocol":"TCP","TargetPort":0}
            spec: {type: Router, ports: [{port: 1}]}
                => spec.type: Unsupported value: "Router": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"
            spec: {type: ExternalName} => spec.externalName: Required value
            spec: {type: ExternalName, externalName: a, ipFamilies: [IPv4]}
                => spec.ipFamilies: Forbidden: may not be set for ExternalName services
            spec: {sessionAffinity: Cookie, ports: [{port: 1}]}
                => spec.sessionAffinity: Unsupported value: "Cookie": supported values: "ClientIP", "None"
            spec: {sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}, ports: [{port: 1}]}
                => spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400
            spec: {clusterIP: 10.0.0, ports: [{port: 1}]}
                => spec.clusterIPs[0]: Invalid value: "10.0.0": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)
            spec: {clusterIPs: [10.0.0.1], ports: [{port: 1}]}
                => spec.clusterIPs: Invalid value: ["10.0.0.1"]: must be empty when `clusterIP` is not specified
            spec: {clusterIP: 10.0.0.1, clusterIPs: [10.0.0.1, 10.0.0.2], ports: [{port: 1}]}
                => spec.clusterIPs: Invalid value: ["10.0.0.1","10.0.0.2"]: may specify no more than one IP for each IP family
            spec: {clusterIP: 10.0.0.1, ipFamilies: [IPv6], ports: [{port: 1}]}
                => spec.clusterIPs[0]: Invalid value: "10.0.0.1": expected an IPv6 value as indicated by `ipFamilies[0]`
            spec: {ipFamilyPolicy: Both, ports: [{port: 1}]}
                => spec.ipFamilyPolicy: Unsupported value: "Both": supported values: "PreferDualStack", "RequireDualStack", "SingleStack"
            spec: {externalIPs: [127.0.0.1], ports: [{port: 1}]}
                => spec.externalIPs[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)
            spec: {externalTrafficPolicy: Local, ports: [{port: 1}]}
                => spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services
            spec: {healthCheckNodePort: 30000, ports: [{port: 1}]}
                => spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'
            spec: {internalTrafficPolicy: Near, ports: [{port: 1}]}
                => spec.internalTrafficPolicy: Unsupported value: "Near": supported values: "Cluster", "Local"
            spec: {loadBalancerClass: a/b, ports: [{port: 1}]}
                => spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'
            spec: {type: LoadBalancer, loadBalancerSourceRanges: [10.0.0.0/8], ports: [{port: 1}]}
                => spec.loadBalancerSourceRanges: Forbidden: nodlet does not limit the clients of a load balancer: use a firewall on the board
            spec: {ports: [{port: 1, targetPort: A_b}]}
                => spec.ports[0].targetPort: Invalid value: "A_b": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)
        "#,
    ) {
        let refused = read(text).expect_err(text);
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn the_name_of_a_service_is_a_label_and_one_error() {
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a.b}\nspec: {ports: [{port: 1}]}\n";
    let refused =
        contents("s.yaml", text.as_bytes(), Validation::Strict, "board").expect_err("a dot").to_string();
    assert!(refused.ends_with("metadata.name: Invalid value: \"a.b\": must not contain dots"), "{refused}");
}

#[test]
fn fields_without_effect_are_warned_about_by_name() {
    let text = "spec: {type: LoadBalancer, externalTrafficPolicy: Local, trafficDistribution: PreferClose, ports: [{port: 1}]}";
    assert_eq!(
        read(text).expect("it is valid").warnings,
        [
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
            "spec.trafficDistribution: has no effect: all endpoints of a board are on one node",
            "spec.healthCheckNodePort: nodlet allocates the port, but does not serve health checks of load balancers",
        ]
    );
    let text = "spec: {type: LoadBalancer, loadBalancerClass: a/b, ports: [{port: 1}]}";
    let warnings = read(text).expect("it is valid").warnings;
    assert!(warnings[0].starts_with("spec.loadBalancerClass: "), "{warnings:?}");
    assert_eq!(read("spec: {ports: [{port: 1}]}").expect("it is valid").warnings, [""; 0]);
}

#[test]
fn addresses_of_an_existing_service_are_immutable() {
    let service = |spec: Value| json!({"kind": "Service", "metadata": {"name": "web"}, "spec": spec});
    let one = service(
        json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]}),
    );
    let other = service(json!({"type": "ClusterIP", "clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"]}));
    let refused = update::check_update(&one, &other).expect_err("another address");
    assert_ends_with(&refused, "spec.clusterIPs[0]: Invalid value: [\"10.0.0.2\"]: may not change once set");
    let none = service(json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}));
    let refused = update::check_update(&one, &none).expect_err("headless");
    assert_ends_with(&refused, "spec.clusterIPs[0]: Invalid value: [\"None\"]: may not change once set");
    let both = service(json!({
        "type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
    }));
    assert!(update::check_update(&one, &both).is_ok());
    let refused = update::check_update(&both, &one).expect_err("no policy").to_string();
    assert!(
        refused.contains("must be set to 'SingleStack' when releasing the secondary clusterIP"),
        "{refused}"
    );
    let name = service(json!({"type": "ExternalName", "externalName": "a.example"}));
    assert!(update::check_update(&one, &name).is_ok() && update::check_update(&name, &other).is_ok());
}

#[test]
fn a_row_has_the_cells_of_kubectl() {
    let cells = |service: Value| STRATEGY.cells(&service, Timestamp(0));
    assert_eq!(
        cells(json!({
            "metadata": {"name": "web"},
            "spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"], "selector": {"b": "2", "a": "1"},
                     "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]},
        })),
        ["web", "NodePort", "10.0.0.1", "<none>", "80:30080/TCP,53/UDP", "<unknown>", "a=1,b=2"]
    );
    let balancer = |status: Value| {
        cells(json!({"spec": {"type": "LoadBalancer", "externalIPs": ["10.9.9.9"]}, "status": {"loadBalancer": status}}))[3].clone()
    };
    assert_eq!(
        balancer(json!({"ingress": [{"ip": "192.168.100.100"}, {"ip": "10.0.0.2"}]})),
        "10.0.0.2,192.168.100.100,10.9.9.9"
    );
    assert_eq!(cells(json!({"spec": {"type": "LoadBalancer"}}))[3], "<pending>");
    let name = cells(json!({"spec": {"type": "ExternalName", "externalName": "a.example"}}));
    assert_eq!(name[1..5], ["ExternalName", "<none>", "a.example", "<none>"]);
}

#[test]
fn a_service_is_described_with_its_endpoints() {
    let service = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
                 "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
                 "externalTrafficPolicy": "Cluster", "selector": {"app": "web"},
                 "ports": [{"port": 80, "nodePort": 30080, "targetPort": "http", "protocol": "TCP"}]},
    });
    let endpoint = |ip: &str, ready: bool| json!({"addresses": [ip], "conditions": {"ready": ready}});
    let slice = json!({
        "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        "endpoints": [endpoint("10.1.0.1", true), endpoint("10.1.0.2", false), endpoint("10.1.0.3", true),
                      endpoint("10.1.0.4", true), endpoint("10.1.0.5", true)],
    });
    let described = STRATEGY.describe(&service, &[slice], None);
    assert_eq!(
        described,
        "Name:                     web\nNamespace:                default\nLabels:                   <none>\n\
         Annotations:              <none>\nSelector:                 app=web\nType:                     NodePort\n\
         IP Family Policy:         SingleStack\nIP Families:              IPv4\nIP:                       10.0.0.1\n\
         IPs:                      10.0.0.1\nPort:                     <unset>  80/TCP\nTargetPort:               http/TCP\n\
         NodePort:                 <unset>  30080/TCP\n\
         Endpoints:                10.1.0.1:8080,10.1.0.3:8080,10.1.0.4:8080 + 1 more...\n\
         Session Affinity:         None\nExternal Traffic Policy:  Cluster\nInternal Traffic Policy:  Cluster\n"
    );
}
