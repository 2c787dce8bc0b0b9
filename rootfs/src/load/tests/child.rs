//! Tests of the process that reads an archive, with a real process: confined, killed at every operation,
//! lying, and dying.
//!
//! The process is this test binary, which runs only [`the_child`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, raise};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{chdir, chroot, execv, getppid};
use nodlet_kernel::durable::{Decision, Observed, observe};
use serde_json::{Value, json};

use super::super::child::serve_request;
use super::*;

/// The test name with which this binary runs [`the_child`].
const CHILD: &str = "load::tests::child::the_child";
/// The test name with which this binary runs [`a_load`].
const LOAD: &str = "load::tests::child::a_load";
const MEMORY: u64 = 256 * 1024 * 1024;

/// The value of an argument `KEY=VALUE` after the name of the test. libtest takes such an argument for
/// another test name.
fn word(key: &str) -> Option<String> {
    std::env::args().find_map(|argument| argument.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

/// A child process that behaves as these words request.
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

/// Makes the n-th operation of this thread get this result.
fn at_operation(at: usize, become_of_it: impl Fn() -> Decision + 'static) -> Observed {
    let count = Cell::new(0);
    observe(move |_| {
        count.set(count.get() + 1);
        if count.get() == at { become_of_it() } else { Decision::Proceed }
    })
}

/// Makes the n-th operation call `end`, which ends the process.
fn dying(at: usize, end: fn()) -> Observed {
    at_operation(at, move || {
        end();
        Decision::Proceed
    })
}

/// A fault: its word, the decision on the operation, and the expected error.
type Fault = (&'static str, fn() -> Decision, &'static str);

/// The faults of the disk of the process that unpacks.
const FAULTS: [Fault; 3] = [
    ("fails-at", || Decision::Fail(libc::EIO), "I/O error (os error 5)"),
    ("full-at", || Decision::Fail(libc::ENOSPC), "No space left on device (os error 28)"),
    ("short-at", || Decision::Short(7, libc::ENOSPC), "No space left on device (os error 28)"),
];

/// Makes this system call fail from here on, as on a kernel that lacks it.
fn lack(call: libc::c_long, errno: i32) {
    let instruction = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    nix::sys::prctl::set_no_new_privs().unwrap();
    // SAFETY: the program has the stated length, and outlives the call, which copies it.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter, 0, 0) };
    assert_eq!(set, 0);
}

/// Not a test by itself: the process that [`unpacker`] starts.
#[test]
fn the_child() {
    if let Some(errno) = word("landlock") {
        lack(libc::SYS_landlock_create_ruleset, errno.parse().unwrap());
    }
    for (fault, decision, _) in FAULTS {
        if let Some(at) = word(fault) {
            let _observed = at_operation(at.parse().unwrap(), decision);
            return serve_request().unwrap();
        }
    }
    if let Some(frame) = word("lie") {
        lie(&frame);
    } else if let Some(at) = word("die-at") {
        // The seccomp filter prevents the process from signalling anybody, even itself; an abort still ends
        // it at once.
        let _observed = dying(at.parse().unwrap(), || std::process::abort());
        serve_request().unwrap();
    } else if std::env::args().any(|argument| argument == "escape") {
        escape();
    } else if std::env::args().any(|argument| argument == CHILD) {
        serve_request().unwrap();
    }
}

/// Not a test by itself: a whole load in a process of its own.
#[test]
fn a_load() {
    let (Some(root), Some(archive)) = (word("root"), word("archive")) else { return };
    let at = word("die-at").map_or(usize::MAX, |at| at.parse().unwrap());
    let _observed = dying(at, || raise(Signal::SIGKILL).unwrap());
    let store = Store::open(Path::new(&root)).unwrap();
    let words: Vec<String> = word("child-dies-at").map(|at| format!("die-at={at}")).into_iter().collect();
    store.load_path(Path::new(&archive), &options(&words), &mut |_| {}).unwrap();
}

/// Files below the root with their digests, and directories.
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

/// A store that has the old image.
fn with_old(root: &Path) -> Store {
    let store = Store::open(root).unwrap();
    store.load(&old(), &amd64()).unwrap();
    store
}

/// Loads in a process that dies as these words request. Returns whether it did.
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

/// Waits until the process that unpacks has died because its parent did.
fn wait_for_unpacker(root: &Path) {
    drop(lock(&root.join("var/lib/nodlet/images/staging")).unwrap());
}

/// Kills one of the two processes of a load, at each of its operations in turn.
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
        // An agent does the same when it starts.
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
fn the_error_reports_how_the_unpacking_process_ended() {
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
        text.ends_with("it can use 256 MiB of memory, and an archive that needs more is rejected"),
        "{text}"
    );
    assert_eq!(listing(&root), before);
    let false_unpacker = Unpacker { program: "/bin/false".into(), ..unpacker(&[]) };
    let options = LoadOptions { unpacker: Some(false_unpacker), ..amd64() };
    let text = store.load_path(&archive, &options, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(text, "unpack the archive: the process that reads it ended with code 1");
    assert_eq!(listing(&root), before);
}

/// If the process that unpacks cannot create, write or sync a file, the error names the operation, the file
/// and the reason, for every file.
#[test]
fn a_disk_error_while_unpacking_is_reported_and_the_load_changes_nothing() {
    let scratch = Scratch::in_memory();
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, new()).unwrap();
    let root = scratch.path().join("root");
    let store = with_old(&root);
    let before = listing(&root);
    for (fault, _, expected) in FAULTS {
        let mut at = 1;
        while let Err(error) = store.load_path(&archive, &options(&[format!("{fault}={at}")]), &mut |_| {}) {
            let LoadError::Store(StoreError::Content(error)) = error else {
                panic!("{fault} {at}: {error:?}")
            };
            assert!(error.to_string().contains("/staging/"), "{fault} {at}: {error}");
            let cause = error.source().unwrap().to_string();
            assert_eq!(cause, expected, "{fault} {at}");
            assert_eq!(listing(&root), before, "{fault} {at}");
            at += 1;
        }
        let all = at - 1;
        println!("{fault}: {all} of {all} operations of the process that unpacks");
        assert!(all > 10);
        fs::remove_dir_all(&root).unwrap();
        with_old(&root);
    }
}

/// Tests that the process ends with its parent: its output is then useless, and it keeps the store locked.
#[test]
fn the_unpacking_process_ends_when_its_parent_is_gone() {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let scratch = Scratch::new();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (archive, mut writer) = io::pipe().unwrap();
    let Unpacker { program, arguments, .. } = unpacker(&[]);
    let mut command = Command::new(program);
    command.args(arguments).current_dir(scratch.path());
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    drop(command);
    let request = json!({"wanted": {"platform": Platform::of_this_machine(), "is_explicit": false}, "known": {}, "present": [], "first": 0, "room": null, "rebuilt": []});
    let task = json!({"request": request, "limits": {"memory": MEMORY}}).to_string();
    let length = (task.len() as u32).to_le_bytes();
    let rights = [archive.as_raw_fd()];
    sendmsg::<()>(
        ours.as_raw_fd(),
        &[io::IoSlice::new(&length)],
        &[ControlMessage::ScmRights(&rights)],
        MsgFlags::empty(),
        None,
    )
    .unwrap();
    ours.write_all(task.as_bytes()).unwrap();
    drop((ours, archive));
    // Send layer after layer; the archive never ends.
    let mut layers =
        (0..8000).map(|number| tar().bytes(&format!("{number}.tar"), &layer(&number.to_string())));
    let refused = layers.any(|layer| {
        let bytes = layer.finish();
        writer.write_all(&bytes[..bytes.len() - 1024]).is_err()
    });
    assert!(refused, "it went on reading");
    assert_eq!(child.wait().unwrap().code(), Some(1));
}

/// Sends this frame to the parent, whatever was requested. The staging directory has a file and a link.
fn lie(frame: &str) {
    let (length, frame) = frame.split_once(':').unwrap();
    let length = length.parse().unwrap_or(frame.len() as u32);
    fs::write("0.erofs", "a layer").unwrap();
    symlink("/etc/passwd", "1.erofs").unwrap();
    let mut socket = File::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    let sent = socket.write_all(&[&length.to_le_bytes(), frame.as_bytes()].concat());
    // The parent may have closed the connection by then.
    drop(sent);
    // Ends when the parent loses patience: the process sent more than the parent reads.
    drop(io::copy(&mut socket, &mut io::sink()));
}

#[test]
fn false_reports_of_the_unpacking_process_are_rejected() {
    let scratch = Scratch::in_memory();
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, new()).unwrap();
    let root = scratch.path().join("root");
    let load = |frame: &str| {
        let store = with_old(&root);
        let before = listing(&root);
        let result = store.load_path(&archive, &options(&[format!("lie={frame}")]), &mut |_| {});
        let same = listing(&root) == before;
        fs::remove_dir_all(&root).unwrap();
        result.map(drop).map_err(|error| (error, same))
    };
    let image = TestImage::new("app:1", vec![b"a".to_vec(), b"b".to_vec()]);
    let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
    let there = Digest::of(&layer("base"));
    let planned = |layer: Digest| json!({"diff_id": layer, "blob": null, "size": null, "member": "m"});
    let unpacked = |images: Value, staged: Value| {
        let said = json!({"images": images, "proven": {}, "staged": staged, "bytes_written": 1});
        format!(":{}", json!({"Unpacked": said}))
    };
    let with = |config: &str, id: Digest, layers: &[Digest]| {
        let layers: Vec<Value> = layers.iter().map(|layer| planned(*layer)).collect();
        json!([{"id": id, "config": config, "names": [], "manifest": null, "digests": [], "layers": layers}])
    };
    let config = image.configuration();
    let config_of_a = TestImage::new("app:1", vec![b"a".to_vec()]).configuration();
    let of_a = || with(&config_of_a, Digest::of(config_of_a.as_bytes()), &[a]);
    load(&unpacked(of_a(), json!({a.to_string(): "0.erofs"}))).expect("what could be true is believed");
    let lies = [
        unpacked(of_a(), json!({a.to_string(): "../index.json"})),
        unpacked(of_a(), json!({a.to_string(): "/etc/passwd"})),
        unpacked(of_a(), json!({a.to_string(): "1.erofs"})),
        unpacked(of_a(), json!({a.to_string(): "9.erofs"})),
        unpacked(of_a(), json!({a.to_string(): ".erofs"})),
        unpacked(of_a(), json!({})),
        unpacked(
            with(&config, image.id(), &[a, b]),
            json!({a.to_string(): "0.erofs", b.to_string(): "0.erofs"}),
        ),
        unpacked(of_a(), json!({a.to_string(): "0.erofs", there.to_string(): "0.erofs"})),
        unpacked(with(&config, image.id(), &[a]), json!({a.to_string(): "0.erofs"})),
        unpacked(with(&config_of_a, image.id(), &[a]), json!({a.to_string(): "0.erofs"})),
        unpacked(with("{}", Digest::of(b"{}"), &[]), json!({})),
        unpacked(json!([]), json!({there.to_string(): "0.erofs"})),
        ":{\"Unpacked\":[]}".to_owned(),
        ":no JSON".to_owned(),
        "4294967295:".to_owned(),
    ];
    for lie in &lies {
        match load(lie) {
            Err((LoadError::InvalidResult { .. }, true)) => {}
            other => panic!("{lie}: {other:?}"),
        }
    }
    println!("{} lies", lies.len());
    let hostile = json!({"Refused": {"text": "\u{1b}[2J", "cause": {"text": "\r\u{9b}", "cause": null}}});
    let (error, _) = load(&format!(":{hostile}")).unwrap_err();
    assert_eq!(error.to_string(), "\\u{1b}[2J");
    assert_eq!(error.source().unwrap().to_string(), "\\r\\u{9b}");
}

