//! `nodlet push`: images and manifests to a board, all of them or none.
//!
//! The archives stay here; what goes over is, of each, the documents that say which image is meant
//! and the layers that the board says it lacks. Read next: `push/receive.rs`, the other side, whose
//! head shows who says what, and `push/frames.rs`, how. `push/wait.rs` is `--wait`.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::Parser;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodlet_rootfs::Platform;
use nodlet_rootfs::parcel::{DocumentTexts, Layer, Parcel};
use nodlet_runtime::api::push::PROTOCOL;
pub(crate) use nodlet_runtime::api::push::RECEIVE;
use nodlet_runtime::manifest::Validation;
use serde_json::{Value, json};

use crate::arguments::{Context, Flag, number, switch};
use crate::client::{Client, Response, explain};
use crate::files::{self, Object};
use crate::remote::Remote;
use crate::{Failure, Outcome, Verb, apply, image, logs};

mod frames;
mod receive;
pub(crate) mod system;
mod wait;

use frames::{MESSAGE_MAX, PIECE_MAX, VERSION, Wire};
pub(crate) use receive::run as receive;
use system::Update;

pub(crate) const VERB: Verb = Verb {
    name: "push",
    summary: "Send images and manifests to a board, all or nothing",
    help: "\
Send images and manifests to a board over ssh. Either all images are loaded and all
manifests applied, or nothing has changed. Layers that the board has are not sent. After a
dropped line the push goes on where it stopped by itself, and so does one that is repeated.

Usage: nodlet push [USER@]BOARD[:PORT] FILE|DIR... [flags]
       nodlet push [USER@]BOARD[:PORT] --system FILE [--signature FILE] [--allow-downgrade]

A FILE is a manifest or an image archive, as `nodlet image load` takes it; a DIR is an
OCI image layout, or has manifests (.yaml, .yml, .json) and archives (.tar, .tar.gz,
.tgz, .tar.zst). Of an archive for several platforms the board's is sent.

With --system, FILE is a newer nodlet for a board whose init is nodlet. The board tries it
out, and either keeps it or returns to the one before; the push waits for that, and its
exit code is 0 if the update was kept.

Examples:
  # A pod and its image; succeeds when the pod is ready
  podman save -o web.tar localhost/web && nodlet push root@board web.tar web.yaml --wait

  # Everything in a directory: what would be done
  nodlet push root@board site/ --dry-run

  # A newer nodlet, with its signature in nodlet-0.2.0.minisig
  nodlet push root@board --system nodlet-0.2.0

Flags:
      --wait[=DURATION]       until all pods are ready, two minutes at most or so long
      --dry-run               check it all, send no layer, change nothing
  -n, --namespace NAME        for manifests that name none, instead of default
      --validate HOW          what becomes of unknown fields: strict (refused), warn or ignore
      --retries N             after a dropped line, tries without progress before it gives up, 6
                              by default, within a minute
      --board BOARD           instead of the first argument (or $NODLET_BOARD)
      --system FILE           a newer nodlet, instead of images and manifests
      --signature FILE        of --system: its signature, FILE.minisig by default
      --allow-downgrade       with --system: one that is older than what runs, too
      --root DIR              of the agent of this root, over there
",
    run,
};

/// For pods to become ready, unless another time is given.
const WAIT: Duration = Duration::from_secs(120);

/// How often in a row a connection is tried again after a dropped line. With the pauses it takes
/// longer than a board needs to notice that the line is gone.
const RETRIES: u32 = 6;

#[derive(Debug, PartialEq, Eq)]
struct Push {
    paths: Vec<PathBuf>,
    retries: u32,
    wait: Option<Duration>,
    dry_run: bool,
    validation: Validation,
    /// A newer nodlet, instead of all this.
    update: Option<Update>,
}

impl Default for Push {
    fn default() -> Push {
        Push {
            paths: Vec::new(),
            retries: RETRIES,
            wait: None,
            dry_run: false,
            validation: Validation::default(),
            update: None,
        }
    }
}

