//! `nodlet push` and `nodlet --board` to a device whose `ssh` is a shell, since these tests do not test ssh
//! itself; `cargo xtask boards` uses a real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nodlet_tests::image::{ARCHITECTURE, Image};
use nodlet_tests::ssh::{BOARD, Line, cutter, noise, path, text};
use nodlet_tests::{Device, manifest, nodlet_program};

/// A device, and a connection to it that passes all bytes.
fn board() -> (Device, Line) {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    (device, line)
}

/// Pushes with these arguments.
fn push(device: &Device, line: &Line, words: &[&str]) -> String {
    line.ok(device, &[&["push", BOARD][..], words].concat())
}

/// Tries to push with these arguments. Returns why that failed.
fn refused(device: &Device, line: &Line, words: &[&str]) -> String {
    line.refused(device, &[&["push", BOARD][..], words].concat())
}

/// Writes an archive of an image with one file of noise. Returns its path.
fn archive(device: &Device, file: &str, name: &str, length: usize, seed: u64) -> String {
    write(device, file, &Image::new(name).file("a", 0o644, &noise(length, seed)))
}

fn write(device: &Device, file: &str, image: &Image) -> String {
    let archive = device.path(file);
    image.write_oci_archive(&archive).expect("written");
    archive.display().to_string()
}

/// Replaces the board's `nodlet` by a script, which may end with the arguments of this text.
fn replace_program(line: &Line, script: &str) {
    let program = line.directory.join("nodlet");
    let _ = fs::remove_file(&program);
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its own");
}

/// The state that a push may change: images, and applied pods.
fn state(device: &Device) -> (String, Vec<String>) {
    (device.nodlet(["image", "ls"]).ok(), device.pods())
}

/// The files that a push leaves on the board until it is complete.
fn spool(device: &Device) -> Vec<PathBuf> {
    let entries = fs::read_dir(device.path("/var/lib/nodlet/push")).expect("made by a push");
    entries.map(|entry| entry.expect("listed").path()).collect()
}

/// Removes what a push left on the board.
fn empty_spool(device: &Device) {
    spool(device).iter().for_each(|file| fs::remove_file(file).expect("only parts lie there"));
}

