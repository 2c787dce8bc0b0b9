//! Each pod has a network of its own, and all of them can reach each other.

use std::fs;

use nodlet_tests::{Device, manifest};

#[test]
fn containers_of_a_pod_share_localhost_and_pods_reach_each_other_and_the_host_reaches_them() {
    let device = Device::start();
    device.write_manifest(
        "web.yaml",
        &manifest::pod_of(
            "web",
            &[manifest::container("app", "serve 8080 /srv", ""), manifest::container("beside", "sleep", "")],
            "",
        ),
    );
    device.write_manifest("client.yaml", &manifest::pod("client", "sleep"));
    let (web, client) = (device.pod("web"), device.pod("client"));
    web.wait_log("app", "serving");
    web.wait_ready();
    client.wait_ready();
    let page = "hello from the image\n";
    assert_eq!(web.exec("beside", ["/bin/demo", "get", "http://127.0.0.1:8080/"]).ok(), page);

    let address = web.ip();
    assert!(address.starts_with("10.213.") && address != client.ip(), "{address} and {}", client.ip());
    let url = format!("http://{address}:8080/");
    assert_eq!(client.exec("app", ["/bin/demo", "get", &url]).ok(), page);
    let from_here = std::process::Command::new(nodlet_tests::demo_program()).args(["get", &url]).output();
    assert_eq!(String::from_utf8_lossy(&from_here.expect("it can be run").stdout), page);
    client.exec("app", ["/bin/demo", "get", "http://127.0.0.1:8080/"]).refused();
}

#[test]
fn a_pod_range_in_use_on_the_machine_is_reported_at_start() {
    let one = Device::start();
    one.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    one.pod("web").wait_ready();
    let address = one.pod("web").ip();
    let range = format!("{}.0/24", address.rsplit_once('.').expect("an address has dots").0);
    let mut other = Device::new();
    other.agent_arguments(["--pod-cidr", &range]);
    other.start_agent();
    let reported = format!("use {range} for pods: the machine has the address ");
    assert!(other.agent_log().contains(&reported), "{}", other.agent_log());

    // A pod whose network cannot be created reports that itself, and leaves nothing behind.
    other.write_manifest("late.yaml", &manifest::pod("late", "sleep"));
    let late = other.pod("late");
    other.wait_for("the pod to say why it waits", || late.container("app").message().contains(&reported));
    assert_eq!(late.container("app").reason(), "ContainerCreating");
    let uid = late.uid();
    other.remove_manifest("late.yaml");
    late.wait_gone();
    assert!(!other.path(&format!("/run/nodlet/pods/{uid}")).exists());
    let left: Vec<_> =
        other.cgroups().into_iter().filter(|path| path.to_string_lossy().contains(&uid)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!one.agent_log().contains("for pods: the machine has"), "{}", one.agent_log());
}

#[test]
fn a_pod_knows_its_name_and_its_addresses() {
    let device = Device::start();
    device.write_manifest(
        "web.yaml",
        &manifest::pod_with("web", "sleep", "hostAliases: [{ip: 192.0.2.1, hostnames: [one, two]}]"),
    );
    let web = device.pod("web");
    web.wait_ready();
    assert_eq!(web.exec("app", ["/bin/demo", "hostname"]).ok(), "web\n");
    let hosts = web.exec("app", ["/bin/demo", "cat", "/etc/hosts"]).ok();
    assert!(hosts.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"), "{hosts}");
    assert!(hosts.contains(&format!("\n{}\tweb\n", web.ip())), "{hosts}");
    assert!(hosts.contains("# Entries added by HostAliases.\n192.0.2.1\tone\ttwo\n"), "{hosts}");
    web.exec("app", ["/bin/demo", "stat", "/etc/resolv.conf"]).ok();
    let environment = web.exec("app", ["/bin/demo", "env"]).ok();
    assert!(environment.contains("HOSTNAME=web\n"), "{environment}");
}

#[test]
fn a_pod_in_the_hosts_network_is_called_as_the_machine_whatever_the_node_is_called() {
    let mut device = Device::new();
    device.agent_arguments(["--node-name", "some-board"]);
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.write_manifest("host.yaml", &manifest::pod_with("host", "sleep", "hostNetwork: true"));
    let host = device.pod("host");
    host.wait_ready();
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("/proc is mounted");
    assert_eq!(host.exec("app", ["/bin/demo", "hostname"]).ok(), name);
    assert_eq!(host.exec("app", ["/bin/demo", "cat", "/etc/hostname"]).ok(), name);
    let environment = host.exec("app", ["/bin/demo", "env"]).ok();
    assert!(environment.contains(&format!("HOSTNAME={name}")), "{environment}");
}

#[test]
fn nameservers_of_the_machine_that_a_pod_cannot_reach_are_omitted_with_an_event() {
    let mut device = Device::new();
    let file = device.path("/machine.conf");
    std::fs::write(&file, "nameserver fe80::1%eth0\nnameserver 127.0.0.1\n").expect("it can be written");
    device.agent_arguments(["--resolv-conf", file.to_str().expect("the path is text")]);
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.write_manifest("own.yaml", &manifest::pod("own", "sleep"));
    device.write_manifest("host.yaml", &manifest::pod_with("host", "sleep", "hostNetwork: true"));
    let (own, host) = (device.pod("own"), device.pod("host"));
    own.wait_ready();
    host.wait_ready();
    let servers =
        |pod: &nodlet_tests::TestPod<'_>| pod.exec("app", ["/bin/demo", "cat", "/etc/resolv.conf"]).ok();
    assert_eq!(servers(&own), "");
    assert_eq!(servers(&host), "nameserver fe80::1%eth0\nnameserver 127.0.0.1\n");
    let omitted = "DNSConfigForming: Nameservers of the node that the pod cannot reach have been omitted: fe80::1%eth0 \
                   (link-local), 127.0.0.1 (loopback of the machine); ";
    let events = |pod: &nodlet_tests::TestPod<'_>| {
        let events = pod.events();
        events.into_iter().filter(|event| event.starts_with("DNSConfigForming")).collect::<Vec<_>>()
    };
    let advice = "no nameserver is left: name one in dnsConfig.nameservers of the pod, or in a file for nodlet agent \
                  --resolv-conf";
    assert_eq!(events(&own), [format!("{omitted}{advice}")]);
    assert!(events(&host).is_empty(), "{:?}", events(&host));

    // A change is followed, and reported once.
    std::fs::write(&file, "nameserver fe80::1%eth0\nnameserver 127.0.0.1\nnameserver 192.0.2.1\n")
        .expect("it can be written");
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
fn host_network_is_the_hosts_and_has_no_address_of_its_own() {
    let device = Device::start();
    device.write_manifest("host.yaml", &manifest::pod_with("host", "sleep", "hostNetwork: true"));
    device.write_manifest("own.yaml", &manifest::pod("own", "sleep"));
    let (host, own) = (device.pod("host"), device.pod("own"));
    host.wait_ready();
    own.wait_ready();
    let links = |text: String| {
        text.lines()
            .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim().to_owned()))
            .collect::<Vec<_>>()
    };
    let inside = links(host.exec("app", ["/bin/demo", "cat", "/proc/net/dev"]).ok());
    let here = links(std::fs::read_to_string("/proc/net/dev").expect("/proc is mounted"));
    for link in ["lo", "eth0"] {
        assert_eq!(inside.iter().any(|name| name == link), here.iter().any(|name| name == link), "{link}");
    }
    let alone = links(own.exec("app", ["/bin/demo", "cat", "/proc/net/dev"]).ok());
    assert_eq!(alone.len(), 2, "loopback and one link: {alone:?}");
}

