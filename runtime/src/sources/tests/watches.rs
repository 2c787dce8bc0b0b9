//! Tests of which changes of files are noticed.

use super::super::watches::watch_way_to;
use super::*;

#[test]
fn a_directory_that_vanishes_and_returns_is_found_again() {
    let scratch = Scratch::new("vanish");
    let directory = scratch.0.join("deep/manifests");
    let mut sources = Sources::of(vec![directory.clone()]);
    fs::create_dir(scratch.0.join("deep")).expect("made");
    news(&mut sources);
    fs::create_dir(&directory).expect("made");
    news(&mut sources);
    fs::write(directory.join("a"), manifest("a", "one")).expect("written");
    news_with(&mut sources, &["a=one"]);
    scratch.rename("deep", "away");
    news_with(&mut sources, &[]);
    scratch.rename("away", "deep");
    news_with(&mut sources, &["a=one"]);
    scratch.write("other", "not ours");
    assert!(quiet(&mut sources), "a file above the directory woke the loop");
}

#[test]
fn every_link_on_the_way_to_a_manifest_is_watched_and_its_target() {
    let scratch = Scratch::new("way");
    // The links are beside the manifest directory, in a directory of which else only the way to that one counts.
    let directory = scratch.directory("manifests");
    for version in ["one", "two", "three"] {
        scratch.directory(version);
        scratch.write(&format!("{version}/a.yaml"), manifest("a", version));
    }
    let switch_to = |version: &str| {
        symlink(version, scratch.0.join("next")).expect("linked");
        scratch.rename("next", "current");
    };
    switch_to("one");
    symlink("../current/a.yaml", directory.join("a.yaml")).expect("linked");
    let mut sources = Sources::of(vec![directory.clone()]);
    assert_eq!(images(&sources), ["a=one"]);
    for version in ["two", "three"] {
        switch_to(version);
        news_with(&mut sources, &[&format!("a={version}")]);
    }
    scratch.write("three/a.yaml", manifest("a", "four"));
    news_with(&mut sources, &["a=four"]);
    assert!(quiet(&mut sources), "nothing has changed");
    scratch.write("other", "not ours");
    assert!(quiet(&mut sources), "a file beside the links woke the loop");
}

#[test]
fn a_directory_that_is_made_while_it_is_looked_for_is_found() {
    const LEVELS: [&str; 4] = ["b", "b/c", "b/c/d", "b/c/d/manifests"];
    let scratch = Scratch::new("race");
    // So many of the levels are made after the so manieth step of the scan, the others after all.
    for (levels, step) in (1..=LEVELS.len()).flat_map(|levels| (1..=8).map(move |step| (levels, step))) {
        let above = scratch.0.join(format!("{levels}-{step}"));
        fs::create_dir(&above).expect("made");
        let make = |levels: &[&str]| {
            levels.iter().for_each(|level| {
                fs::create_dir(above.join(level)).expect("made");
            })
        };
        let directory = above.join(LEVELS[3]);
        let mut sources = Sources::new(vec![directory.clone()]);
        sources.directories.watches.begin();
        let mut steps = 0;
        watch_way_to(&directory, |place| {
            let watched = sources.directories.watches.watch(place);
            steps += 1;
            if steps == step {
                make(&LEVELS[..levels]);
            }
            watched
        });
        make(if steps >= step { &LEVELS[levels..] } else { &LEVELS });
        fs::write(directory.join(".new"), manifest("a", "one")).expect("written");
        fs::rename(directory.join(".new"), directory.join("a.yaml")).expect("renamed");
        while images(&sources).is_empty() {
            news(&mut sources);
        }
    }
}

#[test]
fn a_file_that_is_being_written_is_read_when_it_is_closed() {
    use std::io::Write;
    let scratch = Scratch::new("writing");
    let mut sources = scratch.sources();
    let mut file = fs::File::create(scratch.0.join("a.yaml")).expect("made");
    let text = manifest("a", "one");
    file.write_all(&text.as_bytes()[..20]).expect("written");
    assert!(quiet(&mut sources), "half a file was worth reading");
    file.write_all(&text.as_bytes()[20..]).expect("written");
    drop(file);
    news_with(&mut sources, &["a=one"]);
    fs::hard_link(scratch.0.join("a.yaml"), scratch.0.join(".hidden")).expect("linked");
    fs::hard_link(scratch.0.join("a.yaml"), scratch.0.join("b.yaml")).expect("linked");
    assert!(!quiet(&mut sources), "a second name of a file went unseen");
}

#[test]
fn temporary_files_of_editors_are_ignored() {
    let scratch = Scratch::new("editor");
    let mut sources = scratch.sources();
    for name in [".a.yaml.swp", "a.yaml~", "#a.yaml#"] {
        scratch.write(name, manifest("a", "one"));
    }
    assert!(quiet(&mut sources), "a hidden file woke the loop");
    // As nodlet and rsync write: beside it, then renamed over it.
    scratch.rename(".a.yaml.swp", "a.yaml");
    news_with(&mut sources, &["a=one"]);
    scratch.rename("a.yaml", "b.conf");
    news_with(&mut sources, &["a=one"]);
}
