//! The files on a board's boot partition, besides nodlet's own: its device tree, from the kernel's package;
//! the firmware, which the user provides by `--firmware DIR`; and small texts for the boot loader. The
//! profile names all of them; some boards need none.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nodlet_build::task::TaskError;

use crate::kernel::Kernel;
use crate::profile::Profile;

/// The placeholder for the kernel's command line in a text for the boot loader.
const COMMAND_LINE: &str = "@COMMAND-LINE@";

/// The files by their path on the boot partition, for a kernel with this command line.
///
/// # Errors
/// The kernel's package lacks the device tree, or the user did not provide a firmware file.
pub(crate) fn of(
    profile: &Profile,
    kernel: &Kernel,
    firmware: Option<&Path>,
    command_line: &str,
) -> Result<BTreeMap<String, Vec<u8>>, TaskError> {
    let mut files = BTreeMap::new();
    if let Some(tree) = &profile.device_tree {
        let file = kernel.device_trees.join(tree);
        let bytes = fs::read(&file).map_err(|error| {
            format!(
                "device-tree: {} has no {tree}: failed to read {}: {error}",
                profile.kernel,
                file.display()
            )
        })?;
        files.insert(name_of(tree).to_owned(), bytes);
    }
    for name in &profile.firmware {
        let Some(directory) = firmware else {
            let all = profile.firmware.join(", ");
            return Err(TaskError(format!(
                "{} needs firmware that is not part of it: give a directory with {all} by --firmware DIR",
                profile.name
            )));
        };
        let file = directory.join(name);
        let bytes = fs::read(&file)
            .map_err(|error| format!("--firmware: failed to read {}: {error}", file.display()))?;
        files.insert(name.clone(), bytes);
    }
    if let (true, Some(directory)) = (profile.firmware.is_empty(), firmware) {
        let why = format!("{} needs no firmware: leave --firmware {} out", profile.name, directory.display());
        return Err(TaskError(why));
    }
    for (path, text) in &profile.boot_files {
        files.insert(path.clone(), text.replace(COMMAND_LINE, command_line).into_bytes());
    }
    Ok(files)
}

/// The file name of a device tree on the boot partition.
pub(crate) fn name_of(tree: &str) -> &str {
    tree.rsplit('/').next().unwrap_or(tree)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    #[test]
    fn a_real_board_gets_its_device_tree_the_users_firmware_and_its_loaders_texts() {
        let directory = std::env::temp_dir().join(format!("nodlet-boot-files-{}", std::process::id()));
        let [trees, firmware] = ["trees", "firmware"].map(|name| directory.join(name));
        let profile = profile::get("raspberry-pi-4").unwrap();
        let kernel = Kernel::of_files("6.12", &trees);
        let tree = profile.device_tree.clone().unwrap();
        fs::create_dir_all(trees.join(&tree).parent().unwrap()).unwrap();
        fs::create_dir_all(&firmware).unwrap();

        let why = of(&profile, &kernel, Some(&firmware), "quiet").unwrap_err().0;
        assert!(why.contains(&format!("device-tree: linux-image-arm64 has no {tree}")), "{why}");
        fs::write(trees.join(&tree), "tree").unwrap();
        let why = of(&profile, &kernel, None, "quiet").unwrap_err().0;
        assert!(why.contains("start4.elf") && why.contains("by --firmware DIR"), "{why}");
        let why = of(&profile, &kernel, Some(&firmware), "quiet").unwrap_err().0;
        assert!(why.contains("--firmware: failed to read") && why.contains("start4.elf"), "{why}");
        for name in &profile.firmware {
            fs::write(firmware.join(name), name).unwrap();
        }
        let files = of(&profile, &kernel, Some(&firmware), "quiet").unwrap();
        assert_eq!(files["bcm2711-rpi-4-b.dtb"], b"tree");
        assert_eq!(files["start4.elf"], b"start4.elf");
        assert!(files.contains_key("config.txt"));
        assert_eq!(files["cmdline.txt"], b"quiet");

        let without = profile::get("qemu-arm64").unwrap();
        assert_eq!(of(&without, &kernel, None, "quiet").unwrap(), BTreeMap::new());
        let why = of(&without, &kernel, Some(&firmware), "quiet").unwrap_err().0;
        assert!(why.contains("qemu-arm64 needs no firmware"), "{why}");
        fs::remove_dir_all(directory).unwrap();
    }
}
