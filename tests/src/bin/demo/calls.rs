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
    #[cfg(target_arch = "aarch64")]
    of_arm();
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

/// Runs a program of 32-bit ARM that makes system calls, and prints the result of each as [`calls`] does, after `arm`. If
/// the processor or the kernel runs no such programs, prints `arm exec:` and the number of the error.
#[cfg(target_arch = "aarch64")]
fn of_arm() {
    use std::ffi::OsString;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    const CALLS: [(&str, [u32; 3]); 9] = [
        ("getpid", [20, 0, 0]),
        // Each program calls it when it starts. Its number is one that only ARM has.
        ("set_tls", [0xf_0005, 0, 0]),
        ("keyctl", [311, 0, -3_i32 as u32]),
        ("clone3", [435, 0, 0]),
        ("io_uring_setup", [425, 1, 0]),
        ("personality", [136, 0x0020_0000, 0]),
        ("socket inet", [281, 2, 1]),
        ("unknown", [900, 0, 0]),
        ("unshare", [337, 0x1000_0000, 0]),
    ];
    #[rustfmt::skip]
    const CODE: [u32; 26] = [
        0xe28f_8060, // add r8, pc, #96       the table after the code
        0xe24d_d040, // sub sp, sp, #64
        0xe1a0_900d, // mov r9, sp
        0xe498_7004, // ldr r7, [r8], #4      each call: its number, and two arguments
        0xe377_0001, // cmn r7, #1
        0x0a00_000b, // beq +11               to the end of the table
        0xe498_0004, // ldr r0, [r8], #4
        0xe498_1004, // ldr r1, [r8], #4
        0xe3a0_2000, // mov r2, #0
        0xe3a0_3000, // mov r3, #0
        0xe3a0_4000, // mov r4, #0
        0xe3a0_5000, // mov r5, #0
        0xef00_0000, // svc #0
        0xe350_0000, // cmp r0, #0
        0xa3a0_0000, // movge r0, #0
        0xe260_0000, // rsb r0, r0, #0
        0xe4c9_0001, // strb r0, [r9], #1     the number of the error, or 0
        0xeaff_fff0, // b -16                 to the next call
        0xe3a0_0001, // mov r0, #1            write(1, sp, r9 - sp)
        0xe1a0_100d, // mov r1, sp
        0xe049_200d, // sub r2, r9, sp
        0xe3a0_7004, // mov r7, #4
        0xef00_0000, // svc #0
        0xe3a0_0000, // mov r0, #0            exit(0)
        0xe3a0_7001, // mov r7, #1
        0xef00_0000, // svc #0
    ];
    const START: u32 = 0x1_0000;
    const HEADERS: u32 = 84;
    let table = CALLS.iter().flat_map(|(_, call)| *call).chain([u32::MAX]);
    let words: Vec<u32> = CODE.into_iter().chain(table).collect();
    let size = HEADERS + 4 * words.len() as u32;
    // The headers of an ELF file with 32 bits, and of its only segment, which is read and executed.
    let mut program = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x28\0".to_vec();
    for word in [1, START + HEADERS, 52, 0, 0x0500_0000, 52 | 32 << 16, 1, 0] {
        program.extend(u32::to_le_bytes(word));
    }
    for word in [1, 0, START, START, size, size, 5, 0x1000].into_iter().chain(words) {
        program.extend(u32::to_le_bytes(word));
    }
    let file = nix::sys::memfd::memfd_create(c"arm", nix::sys::memfd::MemFdCreateFlag::empty());
    let mut file = std::fs::File::from(file.expect("the kernel has files in memory"));
    file.write_all(&program).expect("memory suffices");
    let path = OsString::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    match std::process::Command::new(path).output() {
        Ok(output) => {
            for ((name, _), result) in CALLS.iter().zip(output.stdout) {
                match result {
                    0 => println!("arm {name}: ok"),
                    error => println!("arm {name}: {error}"),
                }
            }
        }
        Err(error) => println!("arm exec: {}", error.raw_os_error().unwrap_or(0)),
    }
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
