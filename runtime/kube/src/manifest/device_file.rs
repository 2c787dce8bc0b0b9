//! Reads device files, which define the devices of a board that containers may request as
//! `nodlet.dev/<name>`. The format is nodlet's own: `docs/devices.md` describes it.
//!
//! A device file is written by the operator of the board. Mistakes are reported with file, line and the right
//! value; a file with a mistake defines nothing.

use serde_json::{Map, Value};

use super::yaml;
use crate::object::cdi::cdi_names;
use crate::object::error::TextError;
use crate::object::rules;

/// A device of the board, as a file defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDefinition {
    /// `name`: the part of the resource's name behind `nodlet.dev/`.
    pub name: String,
    /// Where the device is found.
    pub source: DeviceSource,
    /// `containerPath`: the path of the device's node in containers.
    pub container_path: String,
    /// Whether `permissions` allow reading.
    pub readable: bool,
    /// Whether `permissions` allow writing.
    pub writable: bool,
    /// `shared`: how many containers may use the device at a time.
    pub users: i64,
    /// The file and the line that define the device.
    pub place: String,
}

/// How a device is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSource {
    /// `path`: a node below /dev, or a link there.
    Path(String),
    /// `usb` or `sysfs`: a device of the kernel's /sys.
    Sysfs {
        /// The class or bus, such as `tty`.
        subsystem: String,
        /// Attributes that the device, or one of the devices above it, has with these values.
        attributes: Vec<(String, String)>,
        /// A pattern for the device's path below /sys/devices.
        path: Option<String>,
    },
    /// `interface`: a network interface, which moves into the pod.
    Interface(String),
    /// `cdi`: the name of a CDI device, `vendor.com/class=device`.
    Cdi(String),
}

/// Maximum number of users of a shared device.
const MAX_USERS: i64 = 1000;

/// Nodes that give access to all memory or ports of the machine.
pub(super) const FORBIDDEN: [&str; 3] = ["mem", "kmem", "port"];

/// Entries of a container's /dev that no device can replace.
pub(super) const OWN: [&str; 16] = [
    "null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "pts", "shm", "mqueue", "fd",
    "stdin", "stdout", "stderr", "core",
];

/// Parses the device files' format. `file` names the file in errors.
///
/// # Errors
/// The first mistake, with file and line.
pub fn parse_device_file(file: &str, bytes: &[u8]) -> Result<Vec<DeviceDefinition>, TextError> {
    let text =
        std::str::from_utf8(bytes).map_err(|error| TextError::new(format!("{file}: is not UTF-8"), error))?;
    let documents =
        yaml::read(text).map_err(|error| TextError::new(format!("{file}:{}: {error}", error.line), error))?;
    let mut all: Vec<DeviceDefinition> = Vec::new();
    for document in documents {
        let reader = Reader { file, text, first: document.line };
        if let Some((key, line)) = document.duplicates.iter().next() {
            return Err(format!("{file}:{line}: field {key:?} occurs twice").into());
        }
        let Some(map) = document.value.as_object() else {
            return Err(format!(
                "{file}:{}: not a device: expected fields such as `name: gps`",
                document.line
            )
            .into());
        };
        let device = reader.device(map)?;
        if all.iter().any(|other| other.name == device.name) {
            return Err(reader.at("name", format!("the file defines {:?} twice", device.name)).into());
        }
        all.push(device);
    }
    Ok(all)
}

/// The context of errors about one document.
struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    /// The first line of the document.
    first: usize,
}

