//! Profiles of boards: `board/profiles/NAME.toml`, one file per board.

use std::collections::BTreeMap;
use std::fs;

use nodlet_build::files;
use nodlet_build::targets;
use nodlet_build::task::{TaskError, project};
use serde::{Deserialize, Serialize};

mod limits;
mod links;
mod storage;
mod update;

use limits::{Images, Limits};
pub use links::Link;
pub use storage::{Loader, Storage};
pub use update::Update;

/// The description of a board.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Profile {
    /// The profile's name, which is the name of its file.
    #[serde(skip)]
    pub name: String,
    /// Rust's name of the processor and its C library.
    pub target: String,
    /// Debian's name of the processor.
    pub debian: String,
    /// Debian's package of the kernel.
    pub kernel: String,
    /// The kernel's command line.
    pub command_line: String,
    /// Kernel modules that are loaded at boot, together with those that they need.
    pub modules: Vec<String>,
    /// The board's memory in MiB. An `initramfs` must fit entirely into it.
    pub memory_mib: u32,
    /// Services that process 1 keeps running besides the agent.
    pub services: Vec<Program>,
    /// Limits and location of containers' logs.
    #[serde(default)]
    pub logs: Logs,
    /// Limits of what the agent keeps in memory.
    #[serde(default)]
    pub limits: Limits,
    /// Limits of the image store.
    #[serde(default)]
    pub images: Images,
    /// Further arguments of `nodlet agent`.
    #[serde(default)]
    pub agent: Vec<String>,
    /// The device tree, from those in the kernel's package; for boards whose boot loader has none.
    #[serde(default)]
    pub device_tree: Option<String>,
    /// Names of the files that the board's own boot loader needs, which the user provides.
    #[serde(default)]
    pub firmware: Vec<String>,
    /// Texts for the board's own boot loader, by their path on the boot partition. `@COMMAND-LINE@` is
    /// replaced by the kernel's command line.
    #[serde(default)]
    pub boot_files: BTreeMap<String, String>,
    /// Links to configure.
    #[serde(default)]
    pub network: Vec<Link>,
    /// Time servers, as addresses or names; without this key, those that DHCP names.
    #[serde(default)]
    pub ntp: Option<Vec<String>>,
    /// The watchdog that process 1 feeds; without this key, a board that hangs is not reset.
    #[serde(default)]
    pub watchdog: Option<Watchdog>,
    /// Limits of crash loops; without this key, the defaults of `nodlet init`.
    #[serde(default)]
    pub crash_loop: Option<CrashLoop>,
    /// The medium from which the board boots; without this key there is no disk image.
    #[serde(default)]
    pub storage: Option<Storage>,
    /// Which updates of nodlet are accepted.
    #[serde(default)]
    pub update: Update,
    /// How QEMU emulates the board; absent for real hardware.
    #[serde(default)]
    pub qemu: Option<Qemu>,
}

/// A service besides the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// The SSH server dropbear.
    Ssh,
}

/// How much of a container's log is kept, and where.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Logs {
    /// The size of one log file, as a Kubernetes quantity.
    #[serde(default)]
    pub max_size: Option<String>,
    /// The number of log files of one container.
    #[serde(default)]
    pub max_files: Option<u32>,
    /// MiB of RAM for the logs of all containers; without this key they are on the data partition.
    #[serde(default)]
    pub ram_mib: Option<u32>,
}

/// A hardware watchdog, for the profile and for `board.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watchdog {
    /// The path of the device, below `/dev`.
    pub device: String,
    /// Seconds after which the board is reset unless process 1 feeds the watchdog.
    pub timeout: u32,
}

/// Limits of crash loops, for the profile and for `board.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CrashLoop {
    /// Seconds for which the first crash loop lasts until the board reboots. Each later one lasts twice as
    /// long as the one before, at most an hour.
    pub after: u32,
    /// The number of consecutive crash loops that end with a reboot before the board enters safe mode.
    pub reboots: u32,
}

/// An emulated board.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Qemu {
    /// The emulator.
    pub program: String,
    /// Debian's package of the emulator.
    pub package: String,
    /// The arguments that choose the machine.
    pub arguments: Vec<String>,
    /// Memory in MiB with which ten pods are tested, in addition to the other tests.
    #[serde(default)]
    pub ten_pods_mib: Option<u32>,
    /// The firmware with which the emulated board boots a disk; without this key the disk is not tested.
    #[serde(default)]
    pub firmware: Option<Firmware>,
}

/// The firmware of an emulated board.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Firmware {
    /// Debian's package of the firmware.
    pub package: String,
    /// The firmware's file in the package.
    pub file: String,
    /// The option of QEMU that accepts the file.
    #[serde(default = "bios")]
    pub option: String,
}

fn bios() -> String {
    "-bios".to_owned()
}

