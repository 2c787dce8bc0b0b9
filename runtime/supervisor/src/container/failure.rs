//! Explains failed starts to the author of a manifest. libcontainer's own texts name a step of its code and, from its
//! innermost process, no cause.
//!
//! What fails in the calling process has a type. What fails in libcontainer's other processes reaches the caller as the
//! text of a type ([`InitProcessError`]), inside of an error with private fields: such a text is compared with those of
//! the types.

use std::path::Path;

use libcontainer::error::LibcontainerError;
use libcontainer::notify_socket::NotifyListenerError;
use libcontainer::process::init::error::InitProcessError;
use libcontainer::rootfs::RootfsError;
use libcontainer::rootfs::device::DeviceError;
use libcontainer::syscall::SyscallError;
use nix::Error as Errno;

/// How libcontainer begins the text of an error of its innermost process, and that of one of its cleanup. It always fails to
/// remove a cgroup that it did not make.
const INNERMOST: &str = "error in executing process : ";
const CLEANUP: &str = ". error during cleanup";

/// What a text has if one of libcontainer's processes lost another one.
const BROKEN_CHANNEL: &[&str] = &["ECONNRESET", "EPIPE", "channel connection broken", "unexpected message"];

const ENDED: &str = "its process ended before it was ready: it was killed, or the pod has no memory left";

/// The reason of an error of libcontainer's builder or container, for a container with this working directory.
pub(super) fn explain(error: &LibcontainerError, working_directory: &Path) -> String {
    match error {
        LibcontainerError::CreateContainerError(error) => explain_text(&error.to_string(), working_directory),
        // Of the container that has been created, and is to be started.
        LibcontainerError::IncorrectStatus(_)
        | LibcontainerError::NotifyListener(
            NotifyListenerError::Connect { .. } | NotifyListenerError::SendStartContainer(_),
        ) => ENDED.to_owned(),
        error => unknown(&nodlet_host::error::causes(error)),
    }
}

fn unknown(text: &str) -> String {
    format!("the library that makes the container (libcontainer) stopped with: {text}")
}

fn explain_text(text: &str, working_directory: &Path) -> String {
    let text = text.split(CLEANUP).next().unwrap_or(text);
    let innermost = text.rsplit(INNERMOST).next().unwrap_or(text).trim();
    match causes().into_iter().find(|(error, _)| error.to_string() == innermost) {
        // Among the calls with this error, a manifest or an image can make only `chdir` fail.
        Some((InitProcessError::NixOther(_), ours)) => {
            format!("the working directory {} {ours}", working_directory.display())
        }
        Some((_, ours)) => ours.to_owned(),
        None if BROKEN_CHANNEL.iter().any(|broken| text.contains(broken)) => ENDED.to_owned(),
        None => unknown(innermost),
    }
}

/// The errors of libcontainer's innermost process that have a cause outside of nodlet, and that cause. The text of such an
/// error does not have its source, which is any one here.
fn causes() -> [(InitProcessError, &'static str); 9] {
    let errno = Errno::UnknownErrno;
    let syscall = || SyscallError::Nix(errno);
    let io = || std::io::Error::from(errno);
    [
        (InitProcessError::NixOther(errno), "is missing, is not a directory, or cannot be entered"),
        (
            InitProcessError::InvalidCwd(errno),
            "the working directory is outside of the container's root; set `workingDir` to another",
        ),
        (
            InitProcessError::RootFS(RootfsError::Syscall(syscall())),
            "the kernel refused to mount /proc, /sys or /dev/mqueue or to make a device; it needs CONFIG_PROC_FS, \
             CONFIG_SYSFS, CONFIG_POSIX_MQUEUE, and nodlet needs CAP_SYS_ADMIN and CAP_MKNOD",
        ),
        (
            InitProcessError::MountPathReadonly(syscall()),
            "a path of /proc that the container may only read could not be mounted read-only",
        ),
        (
            InitProcessError::MountPathMasked(syscall()),
            "a path of /proc or /sys that is hidden from the container could not be covered",
        ),
        (
            InitProcessError::ReopenDevNull(io()),
            "the container's /dev/null could not be opened; no volume may cover it",
        ),
        (
            InitProcessError::Io(io()),
            "a file below the container's /proc, /sys or /dev could not be read or written",
        ),
        (
            InitProcessError::Device(DeviceError::Nix(errno)),
            "a device could not be made in the container's /dev; no volume may cover it",
        ),
        (
            InitProcessError::SyscallOther(syscall()),
            "the kernel refused to change the root, the user, the groups or the capabilities of the process; \
             nodlet needs CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID and CAP_SETPCAP",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_libcontainer_become_causes() {
        let whole = |innermost: &str| {
            format!(
                "failed to create container: exec process failed with error error in executing process : {innermost}. error \
                 during cleanup: failed to cleanup container: io error: at /sys/fs/cgroup/: could not delete"
            )
        };
        let explain_text = |text: &str| explain_text(text, Path::new("/srv"));
        assert_eq!(
            explain_text(&whole("failed to unix syscall")),
            "the working directory /srv is missing, is not a directory, or cannot be entered"
        );
        assert!(explain_text(&whole("failed to prepare rootfs")).contains("CONFIG_POSIX_MQUEUE"));
        for (theirs, _) in causes() {
            assert!(!explain_text(&whole(&theirs.to_string())).contains(&theirs.to_string()), "{theirs}");
        }
        let gone = "failed to create container: failed to receive. \"waiting for intermediate process\". Nix(ECONNRESET). \
                    error during cleanup: failed to cleanup container: io error";
        assert_eq!(explain_text(gone), ENDED);
        let unknown = "the library that makes the container (libcontainer) stopped with: something else";
        assert_eq!(explain_text(&whole("something else")), unknown);
        let explain = |error| explain(&error, Path::new("/srv"));
        assert_eq!(explain(LibcontainerError::Other("something else".to_owned())), unknown);
        let lost = NotifyListenerError::SendStartContainer(Errno::EPIPE.into());
        assert_eq!(explain(LibcontainerError::NotifyListener(lost)), ENDED);
    }
}
