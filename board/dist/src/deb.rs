//! `cargo xtask deb [TARGET]...`: builds a Debian package for each target, with the binary for boards, the
//! files of `board/systemd` and `board/packages/debian`, manual pages and shell completion.
//!
//! Needs neither root nor programs of Debian, and the same sources give the same bytes. `docs/packages.md`
//! describes what the package does when it is installed and removed, and `cargo xtask guest package` tests
//! it.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use flate2::{Compression, GzBuilder};
use md5::{Digest, Md5};
use nodlet_build::arguments::Arguments;
use nodlet_build::files;
use nodlet_build::targets::{self, Target};
use nodlet_build::task::{Outcome, Task, TaskError, date, git, project, run as run_command, target_dir};
use nodlet_build::toolchain::{built, cargo};
use nodlet_build::{crates, cross};

use crate::help;
use crate::image;
use crate::tree::Tree;

/// The task `cargo xtask deb`.
pub const TASK: Task = Task::new(
    "deb",
    "[--version VERSION] [TARGET]...",
    "build Debian packages of the binaries for boards, into target/packages",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let version = arguments.one("--version")?.unwrap_or_else(default_version);
    let mut targets = Vec::new();
    for triple in arguments.names()? {
        targets.push(targets::get(&triple)?);
    }
    if targets.is_empty() {
        targets.extend(targets::TARGETS);
    }
    require_version(&version)?;
    for target in targets {
        let package = build(target, &version)?;
        println!("{}: {} bytes", package.display(), fs::metadata(&package)?.len());
    }
    Ok(())
}

/// The package version: the workspace's version, as the first Debian revision.
pub(crate) fn default_version() -> String {
    format!("{}-1", env!("CARGO_PKG_VERSION"))
}

/// Checks a version by Debian Policy, section 5.6.12, without an epoch.
fn require_version(version: &str) -> Outcome {
    let is_version = version.starts_with(|c: char| c.is_ascii_digit())
        && version.chars().all(|c| c.is_ascii_alphanumeric() || ".+-~".contains(c));
    if is_version {
        return Ok(());
    }
    Err(TaskError(format!(
        "{version:?} is not a version of a Debian package: it begins with a digit, and has letters, digits and . + - ~"
    )))
}

/// Builds the program and the package.
pub fn build(target: &Target, version: &str) -> Result<PathBuf, TaskError> {
    let program = cross::build(target)?;
    // Build a program that this machine can execute: it has the same help texts.
    run_command(cargo()?.args(["build", "--locked", "--package", "nodlet"]))?;
    let help = help::of(&built("debug", "nodlet")?)?;
    let time = Time::of_source()?;
    let mut files = Tree::default();
    files.file("usr/bin/nodlet", 0o755, fs::read(program)?);
    add_service(&mut files)?;
    add_manuals(&mut files, &help, &time);
    add_documents(&mut files, target, version, &time)?;
    files.directory("etc/nodlet/manifests");

    let architecture = target.debian;
    let control = control(&files, version, architecture)?;
    let package = archive(
        &time,
        &[
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", tar_of(control, &time)?),
            ("data.tar.gz", tar_of(files, &time)?),
        ],
    );
    let path = target_dir().join("packages").join(format!("nodlet_{version}_{architecture}.deb"));
    files::replace(&path, package, 0o644)?;
    Ok(path)
}

/// Reads a file of `board/`.
fn ours(name: &str) -> Result<Vec<u8>, TaskError> {
    let path = project().join("board").join(name);
    files::read(&path)
}

fn add_service(files: &mut Tree) -> Outcome {
    for (from, to) in [
        ("systemd/nodlet.service", "usr/lib/systemd/system/nodlet.service"),
        ("systemd/05-nodlet.network", "usr/lib/systemd/network/05-nodlet.network"),
        ("systemd/80-nodlet-networkmanager.conf", "usr/lib/NetworkManager/conf.d/80-nodlet.conf"),
        ("packages/debian/nodlet.sysusers", "usr/lib/sysusers.d/nodlet.conf"),
        ("packages/debian/lintian-overrides", "usr/share/lintian/overrides/nodlet"),
    ] {
        files.file(to, 0o644, ours(from)?);
    }
    Ok(())
}

