//! `nodlet push` and `nodlet --board` to a device whose `ssh` is a shell, since these tests do not test ssh
//! itself; `cargo xtask boards` uses a real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use nodlet_tests::image::{ARCHITECTURE, Image};
use nodlet_tests::ssh::{BOARD, Line, cutter, noise, path, text};
use nodlet_tests::{Device, manifest, nodlet_program};

/// The state that a push may change: images, and applied pods.
fn state(device: &Device) -> (String, Vec<String>) {
    (device.nodlet(["image", "ls"]).ok(), device.pods())
}

#[test]
fn every_verb_reaches_the_agent_of_a_board() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let file = device.path("/web.yaml");
    fs::write(&file, manifest::pod("web", "print hello then sleep")).expect("written");
    assert_eq!(line.ok(&device, &["--board", BOARD, "apply", "-f", path(&file)]), "pod/web created\n");
    device.pod("web").wait_ready();
    device.pod("web").wait_log("app", "hello");
    assert!(line.ok(&device, &["get", "pods", "--board", BOARD]).contains("Running"));
    assert_eq!(line.ok(&device, &["--board=root@board:2222", "logs", "web"]), "hello\n");
    let exec = line.run(&device, &["--board", BOARD, "exec", "web", "--", "/bin/demo", "exit", "7"]);
    assert_eq!(exec.status.code(), Some(7), "{exec:?}");
    assert!(line.ok(&device, &["image", "ls", "--board", BOARD]).contains("localhost/demo"));
    assert!(line.refused(&device, &["--board", "a b", "get", "pods"]).contains("invalid board"));
}

#[test]
fn a_failed_connection_to_the_board_is_reported_with_its_cause() {
    let device = Device::start();
    let dead = Line::new(&device, "dead", "exit 255; cat");
    assert!(
        dead.refused(&device, &["--board", BOARD, "get", "pods"]).contains("failed to connect to root@board")
    );
    let bare = Line::new(&device, "bare", "exit 127; cat");
    assert!(bare.refused(&device, &["--board", BOARD, "get", "pods"]).contains("has no `nodlet`"));
}

#[test]
fn images_and_manifests_come_together_and_only_what_is_lacking_is_sent() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let first = Image::new("localhost/app:1").file("base", 0o644, &noise(100_000, 1));
    let archive = device.path("/app1.tar");
    first.clone().write_oci_archive(&archive).expect("written");
    let out = line.ok(&device, &["push", BOARD, path(&archive)]);
    assert!(out.starts_with("image/localhost/app:1 loaded, 1 of 1 layers sent, 100 kB"), "{out}");

    // From a directory: another layer on top of that image, with a pod.
    let site = device.path("/site");
    fs::create_dir(&site).expect("new");
    let program = fs::read(nodlet_tests::demo_program()).expect("built");
    let second = first.layer().directory("bin", 0o755).file("bin/demo", 0o755, &program);
    second.write_docker_archive(&site.join("app.tar")).expect("written");
    let pod = manifest::pod("app", "print pushed then sleep").replace("localhost/demo:1", "localhost/app:1");
    fs::write(site.join("app.yaml"), pod.replace("args:", "command: [/bin/demo]\n    args:"))
        .expect("written");
    fs::write(site.join("notes.txt"), "contains neither manifests").expect("written");
    let would = line.ok(&device, &["push", BOARD, path(&site), "--dry-run"]);
    assert_eq!(
        would,
        "image/localhost/app:1 checked, 1 of 2 layers lacking (server dry run)\n\
         pod/app created (server dry run)\n"
    );
    assert!(device.pods().is_empty());
    let out = line.ok(&device, &["push", BOARD, path(&site), "--wait"]);
    assert!(out.starts_with("image/localhost/app:1 loaded, 1 of 2 layers sent, "), "{out}");
    assert!(out.ends_with("pod/app created\npod/app ready\n"), "{out}");
    let out = line.ok(&device, &["push", BOARD, path(&site), "--wait"]);
    assert_eq!(
        out,
        "image/localhost/app:1 unchanged, 0 of 2 layers sent, 0 B\npod/app unchanged\npod/app ready\n"
    );
}

