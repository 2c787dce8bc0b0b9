//! The kubelet's server of a board, at a real control plane: `kubectl logs` and the like at the cluster.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nodlet_tests::{Background, ClusterNode, ControlPlane, Memory, Ran, Terminal};
use serde_json::{Value, json};

/// A board that has joined as `board-1`, and whose serving certificate is approved.
fn join(plane: &ControlPlane) -> ClusterNode {
    let node = ClusterNode::join(plane, "board-1");
    node.approve_server(plane, "board-1");
    node
}

/// Waits for an undecided request of the board for a serving certificate. Returns its name.
fn wait_for_request(plane: &ControlPlane, node: &ClusterNode) -> String {
    let requests = || ClusterNode::server_requests(plane, "board-1");
    node.device.wait_for("a request", || !requests().is_empty());
    requests().remove(0)
}

/// A pod that prints, and runs until it is asked to end.
fn pod(name: &str, args: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/demo:1
    imagePullPolicy: IfNotPresent
    args: [{args}]
"
    )
}

/// Runs a pod until it is ready.
fn run(plane: &ControlPlane, name: &str, args: &str) {
    plane.apply(&pod(name, args));
    plane.wait_for(&format!("get pod {name} --no-headers"), |pod| pod.contains("1/1"));
}

/// The variables with which kubectl uses SPDY instead of a WebSocket, as the API server before 1.36 does on its way to
/// a node.
const SPDY: [&str; 2] = ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"];

/// kubectl with a WebSocket, and with SPDY.
fn over_both(plane: &ControlPlane, line: &str, mut test: impl FnMut(Command)) {
    let words: Vec<&str> = line.split(' ').collect();
    test(plane.command(&words));
    let mut spdy = plane.command(&words);
    for variable in SPDY {
        spdy.env(variable, "false");
    }
    test(spdy);
}

#[test]
fn kubectl_reads_logs_through_the_api_server() {
    let plane = ControlPlane::start();
    let mut node = join(&plane);
    let port = "get node board-1 -o jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}";
    assert_eq!(plane.line(port).ok(), "10250");
    run(&plane, "web", "print, one, then, print, two, then, wait, /end");
    assert_eq!(plane.wait_for("logs web", |log| log.ends_with("two\n")), "one\ntwo\n");
    for (option, expected) in [
        ("--tail=1", "two\n"),
        ("--limit-bytes=5", "one\nt"),
        ("--since=1h", "one\ntwo\n"),
        ("--since-time=2099-01-01T00:00:00Z", ""),
    ] {
        assert_eq!(plane.line(&format!("logs web {option}")).ok(), expected, "{option}");
    }
    let stamped = plane.line("logs web --timestamps").ok();
    assert!(stamped.lines().all(|line| line.starts_with("20") && line.contains("Z ")), "{stamped}");
    plane
        .line("logs web --previous")
        .refused_with("previous terminated container \"app\" in pod \"web\" not found");

    // The log is followed to the end of the container, which is then started again.
    let mut following = Background::start(plane.command(&["logs", "-f", "web"]));
    node.device.wait_for("the first lines", || following.lines() == ["one", "two"]);
    node.device.pod("web").tell("app", "/end");
    assert!(following.child.wait().expect("it ends").success());
    plane.wait_for("get pod web -o jsonpath={.status.containerStatuses[0].restartCount}", |count| {
        count == "1"
    });
    assert_eq!(plane.wait_for("logs web --previous", |log| !log.is_empty()), "one\ntwo\n");

    // Another agent has the certificate, and requests no other one.
    let requests = "get csr -o jsonpath={.items[*].spec.signerName}";
    let before = plane.line(requests).ok();
    node.device.restart_agent();
    let found = plane.wait_for("logs web --tail=1", |log| !log.is_empty());
    assert_eq!((found.as_str(), plane.line(requests).ok()), ("two\n", before));
    node.verb(&["leave"]).ok();
    assert!(!node.device.path("var/lib/nodlet/kubelet-server.json").exists());
    let address = format!("{}:10250", node.address);
    node.device.wait_for("the port to be closed", || {
        let address = address.clone();
        plane.namespace().call(move || std::net::TcpStream::connect(address).is_err())
    });
}

