//! `pods/log`: the log of one run of a container, from the files that its
//! supervisor writes.
//!
//! The API only reads logs: the supervisor writes them, and outlives the agent. A reader keeps one block of a
//! file in memory, and reads the next block when the client has received it. Read next: `api/log/line.rs`, on
//! the format of lines.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Bytes;
use nix::fcntl::OFlag;
use nix::sys::inotify::AddWatchFlags;
use serde_json::Value;

use super::body::{self, Body};
use super::container;
use super::read::parse;
use super::{Answered, Api, Query, Status};
use crate::storage_thread::Storage;
use nodlet_core::time::Timestamp;
use nodlet_host::log_files::{Directory, Place};
use nodlet_host::watches::{Watcher, Watches};
use nodlet_registry::objects::{Key, Objects};

mod file;
mod line;

use file::LogFile;
use line::{Printer, Streams};

/// The number of bytes that are read from a file at a time, and kept in memory for a slow client.
const BLOCK: usize = 32 * 1024;

/// Time between two reads of a followed log that the kernel does not let nodlet watch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// `apart`: the time between the last output and the end of the response.
pub(super) async fn log(api: &Api, key: &Key, query: &Query, apart: Option<Duration>) -> Answered {
    let options = Options::parse(query)?;
    let object = api.objects.get(key).ok_or_else(|| Status::not_found("pods", &key.name))?;
    let pod = parse(&object.json);
    let container = container::named(&pod, options.container.as_deref())?;
    let run = choose_run(&pod, &container, options.previous)?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or("").to_owned();
    let shown = Shown { key: key.clone(), uid, container, run };
    let reader = Reader::open(api, shown, options).await?;
    let pieces = futures_lite::stream::unfold((reader, apart), |(mut reader, apart)| async move {
        let Some(piece) = reader.next().await else {
            if let Some(apart) = apart.filter(|_| reader.sent) {
                smol::Timer::after(apart).await;
            }
            return None;
        };
        Some((Bytes::from(piece), (reader, apart)))
    });
    Ok(body::text(Body::stream(pieces)))
}

/// `PodLogOptions`.
struct Options {
    container: Option<String>,
    follow: bool,
    previous: bool,
    tail: Option<u64>,
    printer: Printer,
}

impl Options {
    fn parse(query: &Query) -> Result<Options, Status> {
        let since_seconds = query.number("sinceSeconds", 1)?;
        let since_time = query.get("sinceTime").filter(|text| !text.is_empty());
        let since = match (since_seconds, since_time) {
            (Some(_), Some(_)) => {
                return Err(Status::bad_request("at most one of sinceTime or sinceSeconds may be specified"));
            }
            (Some(seconds), None) => {
                let nanos = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
                Some(Timestamp(nodlet_host::clock::timestamp().0.saturating_sub(nanos)))
            }
            (None, Some(text)) => {
                let time = Some(text).filter(|text| text.is_ascii()).and_then(Timestamp::parse);
                Some(time.ok_or_else(|| {
                    Status::bad_request(format!(
                        "sinceTime: Invalid value: {text:?}: must be a time as in RFC 3339"
                    ))
                })?)
            }
            (None, None) => None,
        };
        let streams = match query.get("stream") {
            None | Some("" | "All") => Streams::All,
            Some("Stdout") => Streams::Stdout,
            Some("Stderr") => Streams::Stderr,
            Some(other) => {
                return Err(Status::bad_request(format!(
                    "stream: Unsupported value: {other:?}: supported values: \"All\", \"Stderr\", \"Stdout\""
                )));
            }
        };
        let tail = query.number("tailLines", 0)?;
        if tail.is_some() && streams != Streams::All {
            return Err(Status::bad_request(
                "`tailLines` and specific `stream` are mutually exclusive for now",
            ));
        }
        Ok(Options {
            container: query.get("container").filter(|name| !name.is_empty()).map(Into::into),
            follow: query.flag("follow"),
            previous: query.flag("previous"),
            tail,
            printer: Printer {
                since,
                timestamps: query.flag("timestamps"),
                streams,
                remaining: query.number("limitBytes", 1)?,
                ..Printer::default()
            },
        })
    }
}

