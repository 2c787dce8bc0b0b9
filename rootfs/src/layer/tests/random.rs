//! Random archives, unpacked by nodlet and by two references: GNU tar, one layer at a time, and umoci, all
//! layers of an image as one tree. The kernel's view of nodlet's images must equal what they extract.
//!
//! `NODLET_ROUNDS` sets the number of archives, `NODLET_SEED` the first seed; a failure names its seed.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use nodlet_fuzz::{Random, setting};

use super::*;
use crate::assemble::{mount_layer, mount_root};
use crate::testing::{TestImage, oci_archive};

/// An image whose layers are being generated.
#[derive(Default)]
struct Image {
    /// Names in lower layers, so that whiteouts hide something.
    below: BTreeSet<String>,
    layers: Vec<Vec<u8>>,
}

/// A layer that is being generated, and its contents so far.
#[derive(Default)]
struct Layer {
    tar: Vec<u8>,
    directories: Vec<String>,
    files: Vec<String>,
    taken: BTreeSet<String>,
    /// The names that its whiteouts hide.
    hidden: BTreeSet<String>,
    /// The opaque directories.
    opaque: Vec<String>,
}

/// The kind, name and other properties of a member.
struct Entry<'a> {
    kind: EntryType,
    name: &'a str,
    link: &'a str,
    data: &'a [u8],
    records: Vec<(String, Vec<u8>)>,
}

impl Layer {
    fn new(random: &mut Random) -> Layer {
        let mut layer = Layer::default();
        layer.put(
            random,
            Entry { kind: EntryType::Directory, name: "./", link: "", data: &[], records: Vec::new() },
        );
        layer.directories.push(String::new());
        layer
    }

