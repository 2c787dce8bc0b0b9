//! Packages of Debian for the guests and for cross builds, of a suite that is new enough
//! whatever this machine runs: fetched once into `.work/kernel`, with lists of packages of our
//! own. The machine's apt is asked only where Debian is, and nothing is installed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::{Failure, Outcome, run as run_command, work};

/// With Linux 6.12, which mounts EROFS from a file.
const CODENAME: &str = "trixie";

/// The names of that suite in Debian's archive, as tried one after the other. A mirror that is being
/// synchronised may have a signed list under one name that does not match its packages, and one that
/// does under the other.
const SUITES: &[&str] = &[CODENAME, "stable"];

/// The files of a package for a processor, as Debian calls both, fetched if they are not here yet.
pub(crate) fn package(name: &str, processor: &str) -> Result<PathBuf, Failure> {
    fetch(&[name], processor)?;
    dir_of(name, processor)
}

/// Fetches those of the packages that are not here yet, with one update of apt's lists for all.
pub(crate) fn fetch(names: &[&str], processor: &str) -> Outcome {
    if missing(names, processor)?.is_empty() {
        return Ok(());
    }
    let dir = work("kernel")?.join("apt");
    let _lock = lock(&dir)?;
    // Whoever had it may have fetched the same.
    let missing = missing(names, processor)?;
    if missing.is_empty() {
        return Ok(());
    }
    let apt = Apt::updated(&dir, processor)?;
    for (name, dir) in missing {
        let record = apt.unpack(name, &dir)?;
        fs::write(record_of(name, processor)?, record)?;
    }
    Ok(fs::remove_dir_all(&apt.dir)?)
}

/// Those of the packages that are not here yet, and where their files belong.
fn missing<'a>(names: &[&'a str], processor: &str) -> Result<Vec<(&'a str, PathBuf)>, Failure> {
    let mut missing = Vec::new();
    for name in names {
        let dir = dir_of(name, processor)?;
        if !dir.is_dir() || !record_of(name, processor)?.is_file() {
            missing.push((*name, dir));
        }
    }
    Ok(missing)
}

/// The line that tells which package it is: its name in Debian, version, processor, and the SHA-256 of the file.
fn record_of(name: &str, processor: &str) -> Result<PathBuf, Failure> {
    let mut file = dir_of(name, processor)?.into_os_string();
    file.push(".package");
    Ok(file.into())
}

/// Such a line of each of these packages, which are here.
pub(crate) fn records<'a>(
    names: impl IntoIterator<Item = &'a str>,
    processor: &str,
) -> Result<String, Failure> {
    names.into_iter().map(|name| Ok(fs::read_to_string(record_of(name, processor)?)?)).collect()
}

/// Whether a package was fetched before.
pub(crate) fn is_here(name: &str, processor: &str) -> Result<bool, Failure> {
    Ok(dir_of(name, processor)?.is_dir())
}

fn dir_of(name: &str, processor: &str) -> Result<PathBuf, Failure> {
    // The name of a kernel says its processor.
    let name_of_both = format!("{}-{processor}", name.trim_end_matches(&format!("-{processor}")));
    Ok(work("kernel")?.join(name_of_both))
}

/// The one file of `dir` whose name begins so.
pub(crate) fn only(dir: &Path, begin: &str) -> Result<PathBuf, Failure> {
    let mut found = fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin)));
    found.next().ok_or_else(|| format!("{} has no {begin}*", dir.display()).into())
}

/// The URI of Debian's archive that this machine's apt uses, whichever suite it takes from there.
pub(crate) fn mirror() -> Result<String, Failure> {
    let targets = |options: &[String]| -> Result<Option<String>, Failure> {
        let mut apt = Command::new("apt-get");
        apt.args(options);
        apt.args(["indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages"]);
        let output = apt.output().map_err(|error| format!("failed to run apt-get: {error}"))?;
        Ok(archive_among(&String::from_utf8_lossy(&output.stdout)).map(str::to_owned))
    };
    if let Some(uri) = targets(&[])? {
        return Ok(uri);
    }
    // apt knows whose a source is only once it has fetched its lists: into a directory of ours, as anybody may.
    let dir = work("kernel")?.join("apt-sources");
    let _lock = lock(&dir)?;
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(dir.join("lists/partial"))?;
    let config = dir.join("apt.conf");
    fs::write(&config, own_directories(&dir))?;
    let options = ["--config-file".to_owned(), config.display().to_string()];
    run_command(Command::new("apt-get").args(&options).args(["-qq", "update"]))?;
    let found = targets(&options)?;
    fs::remove_dir_all(&dir)?;
    found.ok_or_else(|| {
        Failure("apt on this machine has no source with the origin and label `Debian`: add one".into())
    })
}

/// Of apt's configuration, that it keeps its lists in a directory of ours and leaves everything else alone.
fn own_directories(dir: &Path) -> String {
    let at = dir.display();
    // What this machine does after its own updates, as removing what it fetched, is not for ours.
    format!(
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n\
         #clear APT::Update::Post-Invoke-Success;\n\
         Dir::State::lists \"{at}/lists\";\nDir::Cache \"{at}\";\nAcquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAPT::Sandbox::User \"root\";\n"
    )
}

