//! Each kind of write, with a fault or a power cut at each of its steps, and the order of the steps.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nodlet_fuzz::disk::{FAULTS, Fault, POWER_CUTS, Trial};
use nodlet_kernel::durable::{
    Decision, Headroom, Observed, Operation, Reserve, Staged, discard, is_full, observe, remove, rename,
    replace, replace_identified, replace_in_memory, sync_directory,
};

/// A directory in memory, where some hundred syncs do not last; removed after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new("/dev/shm").join(format!("nodlet-durable-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The steps of this thread from now on. Each is decided upon by `decide`, which gets the steps until then with this one.
fn record(decide: impl Fn(&[String]) -> Decision + 'static) -> (Observed, Rc<RefCell<Vec<String>>>) {
    let steps = Rc::new(RefCell::new(Vec::new()));
    let recorded = Rc::clone(&steps);
    let observed = observe(move |operation: &Operation<'_>| {
        let text = format!("{operation:?}");
        let name = text.split(['(', ' ']).next().expect("there is a first word");
        recorded.borrow_mut().push(name.to_owned());
        decide(&recorded.borrow())
    });
    (observed, steps)
}

/// Lets the first step of this name fail.
fn fail_once(step: &'static str) -> impl Fn(&[String]) -> Decision {
    move |steps| match steps.split_last() {
        Some((last, before)) if last == step && !before.contains(last) => Decision::Fail(libc::EIO),
        _ => Decision::Proceed,
    }
}

fn reserve(directory: &Path) -> Reserve {
    let reserve = Reserve::new(directory.join("reserve"), vec![directory.to_owned()]);
    while !reserve.replenish().expect("there is room") {}
    reserve
}

/// The files in a directory but those of the reserve, with their contents.
fn files(directory: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries
        .filter(|path| path.is_file() && !path.to_string_lossy().contains(".reserve-"))
        .map(|path| {
            (path.clone(), String::from_utf8_lossy(&fs::read(path).expect("it is there")).into_owned())
        })
        .collect();
    files.sort();
    files
}

type Change = dyn Fn(&Path) -> io::Result<()>;

/// A kind of write to `record.json` in a directory: its name, the file in the directory to which it writes, the old
/// content, the write, and its faults.
type Kind<'a> = (&'a str, &'a str, Option<&'a str>, &'a Change, &'a [Fault]);

#[test]
fn a_file_is_the_old_or_the_new_one_at_whatever_step_the_plug_is_pulled() {
    let new = |path: &Path| replace(path, b"the new content", None);
    let staged = |path: &Path| {
        let mut file = Staged::create(&path.with_file_name("new"), 0o700)?;
        file.write_all(b"the new ")?;
        file.write_all(b"content")?;
        file.commit(path)
    };
    // As the image store does: in another directory, and with one sync of the directory for several files.
    let staged_beside = |path: &Path| {
        let beside = path.with_file_name("staging");
        discard(&beside)?;
        let file = Staged::create_new(&beside)?;
        file.write_all_at(b"content", 8)?;
        file.write_all_at(b"the new ", 0)?;
        file.set_len(15)?;
        file.sync()?;
        rename(&beside, path)?;
        sync_directory(path.parent().expect("it has one"))
    };
    let in_memory = |path: &Path| replace_in_memory(path, "the new content");
    let of_process = &FAULTS[..4];
    let kinds: &[Kind<'_>] = &[
        ("a new file", "record.json", None, &new, &FAULTS),
        ("an old file", "record.json", Some("old"), &new, &FAULTS),
        ("a file in a new directory", "a/b/record.json", None, &new, &FAULTS),
        ("a large file", "record.json", Some("old"), &staged, &FAULTS),
        ("a large new file", "record.json", None, &staged, &FAULTS),
        ("a file that is staged elsewhere", "record.json", Some("old"), &staged_beside, &FAULTS),
        ("a removed file", "record.json", Some("old"), &remove, &FAULTS),
        // Of tmpfs, a power cut leaves nothing at all.
        ("a new file in memory", "record.json", None, &in_memory, of_process),
        ("a file in memory", "record.json", Some("old"), &in_memory, of_process),
    ];
    for (name, file, old, write, faults) in kinds {
        let scratch = Scratch::new("cut");
        let trial = Trial {
            scratch: &scratch.0,
            is_full: false,
            prepare: &|root| {
                if let Some(old) = old {
                    fs::write(root.join(file), old).expect("there is room");
                }
            },
            change: &|root| write(&root.join(file)).is_ok(),
            read: &|root| fs::read_to_string(root.join(file)).ok(),
        };
        let operations = trial.with_each_of(faults, &|root, fault, _| {
            let directory = root.join(file).parent().expect("it has one").to_owned();
            if !fault.is_final() && !name.contains("large") && !name.contains("staged") {
                let left = files(&directory);
                assert!(left.iter().all(|(path, _)| path.ends_with(file)), "{name}, {fault:?}: {left:?}");
            }
            write(&root.join(file)).expect("the disk works again");
            let left = files(&directory);
            assert!(left.iter().all(|(path, _)| path.ends_with(file)), "{name}, done again: {left:?}");
        });
        assert!(operations >= 2, "{name}: {operations} operations");
    }
}

