//! `nodlet join` and `nodlet leave`: makes this board a Node of a cluster, and ends that.
//!
//! The verb itself joins, so that the user sees at once what is wrong, and writes the credentials into one owner-only
//! file. The agent reads that file when it starts and when it is notified.

use std::fs;
use std::io;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Parser, ValueExt};
use nodlet_cluster::credentials::{Credentials, Server, Usability, check_token, parse_hash};
use nodlet_cluster::enrol::{Authority, Join, join_and_wait};
use nodlet_cluster::pods::TOKEN_PREFIX;
use nodlet_core::error::causes;
use nodlet_core::time::Timestamp;
use nodlet_host::clock;
use nodlet_host::paths::Paths;
use nodlet_kernel::durable::{self, Headroom, SLACK_PREFIX};
use nodlet_kernel::own_file;
use nodlet_kube::manifest::is_node_name;

use crate::agent::host_name;
use crate::arguments::{Context, next_flag};
use crate::client::Client;
use crate::error::VerbError;
use crate::output::printable;
use crate::verb::{Outcome, Verb};

/// The time for which `nodlet join` waits for the certificate.
const CERTIFICATE_WITHIN: Duration = Duration::from_secs(120);

pub(crate) const JOIN: Verb =
    Verb { name: "join", summary: "Make this board a Node of a Kubernetes cluster", run: join };

pub(crate) const LEAVE: Verb = Verb { name: "leave", summary: "Leave the cluster", run: leave };

pub(crate) const SYNC: Verb = Verb { name: "sync", summary: "Connect to the cluster now", run: sync };

fn join(mut context: Context, mut parser: Parser) -> Outcome {
    let (mut values, mut token, mut name, mut hashes) = (Vec::new(), None, None, Vec::new());
    while let Some(flag) = next_flag(&mut parser, &mut values)? {
        match flag.as_str() {
            "--token" => token = Some(parser.value()?.string()?),
            "--node-name" => name = Some(parser.value()?.string()?),
            "--discovery-token-ca-cert-hash" => {
                hashes.push(parse_hash(&parser.value()?.string()?).map_err(VerbError::new)?);
            }
            flag => context.global(flag, &mut parser)?,
        }
    }
    let server = match &values[..] {
        [] => return Err(context.wrong_use("the API server is missing: HOST:PORT")),
        [server] => Server::parse(server).map_err(VerbError::new)?,
        [_, other, ..] => return Err(context.wrong_use(format!("unexpected argument {other:?}"))),
    };
    let token = token.ok_or_else(|| context.wrong_use("--token is missing".to_owned()))?;
    check_token(&token).map_err(VerbError::new)?;
    if hashes.is_empty() {
        return Err(context.wrong_use(
            "--discovery-token-ca-cert-hash is missing: without it, the board cannot authenticate the cluster"
                .to_owned(),
        ));
    }
    let paths = Paths::new(&context.root);
    let path = paths.cluster_credentials();
    let now = clock::timestamp();
    if is_in_use(&path, now) {
        return Err(VerbError::new("this board has joined a cluster already: `nodlet leave` ends that"));
    }
    let client = Client::local(&context.root);
    let of_agent = client.json("GET", "/api/v1/nodes", None).ok();
    let of_agent =
        of_agent.and_then(|nodes| Some(nodes["items"][0]["metadata"]["name"].as_str()?.to_owned()));
    let node = match (name, of_agent) {
        (Some(name), Some(agent)) if name != agent => {
            return Err(VerbError::new(format!(
                "the node of the running agent is {agent:?}: leave --node-name out, or start the agent with \
                 --node-name {name}"
            )));
        }
        (Some(name), _) | (None, Some(name)) => name,
        (None, None) => host_name()?,
    };
    if !is_node_name(&node) {
        return Err(VerbError::new(format!("{node:?} cannot be the name of a Node")));
    }
    let found = (&*server.host, server.port).to_socket_addrs();
    let addresses =
        found.map_err(|error| VerbError::new(format!("failed to look up {}: {error}", server.host)))?;
    let machine_id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let credentials = join_and_wait(Join {
        server: &server,
        addresses: addresses.collect(),
        token: &token,
        authority: Authority::Hashes(&hashes),
        node: &node,
        machine_id: machine_id.trim(),
        now,
        limit: CERTIFICATE_WITHIN,
    })
    .map_err(|error| {
        let why = causes(&error);
        VerbError::new(printable(&format!("failed to join the cluster at {server}: {why}")))
    })?;
    replace(&paths, &path, credentials.to_json().as_bytes())
        .map_err(|error| VerbError::new(format!("failed to write {}: {error}", path.display())))?;
    remove(&paths.cluster_left())?;
    if notify(&client, true)? {
        println!("node {node} has joined the cluster at {server}")
    } else {
        println!("node {node} has joined the cluster at {server}: start `nodlet agent` to run its pods")
    }
    Ok(ExitCode::SUCCESS)
}

fn leave(mut context: Context, mut parser: Parser) -> Outcome {
    context.no_arguments(&mut parser)?;
    let paths = Paths::new(&context.root);
    let left = paths.cluster_left();
    // Before anything is removed: the agent must not enrol again.
    let leaves_bootstrap = paths.bootstrap_kubeconfig().exists() && !left.exists();
    if leaves_bootstrap {
        replace(&paths, &left, b"").map_err(|error| failed("write", &left, &error))?;
    }
    let notified = || notify(&Client::local(&context.root), false).map(drop);
    if !forget(&paths, notified)? && !leaves_bootstrap {
        return Err(VerbError::new("this board has joined no cluster"));
    }
    println!("this board has left the cluster; its Node remains there until `kubectl delete node`");
    Ok(ExitCode::SUCCESS)
}