#[test]
fn every_verb_reaches_the_agent_of_a_board_or_says_why_not() {
    let (device, line) = board();
    let file = device.file("/web.yaml", manifest::pod("web", "print hello then sleep"));
    assert_eq!(line.ok(&device, &["--board", BOARD, "apply", "-f", &file]), "pod/web created\n");
    device.pod("web").wait_ready();
    device.pod("web").wait_log("app", "hello");
    assert!(line.ok(&device, &["get", "pods", "--board", BOARD]).contains("Running"));
    assert_eq!(line.ok(&device, &["--board=root@board:2222", "logs", "web"]), "hello\n");
    let exec = line.run(&device, &["--board", BOARD, "exec", "web", "--", "/bin/demo", "exit", "7"]);
    assert_eq!(exec.status.code(), Some(7), "{exec:?}");
    assert!(line.ok(&device, &["image", "ls", "--board", BOARD]).contains("localhost/demo"));
    assert!(line.refused(&device, &["--board", "a b", "get", "pods"]).contains("invalid board"));
    for (upwards, why) in
        [("exit 255; cat", "failed to connect to root@board"), ("exit 127; cat", "has no `nodlet`")]
    {
        let line = Line::new(&device, "dead", upwards);
        let refused = line.refused(&device, &["--board", BOARD, "get", "pods"]);
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn images_and_manifests_come_together_and_only_what_is_lacking_is_sent() {
    let (device, line) = board();
    let first = Image::new("localhost/app:1").file("base", 0o644, &noise(100_000, 1));
    let out = push(&device, &line, &[&write(&device, "/app1.tar", &first)]);
    assert!(out.starts_with("image/localhost/app:1 loaded, 1 of 1 layers sent, 100 kB"), "{out}");

    // From a directory: another layer on top of that image, with a pod.
    let site = device.path("/site");
    fs::create_dir(&site).expect("new");
    let program = fs::read(nodlet_tests::demo_program()).expect("built");
    let second = first.layer().directory("bin", 0o755).file("bin/demo", 0o755, &program);
    second.write_docker_archive(&site.join("app.tar")).expect("written");
    let pod = manifest::pod("app", "print pushed then sleep").replace("localhost/demo:1", "localhost/app:1");
    device.file("/site/app.yaml", pod.replace("args:", "command: [/bin/demo]\n    args:"));
    device.file("/site/notes.txt", "contains neither manifests");
    assert_eq!(
        push(&device, &line, &[path(&site), "--dry-run"]),
        "image/localhost/app:1 checked, 1 of 2 layers lacking (server dry run)\n\
         pod/app created (server dry run)\n"
    );
    assert!(device.pods().is_empty());
    let out = push(&device, &line, &[path(&site), "--wait"]);
    assert!(out.starts_with("image/localhost/app:1 loaded, 1 of 2 layers sent, "), "{out}");
    assert!(out.ends_with("pod/app created\npod/app ready\n"), "{out}");
    assert_eq!(
        push(&device, &line, &[path(&site), "--wait"]),
        "image/localhost/app:1 unchanged, 0 of 2 layers sent, 0 B\npod/app unchanged\npod/app ready\n"
    );
}

#[test]
fn a_push_with_an_invalid_file_is_rejected_by_name_and_changes_nothing() {
    let (device, line) = board();
    let good = device.file("/good.yaml", manifest::pod("good", "sleep"));
    let image = write(&device, "/new.tar", &Image::new("localhost/new:1").file("f", 0o644, b"x"));
    let architecture = if ARCHITECTURE == "s390x" { "amd64" } else { "s390x" };
    let other = write(&device, "/other.tar", &Image::new("localhost/o:1").architecture(architecture));
    // The layer's content does not match the digest in its name.
    let mut bytes = fs::read(&image).expect("there");
    let layer = bytes.windows(2).position(|pair| pair == [0x1f, 0x8b]).expect("a layer in gzip");
    bytes[layer + 20] ^= 1;
    let damaged = device.file("/damaged.tar", &bytes);
    let before = state(&device);
    let pod = |name: &str| manifest::pod(name, "sleep");
    for (file, expected) in [
        (device.file("/notes.txt", "shopping list\n"), "notes.txt"),
        (device.file("/noise.bin", noise(2000, 3)), "noise.bin"),
        (device.file("/unknown.yaml", pod("u").replace("args", "argz")), "argz"),
        (device.file("/name.yaml", pod("Web_X")), "metadata.name"),
        (other, "other.tar has images only for"),
        ("nowhere.yaml".to_owned(), "\"nowhere.yaml\" does not exist"),
    ] {
        let refused = refused(&device, &line, &[&good, &image, &file]);
        assert!(refused.contains(expected), "{file}: {refused}");
        assert_eq!(state(&device), before, "{file}");
    }
    let refused = refused(&device, &line, &[&good, &damaged]);
    assert!(refused.contains("layer"), "{refused}");
    assert_eq!(state(&device), before);
    assert!(spool(&device).is_empty(), "refused layers take no room");
}

#[test]
fn a_push_that_is_cut_at_any_byte_changes_nothing_and_the_next_goes_on() {
    let device = Device::start();
    let image = Image::new("localhost/cut:1").file("a", 0o644, &noise(300_000, 5));
    let archive = write(&device, "/app.tar", &image.layer().file("b", 0o644, &noise(200_000, 7)));
    let pod = device.file("/cut.yaml", manifest::pod("cut", "sleep"));
    // Records how many bytes are sent.
    let counted = device.path("/counted");
    let sent = || fs::metadata(&counted).expect("counted").len();
    let whole = Line::new(&device, "whole", &format!("tee {}", counted.display()));
    push(&device, &whole, &[&archive, &pod, "--dry-run"]);
    let offer = sent();
    let before = state(&device);
    let check_cut = |at: u64| {
        empty_spool(&device);
        let refused =
            refused(&device, &Line::new(&device, "cut", &cutter(at)), &[&archive, &pod, "--retries", "0"]);
        assert_eq!(state(&device), before, "cut at {at}");
        refused
    };
    let mut cuts: Vec<u64> = vec![0, 1, 50, offer / 2, offer - 1, offer, offer + 3, offer + 30, offer + 40];
    cuts.extend((0..10).map(|step| offer + 50_000 * step + 17 * step));
    for cut in cuts {
        let refused = check_cut(cut);
        assert!(refused.contains("board"), "cut at {cut}: {refused}");
    }
    // The last cut left some 450 kB on the board.
    let out = push(&device, &whole, &[&archive, &pod]);
    assert!(sent() < offer + 150_000, "{} bytes after a cut at 450 kB", sent());
    assert!(out.ends_with("pod/cut created\n"), "{out}");
    assert!(spool(&device).is_empty(), "nothing is left over");
    // A cut between the last piece and the message that commits the push changes nothing either.
    let forget = || {
        device.nodlet(["delete", "pod", "cut"]).ok();
        device.nodlet(["image", "rm", "localhost/cut:1"]).ok();
    };
    forget();
    push(&device, &whole, &[&archive, &pod]);
    forget();
    let length = sent();
    for short in [1, 10, 18, 19, 40] {
        check_cut(length - short);
    }
}

#[test]
fn a_second_push_at_the_same_time_is_rejected() {
    let (device, plain) = board();
    let archive = archive(&device, "/app.tar", "localhost/slow:1", 100_000, 9);
    // Holds its connection open after the offer.
    let gate = device.path("/gate");
    let upwards = format!("({}; until test -e {}; do sleep 0.1; done; cat)", cutter(150), gate.display());
    let slow = Line::new(&device, "slow", &upwards);
    let mut command = device.command(&["push", BOARD, &archive]);
    command.env("NODLET_SSH", slow.directory.join("ssh")).stdout(Stdio::null());
    let mut first = command.spawn().expect("nodlet can be started");
    let spool = device.path("/var/lib/nodlet/push");
    let held = || {
        fs::File::open(&spool).is_ok_and(|file| {
            nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock).is_err()
        })
    };
    device.wait_for("the first push to hold the spool", held);
    let before = state(&device);
    let refused = refused(&device, &plain, &[&archive]);
    assert!(refused.contains("another push to this board is running"), "{refused}");
    assert_eq!(state(&device), before);
    fs::write(&gate, "").expect("opened");
    assert!(first.wait().expect("a child").success());
    assert!(device.nodlet(["image", "ls"]).ok().contains("localhost/slow"));
}

#[test]
fn a_full_disk_is_reported_before_anything_is_sent() {
    let mut device = Device::new();
    let _disk = device.mount_tmpfs("/var/lib/nodlet", "size=2m");
    device.start_agent();
    let line = Line::new(&device, "plain", "cat");
    let archive = archive(&device, "/app.tar", "localhost/big:1", 3_000_000, 11);
    let before = state(&device);
    let refused = refused(&device, &line, &[&archive]);
    assert!(refused.contains("not enough space on the board's disk: the layers need 3.0 MB"), "{refused}");
    assert_eq!(state(&device), before);
}

/// The path of a push's record; the record does not exist once the push is complete.
fn record(device: &Device) -> PathBuf {
    device.path("/var/lib/nodlet/push/redo.json")
}

#[test]
fn a_manifest_that_is_rejected_at_the_end_takes_back_those_before_it() {
    let (device, line) = board();
    let site = device.path("/site");
    fs::create_dir(&site).expect("new");
    let write_file = |name: &str, text: String| device.file(&format!("/site/{name}"), text);
    write_file("1.yaml", manifest::pod("old", "print first then sleep"));
    push(&device, &line, &[path(&site), "--wait"]);
    // Each class is valid alone, but at most one may be the default.
    write_file("1.yaml", manifest::pod("old", "print second then sleep"));
    write_file("2.yaml", manifest::pod("new", "sleep"));
    let class = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nvalue: 10\nglobalDefault: true\n";
    write_file("3.yaml", format!("{class}metadata: {{name: low}}\n"));
    write_file("4.yaml", format!("{class}metadata: {{name: high}}\n"));
    // The push brings a new image, and another image for a name that is in use.
    let image = |file: &str, name: &str, bytes: &[u8]| {
        write(&device, &format!("/site/{file}"), &Image::new(name).file("f", 0o644, bytes))
    };
    push(&device, &line, &[&image("used.tar", "localhost/used:1", b"first")]);
    image("used.tar", "localhost/used:1", b"second");
    image("new.tar", "localhost/new:1", b"new");
    let store = || {
        let files = |name: &str| {
            let entries =
                fs::read_dir(device.path("/var/lib/nodlet/images").join(name)).expect("of the store");
            let names = entries.map(|entry| entry.expect("listed").file_name());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        (device.nodlet(["image", "ls"]).ok(), files("layers"), files("images"))
    };
    let before = store();
    push(&device, &line, &[path(&site), "--dry-run"]);
    let refused = refused(&device, &line, &[path(&site)]);
    assert!(refused.contains("4.yaml") && refused.contains("rolled back"), "{refused}");
    assert!(refused.contains("the images of the push are removed"), "{refused}");
    assert_eq!(store(), before);
    assert!(spool(&device).is_empty(), "nothing is left over");
    device.wait_for("what was applied to be taken back", || {
        let old_is_back = device.pod("old").object().is_some_and(|_| device.pod("old").is_ready());
        let (code, _) = device.request("GET", "/apis/scheduling.k8s.io/v1/priorityclasses/low", None);
        old_is_back && device.pods() == ["old"] && code == 404
    });
    device.pod("old").wait_log("app", "first");
    assert!(!record(&device).exists());
}

#[test]
fn a_push_that_lost_its_power_is_carried_out_when_its_images_were_loaded() {
    let (mut device, line) = board();
    let archive = write(&device, "/app.tar", &Image::new("localhost/power:1").file("a", 0o644, b"x"));
    push(&device, &line, &[&archive]);
    let images =
        fs::read_dir(device.path("/var/lib/nodlet/images/images")).expect("images are there").flatten();
    let is_it = |file: &PathBuf| !fs::read_to_string(file).expect("readable").contains("/bin/demo");
    let file = images.map(|entry| entry.path()).find(is_it).expect("the image's record");
    let id = format!("sha256:{}", file.file_stem().and_then(|name| name.to_str()).expect("its digest"));
    let redo = |id: &str, pod: &str| {
        let object = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod}, "spec": {
            "containers": [{"name": "app", "image": "localhost/demo:1", "args": ["sleep"]}]}});
        serde_json::json!({
            "format": 1, "images": [id], "names": {"localhost/power:1": id}, "validation": "strict",
            "manifests": [{"place": "x.yaml", "namespace": "default", "object": object}],
            "before": {format!("default_{pod}.json"): null}, "back": false,
        })
        .to_string()
    };
    // The push was cut after the load.
    device.kill_agent();
    fs::write(record(&device), redo(&id, "after")).expect("written");
    device.start_agent();
    device.wait_for("the push to be carried out", || !record(&device).exists());
    assert_eq!(device.pods(), ["after"]);
    device.pod("after").wait_ready();
    // The push was cut before the load.
    device.kill_agent();
    fs::write(record(&device), redo(&format!("sha256:{}", "0".repeat(64)), "before")).expect("written");
    device.start_agent();
    device.wait_for("the push to be forgotten", || !record(&device).exists());
    assert_eq!(device.pods(), ["after"]);
    // If no agent was started in between, the next push completes the interrupted one.
    fs::write(record(&device), redo(&id, "next")).expect("written");
    push(&device, &line, &[&archive]);
    assert!(!record(&device).exists());
    let mut pods = device.pods();
    pods.sort();
    assert_eq!(pods, ["after", "next"]);
    // The push was cut while its record was written.
    let partial = record(&device).with_file_name(".redo.json.new");
    device.kill_agent();
    fs::write(&partial, "{").expect("written");
    device.start_agent();
    device.wait_for("the rest of the record to be removed", || !partial.exists());
}

