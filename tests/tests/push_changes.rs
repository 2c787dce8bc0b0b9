//! `nodlet push` of a layer that is similar to one on the board: only its changed blocks are sent.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_tests::image::Image;
use nodlet_tests::ssh::{BOARD, Line, cutter, noise, path};
use nodlet_tests::{Device, manifest};

/// An application: a program of more than a megabyte, and other files.
struct Application {
    base: Image,
    program: Vec<u8>,
}

impl Application {
    fn new() -> Application {
        let demo = fs::read(nodlet_tests::demo_program()).expect("built");
        let base = Image::new("localhost/app:1").file("etc/release", 0o644, &noise(50_000, 1));
        // Bytes after the end of an ELF program do no harm.
        Application { base, program: [demo, noise(1_500_000, 2)].concat() }
    }

    /// The image with `put` inserted into the program, `from_the_end` bytes before its end.
    fn image(&self, name: &str, from_the_end: usize, put: &[u8]) -> Image {
        let mut program = self.program.clone();
        let at = program.len() - from_the_end;
        program.splice(at..at, put.iter().copied());
        let mut image = self.base.clone().named(name).layer().directory("bin", 0o755).directory("lib", 0o755);
        for number in 0..200 {
            image = image.file(&format!("lib/part{number}"), 0o644, &noise(500 + 13 * number, number as u64));
        }
        image.file("bin/demo", 0o755, &program)
    }

    fn write(&self, device: &Device, file: &str, image: Image) -> PathBuf {
        let archive = device.path(file);
        image.write_oci_archive(&archive).expect("written");
        archive
    }
}

/// A board with the application's first version.
fn board() -> (Device, Application) {
    let (device, application) = (Device::start(), Application::new());
    let archive = application.write(&device, "/app1.tar", application.image("localhost/app:1", 0, &[]));
    let out = Line::new(&device, "first", "cat").ok(&device, &["push", BOARD, path(&archive)]);
    assert!(out.contains("2 of 2 layers sent") && !out.contains("instead"), "{out}");
    (device, application)
}

/// The names of the files in the spool, which is empty after a push.
fn spool(device: &Device) -> Vec<String> {
    let entries = fs::read_dir(device.path("/var/lib/nodlet/push")).expect("made by a push");
    entries.map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned()).collect()
}

/// A connection, and the files into which it copies what is sent to the board and what comes from it.
fn counting(device: &Device) -> (Line, PathBuf, PathBuf) {
    let (up, down) = (device.path("/up"), device.path("/down"));
    let tee = |file: &Path| format!("tee {}", file.display());
    (Line::both_ways(device, "counting", &tee(&up), &tee(&down)), up, down)
}

fn length(file: &std::path::Path) -> u64 {
    fs::metadata(file).expect("counted").len()
}

#[test]
fn a_small_change_in_a_large_layer_transfers_few_bytes() {
    let (device, application) = board();
    let (line, up, down) = counting(&device);
    let new = application.image("localhost/app:2", 700_000, &noise(3000, 9));
    let archive = application.write(&device, "/app2.tar", new);
    let pod = device.path("/app.yaml");
    let text =
        manifest::pod("app", "print changed then sleep").replace("localhost/demo:1", "localhost/app:2");
    fs::write(&pod, text.replace("args:", "command: [/bin/demo]\n    args:")).expect("written");
    let out = line.ok(&device, &["push", BOARD, path(&archive), path(&pod)]);
    assert!(out.contains("image/localhost/app:2 loaded, 1 of 2 layers sent, "), "{out}");
    assert!(out.contains(" kB instead of "), "{out}");
    let (archive, up, down) = (length(&archive), length(&up), length(&down));
    println!("of an archive with {archive} bytes, {up} went up and {down} came down");
    // Sent are the entries of 200 files, the 3000 bytes, which gzip cannot compress, and the documents.
    assert!(up < 30_000, "{up} bytes up");
    // In the list, each block of 4 KiB takes 13 bytes, and each small file 12.
    assert!(down < archive / 120 && down > archive / 4096 * 13, "{down} bytes down for {archive}");
    assert!(spool(&device).is_empty(), "{:?}", spool(&device));
    device.pod("app").wait_ready();
    device.wait_for("the program's word", || device.pod("app").logs("app") == "changed\n");
    // The layer on the board is exactly the whole layer of the archive: its digest proves it.
    let out = line.ok(&device, &["push", BOARD, path(&device.path("/app2.tar"))]);
    assert!(out.contains("unchanged, 0 of 2 layers sent"), "{out}");
}

