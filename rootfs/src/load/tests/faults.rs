//! Disks that fail at the n-th operation, and power cuts there. For every n, the store must be unchanged or
//! complete, and the next load must repair it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::errno::Errno;

use super::*;
use crate::content::{Content, Decision, Operation};

/// The kinds of disk faults.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// One operation fails with EIO; all others work.
    Once,
    /// From then on, no space is left for writes.
    Full,
    /// A write is cut short, and then the disk is full.
    Short,
    /// A power cut: unsynced data is garbage, all renames have happened.
    PowerCut,
    /// A power cut: unsynced data is garbage, no unsynced rename or creation has happened.
    PowerCutBeforeRenames,
    /// A power cut: the rename of the index has happened, but earlier renames have not.
    PowerCutReordered,
}

impl Fault {
    fn is_power_cut(self) -> bool {
        match self {
            Fault::PowerCut | Fault::PowerCutBeforeRenames | Fault::PowerCutReordered => true,
            Fault::Once | Fault::Full | Fault::Short => false,
        }
    }
}

const FAULTS: [Fault; 6] = [
    Fault::Once,
    Fault::Full,
    Fault::Short,
    Fault::PowerCut,
    Fault::PowerCutBeforeRenames,
    Fault::PowerCutReordered,
];

#[derive(Default)]
struct Disk {
    operations: usize,
    /// Files whose data a power cut destroys.
    unsynced: BTreeSet<PathBuf>,
    /// Renames and creations that a power cut may undo, with the previous contents.
    entries: Vec<(Option<PathBuf>, PathBuf, Option<Vec<u8>>)>,
}

impl Disk {
    fn note(&mut self, operation: &Operation<'_>) {
        match operation {
            Operation::CreateDirectory(path) => assert!(!path.exists(), "{} is made twice", path.display()),
            Operation::Create(path) => {
                self.unsynced.insert(path.to_path_buf());
                self.entries.push((None, path.to_path_buf(), None));
            }
            Operation::Write { path, bytes } => {
                assert!(*bytes > 0, "an empty write to {}", path.display());
                self.unsynced.insert(path.to_path_buf());
            }
            Operation::SetLength(path) => {
                self.unsynced.insert(path.to_path_buf());
            }
            Operation::Sync(path) => {
                self.unsynced.remove(*path);
            }
            Operation::SyncDirectory(path) => self.entries.retain(|(_, to, _)| to.parent() != Some(path)),
            Operation::Rename { from, to } => {
                if self.unsynced.remove(*from) {
                    self.unsynced.insert(to.to_path_buf());
                }
                self.entries.retain(|(_, created, _)| created != from);
                self.entries.push((Some(from.to_path_buf()), to.to_path_buf(), fs::read(to).ok()));
            }
            Operation::Remove(path) => {
                self.unsynced.remove(*path);
                self.entries.retain(|(_, to, _)| to != path);
            }
        }
    }

    fn cut(&mut self, fault: Fault) {
        for path in &self.unsynced {
            if let Ok(bytes) = fs::read(path) {
                fs::write(path, vec![0xa5; bytes.len() / 2]).unwrap();
            }
        }
        let lost = |to: &Path| match fault {
            Fault::PowerCutBeforeRenames => true,
            Fault::PowerCutReordered => !to.ends_with("images/index.json"),
            Fault::Once | Fault::Full | Fault::Short | Fault::PowerCut => false,
        };
        for (from, to, before) in self.entries.drain(..).rev().filter(|(_, to, _)| lost(to)) {
            match (from, before) {
                (Some(from), None) => fs::rename(&to, &from).unwrap(),
                (Some(from), Some(before)) => {
                    fs::rename(&to, &from).unwrap();
                    fs::write(&to, before).unwrap();
                }
                (None, _) => drop(fs::remove_file(&to)),
            }
        }
    }
}

