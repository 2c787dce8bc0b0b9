//! Downloads packages of Debian for the guests and for cross builds, from a suite that is new enough whatever
//! this machine runs. Packages are fetched once into `.work/kernel`, with separate lists of packages. The
//! machine's apt is only asked for the location of Debian's archive, and nothing is installed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::files;
use crate::task::{Outcome, TaskError, output, run as run_command, work};

/// The Debian release. It has Linux 6.12, which mounts EROFS from a file.
const CODENAME: &str = "trixie";

/// The names of that release's suite in Debian's archive, in the order in which they are tried. While a
/// mirror is being synchronised, the signed list under one name may not match its packages, and the one under
/// the other may.
const SUITES: &[&str] = &[CODENAME, "stable"];

/// The file beside the lists of packages whose time is that of their update.
const UPDATED: &str = "updated";

/// The age at which lists of packages are updated again. A mirror keeps the packages of a list for much longer.
const FRESH: Duration = Duration::from_secs(3600);

/// The unpacked files of a package for a processor, by Debian's names of both. Fetches the package if
/// necessary.
pub fn package(name: &str, processor: &str) -> Result<PathBuf, TaskError> {
    fetch(&[name], processor)?;
    dir_of(name, processor)
}

/// Fetches those of the packages that are missing, with one update of apt's lists for all.
pub fn fetch(names: &[&str], processor: &str) -> Outcome {
    if missing(names, processor)?.is_empty() {
        return Ok(());
    }
    let dir = Apt::directory(processor)?;
    let _lock = lock(&dir)?;
    // The previous owner of the lock may have fetched the same packages.
    let missing = missing(names, processor)?;
    if missing.is_empty() {
        return Ok(());
    }
    let apt = Apt::updated(&dir, processor)?;
    let packages: Vec<String> =
        missing.iter().map(|(name, _)| apt.package_of(name)).collect::<Result<_, _>>()?;
    // All at once: each start of apt reads its lists anew, which takes seconds.
    run_command(apt.command("apt-get").arg("download").args(&packages).current_dir(&apt.dir))?;
    for ((name, dir), package) in missing.into_iter().zip(&packages) {
        let record = apt.unpack(package, &dir)?;
        fs::write(record_of(name, processor)?, record)?;
    }
    Ok(())
}

/// The packages that are missing, and the directories for their files.
fn missing<'a>(names: &[&'a str], processor: &str) -> Result<Vec<(&'a str, PathBuf)>, TaskError> {
    let mut missing = Vec::new();
    for name in names {
        let dir = dir_of(name, processor)?;
        if !dir.is_dir() || !record_of(name, processor)?.is_file() {
            missing.push((*name, dir));
        }
    }
    Ok(missing)
}

/// The file with the line that identifies a package: its name in Debian, version, processor, and the SHA-256
/// of the file.
fn record_of(name: &str, processor: &str) -> Result<PathBuf, TaskError> {
    let mut file = dir_of(name, processor)?.into_os_string();
    file.push(".package");
    Ok(file.into())
}

/// The identifying lines of these packages, which must have been fetched.
pub fn records<'a>(names: impl IntoIterator<Item = &'a str>, processor: &str) -> Result<String, TaskError> {
    names.into_iter().map(|name| Ok(fs::read_to_string(record_of(name, processor)?)?)).collect()
}

/// Whether a package was fetched before.
pub fn is_here(name: &str, processor: &str) -> Result<bool, TaskError> {
    Ok(dir_of(name, processor)?.is_dir())
}

fn dir_of(name: &str, processor: &str) -> Result<PathBuf, TaskError> {
    // The name of a kernel package already contains the processor.
    let name_of_both = format!("{}-{processor}", name.trim_end_matches(&format!("-{processor}")));
    Ok(work("kernel")?.join(name_of_both))
}

/// The single file in `dir` whose name begins like this.
pub fn only(dir: &Path, begin: &str) -> Result<PathBuf, TaskError> {
    let mut found = fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin)));
    found.next().ok_or_else(|| format!("{} has no {begin}*", dir.display()).into())
}

/// The URI of Debian's archive that this machine's apt uses, whatever suite it uses from there.
pub fn mirror() -> Result<String, TaskError> {
    let targets = |options: &[String]| -> Result<Option<String>, TaskError> {
        let mut apt = Command::new("apt-get");
        apt.args(options);
        apt.args(["indextargets", "--format", "$(ORIGIN) $(LABEL) $(REPO_URI)", "Created-By: Packages"]);
        Ok(archive_among(&output(&mut apt)?).map(str::to_owned))
    };
    if let Some(uri) = targets(&[])? {
        return Ok(uri);
    }
    // apt knows the origin of a source only after it has fetched its lists: fetch them into a separate
    // directory, which needs no root.
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
        TaskError("apt on this machine has no source with the origin and label `Debian`: add one".into())
    })
}

/// apt's configuration for keeping its lists in a separate directory and changing nothing else.
fn own_directories(dir: &Path) -> String {
    let at = dir.display();
    // Hooks that this machine runs after its own updates, such as removing downloads, must not run here.
    format!(
        "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n\
         #clear APT::Update::Post-Invoke-Success;\n\
         Dir::State::lists \"{at}/lists\";\nDir::Cache \"{at}\";\nAcquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\nAPT::Sandbox::User \"root\";\n"
    )
}

/// The first URI of Debian itself among lines of origin, label and URI. Excludes derivatives of Debian, and
/// its security suites, which lie elsewhere.
fn archive_among(targets: &str) -> Option<&str> {
    targets.lines().find_map(|line| line.strip_prefix("Debian Debian "))
}

