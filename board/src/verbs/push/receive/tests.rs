use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nodlet_kube::manifest::Validation;
use nodlet_rootfs::Digest;
use nodlet_rootfs::parcel::Part;
use tempfile::TempDir;

use super::base::Base;
use super::offer::first;
use super::*;

fn platform() -> Platform {
    Platform::new("linux", "arm64", None)
}

/// Why an offer is rejected, and whether the reason is a violation of the protocol.
fn refused(message: &Value) -> (String, bool) {
    match Offer::of(message, &platform()) {
        Ok(_) => panic!("{message} was taken"),
        Err(End::Wire(error)) => (error.to_string(), true),
        Err(End::Refused(why)) => (why, false),
        Err(End::Busy | End::NotRebuilt(_)) => panic!("{message} is no push"),
    }
}

#[test]
fn an_invalid_push_offer_is_rejected() {
    let with = |archive: Value| json!({"archives": [archive], "manifests": []});
    let with_manifest = |object: Value| json!({"archives": [], "manifests": [{"place": "a", "namespace": "default", "object": object}]});
    for (message, expected, nonsense) in [
        (json!([]), "an offer lacks a list", true),
        (json!({"archives": []}), "an offer lacks a list", true),
        (with(json!(7)), "an archive without documents", true),
        (with(json!({"../x": ""})), "a document has an invalid name", true),
        (with(json!({"index.json": 7})), "a document that is not text", true),
        (with(json!({})), "neither index.json", false),
        (with(json!({"index.json": "{"})), "read index.json", false),
        (json!({"archives": [], "manifests": [{"place": "a"}]}), "a manifest without an object", true),
        (json!({"archives": [], "manifests": [7]}), "a manifest without an object", true),
        (with_manifest(json!("x")), "a manifest without an object", true),
        (with_manifest(json!([{}])), "a manifest without an object", true),
        (with_manifest(json!({"kind": "List", "items": []})), "expected an object, got a list", true),
        (with_manifest(json!({"kind": "PodList", "items": []})), "expected an object, got a list", true),
        (json!({"archives": [], "manifests": [{"object": {}}]}), "a manifest without a place", true),
    ] {
        let (why, is_nonsense) = refused(&message);
        assert!(why.contains(expected) && is_nonsense == nonsense, "{message}: {why}");
    }
    let whole = json!({"archives": [], "manifests": [], "validation": "warn", "dryRun": true});
    let Ok(offer) = Offer::of(&whole, &platform()) else { panic!("it is right") };
    assert!(offer.dry_run && offer.validation == Validation::Warn);
}

