//! The quota of what the API is asked to keep. Room is taken before a file is written: what finds none
//! is answered so, and does not lie on flash where nobody reads it.

use std::path::Path;

use serde_json::Value;

use super::{Registry, Status};

impl Registry {
    /// Takes room for `object`, called `name` among `resource`, which is to be the file `path`; what is
    /// to be written.
    ///
    /// # Errors
    /// There is no room, as for a quota that is exceeded.
    pub(super) fn reserve(
        &mut self,
        path: &Path,
        of: (&str, &str),
        object: &Value,
    ) -> Result<Vec<u8>, Status> {
        let (bytes, text) = text_of(object);
        let reserved = self.sources.reserve(path, bytes, text.len());
        reserved.map(|()| text).map_err(|why| no_room(of, &why))
    }

    /// Whether there is room for `object`.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn check_room(&self, path: &Path, of: (&str, &str), object: &Value) -> Result<(), Status> {
        let (bytes, text) = text_of(object);
        self.sources.check_room(path, bytes, text.len()).map_err(|why| no_room(of, &why))
    }
}

/// The size of an object, and the text of its file.
fn text_of(object: &Value) -> (usize, Vec<u8>) {
    // Without the node's name, which may be another after the next start.
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
