//! Lifts the cpu limit of cgroups whose processes are killed.
//!
//! A killed process still has to run: SIGKILL makes it execute its exit in the kernel, and a cgroup that has
//! used up its quota does not run. A fork bomb below a small cpu limit would take minutes to end. Therefore
//! everything that ends a whole container first lifts the limits of the container's and the pod's cgroups.
//! The next container that starts in the pod sets the pod's limit again (`PodCgroup::renew_cpu_limit`); other
//! running containers have limits of their own.
//!
//! The end of a process that was executed in a container lifts nothing: the container continues, and could
//! otherwise escape its limit by execs that time out.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::hierarchy::{Controller, ControllerHierarchy, Hierarchies};
use super::limits::write_if_there;
use super::tree;

/// Lifts the limits of the cgroup at `relative`, which is a pod's or a leaf's, of the cgroups below it and,
/// for a leaf, of its pod's.
///
/// A failure is only logged: a slow kill is better than none.
pub(super) fn lift(hierarchies: &Hierarchies, relative: &Path) {
    let (mount, file, no_limit) = match hierarchies.hierarchy_of(Controller::Cpu) {
        ControllerHierarchy::V1(mount) => (mount, c"cpu.cfs_quota_us", "-1"),
        ControllerHierarchy::V2 => (hierarchies.unified.as_path(), c"cpu.max", "max"),
        ControllerHierarchy::Missing => return,
    };
    if let Some(pod) = relative.parent().filter(|above| is_pod(above)) {
        let file = mount.join(pod).join(OsStr::from_bytes(file.to_bytes()));
        if let Err(error) = write_if_there(&file, no_limit) {
            log::debug!("failed to lift a cpu limit before a kill: {}", crate::error::chain(&error));
        }
    }
    tree::walk(&mount.join(relative), |cgroup| {
        if let Err(error) = tree::write_in_if_there(cgroup, file, no_limit) {
            log::debug!("failed to lift a cpu limit before a kill: {error}");
        }
    });
}

fn is_pod(relative: &Path) -> bool {
    relative.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("pod"))
}

/// Lifts the limits of the leaf whose directory in the v2 hierarchy is `leaf`, and of its pod's cgroup. For a
/// supervisor, which does not keep the machine's hierarchies.
pub fn lift_cpu_limits(leaf: &Path) {
    let (Ok(machine), Some(relative)) = (Hierarchies::find(), own_part(leaf)) else { return };
    // A delegated v2 cgroup counts as the top, as for the agent.
    let place = leaf.strip_prefix(&machine.unified).ok().and_then(|path| {
        let depth = path.components().count().checked_sub(relative.components().count())?;
        Some(path.components().take(depth).collect::<PathBuf>())
    });
    if let Some(hierarchies) = place.and_then(|place| machine.below(&place).ok()) {
        lift(&hierarchies, &relative);
    }
}

/// The part of the path of a leaf that begins with `nodlet-<hash>`.
fn own_part(leaf: &Path) -> Option<PathBuf> {
    let kubepods = leaf.ancestors().find(|path| path.ends_with("kubepods"))?;
    leaf.strip_prefix(kubepods.parent()?.parent()?).ok().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plain files in place of the kernel's show what is written where, also on a machine with version 1.
    #[test]
    fn the_limits_of_version_2_are_lifted_from_a_leaf_what_is_below_it_and_its_pod_alone() {
        let root = tempfile::tempdir().expect("a scratch directory");
        let pods = ["podp", "podp/app-0", "podp/app-0/exec-1", "podp/beside-0", "podq"];
        for directory in pods {
            std::fs::create_dir_all(root.path().join("kubepods").join(directory)).unwrap();
            std::fs::write(root.path().join("kubepods").join(directory).join("cpu.max"), "1000").unwrap();
        }
        std::fs::write(root.path().join("kubepods/cpu.max"), "1000").unwrap();
        lift(&Hierarchies::v2_at(root.path(), &[Controller::Cpu]), Path::new("kubepods/podp/app-0"));
        let of = |directory: &str| {
            std::fs::read_to_string(root.path().join("kubepods").join(directory).join("cpu.max")).unwrap()
        };
        assert_eq!(pods.map(of), ["max", "max", "max", "1000", "1000"]);
        assert_eq!(of(""), "1000");
        lift(&Hierarchies::v2_at(root.path(), &[Controller::Cpu]), Path::new("kubepods/podq"));
        assert_eq!((of("podq").as_str(), of("").as_str()), ("max", "1000"));
    }

    #[test]
    fn the_own_part_of_a_leafs_path_begins_at_nodlets_cgroup() {
        let own = "nodlet-1a2b/kubepods/burstable/podu/app-0";
        for above in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified/system.slice/nodlet.service"] {
            assert_eq!(own_part(&Path::new(above).join(own)), Some(own.into()));
        }
        assert_eq!(own_part(Path::new("/sys/fs/cgroup/nodlet-1a2b/supervisors/podu")), None);
    }
}