#[test]
fn an_update_is_sent_with_its_signature_and_the_boards_verdict_is_passed_on() {
    let (device, line) = board();
    // More than all buffers on the way can hold.
    let program = device.file("/nodlet-9", noise(3_000_000, 13));
    // Process 1 of the test machine is not nodlet: the push is rejected before the board reads any of it.
    let why = refused(&device, &line, &["--system", &program]);
    assert!(why.contains("and not nodlet's init"), "{why}");

    // A board that stores what it is sent.
    let board = Line::new(&device, "board", "cat");
    let (got, said) = (device.path("/got"), device.path("/said"));
    let stand_in = |end: &str| {
        let store = format!("echo \"$@\" > {}\ncat > {}\n{end}", said.display(), got.display());
        replace_program(&board, &store);
    };
    let signature = "untrusted comment: a\nRUQ\ntrusted comment: b\nabc=\n";
    let check = |arguments: &str, signature: &str| {
        let said = fs::read_to_string(&said).expect("called");
        assert_eq!(said, format!("--root {} {arguments}\n", device.root().display()));
        let whole = [signature.as_bytes(), &fs::read(&program).expect("there")].concat();
        assert!(fs::read(&got).expect("called") == whole, "other content");
    };
    stand_in("echo kept");
    assert_eq!(push(&device, &board, &["--system", &program]), "kept\n");
    check("system install - --wait", "");
    device.file("/nodlet-9.minisig", signature);
    push(&device, &board, &["--system", &program, "--allow-downgrade"]);
    check("system install - --allow-downgrade --wait", signature);
    let other = device.file("/other.minisig", signature.replace("abc", "xyz"));
    push(&device, &board, &["--system", &program, "--signature", &other]);
    check("system install - --wait", &signature.replace("abc", "xyz"));
    board.ok(&device, &["system", "install", &program, "--board", BOARD]);
    check("system install -", signature);
    stand_in("echo given up >&2; exit 1");
    assert_eq!(refused(&device, &board, &["--system", &program]), "given up\n");

    // Errors on this side are reported before a connection is made.
    fs::remove_file(&said).expect("there");
    device.file("/other.minisig", "shopping list\n");
    for (words, expected) in [
        (format!("{program} --signature {other}"), "other.minisig is not a minisign signature"),
        ("nowhere".to_owned(), "failed to read nowhere"),
        ("/".to_owned(), "/ is not a file"),
        (format!("{program} --dry-run"), "--dry-run cannot be used with --system"),
        (format!("{program} web.yaml"), "--system accepts no other files"),
    ] {
        let words: Vec<&str> = ["--system"].into_iter().chain(words.split(' ')).collect();
        let refused = refused(&device, &board, &words);
        assert!(refused.contains(expected), "{words:?}: {refused}");
    }
    assert!(!said.exists());
    let dead = Line::new(&device, "dead", "exit 255; cat");
    let why = refused(&device, &dead, &["--system", &program]);
    assert!(why.contains("failed to connect to root@board, or the connection was lost"), "{why}");
}