#[test]
fn shared_memory_crosses_the_containers_of_a_pod_and_no_pods() {
    let device = Device::start();
    let pair = |name: &str| {
        manifest::pod_of(
            name,
            &[manifest::container("app", "sleep", ""), manifest::container("beside", "sleep", "")],
            "",
        )
    };
    device.write_manifest("one.yaml", &pair("one"));
    device.write_manifest("two.yaml", &pair("two"));
    let (one, two) = (device.pod("one"), device.pod("two"));
    one.wait_ready();
    two.wait_ready();
    for kind in ["sysv", "posix"] {
        one.exec("app", ["/bin/demo", "ipc", &format!("{kind}-make"), "4711"]).ok();
        one.exec("beside", ["/bin/demo", "ipc", &format!("{kind}-has"), "4711"]).ok();
        two.exec("app", ["/bin/demo", "ipc", &format!("{kind}-has"), "4711"]).refused();
    }
}

#[test]
fn processes_are_shared_only_when_the_pod_says_so() {
    let device = Device::start();
    let pair = |name: &str, spec: &str| {
        manifest::pod_of(
            name,
            &[manifest::container("app", "sleep", ""), manifest::container("beside", "sleep 9999", "")],
            spec,
        )
    };
    device.write_manifest("alone.yaml", &pair("alone", ""));
    device.write_manifest("shared.yaml", &pair("shared", "shareProcessNamespace: true"));
    let processes = |name: &str| {
        device.pod(name).wait_ready();
        let all = device.pod(name).exec("app", ["/bin/demo", "ls", "/proc"]).ok();
        all.lines().filter(|line| line.parse::<u32>().is_ok()).count()
    };
    assert_eq!(processes("alone"), 2, "the container and what looks");
    assert_eq!(processes("shared"), 4, "the pause process, both containers and what looks");
}

#[test]
fn the_hosts_processes_and_ipc_are_seen_when_the_pod_asks() {
    let device = Device::start();
    device.write_manifest("host.yaml", &manifest::pod_with("host", "sleep", "hostPID: true\nhostIPC: true"));
    let host = device.pod("host");
    host.wait_ready();
    let seen = host.exec("app", ["/bin/demo", "cat", &format!("/proc/{}/comm", std::process::id())]).ok();
    let here = std::fs::read_to_string("/proc/self/comm").expect("/proc is mounted");
    assert_eq!(seen, here);
}

#[test]
fn the_agent_warns_of_a_file_of_resolv_conf_from_which_pods_get_no_name_server() {
    let mut device = Device::new();
    let file = device.path("/resolv.conf");
    let path = file.to_str().expect("the path is text").to_owned();
    device.agent_arguments(["--resolv-conf", &path]);
    // The files of pods are written after the warning.
    let good = "nameserver 192.0.2.53\n";
    fs::write(&file, good).expect("written");
    device.start_agent();
    device.load_image(nodlet_tests::demo_archive());
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    let shown =
        |device: &Device| device.pod("web").exec("app", ["/bin/demo", "cat", "/etc/resolv.conf"]).ok();
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
