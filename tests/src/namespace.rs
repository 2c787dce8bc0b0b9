//! [`Namespace`]: a network namespace of a test, so that links, addresses and firewalls of the machine stay unchanged.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

use crate::programs::demo_program;

/// A network namespace, which exists as long as something uses it.
#[derive(Clone)]
pub struct Namespace(Arc<File>);

impl Namespace {
    /// A new network namespace, with its loopback link up.
    pub fn new() -> Namespace {
        let made = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("root can make a network namespace");
            File::open("/proc/thread-self/ns/net").expect("/proc is mounted")
        });
        let namespace = Namespace(Arc::new(made.join().expect("it is made")));
        namespace.ip("link set lo up");
        namespace
    }

    /// The network namespace of a process.
    pub fn of_process(id: &str) -> Namespace {
        Namespace(Arc::new(File::open(format!("/proc/{id}/ns/net")).expect("the process runs")))
    }

    /// Makes the command run in this namespace.
    pub fn give_to(&self, command: &mut Command) {
        let file = self.0.clone();
        // SAFETY: between fork and exec only a system call is made.
        unsafe { command.pre_exec(move || Ok(setns(&*file, CloneFlags::CLONE_NEWNET)?)) };
    }

    /// Runs `ip` with these words, which must succeed. Returns what it prints.
    #[track_caller]
    pub fn ip(&self, words: &str) -> String {
        let mut command = Command::new("ip");
        command.args(words.split_whitespace());
        self.give_to(&mut command);
        let output = command.output().expect("the package iproute2 is installed");
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Connects this namespace with another one: `here` and `there` are the names of the links.
    pub fn connect(&self, here: &str, other: &Namespace, there: &str) {
        // The other namespace has no name: `ip` finds it by a process in it.
        let mut holder = Command::new("sleep");
        holder.arg("60");
        other.give_to(&mut holder);
        let mut holder = holder.spawn().expect("there is a program sleep");
        self.ip(&format!("link add {here} type veth peer name {there} netns {}", holder.id()));
        let _ = holder.kill();
        let _ = holder.wait();
        self.ip(&format!("link set {here} up"));
        other.ip(&format!("link set {there} up"));
    }

    /// Runs the demo program with these words in this namespace. Returns what it prints; the error is what it
    /// complains about.
    pub fn demo(&self, words: &str) -> Result<String, String> {
        let mut command = Command::new(demo_program());
        command.args(words.split(' '));
        self.give_to(&mut command);
        let output = command.output().expect("the demo program can be run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Calls a function in a thread in this namespace, for example to open a socket, which stays in the namespace.
    pub fn call<T: Send + 'static>(&self, function: impl FnOnce() -> T + Send + 'static) -> T {
        let file = self.0.clone();
        let called = std::thread::spawn(move || {
            setns(&*file, CloneFlags::CLONE_NEWNET).expect("root can enter a network namespace");
            function()
        });
        called.join().expect("the function returns")
    }

    /// The names of the nftables tables of the family `inet`, sorted.
    pub fn tables(&self) -> Vec<String> {
        self.call(|| list_tables().expect("the kernel lists its tables"))
    }

    /// Does what `nft flush ruleset` does: deletes all tables.
    pub fn flush_tables(&self) {
        self.call(|| delete_tables().expect("the kernel deletes its tables"));
    }

    /// Replaces a table by an empty one that nobody else can change, until the result is dropped; then the kernel deletes
    /// it.
    pub fn seize_table(&self, name: &str) -> OwnedTable {
        let name = name.to_owned();
        self.call(move || seize(&name).expect("the kernel has tables with owners"))
    }
}

/// Whether an address is in a range of 256 addresses, the size of the ranges that a cluster assigns to its nodes.
///
/// # Panics
/// The range has another size.
pub fn is_in_range(address: &str, range: &str) -> bool {
    let base = range.strip_suffix("0/24").expect("the controller manager assigns ranges of this size");
    address.strip_prefix(base).is_some_and(|rest| rest.parse::<u8>().is_ok())
}

/// A table of nftables that belongs to its socket.
pub struct OwnedTable(#[allow(dead_code, reason = "the kernel deletes the table when it is closed")] OwnedFd);

/// An operation of a seccomp filter, as linux/filter.h and linux/seccomp.h define it.
const fn operation(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// The codes of operations: load a word, jump if equal, return.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x15;
const END: u16 = 0x06;

/// Makes the command, and all that it starts, run as on a kernel without nfnetlink, and so without nf_tables.
pub(crate) fn without_nftables(command: &mut Command) {
    let filter = [
        operation(LOAD, 0, 0, 0),
        operation(JUMP, 0, 5, libc::SYS_socket as u32),
        // The low words of the first and the third argument; the machine is little-endian.
        operation(LOAD, 0, 0, 16),
        operation(JUMP, 0, 3, libc::AF_NETLINK as u32),
        operation(LOAD, 0, 0, 32),
        operation(JUMP, 0, 1, libc::NETLINK_NETFILTER as u32),
        operation(END, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPROTONOSUPPORT as u32),
        operation(END, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    filter_calls(command, filter);
}

/// Makes the command, and all that it starts, run as a user with no instance of inotify left
/// (`fs.inotify.max_user_instances`).
pub(crate) fn without_inotify(command: &mut Command) {
    let filter = [
        operation(LOAD, 0, 0, 0),
        operation(JUMP, 0, 1, libc::SYS_inotify_init1 as u32),
        operation(END, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EMFILE as u32),
        operation(END, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    filter_calls(command, filter);
}

/// Gives the command a seccomp filter.
fn filter_calls<const N: usize>(command: &mut Command, filter: [libc::sock_filter; N]) {
    let load = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
        // SAFETY: the program and its instructions outlive the call, which only reads them.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec only a system call is made; its memory is on the stack.
    unsafe { command.pre_exec(load) };
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

// From linux/netfilter/nf_tables.h and linux/netfilter/nfnetlink.h.
const NFT_MSG_NEWTABLE: u16 = 10 << 8;
const NFT_MSG_GETTABLE: u16 = 10 << 8 | 1;
const NFT_MSG_DELTABLE: u16 = 10 << 8 | 2;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_TABLE_FLAGS: u16 = 2;
const NFT_TABLE_F_OWNER: u32 = 2;
const NFPROTO_UNSPEC: u8 = 0;
const NFPROTO_INET: u8 = 1;

/// A message without attributes.
fn message(kind: u16, flags: libc::c_int, family: u8, resource: u16) -> Vec<u8> {
    let mut bytes = 20_u32.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes
}

/// Sends messages, and returns those of the answers, up to an acknowledgement or the end of a list.
fn ask(request: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    ask_on(&socket()?, request)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let socket = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_NETFILTER)
    };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn ask_on(socket: &OwnedFd, request: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    nix::sys::socket::send(socket.as_raw_fd(), request, nix::sys::socket::MsgFlags::empty())?;
    let (mut answers, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let length =
            nix::sys::socket::recv(socket.as_raw_fd(), &mut buffer, nix::sys::socket::MsgFlags::empty())?;
        let mut rest = &buffer[..length];
        while rest.len() >= 20 {
            let length = u32::from_ne_bytes(rest[..4].try_into().expect("four bytes")) as usize;
            let kind = u16::from_ne_bytes(rest[4..6].try_into().expect("two bytes"));
            let body = rest[16..length].to_vec();
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
            match libc::c_int::from(kind) {
                libc::NLMSG_DONE => return Ok(answers),
                libc::NLMSG_ERROR => {
                    let code = i32::from_ne_bytes(body[..4].try_into().expect("four bytes"));
                    return if code == 0 { Ok(answers) } else { Err(io::Error::from_raw_os_error(-code)) };
                }
                _ => answers.push((kind, body)),
            }
        }
    }
}

fn list_tables() -> io::Result<Vec<String>> {
    let request = message(NFT_MSG_GETTABLE, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, NFPROTO_INET, 0);
    let mut names = Vec::new();
    for (kind, body) in ask(&request)? {
        let attribute = body.get(4..).unwrap_or_default();
        if kind == NFT_MSG_NEWTABLE && attribute.get(2..4) == Some(&NFTA_TABLE_NAME.to_ne_bytes()) {
            let name = attribute[4..].split(|byte| *byte == 0).next().unwrap_or_default();
            names.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn delete_tables() -> io::Result<()> {
    let request = libc::NLM_F_REQUEST;
    let batch = [
        message(NFNL_MSG_BATCH_BEGIN, request, 0, 10),
        message(NFT_MSG_DELTABLE, request | libc::NLM_F_ACK, NFPROTO_UNSPEC, 0),
        message(NFNL_MSG_BATCH_END, request, 0, 10),
    ];
    ask(&batch.concat()).map(drop)
}

/// Adds an attribute to a message.
fn with(mut message: Vec<u8>, kind: u16, value: &[u8]) -> Vec<u8> {
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
    let length = (message.len() as u32).to_ne_bytes();
    message[..4].copy_from_slice(&length);
    message
}

fn seize(name: &str) -> io::Result<OwnedTable> {
    let request = libc::NLM_F_REQUEST;
    let name = [name.as_bytes(), b"\0"].concat();
    let of_table = |kind: u16, flags: libc::c_int| {
        with(message(kind, request | flags, NFPROTO_INET, 0), NFTA_TABLE_NAME, &name)
    };
    let new = of_table(NFT_MSG_NEWTABLE, libc::NLM_F_CREATE | libc::NLM_F_ACK);
    let batch = [
        message(NFNL_MSG_BATCH_BEGIN, request, 0, 10),
        of_table(NFT_MSG_DELTABLE, 0),
        with(new, NFTA_TABLE_FLAGS, &NFT_TABLE_F_OWNER.to_be_bytes()),
        message(NFNL_MSG_BATCH_END, request, 0, 10),
    ];
    let socket = socket()?;
    ask_on(&socket, &batch.concat())?;
    Ok(OwnedTable(socket))
}
