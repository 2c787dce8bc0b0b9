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

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nodlet_core::sorted::SortedSet;
use nodlet_host::paths::Paths;
use nodlet_kernel::own_file;
use nodlet_rootfs::changes;
use nodlet_rootfs::{LoadError, LoadOptions, Platform, Store};
use nodlet_runtime::api::push::FINISH;
use serde_json::{Value, json};

use super::frames::{Frame, VERSION, Wire, invalid};
use crate::client::Client;
use crate::error::VerbError;
use crate::verbs::apply;
use crate::verbs::image;

mod base;
mod end;
mod manifest;
mod missing;
mod offer;
mod redo;
mod sender;
mod spool;

use end::{End, refused};
use missing::{Missing, Transfer, record_sizes};
use offer::Offer;
use redo::{Ended, Places, Redo, Steps, StoredRedo};
use sender::Paced;
use spool::Spool;

/// Timeout of waiting for the sender, after which it counts as gone and its resources are released.
const SILENCE: Duration = Duration::from_secs(60);

/// How long a rejected sender's data is still read, so that the sender can read the reason.
const REJECT_DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

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
            Err(end) => {
                if let End::Refused(why) = end {
                    eprintln!("an interrupted push is not completed: {why}");
                }
                ExitCode::FAILURE
            }
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
        let _ = wire.send(&End::busy());
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

impl Receiver {
    fn serve(mut self) -> Result<(), io::Error> {
        let ended = self.receive();
        match ended {
            Ok(()) => Ok(()),
            Err(End::Refused(why)) => self.send_end(&json!({"error": why})),
            Err(End::NotRebuilt(why)) => self.send_end(&json!({"error": why, "again": true, "whole": true})),
            Err(End::Busy) => self.send_end(&End::busy()),
            Err(End::Wire(error)) => {
                let again = error.kind() != io::ErrorKind::InvalidData;
                let why = format!("the board cannot continue: {error}");
                let _ = self.send_end(&json!({"error": why, "again": again}));
                Err(error)
            }
        }
    }

    /// Sends the reason for the end to a sender that may still be sending.
    fn send_end(&mut self, why: &Value) -> io::Result<()> {
        self.wire.send(why)?;
        self.wire.to.shutdown(std::net::Shutdown::Write)?;
        let until = Instant::now() + REJECT_DRAIN_TIMEOUT;
        let mut piece = [0; 4096];
        while Instant::now() < until && self.wire.from.read(&mut piece)? > 0 {}
        Ok(())
    }

    fn receive(&mut self) -> Result<(), End> {
        let spool = Spool::open(&Paths::new(&self.root).push())?;
        finish(&self.root, &spool)?;
        let platform = Platform::of_this_machine();
        self.wire.send(&json!({"versions": [VERSION], "platform": platform.to_string()}))?;
        let offer = Offer::of(&self.wire.message()?, &platform)?;
        let client = Client::local(&self.root);
        let foreseen = offer.judge(&client)?;
        let store = Store::open(&self.root).map_err(|error| VerbError::chain(&error))?;
        let mut missing = spool.missing(&offer, &store)?;
        if offer.dry_run {
            self.wire.send(&json!({"done": offer.summary(&missing, foreseen, &SortedSet::new())}))?;
            return Ok(());
        }
        let list: Vec<Value> = missing.iter().map(Missing::described).collect();
        self.wire.send(&json!({"send": list}))?;
        let mut sizes = self.wire.message()?;
        if let Some(wanted) = sizes["blocks"].as_array() {
            self.lists(&missing, wanted)?;
            sizes = self.wire.message()?;
        }
        record_sizes(&mut missing, &sizes)?;
        spool.room_for(missing.iter().map(Missing::remaining).fold(0, u64::saturating_add))?;
        self.wire.send(&json!({"go": true}))?;
        for missing in &missing {
            match missing.transfer {
                Transfer::Whole(size) => self.layer(&spool, missing, size)?,
                Transfer::Changes { bytes, rebuilt } => self.changes(&spool, missing, bytes, rebuilt)?,
            }
        }
        if self.wire.message()?["commit"] != true {
            return Err(invalid("the push was not committed").into());
        }
        let done = self.commit(&spool, &store, &offer, (&missing, &foreseen), &client)?;
        self.wire.send(&json!({"done": done}))?;
        Ok(())
    }