#[test]
fn a_push_with_an_invalid_file_is_rejected_by_name_and_changes_nothing() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let write = |name: &str, bytes: &[u8]| {
        let file = device.path(&format!("/{name}"));
        fs::write(&file, bytes).expect("written");
        path(&file).to_owned()
    };
    let good = write("good.yaml", manifest::pod("good", "sleep").as_bytes());
    let image = device.path("/new.tar");
    Image::new("localhost/new:1").file("f", 0o644, b"x").write_oci_archive(&image).expect("written");
    let other = device.path("/other.tar");
    let architecture = if ARCHITECTURE == "s390x" { "amd64" } else { "s390x" };
    Image::new("localhost/o:1").architecture(architecture).write_oci_archive(&other).expect("written");
    let before = state(&device);
    for (file, expected) in [
        (write("notes.txt", b"shopping list\n"), "notes.txt"),
        (write("noise.bin", &noise(2000, 3)), "noise.bin"),
        (write("unknown.yaml", manifest::pod("u", "sleep").replace("args", "argz").as_bytes()), "argz"),
        (write("name.yaml", manifest::pod("Web_X", "sleep").as_bytes()), "metadata.name"),
        (path(&other).to_owned(), "other.tar has images only for"),
        ("nowhere.yaml".to_owned(), "\"nowhere.yaml\" does not exist"),
    ] {
        let refused = line.refused(&device, &["push", BOARD, &good, path(&image), &file]);
        assert!(refused.contains(expected), "{file}: {refused}");
        assert_eq!(state(&device), before, "{file}");
    }
    // The layer's content does not match the digest in its name.
    let mut bytes = fs::read(&image).expect("there");
    let layer = bytes.windows(2).position(|pair| pair == [0x1f, 0x8b]).expect("a layer in gzip");
    bytes[layer + 20] ^= 1;
    let damaged = write("damaged.tar", &bytes);
    let refused = line.refused(&device, &["push", BOARD, &good, &damaged]);
    assert!(refused.contains("layer"), "{refused}");
    assert_eq!(state(&device), before);
    let spool = device.path("/var/lib/nodlet/push");
    assert_eq!(fs::read_dir(spool).expect("made by the push").count(), 0, "refused layers take no room");
}

#[test]
fn a_push_that_is_cut_at_any_byte_changes_nothing_and_the_next_goes_on() {
    let device = Device::start();
    let archive = device.path("/app.tar");
    let image = Image::new("localhost/cut:1").file("a", 0o644, &noise(300_000, 5));
    image.layer().file("b", 0o644, &noise(200_000, 7)).write_oci_archive(&archive).expect("written");
    let pod = device.path("/cut.yaml");
    fs::write(&pod, manifest::pod("cut", "sleep")).expect("written");
    // Records how many bytes are sent.
    let counted = device.path("/counted");
    let whole = Line::new(&device, "whole", &format!("tee {}", counted.display()));
    whole.ok(&device, &["push", BOARD, path(&archive), path(&pod), "--dry-run"]);
    let offer = fs::metadata(&counted).expect("counted").len();
    let before = state(&device);
    let spool = device.path("/var/lib/nodlet/push");
    let forget = || {
        for entry in fs::read_dir(&spool).expect("made by the dry run") {
            fs::remove_file(entry.expect("listed").path()).expect("only parts lie there");
        }
    };
    let mut cuts: Vec<u64> = vec![0, 1, 50, offer / 2, offer - 1, offer, offer + 3, offer + 30, offer + 40];
    cuts.extend((0..10).map(|step| offer + 50_000 * step + 17 * step));
    for cut in cuts {
        forget();
        let line = Line::new(&device, "cut", &cutter(cut));
        let refused = line.refused(&device, &["push", BOARD, path(&archive), path(&pod), "--retries", "0"]);
        assert!(refused.contains("board"), "cut at {cut}: {refused}");
        assert_eq!(state(&device), before, "cut at {cut}");
    }
    // The last cut left some 450 kB on the board.
    let out = whole.ok(&device, &["push", BOARD, path(&archive), path(&pod)]);
    let sent = fs::metadata(&counted).expect("counted").len();
    assert!(sent < offer + 150_000, "{sent} bytes after a cut at 450 kB");
    assert!(out.ends_with("pod/cut created\n"), "{out}");
    assert!(fs::read_dir(&spool).expect("still there").next().is_none(), "nothing is left over");
    // A cut between the last piece and the message that commits the push changes nothing either.
    device.nodlet(["delete", "pod", "cut"]).ok();
    device.nodlet(["image", "rm", "localhost/cut:1"]).ok();
    let all = whole.run(&device, &["push", BOARD, path(&archive), path(&pod)]);
    assert!(all.status.success(), "{all:?}");
    let length = fs::metadata(&counted).expect("counted").len();
    device.nodlet(["delete", "pod", "cut"]).ok();
    device.nodlet(["image", "rm", "localhost/cut:1"]).ok();
    for short in [1, 10, 18, 19, 40] {
        forget();
        let line = Line::new(&device, "cut", &cutter(length - short));
        line.refused(&device, &["push", BOARD, path(&archive), path(&pod), "--retries", "0"]);
        assert_eq!(state(&device), before, "{short} bytes before the end");
    }
}

