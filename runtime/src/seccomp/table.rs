//! The system calls of each processor by name, and what containerd's default profile does with them.
//!
//! The names are those of libseccomp and of profiles. The numbers are those of the kernel's headers, as in
//! `golang.org/x/sys/unix` 0.40; the rules those of `seccomp_default.go` of containerd 2.4.2.

/// The number of names.
pub(super) const COUNT: usize = 487;

/// Marks a name that a processor does not have.
const NONE: u16 = 0xffff;

/// The numbers of a processor's system calls, in the order of [`NAMES`].
pub(super) type Numbers = [u16; COUNT];

/// The number at `index`, if the processor has that system call. ARM has some from 0xf0000 on.
pub(super) fn number(numbers: &Numbers, index: usize) -> Option<u32> {
    match numbers[index] {
        NONE => None,
        private @ 0xf000.. => Some(0xf_0000 | u32::from(private & 0xfff)),
        number => Some(number.into()),
    }
}

/// The index of a name in the tables.
pub(super) fn index_of(name: &str) -> Option<usize> {
    NAMES.split(' ').position(|known| known == name)
}

/// The names, sorted.
pub(super) const NAMES: &str = "\
    _llseek _newselect _sysctl accept accept4 access acct add_key adjtimex afs_syscall alarm arch_prctl \
    arch_specific_syscall arm_fadvise64_64 arm_sync_file_range bdflush bind bpf break breakpoint brk \
    cacheflush cachestat capget capset chdir chmod chown chown32 chroot clock_adjtime clock_adjtime64 \
    clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep \
    clock_nanosleep_time64 clock_settime clock_settime64 clone clone3 close close_range connect \
    copy_file_range creat create_module delete_module dup dup2 dup3 epoll_create epoll_create1 \
    epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve \
    execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_init \
    fanotify_mark fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync \
    fgetxattr file_getattr file_setattr finit_module flistxattr flock fork fremovexattr fsconfig \
    fsetxattr fsmount fsopen fspick fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftime ftruncate \
    ftruncate64 futex futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat \
    get_kernel_syms get_mempolicy get_robust_list get_thread_area get_tls getcpu getcwd getdents \
    getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer \
    getpeername getpgid getpgrp getpid getpmsg getppid getpriority getrandom getresgid getresgid32 \
    getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid \
    getuid32 getxattr getxattrat gtty idle init_module inotify_add_watch inotify_init inotify_init1 \
    inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup \
    io_submit io_uring_enter io_uring_register io_uring_setup ioctl ioperm iopl ioprio_get ioprio_set \
    ipc kcmp kexec_file_load kexec_load keyctl kill landlock_add_rule landlock_create_ruleset \
    landlock_restrict_self lchown lchown32 lgetxattr link linkat listen listmount listxattr listxattrat \
    llistxattr lock lookup_dcookie lremovexattr lseek lsetxattr lsm_get_self_attr lsm_list_modules \
    lsm_set_self_attr lstat lstat64 madvise map_shadow_stack mbind membarrier memfd_create memfd_secret \
    migrate_pages mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap mmap2 modify_ldt mount \
    mount_setattr move_mount move_pages mprotect mpx mq_getsetattr mq_notify mq_open mq_timedreceive \
    mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv \
    msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat nfsservctl nice \
    oldfstat oldlstat oldolduname oldstat olduname open open_by_handle_at open_tree open_tree_attr \
    openat openat2 pause pciconfig_iobase pciconfig_read pciconfig_write perf_event_open personality \
    pidfd_getfd pidfd_open pidfd_send_signal pipe pipe2 pivot_root pkey_alloc pkey_free pkey_mprotect \
    poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_madvise process_mrelease \
    process_vm_readv process_vm_writev prof profil pselect6 pselect6_time64 ptrace putpmsg pwrite64 \
    pwritev pwritev2 query_module quotactl quotactl_fd read readahead readdir readlink readlinkat readv \
    reboot recv recvfrom recvmmsg recvmmsg_time64 recvmsg remap_file_pages removexattr removexattrat \
    rename renameat renameat2 request_key restart_syscall riscv_flush_icache riscv_hwprobe rmdir rseq \
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend \
    rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max \
    sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler \
    sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam \
    sched_setscheduler sched_yield seccomp security select semctl semget semop semtimedop \
    semtimedop_time64 send sendfile sendfile64 sendmmsg sendmsg sendto set_mempolicy \
    set_mempolicy_home_node set_robust_list set_thread_area set_tid_address set_tls setdomainname \
    setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 sethostname setitimer \
    setns setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid \
    setreuid32 setrlimit setsid setsockopt settimeofday setuid setuid32 setxattr setxattrat sgetmask \
    shmat shmctl shmdt shmget shutdown sigaction sigaltstack signal signalfd signalfd4 sigpending \
    sigprocmask sigreturn sigsuspend socket socketcall socketpair splice ssetmask stat stat64 statfs \
    statfs64 statmount statx stime stty swapoff swapon symlink symlinkat sync sync_file_range \
    sync_file_range2 syncfs sysfs sysinfo syslog tee tgkill time timer_create timer_delete \
    timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create \
    timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64 \
    tuxcall ugetrlimit ulimit umask umount umount2 uname unlink unlinkat unshare uprobe uretprobe \
    uselib userfaultfd usr26 usr32 ustat utime utimensat utimensat_time64 utimes vfork vhangup vm86 \
    vm86old vmsplice vserver wait4 waitid waitpid write writev";