/// A store whose disk fails at operation `at`.
fn failing(root: &Path, fault: Fault, at: usize) -> (Store, Arc<Mutex<Disk>>) {
    let disk = Arc::new(Mutex::new(Disk::default()));
    let observed = Arc::clone(&disk);
    let content = Content::observed(Arc::new(move |operation| {
        let mut disk = observed.lock().unwrap();
        disk.operations += 1;
        let failed = disk.operations >= at;
        // A full disk may report it only when data is synced or a directory grows; it always allows removals.
        let writes = !matches!(operation, Operation::Remove(_));
        let decision = match fault {
            Fault::Once if disk.operations == at => Decision::Fail(Errno::EIO),
            Fault::Full if failed && writes => Decision::Fail(Errno::ENOSPC),
            Fault::Short if disk.operations == at && writes => Decision::Short(7, Errno::ENOSPC),
            Fault::Short if failed && writes => Decision::Fail(Errno::ENOSPC),
            fault if fault.is_power_cut() && failed => Decision::Fail(Errno::EIO),
            _ => Decision::Proceed,
        };
        if matches!(decision, Decision::Proceed) {
            disk.note(operation);
        }
        decision
    }));
    (Store::with_content(root, content), disk)
}

/// The state of the store, including the contents of its layers.
fn state(root: &Path) -> Vec<String> {
    let store = Store::open(root).unwrap();
    let described = |image: Image| {
        let layers = image.layers.iter().map(|layer| fs::read(store.layer_path(layer).unwrap()).unwrap());
        let layers: Vec<Digest> = layers.map(|bytes| Digest::of(&bytes)).collect();
        format!("{} {:?} {:?} {layers:?}", image.id, image.names, image.repo_digests)
    };
    store.images().unwrap().into_iter().map(described).collect()
}

/// All files below the store, without directories.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    let mut todo = vec![root.join("var")];
    while let Some(directory) = todo.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => todo.push(entry.path()),
                false => drop(files.insert(entry.path().strip_prefix(root).unwrap().to_owned())),
            }
        }
    }
    files
}

/// Tries `change` on stores made by `prepare`, with a fault at every operation in turn.
fn check_every_fault(what: &str, prepare: &dyn Fn(&Store), change: &dyn Fn(&Store) -> bool) {
    let scratch = Scratch::in_memory();
    let prepared = |name: &str| {
        let root = scratch.path().join(name);
        prepare(&Store::open(&root).unwrap());
        root
    };
    let root = prepared("before");
    let (before, files_before) = (state(&root), files(&root));
    let (store, disk) = failing(&root, Fault::Once, usize::MAX);
    assert!(change(&store));
    let (after, files_after, operations) = (state(&root), files(&root), disk.lock().unwrap().operations);
    assert_ne!(before, after);
    assert!(operations > 5, "{operations} operations");
    let nothing = oci_archive(&[TestImage::new("x", vec![layer("x")])]).finish();
    for fault in FAULTS {
        // One more: a power cut after everything has been reported as done.
        for at in 1..=operations + 1 {
            let root = prepared(&format!("{fault:?}-{at}"));
            let (store, disk) = failing(&root, fault, at);
            let succeeded = change(&store);
            if fault.is_power_cut() {
                disk.lock().unwrap().cut(fault);
            }
            let now = state(&root);
            assert!(now == before || now == after, "{fault:?} at {at} of {operations}: {now:#?}");
            assert!(!succeeded || now == after, "{fault:?} at {at}: reported as done, and is not");
            // The next start of an agent removes everything else.
            Store::open(&root).unwrap().tidy().unwrap();
            let expected = if now == before { &files_before } else { &files_after };
            assert_eq!(&files(&root), expected, "{fault:?} at {at} of {operations}, tidied");
            // Leftovers must not obstruct the next change.
            let store = Store::open(&root).unwrap();
            change(&store);
            assert_eq!(state(&root), after, "{fault:?} at {at}, done again");
            store.load(&mut &nothing[..], &on("linux/riscv64"), &mut |_| {}).unwrap_err();
            assert_eq!(files(&root), files_after, "{fault:?} at {at}, done again");
            fs::remove_dir_all(&root).unwrap();
        }
    }
    println!("{what}: {operations} of {operations} operations, each with {} faults", FAULTS.len());
}

fn old() -> Vec<u8> {
    oci_archive(&[TestImage::new("app:1", vec![layer("base"), layer("old")])]).finish()
}

fn new() -> Vec<u8> {
    let app = TestImage::new("app:1", vec![layer("base"), layer(&"new".repeat(3000))])
        .compressed(Compression::Gzip);
    oci_archive(&[
        app,
        TestImage::new("tool:1", vec![layer("base"), layer("tool")]).compressed(Compression::Gzip),
    ])
    .finish()
}

