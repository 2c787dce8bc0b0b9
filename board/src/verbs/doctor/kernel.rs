//! Checks of the running kernel. A feature is tried if this user may try it, and otherwise looked up in what
//! the kernel and its files list.

use std::fs;
use std::path::Path;

use super::config::Setting;
use super::facts::Machine;
use super::features::{Feature, features};
use super::judge::{judge_version, options};
use super::probe::{self, Probe, Tried};
use super::report::{Area, Check, Finding};
use super::{cgroups, mounts};

/// All checks of the running kernel.
pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let findings = vec![
        ("Linux version", judge_version(machine.version, &machine.release)),
        ("root file system", initial_root(mounts::root(&machine.mounts))),
    ];
    // Clock and watchdog of a running machine are checked directly, in `machine.rs`.
    let is_relevant = |(area, feature): &(Area, &Feature)| {
        feature.probe != Probe::FileAlone || (*area == Area::Kernel && machine.config.is_some())
    };
    let features = features().filter(is_relevant).map(|(area, feature)| Check {
        area,
        name: feature.name,
        finding: examine(feature, machine),
    });
    Area::Kernel.checks(findings).chain(features).collect()
}

fn examine(feature: &Feature, machine: &Machine) -> Finding {
    match attempt(feature, machine) {
        Tried::Works(found) => Finding::ok(found),
        Tried::Lacks(found) => feature.lacks(found, remedy(feature, machine)),
        Tried::Unclear(why) => look_up(feature, &why, machine),
    }
}

fn attempt(feature: &Feature, machine: &Machine) -> Tried {
    let scratch = |name: &str| machine.scratch.as_ref().and_then(|scratch| scratch.directory(name));
    let with_root = |attempt: &dyn Fn() -> Tried| {
        if machine.is_root { attempt() } else { Tried::Unclear("only root can try".to_owned()) }
    };
    match feature.probe {
        Probe::Namespace(name, flag) => probe::namespace(name, flag, machine.is_root),
        Probe::SystemCalls => probe::system_calls(),
        Probe::Overlay => with_root(&probe::overlay),
        Probe::Erofs => with_root(&|| probe::erofs(scratch("erofs").as_deref())),
        Probe::LayerMount => with_root(&|| probe::layer_mount(scratch("layer").as_deref())),
        Probe::Mount(kind) => with_root(&|| probe::mount(kind)),
        Probe::TmpfsAttributes => with_root(&probe::tmpfs_attributes),
        Probe::Seccomp => probe::seccomp(),
        Probe::Keyring => probe::keyring(),
        Probe::Landlock => probe::landlock(),
        Probe::AppArmor => probe::app_armor(),
        Probe::CgroupV2 => cgroups::unified(&machine.mounts),
        Probe::Controller(name) => cgroups::controller(name, &machine.mounts),
        Probe::CpuLimits => cgroups::cpu_limits(&machine.mounts),
        Probe::DeviceFilter => match cgroups::v1_mount(&machine.mounts, "devices") {
            Some(mount) => Tried::Works(format!("cgroup v1 at {}", mount.point.display())),
            None => with_root(&probe::device_filter),
        },
        Probe::Pressure => cgroups::pressure(),
        Probe::Veth => with_root(&probe::veth),
        Probe::Bridge => with_root(&probe::bridge),
        Probe::SenderFilter => with_root(&probe::sender_filter),
        Probe::FileAlone => Tried::Unclear("only a kernel configuration shows it".to_owned()),
    }
}

/// The remedy for a feature that a trial found missing.
fn remedy(feature: &Feature, machine: &Machine) -> String {
    if let Some(remedy) = cgroups::remedy(feature.probe, machine) {
        return remedy;
    }
    if feature.probe == Probe::Landlock && machine.command_line.contains("lsm=") {
        return "Add landlock to lsm= on the kernel's command line; the kernel needs CONFIG_SECURITY_LANDLOCK.".to_owned();
    }
    if feature.probe == Probe::AppArmor {
        return "Boot with apparmor=1 and with apparmor in lsm= on the kernel's command line; the kernel needs \
                CONFIG_SECURITY_APPARMOR."
            .to_owned();
    }
    let all = options(feature.ways[feature.ways.len() - 1].options);
    match &machine.config {
        Some((path, config)) => match feature.way(config, machine.version) {
            Some(way) if way.options.iter().any(|option| config.setting(option) == Setting::Module) => {
                match feature.module {
                    "" => "Load its module.".to_owned(),
                    module => format!("Load the module {module} (modprobe {module})."),
                }
            }
            Some(way) => format!(
                "{} has {}: look for the reason in the kernel's log (dmesg) and on its command line.",
                path.display(),
                options(way.options)
            ),
            None => feature.enable(config, machine.version),
        },
        None if feature.module.is_empty() => format!("Use a kernel with {all}."),
        None => {
            let module = feature.module;
            format!("Load the module {module} (modprobe {module}), or use a kernel with {all}.")
        }
    }
}