/// The action of the default profile for each name: `a` allows it, `-` does not, a capital letter allows it with a
/// capability ([`super::with_capability`]); `s`, `p`, `c` and `3` are rules of their own.
pub(super) const RULES: &[u8; COUNT] = b"\
    aa-aaaA-a-aa-aa-aB-aaaaaaaaaaCaaaaaaaaDDc3aaaaa-EaaaaaaaaaaaaaaaaaaaaaaFaaaaaaaaaaaa--EaaaaFaFFFaaaa\
    aa-aaaaaaaaa-Gaa-aaaaaaaaaaaaaaaaa-aaaaaaaaaaaaaaaaaa--Eaaaaaaaaaaa---aHHaaaI---aaaaaaaaaaaaaa-Faaaa\
    aaaaaaGaaa-aaaaaaaaaaaFFF-a-aaaaaaaaaaaaaaaaaaaaa-------aJF-aaa---KpIaaaa-aaaaaaaaaaaIaaa--aaa-aaa-F\
    Faa-aaaLaaaaaaaaaaa-aaaaaaaaaaaaaaaaaaaaaaaaaaaa-aaaaaaaaaaaaGGaaaaFaaaaaaaaFaFaaaaaaaaaaaaaDaaaa-aa\
    aaa-a-aa-aa-saaa-aaaaaaD---aaaaaa-aMaaaaaaaaaaaaaaaaaaa-a-aFFaaaF-a-----aaaaaN--a-aaaaa";

/// The names of the system calls that x32 numbers differently, from 512 on.
pub(super) const X32: &str = "\
    rt_sigaction rt_sigreturn ioctl readv writev recvfrom sendmsg recvmsg execve ptrace rt_sigpending \
    rt_sigtimedwait rt_sigqueueinfo sigaltstack timer_create mq_notify kexec_load waitid \
    set_robust_list get_robust_list vmsplice move_pages preadv pwritev rt_tgsigqueueinfo recvmmsg \
    sendmmsg process_vm_readv process_vm_writev setsockopt getsockopt io_setup io_submit execveat \
    preadv2 pwritev2";

