//! `nodlet ring`: prints the agent's latest observations and actions.

use std::io::{self, BufRead, BufReader, Write};
use std::process::ExitCode;

use lexopt::{Parser, ValueExt};

use crate::arguments::{Context, switch};
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::output;
use crate::verb::{Outcome, Verb};

pub(crate) const VERB: Verb =
    Verb { name: "ring", summary: "Show the latest observations and actions of the agent", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let (mut follow, mut format) = (false, String::new());
    while let Some(flag) = context.next_flag(&mut parser)? {
        match flag.as_str() {
            "-f" => follow = true,
            "--follow" => follow = switch(&mut parser)?,
            "-o" | "--output" => format = parser.value()?.string()?,
            other => context.global(other, &mut parser)?,
        }
    }
    if !matches!(format.as_str(), "" | "json") {
        return Err(VerbError::new(format!(
            "unable to match a printer suitable for the output format {format:?}, allowed formats are: json"
        )));
    }
    let client = Client::new(&context)?;
    let nodes = client.json("GET", "/api/v1/nodes", None)?;
    let node = nodes["items"][0]["metadata"]["name"].as_str().unwrap_or_default();
    let target = format!("/api/v1/nodes/{}/proxy/debug/ring?follow={follow}&output={format}", encode(node));
    let response = client.request("GET", &target, "*/*", None)?;
    if format.is_empty() {
        return response.print();
    }
    // Entries hold texts of containers, and JSON leaves some characters as they are that steer a terminal.
    let mut out = io::stdout().lock();
    for line in BufReader::new(response.body).lines() {
        writeln!(out, "{}", output::escaped_json(line.map_err(VerbError::disconnected)?))?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}
