//! `nodlet image`, with archives made by the harness: which are loaded, which are rejected, and that a store
//! never changes partly.

use std::fs;

use nodlet_tests::image::{ARCHITECTURE, Compression, Image};
use nodlet_tests::{Device, Ran, manifest};
use serde_json::json;

/// A pod of this image.
fn pod_of(name: &str, image: &str, steps: &str) -> String {
    manifest::with_image(&manifest::pod(name, steps), image)
}

#[test]
fn an_image_comes_through_a_pipe_lists_and_goes_but_not_while_it_is_used() {
    let mut device = Device::new();
    device.start_agent();
    let mut load = device.command(&["image", "load", "-"]);
    load.stdin(fs::File::open(nodlet_tests::demo_archive()).expect("it was written"));
    assert!(load.status().expect("nodlet can be run").success());
    let is_listed = || device.nodlet(["image", "ls"]).ok().contains("localhost/demo");
    let remove = || device.nodlet(["image", "rm", "localhost/demo:1"]);
    assert!(is_listed());
    device.run_pod("web", "sleep").wait_ready();
    remove().refused_with("in use");
    device.remove_pod("web");
    remove().ok();
    assert!(!is_listed());
    remove().refused_with("localhost/demo:1");
}

#[test]
fn the_removal_of_a_name_of_an_image_warns_of_the_pods_that_use_the_name() {
    let device = Device::start();
    for name in ["localhost/two:1", "localhost/two:2", "localhost/two:3"] {
        device.load(&Image::of_demo(name));
    }
    device.write_pod("web", &pod_of("web", "localhost/two:1", "sleep")).wait_ready();
    let unused = device.nodlet(["image", "rm", "localhost/two:2"]);
    assert_eq!((unused.stderr.as_str(), unused.code), ("", 0), "{unused:?}");
    let used = device.nodlet(["image", "rm", "localhost/two:1"]);
    assert!(used.stderr.starts_with("Warning: pod default/web uses this name: "), "{used:?}");
    assert_eq!(used.ok(), "image \"localhost/two:1\" untagged\n");
}

#[test]
fn image_load_warns_of_a_name_that_it_does_not_need_and_of_a_missing_one() {
    let device = Device::new();
    let nameless = device.path("/nameless.tar");
    Image::demo("", b"program").write_docker_archive(&nameless).expect("it can be written");
    let [named, nameless] = [nodlet_tests::demo_archive(), &nameless].map(|path| path.display().to_string());
    for (words, warning, printed) in [
        (
            &["image", "load", "--name", "own:1", &named][..],
            "Warning: --name docker.io/library/own:1 was not needed: the archive names its image itself\n",
            "image/localhost/demo:1 loaded\n",
        ),
        (
            &["image", "load", &nameless],
            "Warning: the archive names no image, and a pod refers to an image by its name: load it with --name NAME\n",
            "image/sha256:",
        ),
        (&["image", "load", "--name", "localhost/own:1", &nameless], "", "image/localhost/own:1 loaded\n"),
    ] {
        let ran = Ran::with_input(device.command(words), "");
        assert_eq!(ran.stderr, warning);
        assert!(ran.clone().ok().starts_with(printed), "{ran:?}");
    }
}

#[test]
fn the_configuration_of_the_image_is_honoured() {
    let device = Device::start();
    let image = Image::of_demo("localhost/configured:1")
        .config("User", json!("app"))
        .config("WorkingDir", json!("/made/for/it"))
        .config("Env", json!(["PATH=/bin", "FROM=image", "BOTH=image"]))
        .config("Cmd", json!(["id", "then", "cwd", "then", "env", "then", "sleep"]));
    device.load(&image);
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    image: localhost/configured:1\n    env: [{name: BOTH, value: pod}]\n";
    let log = device.write_pod("web", text).wait_log("app", "BOTH=pod").logs("app");
    for said in ["uid=1000 gid=1000 groups=1000,2000", "/made/for/it", "FROM=image"] {
        assert!(log.contains(said), "{said:?} in {log}");
    }
}

