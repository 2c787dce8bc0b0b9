//! Excessive loads for a small board, applied to an agent that runs a pod: the agent's memory stays below a
//! bound and falls again, and the pod is not affected.
//!
//! The bounds are about one and a half times what was measured on x86-64, in an unoptimised build; an idle
//! agent has some 700 KiB of such memory.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use nodlet_tests::{Device, Holdings, Memory, MemoryCgroup, manifest};

mod api;

/// The bound in KiB for an agent that reads the worst possible manifest: its text, 50 000 tokens or 25 000
/// values of it, and the messages about it.
const READING: u64 = 16 * 1024;

/// The bound in KiB for an agent with as many pods as it lists: 110 that it admits, 900 that it rejects.
const LISTING: u64 = 14 * 1024;

/// The bound in KiB for an agent whose connections are all taken by clients that read nothing: 64 times the
/// buffers of a connection, and 4 MiB of unread data.
const SERVING: u64 = 22 * 1024;

/// The bound in KiB for an agent that had three hundred pods, a hundred at a time, and keeps 512 of their
/// events, of one or two KiB each, with the keys that distinguish them.
const TELLING: u64 = 12 * 1024;

/// The bound in bytes for the growth of all memory that is no container's, while forty containers are given a MiB of
/// words or variables each: two starts and two commands of 2 MiB at a time, the files of forty runs, and cached pages.
/// Measured were 7.3 MiB.
const GIVING: u64 = 12 << 20;

/// The bound in bytes for the growth of all memory that is no container's, besides the files of the volume, while forty
/// containers mount one volume of 15 MB, each fifty times. Measured were 6.3 MiB.
const MOUNTING: u64 = 10 << 20;

/// The bound in KiB after the load: 512 events, the ring of changes, and memory that the allocator keeps.
const AFTER: u64 = 6 * 1024;

/// The timeout of operations that take two busy cores some time.
const LONG: Duration = Duration::from_secs(240);

/// A device with a counting pod, and the start time of the pod's process.
struct Watched {
    device: Device,
    born: String,
    before: u64,
}

impl Watched {
    fn start() -> Watched {
        Watched::start_in(None)
    }

    fn start_in(cgroup: Option<&MemoryCgroup>) -> Watched {
        let mut device = Device::start();
        device.replay_nothing();
        if let Some(cgroup) = cgroup {
            device.stop_agent();
            cgroup.launch(&mut device);
            device.wait_for("the agent's API to answer", || device.get("/version").is_ok());
        }
        let probe = "livenessProbe: {exec: {command: [/bin/demo, cat, /work/beat]}, periodSeconds: 1, timeoutSeconds: 20}\n\
                     volumeMounts: [{name: work, mountPath: /work}]";
        let container = manifest::container("app", "write /work/beat alive 1", probe);
        let spec = "volumes: [{name: work, emptyDir: {}}]";
        let born = device.run_pod_of("witness", &[container], spec).wait_ready().born("app");
        let before = Memory::of(device.agent_pid()).now;
        Memory::forget_peak(device.agent_pid());
        Watched { device, born, before }
    }

    /// Requires that neither the pod nor the agent has stopped, and that the agent runs and removes another
    /// pod.
    #[track_caller]
    fn is_undisturbed(&self) {
        let device = &self.device;
        device.run_pod("after", "sleep");
        device.wait_within(LONG, "one more pod to run", || device.pod("after").is_ready());
        device.remove_manifest("after.yaml");
        device.wait_within(LONG, "it to be gone", || device.pod("after").object().is_none());
        let witness = device.pod("witness");
        assert_eq!(witness.born("app"), self.born, "the witness was started again");
        assert_eq!(witness.container("app").restart_count(), 0);
    }

    /// Requires that the peak of the agent's memory since the last call stays below `bound`.
    #[track_caller]
    fn stayed_below(&self, bound: u64, what: &str) {
        let memory = Memory::of(self.device.agent_pid());
        println!("{what}: {} KiB before, {} at most, {} after", self.before, memory.peak, memory.now);
        assert!(memory.peak < bound, "{what}: the agent had {} KiB, not below {bound}", memory.peak);
        Memory::forget_peak(self.device.agent_pid());
    }

    /// Removes all pods but the witness, and requires that nothing was disturbed and that the memory fell again.
    #[track_caller]
    fn ends(self) {
        self.take_all();
        self.is_undisturbed();
        self.fell_again();
    }

