//! Marks the objects that are being handled, so that the next agent knows in whose handling this one died, and keeps
//! those away that agents died of. Which these are is decided in the registry (`registry/src/set_aside.rs`).
//!
//! The marks are in a page of memory, which is a file of the run-time directory: a mark is two stores and no system call,
//! and the page outlives the agent, but not the boot. A death counts if its cause is in the agent: a signal of the
//! kernel, such as SIGSEGV, an abort, which a panic and an allocation that fails end in, or the kernel's OOM killer. A
//! signal of another process does not count, nor does a power cut, which takes the page along.
//!
//! `unsafe`: the handler of those signals gets a pointer of the kernel and restores the handler before it, such as that of
//! the standard library for an overflow of the stack, which `nix` cannot name.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use smol::lock::RwLock;

use nodlet_host::paths::Paths;
use nodlet_kernel::durable::{discard, replace_in_memory};
use nodlet_kernel::memory::Mapping;
use nodlet_kernel::own_file;
use nodlet_registry::{DEATHS, Handled, Suspects, Verdict};

/// Tasks that can be marked at once. Those beyond are handled without a mark.
const TASKS: usize = 253;

/// The maximum size of the file with the suspects, which has a bounded number of them.
const MAX_SUSPECTS: u64 = 64 << 10;

/// The maximum size of the kernel's log that is searched.
const MAX_LOG: usize = 16 << 20;

/// The signals that end a process because of what it did itself.
const OWN: [Signal; 7] = [
    Signal::SIGABRT,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGSEGV,
    Signal::SIGSYS,
    Signal::SIGTRAP,
];

nodlet_kernel::shared! {
    /// The page with the marks of one agent.
    struct Page {
        /// The boot and the version that the marks are of.
        of: AtomicU64,
        /// When the agent began, in microseconds of CLOCK_MONOTONIC.
        begun: AtomicU64,
        /// The agent's process.
        pid: AtomicU32,
        /// The signal that the agent died of by its own fault; zero if there was none.
        died: AtomicU32,
        /// What the loop itself handles.
        in_loop: Slot,
        /// What tasks handle.
        in_tasks: [Slot; TASKS],
    }
}

nodlet_kernel::shared! {
    /// One mark.
    #[derive(Default)]
    struct Slot {
        /// The number of the object; zero if the slot is free.
        object: AtomicU64,
        content: AtomicU64,
    }
}

impl Slot {
    fn set(&self, handled: Handled) {
        self.content.store(handled.content, Ordering::Relaxed);
        // A reader after the agent's death sees both or none.
        self.object.store(handled.object, Ordering::Release);
    }

    fn clear(&self) {
        self.object.store(0, Ordering::Release);
    }

    fn get(&self) -> Option<Handled> {
        let object = self.object.load(Ordering::Acquire);
        (object != 0).then(|| Handled { object, content: self.content.load(Ordering::Relaxed) })
    }
}

/// The page for the handler of signals.
static PAGE: OnceLock<&Page> = OnceLock::new();

/// The handlers of [`OWN`] before this one, such as that of the standard library for an overflow of the stack.
static BEFORE: OnceLock<[libc::sigaction; OWN.len()]> = OnceLock::new();

/// Keeps the mark of an object while it is handled.
#[must_use]
pub(crate) struct Mark {
    slot: Option<&'static Slot>,
    /// The object around this one, whose handling continues.
    before: Option<Handled>,
}

impl Mark {
    fn new(slot: Option<&'static Slot>, handled: Handled) -> Mark {
        let before = slot.and_then(Slot::get);
        if let Some(slot) = slot {
            slot.set(handled);
        }
        Mark { slot, before }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        match (self.slot, self.before) {
            (Some(slot), Some(before)) => slot.set(before),
            (Some(slot), None) => slot.clear(),
            (None, _) => {}
        }
    }
}

/// The marks of this agent, and the objects that earlier agents of this boot died of.
pub(crate) struct Handling {
    page: &'static Page,
    suspects: RefCell<Suspects>,
    /// The file with the suspects.
    file: PathBuf,
    of: u64,
    /// Held exclusively by a task that handles a suspect, and shared by each other one.
    together: RwLock<()>,
}

