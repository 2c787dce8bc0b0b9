//! Finds the files of the product that name a word, for what only some of them may use, each for a reason: `unsafe`,
//! because memory is safe if what these files claim is true, and crates whose faults are worked around in one place.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::imports::{roots, sources};

/// The files with `word` of all crates in `folders`, outside of comments, tests and examples. Paths are relative to
/// `project`.
///
/// # Panics
/// If the source cannot be read.
pub fn files_with(word: &str, project: &Path, folders: &[&str]) -> BTreeSet<PathBuf> {
    let files = roots(project, folders);
    let files = files.iter().flat_map(|root| sources(root)).filter(|(_, code)| has_word(code, word));
    files.map(|(file, _)| file.strip_prefix(project).map(Path::to_owned).unwrap_or(file)).collect()
}

/// Whether `code` has the word, and not only as a part of another, as in `unsafe-sysctls`.
fn has_word(code: &str, word: &str) -> bool {
    let is_other = |letter: char| letter.is_alphanumeric() || "_-".contains(letter);
    code.match_indices(word)
        .any(|(at, word)| !code[..at].ends_with(is_other) && !code[at + word.len()..].starts_with(is_other))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folders with the crates of the product.
    const PRODUCT: [&str; 3] = ["board", "rootfs", "runtime"];

    /// The folders with all crates but tests.
    const NO_TESTS: [&str; 4] = ["board", "rootfs", "runtime", "xtask"];

    /// The most files with `unsafe` of all crates but tests.
    const MOST: usize = 15;

    /// The files with `unsafe` of all crates but tests, each with the reason. `xtask/no_unwind.rs` is of no crate: it
    /// stands in for a library of C, and exports its names.
    const FILES: &[(&str, &str)] = &[
        ("board/src/verbs/image.rs", "a handler of signals stops the process that unpacks an image"),
        (
            "runtime/host/src/network/foreign.rs",
            "the tables of iptables are read by socket options that no crate has",
        ),
        ("runtime/kernel/src/bpf.rs", "bpf(2)"),
        ("runtime/kernel/src/file.rs", "name_to_handle_at(2)"),
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
        ("runtime/kernel/src/security.rs", "seccomp(2), landlock(7), keyctl(2)"),
        ("runtime/kernel/src/signal.rs", "actions and masks of signals, real-time ones too"),
        ("runtime/kernel/src/socket.rs", "received descriptors are bare numbers; addresses of links"),
        ("runtime/kernel/src/time.rs", "adjtimex(2), localtime_r(3)"),
        ("runtime/src/built_from.rs", "the list of crates is in a section of the binary by its name"),
        ("runtime/src/handling.rs", "the handler of signals that end an agent by its own fault"),
    ];

    #[test]
    fn unsafe_stands_in_the_files_of_the_table_and_in_no_other() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let found = files_with("unsafe", &project, &NO_TESTS);
        let listed: BTreeSet<PathBuf> = FILES.iter().map(|(file, _)| PathBuf::from(file)).collect();
        let more: Vec<_> = found.difference(&listed).collect();
        assert!(more.is_empty(), "use nodlet-kernel, nix or rustix in {more:?}, or give a reason");
        let gone: Vec<_> = listed.difference(&found).collect();
        assert!(gone.is_empty(), "these files have no unsafe any more: {gone:?}");
        assert!(FILES.len() <= MOST, "unsafe stands in {} files", FILES.len());
    }

    /// Calls that replace a file or wait for a disk.
    const WRITES: [&str; 6] =
        ["fs::rename", "renameat", "renameat_with", "renameat2", "sync_all", "sync_data"];

    /// The files that have such a call and are no part of `nodlet_kernel::durable`, each with the reason.
    const WRITERS: &[(&str, &str)] = &[
        ("board/dist/src/disk.rs", "the files that a developer's machine makes"),
        ("board/dist/src/image.rs", "the files that a developer's machine makes"),
        (
            "board/src/init/partitions.rs",
            "the boot partition is FAT, and a damaged partition's folder is moved",
        ),
        ("board/src/init/partitions/gpt.rs", "sectors of a disk"),
        (
            "board/src/verbs/push/receive/spool.rs",
            "what is received is linked into a folder that nothing keeps",
        ),
        ("runtime/host/src/log_files.rs", "the rotation of a log, beneath a descriptor"),
        ("runtime/host/src/volume/empty_dir.rs", "a directory that appears with its mode"),
        (
            "runtime/host/src/volume/projected.rs",
            "the link of a volume is switched as kubelet's AtomicWriter does",
        ),
        ("runtime/host/src/volume/remove.rs", "deep directories are moved up to be removed"),
        ("runtime/src/api.rs", "a socket that appears once it listens"),
        ("runtime/src/seccomp/table.rs", "a filter of system calls names it"),
    ];

    #[test]
    fn files_are_replaced_by_the_one_module_or_for_a_reason_of_the_table() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found: BTreeSet<PathBuf> =
            WRITES.iter().flat_map(|word| files_with(word, &project, &PRODUCT)).collect();
        found.retain(|file| !file.starts_with("runtime/kernel/src"));
        let listed: BTreeSet<PathBuf> = WRITERS.iter().map(|(file, _)| PathBuf::from(file)).collect();
        let more: Vec<_> = found.difference(&listed).collect();
        assert!(more.is_empty(), "use nodlet_kernel::durable in {more:?}, or give a reason");
        let gone: Vec<_> = listed.difference(&found).collect();
        assert!(gone.is_empty(), "these files replace nothing any more: {gone:?}");
    }

    /// Crates, each with the file or folder that alone names them.
    const CRATES: &[(&str, &str)] = &[
        ("libcontainer", "runtime/supervisor/src/container"),
        ("cgroups_rs", "runtime/host/src/cgroup/controllers"),
    ];

    #[test]
    fn a_crate_with_faults_is_named_in_one_place_only() {
        let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (name, place) in CRATES {
            let found = files_with(name, &project, &PRODUCT);
            let is_inside = |file: &&PathBuf| file.with_extension("").starts_with(place);
            assert!(found.iter().any(|file| is_inside(&file)), "{place} does not name {name}");
            let others: Vec<_> = found.iter().filter(|file| !is_inside(file)).collect();
            assert!(others.is_empty(), "{name} is for {place}, not for {others:?}");
        }
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
            assert_eq!(has_word(code, "unsafe"), expected, "{code}");
        }
    }
}
