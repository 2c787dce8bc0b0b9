//! The place of the agent's cgroup among the machine's: below that of the service, if the service manager has
//! delegated it (`Delegate=yes`), and otherwise at the top.
//!
//! ```text
//! system.slice/nodlet.service                 delegated: it has the attribute `delegate`
//! system.slice/nodlet.service/agent           the agent, where DelegateSubgroup= puts it
//! system.slice/nodlet.service/nodlet-<hash>   our cgroup
//! ```
//!
//! The agent never moves itself. A cgroup with controllers for its children has no process of its own, so a
//! manager without `DelegateSubgroup=` (systemd before 254) could not start the next agent there while pods
//! live. Under such a manager the agent's cgroup lies at the top.
//!
//! The place is recorded for later agents, wherever they are started: there must never be two places with
//! pods. This module never writes to a cgroup that is not nodlet's. Read next: `hierarchy.rs`.

use nodlet_kernel::durable::replace_in_memory;
use nodlet_kernel::own_file;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::hierarchy::Hierarchies;
use super::{CgroupError, tree};
use crate::paths::Paths;

/// Extended attributes by which a service manager marks a cgroup as delegated. Everybody can read the first
/// one; systemd before 251 knows only the second one.
const DELEGATED: [&std::ffi::CStr; 2] = [c"user.delegate", c"trusted.delegate"];

/// Chooses the place of the agent's v2 cgroup, relative to the top: where pods of an earlier agent are,
/// otherwise below the cgroup that was delegated to this process, otherwise at the top. Records the choice.
pub(super) fn choose(hierarchies: &Hierarchies, paths: &Paths) -> Result<PathBuf, CgroupError> {
    let path = Path::new("/proc/self/cgroup");
    let text = fs::read_to_string(path).map_err(CgroupError::file("read", path))?;
    // A v1 hierarchy cannot be delegated, and pods have the same place in all hierarchies.
    let own = if hierarchies.v1_mounts().is_empty() { of_process(&text) } else { PathBuf::new() };
    choose_for(&own, &hierarchies.unified, paths)
}

/// Chooses the place for a process in the cgroup `own`.
fn choose_for(own: &Path, unified: &Path, paths: &Paths) -> Result<PathBuf, CgroupError> {
    let name = super::name(paths);
    let recorded = recorded(paths);
    // Earlier agents that recorded no place used the top.
    let earlier: Vec<PathBuf> = recorded.iter().cloned().chain([PathBuf::new()]).collect();
    let inhabited = earlier.iter().find(|place| has_pods(&unified.join(place).join(&name))).cloned();
    let place = match inhabited {
        Some(place) => place,
        None => {
            let place = delegated_to(own, unified);
            for old in earlier.iter().filter(|old| **old != place) {
                // No pod lives there. A running image load may have a cgroup there, which it removes itself.
                if let Err(error) = tree::remove(&unified.join(old).join(&name)) {
                    log::debug!("failed to {}", crate::error::chain(&error));
                }
            }
            place
        }
    };
    if recorded.as_ref() != Some(&place) {
        record_place(&place, paths)?;
    }
    Ok(place)
}

/// The recorded place of the agent's cgroup, for a process that needs only a part of it; the top if none is
/// known.
pub(super) fn known(unified: &Path, paths: &Paths) -> PathBuf {
    recorded(paths).filter(|place| unified.join(place).is_dir()).unwrap_or_default()
}

/// The v2 cgroup in the text of /proc/PID/cgroup, relative to the top.
fn of_process(text: &str) -> PathBuf {
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    path.and_then(|path| checked_relative(Path::new(path))).unwrap_or_default()
}

/// The path, if it stays below its start: a process outside of this cgroup namespace has one that begins with
/// `..`.
fn checked_relative(path: &Path) -> Option<PathBuf> {
    path.components().all(|part| matches!(part, Component::Normal(_))).then(|| path.to_owned())
}

