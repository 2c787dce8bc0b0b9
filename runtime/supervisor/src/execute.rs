//! The last step of every process in a container: find the file and execute it, or report the reason in
//! runc's words.

use std::borrow::Cow;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nodlet_kernel::signal;
use rustix::fs::{Access, AtFlags, CWD};

use nodlet_core::spec::container::CAPABILITIES;
use nodlet_host::launch::ProcessConfig;

/// `PATH` of a container without one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The names of capabilities.
pub(super) fn capability_names(bits: u64) -> Vec<String> {
    let named = CAPABILITIES.iter().enumerate().filter(|(number, _)| bits & (1 << number) != 0);
    named.map(|(_, name)| format!("CAP_{name}")).collect()
}

/// The bits of capabilities, as in system calls.
pub(super) fn capability_bits(names: &[impl AsRef<str>]) -> u64 {
    let number = |name: &str| CAPABILITIES.iter().position(|known| name.strip_prefix("CAP_") == Some(*known));
    names.iter().filter_map(|name| number(name.as_ref())).fold(0, |bits, number| bits | 1 << number)
}

/// A program to execute, with arguments and environment.
#[derive(Clone)]
pub(super) struct Execute {
    args: Vec<CString>,
    env: Vec<CString>,
    path: String,
    /// The text that messages show in place of the program, if its name is a value of a Secret.
    shown: Option<Box<str>>,
}

impl Execute {
    /// The program of `process`. `home` is used if the environment has no `HOME`, and a usual `TERM` with a terminal.
    pub(super) fn new(process: &ProcessConfig, home: &str, has_terminal: bool) -> Execute {
        let execute = Execute::with_args(process, &process.args, home, has_terminal);
        Execute { shown: process.program_shown.clone(), ..execute }
    }

    /// A program with other arguments in the environment of `process`.
    pub(super) fn with_args(
        process: &ProcessConfig,
        args: &[String],
        home: &str,
        has_terminal: bool,
    ) -> Execute {
        let value =
            |name: &str| process.env.iter().rev().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let path = value("PATH").unwrap_or(DEFAULT_PATH).to_owned();
        let mut env = process.env.clone();
        if value("PATH").is_none() {
            env.push(format!("PATH={DEFAULT_PATH}"));
        }
        if has_terminal && value("TERM").is_none() {
            env.push("TERM=xterm".to_owned());
        }
        if value("HOME").is_none() {
            env.push(format!("HOME={home}"));
        }
        // A text with a NUL cannot be passed on; admission rejects it, and here it is dropped.
        let strings =
            |list: &[String]| list.iter().filter_map(|text| CString::new(text.as_bytes()).ok()).collect();
        Execute { args: strings(args), env: strings(&env), path, shown: None }
    }

    /// Executes the program; returns only on failure, with the reason.
    pub(super) fn run(&self) -> String {
        let Some(name) = self.args.first() else { return "exec: no command".to_owned() };
        if name.is_empty() {
            // runc's words, and what is wrong.
            return "exec: \"\": executable file not found in $PATH: the first word of the command (command[0], or args[0] \
                    without a command) is empty"
                .to_owned();
        }
        let text = self.shown.as_deref().map_or_else(|| name.to_string_lossy(), Cow::Borrowed);
        let file = match find(name, &self.path) {
            Ok(file) => file,
            Err(NotFound::InPath) => return format!("exec: \"{text}\": executable file not found in $PATH"),
            Err(NotFound::Stat(error)) => return format!("exec: \"{text}\": stat {text}: {}", words(error)),
            Err(NotFound::Permission(file)) => {
                return format!("exec: \"{text}\": permission denied{}", why_denied(&file));
            }
            Err(NotFound::IsDirectory) => return format!("exec: \"{text}\": is a directory"),
        };
        reset_signals();
        let Err(error) = nix::unistd::execve(&file, &self.args, &self.env);
        let shown = self.shown.as_deref().map_or_else(|| file.to_string_lossy(), Cow::Borrowed);
        let why = if error == Errno::EACCES { why_denied(&file) } else { "" };
        format!("exec {shown}: {}{why}", words(error))
    }
}

