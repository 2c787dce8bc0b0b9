//! `nodlet ring`: the inputs that the agent received, and its decisions. The harness checks for every other
//! test, when an agent ends, that its ring can be replayed.

use nodlet_tests::Device;

#[test]
fn the_ring_shows_facts_and_decisions_in_their_order() {
    let device = Device::start();
    device.run_pod_with("one", "exit 7", "restartPolicy: Never").wait_phase("Failed");
    let ring = device.nodlet(["ring"]).ok();
    let of = |what: &str| ring.find(what).unwrap_or_else(|| panic!("no {what} in\n{ring}"));
    let wanted = of("default/one <- Wanted (");
    let sandbox = of("default/one -> CreateSandbox");
    let started = of("default/one/app#0 <- Started");
    let ended = of("default/one/app#0 <- Exited with 7");
    assert!(wanted < sandbox && sandbox < started && started < ended, "{ring}");

    let lines = device.nodlet(["ring", "-o", "json"]).ok();
    for (number, line) in lines.lines().enumerate() {
        let entry: serde_json::Value = serde_json::from_str(line).expect("a line is one JSON object");
        assert_eq!(entry["number"], number, "{line}");
    }
    device.nodlet(["ring", "-o", "yaml"]).refused_with("allowed formats are: json");
}