#[test]
fn a_spool_belongs_to_one_push_and_drops_files_that_are_not_sent_again() {
    let scratch = scratch();
    let directory = scratch.path().join("push");
    let Ok(spool) = Spool::open(&directory) else { panic!("it is free") };
    assert!(matches!(Spool::open(&directory), Err(End::Busy)), "it is taken");
    for name in ["a.part", "b.part"] {
        fs::write(directory.join(name), "x").expect("written");
    }
    assert!(spool.forget(|name| name != "a.part").is_ok());
    let left: Vec<_> =
        fs::read_dir(&directory).expect("there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["a.part"]);
    assert!(spool.room_for(0).is_ok());
    let Err(End::Refused(why)) = spool.room_for(u64::MAX) else { panic!("no disk is so large") };
    assert!(why.contains("not enough space"), "{why}");
}

fn scratch() -> TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

/// A missing layer, with a base of this many bytes if given.
fn missing(scratch: &TempDir, name: &str, base: Option<usize>) -> Missing {
    let path = scratch.path().join(format!("base-{name}"));
    let base = base.map(|bytes| {
        fs::write(&path, vec![7; bytes]).expect("written");
        Base { layer: Digest::of(b"base"), file: File::open(&path).expect("there"), bytes: bytes as u64 }
    });
    let part = Part { diff_id: Digest::of(name.as_bytes()), blob: None, member: name.to_owned() };
    Missing { archive: 0, part, from: 3, base, rebuilt: 500, transfer: Transfer::Whole(0) }
}

#[test]
fn impossible_transfer_sizes_of_layers_are_rejected() {
    let scratch = scratch();
    let comes = |sizes: Value| {
        let mut all = [missing(&scratch, "a", Some(4096)), missing(&scratch, "b", None)];
        record_sizes(&mut all, &json!({"sizes": sizes}))?;
        Ok::<_, io::Error>([all[0].transfer, all[1].transfer])
    };
    let changes = |rebuilt: u64| json!({"changes": 9, "made": rebuilt});
    let whole = Transfer::Whole;
    let some = |rebuilt| Transfer::Changes { bytes: 9, rebuilt };
    assert_eq!(comes(json!([5, 6])).expect("right"), [whole(5), whole(6)]);
    assert_eq!(comes(json!([changes(500), 6])).expect("right"), [some(500), whole(6)]);
    assert_eq!(comes(json!([changes(0), 6])).expect("right"), [some(0), whole(6)]);
    for wrong in [
        json!([5]),
        json!(null),
        json!([5, 6, 7]),
        json!([5, -6]),
        json!([5, "x"]),
        json!([changes(501), 6]),
        json!([{"changes": 9}, 6]),
        // Changed blocks of a layer without a base.
        json!([5, changes(500)]),
    ] {
        assert_eq!(comes(wrong.clone()).expect_err("wrong").kind(), io::ErrorKind::InvalidData, "{wrong}");
    }
}

#[test]
fn an_interrupted_transfer_continues_after_its_last_complete_piece() {
    let scratch = scratch();
    let Ok(spool) = Spool::open(&scratch.path().join("push")) else { panic!("it is free") };
    let layer = missing(&scratch, "a", Some(4096));
    let base = layer.base.as_ref().expect("given");
    let piece = |makes: u64| [&10u32.to_be_bytes()[..], &makes.to_be_bytes(), b"xy"].concat();
    let two = [piece(300), piece(200)].concat();
    let changes = |rebuilt: u64| match spool.changes(&layer, rebuilt) {
        Ok(file) => file.metadata().expect("open").len(),
        Err(_) => panic!("it can be written"),
    };
    assert_eq!((spool.rebuilt(&layer.part, base), changes(0)), ((0, 0), 0));
    let path = fs::read_dir(&spool.directory).expect("there").next().expect("made").expect("listed").path();
    // What an interruption may leave after the last complete piece.
    for torn in [&b""[..], &two[..13], &[0; 40], b"\xff\xff\xff\xff\0\0\0\0\0\0\0\x01xy"] {
        fs::write(&path, [&two[..], torn].concat()).expect("written");
        assert_eq!(spool.rebuilt(&layer.part, base), (500, 28), "{torn:?}");
        fs::write(spool.part(&layer.part), "whole").expect("written");
        assert_eq!(changes(500), 28, "{torn:?}");
        assert!(!spool.part(&layer.part).exists(), "it comes in one way");
    }
    assert_eq!(changes(0), 0);
    assert!(spool.forget_changes(&layer).is_ok() && !path.exists());
}

#[test]
fn blocks_are_listed_of_bases_only_and_each_once() {
    let scratch = scratch();
    let ask = |wanted: Value| {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let wire = Wire { from: Paced::new(ours.try_clone().expect("open")), to: ours };
        let mut receiver = Receiver { root: scratch.path().to_owned(), wire };
        let all = [
            missing(&scratch, "a", Some(8192)),
            missing(&scratch, "b", None),
            missing(&scratch, "c", Some(4096)),
        ];
        let listed = receiver.lists(&all, wanted.as_array().expect("a list"));
        drop(receiver);
        let mut wire = Wire { from: Paced::new(theirs), to: io::sink() };
        let mut lengths = Vec::new();
        while let Ok(Frame::Piece(piece)) = wire.receive() {
            lengths.push(piece.len());
        }
        listed.is_ok().then_some(lengths)
    };
    assert_eq!(ask(json!([0, 2])), Some(vec![26, 0, 13, 0]));
    assert_eq!(ask(json!([])), Some(vec![]));
    for wrong in [json!([1]), json!([3]), json!([0, 0]), json!([2, 0]), json!(["x"]), json!([-1])] {
        assert_eq!(ask(wrong.clone()), None, "{wrong}");
    }
}

#[test]
fn a_long_list_of_errors_is_shortened_to_fit_into_a_message() {
    assert_eq!(first(vec!["a".into(), "b".into()]), "a\nb");
    let text = first(vec!["\u{e4}".repeat(100_000); 20_000]);
    assert!(text.ends_with("\nand 19900 more") && text.len() < crate::verbs::push::frames::MESSAGE_MAX / 6);
}

#[test]
fn a_layer_that_does_not_fit_on_the_disk_leaves_no_file() {
    // The mounts of a thread of its own.
    std::thread::spawn(receive_on_a_full_disk).join().expect("the test failed");
}

fn receive_on_a_full_disk() {
    let scratch = scratch();
    let root = scratch.path();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("these tests need root");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).expect("private mounts");
    mount(Some("full"), root, Some("tmpfs"), MsFlags::empty(), Some("size=64k")).expect("mounted");
    let Ok(spool) = Spool::open(&root.join("push")) else { panic!("it is free") };
    let digest: Digest = format!("sha256:{}", "0".repeat(64)).parse().expect("a digest");
    let part = Part { diff_id: digest, blob: None, member: "layer".into() };
    let path = spool.part(&part);
    let mut others = File::create(root.join("others")).expect("made");
    let filled = std::io::copy(&mut std::io::repeat(0), &mut others).expect_err("it is full");
    assert_eq!(filled.raw_os_error(), Some(libc::ENOSPC));
    let (board, mut sender) = UnixStream::pair().expect("two ends");
    let wire = Wire { from: Paced::new(board.try_clone().expect("a descriptor")), to: board };
    let mut receiver = Receiver { root: root.to_owned(), wire };
    sender.write_all(b"p\0\0\0\x03abc").expect("sent");
    let Err(End::Refused(why)) = receiver.layer(
        &spool,
        &Missing { archive: 0, part, from: 0, base: None, rebuilt: 0, transfer: Transfer::Whole(3) },
        3,
    ) else {
        panic!("nothing can be written there")
    };
    assert!(why.contains("the board's disk is full"), "{why}");
    assert!(fs::symlink_metadata(&path).is_err(), "it is gone");
    umount2(root, MntFlags::MNT_DETACH).expect("unmounted");
}

#[test]
fn a_damaged_redo_record_is_removed_and_one_of_another_format_stays() {
    let scratch = scratch();
    let Ok(spool) = Spool::open(&scratch.path().join("push")) else { panic!("the spool is free") };
    let record = spool.directory.join(redo::REDO);
    for torn in ["", "{\"format\": 1, \"ima", "{\"format\": 1}"] {
        fs::write(&record, torn).expect("written");
        assert!(finish(scratch.path(), &spool).is_ok(), "{torn}");
        assert!(!record.exists(), "{torn}");
    }
    let newer = "{\"format\": 2, \"new\": true}";
    fs::write(&record, newer).expect("written");
    let Err(End::Refused(why)) = finish(scratch.path(), &spool) else {
        panic!("a push would replace the record")
    };
    assert!(why.contains(&record.display().to_string()) && why.contains("format 2"), "{why}");
    assert_eq!(fs::read_to_string(&record).expect("it stays"), newer);
}
