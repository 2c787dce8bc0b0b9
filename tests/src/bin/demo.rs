//! The program in the containers of the tests, of `cargo xtask demo` and of the manifests in `examples/`: one
//! static program that does whatever a test needs to observe. `tests/src/image.rs` puts it into an image.
//!
//! Its arguments are steps, which are executed one after another and separated by the word `then`:
//!
//! ```text
//! demo wait /work/go then write /work/done yes then exit 3
//! ```
//!
//! As PID 1 of a container it would ignore SIGTERM by default, so it always has a handler: exit 0 at once,
//! unless `ignore-term` or `on-term` changes that. An error is one line on standard error and exit code 1.
//! [`STEPS`] lists the steps.

use std::ffi::CString;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicPtr, Ordering};
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

#[path = "demo/attack.rs"]
mod attack;
#[path = "../binary.rs"]
#[allow(unreachable_pub, reason = "in the library it is reached")]
mod binary;
#[path = "demo/calls.rs"]
mod calls;
#[path = "demo/can.rs"]
mod can;
#[path = "demo/cgroup.rs"]
mod cgroup;
#[path = "demo/effective.rs"]
mod effective;
#[path = "demo/http.rs"]
mod http;
#[path = "demo/ipc.rs"]
mod ipc;
#[path = "demo/views.rs"]
mod views;

const STEPS: &str = "\
demo STEP [then STEP]…

files    cat FILE · ls DIR · stat FILE · touch FILE · rm FILE · wait FILE
         spam-file FILE BYTES · write FILE TEXT [EVERY_SECONDS] · append FILE TEXT · lock FILE
         mkdir DIR · rename FROM TO · link TARGET FILE · fifo FILE · swap FILE FILE [REST [REST]] (for ever)
         views VOLUME FILE FILE READS CONTENTS (never torn, while the volume is updated)
output   print TEXT [EVERY_SECONDS] · eprint TEXT · ask TEXT (without an end of line) · spam BYTES · echo (copies its input)
         line BYTES (a long one) · binary BYTES (no text)
itself   env · id · status · realtime PRIORITY · effective [FILE] · hostname · cwd · args WORD… · tty · resized · sizes COLUMNSxROWS · clock [FILE]
         mounts
time     sleep [SECONDS] · exit CODE [AFTER_SECONDS] · fail-once FILE · abort · ignore-term
         on-term CODE [SECONDS [FILE]] (and waits for the file) · on-signal SIGNAL (as on SIGTERM) · ignore-signals (all that can be)
load     hog MIB · hog-once FILE MIB · forks COUNT · spin · child STEP (and waits for it) · leave STEP (and does not)
         daemon STEP (forked twice, in a session of its own)
attack   fill FILE · fill-inodes DIR (both take what becomes free) · bomb COUNT (that many processes, which all use the processor) · exhaust (as many as the kernel lets it)
         frame HEX (sent out of eth0 as it is) · calls (that a filter may forbid)
devices  mknod FILE MAJOR MINOR · mknod-block FILE MAJOR MINOR · open FILE
         devices MAJORS (which of them the filter lets pass) · ask-line FILE TEXT (and prints the answer)
         can-send INTERFACE IDENTIFIER TEXT · can-receive INTERFACE COUNT
mounts   mount TYPE SOURCE DIR [ro] · remount DIR (to write)
cgroups  writable DIR · rmdir DIR · wide-cgroups DIR COUNT · deep-cgroups DIR COUNT
network  serve PORT DIR · listen PORT · datagrams PORT · datagrams-of-both PORT · mirror ADDRESS:PORT · deaf ADDRESS:PORT · get URL · connect HOST:PORT
         send ADDRESS:PORT TEXT (a datagram) · resolve NAME (its addresses, as the C library finds them)
ipc      ipc sysv-make|sysv-has KEY · ipc posix-make|posix-has NAME
";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    on_term(finish_on_term);
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        eprint!("{STEPS}");
        return ExitCode::from(2);
    }
    for step in words.split(|word| word == "then") {
        if let Err(error) = run(step) {
            eprintln!("demo {}: {error}", step.join(" "));
            return ExitCode::from(1);
        }
    }
    ExitCode::SUCCESS
}