/// An archive that is to be pushed.
struct Archive {
    path: PathBuf,
    parcel: Parcel,
    /// Bytes of it that were sent.
    sent: u64,
}

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
    let manifests: Result<Vec<Value>, Failure> = objects
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
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Push, Failure> {
        let mut push = Push::default();
        let mut update = Update::default();
        // The last flag that only images and manifests have, and the last that only an update has.
        let (mut of_files, mut of_update) = (None, None);
        while let Some(argument) = parser.next()? {
            if let lexopt::Arg::Value(value) = argument {
                push.paths.push(value.into());
                continue;
            }
            match Flag::from(argument) {
                Flag::Long(name) => {
                    match name.as_str() {
                        "wait" => {
                            let given =
                                parser.optional_value().map(|value| value.to_string_lossy().into_owned());
                            push.wait = match given {
                                Some(text) => logs::go_duration("--wait", &text)?,
                                None => Some(WAIT),
                            };
                        }
                        "dry-run" => push.dry_run = apply::dry_run(parser)?,
                        "validate" => push.validation = apply::validation(parser)?,
                        "retries" => {
                            let retries = number(parser, "--retries")?;
                            push.retries = u32::try_from(retries).unwrap_or(u32::MAX);
                        }
                        "system" => update.program = parser.value()?.into(),
                        "signature" => update.signature = Some(parser.value()?.into()),
                        "allow-downgrade" => {
                            update.options.clear();
                            if switch(parser)? {
                                update.options.push("--allow-downgrade".into());
                            }
                        }
                        _ => context.namespaced(&Flag::Long(name.clone()), parser)?,
                    }
                    match name.as_str() {
                        "wait" | "dry-run" | "validate" | "retries" | "namespace" => {
                            of_files = Some(format!("--{name}"))
                        }
                        "signature" | "allow-downgrade" => of_update = Some(format!("--{name}")),
                        _ => {}
                    }
                }
                other => {
                    context.namespaced(&other, parser)?;
                    of_files = Some(other.to_string());
                }
            }
        }
        if context.board.is_none() && !push.paths.is_empty() {
            context.board = Some(push.paths.remove(0).to_string_lossy().into_owned());
        }
        let is_update = !update.program.as_os_str().is_empty();
        match (is_update, push.paths.first(), of_files, of_update) {
            (true, _, Some(flag), _) => {
                let hint = if flag == "--wait" { ": an update is always waited for" } else { "" };
                Err(context.wrong_use(format!("{flag} does not go together with --system{hint}")))
            }
            (true, Some(path), ..) => Err(context.wrong_use(format!(
                "--system goes alone: push {path:?} by itself, before or after the update"
            ))),
            (true, None, ..) if context.board.is_none() => {
                Err(context.wrong_use("a board for the update is required"))
            }
            (true, None, ..) => {
                update.options.push("--wait".into());
                push.update = Some(update);
                Ok(push)
            }
            (false, .., Some(flag)) => {
                Err(context.wrong_use(format!("{flag} is for an update: say --system FILE, too")))
            }
            (false, None, ..) => {
                Err(context.wrong_use("a board, and files or directories for it, are required"))
            }
            (false, Some(_), ..) => Ok(push),
        }
    }

    /// Reads the manifests and opens the archives: what is wrong with a file is told before any is sent.
    fn open(&self) -> Result<(Vec<Object>, Vec<Archive>), Failure> {
        let (mut manifests, mut archives, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for path in &self.paths {
            let found = expand(path);
            for (path, is_archive) in found.unwrap_or_else(|failure| {
                failures.push(failure);
                Vec::new()
            }) {
                if !is_archive {
                    manifests.push(path);
                    continue;
                }
                match Parcel::open(&path) {
                    Ok(parcel) => archives.push(Archive { path, parcel, sent: 0 }),
                    Err(error) => failures.push(Failure::chain(&error).of(&path.display().to_string())),
                }
            }
        }
        let (objects, others) = files::read(&manifests, self.validation)?;
        failures.extend(others);
        match failures.pop() {
            None => Ok((objects, archives)),
            Some(last) => {
                for failure in failures {
                    eprintln!("{failure}");
                }
                Err(last)
            }
        }
    }

    /// Sends it all, over as many connections as it takes as long as each gets further.
    fn send(&self, client: &Client, manifests: &[Value], archives: &mut [Archive]) -> Result<Value, Failure> {
        let mut retries = Retries { left: 0, most: self.retries, reached: None };
        loop {
            let mut connection = None;
            let ended = Sender::connect(client)
                .and_then(|sender| connection.insert(sender).send(self, manifests, archives));
            let failure = match ended {
                Err(failure) if failure.is_disconnected() => failure,
                ended => return ended,
            };
            let reached = connection.filter(|sender| sender.sent > 0).map(|sender| sender.had);
            let text = failure.to_string();
            let Some(pause) = retries.pause(reached) else {
                let why = text.strip_prefix("error: ").unwrap_or(&text);
                return Err(Failure::disconnected(match retries.reached {
                    Some(_) => format!("{why}; push again to go on from there"),
                    None => why.to_owned(),
                }));
            };
            eprintln!("{text}; trying again in {}s", pause.as_secs());
            std::thread::sleep(pause);
        }
    }

    /// Says what was done, and whether it was all.
    fn show(&self, done: &Value, archives: &[Archive]) -> ExitCode {
        let note = if self.dry_run { " (server dry run)" } else { "" };
        let texts = |list: &Value| -> Vec<String> {
            list.as_array().into_iter().flatten().filter_map(|text| Some(printable(text.as_str()?))).collect()
        };
        let mut told = Vec::new();
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
            // An archive's bytes are told once, with its first image.
            if let Some(number) = image["archive"].as_u64().and_then(|number| usize::try_from(number).ok())
                && !self.dry_run
                && !told.contains(&number)
                && let Some(archive) = archives.get(number)
            {
                told.push(number);
                what = format!("{what}, {}", image::size(archive.sent));
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

/// Which dropped lines are tried again.
struct Retries {
    left: u32,
    most: u32,
    /// What the board had of the layers when something was sent last.
    reached: Option<u64>,
}

impl Retries {
    /// How long to wait before the next connection, if there is to be one. `reached` is what the board
    /// had when the last connection began, if layers were sent over it.
    ///
    /// A connection that got no further than the one before is no progress: what ends at the same
    /// byte again and again must come to an end.
    fn pause(&mut self, reached: Option<u64>) -> Option<Duration> {
        if reached > self.reached {
            (self.left, self.reached) = (self.most, reached);
        }
        let before = self.most - self.left;
        self.left = self.left.checked_sub(1)?;
        Some(Duration::from_secs(1 << before.min(5)))
    }
}

/// The files that a path stands for, and whether each is an archive.
fn expand(path: &Path) -> Result<Vec<(PathBuf, bool)>, Failure> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!("the path \"{}\" does not exist", path.display())),
        _ => Failure::new(format!("failed to read {}: {error}", path.display())),
    };
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![(path.to_owned(), is_archive(path).map_err(failed)?)]);
    }
    if path.join("index.json").is_file() || path.join("manifest.json").is_file() {
        return Ok(vec![(path.to_owned(), true)]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let has = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
        if name.starts_with('.') || !file.is_file() {
            continue;
        }
        if has(&[".yaml", ".yml", ".json"]) {
            found.push((file, false));
        } else if has(&[".tar", ".tar.gz", ".tgz", ".tar.zst"]) {
            found.push((file, true));
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(Failure::new(format!("there is no manifest and no image archive in {}", path.display()))),
        false => Ok(found),
    }
}

/// A manifest is text, which has no zero bytes and does not begin as compressed files do.
fn is_archive(path: &Path) -> io::Result<bool> {
    let mut beginning = Vec::new();
    std::fs::File::open(path)?.take(512).read_to_end(&mut beginning)?;
    Ok(beginning.contains(&0) || beginning.first().is_some_and(|byte| *byte >= 0x80 || *byte == 0x1f))
}

/// The board's texts end on this terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|c| *c == '\n' || !c.is_control()).collect()
}

