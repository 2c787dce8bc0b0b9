//! Checks whether the agent is healthy: it responds, its loop and its storage thread make progress, and its pods are
//! ready.

use std::path::Path;
use std::time::{Duration, Instant};

use nodlet_core::time::Timestamp;
use serde_json::Value;

use super::state::Before;
use crate::client::{self, Client, Response, WatchFlow};
use crate::error::VerbError;

/// How long one response of the agent may take.
pub(super) const ANSWER: Duration = Duration::from_secs(10);

/// Delay between two checks of an agent that runs but is not healthy.
const AGAIN: Duration = Duration::from_millis(500);

/// How many unready pods an error names.
const MOST_NAMED: usize = 10;

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
pub(super) fn check(root: &Path, pods: &Pods<'_>) -> Result<(), VerbError> {
    check_agent(root)?;
    check_pods(root, pods)
}

/// Checks that the agent responds, and that its loop and its storage thread make progress.
///
/// # Errors
/// It does not.
pub(super) fn check_agent(root: &Path) -> Result<(), VerbError> {
    // The agent's loop itself has to look for this pod, which no board has; a dry run deletes nothing.
    let pod = "/api/v1/namespaces/default/pods/nodlet.healthcheck.none?dryRun=All";
    let response = ask(root, "DELETE", pod)?;
    if response.code != 404 {
        return Err(VerbError::new(format!("the agent responds with HTTP status {}", response.code)));
    }
    let response = ask(root, "GET", "/healthz")?;
    match response.code {
        200 => Ok(()),
        code => Err(VerbError::new(match response.json() {
            Ok(status) if status["message"].is_string() => {
                format!("the agent is not healthy: {}", status["message"].as_str().unwrap_or_default())
            }
            Ok(_) | Err(_) => format!("the agent responds with HTTP status {code} to /healthz"),
        })),
    }
}

/// Checks that these pods are ready.
///
/// # Errors
/// Some are not, or the agent does not respond.
pub(super) fn check_pods(root: &Path, pods: &Pods<'_>) -> Result<(), VerbError> {
    if matches!(pods, Pods::Any) {
        return Ok(());
    }
    let list = list(root)?;
    let failing = list.iter().filter(|pod| is_unready(pod)).map(name).filter(|name| match pods {
        Pods::Any => false,
        Pods::All => true,
        Pods::These(names) => names.contains(name),
    });
    let failing: Vec<String> = failing.collect();
    let named = failing[..failing.len().min(MOST_NAMED)].join(", ");
    match (failing.len(), failing.len().saturating_sub(MOST_NAMED)) {
        (0, _) => Ok(()),
        (1, _) => Err(VerbError::new(format!("pod {named} is not ready"))),
        (_, 0) => Err(VerbError::new(format!("pods {named} are not ready"))),
        (_, others) => Err(VerbError::new(format!("pods {named} and {others} more are not ready"))),
    }
}

/// Waits until an event about an unready pod arrives, at most until `end`.
pub(super) fn wait_for_pods(client: &Client, end: Instant) {
    let wait = || -> Result<bool, VerbError> {
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

/// The pods that are ready now, and how long the slowest of them needed for that.
pub(super) fn before(root: &Path, boot: String) -> Result<Before, VerbError> {
    let list = list(root)?;
    let ready = || list.iter().filter(|pod| is_ready(pod));
    let slowest_start = ready().filter_map(seconds_to_ready).max().unwrap_or(0);
    Ok(Before { ready: ready().map(name).collect(), slowest_start, boot })
}

/// The seconds from the first start of a pod's existing runs until the pod was ready, which include its init
/// containers and restarts.
fn seconds_to_ready(pod: &Value) -> Option<u64> {
    let time = |text: &Value| Timestamp::parse(text.as_str()?).map(|time| time.0 / 1_000_000_000);
    let lists = ["initContainerStatuses", "containerStatuses"].map(|key| pod["status"][key].as_array());
    let states = lists.into_iter().flatten().flatten().map(|container| &container["state"]);
    let begun = states
        .filter_map(|state| {
            time(&state["running"]["startedAt"]).or_else(|| time(&state["terminated"]["startedAt"]))
        })
        .min()?;
    let ready = condition_ready(pod).and_then(|ready| time(&ready["lastTransitionTime"]))?;
    u64::try_from(ready.saturating_sub(begun)).ok()
}

fn list(root: &Path) -> Result<Vec<Value>, VerbError> {
    let mut answer = ask(root, "GET", "/api/v1/pods")?.json()?;
    match answer["items"].take() {
        Value::Array(pods) => Ok(pods),
        _ => Err(VerbError::new("the agent's response is not a list of pods")),
    }
}

/// Sends one request with a short timeout: an agent that hangs still has its socket.
fn ask(root: &Path, method: &str, target: &str) -> Result<Response, VerbError> {
    let stream = Client::local(root).connect()?;
    let lost = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            VerbError::disconnected(format!("the agent does not respond within {} s", ANSWER.as_secs()))
        }
        _ => VerbError::disconnected(format!("the connection to the agent was lost: {error}")),
    };
    stream.set_read_timeout(Some(ANSWER)).and_then(|()| stream.set_write_timeout(Some(ANSWER)))?;
    client::exchange(stream, method, target, "application/json", None).map_err(lost)
}

