//! Provides Debian programs that a task needs and this machine may lack, such as QEMU and SSH. They are
//! unpacked with all dependencies into `.work/programs`, without root and without installing anything.
//!
//! An unpacked program runs with the loader and the C library of its own packages.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::debian::{Apt, lock, only};
use crate::task::{Outcome, TaskError, run as run_command, work};

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
            unpack(package, &root)?;
        }
        write_wrapper(&bin.join(program), &root, program)?;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin].into_iter().chain(env::split_paths(&path)))?;
    // SAFETY: tasks have one thread until they start others, and this is called before that.
    unsafe { env::set_var("PATH", path) };
    Ok(())
}

/// Requires a program that executes itself by `/proc/self/exe`, so that one that runs with the loader of another release
/// would not do.
pub fn require(program: &str) -> Outcome {
    if on_path(program) {
        Ok(())
    } else {
        Err(TaskError(format!("{program} is not installed: install it by `apt-get install {program}`")))
    }
}

fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Debian's name of this machine's processor, and the paths of its libraries and its loader.
fn host() -> Result<(&'static str, &'static str, &'static str), TaskError> {
    match env::consts::ARCH {
        "x86_64" => Ok(("amd64", "usr/lib/x86_64-linux-gnu", "ld-linux-x86-64.so.2")),
        "aarch64" => Ok(("arm64", "usr/lib/aarch64-linux-gnu", "ld-linux-aarch64.so.1")),
        other => Err(TaskError(format!("programs are unpacked on x86_64 and aarch64 only, not on {other}"))),
    }
}

/// Fetches a package with all its dependencies, and unpacks them to `root`.
fn unpack(package: &str, root: &Path) -> Outcome {
    let (processor, _, _) = host()?;
    let dir = Apt::directory(processor)?;
    let _lock = lock(&dir)?;
    // The previous owner of the lock may have fetched the same package.
    if root.is_dir() {
        return Ok(());
    }
    let apt = Apt::updated(&dir, processor)?;
    // An interrupted task may have left packages of another program.
    let archives = apt.dir().join("archives");
    let _ = fs::remove_dir_all(&archives);
    run_command(apt.command("apt-get").args([
        "--option",
        "Debug::NoLocking=1",
        "--yes",
        "--download-only",
        "--no-install-recommends",
        "install",
        package,
    ]))?;
    // Unpacked under another name and renamed, so that an existing directory is complete.
    let aside = root.with_extension("new");
    let _ = fs::remove_dir_all(&aside);
    fs::create_dir_all(&aside)?;
    // Fails with the package's name if apt has stored it elsewhere.
    only(&archives, package)?;
    for entry in fs::read_dir(&archives)? {
        let archive = entry?.path();
        if archive.extension().is_some_and(|extension| extension == "deb") {
            run_quietly(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&aside))?;
        }
    }
    fs::rename(&aside, root)?;
    Ok(fs::remove_dir_all(archives)?)
}

/// Runs a command without showing it: there is one for each of a hundred packages.
fn run_quietly(command: &mut Command) -> Outcome {
    let output = command.output().map_err(|error| format!("failed to run dpkg-deb: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(TaskError(format!("dpkg-deb: {}", String::from_utf8_lossy(&output.stderr))))
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
    let aside = wrapper.with_extension("new");
    fs::write(&aside, text)?;
    fs::set_permissions(&aside, fs::Permissions::from_mode(0o755))?;
    Ok(fs::rename(&aside, wrapper)?)
}

/// Quotes a path as one word for a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_is_used_without_changing_the_search_path() {
        assert!(on_path("sh") && !on_path("no-such-program"));
        let before = env::var_os("PATH");
        provide("sh", "no-such-package").expect("there is a shell");
        assert_eq!(env::var_os("PATH"), before);
    }

    #[test]
    fn a_program_that_is_required_must_be_installed() {
        assert!(require("sh").is_ok());
        let Err(TaskError(why)) = require("no-such-program") else { panic!("there is none") };
        assert!(why.contains("apt-get install no-such-program"), "{why}");
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
