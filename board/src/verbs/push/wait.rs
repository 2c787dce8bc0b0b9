//! `--wait`: waits until the pods of a push are ready.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::{Client, WatchFlow, encode};
use crate::error::VerbError;
use crate::output::escaped;

/// Waits for all pods to become ready. Reports the state of each that did not. Returns whether all did.
pub(super) fn until_ready(client: &Client, pods: &[Value], patience: Duration) -> Result<bool, VerbError> {
    let end = Instant::now() + patience;
    let mut all = true;
    for pod in pods {
        let text = |field: &str| pod[field].as_str().unwrap_or_default();
        let place = format!("pod/{}", text("name"));
        let (mut last, mut shown) = (None, Vec::new());
        let ended = loop {
            let left = end.saturating_duration_since(Instant::now()).as_secs();
            let target = format!(
                "/api/v1/namespaces/{}/pods?watch=true&fieldSelector=metadata.name%3D{}&timeoutSeconds={left}",
                encode(text("namespace")),
                encode(text("name")),
            );
            let mut ended = None;
            let watched = client.watch(&target, "application/json", |event, object| {
                // A pod that is being replaced has the same name but another uid.
                if object["metadata"]["uid"] == pod["uid"] {
                    last = Some(object.clone());
                    ended = match event {
                        "DELETED" => Some(false),
                        _ => outcome(object),
                    };
                    if let Some((reason, waits)) = waiting(object).filter(|_| ended.is_none())
                        && !shown.contains(&reason)
                    {
                        eprintln!("{place} waits: {waits}");
                        shown.push(reason);
                    }
                }
                Ok(if ended.is_some() { WatchFlow::Stop } else { WatchFlow::Continue })
            });
            match watched {
                // The agent may be restarting with a newer version.
                Err(failure) if failure.is_disconnected() && Instant::now() < end => {
                    client.wait_for_agent(end.saturating_duration_since(Instant::now()));
                }
                Err(failure) if !failure.is_expired() => return Err(failure),
                _ if ended.is_some() => break ended,
                _ if Instant::now() + Duration::from_secs(1) > end => break None,
                _ => {}
            }
        };
        match ended {
            Some(true) => println!("{place} ready"),
            Some(false) => eprintln!("error: {place} failed{}", why(last.as_ref())),
            None => {
                eprintln!("error: {place} is not ready after {}s{}", patience.as_secs(), why(last.as_ref()))
            }
        }
        all &= ended == Some(true);
    }
    Ok(all)
}

/// Whether a pod is as wanted; `None` as long as it may still become so.
fn outcome(pod: &Value) -> Option<bool> {
    match pod["status"]["phase"].as_str() {
        Some("Succeeded") => return Some(true),
        Some("Failed") => return Some(false),
        _ => {}
    }
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    ready.any(|condition| condition["status"] == "True").then_some(true)
}

/// Why a pod failed or is not ready: `: app: ErrImageNeverPull: …`.
fn why(pod: Option<&Value>) -> String {
    let Some(pod) = pod else {
        return String::new();
    };
    if let Some((_, waits)) = waiting(pod) {
        return format!(": {waits}");
    }
    match (pod["status"]["reason"].as_str(), pod["status"]["message"].as_str()) {
        (None, None) => String::new(),
        (reason, message) => format!(": {} {}", reason.unwrap_or_default(), message.unwrap_or_default()),
    }
}

/// The reason for which the first container waits that does not just start, and this with its name and message.
fn waiting(pod: &Value) -> Option<(String, String)> {
    let lists = ["initContainerStatuses", "containerStatuses"];
    let mut containers = lists.iter().filter_map(|list| pod["status"][*list].as_array()).flatten();
    containers.find_map(|container| {
        let waiting = &container["state"]["waiting"];
        let reason = waiting["reason"].as_str()?;
        if matches!(reason, "ContainerCreating" | "PodInitializing") {
            return None;
        }
        let name = container["name"].as_str().unwrap_or_default();
        let message = waiting["message"].as_str().unwrap_or_default();
        // The message names what the pushed image contains.
        Some((reason.to_owned(), escaped(&format!("{name}: {reason} {message}")).into_owned()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_ready_or_finished_or_neither() {
        let pod = |status: Value| json!({"status": status});
        for (status, expected) in [
            (json!({"phase": "Pending"}), None),
            (json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}), None),
            (json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}), Some(true)),
            (json!({"phase": "Succeeded"}), Some(true)),
            (json!({"phase": "Failed"}), Some(false)),
        ] {
            assert_eq!(outcome(&pod(status.clone())), expected, "{status}");
        }
        let waiting = json!({"state": {"waiting": {"reason": "ErrImageNeverPull", "message": "\u{1b}[2J"}}, "name": "app"});
        let pod = pod(json!({"containerStatuses": [waiting]}));
        assert_eq!(why(Some(&pod)), ": app: ErrImageNeverPull ^[[2J");
    }
}