/// The archive of the manual pages and the shell completions, at their places in a root file system.
pub(crate) fn manuals(help: &help::Help) -> Result<Vec<u8>, TaskError> {
    let time = Time::of_source()?;
    let mut files = Tree::default();
    add_manuals(&mut files, help, &time);
    tar_of(files, &time)
}

/// Adds manual pages and shell completions.
fn add_manuals(files: &mut Tree, help: &help::Help, time: &Time) {
    for (name, page) in help::manual::pages(help, env!("CARGO_PKG_VERSION"), &time.date) {
        files.file(&format!("usr/share/man/man1/{name}.gz"), 0o644, compressed(page.as_bytes()));
    }
    for (path, text) in [
        ("usr/share/bash-completion/completions/nodlet", help::completion::bash(help)),
        ("usr/share/zsh/vendor-completions/_nodlet", help::completion::zsh(help)),
        ("usr/share/fish/vendor_completions.d/nodlet.fish", help::completion::fish(help)),
    ] {
        files.file(path, 0o644, text);
    }
}

/// Adds changelogs, licenses and examples.
fn add_documents(files: &mut Tree, target: &Target, version: &str, time: &Time) -> Outcome {
    let to = "usr/share/doc/nodlet";
    let crates = crates::linked(target)?;
    let list: String =
        crates.iter().map(|one| format!("  {} {}: {}\n", one.name, one.version, one.license)).collect();
    let copyright = String::from_utf8(ours("packages/debian/copyright")?)? + &list;
    files.file(&format!("{to}/copyright"), 0o644, copyright);
    files.file(&format!("{to}/crates.gz"), 0o644, compressed(crates::texts(&crates)?.as_bytes()));
    let changelog = format!(
        "nodlet ({version}) unstable; urgency=medium\n\n  * Version {} of nodlet, see changelog.gz.\n\n -- {}  {}\n",
        env!("CARGO_PKG_VERSION"),
        maintainer()?,
        time.mail
    );
    files.file(&format!("{to}/changelog.Debian.gz"), 0o644, compressed(changelog.as_bytes()));
    files.file(&format!("{to}/changelog.gz"), 0o644, compressed(&fs::read(project().join("CHANGELOG.md"))?));
    for directory in [
        "examples",
        "examples/apparmor",
        "examples/devices",
        "examples/gateway",
        "examples/gateway/devices",
        "examples/seccomp",
        "examples/tasks",
    ] {
        for entry in fs::read_dir(project().join(directory))? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).ok_or("an example's name is text")?;
            if path.is_file() {
                files.file(&format!("{to}/{directory}/{name}"), 0o644, fs::read(&path)?);
            }
        }
    }
    Ok(())
}

/// The archive with `control` and the maintainer scripts.
fn control(files: &Tree, version: &str, architecture: &str) -> Result<Tree, TaskError> {
    let sizes = files.files().map(|(_, bytes)| bytes.len().div_ceil(1024)).sum::<usize>();
    let kibibytes = sizes + files.others();
    let sum = |(path, bytes): (&str, &[u8])| format!("{}  {path}\n", files::digits(&Md5::digest(bytes)));
    let sums: String = files.files().map(sum).collect();
    let template = String::from_utf8(ours("packages/debian/control")?)?;
    let control = template
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@MAINTAINER@", &maintainer()?)
        .replace("@SIZE@", &kibibytes.to_string());
    let mut all = Tree::default();
    all.file("control", 0o644, control);
    all.file("md5sums", 0o644, sums);
    for script in ["postinst", "prerm", "postrm"] {
        all.file(script, 0o755, ours(&format!("packages/debian/{script}"))?);
    }
    Ok(all)
}

/// The package's maintainer, from the variables of Debian's own tools, or else the author of the last commit.
fn maintainer() -> Result<String, TaskError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match (variable("DEBFULLNAME"), variable("DEBEMAIL")) {
        (Some(name), Some(mail)) => Ok(format!("{name} <{mail}>")),
        (_, _) => Ok(git(project(), &["log", "-1", "--format=%an <%ae>"])
            .map_err(|_| "package maintainer unknown: set DEBFULLNAME and DEBEMAIL, or commit first")?),
    }
}