#[test]
fn later_layers_lie_over_earlier_ones() {
    let device = Device::start();
    for compression in [Compression::None, Compression::Gzip] {
        let image = Image::of_demo("localhost/layered:1")
            .directory("data", 0o755)
            .file("data/gone", 0o644, b"gone")
            .file("data/kept", 0o640, b"kept")
            .owned_by(1000, 2000)
            .directory("opaque", 0o755)
            .file("opaque/old", 0o644, b"old")
            .layer()
            .file("data/.wh.gone", 0o644, b"")
            .file("data/setuid", 0o4755, b"x")
            .hard_link("data/linked", "data/setuid")
            .symlink("data/link", "kept")
            .directory("opaque", 0o700)
            .file("opaque/.wh..wh..opq", 0o644, b"")
            .file("opaque/new", 0o644, b"new")
            .compression(compression);
        device.load(&image);
        let steps = "ls /data then ls /opaque then stat /data/kept then stat /data/setuid then stat /data/link then stat /opaque then print end then sleep";
        let pod = device.write_pod("layered", &pod_of("layered", "localhost/layered:1", steps));
        assert_eq!(
            pod.wait_log("app", "end\n").logs("app"),
            "kept\nlink\nlinked\nsetuid\nnew\nfile 0640 1000:2000 4\nfile 4755 0:0 1\nlink 0777 0:0 kept\ndir 0700 0:0\nend\n"
        );
        device.remove_pod("layered");
        device.nodlet(["image", "rm", "localhost/layered:1"]).ok();
    }
}

#[test]
fn a_layer_that_an_image_has_repeatedly_is_mounted_once_where_it_counts() {
    let device = Device::start();
    let data = |image: Image| image.layer().directory("data", 0o755).file("data/again", 0o644, b"again");
    let image = Image::of_demo("localhost/repeated:1");
    let between = data(image).layer().file("data/.wh.again", 0o644, b"").file("data/other", 0o644, b"other");
    // Docker and BuildKit add the same empty layer for each step that changes no file.
    device.load(&data(between).layer().layer());
    let text = pod_of("repeated", "localhost/repeated:1", "ls /data then print end then sleep");
    let log = device.write_pod("repeated", &text).wait_log("app", "end\n").logs("app");
    assert_eq!(log, "again\nother\nend\n");
}

#[test]
fn a_broken_hostile_or_foreign_archive_is_refused_and_the_store_stays_as_it_was() {
    let device = Device::start();
    let before = device.nodlet(["image", "ls"]).ok();
    let path = device.path("/broken.tar");
    let load = || device.nodlet(["image", "load", &path.display().to_string()]);
    // A new layer, because one that the store already has would not be read again.
    let image = Image::of_demo("localhost/broken:1").file("broken", 0o644, b"new");
    image.write_oci_archive(&path).expect("it can be written");
    let whole = fs::read(&path).expect("it can be read");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for (what, bytes) in [
        ("cut off", &whole[..whole.len() / 2]),
        ("with a flipped bit", flipped.as_slice()),
        ("empty", &[]),
        ("of something else", b"apiVersion: v1\n"),
    ] {
        fs::write(&path, bytes).expect("it can be written");
        let refused = load().refused();
        assert!(refused.contains("broken.tar"), "an archive {what} is named: {refused}");
        assert_eq!(device.nodlet(["image", "ls"]).ok(), before, "an archive {what}");
    }
    // Names that would leave the root.
    for name in ["../outside", "a/../../outside", "../../../../../../../../tmp/nodlet-outside"] {
        let image = Image::new("localhost/hostile:1").file(name, 0o644, b"out");
        image.write_docker_archive(&path).expect("it can be written");
        load().refused();
        assert!(!std::path::Path::new("/tmp/nodlet-outside").exists(), "{name}");
    }
    let image = Image::of_demo("localhost/foreign:1").architecture("s390x");
    image.write_oci_archive(&path).expect("it can be written");
    let refused = load().refused();
    assert!(refused.contains("s390x") && refused.contains(ARCHITECTURE), "{refused}");
    assert_eq!(device.nodlet(["image", "ls"]).ok(), before);
    device.nodlet(["image", "load", "--platform", "linux/s390x", &path.display().to_string()]).ok();
    fs::write(&path, &whole).expect("it can be written");
    device.load_image(&path);
}

/// The container ignores SIGTERM, and its grace period is 30 s; the image's stop signal SIGKILL ends it at
/// once.
#[test]
fn a_container_is_asked_to_end_by_the_signal_of_its_image() {
    let device = Device::start();
    device.load(&Image::of_demo("localhost/stops:1").config("StopSignal", json!("SIGKILL")));
    let text = pod_of("stops", "localhost/stops:1", "ignore-term then print up then sleep");
    device.write_pod("stops", &text).wait_log("app", "up");
    let begun = std::time::Instant::now();
    device.remove_pod("stops");
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it was killed when its grace was over");
}