/// x86-64.
#[rustfmt::skip]
pub(super) const X86_64: &Numbers = &[
    0xffff, 0xffff, 156, 43, 288, 21, 163, 248, 159, 183, 37, 158, 0xffff, 0xffff, 0xffff, 0xffff, 49, 321,
    0xffff, 0xffff, 12, 0xffff, 451, 125, 126, 80, 90, 92, 0xffff, 161, 305, 0xffff, 229, 0xffff, 228,
    0xffff, 230, 0xffff, 227, 0xffff, 56, 435, 3, 436, 42, 326, 85, 174, 176, 32, 33, 292, 213, 291, 233,
    214, 281, 441, 232, 215, 284, 290, 59, 322, 60, 231, 269, 439, 221, 0xffff, 285, 300, 301, 81, 91, 268,
    452, 93, 0xffff, 260, 72, 0xffff, 75, 193, 468, 469, 313, 196, 73, 57, 199, 431, 190, 432, 430, 433, 5,
    0xffff, 0xffff, 138, 0xffff, 74, 0xffff, 77, 0xffff, 202, 456, 0xffff, 455, 449, 454, 261, 177, 239,
    274, 211, 0xffff, 309, 79, 78, 217, 108, 0xffff, 107, 0xffff, 104, 0xffff, 115, 0xffff, 36, 52, 121,
    111, 39, 181, 110, 140, 318, 120, 0xffff, 118, 0xffff, 97, 98, 124, 51, 55, 186, 96, 102, 0xffff, 191,
    464, 0xffff, 0xffff, 175, 254, 253, 294, 255, 210, 207, 208, 333, 0xffff, 206, 209, 426, 427, 425, 16,
    173, 172, 252, 251, 0xffff, 312, 320, 246, 250, 62, 445, 444, 446, 94, 0xffff, 192, 86, 265, 50, 458,
    194, 465, 195, 0xffff, 212, 198, 8, 189, 459, 461, 460, 6, 0xffff, 28, 453, 237, 324, 319, 447, 256, 27,
    83, 258, 133, 259, 149, 325, 151, 9, 0xffff, 154, 165, 442, 429, 279, 10, 0xffff, 245, 244, 240, 243,
    0xffff, 242, 0xffff, 241, 25, 462, 71, 68, 70, 69, 26, 150, 152, 11, 303, 35, 262, 180, 0xffff, 0xffff,
    0xffff, 0xffff, 0xffff, 0xffff, 2, 304, 428, 467, 257, 437, 34, 0xffff, 0xffff, 0xffff, 298, 135, 438,
    434, 424, 22, 293, 155, 330, 331, 329, 7, 271, 0xffff, 157, 17, 295, 327, 302, 440, 448, 310, 311,
    0xffff, 0xffff, 270, 0xffff, 101, 182, 18, 296, 328, 178, 179, 443, 0, 187, 0xffff, 89, 267, 19, 169,
    0xffff, 45, 299, 0xffff, 47, 216, 197, 466, 82, 264, 316, 249, 219, 0xffff, 0xffff, 84, 334, 13, 127,
    14, 129, 15, 130, 128, 0xffff, 297, 146, 147, 204, 315, 143, 145, 148, 0xffff, 203, 314, 142, 144, 24,
    317, 185, 23, 66, 64, 65, 220, 0xffff, 0xffff, 40, 0xffff, 307, 46, 44, 238, 450, 273, 205, 218, 0xffff,
    171, 123, 0xffff, 122, 0xffff, 106, 0xffff, 116, 0xffff, 170, 38, 308, 109, 141, 114, 0xffff, 119,
    0xffff, 117, 0xffff, 113, 0xffff, 160, 112, 54, 164, 105, 0xffff, 188, 463, 0xffff, 30, 31, 67, 29, 48,
    0xffff, 131, 0xffff, 282, 289, 0xffff, 0xffff, 0xffff, 0xffff, 41, 0xffff, 53, 275, 0xffff, 4, 0xffff,
    137, 0xffff, 457, 332, 0xffff, 0xffff, 168, 167, 88, 266, 162, 277, 0xffff, 306, 139, 99, 103, 276, 234,
    201, 222, 226, 225, 224, 0xffff, 223, 0xffff, 283, 287, 0xffff, 286, 0xffff, 100, 200, 76, 0xffff, 184,
    0xffff, 0xffff, 95, 0xffff, 166, 63, 87, 263, 272, 336, 335, 134, 323, 0xffff, 0xffff, 136, 132, 280,
    0xffff, 235, 58, 153, 0xffff, 0xffff, 278, 236, 61, 247, 0xffff, 1, 20,
];

