//! nodlet's own verbs, as people type them.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use nodlet_tests::{Device, Terminal, manifest, nodlet_program};
use serde_json::Value;

#[test]
fn apply_get_and_delete_do_as_kubectl_does() {
    let device = Device::start();
    let text = manifest::pod("web", "on-term 0 then sleep");
    let twice = text.clone() + "kind: Pod\n";
    let judge = |how: &str| {
        device.nodlet_with_input(["apply", "--dry-run", "-f", "-", &format!("--validate={how}")], &twice)
    };
    assert!(judge("strict").refused().contains("key \"kind\" already set in map"));
    let warned = judge("warn");
    assert!(warned.stderr.starts_with("Warning: STDIN: line "), "{warned:?}");
    assert!(warned.stderr.ends_with(": key \"kind\" already set in map\n"), "{warned:?}");
    warned.ok();
    let ignored = judge("ignore");
    assert_eq!(ignored.stderr, "");
    ignored.ok();

    let dry = device.nodlet_with_input(["apply", "--dry-run", "-f", "-"], &text).ok();
    assert!(dry.contains("pod/web created"), "{dry}");
    assert!(device.pods().is_empty(), "a dry run runs nothing");
    assert_eq!(device.apply(&text), "pod/web created\n");
    device.pod("web").wait_ready();
    assert_eq!(device.apply(&text), "pod/web unchanged\n");

    assert_eq!(device.nodlet(["get", "pods", "-o", "name"]).ok(), "pod/web\n");
    let json = device.nodlet(["get", "pods", "web", "-o", "json"]).ok();
    assert!(json.contains("\"phase\": \"Running\""), "{json}");
    let yaml = device.nodlet(["get", "pod", "web", "-o", "yaml"]).ok();
    assert!(yaml.contains("phase: Running"), "{yaml}");
    let wide = device.nodlet(["get", "pods", "-o", "wide"]).ok();
    assert!(wide.contains(&device.pod("web").ip()), "{wide}");
    assert!(!device.nodlet(["get", "pods", "--no-headers"]).ok().contains("NAME"));
    let none = device.nodlet(["get", "pods", "-n", "other"]);
    assert!(none.stderr.contains("No resources found in other namespace."), "{none:?}");
    assert!(device.nodlet(["get", "pods", "-A"]).ok().contains("NAMESPACE"));

    device.nodlet(["get", "pod", "absent"]).refused_with("pods \"absent\" not found");

    assert!(device.nodlet(["delete", "pod", "web"]).ok().starts_with("pod \"web\" deleted"));
    assert!(device.pods().is_empty(), "it waits until the pod is gone");
    assert!(device.container_processes().is_empty());
}

#[test]
fn delete_warns_of_force_and_refuses_what_contradicts_itself() {
    let device = Device::start();
    let grace = "terminationGracePeriodSeconds: 3";
    device.apply(&manifest::pod_with("deaf", "ignore-term then print up then sleep", grace));
    device.pod("deaf").wait_log("app", "up");
    device
        .nodlet(["delete", "pod", "deaf", "--force", "--grace-period=5"])
        .refused_with("--force and --grace-period greater than 0 cannot be specified together");
    let forced = device.nodlet(["delete", "pod", "deaf", "--force"]);
    let warning = "Immediate deletion does not wait for confirmation that the running resource has been terminated. \
                   The resource may continue to run on the cluster indefinitely.";
    assert!(forced.stderr.contains(warning), "{forced:?}");
    assert!(device.pods().is_empty(), "nothing is waited for");
    device.wait_for("its process to be gone", || device.container_processes().is_empty());
}

#[test]
fn logs_can_be_cut_stamped_and_taken_from_the_run_before() {
    let device = Device::start();
    let web = device
        .run_pod("web", "print one then print two then eprint three then sleep")
        .wait_log("app", "three");
    assert_eq!(web.logs("app"), "one\ntwo\nthree\n");
    assert_eq!(device.nodlet(["logs", "web", "--tail", "2"]).ok(), "two\nthree\n");
    let stamped = device.nodlet(["logs", "web", "--timestamps"]).ok();
    assert!(stamped.lines().all(|line| line.contains("Z ")), "{stamped}");
    assert_eq!(device.nodlet(["logs", "web", "--since", "1h"]).ok(), "one\ntwo\nthree\n");
    device
        .nodlet(["logs", "web", "-p"])
        .refused_with("previous terminated container \"app\" in pod \"web\" not found");
    device.nodlet(["logs", "web", "-c", "nobody"]).refused_with("container nobody is not valid for pod web");
    let crash = device.run_pod("crash", "print boom then exit 1");
    crash.wait_restarts("app", 1);
    assert_eq!(device.nodlet(["logs", "crash", "-p"]).ok(), "boom\n");
}

