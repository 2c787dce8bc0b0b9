//! `cargo xtask recipes`: tests the Yocto layer and the Buildroot tree in `board/packages`, as far as
//! possible without OpenEmbedded-Core and Buildroot, which no package registry has.
//!
//! BitBake itself parses the layer, and its fetcher checks and unpacks the crates. kconfiglib and GNU make
//! read the tree, with `tests/system/recipes/buildroot.mk` in place of Buildroot. Both then build nodlet only from
//! their crates with an empty `CARGO_HOME`, for this machine, and bake an image for arm64. Optimisation is
//! off, because it is not under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nodlet_build::stamp;
use nodlet_build::task::{Outcome, Task, TaskError, outside, plain_cargo, project, run as run_command, work};
use nodlet_tests::image::Image;

/// The Python package with BitBake's modules.
const BITBAKE: &str = "bitbake-setup==2.19.0";

/// The Python package that reads Buildroot's `Config.in`.
const KCONFIGLIB: &str = "kconfiglib==14.1.0";

/// The task `cargo xtask recipes`.
pub(crate) const TASK: Task = Task::new(
    "recipes",
    "[yocto] [buildroot]",
    "check the Yocto layer and the Buildroot tree, without Yocto and Buildroot",
    run,
);

pub(crate) fn run(arguments: &[String]) -> Outcome {
    let all = ["yocto".to_owned(), "buildroot".to_owned()];
    let wanted = if arguments.is_empty() { &all } else { arguments };
    if let Some(other) = wanted.iter().find(|word| !all.contains(word)) {
        return Err(TaskError(format!(
            "there are recipes for yocto and buildroot, none for {other:?}; {}",
            TASK.usage()
        )));
    }
    for word in wanted {
        match word.as_str() {
            "yocto" => yocto()?,
            _ => buildroot()?,
        }
    }
    Ok(())
}

/// Creates a directory with an image for arm64 and a manifest to bake in.
fn scratch(name: &str) -> Result<PathBuf, TaskError> {
    let directory = outside(name)?;
    fs::create_dir_all(&directory)?;
    let image = Image::new("localhost/app:1").architecture("arm64").directory("bin", 0o755).file(
        "bin/app",
        0o755,
        b"not for this machine",
    );
    image.write_oci_archive(&directory.join("image.tar"))?;
    fs::copy(project().join("examples/web.yaml"), directory.join("pod.yaml"))?;
    Ok(directory)
}

/// The directory of an unpacked Python package. Fetches it if necessary: `wheel` is the beginning of its file
/// name, and `module` is a module in it.
fn python_package(
    directory: &str,
    requirement: &str,
    wheel: &str,
    module: &str,
) -> Result<PathBuf, TaskError> {
    let directory = work(directory)?;
    if !directory.join(module).exists() {
        run_command(
            Command::new("python3")
                .args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
                .arg(&directory)
                .arg(requirement),
        )?;
        let wheel = nodlet_build::debian::only(&directory, wheel)?;
        run_command(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&directory))?;
    }
    Ok(directory)
}

