//! Each pod has a network of its own, and all of them can reach each other.

use std::fs;

use nodlet_tests::{Device, TestPod, manifest};

/// A pod of two containers, `app` and `other`.
fn run_pair<'a>(device: &'a Device, name: &'a str, steps: &str, spec: &str) -> TestPod<'a> {
    let containers = [manifest::container("app", steps, ""), manifest::container("other", "sleep 9999", "")];
    device.run_pod_of(name, &containers, spec).wait_ready()
}

#[test]
fn containers_of_a_pod_share_localhost_and_pods_reach_each_other_and_the_host_reaches_them() {
    let device = Device::start();
    let web = run_pair(&device, "web", "serve 8080 /srv", "").wait_log("app", "serving");
    let client = device.run_pod("client", "sleep").wait_ready();
    let page = "hello from the image\n";
    assert_eq!(web.demo("other", "get http://127.0.0.1:8080/").ok(), page);

    let address = web.ip();
    assert!(address.starts_with("10.213.") && address != client.ip(), "{address} and {}", client.ip());
    let url = format!("http://{address}:8080/");
    assert_eq!(client.demo("app", &format!("get {url}")).ok(), page);
    let from_here = std::process::Command::new(nodlet_tests::demo_program()).args(["get", &url]).output();
    assert_eq!(String::from_utf8_lossy(&from_here.expect("it can be run").stdout), page);
    client.demo("app", "get http://127.0.0.1:8080/").refused();
}

#[test]
fn a_pod_range_in_use_on_the_machine_is_reported_at_start() {
    let one = Device::start();
    one.run_pod("web", "sleep").wait_ready();
    let address = one.pod("web").ip();
    let range = format!("{}.0/24", address.rsplit_once('.').expect("an address has dots").0);
    let mut other = Device::new();
    other.agent_arguments(["--pod-cidr", &range]);
    other.start_agent();
    let reported = format!("use {range} for pods: the machine has the address ");
    assert!(other.agent_log().contains(&reported), "{}", other.agent_log());

    // A pod whose network cannot be created reports that itself, and leaves nothing behind.
    let late = other.run_pod("late", "sleep");
    other.wait_for("the pod to say why it waits", || late.container("app").message().contains(&reported));
    assert_eq!(late.container("app").reason(), "ContainerCreating");
    let uid = late.uid();
    other.remove_pod("late");
    assert!(!other.path(&format!("/run/nodlet/pods/{uid}")).exists());
    let left: Vec<_> =
        other.cgroups().into_iter().filter(|path| path.to_string_lossy().contains(&uid)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!one.agent_log().contains("for pods: the machine has"), "{}", one.agent_log());
}

#[test]
fn a_pod_knows_its_name_and_its_addresses() {
    let device = Device::start();
    let web = device
        .run_pod_with("web", "sleep", "hostAliases: [{ip: 192.0.2.1, hostnames: [one, two]}]")
        .wait_ready();
    assert_eq!(web.demo("app", "hostname").ok(), "web\n");
    let hosts = web.demo("app", "cat /etc/hosts").ok();
    assert!(hosts.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"), "{hosts}");
    assert!(hosts.contains(&format!("\n{}\tweb\n", web.ip())), "{hosts}");
    assert!(hosts.contains("# Entries added by HostAliases.\n192.0.2.1\tone\ttwo\n"), "{hosts}");
    web.demo("app", "stat /etc/resolv.conf").ok();
    web.demo("app", "env").ok_with("HOSTNAME=web\n");
}

#[test]
fn a_pod_in_namespaces_of_the_host_sees_what_the_host_sees_and_is_called_as_the_machine() {
    let device = Device::start_with(["--node-name", "some-board"]);
    let host = device.run_pod_with("host", "sleep", "hostNetwork: true").wait_ready();
    let shared = device.run_pod_with("shared", "sleep", "hostPID: true\nhostIPC: true").wait_ready();
    let own = device.run_pod("own", "sleep").wait_ready();
    let read = |path: &str| fs::read_to_string(path).expect("/proc is mounted");
    // Whatever the node is called.
    let name = read("/proc/sys/kernel/hostname");
    assert_eq!(host.demo("app", "hostname").ok(), name);
    assert_eq!(host.demo("app", "cat /etc/hostname").ok(), name);
    host.demo("app", "env").ok_with(&format!("HOSTNAME={name}"));

    let links = |text: String| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
    };
    let inside = links(host.demo("app", "cat /proc/net/dev").ok());
    let here = links(read("/proc/net/dev"));
    for link in ["lo", "eth0"].map(str::to_owned) {
        assert_eq!(inside.contains(&link), here.contains(&link), "{link}");
    }
    let alone = links(own.demo("app", "cat /proc/net/dev").ok());
    assert_eq!(alone.len(), 2, "loopback and one link: {alone:?}");

    let seen = shared.demo("app", &format!("cat /proc/{}/comm", std::process::id())).ok();
    assert_eq!(seen, read("/proc/self/comm"));
}

