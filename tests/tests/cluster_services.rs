//! Services of a real Kubernetes cluster on boards with `--services=cluster`, without kube-proxy.

use std::collections::BTreeSet;

use nodlet_tests::{
    Background, ClusterNode, ControlPlane, Memory, Namespace, Sender, TestPod, demo_program, manifest,
};

const SERVED: [&str; 1] = ["--services=cluster"];

/// Two boards that serve the cluster's Services, which the cluster lets them read.
fn two_boards(plane: &ControlPlane) -> [ClusterNode; 2] {
    plane.let_nodes_read_nodes();
    plane.let_nodes_read_services();
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

#[test]
fn a_service_takes_no_port_on_which_the_board_listens_until_nobody_listens_there() {
    let plane = ControlPlane::start();
    plane.let_nodes_read_services();
    let node = ClusterNode::join_with(&plane, "board-1", &SERVED);
    let other = Namespace::new();
    let endpoint = plane.connect(&other);
    let serve = |network: &Namespace, port: &str| {
        let mut command = std::process::Command::new(demo_program());
        command.args(["serve", port, "/"]);
        network.give_to(&mut command);
        Background::start(command)
    };
    let (_other, own) = (serve(&other, "8080"), serve(&node.network, "2222"));
    // Another port of the same Service is served.
    plane.apply(&format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: taken}}, spec: {{externalIPs: [{}], \
          ports: [{{name: a, port: 2222}}, {{name: b, port: 2223}}]}}}}",
        node.address
    ));
    plane.apply(&format!(
        "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
          metadata: {{name: taken-1, labels: {{kubernetes.io/service-name: taken}}}}, \
          ports: [{{name: a, port: 8080}}, {{name: b, port: 8080}}], endpoints: [{{addresses: [{endpoint}]}}]}}"
    ));
    let peer = |port: u16| {
        let url = format!("http://{}:{port}/peer", node.address);
        of_network(plane.namespace(), &url)
    };
    // The endpoint sees the board, and a server of the board sees the client.
    node.device.wait_for("the port that is free", || peer(2223).as_deref() == Some(&node.address));
    assert_eq!(peer(2222).as_deref(), Some("10.212.0.1"));
    let events = "get events --field-selector reason=ServicePortInUse -o jsonpath={.items[*].message}";
    let event = plane.wait_for(events, |event| event.contains("2222"));
    assert!(event.starts_with(&format!("default/taken:2222/TCP/IPv4: {}:2222: ", node.address)), "{event}");
    assert!(!event.contains("2223"), "{event}");
    own.end();
    node.device.wait_for("the port that became free", || peer(2222).as_deref() == Some(&node.address));
}

#[test]
fn an_object_of_more_values_than_are_read_is_named_and_others_are_followed() {
    let plane = ControlPlane::start();
    plane.let_nodes_read_services();
    // 90 000 addresses, which etcd stores in less than a megabyte.
    let endpoints: Vec<String> = (1..=900)
        .map(|number| {
            let addresses: Vec<String> =
                (1..=100).map(|last| format!("\"fd00::{number:x}:{last:x}\"")).collect();
            format!("{{addresses: [{}]}}", addresses.join(", "))
        })
        .collect();
    let large = |name: &str| {
        plane.create(&format!(
            "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv6, \
              metadata: {{name: {name}, labels: {{kubernetes.io/service-name: web}}}}, endpoints: [{}]}}",
            endpoints.join(", ")
        ));
    };
    let service = |name: &str| {
        plane.apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{ports: [{{port: 80}}]}}}}"
        ));
        plane.line(&format!("get service {name} -o jsonpath={{.spec.clusterIP}}")).ok() + ":80"
    };
    let refused = |node: &ClusterNode, address: &str| {
        let address = address.parse().expect("an address");
        let connect =
            move || std::net::TcpStream::connect_timeout(&address, std::time::Duration::from_secs(1));
        node.network.call(connect).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    let named =
        |name: &str| format!("EndpointSlice default/{name}: ignored, since it has more than 50000 values");
    // One that is there before the board is, and one that comes later.
    large("first");
    let before = service("before");
    let node = ClusterNode::join_with(&plane, "board-1", &SERVED);
    node.device.wait_for("a Service of the list", || refused(&node, &before));
    assert!(node.device.agent_log().contains(&named("first")));
    large("second");
    node.device.wait_logged(&named("second"));
    let after = service("after");
    node.device.wait_for("a Service of the watch", || refused(&node, &after));
    // The watch went on: nothing was listed again.
    assert_eq!(node.device.agent_log().matches(&named("first")).count(), 1);
}

/// The bytes that the uplink of a board has received and sent.
fn carried(node: &ClusterNode) -> [u64; 2] {
    node.network.call(|| {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the kernel counts");
        let line = table.lines().find(|line| line.trim_start().starts_with("uplink:")).expect("a link");
        let numbers: Vec<u64> =
            line.split_whitespace().skip(1).map(|word| word.parse().expect("digits")).collect();
        [numbers[0], numbers[8]]
    })
}

#[test]
#[ignore = "makes 10 000 objects; docs/cluster.md has what it measures"]
fn thousands_of_services_come_compressed_and_take_little_memory() {
    const COUNT: usize = 5000;
    let plane = ControlPlane::start();
    plane.let_nodes_read_services();
    for first in (0..COUNT).step_by(500) {
        let objects = (first..first + 500).flat_map(|number| {
            let (high, low) = (number / 250, number % 250);
            let endpoints: Vec<String> = (1..=3)
                .map(|pod| format!("{{addresses: [10.{}.{high}.{low}], nodeName: other, conditions: {{ready: true}}}}", 30 + pod))
                .collect();
            [
                format!(
                    "{{apiVersion: v1, kind: Service, metadata: {{name: s{number}, labels: {{app: s{number}}}}}, \
                      spec: {{ports: [{{port: 80, targetPort: 8080}}]}}}}"
                ),
                format!(
                    "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
                      metadata: {{name: s{number}-1, labels: {{kubernetes.io/service-name: s{number}}}}}, \
                      ports: [{{name: '', port: 8080}}], endpoints: [{}]}}",
                    endpoints.join(", ")
                ),
            ]
        });
        plane.create(&objects.collect::<Vec<_>>().join("\n---\n"));
    }
    let mut node = ClusterNode::join(&plane, "board-1");
    let before = Memory::of(node.device.agent_pid()).now;
    node.device.kill_agent();
    let ([received, sent], begun) = (carried(&node), std::time::Instant::now());
    node.restart_with("board-1", &SERVED);
    // A large table gets its hooks with its last part.
    let in_effect = || {
        let chains =
            node.network.call(|| std::process::Command::new("nft").args(["list", "chains"]).output());
        let chains = String::from_utf8_lossy(&chains.expect("nft is installed").stdout).into_owned();
        chains
            .split("table ")
            .any(|table| table.contains("nodlet-services") && table.contains("hook prerouting"))
    };
    node.device.wait_within(std::time::Duration::from_secs(180), "the table", in_effect);
    let took = begun.elapsed();
    let now = carried(&node);
    let after = Memory::of(node.device.agent_pid()).now;
    println!(
        "{} bytes received and {} sent in {took:.1?}; {before} KiB without Services, {after} KiB with them",
        now[0] - received,
        now[1] - sent
    );
    assert!(now[0] - received < 5_000_000, "the lists are compressed");
    assert!(after < before + 40_000, "{before} KiB before, {after} KiB after");
}
