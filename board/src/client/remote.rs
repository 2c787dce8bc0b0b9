//! `--board USER@BOARD`: runs a verb for another machine, over the user's own `ssh`.
//!
//! Each connection to the agent is one `ssh BOARD nodlet connect`, whose standard input and output are the
//! connection. On the board, [`CONNECT`] joins them to the agent's socket, so that this socket's permissions
//! decide what is allowed, and no port is forwarded. Further connections go through the ssh of the first one
//! (`ControlMaster`) if this user has a directory for its socket. Verbs that work on the machine itself,
//! without an agent, run on the board as they are.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use crate::error::VerbError;
use crate::pidfd::pidfd;
use crate::verb::Outcome;

/// The verb that is the board's end of a connection.
pub(crate) const CONNECT: &str = "connect";

/// How long ssh's shared connection outlives the last user of it, in seconds.
const KEPT: &str = "ControlPersist=30";

/// Milliseconds that a closing ssh has to end, so that its exit code is known.
const SSH_EXIT_TIMEOUT_MS: u16 = 5000;

/// Delay between two connections to an unreachable board.
const LINE_BACK: Duration = Duration::from_secs(1);

/// ssh's exit status if ssh itself fails.
const SSH_FAILED: i32 = 255;

/// A shell's exit status if the command does not exist.
const NO_COMMAND: i32 = 127;

/// A board, and how to reach it.
#[derive(Debug)]
pub(crate) struct Remote {
    place: Place,
    /// The value of `--root`, which is a path on the board.
    root: Option<PathBuf>,
    /// The ssh processes that have not been reaped.
    started: Mutex<Vec<Child>>,
}

/// A destination in the form `[USER@]HOST[:PORT]`.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    destination: String,
    port: Option<u16>,
}

impl Place {
    fn parse(text: &str) -> Result<Place, VerbError> {
        let wrong = || {
            VerbError::new(format!(
                "invalid board {text:?}: must be [USER@]HOST[:PORT], as in root@192.168.1.20 or root@[fe80::1%eth0]:2222"
            ))
        };
        let (user, host) = match text.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, text),
        };
        let (host, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(wrong)?;
                (host, after.strip_prefix(':').or_else(|| after.is_empty().then_some("")).ok_or_else(wrong)?)
            }
            // More than one colon means an IPv6 address.
            None => match host.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, port),
                _ => (host, ""),
            },
        };
        // A final colon means that a port is missing.
        let port = match port {
            "" if text.ends_with(':') && !host.ends_with(':') => return Err(wrong()),
            "" => None,
            port => Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?),
        };
        let plain =
            |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control());
        // ssh would take such a destination for an option.
        if !plain(host) || !user.is_none_or(plain) || text.starts_with('-') || host.starts_with('-') {
            return Err(wrong());
        }
        let destination = match user {
            Some(user) => format!("{user}@{host}"),
            None => host.to_owned(),
        };
        Ok(Place { destination, port })
    }
}

/// Formats the destination for ssh's command line.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(port) = self.port {
            write!(f, "-p {port} ")?;
        }
        f.write_str(&self.destination)
    }
}

impl Remote {
    pub(crate) fn new(board: &str, root: Option<&Path>) -> Result<Remote, VerbError> {
        Ok(Remote { place: Place::parse(board)?, root: root.map(Path::to_owned), started: Mutex::default() })
    }

    /// The ssh command, up to the command line for the board.
    fn ssh(&self) -> Command {
        let program = std::env::var("NODLET_SSH").unwrap_or_default();
        let mut words = program.split_whitespace();
        let mut ssh = Command::new(words.next().unwrap_or("ssh"));
        // ssh reports a host that accepts the connection but is silent, after a minute.
        ssh.args(words).args(["-T", "-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=15"]);
        // If ssh passed it on, nodlet on the board would connect to another board.
        ssh.env_remove("NODLET_BOARD");
        if let Some(sockets) = sockets() {
            let path = sockets.join("%C");
            ssh.args(["-o", "ControlMaster=auto", "-o", KEPT, "-o"]);
            ssh.arg(format!("ControlPath={}", path.display()));
        }
        if let Some(port) = self.place.port {
            ssh.args(["-p", &port.to_string()]);
        }
        ssh.args(["--", &self.place.destination]);
        ssh
    }

