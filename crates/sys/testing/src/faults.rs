//! System calls of another process that fail because a test says so (seccomp user notification,
//! seccomp_unotify(2), Linux 5.19). No job has it.
//!
//! A filter stops each chosen call of a process, and of everything that it starts, until the test
//! has answered. The answer is an error, or that the kernel performs the call, or the result of a
//! shorter call that the test has performed in its place.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};
use rustix::pipe::SpliceFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// The lowest descriptor of the socket that the filter's listener is sent over. The process uses none
/// as high: sendmsg(2) on it is not stopped.
const HAND_OVER: RawFd = 900;

/// The largest number of bytes that a shortened call moves.
const LONGEST: usize = 1 << 20;

/// The chosen calls of one process and of its descendants.
#[derive(Debug)]
pub struct Calls(OwnedFd);

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    id: u64,
    /// The thread.
    pub thread: u32,
    /// The number of the call (`libc::SYS_*`).
    pub number: i64,
    /// The arguments.
    pub arguments: [u64; 6],
}

/// What a descriptor refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A file or directory with a path.
    File,
    /// A pipe.
    Pipe,
    /// A socket of TCP.
    Tcp,
    /// A socket of netlink.
    Netlink,
    /// Another socket.
    Socket,
    /// An event, a timer, a BPF object, or an unused number.
    Other,
}

/// What the thread gets for its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What the kernel says.
    Perform,
    /// This error; the kernel does not perform the call.
    Fail(Errno),
    /// This result; the kernel does not perform the call.
    Return(i64),
}

/// Starts a command whose `calls` are stopped, from its execve(2) on. That one is not among them: this
/// function waits for it, and nobody would answer.
///
/// # Errors
/// Those of `Command::spawn`; `EBUSY` if this process has such a filter itself; `EACCES` without
/// CAP_SYS_ADMIN.
pub fn spawn(mut command: Command, calls: &[i64]) -> io::Result<(Child, Calls)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (near, far) = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?;
    let far = rustix::io::fcntl_dupfd_cloexec(far, HAND_OVER)?;
    let filter = filter(calls, far.as_raw_fd());
    // SAFETY: the closure runs between fork and exec and only makes system calls on existing
    // memory: it does not allocate or take a lock.
    unsafe {
        command.pre_exec(move || {
            let listener = install(&filter)?;
            Ok(send(&far, listener.as_fd())?)
        });
    }
    let child = command.spawn()?;
    // The command holds the other end; without it, a process that sent nothing is an error here.
    drop(command);
    Ok((child, Calls(receive(&near)?)))
}

fn send(socket: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let parts = [IoSlice::new(b"l")];
    rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffer = [0];
    let mut parts = [IoSliceMut::new(&mut buffer)];
    rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Returns a program that stops `calls`. It does not look at the architecture: what tests start has
/// only this one.
fn filter(calls: &[i64], hand_over: RawFd) -> Vec<libc::sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let at = |offset: usize| step(LOAD, offset, 0, 0);
    let stop = step(RETURN, libc::SECCOMP_RET_USER_NOTIF as usize, 0, 0);
    let allow = step(RETURN, libc::SECCOMP_RET_ALLOW as usize, 0, 0);
    let mut program = vec![at(std::mem::offset_of!(libc::seccomp_data, nr))];
    for &call in calls {
        let number = usize::try_from(call).unwrap_or_default();
        if call == libc::SYS_sendmsg {
            let descriptor = at(std::mem::offset_of!(libc::seccomp_data, args));
            let hand_over = usize::try_from(hand_over).unwrap_or_default();
            program.extend([step(EQUAL, number, 0, 4), descriptor]);
            program.extend([step(EQUAL, hand_over, 0, 1), allow, stop]);
        } else {
            program.extend([step(EQUAL, number, 0, 1), stop]);
        }
    }
    program.push(allow);
    program
}

fn step(code: u32, operand: usize, equal: u8, other: u8) -> libc::sock_filter {
    libc::sock_filter {
        // All codes and operands above fit.
        code: code as u16,
        jt: equal,
        jf: other,
        k: operand as u32,
    }
}

