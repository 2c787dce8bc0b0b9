//! `nodlet restart`: restarts the containers of pods.

use std::process::ExitCode;

use lexopt::{Parser, ValueExt};

use crate::arguments::{Context, next_flag};
use crate::client::{Client, encode};
use crate::verb::{Outcome, Verb};
use crate::verbs::containers::pod_name;

pub(crate) const VERB: Verb = Verb { name: "restart", summary: "Restart the containers of pods", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let (mut pods, mut container) = (Vec::new(), None);
    while let Some(flag) = next_flag(&mut parser, &mut pods)? {
        match flag.as_str() {
            "-c" | "--container" => container = Some(parser.value()?.string()?),
            flag => context.namespaced(flag, &mut parser)?,
        }
    }
    let mut pods = pods.iter().map(|pod| pod_name(pod)).collect::<Result<Vec<_>, _>>()?;
    // As in `kubectl delete pod web`.
    if pods.len() > 1 && ["pod", "pods", "po"].contains(&&*pods[0]) {
        pods.remove(0);
    }
    if pods.is_empty() {
        return Err(context.wrong_use("You must provide one or more pods"));
    }
    let client = Client::new(&context)?;
    let mut code = ExitCode::SUCCESS;
    for pod in &pods {
        let query = container.as_ref().map(|name| format!("?container={}", encode(name))).unwrap_or_default();
        let target = format!("{}/restart{query}", context.pod(pod));
        match client.json("POST", &target, None) {
            Ok(_) => println!("pod/{pod} restarted"),
            Err(failure) if failure.is_disconnected() => return Err(failure),
            Err(failure) => {
                eprintln!("{failure}");
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
