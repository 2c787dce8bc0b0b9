//! Mirror pods, which show the pods of the board's files in the cluster.

use std::time::Instant;

use serde_json::{Value, json};

use nodlet_cluster::api::{Api, JSON};
use nodlet_cluster::mirrors::{self, Name, Step};
use nodlet_cluster::pods;
use nodlet_core::error::causes;

use super::{Follower, SessionEnd, tolerate};

impl Follower {
    /// Makes the mirror pods those of all pods of files.
    pub(super) async fn mirror_all(&mut self, api: &mut Api) -> Result<(), SessionEnd> {
        let mut orphans = self.mirrors.names();
        let (all, _) = self.shell.publication.objects.list("pods", None);
        for (_, object) in all {
            let local: Value = serde_json::from_str(&object.json).unwrap_or_default();
            if let Some(name) = mirrors::name_of(&local, &self.credentials.node) {
                orphans.retain(|orphan| *orphan != name);
                self.mirror(api, &name, Some(&local)).await?;
            }
        }
        for name in orphans {
            self.mirror(api, &name, None).await?;
        }
        Ok(())
    }

    /// Makes a mirror pod that of the pod that it shows, which is looked up.
    pub(super) async fn mirror_again(&mut self, api: &mut Api, name: &Name) -> Result<(), SessionEnd> {
        let (all, _) = self.shell.publication.objects.list("pods", Some(&name.0));
        let local = all.iter().find_map(|(_, object)| {
            let local: Value = serde_json::from_str(&object.json).ok()?;
            (mirrors::name_of(&local, &self.credentials.node).as_ref() == Some(name)).then_some(local)
        });
        self.mirror(api, name, local.as_ref()).await
    }

    /// Makes a mirror pod that of `local`, a pod of the local API. An error of the API server about it alone, such as one of
    /// a webhook, keeps nothing else from being reported: it is repeated by [`Follower::refresh`].
    pub(super) async fn mirror(
        &mut self,
        api: &mut Api,
        name: &Name,
        local: Option<&Value>,
    ) -> Result<(), SessionEnd> {
        let is_known = self.mirrors.resume(name);
        match self.adapt(api, name, local).await {
            Err(failure) if failure.is_of_one_request => {
                self.mirrors.postpone(name.clone(), Instant::now());
                if !is_known {
                    log::warn!(
                        "{}/{}: the cluster cannot take the mirror pod: {}",
                        name.0,
                        name.1,
                        failure.why
                    );
                }
                Ok(())
            }
            adapted => adapted,
        }
    }

    async fn adapt(&mut self, api: &mut Api, name: &Name, local: Option<&Value>) -> Result<(), SessionEnd> {
        let node = &self.credentials.node;
        let mirror = local.map(|local| mirrors::mirror(local, name, node, &self.node_uid));
        let path = format!("/api/v1/namespaces/{}/pods", name.0);
        // It is deleted, created, and gets its status.
        for _ in 0..3 {
            match (self.mirrors.step(name, mirror.as_ref(), Instant::now()), &mirror) {
                (Step::Create, Some(mirror)) => match api.call("POST", &path, Some((JSON, mirror))).await {
                    Ok(made) => drop(self.mirrors.see(made)),
                    Err(error) if matches!(error.code(), Some(400 | 403 | 404 | 409 | 422)) => {
                        if self.mirrors.reject(name.clone(), mirror, Instant::now()) {
                            log::warn!(
                                "the cluster rejects the mirror pod {}/{}: {}",
                                name.0,
                                name.1,
                                causes(&error)
                            );
                        }
                        return Ok(());
                    }
                    Err(error) => return Err(error.into()),
                },
                (Step::Delete(uid), _) => {
                    let options = pods::final_deletion(&uid);
                    tolerate(
                        api.call("DELETE", &format!("{path}/{}", name.1), Some((JSON, &options))).await,
                    )?;
                    self.mirrors.forget(&uid);
                }
                (Step::SendStatus, _) => {
                    if let (Some(local), Some(known)) = (local, self.mirrors.get_mut(name)) {
                        let local = mirrors::shown(local, &known.object);
                        return Self::send(api, &self.has_news, known, &local).await;
                    }
                }
                (Step::Nothing | Step::Create, _) => return Ok(()),
            }
        }
        Ok(())
    }

    /// An event about a pod of a file, as one about its mirror pod, as `kubectl describe` looks for it.
    pub(super) fn about_mirror(&self, involved: &Value) -> Option<Value> {
        let (namespace, name) = (involved["namespace"].as_str()?, involved["name"].as_str()?);
        let name = (namespace.to_owned(), mirrors::mirror_name(name, &self.credentials.node));
        let hash = self.mirrors.hash(&name)?;
        let mut about = involved.clone();
        about["name"] = json!(name.1);
        about["uid"] = hash.clone();
        Some(about)
    }
}