#[test]
fn an_unused_image_is_removed_when_it_is_older_than_the_maximum_age() {
    let mut device = Device::new();
    device.agent_arguments(["--image-maximum-gc-age", "2s"]);
    device.start_agent();
    device.write_pod("web", &pod_of("web", "localhost/used:1", "wait /end"));
    // The pod is there before: on a slow machine, the image would be too old otherwise.
    device.load(&Image::of_demo("localhost/used:1").config("Env", json!(["A=used"])));
    device.pod("web").wait_ready();
    device.load(&Image::of_demo("localhost/unused:1").config("Env", json!(["A=unused"])));
    let is_there = |name: &str| device.nodlet(["image", "ls"]).ok().contains(name);
    // The agent logs a removal after the store has it.
    let why = "image localhost/unused:1: removed, since no pod uses it and it is older than the maximum age";
    device.wait_logged(why);
    assert!(!is_there("localhost/unused"));
    assert!(is_there("localhost/used"));
    // Its age counts from its last use.
    device.remove_manifest("web.yaml");
    device.wait_for("the removal of the other image", || !is_there("localhost/used"));
}

#[test]
fn volumes_of_an_image_stay_writable_in_a_read_only_root() {
    let device = Device::start();
    let volumes = json!({"/data": {}, "/var/made/for/it": {}, "/link": {}, "/proc/own": {}, "/mine/below": {}, "/": {}});
    let image = Image::of_demo("localhost/volumes:1")
        .directory("data", 0o700)
        .owned_by(1000, 1000)
        .file("data/seed", 0o600, b"of the image\n")
        .owned_by(1000, 1000)
        .directory("elsewhere", 0o755)
        .owned_by(1000, 1000)
        .symlink("link", "/elsewhere")
        .directory("mine/below", 0o755)
        .file("mine/below/hidden", 0o644, b"hidden\n")
        .config("Volumes", volumes);
    device.load(&image);
    let steps = "cat /data/seed then write /data/new x then append /data/seed more then write /elsewhere/new x \
                 then ls /mine then print up then sleep";
    let container = |steps: &str, user: u32, fields: &str| {
        let security = format!("securityContext: {{readOnlyRootFilesystem: true, runAsUser: {user}}}\n");
        let container = manifest::container("app", steps, &(security + fields));
        [manifest::with_image(&container, "localhost/volumes:1")]
    };
    for (name, user, spec) in [("own", 1000, ""), ("users", 1000, "hostUsers: false"), ("root", 0, "")] {
        let containers = container(steps, user, &manifest::mount("mine"));
        let pod = device.run_pod_of(name, &containers, &(manifest::empty_dir("mine") + spec));
        let app = || pod.container("app");
        device.wait_for("the end of its steps", || app().restart_count() > 0 || app().is_ready());
        assert_eq!(app().restart_count(), 0, "{}", device.nodlet(["logs", "-p", name]).stdout);
        let log = pod.wait_log("app", "up").logs("app");
        assert_eq!(log, "of the image\nup\n", "{name}: an emptyDir above hides the directory of the image");
        let files = || ["/data/seed", "/data/new"].map(|file| pod.demo("app", &format!("cat {file}")).ok());
        assert_eq!(files(), ["of the image\nmore\n", "x\n"], "{name}");
        for path in ["/new", "/var/new", "/mine-not"] {
            let refused = pod.demo("app", &format!("write {path} x"));
            assert!(refused.stderr.contains("Read-only file system"), "{name} {path}: {refused:?}");
        }
        if user == 0 {
            pod.demo("app", "write /var/made/for/it/new x").ok();
        }
        // It belongs to the run, as its writable layer does.
        let before = pod.container("app").id();
        device.nodlet(["restart", name]).ok();
        device.wait_for("another run", || pod.container("app").id() != before && pod.is_ready());
        pod.wait_log("app", "up");
        assert_eq!(files(), ["of the image\nmore\n", "x\n"], "{name}");
    }
    // What is written there counts as local storage of the container.
    let limit = "resources: {limits: {ephemeral-storage: 4Mi}}";
    let big = container("spam-file /data/big 6000000 then sleep", 0, limit);
    let big = device.run_pod_of("big", &big, "restartPolicy: Never").wait_phase("Failed");
    assert_eq!(big.status()["reason"], "Evicted");
}
