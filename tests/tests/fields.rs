//! Each field of a Pod that nodlet acts on has one row in a table: pods that differ in this field only, and the
//! different effect that a container or a status shows. A test requires that the table is complete.
//!
//! To add a field, add one row to the table of its area in `fields/`. What none of [`Observation`] observes needs one
//! more variant of it.
//!
//! ```text
//! row("EnvVar.value", Log("app"), "containers: [{name: app, [[env]], env: [{name: A, value: @}]}]",
//!     &[("one", "A=one\n"), ("two", "A=two\n")]),
//! ```
//!
//! The text is the pod's `spec` in YAML, without the braces around it. For each pair of the list, one pod is
//! created, with the first text of the pair in place of `@`; the first pair is the base that the others are
//! compared with. The second text of the pair must be in what is observed, and that of a changed pod must not
//! be in what the base shows. The test also compares the specs as the API shows them: they may differ in this
//! field only ([`Row::with`] allows further ones, such as defaults that follow from it).
//!
//! * `[[env then sleep]]`: `image` and `args` of a container that executes these steps of the demo program
//! * `((cat /tmp/x))`: `exec`, with the command that executes these steps
//! * `$DIR`: a directory of the host, a shared mount with the files `one` and `two` and the directory `sub`, in which
//!   another file system is mounted at `deep`; beside that are the block devices `disk-0` (7,0) and `disk-1` (7,1)
//! * `$POD`: the name of the pod, in which the specs of two pods may differ
//! * `$oom`: the `oom_score_adj` of critical pods, as far as this machine lets root lower it
//! * `$net`, `$pid`, `$ipc`: a namespace of the host, as `demo stat /proc/self/ns/net` prints it
//!
//! The device has the objects of [`OBJECTS`] and the node labels `zone=a` and `rank=7`. Pods have
//! `restartPolicy: Never` unless [`Row::policy`] sets another.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::mount::MsFlags;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nodlet_tests::Device;
use nodlet_tests::guest::is_guest;
use nodlet_tests::image::Image;
use serde_json::{Value, json};

use difference::{differences, documented, fields_of};

mod claim;
mod container;
mod difference;
mod ephemeral;
mod pod;
mod probe;
mod volume;

/// The tables, by area.
const TABLES: &[&[Row]] =
    &[pod::ROWS, container::ROWS, probe::ROWS, volume::ROWS, claim::ROWS, ephemeral::ROWS];

/// Objects that pods of the table refer to.
const OBJECTS: &str = "\
apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fast}\ndata: {mode: quick, level: '3'}\n---\n\
apiVersion: v1\nkind: ConfigMap\nmetadata: {name: slow}\ndata: {mode: lazy, level: '1'}\n---\n\
apiVersion: v1\nkind: Secret\nmetadata: {name: mine}\nstringData: {user: me, word: hunter2}\n---\n\
apiVersion: v1\nkind: Secret\nmetadata: {name: yours}\nstringData: {user: you, word: swordfish}\n---\n\
apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: heavy}\nhandler: nodlet\n\
overhead: {podFixed: {memory: 16Mi}}\n---\n\
apiVersion: v1\nkind: Pod\nmetadata: {name: holder}\nspec: {hostNetwork: true, containers: \
[{name: app, image: localhost/demo:1, args: [sleep], ports: [{containerPort: 18080}]}]}\n";

/// One field, and what shows that nodlet acts on it.
struct Row {
    /// `Type.field`, as in docs/pods.md.
    field: &'static str,
    shown: Shown,
    /// Further fields in which the pods may differ.
    with: &'static [&'static str],
    /// The pods' `restartPolicy`; empty to leave it out.
    policy: &'static str,
    /// The container whose input a client writes and leaves; empty for none.
    attached: &'static str,
    /// Whether the node has the taint `lab=x:NoExecute`. Its agent is in the mount namespace of the machine; the
    /// other one has an `/etc` of its own, and so a private one.
    tainted: bool,
}

