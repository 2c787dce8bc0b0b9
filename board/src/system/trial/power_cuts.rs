//! Updates on a medium that loses what was not flushed when the power is cut.

use std::path::Path;

use nodlet_tests::honest::{ABSENT, Disk, HONEST_OPTIONS, Medium, make_data_partition};
use nodlet_tests::{Mount, check_file_system, seed};

use super::super::state::{Choice, State};
use super::change;
use super::tests::Board;

/// The size of the data partition.
const MIB: u64 = 24;

/// States after a power cut that are checked.
const STATES: usize = 30;

/// Bytes of a program, so that ext4 does not write it by itself at once.
const PROGRAM: usize = 300_000;

/// The content of a program.
fn program(version: &str) -> String {
    version.repeat(PROGRAM / version.len())
}

/// Starts the agent, as process 1 does at a boot, and describes what runs.
fn observe(board: &Board) -> String {
    let (choice, content) = board.start();
    let (how, program_of) = match choice {
        Choice::Image => return ABSENT.to_owned(),
        Choice::Kept(program) => ("kept", program.version),
        Choice::Trial(program) => ("trial", program.version),
    };
    assert_eq!(content, program(&program_of), "a damaged program would run");
    format!("{how} {program_of}")
}

#[test]
fn an_update_is_the_old_or_the_new_one_whatever_a_medium_lost() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let directory = scratch.path();
    let (root, initial, state) = (directory.join("root"), directory.join("initial"), directory.join("state"));
    let data = root.join("var");
    std::fs::create_dir_all(&data).expect("a scratch directory");
    make_data_partition(&initial, MIB);
    let medium = Medium::new(&initial, &directory.join("current")).expect("/tmp can be written to");
    let disk = Disk::attach(medium.clone(), &directory.join("fuse"));
    let mount = Mount::ext4(Path::new(disk.path()), &data, HONEST_OPTIONS);
    let board = Board::at(root.clone());
    for version in ["v1", "v2", "v3", "v4"] {
        medium.during("nodlet", &format!("trial {version}"), || {
            board.install_version(version, &program(version)).expect("there is room");
        });
        assert_eq!(observe(&board), format!("trial {version}"));
        medium.during("nodlet", &format!("kept {version}"), || {
            let state = change(&board.files, State::keep).expect("there is room");
            board.files.clean(&state);
        });
    }
    medium
        .during("nodlet", "trial v5", || board.install_version("v5", &program("v5")).expect("there is room"));
    medium.during("nodlet", "kept v4", || {
        change(&board.files, |state| state.go_back("it hangs")).expect("there is room");
    });
    let record = medium.record(&initial);
    drop(mount);
    drop(disk);
    let cuts = record.cuts(&mut seed(), STATES);
    assert_eq!(cuts.len(), STATES);
    for cut in cuts {
        record.write(&cut, &state).expect("/tmp can be written to");
        check_file_system(&state);
        let _mount = Mount::ext4(&state, &data, "loop,noatime");
        let found = observe(&Board::at(root.clone()));
        if let Some(allowed) = record.allowed(&cut).get("nodlet") {
            assert!(allowed.contains(&*found), "{found} of {allowed:?} after the {}", record.describe(&cut));
        }
    }
}
