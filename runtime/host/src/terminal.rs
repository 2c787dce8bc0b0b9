//! The master end of a terminal, as its reader sees it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Reads from a pipe or the master of a terminal. After the slave was closed by its last process, the master returns
/// EIO, in rare cases before the last output: the kernel tests first for output and then for the close, and both may
/// happen in between. A second read returns that output.
pub fn read(from: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let fd = from.as_fd().as_raw_fd();
    let read = nix::unistd::read(fd, buffer).or_else(|error| match error {
        nix::errno::Errno::EIO => nix::unistd::read(fd, buffer),
        error => Err(error),
    });
    Ok(read?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn all_output_of_a_terminal_is_read_before_its_end() {
        let line = "a line that is written at once\n".repeat(60);
        for _ in 0..300 {
            let pair = nix::pty::openpty(None, None).unwrap();
            let (mut slave, text) = (std::fs::File::from(pair.slave), line.clone());
            let writer = std::thread::spawn(move || slave.write_all(text.as_bytes()).unwrap());
            let (mut bytes, mut seen) = ([0; 4096], 0);
            let end = loop {
                match read(&pair.master, &mut bytes) {
                    Ok(count) => seen += count,
                    Err(error) => break error,
                }
            };
            writer.join().unwrap();
            // The terminal ends each line with a carriage return, too.
            assert_eq!((seen, end.raw_os_error()), (line.len() + 60, Some(nix::libc::EIO)));
        }
    }
}
