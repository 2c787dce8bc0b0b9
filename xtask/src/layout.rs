//! Writes the lists in `xtask/layout`, which determine the order of code in a binary for boards
//! (`linker_script.rs`): first the functions that an agent without pods executes, then those that the start of pods
//! adds, then those of probes, restarts and clients, then those of a supervisor, and at the end all others, which are
//! most of the code.
//!
//! The kernel maps a file in chunks of at least 64 KiB around each page that is touched. With functions in
//! their original order, an agent that executes a tenth of the code would have nearly all of it in its
//! memory.
//!
//! Executed functions are detected by a breakpoint at the first byte of every function, which is removed when
//! it is hit, so that only the first call of each function is slower.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nodlet_tests::{Device, manifest};

use crate::cross::Folding;
use crate::linker_script::{self, Functions, LISTS, OUTLINED};
use crate::task::{Failure, Outcome, misused};
use crate::{cross, setup, targets};

/// The breakpoint instruction of x86-64: `int3`.
const BREAKPOINT: u8 = 0xcc;

/// The addresses of the functions of each list.
type Executed = [Vec<u64>; LISTS.len()];

/// The time without newly executed functions after which everything that was started has settled.
const QUIET: Duration = Duration::from_secs(2);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    if !arguments.is_empty() {
        return Err(misused("layout"));
    }
    setup::require_root()?;
    let target = targets::get("x86_64-unknown-linux-musl")?;
    let program = cross::link(target, Folding::Off)?;
    let functions = functions(&fs::read_to_string(cross::map_of(target, Folding::Off)?)?)?;
    let executed = observe(&program, &functions)?;

    let mut others: BTreeMap<u64, &str> =
        functions.iter().map(|(address, function)| (*address, function.name.as_str())).collect();
    let mut lists = Functions::default();
    for ((group, list), addresses) in LISTS.iter().zip(&mut lists).zip(&executed) {
        let bytes: u64 = addresses.iter().map(|address| functions[address].size).sum();
        println!("{}: {} functions, {bytes} bytes", group.0, addresses.len());
        others.retain(|address, _| !addresses.contains(address));
        let names = addresses.iter().map(|address| functions[address].name.as_str());
        for name in names.filter(|name| !fits(OUTLINED, name)) {
            if !list.iter().any(|pattern| fits(pattern, name)) {
                list.push(shortened(&pattern(name), &others));
            }
        }
    }
    linker_script::write(lists)
}

/// The number of patterns in `xtask/layout` that match no function of the binary built with them: these
/// functions were renamed or removed since, and their successors are not in any list.
pub(crate) fn stale(target: &targets::Target) -> Result<u64, Failure> {
    let map = fs::read_to_string(cross::map_of(target, Folding::On)?)?;
    let functions = functions(&map)?;
    let names = functions.values().map(|function| function.name.clone());
    let names: HashSet<String> = names.chain(symbols(&map)).collect();
    let lists = linker_script::read()?;
    let stale = lists.iter().flatten().filter(|pattern| !names.iter().any(|name| fits(pattern, name)));
    Ok(u64::try_from(stale.count())?)
}

/// The shortest beginning of a pattern that matches none of the other functions.
fn shortened(pattern: &str, others: &BTreeMap<u64, &str>) -> String {
    /// The step of lengths: a longer beginning stays unique even if somebody adds a similar function.
    const STEP: usize = 8;
    let beginnings = (STEP..pattern.len()).step_by(STEP).filter_map(|length| pattern.get(..length));
    beginnings
        .map(|beginning| format!("{}*", beginning.trim_end_matches('*')))
        .find(|beginning| !others.values().any(|other| fits(beginning, other)))
        .unwrap_or_else(|| pattern.to_owned())
}

