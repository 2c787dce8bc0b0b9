use super::*;
use crate::testing::{Scratch, TestImage, amd64, oci_archive, tar};

fn layer(text: &str) -> Vec<u8> {
    tar().file("text", text).finish()
}

/// A store with these images, each with a shared base layer and a layer of its own.
fn store_of(root: &Path, names: &[&'static str]) -> Store {
    let images: Vec<TestImage> =
        names.iter().map(|name| TestImage::new(name, vec![layer("base"), layer(name)])).collect();
    let store = Store::open(root).unwrap();
    store.load(&oci_archive(&images).finish(), &amd64()).unwrap();
    store
}

fn find(store: &Store, name: &str) -> Option<Image> {
    store.find(&Reference::parse(name).unwrap()).unwrap()
}

#[test]
fn opening_creates_nothing() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path()).unwrap();
    assert!(store.images().unwrap().is_empty());
    assert!(find(&store, "app").is_none());
    store.release("pod").unwrap();
    assert_eq!(store.remove("app").unwrap_err().to_string(), "remove image app: no such image");
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    let relative = Store::open(Path::new("relative")).unwrap();
    assert!(relative.watch_paths().iter().all(|path| path.is_absolute()));
}

#[test]
fn removing_the_last_name_of_an_image_removes_its_unshared_layers() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1", "tool:1"]);
    let (app, tool) = (find(&store, "app:1").unwrap(), find(&store, "tool:1").unwrap());
    assert_eq!(app.config.user, "www");
    let removed = store.remove("app:1").unwrap();
    let names = vec!["docker.io/library/app:1".to_owned()];
    assert_eq!(removed, Removed { names, image: Some(app.id), layers: vec![app.layers[1]], remains: None });
    assert!(find(&store, "app:1").is_none());
    assert!(store.layer_path(&app.layers[1]).is_none());
    assert_eq!(find(&store, "tool:1").unwrap().id, tool.id, "and the base is still there");
    store.remove("tool:1").unwrap();
    for directory in ["layers", "images", "staging"] {
        let directory = scratch.path().join("var/lib/nodlet/images").join(directory);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0, "{}", directory.display());
    }
}

#[test]
fn an_image_is_removed_by_its_id_or_the_beginning_of_it() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1", "tool:1"]);
    let (app, tool) = (find(&store, "app:1").unwrap(), find(&store, "tool:1").unwrap());
    for name in ["app", "app:2", &app.id.hex()[..3], "0000000000", "not a name"] {
        assert!(matches!(store.remove(name), Err(RemoveError::NotFound { .. })), "{name}");
    }
    assert_eq!(store.remove(&app.id.hex()[..12]).unwrap().image, Some(app.id));
    assert_eq!(store.remove(&tool.id.to_string()).unwrap().names, ["docker.io/library/tool:1"]);
}

#[test]
fn an_image_that_is_named_like_the_id_of_another_one_does_not_take_its_place() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1"]);
    let app = find(&store, "app:1").unwrap().id;
    // The images are sorted by their IDs: one of these is before the other, whatever both are.
    for layer_of in ["a", "b", "c", "d"] {
        let name: &'static str = app.to_string().leak();
        let other = TestImage::new(name, vec![layer(layer_of)]);
        store.load(&oci_archive(&[other]).finish(), &amd64()).unwrap();
        assert_eq!(find(&store, name).unwrap().id, app);
    }
}

#[test]
fn an_image_in_use_is_not_removed_until_its_pods_are_gone() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1"]);
    let image = find(&store, "app:1").unwrap();
    store.lease(&image.id, "uid-1", "default/web").unwrap();
    store.lease(&image.id, "uid-1", "default/web").unwrap();
    store.lease(&image.id, "uid-2", "default/db").unwrap();
    let expected = "remove image app:1: in use by default/db, default/web; delete the pods first";
    assert_eq!(store.remove("app:1").unwrap_err().to_string(), expected);
    assert!(find(&store, "app:1").is_some());
    store.release("uid-2").unwrap();
    assert!(matches!(store.remove(&image.id.hex()), Err(RemoveError::InUse { .. })));
    store.release("uid-1").unwrap();
    store.remove("app:1").unwrap();
    let error = store.lease(&image.id, "uid-1", "default/web").unwrap_err();
    assert_eq!(error.to_string(), format!("use image {}: it is not on this board", image.id));
    for holder in ["", ".", "..", "a/b"] {
        assert!(
            matches!(store.lease(&image.id, holder, "default/web"), Err(StoreError::BadHolder { .. })),
            "{holder}"
        );
    }
}

