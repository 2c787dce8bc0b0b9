//! The guests' kernel: Debian's, with its modules, of a suite that is new enough
//! whatever this machine runs. Fetched once into `.work/kernel`, with lists of
//! packages of our own: the machine's are not touched, and nothing is installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Failure, Outcome, run as run_command, work};

/// With Linux 6.12, which mounts EROFS from a file.
const SUITE: &str = "trixie";

pub(super) struct Kernel {
    /// `6.12.107+deb13-cloud-amd64`.
    pub(super) release: String,
    pub(super) image: PathBuf,
    /// The compressed modules by name.
    files: BTreeMap<String, PathBuf>,
}

pub(super) struct Module {
    pub(super) name: String,
    pub(super) needs: Vec<String>,
    pub(super) bytes: Vec<u8>,
}

/// The kernel for a processor, as Debian calls it, fetched if it is not here yet.
pub(super) fn get(processor: &str) -> Result<Kernel, Failure> {
    // For virtual machines: what QEMU has, and a third of the size.
    let package = format!("linux-image-cloud-{processor}");
    let dir = work("kernel")?.join(&package);
    if !dir.join("boot").is_dir() {
        fetch(&package, processor, &dir)?;
    }
    let image = only(&dir.join("boot"), "vmlinuz-")?;
    let release = image
        .file_name()
        .and_then(|name| name.to_str()?.strip_prefix("vmlinuz-"))
        .ok_or("a kernel's name is text")?
        .to_owned();
    let mut files = BTreeMap::new();
    find_modules(&dir.join("usr/lib/modules").join(&release), &mut files)?;
    Ok(Kernel { release, image, files })
}

impl Kernel {
    /// These modules and all that they need; those that the kernel has built in need no file.
    pub(super) fn modules(&self, wanted: &[&str]) -> Result<Vec<Module>, Failure> {
        let mut open: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut found: Vec<Module> = Vec::new();
        while let Some(name) = open.pop() {
            let Some(file) = self.files.get(&name) else { continue };
            if found.iter().any(|module| module.name == name) {
                continue;
            }
            let bytes = decompress(file)?;
            let needs = needs(&bytes);
            open.extend(needs.iter().cloned());
            found.push(Module { name, needs, bytes });
        }
        Ok(found)
    }
}

fn fetch(wanted: &str, processor: &str, dir: &Path) -> Outcome {
    let apt = Apt::new(&work("kernel")?.join("apt"), processor)?;
    run_command(apt.command("apt-get").arg("update"))?;
    // The package of that name is empty and needs the one of the newest release.
    let needs = apt.command("apt-cache").args(["depends", wanted]).output()?;
    let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
    let package = needs
        .lines()
        .find_map(|line| line.trim().strip_prefix("Depends: linux-image-"))
        .ok_or_else(|| format!("Debian's {SUITE} has no {wanted}"))?;
    let package = format!("linux-image-{package}");
    run_command(apt.command("apt-get").args(["download", &package]).current_dir(&apt.dir))?;
    let archive = only(&apt.dir, &package)?;
    // Aside and then in place: what is there is whole.
    let aside = dir.with_extension("new");
    let _ = fs::remove_dir_all(&aside);
    run_command(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&aside))?;
    fs::rename(&aside, dir)?;
    Ok(fs::remove_dir_all(&apt.dir)?)
}

/// apt with a directory of its own.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn new(dir: &Path, processor: &str) -> Result<Apt, Failure> {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir.join("lists/partial"))?;
        let sources = format!(
            "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: {SUITE}\nComponents: main\n\
             Architectures: {processor}\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        fs::write(dir.join("debian.sources"), sources)?;
        // What this machine does after its own updates, as removing what it fetched, is not for ours.
        let at = dir.display();
        let config = format!(
            "#clear APT::Update::Pre-Invoke;\n#clear APT::Update::Post-Invoke;\n\
             #clear APT::Update::Post-Invoke-Success;\n\
             Dir::State::lists \"{at}/lists\";\nDir::State::status \"/dev/null\";\nDir::Cache \"{at}\";\n\
             Dir::Etc::sourcelist \"{at}/debian.sources\";\nDir::Etc::sourceparts \"/dev/null\";\n\
             Acquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
             APT::Architecture \"{processor}\";\nAPT::Sandbox::User \"root\";\n"
        );
        fs::write(dir.join("apt.conf"), config)?;
        Ok(Apt { dir: dir.to_owned() })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-qq").arg("--config-file").arg(self.dir.join("apt.conf"));
        command
    }
}

/// The one file of `dir` whose name begins so.
fn only(dir: &Path, begin: &str) -> Result<PathBuf, Failure> {
    let mut found = fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(begin)));
    found.next().ok_or_else(|| format!("{} has no {begin}*", dir.display()).into())
}

fn find_modules(dir: &Path, found: &mut BTreeMap<String, PathBuf>) -> Outcome {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            find_modules(&entry.path(), found)?;
        } else if let Some((module, "xz" | "")) =
            name.split_once(".ko").map(|(m, c)| (m, c.trim_start_matches('.')))
        {
            // Files say '-' where the kernel says '_'.
            found.insert(module.replace('-', "_"), entry.path());
        }
    }
    Ok(())
}

fn decompress(file: &Path) -> Result<Vec<u8>, Failure> {
    if file.extension().is_some_and(|ending| ending == "ko") {
        return Ok(fs::read(file)?);
    }
    let output = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .arg(file)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("failed to run xz: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!("xz cannot unpack {}", file.display()).into())
    }
}

/// The modules that one needs: `depends=a,b` in its `.modinfo`, a list of strings that end in NUL.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = module[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_module_needs_stands_in_it() {
        let bytes = b"\x7fELF\0license=GPL\0depends=stp,llc\0name=bridge\0";
        assert_eq!(needs(bytes), ["stp", "llc"]);
        assert_eq!(needs(b"\0depends=\0name=veth\0"), Vec::<String>::new());
        assert_eq!(needs(b"no module at all"), Vec::<String>::new());
    }
}
