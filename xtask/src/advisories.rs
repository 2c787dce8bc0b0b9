//! `cargo xtask advisories [--database DIR]`: reports the known vulnerabilities of the crates in `Cargo.lock`, without a
//! network. `DIR` is a checkout of RustSec's advisory database; `xtask/advisories.toml` has the advisories of crates for
//! which RustSec has none, and the decisions about advisories that do not concern nodlet. `docs/updating.md` documents
//! when to run this, and what follows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use nodlet_build::arguments::Arguments;
use nodlet_build::files;
use nodlet_build::task::{Outcome, Task, TaskError, git, project};
use semver::{Version, VersionReq};
use serde::Deserialize;

/// An advisory, as nodlet needs it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advisory {
    id: String,
    package: String,
    /// The day of its publication.
    date: String,
    title: String,
    /// The versions without the vulnerability, as requirements of cargo.
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
    /// The pages that publish it.
    sources: Vec<String>,
}

/// A file of RustSec's database. It has more fields.
#[derive(Deserialize)]
struct Entry {
    advisory: EntryAdvisory,
    #[serde(default)]
    versions: Versions,
    #[serde(default)]
    affected: Affected,
}

#[derive(Deserialize)]
struct EntryAdvisory {
    id: String,
    package: String,
    date: String,
    url: Option<String>,
    /// Why an advisory reports no vulnerability, such as `unmaintained`.
    informational: Option<String>,
    withdrawn: Option<String>,
}

#[derive(Default, Deserialize)]
struct Versions {
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

#[derive(Default, Deserialize)]
struct Affected {
    /// The systems with the vulnerability; empty for all.
    #[serde(default)]
    os: Vec<String>,
}

/// `xtask/advisories.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ours {
    watched: Vec<Watched>,
    #[serde(default)]
    advisory: Vec<Advisory>,
    #[serde(default)]
    accepted: Vec<Accepted>,
}

/// A crate for which RustSec has no entries, and whose own advisories somebody reads.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Watched {
    package: String,
    sources: Vec<String>,
    /// The day on which they were last read.
    read: String,
}

/// An advisory that does not concern nodlet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    id: String,
    reason: String,
}

/// A crate of `Cargo.lock`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Locked {
    name: String,
    version: Version,
}

/// The task `cargo xtask advisories`.
pub(crate) const TASK: Task = Task::new(
    "advisories",
    "[--database DIR]",
    "list known vulnerabilities of the crates, from RustSec's database in DIR and from xtask/advisories.toml",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let database: Option<PathBuf> = arguments.one("--database")?;
    arguments.end()?;
    let crates = locked(&fs::read_to_string(project().join("Cargo.lock"))?)?;
    let ours = ours(&crates)?;
    let mut advisories = ours.advisory.clone();
    match &database {
        Some(database) => {
            let found = read_database(database, &crates)?;
            println!(
                "RustSec: {} advisories about crates of Cargo.lock; the database is of {}",
                found.len(),
                date_of(database)
            );
            advisories.extend(found);
        }
        None => println!(
            "RustSec's database was not read: clone https://github.com/RustSec/advisory-db, and name the directory with \
             --database"
        ),
    }
    for watched in &ours.watched {
        println!(
            "{}: no entries at RustSec; {} read on {}",
            watched.package,
            watched.sources.join(", "),
            watched.read
        );
    }
    let (report, is_bad) = judge(&crates, &advisories, &ours.accepted, database.is_some())?;
    print!("{report}");
    if is_bad {
        return Err(
            "crates have advisories that are not accepted: docs/updating.md documents what follows".into()
        );
    }
    let among = match &database {
        Some(_) => "",
        None => " among the advisories of xtask/advisories.toml alone",
    };
    println!("{} crates, no known vulnerability{among}", crates.len());
    Ok(())
}

/// The crates of other authors in a lock file.
fn locked(text: &str) -> Result<BTreeSet<Locked>, TaskError> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        source: Option<String>,
    }
    let lock: Lock = toml::from_str(text).map_err(|error| format!("Cargo.lock: {error}"))?;
    let foreign = lock.package.into_iter().filter(|package| package.source.is_some());
    foreign
        .map(|Package { name, version, .. }| {
            let version = Version::parse(&version).map_err(|error| format!("{name} {version}: {error}"))?;
            Ok(Locked { name, version })
        })
        .collect()
}

/// Reads `xtask/advisories.toml`.
fn ours(crates: &BTreeSet<Locked>) -> Result<Ours, TaskError> {
    let path = project().join("xtask/advisories.toml");
    let text = files::read_text(&path)?;
    let ours: Ours = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    for watched in &ours.watched {
        if !crates.iter().any(|one| one.name == watched.package) {
            return Err(TaskError(format!(
                "xtask/advisories.toml: {} is not in Cargo.lock",
                watched.package
            )));
        }
    }
    for advisory in &ours.advisory {
        if advisory.sources.is_empty() || !ours.watched.iter().any(|one| one.package == advisory.package) {
            return Err(TaskError(format!(
                "xtask/advisories.toml: {} has no source or no watched crate",
                advisory.id
            )));
        }
    }
    Ok(ours)
}

