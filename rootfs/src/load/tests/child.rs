//! The process that reads an archive, as the real one: confined, killed at
//! every operation, lying, and dying.
//!
//! It is this test binary, which runs [`the_child`] and nothing else.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::signal::{Signal, raise};

use super::super::child::told;
use super::*;
use crate::content::{Content, Observer, Verdict};

/// The name by which this binary runs [`the_child`].
const CHILD: &str = "load::tests::child::the_child";
/// The name by which this binary runs [`a_load`].
const LOAD: &str = "load::tests::child::a_load";
const MEMORY: u64 = 256 * 1024 * 1024;

/// An argument after the name of the test, which libtest takes for one more name.
fn word(key: &str) -> Option<String> {
    std::env::args().find_map(|argument| argument.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

/// The child's end that these words ask for.
fn unpacker(words: &[String]) -> Unpacker {
    let arguments = ["--exact", CHILD].map(str::to_owned);
    Unpacker {
        program: std::env::current_exe().unwrap(),
        arguments: arguments.iter().chain(words).map(Into::into).collect(),
        memory: MEMORY,
        cgroups: Vec::new(),
    }
}

pub(super) fn options(words: &[String]) -> LoadOptions {
    LoadOptions { unpacker: Some(unpacker(words)), ..amd64() }
}

/// Ends the process at the n-th operation, counted in `count`.
fn dying(at: usize, end: fn()) -> Content {
    let count = AtomicUsize::new(0);
    let observer: Observer = std::sync::Arc::new(move |_| {
        if count.fetch_add(1, Ordering::Relaxed) + 1 == at {
            end();
        }
        Verdict::Proceed
    });
    Content::observed(observer)
}

/// Not a test by itself: what [`unpacker`] starts.
#[test]
fn the_child() {
    if let Some(at) = word("die-at") {
        // Its filter lets it signal nobody, itself included; a fault still ends it on the spot.
        told(dying(at.parse().unwrap(), || std::process::abort())).unwrap();
    } else if std::env::args().any(|argument| argument == "escape") {
        escape();
    } else if std::env::args().any(|argument| argument == CHILD) {
        told(Content::default()).unwrap();
    }
}

/// Not a test by itself: a whole load in a process of its own.
#[test]
fn a_load() {
    let (Some(root), Some(archive)) = (word("root"), word("archive")) else { return };
    let at = word("die-at").map_or(usize::MAX, |at| at.parse().unwrap());
    let content = dying(at, || raise(Signal::SIGKILL).unwrap());
    let store = Store::with_content(Path::new(&root), content);
    let words: Vec<String> = word("child-dies-at").map(|at| format!("die-at={at}")).into_iter().collect();
    store.load_path(Path::new(&archive), &options(&words), &mut |_| {}).unwrap();
}

/// Files below the root with their digests, and the directories.
pub(super) fn listing(root: &Path) -> BTreeMap<PathBuf, Option<Digest>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let digest = metadata.is_file().then(|| Digest::of(&fs::read(&path).unwrap()));
        found.insert(path.strip_prefix(root).unwrap().to_owned(), digest);
    }
    found
}

fn old() -> Vec<u8> {
    oci_archive(&[TestImage::new("app:1", vec![layer("base"), layer("old")])]).finish()
}

fn new() -> Vec<u8> {
    let layers = || vec![layer("base"), layer(&"new".repeat(3000)), layer("third")];
    let tool = TestImage::new("tool:1", vec![layer("base"), layer("tool")]);
    oci_archive(&[TestImage::new("app:1", layers()).compressed(Compression::Gzip), tool]).finish()
}

/// A store with the old image in it.
fn with_old(root: &Path) -> Store {
    let store = Store::open(root).unwrap();
    store.load(&mut &old()[..], &amd64(), &mut |_| {}).unwrap();
    store
}

/// Loads in a process that dies as these words say, and gives whether it did.
fn dies(root: &Path, archive: &Path, words: &[String]) -> bool {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", LOAD, &format!("root={}", root.display())])
        .arg(format!("archive={}", archive.display()))
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    ended.signal() == Some(Signal::SIGKILL as i32) || !ended.success()
}

/// Until the process that unpacks has died of its parent's death.
fn wait_for_unpacker(root: &Path) {
    drop(lock(&root.join("var/lib/nodlet/images/staging")).unwrap());
}

/// Kills one of the two processes of a load at each of its operations in turn.
fn kill_at_every_operation(word: &str) {
    let scratch = Scratch::in_memory();
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, new()).unwrap();
    let root = scratch.path().join("before");
    let store = with_old(&root);
    let before = listing(&root);
    store.load_path(&archive, &options(&[]), &mut |_| {}).unwrap();
    let after = listing(&root);
    let (mut at, mut as_before) = (1, 0);
    loop {
        let root = scratch.path().join(at.to_string());
        let store = with_old(&root);
        let images = listed(&store);
        let died = dies(&root, &archive, &[format!("{word}={at}")]);
        if !died {
            break;
        }
        let now = listed(&store);
        assert!(now == images || now.len() == 3, "killed at {at}: {now:?}");
        // As an agent does when it starts.
        wait_for_unpacker(&root);
        store.tidy().unwrap();
        let swept = listing(&root);
        assert!(swept == before || swept == after, "killed at {at}: {swept:#?}");
        as_before += usize::from(swept == before);
        store.load_path(&archive, &options(&[]), &mut |_| {}).unwrap();
        assert_eq!(listing(&root), after, "killed at {at}, loaded again");
        fs::remove_dir_all(&root).unwrap();
        at += 1;
    }
    let all = at - 1;
    println!("{word}: {all} of {all} operations; after {as_before} the store was as before");
    assert!(all > 10 && as_before > 0);
}

