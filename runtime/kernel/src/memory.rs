//! Memory that processes share, and the memory of the binary itself.
//!
//! `unsafe`: mmap(2) and madvise(2) are unsafe in every crate, since most of their uses are.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// A type that is valid whatever other processes store in its memory: atomic integers, and arrays and structures of them.
/// [`shared!`](crate::shared) implements it.
///
/// # Safety
/// Any bytes are a valid value, and all of them can be changed through a shared reference.
pub unsafe trait Shared: Sync {}

// SAFETY: any bytes are an integer.
unsafe impl Shared for AtomicU8 {}
// SAFETY: any bytes are an integer.
unsafe impl Shared for AtomicU32 {}
// SAFETY: any bytes are an integer.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an array has nothing but its elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// Declares a structure in the layout of C, all of whose fields are [`Shared`], as it is then too.
#[macro_export]
macro_rules! shared {
    ($(#[$meta:meta])* $visibility:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[repr(C)]
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $type,)*
        }

        // SAFETY: each field is, and the bytes between them are never read.
        unsafe impl $crate::memory::Shared for $name where $($type: $crate::memory::Shared,)* {}
    };
}

/// A value in memory that other processes can map too. Dropping it unmaps it here.
pub struct Mapping<T: Shared>(NonNull<T>);

// SAFETY: it is a shared reference to what is `Sync`.
unsafe impl<T: Shared> Send for Mapping<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Mapping<T> {}

impl<T: Shared> Mapping<T> {
    /// mmap(2) of the beginning of a file, which must stay as long as `T` is: who shortens it ends this process by SIGBUS.
    ///
    /// # Errors
    /// The kernel's. EINVAL: the file is shorter than `T`.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Mapping<T>> {
        let length = rustix::fs::fstat(file)?.st_size;
        if u64::try_from(length).unwrap_or(0) < size_of::<T>() as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Mapping::map(libc::MAP_SHARED, file.as_raw_fd())
    }

    /// mmap(2) of new memory, all zero, which processes share that are forked later.
    ///
    /// # Errors
    /// The kernel's.
    pub fn anonymous() -> io::Result<Mapping<T>> {
        Mapping::map(libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1)
    }

    fn map(flags: libc::c_int, file: libc::c_int) -> io::Result<Mapping<T>> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel has room.
        let address = unsafe { libc::mmap(null_mut(), size_of::<T>(), access, flags, file, 0) };
        match NonNull::new(address) {
            Some(address) if address.as_ptr() != libc::MAP_FAILED => Ok(Mapping(address.cast())),
            Some(_) | None => Err(io::Error::last_os_error()),
        }
    }

    /// Keeps it mapped until the process ends.
    pub fn leak(self) -> &'static T {
        // SAFETY: as in `deref`; it is never unmapped.
        let value = unsafe { self.0.as_ref() };
        std::mem::forget(self);
        value
    }
}

impl<T: Shared> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped as long as this is there, aligned to a page, and as large as `T`, for which whatever others store
        // is a valid value.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Shared> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which no reference is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

impl<T: Shared> fmt::Debug for Mapping<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mapping").field(&self.0).finish()
    }
}

/// Unmaps the read-only pages of the binary. At its next wake-up process 1 maps the pages that it needs
/// again, which takes microseconds and no disk access as long as they are in memory. Until then the kernel
/// may reuse those that no other process maps.
pub fn release_code() {
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
