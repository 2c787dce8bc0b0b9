//! Replays a ring, and prints whether the core plans the recorded actions: `cargo run -p nodlet-runtime
//! --example replay FILE`, with the output of `nodlet ring -f -o json` from the agent's first entry on.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else {
        eprintln!("usage: replay FILE (as `nodlet ring -o json` writes it)");
        return ExitCode::FAILURE;
    };
    let replayed =
        std::fs::read_to_string(&file).map_err(|error| format!("read {}: {error}", file.display())).and_then(
            |lines| nodlet_runtime::replay::replay(&lines).map_err(|error| nodlet_host::error::chain(&error)),
        );
    match replayed {
        Ok(replayed) => {
            println!("{} facts, {} actions: the same", replayed.observations, replayed.actions);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("failed to {error}");
            ExitCode::FAILURE
        }
    }
}
