//! The demo image, from the demo program that the tests use: built here, of
//! nothing that would have to be fetched.

use std::path::PathBuf;

use nodlet_tests::image::Image;

use crate::{Failure, Outcome, built, cargo, run as run_command, work};

/// The name the image has; manifests in `examples/` use it.
pub(crate) const REFERENCE: &str = "localhost/demo:1";

pub(crate) fn run(_: &[String]) -> Outcome {
    let path = build()?;
    println!("{}", path.display());
    Ok(())
}

/// Builds both archives and gives the path of the OCI one.
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