#[test]
fn exec_passes_input_output_and_the_exit_code() {
    let device = Device::start();
    let web = device.run_pod("web", "sleep").wait_ready();
    let ran = web.demo("app", "print out then eprint err then exit 5");
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (5, "out\n", "err\ncommand terminated with exit code 5\n")
    );
    let echoed = device.nodlet_with_input(["exec", "-i", "web", "--", "/bin/demo", "echo"], "back\n").ok();
    assert_eq!(echoed, "back\n");
    let absent = web.exec("app", ["/bin/absent"]);
    assert!(absent.code != 0 && absent.stderr.contains("/bin/absent"), "{absent:?}");

    let mut terminal = Terminal::start(device.command(&["exec", "-it", "web", "--", "/bin/demo", "resized"]));
    terminal.wait_for("tty 100x30");
    terminal.resize(120, 40);
    terminal.wait_for("tty 120x40");
    assert_eq!(terminal.ended(), 0);
}

#[test]
fn without_an_agent_a_verb_prints_a_remedy_and_version_the_program() {
    let device = Device::new();
    assert!(device.nodlet(["version"]).ok().contains(env!("CARGO_PKG_VERSION")));
    let said = device.nodlet(["get", "pods"]).refused();
    assert!(said.contains("api.sock") && said.contains("nodlet agent"), "{said}");
}

#[test]
fn an_agent_prints_that_it_is_ready_unless_quiet() {
    let mut device = Device::new();
    device.agent_arguments(["--node-name", "board-7", "--quiet"]);
    device.start_agent();
    assert_eq!(device.agent_log(), "");
    let absent = manifest::pod("web", "sleep").replace("localhost/demo:1", "localhost/absent:1");
    device.write_manifest("web.yaml", &absent);
    device.wait_logged("WARN  default/web/app: Failed Error: ErrImagePull");
    device.remove_pod("web");
    device.restart_agent_with(["--node-name", "board-7"]);
    let (root, socket) = (device.root().display(), device.socket());
    let expected = format!(
        "INFO  nodlet {} runs the pods of node board-7 below {root}; its API is on {}\n",
        env!("CARGO_PKG_VERSION"),
        socket.display()
    );
    assert!(device.agent_log().ends_with(&expected), "{}", device.agent_log());
}

#[test]
fn commands_of_other_tools_are_answered_with_what_does_the_same() {
    let device = Device::new();
    for (words, ours) in [
        (["ps", "-a"], "nodlet get pods"),
        (["stop", "web"], "nodlet delete pod POD"),
        (["rollout", "restart"], "nodlet restart POD"),
        (["top", "pods"], "systemd-cgtop"),
        (["images", "-a"], "nodlet image ls"),
        (["status", "web"], "nodlet describe node"),
        (["diff", "-f"], &*format!("on {}", device.path("/run/nodlet/api.sock").display())),
        (["get", "deploy"], "nodlet runs Pods, which 'nodlet get pods' shows"),
        (["describe", "web"], "write 'pod/web'"),
        (["logs", "--all-containers"], "unknown flag: --all-containers, which kubectl has"),
        (["image", "prune"], "none of load, pull, ls and rm"),
    ] {
        device.nodlet(words).refused_with(ours);
    }
}

#[test]
fn program_and_agent_name_what_they_were_built_from() {
    let device = Device::start();
    let said = device.nodlet(["version", "-o", "json"]).ok();
    let versions: Value = serde_json::from_str(&said).expect("JSON");
    let (client, server) = (&versions["clientVersion"], &versions["serverVersion"]);
    for field in ["gitCommit", "gitTreeState", "buildDate", "target", "crates"] {
        assert!(!client[field].is_null() && client[field] == server[field], "{field}: {versions}");
    }
    assert!(client["target"].as_str().is_some_and(|target| target.contains("-linux-")), "{versions}");
    assert_eq!(device.get("/version").expect("an answer")["target"], client["target"]);
    // Only builds for boards list their crates.
    let program = std::fs::read(nodlet_program()).expect("the program");
    let lists = program.windows(8).any(|bytes| bytes == b".dep-v0\0");
    let names = client["crates"].as_array().expect("a list");
    assert_eq!(names.iter().any(|name| name == "libcontainer 0.7.0"), lists, "{versions}");
}

