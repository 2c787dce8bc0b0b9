//! How mounts propagate, and whether they can be written to, from /proc/thread-self/mountinfo.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;

/// The mount that a file is on, and whether mounts in it reach others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOf {
    /// The path where it is mounted, as mountinfo writes it.
    pub point: String,
    /// Whether mounts in it reach other mounts, and theirs reach it.
    pub is_shared: bool,
    /// Whether mounts of others reach it.
    pub is_slave: bool,
    /// Whether nothing can be written: by the options of the mount, or as the file system found an error.
    pub is_read_only: bool,
}

/// Options of a file system that accepts no writes. From Linux 6.15 on, `emergency_ro` is all that ext4 shows of it when it
/// has found an error.
const READ_ONLY: [&str; 3] = ["ro", "emergency_ro", "shutdown"];

/// Looks up the mount that an open file is on; `None` if the mount is not in this mount namespace.
///
/// # Errors
/// /proc cannot be read.
pub fn mount_of(file: &impl AsRawFd) -> io::Result<Option<MountOf>> {
    let about = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd()))?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim).unwrap_or_default();
    Ok(find(&fs::read_to_string("/proc/thread-self/mountinfo")?, id))
}

fn find(mounts: &str, id: &str) -> Option<MountOf> {
    // ID, parent, device, root, mount point, options, optional fields up to a dash, type, source, options of the file
    // system.
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.find(|fields| fields.first() == Some(&id))?;
    let optional = || mount.iter().skip(6).take_while(|field| **field != "-");
    let options = [mount.get(5), mount.get(6 + optional().count() + 3)];
    let mut options = options.into_iter().flatten().flat_map(|options| options.split(','));
    Some(MountOf {
        point: (*mount.get(4).unwrap_or(&"/")).to_owned(),
        is_shared: optional().any(|field| field.starts_with("shared:")),
        is_slave: optional().any(|field| field.starts_with("master:")),
        is_read_only: options.any(|option| READ_ONLY.contains(&option)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_id_with_what_reaches_it() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda rw\n\
                      23 22 8:2 / /data rw,noatime shared:7 master:1 - ext4 /dev/sdb rw\n\
                      24 22 8:3 / /more rw master:1 - shared:x none rw\n\
                      25 22 8:3 / /seen ro - ext4 /dev/sdc rw\n\
                      26 22 8:4 / /card rw shared:8 - ext4 /dev/sdd rw,errors=remount-ro,emergency_ro\n";
        let of = |id: &str| find(mounts, id).map(|mount| (mount.point, mount.is_shared, mount.is_slave));
        assert_eq!(of("22"), Some(("/".to_owned(), false, false)));
        assert_eq!(of("23"), Some(("/data".to_owned(), true, true)));
        assert_eq!(of("24"), Some(("/more".to_owned(), false, true)));
        assert_eq!(of("2"), None);
        let accepts_no_writes = |id: &str| find(mounts, id).is_some_and(|mount| mount.is_read_only);
        assert_eq!(["22", "23", "24", "25", "26"].map(accepts_no_writes), [false, false, false, true, true]);
        let here =
            mount_of(&fs::File::open("/proc/self/status").expect("there is one")).expect("it can be read");
        assert_eq!(here.map(|mount| mount.point).as_deref(), Some("/proc"));
    }
}
