//! `nodlet events`: prints events in the order of time, as `kubectl events` does.

use std::io::Write;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nodlet_kube::kinds::{Kind, interval};
use serde_json::{Value, json};

use crate::arguments::{Context, next_flag, switch};
use crate::client::{Client, WatchFlow, encode};
use crate::error::VerbError;
use crate::output::{self, Columns, escaped};
use crate::verb::{Outcome, Verb};
use crate::verbs::resources;

pub(crate) const VERB: Verb = Verb { name: "events", summary: "Show events in chronological order", run };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Table,
    Yaml,
    Json,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Events {
    /// The field selector made from `--for`.
    about: String,
    types: Vec<String>,
    all_namespaces: bool,
    format: Format,
    no_headers: bool,
    watch: bool,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let events = Events::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    let mut out = std::io::stdout().lock();
    let namespace = Some(context.namespace.as_str()).filter(|_| !events.all_namespaces);
    let collection = resources::collection(Kind::Event.row(), namespace);
    let target = format!("{collection}?fieldSelector={}", encode(&events.about));
    let mut columns = Columns::default();
    let mut headers = !events.no_headers;
    if events.watch {
        // Existing events come first, in the agent's order.
        client.watch(&format!("{target}&watch=true"), "application/json", |kind, event| {
            if kind != "DELETED" && events.shows(event) {
                match events.format {
                    Format::Table => columns.write(&mut out, &events.rows([event], &mut headers))?,
                    Format::Yaml => write!(out, "---\n{}", output::yaml(event))?,
                    Format::Json => writeln!(out, "{}", output::json(event))?,
                }
                out.flush()?;
            }
            Ok(WatchFlow::Continue)
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut found = client.list(&target)?;
    found.retain(|event| events.shows(event));
    if found.is_empty() {
        if events.all_namespaces {
            eprintln!("No events found.")
        } else {
            eprintln!("No events found in {} namespace.", context.namespace)
        }
        return Ok(ExitCode::SUCCESS);
    }
    // Events of the same second are sorted by the time of their first occurrence, which ends their name.
    let time = |event: &Value| {
        let name = event["metadata"]["name"].as_str().unwrap_or_default();
        let first = name.rsplit('.').next().unwrap_or_default();
        (event["lastTimestamp"].as_str().unwrap_or_default().to_owned(), first.to_owned())
    };
    found.sort_by_key(time);
    match events.format {
        Format::Table => columns.write(&mut out, &events.rows(&found, &mut headers))?,
        Format::Yaml | Format::Json => {
            let list = json!({
                "apiVersion": "v1", "items": found, "kind": "EventList", "metadata": { "resourceVersion": "" },
            });
            match events.format {
                Format::Yaml => write!(out, "{}", output::yaml(&list))?,
                Format::Table | Format::Json => writeln!(out, "{}", output::json(&list))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Events {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Events, VerbError> {
        let mut events = Events::default();
        let mut values = Vec::new();
        while let Some(flag) = next_flag(parser, &mut values)? {
            match flag.as_str() {
                "-A" => events.all_namespaces = true,
                "-w" => events.watch = true,
                "-o" | "--output" => events.format = format(&parser.value()?.string()?)?,
                "--for" => events.about = about(&parser.value()?.string()?)?,
                "--types" => events.types = types(&parser.value()?.string()?)?,
                "--all-namespaces" => events.all_namespaces = switch(parser)?,
                "--no-headers" => events.no_headers = switch(parser)?,
                "--watch" => events.watch = switch(parser)?,
                other => context.namespaced(other, parser)?,
            }
        }
        match values.first() {
            Some(value) => {
                Err(context.wrong_use(format!("unexpected argument {value:?}: use --for TYPE/NAME")))
            }
            None => Ok(events),
        }
    }

    fn shows(&self, event: &Value) -> bool {
        let kind = event["type"].as_str().unwrap_or_default();
        self.types.is_empty() || self.types.iter().any(|wanted| wanted.eq_ignore_ascii_case(kind))
    }

    fn rows<'a>(&self, events: impl IntoIterator<Item = &'a Value>, headers: &mut bool) -> Vec<Vec<String>> {
        let namespace = |value: &str| self.all_namespaces.then(|| value.to_owned());
        let mut rows: Vec<Vec<String>> = Vec::new();
        if std::mem::take(headers) {
            let names = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"].map(str::to_owned);
            rows.push(namespace("NAMESPACE").into_iter().chain(names).collect());
        }
        for event in events {
            let text = |value: &Value| escaped(value.as_str().unwrap_or_default()).into_owned();
            let about = &event["involvedObject"];
            let cells = [
                interval(event),
                text(&event["type"]),
                text(&event["reason"]),
                format!("{}/{}", text(&about["kind"]), text(&about["name"])),
                escaped(event["message"].as_str().unwrap_or_default().trim()).into_owned(),
            ];
            let of = event["metadata"]["namespace"].as_str().unwrap_or_default();
            rows.push(namespace(of).into_iter().chain(cells).collect());
        }
        rows
    }
}

/// The field selector for `TYPE/NAME`.
fn about(text: &str) -> Result<String, VerbError> {
    let (kind, name) =
        text.split_once('/').ok_or_else(|| VerbError::new("--for must be in resource/name form"))?;
    if name.contains('/') {
        return Err(VerbError::new("arguments in resource/name form may not have more than one slash"));
    }
    let row = resources::kind(kind)?.row();
    Ok(format!(
        "involvedObject.kind={},involvedObject.apiVersion={},involvedObject.name={name}",
        row.name, row.version
    ))
}

fn types(text: &str) -> Result<Vec<String>, VerbError> {
    let types: Vec<String> = text.split(',').map(str::to_owned).collect();
    let is_type = |kind: &String| ["normal", "warning"].contains(&kind.to_ascii_lowercase().as_str());
    if types.iter().all(is_type) {
        Ok(types)
    } else {
        Err(VerbError::new("valid --types are Normal or Warning"))
    }
}

fn format(text: &str) -> Result<Format, VerbError> {
    match text {
        "yaml" => Ok(Format::Yaml),
        "json" => Ok(Format::Json),
        other => Err(VerbError::new(format!(
            "unable to match a printer suitable for the output format {other:?}, allowed formats are: json,yaml"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check;

    #[test]
    fn arguments_mean_what_they_mean_to_kubectl() {
        let about = "involvedObject.kind=Pod,involvedObject.apiVersion=v1,involvedObject.name=web".to_owned();
        let accepted = [
            ("", Events::default()),
            ("--for pod/web -w", Events { about: about.clone(), watch: true, ..Events::default() }),
            (
                "--for=po/web --types=normal",
                Events { about, types: vec!["normal".into()], ..Events::default() },
            ),
            (
                "-A --no-headers -o yaml",
                Events { all_namespaces: true, no_headers: true, format: Format::Yaml, ..Events::default() },
            ),
        ];
        let rejected = [
            ("pods", "unexpected argument \"pods\": use --for TYPE/NAME"),
            ("--for web", "--for must be in resource/name form"),
            ("--for pod/a/b", "arguments in resource/name form may not have more than one slash"),
            ("--for deployment/a", "the server doesn't have a resource type \"deployment\""),
            ("--types Sad", "valid --types are Normal or Warning"),
            ("-o wide", "unable to match a printer suitable for the output format \"wide\""),
        ];
        check(VERB.name, Events::parse, accepted, &rejected);
    }
}
