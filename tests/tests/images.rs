//! `nodlet image`, with archives made by the harness: which are loaded, which are rejected, and that a store
//! never changes partly.

use std::fs;

use nodlet_tests::image::{ARCHITECTURE, Compression, Image};
use nodlet_tests::{Device, demo_program, manifest};
use serde_json::json;

#[test]
fn an_image_loads_lists_and_goes_but_not_while_it_is_used() {
    let device = Device::start();
    assert!(device.nodlet(["image", "ls"]).ok().contains("localhost/demo"));
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
    let used = device.nodlet(["image", "rm", "localhost/demo:1"]).refused();
    assert!(used.contains("in use"), "{used}");
    device.remove_manifest("web.yaml");
    device.pod("web").wait_gone();
    device.nodlet(["image", "rm", "localhost/demo:1"]).ok();
    assert!(!device.nodlet(["image", "ls"]).ok().contains("localhost/demo"));
    let absent = device.nodlet(["image", "rm", "localhost/demo:1"]).refused();
    assert!(absent.contains("localhost/demo:1"), "{absent}");
}

#[test]
fn the_removal_of_a_name_of_an_image_warns_of_the_pods_that_use_the_name() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    for name in ["localhost/two:1", "localhost/two:2", "localhost/two:3"] {
        device.load(&Image::demo(name, &program));
    }
    device.write_manifest(
        "web.yaml",
        &manifest::pod("web", "sleep").replace("localhost/demo:1", "localhost/two:1"),
    );
    device.pod("web").wait_ready();
    let unused = device.nodlet(["image", "rm", "localhost/two:2"]);
    assert_eq!((unused.stderr.as_str(), unused.code), ("", 0), "{unused:?}");
    let used = device.nodlet(["image", "rm", "localhost/two:1"]);
    assert!(used.stderr.starts_with("Warning: pod default/web uses this name: "), "{used:?}");
    assert_eq!(used.ok(), "image \"localhost/two:1\" untagged\n");
}

#[test]
fn image_load_warns_of_a_name_that_it_does_not_need() {
    let device = Device::new();
    let archive = nodlet_tests::demo_archive().display().to_string();
    let ran = device.nodlet(["image", "load", "--name", "own:1", &archive]);
    assert_eq!(
        ran.stderr,
        "Warning: --name docker.io/library/own:1 was not needed: the archive names its image itself\n"
    );
    assert_eq!(ran.ok(), "image/localhost/demo:1 loaded\n");
}

#[test]
fn image_load_asks_for_a_name_if_the_archive_has_none() {
    let device = Device::new();
    let archive = device.path("/nameless.tar");
    Image::demo("", b"program").write_docker_archive(&archive).expect("it can be written");
    let archive = archive.display().to_string();
    let ran = device.nodlet(["image", "load", &archive]);
    assert_eq!(
        ran.stderr,
        "Warning: the archive names no image, and a pod refers to an image by its name: load it with --name NAME\n"
    );
    assert!(ran.ok().starts_with("image/sha256:"));
    let ran = device.nodlet(["image", "load", "--name", "localhost/own:1", &archive]);
    assert_eq!((ran.stderr.as_str(), ran.code), ("", 0), "{ran:?}");
}

#[test]
fn the_configuration_of_the_image_is_honoured() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    let image = Image::demo("localhost/configured:1", &program)
        .config("User", json!("app"))
        .config("WorkingDir", json!("/made/for/it"))
        .config("Env", json!(["PATH=/bin", "FROM=image", "BOTH=image"]))
        .config("Cmd", json!(["id", "then", "cwd", "then", "env", "then", "sleep"]));
    device.load(&image);
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - name: app\n    image: localhost/configured:1\n    env: [{name: BOTH, value: pod}]\n";
    device.write_manifest("web.yaml", text);
    let web = device.pod("web");
    web.wait_log("app", "BOTH=pod");
    let log = web.logs("app");
    for said in ["uid=1000 gid=1000 groups=1000,2000", "/made/for/it", "FROM=image"] {
        assert!(log.contains(said), "{said:?} in {log}");
    }
}

#[test]
fn later_layers_lie_over_earlier_ones() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    for compression in [Compression::None, Compression::Gzip] {
        let image = Image::demo("localhost/layered:1", &program)
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
        let text = manifest::pod("layered", "ls /data then ls /opaque then stat /data/kept then stat /data/setuid then stat /data/link then stat /opaque then print end then sleep")
            .replace("localhost/demo:1", "localhost/layered:1");
        device.write_manifest("layered.yaml", &text);
        device.pod("layered").wait_log("app", "end\n");
        assert_eq!(
            device.pod("layered").logs("app"),
            "kept\nlink\nlinked\nsetuid\nnew\nfile 0640 1000:2000 4\nfile 4755 0:0 1\nlink 0777 0:0 kept\ndir 0700 0:0\nend\n"
        );
        device.remove_manifest("layered.yaml");
        device.pod("layered").wait_gone();
        device.nodlet(["image", "rm", "localhost/layered:1"]).ok();
    }
}

