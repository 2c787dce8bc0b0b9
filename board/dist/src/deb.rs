//! `cargo xtask deb [TARGET]...`: builds a Debian package for each target, with the binary for boards, the
//! files of `board/systemd` and `board/packages/debian`, manual pages and shell completion.
//!
//! Needs neither root nor programs of Debian, and the same sources give the same bytes. `docs/packages.md`
//! describes what the package does when it is installed and removed, and `cargo xtask guest package` tests
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use flate2::{Compression, GzBuilder};
use md5::{Digest, Md5};
use nodlet_build::files;
use nodlet_build::targets::{self, Target};
use nodlet_build::task::{Outcome, Task, TaskError, git, line_of, project, run as run_command, target_dir};
use nodlet_build::toolchain::{built, cargo};
use nodlet_build::{crates, cross};

use crate::help;

/// The task `cargo xtask deb`.
pub const TASK: Task = Task::new(
    "deb",
    "[--version VERSION] [TARGET]...",
    "build Debian packages of the binaries for boards, into target/packages",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let (mut version, mut targets) = (default_version(), Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--version" => version = words.next().ok_or_else(|| TASK.misused())?.clone(),
            triple if !triple.starts_with('-') => targets.push(targets::get(triple)?),
            _ => return Err(TASK.misused()),
        }
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

/// Debian's name of a target's processor.
fn architecture(target: &Target) -> Result<&'static str, TaskError> {
    match target.triple.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        Some("riscv64gc") => Ok("riscv64"),
        Some("armv7") => Ok("armhf"),
        _ => Err(TaskError(format!("Debian's name for the processor of {} is not known", target.triple))),
    }
}

/// Builds the program and the package.
pub fn build(target: &Target, version: &str) -> Result<PathBuf, TaskError> {
    let program = cross::build(target)?;
    // Build a program that this machine can execute: it has the same help texts.
    run_command(cargo()?.args(["build", "--locked", "--package", "nodlet"]))?;
    let help = help::of(&built("debug", "nodlet")?)?;
    let time = Time::of_source()?;
    let mut files = Files::default();
    files.add("usr/bin/nodlet", 0o755, fs::read(program)?);
    add_service(&mut files)?;
    add_manuals(&mut files, &help, &time);
    add_documents(&mut files, target, version, &time)?;
    files.directory("etc/nodlet/manifests");

    let architecture = architecture(target)?;
    let control = control(&files, version, architecture)?;
    let package = archive(
        &time,
        &[
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", control.tar(&time)?),
            ("data.tar.gz", files.tar(&time)?),
        ],
    );
    let directory = target_dir().join("packages");
    fs::create_dir_all(&directory)?;
    let path = directory.join(format!("nodlet_{version}_{architecture}.deb"));
    let aside = path.with_extension("new");
    fs::write(&aside, package).map_err(|error| format!("failed to write {}: {error}", aside.display()))?;
    fs::rename(&aside, &path)?;
    Ok(path)
}

/// Reads a file of `board/`.
fn ours(name: &str) -> Result<Vec<u8>, TaskError> {
    let path = project().join("board").join(name);
    files::read(&path)
}

fn add_service(files: &mut Files) -> Outcome {
    for (from, to) in [
        ("systemd/nodlet.service", "usr/lib/systemd/system/nodlet.service"),
        ("systemd/05-nodlet.network", "usr/lib/systemd/network/05-nodlet.network"),
        ("systemd/80-nodlet-networkmanager.conf", "usr/lib/NetworkManager/conf.d/80-nodlet.conf"),
        ("packages/debian/nodlet.sysusers", "usr/lib/sysusers.d/nodlet.conf"),
        ("packages/debian/lintian-overrides", "usr/share/lintian/overrides/nodlet"),
    ] {
        files.add(to, 0o644, ours(from)?);
    }
    Ok(())
}

/// The archive of the manual pages and the shell completions, at their places in a root file system.
pub(crate) fn manuals(help: &help::Help) -> Result<Vec<u8>, TaskError> {
    let time = Time::of_source()?;
    let mut files = Files::default();
    add_manuals(&mut files, help, &time);
    files.tar(&time)
}

