//! File descriptors passed between processes over a Unix socket (SCM_RIGHTS, unix(7)).
//!
//! The sockets are of type SEQPACKET: each message arrives whole, with its descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

use crate::Errno;

/// The largest number of descriptors in one message (SCM_MAX_FD).
pub const MAX_DESCRIPTORS: usize = 253;

/// The length of the accept queue.
const BACKLOG: i32 = 8;

/// A listening Unix socket at a path with mode 0600.
///
/// The path is not removed on close: after a check that the path is still this socket, another
/// process could put its own socket there, and unlinking would remove that socket. A path without a
/// listener does no harm: [`SeqpacketListener::bind`] replaces it.
#[derive(Debug)]
pub struct SeqpacketListener(OwnedFd);

/// A connected socket. Calls on it block, but no longer than the timeout.
#[derive(Debug)]
pub struct SeqpacketSocket(OwnedFd);

// === impl SeqpacketListener ===

impl SeqpacketListener {
    /// Listens at `path`. Replaces an existing socket atomically: a client always reaches the old
    /// process or this one.
    ///
    /// # Errors
    /// `EACCES`, `ENOENT`, `ENAMETOOLONG`, `EMFILE`.
    pub fn bind(path: &Path) -> Result<Self, Errno> {
        let fd = seqpacket()?;
        // On Linux, bind(2) creates the path with the socket's mode minus the umask, so there is no
        // moment when other users can connect.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let _ = rustix::fs::unlink(&beside);
        rustix::net::bind(&fd, &SocketAddrUnix::new(&beside)?)?;
        let placed =
            rustix::net::listen(&fd, BACKLOG).and_then(|()| rustix::fs::rename(&beside, path));
        match placed {
            Ok(()) => Ok(Self(fd)),
            Err(e) => {
                let _ = rustix::fs::unlink(&beside);
                Err(e)
            }
        }
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// `EINVAL` after [`SeqpacketListener::close`]; `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn accept(&self) -> Result<SeqpacketSocket, Errno> {
        rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC).map(SeqpacketSocket)
    }

    /// Stops listening: current and later calls of [`SeqpacketListener::accept`] fail.
    pub fn close(&self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }
}

impl Drop for SeqpacketListener {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl SeqpacketSocket ===

impl SeqpacketSocket {
    /// Connects to the process that listens at `path`. Returns `None` if none does.
    ///
    /// # Errors
    /// `EACCES`; `EPROTOTYPE` if a socket of another type listens there; `ENAMETOOLONG`.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Option<Self>, Errno> {
        let socket = Self(seqpacket()?);
        // The send timeout also limits the wait for a place in the listener's accept queue.
        socket.set_timeout(timeout)?;
        match rustix::net::connect(&socket.0, &SocketAddrUnix::new(path)?) {
            Ok(()) => Ok(Some(socket)),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Sets the time that each [`SeqpacketSocket::send`] and [`SeqpacketSocket::receive`] may
    /// block.
    ///
    /// # Errors
    /// `EINVAL` for a duration beyond the kernel's range.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), Errno> {
        // Zero would mean no timeout.
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, timeout)?;
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, timeout)
    }

    /// Returns the effective user ID of the peer when it connected or listened (SO_PEERCRED).
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn peer_uid(&self) -> Result<u32, Errno> {
        Ok(sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }

    /// Returns whether the peer has closed the connection, or ended.
    pub fn is_closed_by_peer(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let at_once = rustix::event::Timespec::default();
        // HUP is always reported.
        rustix::event::poll(&mut polled, Some(&at_once)).is_ok()
            && polled[0].revents().contains(PollFlags::HUP)
    }

    /// Sends a non-empty message with up to [`MAX_DESCRIPTORS`] descriptors.
    ///
    /// # Errors
    /// `EAGAIN` after the timeout; `EPIPE`; `EMSGSIZE`; `E2BIG` for too many descriptors;
    /// `ETOOMANYREFS` if more descriptors are in flight than RLIMIT_NOFILE.
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(Errno::TOOBIG);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::TOOBIG);
        }
        let parts = [IoSlice::new(message)];
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)
        })
        .map(|_| ())
    }

    /// Receives the next message into `buffer` and returns its length and descriptors. A length of
    /// 0 means that the peer has closed.
    ///
    /// # Errors
    /// `EAGAIN` after the timeout; `EMSGSIZE` if the message or its descriptors did not fit and are
    /// lost.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let message = rustix::io::retry_on_intr(|| {
            rustix::net::recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut descriptors = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                descriptors.extend(rights);
            }
        }
        if message
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(Errno::MSGSIZE);
        }
        Ok((message.bytes, descriptors))
    }
}