#[test]
fn a_second_push_at_the_same_time_is_rejected() {
    let device = Device::start();
    let archive = device.path("/app.tar");
    Image::new("localhost/slow:1")
        .file("a", 0o644, &noise(100_000, 9))
        .write_oci_archive(&archive)
        .expect("written");
    // Holds its connection open after the offer.
    let gate = device.path("/gate");
    let slow = Line::new(
        &device,
        "slow",
        &format!("({}; until test -e {}; do sleep 0.1; done; cat)", cutter(150), gate.display()),
    );
    let ssh = slow.directory.join("ssh");
    let mut command = device.command(&["push", BOARD, path(&archive)]);
    let mut first =
        command.env("NODLET_SSH", &ssh).stdout(Stdio::null()).spawn().expect("nodlet can be started");
    let spool = device.path("/var/lib/nodlet/push");
    let held = || {
        fs::File::open(&spool).is_ok_and(|file| {
            nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock).is_err()
        })
    };
    device.wait_for("the first push to hold the spool", held);
    let plain = Line::new(&device, "plain", "cat");
    let before = state(&device);
    let refused = plain.refused(&device, &["push", BOARD, path(&archive)]);
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
    let archive = device.path("/app.tar");
    Image::new("localhost/big:1")
        .file("a", 0o644, &noise(3_000_000, 11))
        .write_oci_archive(&archive)
        .expect("written");
    let before = state(&device);
    let refused = line.refused(&device, &["push", BOARD, path(&archive)]);
    assert!(refused.contains("not enough space on the board's disk: the layers need 3.0 MB"), "{refused}");
    assert_eq!(state(&device), before);
}

/// The path of a push's record; the record does not exist once the push is complete.
fn record(device: &Device) -> std::path::PathBuf {
    device.path("/var/lib/nodlet/push/redo.json")
}

fn priority_class(name: &str) -> String {
    format!(
        "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {{name: {name}}}\nvalue: 10\nglobalDefault: true\n"
    )
}

#[test]
fn a_manifest_that_is_rejected_at_the_end_takes_back_those_before_it() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let site = device.path("/site");
    fs::create_dir(&site).expect("new");
    let write = |name: &str, text: String| fs::write(site.join(name), text).expect("written");
    write("1.yaml", manifest::pod("old", "print first then sleep"));
    line.ok(&device, &["push", BOARD, path(&site), "--wait"]);
    // Each class is valid alone, but at most one may be the default.
    write("1.yaml", manifest::pod("old", "print second then sleep"));
    write("2.yaml", manifest::pod("new", "sleep"));
    write("3.yaml", priority_class("low"));
    write("4.yaml", priority_class("high"));
    // The push brings a new image, and another image for a name that is in use.
    let image = |name: &str, bytes: &[u8]| Image::new(name).file("f", 0o644, bytes);
    let archive = site.join("used.tar");
    image("localhost/used:1", b"first").write_oci_archive(&archive).expect("written");
    line.ok(&device, &["push", BOARD, path(&archive)]);
    image("localhost/used:1", b"second").write_oci_archive(&archive).expect("written");
    image("localhost/new:1", b"new").write_oci_archive(&site.join("new.tar")).expect("written");
    let store = || {
        let files = |name: &str| {
            let directory = device.path("/var/lib/nodlet/images").join(name);
            let names = fs::read_dir(directory)
                .expect("of the store")
                .map(|entry| entry.expect("listed").file_name());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        (device.nodlet(["image", "ls"]).ok(), files("layers"), files("images"))
    };
    let before = store();
    line.ok(&device, &["push", BOARD, path(&site), "--dry-run"]);
    let refused = line.refused(&device, &["push", BOARD, path(&site)]);
    assert!(refused.contains("4.yaml") && refused.contains("rolled back"), "{refused}");
    assert!(refused.contains("the images of the push are removed"), "{refused}");
    assert_eq!(store(), before);
    let spool = device.path("/var/lib/nodlet/push");
    assert!(fs::read_dir(&spool).expect("there").next().is_none(), "nothing is left over");
    device.wait_for("what was applied to be taken back", || {
        let old_is_back = device.pod("old").object().is_some_and(|_| device.pod("old").is_ready());
        let (code, _) = device.request("GET", "/apis/scheduling.k8s.io/v1/priorityclasses/low", None);
        old_is_back && device.pods() == ["old"] && code == 404
    });
    device.wait_for("the first pod", || device.pod("old").logs("app").contains("first"));
    assert!(!record(&device).exists());
}

