//! Firewalls of others beside nodlet's table: ufw, firewalld and Docker. Their rulesets in `firewalls/` are those that
//! the real programs loaded into an empty network namespace, with their default settings. In the guest `firewalls` the
//! real ufw and firewalld run, with IPv4 and IPv6, and the real Docker with a container. nodlet changes none of their
//! tables, and pods work with the rules of `docs/firewalls.md`.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nodlet_tests::image::Image;
use nodlet_tests::{Background, Device, Namespace, Ran, manifest};

/// The board's address on the link to the world.
const BOARD: &str = "192.0.2.2";
/// A machine on the board's link.
const NEIGHBOUR: &str = "192.0.2.1";
/// The board's address of IPv6, and that of the machine on its link.
const BOARD_6: &str = "2001:db8::2";
const NEIGHBOUR_6: &str = "2001:db8::1";
const PAGE: &str = "hello from the image\n";
/// The time after which a packet counts as dropped.
const DROPPED: Duration = Duration::from_secs(3);

/// The commands for a firewall in the documentation.
fn documented(heading: &str) -> Vec<&'static str> {
    let text = include_str!("../../docs/firewalls.md");
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).expect("a section");
    let (_, block) = section.split_once("```sh\n").expect("a block of commands");
    block.split_once("```").expect("its end").0.lines().collect()
}

/// A board with a firewall, and the world.
struct Board {
    device: Device,
    board: Namespace,
    world: Namespace,
    /// The addresses of the machine on its link and of the board, of each family.
    families: &'static [(&'static str, &'static str)],
}

impl Board {
    fn new() -> Board {
        let mut device = Device::new();
        let (board, world) = (device.own_network(), Namespace::new());
        board.connect("eth0", &world, "lan0");
        board.ip(&format!("address add {BOARD}/24 dev eth0"));
        world.ip(&format!("address add {NEIGHBOUR}/24 dev lan0"));
        board.ip(&format!("route add default via {NEIGHBOUR}"));
        Board { device, board, world, families: &[(NEIGHBOUR, BOARD)] }
    }

    /// A board whose pods have IPv6 addresses, too.
    fn with_ipv6() -> Board {
        let mut board = Board::new();
        board.board.ip(&format!("address add {BOARD_6}/64 dev eth0 nodad"));
        board.world.ip(&format!("address add {NEIGHBOUR_6}/64 dev lan0 nodad"));
        board.board.ip(&format!("route add default via {NEIGHBOUR_6}"));
        board.device.agent_arguments(["--pod-cidr", "10.85.3.0/24,fd00:10:85::/64"]);
        // Kernels before Linux 6.17 do not forward IPv6 for single links.
        let forwarding = "/proc/sys/net/ipv6/conf/all/forwarding";
        board.board.call(move || std::fs::write(forwarding, "1").expect("a setting"));
        board.families = &[(NEIGHBOUR, BOARD), (NEIGHBOUR_6, BOARD_6)];
        board
    }