#[test]
fn nameservers_of_the_machine_that_a_pod_cannot_reach_are_omitted_with_an_event() {
    let mut device = Device::new();
    let unreachable = "nameserver fe80::1%eth0\nnameserver 127.0.0.1\n";
    let file = device.write_file("/machine.conf", unreachable);
    device.agent_arguments(["--resolv-conf", file.to_str().expect("the path is text")]);
    device.start_agent_with_demo();
    let own = device.run_pod_with("own", "sleep", "dnsPolicy: Default").wait_ready();
    let host = device.run_pod_with("host", "sleep", "hostNetwork: true").wait_ready();
    let servers = |pod: &TestPod<'_>| pod.demo("app", "cat /etc/resolv.conf").ok();
    assert_eq!(servers(&own), "");
    assert_eq!(servers(&host), unreachable);
    let omitted = "DNSConfigForming: Nameservers of the node that the pod cannot reach have been omitted: fe80::1%eth0 \
                   (link-local), 127.0.0.1 (loopback of the machine); ";
    let events = |pod: &TestPod<'_>| {
        let events = pod.events();
        events.into_iter().filter(|event| event.starts_with("DNSConfigForming")).collect::<Vec<_>>()
    };
    let advice = "no nameserver is left: name one in dnsConfig.nameservers of the pod, or in a file for nodlet agent \
                  --resolv-conf";
    assert_eq!(events(&own), [format!("{omitted}{advice}")]);
    assert!(events(&host).is_empty(), "{:?}", events(&host));

    // A change is followed, and reported once.
    device.write_file("/machine.conf", format!("{unreachable}nameserver 192.0.2.1\n"));
    device.wait_for("the pod's file to follow", || servers(&own) == "nameserver 192.0.2.1\n");
    device.wait_for("an event about the change", || events(&own).len() == 2);
    let applied = format!("{omitted}the applied nameserver line is: 192.0.2.1");
    assert!(events(&own).contains(&applied), "{:?}", events(&own));

    // An agent without a file, as a kubelet with an empty --resolv-conf.
    device.stop_agent();
    device.agent_arguments(["--resolv-conf", ""]);
    device.start_agent();
    let (own, host) = (device.pod("own"), device.pod("host"));
    device.wait_for("the pod's file to follow", || servers(&own) == "search .\nnameserver 127.0.0.1\n");
    assert!(events(&host).is_empty(), "{:?}", events(&host));
}

#[test]
fn memory_is_shared_in_a_pod_and_processes_only_when_the_pod_says_so() {
    let device = Device::start();
    let one = run_pair(&device, "one", "sleep", "");
    let two = run_pair(&device, "two", "sleep", "shareProcessNamespace: true");
    for kind in ["sysv", "posix"] {
        one.demo("app", &format!("ipc {kind}-make 4711")).ok();
        one.demo("other", &format!("ipc {kind}-has 4711")).ok();
        two.demo("app", &format!("ipc {kind}-has 4711")).refused();
    }
    let processes = |pod: TestPod<'_>| {
        let all = pod.demo("app", "ls /proc").ok();
        all.lines().filter(|line| line.parse::<u32>().is_ok()).count()
    };
    assert_eq!(processes(one), 2, "the container and what looks");
    assert_eq!(processes(two), 4, "the pause process, both containers and what looks");
}

#[test]
fn the_agent_warns_of_a_file_of_resolv_conf_from_which_pods_get_no_name_server() {
    let mut device = Device::new();
    // The files of pods are written after the warning.
    let good = "nameserver 192.0.2.53\n";
    let file = device.write_file("/resolv.conf", good);
    let path = file.display().to_string();
    device.agent_arguments(["--resolv-conf", &path]);
    device.start_agent_with_demo();
    device.run_pod_with("web", "sleep", "dnsPolicy: Default").wait_ready();
    let shown = |device: &Device| device.pod("web").demo("app", "cat /etc/resolv.conf").ok();
    assert_eq!(shown(&device), good);
    assert!(!device.agent_log().contains(&path), "{}", device.agent_log());
    let remove = || fs::remove_file(&file).or_else(|_| fs::remove_dir(&file)).expect("it is there");
    let warnings: [(&dyn Fn(), &str); 3] = [
        (&|| (), " does not exist: pods get no name servers from it until it does"),
        (&|| fs::create_dir(&file).expect("made"), ": it is not a regular file"),
        (
            &|| fs::write(&file, "search lan\nnameserver fe80::1%eth0\n").expect("written"),
            " names no name server that a pod can reach: add one",
        ),
    ];
    for (put, warning) in warnings {
        device.stop_agent();
        remove();
        put();
        let logged = device.agent_log().len();
        device.start_agent();
        device.wait_for(warning, || device.agent_log()[logged..].contains(&format!("{path}{warning}")));
        if !file.exists() {
            fs::write(&file, "").expect("written");
        }
    }
}
