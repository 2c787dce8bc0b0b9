//! Finds the files with `unsafe` outside of tests: memory is safe if what these few files say is true, so that each has a
//! reason in the table of this module.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::imports::{roots, sources};

/// The files with `unsafe` of all crates in `folders`, outside of their tests and examples. Paths are relative to `project`.
///
/// # Panics
/// If the source cannot be read.
pub fn with_unsafe(project: &Path, folders: &[&str]) -> BTreeSet<PathBuf> {
    let files = roots(project, folders);
    let files = files.iter().flat_map(|root| sources(root)).filter(|(_, code)| has_unsafe(code));
    files.map(|(file, _)| file.strip_prefix(project).map(Path::to_owned).unwrap_or(file)).collect()
}

/// Whether `code` has the word, and not only as a part of another, as in `unsafe-sysctls`.
fn has_unsafe(code: &str) -> bool {
    let is_other = |letter: char| letter.is_alphanumeric() || "_-".contains(letter);
    code.match_indices("unsafe")
        .any(|(at, word)| !code[..at].ends_with(is_other) && !code[at + word.len()..].starts_with(is_other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most files of the product with `unsafe`.
    const MOST: usize = 15;

    /// The files of the product with `unsafe`, each with the reason.
    const FILES: &[(&str, &str)] = &[
        ("board/src/verbs/image.rs", "a handler of signals stops the process that unpacks an image"),
        (
            "runtime/host/src/network/foreign.rs",
            "the tables of iptables are read by socket options that no crate has",
        ),
        ("runtime/kernel/src/bpf.rs", "bpf(2)"),
        ("runtime/kernel/src/file.rs", "preadv2(2) from the page cache, name_to_handle_at(2)"),
        (
            "runtime/kernel/src/ioctl.rs",
            "requests of loop devices, file attributes, disks and watchdogs; quotactl_fd(2)",
        ),
        ("runtime/kernel/src/memory.rs", "mmap(2) of what processes share, madvise(2) of the binary"),
        ("runtime/kernel/src/mount.rs", "mount_setattr(2)"),
        (
            "runtime/kernel/src/process.rs",
            "fork(2), clone3(2), waitid(2), descriptors by number, code before exec",
        ),
        ("runtime/kernel/src/security.rs", "seccomp(2), landlock(7), keyctl(2), setfsuid(2)"),
        ("runtime/kernel/src/signal.rs", "actions and masks of signals, real-time ones too"),
        ("runtime/kernel/src/socket.rs", "received descriptors are bare numbers; addresses of links"),
        ("runtime/kernel/src/time.rs", "adjtimex(2), localtime_r(3)"),
        ("runtime/src/built_from.rs", "the list of crates is in a section of the binary by its name"),
        ("runtime/src/handling.rs", "the handler of signals that end an agent by its own fault"),
    ];

    #[test]
    fn unsafe_stands_in_the_files_of_the_table_and_in_no_other() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = with_unsafe(&project, &["board", "rootfs", "runtime"]);
        let listed: BTreeSet<PathBuf> = FILES.iter().map(|(file, _)| PathBuf::from(file)).collect();
        let more: Vec<_> = found.difference(&listed).collect();
        assert!(more.is_empty(), "use nodlet-kernel, nix or rustix in {more:?}, or give a reason");
        let gone: Vec<_> = listed.difference(&found).collect();
        assert!(gone.is_empty(), "these files have no unsafe any more: {gone:?}");
        assert!(FILES.len() <= MOST, "unsafe stands in {} files", FILES.len());
    }

    #[test]
    fn the_word_counts_and_not_a_part_of_another() {
        for (code, expected) in [
            ("let x = unsafe { f() };", true),
            ("#[unsafe(link_section = \"x\")]", true),
            ("pub unsafe fn f() {}", true),
            ("\"--allowed-unsafe-sysctls\" => {", false),
            ("mod unsafety;", false),
        ] {
            assert_eq!(has_unsafe(code), expected, "{code}");
        }
    }
}