#[test]
fn kubectl_executes_attaches_and_forwards_ports_over_websockets_and_spdy() {
    let plane = ControlPlane::start();
    let node = join(&plane);
    run(&plane, "web", "print, began, then, serve, '8080', /bin");
    over_both(&plane, "exec web -- /bin/demo print out then eprint err then exit 3", |command| {
        let ran = Ran::with_input(command, "");
        assert_eq!((ran.code, ran.stdout.as_str()), (3, "out\n"), "{ran:?}");
        assert!(ran.stderr.starts_with("err\n"), "{ran:?}");
    });
    let input = "a line\n".repeat(50_000);
    over_both(&plane, "exec -i web -- /bin/demo echo", |command| {
        let ran = Ran::with_input(command, &input);
        assert!(ran.code == 0 && ran.stdout == input, "{} {} {}", ran.code, ran.stdout.len(), ran.stderr);
    });
    over_both(&plane, "exec -it web -- /bin/demo tty then echo", |command| {
        let mut terminal = Terminal::start(command);
        terminal.wait_for("tty 100x30");
        terminal.type_in("hello\r");
        terminal.wait_for("hello\r\nhello\r\n");
        terminal.type_in("\u{4}");
        assert_eq!(terminal.ended(), 0);
    });
    plane.line("exec web -- /bin/absent").refused_with("/bin/absent");

    over_both(&plane, "port-forward web :8080", |mut command| {
        command.stderr(Stdio::piped());
        let forwarding = Background::start(command);
        let port = || {
            let first = forwarding.lines().first()?.strip_prefix("Forwarding from 127.0.0.1:")?.to_owned();
            first.split(' ').next()?.parse::<u16>().ok()
        };
        node.device.wait_for("kubectl to listen", || port().is_some());
        let port = port().expect("a port");
        let answer = plane.namespace().call(move || {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        });
        let answer = answer.expect("an answer");
        assert!(answer.starts_with("HTTP/1."), "{answer}");
    });

    // `kubectl cp` needs tar, which is the machine's.
    let volumes = "    env: [{name: PATH, value: /usr/bin}]
    volumeMounts: [{name: usr, mountPath: /usr}, {name: lib, mountPath: /lib}, {name: lib64, mountPath: /lib64}]
  volumes:
  - {name: usr, hostPath: {path: /usr}}
  - {name: lib, hostPath: {path: /usr/lib}}
  - {name: lib64, hostPath: {path: /usr/lib64}}
";
    plane.apply(&(pod("copy", "wait, /end") + volumes));
    plane.wait_for("get pod copy --no-headers", |pod| pod.contains("1/1"));
    let (from, back) = (node.device.path("/from"), node.device.path("/back"));
    std::fs::write(&from, &input).expect("written");
    over_both(&plane, &format!("cp {} copy:/copied", from.display()), |command| {
        Ran::with_input(command, "").ok();
    });
    over_both(&plane, &format!("cp copy:/copied {}", back.display()), |command| {
        let _ = std::fs::remove_file(&back);
        Ran::with_input(command, "").ok();
        assert!(std::fs::read_to_string(&back).expect("copied") == input);
    });

    plane.apply(&pod("talk", "print, ready, then, echo").replace("    args", "    stdin: true\n    args"));
    plane.wait_for("get pod talk --no-headers", |pod| pod.contains("1/1"));
    over_both(&plane, "attach -i talk", |mut command| {
        command.stdin(Stdio::piped());
        let mut attached = Background::start(command);
        attached.say("hello\n");
        node.device.wait_for("the echo", || attached.saw(|line| line.contains("hello")));
    });
}