    fn command(&self, line: &str) -> Command {
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words);
        if nodlet_tests::guest::is_guest() {
            command.env("PATH", "/usr/sbin:/usr/bin");
        }
        self.board.give_to(&mut command);
        command
    }

    /// Runs a program in the network of the board, with this input. Returns what it prints.
    #[track_caller]
    fn run(&self, line: &str, input: &str) -> String {
        Ran::with_input(self.command(line), input).ok()
    }

    /// All tables but nodlet's, without counters. Handles show rules that somebody replaced by the same.
    fn foreign(&self) -> String {
        let ruleset = self.run("nft --stateless --handle list ruleset", "");
        let tables = ruleset.split_inclusive("\n}\n").filter(|table| !table.contains("table inet nodlet-"));
        tables.collect()
    }

    /// Starts the agent and a pod that is a client.
    fn start_client(&mut self) {
        self.device.start_agent_with_demo();
        self.device.run_pod("client", "sleep").wait_ready();
    }

    /// Starts the agent, a pod that is a client, and one that serves a `hostPort`.
    fn start_pods(&mut self) {
        self.start_client();
        let ports = "ports: [{containerPort: 8080, hostPort: 80}]";
        let web = manifest::container("app", "serve 8080 /srv", ports);
        self.device.run_pod_of("web", &[web], "").wait_log("app", "serving");
    }

    /// Whether pods reach other machines, and other machines the `hostPort`: for each family.
    fn works(&self) -> Vec<Works> {
        let works = |&(neighbour, board): &(&str, &str)| {
            let seen = self.seen_by(neighbour);
            assert!(seen.as_deref().is_none_or(|seen| seen == board), "{seen:?}");
            (seen.is_some(), self.host_port_at(board))
        };
        self.families.iter().map(works).collect()
    }

    /// Whether the world reaches the `hostPort`.
    fn host_port_at(&self, board: &str) -> bool {
        let address = SocketAddr::new(board.parse().expect("an address"), 80);
        let connected = self.world.call(move || TcpStream::connect_timeout(&address, DROPPED).is_ok());
        connected && self.world.demo(&format!("get http://{address}/")).as_deref() == Ok(PAGE)
    }

    /// The address under which a pod reaches the world, if it does.
    fn seen_by(&self, neighbour: &str) -> Option<String> {
        let address = SocketAddr::new(neighbour.parse::<IpAddr>().expect("an address"), 81);
        let socket = self.world.call(move || UdpSocket::bind(address).expect("a free port"));
        socket.set_read_timeout(Some(DROPPED)).expect("a time");
        // A rejected packet is an error of the one that sends it.
        let _ = self.device.pod("client").demo("app", &format!("send {address} here"));
        socket.recv_from(&mut [0; 8]).ok().map(|(_, from)| from.ip().to_string())
    }

    fn warnings(&self) -> String {
        let log = self.device.agent_log();
        // Those about packets to the board itself are another kind.
        let lines =
            log.lines().filter(|line| line.contains("FirewallDropsPackets") && line.contains("forwarded"));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Whether pods reach each other by their bridge.
    fn pods_reach_each_other(&self) -> bool {
        let url = format!("http://{}:8080/", self.device.pod("web").ip());
        self.device.pod("client").demo("app", &format!("get {url}")).ok() == PAGE
    }

    /// Whether a pod that starts now resolves names of the board.
    fn resolves(&self) -> bool {
        let late = self.device.run_pod("late", "sleep").wait_ready();
        let address = self.device.pod("web").ip();
        let name = format!("{}.default.pod.cluster.local", address.replace('.', "-"));
        late.demo("app", &format!("resolve {name}")).ok() == format!("{address}\n")
    }

    /// Ends nodlet, which leaves nothing of its own, and these tables of others.
    fn down(&self, foreign: &str) {
        self.device.nodlet(["down"]).ok();
        assert_eq!(self.board.tables().iter().filter(|name| name.starts_with("nodlet-")).count(), 0);
        assert_eq!(self.foreign(), foreign);
    }
}

/// Checks beside a firewall: pods reach other machines, and `hostPort` works.
type Works = (bool, bool);

