//! Compiles seccomp profiles to the programs that filter a container's system calls. Pure: the profile is a value,
//! and the supervisor's helpers install the program.
//!
//! A program first looks at the ABI of the call, because the numbers differ, and then finds the call by binary search.
//! As with runc, a number beyond all that the profile names fails with ENOSYS, so that programs fall back to older
//! calls, and an ABI that the profile does not name ends the thread. Read next: `table.rs` for the default profile,
//! `profile.rs` for profiles from files.

mod profile;
mod table;

use std::sync::{Mutex, PoisonError};

use nodlet_core::spec::container::{CAPABILITIES, SeccompProfile};
use nodlet_core::spec::{Container, Pod};
use nodlet_host::launch::SeccompConfig;

use table::{COUNT, Numbers};

pub(crate) use profile::ProfileFile;

const KILL_THREAD: u32 = 0;
const ERRNO: u32 = 0x0005_0000;
const TRACE: u32 = 0x7ff0_0000;
const LOG: u32 = 0x7ffc_0000;
const ALLOW: u32 = 0x7fff_0000;
/// Errors of system calls, the same on all processors of nodlet.
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// `SECCOMP_FILTER_FLAG_SPEC_ALLOW`, which runc sets unless the profile has flags: the filter alone does not slow down
/// the process by mitigations against speculative execution.
const SPEC_ALLOW: u32 = 4;

/// The bit of x32 in the numbers of x86-64.
const X32_BIT: u32 = 0x4000_0000;

/// The first number of the system calls that x32 numbers differently.
const FIRST_OF_X32: u32 = X32_BIT + 512;

/// The first number of the system calls that only ARM has.
const FIRST_OF_ARM: u32 = 0xf_0000;

/// More than the highest number of a system call.
const PLACES: u32 = 512;

/// The maximum number of instructions that the kernel accepts (`BPF_MAXINSNS`).
const MAX_INSTRUCTIONS: usize = 4096;

/// The ABIs of a processor.
struct Processor {
    native: Abi,
    /// The 32-bit ABI of a 64-bit processor.
    compat: Option<Abi>,
    /// Whether there is x32.
    x32: bool,
    /// The names of the processor in Docker's profiles (`arches`).
    docker: &'static str,
}

struct Abi {
    /// `AUDIT_ARCH_*`.
    audit: u32,
    /// `SCMP_ARCH_*`, without the prefix.
    name: &'static str,
    /// Whether arguments have 64 bits.
    is_wide: bool,
    numbers: &'static Numbers,
}

const X86_64: Processor = Processor {
    native: Abi { audit: 0xc000_003e, name: "X86_64", is_wide: true, numbers: table::X86_64 },
    compat: Some(Abi { audit: 0x4000_0003, name: "X86", is_wide: false, numbers: table::I386 }),
    x32: true,
    docker: "amd64",
};
const AARCH64: Processor = Processor {
    native: Abi { audit: 0xc000_00b7, name: "AARCH64", is_wide: true, numbers: table::AARCH64 },
    compat: Some(Abi { audit: 0x4000_0028, name: "ARM", is_wide: false, numbers: table::ARM }),
    x32: false,
    docker: "arm64",
};
const ARM: Processor = Processor {
    native: Abi { audit: 0x4000_0028, name: "ARM", is_wide: false, numbers: table::ARM },
    compat: None,
    x32: false,
    docker: "arm",
};
const RISCV64: Processor = Processor {
    native: Abi { audit: 0xc000_00f3, name: "RISCV64", is_wide: true, numbers: table::RISCV64 },
    compat: None,
    x32: false,
    docker: "riscv64",
};

/// The processor of this program, the only one whose table is in the program.
const THIS: &Processor = const {
    match std::env::consts::ARCH.as_bytes() {
        b"x86_64" => &X86_64,
        b"aarch64" => &AARCH64,
        b"arm" => &ARM,
        b"riscv64" => &RISCV64,
        _ => panic!("nodlet has no table of this processor's system calls"),
    }
};

/// A profile for one processor.
struct Profile {
    /// The kernel's action for calls without a rule.
    default: u32,
    /// Rules, sorted by the index of the name in the table.
    rules: Vec<Rule>,
    has_compat: bool,
    has_x32: bool,
    /// Flags of seccomp(2).
    flags: u32,
}