/// The parent of `own` if it was delegated, otherwise the top.
fn delegated_to(own: &Path, unified: &Path) -> PathBuf {
    match own.parent() {
        Some(parent) if is_delegated(&unified.join(parent)) => {
            if is_ours(parent, unified) {
                return parent.to_owned();
            }
            log::info!(
                "/{} is delegated, but another user may change it: the cgroups of pods are created at the top of the hierarchy",
                parent.display()
            );
            PathBuf::new()
        }
        Some(_) | None => {
            if is_delegated(&unified.join(own)) {
                log::info!(
                    "/{} is delegated, but this agent is in it and not in one below (DelegateSubgroup=): \
                     the cgroups of pods are created at the top of the hierarchy",
                    own.display()
                );
            }
            PathBuf::new()
        }
    }
}

/// Whether this user owns the cgroup and all those above it. The owner of a cgroup can mark it as delegated,
/// and freeze and limit the cgroups below it: an agent that is started by `sudo` lies in the session of an
/// ordinary user.
fn is_ours(place: &Path, unified: &Path) -> bool {
    let ours = nix::unistd::geteuid().as_raw();
    place.ancestors().all(|above| fs::metadata(unified.join(above)).is_ok_and(|found| found.uid() == ours))
}

fn is_delegated(directory: &Path) -> bool {
    DELEGATED.iter().any(|name| {
        let mut value = [0_u8; 1];
        rustix::fs::getxattr(directory, *name, &mut value[..]) == Ok(1) && value == *b"1"
    })
}

/// Whether pods live in the agent's cgroup at `directory`.
fn has_pods(directory: &Path) -> bool {
    // A cgroup that cannot be read may have some.
    ["supervisors", "kubepods"].iter().any(|part| tree::populated(&directory.join(part)).unwrap_or(true))
}

/// The place that [`record_place`] recorded. An invalid record counts as none, which means the top.
fn recorded(paths: &Paths) -> Option<PathBuf> {
    let path = paths.cgroup_place();
    let text = match own_file::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                log::warn!("failed to read {}: {error}", path.display());
            }
            return None;
        }
    };
    let place = text.strip_suffix('\n').and_then(|text| checked_relative(Path::new(text.strip_prefix('/')?)));
    if place.is_none() {
        log::warn!(
            "{} should name a cgroup, as /system.slice/nodlet.service, and has {text:?}",
            path.display()
        );
    }
    place
}

