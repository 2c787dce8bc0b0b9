//! Prints an error with its causes, and adds advice if the kernel's error number alone suggests it.

use std::error::Error;
use std::io;

pub use nodlet_core::error::causes;

/// The texts of `error` and its causes, joined by `: `, and advice. Each `Display` omits its cause.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = causes(error);
    let mut last = error;
    while let Some(error) = last.source() {
        last = error;
    }
    let number = last.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    if let Some(advice) = number.and_then(advice) {
        text.push_str("; ");
        text.push_str(advice);
    }
    text
}

/// Advice for an error number that has a single remedy.
fn advice(number: i32) -> Option<&'static str> {
    match number {
        libc::ENOSPC | libc::EDQUOT => {
            Some("make room on that file system; `nodlet image rm` removes images")
        }
        libc::EMFILE | libc::ENOBUFS => {
            Some("it may open too few files: raise its limit (LimitNOFILE= of its service, or ulimit -n)")
        }
        libc::EROFS => Some("mount that file system writable, or choose another --root"),
        libc::EACCES | libc::EPERM if !nix::unistd::geteuid().is_root() => {
            Some("run it again as root (sudo nodlet ...)")
        }
        _ => None,
    }
}

/// Whether the error means that this process or machine lacks resources, and not that the request is wrong.
pub fn is_shortage(error: &io::Error) -> bool {
    // ENOBUFS: received descriptors were dropped. ENOSPC: no epoll watches are left.
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::ENOSPC];
    error.raw_os_error().is_some_and(|code| short.contains(&code))
}

/// The shortage among an error and its causes, if there is one.
pub fn shortage_behind(error: &(dyn Error + 'static)) -> Option<io::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && is_shortage(error)
        {
            return error.raw_os_error().map(io::Error::from_raw_os_error);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::NetworkError;

    #[test]
    fn errors_of_a_full_and_a_read_only_disk_include_a_remedy() {
        let text = |number| {
            let source = io::Error::from_raw_os_error(number);
            chain(&NetworkError::ReadRange { path: "/etc/range".into(), source })
        };
        let begin = "read the range of the pods' addresses from /etc/range: ";
        for (number, end) in [
            (
                libc::ENOSPC,
                "No space left on device (os error 28); make room on that file system; `nodlet image rm` removes images",
            ),
            (
                libc::EROFS,
                "Read-only file system (os error 30); mount that file system writable, or choose another --root",
            ),
            (libc::ENOENT, "No such file or directory (os error 2)"),
        ] {
            assert_eq!(text(number), format!("{begin}{end}"));
        }
    }
}
