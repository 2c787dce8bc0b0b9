//! The choice of a pod's container if the user names none.

use nodlet_kube::kinds::Kind;

use crate::arguments::Context;
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::verbs::resources;

/// The pod's name in `web` or `pod/web`.
pub(crate) fn pod_name(text: &str) -> Result<String, VerbError> {
    match text.split_once('/') {
        None => Ok(text.into()),
        Some((kind, name)) => match resources::kind(kind)? {
            Kind::Pod => Ok(name.into()),
            other => Err(VerbError::new(format!("{} have no containers, only pods", other.resource()))),
        },
    }
}

/// The default container: the one that the annotation `kubectl.kubernetes.io/default-container` names, else
/// the first, which is then reported to the user. Returns `None` if the pod has only one container.
pub(crate) fn default(context: &Context, client: &Client, pod: &str) -> Result<Option<String>, VerbError> {
    let target = format!("/api/v1/namespaces/{}/pods/{}", encode(&context.namespace), encode(pod));
    let object = client.json("GET", &target, None)?;
    let names: Vec<&str> = ["containers", "initContainers", "ephemeralContainers"]
        .iter()
        .flat_map(|field| object["spec"][field].as_array().into_iter().flatten())
        .filter_map(|container| container["name"].as_str())
        .collect();
    let annotated = object["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str();
    if let Some(annotated) = annotated.filter(|annotated| names.contains(annotated)) {
        return Ok(Some(annotated.into()));
    }
    if names.len() > 1 {
        eprintln!("Defaulted container {:?} out of: {}", names[0], shown(&object));
        return Ok(Some(names[0].into()));
    }
    Ok(None)
}

/// The names of all containers, in kubectl's order: `app, debugger-x7k2p (ephem), proxy (init)`.
fn shown(object: &serde_json::Value) -> String {
    let names = |field: &str, note: &'static str| {
        let containers = object["spec"][field].as_array().into_iter().flatten();
        containers.filter_map(|container| container["name"].as_str()).map(move |name| format!("{name}{note}"))
    };
    let all = names("containers", "")
        .chain(names("ephemeralContainers", " (ephem)"))
        .chain(names("initContainers", " (init)"));
    all.collect::<Vec<_>>().join(", ")
}
