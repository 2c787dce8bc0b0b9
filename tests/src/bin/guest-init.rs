//! The first process of a guest (`cargo xtask guest`): sets up a machine in which the tests run as elsewhere,
//! executes the orders, reports how each ended, and turns the machine off, unless a test has already started
//! that. It decides nothing; `tests/src/guest.rs` defines the interface to the programs that do.
//!
//! In a guest with systemd, systemd becomes the first process as soon as the modules are loaded. It executes
//! the other orders as a service, which runs this program again.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MsFlags, mount};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use nodlet_tests::guest::{CGROUP_V1, CHOSEN, END, ORDERS, Part, SAYS, SYSTEMD, load_module};

type Failure = Box<dyn std::error::Error>;

fn main() {
    let done = match (std::process::id(), Path::new(SYSTEMD).exists()) {
        (1, false) => make_machine().and_then(|()| load()).and_then(|()| carry_out()),
        (1, true) => make_machine().and_then(|()| load()).and_then(|()| become_systemd()),
        (_, true) if nodlet_tests::guest::is_guest() => carry_out(),
        (_, true | false) => {
            eprintln!("this is the first process of a guest, which `cargo xtask guest` boots");
            std::process::exit(2);
        }
    };
    match done {
        Ok(()) => println!("\n{END}"),
        Err(error) => println!("\n{SAYS}failed to {error}"),
    }
    if is_being_turned_off() {
        return;
    }
    // SAFETY: no pointers; there is no disk, so nothing is left to write.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
}

/// Whether systemd is turning the machine off, at the request of a test.
fn is_being_turned_off() -> bool {
    let state = Command::new("systemctl").arg("is-system-running").stdin(Stdio::null()).output();
    state.is_ok_and(|output| output.stdout.trim_ascii() == b"stopping")
}

fn become_systemd() -> Result<(), Failure> {
    Err(format!("execute {SYSTEMD}: {}", Command::new(SYSTEMD).env_clear().exec()).into())
}

/// Mounts file systems, opens the console and enables the loopback link, as any init does.
fn make_machine() -> Result<(), Failure> {
    leave_rootfs().map_err(|error| format!("leave the first root: {error}"))?;
    let none = MsFlags::empty();
    let all = [
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("cgroup2", "/sys/fs/cgroup", "nsdelegate,memory_recursiveprot"),
        ("devtmpfs", "/dev", "mode=0755"),
        ("devpts", "/dev/pts", "ptmxmode=0666,mode=0620"),
        ("tmpfs", "/dev/shm", "mode=1777"),
        ("tmpfs", "/run", "mode=0755"),
        ("tmpfs", "/tmp", "mode=1777,size=75%"),
    ];
    let v1 = cgroups_v1()?;
    for (kind, at, options) in all {
        // As systemd mounts both versions.
        let at = if kind == "cgroup2" && !v1.is_empty() { "/sys/fs/cgroup/unified" } else { at };
        if kind == "cgroup2" && !v1.is_empty() {
            mount(Some("tmpfs"), "/sys/fs/cgroup", Some("tmpfs"), none, Some("mode=0755"))?;
        }
        fs::create_dir_all(at)?;
        mount(Some(kind), at, Some(kind), none, Some(options))
            .map_err(|error| format!("mount {kind} at {at}: {error}"))?;
    }
    for controllers in v1 {
        let at = format!("/sys/fs/cgroup/{controllers}");
        fs::create_dir_all(&at)?;
        mount(Some("cgroup"), &*at, Some("cgroup"), none, Some(&*controllers))
            .map_err(|error| format!("mount cgroup v1 with {controllers}: {error}"))?;
    }
    let console = OpenOptions::new().read(true).write(true).open("/dev/console")?;
    for stream in 0..3 {
        nix::unistd::dup2(console.as_raw_fd(), stream)?;
    }
    fs::create_dir_all("/etc")?;
    fs::write("/etc/hosts", "127.0.0.1 localhost\n")?;
    if !Path::new(SYSTEMD).exists() {
        install_tools().map_err(|error| format!("install the tools: {error}"))?;
    }
    nix::unistd::sethostname("guest")?;
    loopback_up().map_err(|error| format!("set the loopback link up: {error}"))?;
    Ok(())
}

/// Moves to another root. The kernel lets no process pivot away from the initial root, which containers must
/// do; a bind mount of the same files over it suffices.
fn leave_rootfs() -> io::Result<()> {
    let none = None::<&str>;
    fs::create_dir_all("/newroot")?;
    mount(Some("/"), "/newroot", none, MsFlags::MS_BIND, none)?;
    std::env::set_current_dir("/newroot")?;
    mount(Some("."), "/", none, MsFlags::MS_MOVE, none)?;
    nix::unistd::chroot(".")?;
    std::env::set_current_dir("/")
}

