//! The identity of this board among boards with the same image: name, labels, SSH keys, network.
//!
//! The manufacturer of a board puts the fragment `/boot/nodlet.conf` on its boot partition. A valid fragment
//! is copied to the data partition, so that it stays in force without the boot partition. An invalid fragment
//! is rejected as a whole, with the line at fault, and the copy stays in force. A fragment that was not written
//! completely is invalid: it lacks its end mark or contains NUL bytes. `nodlet identity` replaces the fragment
//! durably. A board without a fragment is named after its serial number or the address of its network card. See
//! `docs/boards.md`.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use nodlet_host::paths::Paths;
use nodlet_kernel::durable::{self, Headroom};
use nodlet_kernel::own_file;
use nodlet_kube::base64;
use nodlet_kube::manifest::{check_label, is_node_name, node_name_of};

use super::partitions::change_boot;
use crate::board_json::{Board, Link};
use crate::boot::console::say;
use crate::boot::read_own_short;

/// The fragment that the manufacturer wrote.
pub(crate) const FRAGMENT: &str = "/boot/nodlet.conf";

/// The end mark: the last line of a fragment. A FAT file that was cut off, or whose last sectors were not
/// written, lacks it.
const END: &str = "end";

/// The last valid fragment, on the data partition.
const KEPT: &str = "/var/lib/nodlet/identity";

/// The fragment in force, in RAM, for the services.
const IN_FORCE: &str = "/run/identity";

/// The SSH keys of the image and of the identity, for the SSH server: in RAM, a directory for each user, to
/// which `.ssh` in the user's home is a link.
const AUTHORIZED: &str = "/run/ssh";

/// Users of the board, each with the image's file of SSH keys that may log in as this user.
const USERS: [(&str, &str); 2] =
    [("root", "/etc/nodlet/ssh/authorized_keys"), (PUSHER, "/etc/nodlet/ssh/push_keys")];

/// The user who may only use the API, as a member of the socket's group.
const PUSHER: &str = "nodlet";

/// The most wrong lines of a fragment that are reported.
const MOST_FINDINGS: usize = 8;

/// The longest host name that Linux accepts.
const LONGEST_NAME: usize = 63;

/// The contents of a fragment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    name: Option<String>,
    /// Node labels in the form `KEY=VALUE`.
    labels: Vec<String>,
    /// SSH keys that may log in as root.
    ssh_keys: Vec<String>,
    /// SSH keys that may log in as [`PUSHER`].
    push_keys: Vec<String>,
    network: Vec<Link>,
    /// Whether the text has the end mark.
    is_complete: bool,
}

/// Determines the identity, applies it to the board, and keeps a copy. The board's name is set in any case.
/// An error reports the steps that failed.
pub(super) fn apply(board: &mut Board) -> io::Result<()> {
    let (text, rejected) = choose(read_own_short(FRAGMENT), || read_own_short(KEPT));
    if let Some(why) = &rejected {
        say(format_args!("{FRAGMENT} is rejected: {why}; none of its settings are applied"));
    }
    let identity = text.as_deref().and_then(|text| parse(text).ok()).unwrap_or_default();
    board.name = identity.name.unwrap_or_else(|| default_name(&board.name, Path::new("/")));
    for (user, of_image) in USERS {
        let of_identity = if user == PUSHER { &identity.push_keys } else { &identity.ssh_keys };
        authorize(user, of_image, of_identity)?;
    }
    let Some(text) = text else { return Ok(()) };
    durable::replace(Path::new(IN_FORCE), text.as_bytes(), None)?;
    // The copy is written only if it differs: an unchanged fragment causes no flash wear.
    if read_own_short(KEPT).ok().flatten().as_deref() != Some(&text) {
        let reserve = Paths::new(Path::new("/")).reserve();
        durable::replace(Path::new(KEPT), text.as_bytes(), Some((&reserve, Headroom::Half)))?;
    }
    Ok(())
}

