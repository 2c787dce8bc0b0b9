//! Reads CDI files (Container Device Interface), in which vendors define devices for containers: nodes, mounts
//! and variables. Pods request them by annotations, as under containerd.

use serde_json::{Map, Value};

use super::device_file::{FORBIDDEN, OWN};
use super::yaml;
use crate::object::error::TextError;

/// The changes of a container (`containerEdits`) for the devices that it gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CdiEdits {
    /// `env`: `NAME=value`.
    pub env: Vec<String>,
    /// `deviceNodes`.
    pub nodes: Vec<CdiNode>,
    /// `mounts`.
    pub mounts: Vec<CdiMount>,
    /// `additionalGids`.
    pub gids: Vec<u32>,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiNode {
    /// `path`: in the container.
    pub path: String,
    /// `hostPath`, or `path`.
    pub host_path: String,
    /// `permissions`.
    pub permissions: String,
    /// `fileMode`.
    pub mode: Option<u32>,
    /// `uid`.
    pub uid: Option<u32>,
    /// `gid`.
    pub gid: Option<u32>,
}

/// A bind mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiMount {
    /// `hostPath`.
    pub host_path: String,
    /// `containerPath`.
    pub container_path: String,
    /// `options` has `ro`.
    pub read_only: bool,
}

/// Finds a device in a CDI file. Returns its edits with those of the whole file, or `None` if the file does not
/// define the device.
///
/// # Errors
/// The file is no CDI file, or the device needs something that nodlet does not do.
pub fn cdi_edits(file: &str, bytes: &[u8], name: &str) -> Result<Option<CdiEdits>, TextError> {
    let failed = |message: &dyn std::fmt::Display| format!("{file}: {message}");
    let text = std::str::from_utf8(bytes).map_err(|error| TextError::new(failed(&"is not UTF-8"), error))?;
    let documents =
        yaml::read(text).map_err(|error| TextError::new(format!("{file}:{}: {error}", error.line), error))?;
    let Some(spec) = documents.first().and_then(|document| document.value.as_object()) else {
        return Err(failed(&"is no CDI file").into());
    };
    let text_of =
        |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
    let (kind, device) = name.split_once('=').unwrap_or((name, ""));
    if text_of(spec, "kind").as_deref() != Some(kind) {
        return Ok(None);
    }
    let devices = spec.get("devices").and_then(Value::as_array);
    let found = devices.into_iter().flatten().find(|one| one["name"] == device);
    let Some(found) = found.and_then(Value::as_object) else { return Ok(None) };
    let version = text_of(spec, "cdiVersion").unwrap_or_default();
    if !version.starts_with("0.") && !version.starts_with("1.") {
        return Err(failed(&format!("cdiVersion {version:?}: nodlet reads 0.3.0 to 1.1.0")).into());
    }
    let mut edits = CdiEdits::default();
    known(spec, &["cdiVersion", "kind", "annotations", "devices", "containerEdits"])
        .map_err(|why| failed(&why))?;
    known(found, &["name", "annotations", "containerEdits"]).map_err(|why| failed(&why))?;
    for of in [spec, found] {
        if let Some(Value::Object(map)) = of.get("containerEdits") {
            edits.add(map).map_err(|why| failed(&format!("device {name}: containerEdits: {why}")))?;
        }
    }
    Ok(Some(edits))
}

fn known(map: &Map<String, Value>, fields: &[&str]) -> Result<(), String> {
    match map.keys().find(|key| !fields.contains(&key.as_str())) {
        Some(key) => Err(format!("field {key} is not supported; supported are {}", fields.join(", "))),
        None => Ok(()),
    }
}

impl CdiEdits {
    fn add(&mut self, edits: &Map<String, Value>) -> Result<(), String> {
        for field in ["hooks", "intelRdt", "netDevices"] {
            let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if edits.get(field).is_some_and(|value| !is_empty(value)) {
                return Err(format!(
                    "field {field} is not supported: nodlet runs no program of the host for a container"
                ));
            }
        }
        known(edits, &["env", "deviceNodes", "mounts", "additionalGids", "hooks", "intelRdt", "netDevices"])?;
        let list = |field: &str| edits.get(field).and_then(Value::as_array).into_iter().flatten();
        for pair in list("env") {
            match pair.as_str() {
                Some(pair) if pair.find('=').is_some_and(|at| at > 0) && !pair.contains('\0') => {
                    self.env.push(pair.to_owned());
                }
                _ => return Err("env: must be NAME=value, without null bytes".to_owned()),
            }
        }
        for gid in list("additionalGids") {
            let gid = gid.as_u64().and_then(|gid| u32::try_from(gid).ok());
            self.gids.push(gid.ok_or("additionalGids: must be numbers of groups")?);
        }
        for node in list("deviceNodes") {
            self.nodes.push(device_node(node)?);
        }
        for mount in list("mounts") {
            self.mounts.push(self::mount(mount)?);
        }
        Ok(())
    }
}