/// Installs a shell and other tools, for tests that need them.
fn install_tools() -> io::Result<()> {
    let status = Command::new("/bin/busybox").args(["--install", "-s", "/bin"]).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: an ifreq is plain bytes, for which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, and `request` is one that lives through the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn orders() -> Result<String, Failure> {
    Ok(fs::read_to_string(ORDERS).map_err(|error| format!("read {ORDERS}: {error}"))?)
}

/// The hierarchies of cgroup v1 that are ordered, by their controllers.
fn cgroups_v1() -> Result<Vec<String>, Failure> {
    let orders = orders()?;
    let controllers = orders.lines().filter_map(|order| order.strip_prefix(CGROUP_V1)).map(str::trim);
    Ok(controllers.map(str::to_owned).collect())
}

fn load() -> Result<(), Failure> {
    let orders = orders()?;
    let wanted =
        orders.lines().filter_map(|order| order.strip_prefix("load ")).flat_map(|all| all.split(' '));
    for module in wanted.filter(|module| !module.is_empty()) {
        load_module(module).map_err(|error| format!("load the module {module}: {error}"))?;
    }
    Ok(())
}

fn carry_out() -> Result<(), Failure> {
    let mut part: Option<Part> = None;
    let mut before = 0;
    for order in orders()?.lines() {
        let words: Vec<&str> = order.split(' ').collect();
        match words.as_slice() {
            ["load" | CGROUP_V1, ..] => {}
            ["run", program, arguments @ ..] => {
                println!("\n{SAYS}{order}");
                let mut arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
                if let Some(part) = part {
                    let tests = tests(program, &arguments)?;
                    let chosen = part.choose(&tests, before);
                    before += tests.len();
                    println!("\n{SAYS}{CHOSEN}{}", chosen.len());
                    if chosen.is_empty() {
                        println!("\n{SAYS}exit 0");
                        continue;
                    }
                    arguments.retain(|word| word == "--ignored" || word.starts_with("--test-threads"));
                    arguments.push("--exact".to_owned());
                    arguments.extend(chosen);
                }
                let code = run(program, &arguments).map_err(|error| format!("{order}: {error}"))?;
                if code != 0 {
                    print_kernel_messages();
                }
                println!("\n{SAYS}exit {code}");
            }
            _ => {
                let new = Part::of_order(order).ok_or_else(|| format!("understand the order {order:?}"))?;
                part = Some(new);
            }
        }
    }
    Ok(())
}

/// Lists the tests that a program runs with these arguments.
fn tests(program: &str, arguments: &[String]) -> Result<Vec<String>, Failure> {
    let list = |more: &[&str]| -> Result<Vec<String>, Failure> {
        let output = Command::new(program).args(arguments).args(more).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(format!("list the tests of {program}: {}", output.status).into());
        }
        let text = String::from_utf8(output.stdout)?;
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let all = list(&["--list"])?;
    if arguments.iter().any(|word| word == "--ignored") {
        return Ok(all);
    }
    // The complete list also contains the ignored tests.
    let ignored = list(&["--list", "--ignored"])?;
    Ok(all.into_iter().filter(|test| !ignored.contains(test)).collect())
}

/// Runs a program until it ends, and reaps all processes that end meanwhile, including orphans.
fn run(program: &str, arguments: &[String]) -> Result<i32, Failure> {
    let directory = Path::new(program).parent().unwrap_or(Path::new("/"));
    let child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .envs([("PATH", "/bin"), ("HOME", "/"), ("RUST_BACKTRACE", "1")])
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()?;
    let child = Pid::from_raw(child.id().cast_signed());
    loop {
        match waitpid(None, None)? {
            WaitStatus::Exited(pid, code) if pid == child => return Ok(code),
            WaitStatus::Signaled(pid, signal, _) if pid == child => return Ok(128 + signal as i32),
            _ => {}
        }
    }
}

/// Prints the kernel's messages, which may explain a failed test.
fn print_kernel_messages() {
    let Ok(mut kernel) = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")
    else {
        return;
    };
    println!("\n{SAYS}the kernel said");
    let mut message = [0; 8192];
    loop {
        let length = match kernel.read(&mut message) {
            Ok(length) => length,
            // Some messages were overwritten: continue with the oldest that is left.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => continue,
            Err(_) => return,
        };
        let text = String::from_utf8_lossy(&message[..length]);
        print!("  {}", text.split_once(';').map_or(&*text, |(_, said)| said));
    }
}