    /// Receives the missing bytes of a layer.
    fn layer(&mut self, spool: &Spool, missing: &Missing, size: u64) -> Result<(), End> {
        let path = spool.part(&missing.part);
        let failed = refused("keep a layer");
        spool.forget_changes(missing).map_err(&failed)?;
        let mut file =
            own_file::open_with(&path, File::options().create(true).append(true)).map_err(&failed)?;
        let mut have = missing.from;
        if have > size {
            // The partial file is longer, so it belongs to another archive's layer.
            file.set_len(0).map_err(&failed)?;
            have = 0;
        }
        while have < size {
            match self.wire.receive()? {
                Frame::Piece(bytes) if !bytes.is_empty() && bytes.len() as u64 <= size - have => {
                    // A partial file must not keep the disk full until the next push.
                    let kept = file.write_all(&bytes).inspect_err(|_| drop(fs::remove_file(&path)));
                    kept.map_err(&failed)?;
                    have += bytes.len() as u64;
                }
                Frame::Piece(_) => return Err(invalid("a piece goes beyond its layer").into()),
                Frame::Message(_) => return Err(invalid("expected a piece of a layer, got a message").into()),
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
                return Err(invalid("the sender requested blocks of another layer").into());
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
    fn changes(&mut self, spool: &Spool, missing: &Missing, bytes: u64, rebuilt: u64) -> Result<(), End> {
        let mut file = spool.changes(missing, rebuilt)?;
        let mut left = bytes;
        while left > 0 {
            match self.wire.receive()? {
                Frame::Piece(piece) if piece.len() as u64 <= left && changes::made_by(&piece).is_some() => {
                    left -= piece.len() as u64;
                    // In one write, so that an interruption loses little.
                    let mut record = (piece.len() as u32).to_be_bytes().to_vec();
                    record.extend_from_slice(&piece);
                    // As with whole layers: a partial file must not keep the disk full until the next push.
                    let kept = file.write_all(&record).inspect_err(|_| drop(spool.forget_changes(missing)));
                    kept.map_err(refused("keep the changed blocks of a layer"))?;
                }
                Frame::Piece(_) => return Err(invalid("a piece makes no bytes of its layer").into()),
                Frame::Message(_) => return Err(invalid("expected a piece of a layer, got a message").into()),
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
        let before = store.before(&expected).map_err(|error| VerbError::chain(&error))?;
        let redo = Redo::new(&expected, before, &offer.manifests, offer.validation, &applied)
            .map_err(refused("read the applied objects"))?;
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
                Err(error) => refused("remove the record of the push")(error),
            }
        };
        let mut new = SortedSet::new();
        if !offer.archives.is_empty() {
            let sources = spool.lay_out(offer, missing).map_err(forget)?;
            let mut options = LoadOptions::default();
            let cgroup =
                image::confine(&self.root, store, &mut options).map_err(|failure| forget(failure.into()))?;
            let loaded = store.load_all(sources, &options, &mut |_| {});
            drop(cgroup);
            let loaded = loaded.map_err(|error| {
                let end = End::from(VerbError::chain(&error));
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

/// Finishes the push whose record is in the spool, which was interrupted by a power cut or the end of its
/// process.
fn finish(root: &Path, spool: &Spool) -> Result<(), End> {
    Redo::clean(&spool.directory).map_err(refused("remove the rest of an earlier push"))?;
    let path = spool.directory.join(redo::REDO);
    let remove = || Redo::remove(&spool.directory).map_err(refused("remove the record of an earlier push"));
    let redo = match Redo::read(&spool.directory).map_err(refused(&format!("read {}", path.display())))? {
        StoredRedo::Nothing => return Ok(()),
        StoredRedo::Record(redo) => redo,
        StoredRedo::Damaged(error) => {
            eprintln!("{}: not the record of a push ({error}): it is removed", path.display());
            return remove();
        }
        StoredRedo::OtherFormat(format) => {
            return Err(End::Refused(format!(
                "{}: the record of an interrupted push has format {format}, which this version of nodlet does not \
                 know: the version that wrote it completes the push; without the file, it is not completed",
                path.display()
            )));
        }
    };
    let store = Store::open(root).map_err(|error| VerbError::chain(&error))?;
    if !redo.is_back() && !redo.is_loaded(&store)? {
        return remove();
    }
    spool.clear()?;
    let applied = Paths::new(root).applied_manifests();
    let places = Places { spool: &spool.directory, applied: &applied };
    match finished(redo, places, &store, &Client::local(root)) {
        Ok(_) => eprintln!("completed an interrupted push"),
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

#[cfg(test)]
mod tests;