/// The time of the sources, which everything in the package gets.
struct Time {
    seconds: u64,
    /// The date in the form `2026-01-31`.
    date: String,
    /// The date in the form `Sat, 31 Jan 2026 12:00:00 +0000`.
    mail: String,
}

impl Time {
    /// The time in `SOURCE_DATE_EPOCH`, or that of the last commit.
    fn of_source() -> Result<Time, TaskError> {
        let seconds = image::of_source()?;
        let date = |format: &str| date(&format!("@{seconds}"), format);
        Ok(Time { seconds, date: date("+%Y-%m-%d")?, mail: date("+%a, %d %b %Y %H:%M:%S +0000")? })
    }
}

/// Compresses as `gzip -9n` does.
fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// The compressed tar archive of a package's files.
fn tar_of(mut files: Tree, time: &Time) -> Result<Vec<u8>, TaskError> {
    files.directory("");
    archive_of(&files, "./", time.seconds)
}

/// The compressed tar archive of files whose paths begin with `prefix`.
pub(crate) fn archive_of(files: &Tree, prefix: &str, seconds: u64) -> Result<Vec<u8>, TaskError> {
    let gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    Ok(files.write_tar(gzip, prefix, seconds)?.finish()?)
}

/// Makes an ar archive (deb(5)).
fn archive(time: &Time, members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let header =
            format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", time.seconds, 0, 0, "100644", bytes.len());
        archive.extend(header.into_bytes());
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(2), b'\n');
    }
    archive
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn example() -> Vec<u8> {
        let time = Time { seconds: 1_700_000_000, date: String::new(), mail: String::new() };
        let mut files = Tree::default();
        files.file("usr/bin/nodlet", 0o755, vec![b'x'; 1025]);
        files.directory("etc/nodlet/manifests");
        let control = control(&files, "1.2-3", "arm64").unwrap();
        let members = [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", tar_of(control, &time).unwrap()),
            ("data.tar.gz", tar_of(files, &time).unwrap()),
        ];
        archive(&time, &members)
    }

    #[test]
    fn debians_own_tool_reads_the_package_and_finds_what_was_put_in() {
        let path = std::env::temp_dir().join(format!("nodlet-deb-{}.deb", std::process::id()));
        fs::write(&path, example()).unwrap();
        let dpkg = |word: &str| {
            let output = Command::new("dpkg-deb").env("TZ", "UTC").arg(word).arg(&path).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let fields = dpkg("--field");
        for line in ["Package: nodlet", "Version: 1.2-3", "Architecture: arm64", "Installed-Size: 7"] {
            assert!(fields.lines().any(|field| field == line), "{line} is not in\n{fields}");
        }
        let contents = dpkg("--contents");
        fs::remove_file(&path).unwrap();
        let lines: Vec<String> =
            contents.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(lines.len(), 7, "{contents}");
        assert_eq!(lines[0], "drwxr-xr-x root/root 0 2023-11-14 22:13 ./");
        assert!(lines.contains(&"-rwxr-xr-x root/root 1025 2023-11-14 22:13 ./usr/bin/nodlet".to_owned()));
        assert!(
            lines.contains(&"drwxr-xr-x root/root 0 2023-11-14 22:13 ./etc/nodlet/manifests/".to_owned())
        );
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        assert_eq!(example(), example());
    }

    #[test]
    fn a_version_that_debian_does_not_know_is_refused_before_anything_is_built() {
        for version in ["0.1.0-1", "1.2~rc1", "0.1.0+vendor2-1"] {
            require_version(version).unwrap();
        }
        for version in ["", "v1", "1/2", "1:2", "1 2"] {
            assert!(require_version(version).unwrap_err().0.contains(&format!("{version:?}")), "{version}");
        }
        let why = run(&["--version".into(), "v1".into()]).unwrap_err().0;
        assert!(why.contains("begins with a digit"), "{why}");
        assert!(run(&["z80-unknown-linux-musl".into()]).unwrap_err().0.contains("unknown target"));
    }
}