    /// Requires that the memory fell again.
    #[track_caller]
    fn fell_again(&self) {
        let now = Memory::of(self.device.agent_pid()).now;
        assert!(now < self.before + AFTER, "the agent keeps {now} KiB, {} before", self.before);
    }

    /// Runs a pod, and requires that all memory that is no container's grows by less than `bound` bytes.
    #[track_caller]
    fn grows_below(&self, cgroup: &MemoryCgroup, bound: u64, what: &str, pod: &str) {
        let before = cgroup.usage();
        cgroup.forget_peak();
        self.put("big.yaml", pod);
        self.device.wait_within(LONG, what, || self.device.pod("big").is_ready());
        let grown = cgroup.peak() - before;
        println!("{what}: {} KiB more than {} KiB, without containers", grown >> 10, before >> 10);
        assert!(grown < bound, "{what}: {grown} bytes, not below {bound}");
        self.stayed_below(READING, what);
        fs::remove_file(self.device.manifests().join("big.yaml")).expect("it is there");
        self.device.wait_within(LONG, "the pod to be gone", || self.device.pods() == ["witness"]);
    }

    fn put(&self, file: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.device.manifests()).expect("the root can be written to");
        fs::write(self.device.manifests().join(file), text).expect("the root can be written to");
    }

    fn take_all(&self) {
        for entry in fs::read_dir(self.device.manifests()).expect("it is there").flatten() {
            if entry.file_name() != "witness.yaml" {
                let _ = fs::remove_file(entry.path());
            }
        }
        self.device.wait_within(LONG, "all pods but one to be gone", || self.device.pods() == ["witness"]);
    }
}

/// A ConfigMap `large` of so many values.
fn large_map(values: usize, bytes: usize) -> String {
    let data: String = (0..values).map(|number| format!("  K{number}: {}\n", "x".repeat(bytes))).collect();
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: large}}\ndata:\n{data}")
}

/// A pod whose image does not exist, with an annotation of so many bytes: starting a hundred pods is tested elsewhere.
fn without_image(name: &str, bytes: usize) -> String {
    let text = manifest::pod(name, "sleep").replace("localhost/demo:1", "localhost/none:1");
    text.replace("metadata:\n", &format!("metadata:\n  annotations: {{a: {:?}}}\n", "x".repeat(bytes)))
}

#[test]
fn a_thousand_wrong_manifests_are_refused_and_forgotten() {
    let watched = Watched::start();
    for number in 0..1000 {
        let fields: String = (0..40).map(|field| format!(", wrong{field}: {number}")).collect();
        watched.put(
            &format!("wrong-{number}.yaml"),
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: wrong-{number}}}\nspec: {{containers: [{{name: c, image: i{fields}}}]}}\n"),
        );
    }
    watched.is_undisturbed();
    watched.stayed_below(LISTING, "1000 wrong manifests");
    watched.ends();
}

#[test]
fn a_thousand_pods_are_listed_and_a_hundred_and_ten_admitted() {
    let watched = Watched::start();
    for number in 0..1000 {
        let name = format!("pod-{number:03}");
        watched.put(&format!("{name}.yaml"), without_image(&name, 0));
    }
    let device = &watched.device;
    device.wait_within(LONG, "all pods to be listed", || device.pods().len() == 1001);
    let refused = || {
        let list = device.get("/api/v1/pods").expect("the API lists pods");
        let pods = list["items"].as_array().expect("a list").iter();
        pods.filter(|pod| pod["status"]["reason"] == "OutOfpods").count()
    };
    device.wait_within(LONG, "all but 110 to be refused", || refused() == 1001 - 110);
    watched.stayed_below(LISTING, "1000 pods");
    watched.ends();
}

#[test]
fn the_events_of_three_hundred_pods_are_kept_up_to_a_bound() {
    let watched = Watched::start();
    let device = &watched.device;
    // An image name of nearly the maximal length, which an event contains twice.
    let image = format!("localhost/{}:1", ["none"; 48].join("/"));
    let events = || {
        let list = device.get("/api/v1/events").expect("the API lists events");
        list["items"].as_array().expect("a list").clone()
    };
    let of = |wave: usize, number: usize| format!("pod-{}", wave * 100 + number);
    for wave in 0..3 {
        for number in 0..100 {
            let name = of(wave, number);
            let text = manifest::pod(&name, "sleep").replace("localhost/demo:1", &image);
            watched.put(&format!("{name}.yaml"), text);
        }
        // Two events when the pod fails, and two more when it begins to wait.
        let reported = |number: usize| {
            let name = of(wave, number);
            let of_it = events().iter().filter(|event| event["involvedObject"]["name"] == *name).count();
            of_it == 4
        };
        device.wait_within(LONG, "the pods of this wave to wait for their images", || {
            reported(0) && reported(99)
        });
        watched.take_all();
    }
    let kept = events();
    assert!(kept.len() <= 512, "{} events are kept", kept.len());
    assert!(kept.len() > 400, "only {} events are kept", kept.len());
    assert!(!kept.iter().any(|event| event["involvedObject"]["name"] == *of(0, 0)), "the oldest go first");
    watched.stayed_below(TELLING, "the events of 300 pods");
    watched.ends();
}

