//! `--board USER@BOARD`: a verb on another machine, over the user's own `ssh`.
//!
//! Each connection to the agent is one `ssh BOARD nodlet connect`, whose standard input and output
//! are the connection; [`VERB`] joins them to the agent's socket over there, so that who may do what
//! is decided by that socket and nothing is forwarded. Connections after the first one go through
//! the first one's ssh (`ControlMaster`) where this user has a directory to keep its socket in.
//! Verbs that work on the machine itself and ask no agent run on the board as they are.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lexopt::Parser;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Pid;

use crate::agent::pidfd;
use crate::arguments::{Context, Flag};
use crate::client::Client;
use crate::push::system::Update;
use crate::{Failure, Outcome, Verb};

/// The board's end of a connection.
pub(crate) const VERB: Verb = Verb {
    name: "connect",
    summary: "",
    help: "\
Join standard input and output to the agent's socket. `nodlet --board` runs it on the
board, over ssh; people have no use for it.

Usage: nodlet connect [--root DIR]

Examples:
  # What kubectl would be answered
  printf 'GET /version HTTP/1.0\\r\\n\\r\\n' | ssh root@board nodlet connect

Flags:
      --root DIR   of the agent of this root
",
    run: connect,
};

/// Verbs that work on the machine and not through its agent: with `--board` they run over there.
const OF_THE_MACHINE: &[&str] =
    &["image", "doctor", "reboot", "poweroff", "down", "safe-mode", "factory-reset", "system", "healthcheck"];

/// What of a connection is passed on at a time.
const PIECE: usize = 32 * 1024;

/// How long the ssh that others go through outlives the last of them, in seconds.
const KEPT: &str = "ControlPersist=30";

/// Milliseconds for ssh to say why it ended, once its connection is closed.
const LAST_WORDS: u16 = 5000;

/// Between two connections to a board that cannot be reached.
const LINE_BACK: Duration = Duration::from_secs(1);

/// ssh's own exit status when it fails itself.
const SSH_FAILED: i32 = 255;

/// A shell's exit status where there is no such command.
const NO_COMMAND: i32 = 127;

/// A board, and how to reach it.
#[derive(Debug)]
pub(crate) struct Remote {
    place: Place,
    /// `--root` over there.
    root: Option<PathBuf>,
    /// Those that have not been seen to end.
    started: Mutex<Vec<Child>>,
}

/// `[USER@]HOST[:PORT]`
#[derive(Debug, PartialEq, Eq)]
struct Place {
    destination: String,
    port: Option<u16>,
}

impl Place {
    fn parse(text: &str) -> Result<Place, Failure> {
        let wrong = || {
            Failure::new(format!(
                "{text:?} is no board: must be [USER@]HOST[:PORT], as in root@192.168.1.20 or root@[fe80::1%eth0]:2222"
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
            // Several colons are an IPv6 address.
            None => match host.split_once(':') {
                Some((host, port)) if !port.contains(':') => (host, port),
                _ => (host, ""),
            },
        };
        // Whether a port was meant is seen by its colon.
        let port = match port {
            "" if text.ends_with(':') && !host.ends_with(':') => return Err(wrong()),
            "" => None,
            port => Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?),
        };
        let plain =
            |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c.is_control());
        // ssh would take it for an option.
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

/// For ssh's command line.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(port) = self.port {
            write!(f, "-p {port} ")?;
        }
        f.write_str(&self.destination)
    }
}

impl Remote {
    pub(crate) fn new(board: &str, root: Option<&Path>) -> Result<Remote, Failure> {
        Ok(Remote { place: Place::parse(board)?, root: root.map(Path::to_owned), started: Mutex::default() })
    }

