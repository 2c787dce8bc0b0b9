//! The flashable form of a device image: `disk`, a GPT disk for a card, an eMMC or a virtual disk.
//!
//! ```text
//! 1 boot   FAT: boot loader, kernel, first initramfs, and what a user puts there
//! 2 root   EROFS, read-only: everything else
//! 3 data   not in the image: `nodlet init` makes it of the rest of the medium at the first boot
//! ```
//!
//! The root's tree is that of the initramfs form, read back from its archive, plus the programs that create
//! and check file systems. All identifiers are derived from the content, and nothing has a time: the same
//! sources give the same bytes. Root is not needed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Cursor, Write};
use std::path::{Path, PathBuf};

use fatfs::{FormatVolumeOptions, FsOptions};
use flate2::Compression;
use flate2::write::GzEncoder;
use gpt::partition::Partition;
use gpt::partition_types;
use nodlet_build::debian;
use nodlet_build::task::{Outcome, TaskError};
use sha2::{Digest, Sha256};

use crate::boot_files;
use crate::kernel::Kernel;
use crate::profile::{Loader, Profile, Storage};
use crate::tree::{Tree, below, below_usr};

mod hybrid;

/// The unit of sizes in bytes, and the alignment of partitions.
const MIB: u64 = 1024 * 1024;
const SECTOR: u64 = 512;

/// Modules in the first initramfs, besides the profile's, which are needed up to the mount of the root.
const ROOT_MODULES: &[&str] = &["crc32c_generic", "erofs"];

/// Modules for mounting the other partitions and `/etc`.
const MODULES: &[&str] =
    &["crc32c_generic", "erofs", "ext4", "nls_cp437", "nls_ascii", "nls_utf8", "vfat", "overlay"];

/// Debian's packages of the programs that create and check the data partition; `PROGRAMS` are the needed
/// files.
const PACKAGES: &[&str] = &["e2fsprogs", "libblkid1", "libcom-err2", "libext2fs2t64", "libuuid1"];
const PROGRAMS: &[&str] = &["mke2fs", "e2fsck"];

/// Debian's package of the boot loader for a board with UEFI.
const UEFI_LOADER: &str = "systemd-boot-efi";

/// Directories on which the board mounts something or that it watches: they cannot be created in a read-only
/// root.
const DIRECTORIES: &[&str] = &[
    "",
    "boot",
    "dev",
    "proc",
    "run",
    "sys",
    "tmp",
    "usr/lib/nodlet/images",
    "usr/lib/nodlet/manifests",
    "var",
];

/// The configuration of e2fsck: a board without a clock may write times of 1970 after later ones, which is no
/// damage.
const E2FSCK: &str = "[options]\nbroken_system_clock = true\n";

/// The parts of the disk, besides the profile.
pub(crate) struct Parts<'a> {
    pub(crate) kernel: &'a Kernel,
    /// The initramfs form: an archive compressed by gzip.
    pub(crate) tree: &'a Tree,
    /// The built program.
    pub(crate) nodlet: &'a Path,
    /// The directory with the files that the board's own boot loader needs.
    pub(crate) config: Option<&'a Path>,
    /// Where the files lie that the board's own boot loader needs.
    pub(crate) firmware: Option<&'a Path>,
}

/// Debian's packages whose files are on a disk.
pub(crate) fn packages(storage: &Storage) -> Vec<&'static str> {
    let loader = (storage.loader == Loader::Uefi).then_some(UEFI_LOADER);
    PACKAGES.iter().copied().chain(loader).collect()
}

/// Modules that are loaded at boot because of the partitions.
pub(crate) fn modules(storage: &Storage) -> impl Iterator<Item = &str> {
    storage.modules.iter().map(String::as_str).chain(MODULES.iter().copied())
}

/// Writes `disk` into `directory`.
pub(crate) fn build(
    profile: &Profile,
    storage: &Storage,
    parts: &Parts<'_>,
    directory: &Path,
) -> Result<PathBuf, TaskError> {
    let root = directory.join("root.erofs");
    let digest = write_root(profile, parts, &root)?;
    let root_id = identifier(&[b"root", &digest]);
    let command_line = format!("{} gpt root=PARTUUID={root_id}", profile.command_line);
    let initramfs = first_initramfs(storage, parts)?;
    let mut files = loader_files(profile, storage, parts, initramfs, &command_line)?;
    let volume_id = u32::from_le_bytes(digest[..4].try_into().expect("a digest is longer"));
    let boot = fat(storage, volume_id, &mut files)?;
    let sizes = Sizes { boot: boot.len() as u64, root: fs::metadata(&root)?.len().next_multiple_of(MIB) };
    sizes.check(profile, storage).inspect_err(|_| drop(fs::remove_file(&root)))?;

    let new = directory.join("disk.new");
    let disk = directory.join("disk");
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&new)?;
    file.set_len(sizes.image())?;
    let boot_id = identifier(&[b"boot", &Sha256::digest(&boot)]);
    let disk_id = identifier(&[profile.name.as_bytes(), root_id.as_bytes(), boot_id.as_bytes()]);
    write_table(&mut file, &sizes, disk_id, boot_id, root_id)?;
    if storage.loader == Loader::RaspberryPi {
        hybrid::write(&mut file, &sizes)?;
    }
    io::Seek::seek(&mut file, io::SeekFrom::Start(MIB))?;
    file.write_all(&boot)?;
    io::Seek::seek(&mut file, io::SeekFrom::Start(MIB + sizes.boot))?;
    io::copy(&mut File::open(&root)?, &mut file)?;
    file.sync_all()?;
    fs::rename(&new, &disk)?;
    fs::remove_file(&root)?;
    Ok(disk)
}

