//! The quota of applied objects. It is checked before a file is written: an object beyond the quota is
//! rejected, and is never written to flash without being read.

use std::path::Path;

use serde_json::Value;

use super::{Registry, Status, patch};
use nodlet_kube::manifest::VALUES;

impl Registry {
    /// The text of the file `path` for `object`, the `name` of `resource` in `of`.
    ///
    /// # Errors
    /// The quota is exceeded, or the object has more values than a file may have.
    pub(super) fn text_within_quota(
        &self,
        path: &Path,
        of: (&str, &str),
        object: &Value,
    ) -> Result<Vec<u8>, Status> {
        // Defaults may have added values beyond the number with which the next agent reads a file.
        if patch::values_of(object) > VALUES {
            return Err(Status::too_large(format!("{VALUES} values, those of defaults included")));
        }
        let (bytes, text) = text_of(object);
        self.sources.check_room(path, bytes, text.len()).map_err(|why| no_room(of, &why))?;
        Ok(text)
    }

    /// Checks that the quota suffices for `object`.
    ///
    /// # Errors
    /// The quota would be exceeded.
    pub(super) fn check_room(&self, path: &Path, of: (&str, &str), object: &Value) -> Result<(), Status> {
        let (bytes, text) = text_of(object);
        self.sources.check_room(path, bytes, text.len()).map_err(|why| no_room(of, &why))
    }
}

/// The size of an object, and the text of its file.
fn text_of(object: &Value) -> (usize, Vec<u8>) {
    // The file does not contain the node's name, which may change at the next start.
    let mut object = object.clone();
    let bytes = object.to_string().len();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("nodeName");
    }
    (bytes, serde_json::to_vec_pretty(&object).expect("an object that was JSON before"))
}

fn no_room((resource, name): (&str, &str), why: &str) -> Status {
    Status::forbidden(format!("{resource} \"{name}\" is forbidden: {why}"))
}
