//! Tests of loading: archives of all formats, rejected archives, and the store after disk errors and power
//! cuts.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::*;
use crate::testing::{
    Compression, Scratch, TarBuilder, TestImage, amd64, docker_archive, oci_archive, on, piped, run, tar,
};

mod child;
mod faults;
mod fuzz;
mod hostile;
mod memory;
mod rebuilt;

fn layer(text: &str) -> Vec<u8> {
    tar().directory("etc").file("etc/text", text).finish()
}

/// Lists the images with their names, one line each.
fn listed(store: &Store) -> Vec<String> {
    let images = store.images().unwrap();
    images
        .iter()
        .map(|image| format!("{} {} {}", image.platform, image.names.join(","), image.layers.len()))
        .collect()
}

/// Loads an archive as a file and as a stream, each into a new store.
fn load_both(archive: &[u8], options: &LoadOptions) -> [Result<Vec<String>, String>; 2] {
    let scratch = Scratch::new();
    let file = scratch.path().join("archive.tar");
    fs::write(&file, archive).unwrap();
    let outcome = |store: &Store, result: Result<Vec<Loaded>, LoadError>| match result {
        Ok(loaded) => {
            assert!(loaded.iter().all(|loaded| loaded.new && loaded.bytes_written > 0), "{loaded:?}");
            Ok(listed(store))
        }
        Err(error) => {
            assert_eq!(listed(store), Vec::<String>::new());
            Err(chain(&error))
        }
    };
    let by_file = Store::open(&scratch.path().join("file")).unwrap();
    let by_stream = Store::open(&scratch.path().join("stream")).unwrap();
    let loaded = by_file.load_path(&file, options, &mut |_| {});
    let streamed = by_stream.load(archive, options);
    [outcome(&by_file, loaded), outcome(&by_stream, streamed)]
}

/// The error with its causes, as the command line prints it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[track_caller]
fn check(archive: TarBuilder, options: &LoadOptions, expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|line| line.to_string()).collect();
    for (outcome, how) in load_both(&archive.finish(), options).into_iter().zip(["file", "stream"]) {
        assert_eq!(outcome.as_ref(), Ok(&expected), "as a {how}");
    }
}

#[track_caller]
fn refused(archive: TarBuilder, options: &LoadOptions, expected: &str) {
    for (outcome, how) in load_both(&archive.finish(), options).into_iter().zip(["file", "stream"]) {
        assert_eq!(outcome, Err(expected.to_owned()), "as a {how}");
    }
}

#[test]
fn oci_layouts_and_docker_archives_give_the_same_image() {
    let image = || TestImage::new("app:1", vec![layer("one"), layer("two")]);
    let expected = ["linux/amd64 docker.io/library/app:1 2"];
    check(oci_archive(&[image()]), &amd64(), &expected);
    check(oci_archive(&[image().compressed(Compression::Gzip)]), &amd64(), &expected);
    check(oci_archive(&[image().compressed(Compression::Zstd)]), &amd64(), &expected);
    check(docker_archive(&[image()]), &amd64(), &expected);

    let scratch = Scratch::new();
    let layout = scratch.path().join("layout");
    fs::create_dir(&layout).unwrap();
    let archive = scratch.path().join("archive.tar");
    fs::write(&archive, oci_archive(&[image()]).finish()).unwrap();
    run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&layout));
    let store = Store::open(&scratch.path().join("root")).unwrap();
    store.load_path(&layout, &amd64(), &mut |_| {}).unwrap();
    assert_eq!(listed(&store), expected);
    run(Command::new("gzip").arg(&archive));
    let store = Store::open(&scratch.path().join("gzipped")).unwrap();
    store.load_path(&scratch.path().join("archive.tar.gz"), &amd64(), &mut |_| {}).unwrap();
    assert_eq!(listed(&store), expected);
}

