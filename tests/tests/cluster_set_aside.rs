//! Pods and volumes of a cluster that an agent dies of are set aside, as those from files are (`set_aside.rs`).

use std::fs;
use std::path::Path;

use nodlet_tests::deaths::{die_while_a_task_handles, die_while_the_loop_reads, fault};
use nodlet_tests::{ClusterNode, Device, manifest};

#[test]
fn a_pod_of_a_cluster_is_set_aside_and_the_cluster_learns_why() {
    let (plane, mut node) = ClusterNode::in_new_cluster();
    node.device.run_pod("web", "sleep").wait_ready();
    let web = node.device.pod("web").uid();
    let app = manifest::container("app", "sleep", "imagePullPolicy: IfNotPresent");
    let bad = manifest::pod_of("bad", &[app], "nodeName: board-1\nautomountServiceAccountToken: false");
    node.device.stop_agent();
    plane.apply(&bad);
    for _ in 0..2 {
        die_while_a_task_handles(&mut node.device, &web, fault);
    }
    node.device.launch_agent();
    let events =
        plane.wait_for(&events("bad"), |events| events.contains("is set aside: the agent died 2 times"));
    assert!(events.contains("FailedCreatePodSandBox"), "{events}");
    assert_eq!(plane.line("get pod bad -o jsonpath={.status.phase}").ok(), "Pending");
    assert!(node.device.pod("web").is_ready());
    node.device.nodlet(["restart", "bad"]).ok();
    plane.wait_for("get pod bad --no-headers", |pod| pod.contains("1/1"));
}

/// The command for the reasons and the messages of a pod's events.
fn events(name: &str) -> String {
    format!(
        "get events --field-selector involvedObject.name={name} -o jsonpath={{.items[*]['reason','message']}}"
    )
}

/// So many values that it takes a while to read them.
fn many_values() -> String {
    let values: Vec<String> = (0..20_000).map(|number| format!("v{number}")).collect();
    values.join(", ")
}

/// Lets the agent die twice while it reads a file, and starts it again.
fn die_twice_while_reading(device: &mut Device, file: &Path) {
    for _ in 0..2 {
        die_while_the_loop_reads(device, file, fault);
    }
    device.launch_agent();
}

#[test]
fn a_pod_of_a_cluster_whose_manifest_the_agent_dies_of_waits_with_an_event() {
    let (plane, mut node) = ClusterNode::in_new_cluster();
    node.device.run_pod("web", "sleep").wait_ready();
    node.device.stop_agent();
    let terms =
        format!("[{{matchExpressions: [{{key: site, operator: NotIn, values: [{}]}}]}}]", many_values());
    let spec = format!(
        "nodeName: board-1\nautomountServiceAccountToken: false\naffinity: {{nodeAffinity: \
         {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: {terms}}}}}}}"
    );
    let app = manifest::container("app", "sleep", "imagePullPolicy: IfNotPresent");
    plane.create(&manifest::pod_of("large", &[app], &spec));
    let file = node.device.path("var/lib/nodlet/cluster/default_large.json");
    die_twice_while_reading(&mut node.device, &file);
    let all = plane.wait_for(&events("large"), |events| events.contains("set aside"));
    let why = "its manifest is set aside: the agent died 2 times";
    assert!(all.contains("SetAside") && all.contains(why), "{all}");
    // Its controller would replace a rejected pod at once.
    assert_eq!(plane.line("get pod large -o jsonpath={.status.phase}").ok(), "Pending");
    assert!(node.device.pod("web").is_ready());
    node.device.power_cycle();
    plane.wait_for("get pod large --no-headers", |pod| pod.contains("1/1"));
}

#[test]
fn an_object_of_a_cluster_is_set_aside_until_it_changes_and_events_of_its_pods_name_it() {
    let (plane, mut node) = ClusterNode::in_new_cluster();
    node.device.run_pod("web", "sleep").wait_ready();
    for (kind, reference, field) in
        [("ConfigMap", "configMapKeyRef", "data"), ("Secret", "secretKeyRef", "stringData")]
    {
        let low = kind.to_lowercase();
        let object = |values: usize| {
            let values: Vec<String> = (0..values).map(|number| format!("k{number}: v")).collect();
            let values = values.join(", ");
            format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: large}}\n{field}: {{{values}}}\n")
        };
        plane.create(&object(12_000));
        node.device.stop_agent();
        let env = format!("env: [{{name: V, valueFrom: {{{reference}: {{name: large, key: k1}}}}}}]");
        let app = manifest::container("app", "sleep", &format!("imagePullPolicy: IfNotPresent\n{env}"));
        let spec = "nodeName: board-1\nautomountServiceAccountToken: false";
        let names = [format!("one-{low}"), format!("two-{low}")];
        for name in &names {
            plane.apply(&manifest::pod_of(name, std::slice::from_ref(&app), spec));
        }
        let file = node.device.path(&format!("var/lib/nodlet/cluster/{low}_default_large.json"));
        die_twice_while_reading(&mut node.device, &file);
        for name in &names {
            let all = plane.wait_for(&events(name), |events| events.contains("set aside"));
            let why = format!("{kind} \"large\" is set aside: the agent died 2 times");
            assert!(all.contains("SetAside") && all.contains(&why), "{all}");
            plane.wait_for(&format!("get pod {name} --no-headers"), |pod| {
                pod.contains("CreateContainerConfigError")
            });
        }
        assert!(node.device.pod("web").is_ready());
        plane.kubectl_with(&["replace", "-f", "-"], &object(2)).ok();
        for name in &names {
            plane.wait_for(&format!("get pod {name} --no-headers"), |pod| pod.contains("1/1"));
        }
    }
}

#[test]
fn a_volume_of_a_cluster_is_set_aside_and_an_event_of_its_pod_names_it() {
    let (plane, mut node) = ClusterNode::in_new_cluster();
    let directory = node.device.path("data");
    fs::create_dir_all(&directory).expect("a directory");
    let expression = format!("{{key: site, operator: NotIn, values: [{}]}}, ", many_values());
    plane.create(&manifest::local_volume(&directory, &expression));
    plane.wait_for("get pvc data --no-headers", |claim| claim.contains("Bound"));
    node.device.stop_agent();
    let app = manifest::container("app", "sleep", "imagePullPolicy: IfNotPresent");
    let spec = "nodeName: board-1\nautomountServiceAccountToken: false\n\
                volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]";
    plane.apply(&manifest::pod_of("one", &[app], spec));
    let file = node.device.path("var/lib/nodlet/cluster/persistentvolume__disk.json");
    die_twice_while_reading(&mut node.device, &file);
    let all = plane.wait_for(&events("one"), |events| events.contains("set aside"));
    let why = "PersistentVolume \"disk\" is set aside: the agent died 2 times";
    assert!(all.contains("SetAside") && all.contains(why), "{all}");
    assert_eq!(plane.line("get pod one -o jsonpath={.status.phase}").ok(), "Pending");
    // A board that boots reads it again.
    node.device.power_cycle();
    plane.wait_for("get pod one --no-headers", |pod| pod.contains("1/1"));
}