struct Rule {
    /// The index of the system call's name.
    call: usize,
    action: u32,
    /// All of them must be met.
    conditions: Vec<Condition>,
}

/// A comparison of an argument of a system call.
#[derive(Clone)]
struct Condition {
    /// The place of the argument, from 0 to 5.
    argument: u8,
    operator: Operator,
    value: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    /// The argument's bits of this mask equal the value.
    Masked(u64),
}

/// Returns the profile that applies to a container: its own, or that of its pod.
pub(crate) fn effective<'a>(pod: &'a Pod, container: &'a Container) -> Option<&'a SeccompProfile> {
    let own = container.security_context.seccomp.as_ref();
    own.or(pod.spec.security_context.seccomp.as_ref()).filter(|_| !container.security_context.privileged)
}

/// Returns the filter of a container's system calls. `file` is the file that `localhostProfile` names.
///
/// # Errors
/// The file could not be read, or the profile is wrong; the message names the file and the field.
pub(crate) fn config(
    pod: &Pod,
    container: &Container,
    capabilities: &[String],
    file: Option<&ProfileFile>,
) -> Result<Option<SeccompConfig>, String> {
    Ok(match (effective(pod, container), file) {
        (None | Some(SeccompProfile::Unconfined), _) => None,
        (Some(SeccompProfile::RuntimeDefault), _) => Some(runtime_default(capabilities)),
        (Some(SeccompProfile::Localhost(_)), Some(file)) => Some(from_file(file, capabilities)?),
        (Some(SeccompProfile::Localhost(name)), None) => {
            return Err(format!("cannot load seccomp profile \"{name}\": it was not read"));
        }
    })
}

/// The compiled default filters that are kept, the latest first. Most containers have the same capabilities.
static DEFAULTS: Mutex<Vec<(u64, SeccompConfig)>> = Mutex::new(Vec::new());

/// How many compiled default filters are kept. Each has some kilobytes.
const MAX_DEFAULTS: usize = 4;

/// Returns containerd's default filter for a container with these capabilities (`CAP_` names). Compiles it at its first
/// use.
fn runtime_default(capabilities: &[String]) -> SeccompConfig {
    let mut kept = DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    // It is far from too long.
    kept_default(&mut kept, bits(capabilities), |bits| {
        compile(&default_profile(bits), THIS).unwrap_or_default()
    })
}

/// Returns the kept filter for these capabilities, or compiles it in place of the one that was not used for longest.
fn kept_default(
    kept: &mut Vec<(u64, SeccompConfig)>,
    bits: u64,
    compile: impl FnOnce(u64) -> SeccompConfig,
) -> SeccompConfig {
    // No other capability has a rule.
    let bits = bits & (b'A'..=b'N').fold(0, |all, letter| all | with_capability(letter));
    let at = kept.iter().position(|(key, _)| *key == bits);
    let found = at.map(|at| kept.remove(at)).unwrap_or_else(|| {
        kept.truncate(MAX_DEFAULTS - 1);
        (bits, compile(bits))
    });
    kept.insert(0, found.clone());
    found.1
}

/// Returns the capabilities as bits, by their numbers.
fn bits(capabilities: &[String]) -> u64 {
    CAPABILITIES.iter().enumerate().fold(0u64, |bits, (number, name)| {
        let has = capabilities.iter().any(|own| own.strip_prefix("CAP_") == Some(*name));
        bits | u64::from(has) << number
    })
}

/// Compiles a profile from a file.
fn from_file(file: &ProfileFile, capabilities: &[String]) -> Result<SeccompConfig, String> {
    let path = file.path.display();
    let text =
        file.text.as_ref().map_err(|error| format!("cannot load seccomp profile \"{path}\": {error}"))?;
    profile::parse(text, capabilities, file.kernel, THIS)
        .and_then(|profile| compile(&profile, THIS))
        .map_err(|error| format!("seccomp profile \"{path}\": {error}"))
}