/// How a field's effect is seen.
enum Shown {
    /// Pods that differ in the field.
    Pair(Pair),
    /// A test elsewhere, as `file::function`, because of the reason. `tests/tests/` and `.rs` are left out of
    /// the name of a suite; other files have their path in the project.
    Elsewhere(&'static str, &'static str),
}

struct Pair {
    observation: Observation,
    /// The spec; if `debug` is not empty, `@` is in that.
    spec: &'static str,
    /// An ephemeral container, in JSON, that is added when the pod runs.
    debug: &'static str,
    /// The texts in place of `@`, and what is observed then.
    variants: &'static [(&'static str, &'static str)],
}

/// The observed facts of a pod.
#[derive(Clone, Copy)]
enum Observation {
    /// The log of a container. An expected text that is empty waits for the container's end.
    Log(&'static str),
    /// The pod's status as JSON without spaces, then its events, as lines of `Reason: message`.
    Status,
    /// The limits in the cgroups of the pod and its containers, as lines of `cpu.weight=`, `cpu.max=` and
    /// `memory.max=` with the values of cgroup v2, then its status. An expected text that is empty waits for the pod to run.
    Limits,
    /// The claim that was made for the pod's ephemeral volume `v`, as JSON without spaces.
    Claim,
}

/// A row of pods that differ in the field.
const fn row(
    field: &'static str,
    observation: Observation,
    spec: &'static str,
    variants: &'static [(&'static str, &'static str)],
) -> Row {
    Row::new(field, Shown::Pair(Pair { observation, spec, debug: "", variants }))
}

/// A row of pods `[[sleep]]`, each with this ephemeral container.
const fn debug(
    field: &'static str,
    observation: Observation,
    debug: &'static str,
    variants: &'static [(&'static str, &'static str)],
) -> Row {
    const SPEC: &str = "containers: [{name: app, [[sleep]], volumeMounts: [{name: v, mountPath: /v}]}], \
        volumes: [{name: v, configMap: {name: fast}}]";
    Row::new(field, Shown::Pair(Pair { observation, spec: SPEC, debug, variants }))
}

/// A row that names a test.
const fn elsewhere(field: &'static str, test: &'static str, why: &'static str) -> Row {
    Row::new(field, Shown::Elsewhere(test, why))
}

impl Row {
    const fn new(field: &'static str, shown: Shown) -> Self {
        Self { field, shown, with: &[], policy: "Never", attached: "", tainted: false }
    }

    const fn with(mut self, fields: &'static [&'static str]) -> Self {
        self.with = fields;
        self
    }

    const fn policy(mut self, policy: &'static str) -> Self {
        self.policy = policy;
        self
    }

    /// When the container runs, `nodlet attach -i` writes the line `typed` to it, which is the end of its input.
    const fn attached(mut self, container: &'static str) -> Self {
        self.attached = container;
        self
    }

    const fn tainted(mut self) -> Self {
        self.tainted = true;
        self
    }
}

/// All rows of the tables.
fn rows() -> impl Iterator<Item = &'static Row> {
    TABLES.iter().copied().flatten()
}

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this is a member of the workspace")
}