fn path(map: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match map.get(key).map(Value::as_str) {
        None => Ok(None),
        Some(Some(path))
            if path
                .strip_prefix('/')
                .is_some_and(|below| below.split('/').all(|part| !["", ".", ".."].contains(&part)))
                && !path.contains('\0') =>
        {
            Ok(Some(path.to_owned()))
        }
        Some(_) => Err(format!("{key}: must be an absolute path below /, without empty parts, `.` and `..`")),
    }
}

/// The first part of a path after `prefix`.
fn first_of<'a>(path: &'a str, prefix: &str) -> &'a str {
    path.strip_prefix(prefix).and_then(|below| below.split('/').next()).unwrap_or_default()
}

fn device_node(node: &Value) -> Result<CdiNode, String> {
    const FIELDS: [&str; 9] =
        ["path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"];
    let node = node.as_object().ok_or("deviceNodes: must be objects")?;
    known(node, &FIELDS).map_err(|why| format!("deviceNodes: {why}"))?;
    let path_in = path(node, "path")?.filter(|path| path.starts_with("/dev/"));
    let path_in = path_in.ok_or("deviceNodes: path: must be below /dev/")?;
    if OWN.contains(&first_of(&path_in, "/dev/")) {
        return Err(format!("deviceNodes: path: containers have their own {path_in}"));
    }
    let host_path = path(node, "hostPath")?.unwrap_or_else(|| path_in.clone());
    if host_path.strip_prefix("/dev/").is_some_and(|below| FORBIDDEN.contains(&below)) {
        return Err(format!(
            "deviceNodes: {host_path} gives access to the whole machine: no container gets it"
        ));
    }
    let number = |key: &str| match node.get(key) {
        None => Ok(None),
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            number.map(Some).ok_or_else(|| format!("deviceNodes: {key}: must be a number"))
        }
    };
    let permissions = node.get("permissions").map_or(Some("rwm"), Value::as_str).unwrap_or_default();
    if permissions.is_empty() || !permissions.bytes().all(|letter| b"rwm".contains(&letter)) {
        return Err("deviceNodes: permissions: must be of the letters r, w and m".to_owned());
    }
    Ok(CdiNode {
        host_path,
        path: path_in,
        permissions: permissions.to_owned(),
        mode: number("fileMode")?,
        uid: number("uid")?,
        gid: number("gid")?,
    })
}

