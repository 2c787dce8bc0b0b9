//! The status of a pod in the cluster.

use std::cell::Cell;

use serde_json::Value;

use nodlet_cluster::api::{Api, STRATEGIC};
use nodlet_cluster::followed::Known;
use nodlet_cluster::pods;

use super::{Follower, SessionEnd, tolerate};

impl Follower {
    /// Sends the status of a pod, as far as it differs.
    pub(super) async fn send(
        api: &mut Api,
        has_news: &Cell<bool>,
        known: &mut Known,
        local: &Value,
    ) -> Result<(), SessionEnd> {
        match pods::status_patch(local, &known.object["status"]) {
            Some(patch) => Self::patch_status(api, has_news, known, &patch).await,
            None => Ok(()),
        }
    }

    /// Patches the status of a pod, and remembers the result.
    pub(super) async fn patch_status(
        api: &mut Api,
        has_news: &Cell<bool>,
        known: &mut Known,
        patch: &Value,
    ) -> Result<(), SessionEnd> {
        match api.call("PATCH", &format!("{}/status", known.path()), Some((STRATEGIC, patch))).await {
            Ok(changed) => {
                known.record_status_response(changed);
                has_news.set(true);
                Ok(())
            }
            failed => tolerate(failed),
        }
    }
}