#[test]
fn manifests_that_are_too_much_together_are_refused_by_name_until_there_is_room() {
    let watched = Watched::start();
    let device = &watched.device;
    for number in 10..40 {
        let name = format!("big-{number}");
        watched.put(&format!("{name}.yaml"), without_image(&name, 250_000));
    }
    device.wait_within(LONG, "the last to be refused", || device.pod("big-39").has_event("quota exceeded"));
    assert_eq!(device.pods().len(), 1 + 4 * 1024 * 1024 / 250_000);
    watched.stayed_below(2 * LISTING, "30 manifests of 250 KB");
    fs::remove_file(device.manifests().join("big-10.yaml")).expect("it is there");
    device.wait_within(LONG, "the next to take its room", || device.pods().contains(&"big-26".to_owned()));
    watched.ends();
}

#[test]
fn the_worst_manifests_there_are_cost_little() {
    let watched = Watched::start();
    let device = &watched.device;
    let mib = 1 << 20;
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: big}\nspec:\n  containers:\n";
    let environment = |how_many: usize| -> String {
        (0..how_many).map(|number| format!("    - {{name: A{number}, value: x}}\n")).collect()
    };
    let of_each = |line: &dyn Fn(usize) -> String| -> String { (0..6000).map(line).collect() };
    let headers = of_each(&|number| format!("        - {{name: h{number}, value: x}}\n"));
    let aliases = of_each(&|number| format!("  - {{ip: 10.0.0.1, hostnames: [h{number}]}}\n"));
    let container = "  - name: c\n    image: localhost/none:1\n";
    let anchors: String = (1..30)
        .map(|number| format!("a{number}: &a{number} [{}]\n", format!("*a{}, ", number - 1).repeat(9)))
        .collect();
    let worst: [(&str, String); 13] = [
        ("aliases of aliases", format!("a0: &a0 [x, x]\n{anchors}")),
        (
            "aliases of a long text",
            format!("t: &t {}\nl: [{}]\n", "x".repeat(mib / 2), "*t, ".repeat(50_000)),
        ),
        (
            "headers",
            format!(
                "{pod}{container}    livenessProbe:\n      httpGet:\n        port: 80\n        httpHeaders:\n{headers}"
            ),
        ),
        ("host aliases", format!("{pod}{container}  hostAliases:\n{aliases}")),
        ("10 MiB of zeros", "0".repeat(10 * mib)),
        ("10 MiB of pods", pod.repeat(10 * mib / pod.len())),
        ("lists in a list", format!("[{}]", "[],".repeat(mib / 3 - 2))),
        ("lists in an object", format!("{{\"a\":[{}0]}}", "[],".repeat(mib / 3 - 8))),
        ("objects in an object", format!("{{\"a\":[{}0]}}", "{\"a\":1},".repeat(mib / 8 - 8))),
        ("objects in YAML", format!("a:\n{}", "- {a: 1}\n".repeat(mib / 9 - 8))),
        ("a long word", "x".repeat(mib)),
        ("documents", "---\n".repeat(mib / 4)),
        (
            "an environment",
            format!("{pod}  - name: c\n    image: localhost/none:1\n    env:\n{}", environment(6000)),
        ),
    ];
    for (what, text) in worst {
        watched.put("big.yaml", text);
        watched.is_undisturbed();
        watched.stayed_below(READING, what);
        fs::remove_file(device.manifests().join("big.yaml")).expect("it is there");
    }
    watched.ends();
}

