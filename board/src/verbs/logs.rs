//! `nodlet logs`: prints the log of a container.

use std::time::Duration;

use lexopt::{Parser, ValueExt};

use crate::arguments::duration::duration;
use crate::arguments::{Context, next_flag, number, switch, value};
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::containers;

pub(crate) const VERB: Verb = Verb { name: "logs", summary: "Print the logs of a container", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let logs = Logs::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    let container = match &logs.container {
        Some(container) => Some(container.clone()),
        None => containers::default(&context, &client, &logs.pod)?,
    };
    let response = client.request("GET", &logs.target(&context, container.as_deref()), "*/*", None)?;
    response.print()
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Logs {
    pod: String,
    container: Option<String>,
    follow: bool,
    previous: bool,
    timestamps: bool,
    since: Option<Duration>,
    since_time: Option<String>,
    tail: Option<u64>,
    limit: Option<u64>,
}

impl Logs {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Logs, VerbError> {
        let mut logs = Logs::default();
        let mut values = Vec::new();
        while let Some(flag) = next_flag(parser, &mut values)? {
            match flag.as_str() {
                "-c" | "--container" => logs.container = Some(parser.value()?.string()?),
                "-f" => logs.follow = true,
                "-p" => logs.previous = true,
                "--follow" => logs.follow = switch(parser)?,
                "--previous" => logs.previous = switch(parser)?,
                "--timestamps" => logs.timestamps = switch(parser)?,
                "--since" => logs.since = duration(parser, "--since")?,
                "--since-time" => logs.since_time = Some(parser.value()?.string()?),
                "--tail" => logs.tail = value(parser, "--tail", lines)?,
                "--limit-bytes" => logs.limit = Some(number(parser, "--limit-bytes")?),
                other => context.namespaced(other, parser)?,
            }
        }
        let mut values = values.into_iter();
        let pod = values.next().ok_or_else(|| context.wrong_use("expected 'logs POD [-c CONTAINER]'"))?;
        logs.pod = containers::pod_name(&pod)?;
        match (values.next(), &logs.container) {
            (Some(_), Some(_)) => {
                return Err(VerbError::new("only one of -c or an inline [CONTAINER] arg is allowed"));
            }
            (Some(container), None) => logs.container = Some(container),
            (None, _) => {}
        }
        if let Some(more) = values.next() {
            return Err(context.wrong_use(format!("unexpected argument {more:?}")));
        }
        if logs.since.is_some() && logs.since_time.is_some() {
            return Err(VerbError::new("at most one of --since-time and --since may be used"));
        }
        Ok(logs)
    }

    fn target(&self, context: &Context, container: Option<&str>) -> String {
        let mut target = format!(
            "{}/log?follow={}&previous={}&timestamps={}",
            context.pod(&self.pod),
            self.follow,
            self.previous,
            self.timestamps
        );
        let numbers = [
            ("sinceSeconds", self.since.map(|since| since.as_secs().max(1))),
            ("tailLines", self.tail),
            ("limitBytes", self.limit),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                target.push_str(&format!("&{name}={number}"));
            }
        }
        for (name, text) in [("container", container), ("sinceTime", self.since_time.as_deref())] {
            if let Some(text) = text {
                target.push_str(&format!("&{name}={}", encode(text)));
            }
        }
        target
    }
}

/// Parses a number of lines. -1 means all lines, which is returned as `None`.
fn lines(text: &str) -> Result<Option<u64>, &'static str> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(lines) if lines >= 0 => Ok(Some(lines.unsigned_abs())),
        _ => Err("greater than or equal to -1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::check;

    #[test]
    fn arguments_of_logs() {
        let web = || Logs { pod: "web".into(), ..Logs::default() };
        let app = || Some("app".to_owned());
        let accepted = [
            ("web", web()),
            ("pod/web app", Logs { container: app(), ..web() }),
            (
                "-fp web -c app --timestamps",
                Logs { container: app(), follow: true, previous: true, timestamps: true, ..web() },
            ),
            (
                "web --tail=20 --since=1m30s",
                Logs { tail: Some(20), since: Some(Duration::from_secs(90)), ..web() },
            ),
            ("web --tail -1 --since=0", web()),
        ];
        let rejected = [
            ("", "expected 'logs POD [-c CONTAINER]'"),
            ("web a -c b", "only one of -c or an inline [CONTAINER] arg is allowed"),
            ("web a b", "unexpected argument \"b\""),
            ("node/x", "nodes have no containers"),
            ("web --tail=-2", "invalid value \"-2\" for --tail"),
            ("web --limit-bytes=x", "invalid value \"x\" for --limit-bytes"),
            ("web --since=5", "invalid value \"5\" for --since"),
            ("web --since=5d", "invalid value \"5d\" for --since"),
            ("web --since=1s --since-time=2026-01-31T12:00:00Z", "at most one of --since-time and --since"),
            ("web --prefix", "unknown flag: --prefix"),
        ];
        check(VERB.name, Logs::parse, accepted, &rejected);
    }
}
