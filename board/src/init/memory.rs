//! Reduces the memory of process 1 while it waits, to its data (some pages) and the code of the wait. Process
//! 1 executes the rest of nodlet's binary only for a moment, twice a minute.

use std::ptr::null_mut;

/// Unmaps the read-only pages of the binary. At its next wake-up process 1 maps the pages that it needs
/// again, which takes microseconds and no disk access as long as they are in memory. Until then the kernel
/// may reuse those that no other process maps.
pub(super) fn release_code() {
    // SAFETY: reads numbers that the kernel gave this process at its start.
    let (table, count) =
        unsafe { (libc::getauxval(libc::AT_PHDR) as usize, libc::getauxval(libc::AT_PHNUM) as usize) };
    if table == 0 {
        return;
    }
    // SAFETY: the kernel's address and number of the program headers, which are in the binary's first
    // segment; nobody writes to them.
    let headers = unsafe { std::slice::from_raw_parts(table as *const Header, count) };
    // In a position-independent binary, PT_PHDR has the table's address without the load offset.
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let shift = own.map_or(0, |own| table.wrapping_sub(own.p_vaddr as usize));
    for header in headers {
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let begin = shift.wrapping_add(header.p_vaddr as usize) & !(PAGE - 1);
        let length = header.p_memsz as usize;
        // SAFETY: the mapping is of a file that this process cannot write to: the kernel reads pages that are
        // used later from the same file. A kernel that rejects the call changes nothing.
        unsafe { libc::madvise(null_mut::<libc::c_void>().with_addr(begin), length, libc::MADV_DONTNEED) };
    }
}

/// The smallest page size. A kernel with larger pages rejects an address that does not begin one.
const PAGE: usize = 4096;

#[cfg(target_pointer_width = "64")]
type Header = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
type Header = libc::Elf32_Phdr;

#[cfg(test)]
mod tests {
    use super::*;

    /// The resident file mappings of this process, in KiB.
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