/// The file with the suspects.
#[derive(Serialize, Deserialize)]
struct SuspectsFile {
    of: u64,
    suspects: Suspects,
}

/// What an earlier agent left in its page.
#[derive(Debug, Default, PartialEq)]
struct PreviousMarks {
    begun: u64,
    pid: u32,
    died: u32,
    in_loop: Option<Handled>,
    in_tasks: Vec<Handled>,
}

impl Handling {
    /// Reads what the earlier agent left, and begins with marks of this one.
    pub(crate) fn begin(paths: &Paths, boot_id: &str) -> Handling {
        // Another version may have no fault with the object.
        let mut of = DefaultHasher::new();
        (boot_id, env!("CARGO_PKG_VERSION")).hash(&mut of);
        let (of, file) = (of.finish(), paths.suspects());
        let mut suspects = read_suspects(&file, of);
        let left = read_marks(&paths.marks(), of);
        let page = Page::create(&paths.marks(), of).unwrap_or_else(|error| {
            log::warn!(
                "failed to create {}: {error}; if the agent dies, the next one will not know what it handled",
                paths.marks().display()
            );
            Box::leak(Box::new(Page::new(of)))
        });
        watch(page);
        let died = left.and_then(|left| Some((cause(&left)?, left)));
        if let Some((cause, left)) = &died {
            log::error!("an agent before died ({cause}) while it handled an object");
            suspects.died(left.in_loop, &left.in_tasks);
        }
        let handling =
            Handling { page, suspects: RefCell::new(suspects), file, of, together: RwLock::new(()) };
        if died.is_some() {
            handling.save();
        }
        handling
    }

    /// Marks what the loop handles until the mark is dropped: one object at a time.
    pub(crate) fn in_loop(&self, handled: Handled) -> Mark {
        Mark::new(Some(&self.page.in_loop), handled)
    }

    /// Marks what the loop handles, unless it is set aside.
    ///
    /// # Errors
    /// The object is set aside.
    pub(crate) fn read(&self, handled: Handled) -> Result<Mark, String> {
        match self.suspects.borrow().verdict(handled) {
            // The loop does one thing at a time.
            Verdict::Handle | Verdict::HandleAlone => Ok(self.in_loop(handled)),
            Verdict::SetAside => Err(format!(
                "is set aside: the agent died {DEATHS} times while it handled this file. It is read again when its \
                 content changes, when it is applied again or removed and put back, and after a reboot"
            )),
        }
    }

    /// Carries out an action, which handles an object, unless that is set aside.
    ///
    /// # Errors
    /// The action failed, or what `refuse` makes of the reason why the object is set aside.
    pub(crate) async fn handle<T, E>(
        &self,
        handled: Handled,
        action: impl Future<Output = Result<T, E>>,
        refuse: impl FnOnce(String) -> E,
    ) -> Result<T, E> {
        let verdict = self.suspects.borrow().verdict(handled);
        let (_shared, _alone);
        match verdict {
            Verdict::Handle => _shared = self.together.read().await,
            Verdict::HandleAlone => _alone = self.together.write().await,
            Verdict::SetAside => {
                return Err(refuse(format!(
                    "the pod is set aside: the agent died {DEATHS} times while it prepared this pod. It is tried again \
                     when its manifest changes or is applied again, after `nodlet restart`, and after a reboot"
                )));
            }
        }
        let _mark = Mark::new(self.page.in_tasks.iter().find(|slot| slot.get().is_none()), handled);
        action.await
    }

    /// Forgets the deaths in the handling of an object, which somebody asks for. Returns whether there were any.
    pub(crate) fn release(&self, object: u64) -> bool {
        let is_suspect = self.suspects.borrow_mut().release(object);
        if is_suspect {
            self.save();
        }
        is_suspect
    }

    fn save(&self) {
        let suspects = std::mem::take(&mut *self.suspects.borrow_mut());
        let file = SuspectsFile { of: self.of, suspects };
        let bytes = serde_json::to_vec(&file).map_err(io::Error::from);
        let written = bytes.and_then(|bytes| replace_in_memory(&self.file, bytes));
        if let Err(error) = written {
            log::warn!("failed to write {}: {error}", self.file.display());
        }
        *self.suspects.borrow_mut() = file.suspects;
    }
}