    /// The command line `nodlet ARGUMENTS` for the board's shell, which parses it again.
    fn command<'a>(&'a self, arguments: impl IntoIterator<Item = &'a OsStr>) -> String {
        let mut line = "nodlet".to_owned();
        let root = self.root.iter().flat_map(|root| [OsStr::new("--root"), root.as_os_str()]);
        for argument in root.chain(arguments) {
            line.push(' ');
            line.push_str(&quoted(&argument.to_string_lossy()));
        }
        line
    }

    /// Opens a connection to the board's agent.
    pub(crate) fn connect(&self) -> Result<UnixStream, VerbError> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        let mut ssh = self.ssh();
        ssh.arg(self.command([OsStr::new(CONNECT)]));
        ssh.stdin(theirs.try_clone()?).stdout(theirs);
        let child = ssh.spawn().map_err(|error| not_started(&ssh, &error))?;
        let mut started = self.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        started.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        started.push(child);
        Ok(ours)
    }

    /// The failure to report if a connection ended before the agent responded.
    pub(crate) fn lost(&self, error: &io::Error) -> VerbError {
        let board = &self.place.destination;
        let mut started = self.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let status = started.last_mut().and_then(wait_exit_status);
        VerbError::disconnected(match status.map(|status| (status, status.code())) {
            Some((_, Some(SSH_FAILED))) => {
                let place = &self.place;
                format!("failed to connect to {board}: see the message of ssh; `ssh {place}` must work first")
            }
            Some((_, Some(NO_COMMAND))) => {
                format!("{board} has no `nodlet` in the PATH of its login shell, or one that is too old")
            }
            Some((status, _)) if !status.success() => {
                format!("{board} refused the connection to its agent ({status})")
            }
            Some(_) | None => format!("the connection to {board} was lost: {error}"),
        })
    }

    /// Waits after a lost connection until the board's agent is healthy, which the board itself checks.
    pub(crate) fn wait_for_agent(&self, within: Duration) {
        let wait = format!("--wait={}s", within.as_secs().max(1));
        let mut ssh = self.ssh();
        ssh.arg(self.command([OsStr::new("healthcheck"), OsStr::new(&wait)]));
        let ssh = ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let _ = ssh.status();
        // Nothing reports when a line is back, so pause.
        std::thread::sleep(within.min(LINE_BACK).saturating_sub(begun.elapsed()));
    }

    /// Runs the verb on the board instead of here.
    pub(crate) fn run(&self, arguments: &[OsString], stdin: Stdio) -> Outcome {
        let mut ssh = self.ssh();
        ssh.arg(self.command(arguments.iter().map(OsString::as_os_str))).stdin(stdin);
        let status = ssh.status().map_err(|error| not_started(&ssh, &error))?;
        self.outcome_of(arguments, status)
    }

    /// Starts the verb on the board. Data written to the stream is the verb's standard input.
    pub(crate) fn start<'a>(
        &'a self,
        arguments: &'a [OsString],
    ) -> Result<(UnixStream, Running<'a>), VerbError> {
        // A pipe would kill this process by SIGPIPE when the verb stops reading.
        let (ours, theirs) = UnixStream::pair()?;
        let mut ssh = self.ssh();
        ssh.arg(self.command(arguments.iter().map(OsString::as_os_str))).stdin(OwnedFd::from(theirs));
        let child = ssh.spawn().map_err(|error| not_started(&ssh, &error))?;
        Ok((ours, Running { remote: self, arguments, child }))
    }

    /// The exit code of a verb on the board, unless ssh failed.
    fn outcome_of(&self, arguments: &[OsString], status: ExitStatus) -> Outcome {
        match status.code() {
            Some(SSH_FAILED) => {
                let board = &self.place.destination;
                let verb = arguments.first().map(|verb| verb.to_string_lossy()).unwrap_or_default();
                Err(VerbError::disconnected(format!(
                    "failed to connect to {board}, or the connection was lost while `nodlet {verb}` ran there: see the message of ssh"
                )))
            }
            Some(code) => Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)),
            None => Err(VerbError::new(format!("ssh ended: {status}"))),
        }
    }
}

/// A verb that runs on the board.
pub(crate) struct Running<'a> {
    remote: &'a Remote,
    arguments: &'a [OsString],
    child: Child,
}

impl Running<'_> {
    /// Waits for the end of the verb.
    pub(crate) fn outcome(mut self) -> Outcome {
        let status = self.child.wait()?;
        self.remote.outcome_of(self.arguments, status)
    }
}

fn not_started(ssh: &Command, error: &io::Error) -> VerbError {
    VerbError::disconnected(format!(
        "failed to run {}: {error}; Debian's package openssh-client has it",
        ssh.get_program().display()
    ))
}

/// Waits for the exit status of a process that is about to end; `None` if it does not end in time.
fn wait_exit_status(child: &mut Child) -> Option<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id()).ok()?);
    if let Ok(Some(process)) = pidfd(pid) {
        let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ended, PollTimeout::from(SSH_EXIT_TIMEOUT_MS));
    }
    child.try_wait().ok()?
}

/// A directory in which nobody else can place a socket. Without one, each connection has an ssh of its own.
fn sockets() -> Option<PathBuf> {
    let own = nix::unistd::geteuid();
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(directory) if directory.is_absolute() => directory.join("nodlet"),
        _ => PathBuf::from(format!("/tmp/nodlet-ssh-{own}")),
    };
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&directory);
    let metadata = std::fs::symlink_metadata(&directory).ok()?;
    // A socket's path may have 107 bytes, and ssh appends 16 to a name of 40.
    let fits = directory.as_os_str().len() <= 48;
    (metadata.is_dir() && metadata.uid() == own.as_raw() && metadata.mode() & 0o077 == 0 && fits)
        .then_some(directory)
}

/// Quotes an argument for a shell, unless it needs no quotes.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument.to_owned()
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_are_named_as_for_ssh_with_a_port() {
        for (text, destination, port) in [
            ("board", "board", None),
            ("root@board", "root@board", None),
            ("root@10.0.0.1:2222", "root@10.0.0.1", Some(2222)),
            ("fe80::1", "fe80::1", None),
            ("a@[fe80::1%eth0]:22", "a@fe80::1%eth0", Some(22)),
            ("[::1]", "::1", None),
        ] {
            let place = Place::parse(text).unwrap_or_else(|failure| panic!("{text}: {failure}"));
            assert_eq!((place.destination.as_str(), place.port), (destination, port), "{text}");
        }
        for text in [
            "",
            "-oProxyCommand=x",
            "a@-x",
            "@b",
            "a@",
            "b:0",
            "b:x",
            "b:",
            "b:70000",
            "[::1",
            "a b",
            "[::1]x",
        ] {
            assert!(Place::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_are_quoted_for_the_shell_of_the_board() {
        let remote = Remote::new("b", Some(Path::new("/a b"))).unwrap_or_else(|failure| panic!("{failure}"));
        let arguments = ["image", "rm", "it's", "$(x)", ""].map(OsString::from);
        assert_eq!(
            remote.command(arguments.iter().map(OsString::as_os_str)),
            r"nodlet --root '/a b' image rm 'it'\''s' '$(x)' ''"
        );
    }
}
