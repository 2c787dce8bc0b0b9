//! Preconditions of requests: a version or UID in a request must be that of the object.

use serde_json::Value;

use super::{Registry, Status};
use crate::objects::Key;
use nodlet_kube::kinds::Kind;

/// The message of a conflict, after which kubectl reads and patches the object again.
pub(super) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// The message about a `metadata.uid` of another object.
fn another_uid(requested: &str, present: &str) -> String {
    format!("Precondition failed: UID in precondition: {requested}, UID in object meta: {present}")
}

/// Checks the version and the uid of a changed object against those of the current one.
///
/// # Errors
/// 409: the changed object has another version or UID.
pub(super) fn check(current: &Value, changed: &Value, (resource, name): (&str, &str)) -> Result<(), Status> {
    let of = |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (uid, requested) = (of(current, "uid"), of(changed, "uid"));
    if !requested.is_empty() && requested != uid {
        return Err(Status::conflict(resource, name, &another_uid(&requested, &uid)));
    }
    let (version, requested) = (of(current, "resourceVersion"), of(changed, "resourceVersion"));
    if !requested.is_empty() && number(&requested)? != 0 && requested != version {
        return Err(Status::conflict(resource, name, MODIFIED));
    }
    Ok(())
}

/// The number of a version (`strconv.ParseUint`).
///
/// # Errors
/// Go's text: the version is no number.
pub fn parse_version(version: &str) -> Result<u64, String> {
    let digits = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    version.parse().ok().filter(|_| digits).ok_or_else(|| {
        let why = if digits { "value out of range" } else { "invalid syntax" };
        format!("strconv.ParseUint: parsing {}: {why}", nodlet_kube::manifest::go_quoted(version))
    })
}

/// The number of a version.
///
/// # Errors
/// 500, as by Kubernetes: the version is no number.
fn number(version: &str) -> Result<u64, Status> {
    parse_version(version).map_err(|why| {
        let mut status = Status::internal("");
        (status.message, status.reason) = (why, "");
        status
    })
}

impl Registry {
    /// Checks `metadata.resourceVersion` and `metadata.uid` of an object from a client: the existing object
    /// must have them. A new object must have no version.
    ///
    /// # Errors
    /// 409, or 400 for a new object with a version.
    pub(super) fn check_version(
        &self,
        resource: &'static str,
        object: &Value,
        new: bool,
    ) -> Result<(), Status> {
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().filter(|text| !text.is_empty());
        let version = text("resourceVersion").filter(|requested| *requested != "0");
        if new {
            let why = "resourceVersion should not be set on objects to be created";
            const MAX_VERSION: u64 = i64::MAX.cast_unsigned();
            // A version that is no number, or is written with zeros before it, is not set, as far as Kubernetes can tell.
            let is_set = version.filter(|version| !version.starts_with('0')).is_some_and(|version| {
                number(version).is_ok_and(|number| (1..=MAX_VERSION).contains(&number))
            });
            return if is_set { Err(Status::bad_request(why)) } else { Ok(()) };
        }
        let uid = text("uid");
        if version.is_none() && uid.is_none() {
            return Ok(());
        }
        let kind = Kind::of_resource(resource);
        let namespace = if kind.is_none_or(|kind| kind.row().namespaced) {
            text("namespace").unwrap_or("default")
        } else {
            ""
        };
        let name = text("name").unwrap_or_default();
        let shown = self.objects.get(&Key::new(resource, namespace, name));
        let Some(shown) = shown else { return Ok(()) };
        let conflict = |why: &str| {
            let resource = kind.map_or_else(|| resource.to_owned(), |kind| kind.row().qualified());
            Err(Status::conflict(&resource, name, why))
        };
        let present: Value = serde_json::from_str(&shown.json).unwrap_or_default();
        let present = present["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(requested) = uid.filter(|requested| *requested != present) {
            return conflict(&another_uid(requested, present));
        }
        match version {
            Some(requested) if shown.version.to_string() != requested => conflict(MODIFIED),
            Some(_) | None => Ok(()),
        }
    }
}
