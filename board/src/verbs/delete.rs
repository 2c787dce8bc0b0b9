//! `nodlet delete`: stops and removes pods, and waits until they are gone; removes other objects.

use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nodlet_kube::kinds::{KINDS, Kind};
use nodlet_kube::manifest::Validation;
use serde_json::{Value, json};

use crate::arguments::{Context, next_flag, switch, value};
use crate::client::{Client, WatchFlow, encode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::files;
use crate::verbs::resources;

pub(crate) const VERB: Verb = Verb { name: "delete", summary: "Delete pods and other objects", run };

const WARNING: &str = "Warning: Immediate deletion does not wait for confirmation that the running resource has been \
                       terminated. The resource may continue to run on the cluster indefinitely.";

#[derive(Debug, PartialEq, Eq)]
struct Delete {
    /// The kind of the objects in `names`.
    kind: Kind,
    names: Vec<String>,
    files: Vec<PathBuf>,
    labels: String,
    all: bool,
    grace: Option<i64>,
    ignore_not_found: bool,
    wait: bool,
}

/// An object to delete.
struct DeleteTarget {
    kind: Kind,
    /// The API path of the object's collection.
    collection: String,
    /// `None` if the kind is not namespaced.
    namespace: Option<String>,
    name: String,
}

impl DeleteTarget {
    fn new(kind: Kind, namespace: &str, name: &str) -> DeleteTarget {
        let row = kind.row();
        let collection = resources::collection(row, Some(namespace));
        DeleteTarget {
            kind,
            collection,
            namespace: row.namespaced.then(|| namespace.to_owned()),
            name: name.into(),
        }
    }
}

/// A pod that is being deleted.
struct DeletedPod {
    namespace: String,
    name: String,
    uid: String,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let delete = Delete::parse(&mut context, &mut parser)?;
    if delete.grace == Some(0) {
        eprintln!("{WARNING}");
    }
    let client = Client::new(&context)?;
    let named = delete.named(&context, &client)?;
    let (mut going, mut code) = (Vec::new(), ExitCode::SUCCESS);
    for named in &named {
        match delete.one(&client, named) {
            Ok(found) => {
                println!("{}", delete.deleted(named));
                // Only pods take time to end: a preset is gone as soon as the agent has responded.
                going.extend(Some(found).filter(|_| named.kind == Kind::Pod));
            }
            Err(failure) if failure.is_disconnected() => return Err(failure),
            Err(failure) if delete.ignore_not_found && failure.is_not_found() => {}
            Err(failure) => {
                eprintln!("{failure}");
                code = ExitCode::FAILURE;
            }
        }
    }
    if named.is_empty() {
        println!("No resources found");
    }
    if delete.wait {
        for pod in &going {
            wait_until_gone(&client, pod)?;
        }
    }
    Ok(code)
}

impl Delete {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Delete, VerbError> {
        let mut delete = Delete {
            kind: Kind::Pod,
            names: Vec::new(),
            files: Vec::new(),
            labels: String::new(),
            all: false,
            grace: None,
            ignore_not_found: false,
            wait: true,
        };
        let (mut values, mut force, mut now) = (Vec::new(), false, false);
        while let Some(flag) = next_flag(parser, &mut values)? {
            match flag.as_str() {
                "-f" | "--filename" => delete.files.push(parser.value()?.into()),
                "-l" | "--selector" => delete.labels = parser.value()?.string()?,
                "--all" => delete.all = switch(parser)?,
                "--grace-period" => {
                    delete.grace = Some(value(parser, &flag, |text| text.parse().or(Err("seconds")))?);
                }
                "--now" => now = switch(parser)?,
                "--force" => force = switch(parser)?,
                "--ignore-not-found" => delete.ignore_not_found = switch(parser)?,
                "--wait" => delete.wait = switch(parser)?,
                other => context.namespaced(other, parser)?,
            }
        }
        // kubectl uses -1 for the pod's own grace period.
        delete.grace = delete.grace.filter(|seconds| *seconds >= 0);
        if now {
            if delete.grace.is_some() {
                return Err(VerbError::new("--now and --grace-period cannot be specified together"));
            }
            delete.grace = Some(1);
        }
        delete.grace = match (delete.grace, force) {
            (Some(seconds), true) if seconds > 0 => {
                return Err(VerbError::new(
                    "--force and --grace-period greater than 0 cannot be specified together",
                ));
            }
            (_, true) => Some(0),
            (Some(0), false) => Some(1),
            (grace, false) => grace,
        };
        delete.names(context, values)?;
        Ok(delete)
    }

    fn names(&mut self, context: &Context, values: Vec<String>) -> Result<(), VerbError> {
        let deletable = |name: &str| match resources::kind(name)? {
            kind if kind.row().allows("delete") => Ok(kind),
            other => Err(VerbError::new(format!(
                "{} cannot be deleted, only {}",
                other.resource(),
                resources::plurals(KINDS.iter().filter(|row| row.allows("delete")))
            ))),
        };
        let mut values = values.into_iter().peekable();
        let mut typed = false;
        if let Some(first) = values.next_if(|first| !first.contains('/')) {
            self.kind = deletable(&first)?;
            typed = true;
        }
        for value in values {
            match value.split_once('/') {
                Some((kind, name)) => {
                    let kind = deletable(kind)?;
                    if (typed || !self.names.is_empty()) && kind != self.kind {
                        return Err(VerbError::new("only one type of resource is accepted"));
                    }
                    self.kind = kind;
                    self.names.push(name.into());
                }
                None if typed => self.names.push(value),
                None => return Err(context.wrong_use("TYPE/NAME and names without a type cannot be mixed")),
            }
        }
        if self.kind != Kind::Pod && (self.all || !self.labels.is_empty()) {
            return Err(VerbError::new(format!("{} are deleted by name or with -f", self.kind.resource())));
        }
        let ways = [!self.names.is_empty(), !self.files.is_empty(), !self.labels.is_empty(), self.all];
        match ways.into_iter().filter(|given| *given).count() {
            1 if typed || !self.names.is_empty() || !self.files.is_empty() => {
                self.ignore_not_found |= self.all || !self.labels.is_empty();
                Ok(())
            }
            0 if typed => Err(VerbError::new("resource(s) were provided, but no name was specified")),
            0 | 1 => Err(context.wrong_use("You must provide one or more pods: pod NAME, or -f FILE")),
            _ => Err(context.wrong_use("specify one of names, -f FILE, -l LABELS and --all")),
        }
    }

    fn named(&self, context: &Context, client: &Client) -> Result<Vec<DeleteTarget>, VerbError> {
        if !self.files.is_empty() {
            let (objects, failures) = files::read(&self.files, Validation::Ignore)?;
            if let Some(failure) = failures.into_iter().next() {
                return Err(failure);
            }
            let named = objects.iter().map(|object| {
                Ok(DeleteTarget::new(
                    object.kind(),
                    &context.namespace_of(&object.value)?,
                    object.required_name()?,
                ))
            });
            return named.collect();
        }
        let of = |name: &str| DeleteTarget::new(self.kind, &context.namespace, name);
        if !self.names.is_empty() {
            return Ok(self.names.iter().map(|name| of(name)).collect());
        }
        let target = format!(
            "/api/v1/namespaces/{}/pods?labelSelector={}",
            encode(&context.namespace),
            encode(&self.labels)
        );
        let pods = client.list(&target)?;
        Ok(pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).map(of).collect())
    }

    fn one(&self, client: &Client, named: &DeleteTarget) -> Result<DeletedPod, VerbError> {
        let target = format!("{}/{}", named.collection, encode(&named.name));
        let mut options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        if let Some(seconds) = self.grace {
            options["gracePeriodSeconds"] = seconds.into();
        }
        let answer = client.json("DELETE", &target, Some(&options))?;
        let uid = |place: &Value| place["uid"].as_str().map(str::to_owned);
        let uid = uid(&answer["metadata"]).or_else(|| uid(&answer["details"])).unwrap_or_default();
        Ok(DeletedPod {
            namespace: named.namespace.clone().unwrap_or_default(),
            name: named.name.clone(),
            uid,
        })
    }

    fn deleted(&self, named: &DeleteTarget) -> String {
        let force = if self.grace == Some(0) { "force " } else { "" };
        let DeleteTarget { kind, name, namespace, .. } = named;
        let from =
            namespace.as_ref().map(|namespace| format!(" from {namespace} namespace")).unwrap_or_default();
        format!("{} \"{name}\" {force}deleted{from}", kind.row().qualified_singular())
    }
}

