//! Follows the cluster that the board has joined, in one task of the agent's thread. The task exists only on a board
//! with credentials of a cluster, and nothing waits for it: pods start, run and end without it.
//!
//! The cluster's pods, and the objects that they refer to, become manifests in a directory of their own
//! (`var/lib/nodlet/cluster`), which is a source as any other. The status that the local API shows of these pods is
//! sent to the cluster. What to do when, what to write and what to send is decided in the crate `nodlet-cluster`.
//!
//! ```text
//! Schedule ─► perform ─► the API server ─► Schedule      connection.rs
//! watch of the cluster ─► step ─► a manifest, or its removal ─► sources ─► the core      pods.rs, objects.rs
//! objects of the local API ─► status_patch ─► the cluster      reports.rs, mirrors.rs
//! ```

mod connection;
mod mirrors;
mod objects;
mod pods;
mod reports;

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::Value;

use nodlet_cluster::api::{self, Api, ApiError};
use nodlet_cluster::backoff::random;
use nodlet_cluster::credentials::Credentials;
use nodlet_cluster::followed::Followed;
use nodlet_cluster::mirrors::Mirrors;
use nodlet_cluster::objects::Objects;
use nodlet_cluster::schedule::{Action, Next, Schedule, Seen};
use nodlet_cluster::watches::{News, Watches};
use nodlet_core::facts::Observation;
use nodlet_core::spec::Uid;

use super::{Engine, Shell};

/// Maximum size of the file with the credentials in bytes.
const MAX_CREDENTIALS: u64 = 1 << 20;

/// The longest life of a watch in seconds (client-go: 5 to 10 minutes).
const WATCH_SECONDS: u32 = 480;

/// The task's state, which outlives sessions.
struct Follower {
    shell: Rc<Shell>,
    credentials: Credentials,
    schedule: Schedule,
    followed: Followed,
    mirrors: Mirrors,
    objects: Objects,
    /// The version of the local API up to which changes were sent.
    version: u64,
    /// The UID of the Node.
    node_uid: String,
    /// The state of the node that was last reported.
    reported: Value,
    /// The reason of the last failure, until there is a connection.
    told: String,
}

/// The reason why a session ends.
struct Failure(String);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        Failure(error.to_string())
    }
}

impl Engine {
    /// Follows the cluster whose credentials are on the board, and no longer another one. The task ends at once if
    /// there are none.
    pub(super) fn follow_cluster(&mut self) {
        let path = self.shell.paths.cluster_credentials();
        let task = follow(self.shell.clone(), path);
        let task: std::pin::Pin<Box<dyn Future<Output = ()>>> = Box::pin(task);
        self.cluster = Some(self.shell.tasks.executor.spawn(task));
    }

    /// Ends a pod of the cluster: removes its manifest, and then stops it within `grace`.
    fn end_cluster_pod(&mut self, uid: Uid, path: PathBuf, grace: Option<Duration>) {
        // Gone from flash before it is stopped: a power cut does not bring it back.
        self.shell.pods.set_deleted(&uid, true);
        let removed = self.shell.stores.remove(path.clone());
        self.shell.tasks.then(removed, move |engine, removed| {
            if let Err(error) = removed {
                engine.shell.pods.set_deleted(&uid, false);
                log::error!("failed to remove {}: {error}", path.display());
                return;
            }
            engine.read_sources_then(move |engine| {
                engine.shell.pods.set_deleted(&uid, false);
                engine.observe(Observation::Unwanted { uid, grace });
                engine.publish_changed();
            });
        });
    }
}

async fn follow(shell: Rc<Shell>, path: PathBuf) {
    let read = shell.stores.storage.run(move || read_credentials(&path)).await;
    shell.publication.events_sent(u64::MAX);
    if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return;
    }
    let read = read.map_err(|error| error.to_string()).and_then(|text| Credentials::from_json(&text));
    let credentials = match read {
        Ok(credentials) => credentials,
        Err(why) => return log::error!("the board takes part in no cluster: its cluster.json: {why}"),
    };
    if credentials.node != shell.config.node_name {
        return log::error!(
            "the board takes part in no cluster: it joined as {}, and its node is {}; run `nodlet leave` and `nodlet join`, or use --node-name",
            credentials.node,
            shell.config.node_name
        );
    }
    log::info!("this board is node {} of the cluster at {}", credentials.node, credentials.server);
    // Events wait for a connection from now on.
    shell.publication.events_sent(0);
    let follower = Follower {
        shell,
        credentials,
        schedule: Schedule::new(Instant::now()),
        followed: Followed::default(),
        mirrors: Mirrors::default(),
        objects: Objects::default(),
        version: 0,
        node_uid: String::new(),
        reported: Value::Null,
        told: String::new(),
    };
    follower.go_on().await;
}

