//! In the place of `libunwind.a`, which comes with rustup's musl targets and not with Debian's C
//! library: what the standard library asks of it where a panic aborts. `xtask/build/src/musl.rs`
//! compiles it before there is a `core` for the target, hence the lang items.

#![feature(no_core, lang_items)]
#![allow(internal_features)]
#![no_core]
#![crate_type = "rlib"]

#[lang = "pointee_sized"]
pub trait PointeeSized {}
#[lang = "meta_sized"]
pub trait MetaSized: PointeeSized {}
#[lang = "sized"]
pub trait Sized: MetaSized {}
#[lang = "copy"]
pub trait Copy {}
impl Copy for i32 {}
impl Copy for usize {}

/// `_URC_END_OF_STACK`: a backtrace has no frames.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace() -> i32 {
    5
}

/// Is asked of a frame, and there is none.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetIP() -> usize {
    0
}

/// As `_Unwind_GetIP`, which 32-bit ARM has as a special case of this: it fails.
#[cfg(target_arch = "arm")]
#[unsafe(no_mangle)]
extern "C" fn _Unwind_VRS_Get() -> i32 {
    2
}
