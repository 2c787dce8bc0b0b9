//! The data of a ConfigMap or Secret as pods use it: decoded. Pure.

use std::collections::BTreeMap;

use super::{Definition, Kind};
use nodlet_wire::base64;

/// The decoded data of a ConfigMap or Secret.
#[derive(Default, PartialEq, Eq)]
pub struct ConfigData {
    /// `data`.
    pub data: BTreeMap<String, Vec<u8>>,
    /// `binaryData` of a ConfigMap.
    pub binary_data: BTreeMap<String, Vec<u8>>,
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
                (key.clone(), value)
            })
            .collect()
        };
        ConfigData {
            data: values("data", definition.kind == Kind::Secret),
            binary_data: values("binaryData", true),
        }
    }
}
