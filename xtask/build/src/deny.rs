//! `cargo xtask deny [--write]`: checks all dependencies by `deny.toml`: licences, second versions, crates that must not be
//! used, and where crates come from. It needs neither a network nor another program: the file has the form of cargo-deny,
//! of which this task reads what nodlet uses, and rejects the rest.
//!
//! It also checks what packages say about licences: `board/packages/licences/crates.txt` with all texts, the recipe for
//! Yocto and the makefile for Buildroot. `--write` writes them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use md5::{Digest, Md5};
use serde::Deserialize;
use serde_json::Value;

use crate::arguments::Arguments;
use crate::crates::{self, Crate};
use crate::files;
use crate::targets::{self, TARGETS};
use crate::task::{Outcome, Task, TaskError, output, project};
use crate::{cross, tools};

/// `deny.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    targets: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    multiple_versions: Denied,
    wildcards: Denied,
    allow_wildcard_paths: bool,
    deny: Vec<Named>,
    skip: Vec<Named>,
}

/// The only level that this task supports.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Denied {
    Deny,
}

/// A crate, as `NAME` or `NAME@VERSION`, and why it is named.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    #[serde(rename = "crate")]
    spec: String,
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    unknown_registry: Denied,
    unknown_git: Denied,
    allow_registry: Vec<String>,
}

/// A dependency of the workspace, of the program or only of its tests and tasks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    /// An SPDX expression.
    license: String,
    source: String,
}

/// The task `cargo xtask deny`.
pub const TASK: Task = Task::new(
    "deny",
    "[--write]",
    "check licences, versions and sources of crates by deny.toml, and the licences in packages; --write writes these",
    run,
);

/// Checks all dependencies and the licences in packages; with `--write` writes the latter.
///
/// # Errors
/// A rule is broken, which the error names.
pub fn run(arguments: &[String]) -> Outcome {
    let mut arguments = Arguments::new(&TASK, arguments);
    let write = arguments.has("--write");
    arguments.end()?;
    let rules = rules()?;
    let (mut packages, mut linked, mut wildcards) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for target in TARGETS {
        let metadata = crates::metadata(target)?;
        packages.extend(dependencies(&metadata, &crates::names_in_workspace(target)?)?);
        wildcards.extend(wildcard_dependencies(&metadata));
        linked.extend(crates::linked_in(&metadata, &crates::names(target)?)?);
    }
    let mut faults = judge(&rules, &packages);
    faults.extend(wildcards);
    let linked: Vec<Crate> = linked.into_iter().collect();
    match texts_of_packages(&rules, &linked) {
        Ok(texts) => {
            for (path, text) in texts {
                let file = project().join(&path);
                let is_as_written = fs::read_to_string(&file).is_ok_and(|before| before == text);
                if write {
                    fs::write(&file, text)?;
                } else if !is_as_written {
                    faults.push(format!(
                        "{path} does not have the licences of Cargo.lock: run `cargo xtask deny --write`"
                    ));
                }
            }
        }
        Err(TaskError(why)) => faults.push(why),
    }
    if !faults.is_empty() {
        return Err(TaskError(format!("deny.toml is not followed:\n  {}", faults.join("\n  "))));
    }
    println!(
        "{} crates, of which {} are in nodlet, are as deny.toml wants them",
        packages.len(),
        linked.len()
    );
    Ok(())
}

/// The step of `cargo xtask check`: all of that, and the program for boards lists its crates so that others can read it.
pub fn check() -> Outcome {
    run(&[])?;
    let target = targets::host()?;
    require_listed(&cross::build(target)?, &crates::linked(target)?)
}

/// Requires that `rust-audit-info` finds each of the crates in a program.
pub fn require_listed(program: &Path, linked: &[Crate]) -> Outcome {
    let mut reader = Command::new(tools::RUST_AUDIT_INFO.provide()?);
    let list: Value = serde_json::from_str(&output(reader.arg(program))?)?;
    let has = |one: &&Crate| {
        let packages = list["packages"].as_array().into_iter().flatten();
        packages.into_iter().any(|package| package["name"] == *one.name && package["version"] == *one.version)
    };
    match linked.iter().find(|one| !has(one)) {
        Some(missing) => Err(TaskError(format!(
            "{} does not list {} {}",
            program.display(),
            missing.name,
            missing.version
        ))),
        None => Ok(()),
    }
}

