//! The annotation with which `podman kube play` limits the processes of a pod: a list as `nofile=1024:2048,nproc=64`.
//! nodlet acts on `nofile`, the limit of open files.

use crate::object::check::Field;
use nodlet_core::spec::{OpenFiles, Pod};

/// The annotation, which concerns all containers of the pod.
pub(super) const ULIMIT: &str = "io.podman.annotations.ulimit";

/// The limit of open files in the list.
const NOFILE: &str = "nofile";

/// Names of other limits that podman and Docker know.
const OTHERS: [&str; 15] = [
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
    "as",
];

fn entries(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split(',').map(|entry| entry.split_once('=').unwrap_or((entry, "")))
}

/// The limit of open files that the annotation requests for all containers of the pod. -1 stands for `most`.
#[must_use]
pub fn open_files(pod: &Pod, most: u64) -> Option<OpenFiles> {
    let value = pod.annotations.get(ULIMIT)?;
    let (_, limit) = entries(value).filter(|(name, _)| *name == NOFILE).last()?;
    OpenFiles::parse(limit, most)
}

/// Validates the annotation of a Pod.
pub(super) fn check(annotation: Field<'_, '_>) {
    for (name, limit) in entries(annotation.text()) {
        let is_known = name == NOFILE || OTHERS.contains(&name);
        if !is_known || name == NOFILE && OpenFiles::parse(limit, 0).is_none() {
            let how = "must be limits as nofile=1024:2048, separated by ',': a soft limit, and a hard limit that is not \
                       lower and at most 1073741824; -1 for the limit of the board";
            return annotation.invalid(how);
        }
    }
}

/// Why a part of the annotation has no effect.
pub(super) fn without_effect(key: &str, value: &str) -> Option<String> {
    let others: Vec<&str> = entries(value)
        .map(|(name, _)| name)
        .filter(|_| key == ULIMIT)
        .filter(|name| *name != NOFILE)
        .collect();
    (!others.is_empty()).then(|| format!("nodlet acts on nofile, and {} has no effect", others.join(", ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::field::Errors;

    fn pod(value: &str) -> Pod {
        crate::pod::convert::pod(&json!({
            "metadata": { "annotations": { ULIMIT: value } }, "spec": { "containers": [{ "name": "app" }] },
        }))
    }

    #[test]
    fn the_annotation_of_podman_limits_open_files() {
        let of = |value: &str| open_files(&pod(value), 9000).map(|limit| (limit.soft, limit.hard));
        for (value, expected) in [
            ("nofile=1024:2048", Some((1024, 2048))),
            ("nofile=524288:524288,nproc=7252:7252", Some((524_288, 524_288))),
            ("nproc=5,nofile=-1", Some((9000, 9000))),
            ("nproc=5", None),
        ] {
            assert_eq!(of(value), expected, "{value}");
        }
    }

    #[test]
    fn the_annotation_is_validated_and_what_has_no_effect_is_named() {
        for (value, is_right, warning) in [
            ("nofile=1024:2048", true, None),
            ("nofile=-1,nproc=1:2,memlock=-1:-1", true, Some("nproc, memlock has no effect")),
            ("nofile=2048:1024", false, None),
            ("nofile", false, None),
            ("nofiles=1", false, None),
            ("", false, None),
        ] {
            let mut errors = Errors::default();
            check(Field::root(&value.into(), "metadata", &mut errors));
            assert_eq!(errors.is_empty(), is_right, "{value:?}");
            if is_right {
                let named = without_effect(ULIMIT, value);
                assert!(
                    named.as_deref().unwrap_or_default().ends_with(warning.unwrap_or_default()),
                    "{named:?}"
                );
                assert_eq!(named.is_some(), warning.is_some(), "{value:?}");
            }
        }
        assert_eq!(without_effect("other", "nproc=1"), None);
    }
}
