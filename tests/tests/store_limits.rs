//! Limits that a board's profile sets, for the image store, pods, events and clients.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nodlet_tests::image::{Compression, Image};
use nodlet_tests::{Device, demo_program, manifest};

/// An image with this name, and with a file of `kib` KiB that no other image has.
fn image(name: &str, kib: usize) -> Image {
    let program = fs::read(demo_program()).expect("the demo program is built");
    let mut seed = name.bytes().fold(1_u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let bytes: Vec<u8> = (0..kib * 1024)
        .map(|_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        })
        .collect();
    let image = Image::demo(name, &program).compression(Compression::None);
    image.layer().directory("data", 0o755).file("data/own", 0o644, &bytes)
}

/// The size of all loaded layers in bytes.
fn layers(device: &Device) -> u64 {
    let layers = fs::read_dir(device.path("/var/lib/nodlet/images/layers"));
    let sizes = layers.into_iter().flatten().flatten().filter_map(|layer| layer.metadata().ok());
    sizes.map(|layer| layer.len()).sum()
}

fn limit(device: &Device, bytes: u64) {
    fs::create_dir_all(device.path("/etc/nodlet")).expect("the root can be written to");
    fs::write(device.path("/etc/nodlet/image-store-limit"), format!("{bytes}\n"))
        .expect("the root can be written to");
}

fn pod(name: &str, image: &str) -> String {
    manifest::pod(name, "sleep").replace("localhost/demo:1", image)
}

#[test]
fn an_image_beyond_the_store_limit_is_rejected_and_changes_nothing() {
    let mut device = Device::new();
    device.start_agent();
    device.load(&image("localhost/a:1", 512));
    let used = layers(&device);
    limit(&device, used + 256 * 1024);
    let path = device.path("/big.tar");
    image("localhost/b:1", 512).write_oci_archive(&path).expect("there is room");
    let refusal = device.nodlet(["image", "load", &path.display().to_string()]).refused();
    assert!(refusal.contains("bytes are needed and its limit leaves"), "{refusal}");
    assert!(refusal.contains("remove images with nodlet image rm"), "{refusal}");
    let listed = device.nodlet(["image", "ls"]).ok();
    assert!(listed.contains("localhost/a") && !listed.contains("localhost/b"), "{listed}");
    assert_eq!(layers(&device), used);

    fs::write(device.path("/etc/nodlet/image-store-limit"), "plenty").expect("the root can be written to");
    device
        .nodlet(["image", "load", &path.display().to_string()])
        .refused_with("image-store-limit: must be a quantity of bytes, as 64Mi");

    limit(&device, used + 1024 * 1024);
    device.load_image(&path);
    device.write_pod("b", &pod("b", "localhost/b:1")).wait_ready();
}

#[test]
fn images_that_no_pod_uses_go_when_the_store_fills_up_the_least_recently_used_first() {
    let mut device = Device::new();
    // A disk that contains only what is loaded, whatever the machine's own disk contains.
    let _mount = device.mount_tmpfs("/var/lib/nodlet", "size=256m");
    device.agent_arguments([
        "--image-gc-high-threshold",
        "90",
        "--image-gc-low-threshold",
        "86",
        "--minimum-image-ttl-duration",
        "0s",
    ]);
    device.start_agent();
    device.load(&image("localhost/used:1", 512));
    device.write_pod("used", &pod("used", "localhost/used:1")).wait_ready();
    // As large as that image, in addition to the program's layer, which all images share.
    let kib = usize::try_from(layers(&device) / 1024).expect("it is small");
    device.load(&image("localhost/old:1", kib));
    device.load(&image("localhost/new:1", kib));
    // Below the threshold no image is removed.
    let full = layers(&device);
    limit(&device, full * 10 / 7);
    device.write_pod("other", &pod("other", "localhost/new:1")).wait_ready();
    assert!(device.nodlet(["image", "ls"]).ok().contains("localhost/old"));
    device.remove_pod("other");

    // One more image makes it 98 percent, and without the image that was never used it is 75.
    device.load(&image("localhost/more:1", kib * 6 / 5));
    let has = |name: &str| device.nodlet(["image", "ls"]).ok().contains(&format!("localhost/{name}:1"));
    device.wait_for("the image that was never used to go", || !has("old"));
    assert!(has("new") && has("more"), "{}", device.agent_log());
    assert!(has("used"), "{}", device.agent_log());
    assert!(device.agent_log().contains("localhost/old:1: removed, since no pod uses it"));
    device.pod("used").wait_ready();
    device.nodlet(["down"]).ok();
}

#[test]
fn an_image_that_no_pod_uses_yet_stays_for_the_time_that_it_is_given() {
    let mut device = Device::new();
    let _mount = device.mount_tmpfs("/var/lib/nodlet", "size=256m");
    device.agent_arguments(["--image-gc-high-threshold", "1", "--minimum-image-ttl-duration", "20s"]);
    device.start_agent();
    limit(&device, 16 * 1024 * 1024);
    device.load(&image("localhost/soon:1", 512));
    // Without the pod the image would be removed: the threshold is one percent.
    device.write_pod("soon", &pod("soon", "localhost/soon:1")).wait_ready();
    device.load(&image("localhost/never:1", 512));
    let has = |name: &str| device.nodlet(["image", "ls"]).ok().contains(&format!("localhost/{name}:1"));
    assert!(has("never"));
    device.wait_within(Duration::from_secs(120), "the image that no pod uses to go", || !has("never"));
    assert!(has("soon"));
    device.nodlet(["down"]).ok();
}

#[test]
fn flags_limit_the_numbers_of_pods_events_and_clients() {
    let device = Device::start_with(["--max-pods", "2", "--max-events", "6", "--max-connections", "5"]);
    for name in ["a", "b"] {
        device.run_pod(name, "sleep").wait_ready();
    }
    device.run_pod("c", "sleep").wait_phase("Failed");
    let status = device.get("/api/v1/namespaces/default/pods/c").expect("it is listed");
    assert_eq!(status["status"]["reason"], "OutOfpods", "{status}");
    let nodes = device.get("/api/v1/nodes").expect("there is one");
    assert_eq!(nodes["items"][0]["status"]["allocatable"]["pods"], "2");
    let events = device.get("/api/v1/events").expect("they are listed");
    assert_eq!(events["items"].as_array().map(Vec::len), Some(6), "{events}");

    // Four of five clients may stay; one of them is the test's own, which follows the events.
    let watch = || {
        let mut client = UnixStream::connect(device.socket()).expect("it listens");
        client.write_all(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: a\r\n\r\n").expect("it is read");
        let mut answer = [0; 12];
        client.read_exact(&mut answer).expect("it answers");
        (client, String::from_utf8_lossy(&answer).into_owned())
    };
    let staying: Vec<_> = (0..3).map(|_| watch()).collect();
    assert!(staying.iter().all(|(_, answer)| answer == "HTTP/1.1 200"));
    let (_refused, answer) = watch();
    assert_eq!(answer, "HTTP/1.1 429");
}
