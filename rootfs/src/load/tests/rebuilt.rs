//! Layers of which only the changed blocks are sent, and which the unpacking process rebuilds.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::child::options;
use super::*;
use crate::changes::{Blocks, list};
use crate::parcel::Parcel;

/// A store with the old image, and a directory with the new one, whose upper layer is `changes`.
struct Board {
    scratch: Scratch,
    store: Store,
    new: TestImage,
    base: PathBuf,
}

fn upper(text: &str) -> Vec<u8> {
    let text = format!("{}{text}{}", "a line like any other\n".repeat(900), "and another\n".repeat(2000));
    tar().file("etc/text", &text).bytes("etc/small", &[7; 1000]).finish()
}

impl Board {
    fn new() -> Board {
        let scratch = Scratch::new();
        let image = |text: &str| {
            TestImage::new("app:1", vec![layer("base"), upper(text)]).compressed(Compression::Gzip)
        };
        let (old, new) = (image("old"), image("new and longer"));
        let store = Store::open(&scratch.path().join("root")).unwrap();
        let archive = oci_archive(&[old]).finish();
        store.load(&archive, &amd64()).unwrap();
        let base = store.layer_path(&Digest::of(&upper("old"))).unwrap();

        let sent = scratch.path().join("new.tar");
        fs::write(&sent, oci_archive(std::slice::from_ref(&new)).finish()).unwrap();
        let mut blocks = Blocks::default();
        list(&File::open(&base).unwrap(), &mut |piece| blocks.add(piece)).unwrap();
        let member = format!("blobs/sha256/{}", Digest::of(&new.blobs()[1]).hex());
        let end = Instant::now() + Duration::from_secs(60);
        let changes = Parcel::open(&sent).unwrap().changes(&member, &blocks, 0, 6000, end).unwrap().unwrap();

        let directory = scratch.path().join("new");
        run(Command::new("mkdir").arg(&directory));
        run(Command::new("tar").arg("-xf").arg(&sent).arg("-C").arg(&directory));
        // The board has the lower layer, and only the changes of the upper one are sent.
        for blob in new.blobs() {
            fs::remove_file(directory.join(format!("blobs/sha256/{}", Digest::of(&blob).hex()))).unwrap();
        }
        let mut pieces = Vec::new();
        for piece in changes.pieces(0).map(Result::unwrap) {
            pieces.extend_from_slice(&(piece.len() as u32).to_be_bytes());
            pieces.extend_from_slice(&piece);
        }
        fs::create_dir(directory.join("changes")).unwrap();
        let board = Board { scratch, store, new, base };
        fs::write(board.changes(), pieces).unwrap();
        board
    }

    fn changes(&self) -> PathBuf {
        self.scratch.path().join("new/changes").join(self.layer().hex())
    }

    fn layer(&self) -> Digest {
        Digest::of(&self.new.layers[1])
    }

    fn load(&self, options: &LoadOptions) -> Result<Vec<Loaded>, LoadError> {
        let source = Source {
            archive: File::open(self.scratch.path().join("new")).unwrap(),
            bases: BTreeMap::from([(self.layer(), File::open(&self.base).unwrap())]),
        };
        self.store.load_all(vec![source], options, &mut |_| {})
    }
}

#[test]
fn a_layer_is_made_of_an_older_one_and_its_changed_blocks() {
    for options in [amd64(), options(&[])] {
        let board = Board::new();
        assert_eq!(board.load(&options).unwrap()[0].image.id, board.new.id());
        // The file must equal the one from a transfer of the whole layer.
        let whole = Store::open(&board.scratch.path().join("whole")).unwrap();
        let archive = oci_archive(std::slice::from_ref(&board.new)).finish();
        whole.load(&archive, &amd64()).unwrap();
        let file = |store: &Store| fs::read(store.layer_path(&board.layer()).unwrap()).unwrap();
        assert!(file(&board.store) == file(&whole));
    }
}

#[test]
fn a_rebuilt_layer_with_another_digest_is_rejected_and_changes_nothing() {
    for options in [amd64(), options(&[])] {
        let board = Board::new();
        let before = listed(&board.store);
        let mut pieces = fs::read(board.changes()).unwrap();
        let cut = pieces.len() - 1;
        let check = |expected: &str| {
            let error = board.load(&options).unwrap_err();
            let LoadError::NotRebuilt { layer, cause } = &error else { panic!("{error}") };
            assert_eq!(*layer, board.layer());
            let mut text = String::new();
            let mut next: Option<&dyn std::error::Error> = Some(cause);
            while let Some(error) = next {
                text.push_str(&error.to_string());
                next = error.source();
            }
            assert!(text.contains(expected), "{expected}: {text}");
            assert_eq!(listed(&board.store), before);
        };
        // The base has been modified in the meantime.
        let base = File::options().write(true).open(&board.base).unwrap();
        base.write_at(b"!", 4096 + 100).unwrap();
        check("its content has digest");
        pieces.truncate(cut);
        fs::write(board.changes(), &pieces).unwrap();
        check("cut off");
        fs::write(board.changes(), b"\0\0\0\x09\0\0\0\0\0\0\0\x01\xff").unwrap();
        check("deflate");
    }
}
