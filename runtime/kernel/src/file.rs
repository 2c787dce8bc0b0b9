//! Files and paths: opened with an owner, below a directory, only in the page cache, or by a handle.
//!
//! `unsafe`: name_to_handle_at(2) with its flags is in no crate; it writes into memory of the caller.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::stat::Mode;
use rustix::io::ReadWriteFlags;
use rustix::path::Arg;

use crate::errno;

/// The most attempts of [`undisturbed`]. A process that does nothing but rename disturbs about one attempt in three.
const ATTEMPTS: usize = 256;

/// Repeats an openat2(2) while it returns EAGAIN. With `RESOLVE_BENEATH` or `RESOLVE_IN_ROOT`, the kernel gives up at each
/// `..`, also of a link, if anything on the machine is renamed or mounted at the same moment, which a container does as it
/// likes.
fn undisturbed<T>(mut call: impl FnMut() -> nix::Result<T>) -> nix::Result<T> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(Errno::EAGAIN) => std::thread::yield_now(),
            answer => return answer,
        }
    }
    call()
}

fn mode(mode: Mode) -> rustix::fs::Mode {
    rustix::fs::Mode::from_raw_mode(mode.bits())
}

fn flags(flags: OFlag) -> rustix::fs::OFlags {
    rustix::fs::OFlags::from_bits_retain(flags.bits().cast_unsigned()) | rustix::fs::OFlags::CLOEXEC
}

/// open(2), always with `O_CLOEXEC`. Unlike `OpenOptions` with musl, whose `O_ACCMODE` contains `O_PATH`, it keeps that
/// flag: such a file is opened only to name it, which triggers no device, waits for no FIFO, and works for a socket.
///
/// # Errors
/// The kernel's.
pub fn open(path: impl Arg, how: OFlag) -> nix::Result<OwnedFd> {
    rustix::fs::open(path, flags(how), rustix::fs::Mode::empty()).map_err(errno)
}

/// openat(2), always with `O_CLOEXEC`.
///
/// # Errors
/// The kernel's.
pub fn open_at(directory: impl AsFd, path: impl Arg, how: OFlag) -> nix::Result<OwnedFd> {
    create_at(directory, path, how, Mode::empty())
}

/// openat(2) as [`open_at`], which gives a file that it creates (`O_CREAT`) this mode.
///
/// # Errors
/// The kernel's.
pub fn create_at(directory: impl AsFd, path: impl Arg, how: OFlag, new: Mode) -> nix::Result<OwnedFd> {
    rustix::fs::openat(directory, path, flags(how), mode(new)).map_err(errno)
}

/// openat2(2), always with `O_CLOEXEC`: opens `path` as `resolve` says, and not outside of `directory`.
///
/// # Errors
/// The kernel's; EAGAIN only if all of 256 attempts were disturbed by renames and mounts elsewhere on the machine.
pub fn open_in(
    directory: impl AsFd,
    path: impl Arg,
    how: OFlag,
    resolve: ResolveFlag,
) -> nix::Result<OwnedFd> {
    create_in(directory, path, how, Mode::empty(), resolve)
}

/// openat2(2) as [`open_in`], which gives a file that it creates (`O_CREAT`) this mode.
///
/// # Errors
/// As [`open_in`].
pub fn create_in(
    directory: impl AsFd,
    path: impl Arg,
    how: OFlag,
    new: Mode,
    resolve: ResolveFlag,
) -> nix::Result<OwnedFd> {
    let directory = directory.as_fd();
    let resolve = rustix::fs::ResolveFlags::from_bits_retain(resolve.bits());
    let opened = path.into_with_c_str(|path| {
        Ok(undisturbed(|| {
            rustix::fs::openat2(directory, path, flags(how), mode(new), resolve).map_err(errno)
        }))
    });
    opened.map_err(errno)?
}

/// Opens a path below `root` for reading as if `root` were `/`, so that no link leads out.
///
/// # Errors
/// As [`open_in`].
pub fn open_in_root(root: impl AsFd, path: impl Arg) -> nix::Result<OwnedFd> {
    // Without O_NONBLOCK, opening a fifo would wait for a writer.
    let how = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    open_in(root, path, how, ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}

/// preadv2(2) with `RWF_NOWAIT`: reads only bytes that are in the page cache.
///
/// # Errors
/// EAGAIN: the read would wait for the device. EOPNOTSUPP: the file system cannot know. EINVAL, ENOSYS: the kernel does not
/// support the flag.
pub fn read_cached(file: BorrowedFd<'_>, block: &mut [u8], position: u64) -> io::Result<usize> {
    let mut pieces = [IoSliceMut::new(block)];
    Ok(rustix::io::preadv2(file, &mut pieces, position, ReadWriteFlags::NOWAIT)?)
}

/// `struct file_handle` of linux/fcntl.h, with room for the largest one.
#[repr(C)]
struct Handle {
    size: u32,
    kind: i32,
    bytes: [u8; 128],
}

/// name_to_handle_at(2): the type of the handle of the file at `path`, whose last link is followed.
///
/// # Errors
/// The kernel's: EOPNOTSUPP if the file system has no handles.
pub fn handle_type(path: &Path, flags: i32) -> nix::Result<i32> {
    let mut handle = Handle { size: 128, kind: 0, bytes: [0; 128] };
    let mut mount: libc::c_int = 0;
    let flags = libc::AT_SYMLINK_FOLLOW | flags;
    // SAFETY: a path that ends with NUL, a structure with as much room as it says, and room for a number.
    let result = path.with_nix_path(|path| unsafe {
        let (handle, mount) = (&raw mut handle, &raw mut mount);
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, path.as_ptr(), handle, mount, flags)
    })?;
    Errno::result(result)?;
    Ok(handle.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_call_is_repeated_up_to_a_bound_and_others_are_not() {
        let calls = |disturbed: usize, answer: Result<u8, Errno>| {
            let mut calls = 0;
            let got = undisturbed(|| {
                calls += 1;
                if calls > disturbed { answer } else { Err(Errno::EAGAIN) }
            });
            (calls, got)
        };
        assert_eq!(calls(0, Ok(1)), (1, Ok(1)));
        assert_eq!(calls(7, Ok(1)), (8, Ok(1)));
        assert_eq!(calls(7, Err(Errno::ENOENT)), (8, Err(Errno::ENOENT)));
        assert_eq!(calls(1_000, Ok(1)), (ATTEMPTS, Err(Errno::EAGAIN)));
    }
}
