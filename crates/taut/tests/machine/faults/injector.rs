//! Which calls of a job fail, and how.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use taut_sys_testing::faults::{self, Answer, Call, Calls, FileKind};

use crate::kills::Seed;

/// Errors that calls return as documented in their manual pages, and that a job can meet on a machine
/// whose memory, descriptors or disks are full. Those of reading and writing depend on the file.
const ERRORS: &[(i64, &[Errno])] = &[
    (
        libc::SYS_accept4,
        &[
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::CONNABORTED,
            Errno::INTR,
        ],
    ),
    (libc::SYS_bind, &[Errno::ADDRINUSE, Errno::NOMEM]),
    (libc::SYS_bpf, &[Errno::NOMEM, Errno::PERM]),
    (libc::SYS_clone, &[Errno::AGAIN, Errno::NOMEM]),
    (
        libc::SYS_connect,
        &[Errno::ADDRNOTAVAIL, Errno::NETUNREACH, Errno::CONNREFUSED],
    ),
    (
        libc::SYS_epoll_create1,
        &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
    ),
    (libc::SYS_epoll_ctl, &[Errno::NOMEM, Errno::NOSPC]),
    (libc::SYS_epoll_pwait, &[Errno::INTR]),
    (libc::SYS_epoll_pwait2, &[Errno::INTR]),
    (
        libc::SYS_eventfd2,
        &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
    ),
    (libc::SYS_fallocate, &[Errno::NOSPC, Errno::INTR]),
    (libc::SYS_fchmod, &[Errno::IO]),
    (libc::SYS_fdatasync, &[Errno::IO, Errno::NOSPC]),
    (libc::SYS_flock, &[Errno::NOLCK]),
    (libc::SYS_fsync, &[Errno::IO, Errno::NOSPC]),
    (libc::SYS_ftruncate, &[Errno::IO, Errno::INTR]),
    (libc::SYS_getdents64, &[Errno::NOMEM]),
    (libc::SYS_getsockopt, &[Errno::NOMEM]),
    (libc::SYS_inotify_add_watch, &[Errno::NOSPC, Errno::NOMEM]),
    (
        libc::SYS_inotify_init1,
        &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
    ),
    (libc::SYS_listen, &[Errno::ADDRINUSE]),
    (libc::SYS_memfd_create, &[Errno::MFILE, Errno::NOMEM]),
    (libc::SYS_mkdirat, &[Errno::NOSPC, Errno::NOMEM]),
    (libc::SYS_mmap, &[Errno::NOMEM]),
    (
        libc::SYS_openat,
        &[Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::ACCESS],
    ),
    (
        libc::SYS_perf_event_open,
        &[Errno::MFILE, Errno::NOMEM, Errno::PERM],
    ),
    (libc::SYS_pidfd_getfd, &[Errno::MFILE, Errno::BADF]),
    (
        libc::SYS_pidfd_open,
        &[Errno::MFILE, Errno::NOMEM, Errno::SRCH],
    ),
    (libc::SYS_pipe2, &[Errno::MFILE, Errno::NFILE]),
    (libc::SYS_ppoll, &[Errno::INTR]),
    (libc::SYS_pwrite64, &[Errno::NOSPC, Errno::IO]),
    (libc::SYS_read, &[]),
    (libc::SYS_readlinkat, &[Errno::NOMEM]),
    (libc::SYS_recvfrom, &[]),
    (libc::SYS_recvmsg, &[]),
    (libc::SYS_renameat, &[Errno::NOSPC, Errno::IO]),
    (libc::SYS_renameat2, &[Errno::NOSPC, Errno::IO]),
    (libc::SYS_seccomp, &[Errno::NOMEM, Errno::INVAL]),
    (libc::SYS_sendmmsg, &[]),
    (
        libc::SYS_sendmsg,
        &[Errno::NOBUFS, Errno::NOMEM, Errno::INTR],
    ),
    (libc::SYS_sendto, &[]),
    (libc::SYS_setns, &[Errno::NOMEM]),
    (libc::SYS_setsockopt, &[Errno::NOMEM, Errno::NOBUFS]),
    (
        libc::SYS_signalfd4,
        &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
    ),
    (
        libc::SYS_socket,
        &[Errno::MFILE, Errno::NFILE, Errno::NOBUFS],
    ),
    (
        libc::SYS_socketpair,
        &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
    ),
    (libc::SYS_splice, &[]),
    (libc::SYS_statx, &[Errno::NOMEM, Errno::ACCESS]),
    (
        libc::SYS_timerfd_create,
        &[Errno::MFILE, Errno::NFILE, Errno::NOMEM],
    ),
    (libc::SYS_unlinkat, &[Errno::IO, Errno::NOMEM]),
    (libc::SYS_write, &[]),
    (libc::SYS_writev, &[]),
    (
        libc::SYS_landlock_create_ruleset,
        &[Errno::NOMEM, Errno::OPNOTSUPP],
    ),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_epoll_wait, &[Errno::INTR]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mkdir, &[Errno::NOSPC, Errno::NOMEM]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_poll, &[Errno::INTR]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_rename, &[Errno::NOSPC, Errno::IO]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_unlink, &[Errno::IO, Errno::NOMEM]),
];

