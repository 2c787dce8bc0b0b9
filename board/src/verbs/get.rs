//! `nodlet get`: prints objects as a table, as YAML, as JSON or by name, and with `-w` also their changes.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::Validation;
use serde_json::{Value, json};

use crate::arguments::{Context, next_flag, switch};
use crate::client::{Client, WatchFlow, encode};
use crate::error::VerbError;
use crate::output::{self, Columns};
use crate::verb::{Outcome, Verb};
use crate::verbs::files;
use crate::verbs::resources;
use crate::verbs::resources::collection;

pub(crate) const VERB: Verb = Verb { name: "get", summary: "List pods, events and other objects", run };

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Table,
    Wide,
    Yaml,
    Json,
    Name,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Get {
    kind: Kind,
    /// Namespace and name of each named object.
    names: Vec<(String, String)>,
    files: Vec<PathBuf>,
    all_namespaces: bool,
    labels: String,
    fields: String,
    format: Format,
    no_headers: bool,
    show_labels: bool,
    watch: bool,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let get = Get::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    let mut out = std::io::stdout().lock();
    match get.format {
        Format::Table | Format::Wide => get.tables(&context, &client, &mut out),
        Format::Yaml | Format::Json | Format::Name => get.objects(&context, &client, &mut out),
    }
}

impl Get {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Get, VerbError> {
        let mut get = Get::default();
        let mut values: Vec<String> = Vec::new();
        while let Some(flag) = next_flag(parser, &mut values)? {
            match flag.as_str() {
                "-A" => get.all_namespaces = true,
                "-l" | "--selector" => get.labels = parser.value()?.string()?,
                "-w" => get.watch = true,
                "-f" | "--filename" => get.files.push(parser.value()?.into()),
                "-o" | "--output" => get.format = format(&parser.value()?.string()?)?,
                "--all-namespaces" => get.all_namespaces = switch(parser)?,
                "--field-selector" => get.fields = parser.value()?.string()?,
                "--no-headers" => get.no_headers = switch(parser)?,
                "--show-labels" => get.show_labels = switch(parser)?,
                "--watch" => get.watch = switch(parser)?,
                other => context.namespaced(other, parser)?,
            }
        }
        get.parse_targets(context, values)?;
        if !get.names.is_empty() {
            if get.all_namespaces {
                return Err(VerbError::new("a resource cannot be retrieved by name across all namespaces"));
            }
            if !get.labels.is_empty() || !get.fields.is_empty() {
                return Err(VerbError::new("name cannot be provided when a selector is specified"));
            }
            if get.watch && get.names.len() > 1 {
                return Err(VerbError::new(
                    "watch is only supported on individual resources and resource collections",
                ));
            }
        }
        Ok(get)
    }

    /// Parses the type and the names, from the positional arguments or from files.
    fn parse_targets(&mut self, context: &Context, values: Vec<String>) -> Result<(), VerbError> {
        let mut values = values.into_iter();
        let Some(first) = values.next() else {
            if self.files.is_empty() {
                return Err(context.wrong_use("You must specify the type of resource to get."));
            }
            self.kind = Kind::Pod;
            let (objects, failures) = files::read(&self.files, Validation::Ignore)?;
            if let Some(failure) = failures.into_iter().next() {
                return Err(failure);
            }
            for object in objects.iter().filter(|object| object.is_pod()) {
                self.names.push((context.namespace_of(&object.value)?, object.required_name()?.into()));
            }
            return Ok(());
        };
        if !self.files.is_empty() {
            return Err(context.wrong_use("specify a type and names, or -f FILE"));
        }
        let (kind, name) = match first.split_once('/') {
            Some((kind, name)) => (kind, Some(name.to_owned())),
            None => (first.as_str(), None),
        };
        self.kind = resources::kind(kind)?;
        let mut names: Vec<String> = name.into_iter().collect();
        for value in values {
            match value.split_once('/') {
                None => names.push(value),
                Some((kind, name)) if resources::kind(kind)? == self.kind => names.push(name.into()),
                Some(_) => return Err(VerbError::new("only one type of resource is accepted")),
            }
        }
        self.names = names.into_iter().map(|name| (context.namespace.clone(), name)).collect();
        Ok(())
    }

    fn collection(&self, namespace: &str) -> String {
        collection(self.kind.row(), Some(namespace).filter(|_| !self.all_namespaces))
    }

    /// The paths of the first requests: the named objects, or all objects.
    fn targets(&self, context: &Context) -> Vec<String> {
        if self.names.is_empty() {
            return vec![format!("{}?{}", self.collection(&context.namespace), self.selectors())];
        }
        let target =
            |(namespace, name): &(String, String)| format!("{}/{}", self.collection(namespace), encode(name));
        self.names.iter().map(target).collect()
    }

    fn selectors(&self) -> String {
        format!("labelSelector={}&fieldSelector={}", encode(&self.labels), encode(&self.fields))
    }