/// `openssl s_client` with these arguments, from the machine of the control plane to the kubelet's server of a board.
fn openssl(plane: &ControlPlane, node: &ClusterNode, arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-quiet", "-connect", &format!("{}:10250", node.address)]).args(arguments);
    plane.namespace().give_to(&mut command);
    command
}

/// The arguments of a client without a certificate.
const NO_CERTIFICATE: [String; 0] = [];

/// The answer to GET of a path.
fn get(plane: &ControlPlane, node: &ClusterNode, arguments: &[String], path: &str, headers: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: board\r\nConnection: close\r\n{headers}\r\n");
    Ran::with_input(openssl(plane, node, arguments), &request).stdout
}

#[test]
fn metrics_and_stats_are_served_to_whom_the_cluster_allows_it() {
    let plane = ControlPlane::start();
    let node = join(&plane);
    run(&plane, "web", "print, began, then, hog, '20', then, wait, /end");
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let path = |path: &str| format!("get --raw /api/v1/nodes/board-1/proxy/{path}");
    let proxied = |at: &str| plane.line(&path(at)).ok();
    // The container takes its memory after it was started.
    let summary = plane.wait_for(&path("stats/summary"), |text| {
        let working_set = &parse(text)["pods"][0]["containers"][0]["memory"]["workingSetBytes"];
        working_set.as_u64() > Some(20 << 20)
    });
    let summary = parse(&summary);
    assert_eq!(summary["node"]["nodeName"], "board-1");
    assert!(summary["node"]["memory"]["workingSetBytes"].as_u64() > Some(1 << 20), "{summary}");
    assert!(summary["node"]["fs"]["capacityBytes"].as_u64() > Some(1 << 20), "{summary}");
    let shown = &summary["pods"][0];
    assert_eq!(shown["podRef"]["name"], "web");
    let container = &shown["containers"][0];
    assert!(container["cpu"]["usageCoreNanoSeconds"].as_u64() > Some(0), "{summary}");
    let metrics = proxied("metrics/resource");
    let line = "container_memory_working_set_bytes{container=\"app\",namespace=\"default\",pod=\"web\"} ";
    assert!(metrics.contains(line) && metrics.contains("node_cpu_usage_seconds_total "), "{metrics}");
    let metrics = proxied("metrics");
    assert!(metrics.contains("kubelet_running_pods 1\n"), "{metrics}");
    let pods = parse(&proxied("pods"));
    assert_eq!((&pods["kind"], &pods["items"][0]["metadata"]["name"]), (&"PodList".into(), &"web".into()));
    assert_eq!(proxied("healthz"), "ok");
    let why = plane.line(&path("configz")).refused();
    assert!(why.contains("not find") || why.contains("not found"), "{why}");
    let cadvisor = proxied("metrics/cadvisor");
    let value = |name: &str, labels: &[&str]| {
        let of_line = |line: &&str| line.starts_with(name) && labels.iter().all(|label| line.contains(label));
        let line =
            cadvisor.lines().find(of_line).unwrap_or_else(|| panic!("{name} {labels:?} in {cadvisor}"));
        let values = line.rsplit_once("} ").expect("it has labels").1;
        values.split(' ').next().expect("a value").parse::<f64>().expect("a number")
    };
    let of_container = ["container=\"app\"", "namespace=\"default\"", "pod=\"web\""];
    assert!(value("container_memory_working_set_bytes{", &of_container) > f64::from(20 << 20), "{cadvisor}");
    assert!(value("container_cpu_usage_seconds_total{", &of_container) > 0.0, "{cadvisor}");
    let of_pod = ["container=\"\"", "interface=\"eth0\"", "namespace=\"default\"", "pod=\"web\""];
    value("container_network_receive_bytes_total{", &of_pod);
    value("container_network_transmit_bytes_total{", &of_pod);
    assert!(value("container_cpu_usage_seconds_total{", &["id=\"/\""]) > 0.0, "{cadvisor}");

    // Probes are counted, and pods that do not run are no running pods.
    plane.apply(
        &(pod("probed", "wait, /end")
            + "    readinessProbe: {periodSeconds: 1, exec: {command: [/bin/demo, exit, '0']}}
    livenessProbe: {periodSeconds: 1, failureThreshold: 1000, exec: {command: [/bin/demo, exit, '1']}}
---
apiVersion: v1
kind: Pod
metadata: {name: done}
spec:
  restartPolicy: Never
  containers: [{name: app, image: localhost/demo:1, imagePullPolicy: IfNotPresent, args: [exit, '0']}]
"),
    );
    let uid = plane.wait_for("get pod probed -o jsonpath={.metadata.uid}", |uid| !uid.is_empty());
    let counter = |kind: &str, result: &str| {
        format!(
            "prober_probe_total{{container=\"app\",namespace=\"default\",pod=\"probed\",pod_uid=\"{uid}\",\
             probe_type=\"{kind}\",result=\"{result}\"}} "
        )
    };
    plane.wait_for(&path("metrics/probes"), |text| {
        text.contains(&counter("Readiness", "successful")) && text.contains(&counter("Liveness", "failed"))
    });
    plane.wait_for("get pod done -o jsonpath={.status.phase}", |phase| phase == "Succeeded");
    let running = parse(&proxied("runningpods/"));
    let names: Vec<_> =
        running["items"].as_array().expect("pods").iter().map(|pod| &pod["metadata"]["name"]).collect();
    assert_eq!((&running["kind"], names), (&"PodList".into(), vec![&"probed".into(), &"web".into()]));
    plane.line("delete pod probed --grace-period=1").ok();
    plane.wait_for(&path("metrics/probes"), |text| !text.contains("probed"));

    // A token may read metrics if its service account may, and nothing else.
    for account in ["other", "reader"] {
        plane.line(&format!("create serviceaccount {account}")).ok();
    }
    plane.line("create clusterrole metrics --verb=get --resource=nodes/metrics").ok();
    plane
        .line("create clusterrolebinding metrics --clusterrole=metrics --serviceaccount=default:reader")
        .ok();
    let with_token = |account: &str, path: &str| {
        let token = plane.line(&format!("create token {account}")).ok();
        get(&plane, &node, &NO_CERTIFICATE, path, &format!("Authorization: Bearer {}\r\n", token.trim()))
    };
    let text = with_token("other", "/metrics/resource");
    let why = "Forbidden (user=system:serviceaccount:default:other, verb=get, resource=nodes, \
               subresource(s)=[metrics])";
    assert!(text.starts_with("HTTP/1.1 403 ") && text.contains(why), "{text}");
    let text = with_token("reader", "/metrics/resource");
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("node_cpu_usage_seconds_total"), "{text}");
    for path in ["/stats/summary", "/containerLogs/default/web/app", "/exec/default/web/app", "/pods"] {
        let text = with_token("reader", path);
        assert!(text.starts_with("HTTP/1.1 403 "), "{path}: {text}");
    }
    // Without a certificate or a valid token, nothing is served.
    for header in ["", "Authorization: Bearer abc\r\n", "Authorization: Basic abc\r\n"] {
        let text = get(&plane, &node, &NO_CERTIFICATE, "/healthz", header);
        assert!(text.starts_with("HTTP/1.1 401 ") && text.ends_with("Unauthorized"), "{header}: {text}");
    }
}

