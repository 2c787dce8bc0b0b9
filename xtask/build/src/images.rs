//! Images of real software, made by real tools: Debian's packages of redis, nginx, python3 and mosquitto, unpacked,
//! built into images by buildah, and saved by podman and skopeo in each common format. They have properties
//! that the tests' own image builder never produces.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::task::{Outcome, Task, TaskError, run as run_command, work};
use crate::{debian, programs};

/// The recipe of an image: its name, its packages, and the end of its Containerfile.
struct Recipe {
    name: &'static str,
    packages: &'static [&'static str],
    containerfile: &'static str,
}

const RECIPES: &[Recipe] = &[
    Recipe {
        name: "redis",
        packages: &["redis-server", "redis-tools", "dash", "coreutils"],
        containerfile: "\
            RUN /bin/mkdir -p /data && /bin/chown 101:101 /data\n\
            VOLUME /data\n\
            WORKDIR /data\n\
            USER redis\n\
            EXPOSE 6379\n\
            CMD [\"redis-server\", \"--protected-mode\", \"no\", \"--save\", \"\"]\n",
    },
    Recipe {
        name: "nginx",
        packages: &["nginx-light", "dash", "coreutils"],
        containerfile: "\
            RUN /bin/ln -s ../sites-available/default /etc/nginx/sites-enabled/default\n\
            RUN /bin/ln -sf /dev/stdout /var/log/nginx/access.log && /bin/ln -sf /dev/stderr /var/log/nginx/error.log\n\
            EXPOSE 80\n\
            STOPSIGNAL SIGQUIT\n\
            ENTRYPOINT [\"nginx\", \"-g\", \"daemon off;\"]\n",
    },
    Recipe {
        name: "python3",
        packages: &["python3-minimal", "libpython3-stdlib", "dash", "coreutils"],
        containerfile: "\
            RUN /usr/bin/python3 -m compileall -q /usr/lib/python3.*/http\n\
            ENV PYTHONUNBUFFERED=1\n\
            CMD [\"python3\"]\n",
    },
    // A broker and the libraries of its clients, for `examples/gateway`.
    Recipe {
        name: "gateway",
        packages: &[
            "mosquitto",
            "python3-minimal",
            "libpython3-stdlib",
            "python3-paho-mqtt",
            "dash",
            "coreutils",
        ],
        containerfile: "\
            ENV PYTHONUNBUFFERED=1\n\
            USER nobody\n\
            CMD [\"mosquitto\"]\n",
    },
];

/// The users in every image, because the packages' install scripts do not run.
const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
www-data:x:33:33:www-data:/var/www:/bin/sh
redis:x:101:101::/var/lib/redis:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/sh
";
const HEAD: &str = "FROM scratch\nCOPY rootfs /\nRUN /bin/chmod 1777 /tmp\n";
const GROUP: &str = "root:x:0:\nadm:x:4:\nwww-data:x:33:\nredis:x:101:\nnogroup:x:65534:\n";

/// The task `cargo xtask images`.
pub const TASK: Task =
    Task::new("images", "", "build images of redis, nginx and python3 with buildah, podman and skopeo", run);

fn run(_: &[String]) -> Outcome {
    println!("{}", build()?.display());
    Ok(())
}

/// Builds the missing images, and returns their directory. Each image has the files `NAME.oci.tar`,
/// `NAME.docker.tar` (podman save), `NAME.oci` (skopeo, a layout with zstd layers) and `NAME.docker.tar.gz`.
pub fn build() -> Result<PathBuf, TaskError> {
    let dir = work("images")?;
    for recipe in RECIPES {
        // The stamp is written last: if it exists, all files exist and were made by the current recipe.
        let stamp = dir.join(format!("{}.recipe", recipe.name));
        let text = format!("{:?}\n{PASSWD}{GROUP}{HEAD}{}", recipe.packages, recipe.containerfile);
        if !std::fs::read_to_string(&stamp).is_ok_and(|made| made == text) {
            recipe.build(&dir).map_err(|TaskError(why)| format!("image {}: {why}", recipe.name))?;
            std::fs::write(&stamp, text)?;
        }
    }
    Ok(dir)
}