fn rules() -> Result<Rules, TaskError> {
    let text = fs::read_to_string(project().join("deny.toml"))?;
    let rules: Rules = toml::from_str(&text).map_err(|error| format!("deny.toml: {error}"))?;
    let Bans { multiple_versions: Denied::Deny, wildcards: Denied::Deny, .. } = rules.bans;
    let Sources { unknown_registry: Denied::Deny, unknown_git: Denied::Deny, .. } = rules.sources;
    let all: BTreeSet<String> = TARGETS.iter().map(|target| target.triple.to_owned()).collect();
    if rules.graph.targets != all || !rules.bans.allow_wildcard_paths {
        return Err(
            "deny.toml: graph.targets must be those of `cargo xtask cross`, and allow-wildcard-paths true"
                .into(),
        );
    }
    let unnamed = rules.bans.skip.iter().chain(&rules.bans.deny).find(|named| named.reason.trim().is_empty());
    match unnamed {
        Some(named) => Err(TaskError(format!("deny.toml: {} has no reason", named.spec))),
        None => Ok(rules),
    }
}

/// The crates of other authors in the output of `cargo metadata` that have these names and versions.
fn dependencies(metadata: &Value, names: &BTreeSet<(String, String)>) -> Result<Vec<Package>, TaskError> {
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists packages")?;
    let foreign = packages.iter().filter_map(|package| {
        let text = |field: &str| package[field].as_str().map(str::to_owned);
        let patched = || crates::is_patched(package).then(|| CRATES_IO.to_owned());
        Some(Package {
            name: text("name")?,
            version: text("version")?,
            license: crates::license(package),
            source: text("source").or_else(patched)?,
        })
    });
    Ok(foreign.filter(|package| names.contains(&(package.name.clone(), package.version.clone()))).collect())
}

/// The source of a published crate, as cargo names it.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The dependencies of nodlet's own crates that accept any published version.
fn wildcard_dependencies(metadata: &Value) -> Vec<String> {
    let ours =
        metadata["packages"].as_array().into_iter().flatten().filter(|package| package["source"].is_null());
    let ours = ours.filter(|package| !crates::is_patched(package));
    let mut wildcards = Vec::new();
    for package in ours {
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if dependency["req"] == "*" && dependency["path"].is_null() {
                wildcards.push(format!("{} accepts any version of {}", package["name"], dependency["name"]));
            }
        }
    }
    wildcards
}

/// What is wrong with the packages, a line each.
fn judge(rules: &Rules, packages: &BTreeSet<Package>) -> Vec<String> {
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let Package { name, version, license, source } = package;
        versions.entry(name).or_default().insert(version);
        if choose(license, &allowed(rules, name)).is_none() {
            faults.push(format!("{name} {version}: no licence of {license:?} is allowed"));
        }
        if !rules.sources.allow_registry.iter().any(|allowed| source == &format!("registry+{allowed}")) {
            faults.push(format!("{name} {version} is from {source}"));
        }
        if let Some(ban) = rules.bans.deny.iter().find(|ban| is_named(ban, name, version)) {
            faults.push(format!("{name} {version} must not be used: {}", ban.reason));
        }
    }
    for (name, versions) in &versions {
        let is_skipped = |version: &&&str| rules.bans.skip.iter().any(|skip| is_named(skip, name, version));
        let remaining: Vec<&str> = versions.iter().filter(|version| !is_skipped(version)).copied().collect();
        if remaining.len() > 1 {
            faults.push(format!(
                "{name} has the versions {}: name one of them in bans.skip",
                remaining.join(", ")
            ));
        }
    }
    let is_needed = |skip: &&Named| {
        let of = |(name, versions): (&&str, &BTreeSet<&str>)| {
            versions.len() > 1 && versions.iter().any(|version| is_named(skip, name, version))
        };
        versions.iter().any(of)
    };
    let unneeded = rules.bans.skip.iter().filter(|skip| !is_needed(skip));
    faults.extend(unneeded.map(|skip| format!("{} in bans.skip is no second version any more", skip.spec)));
    faults
}

fn is_named(named: &Named, name: &str, version: &str) -> bool {
    match named.spec.split_once('@') {
        Some((named, of)) => named == name && of == version,
        None => named.spec == name,
    }
}

/// The licences that a crate may have.
fn allowed<'a>(rules: &'a Rules, name: &str) -> Vec<&'a str> {
    let exceptions = rules.licenses.exceptions.iter().filter(|exception| exception.name == name);
    let more = exceptions.flat_map(|exception| &exception.allow);
    rules.licenses.allow.iter().chain(more).map(String::as_str).collect()
}