/// Whether a name matches a pattern, in which `*` matches anything.
fn fits(pattern: &str, name: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// A function as placed by the linker.
struct Function {
    /// The name of the input section (`.text.` and the compiler's name) or of the input file.
    name: String,
    size: u64,
}

/// The functions in a linker's map, by address.
fn functions(map: &str) -> Result<BTreeMap<u64, Function>, Failure> {
    let mut functions = BTreeMap::new();
    for line in map.lines() {
        let Some((place, section)) = line.split_once(":(.text") else { continue };
        let mut words = place.split_whitespace();
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (Some(address), Some(_), Some(size), Some(_)) = (number(), number(), number(), number()) else {
            return Err(Failure(format!("the linker's map has a line without numbers: {line}")));
        };
        let file = words.next().unwrap_or_default();
        let file = file.rsplit_once('/').map_or(file, |(_, file)| file);
        let name = match section.trim_end_matches(')') {
            // The C library's assembly has a file for each function, in an archive.
            "" => file.trim_end_matches(')').replace('(', ":"),
            function => format!(".text{function}"),
        };
        if size > 0 {
            functions.insert(address, Function { name, size });
        }
    }
    if functions.is_empty() { Err("the linker's map names no functions".into()) } else { Ok(functions) }
}

/// The sections of all symbols in a linker's map, of functions that were folded into another too.
fn symbols(map: &str) -> impl Iterator<Item = String> {
    map.lines().filter_map(|line| Some(format!(".text.{}", line.split_whitespace().nth(4)?)))
}

/// A pattern that also matches the function in other builds. There the hashes of crates (`Cs…_`) and the back
/// references in names (`B…_`) differ, and so do the numbers that LLVM assigns to functions with the same
/// name (`.123`, `.llvm.123`).
fn pattern(name: &str) -> String {
    let mut pattern = String::new();
    let unnumbered = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let (mut rest, end) = match unnumbered.strip_suffix('.').filter(|_| unnumbered != name) {
        Some(unnumbered) => (unnumbered.trim_end_matches(".llvm"), "*"),
        None => (name, ""),
    };
    while let Some(first) = rest.chars().next() {
        let (skipped, most) = if rest.starts_with("Cs") { (2, 14) } else { (usize::from(first == 'B'), 3) };
        let hash = rest[skipped..].bytes().take_while(u8::is_ascii_alphanumeric).count();
        if skipped > 0 && hash <= most && rest[skipped + hash..].starts_with('_') {
            pattern.push_str(&rest[..skipped]);
            pattern.push_str("*_");
            rest = &rest[skipped + hash + 1..];
        } else {
            pattern.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    pattern + end
}

/// Runs pods with a breakpoint in every function. Returns the functions of each group in the order of their
/// first execution.
fn observe(program: &Path, functions: &BTreeMap<u64, Function>) -> Result<Executed, Failure> {
    // SAFETY: this program has one thread so far; nobody else reads the environment.
    unsafe { std::env::set_var("NODLET", program) };
    let device = Device::new();
    let mut agent = device.command(&["agent", "--pod-cidr", "10.86.250.0/24"]);
    // SAFETY: a system call, in a process that has just been forked.
    unsafe {
        agent.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let (group, hits, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let (sender, reported) = mpsc::channel();
    thread::scope(|scope| {
        // Only the thread that starts a traced process can trace it, so this thread starts it.
        let tracer = scope.spawn(|| Tracer::new(functions, &group, &hits).follow(agent, sender, &stop));
        let pid = reported.recv().map_err(|_| "the agent cannot be started")?;
        let quiet = || {
            let mut before = hits.load(Ordering::Relaxed);
            loop {
                thread::sleep(QUIET);
                let now = hits.load(Ordering::Relaxed);
                if now == std::mem::replace(&mut before, now) {
                    return;
                }
            }
        };
        device.wait_for("the agent's API", || tracer.is_finished() || device.get("/api/v1/pods").is_ok());
        if tracer.is_finished() {
            return tracer.join().map_err(|_| "the tracer panicked")?;
        }
        device.load_image(nodlet_tests::demo_archive());
        quiet();
        group.store(1, Ordering::Relaxed);
        for name in ["one", "two"] {
            device.write_manifest(&format!("{name}.yaml"), &manifest::pod(name, "sleep"));
            device.pod(name).wait_ready();
            quiet();
        }
        group.store(2, Ordering::Relaxed);
        let probe = "livenessProbe: {exec: {command: [/bin/demo, exit, \"0\"]}, periodSeconds: 1, timeoutSeconds: 60}";
        let containers = [manifest::container("app", "sleep", probe)];
        device.write_manifest("probed.yaml", &manifest::pod_of("probed", &containers, ""));
        device.write_manifest("ends.yaml", &manifest::pod("ends", "exit 1"));
        device.pod("probed").wait_ready();
        device.wait_for("a restart", || {
            device.pod("ends").events().iter().any(|event| event.starts_with("BackOff"))
        });
        quiet();
        for words in [["get", "pods"], ["get", "events"], ["describe", "pods"], ["logs", "probed"]] {
            device.nodlet(words).ok();
        }
        device.remove_manifest("ends.yaml");
        for manifest in ["probed.yaml", "one.yaml", "two.yaml"] {
            device.remove_manifest(manifest);
        }
        device.wait_for("no pods", || device.pods().is_empty());
        quiet();
        stop.store(true, Ordering::Relaxed);
        // The end of a traced process wakes the tracer.
        kill(pid, Signal::SIGKILL).map_err(|error| format!("failed to end the agent: {error}"))?;
        tracer.join().map_err(|_| "the tracer panicked")?
    })
}

/// Traces an agent and all its descendants. Each process that executes the binary has its own breakpoints,
/// which its forks inherit with its memory.
struct Tracer<'a> {
    functions: &'a BTreeMap<u64, Function>,
    group: &'a AtomicUsize,
    hits: &'a AtomicUsize,
    /// The first byte of each function, which a breakpoint replaces.
    first_bytes: HashMap<u64, u8>,
    supervisors: HashSet<i32>,
    executed: Executed,
    seen: HashSet<u64>,
}

impl<'a> Tracer<'a> {
    fn new(functions: &'a BTreeMap<u64, Function>, group: &'a AtomicUsize, hits: &'a AtomicUsize) -> Self {
        Self {
            functions,
            group,
            hits,
            first_bytes: HashMap::new(),
            supervisors: HashSet::new(),
            executed: Default::default(),
            seen: HashSet::new(),
        }
    }

    fn follow(
        mut self,
        mut agent: Command,
        sender: mpsc::Sender<Pid>,
        stop: &AtomicBool,
    ) -> Result<Executed, Failure> {
        let child = agent.spawn()?;
        let first = i32::try_from(child.id()).expect("a PID is an i32");
        let _ = sender.send(Pid::from_raw(first));
        let mut begun = false;
        loop {
            let mut status = 0;
            // SAFETY: `status` is a local variable; children of other threads are not waited for.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            if pid < 0 {
                return Ok(self.executed);
            }
            if !libc::WIFSTOPPED(status) {
                if pid == first && !stop.load(Ordering::Relaxed) {
                    return Err(Failure(format!("the agent ended: wait status {status:#x}")));
                }
                continue;
            }
            if !std::mem::replace(&mut begun, true) {
                let options = libc::PTRACE_O_TRACECLONE
                    | libc::PTRACE_O_TRACEFORK
                    | libc::PTRACE_O_TRACEVFORK
                    | libc::PTRACE_O_TRACEEXEC
                    | libc::PTRACE_O_EXITKILL;
                ptrace(libc::PTRACE_SETOPTIONS, pid, options as usize)?;
                self.arm(pid)?;
                ptrace(libc::PTRACE_CONT, pid, 0)?;
                continue;
            }
            let signal = libc::WSTOPSIG(status);
            let resumed = match status >> 16 {
                libc::PTRACE_EVENT_EXEC => self.executes(pid),
                0 if signal == libc::SIGTRAP && self.breakpoint(pid)? => ptrace(libc::PTRACE_CONT, pid, 0),
                // A new process or thread begins with a stop of its own.
                0 if signal == libc::SIGSTOP || signal == libc::SIGTRAP => ptrace(libc::PTRACE_CONT, pid, 0),
                0 => ptrace(libc::PTRACE_CONT, pid, usize::try_from(signal).expect("signals are positive")),
                _ => ptrace(libc::PTRACE_CONT, pid, 0),
            };
            // The process may have been killed meanwhile.
            let _ = resumed;
        }
    }

    /// Handles a process that has executed a program: nodlet again, as a supervisor, or another program.
    fn executes(&mut self, pid: i32) -> Outcome {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        if words.contains(&&b"supervisor"[..]) {
            self.supervisors.insert(pid);
            self.arm(pid)?;
            ptrace(libc::PTRACE_CONT, pid, 0)
        } else {
            ptrace(libc::PTRACE_DETACH, pid, 0)
        }
    }

    fn arm(&mut self, pid: i32) -> Outcome {
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        for address in self.functions.keys() {
            let mut first = [0];
            memory.read_exact_at(&mut first, *address)?;
            self.first_bytes.entry(*address).or_insert(first[0]);
            memory.write_all_at(&[BREAKPOINT], *address)?;
        }
        Ok(())
    }

    /// Whether a process has stopped at one of the breakpoints, which is then removed.
    fn breakpoint(&mut self, pid: i32) -> Result<bool, Failure> {
        // SAFETY: plain numbers, of which zeros are a value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills a structure of the size that it expects.
        if unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) } != 0 {
            return Ok(false);
        }
        let address = registers.rip.wrapping_sub(1);
        let Some(byte) = self.first_bytes.get(&address) else { return Ok(false) };
        let memory = File::options().write(true).open(format!("/proc/{pid}/mem"))?;
        memory.write_all_at(&[*byte], address)?;
        registers.rip = address;
        // SAFETY: the kernel reads a structure of the size that it expects.
        if unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const registers) } != 0 {
            return Err(io::Error::last_os_error().into());
        }
        let group = if self.supervisors.contains(&pid) {
            LISTS.len() - 1
        } else {
            self.group.load(Ordering::Relaxed)
        };
        if self.seen.insert(address) || group < 2 && self.executed[2].contains(&address) {
            self.executed[2].retain(|other| *other != address);
            self.executed[group].push(address);
            self.hits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }
}

