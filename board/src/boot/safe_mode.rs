//! Safe mode: network and SSH, without agent and pods. [`FILE`] exists while the board is in it.

use std::fs;
use std::path::Path;

use nodlet_kernel::durable::replace_in_memory;
use nodlet_kernel::own_file;

use super::console::say;

/// The file that exists in safe mode. Its one line tells people the reason and how to leave safe mode.
const FILE: &str = "/run/nodlet-init/safe-mode";

/// How to leave safe mode, for people.
const LEAVE: &str = "`nodlet safe-mode --leave` reboots into normal mode";

/// The kernel argument for one boot in safe mode.
pub(crate) const ARGUMENT: &str = "nodlet.safe";

/// The reason for safe mode and how to leave it, for people; `None` if the board is not in safe mode.
pub(crate) fn is_safe() -> Option<String> {
    own_file::read_to_string(Path::new(FILE)).ok().map(|text| text.trim_end().to_owned())
}

/// The file that the SSH server shows before a login, in safe mode.
pub(crate) fn banner() -> Option<&'static str> {
    own_file::open(Path::new(FILE)).is_ok().then_some(FILE)
}

/// Why the board must boot into safe mode; `None` if it must not.
pub(crate) fn reason(crash_loops: u32, reboots: u32, command_line: &str) -> Option<String> {
    if has_argument(command_line) {
        return Some(format!("the kernel argument {ARGUMENT} asks for it"));
    }
    let times =
        if crash_loops == 1 { "one boot".to_owned() } else { format!("{crash_loops} boots in a row") };
    (crash_loops >= reboots).then(|| format!("the agent kept failing in {times}"))
}

fn has_argument(command_line: &str) -> bool {
    command_line.split_ascii_whitespace().any(|word| word == ARGUMENT)
}

/// Whether the kernel's command line requests safe mode.
pub(crate) fn is_requested_by_kernel() -> bool {
    has_argument(&fs::read_to_string("/proc/cmdline").unwrap_or_default())
}

/// Puts the board into safe mode, for the reason `why`.
pub(crate) fn enter(why: &str) {
    let text = format!("this board is in safe mode, without agent and pods, since {why}; {LEAVE}");
    let directory = Path::new(FILE).parent().unwrap_or(Path::new("/"));
    let written =
        fs::create_dir_all(directory).and_then(|()| replace_in_memory(Path::new(FILE), format!("{text}\n")));
    if let Err(error) = written {
        say(format_args!("failed to write {FILE}: {error}"));
    }
    say(format_args!("{text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_mode_is_for_crash_loops_and_for_the_kernel_argument() {
        let argument = "console=ttyS0 nodlet.safe panic=10";
        assert_eq!(reason(2, 3, "console=ttyS0 nodlet.safety"), None);
        assert_eq!(reason(3, 3, "").as_deref(), Some("the agent kept failing in 3 boots in a row"));
        assert_eq!(reason(1, 1, "").as_deref(), Some("the agent kept failing in one boot"));
        assert_eq!(reason(0, 3, argument).as_deref(), Some("the kernel argument nodlet.safe asks for it"));
    }
}
