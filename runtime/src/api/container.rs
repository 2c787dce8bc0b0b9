//! Which container of a pod is meant, and what its status says: for `log`, `exec` and
//! `attach`, which all begin with that.

use serde_json::Value;

use super::read::parse;
use super::{Api, Status};
use nodlet_registry::objects::Key;

/// What can be done in a container that runs, in kubectl's words.
#[derive(Clone, Copy)]
pub(super) enum Verb {
    Exec,
    Attach,
}

/// The container that is meant: with several, it must be said which.
pub(super) fn named(pod: &Value, name: Option<&str>) -> Result<String, Status> {
    let pod_name = pod["metadata"]["name"].as_str().unwrap_or("");
    let names = |field: &str| -> Vec<&str> {
        let containers = pod["spec"][field].as_array().into_iter().flatten();
        containers.filter_map(|container| container["name"].as_str()).collect()
    };
    let regular = names("containers");
    let all = [names("initContainers"), regular.clone(), names("ephemeralContainers")].concat();
    match name {
        Some(name) if all.contains(&name) => Ok(name.into()),
        Some(name) => Err(Status::bad_request(format!("container {name} is not valid for pod {pod_name}"))),
        None => match regular[..] {
            [only] => Ok(only.into()),
            _ => Err(Status::bad_request(format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                all.join(" ")
            ))),
        },
    }
}

/// The container's entry in the pod's status.
pub(super) fn status<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .iter()
        .filter_map(|field| pod["status"][field].as_array())
        .flatten()
        .find(|status| status["name"] == container)
}

/// The container that is meant, which must run.
pub(super) fn running(api: &Api, key: &Key, name: Option<&str>, verb: Verb) -> Result<String, Status> {
    let object = api.objects.get(key).ok_or_else(|| Status::not_found("pods", &key.name))?;
    let pod = parse(&object.json);
    let container = named(&pod, name)?;
    if status(&pod, &container).is_some_and(has_process) {
        return Ok(container);
    }
    Err(Status::bad_request(match (pod["status"]["phase"].as_str(), verb) {
        (Some(phase @ ("Succeeded" | "Failed")), Verb::Exec) => {
            format!("cannot exec into a container in a completed pod; current phase is {phase}")
        }
        (Some(phase @ ("Succeeded" | "Failed")), Verb::Attach) => {
            format!("cannot attach a container in a completed pod; current phase is {phase}")
        }
        _ => format!(
            "container \"{container}\" in pod \"{}\" is not running: see `nodlet get pod {}`",
            key.name, key.name
        ),
    }))
}

/// It runs, or is about to: it does not count as running until its postStart hook is over, and
/// its id is then none of a run that has ended.
fn has_process(status: &Value) -> bool {
    let id = status["containerID"].as_str().unwrap_or_default();
    let ended = |state: &str| status[state]["terminated"]["containerID"] == id;
    status["state"]["running"].is_object() || (!id.is_empty() && !ended("state") && !ended("lastState"))
}