/// This side of the connection.
struct Sender<'a> {
    client: &'a Client,
    wire: Wire<io::Chain<io::Cursor<Vec<u8>>, UnixStream>, UnixStream>,
    platform: Platform,
    terminal: bool,
    /// Bytes of layers that the board had already, and those that were sent.
    had: u64,
    sent: u64,
}

impl<'a> Sender<'a> {
    fn connect(client: &'a Client) -> Result<Sender<'a>, Failure> {
        let lost = |error| client.lost(&error);
        let mut stream = client.connect()?;
        let request = format!(
            "GET /nodlet/push HTTP/1.1\r\nhost: nodlet\r\nconnection: Upgrade\r\nupgrade: {PROTOCOL}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).map_err(lost)?;
        let mut response = Response::read(stream).map_err(lost)?;
        if response.code == 404 {
            return Err(Failure::new("the board's nodlet is too old to be pushed to: update it first"));
        }
        if response.code != 101 {
            let mut text = String::new();
            let _ = response.body.read_to_string(&mut text);
            return Err(Failure::refused(response.code, explain(response.code, &text)));
        }
        let (stream, ahead) = response.body.into_stream();
        let wire = Wire { to: stream.try_clone()?, from: io::Cursor::new(ahead).chain(stream) };
        let platform = Platform::of_this_machine();
        let terminal = io::stderr().is_terminal();
        let mut sender = Sender { client, wire, platform, terminal, had: 0, sent: 0 };
        let hello = sender.message()?;
        let versions = hello["versions"].as_array().map_or(&[][..], Vec::as_slice);
        if !versions.iter().any(|version| *version == VERSION) {
            return Err(Failure::new(
                "the board's nodlet speaks another version of push: use one of its release",
            ));
        }
        let platform = Platform::parse(hello["platform"].as_str().unwrap_or_default());
        sender.platform = platform.map_err(|error| Failure::chain(&error))?;
        Ok(sender)
    }

    /// What the board says next, unless it refuses to go on.
    fn message(&mut self) -> Result<Value, Failure> {
        let message = self.wire.message().map_err(|error| self.lost(&error))?;
        match message["error"].as_str() {
            Some(why) => {
                self.clear();
                // The line was dropped on one way only, or another push goes on: this one, as long as the
                // board has not noticed that its line was dropped.
                Err(match message["again"] == true {
                    true => Failure::disconnected(printable(why)),
                    false => Failure::new(printable(why)),
                })
            }
            None => Ok(message),
        }
    }

    fn lost(&self, error: &io::Error) -> Failure {
        self.clear();
        match error.kind() {
            io::ErrorKind::InvalidData => Failure::new(format!("the board's answer makes no sense: {error}")),
            _ => self.client.lost(error),
        }
    }

    /// A failure to send: the board may have said why.
    fn unsent(&mut self, error: &io::Error) -> Failure {
        match self.message() {
            Err(failure) => failure,
            Ok(_) => self.lost(error),
        }
    }

    fn say(&mut self, message: &Value) -> Result<(), Failure> {
        self.wire.say(message).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => Failure::new(format!(
                "manifests and documents of archives have more than {}: push fewer at a time",
                image::size(MESSAGE_MAX as u64)
            )),
            _ => self.unsent(&error),
        })
    }

