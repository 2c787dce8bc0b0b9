//! Tests with real mounts, in a mount namespace of each test's own, which needs root.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::mount::MsFlags;
use nodlet_kernel::mount::{attach_mount, clone_mount};
use tar::EntryType;

use super::layers::mount_layer_by;
use super::overlay::{Overlay, open_directory};
use super::*;
use crate::reference::Digest;
use crate::store::Store;
use crate::testing::{self, Scratch, TarBuilder, TestImage, amd64, oci_archive, tar};

/// Runs `body` with private mounts, in a directory that has mount points.
fn in_own_namespace(body: impl FnOnce(&Path) + Send) {
    testing::in_own_namespace(|scratch| {
        for name in ["upper", "work", "target"] {
            fs::create_dir(scratch.join(name)).unwrap();
        }
        body(scratch);
    });
}

/// Layers that change, remove and hide files of the ones below.
fn three_layers() -> Vec<TarBuilder> {
    let base = tar()
        .directory("etc")
        .file("etc/passwd", "www:x:33:34::/www:\n")
        .file("kept", "base")
        .file("changed", "base")
        .file("removed", "base")
        .file("opaque/hidden", "base");
    let middle = tar().file(".wh.removed", "").file("opaque/.wh..wh..opq", "").file("opaque/new", "middle");
    let top = tar().file("changed", "top");
    vec![base, middle, top]
}

/// Creates a store with one image.
fn loaded(root: &Path, layers: Vec<TarBuilder>) -> (Store, Vec<Digest>) {
    let layers = layers.into_iter().map(TarBuilder::finish).collect();
    let archive = oci_archive(&[TestImage::new("test/app:1", layers)]).finish();
    let store = Store::open(root).unwrap();
    let image = store.load(&archive, &amd64()).unwrap().remove(0).image;
    (store, image.layers)
}

fn check_overlay(scratch: &Path, target: &Path) {
    assert_eq!(fs::read_to_string(target.join("kept")).unwrap(), "base");
    assert_eq!(fs::read_to_string(target.join("changed")).unwrap(), "top");
    assert!(!target.join("removed").exists());
    let names: Vec<_> =
        fs::read_dir(target.join("opaque")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["new"]);
    assert_eq!(user(target, "www").unwrap().gid, 34);
    fs::write(target.join("kept"), "changed").unwrap();
    fs::remove_file(target.join("changed")).unwrap();
    assert_eq!(fs::read_to_string(scratch.join("upper/kept")).unwrap(), "changed");
    assert!(!target.join("changed").exists());
}

/// Mounts an image with these layers. Returns its root.
fn mounted(scratch: &Path, layers: Vec<TarBuilder>, read_only: bool) -> PathBuf {
    let (store, layers) = loaded(&scratch.join("root"), layers);
    let mounts = layers.iter().map(|layer| mount_layer(&store.layer_path(layer).unwrap()).unwrap());
    let mounts: Vec<OwnedFd> = mounts.map(|mount| copy_layer(mount.as_fd()).unwrap()).collect();
    let mounts: Vec<BorrowedFd<'_>> = mounts.iter().map(AsFd::as_fd).collect();
    let target = scratch.join("target");
    mount_root(&mounts, &scratch.join("upper"), &scratch.join("work"), &target, read_only).unwrap();
    target
}

#[test]
fn layers_become_one_writable_root() {
    in_own_namespace(|scratch| {
        let target = mounted(scratch, three_layers(), false);
        check_overlay(scratch, &target);
    });
}

