//! Keeps the pods' `/etc/resolv.conf` equal to the machine's, which changes with a renewed lease, a VPN or another
//! network. inotify reports changes; nothing is polled.
//!
//! The machine's file may be replaced by a rename, may be a link that changes, or may be written in place. So every
//! directory on the path to it is watched, and the path is resolved again after each change. Read next:
//! `pod_files.rs`, which renders the files.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nodlet_core::sorted::SortedMap;
use smol::Async;

use crate::pod_files::{self, NodeFiles};

use crate::engine::Shell;
use crate::engine::pods::PodShell;

/// Links that are followed at most; the kernel follows 40.
const LINKS: usize = 40;

/// Time until a watch that the kernel refused is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Updates the pods' files, since the machine's may have changed while no agent ran, and again at each change.
pub(in crate::engine) fn follow(shell: &Rc<Shell>) {
    let (shell, executor) = (shell.clone(), shell.clone());
    executor.tasks.spawn(async move {
        loop {
            let begun = shell.stores.storage.run(Watch::begin).await;
            let watched = match begun.and_then(Watch::awaited) {
                Ok(watch) => {
                    // After it is watched, so that no change falls between.
                    renew_resolv_confs(&shell).await;
                    watch.changed().await
                }
                Err(error) => Err(error),
            };
            if let Err(error) = watched {
                let file = pod_files::RESOLV_CONF;
                let wait = RETRY.as_secs();
                log::warn!(
                    "failed to watch {file}: {error}; trying again in {wait} s, and pods keep their current file until then"
                );
                smol::Timer::after(RETRY).await;
            }
        }
    });
}

/// A watch of the directories on the path to the machine's file.
struct Watch<I = Async<Inotify>> {
    inotify: I,
    /// The names to watch in each directory.
    names: SortedMap<WatchDescriptor, Vec<OsString>>,
}

impl Watch<Inotify> {
    /// Adds the watches. Runs on the storage thread, since it reads directories on flash.
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
        let mut names: SortedMap<WatchDescriptor, Vec<OsString>> = SortedMap::new();
        for file in pod_files::resolv_conf_sources() {
            for (directory, name) in way(file) {
                // Removed meanwhile: the watch of its parent reports a replacement.
                if let Ok(watch) = inotify.add_watch(&directory, what) {
                    names.entry(watch).or_default().push(name);
                }
            }
        }
        Ok(Watch { inotify, names })
    }

    /// Registers the watch with the executor, on the loop's thread.
    fn awaited(self) -> io::Result<Watch> {
        Ok(Watch { inotify: Async::new_nonblocking(self.inotify)?, names: self.names })
    }
}

impl Watch {
    /// Waits until something on the path has changed.
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

/// The directories on the path to `file`, links followed, each with the name of the next entry in it. If the path
/// ends early, the last one is that of the missing entry.
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

/// Rewrites the file of each pod whose content would differ now.
async fn renew_resolv_confs(shell: &Shell) {
    let (paths, storage) = (&shell.paths, &shell.stores.storage);
    let node = storage.run(NodeFiles::read).await;
    let of_pod = |entry: &PodShell| {
        let pod = &entry.wanted.pod;
        let name = format!("{}/{}", pod.namespace, pod.name);
        // Agents before 2026-11-22 put the file into the second directory.
        let places = [paths.pod(&pod.uid.0), paths.run_pod(&pod.uid.0)];
        Some((name, places, pod_files::new_resolv_conf(pod, &node, &shell.config.dns)?))
    };
    let wanted: Vec<_> = shell.pods.borrow().values().filter_map(of_pod).collect();
    let written = storage.run(move || {
        for (pod, places, text) in wanted {
            for directory in places {
                match pod_files::renew_resolv_conf(&directory, &text) {
                    Ok(false) => {}
                    Ok(true) => log::info!("{pod}: updated resolv.conf from the machine"),
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