fn name(pod: &Value) -> String {
    let part = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

fn condition_ready(pod: &Value) -> Option<&Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == "Ready")
}

fn is_ready(pod: &Value) -> bool {
    condition_ready(pod).is_some_and(|condition| condition["status"] == "True")
}

/// Whether a pod should run and is not ready.
fn is_unready(pod: &Value) -> bool {
    !is_ready(pod) && pod["status"]["phase"] != "Succeeded" && pod["metadata"]["deletionTimestamp"].is_null()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
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

    const HEALTHY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    fn pods(pods: &str) -> Vec<String> {
        let body = format!(r#"{{"items": [{pods}]}}"#);
        vec![
            TURNS.into(),
            HEALTHY.into(),
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()),
        ]
    }

    fn pod(name: &str, phase: &str, ready: &str) -> String {
        format!(
            r#"{{"metadata": {{"namespace": "default", "name": "{name}"}}, "status": {{"phase": "{phase}",
                "conditions": [{{"type": "Ready", "status": "{ready}"}}]}}}}"#
        )
    }

    #[test]
    fn an_agent_is_healthy_when_its_loop_answers() {
        assert!(check(&agent("turns", vec![TURNS.into(), HEALTHY.into()]), &Pods::Any).is_ok());
        let root = agent("broken", vec!["HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n".into()]);
        let why = check(&root, &Pods::Any).expect_err("it is broken").to_string();
        assert!(why.contains("HTTP status 500"), "{why}");
        let hangs = r#"{"message": "the agent's storage thread hangs"}"#;
        let hangs = format!("HTTP/1.1 500 Oops\r\ncontent-length: {}\r\n\r\n{hangs}", hangs.len());
        let root = agent("hangs", vec![TURNS.into(), hangs]);
        let why = check(&root, &Pods::Any).expect_err("it hangs").to_string();
        assert!(why.contains("storage thread hangs"), "{why}");
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
        let before = before(&agent("ready", pods(&some).split_off(2)), "boot".into()).expect("it answers");
        assert_eq!((before.ready, before.slowest_start), (vec!["default/web".to_owned()], 0));
    }

    #[test]
    fn all_unready_pods_are_named_up_to_a_bound() {
        for (count, expected) in [
            (1, "pod default/p0 is not ready".to_owned()),
            (2, "pods default/p0, default/p1 are not ready".to_owned()),
            (
                10,
                format!(
                    "pods {} are not ready",
                    (0..10).map(|n| format!("default/p{n}")).collect::<Vec<_>>().join(", ")
                ),
            ),
            (
                13,
                format!(
                    "pods {} and 3 more are not ready",
                    (0..10).map(|n| format!("default/p{n}")).collect::<Vec<_>>().join(", ")
                ),
            ),
        ] {
            let some: Vec<String> = (0..count).map(|n| pod(&format!("p{n}"), "Running", "False")).collect();
            let root = agent(&format!("unready-{count}"), pods(&some.join(",")));
            let why = check(&root, &Pods::All).expect_err("they are not ready").to_string();
            assert!(why.contains(&expected), "{why}");
        }
    }

    #[test]
    fn the_slowest_pod_defines_how_long_pods_may_start() {
        let ready = |name: &str, started: &str, ready: &str| {
            format!(
                r#"{{"metadata": {{"namespace": "default", "name": "{name}"}}, "status": {{"phase": "Running",
                    "initContainerStatuses": [{{"state": {{"terminated": {{"startedAt": "{started}"}}}}}}],
                    "containerStatuses": [{{"state": {{"running": {{"startedAt": "2026-11-25T10:02:00Z"}}}}}}],
                    "conditions": [{{"type": "Ready", "status": "True", "lastTransitionTime": "{ready}"}}]}}}}"#
            )
        };
        let some = [
            ready("quick", "2026-11-25T10:01:58Z", "2026-11-25T10:02:01Z"),
            ready("slow", "2026-11-25T10:01:00Z", "2026-11-25T10:02:30Z"),
            pod("other", "Running", "False"),
        ];
        let root = agent("slowest", pods(&some.join(",")).split_off(2));
        let before = before(&root, "boot".into()).expect("it answers");
        assert_eq!((before.ready.len(), before.slowest_start), (2, 90));
    }
}
