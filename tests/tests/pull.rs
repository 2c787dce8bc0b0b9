//! Images that are pulled from a registry, by hand and for pods.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nix::sys::stat::{Mode, SFlag, mknod};
use nodlet_tests::docker_registry::{DockerRegistry, PASSWORD, USER, list};
use nodlet_tests::image::Image;
use nodlet_tests::ssh::noise;
use nodlet_tests::{Device, Kubectl, demo_archive, manifest, seed};
use serde_json::{Value, json};

const NAME: &str = "registry.test/team/demo:1";

/// A registry of the demo image, which the device knows by its prefix.
fn registry(device: &Device) -> DockerRegistry {
    with_demo(device, DockerRegistry::start(device))
}

fn with_demo(device: &Device, registry: DockerRegistry) -> DockerRegistry {
    registry.push(demo_archive(), "team/demo:1");
    registry.list(device, true);
    registry
}

fn pod(name: &str) -> String {
    manifest::pod(name, "print pulled then sleep").replace("localhost/demo:1", NAME)
}

/// A pod that pulls with this Secret.
fn pod_with_secret(name: &str, secret: &str) -> String {
    pod(name).replace("spec:\n", &format!("spec:\n  imagePullSecrets: [{{name: {secret}}}]\n"))
}

/// The file `auth.json` for the user of a registry.
fn auth(registry: &DockerRegistry, password: &str) -> String {
    let user = json!({"username": USER, "password": password});
    json!({"auths": {format!("127.0.0.1:{}", registry.port()): user}}).to_string()
}

/// The content of [`auth`] as a Secret.
fn secret(name: &str, auth: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: kubernetes.io/dockerconfigjson\n\
         stringData:\n  .dockerconfigjson: '{auth}'\n"
    )
}

/// Lets the device trust an authority for the registry on this host.
fn trust(device: &Device, host: &str, authority: &Path) {
    let directory = device.path(&format!("/etc/containers/certs.d/{host}"));
    fs::create_dir_all(&directory).expect("created");
    fs::copy(authority, directory.join("ca.crt")).expect("copied");
}

/// Pulls by hand, which is denied.
#[track_caller]
fn check_denied(device: &Device) {
    device.nodlet(["image", "pull", NAME]).refused_with("pull access denied");
}

#[test]
fn an_image_is_pulled_by_hand_once() {
    let device = Device::new();
    let registry = registry(&device);
    assert_eq!(device.nodlet(["image", "pull", NAME]).ok(), format!("image/{NAME} pulled\n"));
    assert!(device.nodlet(["image", "ls"]).ok().contains("registry.test/team/demo:1"));
    let blobs = |log: &str| log.matches("\"GET /v2/team/demo/blobs/").count();
    let before = registry.log();
    assert!(blobs(&before) >= 2, "{before}");
    // The layers are here: only the configuration is downloaded again.
    assert_eq!(device.nodlet(["image", "pull", NAME]).ok(), format!("image/{NAME} unchanged\n"));
    assert_eq!(blobs(&registry.log()), blobs(&before) + 1);
    let error = device.nodlet(["image", "pull", "registry.test/team/other:1"]).refused();
    assert!(error.contains("127.0.0.1") && error.contains("not found"), "{error}");
}

#[test]
fn a_pod_pulls_its_absent_image_as_soon_as_the_registry_is_there() {
    let device = Device::start_without_images();
    let registry = registry(&device);
    // Nobody listens on this port.
    list(&device, 1, true);
    let web = device.write_pod("web", &pod("web")).wait_reason("app", "ErrImagePull");
    let message = web.container("app").message();
    assert!(message.contains("dial tcp 127.0.0.1:1: Connection refused"), "{message}");
    web.wait_reason("app", "ImagePullBackOff");
    registry.list(&device, true);
    web.wait_ready();
    let events = web.events().join("\n");
    assert!(events.contains(&format!("Pulling image \"{NAME}\"")), "{events}");
    assert!(events.contains(&format!("Successfully pulled image \"{NAME}\" in ")), "{events}");
    assert!(events.contains(" including waiting). Image size: "), "{events}");
    assert!(!events.contains("already present"), "{events}");

    // What is on the board starts without the registry.
    drop(registry);
    let other = device.write_pod("other", &pod("other")).wait_ready();
    assert!(other.has_event("already present on machine"));
}

