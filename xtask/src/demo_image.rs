//! The demo image, built from the tests' demo program, without downloading anything.

use std::path::PathBuf;

use nodlet_tests::image::Image;

use crate::task::{Failure, Outcome, run as run_command, work};
use crate::toolchain::{built, cargo};

/// The name of the image, which manifests in `examples/` use.
pub(crate) const REFERENCE: &str = "localhost/demo:1";

pub(crate) fn run(_: &[String]) -> Outcome {
    let path = build()?;
    println!("{}", path.display());
    Ok(())
}

/// Builds both archives, and returns the path of the OCI one.
pub(crate) fn build() -> Result<PathBuf, Failure> {
    run_command(cargo()?.args(["build", "--package", "nodlet-tests", "--bin", "demo"]))?;
    let program = std::fs::read(built("debug", "demo")?)?;
    let image = Image::demo(REFERENCE, &program);
    let dir = work("images")?;
    image.write_docker_archive(&dir.join("demo.docker.tar"))?;
    let path = dir.join("demo.oci.tar");
    image.write_oci_archive(&path)?;
    Ok(path)
}
