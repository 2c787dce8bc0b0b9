//! Labels of the Node in the cluster (`kubectl label node`), by which pods are placed. They are stored, since pods of
//! the cluster start again without it.

use std::rc::Rc;

use nodlet_cluster::node;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Pod;
use nodlet_host::paths::Paths;
use serde_json::Value;

use super::super::{Engine, Shell, this_node};

/// Uses and stores the labels of a Node object.
pub(in crate::engine) async fn see(shell: &Rc<Shell>, node: &Value) {
    let labels = node::labels(node);
    if *shell.machine.cluster_labels.borrow() == labels {
        return;
    }
    let text = format!("{}\n", node["metadata"]["labels"]).into_bytes();
    let path = shell.paths.cluster_labels();
    if let Err(error) = shell.stores.replace(path.clone(), text).await {
        log::error!("failed to write {}: {error}", path.display());
    }
    *shell.machine.cluster_labels.borrow_mut() = labels;
    shell.tasks.then_loop(|engine: &mut Engine| engine.observe_node()).await;
}

/// The labels that are stored: none on a board that has joined no cluster. Read before pods are admitted.
pub(in crate::engine) fn stored(paths: &Paths) -> SortedMap<String, String> {
    let Ok(text) = std::fs::read(paths.cluster_labels()) else { return SortedMap::default() };
    let labels: Value = serde_json::from_slice(&text).unwrap_or_default();
    node::labels(&serde_json::json!({ "metadata": { "labels": labels } }))
}

/// Whether a pod selects nodes by labels that this one is not known to have.
pub(super) fn are_missing(shell: &Shell, pod: &Pod) -> bool {
    let info = this_node::info(&shell.config, &shell.machine);
    !pod.spec.placement.matches(&info.name, &info.labels)
}
