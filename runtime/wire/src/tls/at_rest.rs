//! Encryption of what is stored, with a cipher of TLS: AES-256-GCM in the form of Kubernetes' provider `aesgcm`, which is
//! `k8s:enc:aesgcm:v1:KEY:`, a random nonce, the cipher text and its tag. The name of the file is authenticated with it,
//! so that no file passes for another one.

use std::io;

use data_encoding::BASE64;
use rustls::crypto::cipher::NONCE_LEN;
use zeroize::Zeroizing;

use super::aead::{Aead, Keyed, TAG};
use crate::random;

const PREFIX: &[u8] = b"k8s:enc:aesgcm:v1:";

/// Keys in one file. More than two are of no use: the present one, and the one before.
const MAX_KEYS: usize = 8;

/// Length of a key in bytes.
const KEY_BYTES: usize = 32;

/// Keys, of which the first encrypts and each decrypts.
pub struct Keys(Vec<Key>);

struct Key {
    name: String,
    cipher: Keyed,
}

/// The reason why something stored cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The content was encrypted with a key of this name, which is not among the keys.
    #[error("it was encrypted with the key {0:?}, which the key file does not have")]
    UnknownKey(String),
    /// The key of this name does not decrypt it.
    #[error(
        "the key {0:?} of the key file does not decrypt it: it was encrypted with another key, or is damaged"
    )]
    Wrong(String),
}

impl Keys {
    /// Parses lines of a name and a key in base64. Empty lines, and those that begin with `#`, mean nothing.
    ///
    /// # Errors
    /// A line is something else, or there is none. The message shows no key.
    pub fn parse(text: Vec<u8>) -> Result<Keys, String> {
        let text = Zeroizing::new(text);
        let text = std::str::from_utf8(&text).map_err(|_| "not valid UTF-8".to_owned())?;
        let mut keys: Vec<Key> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || format!("line {}: must be a name, a space, and 32 bytes in base64", number + 1);
            let (name, key) = line.split_once(' ').ok_or_else(wrong)?;
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let key = Zeroizing::new(BASE64.decode(key.trim().as_bytes()).unwrap_or_default());
            if name.len() > 63 || !name.bytes().all(is_name) || key.len() != KEY_BYTES {
                return Err(wrong());
            }
            if keys.iter().any(|other| other.name == name) {
                return Err(format!("line {}: the name {name:?} occurs twice", number + 1));
            }
            keys.push(Key { name: name.to_owned(), cipher: Aead::Aes256Gcm.keyed(&key) });
        }
        match keys.len() {
            0 => Err("it has no key: write a line with a name, a space, and 32 bytes in base64".to_owned()),
            1..=MAX_KEYS => Ok(Keys(keys)),
            _ => Err(format!("it has more than {MAX_KEYS} keys")),
        }
    }

    /// Encrypts what a file is to contain, with the first key.
    ///
    /// # Errors
    /// The kernel has no random bytes yet.
    pub fn seal(&self, file: &str, text: &[u8]) -> io::Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        random::secret(&mut nonce)?;
        let Key { name, cipher } = &self.0[0];
        let mut sealed = Vec::with_capacity(PREFIX.len() + name.len() + 1 + NONCE_LEN + text.len() + TAG);
        sealed.extend_from_slice(PREFIX);
        sealed.extend_from_slice(name.as_bytes());
        sealed.push(b':');
        sealed.extend_from_slice(&nonce);
        let start = sealed.len();
        sealed.extend_from_slice(text);
        let tag = cipher.seal(nonce, file.as_bytes(), &mut sealed[start..]).map_err(io::Error::other)?;
        sealed.extend_from_slice(&tag);
        Ok(sealed)
    }

    /// Decrypts the content of a file.
    ///
    /// # Errors
    /// The content was encrypted with another key or for another file, or is damaged.
    pub fn open(&self, file: &str, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
        let (name, sealed) = parts(sealed);
        let key = self.0.iter().find(|key| key.name == name);
        let Some(Key { cipher, .. }) = key else { return Err(OpenError::UnknownKey(name)) };
        let Some((nonce, text)) = sealed.split_first_chunk::<NONCE_LEN>() else {
            return Err(OpenError::Wrong(name));
        };
        let mut text = text.to_vec();
        match cipher.open(*nonce, file.as_bytes(), &mut text) {
            Ok(length) => {
                text.truncate(length);
                Ok(text)
            }
            Err(_) => Err(OpenError::Wrong(name)),
        }
    }

    /// Whether the content of a file was encrypted with the first key.
    pub fn is_newest(&self, sealed: &[u8]) -> bool {
        is_sealed(sealed) && parts(sealed).0 == self.0[0].name
    }
}

