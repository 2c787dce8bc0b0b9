//! Termination messages: their sources, and the limits of their length. No message steers a terminal.

use nodlet_tests::{Device, Terminal, manifest};

const SPEC: &str = "restartPolicy: Never\n";

#[test]
fn the_end_of_the_file_is_kept_and_of_a_pod_no_more_than_twelve_kibibytes() {
    let device = Device::start();
    let long = format!("{}{}", "a".repeat(2000), "b".repeat(4000));
    let one = manifest::container(
        "app",
        &format!("write /tmp/said {long} then exit 3"),
        "terminationMessagePath: /tmp/said\n",
    );
    device.run_pod_of("one", &[one], SPEC);
    let four: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| manifest::container(name, &format!("write /dev/termination-log {long} then exit 0"), ""))
        .collect();
    device.run_pod_of("four", &four, SPEC);
    device.pod("one").wait_phase("Failed");
    let said = device.pod("one").container("app").message();
    assert_eq!(said, format!("{}{}\n", "a".repeat(95), "b".repeat(4000)), "the last 4096 bytes");
    device.pod("four").wait_phase("Succeeded");
    for name in ["a", "b", "c", "d"] {
        let said = device.pod("four").container(name).message();
        assert_eq!(said.len(), 12 * 1024 / 4, "{name}");
        assert!(said.starts_with("aaa"), "what was read is cut at its end");
    }
}

#[test]
fn the_log_tail_replaces_a_missing_termination_message_of_a_failure() {
    let device = Device::start();
    let lines = |text: &str, count: usize| -> String {
        (0..count).map(|number| format!("print {text}{number} then ")).collect()
    };
    let fallback = "terminationMessagePolicy: FallbackToLogsOnError\n";
    let containers = [
        manifest::container("many", &format!("{}exit 1", lines("l", 100)), fallback),
        manifest::container("long", &format!("{}exit 1", lines(&"x".repeat(100), 40)), fallback),
        manifest::container("well", "print fine then exit 0", fallback),
        manifest::container("said", "print log then write /dev/termination-log file then exit 1", fallback),
        manifest::container("file", "print log then exit 1", ""),
    ];
    let web = device.run_pod_of("web", &containers, SPEC);
    web.wait_phase("Failed");
    let eighty: String = (20..100).map(|number| format!("l{number}\n")).collect();
    assert_eq!(web.container("many").message(), eighty);
    let long = web.container("long").message();
    assert!(long.len() <= 2048 && long.ends_with("x39\n"), "{}: {long}", long.len());
    assert_eq!(web.container("well").message(), "");
    assert_eq!(web.container("said").message(), "file\n");
    assert_eq!(web.container("file").message(), "");
}

/// What a hostile container prints: the title of the window, a colour by a character of C1, and text from right to left.
/// It is written as within the quotes of JSON and YAML.
const HOSTILE: &str = r"before\u001b]0;title\u0007\u009b31m\u202eafter\nmore";

/// Asserts that nothing in this text steers a terminal, and that the rest was not left out.
#[track_caller]
fn assert_harmless(what: &str, shown: &str, visible: &[&str]) {
    // The terminal itself puts a carriage return before each line end.
    let steers = |c: char| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
            // A byte that is no UTF-8, such as a lone 0x9b.
            || c == char::REPLACEMENT_CHARACTER
    };
    assert!(!shown.replace("\r\n", "\n").contains(steers), "{what} steers the terminal: {shown:?}");
    for text in visible {
        assert!(shown.contains(text), "{what} does not show {text:?}: {shown:?}");
    }
}

#[test]
fn no_text_of_a_pod_or_of_a_manifest_steers_the_terminal() {
    let device = Device::start();
    let pod = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod",
            "metadata": {{"name": "hostile", "annotations": {{"note": "{HOSTILE}"}}}},
            "spec": {{"containers": [
                {{"name": "probed", "image": "localhost/demo:1", "args": ["sleep"],
                  "env": [{{"name": "VALUE", "value": "{HOSTILE}"}}],
                  "readinessProbe": {{"periodSeconds": 1, "exec": {{
                      "command": ["/bin/demo", "print", "{HOSTILE}", "then", "exit", "1"]}}}}}},
                {{"name": "ended", "image": "localhost/demo:1",
                  "args": ["write", "/dev/termination-log", "{HOSTILE}", "then", "exit", "3"]}}]}}}}"#
    );
    device.write_manifest("hostile.json", &pod);
    let events = || device.text("/api/v1/namespaces/default/events");
    device.wait_for("the probe's output in an event", || events().contains("31m"));
    device.wait_for("the termination message", || {
        let pod = device.text("/api/v1/namespaces/default/pods/hostile");
        pod.contains("\"exitCode\":3")
    });

    let texts = &["before", "]0;title", "31m", "after", "more"][..];
    let table = &["hostile"][..];
    let shown = [
        ("get pods", table),
        ("get pods -o wide", table),
        ("get pods --show-labels", table),
        ("get events", &["Unhealthy", "before", "]0;title", "31m", "after"]),
        ("events", &["Unhealthy", "before", "]0;title", "31m", "after"]),
        ("get events -o json", texts),
        ("events -o yaml", texts),
        ("describe pod hostile", texts),
        ("get pod hostile -o yaml", texts),
        ("get pod hostile -o json", texts),
        ("image ls", &["localhost/demo"]),
        ("ring", &["probe"]),
        ("ring -o json", texts),
    ];
    for (words, visible) in shown {
        let words: Vec<&str> = words.split(' ').collect();
        let mut terminal = Terminal::start(device.command(&words));
        assert_eq!(terminal.ended(), 0, "{words:?}: {}", terminal.screen());
        assert_harmless(&words.join(" "), &terminal.screen(), visible);
    }

    let bad = |more: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "bad"}}, "spec": {{"containers": [
                {{"name": "app", "image": "localhost/demo:1", {more}}}]}}}}"#
        )
    };
    for more in [
        format!(r#""{HOSTILE}": 1"#),
        format!(r#""resources": {{"limits": {{"memory": "{HOSTILE}"}}}}"#),
        format!(r#""imagePullPolicy": "{HOSTILE}""#),
    ] {
        let file = device.path("bad.json");
        std::fs::write(&file, bad(&more)).expect("the directory can be written to");
        let file = file.to_str().expect("the path is UTF-8");
        let mut terminal = Terminal::start(device.command(&["apply", "-f", file]));
        assert_eq!(terminal.ended(), 1, "{more}: {}", terminal.screen());
        assert_harmless(&format!("apply with {more}"), &terminal.screen(), &["before", "after"]);
    }
}

#[test]
fn a_verb_that_cannot_print_does_its_work_and_ends_with_an_error() {
    let device = Device::start();
    let pods: Vec<String> =
        ["one", "two", "three"].iter().map(|name| nodlet_tests::manifest::pod(name, "sleep")).collect();
    let file = device.path("/pods.yaml");
    std::fs::write(&file, pods.join("---\n")).expect("it can be written");
    let path = file.display().to_string();
    for words in [&["apply", "-f", &path][..], &["version", "--client", "-o", "json"], &["--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("it is there");
        let said = device.command(words).stdout(full).output().expect("it can be run");
        let stderr = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(1), "{words:?}: {stderr}");
        assert_eq!(
            stderr, "error: failed to write to the standard output: No space left on device (os error 28)\n",
            "{words:?}"
        );
    }
    assert_eq!(device.get("/api/v1/pods").expect("it answers")["items"].as_array().map_or(0, Vec::len), 3);
}
