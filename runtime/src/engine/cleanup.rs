//! Removes the remains of pods: those of earlier boots, of supervisors that died, and at the end of `nodlet down`
//! all of them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nodlet_core::sorted::SortedSet;
use nodlet_host::cgroup::{CgroupError, Cgroups, PodCgroup};
use nodlet_host::error::chain;
use nodlet_host::paths::Paths;
use nodlet_host::watches::Watches;
use nodlet_host::{log_files, volume};
use nodlet_kernel::durable;
use nodlet_registry::Wanted;
use nodlet_wire::timeout::within;

use super::EngineError;
use super::flash::{Flash, remove_tree};
use super::machine::Machine;
use super::tasks::Tasks;

/// Removes the files of pods of earlier boots that no source wants any more.
pub(super) fn sweep(tasks: &Tasks, stores: &Rc<Flash>, paths: Paths, wanted: SortedSet<String>) {
    let (records, images) = (stores.records.clone(), stores.images.clone());
    let swept = stores.storage.run(move || {
        // Half-written files that an agent left when it died: no reader accepts their names. In directories of other
        // owners, the agent writes tokens only.
        let sources = crate::sources::list(&paths).into_iter();
        let written = sources.map(|source| (source.path, source.owner.is_api()));
        for (directory, writes_all) in written.chain([(paths.records(), true)]) {
            let is_left = |name: &&String| {
                name.starts_with('.')
                    && name.ends_with(".new")
                    && (writes_all || name.contains(nodlet_cluster::pods::TOKEN_PREFIX))
            };
            for name in names(&directory).iter().filter(is_left) {
                if let Err(error) = fs::remove_file(directory.join(name)) {
                    log::warn!("failed to remove {name} from {}: {error}", directory.display());
                }
            }
        }
        let mut uids: SortedSet<String> = records.uids().into_iter().collect();
        uids.extend(names(&paths.pods()).into_iter().filter(|name| !name.starts_with(DOOMED)));
        for uid in uids.difference(&wanted) {
            let removed = set_aside(&paths, uid)
                .and_then(|()| records.remove(uid))
                .and_then(|()| images.release(uid).map_err(io::Error::other));
            if let Err(error) = removed {
                log::error!("failed to remove the files of pod {uid}: {error}");
            }
        }
        // Files of statuses, whole or half-written, that an agent left when it died.
        for name in names(&paths.statuses()) {
            let is_known = name.strip_suffix(".json").is_some_and(|uid| wanted.contains(uid));
            // A file that is being written now belongs to a known pod.
            let is_new = name.strip_prefix('.').and_then(|name| name.strip_suffix(".json.new"));
            let is_new = is_new.is_some_and(|uid| wanted.contains(uid));
            if !is_known
                && !is_new
                && let Err(error) = fs::remove_file(paths.statuses().join(&name))
            {
                log::warn!("failed to remove {name} from {}: {error}", paths.statuses().display());
            }
        }
        remove_logs(&paths, |uid| wanted.contains(uid));
        let doomed = names(&paths.pods()).into_iter().filter(|name| name.starts_with(DOOMED));
        doomed.map(|name| paths.pods().join(name)).collect::<Vec<PathBuf>>()
    });
    let storage = stores.storage.clone();
    tasks.spawn(async move {
        for directory in swept.await {
            if let Err(error) = remove_tree(&storage, directory.clone()).await {
                log::error!("failed to remove {}: {error}", directory.display());
            }
        }
    });
}

/// Prefix of the names of directories of removed pods, which lie beside those of pods. Their removal may take long,
/// since containers decide how much they hold; a pod with the same UID can start meanwhile.
const DOOMED: &str = ".doomed-";

/// Renames the directory of a pod so that no pod finds it.
fn set_aside(paths: &Paths, uid: &str) -> io::Result<()> {
    let directory = paths.pod(uid);
    let aside = |number: u32| paths.pods().join(format!("{DOOMED}{uid}-{number}"));
    let free = (0..).map(aside).find(|path| fs::symlink_metadata(path).is_err());
    match free.map_or(Ok(()), |free| durable::rename(&directory, &free)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Before the record goes: without it, what is left must not look like a pod's.
        Ok(()) => durable::sync_directory(&paths.pods()),
        Err(error) => Err(error),
    }
}

/// Removes the logs of all pods but those that `keep` names by uid.
fn remove_logs(paths: &Paths, keep: impl Fn(&str) -> bool) {
    let names = log_files::pods(paths).unwrap_or_else(|error| {
        log::error!("failed to look for logs that pods left: {error}");
        Vec::new()
    });
    for name in names.iter().filter_map(|name| name.to_str()) {
        // `<namespace>_<name>_<uid>`
        if let [namespace, pod, uid] = name.splitn(3, '_').collect::<Vec<_>>()[..]
            && !keep(uid)
            && let Err(error) = log_files::remove_pod(paths, namespace, pod, uid)
        {
            log::error!("failed to remove the logs of pod {uid}: {error}");
        }
    }
    // A supervisor that was killed may have linked a log of which nothing is left.
    if let Err(error) = log_files::remove_dead_links(paths, "") {
        log::error!("failed to remove links to logs that are gone: {error}");
    }
}

/// The names of the entries of a directory; empty if the directory cannot be read.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Time within which killed processes must be gone.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// The reason why processes or cgroups of a pod may be left.
#[derive(Debug, thiserror::Error)]
pub(super) enum CleanupError {
    #[error("failed to look for processes of {uid}")]
    Find { uid: String, source: CgroupError },
    #[error("failed to kill the processes of {cgroup}")]
    Kill { cgroup: String, source: CgroupError },
    #[error("processes in the cgroup {cgroup} did not end after SIGKILL")]
    Alive { cgroup: String },
    #[error(transparent)]
    Remove(CgroupError),
}

