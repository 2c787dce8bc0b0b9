//! Keeps the pods' `/etc/resolv.conf` equal to the machine's, which changes with a renewed lease, a VPN or another
//! network. inotify reports changes; the file is polled only while the kernel refuses a watch.
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

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, WatchDescriptor};
use nodlet_core::facts::Event;
use nodlet_core::sorted::SortedMap;
use nodlet_host::watches::{Event as FileEvent, Watcher, Watches};
use nodlet_registry::Wanted;

use crate::pod_files::{self, NodeFiles};

use crate::engine::Shell;
use crate::engine::pods::PodShell;
use crate::engine::publication::Publication;
use crate::engine::services;

/// Links that are followed at most; the kernel follows 40.
const LINKS: usize = 40;

/// Time until a watch that the kernel refused is tried again, and the file is read again.
const RETRY: Duration = Duration::from_secs(10);

/// Updates the pods' files, since the machine's may have changed while no agent ran, and again at each change.
pub(in crate::engine) fn follow(shell: &Rc<Shell>) {
    let (shell, executor) = (shell.clone(), shell.clone());
    executor.tasks.spawn(async move {
        let Some(file) = shell.config.resolv_conf.clone() else {
            return renew_resolv_confs(&shell).await;
        };
        let named = file.clone();
        if let Some(problem) = shell.stores.storage.run(move || pod_files::resolv_conf_problem(&named)).await
        {
            log::warn!("{problem}");
        }
        let mut is_reported = false;
        loop {
            let (watches, watched) = (shell.watches.clone(), file.clone());
            match shell.stores.storage.run(move || Watch::begin(&watches, &watched)).await {
                Ok(watch) => {
                    is_reported = false;
                    // After it is watched, so that no change falls between.
                    renew_resolv_confs(&shell).await;
                    watch.changed().await;
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        let (file, wait) = (file.display(), RETRY.as_secs());
                        log::warn!(
                            "failed to watch {file}: {error} (see fs.inotify.max_user_instances and \
                         fs.inotify.max_user_watches); until that is possible it is read every {wait} s"
                        );
                    }
                    renew_resolv_confs(&shell).await;
                    smol::Timer::after(RETRY).await;
                }
            }
        }
    });
}

/// A watch of the directories on the path to the machine's file.
struct Watch {
    watcher: Watcher,
    /// The names to watch in each directory.
    names: SortedMap<WatchDescriptor, Vec<OsString>>,
}

impl Watch {
    /// Adds the watches. Runs on the storage thread, since it reads directories on flash.
    fn begin(watches: &Watches, file: &Path) -> io::Result<Watch> {
        let watcher = watches.watcher()?;
        let what = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let mut names: SortedMap<WatchDescriptor, Vec<OsString>> = SortedMap::new();
        for file in pod_files::resolv_conf_sources(file) {
            for (directory, name) in way(file) {
                match watcher.add(&directory, what) {
                    Ok(watch) => names.entry(watch).or_default().push(name),
                    // Removed meanwhile: the watch of its parent reports a replacement.
                    Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(Watch { watcher, names })
    }

    /// Waits until something on the path has changed.
    async fn changed(&self) {
        loop {
            self.watcher.changed().await;
            let news = self.watcher.take();
            // Without a name: the directory itself.
            let matters = |event: &FileEvent| {
                let names = self.names.get(&event.watch);
                event.name.as_ref().is_none_or(|name| names.is_some_and(|names| names.contains(name)))
            };
            if news.lost || news.events.iter().any(matters) {
                return;
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
pub(in crate::engine) async fn renew_resolv_confs(shell: &Shell) {
    let (paths, storage) = (&shell.paths, &shell.stores.storage);
    let file = shell.config.resolv_conf.clone();
    let node = storage.run(move || NodeFiles::read(file.as_deref())).await;
    shell.services.names.set_upstreams(node.name_servers());
    let of_pod = |entry: &PodShell| {
        let wanted = entry.wanted.clone();
        let uid = &wanted.pod.uid.0;
        // Agents before 2026-11-22 put the file into the second directory.
        let places = [paths.pod(uid), paths.run_pod(uid)];
        let dns = services::dns_of(shell, &wanted.pod.uid);
        let (text, left_out) = pod_files::new_resolv_conf(&wanted.pod, &node, &dns)?;
        Some((wanted, left_out, (places, text)))
    };
    let renewed: Vec<_> = shell.pods.borrow().values().filter_map(of_pod).collect();
    for (wanted, left_out, (places, text)) in renewed {
        let written = storage
            .run(move || places.map(|directory| pod_files::renew_resolv_conf(&directory, &text)))
            .await;
        let pod = format!("{}/{}", wanted.pod.namespace, wanted.pod.name);
        if let Some(error) = written.iter().find_map(|written| written.as_ref().err()) {
            log::warn!("failed to write resolv.conf of {pod}: {error}");
        }
        if written.iter().any(|written| written.as_ref().is_ok_and(|changed| *changed)) {
            log::info!("{pod}: updated resolv.conf from the machine");
            report_left_out(&shell.publication, &wanted, left_out);
        }
    }
}

/// Reports what was omitted from a pod's resolv.conf, with the event of a kubelet.
pub(in crate::engine) fn report_left_out(publication: &Publication, wanted: &Wanted, left_out: Vec<String>) {
    for message in left_out {
        let reason = "DNSConfigForming".into();
        let event = Event { container: None, warning: true, reason, message: message.into() };
        publication.emit(wanted, &event);
    }
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