/// 32-bit x86.
#[rustfmt::skip]
pub(super) const I386: &Numbers = &[
    140, 142, 149, 0xffff, 364, 33, 51, 286, 124, 137, 27, 384, 0xffff, 0xffff, 0xffff, 134, 361, 357, 17,
    0xffff, 45, 0xffff, 451, 184, 185, 12, 15, 182, 212, 61, 343, 405, 266, 406, 265, 403, 267, 407, 264,
    404, 120, 435, 6, 436, 362, 377, 8, 127, 129, 41, 63, 330, 254, 329, 255, 0xffff, 319, 441, 256, 0xffff,
    323, 328, 11, 358, 1, 252, 307, 439, 250, 272, 324, 338, 339, 133, 94, 306, 452, 95, 207, 298, 55, 221,
    148, 231, 468, 469, 350, 234, 143, 2, 237, 431, 228, 432, 430, 433, 108, 197, 300, 100, 269, 118, 35,
    93, 194, 240, 456, 422, 455, 449, 454, 299, 130, 275, 312, 244, 0xffff, 318, 183, 141, 220, 50, 202, 49,
    201, 47, 200, 80, 205, 105, 368, 132, 65, 20, 188, 64, 96, 355, 171, 211, 165, 209, 76, 77, 147, 367,
    365, 224, 78, 24, 199, 229, 464, 32, 112, 128, 292, 291, 332, 293, 249, 246, 247, 385, 416, 245, 248,
    426, 427, 425, 54, 101, 110, 290, 289, 117, 349, 0xffff, 283, 288, 37, 445, 444, 446, 16, 198, 230, 9,
    303, 363, 458, 232, 465, 233, 53, 253, 236, 19, 227, 459, 461, 460, 107, 196, 219, 453, 274, 375, 356,
    447, 294, 218, 39, 296, 14, 297, 150, 376, 152, 90, 192, 123, 21, 442, 429, 317, 125, 56, 282, 281, 277,
    280, 419, 279, 418, 278, 163, 462, 402, 399, 401, 400, 144, 151, 153, 91, 341, 162, 0xffff, 169, 34, 28,
    84, 59, 18, 109, 5, 342, 428, 467, 295, 437, 29, 0xffff, 0xffff, 0xffff, 336, 136, 438, 434, 424, 42,
    331, 217, 381, 382, 380, 168, 309, 414, 172, 180, 333, 378, 340, 440, 448, 347, 348, 44, 98, 308, 413,
    26, 189, 181, 334, 379, 167, 131, 443, 3, 225, 89, 85, 305, 145, 88, 0xffff, 371, 337, 417, 372, 257,
    235, 466, 38, 302, 353, 287, 0, 0xffff, 0xffff, 40, 386, 174, 176, 175, 178, 173, 179, 177, 421, 335,
    159, 160, 242, 352, 155, 157, 161, 423, 241, 351, 154, 156, 158, 354, 0xffff, 82, 394, 393, 0xffff,
    0xffff, 420, 0xffff, 187, 239, 345, 370, 369, 276, 450, 311, 243, 258, 0xffff, 121, 139, 216, 138, 215,
    46, 214, 81, 206, 74, 104, 346, 57, 97, 71, 204, 170, 210, 164, 208, 70, 203, 75, 66, 366, 79, 23, 213,
    226, 463, 68, 397, 396, 398, 395, 373, 67, 186, 48, 321, 327, 73, 126, 119, 72, 359, 102, 360, 313, 69,
    106, 195, 99, 268, 457, 383, 25, 31, 115, 87, 83, 304, 36, 314, 0xffff, 344, 135, 116, 103, 315, 270,
    13, 259, 263, 262, 261, 408, 260, 409, 322, 326, 410, 325, 411, 43, 238, 92, 193, 0xffff, 191, 58, 60,
    22, 52, 122, 10, 301, 310, 0xffff, 0xffff, 86, 374, 0xffff, 0xffff, 62, 30, 320, 412, 271, 190, 111,
    166, 113, 316, 273, 114, 284, 7, 4, 146,
];