/// The licences of an SPDX expression under which nodlet uses a crate: of alternatives, the first that is allowed; `None`
/// if none is.
fn choose(expression: &str, allowed: &[&str]) -> Option<BTreeSet<String>> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let chosen = alternatives(&mut rest, allowed)?;
    if rest.is_empty() { chosen } else { None }
}

/// Reads alternatives. `None` for a wrong expression, `Some(None)` if no alternative is allowed.
fn alternatives(words: &mut &[&str], allowed: &[&str]) -> Option<Option<BTreeSet<String>>> {
    let mut chosen = None;
    loop {
        let mut all = Some(BTreeSet::new());
        loop {
            let one = licence(words, allowed)?;
            all = all.zip(one).map(|(mut all, one)| {
                all.extend(one);
                all
            });
            match words.split_first() {
                Some((&"AND", rest)) => *words = rest,
                _ => break,
            }
        }
        chosen = chosen.or(all);
        match words.split_first() {
            Some((&"OR", rest)) => *words = rest,
            _ => return Some(chosen),
        }
    }
}

fn licence(words: &mut &[&str], allowed: &[&str]) -> Option<Option<BTreeSet<String>>> {
    let (first, rest) = words.split_first()?;
    *words = rest;
    if *first == "(" {
        let inner = alternatives(words, allowed)?;
        let (end, rest) = words.split_first()?;
        *words = rest;
        return (*end == ")").then_some(inner);
    }
    let mut name = (*first).to_owned();
    if let ["WITH", exception, rest @ ..] = *words {
        name = format!("{name} WITH {exception}");
        *words = rest;
    }
    Some(allowed.contains(&name.as_str()).then(|| BTreeSet::from([name])))
}

/// The files about licences in packages, with what they must contain.
fn texts_of_packages(rules: &Rules, linked: &[Crate]) -> Result<Vec<(String, String)>, TaskError> {
    let mut names = BTreeSet::from(["Apache-2.0".to_owned()]);
    // musl's licence.
    names.insert("MIT".into());
    for one in linked {
        names.extend(choose(&one.license, &allowed(rules, &one.name)).into_iter().flatten());
    }
    let names: Vec<String> = names.into_iter().collect();
    let crates = crates::texts(linked)?;
    let sum = files::digits(&Md5::digest(crates.as_bytes()));
    let recipe = "board/packages/yocto/meta-nodlet/recipes-containers/nodlet/nodlet.bb";
    let makefile = "board/packages/buildroot/package/nodlet/nodlet.mk";
    let with_lines = |path: &str, lines: &[(&str, String)]| -> Result<(String, String), TaskError> {
        let before = fs::read_to_string(project().join(path))?;
        Ok((path.to_owned(), replaced(path, &before, lines)?))
    };
    Ok(vec![
        with_lines(
            recipe,
            &[
                ("LICENSE = ", format!("LICENSE = \"{}\"", names.join(" & "))),
                ("LIC_FILES_CHKSUM += ", format!("LIC_FILES_CHKSUM += \"file://{TEXTS};md5={sum}\"")),
            ],
        )?,
        with_lines(
            makefile,
            &[
                ("NODLET_LICENSE = ", format!("NODLET_LICENSE = {}", names.join(", "))),
                ("NODLET_LICENSE_FILES = ", format!("NODLET_LICENSE_FILES = LICENSE {TEXTS}")),
            ],
        )?,
        (TEXTS.to_owned(), crates),
    ])
}

/// The file with the texts of the licences of all crates in nodlet, below the project's root.
pub const TEXTS: &str = "board/packages/licences/crates.txt";

