//! Which devices a container may use: one table of rules, applied through v1's `devices` controller if that
//! is mounted, and otherwise as an eBPF program attached to the v2 cgroup, which needs no controller. The
//! program is written by hand, instruction by instruction: it is a list of comparisons, and a loader library
//! would be larger than this file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use super::CgroupError;
use super::controllers::check_device_rules;
use crate::bpf::{self, EXIT, Instruction, MOVE, instruction};
use crate::launch::DeviceNode;

/// A rule that allows access to devices; all other access is denied.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    /// The major number; any if `None`.
    major: Option<u32>,
    /// The minor number; any if `None`.
    minor: Option<u32>,
    /// The allowed kinds of access, of `BPF_DEVCG_ACC_*`.
    access: i32,
}

impl Rule {
    /// The rule as v1's files `devices.allow` and `devices.deny` have it: `c 1:3 rwm`.
    fn line(self) -> String {
        let kind = match self.kind {
            Kind::Block => 'b',
            Kind::Char => 'c',
        };
        let number = |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
        let mut line = format!("{kind} {}:{} ", number(self.major), number(self.minor));
        let all = [(READ, 'r'), (WRITE, 'w'), (MKNOD_ACCESS, 'm')];
        line.extend(all.into_iter().filter(|(bit, _)| self.access & bit != 0).map(|(_, letter)| letter));
        line
    }
}

impl From<&DeviceNode> for Rule {
    fn from(device: &DeviceNode) -> Rule {
        let read = if device.readable { READ } else { 0 };
        let write = if device.writable { WRITE } else { 0 };
        Rule {
            kind: if device.block { Kind::Block } else { Kind::Char },
            major: Some(device.major),
            minor: Some(device.minor),
            // Nodes of any device may be created anyway.
            access: read | write | MKNOD_ACCESS,
        }
    }
}

const MKNOD_ACCESS: i32 = 1;
const READ: i32 = 2;
const WRITE: i32 = 4;
const ALL: i32 = MKNOD_ACCESS | READ | WRITE;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Block,
    Char,
}

const fn open(major: u32, minor: Option<u32>) -> Rule {
    Rule { kind: Kind::Char, major: Some(major), minor, access: ALL }
}

const fn mknod(kind: Kind) -> Rule {
    Rule { kind, major: None, minor: None, access: MKNOD_ACCESS }
}

/// Containers may create nodes of any device (a tar may contain them), but may open only these. The lists of
/// runc and containerd also have 5:1, the console of the node: on a board that is a serial line or a screen,
/// whose input a container could read. The `/dev/console` of a container with a terminal has major number
/// 136.
const RULES: [Rule; 11] = [
    open(1, Some(3)),    // null
    open(1, Some(5)),    // zero
    open(1, Some(7)),    // full
    open(1, Some(8)),    // random
    open(1, Some(9)),    // urandom
    open(5, Some(0)),    // tty
    open(5, Some(2)),    // ptmx
    open(136, None),     // pts/*
    open(10, Some(200)), // net/tun, which only a process with CAP_NET_ADMIN can use
    mknod(Kind::Char),
    mknod(Kind::Block),
];

/// The rules of a container that may also use `devices`.
fn rules(devices: &[DeviceNode]) -> Vec<Rule> {
    let mut rules = RULES.to_vec();
    for rule in devices.iter().map(Rule::from) {
        match rules
            .iter_mut()
            .find(|one| (one.kind, one.major, one.minor) == (rule.kind, rule.major, rule.minor))
        {
            Some(known) => known.access |= rule.access,
            None => rules.push(rule),
        }
    }
    rules
}

/// Applies the rules to the v1 cgroup at `directory`, and reads them back.
pub(super) fn filter_v1(directory: &Path, devices: &[DeviceNode]) -> Result<(), CgroupError> {
    write_v1(directory, "devices.deny", ["a *:* rwm".to_owned()])?;
    change_v1(directory, &[], &rules(devices))?;
    check_device_rules(directory, rules(devices).len())
}

/// Lets the v1 cgroup at `directory` use the devices `new` in place of the devices `old`. All other access
/// stays allowed meanwhile.
pub(super) fn change_filter_v1(
    directory: &Path,
    old: &[DeviceNode],
    new: &[DeviceNode],
) -> Result<(), CgroupError> {
    let (old, wanted) = (rules(old), rules(new));
    let gone: Vec<Rule> = old.iter().filter(|rule| !wanted.contains(rule)).copied().collect();
    let added: Vec<Rule> = wanted.iter().filter(|rule| !old.contains(rule)).copied().collect();
    change_v1(directory, &gone, &added)?;
    check_device_rules(directory, wanted.len())
}

fn change_v1(directory: &Path, gone: &[Rule], added: &[Rule]) -> Result<(), CgroupError> {
    for (name, rules) in [("devices.deny", gone), ("devices.allow", added)] {
        if !rules.is_empty() {
            write_v1(directory, name, rules.iter().map(|rule| rule.line()))?;
        }
    }
    Ok(())
}

