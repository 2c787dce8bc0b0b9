//! What the changes since a commit can affect: the crates that depend on what changed, by cargo's own graph, and the suites
//! with containers, by a table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nodlet_build::task::{TaskError, git, output, project};
use nodlet_build::toolchain::cargo;
use serde_json::Value;

use crate::suites;

/// The suites that a change of a crate can affect: of all crates that are not named, each suite.
const SUITES_OF: &[(&str, &str)] = &[
    ("nodlet-rootfs", "agnhost attack baking files full_disk hostile images pull push real store_limits"),
    (
        "nodlet-kube",
        "admission bad bounded describe differential documents examples fields kubectl manifests metadata objects status tasks verbs",
    ),
    ("nodlet-wire", "enrolment kubelet_server probes pull cluster cluster_services messages misbehaving"),
    ("nodlet-fuzz", ""),
    ("nodlet-bench", ""),
    ("nodlet-dist", ""),
    ("nodlet-system-tests", ""),
    ("nodlet-build", ""),
    ("xtask", ""),
];

/// The steps that a change of a file affects, by the beginning of its path. A change of the binary affects all of them.
const STEPS_OF: &[(&str, &[&str])] = &[
    ("tests/src/", &["conformance", "gates", "guest", "boards"]),
    ("tests/conformance/", &["conformance"]),
    ("tests/tests/cgroup2.rs", &["guest"]),
    ("tests/tests/isolation.rs", &["guest"]),
    ("tests/tests/limits.rs", &["guest"]),
    ("xtask/budgets.toml", &["gates"]),
    ("board/dist/", &["boards"]),
    ("board/dist/src/tree.rs", &["guest"]),
    ("board/dist/src/kernel.rs", &["guest"]),
    ("tests/bench/src/gates.rs", &["gates"]),
    ("tests/system/src/boards", &["boards"]),
    ("tests/system/src/conformance", &["conformance"]),
    ("tests/system/src/guest", &["guest"]),
    ("xtask/build/src/budgets.rs", &["gates"]),
    ("tests/go/agnhost/", &["conformance"]),
    ("tests/go/control-plane/", &["conformance"]),
    ("tests/go/coredns/", &["conformance"]),
    ("tests/go/e2e/", &["conformance"]),
    ("tests/go/kubectl/", &["conformance"]),
    ("xtask/build/src/go.rs", &["conformance"]),
];

/// The packages whose unit tests read a file of no package or of another one, by the beginning of its path.
const READ_BY: &[(&str, &str)] = &[
    ("CHANGELOG.md", "nodlet-dist"),
    ("SECURITY.md", "nodlet-dist"),
    ("board/help/", "nodlet-dist"),
    ("board/packages/", "nodlet-build"),
    ("board/profiles/", "nodlet-dist"),
    ("board/src/board_json.rs", "nodlet-dist"),
    ("board/systemd/", "nodlet-dist"),
    ("deny.toml", "nodlet-build"),
    ("docs/building.md", "nodlet-build"),
    ("docs/differences.md", "nodlet-kube"),
    ("docs/packages.md", "nodlet-dist"),
    ("docs/pods.md", "nodlet-kube"),
    ("docs/testing.md", "xtask"),
    ("examples/", "nodlet-kube"),
    ("tests/conformance/", "nodlet-system-tests"),
    ("tests/tests/", "nodlet-system-tests"),
    ("tests/tests/", "xtask"),
];

/// What the programs are made of that only suites with a control plane run, by the beginning of the path.
const PROGRAMS_OF_CLUSTERS: [&str; 5] = [
    "tests/go/control-plane/",
    "tests/go/coredns/",
    "tests/go/konnectivity/",
    "tests/go/metrics-server/",
    "tests/go/misbehave/",
];

/// What the programs and images are made of that any suite may run.
const PROGRAMS_OF_ALL: [&str; 4] =
    ["tests/go/agnhost/", "tests/go/kubectl/", "xtask/build/src/go.rs", "xtask/build/src/images.rs"];

/// The package whose unit tests read the sources of all others.
const READS_SOURCES: &str = "nodlet-fuzz";

/// Crates of which a change can affect the suites with a control plane alone.
const OF_CLUSTERS: &[&str] = &["nodlet-cluster"];

/// The package with the suites.
const TESTS: &str = "nodlet-tests";

/// The package of the binary for boards.
const BINARY: &str = "nodlet";

