//! Stops builds for 32-bit ARM and x86 with libcontainer as published: there it gives containers wrong ids
//! (`docs/upstream/libcontainer-ids-of-16-bits.md`). For all other processors, the patch changes nothing.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // What the build script of the patched crate prints.
    let is_patched = std::env::var_os("DEP_LIBCONTAINER_PATCHED").is_some();
    let processor = std::env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    if ["arm", "x86"].contains(&processor.as_str()) && !is_patched {
        eprintln!(
            "libcontainer as published gives containers wrong user IDs on {processor}: run `cargo xtask setup`, which \
             applies xtask/patches/libcontainer-0.7.0.patch to builds in this checkout, or apply it to your copy of the \
             crate"
        );
        std::process::exit(1);
    }
}
