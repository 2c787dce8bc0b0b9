use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;

use super::*;

thread_local! {
    /// How many steps of a write succeed before one fails; `None` for all.
    static STEPS_LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Fails if a test wants this step to fail.
pub(super) fn step() -> io::Result<()> {
    match STEPS_LEFT.get() {
        None => Ok(()),
        Some(0) if ends() => {
            let _ = nix::sys::signal::raise(nix::sys::signal::SIGKILL);
            unreachable!("the process was killed");
        }
        Some(0) => Err(io::ErrorKind::StorageFull.into()),
        Some(left) => {
            STEPS_LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}

#[test]
fn a_file_that_would_be_the_directory_of_another_is_named_and_the_volume_stays() {
    let volume = Volume::new("collide");
    volume.write("..1", &[("old", "1")]).expect("it can be written");
    for files in [&[("x", "1"), ("x.y", "2"), ("x/y", "3")][..], &[("x", "1"), ("x/y/z", "2")]] {
        let error = volume.write("..2", files).expect_err("one path is both");
        let other = files.last().expect("there is one").0;
        assert_eq!(error.to_string(), format!("\"x\" is a file, and the directory of {other:?}"));
    }
    assert_eq!(volume.shown(), [("old".to_owned(), "1".to_owned())]);
    volume.write("..3", &[("x", "1"), ("xy/z", "2")]).expect("these are two");
}

struct Volume(PathBuf);

impl Volume {
    fn new(name: &str) -> Volume {
        let path = std::env::temp_dir().join(format!("nodlet-projected-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Volume(path)
    }

    fn write(&self, name: &str, files: &[(&str, &str)]) -> io::Result<bool> {
        self.write_with(&of(files), name, None)
    }

    fn write_with(&self, files: &ProjectedFiles, name: &str, fs_group: Option<u32>) -> io::Result<bool> {
        let (base, place) = (self.0.parent().expect("a directory"), self.0.file_name().expect("a name"));
        write(base, Path::new(place), files, name, fs_group)
    }

    /// The visible files with their contents, sorted by path.
    fn shown(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut open = vec![self.0.clone()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).expect("it can be read") {
                let path = entry.expect("it can be read").path();
                if path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"..")) {
                    continue;
                }
                if path.is_dir() {
                    open.push(path);
                    continue;
                }
                let name = path.strip_prefix(&self.0).expect("it is below").display().to_string();
                found.push((name, fs::read_to_string(path).expect("it can be read")));
            }
        }
        found.sort();
        found
    }

    /// The entries that containers do not look at.
    fn hidden(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it can be read");
        let names = entries.map(|entry| entry.expect("it can be read").file_name().display().to_string());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("..")).collect();
        names.sort();
        names
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn of(files: &[(&str, &str)]) -> ProjectedFiles {
    let file = |content: &str| ProjectedFile { content: content.as_bytes().into(), mode: 0o644 };
    files.iter().map(|(path, content)| ((*path).to_owned(), file(content))).collect()
}

fn texts(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files.iter().map(|(path, content)| ((*path).to_owned(), (*content).to_owned())).collect()
}

#[test]
fn files_are_shown_through_links_and_replaced_as_a_whole() {
    let volume = Volume::new("whole");
    assert!(volume.write("..1", &[("a", "1"), ("d/b", "2"), ("d/e/c", "3")]).unwrap());
    assert_eq!(volume.shown(), texts(&[("a", "1"), ("d/b", "2"), ("d/e/c", "3")]));
    assert_eq!(fs::read_link(volume.0.join("a")).unwrap(), PathBuf::from("..data/a"));
    assert_eq!(fs::read_link(volume.0.join("d")).unwrap(), PathBuf::from("..data/d"));
    assert_eq!(volume.hidden(), ["..1", "..data"]);
    assert!(volume.write("..2", &[("a", "new"), ("d/b", "2"), ("f", "4")]).unwrap());
    assert_eq!(volume.shown(), texts(&[("a", "new"), ("d/b", "2"), ("f", "4")]));
    assert_eq!(volume.hidden(), ["..2", "..data"]);
    assert!(volume.write("..3", &[]).unwrap());
    assert_eq!(volume.shown(), []);
    assert_eq!(volume.hidden(), ["..3", "..data"]);
}

#[test]
fn nothing_is_written_if_nothing_has_changed() {
    let volume = Volume::new("same");
    let files = [("a", "1"), ("d/b", "2")];
    assert!(volume.write("..1", &files).unwrap());
    let before = fs::metadata(&volume.0).unwrap().mtime_nsec();
    assert!(!volume.write("..2", &files).unwrap());
    assert_eq!(fs::metadata(&volume.0).unwrap().mtime_nsec(), before);
    assert_eq!(volume.hidden(), ["..1", "..data"]);
    let mut other = of(&files);
    other.get_mut("a").unwrap().mode = 0o600;
    assert!(volume.write_with(&other, "..3", None).unwrap());
    assert_eq!(fs::metadata(volume.0.join("a")).unwrap().mode() & 0o7777, 0o600);
}

#[test]
fn a_group_owns_files_and_directories_and_can_read_them() {
    let volume = Volume::new("group");
    let mut files = of(&[("d/a", "1")]);
    files.get_mut("d/a").unwrap().mode = 0o400;
    assert!(volume.write_with(&files, "..1", Some(4242)).unwrap());
    let of = |path: &str| fs::metadata(volume.0.join(path)).unwrap();
    assert_eq!((of("d/a").gid(), of("d/a").mode() & 0o7777), (4242, 0o440));
    assert_eq!((of("d").gid(), of("d").mode() & 0o7777), (4242, 0o2755));
    assert_eq!((of(".").gid(), of(".").mode() & 0o7777), (4242, 0o2777));
    assert!(!volume.write_with(&files, "..2", Some(4242)).unwrap());
}

#[test]
fn paths_that_leave_the_volume_are_refused() {
    let volume = Volume::new("paths");
    let (long, deep) = ("a".repeat(256), "a/".repeat(33));
    for path in ["", "/a", "..", "../a", "a/../b", "..a", ".", "./..data", &long, &deep] {
        let error = volume.write("..1", &[(path, "1")]).expect_err("it is refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}: {error}");
    }
    assert!(!volume.0.exists());
    volume.write("..1", &[("a..b/.c", "1")]).unwrap();
}

#[test]
fn a_file_and_a_directory_of_one_name_are_refused_and_nothing_changes() {
    let volume = Volume::new("collision");
    volume.write("..1", &[("a", "1")]).unwrap();
    volume.write("..2", &[("a", "1"), ("a/b", "2")]).expect_err("both cannot be");
    assert_eq!(volume.shown(), texts(&[("a", "1")]));
    assert_eq!(volume.hidden(), ["..1", "..data"]);
}

#[test]
fn links_that_a_container_has_planted_are_not_followed() {
    let volume = Volume::new("planted");
    let outside = Volume::new("planted-outside");
    fs::create_dir(&outside.0).unwrap();
    fs::write(outside.0.join("a"), "theirs").unwrap();
    volume.write("..1", &[("a", "1")]).unwrap();
    for plant in ["a", "..data", "..data_tmp", "..1"] {
        let place = volume.0.join(plant);
        let _ = fs::remove_file(&place).or_else(|_| fs::remove_dir_all(&place));
        symlink(&outside.0, &place).unwrap();
        volume.write(&format!("..2{plant}"), &[("a", "2")]).unwrap();
        assert_eq!(volume.shown(), texts(&[("a", "2")]), "{plant}");
        let _ = fs::remove_file(volume.0.join("..1"));
        volume.write("..1", &[("a", "1")]).unwrap();
        assert_eq!(outside.shown(), texts(&[("a", "theirs")]), "{plant}");
    }
    // A directory in the place of the link.
    fs::remove_file(volume.0.join("..data")).unwrap();
    fs::create_dir(volume.0.join("..data")).unwrap();
    fs::write(volume.0.join("..data/x"), "").unwrap();
    volume.write("..3", &[("a", "3")]).unwrap();
    assert_eq!(volume.shown(), texts(&[("a", "3")]));
}

#[test]
fn a_write_that_fails_anywhere_leaves_all_old_or_all_new() {
    let (old, new) = ([("a", "1"), ("d/b", "2")], [("a", "new"), ("c", "3"), ("d/b", "new")]);
    let volume = Volume::new("faults");
    let mut failures = 0;
    for steps in 0.. {
        volume.write(&format!("..old{steps}"), &old).unwrap();
        STEPS_LEFT.set(Some(steps));
        let written = volume.write(&format!("..new{steps}"), &new);
        STEPS_LEFT.set(None);
        if written.is_ok() {
            break;
        }
        failures += 1;
        let data = fs::read_to_string(volume.0.join("..data/a")).unwrap();
        let expected: &[_] = if data == "1" { &old } else { &new };
        for (path, content) in expected {
            assert_eq!(fs::read_to_string(volume.0.join("..data").join(path)).unwrap(), *content, "{steps}");
        }
        // The next try completes it.
        volume.write(&format!("..again{steps}"), &new).unwrap();
        assert_eq!(volume.shown(), texts(&new), "{steps}");
        assert_eq!(volume.hidden().len(), 2, "{steps}: {:?}", volume.hidden());
    }
    assert!(failures > 12, "only {failures} steps");
}

/// The directory of the volume, and the step before which the process is to be killed, separated by a space: for the
/// process that [`a_write_whose_process_is_killed_anywhere_is_completed_by_the_next_one`] starts.
const KILLED: &str = "NODLET_TEST_KILLED_WRITE";

/// Whether this process is killed at the step that would fail in others.
fn ends() -> bool {
    std::env::var_os(KILLED).is_some()
}

#[test]
fn a_write_whose_process_is_killed_anywhere_is_completed_by_the_next_one() {
    const OLD: &[(&str, &str)] = &[("a", "1"), ("d/b", "2")];
    const NEW: &[(&str, &str)] = &[("a", "new"), ("c", "3"), ("d/b", "new")];
    if let Ok(order) = std::env::var(KILLED) {
        let (path, steps) = order.rsplit_once(' ').expect("a directory and a number");
        let volume = std::mem::ManuallyDrop::new(Volume(path.into()));
        STEPS_LEFT.set(Some(steps.parse().expect("a number")));
        volume.write("..killed", NEW).unwrap();
        return;
    }
    let name =
        "volume::projected::tests::a_write_whose_process_is_killed_anywhere_is_completed_by_the_next_one";
    let (mut kills, mut halves) = (0, 0);
    for steps in 0.. {
        let volume = Volume::new(&format!("killed-{steps}"));
        volume.write("..old", OLD).unwrap();
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(KILLED, format!("{} {steps}", volume.0.display()))
            .output()
            .unwrap();
        if ended.status.success() {
            assert_eq!(volume.shown(), texts(NEW));
            break;
        }
        let signal = std::os::unix::process::ExitStatusExt::signal(&ended.status);
        assert_eq!(signal, Some(libc::SIGKILL), "{steps}: {ended:?}");
        kills += 1;
        halves += u32::from(volume.hidden().len() > 2);
        let data = fs::read_to_string(volume.0.join("..data/a")).unwrap();
        let expected = if data == "1" { OLD } else { NEW };
        for (path, content) in expected {
            assert_eq!(fs::read_to_string(volume.0.join("..data").join(path)).unwrap(), *content, "{steps}");
        }
        volume.write("..next", NEW).unwrap();
        assert_eq!(
            (volume.shown(), volume.hidden().len()),
            (texts(NEW), 2),
            "{steps}: {:?}",
            volume.hidden()
        );
    }
    assert!(kills > 12 && halves > 5, "{kills} kills, of which {halves} left a directory");
}

#[test]
fn a_reader_sees_either_all_old_or_all_new_files_in_ten_thousand_updates() {
    let volume = Volume::new("torn");
    let contents = ["old".repeat(3000), "new".repeat(3000)];
    let both = |content: &str| [("a", content.to_owned()), ("b", content.to_owned())];
    let write_both = |name: &str, content: &str| {
        let files = both(content);
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, content)| (*path, content.as_str())).collect();
        volume.write(name, &files).unwrap();
    };
    write_both("..first", &contents[0]);
    const UPDATES: usize = 10_000;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for turn in 1..=UPDATES {
                write_both(&format!("..{turn}"), &contents[turn % 2]);
            }
        });
        let mut reads = 0;
        while !writer.is_finished() {
            // A reader that wants one view of several files opens the directory first, as documented.
            let Ok(view) = fs::read_link(volume.0.join("..data")) else { continue };
            let of = |name: &str| fs::read(volume.0.join(&view).join(name));
            // The directory may be removed meanwhile: then the reader looks again.
            let (Ok(a), Ok(b)) = (of("a"), of("b")) else { continue };
            assert!(a == b && contents.iter().any(|content| content.as_bytes() == a), "a torn view");
            reads += 1;
            let through_link = fs::read(volume.0.join("a")).unwrap_or_else(|_| a.clone());
            assert!(contents.iter().any(|content| content.as_bytes() == through_link), "a torn file");
        }
        assert!(writer.join().is_ok(), "an update failed");
        assert!(reads > 1_000, "{reads} reads during {UPDATES} updates");
    });
}

