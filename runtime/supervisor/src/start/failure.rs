//! Translates libcontainer's error texts of failed starts for the author of a manifest. libcontainer's own
//! texts name a step of its code and, from its innermost process, no cause.

use std::path::Path;

/// Error texts of libcontainer 0.7, from its innermost process, and their meaning here.
const LIBCONTAINER_ERRORS: &[(&str, Cause)] = &[
    // Among the calls with this text, a manifest or an image can make only `chdir` fail.
    ("failed to unix syscall", Cause::WorkingDirectory),
    (
        "failed to verify if current working directory is safe",
        Cause::Text("the working directory is outside of the container's root; set `workingDir` to another"),
    ),
    (
        "failed to prepare rootfs",
        Cause::Text(
            "the kernel refused to mount /proc, /sys or /dev/mqueue or to make a device; it needs CONFIG_PROC_FS, \
             CONFIG_SYSFS, CONFIG_POSIX_MQUEUE, and nodlet needs CAP_SYS_ADMIN and CAP_MKNOD",
        ),
    ),
    (
        "failed to mount path as readonly",
        Cause::Text("a path of /proc that the container may only read could not be mounted read-only"),
    ),
    (
        "failed to mount path as masked",
        Cause::Text("a path of /proc or /sys that is hidden from the container could not be covered"),
    ),
    (
        "failed to reopen /dev/null",
        Cause::Text("the container's /dev/null could not be opened; no volume may cover it"),
    ),
    (
        "io error",
        Cause::Text("a file below the container's /proc, /sys or /dev could not be read or written"),
    ),
    (
        "device error",
        Cause::Text("a device could not be made in the container's /dev; no volume may cover it"),
    ),
    (
        "failed syscall",
        Cause::Text(
            "the kernel refused to change the root, the user, the groups or the capabilities of the process; \
             nodlet needs CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID and CAP_SETPCAP",
        ),
    ),
];

/// Error texts of one of libcontainer's processes after another one is gone.
const BROKEN_CHANNEL_ERRORS: &[&str] =
    &["ECONNRESET", "EPIPE", "channel connection broken", "unexpected message"];

enum Cause {
    Text(&'static str),
    WorkingDirectory,
}

/// The reason behind `text`, the error chain of libcontainer's builder or container.
pub(super) fn explain(text: &str, working_directory: &Path) -> String {
    // libcontainer always fails to remove a cgroup that it did not make.
    let text = text.split(". error during cleanup").next().unwrap_or(text);
    let innermost = text.rsplit("error in executing process : ").next().unwrap_or(text).trim();
    let known = LIBCONTAINER_ERRORS.iter().find(|(theirs, _)| innermost.starts_with(theirs));
    match known {
        Some((_, Cause::Text(ours))) => (*ours).to_owned(),
        Some((_, Cause::WorkingDirectory)) => format!(
            "the working directory {} is missing, is not a directory, or cannot be entered",
            working_directory.display()
        ),
        None if BROKEN_CHANNEL_ERRORS.iter().any(|gone| text.contains(gone)) => {
            "its process ended before it was ready: it was killed, or the pod has no memory left".to_owned()
        }
        None => format!("the library that makes the container (libcontainer) stopped with: {innermost}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_libcontainer_become_causes() {
        let whole = |innermost: &str| {
            format!(
                "failed to create container: exec process failed with error error in executing process : \
                 {innermost}. error during cleanup: failed to cleanup container: io error: at /sys/fs/cgroup/: \
                 could not delete"
            )
        };
        let explain = |text: &str| explain(text, Path::new("/srv"));
        assert_eq!(
            explain(&whole("failed to unix syscall")),
            "the working directory /srv is missing, is not a directory, or cannot be entered"
        );
        assert!(explain(&whole("failed to prepare rootfs")).contains("CONFIG_POSIX_MQUEUE"));
        for (theirs, _) in LIBCONTAINER_ERRORS {
            assert!(!explain(&whole(theirs)).contains(theirs), "{theirs}");
        }
        let gone = "failed to create container: failed to receive. \"waiting for intermediate process\". \
                    Nix(ECONNRESET). error during cleanup: failed to cleanup container: io error";
        assert!(explain(gone).starts_with("its process ended before it was ready"));
        assert_eq!(
            explain(&whole("something else")),
            "the library that makes the container (libcontainer) stopped with: something else"
        );
        assert!(explain("failed to load spec").ends_with(" stopped with: failed to load spec"));
    }
}
