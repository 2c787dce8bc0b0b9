//! The Debian package on a Debian with systemd, as `docs/packages.md` describes it. dpkg installs, upgrades,
//! removes and purges it while pods run.
//!
//! `cargo xtask guest package` builds two packages and runs these tests, in a virtual machine.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use nodlet_tests::service::{is_ready, journal, pod, property, run, try_run, wait_for};
use nodlet_tests::{demo_archive, manifest};

const FIRST: &str = "/packages/nodlet-1.deb";
const SECOND: &str = "/packages/nodlet-2.deb";

const MANIFESTS: &str = "/etc/nodlet/manifests";

/// The installed package, which is purged on drop.
struct Installed;

impl Installed {
    #[track_caller]
    fn new() -> Installed {
        run(&format!("dpkg --install {FIRST}"));
        Installed
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{}", journal());
        }
        try_run("dpkg --purge nodlet");
    }
}

/// Writes a manifest with this name, and waits until its pod is ready.
fn start_pod(name: &str, steps: &str) {
    fs::write(format!("{MANIFESTS}/{name}.yaml"), manifest::pod(name, steps)).expect("it can be written to");
    wait_for_pod(name);
}

fn wait_for_pod(name: &str) {
    wait_for(&format!("{name} to be ready"), || is_ready(name));
}

/// How far a pod has counted, with one number per line; none may be missing.
fn count(pod: &str) -> usize {
    let log = run(&format!("nodlet logs {pod}"));
    let lines: Vec<&str> = log.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let first = lines[0].strip_prefix("tick ").and_then(|number| number.parse::<usize>().ok());
        assert_eq!(Some(*line), first.map(|first| format!("tick {}", first + index)).as_deref(), "{log}");
    }
    lines.len()
}

/// Processes whose command line contains these words, except this one.
fn processes(words: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("it is mounted").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ").contains(words)
    };
    pids.filter(is_it).collect()
}

fn version() -> String {
    run("dpkg-query --show --showformat=${Version} nodlet")
}

#[test]
#[ignore = "needs a Debian of its own: cargo xtask guest package"]
fn once_installed_the_service_runs_and_members_of_the_group_use_it() {
    let _package = Installed::new();
    assert_eq!(version(), "1.0-1");
    assert_eq!(property("SubState"), "running");
    assert_eq!(property("UnitFileState"), "enabled");
    assert_eq!(run("dpkg --verify nodlet"), "");
    assert_eq!(run("systemd-analyze verify --man=no /usr/lib/systemd/system/nodlet.service"), "");

    let socket = fs::metadata("/run/nodlet/api.sock").expect("the service is up");
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    let group = run("getent group nodlet");
    assert_eq!(group.split(':').nth(2), Some(socket.gid().to_string().as_str()), "{group}");
    run("useradd member --groups nodlet");
    run("useradd stranger");
    let (member, stranger) =
        ("runuser -u member -- nodlet get pods", "runuser -u stranger -- nodlet get pods");
    assert!(run(member).contains("No resources found"));
    let (ok, said) = try_run(stranger);
    assert!(!ok && said.contains("as a member of the group nodlet"), "{said}");

    // The package contains documentation, and it belongs to this program.
    for verb in ["", "-get", "-agent", "-port-forward"] {
        assert!(Path::new(&format!("/usr/share/man/man1/nodlet{verb}.1.gz")).is_file(), "{verb}");
    }
    let bash = "source /usr/share/bash-completion/completions/nodlet\n\
                COMP_WORDS=(nodlet push --w); COMP_CWORD=2; COMP_LINE='nodlet push --w'; _nodlet; echo ${COMPREPLY[@]}";
    // Simulates the tab key: zsh only completes in a terminal, which its module provides.
    let zsh = "zmodload zsh/zpty; zpty shell zsh -f -i\n\
               zpty -w shell \"PS1=; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; \
               bindkey '^I' expand-or-complete; print -r -- ready\"\n\
               zpty -r -m shell line '*ready*ready*'\n\
               zpty -w -n shell $'nodlet push --w\\t'; zpty -r -m shell line '*--wait*'; print -r -- \"$line\"";
    for (shell, script) in [("bash", bash), ("fish", "complete -C 'nodlet push --w'"), ("zsh", zsh)] {
        let said = Command::new(shell).args(["-c", script]).output().expect("it is in the guest");
        let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
        assert!(out.contains("--wait") && err.is_empty(), "{shell}: {out}{err}");
    }
}