/// Reads the file with the credentials. Whatever else has its name must neither block the thread nor fill the memory.
fn read_credentials(path: &Path) -> io::Result<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    if file.take(MAX_CREDENTIALS + 1).read_to_string(&mut text)? as u64 > MAX_CREDENTIALS {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(text)
}

impl Follower {
    async fn go_on(mut self) {
        let (mut api, mut watches) = (None, Watches::default());
        loop {
            let seen = self.turn(&mut api, &mut watches).await.unwrap_or_else(|Failure(why)| {
                // Each reason once: a board may be without its cluster for weeks.
                if self.told != why {
                    log::warn!("no connection to the cluster at {}: {why}", self.credentials.server);
                    self.told = why;
                }
                Some(Seen::Failed)
            });
            let now = Instant::now();
            if let Some(seen) = seen {
                self.schedule.observe(now, random(), seen);
            }
            if !self.schedule.is_up() && api.is_some() {
                (api, watches) = (None, Watches::default());
                self.objects.disconnected(now);
            }
        }
    }

    /// Does the next thing, or waits for it.
    async fn turn(&mut self, api: &mut Option<Api>, watches: &mut Watches) -> Result<Option<Seen>, Failure> {
        let now = Instant::now();
        match (self.schedule.next(now, self.seconds()), api) {
            (Next::Wait { mut until, reads }, api) => {
                if let (Some(api), true) = (&mut *api, self.schedule.is_watching()) {
                    if let Some(need) = self.objects.next(watches.has_many(), now) {
                        self.satisfy(api, watches, need).await?;
                        return Ok(None);
                    }
                    until = self.objects.wake_at().map_or(until, |at| until.min(at));
                }
                self.wait(api, watches, until, reads).await
            }
            (Next::Do(Action::Connect), api) => self.connect(api).await.map(Some),
            (Next::Do(action), Some(api)) => self.perform(api, watches, action).await.map(Some),
            (Next::Do(_), None) => Ok(Some(Seen::Failed)),
        }
    }

