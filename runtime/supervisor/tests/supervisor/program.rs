//! The program in the tests' containers: this same static binary, whose arguments are operations to be
//! performed one after the other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;

/// Performs each `op` or `op=value` in order; exits with 0 after the last one.
pub(crate) fn run(args: impl Iterator<Item = String>) -> ! {
    for arg in args {
        let (op, value) = arg.split_once('=').unwrap_or((&arg, ""));
        perform(op, value);
    }
    std::process::exit(0)
}

fn perform(op: &str, value: &str) {
    match op {
        "out" => println!("{value}"),
        "err" => eprintln!("{value}"),
        "part" => {
            print!("{value}");
            std::io::stdout().flush().expect("stdout is a pipe");
        }
        "cat" => match std::fs::read_to_string(value) {
            Ok(text) => print!("{text}"),
            Err(error) => println!("{value}: {error}"),
        },
        "link" => match std::fs::read_link(value) {
            Ok(target) => println!("{}", target.display()),
            Err(error) => println!("{value}: {error}"),
        },
        "ls" => {
            let mut names: Vec<String> = std::fs::read_dir(value)
                .map(|entries| {
                    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
                })
                .unwrap_or_else(|error| vec![error.to_string()]);
            names.sort();
            println!("{}", names.join(" "));
        }
        "write" => {
            let (path, text) = value.split_once(':').expect("write=path:text");
            match std::fs::OpenOptions::new().append(true).create(true).open(path) {
                Ok(mut file) => match file.write_all(text.as_bytes()) {
                    Ok(()) => println!("wrote {path}"),
                    Err(error) => println!("{path}: {error}"),
                },
                Err(error) => println!("{path}: {error}"),
            }
        }
        // With truncation the kernel checks whether the mount is read-only before it checks whether the file
        // is executed.
        "overwrite" => match std::fs::OpenOptions::new().write(true).truncate(true).open(value) {
            Ok(_) => println!("overwrote {value}"),
            Err(error) => println!("{value}: {error}"),
        },
        // Attacks every process of nodlet that can be seen, until the file exists; then again after they have
        // ended.
        "attack" => attack(Path::new(value)),
        "mount" => {
            let flags = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("test"), value, Some("tmpfs"), flags, None::<&str>).expect("it may mount");
        }
        "echo" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).expect("stdin is readable");
            print!("{text}");
        }
        "line" => {
            let mut text = String::new();
            std::io::stdin().read_line(&mut text).expect("stdin is readable");
            print!("{text}");
        }
        "flood" => {
            let (lines, length) = value.split_once('x').expect("flood=lines x length");
            let fill = "x".repeat(length.parse().expect("a length"));
            let mut out = std::io::stdout().lock();
            for number in 0..lines.parse::<u64>().expect("a number of lines") {
                writeln!(out, "{number} {fill}").expect("stdout is a pipe");
            }
        }
        "env" => println!("{}", std::env::var(value).unwrap_or_else(|_| format!("no {value}"))),
        "cwd" => println!("{}", std::env::current_dir().expect("there is one").display()),
        "hostname" => println!("{}", nix::unistd::gethostname().expect("there is one").to_string_lossy()),
        "tty" => println!("{}", std::io::IsTerminal::is_terminal(&std::io::stdin())),
        "fds" => {
            let mut fds: Vec<i32> = std::fs::read_dir("/proc/self/fd")
                .expect("/proc is there")
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .collect();
            fds.sort_unstable();
            // The last descriptor is that of the directory.
            fds.pop();
            println!("{fds:?}");
        }
        "term" => {
            // SAFETY: the handler makes one system call and does not return.
            unsafe {
                let handler = nix::sys::signal::SigHandler::Handler(on_term);
                nix::sys::signal::signal(nix::sys::signal::Signal::SIGTERM, handler)
                    .expect("SIGTERM can be handled");
            }
        }
        "raise" => {
            let signal: i32 = value.parse().expect("a number");
            // SAFETY: no pointers.
            unsafe { libc::raise(signal) };
        }
        // SAFETY: the child has one thread and executes nothing that another thread has locked.
        "fork" => match unsafe { nix::unistd::fork() }.expect("one more process") {
            nix::unistd::ForkResult::Child => {
                if value == "setsid" {
                    nix::unistd::setsid().expect("a new process leads no group");
                }
                if value == "spam" {
                    // Faster than any reader.
                    let lines = "spam\n".repeat(10_000);
                    println!("spam");
                    fs::write("/spamming", "").expect("the root can be written to");
                    while std::io::stdout().write_all(lines.as_bytes()).is_ok() {}
                }
                loop {
                    nix::unistd::pause();
                }
            }
            nix::unistd::ForkResult::Parent { .. } => {}
        },
        "listen" => {
            let listener =
                std::net::TcpListener::bind(("0.0.0.0", value.parse().expect("a port"))).expect("it is free");
            println!("listening");
            std::thread::spawn(move || {
                for connection in listener.incoming().flatten() {
                    let _ = (&connection).write_all(b"hello");
                }
            });
        }
        "connect" => {
            let text = std::net::TcpStream::connect(value).and_then(|mut stream| {
                let mut text = String::new();
                stream.read_to_string(&mut text)?;
                Ok(text)
            });
            println!("{}", text.unwrap_or_else(|error| error.to_string()));
        }
        // Examines every process that can be seen, until the file exists: does it have more rights than this
        // one?
        "hunt" => crate::hunt::hunt(Path::new(value)),
        "keyring" => {
            const KEYCTL_GET_KEYRING_ID: libc::c_int = 0;
            const KEY_SPEC_SESSION_KEYRING: libc::c_int = -3;
            // SAFETY: no pointers.
            let id = unsafe {
                libc::syscall(libc::SYS_keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)
            };
            println!("{id}");
        }
        "rename" => {
            let (from, to) = value.split_once(':').expect("rename=from:to");
            println!(
                "{}",
                fs::rename(from, to).map_or_else(|error| error.to_string(), |()| "renamed".into())
            );
        }
        "symlink" => {
            let (target, link) = value.split_once(':').expect("symlink=target:link");
            let made = std::os::unix::fs::symlink(target, link);
            println!("{}", made.map_or_else(|error| error.to_string(), |()| "linked".into()));
        }
        "mkdir" => {
            let made = fs::create_dir_all(value);
            println!("{}", made.map_or_else(|error| error.to_string(), |()| "made".into()));
        }
        "msgget" => {
            // SAFETY: no pointers.
            let found = unsafe { libc::msgget(value.parse().expect("a key"), 0) };
            println!("{}", if found < 0 { "no queue" } else { "queue" });
        }
        "msgmake" => {
            // SAFETY: no pointers.
            unsafe { libc::msgget(value.parse().expect("a key"), libc::IPC_CREAT | 0o666) };
        }
        "wait" => loop {
            nix::unistd::pause();
        },
        "until" => {
            while std::fs::metadata(value).is_err() {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        "exit" => std::process::exit(value.parse().expect("a code")),
        other => {
            eprintln!("unknown: {other}");
            std::process::exit(99);
        }
    }
}