#[test]
fn an_archive_may_hold_several_images_that_share_layers() {
    let images = || {
        [
            TestImage::new("quay.io/a/one:1", vec![layer("base"), layer("one")]),
            TestImage::new("quay.io/a/two:2", vec![layer("base"), layer("two"), layer("base")]),
        ]
    };
    // A layer that an image has twice is mounted once.
    let expected = ["linux/amd64 quay.io/a/one:1 2", "linux/amd64 quay.io/a/two:2 2"];
    for archive in [oci_archive(&images()), docker_archive(&images())] {
        for outcome in load_both(&archive.finish(), &amd64()) {
            let outcome = outcome.map(|lines| lines.into_iter().collect::<BTreeSet<_>>());
            assert_eq!(outcome, Ok(expected.iter().map(|line| line.to_string()).collect()));
        }
    }
}

#[test]
fn an_index_picks_the_platform() {
    let images = || {
        ["linux/amd64", "linux/arm64", "linux/arm/v6", "linux/arm/v7"]
            .map(|platform| TestImage::new("app:1", vec![layer(platform)]).on(platform))
    };
    for (platform, expected) in [
        ("linux/amd64", "linux/amd64 docker.io/library/app:1 1"),
        ("linux/arm64/v8", "linux/arm64 docker.io/library/app:1 1"),
        ("linux/arm/v7", "linux/arm/v7 docker.io/library/app:1 1"),
        ("linux/arm/v8", "linux/arm/v7 docker.io/library/app:1 1"),
        ("linux/arm/v6", "linux/arm/v6 docker.io/library/app:1 1"),
    ] {
        check(oci_archive(&images()), &on(platform), &[expected]);
    }
    let has = "the archive has linux/amd64, linux/arm64, linux/arm/v6, linux/arm/v7; --platform of nodlet image load chooses one";
    refused(oci_archive(&images()), &on("linux/riscv64"), &format!("find an image for linux/riscv64: {has}"));
    refused(oci_archive(&images()), &on("linux/arm/v5"), &format!("find an image for linux/arm/v5: {has}"));
    refused(
        docker_archive(&[TestImage::new("app:1", vec![layer("x")])]),
        &on("linux/arm64"),
        "find an image for linux/arm64: the archive has linux/amd64; --platform of nodlet image load chooses one",
    );
}

/// `docker save` writes this for an image that was pulled for one platform of several: the complete index,
/// without the other platforms' manifests, and a provenance attestation.
#[test]
fn an_index_within_the_index_may_name_what_the_archive_leaves_out() {
    let image = || TestImage::new("unused", vec![layer("x")]);
    let attestation =
        r#"{"config":{"mediaType":"application/vnd.in-toto+json","digest":"sha256:0"},"layers":[]}"#;
    let manifest = |digest: Digest, os: &str, architecture: &str| {
        format!(r#"{{"digest":"{digest}","platform":{{"os":"{os}","architecture":"{architecture}"}}}}"#)
    };
    let index = format!(
        r#"{{"manifests":[{},{},{}]}}"#,
        manifest(Digest::of(image().manifest().as_bytes()), "linux", "amd64"),
        manifest(Digest::of(b"left out"), "linux", "arm64"),
        manifest(Digest::of(attestation.as_bytes()), "unknown", "unknown"),
    );
    let id = Digest::of(index.as_bytes());
    let archive = || {
        oci_archive(&[image()])
            .file(&format!("blobs/sha256/{}", Digest::of(attestation.as_bytes()).hex()), attestation)
            .file(&format!("blobs/sha256/{}", id.hex()), &index)
            .file(
                "index.json",
                &format!(
                    r#"{{"manifests":[{{"digest":"{id}","annotations":{{"io.containerd.image.name":
                    "docker.io/library/app:1","org.opencontainers.image.ref.name":"1"}}}}]}}"#
                ),
            )
    };
    check(archive(), &amd64(), &["linux/amd64 docker.io/library/app:1 1"]);
    let has = "the archive has linux/amd64, linux/arm64 (named, but not included); --platform of nodlet image load chooses one";
    refused(archive(), &on("linux/arm64"), &format!("find an image for linux/arm64: {has}"));

    let scratch = Scratch::new();
    let store = Store::open(scratch.path()).unwrap();
    store.load(&archive().finish(), &amd64()).unwrap();
    for digest in [id, Digest::of(image().manifest().as_bytes())] {
        let by_digest = Reference::parse(&format!("app@{digest}")).unwrap();
        assert!(store.find(&by_digest).unwrap().is_some(), "{by_digest}");
    }
}

