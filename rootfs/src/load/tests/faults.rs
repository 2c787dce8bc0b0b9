//! Disks that fail at the n-th operation, and power cuts there. For every n, the store must be unchanged or
//! complete, and the next load must repair it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nodlet_fuzz::disk::{Disk, FAULTS, Trial};

use super::*;

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
            if entry.file_type().unwrap().is_dir() {
                todo.push(entry.path())
            } else {
                files.insert(entry.path().strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    files
}

/// Tries `change` on stores made by `prepare`, with a fault at every operation in turn.
fn check_every_fault(what: &str, prepare: &dyn Fn(&Store), change: &dyn Fn(&Store) -> bool) {
    let scratch = Scratch::in_memory();
    let root = scratch.path().join("before");
    let store = Store::open(&root).unwrap();
    prepare(&store);
    let files_before = files(&root);
    assert!(change(&store));
    let files_after = files(&root);
    let nothing = oci_archive(&[TestImage::new("x", vec![layer("x")])]).finish();
    let trial = Trial {
        scratch: scratch.path(),
        is_full: false,
        prepare: &|root| prepare(&Store::open(root).unwrap()),
        change: &|root| change(&Store::open(root).unwrap()),
        read: &state,
    };
    let operations = trial.with_each_of(&FAULTS, &|root, fault, is_before| {
        // The next start of an agent removes everything else.
        Store::open(root).unwrap().tidy().unwrap();
        let expected = if is_before { &files_before } else { &files_after };
        assert_eq!(&files(root), expected, "{fault:?}, tidied");
        // Leftovers must not obstruct the next change.
        let store = Store::open(root).unwrap();
        change(&store);
        store.load(&nothing, &on("linux/riscv64")).unwrap_err();
        assert_eq!(files(root), files_after, "{fault:?}, done again");
    });
    assert!(operations > 5, "{operations} operations");
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
    let load = |store: &Store, archive: &[u8]| store.load(archive, &amd64()).is_ok();
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
        store.load(&old(), &amd64()).unwrap();
        store.load(&new(), &amd64()).unwrap();
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
    let store = Store::open(&scratch.path().join("root")).unwrap();
    let disk = Disk::counting();
    store.load_path(&path, &amd64(), &mut |_| {}).unwrap();
    store.load_path(&docker, &amd64(), &mut |_| {}).unwrap();
    let first = disk.operations();
    assert!(first > 0);
    let mut loaded = store.load_path(&path, &amd64(), &mut |_| {}).unwrap();
    loaded.extend(store.load(&new(), &amd64()).unwrap());
    loaded.extend(store.load_path(&docker, &amd64(), &mut |_| {}).unwrap());
    assert_eq!(loaded.len(), 5);
    for loaded in loaded {
        assert_eq!((loaded.new, loaded.bytes_written), (false, 0));
    }
    assert_eq!(disk.operations(), first, "operations on the disk");
}

/// Pods write, too: if every layer could take most of the free space, nothing would be left for them.
#[test]
fn loading_an_image_keeps_a_reserve_of_disk_space_free() {
    const KIBIBYTE: usize = 1024;
    let files = |sizes: &[usize]| {
        let layer = |size: &usize| tar().bytes("file", &vec![7; size * KIBIBYTE]).finish();
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
        let path = scratch.join("archive.tar");
        let load_path = |archive: &[u8]| {
            fs::write(&path, archive).unwrap();
            store.load_path(&path, &amd64(), &mut |_| {})
        };
        let load_stream = |archive: &[u8]| store.load(archive, &amd64());
        for load in [&load_path as &dyn Fn(&[u8]) -> Result<Vec<Loaded>, LoadError>, &load_stream] {
            // The last sixteenth, 256 KiB, must not be used.
            let error = load(&files(&[3000, 900])).unwrap_err();
            assert!(matches!(error, LoadError::NotEnoughSpace { is_limited: false, .. }), "{error:?}");
            assert_eq!(fs::read_dir(store.writable.staging()).unwrap().count(), 0);
            load(&files(&[3000, 600])).unwrap();
            store.remove("app:1").unwrap();
        }
    });
}
