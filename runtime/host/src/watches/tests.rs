use std::fs;

use super::*;

/// The kinds and names of the events that wait.
fn taken(watcher: &Watcher) -> Vec<(AddWatchFlags, String)> {
    let news = watcher.take();
    assert!(!news.lost);
    let name = |event: &Event| event.name.clone().unwrap_or_default().into_string().unwrap();
    news.events.iter().map(|event| (event.what, name(event))).collect()
}

#[test]
fn each_watcher_gets_the_events_that_it_requests_and_others_keep_their_watch() {
    let scratch = tempfile::tempdir().unwrap();
    let watches = Watches::default();
    let (created, deleted) = (watches.watcher().unwrap(), watches.watcher().unwrap());
    let (create, delete) = (AddWatchFlags::IN_CREATE, AddWatchFlags::IN_DELETE);
    let watch = created.add(scratch.path(), create).unwrap();
    assert_eq!(deleted.add(scratch.path(), delete).unwrap(), watch, "the kernel has one of each directory");
    let file = scratch.path().join("a");
    fs::write(&file, "").unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(taken(&created), [(create, "a".to_owned())]);
    assert_eq!(taken(&deleted), [(delete, "a".to_owned())]);
    assert_eq!(taken(&deleted), []);

    drop(created);
    fs::write(&file, "").unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(taken(&deleted), [(delete, "a".to_owned())]);
    deleted.remove(watch);
    fs::write(&file, "").unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(taken(&deleted), []);
    // Everybody learns that a directory is gone, which ends its watch.
    let other = watches.watcher().unwrap();
    let watch = other.add(scratch.path(), create).unwrap();
    fs::remove_dir_all(scratch.path()).unwrap();
    assert_eq!(taken(&other), [(AddWatchFlags::IN_IGNORED, String::new())]);
    other.remove(watch);
    assert_eq!(other.add(scratch.path(), create), Err(Errno::ENOENT));
    assert_eq!(other.shared.table().watches.len(), 0);
}

#[test]
fn waiting_ends_with_an_event_and_no_other_watcher_is_woken() {
    let scratch = tempfile::tempdir().unwrap();
    let watches = Watches::default();
    // It runs before there is an instance.
    let run = watches.clone().run();
    let (one, other) = (watches.watcher().unwrap(), watches.watcher().unwrap());
    fs::create_dir(scratch.path().join("one")).unwrap();
    fs::create_dir(scratch.path().join("other")).unwrap();
    one.add(&scratch.path().join("one"), AddWatchFlags::IN_CREATE).unwrap();
    other.add(&scratch.path().join("other"), AddWatchFlags::IN_CREATE).unwrap();
    let steps = async {
        for name in ["a", "b"] {
            fs::write(scratch.path().join("one").join(name), "").unwrap();
            one.changed().await;
            assert_eq!(taken(&one), [(AddWatchFlags::IN_CREATE, name.to_owned())]);
            assert_eq!(smol::future::poll_once(other.changed()).await, None);
            assert_eq!(smol::future::poll_once(one.changed()).await, None, "it has taken them");
        }
    };
    smol::block_on(smol::future::or(steps, run));
}

#[test]
fn a_watcher_that_does_not_take_its_events_holds_few_and_learns_that_some_are_lost() {
    let scratch = tempfile::tempdir().unwrap();
    let watches = Watches::default();
    let (slow, quick) = (watches.watcher().unwrap(), watches.watcher().unwrap());
    for watcher in [&slow, &quick] {
        watcher.add(scratch.path(), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY).unwrap();
    }
    for number in 0..=EVENTS {
        fs::write(scratch.path().join(number.to_string()), "").unwrap();
        assert_eq!(taken(&quick).len(), 1);
    }
    assert_eq!(slow.take(), News { events: Vec::new(), lost: true });
    assert!(slow.take().is_empty());
    // A file that is written again and again takes one place.
    for _ in 0..3 {
        fs::write(scratch.path().join("0"), "text").unwrap();
        assert!(!quick.take().is_empty());
    }
    assert_eq!(taken(&slow), [(AddWatchFlags::IN_MODIFY, "0".to_owned())]);
}

/// A fault: between the request for a watch and its record, another thread removes the watch of the same directory.
#[test]
fn a_watch_that_another_thread_removes_meanwhile_is_made_again() {
    let scratch = tempfile::tempdir().unwrap();
    let watches = Watches::default();
    let (ours, other) = (watches.watcher().unwrap(), watches.watcher().unwrap());
    let removed = other.add(scratch.path(), AddWatchFlags::IN_DELETE).unwrap();
    let watch = ours.add_while(scratch.path(), AddWatchFlags::IN_CREATE, || drop(other)).unwrap();
    assert_ne!(watch, removed);
    fs::write(scratch.path().join("a"), "").unwrap();
    assert_eq!(taken(&ours), [(AddWatchFlags::IN_CREATE, "a".to_owned())]);
}
