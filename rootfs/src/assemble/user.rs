//! Looks up the user that an image or a Pod names, in the image itself.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nodlet_kernel::file::{open, open_in_root};

/// The largest `/etc/passwd` or `/etc/group` that is read, in bytes: the image determines its size, but
/// nodlet provides the memory.
const FILE_MAX: u64 = 1024 * 1024;

/// The user and groups of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessUser {
    /// The user ID.
    pub uid: u32,
    /// The primary group ID.
    pub gid: u32,
    /// The groups of which the user is a member in `/etc/group`, in the order of that file.
    pub additional_gids: Vec<u32>,
    /// The value of `$HOME`.
    pub home: String,
}

/// Why a user could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// `/etc/passwd` lacks this name.
    #[error("find user \"{user}\": the image's /etc/passwd has no user of that name")]
    NoSuchUser {
        /// The user name.
        user: String,
    },
    /// `/etc/group` lacks this name.
    #[error("find group \"{group}\": the image's /etc/group has no group of that name")]
    NoSuchGroup {
        /// The group name.
        group: String,
    },
    /// A number is not a valid user or group ID.
    #[error("use \"{id}\" as a user or group ID: must be between 0 and 2147483647")]
    OutOfRange {
        /// The number as written.
        id: String,
    },
    /// A file of the image is too large.
    #[error("read {file} in the image: larger than {FILE_MAX} bytes")]
    TooLarge {
        /// The file.
        file: &'static str,
    },
    /// A file of the image could not be read.
    #[error("read {file} in the image")]
    Read {
        /// The file.
        file: &'static str,
        /// The error of reading.
        source: io::Error,
    },
}

/// Resolves `user[:group]`, as names or numbers, in the root file system `root`. An empty `user` means root.
/// A number that the image does not list is used as it is, with group 0.
pub fn user(root: &Path, user: &str) -> Result<ProcessUser, UserError> {
    let passwd = read(root, "/etc/passwd")?;
    let group = read(root, "/etc/group")?;
    resolve(&passwd, &group, user)
}

/// Reads a file in the image as text; empty if it does not exist.
fn read(root: &Path, file: &'static str) -> Result<String, UserError> {
    let failed = |errno: Errno| UserError::Read { file, source: errno.into() };
    let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(failed)?;
    let opened = match open_in_root(root, file) {
        Ok(opened) => File::from(opened),
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(String::new()),
        Err(errno) => return Err(failed(errno)),
    };
    let failed = |source: io::Error| UserError::Read { file, source };
    if !opened.metadata().map_err(failed)?.is_file() {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    opened.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_MAX {
        Err(UserError::TooLarge { file })
    } else {
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn resolve(passwd: &str, group: &str, wanted: &str) -> Result<ProcessUser, UserError> {
    let (user, wanted_group) = match wanted.split_once(':') {
        Some((user, group)) => (user, group),
        None => (wanted, ""),
    };
    let user = if user.is_empty() { "0" } else { user };
    // Names are tried first, because a name may consist of digits.
    let entry = users(passwd)
        .find(|entry| entry.name == user)
        .or_else(|| users(passwd).find(|entry| Ok(entry.uid) == user.parse()));
    let uid = match &entry {
        Some(entry) => entry.uid,
        None => id(user)?.ok_or_else(|| UserError::NoSuchUser { user: user.to_owned() })?,
    };
    let gid = match wanted_group {
        "" => entry.as_ref().map_or(0, |entry| entry.gid),
        wanted => match groups(group).find(|group| group.name == wanted) {
            Some(group) => group.gid,
            None => id(wanted)?.ok_or_else(|| UserError::NoSuchGroup { group: wanted.to_owned() })?,
        },
    };
    let mut additional_gids = Vec::new();
    if let Some(entry) = &entry {
        for group in groups(group).filter(|group| group.members.split(',').any(|member| member == entry.name))
        {
            if group.gid != gid && !additional_gids.contains(&group.gid) {
                additional_gids.push(group.gid);
            }
        }
    }
    let home = entry.map(|entry| entry.home).filter(|home| !home.is_empty()).unwrap_or("/");
    Ok(ProcessUser { uid, gid, additional_gids, home: home.to_owned() })
}

/// Parses a number; `None` if the text is a name.
fn id(text: &str) -> Result<Option<u32>, UserError> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(None);
    }
    let id = text.parse().ok().filter(|id| *id <= i32::MAX.cast_unsigned());
    id.map(Some).ok_or_else(|| UserError::OutOfRange { id: text.chars().take(32).collect() })
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// Parses `/etc/passwd`. Skips invalid lines, as libc does.
fn users(passwd: &str) -> impl Iterator<Item = User<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(User { name, uid, gid, home: fields.nth(1).unwrap_or("") })
    })
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