/// A text with other lines in the place of those with these beginnings, each of which it must have once.
fn replaced(path: &str, text: &str, lines: &[(&str, String)]) -> Result<String, TaskError> {
    let mut replaced: Vec<&str> = text.lines().collect();
    for (beginning, line) in lines {
        let mut places = replaced.iter_mut().filter(|before| before.starts_with(beginning));
        match (places.next(), places.next()) {
            (Some(place), None) => *place = line,
            _ => {
                return Err(TaskError(format!("{path} must have one line that begins with {beginning:?}")));
            }
        }
    }
    Ok(replaced.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        graph = { targets = [] }
        sources = { unknown-registry = "deny", unknown-git = "deny", allow-registry = ["https://github.com/rust-lang/crates.io-index"] }
        [licenses]
        allow = ["Apache-2.0", "MIT"]
        exceptions = [{ crate = "paths", allow = ["MPL-2.0"] }]
        [bans]
        multiple-versions = "deny"
        wildcards = "deny"
        allow-wildcard-paths = true
        deny = [{ crate = "ring", reason = "it needs a compiler for C" }]
        skip = [{ crate = "nix@0.25.1", reason = "an old crate needs it" }]
    "#;

    fn package(name: &str, version: &str, license: &str) -> Package {
        let (name, version, license) = (name.into(), version.into(), license.into());
        Package { name, version, license, source: CRATES_IO.into() }
    }

    fn faults(packages: &[Package]) -> Vec<String> {
        let nix = [package("nix", "0.25.1", "MIT"), package("nix", "0.29.0", "MIT")];
        judge(&toml::from_str(RULES).unwrap(), &packages.iter().chain(&nix).cloned().collect())
    }

    #[test]
    fn each_rule_rejects_what_breaks_it_and_names_the_crate() {
        assert!(faults(&[]).is_empty());
        let from_git =
            Package { source: "git+https://example.com/own".into(), ..package("own", "1.0.0", "MIT") };
        for (wrong, expected) in [
            (
                package("free", "1.0.0", "GPL-3.0-only"),
                "free 1.0.0: no licence of \"GPL-3.0-only\" is allowed",
            ),
            (package("other", "1.0.0", "MPL-2.0"), "other 1.0.0: no licence of \"MPL-2.0\" is allowed"),
            (package("none", "1.0.0", ""), "none 1.0.0: no licence of \"\" is allowed"),
            (from_git, "own 1.0.0 is from git+https://example.com/own"),
            (package("ring", "0.17.0", "MIT"), "ring 0.17.0 must not be used: it needs a compiler for C"),
            (
                package("nix", "0.32.0", "MIT"),
                "nix has the versions 0.29.0, 0.32.0: name one of them in bans.skip",
            ),
        ] {
            assert_eq!(faults(&[wrong]), [expected]);
        }
        assert!(faults(&[package("paths", "1.0.0", "MPL-2.0 OR LGPL-3.0-or-later")]).is_empty());
        let rules = toml::from_str(RULES).unwrap();
        let without = judge(&rules, &BTreeSet::from([package("nix", "0.29.0", "MIT")]));
        assert_eq!(without, ["nix@0.25.1 in bans.skip is no second version any more"]);
    }

    #[test]
    fn of_alternatives_the_first_allowed_one_is_chosen() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"];
        for (expression, expected) in [
            ("MIT OR Apache-2.0", Some("MIT")),
            ("Zlib OR Apache-2.0", Some("Apache-2.0")),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", Some("MIT,Unicode-3.0")),
            ("MIT AND GPL-2.0-only OR Apache-2.0", Some("Apache-2.0")),
            ("Apache-2.0 WITH LLVM-exception OR MIT", Some("Apache-2.0 WITH LLVM-exception")),
            ("MIT AND Zlib", None),
            ("MIT WITH something", None),
            ("(MIT", None),
            ("MIT Apache-2.0", None),
            ("", None),
        ] {
            let chosen =
                choose(expression, &allowed).map(|names| names.into_iter().collect::<Vec<_>>().join(","));
            assert_eq!(chosen.as_deref(), expected, "{expression}");
        }
    }

    #[test]
    fn a_rule_without_a_reason_or_that_this_task_does_not_know_is_an_error() {
        for (from, to) in [
            ("multiple-versions = \"deny\"", "multiple-versions = \"warn\""),
            ("wildcards = \"deny\"", "wildcards = \"deny\"\nhighlight = \"all\""),
            (", reason = \"an old crate needs it\"", ""),
        ] {
            assert!(RULES.contains(from));
            assert!(toml::from_str::<Rules>(&RULES.replace(from, to)).is_err(), "{to}");
        }
        rules().unwrap();
    }

    /// Products that are built with the recipes name and carry the licences that these name.
    #[test]
    fn recipes_name_every_licence_and_the_file_with_all_texts() {
        let target = targets::host().unwrap();
        let texts = texts_of_packages(&rules().unwrap(), &crates::linked(target).unwrap()).unwrap();
        for (path, text) in &texts {
            assert!(project().join(path).is_file(), "{path}");
            if !path.ends_with(".txt") {
                assert!(text.contains("MPL-2.0") && text.contains(TEXTS), "{path}");
            }
        }
        assert!(texts[2].1.contains("pathrs"));
        let why = replaced("some.mk", "A = 1\nA = 2\n", &[("A = ", "A = 3".into())]).unwrap_err().0;
        assert!(why.contains("some.mk"), "{why}");
    }
}
