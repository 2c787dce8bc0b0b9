//! Services of a board without a cluster: names and addresses that pods share, as with kube-proxy and CoreDNS. The agent
//! has a network namespace of its own, which a veth pair connects with another one, the world.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nodlet_tests::{Device, Namespace, TestPod, manifest};
use serde_json::Value;

mod dns;
mod life;

/// The board's address on the link to the world.
const BOARD: &str = "192.0.2.2";
/// A machine on the board's link.
const NEIGHBOUR: &str = "192.0.2.1";

/// A device on a board with one link, `eth0`, to the world, and without a default route: the board is offline.
fn board() -> (Device, Namespace, Namespace) {
    board_with([])
}

fn board_with<const N: usize>(arguments: [&str; N]) -> (Device, Namespace, Namespace) {
    let mut device = Device::new();
    let (board, world) = (device.own_network(), Namespace::new());
    board.connect("eth0", &world, "lan0");
    board.ip(&format!("address add {BOARD}/24 dev eth0"));
    world.ip(&format!("address add {NEIGHBOUR}/24 dev lan0"));
    device.agent_arguments(arguments);
    device.start_agent_with_demo();
    (device, board, world)
}

/// A Service with the selector `app: NAME` for the port 80, which leads to 8080, and more lines of YAML in its spec.
fn service(name: &str, spec: &str) -> String {
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  selector: {{app: {name}}}\n  \
         ports: [{{port: 80, targetPort: 8080}}]\n{spec}"
    )
}

/// A pod with the label `app: APP` that serves at port 8080, and is ready when it does.
fn server(name: &str, app: &str, spec: &str) -> String {
    let probe =
        "readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, failureThreshold: 1}";
    let pod = manifest::single(name, "serve 8080 /srv", probe, spec);
    manifest::with_metadata(&pod, &format!("labels: {{app: {app}}}"))
}

/// Runs a pod of [`server`] until it is ready.
#[track_caller]
fn run_server<'a>(device: &'a Device, name: &'a str, app: &str) -> TestPod<'a> {
    device.write_pod(name, &server(name, app, "")).wait_ready()
}

/// The Service as the API shows it.
#[track_caller]
fn shown(device: &Device, name: &str) -> Value {
    device.get(&format!("/api/v1/namespaces/default/services/{name}")).expect("it is there")
}

#[track_caller]
fn cluster_ip(device: &Device, name: &str) -> String {
    shown(device, name)["spec"]["clusterIP"].as_str().expect("it has one").to_owned()
}