    /// Waits for an event of a watch, a change on the board, or the next action.
    async fn wait(
        &mut self,
        api: &mut Option<Api>,
        watches: &mut Watches,
        until: Instant,
        reads: bool,
    ) -> Result<Option<Seen>, Failure> {
        let event = async {
            match reads {
                true => Some(watches.next().await),
                false => smol::future::pending().await,
            }
        };
        let changed = async {
            match api {
                Some(_) => self.shell.publication.objects.changed_since(self.version).await,
                None => smol::future::pending().await,
            }
            None
        };
        let due = async {
            smol::Timer::at(until).await;
            None
        };
        let news = smol::future::or(due, smol::future::or(event, changed)).await;
        let (Some(news), Some(api)) = (news, &mut *api) else {
            let is_changed = api.is_some() && self.shell.publication.objects.version() > self.version;
            return Ok(is_changed.then_some(Seen::BoardChanged));
        };
        let (target, news) = news.map_err(|error| Failure(format!("the watches: {error}")))?;
        if let Some(reference) = target {
            return self.object_news(watches, &reference, news).await;
        }
        let line = match news {
            News::Event(line) => line,
            News::Ended => return Ok(Some(Seen::WatchEnded)),
            News::Rejected(error) if error.code() == Some(410) => return Ok(Some(Seen::WatchExpired)),
            News::Rejected(error) => return Err(error.into()),
        };
        let event = api::object(&line)?;
        if event["type"] == "ERROR" {
            watches.stop(&None).await?;
            let code = event["object"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
            return match code {
                Some(410) => Ok(Some(Seen::WatchExpired)),
                code => Err(ApiError::of_status(code.unwrap_or(500), &event["object"]).into()),
            };
        }
        let version = event["object"]["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        self.event(api, event).await?;
        Ok(Some(Seen::Event { length: line.len(), version }))
    }

    async fn perform(
        &mut self,
        api: &mut Api,
        watches: &mut Watches,
        action: Action,
    ) -> Result<Seen, Failure> {
        match action {
            Action::Connect => Ok(Seen::Failed),
            Action::Register => self.register(api).await,
            Action::RenewLease { create } => self.renew_lease(api, create).await,
            Action::List => self.list(api).await,
            Action::SendStatuses => {
                self.send_all(api).await?;
                if !self.told.is_empty() {
                    log::info!("connected to the cluster at {}", self.credentials.server);
                    self.told.clear();
                }
                Ok(Seen::Sent)
            }
            Action::SendChanges => self.send_changed(api).await,
            Action::ReportNode => self.report_node(api).await,
            Action::Refresh => self.refresh(api).await,
            Action::Watch { version } => {
                let target = format!(
                    "{}&watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={}",
                    self.selector(),
                    WATCH_SECONDS + u32::from(random()) % 120
                );
                watches.start(api, None, &target).await?;
                Ok(Seen::WatchOpened)
            }
            Action::GiveUp => Err(Failure("the watch of pods is silent".to_owned())),
            Action::Rotate => Ok(Seen::Rotated(self.rotate(api).await)),
        }
    }

    /// The wall time in seconds since 1970.
    fn seconds(&self) -> i64 {
        self.now().0.div_euclid(1_000_000_000)
    }

    fn now(&self) -> nodlet_core::time::Timestamp {
        self.shell.machine.anchor().timestamp(nodlet_host::clock::instant())
    }

    /// Writes a file durably, if it differs. Returns whether the file is there; a failure is logged.
    async fn write(&self, path: PathBuf, bytes: Vec<u8>) -> bool {
        let (old, new) = (path.clone(), bytes.clone());
        let is_same = self.shell.stores.storage.run(move || std::fs::read(old).is_ok_and(|old| old == new));
        if is_same.await {
            return true;
        }
        let written = self.shell.stores.replace(path.clone(), bytes).await;
        if let Err(error) = &written {
            log::error!("failed to write {}: {error}", path.display());
        }
        written.is_ok()
    }

    /// Calls a function in the loop, and returns its value; `None` if the agent ends.
    async fn in_loop<T: 'static>(&self, call: impl FnOnce(&mut Engine) -> T + 'static) -> Option<T> {
        let (done, value) = async_channel::bounded(1);
        self.shell.tasks.then_loop(move |engine| drop(done.try_send(call(engine)))).await;
        value.recv().await.ok()
    }
}

/// Ends the session only if the connection failed or the server is overloaded: a rejected change is logged, and the
/// next change is sent anyway.
fn tolerate(result: Result<Value, ApiError>) -> Result<(), Failure> {
    match result {
        Ok(_) => Ok(()),
        // Another pod has the name, or the pod is gone.
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
        Err(error) if matches!(error.code(), Some(400 | 403 | 422)) => {
            log::warn!("the cluster rejects a report: {error}");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn credentials_are_read_from_a_regular_file_of_bounded_size_only() {
        let directory = std::env::temp_dir().join(format!("nodlet-credentials-{}", std::process::id()));
        fs::create_dir(&directory).expect("a directory");
        let (path, file) = (directory.join("cluster.json"), directory.join("file"));
        let read = || read_credentials(&path).map_err(|error| error.to_string());
        assert_eq!(read_credentials(&path).expect_err("nothing").kind(), io::ErrorKind::NotFound);
        fs::write(&path, "{}").expect("a file");
        assert_eq!(read(), Ok("{}".to_owned()));
        fs::rename(&path, &file).expect("another name");
        std::os::unix::fs::symlink(&file, &path).expect("a link");
        read().expect_err("a link");
        fs::remove_file(&path).expect("removed");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert_eq!(read(), Err("it is no regular file".to_owned()));
        fs::remove_file(&path).expect("removed");
        fs::File::create(&path).and_then(|file| file.set_len(3 << 30)).expect("a large file");
        assert_eq!(read(), Err("it is larger than 1 MiB".to_owned()));
        fs::remove_dir_all(&directory).expect("removed");
    }
}
