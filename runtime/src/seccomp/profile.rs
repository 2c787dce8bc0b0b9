//! Reads seccomp profiles from JSON, in the form of the OCI runtime specification or of Docker.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use nodlet_kernel::file::open_in;
use serde_json::Value;

use super::{
    ALLOW, Condition, EPERM, ERRNO, KILL_THREAD, LOG, Operator, Processor, Profile, Rule, TRACE, table,
};

/// The maximum size of a profile in bytes. Docker's own has 17 KiB.
const MAX_SIZE: u64 = 256 << 10;

/// The maximum number of rules; the kernel accepts no filter with so many different ones.
const MAX_RULES: usize = 4096;

const KILL_PROCESS: u32 = 0x8000_0000;
const TRAP: u32 = 0x0003_0000;

/// The names of actions, without `SCMP_ACT_`.
const ACTIONS: &[(&str, u32)] = &[
    ("ALLOW", ALLOW),
    ("ERRNO", ERRNO),
    ("KILL", KILL_THREAD),
    ("KILL_PROCESS", KILL_PROCESS),
    ("KILL_THREAD", KILL_THREAD),
    ("LOG", LOG),
    ("TRACE", TRACE),
    ("TRAP", TRAP),
];

/// The names of flags, without `SECCOMP_FILTER_FLAG_`. A process with one thread needs no TSYNC.
const FLAGS: &[(&str, u32)] = &[("TSYNC", 0), ("LOG", 2), ("SPEC_ALLOW", super::SPEC_ALLOW)];

/// Reads a profile for a container with these capabilities and a kernel of this version.
pub(super) fn parse(
    text: &[u8],
    capabilities: &[String],
    kernel: (u32, u32),
    processor: &Processor,
) -> Result<Profile, String> {
    let profile: Value = serde_json::from_slice(text).map_err(|error| format!("is not JSON: {error}"))?;
    if !profile.is_object() {
        return Err("is not a JSON object".to_owned());
    }
    let default = action(&profile, "defaultAction", &profile["defaultErrnoRet"], "")?;
    let architectures = architectures(&profile, processor)?;
    let has = |name: &str| architectures.contains(&name);
    let flags = match &profile["flags"] {
        Value::Null => super::SPEC_ALLOW,
        flags => list(flags, "flags")?.iter().try_fold(0, |all, flag| {
            let known = flag.as_str().and_then(|flag| flag.strip_prefix("SECCOMP_FILTER_FLAG_"));
            let found = FLAGS.iter().find(|(name, _)| Some(*name) == known);
            found.map(|(_, bit)| all | bit).ok_or_else(|| format!("flags: unsupported value {flag}"))
        })?,
    };
    let mut rules = Vec::new();
    for (number, call) in list(&profile["syscalls"], "syscalls")?.iter().enumerate() {
        let place = format!("syscalls[{number}].");
        let action = action(call, "action", &call["errnoRet"], &place)?;
        let alternatives = conditions(&call["args"], &place)?;
        if !applies(call, capabilities, kernel, processor.docker, &place)? {
            continue;
        }
        let names = list(&call["names"], &format!("{place}names"))?.iter().chain(call.get("name"));
        for name in names {
            let name = name.as_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| format!("{place}names: must be names of system calls"))?;
            // Profiles name the calls of all processors and of later kernels.
            let Some(call) = table::index_of(name) else { continue };
            for conditions in &alternatives {
                if rules.len() == MAX_RULES {
                    return Err(format!("syscalls: has more than {MAX_RULES} rules"));
                }
                let at = rules.partition_point(|rule: &Rule| rule.call <= call);
                rules.insert(at, Rule { call, action, conditions: conditions.clone() });
            }
        }
    }
    if rules.is_empty() && profile["syscalls"].as_array().is_some_and(|calls| !calls.is_empty()) {
        return Err("syscalls: names no system call that this processor has".to_owned());
    }
    Ok(Profile {
        default,
        rules,
        has_compat: processor.compat.as_ref().is_some_and(|abi| has(abi.name)),
        has_x32: has("X32"),
        flags,
    })
}

/// A list that may be missing.
fn list<'a>(value: &'a Value, field: &str) -> Result<&'a [Value], String> {
    match value {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        _ => Err(format!("{field}: must be a list")),
    }
}

fn action(owner: &Value, field: &str, errno: &Value, place: &str) -> Result<u32, String> {
    let name = owner[field].as_str().unwrap_or_default();
    let known = name.strip_prefix("SCMP_ACT_").unwrap_or_default();
    let Some((_, action)) = ACTIONS.iter().find(|(name, _)| *name == known) else {
        let names: Vec<&str> = ACTIONS.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        return Err(format!(
            "{place}{field}: unsupported value \"{name}\": it must be SCMP_ACT_ and one of {names}"
        ));
    };
    let data = match errno {
        Value::Null => EPERM,
        errno => errno
            .as_u64()
            .and_then(|errno| u16::try_from(errno).ok())
            .map(u32::from)
            .ok_or_else(|| format!("{place}{field}: its errno {errno} is not between 0 and 65535"))?,
    };
    Ok(if [ERRNO, TRACE].contains(action) { action | data } else { *action })
}

