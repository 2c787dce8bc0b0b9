//! The pods' `/etc/resolv.conf` follows the machine's: a lease that is renewed, a VPN that comes
//! up, a network that is another one today. inotify says when to look; nothing is polled.
//!
//! The machine's file is replaced by a rename, is a link that leads elsewhere tomorrow, or is
//! written where it lies. So every directory on the way to it is watched, and the way is looked
//! for anew after each change. Next: `pod_files.rs`, which makes the texts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use smol::Async;

use crate::pod_files::{self, NodeFiles};
use crate::storage::Storage;
use nodlet_host::paths::Paths;

use super::Shell;
use super::pods::{PodShell, Pods};

/// Links that lead from one to the next; the kernel follows 40.
const LINKS: usize = 40;

/// Until a watch that the kernel had no room for is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Watches from now on, and brings up to date what is there: it may have changed while no agent ran.
pub(super) fn follow(shell: &Rc<Shell>) {
    let (shell, executor) = (shell.clone(), shell.clone());
    executor.tasks.spawn(async move {
        loop {
            let begun = shell.stores.storage.run(Watch::begin).await;
            let watched = match begun.and_then(Watch::awaited) {
                Ok(watch) => {
                    // After it is watched, so that no change falls between.
                    renew_resolv_confs(&shell.paths, &shell.stores.storage, &shell.pods).await;
                    watch.changed().await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = watched {
                let file = pod_files::RESOLV_CONF;
                log::warn!("failed to watch {file}: {error}; until that is possible pods keep theirs");
                smol::Timer::after(RETRY).await;
            }
        }
    });
}

/// The way to the file as it is now.
struct Watch<I = Async<Inotify>> {
    inotify: I,
    /// The names that matter in each directory.
    names: BTreeMap<WatchDescriptor, Vec<OsString>>,
}

impl Watch<Inotify> {
    /// On the storage thread, since the way leads over flash.
    fn begin() -> io::Result<Watch<Inotify>> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let what = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let mut names: BTreeMap<WatchDescriptor, Vec<OsString>> = BTreeMap::new();
        for file in pod_files::resolv_conf_sources() {
            for (directory, name) in way(file) {
                // Gone since: what comes in its place is told by the directory before it.
                if let Ok(watch) = inotify.add_watch(&directory, what) {
                    names.entry(watch).or_default().push(name);
                }
            }
        }
        Ok(Watch { inotify, names })
    }

    /// In the loop.
    fn awaited(self) -> io::Result<Watch> {
        Ok(Watch { inotify: Async::new_nonblocking(self.inotify)?, names: self.names })
    }
}

impl Watch {
    /// Ends when something on the way has changed.
    async fn changed(&self) -> io::Result<()> {
        loop {
            self.inotify.readable().await?;
            let events = match self.inotify.get_ref().read_events() {
                Ok(events) => events,
                Err(nix::Error::EAGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            // Without a name: the directory itself, or more news than the kernel keeps.
            let matters = |watch: &WatchDescriptor, name: Option<&OsString>| {
                name.is_none_or(|name| self.names.get(watch).is_some_and(|names| names.contains(name)))
            };
            if events.iter().any(|event| matters(&event.wd, event.name.as_ref())) {
                return Ok(());
            }
        }
    }
}

/// The directories on the way to `file`, each with the name in it that leads on. Where the way
/// ends, the last is the one in which it would go on.
fn way(file: &Path) -> Vec<(PathBuf, OsString)> {
    let mut way = Vec::new();
    let mut path = file.to_owned();
    for _ in 0..LINKS {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { break };
        let Ok(real) = fs::canonicalize(directory) else {
            path = directory.to_owned();
            continue;
        };
        way.push((real.clone(), OsStr::to_owned(name)));
        match fs::read_link(real.join(name)) {
            Ok(target) => path = real.join(target),
            Err(_) => break,
        }
    }
    way
}

/// Writes every pod's file anew where it would say something else now.
async fn renew_resolv_confs(paths: &Paths, storage: &Storage, pods: &Pods) {
    let node = storage.run(NodeFiles::read).await;
    let of_pod = |entry: &PodShell| {
        let pod = &entry.wanted.pod;
        let name = format!("{}/{}", pod.namespace, pod.name);
        // The second is where containers have it that an agent before 2026-11-22 started.
        let places = [paths.pod(&pod.uid.0), paths.run_pod(&pod.uid.0)];
        Some((name, places, pod_files::new_resolv_conf(pod, &node)?))
    };
    let wanted: Vec<_> = pods.borrow().values().filter_map(of_pod).collect();
    let written = storage.run(move || {
        for (pod, places, text) in wanted {
            for directory in places {
                match pod_files::renew_resolv_conf(&directory, &text) {
                    Ok(false) => {}
                    Ok(true) => log::info!("{pod}: resolv.conf follows the machine's"),
                    Err(error) => log::warn!("failed to write resolv.conf of {pod}: {error}"),
                }
            }
        }
    });
    written.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_on_the_way_is_watched_and_the_last_where_it_would_go_on() {
        let root = std::env::temp_dir().join(format!("nodlet-resolver-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::create_dir_all(root.join("run/a")).unwrap();
        let root = fs::canonicalize(&root).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, root.join(name)).unwrap();
        link("../run/link", "etc/resolv.conf");
        link("a/file", "run/link");
        let steps = || -> Vec<String> {
            let relative = |path: &Path| path.strip_prefix(&root).unwrap().display().to_string();
            let way = way(&root.join("etc/resolv.conf"));
            way.iter().map(|(directory, name)| relative(&directory.join(name))).collect()
        };
        assert_eq!(steps(), ["etc/resolv.conf", "run/link", "run/a/file"]);
        fs::remove_dir(root.join("run/a")).unwrap();
        assert_eq!(steps(), ["etc/resolv.conf", "run/link", "run/a"]);
        fs::remove_file(root.join("run/link")).unwrap();
        link("link", "run/link");
        assert_eq!(steps().len(), LINKS, "a loop ends");
        fs::remove_dir_all(&root).unwrap();
    }
}