    fn send(&mut self, push: &Push, manifests: &[Value], archives: &mut [Archive]) -> Result<Value, Failure> {
        let mut offered = Vec::new();
        for archive in archives.iter_mut() {
            let documents = archive.parcel.documents(&self.platform);
            offered.push(
                documents.map_err(|error| self.refusal(&error, archive)).and_then(|d| texts(d, archive))?,
            );
        }
        let validation = match push.validation {
            Validation::Strict => "strict",
            Validation::Warn => "warn",
            Validation::Ignore => "ignore",
        };
        self.say(&json!({
            "archives": offered, "manifests": manifests, "validation": validation, "dryRun": push.dry_run,
        }))?;
        let answer = self.message()?;
        if push.dry_run {
            return Ok(answer["done"].clone());
        }
        let mut wanted = Vec::new();
        for layer in answer["send"].as_array().into_iter().flatten() {
            let number = layer["archive"].as_u64().and_then(|number| usize::try_from(number).ok());
            let (Some(number), Some(member)) =
                (number.filter(|number| *number < archives.len()), layer["member"].as_str())
            else {
                return Err(Failure::new("the board asks for a layer of another push"));
            };
            let archive = &mut archives[number];
            let size = layer_of(archive, member)?.1;
            // What is there may be of another layer that was longer.
            let from = layer["from"].as_u64().filter(|from| *from <= size).unwrap_or(0);
            wanted.push((number, member.to_owned(), from, size));
        }
        let sizes: Vec<u64> = wanted.iter().map(|(.., size)| *size).collect();
        self.say(&json!({"sizes": sizes}))?;
        self.message()?;
        self.had = wanted.iter().map(|(_, _, from, _)| from).sum();
        let mut progress =
            Progress { sent: 0, total: wanted.iter().map(|(.., from, size)| size - from).sum(), told: None };
        for (number, member, from, size) in wanted {
            let before = progress.sent;
            let ended = self.layer(&mut archives[number], &member, from, size, &mut progress);
            archives[number].sent += progress.sent - before;
            self.sent = progress.sent;
            ended?;
        }
        self.say(&json!({"commit": true}))?;
        self.show("the board unpacks and starts what it was sent");
        let done = self.message()?;
        self.clear();
        Ok(done["done"].clone())
    }