/// The image's upper layers name files but not the directories that contain them.
#[test]
fn an_undescribed_directory_has_the_attributes_of_the_lower_layer() {
    in_own_namespace(|scratch| {
        let base = tar()
            .entry(EntryType::Directory, "tmp", "", 0o1777, &[])
            .entry(EntryType::Directory, "home", "", 0o711, &[])
            .entry(EntryType::Directory, "home/app", "", 0o2750, &[])
            .entry(EntryType::Directory, "gone", "", 0o700, &[])
            .entry(EntryType::Directory, "hidden", "", 0o700, &[])
            .entry(EntryType::Directory, "hidden/in", "", 0o700, &[]);
        let middle = tar()
            .file("home/app/.wh.nothing", "")
            .file(".wh.gone", "")
            .directory("hidden")
            .file("hidden/.wh..wh..opq", "");
        let top = tar()
            .file("tmp/file", "x")
            .file("home/app/deep/file", "x")
            .file("gone/file", "x")
            .file("hidden/in/file", "x");
        let target = mounted(scratch, vec![base, middle, top], false);
        let said = |path: &str| fs::metadata(target.join(path)).unwrap().mode() & 0o7777;
        assert_eq!(said("tmp"), 0o1777);
        assert_eq!(said("home"), 0o711);
        assert_eq!(said("home/app"), 0o2750);
        assert_eq!(said("home/app/deep"), 0o755, "no layer describes it");
        assert_eq!(said("gone"), 0o755, "what it was is removed");
        assert_eq!(said("hidden/in"), 0o755, "what it was is hidden");
        for path in ["tmp", "home", "home/app"] {
            assert_eq!(fs::metadata(target.join(path)).unwrap().mtime(), 1_000_000_000, "{path}");
        }
        assert_eq!(fs::read_to_string(target.join("home/app/deep/file")).unwrap(), "x");
    });
}

#[test]
fn undescribed_directories_may_be_nested_as_deep_as_a_path_allows() {
    in_own_namespace(|scratch| {
        let deep = format!("{}f", "d/".repeat(1800));
        let base = tar().file("a", "");
        let top = tar().file(&deep, "deep");
        let target = mounted(scratch, vec![base, top], false);
        assert_eq!(fs::read_to_string(target.join(deep)).unwrap(), "deep");
    });
}

/// Emulates kernels before 6.15, which cannot copy detached mounts.
#[test]
fn layers_are_stacked_on_kernels_that_require_attached_mounts() {
    in_own_namespace(|scratch| {
        let (store, layers) = loaded(&scratch.join("root"), three_layers());
        let before = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let mounts: Vec<OwnedFd> = layers
            .iter()
            .map(|layer| {
                let path = store.layer_path(layer).unwrap();
                let mount = mount_layer_by(&path, Backing::File).unwrap();
                let namespace = share::namespace_of(&mount).unwrap();
                drop(mount);
                // Copies can be repeated.
                share::copy(namespace.as_fd()).unwrap();
                share::copy(namespace.as_fd()).unwrap()
            })
            .collect();
        assert_eq!(fs::read_to_string("/proc/thread-self/mountinfo").unwrap(), before);
        let mounts: Vec<BorrowedFd<'_>> = mounts.iter().map(AsFd::as_fd).collect();
        let (upper, work_path) = (scratch.join("upper"), scratch.join("work"));
        let (upper, work) = (open_directory(&upper).unwrap(), open_directory(&work_path).unwrap());
        let target = scratch.join("target");
        // A failed attempt leaves this.
        fs::create_dir_all(work_path.join("work/incompat/volatile")).unwrap();
        let (upper, work) = (upper.as_fd(), work.as_fd());
        let overlay = Overlay { upper, work, work_path: &work_path, target: &target, read_only: false };
        overlay.mount_attached(&mounts).unwrap();
        check_overlay(scratch, &target);
    });
}

#[test]
fn as_many_layers_as_an_image_may_have_become_one_root() {
    in_own_namespace(|scratch| {
        let layers = (0..127).map(|number| format!("{number}"));
        let layers = layers.map(|name| tar().file(&name, "").file("top", &name));
        let target = mounted(scratch, layers.collect(), false);
        assert_eq!(fs::read_to_string(target.join("top")).unwrap(), "126");
        assert_eq!(fs::read_dir(&target).unwrap().count(), 128);
    });
}

