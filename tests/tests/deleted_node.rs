//! A Node that is deleted in the cluster while its board is connected, as the cluster and the clients of a Service see it,
//! from the deletion until the board is a node again.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nodlet_tests::{Background, ClusterNode, ControlPlane, Namespace, is_in_range, manifest};
use serde_json::Value;

/// The least time from the deletion of a Node to the creation of the next one, as docs/cluster.md promises it.
const PAUSE: u64 = 10;

/// How long the cluster may list ready addresses to which another board has no route any more: for one event, the other
/// board removes the route, this one deletes its pods, and then the controllers change the EndpointSlice. Less than 0.2 s
/// was measured.
const LAG: Duration = Duration::from_secs(5);

/// An event of a watch.
struct Change {
    /// The revision of the cluster's store, which counts the changes of all objects.
    revision: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    what: String,
    object: Value,
}

/// Watches of the Nodes, pods and EndpointSlices of a cluster.
struct Watches(Vec<Background>);

impl Watches {
    fn start(plane: &ControlPlane) -> Watches {
        let paths = [
            "/api/v1/nodes?watch=1",
            "/api/v1/namespaces/default/pods?watch=1",
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?watch=1",
        ];
        Watches(paths.map(|path| Background::start(plane.command(&["get", "--raw", path]))).into())
    }

