//! Images and manifests that are part of the device image: baked by an ordinary user for another
//! architecture, found below the writable files, and never copied.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodlet_tests::image::{self, Image};
use nodlet_tests::{Device, demo_program, manifest, nodlet_program};

const NOBODY: u32 = 65534;

/// Everything below a directory: modes, and the contents of files.
fn tree(root: &Path) -> BTreeMap<PathBuf, (u32, Option<Vec<u8>>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        if metadata.is_dir() {
            todo.extend(
                fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("it is read").path()),
            );
        }
        let bytes = metadata.is_file().then(|| fs::read(&path).expect("it can be read"));
        let name = path.strip_prefix(root).expect("it is below").to_owned();
        found.insert(name, (metadata.mode(), bytes));
    }
    found
}

/// The platform of images that run here.
fn own() -> String {
    format!("linux/{}", image::ARCHITECTURE)
}

/// Runs `nodlet image load` as this user and with this umask, below a directory of the user's.
fn bake(device: &Device, name: &str, user: u32, umask: &str, archive: &Path, platform: &str) -> PathBuf {
    let home = device.path(name);
    fs::create_dir_all(&home).expect("the root can be written to");
    chown(&home, Some(user), Some(user)).expect("root can give it away");
    // In a directory where an ordinary user can execute it.
    let program = home.join("nodlet");
    fs::copy(nodlet_program(), &program).expect("it can be copied");
    let script = format!("umask {umask} && exec \"$@\"");
    let ran = Command::new("/bin/sh")
        .args(["-c", &script, "sh"])
        .arg(&program)
        .args(["image", "load", "--root", "root", "--platform", platform])
        .arg(archive)
        .uid(user)
        .gid(user)
        .current_dir(&home)
        .stdin(Stdio::null())
        .output()
        .expect("a shell can be run");
    assert!(ran.status.success(), "as {user}: {}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "", "as {user}");
    home.join("root")
}

#[test]
fn baking_a_foreign_image_gives_the_same_bytes_for_any_user_and_umask() {
    let device = Device::new();
    let archive = device.path("/archive.tar");
    let image = Image::new("localhost/app:1")
        .architecture("arm64")
        .directory("bin", 0o755)
        .file("bin/app", 0o4755, b"not for this machine")
        .owned_by(12345, 54321)
        .symlink("lib", "usr/lib")
        .layer()
        .file("bin/.wh.app", 0o644, b"");
    image.write_oci_archive(&archive).expect("it can be written");
    let docker = device.path("/docker.tar");
    image.write_docker_archive(&docker).expect("it can be written");
    let by_root = tree(&bake(&device, "root", 0, "022", &archive, "linux/arm64"));
    assert!(by_root.keys().any(|name| name.ends_with("var/lib/nodlet/images/index.json")));
    assert!(by_root.keys().filter(|name| name.extension().is_some_and(|end| end == "erofs")).count() == 2);
    for (name, user, umask) in [
        ("nobody", NOBODY, "022"),
        ("careful", NOBODY, "077"),
        ("careless", 1000, "000"),
        ("again", 0, "027"),
    ] {
        let baked = tree(&bake(&device, name, user, umask, &archive, "linux/arm64"));
        assert!(baked == by_root, "baked by {user} with umask {umask}: {:?}", baked.keys());
    }
    let layers = |tree: &BTreeMap<PathBuf, (u32, Option<Vec<u8>>)>| {
        let layers = tree.iter().filter(|(name, _)| name.extension().is_some_and(|end| end == "erofs"));
        layers.map(|(name, seen)| (name.clone(), seen.clone())).collect::<Vec<_>>()
    };
    let of_docker = tree(&bake(&device, "docker", NOBODY, "022", &docker, "linux/arm64"));
    assert!(layers(&of_docker) == layers(&by_root), "the same layers from another archive");
}

#[test]
fn a_baked_image_runs_from_the_read_only_store_without_a_copy() {
    let mut device = Device::new();
    let program = fs::read(demo_program()).expect("the demo program is built");
    let archive = device.path("/archive.tar");
    Image::demo("localhost/baked:1", &program).write_oci_archive(&archive).expect("it can be written");
    let architecture = &own();
    let baked = bake(&device, "workshop", NOBODY, "022", &archive, architecture);
    let vendor = device.mount_tmpfs("/usr/lib/nodlet", "size=64m,mode=0755");
    let ran = Command::new("cp")
        .arg("-r")
        .arg(baked.join("var/lib/nodlet/images"))
        .arg(device.path("/usr/lib/nodlet/images"))
        .status();
    assert!(ran.expect("cp can be run").success());
    fs::remove_dir_all(device.path("/workshop")).expect("it can be removed");
    let printing = |name: &str, what: &str| {
        manifest::pod(name, &format!("print {what} then sleep"))
            .replace("localhost/demo:1", "localhost/baked:1")
    };
    let text = |name: &str| printing(name, "up");
    device.write_file("/usr/lib/nodlet/manifests/web.yaml", text("web"));
    vendor.remount(nix::mount::MsFlags::MS_RDONLY, "");
    assert!(fs::write(device.path("/usr/lib/nodlet/x"), "").is_err(), "it is read-only now");

    device.start_agent();
    device.pod("web").wait_ready().wait_log("app", "up");
    device.write_pod("own", &text("own")).wait_ready();
    assert!(device.nodlet(["image", "ls"]).ok().contains("localhost/baked:1"));
    let unchanged = device.nodlet(["image", "load", &archive.display().to_string()]).ok();
    assert_eq!(unchanged, "image/localhost/baked:1 unchanged\n");
    for directory in ["layers", "images", "staging"] {
        let copied = fs::read_dir(device.path("/var/lib/nodlet/images").join(directory));
        assert_eq!(copied.map_or(0, Iterator::count), 0, "{directory}");
    }
    assert!(!device.path("/var/lib/nodlet/manifests/web.yaml").exists(), "nor is a manifest");
    device.nodlet(["image", "rm", "localhost/baked:1"]).refused_with("it is part of the device image");

    // The site's manifest takes precedence; the vendor's applies again when the site's is removed.
    let before = device.pod("web").born("app");
    device.write_manifest("site.yaml", &printing("web", "site"));
    device.pod("web").wait_log("app", "site");
    assert_ne!(device.pod("web").born("app"), before);
    device.remove_manifest("site.yaml");
    device.pod("web").wait_log("app", "up");

    // A baked pod cannot be deleted, but the site can keep it from running.
    let refused = device.nodlet(["delete", "pod", "web"]).refused();
    let site = device.path("/etc/nodlet/manifests");
    let remedy = format!("a pod of the same name in {} overrides it", site.display());
    assert!(refused.contains("/usr/lib/nodlet/manifests/web.yaml") && refused.contains(&remedy), "{refused}");
    let gated = text("web").replace("spec:", "spec:\n  schedulingGates: [{ name: example.com/off }]");
    device.write_manifest("site.yaml", &gated);
    device.wait_for("the gate to hold the pod", || {
        device.nodlet(["get", "pods", "web"]).ok().contains("SchedulingGated")
    });
}

#[test]
fn a_root_of_another_user_is_loaded_into_by_root_too() {
    let device = Device::new();
    let archive = device.path("/archive.tar");
    Image::new("localhost/app:1")
        .file("a", 0o644, b"1")
        .write_oci_archive(&archive)
        .expect("it can be written");
    let root = bake(&device, "user", NOBODY, "022", &archive, &own());
    let images = root.join("var/lib/nodlet/images");
    Image::new("localhost/more:1")
        .file("b", 0o644, b"2")
        .write_oci_archive(&archive)
        .expect("it can be written");
    let ran =
        Command::new(nodlet_program()).args(["image", "load", "--root"]).arg(&root).arg(&archive).output();
    let ran = ran.expect("nodlet can be run");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(fs::read_dir(images.join("layers")).expect("it is there").count(), 2);
    assert!(fs::metadata(&images).expect("it is there").permissions().mode() & 0o022 == 0);
}