#[test]
fn a_program_from_a_changed_checkout_says_so() {
    // As `cargo xtask cross` does, in a copy.
    let mut program = std::fs::read(nodlet_program()).expect("the program");
    let begin = b"\nthis program is built from commit ";
    let places: Vec<usize> =
        (0..program.len()).filter(|place| program[*place..].starts_with(begin)).collect();
    assert_eq!(places.len(), 1, "the place for the commit");
    let commit = "4a83cd04d2f0a1114a83cd04d2f0a1114a83cd04";
    let device = Device::new();
    let copy = device.path("/nodlet-of-a-commit");
    for (state, expected) in [("clean", ""), ("dirty", "-dirty")] {
        let fields = format!("{commit} 2026-01-31T12:00:00Z {state}");
        program[places[0] + begin.len()..][..fields.len()].copy_from_slice(fields.as_bytes());
        // Written by a process of its own: a child of another test that inherits the open file would keep it busy.
        let written = device.write_file("program", &program);
        let installed = std::process::Command::new("install").args([&written, &copy]).status();
        assert!(installed.expect("install can be run").success());
        let said = |arguments: &[&str]| {
            let output = std::process::Command::new(&copy).args(arguments).output().expect("it runs");
            String::from_utf8(output.stdout).expect("text")
        };
        let version = format!("v{}{expected}", env!("CARGO_PKG_VERSION"));
        let text = said(&["--version", "--client"]);
        assert!(text.starts_with(&format!("Client Version: {version}\n")), "{text}");
        assert!(text.contains(&format!("Client Commit: {commit} of 2026-01-31T12:00:00Z\n")), "{text}");
        let versions: Value =
            serde_json::from_str(&said(&["version", "--client", "-o", "json"])).expect("JSON");
        let client = &versions["clientVersion"];
        assert_eq!(client["gitVersion"], version, "{versions}");
        for (field, expected) in
            [("gitCommit", commit), ("gitTreeState", state), ("buildDate", "2026-01-31T12:00:00Z")]
        {
            assert_eq!(client[field], expected, "{versions}");
        }
        let platform = client["platform"].as_str().expect("a name");
        assert!(!platform.contains("x86_64") && !platform.contains("aarch64"), "Go's names: {platform}");
    }
}

#[test]
fn apply_judges_manifests_without_an_agent() {
    let device = Device::new();
    let judge = |text: &str| device.nodlet_with_input(["apply", "--dry-run=client", "-f", "-"], text);
    let right = manifest::pod("web", "sleep");
    // Without an image store, the images are not checked.
    let said = judge(&right);
    assert_eq!((said.code, &*said.stdout, &*said.stderr), (0, "pod/web created (dry run)\n", ""));
    let wrong = judge(&right.replace("containers:", "contaners:"));
    assert_eq!(wrong.code, 1);
    assert!(wrong.stderr.contains("unknown field \"spec.contaners\""), "{}", wrong.stderr);
    device.load_image(nodlet_tests::demo_archive());
    let said = judge(&format!("{right}\n---\n{}", right.replace("demo:1", "demo:2").replace("web", "other")));
    assert_eq!((said.code, &*said.stdout), (0, "pod/web created (dry run)\npod/other created (dry run)\n"));
    assert!(said.stderr.contains("image \"localhost/demo:2\" is not in the image store"), "{}", said.stderr);
    assert!(!said.stderr.contains("demo:1"), "{}", said.stderr);
}

/// `nodlet get pods | head -1`: the reader closes the pipe early, which is not an error.
#[test]
fn a_verb_ends_silently_when_its_output_is_closed() {
    for arguments in [&["--help"][..], &["help", "get"], &["get", "--help"], &["version", "--client"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe can be made");
        drop(reader);
        let mut verb = Command::new(nodlet_program());
        let output = verb.args(arguments).stdout(writer).output().expect("nodlet can be run");
        assert_eq!(output.status.signal(), Some(13), "{arguments:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}
