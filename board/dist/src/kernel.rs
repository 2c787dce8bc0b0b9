//! The kernel of device images and of guests: Debian's, with its modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodlet_build::debian::{self, only};
use nodlet_build::files;
use nodlet_build::task::{Outcome, TaskError};

use super::tree::Tree;

/// A kernel of Debian.
pub struct Kernel {
    /// The release, for example `6.12.107+deb13-cloud-amd64`.
    pub release: String,
    /// The file that a boot loader loads.
    pub image: PathBuf,
    /// The directory of device trees, with one directory per manufacturer. Some processors have none.
    pub device_trees: PathBuf,
    /// The compressed modules, by name.
    files: BTreeMap<String, PathBuf>,
    /// The names of built-in modules.
    built_in: BTreeSet<String>,
    /// Whether the kernel loads modules as they are in its package, compressed by xz.
    unpacks_xz: bool,
}

/// A module of a kernel.
pub struct Module {
    /// Its name, with `_` in place of each `-`.
    pub name: String,
    /// The names of the modules that are loaded before it.
    pub needs: Vec<String>,
    /// Its file, in a form that the kernel loads.
    pub bytes: Vec<u8>,
    /// The module's file in the kernel's package.
    file: PathBuf,
}

/// The kernel of a Debian package for a processor. Fetches the package if necessary.
pub fn of(package: &str, processor: &str) -> Result<Kernel, TaskError> {
    let dir = debian::package(package, processor)?;
    // Debian's kernel for RISC-V is not compressed, and its name says so.
    let image = only(&dir.join("boot"), "vmlinuz-").or_else(|_| only(&dir.join("boot"), "vmlinux-"))?;
    let release = image
        .file_name()
        .and_then(|name| name.to_str()?.split_once('-'))
        .map(|(_, release)| release.to_owned())
        .ok_or("a kernel's name is text")?;
    let mut files = BTreeMap::new();
    find_modules(&dir.join("usr/lib/modules").join(&release), &mut files)?;
    let device_trees = dir.join("usr/lib").join(format!("linux-image-{release}"));
    let list = dir.join("usr/lib/modules").join(&release).join("modules.builtin");
    let list = files::read_text(&list)?;
    let built_in = list.lines().filter_map(|line| {
        // File names have '-' where the kernel uses '_'.
        Some(line.rsplit('/').next()?.strip_suffix(".ko")?.replace('-', "_"))
    });
    let config = dir.join("boot").join(format!("config-{release}"));
    let config = files::read_text(&config)?;
    let unpacks_xz = unpacks_xz(&config);
    Ok(Kernel { release, image, device_trees, files, built_in: built_in.collect(), unpacks_xz })
}

/// Whether a kernel with this configuration decompresses modules itself.
fn unpacks_xz(config: &str) -> bool {
    ["CONFIG_MODULE_DECOMPRESS=y", "CONFIG_MODULE_COMPRESS_XZ=y"]
        .iter()
        .all(|wanted| config.lines().any(|line| line == *wanted))
}

impl Kernel {
    /// A kernel without modules, for tests.
    #[cfg(test)]
    pub fn of_files(release: &str, device_trees: &Path) -> Kernel {
        Kernel {
            release: release.to_owned(),
            image: PathBuf::new(),
            device_trees: device_trees.to_owned(),
            files: BTreeMap::new(),
            built_in: BTreeSet::new(),
            unpacks_xz: false,
        }
    }