#[test]
fn verbs_of_the_machine_act_on_the_board() {
    let (device, real) = board();
    let board = Line::new(&device, "board", "cat");
    replace_program(&board, "echo \"$@\"; exit 3");
    for words in [
        "system",
        "system rollback",
        "healthcheck --pods --wait 2m",
        "safe-mode --leave",
        "factory-reset",
        "identity -",
        "image ls",
        "doctor",
        "reboot",
    ] {
        let output = board.run(&device, &words.split(' ').chain(["--board", BOARD]).collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(3), "{words:?}: {output:#?}");
        let expected = format!("--root {} {words}\n", device.root().display());
        assert_eq!(text(&output.stdout), expected, "{output:#?}");
    }
    assert_eq!(real.ok(&device, &["healthcheck", "--board", BOARD]), "");
}

#[test]
fn members_of_the_sockets_group_list_images_and_push_them() {
    /// The uid of an ordinary user, and the gid of the socket's group.
    const USER: u32 = 65534;
    let (device, line) = board();
    // The programs under test may be in a directory that only root can enter.
    let program = line.directory.join("nodlet");
    fs::remove_file(&program).expect("a link");
    fs::copy(nodlet_program(), &program).expect("copied");
    let as_member = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--root").arg(device.root()).args(words).stdin(Stdio::null());
        command.env("NODLET_SSH", line.directory.join("ssh")).uid(USER).gid(USER).current_dir("/");
        command.output().expect("nodlet can be started")
    };
    push(&device, &line, &[&archive(&device, "/app.tar", "localhost/pushed:1", 1, 1)]);
    // Root's umask does not matter.
    let other = archive(&device, "/other.tar", "localhost/other:1", 1, 3);
    let nodlet = format!("{} --root {}", nodlet_program().display(), device.root().display());
    let script = format!("umask 077; {nodlet} image load {other} && {nodlet} image rm localhost/other:1");
    let changed = Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(changed.status.success(), "{changed:?}");
    let listed = as_member(&["image", "ls"]);
    assert!(listed.status.success(), "{listed:?}");
    let (listed, all) = (text(&listed.stdout), device.nodlet(["image", "ls"]).ok());
    assert!(listed.contains("localhost/pushed:1") && listed == all, "{listed}{all}");
    let removed = as_member(&["image", "rm", "localhost/pushed:1"]);
    let refused = text(&removed.stderr);
    assert!(removed.status.code() == Some(1) && refused.contains("Permission denied"), "{refused}");
    assert_eq!(device.nodlet(["image", "ls"]).ok(), all);

    let image = archive(&device, "/member.tar", "localhost/member:1", 1, 5);
    let pod = device.file("/web.yaml", manifest::pod("web", "print hello then sleep"));
    for file in [&image, &pod] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("its own");
    }
    std::os::unix::fs::chown(device.path("/run/nodlet/api.sock"), None, Some(USER)).expect("it is root's");
    let member = as_member(&["push", BOARD, &image, &pod]);
    assert!(member.status.success(), "{member:?}");
    assert!(text(&member.stdout).ends_with("pod/web created\n"), "{member:?}");
    device.pod("web").wait_ready();
    assert!(device.nodlet(["image", "ls"]).ok().contains("localhost/member:1"));
}

