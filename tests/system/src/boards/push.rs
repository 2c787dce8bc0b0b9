//! Tests transfers to a board over SSH, with OpenSSH on this side and the board's own server on the other:
//! `nodlet push` and `nodlet --board`, `scp` into a manifest directory, and kubectl through `ssh -L`.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use nodlet_build::go;
use nodlet_build::task::{Outcome, TaskError};
use nodlet_dist::profile::Profile;
use nodlet_tests::image::Image;
use nodlet_tests::manifest;
use nodlet_tests::ssh::noise;

use super::{PATIENCE, alone, demo_for, text};

/// The name of the pushed image: the demo with one more layer.
const PUSHED: &str = "localhost/over-ssh:1";

/// A user on a machine from which the board is reached.
pub(super) struct User {
    directory: PathBuf,
    nodlet: PathBuf,
    board: String,
}

/// Runs all transfers to a board that runs the pod `baked` of the image `demo`.
pub(super) fn try_out(profile: &Profile, port: u16, key: &Path, directory: &Path) -> Outcome {
    let user = User::new(port, key, directory)?;
    user.expect(&["exec", "baked", "--", "/bin/demo", "exit", "7"], 7, "")?;
    user.push(demo_for(profile)?)?;
    user.push_changed(profile.architecture())?;
    user.copy(port)?;
    user.kubectl(port)?;
    push_as_member(port, directory)
}

/// The key of a user who may push but is not root: a `push-key` of an identity.
pub(super) fn member_key(directory: &Path) -> PathBuf {
    directory.join("member/key")
}

/// Tests that a member of the socket's group can push, and has no other rights on the board.
fn push_as_member(port: u16, directory: &Path) -> Outcome {
    let key = member_key(directory);
    let mut member = User::new(port, &key, &directory.join("member"))?;
    let login = |name: &str, command: &str| -> Result<Output, TaskError> {
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(member.directory.join("ssh_config")).args(["-p", &port.to_string()]);
        Ok(ssh.arg(format!("{name}@127.0.0.1")).arg(command).stdin(Stdio::null()).output()?)
    };
    let as_root = login("root", "true")?;
    if as_root.status.success() || !text(&as_root.stderr).contains("Permission denied") {
        return Err(TaskError(format!("a key that may push logs in as root: {as_root:?}")));
    }
    let id = login("nodlet", "busybox id -u; busybox id -g; cat /etc/nodlet/ssh/authorized_keys")?;
    if text(&id.stdout) != "900\n900\n" {
        return Err(TaskError(format!("the user nodlet is: {id:?}")));
    }
    let pod = member.directory.join("by-member.yaml");
    fs::write(&pod, manifest::pod("by-member", "print pushed then sleep"))?;
    member.board = format!("nodlet@127.0.0.1:{port}");
    member.expect(
        &["push", &pod.display().to_string(), "--wait=5m"],
        0,
        "pod/by-member created\npod/by-member ready\n",
    )?;
    member.expect(&["logs", "by-member"], 0, "pushed\n")
}

impl User {
    /// A user with this key and a directory for files.
    pub(super) fn new(port: u16, key: &Path, directory: &Path) -> Result<User, TaskError> {
        fs::write(
            directory.join("ssh_config"),
            format!(
                "Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  BatchMode yes\n  LogLevel ERROR\n  \
                 StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n",
                key.display()
            ),
        )?;
        Ok(User {
            directory: directory.to_owned(),
            nodlet: alone(nodlet_build::toolchain::own_nodlet)?,
            board: format!("root@127.0.0.1:{port}"),
        })
    }

    /// The directory of the user's files.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Sets the port of the board, which changes with each boot.
    pub(super) fn reach(&mut self, port: u16) {
        self.board = format!("root@127.0.0.1:{port}");
    }

