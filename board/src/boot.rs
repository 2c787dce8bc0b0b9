//! Records of this boot by process 1 and its children, for each other and for the verbs of the command
//! line: the board's description, safe mode, the count of crash loops, the state of the data partition. `init`
//! decides and writes; this module imports from neither `init` nor any verb, so that both can read here.

// Process 1 executes code of this module, which must not be able to panic; see `init.rs`.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::string_slice,
        clippy::unreachable,
        clippy::unwrap_used,
    )
)]

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nodlet_kernel::own_file;

use crate::error::VerbError;

pub(crate) mod config;
pub(crate) mod console;
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::string_slice)]
pub(crate) mod crash_count;
pub(crate) mod safe_mode;

/// The name of process 1, by which `nodlet reboot` recognises it.
pub(crate) const INIT: &str = "nodlet:init";

/// The status file with the state of the data partition at this boot, for programs: a JSON object.
pub(crate) const STORAGE: &str = "/run/nodlet/storage.json";

/// The largest short file in bytes. Such files have a few lines; a larger file is something else.
const MOST_BYTES: usize = 16 << 10;

/// Fails if another program is process 1, and advises what to do `instead`.
pub(crate) fn require_our_init(instead: &str) -> Result<(), VerbError> {
    let name = fs::read_to_string("/proc/1/comm").unwrap_or_default();
    if name.trim() == INIT {
        return Ok(());
    }
    Err(VerbError::new(format!("process 1 is {:?} and not nodlet's init: {instead}", name.trim())))
}

/// The warning about the data partition in the status file, as the reason and the message of an event.
pub(crate) fn storage_warning(root: &Path) -> Option<(String, String)> {
    let status = storage_status(root)?;
    let (reason, message) = (status.get("reason")?.as_str()?, status.get("message")?.as_str()?);
    let message = if status.get("inRAM")?.as_bool()? {
        format!("{message}; pods run from RAM until the next boot")
    } else if reason == "Full" {
        message.to_owned()
    } else {
        return None;
    };
    Some((format!("DataPartition{reason}"), message))
}

/// The status file with the state of the data partition, as an object; `None` without one, or if it is damaged.
pub(crate) fn storage_status(root: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&own_file::read(&root.join(STORAGE.trim_start_matches('/'))).ok()?).ok()
}

/// Reads a short file of the board itself; `None` if it does not exist.
///
/// # Errors
/// The file cannot be read, is too long or no text, or is no regular file: nothing in its place blocks the boot.
pub(crate) fn read_own_short(file: impl AsRef<Path>) -> io::Result<Option<String>> {
    own_file::if_exists(own_file::open(file.as_ref()))?.map(short_text).transpose()
}

/// Reads a short file that a user named, which may be a link or a pipe; `None` if it does not exist.
pub(crate) fn read_short(file: impl AsRef<Path>) -> io::Result<Option<String>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file);
    own_file::if_exists(file)?.map(short_text).transpose()
}

/// Reads all of a short text.
pub(crate) fn short_text(from: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take((MOST_BYTES as u64).saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > MOST_BYTES {
        return Err(io::Error::other("it has more than 16 KiB"));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_file_must_be_short_and_utf8_and_a_pipe_does_not_block() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path();
        let file = directory.join("file");
        fs::write(&file, [0xff; 4]).unwrap();
        assert!(read_short(&file).unwrap_err().to_string().contains("UTF-8"));
        fs::write(&file, vec![b'#'; MOST_BYTES + 1]).unwrap();
        assert!(read_short(&file).unwrap_err().to_string().contains("16 KiB"));
        assert_eq!(read_short("/nonexistent/file").unwrap(), None);
        assert!(read_short("/dev/zero").unwrap_err().to_string().contains("16 KiB"));
        let pipe = directory.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let name = pipe.clone();
        std::thread::spawn(move || sender.send(read_short(name).unwrap()));
        let text = receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("it waits for no writer");
        assert_eq!(text.as_deref(), Some(""));
    }

    #[test]
    fn a_file_of_the_board_is_read_only_if_it_is_regular() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path();
        let place = |name: &str| directory.join(name);
        fs::write(place("file"), "name = a\n").unwrap();
        nix::unistd::mkfifo(&place("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink(place("file"), place("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", place("device")).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let of = directory.to_owned();
        std::thread::spawn(move || {
            for name in ["file", "absent", "pipe", "link", "device"] {
                let read = read_own_short(of.join(name)).map_err(|error| error.to_string());
                sender.send((name, read)).unwrap();
            }
        });
        let mut seen = Vec::new();
        for _ in 0..5 {
            let waited = receiver.recv_timeout(std::time::Duration::from_secs(10));
            seen.push(waited.expect("it waits for no writer"));
        }
        let refused = || Err("it is not a regular file: remove it".to_owned());
        let expected = [
            ("file", Ok(Some("name = a\n".to_owned()))),
            ("absent", Ok(None)),
            ("pipe", refused()),
            ("link", refused()),
            ("device", refused()),
        ];
        assert_eq!(seen, expected);
    }
}
