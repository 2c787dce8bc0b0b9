//! Encryption of the files about the cluster (pods, ConfigMaps, Secrets and the credentials of the board) with the first
//! key of the file of `--encryption-key-file`. Files without encryption are read as they are, so that a board can begin
//! to use a key at any time.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nodlet_wire::tls::at_rest::{Keys, is_sealed};

/// Maximum size of a file with credentials, of a kubeconfig and of a key file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// The keys of the board.
pub(crate) enum AtRest {
    /// Nothing is encrypted.
    Plain,
    Encrypted(Keys),
    /// The key file cannot be used, so that nothing of the cluster is written: the kind of the error, and its text.
    Unusable(io::ErrorKind, String),
}

impl AtRest {
    /// Reads the key file, if there is to be one.
    pub(crate) fn of(file: Option<PathBuf>) -> AtRest {
        let Some(file) = file else { return AtRest::Plain };
        let keys = |text| Keys::parse(text).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why));
        match read_file(&file).and_then(keys) {
            Ok(keys) => AtRest::Encrypted(keys),
            Err(why) => {
                let kind = why.kind();
                let why = format!("the key file {}: {why}", file.display());
                log::error!(
                    "{why}; running pods go on, and data of the cluster can be neither read nor written"
                );
                AtRest::Unusable(kind, why)
            }
        }
    }

    /// Encrypts `text` for the file at `path`, if the board has keys.
    ///
    /// # Errors
    /// The keys cannot be used, or the kernel has no random bytes yet.
    pub(crate) fn seal(&self, path: &Path, text: Vec<u8>) -> io::Result<Vec<u8>> {
        match self {
            AtRest::Plain => Ok(text),
            AtRest::Encrypted(keys) => keys.seal(&name(path), &text),
            AtRest::Unusable(kind, why) => Err(io::Error::new(*kind, why.clone())),
        }
    }

    /// Decrypts the content `stored` of the file at `path`, if it is encrypted.
    ///
    /// # Errors
    /// The keys do not decrypt the content.
    pub(crate) fn open(&self, path: &Path, stored: Vec<u8>) -> io::Result<Vec<u8>> {
        if !is_sealed(&stored) {
            return Ok(stored);
        }
        match self {
            AtRest::Plain => Err(io::Error::other("it is encrypted: the agent needs --encryption-key-file")),
            AtRest::Encrypted(keys) => keys.open(&name(path), &stored).map_err(io::Error::other),
            AtRest::Unusable(kind, why) => Err(io::Error::new(*kind, why.clone())),
        }
    }

    /// Whether the file at `path` with the content `stored` needs not be written to contain `text`.
    pub(crate) fn is_current(&self, path: &Path, stored: Vec<u8>, text: &[u8]) -> bool {
        let is_newest = match self {
            AtRest::Plain => true,
            AtRest::Encrypted(keys) => keys.is_newest(&stored),
            AtRest::Unusable(..) => false,
        };
        is_newest && self.open(path, stored).is_ok_and(|stored| stored == text)
    }
}

/// Reads a file of bounded size. Whatever else has its name must neither block the thread nor fill the memory.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = nodlet_kernel::own_file::open(path)?;
    let mut bytes = Vec::new();
    if file.take(MAX_FILE + 1).read_to_end(&mut bytes)? as u64 > MAX_FILE {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_key_of_an_encrypted_file_the_reason_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("keys");
        let path = Path::new("/var/lib/nodlet/cluster/pod.json");
        std::fs::write(&file, format!("one {}=\n", "A".repeat(43))).expect("a key");
        let keys = AtRest::of(Some(file.clone()));
        let sealed = keys.seal(path, b"text".to_vec()).expect("it is encrypted");
        let opened = |keys: &AtRest, stored: &[u8]| {
            keys.open(path, stored.to_vec()).map_err(|error| error.to_string())
        };
        assert_eq!(opened(&keys, &sealed), Ok(b"text".to_vec()));
        assert!(
            keys.is_current(path, sealed.clone(), b"text")
                && !keys.is_current(path, sealed.clone(), b"other")
        );
        // A file of a time without a key is read, and written again.
        assert_eq!(opened(&keys, b"text"), Ok(b"text".to_vec()));
        assert!(!keys.is_current(path, b"text".to_vec(), b"text"));
        assert!(AtRest::Plain.is_current(path, b"text".to_vec(), b"text"));
        let why = opened(&AtRest::Plain, &sealed).expect_err("there is no key");
        assert!(why.contains("--encryption-key-file"), "{why}");
        std::fs::write(&file, format!("two {}=\n", "A".repeat(43))).expect("another name");
        let why = opened(&AtRest::of(Some(file.clone())), &sealed).expect_err("another key");
        assert!(why.contains("the key \"one\", which the key file does not have"), "{why}");
        std::fs::remove_file(&file).expect("removed");
        let missing = AtRest::of(Some(file.clone()));
        let why = missing.seal(path, b"text".to_vec()).expect_err("the file is missing");
        assert_eq!(why.kind(), io::ErrorKind::NotFound);
        let why = why.to_string();
        assert!(why.contains(&file.display().to_string()) && why.contains("No such file"), "{why}");
        assert_eq!(opened(&missing, b"text"), Ok(b"text".to_vec()));
        opened(&missing, &sealed).expect_err("the file is missing");
    }

    #[test]
    fn credentials_are_read_from_a_regular_file_of_bounded_size_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let (path, file) = (directory.path().join("cluster.json"), directory.path().join("file"));
        let read = || read_file(&path).map_err(|error| error.to_string());
        assert_eq!(read_file(&path).expect_err("nothing").kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, "{}").expect("a file");
        assert_eq!(read(), Ok(b"{}".to_vec()));
        std::fs::rename(&path, &file).expect("another name");
        std::os::unix::fs::symlink(&file, &path).expect("a link");
        read().expect_err("a link");
        std::fs::remove_file(&path).expect("removed");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        assert_eq!(read(), Err("it is not a regular file: remove it".to_owned()));
        std::fs::remove_file(&path).expect("removed");
        std::fs::File::create(&path).and_then(|file| file.set_len(3 << 30)).expect("a large file");
        assert_eq!(read(), Err("it is larger than 1 MiB".to_owned()));
    }
}