/// A client certificate for a subject, and its key: from the cluster's authority, or from another one. Returns the
/// arguments of `openssl s_client`.
fn certificate(plane: &ControlPlane, name: &str, subject: &str, is_of_cluster: bool) -> Vec<String> {
    let authority = plane.authority();
    let file = |name: String| authority.with_file_name(name).display().to_string();
    let (key, certificate) = (file(format!("{name}.key")), file(format!("{name}.crt")));
    let mut command = Command::new("openssl");
    command.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split(' '));
    command.args(["-subj", subject, "-extensions", "client", "-config", &file("openssl.cnf".to_owned())]);
    command.args(["-keyout", &key, "-out", &certificate]);
    if is_of_cluster {
        command.args(["-CA", &file("ca.crt".to_owned()), "-CAkey", &file("ca.key".to_owned())]);
    }
    let output = command.output().expect("openssl can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ["-cert", &certificate, "-key", &key].map(str::to_owned).to_vec()
}

/// The serial number of the certificate with which a node serves.
fn serial(plane: &ControlPlane, node: &ClusterNode) -> String {
    let mut command = Command::new("sh");
    let client = format!("openssl s_client -connect {}:10250 </dev/null 2>/dev/null", node.address);
    plane.namespace().give_to(command.args(["-c", &format!("{client} | openssl x509 -noout -serial")]));
    Ran::with_input(command, "").stdout
}

