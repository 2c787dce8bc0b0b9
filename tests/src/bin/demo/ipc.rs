//! Makes and looks for System V and POSIX shared memory, to see that both cross
//! the containers of a pod and never the border of a pod.

use std::fs;
use std::path::Path;

use crate::Failure;

pub(crate) fn run(what: &str, name: &str) -> Result<(), Failure> {
    match what {
        "sysv-make" => segment(name.parse()?, libc::IPC_CREAT | libc::IPC_EXCL | 0o600)?,
        "sysv-has" => segment(name.parse()?, 0)?,
        // What shm_open does, without its wish for a C library.
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