/// Records the place in one line, in the format of /proc/PID/cgroup. This comes before any cgroup is made
/// there, so that no pod lives where no later agent would look.
fn record_place(place: &Path, paths: &Paths) -> Result<(), CgroupError> {
    let path = paths.cgroup_place();
    replace_in_memory(&path, format!("/{}\n", place.display())).map_err(CgroupError::file("write", &path))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// The cgroup of a service on this machine, which can be delegated, with one below it for the agent; and
    /// a root.
    struct Service {
        unified: PathBuf,
        own: PathBuf,
        paths: Paths,
    }

    impl Service {
        fn new(name: &str) -> Service {
            let unified = Hierarchies::find().expect("these tests need cgroups").unified;
            let own = PathBuf::from(format!("nodlet-place-{name}-{}", std::process::id()));
            fs::create_dir_all(unified.join(&own).join("agent")).expect("these tests need root");
            let root = std::env::temp_dir().join(&own);
            let paths = Paths::new(&root);
            fs::create_dir_all(paths.run()).expect("a scratch directory");
            Service { unified, own, paths }
        }

        fn delegate(&self) {
            let directory = self.unified.join(&self.own);
            rustix::fs::setxattr(directory, DELEGATED[1], b"1", rustix::fs::XattrFlags::empty()).unwrap();
        }

        fn choose(&self, own: &Path) -> PathBuf {
            choose_for(own, &self.unified, &self.paths).expect("it can be written down")
        }

        /// Starts a process in a supervisor's cgroup below `place`.
        fn inhabit(&self, place: &Path) -> Inhabitant {
            let directory = self.unified.join(place).join(super::super::name(&self.paths));
            let supervisor = directory.join("supervisors/podx");
            fs::create_dir_all(&supervisor).unwrap();
            let child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
            fs::write(supervisor.join("cgroup.procs"), child.id().to_string()).unwrap();
            Inhabitant { directory, child }
        }
    }

    impl Drop for Service {
        fn drop(&mut self) {
            let _ = tree::remove(&self.unified.join(super::super::name(&self.paths)));
            tree::remove(&self.unified.join(&self.own)).expect("nobody is in it");
            fs::remove_dir_all(self.paths.root()).unwrap();
        }
    }

    struct Inhabitant {
        directory: PathBuf,
        child: Child,
    }

    impl Drop for Inhabitant {
        fn drop(&mut self) {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
            // The process leaves the cgroup a little after `wait` returns.
            while has_pods(&self.directory) {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn pods_live_below_the_delegated_cgroup_and_never_in_one_with_the_agent() {
        let service = Service::new("delegated");
        let agent = service.own.join("agent");
        assert_eq!(service.choose(&agent), Path::new(""), "nobody has delegated it");
        service.delegate();
        assert_eq!(service.choose(&service.own), Path::new(""), "the agent is in the way");
        assert_eq!(service.choose(&agent), service.own);
        let written = fs::read_to_string(service.paths.cgroup_place()).unwrap();
        assert_eq!(written, format!("/{}\n", service.own.display()));
        assert_eq!(known(&service.unified, &service.paths), service.own);
    }

    #[test]
    fn a_cgroup_writable_by_another_user_does_not_count_as_delegated() {
        let service = Service::new("owned");
        service.delegate();
        let agent = service.own.join("agent");
        let of = |owner: u32| std::os::unix::fs::chown(service.unified.join(&service.own), Some(owner), None);
        of(1000).unwrap();
        assert_eq!(service.choose(&agent), Path::new(""));
        of(0).unwrap();
        assert_eq!(service.choose(&agent), service.own);
        of(1000).unwrap();
        assert!(!is_ours(&agent, &service.unified), "one above it is another user's");
    }

    #[test]
    fn cgroups_of_existing_pods_are_found_wherever_the_agent_runs() {
        let service = Service::new("found");
        service.delegate();
        let (agent, top) = (service.own.join("agent"), Path::new(""));
        let pod = service.inhabit(top);
        assert_eq!(service.choose(&agent), top, "those of an agent that wrote nothing down");
        assert_eq!(service.choose(&agent), top, "and of one that did");
        drop(pod);
        assert_eq!(service.choose(&agent), service.own, "when none is left there");
        let old = service.unified.join(super::super::name(&service.paths));
        assert!(!old.exists(), "what was theirs goes");
        let pod = service.inhabit(&service.own);
        assert_eq!(service.choose(top), service.own, "an agent started by hand");
        drop(pod);
        assert_eq!(service.choose(top), top);
    }

    #[test]
    fn an_invalid_or_outdated_record_of_the_cgroup_is_ignored() {
        let service = Service::new("record");
        for text in ["", "\n", "system.slice\n", "/../..\n", "/a/../b\n", "/a", "/no/such/cgroup\n", "\0\n"] {
            fs::write(service.paths.cgroup_place(), text).unwrap();
            assert_eq!(known(&service.unified, &service.paths), Path::new(""), "{text:?}");
            assert_eq!(service.choose(Path::new("")), Path::new(""), "{text:?}");
            assert_eq!(fs::read_to_string(service.paths.cgroup_place()).unwrap(), "/\n", "{text:?}");
        }
    }

    #[test]
    fn the_cgroup_of_a_process_is_read_in_every_kind_of_hierarchy() {
        for (text, expected) in [
            ("0::/system.slice/nodlet.service/agent\n", "system.slice/nodlet.service/agent"),
            ("12:pids:/a\n1:name=systemd:/b\n0::/c\n", "c"),
            ("0::/\n", ""),
            ("0::/../other\n", ""),
            ("4:memory:/a\n", ""),
        ] {
            assert_eq!(of_process(text), Path::new(expected), "{text:?}");
        }
    }
}
