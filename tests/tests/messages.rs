//! Termination messages: their sources, and the limits of their length.

use nodlet_tests::{Device, manifest};

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
    device.write_manifest("one.yaml", &manifest::pod_of("one", &[one], SPEC));
    let four: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| manifest::container(name, &format!("write /dev/termination-log {long} then exit 0"), ""))
        .collect();
    device.write_manifest("four.yaml", &manifest::pod_of("four", &four, SPEC));
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
    device.write_manifest("web.yaml", &manifest::pod_of("web", &containers, SPEC));
    let web = device.pod("web");
    web.wait_phase("Failed");
    let eighty: String = (20..100).map(|number| format!("l{number}\n")).collect();
    assert_eq!(web.container("many").message(), eighty);
    let long = web.container("long").message();
    assert!(long.len() <= 2048 && long.ends_with("x39\n"), "{}: {long}", long.len());
    assert_eq!(web.container("well").message(), "");
    assert_eq!(web.container("said").message(), "file\n");
    assert_eq!(web.container("file").message(), "");
}
