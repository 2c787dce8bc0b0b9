//! The data of a ConfigMap or Secret as pods use it: decoded. Pure.

use std::sync::Arc;

use super::Definition;
use crate::kind::Kind;
use nodlet_core::sorted::SortedMap;
use nodlet_wire::base64;

/// The decoded data of a ConfigMap or Secret.
#[derive(Default)]
pub struct ConfigData {
    /// `data`.
    pub data: SortedMap<String, Arc<[u8]>>,
    /// `binaryData` of a ConfigMap.
    pub binary_data: SortedMap<String, Arc<[u8]>>,
}

impl std::fmt::Debug for ConfigData {
    /// Prints no value: it may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<&String> = self.data.keys().collect();
        f.debug_struct("ConfigData").field("keys", &keys).finish_non_exhaustive()
    }
}

impl ConfigData {
    /// Decodes the data of `definition`.
    pub fn of(definition: &Definition) -> ConfigData {
        let object = definition.object();
        let values = |field: &str, is_encoded: bool| {
            let map = object[field].as_object().into_iter().flatten();
            map.map(|(key, value)| {
                let text = value.as_str().unwrap_or_default();
                let value = if is_encoded {
                    base64::decode(text.as_bytes()).unwrap_or_default()
                } else {
                    text.into()
                };
                (key.clone(), Arc::from(value))
            })
            .collect()
        };
        ConfigData {
            data: values("data", definition.kind == Kind::Secret),
            binary_data: values("binaryData", true),
        }
    }
}
