//! The devices of the board: their definitions in files, and where they are in /dev and /sys at present.
//!
//! [`DeviceFiles`] has the definitions; `sources.rs` reads the files. [`mod@find`] looks a device up in kernel memory
//! only: it never opens a device, and waits for nothing. Read next: `engine/devices.rs`, which gives devices to
//! containers. [`cdi`] reads the files of vendors.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::rc::Rc;

use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::container::DEVICE_DOMAIN;
use nodlet_kube::manifest::{DeviceDefinition, parse_device_file};

pub(crate) mod cdi;
mod find;

pub(crate) use find::find;

/// The definitions of devices, by file and by name.
#[derive(Default)]
pub(crate) struct DeviceFiles {
    /// The last valid contents of each file.
    files: SortedMap<OsString, Vec<Rc<DeviceDefinition>>>,
    /// The definitions in effect. Of two with one name, or with one device, that of the first file is.
    by_name: SortedMap<String, Rc<DeviceDefinition>>,
    /// Files or conflicts that are reported to the user, since the last call of [`DeviceFiles::take_news`].
    refused: Vec<String>,
    has_changed: bool,
}

impl DeviceFiles {
    /// Whether a file of the directory defines devices: others may be notes or backups.
    pub(crate) fn is_device_file(name: &OsStr) -> bool {
        let extension = Path::new(name).extension().and_then(OsStr::to_str);
        matches!(extension, Some("yaml" | "yml" | "json"))
    }

    /// Replaces the definitions of one file. Those of a file with a mistake stay. Returns whether the file was
    /// accepted.
    pub(crate) fn put(&mut self, path: &Path, name: &OsStr, contents: Result<&[u8], String>) -> bool {
        let parsed = contents.and_then(|bytes| {
            parse_device_file(&path.to_string_lossy(), bytes).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(devices) => {
                self.files.insert(name.to_owned(), devices.into_iter().map(Rc::new).collect());
                self.index();
                true
            }
            Err(message) => {
                self.refused.push(message);
                false
            }
        }
    }

    /// Removes the definitions of a file that is gone.
    pub(crate) fn remove(&mut self, name: &OsStr) {
        if self.files.remove(name).is_some() {
            self.index();
        }
    }

    fn index(&mut self) {
        let mut by_name: SortedMap<String, Rc<DeviceDefinition>> = SortedMap::new();
        for device in self.files.values().flatten() {
            let known = by_name.get(&device.name);
            let known = known.or_else(|| by_name.values().find(|other| other.source == device.source));
            match known {
                Some(other) => self.refused.push(format!(
                    "{}: name: {DEVICE_DOMAIN}{} is not defined here: {} defines {DEVICE_DOMAIN}{} with the same \
                     name or device; remove one",
                    device.place, device.name, other.place, other.name
                )),
                None => drop(by_name.insert(device.name.clone(), device.clone())),
            }
        }
        self.has_changed |= self.by_name != by_name;
        self.by_name = by_name;
    }

    /// The definition of a device.
    pub(crate) fn get(&self, name: &str) -> Option<Rc<DeviceDefinition>> {
        self.by_name.get(name).cloned()
    }

    /// How many containers may use each device at a time.
    pub(crate) fn capacity(&self) -> SortedMap<String, i64> {
        self.by_name.iter().map(|(name, device)| (name.clone(), device.users)).collect()
    }

    /// Whether a definition has changed since the last call, and what was refused since then.
    pub(crate) fn take_news(&mut self) -> (bool, Vec<String>) {
        (std::mem::take(&mut self.has_changed), std::mem::take(&mut self.refused))
    }
}
