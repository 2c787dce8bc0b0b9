//! What process 1 keeps in memory while it waits: its data, which is some pages, and the code of the
//! wait. The rest of nodlet's binary it executes for a moment, twice a minute.

use std::ptr::null_mut;

/// Unmaps the pages of the binary that are only read and executed. Those that process 1 needs at its
/// next wake-up are mapped again then, which takes microseconds and no disk as long as they are in
/// memory; until then the kernel may reuse those that no other process maps.
pub(super) fn release_code() {
    // SAFETY: numbers that the kernel gave this process at its start.
    let (table, count) =
        unsafe { (libc::getauxval(libc::AT_PHDR) as usize, libc::getauxval(libc::AT_PHNUM) as usize) };
    if table == 0 {
        return;
    }
    // SAFETY: the kernel's address of the program headers, which lie in the binary's first segment and
    // are as many as it says; nobody writes to them.
    let headers = unsafe { std::slice::from_raw_parts(table as *const Header, count) };
    // A binary that can lie anywhere says where its table would be without that.
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let shift = own.map_or(0, |own| table.wrapping_sub(own.p_vaddr as usize));
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let begin = shift.wrapping_add(header.p_vaddr as usize) & !(PAGE - 1);
        let length = header.p_memsz as usize;
        // SAFETY: a mapping of a file that this process cannot write to: the kernel reads pages that
        // are used later from the same file. A kernel that does not do it changes nothing.
        unsafe { libc::madvise(null_mut::<libc::c_void>().with_addr(begin), length, libc::MADV_DONTNEED) };
    }
}

/// The smallest page there is; a kernel with larger ones refuses what does not begin with one.
const PAGE: usize = 4096;

#[cfg(target_pointer_width = "64")]
type Header = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type Header = libc::Elf32_Phdr;

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of the files that this process has mapped.
    fn mapped() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc is mounted");
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("it has the line");
        line.trim().trim_end_matches(" kB").parse().expect("it is a number")
    }

    #[test]
    fn code_that_ran_is_unmapped_and_runs_again() {
        let before = mapped();
        release_code();
        let after = mapped();
        assert!(after < before, "{after} of {before} KiB are mapped");
    }
}
