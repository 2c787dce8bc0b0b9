//! The workload controllers of a real control plane, whose nodes are two boards.

use nodlet_tests::{ClusterNode, ControlPlane, manifest};

/// A container that serves and is Ready at once.
const APP: &str = "{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [serve, '80', /srv], \
                   readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}}";

fn two_boards(plane: &ControlPlane) -> [ClusterNode; 2] {
    ["board-1", "board-2"].map(|name| ClusterNode::join(plane, name))
}

/// A Deployment whose pods are spread over the nodes.
fn deployment(replicas: usize, image: &str) -> String {
    let app = format!("  - {}\n", APP.replace("localhost/demo:1", image));
    let spec = "progressDeadlineSeconds: 600\n\
                strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}";
    let pod = "terminationGracePeriodSeconds: 1\n\
               topologySpreadConstraints:\n\
               - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, \
               nodeTaintsPolicy: Honor, labelSelector: {matchLabels: {app: web}}, matchLabelKeys: [pod-template-hash]}";
    manifest::deployment(replicas, &[app], spec, pod)
}

/// How many pods with a label run on each board, when there are `count` of them that are Ready.
#[track_caller]
fn spread(plane: &ControlPlane, label: &str, count: usize) -> [usize; 2] {
    let pods = plane.wait_for(&format!("get pods -l {label} -o wide --no-headers"), |pods| {
        let ready = pods.lines().filter(|pod| pod.contains("1/1") && pod.contains("Running"));
        ready.count() == count && pods.lines().count() == count
    });
    ["board-1", "board-2"].map(|node| pods.lines().filter(|pod| pod.contains(node)).count())
}

#[test]
fn a_deployment_is_spread_updated_rolled_back_and_drained_within_its_disruption_budget() {
    let plane = ControlPlane::start();
    let boards = two_boards(&plane);
    plane.apply(&deployment(4, "localhost/demo:1"));
    assert_eq!(spread(&plane, "app=web", 4), [2, 2]);

    // An update to an image that no board has does not end the pods that are Ready.
    plane.apply(&deployment(4, "localhost/missing:1"));
    plane.wait_for("get pods -l app=web --no-headers", |pods| pods.contains("ErrImageNeverPull"));
    plane.wait_for("get deployment web -o jsonpath={.status.availableReplicas}", |ready| ready == "4");
    plane.line("rollout undo deployment web").ok();
    plane.line("rollout status deployment web --timeout 120s").ok();
    assert_eq!(spread(&plane, "app=web", 4).iter().sum::<usize>(), 4);

    // A real update replaces all pods.
    let uids = "get pods -l app=web -o jsonpath={.items[*].metadata.uid}";
    let before = plane.line(uids).ok();
    plane.line("set env deployment web STEP=2").ok();
    plane.line("rollout status deployment web --timeout 120s").ok();
    spread(&plane, "app=web", 4);
    let after = plane.line(uids).ok();
    assert!(!before.split(' ').any(|uid| after.contains(uid)), "{before} {after}");

    // All pods stay available while a board is drained; then they are all on the other one.
    plane.line("create poddisruptionbudget web --selector app=web --min-available 3").ok();
    plane
        .wait_for("get poddisruptionbudget web -o jsonpath={.status.disruptionsAllowed}", |left| left == "1");
    plane.line("drain board-1 --ignore-daemonsets --timeout 180s").ok();
    assert_eq!(spread(&plane, "app=web", 4), [0, 4]);
    boards[0].device.wait_for("the pods to be gone", || boards[0].device.pods().is_empty());
    plane.line("uncordon board-1").ok();
}

#[test]
fn pods_of_a_stateful_set_keep_their_names_and_those_of_a_daemon_set_are_on_each_node() {
    let plane = ControlPlane::start();
    let boards = two_boards(&plane);
    let template = |label: &str| {
        format!(
            "
  selector: {{matchLabels: {{app: {label}}}}}
  template:
    metadata: {{labels: {{app: {label}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{APP}]
"
        )
    };
    plane.apply(&format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: db}}\nspec:\n  serviceName: db\n  replicas: 2{}",
        template("db")
    ));
    plane.apply(&format!(
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {{name: each}}\nspec:{}",
        template("each")
    ));
    spread(&plane, "app=db", 2);
    assert_eq!(spread(&plane, "app=each", 2), [1, 1]);
    let uid = "get pod db-0 -o jsonpath={.metadata.uid}";
    let first = plane.line(uid).ok();
    plane.line("delete pod db-0").ok();
    plane.wait_for("get pods -l app=db -o name", |pods| pods.contains("db-0"));
    spread(&plane, "app=db", 2);
    assert_ne!(plane.line(uid).ok(), first);
    let hostname = "get pod db-0 -o jsonpath={.spec.nodeName}";
    let node = plane.line(hostname).ok();
    let board = boards.iter().zip(["board-1", "board-2"]).find(|(_, name)| *name == node).expect("it runs").0;
    assert_eq!(board.device.pod("db-0").demo("app", "hostname").ok().trim(), "db-0");
    plane.line("scale statefulset db --replicas 1").ok();
    plane.wait_for("get pods -l app=db -o name", |pods| pods.trim() == "pod/db-0");
}

