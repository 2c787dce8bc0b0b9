//! Tasks that look into a Pod.

use nodlet_tests::{Device, Kubectl, Terminal};

use super::{apply, output, run};

#[test]
fn an_ephemeral_container_looks_into_a_running_pod() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = run(&device, "ephemeral-container");
    let born = pod.born("app");
    let words = "debug ephemeral-container -it -c debugger --image=localhost/demo:1 --target=app -- \
                 demo cat /proc/1/root/of-the-app then ask end? then echo";
    let words: Vec<&str> = words.split(' ').collect();
    let mut command = kubectl.command([]);
    command.args(words);
    let mut terminal = Terminal::start(command);
    terminal.wait_for("end?");
    assert!(terminal.screen().contains("found"), "{}", terminal.screen());
    assert!(pod.container("debugger").is_running());
    terminal.type_in("\u{4}");
    assert_eq!(terminal.ended(), 0, "{}", terminal.screen());
    device.wait_for("its end", || pod.container("debugger").exit_code() == Some(0));
    // It is in the pod for good, is not restarted, and the pod has not noticed.
    assert_eq!((pod.container("debugger").restart_count(), pod.born("app")), (0, born));
    assert!(pod.is_ready());
    let described = kubectl.line("describe pod ephemeral-container").ok();
    assert!(described.contains("Ephemeral Containers:\n  debugger:\n"), "{described}");
}

#[test]
fn commands_in_a_running_container() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    let pod = run(&device, "running-container");
    kubectl.line("exec running-container -- demo write /pages/index.html hello").ok();
    device.wait_for("the page", || {
        pod.exec("server", ["demo", "get", "http://127.0.0.1:8080/"]).stdout.trim() == "hello"
    });
    let mut terminal =
        Terminal::start(kubectl.command(["exec", "-it", "running-container", "--", "demo", "tty"]));
    assert_eq!(terminal.ended(), 0, "{}", terminal.screen());
    assert!(
        terminal.screen().contains("tty") && !terminal.screen().contains("not a"),
        "{}",
        terminal.screen()
    );
    let plain = kubectl.line("exec running-container -- demo tty").ok();
    assert_eq!(plain, "not a tty\n");
    let failed = kubectl.line("exec running-container -- demo exit 3");
    assert_eq!(failed.code, 3, "{failed:?}");
    assert!(output(&pod, "server", "env").contains("HOSTNAME=running-container"));
}

#[test]
fn an_init_container_that_fails() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    apply(&device, "failing-init-container");
    let pod = device.pod("failing-init-container");
    let row = || kubectl.line("get pod failing-init-container --no-headers").ok();
    device.wait_for("the back-off", || row().contains(" Init:CrashLoopBackOff "));
    let described = kubectl.line("describe pod failing-init-container").ok();
    assert!(described.contains("Reason:       Completed"), "{described}");
    assert!(described.contains("Exit Code:    7"), "{described}");
    let log = kubectl.line("logs failing-init-container -c second").ok();
    assert_eq!(log, "no sensor is connected\n");
    assert_eq!((pod.container("first").exit_code(), pod.container("first").restart_count()), (Some(0), 0));
    assert_eq!(pod.container("app").reason(), "PodInitializing");
    assert_eq!(pod.condition("Initialized"), "False");
}

#[test]
fn a_pod_that_crashes_and_one_that_waits() {
    let device = Device::start();
    let kubectl = Kubectl::new(&device);
    apply(&device, "crashing-and-waiting");
    let crashing = device.pod("crashing").wait_reason("app", "CrashLoopBackOff");
    let previous = kubectl.line("logs crashing --previous").ok();
    assert_eq!(previous, "the configuration is missing\n");
    assert_eq!(crashing.container("app").of_last("exitCode"), 2);
    assert!(crashing.has_event("BackOff: Back-off restarting failed container app"));

    let waiting = device.pod("waiting").wait_reason("app", "ErrImageNeverPull");
    assert_eq!(waiting.phase(), "Pending");
    let image = "Container image \"localhost/absent:1\" is not present with pull policy of Never";
    assert_eq!(waiting.container("app").message(), image);

    // A misspelt field: the pod would run, and not do what its owner meant.
    let manifest = include_str!("../../../examples/tasks/crashing-and-waiting.yaml").replace("args", "agrs");
    device.try_apply(&manifest).refused_with("unknown field \"spec.containers[0].agrs\"");
}
