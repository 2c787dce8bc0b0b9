//! The console, on which process 1 and its children report.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::termios::{InputFlags, SetArg, tcsetattr};
use nodlet_kernel::process::kept;

/// The descriptor that `say` writes to: standard error until [`take_console`].
static CONSOLE: AtomicI32 = AtomicI32::new(libc::STDERR_FILENO);

/// Writes a line to the console. A missing or blocked console is ignored.
pub(crate) fn say(text: std::fmt::Arguments<'_>) {
    use std::fmt::Write as _;
    let mut line = heapless::String::<512>::new();
    let _ = write!(line, "nodlet init: ");
    let mut cut = Cut(&mut line);
    let _ = cut.write_fmt(text);
    let _ = line.push('\n');
    // Standard error, or the descriptor that `take_console` opened; neither is closed while `CONSOLE` names it.
    let _ = nix::unistd::write(kept(CONSOLE.load(Ordering::Relaxed)), line.as_bytes());
}

/// Makes `say` write to standard error: the calling child closes the other descriptors of process 1.
pub(crate) fn leave_console() {
    CONSOLE.store(libc::STDERR_FILENO, Ordering::Relaxed);
}

/// Makes the console the three standard streams of the calling process. Ctrl-S, or noise that looks like it,
/// must not stop the console: every writer would wait. `say` writes to the console by a descriptor of its
/// own, which never blocks.
pub(crate) fn take_console() -> io::Result<()> {
    let console = std::fs::OpenOptions::new().read(true).write(true).open("/dev/console")?;
    if let Ok(mut settings) = nix::sys::termios::tcgetattr(&console) {
        settings.input_flags.remove(InputFlags::IXON);
        let _ = tcsetattr(&console, SetArg::TCSANOW, &settings);
    }
    for stream in 0..3 {
        nix::unistd::dup2(console.as_raw_fd(), stream)?;
    }
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
    let own = std::fs::OpenOptions::new().write(true).custom_flags(flags).open("/dev/console")?;
    CONSOLE.store(own.into_raw_fd(), Ordering::Relaxed);
    Ok(())
}

/// A writer that truncates a text to the space left, minus one place for the end of the line.
struct Cut<'a>(&'a mut heapless::String<512>);

impl std::fmt::Write for Cut<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        // Keep one place for the end of the line.
        let room = self.0.capacity().saturating_sub(1).saturating_sub(self.0.len());
        let _ = self.0.push_str(text.get(..text.floor_char_boundary(room)).unwrap_or_default());
        Ok(())
    }
}
