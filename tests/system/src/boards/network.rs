//! Tests the network and the clock of an emulated board. Pods run without either. Then the cable is plugged
//! in, unplugged and plugged in again, the clock is set by hand and by a time server, and the link is
//! replaced by another. A board without any link boots, and gets one later.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use nodlet_build::debian;
use nodlet_build::task::{Outcome, TaskError};
use nodlet_dist::image;
use nodlet_dist::profile::{Profile, Qemu};
use nodlet_tests::manifest;
use serde_json::json;

use super::monitor::{self, Monitor};
use super::{Board, PATIENCE, STARTED, build, prepare, text};

/// The offset of the test's time server from this machine's clock, so large that the two cannot be confused.
const AHEAD: Duration = Duration::from_secs(400 * 86_400);

/// The offset to which the board's clock is set by hand; the time server then sets it back.
const BY_HAND: Duration = Duration::from_secs(1000 * 86_400);

/// The addresses that the board's link derives from its hardware address: the link-local one, and the one
/// with the prefix that the router in QEMU's user network advertises.
const LINK_LOCAL: &str = "fe80::5054:ff:fe12:3456/64";
const AUTOCONFIGURED: &str = "fec0::5054:ff:fe12:3456/64";

/// The command that unbinds the network card's driver, and binds it again once the network service has
/// noticed: one link disappears, and another appears.
const REPLACE_LINK: &str = "card=$(busybox basename $(busybox readlink /sys/class/net/eth0/device)); \
                            cd /sys/bus/virtio/drivers/virtio_net && echo $card >unbind && \
                            while busybox grep -q eth0 /run/nodlet/network.json; do busybox usleep 100000; done; \
                            echo $card >bind";

/// The emulator's argument for the slot into which a card is plugged while the board runs: these machines
/// have no other slot that supports it.
const SLOT: [&str; 2] = ["-device", "pcie-root-port,id=later,chassis=1"];

/// Lets the pod request a page from this machine, which sees the board's address in place of the pod's.
fn reach_out(board: &mut Board) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let server = std::thread::spawn(move || -> io::Result<()> {
        let (mut client, _) = listener.accept()?;
        let (mut request, mut part) = (Vec::new(), [0; 4096]);
        // A connection that is closed before all of the request was read is reset.
        while !request.ends_with(b"\r\n\r\n") {
            match client.read(&mut part)? {
                0 => break,
                read => request.extend(&part[..read]),
            }
        }
        client.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nbeyond\n")
    });
    let get = format!("nodlet exec baked -- /bin/demo get http://10.0.2.2:{port}/");
    let begun = Instant::now();
    loop {
        let got = board.ssh(&get, "")?;
        if text(&got.stdout).contains("beyond") {
            break;
        }
        if begun.elapsed() > PATIENCE {
            return Err(board.failed(&format!("a pod reaches no other machine: {}", text(&got.stderr))));
        }
    }
    server.join().map_err(|_| "the server panicked")??;
    if board.console()?.contains("AddressTranslationFailed") {
        return Err(board.failed("the kernel translates no addresses"));
    }
    Ok(())
}