    /// Generates a name that is unused in the layer, in one of the layer's directories.
    fn name(&mut self, random: &mut Random) -> String {
        const NAMES: [&str; 14] =
            ["a", "b", "c", "etc", "lib", "x y", "ü", "-", "a\nb", "...", ".hidden", "Z", "#", "\\"];
        loop {
            let directory = random.pick(&self.directories).clone();
            let last = match random.below(12) {
                0 => "l".repeat(60 + random.below(195)),
                1 => format!("{}{}", random.pick(&NAMES), random.below(100)),
                _ => (*random.pick(&NAMES)).to_owned(),
            };
            let name = format!("{directory}{last}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Appends a member with random attributes.
    fn put(&mut self, random: &mut Random, mut entry: Entry<'_>) {
        let records = &mut entry.records;
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(entry.kind);
        header.set_mode(random.below(0o10000) as u32);
        let mut owner = || match random.below(4) {
            0 => 3_000_000_000,
            1 => random.below(70_000) as u64,
            _ => 0,
        };
        let owners = [owner(), owner()];
        for (key, id) in ["uid", "gid"].into_iter().zip(owners) {
            if id > 0o7777777 {
                records.push((key.to_owned(), id.to_string().into_bytes()));
            }
        }
        header.set_uid(owners[0].min(0o7777777));
        header.set_gid(owners[1].min(0o7777777));
        header.set_mtime(random.below(2_000_000_000) as u64);
        if random.one_in(3) {
            let sign = if random.one_in(5) { "-" } else { "" };
            let time = format!("{sign}{}.{:09}", random.below(1_900_000_000), random.below(1_000_000_000));
            records.push(("mtime".to_owned(), time.into_bytes()));
        }
        if matches!(entry.kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(1 + random.below(0xfff) as u32).unwrap();
            header.set_device_minor(random.below(0o7777777) as u32 & 0xf_ffff).unwrap();
        }
        if matches!(entry.kind, EntryType::Regular | EntryType::Directory) && random.one_in(4) {
            // Never empty: GNU tar and nodlet keep an empty attribute, but Go's reader, which umoci uses,
            // drops it.
            let length = 1 + random.below(300);
            records.push((format!("SCHILY.xattr.user.u{}", random.below(9)), random.bytes(length)));
            if random.one_in(3) {
                records.push(("SCHILY.xattr.trusted.t".to_owned(), random.bytes(8)));
            }
        }
        if entry.kind == EntryType::Regular && random.one_in(8) {
            let capability = [&[1, 0, 0, 2][..], &random.bytes(4), &[0; 12]].concat();
            records.push(("SCHILY.xattr.security.capability".to_owned(), capability));
        }
        self.name_it(random, &mut header, &mut entry);
        if !entry.records.is_empty() {
            let bytes: Vec<u8> = entry.records.iter().flat_map(|(key, value)| record(key, value)).collect();
            self.raw(EntryType::XHeader, "PaxHeaders/x", &bytes);
        }
        header.set_size(entry.data.len() as u64);
        header.set_cksum();
        self.tar.extend_from_slice(header.as_bytes());
        self.data(entry.data);
    }

    /// Writes names that do not fit the header before it, in one of the two formats.
    fn name_it(&mut self, random: &mut Random, header: &mut tar::Header, entry: &mut Entry<'_>) {
        let pax = random.one_in(2);
        for (text, key, long, at) in [
            (entry.name, "path", EntryType::GNULongName, 0),
            (entry.link, "linkpath", EntryType::GNULongLink, 157),
        ] {
            let bytes = text.as_bytes();
            let fits = bytes.len() <= 100;
            header.as_mut_bytes()[at..at + bytes.len().min(100)]
                .copy_from_slice(&bytes[..bytes.len().min(100)]);
            if fits {
                continue;
            }
            if pax {
                entry.records.push((key.to_owned(), bytes.to_vec()))
            } else {
                self.raw(long, "././@LongLink", &[bytes, b"\0"].concat())
            }
        }
    }

    fn raw(&mut self, kind: EntryType, name: &str, bytes: &[u8]) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_path(name).unwrap();
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        self.tar.extend_from_slice(header.as_bytes());
        self.data(bytes);
    }

    /// Whether the layer hides a name of lower layers: by a whiteout, or because a directory above the name is hidden,
    /// opaque or no directory here.
    fn hides(&self, name: &str) -> bool {
        let above = name.match_indices('/').map(|(end, _)| &name[..end]);
        let is_replaced = |directory: &str| {
            self.taken.contains(directory) && !self.directories.contains(&format!("{directory}/"))
        };
        self.hidden.contains(name)
            || above.into_iter().any(is_replaced)
            || self.opaque.iter().any(|directory| name.starts_with(directory.as_str()))
    }

    fn data(&mut self, bytes: &[u8]) {
        self.tar.extend_from_slice(bytes);
        self.tar.resize(self.tar.len().next_multiple_of(512), 0);
    }

    fn add(&mut self, random: &mut Random, below: &BTreeSet<String>) {
        let entry = |layer: &mut Layer, random: &mut Random, kind, name: &str, link: &str, data: &[u8]| {
            layer.put(random, Entry { kind, name, link, data, records: Vec::new() });
        };
        match random.below(20) {
            0..5 => {
                let name = format!("{}/", self.name(random));
                if name.len() < 700 {
                    entry(self, random, EntryType::Directory, &name, "", &[]);
                    self.directories.push(name);
                }
            }
            5..10 => {
                let name = self.name(random);
                let size = *random.pick(&[0, 1, 500, 4032, 4096, 5000, 70_000]) + random.below(64);
                let data = random.bytes(size);
                entry(self, random, EntryType::Regular, &name, "", &data);
                self.files.push(name);
            }
            10..12 => {
                let name = self.name(random);
                let target = "../t".repeat(1 + random.below(60));
                entry(self, random, EntryType::Symlink, &name, &target, &[]);
            }
            12..14 if !self.files.is_empty() => {
                let (name, target) = (self.name(random), random.pick(&self.files).clone());
                entry(self, random, EntryType::Link, &name, &target, &[]);
            }
            14 => {
                let kind = *random.pick(&[EntryType::Char, EntryType::Block, EntryType::Fifo]);
                let name = self.name(random);
                entry(self, random, kind, &name, "", &[]);
            }
            15 => {
                let name = self.name(random);
                self.sparse(random, &name);
            }
            // A duplicate name: the last member counts, and links to the first remain.
            16 if !self.files.is_empty() => {
                let name = random.pick(&self.files).clone();
                let data = random.bytes(100);
                entry(self, random, EntryType::Regular, &name, "", &data);
            }
            17..19 => {
                // Only for existing names: overlayfs lists a whiteout that hides nothing.
                let below: Vec<&String> = below.iter().filter(|name| !self.taken.contains(*name)).collect();
                if below.is_empty() {
                    return;
                }
                let hidden = (*random.pick(&below)).clone();
                let (directory, last) = hidden.rsplit_once('/').map_or(("", &*hidden), |(d, last)| (d, last));
                let directory = if directory.is_empty() { String::new() } else { format!("{directory}/") };
                // Only in directories that the layer describes: another test covers implied ones.
                if self.directories.contains(&directory) && last.len() < 250 {
                    self.taken.insert(hidden.clone());
                    self.hidden.insert(hidden.clone());
                    entry(self, random, EntryType::Regular, &format!("{directory}.wh.{last}"), "", &[]);
                }
            }
            _ => {
                let directory = random.pick(&self.directories).clone();
                if !directory.is_empty() {
                    entry(self, random, EntryType::Regular, &format!("{directory}.wh..wh..opq"), "", &[]);
                    self.opaque.push(directory);
                }
            }
        }
    }

    /// Appends a sparse file in one of the formats that GNU tar writes.
    fn sparse(&mut self, random: &mut Random, name: &str) {
        let (mut at, mut pieces, mut data) = (0, Vec::new(), Vec::new());
        for _ in 0..random.below(4) {
            at += 512 * random.below(200);
            let length = 512 * (1 + random.below(9));
            pieces.push((at, length));
            data.extend(random.bytes(length));
            at += length;
        }
        // An empty piece marks a hole at the end; without it, GNU tar drops the hole.
        let size = at + random.below(100_000);
        pieces.push((size, 0));
        let record = |key: &str, value: String| (format!("GNU.sparse.{key}"), value.into_bytes());
        let records = if random.one_in(2) {
            let numbers: Vec<String> =
                pieces.iter().flat_map(|(at, length)| [at.to_string(), length.to_string()]).collect();
            vec![
                record("size", size.to_string()),
                record("numblocks", pieces.len().to_string()),
                record("map", numbers.join(",")),
                record("name", name.to_owned()),
            ]
        } else {
            let mut map = format!("{}\n", pieces.len());
            pieces.iter().for_each(|(at, length)| map += &format!("{at}\n{length}\n"));
            let mut map = map.into_bytes();
            map.resize(map.len().next_multiple_of(512), 0);
            data = [map, data].concat();
            vec![
                record("major", "1".to_owned()),
                record("minor", "0".to_owned()),
                record("name", name.to_owned()),
                record("realsize", size.to_string()),
            ]
        };
        self.put(
            random,
            Entry { kind: EntryType::Regular, name: "GNUSparseFile.0/x", link: "", data: &data, records },
        );
    }
}

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let length =
        (1..).map(|digits| rest + digits).find(|length| length.to_string().len() + rest == *length).unwrap();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn image(seed: u64) -> Image {
    let mut random = Random::of(seed);
    let mut image = Image::default();
    for _ in 0..1 + random.below(3) {
        let mut layer = Layer::new(&mut random);
        for _ in 0..5 + random.below(40) {
            layer.add(&mut random, &image.below);
        }
        image.below.retain(|name| !layer.hides(name));
        image.below.extend(layer.taken.difference(&layer.hidden).cloned());
        layer.tar.resize(layer.tar.len() + 1024, 0);
        image.layers.push(layer.tar);
    }
    image
}

/// Applies a layer's whiteouts to the files that GNU tar extracted. If all lower layers are hidden, a
/// whiteout has no effect.
fn apply_marks(directory: &Path, hides: bool) {
    let entries: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let metadata = fs::symlink_metadata(directory).unwrap();
    let opaque = |path: &Path| xattrs(path).iter().any(|(name, _)| name == "trusted.overlay.opaque");
    let hides = hides || opaque(directory) || directory.join(".wh..wh..opq").exists();
    for path in &entries {
        let Some(hidden) = path.file_name().unwrap().as_encoded_bytes().strip_prefix(b".wh.") else {
            continue;
        };
        fs::remove_file(path).unwrap();
        if hidden == b".wh..opq" {
            set_xattr(directory, "trusted.overlay.opaque", b"y");
            continue;
        }
        let hidden = directory.join(std::ffi::OsStr::from_bytes(hidden));
        match fs::symlink_metadata(&hidden) {
            Ok(there) if there.is_dir() => set_xattr(&hidden, "trusted.overlay.opaque", b"y"),
            Ok(_) => {}
            Err(_) if hides => {}
            Err(_) => mknod(&hidden, SFlag::S_IFCHR, Mode::empty(), 0).unwrap(),
        }
    }
    for path in &entries {
        if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
            apply_marks(path, hides);
        }
    }
    fs::File::open(directory).unwrap().set_modified(metadata.modified().unwrap()).unwrap();
}

/// Drops the attributes of whiteouts: a whiteout is only a mark.
fn without_marks(mut seen: BTreeMap<PathBuf, Seen>) -> BTreeMap<PathBuf, Seen> {
    for (name, entry) in &mut seen {
        entry.xattrs.retain(|(name, _)| name != "trusted.nodlet.implied");
        if entry.device == 0 && entry.mode & SFlag::S_IFMT.bits() == SFlag::S_IFCHR.bits() {
            entry.mode = SFlag::S_IFCHR.bits();
            (entry.owner, entry.mtime, entry.links, entry.same_as) = ((0, 0), (0, 0), 1, name.clone());
        }
    }
    seen
}

/// Drops what an overlay does not show faithfully: the link counts of files, of which another layer may hide
/// names, and of directories. Also drops the root directory, which is the container's own, as under
/// containerd, whatever the image says about its root.
fn of_a_tree(mut seen: BTreeMap<PathBuf, Seen>) -> BTreeMap<PathBuf, Seen> {
    seen.remove(Path::new(""));
    seen.values_mut().for_each(|entry| entry.links = 0);
    seen
}

#[track_caller]
fn compare(ours: BTreeMap<PathBuf, Seen>, theirs: BTreeMap<PathBuf, Seen>, what: &str) {
    let names = |seen: &BTreeMap<PathBuf, Seen>| seen.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&theirs), "{what}: ours on the left");
    for (name, theirs) in theirs {
        assert_eq!(ours[&name], theirs, "{what}: {}, ours on the left", name.display());
    }
}

