//! The sender of a push: its side of the protocol, and its retries.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nodlet_rootfs::Platform;
use nodlet_rootfs::changes::Blocks;
use nodlet_rootfs::parcel::{DocumentTexts, Layer};
use nodlet_runtime::api::push::PROTOCOL;
use serde_json::{Value, json};

use super::archive::Archive;
use super::blocks::{COMPARING, Wanted};
use super::frames::{Frame, MESSAGE_MAX, PIECE_MAX, VERSION, Wire, invalid};
use super::options::Push;
use crate::client::Client;
use crate::error::VerbError;
use crate::output::{self, StatusLine, printable};
use crate::verbs::apply;

impl Push {
    /// Sends the push, over several connections if necessary, as long as each makes progress.
    pub(super) fn send(
        &self,
        client: &Client,
        manifests: &[Value],
        archives: &mut [Archive],
    ) -> Result<Value, VerbError> {
        let mut retries = Retries { remaining: 0, most: self.retries, reached: None };
        // Whether the board failed to make a layer from its changed blocks.
        let mut whole = false;
        loop {
            let mut connection = None;
            let ended = Sender::connect(client)
                .and_then(|sender| connection.insert(sender).send(self, manifests, archives, whole));
            if connection.as_ref().is_some_and(|sender| sender.must_be_whole) && !whole {
                whole = true;
                archives.iter_mut().for_each(|archive| archive.spared = 0);
                continue;
            }
            let failure = match ended {
                Err(failure) if failure.is_disconnected() => failure,
                ended => return ended,
            };
            let reached = connection.filter(|sender| sender.began).map(|sender| sender.had);
            let text = failure.to_string();
            let Some(pause) = retries.pause(reached) else {
                let why = text.strip_prefix("error: ").unwrap_or(&text);
                return Err(VerbError::disconnected(match retries.reached {
                    Some(_) => format!("{why}; push again to continue"),
                    None => why.to_owned(),
                }));
            };
            eprintln!("{text}; retrying in {}s", pause.as_secs());
            std::thread::sleep(pause);
        }
    }
}

/// The state of retries after dropped lines.
struct Retries {
    remaining: u32,
    most: u32,
    /// Bytes of the layers that the board had when layers were last sent.
    reached: Option<u64>,
}

impl Retries {
    /// How long to wait before the next connection; `None` to give up. `reached` is how many bytes the board
    /// had when the last connection began, or `None` if no layers were sent over it.
    ///
    /// A connection that got no further than the one before is no progress: a push that keeps failing at the
    /// same byte must end.
    fn pause(&mut self, reached: Option<u64>) -> Option<Duration> {
        if reached > self.reached {
            (self.remaining, self.reached) = (self.most, reached);
        }
        let before = self.most - self.remaining;
        self.remaining = self.remaining.checked_sub(1)?;
        Some(Duration::from_secs(1 << before.min(5)))
    }
}

/// This side of one connection.
struct Sender<'a> {
    client: &'a Client,
    wire: Wire<io::Chain<io::Cursor<Vec<u8>>, UnixStream>, UnixStream>,
    platform: Platform,
    line: StatusLine,
    /// Bytes of layers that the board already had.
    had: u64,
    /// Whether layers or lists of blocks were sent.
    began: bool,
    /// Whether the board rejected changed blocks.
    must_be_whole: bool,
}