    /// ssh, up to the command line for the board.
    fn ssh(&self) -> Command {
        let program = std::env::var("NODLET_SSH").unwrap_or_default();
        let mut words = program.split_whitespace();
        let mut ssh = Command::new(words.next().unwrap_or("ssh"));
        // Of a host that takes the connection and says nothing, ssh tells after a minute.
        ssh.args(words).args(["-T", "-o", "ConnectTimeout=60", "-o", "ServerAliveInterval=15"]);
        // Over there it would name a board once more, where ssh passes it on.
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

    /// `nodlet ARGUMENTS` over there, for ssh: the board's shell reads it again.
    fn command<'a>(&'a self, arguments: impl IntoIterator<Item = &'a OsStr>) -> String {
        let mut line = "nodlet".to_owned();
        let root = self.root.iter().flat_map(|root| [OsStr::new("--root"), root.as_os_str()]);
        for argument in root.chain(arguments) {
            line.push(' ');
            line.push_str(&quoted(&argument.to_string_lossy()));
        }
        line
    }

    /// A connection to the board's agent.
    pub(crate) fn connect(&self) -> Result<UnixStream, Failure> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        let mut ssh = self.ssh();
        ssh.arg(self.command([OsStr::new(VERB.name)]));
        ssh.stdin(theirs.try_clone()?).stdout(theirs);
        let child = ssh.spawn().map_err(|error| not_started(&ssh, &error))?;
        let mut started = self.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        started.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        started.push(child);
        Ok(ours)
    }

    /// What it means that a connection ended before the agent had said anything.
    pub(crate) fn lost(&self, error: &io::Error) -> Failure {
        let board = &self.place.destination;
        let mut started = self.started.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let status = started.last_mut().and_then(last_words);
        Failure::disconnected(match status.map(|status| (status, status.code())) {
            Some((_, Some(SSH_FAILED))) => {
                let place = &self.place;
                format!("there is no connection to {board}: ssh says why; `ssh {place}` must work first")
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

    /// Waits after a connection was lost until the board's agent is healthy: the board knows when that is.
    pub(crate) fn wait_for_agent(&self, within: Duration) {
        let wait = format!("--wait={}s", within.as_secs().max(1));
        let mut ssh = self.ssh();
        ssh.arg(self.command([OsStr::new("healthcheck"), OsStr::new(&wait)]));
        let ssh = ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let _ = ssh.status();
        // Nobody reports when a line is back.
        std::thread::sleep(within.min(LINE_BACK).saturating_sub(begun.elapsed()));
    }

    /// Runs the verb over there instead of here.
    fn run(&self, arguments: &[OsString], stdin: Stdio) -> Outcome {
        let mut ssh = self.ssh();
        ssh.arg(self.command(arguments.iter().map(OsString::as_os_str))).stdin(stdin);
        let status = ssh.status().map_err(|error| not_started(&ssh, &error))?;
        self.outcome_of(arguments, status)
    }

    /// Starts the verb over there. What is written to the stream is its standard input.
    pub(crate) fn start<'a>(
        &'a self,
        arguments: &'a [OsString],
    ) -> Result<(UnixStream, Running<'a>), Failure> {
        // A pipe would end this process when the verb reads no further.
        let (ours, theirs) = UnixStream::pair()?;
        let mut ssh = self.ssh();
        ssh.arg(self.command(arguments.iter().map(OsString::as_os_str))).stdin(OwnedFd::from(theirs));
        let child = ssh.spawn().map_err(|error| not_started(&ssh, &error))?;
        Ok((ours, Running { remote: self, arguments, child }))
    }

    /// The exit code of a verb over there, unless ssh failed.
    fn outcome_of(&self, arguments: &[OsString], status: ExitStatus) -> Outcome {
        match status.code() {
            Some(SSH_FAILED) => {
                let board = &self.place.destination;
                let verb = arguments.first().map(|verb| verb.to_string_lossy()).unwrap_or_default();
                Err(Failure::disconnected(format!(
                    "there is no connection to {board}, or it was lost while `nodlet {verb}` ran there: ssh says why"
                )))
            }
            Some(code) => Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)),
            None => Err(Failure::new(format!("ssh ended: {status}"))),
        }
    }
}

/// A verb that runs over there.
pub(crate) struct Running<'a> {
    remote: &'a Remote,
    arguments: &'a [OsString],
    child: Child,
}

