//! Pulls an image from a registry, as the OCI distribution specification describes, for `nodlet image pull` and for
//! the agent, which runs this in a process of its own.
//!
//! ```text
//! registry ── HTTP ──> this process: documents, then layers ── pipe ──> confined process of `image load`
//! ```
//!
//! The layers pass through as they arrive: nothing is stored twice, and memory stays small whatever the size of the
//! image. [`stream`] makes an archive of them, and the process that unpacks it verifies every digest. A broken
//! connection is resumed at the byte at which it broke ([`remote`]).

use std::io::{PipeReader, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use nix::sys::signal::Signal;
use nodlet_rootfs::{LoadOptions, Loaded, Platform, Progress, Reference, Store};
use nodlet_runtime::engine::CHECK_REGISTRY;

use crate::error::VerbError;
use crate::output::printable;
use crate::verbs::image;

mod credentials;
mod registries;
mod remote;
mod stream;

use credentials::Credentials;

/// The most bytes of credentials that the agent passes.
const CREDENTIALS_MAX: u64 = 4 << 20;

/// Main function of the process that pulls an image for a pod: the root, then the image's name, then [`CHECK_REGISTRY`] if it is
/// only to look whether a registry is listed for the image. Standard input has a JSON array of the pod's credentials,
/// each the name of a Secret and the text in it. The error is printed on standard error.
pub(crate) fn run_for_pod(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let pulled = (|| {
        let (Some(root), Some(name)) = (arguments.next(), arguments.next()) else {
            return Err(VerbError::new("two arguments are required"));
        };
        let mut text = Vec::new();
        std::io::stdin().lock().take(CREDENTIALS_MAX).read_to_end(&mut text)?;
        let secrets: Vec<(String, String)> = if text.is_empty() {
            Vec::new()
        } else {
            serde_json::from_slice(&text).map_err(VerbError::new)?
        };
        let reference = Reference::parse(&name).map_err(VerbError::new)?;
        let root = Path::new(&root);
        if arguments.next().as_deref() == Some(CHECK_REGISTRY) {
            return registries::places(root, &reference, true).map(drop);
        }
        let store = Store::open(root).map_err(|error| VerbError::chain(&error))?;
        pull(root, &store, &reference, LoadOptions::default(), &secrets, true, &mut |_| {}).map(drop)
    })();
    match pulled {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = failure.to_string();
            eprint!("{}", crate::output::escaped(text.strip_prefix("error: ").unwrap_or(&text)));
            ExitCode::FAILURE
        }
    }
}

/// Pulls an image and loads it into the store. With `only_listed`, only registries are contacted that
/// `registries.conf` lists.
pub(crate) fn pull(
    root: &Path,
    store: &Store,
    reference: &Reference,
    mut options: LoadOptions,
    secrets: &[(String, String)],
    only_listed: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Loaded>, VerbError> {
    // A write to the pipe of a process that ended must be an error.
    nodlet_kernel::signal::ignore(Signal::SIGPIPE).map_err(VerbError::new)?;
    let places = registries::places(root, reference, only_listed)?;
    let credentials = Credentials::read(root, secrets)?;
    let wanted = Wanted {
        platform: options.platform.clone().unwrap_or_else(Platform::of_this_machine),
        is_explicit: options.platform.is_some(),
        name: reference.clone(),
    };
    let mut failure = None;
    for place in &places {
        match from_place(root, store, place, &credentials, &wanted, &mut options, progress) {
            Ok(loaded) => return Ok(loaded),
            Err(Attempt::Final(failure)) => return Err(failure),
            // The next mirror may have the image.
            Err(Attempt::Remote(text)) => failure = Some(VerbError::new(text)),
        }
    }
    Err(failure.unwrap_or_else(|| VerbError::new(format!("{reference}: no registry is configured"))))
}

/// The image that is pulled.
struct Wanted {
    platform: Platform,
    is_explicit: bool,
    name: Reference,
}

/// Why an image was not pulled from one place.
enum Attempt {
    /// The registry cannot be reached, or does not have the image, or has a damaged one.
    Remote(String),
    /// Another place would not help.
    Final(VerbError),
}

impl Attempt {
    /// The failure of a place, whose texts are not trusted.
    fn remote(place: &registries::Place, why: &dyn std::fmt::Display) -> Attempt {
        Attempt::Remote(format!("{}: {}", place.repository(), one_line(&why.to_string())))
    }
}

/// The most characters of the text of a registry that an error contains.
const TEXT_MAX: usize = 600;

/// A text of a registry in one line of printable characters.
fn one_line(text: &str) -> String {
    let mut line = printable(text).replace('\n', " ");
    if let Some((end, _)) = line.char_indices().nth(TEXT_MAX) {
        line.truncate(end);
        line.push('…');
    }
    line
}

fn from_place(
    root: &Path,
    store: &Store,
    place: &registries::Place,
    credentials: &Credentials,
    wanted: &Wanted,
    options: &mut LoadOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Loaded>, Attempt> {
    let mut registry = remote::Registry::new(root, place, credentials);
    let remote = |error: remote::RemoteError| Attempt::remote(place, &nodlet_host::error::causes(&error));
    let image = smol::block_on(stream::documents(&mut registry, wanted)).map_err(remote)?;
    let has_layer = |layer: &nodlet_rootfs::Digest| store.layer_path(layer).is_some();
    let layers = image.missing_layers(has_layer).map_err(remote)?;
    let (reader, writer) = std::io::pipe().map_err(|error| Attempt::Final(error.into()))?;
    let cgroup = image::confine(root, store, options).map_err(Attempt::Final)?;
    let (loaded, sent) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| smol::block_on(image.send(&mut registry, &layers, writer)));
        let archive = std::fs::File::from(OwnedFd::from(reader as PipeReader));
        let loaded = store.load_file(archive, options, progress);
        let sent = sender.join().unwrap_or_else(|_| Err(remote::RemoteError::Broken("the download failed")));
        (loaded, sent)
    });
    drop(cgroup);
    match (loaded, sent) {
        // The archive was cut because the download failed, unless the download failed because nobody read it.
        (_, Err(error)) if !error.is_closed_pipe() => Err(remote(error)),
        (Ok(loaded), _) => Ok(loaded),
        (Err(error), _) if error.is_of_archive() => {
            let why = nodlet_host::error::chain(&error);
            Err(Attempt::remote(
                place,
                &format_args!("what the registry sent is damaged or invalid: failed to {why}"),
            ))
        }
        (Err(error), _) => Err(Attempt::Final(VerbError::chain(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_registries_are_one_short_line() {
        assert_eq!(one_line("not\u{1b}[31m\n\u{202e}found\r"), "not[31m found");
        assert_eq!(one_line(&"ä".repeat(TEXT_MAX)), "ä".repeat(TEXT_MAX));
        assert_eq!(one_line(&"ä".repeat(100_000)), "ä".repeat(TEXT_MAX) + "…");
    }
}