#[test]
fn a_push_that_lost_its_power_is_carried_out_when_its_images_were_loaded() {
    let mut device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let archive = device.path("/app.tar");
    Image::new("localhost/power:1").file("a", 0o644, b"x").write_oci_archive(&archive).expect("written");
    line.ok(&device, &["push", BOARD, path(&archive)]);
    let id = fs::read_dir(device.path("/var/lib/nodlet/images/images"))
        .expect("images are there")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .find(|name| {
            let text = fs::read_to_string(device.path("/var/lib/nodlet/images/images").join(name));
            !text.expect("readable").contains("/bin/demo")
        })
        .expect("the image's record");
    let id = format!("sha256:{}", id.trim_end_matches(".json"));
    let object = |name: &str| -> serde_json::Value {
        serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "containers": [{"name": "app", "image": "localhost/demo:1", "args": ["sleep"]}]}})
    };
    let redo = |id: &str, pod: &str| {
        serde_json::json!({
            "format": 1, "images": [id], "names": {"localhost/power:1": id}, "validation": "strict",
            "manifests": [{"place": "x.yaml", "namespace": "default", "object": object(pod)}],
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
    line.ok(&device, &["push", BOARD, path(&archive)]);
    assert!(!record(&device).exists());
    let mut pods = device.pods();
    pods.sort();
    assert_eq!(pods, ["after", "next"]);
}

#[test]
fn an_update_is_sent_with_its_signature_and_the_boards_verdict_is_passed_on() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let program = device.path("/nodlet-9");
    // More than all buffers on the way can hold.
    fs::write(&program, noise(3_000_000, 13)).expect("written");
    // Process 1 of the test machine is not nodlet: the push is rejected before the board reads any of it.
    let refused = line.refused(&device, &["push", BOARD, "--system", path(&program)]);
    assert!(refused.contains("and not nodlet's init"), "{refused}");

    // A board that stores what it is sent.
    let board = Line::new(&device, "board", "cat");
    let (got, said) = (device.path("/got"), device.path("/said"));
    let nodlet = board.directory.join("nodlet");
    let stand_in = |end: &str| {
        let _ = fs::remove_file(&nodlet);
        let script = format!("#!/bin/sh\necho \"$@\" > {}\ncat > {}\n{end}\n", said.display(), got.display());
        fs::write(&nodlet, script).expect("written");
        fs::set_permissions(&nodlet, fs::Permissions::from_mode(0o755)).expect("its own");
    };
    let signature = "untrusted comment: a\nRUQ\ntrusted comment: b\nabc=\n";
    let whole = |signature: &str| [signature.as_bytes(), &fs::read(&program).expect("there")].concat();
    let check = |arguments: &str, signature: &str| {
        let said = fs::read_to_string(&said).expect("called");
        assert_eq!(said, format!("--root {} {arguments}\n", device.root().display()));
        assert!(fs::read(&got).expect("called") == whole(signature), "other content");
    };
    stand_in("echo kept");
    assert_eq!(board.ok(&device, &["push", BOARD, "--system", path(&program)]), "kept\n");
    check("system install - --wait", "");
    fs::write(device.path("/nodlet-9.minisig"), signature).expect("written");
    board.ok(&device, &["push", BOARD, "--system", path(&program), "--allow-downgrade"]);
    check("system install - --allow-downgrade --wait", signature);
    let other = device.path("/other.minisig");
    fs::write(&other, signature.replace("abc", "xyz")).expect("written");
    board.ok(&device, &["push", BOARD, "--system", path(&program), "--signature", path(&other)]);
    check("system install - --wait", &signature.replace("abc", "xyz"));
    board.ok(&device, &["system", "install", path(&program), "--board", BOARD]);
    check("system install -", signature);
    stand_in("echo given up >&2; exit 1");
    assert_eq!(board.refused(&device, &["push", BOARD, "--system", path(&program)]), "given up\n");

    // Errors on this side are reported before a connection is made.
    fs::remove_file(&said).expect("there");
    fs::write(&other, "shopping list\n").expect("written");
    for (words, expected) in [
        (
            vec!["--system", path(&program), "--signature", path(&other)],
            "other.minisig is not a minisign signature",
        ),
        (vec!["--system", "nowhere"], "failed to read nowhere"),
        (vec!["--system", "/"], "/ is not a file"),
        (vec!["--system", path(&program), "--dry-run"], "--dry-run cannot be used with --system"),
        (vec!["--system", path(&program), "web.yaml"], "--system accepts no other files"),
    ] {
        let refused = board.refused(&device, &[&["push", BOARD][..], &words].concat());
        assert!(refused.contains(expected), "{words:?}: {refused}");
    }
    assert!(!said.exists());
    let dead = Line::new(&device, "dead", "exit 255; cat");
    let refused = dead.refused(&device, &["push", BOARD, "--system", path(&program)]);
    assert!(refused.contains("failed to connect to root@board, or the connection was lost"), "{refused}");
}

#[test]
fn verbs_of_the_machine_act_on_the_board() {
    let device = Device::start();
    let board = Line::new(&device, "board", "cat");
    let nodlet = board.directory.join("nodlet");
    fs::remove_file(&nodlet).expect("a link");
    fs::write(&nodlet, "#!/bin/sh\necho \"$@\"; exit 3\n").expect("written");
    fs::set_permissions(&nodlet, fs::Permissions::from_mode(0o755)).expect("its own");
    for words in [
        &["system"][..],
        &["system", "rollback"],
        &["healthcheck", "--pods", "--wait", "2m"],
        &["safe-mode", "--leave"],
        &["factory-reset"],
        &["identity", "-"],
        &["image", "ls"],
        &["doctor"],
        &["reboot"],
    ] {
        let output = board.run(&device, &[words, &["--board", BOARD]].concat());
        assert_eq!(output.status.code(), Some(3), "{words:?}: {output:#?}");
        let expected = format!("--root {} {}\n", device.root().display(), words.join(" "));
        assert_eq!(text(&output.stdout), expected, "{output:#?}");
    }
    let real = Line::new(&device, "plain", "cat");
    assert_eq!(real.ok(&device, &["healthcheck", "--board", BOARD]), "");
}

#[test]
fn what_a_power_cut_left_of_the_record_of_a_push_is_removed_at_the_start() {
    let mut device = Device::start();
    device.stop_agent();
    let left = device.path("/var/lib/nodlet/push/.redo.json.new");
    fs::create_dir_all(left.parent().expect("it has one")).expect("the root can be written to");
    fs::write(&left, "{").expect("the root can be written to");
    device.start_agent();
    device.wait_for("the rest of the record to be removed", || !left.exists());
}

#[test]
fn images_are_listed_by_whoever_may_open_the_socket() {
    use std::os::unix::process::CommandExt;
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let archive = device.path("/app.tar");
    Image::new("localhost/pushed:1").file("a", 0o644, b"x").write_oci_archive(&archive).expect("written");
    line.ok(&device, &["push", BOARD, path(&archive)]);
    // Root's umask does not matter.
    let other = device.path("/other.tar");
    Image::new("localhost/other:1").file("a", 0o644, b"y").write_oci_archive(&other).expect("written");
    let script = format!(
        "umask 077; {0} image load {1} && {0} image rm localhost/other:1",
        format_args!("{} --root {}", nodlet_program().display(), device.root().display()),
        other.display()
    );
    let changed = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
    assert!(changed.status.success(), "{changed:?}");
    // The programs under test may be in a directory that only root can enter.
    let program = device.path("/nodlet-of-all");
    fs::copy(nodlet_program(), &program).expect("copied");
    let as_member = |words: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.arg("--root").arg(device.root()).args(words).uid(65534).gid(65534).current_dir("/");
        command.output().expect("nodlet can be started")
    };
    let listed = as_member(&["image", "ls"]);
    assert!(listed.status.success(), "{listed:?}");
    let (listed, all) = (text(&listed.stdout), device.nodlet(["image", "ls"]).ok());
    assert!(listed.contains("localhost/pushed:1") && listed == all, "{listed}{all}");
    let removed = as_member(&["image", "rm", "localhost/pushed:1"]);
    let refused = text(&removed.stderr);
    assert!(removed.status.code() == Some(1) && refused.contains("Permission denied"), "{refused}");
    assert_eq!(device.nodlet(["image", "ls"]).ok(), all);
}