#[test]
fn an_interrupted_load_leaves_the_store_as_it_was_or_complete() {
    let load = |store: &Store, archive: &[u8]| store.load(&mut &*archive, &amd64(), &mut |_| {}).is_ok();
    check_every_fault("load of a stream", &|store| assert!(load(store, &old())), &|store| {
        load(store, &new())
    });
}

#[test]
fn an_interrupted_load_of_a_file_leaves_the_store_as_it_was_or_complete() {
    let scratch = Scratch::new();
    let path = scratch.path().join("archive.tar");
    fs::write(&path, new()).unwrap();
    check_every_fault("load of a file", &|_| {}, &|store| {
        store.load_path(&path, &amd64(), &mut |_| {}).is_ok()
    });
}

#[test]
fn an_interrupted_removal_leaves_the_store_as_it_was_or_complete() {
    let prepare = |store: &Store| {
        store.load(&mut &old()[..], &amd64(), &mut |_| {}).unwrap();
        store.load(&mut &new()[..], &amd64(), &mut |_| {}).unwrap();
    };
    check_every_fault("removal", &prepare, &|store| store.remove("tool:1").is_ok());
}

#[test]
fn loading_again_writes_nothing() {
    let scratch = Scratch::new();
    let path = scratch.path().join("archive.tar");
    let docker = scratch.path().join("docker.tar");
    let twice = TestImage::new("old:1", vec![layer("base"), layer("base")]);
    fs::write(&path, new()).unwrap();
    fs::write(&docker, docker_archive(&[twice]).finish()).unwrap();
    let (store, disk) = failing(&scratch.path().join("root"), Fault::Once, usize::MAX);
    store.load_path(&path, &amd64(), &mut |_| {}).unwrap();
    store.load_path(&docker, &amd64(), &mut |_| {}).unwrap();
    let first = disk.lock().unwrap().operations;
    assert!(first > 0);
    let mut loaded = store.load_path(&path, &amd64(), &mut |_| {}).unwrap();
    loaded.extend(store.load(&mut &new()[..], &amd64(), &mut |_| {}).unwrap());
    loaded.extend(store.load_path(&docker, &amd64(), &mut |_| {}).unwrap());
    assert_eq!(loaded.len(), 5);
    for loaded in loaded {
        assert_eq!((loaded.new, loaded.bytes_written), (false, 0));
    }
    assert_eq!(disk.lock().unwrap().operations, first, "operations on the disk");
}

/// Pods write, too: if every layer could take most of the free space, nothing would be left for them.
#[test]
fn loading_an_image_keeps_a_reserve_of_disk_space_free() {
    const KIBIBYTE: usize = 1024;
    let files = |sizes: &[usize]| {
        let layer = |size: &usize| TarBuilder::new().bytes("file", &vec![7; size * KIBIBYTE]).finish();
        // Compressed so small that the archive seems to fit.
        let image = TestImage::new("app:1", sizes.iter().map(layer).collect()).compressed(Compression::Gzip);
        oci_archive(&[image]).finish()
    };
    crate::testing::in_own_namespace(|scratch| {
        let disk = scratch.join("disk");
        fs::create_dir(&disk).unwrap();
        let (tmpfs, flags) = (Some("tmpfs"), nix::mount::MsFlags::empty());
        nix::mount::mount(tmpfs, &disk, tmpfs, flags, Some("size=4m")).unwrap();
        let store = Store::open(&disk).unwrap();
        assert!(store.is_in_memory());
        for load in [
            Store::load_path,
            |store: &Store, path: &Path, options: &LoadOptions, progress: &mut dyn FnMut(Progress)| {
                store.load(&mut &fs::read(path).unwrap()[..], options, progress)
            },
        ] {
            let path = scratch.join("archive.tar");
            // The last sixteenth, 256 KiB, must not be used.
            fs::write(&path, files(&[3000, 900])).unwrap();
            let error = load(&store, &path, &amd64(), &mut |_| {}).unwrap_err();
            assert!(matches!(error, LoadError::NotEnoughSpace { .. }), "{error:?}");
            assert_eq!(fs::read_dir(store.writable.staging()).unwrap().count(), 0);
            fs::write(&path, files(&[3000, 600])).unwrap();
            load(&store, &path, &amd64(), &mut |_| {}).unwrap();
            store.remove("app:1").unwrap();
        }
    });
}
