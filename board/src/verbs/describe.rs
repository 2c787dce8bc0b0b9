//! `nodlet describe`: prints the details of a pod, of the node or of another object, as kubectl does.

use std::io::Write;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nodlet_kube::kinds::{self, Kind, Related};
use serde_json::Value;

use crate::arguments::{Context, next_flag, switch};
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::resources::{collection, kind};

pub(crate) const VERB: Verb =
    Verb { name: "describe", summary: "Show details of pods, the node and other objects", run };

#[derive(Debug, Default, PartialEq, Eq)]
struct Describe {
    kind: Kind,
    names: Vec<String>,
    /// Whether a name was given as `TYPE/NAME`, so that it is no prefix of other names.
    exact: bool,
    all_namespaces: bool,
    labels: String,
    show_events: Option<bool>,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let describe = Describe::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    let mut out = std::io::stdout().lock();
    let Selection { objects, missing, by_prefix } = describe.find(&context, &client)?;
    let all = objects.len() + missing.len();
    let events = describe.show_events.unwrap_or(all <= 1 && !by_prefix);
    for (place, object) in objects.iter().enumerate() {
        let text = describe.text(&client, object, events)?;
        if by_prefix {
            writeln!(out, "{}", crate::output::escaped(&text))?
        } else {
            write!(out, "{}{}", if place > 0 { "\n\n" } else { "" }, crate::output::escaped(&text))?
        }
    }
    out.flush()?;
    for failure in &missing {
        eprintln!("{failure}");
    }
    if all == 0 {
        context.none_found("resources", !describe.kind.row().namespaced || describe.all_namespaces);
    }
    Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a string, which is empty for other values.
fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The objects to describe.
#[derive(Default)]
struct Selection {
    objects: Vec<Value>,
    /// The errors about missing objects.
    missing: Vec<VerbError>,
    /// Whether the given name is a prefix of the objects' names.
    by_prefix: bool,
}

impl Describe {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Describe, VerbError> {
        let mut describe = Describe::default();
        let mut values: Vec<String> = Vec::new();
        while let Some(flag) = next_flag(parser, &mut values)? {
            match flag.as_str() {
                "-A" => describe.all_namespaces = true,
                "-l" | "--selector" => describe.labels = parser.value()?.string()?,
                "--all-namespaces" => describe.all_namespaces = switch(parser)?,
                "--show-events" => describe.show_events = Some(switch(parser)?),
                other => context.namespaced(other, parser)?,
            }
        }
        let mut values = values.into_iter();
        let first = values
            .next()
            .ok_or_else(|| context.wrong_use("You must specify the type of resource to describe."))?;
        let (kind, name) = match first.split_once('/') {
            Some((kind, name)) => (kind.to_owned(), Some(name.to_owned())),
            None => (first, None),
        };
        describe.kind = self::kind(&kind)?;
        describe.exact = name.is_some();
        describe.names.extend(name);
        for value in values {
            let name = match value.split_once('/') {
                Some((other, name)) if describe.exact && self::kind(other)? == describe.kind => {
                    name.to_owned()
                }
                Some(_) => {
                    return Err(VerbError::new(format!(
                        "{value}: only objects of one type can be described at once"
                    )));
                }
                None => value,
            };
            describe.names.push(name);
        }
        if !describe.names.is_empty() && !describe.labels.is_empty() {
            return Err(VerbError::new("name cannot be provided when a selector is specified"));
        }
        if !describe.names.is_empty() && describe.all_namespaces {
            return Err(VerbError::new("a resource cannot be retrieved by name across all namespaces"));
        }
        Ok(describe)
    }

