//! Converts layers, mounts them, and compares them with what GNU tar extracts. These tests need root, the
//! kernel's EROFS, and fsck.erofs; if one is missing, they fail and say so.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use std::os::unix::ffi::OsStrExt;
use tar::EntryType;

use super::*;
use crate::content;
use crate::testing::{Scratch, TarBuilder, run, set_xattr, tar, xattrs};

mod random;

/// A converted and mounted layer.
struct Mounted {
    directory: PathBuf,
}

impl Mounted {
    fn new(scratch: &Scratch, image: &Path) -> Mounted {
        run(Command::new("fsck.erofs").arg(image));
        let directory = scratch.path().join(format!("{}.mounted", image.file_name().unwrap().display()));
        fs::create_dir(&directory).unwrap();
        mount(Some(image), &directory, Some("erofs"), MsFlags::MS_RDONLY, None::<&str>).expect(
            "mount an EROFS image: this test needs root, CONFIG_EROFS_FS and a kernel of 6.12 or later",
        );
        Mounted { directory }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        umount2(&self.directory, MntFlags::MNT_DETACH).unwrap();
    }
}

fn convert_to(image: &Path, mut stream: &[u8]) -> Result<(Converted, Vec<String>), LayerError> {
    let mut warnings = Vec::new();
    let file = content::create(image).unwrap();
    let converted = convert(&mut stream, file, LayerBounds::default(), &mut |text| warnings.push(text))?;
    Ok((converted, warnings))
}

/// The visible properties of a file.
#[derive(Debug, PartialEq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    links: u64,
    device: u64,
    mtime: (i64, i64),
    target: Option<PathBuf>,
    xattrs: Vec<(String, Vec<u8>)>,
    /// The first name with the same inode.
    same_as: PathBuf,
    data: Option<Digest>,
}