/// Errors that mean a lack, which lasts: the calls after the first one fail too.
const LACKS: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOSPC];

/// Which calls fail.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Each with this probability.
    Each(f64),
    /// This one of those that can fail.
    One(u64),
}

/// Makes calls of a job fail.
#[derive(Clone)]
pub(crate) struct Injector(Arc<Shared>);

struct Shared {
    is_on: AtomicBool,
    seen: AtomicU64,
    count: AtomicU64,
    /// What it did, with the number of the call among those that can fail.
    made: Mutex<Vec<String>>,
}

// === impl Plan ===

impl Plan {
    /// Draws a plan. While a job starts, half of the runs have only one fault, anywhere in the start.
    pub(crate) fn new(seed: u64, is_start: bool) -> Self {
        let mut draw = Seed(seed ^ 0x5eed);
        match is_start && draw.next() < 0.6 {
            true => Self::One((draw.next().powi(2) * 2_000.0) as u64),
            false => Self::Each([0.02, 0.1, 0.3][(draw.next() * 2.99) as usize]),
        }
    }
}

// === impl Injector ===

impl Injector {
    /// Starts a command. A plan for one call begins with `main`, one for many when [`Injector::set`] says so.
    pub(crate) fn spawn(
        mut command: Command,
        plan: Plan,
        seed: u64,
        from_main: bool,
    ) -> (Child, Self) {
        let mut calls: Vec<_> = ERRORS.iter().map(|(call, _)| *call).collect();
        calls.push(libc::SYS_sigaltstack);
        command.env_remove("RUST_BACKTRACE");
        let (child, calls) = faults::spawn(command, &calls).unwrap();
        let shared = Arc::new(Shared {
            is_on: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            count: AtomicU64::new(0),
            made: Mutex::new(Vec::new()),
        });
        let injector = Self(shared);
        let answering = injector.clone();
        std::thread::spawn(move || answering.answer_all(&calls, plan, Seed(seed), from_main));
        (child, injector)
    }

    pub(crate) fn set(&self, is_on: bool) {
        self.0.is_on.store(is_on, Ordering::SeqCst);
    }

    /// Returns the number of calls that can fail so far.
    pub(crate) fn seen(&self) -> u64 {
        self.0.seen.load(Ordering::SeqCst)
    }

    /// Returns the number of faults so far.
    pub(crate) fn count(&self) -> u64 {
        self.0.count.load(Ordering::SeqCst)
    }

    /// Returns all faults so far, as text.
    pub(crate) fn made(&self) -> String {
        self.0.made.lock().unwrap().join(", ")
    }

