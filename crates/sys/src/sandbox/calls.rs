//! The system calls of each group.
//!
//! The list for every job is made like systemd's `@system-service` (systemd.exec(5)): what a service
//! does with memory, files, sockets, threads, signals and time. It is wider than what a job makes
//! today, so that a new version of the C library does not break it. It leaves out what a service has
//! no need of and an attacker has: other processes' memory, namespaces, mounts, modules, kernel
//! images, keyrings, BPF, io_uring, the clock, and changes of the process's own user.

use libc::c_long;

use super::Calls;

// === impl Calls ===

impl Calls {
    pub(super) fn calls(self) -> &'static [c_long] {
        match self {
            Self::Execute => &[libc::SYS_execve, libc::SYS_execveat],
            Self::Bpf => &[libc::SYS_bpf, libc::SYS_perf_event_open],
            Self::EnterNamespaces => &[libc::SYS_setns],
            Self::BorrowDescriptors => &[libc::SYS_pidfd_open, libc::SYS_pidfd_getfd],
        }
    }
}

macro_rules! calls {
    ($($name:ident)*; x86_64: $($old:ident)*) => {
        /// The system calls that every job may make, without clone, whose flags are restricted.
        pub(super) const EVERY_JOB: &[c_long] = &[
            $(libc::$name,)*
            // futex_wake, futex_wait, futex_requeue and mseal, which the libc crate does not name yet; calls
            // as new as these have one number on all architectures.
            454, 455, 456, 462,
            // uretprobe, which the kernel has a process call whose functions somebody traces (Linux 6.11).
            #[cfg(target_arch = "x86_64")]
            335,
            // Calls that newer architectures have no more.
            $(#[cfg(target_arch = "x86_64")] libc::$old,)*
        ];
    };
}

calls! {
    // Memory.
    SYS_brk SYS_madvise SYS_membarrier SYS_memfd_create SYS_mincore SYS_mlock SYS_mlock2 SYS_mlockall SYS_mmap SYS_mprotect
    SYS_mremap SYS_msync SYS_munlock SYS_munlockall SYS_munmap SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_getrandom
    SYS_get_mempolicy
    // Threads and processes.
    SYS_clone3 SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_set_tid_address SYS_set_robust_list SYS_get_robust_list
    SYS_rseq SYS_futex SYS_futex_waitv SYS_getpid SYS_getppid SYS_gettid
    SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getresuid SYS_getresgid
    SYS_getgroups SYS_capget SYS_capset SYS_prctl SYS_getrusage SYS_times SYS_prlimit64 SYS_getrlimit SYS_setrlimit
    SYS_getpriority SYS_setpriority SYS_sched_yield SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getattr
    SYS_sched_setattr SYS_sched_getparam SYS_sched_setparam SYS_sched_getscheduler SYS_sched_setscheduler
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_getcpu SYS_uname SYS_sysinfo
    SYS_restart_syscall
    // Signals.
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigpending SYS_rt_sigsuspend SYS_rt_sigtimedwait
    SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_sigaltstack SYS_kill SYS_tgkill SYS_tkill SYS_signalfd4 SYS_pidfd_send_signal
    // Time.
    SYS_nanosleep SYS_clock_nanosleep SYS_clock_gettime SYS_clock_getres SYS_gettimeofday SYS_setitimer SYS_getitimer
    SYS_timer_create SYS_timer_delete SYS_timer_getoverrun SYS_timer_gettime SYS_timer_settime SYS_timerfd_create
    SYS_timerfd_gettime SYS_timerfd_settime
    // Files.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_preadv2 SYS_pwritev SYS_pwritev2
    SYS_openat SYS_openat2 SYS_close SYS_close_range SYS_lseek SYS_fstat SYS_newfstatat SYS_statx SYS_statfs SYS_fstatfs
    SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_renameat SYS_renameat2
    SYS_unlinkat SYS_mkdirat SYS_linkat SYS_symlinkat SYS_fchmod SYS_fchmodat SYS_fchmodat2 SYS_fchown SYS_fchownat
    SYS_ftruncate SYS_truncate SYS_fallocate SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_fadvise64 SYS_readahead SYS_flock
    SYS_fcntl SYS_ioctl SYS_dup SYS_dup3 SYS_pipe2 SYS_splice SYS_tee SYS_vmsplice SYS_sendfile SYS_copy_file_range SYS_umask
    SYS_utimensat SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_inotify_init1
    SYS_inotify_add_watch SYS_inotify_rm_watch
    // Sockets and events.
    SYS_socket SYS_socketpair SYS_bind SYS_listen SYS_accept SYS_accept4 SYS_connect SYS_getsockname SYS_getpeername
    SYS_shutdown SYS_getsockopt SYS_setsockopt SYS_sendto SYS_sendmsg SYS_sendmmsg SYS_recvfrom SYS_recvmsg SYS_recvmmsg
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2;
    x86_64: SYS_arch_prctl SYS_open SYS_creat SYS_stat SYS_lstat SYS_access SYS_readlink SYS_getdents SYS_rename SYS_unlink
    SYS_mkdir SYS_rmdir SYS_link SYS_symlink SYS_chmod SYS_chown SYS_lchown SYS_dup2 SYS_pipe SYS_poll SYS_select
    SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_signalfd SYS_inotify_init SYS_fork SYS_vfork SYS_getpgrp SYS_pause
    SYS_alarm SYS_time SYS_utimes SYS_futimesat
}
