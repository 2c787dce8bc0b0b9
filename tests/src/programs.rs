//! The programs that the harness runs, which cargo built beside the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::guest::is_guest;
use crate::image::{DEMO, Image};

/// The binary under test: `$NODLET`, or what cargo built beside the tests.
pub fn nodlet_program() -> PathBuf {
    std::env::var_os("NODLET").map_or_else(|| beside_us("nodlet"), PathBuf::from)
}

/// The program in the containers of the tests.
pub fn demo_program() -> PathBuf {
    beside_us("demo")
}

/// The program that replays an agent's observations to a core.
pub(crate) fn replay_program() -> PathBuf {
    beside_us("examples/replay")
}

/// The directory in which [`beside_us`] looks instead of beside the running program. It is set by a program
/// that is built for another target than what it runs.
static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();

/// Sets the directory of the programs that the harness runs. Only the first call counts.
pub fn programs_are_in(dir: PathBuf) {
    PROGRAMS.get_or_init(|| dir);
}

fn beside_us(program: &str) -> PathBuf {
    let us = || std::env::current_exe().expect("the kernel knows which program this is");
    let dir = PROGRAMS.get().cloned().or_else(|| us().parent().map(Path::to_owned)).unwrap_or_default();
    dir.ancestors().map(|dir| dir.join(program)).find(|path| path.is_file()).unwrap_or_else(|| {
        panic!(
            "{program} is not built: `cargo build --workspace --bins --examples` builds it, and `cargo xtask check \
             containers` all that the tests need"
        )
    })
}

/// The directory of the project's sources.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this is a member of the workspace")
}

/// An image of software that people use, which `cargo xtask images` built.
pub fn built_image(file: &str) -> PathBuf {
    let path = project().join(".work/images").join(file);
    assert!(path.exists(), "{file} is not built: run `cargo xtask images`, or `cargo xtask check`");
    path
}

/// An image of Kubernetes' agnhost with this reference.
pub fn agnhost_image(reference: &str) -> Image {
    Image::new(reference)
        .file("agnhost", 0o755, &agnhost_program())
        .directory("tmp", 0o1777)
        .config("Entrypoint", serde_json::json!(["/agnhost"]))
}

/// The demo image as an OCI archive, written once for all tests of a process.
pub fn demo_archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let path = demo_program().with_file_name("demo.oci.tar");
        // In a guest the demo program never changes, and compressing it takes minutes.
        if is_guest() && path.exists() {
            return path;
        }
        let program = fs::read(demo_program()).expect("the demo program can be read");
        let aside = path.with_extension(std::process::id().to_string());
        Image::demo(DEMO, &program).write_oci_archive(&aside).expect("target can be written to");
        fs::rename(&aside, &path).expect("target can be written to");
        path
    })
}

/// The program of Kubernetes' agnhost.
///
/// # Panics
/// It is not built.
pub fn agnhost_program() -> Vec<u8> {
    fs::read(built("agnhost/agnhost-1.36.3"))
        .expect("agnhost is not built: run `cargo xtask agnhost`, or `cargo xtask check`")
}

/// The place of a program that a task of xtask builds, such as `cargo xtask control-plane`.
pub(crate) fn built(path: &str) -> PathBuf {
    project().join(".work").join(path)
}