#[test]
fn a_layer_is_sent_whole_if_changed_blocks_would_save_little() {
    let (device, application) = board();
    let (line, up, down) = counting(&device);
    // A layer whose content is completely different.
    let other = application.base.clone().named("localhost/app:3").layer();
    let other = application.write(&device, "/app3.tar", other.file("data", 0o644, &noise(1_000_000, 77)));
    let out = line.ok(&device, &["push", BOARD, path(&other)]);
    assert!(out.contains("1 of 2 layers sent, 1.0 MB\n"), "{out}");
    assert!(length(&up) > 1_000_000 && spool(&device).is_empty());
    // A list would be larger than the layer.
    let small = application.base.clone().named("localhost/app:4").layer();
    let small = application.write(&device, "/app4.tar", small.file("data", 0o644, &noise(20_000, 78)));
    let out = line.ok(&device, &["push", BOARD, path(&small)]);
    assert!(out.contains("1 of 2 layers sent, 20 kB\n"), "{out}");
    assert!(length(&down) < 2000, "{} bytes came down", length(&down));
}

#[test]
fn changed_blocks_that_are_cut_at_any_byte_change_nothing_and_the_next_push_goes_on() {
    let (device, application) = board();
    // More than one piece, of random bytes, none of which the board has.
    let new = application.image("localhost/app:2", 900_000, &noise(300_000, 9));
    let archive = application.write(&device, "/app2.tar", new);
    let pod = device.path("/cut.yaml");
    fs::write(&pod, manifest::pod("cut", "sleep")).expect("written");
    let counted = device.path("/counted");
    let whole = Line::new(&device, "whole", &format!("tee {}", counted.display()));
    let push = ["push", BOARD, path(&archive), path(&pod), "--retries", "0"];
    whole.ok(&device, &[&push[..], &["--dry-run"]].concat());
    let offer = length(&counted);
    let state = || (device.nodlet(["image", "ls"]).ok(), device.pods());
    let before = state();
    let mut cuts: Vec<u64> = vec![offer + 1, offer + 17, offer + 18, offer + 50, offer + 70];
    cuts.extend((1..7).map(|step| offer + 50_000 * step + 17 * step));
    for cut in &cuts {
        // Each attempt starts from the beginning.
        for name in spool(&device) {
            fs::remove_file(device.path("/var/lib/nodlet/push").join(name)).expect("only parts lie there");
        }
        Line::new(&device, "cut", &cutter(*cut)).refused(&device, &push);
        assert_eq!(state(), before, "cut at {cut}");
    }
    // The last cut left some 300 kB, of which the complete pieces are kept.
    assert!(matches!(&spool(&device)[..], [name] if name.ends_with(".changes.part")), "{:?}", spool(&device));
    let out = whole.ok(&device, &push);
    let sent = length(&counted);
    assert!(sent < offer + 110_000, "{sent} bytes after a cut at 300 kB");
    assert!(out.ends_with("pod/cut created\n") && spool(&device).is_empty(), "{out}");
}

#[test]
fn changed_blocks_go_on_by_themselves_after_a_dropped_line() {
    let (device, application) = board();
    let archive = application.write(
        &device,
        "/app2.tar",
        application.image("localhost/app:2", 900_000, &noise(300_000, 9)),
    );
    let (passed, came) = (device.path("/passed"), device.path("/came"));
    let upwards = format!("{} | tee -a {}", cutter(120_000), passed.display());
    let line = Line::both_ways(&device, "dropped", &upwards, &format!("tee -a {}", came.display()));
    let output = line.run(&device, &["push", BOARD, path(&archive)]);
    assert!(output.status.success(), "{output:?}");
    let sent = length(&passed);
    assert!(sent > 300_000 && sent < 600_000, "{sent} bytes for 300 kB over lines of 120 kB");
    // The list was sent only once.
    let came = length(&came);
    assert!(came < 50_000, "{came} bytes came");
}

#[test]
fn a_layer_that_is_not_what_was_foreseen_goes_over_whole() {
    let (device, application) = board();
    let layers = device.path("/var/lib/nodlet/images/layers");
    let base = fs::read_dir(&layers)
        .expect("layers")
        .map(|entry| entry.expect("listed").path())
        .max_by_key(|file| length(file))
        .expect("a layer");
    let new = application.image("localhost/app:2", 900_000, &noise(300_000, 9));
    let archive = application.write(&device, "/app2.tar", new);
    let offer = device.path("/offer");
    let line = Line::new(&device, "whole", &format!("tee {}", offer.display()));
    line.ok(&device, &["push", BOARD, path(&archive), "--dry-run"]);
    // The flash flips a bit in data that was already compared.
    let cut = Line::new(&device, "cut", &cutter(length(&offer) + 200_000));
    cut.refused(&device, &["push", BOARD, path(&archive), "--retries", "0"]);
    let mut bytes = fs::read(&base).expect("there");
    let program = bytes.windows(4).position(|four| four == b"\x7fELF").expect("the program");
    bytes[program + 300_000] ^= 1;
    fs::write(&base, bytes).expect("written");
    let out = line.ok(&device, &["push", BOARD, path(&archive)]);
    assert!(out.contains("loaded, 1 of 2 layers sent, ") && !out.contains("instead"), "{out}");
    assert!(spool(&device).is_empty(), "{:?}", spool(&device));
}
