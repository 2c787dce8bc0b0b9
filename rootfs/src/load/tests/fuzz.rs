//! Archives and image manifests changed at random: taken or refused.

use std::cell::RefCell;
use std::collections::HashMap;

use nodlet_fuzz::fuzz;

use super::*;
use crate::archive::{ArchiveError, Documents, plan};
use crate::content::Content;
use crate::layer::{LayerBounds, convert};
use crate::tree::Bounds;

const HEADER: usize = 512;

/// Layers as tools write them, in all compressions.
fn layers() -> Vec<Vec<u8>> {
    let plain = TarBuilder::new()
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

/// Makes the checksums of headers right again, or nothing but them would be tried.
fn mended(input: &[u8]) -> Vec<u8> {
    let mut mended = input.to_vec();
    for block in mended.chunks_exact_mut(HEADER) {
        if block[257..262] == *b"ustar" {
            let mut header = tar::Header::new_old();
            header.as_mut_bytes().copy_from_slice(block);
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
    }
    mended
}

#[test]
fn layers_changed_at_random_are_taken_or_refused() {
    let scratch = Scratch::in_memory();
    let path = scratch.path().join("image");
    // Small, so that a hole that was made large costs nothing.
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
            let file = Content::default().create(&path).unwrap();
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
fn archives_changed_at_random_are_taken_or_refused() {
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
    fuzz("archive", 300, &corpus, &words, |input| {
        for input in [input.to_vec(), mended(input)] {
            fs::write(&path, &input).unwrap();
            let of_file = store.load_path(&path, &amd64(), &mut |_| {}).is_ok();
            let of_stream = store.load(&mut &input[..], &amd64(), &mut |_| {}).is_ok();
            let _ = (of_file, of_stream);
            for image in store.images().unwrap() {
                store.remove(&image.id.to_string()).unwrap();
            }
        }
    });
    let staged = fs::read_dir(root.join("var/lib/nodlet/images/staging")).unwrap().count();
    assert_eq!(staged, 0, "files left in staging");
}

/// Documents by their names, each found under the digest that it has.
struct Found(HashMap<String, Vec<u8>>);

impl Documents for Found {
    fn document(&mut self, member: &str) -> Result<Option<Vec<u8>>, ArchiveError> {
        Ok(self.0.get(member).cloned())
    }
}

#[test]
fn image_manifests_changed_at_random_are_taken_or_refused() {
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
    let wanted = crate::archive::Wanted { platform: Platform::parse("linux/amd64").unwrap(), asked: true };
    let name = |bytes: &[u8]| format!("blobs/sha256/{}", Digest::of(bytes).hex());
    fuzz("image manifest", 5000, &corpus, &words, |input| {
        let index = format!(r#"{{"manifests":[{{"digest":"{}"}}]}}"#, Digest::of(input));
        let configuration = image().configuration().into_bytes();
        let documents = [
            ("index.json".to_owned(), index.into_bytes()),
            (name(input), input.to_vec()),
            (name(&configuration), configuration.clone()),
        ];
        let _ = plan(&mut Found(documents.into()), &wanted);
        let documents =
            [("manifest.json".to_owned(), input.to_vec()), ("config.json".to_owned(), configuration)];
        let _ = plan(&mut Found(documents.into()), &wanted);
        let _ = Document::parse(input);
    });
}