/// 64-bit ARM.
#[rustfmt::skip]
pub(super) const AARCH64: &Numbers = &[
    0xffff, 0xffff, 0xffff, 202, 242, 0xffff, 89, 217, 171, 0xffff, 0xffff, 0xffff, 244, 0xffff, 0xffff,
    0xffff, 200, 280, 0xffff, 0xffff, 214, 0xffff, 451, 90, 91, 49, 0xffff, 0xffff, 0xffff, 51, 266, 0xffff,
    114, 0xffff, 113, 0xffff, 115, 0xffff, 112, 0xffff, 220, 435, 57, 436, 203, 285, 0xffff, 0xffff, 106,
    23, 0xffff, 24, 0xffff, 20, 21, 0xffff, 22, 441, 0xffff, 0xffff, 0xffff, 19, 221, 281, 93, 94, 48, 439,
    223, 0xffff, 47, 262, 263, 50, 52, 53, 452, 55, 0xffff, 54, 25, 0xffff, 83, 10, 468, 469, 273, 13, 32,
    0xffff, 16, 431, 7, 432, 430, 433, 80, 0xffff, 0xffff, 44, 0xffff, 82, 0xffff, 46, 0xffff, 98, 456,
    0xffff, 455, 449, 454, 0xffff, 0xffff, 236, 100, 0xffff, 0xffff, 168, 17, 0xffff, 61, 177, 0xffff, 175,
    0xffff, 176, 0xffff, 158, 0xffff, 102, 205, 155, 0xffff, 172, 0xffff, 173, 141, 278, 150, 0xffff, 148,
    0xffff, 163, 165, 156, 204, 209, 178, 169, 174, 0xffff, 8, 464, 0xffff, 0xffff, 105, 27, 0xffff, 26, 28,
    3, 1, 4, 292, 0xffff, 0, 2, 426, 427, 425, 29, 0xffff, 0xffff, 31, 30, 0xffff, 272, 294, 104, 219, 129,
    445, 444, 446, 0xffff, 0xffff, 9, 0xffff, 37, 201, 458, 11, 465, 12, 0xffff, 18, 15, 62, 6, 459, 461,
    460, 0xffff, 0xffff, 233, 453, 235, 283, 279, 447, 238, 232, 0xffff, 34, 0xffff, 33, 228, 284, 230, 222,
    0xffff, 0xffff, 40, 442, 429, 239, 226, 0xffff, 185, 184, 180, 183, 0xffff, 182, 0xffff, 181, 216, 462,
    187, 186, 188, 189, 227, 229, 231, 215, 264, 101, 79, 42, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff,
    0xffff, 0xffff, 265, 428, 467, 56, 437, 0xffff, 0xffff, 0xffff, 0xffff, 241, 92, 438, 434, 424, 0xffff,
    59, 41, 289, 290, 288, 0xffff, 73, 0xffff, 167, 67, 69, 286, 261, 440, 448, 270, 271, 0xffff, 0xffff,
    72, 0xffff, 117, 0xffff, 68, 70, 287, 0xffff, 60, 443, 63, 213, 0xffff, 0xffff, 78, 65, 142, 0xffff,
    207, 243, 0xffff, 212, 234, 14, 466, 0xffff, 38, 276, 218, 128, 0xffff, 0xffff, 0xffff, 293, 134, 136,
    135, 138, 139, 133, 137, 0xffff, 240, 125, 126, 123, 275, 121, 120, 127, 0xffff, 122, 274, 118, 119,
    124, 277, 0xffff, 0xffff, 191, 190, 193, 192, 0xffff, 0xffff, 71, 0xffff, 269, 211, 206, 237, 450, 99,
    0xffff, 96, 0xffff, 162, 152, 0xffff, 151, 0xffff, 144, 0xffff, 159, 0xffff, 161, 103, 268, 154, 140,
    143, 0xffff, 149, 0xffff, 147, 0xffff, 145, 0xffff, 164, 157, 208, 170, 146, 0xffff, 5, 463, 0xffff,
    196, 195, 197, 194, 210, 0xffff, 132, 0xffff, 0xffff, 74, 0xffff, 0xffff, 0xffff, 0xffff, 198, 0xffff,
    199, 76, 0xffff, 0xffff, 0xffff, 43, 0xffff, 457, 291, 0xffff, 0xffff, 225, 224, 0xffff, 36, 81, 84,
    0xffff, 267, 0xffff, 179, 116, 77, 131, 0xffff, 107, 111, 109, 108, 0xffff, 110, 0xffff, 85, 87, 0xffff,
    86, 0xffff, 153, 130, 45, 0xffff, 0xffff, 0xffff, 0xffff, 166, 0xffff, 39, 160, 0xffff, 35, 97, 0xffff,
    0xffff, 0xffff, 282, 0xffff, 0xffff, 0xffff, 0xffff, 88, 0xffff, 0xffff, 0xffff, 58, 0xffff, 0xffff, 75,
    0xffff, 260, 95, 0xffff, 64, 66,
];