/// Installs the filter in this thread and returns its listener.
fn install(filter: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?,
        // The kernel does not write to it.
        filter: filter.as_ptr().cast_mut(),
    };
    // A thread that waits for its answer is interrupted by fatal signals alone: no call is made twice.
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: `program` points to `len` instructions, which the kernel copies. The result is a
    // descriptor that nothing else owns.
    unsafe {
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        match libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) {
            -1 => Err(io::Error::last_os_error()),
            listener => Ok(OwnedFd::from_raw_fd(listener as RawFd)),
        }
    }
}

// === impl Calls ===

impl Calls {
    /// Waits for the next call. Returns `None` once no process is left.
    ///
    /// # Errors
    /// Those of ioctl(2); none are known.
    pub fn next(&self) -> io::Result<Option<Call>> {
        loop {
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            if !fds[0].revents().contains(PollFlags::IN) {
                return Ok(None);
            }
            // SAFETY: all fields are integers. The kernel requires zeroes and writes one
            // `seccomp_notif`.
            let (result, call) = unsafe {
                let mut call: libc::seccomp_notif = std::mem::zeroed();
                let ask = libc::SECCOMP_IOCTL_NOTIF_RECV;
                (libc::ioctl(self.0.as_raw_fd(), ask, &raw mut call), call)
            };
            match (result, Errno::from_io_error(&io::Error::last_os_error())) {
                (0, _) => {
                    return Ok(Some(Call {
                        id: call.id,
                        thread: call.pid,
                        number: call.data.nr.into(),
                        arguments: call.data.args,
                    }));
                }
                // The thread was killed meanwhile.
                (_, Some(Errno::NOENT | Errno::INTR)) => {}
                _ => return Err(io::Error::last_os_error()),
            }
        }
    }

    /// Lets the thread go on. Does nothing if it was killed meanwhile.
    ///
    /// # Errors
    /// Those of ioctl(2); none are known.
    pub fn answer(&self, call: &Call, answer: Answer) -> io::Result<()> {
        let (error, val, flags) = match answer {
            Answer::Perform => (0, 0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Answer::Fail(error) => (-error.raw_os_error(), 0, 0),
            Answer::Return(value) => (0, value, 0),
        };
        let response = libc::seccomp_notif_resp {
            id: call.id,
            val,
            error,
            flags,
        };
        // SAFETY: the kernel reads one `seccomp_notif_resp`.
        let result = unsafe {
            let send = libc::SECCOMP_IOCTL_NOTIF_SEND;
            libc::ioctl(self.0.as_raw_fd(), send, &raw const response)
        };
        match (result, io::Error::last_os_error()) {
            (0, _) => Ok(()),
            (_, error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            (_, error) => Err(error),
        }
    }
}

// === impl Call ===

impl Call {
    /// Returns the process whose thread makes the call; `None` if it has ended.
    pub fn process(&self) -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.thread)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        line.trim().parse().ok()
    }

    /// Returns what a descriptor of the thread refers to.
    pub fn file(&self, descriptor: u64) -> FileKind {
        let Ok(path) = std::fs::read_link(self.path(descriptor)) else {
            return FileKind::Other;
        };
        match path.to_str() {
            Some(path) if path.starts_with("pipe:") => FileKind::Pipe,
            Some(path) if path.starts_with("socket:") => self.socket(descriptor),
            Some(path) if !path.starts_with('/') => FileKind::Other,
            _ => FileKind::File,
        }
    }

    fn socket(&self, descriptor: u64) -> FileKind {
        let Some(socket) = self.descriptor(descriptor) else {
            return FileKind::Other;
        };
        let kind = (
            sockopt::socket_domain(&socket),
            sockopt::socket_type(&socket),
        );
        match kind {
            (Ok(AddressFamily::INET | AddressFamily::INET6), Ok(SocketType::STREAM)) => {
                FileKind::Tcp
            }
            (Ok(AddressFamily::NETLINK), _) => FileKind::Netlink,
            _ => FileKind::Socket,
        }
    }