/// Adds manual pages and shell completions.
fn add_manuals(files: &mut Files, help: &help::Help, time: &Time) {
    for (name, page) in help::manual::pages(help, env!("CARGO_PKG_VERSION"), &time.date) {
        files.add(&format!("usr/share/man/man1/{name}.gz"), 0o644, compressed(page.as_bytes()));
    }
    for (path, text) in [
        ("usr/share/bash-completion/completions/nodlet", help::completion::bash(help)),
        ("usr/share/zsh/vendor-completions/_nodlet", help::completion::zsh(help)),
        ("usr/share/fish/vendor_completions.d/nodlet.fish", help::completion::fish(help)),
    ] {
        files.add(path, 0o644, text.into_bytes());
    }
}

/// Adds changelogs, licenses and examples.
fn add_documents(files: &mut Files, target: &Target, version: &str, time: &Time) -> Outcome {
    let to = "usr/share/doc/nodlet";
    let crates = crates::linked(target)?;
    let list: String =
        crates.iter().map(|one| format!("  {} {}: {}\n", one.name, one.version, one.license)).collect();
    let copyright = String::from_utf8(ours("packages/debian/copyright")?)? + &list;
    files.add(&format!("{to}/copyright"), 0o644, copyright.into_bytes());
    files.add(&format!("{to}/crates.gz"), 0o644, compressed(crates::texts(&crates)?.as_bytes()));
    let changelog = format!(
        "nodlet ({version}) unstable; urgency=medium\n\n  * Version {} of nodlet, see changelog.gz.\n\n -- {}  {}\n",
        env!("CARGO_PKG_VERSION"),
        maintainer()?,
        time.mail
    );
    files.add(&format!("{to}/changelog.Debian.gz"), 0o644, compressed(changelog.as_bytes()));
    files.add(&format!("{to}/changelog.gz"), 0o644, compressed(&fs::read(project().join("CHANGELOG.md"))?));
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
                files.add(&format!("{to}/{directory}/{name}"), 0o644, fs::read(&path)?);
            }
        }
    }
    Ok(())
}