/// The sizes in bytes of the partitions in the image.
struct Sizes {
    boot: u64,
    root: u64,
}

impl Sizes {
    /// The size of the image: all partitions and the second partition table at the end.
    fn image(&self) -> u64 {
        MIB + self.boot + self.root + MIB
    }

    fn check(&self, profile: &Profile, storage: &Storage) -> Outcome {
        let medium = storage.medium_mib * MIB;
        let data = storage.data_mib * MIB;
        if self.image() + data <= medium {
            return Ok(());
        }
        Err(TaskError(format!(
            "the image of {} does not fit: boot {} MiB, root {} MiB and data {} MiB at least need a medium of {} \
             MiB, and storage.medium-mib of its profile is {}",
            profile.name,
            self.boot / MIB,
            self.root / MIB,
            storage.data_mib,
            (self.image() + data).div_ceil(MIB),
            storage.medium_mib
        )))
    }
}

/// A GUID derived from what it identifies.
fn identifier(of: &[&[u8]]) -> uuid::Uuid {
    let mut digest = Sha256::new();
    for part in of {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let bytes: [u8; 16] = digest.finalize()[..16].try_into().expect("a digest is longer");
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

fn write_table(
    file: &mut File,
    sizes: &Sizes,
    disk_id: uuid::Uuid,
    boot_id: uuid::Uuid,
    root_id: uuid::Uuid,
) -> Outcome {
    let mbr = gpt::mbr::ProtectiveMBR::with_lb_size(u32::MAX);
    mbr.overwrite_lba0(file)?;
    let mut disk = gpt::GptConfig::new().writable(true).create_from_device(file, Some(disk_id))?;
    let partition = |name: &str, part_type_guid, part_guid, first: u64, bytes: u64| Partition {
        part_type_guid,
        part_guid,
        first_lba: first / SECTOR,
        last_lba: (first + bytes) / SECTOR - 1,
        flags: 0,
        name: name.to_owned(),
    };
    let boot = partition("boot", partition_types::EFI, boot_id, MIB, sizes.boot);
    let root = partition("root", partition_types::LINUX_FS, root_id, MIB + sizes.boot, sizes.root);
    disk.update_partitions(BTreeMap::from([(1, boot), (2, root)]))?;
    disk.write()?;
    Ok(())
}

/// Writes the root file system. Returns the digest of its content.
fn write_root(profile: &Profile, parts: &Parts<'_>, to: &Path) -> Result<[u8; 32], TaskError> {
    let mut tree = parts.tree.clone();
    debian::fetch(PACKAGES, &profile.debian)?;
    for package in PACKAGES {
        for source in below(&debian::package(package, &profile.debian)?)? {
            let name = source.name.rsplit('/').next().unwrap_or_default();
            if (PROGRAMS.contains(&name) || name.contains(".so.")) && !source.metadata.is_dir() {
                tree.add(&below_usr(&source.name), &source)?;
            }
        }
    }
    for directory in DIRECTORIES {
        tree.directory(directory);
    }
    tree.file("etc/e2fsck.conf", 0o644, E2FSCK);
    // The identity is on the boot partition. A valid one is kept even without that file, so no older one must be in
    // the root.
    tree.remove("boot/nodlet.conf");
    let archive = tree.write_tar(Vec::new(), "./", 0)?;
    let _ = fs::remove_file(to);
    nodlet_rootfs::write_erofs_image(&mut &*archive, to)
        .map_err(|error| format!("failed to write {}: {error}", to.display()))?;
    Ok(Sha256::digest(&archive).into())
}

/// The first initramfs, which the boot loader passes to the kernel: nodlet, which mounts the root, and the
/// modules for that.
fn first_initramfs(storage: &Storage, parts: &Parts<'_>) -> Result<Vec<u8>, TaskError> {
    let mut tree = Tree::default();
    tree.file("/init", 0o755, fs::read(parts.nodlet)?);
    for directory in ["/dev", "/proc", "/sys", "/newroot"] {
        tree.directory(directory);
    }
    let wanted: Vec<&str> =
        storage.modules.iter().map(String::as_str).chain(ROOT_MODULES.iter().copied()).collect();
    parts.kernel.add_modules(&mut tree, &wanted)?;
    let mut compressed = GzEncoder::new(Vec::new(), Compression::default());
    tree.write_cpio(&mut compressed)?;
    Ok(compressed.finish()?)
}

/// The files of the boot partition, by path.
type BootFiles = BTreeMap<String, Vec<u8>>;

fn loader_files(
    profile: &Profile,
    storage: &Storage,
    parts: &Parts<'_>,
    initramfs: Vec<u8>,
    command_line: &str,
) -> Result<BootFiles, TaskError> {
    let mut files = BootFiles::new();
    files.insert("kernel".to_owned(), fs::read(&parts.kernel.image)?);
    files.insert("initramfs".to_owned(), initramfs);
    if let Some(config) = parts.config {
        files.insert("nodlet.conf".to_owned(), fs::read(config)?);
    }
    match storage.loader {
        Loader::Uefi => {
            let name = match profile.debian.as_str() {
                "amd64" => "x64",
                "arm64" => "aa64",
                "riscv64" => "riscv64",
                "armhf" => "arm",
                other => {
                    return Err(TaskError(format!(
                        "board/profiles/{}.toml: storage.loader: there is no boot loader for UEFI and {other}",
                        profile.name
                    )));
                }
            };
            let loader = debian::package(UEFI_LOADER, &profile.debian)?
                .join(format!("usr/lib/systemd/boot/efi/systemd-boot{name}.efi"));
            files.insert(format!("EFI/BOOT/BOOT{}.EFI", name.to_uppercase()), fs::read(loader)?);
            files.insert("loader/loader.conf".to_owned(), b"timeout 0\neditor no\n".to_vec());
            let entry = format!("title nodlet\nlinux /kernel\ninitrd /initramfs\noptions {command_line}\n");
            files.insert("loader/entries/nodlet.conf".to_owned(), entry.into_bytes());
        }
        Loader::Extlinux => {
            let tree = profile.device_tree.as_deref().map(boot_files::name_of);
            let tree = tree.map(|name| format!("  fdt /{name}\n")).unwrap_or_default();
            let text = format!(
                "default nodlet\ntimeout 1\nlabel nodlet\n  kernel /kernel\n  initrd /initramfs\n{tree}  append \
                 {command_line}\n"
            );
            files.insert("extlinux/extlinux.conf".to_owned(), text.into_bytes());
        }
        Loader::RaspberryPi => {
            let tree = profile.device_tree.as_deref().map(boot_files::name_of);
            let tree = tree.map(|name| format!("device_tree={name}\n")).unwrap_or_default();
            files.insert("config.txt".to_owned(), format!("{RASPBERRY_PI}{tree}").into_bytes());
            files.insert("cmdline.txt".to_owned(), format!("{command_line}\n").into_bytes());
        }
    }
    // A file in the profile replaces the loader's default.
    files.extend(boot_files::of(profile, parts.kernel, parts.firmware, command_line)?);
    Ok(files)
}

/// The configuration of a Raspberry Pi's firmware.
const RASPBERRY_PI: &str = "arm_64bit=1\nenable_uart=1\nkernel=kernel\ninitramfs initramfs followkernel\n";

/// A FAT file system with these files.
fn fat(storage: &Storage, volume_id: u32, files: &mut BootFiles) -> Result<Vec<u8>, TaskError> {
    let bytes = storage.boot_mib * MIB;
    let needed: u64 = files.values().map(|file| file.len() as u64).sum();
    // The allowance for tables and the last cluster of each file, which is a small part.
    if needed + needed / 16 + MIB > bytes {
        return Err(TaskError(format!(
            "the boot partition does not fit: its files are {} bytes, and storage.boot-mib is {}; make it {} at least",
            needed,
            storage.boot_mib,
            (needed + needed / 16 + MIB).div_ceil(MIB)
        )));
    }
    let mut volume = Cursor::new(vec![0; usize::try_from(bytes)?]);
    let mut options = FormatVolumeOptions::new().volume_id(volume_id).volume_label(*b"NODLET     ");
    if storage.loader == Loader::RaspberryPi {
        // The Raspberry Pi's older firmware assumes that every volume is FAT32.
        options = options.fat_type(fatfs::FatType::Fat32).bytes_per_cluster(u32::try_from(SECTOR)?);
    }
    fatfs::format_volume(&mut volume, options)?;
    {
        let fat = fatfs::FileSystem::new(&mut volume, FsOptions::new())?;
        let root = fat.root_dir();
        for (path, bytes) in files {
            for (end, _) in path.match_indices('/') {
                root.create_dir(&path[..end])?;
            }
            root.create_file(path)?.write_all(bytes)?;
        }
    }
    Ok(volume.into_inner())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn storage(boot_mib: u64, medium_mib: u64) -> Storage {
        let text = format!("loader = \"uefi\"\nmedium-mib = {medium_mib}\nboot-mib = {boot_mib}");
        toml::from_str(&text).expect("it is right")
    }

    fn files(bytes: usize) -> BootFiles {
        BootFiles::from([
            ("EFI/BOOT/BOOTX64.EFI".to_owned(), b"loader".to_vec()),
            ("kernel".to_owned(), vec![7; bytes]),
        ])
    }

    #[test]
    fn a_boot_partition_has_its_files_and_the_same_bytes_each_time() {
        let volume = || fat(&storage(16, 64), 7, &mut files(3 << 20)).expect("it fits");
        let bytes = volume();
        assert_eq!(bytes.len(), 16 << 20);
        assert!(bytes == volume(), "two volumes differ");
        let volume = fatfs::FileSystem::new(Cursor::new(bytes), FsOptions::new()).expect("it is a volume");
        let mut text = String::new();
        let mut file = volume.root_dir().open_file("EFI/BOOT/BOOTX64.EFI").expect("it is there");
        file.read_to_string(&mut text).expect("it can be read");
        assert_eq!(text, "loader");
    }

    #[test]
    fn the_boot_partition_of_a_raspberry_pi_is_fat32_at_its_least_size_too() {
        for (loader, boot_mib, kind) in
            [("raspberry-pi", 40, fatfs::FatType::Fat32), ("uefi", 40, fatfs::FatType::Fat16)]
        {
            let storage =
                Storage { loader: toml::Value::from(loader).try_into().unwrap(), ..storage(boot_mib, 99) };
            storage.check().unwrap();
            let bytes = fat(&storage, 7, &mut files(3 << 20)).expect("it fits");
            let volume =
                fatfs::FileSystem::new(Cursor::new(bytes), FsOptions::new()).expect("it is a volume");
            assert_eq!(volume.fat_type(), kind, "{loader}");
            volume.root_dir().open_file("kernel").expect("it is there");
        }
    }

    #[test]
    fn partitions_that_do_not_fit_are_rejected_with_their_sizes() {
        let Err(TaskError(why)) = fat(&storage(16, 64), 7, &mut files(16 << 20)) else { panic!("it fits") };
        assert!(why.contains("storage.boot-mib is 16; make it 19 at least"), "{why}");
        let profile = crate::profile::get("qemu-x86_64").expect("it is right");
        let sizes = Sizes { boot: 16 << 20, root: 40 << 20 };
        sizes.check(&profile, &storage(16, 90)).expect("it fits: 58 and 32 for data");
        let Err(TaskError(why)) = sizes.check(&profile, &storage(16, 89)) else { panic!("it fits") };
        assert!(
            why.contains("boot 16 MiB, root 40 MiB and data 32 MiB at least need a medium of 90 MiB")
                && why.contains("medium-mib of its profile is 89"),
            "{why}"
        );
    }

    #[test]
    fn the_table_has_partitions_with_identifiers_of_their_content() {
        let path = std::env::temp_dir().join(format!("nodlet-disk-{}", std::process::id()));
        let write = || {
            let mut file =
                File::options().read(true).write(true).create_new(true).open(&path).expect("a scratch file");
            let sizes = Sizes { boot: 16 * MIB, root: 2 * MIB };
            file.set_len(sizes.image()).expect("a hole");
            let id = |name: &str| identifier(&[name.as_bytes()]);
            write_table(&mut file, &sizes, id("disk"), id("boot"), id("root")).expect("it can be written");
            let bytes = fs::read(&path).expect("it is there");
            fs::remove_file(&path).expect("it is ours");
            bytes
        };
        let bytes = write();
        assert!(bytes == write(), "two tables differ");
        let disk = gpt::GptConfig::new().open_from_device(Cursor::new(bytes)).expect("it is a disk");
        let found: Vec<(u32, &str, u64, u64)> = disk
            .partitions()
            .iter()
            .map(|(number, part)| (*number, part.name.as_str(), part.first_lba, part.last_lba))
            .collect();
        assert_eq!(found, [(1, "boot", 2048, 34815), (2, "root", 34816, 38911)]);
        assert_eq!(disk.partitions()[&2].part_guid, identifier(&[b"root"]));
        assert_ne!(identifier(&[b"ab", b"c"]), identifier(&[b"a", b"bc"]));
    }
}
