//! The choice of a layer's base: the layer on this board that it most likely replaces, so that only its
//! changed blocks need to be sent.
//!
//! A wrong choice costs the transfer of a list of blocks, and the sender decides whether that is worthwhile.
//! Read next: `nodlet_rootfs::changes`.

use std::fs::File;

use nodlet_kernel::own_file;
use nodlet_rootfs::changes::BASE_MAX;
use nodlet_rootfs::parcel::{Part, WantedImage};
use nodlet_rootfs::{Digest, Image, Reference, Store};

/// A base layer of this board. Its file is open, because the layer may be removed meanwhile.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) layer: Digest,
    pub(super) file: File,
    pub(super) bytes: u64,
}

impl Base {
    /// Finds the base for a layer of an image, if there is one.
    pub(super) fn find(store: &Store, images: &[Image], wanted: &WantedImage, part: &Part) -> Option<Base> {
        let size = |layer: &Digest| {
            let path = store.layer_path(layer)?;
            own_file::metadata(&path).ok().map(|metadata| metadata.len()).filter(|length| *length <= BASE_MAX)
        };
        let layer = choose(images, wanted, part, &size)?;
        let file = own_file::open(&store.layer_path(&layer)?).ok()?;
        let bytes = file.metadata().ok()?.len();
        Some(Base { layer, file, bytes })
    }
}

/// Chooses the layer that this one most likely replaces: the one at the same position in the image of the
/// same name, or in the image with the most layers in common.
fn choose(
    images: &[Image],
    wanted: &WantedImage,
    part: &Part,
    size: &dyn Fn(&Digest) -> Option<u64>,
) -> Option<Digest> {
    let names: Vec<String> = wanted.names.iter().filter_map(|name| repository(name)).collect();
    let is_wanted = |layer: &Digest| wanted.layers.iter().any(|part| part.diff_id == *layer);
    let likeness = |image: &Image| {
        let same_name = image.names.iter().filter_map(|name| repository(name)).any(|of| names.contains(&of));
        let shared = image.layers.iter().filter(|layer| is_wanted(layer)).count();
        (same_name, shared)
    };
    let before = images.iter().filter(|image| image.id != wanted.id && likeness(image) > (false, 0));
    let before = before.max_by_key(|image| likeness(image))?;
    let replaced: Vec<Digest> = before.layers.iter().filter(|layer| !is_wanted(layer)).copied().collect();
    let new = wanted.layers.iter().map(|part| part.diff_id).filter(|layer| !before.layers.contains(layer));
    let new: Vec<Digest> = new.collect();
    let at_its_place = if new.len() == replaced.len() {
        new.iter().position(|layer| *layer == part.diff_id).and_then(|place| replaced.get(place))
    } else {
        None
    };
    match at_its_place {
        Some(layer) => Some(*layer).filter(|layer| size(layer).is_some()),
        None => replaced.into_iter().filter(|layer| size(layer).is_some()).max_by_key(size),
    }
}

/// An image name without its tag or digest.
fn repository(name: &str) -> Option<String> {
    Some(Reference::parse(name).ok()?.name())
}

#[cfg(test)]
mod tests {
    use nodlet_rootfs::{ImageConfig, Platform};

    use super::*;

    fn digests(text: &str) -> Vec<Digest> {
        text.split_whitespace().map(|word| Digest::of(word.as_bytes())).collect()
    }

    fn image(name: &str, layers: &str) -> Image {
        Image {
            id: Digest::of(layers.as_bytes()),
            names: name.split_whitespace().map(str::to_owned).collect(),
            repo_digests: Vec::new(),
            manifest_digest: None,
            layers: digests(layers),
            platform: Platform::of_this_machine(),
            size: 0,
            created: None,
            config: ImageConfig::default(),
        }
    }

    /// Returns the chosen layer. A layer's size is the length of its name here; `huge` is too large.
    fn chosen(images: &[Image], name: &str, layers: &str, layer: &str, candidates: &str) -> Option<String> {
        let part = |diff_id: Digest| Part { diff_id, blob: None, member: String::new() };
        let wanted = WantedImage {
            id: Digest::of(layers.as_bytes()),
            names: vec![name.to_owned()],
            layers: digests(layers).into_iter().map(part).collect(),
        };
        let word = |digest: &Digest| {
            candidates.split_whitespace().find(|word| Digest::of(word.as_bytes()) == *digest)
        };
        let size =
            |digest: &Digest| word(digest).filter(|word| *word != "huge").map(|word| word.len() as u64);
        let part = part(Digest::of(layer.as_bytes()));
        choose(images, &wanted, &part, &size).map(|digest| word(&digest).expect("known").to_owned())
    }

    #[test]
    fn the_layer_that_is_replaced_is_found_by_name_and_place() {
        let images = [
            image("docker.io/library/app:1", "debian libs1 app1"),
            image("docker.io/library/other:1", "debian libs2 else"),
            image("", "debian app0"),
        ];
        let all = "debian libs1 app1 libs2 else app0 huge";
        for (name, layers, layer, expected) in [
            // A rebuilt program, with rebuilt libraries below it.
            ("docker.io/library/app:2", "debian libs1 app2", "app2", Some("app1")),
            ("docker.io/library/app:2", "debian libs3 app2", "libs3", Some("libs1")),
            ("docker.io/library/app:2", "debian libs3 app2", "app2", Some("app1")),
            // An image squashed to one layer: most of its content is in the largest old layer.
            ("docker.io/library/app:2", "one", "one", Some("debian")),
            // Another name for the image with the most layers in common.
            ("docker.io/library/new:1", "debian libs2 new", "new", Some("else")),
            ("docker.io/library/new:1", "alpine new", "new", None),
            // The same image, of which a layer was lost, is no base for itself.
            ("docker.io/library/lone:1", "debian app0", "app0", Some("libs2")),
        ] {
            let found = chosen(&images, name, layers, layer, all);
            assert_eq!(found.as_deref(), expected, "{layer} of {layers}");
        }
        let images = [image("docker.io/library/app:1", "huge small")];
        let choose = |layers: &str| chosen(&images, "docker.io/library/app:2", layers, "new", "huge small");
        assert_eq!(choose("new small"), None);
        assert_eq!(choose("new"), Some("small".to_owned()));
    }
}