/// Reads the profile of a board.
///
/// # Errors
/// The profile does not exist, or has an unknown key or an invalid value, which the error names.
pub fn get(name: &str) -> Result<Profile, TaskError> {
    let directory = project().join("board/profiles");
    let file = directory.join(format!("{name}.toml"));
    let known = known()?;
    if !known.iter().any(|known| known == name) {
        let known = known.join(", ");
        return Err(TaskError(format!("unknown profile {name:?} in board/profiles, only {known}")));
    }
    parse(name, &files::read_text(&file)?)
}

/// The names of all profiles.
pub fn known() -> Result<Vec<String>, TaskError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(project().join("board/profiles"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".toml").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// The least memory in MiB with which any tested board boots.
const LEAST_MEMORY_MIB: u32 = 64;

/// Whether nodlet accepts the text as an amount of bytes.
fn is_size(text: &str) -> bool {
    ["Ki", "Mi", "Gi"].iter().any(|unit| {
        text.strip_suffix(unit).and_then(|number| number.parse::<u32>().ok()).is_some_and(|number| number > 0)
    })
}

impl Profile {
    /// The processor in Go's spelling, as in images; without the variant.
    pub fn architecture(&self) -> &str {
        match self.debian.as_str() {
            "armhf" => "arm",
            processor => processor,
        }
    }

    /// An error about a key of this profile.
    pub(crate) fn wrong(&self, key: &str, TaskError(why): TaskError) -> TaskError {
        TaskError(format!("board/profiles/{}.toml: {key}: {why}", self.name))
    }

    /// The arguments of `nodlet agent` on this board.
    pub fn agent_arguments(&self) -> Vec<String> {
        let files = self.logs.max_files.map(|files| files.to_string());
        let size = self.logs.max_size.clone();
        let logs = [("--container-log-max-size", size), ("--container-log-max-files", files)];
        let limits = logs.into_iter().chain(self.limits.flags()).chain(self.images.flags());
        let limits = limits.filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        limits.flatten().chain(self.agent.iter().cloned()).collect()
    }
}

pub(crate) fn parse(name: &str, text: &str) -> Result<Profile, TaskError> {
    let read = || -> Result<Profile, String> {
        let mut profile: Profile = toml::from_str(text).map_err(|error| error.to_string())?;
        profile.check()?;
        name.clone_into(&mut profile.name);
        Ok(profile)
    };
    read().map_err(|why| TaskError(format!("board/profiles/{name}.toml: {why}")))
}

/// The most bytes of a device's path that process 1 can store.
const DEVICE_BYTES: usize = 63;

/// The accepted timeouts of a watchdog in seconds: a slow board can meet them, and a person can wait for
/// them.
const TIMEOUTS: std::ops::RangeInclusive<u32> = 5..=3600;

impl Profile {
    fn check(&self) -> Result<(), String> {
        links::check(&self.network, self.ntp.as_deref())?;
        let (debian, target) = (&self.debian, &self.target);
        if let Some(right) =
            targets::get(target).ok().map(|target| target.debian).filter(|right| right != debian)
        {
            return Err(format!(
                "debian: {debian:?} is not the processor of target {target:?}: {right:?} is"
            ));
        }
        if self.memory_mib < LEAST_MEMORY_MIB {
            return Err(format!("memory-mib: {} is less than {LEAST_MEMORY_MIB}", self.memory_mib));
        }
        let Logs { max_size, max_files, ram_mib } = &self.logs;
        if let Some(size) = max_size.as_deref().filter(|size| !is_size(size)) {
            return Err(format!("logs: max-size {size:?} must be a number of Ki, Mi or Gi, as \"1Mi\""));
        }
        if max_files.is_some_and(|files| files < 2) {
            return Err("logs: max-files must be 2 or more".into());
        }
        if ram_mib.is_some_and(|ram| ram == 0 || ram > self.memory_mib / 2) {
            return Err("logs: ram-mib must be from 1 to half of memory-mib".into());
        }
        self.limits.check()?;
        self.images.check()?;
        if let Some(file) = self.firmware.iter().find(|file| file.contains('/') || file.starts_with('.')) {
            return Err(format!("firmware: {file:?} must be the name of a file"));
        }
        self.check_watchdog()?;
        self.storage.as_ref().map_or(Ok(()), Storage::check)?;
        self.update.check().map_err(|why| format!("update: {why}"))
    }

    fn check_watchdog(&self) -> Result<(), String> {
        if let Some(Watchdog { device, timeout }) = &self.watchdog {
            if !device.starts_with("/dev/") || device.len() > DEVICE_BYTES {
                return Err(format!(
                    "watchdog: device {device:?} must begin with /dev/ and have {DEVICE_BYTES} bytes at most"
                ));
            }
            if !TIMEOUTS.contains(timeout) {
                let (least, most) = (TIMEOUTS.start(), TIMEOUTS.end());
                return Err(format!("watchdog: timeout {timeout} must be from {least} to {most} seconds"));
            }
        }
        match &self.crash_loop {
            Some(CrashLoop { after: 0, .. } | CrashLoop { reboots: 0, .. }) => {
                Err("crash-loop: after and reboots must be 1 at least".into())
            }
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_can_be_read() {
        let known = known().expect("the directory is there");
        assert!(known.contains(&"qemu-arm64".to_owned()), "{known:?}");
        for name in known {
            let profile = get(&name).expect("it is right");
            assert_eq!(profile.name, name);
            nodlet_build::targets::get(&profile.target).expect("nodlet can be built for it");
        }
    }

    #[test]
    fn each_limit_of_a_profile_is_a_flag_of_the_agent() {
        let text = fs::read_to_string(project().join("board/profiles/qemu-arm64.toml")).expect("it is there");
        let terminated = text.replace("[limits]\n", "[limits]\nterminated-pods = 9\n");
        let profile = parse("a", &terminated.replace("[images]\n", "[images]\nminimum-age = 30\n"));
        let flags = profile.expect("it is right").agent_arguments();
        let expected = "--container-log-max-size 1Mi --container-log-max-files 2 --max-pods 32 --max-events 128 \
                        --max-connections 16 --terminated-pod-gc-threshold 9 --image-gc-high-threshold 85 \
                        --image-gc-low-threshold 60 --minimum-image-ttl-duration 30s";
        assert_eq!(flags.join(" "), expected);
    }

    #[test]
    fn an_invalid_profile_is_rejected_with_the_accepted_values() {
        let right =
            fs::read_to_string(project().join("board/profiles/qemu-arm64.toml")).expect("it is there");
        for (from, to, words) in [
            ("debian =", "debain =", "unknown field `debain`, expected one of `target`, `debian`"),
            ("debian = \"arm64\"", "debian = \"amd64\"", "debian: \"amd64\" is not the processor of target"),
            ("memory-mib = 128", "memory-mib = \"much\"", "memory-mib"),
            ("memory-mib = 128", "memory-mib = 6", "memory-mib: 6 is less than 64"),
            ("services = [\"ssh\"]", "services = [\"telnet\"]", "unknown variant `telnet`, expected `ssh`"),
            (
                "max-size = \"1Mi\"",
                "max-size = \"1 MB\"",
                "max-size \"1 MB\" must be a number of Ki, Mi or Gi",
            ),
            ("max-files = 2", "max-files = 1", "max-files must be 2 or more"),
            ("ram-mib = 8", "ram-mib = 65", "ram-mib must be from 1 to half of memory-mib"),
            ("max-pods = 32", "max-pods = 111", "limits: max-pods must be from 1 to 110"),
            ("max-events = 128", "max-events = 0", "limits: max-events must be from 1 to 10000"),
            ("max-connections = 16", "max-connections = 3", "limits: max-connections must be from 4 to 1024"),
            ("max-pods = 32", "pods = 32", "unknown field `pods`, expected one of `max-pods`, `max-events`"),
            (
                "max-size = \"64Mi\"",
                "max-size = \"64MB\"",
                "images: max-size \"64MB\" must be a number of Ki",
            ),
            ("gc-high-threshold = 85", "gc-high-threshold = 100", "gc-high-threshold must be from 1 to 99"),
            ("gc-high-threshold = 85", "", "images: gc-low-threshold and minimum-age need gc-high-threshold"),
            (
                "gc-low-threshold = 60",
                "gc-low-threshold = 85",
                "images: gc-low-threshold 85 must be less than gc-high-threshold 85",
            ),
            ("dhcp = true", "dhpc = true", "unknown field `dhpc`, expected one of `link`, `dhcp`"),
            ("dhcp = true", "address = \"10.0.2.15\"\nprefix = 33", "prefix 33 of eth0 is more than 32"),
            ("dhcp = true", "address = \"10.0.2\"\nprefix = 24", "invalid IPv4 address"),
            ("command-line =", "# command-line =", "missing field `command-line`"),
            ("timeout = 60", "timeout = 4", "timeout 4 must be from 5 to 3600 seconds"),
            ("timeout = 60", "time = 60", "unknown field `time`, expected `device` or `timeout`"),
            ("/dev/watchdog", "watchdog", "device \"watchdog\" must begin with /dev/"),
            ("[qemu]", "[crash-loop]\nafter = 0\nreboots = 1\n[qemu]", "must be 1 at least"),
            ("loader = \"uefi\"", "loader = \"lilo\"", "unknown variant `lilo`, expected one of `uefi`"),
            ("medium-mib =", "medium =", "unknown field `medium`, expected one of `loader`, `medium-mib`"),
            ("medium-mib =", "boot-mib = 8\nmedium-mib =", "storage.boot-mib must be 16 to 2048, and is 8"),
            ("medium-mib =", "data-mib = 1\nmedium-mib =", "storage.data-mib must be 8 to 1000000, and is 1"),
        ] {
            let Err(TaskError(why)) = parse("a", &right.replacen(from, to, 1)) else {
                panic!("{to} is taken")
            };
            assert!(why.contains(words) && why.contains("board/profiles/a.toml"), "{why}");
        }
        let Err(TaskError(why)) = get("no-board") else { panic!("there is none") };
        assert!(
            why.contains("unknown profile \"no-board\" in board/profiles, only ")
                && why.contains("qemu-arm64"),
            "{why}"
        );
    }
}
