//! Builds programs of Kubernetes from its Go modules, whose versions are pinned by `go.sum` in a directory of
//! that name. They are independent references for nodlet's behaviour.

use std::path::PathBuf;
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::files;
use crate::task::{Outcome, Task, TaskError, project, run as run_command, work};

const VERSION: &str = "1.36.3";

/// A program of the Go module whose versions are in `tests/go/MODULE/go.mod`.
pub struct Program {
    /// The name of the program.
    pub name: &'static str,
    module: &'static str,
    /// Its version.
    pub release: &'static str,
    package: &'static str,
    /// The Go package in which the program's version is set, if it needs that.
    version: Option<&'static str>,
    /// Whether the program runs the tests of its package.
    tests: bool,
}

/// The real kubectl, the best test that the local API is compatible with Kubernetes.
pub const KUBECTL: Program = kubernetes("kubectl", ".", Some("k8s.io/component-base/version"));

/// The servers of Kubernetes' own tests.
pub const AGNHOST: Program = kubernetes("agnhost", "k8s.io/kubernetes/test/images/agnhost", None);

/// The servers of a cluster in one program, with which boards are joined in the tests.
pub const CONTROL_PLANE: Program = kubernetes("control-plane", ".", Some("k8s.io/component-base/version"));

/// The same servers of the minor version before, and of the one after.
pub const OTHER_CONTROL_PLANES: [Program; 2] = [
    Program { module: "control-plane-1.35", release: "1.35.4", ..CONTROL_PLANE },
    Program { module: "control-plane-1.37", release: "1.37.2", ..CONTROL_PLANE },
];

/// kube-proxy, which the tests run as pods of boards. Its versions are those of the control plane.
pub(crate) const KUBE_PROXY: Program = Program {
    module: "control-plane",
    ..kubernetes("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", Some("k8s.io/component-base/version"))
};

/// CoreDNS, which the tests run as pods of boards.
pub const COREDNS: Program = Program { release: "1.14.7", ..kubernetes("coredns", ".", None) };

/// metrics-server, for `kubectl top`.
const METRICS_SERVER: Program = Program {
    release: "0.9.0",
    ..kubernetes("metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server", None)
};

/// konnectivity: the server beside an API server, and the agent on nodes that it cannot connect to.
const KONNECTIVITY: [Program; 2] = [
    konnectivity("konnectivity-server", "sigs.k8s.io/apiserver-network-proxy/cmd/server"),
    konnectivity("konnectivity-agent", "sigs.k8s.io/apiserver-network-proxy/cmd/agent"),
];

/// An API server with faults, which comes before the one of the control plane.
const MISBEHAVE: Program = Program { release: "6", ..kubernetes("misbehave", ".", None) };

/// The reader of YAML of kubectl and the kubelet.
pub const YAML_JUDGE: Program = Program { release: "1", ..kubernetes("yaml-judge", ".", None) };

/// Kubernetes' own tests of clusters.
pub const E2E: Program = Program {
    tests: true,
    ..kubernetes("e2e", "k8s.io/kubernetes/test/e2e", Some("k8s.io/component-base/version"))
};

/// What runs several of these tests at once.
pub const GINKGO: Program = Program {
    module: "e2e",
    release: "2.28.1",
    ..kubernetes("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo", None)
};

/// The program of the image `nonewprivs` of these tests.
pub const NONEWPRIVS: Program = Program {
    module: "agnhost",
    ..kubernetes("nonewprivs", "k8s.io/kubernetes/test/images/nonewprivs", None)
};

/// The kubelet, with which boards are compared, together with containerd.
pub const KUBELET: Program =
    kubernetes("kubelet", "k8s.io/kubernetes/cmd/kubelet", Some("k8s.io/component-base/version"));