impl Running<'_> {
    /// Waits for its end.
    pub(crate) fn outcome(mut self) -> Outcome {
        let status = self.child.wait()?;
        self.remote.outcome_of(self.arguments, status)
    }
}

fn not_started(ssh: &Command, error: &io::Error) -> Failure {
    Failure::disconnected(format!(
        "failed to run {}: {error}; Debian's package openssh-client has it",
        ssh.get_program().display()
    ))
}

/// How a process ends that is about to.
fn last_words(child: &mut Child) -> Option<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id()).ok()?);
    if let Ok(Some(process)) = pidfd(pid) {
        let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut ended, PollTimeout::from(LAST_WORDS));
    }
    child.try_wait().ok()?
}

/// A directory in which nobody else can put a socket; none means one ssh for each connection.
fn sockets() -> Option<PathBuf> {
    let own = nix::unistd::geteuid();
    let directory = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(directory) if directory.is_absolute() => directory.join("nodlet"),
        _ => PathBuf::from(format!("/tmp/nodlet-ssh-{own}")),
    };
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&directory);
    let metadata = std::fs::symlink_metadata(&directory).ok()?;
    // A path of a socket has 107 bytes, and ssh adds 16 of its own to 40 of a name.
    let fits = directory.as_os_str().len() <= 48;
    (metadata.is_dir() && metadata.uid() == own.as_raw() && metadata.mode() & 0o077 == 0 && fits)
        .then_some(directory)
}

/// For a shell: as it is where no shell would read it otherwise.
fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    match !argument.is_empty() && argument.chars().all(plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}

/// Does a verb of [`OF_THE_MACHINE`] on the board, if one is named before or behind the verb.
pub(crate) fn take_over(verb: &str, context: &Context, parser: &mut Parser) -> Option<Outcome> {
    let mut given = parser.raw_args().ok()?;
    if !OF_THE_MACHINE.contains(&verb) {
        return None;
    }
    let (mut board, mut root) = (context.board.clone(), context.root_given().map(Path::to_owned));
    let mut arguments = vec![OsString::from(verb)];
    let mut help = false;
    // The parser is not the verb's yet: nothing of its arguments may be taken away here.
    let all: Vec<OsString> = given.by_ref().collect();
    let mut rest = all.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        match text.split_once('=') {
            Some(("--board", value)) => board = Some(value.to_owned()),
            Some(("--root", value)) => root = Some(value.into()),
            _ if text == "--board" => board = Some(rest.next()?.to_string_lossy().into_owned()),
            _ if text == "--root" => root = Some(rest.next()?.into()),
            _ => {
                help |= text == "--help" || text == "-h";
                arguments.push(argument.clone());
            }
        }
    }
    *parser = Parser::from_args(all);
    // Help is the same here.
    let board = board.filter(|_| !help)?;
    Some(Remote::new(&board, root.as_deref()).and_then(|remote| {
        if let Some(update) = update(&arguments) {
            return update?.send(&remote);
        }
        let stdin = stdin(&mut arguments)?;
        remote.run(&arguments, stdin)
    }))
}

/// `system install FILE` sends a program of this machine, and its signature. None for anything else.
fn update(arguments: &[OsString]) -> Option<Result<Update, Failure>> {
    if arguments.first()? != "system" || !arguments.iter().any(|argument| argument == "install") {
        return None;
    }
    let mut update = Update::default();
    let mut words = 0;
    let mut rest = arguments[1..].iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        match text.strip_prefix("--signature=") {
            Some(path) => update.signature = Some(path.into()),
            None if text == "--signature" => update.signature = rest.next().map(PathBuf::from),
            None if text.starts_with('-') && text != "-" => update.options.push(argument.clone()),
            None => {
                words += 1;
                match words {
                    1 if text == "install" => {}
                    2 => update.program = argument.into(),
                    // The board rejects it by name.
                    _ => return None,
                }
            }
        }
    }
    match update.program.to_str() {
        // The caller puts the signature before the program.
        Some("-") if update.signature.is_some() => Some(Err(Failure::new(
            "--signature needs a FILE to install: - has its signature before the program",
        ))),
        Some("" | "-") => None,
        _ => Some(Ok(update)),
    }
}