#[test]
fn a_push_goes_on_by_itself_after_a_dropped_line() {
    let device = Device::start();
    let archive = archive(&device, "/app.tar", "localhost/retry:1", 900_000, 17);
    let pod = device.file("/retry.yaml", manifest::pod("retry", "sleep"));
    // Each connection ends after 400 kB, except the third, which is never established.
    let (counted, passed) = (device.path("/counted"), device.path("/passed"));
    let upwards = format!(
        "echo >> {0}; (case $(wc -l < {0}) in 3) exit 1;; *) {1};; esac) | tee -a {2}",
        counted.display(),
        cutter(400_000),
        passed.display()
    );
    let line = Line::new(&device, "dropped", &upwards);
    let output = line.run(&device, &["push", BOARD, &archive, &pod]);
    assert!(output.status.success(), "{output:?}");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.starts_with("image/localhost/retry:1 loaded, 1 of 1 layers sent, "), "{out}");
    assert!(out.ends_with("pod/retry created\n"), "{out}");
    let pauses: Vec<&str> = err.lines().filter_map(|line| line.split("retrying in ").nth(1)).collect();
    assert_eq!(pauses, ["1s", "1s", "2s"], "{err}");
    let connections = fs::read_to_string(&counted).expect("counted").len();
    assert_eq!(connections, 4, "{err}");
    // The bytes that had arrived were not sent again, except a piece of 64 KiB at each cut.
    let sent = fs::metadata(&passed).expect("counted").len();
    assert!(sent < 1_100_000, "{sent} bytes for 900 kB");
    // No attempt is repeated before a layer was sent.
    let dead = Line::new(&device, "dead", "echo >> $0.calls; exit 255; cat");
    refused(&device, &dead, &[&archive]);
    let calls = fs::read_to_string(dead.directory.join("ssh.calls")).expect("called");
    assert_eq!(calls.len(), 1);
}

