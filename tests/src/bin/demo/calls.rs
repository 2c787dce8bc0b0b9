//! System calls that a container may or may not make: the steps `calls` and `realtime`.

use std::io;

use libc::{c_long, syscall};

/// Makes system calls that need no privilege, and prints the result of each: `ok`, or the number of the error.
pub(crate) fn calls() {
    const NONE: usize = 0;
    const SESSION_KEYRING: c_long = -3;
    let print = |name: &str, result: c_long| match result {
        0.. => println!("{name}: ok"),
        _ => println!("{name}: {}", io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    };
    // SAFETY: the calls have no pointers, or null pointers.
    unsafe {
        print("getpid", syscall(libc::SYS_getpid));
        print("keyctl", syscall(libc::SYS_keyctl, 0, SESSION_KEYRING, 0));
        print("clone3", syscall(libc::SYS_clone3, NONE, NONE));
        print("io_uring_setup", syscall(libc::SYS_io_uring_setup, 1, NONE));
        print("personality", syscall(libc::SYS_personality, 0x0020_0000));
        print("socket inet", syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0));
        print("socket vsock", syscall(libc::SYS_socket, libc::AF_VSOCK, libc::SOCK_STREAM, 0));
        print("unknown", syscall(900));
    }
    #[cfg(target_arch = "x86_64")]
    for (name, number, argument) in
        [("getpid", 20, 0), ("keyctl", 288, 0), ("io_uring_setup", 425, 1), ("unknown", 900, 0)]
    {
        match of_i386(number, argument) {
            0.. => println!("i386 {name}: ok"),
            error => println!("i386 {name}: {}", -error),
        }
    }
    // SAFETY: no pointers. Last, because it changes the process.
    print("unshare", unsafe { syscall(libc::SYS_unshare, libc::CLONE_NEWUSER) });
}

/// Makes a system call of 32-bit x86, with up to one argument and zeros.
#[cfg(target_arch = "x86_64")]
fn of_i386(number: i32, argument: i32) -> i32 {
    let mut result = number;
    // SAFETY: the calls have null pointers. The kernel changes r8 to r11 at most.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {argument}",
            "int 0x80",
            "xchg rbx, {argument}",
            argument = inout(reg) i64::from(argument) => _,
            inout("eax") result,
            inout("ecx") 0 => _,
            inout("edx") 0 => _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    result
}

/// Chooses a real-time priority, and prints the result: `ok`, or the number of the error.
pub(crate) fn realtime(priority: libc::c_int) {
    // SAFETY: the kernel reads one integer (`struct sched_param`). The C library does not make the call.
    let result = unsafe { syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority) };
    match result {
        0.. => println!("realtime {priority}: ok"),
        _ => println!("realtime {priority}: {}", io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}
