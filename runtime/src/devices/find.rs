//! Finds a device of the board: its kind and its numbers.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, ResolveFlag};
use nix::sys::stat::fstat;

use nodlet_kernel::file::{open, open_in};
use nodlet_kube::manifest::DeviceSource;
use nodlet_registry::FoundDevice;

/// Upper bound of the devices of one subsystem that are compared.
const MAX_DEVICES: usize = 4096;

/// Character devices that give access to all memory or ports of the machine: mem, kmem, port.
const FORBIDDEN: [(u32, u32); 3] = [(1, 1), (1, 2), (1, 4)];

/// Finds a device in `dev` and `sys`, the directories /dev and /sys.
///
/// # Errors
/// The device is not there, or no container may have it; the error says why.
pub(crate) fn find(source: &DeviceSource, dev: &Path, sys: &Path) -> Result<FoundDevice, String> {
    let found = match source {
        DeviceSource::Path(path) => at_path(path, dev)?,
        DeviceSource::Sysfs { subsystem, attributes, path } => {
            in_sysfs(subsystem, attributes, path.as_deref(), sys)?
        }
        DeviceSource::Interface(name) => {
            let index = nix::net::if_::if_nametoindex(name.as_str());
            let minor = index.map_err(|_| format!("there is no interface {name}"))?;
            return Ok(FoundDevice { block: false, major: 0, minor });
        }
        // The start of a container reads the CDI files.
        DeviceSource::Cdi(_) => return Ok(FoundDevice { block: false, major: 0, minor: 0 }),
    };
    if !found.block && FORBIDDEN.contains(&(found.major, found.minor)) {
        return Err("it gives access to the whole machine: no container gets it".to_owned());
    }
    Ok(found)
}

/// Finds the node at a path. Links may lead to other places in /dev, as those that udev makes, and nowhere else.
fn at_path(path: &str, dev: &Path) -> Result<FoundDevice, String> {
    let below = path.strip_prefix("/dev/").unwrap_or(path);
    // O_PATH: no device notices.
    let directory = open(dev, OFlag::O_PATH | OFlag::O_DIRECTORY)
        .map_err(|error| format!("{}: {}", dev.display(), error.desc()))?;
    let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let opened = open_in(&directory, below, OFlag::O_PATH, resolve).map_err(|error| match error {
        nix::Error::ENOENT | nix::Error::ENOTDIR => format!("{path} does not exist"),
        nix::Error::EXDEV | nix::Error::ELOOP => format!("{path} is a link that leads out of /dev"),
        error => format!("{path}: {}", error.desc()),
    })?;
    let about = fstat(opened.as_raw_fd()).map_err(|error| format!("{path}: {}", error.desc()))?;
    let block = match about.st_mode & libc::S_IFMT {
        libc::S_IFCHR => false,
        libc::S_IFBLK => true,
        _ => return Err(format!("{path} is not a device")),
    };
    Ok(FoundDevice { block, major: libc::major(about.st_rdev), minor: libc::minor(about.st_rdev) })
}

/// Finds the first device, by its path, that matches.
fn in_sysfs(
    subsystem: &str,
    attributes: &[(String, String)],
    pattern: Option<&str>,
    sys: &Path,
) -> Result<FoundDevice, String> {
    let class = sys.join("class").join(subsystem);
    let bus = sys.join("bus").join(subsystem).join("devices");
    let devices = sys.join("devices");
    let mut matching: Option<(PathBuf, FoundDevice)> = None;
    let entries = [class, bus].into_iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    for entry in entries.take(MAX_DEVICES).flatten() {
        let Some(number) = number_of(&entry.path()) else { continue };
        let Ok(path) = fs::canonicalize(entry.path()) else { continue };
        let Ok(below) = path.strip_prefix(&devices) else { continue };
        let is_at =
            pattern.is_none_or(|pattern| matches(pattern.as_bytes(), below.as_os_str().as_encoded_bytes()));
        // As udev's ATTRS: one device has all attributes.
        let mut above = path.ancestors().take_while(|above| *above != devices);
        let has_attributes = attributes.is_empty()
            || above.any(|device| {
                attributes.iter().all(|(key, value)| attribute(&device.join(key)).as_ref() == Some(value))
            });
        if is_at && has_attributes && matching.as_ref().is_none_or(|(first, _)| path < *first) {
            let (major, minor) = number;
            matching = Some((path, FoundDevice { block: subsystem == "block", major, minor }));
        }
    }
    matching.map(|(_, found)| found).ok_or_else(|| "no device matches".to_owned())
}