#[test]
fn an_image_without_a_name_gets_the_requested_name() {
    let image = || TestImage { name: None, ..TestImage::new("", vec![layer("x")]) };
    check(oci_archive(&[image()]), &amd64(), &["linux/amd64  1"]);
    let named = LoadOptions { name: Some(Reference::parse("mine").unwrap()), ..amd64() };
    check(docker_archive(&[image()]), &named, &["linux/amd64 docker.io/library/mine:latest 1"]);
}

#[test]
fn damaged_and_foreign_archives_are_refused() {
    let image = || TestImage::new("app:1", vec![layer("one")]);
    let blob = |image: &TestImage| format!("blobs/sha256/{}", Digest::of(&image.layers[0]).hex());
    let other = layer("other");
    let one = layer("one");
    // Nor does it matter that a damaged layer cannot be unpacked.
    let mut broken = vec![0xff; other.len()];
    broken[..10].copy_from_slice(b"\x1f\x8b\x08\0\0\0\0\0\0\x03");
    let damaged = |member: &str, found: &[u8]| {
        let (found, due) = (Digest::of(found), Digest::of(&one));
        format!(
            "load layer {member}: its content has digest {found} but should have {due}; the archive is damaged"
        )
    };
    let replaced = |name: &str, bytes: &[u8]| oci_archive(&[image()]).bytes(name, bytes);
    let member = blob(&image());
    let config = format!("blobs/sha256/{}", image().id().hex());
    let docker_dir =
        r#"{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}"#;
    let names_missing = r#"[{"Config":"config.json","RepoTags":["app:1"],"Layers":["a.tar"]}]"#;
    let sha512 = format!("sha512:{}", "0".repeat(128));
    let no_layers = || TestImage::new("app:1", vec![]);
    let hostile = || TestImage::new("app:1", vec![tar().file("../../etc/passwd", "root").finish()]);
    let read = |name: &str, why: &str| format!("read {name} in the archive: {why}");
    for (archive, expected) in [
        (
            tar().file("readme", "text"),
            "read the archive: it has neither index.json (an OCI image layout) nor manifest.json (a docker archive); \
             make one with podman save, docker save, buildah push or skopeo copy"
                .to_owned(),
        ),
        (
            tar().file("version", "Directory Transport Version: 1.1\n").file("manifest.json", docker_dir),
            "read the archive: it is what `skopeo copy … dir:` and `podman save --format docker-dir` write, which is \
             not supported: save it as a docker-archive, an oci-archive or an OCI image layout (oci:DIR, oci-dir)"
                .to_owned(),
        ),
        (replaced(&member, &other), damaged(&member, &other)),
        (replaced(&member, &broken), damaged(&member, &broken)),
        (
            docker_archive(&[image()]).bytes("image0-0/layer.tar", &other),
            damaged("image0-0/layer.tar", &other),
        ),
        (
            replaced(&config, b"{}"),
            read(&config, &format!("its content has digest {}: the archive is damaged", Digest::of(b"{}"))),
        ),
        (
            tar().file("index.json", &format!(r#"{{"manifests":[{{"digest":"{sha512}"}}]}}"#)),
            read("index.json", &format!("check digest \"{sha512}\": only sha256 is supported")),
        ),
        (
            tar().file("index.json", r#"{"manifests":1}"#),
            read("index.json", "invalid type: integer `1`, expected a sequence at line 1 column 14"),
        ),
        (
            oci_archive(&[no_layers()]),
            read(
                &format!("blobs/sha256/{}", no_layers().id().hex()),
                "an image of 0 layers: must be 1 to 127",
            ),
        ),
        (
            oci_archive(&[hostile()]),
            format!(
                "load layer {}: unpack ../../etc/passwd: would lie outside of the root file system",
                blob(&hostile())
            ),
        ),
        (
            tar().file("config.json", &image().configuration()).file("manifest.json", names_missing),
            "read a.tar: it is not in the archive, though its manifest names it".to_owned(),
        ),
        (
            docker_archive(&[TestImage::new("App", vec![layer("x")])]),
            read(
                "manifest.json",
                "RepoTags: couldn't parse image name \"App\": invalid reference format: \
                 repository name (library/App) must be lowercase",
            ),
        ),
    ] {
        refused(archive, &amd64(), &expected);
    }
    for (name, bytes) in [("xz", &b"\xfd7zXZ\0\0\x04"[..]), ("bzip2", b"BZh91AY&SY")] {
        let expected = format!(
            "{name} compression is not supported: decompress it with `{name} -d` first, or compress it \
             with gzip or zstd"
        );
        for outcome in load_both(bytes, &amd64()) {
            assert_eq!(outcome, Err(format!("read the archive: {expected}")));
        }
        let image = TestImage::new("app:1", vec![bytes.to_vec()]);
        for outcome in load_both(&oci_archive(&[image]).finish(), &amd64()) {
            let refusal = outcome.expect_err(name);
            assert!(refusal.starts_with("load layer ") && refusal.ends_with(&expected), "{refusal}");
        }
    }
}

#[test]
fn an_ordinary_user_bakes_the_same_bytes_as_root() {
    const NOBODY: u32 = 65534;
    let scratch = Scratch::new();
    let device = tar().entry(tar::EntryType::Char, "dev/null", "", 0o4666, &[]).file("a", "1").finish();
    let archive = oci_archive(&[TestImage::new("app:1", vec![device]).on("linux/arm64")]).finish();
    let load = |root: &Path| {
        let store = Store::open(root).unwrap();
        let loaded = store.load(&archive, &on("linux/arm64")).unwrap().remove(0);
        store.layer_path(&loaded.image.layers[0]).unwrap()
    };
    let by_root = load(&scratch.path().join("root"));
    let home = scratch.path().join("nobody");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).expect("this test needs root");
    let by_nobody = std::thread::scope(|scope| {
        let bake = || {
            // SAFETY: takes numbers only. The bare system call changes this thread and no other.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(result, 0);
            load(&home)
        };
        scope.spawn(bake).join().unwrap()
    });
    let owner =
        fs::metadata(&by_nobody).map(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata)).unwrap();
    assert_eq!(owner, NOBODY);
    assert!(fs::read(by_root).unwrap() == fs::read(by_nobody).unwrap());
}

#[test]
fn a_truncated_archive_is_refused() {
    let image = || TestImage::new("app:1", vec![layer(&"x".repeat(5000))]);
    let named_by = oci_archive(&[image()]).finish().len() - 1024 - 2 * 1024;
    let whole = oci_archive(&[image()]).finish();
    for end in (0..named_by).step_by(509) {
        for outcome in load_both(&whole[..end], &amd64()) {
            assert!(outcome.is_err(), "cut to {end} of {} bytes: {outcome:?}", whole.len());
        }
    }
}

#[test]
fn a_layer_larger_than_the_free_space_is_rejected_before_it_is_written() {
    let scratch = Scratch::new();
    // A layer of the size that its header declares; it is never read.
    let huge = 1u64 << 60;
    let image = TestImage::new("app:1", vec![layer("x")]);
    let archive = docker_archive(&[image]).finish();
    let path = scratch.path().join("archive.tar");
    fs::write(&path, &archive[..archive.len() - 1024]).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    let store = Store::open(&scratch.path().join("root")).unwrap();
    let free = nix::sys::statvfs::statvfs(scratch.path()).unwrap();
    let free = free.blocks_available() * free.fragment_size() as u64;
    let size = (free + (1 << 30)).min(huge);
    let header = tar().with_size("image0-0/layer.tar", size, b"").finish();
    let end = archive.len() as u64 - 1024;
    std::os::unix::fs::FileExt::write_all_at(&file, &header[..512], end).unwrap();
    if file.set_len((end + 512 + size).next_multiple_of(512)).is_err() {
        // The file system does not support a file as large as its free space.
        return;
    }
    match store.load_path(&path, &amd64(), &mut |_| {}) {
        Err(LoadError::NotEnoughSpace { needed, .. }) => assert_eq!(needed, size),
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read_dir(scratch.path().join("root/var/lib/nodlet/images/staging")).unwrap().count(), 0);
}

#[test]
fn an_image_beyond_the_limit_of_the_store_is_rejected_before_any_change() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path()).unwrap();
    let image = |name: &'static str, bytes: usize| {
        // The text has no zero blocks, so it occupies its full size on disk.
        let bytes: Vec<u8> = (0..bytes).map(|i| (i * 7 % 251) as u8).collect();
        let text: String = bytes.iter().map(|byte| char::from(b'a' + byte % 26)).collect();
        oci_archive(&[TestImage::new(name, vec![tar().file(name, &text).finish()])]).finish()
    };
    let limited = |max: u64| LoadOptions { max_bytes: Some(max), ..amd64() };
    let path = scratch.path().join("image.tar");
    let load = |archive: &[u8], max: u64| {
        fs::write(&path, archive).unwrap();
        let from_file = store.load_path(&path, &limited(max), &mut |_| {});
        from_file.and_then(|_| store.load(archive, &limited(max)))
    };
    let (small, other) = (image("small:1", 100_000), image("other:1", 100_000));
    load(&small, 300_000).unwrap();
    let used = store.used().unwrap();
    assert!((100_000..150_000).contains(&used), "{used}");
    // Loading the same image again needs no space, whatever the limit.
    load(&small, 0).unwrap();
    for max in [0, used, used + 50_000] {
        match load(&other, max) {
            Err(error @ LoadError::NotEnoughSpace { is_limited: true, .. }) => {
                let text = error.to_string();
                let left = max.saturating_sub(used);
                assert!(text.contains(&format!("and its limit leaves {left}; remove images with")), "{text}");
            }
            other => panic!("{other:?}"),
        }
        let streamed = store.load(&other, &limited(max));
        let is_full = matches!(streamed, Err(LoadError::NotEnoughSpace { is_limited: true, .. }));
        assert!(is_full, "{streamed:?}");
        assert_eq!(store.used().unwrap(), used);
        assert_eq!(store.images().unwrap().len(), 1);
    }
    load(&other, used + 150_000).unwrap();
    assert_eq!(store.images().unwrap().len(), 2);
    assert!(store.used().unwrap() <= used + 150_000);
    assert_eq!(store.loaded().unwrap().len(), 2);
    // Zeros occupy no space, neither while they are loaded nor afterwards.
    let zeros = "\0".repeat(32 << 20);
    let holes = TestImage::new("holes:1", vec![tar().file("holes", &zeros).finish()]);
    let holes = [holes.compressed(Compression::Gzip)];
    let used = store.used().unwrap();
    load(&oci_archive(&holes).finish(), used + 1_000_000).unwrap();
    assert!(store.used().unwrap() <= used + 1_000_000, "{used}");
}

