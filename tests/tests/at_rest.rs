//! What a board stores of its cluster is encrypted where it has a key.

use std::fs;

use nodlet_tests::{ClusterNode as Node, ControlPlane, files_with};

/// A pod with a Secret and a ConfigMap, which appear in its variables and files, and in its spec.
const OBJECTS: &str = "
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {password: correct-horse-battery}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: colors}
data: {color: ultramarine-blue}
---
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: localhost/demo:1
    args: [print, began, then, wait, /end]
    env: [{name: WORD, value: literal-in-the-spec}]
    envFrom: [{configMapRef: {name: colors}}, {secretRef: {name: password}}]
    volumeMounts: [{name: password, mountPath: /password}]
  volumes: [{name: password, secret: {secretName: password}}]
";

/// What must not be on flash. The values of Secrets are base64 in their objects.
const SECRETS: [&str; 5] = [
    "correct-horse-battery",
    "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5",
    "ultramarine-blue",
    "literal-in-the-spec",
    "clientKey",
];

const KEY: [&str; 2] =
    ["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="];

fn born(node: &Node) -> String {
    node.device.pod("one").born("app")
}

#[test]
fn nothing_of_the_cluster_is_plain_on_flash_and_the_pods_return_only_with_the_key() {
    let plane = ControlPlane::start();
    let flag = ["--encryption-key-file", "/etc/nodlet/keys"];
    let mut node = Node::connected(&plane, "board-1");
    let keys = node.device.path("/etc/nodlet/keys");
    let write_keys = |names: &[(&str, &str)]| {
        let lines: String = names.iter().map(|(name, key)| format!("{name} {key}\n")).collect();
        fs::create_dir_all(keys.parent().expect("a directory")).expect("the root can be written to");
        fs::write(&keys, lines).expect("written");
    };
    // A board that began without a key.
    let words = plane.join_arguments();
    let words: Vec<&str> = ["join"].into_iter().chain(words.iter().map(String::as_str)).collect();
    node.verb(&words).ok();
    plane.apply(OBJECTS);
    node.device.pod("one").wait_ready();
    let flash = node.device.path("/var");
    for secret in &SECRETS[1..] {
        assert!(!files_with(&flash, &[secret]).is_empty(), "{secret} is plain without a key");
    }
    let first = born(&node);
    node.device.kill_agent();
    write_keys(&[("one", KEY[0])]);
    node.device.agent_arguments(["--node-name", "board-1", flag[0], flag[1]]);
    node.device.start_agent();
    node.device.wait_for("everything to be encrypted", || files_with(&flash, &SECRETS).is_empty());
    assert_eq!(born(&node), first);
    let stored =
        fs::read(node.device.path("/var/lib/nodlet/cluster/default_one.json")).expect("its manifest");
    assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:one:"));

    // Offline, the pod comes back with the key.
    let cut = plane.partition_from(&node.address);
    node.device.power_cycle();
    node.device.pod("one").wait_ready();
    let environment = node.device.pod("one").demo("app", "env").stdout;
    assert!(
        environment.contains("ultramarine-blue") && environment.contains("correct-horse"),
        "{environment}"
    );

    // With a wrong key, a pod that runs goes on, and the reason is named.
    let second = born(&node);
    let restart = |node: &mut Node, keys: &[(&str, &str)]| {
        node.device.kill_agent();
        let before = node.device.agent_log().len();
        write_keys(keys);
        node.device.start_agent();
        before
    };
    for (wrong, why) in [
        (("one", KEY[1]), "the key \"one\" of the key file does not decrypt it"),
        (("two", KEY[0]), "it was encrypted with the key \"one\", which the key file does not have"),
    ] {
        let before = restart(&mut node, &[wrong]);
        let log = || node.device.agent_log()[before..].to_owned();
        node.device.wait_for("the reason", || {
            log().contains(&format!("default_one.json: {why}"))
                && log().contains(&format!("cluster.json: {why}"))
        });
        assert_eq!(born(&node), second);
    }
    // After a reboot, the pod does not start.
    node.device.power_cycle();
    assert_eq!(node.device.pods(), Vec::<String>::new());
    // Neither without the file, which stops no agent.
    fs::remove_file(&keys).expect("it is there");
    node.device.restart_agent();
    node.device.wait_logged("etc/nodlet/keys: No such file or directory");

    // Another key before the old one: it encrypts everything, once the board is connected.
    drop(cut);
    restart(&mut node, &[("two", KEY[1]), ("one", KEY[0])]);
    node.device.pod("one").wait_ready();
    let is_new = |file: &str| {
        let stored = fs::read(node.device.path(file)).unwrap_or_default();
        stored.starts_with(b"k8s:enc:aesgcm:v1:two:")
    };
    node.device.wait_for("the new key", || {
        ["cluster.json", "cluster/default_one.json", "cluster/secret_default_password.json"]
            .iter()
            .all(|file| is_new(&format!("/var/lib/nodlet/{file}")))
    });
    assert_eq!(files_with(&flash, &SECRETS), Vec::<String>::new());
}