#[test]
fn the_certificate_is_replaced_before_it_expires_and_nobody_notices() {
    // With the five minutes by which the cluster dates a certificate back, this one lives for seven: it is due at most
    // 78 s after it was signed, and may be due at once.
    let plane = ControlPlane::start_with(&["--cluster-signing-duration=2m"]);
    let node = join(&plane);
    run(&plane, "web", "print, one, then, wait, /end");
    let first = serial(&plane, &node);
    assert!(first.starts_with("serial="), "{first:?}");
    node.device.wait_within(Duration::from_secs(180), "another certificate", || {
        for request in ClusterNode::server_requests(&plane, "board-1") {
            plane.line(&format!("certificate approve {request}")).ok();
        }
        ![String::new(), first.clone()].contains(&serial(&plane, &node))
    });
    // The API server verifies the certificate.
    assert_eq!(plane.wait_for("logs web", |log| !log.is_empty()), "one\n");
    let web = node.device.pod("web");
    assert!(web.container("app").is_running() && web.container("app").restart_count() == 0);
}

#[test]
fn a_request_that_nobody_approves_is_reported_and_denied_ones_are_repeated_later_and_later() {
    let plane = ControlPlane::start();
    let node = ClusterNode::join(&plane, "board-1");
    run(&plane, "web", "print, one, then, wait, /end");
    let events = || node.device.nodlet(["events"]).stdout;
    let mut request = wait_for_request(&plane, &node);
    let waits = format!("the certificate request {request} of the kubelet's server waits to be approved");
    node.device.wait_for("the event of the board", || events().contains(&waits));
    plane.wait_for("get events --all-namespaces -o jsonpath={.items[*].message}", |all| all.contains(&waits));
    for least in [0.8, 1.6, 3.2, 6.4] {
        let denied = Instant::now();
        plane.line(&format!("certificate deny {request}")).ok();
        request = wait_for_request(&plane, &node);
        let after = denied.elapsed();
        println!("another request after {after:?}");
        assert!(after >= Duration::from_secs_f64(least), "{after:?}");
    }
    let denied = "has no new certificate of the cluster: the certificate request is \"Denied\"";
    assert_eq!(node.device.agent_log().matches(denied).count(), 1, "each reason is reported once");
    assert!(events().contains(denied));
    let web = node.device.pod("web");
    assert!(web.container("app").is_running() && web.container("app").restart_count() == 0);
    let refused = plane.line("logs web");
    assert!(refused.stderr.contains("certificate"), "the API server verifies the board: {}", refused.stderr);
    node.approve_server(&plane, "board-1");
    assert_eq!(plane.wait_for("logs web", |log| !log.is_empty()), "one\n");
}