/// The advisories of RustSec's database about these crates, whatever their versions.
fn read_database(database: &Path, crates: &BTreeSet<Locked>) -> Result<Vec<Advisory>, TaskError> {
    let directory = database.join("crates");
    if !directory.is_dir() {
        return Err(TaskError(format!(
            "{} has no directory crates: it is not RustSec's database",
            database.display()
        )));
    }
    let mut advisories = Vec::new();
    let names: BTreeSet<&str> = crates.iter().map(|one| one.name.as_str()).collect();
    for name in names {
        // Most crates have no advisory.
        let Ok(entries) = fs::read_dir(directory.join(name)) else { continue };
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
        files.sort();
        for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "md")) {
            let text = fs::read_to_string(file)?;
            let advisory = parse(&text).map_err(|TaskError(why)| format!("{}: {why}", file.display()))?;
            advisories.extend(advisory);
        }
    }
    Ok(advisories)
}

/// Reads a file of RustSec's database: a block of TOML, and a text in Markdown. `None` if it reports nothing about Linux,
/// or was withdrawn.
fn parse(text: &str) -> Result<Option<Advisory>, TaskError> {
    let (head, body) = text
        .strip_prefix("```toml\n")
        .and_then(|rest| rest.split_once("\n```"))
        .ok_or("it does not begin with a block of TOML")?;
    let Entry { advisory, versions, affected } = toml::from_str(head)?;
    let is_for_others = !affected.os.is_empty() && !affected.os.iter().any(|os| os == "linux");
    if advisory.withdrawn.is_some() || is_for_others {
        return Ok(None);
    }
    let title = body.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or_default().trim();
    let title = match &advisory.informational {
        Some(kind) => format!("{kind}: {title}"),
        None => title.to_owned(),
    };
    Ok(Some(Advisory {
        sources: advisory.url.into_iter().collect(),
        id: advisory.id,
        package: advisory.package,
        date: advisory.date,
        title,
        patched: versions.patched,
        unaffected: versions.unaffected,
    }))
}

/// A line for each advisory that concerns one of the crates, and whether one of them is not accepted. `is_complete`:
/// RustSec's database is among the advisories.
fn judge(
    crates: &BTreeSet<Locked>,
    advisories: &[Advisory],
    accepted: &[Accepted],
    is_complete: bool,
) -> Result<(String, bool), TaskError> {
    let (mut report, mut is_bad) = (String::new(), false);
    let mut used = BTreeSet::new();
    for advisory in advisories {
        let mut safe = Vec::new();
        for text in advisory.patched.iter().chain(&advisory.unaffected) {
            safe.push(
                VersionReq::parse(text).map_err(|error| format!("{}: {text:?}: {error}", advisory.id))?,
            );
        }
        for one in crates.iter().filter(|one| one.name == advisory.package) {
            if safe.iter().any(|versions| versions.matches(&one.version)) {
                continue;
            }
            let acceptance = accepted.iter().find(|accepted| accepted.id == advisory.id);
            let verdict = match acceptance {
                Some(accepted) => format!("accepted: {}", accepted.reason),
                None if advisory.patched.is_empty() => "no version is without it".to_owned(),
                None => format!("update to {}", advisory.patched.join(" or ")),
            };
            used.extend(acceptance.map(|accepted| accepted.id.as_str()));
            is_bad |= acceptance.is_none();
            let Advisory { id, date, title, sources, .. } = advisory;
            let sources = sources.join(" ");
            report.push_str(&format!(
                "{} {}: {id} of {date}: {title}; {verdict} {sources}\n",
                one.name, one.version
            ));
        }
    }
    // Without the database it is not known what an acceptance is about.
    if is_complete && let Some(unused) = accepted.iter().find(|accepted| !used.contains(accepted.id.as_str()))
    {
        return Err(TaskError(format!(
            "xtask/advisories.toml accepts {}, which concerns no crate any more: remove it",
            unused.id
        )));
    }
    Ok((report, is_bad))
}