fn against_tar(scratch: &Scratch, layer: &[u8], what: &str) -> PathBuf {
    let at = |suffix: &str| scratch.path().join(format!("layer.{suffix}"));
    let (archive, extracted, image) = (at("tar"), at("extracted"), at("erofs"));
    fs::write(&archive, layer).unwrap();
    fs::create_dir(&extracted).unwrap();
    run(Command::new("tar")
        .args([
            "--same-owner",
            "--delay-directory-restore",
            "-p",
            "--xattrs",
            "--xattrs-include=*",
            "--warning=no-timestamp",
            "-xf",
        ])
        .arg(&archive)
        .arg("-C")
        .arg(&extracted));
    apply_marks(&extracted, false);
    let (_, warnings) = convert_to(&image, layer).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(warnings, Vec::<String>::new(), "{what}");
    let mounted = Mounted::new(scratch, &image);
    compare(without_marks(tree(&mounted.directory)), without_marks(tree(&extracted)), what);
    drop(mounted);
    fs::remove_dir_all(&extracted).unwrap();
    fs::remove_dir(scratch.path().join("layer.erofs.mounted")).unwrap();
    image
}

fn against_umoci(scratch: &Scratch, layers: Vec<Vec<u8>>, images: &[PathBuf], what: &str) {
    let path = |name: &str| scratch.path().join(name);
    let image = TestImage { config: "{}", ..TestImage::new("random", layers) };
    let archive = oci_archive(&[image]).finish();
    fs::write(path("image.tar"), archive).unwrap();
    for name in ["layout", "upper", "work", "root"] {
        fs::create_dir(path(name)).unwrap();
    }
    run(Command::new("tar").arg("-xf").arg(path("image.tar")).arg("-C").arg(path("layout")));
    run(Command::new("umoci")
        .args(["unpack", "--image"])
        .arg(format!("{}:random", path("layout").display()))
        .arg(path("bundle")));
    let mounts: Vec<_> = images.iter().map(|image| mount_layer(image).unwrap()).collect();
    let mounts: Vec<BorrowedFd<'_>> = mounts.iter().map(AsFd::as_fd).collect();
    mount_root(&mounts, &path("upper"), &path("work"), &path("root"), false).unwrap();
    let seen = (of_a_tree(tree(&path("root"))), of_a_tree(tree(&path("bundle/rootfs"))));
    umount2(&path("root"), MntFlags::MNT_DETACH).unwrap();
    compare(seen.0, seen.1, what);
}

#[test]
fn random_images_are_what_gnu_tar_and_umoci_extract() {
    let (first, rounds) = (setting("NODLET_SEED", 1), setting("NODLET_ROUNDS", 15));
    let mut count = (0, 0);
    for seed in first..first + rounds {
        let scratch = Scratch::new();
        let layers = image(seed).layers;
        let mut images = Vec::new();
        for (number, layer) in layers.iter().enumerate() {
            let image = against_tar(&scratch, layer, &format!("seed {seed}, layer {number}, GNU tar"));
            let kept = scratch.path().join(format!("{number}.erofs"));
            fs::rename(image, &kept).unwrap();
            images.push(kept);
            count.1 += 1;
        }
        against_umoci(&scratch, layers, &images, &format!("seed {seed}, umoci"));
        count.0 += 1;
    }
    println!("{} images of {} layers, seeds {first} to {}", count.0, count.1, first + rounds - 1);
}
