//! Room for what the API is asked to keep. It is asked for before a file is written: what finds none
//! is answered so, and does not lie on flash where nobody reads it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::api::Status;

use super::Engine;

impl Engine {
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
        let reserved = self.registry.sources.reserve(path, bytes, text.len());
        reserved.map(|()| text).map_err(|why| no_room(of, &why))
    }

    /// Whether [`Engine::reserve`] would find room.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn has_room(&self, path: &Path, of: (&str, &str), object: &Value) -> Result<(), Status> {
        let (bytes, text) = text_of(object);
        self.registry.sources.check_room(path, bytes, text.len()).map_err(|why| no_room(of, &why))
    }

    /// Writes to its file what [`Engine::reserve`] gave, has it read as files are, and then tells `done`.
    pub(super) fn write_reserved(
        &mut self,
        path: PathBuf,
        bytes: Vec<u8>,
        done: impl FnOnce(&mut Self, Result<(), Status>) + 'static,
    ) {
        let fault = self.shell.fault.clone();
        let written = {
            let path = path.clone();
            self.shell.storage.run(move || crate::store::replace(&path, &bytes, &*fault))
        };
        self.shell.then(written, move |engine, written| {
            if written.is_ok() {
                engine.read_sources();
            }
            engine.registry.sources.release(&path);
            if written.is_ok() {
                engine.publish_changed();
            }
            let failed = |error| {
                let why = crate::error::chain(&error);
                Status::internal(format!("failed to write {}: {why}", path.display()))
            };
            done(engine, written.map_err(failed));
        });
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
