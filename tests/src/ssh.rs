//! What stands in for ssh in tests of `nodlet push` and `--board`: a shell, since what ssh itself does is
//! not nodlet's. `cargo xtask boards` has a real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::{Device, nodlet_program};

/// A board, as ssh calls it.
pub const BOARD: &str = "root@board";

/// What stands in for ssh: the command line for the board is its last argument.
pub struct Line {
    /// Where its `ssh` lies, and the `nodlet` of the board.
    pub directory: PathBuf,
}

impl Line {
    /// `upwards` is a command through which all passes that is sent to the board.
    pub fn new(device: &Device, name: &str, upwards: &str) -> Line {
        Line::with_filters(device, name, upwards, "")
    }

    /// As [`Line::new`]; what comes from the board passes through `downwards`, and the exit code is
    /// lost to it.
    pub fn both_ways(device: &Device, name: &str, upwards: &str, downwards: &str) -> Line {
        Line::with_filters(device, name, upwards, &format!(" | {downwards}"))
    }

    fn with_filters(device: &Device, name: &str, upwards: &str, downwards: &str) -> Line {
        let directory = device.path(&format!("/line-{name}"));
        fs::create_dir_all(&directory).expect("a scratch directory");
        let _ = std::os::unix::fs::symlink(nodlet_program(), directory.join("nodlet"));
        let script = format!(
            "#!/bin/sh\nfor last; do :; done\nexport PATH={}:$PATH\n{upwards} | sh -c \"$last\"{downwards}\n",
            directory.display()
        );
        let ssh = directory.join("ssh");
        fs::write(&ssh, script).expect("a script");
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).expect("its own");
        Line { directory }
    }

    /// `nodlet` with these words, with this line as its ssh.
    pub fn run(&self, device: &Device, words: &[&str]) -> Output {
        let mut command = device.command(words);
        command.env("NODLET_SSH", self.directory.join("ssh")).stdin(Stdio::null());
        command.output().expect("nodlet can be started")
    }

    /// Standard output of what succeeded.
    #[track_caller]
    pub fn ok(&self, device: &Device, words: &[&str]) -> String {
        let output = self.run(device, words);
        assert!(output.status.success(), "{words:?}: {output:#?}");
        text(&output.stdout)
    }

    /// Standard error of what did not.
    #[track_caller]
    pub fn refused(&self, device: &Device, words: &[&str]) -> String {
        let output = self.run(device, words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:#?}");
        text(&output.stderr)
    }
}

/// What a program wrote.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes that no compression makes fewer.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A path as a word of a command line.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("a path of the tests")
}

/// What lets so many bytes pass, each as it comes.
pub fn cutter(bytes: u64) -> String {
    format!("dd iflag=count_bytes bs=4096 count={bytes} status=none")
}
