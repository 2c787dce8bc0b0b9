//! The API beside a real kube-apiserver: both get the same changed pods, and their answers are compared.

mod compare;
mod mutate;
mod requests;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use nodlet_kube::schema;
use nodlet_tests::{ControlPlane, Device, Seed, request_as, seed};
use serde_json::{Value, json};

use compare::{Answer, Report};
use mutate::mutate;

/// Plugins that change pods for what a board does not have: accounts, nodes that are lost, storage classes.
const PLUGINS: &str = "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds";

/// The real API server, through `kubectl proxy` on a unix socket.
struct Real {
    plane: ControlPlane,
    proxy: Child,
}

impl Real {
    fn start() -> Self {
        let plane = ControlPlane::start_with_flags(&[], &[PLUGINS]);
        plane.wait_for("get namespace default", |_| true);
        let socket = plane.shared("differential").join("api.sock");
        let mut command = plane.command(&["proxy", "--reject-paths=^$"]);
        command.arg(format!("--unix-socket={}", socket.display()));
        let proxy = command.stdout(Stdio::null()).spawn().expect("kubectl can be run");
        let real = Self { plane, proxy };
        while !real.socket().exists() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        real
    }

    fn socket(&self) -> PathBuf {
        self.plane.shared("differential").join("api.sock")
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// The pods that are changed: one of each kind that people write.
fn pods() -> Vec<Value> {
    let texts = [include_str!("differential/small.json"), include_str!("differential/large.json")];
    texts.iter().map(|text| serde_json::from_str(text).expect("it is JSON")).collect()
}

fn rounds() -> usize {
    std::env::var("NODLET_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(500)
}

#[test]
fn changed_pods_are_answered_as_by_a_kube_apiserver() {
    let (real, device, mut seed) = (Real::start(), Device::start(), seed());
    let mut report = Report::default();
    let of = schema::find("Pod").expect("there are pods");
    for round in 0..rounds() {
        let mut pod = seed.choose(&pods()).clone();
        pod["metadata"]["name"] = json!(format!("pod-{round}"));
        let done = mutate(&mut pod, of, &mut seed);
        let path = "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict";
        let send = |socket: PathBuf| answer(&socket, "POST", path, "application/json", &pod);
        report.compare("create", &done, &send(real.socket()), &send(device.socket()));
    }
    updates(&real, &device, &mut seed, &mut report);
    println!("{report}");
    report.require();
}

#[test]
fn options_lists_and_warnings_are_those_of_a_kube_apiserver() {
    let (real, device) = (Real::start(), Device::start());
    let differing = requests::differing(&real.socket(), &device.socket());
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

/// Changes a pod that exists on both sides, without keeping the change.
fn updates(real: &Real, device: &Device, seed: &mut Seed, report: &mut Report) {
    let of = schema::find("Pod").expect("there are pods");
    let pods = pods();
    for pod in &pods {
        for socket in [real.socket(), device.socket()] {
            let answer = answer(&socket, "POST", "/api/v1/namespaces/default/pods", "application/json", pod);
            assert!(answer.accepted(), "{answer:?}");
        }
    }
    for _ in 0..rounds() {
        let pod = seed.choose(&pods);
        let mut changed = pod.clone();
        let done = mutate(&mut changed, of, seed);
        let name = pod["metadata"]["name"].as_str().expect("it has a name");
        let path = format!("/api/v1/namespaces/default/pods/{name}?dryRun=All&fieldValidation=Strict");
        let patch = merge_patch(pod, &changed);
        let send = |socket: PathBuf| answer(&socket, "PATCH", &path, "application/merge-patch+json", &patch);
        report.compare("patch", &done, &send(real.socket()), &send(device.socket()));
    }
}

/// The merge patch (RFC 7386) that makes one object of another.
fn merge_patch(from: &Value, to: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (from, to) else { return to.clone() };
    let mut patch = serde_json::Map::new();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in new {
        match old.get(name) {
            Some(before) if before == value => {}
            Some(before) => drop(patch.insert(name.clone(), merge_patch(before, value))),
            None => drop(patch.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(patch)
}

fn answer(socket: &Path, method: &str, path: &str, kind: &str, body: &Value) -> Answer {
    let (code, body) = request_as(socket, method, path, kind, &body.to_string()).expect("the API answers");
    Answer { code, body }
}
