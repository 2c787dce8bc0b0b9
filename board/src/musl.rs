//! In the place of two functions of musl: its own ones call `snprintf` for a number, and nothing else in this program
//! does. With it come formatted output and the arithmetic of 128-bit floats, some 12 KB.
//!
//! The standard library calls the first for each thread with a name, libcontainer the second for each container with a
//! terminal. Neither is called by nodlet itself.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write as _;

/// The longest name of a thread, without the null byte: `TASK_COMM_LEN` of the kernel.
const NAME_BYTES: usize = 15;

/// Names the calling thread. Fails with `ERANGE` if the name is too long, as that of musl, and with `ENOTSUP` for
/// another thread, which the standard library never names.
#[unsafe(no_mangle)]
extern "C" fn pthread_setname_np(thread: libc::pthread_t, name: *const c_char) -> c_int {
    // SAFETY: the function has no requirements.
    if thread != unsafe { libc::pthread_self() } {
        return libc::ENOTSUP;
    }
    // SAFETY: the caller passes a string that ends with a null byte.
    if unsafe { CStr::from_ptr(name) }.count_bytes() > NAME_BYTES {
        return libc::ERANGE;
    }
    // SAFETY: the kernel reads the string up to its null byte.
    match unsafe { libc::prctl(libc::PR_SET_NAME, name) } {
        0 => 0,
        _ => std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Opens a new pseudoterminal: its two sides, and if wanted its path. Returns -1 and sets `errno` if that fails.
#[unsafe(no_mangle)]
extern "C" fn openpty(
    amaster: *mut c_int,
    aslave: *mut c_int,
    name: *mut c_char,
    termios: *const libc::termios,
    winsize: *const libc::winsize,
) -> c_int {
    const FLAGS: c_int = libc::O_RDWR | libc::O_NOCTTY;
    // SAFETY: the path ends with a null byte.
    let master = unsafe { libc::open(c"/dev/ptmx".as_ptr(), FLAGS) };
    if master < 0 {
        return -1;
    }
    let mut number: c_int = 0;
    let mut path = [0; 20];
    // SAFETY: both requests read or write one integer.
    let unlocked = unsafe {
        libc::ioctl(master, libc::TIOCSPTLCK, &raw mut number) == 0
            && libc::ioctl(master, libc::TIOCGPTN, &raw mut number) == 0
    };
    let slave = match unlocked && write!(&mut path[..19], "/dev/pts/{number}").is_ok() {
        // SAFETY: the path ends with a null byte, because at most the bytes before the last one were written.
        true => unsafe { libc::open(path.as_ptr().cast(), FLAGS) },
        false => -1,
    };
    if slave < 0 {
        let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        // SAFETY: the descriptor is ours, and `errno` is this thread's.
        unsafe {
            libc::close(master);
            *libc::__errno_location() = error;
        }
        return -1;
    }
    // SAFETY: the caller passes places for the two descriptors, and for each other argument null, a structure or, for
    // the name, a buffer that is large enough for every name, which are 20 bytes in musl.
    unsafe {
        if !name.is_null() {
            name.copy_from_nonoverlapping(path.as_ptr().cast(), path.len());
        }
        if !termios.is_null() {
            libc::tcsetattr(slave, libc::TCSANOW, termios);
        }
        if !winsize.is_null() {
            libc::ioctl(slave, libc::TIOCSWINSZ, winsize);
        }
        *amaster = master;
        *aslave = slave;
    }
    0
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::os::fd::FromRawFd as _;

    use super::*;

    #[test]
    fn a_thread_gets_its_name_and_one_that_is_too_long_is_an_error() {
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        std::thread::scope(|scope| {
            let named = std::thread::Builder::new().name("host-paths".to_owned());
            assert_eq!(named.spawn_scoped(scope, name).unwrap().join().unwrap(), "host-paths\n");
            let set = |text: &CStr| {
                // SAFETY: the function has no requirements.
                pthread_setname_np(unsafe { libc::pthread_self() }, text.as_ptr())
            };
            scope.spawn(move || {
                assert_eq!((set(c"fifteen-letters"), name().as_str()), (0, "fifteen-letters\n"));
                assert_eq!((set(c"sixteen--letters"), name().as_str()), (libc::ERANGE, "fifteen-letters\n"));
            });
        });
    }

    #[test]
    fn a_pseudoterminal_has_its_path_its_size_and_two_sides() {
        let (mut master, mut slave, mut path) = (-1, -1, [0; 20]);
        let size = libc::winsize { ws_row: 24, ws_col: 81, ws_xpixel: 0, ws_ypixel: 0 };
        let opened =
            openpty(&raw mut master, &raw mut slave, path.as_mut_ptr(), std::ptr::null(), &raw const size);
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both descriptors were opened for this test.
        let (mut master, mut slave) = unsafe { (File::from_raw_fd(master), File::from_raw_fd(slave)) };
        slave.write_all(b"to the master").unwrap();
        let mut bytes = [0; 13];
        master.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"to the master");
        // SAFETY: the path ends with a null byte.
        let path = unsafe { CStr::from_ptr(path.as_ptr()) }.to_str().unwrap();
        let number = path.strip_prefix("/dev/pts/").expect(path);
        assert!(number.parse::<u32>().is_ok(), "{path}");
        assert!(std::path::Path::new(path).exists(), "{path}");
        let mut found = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the request writes one structure.
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&master), libc::TIOCGWINSZ, &raw mut found) };
        assert_eq!((found.ws_row, found.ws_col), (24, 81));
    }
}
