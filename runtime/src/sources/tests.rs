use std::os::unix::fs::symlink;
use std::time::Duration;

use super::*;
use nodlet_kube::kinds::Kind;
use nodlet_registry::{MAX_FILES, Suspects};

mod watches;

/// The directories with the sources that they are read into.
struct Sources {
    directories: ManifestDirectories,
    list: nodlet_registry::Sources,
    handling: Handling,
}

impl Sources {
    fn new(directories: Vec<PathBuf>) -> Sources {
        let row = |path| SourceDirectory { path, owner: Owner::File, hint: None };
        let list: Vec<SourceDirectory> = directories.into_iter().map(row).collect();
        Sources {
            directories: ManifestDirectories::new(
                &list,
                None,
                "node",
                Arc::new(AtRest::Plain),
                Watches::default(),
            ),
            list: nodlet_registry::Sources::new(list),
            handling: Handling::after(Suspects::default()),
        }
    }

    /// The sources in these directories, which were read once.
    fn of(directories: Vec<PathBuf>) -> Sources {
        let mut sources = Sources::new(directories);
        sources.read(nodlet_host::clock::instant());
        sources
    }

    fn read(&mut self, now: Instant) -> bool {
        let mut all = Vec::new();
        loop {
            let mut found = Vec::new();
            let more = self.directories.scan(now, &mut found);
            let (devices, handling) = (&mut DeviceFiles::default(), &self.handling);
            all.extend(self.directories.parse(found, devices, handling));
            if !more {
                self.directories.report(all, |_| false, &mut self.list, handling);
                return self.directories.is_any_renamed();
            }
        }
    }
}

impl std::ops::Deref for Sources {
    type Target = nodlet_registry::Sources;

    fn deref(&self) -> &nodlet_registry::Sources {
        &self.list
    }
}

impl std::ops::DerefMut for Sources {
    fn deref_mut(&mut self) -> &mut nodlet_registry::Sources {
        &mut self.list
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("nodlet-sources-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a scratch directory");
        Scratch(path)
    }

    /// Creates a directory.
    fn directory(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).expect("created");
        path
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.0.join(name), text).expect("written");
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.join(name)).expect("removed");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.0.join(from), self.0.join(to)).expect("renamed");
    }

    /// The sources in this directory, which were read once.
    fn sources(&self) -> Sources {
        Sources::of(vec![self.0.clone()])
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
    )
}

fn images(sources: &Sources) -> Vec<String> {
    let (wanted, _) = sources.wanted();
    wanted
        .values()
        .map(|wanted| format!("{}={}", wanted.pod.name, wanted.pod.spec.containers[0].image))
        .collect()
}

#[test]
fn a_file_that_agents_died_of_is_refused_until_its_content_changes_or_it_is_removed() {
    let scratch = Scratch::new("set-aside");
    let bad = scratch.0.join("bad.yaml");
    let pod = |name: &str| manifest(name, "a");
    fs::write(&bad, pod("bad")).unwrap();
    scratch.write("good.yaml", pod("good"));
    let mut suspects = Suspects::default();
    let handled = Handled::file(&bad, pod("bad").as_bytes());
    (0..2).for_each(|_| suspects.died(Some(handled), &[]));
    let mut sources = Sources::new(vec![scratch.0.clone()]);
    sources.handling = Handling::after(suspects);
    let mut now = 0;
    let mut names = |sources: &mut Sources| {
        now += 1_000_000_000;
        sources.read(Instant(now));
        let (wanted, refusals) = sources.wanted();
        let names: Vec<String> = wanted.keys().map(|(_, name)| name.to_string()).collect();
        (names.join(" "), refusals.iter().filter(|refusal| refusal.message.contains("set aside")).count())
    };
    assert_eq!(names(&mut sources), ("good".into(), 1));
    fs::write(&bad, pod("better")).unwrap();
    assert_eq!(names(&mut sources), ("better good".into(), 0));
    fs::write(&bad, format!("{} ", pod("bad"))).unwrap();
    assert_eq!(names(&mut sources), ("bad good".into(), 0), "the text is another");
    fs::remove_file(&bad).unwrap();
    assert_eq!(names(&mut sources), ("good".into(), 0));
    fs::write(&bad, pod("bad")).unwrap();
    assert_eq!(names(&mut sources), ("bad good".into(), 0), "somebody put it back");
}