#[test]
fn a_pod_with_a_policy_of_never_asks_no_registry() {
    let device = Device::start_without_images();
    let registry = registry(&device);
    let text =
        pod("web").replace(&format!("image: {NAME}"), &format!("image: {NAME}\n    imagePullPolicy: Never"));
    assert!(text.contains("Never"), "{text}");
    device.write_pod("web", &text).wait_reason("app", "ErrImageNeverPull");
    assert!(!registry.log().contains("GET /v2/team/demo/manifests/"));
}

#[test]
fn passwords_are_those_of_root_s_podman() {
    let device = Device::new();
    let registry = with_demo(&device, DockerRegistry::with_password(&device));
    check_denied(&device);
    device.shared("/run/containers/0");
    device.file("/run/containers/0/auth.json", auth(&registry, PASSWORD));
    device.nodlet(["image", "pull", NAME]).ok();
}

#[test]
fn a_registry_gets_tokens_of_the_server_that_it_names() {
    let device = Device::start_without_images();
    let registry = with_demo(&device, DockerRegistry::with_tokens(&device));
    registry.push(demo_archive(), "public/demo:1");
    // As from Docker's registry: a token for clients without a password.
    device.nodlet(["image", "pull", "registry.test/public/demo:1"]).ok();
    check_denied(&device);
    device.shared("/run/containers/0");
    device.file("/run/containers/0/auth.json", auth(&registry, "not-the-password"));
    check_denied(&device);
    let file = device.file("/run/containers/0/auth.json", auth(&registry, PASSWORD));
    device.nodlet(["image", "pull", NAME]).ok();
    // What a pod pulls with its Secret, it gets for a token, too.
    fs::remove_file(file).expect("removed");
    device.nodlet(["image", "rm", NAME]).ok();
    let secret = secret("pull", &auth(&registry, PASSWORD));
    device.write_pod("web", &format!("{secret}---\n{}", pod_with_secret("web", "pull"))).wait_ready();
}

#[test]
fn mirrors_are_asked_first_and_the_next_place_has_what_they_lack() {
    let device = Device::start_without_images();
    // Its files are those of another device.
    let elsewhere = Device::new();
    let (registry, mirror) = (registry(&device), DockerRegistry::start(&elsewhere));
    registry.push(demo_archive(), "team/other:1");
    mirror.push(demo_archive(), "copies/team/demo:1");
    let file = device.path("/etc/containers/registries.conf");
    let mut text = fs::read_to_string(&file).expect("it was written");
    // Nothing listens on port 1.
    for location in ["127.0.0.1:1".to_owned(), format!("127.0.0.1:{}/copies", mirror.port())] {
        text += &format!("[[registry.mirror]]\nlocation = \"{location}\"\ninsecure = true\n");
    }
    fs::write(&file, text).expect("written");
    let asked = |registry: &DockerRegistry, path: &str| {
        registry.log().contains(&format!("GET /v2/{path}/manifests/1"))
    };
    device.write_pod("web", &pod("web")).wait_ready();
    assert!(asked(&mirror, "copies/team/demo") && !asked(&registry, "team/demo"), "{}", registry.log());
    device.write_pod("other", &pod("other").replace(NAME, "registry.test/team/other:1")).wait_ready();
    assert!(asked(&mirror, "copies/team/other") && asked(&registry, "team/other"), "{}", mirror.log());
}

#[test]
fn a_registry_with_tls_is_verified() {
    let device = Device::new();
    let (registry, authority) = DockerRegistry::with_tls(&device);
    registry.push(demo_archive(), "team/demo:1");
    registry.list(&device, false);
    device.nodlet(["image", "pull", NAME]).refused_with("no authority certifies 127.0.0.1");
    trust(&device, &format!("127.0.0.1:{}", registry.port()), &authority);
    device.nodlet(["image", "pull", NAME]).ok();
}

