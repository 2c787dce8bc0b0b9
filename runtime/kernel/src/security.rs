//! What a process may do: capabilities, filters of system calls, Landlock, session keyrings, the user that owns its new
//! files.
//!
//! `unsafe`: only those about capabilities are in a crate; the kernel reads structures of the caller.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::errno;

/// seccomp(2): filters the system calls of the calling thread from now on, by a program of classic BPF whose instructions
/// have eight bytes each. It needs `no_new_privs` or CAP_SYS_ADMIN. Allocates nothing.
///
/// # Errors
/// ENOSYS, EINVAL: this kernel is built without CONFIG_SECCOMP_FILTER, or the program is none.
pub fn install_filter<T: Copy>(program: &[T], flags: u32) -> nix::Result<()> {
    const SECCOMP_SET_MODE_FILTER: libc::c_uint = 1;
    const { assert!(size_of::<T>() == size_of::<libc::sock_filter>()) };
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    // SAFETY: the kernel reads one sock_fprog and as many instructions of 8 bytes as it says.
    Errno::result(unsafe {
        libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    })
    .map(drop)
}

/// capget(2): the capabilities that are permitted to the calling thread, as bits.
///
/// # Errors
/// The kernel's.
pub fn permitted_capabilities() -> nix::Result<u64> {
    rustix::thread::capabilities(None).map(|sets| sets.permitted.bits()).map_err(errno)
}

/// capset(2): sets the permitted and effective capabilities of the calling thread to these bits, and clears the inheritable
/// ones.
///
/// # Errors
/// EPERM: one of them is not permitted.
pub fn set_capabilities(wanted: u64) -> nix::Result<()> {
    let (wanted, none) = (CapabilitySet::from_bits_retain(wanted), CapabilitySet::empty());
    let sets = CapabilitySets { effective: wanted, permitted: wanted, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(errno)
}

/// `PR_CAPBSET_DROP`: removes a capability from the bounding set of the calling thread.
///
/// # Errors
/// EINVAL: the kernel knows neither this one nor any after it. EPERM: without CAP_SETPCAP.
pub fn drop_from_bounding_set(number: u8) -> nix::Result<()> {
    let capability = CapabilitySet::from_bits_retain(1 << number);
    rustix::thread::remove_capability_from_bounding_set(capability).map_err(errno)
}

/// keyctl(2): gives the calling process a new session keyring without a name, which its children inherit.
///
/// # Errors
/// ENOSYS: the kernel is built without CONFIG_KEYS. EDQUOT: the real user has as many keys as allowed.
pub fn join_session_keyring() -> nix::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: no name is given.
    Errno::result(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) })
        .map(drop)
}

/// setfsgid(2) and setfsuid(2): new files of the calling thread belong to this user and group. It may lose the capabilities
/// about files, which `capset` brings back.
pub fn set_file_owner(id: u32) {
    // Both return the earlier value.
    let _ = (setfsgid(Gid::from_raw(id)), setfsuid(Uid::from_raw(id)));
}

/// The version of Landlock (landlock(7)).
///
/// # Errors
/// ENOSYS: the kernel does not have it. EOPNOTSUPP: it was turned off when the kernel was started.
pub fn landlock_version() -> nix::Result<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: with this flag nothing is read; the version is returned.
    let version = Errno::result(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, LANDLOCK_CREATE_RULESET_VERSION)
    })?;
    Ok(u32::try_from(version).unwrap_or(1))
}

/// `struct landlock_ruleset_attr` of linux/landlock.h: what a ruleset forbids, as bits.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LandlockAttributes {
    /// `LANDLOCK_ACCESS_FS_*`.
    pub files: u64,
    /// `LANDLOCK_ACCESS_NET_*`, since version 4.
    pub network: u64,
    /// `LANDLOCK_SCOPE_*`, since version 6.
    pub scope: u64,
}

/// A ruleset of Landlock.
pub struct Landlock(OwnedFd);

impl Landlock {
    /// landlock_create_ruleset(2), with the fields that `version` knows.
    ///
    /// # Errors
    /// EINVAL: `version` does not know one of the bits.
    pub fn new(version: u32, attributes: LandlockAttributes) -> nix::Result<Landlock> {
        let size: usize = match version {
            ..4 => 8,
            4..6 => 16,
            6.. => 24,
        };
        // SAFETY: the size is that of the fields that this version has, which the structure has.
        let ruleset = Errno::result(unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size, 0)
        })?;
        // SAFETY: the call has just created the descriptor, and nobody else owns it.
        Ok(Landlock(unsafe { OwnedFd::from_raw_fd(ruleset as RawFd) }))
    }

    /// landlock_add_rule(2): allows this, `LANDLOCK_ACCESS_FS_*`, of what the ruleset forbids, in `parent` and below it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn allow_beneath(&self, parent: BorrowedFd<'_>, allowed: u64) -> nix::Result<()> {
        const RULE_PATH_BENEATH: u32 = 1;
        #[repr(C, packed)]
        struct PathBeneath {
            allowed: u64,
            parent: i32,
        }
        let rule = PathBeneath { allowed, parent: parent.as_raw_fd() };
        // SAFETY: the rule is of the named type, and outlives the call.
        Errno::result(unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.0.as_raw_fd(),
                RULE_PATH_BENEATH,
                &raw const rule,
                0,
            )
        })
        .map(drop)
    }

    /// landlock_restrict_self(2): restricts the calling thread. It needs `no_new_privs` or CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// The kernel's.
    pub fn restrict_self(self) -> nix::Result<()> {
        // SAFETY: takes numbers only.
        Errno::result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0) })
            .map(drop)
    }
}
