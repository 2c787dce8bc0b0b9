//! The container of a pod that a request names, and its status, for `log`, `exec` and `attach`.

use serde_json::Value;

use super::read::parse;
use super::{Api, Status};
use nodlet_registry::objects::Key;

/// The operations in a running container, in kubectl's words.
#[derive(Clone, Copy)]
pub(super) enum Verb {
    Exec,
    Attach,
}

/// Returns the container that a request names. In a pod with several containers, the name is required.
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

/// Returns the container's entry in the pod's status.
pub(super) fn status<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .iter()
        .filter_map(|field| pod["status"][field].as_array())
        .flatten()
        .find(|status| status["name"] == container)
}

/// Returns the container that a request names, which must be running.
pub(super) fn running(api: &Api, key: &Key, name: Option<&str>, verb: Verb) -> Result<String, Status> {
    let object = api.objects.get(key).ok_or_else(|| Status::not_found("pods", &key.name))?;
    let pod = parse(&object.json);
    let container = named(&pod, name)?;
    if status(&pod, &container).is_some_and(has_process) {
        return Ok(container);
    }
    let verb = if let Verb::Exec = verb { "exec into" } else { "attach" };
    Err(Status::bad_request(match pod["status"]["phase"].as_str() {
        Some(phase @ ("Succeeded" | "Failed")) => {
            format!("cannot {verb} a container in a completed pod; current phase is {phase}")
        }
        _ => format!(
            "container \"{container}\" in pod \"{}\" is not running: see `nodlet get pod {}`",
            key.name, key.name
        ),
    }))
}

/// Whether the container has a process. Its state is not `running` until its postStart hook has finished;
/// until then, its ID differs from those of ended runs.
fn has_process(status: &Value) -> bool {
    let id = status["containerID"].as_str().unwrap_or_default();
    let ended = |state: &str| status[state]["terminated"]["containerID"] == id;
    status["state"]["running"].is_object() || (!id.is_empty() && !ended("state") && !ended("lastState"))
}
