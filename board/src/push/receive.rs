//! The board's side of a push: a root process that the agent starts for each push, with the client's
//! connection.
//!
//! ```text
//! Hello      properties of the board    ->
//!                                       <-  Offer: documents of archives, manifests
//!   the agent validates the manifests
//! Send       the layers that it lacks   ->
//!                                       <-  Blocks: the layers whose base to list
//! lists of blocks                       ->
//!                                       <-  sizes
//!   check of the free space
//! Go                                    ->
//!                                       <-  pieces of layers, or of the changes to a base,
//!                                           each into a file of the spool
//!                                       <-  Commit
//!   one load of all archives, one rename; then the manifests (push/receive/redo.rs)
//! Done       the results                ->
//! ```
//!
//! Before Commit only the spool changes, wherever the push is interrupted. The next push continues a partly
//! received layer if it sends that layer too; the parts of all other layers are removed then.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nodlet_host::paths::Paths;
use nodlet_kube::manifest::Validation;
use nodlet_rootfs::changes;
use nodlet_rootfs::parcel::{self, DocumentTexts, Part, WantedImage};
use nodlet_rootfs::{Digest, LoadError, LoadOptions, Platform, Store};
use nodlet_runtime::api::push::FINISH;
use serde_json::{Value, json};

use super::frames::{Frame, VERSION, Wire, invalid};
use crate::Failure;
use crate::client::Client;
use crate::files::Object;
use crate::{apply, image};

mod base;
mod redo;
mod sender;
mod spool;

use base::Base;
use redo::{Ended, Places, Redo, Steps};
use sender::Paced;
use spool::Spool;

/// Timeout of waiting for the sender, after which it counts as gone and its resources are released.
const SILENCE: Duration = Duration::from_secs(60);

/// How long a rejected sender's data is still read, so that the sender can read the reason.
const HEARD: Duration = Duration::from_secs(30);

/// How long to retry while the agent is restarting. A restarted agent is back long before.
const AGENT_BACK: Duration = Duration::from_secs(30);

/// Runs the process that the agent executes for a push: its standard input is the connection.
///
/// With [`FINISH`] there is no connection, and the process finishes an earlier push.
pub(crate) fn run(root: &Path, what: Option<&OsStr>) -> ExitCode {
    // A push can be repeated, so the kernel kills this process before any pod when memory is short.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    if what.is_some_and(|what| what == FINISH) {
        // If the spool is locked, the process that has the lock finishes the push.
        let finished = Spool::open(&Paths::new(root).push()).and_then(|spool| finish(root, &spool));
        return match finished {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let begun = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from).and_then(|stream| {
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Wire { from: Paced::new(stream.try_clone()?), to: stream })
    });
    let Ok(mut wire) = begun else { return ExitCode::FAILURE };
    let Some(_place) = sender::place(&Paths::new(root).run()) else {
        // Does not wait for the sender to read this, so that such processes do not accumulate.
        let _ = wire.say(&End::busy());
        return ExitCode::FAILURE;
    };
    match (Receiver { root: root.to_owned(), wire }).serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

struct Receiver {
    root: PathBuf,
    wire: Wire<Paced<UnixStream>, UnixStream>,
}

/// The most manifests of one push: the agent applies some ten a second, and no other push starts meanwhile.
const MANIFESTS_MAX: usize = 1000;

/// The contents of a push.
struct Offer {
    archives: Vec<Archive>,
    manifests: Vec<Manifest>,
    validation: Validation,
    dry_run: bool,
    /// Whether the sender supports changed blocks.
    blocks: bool,
}

struct Archive {
    documents: DocumentTexts,
    images: Vec<WantedImage>,
}

struct Manifest {
    namespace: String,
    object: Object,
}

/// A layer that must be sent.
struct Missing {
    archive: usize,
    part: Part,
    /// Bytes of the layer that the spool has.
    from: u64,
    /// The layer's base, if any; `made` is how many bytes of the layer the pieces in the spool make.
    base: Option<Base>,
    made: u64,
    coming: Coming,
}

/// How a layer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coming {
    /// Whole, as stored in the sender's archive: its total bytes.
    Whole(u64),
    /// As pieces that make the layer from its base: the bytes of the pieces that follow, after pieces that
    /// already make `made` bytes of the layer.
    Changes { bytes: u64, made: u64 },
}

/// Why a push ended early.
enum End {
    /// The sender has disconnected or violated the protocol.
    Wire(io::Error),
    /// The push is rejected; the sender gets this reason.
    Refused(String),
    /// The base and the changed blocks did not make the layer. It must be sent whole.
    NotRebuilt(String),
    /// Another push is running.
    Busy,
}