enum NotFound {
    InPath,
    Stat(Errno),
    Permission(CString),
    IsDirectory,
}

fn find(name: &CStr, path: &str) -> Result<CString, NotFound> {
    let bytes = name.to_bytes();
    if bytes.contains(&b'/') {
        let metadata = std::fs::metadata(OsStr::from_bytes(bytes))
            .map_err(|error| NotFound::Stat(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EINVAL))))?;
        if metadata.is_dir() {
            return Err(NotFound::IsDirectory);
        }
        return if is_executable(name) {
            Ok(name.to_owned())
        } else {
            Err(NotFound::Permission(name.to_owned()))
        };
    }
    let mut found_other = None;
    for directory in path.split(':') {
        let directory = if directory.is_empty() { "." } else { directory };
        let file: PathBuf = Path::new(directory).join(OsStr::from_bytes(bytes));
        let Ok(file_name) = CString::new(file.as_os_str().as_bytes()) else { continue };
        match std::fs::metadata(&file) {
            Ok(metadata) if metadata.is_file() && is_executable(&file_name) => return Ok(file_name),
            Ok(metadata) if metadata.is_file() => found_other = Some(NotFound::Permission(file_name)),
            Ok(_) | Err(_) => {}
        }
    }
    Err(found_other.unwrap_or(NotFound::InPath))
}

/// Why a file cannot be executed, for the end of a message: the user has to change the file, or the mount.
fn why_denied(file: &CStr) -> &'static str {
    use nix::sys::statvfs::{FsFlags, statvfs};
    use std::os::unix::fs::PermissionsExt as _;
    let mode =
        std::fs::metadata(OsStr::from_bytes(file.to_bytes())).map(|metadata| metadata.permissions().mode());
    if statvfs(file).is_ok_and(|found| found.flags().contains(FsFlags::ST_NOEXEC)) {
        return ": its file system is mounted noexec";
    }
    match mode {
        Ok(mode) if mode & 0o111 == 0 => ": the file has no x bit (chmod +x)",
        Ok(_) if !is_executable(file) => ": the file has no x bit for the user of the process",
        Ok(_) => ": the interpreter or loader that the file names cannot be executed",
        Err(_) => "",
    }
}

fn is_executable(file: &CStr) -> bool {
    rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// The kernel's error text in lower case, as Go prints it.
fn words(error: Errno) -> String {
    let mut text = error.desc().to_owned();
    if let Some(first) = text.get_mut(0..1) {
        first.make_ascii_lowercase();
    }
    text
}

/// Resets signal settings that would be inherited: Rust ignores SIGPIPE, and the supervisor blocks SIGCHLD.
/// Signals that the agent's caller ignores are reset earlier, by [`reset_ignored_signals`].
fn reset_signals() {
    let _ = signal::reset(libc::SIGPIPE);
    signal::unblock_all();
}

/// Resets all signals that the supervisor's caller ignores, so that containers do not inherit that. The
/// supervisor calls it first. SIGPIPE stays ignored, since the supervisor ignores it itself.
pub(super) fn reset_ignored_signals() {
    let ignored = ignored_signals().unwrap_or(u64::MAX);
    for number in (1..=64).filter(|number| *number != libc::SIGPIPE && ignored & 1 << (number - 1) != 0) {
        // The kernel refuses it for SIGKILL and SIGSTOP.
        let _ = signal::reset(number);
    }
}

/// The signals that this process ignores, as bits. Reading one file replaces 64 calls of `sigaction`.
fn ignored_signals() -> Option<u64> {
    let mut status = [0; 4096];
    let length = File::open("/proc/self/status").ok()?.read(&mut status).ok()?;
    let text = std::str::from_utf8(status.get(..length)?).ok()?;
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(ignored.trim(), 16).ok()
}
