//! Software that people use, in images made by common tools: redis, nginx and python3 from Debian's packages,
//! built by buildah, saved by podman and skopeo.

use nodlet_tests::{Device, built_image};

#[test]
fn redis_answers_its_probes_and_keeps_its_data() {
    let device = Device::start_without_images();
    device.load_image(&built_image("redis.oci.tar"));
    let redis = device
        .write_pod(
            "redis",
            "apiVersion: v1
kind: Pod
metadata:
  name: redis
spec:
  containers:
  - name: redis
    image: localhost/redis:1
    ports:
    - {name: redis, containerPort: 6379}
    readinessProbe:
      tcpSocket: {port: redis}
      periodSeconds: 1
    livenessProbe:
      exec: {command: [redis-cli, ping]}
      periodSeconds: 1
      failureThreshold: 2
",
        )
        .wait_ready();
    assert_eq!(redis.exec("redis", ["redis-cli", "set", "key", "value"]).ok(), "OK\n");
    assert_eq!(redis.exec("redis", ["redis-cli", "get", "key"]).ok(), "value\n");
    assert_eq!(redis.exec("redis", ["id", "-u"]).ok(), "101\n", "the image's user");

    // redis stops responding without exiting: the liveness probe must restart it.
    redis.exec("redis", ["redis-cli", "client", "pause", "60000", "ALL"]).ok();
    redis.wait_restarts("redis", 1);
    redis.wait_ready();
}

#[test]
fn nginx_serves_what_a_second_container_writes() {
    let device = Device::start_without_images();
    device.load_image(&built_image("nginx.docker.tar"));
    device.load_image(nodlet_tests::demo_archive());
    let nginx = device
        .write_pod(
            "nginx",
            "apiVersion: v1
kind: Pod
metadata:
  name: nginx
spec:
  volumes:
  - name: content
    emptyDir: {}
  containers:
  - name: nginx
    image: localhost/nginx:1
    ports:
    - {name: http, containerPort: 80}
    readinessProbe:
      httpGet: {path: /index.html, port: http}
      periodSeconds: 1
    volumeMounts:
    - {name: content, mountPath: /var/www/html, readOnly: true}
  - name: writer
    image: localhost/demo:1
    args: [write, /content/index.html, written, '0.2']
    volumeMounts:
    - {name: content, mountPath: /content}
",
        )
        .wait_ready();
    let page = nginx.demo("writer", "get http://127.0.0.1/").ok();
    assert!(page.starts_with("written "), "{page}");
    nginx.wait_log("nginx", "kube-probe/");
    device.remove_pod("nginx");
}

#[test]
fn python_serves_fails_and_ends_on_request() {
    let device = Device::start_without_images();
    device.load_image(&built_image("python3.oci"));
    let pod = |name: &str, program: &str, policy: &str| {
        format!(
            "apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  restartPolicy: {policy}
  containers:
  - name: python
    image: localhost/python3:1
    command: [python3, -c]
    args:
    - |
      {}
",
            program.replace('\n', "\n      ")
        )
    };
    let server = "import http.server, signal, sys\n\
                  signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n\
                  http.server.test(http.server.SimpleHTTPRequestHandler, port=8000)";
    device.write_manifest("server.yaml", &pod("server", server, "Always"));
    device.write_manifest("sum.yaml", &pod("sum", "print(sum(range(101)))", "Never"));
    device.write_manifest("fail.yaml", &pod("fail", "import sys\nsys.exit('no luck')", "Never"));
    device.pod("sum").wait_phase("Succeeded");
    assert_eq!(device.pod("sum").logs("python"), "5050\n");
    device.pod("fail").wait_phase("Failed");
    assert_eq!(device.pod("fail").container("python").exit_code(), Some(1));
    assert_eq!(device.pod("fail").logs("python"), "no luck\n");
    device.pod("server").wait_log("python", "Serving HTTP");
    let fetch = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:8000/').status)";
    assert_eq!(device.pod("server").exec("python", ["python3", "-c", fetch]).ok(), "200\n");
}

#[test]
fn every_format_of_an_image_is_the_same_image() {
    let device = Device::start_without_images();
    device.load_image(&built_image("python3.docker.tar"));
    let once = device.nodlet(["image", "ls"]).ok();
    assert!(once.contains("localhost/python3"), "{once}");
    for file in ["python3.oci.tar", "python3.docker.tar.gz", "python3.oci"] {
        device.load_image(&built_image(file));
        let rows =
            device.nodlet(["image", "ls"]).ok().lines().filter(|line| line.contains("python3")).count();
        assert_eq!(rows, 1, "{file}");
    }
}