/// Starts pods beside the firewall of a board, and tests what works before and after `allow`, and that the tables of
/// the firewall stay as they are.
fn beside(board: &mut Board, chains: &str, before: Works, allow: impl Fn(&Board)) {
    let loaded = board.foreign();
    assert!(loaded.lines().count() > 20, "{loaded}");
    board.start_pods();
    assert_eq!(board.foreign(), loaded);
    assert_eq!(board.works(), vec![before; board.families.len()]);
    for address in board.families.iter().map(|family| family.1).chain(["127.0.0.1"]) {
        let address = SocketAddr::new(address.parse().expect("an address"), 80);
        let got = board.board.demo(&format!("get http://{address}/"));
        assert_eq!(got.as_deref(), Ok(PAGE), "{address} on the board itself");
    }
    let expected = format!("no rule accepts ({chains}), and no rule names nl");
    assert!(board.warnings().contains(&expected), "{}", board.warnings());
    assert_eq!(board.warnings().lines().count(), 1, "{}", board.device.agent_log());
    let events = board.device.get("/api/v1/events").expect("the API lists events").to_string();
    assert!(events.contains("FirewallDropsPackets"), "{events}");
    // Pods do not ask a name server that no query of theirs reaches. Docker alone lets them.
    let drops_input = !loaded.contains("DOCKER-USER");
    let resolver = board.device.pod("client").demo("app", "cat /etc/resolv.conf").ok();
    assert_ne!(resolver.contains("svc.cluster.local"), events.contains("NameServerFailed"), "{resolver}");
    assert_eq!(events.contains("NameServerFailed"), drops_input, "{events}");
    assert_eq!(board.foreign(), loaded);

    allow(board);
    let allowed = board.foreign();
    assert_ne!(allowed, loaded);
    assert_eq!(board.works(), vec![(true, true); board.families.len()]);
    assert!(board.pods_reach_each_other());
    assert!(board.resolves());
    // Another agent has nothing to warn of.
    board.device.restart_agent();
    board.device.pod("client").wait_ready();
    assert_eq!(board.works(), vec![(true, true); board.families.len()]);
    assert_eq!(board.warnings().lines().count(), 1, "{}", board.warnings());
    board.down(&allowed);
}

/// Runs the documented commands for Docker with `iptables-nft`, and with `ip6tables-nft` if pods have IPv6.
fn allow_beside_docker(board: &Board) {
    for program in ["iptables-nft", "ip6tables-nft"].iter().take(board.families.len()) {
        for line in documented("Docker") {
            board.run(&line.replacen("iptables", program, 1), "");
        }
    }
}

#[test]
fn beside_ufw_pods_need_two_rules_for_routed_packets_and_one_for_names() {
    let mut board = Board::new();
    board.run("iptables-nft-restore", include_str!("firewalls/ufw.rules"));
    beside(&mut board, "ip filter FORWARD", (false, false), |board| {
        for line in documented("ufw") {
            // What the real ufw makes of these commands.
            let rules = match line {
                "ufw allow in on nl+ to any port 53" => {
                    &["input -i nl+ -p tcp --dport 53", "input -i nl+ -p udp --dport 53"][..]
                }
                "ufw route allow in on nl+" => &["forward -i nl+"],
                "ufw route allow out on nl+" => &["forward -o nl+"],
                other => panic!("{other}"),
            };
            for rule in rules {
                board.run(&format!("iptables-nft -A ufw-user-{rule} -j ACCEPT"), "");
            }
        }
    });
}

#[test]
fn beside_firewalld_host_ports_work_and_pods_need_a_trusted_zone() {
    let mut board = Board::new();
    board.run("nft --file -", include_str!("firewalls/firewalld.nft"));
    beside(&mut board, "inet firewalld filter_FORWARD", (false, true), |board| {
        let lines = documented("firewalld");
        assert_eq!(lines[0], "firewall-cmd --permanent --zone=trusted --add-interface=nl+");
        // What the real firewalld makes of this command, without chains that have no rule.
        let rules = "add chain inet firewalld filter_FWD_trusted\n\
                     add rule inet firewalld filter_FWD_trusted accept\n\
                     insert rule inet firewalld filter_FORWARD_ZONES iifname \"nl*\" goto filter_FWD_trusted\n\
                     add chain inet firewalld filter_IN_trusted\n\
                     add rule inet firewalld filter_IN_trusted accept\n\
                     insert rule inet firewalld filter_INPUT_ZONES iifname \"nl*\" goto filter_IN_trusted\n";
        board.run("nft --file -", rules);
    });
}

