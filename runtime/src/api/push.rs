//! `/nodlet/push`: passes a client that pushes images and manifests to a separate process.
//!
//! Access to the socket includes the right to push, so that members of its group can push. The process runs
//! as root, because the image store belongs to root. A push costs the agent a fork; afterwards, client and
//! process communicate directly, and neither waits for the agent's loop.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use hyper::header;

use super::upgrade::switch;
use super::{Answered, Exchange, Status};
use nodlet_host::paths::Paths;
use nodlet_kernel::process::spawn_daemon;

/// The first argument of the process that receives a push; the second is the root.
pub const RECEIVE: &str = "receive";

/// The third argument of a process that receives no push, and finishes the push in [`REDO`].
pub const FINISH: &str = "finish";

/// The name of the record of a push in progress, in the directory of pushes.
pub const REDO: &str = "redo.json";

/// The name of the record while [`nodlet_kernel::durable::replace`] writes it. A power cut may leave it.
pub const REDO_NEW: &str = ".redo.json.new";

/// The protocol of the upgraded connection. The process that receives the push reports its protocol versions.
pub const PROTOCOL: &str = "nodlet-push";

pub(super) fn push(exchange: Exchange<'_>) -> Answered {
    let wanted = exchange.request.headers().get(header::UPGRADE).and_then(|wanted| wanted.to_str().ok());
    if wanted != Some(PROTOCOL) {
        return Err(Status::bad_request("Upgrade request required: nodlet-push"));
    }
    let root = exchange.api.root.clone();
    Ok(switch(exchange, vec![(header::UPGRADE, PROTOCOL.to_owned())], |stream, read| async move {
        let start = |client: UnixStream| {
            client.set_nonblocking(false)?;
            execute(
                Command::new("/proc/self/exe").arg0("nodlet").arg(RECEIVE).arg(&root),
                Stdio::from(OwnedFd::from(client)),
            )
        };
        // The process sends the first message, so that a client that sends data earlier makes no valid push.
        if read.is_empty()
            && let Err(error) = stream.into_inner().and_then(start)
        {
            ::log::warn!("api: failed to start the process that receives a push: {error}");
        }
    }))
}

/// Starts a process that finishes a push that a power cut interrupted, or removes what it left, if there is one.
pub(crate) fn finish(root: &Path) {
    let spool = Paths::new(root).push();
    if ![REDO, REDO_NEW].iter().any(|name| spool.join(name).exists()) {
        return;
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("nodlet").arg(RECEIVE).arg(root).arg(FINISH);
    if let Err(error) = execute(&mut command, Stdio::null()) {
        ::log::warn!("failed to start the process that finishes a push: {error}");
    }
}

/// Executes this binary in a process that outlives the agent.
fn execute(command: &mut Command, stdin: Stdio) -> io::Result<()> {
    command.env_clear().current_dir("/").stdin(stdin).stdout(Stdio::null());
    spawn_daemon(command, &[])
}
