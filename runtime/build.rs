//! Provides what the module `built_from` says of this build: the target, and the list of crates if `cargo xtask cross`
//! has made one (`$NODLET_CRATES` is its path).

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=NODLET_TARGET={}", env::var("TARGET")?);
    // The archive of the sources has this file. The variables of a distribution take precedence.
    if let Ok(commit) = fs::read_to_string("../COMMIT")
        && env::var_os("NODLET_COMMIT").is_none()
        && let Some((hash, date)) = commit.trim().split_once('\n')
    {
        println!("cargo::rerun-if-changed=../COMMIT");
        println!("cargo::rustc-env=NODLET_COMMIT={hash}");
        println!("cargo::rustc-env=NODLET_COMMIT_DATE={date}");
    }
    println!("cargo::rerun-if-env-changed=NODLET_COMMIT");
    println!("cargo::rustc-check-cfg=cfg(nodlet_crates)");
    println!("cargo::rerun-if-env-changed=NODLET_CRATES");
    if let Some(list) = env::var_os("NODLET_CRATES") {
        println!("cargo::rerun-if-changed={}", PathBuf::from(&list).display());
        fs::copy(&list, PathBuf::from(env::var("OUT_DIR")?).join("crates.z"))?;
        println!("cargo::rustc-cfg=nodlet_crates");
    }
    Ok(())
}
