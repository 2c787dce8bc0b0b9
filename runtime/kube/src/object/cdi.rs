//! The names of CDI devices, in annotations of pods and in device files.

/// The prefix of annotations that request CDI devices, as comma-separated names `vendor.com/class=device`.
pub const CDI_ANNOTATION: &str = "cdi.k8s.io/";

/// Splits the value of an annotation into the names of devices.
///
/// # Errors
/// A name is not of the form `vendor.com/class=device`.
pub fn cdi_names(value: &str) -> Result<Vec<&str>, String> {
    let is_word = |word: &str| {
        word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte)) && !word.is_empty()
    };
    let names = value.split(',').map(str::trim);
    names
        .map(|name| {
            match name.split_once('=').and_then(|(kind, device)| Some((kind.split_once('/')?, device))) {
                Some(((vendor, class), device)) if [vendor, class, device].into_iter().all(is_word) => {
                    Ok(name)
                }
                Some(_) | None => Err(format!("{name:?} is no CDI device: must be vendor.com/class=device")),
            }
        })
        .collect()
}