fn tree(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut inodes: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(name) = todo.pop() {
        let path = root.join(&name);
        let metadata =
            fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        if metadata.is_dir() {
            let names = fs::read_dir(&path).unwrap().map(|entry| name.join(entry.unwrap().file_name()));
            let mut names: Vec<PathBuf> = names.collect();
            names.sort();
            todo.extend(names.into_iter().rev());
        }
        let same_as = inodes.entry((metadata.dev(), metadata.ino())).or_insert_with(|| name.clone()).clone();
        let file = metadata.is_file();
        let entry = Seen {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            size: if metadata.is_dir() { 0 } else { metadata.size() },
            links: metadata.nlink(),
            device: metadata.rdev(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            target: fs::read_link(&path).ok(),
            xattrs: xattrs(&path),
            same_as,
            data: file.then(|| Digest::of(&fs::read(&path).unwrap())),
        };
        seen.insert(name, entry);
    }
    seen
}

/// Creates a directory with one file of every kind.
fn one_of_everything(root: &Path) {
    fs::create_dir_all(root.join("etc/empty")).unwrap();
    let bytes: Vec<u8> = (0..400_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
    for size in [0, 1, 3000, 4000, 4031, 4032, 4033, 4095, 4096, 4097, 8191, 8192, 10_000, 131_072, 400_000] {
        fs::write(root.join(format!("etc/size-{size}")), &bytes[..size]).unwrap();
    }
    for number in 0..300 {
        let name = format!("many/{number}-{}", "n".repeat(number % 200));
        fs::create_dir_all(root.join("many")).unwrap();
        fs::write(root.join(name), format!("file {number}")).unwrap();
        fs::create_dir_all(root.join(format!("deep/{}/{number}", number % 7))).unwrap();
    }
    for name in ["!", "-", "...", "..x", ".a", "ü", "a\nb", "zz"] {
        fs::write(root.join("etc/empty").join(name), name).unwrap();
    }
    fs::write(root.join("long").with_file_name("l".repeat(255)), "the longest name").unwrap();
    std::os::unix::fs::symlink("../etc/size-1", root.join("etc/link")).unwrap();
    std::os::unix::fs::symlink("/no/where", root.join("broken")).unwrap();
    std::os::unix::fs::symlink("t/".repeat(2000), root.join("long-target")).unwrap();
    fs::hard_link(root.join("etc/size-4033"), root.join("hard")).unwrap();
    fs::hard_link(root.join("etc/size-4033"), root.join("many/hard")).unwrap();
    fs::hard_link(root.join("broken"), root.join("zz-hard-symlink")).unwrap();
    let device = |name: &str, kind, major, minor| {
        mknod(&root.join(name), kind, Mode::from_bits_truncate(0o640), makedev(major, minor)).unwrap();
    };
    device("null", SFlag::S_IFCHR, 1, 3);
    device("disk", SFlag::S_IFBLK, 259, 70_000);
    nix::unistd::mkfifo(&root.join("fifo"), Mode::from_bits_truncate(0o622)).unwrap();
    for (name, mode) in
        [("etc/size-1", 0o4755), ("etc/size-3000", 0o2711), ("etc/empty", 0o1777), ("etc/size-0", 0)]
    {
        fs::set_permissions(root.join(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::lchown(root.join("etc/link"), Some(3_000_000_000), Some(70_000)).unwrap();
    std::os::unix::fs::lchown(root.join("etc/size-4097"), Some(65_536), Some(1)).unwrap();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set_xattr(&root.join("etc/size-4032"), "security.capability", &capability);
    set_xattr(&root.join("etc/size-4032"), "user.comment", b"with a \0 in it\n");
    set_xattr(&root.join("etc/size-10000"), "user.large", &bytes[..3000]);
    set_xattr(&root.join("deep"), "trusted.mark", b"");
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(3_000_000).unwrap();
    for offset in [70_000, 1_000_000, 1_004_096, 2_999_990] {
        sparse.write_all_at(b"some data", offset).unwrap();
    }
    fs::File::create(root.join("all-hole")).unwrap().set_len(500_000).unwrap();
    let moment = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_789);
    fs::File::open(root.join("etc/size-8192")).unwrap().set_modified(moment).unwrap();
    let before_1970 = std::time::UNIX_EPOCH - std::time::Duration::from_millis(1500);
    fs::File::open(root.join("etc/size-8191")).unwrap().set_modified(before_1970).unwrap();
    fs::File::open(root.join("deep/3")).unwrap().set_modified(moment).unwrap();
    fs::set_permissions(root, std::os::unix::fs::PermissionsExt::from_mode(0o751)).unwrap();
}

#[test]
fn a_mounted_layer_is_what_gnu_tar_extracts() {
    let scratch = Scratch::new();
    let source = scratch.path().join("source");
    fs::create_dir(&source).unwrap();
    one_of_everything(&source);
    for (number, options) in [
        &["--format=pax", "--sparse"][..],
        &["--format=pax", "--sparse", "--sparse-version=0.0"],
        &["--format=pax", "--sparse", "--sparse-version=0.1"],
        &["--format=gnu", "--sparse"],
        &["--format=pax", "--sort=name"],
    ]
    .into_iter()
    .enumerate()
    {
        let archive = scratch.path().join(format!("{number}.tar"));
        let xattrs = match options[0] {
            "--format=pax" => &["--xattrs", "--xattrs-include=*"][..],
            _ => &[],
        };
        run(Command::new("tar")
            .args(options)
            .args(xattrs)
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(&source)
            .arg("."));
        let extracted = scratch.path().join(format!("{number}.extracted"));
        fs::create_dir(&extracted).unwrap();
        run(Command::new("tar")
            .args(["--same-owner", "-p", "--xattrs", "--xattrs-include=*", "-xf"])
            .arg(&archive)
            .arg("-C")
            .arg(&extracted));
        let image = scratch.path().join(format!("{number}.erofs"));
        let bytes = fs::read(&archive).unwrap();
        let (converted, warnings) = convert_to(&image, &bytes).expect("convert");
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!(converted.diff_id, Digest::of(&bytes));
        assert_eq!(converted.image.bytes, fs::metadata(&image).unwrap().len());
        let mounted = Mounted::new(&scratch, &image);
        let (expected, seen) = (tree(&extracted), tree(&mounted.directory));
        assert_eq!(seen.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, expected) in expected {
            assert_eq!(seen[&name], expected, "{} of tar {options:?}", name.display());
        }
        drop(mounted);

        let again = scratch.path().join(format!("{number}.again.erofs"));
        convert_to(&again, &bytes).expect("convert again");
        assert!(fs::read(&image).unwrap() == fs::read(&again).unwrap(), "the same layer gave other bytes");
    }
}

/// Converts a layer, and compares its names, each with `opaque`, `whiteout` or the file's text.
#[track_caller]
fn check(entries: TarBuilder, expected: &[&str]) {
    let scratch = Scratch::new();
    let image = scratch.path().join("layer.erofs");
    convert_to(&image, &entries.finish()).unwrap();
    let mounted = Mounted::new(&scratch, &image);
    let lines = tree(&mounted.directory).into_iter().filter(|(name, _)| !name.as_os_str().is_empty());
    let lines = lines
        .map(|(name, seen)| {
            let what = match SFlag::from_bits_truncate(seen.mode) & SFlag::S_IFMT {
                SFlag::S_IFCHR if seen.device == 0 => "whiteout".to_owned(),
                SFlag::S_IFDIR if seen.xattrs == [("trusted.overlay.opaque".to_owned(), b"y".to_vec())] => {
                    "opaque".to_owned()
                }
                SFlag::S_IFDIR => format!("{:o}", seen.mode & 0o7777),
                SFlag::S_IFLNK => format!("-> {}", seen.target.unwrap().display()),
                SFlag::S_IFREG => {
                    String::from_utf8(fs::read(mounted.directory.join(&name)).unwrap()).unwrap()
                }
                other => format!("{other:?}"),
            };
            format!("{} {what}", name.display())
        })
        .collect::<Vec<_>>();
    assert_eq!(lines, expected);
}

#[test]
fn whiteouts_speak_of_lower_layers_only() {
    check(tar().file("d/.wh.gone", ""), &["d 755", "d/gone whiteout"]);
    check(tar().file("d/.wh..wh..opq", "").file("d/a", "1"), &["d opaque", "d/a 1"]);
    check(tar().file("d/a", "1").file("d/.wh..wh..opq", ""), &["d opaque", "d/a 1"]);
    check(tar().file("d/.wh.gone", "").file("d/.wh..wh..opq", ""), &["d opaque"]);
    check(tar().file("d/.wh..wh..opq", "").file("d/e/.wh.gone", ""), &["d opaque", "d/e 755"]);
    check(tar().file("a", "1").file(".wh.a", ""), &["a 1"]);
    check(tar().file(".wh.a", "").file("a", "1"), &["a 1"]);
    check(tar().directory("a").file(".wh.a", ""), &["a opaque"]);
    check(tar().file(".wh.a", "").file("a/b", "1"), &["a opaque", "a/b 1"]);
    check(tar().file(".wh..wh.plnk/x", "").file("a", "1").file(".wh..wh.aufs", ""), &["a 1"]);
}

#[test]
fn the_last_member_of_a_name_wins() {
    check(tar().file("a", "1").file("./a", "2").file("/a", "3"), &["a 3"]);
    check(tar().file("a/b", "1").file("a", "2"), &["a 2"]);
}

#[test]
fn names_stay_within_the_root() {
    check(tar().file("a/../b", "1"), &["b 1"]);
    check(
        tar().symlink("lib", "usr/lib").file("lib/x", "1"),
        &["lib -> usr/lib", "usr 755", "usr/lib 755", "usr/lib/x 1"],
    );
    check(
        tar().symlink("up", "../../../../etc").file("up/x", "1"),
        &["etc 755", "etc/x 1", "up -> ../../../../etc"],
    );
    check(
        tar().symlink("abs", "/etc/d").file("abs/x", "1"),
        &["abs -> /etc/d", "etc 755", "etc/d 755", "etc/d/x 1"],
    );
}

/// A link that would lead out of the layer on the host leads to the layer's own root.
#[test]
fn whiteouts_through_links_stay_within_the_root() {
    check(
        tar().symlink("up", "../../../etc").file("up/.wh.passwd", ""),
        &["etc 755", "etc/passwd whiteout", "up -> ../../../etc"],
    );
    check(tar().symlink("abs", "/").file("abs/.wh..wh..opq", "").file("abs/a", "1"), &["a 1", "abs -> /"]);
    check(tar().symlink("d", "/x").file("d/../.wh.y", ""), &["d -> /x", "y whiteout"]);
}

/// Two empty blocks end an archive, as for Go's reader and GNU tar.
#[test]
fn data_after_the_end_of_an_archive_is_digested_and_not_unpacked() {
    let mut bytes = tar().file("a", "1").finish();
    bytes.extend(tar().file("b", "2").finish());
    let scratch = Scratch::new();
    let (converted, _) = convert_to(&scratch.path().join("image"), &bytes).unwrap();
    assert_eq!(converted.diff_id, Digest::of(&bytes));
    check(TarBuilder::of(bytes), &["a 1"]);
}

/// Whatever the bound is, the first entry beyond it is rejected by its name. (`load/tests/memory.rs` tests
/// that as many entries as are accepted fit in the available memory.)
#[test]
fn a_layer_of_countless_tiny_entries_is_refused() {
    /// Headers of empty files, without end.
    struct Endless {
        number: usize,
        header: Vec<u8>,
    }
    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.header.is_empty() {
                self.header = tar().file(&self.number.to_string(), "").finish();
                self.header.truncate(512);
                self.number += 1;
            }
            let length = buffer.len().min(self.header.len());
            buffer[..length].copy_from_slice(&self.header[..length]);
            self.header.drain(..length);
            Ok(length)
        }
    }
    let scratch = Scratch::in_memory();
    let file = content::create(&scratch.path().join("image")).unwrap();
    let mut stream = Endless { number: 0, header: Vec::new() };
    let default = LayerBounds::default();
    let bounds = LayerBounds { names: Bounds { entries: 10_000, ..default.names }, ..default };
    let error = convert(&mut stream, file, bounds, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(error, "unpack 10000: more than 10000 names in one layer");
}

#[test]
fn hard_links_are_to_what_precedes_them() {
    check(tar().file("a", "1").hard_link("b", "/a").file("a", "2"), &["a 2", "b 1"]);
}

#[test]
fn a_layer_that_exceeds_a_limit_is_rejected_with_the_name_of_the_member() {
    let scratch = Scratch::new();
    let convert_within = |name: &str, bounds: LayerBounds, entries: TarBuilder| {
        let file = content::create(&scratch.path().join(name)).unwrap();
        convert(&mut &entries.finish()[..], file, bounds, &mut |_| {}).expect_err(name).to_string()
    };
    let within = |entries, name_bytes, steps| LayerBounds {
        names: Bounds { entries, directories: entries, name_bytes, steps },
        ..LayerBounds::default()
    };
    let few = within(2, 100, 100);
    let error = convert_within("entries", few, tar().file("a", "").file("b", "").file("c", ""));
    assert_eq!(error, "unpack c: more than 2 names in one layer");
    let names = within(9, 3, 100);
    let error = convert_within("names", names, tar().symlink("a", "xyz"));
    assert_eq!(error, "unpack a: more than 3 bytes of names and of directories' attributes in one layer");
    let links = tar().symlink("a", &"./".repeat(50)).file("a/b", "");
    let error = convert_within("steps", within(9, 1000, 50), links);
    assert_eq!(error, "unpack a/b: more than 50 steps from name to name in one layer");
    let small = LayerBounds { bytes: 64 * 1024, ..LayerBounds::default() };
    let error = convert_within("bytes", small, tar().file("a", &"x".repeat(70_000)));
    assert_eq!(error, "unpack a: the layer unpacks to more than 65536 bytes");
}