impl<'a> Sender<'a> {
    fn connect(client: &'a Client) -> Result<Sender<'a>, VerbError> {
        let response = client.upgrade("/nodlet/push", &format!("upgrade: {PROTOCOL}\r\n"));
        let response = response.map_err(|failure| match failure.code() {
            Some(404) => VerbError::new("the board's nodlet is too old to receive a push: update it first"),
            Some(_) | None => failure,
        })?;
        let (stream, ahead) = response.body.into_stream();
        let wire = Wire { to: stream.try_clone()?, from: io::Cursor::new(ahead).chain(stream) };
        let platform = Platform::of_this_machine();
        let line = StatusLine::new();
        let mut sender = Sender { client, wire, platform, line, had: 0, began: false, must_be_whole: false };
        let hello = sender.message()?;
        let versions = hello["versions"].as_array().map_or(&[][..], Vec::as_slice);
        if !versions.iter().any(|version| *version == VERSION) {
            return Err(VerbError::new(
                "the board's nodlet supports another version of the push protocol: use a nodlet of the same release",
            ));
        }
        let platform = Platform::parse(hello["platform"].as_str().unwrap_or_default());
        sender.platform = platform.map_err(|error| VerbError::chain(&error))?;
        Ok(sender)
    }

    /// Receives the board's next message. A rejection becomes an error.
    fn message(&mut self) -> Result<Value, VerbError> {
        let message = self.wire.message().map_err(|error| self.lost(&error))?;
        self.judged(message)
    }

    /// Returns the message unless it is the board's rejection.
    fn judged(&mut self, message: Value) -> Result<Value, VerbError> {
        match message["error"].as_str() {
            Some(why) => {
                self.line.clear();
                self.must_be_whole = message["whole"] == true;
                // Retry: either the line dropped in one direction only, or another push is running, which may
                // be this one as long as the board has not noticed the dropped line.
                Err(if message["again"] == true {
                    VerbError::disconnected(printable(why))
                } else {
                    VerbError::new(printable(why))
                })
            }
            None => Ok(message),
        }
    }

    fn lost(&self, error: &io::Error) -> VerbError {
        self.line.clear();
        match error.kind() {
            io::ErrorKind::InvalidData => VerbError::new(format!("the board's response is invalid: {error}")),
            _ => self.client.lost(error),
        }
    }

    /// Handles a failure to send: the board may have sent the reason.
    fn unsent(&mut self, error: &io::Error) -> VerbError {
        match self.message() {
            Err(failure) => failure,
            Ok(_) => self.lost(error),
        }
    }

    /// Sends a message to the board.
    fn send_message(&mut self, message: &Value) -> Result<(), VerbError> {
        self.wire.send(message).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => VerbError::new(format!(
                "manifests and documents of archives have more than {}: push fewer at a time",
                output::size(MESSAGE_MAX as u64)
            )),
            _ => self.unsent(&error),
        })
    }

    fn send(
        &mut self,
        push: &Push,
        manifests: &[Value],
        archives: &mut [Archive],
        whole: bool,
    ) -> Result<Value, VerbError> {
        let mut offered = Vec::new();
        for archive in archives.iter_mut() {
            let documents = archive.parcel.documents(&self.platform);
            offered.push(
                documents.map_err(|error| self.refusal(&error, archive)).and_then(|d| texts(d, archive))?,
            );
        }
        let validation = apply::validation_word(push.validation);
        self.send_message(&json!({
            "archives": offered, "manifests": manifests, "validation": validation, "dryRun": push.dry_run,
            "blocks": !whole,
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
                return Err(VerbError::new("the board requested a layer of another push"));
            };
            let archive = &mut archives[number];
            let size = layer_of(archive, member)?.1;
            let mut layer = Wanted::new(layer, number, member, size);
            layer.recall(archive);
            wanted.push(layer);
        }
        self.compare(archives, &mut wanted)?;
        let sizes: Vec<Value> = wanted.iter().map(Wanted::announced).collect();
        self.send_message(&json!({"sizes": sizes}))?;
        self.message()?;
        self.had = wanted.iter().map(|layer| layer.bytes().1).sum();
        let total = wanted.iter().map(|layer| layer.bytes().0).sum();
        let mut progress = Progress { sent: 0, total };
        for layer in &wanted {
            let before = progress.sent;
            let archive = &mut archives[layer.archive];
            let ended = match layer.changes {
                Some((place, _)) => self.changes(archive, layer, place, &mut progress),
                None => self.layer(archive, layer, &mut progress),
            };
            archive.sent += progress.sent - before;
            self.began |= progress.sent > 0;
            ended?;
        }
        self.send_message(&json!({"commit": true}))?;
        self.line.show("the board unpacks and starts the pushed images");
        let done = self.message()?;
        self.line.clear();
        Ok(done["done"].clone())
    }

    /// Compares layers with their bases on the board where that may save much.
    fn compare(&mut self, archives: &mut [Archive], wanted: &mut [Wanted]) -> Result<(), VerbError> {
        let listed: Vec<usize> = (0..wanted.len()).filter(|number| wanted[*number].needs_list()).collect();
        if listed.is_empty() {
            return Ok(());
        }
        self.send_message(&json!({"blocks": listed}))?;
        self.line.show("the board lists its blocks");
        let end = Instant::now() + COMPARING;
        for number in listed {
            let layer = &mut wanted[number];
            let (mut blocks, mut bytes) = (Blocks::default(), 0);
            loop {
                let piece = match self.wire.receive().map_err(|error| self.lost(&error))? {
                    Frame::Piece(piece) => piece,
                    Frame::Message(message) => {
                        self.judged(message)?;
                        return Err(VerbError::new("the board's response is invalid: no list of blocks"));
                    }
                };
                if piece.is_empty() {
                    break;
                }
                bytes += piece.len() as u64;
                let added = if bytes > layer.list_max() {
                    Err(invalid("a list of more blocks than the board has"))
                } else {
                    blocks.add(&piece)
                };
                added.map_err(|error| self.lost(&error))?;
            }
            self.began = true;
            layer.compare(&mut archives[layer.archive], &blocks, end);
        }
        Ok(())
    }

    /// Sends a layer, from the position that the board has reached.
    fn layer(
        &mut self,
        archive: &mut Archive,
        layer: &Wanted,
        progress: &mut Progress,
    ) -> Result<(), VerbError> {
        let file = archive.path.display().to_string();
        let failed = |error: io::Error| VerbError::new(format!("failed to read {file}: {error}"));
        let (mut stream, _) = layer_of(archive, &layer.member)?;
        io::copy(&mut (&mut stream).take(layer.from), &mut io::sink()).map_err(failed)?;
        let mut piece = vec![0; PIECE_MAX];
        let mut left = layer.size - layer.from;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_MAX);
            let read = stream.read(&mut piece[..most]).map_err(failed)?;
            if read == 0 {
                return Err(VerbError::new(format!("{file} became shorter while it was read")));
            }
            self.piece(&piece[..read], progress)?;
            left -= read as u64;
        }
        Ok(())
    }

    /// Sends the changed blocks of a layer, from a position in its pieces.
    fn changes(
        &mut self,
        archive: &Archive,
        layer: &Wanted,
        place: u64,
        progress: &mut Progress,
    ) -> Result<(), VerbError> {
        let pieces = archive.compared.get(&layer.member).map(|compared| compared.changes.pieces(place));
        for piece in pieces.into_iter().flatten() {
            let piece = piece.map_err(|error| {
                VerbError::new(format!("failed to read the changes of {}: {error}", layer.member))
            })?;
            self.piece(&piece, progress)?;
        }
        Ok(())
    }

    fn piece(&mut self, piece: &[u8], progress: &mut Progress) -> Result<(), VerbError> {
        if self.has_message() {
            self.message()?;
        }
        if let Err(error) = self.wire.piece(piece) {
            return Err(self.unsent(&error));
        }
        progress.sent += piece.len() as u64;
        self.line.show_part("", progress.sent, progress.total);
        Ok(())
    }

    /// Whether the board has sent something. While this side sends, that is a rejection.
    fn has_message(&self) -> bool {
        let mut ready = [PollFd::new(self.wire.to.as_fd(), PollFlags::POLLIN)];
        poll(&mut ready, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    fn refusal(&self, error: &nodlet_rootfs::ArchiveError, archive: &Archive) -> VerbError {
        match error {
            nodlet_rootfs::ArchiveError::NoPlatform { available, .. } => VerbError::new(format!(
                "the board is {}, but {} has images only for {}",
                self.platform,
                archive.path.display(),
                available.join(", ")
            )),
            error => VerbError::chain(error).of(&archive.path.display().to_string()),
        }
    }
}

/// The progress of sending.
struct Progress {
    sent: u64,
    total: u64,
}

fn layer_of<'a>(archive: &'a mut Archive, member: &str) -> Result<Layer<'a>, VerbError> {
    let file = archive.path.display().to_string();
    let found = archive.parcel.layer(member).map_err(|error| VerbError::chain(&error).of(&file))?;
    found.ok_or_else(|| VerbError::new(format!("{file}: layer {member} is missing")))
}

/// Converts an archive's documents, which are JSON, to text.
fn texts(documents: DocumentTexts, archive: &Archive) -> Result<Value, VerbError> {
    let text = |(name, bytes): (String, Vec<u8>)| {
        let text = String::from_utf8(bytes).map_err(|_| {
            VerbError::new(format!("{}: {name} in the archive is not text", archive.path.display()))
        })?;
        Ok((name, Value::String(text)))
    };
    documents.into_iter().map(text).collect::<Result<serde_json::Map<_, _>, _>>().map(Value::Object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_line_is_tried_again_as_long_as_each_gets_further() {
        let pauses = |most: u32, reached: &[Option<u64>]| {
            let mut retries = Retries { remaining: 0, most, reached: None };
            let pause = |reached: &Option<u64>| retries.pause(*reached).map(|pause| pause.as_secs());
            reached.iter().map(pause).collect::<Vec<_>>()
        };
        // Nothing was sent: ssh itself, or the board, fails.
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
