//! Which pod is published under a name. A pod that is replaced still ends while its successor exists, and no two
//! pods of one name run at a time.

use nodlet_core::facts::PodIndex;
use nodlet_core::spec::Pod;

/// The pod that is published under a name: the oldest of that name that is not hidden. Its successor is published
/// when it is gone or hidden, see [`nodlet_core::pod::PodState::is_hidden`].
pub fn shown<'a>(
    (namespace, name): (&str, &str),
    pods: impl Iterator<Item = (PodIndex, &'a Pod)>,
    is_hidden: impl Fn(PodIndex) -> bool,
) -> Option<PodIndex> {
    let named = pods.filter(|(_, pod)| *pod.namespace == *namespace && *pod.name == *name);
    named.map(|(index, _)| index).filter(|index| !is_hidden(*index)).min()
}
