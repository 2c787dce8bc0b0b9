//! `cargo xtask image PROFILE`: builds the files that a board boots, from its profile, with pods and their
//! images.
//!
//! In RAM form, an image has three files in `.work/boards/PROFILE`: the kernel, an initramfs with everything
//! else, and the kernel's command line. Everything but nodlet is Debian's for the board's processor. Root is
//! not needed, and the same sources give the same bytes with the same packages of Debian, which the file
//! `packages` lists.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use nodlet_build::arguments::Arguments;
use nodlet_build::debian;
use nodlet_build::files;
use nodlet_build::task::{Outcome, Task, TaskError, project, work};
use nodlet_build::{cross, targets};

use crate::boot_files;
use crate::disk;
use crate::kernel::{self, Kernel};
use crate::profile::{self, Profile, Program, Storage};
use crate::tree::{Tree, below, below_usr};

mod board_json;
mod boot_commands;
mod contents;
mod source_date;

pub use boot_commands::LEAST_DISK_MEMORY_MIB;
pub use contents::Contents;
pub(crate) use source_date::of_source;
pub use source_date::seconds as source_date;

/// The files of a device image, which has at least one of these forms.
pub struct DeviceImage {
    /// The form that runs in RAM; `None` for an image that does not fit there.
    pub ram: Option<RamForm>,
    /// The flashable form, for a board with `[storage]`.
    pub disk: Option<PathBuf>,
}

/// The three files that a boot loader loads. After that, the board needs no medium.
pub struct RamForm {
    /// The kernel.
    pub kernel: PathBuf,
    /// Everything else, as the kernel unpacks it into RAM.
    pub initramfs: PathBuf,
    /// The kernel's command line.
    pub command_line: PathBuf,
}

impl RamForm {
    /// The files of this form in a directory.
    pub fn in_directory(directory: &Path) -> RamForm {
        RamForm {
            kernel: directory.join("kernel"),
            initramfs: directory.join("initramfs"),
            command_line: directory.join("command-line"),
        }
    }

    /// The files, the kernel first.
    pub fn files(&self) -> [&PathBuf; 3] {
        [&self.kernel, &self.initramfs, &self.command_line]
    }
}

impl DeviceImage {
    /// The files of all forms.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.ram.iter().flat_map(RamForm::files).chain(&self.disk)
    }
}

/// The task `cargo xtask image`.
pub const TASK: Task = Task::new(
    "image",
    "PROFILE [--pod FILE]... [--oci FILE]... [--ssh-key FILE]... [--push-key FILE]... [--config FILE] [--bootstrap-kubeconfig FILE] [--firmware DIR]",
    "build what a board of board/profiles boots, with pods and images in it, into .work/boards/PROFILE",
    run,
);

fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let contents = Contents {
        pods: arguments.all("--pod")?,
        archives: arguments.all("--oci")?,
        ssh_keys: arguments.all("--ssh-key")?,
        push_keys: arguments.all("--push-key")?,
        config: arguments.one("--config")?,
        bootstrap_kubeconfig: arguments.one("--bootstrap-kubeconfig")?,
        firmware: arguments.one("--firmware")?,
    };
    let names = arguments.names()?;
    let [name] = &*names else {
        let known = profile::known()?.join(", ");
        return Err(TaskError(format!("{}; profiles are {known}", TASK.misused().0)));
    };
    let profile = profile::get(name)?;
    // Checked first, so that a missing file is not reported only after minutes.
    let keys = contents.ssh_keys.iter().chain(&contents.push_keys);
    let single = contents.config.iter().chain(&contents.bootstrap_kubeconfig);
    for file in contents.pods.iter().chain(&contents.archives).chain(keys).chain(single) {
        File::open(file).map_err(|error| format!("failed to open {}: {error}", file.display()))?;
    }
    if profile.services.contains(&Program::Ssh)
        && contents.ssh_keys.is_empty()
        && contents.push_keys.is_empty()
    {
        let named = match &contents.config {
            Some(file) => {
                let text = files::read(file)?;
                // A file that is not text is rejected later, with its other faults.
                let is_key = |line: &str| ["ssh-key", "push-key"].iter().any(|key| line.starts_with(key));
                String::from_utf8_lossy(&text).lines().any(|line| is_key(line.trim_start()))
            }
            None => false,
        };
        if !named {
            eprintln!(
                "Warning: nobody can log in to a board with this image unless its nodlet.conf has a key: use \
                 --ssh-key FILE, or ssh-key in the file of --config"
            );
        }
    }
    let directory = work(&format!("boards/{}", profile.name))?;
    let image = build(&profile, &contents, &directory)?;
    for file in image.files() {
        println!("{}: {} bytes", file.display(), fs::metadata(file)?.len());
    }
    println!("{}: the packages of Debian in it", directory.join("packages").display());
    let firmware =
        profile.qemu.as_ref().and_then(|qemu| qemu.firmware.as_ref()).filter(|_| image.disk.is_some());
    let unpacked = firmware.and_then(|firmware| {
        let unpacked = debian::package(&firmware.package, &profile.debian);
        if let Err(TaskError(why)) = &unpacked {
            eprintln!("Warning: the firmware for QEMU was not unpacked, install {}: {why}", firmware.package);
        }
        unpacked.ok()
    });
    print!("{}", boot_commands::of(&profile, &image, unpacked.as_deref()));
    Ok(())
}

/// Builds the image of a board in a directory.
pub fn build(profile: &Profile, contents: &Contents, directory: &Path) -> Result<DeviceImage, TaskError> {
    // Everything that may be missing or wrong is checked before the steps that take minutes.
    contents.require()?;
    let baked = contents.bake(profile, directory)?;
    let target = targets::get(&profile.target).map_err(|error| profile.wrong("target", error))?;
    let kernel = kernel_of(profile)?;
    let boot_files = boot_files::of(profile, &kernel, contents.firmware.as_deref(), &profile.command_line)?;
    eprintln!("Building nodlet for {} (some minutes the first time)", profile.name);
    let program = cross::build(target)?;
    let new = directory.join("initramfs.new");
    let mut tree = Tree::default();
    tree.file("/usr/bin/nodlet", 0o755, fs::read(&program)?);
    tree.link("/init", "usr/bin/nodlet");
    add_system(&mut tree, profile)?;
    add_board(&mut tree, profile, &kernel)?;
    contents.add(&mut tree, &baked)?;
    let mut unpacked = Vec::new();
    tree.write_cpio(&mut unpacked)?;
    // A compression level that the emulated board decompresses quickly; the gzip header has no time.
    let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
    compressed.write_all(&unpacked)?;
    files::write(&new, compressed.finish()?)?;
    // An image that does not fit must leave the files of the former one unchanged.
    let sizes = [unpacked.len() as u64, fs::metadata(&new)?.len(), fs::metadata(&kernel.image)?.len()];
    let parts = disk::Parts {
        kernel: &kernel,
        tree: &tree,
        nodlet: &program,
        config: contents.config.as_deref(),
        firmware: contents.firmware.as_deref(),
    };
    let (fits, disk) = forms(profile, sizes, |storage| disk::build(profile, storage, &parts, directory))
        .inspect_err(|_| drop(fs::remove_file(&new)))?;
    let ram = RamForm::in_directory(directory);
    if fits {
        fs::rename(&new, &ram.initramfs)?;
        fs::copy(&kernel.image, &ram.kernel)?;
        fs::write(&ram.command_line, format!("{}\n", profile.command_line))?;
    } else {
        // Files of a former image would not belong to the new disk.
        for file in ram.files().into_iter().chain([&new]) {
            let _ = fs::remove_file(file);
        }
    }
    let image = DeviceImage { ram: fits.then_some(ram), disk };
    fs::write(directory.join("packages"), packages_of(profile)?)?;
    let _ = fs::remove_dir_all(directory.join("boot"));
    for (path, bytes) in boot_files {
        let file = directory.join("boot").join(path);
        fs::create_dir_all(file.parent().ok_or("it lies in a directory")?)?;
        files::write(&file, bytes)?;
    }
    Ok(image)
}

