//! Updates below a scratch directory: choices of the next program, faults of the disk, and the ends of a trial.

use nodlet_fuzz::disk::{Disk, Fault, POWER_CUTS};
use nodlet_host::paths::Paths;

use super::super::state::{Last, Program, STARTS};
use super::*;

/// A data partition and the image's nodlet.
pub(super) struct Board {
    directory: PathBuf,
    pub(super) files: UpdateFiles,
    _scratch: Option<tempfile::TempDir>,
}

impl Board {
    fn new() -> Board {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let board = Board::at(scratch.path().to_owned());
        Board { _scratch: Some(scratch), ..board }
    }

    /// A board whose root is this directory.
    pub(super) fn at(directory: PathBuf) -> Board {
        std::fs::create_dir_all(&directory).expect("a scratch directory");
        std::fs::write(directory.join("image"), "image").expect("it can be written");
        let files = UpdateFiles::new(&directory);
        files.create().expect("a directory can be made");
        Board { directory, files, _scratch: None }
    }

    fn image(&self) -> PathBuf {
        self.directory.join("image")
    }

    /// Installs an update as `nodlet system install` does.
    fn install(&self, content: &str) -> io::Result<()> {
        self.install_version(content, content)
    }

    pub(super) fn install_version(&self, version: &str, content: &str) -> io::Result<()> {
        let mut state = self.files.read()?;
        let mut file = self.files.new_program()?;
        let mut written = update_files::Written::new(&mut file);
        io::Write::write_all(&mut written, content.as_bytes())?;
        let digest = written.digest();
        self.files.add_program(file, &digest)?;
        let program = Program { digest, version: version.into() };
        state.install(update_files::digest_of(&self.image())?, program, Before::default());
        self.files.write(&state)?;
        self.files.clean(&state);
        Ok(())
    }

    /// Chooses the agent's program. Returns the choice and the program's content.
    pub(super) fn start(&self) -> (Choice, String) {
        let choice = choose(&self.files, &self.image(), true).0;
        let path = match &choice {
            Choice::Image => self.image(),
            Choice::Kept(program) | Choice::Trial(program) => self.files.program(&program.digest),
        };
        (choice, std::fs::read_to_string(path).expect("it is there"))
    }
}

#[test]
fn a_power_cut_at_any_write_leaves_the_old_nodlet_or_the_new_one() {
    let mut seen = nodlet_core::sorted::SortedSet::new();
    for (cut, fault) in (1..40).flat_map(|cut| POWER_CUTS.map(|fault| (cut, fault))) {
        let board = Board::new();
        board.install("a").expect("there is power");
        board.start();
        change(&board.files, State::keep).expect("there is power");
        // Run a whole update, with a power cut at one step.
        let disk = Disk::failing(fault, cut);
        let installed = board.install("b");
        let mut kept = false;
        if installed.is_ok() {
            let (choice, _) = board.start();
            kept = matches!(choice, Choice::Trial(_)) && change(&board.files, State::keep).is_ok();
            if let Ok(state) = board.files.read() {
                board.files.clean(&state);
            }
        }
        // The boots after that.
        disk.repair();
        let contents: Vec<String> = (0..=STARTS).map(|_| board.start().1).collect();
        if kept {
            assert!(contents.iter().all(|content| content == "b"), "cut at {cut}: {contents:?}");
        }
        assert!(
            contents.iter().all(|content| content == "a" || content == "b"),
            "cut at {cut}: {contents:?}"
        );
        // An unwatched trial ends with the previous nodlet, which then stays.
        let last = contents.last().cloned().expect("it was started");
        assert_eq!(board.start().1, last, "cut at {cut}");
        if installed.is_err() && contents[0] == "a" {
            assert!(contents.iter().all(|content| content == "a"), "cut at {cut}: {contents:?}");
        }
        // Another update still works.
        let mut state = board.files.read().expect("it is whole");
        state.go_back("enough");
        board.files.write(&state).expect("there is power");
        board.install("c").expect("there is power");
        assert_eq!(board.start().1, "c", "cut at {cut}");
        change(&board.files, State::keep).expect("there is power");
        let state = board.files.read().expect("it is whole");
        board.files.clean(&state);
        let files = std::fs::read_dir(board.files.directory()).expect("it is there").count();
        assert_eq!(files, 3, "cut at {cut}: the state, its lock and one program");
        seen.insert(contents.join(""));
    }
    // The power was cut at every step, from before the first write until after the last.
    let seen: Vec<&str> = seen.iter().map(String::as_str).collect();
    assert_eq!(seen, ["aaaa", "bbaa", "bbba", "bbbb"]);
}

#[test]
fn two_that_change_the_record_at_once_lose_no_change() {
    let board = Board::new();
    let number = |state: &State| state.last.as_ref().map_or(0, |last| last.version.len());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let grow = |state: &mut State| {
                        let version = "x".repeat(number(state) + 1);
                        std::thread::yield_now();
                        state.last = Some(Last { version, returned: None });
                    };
                    change(&board.files, grow).expect("it can be written");
                }
            });
        }
    });
    assert_eq!(number(&board.files.read().expect("it is whole")), 100);
}

