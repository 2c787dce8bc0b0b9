//! Command lines that boot an image in QEMU, for the user who built it.

use std::path::Path;

use super::DeviceImage;
use crate::profile::{Profile, Qemu};

/// The memory in MiB that UEFI and the boot loader need; the pods need less.
pub const LEAST_DISK_MEMORY_MIB: u32 = 256;

/// The port of this machine that is forwarded to the board's SSH server.
const PORT: u16 = 2222;

/// How to boot an image in QEMU; empty for a board that QEMU cannot emulate.
///
/// `unpacked` is the directory with the files of the firmware's package.
pub(super) fn of(profile: &Profile, image: &DeviceImage, unpacked: Option<&Path>) -> String {
    let Some(qemu) = &profile.qemu else { return String::new() };
    let mut text = format!(
        "\nTo boot it in QEMU (Debian's package {}), with port {PORT} of this machine as its SSH port:\n",
        qemu.package
    );
    if let Some(ram) = &image.ram {
        text.push_str(&format!(
            "\n$ {} \\\n    -kernel {} -initrd {} \\\n    -append \"$(cat {})\"\n",
            emulator(qemu, profile.memory_mib),
            ram.kernel.display(),
            ram.initramfs.display(),
            ram.command_line.display(),
        ));
    }
    if let (Some(disk), Some(firmware), Some(storage)) = (&image.disk, &qemu.firmware, &profile.storage) {
        let medium = disk.with_file_name("medium");
        let medium = medium.display();
        text.push_str(&format!(
            "\nFrom its disk, with firmware of Debian's package {}:\n\n$ cp {} {medium} && truncate -s {}M {medium}\n$ \
             {} \\\n    {} {} \\\n    -drive if=virtio,format=raw,cache=writeback,file={medium}\n",
            firmware.package,
            disk.display(),
            storage.medium_mib,
            emulator(qemu, profile.memory_mib.max(LEAST_DISK_MEMORY_MIB)),
            firmware.option,
            unpacked.unwrap_or(Path::new("/")).join(&firmware.file).display(),
        ));
    }
    text
}

fn emulator(qemu: &Qemu, memory_mib: u32) -> String {
    format!(
        "{} {} -m {memory_mib} -nographic \\\n    -netdev user,id=net0,hostfwd=tcp:127.0.0.1:{PORT}-:22 -device virtio-net-pci,netdev=net0 \
         -device virtio-rng-pci",
        qemu.program,
        qemu.arguments.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::RamForm;
    use super::*;
    use crate::profile;

    #[test]
    fn each_emulated_board_has_a_line_for_each_form_of_its_image() {
        for name in profile::known().unwrap() {
            let profile = profile::get(&name).unwrap();
            let directory = Path::new("/boards");
            let mut image = DeviceImage {
                ram: Some(RamForm::in_directory(directory)),
                disk: profile.storage.as_ref().map(|_| directory.join("disk")),
            };
            let unpacked = Path::new("/unpacked");
            let text = of(&profile, &image, Some(unpacked));
            let Some(qemu) = &profile.qemu else {
                assert_eq!(text, "", "{name}");
                continue;
            };
            assert_eq!(text.matches(&format!("$ {} ", qemu.program)).count(), 2, "{text}");
            assert!(
                text.contains("-initrd /boards/initramfs") && text.contains("file=/boards/medium"),
                "{text}"
            );
            let firmware = &qemu.firmware.as_ref().unwrap().file;
            assert!(text.contains(&unpacked.join(firmware).display().to_string()), "{text}");
            image.ram = None;
            let text = of(&profile, &image, None);
            assert!(text.contains(&format!(" /{firmware} ")), "{text}");
            assert!(!text.contains("initramfs") && text.contains("file=/boards/medium"), "{text}");
        }
    }
}
