//! Checks of the cgroups of a running machine: which controllers exist, in v2 or v1, and how v2 is mounted.

use std::fs;

use nodlet_kernel::own_file::if_exists;

use super::facts::Machine;
use super::mounts::Mount;
use super::probe::{Probe, Tried};
use super::report::Finding;

/// The controller that nodlet uses in cgroup v2 alone.
const CPUSET: &str = "cpuset";

/// The mount of cgroup v2.
fn v2_mount(mounts: &[Mount]) -> Option<&Mount> {
    mounts.iter().find(|mount| mount.kind == "cgroup2")
}

/// The mount of the cgroup v1 hierarchy with this controller.
pub(super) fn v1_mount<'a>(mounts: &'a [Mount], controller: &str) -> Option<&'a Mount> {
    mounts.iter().find(|mount| mount.kind == "cgroup" && mount.has(controller))
}

/// Whether cgroup v2 is mounted.
pub(super) fn unified(mounts: &[Mount]) -> Tried {
    match v2_mount(mounts) {
        Some(mount) => Tried::Works(format!("at {}", mount.point.display())),
        None => Tried::Lacks("not mounted".to_owned()),
    }
}

/// Whether pods can use a controller.
pub(super) fn controller(name: &str, mounts: &[Mount]) -> Tried {
    let v1 = if name == "io" { "blkio" } else { name };
    if let Some(mount) = v1_mount(mounts, v1) {
        if name == CPUSET {
            return Tried::Lacks(format!("in cgroup v1 at {}, so not in v2", mount.point.display()));
        }
        return Tried::Works(format!("cgroup v1 at {}", mount.point.display()));
    }
    let Some(v2) = v2_mount(mounts) else {
        return Tried::Unclear("no cgroup file system is mounted".to_owned());
    };
    let path = v2.point.join("cgroup.controllers");
    match fs::read_to_string(&path) {
        Ok(text) if text.split_whitespace().any(|own| own == name) => Tried::Works("cgroup v2".to_owned()),
        Ok(_) => Tried::Lacks(match state(&fs::read_to_string("/proc/cgroups").unwrap_or_default(), v1) {
            State::Off => "turned off when the kernel was started".to_owned(),
            State::On => {
                format!("the kernel has it, but neither {} nor a cgroup v1 hierarchy", path.display())
            }
            State::Unlisted => format!("{} lacks it", path.display()),
        }),
        Err(error) => Tried::Unclear(format!("{}: {error}", path.display())),
    }
}

/// The state of a controller in /proc/cgroups.
#[derive(Debug, PartialEq, Eq)]
enum State {
    On,
    Off,
    Unlisted,
}

fn state(text: &str, name: &str) -> State {
    let line = text.lines().map(str::split_whitespace).find_map(|mut words| {
        (words.next() == Some(name)).then(|| words.last().map(str::to_owned)).flatten()
    });
    match line.as_deref() {
        Some("0") => State::Off,
        Some(_) => State::On,
        None => State::Unlisted,
    }
}

/// Whether the cpu controller has quotas.
pub(super) fn cpu_limits(mounts: &[Mount]) -> Tried {
    if let Some(mount) = v1_mount(mounts, "cpu") {
        let path = mount.point.join("cpu.cfs_quota_us");
        return match path.try_exists() {
            Ok(true) => Tried::Works("cgroup v1".to_owned()),
            Ok(false) => Tried::Lacks(format!("there is no {}", path.display())),
            Err(error) => Tried::Unclear(format!("{}: {error}", path.display())),
        };
    }
    let Some(mount) = v2_mount(mounts) else {
        return Tried::Unclear("no cgroup file system is mounted".to_owned());
    };
    // The root cgroup itself has no quota file; a cgroup below it has one if the controller is enabled.
    let children = fs::read_dir(&mount.point).into_iter().flatten().flatten().map(|entry| entry.path());
    let with_cpu: Vec<_> = children.filter(|child| child.join("cpu.weight").exists()).collect();
    match with_cpu.first() {
        Some(child) if child.join("cpu.max").exists() => Tried::Works("cgroup v2".to_owned()),
        Some(child) => Tried::Lacks(format!("there is no {}/cpu.max", child.display())),
        None => Tried::Unclear("no cgroup has it yet".to_owned()),
    }
}