#[test]
fn what_is_in_the_place_of_the_leases_is_refused_and_no_image_is_removed() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1"]);
    let image = find(&store, "app:1").unwrap();
    store.lease(&image.id, "uid-1", "default/web").unwrap();
    let leases = scratch.path().join("run/nodlet/leases");
    let (moved, other) = (scratch.path().join("moved"), scratch.path().join("other"));
    fs::rename(&leases, &moved).unwrap();
    fs::create_dir(&other).unwrap();
    let fifo = || nix::unistd::mkfifo(&leases, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let kinds: [&dyn Fn(); 3] = [&fifo, &|| fs::write(&leases, "").unwrap(), &|| {
        std::os::unix::fs::symlink(&other, &leases).unwrap();
    }];
    for put in kinds {
        put();
        let expected = format!(
            "use {}: it is not a directory: restart the agent, which makes it anew with the images of running pods",
            leases.display()
        );
        let chain = |error: &dyn std::error::Error| {
            let causes = std::iter::successors(Some(error), |error| error.source());
            causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
        };
        let error = store.lease(&image.id, "uid-2", "default/db").map_err(|error| chain(&error));
        assert_eq!(error, Err(expected.clone()));
        // A pod is removed nevertheless.
        store.release("uid-2").unwrap();
        let error = store.remove("app:1").map_err(|error| chain(&error));
        assert_eq!(error, Err(expected));
        assert!(find(&store, "app:1").is_some() && fs::read_dir(&other).unwrap().count() == 0);
        fs::remove_file(&leases).unwrap();
    }
    fs::rename(&moved, &leases).unwrap();
    assert!(matches!(store.remove("app:1"), Err(RemoveError::InUse { .. })));
}

#[test]
fn lost_or_damaged_files_of_the_store_are_reported_and_loaded_again() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1", "tool:1"]);
    let app = find(&store, "app:1").unwrap();
    fs::remove_file(store.layer_path(&app.layers[1]).unwrap()).unwrap();
    assert!(find(&store, "app:1").is_none());
    let tool = find(&store, "tool:1").unwrap();
    let record = store.writable.record_path(&tool.id);
    let flipped = fs::read_to_string(&record).unwrap().replace("/bin/app", "/bin/apq");
    fs::write(&record, flipped).unwrap();
    let error = store.find(&Reference::parse("tool:1").unwrap()).unwrap_err().to_string();
    let problem = "its content does not match its digest; load its images again";
    assert_eq!(error, format!("read {}: {problem}", record.display()));
    assert!(store.images().unwrap().is_empty());
    store_of(scratch.path(), &["app:1", "tool:1"]);
    assert_eq!(find(&store, "app:1").unwrap().id, app.id);
    assert_eq!(find(&store, "tool:1").unwrap().id, tool.id);
}

#[test]
fn an_image_of_the_read_only_store_is_found_whatever_became_of_the_writable_index() {
    let scratch = Scratch::new();
    let baking = scratch.path().join("baking");
    store_of(&baking, &["app:1"]);
    let root = scratch.path().join("board");
    fs::create_dir_all(root.join("usr/lib/nodlet")).unwrap();
    fs::rename(baking.join("var/lib/nodlet/images"), root.join("usr/lib/nodlet/images")).unwrap();
    let store = store_of(&root, &["tool:1"]);
    fs::write(store.writable.index_path(), b"\xff\x00 no JSON").unwrap();
    let app = find(&store, "app:1").unwrap();
    store.lease(&app.id, "uid-1", "default/web").unwrap();
    let error = store.find(&Reference::parse("tool:1").unwrap()).unwrap_err().to_string();
    assert!(error.contains("index.json") && error.contains("load its images again"), "{error}");
    store_of(&root, &["tool:1"]);
    assert!(find(&store, "app:1").is_some() && find(&store, "tool:1").is_some());
}

