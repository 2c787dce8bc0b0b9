//! [`LoopDevice`]: a block device with the content of a file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

// From linux/loop.h.
const LOOP_SET_FD: libc::c_ulong = 0x4c00;
const LOOP_CLR_FD: libc::c_ulong = 0x4c01;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;

/// A block device with the content of a file, until it is dropped.
pub struct LoopDevice(String);

fn request(of: &File, request: libc::c_ulong, argument: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: these requests take a number, and no pointer.
    match unsafe { libc::ioctl(of.as_raw_fd(), request as _, argument) } {
        result if result < 0 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

impl LoopDevice {
    /// Makes a device over a file.
    pub fn attach(file: &Path) -> LoopDevice {
        let file = OpenOptions::new().read(true).write(true).open(file).expect("the file can be opened");
        let control = File::open("/dev/loop-control").expect("the kernel has loop devices");
        // Somebody else may take a free device first.
        loop {
            let number = request(&control, LOOP_CTL_GET_FREE, 0).expect("a device is free");
            let path = format!("/dev/loop{number}");
            let device = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
            match request(&device, LOOP_SET_FD, file.as_raw_fd()) {
                Ok(_) => return LoopDevice(path),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => panic!("{path}: {error}"),
            }
        }
    }

    /// The path of the device's node.
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = File::open(&self.0).and_then(|device| request(&device, LOOP_CLR_FD, 0));
        if let Err(error) = detached {
            eprintln!("{} stays: {error}", self.0);
        }
    }
}
