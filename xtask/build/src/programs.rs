//! Provides Debian programs that a task needs and this machine may lack, such as QEMU and SSH. They are
//! unpacked with all dependencies into `.work/programs`, without root and without installing anything.
//!
//! An unpacked program runs with the loader and the C library of its own packages.

use std::env;
use std::path::Path;
use std::process::Command;

use nodlet_kernel::process::set_variable;

use crate::debian;
use crate::files;
use crate::task::{Outcome, TaskError, output, work};

/// Makes sure that `program` can be run by its name. If the machine lacks it, unpacks `package` and extends
/// this process's `PATH`.
pub fn provide(program: &str, package: &str) -> Outcome {
    if on_path(program) {
        return Ok(());
    }
    let bin = work("programs/bin")?;
    if !bin.join(program).exists() {
        let root = work("programs")?.join(package);
        if !root.is_dir() {
            eprintln!("{program} is not installed: unpacking Debian's {package} into {}", root.display());
            debian::unpack_with_dependencies(&[package], host()?.0, &root, |archives, to| {
                archives.iter().try_for_each(|archive| {
                    output(Command::new("dpkg-deb").arg("--extract").arg(archive).arg(to)).map(drop)
                })
            })?;
        }
        write_wrapper(&bin.join(program), &root, program)?;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin].into_iter().chain(env::split_paths(&path)))?;
    // Tasks have one thread until they start others, and this is called before that.
    set_variable("PATH", path);
    Ok(())
}

pub(crate) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Debian's name of this machine's processor, and the paths of its libraries and its loader.
pub(crate) fn host() -> Result<(&'static str, &'static str, &'static str), TaskError> {
    match env::consts::ARCH {
        "x86_64" => Ok(("amd64", "usr/lib/x86_64-linux-gnu", "ld-linux-x86-64.so.2")),
        "aarch64" => Ok(("arm64", "usr/lib/aarch64-linux-gnu", "ld-linux-aarch64.so.1")),
        other => Err(TaskError(format!("programs are unpacked on x86_64 and aarch64 only, not on {other}"))),
    }
}

fn write_wrapper(wrapper: &Path, root: &Path, program: &str) -> Outcome {
    let found = ["usr/bin", "usr/sbin"].map(|directory| root.join(directory).join(program));
    let file = found
        .iter()
        .find(|file| file.is_file())
        .ok_or_else(|| TaskError(format!("{} has no program {program}", root.display())))?;
    let (_, libraries, loader) = host()?;
    let libraries = root.join(libraries);
    // QEMU looks for its files beside its executable, which is the loader here.
    let data = root.join("usr/share/qemu");
    let options = if data.is_dir() { format!(" -L {}", quoted(&data)) } else { String::new() };
    let text = format!(
        "#!/bin/sh\nexec {} --library-path {} {}{options} \"$@\"\n",
        quoted(&libraries.join(loader)),
        quoted(&libraries),
        quoted(file)
    );
    files::replace(wrapper, text, 0o755)
}

/// Quotes a path as one word for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_installed_program_is_used_without_changing_the_search_path() {
        assert!(on_path("sh") && !on_path("no-such-program"));
        let before = env::var_os("PATH");
        provide("sh", "no-such-package").expect("there is a shell");
        assert_eq!(env::var_os("PATH"), before);
    }

    #[test]
    fn a_wrapper_runs_the_program_with_libraries_of_its_own() {
        let root = work("test-programs/it's a root").expect("a directory");
        let (_, libraries, loader) = host().expect("a machine that nodlet is built on");
        fs::create_dir_all(root.join(libraries)).expect("a directory");
        fs::create_dir_all(root.join("usr/bin")).expect("a directory");
        // A fake loader that prints its arguments.
        let loader = root.join(libraries).join(loader);
        fs::write(&loader, "#!/bin/sh\necho \"$1|$3|$4\"\n").expect("written");
        fs::set_permissions(&loader, fs::Permissions::from_mode(0o755)).expect("it is ours");
        fs::write(root.join("usr/bin/tool"), "").expect("written");
        let wrapper = root.join("tool");
        write_wrapper(&wrapper, &root, "tool").expect("it can be written");
        let output = Command::new(&wrapper).arg("an argument").output().expect("it runs");
        let expected = format!("--library-path|{}|an argument\n", root.join("usr/bin/tool").display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        let Err(TaskError(why)) = write_wrapper(&wrapper, &root, "other") else { panic!("there is none") };
        assert!(why.contains("has no program other"), "{why}");
        fs::remove_dir_all(root.parent().expect("it has one")).expect("it is ours");
    }
}