#[test]
fn accepted_files_and_removals_are_synced_once_and_other_files_never() {
    let scratch = Scratch::new("unsynced");
    let (site, ours) = (scratch.directory("site"), scratch.directory("applied"));
    let mut sources = Sources::new(vec![site.clone(), ours.clone()]);
    sources.directories.directories[1].owner = Some(Owner::Client);
    let read = |sources: &mut Sources, second: u64| {
        sources.read(Instant(second * 1_000_000_000));
        sources.directories.take_unsynced().into_iter().collect::<Vec<_>>()
    };
    assert!(read(&mut sources, 1).is_empty());
    fs::write(site.join("web.yaml"), manifest("web", "a")).expect("written");
    fs::write(site.join("bad.yaml"), "kind: Pod\nmetadata: {").expect("written");
    fs::write(ours.join("db.yaml"), manifest("db", "a")).expect("written");
    assert_eq!(read(&mut sources, 2), [site.clone(), site.join("web.yaml")]);
    assert!(read(&mut sources, 3).is_empty(), "once");
    fs::write(site.join("bad.yaml"), manifest("bad", "a")).expect("written");
    assert_eq!(read(&mut sources, 4), [site.clone(), site.join("bad.yaml")]);
    fs::remove_file(site.join("bad.yaml")).expect("removed");
    fs::remove_file(ours.join("db.yaml")).expect("removed");
    assert_eq!(read(&mut sources, 5), [site]);
}

/// Waits for the kernel to say that something changed, and reads it.
fn news(sources: &mut Sources) {
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        assert!(!left.is_zero(), "the kernel reported no change");
        let changed = sources.directories.changed().expect("it is watched");
        let run = sources.directories.watches.all.clone().run();
        smol::block_on(nodlet_wire::timeout::within(left, smol::future::or(changed, run)));
        if sources.directories.drain() {
            sources.read(nodlet_host::clock::instant());
            return;
        }
    }
}

/// Like [`news`], and compares the pods and their images with `expected`.
fn news_with(sources: &mut Sources, expected: &[&str]) {
    news(sources);
    assert_eq!(images(sources), expected);
}

/// True if the kernel has nothing to say that concerns us.
fn quiet(sources: &mut Sources) -> bool {
    !sources.directories.drain()
}

#[test]
fn a_file_that_becomes_wrong_keeps_its_pod_and_disturbs_no_other() {
    let scratch = Scratch::new("wrong");
    scratch.write("a.yaml", manifest("a", "one"));
    scratch.write("b.yaml", manifest("b", "one"));
    let mut sources = scratch.sources();
    assert_eq!(images(&sources), ["a=one", "b=one"]);

    scratch.write("a.yaml", "kind: Pod\n  nonsense");
    news_with(&mut sources, &["a=one", "b=one"]);
    let (_, refusals) = sources.wanted();
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].message.contains("a.yaml"), "{}", refusals[0].message);
    assert_eq!(refusals[0].object, Some((Kind::Pod, "default".into(), "a".into())));

    scratch.write("a.yaml", manifest("a", "two"));
    news_with(&mut sources, &["a=two", "b=one"]);
    assert!(sources.wanted().1.is_empty());
    scratch.remove("a.yaml");
    news_with(&mut sources, &["b=one"]);
}

/// Puts something at a path that is not a regular file.
type Put<'a> = &'a dyn Fn(&Path);