/// Sets options for a fast build, whatever calls cargo.
fn quickly(command: &mut Command) -> &mut Command {
    for ours in
        ["CARGO_BUILD_TARGET", "RUSTC_BOOTSTRAP", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR"]
    {
        command.env_remove(ours);
    }
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

fn yocto() -> Outcome {
    let directory = scratch("yocto")?;
    let bitbake = python_package("bitbake", BITBAKE, "bitbake_setup", "bb")?;
    // BitBake uses the .crate files from cargo's directory, and checks them itself.
    run_command(plain_cargo().args(["fetch", "--locked"]))?;
    let layer = project().join("board/packages/yocto/meta-nodlet");
    let script = project().join("tests/system/recipes/bitbake.py");
    run_command(
        Command::new("python3").arg(script).arg(&bitbake).arg(layer).arg(&directory).arg(crate_files()?),
    )?;

    let sh = |name: &str| -> Outcome {
        let mut shell = Command::new("sh");
        shell.arg("-e").arg(directory.join(format!("{name}.sh")));
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", directory.join("image/usr/bin").display()));
        run_command(&mut shell)
    };
    // The configuration that cargo_common.bbclass writes. nodlet's own .cargo/config.toml does not apply,
    // because the build runs outside of the source directory.
    let home = directory.join("cargo_home");
    fs::write(
        home.join("config.toml"),
        format!(
            "[source.bitbake]\ndirectory = {:?}\n[source.crates-io]\nreplace-with = \"bitbake\"\n\
             [build]\ntarget-dir = {:?}\n",
            home.join("bitbake"),
            directory.join("build/target")
        ),
    )?;
    fs::create_dir_all(directory.join("build"))?;
    // The recipe extends a shell function of the class, and calls the original.
    let configure =
        fs::read_to_string(directory.join("do_configure.sh"))?.replace("cargo_do_configure\n", "\n");
    fs::write(directory.join("do_configure.sh"), configure)?;
    sh("do_configure")?;
    let mut cargo = plain_cargo();
    cargo.current_dir(directory.join("build")).args([
        "build",
        "--frozen",
        "--release",
        "--package",
        "nodlet",
    ]);
    cargo.arg(format!("--manifest-path={}", project().join("Cargo.toml").display()));
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let exported = fs::read_to_string(directory.join("environment"))?;
    cargo.envs(exported.lines().filter_map(|line| line.split_once('=')));
    run_command(quickly(&mut cargo).env("CARGO_HOME", &home).env("CARGO_BUILD_TARGET", target))?;
    sh("do_install")?;
    require_commit(&directory.join("image/usr/bin/nodlet"))?;
    fs::create_dir_all(directory.join("rootfs"))?;
    sh("nodlet_bake")?;
    expect(
        &directory,
        &[
            "image/usr/bin/nodlet",
            "image/usr/lib/systemd/system/nodlet.service",
            "image/etc/nodlet/manifests",
        ],
    )?;
    require_baked(&directory.join("image/usr/bin/nodlet"), &directory.join("rootfs"))?;
    Ok(fs::remove_dir_all(&directory)?)
}

/// The directory in which cargo keeps fetched crates.
fn crate_files() -> Result<PathBuf, TaskError> {
    let home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => Path::new(&std::env::var_os("HOME").ok_or("HOME is not set")?).join(".cargo"),
    };
    nodlet_build::debian::only(&home.join("registry/cache"), "")
}

fn buildroot() -> Outcome {
    let directory = scratch("buildroot")?;
    let kconfiglib = python_package("kconfiglib", KCONFIGLIB, "kconfiglib", "kconfiglib.py")?;
    let tree = project().join("board/packages/buildroot");
    let script = project().join("tests/system/recipes/kconfig.py");
    run_command(Command::new("python3").arg(script).arg(kconfiglib).arg(&tree).arg(&directory))?;
    let quoted = |name: &str| format!("\"{}\"", directory.join(name).display());
    let make = |targets: &[&str]| -> Outcome {
        let mut make = Command::new("make");
        make.arg("--no-print-directory").arg("-f").arg(project().join("tests/system/recipes/buildroot.mk"));
        make.arg(format!("O={}", directory.display()));
        make.arg(format!("BR2_EXTERNAL_NODLET_PATH={}", tree.display()));
        make.arg(format!("RUSTC_TARGET_NAME={}-unknown-linux-gnu", std::env::consts::ARCH));
        make.args(["BR2_aarch64=y", "INIT=SYSV"]);
        make.arg(format!("BR2_PACKAGE_NODLET_IMAGES={}", quoted("image.tar")));
        make.arg(format!("BR2_PACKAGE_NODLET_MANIFESTS={}", quoted("pod.yaml")));
        run_command(quickly(&mut make).args(targets))
    };
    make(&["show"])?;
    make(&["nodlet-download"])?;
    make(&["nodlet-build", "nodlet-install"])?;
    make(&["host-nodlet-build", "host-nodlet-install"])?;
    make(&["target-finalize"])?;
    let target = directory.join("target");
    expect(&target, &["usr/bin/nodlet", "etc/init.d/S80nodlet", "etc/nodlet/manifests"])?;
    require_baked(&directory.join("host/bin/nodlet"), &target)?;
    Ok(fs::remove_dir_all(&directory)?)
}

const BAKED: &[&str] = &["usr/lib/nodlet/images/index.json", "usr/lib/nodlet/manifests/pod.yaml"];

/// Requires that the root file system has the manifest, and an image that nodlet finds there.
fn require_baked(nodlet: &Path, root: &Path) -> Outcome {
    expect(root, BAKED)?;
    let output = Command::new(nodlet).arg("--root").arg(root).args(["image", "ls"]).output()?;
    let images = String::from_utf8_lossy(&output.stdout);
    let is_listed = |line: &str| ["localhost/app:1", "linux/arm64"].iter().all(|word| line.contains(word));
    if images.lines().any(is_listed) {
        Ok(())
    } else {
        Err(TaskError(format!(
            "{} has no image localhost/app:1 for linux/arm64:\n{images}{}",
            root.display(),
            String::from_utf8_lossy(&output.stderr)
        )))
    }
}

/// Requires that a program names the commit of this checkout; none if the checkout has changes.
fn require_commit(nodlet: &Path) -> Outcome {
    let source = stamp::of(project())?.filter(|source| source.ends_with("clean"));
    let commit = source.as_deref().and_then(|source| source.split(' ').next());
    let output = Command::new(nodlet).args(["version", "--client", "-o", "json"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let names = |commit: &str| said.contains(commit);
    match commit {
        Some(commit) if !names(commit) => {
            Err(TaskError(format!("{} does not name {commit}: {said}", nodlet.display())))
        }
        _ => Ok(()),
    }
}

fn expect(root: &Path, paths: &[&str]) -> Outcome {
    match paths.iter().find(|path| !root.join(path).exists()) {
        None => Ok(()),
        Some(path) => Err(TaskError(format!("{} was not installed", root.join(path).display()))),
    }
}
