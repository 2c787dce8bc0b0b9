//! `nodlet describe` and `nodlet events` print what kubectl prints, byte for byte.

use nodlet_tests::{Device, Kubectl, manifest};

/// Requires that both programs print the same. They run one after the other, and ages grow meanwhile, so this
/// retries until both run within the same second.
fn same<const N: usize>(device: &Device, kubectl: &Kubectl, words: [&str; N]) -> String {
    let mut both = (String::new(), String::new());
    let is_same = || {
        both = (kubectl.run(words).ok(), device.nodlet(words).ok());
        both.0 == both.1
    };
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        device.wait_within(std::time::Duration::from_secs(20), "both to print the same", is_same);
    }));
    assert!(tried.is_ok(), "kubectl {words:?} says:\n{}\nand nodlet:\n{}", both.0, both.1);
    both.1
}

/// A pod with one of everything that is supported.
const RICH: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: rich
  labels: {tier: front, app: rich}
  annotations:
    note: short
    long: "a line that is much longer than a hundred and forty characters, so that it is not printed beside its key but below it, cut where no more fits in"
    lines: "one\ntwo\n"
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {disk: fast}
  tolerations:
  - {key: b, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
  - {key: a, operator: Equal, value: x, effect: NoSchedule}
  - {operator: Exists}
  readinessGates: [{conditionType: example.com/a}]
  topologySpreadConstraints:
  - {topologyKey: zone, whenUnsatisfiable: DoNotSchedule, maxSkew: 1}
  - topologyKey: host
    whenUnsatisfiable: ScheduleAnyway
    maxSkew: 2
    labelSelector:
      matchLabels: {tier: front, app: rich}
      matchExpressions: [{key: b, operator: In, values: [w, v]}, {key: a, operator: DoesNotExist}]
  volumes:
  - {name: cache, emptyDir: {sizeLimit: 1Mi, medium: Memory}}
  - {name: data, emptyDir: {}}
  - {name: host, hostPath: {path: /tmp, type: Directory}}
  - {name: any, hostPath: {path: /tmp}}
  initContainers:
  - {name: first, image: "localhost/demo:1", args: [print, ready]}
  - name: proxy
    image: localhost/demo:1
    restartPolicy: Always
    args: [sleep]
    startupProbe: {exec: {command: [/bin/demo, print, ok]}, periodSeconds: 1}
  containers:
  - name: app
    image: localhost/demo:1
    command: [/bin/demo]
    args: [serve, "8080", /bin, then, "print\nlines"]
    ports:
    - {containerPort: 8080, name: http}
    - {containerPort: 8081, protocol: UDP}
    env:
    - {name: PLAIN, value: "yes"}
    - {name: LINES, value: "one\ntwo"}
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: TIER, valueFrom: {fieldRef: {fieldPath: "metadata.labels['tier']"}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    resources:
      requests: {cpu: 100m, memory: 16Mi, ephemeral-storage: 1Mi}
      limits: {cpu: "0.5", memory: 64Mi, ephemeral-storage: 10Mi}
    livenessProbe: {httpGet: {port: http, path: "/healthz?verbose=(1)"}, initialDelaySeconds: 1000}
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    volumeMounts:
    - {name: data, mountPath: /var/data, subPath: sub}
    - {name: cache, mountPath: /cache}
    - {name: host, mountPath: /host, readOnly: true}
  - {name: helper, image: "localhost/demo:1", args: [sleep], ports: [{containerPort: 9}]}
"#;

#[test]
fn a_pod_and_its_node_are_described_as_kubectl_describes_them() {
    let device = Device::start_with(["--node-labels=disk=fast"]);
    let kubectl = Kubectl::new(&device);
    device.write_manifest("rich.yaml", RICH);
    device
        .wait_for("its containers to be ready", || device.pod("rich").condition("ContainersReady") == "True");
    let text = same(&device, &kubectl, ["describe", "pod", "rich"]);
    for line in ["Readiness Gates:", "  Type            Status", "Init Containers:", "Events:"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    device.run_pod_with("plain", "exit 3", "restartPolicy: Never").wait_phase("Failed");
    device.run_pod_with("net", "sleep", "hostNetwork: true").wait_ready();
    let failed = same(&device, &kubectl, ["describe", "pod", "plain"]);
    assert!(failed.contains("Exit Code:    3"), "{failed}");
    // Several pods at once, and a pod by a prefix of its name.
    same(&device, &kubectl, ["describe", "pods"]);
    same(&device, &kubectl, ["describe", "pods", "-l", "app=rich"]);
    same(&device, &kubectl, ["describe", "pod", "pl"]);
    same(&device, &kubectl, ["describe", "pod/net"]);
    same(&device, &kubectl, ["describe", "pod/net", "pod/plain"]);
    same(&device, &kubectl, ["describe", "pod", "net", "plain", "--show-events"]);
    let node = same(&device, &kubectl, ["describe", "node"]);
    assert!(node.contains("Starting kubelet."), "{node}");
    let storage = node.lines().find(|line| line.trim_start().starts_with("ephemeral-storage  1Mi"));
    assert!(storage.is_some_and(|line| line.contains(" 10Mi ")), "what of the disk is taken: {node}");
    let absent = device.nodlet(["describe", "pod", "absent"]).refused();
    assert_eq!(absent, kubectl.run(["describe", "pod", "absent"]).refused());
    assert_eq!(
        device.nodlet(["describe", "pod", "absent"]).code,
        kubectl.run(["describe", "pod", "absent"]).code
    );
}

/// kubectl searches events by the UID of the Node, and again by its name.
#[test]
fn a_machine_without_an_identity_is_described_with_each_event_once() {
    let mut device = Device::new();
    device.own_etc();
    device.start_agent();
    let kubectl = Kubectl::new(&device);
    let text = same(&device, &kubectl, ["describe", "node"]);
    assert_eq!(text.matches("Starting kubelet.").count(), 1, "{text}");
    assert!(text.lines().any(|line| line.trim_end() == "  Machine ID:"), "{text}");
}

#[test]
fn classes_presets_and_namespaces_are_described_as_kubectl_describes_them() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let class = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nvalue: 1000\n";
    let shy = "metadata: {name: shy, annotations: {note: a, also: b}}\npreemptionPolicy: Never\nglobalDefault: true\n";
    device.write_manifest("shy.yaml", &format!("{class}{shy}description: makes nobody go"));
    // kubectl stores an annotation that contains a newline, and prints it, too.
    kubectl.apply(&format!("{class}metadata: {{name: high}}\n")).ok();
    device.write_manifest(
        "preset.yaml",
        "apiVersion: settings.k8s.io/v1alpha1\nkind: PodPreset\nmetadata: {name: cache, labels: {a: b}}\n\
         spec: {selector: {matchLabels: {app: web, my-tier: x}}, env: [{name: A, value: b}, {name: C, value: ''}, \
         {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}], volumes: [{name: v, emptyDir: {}}], \
         volumeMounts: [{name: v, mountPath: /v, readOnly: true}]}\n",
    );
    let is_there = |kind: &str, name: &str| device.nodlet(["get", kind, name]).code == 0;
    device.wait_for("both", || is_there("podpreset", "cache") && is_there("pc", "shy"));
    let shy = same(&device, &kubectl, ["describe", "priorityclass", "shy"]);
    assert!(shy.contains("PreemptionPolicy:  Never"), "{shy}");
    let high = same(&device, &kubectl, ["describe", "pc/high"]);
    assert!(high.contains("last-applied-configuration={"), "{high}");
    let all = same(&device, &kubectl, ["describe", "pc"]);
    assert!(all.contains("2000001000"), "those that are always there, too: {all}");
    same(&device, &kubectl, ["describe", "pc", "sh"]);
    let preset = same(&device, &kubectl, ["describe", "podpreset", "cache"]);
    assert!(preset.contains("My - Tier:"), "{preset}");
    same(&device, &kubectl, ["describe", "podpresets", "-A"]);
    let namespace = same(&device, &kubectl, ["describe", "ns", "default"]);
    assert!(namespace.contains("Status:       Active"), "{namespace}");
    assert!(namespace.ends_with("No LimitRange resource.\n"), "{namespace}");
    device.write_manifest(
        "limits.yaml",
        "apiVersion: v1\nkind: LimitRange\nmetadata: {name: limits}\n\
         spec: {limits: [{type: Container, default: {memory: 64Mi}, defaultRequest: {memory: 8Mi}}]}\n",
    );
    device.wait_for("the limits", || is_there("limits", "limits"));
    let limits = same(&device, &kubectl, ["describe", "limits", "limits"]);
    assert!(limits.contains("64Mi"), "{limits}");
    let namespace = same(&device, &kubectl, ["describe", "ns", "default"]);
    assert!(namespace.contains("Resource Limits"), "{namespace}");
    device.remove_manifest("limits.yaml");
    device.run_pod("web", "sleep").wait_ready();
    let events = same(&device, &kubectl, ["describe", "events"]);
    assert!(events.contains("Involved Object:"), "{events}");
    let absent = device.nodlet(["describe", "pc", "absent"]).refused();
    assert_eq!(absent, kubectl.run(["describe", "pc", "absent"]).refused());
}

#[test]
fn volumes_and_claims_are_described_as_kubectl_describes_them() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let volume = |name: &str, source: &str| {
        format!(
            "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}, labels: {{size: large, a: b}}, annotations: {{note: x}}}}\n\
             spec: {{capacity: {{storage: 1024Mi}}, accessModes: [ReadWriteOnce, ReadOnlyMany], {source}}}\n---\n"
        )
    };
    let affinity = "nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [\
        {key: kubernetes.io/hostname, operator: In, values: [elsewhere, nowhere]}, {key: disk, operator: Exists}]}, \
        {matchFields: [{key: metadata.name, operator: In, values: [other]}]}]}}";
    let claim = |name: &str, rest: &str| {
        format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, labels: {{app: web}}}}\n\
             spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 10Mi}}}}{rest}}}\n---\n"
        )
    };
    let data = device.path("/srv/data");
    std::fs::create_dir_all(&data).expect("it can be made");
    let text = volume("disk", &format!("hostPath: {{path: {}, type: Directory}}", data.display()))
        + &volume(
            "far",
            &format!("local: {{path: /far}}, storageClassName: slow, volumeMode: Block, {affinity}"),
        )
        + &claim("data", "")
        + &claim("none", ", storageClassName: fast, volumeMode: Block");
    device.apply(&text);
    let user = "volumes: [{name: one, persistentVolumeClaim: {claimName: data}}, \
        {name: two, persistentVolumeClaim: {claimName: data, readOnly: true}}]\n";
    device.run_pod_with("web", "sleep", user).wait_ready();
    let disk = same(&device, &kubectl, ["describe", "pv", "disk"]);
    assert!(disk.contains("Claim:           default/data\n") && disk.contains("RWO,ROX"), "{disk}");
    let far = same(&device, &kubectl, ["describe", "pv", "far"]);
    assert!(far.contains("kubernetes.io/hostname in [elsewhere, nowhere]\n"), "{far}");
    let bound = same(&device, &kubectl, ["describe", "pvc", "data"]);
    assert!(bound.contains("Used By:       web\n") && bound.contains("Capacity:      1Gi\n"), "{bound}");
    let waiting = same(&device, &kubectl, ["describe", "pvc", "none"]);
    assert!(
        waiting.contains("Used By:       <none>\n") && waiting.contains("VolumeMode:    Block\n"),
        "{waiting}"
    );
    same(&device, &kubectl, ["describe", "pvc"]);
}