#[test]
fn a_long_annotation_that_a_pod_names_eight_hundred_times_costs_little() {
    let watched = Watched::start();
    let device = &watched.device;
    let pod = |more: &str, spec: &str| {
        let resources = "resources: {limits: {memory: 16Mi}}";
        let container = manifest::container("app", "sleep", &format!("{resources}\n{more}"));
        let annotated = format!("  name: big\n  annotations: {{long: {}}}", "x".repeat(250_000));
        manifest::pod_of("big", &[container], spec).replacen("  name: big", &annotated, 1)
    };
    let field = "fieldRef: {fieldPath: \"metadata.annotations['long']\"}";
    let list = |item: &dyn Fn(usize) -> String| (0..800).map(item).collect::<Vec<_>>().join(", ");
    let files = list(&|number| format!("{{path: f{number}, {field}}}"));
    let sources = list(&|number| format!("{{downwardAPI: {{items: [{{path: f{number}, {field}}}]}}}}"));
    let variables = list(&|number| format!("{{name: V{number}, valueFrom: {{{field}}}}}"));
    let volume = |source: &str| {
        pod("volumeMounts: [{name: v, mountPath: /v}]", &format!("volumes: [{{name: v, {source}}}]"))
    };
    let worst = [
        ("files", volume(&format!("downwardAPI: {{items: [{files}]}}")), "need more than 16777216 bytes"),
        ("sources", volume(&format!("projected: {{sources: [{sources}]}}")), "need more than 16777216 bytes"),
        ("variables", pod(&format!("env: [{variables}]"), ""), "longer than 2 MiB"),
    ];
    for (what, text, said) in worst {
        watched.put("big.yaml", text);
        device.wait_within(LONG, "the pod to say why it cannot start", || {
            let told = device.pod("big").container("app").message();
            told.contains(said) || device.pod("big").has_event(said)
        });
        watched.is_undisturbed();
        watched.stayed_below(READING, what);
        watched.take_all();
    }
    watched.ends();
}

#[test]
fn what_each_of_forty_containers_is_given_is_not_in_memory_for_all_at_once() {
    let cgroup = MemoryCgroup::new("bounded");
    let watched = Watched::start_in(Some(&cgroup));
    // Eight variables of nearly the length that the kernel accepts.
    watched.put("map.yaml", large_map(8, 110_000));
    let names: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
    let words = vec![format!("{:?}", "$(V)".repeat(8)); 16].join(", ");
    let variable = format!("env: [{{name: V, value: {}}}]", "x".repeat(8_000));
    let command = |steps: &str| format!("exec: {{command: [/bin/demo, {steps}, then, {words}]}}");
    let exit = "exit, \"0\"";
    let worst = [
        ("environments", "args: [sleep]\nenvFrom: [{configMapRef: {name: large}}]".to_owned()),
        ("arguments", format!("args: [sleep, then, {words}]\n{variable}")),
        (
            "probes",
            format!(
                "args: [sleep]\n{variable}\nreadinessProbe: {{periodSeconds: 1, timeoutSeconds: 60, {}}}",
                command(exit)
            ),
        ),
        ("hooks", format!("args: [sleep]\n{variable}\nlifecycle: {{postStart: {{{}}}}}", command(exit))),
    ];
    for (what, given) in worst {
        let container = |name: &String| {
            let lines = given.replace('\n', "\n    ");
            format!("  - name: {name}\n    image: localhost/demo:1\n    {lines}\n")
        };
        let containers: Vec<String> = names.iter().map(container).collect();
        let pod = manifest::pod_of("big", &containers, "terminationGracePeriodSeconds: 0");
        watched.grows_below(&cgroup, GIVING, what, &pod);
    }
    watched.is_undisturbed();
    // With the large object still there.
    watched.fell_again();
    watched.ends();
    // A fresh agent keeps nothing of the pods before.
    let cgroup = MemoryCgroup::new("begun");
    let watched = Watched::start_in(Some(&cgroup));
    watched.put("map.yaml", large_map(8, 110_000));
    let from = "envFrom: [{configMapRef: {name: large}}]";
    let sidecar = format!("{from}\nrestartPolicy: Always");
    for (what, steps, more) in [("init containers", "exit 0", from), ("sidecars", "sleep", sidecar.as_str())]
    {
        let init: Vec<String> =
            (0..40).map(|number| manifest::container(&format!("i{number}"), steps, more)).collect();
        let app = manifest::container("app", "sleep", "");
        let pod = manifest::pod_behind("big", &init, &[app], "terminationGracePeriodSeconds: 0");
        watched.grows_below(&cgroup, GIVING, what, &pod);
    }
    watched.ends();
}