impl Reader<'_> {
    /// An error about the field `key`, at the first line of the document that names it.
    fn at(&self, key: &str, message: impl std::fmt::Display) -> String {
        let lines = self.text.lines().enumerate().skip(self.first.saturating_sub(1));
        let names_key = |line: &str| {
            line.split(['{', ',', ' ', '"', '\'']).any(|word| {
                word.trim_end_matches(['"', '\'']).split_once(':').map_or(word, |(name, _)| name) == key
            })
        };
        let line = lines.into_iter().find(|(_, line)| names_key(line)).map_or(self.first, |(at, _)| at + 1);
        format!("{}:{line}: {key}: {message}", self.file)
    }

    fn known(&self, map: &Map<String, Value>, fields: &[&str]) -> Result<(), String> {
        match map.keys().find(|key| !fields.contains(&key.as_str())) {
            Some(key) => Err(self.at(key, format!("unknown field; known are {}", fields.join(", ")))),
            None => Ok(()),
        }
    }

    fn text<'v>(&self, map: &'v Map<String, Value>, key: &str) -> Result<Option<&'v str>, String> {
        match map.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(text)),
            Some(Value::String(_)) => Err(self.at(key, "must not be empty")),
            Some(Value::Null | Value::Number(_) | Value::Bool(_)) => {
                Err(self.at(key, "must be a string: write it in quotes"))
            }
            Some(_) => Err(self.at(key, "must be a string")),
        }
    }

    fn map<'v>(
        &self,
        map: &'v Map<String, Value>,
        key: &str,
    ) -> Result<Option<&'v Map<String, Value>>, String> {
        match map.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.at(key, "must be an object, such as {vendor: \"0403\", product: \"6001\"}")),
        }
    }

    fn device(&self, map: &Map<String, Value>) -> Result<DeviceDefinition, String> {
        const FIELDS: [&str; 9] =
            ["name", "path", "usb", "sysfs", "interface", "cdi", "containerPath", "permissions", "shared"];
        self.known(map, &FIELDS)?;
        let name = self.text(map, "name")?.ok_or_else(|| self.at("name", "is missing"))?;
        if let Some(why) = rules::dns_label(name).into_iter().next() {
            return Err(self.at("name", format!("{name:?} is not a name of a device: {why}")));
        }
        let path = self.text(map, "path")?;
        let given = [
            path.is_some(),
            map.contains_key("usb"),
            map.contains_key("sysfs"),
            map.contains_key("interface"),
            map.contains_key("cdi"),
        ];
        if given.iter().filter(|given| **given).count() != 1 {
            return Err(
                self.at("name", "the device needs exactly one of path, usb, sysfs, interface and cdi")
            );
        }
        let source = if let Some(path) = path {
            self.node("path", path)?;
            DeviceSource::Path(path.to_owned())
        } else if let Some(usb) = self.map(map, "usb")? {
            self.usb(usb)?
        } else if let Some(sysfs) = self.map(map, "sysfs")? {
            self.sysfs(sysfs)?
        } else if let Some(name) = self.text(map, "cdi")? {
            match cdi_names(name) {
                Ok(names) if names == [name] => DeviceSource::Cdi(name.to_owned()),
                Ok(_) => return Err(self.at("cdi", "must be one device: write a file for each")),
                Err(why) => return Err(self.at("cdi", why)),
            }
        } else {
            self.interface(map)?
        };
        let own_path = self.text(map, "containerPath")?;
        let permissions = self.text(map, "permissions")?;
        let users = self.users(map)?;
        if let DeviceSource::Interface(_) | DeviceSource::Cdi(_) = source {
            let is_cdi = matches!(source, DeviceSource::Cdi(_));
            for (key, is_given) in
                [("containerPath", own_path.is_some()), ("permissions", permissions.is_some())]
            {
                if is_given {
                    let why =
                        if is_cdi { "the CDI file defines the nodes" } else { "an interface has no node" };
                    return Err(self.at(key, format!("{why}: remove the field")));
                }
            }
            if users != 1 && !is_cdi {
                return Err(self.at("shared", "an interface is in one pod at a time: remove the field"));
            }
        }
        let container_path = match (own_path, path) {
            (Some(own), _) => {
                self.node("containerPath", own)?;
                own.to_owned()
            }
            (None, Some(path)) => path.to_owned(),
            (None, None) => format!("/dev/{name}"),
        };
        let first = container_path["/dev/".len()..].split('/').next().unwrap_or_default();
        if OWN.contains(&first) {
            let why = format!("containers have their own {container_path}: name another containerPath");
            return Err(self.at(if own_path.is_some() { "containerPath" } else { "name" }, why));
        }
        let permissions = permissions.unwrap_or("rw");
        let has = |letter| permissions.contains(letter);
        if !["r", "w", "rw", "rm", "wm", "rwm"].contains(&permissions) {
            return Err(self.at("permissions", format!("{permissions:?}: must be r, w, rw or rwm")));
        }
        let place = format!("{}:{}", self.file, self.first);
        let (name, readable, writable) = (name.to_owned(), has('r'), has('w'));
        Ok(DeviceDefinition { name, source, container_path, readable, writable, users, place })
    }

    /// Checks a path of a node in /dev.
    fn node(&self, key: &str, path: &str) -> Result<(), String> {
        let Some(below) = path.strip_prefix("/dev/") else {
            return Err(self.at(key, format!("{path:?}: must be below /dev/, such as /dev/ttyUSB0")));
        };
        if below.split('/').any(|part| part.is_empty() || part == "." || part == "..") || below.contains('\0')
        {
            return Err(self.at(key, format!("{path:?}: must have no empty part, `.` or `..`")));
        }
        if FORBIDDEN.contains(&below) {
            return Err(
                self.at(key, format!("{path} gives access to the whole machine: no container gets it"))
            );
        }
        Ok(())
    }

    fn usb(&self, usb: &Map<String, Value>) -> Result<DeviceSource, String> {
        self.known(usb, &["vendor", "product", "serial", "subsystem"])?;
        let mut attributes = Vec::new();
        for (key, attribute) in [("vendor", "idVendor"), ("product", "idProduct")] {
            let id = self.text(usb, key)?.ok_or_else(|| self.at("usb", format!("{key} is missing")))?;
            if id.len() != 4 || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(self.at(
                    key,
                    format!("{id:?}: must be four hexadecimal digits in quotes, such as \"0403\""),
                ));
            }
            attributes.push((attribute.to_owned(), id.to_ascii_lowercase()));
        }
        if let Some(serial) = self.text(usb, "serial")? {
            attributes.push(("serial".to_owned(), serial.to_owned()));
        }
        let subsystem = self.subsystem(usb)?.unwrap_or("tty").to_owned();
        Ok(DeviceSource::Sysfs { subsystem, attributes, path: None })
    }

    fn sysfs(&self, sysfs: &Map<String, Value>) -> Result<DeviceSource, String> {
        self.known(sysfs, &["subsystem", "match", "path"])?;
        let subsystem = self.subsystem(sysfs)?;
        let subsystem = subsystem.ok_or_else(|| self.at("sysfs", "subsystem is missing, such as tty"))?;
        let mut attributes = Vec::new();
        if let Some(matches) = self.map(sysfs, "match")? {
            for key in matches.keys() {
                if key.is_empty() || key.split('/').any(|part| ["", ".", ".."].contains(&part)) {
                    return Err(self.at("match", format!("{key:?} is not an attribute of a device")));
                }
                let value = self.text(matches, key)?.unwrap_or_default();
                attributes.push((key.clone(), value.to_owned()));
            }
        }
        let path = self.text(sysfs, "path")?.map(|path| path.trim_start_matches("/sys/devices/").to_owned());
        if attributes.is_empty() && path.is_none() {
            return Err(
                self.at("sysfs", "match or path is missing: every device of the subsystem would match")
            );
        }
        Ok(DeviceSource::Sysfs { subsystem: subsystem.to_owned(), attributes, path })
    }

    fn subsystem<'v>(&self, map: &'v Map<String, Value>) -> Result<Option<&'v str>, String> {
        let subsystem = self.text(map, "subsystem")?;
        match subsystem.filter(|name| name.contains('/') || [".", ".."].contains(name)) {
            Some(name) => {
                Err(self.at("subsystem", format!("{name:?}: must be a name below /sys/class or /sys/bus")))
            }
            None => Ok(subsystem),
        }
    }

    fn interface(&self, map: &Map<String, Value>) -> Result<DeviceSource, String> {
        let name = self.text(map, "interface")?.unwrap_or_default();
        let is_name = name.len() <= 15
            && !name.contains(|letter: char| letter == '/' || letter == ':' || letter.is_whitespace())
            && !["lo", ".", "..", "eth0"].contains(&name);
        if !is_name {
            let why = "must be the name of an interface that pods do not have themselves, such as can0";
            return Err(self.at("interface", format!("{name:?}: {why}")));
        }
        Ok(DeviceSource::Interface(name.to_owned()))
    }

    fn users(&self, map: &Map<String, Value>) -> Result<i64, String> {
        match map.get("shared") {
            None | Some(Value::Bool(false)) => Ok(1),
            Some(Value::Number(users)) => match users.as_i64() {
                Some(users @ 1..=MAX_USERS) => Ok(users),
                _ => Err(self.at("shared", format!("must be the number of users, from 1 to {MAX_USERS}"))),
            },
            Some(_) => Err(self.at("shared", "must be false or the number of users, such as 10")),
        }
    }
}

#[cfg(test)]
mod tests;
