//! Decides which AppArmor profile confines a container. Pure, but for [`is_enabled`] and [`loaded`], which read what the
//! kernel has; the supervisor's helpers apply the profile.
//!
//! nodlet loads no profile: their binary form is made by `apparmor_parser`, which boards do not have. `RuntimeDefault`
//! is therefore the profile [`DEFAULT`], which the owner of the machine loads.

use std::io::{self, Read};

use nodlet_core::spec::container::AppArmorProfile;
use nodlet_core::spec::{Container, Pod};

/// The name of the profile of nodlet, as `cri-containerd.apparmor.d` is that of containerd.
pub const DEFAULT: &str = "nodlet-default";

/// The most bytes that are read of the list of profiles: some ten thousand of them.
const MAX_LIST: u64 = 1 << 20;

/// Whether the kernel has AppArmor and it is enabled, as a kubelet finds out.
pub fn is_enabled() -> bool {
    let enabled = std::fs::read("/sys/module/apparmor/parameters/enabled");
    enabled.is_ok_and(|text| text.starts_with(b"Y"))
        && std::path::Path::new("/sys/kernel/security/apparmor").exists()
}

/// The names of the profiles that the kernel has loaded, each with its mode: `name (enforce)`.
///
/// # Errors
/// The list cannot be read, for which the caller must be root.
pub fn loaded() -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open("/sys/kernel/security/apparmor/profiles")?
        .take(MAX_LIST)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// The profile that the manifest names for a container.
fn named<'a>(pod: &'a Pod, container: &'a Container) -> Option<&'a AppArmorProfile> {
    let own = container.security_context.app_armor.as_ref();
    own.or(pod.spec.security_context.app_armor.as_ref())
}

/// Whether the profile of a container depends on the profiles that are loaded.
pub(crate) fn needs_list(pod: &Pod, container: &Container, enabled: bool) -> bool {
    enabled
        && match named(pod, container) {
            Some(AppArmorProfile::Unconfined) => false,
            Some(AppArmorProfile::Localhost(_)) => true,
            Some(AppArmorProfile::RuntimeDefault) | None => !container.security_context.privileged,
        }
}

/// The profile that confines a container, if any (`GenerateApparmorSpecOpts` of containerd). `loaded` is the list of
/// loaded profiles, on a machine with AppArmor.
///
/// # Errors
/// The profile does not exist, in containerd's words.
pub(crate) fn profile(
    pod: &Pod,
    container: &Container,
    loaded: Option<&io::Result<String>>,
) -> Result<Option<Box<str>>, String> {
    let failed = |why: &str| Err(format!("failed to generate apparmor spec opts: {why}"));
    let (name, is_wanted) = match named(pod, container) {
        Some(AppArmorProfile::Unconfined) => return Ok(None),
        Some(AppArmorProfile::Localhost(name)) => (name.strip_prefix("localhost/").unwrap_or(name), true),
        // As in containerd, a privileged container has only a profile that it names.
        Some(AppArmorProfile::RuntimeDefault) | None if container.security_context.privileged => {
            return Ok(None);
        }
        Some(AppArmorProfile::RuntimeDefault) => (DEFAULT, true),
        None => (DEFAULT, false),
    };
    match loaded {
        None if is_wanted => failed("apparmor is not supported"),
        Some(Err(error)) if is_wanted => failed(&error.to_string()),
        Some(Ok(list)) if has(list, name) => Ok(Some(name.into())),
        Some(Ok(_)) if is_wanted => failed(&format!("apparmor profile not found {name}")),
        None | Some(_) => Ok(None),
    }
}

/// Whether the list of [`loaded`] has a profile of this name.
pub fn has(list: &str, name: &str) -> bool {
    list.lines().any(|line| line.rsplit_once(" (").is_some_and(|(known, _)| known == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(of_pod: &str, own: &str, list: Option<&str>, expected: Result<Option<&str>, &str>) {
        let context = |fields: &str| format!("securityContext: {{{fields}}}");
        let pod = crate::testing::pod("name: web", &context(own), &context(of_pod));
        let container = &pod.spec.containers[0];
        let list = list.filter(|_| needs_list(&pod, container, true)).map(|list| Ok(list.to_owned()));
        let found = profile(&pod, container, list.as_ref());
        let expected = expected.map_err(|why| format!("failed to generate apparmor spec opts: {why}"));
        assert_eq!(
            found.as_ref().map(|name| name.as_deref()),
            expected.as_ref().copied(),
            "{of_pod} {own} {list:?}"
        );
    }

    #[test]
    fn a_container_gets_its_own_profile_or_that_of_its_pod_or_the_default() {
        const ALL: Option<&str> = Some("strict (enforce)\nnodlet-default (complain)\na b (c) (enforce)\n");
        const NONE: Option<&str> = Some("strict-not (enforce)\nnodlet-default-not (enforce)\n");
        const DEFAULT: &str = "appArmorProfile: {type: RuntimeDefault}";
        const OPEN: &str = "appArmorProfile: {type: Unconfined}";
        const STRICT: &str = "appArmorProfile: {type: Localhost, localhostProfile: strict}";
        let privileged = |profile: &str| format!("privileged: true, {profile}");
        check("", "", ALL, Ok(Some("nodlet-default")));
        check("", "", NONE, Ok(None));
        check("", "", None, Ok(None));
        check("", DEFAULT, ALL, Ok(Some("nodlet-default")));
        check(DEFAULT, "", NONE, Err("apparmor profile not found nodlet-default"));
        check(DEFAULT, "", None, Err("apparmor is not supported"));
        check(DEFAULT, OPEN, ALL, Ok(None));
        check(DEFAULT, STRICT, ALL, Ok(Some("strict")));
        check(STRICT, "", ALL, Ok(Some("strict")));
        check(STRICT, "", NONE, Err("apparmor profile not found strict"));
        check(STRICT, "", None, Err("apparmor is not supported"));
        let local = |name: &str| format!("appArmorProfile: {{type: Localhost, localhostProfile: {name}}}");
        check("", &local("localhost/strict"), ALL, Ok(Some("strict")));
        check("", &local("a b (c)"), ALL, Ok(Some("a b (c)")));
        check("", &local("a b"), ALL, Err("apparmor profile not found a b"));
        check("", &privileged(""), ALL, Ok(None));
        check("", &privileged(DEFAULT), ALL, Ok(None));
        check("", &privileged(STRICT), ALL, Ok(Some("strict")));
    }
}
