//! Randomly changed archives and image manifests, which must be accepted or rejected without a panic.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use nodlet_fuzz::{Random, fuzz};
use serde_json::{Value, json};

use super::*;
use crate::archive::plan;
use crate::content;
use crate::layer::{LayerBounds, convert};
use crate::tree::Bounds;

const HEADER: usize = 512;

/// Layers as tools write them, in all compressions.
fn layers() -> Vec<Vec<u8>> {
    let plain = tar()
        .directory("./")
        .directory("etc/")
        .file("etc/passwd", "root:x:0:0::/:\n")
        .symlink("lib", "usr/lib")
        .file("lib/so", &"x".repeat(5000))
        .hard_link("hard", "etc/passwd")
        .file("etc/.wh.gone", "")
        .file("etc/.wh..wh..opq", "")
        .file(&"long/".repeat(40), "")
        .pax(&[("path", "by/pax"), ("mtime", "1.5"), ("size", "3"), ("SCHILY.xattr.user.a", "b")])
        .bytes("x", b"abc")
        .pax(&[("GNU.sparse.map", "0,2,9,1"), ("GNU.sparse.size", "20"), ("GNU.sparse.name", "sparse")])
        .bytes("x", b"abc")
        .pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9000")])
        .bytes("sparse", &[b"1\n512\n4\n".to_vec(), vec![0; 504], b"data".to_vec()].concat())
        .entry(tar::EntryType::Char, "null", "", 0o666, &[])
        .entry(tar::EntryType::Fifo, "fifo", "", 0o666, &[])
        .finish();
    let blobs =
        |compression| TestImage::new("a:1", vec![plain.clone()]).compressed(compression).blobs().remove(0);
    vec![plain.clone(), plain.clone(), plain.clone(), blobs(Compression::Gzip), blobs(Compression::Zstd)]
}

/// Repairs a changed archive, because otherwise only checksum errors would be tested: aligns what looks like
/// a header, corrects its checksum, and makes its size lead to the next header.
fn mended(input: &[u8]) -> Vec<u8> {
    const MAGIC: usize = 257;
    let magics = input.windows(5).enumerate().filter(|(at, word)| *at >= MAGIC && word == b"ustar");
    let headers: Vec<usize> = magics.map(|(at, _)| at - MAGIC).collect();
    if headers.is_empty() {
        return input.to_vec();
    }
    let ends = headers.iter().skip(1).copied().chain([input.len()]);
    let mut mended = Vec::new();
    for (from, to) in headers.iter().zip(ends) {
        let at = mended.len();
        mended.extend_from_slice(&input[*from..to]);
        mended.resize(mended.len().next_multiple_of(HEADER).max(at + HEADER), 0);
        let mut header = tar::Header::new_old();
        header.as_mut_bytes().copy_from_slice(&mended[at..at + HEADER]);
        let data = to.saturating_sub(from + HEADER) as u64;
        let size = header.entry_size().map_or(0, |size| size.checked_next_multiple_of(512).unwrap_or(0));
        // The end of the archive follows the last header.
        if to < input.len() && size != data.next_multiple_of(512) {
            header.set_size(data);
        }
        header.set_cksum();
        mended[at..at + HEADER].copy_from_slice(header.as_bytes());
    }
    mended
}

#[test]
fn a_randomly_changed_layer_is_either_loaded_or_rejected() {
    let scratch = Scratch::in_memory();
    let path = scratch.path().join("image");
    // Small bounds, so that a hole that became large costs nothing.
    let bounds = LayerBounds {
        names: Bounds { entries: 1000, directories: 1000, name_bytes: 100_000, steps: 100_000 },
        bytes: 16 * 1024 * 1024,
    };
    let words: [&[u8]; 10] = [
        b"../",
        b"/",
        b".wh.",
        b".wh..wh..opq",
        b"\0",
        b"GNU.sparse.map=",
        b"30 mtime=",
        b"ustar\0",
        b"\x80\0\0\0\0\0\0\0",
        b"././@LongLink",
    ];
    let taken = RefCell::new((0, 0));
    fuzz("layer", 2000, &layers(), &words, |input| {
        for input in [input.to_vec(), mended(input)] {
            let file = content::create(&path).unwrap();
            let converted = convert(&mut &input[..], file, bounds, &mut |_| {});
            if converted.is_ok() {
                let mut taken = taken.borrow_mut();
                taken.0 += 1;
                if taken.0 % 10 == 0 {
                    taken.1 += 1;
                    run(Command::new("fsck.erofs").arg(&path));
                }
            }
            fs::remove_file(&path).unwrap();
        }
    });
    let (taken, checked) = *taken.borrow();
    println!("layer: {taken} were taken, {checked} of them checked by fsck.erofs");
}