#[test]
fn a_special_file_in_the_place_of_a_file_of_a_registry_is_named_and_a_link_is_followed() {
    let device = Device::new();
    let (registry, authority) = DockerRegistry::with_tls(&device);
    registry.push(demo_archive(), "team/demo:1");
    registry.list(&device, false);
    let host = format!("127.0.0.1:{}", registry.port());
    trust(&device, &host, &authority);
    device.shared("/run/containers/0");
    device.shared("/etc/ssl/certs");
    device.file("/run/containers/0/auth.json", "{\"auths\": {}}");
    fs::copy(&authority, device.path("/etc/ssl/certs/ca-certificates.crt")).expect("copied");
    for path in [
        "/etc/containers/registries.conf",
        "/run/containers/0/auth.json",
        &format!("/etc/containers/certs.d/{host}/ca.crt"),
        "/etc/ssl/certs/ca-certificates.crt",
    ] {
        let path = device.path(path);
        let elsewhere = path.with_extension("elsewhere");
        fs::rename(&path, &elsewhere).expect("it is there");
        for kind in [SFlag::S_IFIFO, SFlag::S_IFSOCK] {
            mknod(&path, kind, Mode::S_IRWXU, 0).expect("made");
            let said = format!("{}: it is not a regular file: remove it", path.display());
            device.nodlet(["image", "pull", NAME]).refused_with(&said);
            fs::remove_file(&path).expect("it is there");
        }
        symlink(&elsewhere, &path).expect("linked");
        device.nodlet(["image", "pull", NAME]).ok();
        device.nodlet(["image", "rm", NAME]).ok();
    }
}

/// Serves each client of a port of this machine in a thread of its own, until the tests end. Returns the port.
fn serve(client: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let client = client.clone();
            std::thread::spawn(move || client(stream));
        }
    });
    port
}

