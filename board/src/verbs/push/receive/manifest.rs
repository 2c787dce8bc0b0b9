//! A manifest of a push, and its application by the agent.

use std::time::{Duration, Instant};

use nodlet_kube::manifest::Validation;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::error::VerbError;
use crate::verbs::apply;
use crate::verbs::files::Object;

/// How long to retry while the agent is restarting. A restarted agent is back long before.
const AGENT_RESTART_TIMEOUT: Duration = Duration::from_secs(30);

/// A manifest of a push.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Manifest {
    pub(super) namespace: String,
    #[serde(flatten)]
    pub(super) object: Object,
}

impl Manifest {
    /// Applies the manifest. Retries if the agent is just being restarted.
    pub(super) fn apply(&self, client: &Client, validation: Validation) -> Result<apply::Applied, VerbError> {
        let end = Instant::now() + AGENT_RESTART_TIMEOUT;
        loop {
            let restart = client.watch_restart();
            match apply::send(client, &self.object, &self.namespace, validation, false) {
                Err(failure) if failure.is_disconnected() && restart.wait_for_agent(end) => {}
                result => return result,
            }
        }
    }
}