/// Tries what an attacker in the process might try. Each attempt must fail.
fn attempts(input: &File) -> Vec<(&'static str, bool)> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    // SAFETY: a child, which a confined process should not be able to fork, ends at once.
    let forked = unsafe { nix::unistd::fork() };
    if let Ok(nix::unistd::ForkResult::Child) = forked {
        // SAFETY: ends the process, without running destructors of its parent.
        unsafe { libc::_exit(0) }
    }
    let stream = |family| socket(family, SockType::Stream, SockFlag::empty(), None).is_ok();
    let shell = c"/bin/sh";
    let lists = |path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some_and(|e| e.is_ok()));
    let beside = openat(Some(input.as_raw_fd()), "../beside", OFlag::O_RDONLY, Mode::empty());
    let is_open = |descriptor: i32| fstat(descriptor).is_ok();
    let inherited = word("inherited").and_then(|number| number.parse().ok()).is_some_and(is_open);
    let is_null = |descriptor| fstat(descriptor).is_ok_and(|file| file.st_rdev == 0x103);
    // SAFETY: takes numbers only.
    let owner = unsafe { libc::fcntl(0, libc::F_SETOWN, getppid().as_raw()) };
    vec![
        ("use a descriptor of its caller", inherited),
        ("use a terminal", !is_null(1) || !is_null(2)),
        ("fork", forked.is_ok()),
        ("execute", execv(shell, &[shell]).is_ok()),
        ("signal its parent", nix::sys::signal::kill(getppid(), None).is_ok()),
        ("have its parent signalled", owner == 0),
        ("climb out of its input", beside.is_ok()),
        ("read its parent's memory", fs::read(format!("/proc/{}/mem", getppid())).is_ok()),
        ("make an internet socket", stream(AddressFamily::Inet)),
        ("make a unix socket", stream(AddressFamily::Unix)),
        ("read a file elsewhere", fs::read("/etc/passwd").is_ok() || fs::read("../index.json").is_ok()),
        ("list a directory", lists("/") || lists(".")),
        ("write a file elsewhere", fs::write("/tmp/nodlet-escaped", "").is_ok()),
        ("make a directory", fs::create_dir("directory").is_ok()),
        ("make a link", symlink("/etc", "link").is_ok()),
        ("make a hard link", fs::hard_link("before", "link").is_ok()),
        ("rename", fs::rename("before", "after").is_ok()),
        ("change modes", fs::set_permissions("before", Permissions::from_mode(0o777)).is_ok()),
        ("change roots", chroot(".").is_ok()),
        ("change directories", chdir("..").is_ok()),
        ("mount", nix::mount::umount("/").is_ok()),
        ("have more memory", setrlimit(Resource::RLIMIT_DATA, u64::MAX, u64::MAX).is_ok()),
    ]
}

