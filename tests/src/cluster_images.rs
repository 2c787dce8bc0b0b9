//! Images of the real kube-proxy, CoreDNS and konnectivity-agent, which `cargo xtask control-plane` builds, for nodes of a
//! [`crate::ControlPlane`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::json;

use crate::image::{Compression, Image};
use crate::programs::demo_program;

/// The image `localhost/kube-proxy:1`: kube-proxy, and the machine's `nft`, which it executes.
pub fn kube_proxy_archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let image = Image::new("localhost/kube-proxy:1")
            .directory("tmp", 0o1777)
            .directory("run", 0o755)
            .directory("lib", 0o755)
            // As in the published image. Without these names, nft lists protocols as numbers, and a second kube-proxy
            // deletes what the first one left and what it has just added.
            .file("etc/protocols", 0o644, b"tcp 6 TCP\nudp 17 UDP\nsctp 132 SCTP\n")
            .file("usr/local/bin/kube-proxy", 0o755, &read(&built("kube-proxy-1.36.3")))
            .config("Env", json!(["PATH=/usr/local/bin:/usr/sbin"]));
        write("kube-proxy", &with_dynamic_program(image, "usr/sbin/nft"))
    })
}

/// The program kube-proxy, for a machine that is no board. It executes the machine's `nft`.
pub fn kube_proxy_program() -> PathBuf {
    built("kube-proxy-1.36.3")
}

/// The program CoreDNS, for a machine that is no board.
pub fn coredns_program() -> PathBuf {
    built("coredns-1.14.7")
}

/// The image `localhost/coredns:1`.
pub fn coredns_archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let image = Image::new("localhost/coredns:1")
            .file("coredns", 0o755, &read(&built("coredns-1.14.7")))
            .config("Entrypoint", json!(["/coredns"]));
        write("coredns", &image)
    })
}

/// The image `localhost/konnectivity-agent:1`.
pub fn konnectivity_archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let image = Image::new("localhost/konnectivity-agent:1")
            .file("proxy-agent", 0o755, &read(&built("konnectivity-agent-0.34.0")))
            .config("Entrypoint", json!(["/proxy-agent"]));
        write("konnectivity-agent", &image)
    })
}

/// Adds a program of this machine, given by its path without the leading slash, and its shared libraries.
pub fn with_dynamic_program(image: Image, program: &str) -> Image {
    let program = format!("/{program}");
    let output = Command::new("ldd").arg(&program).output().expect("ldd can be run");
    let libraries = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "ldd {program}: `cargo xtask setup` installs it");
    let paths = libraries.split_whitespace().filter(|word| word.starts_with('/'));
    paths
        .chain([program.as_str()])
        .fold(image, |image, path| image.file(path.trim_start_matches('/'), 0o755, &read(Path::new(path))))
}

fn write(name: &str, image: &Image) -> PathBuf {
    let path = demo_program().with_file_name(format!("{name}.oci.tar"));
    let aside = path.with_extension(std::process::id().to_string());
    image.clone().compression(Compression::None).write_oci_archive(&aside).expect("target can be written to");
    fs::rename(&aside, &path).expect("target can be written to");
    path
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `cargo xtask control-plane`", path.display()))
}

/// A program that xtask has built.
fn built(name: &str) -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this is a member of the workspace");
    let (module, _) = name.rsplit_once('-').expect("a name with a version");
    project.join(".work").join(module).join(name)
}