#[test]
fn a_load_that_is_killed_at_any_operation_happened_or_did_not() {
    kill_at_every_operation("die-at");
}

#[test]
fn a_load_whose_unpacking_is_ended_at_any_operation_did_not_happen() {
    kill_at_every_operation("child-dies-at");
}

#[test]
fn what_became_of_a_process_that_died_is_said() {
    let scratch = Scratch::new();
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, new()).unwrap();
    let root = scratch.path().join("root");
    let store = with_old(&root);
    let before = listing(&root);
    let error = store.load_path(&archive, &options(&["die-at=3".to_owned()]), &mut |_| {}).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("unpack the archive: the process that reads it was killed by SIG"), "{text}");
    assert!(
        text.ends_with("it may have 256 MiB of memory, and an archive that needs more is refused"),
        "{text}"
    );
    assert_eq!(listing(&root), before);
    let false_unpacker = Unpacker { program: "/bin/false".into(), ..unpacker(&[]) };
    let options = LoadOptions { unpacker: Some(false_unpacker), ..amd64() };
    let text = store.load_path(&archive, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(text.starts_with("unpack the archive: the process that reads it ended with code 1;"), "{text}");
    assert_eq!(listing(&root), before);
}

/// What a process that was broken into might try. Each must fail.
fn attempts() -> Vec<(&'static str, bool)> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let path = Path::new;
    // SAFETY: the child of a fork that should not be ends at once.
    let forked = unsafe { nix::unistd::fork() };
    if let Ok(nix::unistd::ForkResult::Child) = forked {
        // SAFETY: ends the process, without anything of its parent's.
        unsafe { libc::_exit(0) }
    }
    let stream = |family| socket(family, SockType::Stream, SockFlag::empty(), None).is_ok();
    let shell = c"/bin/sh";
    vec![
        ("fork", forked.is_ok()),
        ("execute", nix::unistd::execv(shell, &[shell]).is_ok()),
        ("signal its parent", nix::sys::signal::kill(nix::unistd::getppid(), None).is_ok()),
        ("read its parent's memory", fs::read(format!("/proc/{}/mem", nix::unistd::getppid())).is_ok()),
        ("make an internet socket", stream(AddressFamily::Inet)),
        ("make a unix socket", stream(AddressFamily::Unix)),
        ("read a file elsewhere", fs::read("/etc/passwd").is_ok() || fs::read("../index.json").is_ok()),
        ("list a directory", fs::read_dir("/").is_ok() || fs::read_dir(".").is_ok()),
        ("write a file elsewhere", fs::write("/tmp/nodlet-escaped", "").is_ok()),
        ("make a directory", fs::create_dir("directory").is_ok()),
        ("make a link", std::os::unix::fs::symlink("/etc", "link").is_ok()),
        ("make a hard link", fs::hard_link("before", "link").is_ok()),
        ("rename", fs::rename("before", "after").is_ok()),
        (
            "change modes",
            fs::set_permissions("before", std::os::unix::fs::PermissionsExt::from_mode(0o777)).is_ok(),
        ),
        ("change roots", nix::unistd::chroot(path(".")).is_ok()),
        ("change directories", nix::unistd::chdir(path("..")).is_ok()),
        ("mount", nix::mount::umount(path("/")).is_ok()),
        (
            "have more memory",
            nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_DATA, u64::MAX, u64::MAX)
                .is_ok(),
        ),
    ]
}

/// Run as the child: confines itself and says what it could do all the same.
fn escape() {
    let (socket, archive) = (std::io::stdin(), File::open("/dev/null").unwrap());
    let mut socket = File::from(std::os::fd::AsFd::as_fd(&socket).try_clone_to_owned().unwrap());
    fs::write("before", "").unwrap();
    let limits = crate::confine::Limits { memory: MEMORY };
    let weaker = crate::confine::confine(std::os::fd::AsFd::as_fd(&archive), &limits).unwrap();
    let done: Vec<&str> = attempts().into_iter().filter(|(_, done)| *done).map(|(what, _)| what).collect();
    // Where this directory is the root, above it is itself.
    let _ = fs::write("../escaped", "").and_then(|()| fs::remove_file("escaped"));
    fs::write("allowed", "what it is for").unwrap();
    fs::remove_file("allowed").unwrap();
    std::io::Write::write_all(&mut socket, format!("{done:?} {weaker:?}").as_bytes()).unwrap();
}

/// Without root, files are confined by Landlock alone: a kernel without it
/// fails this test, and `confine` says so to the user.
#[test]
fn a_confined_process_can_do_nothing_but_write_new_files() {
    const NOBODY: u32 = 65534;
    for user in [0, NOBODY] {
        let scratch = Scratch::new();
        std::os::unix::fs::chown(scratch.path(), Some(user), Some(user)).expect("this test needs root");
        // Where nobody can execute it.
        let program = scratch.path().join("program");
        fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let staging = scratch.path().join("staging");
        fs::create_dir(&staging).unwrap();
        std::os::unix::fs::chown(&staging, Some(user), Some(user)).unwrap();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut command = Command::new(&program);
        std::os::unix::process::CommandExt::uid(&mut command, user);
        command.args(["--exact", CHILD, "escape"]).current_dir(&staging);
        command.stdin(std::os::fd::OwnedFd::from(theirs)).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The other end is the child's alone, so that its death is seen.
        drop(command);
        let mut said = String::new();
        io::Read::read_to_string(&mut ours, &mut said).unwrap();
        child.wait().unwrap();
        assert_eq!(said, "[] []", "done by user {user}, and what the kernel lacks");
        assert_eq!(fs::read_dir(&staging).unwrap().count(), 1, "user {user}");
        assert!(!scratch.path().join("escaped").exists(), "user {user}");
    }
}