#[test]
fn clients_that_attack_the_server_keep_nobody_out() {
    let plane = ControlPlane::start();
    let node = join(&plane);
    run(&plane, "web", "print, began, then, wait, /end");
    let born = node.device.pod("web").born("app");

    // The certificate of another node is valid, and allows nothing.
    let other = certificate(&plane, "other", "/O=system:nodes/CN=system:node:other", true);
    let text = get(&plane, &node, &other, "/containerLogs/default/web/app", "");
    assert!(text.starts_with("HTTP/1.1 403 ") && text.contains("user=system:node:other"), "{text}");
    let admin = certificate(&plane, "root", "/O=system:masters/CN=root", true);
    let text = get(&plane, &node, &admin, "/containerLogs/default/web/app", "");
    assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("began"), "{text}");
    let foreign = certificate(&plane, "foreign", "/O=system:masters/CN=root", false);
    let ran =
        Ran::with_input(openssl(&plane, &node, &foreign), "GET /healthz HTTP/1.1\r\nHost: board\r\n\r\n");
    assert!(ran.stdout.is_empty() && ran.stderr.contains("alert"), "{ran:?}");
    let ran = Ran::with_input(openssl(&plane, &node, &["-tls1_2"]), "");
    assert!(ran.stderr.contains("alert"), "{ran:?}");

    // Malformed, huge and unfinished requests.
    let huge = format!("X-Huge: {}\r\n", "x".repeat(200_000));
    let text = get(&plane, &node, &admin, "/healthz", &huge);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431 "), "{text}");
    let body =
        "POST /pods HTTP/1.1\r\nHost: board\r\nConnection: close\r\nContent-Length: 1000000000\r\n\r\nx";
    let text = Ran::with_input(openssl(&plane, &node, &admin), body).stdout;
    assert!(text.starts_with("HTTP/1.1 405 "), "{text}");
    for (path, code) in [
        ("/exec/default/web/app?command=sh&output=1", 400),
        ("/exec/default/web/uid/app?command=sh&output=1", 404),
        ("/exec/default/absent/app?command=sh&output=1", 404),
        ("/containerLogs/default/absent/app", 404),
        ("/containerLogs/default/web/absent", 404),
        ("/containerLogs/default/web/app?tailLines=x", 400),
        ("/run/default/web/app", 404),
        ("/%2e%2e/api/v1/pods", 404),
        ("/api/v1/pods", 404),
        ("/nodlet/push", 404),
    ] {
        let text = get(&plane, &node, &admin, path, "");
        assert!(text.starts_with(&format!("HTTP/1.1 {code} ")), "{path}: {text}");
    }

    // More clients than there are places for that send a request slowly: a byte now and then, of the head or of a body.
    let memory = || Memory::of(node.device.agent_pid()).now;
    let before = memory();
    let body = "POST /exec/default/web/app?command=x&output=1 HTTP/1.1\r\nHost: board\r\nContent-Length: 1000000\r\n\r\n";
    let head = "GET /healthz HTTP/1.1\r\nHost: board\r\nX-Slow: ";
    let start = |request: &str| {
        let mut command = openssl(&plane, &node, &admin);
        command.stdin(Stdio::piped()).stderr(Stdio::null());
        let mut client = Background::start(command);
        let _ = client.stdin.as_mut().expect("it is piped").write_all(request.as_bytes());
        client
    };
    let mut slow: Vec<_> = (0..80).map(|number| start(if number % 2 == 0 { body } else { head })).collect();
    for _ in 0..3 {
        assert_eq!(plane.wait_for("logs web", |_| true), "began\n");
        // The server may have ended the connection.
        slow.iter_mut().for_each(|client| drop(client.stdin.as_mut().map(|stdin| stdin.write_all(b"x"))));
    }
    println!("{} KiB before, {} KiB beside slow clients", before, memory());
    assert!(memory() < before + 4096, "{} KiB", memory());
    drop(slow);

    // A thousand clients that say nothing, or begin a handshake and do not end it.
    let address = format!("{}:10250", node.address);
    let clients = plane.namespace().call(move || {
        let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
        let mut clients = Vec::new();
        for number in 0..1000 {
            let mut stream = std::net::TcpStream::connect(&address).expect("it listens");
            let sent = if number % 2 == 0 { &hello[..number % 11] } else { &[] };
            // The server may have closed it already.
            let _ = stream.write_all(sent);
            clients.push(stream);
        }
        clients
    });
    assert_eq!(plane.wait_for("logs web", |_| true), "began\n");
    assert_eq!(node.verb(&["logs", "web"]).ok(), "began\n");
    let descriptors =
        || std::fs::read_dir(format!("/proc/{}/fd", node.device.agent_pid())).map_or(0, Iterator::count);
    assert!(descriptors() < 200, "{}", descriptors());
    drop(clients);
    node.device.wait_for("the clients to be gone", || descriptors() < 60);
    assert_eq!(plane.wait_for("logs web", |_| true), "began\n");
    assert_eq!(node.device.pod("web").born("app"), born);
}

