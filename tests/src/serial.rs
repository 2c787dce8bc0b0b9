//! [`SerialLine`]: a serial device, and the other end of its line.

use std::ffi::c_char;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::guest::{has_port, port};

// From linux/vt.h.
const VT_OPENQRY: libc::c_ulong = 0x5600;

/// A serial device, and the other end of its line: the USB serial port of a guest, or a virtual terminal of this
/// machine, to which text comes as if it was typed. A pseudo-terminal cannot be one: the kernel opens it by no node but
/// that of its own file system.
pub enum SerialLine {
    /// The port of the guest that is wired to QEMU's USB serial port.
    Usb(File),
    /// A virtual terminal that nobody else had opened, which exists as long as it is open.
    Terminal(File, PathBuf),
}

impl SerialLine {
    /// Finds a free one.
    pub fn open() -> io::Result<SerialLine> {
        if has_port("wire") {
            return Ok(SerialLine::Usb(port("wire")));
        }
        let console = open_terminal(Path::new("/dev/tty0"))?;
        let mut number: libc::c_int = 0;
        // SAFETY: this request writes the number of a free terminal.
        if unsafe { libc::ioctl(console.as_raw_fd(), VT_OPENQRY as _, &raw mut number) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if number < 1 {
            return Err(io::Error::other("all virtual terminals are open"));
        }
        let path = PathBuf::from(format!("/dev/tty{number}"));
        Ok(SerialLine::Terminal(open_terminal(&path)?, path))
    }

    /// The line of a device file that names the device.
    pub fn selector(&self) -> String {
        match self {
            SerialLine::Usb(_) => "usb: {vendor: \"0403\", product: \"6001\"}".to_owned(),
            SerialLine::Terminal(_, path) => format!("path: {}", path.display()),
        }
    }

    /// Sends text to the device, which loses it unless a process has opened the device.
    pub fn send(&mut self, text: &str) -> io::Result<()> {
        match self {
            SerialLine::Usb(port) => port.write_all(text.as_bytes()),
            SerialLine::Terminal(terminal, path) => {
                // The end of a session that the terminal controlled has hung up the files that were open.
                *terminal = open_terminal(path)?;
                text.bytes().try_for_each(|byte| {
                    let byte = byte as c_char;
                    // SAFETY: this request reads one character.
                    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSTI as _, &raw const byte) } {
                        0 => Ok(()),
                        _ => Err(io::Error::last_os_error()),
                    }
                })
            }
        }
    }
}

/// Opens a terminal. It does not become the one that controls this session: the kernel would hang up all of the session,
/// including the agent of `cargo xtask demo --keep`, when its first process ends.
fn open_terminal(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(path)
}
