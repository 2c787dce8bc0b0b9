use std::fs;
use std::os::unix::fs::symlink;

use super::*;

#[test]
fn var_log_may_be_a_link_and_nothing_below_it() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let paths = Paths::new(&scratch.path().join("root"));
    fs::create_dir_all(scratch.path().join("root/var")).expect("made");
    fs::create_dir(scratch.path().join("volatile")).expect("made");
    symlink("../../volatile", scratch.path().join("root/var/log")).expect("linked");
    prepare(&paths).expect("prepared");
    assert!(
        scratch.path().join("volatile/pods").is_dir() && scratch.path().join("volatile/containers").is_dir()
    );
    let log = paths.pod_logs("n", "p", "u").join("c/0.log");
    let place = Place::of_log(&log).expect("a place");
    let (directory, is_new) = place.make().expect("made");
    assert!(is_new && !place.make().expect("it is there").1);
    directory.open_own(place.name, OFlag::O_WRONLY | OFlag::O_CREAT).expect("opened");
    assert!(scratch.path().join("volatile/pods/n_p_u/c/0.log").is_file());
    // A link at each level.
    let elsewhere = scratch.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("n_p_u/c")).expect("made");
    for (link, target) in [
        ("volatile/pods/n_p_u/c", elsewhere.join("n_p_u/c")),
        ("volatile/pods/n_p_u", elsewhere.join("n_p_u")),
        ("volatile/pods", elsewhere.clone()),
        // A link to a directory inside var/log is not followed either.
        ("volatile/pods", PathBuf::from("containers")),
    ] {
        let link = scratch.path().join(link);
        fs::rename(&link, link.with_extension("aside")).expect("renamed");
        symlink(target, &link).expect("linked");
        for opened in [place.open(), place.make().map(|(directory, _)| directory)] {
            let error = opened.err().map(|error| error.raw_os_error());
            assert!(
                matches!(error, Some(Some(libc::ELOOP | libc::ENOTDIR))),
                "{}: {error:?}",
                link.display()
            );
        }
        fs::remove_file(&link).expect("removed");
        fs::rename(link.with_extension("aside"), &link).expect("renamed");
    }
    place.open().expect("it is as it was");
}

#[test]
fn a_link_special_file_or_foreign_file_in_place_of_a_log_is_not_opened() {
    use nix::sys::stat::{makedev, mknod};
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let directory = Directory::trusted(scratch.path()).expect("opened");
    let path = scratch.path().join("0.log");
    let other = scratch.path().join("auth.log");
    fs::write(&other, "a secret").expect("written");
    let mode = Mode::from_bits_truncate(0o600);
    let puts: [(&str, &dyn Fn()); 6] = [
        ("a link", &|| symlink(&other, &path).expect("linked")),
        ("a hard link", &|| fs::hard_link(&other, &path).expect("linked")),
        ("a FIFO", &|| nix::unistd::mkfifo(&path, mode).expect("made")),
        ("a device", &|| mknod(&path, SFlag::S_IFCHR, mode, makedev(1, 5)).expect("made")),
        ("a socket", &|| drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"))),
        ("a file of another user", &|| {
            fs::write(&path, "").expect("written");
            std::os::unix::fs::chown(&path, Some(65534), None).expect("these tests need root");
        }),
    ];
    for (what, put) in puts {
        put();
        for flags in [OFlag::O_RDONLY, OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT] {
            assert!(directory.open_own(OsStr::new("0.log"), flags).is_err(), "{what} was opened");
        }
        directory.remove(OsStr::new("0.log")).expect("removed");
    }
    assert_eq!(fs::read_to_string(&other).expect("it is there"), "a secret");
}

/// Opening a device can trigger an action of it, and the other end of a FIFO can notice that it was opened.
#[test]
fn a_fifo_in_place_of_a_log_is_detected_without_opening_it() {
    use std::os::unix::fs::OpenOptionsExt;
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let directory = Directory::trusted(scratch.path()).expect("opened");
    let path = scratch.path().join("0.log");
    nix::unistd::mkfifo(&path, Mode::from_bits_truncate(0o600)).expect("made");
    let reader =
        fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).expect("opened");
    let had_a_writer = || {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut poll_fd = [PollFd::new(std::os::fd::AsFd::as_fd(&reader), PollFlags::POLLIN)];
        poll(&mut poll_fd, PollTimeout::ZERO).expect("polled");
        poll_fd[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    };
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NONBLOCK;
    directory.open_own(OsStr::new("0.log"), flags).expect_err("it is a FIFO");
    assert!(!had_a_writer());
    drop(fs::OpenOptions::new().write(true).open(&path).expect("opened"));
    assert!(had_a_writer(), "this test sees nothing");
}

#[test]
fn only_links_of_the_pod_whose_logs_are_gone_are_removed() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let paths = Paths::new(&scratch.path().join("root"));
    prepare(&paths).expect("prepared");
    let (kept, gone) = (paths.pod_logs("n", "p", "kept"), paths.pod_logs("n", "p", "gone"));
    fs::create_dir_all(kept.join("c")).expect("made");
    fs::write(kept.join("c/0.log"), "").expect("written");
    let links = paths.log_links();
    for (name, target) in [
        ("p_n_c-live.log", kept.join("c/0.log")),
        ("p_n_c-dead.log", gone.join("c/0.log")),
        ("p_n_c-rotated.log", kept.join("c/1.log")),
        ("p_n_c-another.log", PathBuf::from("/nowhere")),
        ("q_n_c-dead.log", gone.join("c/0.log")),
    ] {
        symlink(target, links.join(name)).expect("linked");
    }
    remove_pod(&paths, "n", "p", "gone").expect("removed");
    let left: Vec<_> = ["live", "dead", "rotated", "another"]
        .into_iter()
        .filter(|name| links.join(format!("p_n_c-{name}.log")).is_symlink())
        .collect();
    assert_eq!(left, ["live", "another"]);
    assert!(links.join("q_n_c-dead.log").is_symlink());
}

#[test]
fn files_added_without_pause_to_a_log_directory_do_not_block_its_removal() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let directory = Directory::trusted(scratch.path()).expect("opened");
    fs::create_dir(scratch.path().join("doomed")).expect("made");
    for number in 0..3000 {
        fs::write(scratch.path().join(format!("doomed/{number}")), "").expect("written");
    }
    let error = volume::remove_in(&directory.0, OsStr::new("doomed"), 2000).expect_err("there are more");
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    assert_eq!(fs::read_dir(scratch.path().join("doomed")).expect("read").count(), 1000);
    // The rest is removed by the next call.
    volume::remove_in(&directory.0, OsStr::new("doomed"), 2000).expect("removed");
    assert!(!scratch.path().join("doomed").exists());
}