#[test]
fn a_layer_that_an_image_has_repeatedly_is_mounted_once_where_it_counts() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    let data = |image: Image| image.layer().directory("data", 0o755).file("data/again", 0o644, b"again");
    let image = Image::demo("localhost/repeated:1", &program);
    let between = data(image).layer().file("data/.wh.again", 0o644, b"").file("data/other", 0o644, b"other");
    // Docker and BuildKit add the same empty layer for each step that changes no file.
    device.load(&data(between).layer().layer());
    let text = manifest::pod("repeated", "ls /data then print end then sleep")
        .replace("localhost/demo:1", "localhost/repeated:1");
    device.write_manifest("repeated.yaml", &text);
    device.pod("repeated").wait_log("app", "end\n");
    assert_eq!(device.pod("repeated").logs("app"), "again\nother\nend\n");
}

#[test]
fn a_broken_archive_is_refused_and_the_store_stays_as_it_was() {
    let device = Device::start();
    let before = device.nodlet(["image", "ls"]).ok();
    let program = fs::read(demo_program()).expect("the demo program is built");
    let path = device.path("/broken.tar");
    // A new layer, because one that the store already has would not be read again.
    let image = Image::demo("localhost/broken:1", &program).file("broken", 0o644, b"new");
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
        let said = device.nodlet(["image", "load", &path.display().to_string()]).refused();
        assert!(said.contains("broken.tar"), "an archive {what} is named: {said}");
        assert_eq!(device.nodlet(["image", "ls"]).ok(), before, "an archive {what}");
    }
    fs::write(&path, &whole).expect("it can be written");
    device.load_image(&path);
}

#[test]
fn names_that_would_leave_the_root_are_refused() {
    let device = Device::start();
    for path in ["../outside", "a/../../outside", "../../../../../../../../tmp/nodlet-outside"] {
        let archive = device.path("/hostile.tar");
        let image = Image::new("localhost/hostile:1").file(path, 0o644, b"out");
        image.write_docker_archive(&archive).expect("it can be written");
        let loaded = device.nodlet(["image", "load", &archive.display().to_string()]);
        assert!(loaded.code != 0, "{path}: {loaded:?}");
        assert!(!std::path::Path::new("/tmp/nodlet-outside").exists(), "{path}");
    }
}

#[test]
fn an_image_comes_through_a_pipe_too() {
    let mut device = Device::new();
    device.start_agent();
    let mut load = device.command(&["image", "load", "-"]);
    load.stdin(fs::File::open(nodlet_tests::demo_archive()).expect("it was written"));
    assert!(load.status().expect("nodlet can be run").success());
    device.write_manifest("web.yaml", &manifest::pod("web", "sleep"));
    device.pod("web").wait_ready();
}

#[test]
fn an_image_of_another_platform_is_rejected_unless_the_platform_is_requested() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    let path = device.path("/foreign.tar");
    let image = Image::demo("localhost/foreign:1", &program).architecture("s390x");
    image.write_oci_archive(&path).expect("it can be written");
    let said = device.nodlet(["image", "load", &path.display().to_string()]).refused();
    assert!(said.contains("s390x") && said.contains(ARCHITECTURE), "{said}");
    device.nodlet(["image", "load", "--platform", "linux/s390x", &path.display().to_string()]).ok();
}

/// The container ignores SIGTERM, and its grace period is 30 s; the image's stop signal SIGKILL ends it at
/// once.
#[test]
fn a_container_is_asked_to_end_by_the_signal_of_its_image() {
    let device = Device::start();
    let program = fs::read(demo_program()).expect("the demo program is built");
    device.load(&Image::demo("localhost/stops:1", &program).config("StopSignal", json!("SIGKILL")));
    let text = manifest::pod("stops", "ignore-term then print up then sleep");
    device.write_manifest("stops.yaml", &text.replace("localhost/demo:1", "localhost/stops:1"));
    let pod = device.pod("stops");
    pod.wait_log("app", "up");
    let begun = std::time::Instant::now();
    device.remove_manifest("stops.yaml");
    pod.wait_gone();
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it was killed when its grace was over");
}

