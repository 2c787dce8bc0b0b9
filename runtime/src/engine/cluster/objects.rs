//! What the pods of the cluster need: ConfigMaps, Secrets and tokens.

use std::time::{Duration, Instant};

use nodlet_cluster::api::{Api, JSON};
use nodlet_cluster::followed::{Known, kind_of};
use nodlet_cluster::pods;
use nodlet_cluster::schedule::{REFRESH_EVERY, Seen};
use nodlet_kube::kinds::Kind;

use super::{Failure, Follower};

impl Follower {
    /// Reads a ConfigMap or Secret, and writes it down.
    pub(super) async fn fetch(
        &mut self,
        api: &mut Api,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Failure> {
        let kind = kind_of(resource);
        let path = self.shell.paths.cluster_manifests().join(kind.row().file(namespace, name));
        match api.call("GET", &format!("/api/v1/namespaces/{namespace}/{resource}/{name}"), None).await {
            Ok(object) => {
                let local = pods::local_object(&object, kind.as_str());
                self.write(path, format!("{local:#}\n").into_bytes()).await;
                Ok(())
            }
            Err(error) if error.code() == Some(404) => {
                // Volumes keep their files, as with a kubelet.
                let removed = self.shell.stores.storage.run(move || std::fs::remove_file(path)).await;
                drop(removed);
                Ok(())
            }
            // The node authorizer learns of a new pod a moment later.
            Err(error) if error.code() == Some(403) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Requests the tokens of a pod, if it has any and they are new or nearly expired.
    pub(super) async fn renew_tokens(&mut self, api: &mut Api, known: &mut Known) -> Result<(), Failure> {
        let Some(needs) = &known.needs else { return Ok(()) };
        if needs.tokens.is_empty() || known.tokens_until.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        let mut shortest = u64::MAX;
        for token in &needs.tokens {
            let (namespace, account) = (&known.namespace, &token.account);
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
            let request = pods::token_request(&known.object, token);
            match api.call("POST", &path, Some((JSON, &request))).await {
                Ok(made) => {
                    let value = made["status"]["token"].as_str().unwrap_or_default();
                    let secret = pods::token_secret(namespace, token, value);
                    // Not on flash: a token lives for an hour, and is of no use without the cluster.
                    let file = Kind::Secret.row().file(namespace, &token.secret);
                    self.write(self.shell.paths.run_manifests().join(file), secret.to_string().into_bytes())
                        .await;
                    // A kubelet renews at 80 % of the life, and a token that lives longer after a day.
                    shortest = shortest.min(token.seconds / 5 * 4).min(24 * 60 * 60);
                }
                Err(error) if error.code().is_some() => {
                    log::warn!("{namespace}/{}: no token of service account {account}: {error}", known.name);
                    shortest = shortest.min(REFRESH_EVERY.as_secs());
                }
                Err(error) => return Err(error.into()),
            }
        }
        known.tokens_until = Some(Instant::now() + Duration::from_secs(shortest));
        Ok(())
    }

    /// Reads again what pods need: ConfigMaps, Secrets, and tokens that expire.
    pub(super) async fn refresh(&mut self, api: &mut Api) -> Result<Seen, Failure> {
        for (resource, namespace, name) in &self.followed.references() {
            self.fetch(api, resource, namespace, name).await?;
        }
        for uid in self.followed.uids() {
            if let Some(mut known) = self.followed.remove(&uid) {
                let renewed =
                    if known.has_manifest { self.renew_tokens(api, &mut known).await } else { Ok(()) };
                self.followed.insert(uid, known);
                renewed?;
            }
        }
        Ok(Seen::Refreshed)
    }
}
