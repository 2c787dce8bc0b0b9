//! How a board gets into a cluster and stays in it: by a bootstrap kubeconfig in its image, after its certificate has
//! expired, with a wrong clock, and without a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_tests::{Background, ClusterNode, ControlPlane, Device, Ran};

/// A bootstrap kubeconfig for this server and CA.
fn kubeconfig(server: &str, authority: &Path) -> String {
    let output = Command::new("openssl").args(["base64", "-A", "-in"]).arg(authority).output();
    let authority = String::from_utf8(output.expect("openssl can be run").stdout).expect("base64");
    format!(
        "apiVersion: v1
kind: Config
current-context: bootstrap
clusters:
- name: cluster
  cluster:
    server: https://{server}
    certificate-authority-data: {authority}
contexts:
- name: bootstrap
  context: {{cluster: cluster, user: board}}
users:
- name: board
  user: {{token: abcdef.0123456789abcdef}}
"
    )
}

/// Makes the certificate of a CA that is valid from `from`, as `date` writes it.
fn authority_from(device: &Device, from: &str) -> PathBuf {
    let directory = device.path("/authority");
    fs::create_dir_all(&directory).expect("created");
    let script = format!(
        "set -e
        openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=kubernetes -keyout ca.key -out ca.csr
        printf '%s\\n' '[ca]' 'default_ca = own' '[own]' 'database = index' 'serial = serial' 'new_certs_dir = .' 'policy = any' \
          '[any]' 'commonName = supplied' '[authority]' 'basicConstraints = critical,CA:TRUE' > ca.cnf
        : > index; echo 01 > serial
        openssl ca -batch -config ca.cnf -selfsign -keyfile ca.key -in ca.csr -out ca.crt -extensions authority \
          -md sha256 -notext -startdate $(date -u -d '{from}' +%Y%m%d%H%M%SZ) -enddate 20491231235959Z"
    );
    let output = Command::new("sh").arg("-c").arg(script).current_dir(&directory).output().expect("sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    directory.join("ca.crt")
}

fn put_kubeconfig(device: &Device, text: &str) {
    device.write_file("/etc/nodlet/bootstrap-kubeconfig", text);
}

/// The messages of the node's events with this reason.
fn node_events(device: &Device, reason: &str) -> Vec<String> {
    let events = device.get("/api/v1/events").expect("the API lists events");
    let events = events["items"].as_array().expect("a list").iter().filter(|event| event["reason"] == reason);
    events.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Counts the lines of the log with this text.
fn logged(device: &Device, text: &str) -> usize {
    device.agent_log().lines().filter(|line| line.contains(text)).count()
}

#[test]
fn a_board_whose_clock_is_behind_waits_for_it_says_so_once_and_runs_its_pods() {
    let mut device = Device::new();
    let authority = authority_from(&device, "15 seconds");
    put_kubeconfig(&device, &kubeconfig("127.0.0.1:1", &authority));
    device.start_agent_with_demo();
    device.run_pod("web", "print hello then sleep").wait_ready();
    device.wait_for("the clock to be named", || logged(&device, "the clock of this board is wrong") == 1);
    let events = node_events(&device, "ClusterNotFollowed");
    assert!(events.len() == 1 && events[0].contains("is valid from 20"), "{events:?}");
    assert_eq!(logged(&device, "failed to enrol"), 0, "nothing is tried before");
    // The clock gets there: nothing else wakes the task.
    device.wait_for("an attempt", || logged(&device, "failed to enrol in the cluster at 127.0.0.1:1") == 1);
    let events = node_events(&device, "ClusterEnrolmentFailed");
    assert!(events[0].contains("failed to connect to 127.0.0.1:1: Connection refused"), "{events:?}");
    assert_eq!(logged(&device, "the clock of this board is wrong"), 1);

    // Whoever joins by hand gets the same reason.
    let why = join_at(&device, "127.0.0.1:1", &"0".repeat(64)).stderr;
    assert!(why.contains("failed to connect to 127.0.0.1:1: Connection refused"), "{why}");
    assert!(device.pod("web").container("app").is_running());
}

/// Starts a server of a `cluster-info` with this CA: openssl, which serves files. Returns it with its port.
fn serve_cluster_info(device: &Device, authority: &Path) -> (Background, u16) {
    let config = kubeconfig("127.0.0.1:1", authority).replace("user: board", "user: ''");
    let body = serde_json::json!({"kind": "ConfigMap", "data": {"kubeconfig": config}}).to_string();
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    let info = "/authority/api/v1/namespaces/kube-public/configmaps/cluster-info";
    device.write_file(info, head + &body);
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = port.expect("a port").port();
    let mut command = Command::new("openssl");
    command.args(["s_server", "-quiet", "-HTTP", "-cert", "ca.crt", "-key", "ca.key", "-accept"]);
    command.arg(port.to_string()).current_dir(device.path("/authority")).stdin(std::process::Stdio::null());
    let server = Background::start(command);
    device.wait_for("the server", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    (server, port)
}

#[test]
fn a_join_with_a_clock_that_is_behind_fails_and_names_both_times() {
    let device = Device::new();
    let authority = authority_from(&device, "3 hours");
    let (_server, port) = serve_cluster_info(&device, &authority);
    let script = "openssl x509 -in ca.crt -pubkey -noout | openssl pkey -pubin -outform der | sha256sum";
    let directory = authority.parent().expect("it has a directory");
    let hash = Command::new("sh").args(["-c", script]).current_dir(directory).output().expect("sh runs");
    let hash = String::from_utf8_lossy(&hash.stdout[..64]);
    let why = join_at(&device, &format!("127.0.0.1:{port}"), &hash).refused();
    println!("{why}");
    assert!(
        why.contains("the clock of this board is wrong: it shows 20") && why.contains("is valid from 20"),
        "{why}"
    );
    assert!(!device.path("/var/lib/nodlet/cluster.json").exists());
}

#[test]
fn a_bootstrap_kubeconfig_with_an_error_is_named_with_its_field_and_disturbs_no_pod() {
    let mut device = Device::new();
    let authority = authority_from(&device, "now");
    let right = kubeconfig("127.0.0.1:1", &authority);
    let named = |device: &Device| node_events(device, "ClusterNotFollowed").join("\n");
    for (wrong, expected) in [
        (right.replace("user: {token", "user: {exec: {}, token"), "the field user.\"exec\" is not supported"),
        (right.replace("https://", "http://"), "the field cluster.server is \"http://127.0.0.1:1\""),
        (right.replace("kind: Config", "kind: Config\nkind: Config"), "\"kind\" occurs twice"),
        ("a: [".to_owned(), "bootstrap-kubeconfig:2: while parsing a node"),
    ] {
        put_kubeconfig(&device, &wrong);
        device.start_agent();
        device.wait_for("the error", || !named(&device).is_empty());
        let why = named(&device);
        assert!(why.contains(expected) && why.contains("etc/nodlet/bootstrap-kubeconfig"), "{why}");
        device.stop_agent();
    }
    device.start_agent_with_demo();
    device.run_pod("web", "print hello then sleep").wait_ready();
}

/// Runs `nodlet join` with the arguments of the cluster.
fn join(device: &Device, plane: &ControlPlane) -> Ran {
    Ran::with_input(join_command(device, &plane.join_arguments()), "")
}

/// `nodlet join` with these arguments.
fn join_command(device: &Device, arguments: &[String]) -> Command {
    let words: Vec<&str> = ["join"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    device.command(&words)
}

/// Runs `nodlet join` at an address for a CA with this hash.
fn join_at(device: &Device, address: &str, hash: &str) -> Ran {
    let words = ["--token", "abcdef.0123456789abcdef", "--discovery-token-ca-cert-hash"];
    let arguments: Vec<String> = [address]
        .iter()
        .chain(&words)
        .map(|word| (*word).to_owned())
        .chain([format!("sha256:{hash}")])
        .collect();
    Ran::with_input(join_command(device, &arguments), "")
}

#[test]
fn a_board_enrols_by_itself_and_again_when_its_certificate_has_expired_until_it_leaves() {
    let plane = ControlPlane::start_with(&["--cluster-signing-duration=30s"]);
    let mut device = Device::new();
    let network = device.own_network();
    let address = plane.connect(&network);
    put_kubeconfig(&device, &kubeconfig(&plane.server(), &plane.authority()));
    device.agent_arguments(["--node-name", "board-1"]);
    device.start_agent_with_demo();
    let ready = |node: &str| node.contains(" Ready ");
    plane.wait_for("get node board-1 --no-headers", ready);
    let credentials = || fs::read_to_string(device.path("/var/lib/nodlet/cluster.json")).unwrap_or_default();

    // Offline until the certificate has expired, the board has only its kubeconfig.
    let cut = plane.partition_from(&address);
    device.wait_for("the certificate to expire", || logged(&device, "ClusterCertificateExpired") > 0);
    let events = node_events(&device, "ClusterCertificateExpired");
    assert!(events[0].contains("run `nodlet join` with a new token"), "{events:?}");
    let first = credentials();
    drop(cut);
    device.wait_for("another certificate", || credentials() != first && !credentials().is_empty());
    device.wait_for("the log of it", || logged(&device, "enrolled in the cluster at") == 2);
    plane.line("delete node board-1").ok();
    plane.wait_for("get node board-1 --no-headers", ready);

    // A board that has left does not enrol again, until it joins.
    device.nodlet(["leave"]).ok();
    device.restart_agent();
    plane.line("delete node board-1").ok();
    let path = device.path("/var/lib/nodlet/cluster.json");
    assert!(!path.exists());
    assert!(device.nodlet(["leave"]).refused().contains("has joined no cluster"));
    join(&device, &plane).ok();
    plane.wait_for("get node board-1 --no-headers", ready);
    assert!(join(&device, &plane).refused().contains("has joined a cluster already"));
}

#[test]
fn another_join_replaces_an_expired_certificate_and_keeps_the_pods_of_the_cluster() {
    let plane = ControlPlane::start_with(&["--cluster-signing-duration=30s"]);
    let ClusterNode { device, address, .. } = ClusterNode::join(&plane, "board-1");
    plane.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeName: board-1
  containers: [{name: app, image: 'localhost/demo:1', args: [print, began, then, wait, /end]}]
",
    );
    plane.wait_for("get pod web --no-headers", |pod| pod.contains("1/1"));
    let born = device.pod("web").born("app");
    let cut = plane.partition_from(&address);
    device.wait_for("the certificate to expire", || logged(&device, "ClusterCertificateExpired") > 0);
    drop(cut);
    assert!(device.nodlet(["events"]).ok().contains("ClusterCertificateExpired"));
    // The bootstrap token has expired as well.
    let expires = |year: u32| {
        plane
            .line(&format!(
                "patch secret bootstrap-token-abcdef -n kube-system -p \
                 {{\"stringData\":{{\"expiration\":\"{year}-01-01T00:00:00Z\"}}}}"
            ))
            .ok()
    };
    expires(2020);
    let mut why = String::new();
    device.wait_for("the token to be rejected", || {
        let joined = join(&device, &plane);
        why.clone_from(&joined.stderr);
        joined.code != 0
    });
    assert!(why.contains("the cluster rejects the token: it is wrong or has expired"), "{why}");
    assert!(device.pod("web").container("app").is_running());
    // Whoever has a new one joins again, without `nodlet leave`.
    plane.line("delete secret bootstrap-token-abcdef -n kube-system --ignore-not-found").ok();
    plane.apply(
        "
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: abcdef
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: 'true'
  auth-extra-groups: system:bootstrappers:kubeadm:default-node-token
",
    );
    device.wait_for("another join", || join(&device, &plane).code == 0);
    plane.wait_for("get node board-1 --no-headers", |node| node.contains(" Ready "));
    assert_eq!(device.pod("web").born("app"), born);
}