/// The kernel of a board, which must have all modules that the profile names.
fn kernel_of(profile: &Profile) -> Result<Kernel, TaskError> {
    let kernel = kernel::of(&profile.kernel, &profile.debian).map_err(|error| {
        profile.wrong(&format!("kernel {:?} for debian {:?}", profile.kernel, profile.debian), error)
    })?;
    let of_medium = profile.storage.as_ref().map(|storage| storage.modules.as_slice());
    for (key, modules) in
        [("modules", profile.modules.as_slice()), ("storage.modules", of_medium.unwrap_or_default())]
    {
        let wanted: Vec<&str> = modules.iter().map(String::as_str).collect();
        if let Some(name) = kernel.missing(&wanted) {
            let (profile, package) = (&profile.name, &profile.kernel);
            return Err(TaskError(format!("board/profiles/{profile}.toml: {key}: {package} has no {name}")));
        }
    }
    Ok(kernel)
}

/// Checks that the kernel's package has what the profile names of it.
///
/// # Errors
/// The package lacks a module or the device tree.
pub fn require_kernel(profile: &Profile) -> Outcome {
    let kernel = kernel_of(profile)?;
    let without_firmware = Profile { firmware: Vec::new(), ..profile.clone() };
    boot_files::of(&without_firmware, &kernel, None, &profile.command_line).map(drop)
}

/// A line for each Debian package of which an image was made.
fn packages_of(profile: &Profile) -> Result<String, TaskError> {
    let mut names = package_names(profile);
    // The package of the C library with which nodlet is linked, unless it is rustup's.
    if debian::is_here("musl-dev", &profile.debian)? {
        names.push("musl-dev");
    }
    debian::records(names, &profile.debian)
}

/// The texts of the licences of everything in an image: nodlet's crates, and the packages of Debian.
pub(crate) fn licences_of(profile: &Profile) -> Result<String, TaskError> {
    let mut all = fs::read_to_string(project().join(nodlet_build::deny::TEXTS))?;
    for name in package_names(profile) {
        let documents = debian::package(name, &profile.debian)?.join("usr/share/doc");
        let own = documents.join(name);
        // A package that shares its source with another names that one's directory.
        let (owner, documents) = match fs::read_link(&own) {
            Ok(owner) => {
                let owner = owner.to_str().ok_or("a package's name is text")?.to_owned();
                let documents = debian::package(&owner, &profile.debian)?.join("usr/share/doc");
                (owner, documents)
            }
            // The package of a kernel has the name of its version.
            Err(_) if !own.is_dir() => (
                debian::only(&documents, "")?.file_name().unwrap_or_default().to_string_lossy().into(),
                documents,
            ),
            Err(_) => (name.to_owned(), documents),
        };
        let file = documents.join(owner).join("copyright");
        let text = fs::read_to_string(&file)
            .map_err(|error| format!("no licence of {name}: {}: {error}", file.display()))?;
        all.push_str(&format!("==== Debian package {name}\n\n{}\n\n", text.trim_end()));
    }
    Ok(all)
}

/// Debian's packages in an image.
fn package_names(profile: &Profile) -> Vec<&str> {
    let ssh = if profile.services.contains(&Program::Ssh) { SSH_PACKAGES } else { &[] };
    let mut names = vec![profile.kernel.as_str()];
    for package in PACKAGES.iter().chain(ssh) {
        names.push(package);
    }
    for package in profile.storage.iter().flat_map(disk::packages) {
        names.push(package);
    }
    names
}