#[test]
fn beside_docker_pods_need_two_rules_of_its_chain_for_users() {
    let mut board = Board::new();
    board.run("iptables-nft-restore", include_str!("firewalls/docker.rules"));
    beside(&mut board, "ip filter FORWARD", (false, false), allow_beside_docker);
}

#[test]
fn beside_docker_with_ipv6_pods_need_its_rules_for_both_families() {
    let mut board = Board::with_ipv6();
    board.run("iptables-nft-restore", include_str!("firewalls/docker.rules"));
    board.run("ip6tables-nft-restore", include_str!("firewalls/docker6.rules"));
    beside(&mut board, "ip filter FORWARD, ip6 filter FORWARD", (false, false), allow_beside_docker);
}

#[test]
fn a_firewall_that_starts_after_the_pods_is_reported_once_and_changes_nothing_of_the_table() {
    let mut board = Board::new();
    board.start_pods();
    assert_eq!(board.works(), [(true, true)]);
    assert_eq!(board.warnings(), "");
    // Docker switches this on.
    board.board.call(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a setting"));
    board.run("iptables-nft-restore", include_str!("firewalls/docker.rules"));
    board.device.wait_for("the warning", || !board.warnings().is_empty());
    assert!(!board.host_port_at(BOARD));
    board.run("iptables-nft-restore", include_str!("firewalls/docker.rules"));
    allow_beside_docker(&board);
    board.device.wait_for("the hostPort", || board.works() == [(true, true)]);
    assert_eq!(board.warnings().lines().count(), 1, "{}", board.warnings());
    assert!(!board.device.agent_log().contains("FirewallTable"), "{}", board.device.agent_log());
}

#[test]
fn a_comment_does_not_silence_the_warning_which_also_comes_without_masquerade() {
    for argument in [None, Some("--masquerade=false")] {
        let mut board = Board::new();
        if let Some(argument) = argument {
            board.device.agent_arguments([argument]);
        }
        let rule = "iifname \"eth9\" accept comment \"nl links are trusted\"";
        board.run("nft --file -", &dropping("inet", rule));
        board.start_client();
        board.device.wait_for("the warning", || board.warnings().contains("(inet own forward)"));
    }
}

/// A table that drops what is forwarded, but for this rule.
fn dropping(family: &str, rule: &str) -> String {
    let chain = "type filter hook forward priority 0; policy drop;";
    format!("table {family} own {{\n chain forward {{\n {chain}\n{rule}\n }}\n}}\n")
}

#[test]
fn a_firewall_with_an_exception_for_ipv4_alone_is_reported_if_pods_have_ipv6() {
    let mut board = Board::with_ipv6();
    let allows = "iifname \"nl*\" accept\noifname \"nl*\" accept";
    board.run("nft --file -", &(dropping("ip", allows) + &dropping("ip6", "")));
    board.start_client();
    board.device.wait_for("the warning", || board.warnings().contains("no rule accepts (ip6 own forward)"));
}

/// Tests what works beside a firewall that runs, before and after the documented commands.
fn beside_real(board: &mut Board, heading: &str, chains: &str, before: Works) {
    assert!(board.foreign().lines().count() > 100, "{}", board.foreign());
    beside(board, chains, before, |board| {
        for line in documented(heading) {
            board.run(line, "");
        }
    });
}

#[test]
#[ignore = "needs ufw: cargo xtask guest firewalls"]
fn beside_the_real_ufw_pods_need_the_documented_rules_and_its_tables_stay() {
    let mut board = Board::with_ipv6();
    board.run("ufw allow 22/tcp", "");
    board.run("ufw --force enable", "");
    beside_real(&mut board, "ufw", "ip filter FORWARD, ip6 filter FORWARD", (false, false));
    board.run("ufw disable", "");
}

#[test]
#[ignore = "needs firewalld: cargo xtask guest firewalls"]
fn beside_the_real_firewalld_host_ports_work_and_its_table_stays() {
    let mut board = Board::with_ipv6();
    std::fs::create_dir_all("/run/dbus").expect("a directory");
    let _bus = Background::start(board.command("dbus-daemon --system --nofork"));
    board.device.wait_for("the bus", || std::fs::exists("/run/dbus/system_bus_socket").unwrap_or(false));
    let _firewalld = Background::start(board.command("firewalld --nofork --nopid"));
    board.device.wait_for("firewalld", || {
        let state = board.command("firewall-cmd --state").output().expect("it is installed");
        state.status.success()
    });
    beside_real(&mut board, "firewalld", "inet firewalld filter_FORWARD", (false, true));
}

/// Docker's daemon, with directories of its own.
fn dockerd(board: &Board) -> Background {
    let arguments = "--data-root /tmp/docker --storage-driver vfs --exec-opt native.cgroupdriver=cgroupfs";
    let log = std::fs::File::options().create(true).append(true).open("/tmp/dockerd.log").expect("a file");
    let mut command = board.command(&format!("dockerd {arguments}"));
    command.stderr(log);
    let daemon = Background::start(command);
    let is_up = || board.command("docker info").output().expect("it is installed").status.success();
    let until = std::time::Instant::now() + Duration::from_secs(300);
    while !is_up() {
        let log = std::fs::read_to_string("/tmp/dockerd.log").expect("it is text");
        assert!(std::time::Instant::now() < until, "dockerd does not answer: {log}");
        std::thread::sleep(Duration::from_secs(1));
    }
    daemon
}

#[test]
#[ignore = "needs Docker: cargo xtask guest firewalls"]
fn beside_the_real_docker_its_published_port_and_a_host_port_are_both_reached() {
    let mut board = Board::new();
    let daemon = dockerd(&board);
    let page = "hello from Docker\n";
    Image::of_demo("demo:1")
        .directory("page", 0o755)
        .file("page/index.html", 0o644, page.as_bytes())
        .write_docker_archive(Path::new("/tmp/demo.tar"))
        .expect("/tmp has room");
    board.run("docker load --input /tmp/demo.tar", "");
    board.run(
        "docker run --detach --name web --restart always --publish 8081:8080 demo:1 serve 8080 /page",
        "",
    );
    let published = |board: &Board| board.world.demo(&format!("get http://{BOARD}:8081/"));
    board.device.wait_for("the port that Docker publishes", || published(&board).as_deref() == Ok(page));

    let loaded = board.foreign();
    assert!(loaded.contains("chain DOCKER-USER"), "{loaded}");
    board.start_pods();
    assert_eq!(board.foreign(), loaded);
    assert_eq!(board.works(), [(false, false)]);
    assert_eq!(published(&board).as_deref(), Ok(page), "beside the table of nodlet");
    assert!(board.warnings().contains("no rule accepts (ip filter FORWARD)"), "{}", board.warnings());
    for line in documented("Docker") {
        board.run(line, "");
    }
    let assert_works = |board: &Board| {
        assert_eq!(board.works(), [(true, true)]);
        assert!(board.pods_reach_each_other());
        assert_eq!(published(board).as_deref(), Ok(page));
    };
    assert_works(&board);

    // Docker takes the container's rules away and makes them again.
    board.run("docker restart --time 1 web", "");
    board.device.wait_for("the port again", || published(&board).as_deref() == Ok(page));
    assert_works(&board);
    // So does its daemon with all of its chains.
    drop(daemon);
    let _daemon = dockerd(&board);
    board.device.wait_for("the port again", || published(&board).as_deref() == Ok(page));
    assert_works(&board);
    assert!(!board.device.agent_log().contains("FirewallTable"), "{}", board.device.agent_log());

    board.down(&board.foreign());
    assert_eq!(published(&board).as_deref(), Ok(page), "after nodlet is down");
    board.run("docker rm --force web", "");
}