#[test]
fn a_special_file_in_the_place_of_a_manifest_keeps_its_pod_and_is_refused_once() {
    use nix::sys::stat::{Mode, SFlag, mknod};
    let scratch = Scratch::new("special");
    let (directory, aside) = (scratch.directory("manifests"), scratch.0.join("aside"));
    let node = |path: &Path, kind: SFlag| mknod(path, kind, Mode::S_IRWXU, 0).expect("made");
    let fifo = scratch.0.join("fifo");
    node(&fifo, SFlag::S_IFIFO);
    let kinds: [(&str, Put<'_>); 5] = [
        ("fifo", &|path| node(path, SFlag::S_IFIFO)),
        ("socket", &|path| node(path, SFlag::S_IFSOCK)),
        ("directory", &|path| fs::create_dir(path).expect("made")),
        ("link to a fifo", &|path| symlink(&fifo, path).expect("made")),
        ("link to a directory", &|path| symlink(&scratch.0, path).expect("made")),
    ];
    let removed = |path: &Path| {
        let is_directory = fs::symlink_metadata(path).expect("it is there").is_dir();
        if is_directory { fs::remove_dir(path) } else { fs::remove_file(path) }.expect("removed");
    };
    let mut sources = Sources::new(vec![directory.clone()]);
    for (kind, put) in kinds {
        for name in ["a.yaml", "a"] {
            let path = directory.join(name);
            fs::write(&path, manifest("a", "one")).expect("written");
            sources.read(Instant(0));
            assert_eq!(images(&sources), ["a=one"], "{kind}");
            fs::rename(&path, &aside).expect("moved away");
            put(&path);
            news(&mut sources);
            assert_eq!(images(&sources), ["a=one"], "{kind} {name} ended the pod");
            let (_, refusals) = sources.wanted();
            let said: Vec<&str> = refusals.iter().map(|refusal| &*refusal.message).collect();
            let wanted = format!(
                "{}: it is not a regular file: replace it by one, or remove it and what it has defined",
                path.display()
            );
            assert_eq!(said, [wanted], "{kind}");
            assert_eq!(refusals[0].object, Some((Kind::Pod, "default".into(), "a".into())), "{kind}");
            assert!(
                !sources.directories.is_incomplete() && quiet(&mut sources),
                "{kind} is read again and again"
            );
            removed(&path);
            fs::rename(&aside, &path).expect("put back");
            news(&mut sources);
            assert_eq!(images(&sources), ["a=one"], "{kind}");
            assert!(sources.wanted().1.is_empty(), "{kind}: {:?}", sources.wanted().1);
            fs::remove_file(&path).expect("removed");
            put(&path);
            sources.read(Instant(0));
            removed(&path);
            news(&mut sources);
            assert!(images(&sources).is_empty(), "{kind}: removed, and its pod stays");
        }
        // A new one, and directories that are no manifests.
        let path = directory.join("new.json");
        put(&path);
        fs::create_dir(directory.join("lost+found")).expect("made");
        fs::create_dir(directory.join("..data")).expect("made");
        news(&mut sources);
        assert!(sources.is_refused(&path), "{kind}");
        assert_eq!(sources.wanted().1.len(), 1, "{kind}: {:?}", sources.wanted().1);
        removed(&path);
        fs::remove_dir(directory.join("lost+found")).expect("removed");
        fs::remove_dir(directory.join("..data")).expect("removed");
        news(&mut sources);
        assert!(sources.wanted().1.is_empty(), "{kind}");
    }
}

#[test]
fn a_file_that_was_never_valid_is_recorded_as_rejected() {
    let scratch = Scratch::new("never");
    let path = scratch.0.join("a.yaml");
    fs::write(&path, "{").expect("written");
    let mut sources = scratch.sources();
    assert!(images(&sources).is_empty() && sources.is_refused(&path));
    fs::remove_file(&path).expect("removed");
    news(&mut sources);
    assert!(!sources.is_refused(&path));
}

#[test]
fn a_file_that_vim_or_emacs_saves_keeps_its_pod() {
    let scratch = Scratch::new("saved");
    let (file, backup) = (scratch.0.join("a.yaml"), scratch.0.join("a.yaml~"));
    fs::write(&file, manifest("a", "one")).expect("written");
    let mut sources = Sources::new(vec![scratch.0.clone()]);
    let start = nodlet_host::clock::instant();
    assert!(!sources.read(start));
    for text in [manifest("a", "one"), "a typo: [".to_owned()] {
        fs::rename(&file, &backup).expect("moved aside");
        assert!(sources.read(start), "it may come back");
        assert_eq!(images(&sources), ["a=one"], "moved aside, to be written anew");
        fs::write(&file, text).expect("written anew");
        assert!(!sources.read(start + SAVED_WITHIN));
        assert_eq!(images(&sources), ["a=one"]);
    }
    // The backup stays; that is not the file that was read last.
    fs::remove_file(&file).expect("removed");
    assert!(!sources.read(start));
    assert!(images(&sources).is_empty(), "an old backup kept a pod");

    fs::write(&file, manifest("a", "one")).expect("written");
    sources.read(start);
    fs::rename(&file, &backup).expect("put away for good");
    assert!(sources.read(start));
    assert!(!sources.read(start + SAVED_WITHIN));
    assert!(images(&sources).is_empty(), "put away, and nothing wants it any more");
}

#[test]
fn a_later_directory_overrides_an_earlier_one_and_a_second_file_of_one_does_not() {
    let scratch = Scratch::new("order");
    let (vendor, site) = (scratch.directory("vendor"), scratch.directory("site"));
    for (file, image) in [("vendor/a", "vendor"), ("site/x", "site"), ("site/y", "late")] {
        scratch.write(file, manifest("a", image));
    }
    let mut sources = Sources::of(vec![vendor, site.clone()]);
    assert_eq!(images(&sources), ["a=site"]);
    let (_, refusals) = sources.wanted();
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].message.contains("duplicate pod name \"a\""), "{}", refusals[0].message);
    fs::remove_dir_all(site).expect("removed");
    news_with(&mut sources, &["a=vendor"]);
}