#[test]
fn a_damaged_or_missing_file_is_never_executed() {
    let board = Board::new();
    assert_eq!(board.start(), (Choice::Image, "image".into()));
    board.install("a").expect("it can be written");
    let (Choice::Trial(a), _) = board.start() else { panic!("it is on trial") };
    change(&board.files, State::keep).expect("it can be written");
    board.install("b").expect("it can be written");
    let (Choice::Trial(b), _) = board.start() else { panic!("it is on trial") };
    std::fs::write(board.files.program(&b.digest), "x").expect("it can be written");
    assert_eq!(board.start(), (Choice::Kept(a.clone()), "a".into()));
    std::fs::remove_file(board.files.program(&a.digest)).expect("it can be removed");
    assert_eq!(board.start(), (Choice::Image, "image".into()));
    let last = board.files.read().expect("it is whole").last.and_then(|last| last.returned);
    assert!(last.expect("it says why").contains("its file cannot be read"));
    // A damaged record counts as none.
    board.install("c").expect("it can be written");
    std::fs::write(board.files.directory().join("state.json"), "{").expect("it can be written");
    assert_eq!(board.start(), (Choice::Image, "image".into()));
}

#[test]
fn a_trial_whose_start_cannot_be_counted_does_not_begin() {
    let board = Board::new();
    board.install("a").expect("there is power");
    let disk = Disk::failing(Fault::Death, 1);
    assert_eq!(board.start(), (Choice::Image, "image".into()));
    disk.repair();
    assert_eq!(board.start().1, "a");
}

#[test]
fn the_end_of_a_trial_is_recorded_on_a_full_disk() {
    let board = Board::new();
    let reserve = Paths::new(&board.directory).reserve();
    board.install("a").expect("there is room");
    while !reserve.replenish().expect("there is room") {}
    let disk = Disk::full_and_failing(Fault::Once, usize::MAX);
    board.install("b").expect_err("there is no room for a program");
    assert_eq!(board.start().1, "a");
    change(&board.files, |state| state.go_back("it hung")).expect("the reserve has room");
    assert_eq!(board.start(), (Choice::Image, "image".into()));
    disk.repair();
    board.files.clean(&board.files.read().expect("it is whole"));
    assert!(reserve.replenish().is_ok(), "the names that make room for others stay");
    let names = std::fs::read_dir(board.files.directory()).expect("it is there").flatten();
    let slack = names.filter(|name| name.file_name().to_str().is_some_and(|name| name.starts_with('.')));
    assert_eq!(slack.count(), 32);
}

#[test]
fn an_update_that_was_kept_is_given_up_if_its_agent_ends_again_and_again() {
    let run = |starts: &[u64]| {
        let mut text = String::new();
        starts
            .iter()
            .map(|&now| {
                let (next, too_often) = count_start(&text, now);
                text = next;
                too_often
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(run(&[5, 5, 6, 8, 12, 20]), [false, false, false, false, false, true]);
    assert!(run(&[5, 105, 205, 305, 405, 505, 605, 705]).iter().all(|too_often| !too_often));
    assert_eq!(count_start("nonsense\n", 7), ("7\n".into(), false));
}

#[test]
fn an_update_that_was_kept_is_given_up_after_a_crash_loop() {
    let board = Board::new();
    let rules = Rules { healthy_after: 60, ..Rules::default() };
    board.install("a").expect("it can be written");
    board.start();
    let state = change(&board.files, State::keep).expect("it can be written");
    let kept = board.files.program(&state.kept.expect("it is kept").digest);
    let next = || agent_program(&board.directory, &board.image(), &rules);
    assert_eq!(next(), kept);
    let count = board.directory.join(crash_count::FILE.trim_start_matches('/'));
    std::fs::create_dir_all(count.parent().expect("a directory")).expect("it can be made");
    for (text, program) in [("0\n", &kept), ("x", &kept), ("1\n", &board.image())] {
        std::fs::write(&count, text).expect("it can be written");
        assert_eq!(&next(), program, "{text:?}");
    }
    let last = board.files.read().expect("it is whole").last.and_then(|last| last.returned);
    assert_eq!(last.as_deref(), Some("its agent kept failing until the board was rebooted"));
}

#[test]
fn an_update_that_hangs_is_given_up_only_while_it_is_on_trial() {
    let board = Board::new();
    let give_up = || give_up_trial(&board.directory, "its agent hung");
    assert!(!give_up(), "there was never an update");
    board.install("a").expect("it can be written");
    assert!(!give_up(), "its trial has not begun");
    board.start();
    assert!(give_up());
    assert!(!give_up(), "it is given up already");
    assert_eq!(board.start(), (Choice::Image, "image".into()));
    let last = board.files.read().expect("it is whole").last.and_then(|last| last.returned);
    assert_eq!(last.as_deref(), Some("its agent hung"));
    board.install("b").expect("it can be written");
    board.start();
    change(&board.files, State::keep).expect("it can be written");
    assert!(!give_up(), "it was kept");
    assert_eq!(board.start().1, "b");
}
