//! Labels of the Node in the cluster (`kubectl label node`), by which pods are placed. They are stored, since pods of
//! the cluster start again without it.

use std::io;
use std::rc::Rc;

use nodlet_cluster::node;
use nodlet_core::sorted::SortedMap;
use nodlet_core::spec::Pod;
use nodlet_host::paths::Paths;
use serde_json::Value;

use super::super::message::Message;
use super::super::{Shell, this_node};

/// Uses and stores the labels of a Node object.
pub(in crate::engine) async fn see(shell: &Rc<Shell>, node: &Value) {
    let labels = node::labels(node);
    if *shell.machine.cluster_labels.borrow() == labels {
        return;
    }
    *shell.machine.cluster_labels.borrow_mut() = labels;
    store(shell).await;
    shell.tasks.send(Message::NodeChanged).await;
}

/// Stores the labels that could not be stored before. The schedule calls for it with [`Action::Refresh`].
///
/// [`Action::Refresh`]: nodlet_cluster::schedule::Action::Refresh
pub(super) async fn store_again(shell: &Rc<Shell>) {
    if shell.machine.unstored_labels.get() {
        store(shell).await;
    }
}

async fn store(shell: &Rc<Shell>) {
    let path = shell.paths.cluster_labels();
    let text = node::labels_text(&shell.machine.cluster_labels.borrow());
    let result = shell.stores.replace(path.clone(), text).await;
    let failed_before = shell.machine.unstored_labels.replace(result.is_err());
    match result {
        // Once: the card may be full for weeks.
        Err(error) if !failed_before => log::error!(
            "failed to write {}: {error}; tried again each minute of a connection, without which a boot knows the earlier \
             labels of the Node",
            path.display()
        ),
        Ok(()) if failed_before => log::info!("wrote {}", path.display()),
        Ok(()) | Err(_) => {}
    }
}

/// The labels that are stored: none on a board that has joined no cluster. Read before pods are admitted.
pub(in crate::engine) fn stored(paths: &Paths) -> SortedMap<String, String> {
    let path = paths.cluster_labels();
    let why = match nodlet_kernel::own_file::read(&path) {
        Ok(text) => match node::stored_labels(&text) {
            Some(labels) => return labels,
            None => "not a JSON object".to_owned(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return SortedMap::default(),
        Err(error) => error.to_string(),
    };
    log::warn!(
        "{} is ignored: {why}; until the board is connected, it rejects pods that select labels of its Node in the cluster",
        path.display()
    );
    SortedMap::default()
}

/// Whether a pod selects nodes by labels that this one is not known to have.
pub(super) fn are_missing(shell: &Shell, pod: &Pod) -> bool {
    let info = this_node::info(&shell.config, &shell.machine);
    !pod.spec.placement.matches(&info.name, &info.labels)
}