impl Page {
    fn new(of: u64) -> Page {
        Page {
            of: of.into(),
            begun: now().into(),
            pid: std::process::id().into(),
            died: 0.into(),
            in_loop: Slot::default(),
            in_tasks: std::array::from_fn(|_| Slot::default()),
        }
    }

    /// Creates the file of the page in place of an earlier one, and maps it.
    fn create(path: &Path, of: u64) -> io::Result<&'static Page> {
        discard(path)?;
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        // The kernel has memory for all of it from now on: no store fails.
        file.write_all(&[0; size_of::<Page>()])?;
        const { assert!(size_of::<Page>() <= 4096, "one page of memory") };
        // A file that root shortens is root's fault.
        let page = Mapping::<Page>::of(file.as_fd())?.leak();
        page.begun.store(now(), Ordering::Relaxed);
        page.pid.store(std::process::id(), Ordering::Relaxed);
        page.of.store(of, Ordering::Release);
        Ok(page)
    }
}

/// Microseconds of CLOCK_MONOTONIC.
fn now() -> u64 {
    nodlet_host::clock::instant().0 / 1000
}

/// Records in the page when this process dies of a signal by its own fault.
fn watch(page: &'static Page) {
    if PAGE.set(page).is_err() {
        return;
    }
    // SAFETY: zero is a valid value of each field, and the default action.
    let mut before: [libc::sigaction; OWN.len()] = unsafe { std::mem::zeroed() };
    for (signal, before) in OWN.into_iter().zip(&mut before) {
        // SAFETY: reads into a value of the right type.
        unsafe { libc::sigaction(signal as i32, std::ptr::null(), before) };
    }
    if BEFORE.set(before).is_err() {
        return;
    }
    for signal in OWN {
        // SAFETY: zero is a valid value of each field.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = died as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler calls only functions that are safe in one, and has the type of `SA_SIGINFO`.
        unsafe { libc::sigaction(signal as i32, &action, std::ptr::null_mut()) };
    }
}

/// The handler of [`OWN`]: records the signal, if it is by this process's fault, and ends the process as without
/// this handler.
extern "C" fn died(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, whose sender is set if its code is not positive.
    let (is_of_kernel, sender) = unsafe { ((*info).si_code > 0, (*info).si_pid()) };
    // Forked processes have the page, too.
    let pid = std::process::id();
    if let Some(page) = PAGE.get()
        && page.pid.load(Ordering::Relaxed) == pid
        && (is_of_kernel || sender.cast_unsigned() == pid)
    {
        page.died.store(signal.cast_unsigned(), Ordering::Relaxed);
    }
    if is_of_kernel {
        // The fault happens again when this handler returns.
        let place = OWN.iter().position(|own| *own as i32 == signal);
        if let (Some(place), Some(before)) = (place, BEFORE.get()) {
            // SAFETY: installs what was installed before.
            unsafe { libc::sigaction(signal, &raw const before[place], std::ptr::null_mut()) };
        }
    } else {
        // The handler before would wait for a fault.
        nodlet_kernel::signal::die_of(signal);
    }
}

fn read_suspects(path: &Path, of: u64) -> Suspects {
    let file = own_file::open(path).ok().map(|file| file.take(MAX_SUSPECTS));
    let file = file.and_then(|file| serde_json::from_reader::<_, SuspectsFile>(BufReader::new(file)).ok());
    file.filter(|file| file.of == of).map(|file| file.suspects).unwrap_or_default()
}

/// What an agent of this boot and version left in its page, if it handled anything when it ended.
fn read_marks(path: &Path, of: u64) -> Option<PreviousMarks> {
    let file = own_file::open_with(path, OpenOptions::new().read(true).write(true)).ok()?;
    let page = Mapping::<Page>::of(file.as_fd()).ok()?;
    let left = PreviousMarks {
        begun: page.begun.load(Ordering::Relaxed),
        pid: page.pid.load(Ordering::Relaxed),
        died: page.died.load(Ordering::Relaxed),
        in_loop: page.in_loop.get(),
        in_tasks: page.in_tasks.iter().filter_map(Slot::get).collect(),
    };
    let is_any = left.in_loop.is_some() || !left.in_tasks.is_empty();
    (is_any && page.of.load(Ordering::Acquire) == of).then_some(left)
}

