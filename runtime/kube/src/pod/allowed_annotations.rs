//! Annotations of pods that request something of the board, and which of them the board's operator allows
//! (`--allowed-annotations`). The author of a pod need not be trusted as much as the operator: a CDI device can contain
//! files of the board, and processes with a real-time priority can keep all others off a cpu.

use super::board_annotations::{EXCLUSIVE_CPUS, RTPRIO};
use super::ulimit::{self, ULIMIT};
use crate::object::cdi::{CDI_ANNOTATION, cdi_names};
use nodlet_core::spec::{OpenFiles, Pod};

/// The annotations and CDI devices that the operator allows, by name; none by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedAnnotations {
    names: Vec<String>,
    /// The limit of open files of each process (`--default-ulimit`). Annotations may request less than its hard limit.
    pub open_files: OpenFiles,
}

impl Default for AllowedAnnotations {
    fn default() -> Self {
        AllowedAnnotations { names: Vec::new(), open_files: OpenFiles::DEFAULT }
    }
}

impl AllowedAnnotations {
    /// Allows one more name: `exclusive-cpus.nodlet.dev` or `rtprio.nodlet.dev`, for annotations of this domain;
    /// `io.podman.annotations.ulimit`, for a limit of open files that is higher than that of the board; or a CDI
    /// device that annotations may request, `vendor.com/class=device`, or `vendor.com/class=*` for all devices of a class.
    /// Returns whether the name is one of these.
    #[must_use]
    pub fn allow(&mut self, name: &str) -> bool {
        let is_domain = [EXCLUSIVE_CPUS, RTPRIO].iter().any(|prefix| domain(prefix) == name);
        // Any device stands for all of its class.
        let device = name.strip_suffix("=*").map_or_else(|| name.to_owned(), |class| format!("{class}=all"));
        let is_valid =
            is_domain || name == ULIMIT || cdi_names(&device).is_ok_and(|names| names == [&*device]);
        if is_valid && !self.has(name) {
            self.names.push(name.to_owned());
        }
        is_valid
    }

    /// Why the board does not give a pod what its annotations request; `None` if it does. Invalid annotations are none of
    /// this module's concern.
    pub fn refusal(&self, pod: &Pod) -> Option<String> {
        pod.annotations.iter().find_map(|(key, value)| {
            if let Some(prefix) = [EXCLUSIVE_CPUS, RTPRIO].into_iter().find(|prefix| key.starts_with(prefix))
            {
                let name = domain(prefix);
                return (!self.has(name)).then(|| refused(key, name, name, ""));
            }
            if key == ULIMIT {
                let most = self.open_files.hard;
                let is_more = ulimit::open_files(pod, most).is_some_and(|limit| limit.hard > most);
                let instead = format!(", or request at most nofile={most}");
                return (is_more && !self.has(ULIMIT))
                    .then(|| refused(key, "more open files", ULIMIT, &instead));
            }
            let names = key.starts_with(CDI_ANNOTATION).then(|| cdi_names(value).ok()).flatten()?;
            let name = names.into_iter().find(|name| !self.has_device(name))?;
            Some(refused(key, name, name, &format!(", or name it in a device file (cdi: {name})")))
        })
    }

    /// Whether pods may request exclusive cpus.
    pub fn allow_exclusive_cpus(&self) -> bool {
        self.has(domain(EXCLUSIVE_CPUS))
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }

    fn has_device(&self, name: &str) -> bool {
        let class = name.split_once('=').map(|(class, _)| format!("{class}=*"));
        self.has(name) || class.is_some_and(|class| self.has(&class))
    }
}

/// The domain of an annotation whose key begins with `prefix`.
fn domain(prefix: &str) -> &str {
    prefix.trim_end_matches('/')
}