fn ptrace(request: nodlet_tests::PtraceRequest, pid: i32, data: usize) -> Outcome {
    // SAFETY: none of the requests passed here makes the kernel write to this process's memory.
    match unsafe { libc::ptrace(request, pid, 0, data) } {
        -1 => Err(io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_leaves_out_what_differs_between_builds() {
        let name = ".text._RNvMNtCsiRxh7oXSeWI_5alloc6stringNtB2_6String4push.23";
        assert_eq!(pattern(name), ".text._RNvMNtCs*_5alloc6stringNtB*_6String4push*");
        assert_eq!(pattern(".text._RNvNtCsk_6nodlet4main.llvm.77"), ".text._RNvNtCs*_6nodlet4main*");
        assert_eq!(pattern(".text.__init_libc"), ".text.__init_libc");
        assert!(fits(&pattern(name), ".text._RNvMNtCsOther_5alloc6stringNtB15_6String4push"));
    }

    #[test]
    fn a_pattern_is_as_short_as_it_fits_no_other() {
        let others = BTreeMap::from([(1, ".text._RNvCs1_6nodlet5agent5bound"), (2, ".text.memcmp")]);
        let shortened = |pattern| shortened(pattern, &others);
        assert_eq!(shortened(".text._RNvCs*_6nodlet5agent4bind"), ".text._RNvCs*_6nodlet5agent4bind");
        assert_eq!(shortened(".text._RNvCs*_6nodlet4main4loop5begin"), ".text._RNvCs*_6nodlet4ma*");
        assert_eq!(shortened(".text.memcpy"), ".text.memcpy");
    }

    #[test]
    fn a_map_gives_functions_by_section_or_by_file_and_leaves_out_what_is_empty() {
        let map = "  2919c0 2919c0 16 16 .text\n\
                   2919c0 2919c0 16 16 /lib/crt1.o:(.text)\n\
                   2919d6 2919d6 74 1 /deps/nodlet.o:(.text._RNvCs1_6nodlet4main)\n\
                   2919d6 2919d6 0 1 _RNvCs1_6nodlet4main\n\
                   49ea3c 49ea3c 32 1 /lib/libc.a(memcpy.lo):(.text)\n\
                   49ea6e 49ea6e 0 1 /lib/libc.a(empty.lo):(.text)";
        let functions = functions(map).unwrap();
        let names: Vec<(u64, &str, u64)> =
            functions.iter().map(|(address, function)| (*address, &*function.name, function.size)).collect();
        assert_eq!(
            names,
            [
                (0x2919c0, "crt1.o", 0x16),
                (0x2919d6, ".text._RNvCs1_6nodlet4main", 0x74),
                (0x49ea3c, "libc.a:memcpy.lo", 0x32),
            ]
        );
        assert!(super::functions("an empty map").is_err());
    }
}
