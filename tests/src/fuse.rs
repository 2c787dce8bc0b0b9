//! A file system in user space with one file in its root. The protocol is that of `linux/fuse.h`.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use nix::mount::{MsFlags, mount as mount_at};

/// The most bytes of a write.
const WRITE: u32 = 128 << 10;

/// Bytes of a request; the kernel asks for room for a page more than a write has.
const REQUEST: usize = WRITE as usize + (8 << 10);

/// Bytes before the body of a request.
const HEADER: usize = 40;

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

/// The number of the one file.
pub(crate) const FILE: u64 = 2;

/// Requests, as `enum fuse_opcode` numbers them.
pub(crate) mod ask {
    pub(crate) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
}

/// What answers the requests of the kernel.
pub(crate) trait Answers: Send + Sync + 'static {
    /// The body of the reply to a request with this body, for the node with this number.
    fn answer(&self, opcode: u32, node: u64, body: &[u8]) -> Result<Vec<u8>, nix::Error>;
}

/// Mounts a file system at `path`, and answers until it is unmounted everywhere.
pub(crate) fn mount(path: &Path, answers: Arc<dyn Answers>) {
    let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("the kernel has FUSE");
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
    mount_at(Some("nodlet-tests"), path, Some("fuse"), MsFlags::empty(), Some(&*options))
        .expect("root can mount");
    thread::spawn(move || serve(fuse, &*answers));
}

fn serve(mut fuse: File, answers: &dyn Answers) {
    let mut request = vec![0; REQUEST];
    loop {
        let Ok(size) = fuse.read(&mut request) else { return };
        let number = |at: usize| u64::from_le_bytes(request[at..at + 8].try_into().expect("eight bytes"));
        let opcode = (number(0) >> 32) as u32;
        let body = &request[HEADER..size];
        if [ask::FORGET, ask::BATCH_FORGET, ask::INTERRUPT].contains(&opcode) {
            continue;
        }
        let (error, data) = match answers.answer(opcode, number(16), body) {
            Ok(data) => (0, data),
            Err(errno) => (-(errno as i32), Vec::new()),
        };
        let mut reply = Vec::new();
        reply.extend((16 + data.len() as u32).to_le_bytes());
        reply.extend(error.to_le_bytes());
        reply.extend(number(8).to_le_bytes());
        reply.extend(data);
        // The reader may have died.
        let _ = fuse.write_all(&reply);
    }
}

/// `struct fuse_init_out` of protocol 7.31, without anything that may be left out.
pub(crate) fn greeting() -> Vec<u8> {
    let mut greeting = [7_u32, 31, 0, 0, 0, WRITE, 1].map(u32::to_le_bytes).concat();
    greeting.resize(64, 0);
    greeting
}

/// `struct fuse_entry_out` of a node, which must not be cached.
pub(crate) fn entry(node: u64, attributes: &[u8]) -> Vec<u8> {
    let mut entry = [node, 0, 0, 0, 0].map(u64::to_le_bytes).concat();
    entry.extend(attributes);
    entry
}

/// `struct fuse_attr_out`, which must not be cached.
pub(crate) fn kept(attributes: &[u8]) -> Vec<u8> {
    [&[0; 16], attributes].concat()
}

/// `struct fuse_open_out` with `FOPEN_DIRECT_IO`: the kernel keeps no pages.
pub(crate) fn opened() -> Vec<u8> {
    [0_u64, 1].map(u64::to_le_bytes).concat()
}

/// `struct fuse_attr`.
pub(crate) fn attributes(node: u64, size: u64, mode: u32, time: u64) -> Vec<u8> {
    let mut attributes = [node, size, 0, time, time, time].map(u64::to_le_bytes).concat();
    attributes.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat());
    attributes
}