/// Returns the run of the container whose log is requested.
fn choose_run(pod: &Value, container: &str, previous: bool) -> Result<u64, Status> {
    let name = pod["metadata"]["name"].as_str().unwrap_or("");
    let refuse =
        |why: &str| Status::bad_request(format!("container \"{container}\" in pod \"{name}\" {why}"));
    let status = container::status(pod, container).ok_or_else(|| refuse("is not available"))?;
    let newest = status["restartCount"].as_u64().unwrap_or(0);
    let (state, last) = (&status["state"], &status["lastState"]["terminated"]);
    let waiting = !state["running"].is_object() && !state["terminated"].is_object();
    // While the container waits, the newest run is the one that ended last.
    let ended = last.is_object().then(|| if waiting { newest } else { newest.saturating_sub(1) });
    if previous {
        return ended.ok_or_else(|| {
            Status::bad_request(format!(
                "previous terminated container \"{container}\" in pod \"{name}\" not found"
            ))
        });
    }
    if !waiting {
        return Ok(newest);
    }
    ended.ok_or_else(|| match state["waiting"]["reason"].as_str().unwrap_or("ContainerCreating") {
        "ErrImagePull" => refuse("is waiting to start: image can't be pulled"),
        "ImagePullBackOff" => refuse("is waiting to start: trying and failing to pull image"),
        reason => refuse(&format!("is waiting to start: {reason}")),
    })
}

/// The run of a container whose log is shown.
struct Shown {
    key: Key,
    uid: String,
    container: String,
    run: u64,
}

impl Shown {
    /// Whether the run has ended, so that its log is complete.
    fn has_ended(&self, objects: &Objects) -> bool {
        let pod = objects.get(&self.key).map(|object| parse(&object.json)).unwrap_or_default();
        let is_it = pod["metadata"]["uid"] == *self.uid;
        let Some(status) = container::status(&pod, &self.container).filter(|_| is_it) else { return true };
        !status["state"]["running"].is_object() || status["restartCount"].as_u64().unwrap_or(0) != self.run
    }
}

/// The time between the last output and the end of a response to an API server, whose WebSockets lose output that
/// arrives together with the end (`messageCopy` of `wsstream`). No answer of it shows that the output has arrived.
pub(super) const APART: Duration = Duration::from_millis(20);

struct Reader {
    path: PathBuf,
    file: LogFile,
    storage: Storage,
    block: Vec<u8>,
    /// The requested number of existing lines, until the first line is read.
    tail: Option<u64>,
    printer: Printer,
    follow: Option<Follow>,
    /// Whether another file may have replaced this one.
    maybe_rotated: bool,
    ended: bool,
    /// Whether something was printed.
    sent: bool,
}

/// The sources of notifications about new log output.
struct Follow {
    /// `None` if the kernel refused a watch: then the file is read every [`POLL_INTERVAL`].
    watcher: Option<Watcher>,
    objects: Rc<Objects>,
    shown: Shown,
}

