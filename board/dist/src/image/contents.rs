//! What a device image has besides its profile: pods with their images, keys, the identity of a board.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nodlet_build::files;
use nodlet_build::task::{Outcome, TaskError, run as run_command};
use nodlet_build::toolchain::own_nodlet;

use crate::profile::Profile;
use crate::tree::{Tree, below};

/// The contents of an image, besides the profile.
#[derive(Default)]
pub struct Contents {
    /// Manifest files.
    pub pods: Vec<PathBuf>,
    /// Image archives.
    pub archives: Vec<PathBuf>,
    /// Files with the public SSH keys that may log in as root.
    pub ssh_keys: Vec<PathBuf>,
    /// Files with the public SSH keys that may log in as the user `nodlet`, who may use nodlet's API.
    pub push_keys: Vec<PathBuf>,
    /// The identity of one board: `/boot/nodlet.conf`.
    pub config: Option<PathBuf>,
    /// The kubeconfig with which boards join a cluster by themselves.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// The directory with the firmware files that the profile names.
    pub firmware: Option<PathBuf>,
}

impl Contents {
    /// Rejects what can be judged without building anything.
    pub(super) fn require(&self) -> Outcome {
        require_names(&self.pods)?;
        authorized_keys(&self.ssh_keys)?;
        authorized_keys(&self.push_keys).map(drop)
    }

    /// Loads the image archives for the board's processor into an image store. Returns the directory of the
    /// store.
    pub(super) fn bake(&self, profile: &Profile, directory: &Path) -> Result<PathBuf, TaskError> {
        eprintln!("Building nodlet for this machine, which judges what goes into the image");
        let nodlet = &own_nodlet()?;
        judge_agent(nodlet, profile)?;
        if let Some(file) = &self.config {
            judge_identity(nodlet, file)?;
        }
        let root = directory.join("baked");
        let _ = fs::remove_dir_all(&root);
        // Create the store even if it is empty, so that pods whose images are missing cause warnings.
        fs::create_dir_all(root.join(IMAGES))?;
        let platform = match profile.architecture() {
            "arm" => "linux/arm/v7".to_owned(),
            processor => format!("linux/{processor}"),
        };
        for archive in &self.archives {
            run_command(
                Command::new(nodlet)
                    .args(["image", "load", "--platform", &platform, "--root"])
                    .arg(&root)
                    .arg(archive),
            )?;
        }
        if !self.pods.is_empty() {
            // Rejects manifests that no agent would run, and warns of images that are not baked in.
            let mut judge = Command::new(nodlet);
            judge.args(["apply", "--dry-run=client", "--root"]).arg(&root);
            judge.stdout(Stdio::null());
            run_command(judge.args(self.pods.iter().flat_map(|pod| [OsStr::new("-f"), pod.as_os_str()])))?;
        }
        Ok(root.join(IMAGES))
    }

    /// Adds all of it to an image, with the store that [`Contents::bake`] has filled.
    pub(super) fn add(&self, tree: &mut Tree, baked: &Path) -> Outcome {
        for pod in &self.pods {
            let name = pod.file_name().and_then(|name| name.to_str()).ok_or("a manifest's name is text")?;
            let text = files::read(pod)?;
            tree.file(&format!("/usr/lib/nodlet/manifests/{name}"), 0o644, text);
        }
        if baked.is_dir() {
            tree.directory("usr/lib/nodlet/images");
            for source in below(baked)? {
                tree.add(&format!("usr/lib/nodlet/images/{}", source.name), &source)?;
            }
        }
        let config = ("/boot/nodlet.conf", &self.config);
        let kubeconfig = ("/etc/nodlet/bootstrap-kubeconfig", &self.bootstrap_kubeconfig);
        for (place, file) in [config, kubeconfig] {
            let Some(file) = file else { continue };
            let text = files::read(file)?;
            tree.file(place, 0o600, text);
        }
        for (name, files) in [("authorized_keys", &self.ssh_keys), ("push_keys", &self.push_keys)] {
            tree.file(&format!("/etc/nodlet/ssh/{name}"), 0o600, authorized_keys(files)?);
        }
        Ok(())
    }
}

/// The path of a board's image store.
const IMAGES: &str = "var/lib/nodlet/images";