#[test]
fn a_push_goes_on_by_itself_after_a_dropped_line() {
    let device = Device::start();
    let archive = device.path("/app.tar");
    Image::new("localhost/retry:1")
        .file("a", 0o644, &noise(900_000, 17))
        .write_oci_archive(&archive)
        .expect("written");
    let pod = device.path("/retry.yaml");
    fs::write(&pod, manifest::pod("retry", "sleep")).expect("written");
    // Each connection ends after 400 kB, except the third, which is never established.
    let (counted, passed) = (device.path("/counted"), device.path("/passed"));
    let upwards = format!(
        "echo >> {0}; (case $(wc -l < {0}) in 3) exit 1;; *) {1};; esac) | tee -a {2}",
        counted.display(),
        cutter(400_000),
        passed.display()
    );
    let line = Line::new(&device, "dropped", &upwards);
    let output = line.run(&device, &["push", BOARD, path(&archive), path(&pod)]);
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
    dead.refused(&device, &["push", BOARD, path(&archive)]);
    let calls = fs::read_to_string(dead.directory.join("ssh.calls")).expect("called");
    assert_eq!(calls.len(), 1);
}

#[test]
fn a_board_rejects_an_update_while_it_is_being_sent() {
    let device = Device::start();
    let line = Line::new(&device, "board", "cat");
    // Here process 1 appears as nodlet's init, with the files of a device image.
    let (nodlet, board) = (line.directory.join("nodlet"), line.directory.join("board"));
    fs::remove_file(&nodlet).expect("a link");
    let inner = |rules: &str| {
        format!(
            "printf nodlet:init > /proc/1/comm\n\
             mount -t tmpfs tmpfs /mnt && mkdir -p /mnt/bin /mnt/lib/nodlet /mnt/work1 /mnt/work2 || exit 9\n\
             echo '{{\"name\": \"test\", \"update\": {rules}}}' > /mnt/lib/nodlet/board.json\n\
             echo image > /mnt/bin/nodlet\n\
             mount -t overlay o -o lowerdir=/usr/lib,upperdir=/mnt/lib,workdir=/mnt/work1 /usr/lib || exit 9\n\
             mount -t overlay o -o lowerdir=/usr/bin,upperdir=/mnt/bin,workdir=/mnt/work2 /usr/bin || exit 9\n\
             {0} \"$@\"\nexit $?\n",
            nodlet_program().display()
        )
    };
    let script = format!("#!/bin/sh\nexec unshare -m -p -f --mount-proc sh {} \"$@\"\n", board.display());
    fs::write(&nodlet, script).expect("written");
    fs::set_permissions(&nodlet, fs::Permissions::from_mode(0o755)).expect("its own");

    let program = device.path("/nodlet-9");
    let signature = device.path("/nodlet-9.minisig");
    let push = &["push", BOARD, "--system", path(&program)];
    let key = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    let keyed = inner(&format!("{{\"keys\": [\"{key}\"]}}"));
    fs::write(&board, keyed).expect("written");
    fs::write(&program, noise(3_000_000, 19)).expect("written");
    let refused = line.refused(&device, push);
    assert!(refused.starts_with("error: the update is rejected: it is not signed"), "{refused}");
    // The key's own signature, of the four bytes `test`.
    fs::write(
        &signature,
        "untrusted comment: signature from minisign secret key\n\
         RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
         trusted comment: timestamp:1633700835\tfile:test\tprehashed\n\
         wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==\n",
    )
    .expect("written");
    let refused = line.refused(&device, push);
    assert!(refused.contains("it is not a program"), "{refused}");
    let own = fs::read(nodlet_program()).expect("built");
    fs::write(&program, &own[..1_000_000.min(own.len())]).expect("written");
    let refused = line.refused(&device, push);
    assert!(refused.contains("the file is incomplete"), "{refused}");
    fs::write(&board, inner("{}")).expect("written");
    fs::remove_file(&signature).expect("there");
    let refused = line.refused(&device, push);
    assert!(refused.contains("this board accepts no updates"), "{refused}");
    assert!(line.ok(&device, &["system", "--board", BOARD]).contains("Image:        nodlet "));
    // The empty file that is locked for each change is made in advance: a full disk has no inode for it.
    let left: Vec<_> = fs::read_dir(device.path("/var/lib/nodlet/system"))
        .expect("made")
        .map(|entry| entry.expect("read").file_name())
        .collect();
    assert_eq!(left, ["changes"], "nothing is left of what was rejected");
}