/// Boots a board without network and clock, which then gets both.
pub(super) fn try_out(profile: &Profile, qemu: &Qemu) -> Outcome {
    let (directory, key, mut contents) = prepare(profile, "network")?;
    let pod = directory.join("baked.yaml");
    // The pod's probe is due in an hour: setting the clock forward by years must not make it due earlier.
    let probe =
        "readinessProbe:\n  exec:\n    command: [/bin/demo, exit, \"0\"]\n  initialDelaySeconds: 3600\n";
    let container = manifest::container("app", "print baked then sleep", probe);
    fs::write(&pod, manifest::pod_of("baked", &[container], ""))?;
    contents.pods.push(pod);
    let time = TimeServer::begin()?;
    let profile = Profile {
        ntp: Some(vec![format!("10.0.2.2:{}", time.port)]),
        network: vec![toml::from_str("link = \"eth0\"\ndhcp = true\naccept-ra = true")?],
        ..profile.clone()
    };
    let image = build(&profile, &contents, &directory)?;

    // The processor stays stopped until the cable is unplugged.
    let mut arguments = ["-rtc", "base=1970-01-01", "-S"].map(str::to_owned).to_vec();
    arguments.extend(monitor::arguments(&directory));
    let mut board =
        Board::boot_with(qemu, profile.memory_mib, &image, &directory, &key, Some(super::LINK), &arguments)?;
    let mut monitor = Monitor::connect(&mut board)?;
    monitor.set_link(super::LINK, false)?;
    monitor.run("cont", json!({}))?;
    let begun = Instant::now();
    board.wait_for("pod that runs without network and clock", |board| {
        Ok(board.console()?.contains(STARTED))
    })?;
    let without = begun.elapsed();
    let console = board.console()?;
    if console.contains("carrier on") {
        return Err(board.failed("the cable is not out"));
    }

    // DHCP becomes available late.
    monitor.set_link(super::LINK, true)?;
    board.wait_for("address from the DHCP server", |board| {
        Ok(board.console()?.contains("eth0: 10.0.2.15/24"))
    })?;
    board.wait_for("answer over SSH", |board| Ok(board.ssh("true", "")?.status.success()))?;
    board.expect("cat /etc/resolv.conf | busybox tail -n 1", "", "nameserver 10.0.2.3\n")?;
    reach_out(&mut board)?;
    let status = board.json("cat /run/nodlet/network.json")?;
    if status["links"][0]["dhcp"]["state"] != "bound" || status["clock"]["synchronised"] != false {
        return Err(board.failed(&format!("/run/nodlet/network.json says {status}")));
    }
    board.wait_for("IPv6 addresses", |board| {
        let addresses = board.output("ip -6 address show dev eth0")?;
        Ok(addresses.contains(LINK_LOCAL) && addresses.contains(AUTOCONFIGURED))
    })?;

    // The clock is unset, and then set.
    // The clock begins with the date of the image's sources.
    let built = SystemTime::UNIX_EPOCH + Duration::from_secs(image::source_date()?);
    board.check_pod(built, "before the clock is set")?;
    let by_hand = SystemTime::now() + BY_HAND;
    let seconds = by_hand.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    board.expect(&format!("busybox date -u -s @{seconds} >/dev/null"), "", "")?;
    board.check_pod(by_hand, "after somebody set the clock")?;
    time.answers.store(true, Ordering::Relaxed);
    board.wait_for("clock that is set", |board| {
        Ok(board.json("cat /run/nodlet/network.json")?["clock"]["synchronised"] == true)
    })?;
    board.check_pod(SystemTime::now() + AHEAD, "after the clock was set")?;

    // The cable is unplugged and plugged in again.
    let changes = board.console()?.matches("carrier ").count();
    monitor.set_link(super::LINK, false)?;
    board.wait_for("loss of the carrier", |board| {
        Ok(board.console()?.matches("carrier ").count() > changes)
    })?;
    monitor.set_link(super::LINK, true)?;
    board.wait_for("answer over SSH after the cable was out", |board| {
        Ok(board.ssh("true", "")?.status.success())
    })?;

    board.ssh(&format!("busybox setsid sh -c '{REPLACE_LINK}' >/dev/null 2>&1 </dev/null &"), "")?;
    board.wait_for("answer over SSH through another link", |board| {
        Ok(board.console()?.contains("eth0: gone") && board.ssh("true", "")?.status.success())
    })?;
    let agent = board.console()?.matches("ended with").count();
    if agent > 0 {
        return Err(board.failed("a service ended"));
    }
    let network = board.kib("/proc/$(busybox pidof nodlet:network)/smaps_rollup", "Pss:")?;
    board.ssh("nodlet poweroff", "")?;
    board.wait_until_down("powering off")?;

    let mut arguments = SLOT.map(str::to_owned).to_vec();
    arguments.extend(monitor::arguments(&directory));
    let mut board = Board::boot_with(qemu, profile.memory_mib, &image, &directory, &key, None, &arguments)?;
    let mut monitor = Monitor::connect(&mut board)?;
    board
        .wait_for("pod that runs on a board without links", |board| Ok(board.console()?.contains(STARTED)))?;
    let plugged = if can_plug(&profile)? {
        format!(
            "a card that was plugged in was of use after {:.1?}",
            plug(&profile, &mut board, &mut monitor)?
        )
    } else {
        "its kernel notices no card that is plugged in".to_owned()
    };
    eprintln!(
        "{}: pods ran without network and clock, the first after {without:.1?}; address and clock came later, and \
         the cable was out; the service takes {network} KiB; {plugged}",
        profile.name
    );
    Ok(())
}

