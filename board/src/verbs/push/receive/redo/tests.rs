use nodlet_fuzz::disk::{Disk, Fault, POWER_CUTS};
use serde_json::json;

use super::*;
use crate::verbs::files::Object;

/// A board with an agent that keeps applied objects as nodlet's does, and a store of one image.
struct Board {
    root: PathBuf,
    /// The object that the agent rejects.
    rejected: Option<&'static str>,
}

impl Board {
    fn new(name: &str, rejected: Option<&'static str>) -> Board {
        // If there is a RAM disk, use it: some hundred boards need not wait for a disk.
        let memory = Path::new("/dev/shm");
        let scratch = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let root = scratch.join(format!("nodlet-redo-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for directory in ["push", "manifests"] {
            fs::create_dir_all(root.join(directory)).expect("a scratch directory");
        }
        let board = Board { root, rejected };
        for name in ["default_a.json", "podpreset_default_c.json"] {
            fs::write(board.applied().join(name), "old").expect("written");
        }
        board
    }

    fn spool(&self) -> PathBuf {
        self.root.join("push")
    }

    fn applied(&self) -> PathBuf {
        self.root.join("manifests")
    }

    fn image(&self) -> PathBuf {
        self.root.join("image")
    }

    fn manifests() -> Vec<Manifest> {
        let of = |kind: &str, name: &str| Manifest {
            namespace: "default".to_owned(),
            object: Object {
                value: json!({"kind": kind, "metadata": {"name": name}}),
                place: format!("{name}.yaml"),
                warnings: Vec::new(),
            },
        };
        vec![of("Pod", "a"), of("PriorityClass", "b"), of("PodPreset", "c")]
    }

    fn carry_out(&self, redo: Redo) -> io::Result<Ended> {
        let (spool, applied) = (self.spool(), self.applied());
        let mut apply = |manifest: &Manifest, _| {
            let name = manifest.object.name().expect("named");
            if self.rejected == Some(name) {
                return Err(VerbError::refused(403, "it may not be"));
            }
            let file = self.applied().join(file_of(manifest)?);
            durable::replace(&file, b"new", None).map_err(VerbError::disconnected)?;
            let did = format!("{name} configured");
            Ok(apply::Applied { did, warnings: Vec::new(), object: Value::Null })
        };
        let mut take_back = |before: &StoreSnapshot, images: &[(Digest, Vec<String>)]| {
            assert_eq!((before, images), (&StoreSnapshot::default(), &image_to_be()[..]));
            let is_there = self.image().exists();
            durable::remove(&self.image())?;
            Ok(is_there)
        };
        let steps = Steps { apply: &mut apply, take_back: &mut take_back };
        redo.carry_out(Places { spool: &spool, applied: &applied }, steps)
    }

    /// Pushes as the receiver does.
    fn push(&self) -> io::Result<Ended> {
        let redo = Redo::new(
            &image_to_be(),
            StoreSnapshot::default(),
            &Board::manifests(),
            Validation::Warn,
            &self.applied(),
        )?;
        redo.write(&self.spool())?;
        durable::replace(&self.image(), b"new", None)?;
        self.carry_out(redo)
    }

    /// Finishes a push as the next receiver does.
    fn finish(&self) -> io::Result<Option<Ended>> {
        Redo::clean(&self.spool())?;
        let StoredRedo::Record(redo) = Redo::read(&self.spool())? else { return Ok(None) };
        if redo.is_back() || self.image().exists() {
            self.carry_out(redo).map(Some)
        } else {
            Redo::remove(&self.spool()).map(|()| None)
        }
    }

    /// The objects, and whether the image exists.
    fn state(&self) -> (String, bool) {
        let of = |name: &str| fs::read_to_string(self.applied().join(name)).unwrap_or("none".to_owned());
        let files = ["default_a.json", "priorityclass__b.json", "podpreset_default_c.json"].map(of);
        (files.join(" "), self.image().exists())
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The image that is pushed.
fn image_to_be() -> [(Digest, Vec<String>); 1] {
    [(Digest::of(b"image"), vec!["localhost/a:1".to_owned()])]
}

const OLD: &str = "old none old";
const NEW_STATE: &str = "new new new";

/// Cuts the power at each step of a push, and at each step of finishing it.
fn cut_everywhere(name: &str, rejected: Option<&'static str>) -> SortedMap<(String, bool), u32> {
    let mut seen = SortedMap::new();
    POWER_CUTS.into_iter().for_each(|fault| cut_by(fault, name, rejected, &mut seen));
    seen
}

fn cut_by(
    fault: Fault,
    name: &str,
    rejected: Option<&'static str>,
    seen: &mut SortedMap<(String, bool), u32>,
) {
    for cut in 1.. {
        let mut whole = false;
        for second in 1.. {
            let board = Board::new(name, rejected);
            let disk = Disk::failing(fault, cut);
            whole = matches!(board.push(), Ok(Ended::Done(_) | Ended::Back(_)));
            disk.repair();
            let disk = Disk::failing(fault, second);
            let finished = board.finish();
            disk.repair();
            assert!(board.finish().is_ok(), "cut at {cut} and {second}");
            for name in [REDO, NEW] {
                assert!(!board.spool().join(name).exists(), "{name}: cut at {cut} and {second}");
            }
            *seen.entry(board.state()).or_default() += 1;
            if matches!(finished, Ok(None | Some(Ended::Done(_) | Ended::Back(_)))) {
                break;
            }
        }
        if whole {
            break;
        }
    }
}

#[test]
fn a_power_cut_at_any_step_leaves_all_or_nothing() {
    let seen = cut_everywhere("cut", None);
    let states: Vec<(&str, bool)> = seen.keys().map(|(files, image)| (files.as_str(), *image)).collect();
    assert_eq!(states, [(NEW_STATE, true), (OLD, false)], "{seen:?}");
    assert!(seen.values().all(|times| *times > 3), "{seen:?}");
}

#[test]
fn a_rejected_manifest_undoes_the_others_of_its_push_despite_power_cuts() {
    for rejected in ["b", "c"] {
        let seen = cut_everywhere(&format!("rejected-{rejected}"), Some(rejected));
        let as_before = (OLD.to_owned(), false);
        assert!(seen.keys().all(|state| *state == as_before), "{rejected}: {seen:?}");
        assert!(seen.values().sum::<u32>() > 12, "{seen:?}");
    }
    let board = Board::new("rejected", Some("c"));
    let Ok(Ended::Back(why)) = board.push() else { panic!("it was accepted") };
    assert_eq!(
        why,
        "c.yaml: it may not be; the manifests that were applied before it are rolled back; the images of the push are \
         removed"
    );
    // If the first manifest is rejected, only images must be rolled back.
    let board = Board::new("rejected", Some("a"));
    let Ok(Ended::Back(why)) = board.push() else { panic!("it was accepted") };
    assert_eq!(why, "a.yaml: it may not be; the images of the push are removed");
    assert_eq!(board.state(), (OLD.to_owned(), false));
    assert!(!board.spool().join(REDO).exists());
}

#[test]
fn a_damaged_redo_record_differs_from_none_and_from_one_of_another_format() {
    let board = Board::new("form", None);
    let read = || Redo::read(&board.spool()).expect("readable");
    assert!(matches!(read(), StoredRedo::Nothing));
    for text in ["", "{", "[]", "\0\0", "{\"format\": 1}", "{\"format\": \"2\"}"] {
        fs::write(board.spool().join(REDO), text).expect("written");
        assert!(matches!(read(), StoredRedo::Damaged(_)), "{text}");
    }
    for text in ["{\"format\": 9}", "{\"format\": 2, \"images\": {}}"] {
        fs::write(board.spool().join(REDO), text).expect("written");
        assert!(matches!(read(), StoredRedo::OtherFormat(9 | 2)), "{text}");
    }
    let redo = Redo::new(
        &image_to_be(),
        StoreSnapshot::default(),
        &Board::manifests(),
        Validation::Strict,
        &board.applied(),
    )
    .expect("readable");
    redo.write(&board.spool()).expect("there is power");
    let StoredRedo::Record(stored) = read() else { panic!("it was just written") };
    assert_eq!(stored, redo);
}

#[test]
fn a_name_is_generated_only_once() {
    let mut object = json!({"metadata": {"generateName": "job-"}});
    settle_name(&mut object).expect("there is a kernel");
    let name = object["metadata"]["name"].as_str().expect("named").to_owned();
    assert!(name.starts_with("job-") && name.len() == 9, "{name}");
    settle_name(&mut object).expect("there is a kernel");
    assert_eq!(object["metadata"]["name"], name);
    let mut object = json!({"metadata": {"name": "web"}});
    settle_name(&mut object).expect("there is a kernel");
    assert_eq!(object, json!({"metadata": {"name": "web"}}));
}
