//! The texts that clients and people know from Kubernetes' own kubelet and admission, which must stay word for word: each
//! was found in the sources of Kubernetes 1.36.3. Of a text with values, the parts between the values are listed.

use std::fs;
use std::path::Path;

/// The texts in each file, by its path below `runtime`.
const TEXTS: &[(&str, &[&str])] = &[
    ("core/src/node.rs", &["Pod was rejected as the node is shutting down."]),
    (
        "core/src/node/admission.rs",
        &[
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
            "Failed to admit pod as the OS field doesn't match node OS",
            "forbidden sysctl: ",
            "Node didn't have enough resource: ",
            ", requested: ",
            ", used: ",
            ", capacity: ",
            "node(s) didn't match Pod's node affinity/selector",
            "node(s) didn't have free ports for the requested pod ports",
            "node(s) had taints that the pod didn't tolerate",
        ],
    ),
    ("core/src/pod.rs", &["Pod was rejected: ", "Failed to create pod sandbox: ", "error killing pod: "]),
    (
        "core/src/pod/conditions.rs",
        &[
            "corresponding condition of pod readiness gate ",
            " does not exist.",
            "the status of pod readiness gate ",
        ],
    ),
    (
        "core/src/pod/container.rs",
        &[
            "The container could not be located when the pod was deleted.  The container used to be Running",
            "The container could not be located when the pod was terminated",
        ],
    ),
    ("core/src/pod/hook.rs", &["PostStartHook failed", "PreStopHook failed"]),
    (
        "core/src/pod/local_storage.rs",
        &["Pod ephemeral local storage usage exceeds the total limit of containers "],
    ),
    ("core/src/pod/probe.rs", &[" probe warning: ", " probe errored and resulted in "]),
    ("core/src/pod/resize.rs", &["Pod resize started", "Pod resize completed"]),
    ("core/src/pod/restart.rs", &["The container is removed because RestartAllContainers in place"]),
    ("core/src/pod/shutdown.rs", &["Pod was terminated in response to imminent node shutdown."]),
    (
        "core/src/pod/start.rs",
        &["back-off ", " restarting failed container=", "Back-off restarting failed container ", " in pod "],
    ),
    (
        "core/src/pod/termination.rs",
        &[
            "Pod was active on the node longer than the specified deadline",
            "Preempted in order to admit critical pod",
            "Stopping container ",
            " resize requires restart",
            "Pod sandbox changed, it will be killed and re-created.",
            " definition changed",
            ", will be restarted",
        ],
    ),
    (
        "core/src/status/conditions.rs",
        &[
            "container exited with restart policy rule",
            "Pod was preempted by Kubelet to accommodate a critical pod.",
        ],
    ),
    (
        "kube/src/kinds/limit_range.rs",
        &[
            "LimitRanger plugin set: ",
            ".  No request is specified",
            ".  No limit is specified",
            " max limit to request ratio per ",
            ", but no request is specified or request is 0",
            ", but no limit is specified or limit is 0",
            ", but provided ratio is ",
        ],
    ),
    (
        "kube/src/manifest/priority.rs",
        &[
            "no PriorityClass with name ",
            " was found",
            ") must not be provided in pod spec; priority admission controller computed ",
            " from the given PriorityClass name",
        ],
    ),
    (
        "registry/src/claims.rs",
        &[
            "waiting for ephemeral volume controller to create the persistentvolumeclaim ",
            " bound to non-existent persistentvolume ",
        ],
    ),
    ("registry/src/events/correlate.rs", &["(combined from similar events): "]),
    (
        "src/engine/hook.rs",
        &[
            " for Container ",
            " failed - error: ",
            "request to HTTPS lifecycle hook ",
            " got HTTP response, retry with HTTP succeeded",
        ],
    ),
    ("src/engine/run.rs", &[" referenced by FileKeyRef", "unable to find target container "]),
];

#[test]
fn the_texts_of_kubernetes_stay_word_for_word() {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (file, texts) in TEXTS {
        let source = fs::read_to_string(runtime.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for text in *texts {
            assert!(code.contains(text), "{file} lacks the text of Kubernetes {text:?}");
        }
    }
}
