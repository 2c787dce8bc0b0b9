//! Services of a real Kubernetes cluster on boards with `--services=cluster`, without kube-proxy.

use std::collections::BTreeSet;

use nodlet_tests::{ClusterNode, ControlPlane, Namespace, Sender, TestPod, manifest};

const SERVED: [&str; 1] = ["--services=cluster"];

/// Two boards that serve the cluster's Services, which the cluster lets them read.
fn two_boards(plane: &ControlPlane) -> [ClusterNode; 2] {
    plane.let_nodes_read_nodes();
    let binding =
        "create clusterrolebinding node-proxier --clusterrole=system:node-proxier --group=system:nodes";
    plane.line(binding).ok();
    ["board-1", "board-2"].map(|name| ClusterNode::join_with(plane, name, &SERVED))
}

/// A Deployment of web servers, two on each board, that are ready while they have a file, and its Service on port 8080.
fn web(plane: &ControlPlane, service: &str) {
    let probe = "imagePullPolicy: Never\nreadinessProbe: {exec: {command: [/bin/demo, stat, /ready]}, periodSeconds: 1}\n";
    let container = manifest::container("app", "touch /ready then serve 80 /srv", probe);
    let spread = "terminationGracePeriodSeconds: 1\n\
                  topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, \
                  whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]\n";
    plane.apply(&manifest::deployment(4, &[container], "", spread));
    plane.apply(&format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: web}}, \
          spec: {{selector: {{app: web}}, ports: [{{port: 8080, targetPort: 80}}], {service}}}}}"
    ));
    let ready = "get deployment web -o jsonpath={.status.readyReplicas}";
    plane.wait_for(ready, |ready| ready == "4");
}

/// The names of the Deployment's pods.
fn names(plane: &ControlPlane) -> BTreeSet<String> {
    let pods = plane.line("get pods -l app=web -o jsonpath={.items[*].metadata.name}").ok();
    pods.split_whitespace().map(str::to_owned).collect()
}

/// A pod that only sends requests.
fn client<'a>(plane: &ControlPlane, node: &'a ClusterNode, board: &str, name: &'a str) -> TestPod<'a> {
    let container = manifest::container("app", "sleep", "imagePullPolicy: Never\n");
    plane.apply(&manifest::pod_of(name, &[container], &format!("nodeName: {board}\n")));
    node.device.pod(name).wait_ready()
}

/// Sends requests until exactly these servers have answered, and no others do.
#[track_caller]
fn reaches(node: &ClusterNode, what: &str, wanted: &BTreeSet<String>, get: impl Fn() -> Option<String>) {
    let seen = std::cell::RefCell::new(BTreeSet::new());
    node.device.wait_for(&format!("{what} to reach {wanted:?}"), || {
        seen.borrow_mut().extend(get());
        // A server of before may have answered meanwhile.
        if !seen.borrow().is_subset(wanted) {
            seen.borrow_mut().clear();
        }
        *seen.borrow() == *wanted
    });
}

/// Whether the kernel has a table of Services for the board.
fn has_table(node: &ClusterNode) -> bool {
    let tables = node.network.call(|| std::process::Command::new("nft").args(["list", "tables"]).output());
    String::from_utf8_lossy(&tables.expect("nft is installed").stdout).contains("nodlet-services")
}

fn of_pod(pod: &TestPod<'_>, url: &str) -> Option<String> {
    let got = pod.demo("app", &format!("get {url}"));
    (got.code == 0).then(|| got.stdout.trim().to_owned())
}

fn of_network(network: &Namespace, url: &str) -> Option<String> {
    network.demo(&format!("get {url}")).ok().map(|name| name.trim().to_owned())
}

#[test]
fn connections_are_spread_over_the_ready_endpoints_of_all_boards_also_while_the_cluster_is_away() {
    let plane = ControlPlane::start();
    let nodes = two_boards(&plane);
    web(&plane, "type: NodePort");
    let all = names(&plane);
    assert_eq!(all.len(), 4, "{all:?}");
    let address = plane.line("get service web -o jsonpath={.spec.clusterIP}").ok();
    let node_port = plane.line("get service web -o jsonpath={.spec.ports[0].nodePort}").ok();
    let url = format!("http://{address}:8080/hostname");

    // Pods of each board, and the boards themselves, reach all; and so do other machines through any board.
    let client = client(&plane, &nodes[0], "board-1", "client");
    reaches(&nodes[0], "a pod", &all, || of_pod(&client, &url));
    for node in &nodes {
        reaches(node, "the board", &all, || of_network(&node.network, &url));
        let outside = format!("http://{}:{node_port}/hostname", node.address);
        reaches(node, "another machine", &all, || of_network(plane.namespace(), &outside));
    }
    // The API server as a Service.
    nodes[0].device.wait_for("the API server", || client.demo("app", "connect 10.96.0.1:443").code == 0);

    // A pod that is not ready gets no connections, wherever it is, and gets them again.
    let on_board_1 =
        "get pods -l app=web --field-selector spec.nodeName=board-1 -o jsonpath={.items[0].metadata.name}";
    let one = plane.line(on_board_1).ok();
    let pod = nodes[0].device.pod(&one);
    pod.demo("app", "rm /ready").ok();
    let ready = "get deployment web -o jsonpath={.status.readyReplicas}";
    plane.wait_for(ready, |ready| ready == "3");
    let others: BTreeSet<String> = all.iter().filter(|name| **name != one).cloned().collect();
    for node in &nodes {
        reaches(node, "the board", &others, || of_network(&node.network, &url));
    }
    pod.demo("app", "touch /ready").ok();
    reaches(&nodes[1], "the board", &all, || of_network(&nodes[1].network, &url));

    // Without the cluster everything stays as it was, whatever becomes of the agent.
    let cut = plane.partition();
    let mut nodes = nodes;
    reaches(&nodes[0], "the board without the cluster", &all, || of_network(&nodes[0].network, &url));
    nodes[0].device.kill_agent();
    assert!(of_network(&nodes[0].network, &url).is_some());
    nodes[0].device.start_agent();
    reaches(&nodes[0], "the board with another agent", &all, || of_network(&nodes[0].network, &url));
    drop(cut);
    let client = nodes[0].device.pod("client");
    plane.line("scale deployment web --replicas=1").ok();
    plane.wait_for("get pods -l app=web --no-headers", |pods| pods.lines().count() == 1);
    let last = names(&plane);
    reaches(&nodes[0], "a pod", &last, || of_pod(&client, &url));

    // Without an endpoint, connections are refused; without the Service, they go nowhere.
    plane.line("scale deployment web --replicas=0").ok();
    nodes[0].device.wait_for("a refusal", || {
        let ran = client.demo("app", &format!("connect {address}:8080"));
        ran.stderr.contains("refused") || ran.stdout.contains("refused")
    });
    // A board that leaves the cluster serves none of its Services.
    nodes[0].verb(&["leave"]).ok();
    nodes[0].device.wait_for("the table to go", || !has_table(&nodes[0]));
}