/// Writes the SSH keys that may log in as this user, who must exist in the board's `/etc/passwd`.
fn authorize(user: &str, of_image: &str, of_identity: &[String]) -> io::Result<()> {
    let mut keys = fs::read_to_string(of_image).unwrap_or_default();
    if !keys.is_empty() && !keys.ends_with('\n') {
        keys.push('\n');
    }
    for key in of_identity {
        keys.push_str(key);
        keys.push('\n');
    }
    let directory = Path::new(AUTHORIZED).join(user);
    let file = directory.join("authorized_keys");
    durable::replace(&file, keys.as_bytes(), None)?;
    let user = nix::unistd::User::from_name(user)?.ok_or(io::ErrorKind::NotFound)?;
    // The SSH server reads the keys as that user.
    for path in [&file, &directory] {
        nix::unistd::chown(path, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

/// The arguments that the identity adds to `nodlet agent`.
pub(super) fn agent_arguments() -> Vec<String> {
    let identity =
        read_own_short(IN_FORCE).ok().flatten().and_then(|text| parse(&text).ok()).unwrap_or_default();
    if identity.labels.is_empty() {
        return Vec::new();
    }
    vec!["--node-labels".to_owned(), identity.labels.join(",")]
}

/// The links that the identity and the image configure. The first entry that matches a link counts, and the
/// entries of the identity come first.
pub(super) fn links(of_image: Vec<Link>) -> Vec<Link> {
    let identity =
        read_own_short(IN_FORCE).ok().flatten().and_then(|text| parse(&text).ok()).unwrap_or_default();
    identity.network.into_iter().chain(of_image).collect()
}

/// Returns the text in force: the fragment if it is valid, else the kept copy. Also returns why the fragment
/// is rejected, if it is. The copy needs no end mark: it was written durably, perhaps by an earlier version.
fn choose(
    fragment: io::Result<Option<String>>,
    kept: impl FnOnce() -> io::Result<Option<String>>,
) -> (Option<String>, Option<String>) {
    let rejected = match fragment {
        // FAT may leave an empty file, or one of zeros, if the power is cut during a write.
        Ok(Some(text)) if text.trim_matches(['\0', '\u{feff}']).trim().is_empty() => {
            Some("it is empty".to_owned())
        }
        Ok(Some(text)) => match parse_fragment(&text) {
            Ok(_) => return (Some(text), None),
            Err(why) => Some(why),
        },
        Ok(None) => None,
        Err(error) => Some(error.to_string()),
    };
    // A damaged copy is ignored.
    (kept().ok().flatten().filter(|text| parse(text).is_ok()), rejected)
}

/// Why a factory reset would take the identity from the board: its fragment is rejected, and the copy in force is on the
/// data partition, which the reset recreates. A board without a fragment gives up the copy on purpose.
pub(crate) fn lost_by_reset() -> Option<String> {
    lost_with_copy(choose(read_own_short(FRAGMENT), || read_own_short(KEPT)))
}

fn lost_with_copy(chosen: (Option<String>, Option<String>)) -> Option<String> {
    let (Some(_), Some(why)) = chosen else { return None };
    Some(format!(
        "{FRAGMENT} is rejected: {why}. The board runs with an earlier copy of it, which the reset would delete: replace \
         the file first, with nodlet identity FILE"
    ))
}

/// Replaces the fragment durably, for `nodlet identity`; the board applies it at the next boot. The text must
/// be valid: see [`judge`].
pub(crate) fn replace_fragment(text: &str) -> io::Result<()> {
    change_boot(|| {
        // FAT frees the clusters of the old fragment when it is open nowhere any more. The medium must not keep that
        // before the directory that names the new one, which `replace` syncs.
        let _old = own_file::open(Path::new(FRAGMENT));
        durable::replace(Path::new(FRAGMENT), text.as_bytes(), None)
    })
}

/// Summarises the identity that a board would take from the text of a fragment.
///
/// # Errors
/// The line at fault, and what is expected there.
pub(crate) fn judge(text: &str) -> Result<String, String> {
    let identity = match choose(Ok(Some(text.to_owned())), || Ok(None)) {
        (Some(text), None) => parse_fragment(&text)?,
        (_, why) => return Err(why.unwrap_or_default()),
    };
    let mut found =
        vec![format!("name {}", identity.name.as_deref().unwrap_or("by profile and serial number"))];
    found.push(format!("labels: {}, keys: {}", identity.labels.len(), identity.ssh_keys.len()));
    if !identity.push_keys.is_empty() {
        found.push(format!("push keys: {}", identity.push_keys.len()));
    }
    found.extend(identity.network.iter().map(|link| format!("link {}", link.link)));
    Ok(found.join(", "))
}

/// Parses a fragment, whose last line must be the end mark.
fn parse_fragment(text: &str) -> Result<Identity, String> {
    let identity = parse(text)?;
    if identity.is_complete {
        Ok(identity)
    } else {
        Err(format!("its last line must be `{END}`, which shows that the file is complete"))
    }
}

/// Parses `KEY = VALUE` lines. Skips empty lines and lines that begin with `#`.
fn parse(text: &str) -> Result<Identity, String> {
    let mut identity = Identity::default();
    // Windows editors write a byte order mark at the beginning and CR before each LF.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut wrong = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let added = match line {
            // A power cut may leave sectors of zeros, also within a comment.
            _ if line.contains('\0') => Err("it has a NUL byte: the file is damaged".to_owned()),
            "" => Ok(()),
            _ if line.starts_with('#') => Ok(()),
            _ => identity.add(line),
        };
        if let Err(why) = added {
            wrong.push(format!("line {}: {why}", number + 1));
            if wrong.len() == MOST_FINDINGS {
                break;
            }
        }
    }
    if wrong.is_empty() { Ok(identity) } else { Err(wrong.join("; ")) }
}

impl Identity {
    fn add(&mut self, line: &str) -> Result<(), String> {
        if self.is_complete {
            return Err(format!("no line may follow `{END}`"));
        }
        if line == END {
            self.is_complete = true;
            return Ok(());
        }
        let (key, value) = line.split_once('=').ok_or("it must be KEY = VALUE")?;
        let (key, value) = (key.trim(), value.trim());
        if value.chars().any(char::is_control) {
            return Err(format!("{key:?} has a control character"));
        }
        match key {
            "name" if self.name.is_some() => Err("name is given twice".to_owned()),
            "name" if value.len() > LONGEST_NAME || !is_node_name(value) => Err(format!(
                "name {value:?} must be lower case letters, digits, '-' and '.', {LONGEST_NAME} at most"
            )),
            "name" => {
                self.name = Some(value.to_owned());
                Ok(())
            }
            "label" => {
                let (label, of) = value.split_once('=').ok_or("it must be label = KEY=VALUE")?;
                check_label(label, of).map_err(|why| format!("label {value:?} must be of {why}"))?;
                let same = |other: &String| other.split_once('=').is_some_and(|(other, _)| other == label);
                if self.labels.iter().any(same) {
                    return Err(format!("label {label} is given twice"));
                }
                self.labels.push(value.to_owned());
                Ok(())
            }
            "ssh-key" | "push-key" => {
                let mut words = value.split_whitespace();
                if !words.next().zip(words.next()).is_some_and(|(kind, blob)| is_public_key(kind, blob)) {
                    return Err(format!("{key} must be a complete public key, as ssh-ed25519 AAAA..."));
                }
                let keys = if key == "ssh-key" { &mut self.ssh_keys } else { &mut self.push_keys };
                keys.push(value.to_owned());
                Ok(())
            }
            "network" => {
                let link = link(value).ok_or_else(|| {
                    format!(
                        "network {value:?} must be LINK dhcp, LINK ADDRESS/PREFIX or LINK ADDRESS/PREFIX \
                         via GATEWAY [dns ADDRESS...]"
                    )
                })?;
                if self.network.iter().any(|other| other.link == link.link) {
                    return Err(format!("network of {} is given twice", link.link));
                }
                self.network.push(link);
                Ok(())
            }
            "join-token" => Err("join-token: a board joins a cluster with `nodlet join`".to_owned()),
            _ => Err(format!("unknown key {key:?}; known are name, label, ssh-key, push-key and network")),
        }
    }
}

/// Whether an OpenSSH public key is complete: fields with preceding lengths, of which the first repeats the
/// kind (RFC 4253, section 6.6).
fn is_public_key(kind: &str, blob: &str) -> bool {
    let known = ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-"].iter().any(|known| kind.starts_with(known));
    let Ok(blob) = base64::decode(blob.as_bytes()) else { return false };
    let (mut rest, mut fields) = (blob.as_slice(), Vec::new());
    while let Some((length, more)) = rest.split_first_chunk::<4>() {
        let Some((field, more)) = more.split_at_checked(u32::from_be_bytes(*length) as usize) else {
            return false;
        };
        fields.push(field);
        rest = more;
    }
    known && rest.is_empty() && fields.len() > 1 && fields.first() == Some(&kind.as_bytes())
}

/// Parses a link: `LINK dhcp` or `LINK ADDRESS/PREFIX [via GATEWAY [dns ADDRESS...]]`.
fn link(value: &str) -> Option<Link> {
    let words: Vec<&str> = value.split_whitespace().collect();
    let (name, link) = match words.as_slice() {
        [name, "dhcp"] => (*name, Link { dhcp: true, ..Link::default() }),
        [name, address] => (*name, fixed(address)?),
        [name, address, "via", gateway] => {
            (*name, Link { gateway: Some(gateway.parse().ok().filter(is_host)?), ..fixed(address)? })
        }
        [name, address, "via", gateway, "dns", servers @ ..] if !servers.is_empty() => {
            let dns =
                servers.iter().map(|server| server.parse().ok().filter(is_host)).collect::<Option<_>>()?;
            (*name, Link { gateway: Some(gateway.parse().ok().filter(is_host)?), dns, ..fixed(address)? })
        }
        _ => return None,
    };
    // The kernel limits the length of names. A final `*` matches several links, which cannot share a fixed
    // address.
    let plain = name.strip_suffix('*').filter(|_| link.dhcp).unwrap_or(name);
    let is_link = !plain.is_empty() && name.len() < 16 && !plain.contains(['/', '*']);
    is_link.then_some(Link { link: name.to_owned(), ..link })
}

fn fixed(address: &str) -> Option<Link> {
    let (address, prefix) = address.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| (1..=32).contains(prefix))?;
    Some(Link {
        address: Some(address.parse().ok().filter(is_host)?),
        prefix: Some(prefix),
        ..Link::default()
    })
}

