//! Malicious archives, each loaded by the confined process as a file and as a stream. Each must be rejected
//! with a reason, and the store must be unchanged.

use super::child::{listing, options};
use super::*;

/// One archive, and the end of the expected error.
struct Case {
    what: &'static str,
    archive: Vec<u8>,
    expected: &'static str,
}

fn case(what: &'static str, archive: Vec<u8>, expected: &'static str) -> Case {
    Case { what, archive, expected }
}

/// A layer with a character device whose header has this text from this place on: its major or minor number.
fn with_device(at: usize, field: &[u8; 8]) -> TarBuilder {
    let mut layer = tar().entry(tar::EntryType::Char, "null", "", 0o666, &[]).finish();
    let mut header = tar::Header::new_old();
    header.as_mut_bytes().copy_from_slice(&layer[..512]);
    header.as_mut_bytes()[at..at + 8].copy_from_slice(field);
    header.set_cksum();
    layer[..512].copy_from_slice(header.as_bytes());
    TarBuilder::of(layer)
}

/// An archive with one image that has only this layer.
fn with_layer(what: &'static str, layer: TarBuilder, expected: &'static str) -> Case {
    let image = TestImage::new("hostile:1", vec![layer.finish()]);
    Case { what, archive: docker_archive(&[image]).finish(), expected }
}

/// An archive with one image that has this text as configuration.
fn with_config(what: &'static str, config: &str, expected: &'static str) -> Case {
    let archive = tar().bytes("layer.tar", &layer("x")).file("config.json", config).file(
        "manifest.json",
        r#"[{"Config":"config.json","RepoTags":["hostile:1"],"Layers":["layer.tar"]}]"#,
    );
    Case { what, archive: archive.finish(), expected }
}

fn with_documents(what: &'static str, documents: &[(&str, &str)], expected: &'static str) -> Case {
    let add = |archive: TarBuilder, (name, text): &(&str, &str)| archive.file(name, text);
    Case { what, archive: documents.iter().fold(tar(), add).finish(), expected }
}

/// A member whose header declares `size` bytes, whatever follows it.
fn lying(size: u64, data: &[u8]) -> TarBuilder {
    tar().with_size("liar", size, data)
}

/// A member preceded by a PAX header with these records.
fn with_pax(records: &[(&str, &str)], name: &str, data: &[u8]) -> TarBuilder {
    tar().pax(records).bytes(name, data)
}