/// Looks a feature that could not be tried up in the configuration or the lists of the kernel.
fn look_up(feature: &Feature, why: &str, machine: &Machine) -> Finding {
    if let Some((path, config)) = &machine.config {
        let judged = feature.judge(config, machine.version);
        return Finding { text: format!("{}, by {} ({why})", judged.text, path.display()), ..judged };
    }
    let kind = match feature.probe {
        Probe::Overlay => "overlay",
        Probe::Erofs => "erofs",
        Probe::Mount(kind) => kind,
        _ => "",
    };
    if !kind.is_empty() && is_registered(&machine.filesystems, kind) {
        return Finding::ok(format!("in /proc/filesystems ({why})"));
    }
    let module = feature.module;
    if !module.is_empty() {
        if Path::new("/sys/module").join(module).is_dir() {
            return Finding::ok(format!("the module {module} is loaded ({why})"));
        }
        let modules = Path::new("/lib/modules").join(&machine.release);
        for list in ["modules.builtin", "modules.dep"] {
            let text = fs::read_to_string(modules.join(list)).unwrap_or_default();
            if lists_module(&text, module) {
                return Finding::ok(format!("the module {module} is in {list} ({why})"));
            }
        }
    }
    Finding::unknown(why)
}

/// Whether /proc/filesystems lists this file system.
fn is_registered(text: &str, kind: &str) -> bool {
    text.lines().any(|line| line.rsplit('\t').next() == Some(kind))
}

/// Whether a list of modules such as `kernel/fs/erofs/erofs.ko.xz: …` contains this module.
fn lists_module(text: &str, module: &str) -> bool {
    text.lines().any(|line| {
        let path = line.split(':').next().unwrap_or_default();
        let name = path.rsplit('/').next().unwrap_or_default();
        name.split_once(".ko").is_some_and(|(name, _)| name.replace('-', "_") == module)
    })
}

/// Checks whether the machine left the file system into which the kernel unpacked its initramfs.
fn initial_root(root: Option<&mounts::Mount>) -> Finding {
    match root {
        Some(mount) if mount.is_initial_root() => Finding::missing("the kernel's initial one (an initramfs)")
            .because(
                "No pod starts: no process can leave that file system.",
                "Let its init mount a tmpfs or a disk and switch_root to it before it starts nodlet.",
            ),
        Some(mount) => Finding::ok(mount.kind.clone()),
        None => Finding::unknown("/proc/self/mountinfo does not show it"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::doctor::report::Verdict;

    #[test]
    fn file_systems_and_modules_are_found_in_what_the_kernel_lists() {
        let filesystems = "nodev\ttmpfs\n\text4\nnodev\toverlay\n";
        assert!(is_registered(filesystems, "overlay") && is_registered(filesystems, "ext4"));
        assert!(!is_registered(filesystems, "erofs") && !is_registered(filesystems, "over"));
        let modules = "kernel/fs/erofs/erofs.ko.xz: kernel/lib/lz4.ko\nkernel/net/sched/cls-bpf.ko\n";
        assert!(lists_module(modules, "erofs") && lists_module(modules, "cls_bpf"));
        assert!(!lists_module(modules, "lz4") && !lists_module(modules, "veth"));
    }

    #[test]
    fn an_initramfs_that_was_not_left_is_missing_a_root() {
        let judged = |text: &str| initial_root(mounts::parse(text).first()).verdict;
        assert_eq!(judged("1 1 0:2 / / rw - rootfs none rw\n"), Verdict::Missing);
        assert_eq!(judged("9 1 0:2 / / rw - rootfs none rw\n"), Verdict::Ok);
        assert_eq!(judged("22 1 179:2 / / rw - ext4 /dev/root rw\n"), Verdict::Ok);
        assert_eq!(judged(""), Verdict::Unknown);
    }
}