/// Locks a directory of apt, so that only one task in this checkout uses it.
pub fn lock(dir: &Path) -> Result<File, TaskError> {
    let lock = File::create(dir.with_extension("lock"))?;
    lock.lock()?;
    Ok(lock)
}

/// Unpacks packages with all packages that they depend on below an empty directory, by `unpack`, which gets the archives
/// and the directory.
///
/// # Errors
/// A package cannot be fetched or unpacked. There is no directory then.
pub(crate) fn unpack_with_dependencies(
    packages: &[&str],
    processor: &str,
    root: &Path,
    unpack: impl FnOnce(&[PathBuf], &Path) -> Outcome,
) -> Outcome {
    let dir = Apt::directory(processor)?;
    let _lock = lock(&dir)?;
    // Another process may have unpacked them while this one waited for the lock.
    if root.is_dir() {
        return Ok(());
    }
    let apt = Apt::updated(&dir, processor)?;
    let archives = apt.dir.join("archives");
    let _ = fs::remove_dir_all(&archives);
    let mut install = apt.command("apt-get");
    install.args(["--option", "Debug::NoLocking=1", "--yes", "--download-only", "--no-install-recommends"]);
    run_command(install.arg("install").args(packages))?;
    let new = root.with_extension("new");
    let _ = fs::remove_dir_all(&new);
    fs::create_dir_all(&new)?;
    let mut found: Vec<PathBuf> =
        fs::read_dir(&archives)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    found.sort();
    unpack(&found, &new)?;
    fs::rename(&new, root)?;
    Ok(fs::remove_dir_all(archives)?)
}

/// apt with a separate directory, which is [`lock`]ed.
pub struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// The directory with the lists of a processor's packages, which all tasks share.
    pub fn directory(processor: &str) -> Result<PathBuf, TaskError> {
        Ok(work("apt")?.join(processor))
    }

    /// An apt with updated lists of packages for a processor, from the first suite whose lists apt can
    /// verify. Lists that were updated less than [`FRESH`] ago are used again.
    pub fn updated(dir: &Path, processor: &str) -> Result<Apt, TaskError> {
        let updated = dir.join(UPDATED);
        let age = fs::metadata(&updated).and_then(|file| file.modified()).map(|time| time.elapsed());
        if age.is_ok_and(|age| age.is_ok_and(|age| age < FRESH)) {
            return Ok(Apt { dir: dir.to_owned() });
        }
        let mut failures = Vec::new();
        for suite in SUITES {
            let apt = Apt::new(dir, processor, suite)?;
            match run_command(apt.command("apt-get").arg("update")).and_then(|()| apt.require_codename()) {
                Ok(()) => {
                    fs::write(&updated, "")?;
                    return Ok(apt);
                }
                Err(TaskError(why)) => failures.push(format!("suite {suite}: {why}")),
            }
        }
        Err(TaskError(failures.join("; ")))
    }

    /// Rejects another release of Debian: later, `stable` will be the name of the next one.
    fn require_codename(&self) -> Outcome {
        let lists = self.dir.join("lists");
        for entry in fs::read_dir(&lists)? {
            let file = entry?.path();
            if file.to_string_lossy().ends_with("Release") {
                let release = fs::read_to_string(&file)?;
                return require_codename(&release);
            }
        }
        Err(TaskError(format!("{} has no release file", lists.display())))
    }

    fn new(dir: &Path, processor: &str, suite: &str) -> Result<Apt, TaskError> {
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

    /// The package with the files of a package. A kernel's package without a release in its name is empty, and depends
    /// on the one of the newest release.
    fn package_of(&self, wanted: &str) -> Result<String, TaskError> {
        if !wanted.starts_with("linux-image-") {
            return Ok(wanted.to_owned());
        }
        let needs = output(self.command("apt-cache").args(["depends", wanted]))?;
        let newest = needs.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
        Ok(newest.map_or(wanted.to_owned(), |release| format!("linux-image-{release}")))
    }

    /// Unpacks the files of a fetched package into a directory. Returns the line that identifies it.
    fn unpack(&self, package: &str, dir: &Path) -> Result<String, TaskError> {
        // The version follows in the file name.
        let archive = only(&self.dir, &format!("{package}_"))?;
        // Unpacked under another name and renamed, so that an existing directory is complete.
        let aside = dir.with_extension("new");
        let _ = fs::remove_dir_all(&aside);
        run_command(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&aside))?;
        let mut show = Command::new("dpkg-deb");
        let shown =
            show.args(["--show", "--showformat", "${Package} ${Version} ${Architecture}"]).arg(&archive);
        let shown = output(shown)?;
        let _ = fs::remove_dir_all(dir);
        fs::rename(&aside, dir)?;
        let digest = files::digits(&Sha256::digest(fs::read(&archive)?));
        fs::remove_file(archive)?;
        Ok(format!("{shown} {digest}\n"))
    }

    /// A command of apt, such as `apt-get`, with this configuration.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-qq").arg("--config-file").arg(self.dir.join("apt.conf"));
        command
    }
}

fn require_codename(release: &str) -> Outcome {
    let codename = release.lines().find_map(|line| line.strip_prefix("Codename: "));
    match codename.map(str::trim) {
        Some(CODENAME) => Ok(()),
        other => Err(TaskError(format!("its codename is {}, not {CODENAME}", other.unwrap_or("missing")))),
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
