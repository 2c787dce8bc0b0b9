//! The demo image, built from the tests' demo program, without downloading anything.

use std::path::PathBuf;

use nodlet_build::task::{Outcome, Task, TaskError, run as run_command, work};
use nodlet_build::toolchain::{built, cargo};
use nodlet_tests::image::{DEMO, Image};

/// The task `cargo xtask demo-image`.
pub(crate) const TASK: Task =
    Task::new("demo-image", "", "build the demo image into .work/images, in both archive formats", run);

pub(crate) fn run(_: &[String]) -> Outcome {
    let path = build()?;
    println!("{}", path.display());
    Ok(())
}

/// Builds both archives, and returns the path of the OCI one.
pub(crate) fn build() -> Result<PathBuf, TaskError> {
    run_command(cargo()?.args(["build", "--package", "nodlet-tests", "--bin", "demo"]))?;
    let program = std::fs::read(built("debug", "demo")?)?;
    let image = Image::demo(DEMO, &program);
    let dir = work("images")?;
    image.write_docker_archive(&dir.join("demo.docker.tar"))?;
    let path = dir.join("demo.oci.tar");
    image.write_oci_archive(&path)?;
    Ok(path)
}