#[test]
fn a_read_only_root_cannot_be_written() {
    in_own_namespace(|scratch| {
        let target = mounted(scratch, three_layers(), true);
        let error = fs::write(target.join("kept"), "x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    });
}

#[test]
fn each_way_to_mount_a_layer_gives_the_same_files() {
    in_own_namespace(|scratch| {
        let (store, layers) = loaded(&scratch.join("root"), three_layers());
        let path = store.layer_path(&layers[0]).unwrap();
        for backing in Backing::ALL {
            let mount =
                mount_layer_by(&path, backing).unwrap_or_else(|error| panic!("{backing:?}: {error:?}"));
            let clone = clone_mount(Some(mount.as_fd()), c"", false).unwrap();
            drop(mount);
            attach_mount(&clone, &scratch.join("target")).unwrap();
            assert_eq!(fs::read_to_string(scratch.join("target/kept")).unwrap(), "base", "{backing:?}");
            drop(clone);
            nix::mount::umount(&scratch.join("target")).unwrap();
        }
    });
}

#[test]
fn a_layer_on_tmpfs_is_mounted_by_a_loop_device_that_is_removed_after_use() {
    in_own_namespace(|scratch| {
        let root = scratch.join("tmpfs");
        fs::create_dir(&root).unwrap();
        nix::mount::mount(Some("tmpfs"), &root, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let (store, layers) = loaded(&root, three_layers());
        let path = store.layer_path(&layers[0]).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let mount = mount_layer(&path).unwrap();
        let text = nix::sys::stat::fstat(mount.as_raw_fd()).unwrap();
        assert_ne!(text.st_ino, inode, "a mount, not the file");
        assert!(loops_of(&path), "no loop device is attached to {}", path.display());
        drop(mount);
        // The last close clears the device, which the kernel may defer.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while loops_of(&path) {
            assert!(std::time::Instant::now() < deadline, "the loop device stays");
            std::thread::yield_now();
        }
        let other = scratch.join("other.erofs");
        fs::write(&other, vec![0; 8192]).unwrap();
        assert!(matches!(mount_layer(&other), Err(AssembleError::MountLayer { .. })));
    });
}

fn loops_of(path: &Path) -> bool {
    fs::read_dir("/sys/block").unwrap().any(|entry| {
        let backing = entry.unwrap().path().join("loop/backing_file");
        fs::read_to_string(backing).is_ok_and(|text| {
            path.ends_with(text.trim().trim_start_matches('/')) || text.trim() == path.to_str().unwrap()
        })
    })
}

#[test]
fn an_image_whose_dev_is_no_directory_is_refused() {
    let scratch = Scratch::new();
    check_dev(scratch.path()).unwrap();
    std::os::unix::fs::symlink("/etc", scratch.path().join("dev")).unwrap();
    let error = check_dev(scratch.path()).unwrap_err().to_string();
    assert_eq!(
        error,
        "use the image: its /dev is a symbolic link to /etc; it must be a directory or missing"
    );
    fs::remove_file(scratch.path().join("dev")).unwrap();
    fs::create_dir(scratch.path().join("dev")).unwrap();
    check_dev(scratch.path()).unwrap();
    fs::remove_dir(scratch.path().join("dev")).unwrap();
    fs::write(scratch.path().join("dev"), "").unwrap();
    assert!(check_dev(scratch.path()).is_err());
}

#[test]
fn a_kernel_that_mounts_layers_passes_the_trials() {
    in_own_namespace(|scratch| {
        let [layer, overlay] = ["layer", "overlay"].map(|name| scratch.join(name));
        fs::create_dir(&layer).unwrap();
        fs::create_dir(&overlay).unwrap();
        assert!(try_layer(&layer).unwrap().has_attributes);
        try_overlay(&overlay).unwrap();
        assert!(matches!(try_overlay(&overlay), Err(TrialError::Write(_))), "it must be empty");
    });
}