fn sync(mut context: Context, mut parser: Parser) -> Outcome {
    context.no_arguments(&mut parser)?;
    Client::local(&context.root).request("POST", "/nodlet/cluster?sync=true", "*/*", None)?;
    println!("synchronised with the cluster");
    Ok(ExitCode::SUCCESS)
}

/// Whether the board has credentials whose certificate has not expired at `now`. A file that cannot be read has its
/// reason in the log of the agent, and is not replaced.
fn is_in_use(credentials: &Path, now: Timestamp) -> bool {
    let expired = |text: String| {
        let read = Credentials::from_json(&text).ok()?;
        let usability = Usability::of(read.validity(), now.0.div_euclid(1_000_000_000));
        matches!(usability, Usability::Expired(_)).then_some(())
    };
    let is_there = fs::symlink_metadata(credentials).is_ok();
    is_there && own_file::read_to_string(credentials).ok().and_then(expired).is_none()
}

fn failed(what: &str, path: &Path, error: &io::Error) -> VerbError {
    VerbError::new(format!("failed to {what} {}: {error}", path.display()))
}

/// Removes a file. Returns `false` if there was none.
fn remove(path: &Path) -> Result<bool, VerbError> {
    let is_there = fs::symlink_metadata(path).is_ok();
    durable::discard(path).map(|()| is_there).map_err(|error| failed("remove", path, &error))
}

/// Removes the files in `directory` whose names fit, durably. Returns `false` if there was nothing to remove.
fn empty(directory: &Path, fits: impl Fn(&str) -> bool) -> Result<bool, VerbError> {
    let entries = own_file::if_exists(fs::read_dir(directory));
    let entries = entries.map_err(|error| failed("read", directory, &error))?;
    let mut found = false;
    for entry in entries.into_iter().flatten() {
        let path = entry.map_err(|error| failed("read", directory, &error))?.path();
        if path.file_name().is_some_and(|name| fits(&name.to_string_lossy())) {
            found |= remove(&path)?;
        }
    }
    if found {
        durable::sync_directory(directory).map_err(|error| failed("sync", directory, &error))?;
    }
    Ok(found)
}

/// Removes the credentials, has the agent `notified`, and removes the manifests of the cluster and the tokens of its
/// pods. Returns `false` if there was nothing to remove. After a failure, the same call removes the rest.
fn forget(paths: &Paths, notified: impl FnOnce() -> Result<(), VerbError>) -> Result<bool, VerbError> {
    let had_credentials = remove(&paths.cluster_credentials())?;
    // Their directory is the same, which this makes durable.
    let certificate = paths.serving_certificate();
    durable::remove(&certificate).map_err(|error| failed("remove", &certificate, &error))?;
    // The agent must not write the pods down again.
    notified()?;
    let had_manifests = empty(&paths.cluster_manifests(), |name| !name.starts_with(SLACK_PREFIX))?;
    let had_tokens = empty(&paths.run_manifests(), |name| name.contains(TOKEN_PREFIX))?;
    Ok(had_credentials || had_manifests || had_tokens)
}

/// Notifies the agent. Returns `false` if none runs. A board that `joins` gets a warning, if there is one.
fn notify(client: &Client, joins: bool) -> Result<bool, VerbError> {
    match client.request("POST", "/nodlet/cluster", "*/*", None) {
        Ok(response) => {
            let warning = response.text();
            if joins && !warning.is_empty() {
                eprintln!("warning: {}", printable(&warning));
            }
            Ok(true)
        }
        Err(failure) if failure.is_disconnected() => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Makes `bytes` the durable content of a file that only its owner can read, also on a full disk.
fn replace(paths: &Paths, path: &Path, bytes: &[u8]) -> io::Result<()> {
    durable::replace(path, bytes, Some((&paths.reserve(), Headroom::Half)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_that_cannot_be_read_are_not_replaced_and_hold_up_nothing() {
        let path = std::env::temp_dir().join(format!("nodlet-credentials-{}", std::process::id()));
        assert!(!is_in_use(&path, Timestamp(0)));
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let (sender, receiver) = std::sync::mpsc::channel();
        let of = path.clone();
        std::thread::spawn(move || sender.send(is_in_use(&of, Timestamp(0))));
        assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(true), "nobody writes to it");
        fs::remove_file(&path).and_then(|()| std::os::unix::fs::symlink("/nowhere", &path)).expect("a link");
        assert!(is_in_use(&path, Timestamp(0)));
        fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_board_leaves_also_if_an_earlier_attempt_stopped() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let root = scratch.path();
        let paths = Paths::new(root);
        let (manifests, run) = (paths.cluster_manifests(), paths.run_manifests());
        assert!(!forget(&paths, || Ok(())).expect("nothing is there"));
        for directory in [&manifests, &run] {
            fs::create_dir_all(directory).expect("a directory");
        }
        let files = [
            paths.cluster_credentials(),
            paths.serving_certificate(),
            manifests.join("default_a.json"),
            manifests.join("default_b.json"),
            run.join("secret_default_nodlet-token-u-0.json"),
        ];
        let other = run.join("secret_default_mine.json");
        for file in files.iter().chain([&other]) {
            fs::write(file, "{}").expect("a file");
        }
        // The agent is notified when the credentials are gone and before the manifests are.
        let stopped = forget(&paths, || {
            assert_eq!(files.each_ref().map(|file| file.exists()), [false, false, true, true, true]);
            Err(VerbError::new("stopped"))
        });
        assert!(stopped.is_err());
        assert!(forget(&paths, || Ok(())).expect("the rest is removed"));
        assert!(!files.iter().any(|file| file.exists()) && other.exists());
        assert!(!forget(&paths, || Ok(())).expect("nothing is left"));
    }
}