#[test]
fn a_randomly_changed_archive_is_either_loaded_or_rejected() {
    let scratch = Scratch::in_memory();
    let path = scratch.path().join("archive");
    let image = || TestImage::new("app:1", vec![layer("one"), layer("two")]);
    let corpus = [
        oci_archive(&[image()]).finish(),
        oci_archive(&[image().compressed(Compression::Gzip)]).finish(),
        docker_archive(&[image(), image()]).finish(),
    ];
    let words: [&[u8]; 8] = [
        b"index.json",
        b"manifest.json",
        b"sha256:",
        b"../",
        b"\"manifests\":[",
        b"null",
        b"\\u0000",
        b"ustar\0",
    ];
    let root = scratch.path().join("root");
    let store = Store::open(&root).unwrap();
    let taken = Cell::new((0, 0));
    fuzz("archive", 300, &corpus, &words, |input| {
        for input in [input.to_vec(), mended(input)] {
            fs::write(&path, &input).unwrap();
            let of_file = store.load_path(&path, &amd64(), &mut |_| {}).is_ok();
            let of_stream = store.load(&input, &amd64()).is_ok();
            let (files, streams) = taken.get();
            taken.set((files + u32::from(of_file), streams + u32::from(of_stream)));
            for image in store.images().unwrap() {
                store.remove(&image.id.to_string()).unwrap();
            }
        }
    });
    println!("archive: {} files and {} streams were taken", taken.get().0, taken.get().1);
    let staged = fs::read_dir(root.join("var/lib/nodlet/images/staging")).unwrap().count();
    assert_eq!(staged, 0, "files left in staging");
}

#[test]
fn a_randomly_changed_image_manifest_is_either_parsed_or_rejected() {
    let image = || TestImage::new("app:1", vec![layer("one")]);
    let index = format!(r#"{{"manifests":[{}]}}"#, image().manifest());
    let docker = br#"[{"Config":"config.json","RepoTags":["app:1","b"],"Layers":["a/layer.tar"]}]"#.to_vec();
    let corpus =
        [image().manifest().into_bytes(), image().configuration().into_bytes(), index.into_bytes(), docker];
    let words: [&[u8]; 9] = [
        b"null",
        b"[]",
        b"{}",
        b"sha256:",
        b"\"mediaType\":",
        b"\"platform\":",
        b"\"config\":",
        b"\"layers\":",
        b"[[[[[[",
    ];
    let documents: Vec<Value> =
        corpus.iter().map(|text| serde_json::from_slice(text).expect("it is JSON")).collect();
    let taken = Cell::new(0);
    let wanted =
        crate::archive::Wanted { platform: Platform::parse("linux/amd64").unwrap(), is_explicit: true };
    let name = |bytes: &[u8]| format!("blobs/sha256/{}", Digest::of(bytes).hex());
    // Each document is found under its real digest.
    let is_planned = |documents: HashMap<String, Vec<u8>>| {
        plan(&mut |member: &str| Ok(documents.get(member).cloned()), &wanted).is_ok()
    };
    let read = |input: &[u8]| {
        let index = format!(r#"{{"manifests":[{{"digest":"{}"}}]}}"#, Digest::of(input));
        let configuration = image().configuration().into_bytes();
        let documents = [
            ("index.json".to_owned(), index.into_bytes()),
            (name(input), input.to_vec()),
            (name(&configuration), configuration.clone()),
        ];
        let of_oci = is_planned(documents.into());
        let documents =
            [("manifest.json".to_owned(), input.to_vec()), ("config.json".to_owned(), configuration)];
        let of_docker = is_planned(documents.into());
        taken.set(taken.get() + u32::from(of_oci || of_docker || Document::parse(input).is_ok()));
    };
    fuzz("image manifest", 5000, &corpus, &words, |input| {
        read(input);
        // Nine in ten inputs are no JSON, which tests only the JSON parser. This input is valid JSON.
        read(changed(&documents, input).to_string().as_bytes());
    });
    println!("image manifest: {} were taken", taken.get());
}

/// Returns one of the documents with other values in some places, chosen by the input.
fn changed(documents: &[Value], input: &[u8]) -> Value {
    let bytes = *Digest::of(input).hex().as_bytes().first_chunk().expect("it has eight");
    let mut random = Random::of(u64::from_le_bytes(bytes));
    let text = String::from_utf8_lossy(input).chars().take(100).collect::<String>();
    let values = [
        json!(null),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("../../etc/passwd"),
        json!("sha256:"),
        json!("\u{0}\u{1b}[2J"),
        json!(text),
        json!([]),
        json!([null]),
        json!(vec![0; 300]),
        json!({}),
        json!({"": {}}),
    ];
    let mut document = random.pick(documents).clone();
    for _ in 0..=random.below(3) {
        let other = if random.one_in(3) {
            // A value from one place is often wrong in another.
            place(&mut random.pick(documents).clone(), &mut random).clone()
        } else {
            random.pick(&values).clone()
        };
        *place(&mut document, &mut random) = other;
    }
    document
}

/// A random place in a document.
fn place<'a>(value: &'a mut Value, random: &mut Random) -> &'a mut Value {
    let below = match value {
        Value::Object(map) => map.len(),
        Value::Array(list) => list.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    if below == 0 || random.one_in(8) {
        return value;
    }
    let index = random.below(below);
    let child = match value {
        Value::Object(map) => map.values_mut().nth(index),
        Value::Array(list) => list.get_mut(index),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    };
    place(child.expect("the index is below the length"), random)
}