#[test]
fn a_file_is_the_old_or_the_new_one_whenever_the_plug_is_pulled_while_a_spare_file_is_used() {
    for old in [None, Some("old")] {
        let scratch = Scratch::new("cut-spare");
        let trial = Trial {
            scratch: &scratch.0,
            is_full: true,
            prepare: &|root| {
                reserve(root);
                if let Some(old) = old {
                    fs::write(root.join("record.json"), old).expect("there is room");
                }
            },
            change: &|root| {
                let spare = Reserve::new(root.join("reserve"), vec![root.to_owned()]);
                replace(&root.join("record.json"), b"the new content", Some((&spare, Headroom::None))).is_ok()
            },
            read: &|root| fs::read_to_string(root.join("record.json")).ok(),
        };
        let cuts = [&POWER_CUTS[..], &[Fault::Once, Fault::Death]].concat();
        let operations = trial.with_each_of(&cuts, &|root, fault, _| {
            assert!(files(root).iter().all(|(path, _)| path.ends_with("record.json")), "{fault:?}");
            // Whatever the spare file has become, it is made again.
            reserve(root);
        });
        assert_eq!(operations, 6, "discard, take, write, sync, rename, sync of the directory");
    }
}

#[test]
fn a_retry_syncs_the_directory_whose_sync_failed() {
    let directory = Scratch::new("again");
    let path = directory.join("record.json");
    let (observed, steps) = record(fail_once("SyncDirectory"));
    replace(&path, b"new", None).expect_err("the card fails");
    assert_eq!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]), "it is there all the same");
    assert_eq!(steps.take().last().map(String::as_str), Some("SyncDirectory"));
    drop(observed);
    let (observed, steps) = record(|_| Decision::Proceed);
    replace(&path, b"new", None).expect("the card works again");
    assert_eq!(steps.take(), ["SyncDirectory"]);
    drop(observed);

    let (_observed, steps) = record(fail_once("SyncDirectory"));
    remove(&path).expect_err("the card fails");
    assert!(!path.exists());
    remove(&path).expect("the card works again");
    assert_eq!(steps.take(), ["Remove", "SyncDirectory", "Remove", "SyncDirectory"]);
    remove(&directory.join("none/record.json")).expect("what never was is gone");
}

/// A file that is renamed before its bytes are durable may be empty after a power cut. No file system shows that
/// before.
#[test]
fn a_file_is_synced_before_its_rename_and_its_directory_after_it() {
    let directory = Scratch::new("order");
    let (_observed, steps) = record(|_| Decision::Proceed);
    let written = ["Create", "Write", "Sync", "Rename", "SyncDirectory"];
    for bytes in ["one", "two"] {
        replace(&directory.join("record.json"), bytes.as_bytes(), None).expect("it is written");
        assert_eq!(steps.take(), written);
    }
    replace(&directory.join("a/record.json"), b"new", None).expect("it is written");
    let made = ["CreateDirectory", "SyncDirectory"];
    assert_eq!(steps.take(), [&made[..], &written].concat(), "a directory that was made is durable, too");
    replace_in_memory(&directory.join("record.json"), "three").expect("it is written");
    assert_eq!(steps.take(), ["Create", "Write", "Rename"], "tmpfs needs no sync");
}