fn layers() -> Vec<Case> {
    let outside = ": would lie outside of the root file system";
    let missing = "which does not precede it in this layer";
    let root = ": the root can only be a directory";
    let long = "n/".repeat(32 * 1024);
    let deep = "d/".repeat(3000);
    let cut_off = ": it is cut off; copy it, or save the image, again";
    let (checksum, octal) =
        (": checksum mismatch: not a tar archive, or damaged", ": size: must be an octal number");
    let whiteout = ": a whiteout of no name, \".\" or \"..\"";
    let target = ": the target of a symbolic link must be 1 to 4095 bytes, none NUL";
    let directory = "unpack b: hard link to d, which is a directory";
    let (major, minor) = (with_device(329, b"0010000\0"), with_device(337, b"4000000\0"));
    let cases = vec![
        (
            "a name that climbs out",
            tar().file("../etc/passwd", "x"),
            "unpack ../etc/passwd: would lie outside of the root file system",
        ),
        ("a name that climbs out late", tar().file("a/b/../../../x", "x"), outside),
        ("a directory that climbs out", tar().directory("../../d/"), outside),
        ("a hard link out of the root", tar().hard_link("b", "../../etc/shadow"), outside),
        ("a hard link by an absolute name", tar().hard_link("b", "/etc/shadow"), missing),
        (
            "a hard link through a symbolic one",
            tar().symlink("up", "../../../etc").hard_link("b", "up/shadow"),
            missing,
        ),
        ("a whiteout that climbs out", tar().file("../.wh.passwd", ""), outside),
        ("an opaque mark that climbs out", tar().file("../.wh..wh..opq", ""), outside),
        ("a whiteout of the parent", tar().file("a/.wh...", ""), whiteout),
        ("a root that is a symbolic link", tar().symlink(".", "/etc"), root),
        ("a root that is a symbolic link, by its other name", tar().symlink("/", "/etc"), root),
        ("a root that is a hard link", tar().file("a", "").hard_link("./", "a"), root),
        ("a root that is a file", tar().file("./.", "x"), root),
        (
            "links in a circle",
            tar().symlink("a", "b/x").symlink("b", "a/x").file("a/c", ""),
            ": more than 40 symbolic links on the way",
        ),
        (
            "a parent that is a device",
            tar().entry(tar::EntryType::Char, "dev", "", 0o666, &[]).file("dev/sda", ""),
            ": its parent dev is not a directory",
        ),
        ("a name with a NUL", with_pax(&[("path", "a\0b")], "a", b""), ": a name with a NUL byte"),
        ("a name of 64 KiB", tar().file(&long, ""), ": the path has 65536 bytes, the limit is 4096"),
        (
            "a name of 64 KiB in a PAX record",
            with_pax(&[("path", &long)], "a", b""),
            ": the path has 65536 bytes, the limit is 4096",
        ),
        (
            "a component of 256 bytes",
            tar().file(&"n".repeat(256), ""),
            ": the name has 256 bytes, the limit is 255",
        ),
        ("directories 3000 deep", tar().directory(&deep), ": the path has 6000 bytes, the limit is 4096"),
        // The archive has ten kilobytes when compressed, and would become a hundred thousand directories.
        (
            "countless directories that no member names",
            (0..60).fold(tar(), |tar, number| tar.file(&format!("{number}/{}f", "d/".repeat(2000)), "")),
            ": more than 65536 directories in one layer",
        ),
        (
            "a link's target of 64 KiB",
            with_pax(&[("linkpath", &long)], "unused", b"")
                .symlink("l", "x")
                .pax(&[("linkpath", &long)])
                .symlink("m", "x"),
            target,
        ),
        ("more data than there is", lying(1 << 30, b"x"), cut_off),
        (
            "a size below zero",
            tar().with_size_field("liar", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"),
            octal,
        ),
        ("a size that is no number", tar().with_size_field("liar", b"twelve bytes"), octal),
        ("a PAX size of more than there is", with_pax(&[("size", "1000000000")], "a", b"x"), cut_off),
        (
            "a PAX size beyond all numbers",
            with_pax(&[("size", "18446744073709551615")], "a", b"x"),
            ": size: larger than any archive",
        ),
        ("a PAX size that ends within the data", with_pax(&[("size", "512")], "a", &[b'x'; 1536]), checksum),
        (
            "a hole of a petabyte",
            with_pax(&[("GNU.sparse.map", ""), ("GNU.sparse.size", "1125899906842624")], "a", b""),
            ": the layer unpacks to more than 17179869184 bytes",
        ),
        (
            "a sparse map of overlapping pieces",
            with_pax(&[("GNU.sparse.map", "0,2,1,2"), ("GNU.sparse.size", "9")], "a", b"abcd"),
            ": sparse map: pieces overlap or are out of order",
        ),
        (
            "a user beyond what Linux has",
            with_pax(&[("uid", "4294967296")], "a", b""),
            ": uid 4294967296: not supported by Linux",
        ),
        (
            "an extended attribute of 100 KiB",
            with_pax(&[("SCHILY.xattr.user.a", &"x".repeat(100 * 1024))], "a", b""),
            ": extended attribute a: a value of more than 65535 bytes",
        ),
        (
            "an extended attribute of two names",
            with_pax(&[("SCHILY.xattr.user.a\0trusted.overlay.opaque", "y")], "a", b""),
            ": extended attribute a\\0trusted.overlay.opaque: a name with a NUL byte",
        ),
        (
            "a member after an empty block",
            TarBuilder::of(
                [&tar().file("a", "x").finish()[..1024 + 512], &tar().file("b", "x").finish()].concat(),
            ),
            ": an empty block, which does not end the archive",
        ),
        (
            "rubbish after a member",
            TarBuilder::of([&tar().file("a", "x").finish()[..1024], &[0xa5; 512]].concat()),
            checksum,
        ),
        ("a whiteout of no name", tar().file("d/.wh.", ""), whiteout),
        ("a link without a target", tar().symlink("a", ""), target),
        ("a hard link to itself", tar().file("a", "").hard_link("a", "a"), "unpack a: hard link to itself"),
        ("a hard link to a directory", tar().directory("d").hard_link("b", "d"), directory),
        ("a device that Linux does not have", major, "device 4096:0 is not a valid Linux device"),
        ("a minor number that Linux does not have", minor, "device 0:1048576 is not a valid Linux device"),
        ("a hard link to a later member", tar().hard_link("b", "a").file("a", ""), missing),
    ];
    cases.into_iter().map(|(what, layer, expected)| with_layer(what, layer, expected)).collect()
}

fn configs() -> Vec<Case> {
    let diff_id = Digest::of(&layer("x"));
    let config = |platform: &str, config: &str, diff_ids: &str| {
        format!(r#"{{{platform},"config":{config},"rootfs":{{"type":"layers","diff_ids":[{diff_ids}]}}}}"#)
    };
    let amd64 = r#""os":"linux","architecture":"amd64""#;
    let one = format!("\"{diff_id}\"");
    let of = |text: &str| config(amd64, text, &one);
    let cases = vec![
        (
            "no JSON",
            "\u{1}\u{2}".to_owned(),
            "read config.json in the archive: expected value at line 1 column 1",
        ),
        (
            "a list",
            "[]".to_owned(),
            "read config.json in the archive: invalid length 0, expected an object at line 1 column 2",
        ),
        (
            "no platform",
            config(r#""os":"linux""#, "{}", &one),
            "missing field `architecture` at line 1 column 140",
        ),
        (
            "a command that is a text",
            of(r#"{"Cmd":"sh"}"#),
            "invalid type: string \"sh\", expected a sequence at line 1 column 57",
        ),
        (
            "a NUL in the command",
            of(r#"{"Cmd":["a\u0000b"]}"#),
            "config.Cmd: a text with a NUL byte, which cannot be passed to a process",
        ),
        (
            "a NUL in the directory",
            of(r#"{"WorkingDir":"/\u0000"}"#),
            "config.WorkingDir: a text with a NUL byte, which cannot be passed to a process",
        ),
        (
            "a million variables",
            of(&format!(r#"{{"Env":[{}"A="]}}"#, r#""B=","#.repeat(400_000))),
            "a list of more than 4096 texts, or 128 KiB of them at line 1 column 20539",
        ),
        (
            "an argument that no process can be given",
            of(&format!(r#"{{"Cmd":["{}"]}}"#, "a".repeat(200_000))),
            "a list of more than 4096 texts, or 128 KiB of them at line 1 column 200057",
        ),
        (
            "a variable without a value",
            of(r#"{"Env":["A=b","ABC"]}"#),
            "config.Env: \"ABC\": must be NAME=value",
        ),
        ("a variable without a name", of(r#"{"Env":["=b"]}"#), "config.Env: \"=b\": must be NAME=value"),
        (
            "a directory that is nowhere",
            of(r#"{"WorkingDir":"src"}"#),
            "config.WorkingDir: \"src\": must be an absolute path",
        ),
        (
            "a signal that is none",
            of(r#"{"StopSignal":"SIGFOO"}"#),
            "config.StopSignal: \"SIGFOO\": must be a signal, such as SIGTERM or 15",
        ),
        (
            "a signal that is a book",
            of(&format!(r#"{{"StopSignal":"{}"}}"#, "S".repeat(100_000))),
            "config.StopSignal: 100000 bytes: at most 4096 are accepted",
        ),
        (
            "layers of another type",
            of("{}").replace("\"layers\"", "\"weird\""),
            "rootfs.type: \"weird\": must be \"layers\"",
        ),
        (
            "a layer too many",
            config(amd64, "{}", &format!("{one},{one}")),
            "read manifest.json in the archive: 1 layers, but 2 diff IDs in config.json",
        ),
        (
            "a diff ID that is a path",
            config(amd64, "{}", r#""../../etc/passwd""#),
            "read digest \"../../etc/passwd\": must be \"sha256:\" followed by 64 lower-case hexadecimal digits at line 1 column 106",
        ),
        (
            "a diff ID of another layer",
            config(amd64, "{}", &format!("\"{}\"", Digest::of(b""))),
            "; the archive is damaged",
        ),
        (
            "another system",
            config(r#""os":"windows","architecture":"amd64""#, "{}", &one),
            "find an image for linux/amd64: the archive has windows/amd64; --platform of nodlet image load chooses one",
        ),
        (
            "a config that is deep",
            format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
            "invalid type: sequence, expected a string at line 1 column 1",
        ),
    ];
    cases.into_iter().map(|(what, config, expected)| with_config(what, &config, expected)).collect()
}

fn archives() -> Vec<Case> {
    let image = || TestImage::new("hostile:1", vec![layer("x")]);
    let index = |manifests: String| format!(r#"{{"manifests":[{manifests}]}}"#);
    let descriptor =
        |text: &str| format!(r#"{{"digest":"{}","size":{}}}"#, Digest::of(text.as_bytes()), text.len());
    let blob = |text: &str| format!("blobs/sha256/{}", Digest::of(text.as_bytes()).hex());
    // Each index is nested in the next: an index cannot contain itself, because it would contain its own
    // digest.
    let mut nested = vec![index(String::new())];
    for depth in 0..8 {
        nested.push(index(descriptor(&nested[depth])));
    }
    let names: Vec<String> = nested.iter().map(|text| blob(text)).collect();
    let mut nest: Vec<(&str, &str)> =
        names.iter().zip(&nested).map(|(name, text)| (name.as_str(), text.as_str())).collect();
    nest.push(("index.json", &nested[8]));
    let cycle = Digest::of(b"itself");
    let itself = index(format!(r#"{{"digest":"{cycle}"}}"#));
    let itself_name = format!("blobs/sha256/{}", cycle.hex());
    let empty = index(String::new());
    let wide = index(vec![descriptor(&empty); 300].join(","));
    let manifest = image().manifest();
    let wrong_size = manifest.replacen("\"size\":", "\"size\":1", 3);
    let lies = oci_archive(&[image()])
        .file(&blob(&wrong_size), &wrong_size)
        .file("index.json", &index(descriptor(&wrong_size)));
    let whole = docker_archive(&[image()]).finish();
    let large: Vec<String> =
        (0..12).map(|number| format!("{empty}{}", " ".repeat((1 << 20) + number))).collect();
    let docker = |images: usize, names: usize| {
        let names: Vec<String> = (0..names).map(|name| format!("\"n{name}\"")).collect();
        let image = format!(r#"{{"Config":"c","RepoTags":[{}],"Layers":["l"]}}"#, names.join(","));
        format!("[{}]", vec![image; images].join(","))
    };
    let mut followed = whole.clone();
    followed.resize(followed.len() + 9000, 0);
    followed.extend(b"and what nobody saved");
    let twice = [whole.as_slice(), &whole].concat();
    vec![
        case(
            "an archive with something behind it",
            followed,
            "data after its end: it is damaged, or more than one archive",
        ),
        case("two archives", twice, "data after its end: it is damaged, or more than one archive"),
        with_documents(
            "indexes nine deep",
            &nest,
            "read index.json in the archive: more than 256 manifests, or indexes nested deeper than 4",
        ),
        with_documents(
            "an index that claims to hold itself",
            &[("index.json", &itself), (&itself_name, &itself)],
            ": the archive is damaged",
        ),
        with_documents(
            "an index of 300",
            &[("index.json", &wide), (&blob(&empty), &empty)],
            "read index.json in the archive: more than 256 manifests, or indexes nested deeper than 4",
        ),
        with_documents(
            "a digest of another kind",
            &[("index.json", &index(r#"{"digest":"md5:0"}"#.into()))],
            "read index.json in the archive: check digest \"md5:0\": only sha256 is supported",
        ),
        with_documents(
            "a digest that is a path",
            &[("index.json", &index(r#"{"digest":"sha256:../../../etc/passwd"}"#.into()))],
            ": must be \"sha256:\" followed by 64 lower-case hexadecimal digits",
        ),
        with_documents(
            "a configuration outside",
            &[("manifest.json", r#"[{"Config":"../../etc/passwd","RepoTags":["a:1"],"Layers":["l"]}]"#)],
            "read ../../etc/passwd: it is not in the archive, though its manifest names it",
        ),
        with_documents(
            "a configuration by an absolute name",
            &[("manifest.json", r#"[{"Config":"/etc/passwd","RepoTags":["a:1"],"Layers":["l"]}]"#)],
            "read /etc/passwd: it is not in the archive, though its manifest names it",
        ),
        with_documents(
            "a name of escapes",
            &[("manifest.json", r#"[{"Config":"c\u001b[2J","RepoTags":["a:1"],"Layers":["l"]}]"#)],
            "read c\\u{1b}[2J: it is not in the archive, though its manifest names it",
        ),
        with_documents(
            "more names than are kept",
            &[("manifest.json", &docker(1, 1025))],
            "read manifest.json in the archive: 1025 names: at most 1024 are accepted",
        ),
        with_documents(
            "more images than are looked at",
            &[("manifest.json", &docker(257, 0))],
            "read manifest.json in the archive: 257 images: at most 256 are accepted",
        ),
        with_documents("nothing", &[], "it is empty; copy it, or save the image, again"),
        case("a descriptor that lies of its size", lies.finish(), "; the archive is damaged"),
        case(
            "members that link to one another",
            tar().symlink("manifest.json", "a").symlink("a", "manifest.json").finish(),
            "make one with podman save, docker save, buildah push or skopeo copy",
        ),
        case(
            "10 000 members",
            (0..10_000).fold(tar(), |archive, number| archive.file(&format!("m{number}"), "")).finish(),
            "read the list of members in the archive: more than 8192",
        ),
        case(
            "documents of 12 MiB",
            large
                .iter()
                .fold(tar(), |archive, text| archive.file(&blob(text), text))
                .file(
                    "index.json",
                    &index(large.iter().map(|text| descriptor(text)).collect::<Vec<_>>().join(",")),
                )
                .finish(),
            " of documents in one archive",
        ),
        case(
            "cut off within a layer",
            whole[..1024 + 300].to_vec(),
            ": it is cut off; copy it, or save the image, again",
        ),
        case(
            "text",
            b"apiVersion: v1\nkind: Pod\n".repeat(100),
            ": checksum mismatch: not a tar archive, or damaged",
        ),
    ]
}

#[test]
fn hostile_archives_are_rejected_with_a_reason_and_leave_no_files() {
    let scratch = Scratch::in_memory();
    let root = scratch.path().join("root");
    let store = Store::open(&root).unwrap();
    let archive = oci_archive(&[TestImage::new("there:1", vec![layer("there")])]).finish();
    store.load(&archive, &amd64()).unwrap();
    let before = listing(&root);
    let cases: Vec<Case> = [layers(), configs(), archives()].into_iter().flatten().collect();
    let mut wrong = Vec::new();
    for Case { what, archive, expected } in &cases {
        let path = scratch.path().join("archive.tar");
        fs::write(&path, archive).unwrap();
        let as_file = store.load_path(&path, &options(&[]), &mut |_| {});
        let as_stream = store.load(archive, &options(&[]));
        for (result, how) in [(as_file, "file"), (as_stream, "stream")] {
            match result {
                Ok(loaded) => wrong.push(format!("{what}, as a {how}: loaded as {:?}", loaded[0].names)),
                Err(error) => {
                    let message = chain(&error);
                    if !message.ends_with(expected) || message.contains("the process that") {
                        wrong.push(format!("{what}, as a {how}: {message:.400}"));
                    }
                }
            }
            assert_eq!(listing(&root), before, "{what}, as a {how}");
        }
    }
    println!("{} hostile archives, each as a file and as a stream", cases.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Links in a directory are followed within it, as if it were `/`, so a link cannot name a file of the host.
#[test]
fn a_link_in_an_image_layout_does_not_lead_out_of_it() {
    let scratch = Scratch::new();
    let (inside, outside) = (scratch.path().join("layout"), scratch.path().join("outside"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    let archive = oci_archive(&[TestImage::new("app:1", vec![layer("x")])]).finish();
    fs::write(outside.join("app.tar"), archive).unwrap();
    run(Command::new("tar").arg("-xf").arg(outside.join("app.tar")).arg("-C").arg(&outside));
    let store = Store::open(&scratch.path().join("root")).unwrap();
    for target in [outside.join("index.json"), "../outside/index.json".into()] {
        std::os::unix::fs::symlink(&target, inside.join("index.json")).unwrap();
        for options in [amd64(), options(&[])] {
            let refused = store.load_path(&inside, &options, &mut |_| {}).unwrap_err().to_string();
            assert!(refused.contains("neither index.json"), "{}: {refused}", target.display());
        }
        fs::remove_file(inside.join("index.json")).unwrap();
    }
    fs::rename(outside.join("blobs"), inside.join("elsewhere")).unwrap();
    std::os::unix::fs::symlink("/elsewhere", inside.join("blobs")).unwrap();
    fs::copy(outside.join("index.json"), inside.join("index.json")).unwrap();
    store.load_path(&inside, &options(&[]), &mut |_| {}).unwrap();
    store.remove("app:1").unwrap();
    let without_landlock = format!("landlock={}", nix::errno::Errno::ENOSYS as i32);
    store.load_path(&inside, &options(&[without_landlock]), &mut |_| {}).unwrap();
}
