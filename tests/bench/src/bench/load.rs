//! Measures loading an image from an archive, by `nodlet image load` and by `podman load`. Processor time and
//! memory are those of the command and of all its children. Each has its own store, without any part of the
//! image, and both find the archive in the page cache.

use std::process::Stdio;
use std::time::Instant;

use nodlet_tests::Device;
use nodlet_tests::image::Image;

use super::Bench;
use super::cpu::taken;
use super::podman::Podman;
use super::race::{Contestant, race};
use super::report::{self, Rows};
use super::scratch::milliseconds;

const REFERENCE: &str = "localhost/bench:1";

/// The files of the image, similar to packages of a distribution: many small files, some large.
const LAYERS: usize = 2;
const SMALL: usize = 1000;
const SMALL_BYTES: usize = 8_000;
const LARGE: usize = 8;
const LARGE_BYTES: usize = 1_000_000;

pub(super) fn load(bench: &Bench) -> Rows {
    let archive = bench.scratch.directory("load")?.join("image.tar");
    image().write_oci_archive(&archive)?;
    let device = Device::new();
    let podman = Podman::new(&bench.scratch);

    let ours = |_: usize| {
        let begun = Instant::now();
        let load = taken(device.command(&["image", "load"]).arg(&archive).stdout(Stdio::null()))?;
        let time = milliseconds(begun.elapsed());
        device.nodlet(["image", "rm", REFERENCE]).ok();
        Ok([milliseconds(load.cpu), mib(load.peak_kib), time])
    };
    let by_podman = |podman: &Podman<'_>, _: usize| {
        let begun = Instant::now();
        let load = taken(&mut podman.load(&archive))?;
        let time = milliseconds(begun.elapsed());
        podman.remove_image(REFERENCE)?;
        Ok([milliseconds(load.cpu), mib(load.peak_kib), time])
    };
    let mut all =
        [Contestant::new("nodlet", ours), Contestant::if_possible("`podman load`", &podman, by_podman)];
    race(bench.rounds(8), &mut all)?;
    let of = format!("image load, {} MB", LAYERS * (SMALL * SMALL_BYTES + LARGE * LARGE_BYTES) / 1_000_000);
    let figures =
        [("CPU", "ms"), ("peak memory, resident", "MiB"), ("time, nodlet's until it is on the disk", "ms")];
    let mut rows = Vec::new();
    for (kind, (what, unit)) in figures.into_iter().enumerate() {
        rows.extend(report::comparisons(&format!("{of}: {what}"), unit, &all, kind, &[None])?);
    }
    Ok(rows)
}

/// An image with the same bytes in every run, half of which compress well.
fn image() -> Image {
    let (mut state, mut image) = (1u32, Image::new(REFERENCE));
    let mut bytes = |count: usize| -> Vec<u8> {
        let mut byte = |at: usize| {
            // xorshift32
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            if at.is_multiple_of(2) { state.to_le_bytes()[0] } else { b' ' }
        };
        (0..count).map(&mut byte).collect()
    };
    for layer in 0..LAYERS {
        if layer > 0 {
            image = image.layer();
        }
        image = image.directory(&format!("layer{layer}"), 0o755);
        for number in 0..SMALL {
            image = image.file(&format!("layer{layer}/small-{number}"), 0o644, &bytes(SMALL_BYTES));
        }
        for number in 0..LARGE {
            image = image.file(&format!("layer{layer}/large-{number}"), 0o755, &bytes(LARGE_BYTES));
        }
    }
    image
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
