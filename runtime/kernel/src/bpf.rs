//! Loads and attaches eBPF programs. The programs are written by hand, instruction by instruction: each is a
//! list of comparisons, and a loader library would be larger.
//!
//! `unsafe`: bpf(2) is in no crate that is linked; the kernel reads and writes structures of the caller.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// From linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_DETACH: libc::c_long = 9;
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_PROG_QUERY: libc::c_long = 16;

/// BPF_ALU | BPF_MOV | BPF_K
pub const MOVE: u8 = 0xb4;
/// BPF_JMP | BPF_EXIT
pub const EXIT: u8 = 0x95;

/// The part of the kernel's `bpf_attr` that `BPF_PROG_LOAD` reads.
#[repr(C)]
struct Load {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}

/// The part of the kernel's `bpf_attr` that `BPF_PROG_ATTACH` reads.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// The part of the kernel's `bpf_attr` that `BPF_PROG_QUERY` reads and writes. Linux since 6.6 writes the
/// revision whatever the size of the structure: without that field it would overwrite the memory behind it.
#[repr(C)]
#[derive(Default)]
struct Query {
    target: u32,
    kind: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    reserved: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// # Safety
/// `attributes` must be what `command` reads, with valid pointers and descriptors.
unsafe fn bpf<T>(command: libc::c_long, attributes: *const T) -> io::Result<i32> {
    // SAFETY: the size tells the kernel how much to read; the rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Loads a program of the type `kind`, a `BPF_PROG_TYPE_*`.
///
/// # Errors
/// The kernel's: EPERM without CAP_BPF; EINVAL if the verifier rejects the program.
pub fn load(kind: u32, program: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = Load {
        kind,
        instruction_count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
    };
    // SAFETY: `Load` is the start of bpf_attr for this command; the program and
    // the license outlive the call, and the count is the slice's own.
    let descriptor = unsafe { bpf(BPF_PROG_LOAD, &raw const attributes) }?;
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Attaches a program to `target`, a descriptor or the index of a link, at the attach point `kind`. The
/// target keeps the program after the descriptor is closed.
///
/// # Errors
/// The kernel's.
pub fn attach(target: u32, program: &OwnedFd, kind: u32, flags: u32) -> io::Result<()> {
    let attributes = Attach { target, program: program.as_raw_fd().cast_unsigned(), kind, flags };
    // SAFETY: `Attach` is the start of the kernel's bpf_attr for this command,
    // lives through the call, and its descriptors are open.
    unsafe { bpf(BPF_PROG_ATTACH, &raw const attributes) }.map(drop)
}

/// The ids of the programs that are attached to `target` itself at the attach point `kind`; at most 64.
///
/// # Errors
/// The kernel's.
pub fn attached(target: u32, kind: u32) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; 64];
    let (programs, count) = (ids.as_mut_ptr() as u64, ids.len() as u32);
    let mut attributes = Query { target, kind, programs, count, ..Query::default() };
    // SAFETY: `Query` is all of the kernel's bpf_attr for this command; it and the `count` numbers at
    // `programs` live through the call.
    unsafe { bpf(BPF_PROG_QUERY, &raw mut attributes) }?;
    Ok(ids.into_iter().take(attributes.count as usize).collect())
}

/// Detaches the program with this id from `target`.
///
/// # Errors
/// The kernel's.
pub fn detach(target: u32, id: u32, kind: u32) -> io::Result<()> {
    // The part of bpf_attr for BPF_PROG_GET_FD_BY_ID: the id, and nothing.
    let by_id = [id, 0, 0];
    // SAFETY: the array lives through the call, and is what the command reads.
    let program = unsafe { bpf(BPF_PROG_GET_FD_BY_ID, &raw const by_id) }?;
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    let attributes = Attach { target, program: program.as_raw_fd().cast_unsigned(), kind, flags: 0 };
    // SAFETY: `Attach` is the start of the kernel's bpf_attr for this command too,
    // lives through the call, and its descriptors are open.
    unsafe { bpf(BPF_PROG_DETACH, &raw const attributes) }.map(drop)
}

/// Whether this kernel can attach programs to `target` at the attach point `kind`.
pub fn can_attach(target: u32, kind: u32) -> bool {
    let mut attributes = Query { target, kind, ..Query::default() };
    // SAFETY: `Query` is all of the kernel's bpf_attr for this command and lives through the
    // call; with room for no program the kernel counts them, into `attributes` alone.
    unsafe { bpf(BPF_PROG_QUERY, &raw mut attributes) }.is_ok()
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The code, such as [`MOVE`] or [`EXIT`].
    pub operation: u8,
    /// Destination register in the low half, source register in the high one.
    pub registers: u8,
    /// Of a jump, in instructions; of a load or store, in bytes.
    pub offset: i16,
    /// The constant operand.
    pub immediate: i32,
}

/// An instruction with the registers `to` and `from`.
pub const fn instruction(operation: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    // struct bpf_insn is a bit field: the order of the halves follows the byte order.
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    Instruction { operation, registers, offset, immediate }
}

#[cfg(test)]
mod tests {
    use super::*;

    // From linux/bpf.h.
    const BPF_TCX_INGRESS: u32 = 46;

    #[test]
    fn the_kernel_writes_into_a_query_and_nothing_behind_it() {
        #[repr(C)]
        struct Guarded {
            query: Query,
            behind: [u64; 32],
        }
        // lo is the first link of every network namespace.
        let query = Query { target: 1, kind: BPF_TCX_INGRESS, ..Query::default() };
        let mut guarded = Guarded { query, behind: [u64::MAX; 32] };
        // SAFETY: as in `can_attach`; the size is that of the query.
        let asked = unsafe { bpf(BPF_PROG_QUERY, (&raw mut guarded).cast::<Query>()) };
        assert_eq!(guarded.behind, [u64::MAX; 32]);
        assert!(asked.is_ok() && guarded.query.revision > 0, "{asked:?}: no test on a Linux before 6.6");
    }
}