#[test]
fn events_are_listed_as_kubectl_lists_them() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.run_pod("crash", "exit 2").wait_reason("app", "CrashLoopBackOff");
    let events = same(&device, &kubectl, ["events"]);
    assert!(events.contains("(x2 over "), "what repeats is counted: {events}");
    same(&device, &kubectl, ["events", "-A"]);
    same(&device, &kubectl, ["events", "--for", "pod/crash", "--types=Warning"]);
    same(&device, &kubectl, ["events", "--no-headers"]);
    same(&device, &kubectl, ["get", "events"]);
    same(&device, &kubectl, ["get", "events", "-o", "wide"]);
    let node = format!("node/{}", device.node_name());
    let of_node = same(&device, &kubectl, ["events", "--for", &node]);
    assert!(of_node.contains("Starting kubelet."), "{of_node}");
    let none = kubectl.run(["events", "-n", "other"]);
    assert_eq!(device.nodlet(["events", "-n", "other"]).stderr, none.stderr);
    // The reasons of pods that do not run are described in the same words.
    let gated = manifest::pod_with("gated", "sleep", "schedulingGates: [{name: a}]");
    device.write_manifest("gated.yaml", &gated);
    let missing = manifest::pod("missing", "sleep").replace("localhost/demo:1", "localhost/absent:1");
    device.write_manifest("missing.yaml", &missing);
    device.wait_for("the image to be missed", || device.pod("missing").container("app").state() == "waiting");
    same(&device, &kubectl, ["describe", "pod", "gated"]);
    let crash = same(&device, &kubectl, ["describe", "pod", "crash"]);
    assert!(crash.contains("Back-off restarting failed container app in pod crash"), "{crash}");
    let missing = same(&device, &kubectl, ["describe", "pod", "missing"]);
    assert!(missing.contains("Failed to pull image \"localhost/absent:1\""), "{missing}");
    // Events are only in memory.
    let written = std::process::Command::new("grep")
        .args(["-rl", "Back-off restarting"])
        .arg(device.path("/var/lib/nodlet"))
        .output()
        .expect("grep can be run");
    assert_eq!(String::from_utf8_lossy(&written.stdout), "");
}

/// The board's init is nodlet, which has recorded the state of the data partition.
#[test]
fn a_data_partition_that_is_damaged_is_an_event_of_the_node() {
    let mut device = Device::new();
    let of = |device: &Device| device.nodlet(["get", "events", "--no-headers"]).ok();
    device.start_agent();
    device.wait_for("an event of the node", || of(&device).contains("Starting kubelet."));
    assert!(!of(&device).contains("DataPartition"));
    device.stop_agent();
    let status = device.root().join("run/nodlet/storage.json");
    let damaged = r#"{"inRAM": true, "reason": "Damaged", "message": "the file system is lost"}"#;
    std::fs::write(&status, damaged).expect("it can be written");
    device.start_agent();
    let event = "DataPartitionDamaged";
    device.wait_for("the warning", || of(&device).contains(event));
    let events = of(&device);
    let line = events.lines().find(|line| line.contains(event)).expect("it was there");
    assert!(line.contains("Warning") && line.contains("node/"), "{line}");
    assert!(line.contains("the file system is lost; pods run from RAM until the next boot"), "{line}");
}