#[test]
fn an_unused_image_is_removed_when_it_is_older_than_the_maximum_age() {
    let mut device = Device::new();
    device.agent_arguments(["--image-maximum-gc-age", "2s"]);
    device.start_agent();
    let program = fs::read(demo_program()).expect("the demo program is built");
    device.write_manifest(
        "web.yaml",
        &manifest::pod("web", "wait /end").replace("localhost/demo:1", "localhost/used:1"),
    );
    // The pod is there before: on a slow machine, the image would be too old otherwise.
    device.load(&Image::demo("localhost/used:1", &program).config("Env", json!(["A=used"])));
    device.pod("web").wait_ready();
    device.load(&Image::demo("localhost/unused:1", &program).config("Env", json!(["A=unused"])));
    let is_there = |name: &str| device.nodlet(["image", "ls"]).ok().contains(name);
    // The agent logs a removal after the store has it.
    let why = "image localhost/unused:1: removed, since no pod uses it and it is older than the maximum age";
    device.wait_for("the removal of the unused image", || device.agent_log().contains(why));
    assert!(!is_there("localhost/unused"));
    assert!(is_there("localhost/used"));
    // Its age counts from its last use.
    device.remove_manifest("web.yaml");
    device.wait_for("the removal of the other image", || !is_there("localhost/used"));
}

#[test]
fn volumes_of_an_image_stay_writable_in_a_read_only_root() {
    let device = Device::start();
    let program = std::fs::read(nodlet_tests::demo_program()).expect("it was built");
    let volumes = json!({"/data": {}, "/var/made/for/it": {}, "/link": {}, "/proc/own": {}, "/mine/below": {}, "/": {}});
    let image = Image::demo("localhost/volumes:1", &program)
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
    let start = |name: &str, user: u32, spec: &str| {
        let container = manifest::container(
            "app",
            steps,
            &format!(
                "securityContext: {{readOnlyRootFilesystem: true, runAsUser: {user}}}\n\
                 volumeMounts: [{{name: mine, mountPath: /mine}}]"
            ),
        );
        let container = container.replace("localhost/demo:1", "localhost/volumes:1");
        let spec = format!("volumes: [{{name: mine, emptyDir: {{}}}}]\n{spec}");
        device.write_manifest(&format!("{name}.yaml"), &manifest::pod_of(name, &[container], &spec));
        let app = || device.pod(name).container("app");
        device.wait_for("the end of its steps", || app().restart_count() > 0 || app().is_ready());
        assert_eq!(app().restart_count(), 0, "{}", device.nodlet(["logs", "-p", name]).stdout);
        device.pod(name).wait_log("app", "up");
    };
    for (name, user, spec) in [("own", 1000, ""), ("users", 1000, "hostUsers: false"), ("root", 0, "")] {
        start(name, user, spec);
        let pod = device.pod(name);
        assert_eq!(
            pod.logs("app"),
            "of the image\nup\n",
            "{name}: an emptyDir above hides the directory of the image"
        );
        let run = |words: &[&str]| match words {
            [one, file] => pod.exec("app", ["/bin/demo", one, file]),
            [one, file, text] => pod.exec("app", ["/bin/demo", one, file, text]),
            _ => unreachable!("{words:?}"),
        };
        let holds = || [run(&["cat", "/data/seed"]).ok(), run(&["cat", "/data/new"]).ok()];
        assert_eq!(holds(), ["of the image\nmore\n", "x\n"], "{name}");
        for path in ["/new", "/var/new", "/mine-not"] {
            let refused = run(&["write", path, "x"]);
            assert!(refused.stderr.contains("Read-only file system"), "{name} {path}: {refused:?}");
        }
        if user == 0 {
            run(&["write", "/var/made/for/it/new", "x"]).ok();
        }
        // It belongs to the run, as its writable layer does.
        let before = pod.container("app").id();
        device.nodlet(["restart", name]).ok();
        device.wait_for("another run", || pod.container("app").id() != before && pod.is_ready());
        pod.wait_log("app", "up");
        assert_eq!(holds(), ["of the image\nmore\n", "x\n"], "{name}");
    }
    // What is written there counts as local storage of the container.
    let container = manifest::container(
        "app",
        "spam-file /data/big 6000000 then sleep",
        "securityContext: {readOnlyRootFilesystem: true}\nresources: {limits: {ephemeral-storage: 4Mi}}",
    );
    let container = container.replace("localhost/demo:1", "localhost/volumes:1");
    device.write_manifest("big.yaml", &manifest::pod_of("big", &[container], "restartPolicy: Never"));
    device.pod("big").wait_phase("Failed");
    assert_eq!(device.pod("big").status()["reason"], "Evicted");
}
