//! A receive call that stays inside the kernel (userfaultfd(2)). Tests need it to fill the backlog
//! of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A thread inside recv(2). The kernel copies data to memory that is not there yet, and keeps the
/// socket locked: packets that arrive wait in the socket's backlog, and other calls that lock the
/// socket wait, too. The call goes on when this is dropped.
#[derive(Debug)]
pub struct StalledReceive {
    /// The page faults of the thread; `None` while this is dropped.
    faults: Option<OwnedFd>,
    /// `None` after the thread was joined.
    thread: Option<JoinHandle<io::Result<usize>>>,
}

/// The time that the data which the call receives may take to arrive.
const ARRIVES: Duration = Duration::from_secs(60);
/// How often to check whether the call has returned without a page fault.
const CHECK: Duration = Duration::from_millis(10);

// === impl StalledReceive ===

impl StalledReceive {
    /// Waits until the socket has something to receive, and returns once the call is stalled.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_PTRACE, `ENOSYS` if the kernel has no userfaultfd, `TimedOut` if
    /// there is nothing to receive for 60 s, `UnexpectedEof` if the peer has closed, and those of
    /// mmap(2) and recv(2).
    pub fn start(socket: impl AsFd) -> io::Result<Self> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        if !is_readable(&socket, ARRIVES)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let page = Page::new()?;
        let faults = page.stall()?;
        let thread = std::thread::Builder::new().spawn(move || page.receive(&socket))?;
        let mut stalled = Self {
            faults: Some(faults),
            thread: Some(thread),
        };
        while !stalled.has_fault()? {
            let thread = stalled.thread.take_if(|thread| thread.is_finished());
            if let Some(thread) = thread {
                let result = thread.join().map_err(|_| io::Error::other("a panic"))?;
                return Err(result.map_or_else(|e| e, |_| io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Ok(stalled)
    }

    fn has_fault(&self) -> io::Result<bool> {
        let faults = self.faults.as_ref();
        faults.map_or(Ok(false), |faults| is_readable(faults, CHECK))
    }
}

impl Drop for StalledReceive {
    fn drop(&mut self) {
        // Without its descriptor, the kernel maps the page.
        self.faults = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn is_readable(fd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&limit))?;
    Ok(fds[0].revents().contains(PollFlags::IN))
}

/// A page of memory that nothing has used yet. Unmapped when dropped.
struct Page {
    address: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: the page belongs to no thread, and nothing else has its address.
unsafe impl Send for Page {}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// The type of the ioctls, `UFFDIO`.
const GROUP: u8 = 0xaa;
const UFFDIO_API: libc::c_ulong = rustix::ioctl::opcode::read_write::<Api>(GROUP, 0x3f) as _;
const UFFDIO_REGISTER: libc::c_ulong = rustix::ioctl::opcode::read_write::<Register>(GROUP, 0) as _;
/// `UFFD_API`.
const VERSION: u64 = 0xaa;
/// `UFFDIO_REGISTER_MODE_MISSING`.
const MISSING: u64 = 1;

// === impl Page ===

impl Page {
    fn new() -> io::Result<Self> {
        let len = rustix::param::page_size();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { address, len })
    }

    /// Has whatever uses the page wait until the returned descriptor is closed. It is readable once
    /// something waits.
    fn stall(&self) -> io::Result<OwnedFd> {
        // Without O_NONBLOCK, poll(2) reports an error.
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the call takes an integer only.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        let fd = libc::c_int::try_from(fd).unwrap_or(-1);
        check(fd)?;
        // SAFETY: the call has just created this descriptor, which has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = Api {
            version: VERSION,
            features: 0,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_API reads and writes one `Api`, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &raw mut api) })?;
        let mut register = Register {
            start: self.address.addr().get() as u64,
            len: self.len as u64,
            mode: MISSING,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_REGISTER reads and writes one `Register`, which outlives the call. The
        // page is not part of any Rust object.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) })?;
        Ok(fd)
    }

    /// Receives to the page, once.
    fn receive(self, socket: &OwnedFd) -> io::Result<usize> {
        // SAFETY: the kernel writes at most `len` bytes, the size of the page, which is mapped until
        // after the call.
        let received = unsafe {
            libc::recv(
                socket.as_raw_fd(),
                self.address.as_ptr(),
                self.len,
                libc::MSG_DONTWAIT,
            )
        };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped this range, and nothing refers to it any more.
        unsafe { libc::munmap(self.address.as_ptr(), self.len) };
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_stalled_call_receives_when_it_is_dropped() {
        let (mut peer, mut socket) = UnixStream::pair().unwrap();
        peer.write_all(b"for the call").unwrap();
        let stalled = StalledReceive::start(&socket).unwrap();
        assert!(!stalled.thread.as_ref().unwrap().is_finished());
        drop(stalled);
        peer.write_all(b"next").unwrap();
        drop(peer);
        let mut rest = String::new();
        socket.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "next");
    }

    #[test]
    fn a_call_that_does_not_stall_is_an_error() {
        let (peer, socket) = UnixStream::pair().unwrap();
        drop(peer);
        let error = StalledReceive::start(&socket).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
