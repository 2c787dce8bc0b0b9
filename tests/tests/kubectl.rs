//! An unmodified kubectl with the local API, only through a TCP-to-socket forwarder: what it can do is what
//! nodlet promises.

use nodlet_tests::{Background, Device, Kubectl, Terminal, manifest};

#[test]
fn get_shows_the_columns_of_kubernetes_and_watches() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let watching = Background::start(kubectl.command(["get", "pods", "-w"]));
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.wait_for("kubectl to see it run", || {
        watching.saw(|line| line.starts_with("web") && line.contains("1/1     Running"))
    });
    assert!(watching.saw(|line| line.split_whitespace().eq(["NAME", "READY", "STATUS", "RESTARTS", "AGE"])));

    let wide = kubectl.run(["get", "pods", "-o", "wide"]).ok();
    assert!(wide.contains(&device.pod("web").ip()), "{wide}");
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
    device.write_manifest(
        "job.yaml",
        &manifest::pod_with("job", "print first then wait /tmp/go then print last", "restartPolicy: Never"),
    );
    device.pod("job").wait_ready();
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
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();

    let ran = kubectl.run([
        "exec",
        "web",
        "--",
        "/bin/demo",
        "print",
        "out",
        "then",
        "eprint",
        "err",
        "then",
        "exit",
        "5",
    ]);
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
    let file = device.path("/made.yaml");
    std::fs::write(&file, manifest::pod("made", "on-term 0 then sleep")).expect("it can be written");
    let said = kubectl.run(["create", "-f", &file.display().to_string()]).ok();
    assert_eq!(said, "pod/made created\n");
    device.pod("made").wait_ready();
    let said = kubectl.run(["delete", "pod", "made"]).ok();
    assert!(said.starts_with("pod \"made\" deleted"), "{said}");
    assert!(device.pods().is_empty(), "kubectl waits until it is gone");
    assert!(device.container_processes().is_empty());
}

#[test]
fn describe_and_api_resources_find_what_they_look_for() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    let described = kubectl.run(["describe", "pod", "web"]).ok();
    for said in ["Name:", "localhost/demo:1", "Started", "Ready"] {
        assert!(described.contains(said), "{said} in {described}");
    }
    let resources = kubectl.run(["api-resources"]).ok();
    assert!(resources.lines().any(|line| line.starts_with("pods ")), "{resources}");
}

#[test]
fn kubectl_gets_all_and_learns_who_it_is_and_what_the_cluster_is() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    assert!(
        kubectl
            .line("get all")
            .ok()
            .lines()
            .any(|line| line.starts_with("web ") || line.starts_with("pod/web "))
    );
    assert_eq!(kubectl.line("auth can-i delete pods").ok(), "yes\n");
    assert!(kubectl.line("auth can-i --list").ok().contains("*.*"));
    let who = kubectl.line("auth whoami").ok();
    assert!(who.contains("root") && who.contains("system:masters"), "{who}");
    assert!(kubectl.line("cluster-info").ok().contains("control plane"));
    let described = kubectl.line("describe node").ok();
    assert!(
        described.contains("HolderIdentity:") && !described.contains("Failed to get lease"),
        "{described}"
    );
}

#[test]
fn objects_in_protobuf_are_read_or_declined_with_what_works_instead() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    kubectl.line("create priorityclass low --value=-10 --description=late --preemption-policy=Never").ok();
    let class = device.get("/apis/scheduling.k8s.io/v1/priorityclasses/low").expect("it was made");
    let shown = (&class["value"], &class["description"], &class["preemptionPolicy"]);
    assert_eq!(shown, (&(-10).into(), &"late".into(), &"Never".into()));
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    let refused = kubectl.line("create service clusterip web --tcp=80").refused();
    assert!(refused.contains("has no Services"), "{refused}");
    let file = device.path("/service.yaml");
    std::fs::write(
        &file,
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n",
    )
    .expect("written");
    let refused = kubectl.line(&format!("apply -f {}", file.display())).refused();
    assert!(refused.contains("has no Services"), "{refused}");
}

/// kubectl itself has nothing to say about what the server lacks: the server's text is what a user sees.
#[test]
fn what_a_board_has_no_kind_or_method_for_is_rejected_with_the_reason() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let nodes = kubectl.line("get nodes -o name").ok();
    let node = nodes.trim().trim_start_matches("node/");
    let deployment = device.path("/deployment.yaml");
    let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {selector: {}}\n";
    std::fs::write(&deployment, text).expect("written");
    let pod = device.path("/pod.yaml");
    std::fs::write(&pod, manifest::pod("web", "sleep")).expect("written");
    for (line, why) in [
        (format!("apply -f {}", deployment.display()), "nodlet has no such kind: it runs Pods"),
        (format!("diff -f {}", deployment.display()), "nodlet has no such kind: it runs Pods"),
        ("get deploy".to_owned(), "nodlet has no such kind: it runs Pods"),
        ("rollout restart ds/web".to_owned(), "nodlet has no such kind: it runs Pods"),
        (
            "create deployment web --image=localhost/demo:1".to_owned(),
            "nodlet has no such kind: it runs Pods",
        ),
        ("create job web --image=localhost/demo:1".to_owned(), "nodlet has no such kind: it runs Pods"),
        ("create namespace team".to_owned(), "namespaces need no object"),
        ("delete namespace default".to_owned(), "namespaces need no object"),
        (format!("cordon {node}"), "a board has no cordon, drain or taint"),
        (format!("taint node {node} a=b:NoSchedule"), "a board has no cordon, drain or taint"),
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
    let applied = device.path("/applied.yaml");
    std::fs::write(&applied, manifest::pod("applied", "sleep")).expect("written");
    kubectl.line(&format!("apply -f {}", applied.display())).ok();
    device.write_manifest("file.yaml", &manifest::pod("file", "sleep"));
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
    assert!(
        container.contains("image\t<string>") && container.contains("name\t<string> -required-"),
        "{container}"
    );
    assert!(container.contains("List of ports to expose from the container"), "{container}");
    let ignored = kubectl.line("explain pod.spec.preemptionPolicy").ok();
    assert!(ignored.contains("nodlet schedules nothing"), "{ignored}");
    kubectl.line("explain pod.spec.resourceClaims").refused();
    assert!(kubectl.line("explain pod --recursive").ok().contains("livenessProbe\t<Probe>"));
    for kind in ["configmap", "secret", "priorityclass", "runtimeclass", "limitrange", "pv", "pvc", "event"] {
        let explained = kubectl.line(&format!("explain {kind}")).ok();
        assert!(explained.contains("metadata\t<ObjectMeta>"), "{explained}");
    }
}