/// Whether the address can be assigned to a link so that others can reach it.
fn is_host(address: &Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// The default name `PROFILE-SERIAL`, with the board's serial number or else the address of its first network
/// card; only the profile if the board has neither.
fn default_name(profile: &str, root: &Path) -> String {
    let unique = ["proc/device-tree/serial-number", "sys/class/dmi/id/product_serial"]
        .iter()
        .find_map(|file| serial(&fs::read(root.join(file)).ok()?))
        .or_else(|| hardware_address(&root.join("sys/class/net")));
    // Profile names may contain characters that node names may not: `qemu-x86_64`.
    let profile = node_name_of(profile).unwrap_or_else(|| "nodlet".to_owned());
    let Some(unique) = unique else { return profile };
    let name = format!("{profile}-{unique}");
    if name.len() <= LONGEST_NAME && is_node_name(&name) { name } else { profile }
}

/// Converts a serial number to a part of a name; `None` for the placeholders of boards without a serial
/// number.
fn serial(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let text = text.trim_matches(|of: char| of.is_whitespace() || of == '\0');
    let is_none =
        ["none", "not specified", "default string", "to be filled by o.e.m.", "system serial number"];
    // A serial number of zeros is a placeholder, too.
    if is_none.contains(&text) || !text.bytes().any(|byte| byte.is_ascii_alphanumeric() && byte != b'0') {
        return None;
    }
    let name: String = text.chars().map(|of| if of.is_ascii_alphanumeric() { of } else { '-' }).collect();
    Some(name.trim_matches('-').to_owned())
}

/// The address of the first network card that has a permanent one: a random address changes with each boot.
fn hardware_address(links: &Path) -> Option<String> {
    let mut names: Vec<_> = fs::read_dir(links).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort();
    names.iter().find_map(|link| {
        let is_own = fs::read_to_string(link.join("addr_assign_type")).ok()?.trim() == "0";
        let is_card = link.join("device").exists();
        let address: String = fs::read_to_string(link.join("address")).ok()?.trim().split(':').collect();
        (is_own && is_card && address.bytes().any(|byte| byte != b'0')).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> std::path::PathBuf {
        let directory = std::env::temp_dir().join(format!("nodlet-identity-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn a_fragment_is_read() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@desk";
        let text = format!(
            "\u{feff}# Board 17\r\n\r\nname = gate-17\r\nlabel = site=hall-3\r\nlabel=line = 2\n\
             ssh-key = {key}\nnetwork = eth0 192.168.1.17/24 via 192.168.1.1 \
             dns 192.168.1.1 9.9.9.9\nnetwork = eth1 10.0.0.1/8\n"
        );
        // The second label has spaces around the `=`, which labels may not have.
        assert!(parse(&text).unwrap_err().starts_with("line 5: label \"line = 2\" must be of labels"));
        let identity = parse(&text.replace("line = 2", "line=2")).unwrap();
        assert_eq!(identity.name.as_deref(), Some("gate-17"));
        assert_eq!(identity.labels, ["site=hall-3", "line=2"]);
        assert_eq!(identity.ssh_keys, [key]);
        let key = "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fAAAABHNzaDo=";
        let pusher = parse(&format!("push-key = {key}")).unwrap();
        assert_eq!(pusher.push_keys, [key]);
        assert!(pusher.ssh_keys.is_empty() && identity.push_keys.is_empty());
        let [first, second] = identity.network.as_slice() else { panic!("{identity:?}") };
        assert_eq!(
            (first.link.as_str(), first.prefix, first.gateway),
            ("eth0", Some(24), Some([192, 168, 1, 1].into()))
        );
        assert_eq!(first.dns, [Ipv4Addr::new(192, 168, 1, 1), Ipv4Addr::new(9, 9, 9, 9)]);
        assert_eq!((second.address, second.gateway), (Some([10, 0, 0, 1].into()), None));
        let dhcp = parse("network = eth* dhcp\n").unwrap();
        assert!(dhcp.network[0].dhcp && dhcp.network[0].link == "eth*");
    }

    #[test]
    fn an_invalid_identity_line_is_rejected_with_the_expected_format() {
        for (line, words) in [
            ("nmae = a", "unknown key \"nmae\"; known are name, label, ssh-key, push-key and network"),
            ("name a", "must be KEY = VALUE"),
            ("name = Board_1", "name \"Board_1\" must be lower case letters"),
            ("name =", "name \"\" must be"),
            ("name = a\u{1b}[2J", "control character"),
            ("label = site", "label = KEY=VALUE"),
            ("label = a=b,c=d", "must be of labels"),
            ("ssh-key = 7", "ssh-key must be a complete public key"),
            ("push-key = 7", "push-key must be a complete public key"),
            ("ssh-key = ssh-ed25519", "must be a complete public key"),
            ("ssh-key = ssh-ed25519 AAAAC3N me@desk", "must be a complete public key"),
            ("ssh-key = ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI... me@desk", "must be a complete public key"),
            // A key cut at a multiple of four characters, and one whose kind differs from its first word.
            (
                "ssh-key = ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZ",
                "must be a complete public key",
            ),
            (
                "ssh-key = ssh-ed25519 AAAAB3NzaC1yc2EAAAADAQABAAAAQAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
                "must be a complete public key",
            ),
            ("ssh-key = ssh-ed25519 AAAAC3NzaC1lZDI1NTE5", "must be a complete public key"),
            ("network = eth0", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 10.0.0.1/33", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 10.0.0.1/24 via nowhere", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 10.0.0.1/24 via 10.0.0.2 dns", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 10.0.0.1/24 via 10.0.0.2 dns ns1", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 10.0.0.1/0", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 0.0.0.0/24", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 224.0.0.1/24", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 255.255.255.255/32", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0 10.0.0.1/24 via 0.0.0.0", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth0123456789abcdef 10.0.0.1/24", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = e*h dhcp", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("network = eth* 10.0.0.1/24", "must be LINK dhcp, LINK ADDRESS/PREFIX"),
            ("label = a=b\nlabel = a=c", "line 3: label a is given twice"),
            ("join-token = abc", "with `nodlet join`"),
            ("name = a\nname = b", "line 3: name is given twice"),
            ("network = e 1.2.3.4/8\nnetwork = e 1.2.3.5/8", "line 3: network of e is given twice"),
        ] {
            let why = parse(&format!("# A board\n{line}\n")).unwrap_err();
            assert!(why.starts_with("line ") && why.contains(words), "{line}: {why}");
        }
        let why = parse("nmae = a\n\nname = b\nlabel = site\n").unwrap_err();
        assert!(why.contains("line 1: unknown key") && why.contains("; line 4: it must be label"), "{why}");
        assert_eq!(parse(&"x\n".repeat(1000)).unwrap_err().matches("line ").count(), MOST_FINDINGS);
        let too_long = format!("name = {}", "a".repeat(LONGEST_NAME + 1));
        assert!(parse(&too_long).unwrap_err().contains("63 at most"));
    }

    #[test]
    fn an_invalid_fragment_changes_nothing() {
        let text = |text: &str| Ok(Some(text.to_owned()));
        let kept = || text("name = old");
        assert_eq!(choose(text("name = new\nend"), kept), (Some("name = new\nend".into()), None));
        assert_eq!(choose(Ok(None), kept), (Some("name = old".into()), None));
        let (in_force, rejected) = choose(text("name = new\nx = 1\nend"), kept);
        assert_eq!(in_force.as_deref(), Some("name = old"));
        assert!(rejected.unwrap().starts_with("line 2: unknown key \"x\""));
        let (in_force, rejected) = choose(Err(io::Error::other("not valid UTF-8")), kept);
        assert_eq!((in_force.as_deref(), rejected.as_deref()), (Some("name = old"), Some("not valid UTF-8")));
        // An empty fragment is rejected, and the copy stays in force; a damaged copy is not applied either.
        for empty in ["", "\n", "\0\0\0", "\u{feff}"] {
            assert_eq!(choose(text(empty), kept), (Some("name = old".into()), Some("it is empty".into())));
        }
        // A fragment may be valid and configure nothing.
        assert_eq!(choose(text("# nothing\nend"), kept), (Some("# nothing\nend".into()), None));
        assert_eq!(choose(Ok(None), || text("\0\0")), (None, None));
    }

    #[test]
    fn a_reset_is_refused_while_the_copy_stands_for_a_fragment_that_is_rejected() {
        let lost = |fragment: Option<&str>, kept: Option<&str>| {
            let text = |text: Option<&str>| Ok(text.map(str::to_owned));
            lost_with_copy(choose(text(fragment), || text(kept)))
        };
        let (valid, torn) = (Some("name = a\nend\n"), Some("name = a\n"));
        for (fragment, kept) in [(valid, valid), (valid, None), (None, valid), (torn, None), (None, None)] {
            assert_eq!(lost(fragment, kept), None, "{fragment:?} {kept:?}");
        }
        let why = lost(torn, valid).expect("the copy is the only valid one");
        assert!(why.contains("/boot/nodlet.conf") && why.contains("`end`"), "{why}");
    }

    #[test]
    fn a_fragment_that_was_not_written_completely_is_rejected_and_the_good_copy_stays() {
        let kept = || Ok(Some("name = old".to_owned()));
        let whole = "# Board 17\nname = gate-17\n# Line 2\nlabel = site=hall-3\n\nend\n";
        let of = |text: String| choose(Ok(Some(text)), kept);
        assert_eq!(of(whole.to_owned()), (Some(whole.to_owned()), None));
        // Cut off anywhere, but for the final line break.
        for length in 0..whole.len() - 1 {
            let (in_force, rejected) = of(whole[..length].to_owned());
            assert_eq!(in_force.as_deref(), Some("name = old"), "{length} bytes: {rejected:?}");
            assert!(rejected.is_some(), "{length} bytes");
        }
        // Zeros from any byte to any other, within a comment, an empty line or a value, and after the end.
        for begin in 0..whole.len() {
            for end in begin + 1..=whole.len() {
                let torn = format!("{}{}{}", &whole[..begin], "\0".repeat(end - begin), &whole[end..]);
                let (in_force, rejected) = of(torn);
                assert_eq!(in_force.as_deref(), Some("name = old"), "{begin} to {end}: {rejected:?}");
            }
        }
        let (_, rejected) = of(format!("# Board 17{}\nend\n", "\0".repeat(512)));
        assert_eq!(rejected.as_deref(), Some("line 1: it has a NUL byte: the file is damaged"));
        let (_, rejected) = of("name = new\n".to_owned());
        assert!(rejected.is_some_and(|why| why.starts_with("its last line must be `end`")));
        let (_, rejected) = of("name = new\nend\nlabel = a=b\n".to_owned());
        assert_eq!(rejected.as_deref(), Some("line 3: no line may follow `end`"));
        // A copy with zeros is not applied either.
        assert_eq!(choose(Ok(None), || Ok(Some("# A\0\0\nname = a\n".into()))), (None, None));
    }

    #[test]
    fn a_board_without_a_name_is_named_after_its_serial_number_or_its_network_card() {
        let directory = directory("name");
        let root = directory.as_path();
        assert_eq!(default_name("pi", root), "pi");
        let card = |name: &str, address: &str, assigned: &str| {
            let link = root.join("sys/class/net").join(name);
            fs::create_dir_all(link.join("device")).unwrap();
            fs::write(link.join("address"), format!("{address}\n")).unwrap();
            fs::write(link.join("addr_assign_type"), format!("{assigned}\n")).unwrap();
        };
        card("eth0", "52:54:00:12:34:99", "1");
        card("eth1", "52:54:00:12:34:56", "0");
        card("eth2", "52:54:00:12:34:57", "0");
        assert_eq!(default_name("pi", root), "pi-525400123456");
        fs::create_dir_all(root.join("sys/class/dmi/id")).unwrap();
        let dmi = root.join("sys/class/dmi/id/product_serial");
        fs::write(&dmi, "Not Specified\n").unwrap();
        assert_eq!(default_name("pi", root), "pi-525400123456");
        fs::write(&dmi, "/A1 B2/\n").unwrap();
        assert_eq!(default_name("pi", root), "pi-a1-b2");
        fs::create_dir_all(root.join("proc/device-tree")).unwrap();
        fs::write(root.join("proc/device-tree/serial-number"), b"0000000000000000\0").unwrap();
        assert_eq!(default_name("pi", root), "pi-a1-b2");
        fs::write(root.join("proc/device-tree/serial-number"), b"10000000ABCDEF01\0").unwrap();
        assert_eq!(default_name("pi", root), "pi-10000000abcdef01");
        assert_eq!(default_name("Pi_4", root), "pi-4-10000000abcdef01");
        fs::remove_dir_all(directory).unwrap();
    }
}
