//! `nodlet version`: prints the versions of this program and of the agent that responds.

use std::process::ExitCode;

use lexopt::{Parser, ValueExt};
use nodlet_runtime::built_from;
use serde_json::json;

use crate::arguments::{Context, switch};
use crate::client::Client;
use crate::error::VerbError;
use crate::output;
use crate::verb::{Outcome, Verb};

pub(crate) const VERB: Verb =
    Verb { name: "version", summary: "Print the versions of this program and of the agent", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let (mut client_only, mut format) = (false, None);
    while let Some(flag) = context.next_flag(&mut parser)? {
        match flag.as_str() {
            "--client" => client_only = switch(&mut parser)?,
            "-o" | "--output" => format = Some(parser.value()?.string()?),
            other => context.global(other, &mut parser)?,
        }
    }
    let version = built_from::version(concat!("v", env!("CARGO_PKG_VERSION")));
    // Without an agent the client's version is still printed: it may be why the user asks.
    let server = if client_only {
        None
    } else {
        match Client::new(&context)?.json("GET", "/version", None) {
            Ok(server) => Some(server),
            Err(failure) if failure.is_disconnected() => {
                eprintln!("{}", failure.to_string().replacen("error: ", "", 1));
                None
            }
            Err(failure) => return Err(failure),
        }
    };
    match format.as_deref() {
        None => {
            println!("Client Version: {version}");
            if let Some(commit) = built_from::commit() {
                println!("Client Commit: {} of {}", commit.hash, commit.date);
            }
            println!("Client Target: {}", built_from::TARGET);
            if let Some(server) = &server {
                println!("Server Version: {}", server["gitVersion"].as_str().unwrap_or("unknown"));
            }
        }
        Some(format @ ("json" | "yaml")) => {
            let mut client = built_from::fields();
            client.insert("gitVersion".into(), version.into());
            let mut versions = json!({ "clientVersion": client });
            if let Some(server) = server {
                versions["serverVersion"] = server;
            }
            match format {
                "json" => println!("{}", output::json(&versions)),
                _ => print!("{}", output::yaml(&versions)),
            }
        }
        Some(_) => return Err(VerbError::new("--output must be 'yaml' or 'json'")),
    }
    Ok(ExitCode::SUCCESS)
}