#[test]
fn a_write_that_fails_for_lack_of_room_at_any_step_uses_a_spare_file() {
    let directory = Scratch::new("full");
    let path = directory.join("record.json");
    let reserve = reserve(&directory.0);
    let spares = || fs::read_dir(directory.join("reserve")).expect("it is readable").count();
    // The steps of a spare file have the same names, and do not fail.
    let full = |step: &'static str, number: i32| {
        move |steps: &[String]| match steps.last() {
            Some(last) if last == step && !steps.iter().any(|step| step == "Take") => Decision::Fail(number),
            _ => Decision::Proceed,
        }
    };
    for (step, number) in ["Create", "Write", "Sync", "Rename"]
        .into_iter()
        .flat_map(|step| [libc::ENOSPC, libc::EDQUOT].map(|number| (step, number)))
    {
        for old in [None, Some(&b"old"[..])] {
            let _ = fs::remove_file(&path);
            if let Some(old) = old {
                fs::write(&path, old).expect("there is room");
            }
            let (observed, _) = record(full(step, number));
            let error = replace(&path, b"new", None).expect_err("there is no reserve");
            drop(observed);
            assert!(is_full(&error));
            assert_eq!(fs::read(&path).ok().as_deref(), old);
            let before = spares();
            let (observed, steps) = record(full(step, number));
            replace(&path, b"new", Some((&reserve, Headroom::None))).expect("there is a reserve");
            drop(observed);
            assert_eq!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]), "{step:?}");
            assert_eq!(spares(), before - 1, "{step:?}");
            let spare = ["Take", "Write", "Sync", "Rename", "SyncDirectory"];
            assert!(steps.borrow().ends_with(&spare.map(str::to_owned)), "{steps:?}");
        }
    }
    // No other error uses it.
    let (_observed, _) = record(full("Write", libc::EIO));
    let before = spares();
    replace(&path, b"more", Some((&reserve, Headroom::None))).expect_err("the card fails");
    assert_eq!(spares(), before);
}

#[test]
fn a_file_with_unchanged_content_is_not_written() {
    let directory = Scratch::new("same");
    let path = directory.join("record.json");
    replace(&path, b"same", None).expect("written once");
    let (_observed, steps) = record(|_| Decision::Proceed);
    replace(&path, b"same", None).expect("there is nothing to write");
    assert_eq!(steps.take(), ["SyncDirectory"]);
}

#[test]
fn the_file_of_another_program_that_replaces_the_new_one_at_once_is_not_taken_for_it() {
    let directory = Scratch::new("identified");
    let (path, other) = (directory.join("web.json"), directory.join("other"));
    let inode = |file: &fs::File| file.metadata().map(|metadata| metadata.ino());
    let replaced = replace_identified(&path, b"new", None, |file| {
        fs::write(&other, "other")?;
        fs::rename(&other, &path)?;
        inode(file)
    });
    let found = || fs::metadata(&path).expect("it is there").ino();
    assert_ne!(replaced.expect("it is written"), found());
    assert_eq!(replace_identified(&path, b"other", None, inode).expect("it is unchanged"), found());
}

#[test]
fn a_file_is_never_written_through_what_is_in_its_place() {
    let directory = Scratch::new("irregular");
    let (file, target) = (directory.join("resolv.conf"), directory.join("target"));
    for is_in_memory in [false, true] {
        let write = |bytes: &str| {
            if is_in_memory {
                replace_in_memory(&file, bytes)
            } else {
                replace(&file, bytes.as_bytes(), None)
            }
        };
        fs::write(&target, "kept").expect("there is room");
        let _ = fs::remove_file(&file);
        std::os::unix::fs::symlink(&target, &file).expect("a link");
        write("new").expect("the link is replaced");
        assert!(fs::symlink_metadata(&file).expect("it is there").is_file());
        let new = directory.join(".resolv.conf.new");
        std::os::unix::fs::symlink(&target, &new).expect("a link");
        assert_eq!(write("newer").expect_err("a link").kind(), io::ErrorKind::InvalidInput);
        nix::unistd::mkfifo(&new, nix::sys::stat::Mode::S_IRWXU).expect("the link is gone");
        assert_eq!(write("newer").expect_err("a FIFO").kind(), io::ErrorKind::InvalidInput);
        let text = |path: &Path| fs::read_to_string(path).expect("it is there");
        assert_eq!((text(&file), text(&target)), ("new".to_owned(), "kept".to_owned()));
        write("newer").expect("nothing is in the way");
        assert_eq!(text(&file), "newer");
        // A failed replacement leaves what was there, and no other file.
        fs::remove_file(&file).and_then(|()| fs::create_dir(&file)).expect("it is ours");
        write("newest").expect_err("a directory");
        assert!(file.is_dir() && !new.exists());
        fs::remove_dir(&file).expect("it is empty");
    }
}