/// The first URI of Debian itself among lines of origin, label and URI: not of what is derived from
/// it, nor of its security suites, which lie elsewhere.
fn archive_among(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| line.strip_prefix("Debian Debian "))
}

/// Held by the one task in this checkout that uses a directory of apt.
pub(crate) fn lock(dir: &Path) -> Result<File, Failure> {
    let lock = File::create(dir.with_extension("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// apt with a directory of its own, which is [`lock`]ed.
pub(crate) struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// With the lists of packages for a processor, of the first suite whose lists apt can verify.
    pub(crate) fn updated(dir: &Path, processor: &str) -> Result<Apt, Failure> {
        let mut failures = Vec::new();
        for suite in SUITES {
            let apt = Apt::new(dir, processor, suite)?;
            match run_command(apt.command("apt-get").arg("update")).and_then(|()| apt.require_codename()) {
                Ok(()) => return Ok(apt),
                Err(Failure(why)) => failures.push(format!("suite {suite}: {why}")),
            }
        }
        Err(Failure(failures.join("; ")))
    }

    /// Rejects another release of Debian: `stable` is the name of the next one later.
    fn require_codename(&self) -> Outcome {
        let lists = self.dir.join("lists");
        for entry in fs::read_dir(&lists)? {
            let file = entry?.path();
            if file.to_string_lossy().ends_with("Release") {
                let release = fs::read_to_string(&file)?;
                return require_codename(&release);
            }
        }
        Err(Failure(format!("{} has no release file", lists.display())))
    }

    fn new(dir: &Path, processor: &str, suite: &str) -> Result<Apt, Failure> {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir.join("lists/partial"))?;
        let sources = format!(
            "Types: deb\nURIs: {}\nSuites: {suite}\nComponents: main\n\
             Architectures: {processor}\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
            mirror()?
        );
        fs::write(dir.join("debian.sources"), sources)?;
        let at = dir.display();
        let config = format!(
            "{}Dir::State::status \"/dev/null\";\nDir::Etc::sourcelist \"{at}/debian.sources\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\nAPT::Architecture \"{processor}\";\n",
            own_directories(dir)
        );
        fs::write(dir.join("apt.conf"), config)?;
        Ok(Apt { dir: dir.to_owned() })
    }

    /// Fetches a package and puts its files into a directory; the line that tells which it is.
    fn unpack(&self, wanted: &str, dir: &Path) -> Result<String, Failure> {
        let needs = self.command("apt-cache").args(["depends", wanted]).output()?;
        let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
        // A kernel's package without a release is empty and needs the one of the newest.
        let newest = needs.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
        let package = newest.map_or(wanted.to_owned(), |release| format!("linux-image-{release}"));
        run_command(self.command("apt-get").args(["download", &package]).current_dir(&self.dir))?;
        // The version follows.
        let archive = only(&self.dir, &format!("{package}_"))?;
        // Aside and then in place: what is there is whole.
        let aside = dir.with_extension("new");
        let _ = fs::remove_dir_all(&aside);
        run_command(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&aside))?;
        let mut show = Command::new("dpkg-deb");
        let shown =
            show.args(["--show", "--showformat", "${Package} ${Version} ${Architecture}"]).arg(&archive);
        let shown = String::from_utf8(shown.output()?.stdout)?;
        let _ = fs::remove_dir_all(dir);
        fs::rename(&aside, dir)?;
        let digest: String =
            Sha256::digest(fs::read(&archive)?).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::remove_file(archive)?;
        Ok(format!("{shown} {digest}\n"))
    }

    /// Where it puts what it fetches.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-qq").arg("--config-file").arg(self.dir.join("apt.conf"));
        command
    }
}

fn require_codename(release: &str) -> Outcome {
    let codename = release.lines().find_map(|line| line.strip_prefix("Codename: "));
    match codename.map(str::trim) {
        Some(CODENAME) => Ok(()),
        other => Err(Failure(format!("its codename is {}, not {CODENAME}", other.unwrap_or("missing")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_release_of_debian_under_the_same_name_is_rejected() {
        require_codename("Suite: stable\nCodename: trixie\n").unwrap();
        let why = require_codename("Suite: stable\nCodename: forky\n").unwrap_err().0;
        assert!(why.contains("codename is forky, not trixie"), "{why}");
        assert!(require_codename("Suite: stable\n").unwrap_err().0.contains("missing"));
    }

    #[test]
    fn debians_archive_is_found_among_other_sources() {
        let targets = "vendor Debian https://apt.example/tools/\n\
                       Debian Debian-Security https://mirror.example/debian-security/\n\
                       Debian Debian https://mirror.example/debian/\n\
                       Debian Debian https://other.example/debian/\n";
        assert_eq!(archive_among(targets), Some("https://mirror.example/debian/"));
        // A source whose lists were never fetched has neither origin nor label.
        assert_eq!(archive_among("  https://mirror.example/debian/\n"), None);
        assert_eq!(archive_among(""), None);
    }
}
