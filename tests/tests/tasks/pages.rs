//! The pages of Kubernetes' documentation that have a manifest, and the sources of their tests.

use std::collections::BTreeSet;
use std::fs;

use super::tasks;

/// The manifests, and for each the page whose promises its test checks: the path behind `kubernetes.io/docs/`. The pages
/// are those about one Pod below `tasks/configure-pod-container`, `tasks/inject-data-application`,
/// `tasks/configmap-secret`, `tasks/manage-hugepages` and `tasks/debug/debug-application`, and some others. Not among
/// them: what only a Windows node (GMSA, RunAsUserName, HostProcess), a controller (Pod Security Admission, Dynamic
/// Resource Allocation, the debugging of Services and StatefulSets) or an issuer of tokens (service accounts) does, and
/// what no node sees (Kompose, Kustomize).
const PAGES: &[(&str, &str)] = &[
    ("apparmor", "tutorials/security/apparmor"),
    ("assign-cpu", "tasks/configure-pod-container/assign-cpu-resource"),
    ("assign-memory", "tasks/configure-pod-container/assign-memory-resource"),
    ("assign-pod-level-resources", "tasks/configure-pod-container/assign-pod-level-resources"),
    ("command-and-arguments", "tasks/inject-data-application/define-command-argument-container"),
    ("command-and-arguments", "tasks/inject-data-application/define-environment-variable-container"),
    ("configmap", "tasks/configure-pod-container/configure-pod-configmap"),
    ("crashing-and-waiting", "tasks/debug/debug-application/debug-pods"),
    ("critical-pod", "tasks/access-application-cluster/list-all-running-container-images"),
    ("critical-pod", "tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods"),
    ("dependent-variables", "tasks/inject-data-application/define-interdependent-environment-variables"),
    ("environment-from-file", "tasks/inject-data-application/define-environment-variable-via-file"),
    ("ephemeral-container", "tasks/debug/debug-application/debug-running-pod"),
    ("extended-resource", "tasks/configure-pod-container/extended-resource"),
    ("failing-init-container", "tasks/debug/debug-application/debug-init-containers"),
    ("host-aliases-and-dns", "concepts/services-networking/dns-pod-service"),
    ("host-aliases-and-dns", "tasks/network/customize-hosts-file-for-pods"),
    ("host-port", "concepts/cluster-administration/networking"),
    ("huge-pages", "tasks/manage-hugepages/scheduling-hugepages"),
    ("image-volume", "tasks/configure-pod-container/image-volumes"),
    ("init-container", "tasks/configure-pod-container/configure-pod-initialization"),
    ("lifecycle-handlers", "tasks/configure-pod-container/attach-handler-lifecycle-event"),
    ("limit-range", "tasks/administer-cluster/manage-resources/cpu-constraint-namespace"),
    ("limit-range", "tasks/administer-cluster/manage-resources/cpu-default-namespace"),
    ("limit-range", "tasks/administer-cluster/manage-resources/memory-constraint-namespace"),
    ("limit-range", "tasks/administer-cluster/manage-resources/memory-default-namespace"),
    ("local-ephemeral-storage", "concepts/storage/ephemeral-storage"),
    ("managed-secret", "tasks/configmap-secret/managing-secret-using-config-file"),
    ("managed-secret", "tasks/configmap-secret/managing-secret-using-kubectl"),
    ("node-selection", "tasks/configure-pod-container/assign-pods-nodes"),
    ("node-selection", "tasks/configure-pod-container/assign-pods-nodes-using-node-affinity"),
    ("persistent-volume", "tasks/configure-pod-container/configure-persistent-volume-storage"),
    ("pod-information", "tasks/inject-data-application/downward-api-volume-expose-pod-information"),
    ("pod-information", "tasks/inject-data-application/environment-variable-expose-pod-information"),
    ("port-forward", "tasks/access-application-cluster/port-forward-access-application-cluster"),
    ("private-registry", "tasks/configure-pod-container/pull-image-private-registry"),
    ("probes", "tasks/configure-pod-container/configure-liveness-readiness-startup-probes"),
    ("probes-grpc", "tasks/configure-pod-container/configure-liveness-readiness-startup-probes"),
    ("probes-http-tcp", "tasks/configure-pod-container/configure-liveness-readiness-startup-probes"),
    ("projected-volume", "tasks/configure-pod-container/configure-projected-volume-storage"),
    ("quality-of-service", "tasks/configure-pod-container/quality-service-pod"),
    ("resize-container", "tasks/configure-pod-container/resize-container-resources"),
    ("resize-pod", "tasks/configure-pod-container/resize-pod-resources"),
    ("running-container", "tasks/debug/debug-application/get-shell-running-container"),
    ("seccomp", "tutorials/security/seccomp"),
    ("secret-credentials", "tasks/inject-data-application/distribute-credentials-secure"),
    ("security-context", "tasks/configure-pod-container/security-context"),
    ("share-process-namespace", "tasks/configure-pod-container/share-process-namespace"),
    ("shared-volume", "tasks/access-application-cluster/communicate-containers-same-pod-shared-volume"),
    ("sidecar", "tutorials/configuration/pod-sidecar-containers"),
    ("static-pod", "tasks/configure-pod-container/static-pod"),
    ("sysctls", "tasks/administer-cluster/sysctl-cluster"),
    ("termination-message", "tasks/debug/debug-application/determine-reason-pod-failure"),
    ("updating-configuration", "tutorials/configuration/updating-configuration-via-a-configmap"),
    ("user-namespace", "tasks/configure-pod-container/user-namespaces"),
    ("volume-storage", "tasks/configure-pod-container/configure-volume-storage"),
];

/// The sources of the tests. Those of the pages that need a registry or a network of the board are in other suites.
const SOURCES: [&str; 7] = [
    include_str!("../tasks.rs"),
    include_str!("configuration.rs"),
    include_str!("debugging.rs"),
    include_str!("pods.rs"),
    include_str!("storage.rs"),
    include_str!("../ports.rs"),
    include_str!("../pull.rs"),
];

#[test]
fn every_page_has_a_manifest_and_every_manifest_a_page_and_a_test() {
    let files: BTreeSet<String> = fs::read_dir(tasks())
        .expect("there are tasks")
        .map(|entry| entry.expect("it is there").path())
        .map(|path| path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned())
        .collect();
    let of_pages: BTreeSet<String> = PAGES.iter().map(|(file, _)| (*file).to_owned()).collect();
    assert_eq!(files, of_pages);
    assert!(PAGES.is_sorted() && PAGES.windows(2).all(|pair| pair[0] != pair[1]), "sorted, and each once");
    for file in files {
        // The two functions of `tasks.rs`, or the manifest itself.
        let applied = ["apply", "run"].map(|function| format!(" {function}(&device, \"{file}\")"));
        let is_use = |line: &str| {
            let is_comment = line.trim_start().starts_with("//");
            !is_comment
                && applied
                    .iter()
                    .chain([&format!("examples/tasks/{file}.yaml\"")])
                    .any(|used| line.contains(used))
        };
        let is_tested = |source: &&str| source.lines().any(is_use);
        assert!(SOURCES.iter().any(is_tested), "no test applies {file}.yaml");
    }
}