impl Reader {
    async fn open(api: &Api, shown: Shown, options: Options) -> Result<Reader, Status> {
        let Shown { key, uid, container, run } = &shown;
        let directory = format!("{}_{}_{uid}/{container}/{run}.log", key.namespace, key.name);
        let path = api.root.join("var/log/pods").join(directory);
        let (place, follows) = (path.clone(), options.follow.then(|| api.watches.clone()));
        let opened = api.storage.read(move || {
            // The watch begins before the file is read, so that no change is missed.
            let directory = Place::of_log(&place).and_then(|place| place.open());
            let directory = directory.map_err(|error| ("watch", error))?;
            let watch = follows.map(|watches| watch(&watches, &directory));
            Ok((watch, open(&place).map_err(|error| ("open", error))?))
        });
        let (watch, file) = opened.await.map_err(|(what, error): (_, io::Error)| match error.kind() {
            io::ErrorKind::NotFound if options.previous => Status::bad_request(format!(
                "previous terminated container in pod \"{}\" not found: its log is gone",
                key.name
            )),
            io::ErrorKind::NotFound => Status::bad_request(format!(
                "the log of container \"{container}\" in pod \"{}\" is gone: nodlet down removes logs, and {} does \
                 not exist",
                key.name,
                path.display()
            )),
            _ => Status::internal(format!("failed to {what} {}: {error}", path.display())),
        })?;
        let follow = watch.map(|watch| {
            let watcher = watch.inspect_err(|error| {
                ::log::warn!(
                    "failed to watch {}: {error} (see fs.inotify.max_user_instances and \
                     fs.inotify.max_user_watches); it is read every {} s for this client",
                    path.display(),
                    POLL_INTERVAL.as_secs()
                );
            });
            Follow { watcher: watcher.ok(), objects: api.objects.clone(), shown }
        });
        Ok(Reader {
            file: LogFile::new(file, api.storage.clone(), options.follow),
            path,
            storage: api.storage.clone(),
            block: vec![0; BLOCK],
            tail: options.tail,
            printer: options.printer,
            follow,
            maybe_rotated: false,
            ended: false,
            sent: false,
        })
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        let mut printed = Vec::new();
        if let Some(lines) = self.tail.take()
            && let Err(error) = self.file.seek_to_tail(&mut self.block, lines).await
        {
            ::log::warn!("api: failed to read {}: {error}", self.path.display());
            self.ended = true;
        }
        // Whether the run had ended before the last read of the file, which was therefore complete.
        let mut over = false;
        while !self.ended {
            match self.file.read(&mut self.block).await {
                Ok(0) => {
                    let has_news = self.take_news();
                    if std::mem::take(&mut self.maybe_rotated) && self.rotated().await {
                        // Another file may be put there again and again, as fast as this loop checks.
                        smol::future::yield_now().await;
                    } else if over {
                        self.ended = true;
                        self.printer.end(&mut printed);
                    } else if self.has_ended() {
                        // When the end is known, the file has all output from before the end.
                        (over, self.maybe_rotated) = (true, true);
                    } else if has_news {
                        // The file has grown since it was read.
                        smol::future::yield_now().await;
                    } else {
                        self.wait().await;
                    }
                }
                Ok(read) => {
                    self.ended = !self.printer.print(&self.block[..read], &mut printed);
                    // Other clients are served between the blocks of a long log without output for this
                    // client.
                    smol::future::yield_now().await;
                }
                Err(error) => {
                    ::log::warn!("api: failed to read {}: {error}", self.path.display());
                    self.ended = true;
                }
            }
            if !printed.is_empty() {
                self.sent = true;
                return Some(printed);
            }
        }
        None
    }

    fn has_ended(&self) -> bool {
        self.follow.as_ref().is_none_or(|follow| follow.shown.has_ended(&follow.objects))
    }

    /// Whether files in the log's directory have changed since the last call.
    fn take_news(&mut self) -> bool {
        let Some(follow) = &self.follow else { return false };
        let Some(watcher) = &follow.watcher else {
            self.maybe_rotated = true;
            return false;
        };
        let news = watcher.take();
        self.maybe_rotated |=
            news.lost || news.events.iter().any(|event| event.what != AddWatchFlags::IN_MODIFY);
        !news.is_empty()
    }

    /// At the end of a file, continues with the new file if the supervisor began one.
    async fn rotated(&mut self) -> bool {
        if self.follow.is_none() {
            return false;
        }
        let path = self.path.clone();
        let Ok(new) = self.storage.read(move || open(&path)).await else { return false };
        if self.file.is(&new) {
            return false;
        }
        // The old file may have grown between the last read and the rotation.
        if self.file.has_more() {
            self.maybe_rotated = true;
        } else {
            self.file = LogFile::new(new, self.storage.clone(), true);
        }
        true
    }

    async fn wait(&self) {
        let Some(follow) = &self.follow else { return };
        let version = follow.objects.version();
        smol::future::or(follow.objects.changed_since(version), async {
            match &follow.watcher {
                Some(watcher) => watcher.changed().await,
                None => drop(smol::Timer::after(POLL_INTERVAL).await),
            }
        })
        .await;
    }
}

/// Watches a log directory by its open descriptor, so that no link can redirect the watch.
fn watch(watches: &Watches, directory: &Directory) -> io::Result<Watcher> {
    let watcher = watches.watcher()?;
    let changes = AddWatchFlags::IN_MODIFY
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE_SELF;
    watcher.add(&directory.path(), changes)?;
    Ok(watcher)
}

/// Opens the file of a log, and nothing in its place: a pod that collects logs can replace the file, and the
/// replacement must neither block the loop nor show another file of the machine.
fn open(path: &Path) -> io::Result<File> {
    let place = Place::of_log(path)?;
    Ok(place.open()?.open_own(place.name, OFlag::O_RDONLY)?.0)
}

#[cfg(test)]
mod tests;
