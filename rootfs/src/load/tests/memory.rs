//! Memory must not grow with the size of the image. A process of its own loads an image, and its high-water
//! mark is read before and after, as well as that of the process that unpacks. `NODLET_ROUNDS` sets the
//! number of mebibytes, and the number of five-hundredths of the most names that a layer may have.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use nodlet_fuzz::setting;

use super::child::options;
use super::*;

const MEBIBYTE: u64 = 1024 * 1024;
const HOLE: u64 = 200 * MEBIBYTE;
const GROWTH_MAX: u64 = 16 * MEBIBYTE;
/// The environment variable that makes the test binary the child.
const CHILD: &str = "NODLET_TEST_LOAD";

/// Bytes of data in the image.
fn data() -> u64 {
    setting("NODLET_ROUNDS", 48) * MEBIBYTE
}

/// The high-water mark, in bytes, of the largest child process that has been waited for.
fn high_water_mark_of_children() -> u64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).unwrap();
    u64::try_from(usage.max_rss()).unwrap() * 1024
}

fn high_water_mark() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Writes an image of one gzip layer: a file of data, and a larger file that is a hole.
fn write_archive(path: &Path) {
    let layer = path.with_extension("layer");
    let files = path.with_extension("files");
    fs::create_dir(&files).unwrap();
    let file = File::create(files.join("data")).unwrap();
    for offset in (0..data()).step_by(MEBIBYTE as usize) {
        file.write_all_at(&offset.to_le_bytes().repeat(MEBIBYTE as usize / 8), offset).unwrap();
    }
    File::create(files.join("hole")).unwrap().set_len(HOLE).unwrap();
    run(Command::new("tar").arg("-cSf").arg(&layer).arg("-C").arg(&files).arg("."));
    let sum = String::from_utf8(Command::new("sha256sum").arg(&layer).output().unwrap().stdout).unwrap();
    let diff_id = sum.split(' ').next().unwrap();
    run(Command::new("gzip").args(["-1", "-k"]).arg(&layer));
    let blob = fs::read(path.with_extension("layer.gz")).unwrap();
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","rootfs":{{"type":"layers","diff_ids":["sha256:{diff_id}"]}}}}"#
    );
    let manifest = r#"[{"Config":"config.json","RepoTags":["large:1"],"Layers":["layer.tar"]}]"#;
    let archive = tar().bytes("layer.tar", &blob);
    let archive = archive.file("config.json", &config).file("manifest.json", manifest);
    File::create(path).unwrap().write_all(&archive.finish()).unwrap();
}

#[test]
fn memory_does_not_grow_with_the_image() {
    if let Ok(scratch) = std::env::var(CHILD) {
        let scratch = Path::new(&scratch);
        let store = Store::open(&scratch.join("root")).unwrap();
        let input = File::open(scratch.join("archive.tar")).unwrap();
        let before = high_water_mark();
        piped(input, |stream| store.load_file(stream, &amd64(), &mut |_| {})).unwrap();
        let grown = high_water_mark() - before;
        assert!(grown < GROWTH_MAX, "grown by {grown} bytes");
        let apart = Store::open(&scratch.join("apart")).unwrap();
        apart.load_path(&scratch.join("archive.tar"), &options(&[]), &mut |_| {}).unwrap();
        let child = high_water_mark_of_children();
        assert!(child < before + GROWTH_MAX, "the process that unpacks: {child} bytes");
        let mark = high_water_mark();
        fs::write(scratch.join("figures"), format!("parent {} KiB, child {} KiB", mark / 1024, child / 1024))
            .unwrap();
        return;
    }
    let scratch = Scratch::new();
    write_archive(&scratch.path().join("archive.tar"));
    run(Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "load::tests::memory::memory_does_not_grow_with_the_image"])
        .env(CHILD, scratch.path()));
    let figures = fs::read_to_string(scratch.path().join("figures")).unwrap();
    println!("one layer of {} MiB, peak of resident memory: {figures}", data() / MEBIBYTE);
    let store = Store::open(&scratch.path().join("root")).unwrap();
    let image = store.images().unwrap().remove(0);
    assert!(image.size >= data() + HOLE);
    let file = fs::metadata(store.layer_path(&image.layers[0]).unwrap()).unwrap();
    let on_disk = file.blocks() * 512;
    assert!(on_disk < data() + 2 * MEBIBYTE, "a hole takes no space: {on_disk} bytes on disk");
}

/// Names are kept in memory until all are known, so the most names that are accepted must fit in the memory
/// of the process that unpacks (`UNPACK_MEMORY` of `nodlet image`).
#[test]
fn memory_is_enough_for_the_names_of_a_layer() {
    const MEMORY: u64 = 160 * MEBIBYTE;
    let files = setting("NODLET_ROUNDS", 10).min(500) * 418;
    let names = (0..files).map(|number| format!("{}/{number:0>50}", number % (files / 4)));
    let layer = names.fold(tar(), |layer, name| layer.file(&name, "")).finish();
    let scratch = Scratch::new();
    let path = scratch.path().join("archive.tar");
    fs::write(&path, docker_archive(&[TestImage::new("names:1", vec![layer])]).finish()).unwrap();
    let store = Store::open(&scratch.path().join("root")).unwrap();
    let unpacker = options(&[]).unpacker.map(|unpacker| Unpacker { memory: MEMORY, ..unpacker });
    store.load_path(&path, &LoadOptions { unpacker, ..amd64() }, &mut |_| {}).unwrap();
    println!("{files} files in {} directories: {} MiB are enough", files / 4, MEMORY / MEBIBYTE);
}