#[test]
fn a_file_that_did_not_change_keeps_the_uid_of_its_pod() {
    let scratch = Scratch::new("uid");
    scratch.write("a", manifest("a", "one"));
    let mut sources = scratch.sources();
    let uid = |sources: &Sources| sources.wanted().0.values().next().expect("one pod").pod.uid.clone();
    let before = uid(&sources);
    scratch.write("a", manifest("a", "one"));
    news(&mut sources);
    assert_eq!(uid(&sources), before);
    scratch.write("a", manifest("a", "two"));
    news(&mut sources);
    assert_ne!(uid(&sources), before);
}

#[test]
fn only_the_first_of_two_pods_with_the_same_uid_is_accepted() {
    let scratch = Scratch::new("one-uid");
    let of = |name: &str| manifest(name, "one").replace("metadata: {", "metadata: {uid: mine, ");
    scratch.write("a.yaml", of("web"));
    scratch.write("b.yaml", of("copy"));
    let mut sources = scratch.sources();
    let (wanted, refusals) = sources.wanted();
    assert_eq!(wanted.values().map(|wanted| &*wanted.pod.name).collect::<Vec<_>>(), ["web"]);
    assert_eq!(refusals.len(), 1);
    assert_eq!(refusals[0].object, Some((Kind::Pod, "default".into(), "copy".into())));
    let message = &refusals[0].message;
    assert!(
        message.contains("metadata.uid: Duplicate value: \"mine\": the pod default/web of "),
        "{message}"
    );
    scratch.remove("a.yaml");
    news_with(&mut sources, &["copy=one"]);
}

#[test]
fn beyond_the_limit_of_files_only_the_first_by_name_are_read() {
    let scratch = Scratch::new("many");
    for number in 0..MAX_FILES + 40 {
        scratch.write(&format!("{number:05}"), "");
    }
    for file in ["00007", "01050"] {
        scratch.write(file, manifest(&format!("p{file}"), "one"));
    }
    let sources = scratch.sources();
    assert_eq!(images(&sources), ["p00007=one"]);
    assert_eq!(sources.directories.directories[0].files.len(), MAX_FILES);
}

#[test]
fn a_directory_that_cannot_be_read_is_refused_and_looked_at_again() {
    let scratch = Scratch::new("unread");
    let directory = scratch.0.join("manifests");
    std::os::unix::fs::symlink(&directory, &directory).expect("linked");
    let mut sources = Sources::of(vec![directory.clone()]);
    let refusals = sources.wanted().1;
    assert!(refusals.len() == 1 && refusals[0].message.starts_with("failed to read "), "{refusals:?}");
    // Whatever a pod is from that is in there, nobody can say that it is wanted no more.
    assert!(sources.directories.is_incomplete() && sources.is_refused(&directory.join("a.yaml")));
    fs::remove_file(&directory).expect("it is a link");
    fs::create_dir(&directory).expect("made");
    fs::write(directory.join("a.yaml"), manifest("a", "one")).expect("written");
    sources.read(nodlet_host::clock::instant());
    assert_eq!(images(&sources), ["a=one"]);
    assert!(!sources.directories.is_incomplete() && sources.wanted().1.is_empty());
}