/// containerd, the program that it runs for each pod, and its command line.
pub const CONTAINERD: [Program; 3] = [
    containerd("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
    containerd("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
    containerd("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
];

const fn kubernetes(name: &'static str, package: &'static str, version: Option<&'static str>) -> Program {
    Program { name, module: name, release: VERSION, package, version, tests: false }
}

const fn containerd(name: &'static str, package: &'static str) -> Program {
    Program { module: "containerd", release: "2.4.2", ..kubernetes(name, package, None) }
}

const fn konnectivity(name: &'static str, package: &'static str) -> Program {
    Program { module: "konnectivity", release: "0.34.0", ..kubernetes(name, package, None) }
}

/// The task `cargo xtask kubectl`.
pub const KUBECTL_TASK: Task =
    Task::new("kubectl", "", "build the real kubectl from its Go modules into .work/kubectl", |_| {
        build([KUBECTL])
    });

/// The task `cargo xtask agnhost`.
pub const AGNHOST_TASK: Task =
    Task::new("agnhost", "", "build the servers of Kubernetes' own tests into .work/agnhost", |_| {
        build([AGNHOST])
    });

/// The task `cargo xtask control-plane`.
pub const CONTROL_PLANE_TASK: Task = Task::new(
    "control-plane",
    "",
    "build the servers of a Kubernetes cluster, kube-proxy and CoreDNS into .work",
    control_plane,
);

/// Builds the servers of a cluster and all that runs beside them.
///
/// # Errors
/// A program could not be built.
pub fn control_plane(_: &[String]) -> Outcome {
    let beside = [KUBE_PROXY, COREDNS, METRICS_SERVER, MISBEHAVE];
    build([CONTROL_PLANE].into_iter().chain(beside).chain(KONNECTIVITY))
}

fn build(programs: impl IntoIterator<Item = Program>) -> Outcome {
    programs.into_iter().try_for_each(|program| {
        println!("{}", program.build(None)?.display());
        Ok(())
    })
}

impl Program {
    /// The program's path, at which the tests look for it; for a guest with this processor, if given in Go's
    /// spelling.
    pub fn path(&self, processor: Option<&str>) -> Result<PathBuf, TaskError> {
        let processor = processor.map(|processor| format!("-{processor}")).unwrap_or_default();
        Ok(work(self.name)?.join(format!("{}-{}{processor}", self.name, self.release)))
    }

    /// Builds the program unless it is already built from the same files, which takes some minutes once.
    pub fn build(&self, processor: Option<&str>) -> Result<PathBuf, TaskError> {
        let path = self.path(processor)?;
        let (made_of, inputs) = (path.with_added_extension("inputs"), self.inputs()?);
        if path.exists() && std::fs::read_to_string(&made_of).is_ok_and(|before| before == inputs) {
            return Ok(path);
        }
        let name = self.name;
        if Command::new("go").arg("version").output().is_err() {
            let why = format!("{name} is built with Go 1.26 or later: install it, and have `go` in PATH");
            return Err(TaskError(why));
        }
        let mut flags = "-s -w".to_owned();
        if let Some(of) = self.version {
            let (major, rest) = self.release.split_once('.').ok_or("a version has dots")?;
            let minor = rest.split('.').next().unwrap_or(rest);
            flags += &format!(
                " -X {of}.gitVersion=v{} -X {of}.gitMajor={major} -X {of}.gitMinor={minor}",
                self.release
            );
        }
        let new = path.with_added_extension("new");
        run_command(
            Command::new("go")
                .current_dir(project().join("tests/go").join(self.module))
                .env("CGO_ENABLED", "0")
                .envs(processor.map(|processor| ("GOARCH", processor)))
                .args(if self.tests { &["test", "-c"][..] } else { &["build"] })
                .args(["-trimpath", "-ldflags", &flags, "-o"])
                .arg(&new)
                .arg(self.package),
        )?;
        std::fs::rename(&new, &path)?;
        std::fs::write(&made_of, inputs)?;
        Ok(path)
    }

    /// A digest of what the program is made of: the files of its module, what is compiled of it, and by which Go.
    fn inputs(&self) -> Result<String, TaskError> {
        let directory = project().join("tests/go").join(self.module);
        let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
            .map_err(|error| format!("failed to read {}: {error}", directory.display()))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        files.sort();
        let mut digest = Sha256::new();
        let go = Command::new("go").arg("version").output().map(|said| said.stdout).unwrap_or_default();
        digest.update(go);
        digest.update(format!("{} {} {:?} {}\n", self.package, self.release, self.version, self.tests));
        for file in files.iter().filter(|file| file.is_file()) {
            let bytes = std::fs::read(file)?;
            digest.update(format!("{:?} {}\n", file.file_name(), bytes.len()));
            digest.update(bytes);
        }
        Ok(files::digits(&digest.finalize()))
    }
}