/// Why the agent that left this died, if that was its own fault.
fn cause(left: &PreviousMarks) -> Option<String> {
    if left.died != 0 {
        let signal = Signal::try_from(left.died.cast_signed());
        return Some(signal.map_or_else(|_| format!("signal {}", left.died), |signal| signal.to_string()));
    }
    kernel_log()
        .is_some_and(|log| is_oom_killed(&log, left.pid, left.begun))
        .then(|| "killed by the kernel, out of memory".to_owned())
}

/// The kernel's log; `None` where it cannot be read.
fn kernel_log() -> Option<Vec<u8>> {
    let mut log = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg").ok()?;
    let (mut all, mut record) = (Vec::new(), [0; 8192]);
    while all.len() < MAX_LOG {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(read) => all.extend_from_slice(&record[..read]),
            // Records were overwritten meanwhile; the next read returns the oldest that is there.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(_) => break,
        }
    }
    Some(all)
}

/// Whether the kernel's log says that the OOM killer killed this process, which began at this time, and not an earlier
/// process with its number, such as one of a container: numbers are reused. A record is a line whose text follows the first
/// `;`. Anybody can have the kernel log a text of theirs, such as the path of a mount, but not one that begins like these.
/// The name in the text does not count: it is that of the program's file, which a board may call as it likes.
fn is_oom_killed(log: &[u8], pid: u32, begun: u64) -> bool {
    // Nobody adjusts the log's clock. CLOCK_MONOTONIC is adjusted, by at most 500 in a million (adjtimex(2)), and the two
    // do not begin at the same moment.
    let earliest = begun.saturating_sub(begun / 1000 + 1_000_000);
    let mut texts = log.split(|byte| *byte == b'\n').filter_map(|line| {
        let (head, text) = line.split_at(memchr::memchr(b';', line)?);
        (recorded_at(head)? >= earliest).then(|| &text[1..])
    });
    let reasons =
        ["Out of memory", "Memory cgroup out of memory", "Out of memory (oom_kill_allocating_task)"];
    let beginnings = reasons.map(|reason| format!("{reason}: Killed process {pid} ("));
    texts.any(|text| beginnings.iter().any(|beginning| text.starts_with(beginning.as_bytes())))
}

/// The time of a record, in microseconds since the boot: the third of the numbers that it begins with
/// (Documentation/ABI/testing/dev-kmsg of the kernel).
fn recorded_at(head: &[u8]) -> Option<u64> {
    std::str::from_utf8(head.split(|byte| *byte == b',').nth(2)?).ok()?.parse().ok()
}

