//! Checks whether the agent is healthy: it responds, its loop makes progress, and its pods are ready.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Client, Response, WatchFlow};
use crate::failure::Failure;

/// How long one response of the agent may take.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Delay between two checks of an agent that runs but is not healthy.
const AGAIN: Duration = Duration::from_millis(500);

/// The pods that must be ready.
pub(super) enum Pods<'a> {
    /// No pods.
    Any,
    /// All pods that have not ended.
    All,
    /// The pods with these names, `NAMESPACE/NAME`, that still exist.
    These(&'a [String]),
}

/// Checks the agent of a root once.
///
/// # Errors
/// The first check that failed.
pub(super) fn check(root: &Path, pods: &Pods<'_>) -> Result<(), Failure> {
    // The agent's loop itself has to look for this pod, which no board has; a dry run deletes nothing.
    let pod = "/api/v1/namespaces/default/pods/nodlet.healthcheck.none?dryRun=All";
    match ask(root, "DELETE", pod)? {
        response if response.code == 404 => {}
        response => {
            return Err(Failure::new(format!("the agent responds with HTTP status {}", response.code)));
        }
    }
    if matches!(pods, Pods::Any) {
        return Ok(());
    }
    let list = list(root)?;
    let mut failing = list.iter().filter(|pod| is_unready(pod)).map(name).filter(|name| match pods {
        Pods::Any => false,
        Pods::All => true,
        Pods::These(names) => names.contains(name),
    });
    let Some(first) = failing.next() else { return Ok(()) };
    Err(Failure::new(match failing.count() {
        0 => format!("pod {first} is not ready"),
        others => format!("pod {first} is not ready, and {others} more"),
    }))
}

/// Waits until an event about an unready pod arrives, at most until `end`.
pub(super) fn wait_for_pods(client: &Client, end: Instant) {
    let wait = || -> Result<bool, Failure> {
        let list = client.request("GET", "/api/v1/pods", "application/json", None)?.json()?;
        let mut pods = list["items"].as_array().into_iter().flatten();
        let version = list["metadata"]["resourceVersion"].as_str();
        let (true, Some(version)) = (pods.any(is_unready), version) else { return Ok(false) };
        let left = end.saturating_duration_since(Instant::now()).as_secs().max(1);
        let target = format!("/api/v1/pods?watch=true&resourceVersion={version}&timeoutSeconds={left}");
        client.watch(&target, "application/json", |_, _| Ok(WatchFlow::Stop))?;
        Ok(true)
    };
    if !wait().unwrap_or(false) {
        // An unhealthy agent reports no events.
        std::thread::sleep(AGAIN.min(end.saturating_duration_since(Instant::now())));
    }
}

/// The names of the pods that are ready now.
pub(super) fn ready(root: &Path) -> Result<Vec<String>, Failure> {
    Ok(list(root)?.iter().filter(|pod| is_ready(pod)).map(name).collect())
}

fn list(root: &Path) -> Result<Vec<Value>, Failure> {
    let mut answer = ask(root, "GET", "/api/v1/pods")?.json()?;
    match answer["items"].take() {
        Value::Array(pods) => Ok(pods),
        _ => Err(Failure::new("the agent's response is not a list of pods")),
    }
}

/// Sends one request with a short timeout: an agent that hangs still has its socket.
fn ask(root: &Path, method: &str, target: &str) -> Result<Response, Failure> {
    let mut stream = Client::local(root).connect()?;
    let lost = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            Failure::disconnected(format!("the agent does not respond within {} s", ANSWER.as_secs()))
        }
        _ => Failure::disconnected(format!("the connection to the agent was lost: {error}")),
    };
    stream.set_read_timeout(Some(ANSWER)).and_then(|()| stream.set_write_timeout(Some(ANSWER)))?;
    let head = format!(
        "{method} {target} HTTP/1.1\r\nhost: nodlet\r\naccept: application/json\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).map_err(lost)?;
    Response::read(stream).map_err(lost)
}

fn name(pod: &Value) -> String {
    let part = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a pod should run and is not ready.
fn is_unready(pod: &Value) -> bool {
    !is_ready(pod) && pod["status"]["phase"] != "Succeeded" && pod["metadata"]["deletionTimestamp"].is_null()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// An agent that responds to each request with the next of these.
    fn agent(name: &str, answers: Vec<String>) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("nodlet-health-{}-{name}", std::process::id()));
        let socket = nodlet_runtime::api::socket_path(&root);
        std::fs::create_dir_all(socket.parent().expect("it has one")).expect("a scratch directory");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(socket).expect("it is free");
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("it is open");
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        root
    }

    const TURNS: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";

    fn pods(pods: &str) -> Vec<String> {
        let body = format!(r#"{{"items": [{pods}]}}"#);
        vec![TURNS.into(), format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())]
    }

    fn pod(name: &str, phase: &str, ready: &str) -> String {
        format!(
            r#"{{"metadata": {{"namespace": "default", "name": "{name}"}}, "status": {{"phase": "{phase}",
                "conditions": [{{"type": "Ready", "status": "{ready}"}}]}}}}"#
        )
    }

    #[test]
    fn an_agent_is_healthy_when_its_loop_answers() {
        assert!(check(&agent("turns", vec![TURNS.into()]), &Pods::Any).is_ok());
        let root = agent("broken", vec!["HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".into()]);
        let why = check(&root, &Pods::Any).expect_err("it is broken").to_string();
        assert!(why.contains("HTTP status 500"), "{why}");
        // The agent no longer listens, or never existed.
        let gone = check(Path::new("/nowhere"), &Pods::Any).expect_err("there is none");
        assert!(gone.is_disconnected(), "{gone}");
    }

    #[test]
    fn pods_that_were_ready_must_be_ready_again() {
        let some =
            [pod("web", "Running", "True"), pod("job", "Succeeded", "False"), pod("bad", "Running", "False")];
        let some = some.join(",");
        assert!(check(&agent("others", pods(&some)), &Pods::These(&["default/web".into()])).is_ok());
        assert!(check(&agent("ended", pods(&some)), &Pods::These(&["default/job".into()])).is_ok());
        assert!(check(&agent("gone", pods(&some)), &Pods::These(&["default/gone".into()])).is_ok());
        for these in [Pods::All, Pods::These(&["default/bad".into()])] {
            let why = check(&agent("bad", pods(&some)), &these).expect_err("it is not ready").to_string();
            assert!(why.contains("pod default/bad is not ready"), "{why}");
        }
        assert_eq!(ready(&agent("ready", pods(&some).split_off(1))).expect("it answers"), ["default/web"]);
    }
}
