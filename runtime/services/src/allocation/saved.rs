//! The saved form of allocations: one object of JSON with a version.

use core::net::IpAddr;

use serde_json::{Value, json};

use super::{Allocations, Latest, MAX_SERVICES, list, text};
use crate::service::Family;

/// The version of the saved form.
const VERSION: u64 = 1;

/// Why saved allocations cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// They are not JSON.
    #[error("failed to parse the saved allocations")]
    Parse(#[from] serde_json::Error),
    /// Another agent wrote them.
    #[error("the saved allocations have version {0}, and this agent reads {VERSION}")]
    Version(String),
    /// There are more than an agent saves.
    #[error("the saved allocations have {0} Services, and there can be {MAX_SERVICES}")]
    TooMany(usize),
}

impl Allocations {
    /// Restores what [`Self::unsaved`] returned. What is held already stays.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version. Then nothing is restored.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<(), SavedError> {
        let saved: Value = serde_json::from_slice(bytes)?;
        if saved["version"] != VERSION {
            return Err(SavedError::Version(saved["version"].to_string()));
        }
        let services = list(&saved, "services");
        if services.len() > MAX_SERVICES {
            return Err(SavedError::TooMany(services.len()));
        }
        let latest = &saved["latest"];
        let address = |family: Family| {
            let address: IpAddr = text(latest, family.as_str()).parse().ok()?;
            Some((family, address))
        };
        self.latest = Latest {
            addresses: [Family::V4, Family::V6].into_iter().filter_map(address).collect(),
            node_port: latest["nodePort"].as_u64().and_then(|port| u16::try_from(port).ok()),
        };
        for one in services {
            let name = (text(one, "namespace").into(), text(one, "name").into());
            self.held.entry(name).or_insert_with(|| one["spec"].clone());
        }
        Ok(())
    }

    /// All allocations for [`Self::restore`], if they have changed since the last call.
    pub fn unsaved(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.is_unsaved) {
            return None;
        }
        let mut latest = json!({});
        for (family, address) in &self.latest.addresses {
            latest[family.as_str()] = address.to_string().into();
        }
        if let Some(port) = self.latest.node_port {
            latest["nodePort"] = port.into();
        }
        let services = self
            .held
            .iter()
            .map(|((namespace, name), spec)| json!({"namespace": namespace, "name": name, "spec": spec}));
        let services: Vec<Value> = services.collect();
        let saved = json!({"version": VERSION, "latest": latest, "services": services});
        Some(saved.to_string().into_bytes())
    }
}
