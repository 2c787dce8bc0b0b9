//! Annotations of other container runtimes and of their plugins, none of which nodlet acts on: their domains, with what
//! to write instead.

/// A domain or a prefix of keys. One that begins with `.` is the end of a domain; the domain itself counts, too.
type Pattern = &'static str;

/// What has the effect of an annotation; `None` if nothing has.
type Instead = Option<&'static str>;

/// The annotations, with whose they are. The first pattern that matches counts.
const KNOWN: [(Pattern, &str, Instead); 15] = [
    ("cpu-load-balancing.crio.io", "CRI-O", Some(CPUS)),
    ("cpu-quota.crio.io", "CRI-O", Some(CPUS)),
    ("cpu-shared.crio.io", "CRI-O", Some(CPUS)),
    ("irq-load-balancing.crio.io", "CRI-O", None),
    ("io.kubernetes.cri-o.Devices", "CRI-O", Some(DEVICES)),
    ("io.kubernetes.cri-o.userns-mode", "CRI-O", Some("use spec.hostUsers: false")),
    ("devices.crio.io", "CRI-O", Some(DEVICES)),
    (".crio.io", "CRI-O", None),
    ("io.kubernetes.cri-o.", "CRI-O", None),
    ("run.oci.", "crun", None),
    ("io.katacontainers.", "Kata Containers", None),
    ("io.containerd.", "containerd", None),
    ("io.podman.annotations.", "podman", None),
    (
        "k8s.v1.cni.cncf.io/",
        "Multus",
        Some("nodlet has no CNI plugins; a device of nodlet can be a network interface"),
    ),
    (".nri.io", "the plugins of NRI", Some(DEVICES)),
];

/// The classes of resources of RDT and of block devices: `<domain>/pod` and `<domain>/container.<name>`.
const CLASSES: [(Pattern, &str); 2] = [
    ("rdt.resources.beta.kubernetes.io", "classes of Intel RDT"),
    ("blockio.resources.beta.kubernetes.io", "classes of block I/O"),
];

const CPUS: &str = "use exclusive-cpus.nodlet.dev/<container>";
const DEVICES: &str = "use a device in etc/nodlet/devices (nodlet.dev/<name>) or cdi.k8s.io/<name>";

/// Why an annotation of another runtime has no effect. `None` for all other annotations.
pub(super) fn without_effect(key: &str) -> Option<String> {
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    if let Some((_, what)) = CLASSES.iter().find(|(class, _)| *class == domain) {
        return Some(format!("has no effect: nodlet has no {what}"));
    }
    let matches = |pattern: &str| match pattern.strip_prefix('.') {
        Some(end) => domain == end || domain.ends_with(pattern),
        None if pattern.ends_with(['.', '/']) => key.starts_with(pattern),
        None => {
            domain == pattern || key.strip_prefix(pattern).is_some_and(|rest| rest.starts_with(['.', '/']))
        }
    };
    let (_, whose, instead) = KNOWN.iter().find(|(pattern, ..)| matches(pattern))?;
    let instead = instead.map_or(String::new(), |instead| format!("; {instead}"));
    Some(format!("has no effect: it is for {whose}{instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_of_other_runtimes_are_named_with_what_has_their_effect() {
        for (key, whose, instead) in [
            ("cpu-load-balancing.crio.io", "CRI-O", CPUS),
            ("cpu-load-balancing.crio.io/app", "CRI-O", CPUS),
            ("cpu-quota.crio.io/app", "CRI-O", CPUS),
            ("irq-load-balancing.crio.io", "CRI-O", ""),
            ("cpu-c-states.crio.io", "CRI-O", ""),
            ("devices.crio.io", "CRI-O", DEVICES),
            ("io.kubernetes.cri-o.Devices", "CRI-O", DEVICES),
            ("io.kubernetes.cri-o.userns-mode", "CRI-O", "use spec.hostUsers: false"),
            ("io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel", "CRI-O", ""),
            ("run.oci.keep_original_groups", "crun", ""),
            ("io.katacontainers.config.hypervisor.default_vcpus", "Kata Containers", ""),
            ("io.containerd.runc.v2.group", "containerd", ""),
            ("io.podman.annotations.userns", "podman", ""),
            ("io.podman.annotations.label/app", "podman", ""),
            ("k8s.v1.cni.cncf.io/networks", "Multus", "network interface"),
            ("devices.nri.io/container.app", "the plugins of NRI", DEVICES),
        ] {
            let why = without_effect(key).unwrap_or_else(|| panic!("{key} is ignored in silence"));
            assert!(why.starts_with(&format!("has no effect: it is for {whose}")), "{key}: {why}");
            assert!(why.ends_with(instead) && why.contains("; ") != instead.is_empty(), "{key}: {why}");
        }
        for (key, what) in [
            ("rdt.resources.beta.kubernetes.io/pod", "classes of Intel RDT"),
            ("blockio.resources.beta.kubernetes.io/container.app", "classes of block I/O"),
        ] {
            assert_eq!(without_effect(key), Some(format!("has no effect: nodlet has no {what}")), "{key}");
        }
        for key in [
            "example.com/crio.io",
            "mycrio.io",
            "io.kubernetes.crio",
            "run.ocifoo",
            "io.containerdx.y",
            "cdi.k8s.io/a",
            "k8s.v1.cni.cncf.io.example.com/a",
            "exclusive-cpus.nodlet.dev/app",
            "resources.beta.kubernetes.io/pod",
        ] {
            assert_eq!(without_effect(key), None, "{key}");
        }
    }
}