#[test]
fn an_ordinary_user_in_the_sockets_group_pushes() {
    use std::os::unix::process::CommandExt;
    /// The uid of an ordinary user, and the gid of the socket's group.
    const USER: u32 = 65534;
    let device = Device::start();
    let line = Line::new(&device, "member", "cat");
    // The programs under test may be in a directory that only root can enter.
    let program = line.directory.join("nodlet");
    fs::remove_file(&program).expect("a link");
    fs::copy(nodlet_program(), &program).expect("copied");
    let archive = device.path("/app.tar");
    let image = Image::new("localhost/member:1").file("a", 0o644, b"x");
    image.write_oci_archive(&archive).expect("written");
    let pod = device.path("/web.yaml");
    fs::write(&pod, manifest::pod("web", "print hello then sleep")).expect("written");
    for file in [&archive, &pod] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).expect("its own");
    }
    std::os::unix::fs::chown(device.path("/run/nodlet/api.sock"), None, Some(USER)).expect("it is root's");
    let mut command = std::process::Command::new(&program);
    command.arg("--root").arg(device.root()).args(["push", BOARD, path(&archive), path(&pod)]);
    command.env("NODLET_SSH", line.directory.join("ssh")).stdin(Stdio::null());
    let member = command.uid(USER).gid(USER).current_dir("/").output().expect("nodlet can be started");
    assert!(member.status.success(), "{member:?}");
    assert!(text(&member.stdout).ends_with("pod/web created\n"), "{member:?}");
    device.pod("web").wait_ready();
    assert!(device.nodlet(["image", "ls"]).ok().contains("localhost/member:1"));
}