    /// Sends a layer, from where the board has it.
    fn layer(
        &mut self,
        archive: &mut Archive,
        member: &str,
        from: u64,
        size: u64,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let file = archive.path.display().to_string();
        let failed = |error: io::Error| Failure::new(format!("failed to read {file}: {error}"));
        let (mut stream, _) = layer_of(archive, member)?;
        io::copy(&mut (&mut stream).take(from), &mut io::sink()).map_err(failed)?;
        let mut piece = vec![0; PIECE_MAX];
        let mut left = size - from;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_MAX);
            let read = stream.read(&mut piece[..most]).map_err(failed)?;
            if read == 0 {
                return Err(Failure::new(format!("{file} became shorter while it was read")));
            }
            if self.is_told_something() {
                self.message()?;
            }
            if let Err(error) = self.wire.piece(&piece[..read]) {
                return Err(self.unsent(&error));
            }
            left -= read as u64;
            progress.sent += read as u64;
            if progress.percent() != progress.told {
                progress.told = progress.percent();
                self.show(&format!("{}% of {}", progress.told.unwrap_or(100), image::size(progress.total)));
            }
        }
        Ok(())
    }

    /// While it sends, the board says nothing unless it refuses to go on.
    fn is_told_something(&self) -> bool {
        let mut ready = [PollFd::new(self.wire.to.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    fn refusal(&self, error: &nodlet_rootfs::ArchiveError, archive: &Archive) -> Failure {
        match error {
            nodlet_rootfs::ArchiveError::NoPlatform { available, .. } => Failure::new(format!(
                "the board is {}, and {} has images for {} only",
                self.platform,
                archive.path.display(),
                available.join(", ")
            )),
            error => Failure::chain(error).of(&archive.path.display().to_string()),
        }
    }

    fn show(&self, what: &str) {
        if self.terminal {
            eprint!("\r\x1b[K{what}");
            let _ = io::stderr().flush();
        }
    }

    fn clear(&self) {
        self.show("");
    }
}

/// How much of what is to be sent was.
struct Progress {
    sent: u64,
    total: u64,
    told: Option<u64>,
}

impl Progress {
    fn percent(&self) -> Option<u64> {
        (self.sent * 100).checked_div(self.total)
    }
}

fn layer_of<'a>(archive: &'a mut Archive, member: &str) -> Result<Layer<'a>, Failure> {
    let file = archive.path.display().to_string();
    let found = archive.parcel.layer(member).map_err(|error| Failure::chain(&error).of(&file))?;
    found.ok_or_else(|| Failure::new(format!("{file}: its layer {member} is not in it")))
}