    /// What has happened so far, in the order in which the cluster's store did it.
    fn changes(&self) -> Vec<Change> {
        let lines = self.0.iter().flat_map(Background::lines);
        let mut changes: Vec<Change> = lines
            .map(|line| {
                let mut event: Value = serde_json::from_str(&line).expect("a line is an event");
                let object = event["object"].take();
                let revision = text(&object["metadata"]["resourceVersion"]).parse().expect("a revision");
                Change { revision, what: text(&event["type"]), object }
            })
            .collect();
        changes.sort_by_key(|change| change.revision);
        changes
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn uid(object: &Value) -> String {
    text(&object["metadata"]["uid"])
}

/// A ready endpoint: the address, and the UID and the name of the pod.
type Endpoint = (String, String, String);

/// The endpoints of an EndpointSlice to which the Service `web` sends clients.
fn ready(slice: &Value) -> BTreeSet<Endpoint> {
    let of_web = slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web";
    let endpoints = slice["endpoints"].as_array().into_iter().flatten().filter(|_| of_web);
    let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true);
    ready
        .map(|endpoint| {
            let of_pod = |field: &str| text(&endpoint["targetRef"][field]);
            (text(&endpoint["addresses"][0]), of_pod("uid"), of_pod("name"))
        })
        .collect()
}

/// The ready endpoints of the Service `web` at this moment.
fn endpoints(plane: &ControlPlane) -> BTreeSet<Endpoint> {
    let list = plane.line("get endpointslices -o json").ok();
    let list: Value = serde_json::from_str(&list).expect("JSON");
    list["items"].as_array().into_iter().flatten().flat_map(ready).collect()
}

/// Whether a pod answers at this address, by its name, to a client in a network namespace.
fn answers(from: &Namespace, (address, _, name): &Endpoint) -> bool {
    let address: IpAddr = address.parse().expect("an address");
    let answer = from.call(move || -> std::io::Result<String> {
        let within = Duration::from_secs(1);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, 80), within)?;
        stream.set_read_timeout(Some(within))?;
        stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    answer.is_ok_and(|answer| answer.trim_end().ends_with(name.as_str()))
}

/// The seconds from one time of the server to a later one, less than a day.
fn seconds_between(before: &str, after: &str) -> u64 {
    let of_day = |time: &str| {
        let clock = time.get(11..19).expect("a time as 2026-01-31T12:00:00Z");
        clock.split(':').fold(0, |sum, part| sum * 60 + part.parse::<u64>().expect("a number"))
    };
    (of_day(after) + 86_400 - of_day(before)) % 86_400
}

/// Replays what the cluster's store went through. At no revision may an EndpointSlice name a ready address of a pod that
/// has ended or is gone, or one outside of the range of the Node; and a Node is there only with a clean slate.
fn check(changes: &[Change], deleted: &str) {
    let (mut pods, mut slices, mut node) = (BTreeMap::new(), BTreeMap::new(), None);
    let mut nodes = Vec::new();
    for Change { revision, what, object } in changes {
        let is_there = what != "DELETED";
        match object["kind"].as_str() {
            Some("Node") if object["metadata"]["name"] == "board-1" => {
                node = is_there.then_some(object);
                nodes.extend((what == "ADDED").then(|| uid(object)));
                if what == "ADDED" && uid(object) != deleted {
                    let old: Vec<_> =
                        pods.values().filter(|pod: &&&Value| pod["spec"]["nodeName"] == "board-1").collect();
                    assert!(
                        old.is_empty(),
                        "at {revision}, the Node is there before its old pods are gone: {old:#?}"
                    );
                }
            }
            Some("Pod") if is_there => drop(pods.insert(uid(object), object)),
            Some("Pod") => drop(pods.remove(&uid(object))),
            Some("EndpointSlice") if is_there => drop(slices.insert(uid(object), ready(object))),
            Some("EndpointSlice") => drop(slices.remove(&uid(object))),
            _ => {}
        }
        for endpoint in slices.values().flatten() {
            let (address, of, name) = endpoint;
            let pod = pods.get(of).unwrap_or_else(|| panic!("at {revision}, {name} is gone and ready"));
            let runs = pod["status"]["containerStatuses"][0]["state"]["running"].is_object();
            assert!(
                runs && pod["status"]["podIP"] == **address,
                "at {revision}, {address} is ready: {pod:#}"
            );
            if let Some(range) = node.and_then(|node| node["spec"]["podCIDR"].as_str()) {
                assert!(
                    is_in_range(address, range),
                    "at {revision}, {address} is ready, and the range is {range}"
                );
            }
        }
    }
    assert_eq!(nodes.len(), 2, "the Node was made again once: {nodes:?}");
}

#[test]
fn clients_of_a_service_meet_no_pod_of_a_deleted_node_until_the_board_is_back() {
    let plane = ControlPlane::start();
    plane.let_nodes_read_nodes();
    let other = ClusterNode::join(&plane, "board-2");
    let board = ClusterNode::join_with(&plane, "board-1", &["--node-labels", "site=harbour"]);
    let own = board.device.run_pod("own", "serve 80 /srv").wait_ready();
    let of_own = || (own.uid(), own.container("app").id(), own.container("app").restart_count());
    let began = of_own();

    let watches = Watches::start(&plane);
    board.device.wait_for("the watches to begin", || watches.0.iter().all(|watch| watch.saw(|_| true)));

    // The pods need a label with which the board registers, and serve on until clients know that they end.
    let fields = "imagePullPolicy: IfNotPresent\nreadinessProbe: {periodSeconds: 1, httpGet: {port: 80, path: /healthz}}\n\
                  lifecycle: {preStop: {sleep: {seconds: 5}}}";
    let app = manifest::container("app", "serve 80 /srv", fields);
    plane.apply(&manifest::deployment(2, &[app], "", "nodeSelector: {site: harbour}"));
    plane.line("create service clusterip web --tcp=80:80").ok();
    plane.line("set selector service web app=web").ok();
    let is_served = |old: &BTreeSet<Endpoint>| {
        let now = endpoints(&plane);
        now.len() == 2 && now.is_disjoint(old)
    };
    board.device.wait_for("two endpoints", || is_served(&BTreeSet::new()));
    let old = endpoints(&plane);
    for endpoint in &old {
        for from in [&board.network, &other.network] {
            other.device.wait_for("the pods to answer everybody", || answers(from, endpoint));
        }
    }
    plane.line("label node board-1 of=admin").ok();
    let node_uid = plane.line("get node board-1 -o jsonpath={.metadata.uid}").ok();

    // The next renewal of the Lease, which would show the deletion, too, is 10 s away.
    let renewed = "get lease board-1 -n kube-node-lease -o jsonpath={.spec.renewTime}";
    let before = plane.line(renewed).ok();
    plane.wait_for(renewed, |now| now != before);
    plane.line("create configmap before-the-deletion").ok();
    plane.line("delete node board-1").ok();
    let deleted = Instant::now();
    let mut unreachable_for = Duration::ZERO;
    board.device.wait_within(Duration::from_secs(180), "the board to be back", || {
        for endpoint in endpoints(&plane) {
            let reached = [&board.network, &other.network].map(|from| answers(from, &endpoint));
            if reached == [true; 2] || !endpoints(&plane).contains(&endpoint) {
                continue;
            }
            // The first client is the board itself, for which no route changes.
            assert!(reached[0], "{endpoint:?} is ready, and its own board does not reach it");
            unreachable_for = deleted.elapsed();
        }
        assert_eq!(of_own(), began, "the pod from a file runs on");
        is_served(&old)
    });
    assert!(unreachable_for < LAG, "another board did not reach a ready address {unreachable_for:?} later");

    // The board is back, with its own labels and without those of others.
    let node: Value = serde_json::from_str(&plane.line("get node board-1 -o json").ok()).expect("JSON");
    assert_ne!(uid(&node), node_uid);
    let labels = &node["metadata"]["labels"];
    assert_eq!((&labels["site"], &labels["of"]), (&"harbour".into(), &Value::Null), "{labels}");
    let marked =
        plane.line("get configmap before-the-deletion -o jsonpath={.metadata.creationTimestamp}").ok();
    let made = text(&node["metadata"]["creationTimestamp"]);
    assert!(
        seconds_between(&marked, &made) >= PAUSE,
        "the Node was deleted after {marked} and made again at {made}"
    );

    // The new pods answer everybody, and the watches saw nothing in between that must not be.
    let new = endpoints(&plane);
    for endpoint in &new {
        for from in [&board.network, &other.network] {
            other.device.wait_for("the pods to answer everybody", || answers(from, endpoint));
        }
    }
    let of = |endpoints: &BTreeSet<Endpoint>| {
        endpoints.iter().map(|(_, uid, _)| uid.clone()).collect::<BTreeSet<String>>()
    };
    let is_known = |changes: &[Change]| {
        let last = changes.iter().rfind(|change| change.object["kind"] == "EndpointSlice");
        last.is_some_and(|change| ready(&change.object) == new)
    };
    board.device.wait_for("the watches to show the new pods", || is_known(&watches.changes()));
    let changes = watches.changes();
    check(&changes, &node_uid);
    for uid_of_old in of(&old) {
        let of_pod = |change: &&Change| uid(&change.object) == uid_of_old;
        let last = changes.iter().rfind(of_pod).expect("the watch saw it");
        assert_eq!(last.what, "DELETED");
        // The board deleted it as `kubectl delete` does; what collects pods without a Node gives them no time.
        assert_eq!(last.object["metadata"]["deletionGracePeriodSeconds"], 0, "{:#}", last.object);
        let mut graces = changes
            .iter()
            .filter(of_pod)
            .map(|change| &change.object["metadata"]["deletionGracePeriodSeconds"]);
        assert!(graces.any(|grace| *grace == 30), "it had its grace period");
    }
    assert_eq!(own.demo("app", "get http://127.0.0.1/healthz").ok(), "ok\n");
}
