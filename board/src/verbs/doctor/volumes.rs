//! Checks of the mounts that hold volumes: whether programs in volumes can be executed, and whether mounts of the board
//! reach containers.

use std::io;
use std::path::Path;

use nodlet_supervisor::try_to_execute_files_of_the_agent;

use super::facts::{Machine, nearest};
use super::mounts::{self, Mount};
use super::report::Finding;

/// All checks of the mounts that hold volumes.
pub(super) fn findings(machine: &Machine) -> Vec<(&'static str, Finding)> {
    let run = nearest(&machine.root.join("run/nodlet"));
    let mount_of = |path: &Path| {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        mounts::of(&machine.mounts, &path)
    };
    let tried = || machine.is_root.then(|| try_to_execute_files_of_the_agent(&run));
    vec![
        ("scripts in volumes", judge_scripts(mount_of(&run), tried)),
        ("programs in volumes", judge_programs(mount_of(&machine.data))),
        ("mount propagation", judge_propagation(mounts::root(&machine.mounts))),
    ]
}

/// Checks whether scripts of ConfigMaps, Secrets, projected and downward API volumes can be executed. `tried` tries it,
/// unless only root can.
fn judge_scripts(run: Option<&Mount>, tried: impl FnOnce() -> Option<io::Result<()>>) -> Finding {
    let Some(run) = run else {
        return Finding::unknown("/proc/self/mountinfo does not list what is mounted at /run");
    };
    let point = run.point.display();
    if !run.has("noexec") {
        return Finding::ok(format!("{point} is mounted without noexec"));
    }
    match tried() {
        Some(Ok(())) => Finding::ok(format!(
            "{point} is mounted noexec, and volumes of ConfigMaps, Secrets and the downward API are not"
        )),
        Some(Err(error)) => Finding::warning(format!("{point} is mounted noexec: {error}")).because(
            "Scripts in volumes of ConfigMaps, Secrets and the downward API fail with `permission denied`.",
            format!("Remount it: mount -o remount,exec {point}"),
        ),
        None => Finding::unknown(format!("{point} is mounted noexec; only root can try")),
    }
}

/// Checks whether programs in emptyDir volumes on disk can be executed. Such a volume has the attributes of the file
/// system that holds it, as under a kubelet.
fn judge_programs(data: Option<&Mount>) -> Finding {
    match data {
        None => Finding::unknown("/proc/self/mountinfo does not list the data directory"),
        Some(data) if data.has("noexec") => {
            let point = data.point.display();
            Finding::warning(format!("{point} is mounted noexec")).because(
                "Programs that containers write into emptyDir volumes on disk fail with `permission denied`.",
                format!("Remove noexec from the mount of {point}, or use emptyDir with medium: Memory."),
            )
        }
        Some(_) => Finding::ok("the data directory is mounted without noexec"),
    }
}

/// Checks whether `mountPropagation` works: later mounts of the board reach containers only from a shared mount.
fn judge_propagation(root: Option<&Mount>) -> Finding {
    match root {
        None => Finding::unknown("/proc/self/mountinfo does not list the root"),
        Some(root) if root.is_shared => Finding::ok("/ is shared"),
        Some(_) => Finding::warning("/ is not shared").because(
            "A container does not start if it mounts a hostPath with mountPropagation, as node-exporter does; an emptyDir \
             can have it.",
            "Run mount --make-rshared / when the machine boots, before nodlet starts.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::report::Verdict;

    fn mount(line: &str) -> Mount {
        mounts::parse(line).remove(0)
    }

    #[test]
    fn a_run_directory_without_programs_is_tried() {
        let plain = mount("24 22 0:20 / /run rw,nosuid,nodev - tmpfs tmpfs rw");
        let noexec = mount("24 22 0:20 / /run rw,nosuid,nodev,noexec - tmpfs tmpfs rw");
        assert_eq!(judge_scripts(Some(&plain), || unreachable!()).verdict, Verdict::Ok);
        let check = judge_scripts(Some(&noexec), || Some(Ok(())));
        assert_eq!(check.verdict, Verdict::Ok);
        assert!(check.text.starts_with("/run is mounted noexec"), "{}", check.text);
        let refused = || Some(Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(judge_scripts(Some(&noexec), refused).verdict, Verdict::Warning);
        assert_eq!(judge_scripts(Some(&noexec), || None).verdict, Verdict::Unknown);
        assert_eq!(judge_scripts(None, || unreachable!()).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_data_directory_without_programs_and_a_root_that_is_not_shared_are_warned_about() {
        let of = |options: &str, fields: &str| {
            mount(&format!("22 1 179:2 / /data {options} {fields} - ext4 /dev/sda rw"))
        };
        assert_eq!(judge_programs(Some(&of("rw", "shared:1"))).verdict, Verdict::Ok);
        assert_eq!(judge_programs(Some(&of("rw,noexec", "shared:1"))).verdict, Verdict::Warning);
        for (fields, expected) in [
            ("shared:1", Verdict::Ok),
            ("shared:1 master:2", Verdict::Ok),
            ("master:2", Verdict::Warning),
            ("unbindable", Verdict::Warning),
        ] {
            assert_eq!(judge_propagation(Some(&of("rw", fields))).verdict, expected, "{fields}");
        }
        assert_eq!(judge_propagation(None).verdict, Verdict::Unknown);
    }
}