#[test]
fn presets_are_read_beside_pods_and_override_each_other_as_these_do() {
    let scratch = Scratch::new("presets");
    let (vendor, site) = (scratch.directory("vendor"), scratch.directory("site"));
    let preset = |name: &str, value: &str| {
        format!(
            "apiVersion: settings.k8s.io/v1alpha1\nkind: PodPreset\nmetadata: {{name: {name}}}\nspec: {{env: [{{name: A, value: {value}}}]}}\n"
        )
    };
    let write = |path: PathBuf, text: String| fs::write(path, text).expect("written");
    write(vendor.join("a.yaml"), format!("{}---\n{}", preset("p", "vendor"), manifest("web", "x:1")));
    write(vendor.join("b.yaml"), preset("q", "first"));
    write(vendor.join("c.yaml"), preset("q", "second"));
    write(site.join("a.yaml"), preset("p", "site"));
    let mut sources = Sources::new(vec![vendor.clone(), site.clone()]);
    let values = |sources: &Sources| -> Vec<String> {
        let (presets, _) = sources.definitions();
        let values = presets.values().map(|(preset, _)| preset.object()["spec"]["env"][0]["value"].take());
        values.filter_map(|value| value.as_str().map(str::to_owned)).collect()
    };
    sources.read(nodlet_host::clock::instant());
    assert_eq!(values(&sources), ["site", "first"]);
    assert_eq!(images(&sources), ["web=x:1"]);
    let (presets, refusals) = sources.definitions();
    let (name, (_, source)) = presets.first_key_value().expect("there are two");
    assert_eq!((&*name.2, source), ("p", &site.join("a.yaml")));
    assert_eq!(refusals.len(), 1);
    assert!(refusals[0].message.contains("c.yaml: podpreset default/q is ignored: "), "{:?}", refusals[0]);
    // A bad edit keeps it, as it keeps a pod.
    write(site.join("a.yaml"), preset("p", "[1]"));
    sources.read(nodlet_host::clock::instant());
    assert_eq!(values(&sources), ["site", "first"]);
    fs::remove_file(site.join("a.yaml")).expect("it was there");
    sources.read(nodlet_host::clock::instant());
    assert_eq!(values(&sources), ["vendor", "first"]);
}

#[test]
fn a_file_has_room_beside_all_others_and_in_place_of_itself() {
    let scratch = Scratch::new("room");
    let (vendor, ours) = (scratch.directory("vendor"), scratch.directory("ours"));
    let big = |name: &str, size: usize| {
        manifest(name, "one")
            .replace("metadata: {", &format!("metadata: {{annotations: {{a: {}}}, ", "x".repeat(size)))
    };
    for number in 0..15 {
        fs::write(vendor.join(format!("{number}")), big(&format!("p{number}"), 250_000)).expect("written");
    }
    let sources = Sources::of(vec![vendor.clone(), ours.clone()]);
    let objects: usize = sources.wanted().0.values().map(|wanted| wanted.object.get().len()).sum();
    let left = (4 << 20) - objects;
    let full =
        Err("quota exceeded: all manifests together can have at most 1024 objects and 4 MiB; delete some"
            .to_owned());
    let (new, first) = (ours.join("a"), vendor.join("0"));
    assert_eq!(sources.check_room(&new, left + 1, 0), full);
    assert_eq!(sources.check_room(&new, left, 0), Ok(()));
    assert_eq!(sources.check_room(&first, left + 250_000, 0), Ok(()));
    let long = sources.check_room(&new, 1, MAX_BYTES as usize + 1);
    assert_eq!(long, Err("its manifest is larger than 1 MiB".to_owned()));
}

#[test]
fn there_is_no_room_beyond_the_maximum_number_of_files() {
    let scratch = Scratch::new("full");
    for number in 0..MAX_FILES {
        scratch.write(&format!("{number:05}"), "");
    }
    let mut sources = scratch.sources();
    assert_eq!(
        sources.check_room(&scratch.0.join("a"), 1, 1),
        Err("quota exceeded: a directory can have at most 1024 manifests; delete some".to_owned())
    );
    assert_eq!(sources.check_room(&scratch.0.join("00007"), 1, 1), Ok(()));
    scratch.remove("00008");
    sources.read(nodlet_host::clock::instant() + SAVED_WITHIN * 2);
    sources.read(nodlet_host::clock::instant() + SAVED_WITHIN * 4);
    assert_eq!(sources.check_room(&scratch.0.join("a"), 1, 1), Ok(()));
}