#[test]
fn a_board_rejects_an_update_while_it_is_being_sent() {
    let device = Device::start();
    let line = Line::new(&device, "board", "cat");
    // Here process 1 appears as nodlet's init, with the files of a device image.
    let accept = |rules: &str| {
        let script = format!(
            "printf nodlet:init > /proc/1/comm\n\
             mount -t tmpfs tmpfs /mnt && mkdir -p /mnt/bin /mnt/lib/nodlet /mnt/work1 /mnt/work2 || exit 9\n\
             echo '{{\"name\": \"test\", \"update\": {rules}}}' > /mnt/lib/nodlet/board.json\n\
             echo image > /mnt/bin/nodlet\n\
             mount -t overlay o -o lowerdir=/usr/lib,upperdir=/mnt/lib,workdir=/mnt/work1 /usr/lib || exit 9\n\
             mount -t overlay o -o lowerdir=/usr/bin,upperdir=/mnt/bin,workdir=/mnt/work2 /usr/bin || exit 9\n\
             {0} \"$@\"\nexit $?\n",
            nodlet_program().display()
        );
        let script = device.file("/inner", script);
        replace_program(&line, &format!("exec unshare -m -p -f --mount-proc sh {script} \"$@\""));
    };
    let program = device.file("/nodlet-9", noise(3_000_000, 19));
    let check_refused = |why: &str| {
        let refused = refused(&device, &line, &["--system", &program]);
        assert!(refused.contains(why), "{refused}");
        refused
    };
    accept("{\"keys\": [\"RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\"]}");
    assert!(check_refused("it is not signed").starts_with("error: the update is rejected: it is not signed"));
    // The key's own signature, of the four bytes `test`.
    let signature = device.file(
        "/nodlet-9.minisig",
        "untrusted comment: signature from minisign secret key\n\
         RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
         trusted comment: timestamp:1633700835\tfile:test\tprehashed\n\
         wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==\n",
    );
    check_refused("it is not a program");
    let own = fs::read(nodlet_program()).expect("built");
    fs::write(&program, &own[..1_000_000.min(own.len())]).expect("written");
    check_refused("the file is incomplete");
    accept("{}");
    fs::remove_file(&signature).expect("there");
    check_refused("this board accepts no updates");
    assert!(line.ok(&device, &["system", "--board", BOARD]).contains("Image:        nodlet "));
    // The empty file that is locked for each change is made in advance: a full disk has no inode for it.
    let left: Vec<_> = fs::read_dir(device.path("/var/lib/nodlet/system"))
        .expect("made")
        .map(|entry| entry.expect("read").file_name())
        .collect();
    assert_eq!(left, ["changes"], "nothing is left of what was rejected");
}

