//! The capabilities of the calling process.

use std::io;

use super::check;

/// Makes new files belong to this user and group of the host; the calling process keeps its capabilities.
pub(crate) fn set_file_owner(id: u32) -> io::Result<()> {
    // SAFETY: no pointers. Both return the earlier value.
    unsafe {
        libc::setfsgid(id);
        libc::setfsuid(id);
    }
    set_capabilities(own_capabilities(u64::MAX)?)
}

/// `struct __user_cap_header_struct` of capget(2).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`; version 3 has two of them.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// `_LINUX_CAPABILITY_VERSION_3`, of the calling thread.
const CAPABILITIES_OF_CALLER: CapabilityHeader = CapabilityHeader { version: 0x2008_0522, pid: 0 };

/// The capabilities among `wanted` that are permitted to the calling process, as bits: a process cannot pass on others.
/// One that is not in its bounding set is among them, and is lost where the program is executed.
pub(crate) fn own_capabilities(wanted: u64) -> io::Result<u64> {
    let mut header = CAPABILITIES_OF_CALLER;
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: the kernel's own structures; it writes one header, and two halves.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) })?;
    let permitted = u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32;
    Ok(permitted & wanted)
}

/// Removes a capability from the bounding set of the calling process.
///
/// # Errors
/// EINVAL: the kernel knows neither this one nor any after it.
pub(crate) fn drop_from_bounding_set(number: u8) -> io::Result<()> {
    let number = libc::c_ulong::from(number);
    // SAFETY: no pointers.
    let dropped = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, number, 0, 0, 0) };
    if dropped == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets the permitted and effective capabilities to the bits `wanted`, and clears the inheritable ones.
pub(crate) fn set_capabilities(wanted: u64) -> io::Result<()> {
    let header = CAPABILITIES_OF_CALLER;
    let half = |bits: u64| CapabilityData { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
    let data = [half(wanted), half(wanted >> 32)];
    // SAFETY: the kernel's own structures: version 3 has two halves.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}