#[test]
fn a_long_scan_is_done_in_parts_and_misses_no_change_between_them() {
    let scratch = Scratch::new("parts");
    let big = |image: &str| format!("{}# {}\n", manifest("NAME", image), "x".repeat(PART_BYTES));
    for name in ["a", "b", "c"] {
        scratch.write(name, big("one").replace("NAME", name));
    }
    let mut sources = Sources::new(vec![scratch.0.clone()]);
    let mut parsed = Vec::new();
    while parsed.len() < 2 {
        // A part may end early for the time that it took.
        let mut found = Vec::new();
        assert!(sources.directories.scan(nodlet_host::clock::instant(), &mut found));
        let (devices, handling) = (&mut DeviceFiles::default(), &sources.handling);
        parsed.extend(sources.directories.parse(found, devices, handling));
        assert!(parsed.len() < 3 && sources.directories.is_looking());
    }
    assert_eq!(images(&sources), [""; 0], "nothing is reported before the whole scan");
    sources.directories.report(parsed, |_| false, &mut sources.list, &sources.handling);
    scratch.write("a", big("two").replace("NAME", "a"));
    sources.read(nodlet_host::clock::instant());
    assert_eq!(images(&sources), ["a=one", "b=one", "c=one"]);
    assert!(!sources.directories.is_looking());
    news_with(&mut sources, &["a=two", "b=one", "c=one"]);
}

#[test]
fn what_the_agent_writes_and_removes_itself_is_not_read_and_what_others_change_is() {
    let scratch = Scratch::new("own");
    let mut sources = scratch.sources();
    let path = scratch.0.join("web.json");
    let write = |image: &str| {
        let new = scratch.0.join(".web.json.new");
        fs::write(&new, manifest("web", image)).expect("written");
        fs::rename(new, &path).expect("renamed");
        fs::File::open(&path).and_then(|file| Stamp::of_file(&file)).expect("it is there")
    };
    let is_news = |sources: &mut Sources| sources.directories.drain();
    let stamp = write("one");
    sources.directories.set_own(&path, OwnChange::Written(Some(stamp)));
    assert!(!is_news(&mut sources), "it is known");
    write("two");
    assert!(is_news(&mut sources), "somebody else has changed it");
    sources.read(nodlet_host::clock::instant());
    assert_eq!(images(&sources), ["web=two"]);
    fs::remove_file(&path).expect("removed");
    sources.directories.set_own(&path, OwnChange::Removed);
    assert!(!is_news(&mut sources), "it is known");
    write("three");
    let mut found = Vec::new();
    assert!(is_news(&mut sources) && !sources.directories.scan(nodlet_host::clock::instant(), &mut found));
    // The agent writes it while the scan runs: the scan may have seen the text before.
    let (devices, handling) = (&mut DeviceFiles::default(), &sources.handling);
    let parsed = sources.directories.parse(found, devices, handling);
    sources.directories.report(parsed, |own| own == path, &mut sources.list, handling);
    assert_eq!(images(&sources), ["web=two"], "its objects are those that the agent has written");
}

#[test]
fn a_refusal_names_the_object_of_a_file_by_its_last_contents_or_its_name() {
    let scratch = Scratch::new("refused-objects");
    let mut sources = Sources::new(vec![scratch.0.clone()]);
    let object = |sources: &mut Sources, name: &str, text: &str| {
        scratch.write(name, text);
        sources.read(Instant(0));
        let refusals = sources.wanted().1;
        let refusal = refusals.into_iter().find(|refusal| refusal.source.ends_with(name));
        refusal.map(|refusal| refusal.object)
    };
    let of = |kind: Kind, namespace: &str, name: &str| Some(Some((kind, namespace.into(), name.into())));
    let class = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: low}\nvalue: 1\n";
    assert_eq!(
        object(&mut sources, "priorityclass__high.json", "?"),
        of(Kind::PriorityClass, "", "high"),
        "by its name"
    );
    assert_eq!(object(&mut sources, "secret_web_key.json", "?"), of(Kind::Secret, "web", "key"));
    assert_eq!(object(&mut sources, "web.yaml", "?"), Some(None));
    assert_eq!(object(&mut sources, "low.yaml", class), None, "it is right");
    assert_eq!(object(&mut sources, "low.yaml", "?"), of(Kind::PriorityClass, "", "low"));
}