/// An archive's documents are JSON, and so text.
fn texts(documents: DocumentTexts, archive: &Archive) -> Result<Value, Failure> {
    let text = |(name, bytes): (String, Vec<u8>)| {
        let text = String::from_utf8(bytes)
            .map_err(|_| Failure::new(format!("{}: {name} in it is no text", archive.path.display())))?;
        Ok((name, Value::String(text)))
    };
    documents.into_iter().map(text).collect::<Result<serde_json::Map<_, _>, _>>().map(Value::Object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Push, String> {
        let mut context = Context::new();
        (context.help, context.board) = (VERB.help, None);
        let mut parser = Parser::from_args(line.split_whitespace());
        Push::parse(&mut context, &mut parser).map_err(|failure| failure.to_string())
    }

    #[test]
    fn arguments_of_an_update() {
        let update = |signature: Option<&str>, options: &[&str]| {
            let options = options.iter().map(|option| option.into()).collect();
            let update = Update { program: "n".into(), signature: signature.map(PathBuf::from), options };
            Ok(Push { update: Some(update), ..Push::default() })
        };
        for (line, expected) in [
            ("b --system n", update(None, &["--wait"])),
            ("--board b --system=n --signature s", update(Some("s"), &["--wait"])),
            ("--allow-downgrade b --system n", update(None, &["--allow-downgrade", "--wait"])),
        ] {
            assert_eq!(parse(line), expected, "{line}");
        }
        for (line, expected) in [
            ("b --system n web.yaml", "--system goes alone: push \"web.yaml\""),
            ("b --system n --dry-run", "--dry-run does not go together with --system"),
            ("b --system n --wait", "--wait does not go together with --system: an update is always"),
            ("b --system n -n kitchen", "-n does not go together with --system"),
            ("b --system n --namespace=kitchen", "--namespace does not go together"),
            ("b --system n --retries 3", "--retries does not go together"),
            ("b web.yaml --retries few", "invalid value \"few\" for --retries"),
            ("b --system n --validate warn", "--validate does not go together"),
            ("b web.yaml --signature s", "--signature is for an update"),
            ("b web.yaml --allow-downgrade", "--allow-downgrade is for an update"),
            ("--system n", "a board for the update is required"),
            ("b --system", "missing argument"),
            ("b", "a board, and files or directories"),
        ] {
            let refused = parse(line).expect_err(line);
            assert!(refused.starts_with(&format!("error: {expected}")), "{line}: {refused}");
        }
    }

    #[test]
    fn a_dropped_line_is_tried_again_as_long_as_each_gets_further() {
        let pauses = |most: u32, reached: &[Option<u64>]| {
            let mut retries = Retries { left: 0, most, reached: None };
            let pause = |reached: &Option<u64>| retries.pause(*reached).map(|pause| pause.as_secs());
            reached.iter().map(pause).collect::<Vec<_>>()
        };
        // Nothing was sent: ssh itself, or the board, is what fails.
        assert_eq!(pauses(6, &[None]), [None]);
        assert_eq!(pauses(0, &[Some(0)]), [None]);
        assert_eq!(pauses(3, &[Some(0), None, None, None]), [Some(1), Some(2), Some(4), None]);
        assert_eq!(
            pauses(2, &[Some(0), None, Some(9), Some(9), Some(9)]),
            [Some(1), Some(2), Some(1), Some(2), None]
        );
        let all: u64 = pauses(6, &[Some(0), None, None, None, None, None]).into_iter().flatten().sum();
        assert!(all > 60, "the board notices a dropped line after a minute");
        assert_eq!(pauses(8, &[Some(0); 8]).last(), Some(&Some(32)));
    }
}