    /// The command of a verb on the board.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let ssh = format!("ssh -F {}", self.directory.join("ssh_config").display());
        let mut command = Command::new(&self.nodlet);
        command.args(["--board", &self.board]).args(words).env("NODLET_SSH", ssh).stdin(Stdio::null());
        command
    }

    /// Runs a verb on the board until it ends.
    pub(super) fn nodlet(&self, words: &[&str]) -> Result<Output, TaskError> {
        Ok(self.command(words).output()?)
    }

    /// Runs a verb on the board, and requires this exit code and output.
    fn expect(&self, words: &[&str], code: i32, expected: &str) -> Outcome {
        let output = self.nodlet(words)?;
        if output.status.code() == Some(code) && text(&output.stdout) == expected {
            return Ok(());
        }
        Err(TaskError(format!(
            "`nodlet --board … {}` ended with {} and wrote {:?}, not {expected:?}; {}",
            words.join(" "),
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        )))
    }

    /// Pushes a pod with its image, of which the board has the first layer.
    fn push(&self, demo: Image) -> Outcome {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let (archive, pod, notes) = (file("pushed.tar"), file("over-ssh.yaml"), file("notes.txt"));
        let image = demo.named(PUSHED).layer().file("srv/pushed", 0o644, b"pushed over ssh\n");
        image.write_oci_archive(Path::new(&archive))?;
        let text = manifest::pod("over-ssh", "print hello then sleep");
        fs::write(&pod, text.replace("localhost/demo:1", PUSHED))?;
        fs::write(&notes, "no manifest\n")?;
        let refused = self.nodlet(&["push", &archive, &pod, &notes])?;
        let why = super::text(&refused.stderr);
        if refused.status.success() || !why.contains("notes.txt") {
            return Err(TaskError(format!(
                "push of a text that is no manifest: {}: {why:?} does not name it",
                refused.status
            )));
        }
        self.expect(&["get", "pods", "-o", "name"], 0, "pod/baked\npod/pushed\n")?;
        let begun = Instant::now();
        let output = self.nodlet(&["push", &archive, &pod, "--wait=5m"])?;
        let took = begun.elapsed();
        let said = super::text(&output.stdout);
        let begins = format!("image/{PUSHED} loaded, 1 of 2 layers sent, ");
        if !output.status.success() || !said.starts_with(&begins) || !said.ends_with("pod/over-ssh ready\n") {
            return Err(TaskError(format!("push: {}: {said}{}", output.status, super::text(&output.stderr))));
        }
        eprintln!("a pod with a layer of its image was pushed and ready after {took:.1?}");
        self.expect(&["logs", "over-ssh"], 0, "hello\n")?;
        let cat = ["exec", "over-ssh", "--", "/bin/demo", "cat", "/srv/pushed"];
        self.expect(&cat, 0, "pushed over ssh\n")?;
        self.expect(
            &["push", &archive, &pod],
            0,
            &format!("image/{PUSHED} unchanged, 0 of 2 layers sent, 0 B\npod/over-ssh unchanged\n"),
        )
    }

    /// Pushes a slightly changed layer, and requires that little is transferred.
    fn push_changed(&self, architecture: &str) -> Outcome {
        let archive = self.directory.join("changed.tar").display().to_string();
        let push = |version: u8, data: &[u8]| -> Result<String, TaskError> {
            let image = Image::new(&format!("localhost/changed:{version}")).file("data", 0o644, data);
            let image = image.architecture(architecture);
            image.write_oci_archive(Path::new(&archive))?;
            let output = self.nodlet(&["push", &archive])?;
            if output.status.success() {
                Ok(text(&output.stdout))
            } else {
                Err(TaskError(format!("push: {}", text(&output.stderr))))
            }
        };
        let mut data = noise(1_000_000, 1);
        push(1, &data)?;
        data.splice(500_000..500_000, *b"changed");
        let said = push(2, &data)?;
        eprint!("{said}");
        if said.contains("1 of 1 layers sent, ") && said.contains(" kB instead of 1.0 MB") {
            Ok(())
        } else {
            Err(TaskError(format!("of a layer with a small change, more went over: {said}")))
        }
    }

    /// Copies a manifest by `scp` into a manifest directory.
    fn copy(&self, port: u16) -> Outcome {
        let pod = self.directory.join("copied.yaml");
        fs::write(&pod, manifest::pod("copied", "print copied then sleep"))?;
        let mut scp = Command::new("scp");
        scp.arg("-q").arg("-F").arg(self.directory.join("ssh_config")).args(["-P", &port.to_string()]);
        nodlet_build::task::run(scp.arg(pod).arg("root@127.0.0.1:/etc/nodlet/manifests/"))?;
        self.until("the copied pod to run", || {
            Ok(text(&self.nodlet(&["logs", "copied"])?.stdout) == "copied\n")
        })
    }

    /// Runs kubectl through a forwarded socket.
    fn kubectl(&self, port: u16) -> Outcome {
        let kubectl = go::KUBECTL.build(None)?;
        let here = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let mut ssh = Command::new("ssh");
        ssh.arg("-F").arg(self.directory.join("ssh_config")).args(["-N", "-p", &port.to_string(), "-L"]);
        ssh.arg(format!("{here}:/run/nodlet/api.sock")).arg("root@127.0.0.1").stdin(Stdio::null());
        let _forward = Forward(ssh.spawn()?);
        self.until("the port to be forwarded", || Ok(TcpStream::connect(here).is_ok()))?;
        let mut get = Command::new(kubectl);
        get.args(["--server", &format!("http://{here}"), "get", "pods", "-o", "name"]);
        let output = get.env("KUBECONFIG", "/dev/null").env("HOME", &self.directory).output()?;
        if text(&output.stdout).contains("pod/over-ssh\n") {
            Ok(())
        } else {
            Err(TaskError(format!("kubectl through ssh -L: {output:?}")))
        }
    }

    fn until(&self, what: &str, condition: impl Fn() -> Result<bool, TaskError>) -> Outcome {
        let end = Instant::now() + PATIENCE;
        while !condition()? {
            if Instant::now() > end {
                return Err(TaskError(format!("no {what} in {PATIENCE:?}")));
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        Ok(())
    }
}

/// A forwarding process, which is killed at the end of the test.
struct Forward(Child);

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