#[test]
fn each_field_that_is_acted_on_has_one_row_and_no_other_field_has_one() {
    let acting: BTreeSet<String> =
        documented().into_iter().filter(|(_, (_, acts))| *acts).map(|(field, _)| field).collect();
    assert!(acting.len() > 200, "docs/pods.md is read wrongly: {acting:?}");
    let mut shown = BTreeSet::new();
    let mut wrong: Vec<String> = rows()
        .filter(|row| !shown.insert(row.field.to_owned()))
        .map(|row| format!("{} has two rows", row.field))
        .collect();
    wrong.extend(acting.difference(&shown).map(|field| format!("{field} has no row")));
    wrong.extend(shown.difference(&acting).map(|field| format!("{field} is not acted on")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_rows_that_name_another_test_are_few_and_the_tests_exist() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for row in rows() {
        let Shown::Elsewhere(test, why) = &row.shown else { continue };
        count += 1;
        let (file, function) = test.split_once("::").expect("file::function");
        let path = if file.contains('/') { file.to_owned() } else { format!("tests/tests/{file}.rs") };
        let source = fs::read_to_string(project().join(path)).unwrap_or_default();
        let before = source.split_once(&format!("fn {function}()")).map(|(before, _)| before.trim_end());
        // Only attributes, such as `#[ignore]` for tests in a guest, are between `#[test]` and the function.
        let is_test = before.is_some_and(|text| {
            text.lines()
                .rev()
                .map(str::trim)
                .take_while(|line| line.starts_with("#["))
                .any(|line| line == "#[test]")
        });
        if !is_test {
            wrong.push(format!("{}: there is no test {test}", row.field));
        }
        if why.is_empty() {
            wrong.push(format!("{}: no reason", row.field));
        }
        // The test itself, or a manifest or table that it uses in the same file.
        let name = row.field.split_once('.').map_or(row.field, |(_, name)| name);
        if !has_token(&source, name) {
            wrong.push(format!("{}: {file} does not contain {name}", row.field));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count * 10 <= rows().count(), "{count} of {} rows name another test", rows().count());
}

/// Whether a text contains a name that is not a part of another one.
fn has_token(text: &str, name: &str) -> bool {
    let is_part =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(name).any(|(at, _)| {
        !is_part(text[..at].chars().next_back()) && !is_part(text[at + name.len()..].chars().next())
    })
}

#[test]
fn each_field_has_an_effect_of_its_own() {
    let mut device = Device::new();
    let etc = device.own_etc();
    fs::write(etc.join("resolv.conf"), "nameserver 192.0.2.9\nsearch of.host\n").expect("it can be written");
    device.agent_arguments(["--node-labels=zone=a,rank=7"]);
    let mut wrong = observe_on(&mut device, false);
    drop(device);

    let mut device = Device::new();
    device.agent_arguments(["--register-with-taints=lab=x:NoExecute"]);
    wrong.extend(observe_on(&mut device, true));
    drop(device);
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// The most pods that run at once: a node accepts 110. In a guest with one emulated cpu, the requests for the state of
/// many pods would leave no time for the pods.
fn at_once() -> usize {
    if is_guest() { 30 } else { 90 }
}

/// Creates and observes the pods of all rows for this device, many at once. Returns what is wrong.
fn observe_on(device: &mut Device, tainted: bool) -> Vec<String> {
    // Hundreds of pods are more than the ring holds, and a replay begins with its first entry.
    device.replay_nothing();
    let mount = device.mount_tmpfs("/shared", "mode=755");
    let (dir, none) = (device.path("/shared"), None::<&str>);
    nix::mount::mount(none, &dir, none, MsFlags::MS_SHARED, none).expect("it is a mount");
    for file in ["one", "two"] {
        fs::write(dir.join(file), format!("{file} of the host\n")).expect("it can be written");
    }
    fs::create_dir(dir.join("sub")).expect("it can be made");
    fs::write(dir.join("sub/inner"), "inner of the host\n").expect("it can be written");
    for minor in [0, 1] {
        let (disk, mode) = (dir.join(format!("sub/disk-{minor}")), Mode::from_bits_truncate(0o600));
        mknod(&disk, SFlag::S_IFBLK, mode, makedev(7, minor)).expect("root may");
    }
    let deep = device.mount_tmpfs("/shared/sub/deep", "mode=755");
    device.start_agent_with_demo();
    let other = Image::of_demo("localhost/other:1").config("Env", json!(["PATH=/bin", "IMAGE=other"]));
    device.load(&other.file("only-here", 0o644, b""));
    if !tainted {
        device.apply(OBJECTS);
        device.apply(&expanded(device, &claim::volumes()));
        device.pod("holder").wait_ready();
    }
    // `FIELDS=Probe.` runs only the rows of these fields, for those who write a row.
    let only = std::env::var("FIELDS").unwrap_or_default();
    assert!(rows().any(|row| row.field.starts_with(&only)), "no field begins with {only:?}");
    let mut wrong = Vec::new();
    let (mut batch, mut count) = (Vec::new(), 0);
    // No pod has the name of an earlier one, whose events it would have.
    let mut prefix = 'a'..='z';
    for row in rows().filter(|row| row.tainted == tainted && row.field.starts_with(&only)) {
        let Shown::Pair(pair) = &row.shown else { continue };
        if count + pair.variants.len() > at_once() {
            wrong.extend(observe(device, prefix.next().expect("a letter"), &batch));
            (batch, count) = (Vec::new(), 0);
        }
        batch.push((row, pair));
        count += pair.variants.len();
    }
    if !batch.is_empty() {
        wrong.extend(observe(device, prefix.next().expect("a letter"), &batch));
    }
    drop(deep);
    drop(mount);
    wrong
}

/// One pod of a row.
struct Variant {
    row: &'static Row,
    pair: &'static Pair,
    /// The index of the variant in its row.
    number: usize,
    pod: String,
    expected: String,
    /// The observed facts, when they are final.
    seen: Option<String>,
}

fn observe(device: &Device, prefix: char, batch: &[(&'static Row, &'static Pair)]) -> Vec<String> {
    let began = Instant::now();
    let mut wrong = Vec::new();
    // Rows share pods that are the same.
    let mut pods: BTreeMap<(String, String), String> = BTreeMap::new();
    let (mut variants, mut manifests) = (Vec::new(), String::new());
    for (row, pair) in batch {
        for (number, (text, expected)) in pair.variants.iter().enumerate() {
            let (spec, debug) = match pair.debug {
                "" => (pair.spec.replace('@', text), String::new()),
                debug => (pair.spec.to_owned(), debug.replace('@', text)),
            };
            let policy = if row.policy.is_empty() { "" } else { "restartPolicy: " };
            let comma = if row.policy.is_empty() { "" } else { "," };
            let spec = expanded(device, &format!("{policy}{}{comma} {spec}", row.policy));
            let next = format!("{prefix}-{:03}", pods.len());
            let pod = pods.entry((spec.clone(), expanded(device, &debug))).or_insert_with(|| {
                let spec = spec.replace("$POD", &next);
                manifests +=
                    &format!("---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {next}, labels: {{of: table}}}}\nspec: {{{spec}}}\n");
                next
            });
            let (pod, expected) = (pod.clone(), expanded(device, expected));
            variants.push(Variant { row, pair, number, pod, expected, seen: None });
        }
    }
    let applied = device.nodlet_with_input(["apply", "-f", "-"], &manifests);
    if applied.code != 0 {
        wrong.push(applied.stderr);
    }
    let mut to_debug: Vec<(&str, &str)> = pods
        .iter()
        .filter(|((_, debug), _)| !debug.is_empty())
        .map(|((_, debug), pod)| (&**pod, &**debug))
        .collect();
    let mut clients = BTreeMap::new();
    loop {
        let objects = now(device);
        to_debug.retain(|(pod, debug)| {
            let runs = objects.get(*pod).is_some_and(|(object, _)| object["status"]["phase"] == "Running");
            if runs {
                let container: Value =
                    serde_json::from_str(debug).unwrap_or_else(|error| panic!("{debug}: {error}"));
                let path = format!("/api/v1/namespaces/default/pods/{pod}/ephemeralcontainers");
                let body = json!({"spec": {"ephemeralContainers": [container]}});
                let (code, answer) = device.patch(&path, "strategic-merge", &body);
                if code != 200 {
                    wrong.push(format!("{debug}: {answer}"));
                }
            }
            !runs
        });
        for variant in variants.iter_mut().filter(|variant| variant.seen.is_none()) {
            if let Some((object, events)) = objects.get(&variant.pod) {
                let container = variant.row.attached;
                if !container.is_empty() && device.pod(&variant.pod).container(container).is_running() {
                    clients
                        .entry(variant.pod.clone())
                        .or_insert_with(|| type_in(device, &variant.pod, container));
                }
                variant.seen = seen(device, variant, object, events);
            }
        }
        if variants.iter().all(|variant| variant.seen.is_some()) || began.elapsed() > deadline() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let objects = now(device);
    wrong.extend(
        variants
            .chunk_by(|one, other| std::ptr::eq(one.row, other.row))
            .flat_map(|row| compare(device, row, &objects)),
    );
    for client in clients.values_mut() {
        // A client whose container has ended has ended as well.
        let _ = client.kill();
        let _ = client.wait();
    }
    for pod in pods.values() {
        let path = format!("/api/v1/namespaces/default/pods/{pod}");
        let _ = device.request("DELETE", &path, Some(&json!({"gracePeriodSeconds": 1})));
    }
    device.wait_for("the pods to be gone", || {
        device.pods().iter().all(|pod| !pods.values().any(|ours| ours == pod))
    });
    eprintln!("{} rows, {} pods: {:?}", batch.len(), pods.len(), began.elapsed());
    wrong
}

/// Starts a client that writes a line to the container, and then ends its input.
fn type_in(device: &Device, pod: &str, container: &str) -> Child {
    let mut command = device.command(&["attach", "-i", pod, "-c", container]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut client = command.spawn().expect("nodlet can be run");
    client.stdin.take().expect("it is piped").write_all(b"typed\n").expect("it reads");
    client
}

/// How long the pods of a batch may take.
fn deadline() -> Duration {
    Duration::from_secs(if is_guest() { 240 } else { 60 })
}

/// The capability of those who lower an `oom_score_adj`.
const CAP_SYS_RESOURCE: u32 = 24;

/// Replaces the abbreviations that the module's documentation lists.
fn expanded(device: &Device, text: &str) -> String {
    let mut text = text.replace("$DIR", &device.path("/shared").display().to_string());
    for namespace in ["net", "pid", "ipc"] {
        let link = fs::read_link(format!("/proc/self/ns/{namespace}")).expect("/proc is mounted");
        text = text.replace(&format!("${namespace}"), &link.display().to_string());
    }
    let capabilities = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let effective = capabilities.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    let effective = u64::from_str_radix(effective.trim(), 16).expect("a hexadecimal number");
    text = text.replace("$oom", if effective & 1 << CAP_SYS_RESOURCE == 0 { "0" } else { "-997" });
    let quoted = |steps: &str| {
        let words: Vec<String> = steps.split_whitespace().map(|word| format!("{word:?}")).collect();
        words.join(", ")
    };
    let (steps, end) = (
        |steps: &str| format!(r#""image": "localhost/demo:1", "args": [{}]"#, quoted(steps)),
        |steps: &str| format!(r#""exec": {{"command": ["/bin/demo", {}]}}"#, quoted(steps)),
    );
    let each = |text: &str, open: &str, close: &str, make: &dyn Fn(&str) -> String| {
        let mut parts = text.split(open);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (inside, rest) = part.split_once(close).unwrap_or_else(|| panic!("no {close} in {text}"));
            out += &make(inside);
            out += rest;
        }
        out
    };
    each(&each(&text, "[[", "]]", &steps), "((", "))", &end)
}

/// All pods by name, each with its events as lines of `Reason: message`.
fn now(device: &Device) -> BTreeMap<String, (Value, String)> {
    let items = |path: &str| {
        let mut list = device.get(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    };
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let pods = items("/api/v1/pods");
    let mut pods: BTreeMap<_, _> =
        pods.into_iter().map(|pod| (name(&pod["metadata"]), (pod, String::new()))).collect();
    for event in items("/api/v1/events") {
        if let Some((_, lines)) = pods.get_mut(&name(&event["involvedObject"])) {
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            *lines += &format!("{}: {}\n", text("reason"), text("message"));
        }
    }
    pods
}

/// The observed facts of this pod, when they are final.
fn seen(device: &Device, variant: &Variant, object: &Value, events: &str) -> Option<String> {
    let expected = &variant.expected;
    let is_final = match variant.pair.observation {
        Observation::Status | Observation::Claim => false,
        Observation::Limits => expected.is_empty() && object["status"]["phase"] == "Running",
        Observation::Log(container) => {
            let state = state(&object["status"], container);
            if state["terminated"].is_null() && state["running"].is_null() {
                return None;
            }
            !state["terminated"].is_null()
        }
    };
    let text = observed(device, variant, object, events);
    (is_final || !expected.is_empty() && text.contains(expected)).then_some(text)
}

/// The state of a container: main, init or ephemeral; `Null` if it has no status.
fn state<'a>(status: &'a Value, container: &str) -> &'a Value {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut statuses = lists.iter().filter_map(|list| status[*list].as_array()).flatten();
    statuses.find(|one| one["name"] == container).map_or(&Value::Null, |one| &one["state"])
}

/// The observed facts of this pod now.
fn observed(device: &Device, variant: &Variant, object: &Value, events: &str) -> String {
    match variant.pair.observation {
        Observation::Limits => {
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            format!("{}{}", limits(device, uid), object["status"])
        }
        Observation::Status => format!("{}\n{events}", object["status"]),
        Observation::Claim => {
            device.text(&format!("/api/v1/namespaces/default/persistentvolumeclaims/{}-v", variant.pod))
        }
        Observation::Log(container) => {
            device.text(&format!("/api/v1/namespaces/default/pods/{}/log?container={container}", variant.pod))
        }
    }
}

/// The limits in all cgroups of the pod with this uid.
fn limits(device: &Device, uid: &str) -> String {
    let mut lines = String::new();
    for cgroup in device.cgroups().iter().filter(|path| path.to_string_lossy().contains(uid)) {
        let read = |file: &str| fs::read_to_string(cgroup.join(file)).unwrap_or_default();
        let shares =
            read("cpu.shares").trim().parse().map_or(0, |shares: u64| 1 + (shares - 2) * 9999 / 262_142);
        let weight = read("cpu.weight").trim().parse().unwrap_or(shares);
        lines += &format!("cpu.weight={weight}\n");
        let quota = format!("{} {}", read("cpu.cfs_quota_us").trim(), read("cpu.cfs_period_us").trim());
        lines += &format!("cpu.max={}{}\n", read("cpu.max").trim(), quota.trim());
        lines +=
            &format!("memory.max={}{}\n", read("memory.max").trim(), read("memory.limit_in_bytes").trim());
    }
    lines
}

/// The errors of the pods of one row.
fn compare(device: &Device, row: &[Variant], objects: &BTreeMap<String, (Value, String)>) -> Vec<String> {
    let field = row[0].row.field;
    let mut wrong = Vec::new();
    for variant in row {
        let text = variant.pair.variants[variant.number].0;
        let (object, events) = objects.get(&variant.pod).cloned().unwrap_or_default();
        match &variant.seen {
            Some(seen) if seen.contains(&variant.expected) => {}
            Some(seen) => wrong.push(format!("{field} `{text}`: {:?} is not in {seen:?}", variant.expected)),
            None => wrong.push(format!(
                "{field} `{text}`: waited in vain for {:?}: {} {events}",
                variant.expected, object["status"]
            )),
        }
        if variant.number == 0 {
            continue;
        }
        let base = &row[0];
        let (before, events) = objects.get(&base.pod).cloned().unwrap_or_default();
        // The base is observed again: a field without effect would show the same a little later.
        let later = observed(device, base, &before, &events);
        if [base.seen.as_ref(), Some(&later)]
            .into_iter()
            .flatten()
            .any(|seen| seen.contains(&variant.expected))
        {
            wrong.push(format!("{field} `{text}`: the base shows {:?} as well", variant.expected));
        }
        let mut paths = Vec::new();
        let unnamed = |object: &Value, pod: &str| -> Value {
            serde_json::from_str(&object["spec"].to_string().replace(&format!("/{pod}\""), "/$POD\""))
                .expect("JSON")
        };
        let (before, after) = (unnamed(&before, &base.pod), unnamed(&object, &variant.pod));
        differences(&before, &after, &mut Vec::new(), &mut paths);
        let leads = |path: &[String], to: &str| fields_of(path).iter().any(|one| one == to);
        if !paths.iter().any(|path| leads(path, field)) {
            wrong.push(format!("{field} `{text}`: the specs do not differ in it: {paths:?}"));
        }
        let others = paths
            .iter()
            .filter(|path| !leads(path, field) && !variant.row.with.iter().any(|also| leads(path, also)));
        wrong.extend(others.map(|path| format!("{field} `{text}`: differs in {} as well", path.join("."))));
    }
    wrong
}