/// The ABIs of the profile, without `SCMP_ARCH_`; the native one is implied.
fn architectures<'a>(profile: &'a Value, processor: &Processor) -> Result<Vec<&'a str>, String> {
    let bare = |name: &'a Value| {
        let bare = name.as_str().and_then(|name| name.strip_prefix("SCMP_ARCH_"));
        bare.ok_or_else(|| format!("architectures: unsupported value {name}"))
    };
    let mut found = Vec::new();
    for name in list(&profile["architectures"], "architectures")? {
        found.push(bare(name)?);
    }
    for entry in list(&profile["archMap"], "archMap")? {
        if bare(&entry["architecture"])? == processor.native.name {
            for name in list(&entry["subArchitectures"], "archMap.subArchitectures")? {
                found.push(bare(name)?);
            }
        }
    }
    Ok(found)
}

/// The comparisons of arguments: any of the lists must be met as a whole. As in runc, comparisons are alternatives if
/// two are about the same argument.
fn conditions(arguments: &Value, place: &str) -> Result<Vec<Vec<Condition>>, String> {
    let mut all = Vec::new();
    let mut seen = 0u8;
    let mut repeats = false;
    for (number, argument) in list(arguments, &format!("{place}args"))?.iter().enumerate() {
        let wrong = |field: &str, why: &str| format!("{place}args[{number}].{field}: {why}");
        let number = |field: &str| match &argument[field] {
            Value::Null => Ok(0),
            value => value.as_u64().ok_or_else(|| wrong(field, "must be a number that is not negative")),
        };
        let place = u8::try_from(number("index")?).ok().filter(|index| *index < 6);
        let place = place.ok_or_else(|| wrong("index", "must be between 0 and 5"))?;
        let (mut value, two) = (number("value")?, number("valueTwo")?);
        let operator = match argument["op"].as_str().unwrap_or_default() {
            "SCMP_CMP_EQ" => Operator::Equal,
            "SCMP_CMP_NE" => Operator::NotEqual,
            "SCMP_CMP_GT" => Operator::Greater,
            "SCMP_CMP_GE" => Operator::GreaterOrEqual,
            "SCMP_CMP_LT" => Operator::Less,
            "SCMP_CMP_LE" => Operator::LessOrEqual,
            "SCMP_CMP_MASKED_EQ" => Operator::Masked(std::mem::replace(&mut value, two)),
            other => return Err(wrong("op", &format!("unsupported value \"{other}\""))),
        };
        repeats |= seen & 1 << place != 0;
        seen |= 1 << place;
        all.push(Condition { argument: place, operator, value });
    }
    Ok(if repeats { all.into_iter().map(|one| vec![one]).collect() } else { vec![all] })
}

/// Whether an entry is for this container and machine: `includes` and `excludes` of Docker's profiles.
fn applies(
    call: &Value,
    capabilities: &[String],
    kernel: (u32, u32),
    processor: &str,
    place: &str,
) -> Result<bool, String> {
    let matches = |filter: &str, which: &str, found: &dyn Fn(&str) -> bool, all: bool| {
        let values = list(&call[filter][which], &format!("{place}{filter}.{which}"))?;
        let mut found = values.iter().map(|value| value.as_str().is_some_and(found));
        Ok::<bool, String>(if all { found.all(|found| found) } else { found.any(|found| found) })
    };
    let capability = |name: &str| capabilities.iter().any(|own| own == name);
    let architecture = |name: &str| name == processor;
    let since = |filter: &str| -> Result<Option<bool>, String> {
        let Some(version) = call[filter].get("minKernel") else { return Ok(None) };
        let parsed = version.as_str().and_then(|text| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        });
        let parsed = parsed.ok_or_else(|| format!("{place}{filter}.minKernel: must be like \"4.8\""))?;
        Ok(Some(kernel >= parsed))
    };
    let any = call["includes"]["arches"].as_array().is_some_and(|arches| !arches.is_empty());
    Ok(matches("includes", "caps", &capability, true)?
        && (!any || matches("includes", "arches", &architecture, false)?)
        && since("includes")? != Some(false)
        && !matches("excludes", "caps", &capability, false)?
        && !matches("excludes", "arches", &architecture, false)?
        && since("excludes")? != Some(true))
}

/// A profile's file, as it was read.
pub(crate) struct ProfileFile {
    pub(super) path: PathBuf,
    pub(super) text: io::Result<Vec<u8>>,
    /// Major and minor version of the running kernel.
    pub(super) kernel: (u32, u32),
}

impl ProfileFile {
    /// Reads the file with this name below the directory of profiles.
    pub(crate) fn read(directory: &Path, name: &str) -> ProfileFile {
        ProfileFile { path: directory.join(name), text: read(directory, name), kernel: kernel() }
    }
}

/// Reads the file of a profile below its directory. A link may lead to another file of the directory, but not out of it.
///
/// # Errors
/// The file is missing, outside of the directory, no regular file, or larger than [`MAX_SIZE`].
fn read(directory: &Path, name: &str) -> io::Result<Vec<u8>> {
    let directory = File::open(directory)?;
    // A FIFO must not block the storage thread.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let file = open_in(&directory, name, flags, resolve).map_err(|error| match error {
        Errno::EXDEV => io::Error::other("it is outside of the directory of profiles"),
        error => error.into(),
    })?;
    let file = File::from(file);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if metadata.len() > MAX_SIZE {
        return Err(io::Error::other(format!("it has more than {MAX_SIZE} bytes")));
    }
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns major and minor version of the running kernel; 0.0 if it does not tell.
fn kernel() -> (u32, u32) {
    let uname = nix::sys::utsname::uname();
    let release = uname.as_ref().ok().and_then(|uname| uname.release().to_str()).unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}