/// Whether the kernel reports pressure, which shows how overloaded a machine is.
pub(super) fn pressure() -> Tried {
    match if_exists(fs::read_to_string("/proc/pressure/memory")) {
        Ok(Some(_)) => Tried::Works("in /proc/pressure".to_owned()),
        Ok(None) => Tried::Lacks("there is no /proc/pressure".to_owned()),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            Tried::Lacks("turned off when the kernel was started".to_owned())
        }
        Err(error) => Tried::Unclear(format!("/proc/pressure/memory: {error}")),
    }
}

/// The remedy if the kernel has a feature but does not offer it.
pub(super) fn remedy(probe: Probe, machine: &Machine) -> Option<String> {
    let has = |option: &str| match &machine.config {
        Some((_, config)) => config.setting(option) != super::config::Setting::Off,
        None => true,
    };
    match probe {
        Probe::CgroupV2 if machine.filesystems.lines().any(|line| line.ends_with("\tcgroup2")) => Some(
            "Mount it (mount -t cgroup2 cgroup2 /sys/fs/cgroup, or /sys/fs/cgroup/unified beside v1)."
                .to_owned(),
        ),
        Probe::Controller(CPUSET) if v1_mount(&machine.mounts, CPUSET).is_some() => Some(
            "Add cgroup_no_v1=cpuset to the kernel's command line, or boot with cgroup v2 alone \
             (systemd.unified_cgroup_hierarchy=1)."
                .to_owned(),
        ),
        Probe::Controller("memory") if has("MEMCG") => Some(memory_remedy(&machine.command_line)),
        Probe::Controller(name) => {
            let disabled = machine.command_line.split_whitespace().find(|word| {
                word.strip_prefix("cgroup_disable=")
                    .is_some_and(|names| names.split(',').any(|own| own == name))
            });
            disabled.map(|word| format!("Remove {word} from the kernel's command line."))
        }
        Probe::Pressure if has("PSI") => {
            Some("Add psi=1 to the kernel's command line; the kernel needs CONFIG_PSI.".to_owned())
        }
        _ => None,
    }
}

/// The remedy for a disabled memory controller, which many boards have.
fn memory_remedy(command_line: &str) -> String {
    let disables = |word: &str| {
        word.strip_prefix("cgroup_disable=")
            .is_some_and(|names| names.split(',').any(|name| name == "memory"))
    };
    if command_line.split_whitespace().any(disables) {
        return "Remove cgroup_disable=memory from the kernel's command line; where the firmware adds it, as on a \
                Raspberry Pi, add cgroup_enable=memory (to cmdline.txt)."
            .to_owned();
    }
    "Add cgroup_enable=memory to the kernel's command line (cmdline.txt of a Raspberry Pi); the kernel needs \
     CONFIG_MEMCG."
        .to_owned()
}

/// All checks of the cgroup mounts.
pub(super) fn findings(machine: &Machine) -> Vec<(&'static str, Finding)> {
    let Some(mount) = v2_mount(&machine.mounts) else { return Vec::new() };
    // Limits in cgroup v1 are protected by no mount option.
    if v1_mount(&machine.mounts, "memory").is_some() {
        return Vec::new();
    }
    let point = mount.point.display();
    let finding = if mount.has("nsdelegate") {
        Finding::ok("nsdelegate")
    } else {
        Finding::warning(format!("{point} is mounted without nsdelegate")).because(
            "Pods run; a container with CAP_SYS_ADMIN can change its own limits.",
            format!("Mount it with that option (mount -o remount,nsdelegate {point}), as systemd does."),
        )
    };
    vec![("cgroup delegation", finding)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disabled_cgroup_controller_is_distinguished_from_a_missing_one() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t3\t1\nmemory\t0\t9\t0\n";
        assert_eq!(state(text, "cpu"), State::On);
        assert_eq!(state(text, "memory"), State::Off);
        assert_eq!(state(text, "pids"), State::Unlisted);
    }

    #[test]
    fn the_remedy_for_a_disabled_memory_controller_names_the_kernel_argument() {
        assert!(memory_remedy("quiet cgroup_disable=memory").starts_with("Remove cgroup_disable=memory"));
        assert!(memory_remedy("cgroup_disable=io,memory x").starts_with("Remove cgroup_disable=memory"));
        assert!(memory_remedy("quiet").starts_with("Add cgroup_enable=memory"));
    }
}