/// Whether the board's kernel supports plugging cards while it runs.
fn can_plug(profile: &Profile) -> Result<bool, TaskError> {
    let boot = debian::package(&profile.kernel, &profile.debian)?.join("boot");
    let config = fs::read_to_string(debian::only(&boot, "config-")?)?;
    Ok(config.lines().any(|line| line == "CONFIG_HOTPLUG_PCI_PCIE=y"))
}

/// Plugs a network card into a board that has none. Returns how long it took until the board responded.
fn plug(profile: &Profile, board: &mut Board, monitor: &mut Monitor) -> Result<Duration, TaskError> {
    let forwarded = format!("tcp:127.0.0.1:{}-:22", board.port);
    monitor.run("netdev_add", json!({"type": "user", "id": "later", "hostfwd": [{"str": forwarded}]}))?;
    let plugged = Instant::now();
    monitor.run(
        "device_add",
        json!({"driver": "virtio-net-pci", "netdev": "later", "bus": "later", "mac": "52:54:00:12:34:56"}),
    )?;
    board.wait_for("answer over SSH through a card that was plugged in", |board| {
        Ok(board.ssh("true", "")?.status.success())
    })?;
    let took = plugged.elapsed();
    // Without a card at boot and without a serial number, nothing distinguishes the board from others.
    board.expect("cat /proc/sys/kernel/hostname", "", &format!("{}\n", profile.name.replace('_', "-")))?;
    Ok(took)
}

impl Board {
    /// Requires that the image's pod started some minutes before `now` by the board's clock, never restarted,
    /// and had no probe due.
    fn check_pod(&self, now: SystemTime, when: &str) -> Outcome {
        let pod = self.json("nodlet get pod baked -o json")?;
        let seconds =
            |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let status = &pod["status"]["containerStatuses"][0];
        let board = self.date()?;
        let started = pod["status"]["startTime"].as_str().unwrap_or_default();
        let began = run_output(std::process::Command::new("date").args(["-u", "+%s", "-d", started]))?;
        let began: u64 = began
            .trim()
            .parse()
            .map_err(|_| self.failed(&format!("{when} the pod has the start time {started:?}")))?;
        let table = self.output("nodlet get pods")?;
        let age = table
            .lines()
            .nth(1)
            .and_then(|line| line.split_whitespace().last())
            .unwrap_or_default()
            .to_owned();
        let patience = PATIENCE.as_secs() * 4;
        let is_right = status["restartCount"] == 0
            && status["ready"] == false
            && began <= board
            && board - began < patience
            && age.ends_with(['s', 'm'])
            && !age.contains(['h', 'd'])
            && board.abs_diff(seconds(now)) < patience;
        if is_right {
            return Ok(());
        }
        Err(self.failed(&format!(
            "{when} the board's clock is at {board}, not near {}; the pod began at {began} and is {age} old: {}",
            seconds(now),
            pod["status"]
        )))
    }
}

fn run_output(command: &mut std::process::Command) -> Result<String, TaskError> {
    Ok(text(&command.output()?.stdout))
}

/// A time server that stays silent until it may respond.
struct TimeServer {
    port: u16,
    answers: Arc<AtomicBool>,
}

impl TimeServer {
    fn begin() -> Result<TimeServer, TaskError> {
        // QEMU's user network has this machine's loopback address at 10.0.2.2.
        let socket = UdpSocket::bind(("127.0.0.1", 0))?;
        let server = TimeServer { port: socket.local_addr()?.port(), answers: Arc::default() };
        let answers = server.answers.clone();
        std::thread::spawn(move || {
            let mut request = [0; 48];
            while let Ok((length, from)) = socket.recv_from(&mut request) {
                if length == 48 && answers.load(Ordering::Relaxed) {
                    let _ = socket.send_to(&answer(&request), from);
                }
            }
        });
        Ok(server)
    }
}

/// The response of a server with a clock of its own.
fn answer(request: &[u8; 48]) -> [u8; 48] {
    let now = (SystemTime::now() + AHEAD).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = (now.as_secs() + 2_208_988_800) as u32;
    let fraction = ((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000) as u32;
    let mut bytes = [0; 48];
    bytes[..4].copy_from_slice(&[0x24, 1, 6, 0xec]);
    bytes[24..32].copy_from_slice(&request[40..]);
    for place in [32, 40] {
        bytes[place..place + 4].copy_from_slice(&seconds.to_be_bytes());
        bytes[place + 4..place + 8].copy_from_slice(&fraction.to_be_bytes());
    }
    bytes
}