/// Whether the content of a file is encrypted.
pub fn is_sealed(content: &[u8]) -> bool {
    content.starts_with(PREFIX)
}

/// The name of the key, and what follows it.
fn parts(sealed: &[u8]) -> (String, &[u8]) {
    let rest = sealed.get(PREFIX.len()..).unwrap_or_default();
    let end = rest.iter().take(64).position(|byte| *byte == b':').unwrap_or(0);
    (String::from_utf8_lossy(&rest[..end]).into_owned(), rest.get(end + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, byte: u8) -> String {
        format!("{name} {}\n", BASE64.encode(&[byte; KEY_BYTES]))
    }

    fn keys(text: &str) -> Keys {
        Keys::parse(text.as_bytes().to_vec()).unwrap_or_else(|why| panic!("{why}"))
    }

    #[test]
    fn a_file_is_read_with_the_key_and_the_name_of_its_writing_only() {
        let ours = keys(&line("one", 1));
        let sealed = ours.seal("a.json", b"a secret").expect("random bytes");
        assert!(is_sealed(&sealed) && sealed.starts_with(b"k8s:enc:aesgcm:v1:one:"));
        assert!(!sealed.windows(8).any(|part| part == b"a secret"));
        assert_ne!(ours.seal("a.json", b"a secret").expect("random bytes"), sealed);
        assert_eq!(ours.open("a.json", &sealed).as_deref(), Ok(&b"a secret"[..]));
        let wrong = Err(OpenError::Wrong("one".into()));
        assert_eq!(ours.open("b.json", &sealed), wrong);
        assert_eq!(keys(&line("one", 2)).open("a.json", &sealed), wrong);
        let other = keys(&line("two", 1));
        assert_eq!(other.open("a.json", &sealed), Err(OpenError::UnknownKey("one".into())));
        for length in 0..sealed.len() {
            ours.open("a.json", &sealed[..length]).expect_err("a part of it");
        }
        for byte in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[byte] ^= 1;
            assert!(!is_sealed(&changed) || ours.open("a.json", &changed).is_err(), "byte {byte}");
        }
    }

    #[test]
    fn the_first_key_encrypts_and_each_decrypts() {
        let old = keys(&line("old", 1));
        let sealed = old.seal("a", b"text").expect("random bytes");
        let both = keys(&format!("# since May\n{}\n{}", line("new", 2), line("old", 1)));
        assert_eq!(both.open("a", &sealed).as_deref(), Ok(&b"text"[..]));
        assert!(old.is_newest(&sealed) && !both.is_newest(&sealed) && !both.is_newest(b"text"));
        assert!(both.is_newest(&both.seal("a", b"text").expect("random bytes")));
    }

    #[test]
    fn a_wrong_key_file_is_named_by_its_line_and_shows_no_key() {
        let short = BASE64.encode(&[7; 16]);
        for (text, expected) in [
            (String::new(), "it has no key"),
            ("# only a comment\n".to_owned(), "it has no key"),
            (format!("{}one {short}", line("two", 1)), "line 2: must be a name, a space, and 32 bytes"),
            (line("o:e", 1), "line 1: must be a name, a space, and 32 bytes"),
            (BASE64.encode(&[7; 32]), "line 1: must be a name, a space, and 32 bytes"),
            (line("one", 1) + &line("one", 2), "line 2: the name \"one\" occurs twice"),
            ((0..9).map(|number| line(&format!("k{number}"), 1)).collect(), "more than 8 keys"),
        ] {
            let Err(why) = Keys::parse(text.clone().into_bytes()) else { panic!("{text} was accepted") };
            assert!(why.contains(expected), "{why}");
            assert!(!why.contains(&short), "{why}");
        }
    }
}