/// The archive with `control` and the maintainer scripts.
fn control(files: &Files, version: &str, architecture: &str) -> Result<Files, TaskError> {
    let template = String::from_utf8(ours("packages/debian/control")?)?;
    let control = template
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@MAINTAINER@", &maintainer()?)
        .replace("@SIZE@", &files.kibibytes().to_string());
    let mut all = Files::default();
    all.add("control", 0o644, control.into_bytes());
    all.add("md5sums", 0o644, files.sums().into_bytes());
    for script in ["postinst", "prerm", "postrm"] {
        all.add(script, 0o755, ours(&format!("packages/debian/{script}"))?);
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

fn output(command: &mut Command) -> Result<String, TaskError> {
    command.current_dir(project());
    let output = command.output().map_err(|error| format!("failed to run {}: {error}", line_of(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(TaskError(format!("{}: {}: {said}", line_of(command), output.status)));
    }
    Ok(String::from_utf8(output.stdout)?)
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
        let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(text) => text,
            Err(_) => git(project(), &["log", "-1", "--format=%ct"])
                .map_err(|_| "there is no commit whose time the package could have: set SOURCE_DATE_EPOCH")?,
        };
        let seconds = seconds.trim();
        let number = seconds
            .parse()
            .map_err(|_| format!("SOURCE_DATE_EPOCH={seconds:?} is not a number of seconds"))?;
        let date = |format: &str| -> Result<String, TaskError> {
            let at = format!("@{seconds}");
            let text = output(Command::new("date").env("LC_ALL", "C").args(["-u", "-d", &at, format]))?;
            Ok(text.trim().to_owned())
        };
        Ok(Time { seconds: number, date: date("+%Y-%m-%d")?, mail: date("+%a, %d %b %Y %H:%M:%S +0000")? })
    }
}

/// Compresses as `gzip -9n` does.
fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// The contents of a package's tar archive: directories, which have no bytes, and files.
#[derive(Default)]
struct Files(BTreeMap<String, (u32, Option<Vec<u8>>)>);

impl Files {
    fn add(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory);
        }
        self.0.insert(path.to_owned(), (mode, Some(bytes)));
    }

    /// Adds a directory and its ancestors.
    fn directory(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        for end in ends {
            self.0.entry(path[..end].to_owned()).or_insert((0o755, None));
        }
    }

    /// The disk space of the files in KiB, as dpkg counts it.
    fn kibibytes(&self) -> usize {
        self.0.values().map(|(_, bytes)| bytes.as_ref().map_or(1, |bytes| bytes.len().div_ceil(1024))).sum()
    }

    /// The contents of `md5sums`, one line per file.
    fn sums(&self) -> String {
        let mut sums = String::new();
        for (path, (_, bytes)) in &self.0 {
            if let Some(bytes) = bytes {
                let digest = Md5::digest(bytes);
                let digits = files::digits(&digest);
                sums.push_str(&format!("{digits}  {path}\n"));
            }
        }
        sums
    }

    /// A compressed tar archive, in which root owns everything.
    fn tar(&self, time: &Time) -> Result<Vec<u8>, TaskError> {
        let mut tar = tar::Builder::new(GzBuilder::new().mtime(0).write(Vec::new(), Compression::best()));
        let top = (String::new(), (0o755, None));
        let entries = std::iter::once((&top.0, &top.1)).chain(&self.0);
        for (path, (mode, bytes)) in entries {
            let name = if bytes.is_some() { format!("./{path}") } else { format!("./{path}/") };
            let name = if path.is_empty() { "./".to_owned() } else { name };
            let mut header = tar::Header::new_ustar();
            let ustar = header.as_ustar_mut().ok_or("a new header is one of ustar")?;
            // Written unchanged: dpkg requires the `./`, which `set_path` would remove.
            let field =
                ustar.name.get_mut(..name.len()).ok_or_else(|| format!("{name} is too long a name"))?;
            field.copy_from_slice(name.as_bytes());
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_uid(0);
            header.set_gid(0);
            header.set_mode(*mode);
            header.set_mtime(time.seconds);
            let kind = if bytes.is_some() { tar::EntryType::Regular } else { tar::EntryType::Directory };
            header.set_entry_type(kind);
            let bytes = bytes.as_deref().unwrap_or_default();
            header.set_size(bytes.len() as u64);
            header.set_cksum();
            tar.append(&header, bytes)?;
        }
        Ok(tar.into_inner()?.finish()?)
    }
}

/// The compressed tar archive of files, each with its mode. Paths may have any length.
pub(crate) fn archive_of(files: &BTreeMap<String, (u32, Vec<u8>)>) -> Result<Vec<u8>, TaskError> {
    let seconds = Time::of_source()?.seconds;
    let mut tar = tar::Builder::new(GzBuilder::new().mtime(0).write(Vec::new(), Compression::best()));
    for (path, (mode, bytes)) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_mtime(seconds);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, path, bytes.as_slice())?;
    }
    Ok(tar.into_inner()?.finish()?)
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
    use super::*;

    fn example() -> Vec<u8> {
        let time = Time { seconds: 1_700_000_000, date: String::new(), mail: String::new() };
        let mut files = Files::default();
        files.add("usr/bin/nodlet", 0o755, vec![b'x'; 1025]);
        files.directory("etc/nodlet/manifests");
        let control = control(&files, "1.2-3", "arm64").unwrap();
        let members = [
            ("debian-binary", b"2.0\n".to_vec()),
            ("control.tar.gz", control.tar(&time).unwrap()),
            ("data.tar.gz", files.tar(&time).unwrap()),
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

    #[test]
    fn each_target_has_a_name_in_debian() {
        let names: Vec<&str> = targets::TARGETS.iter().map(|target| architecture(target).unwrap()).collect();
        assert_eq!(names, ["amd64", "arm64", "riscv64", "armhf"]);
    }
}
