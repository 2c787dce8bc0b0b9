//! `nodlet describe`: prints the details of a pod, of the node or of another object, as kubectl does.

use std::io::Write;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nodlet_kube::kinds::{self, Kind};
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
        if describe.kind.row().namespaced && !describe.all_namespaces {
            eprintln!("No resources found in {} namespace.", context.namespace)
        } else {
            eprintln!("No resources found")
        }
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
        let list = |labels: &str| -> Result<Vec<Value>, VerbError> {
            let mut list =
                client.json("GET", &format!("{collection}?labelSelector={}", encode(labels)), None)?;
            Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
        };
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
        let search = |more: &str| -> Result<Vec<Value>, VerbError> {
            let selector = format!("involvedObject.name={name},involvedObject.namespace={namespace}{more}");
            let collection =
                collection(Kind::Event.row(), Some(namespace).filter(|namespace| !namespace.is_empty()));
            let mut list =
                client.json("GET", &format!("{collection}?fieldSelector={}", encode(&selector)), None)?;
            Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
        };
        let its = format!(
            ",involvedObject.kind={},involvedObject.uid={}",
            text_of(&object["kind"]),
            text_of(&metadata["uid"])
        );
        Ok(match kinds::strategy(self.kind).describe {
            kinds::Describe::Node(describe) => {
                // The events of the node have its name as UID.
                let events = events.then(|| search(",involvedObject.kind=Node")).transpose()?;
                let selector = format!("spec.nodeName={name},status.phase!=Failed,status.phase!=Succeeded");
                let mut pods =
                    client.json("GET", &format!("/api/v1/pods?fieldSelector={}", encode(&selector)), None)?;
                let pods = pods["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
                describe(object, &pods, events)
            }
            kinds::Describe::Alone(describe) => describe(object),
            kinds::Describe::Namespace(describe) => {
                let path = format!("/api/v1/namespaces/{}/limitranges", encode(name));
                let mut ranges = client.json("GET", &path, None)?;
                describe(object, &ranges["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
            }
            kinds::Describe::Claim(describe) => {
                let path = format!("/api/v1/namespaces/{}/pods", encode(text_of(&metadata["namespace"])));
                let mut pods = client.json("GET", &path, None)?;
                let pods = pods["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
                describe(object, &pods, events.then(|| search(&its)).transpose()?)
            }
            kinds::Describe::WithEvents(describe) => {
                describe(object, events.then(|| search(&its)).transpose()?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Describe, String> {
        let mut context = Context::new();
        context.verb = "describe";
        let mut parser = Parser::from_args(line.split_whitespace());
        Describe::parse(&mut context, &mut parser).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_mean_what_they_mean_to_kubectl() {
        let pods = || Describe { kind: Kind::Pod, ..Describe::default() };
        for (line, expected) in [
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
        ] {
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("", "error: You must specify the type of resource to describe."),
            ("services", "error: the server doesn't have a resource type \"services\""),
            ("pod web -l a=b", "error: name cannot be provided when a selector is specified"),
            ("pod web -A", "error: a resource cannot be retrieved by name across all namespaces"),
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.starts_with(expected), "{line}: {refused}");
        }
    }
}