/// Runs `step` on a thread with as little stack as no thread of the agent has.
fn on_a_small_stack(step: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(64 * 1024);
        thread.spawn_scoped(scope, step).expect("a thread").join().expect("it ends well");
    });
}

#[test]
fn files_planted_in_a_projected_volume_are_neither_entered_nor_opened() {
    let volume = Volume::new("among");
    let files = [("a", "1"), ("d/b", "2")];
    for hostile in ["deep", "fifo", "grown"] {
        volume.write(&format!("..1{hostile}"), &files).unwrap();
        let data = fs::canonicalize(volume.0.join("..data")).unwrap();
        match hostile {
            "deep" => {
                let (mut at, name) = (OwnedFd::from(File::open(&data).unwrap()), "x");
                for _ in 0..3000 {
                    mkdirat(Some(at.as_raw_fd()), name, Mode::S_IRWXU).unwrap();
                    at = open_beneath(&at, name, OFlag::O_DIRECTORY).unwrap();
                }
            }
            "fifo" => {
                fs::remove_file(data.join("a")).unwrap();
                nix::unistd::mkfifo(&data.join("a"), Mode::S_IRWXU).unwrap();
            }
            _ => File::options().write(true).open(data.join("a")).unwrap().set_len(1 << 40).unwrap(),
        }
        on_a_small_stack(|| assert!(volume.write(&format!("..2{hostile}"), &files).unwrap()));
        assert_eq!(volume.shown(), texts(&files), "{hostile}");
        assert_eq!(volume.hidden().len(), 2, "{hostile}");
    }
}

#[test]
fn a_name_that_was_used_before_is_refused_and_its_files_stay() {
    let volume = Volume::new("again");
    volume.write("..1", &[("a", "1")]).unwrap();
    volume.write("..1", &[("a", "2")]).expect_err("it was used");
    assert_eq!(volume.shown(), texts(&[("a", "1")]));
}