/// Run in the child: confines the process and reports what it could do nevertheless.
fn escape() {
    crate::confine::close_inherited().unwrap();
    let input = word("input").unwrap_or_else(|| "/dev/null".to_owned());
    let (socket, input) = (std::io::stdin(), File::open(input).unwrap());
    let mut socket = File::from(socket.as_fd().try_clone_to_owned().unwrap());
    fs::write("before", "").unwrap();
    let limits = crate::confine::Limits { memory: MEMORY };
    let (input, weaker) = crate::confine::confine(input, &limits).unwrap();
    let done: Vec<&str> =
        attempts(&input).into_iter().filter(|(_, done)| *done).map(|(what, _)| what).collect();
    // If this directory is the root, its parent is the root as well.
    let _ = fs::write("../escaped", "").and_then(|()| fs::remove_file("escaped"));
    fs::write("allowed", "what it is for").unwrap();
    fs::remove_file("allowed").unwrap();
    socket.write_all(format!("{done:?} {weaker:?}").as_bytes()).unwrap();
}

/// Confines a process of this user. Returns what it could do nevertheless, and what the kernel lacks.
fn escapes(user: u32, words: &[&str]) -> String {
    let scratch = Scratch::new();
    chown(scratch.path(), Some(user), Some(user)).expect("this test needs root");
    // In a directory where the confined process cannot execute it.
    let program = scratch.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::write(scratch.path().join("beside"), "").unwrap();
    let (staging, input) = (scratch.path().join("staging"), scratch.path().join("input"));
    for directory in [&staging, &input] {
        fs::create_dir(directory).unwrap();
        chown(directory, Some(user), Some(user)).unwrap();
    }
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(&program);
    command.uid(user).args(["--exact", CHILD, "escape"]).args(words).current_dir(&staging);
    // A descriptor such as a shell passes on.
    let secret = File::open("/etc/passwd").unwrap();
    // Its number is one that the process does not use itself.
    let secret = secret.as_raw_fd();
    let secret = nix::fcntl::fcntl(secret, nix::fcntl::FcntlArg::F_DUPFD(700)).unwrap();
    // SAFETY: the call returned a new descriptor that nobody else owns.
    let secret = unsafe { OwnedFd::from_raw_fd(secret) };
    command.arg(format!("inherited={}", secret.as_raw_fd()));
    if words.contains(&"directory") {
        command.arg(format!("input={}", input.display()));
    }
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    // The other end is now only the child's, so that this process notices the child's death.
    drop(command);
    let mut said = String::new();
    ours.read_to_string(&mut said).unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_dir(&staging).unwrap().count(), 1, "user {user}");
    let escaped = scratch.path().join("escaped").exists();
    assert_eq!(escaped, said.contains("a file elsewhere"), "user {user}");
    said
}

