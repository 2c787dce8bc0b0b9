//! Which devices a container may use: one table of rules, applied through v1's `devices` controller if that
//! is mounted, and otherwise as an eBPF program attached to the v2 cgroup, which needs no controller. The
//! program is written by hand, instruction by instruction: it is a list of comparisons, and a loader library
//! would be larger than this file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use cgroups_rs::fs::devices::{DevicePermissions, DeviceType, DevicesController};

use super::CgroupError;
use crate::bpf::{self, EXIT, Instruction, MOVE, instruction};

/// A rule that allows access to devices; all other access is denied.
#[derive(Clone, Copy)]
struct Rule {
    kind: Kind,
    /// The major number; any if `None`.
    major: Option<u32>,
    /// The minor number; any if `None`.
    minor: Option<u32>,
    /// Allow only mknod, not opening.
    only_mknod: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Block,
    Char,
}

const fn open(major: u32, minor: Option<u32>) -> Rule {
    Rule { kind: Kind::Char, major: Some(major), minor, only_mknod: false }
}

const fn mknod(kind: Kind) -> Rule {
    Rule { kind, major: None, minor: None, only_mknod: true }
}

/// Containers may create nodes of any device (a tar may contain them), but may open only these. The lists of
/// runc and containerd also have 5:1, the console of the node: on a board that is a serial line or a screen,
/// whose input a container could read. The `/dev/console` of a container with a terminal has major number
/// 136.
const RULES: [Rule; 10] = [
    open(1, Some(3)), // null
    open(1, Some(5)), // zero
    open(1, Some(7)), // full
    open(1, Some(8)), // random
    open(1, Some(9)), // urandom
    open(5, Some(0)), // tty
    open(5, Some(2)), // ptmx
    open(136, None),  // pts/*
    mknod(Kind::Char),
    mknod(Kind::Block),
];

/// Applies the rules to the v1 cgroup at `directory`, and reads them back.
pub(super) fn filter_v1(directory: &Path) -> Result<(), CgroupError> {
    let failed = || CgroupError::library("filter the devices of", directory);
    let devices = DevicesController::new(directory.to_owned(), directory.to_owned());
    let all = DevicePermissions::all();
    devices.deny_device(DeviceType::All, -1, -1, &all).map_err(failed())?;
    for rule in RULES {
        let kind = match rule.kind {
            Kind::Block => DeviceType::Block,
            Kind::Char => DeviceType::Char,
        };
        let number = |number: Option<u32>| number.map_or(-1, i64::from);
        let permissions = if rule.only_mknod { vec![DevicePermissions::MkNod] } else { all.clone() };
        devices.allow_device(kind, number(rule.major), number(rule.minor), &permissions).map_err(failed())?;
    }
    let found = devices.allowed_devices().map_err(failed())?.len();
    if found != RULES.len() {
        return Err(CgroupError::NotApplied {
            path: directory.to_owned(),
            limit: "device rules",
            wanted: RULES.len().to_string(),
            found: found.to_string(),
        });
    }
    Ok(())
}

/// Attaches the rules to the v2 cgroup at `directory`.
pub(super) fn filter_v2(directory: &Path) -> Result<(), CgroupError> {
    let failed = |source| CgroupError::DeviceFilter { path: directory.to_owned(), source };
    let cgroup = File::open(directory).map_err(failed)?;
    let program = bpf::load(BPF_PROG_TYPE_CGROUP_DEVICE, &program()).map_err(failed)?;
    // MULTI: a filter of the service manager above us stays in force beside ours.
    let target = cgroup.as_raw_fd().cast_unsigned();
    bpf::attach(target, &program, BPF_CGROUP_DEVICE, BPF_F_ALLOW_MULTI).map_err(failed)?;
    // From here on the cgroup keeps the program alive.
    Ok(())
}

/// Whether this kernel accepts the device program for cgroup v2, which needs CONFIG_CGROUP_BPF.
pub fn try_filter() -> io::Result<()> {
    bpf::load(BPF_PROG_TYPE_CGROUP_DEVICE, &program()).map(drop)
}

// From linux/bpf.h.
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;
const BPF_DEVCG_ACC_MKNOD: i32 = 1;
const BPF_DEVCG_DEV_BLOCK: i32 = 1;
const BPF_DEVCG_DEV_CHAR: i32 = 2;

const LOAD_WORD: u8 = 0x61; // BPF_LDX | BPF_MEM | BPF_W
const MOVE_REGISTER: u8 = 0xbc; // BPF_ALU | BPF_MOV | BPF_X
const AND: u8 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const SHIFT_RIGHT: u8 = 0x74; // BPF_ALU | BPF_RSH | BPF_K
const JUMP_IF_NOT: u8 = 0x55; // BPF_JMP | BPF_JNE | BPF_K: the upper halves are zero, and JMP32 needs Linux 5.1

const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const TYPE: u8 = 2;
const ACCESS: u8 = 3;
const MAJOR: u8 = 4;
const MINOR: u8 = 5;

/// The rules as a program, which returns 1 to allow and 0 to deny. Register 1 points to the
/// `bpf_cgroup_dev_ctx` {access << 16 | type, major, minor}.
fn program() -> Vec<Instruction> {
    let mut program = vec![
        instruction(LOAD_WORD, TYPE, CONTEXT, 0, 0),
        instruction(MOVE_REGISTER, ACCESS, TYPE, 0, 0),
        instruction(AND, TYPE, 0, 0, 0xffff),
        instruction(SHIFT_RIGHT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, CONTEXT, 4, 0),
        instruction(LOAD_WORD, MINOR, CONTEXT, 8, 0),
    ];
    for rule in RULES {
        let kind = match rule.kind {
            Kind::Block => BPF_DEVCG_DEV_BLOCK,
            Kind::Char => BPF_DEVCG_DEV_CHAR,
        };
        let mut tests = vec![(TYPE, kind)];
        tests.extend(rule.only_mknod.then_some((ACCESS, BPF_DEVCG_ACC_MKNOD)));
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
