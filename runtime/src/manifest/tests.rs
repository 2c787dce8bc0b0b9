use super::{Validation, parse};

#[test]
fn a_simple_pod_becomes_a_spec_and_a_defaulted_object() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: app, image: 'localhost/demo:1', args: [sleep]}\n";
    let manifests = parse("web.yaml", text.as_bytes(), Validation::Strict, "board").unwrap();
    let [manifest] = &manifests[..] else { panic!("{manifests:?}") };
    assert_eq!(&*manifest.pod.name, "web");
    assert_eq!(&*manifest.pod.namespace, "default");
    assert_eq!(manifest.pod.uid.to_string().len(), 32);
    assert_eq!(manifest.object["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(manifest.object["spec"]["terminationGracePeriodSeconds"], 30);
    assert!(manifest.warnings.is_empty(), "{:?}", manifest.warnings);
}