impl End {
    /// The message to a sender if another push is running.
    fn busy() -> Value {
        json!({"error": "another push to this board is under way: push again when it is done", "again": true})
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Wire(error)
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        let text = failure.to_string();
        End::Refused(text.strip_prefix("error: ").map(str::to_owned).unwrap_or(text))
    }
}

/// Joins errors to a text that fits a message. Drops all but the first hundred.
fn first(mut wrong: Vec<String>) -> String {
    const MOST: usize = 100;
    let more = wrong.len().saturating_sub(MOST);
    wrong.truncate(MOST);
    for why in &mut wrong {
        why.truncate(why.floor_char_boundary(4096));
    }
    if more > 0 {
        wrong.push(format!("and {more} more"));
    }
    wrong.join("\n")
}

/// Converts the error of an operation on the spool.
fn refused(what: &str) -> impl Fn(io::Error) -> End + '_ {
    move |error| {
        End::Refused(match error.raw_os_error() {
            Some(libc::ENOSPC) => {
                format!("the board's disk is full: failed to {what}; remove images with nodlet image rm")
            }
            _ => format!("failed to {what} on the board: {error}"),
        })
    }
}

impl Receiver {
    fn serve(mut self) -> Result<(), io::Error> {
        let ended = self.receive();
        match ended {
            Ok(()) => Ok(()),
            Err(End::Refused(why)) => self.tell(&json!({"error": why})),
            Err(End::NotRebuilt(why)) => self.tell(&json!({"error": why, "again": true, "whole": true})),
            Err(End::Busy) => self.tell(&End::busy()),
            Err(End::Wire(error)) => {
                let again = error.kind() != io::ErrorKind::InvalidData;
                let why = format!("the board could not go on: {error}");
                let _ = self.tell(&json!({"error": why, "again": again}));
                Err(error)
            }
        }
    }

    /// Sends the reason for the end to a sender that may still be sending.
    fn tell(&mut self, why: &Value) -> io::Result<()> {
        self.wire.say(why)?;
        self.wire.to.shutdown(std::net::Shutdown::Write)?;
        let until = Instant::now() + HEARD;
        let mut piece = [0; 4096];
        while Instant::now() < until && self.wire.from.read(&mut piece)? > 0 {}
        Ok(())
    }

    fn receive(&mut self) -> Result<(), End> {
        let spool = Spool::open(&Paths::new(&self.root).push())?;
        finish(&self.root, &spool)?;
        let platform = Platform::of_this_machine();
        self.wire.say(&json!({"versions": [VERSION], "platform": platform.to_string()}))?;
        let offer = Offer::of(&self.wire.message()?, &platform)?;
        let client = Client::local(&self.root);
        let foreseen = offer.judge(&client)?;
        let store = Store::open(&self.root).map_err(|error| Failure::chain(&error))?;
        let mut missing = spool.missing(&offer, &store)?;
        if offer.dry_run {
            self.wire.say(&json!({"done": offer.summary(&missing, foreseen, &BTreeSet::new())}))?;
            return Ok(());
        }
        let list: Vec<Value> = missing.iter().map(Missing::described).collect();
        self.wire.say(&json!({"send": list}))?;
        let mut sizes = self.wire.message()?;
        if let Some(wanted) = sizes["blocks"].as_array() {
            self.lists(&missing, wanted)?;
            sizes = self.wire.message()?;
        }
        settle(&mut missing, &sizes)?;
        spool.room_for(missing.iter().map(Missing::left).fold(0, u64::saturating_add))?;
        self.wire.say(&json!({"go": true}))?;
        for missing in &missing {
            match missing.coming {
                Coming::Whole(size) => self.layer(&spool, missing, size)?,
                Coming::Changes { bytes, made } => self.changes(&spool, missing, bytes, made)?,
            }
        }
        if self.wire.message()?["commit"] != true {
            return Err(invalid("the push was not to be carried out").into());
        }
        let done = self.commit(&spool, &store, &offer, (&missing, &foreseen), &client)?;
        self.wire.say(&json!({"done": done}))?;
        Ok(())
    }

