//! An unmodified kubectl with the local API, only through a TCP-to-socket forwarder: what it can do is what
//! nodlet promises.

use nodlet_tests::{Background, Device, Kubectl, Terminal, manifest};

#[test]
fn get_shows_the_columns_of_kubernetes_and_watches() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let watching = Background::start(kubectl.command(["get", "pods", "-w"]));
    device.run_pod("web", "sleep");
    device.wait_for("kubectl to see it run", || {
        watching.saw(|line| line.starts_with("web") && line.contains("1/1     Running"))
    });
    assert!(watching.saw(|line| line.split_whitespace().eq(["NAME", "READY", "STATUS", "RESTARTS", "AGE"])));

    kubectl.run(["get", "pods", "-o", "wide"]).ok_with(&device.pod("web").ip());
    assert_eq!(kubectl.run(["get", "pods", "-o", "name"]).ok(), "pod/web\n");
    let path = kubectl.run(["get", "pod", "web", "-o", "jsonpath={.status.phase}"]).ok();
    assert_eq!(path, "Running");
    kubectl.run(["get", "pod", "absent"]).refused();

    device.remove_manifest("web.yaml");
    device.wait_for("kubectl to see it go", || watching.saw(|line| line.contains("Terminating")));
    device.pod("web").wait_gone();
}

#[test]
fn logs_are_followed_to_the_end_of_the_container() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device
        .run_pod_with("job", "print first then wait /tmp/go then print last", "restartPolicy: Never")
        .wait_ready();
    let mut following = Background::start(kubectl.command(["logs", "-f", "job"]));
    device.wait_for("the first line", || following.saw(|line| line == "first"));
    device.pod("job").tell("app", "/tmp/go");
    device.wait_for("the last line", || following.saw(|line| line == "last"));
    assert!(following.child.wait().expect("it ends").success(), "with the container ends the following");

    assert_eq!(kubectl.run(["logs", "job", "--tail=1"]).ok(), "last\n");
    let stamped = kubectl.run(["logs", "job", "--timestamps"]).ok();
    assert!(stamped.lines().all(|line| line.contains("Z ") && line.starts_with("20")), "{stamped}");
}

#[test]
fn exec_has_a_terminal_that_knows_its_size_and_passes_the_exit_code_on() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.run_pod("web", "sleep").wait_ready();

    let ran = kubectl.line("exec web -- /bin/demo print out then eprint err then exit 5");
    assert_eq!((ran.code, ran.stdout.as_str()), (5, "out\n"), "{ran:?}");
    assert!(ran.stderr.contains("err\n"), "{ran:?}");

    let ran = kubectl.run(["exec", "web", "--", "absent"]);
    assert!(ran.code == 1 && ran.stderr.contains("\"absent\": executable file not found"), "{ran:?}");

    let mut terminal =
        Terminal::start(kubectl.command(["exec", "-it", "web", "--", "/bin/demo", "tty", "then", "echo"]));
    terminal.wait_for("tty 100x30");
    terminal.type_in("hello\r");
    // Once from the terminal's own echo, once from the program.
    terminal.wait_for("hello\r\nhello\r\n");
    terminal.type_in("\u{4}");
    assert_eq!(terminal.ended(), 0);
}

#[test]
fn pods_are_created_and_deleted_as_anywhere() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let file = device.write_file("/made.yaml", manifest::pod("made", "on-term 0 then sleep"));
    let printed = kubectl.line(&format!("create -f {}", file.display())).ok();
    assert_eq!(printed, "pod/made created\n");
    device.pod("made").wait_ready();
    let printed = kubectl.line("delete pod made").ok();
    assert!(printed.starts_with("pod \"made\" deleted"), "{printed}");
    assert!(device.pods().is_empty(), "kubectl waits until it is gone");
    assert!(device.container_processes().is_empty());
}

#[test]
fn kubectl_describes_gets_all_and_learns_who_it_is_and_what_the_cluster_is() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.run_pod("web", "sleep").wait_ready();
    for (line, texts) in [
        ("describe pod web", &["Name:", "localhost/demo:1", "Started", "Ready"][..]),
        ("api-resources", &["\npods "]),
        ("auth can-i --list", &["*.*"]),
        ("auth whoami", &["root", "system:masters"]),
        ("cluster-info", &["control plane"]),
        ("describe node", &["HolderIdentity:"]),
    ] {
        let printed = kubectl.line(line).ok();
        assert!(texts.iter().all(|text| printed.contains(text)), "{line}: {printed}");
        assert!(!printed.contains("Failed to get lease"), "{line}: {printed}");
    }
    assert_eq!(kubectl.line("auth can-i delete pods").ok(), "yes\n");
    let all = kubectl.line("get all").ok();
    assert!(all.lines().any(|line| line.starts_with("web ") || line.starts_with("pod/web ")), "{all}");
}

#[test]
fn objects_in_protobuf_are_read_or_declined_with_what_works_instead() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    kubectl.line("create priorityclass low --value=-10 --description=late --preemption-policy=Never").ok();
    let class = device.get("/apis/scheduling.k8s.io/v1/priorityclasses/low").expect("it was made");
    let shown = (&class["value"], &class["description"], &class["preemptionPolicy"]);
    assert_eq!(shown, (&(-10).into(), &"late".into(), &"Never".into()));
    device.run_pod("web", "sleep").wait_ready();
    kubectl.line("create service clusterip web --tcp=80:8080").ok();
    let service = device.get("/api/v1/namespaces/default/services/web").expect("it was made");
    assert_eq!(
        (&service["spec"]["ports"][0]["targetPort"], &service["spec"]["type"]),
        (&8080.into(), &"ClusterIP".into())
    );
    kubectl.line("create deployment web --image=localhost/demo:1").refused_with("nodlet has no such kind");
}

