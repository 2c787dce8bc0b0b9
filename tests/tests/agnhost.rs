//! Probes over TLS and gRPC against independent servers: agnhost, from Kubernetes' own tests, with Go's TLS
//! and gRPC, and OpenSSL.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nodlet_tests::image::Image;
use nodlet_tests::{Device, agnhost_program};

/// Generates a key and a self-signed certificate for a name that does not exist.
fn certificate(directory: &Path, kind: &[&str]) -> (PathBuf, PathBuf) {
    let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=nobody.example", "-newkey"])
        .args(kind)
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl can be run: `cargo xtask setup` installs it");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    (certificate, key)
}

const EC: &[&str] = &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// A device with agnhost, and a certificate in its image.
fn device() -> Device {
    let device = Device::start();
    let (_, directory) = device.shared("certificate");
    let (certificate, key) = certificate(&directory, EC);
    let image = Image::new("localhost/agnhost:1")
        .file("agnhost", 0o755, &agnhost_program())
        .file("tls.crt", 0o644, &fs::read(certificate).expect("it was made"))
        .file("tls.key", 0o644, &fs::read(key).expect("it was made"))
        .directory("tmp", 0o1777)
        .config("Entrypoint", serde_json::json!(["/agnhost"]));
    device.load(&image);
    device
}

/// The manifest of a pod that runs agnhost.
fn pod(name: &str, arguments: &str, probes: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  containers:\n  - name: app\n    image: localhost/agnhost:1\n    args: [{arguments}]\n{}",
        probes.lines().map(|line| format!("    {line}\n")).collect::<String>()
    )
}

const HTTPS: &str = "netexec, --http-port=8443, --tls-cert-file=/tls.crt, --tls-private-key-file=/tls.key";