fn run(step: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = step.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["cat", file] => io::stdout().write_all(&fs::read(file)?)?,
        ["ls", dir] => {
            let mut names: Vec<String> = fs::read_dir(dir)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<_>>()?;
            names.sort();
            for name in names {
                println!("{name}");
            }
        }
        ["stat", file] => println!("{}", describe(Path::new(file))?),
        ["touch", file] => drop(fs::OpenOptions::new().create(true).append(true).open(file)?),
        ["rm", file] => fs::remove_file(file)?,
        ["wait", file] => {
            while fs::symlink_metadata(file).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        ["write", file, text] => fs::write(file, format!("{text}\n"))?,
        ["write", file, text, every] => repeat(seconds(every)?, |count| {
            fs::write(format!("{file}.new"), format!("{text} {count}\n"))?;
            fs::rename(format!("{file}.new"), file)
        })?,
        ["append", file, text] => fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)?
            .write_all(format!("{text}\n").as_bytes())?,
        ["spam-file", file, bytes] => fs::write(file, vec![b'x'; bytes.parse()?])?,
        ["lock", file] => lock(file)?,
        ["mkdir", dir] => fs::create_dir_all(dir)?,
        ["rename", from, to] => fs::rename(from, to)?,
        ["link", target, file] => std::os::unix::fs::symlink(target, file)?,
        ["fifo", file] => nix::unistd::mkfifo(*file, nix::sys::stat::Mode::from_bits_truncate(0o666))?,
        ["swap", one, other] => swap(one, other, [None, None])?,
        ["swap", one, other, rest] => swap(one, other, [Some(seconds(rest)?), None])?,
        ["swap", one, other, rest, swapped] => {
            swap(one, other, [Some(seconds(rest)?), Some(seconds(swapped)?)])?;
        }
        ["views", volume, one, other, reads, contents] => {
            views::views(Path::new(volume), [one, other], reads.parse()?, contents.parse()?)?;
        }
        ["print", text] => println!("{text}"),
        ["print", text, every] => repeat(seconds(every)?, |count| writeln!(io::stdout(), "{text} {count}"))?,
        ["eprint", text] => eprintln!("{text}"),
        ["ask", text] => print!("{text} "),
        ["spam", bytes] => spam(bytes.parse()?)?,
        ["line", bytes] => println!("{}", "x".repeat(bytes.parse()?)),
        ["binary", bytes] => io::stdout().write_all(&binary::binary(bytes.parse()?))?,
        ["echo"] => drop(io::copy(&mut io::stdin(), &mut io::stdout())?),
        ["env"] => std::env::vars().for_each(|(name, value)| println!("{name}={value}")),
        ["id"] => println!("{}", id()?),
        ["status"] => print!("{}", fs::read_to_string("/proc/self/status")?),
        ["calls"] => calls::calls(),
        ["realtime", priority] => calls::realtime(priority.parse()?),
        ["effective"] => print!("{}", effective::effective()?),
        ["effective", file] => fs::write(file, effective::effective()?)?,
        ["mounts"] => print!("{}", fs::read_to_string("/proc/self/mountinfo")?),
        ["hostname"] => println!("{}", nix::unistd::gethostname()?.to_string_lossy()),
        ["cwd"] => println!("{}", std::env::current_dir()?.display()),
        ["args", words @ ..] => words.iter().for_each(|word| println!("{word}")),
        ["tty"] => println!("{}", terminal()),
        ["resized"] => {
            let before = terminal();
            println!("{before}");
            while terminal() == before {
                std::thread::sleep(Duration::from_millis(10));
            }
            println!("{}", terminal());
        }
        ["sizes", last] => {
            let (mut shown, last) = (String::new(), format!("tty {last}"));
            while shown != last {
                if terminal() != shown {
                    shown = terminal();
                    println!("{shown}");
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        ["clock"] => println!("{}", clock()?),
        ["clock", file] => fs::write(file, format!("{}\n", clock()?))?,
        ["sleep"] => std::thread::sleep(Duration::MAX),
        ["sleep", time] => std::thread::sleep(seconds(time)?),
        ["exit", code] => std::process::exit(code.parse()?),
        ["exit", code, after] => {
            std::thread::sleep(seconds(after)?);
            std::process::exit(code.parse()?)
        }
        ["fail-once", file] => {
            if !Path::new(file).exists() {
                fs::write(file, "failed\n")?;
                return Err("for the first time".into());
            }
        }
        ["hog-once", file, mib] => {
            if !Path::new(file).exists() {
                fs::write(file, "tried\n")?;
                hog(mib.parse()?);
            }
        }
        ["deafened", command @ ..] => return Err(deafened(command)),
        ["abort"] => std::process::abort(),
        ["ignore-term"] => set_term(SigHandler::SigIgn),
        ["on-term", code, rest @ ..] => {
            TERM_CODE.store(code.parse()?, Ordering::Relaxed);
            if let [time, ..] = rest {
                TERM_SECONDS.store(time.parse()?, Ordering::Relaxed);
            }
            if let [_, file] = rest {
                // For the rest of the process, as the handler is.
                TERM_FILE.store(CString::new(*file)?.into_raw(), Ordering::Relaxed);
            }
        }
        ["on-signal", signal] => on_signal(signal.parse()?, SigHandler::Handler(finish_on_term)),
        ["ignore-signals"] => {
            let can_be = |signal: &Signal| !matches!(signal, Signal::SIGKILL | Signal::SIGSTOP);
            Signal::iterator().filter(can_be).for_each(|signal| on_signal(signal, SigHandler::SigIgn));
        }
        ["hog", mib] => hog(mib.parse()?),
        ["shared-memory", mib] => shared_memory(mib.parse()?)?,
        ["fill", file] => attack::fill(file)?,
        ["fill-inodes", dir] => attack::fill_inodes(dir)?,
        ["bomb", count] => attack::bomb(count.parse()?)?,
        ["exhaust"] => attack::exhaust()?,
        ["frame", digits] => attack::frame(digits)?,
        ["datagrams", port] => attack::datagrams("0.0.0.0", port.parse()?)?,
        ["datagrams-of-both", port] => attack::datagrams("::", port.parse()?)?,
        ["forks", count] => forks(count.parse()?)?,
        ["child", step @ ..] => println!("{}", Command::new("/proc/self/exe").args(step).status()?),
        ["leave", step @ ..] => drop(Command::new("/proc/self/exe").args(step).spawn()?),
        ["daemon", step @ ..] => daemon(step)?,
        ["rmdir", dir] => fs::remove_dir(dir)?,
        ["devices", majors] => cgroup::devices(majors.parse()?)?,
        ["writable", dir] => cgroup::writable(Path::new(dir))?,
        ["wide-cgroups", dir, count] => cgroup::wide(Path::new(dir), count.parse()?)?,
        ["deep-cgroups", dir, count] => cgroup::deep(Path::new(dir), count.parse()?)?,
        ["mount", kind, source, dir] => cgroup::mount_on(kind, source, Path::new(dir), false)?,
        ["mount", kind, source, dir, "ro"] => cgroup::mount_on(kind, source, Path::new(dir), true)?,
        ["remount", dir] => cgroup::remount(Path::new(dir))?,
        [how @ ("mknod" | "mknod-block"), file, major, minor] => {
            use nix::sys::stat::{Mode, SFlag, makedev, mknod};
            let device = makedev(major.parse()?, minor.parse()?);
            let kind = if *how == "mknod" { SFlag::S_IFCHR } else { SFlag::S_IFBLK };
            mknod(*file, kind, Mode::from_bits_truncate(0o666), device)?;
        }
        ["ask-line", file, text] => {
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = fs::OpenOptions::new();
            let mut file = options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(file)?;
            file.write_all(format!("{text}\n").as_bytes())?;
            let mut line = String::new();
            io::BufRead::read_line(&mut io::BufReader::new(file), &mut line)?;
            println!("{}", line.trim_end());
        }
        ["can-send", interface, identifier, text] => can::send(interface, identifier.parse()?, text)?,
        ["can-receive", interface, count] => can::receive(interface, count.parse()?)?,
        ["open", file] => drop(fs::File::open(file)?),
        ["spin"] => loop {
            std::hint::spin_loop();
        },
        ["serve", port, dir] => http::serve(port.parse()?, Path::new(dir))?,
        ["listen", port] => {
            for connection in TcpListener::bind(("0.0.0.0", port.parse()?))?.incoming() {
                drop(connection?);
            }
        }
        ["mirror", address] => {
            let listener = TcpListener::bind(address)?;
            println!("mirror");
            for connection in listener.incoming() {
                let mut connection = connection?;
                std::thread::spawn(move || {
                    let mut back = connection.try_clone()?;
                    io::copy(&mut connection, &mut back)?;
                    back.shutdown(std::net::Shutdown::Write)
                });
            }
        }
        ["deaf", address] => {
            let listener = TcpListener::bind(address)?;
            println!("deaf");
            // Connections are accepted but never read.
            let _held: Vec<_> = listener.incoming().collect();
        }
        ["get", url] => http::get(url)?,
        ["send", address, text] => {
            let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            std::net::UdpSocket::bind(any)?.send_to(text.as_bytes(), address)?;
        }
        ["resolve", name] => {
            let found = std::net::ToSocketAddrs::to_socket_addrs(&(*name, 0))?;
            let addresses: std::collections::BTreeSet<_> = found.map(|address| address.ip()).collect();
            addresses.iter().for_each(|address| println!("{address}"));
        }
        ["connect", address] => drop(std::net::TcpStream::connect(address)?),
        ["ipc", what, name] => ipc::run(what, name)?,
        _ => return Err(format!("no such step; there are:\n{STEPS}").into()),
    }
    io::stdout().flush()?;
    Ok(())
}

fn seconds(text: &str) -> Result<Duration, Failure> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

fn repeat(every: Duration, mut act: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
    for count in 0.. {
        act(count)?;
        std::thread::sleep(every);
    }
    Ok(())
}

/// Exchanges two files repeatedly, as fast as possible, until one of them is removed. It sleeps for the first of `rests`
/// whenever both are in their places, and for the second whenever they are exchanged.
fn swap(one: &str, other: &str, rests: [Option<Duration>; 2]) -> Result<(), Failure> {
    let (one, other) = (std::ffi::CString::new(one)?, std::ffi::CString::new(other)?);
    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_EXCHANGE);
    for rest in rests.iter().cycle() {
        if let Some(rest) = rest {
            std::thread::sleep(*rest);
        }
        // SAFETY: two C strings, which outlive the call.
        let done =
            unsafe { libc::syscall(libc::SYS_renameat2, here, one.as_ptr(), here, other.as_ptr(), flags) };
        if done < 0 {
            return Err(io::Error::last_os_error().into());
        }
    }
    Ok(())
}

/// Describes a file as `file 0644 0:0 12`, with the target of a link and the numbers of a device.
fn describe(path: &Path) -> io::Result<String> {
    let meta = fs::symlink_metadata(path)?;
    let kind = meta.file_type();
    let (kind, more) = if kind.is_symlink() {
        ("link", format!(" {}", fs::read_link(path)?.display()))
    } else if kind.is_dir() {
        ("dir", String::new())
    } else if kind.is_char_device() || kind.is_block_device() {
        let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
        (if kind.is_char_device() { "char" } else { "block" }, format!(" {major},{minor}"))
    } else if kind.is_fifo() {
        ("fifo", String::new())
    } else if kind.is_socket() {
        ("socket", String::new())
    } else {
        ("file", format!(" {}", meta.len()))
    };
    Ok(format!("{kind} {:04o} {}:{}{more}", meta.mode() & 0o7777, meta.uid(), meta.gid()))
}

/// Holds the lock until the program ends. A lock that is taken means that two runs of one container overlap,
/// which must never happen, so it is reported loudly.
fn lock(name: &str) -> Result<(), Failure> {
    let file = fs::OpenOptions::new().create(true).append(true).open(name)?;
    match file.try_lock() {
        Ok(()) => {
            std::mem::forget(file);
            Ok(())
        }
        Err(error) => {
            println!("TWO AT ONCE: the lock is held by another");
            // A log may be lost with its supervisor; this file is not.
            fs::write(format!("{name}.twice"), "TWO AT ONCE\n")?;
            Err(format!("two at once: {error}").into())
        }
    }
}

/// Writes numbered lines of 100 bytes, so that a reader notices a lost line. Writes as fast as the output
/// accepts, because that speed may be what a test measures.
fn spam(bytes: usize) -> io::Result<()> {
    const LINES: usize = 640;
    let mut out = io::stdout().lock();
    let lines = bytes.div_ceil(100);
    let mut block: Vec<u8> =
        (0..LINES).flat_map(|number| format!("{number:0>12} {:x>86}\n", "").into_bytes()).collect();
    for first in (0..lines).step_by(LINES) {
        let count = LINES.min(lines - first);
        for (number, line) in block.chunks_exact_mut(100).enumerate().take(count) {
            let mut rest = first + number;
            for digit in line[..12].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        out.write_all(&block[..count * 100])?;
    }
    out.flush()
}

fn id() -> Result<String, Failure> {
    let mut groups: Vec<u32> = nix::unistd::getgroups()?.iter().map(|group| group.as_raw()).collect();
    groups.sort_unstable();
    let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
    Ok(format!("uid={} gid={} groups={}", nix::unistd::geteuid(), nix::unistd::getegid(), groups.join(",")))
}

fn terminal() -> String {
    let size = || -> Option<libc::winsize> {
        let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: TIOCGWINSZ writes one winsize, and `size` is one that lives through the call.
        let done = unsafe { libc::ioctl(io::stdin().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
        (done == 0).then_some(size)
    };
    match (io::stdin().is_terminal(), size()) {
        (true, Some(size)) => format!("tty {}x{}", size.ws_col, size.ws_row),
        (true, None) => "tty".into(),
        (false, _) => "not a tty".into(),
    }
}

fn clock() -> Result<u128, Failure> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)?;
    Ok(Duration::from(now).as_nanos())
}

/// Allocates memory, and touches every page so that it is really used.
fn hog(mib: usize) {
    let mut held = Vec::new();
    for number in 0..mib {
        held.push(vec![number as u8 | 1; 1 << 20]);
    }
    println!("holding {} MiB", std::hint::black_box(&held).len());
    std::mem::forget(held);
}

/// Executes a program with some signals ignored and others blocked.
fn deafened(command: &[&str]) -> Failure {
    use nix::sys::signal::{Signal, signal};
    for name in ["CHLD", "HUP", "INT", "QUIT", "TERM", "PIPE", "USR1"] {
        let ignored: Signal = format!("SIG{name}").parse().expect("a signal's name");
        // SAFETY: ignoring a signal runs no handler.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
    // SAFETY: a set of signals that lives as long as the calls, which read and write nothing else.
    unsafe {
        let mut blocked = std::mem::zeroed();
        libc::sigemptyset(&raw mut blocked);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGUSR2, libc::SIGRTMIN()] {
            libc::sigaddset(&raw mut blocked, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const blocked, std::ptr::null_mut());
    }
    let words = command.iter().map(|word| std::ffi::CString::new(*word)).collect::<Result<Vec<_>, _>>();
    let words = words.expect("words without NUL");
    // The standard library is not used, because it would restore the signals.
    match nix::unistd::execv(&words[0], &words) {
        Ok(never) => match never {},
        Err(error) => error.into(),
    }
}

/// Creates System V segments, which outlive the process.
fn shared_memory(mib: usize) -> Result<(), Failure> {
    for _ in 0..mib {
        // SAFETY: a new segment of 1 MiB, attached wherever the kernel has room, and written within it.
        unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, 1 << 20, libc::IPC_CREAT | 0o600);
            let at = libc::shmat(segment, std::ptr::null(), 0);
            if segment < 0 || at as isize == -1 {
                return Err(io::Error::last_os_error().into());
            }
            at.cast::<u8>().write_bytes(1, 1 << 20);
        }
    }
    println!("sharing {mib} MiB");
    Ok(())
}

/// Starts children that left the session and the parent: a kill must still find them.
fn forks(count: usize) -> Result<(), Failure> {
    for _ in 0..count {
        let mut child = Command::new("/proc/self/exe");
        child.args(["ignore-term", "then", "sleep"]);
        // SAFETY: setsid is async-signal-safe and touches no memory of the parent.
        unsafe {
            child.pre_exec(|| {
                nix::unistd::setsid()?;
                Ok(())
            });
        }
        println!("child {}", child.spawn()?.id());
    }
    Ok(())
}

static TERM_CODE: AtomicI32 = AtomicI32::new(0);
static TERM_SECONDS: AtomicI64 = AtomicI64::new(0);
/// The name of the file that a process waits for before it ends.
static TERM_FILE: AtomicPtr<libc::c_char> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn finish_on_term(_: libc::c_int) {
    let wait = libc::timespec { tv_sec: TERM_SECONDS.load(Ordering::Relaxed) as _, tv_nsec: 0 };
    let file = TERM_FILE.load(Ordering::Relaxed);
    let pause = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    // SAFETY: write, nanosleep, access and _exit are async-signal-safe; the buffer is static, `wait` and `pause` live
    // here, and the name of the file is never freed.
    unsafe {
        let said = b"stopping\n";
        libc::write(1, said.as_ptr().cast(), said.len());
        libc::nanosleep(&raw const wait, std::ptr::null_mut());
        while !file.is_null() && libc::access(file, libc::F_OK) != 0 {
            libc::nanosleep(&raw const pause, std::ptr::null_mut());
        }
        libc::_exit(TERM_CODE.load(Ordering::Relaxed));
    }
}

fn on_term(handler: extern "C" fn(libc::c_int)) {
    set_term(SigHandler::Handler(handler));
}

fn set_term(handler: SigHandler) {
    on_signal(Signal::SIGTERM, handler);
}

/// Starts a daemon: the intermediate process ends, and its child has no parent and no session here.
fn daemon(step: &[&str]) -> io::Result<()> {
    let mut between = Command::new("/proc/self/exe");
    between.arg("leave").args(step);
    // SAFETY: setsid is async-signal-safe and touches no memory of the parent.
    unsafe {
        between.pre_exec(|| {
            nix::unistd::setsid()?;
            Ok(())
        });
    }
    between.status().map(drop)
}

fn on_signal(signal: Signal, handler: SigHandler) {
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler calls async-signal-safe functions only.
    unsafe { sigaction(signal, &action) }.expect("it can be handled");
}

/// Reads the rest of a stream.
fn read_all(mut stream: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    Ok(bytes)
}