/// kubectl itself has nothing to say about what the server lacks: the server's text is what a user sees.
#[test]
fn what_a_board_has_no_kind_or_method_for_is_rejected_with_the_reason() {
    const NO_KIND: &str = "nodlet has no such kind: it runs Pods";
    const NO_NAMESPACE: &str = "namespaces need no object";
    const NO_CORDON: &str = "a board has no cordon, drain or taint";
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let nodes = kubectl.line("get nodes -o name").ok();
    let node = nodes.trim().trim_start_matches("node/");
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {selector: {}}\n";
    let deployment = device.write_file("/deployment.yaml", text);
    let pod = device.write_file("/pod.yaml", manifest::pod("web", "sleep"));
    for (line, why) in [
        (format!("apply -f {}", deployment.display()), NO_KIND),
        (format!("diff -f {}", deployment.display()), NO_KIND),
        ("get deploy".to_owned(), NO_KIND),
        ("rollout restart ds/web".to_owned(), NO_KIND),
        ("create deployment web --image=localhost/demo:1".to_owned(), NO_KIND),
        ("create job web --image=localhost/demo:1".to_owned(), NO_KIND),
        ("create namespace team".to_owned(), NO_NAMESPACE),
        ("delete namespace default".to_owned(), NO_NAMESPACE),
        (format!("cordon {node}"), NO_CORDON),
        (format!("taint node {node} a=b:NoSchedule"), NO_CORDON),
        (format!("label node {node} a=b"), "`nodlet agent --node-labels` sets labels"),
        (format!("apply --server-side -f {}", pod.display()), "nodlet does not support server-side apply"),
    ] {
        // kubectl exits with 0 after a cordon that failed.
        let refused = kubectl.line(&line);
        assert!(refused.stderr.contains(why), "{line}: {refused:?}");
    }
}

/// Without evictions in discovery, kubectl would delete the pods, although the cordon was rejected before.
#[test]
fn a_drain_ends_with_the_reason_before_a_pod_ends() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let nodes = kubectl.line("get nodes -o name").ok();
    let node = nodes.trim().trim_start_matches("node/");
    device.apply(&manifest::pod("applied", "sleep"));
    device.run_pod("file", "sleep");
    let pods = ["applied", "file"].map(|name| device.pod(name));
    for pod in &pods {
        pod.wait_ready();
    }
    let uids = pods.each_ref().map(|pod| pod.uid());
    for line in [
        format!("drain {node} --force --ignore-daemonsets --timeout=60s"),
        format!("drain {node} --force --grace-period=0 --timeout=60s"),
    ] {
        let refused = kubectl.line(&line).refused();
        for name in ["applied", "file"] {
            let why = format!(
                "error when evicting pods/\"{name}\" -n \"default\": a board has no evictions at its own API: \
                 `nodlet delete pod NAME` ends a pod"
            );
            assert!(refused.contains(&why), "{line}: {refused}");
        }
        assert!(refused.contains("There are pending nodes to be drained"), "{line}: {refused}");
        assert_eq!(pods.each_ref().map(|pod| pod.uid()), uids, "{line}");
        assert!(pods.iter().all(|pod| pod.is_ready()), "{line}");
        let ending = kubectl.line("get pods -o jsonpath={.items[*].metadata.deletionTimestamp}").ok();
        assert_eq!(ending, "", "{line}");
    }
}

/// As `kubectl get -o yaml` prints several objects.
#[test]
fn a_list_of_objects_is_applied_and_listed_again() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let list = device.path("/list.yaml");
    let item = |name: &str| format!("- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}\n");
    let text = format!("apiVersion: v1\nkind: List\nitems:\n{}{}", item("one"), item("two"));
    std::fs::write(&list, text).expect("written");
    let applied = kubectl.line(&format!("apply -f {}", list.display())).ok();
    assert_eq!(applied, "configmap/one created\nconfigmap/two created\n");
    std::fs::write(&list, kubectl.line("get configmaps -o yaml").ok()).expect("written");
    let applied = kubectl.line(&format!("apply -f {}", list.display())).ok();
    assert_eq!(applied, "configmap/one configured\nconfigmap/two configured\n");
}

#[test]
fn kubectl_explains_what_nodlet_acts_on_or_warns_about() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let container = kubectl.line("explain pod.spec.containers").ok();
    for text in ["image\t<string>", "name\t<string> -required-", "List of ports to expose from the container"]
    {
        assert!(container.contains(text), "{text}: {container}");
    }
    kubectl.line("explain pod.spec.preemptionPolicy").ok_with("nodlet schedules nothing");
    let explained = kubectl.line("explain Pod.spec.topologySpreadConstraints").ok();
    for part in [
        "KIND:       Pod\n",
        "FIELD: topologySpreadConstraints <[]TopologySpreadConstraint>\n",
        "nodlet schedules nothing",
        "  maxSkew\t<integer> -required-\n",
        "  topologyKey\t<string> -required-\n",
        "  whenUnsatisfiable\t<string> -required-\n",
        "  labelSelector\t<LabelSelector>\n",
    ] {
        assert!(explained.contains(part), "{part:?} is in:\n{explained}");
    }
    kubectl.line("explain pod.spec.resourceClaims").refused();
    assert!(kubectl.line("explain pod --recursive").ok().contains("livenessProbe\t<Probe>"));
    for kind in ["configmap", "secret", "priorityclass", "runtimeclass", "limitrange", "pv", "pvc", "event"] {
        kubectl.line(&format!("explain {kind}")).ok_with("metadata\t<ObjectMeta>");
    }
}
