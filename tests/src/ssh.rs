//! A substitute for ssh in tests of `nodlet push` and `--board`: a shell, because ssh itself is not under
//! test. `cargo xtask boards` uses a real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::{Device, nodlet_program};

/// The board's destination for ssh.
pub const BOARD: &str = "root@board";

/// The ssh substitute, which runs its last argument as the board's command line.
pub struct Line {
    /// The directory with the script `ssh`, and the board's `nodlet`.
    pub directory: PathBuf,
}

impl Line {
    /// Creates the substitute. `upwards` is a command that filters the data sent to the board.
    pub fn new(device: &Device, name: &str, upwards: &str) -> Line {
        Line::with_filters(device, name, upwards, "")
    }

    /// Like [`Line::new`], with a command `downwards` that filters the data from the board. The exit code is
    /// that of this filter.
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

    /// Runs `nodlet` with these arguments and this substitute.
    pub fn run(&self, device: &Device, words: &[&str]) -> Output {
        let mut command = device.command(words);
        command.env("NODLET_SSH", self.directory.join("ssh")).stdin(Stdio::null());
        command.output().expect("nodlet can be started")
    }

    /// Runs `nodlet`, which must succeed. Returns its standard output.
    #[track_caller]
    pub fn ok(&self, device: &Device, words: &[&str]) -> String {
        let output = self.run(device, words);
        assert!(output.status.success(), "{words:?}: {output:#?}");
        text(&output.stdout)
    }

    /// Runs `nodlet`, which must fail. Returns its standard error.
    #[track_caller]
    pub fn refused(&self, device: &Device, words: &[&str]) -> String {
        let output = self.run(device, words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {output:#?}");
        text(&output.stderr)
    }
}

/// A program's output as text.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Incompressible pseudo-random bytes.
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

/// A path as an argument.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("a path of the tests")
}

/// A shell command that copies only this many bytes, without delay.
pub fn cutter(bytes: u64) -> String {
    format!("dd iflag=count_bytes bs=4096 count={bytes} status=none")
}