impl Recipe {
    fn build(&self, dir: &Path) -> Outcome {
        let context = dir.join("build").join(self.name);
        let rootfs = context.join("rootfs");
        let _ = std::fs::remove_dir_all(&context);
        std::fs::create_dir_all(&context)?;
        debian::unpack_with_dependencies(self.packages, programs::host()?.0, &rootfs, |archives, rootfs| {
            for name in ["bin", "sbin", "lib", "lib64"] {
                std::fs::create_dir_all(rootfs.join("usr").join(name))?;
                std::os::unix::fs::symlink(format!("usr/{name}"), rootfs.join(name))?;
            }
            archives.iter().try_for_each(|archive| unpack(archive, rootfs))
        })?;
        for needless in ["doc", "man", "locale", "info", "lintian", "perl"] {
            let _ = std::fs::remove_dir_all(rootfs.join("usr/share").join(needless));
        }
        std::fs::create_dir_all(rootfs.join("tmp"))?;
        std::fs::write(rootfs.join("etc/passwd"), PASSWD)?;
        std::fs::write(rootfs.join("etc/group"), GROUP)?;
        let containerfile = format!("{HEAD}{}", self.containerfile);
        std::fs::write(context.join("Containerfile"), containerfile)?;

        let reference = format!("localhost/{}:1", self.name);
        let tools = Tools { storage: dir.join("build/storage") };
        run_command(
            tools
                .command("buildah")
                .args(["build", "--isolation", "chroot", "--layers=false", "--quiet", "--tag", &reference])
                .arg(&context),
        )?;
        let saved = |ending: &str| dir.join(format!("{}.{ending}", self.name));
        for (format, ending) in [("oci-archive", "oci.tar"), ("docker-archive", "docker.tar")] {
            let path = saved(ending);
            let _ = std::fs::remove_file(&path);
            run_command(
                tools
                    .command("podman")
                    .args(["save", "--quiet", "--format", format, "--output"])
                    .arg(&path)
                    .arg(&reference),
            )?;
        }
        let layout = saved("oci");
        let _ = std::fs::remove_dir_all(&layout);
        run_command(
            Command::new("skopeo")
                .args(["copy", "--quiet", "--insecure-policy", "--dest-compress-format", "zstd"])
                .arg(format!("docker-archive:{}", saved("docker.tar").display()))
                .arg(format!("oci:{}:{reference}", layout.display())),
        )?;
        run_command(tools.command("podman").args(["rmi", "--force", &reference]).stdout(Stdio::null()))?;
        std::fs::remove_dir_all(&context)?;
        run_command(Command::new("gzip").args(["--keep", "--fast", "--force"]).arg(saved("docker.tar")))
    }
}

/// buildah and podman with separate storage, so that the machine's own is not touched.
struct Tools {
    storage: PathBuf,
}

impl Tools {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("--root").arg(self.storage.join("root")).arg("--runroot").arg(self.storage.join("run"));
        command.args(["--storage-driver", "vfs"]);
        if program == "podman" {
            command.args(["--cgroup-manager", "cgroupfs"]);
        }
        command
    }
}

fn unpack(package: &Path, rootfs: &Path) -> Outcome {
    let mut tar =
        Command::new("dpkg-deb").arg("--fsys-tarfile").arg(package).stdout(Stdio::piped()).spawn()?;
    let stream = tar.stdout.take().ok_or("the output is piped")?;
    let status = Command::new("tar")
        .args(["--extract", "--keep-directory-symlink", "--directory"])
        .arg(rootfs)
        .stdin(stream)
        .status()?;
    if tar.wait()?.success() && status.success() {
        Ok(())
    } else {
        Err(TaskError(format!("failed to unpack {}", package.display())))
    }
}