#[test]
fn a_cluster_that_does_not_let_the_board_read_its_services_is_named_with_the_command_that_allows_it() {
    let plane = ControlPlane::start();
    let node = ClusterNode::join_with(&plane, "board-1", &SERVED);
    let events = "get events --field-selector reason=ServicesNotFollowed -o jsonpath={.items[*].message}";
    let event = plane.wait_for(events, |event| event.contains("clusterrolebinding"));
    assert!(event.contains("cannot list resource \"endpointslices\""), "{event}");
    let client = client(&plane, &node, "board-1", "client");
    assert!(!has_table(&node));
    // As the event says.
    let command = event.split('`').nth(1).expect("a command");
    assert!(command.contains("--user=system:node:board-1"), "{event}");
    plane.line(command.strip_prefix("kubectl ").expect("a command of kubectl")).ok();
    // A connection that begins before would try in vain for minutes.
    node.device.wait_for("the table", || has_table(&node));
    node.device.wait_for("the API server", || client.demo("app", "connect 10.96.0.1:443").code == 0);
    assert!(node.device.agent_log().contains("the Services of the cluster are followed"));
}

#[test]
fn another_user_reads_the_services_if_a_kubeconfig_names_one() {
    let plane = ControlPlane::start();
    let account = "nodlet-services";
    plane.line(&format!("-n kube-system create serviceaccount {account}")).ok();
    let token = plane.line(&format!("-n kube-system create token {account} --duration=1h")).ok();
    let mut node = ClusterNode::connected_with(&plane, "board-1", &[]);
    let authority = std::fs::read(plane.authority()).expect("it was written");
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: 'https://{}', certificate-authority-data: {}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{token: {}}}}}]\n",
        plane.server(),
        data_encoding::BASE64.encode(&authority),
        token.trim()
    );
    let file = node.device.path("etc/nodlet/services-kubeconfig");
    std::fs::create_dir_all(file.parent().expect("a directory")).expect("made");
    std::fs::write(&file, config).expect("written");
    node.device.kill_agent();
    node.restart_with(
        "board-1",
        &["--services=cluster", "--services-kubeconfig=/etc/nodlet/services-kubeconfig"],
    );
    let node = node.enter(&plane, "board-1");
    let events = "get events --field-selector reason=ServicesNotFollowed -o jsonpath={.items[*].message}";
    let event = plane.wait_for(events, |event| event.contains("clusterrolebinding"));
    let command = event.split('`').nth(1).expect("a command");
    assert!(command.ends_with(&format!("--serviceaccount=kube-system:{account}")), "{event}");
    plane.line(command.strip_prefix("kubectl ").expect("a command of kubectl")).ok();
    node.device.wait_for("the table", || has_table(&node));
    let client = client(&plane, &node, "board-1", "client");
    node.device.wait_for("the API server", || client.demo("app", "connect 10.96.0.1:443").code == 0);
}

#[test]
fn senders_of_udp_that_go_on_reach_the_next_pod_of_a_service() {
    let plane = ControlPlane::start();
    let nodes = two_boards(&plane);
    plane.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: udp}, spec: {selector: {app: udp}, \
          ports: [{port: 53, targetPort: 5353, protocol: UDP}]}}",
    );
    let address = plane.line("get service udp -o jsonpath={.spec.clusterIP}").ok() + ":53";
    let _senders = [
        Sender::begin(&nodes[0].network, &address, "first"),
        Sender::begin(&nodes[1].network, &address, "second"),
    ];
    for (round, board) in [0, 1].into_iter().enumerate() {
        let name = format!("udp-{round}");
        let app = manifest::container("app", "datagrams 5353", "imagePullPolicy: Never\n");
        let pod = manifest::pod_of(&name, &[app], &format!("nodeName: board-{}\n", board + 1));
        plane.apply(&pod.replacen("metadata:\n", "metadata:\n  labels: {app: udp}\n", 1));
        let pod = nodes[board].device.pod(&name);
        for word in ["first", "second"] {
            nodes[board].device.wait_for(&format!("the sender {word} to reach {name}"), || {
                pod.logs("app").lines().any(|line| line.ends_with(&format!(" says {word}")))
            });
        }
        plane.line(&format!("delete pod {name}")).ok();
        pod.wait_gone();
    }
}