/// The names of the servers that answer `count` requests from a pod.
#[track_caller]
fn answers(client: &TestPod<'_>, url: &str, count: usize) -> Vec<String> {
    let mut names: Vec<String> = (0..count)
        .map(|_| client.demo("app", &format!("get {url}/hostname")).ok().trim().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Waits until requests from a pod are answered by these servers.
#[track_caller]
fn wait_answers(device: &Device, client: &TestPod<'_>, url: &str, expected: &[&str]) {
    device.wait_for(&format!("{url} to be answered by {expected:?}"), || {
        let mut names = Vec::new();
        for _ in 0..20 {
            let answer = client.exec("app", ["/bin/demo", "get", &format!("{url}/hostname")]);
            names.push(answer.stdout.trim().to_owned());
        }
        names.sort();
        names.dedup();
        names == expected
    });
}

#[test]
fn pods_of_a_board_find_each_other_by_the_name_of_a_service_at_an_address_that_never_changes() {
    let (device, board, _world) = board();
    assert_eq!(board.tables(), [""; 0], "there is no table without a Service");
    run_server(&device, "web-1", "web");
    run_server(&device, "web-2", "web");
    let client = device.run_pod("client", "sleep").wait_ready();
    let resolv_conf = client.demo("app", "cat /etc/resolv.conf").ok();
    let lines: Vec<&str> = resolv_conf.lines().collect();
    assert!(
        lines[0].starts_with("search default.svc.cluster.local svc.cluster.local cluster.local"),
        "{resolv_conf}"
    );
    let servers = lines.iter().filter(|line| line.starts_with("nameserver ")).count();
    assert_eq!((servers, lines.last().copied()), (1, Some("options ndots:5")), "{resolv_conf}");
    client.demo("app", "resolve web").refused();

    device.apply(&service("web", ""));
    let address = cluster_ip(&device, "web");
    for name in ["web", "web.default", "web.default.svc", "web.default.svc.cluster.local"] {
        assert_eq!(client.demo("app", &format!("resolve {name}")).ok(), format!("{address}\n"), "{name}");
    }
    assert_eq!(answers(&client, "http://web", 40), ["web-1", "web-2"]);
    assert_eq!(answers(&client, &format!("http://{address}"), 40), ["web-1", "web-2"]);
    // Servers see the pod's own address, and a server reaches itself.
    assert_eq!(client.demo("app", "get http://web/peer").ok(), format!("{}\n", client.ip()));
    assert_eq!(answers(&device.pod("web-1"), "http://web", 40), ["web-1", "web-2"]);
    // The board itself reaches it, too, though it has no default route.
    assert_eq!(board.demo(&format!("get http://{address}/healthz")), Ok("ok\n".to_owned()));

    // A pod that begins later has the variables of the Service, unless its own container sets them.
    let pod = manifest::single("late", "sleep", "env: [{name: WEB_SERVICE_PORT, value: own}]", "");
    let env = device.write_pod("late", &pod).wait_ready().demo("app", "env").ok();
    assert!(
        env.contains(&format!("WEB_SERVICE_HOST={address}\n")) && env.contains("WEB_SERVICE_PORT=own\n"),
        "{env}"
    );
    let without = device.run_pod_with("without", "sleep", "enableServiceLinks: false").wait_ready();
    assert!(!without.demo("app", "env").ok().contains("WEB_SERVICE"));

    device.nodlet(["delete", "service", "web"]).ok();
    device.wait_for("the table to go", || !board.tables().iter().any(|name| name.contains("services")));
    client.demo("app", "resolve web").refused();
}

#[test]
fn readiness_and_the_end_of_a_pod_take_it_out_of_a_service_at_once_and_back() {
    let (device, _board, _world) = board();
    device.apply(&service("web", ""));
    let first = run_server(&device, "web-1", "web");
    run_server(&device, "web-2", "web");
    let client = device.run_pod("client", "sleep").wait_ready();
    wait_answers(&device, &client, "http://web", &["web-1", "web-2"]);
    first.tell("app", "/tmp/sick");
    device.wait_for("the probe to fail", || !first.is_ready());
    assert_eq!(answers(&client, "http://web", 20), ["web-2"]);
    first.demo("app", "rm /tmp/sick").ok();
    first.wait_ready();
    assert_eq!(answers(&client, "http://web", 40), ["web-1", "web-2"]);

    // A pod that ends gets no new connection, though it still serves.
    let stubborn =
        manifest::single("web-3", "ignore-term then serve 8080 /srv", "", "terminationGracePeriodSeconds: 5");
    let stubborn = manifest::with_metadata(&stubborn, "labels: {app: web}");
    device.write_pod("web-3", &stubborn).wait_ready();
    device.remove_manifest("web-3.yaml");
    device.wait_for("the pod to terminate", || {
        !device.pod("web-3").get("/metadata/deletionTimestamp").is_null()
    });
    for _ in 0..20 {
        assert_ne!(client.demo("app", "get http://web/hostname").ok(), "web-3\n");
    }
    // Without an endpoint, connections are refused at once.
    device.remove_pod("web-1");
    device.remove_pod("web-2");
    device.wait_for("the endpoints to go", || {
        client.exec("app", ["/bin/demo", "get", "http://web/"]).stderr.contains("refused")
    });
    let began = Instant::now();
    client.demo("app", "get http://web/").refused_with("refused");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Requests for the host name behind an address, one after another, each by a connection of its own.
struct Requests {
    ends: Arc<AtomicBool>,
    answers: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<()>,
}

impl Requests {
    fn begin(from: &Namespace, address: &str) -> Requests {
        let (ends, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (end, list, address) = (ends.clone(), answers.clone(), address.to_owned());
        let thread = from.call(move || {
            std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    let answer = connect(&address).and_then(|client| host_name(client, ""));
                    list.lock()
                        .expect("no panic")
                        .push(answer.unwrap_or_else(|error| format!("failed: {error}")));
                }
            })
        });
        Requests { ends, answers, thread }
    }

    /// Waits until requests have had this answer.
    #[track_caller]
    fn wait(&self, device: &Device, answer: &str) {
        device.wait_for(&format!("requests to reach {answer}"), || {
            self.answers.lock().expect("no panic").iter().any(|one| one == answer)
        });
    }

    /// The different answers, in the order in which each came first.
    fn end(self) -> Vec<String> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().expect("it ends");
        let mut found: Vec<String> = Vec::new();
        for answer in self.answers.lock().expect("no panic").drain(..) {
            if !found.contains(&answer) {
                found.push(answer);
            }
        }
        found
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    Ok(client)
}

/// Requests the host name of the server by a connection, by which `sent` was sent already.
fn host_name(mut client: TcpStream, sent: &str) -> io::Result<String> {
    client.write_all(HOST_NAME.strip_prefix(sent).expect("the beginning").as_bytes())?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").filter(|_| answer.starts_with("HTTP/1.1 200 "));
    body.map(|(_, body)| body.trim().to_owned()).ok_or_else(|| io::Error::other(answer.clone()))
}

const HOST_NAME: &str = "GET /hostname HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";

#[test]
fn rolling_pods_lose_no_request_of_a_client() {
    let (device, board, _world) = board();
    device.apply(&service("web", ""));
    // As an application that serves until connections have left it.
    let serves_on = "lifecycle: {preStop: {sleep: {seconds: 2}}}\n    readinessProbe:";
    let pod = |name: &str| server(name, "web", "").replace("readinessProbe:", serves_on);
    device.write_pod("web-0", &pod("web-0")).wait_ready();
    let address = format!("{}:80", cluster_ip(&device, "web"));
    device.wait_for("the endpoint", || {
        board.call({
            let address = address.clone();
            move || connect(&address).is_ok()
        })
    });
    let requests = Requests::begin(&board, &address);
    requests.wait(&device, "web-0");
    for round in 1..4 {
        let (old, new) = (format!("web-{}", round - 1), format!("web-{round}"));
        device.write_pod(&new, &pod(&new)).wait_ready();
        device.remove_pod(&old);
        device.pod(&old).wait_gone();
        requests.wait(&device, &new);
    }
    assert_eq!(requests.end(), ["web-0", "web-1", "web-2", "web-3"]);
}

#[test]
fn a_node_port_leads_from_outside_to_the_pods_and_no_pod_and_no_process_shares_it() {
    let (device, board, world) = board();
    run_server(&device, "web", "web");
    device.apply(&service("web", "type: NodePort"));
    let port = shown(&device, "web")["spec"]["ports"][0]["nodePort"].as_u64().expect("it has one");
    assert!((30000..=32767).contains(&port), "{port}");
    device.wait_for("the port to be open", || {
        world.demo(&format!("get http://{BOARD}:{port}/healthz")) == Ok("ok\n".into())
    });
    // A pod cannot have the port, and is told who has it.
    let taken =
        manifest::single("taken", "sleep", &format!("ports: [{{containerPort: 1, hostPort: {port}}}]"), "");
    let taken = device.write_pod("taken", &taken);
    taken.wait_phase("Failed");
    let message = taken.status()["message"].to_string();
    assert!(message.contains(&format!("{port}/TCP is taken by service default/web")), "{message}");
    // A Service cannot have the port of a pod, or of a process of the board.
    let holder = manifest::single("holder", "sleep", "ports: [{containerPort: 1, hostPort: 30500}]", "");
    device.write_pod("holder", &holder).wait_ready();
    let _listens = board.call(|| std::net::TcpListener::bind("0.0.0.0:30501").expect("the port is free"));
    for (port, owner) in [(30500, "hostPort of pod default/holder"), (30501, "process of the board")] {
        let wanted = service("other", "type: NodePort")
            .replace("targetPort: 8080", &format!("targetPort: 8080, nodePort: {port}"));
        device.reject(&wanted, owner);
    }
    // Servers see the client's address if the policy says so.
    let local =
        service("local", "type: NodePort\nexternalTrafficPolicy: Local").replace("app: local", "app: web");
    device.apply(&local);
    let port = shown(&device, "local")["spec"]["ports"][0]["nodePort"].as_u64().expect("it has one");
    device.wait_for("the second port to be open", || {
        world.demo(&format!("get http://{BOARD}:{port}/peer")) == Ok(format!("{NEIGHBOUR}\n"))
    });
}

#[test]
fn a_load_balancer_has_the_boards_address_and_external_addresses_need_the_operators_consent() {
    let (device, board, world) = board_with(["--external-ip-ranges", "198.51.100.0/24"]);
    run_server(&device, "web", "web");
    device.apply(&service("web", "type: LoadBalancer"));
    device.wait_for("the address of the load balancer", || {
        shown(&device, "web")["status"]["loadBalancer"]["ingress"][0]["ip"] == BOARD
    });
    device.wait_for("the port to be open", || {
        world.demo(&format!("get http://{BOARD}:80/healthz")) == Ok("ok\n".into())
    });
    device.apply(&service("far", "externalIPs: [198.51.100.7]").replace("app: far", "app: web"));
    world.ip(&format!("route add 198.51.100.7/32 via {BOARD}"));
    device.wait_for("the external address", || {
        world.demo("get http://198.51.100.7:80/healthz") == Ok("ok\n".into())
    });
    device.reject(&service("other", "externalIPs: [203.0.113.7]"), "spec.externalIPs[0]");
    drop(board);
}

#[test]
fn headless_services_external_names_and_affinity() {
    let (device, _board, _world) = board();
    let first = run_server(&device, "web-1", "web");
    let second = run_server(&device, "web-2", "web");
    let client = device.run_pod("client", "sleep").wait_ready();
    device.apply(&service("pods", "clusterIP: None").replace("app: pods", "app: web"));
    let mut addresses = [first.ip(), second.ip()];
    addresses.sort_by_key(|address| address.parse::<std::net::Ipv4Addr>().expect("an address"));
    device.wait_for("the addresses of both pods", || {
        client.exec("app", ["/bin/demo", "resolve", "pods"]).stdout
            == format!("{}\n{}\n", addresses[0], addresses[1])
    });
    device.apply(&service("web", ""));
    device.apply("apiVersion: v1\nkind: Service\nmetadata: {name: alias}\nspec: {type: ExternalName, externalName: web.default.svc.cluster.local}\n");
    let address = cluster_ip(&device, "web");
    assert_eq!(client.demo("app", "resolve alias").ok(), format!("{address}\n"));

    device.apply(&service("sticky", "sessionAffinity: ClientIP").replace("app: sticky", "app: web"));
    assert_eq!(answers(&client, "http://sticky", 20).len(), 1);
}

#[test]
fn an_offline_board_resolves_its_names_in_milliseconds() {
    let (device, _board, _world) = board();
    run_server(&device, "web", "web");
    device.apply(&service("web", ""));
    let client = device.run_pod("client", "sleep").wait_ready();
    let timed = |name: &str| {
        let began = Instant::now();
        let ran = client.exec("app", ["/bin/demo", "resolve", name]);
        (ran.stdout.to_owned(), began.elapsed())
    };
    // The process that is executed takes the most of it.
    let (_, process) = {
        let began = Instant::now();
        client.demo("app", "hostname").ok();
        ((), began.elapsed())
    };
    let (found, took) = timed("web");
    assert_eq!(found, format!("{}\n", cluster_ip(&device, "web")));
    assert!(took < process + Duration::from_millis(500), "{took:?}, and a process alone {process:?}");
    // A name that no Service has.
    let (found, took) = timed("missing.default.svc.cluster.local");
    assert_eq!(found, "");
    assert!(took < process + Duration::from_millis(500), "{took:?}, and a process alone {process:?}");
}

#[test]
fn services_are_refused_when_they_are_off_and_pods_have_the_machines_name_servers() {
    let mut device = Device::new();
    let file = device.write_file("/machine.conf", "nameserver 192.0.2.53\nsearch lan\n");
    device.agent_arguments(["--services", "off", "--resolv-conf", file.to_str().expect("the path is text")]);
    device.start_agent_with_demo();
    let client = device.run_pod("client", "sleep").wait_ready();
    assert_eq!(client.demo("app", "cat /etc/resolv.conf").ok(), "search lan\nnameserver 192.0.2.53\n");
    device.reject(&service("web", ""), "started without Services");
}
