//! [`DockerRegistry`]: a registry of images, Debian's `docker-registry`. `cargo xtask check` unpacks it.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::token_server::TokenServer;

/// A registry on this machine, which ends with the value.
pub struct DockerRegistry {
    server: Child,
    port: u16,
    dir: PathBuf,
    /// Arguments with which skopeo reaches the registry.
    skopeo: Vec<String>,
}

/// The user of a registry with a password, which is [`PASSWORD`].
pub const USER: &str = "board";

/// The password of [`USER`].
pub const PASSWORD: &str = "secret";

/// The password as `htpasswd` stores it.
const HASH: &str = "$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a";

impl DockerRegistry {
    /// A registry without TLS and passwords.
    pub fn start(device: &Device) -> Self {
        Self::start_with(device, "", vec![])
    }

    /// A registry that requires the password of [`USER`].
    pub fn with_password(device: &Device) -> Self {
        let file = device.shared("registry").1.join("htpasswd");
        fs::write(&file, format!("{USER}:{HASH}\n")).expect("written");
        let auth = format!("auth: {{htpasswd: {{realm: test, path: {}}}}}\n", file.display());
        Self::start_with(device, &auth, vec![format!("--dest-creds={USER}:{PASSWORD}")])
    }

    /// A registry whose clients need a token. All get one to pull from `public/`; for all else, they need the password
    /// of [`USER`].
    pub fn with_tokens(device: &Device) -> Self {
        let auth = TokenServer::start(&device.shared("registry").1, USER, PASSWORD);
        Self::start_with(device, &auth, vec![format!("--dest-creds={USER}:{PASSWORD}")])
    }

    /// A registry with TLS. Returns the certificate of its authority, too.
    pub fn with_tls(device: &Device) -> (Self, PathBuf) {
        let dir = device.shared("registry").1;
        let (key, certificate) = (dir.join("server.key"), dir.join("server.crt"));
        let (authority_key, authority) = (dir.join("ca.key"), dir.join("ca.crt"));
        let make = |key: &Path, certificate: &Path, subject: &str, more: &[&str]| {
            let made = Command::new("openssl")
                .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
                .args(["-days", "9", "-subj", subject, "-keyout"])
                .arg(key)
                .arg("-out")
                .arg(certificate)
                .args(more)
                .output()
                .expect("openssl can be run: `cargo xtask setup` installs it");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        };
        make(&authority_key, &authority, "/CN=authority", &[]);
        let of_authority = [&authority, &authority_key].map(|path| path.display().to_string());
        let of_server = ["-CA", &of_authority[0], "-CAkey", &of_authority[1]];
        let extensions = [
            "-addext",
            "subjectAltName=IP:127.0.0.1,IP:192.0.2.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ];
        make(&key, &certificate, "/CN=registry", &[&of_server[..], &extensions[..]].concat());
        let tls = format!("  tls: {{certificate: {}, key: {}}}\n", certificate.display(), key.display());
        (Self::start_with(device, &tls, vec![]), authority)
    }

    fn start_with(device: &Device, more: &str, skopeo: Vec<String>) -> Self {
        let dir = device.shared("registry").1;
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let config = dir.join("config.yml");
        let storage = dir.join("storage");
        let text = format!(
            "version: 0.1\nlog: {{level: debug}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp:\n  \
             addr: 127.0.0.1:{port}\n{more}",
            storage.display()
        );
        fs::write(&config, text).expect("written");
        let log = File::create(dir.join("log")).expect("created");
        let server = Command::new(program())
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor is left"))
            .stderr(log)
            .spawn()
            .expect("docker-registry can be run: `cargo xtask check` unpacks it");
        let registry = DockerRegistry { server, port, dir, skopeo };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", registry.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        registry
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The log of the registry.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Puts an image of an OCI archive into the registry, as `name:tag`.
    pub fn push(&self, archive: &Path, name: &str) {
        let output = Command::new("skopeo")
            .args(["--insecure-policy", "copy", "--dest-tls-verify=false"])
            .args(&self.skopeo)
            .arg(format!("oci-archive:{}", archive.display()))
            .arg(format!("docker://127.0.0.1:{}/{name}", self.port))
            .output()
            .expect("skopeo can be run: `cargo xtask setup` installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The files with the blobs of all images, and their contents.
    pub fn blobs(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let names = |directory: PathBuf| {
            let entries = fs::read_dir(directory).expect("the registry has blobs");
            entries.map(|entry| entry.expect("it can be read").path()).collect::<Vec<_>>()
        };
        let prefixes = names(self.dir.join("storage/docker/registry/v2/blobs/sha256"));
        let files = prefixes.into_iter().flat_map(names).map(|blob| blob.join("data"));
        files.map(|file| (file.clone(), fs::read(&file).expect("it can be read"))).collect()
    }

    /// Lists the registry in the device's `registries.conf` as the place of images of `registry.test`.
    pub fn list(&self, device: &Device, is_plain: bool) {
        list(device, self.port, is_plain);
    }
}

/// Lists a registry on this port in the device's `registries.conf` as the place of images of `registry.test`.
pub fn list(device: &Device, port: u16, is_plain: bool) {
    let directory = device.path("/etc/containers");
    fs::create_dir_all(&directory).expect("created");
    let text = format!(
        "[[registry]]\nprefix = \"registry.test\"\nlocation = \"127.0.0.1:{port}\"\ninsecure = {is_plain}\n"
    );
    fs::write(directory.join("registries.conf"), text).expect("written");
}

impl Drop for DockerRegistry {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn program() -> PathBuf {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this is a member of the workspace");
    let unpacked = project.join(".work/programs/bin/docker-registry");
    if unpacked.exists() { unpacked } else { "docker-registry".into() }
}