#[test]
fn jobs_complete_each_index_and_a_cron_job_starts_them() {
    let plane = ControlPlane::start();
    let _boards = two_boards(&plane);
    plane.apply(
        "
apiVersion: batch/v1
kind: Job
metadata: {name: parts}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  template:
    spec:
      restartPolicy: Never
      containers: [{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [env, then, exit, '0']}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: wrong}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [exit, '3']}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: often}
spec:
  schedule: '* * * * *'
  jobTemplate:
    metadata: {labels: {app: often}}
    spec:
      template:
        spec:
          restartPolicy: OnFailure
          containers: [{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [exit, '0']}]
",
    );
    let indexes = "get job parts -o jsonpath={.status.completedIndexes}|{.status.succeeded}|{.status.conditions[*].type}";
    plane.wait_for(indexes, |done| done.starts_with("0-2|3|") && done.contains("Complete"));
    let failed = "get job wrong -o jsonpath={.status.failed}|{.status.conditions[*].reason}";
    plane.wait_for(failed, |why| why.starts_with("1|") && why.contains("BackoffLimitExceeded"));
    let started = "get jobs -l app=often -o jsonpath={.items[*].status.succeeded}";
    plane.wait_for(started, |succeeded| succeeded.starts_with('1'));
}

#[test]
fn of_many_finished_pods_the_board_keeps_some_and_the_cluster_all() {
    let plane = ControlPlane::start();
    let mut board = ClusterNode::join_with(&plane, "board-1", &["--terminated-pod-gc-threshold", "2"]);
    let job = |name: &str| {
        plane.apply(&format!(
            "
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  completions: 5
  parallelism: 1
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [print, done]}}]
"
        ));
        let completed = format!("get job {name} -o jsonpath={{.status.succeeded}}");
        plane.wait_for(&completed, |succeeded| succeeded == "5");
    };
    job("many");
    // One more than are kept, until the next pod comes.
    board.device.wait_for("finished pods to go", || board.device.pods().len() <= 3);
    let all = "get pods -l job-name=many \
               -o jsonpath={.items[*].status.containerStatuses[*].state.terminated.finishedAt}";
    let finished = plane.line(all).ok();
    assert_eq!(finished.split_whitespace().count(), 5, "{finished}");
    // The next agent lists them all.
    board.device.restart_agent();
    job("more");
    board.device.wait_for("finished pods to go", || board.device.pods().len() <= 3);
    assert_eq!(plane.line(all).ok(), finished, "none has run again");
    plane.line("delete job many more").ok();
    plane.wait_for("get pods -o name", str::is_empty);
    board.device.wait_for("the pods to be gone", || board.device.pods().is_empty());
}

#[test]
fn a_pod_of_a_higher_priority_takes_the_place_of_others() {
    let plane = ControlPlane::start();
    let _board = ClusterNode::join(&plane, "board-1");
    plane.line("create priorityclass high --value=1000").ok();
    let cpus = plane.line("get node board-1 -o jsonpath={.status.allocatable.cpu}").ok();
    let milli: u64 = cpus
        .strip_suffix('m')
        .map_or_else(|| cpus.parse().map(|cpus: u64| cpus * 1000), str::parse)
        .expect("a quantity");
    let pod = |name: &str, class: &str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  {class}
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: app, image: 'localhost/demo:1', imagePullPolicy: Never, args: [sleep],
      resources: {{requests: {{cpu: {}m}}}}}}
",
            milli * 6 / 10
        )
    };
    plane.apply(&pod("low", ""));
    plane.wait_for("get pod low -o jsonpath={.status.phase}", |phase| phase == "Running");
    plane.apply(&pod("high", "priorityClassName: high"));
    plane.wait_for("get pod high -o jsonpath={.status.phase}", |phase| phase == "Running");
    plane.wait_for("get pods -o name", |pods| pods.trim() == "pod/high");
}