/// 32-bit ARM.
#[rustfmt::skip]
pub(super) const ARM: &Numbers = &[
    140, 142, 149, 285, 366, 33, 51, 309, 124, 0xffff, 0xffff, 0xffff, 0xffff, 270, 341, 134, 282, 386,
    0xffff, 0xf001, 45, 0xf002, 451, 184, 185, 12, 15, 182, 212, 61, 372, 405, 264, 406, 263, 403, 265, 407,
    262, 404, 120, 435, 6, 436, 283, 391, 8, 0xffff, 129, 41, 63, 358, 250, 357, 251, 0xffff, 346, 441, 252,
    0xffff, 351, 356, 11, 387, 1, 248, 334, 439, 0xffff, 0xffff, 352, 367, 368, 133, 94, 333, 452, 95, 207,
    325, 55, 221, 148, 231, 468, 469, 379, 234, 143, 2, 237, 431, 228, 432, 430, 433, 108, 197, 327, 100,
    267, 118, 0xffff, 93, 194, 240, 456, 422, 455, 449, 454, 326, 0xffff, 320, 339, 0xffff, 0xf006, 345,
    183, 141, 217, 50, 202, 49, 201, 47, 200, 80, 205, 105, 287, 132, 65, 20, 0xffff, 64, 96, 384, 171, 211,
    165, 209, 0xffff, 77, 147, 286, 295, 224, 78, 24, 199, 229, 464, 0xffff, 0xffff, 128, 317, 316, 360,
    318, 247, 244, 245, 399, 416, 243, 246, 426, 427, 425, 54, 0xffff, 0xffff, 315, 314, 0xffff, 378, 401,
    347, 311, 37, 445, 444, 446, 16, 198, 230, 9, 330, 284, 458, 232, 465, 233, 0xffff, 249, 236, 19, 227,
    459, 461, 460, 107, 196, 220, 453, 319, 389, 385, 0xffff, 400, 219, 39, 323, 14, 324, 150, 390, 152,
    0xffff, 192, 0xffff, 21, 442, 429, 344, 125, 0xffff, 279, 278, 274, 277, 419, 276, 418, 275, 163, 462,
    304, 303, 302, 301, 144, 151, 153, 91, 370, 162, 0xffff, 169, 34, 0xffff, 0xffff, 0xffff, 0xffff,
    0xffff, 5, 371, 428, 467, 322, 437, 29, 271, 272, 273, 364, 136, 438, 434, 424, 42, 359, 218, 395, 396,
    394, 168, 336, 414, 172, 180, 361, 392, 369, 440, 448, 376, 377, 0xffff, 0xffff, 335, 413, 26, 0xffff,
    181, 362, 393, 0xffff, 131, 443, 3, 225, 0xffff, 85, 332, 145, 88, 291, 292, 365, 417, 297, 253, 235,
    466, 38, 329, 382, 310, 0, 0xffff, 0xffff, 40, 398, 174, 176, 175, 178, 173, 179, 177, 421, 363, 159,
    160, 242, 381, 155, 157, 161, 423, 241, 380, 154, 156, 158, 383, 0xffff, 0xffff, 300, 299, 298, 312,
    420, 289, 187, 239, 374, 296, 290, 321, 450, 338, 0xffff, 256, 0xf005, 121, 139, 216, 138, 215, 46, 214,
    81, 206, 74, 104, 375, 57, 97, 71, 204, 170, 210, 164, 208, 70, 203, 75, 66, 294, 79, 23, 213, 226, 463,
    0xffff, 305, 308, 306, 307, 293, 67, 186, 0xffff, 349, 355, 73, 126, 119, 72, 281, 0xffff, 288, 340,
    0xffff, 106, 195, 99, 266, 457, 397, 0xffff, 0xffff, 115, 87, 83, 331, 36, 0xffff, 341, 373, 135, 116,
    103, 342, 268, 0xffff, 257, 261, 260, 259, 408, 258, 409, 350, 354, 410, 353, 411, 43, 238, 92, 193,
    0xffff, 191, 0xffff, 60, 0xffff, 52, 122, 10, 328, 337, 0xffff, 0xffff, 86, 388, 0xf003, 0xf004, 62,
    0xffff, 348, 412, 269, 190, 111, 0xffff, 0xffff, 343, 313, 114, 280, 0xffff, 4, 146,
];