/// containerd's `DefaultProfile` for these capabilities. Its rules for Linux before 4.8 are left out.
fn default_profile(bits: u64) -> Profile {
    let is_admin = bits & with_capability(b'F') != 0;
    let mut rules = Vec::with_capacity(COUNT);
    let mut allow = |call, condition: Option<(Operator, u64)>| {
        let conditions =
            condition.map(|(operator, value)| Condition { argument: 0, operator, value }).into_iter();
        rules.push(Rule { call, action: ALLOW, conditions: conditions.collect() });
    };
    let mut clone3 = None;
    for (call, rule) in table::RULES.iter().copied().enumerate() {
        match rule {
            b'-' => {}
            b'a' => allow(call, None),
            b's' => {
                // The domains of Linux except AF_ALG (38) and AF_VSOCK (40).
                allow(call, Some((Operator::Less, 38)));
                for domain in [39, 41, 42, 43, 44, 45] {
                    allow(call, Some((Operator::Equal, domain)));
                }
            }
            b'p' => {
                for value in [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff] {
                    allow(call, Some((Operator::Equal, value)));
                }
            }
            b'c' | b'3' if is_admin => allow(call, None),
            // No flag of a namespace.
            b'c' => allow(call, Some((Operator::Masked(0x7e02_0000), 0))),
            // The flags are in memory, which a filter does not see; C libraries then call clone.
            b'3' => clone3 = Some(call),
            letter if bits & with_capability(letter) != 0 => allow(call, None),
            _ => {}
        }
    }
    if let Some(call) = clone3 {
        let at = rules.partition_point(|rule| rule.call < call);
        rules.insert(at, Rule { call, action: ERRNO | ENOSYS, conditions: Vec::new() });
    }
    Profile { default: ERRNO | EPERM, rules, has_compat: true, has_x32: true, flags: SPEC_ALLOW }
}

/// The capabilities any of which allows the calls with this letter in [`table::RULES`], as bits.
fn with_capability(letter: u8) -> u64 {
    const SYS_ADMIN: u64 = 1 << 21;
    match letter {
        b'A' => 1 << 20,             // SYS_PACCT
        b'B' => SYS_ADMIN | 1 << 39, // BPF
        b'C' => 1 << 18,             // SYS_CHROOT
        b'D' => 1 << 25,             // SYS_TIME
        b'E' => 1 << 16,             // SYS_MODULE
        b'F' => SYS_ADMIN,
        b'G' => 1 << 23,             // SYS_NICE
        b'H' => 1 << 17,             // SYS_RAWIO
        b'I' => 1 << 19,             // SYS_PTRACE
        b'J' => 1 << 2,              // DAC_READ_SEARCH
        b'K' => SYS_ADMIN | 1 << 38, // PERFMON
        b'L' => 1 << 22,             // SYS_BOOT
        b'M' => SYS_ADMIN | 1 << 34, // SYSLOG
        b'N' => 1 << 26,             // SYS_TTY_CONFIG
        _ => 0,
    }
}

/// An instruction of a filter (`struct sock_filter`).
#[derive(Clone, Copy)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, value }
}

fn jump(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, value }
}

/// The numbers from `first` on, up to the next segment, and what is done with them.
struct Segment<'a> {
    first: u32,
    outcome: Outcome<'a>,
}

#[derive(Clone, Copy)]
enum Outcome<'a> {
    Return(u32),
    /// The first rule whose conditions are met decides.
    Check(&'a [Rule]),
}

fn compile(profile: &Profile, processor: &Processor) -> Result<SeccompConfig, String> {
    let mut program = vec![plain(LOAD, ARCHITECTURE)];
    let compat = processor.compat.as_ref().filter(|_| profile.has_compat);
    let has_x32 = profile.has_x32 && processor.x32;
    let sections = std::iter::once((&processor.native, processor.x32)).chain(compat.map(|abi| (abi, false)));
    for (abi, knows_x32) in sections {
        let mut section = vec![plain(LOAD, NUMBER)];
        if knows_x32 && has_x32 {
            // Most calls of x32 have the number of x86-64.
            section.push(jump(IF_GREATER_OR_EQUAL, FIRST_OF_X32, 2, 0));
            section.push(jump(IF_GREATER_OR_EQUAL, X32_BIT, 0, 1));
            section.push(plain(AND, !X32_BIT));
        }
        let segments = segments(profile, abi, knows_x32.then_some(has_x32));
        search(&segments, profile.default, abi.is_wide, &mut section);
        program.push(jump(IF_EQUAL, abi.audit, 1, 0));
        program.push(plain(JUMP, section.len() as u32));
        program.append(&mut section);
    }
    program.push(plain(RETURN, KILL_THREAD));
    if program.len() > MAX_INSTRUCTIONS {
        return Err(format!(
            "its filter needs {} instructions, and the kernel accepts {MAX_INSTRUCTIONS}",
            program.len()
        ));
    }
    let pack = |one: Instruction| {
        u64::from(one.code)
            | u64::from(one.if_true) << 16
            | u64::from(one.if_false) << 24
            | u64::from(one.value) << 32
    };
    Ok(SeccompConfig { flags: profile.flags, program: program.into_iter().map(pack).collect() })
}