/// Sends a plain HTTP request to a server, from the node.
fn get(ip: &str, port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect((ip, port)).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn https_probes_take_any_certificate_and_follow_redirects_on_their_host() {
    let device = device();
    let probe = |path: &str| {
        format!(
            "readinessProbe: {{httpGet: {{path: {path:?}, port: 8443, scheme: HTTPS}}, periodSeconds: 1, timeoutSeconds: 60}}"
        )
    };
    for (name, path) in [
        ("web", "/hostname"),
        ("near", "/redirect?location=/hostname&code=302"),
        ("far", "/redirect?location=https://192.0.2.1/&code=302"),
        ("sick", "/redirect?location=/none&code=500"),
    ] {
        device.write_pod(name, &pod(name, HTTPS, &probe(path)));
    }
    for name in ["web", "near", "far"] {
        device.pod(name).wait_ready();
    }
    let warning = "Readiness probe warning: Probe terminated redirects, Response body: ";
    device.pod("far").wait_event_of("ProbeWarning", warning);
    let failure = "Readiness probe failed: HTTP probe failed with statuscode: 500";
    device.pod("sick").wait_event_of("Unhealthy", failure);
    assert!(!device.pod("sick").is_ready());
}

#[test]
fn a_probe_with_the_wrong_scheme_fails_with_a_distinct_message() {
    let device = device();
    let probe = |scheme: &str| {
        format!(
            "readinessProbe: {{httpGet: {{path: /hostname, port: 8443, scheme: {scheme}}}, periodSeconds: 1, timeoutSeconds: 60}}"
        )
    };
    device.write_pod("open", &pod("open", "netexec, --http-port=8443", &probe("HTTPS")));
    device.write_pod("secret", &pod("secret", HTTPS, &probe("HTTP")));
    device
        .pod("open")
        .wait_event_of("Unhealthy", ":8443/hostname\": http: server gave HTTP response to HTTPS client");
    // Go's TLS server answers a plain HTTP request with status 400.
    device
        .pod("secret")
        .wait_event_of("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 400");
    assert!(!device.pod("open").is_ready() && !device.pod("secret").is_ready());
}

#[test]
fn https_hooks_take_any_certificate_and_ask_once_more_without_tls() {
    let device = device();
    let hook = |kind: &str, scheme: &str| {
        format!(
            "lifecycle: {{{kind}: {{httpGet: {{path: /hostname, port: 8443, scheme: {scheme}, \
             httpHeaders: [{{name: Authorization, value: secret}}, {{name: X-Who, value: hook}}]}}}}}}"
        )
    };
    device.write_pod("secret", &pod("secret", HTTPS, &hook("preStop", "HTTPS")));
    device.write_pod("open", &pod("open", "netexec, --http-port=8443", &hook("preStop", "HTTPS")));
    let nobody = "lifecycle: {preStop: {httpGet: {path: /, port: 9, scheme: HTTPS}}}";
    device.write_pod("nobody", &pod("nobody", HTTPS, nobody));
    let names = ["secret", "open", "nobody"];
    for name in names {
        device.pod(name).wait_log("app", "Started HTTP");
    }
    let open = format!("{}:8443", device.pod("open").ip());
    for name in names {
        device.remove_manifest(&format!("{name}.yaml"));
    }
    for name in names {
        device.pod(name).wait_gone();
    }
    let events = |name: &str| device.pod(name).events();
    let reported = format!(
        "LifecycleHTTPFallback: request to HTTPS lifecycle hook {open} got HTTP response, retry with HTTP succeeded"
    );
    assert!(events("open").contains(&reported), "{:?}", events("open"));
    for name in ["secret", "open"] {
        assert!(!events(name).iter().any(|event| event.contains("FailedPreStopHook")), "{:?}", events(name));
    }
    assert!(!events("secret").iter().any(|event| event.contains("Fallback")), "{:?}", events("secret"));
    let failed = "FailedPreStopHook: PreStopHook failed".to_owned();
    assert!(events("nobody").contains(&failed), "{:?}", events("nobody"));
}

#[test]
fn a_grpc_probe_follows_what_the_health_service_says() {
    let device = device();
    let serves = "grpc-health-checking, --port=5000, --http-port=8080";
    let grpc = |kind: &str, service: &str| {
        format!("{kind}: {{grpc: {{port: 5000{service}}}, periodSeconds: 1, timeoutSeconds: 60")
    };
    let ready = |service: &str| grpc("readinessProbe", service) + "}";
    let whole = format!("{}\n{}, failureThreshold: 10000}}", ready(""), grpc("livenessProbe", ""));
    device.write_pod("whole", &pod("whole", serves, &whole));
    let part = format!("{serves}, --service=web.v1");
    device.write_pod("part", &pod("part", &part, &ready(", service: web.v1")));
    device.write_pod("stranger", &pod("stranger", serves, &ready(", service: other")));
    let whole = device.pod("whole").wait_ready();
    device.pod("part").wait_ready().wait_log("app", "Serving the Check request");
    let said = |name: &str, text: &str| device.pod(name).events().iter().any(|event| event == text);
    device.wait_for("the unknown service to be reported", || {
        said(
            "stranger",
            "Unhealthy: Readiness probe failed: error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
        )
    });
    assert!(!device.pod("stranger").is_ready());

    let ip = whole.ip();
    get(&ip, 8080, "/make-not-serving");
    device.wait_for("the pod to be unready", || !whole.is_ready());
    for kind in ["Readiness", "Liveness"] {
        let text =
            format!("Unhealthy: {kind} probe failed: service unhealthy (responded with \"NOT_SERVING\")");
        device.wait_for("the event", || said("whole", &text));
    }
    get(&ip, 8080, "/make-serving");
    whole.wait_ready();
    assert_eq!(whole.container("app").restart_count(), 0);
}

#[test]
fn a_grpc_liveness_probe_restarts_what_no_longer_serves() {
    let device = device();
    let probes = "startupProbe: {grpc: {port: 5000}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 600}\n\
                  livenessProbe: {grpc: {port: 5000}, periodSeconds: 1, timeoutSeconds: 60, failureThreshold: 2}";
    let web = device.write_pod("web", &pod("web", "grpc-health-checking", probes)).wait_ready();
    get(&web.ip(), 8080, "/make-not-serving");
    web.wait_run("app", 1);
    let events = web.events();
    assert!(
        events.iter().any(|event| event == "Killing: Container app failed liveness probe, will be restarted"),
        "{events:?}"
    );
    web.wait_ready();
}

#[test]
fn a_server_without_the_health_service_or_without_grpc_is_reported() {
    let device = device();
    let probe = |port: u16| {
        format!("readinessProbe: {{grpc: {{port: {port}}}, periodSeconds: 1, timeoutSeconds: 1}}")
    };
    // A plain HTTP/1 server, a TLS server, and no server.
    device.write_pod("open", &pod("open", "netexec, --http-port=8080", &probe(8080)));
    device.write_pod("secret", &pod("secret", HTTPS, &probe(8443)));
    device.write_pod("shut", &pod("shut", "pause", &probe(5000)));
    for (name, port) in [("open", 8080), ("secret", 8443), ("shut", 5000)] {
        let pod = device.pod(name);
        device.wait_for("the failure", || {
            let text = format!(
                "Unhealthy: Readiness probe failed: timeout: failed to connect service \"{}:{port}\" within 1s: context deadline exceeded",
                pod.ip()
            );
            pod.events().contains(&text)
        });
        assert!(!pod.is_ready());
    }
}

/// A process `openssl s_server` on the node, which ends with the test.
struct Openssl(Child);

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an OpenSSL server that supports only these options. Returns its port.
fn openssl(directory: &Path, kind: &[&str], options: &[&str]) -> (Openssl, u16) {
    fs::create_dir_all(directory).expect("the root can be written to");
    let (certificate, key) = certificate(directory, kind);
    // The port was free a moment ago, and other processes on the loopback address do not take consecutive
    // ports.
    let port = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .expect("a port")
        .port();
    let child = Command::new("openssl")
        .args(["s_server", "-quiet", "-www", "-accept", &format!("127.0.0.1:{port}"), "-cert"])
        .arg(certificate)
        .arg("-key")
        .arg(key)
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl can be run");
    (Openssl(child), port)
}

#[test]
fn every_cipher_key_exchange_and_kind_of_certificate_is_understood() {
    const RSA: &[&str] = &["rsa:2048"];
    const ED25519: &[&str] = &["ed25519"];
    let device = Device::start();
    let (_, directory) = device.shared("openssl");
    let mut servers = Vec::new();
    let mut containers = String::new();
    for (number, (kind, options)) in [
        (EC, &["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256", "-groups", "X25519"][..]),
        (EC, &["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384", "-groups", "P-256"]),
        (RSA, &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"]),
        (ED25519, &["-tls1_3"]),
        (EC, &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-GCM-SHA256", "-groups", "X25519"]),
        (EC, &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384", "-groups", "P-256"]),
        (EC, &["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"]),
        (RSA, &["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"]),
        (RSA, &["-tls1_2", "-cipher", "ECDHE-RSA-AES256-GCM-SHA384"]),
        (RSA, &["-tls1_2", "-cipher", "ECDHE-RSA-CHACHA20-POLY1305"]),
        // A server that requests a client certificate accepts a client without one.
        (EC, &["-verify", "1"]),
        // Only a server that requires a client certificate rejects the probe, and one with an obsolete TLS
        // version.
        (EC, &["-Verify", "1", "-tls1_2"]),
        (RSA, &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"]),
    ]
    .into_iter()
    .enumerate()
    {
        let (server, port) = openssl(&directory.join(number.to_string()), kind, options);
        servers.push(server);
        containers += &format!(
            "  - name: c{number}\n    image: localhost/demo:1\n    args: [sleep]\n    readinessProbe: {{httpGet: {{host: 127.0.0.1, port: {port}, scheme: HTTPS, path: /}}, periodSeconds: 1, timeoutSeconds: 60}}\n"
        );
    }
    let all = device.write_pod(
        "all",
        &format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: all}}\nspec:\n  containers:\n{containers}"),
    );
    for number in 0..11 {
        device.wait_for("a handshake", || all.container(&format!("c{number}")).is_ready());
    }
    device.wait_for("the refusals", || {
        all.events().iter().filter(|event| event.contains("remote error: tls: ")).count() >= 2
    });
    for number in 11..13 {
        assert!(!all.container(&format!("c{number}")).is_ready());
    }
}