    /// Performs a read, a write or a splice in the thread's place, with at most `share` (0 to 1) of its
    /// bytes, as the kernel does when it is interrupted or has no more room. Returns the answer; `None`
    /// if the kernel never shortens such a call, or if the call would block.
    pub fn shorten(&self, share: f64) -> Option<Answer> {
        let [first, second, third, fourth, fifth, sixth] = self.arguments;
        let less = |length: u64| {
            let length = usize::try_from(length).ok().filter(|&length| length >= 2)?;
            Some(((length as f64 * share) as usize).clamp(1, (length - 1).min(LONGEST)))
        };
        let result = match self.number {
            libc::SYS_write => {
                let target = self.stream(first, PollFlags::OUT)?;
                rustix::io::write(target, &self.memory(second, less(third)?)?)
            }
            libc::SYS_sendto if fourth == 0 && fifth == 0 => {
                let target = self.stream(first, PollFlags::OUT)?;
                rustix::io::write(target, &self.memory(second, less(third)?)?)
            }
            libc::SYS_read => self.read(first, second, less(third)?),
            libc::SYS_recvfrom if fourth == 0 => self.read(first, second, less(third)?),
            // A signal ends it; the other direction is shortened only by a full socket.
            libc::SYS_splice if second == 0 && fourth == 0 && self.file(first) == FileKind::Tcp => {
                let (from, to) = (self.descriptor(first)?, self.descriptor(third)?);
                let flags = SpliceFlags::from_bits_truncate(sixth as u32) | SpliceFlags::NONBLOCK;
                rustix::pipe::splice(from, None, to, None, less(fifth)?, flags)
            }
            _ => return None,
        };
        match result {
            Ok(bytes) => Some(Answer::Return(i64::try_from(bytes).ok()?)),
            // It has moved nothing, so the kernel can still perform the whole call.
            Err(_) => None,
        }
    }

    fn read(&self, descriptor: u64, to: u64, length: usize) -> Result<usize, Errno> {
        let source = self.stream(descriptor, PollFlags::IN).ok_or(Errno::INVAL)?;
        // Before the bytes are taken: they would be lost.
        let memory = File::options()
            .write(true)
            .open(format!("/proc/{}/mem", self.thread))
            .map_err(|_| Errno::SRCH)?;
        let mut buffer = vec![0; length];
        let length = rustix::io::read(source, &mut buffer)?;
        match memory.write_all_at(&buffer[..length], to) {
            Ok(()) => Ok(length),
            Err(_) => Err(Errno::FAULT),
        }
    }

    /// Returns a duplicate of a descriptor of the process that moves a stream of bytes and does so now.
    fn stream(&self, descriptor: u64, ready: PollFlags) -> Option<OwnedFd> {
        let duplicate = self.descriptor(descriptor)?;
        let kind = std::fs::metadata(self.path(descriptor)).ok()?.file_type();
        let path = std::fs::read_link(self.path(descriptor)).ok()?;
        let is_stream = if kind.is_socket() {
            // If it does not block, a short call means that the socket is empty or full (epoll(7)).
            let flags = rustix::fs::fcntl_getfl(&duplicate).ok()?;
            let blocks = !flags.contains(rustix::fs::OFlags::NONBLOCK);
            blocks && sockopt::socket_type(&duplicate) == Ok(SocketType::STREAM)
        } else if kind.is_fifo() {
            // Up to PIPE_BUF bytes are written at once.
            ready == PollFlags::IN
        } else {
            // What the kernel shows as files takes each write as a whole.
            let shown = ["/proc", "/sys"]
                .iter()
                .any(|below| path.starts_with(below));
            kind.is_file() && !shown
        };
        let now = Timespec::default();
        let mut fds = [PollFd::new(&duplicate, ready)];
        let is_ready = rustix::event::poll(&mut fds, Some(&now)).ok()? == 1;
        (is_stream && is_ready && fds[0].revents() == ready).then_some(duplicate)
    }

    fn path(&self, descriptor: u64) -> String {
        format!("/proc/{}/fd/{descriptor}", self.thread)
    }

    fn descriptor(&self, descriptor: u64) -> Option<OwnedFd> {
        let process = i32::try_from(self.process()?)
            .ok()
            .and_then(Pid::from_raw)?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).ok()?;
        let descriptor = RawFd::try_from(descriptor).ok()?;
        pidfd_getfd(pidfd, descriptor, PidfdGetfdFlags::empty()).ok()
    }

    /// Reads memory of the thread.
    fn memory(&self, from: u64, length: usize) -> Option<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", self.thread)).ok()?;
        let mut buffer = vec![0; length];
        memory.read_exact_at(&mut buffer, from).ok()?;
        Some(buffer)
    }
}

impl AsFd for Calls {
    /// Readable while a call waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