/// Returns what is done with each number. `x32` is whether the profile allows x32, if the processor has it.
fn segments<'a>(profile: &'a Profile, abi: &Abi, x32: Option<bool>) -> Vec<Segment<'a>> {
    let rules_of = |call: usize| {
        let first = profile.rules.partition_point(|rule| rule.call < call);
        let count = profile.rules[first..].partition_point(|rule| rule.call == call);
        &profile.rules[first..first + count]
    };
    // By number, without the code of a sort. The numbers from `FIRST_OF_ARM` on follow the others.
    let mut places: [&[Rule]; 2 * PLACES as usize] = [&[]; 2 * PLACES as usize];
    for call in 0..COUNT {
        let number = table::number(abi.numbers, call);
        let place =
            number.map(|number| if number < FIRST_OF_ARM { number } else { PLACES + number - FIRST_OF_ARM });
        if let Some(place) = place.and_then(|place| places.get_mut(place as usize)) {
            *place = rules_of(call);
        }
    }
    let numbers = (0..PLACES).chain(FIRST_OF_ARM..FIRST_OF_ARM + PLACES);
    let calls: Vec<(u32, &[Rule])> = numbers.zip(places).filter(|(_, rules)| !rules.is_empty()).collect();
    let allows = [ALLOW, LOG].contains(&profile.default) || profile.default & 0xffff_0000 == TRACE;
    let unknown = Outcome::Return(if allows { profile.default } else { ERRNO | ENOSYS });
    let default = Outcome::Return(profile.default);
    let mut segments = vec![Segment { first: 0, outcome: default }];
    let (calls, private) = calls.split_at(calls.partition_point(|(number, _)| *number < FIRST_OF_ARM));
    add(&mut segments, 0, calls, profile.default, unknown);
    if !private.is_empty() {
        add(&mut segments, FIRST_OF_ARM, private, profile.default, unknown);
    }
    match x32 {
        // Only this processor has x32.
        _ if !cfg!(any(test, target_arch = "x86_64")) => {}
        None => {}
        Some(true) => {
            let numbered = (FIRST_OF_X32..).zip(table::X32.split(' '));
            let mut calls: Vec<(u32, &[Rule])> = numbered
                .filter_map(|(number, name)| Some((number, rules_of(table::index_of(name)?))))
                .collect();
            calls.retain(|(_, rules)| !rules.is_empty());
            add(&mut segments, FIRST_OF_X32, &calls, profile.default, unknown);
        }
        Some(false) => push(&mut segments, X32_BIT, Outcome::Return(KILL_THREAD)),
    }
    segments
}

/// Adds the segments of system calls, sorted by their numbers, which are `first` and higher.
fn add<'a>(
    segments: &mut Vec<Segment<'a>>,
    first: u32,
    calls: &[(u32, &'a [Rule])],
    default: u32,
    unknown: Outcome<'a>,
) {
    let mut next = first;
    for (number, rules) in calls {
        push(segments, next, Outcome::Return(default));
        push(segments, *number, outcome(rules, default));
        next = number + 1;
    }
    push(segments, next, unknown);
}

/// Adds a segment, or extends the last one. A segment without numbers is replaced.
fn push<'a>(segments: &mut Vec<Segment<'a>>, first: u32, outcome: Outcome<'a>) {
    if segments.last().is_some_and(|last| last.first == first) {
        segments.pop();
    }
    let last = segments.last().map(|last| last.outcome);
    match (last, outcome) {
        (Some(Outcome::Return(last)), Outcome::Return(next)) if last == next => {}
        _ => segments.push(Segment { first, outcome }),
    }
}