#[cfg(test)]
impl Handling {
    /// Marks that no other process sees, after agents died of these objects.
    pub(crate) fn after(suspects: Suspects) -> Handling {
        let page = Box::leak(Box::new(Page::new(0)));
        let file = std::env::temp_dir().join(format!("nodlet-suspects-{}.json", std::process::id()));
        Handling { page, suspects: RefCell::new(suspects), file, of: 0, together: RwLock::new(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_pod_that_an_agent_died_of_is_prepared_alone_and_after_the_second_death_not_at_all() {
        let (bad, other) = (Handled { object: 1, content: 1 }, Handled { object: 2, content: 2 });
        let mut suspects = Suspects::default();
        suspects.died(None, &[bad]);
        let handling = Handling::after(suspects);
        let alone = handling.handle(bad, std::future::pending::<Result<(), String>>(), |why| why);
        let mut alone = Box::pin(alone);
        let mut beside = Box::pin(handling.handle(other, std::future::ready(Ok(())), |why| why));
        smol::block_on(async {
            assert!(smol::future::poll_once(&mut alone).await.is_none());
            assert_eq!(handling.page.in_tasks[0].get(), Some(bad));
            assert!(smol::future::poll_once(&mut beside).await.is_none(), "it waits");
            drop(alone);
            assert_eq!(beside.await, Ok(()));
            assert_eq!(handling.page.in_tasks[0].get(), None);
            handling.suspects.borrow_mut().died(None, &[bad]);
            let refused = handling.handle(bad, std::future::ready(Ok(())), |why| why).await;
            assert!(refused.is_err_and(|why| why.contains("died 2 times")));
            assert!(handling.release(bad.object) && !handling.release(bad.object));
            assert_eq!(handling.handle(bad, std::future::ready(Ok(())), |why| why).await, Ok(()));
        });
        let _ = fs::remove_file(&handling.file);
    }

    #[test]
    fn the_marks_of_a_dead_agent_are_read_by_the_next_one_of_its_boot() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("marks");
        let before = now();
        let page = Page::create(&path, 7).unwrap();
        let begun = page.begun.load(Ordering::Relaxed);
        assert!((before..=now()).contains(&begun));
        let read = || read_marks(&path, 7);
        assert_eq!(read(), None, "nothing is handled");
        let (one, two) = (Handled { object: 1, content: 2 }, Handled { object: 3, content: 4 });
        let outer = Mark::new(Some(&page.in_loop), one);
        drop(Mark::new(Some(&page.in_loop), two));
        page.in_tasks[TASKS - 1].set(two);
        page.died.store(11, Ordering::Relaxed);
        let pid = std::process::id();
        let seen = PreviousMarks { begun, pid, died: 11, in_loop: Some(one), in_tasks: vec![two] };
        assert_eq!(cause(&seen).as_deref(), Some("SIGSEGV"));
        assert_eq!(read(), Some(seen));
        assert_eq!(read_marks(&path, 8), None, "another boot");
        drop(outer);
        assert_eq!(read().map(|left| left.in_loop), Some(None));
        fs::remove_file(&path).unwrap();
        fs::write(&path, [0; 12]).unwrap();
        assert_eq!(read_marks(&path, 0), None, "no page");
    }

    #[test]
    fn the_log_of_the_kernel_names_the_process_that_was_out_of_memory() {
        let log = b"3,1,2,-;Memory cgroup out of memory: Killed process 4711 (nodlet) total-vm:1kB\n";
        assert!(is_oom_killed(log, 4711, 2));
        assert!(!is_oom_killed(log, 471, 2) && !is_oom_killed(log, 711, 2));
        let whole = b"6,1,2,-;other\n SUBSYSTEM=x\n3,2,3,-;Out of memory: Killed process 4711 (nodlet) total-vm:1kB\n";
        assert!(is_oom_killed(whole, 4711, 2));
        // A path that somebody chose, and the name of a process that failed.
        let forged = b"3,1,2,-;overlayfs: failed to resolve '/;Out of memory: Killed process 4711 (x': -2\n\
            3,2,2,-;Out of memory[5]: segfault at 0 in x: Killed process 4711 (x[1]\n";
        assert!(!is_oom_killed(forged, 4711, 2));
    }

    #[test]
    fn an_earlier_process_with_the_number_of_the_agent_is_not_the_agent() {
        const HOUR: u64 = 3_600_000_000;
        let log = |at: u64| {
            format!("3,1,{at},-,caller=T1;Out of memory: Killed process 4711 (nodlet) total-vm:1kB\n")
        };
        for (recorded_at, expected) in [
            (0, false),
            (9 * HOUR, false),
            // The two clocks may differ by a second and a thousandth of the time since the boot, not by more.
            (10 * HOUR - HOUR / 100 - 1_000_001, false),
            (10 * HOUR - HOUR / 100 - 1_000_000, true),
            (10 * HOUR, true),
            (11 * HOUR, true),
        ] {
            assert_eq!(
                is_oom_killed(log(recorded_at).as_bytes(), 4711, 10 * HOUR),
                expected,
                "{recorded_at}"
            );
        }
        assert!(is_oom_killed(log(0).as_bytes(), 4711, 0), "an agent that began with the machine");
        assert!(!is_oom_killed(b"3,1;Out of memory: Killed process 4711 (nodlet)\n", 4711, 0), "no record");
    }
}