    fn tables(&self, context: &Context, client: &Client, out: &mut impl Write) -> Outcome {
        const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        let shown = output::Shown {
            wide: self.format == Format::Wide,
            namespace: self.kind.row().namespaced && self.all_namespaces,
            labels: self.show_labels,
        };
        let mut headers = !self.no_headers;
        let (mut rows, mut version, mut missing) = (Vec::new(), String::new(), Vec::new());
        for target in self.targets(context) {
            let table = match client.request("GET", &target, TABLE, None) {
                Ok(response) => response.json()?,
                Err(failure) if self.names.len() > 1 => {
                    missing.push(failure);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            version = table["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
            if table["rows"].as_array().is_some_and(|rows| !rows.is_empty()) {
                rows.extend(output::rows(&table, shown, std::mem::take(&mut headers)));
            }
        }
        let mut columns = Columns::default();
        columns.write(out, &rows)?;
        for failure in &missing {
            eprintln!("{failure}");
        }
        if rows.is_empty() && missing.is_empty() && !self.watch {
            context.none_found("resources", !self.kind.row().namespaced || self.all_namespaces);
        }
        if self.watch {
            self.watch(context, client, TABLE, &version, |table| {
                columns.write(out, &output::rows(table, shown, std::mem::take(&mut headers)))?;
                Ok(())
            })?;
        }
        Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn objects(&self, context: &Context, client: &Client, out: &mut impl Write) -> Outcome {
        let mut found = Vec::new();
        let mut version = String::new();
        for target in self.targets(context) {
            let mut object = client.json("GET", &target, None)?;
            version = object["metadata"]["resourceVersion"].as_str().unwrap_or("").to_owned();
            match object.get_mut("items").map(Value::take) {
                Some(Value::Array(items)) => found.extend(items),
                _ => found.push(object),
            }
        }
        if self.format == Format::Name || self.watch || self.names.len() == 1 {
            for object in &found {
                self.show(object, out)?;
            }
        } else {
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": found});
            self.show(&list, out)?;
        }
        if self.watch {
            let mut first = found.is_empty();
            self.watch(context, client, "application/json", &version, |object| {
                if self.format == Format::Yaml && !std::mem::take(&mut first) {
                    writeln!(out, "---")?;
                }
                self.show(object, out)?;
                out.flush()?;
                Ok(())
            })?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn show(&self, object: &Value, out: &mut impl Write) -> Result<(), VerbError> {
        match self.format {
            Format::Yaml => write!(out, "{}", output::yaml(object))?,
            Format::Json => writeln!(out, "{}", output::json(object))?,
            Format::Name | Format::Table | Format::Wide => {
                let singular = self.kind.row().singular;
                writeln!(
                    out,
                    "{singular}/{}",
                    output::escaped(object["metadata"]["name"].as_str().unwrap_or(""))
                )?;
            }
        }
        Ok(())
    }

    /// Watches the objects until the agent ends the watch.
    fn watch(
        &self,
        context: &Context,
        client: &Client,
        accept: &str,
        version: &str,
        mut show: impl FnMut(&Value) -> Result<(), VerbError>,
    ) -> Result<(), VerbError> {
        let (namespace, selectors) = match self.names.first() {
            Some((namespace, name)) => {
                (namespace, format!("fieldSelector={}", encode(&format!("metadata.name={name}"))))
            }
            None => (&context.namespace, self.selectors()),
        };
        let target =
            format!("{}?watch=true&resourceVersion={version}&{selectors}", self.collection(namespace));
        client.watch(&target, accept, |_, object| {
            show(object)?;
            Ok(WatchFlow::Continue)
        })?;
        Ok(())
    }
}

fn format(text: &str) -> Result<Format, VerbError> {
    match text {
        "wide" => Ok(Format::Wide),
        "yaml" => Ok(Format::Yaml),
        "json" => Ok(Format::Json),
        "name" => Ok(Format::Name),
        other => Err(VerbError::new(format!(
            "unable to match a printer suitable for the output format {other:?}, allowed formats are: json,name,wide,yaml"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use nodlet_kube::kinds;

    use super::*;
    use crate::testing::check;

    fn pods() -> Get {
        Get { kind: Kind::Pod, ..Get::default() }
    }

    #[test]
    fn arguments_mean_what_they_mean_to_kubectl() {
        let web = || vec![("default".to_owned(), "web".to_owned())];
        let kitchen = vec![("kitchen".to_owned(), "web".to_owned())];
        let accepted = [
            ("pods", pods()),
            ("po web", Get { names: web(), ..pods() }),
            ("pod/web", Get { names: web(), ..pods() }),
            ("pods -n kitchen -o wide", Get { format: Format::Wide, ..pods() }),
            ("pods web --namespace=kitchen -oyaml", Get { names: kitchen, format: Format::Yaml, ..pods() }),
            (
                "pods -A -w --no-headers",
                Get { all_namespaces: true, watch: true, no_headers: true, ..pods() },
            ),
            ("pods --watch=false -l app=web", Get { labels: "app=web".into(), ..pods() }),
            ("-ojson nodes", Get { kind: Kind::Node, format: Format::Json, ..Get::default() }),
        ];
        let rejected = [
            ("", "You must specify the type of resource to get."),
            ("ingresses", "the server doesn't have a resource type \"ingresses\""),
            ("pods -f a.yaml", "specify a type and names, or -f FILE"),
            ("-f /none.yaml", "the path \"/none.yaml\" does not exist"),
            ("pods --nope", "unknown flag: --nope"),
            ("pods -x", "unknown flag: -x"),
            ("pods -o tree", "unable to match a printer suitable for the output format \"tree\""),
            ("pods web -A", "a resource cannot be retrieved by name across all namespaces"),
            ("pods web -l a=b", "name cannot be provided when a selector is specified"),
            ("pods a b -w", "watch is only supported on individual resources"),
            ("pods --watch=maybe", "invalid value \"maybe\": must be true or false"),
        ];
        check(VERB.name, Get::parse, accepted, &rejected);
    }

    #[test]
    fn the_help_names_every_kind() {
        for row in kinds::KINDS {
            let short = row.short_names.first().map(|name| format!(" ({name})")).unwrap_or_default();
            for verb in [&VERB, &crate::verbs::describe::VERB] {
                assert!(
                    crate::help::of(verb.name).contains(&format!("{}{short}", row.plural)),
                    "{}",
                    row.plural
                );
            }
        }
    }
}