#[test]
fn a_name_moves_to_the_image_that_was_loaded_last() {
    let scratch = Scratch::new();
    let store = Store::open(scratch.path()).unwrap();
    let load = |text: &str| {
        let archive = oci_archive(&[TestImage::new("app:latest", vec![layer(text)])]).finish();
        store.load(&archive, &amd64()).unwrap().remove(0)
    };
    let (old, new) = (load("old"), load("new"));
    let found = |name: &str| store.find(&Reference::parse(name).unwrap()).unwrap().unwrap().id;
    assert_eq!(found("app"), new.image.id);
    let lines: BTreeSet<String> = listed(&store).into_iter().collect();
    assert_eq!(
        lines,
        ["linux/amd64  1", "linux/amd64 docker.io/library/app:latest 1"].map(str::to_owned).into()
    );
    let by_digest = format!("app@{}", old.image.manifest_digest.unwrap());
    assert_eq!([found(&by_digest), found(&old.image.id.to_string())], [old.image.id; 2]);
}

#[test]
fn a_truncated_archive_is_reported_as_truncated() {
    let scratch = Scratch::new();
    let archive = oci_archive(&[TestImage::new("app:1", vec![layer("app")])]).finish();
    fs::write(scratch.path().join("app.tar"), &archive[..archive.len() / 2]).unwrap();
    let store = Store::open(&scratch.path().join("root")).unwrap();
    let error = store.load_path(&scratch.path().join("app.tar"), &amd64(), &mut |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "read the archive: it is cut off; copy it, or save the image, again");
    assert!(std::error::Error::source(&error).is_none());
    let error = store.load(&archive[..archive.len() / 2], &amd64()).unwrap_err();
    assert!(error.to_string().ends_with(": it is cut off; copy it, or save the image, again"), "{error}");
}