    fn find(&self, context: &Context, client: &Client) -> Result<Selection, VerbError> {
        let namespace = Some(context.namespace.as_str()).filter(|_| !self.all_namespaces);
        let collection = collection(self.kind.row(), namespace);
        let list = |labels: &str| client.list(&format!("{collection}?labelSelector={}", encode(labels)));
        if self.names.is_empty() {
            return Ok(Selection { objects: list(&self.labels)?, ..Selection::default() });
        }
        let mut found = Selection::default();
        for name in &self.names {
            match client.json("GET", &format!("{collection}/{}", encode(name)), None) {
                Ok(object) => found.objects.push(object),
                // A single name may be a prefix.
                Err(failure) if failure.code() == Some(404) && self.names.len() == 1 && !self.exact => {
                    let begins =
                        |object: &Value| text_of(&object["metadata"]["name"]).starts_with(name.as_str());
                    found.objects = list("")?.into_iter().filter(begins).collect();
                    found.by_prefix = true;
                    if found.objects.is_empty() {
                        found.missing.push(failure);
                    }
                }
                Err(failure) if failure.code() == Some(404) => found.missing.push(failure),
                Err(failure) => return Err(failure),
            }
        }
        Ok(found)
    }

    fn text(&self, client: &Client, object: &Value, events: bool) -> Result<String, VerbError> {
        let metadata = &object["metadata"];
        let (name, namespace) = (text_of(&metadata["name"]), text_of(&metadata["namespace"]));
        let search = |more: &str| {
            let selector = format!("involvedObject.name={name},involvedObject.namespace={namespace}{more}");
            let collection =
                collection(Kind::Event.row(), Some(namespace).filter(|namespace| !namespace.is_empty()));
            client.list(&format!("{collection}?fieldSelector={}", encode(&selector)))
        };
        let its = format!(
            ",involvedObject.kind={},involvedObject.uid={}",
            text_of(&object["kind"]),
            text_of(&metadata["uid"])
        );
        let strategy = kinds::strategy(self.kind);
        // The events of the node have its name as UID.
        let its = if self.kind == Kind::Node { ",involvedObject.kind=Node" } else { &its };
        let events = (events && strategy.has_events).then(|| search(its)).transpose()?;
        let path = match strategy.related {
            Related::Nothing => return Ok(strategy.describe(object, &[], events)),
            Related::LimitRanges => format!("/api/v1/namespaces/{}/limitranges", encode(name)),
            Related::Pods => format!("/api/v1/namespaces/{}/pods", encode(namespace)),
            Related::EndpointSlices => {
                let slices = collection(Kind::EndpointSlice.row(), Some(namespace));
                let selector = format!("kubernetes.io/service-name={name}");
                format!("{slices}?labelSelector={}", encode(&selector))
            }
            Related::UnfinishedPods => {
                let selector = format!("spec.nodeName={name},status.phase!=Failed,status.phase!=Succeeded");
                format!("/api/v1/pods?fieldSelector={}", encode(&selector))
            }
        };
        let related = client.list(&path)?;
        Ok(strategy.describe(object, &related, events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check;

    #[test]
    fn arguments_mean_what_they_mean_to_kubectl() {
        let pods = || Describe { kind: Kind::Pod, ..Describe::default() };
        let accepted = [
            ("pods", pods()),
            ("pod web db", Describe { names: vec!["web".into(), "db".into()], ..pods() }),
            ("po/web", Describe { names: vec!["web".into()], exact: true, ..pods() }),
            ("po -l a=b --show-events", Describe { labels: "a=b".into(), show_events: Some(true), ..pods() }),
            (
                "pods -A --show-events=false",
                Describe { all_namespaces: true, show_events: Some(false), ..pods() },
            ),
            ("node", Describe { kind: Kind::Node, ..Describe::default() }),
            (
                "pc high",
                Describe { kind: Kind::PriorityClass, names: vec!["high".into()], ..Describe::default() },
            ),
            ("podpreset", Describe { kind: Kind::PodPreset, ..pods() }),
        ];
        let rejected = [
            ("", "You must specify the type of resource to describe."),
            ("ingresses", "the server doesn't have a resource type \"ingresses\""),
            ("pod web -l a=b", "name cannot be provided when a selector is specified"),
            ("pod web -A", "a resource cannot be retrieved by name across all namespaces"),
        ];
        check(VERB.name, Describe::parse, accepted, &rejected);
    }
}