/// Determines the forms of an image: whether it fits into RAM, and its disk, which `build_disk` writes.
///
/// # Errors
/// The image would have no form.
fn forms(
    profile: &Profile,
    sizes: [u64; 3],
    build_disk: impl FnOnce(&Storage) -> Result<PathBuf, TaskError>,
) -> Result<(bool, Option<PathBuf>), TaskError> {
    let fits = require_fit(profile, sizes);
    match (&profile.storage, fits) {
        (None, fits) => fits.map(|()| (true, None)),
        (Some(storage), Ok(())) => Ok((true, Some(build_disk(storage)?))),
        (Some(storage), Err(TaskError(why))) => {
            let disk = build_disk(storage)?;
            eprintln!("Warning: {why}: it has a disk alone, and no files for RAM");
            Ok((false, Some(disk)))
        }
    }
}

/// Rejects an initramfs that the board cannot unpack: kernel and archive are in RAM at the same time, and the
/// files may fill half of the rest. An image that passes may still be too large, because only the running
/// kernel knows how much memory it uses itself.
fn require_fit(profile: &Profile, [unpacked, compressed, kernel]: [u64; 3]) -> Outcome {
    let [needed, memory] = [2 * unpacked + compressed + kernel, u64::from(profile.memory_mib) << 20];
    if needed <= memory {
        return Ok(());
    }
    Err(TaskError(format!(
        "the image does not fit into the {} MiB of {}: kernel, initramfs and its files need {} MiB",
        profile.memory_mib,
        profile.name,
        needed.div_ceil(1 << 20)
    )))
}

/// Debian's packages on every board, besides the kernel's: a shell.
const PACKAGES: &[&str] = &["busybox-static"];

/// Debian's packages on boards with the service `ssh`: the SSH server with its libraries, and the programs
/// that serve `scp` and `sftp`.
const SSH_PACKAGES: &[&str] = &[
    "dropbear-bin",
    "libc6",
    "libcrypt1",
    "libgcc-s1",
    "libgmp10",
    "libtomcrypt1",
    "libtommath1",
    "openssh-sftp-server",
    "zlib1g",
];

/// Parts of those packages that are omitted, because nothing on a board reads them.
const LEFT_OUT: &[&str] = &["usr/share", "usr/lib/locale", "etc", "usr/sbin/dropbearconvert"];

/// Files and directories of the C library's package, anywhere in it, that are omitted because none of those
/// programs opens them: converters between character sets, mathematics, and help for debuggers.
const LEFT_OUT_OF_LIBC: &[&str] =
    &["gconv", "libm.so.6", "libmvec.so.1", "libthread_db.so.1", "libc_malloc_debug.so.0"];

/// Programs that are links to busybox. Its other programs run as `busybox NAME`.
const TOOLS: &[&str] =
    &["sh", "ls", "cat", "mkdir", "rm", "mv", "cp", "ps", "df", "dmesg", "mount", "ip", "ping", "vi"];