/// Waits until the pod is gone. A pod with the same name and another uid is another pod.
fn wait_until_gone(client: &Client, pod: &DeletedPod) -> Result<(), VerbError> {
    let selector = encode(&format!("metadata.name={}", pod.name));
    let pods = format!("/api/v1/namespaces/{}/pods?fieldSelector={selector}", encode(&pod.namespace));
    let is_it = |object: &Value| object["metadata"]["uid"].as_str() == Some(&pod.uid) || pod.uid.is_empty();
    loop {
        let list = client.json("GET", &pods, None)?;
        if !list["items"].as_array().is_some_and(|items| items.iter().any(is_it)) {
            return Ok(());
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0");
        let target = format!("{pods}&watch=true&resourceVersion={version}");
        let watched = client.watch(&target, "application/json", |kind, object| {
            Ok(if is_it(object) == (kind == "DELETED") { WatchFlow::Stop } else { WatchFlow::Continue })
        });
        match watched {
            Ok(WatchFlow::Stop) => return Ok(()),
            Ok(WatchFlow::Continue) => {}
            // The watch fell behind the agent's ring of events: list again.
            Err(failure) if failure.is_expired() => {}
            Err(failure) => return Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check, parsed};

    fn parse(line: &str) -> Result<Delete, String> {
        parsed(VERB.name, Delete::parse, line)
    }

    #[test]
    fn grace_and_force_are_kubectls() {
        for (line, grace) in [
            ("pod web", None),
            ("pod web --grace-period=5", Some(5)),
            ("pod web --grace-period=0", Some(1)),
            ("pod web --grace-period=-1", None),
            ("pod web --grace-period=0 --force", Some(0)),
            ("pod web --force", Some(0)),
            ("pod web --now", Some(1)),
        ] {
            assert_eq!(parse(line).map(|delete| delete.grace), Ok(grace), "{line}");
        }
    }

    #[test]
    fn delete_accepts_one_way_to_select_objects_and_rejects_wrong_arguments() {
        for line in ["pod web", "pods a b", "po/web pod/db", "-f web.yaml", "pods -l app=web", "pods --all"] {
            assert!(parse(line).is_ok(), "{line}: {:?}", parse(line));
        }
        let rejected = [
            ("", "You must provide one or more pods"),
            ("pod", "resource(s) were provided, but no name was specified"),
            ("--all", "You must provide one or more pods"),
            ("pod web --all", "specify one of"),
            (
                "node board",
                "nodes cannot be deleted, only pods, configmaps, secrets, podpresets, priorityclasses, \
                 limitranges, runtimeclasses, persistentvolumes, persistentvolumeclaims, services and endpointslices",
            ),
            ("web", "the server doesn't have a resource type \"web\""),
            ("pod web --force --grace-period=3", "--force and --grace-period greater than 0 cannot be"),
            ("pod web --now --grace-period=3", "--now and --grace-period cannot be specified together"),
            ("pod web --grace-period=soon", "invalid value \"soon\" for --grace-period"),
            ("pod web --cascade", "unknown flag: --cascade"),
        ];
        check(VERB.name, Delete::parse, [], &rejected);
    }
}