/// What changed.
pub(crate) struct Changes {
    /// Files that changed, relative to the root of the repository.
    files: Vec<String>,
    /// Packages with a changed file.
    changed: BTreeSet<String>,
    /// These and all that depend on them.
    affected: BTreeSet<String>,
    /// The packages whose unit tests are affected.
    packages: Vec<String>,
}

/// The changes since a commit, those that are not committed among them; without a commit, since this branch left `main`.
pub(crate) fn since(base: Option<&str>) -> Result<Changes, TaskError> {
    let base = match base {
        Some(base) => git(project(), &["rev-parse", "--verify", "--quiet", &format!("{base}^{{commit}}")])
            .map_err(|_| {
                format!("{base:?} is neither a step of the check nor a commit of this repository")
            })?,
        None => git(project(), &["merge-base", "HEAD", "origin/main"])
            .or_else(|_| git(project(), &["merge-base", "HEAD", "main"]))
            .map_err(|TaskError(why)| {
                TaskError(format!("no branch main to compare with ({why}): name a commit"))
            })?,
    };
    // A file that was moved has changed in both places.
    let tracked =
        git(project(), &["-c", "core.quotePath=off", "diff", "--name-only", "--no-renames", &base, "--"])?;
    let new = git(project(), &["-c", "core.quotePath=off", "ls-files", "--others", "--exclude-standard"])?;
    let files: Vec<String> = tracked.lines().chain(new.lines()).map(str::to_owned).collect();
    let graph = Graph::of_workspace()?;
    let changes = Changes::of(files, &graph);
    eprintln!("{} files changed since {base}, in {}", changes.files.len(), listed(&changes.changed));
    Ok(changes)
}

