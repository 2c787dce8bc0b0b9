//! Tests the SSH server of a board: only keys can log in, the board has a host key of its own, and process 1
//! restarts the server and the network service.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nodlet_build::task::{Outcome, TaskError};

use super::{Board, make_key, text};

/// The error of a client whose server offers no authentication but public keys.
const KEYS_ALONE: &str = "Permission denied (publickey).";

/// Prints and kills the server process that accepts connections. Sessions are its children.
const KILL_SERVER: &str = "for p in $(busybox pidof dropbear); do \
                           busybox grep -q '^PPid:[[:space:]]*1$' /proc/$p/status && echo $p && busybox kill -9 $p; \
                           done; true";

/// Requires that neither a foreign key nor a password can log in, and that the server does not ask for a
/// password.
pub(super) fn refuse_others(board: &Board, directory: &Path) -> Outcome {
    let [stranger, ask, asked] = ["stranger", "ask", "asked"].map(|name| directory.join(name));
    let _ = fs::remove_file(&asked);
    make_key(&stranger)?;
    fs::write(&ask, format!("#!/bin/sh\n: > {}\n", asked.display()))?;
    fs::set_permissions(&ask, fs::Permissions::from_mode(0o755))?;
    let with_key = ["-o", "IdentitiesOnly=yes", "-o", "PreferredAuthentications=publickey", "-i"];
    let with_key =
        with_key.into_iter().map(Into::into).chain([stranger.into_os_string()]).collect::<Vec<_>>();
    let with_password =
        ["-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password,keyboard-interactive"];
    let with_password = with_password.map(Into::into).to_vec();
    for (what, options) in [("a foreign key", with_key), ("a password", with_password)] {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-o", "LogLevel=ERROR", "-o", "StrictHostKeyChecking=no"])
            .args(["-o", "UserKnownHostsFile=/dev/null", "-p", &board.port.to_string()])
            .args(&options)
            .args(["root@127.0.0.1", "true"])
            .env_remove("SSH_AUTH_SOCK")
            .env("SSH_ASKPASS", &ask)
            .env("SSH_ASKPASS_REQUIRE", "force")
            .stdin(Stdio::null());
        let output = ssh.output()?;
        let said = text(&output.stderr);
        if output.status.success() || !said.contains(KEYS_ALONE) || asked.exists() {
            return Err(board.failed(&format!(
                "a login with {what} ended with {}, not with {KEYS_ALONE:?} and without a question: {said}",
                output.status
            )));
        }
    }
    Ok(())
}

/// The board's public host key, as anybody can get it.
pub(super) fn host_key(board: &Board) -> Result<String, TaskError> {
    let mut scan = Command::new("ssh-keyscan");
    scan.args(["-T", "60", "-t", "ed25519", "-p", &board.port.to_string(), "127.0.0.1"]);
    let output = scan.stdin(Stdio::null()).output()?;
    let found = text(&output.stdout);
    let key = found.lines().find_map(|line| Some(line.split_once(" ssh-ed25519 ")?.1.to_owned()));
    key.ok_or_else(|| board.failed(&format!("ssh-keyscan finds no key: {found}{}", text(&output.stderr))))
}

/// Kills the network service, which has its address from a DHCP server, and then the SSH server. Process 1
/// must restart both, and both must resume their work.
pub(super) fn kill_services(board: &mut Board) -> Outcome {
    board.expect("rm /run/nodlet/network.json && busybox kill -9 $(busybox pidof nodlet:network)", "", "")?;
    board.wait_for("lease after the network service was killed", |board| {
        let status = board.output("cat /run/nodlet/network.json")?;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        Ok(status["links"][0]["dhcp"]["state"] == "bound")
    })?;
    board.require_said("network ended with 137; it starts again in 0 s")?;

    let killed = board.output(KILL_SERVER)?;
    if killed.lines().count() != 1 {
        return Err(
            board.failed(&format!("these processes of the SSH server have process 1 as parent: {killed:?}"))
        );
    }
    board.wait_for("login after the SSH server was killed", |board| {
        Ok(board.ssh("true", "")?.status.success())
    })?;
    board.require_said("ssh ended with 137; it starts again in 0 s")
}