    /// The first of these modules that the kernel has neither as a file nor built in.
    pub fn missing<'a>(&self, wanted: &[&'a str]) -> Option<&'a str> {
        wanted.iter().copied().find(|name| !self.files.contains_key(*name) && !self.built_in.contains(*name))
    }

    /// These modules and everything that they need; built-in ones need no file.
    pub fn modules(&self, wanted: &[&str]) -> Result<Vec<Module>, TaskError> {
        let mut open: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let mut found: Vec<Module> = Vec::new();
        while let Some(name) = open.pop() {
            let Some(file) = self.files.get(&name) else { continue };
            if found.iter().any(|module| module.name == name) {
                continue;
            }
            let bytes = decompress(file)?;
            let mut needs = needs(&bytes);
            needs.extend(self.asked_for(&bytes));
            open.extend(needs.iter().cloned());
            found.push(Module { name, needs, bytes, file: file.clone() });
        }
        Ok(found)
    }

    /// The modules that a module requests while it is loaded, if this kernel has them as files. They are
    /// requested by aliases: `crc32c` means any implementation of that checksum.
    fn asked_for(&self, module: &[u8]) -> Vec<String> {
        let names = softdeps(module);
        let files = names.iter().filter_map(|name| {
            let general = format!("{name}_generic");
            [name, &general].into_iter().find(|name| self.files.contains_key(*name)).cloned()
        });
        files.collect()
    }

    /// Writes these modules and everything that they need to the directory in which a board's init looks,
    /// with their order. They stay compressed if this kernel can decompress them, because an initramfs takes
    /// RAM.
    pub fn add_modules(&self, tree: &mut Tree, wanted: &[&str]) -> Outcome {
        let mut list = String::new();
        for module in self.in_order(wanted)? {
            let is_xz = self.unpacks_xz && module.file.extension().is_some_and(|ending| ending == "xz");
            let (ending, bytes) =
                if is_xz { ("ko.xz", fs::read(&module.file)?) } else { ("ko", module.bytes) };
            let file = format!("{}.{ending}", module.name);
            tree.file(&format!("/usr/lib/nodlet/modules/{file}"), 0o644, bytes);
            list.push_str(&file);
            list.push('\n');
        }
        tree.file("/usr/lib/nodlet/modules/list", 0o644, list);
        Ok(())
    }

    /// These modules and everything that they need, in the order of their dependencies.
    fn in_order(&self, wanted: &[&str]) -> Result<Vec<Module>, TaskError> {
        let mut left = self.modules(wanted)?;
        let mut ordered: Vec<Module> = Vec::new();
        while !left.is_empty() {
            let is_ready = |module: &Module| !left.iter().any(|other| module.needs.contains(&other.name));
            let ready = left.iter().position(is_ready).ok_or("modules need each other in a circle")?;
            ordered.push(left.remove(ready));
        }
        Ok(ordered)
    }
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
            // File names have '-' where the kernel uses '_'.
            found.insert(module.replace('-', "_"), entry.path());
        }
    }
    Ok(())
}

fn decompress(file: &Path) -> Result<Vec<u8>, TaskError> {
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

/// The modules that a module needs: `depends=a,b` in its `.modinfo`.
fn needs(module: &[u8]) -> Vec<String> {
    names(information(module, b"depends="), ',')
}

/// The modules that a module requests before it is loaded: `softdep=pre: a b post: c` in its `.modinfo`.
fn softdeps(module: &[u8]) -> Vec<String> {
    let text = information(module, b"softdep=");
    let before = text.split("post:").next().and_then(|text| text.trim().strip_prefix("pre:"));
    names(before.unwrap_or_default().to_owned(), ' ')
}

/// The value of a key in `.modinfo`, a list of strings that end in NUL. Arbitrary bytes may precede the first
/// string.
fn information(module: &[u8], key: &[u8]) -> String {
    let mut found =
        module.windows(key.len()).enumerate().filter(|(_, window)| *window == key).map(|(at, _)| at);
    let first = found.clone().next();
    let after_another = found.find(|at| at.checked_sub(1).is_some_and(|before| module[before] == 0));
    let Some(at) = after_another.or(first) else { return String::new() };
    let value = module[at + key.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(value).into_owned()
}

fn names(text: String, separator: char) -> Vec<String> {
    text.split(separator).filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_decompresses_modules_only_if_configured() {
        let config = "CONFIG_MODULES=y\nCONFIG_MODULE_COMPRESS_XZ=y\nCONFIG_MODULE_DECOMPRESS=y\n";
        assert!(unpacks_xz(config));
        assert!(!unpacks_xz(&config.replace("COMPRESS_XZ", "COMPRESS_ZSTD")));
        assert!(!unpacks_xz(
            &config.replace("CONFIG_MODULE_DECOMPRESS=y", "# CONFIG_MODULE_DECOMPRESS is not set")
        ));
    }

    #[test]
    fn dependencies_are_read_from_the_kernel_module_itself() {
        let bytes = b"\x7fELF\0license=GPL\0depends=stp,llc\0name=bridge\0";
        assert_eq!(needs(bytes), ["stp", "llc"]);
        assert_eq!(needs(b"\0depends=\0name=veth\0"), Vec::<String>::new());
        assert_eq!(needs(b"no module at all"), Vec::<String>::new());
        let bytes = b"\x7fELF\0softdep=pre: crc32c a-b post: c\0depends=\0name=libcrc32c\0";
        assert_eq!(softdeps(bytes), ["crc32c", "a_b"]);
        assert_eq!(softdeps(b"\0softdep=post: c\0"), Vec::<String>::new());
        // The key is at the beginning of its section.
        assert_eq!(softdeps(b"\x08softdep=pre: crc32c\0depends=\0"), ["crc32c"]);
        assert_eq!(needs(b"no depends=no\0depends=yes\0"), ["yes"]);
    }
}
