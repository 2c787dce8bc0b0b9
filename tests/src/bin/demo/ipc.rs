//! Creates and looks up System V and POSIX shared memory, to test that both are shared among the containers
//! of a pod but not between pods.

use std::fs;
use std::path::Path;

use crate::Failure;

pub(crate) fn run(what: &str, name: &str) -> Result<(), Failure> {
    match what {
        "sysv-make" => segment(name.parse()?, libc::IPC_CREAT | libc::IPC_EXCL | 0o600)?,
        "sysv-has" => segment(name.parse()?, 0)?,
        // The same as shm_open, without needing a C library.
        "posix-make" => fs::write(Path::new("/dev/shm").join(name), "here")?,
        "posix-has" => drop(fs::read(Path::new("/dev/shm").join(name))?),
        _ => return Err("sysv-make, sysv-has, posix-make or posix-has".into()),
    }
    println!("{what} {name}");
    Ok(())
}

fn segment(key: i32, flags: i32) -> Result<(), Failure> {
    // SAFETY: shmget takes numbers only.
    match unsafe { libc::shmget(key, 4096, flags) } {
        -1 => Err(std::io::Error::last_os_error().into()),
        _ => Ok(()),
    }
}