    fn answer_all(&self, calls: &Calls, plan: Plan, mut draw: Seed, from_main: bool) {
        let mut has_begun = false;
        // How many more calls of a kind fail, and with what.
        let mut lacking: BTreeMap<i64, (Errno, u64)> = BTreeMap::new();
        while let Some(call) = calls.next().unwrap() {
            if call.number == libc::SYS_sigaltstack {
                // The first one is made by Rust's runtime before `main`: the loader is done.
                if from_main && !has_begun {
                    self.set(true);
                }
                has_begun = true;
                calls.answer(&call, Answer::Perform).unwrap();
                continue;
            }
            let mut answer = Answer::Perform;
            if self.0.is_on.load(Ordering::SeqCst) {
                let at = self.0.seen.fetch_add(1, Ordering::SeqCst);
                let is_due = match plan {
                    Plan::Each(probability) => draw.next() < probability,
                    Plan::One(one) => at >= one && self.count() == 0,
                };
                let lack = lacking.get_mut(&call.number).filter(|(_, more)| *more > 0);
                answer = match lack {
                    Some((error, more)) => {
                        *more -= 1;
                        Answer::Fail(*error)
                    }
                    None if is_due => fault(&call, &mut draw),
                    None => Answer::Perform,
                };
                if let (true, Answer::Fail(error)) = (is_due, answer)
                    && LACKS.contains(&error)
                {
                    lacking.insert(call.number, (error, (draw.next().powi(3) * 8.0) as u64));
                }
                if answer != Answer::Perform {
                    self.0.count.fetch_add(1, Ordering::SeqCst);
                    let mut made = self.0.made.lock().unwrap();
                    made.push(match answer {
                        Answer::Fail(error) => {
                            format!("{at}: call {}: errno {}", call.number, error.raw_os_error())
                        }
                        other => format!("{at}: call {}: {other:?}", call.number),
                    });
                }
            } else {
                self.0.seen.fetch_add(1, Ordering::SeqCst);
            }
            calls.answer(&call, answer).unwrap();
        }
    }
}

/// Draws a fault for a call; `Perform` if it has none.
fn fault(call: &Call, draw: &mut Seed) -> Answer {
    if draw.next() < 0.5
        && let Some(short) = call.shorten(draw.next())
    {
        return short;
    }
    let errors = errors(call);
    match errors.len() {
        0 => Answer::Perform,
        many => Answer::Fail(errors[(draw.next() * many as f64) as usize % many]),
    }
}

fn errors(call: &Call) -> &'static [Errno] {
    let [first, second, third, fourth, ..] = call.arguments;
    let documented = ERRORS.iter().find(|(number, _)| *number == call.number);
    let documented = documented.map_or(&[][..], |(_, errors)| errors);
    match call.number {
        // Changing and removing take no memory.
        libc::SYS_epoll_ctl if second != 1 => &[],
        // How a close resets the connection: a number that is stored, which takes no memory.
        libc::SYS_setsockopt
            if (second, third) == (libc::SOL_SOCKET as u64, libc::SO_LINGER as u64) =>
        {
            &[]
        }
        // What the allocator asks for is not tested: a program cannot go on without. A thread that cannot
        // start is one of `clone`.
        libc::SYS_mmap if fourth & libc::MAP_ANONYMOUS as u64 != 0 => &[],
        libc::SYS_read | libc::SYS_recvfrom | libc::SYS_recvmsg => match call.file(first) {
            FileKind::File => &[Errno::IO, Errno::NOMEM, Errno::INTR],
            FileKind::Tcp => &[Errno::CONNRESET, Errno::TIMEDOUT],
            FileKind::Netlink => &[Errno::NOBUFS, Errno::NOMEM],
            FileKind::Pipe => &[Errno::INTR],
            // Calls that do not wait are not interrupted.
            FileKind::Socket | FileKind::Other => &[],
        },
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg => match call.file(first) {
            FileKind::File => &[Errno::NOSPC, Errno::IO, Errno::INTR],
            FileKind::Tcp => &[Errno::CONNRESET, Errno::PIPE, Errno::NOBUFS],
            FileKind::Netlink => &[Errno::NOBUFS, Errno::NOMEM],
            FileKind::Socket => &[],
            FileKind::Pipe => &[Errno::INTR],
            FileKind::Other => &[],
        },
        // From a socket into a pipe, or the other way.
        libc::SYS_splice => match call.file(first) {
            FileKind::Tcp => &[Errno::CONNRESET, Errno::TIMEDOUT, Errno::NOMEM],
            _ => &[Errno::CONNRESET, Errno::PIPE, Errno::NOMEM],
        },
        _ => documented,
    }
}
