//! [`View`]: files and a clock that an agent sees differently from the machine, in namespaces of its own. The
//! machine's own stay unchanged.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::mount::{MsFlags, mount};

/// From linux/sched.h.
const CLONE_NEWTIME: libc::c_int = 0x80;

#[derive(Default)]
pub(crate) struct View {
    /// The files that are shown, and the paths at which they appear.
    files: Vec<(CString, CString)>,
    /// The clock's offset, in the format of /proc/self/timens_offsets.
    clock: Option<String>,
}

impl View {
    /// Shows a file or directory in place of another one.
    pub(crate) fn file(mut self, shown: &Path, place: &str) -> View {
        let shown = CString::new(shown.as_os_str().as_bytes()).expect("a path has no NUL");
        self.files.push((shown, CString::new(place).expect("a path has no NUL")));
        self
    }

    /// Shows a CLOCK_MONOTONIC that reads `seconds`, if a process can change its own time namespace (Linux
    /// 6.3; before, only its children could be in a new one).
    pub(crate) fn clock(mut self, seconds: i64) -> View {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        if (numbers.next(), numbers.next()) >= (Some(6), Some(3)) && Path::new("/proc/self/ns/time").exists()
        {
            let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
            // The time is 32 bits wide on 32-bit ARM.
            let now = now.expect("every kernel has this clock").tv_sec() as i64;
            self.clock = Some(format!("monotonic {} 0\n", seconds.min(now) - now));
        }
        self
    }

    /// Makes the command run with this view. An empty view needs no namespaces.
    pub(crate) fn give_to(self, command: &mut Command) {
        if self.files.is_empty() && self.clock.is_none() {
            return;
        }
        // SAFETY: between fork and exec only system calls are made; all memory that they need is allocated.
        unsafe { command.pre_exec(move || self.begin()) };
    }

    fn begin(&self) -> io::Result<()> {
        let clock = if self.clock.is_some() { CLONE_NEWTIME } else { 0 };
        // SAFETY: no pointers.
        if unsafe { libc::unshare(libc::CLONE_NEWNS | clock) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, c"/", none, private, none)?;
        if let Some(offsets) = &self.clock {
            fs::write("/proc/self/timens_offsets", offsets)?;
        }
        for (shown, place) in &self.files {
            mount(Some(shown.as_c_str()), place.as_c_str(), none, MsFlags::MS_BIND, none)?;
        }
        Ok(())
    }
}
