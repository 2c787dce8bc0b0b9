//! Stand-ins for the images of Kubernetes' tests, under the names that the tests ask for: Kubernetes' own programs,
//! Debian's busybox and bash, and this machine's curl, dig, getent and nc.

use std::fs;
use std::path::Path;
use std::process::Command;

use nodlet_build::task::{Outcome, TaskError, output, work};
use nodlet_build::{debian, go};
use nodlet_tests::image::{ARCHITECTURE, Compression, Image};
use nodlet_tests::{Device, with_dynamic_program};
use serde_json::json;

/// Where the images of the tests are.
const REGISTRY: &str = "registry.k8s.io/e2e-test-images";

/// The users of the images. The tests know the second and its second group.
const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
user-defined-in-image:x:1000:1000::/home:/bin/sh
nobody:x:65534:65534:nobody:/home:/bin/false
";
const GROUP: &str = "\
root:x:0:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
nobody:x:65534:
";

/// The shell: busybox's, whose messages the tests expect, or bash, since Debian's busybox does not pass on variables such as
/// `data-1`, other than busybox itself, and runs its own `nc`.
const SH: &[u8] = b"#!/bin/bash
case $* in
    *'| nc '*) exec -a /bin/sh /bin/bash \"$@\" ;;
esac
while IFS= read -r -d '' variable; do
    case ${variable%%=*} in
        *[!A-Za-z0-9_]*) exec -a /bin/sh /bin/bash \"$@\" ;;
    esac
done </proc/self/environ
exec -a /bin/sh /bin/busybox \"$@\"
";

/// Loads all images into a board.
pub(super) fn load(device: &Device) -> Outcome {
    let tools = tools()?;
    let agnhost = agnhost(&tools)?;
    let nonewprivs = fs::read(go::NONEWPRIVS.build(None)?)?;
    let sleeper = fs::read(nodlet_tests::demo_program())?;
    let named = |image: &Image, name: &str| image.clone().named(&format!("{REGISTRY}/{name}"));
    // Its page is the beginning of its file system.
    let server = tools.clone().config("Cmd", json!(["httpd", "-f", "-p", "80", "-h", "/srv"]));
    let images = [
        named(&tools, "busybox:1.37.0-1"),
        named(&agnhost, "agnhost:2.63.0"),
        named(&agnhost, "agnhost:2.55"),
        named(&server, "nginx:1.15-4"),
        named(&server, "nginx:1.27-0"),
        named(&tools.clone().config("User", json!("1234")), "nonroot:1.5"),
        named(&resolvers(&tools)?, "glibc-dns-testing:2.0.0"),
        named(&tools.clone().file("usr/local/bin/nnp", 0o6755, &nonewprivs), "nonewprivs:1.4")
            .config("Cmd", json!(["nnp"])),
        Image::new("registry.k8s.io/pause:3.10.2")
            .file("pause", 0o755, &sleeper)
            .config("Entrypoint", json!(["/pause", "sleep"])),
    ];
    for image in images {
        device.load(&image.compression(Compression::None));
    }
    Ok(())
}

/// busybox, with a link for each of its tools, and the shell.
fn tools() -> Result<Image, TaskError> {
    debian::fetch(&["busybox-static", "bash-static"], ARCHITECTURE)?;
    let package = debian::package("busybox-static", ARCHITECTURE)?;
    let busybox = package.join("usr/bin/busybox");
    let listed = Command::new(&busybox).arg("--list").output()?;
    let names = String::from_utf8(listed.stdout)?;
    if !names.lines().any(|name| name == "sh") {
        return Err(TaskError(format!("{} lists no tools", busybox.display())));
    }
    let image = ["root", "home", "srv", "var", "etc", "usr"]
        .into_iter()
        .fold(Image::new("localhost/tools:1"), |image, name| image.directory(name, 0o755))
        .directory("tmp", 0o1777)
        .file("bin/busybox", 0o755, &fs::read(&busybox)?)
        .file("etc/passwd", 0o644, PASSWD.as_bytes())
        .file("etc/group", 0o644, GROUP.as_bytes())
        .file("srv/index.html", 0o644, b"a page\n")
        .config("Env", json!(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]))
        .config("Cmd", json!(["sh"]));
    let bash = debian::package("bash-static", ARCHITECTURE)?.join("usr/bin/bash-static");
    let image = image.file("bin/bash", 0o755, &fs::read(bash)?).file("bin/sh", 0o755, SH);
    let names = names.lines().filter(|name| !["busybox", "bash", "sh"].contains(name));
    Ok(names.fold(image, |image, name| image.symlink(&format!("bin/{name}"), "busybox")))
}

/// The tools with those that resolve names.
fn resolvers(tools: &Image) -> Result<Image, TaskError> {
    with_program(with_program(tools.clone(), "usr/bin/dig")?, "usr/bin/getent")
}

/// Adds a program of this machine.
fn with_program(image: Image, program: &str) -> Result<Image, TaskError> {
    if !Path::new("/").join(program).exists() {
        return Err(TaskError(format!("/{program} is missing: `cargo xtask setup` installs it")));
    }
    Ok(with_dynamic_program(image, program))
}

/// The servers of the tests, with the tools that the tests execute beside them.
fn agnhost(tools: &Image) -> Result<Image, TaskError> {
    let (certificate, key) = certificate()?;
    let image = resolvers(tools)?;
    let image = with_program(with_program(image, "usr/bin/curl")?, "usr/bin/nc.openbsd")?
        .symlink("usr/local/bin/nc", "/usr/bin/nc.openbsd")
        .directory("uploads", 0o755)
        .file("agnhost", 0o755, &fs::read(go::AGNHOST.build(None)?)?)
        .symlink("agnhost-2", "agnhost")
        .file("localhost.crt", 0o644, &certificate)
        .file("localhost.key", 0o644, &key)
        .config("Entrypoint", json!(["/agnhost"]))
        .config("Cmd", json!(["pause"]));
    Ok(image)
}

/// A certificate and its key for the servers of the tests, which no client verifies.
fn certificate() -> Result<(Vec<u8>, Vec<u8>), TaskError> {
    let dir = work("conformance")?;
    let (certificate, key) = (dir.join("localhost.crt"), dir.join("localhost.key"));
    let mut command = Command::new("openssl");
    command
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "3650", "-subj", "/CN=localhost", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    output(&mut command)?;
    Ok((fs::read(certificate)?, fs::read(key)?))
}