/// The numbers of a device, if it has a node.
fn number_of(device: &Path) -> Option<(u32, u32)> {
    let text = attribute(&device.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// An attribute of a device, without the white space around it.
fn attribute(path: &Path) -> Option<String> {
    use io::Read;
    let mut text = Vec::new();
    // An attribute has at most a page.
    fs::File::open(path).ok()?.take(4096).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).trim().to_owned())
}

/// Whether a path matches a pattern, in which `*` stands for any text, and `?` for any byte.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while from < path.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(byte) if *byte == b'?' || *byte == path[from] => (at, from) = (at + 1, from + 1),
            Some(_) | None => {
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                (at, from) = (star_at + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("nodlet-find-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).expect("a scratch directory");
            Scratch(path.canonicalize().expect("it exists"))
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            fs::write(path, text).expect("a file");
        }

        fn link(&self, target: &str, path: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            symlink(target, path).expect("a link");
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_path_leads_to_a_device_in_dev_and_nowhere_else() {
        let dev = Scratch::new("dev");
        let null = nix::sys::stat::makedev(1, 3);
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
        for (name, number) in [("serial", null), ("memory", nix::sys::stat::makedev(1, 1))] {
            nix::sys::stat::mknod(&dev.0.join(name), nix::sys::stat::SFlag::S_IFCHR, mode, number)
                .expect("these tests need root");
        }
        dev.link("../serial", "by-id/gps");
        dev.link("/dev/null", "absolute");
        dev.link("../../etc/passwd", "by-id/out");
        dev.link("loop", "loop");
        dev.write("file", "");
        let found = |path: &str| find(&DeviceSource::Path(path.to_owned()), &dev.0, Path::new("/nowhere"));
        let serial = FoundDevice { block: false, major: 1, minor: 3 };
        assert_eq!(found("/dev/serial"), Ok(serial));
        assert_eq!(found("/dev/by-id/gps"), Ok(serial));
        for (path, expected) in [
            ("/dev/absent", "/dev/absent does not exist"),
            ("/dev/file/x", "/dev/file/x does not exist"),
            ("/dev/absolute", "/dev/absolute is a link that leads out of /dev"),
            ("/dev/by-id/out", "/dev/by-id/out is a link that leads out of /dev"),
            ("/dev/loop", "/dev/loop is a link that leads out of /dev"),
            ("/dev/file", "/dev/file is not a device"),
            ("/dev/memory", "it gives access to the whole machine: no container gets it"),
        ] {
            assert_eq!(found(path).expect_err(path), expected);
        }
    }

    #[test]
    fn a_usb_device_is_found_by_the_attributes_of_a_device_above_it() {
        let sys = Scratch::new("sys");
        for (port, serial, minor) in [("1-1", "A1", 0), ("1-2", "B2", 1)] {
            let usb = format!("devices/platform/usb1/{port}");
            sys.write(&format!("{usb}/idVendor"), "0403\n");
            sys.write(&format!("{usb}/serial"), &format!("{serial}\n"));
            let tty = format!("{usb}/{port}:1.0/ttyUSB{minor}/tty/ttyUSB{minor}");
            sys.write(&format!("{tty}/dev"), &format!("188:{minor}\n"));
            sys.link(&format!("../../{tty}"), &format!("class/tty/ttyUSB{minor}"));
        }
        // A device without a node.
        sys.link("../../devices/platform/usb1/1-1", "class/tty/none");
        let found = |attributes: &[(&str, &str)], path: Option<&str>| {
            let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let source = DeviceSource::Sysfs {
                subsystem: "tty".to_owned(),
                attributes: attributes.collect(),
                path: path.map(str::to_owned),
            };
            find(&source, Path::new("/nowhere"), &sys.0).map(|found| (found.major, found.minor))
        };
        assert_eq!(found(&[("idVendor", "0403"), ("serial", "B2")], None), Ok((188, 1)));
        assert_eq!(found(&[("idVendor", "0403")], None), Ok((188, 0)), "the first by path");
        assert_eq!(found(&[], Some("*/1-2/*")), Ok((188, 1)));
        assert_eq!(found(&[("serial", "A1")], Some("*/1-2/*")), Err("no device matches".to_owned()));
        assert_eq!(found(&[("idVendor", "0404")], None), Err("no device matches".to_owned()));
    }

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, path, expected) in [
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("*b*b", "abcb", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), path.as_bytes()), expected, "{pattern} {path}");
        }
    }
}