/// Writes rules to a file of the cgroup, each with a write of its own, as the kernel requires.
fn write_v1(
    directory: &Path,
    name: &str,
    lines: impl IntoIterator<Item = String>,
) -> Result<(), CgroupError> {
    let path = directory.join(name);
    let written = File::options()
        .write(true)
        .open(&path)
        .and_then(|mut file| lines.into_iter().try_for_each(|line| file.write_all(line.as_bytes())));
    written.map_err(CgroupError::file("write", &path))
}

/// Attaches the rules to the v2 cgroup at `directory`.
pub(super) fn filter_v2(directory: &Path, devices: &[DeviceNode]) -> Result<(), CgroupError> {
    attach(directory, devices, false)
}

/// Attaches the rules to the v2 cgroup at `directory` in place of those that were attached before. The kernel
/// allows only what all attached programs allow, so that no access is possible between the two steps that
/// neither the old rules nor the new ones allow.
pub(super) fn change_filter_v2(directory: &Path, devices: &[DeviceNode]) -> Result<(), CgroupError> {
    attach(directory, devices, true)
}

fn attach(directory: &Path, devices: &[DeviceNode], replaces: bool) -> Result<(), CgroupError> {
    let failed = |source| CgroupError::DeviceFilter { path: directory.to_owned(), source };
    let cgroup = File::open(directory).map_err(failed)?;
    let program = bpf::load(BPF_PROG_TYPE_CGROUP_DEVICE, &program(&rules(devices))).map_err(failed)?;
    let target = cgroup.as_raw_fd().cast_unsigned();
    let before =
        if replaces { bpf::attached(target, BPF_CGROUP_DEVICE).map_err(failed)? } else { Vec::new() };
    // MULTI: a filter of the service manager above us stays in force beside ours.
    bpf::attach(target, &program, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI).map_err(failed)?;
    // From here on the cgroup keeps the program alive.
    before.into_iter().try_for_each(|id| bpf::detach(target, id, BPF_CGROUP_DEVICE)).map_err(failed)
}

/// Whether this kernel accepts the device program for cgroup v2, which needs CONFIG_CGROUP_BPF.
pub fn try_device_filter() -> io::Result<()> {
    bpf::load(BPF_PROG_TYPE_CGROUP_DEVICE, &program(&RULES)).map(drop)
}

// From linux/bpf.h.
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;
const BPF_DEVCG_DEV_BLOCK: i32 = 1;
const BPF_DEVCG_DEV_CHAR: i32 = 2;

const LOAD_WORD: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
const MOVE_REGISTER: u8 = 0xbc; // BPF_ALU | BPF_MOV | BPF_X
const AND: u8 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const SHIFT_RIGHT: u8 = 0x74; // BPF_ALU | BPF_RSH | BPF_K
const JUMP_IF_NOT: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K: the upper halves are zero, and JMP32 needs Linux 5.1

const RESULT: u8 = 0;
/// Register 0 before it has the result.
const DENIED: u8 = 0;
const CONTEXT: u8 = 1;
const TYPE: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

/// The rules as a program, which returns 1 to allow and 0 to deny. Register 1 points to the
/// `bpf_cgroup_dev_ctx` {access << 16 | type, major, minor}.
fn program(rules: &[Rule]) -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD_WORD, TYPE, CONTEXT, 0, 0),
        instruction(MOVE_REGISTER, ACCESS, TYPE, 0, 0),
        instruction(AND, TYPE, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in rules {
        let kind = match rule.kind {
            Kind::Block => BPF_DEVCG_DEV_BLOCK,
            Kind::Char => BPF_DEVCG_DEV_CHAR,
        };
        let mut tests = vec![(TYPE, kind)];
        if rule.access != ALL {
            // The requested kinds of access that this rule does not allow.
            program.push(instruction(MOVE_REGISTER, DENIED, ACCESS, 0, 0));
            program.push(instruction(AND, DENIED, 0, 0, ALL & !rule.access));
            tests.push((DENIED, 0));
        }
        tests.extend(rule.major.map(|major| (MAJOR, major as i32)));
        tests.extend(rule.minor.map(|minor| (MINOR, minor as i32)));
        for (done, (register, value)) in tests.iter().enumerate() {
            // Jump over the remaining tests and the two instructions that allow access, to the next rule.
            let next = (tests.len() - done - 1 + 2) as i16;
            program.push(instruction(JUMP_IF_NOT, *register, 0, next, *value));
        }
        program.extend([instruction(MOVE, RESULT, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)]);
    }
    program.extend([instruction(MOVE, RESULT, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_the_kernel_reads_them() {
        let lines: Vec<String> = RULES.iter().map(|rule| rule.line()).collect();
        assert_eq!(lines[0], "c 1:3 rwm");
        assert_eq!(lines[7..], ["c 136:* rwm", "c 10:200 rwm", "c *:* m", "b *:* m"]);
        let disk = Rule { kind: Kind::Block, major: Some(8), minor: Some(0), access: READ | MKNOD_ACCESS };
        assert_eq!(disk.line(), "b 8:0 rm");
    }
}