/// The head of the next request on a connection; `None` at its end.
fn read_head(client: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

#[test]
fn a_download_that_breaks_is_resumed_where_it_broke() {
    let device = Device::new();
    let registry = DockerRegistry::start(&device);
    let archive = device.path("/big.tar");
    let image = Image::new("localhost/big:1").file("noise", 0o644, &noise(700_000, 7));
    image.write_oci_archive(&archive).expect("written");
    registry.push(&archive, "team/demo:1");
    // Cuts each connection after some bytes of the responses.
    let (to, requests) = (registry.port(), Arc::new(Mutex::new(String::new())));
    let seen = requests.clone();
    let port = serve(move |mut client| {
        let server = TcpStream::connect(("127.0.0.1", to)).expect("the registry listens");
        let (mut from, mut on) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
        let seen = seen.clone();
        std::thread::spawn(move || {
            while let Some(head) = read_head(&mut from) {
                *seen.lock().expect("no panic") += &head;
                let _ = on.write_all(head.as_bytes());
            }
        });
        let _ = std::io::copy(&mut (&server).take(300_000), &mut client);
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    });
    list(&device, port, true);
    device.nodlet(["image", "pull", NAME]).ok();
    let requests = requests.lock().expect("no panic").clone();
    let resumed = requests.matches("Range: bytes=").count();
    assert!((2..=3).contains(&resumed), "{requests}");
}

#[test]
fn a_pod_pulls_with_its_secret() {
    let device = Device::start_without_images();
    let registry = with_demo(&device, DockerRegistry::with_password(&device));
    let web = device.write_pod("web", &pod("web")).wait_reason("app", "ErrImagePull");
    let message = web.container("app").message();
    assert!(message.contains("pull access denied"), "{message}");
    device.write_manifest("secret.yaml", &secret("pull", &auth(&registry, PASSWORD)));
    // Another Secret has the wrong password.
    device.write_manifest("wrong.yaml", &secret("wrong", &auth(&registry, "not-the-password")));
    device.write_pod("denied", &pod_with_secret("denied", "wrong")).wait_event("Failed to pull image");
    let with_secret = pod_with_secret("other", "pull");
    assert!(with_secret.contains("imagePullSecrets"), "{with_secret}");
    device.write_pod("other", &with_secret).wait_ready();
    // The first pod starts with the image that the second one pulled.
    web.wait_ready();
}

#[test]
fn the_task_of_a_private_registry_needs_its_secret() {
    let device = Device::start_without_images();
    let registry = with_demo(&device, DockerRegistry::with_password(&device));
    device.apply(include_str!("../../examples/tasks/private-registry.yaml"));
    let private = device.pod("private-registry").wait_reason("app", "ErrImagePull");
    let message = private.container("app").message();
    assert!(message.contains("pull access denied"), "{message}");
    let secret = format!(
        "create secret docker-registry regcred --docker-server=127.0.0.1:{} --docker-username={USER} \
         --docker-password={PASSWORD}",
        registry.port()
    );
    Kubectl::new(&device).line(&secret).ok();
    // The next attempt has the Secret.
    private.wait_ready();
    let pulled = format!("Pulled: Successfully pulled image \"{NAME}\"");
    assert!(private.events().iter().any(|event| event.starts_with(&pulled)), "{:?}", private.events());
    assert!(!private.events().join("\n").contains(PASSWORD));
}

#[test]
fn a_running_container_gets_its_new_image_when_that_is_pulled() {
    let device = Device::start();
    let registry = DockerRegistry::start(&device);
    registry.list(&device, true);
    let text = manifest::pod("web", "print hello then sleep");
    device.apply(&text);
    let web = device.pod("web").wait_ready();
    registry.push(demo_archive(), "team/demo:1");
    device.apply(&text.replace("localhost/demo:1", NAME));
    device.wait_for("the container runs the new image", || {
        let container = web.container("app");
        container.of_status("image") == NAME && container.is_running()
    });
    assert_eq!(web.container("app").restart_count(), 1);
    for text in ["Pulling image", "Successfully pulled image"] {
        assert!(web.has_event(&format!("{text} \"{NAME}\"")), "{:?}", web.events());
    }
}

#[test]
fn content_that_does_not_fit_its_digest_is_refused() {
    let device = Device::new();
    let registry = DockerRegistry::start(&device);
    let archive = device.path("/app.tar");
    let image = |seed| Image::new("localhost/app:1").file("noise", 0o644, &noise(20_000, seed));
    for (seed, name) in [(1, "team/demo:1"), (2, "team/demo:2")] {
        image(seed).write_oci_archive(&archive).expect("written");
        registry.push(&archive, name);
    }
    let mut layers: Vec<_> = registry.blobs().into_iter().filter(|(_, bytes)| bytes.len() > 20_000).collect();
    assert_eq!(layers.len(), 2);
    // The layer of one image gets the content of the other's.
    let (path, mut bytes) = (layers[0].0.clone(), layers.remove(1).1);
    bytes.resize(layers[0].1.len(), 0);
    fs::write(&path, bytes).expect("written");
    registry.list(&device, true);
    let pull = |tag: &str| device.nodlet(["image", "pull", &format!("registry.test/team/demo:{tag}")]);
    let results = [pull("1"), pull("2")];
    let refused: Vec<_> = results.iter().filter(|ran| ran.code != 0).collect();
    assert_eq!(refused.len(), 1, "{results:?}");
    assert!(refused[0].stderr.contains("failed to load layer"), "{refused:?}");
    assert_eq!(device.nodlet(["image", "ls"]).ok().lines().count(), 2, "a head and the other image");

    // Every document gets another byte: no image can be pulled.
    for (path, bytes) in registry.blobs() {
        let text = String::from_utf8_lossy(&bytes).replace("linux", "lunix");
        if bytes.starts_with(b"{") {
            fs::write(&path, text).expect("written");
        }
    }
    pull("1").refused_with("instead of sha256:");
    pull("2").refused_with("instead of sha256:");
}

/// A proxy on this machine, which connects whatever it is asked for with a port. Returns its port, and the heads of the
/// requests, whose first line has what was asked for.
fn forward_proxy(to: u16) -> (u16, Arc<Mutex<Vec<String>>>) {
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = requests.clone();
    let port = serve(move |mut client| {
        let mut server = TcpStream::connect(("127.0.0.1", to)).expect("the registry listens");
        while let Some(head) = read_head(&mut client) {
            seen.lock().expect("no panic").push(head.clone());
            if !head.contains("Proxy-Authorization: Basic Ym9hcmQ6c2VjcmV0\r\n") {
                let _ = client.write_all(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n");
                continue;
            }
            let (mut from, mut back) =
                (server.try_clone().expect("clone"), client.try_clone().expect("clone"));
            let _ = client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n");
            std::thread::spawn(move || std::io::copy(&mut from, &mut back));
            let _ = std::io::copy(&mut client, &mut server);
            return;
        }
    });
    (port, requests)
}

/// Lists a registry on another host, which only the proxy reaches, as the place of images of `registry.test`.
fn list_elsewhere(device: &Device, host: &str, is_plain: bool) {
    list(device, 1, is_plain);
    let path = device.path("/etc/containers/registries.conf");
    let text = fs::read_to_string(&path).expect("it was written").replace("127.0.0.1:1", host);
    fs::write(path, text).expect("written");
}

#[test]
fn a_pod_pulls_through_a_proxy() {
    let mut device = Device::new();
    let (registry, authority) = DockerRegistry::with_tls(&device);
    registry.push(demo_archive(), "team/demo:1");
    let (port, requests) = forward_proxy(registry.port());
    // The certificate is for this address, which nothing but the proxy's answer leads to.
    let host = "192.0.2.1:5000";
    list_elsewhere(&device, host, false);
    trust(&device, host, &authority);
    device.agent_variable("HTTPS_PROXY", format!("http://board:wrong@127.0.0.1:{port}"));
    device.start_agent();
    let web = device.write_pod("web", &pod("web")).wait_reason("app", "ErrImagePull");
    let message = web.container("app").message();
    let refusal = format!("the proxy 127.0.0.1:{port}: it responded with status 407");
    assert!(message.contains(&refusal) && !message.contains("wrong"), "{message}");

    device.stop_agent();
    device.agent_variable("HTTPS_PROXY", format!("http://board:secret@127.0.0.1:{port}"));
    device.start_agent();
    device.pod("web").wait_ready();
    let seen = requests.lock().expect("no panic").clone();
    assert!(seen.iter().all(|head| head.starts_with(&format!("CONNECT {host} HTTP/1.1\r\n"))), "{seen:#?}");

    // An exception: the address is asked for directly, and nobody is there.
    let before = seen.len();
    let pull = |variables: &[(&str, &str)]| {
        let name = "registry.test/team/other:1";
        let mut command = device.command(&["image", "pull", name]);
        let output = command.envs(variables.iter().copied()).output().expect("nodlet can be run");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let proxy = format!("127.0.0.1:{port}");
    let why = pull(&[("https_proxy", &proxy), ("no_proxy", "192.0.2.0/24")]);
    assert!(!why.contains("proxy"), "{why}");
    assert_eq!(requests.lock().expect("no panic").len(), before, "{why}");
    let why = pull(&[("https_proxy", "socks5://127.0.0.1:1")]);
    assert!(why.contains("HTTPS_PROXY: the proxy must be http://HOST:PORT"), "{why}");
    let why = pull(&[("https_proxy", "127.0.0.1:1")]);
    assert!(why.contains("dial tcp 127.0.0.1:1: Connection refused"), "{why}");
}

#[test]
fn a_registry_without_tls_is_reached_through_a_proxy() {
    let device = Device::new();
    let registry = registry(&device);
    let (port, requests) = forward_proxy(registry.port());
    list_elsewhere(&device, "registry.example", true);
    let mut command = device.command(&["image", "pull", NAME]);
    command.env("http_proxy", format!("http://board:secret@127.0.0.1:{port}"));
    let output = command.output().expect("nodlet can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let seen = requests.lock().expect("no panic").clone();
    assert!(seen[0].starts_with("CONNECT registry.example:80 HTTP/1.1\r\n"), "{seen:#?}");
}

/// A registry of one image, `team/demo:1`, that sends what it is told to.
#[derive(Clone)]
struct Liar {
    manifest: Value,
    /// By the hexadecimal digits of their digests.
    blobs: BTreeMap<String, Vec<u8>>,
    /// How many bytes it sends until it closes a connection, once.
    until_cut: Arc<Mutex<Option<usize>>>,
}

impl Liar {
    fn new(device: &Device) -> Liar {
        let archive = device.path("/small.tar");
        let image = Image::new("localhost/small:1").file("noise", 0o644, &noise(200, 3));
        image.write_oci_archive(&archive).expect("written");
        let mut files = BTreeMap::new();
        let mut entries = tar::Archive::new(fs::File::open(archive).expect("written"));
        for entry in entries.entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("it is whole");
            files.insert(path.rsplit('/').next().unwrap_or_default().to_owned(), bytes);
        }
        let index: Value = serde_json::from_slice(&files["index.json"]).expect("JSON");
        let digest =
            index["manifests"][0]["digest"].as_str().expect("a digest").trim_start_matches("sha256:");
        let manifest = serde_json::from_slice(&files[digest]).expect("JSON");
        Liar { manifest, blobs: files, until_cut: Arc::default() }
    }

    /// Serves until the test ends.
    fn serve(&self, device: &Device) {
        let liar = self.clone();
        list(device, serve(move |client| liar.answer(client)), true);
    }

    fn answer(&self, mut client: TcpStream) {
        let Some(request) = read_head(&mut client) else { return };
        let target = request.split(' ').nth(1).unwrap_or_default();
        let manifest = self.manifest.to_string().into_bytes();
        let body = match target.rsplit_once('/') {
            Some((_, "1")) => Some(&manifest),
            Some((_, digest)) => self.blobs.get(digest.trim_start_matches("sha256:")),
            None => None,
        };
        let begin =
            request.split("Range: bytes=").nth(1).and_then(|range| range.split('-').next()?.parse().ok());
        let (status, range, body) = match (body, begin) {
            (Some(body), Some(begin)) => {
                let whole = body.len();
                let range = format!("Content-Range: bytes {begin}-{}/{whole}\r\n", whole - 1);
                ("206 Partial Content", range, &body[usize::min(begin, whole)..])
            }
            (Some(body), None) => ("200 OK", String::new(), &body[..]),
            (None, _) => ("404 Not Found", String::new(), &[][..]),
        };
        let length = body.len();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{range}\r\n");
        let mut response = [head.as_bytes(), body].concat();
        let mut until_cut = self.until_cut.lock().expect("no panic");
        if let Some(left) = *until_cut {
            *until_cut = left.checked_sub(response.len());
            response.truncate(left);
        }
        let _ = client.write_all(&response);
    }
}

#[test]
fn a_registry_that_lies_about_sizes_is_refused_and_nothing_is_kept() {
    let device = Device::new();
    let honest = Liar::new(&device);
    let images = || device.nodlet(["image", "ls"]).ok().lines().count();
    let bounds = "the size of a layer must be at most 8589934591";
    for (lie, why) in [
        (json!(1), "a blob is longer than its manifest says"),
        (json!(100_000), "the server closed the connection"),
        (json!(u64::MAX), bounds),
        (json!(-1), bounds),
        (json!("200"), bounds),
        (Value::Null, bounds),
    ] {
        let mut liar = honest.clone();
        liar.manifest["layers"][0]["size"] = lie;
        liar.serve(&device);
        device.nodlet(["image", "pull", NAME]).refused_with(why);
        assert_eq!(images(), 0);
    }
    honest.serve(&device);
    device.nodlet(["image", "pull", NAME]).ok();
    assert_eq!(images(), 2);
}

#[test]
fn a_registry_that_is_cut_at_any_byte_delays_a_pull_and_changes_nothing_else() {
    /// Bytes between two cuts; the first one is another one for each seed.
    const APART: usize = 61;
    let device = Device::new();
    let registry = Liar::new(&device);
    registry.serve(&device);
    let digests = || {
        device.nodlet(["image", "pull", NAME]).ok();
        let shown = device.nodlet(["image", "ls"]).ok();
        device.nodlet(["image", "rm", NAME]).ok();
        shown
    };
    let whole = digests();
    let mut cut = usize::try_from(seed().number() % 61).expect("it is small");
    let mut cuts = 0;
    loop {
        *registry.until_cut.lock().expect("no panic") = Some(cut);
        assert_eq!(digests(), whole, "cut after {cut} bytes");
        // The whole image had fewer bytes.
        if registry.until_cut.lock().expect("no panic").is_some() {
            break;
        }
        (cut, cuts) = (cut + APART, cuts + 1);
    }
    assert!(cuts > 10, "{cuts} cuts");
}