/// Kills every process of the pod, and waits up to [`KILLED_WITHIN`] until the last is gone. When to kill again is the
/// core's decision.
///
/// # Errors
/// Processes may be left.
pub(super) async fn kill(cgroup: &PodCgroup, watches: &Watches) -> Result<(), CleanupError> {
    let killed = cgroup.kill();
    match (within(KILLED_WITHIN, cgroup.emptied(watches)).await, killed) {
        (Some(_), _) => Ok(()),
        (None, Ok(())) => Err(CleanupError::Alive { cgroup: cgroup.name().to_owned() }),
        (None, Err(source)) => Err(CleanupError::Kill { cgroup: cgroup.name().to_owned(), source }),
    }
}

/// Kills the remaining processes of a pod, including its supervisor, and removes its cgroups.
///
/// # Errors
/// Processes or cgroups are still there.
pub(super) async fn remove_remains(
    cgroups: &Cgroups,
    watches: &Watches,
    wanted: &Wanted,
) -> Result<(), CleanupError> {
    for cgroup in cgroups_of(cgroups, wanted)? {
        kill(&cgroup, watches).await?;
        cgroup.remove().map_err(CleanupError::Remove)?;
    }
    Ok(())
}

#[allow(clippy::result_large_err, reason = "the error is rare, and not kept")]
fn cgroups_of(cgroups: &Cgroups, wanted: &Wanted) -> Result<[PodCgroup; 2], CleanupError> {
    let uid = &wanted.pod.uid.0;
    let own = cgroups.known_supervisor(uid);
    let found = own.and_then(|own| Ok([own, cgroups.known_pod(&wanted.pod)?]));
    found.map_err(|source| CleanupError::Find { uid: uid.to_string(), source })
}

/// Kills the processes of a pod that the core does not know, and removes its cgroups. A failure is only logged: no pod
/// begins in a cgroup with processes, and the removal of what is left of such a pod kills them again.
pub(super) async fn empty(watches: &Watches, uid: &str, cgroups: &[PodCgroup]) {
    for cgroup in cgroups {
        let removed = match kill(cgroup, watches).await {
            Ok(()) => cgroup.remove().map_err(CleanupError::Remove),
            Err(error) => Err(error),
        };
        if let Err(error) = removed {
            log::error!("failed to remove a cgroup of {uid}: {}", chain(&error));
        }
    }
}

/// Kills the processes of a pod whose run-time files cannot be read, so that nothing is known of it, and removes its
/// files.
pub(super) async fn end_unreadable(known: &Cgroups, watches: &Watches, uid: &str, directory: &Path) {
    let mut cgroups: Vec<PodCgroup> = known.known_supervisor(uid).into_iter().collect();
    match known.pods() {
        Ok(pods) => cgroups.extend(pods.into_iter().filter(|(of, _)| of == uid).map(|(_, cgroup)| cgroup)),
        Err(error) => log::error!("failed to look for the cgroups of {uid}: {}", chain(&error)),
    }
    empty(watches, uid, &cgroups).await;
    if let Err(error) = volume::tear_down(directory) {
        log::error!("failed to remove {}: {error}", directory.display());
    }
}

/// Ends `nodlet down`: removes everything of nodlet but images, manifests, records and settings. What the card does not
/// allow keeps nothing else.
///
/// # Errors
/// [`EngineError::Unwritten`] if records or files of pods could not be written or removed.
pub(super) async fn clean_up(machine: &Machine, stores: &Flash, paths: &Paths) -> Result<(), EngineError> {
    machine.network.borrow_mut().remove().map_err(EngineError::Network)?;
    machine.cgroups.remove_all().map_err(EngineError::Cgroups)?;
    let (paths, mut left) = (paths.clone(), stores.unwritten.lines());
    // What the sweep has not removed yet goes with everything else.
    let removed = stores.storage.run(move || {
        remove_logs(&paths, |_| false);
        let remove = |path: PathBuf| {
            let error = remove_all(&path, &paths.agent_lock()).err()?;
            Some(format!("{}: {error}", path.display()))
        };
        paths.removed_by_down().into_iter().filter_map(remove).collect::<Vec<_>>()
    });
    left.extend(removed.await);
    if left.is_empty() { Ok(()) } else { Err(EngineError::Unwritten { failures: left }) }
}

/// Removes a directory of nodlet with all files of pods in it, but not the contents of mounts. If `last` is in it, it is
/// removed after everything else, because another agent may begin from then on.
fn remove_all(path: &Path, last: &Path) -> io::Result<()> {
    let remove = || {
        if !fs::symlink_metadata(path)?.is_dir() {
            return fs::remove_file(path);
        }
        let entries: io::Result<Vec<_>> = fs::read_dir(path)?.collect();
        let (entries, has_last) = (entries?, last.starts_with(path));
        entries
            .iter()
            .map(fs::DirEntry::path)
            .filter(|entry| entry != last)
            .try_for_each(|entry| volume::tear_down(&entry))?;
        if has_last {
            durable::discard(last)?;
        }
        match fs::remove_dir(path) {
            Err(error) if has_last && error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            // A mount itself: it belongs to whoever made it, and stays, empty.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            removed => removed,
        }
    };
    match remove() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