const NOBODY: u32 = 65534;

/// Without root, only Landlock confines files: this test fails on a kernel without it, and `confine` warns
/// the user.
#[test]
fn a_confined_process_can_do_nothing_but_write_new_files() {
    for user in [0, NOBODY] {
        for words in [&[][..], &["directory"]] {
            assert_eq!(escapes(user, words), "[] []", "done by user {user}, and what the kernel lacks");
        }
    }
}

/// Instead of Landlock, root has its own root directory, and an input directory is a mount of its own.
#[test]
fn without_landlock_root_is_still_confined_and_other_users_get_a_warning() {
    for errno in [Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::EPERM] {
        let landlock = format!("landlock={}", errno as i32);
        for words in [&[&*landlock][..], &[&landlock, "directory"]] {
            assert_eq!(escapes(0, words), "[] []", "done by root, and what it has received");
            let said = escapes(NOBODY, words);
            let warning = "unpacked with less protection: only Landlock would keep its reader from other files \
                        (CONFIG_SECURITY_LANDLOCK, Linux 5.13), and this kernel has none";
            assert!(said.contains(warning), "{said}");
            assert!(said.contains("\"read a file elsewhere\""), "else the warning is too much: {said}");
            for never in ["fork", "execute", "signal", "socket", "mount"] {
                assert!(!said.contains(&format!("\"{never}")), "{said}");
            }
        }
    }
    let _ = fs::remove_file("/tmp/nodlet-escaped");
}

#[test]
fn an_unpacking_process_that_cannot_be_confined_reads_nothing_and_reports_why() {
    let scratch = Scratch::new();
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, new()).unwrap();
    let root = scratch.path().join("root");
    let store = with_old(&root);
    let before = listing(&root);
    let landlock = format!("landlock={}", Errno::EACCES as i32);
    let error = store.load_path(&archive, &options(&[landlock]), &mut |_| {}).unwrap_err();
    let cause = error.source().unwrap();
    assert_eq!(
        format!("{error}: {cause}"),
        "confine the process that reads the archive: Permission denied (os error 13)"
    );
    assert_eq!(listing(&root), before);
}