/// 64-bit RISC-V.
#[rustfmt::skip]
pub(super) const RISCV64: &Numbers = &[
    0xffff, 0xffff, 0xffff, 202, 242, 0xffff, 89, 217, 171, 0xffff, 0xffff, 0xffff, 244, 0xffff, 0xffff,
    0xffff, 200, 280, 0xffff, 0xffff, 214, 0xffff, 451, 90, 91, 49, 0xffff, 0xffff, 0xffff, 51, 266, 0xffff,
    114, 0xffff, 113, 0xffff, 115, 0xffff, 112, 0xffff, 220, 435, 57, 436, 203, 285, 0xffff, 0xffff, 106,
    23, 0xffff, 24, 0xffff, 20, 21, 0xffff, 22, 441, 0xffff, 0xffff, 0xffff, 19, 221, 281, 93, 94, 48, 439,
    223, 0xffff, 47, 262, 263, 50, 52, 53, 452, 55, 0xffff, 54, 25, 0xffff, 83, 10, 468, 469, 273, 13, 32,
    0xffff, 16, 431, 7, 432, 430, 433, 80, 0xffff, 0xffff, 44, 0xffff, 82, 0xffff, 46, 0xffff, 98, 456,
    0xffff, 455, 449, 454, 0xffff, 0xffff, 236, 100, 0xffff, 0xffff, 168, 17, 0xffff, 61, 177, 0xffff, 175,
    0xffff, 176, 0xffff, 158, 0xffff, 102, 205, 155, 0xffff, 172, 0xffff, 173, 141, 278, 150, 0xffff, 148,
    0xffff, 163, 165, 156, 204, 209, 178, 169, 174, 0xffff, 8, 464, 0xffff, 0xffff, 105, 27, 0xffff, 26, 28,
    3, 1, 4, 292, 0xffff, 0, 2, 426, 427, 425, 29, 0xffff, 0xffff, 31, 30, 0xffff, 272, 294, 104, 219, 129,
    445, 444, 446, 0xffff, 0xffff, 9, 0xffff, 37, 201, 458, 11, 465, 12, 0xffff, 18, 15, 62, 6, 459, 461,
    460, 0xffff, 0xffff, 233, 453, 235, 283, 279, 447, 238, 232, 0xffff, 34, 0xffff, 33, 228, 284, 230, 222,
    0xffff, 0xffff, 40, 442, 429, 239, 226, 0xffff, 185, 184, 180, 183, 0xffff, 182, 0xffff, 181, 216, 462,
    187, 186, 188, 189, 227, 229, 231, 215, 264, 101, 79, 42, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff,
    0xffff, 0xffff, 265, 428, 467, 56, 437, 0xffff, 0xffff, 0xffff, 0xffff, 241, 92, 438, 434, 424, 0xffff,
    59, 41, 289, 290, 288, 0xffff, 73, 0xffff, 167, 67, 69, 286, 261, 440, 448, 270, 271, 0xffff, 0xffff,
    72, 0xffff, 117, 0xffff, 68, 70, 287, 0xffff, 60, 443, 63, 213, 0xffff, 0xffff, 78, 65, 142, 0xffff,
    207, 243, 0xffff, 212, 234, 14, 466, 0xffff, 0xffff, 276, 218, 128, 259, 258, 0xffff, 293, 134, 136,
    135, 138, 139, 133, 137, 0xffff, 240, 125, 126, 123, 275, 121, 120, 127, 0xffff, 122, 274, 118, 119,
    124, 277, 0xffff, 0xffff, 191, 190, 193, 192, 0xffff, 0xffff, 71, 0xffff, 269, 211, 206, 237, 450, 99,
    0xffff, 96, 0xffff, 162, 152, 0xffff, 151, 0xffff, 144, 0xffff, 159, 0xffff, 161, 103, 268, 154, 140,
    143, 0xffff, 149, 0xffff, 147, 0xffff, 145, 0xffff, 164, 157, 208, 170, 146, 0xffff, 5, 463, 0xffff,
    196, 195, 197, 194, 210, 0xffff, 132, 0xffff, 0xffff, 74, 0xffff, 0xffff, 0xffff, 0xffff, 198, 0xffff,
    199, 76, 0xffff, 0xffff, 0xffff, 43, 0xffff, 457, 291, 0xffff, 0xffff, 225, 224, 0xffff, 36, 81, 84,
    0xffff, 267, 0xffff, 179, 116, 77, 131, 0xffff, 107, 111, 109, 108, 0xffff, 110, 0xffff, 85, 87, 0xffff,
    86, 0xffff, 153, 130, 45, 0xffff, 0xffff, 0xffff, 0xffff, 166, 0xffff, 39, 160, 0xffff, 35, 97, 0xffff,
    0xffff, 0xffff, 282, 0xffff, 0xffff, 0xffff, 0xffff, 88, 0xffff, 0xffff, 0xffff, 58, 0xffff, 0xffff, 75,
    0xffff, 260, 95, 0xffff, 64, 66,
];
