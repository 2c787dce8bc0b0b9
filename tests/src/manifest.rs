//! The common parts of manifests in tests. The part that a test is about is written in the test, as YAML.

use std::fmt::Display;
use std::path::Path;

/// A pod of one container, `app`, that executes these steps of the demo program.
pub fn pod(name: &str, steps: &str) -> String {
    pod_with(name, steps, "")
}

/// The pod of [`pod`] with more lines of YAML in its spec.
pub fn pod_with(name: &str, steps: &str, spec: &str) -> String {
    single(name, steps, "", spec)
}

/// A pod of one container, `app`, with more lines of YAML in the container and in the pod's spec.
pub fn single(name: &str, steps: &str, more: &str, spec: &str) -> String {
    pod_of(name, &[container("app", steps, more)], spec)
}

/// A pod of these containers ([`container`]), with more lines of YAML in its spec.
pub fn pod_of(name: &str, containers: &[String], spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n{}  containers:\n{}",
        indented(spec, 2),
        containers.concat()
    )
}

/// The pod of [`pod_of`] with these init containers.
pub fn pod_behind(name: &str, init: &[String], containers: &[String], spec: &str) -> String {
    let pod = pod_of(name, containers, spec);
    pod.replacen("  containers:\n", &format!("  initContainers:\n{}  containers:\n", init.concat()), 1)
}

/// One container, with more lines of YAML in it. The steps are split at spaces.
pub fn container(name: &str, steps: &str, more: &str) -> String {
    let words: Vec<String> = steps.split_whitespace().map(|word| format!("{word:?}")).collect();
    format!(
        "  - name: {name}\n    image: localhost/demo:1\n    args: [{}]\n{}",
        words.join(", "),
        indented(more, 4)
    )
}

/// The field of a container that mounts a volume at the directory of its name.
pub fn mount(volume: &str) -> String {
    format!("volumeMounts: [{{name: {volume}, mountPath: /{volume}}}]\n")
}

/// The field of a pod with an emptyDir of this name.
pub fn empty_dir(volume: &str) -> String {
    format!("volumes: [{{name: {volume}, emptyDir: {{}}}}]\n")
}

/// The field of a pod with this directory of the machine as a volume of this name.
pub fn host_path(volume: &str, directory: impl Display) -> String {
    format!("volumes: [{{name: {volume}, hostPath: {{path: {directory}}}}}]\n")
}

/// The manifest with another image in place of that of the demo program.
pub fn with_image(manifest: &str, image: &str) -> String {
    manifest.replace("localhost/demo:1", image)
}

/// The manifest of a pod with one more line in its metadata.
pub fn with_metadata(manifest: &str, line: &str) -> String {
    manifest.replacen("metadata:\n", &format!("metadata:\n  {line}\n"), 1)
}

/// A Deployment `web` of pods with the label `app: web`, with more lines of YAML in its spec and in that of its pods.
pub fn deployment(replicas: usize, containers: &[String], deployment: &str, pod: &str) -> String {
    let template = format!(
        "selector: {{matchLabels: {{app: web}}}}\ntemplate:\n  metadata: {{labels: {{app: web}}}}\n  spec:\n{}    containers:\n{}",
        indented(pod, 4),
        indented(&containers.concat(), 2),
    );
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n{}{}",
        indented(deployment, 2),
        indented(&template, 2),
    )
}

/// The PersistentVolume `disk` in this directory, for nodes that match these expressions besides the node `board-1`, and
/// the claim `data`, which it suits.
pub fn local_volume(directory: &Path, expressions: &str) -> String {
    format!(
        "apiVersion: v1
kind: PersistentVolume
metadata: {{name: disk}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  storageClassName: ''
  local: {{path: {}}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{expressions}
    {{key: kubernetes.io/hostname, operator: In, values: [board-1]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: data}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ''
  resources: {{requests: {{storage: 1Gi}}}}
",
        directory.display()
    )
}

fn indented(lines: &str, by: usize) -> String {
    lines.lines().map(|line| format!("{:by$}{line}\n", "")).collect()
}