/// Rejects a profile with arguments that an agent would reject: an agent parses them before it prints its
/// help.
fn judge_agent(nodlet: &Path, profile: &Profile) -> Outcome {
    let arguments = profile.agent_arguments();
    let judged = Command::new(nodlet).arg("agent").args(&arguments).arg("--help").output()?;
    // A flag at the end without its value would consume `--help` as the value.
    if judged.status.success() && judged.stdout.starts_with(b"Run the pods") {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&judged.stderr).trim().to_owned();
    let arguments = arguments.join(" ");
    Err(profile.wrong("agent", TaskError(format!("no agent starts with {arguments:?}: {said}"))))
}

/// Rejects a `nodlet.conf` that no board would accept.
fn judge_identity(nodlet: &Path, file: &Path) -> Outcome {
    let judged = Command::new(nodlet).args(["doctor", "--identity"]).arg(file).output()?;
    if judged.status.success() {
        return Ok(());
    }
    let said = [judged.stdout, judged.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    Err(TaskError(format!("{}: no board takes this identity: {said}", file.display())))
}

/// The public keys in these files, one per line.
fn authorized_keys(files: &[PathBuf]) -> Result<String, TaskError> {
    let mut keys = String::new();
    for file in files {
        let text = files::read_text(file)?;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let kind = words.next().is_some_and(|kind| {
                ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-"].iter().any(|begin| kind.starts_with(begin))
            });
            if !kind || !words.next().is_some_and(|key| key.starts_with("AAAA")) {
                return Err(TaskError(format!(
                    "{} is not a public key of SSH: it must begin with its kind, as `ssh-ed25519 AAAA...`",
                    file.display()
                )));
            }
            keys.push_str(line);
            keys.push('\n');
        }
    }
    Ok(keys)
}

/// Rejects manifests with the same file name, because one would replace the other.
fn require_names(pods: &[PathBuf]) -> Outcome {
    let mut seen = std::collections::BTreeMap::new();
    for pod in pods {
        if let Some(other) = pod.file_name().and_then(|name| seen.insert(name, pod)) {
            return Err(TaskError(format!(
                "--pod: {} and {} have the same name in the image: rename one",
                other.display(),
                pod.display()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_secrets_are_in_the_image_for_root_alone() {
        let file = std::env::temp_dir().join(format!("nodlet-image-kubeconfig-{}", std::process::id()));
        fs::write(&file, "kind: Config\n").unwrap();
        let mut tree = Tree::default();
        let contents = Contents { bootstrap_kubeconfig: Some(file.clone()), ..Contents::default() };
        contents.add(&mut tree, Path::new("/nonexistent")).unwrap();
        fs::remove_file(file).unwrap();
        assert_eq!(tree.get("etc/nodlet/bootstrap-kubeconfig"), Some((0o100_600, &b"kind: Config\n"[..])));
    }

    #[test]
    fn keys_are_those_of_ssh_a_line_each() {
        let file = std::env::temp_dir().join(format!("nodlet-image-keys-{}", std::process::id()));
        let keys = |text: &[u8]| {
            fs::write(&file, text).unwrap();
            authorized_keys(std::slice::from_ref(&file)).map_err(|TaskError(why)| why)
        };
        let two = keys(b"# mine\nssh-ed25519 AAAAC3Nz me\r\n\nsk-ssh-ed25519@openssh.com AAAAGnNr").unwrap();
        assert_eq!(two, "ssh-ed25519 AAAAC3Nz me\nsk-ssh-ed25519@openssh.com AAAAGnNr\n");
        for wrong in [
            &b"-----BEGIN OPENSSH PRIVATE KEY-----"[..],
            b"command=\"id\" ssh-ed25519 AAAAC3Nz",
            b"ssh-is my key",
            b"ssh-ed25519 AAAAC3Nz me\nnonsense",
        ] {
            assert!(keys(wrong).unwrap_err().contains("is not a public key of SSH"), "{wrong:?}");
        }
        assert!(keys(b"ssh-ed25519 AAAA\xff").unwrap_err().contains("failed to read"));
        fs::remove_file(file).unwrap();
    }

    #[test]
    fn manifests_of_one_name_are_rejected() {
        let pods = |names: [&str; 2]| require_names(&names.map(PathBuf::from)).map_err(|TaskError(why)| why);
        pods(["a/web.yaml", "a/db.yaml"]).unwrap();
        let why = pods(["a/web.yaml", "b/web.yaml"]).unwrap_err();
        assert!(why.contains("a/web.yaml and b/web.yaml have the same name"), "{why}");
    }
}