fn listed(names: &BTreeSet<String>) -> String {
    if names.is_empty() {
        return "no package".to_owned();
    }
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The packages of the workspace: the directory of each, and what it depends on.
struct Graph {
    directories: BTreeMap<String, String>,
    needs: BTreeMap<String, BTreeSet<String>>,
}

impl Graph {
    fn of_workspace() -> Result<Self, TaskError> {
        let metadata = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
        Self::parse(&output(cargo()?.args(metadata))?, project())
    }

    fn parse(metadata: &str, root: &Path) -> Result<Self, TaskError> {
        let metadata: Value = serde_json::from_str(metadata)?;
        let (mut directories, mut needs) = (BTreeMap::new(), BTreeMap::new());
        for package in metadata["packages"].as_array().ok_or("cargo lists packages")? {
            let name = package["name"].as_str().ok_or("a package has a name")?;
            let manifest = Path::new(package["manifest_path"].as_str().ok_or("a package has a manifest")?);
            let directory = manifest.parent().and_then(|dir| dir.strip_prefix(root).ok());
            directories.insert(
                name.to_owned(),
                directory.ok_or("a member lies in the repository")?.display().to_string(),
            );
            let dependencies = package["dependencies"].as_array().into_iter().flatten();
            let names = dependencies.filter_map(|dependency| dependency["name"].as_str().map(str::to_owned));
            needs.insert(name.to_owned(), names.collect());
        }
        Ok(Self { directories, needs })
    }

    /// The package that has a file: the one with the longest directory.
    fn package_of(&self, file: &str) -> Option<&str> {
        let has = |directory: &str| file.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'));
        let packages = self.directories.iter().filter(|(_, directory)| has(directory));
        packages.max_by_key(|(_, directory)| directory.len()).map(|(name, _)| name.as_str())
    }

    /// These packages and all that depend on them.
    fn with_dependents(&self, packages: &BTreeSet<String>) -> BTreeSet<String> {
        let mut all = packages.clone();
        loop {
            let more =
                self.needs.iter().filter(|(name, needs)| !all.contains(*name) && !needs.is_disjoint(&all));
            let more: Vec<String> = more.map(|(name, _)| name.clone()).collect();
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }
}

impl Changes {
    fn of(files: Vec<String>, graph: &Graph) -> Self {
        // What all packages are built from, or the binary with its flags.
        const COMMON: &[&str] = &[
            ".cargo/config.toml",
            "Cargo.lock",
            "Cargo.toml",
            "runtime/supervisor/regex/",
            "rust-toolchain.toml",
            "xtask/no_unwind.rs",
            "xtask/patches/",
            "xtask/build/src/cross.rs",
            "xtask/build/src/musl.rs",
            "xtask/build/src/targets.rs",
        ];
        let is_common = |file: &String| COMMON.iter().any(|common| file.starts_with(common));
        let changed: BTreeSet<String> = if files.iter().any(is_common) {
            graph.directories.keys().cloned().collect()
        } else {
            files.iter().filter_map(|file| graph.package_of(file)).map(str::to_owned).collect()
        };
        let affected = graph.with_dependents(&changed);
        let mut tested = affected.clone();
        for file in &files {
            let readers = READ_BY.iter().filter(|(path, _)| file.starts_with(path));
            tested.extend(readers.map(|(_, package)| (*package).to_owned()));
            if file.ends_with(".rs") {
                tested.insert(READS_SOURCES.to_owned());
            }
        }
        let packages = tested.into_iter().filter(|package| package != TESTS).collect();
        Self { files, changed, affected, packages }
    }

    /// Whether they can affect a step of the check.
    pub(crate) fn affect(&self, step: &str) -> bool {
        let has = |package: &str| self.affected.contains(package);
        let is_changed = |name: &str| self.files.iter().any(|file| file == name);
        let is_named = || {
            let named = STEPS_OF.iter().filter(|(_, steps)| steps.contains(&step));
            let mut paths = named.map(|(path, _)| path);
            paths.any(|path| self.files.iter().any(|file| file.starts_with(path)))
        };
        match step {
            "fmt" => is_changed("rustfmt.toml") || self.files.iter().any(|file| file.ends_with(".rs")),
            "clippy" | "doc" => is_changed("clippy.toml") || !self.affected.is_empty(),
            "unit" => !self.packages().is_empty(),
            "containers" => self.suites().is_ok_and(|suites| !suites.is_empty()),
            "conformance" | "gates" | "guest" | "boards" => has(BINARY) || is_named(),
            _ => true,
        }
    }

    /// The packages whose unit tests they can affect.
    pub(crate) fn packages(&self) -> &[String] {
        &self.packages
    }

    /// The suites with containers that they can affect.
    pub(crate) fn suites(&self) -> Result<Vec<String>, TaskError> {
        Ok(self.suites_of(&suites::names()?))
    }

    /// Those of all suites that the changes can affect.
    fn suites_of(&self, all: &BTreeSet<String>) -> Vec<String> {
        let mut chosen = BTreeSet::new();
        for package in self.changed.iter().filter(|package| *package != TESTS) {
            match SUITES_OF.iter().find(|(name, _)| name == package) {
                Some((_, suites)) => chosen.extend(suites.split_whitespace().map(str::to_owned)),
                None if OF_CLUSTERS.contains(&package.as_str()) => {
                    chosen.extend(all.iter().filter(|suite| suites::has_control_plane(suite)).cloned());
                }
                None => return all.iter().cloned().collect(),
            }
        }
        for file in &self.files {
            if let Some(rest) = file.strip_prefix("tests/tests/") {
                let suite = rest.split(['/', '.']).next().unwrap_or_default();
                // The list of all suites changes with each of them.
                chosen.extend(all.get(suite).cloned());
            } else if file.starts_with("tests/src/")
                || file == "tests/Cargo.toml"
                || PROGRAMS_OF_ALL.iter().any(|path| file.starts_with(path))
            {
                return all.iter().cloned().collect();
            } else if PROGRAMS_OF_CLUSTERS.iter().any(|path| file.starts_with(path)) {
                chosen.extend(all.iter().filter(|suite| suites::has_control_plane(suite)).cloned());
            } else if file.starts_with("examples/") {
                chosen.extend(
                    ["apparmor", "docs", "examples", "gateway", "ports", "presets", "pull", "tasks"]
                        .map(str::to_owned),
                );
            }
            for (page, suite) in [("docs/firewalls.md", "firewalls"), ("docs/pods.md", "fields")] {
                if file == page {
                    chosen.insert(suite.to_owned());
                }
            }
            if file.ends_with(".md") {
                chosen.insert("docs".to_owned());
            }
        }
        chosen.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{"packages": [
        {"name": "nodlet", "manifest_path": "/p/board/Cargo.toml", "dependencies": [{"name": "nodlet-runtime"}]},
        {"name": "nodlet-runtime", "manifest_path": "/p/runtime/Cargo.toml", "dependencies": [{"name": "nodlet-kube"}]},
        {"name": "nodlet-kube", "manifest_path": "/p/runtime/kube/Cargo.toml", "dependencies": [{"name": "serde"}]},
        {"name": "nodlet-tests", "manifest_path": "/p/tests/Cargo.toml", "dependencies": [{"name": "nodlet-kube"}]},
        {"name": "xtask", "manifest_path": "/p/xtask/Cargo.toml", "dependencies": []}
    ]}"#;

    fn changes(files: &[&str]) -> Changes {
        let graph = Graph::parse(METADATA, Path::new("/p")).unwrap();
        Changes::of(files.iter().map(|file| (*file).to_owned()).collect(), &graph)
    }

    fn suites_of(files: &[&str]) -> Vec<String> {
        let all = ["cluster", "docs", "kubectl", "probes", "tasks"].map(str::to_owned).into();
        changes(files).suites_of(&all).into_iter().filter(|suite| all.contains(suite)).collect()
    }

    #[test]
    fn a_change_affects_its_package_and_all_that_depend_on_it() {
        let packages = |files: &[&str]| changes(files).packages().join(" ");
        assert_eq!(packages(&["runtime/kube/kinds.json"]), "nodlet nodlet-kube nodlet-runtime");
        assert_eq!(packages(&["runtime/Cargo.toml"]), "nodlet nodlet-runtime");
        assert_eq!(packages(&["README.md"]), "");
        for common in ["Cargo.lock", "xtask/patches/one.patch"] {
            assert_eq!(packages(&[common]), "nodlet nodlet-kube nodlet-runtime xtask");
        }
    }

    #[test]
    fn unit_tests_that_read_a_file_are_run_when_it_changes() {
        let packages = |files: &[&str]| changes(files).packages().join(" ");
        assert_eq!(packages(&["xtask/src/main.rs"]), "nodlet-fuzz xtask");
        assert_eq!(packages(&["examples/web.yaml", "docs/packages.md"]), "nodlet-dist nodlet-kube");
        assert_eq!(packages(&["tests/tests/probes.rs"]), "nodlet-fuzz nodlet-system-tests xtask");
    }

    #[test]
    fn suites_are_chosen_by_the_packages_that_changed_and_by_their_own_files() {
        assert_eq!(suites_of(&["tests/tests/probes.rs"]), ["probes"]);
        assert_eq!(suites_of(&["tests/tests/tasks/pods.rs"]), ["tasks"]);
        assert_eq!(suites_of(&["README.md"]), ["docs"]);
        assert_eq!(suites_of(&["runtime/kube/src/lib.rs"]), ["kubectl", "tasks"]);
        assert_eq!(suites_of(&["runtime/src/lib.rs"]).len(), 5);
        assert_eq!(suites_of(&["tests/src/device.rs"]).len(), 5);
        assert!(suites_of(&["xtask/src/main.rs"]).is_empty());
        assert_eq!(suites_of(&["tests/go/kubectl/go.mod"]).len(), 5);
        assert_eq!(suites_of(&["tests/go/misbehave/main.go"]), ["cluster"]);
    }

    #[test]
    fn steps_that_nothing_affects_are_left_out() {
        let steps = |files: &[&str]| {
            let changes = changes(files);
            let all = ["fmt", "clippy", "unit", "conformance", "gates", "guest", "boards"];
            all.into_iter().filter(|step| changes.affect(step)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(steps(&["docs/cli.md"]), "");
        assert_eq!(steps(&["xtask/src/main.rs"]), "fmt clippy unit");
        assert_eq!(steps(&["runtime/kube/src/lib.rs"]), "fmt clippy unit conformance gates guest boards");
        assert_eq!(steps(&["tests/system/src/guest/list.rs"]), "fmt clippy unit guest");
        assert_eq!(steps(&["xtask/build/src/cross.rs"]), "fmt clippy unit conformance gates guest boards");
        assert_eq!(steps(&["tests/conformance/allowed-failures"]), "clippy unit conformance");
        assert_eq!(steps(&["rustfmt.toml"]), "fmt");
    }

    #[test]
    fn the_tables_name_packages_and_suites_that_exist() {
        let graph = Graph::of_workspace().unwrap();
        let all = suites::names().unwrap();
        for (package, suites) in SUITES_OF {
            assert!(graph.directories.contains_key(*package), "{package}");
            assert!(suites.split_whitespace().all(|suite| all.contains(suite)), "{package}: {suites:?}");
        }
        for (path, _) in STEPS_OF {
            let is = |ending: &str| project().join(format!("{path}{ending}")).exists();
            assert!(is("") || is(".rs"), "{path}");
        }
        for path in PROGRAMS_OF_CLUSTERS.iter().chain(&PROGRAMS_OF_ALL) {
            assert!(project().join(path).exists(), "{path}");
        }
        for (path, package) in READ_BY {
            assert!(project().join(path).exists() && graph.directories.contains_key(*package), "{path}");
        }
        assert!(
            OF_CLUSTERS
                .iter()
                .chain([&TESTS, &BINARY, &READS_SOURCES])
                .all(|name| graph.directories.contains_key(*name))
        );
    }
}
