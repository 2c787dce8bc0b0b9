//! Warnings about files: those about pods of a cluster lack what the control plane acts on.

use super::*;

/// A pod as a control plane assigns it, with the tolerations that it adds itself, and with a field that has no effect.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {kubernetes.io/egress-bandwidth: 1M}}
spec:
  schedulerName: mine
  preemptionPolicy: Never
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]
  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}]}}
  tolerations:
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  containers: [{name: app, image: a}]
  volumes:
  - name: data
    ephemeral: {volumeClaimTemplate: {spec: {
      accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}, limits: {storage: 2Gi}}}}}
";

/// The fields that the warnings about [`POD`] in a file of a directory name.
fn fields(directory: &str) -> Vec<String> {
    let mut world = World::new();
    let path = Path::new(directory).join("web.yaml");
    let sources = &mut world.registry.sources;
    let file = parse(sources, &path, POD).expect("it is right");
    sources.put(&path, file).expect("there is room");
    let field = |warning: &String| warning.split(": ").next().unwrap_or_default().to_owned();
    sources.warnings(&path).map(field).collect()
}

#[test]
fn a_pod_of_a_cluster_has_no_warnings_about_what_its_control_plane_acts_on() {
    assert_eq!(fields("/cluster"), ["metadata.annotations[kubernetes.io/egress-bandwidth]"]);
    for directory in ["/site", "/applied"] {
        assert_eq!(
            fields(directory),
            [
                "metadata.annotations[kubernetes.io/egress-bandwidth]",
                "spec.affinity.podAntiAffinity",
                "spec.preemptionPolicy",
                "spec.schedulerName",
                "spec.tolerations[0].tolerationSeconds",
                "spec.tolerations[1].tolerationSeconds",
                "spec.topologySpreadConstraints",
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources.limits",
            ],
            "{directory}"
        );
    }
}
