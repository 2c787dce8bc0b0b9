//! Stops builds with libcontainer as published, which gives containers wrong ids on 32-bit ARM and x86
//! (`docs/upstream/libcontainer-ids-of-16-bits.md`). All builds have the same source, so no other processor is excepted.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // What the build script of the patched crate prints.
    if std::env::var_os("DEP_LIBCONTAINER_PATCHED").is_none() {
        eprintln!(
            "this is libcontainer as published: run `cargo xtask setup`, which applies \
             xtask/patches/libcontainer-0.7.0.patch to builds in this checkout, or build from the archive of the sources of \
             a release, which has the patched crate (docs/building.md)"
        );
        std::process::exit(1);
    }
}