    /// Receives the missing bytes of a layer.
    fn layer(&mut self, spool: &Spool, missing: &Missing, size: u64) -> Result<(), End> {
        let path = spool.part(&missing.part);
        let failed = refused("keep a layer");
        spool.forget_changes(missing).map_err(&failed)?;
        let mut file = File::options().create(true).append(true).open(&path).map_err(&failed)?;
        let mut have = missing.from;
        if have > size {
            // The partial file is longer, so it belongs to another archive's layer.
            file.set_len(0).map_err(&failed)?;
            have = 0;
        }
        while have < size {
            match self.wire.hear()? {
                Frame::Piece(bytes) if !bytes.is_empty() && bytes.len() as u64 <= size - have => {
                    // A partial file must not keep the disk full until the next push.
                    let kept = file.write_all(&bytes).inspect_err(|_| drop(fs::remove_file(&path)));
                    kept.map_err(&failed)?;
                    have += bytes.len() as u64;
                }
                Frame::Piece(_) => return Err(invalid("a piece goes beyond its layer").into()),
                Frame::Message(_) => return Err(invalid("a message came where a layer was due").into()),
            }
        }
        Ok(())
    }

    /// Sends the lists of blocks of the bases that the sender requested.
    fn lists(&mut self, missing: &[Missing], wanted: &[Value]) -> Result<(), End> {
        let mut first = 0;
        for number in wanted {
            let number =
                number.as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(usize::MAX);
            let base = missing.get(number).and_then(|missing| missing.base.as_ref());
            let Some(base) = base.filter(|_| number >= first) else {
                return Err(invalid("blocks of another layer were asked for").into());
            };
            first = number + 1;
            let mut sent = Ok(());
            let listed = changes::list(&base.file, &mut |piece| {
                sent = self.wire.piece(piece);
                if sent.is_ok() { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            });
            sent?;
            if let Err(error) = listed {
                // Without a list, the layer is sent whole.
                eprintln!("push: failed to read layer {}: {error}", base.layer);
            }
            self.wire.piece(&[])?;
        }
        Ok(())
    }

    /// Receives the pieces that make the rest of a layer from its base.
    fn changes(&mut self, spool: &Spool, missing: &Missing, bytes: u64, made: u64) -> Result<(), End> {
        let mut file = spool.changes(missing, made)?;
        let mut left = bytes;
        while left > 0 {
            match self.wire.hear()? {
                Frame::Piece(piece) if piece.len() as u64 <= left && changes::made_by(&piece).is_some() => {
                    left -= piece.len() as u64;
                    // In one write, so that an interruption loses little.
                    let mut record = (piece.len() as u32).to_be_bytes().to_vec();
                    record.extend_from_slice(&piece);
                    // As with whole layers: a partial file must not keep the disk full until the next push.
                    let kept = file.write_all(&record).inspect_err(|_| drop(spool.forget_changes(missing)));
                    kept.map_err(refused("keep the changed blocks of a layer"))?;
                }
                Frame::Piece(_) => return Err(invalid("a piece makes nothing of its layer").into()),
                Frame::Message(_) => return Err(invalid("a message came where a layer was due").into()),
            }
        }
        Ok(())
    }

    /// Loads the images and applies the manifests, all of them or none.
    fn commit(
        &self,
        spool: &Spool,
        store: &Store,
        offer: &Offer,
        (missing, foreseen): (&[Missing], &[String]),
        client: &Client,
    ) -> Result<Value, End> {
        let paths = Paths::new(&self.root);
        let applied = paths.applied_manifests();
        let expected = offer.expected();
        let before = store.before(&expected).map_err(|error| Failure::chain(&error))?;
        let redo = Redo::new(&expected, before, &offer.manifests, offer.validation, &applied)
            .map_err(refused("read what was applied before"))?;
        // A single change is atomic by itself and needs no record.
        let changed = foreseen.iter().filter(|did| !did.ends_with(" unchanged")).count();
        if changed + usize::from(!redo.is_loaded(store)?) > 1 {
            redo.write(&spool.directory).map_err(refused("record the push"))?;
        }
        let forget = |end: End| {
            // Rejected layers must not occupy space until the next push.
            let _ = spool.clear();
            match Redo::remove(&spool.directory) {
                Ok(()) => end,
                Err(error) => refused("forget the record of the push")(error),
            }
        };
        let mut new = BTreeSet::new();
        if !offer.archives.is_empty() {
            let sources = spool.lay_out(offer, missing).map_err(forget)?;
            let mut options = LoadOptions::default();
            let cgroup =
                image::confine(&self.root, store, &mut options).map_err(|failure| forget(failure.into()))?;
            let loaded = store.load_all(sources, &options, &mut |_| {});
            drop(cgroup);
            let loaded = loaded.map_err(|error| {
                let end = End::from(Failure::chain(&error));
                forget(match (error, end) {
                    (LoadError::NotRebuilt { .. }, End::Refused(why)) => End::NotRebuilt(why),
                    (_, end) => end,
                })
            })?;
            new.extend(
                (0..).zip(&loaded).filter(|(_, loaded)| loaded.new).map(|(number, _): (usize, _)| number),
            );
        }
        // From here on the push will be completed; leftovers of the archives do no harm.
        let cleared = spool.clear();
        let places = Places { spool: &spool.directory, applied: &applied };
        let done = finished(redo, places, store, client)?;
        cleared?;
        let mut summary = offer.summary(missing, Vec::new(), &new);
        let pods = offer.manifests.iter().zip(&done).filter(|(manifest, _)| manifest.object.is_pod());
        let pods = pods.map(|(_, applied)| {
            let metadata = &applied.object["metadata"];
            json!({"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]})
        });
        summary["pods"] = pods.collect();
        summary["warnings"] = done.iter().flat_map(|applied| applied.warnings.iter().cloned()).collect();
        summary["failed"] = json!([]);
        summary["manifests"] = done.into_iter().map(|applied| applied.did).collect();
        Ok(summary)
    }
}

impl Missing {
    /// The description of the missing layer that is sent to the sender.
    fn described(&self) -> Value {
        let mut described = json!({"archive": self.archive, "member": self.part.member, "from": self.from});
        if let Some(base) = &self.base {
            let layer = base.layer.to_string();
            described["base"] = json!({"layer": layer, "bytes": base.bytes, "made": self.made});
        }
        described
    }

    /// Bytes of the layer that are still to be received.
    fn left(&self) -> u64 {
        match self.coming {
            Coming::Whole(size) => size.saturating_sub(self.from),
            Coming::Changes { bytes, .. } => bytes,
        }
    }
}

/// Records how each layer will be sent, from the sender's message.
fn settle(missing: &mut [Missing], message: &Value) -> io::Result<()> {
    let sizes = message["sizes"].as_array().map_or(&[][..], Vec::as_slice);
    if sizes.len() != missing.len() {
        return Err(invalid("sizes of other layers came than were asked for"));
    }
    for (missing, size) in missing.iter_mut().zip(sizes) {
        missing.coming = match (size.as_u64(), size["changes"].as_u64(), size["made"].as_u64()) {
            (Some(size), ..) => Coming::Whole(size),
            (_, Some(bytes), Some(made)) if missing.base.is_some() && (made == 0 || made == missing.made) => {
                Coming::Changes { bytes, made }
            }
            _ => return Err(invalid("a size that is none")),
        };
    }
    Ok(())
}

/// Finishes the push whose record is in the spool, which was interrupted by a power cut or the end of its
/// process.
fn finish(root: &Path, spool: &Spool) -> Result<(), End> {
    let Some(redo) = Redo::read(&spool.directory).map_err(refused("read the record of an earlier push"))?
    else {
        return Ok(());
    };
    let store = Store::open(root).map_err(|error| Failure::chain(&error))?;
    if !redo.is_back() && !redo.is_loaded(&store)? {
        return Redo::remove(&spool.directory).map_err(refused("forget the record of an earlier push"));
    }
    spool.clear()?;
    let applied = Paths::new(root).applied_manifests();
    let places = Places { spool: &spool.directory, applied: &applied };
    match finished(redo, places, &store, &Client::local(root)) {
        Ok(_) => eprintln!("a push that was interrupted is carried out"),
        // The push is still unfinished, and the next push must not replace its record.
        Err(end) if Redo::is_there(&spool.directory) => return Err(end),
        Err(End::Refused(why)) => eprintln!("a push that was interrupted: {why}"),
        Err(end) => return Err(end),
    }
    Ok(())
}

/// Carries out a record. Returns the results of the manifests.
fn finished(
    redo: Redo,
    places: Places<'_>,
    store: &Store,
    client: &Client,
) -> Result<Vec<apply::Applied>, End> {
    let steps = Steps {
        apply: &mut |manifest, validation| manifest.apply(client, validation),
        take_back: &mut |before, images| store.take_back(before, images).map_err(io::Error::other),
    };
    let ended = redo.carry_out(places, steps).map_err(refused("finish the record of the push"))?;
    match ended {
        Ended::Done(done) => Ok(done),
        Ended::Back(why) => Err(End::Refused(why)),
        Ended::Waits(failure) => match End::from(failure) {
            End::Refused(why) if Redo::is_there(places.spool) => {
                Err(End::Refused(format!("{why}; the board finishes the push when its agent is back")))
            }
            end => Err(end),
        },
    }
}

impl Manifest {
    /// Applies the manifest. Retries if the agent is just being restarted.
    fn apply(&self, client: &Client, validation: Validation) -> Result<apply::Applied, Failure> {
        let end = Instant::now() + AGENT_BACK;
        loop {
            let restart = client.watch_restart();
            match apply::send(client, &self.object, &self.namespace, validation, false) {
                Err(failure) if failure.is_disconnected() && restart.wait_for_agent(end) => {}
                result => return result,
            }
        }
    }
}

impl Offer {
    fn of(message: &Value, platform: &Platform) -> Result<Offer, End> {
        let list = |name: &str| message[name].as_array().ok_or_else(|| invalid("an offer lacks a list"));
        let mut archives = Vec::new();
        for archive in list("archives")? {
            let documents = archive.as_object().ok_or_else(|| invalid("an archive without documents"))?;
            let mut texts = DocumentTexts::new();
            for (name, text) in documents {
                let name =
                    parcel::member_path(name).ok_or_else(|| invalid("a document's name leads elsewhere"))?;
                let text = text.as_str().ok_or_else(|| invalid("a document that is no text"))?;
                texts.insert(name, text.as_bytes().to_vec());
            }
            let images = parcel::wanted(&texts, platform).map_err(|error| Failure::chain(&error))?;
            archives.push(Archive { documents: texts, images });
        }
        let mut manifests = Vec::new();
        if list("manifests")?.len() > MANIFESTS_MAX {
            return Err(End::Refused(format!(
                "the push has {} manifests, and one may have {MANIFESTS_MAX}: send them in parts",
                list("manifests")?.len()
            )));
        }
        for manifest in list("manifests")? {
            let text = |name: &str| {
                manifest[name]
                    .as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| invalid("a manifest without a place"))
            };
            if !manifest["object"].is_object() {
                return Err(invalid("a manifest without an object").into());
            }
            let mut object =
                Object { value: manifest["object"].clone(), place: text("place")?, warnings: Vec::new() };
            // The record has one object per manifest, and each is applied or rolled back separately.
            if object.value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) {
                return Err(invalid("a list came where an object was due").into());
            }
            redo::settle_name(&mut object.value)?;
            manifests.push(Manifest { namespace: text("namespace")?, object });
        }
        let validation = match message["validation"].as_str() {
            Some("warn") => Validation::Warn,
            Some("ignore") => Validation::Ignore,
            _ => Validation::Strict,
        };
        let (dry_run, blocks) = (message["dryRun"] == true, message["blocks"] == true);
        Ok(Offer { archives, manifests, validation, dry_run, blocks })
    }

    /// The IDs of all images of the push, each with its names.
    fn expected(&self) -> Vec<(Digest, Vec<String>)> {
        let images = self.archives.iter().flat_map(|archive| &archive.images);
        let named = |image: &WantedImage| {
            let id = image.id.to_string();
            (image.id, image.names.iter().filter(|name| **name != id).cloned().collect())
        };
        images.map(named).collect()
    }

    /// Lets the agent validate all manifests. Returns what it would do with them, or the errors of all.
    fn judge(&self, client: &Client) -> Result<Vec<String>, End> {
        let (mut would, mut wrong) = (Vec::new(), Vec::new());
        for Manifest { namespace, object } in &self.manifests {
            match apply::send(client, object, namespace, self.validation, true) {
                Ok(applied) => would.push(applied.did),
                Err(failure) if failure.is_disconnected() => return Err(failure.into()),
                Err(failure) => wrong.push(format!("{}: {failure}", object.place)),
            }
        }
        match wrong.is_empty() {
            true => Ok(would),
            false => Err(End::Refused(first(wrong))),
        }
    }

    /// The report of images and manifests. `new` has the indexes of archives with new images.
    fn summary(&self, missing: &[Missing], manifests: Vec<String>, new: &BTreeSet<usize>) -> Value {
        let mut images = Vec::new();
        let all = self
            .archives
            .iter()
            .enumerate()
            .flat_map(|(number, archive)| archive.images.iter().map(move |image| (number, image)));
        for (number, (archive, image)) in all.enumerate() {
            let its = |missing: &&Missing| missing.archive == archive && image.layers.contains(&missing.part);
            let members: Vec<&str> =
                missing.iter().filter(its).map(|missing| missing.part.member.as_str()).collect();
            images.push(json!({
                "names": image.names, "layers": image.layers.len(), "archive": archive, "sent": members,
                "new": new.contains(&number),
            }));
        }
        json!({"images": images, "manifests": manifests})
    }
}

#[cfg(test)]
mod tests;