fn refused(key: &str, what: &str, name: &str, instead: &str) -> String {
    format!(
        "annotation {key}: the operator of this board does not allow annotations to request {what}; start nodlet agent \
         with --allowed-annotations={name}{instead}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(key: &str, value: &str) -> Pod {
        crate::pod::convert::pod(&json!({
            "metadata": { "annotations": { key: value, "example.com/note": "vendor.com/cam=front" } },
            "spec": { "containers": [{ "name": "app" }] },
        }))
    }

    fn allowed(names: &[&str]) -> AllowedAnnotations {
        let mut allowed = AllowedAnnotations::default();
        for name in names {
            assert!(allowed.allow(name), "{name}");
        }
        assert_eq!(allowed.allow_exclusive_cpus(), names.contains(&"exclusive-cpus.nodlet.dev"));
        allowed
    }

    #[test]
    fn a_pod_gets_what_the_operator_allows_by_name_and_nothing_else() {
        const CPUS: (&str, &str) = ("exclusive-cpus.nodlet.dev/app", "2");
        const PRIORITY: (&str, &str) = ("rtprio.nodlet.dev/app", "5");
        const FRONT: (&str, &str) = ("cdi.k8s.io/cams", "vendor.com/cam=front");
        const BOTH: (&str, &str) = ("cdi.k8s.io/cams", "vendor.com/cam=front, vendor.com/cam=rear");
        for (names, (key, value), missing) in [
            (&[][..], CPUS, Some("exclusive-cpus.nodlet.dev")),
            (&["rtprio.nodlet.dev"], CPUS, Some("exclusive-cpus.nodlet.dev")),
            (&["exclusive-cpus.nodlet.dev"], CPUS, None),
            (&[], PRIORITY, Some("rtprio.nodlet.dev")),
            (&["exclusive-cpus.nodlet.dev", "vendor.com/cam=*"], PRIORITY, Some("rtprio.nodlet.dev")),
            (&["rtprio.nodlet.dev"], PRIORITY, None),
            (&[], FRONT, Some("vendor.com/cam=front")),
            (&["vendor.com/cam=rear", "rtprio.nodlet.dev"], FRONT, Some("vendor.com/cam=front")),
            (&["vendor.com/camera=*", "other.com/cam=*"], FRONT, Some("vendor.com/cam=front")),
            (&["vendor.com/cam=front"], FRONT, None),
            (&["vendor.com/cam=front"], BOTH, Some("vendor.com/cam=rear")),
            (&["vendor.com/cam=*"], BOTH, None),
            (&[], ("cdi.k8s.io.example.com/cams", "vendor.com/cam=front"), None),
            (&[], ("example.com/cdi.k8s.io", "vendor.com/cam=front"), None),
        ] {
            let refusal = allowed(names).refusal(&pod(key, value));
            let expected = missing.map(|name| format!("annotation {key}: the operator of this board does not allow annotations to request {name}; start nodlet agent with --allowed-annotations={name}"));
            assert_eq!(refusal.is_some(), expected.is_some(), "{names:?} {key}: {value}: {refusal:?}");
            assert!(
                refusal.unwrap_or_default().starts_with(&expected.unwrap_or_default()),
                "{names:?} {key}: {value}"
            );
        }
    }

    #[test]
    fn more_open_files_than_the_board_gives_need_consent() {
        let mut some = allowed(&["io.podman.annotations.ulimit"]);
        let mut none = AllowedAnnotations::default();
        for (value, is_refused) in [
            ("nofile=1048576", false),
            ("nofile=-1", false),
            ("nofile=1:1048577,nproc=1", true),
            ("nproc=9", false),
        ] {
            let pod = pod(ULIMIT, value);
            let refusal = none.refusal(&pod);
            assert_eq!(refusal.is_some(), is_refused, "{value}: {refusal:?}");
            assert_eq!(some.refusal(&pod), None, "{value}");
        }
        let least = OpenFiles { soft: 64, hard: 64 };
        (some.open_files, none.open_files) = (least, least);
        let pod = pod(ULIMIT, "nofile=65");
        assert_eq!((none.refusal(&pod).is_some(), some.refusal(&pod)), (true, None));
    }

    #[test]
    fn only_names_of_annotations_and_cdi_devices_can_be_allowed() {
        let mut allowed = AllowedAnnotations::default();
        for name in [
            "",
            "*",
            "cdi.k8s.io",
            "cdi.k8s.io/cams",
            "rtprio.nodlet.dev/app",
            "rtprio.*",
            "vendor.com/cam",
            "vendor.com/*",
            "*/*=*",
            "vendor.com/cam=fr*",
            "vendor.com/cam=a,vendor.com/cam=b",
            " vendor.com/cam=a",
        ] {
            assert!(!allowed.allow(name), "{name}");
        }
        assert_eq!(allowed, AllowedAnnotations::default());
    }
}