#[test]
fn tokens_never_become_answers_about_access() {
    let plane = ControlPlane::start();
    let node = join(&plane);
    run(&plane, "web", "print, began, then, wait, /end");
    let root = certificate(&plane, "root", "/O=system:masters/CN=root", true);
    let assert_log_is_read = || {
        let text = get(&plane, &node, &root, "/containerLogs/default/web/app", "");
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains("began"), "{text}");
    };
    // The text of the review that the board makes of a client, as the token of a client without a credential.
    let review = |user: &str| {
        json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": user,
                "groups": ["system:masters", "system:authenticated"],
                "resourceAttributes":
                    { "verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": "board-1" },
            },
        })
    };
    let attack = |user: &str| {
        let header = format!("Authorization: Bearer {}\r\n", review(user));
        let text = get(&plane, &node, &NO_CERTIFICATE, "/containerLogs/default/web/app", &header);
        assert!(text.starts_with("HTTP/1.1 401 "), "{text}");
    };
    for user in ["kube-apiserver-kubelet-client", "root"] {
        attack(user);
    }
    assert_eq!(plane.line("logs web").ok(), "began\n");
    assert_log_is_read();

    // The approval outlasts the same attack, and more tokens than there are places for answers.
    attack("root");
    let requests: String = (0..300)
        .map(|number| {
            let end = if number == 299 { "Connection: close\r\n" } else { "" };
            format!("GET /pods HTTP/1.1\r\nHost: board\r\nAuthorization: Bearer t{number}\r\n{end}\r\n")
        })
        .collect();
    let answers = Ran::with_input(openssl(&plane, &node, &NO_CERTIFICATE), &requests).stdout;
    assert_eq!(answers.matches("HTTP/1.1 401 ").count(), 300, "{answers}");
    assert_log_is_read();
}

#[test]
fn kubectl_top_shows_what_metrics_server_reads_of_the_node() {
    let mut plane = ControlPlane::start_with_flags(&[], &["--enable-aggregator-routing"]);
    let node = join(&plane);
    run(&plane, "web", "hog, '20', then, wait, /end");
    plane.serve_metrics();
    // The first usage of a processor is the difference between two measurements.
    let shown = plane.wait_for("top pod web --containers --no-headers", |shown| shown.contains("web"));
    let columns: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(columns[..2], ["web", "app"], "{shown}");
    let mib: u64 = columns[3].strip_suffix("Mi").and_then(|mib| mib.parse().ok()).expect("a number of Mi");
    assert!((20..200).contains(&mib), "{shown}");
    let shown = plane.wait_for("top node board-1 --no-headers", |shown| shown.contains("board-1"));
    assert!(!shown.contains("unknown"), "{shown}");
    assert!(node.device.agent_log().contains("has a new certificate"), "metrics-server verifies it");
}