/// The day of the database's last commit.
fn date_of(database: &Path) -> String {
    git(database, &["log", "-1", "--format=%cs"]).unwrap_or_else(|_| "an unknown day".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"```toml
[advisory]
id = "RUSTSEC-2026-0001"
package = "parser"
date = "2026-01-31"
url = "https://example.com/1"
categories = ["memory-corruption"]
aliases = ["CVE-2026-0001"]

[affected.functions]
"parser::parse" = ["< 1.2.3"]

[versions]
patched = [">= 1.2.3, < 2.0.0", ">= 2.0.1"]
unaffected = ["< 1.0.0"]
```

# Parsing reads past the end

A text.
"#;

    fn of(crates: &[(&str, &str)]) -> BTreeSet<Locked> {
        let locked = |(name, version): &(&str, &str)| Locked {
            name: (*name).into(),
            version: Version::parse(version).unwrap(),
        };
        crates.iter().map(locked).collect()
    }

    fn database(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("xtask-advisories-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(dir.join("crates")).unwrap();
        for (path, text) in files {
            let file = dir.join("crates").join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_vulnerable_version_is_found_in_rustsecs_database_and_a_mended_one_is_not() {
        let dir = database(
            "versions",
            &[("parser/RUSTSEC-2026-0001.md", ENTRY), ("other/RUSTSEC-1.md", "no TOML")],
        );
        for (version, is_vulnerable) in [
            ("0.9.0", false),
            ("1.0.0", true),
            ("1.2.2", true),
            ("1.2.3", false),
            ("2.0.0", true),
            ("2.0.1", false),
        ] {
            let crates = of(&[("parser", version), ("unrelated", "1.0.0")]);
            let advisories = read_database(&dir, &crates).unwrap();
            let (report, is_bad) = judge(&crates, &advisories, &[], true).unwrap();
            assert_eq!(is_bad, is_vulnerable, "{version}: {report}");
            let expected = "RUSTSEC-2026-0001 of 2026-01-31: Parsing reads past the end; update to >= 1.2.3, < 2.0.0 or \
                            >= 2.0.1 https://example.com/1\n";
            assert_eq!(
                report,
                if is_vulnerable { format!("parser {version}: {expected}") } else { String::new() }
            );
        }
        // The file of a crate that nodlet uses must be readable.
        assert!(read_database(&dir, &of(&[("other", "1.0.0")])).unwrap_err().0.contains("RUSTSEC-1.md"));
        assert!(
            read_database(&dir.join("crates"), &of(&[])).unwrap_err().0.contains("not RustSec's database")
        );
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn withdrawn_advisories_and_those_of_other_systems_are_left_out_and_unmaintained_crates_are_not() {
        let with = |line: &str| ENTRY.replace("categories", &format!("{line}\ncategories"));
        assert!(parse(&with("withdrawn = \"2026-02-01\"")).unwrap().is_none());
        let unmaintained = parse(&with("informational = \"unmaintained\"")).unwrap().unwrap();
        assert_eq!(unmaintained.title, "unmaintained: Parsing reads past the end");
        let on = |os: &str| {
            ENTRY.replace(
                "[affected.functions]",
                &format!("[affected]\nos = [\"{os}\"]\n[affected.functions]"),
            )
        };
        assert!(parse(&on("windows")).unwrap().is_none());
        assert!(parse(&on("linux")).unwrap().is_some());
    }

    #[test]
    fn an_accepted_advisory_is_shown_with_its_reason_until_it_concerns_no_crate() {
        let accepted =
            [Accepted { id: "RUSTSEC-2026-0001".into(), reason: "it is only parsed in tests".into() }];
        let advisories = [parse(ENTRY).unwrap().unwrap()];
        let (report, is_bad) = judge(&of(&[("parser", "1.0.0")]), &advisories, &accepted, true).unwrap();
        assert!(!is_bad && report.contains("accepted: it is only parsed in tests"), "{report}");
        let mended = of(&[("parser", "2.0.1")]);
        let why = judge(&mended, &advisories, &accepted, true).unwrap_err().0;
        assert!(why.contains("RUSTSEC-2026-0001") && why.contains("remove it"), "{why}");
        judge(&mended, &[], &accepted, false).unwrap();
    }

    #[test]
    fn our_own_advisories_are_found_in_the_versions_that_they_name() {
        let crates = locked(&fs::read_to_string(project().join("Cargo.lock")).unwrap()).unwrap();
        let ours = ours(&crates).unwrap();
        assert!(!judge(&crates, &ours.advisory, &ours.accepted, false).unwrap().1);
        let watched: Vec<&str> = ours.watched.iter().map(|one| one.package.as_str()).collect();
        assert_eq!(watched, ["libcontainer", "libcgroups", "oci-spec", "cgroups-rs"]);
        let (report, is_bad) = judge(&of(&[("libcontainer", "0.5.6")]), &ours.advisory, &[], false).unwrap();
        assert!(is_bad && report.contains("CVE-2025-62161") && report.contains("CVE-2025-62596"), "{report}");
        assert!(!report.contains("CVE-2025-27612"), "mended in 0.5.3: {report}");
    }
}