/// Tries to open the binary of every process of nodlet for writing, until the file `stop` exists; then again
/// through a descriptor of the binary that was opened while the process lived.
fn attack(stop: &Path) {
    let writable = |path: &str| fs::OpenOptions::new().write(true).truncate(true).open(path).map(drop);
    let mut held = BTreeMap::new();
    let mut tried = BTreeMap::<String, u32>::new();
    let mut binary = None;
    println!("attacking");
    while !stop.exists() {
        for process in fs::read_dir("/proc").expect("/proc is there").flatten() {
            let process = process.path();
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned();
            // Only processes with these names: this process may write to many other files of this machine.
            if !name.starts_with("nodlet:") && !name.starts_with("youki:") {
                continue;
            }
            let exe = process.join("exe").display().to_string();
            match writable(&exe) {
                Ok(()) => println!("OVERWROTE {name}"),
                Err(error) if error.raw_os_error() == Some(libc::EROFS) => {
                    *tried.entry(name.clone()).or_default() += 1;
                    let Ok(file) = fs::File::open(&exe) else { continue };
                    // The process may have executed the container's own program since, which may be written
                    // to.
                    let opened = identity(&file);
                    if name == "nodlet:super" {
                        binary = Some(opened);
                    }
                    if held.len() < 200 && binary == Some(opened) {
                        held.insert(exe, (name, file));
                    }
                }
                // The process has ended meanwhile, or has executed the container's own program.
                Err(_) => {}
            }
        }
    }
    assert!(held.values().any(|(name, _)| name != "nodlet:super"), "held nothing but a supervisor's");
    for (name, file) in held.values() {
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        if writable(&path).is_ok() {
            println!("OVERWROTE {name} after its end");
        }
    }
    println!("{}", tried.keys().cloned().collect::<Vec<_>>().join(" "));
}

/// Identifies a file, independently of the mount.
fn identity(file: &fs::File) -> (u64, u64) {
    let file = file.metadata().expect("it is open");
    (std::os::unix::fs::MetadataExt::dev(&file), std::os::unix::fs::MetadataExt::ino(&file))
}

extern "C" fn on_term(_: i32) {
    // SAFETY: always allowed.
    unsafe { libc::_exit(42) }
}
