//! Builds the programs that run in guests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_build::task::{TaskError, output};
use nodlet_build::{cross, targets, toolchain};

use super::list::UNITS;
use super::run::Run;
use super::{Guest, Processor};

/// The cargo arguments that build the program in the containers.
const DEMO: &str = "rustc --package nodlet-tests --bin demo";

/// Builds the programs that these guests run, and those that they need for it. Returns them by name.
pub(super) fn build(
    processor: &Processor,
    guests: &[&Guest<'_>],
) -> Result<BTreeMap<String, PathBuf>, TaskError> {
    let programs = guests.iter().flat_map(|guest| guest.runs).map(|run| Run::parse(run).program());
    let tests: BTreeSet<String> = programs
        .map(|name| if UNITS.contains(&name) { "--lib".to_owned() } else { format!("--test {name}") })
        .collect();
    let tests: Vec<String> = tests.into_iter().collect();
    // With the features of unit tests, so that this machine's programs are not compiled again. For another processor, the
    // tasks are left out.
    let packages = if processor.triple == targets::host()?.triple {
        "--workspace"
    } else {
        "--package nodlet --package nodlet-host --package nodlet-runtime --package nodlet-supervisor --package nodlet-tests"
    };
    let programs_of_tests = format!("build {packages} --bins --examples");
    let tests = format!("test --no-run {packages} {}", tests.join(" "));
    let mut programs = BTreeMap::new();
    for words in [
        &*programs_of_tests,
        &*tests,
        // Last, because the tests' build makes a program with the same name.
        DEMO,
    ] {
        let mut build = cross::cargo_for_triple(processor.triple)?;
        build.args(words.split(' ')).args(["--quiet", "--message-format=json-render-diagnostics"]);
        if words == DEMO {
            // Debug information is most of the program, and each image with it is hashed.
            build.args(["--", "-Cstrip=symbols"]);
        }
        eprintln!("Building without further output, some minutes the first time");
        let built = cross::executables(&mut build)?;
        let chosen = built.into_iter().filter(|built| built.is_test == words.starts_with("test"));
        programs.extend(chosen.map(|built| (built.name, built.path)));
    }
    Ok(programs)
}

/// Copies of the programs without debug information, which is most of their size: not every emulated machine
/// supports a file of hundreds of MiB.
pub(super) fn without_debug(
    programs: &BTreeMap<String, PathBuf>,
    dir: &Path,
) -> Result<BTreeMap<String, PathBuf>, TaskError> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir)?;
    let objcopy = toolchain::objcopy()?;
    let mut copies = BTreeMap::new();
    for (name, program) in programs {
        let copy = dir.join(name);
        output(Command::new(&objcopy).arg("--strip-debug").arg(program).arg(&copy))?;
        copies.insert(name.clone(), copy);
    }
    Ok(copies)
}