#[test]
fn archives_of_every_form_that_loads_can_be_pushed() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let directory = device.path("/forms");
    fs::create_dir(&directory).expect("new");
    let command = |program: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(program);
        let done = command.args(arguments).current_dir(&directory).status().expect("it is installed");
        assert!(done.success(), "{program} {arguments:?}");
    };
    for (number, form) in
        ["oci.tar", "docker.tar", "a.tar.gz", "b.tgz", "c.tar.zst", "layout"].iter().enumerate()
    {
        let name = format!("localhost/form-{number}:1");
        let image = Image::new(&name).file("f", 0o644, &noise(50_000, 3 + 2 * number as u64));
        let plain = directory.join("plain.tar");
        match *form {
            "docker.tar" => image.write_docker_archive(&plain).expect("written"),
            _ => image.write_oci_archive(&plain).expect("written"),
        }
        let file = directory.join(form);
        match *form {
            "a.tar.gz" | "b.tgz" => {
                command("gzip", &["-k", "plain.tar"]);
                fs::rename(directory.join("plain.tar.gz"), &file).expect("renamed");
            }
            "c.tar.zst" => command("zstd", &["-q", "-f", "plain.tar", "-o", form]),
            "layout" => {
                fs::create_dir(&file).expect("new");
                command("tar", &["-xf", "plain.tar", "-C", form]);
            }
            _ => fs::rename(&plain, &file).expect("renamed"),
        }
        let out = line.ok(&device, &["push", BOARD, path(&file)]);
        assert!(out.starts_with(&format!("image/{name} loaded, 1 of 1 layers sent, ")), "{form}: {out}");
    }
}

#[test]
fn a_push_whose_wait_times_out_exits_with_1_and_names_the_pod() {
    let device = Device::start();
    let line = Line::new(&device, "plain", "cat");
    let file = device.path("/never.yaml");
    let pod = manifest::pod("never", "sleep").replace("localhost/demo:1", "localhost/nowhere:1");
    fs::write(&file, pod).expect("written");
    let output = line.run(&device, &["push", BOARD, path(&file), "--wait=2s"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stdout).starts_with("pod/never created\n"), "{output:?}");
    let why = text(&output.stderr);
    assert!(why.contains("pod/never") && why.contains("ready"), "{why}");
}