/// As in libseccomp, rules with the default action have no effect, and one without conditions overrides the others.
fn outcome(rules: &[Rule], default: u32) -> Outcome<'_> {
    let mut effective = rules.iter().filter(|rule| rule.action != default).peekable();
    if effective.peek().is_none() {
        return Outcome::Return(default);
    }
    match effective.find(|rule| rule.conditions.is_empty()) {
        Some(rule) => Outcome::Return(rule.action),
        None => Outcome::Check(rules),
    }
}

/// Writes a binary search for the number.
fn search(segments: &[Segment<'_>], default: u32, is_wide: bool, program: &mut Vec<Instruction>) {
    let (lower, upper) = segments.split_at(segments.len() / 2);
    match (lower, upper) {
        ([], []) => program.push(plain(RETURN, default)),
        ([], [only, ..]) => match only.outcome {
            Outcome::Return(action) => program.push(plain(RETURN, action)),
            Outcome::Check(rules) => {
                for rule in rules.iter().filter(|rule| rule.action != default) {
                    check(rule, is_wide, program);
                }
                program.push(plain(RETURN, default));
            }
        },
        (_, [first, ..]) | ([first, ..], []) => {
            let mut below = Vec::new();
            search(lower, default, is_wide, &mut below);
            match u8::try_from(below.len()) {
                Ok(length) => program.push(jump(IF_GREATER_OR_EQUAL, first.first, length, 0)),
                Err(_) => {
                    program.push(jump(IF_GREATER_OR_EQUAL, first.first, 0, 1));
                    program.push(plain(JUMP, below.len() as u32));
                }
            }
            program.append(&mut below);
            search(upper, default, is_wide, program);
        }
    }
}

/// Stands for the place after a rule in its jumps.
const AFTER: u8 = u8::MAX;

/// Writes the conditions of a rule and its action. Where a condition is not met, the program goes on after the rule.
fn check(rule: &Rule, is_wide: bool, program: &mut Vec<Instruction>) {
    let first = program.len();
    for condition in &rule.conditions {
        compare(condition, is_wide, program);
    }
    program.push(plain(RETURN, rule.action));
    let after = program.len();
    for (at, instruction) in program.iter_mut().enumerate().skip(first) {
        // A rule has at most six conditions of seven instructions.
        let distance = (after - at - 1) as u8;
        for target in [&mut instruction.if_true, &mut instruction.if_false] {
            if *target == AFTER {
                *target = distance;
            }
        }
    }
}

/// Writes a comparison, which goes on with the next instruction if it holds.
fn compare(condition: &Condition, is_wide: bool, program: &mut Vec<Instruction>) {
    let low = ARGUMENTS + 8 * u32::from(condition.argument);
    let (upper, lower) = ((condition.value >> 32) as u32, condition.value as u32);
    let (strict, or_equal) = (IF_GREATER, IF_GREATER_OR_EQUAL);
    // The comparison of the lower half, and whether it must be false.
    let (code, negated) = match condition.operator {
        Operator::Equal | Operator::Masked(_) => (IF_EQUAL, false),
        Operator::NotEqual => (IF_EQUAL, true),
        Operator::Greater => (strict, false),
        Operator::GreaterOrEqual => (or_equal, false),
        Operator::Less => (or_equal, true),
        Operator::LessOrEqual => (strict, true),
    };
    if is_wide {
        program.push(plain(LOAD, low + 4));
        match condition.operator {
            Operator::Equal => program.push(jump(IF_EQUAL, upper, 0, AFTER)),
            Operator::Masked(mask) => {
                program.push(plain(AND, (mask >> 32) as u32));
                program.push(jump(IF_EQUAL, upper, 0, AFTER));
            }
            Operator::NotEqual => program.push(jump(IF_EQUAL, upper, 0, 2)),
            Operator::Greater | Operator::GreaterOrEqual => {
                program.push(jump(IF_GREATER, upper, 3, 0));
                program.push(jump(IF_EQUAL, upper, 0, AFTER));
            }
            Operator::Less | Operator::LessOrEqual => {
                program.push(jump(IF_GREATER, upper, AFTER, 0));
                program.push(jump(IF_EQUAL, upper, 0, 2));
            }
        }
    }
    program.push(plain(LOAD, low));
    if let Operator::Masked(mask) = condition.operator {
        program.push(plain(AND, mask as u32));
    }
    program.push(if negated { jump(code, lower, AFTER, 0) } else { jump(code, lower, 0, AFTER) });
}

#[cfg(test)]
mod tests;