#[test]
fn an_empty_file_and_an_archive_without_members_are_reported_as_empty() {
    let compressed = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0";
    for archive in [&b""[..], &[0; 10240], compressed] {
        for outcome in load_both(archive, &amd64()) {
            let expected = "read the archive: it is empty; copy it, or save the image, again";
            assert_eq!(outcome, Err(expected.to_owned()), "{} bytes", archive.len());
        }
    }
}

#[test]
fn a_baked_image_is_used_and_never_copied() {
    let scratch = Scratch::new();
    let root = scratch.path();
    let archive = oci_archive(&[TestImage::new("app:1", vec![layer("base"), layer("app")])]).finish();
    Store::open(root).unwrap().load(&archive, &amd64()).unwrap();
    fs::create_dir_all(root.join("usr/lib/nodlet")).unwrap();
    fs::rename(root.join("var/lib/nodlet/images"), root.join("usr/lib/nodlet/images")).unwrap();

    let store = Store::open(root).unwrap();
    let found = |name: &str| store.find(&Reference::parse(name).unwrap()).unwrap();
    let baked = found("app:1").expect("baked in");
    assert!(store.layer_path(&baked.layers[0]).unwrap().starts_with(root.join("usr")));
    let loaded = store.load(&archive, &amd64()).unwrap().remove(0);
    assert_eq!((loaded.new, loaded.bytes_written), (false, 0));

    let more = oci_archive(&[TestImage::new("app:1", vec![layer("base"), layer("newer")])]).finish();
    let newer = store.load(&more, &amd64()).unwrap().remove(0);
    let own_layers = fs::read_dir(root.join("var/lib/nodlet/images/layers")).unwrap().count();
    assert_eq!(own_layers, 1, "the base is there");
    assert_eq!(found("app:1").unwrap().id, newer.image.id);
    store.remove("app:1").unwrap();
    assert_eq!(found("app:1").unwrap().id, baked.id);
    let error = store.remove("app:1").unwrap_err().to_string();
    let expected = format!(
        "remove image app:1: it is part of the device image, in {}",
        root.join("usr/lib/nodlet/images").display()
    );
    assert_eq!(error, expected);

    // A further name of a baked image can be removed, but the image cannot.
    let again = oci_archive(&[TestImage::new("own:1", vec![layer("base"), layer("app")])]).finish();
    let loaded = store.load(&again, &amd64()).unwrap().remove(0);
    assert_eq!((loaded.image.id, loaded.names), (baked.id, vec!["docker.io/library/own:1".to_owned()]));
    let removed = store.remove("own:1").unwrap();
    assert_eq!((removed.image, removed.remains), (None, Some(root.join("usr/lib/nodlet/images"))));
    assert_eq!(removed.names, ["docker.io/library/own:1"]);
    assert!(found("own:1").is_none());
}

#[test]
fn the_number_of_warnings_about_an_archive_is_limited() {
    let records = [("SCHILY.xattr.user.overlay.redirect", "/etc")];
    let layer = (0..100).fold(tar(), |tar, number| tar.pax(&records).file(&format!("{number}"), ""));
    let archive = oci_archive(&[TestImage::new("app:1", vec![layer.finish()])]).finish();
    let scratch = Scratch::new();
    let mut warnings = Vec::new();
    let mut note = |step| {
        if let Progress::Warning(text) = step {
            warnings.push(text);
        }
    };
    let store = Store::open(scratch.path()).unwrap();
    piped(&archive[..], |stream| store.load_file(stream, &amd64(), &mut note)).unwrap();
    assert_eq!(warnings.len(), 16);
    assert_eq!(
        warnings[0],
        "0: extended attribute user.overlay.redirect is left out: its name is reserved for overlayfs"
    );
    assert_eq!(warnings[15], "further warnings are omitted");
}