/// `image load FILE` reads a file of this machine.
fn stdin(arguments: &mut [OsString]) -> Result<Stdio, Failure> {
    if arguments.get(..2).is_none_or(|verb| verb != ["image", "load"]) {
        return Ok(Stdio::inherit());
    }
    let mut of_option = false;
    for argument in &mut arguments[2..] {
        let text = argument.to_string_lossy();
        match text.starts_with('-') && text != "-" {
            _ if of_option => of_option = false,
            true => of_option = text == "--platform" || text == "--name",
            false if text == "-" => break,
            false => {
                let failed = |error| Failure::new(format!("failed to open {text}: {error}"));
                let file = File::open(&*text).map_err(failed)?;
                if file.metadata().map_err(failed)?.is_dir() {
                    return Err(Failure::new(format!("{text} is a directory: `nodlet push` sends one")));
                }
                *argument = "-".into();
                return Ok(file.into());
            }
        }
    }
    Ok(Stdio::inherit())
}

fn connect(mut context: Context, mut parser: Parser) -> Outcome {
    while let Some(argument) = parser.next()? {
        context.global(&Flag::from(argument), &mut parser)?;
    }
    // Whatever the environment says: this is the end of the line.
    let stream = Client::local(&context.root).connect()?;
    let mut to_agent = stream.try_clone()?;
    std::thread::spawn(move || {
        let _ = file(io::stdin().as_fd()).and_then(|mut stdin| pass_on(&mut stdin, &mut to_agent));
        let _ = to_agent.shutdown(Shutdown::Write);
    });
    let mut stream = stream;
    // When the agent has said all, whoever asks has no more to say.
    match file(io::stdout().as_fd()).and_then(|mut stdout| pass_on(&mut stream, &mut stdout)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The agent had said all, and did not read the rest of standard input.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(ExitCode::SUCCESS),
        Err(error) => Err(Failure::disconnected(format!("the connection was lost: {error}"))),
    }
}

/// Standard input or output without a buffer.
fn file(standard: std::os::fd::BorrowedFd<'_>) -> io::Result<File> {
    Ok(File::from(standard.try_clone_to_owned()?))
}

fn pass_on(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(read) => to.write_all(&piece[..read])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
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
    fn an_update_is_taken_from_this_machine() {
        let of = |line: &str| {
            let arguments: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            update(&arguments).map(|update| update.map_err(|failure| failure.to_string()))
        };
        let expected = |signature: Option<&str>, options: &[&str]| {
            let options = options.iter().map(OsString::from).collect();
            Some(Ok(Update { program: "n".into(), signature: signature.map(PathBuf::from), options }))
        };
        assert_eq!(of("system install n --wait"), expected(None, &["--wait"]));
        assert_eq!(
            of("system --signature s install --allow-downgrade n"),
            expected(Some("s"), &["--allow-downgrade"])
        );
        assert_eq!(of("system install --signature=s n"), expected(Some("s"), &[]));
        for line in [
            "system",
            "system status",
            "system install",
            "system install -",
            "system install n m",
            "image install n",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        let refused =
            of("system install - --signature s").expect("it is about an update").expect_err("rejected");
        assert!(refused.contains("--signature needs a FILE"), "{refused}");
    }

    #[test]
    fn what_is_for_the_board_passes_its_shell_unchanged() {
        let remote = Remote::new("b", Some(Path::new("/a b"))).unwrap_or_else(|failure| panic!("{failure}"));
        let arguments = ["image", "rm", "it's", "$(x)", ""].map(OsString::from);
        assert_eq!(
            remote.command(arguments.iter().map(OsString::as_os_str)),
            r"nodlet --root '/a b' image rm 'it'\''s' '$(x)' ''"
        );
    }
}