#[test]
#[ignore = "needs a Debian of its own: cargo xtask guest package"]
fn a_counter_counts_on_while_the_service_is_restarted_and_the_package_upgraded() {
    let _package = Installed::new();
    run(&format!("nodlet image load {}", demo_archive().display()));
    start_pod("counter", "print tick 1");
    let counter = processes("/bin/demo print tick");
    assert_eq!(counter.len(), 1, "{counter:?}");
    let (mut before, mut agent) = (count("counter"), property("MainPID"));
    let mut counts_on = |what: &str| {
        wait_for(&format!("the pod to be ready after {what}"), || {
            pod("counter")["status"]["phase"] == "Running"
        });
        wait_for(&format!("another line after {what}"), || count("counter") > before);
        assert_eq!(processes("/bin/demo print tick"), counter, "{what}");
        assert_eq!(pod("counter")["status"]["containerStatuses"][0]["restartCount"], 0, "{what}");
        before = count("counter");
        assert_ne!(std::mem::replace(&mut agent, property("MainPID")), property("MainPID"), "{what}");
    };
    run("systemctl restart nodlet");
    counts_on("a restart");

    run(&format!("dpkg --install {SECOND}"));
    assert_eq!(version(), "1.0-2");
    assert_eq!(property("SubState"), "running");
    counts_on("an upgrade");
    let executed = fs::read_link(format!("/proc/{}/exe", property("MainPID"))).expect("the agent runs");
    assert_eq!(executed, Path::new("/usr/bin/nodlet"), "it executes the new file");

    // Then a downgrade. After that, a service that was stopped and disabled stays so, and its pods keep
    // running.
    run(&format!("dpkg --install {FIRST}"));
    counts_on("a downgrade");
    run("systemctl disable --now nodlet");
    run(&format!("dpkg --install {SECOND}"));
    assert_eq!((property("ActiveState"), property("UnitFileState")), ("inactive".into(), "disabled".into()));
    assert_eq!(processes("/bin/demo print tick"), counter);
}

#[test]
#[ignore = "needs a Debian of its own: cargo xtask guest package"]
fn remove_ends_pods_and_keeps_data_which_purge_removes() {
    let _package = Installed::new();
    run(&format!("nodlet image load {}", demo_archive().display()));
    start_pod("web", "sleep 4711");
    fs::write("/tmp/applied.yaml", manifest::pod("applied", "sleep 4712")).expect("/tmp can be written to");
    run("nodlet apply -f /tmp/applied.yaml");
    wait_for_pod("applied");

    run("dpkg --remove nodlet");
    assert_eq!(processes("demo sleep"), [0; 0]);
    assert_eq!(processes("nodlet supervisor"), [0; 0]);
    assert!(!Path::new("/usr/bin/nodlet").exists());
    assert!(Path::new(MANIFESTS).join("web.yaml").is_file(), "what the administrator wrote stays");
    assert!(Path::new("/var/lib/nodlet/images").is_dir());
    let links = fs::read_dir("/sys/class/net").expect("it is mounted").flatten();
    let ours = links.filter(|link| link.file_name().to_string_lossy().starts_with("nl"));
    assert_eq!(ours.count(), 0, "a link of a pod is left");

    // After reinstallation, nodlet continues with the existing state.
    run(&format!("dpkg --install {SECOND}"));
    wait_for_pod("web");
    wait_for_pod("applied");

    // Another program has logs beside those of pods, whose agent dies without removing them.
    let (foreign, link) = ("/var/log/pods/default_other_0000", "/var/log/containers/other.log");
    fs::create_dir_all(foreign).expect("/var/log can be written to");
    symlink(Path::new(foreign).join("app/0.log"), link).expect("/var/log can be written to");
    let logs =
        format!("/var/log/pods/default_web_{}", pod("web")["metadata"]["uid"].as_str().expect("a UID"));
    run("dpkg --remove nodlet");
    fs::create_dir_all(format!("{logs}/app")).expect("/var/log can be written to");
    symlink(Path::new(&logs).join("app/0.log"), "/var/log/containers/web.log").expect("it can be made");
    run("dpkg --purge nodlet");
    assert_eq!(processes("demo sleep"), [0; 0]);
    assert!(Path::new(foreign).is_dir() && fs::read_link(link).is_ok(), "what is not nodlet's stays");
    assert!(!Path::new(&logs).exists() && fs::read_link("/var/log/containers/web.log").is_err());
    fs::remove_dir(foreign).and_then(|()| fs::remove_file(link)).expect("they are there");
    for path in ["/etc/nodlet", "/var/lib/nodlet", "/run/nodlet"] {
        assert!(!Path::new(path).exists(), "{path} is left");
    }
    run(&format!("dpkg --install {FIRST}"));
    run("dpkg --purge nodlet");
    for path in ["/var/log/pods", "/var/log/containers"] {
        assert!(!Path::new(path).exists(), "{path} is left");
    }
    assert!(run("getent group nodlet").starts_with("nodlet:"), "files may belong to it");
    assert!(!try_run("systemctl cat nodlet.service").0);
    assert_eq!(try_run("systemctl is-enabled nodlet.service").1.trim(), "not-found");
}