impl AsFd for SeqpacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Returns the effective user ID of this process.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn a_message_arrives_whole_with_the_largest_number_of_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counter");
        let counter = SeqpacketListener::bind(&path).unwrap();
        let meta = path.symlink_metadata().unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.mode() & 0o777, 0o600);

        let near = SeqpacketSocket::connect(&path, TIMEOUT).unwrap().unwrap();
        let far = counter.accept().unwrap();
        assert!(!far.is_closed_by_peer());
        assert_eq!(far.peer_uid(), Ok(effective_uid()));
        assert_eq!(near.peer_uid(), Ok(effective_uid()));

        let (mut reader, writer) = std::io::pipe().unwrap();
        near.send(b"many", &[writer.as_fd(); MAX_DESCRIPTORS])
            .unwrap();
        near.send(b"none", &[]).unwrap();
        let too_many = [writer.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(near.send(b"more", &too_many), Err(Errno::TOOBIG));
        drop((near, writer));
        assert!(far.is_closed_by_peer());

        let mut buffer = [0; 16];
        let (n, descriptors) = far.receive(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..n], descriptors.len()),
            (&b"many"[..], MAX_DESCRIPTORS)
        );
        let (n, none) = far.receive(&mut buffer).unwrap();
        assert_eq!((&buffer[..n], none.len()), (&b"none"[..], 0));
        assert_eq!(far.receive(&mut buffer).unwrap().0, 0);
        // The pipe ends when the last writer is closed: no descriptor has leaked.
        drop(descriptors);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_message_that_does_not_fit_is_an_error_and_leaks_no_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let counter = SeqpacketListener::bind(&dir.path().join("c")).unwrap();
        let near = SeqpacketSocket::connect(&dir.path().join("c"), TIMEOUT)
            .unwrap()
            .unwrap();
        let far = counter.accept().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        near.send(&[7; 100], &[writer.as_fd()]).unwrap();
        drop(writer);
        assert_eq!(far.receive(&mut [0; 10]).err(), Some(Errno::MSGSIZE));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        // No more messages arrive, and the receive times out.
        far.set_timeout(Duration::from_millis(1)).unwrap();
        assert_eq!(far.receive(&mut [0; 10]).err(), Some(Errno::AGAIN));
    }

    #[test]
    fn a_path_belongs_to_the_process_that_bound_it_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counter");
        assert!(SeqpacketSocket::connect(&path, TIMEOUT).unwrap().is_none());
        let first = SeqpacketListener::bind(&path).unwrap();
        let second = SeqpacketListener::bind(&path).unwrap();
        drop(first);
        // Dropping the first listener leaves the path alone.
        let near = SeqpacketSocket::connect(&path, TIMEOUT).unwrap();
        assert!(near.is_some());
        second.accept().unwrap();
        second.close();
        assert_eq!(second.accept().err(), Some(Errno::INVAL));
        // The path remains, has no listener and can be bound again.
        assert!(path.exists());
        assert!(SeqpacketSocket::connect(&path, TIMEOUT).is_ok_and(|c| c.is_none()));
        SeqpacketListener::bind(&path).unwrap();
    }
}
