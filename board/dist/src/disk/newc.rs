//! Reads an archive written by `cpio.rs`.

use std::collections::BTreeMap;
use std::io::Read;

use nodlet_build::task::TaskError;

/// A file, directory or link. The bytes of a link are its target.
pub(super) struct Entry {
    /// The file type and permissions, as in `st_mode`.
    pub(super) mode: u32,
    pub(super) bytes: Vec<u8>,
}

/// All entries by path, without a leading slash.
pub(super) type Tree = BTreeMap<String, Entry>;

const HEADER: usize = 6 + 13 * 8;

/// Reads the whole archive.
pub(super) fn read(mut from: impl Read) -> Result<Tree, TaskError> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    let mut tree = Tree::new();
    let mut at = 0;
    loop {
        let header = bytes.get(at..at + HEADER).ok_or("the archive is cut off")?;
        let header = std::str::from_utf8(header)?;
        if !header.starts_with("070701") {
            return Err(TaskError(format!("no header of an archive at byte {at}")));
        }
        let field = |index: usize| u32::from_str_radix(&header[6 + index * 8..14 + index * 8], 16);
        let (mode, size, name) = (field(1)?, field(6)? as usize, field(11)? as usize);
        let begin = at + HEADER;
        let data = (begin + name).next_multiple_of(4);
        let path = bytes.get(begin..begin + name - 1).ok_or("the archive is cut off")?;
        let path = std::str::from_utf8(path)?;
        if path == "TRAILER!!!" {
            return Ok(tree);
        }
        let content = bytes.get(data..data + size).ok_or("the archive is cut off")?;
        tree.insert(path.to_owned(), Entry { mode, bytes: content.to_vec() });
        at = (data + size).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpio::Cpio;

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        let mut cpio = Cpio::new(&mut bytes);
        cpio.file("/a/b", 0o755, b"one").expect("memory takes all");
        cpio.link("/c", "a/b").expect("memory takes all");
        cpio.end().expect("memory takes all");
        let tree = read(&*bytes).expect("it is whole");
        let seen: Vec<(&str, u32, &[u8])> =
            tree.iter().map(|(path, entry)| (path.as_str(), entry.mode, &*entry.bytes)).collect();
        let expected: [(&str, u32, &[u8]); 3] =
            [("a", 0o040_755, b""), ("a/b", 0o100_755, b"one"), ("c", 0o120_777, b"a/b")];
        assert_eq!(seen, expected);
        assert!(read(&bytes[..bytes.len() / 2]).is_err());
    }
}