fn mount(mount: &Value) -> Result<CdiMount, String> {
    let mount = mount.as_object().ok_or("mounts: must be objects")?;
    known(mount, &["hostPath", "containerPath", "options", "type"])
        .map_err(|why| format!("mounts: {why}"))?;
    let kind = mount.get("type").and_then(Value::as_str).unwrap_or("bind");
    if !["", "bind", "none"].contains(&kind) {
        return Err(format!("mounts: type {kind:?} is not supported: must be bind"));
    }
    let needed = |key: &str| path(mount, key)?.ok_or_else(|| format!("mounts: {key} is missing"));
    let container_path = needed("containerPath")?;
    if ["dev", "proc", "sys"].contains(&first_of(&container_path, "/")) {
        return Err(format!("mounts: containerPath: containers have their own {container_path}"));
    }
    let options = mount.get("options").and_then(Value::as_array);
    Ok(CdiMount {
        host_path: needed("hostPath")?,
        container_path,
        read_only: options.is_some_and(|options| options.iter().any(|option| option == "ro")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::cdi::cdi_names;

    const FILE: &str = r#"{
        "cdiVersion": "0.6.0", "kind": "vendor.com/cam",
        "containerEdits": {"env": ["CAM=1"]},
        "devices": [
            {"name": "front", "containerEdits": {
                "deviceNodes": [{"path": "/dev/video0", "hostPath": "/dev/video7", "permissions": "r", "fileMode": 420}],
                "mounts": [{"hostPath": "/usr/lib/cam", "containerPath": "/opt/cam", "options": ["ro", "bind"]}],
                "additionalGids": [44]}},
            {"name": "hooked", "containerEdits": {"hooks": [{"hookName": "createContainer", "path": "/bin/x"}]}},
            {"name": "mem", "containerEdits": {"deviceNodes": [{"path": "/etc/x"}]}},
            {"name": "tmp", "containerEdits": {"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "tmpfs"}]}}
        ]}"#;

    /// Returns the edits, or the text of the error.
    fn edits_of(file: &str, bytes: &[u8], name: &str) -> Result<Option<CdiEdits>, String> {
        cdi_edits(file, bytes, name).map_err(|error| error.to_string())
    }

    #[test]
    fn a_device_has_the_edits_of_its_file_and_its_own() {
        let edits = edits_of("cam.json", FILE.as_bytes(), "vendor.com/cam=front").expect("it is right");
        let node = CdiNode {
            path: "/dev/video0".into(),
            host_path: "/dev/video7".into(),
            permissions: "r".into(),
            mode: Some(0o644),
            uid: None,
            gid: None,
        };
        let mount =
            CdiMount { host_path: "/usr/lib/cam".into(), container_path: "/opt/cam".into(), read_only: true };
        let expected =
            CdiEdits { env: vec!["CAM=1".into()], nodes: vec![node], mounts: vec![mount], gids: vec![44] };
        assert_eq!(edits, Some(expected));
        assert_eq!(edits_of("cam.json", FILE.as_bytes(), "vendor.com/cam=rear"), Ok(None));
        assert_eq!(edits_of("cam.json", FILE.as_bytes(), "vendor.com/gpu=front"), Ok(None));
        let yaml = "cdiVersion: 0.6.0\nkind: v.com/c\ndevices:\n- name: a\n  containerEdits: {env: [A=b]}\n";
        let edits = edits_of("c.yaml", yaml.as_bytes(), "v.com/c=a").expect("it is right");
        assert_eq!(edits.expect("it is defined").env, ["A=b"]);
    }

    #[test]
    fn unsupported_cdi_edits_are_rejected_by_name() {
        for (device, expected) in [
            ("hooked", "field hooks is not supported: nodlet runs no program of the host for a container"),
            ("mem", "deviceNodes: path: must be below /dev/"),
            ("tmp", "mounts: type \"tmpfs\" is not supported: must be bind"),
        ] {
            let name = format!("vendor.com/cam={device}");
            let error = edits_of("cam.json", FILE.as_bytes(), &name).expect_err(device);
            assert_eq!(error, format!("cam.json: device {name}: containerEdits: {expected}"));
        }
        let of = |edits: &str| {
            let file = format!(
                r#"{{"cdiVersion": "0.6.0", "kind": "v.com/c", "devices": [{{"name": "a", "containerEdits": {{{edits}}}}}]}}"#
            );
            let error = edits_of("c.json", file.as_bytes(), "v.com/c=a").expect_err(edits);
            error.strip_prefix("c.json: device v.com/c=a: containerEdits: ").expect("the device").to_owned()
        };
        for (path, expected) in [
            ("/dev/shm", "path: containers have their own /dev/shm"),
            ("/dev/shm/x", "path: containers have their own /dev/shm/x"),
            ("/dev/pts/0", "path: containers have their own /dev/pts/0"),
            ("/dev/null", "path: containers have their own /dev/null"),
            ("/dev/mem", "/dev/mem gives access to the whole machine: no container gets it"),
            ("/dev/", "path: must be an absolute path below /, without empty parts, `.` and `..`"),
            ("/dev//shm/x", "path: must be an absolute path below /, without empty parts, `.` and `..`"),
            ("/dev/../x", "path: must be an absolute path below /, without empty parts, `.` and `..`"),
            ("/dev/a\\u0000", "path: must be an absolute path below /, without empty parts, `.` and `..`"),
        ] {
            let error = of(&format!(r#""deviceNodes": [{{"path": "{path}"}}]"#));
            assert!(error.ends_with(expected), "{path}: {error}");
        }
        let error = of(r#""deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/kmem"}]"#);
        assert_eq!(error, "deviceNodes: /dev/kmem gives access to the whole machine: no container gets it");
        for (path, expected) in [
            ("/", "must be an absolute path below /, without empty parts, `.` and `..`"),
            ("/a/..", "must be an absolute path below /, without empty parts, `.` and `..`"),
            ("/proc", "containers have their own /proc"),
            ("/proc/sys", "containers have their own /proc/sys"),
            ("/sys/fs/cgroup", "containers have their own /sys/fs/cgroup"),
            ("/dev", "containers have their own /dev"),
            ("/dev/shm/x", "containers have their own /dev/shm/x"),
        ] {
            let error = of(&format!(r#""mounts": [{{"hostPath": "/srv", "containerPath": "{path}"}}]"#));
            assert!(error.ends_with(&format!("containerPath: {expected}")), "{path}: {error}");
        }
        let null = FILE.replace("CAM=1", "CAM=\\u0000");
        let error = edits_of("cam.json", null.as_bytes(), "vendor.com/cam=front").expect_err("the null byte");
        assert!(error.ends_with("env: must be NAME=value, without null bytes"), "{error}");
        let future = FILE.replace("\"0.6.0\"", "\"2.0.0\"");
        let error = edits_of("cam.json", future.as_bytes(), "vendor.com/cam=front").expect_err("the version");
        assert_eq!(error, "cam.json: cdiVersion \"2.0.0\": nodlet reads 0.3.0 to 1.1.0");
        assert_eq!(cdi_names("a.com/b=c, a.com/b=d"), Ok(vec!["a.com/b=c", "a.com/b=d"]));
        for name in ["", "a", "a/b", "a=b", "a/b=", "a/b/c=d", "../x/b=c d"] {
            assert!(cdi_names(name).is_err(), "{name}");
        }
    }
}
