//! Extended attributes as EROFS stores them after an inode. Pure.

/// The size of the reserved header before the first attribute.
const HEADER: usize = 12;
/// The most bytes of one file's attributes that Linux lists.
const TOTAL_MAX: usize = 64 * 1024;
const NAME_MAX: usize = 255;
const VALUE_MAX: usize = u16::MAX as usize;

/// The attribute namespaces for which EROFS has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Namespace {
    User = 1,
    PosixAclAccess = 2,
    PosixAclDefault = 3,
    Trusted = 4,
    Security = 6,
}

impl Namespace {
    /// Splits `user.x` into its namespace and `x`.
    pub(crate) fn split(name: &[u8]) -> Option<(Namespace, &[u8])> {
        match name {
            b"system.posix_acl_access" => Some((Namespace::PosixAclAccess, b"")),
            b"system.posix_acl_default" => Some((Namespace::PosixAclDefault, b"")),
            _ => [
                (Namespace::User, &b"user."[..]),
                (Namespace::Trusted, b"trusted."),
                (Namespace::Security, b"security."),
            ]
            .into_iter()
            .find_map(|(namespace, prefix)| Some((namespace, name.strip_prefix(prefix)?)))
            .filter(|(_, rest)| !rest.is_empty()),
        }
    }
}

/// The attributes of one file, encoded without their header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Xattrs(Box<[u8]>);

/// The bytes of attributes after an inode with this `i_xattr_icount`.
pub(crate) fn size_of_count(count: u16) -> usize {
    match usize::from(count) {
        0 => 0,
        count => HEADER + (count - 1) * 4,
    }
}

impl Xattrs {
    /// Adds one attribute.
    pub(crate) fn push(&mut self, namespace: Namespace, name: &[u8], value: &[u8]) -> Result<(), String> {
        let shown = || crate::tar_error::shown(name);
        let name_length = u8::try_from(name.len())
            .map_err(|_| format!("extended attribute {}…: a name of more than {NAME_MAX} bytes", shown()))?;
        if name.contains(&0) {
            return Err(format!("extended attribute {}: a name with a NUL byte", shown()));
        }
        let value_length = u16::try_from(value.len())
            .map_err(|_| format!("extended attribute {}: a value of more than {VALUE_MAX} bytes", shown()))?;
        let mut entries = std::mem::take(&mut self.0).into_vec();
        entries.push(name_length);
        entries.push(namespace as u8);
        entries.extend_from_slice(&value_length.to_le_bytes());
        entries.extend_from_slice(name);
        entries.extend_from_slice(value);
        entries.resize(entries.len().next_multiple_of(4), 0);
        self.0 = entries.into();
        if self.0.len() > TOTAL_MAX {
            Err(format!("more than {TOTAL_MAX} bytes of extended attributes"))
        } else {
            Ok(())
        }
    }

    /// The bytes of the attributes after the inode.
    pub(crate) fn size(&self) -> usize {
        if self.0.is_empty() { 0 } else { HEADER + self.0.len() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size() - self.0.len()];
        bytes.extend_from_slice(&self.0);
        bytes
    }

    /// The value of `i_xattr_icount`.
    pub(crate) fn count_field(&self) -> Result<u16, String> {
        if self.0.is_empty() {
            Ok(0)
        } else {
            u16::try_from(self.0.len() / 4 + 1)
                .map_err(|_| "more extended attributes than EROFS can hold".to_owned())
        }
    }
}