#[test]
fn an_index_written_by_a_newer_nodlet_is_left_unchanged() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1"]);
    let newer = r#"{"version":2,"images":{}}"#;
    fs::write(store.writable.index_path(), newer).unwrap();
    let error = Store::open(scratch.path()).unwrap_err().to_string();
    assert!(error.ends_with("index.json: version 2 was written by a newer nodlet; use that one"), "{error}");
    store.tidy().unwrap_err();
    let archive = oci_archive(&[TestImage::new("tool:1", vec![layer("tool")])]).finish();
    store.load(&archive, &amd64()).unwrap_err();
    assert_eq!(fs::read_to_string(store.writable.index_path()).unwrap(), newer);
    assert_eq!(fs::read_dir(store.writable.layers()).unwrap().count(), 2);
}

/// Only the names are lost with the index, and loading the images again restores them.
#[test]
fn a_damaged_index_does_not_block_the_store_and_the_next_load_repairs_it() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1", "tool:1"]);
    let tool = find(&store, "tool:1").unwrap();
    fs::write(store.writable.index_path(), "\0\0\0").unwrap();
    let store = Store::open(scratch.path()).unwrap();
    let error = store.find(&Reference::parse("app:1").unwrap()).unwrap_err().to_string();
    let problem = "index.json: expected value at line 1 column 1; load its images again";
    assert!(error.ends_with(problem), "{error}");
    store.tidy().unwrap_err();
    assert!(store.layer_path(&tool.layers[1]).is_some(), "nothing is swept for it");
    store_of(scratch.path(), &["app:1"]);
    assert!(find(&store, "app:1").is_some());
    assert!(find(&store, "tool:1").is_none());
    let by_id = store.images().unwrap().into_iter().find(|image| image.id == tool.id).unwrap();
    assert_eq!((by_id.names, by_id.layers), (Vec::new(), tool.layers));
    let again = store_of(scratch.path(), &["tool:1"]);
    assert_eq!(find(&again, "tool:1").unwrap().id, tool.id);

    // A load without a new name repairs the index, too.
    fs::write(store.writable.index_path(), "\0\0\0").unwrap();
    let unnamed = TestImage { name: None, ..TestImage::new("", vec![layer("base"), layer("tool:1")]) };
    store.load(&oci_archive(&[unnamed]).finish(), &amd64()).unwrap();
    assert_eq!(store.images().unwrap().len(), 2);
}

#[test]
fn an_index_never_becomes_larger_than_what_is_read_again() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1"]);
    let mut index = store.writable.index().unwrap();
    let entry = index.images.values_mut().next().unwrap();
    entry.names.extend((0..60_000).map(|number| format!("docker.io/{}:{number}", "n".repeat(240))));
    fs::write(store.writable.index_path(), store.writable.encode(&index).unwrap()).unwrap();
    let entry = index.images.values_mut().next().unwrap();
    entry.names.extend((0..10_000).map(|number| format!("docker.io/{}:{number}", "m".repeat(240))));
    let error = store.writable.encode(&index).unwrap_err().to_string();
    assert!(error.ends_with("more names than are allowed; remove images with nodlet image rm"), "{error}");
    assert!(find(&store, "app:1").is_some(), "the one there is can be read");
}

/// A card's file system has directories such as lost+found.
#[test]
fn foreign_directories_in_the_store_are_left_alone() {
    let scratch = Scratch::new();
    let store = store_of(scratch.path(), &["app:1"]);
    fs::create_dir(store.writable.layers().join("lost+found")).unwrap();
    fs::write(store.writable.layers().join("rubbish"), "").unwrap();
    store.tidy().unwrap();
    assert!(store.writable.layers().join("lost+found").is_dir());
    assert!(!store.writable.layers().join("rubbish").exists());
    store.remove("app:1").unwrap();
}