fn add_system(tree: &mut Tree, profile: &Profile) -> Outcome {
    // As in Debian: programs name the loader by a path in /lib.
    for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib")] {
        tree.link(link, target);
    }
    if profile.debian == "amd64" {
        tree.link("lib64", "usr/lib64");
    }
    let ssh = if profile.services.contains(&Program::Ssh) { SSH_PACKAGES } else { &[] };
    let packages = [PACKAGES, ssh].concat();
    debian::fetch(&packages, &profile.debian)?;
    for package in packages {
        let files = debian::package(package, &profile.debian)?;
        for source in below(&files)?.iter().filter(|source| !source.metadata.is_dir()) {
            let name = source.name.as_str();
            let is_in = |left_out: &&str| {
                name.strip_prefix(*left_out).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            if LEFT_OUT.iter().any(is_in) || name.split('/').any(|part| LEFT_OUT_OF_LIBC.contains(&part)) {
                continue;
            }
            tree.add(&below_usr(name), source)?;
        }
    }
    for tool in TOOLS {
        tree.link(&format!("/usr/bin/{tool}"), "busybox");
    }
    let mut licences = GzEncoder::new(Vec::new(), Compression::best());
    licences.write_all(licences_of(profile)?.as_bytes())?;
    tree.file("/usr/share/doc/nodlet/copyright.gz", 0o644, licences.finish()?);
    let texts = [
        (
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnodlet:x:900:900:nodlet:/home/nodlet:/bin/sh\n\
             nobody:x:65534:65534:nobody:/:/bin/false\n",
        ),
        ("/etc/group", "root:x:0:\ntty:x:5:\nnodlet:x:900:\nnogroup:x:65534:\n"),
        ("/etc/shells", "/bin/sh\n"),
        ("/etc/hosts", "127.0.0.1 localhost\n"),
    ];
    for (path, text) in texts {
        tree.file(path, 0o644, text);
    }
    // Process 1 writes the keys of each user, and the SSH server looks for them below the user's home.
    for (home, keys) in [("/root", "../run/ssh/root"), ("/home/nodlet", "../../run/ssh/nodlet")] {
        tree.directory(home);
        tree.link(&format!("{home}/.ssh"), keys);
    }
    // The board's network service writes this file.
    tree.link("/etc/resolv.conf", "../run/nodlet/resolv.conf");
    for directory in ["/etc/nodlet/manifests", "/var/lib/nodlet", "/proc", "/sys", "/dev", "/run", "/tmp"] {
        tree.directory(directory);
    }
    Ok(())
}

/// Adds the files for the board's init: the description of the board, and modules with their order.
fn add_board(tree: &mut Tree, profile: &Profile, kernel: &Kernel) -> Outcome {
    tree.file(
        "/usr/lib/nodlet/board.json",
        0o644,
        serde_json::to_vec(&board_json::of(profile, source_date()?))?,
    );
    add_limits(tree, profile);
    let mut wanted: Vec<&str> = profile.modules.iter().map(String::as_str).collect();
    wanted.extend(profile.storage.iter().flat_map(disk::modules));
    kernel.add_modules(tree, &wanted)
}

/// Adds limits that also apply without an agent.
fn add_limits(tree: &mut Tree, profile: &Profile) {
    if let Some(size) = &profile.images.max_size {
        tree.file("/etc/nodlet/image-store-limit", 0o644, format!("{size}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_the_image_store_is_written_where_image_loading_reads_it() {
        let mut profile = profile::get("qemu-arm64").unwrap();
        let file = |profile: &Profile| {
            let mut tree = Tree::default();
            add_limits(&mut tree, profile);
            tree.get("etc/nodlet/image-store-limit").is_some()
        };
        assert!(file(&profile));
        profile.images.max_size = None;
        assert!(!file(&profile));
    }

    #[test]
    fn an_image_that_does_not_fit_into_the_boards_memory_is_rejected() {
        let profile = profile::get("qemu-arm64").unwrap();
        let memory = u64::from(profile.memory_mib) << 20;
        require_fit(&profile, [memory / 4; 3]).unwrap();
        let why = require_fit(&profile, [memory / 4, memory / 4, memory / 4 + 1]).unwrap_err().0;
        assert!(why.contains("into the 128 MiB of qemu-arm64") && why.contains("need 129 MiB"), "{why}");
    }

    #[test]
    fn an_image_that_does_not_fit_into_memory_has_a_disk_alone_if_the_board_has_one() {
        let mut profile = profile::get("qemu-arm64").unwrap();
        let memory = u64::from(profile.memory_mib) << 20;
        let of = |profile: &Profile, size: u64| forms(profile, [size; 3], |_| Ok("disk".into())).ok();
        assert_eq!(of(&profile, memory / 4), Some((true, Some("disk".into()))));
        assert_eq!(of(&profile, memory), Some((false, Some("disk".into()))));
        profile.storage = None;
        assert_eq!(of(&profile, memory / 4), Some((true, None)));
        assert_eq!(of(&profile, memory), None);
    }
}
