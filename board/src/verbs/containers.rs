//! The pod and the container that a user names, and the choice of a container if the user names none.

use lexopt::{Parser, ValueExt};
use nodlet_kube::kinds::Kind;

use crate::arguments::{Context, switch};
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

/// A container, and how this terminal is connected to a process in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) pod: String,
    pub(crate) container: Option<String>,
    pub(crate) stdin: bool,
    pub(crate) tty: bool,
}

impl Session {
    /// Parses a flag of a verb with a session, or one of [`Context::namespaced`].
    pub(crate) fn flag(
        &mut self,
        flag: &str,
        context: &mut Context,
        parser: &mut Parser,
    ) -> Result<(), VerbError> {
        match flag {
            "-c" | "--container" => self.container = Some(parser.value()?.string()?),
            "-i" => self.stdin = true,
            "-t" => self.tty = true,
            "--stdin" => self.stdin = switch(parser)?,
            "--tty" => self.tty = switch(parser)?,
            other => context.namespaced(other, parser)?,
        }
        Ok(())
    }

    /// The path of the session at the API, for a process that has a terminal or not.
    pub(crate) fn target(&self, context: &Context, verb: &str, has_terminal: bool) -> String {
        let container = self.container.as_deref().map(encode).map(|name| format!("&container={name}"));
        format!(
            "{}/{verb}?stdin={}&stdout=true&stderr={}&tty={has_terminal}{}",
            context.pod(&self.pod),
            self.stdin,
            !has_terminal,
            container.unwrap_or_default()
        )
    }
}

/// The default container: the one that the annotation `kubectl.kubernetes.io/default-container` names, else
/// the first, which is then reported to the user. Returns `None` if the pod has only one container.
pub(crate) fn default(context: &Context, client: &Client, pod: &str) -> Result<Option<String>, VerbError> {
    let object = client.json("GET", &context.pod(pod), None)?;
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