#[test]
fn a_large_volume_that_forty_containers_mount_is_in_memory_once() {
    let cgroup = MemoryCgroup::new("mounted");
    let watched = Watched::start_in(Some(&cgroup));
    watched.put("map.yaml", large_map(4, 250_000));
    // Each source shows the whole map at other paths.
    let source = |number: usize| {
        let items: Vec<String> =
            (0..4).map(|key| format!("{{key: K{key}, path: s{number}/f{key}}}")).collect();
        format!("{{configMap: {{name: large, items: [{}]}}}}", items.join(", "))
    };
    let sources: Vec<String> = (0..15).map(source).collect();
    let volume = format!("[{{name: v, projected: {{sources: [{}]}}}}]", sources.join(", "));
    let files = 15 * 1_000_000;
    let many = |mount: &dyn Fn(usize) -> String, how_many: usize| {
        format!("volumeMounts: [{}]", (0..how_many).map(mount).collect::<Vec<_>>().join(", "))
    };
    let worst = [
        ("a mount", many(&|_| "{name: v, mountPath: /v}".to_owned(), 1)),
        ("fifty mounts", many(&|number| format!("{{name: v, mountPath: /v{number}}}"), 50)),
        (
            "fifty mounted files",
            many(
                &|number| {
                    let (source, key) = (number % 15, number / 15);
                    format!("{{name: v, mountPath: /v{number}, subPath: s{source}/f{key}}}")
                },
                50,
            ),
        ),
    ];
    for (what, mounts) in worst {
        let containers: Vec<String> =
            (0..40).map(|number| manifest::container(&format!("c{number}"), "sleep", &mounts)).collect();
        let spec = format!("terminationGracePeriodSeconds: 0\nvolumes: {volume}");
        watched.grows_below(&cgroup, files + MOUNTING, what, &manifest::pod_of("big", &containers, &spec));
    }
    watched.is_undisturbed();
    watched.fell_again();
    watched.ends();
}

#[test]
fn a_directory_of_garbage_is_passed_over() {
    let watched = Watched::start();
    let mut seed = 7_u64;
    for number in 0..300 {
        let bytes = (0..10_000).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        });
        watched.put(&format!("garbage-{number}"), bytes.collect::<Vec<u8>>());
    }
    let dir = watched.device.manifests();
    fs::create_dir_all(dir.join("directory.yaml/in/it")).expect("the root can be written to");
    for (name, target) in
        [("loop.yaml", "loop.yaml"), ("zero.yaml", "/dev/zero"), ("none.yaml", "nowhere"), ("dir.yaml", "/")]
    {
        std::os::unix::fs::symlink(target, dir.join(name)).expect("the root can be written to");
    }
    nix::unistd::mkfifo(&dir.join("fifo.yaml"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo can be made");
    watched.is_undisturbed();
    watched.stayed_below(READING, "a directory of garbage");
    fs::remove_dir_all(dir.join("directory.yaml")).expect("it is there");
    watched.ends();
}

#[test]
fn a_thousand_clients_that_read_nothing_keep_nobody_out() {
    let watched = Watched::start();
    let device = &watched.device;
    // Data for lists: events of pods that cannot start.
    for number in 0..60 {
        let name = format!("pod-{number}");
        watched.put(&format!("{name}.yaml"), without_image(&name, 20_000));
    }
    device.wait_within(LONG, "all pods to be listed", || device.pods().len() == 61);
    Memory::forget_peak(device.agent_pid());
    let requests = [
        "",
        "GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n",
        "GET /api/v1/pods HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /api/v1/pods?watch=true HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /api/v1/namespaces/default/pods/witness/log?follow=true HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
    ];
    let socket = device.socket();
    let clients = thread::spawn(move || {
        let mut clients = Vec::new();
        for number in 0..1000 {
            // Beyond the backlog, this waits until another client is disconnected.
            let mut client = UnixStream::connect(&socket).expect("the API listens");
            let request = requests[number % requests.len()];
            let _ = client.write_all(request.as_bytes());
            clients.push(client);
        }
        clients
    });
    let mut answers = 0;
    while !clients.is_finished() {
        if device.get("/api/v1/namespaces/default/pods/witness").is_ok() {
            answers += 1;
        }
    }
    let clients = clients.join().expect("all clients could connect");
    device.wait_within(LONG, "somebody else to be answered", || device.get("/version").is_ok());
    println!("{answers} answers meanwhile, {:?}", Holdings::of(device));
    watched.stayed_below(SERVING, "1000 clients");
    drop(clients);
    watched.ends();
}