fn groups(group: &str) -> impl Iterator<Item = Group<'_>> {
    group.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some(Group { name, gid, members: fields.next().unwrap_or("") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
        # comment\n\
        broken\n\
        www:x:33:34:www:/var/www:/bin/false\n\
        1000:x:7:8::/digits:\n\
        short:x:50:51\n";
    const GROUP: &str =
        "root:x:0:root\nwww:x:34:\nstaff:x:50:nobody,www\ndisk:x:6:www,root\nagain:x:50:www\nnone:x:9\n";

    #[track_caller]
    fn check(wanted: &str, expected: (u32, u32, &[u32], &str)) {
        let user = resolve(PASSWD, GROUP, wanted).expect(wanted);
        assert_eq!(
            (user.uid, user.gid, user.additional_gids.as_slice(), user.home.as_str()),
            expected,
            "{wanted}"
        );
    }

    #[test]
    fn users_are_looked_up_in_the_image() {
        check("", (0, 0, &[6], "/root"));
        check("root", (0, 0, &[6], "/root"));
        check("0", (0, 0, &[6], "/root"));
        check("www", (33, 34, &[50, 6], "/var/www"));
        check("33", (33, 34, &[50, 6], "/var/www"));
        check("www:staff", (33, 50, &[6], "/var/www"));
        check("www:12", (33, 12, &[50, 6], "/var/www"));
        check("www:", (33, 34, &[50, 6], "/var/www"));
        check(":staff", (0, 50, &[0, 6], "/root"));
        check("4242", (4242, 0, &[], "/"));
        check("4242:4343", (4242, 4343, &[], "/"));
        check("1000", (7, 8, &[], "/digits"));
        check("short", (50, 51, &[], "/"));
    }

    #[test]
    fn users_that_the_image_does_not_have_are_refused() {
        for (wanted, expected) in [
            ("nobody", "find user \"nobody\": the image's /etc/passwd has no user of that name"),
            ("www:wheel", "find group \"wheel\": the image's /etc/group has no group of that name"),
            ("-1", "find user \"-1\": the image's /etc/passwd has no user of that name"),
            ("2147483648", "use \"2147483648\" as a user or group ID: must be between 0 and 2147483647"),
            ("1:99999999999", "use \"99999999999\" as a user or group ID: must be between 0 and 2147483647"),
        ] {
            assert_eq!(resolve(PASSWD, GROUP, wanted).expect_err(wanted).to_string(), expected);
        }
    }

    #[test]
    fn an_image_s_links_do_not_lead_out_of_it() {
        let scratch = Scratch::new();
        let root = scratch.path().join("root");
        std::fs::create_dir_all(root.join("etc")).expect("scratch");
        assert_eq!(user(&root, "5").expect("no files at all").uid, 5);
        std::fs::write(scratch.path().join("outside"), "evil:x:1:1::/:\n").expect("scratch");
        std::os::unix::fs::symlink("../../outside", root.join("etc/passwd")).expect("scratch");
        assert!(matches!(user(&root, "evil"), Err(UserError::NoSuchUser { .. })));
        std::fs::write(root.join("inside"), "good:x:1:1::/:\n").expect("scratch");
        std::fs::remove_file(root.join("etc/passwd")).expect("scratch");
        std::os::unix::fs::symlink("/inside", root.join("etc/passwd")).expect("scratch");
        assert_eq!(user(&root, "good").expect("a link within the image").uid, 1);
        nix::unistd::mkfifo(&root.join("etc/group"), nix::sys::stat::Mode::S_IRWXU).expect("scratch");
        assert_eq!(user(&root, "good:7").expect("a fifo is no group file").gid, 7);
    }

    #[test]
    fn an_endless_passwd_is_refused() {
        let scratch = Scratch::new();
        std::fs::create_dir_all(scratch.path().join("etc")).expect("scratch");
        let file = File::create(scratch.path().join("etc/passwd")).expect("scratch");
        file.set_len(FILE_MAX + 1).expect("scratch");
        assert!(matches!(user(scratch.path(), "0"), Err(UserError::TooLarge { file: "/etc/passwd" })));
    }
}
