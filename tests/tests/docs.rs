//! Tests that the README and `docs/` refer only to things that exist.

use std::fs;
use std::path::{Path, PathBuf};

use nodlet_tests::{Device, nodlet_program, project};

/// The text of a page, whose path may be relative to the project.
fn read(page: impl AsRef<Path>) -> String {
    let page = project().join(page);
    fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The pages of `docs/`, and these beside it.
fn pages<const N: usize>(beside: [&str; N]) -> Vec<PathBuf> {
    let mut pages = files_below(&project().join("docs"), "md");
    pages.extend(beside.map(|name| project().join(name)));
    pages
}

fn files_below(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, ending));
        } else if path.extension().is_some_and(|is| is == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn every_link_leads_to_a_file_and_every_anchor_to_a_heading() {
    let mut wrong = Vec::new();
    for page in pages(["README.md", "CHANGELOG.md", "SECURITY.md"]) {
        for link in links(&read(&page)) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name("").join(file) };
            let reached = target.exists()
                && (anchor.is_empty()
                    || headings(&fs::read_to_string(&target).unwrap_or_default())
                        .iter()
                        .any(|one| one == anchor));
            if !reached {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_guarantee_sentence_about_security_and_invariant_names_existing_tests() {
    let mut wrong = wrong_references("guarantees.md", None, false);
    wrong.extend(wrong_references("security.md", None, true));
    wrong.extend(wrong_references("architecture.md", Some("Invariants"), true));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The wrong references to tests in the items of this page, or of its section `section` up to the next heading.
/// `guests`: whether the tests may run in a guest.
fn wrong_references(page: &str, section: Option<&str>, guests: bool) -> Vec<String> {
    let page = project().join("docs").join(page);
    let mut text = read(&page);
    if let Some(section) = section {
        let (_, rest) = text.split_once(&format!("\n## {section}\n")).expect("the section is there");
        text = rest.split("\n#").next().unwrap_or_default().to_owned();
        assert!(text.matches("\n* ").count() > 10, "{section} has items");
    }
    let mut wrong = Vec::new();
    for item in text.split("\n* ").skip(1) {
        let item = item.split("\n\n").next().unwrap_or(item);
        let tests = item.split("[`").skip(1).filter_map(|rest| rest.split_once("`]("));
        let tests: Vec<_> = tests.filter_map(|(name, rest)| Some((name, rest.split_once(')')?.0))).collect();
        if tests.is_empty() {
            wrong.push(format!("nothing holds: {item}"));
        }
        for (name, file) in tests {
            let source = fs::read_to_string(page.with_file_name(file)).unwrap_or_default();
            let is_marked = |kind: &str| item.contains(&format!("(*{kind}*)"));
            match kind_of_test(&source, name) {
                Some(Runs::Here) => {}
                Some(Runs::InGuest) if guests && is_marked("guest") => {}
                Some(Runs::InLong) if is_marked("long") => {}
                Some(_) => {
                    wrong.push(format!("{name} runs in a guest or for long, which the item does not say"))
                }
                None => wrong.push(format!("{file} has no test {name}")),
            }
        }
    }
    wrong
}

/// Where a test runs.
#[derive(Debug, PartialEq)]
enum Runs {
    Here,
    InGuest,
    /// `cargo xtask long` runs it, and the check does not.
    InLong,
}

/// Where the test with this name in this source runs; `None` if it does not exist or never runs.
fn kind_of_test(source: &str, name: &str) -> Option<Runs> {
    let (before, _) = source.split_once(&format!("fn {name}()"))?;
    // A custom test harness has a list of its tests.
    if let Some((_, list)) = source.split_once("TESTS: &[(&str, fn())] = tests![") {
        let (list, _) = list.split_once(']')?;
        return list.split(',').any(|one| one.trim() == name).then_some(Runs::Here);
    }
    let above = before.rsplit_once('\n').map_or("", |(above, _)| above);
    let attributes = above.lines().rev().map(str::trim).take_while(|line| line.starts_with("#["));
    let attributes: Vec<&str> = attributes.collect();
    let ignored = attributes.iter().find(|line| line.starts_with("#[ignore"));
    match (attributes.contains(&"#[test]"), ignored) {
        (true, None) => Some(Runs::Here),
        (true, Some(why)) if why.contains("cargo xtask guest") => Some(Runs::InGuest),
        (true, Some(why)) if why.contains("cargo xtask long") => Some(Runs::InLong),
        (true, Some(_)) | (false, _) => None,
    }
}

#[test]
fn tests_are_distinguished_from_other_functions() {
    let source = "#[test]\nfn one() {}\nfn two() {}\n#[test]\n#[ignore = \"no\"]\nfn three() {}\n\
                  #[test]\n#[ignore = \"needs cgroup v2: cargo xtask guest\"]\nfn five() {}\n\
                  #[test]\n#[ignore = \"by cargo xtask long x\"]\nfn six() {}\n";
    assert_eq!(
        ["one", "two", "three", "four", "five", "six"].map(|name| kind_of_test(source, name)),
        [Some(Runs::Here), None, None, None, Some(Runs::InGuest), Some(Runs::InLong)]
    );
    let harness = "const TESTS: &[(&str, fn())] = tests![\n    one,\n];\nfn one() {}\nfn two() {}\n";
    assert_eq!(["one", "two"].map(|name| kind_of_test(harness, name)), [Some(Runs::Here), None]);
}

#[test]
fn every_path_in_the_pages_exists() {
    let tops = ["board/", "docs/", "examples/", "rootfs/", "runtime/", "tests/", "xtask/"];
    let mut wrong = Vec::new();
    for page in pages(["README.md", "SECURITY.md"]) {
        for word in read(&page).split('`').skip(1).step_by(2) {
            let plain = !word.contains([' ', '*', '<', '{', '…']);
            if plain && tops.iter().any(|top| word.starts_with(top)) && !project().join(word).exists() {
                wrong.push(format!("{}: {word}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_readme_lists_each_profile_of_a_board() {
    let readme = read("README.md");
    let profiles = files_below(&project().join("board/profiles"), "toml");
    let names = profiles.iter().filter_map(|profile| profile.file_stem()?.to_str());
    let missing: Vec<&str> = names.filter(|name| !readme.contains(&format!("\n| `{name}` | "))).collect();
    assert!(profiles.len() > 3 && missing.is_empty(), "{missing:?}");
}

#[test]
fn the_figures_of_the_readme_are_those_of_the_page_on_benchmarks() {
    let (readme, page) = (read("README.md"), read("docs/benchmarks.md"));
    let (short, long) = (between_marks(&readme), between_marks(&page));
    assert_eq!(short.lines().next(), long.lines().next(), "the date and the machine");
    // A short row has the medians of a long one, whose cells have the quartiles, too.
    let is_part_of = |short: &str, long: &str| {
        let begins = |(short, long): (&str, &str)| long.trim().starts_with(short.trim());
        short.split('|').zip(long.split('|')).all(begins)
    };
    let rows = |table| str::lines(table).filter(|line| line.starts_with("| ")).skip(1);
    let is_wrong = |row: &&str| !rows(long).any(|line| is_part_of(row, line));
    let wrong: Vec<&str> = rows(short).filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_commands_of_the_readme_print_what_it_shows() {
    let readme = read("README.md");
    let blocks = readme.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let shown = blocks.into_iter().find(|block| block.starts_with("# nodlet ")).expect("it has commands");
    let device = Device::start_without_images();
    let archive = nodlet_tests::demo_archive().display().to_string();
    for (command, expected) in shown.split("# nodlet ").filter_map(|part| part.split_once('\n')) {
        let word = |word: &str| match word {
            ".work/images/demo.oci.tar" => archive.clone(),
            path if path.starts_with("examples/") => project().join(path).display().to_string(),
            other => other.to_owned(),
        };
        if command == "get pods" {
            device.pod("web").wait_ready();
        }
        let words: Vec<String> = command.split(' ').map(word).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = device.command(&words).output().expect("nodlet can be run");
        assert_eq!(
            without_ages(&String::from_utf8_lossy(&output.stdout)),
            without_ages(expected),
            "{command}"
        );
    }
}

/// The words of each line of a table, without the age of a pod at its end.
fn without_ages(table: &str) -> Vec<Vec<&str>> {
    let is_age = |word: &&str| word.ends_with('s') && word.starts_with(|first: char| first.is_ascii_digit());
    table.lines().map(|line| line.split_whitespace().filter(|word| !is_age(word)).collect()).collect()
}

/// What `cargo xtask bench` measured: the lines between two marks.
fn between_marks(page: &str) -> &str {
    let (_, rest) = page.split_once("<!-- bench -->\n").expect("the first mark is there");
    rest.split_once("<!-- /bench -->").expect("the second mark is there").0
}

#[test]
fn each_manifest_of_the_how_to_page_is_accepted() {
    let text = read("docs/howto.md");
    let blocks = text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let manifests: Vec<&str> = blocks.filter(|block| block.contains("kind: ")).collect();
    assert!(manifests.len() >= 5, "{manifests:?}");
    for manifest in manifests {
        let device = Device::new();
        let ran = device.nodlet_with_input(["apply", "--dry-run=client", "-f", "-"], manifest);
        assert!(ran.code == 0 && ran.stderr.is_empty(), "{manifest}{ran:?}");
    }
}

#[test]
fn every_verb_has_help_with_an_example() {
    let help = |words: &[&str]| {
        let output = std::process::Command::new(nodlet_program()).args(words).arg("--help").output();
        let output = output.expect("nodlet can be run");
        assert!(output.status.success(), "{words:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let all = help(&[]);
    let list =
        all.split("Verbs:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list of verbs");
    let verbs: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(verbs.len() > 25, "{all}");
    for verb in verbs {
        let text = help(&[verb]);
        assert!(text.contains("Example") && text.contains(&format!("nodlet {verb}")), "{text}");
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
        assert!(long.is_empty(), "{verb}: {long:?}");
    }
}

/// The targets of links in the form `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link)).collect()
}

/// The headings, as GitHub's anchors.
fn headings(text: &str) -> Vec<String> {
    let of = |line: &str| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'))
            .map(|letter| if letter == ' ' { '-' } else { letter })
            .collect()
    };
    text.lines().filter(|line| line.starts_with('#')).map(of).collect()
}

#[test]
fn anchors_are_made_as_readers_follow_them() {
    assert_eq!(headings("# A pod's `life`, in short\ntext"), ["a-pods-life-in-short"]);
    assert_eq!(links("see [one](a.md#b) and [two](c)"), ["a.md#b", "c"]);
}