#[test]
fn archives_of_every_form_that_loads_can_be_pushed() {
    let (device, line) = board();
    let directory = device.path("/forms");
    fs::create_dir(&directory).expect("new");
    for (number, (form, made)) in [
        ("oci.tar", "mv plain.tar oci.tar"),
        ("docker.tar", "mv plain.tar docker.tar"),
        ("a.tar.gz", "gzip -c plain.tar > a.tar.gz"),
        ("b.tgz", "gzip -c plain.tar > b.tgz"),
        ("c.tar.zst", "zstd -q plain.tar -o c.tar.zst"),
        ("layout", "mkdir layout && tar -xf plain.tar -C layout"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("localhost/form-{number}:1");
        let image = Image::new(&name).file("f", 0o644, &noise(50_000, 3 + 2 * number as u64));
        let plain = directory.join("plain.tar");
        match form {
            "docker.tar" => image.write_docker_archive(&plain).expect("written"),
            _ => image.write_oci_archive(&plain).expect("written"),
        }
        let done = Command::new("sh").args(["-c", made]).current_dir(&directory).status();
        assert!(done.is_ok_and(|status| status.success()), "{made}");
        let out = push(&device, &line, &[path(&directory.join(form))]);
        assert!(out.starts_with(&format!("image/{name} loaded, 1 of 1 layers sent, ")), "{form}: {out}");
    }
}

#[test]
fn a_push_whose_wait_times_out_exits_with_1_and_names_the_pod() {
    let (device, line) = board();
    let pod = manifest::pod("never", "sleep").replace("localhost/demo:1", "localhost/nowhere:1");
    let file = device.file("/never.yaml", pod);
    let output = line.run(&device, &["push", BOARD, &file, "--wait=2s"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).starts_with("pod/never created\n"), "{output:?}");
    let why = text(&output.stderr);
    assert!(why.contains("pod/never") && why.contains("ready"), "{why}");
}
