//! `nodlet push`: sends images and manifests to a board, all of them or none.
//!
//! The archives stay on this machine. Of each, only the documents that describe its images and the layers
//! that the board lacks are sent. Read next: `push/receive.rs`, the board's side, whose module doc shows the
//! protocol, and `push/frames.rs`, its encoding. `push/options.rs` has the arguments, `push/sources.rs` the
//! files, `push/send.rs` this side of the connection, `push/wait.rs` `--wait`.

use std::process::ExitCode;

use lexopt::Parser;
pub(crate) use nodlet_runtime::api::push::RECEIVE;
use serde_json::{Value, json};

use crate::arguments::Context;
use crate::client::Client;
use crate::client::remote::Remote;
use crate::error::VerbError;
use crate::output::{self, printable};
use crate::verb::{Outcome, Verb};

mod archive;
mod blocks;
mod frames;
mod options;
mod receive;
mod send;
mod sources;
pub(crate) mod system;
mod wait;

use archive::Archive;
use options::Push;
pub(crate) use receive::run as receive;

pub(crate) const VERB: Verb =
    Verb { name: "push", summary: "Send images and manifests to a board, all or nothing", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let push = Push::parse(&mut context, &mut parser)?;
    if let (Some(update), Some(board)) = (&push.update, &context.board) {
        return update.send(&Remote::new(board, context.root_given())?);
    }
    let (objects, mut archives) = push.open()?;
    for object in &objects {
        for warning in &object.warnings {
            eprintln!("Warning: {}: {warning}", object.place);
        }
    }
    let manifests: Result<Vec<Value>, VerbError> = objects
        .iter()
        .map(|object| {
            let namespace =
                context.namespace_of(&object.value).map_err(|failure| failure.of(&object.place))?;
            Ok(json!({"place": object.place, "namespace": namespace, "object": object.value}))
        })
        .collect();
    let manifests = manifests?;
    let client = Client::new(&context)?;
    let done = push.send(&client, &manifests, &mut archives)?;
    let mut code = push.show(&done, &archives);
    if let (Some(patience), false) = (push.wait, push.dry_run) {
        let pods = done["pods"].as_array().map_or(&[][..], Vec::as_slice);
        if !wait::until_ready(&client, pods, patience)? {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

impl Push {
    /// Prints the results of the push. Returns success if everything succeeded.
    fn show(&self, done: &Value, archives: &[Archive]) -> ExitCode {
        let note = if self.dry_run { " (server dry run)" } else { "" };
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(|text| Some(printable(text.as_str()?))).collect()
        };
        let mut reported = Vec::new();
        for image in done["images"].as_array().into_iter().flatten() {
            let did = match (self.dry_run, image["new"] == true) {
                (true, _) => "checked",
                (false, true) => "loaded",
                (false, false) => "unchanged",
            };
            let sent = image["sent"].as_array().map_or(0, Vec::len);
            let mut what = format!(
                "{sent} of {} layers {}",
                image["layers"],
                if self.dry_run { "lacking" } else { "sent" }
            );
            // The bytes of an archive are reported once, with its first image.
            if let Some(number) = image["archive"].as_u64().and_then(|number| usize::try_from(number).ok())
                && !self.dry_run
                && !reported.contains(&number)
                && let Some(archive) = archives.get(number)
            {
                reported.push(number);
                what = format!("{what}, {}", output::size(archive.sent));
                if archive.spared > 0 {
                    what = format!("{what} instead of {}", output::size(archive.sent + archive.spared));
                }
            }
            for name in texts(&image["names"]) {
                println!("image/{name} {did}, {what}{note}");
            }
        }
        for line in texts(&done["manifests"]) {
            println!("{line}{note}");
        }
        for warning in texts(&done["warnings"]) {
            eprintln!("Warning: {warning}");
        }
        let failed = texts(&done["failed"]);
        for failure in &failed {
            eprintln!("{failure}");
        }
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
