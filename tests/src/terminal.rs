//! Runs a command on a pseudo-terminal: for `exec -it`, and for output that differs on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};

/// The deadline, as of [`crate::Device::wait_for`].
const DEADLINE: Duration = Duration::from_secs(if cfg!(target_arch = "x86_64") { 60 } else { 240 });

/// A running command and everything that it has shown. It is killed on drop.
pub struct Terminal {
    child: Child,
    screen: Arc<Mutex<Vec<u8>>>,
    /// The thread that reads everything that is shown.
    reader: JoinHandle<()>,
    keyboard: File,
}

impl Terminal {
    /// Starts the command on a terminal of 100 columns and 30 rows.
    pub fn start(mut command: Command) -> Self {
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("the machine has terminals to give");
        let slave = File::from(pair.slave);
        let stdio = || slave.try_clone().expect("a descriptor can be copied");
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: setsid and the ioctl are async-signal-safe; descriptor 0 is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            });
        }
        let child = command.spawn().expect("the command can be started");
        // Otherwise copies would stay open, and the end of the command would not be noticed.
        drop((command, slave));
        let keyboard = File::from(pair.master);
        let mut output = keyboard.try_clone().expect("a descriptor can be copied");
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shown = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The kernel may return EIO once before the last output: see `nodlet_host::terminal`.
            while let Ok(count @ 1..) = output.read(&mut bytes).or_else(|_| output.read(&mut bytes)) {
                shown.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..count]);
            }
        });
        Self { child, screen, reader, keyboard }
    }

    /// Everything that was shown so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// The process ID of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The master end of the terminal.
    pub fn keyboard(&self) -> impl std::os::fd::AsFd {
        &self.keyboard
    }

    /// Types this text.
    pub fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("the terminal is open");
    }

    /// Changes the size of the window.
    pub fn resize(&self, columns: u16, rows: u16) {
        use std::os::fd::AsRawFd;
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: TIOCSWINSZ reads one winsize, and `size` is one that lives through the call.
        let done = unsafe { libc::ioctl(self.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(done, 0, "a terminal has a size");
    }

    /// Waits until this text was shown.
    #[track_caller]
    pub fn wait_for(&self, text: &str) {
        let until = Instant::now() + DEADLINE;
        while !self.screen().contains(text) {
            assert!(Instant::now() < until, "waited in vain for {text:?}; shown was:\n{}", self.screen());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the command ends, and returns its exit code. The screen then has all of its output.
    #[track_caller]
    pub fn ended(&mut self) -> i32 {
        let until = Instant::now() + DEADLINE;
        loop {
            let status = self.child.try_wait().expect("a child can be waited for");
            if let Some(status) = status.filter(|_| self.reader.is_finished()) {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < until, "the command does not end; shown was:\n{}", self.screen());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_sees_a_terminal_and_its_end_is_seen() {
        let mut command = Command::new("sh");
        command.args(["-c", "test -t 0 && stty size && read line && echo got $line && exit 3"]);
        let mut terminal = Terminal::start(command);
        terminal.wait_for("30 100");
        terminal.type_in("word\r");
        terminal.wait_for("got word");
        assert_eq!(terminal.ended(), 3);
    }
}
