//! Descriptors passed from one process to another over a Unix socket (unix(7), SCM_RIGHTS).
//!
//! The socket is of type SEQPACKET: messages arrive whole, each with its descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

use crate::Errno;

/// Descriptors that one message may carry (SCM_MAX_FD).
pub const MAX_DESCRIPTORS: usize = 253;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 8;

/// A Unix socket that others connect to, by a path with mode 0600.
///
/// Its path stays when it is closed. Only the process that put a socket there may take it away, and
/// between the look at whose it is and the removal another process can put its own there: then the
/// path of one that listens would be gone. A socket that nobody listens at is in nobody's way.
#[derive(Debug)]
pub struct SeqpacketListener(OwnedFd);

/// One conversation with another process. Calls on it wait, at most as long as was set.
#[derive(Debug)]
pub struct SeqpacketSocket(OwnedFd);

// === impl SeqpacketListener ===

impl SeqpacketListener {
    /// Listens at `path`. What was there before is replaced in one step, so that whoever connects
    /// finds the old process or this one.
    ///
    /// # Errors
    /// `EACCES`, `ENOENT`, `ENAMETOOLONG`, `EMFILE`.
    pub fn bind(path: &Path) -> Result<Self, Errno> {
        let fd = seqpacket()?;
        // On Linux a socket's mode before bind is, less the umask, the mode of its path: it is
        // never open to others, not even for a moment.
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

    /// Ends [`SeqpacketListener::accept`] wherever it waits, now and later. From now on nobody listens at the
    /// path, unless another process has put its own socket there.
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
    /// Connects to whoever listens at `path`; `None` when nobody does.
    ///
    /// # Errors
    /// `EACCES`; `EPROTOTYPE`: something else listens there; `ENAMETOOLONG`.
    pub fn connect(path: &Path, patience: Duration) -> Result<Option<Self>, Errno> {
        let channel = Self(seqpacket()?);
        // Also bounds the wait for a place in the other's backlog.
        channel.set_timeout(patience)?;
        match rustix::net::connect(&channel.0, &SocketAddrUnix::new(path)?) {
            Ok(()) => Ok(Some(channel)),
            Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// How long [`SeqpacketSocket::send`] and [`SeqpacketSocket::receive`] wait, each.
    ///
    /// # Errors
    /// `EINVAL` for more than the kernel can reckon with.
    pub fn set_timeout(&self, patience: Duration) -> Result<(), Errno> {
        // None at all would mean for ever.
        let patience = Some(patience.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, patience)?;
        sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Send, patience)
    }

    /// The effective user that the other process had when it connected or listened (SO_PEERCRED).
    ///
    /// # Errors
    /// None in ordinary use.
    pub fn peer_uid(&self) -> Result<u32, Errno> {
        Ok(sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }

    /// Sends a message that is not empty, and up to [`MAX_DESCRIPTORS`] descriptors with it.
    ///
    /// # Errors
    /// `EAGAIN` after the patience; `EPIPE`; `EMSGSIZE`; `E2BIG`: too many descriptors;
    /// `ETOOMANYREFS`: more on their way than RLIMIT_NOFILE.
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

    /// Receives the next message into `buffer`, with its descriptors; a length of 0 means that the
    /// other has closed.
    ///
    /// # Errors
    /// `EAGAIN` after the patience; `EMSGSIZE`: the message or its descriptors did not fit, and
    /// are lost.
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

/// The effective user of this process.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn a_message_arrives_whole_with_as_many_descriptors_as_there_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counter");
        let counter = SeqpacketListener::bind(&path).unwrap();
        let meta = path.symlink_metadata().unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.mode() & 0o777, 0o600);

        let near = SeqpacketSocket::connect(&path, PATIENCE).unwrap().unwrap();
        let far = counter.accept().unwrap();
        assert_eq!(far.peer_uid(), Ok(effective_uid()));
        assert_eq!(near.peer_uid(), Ok(effective_uid()));

        let (mut reader, writer) = std::io::pipe().unwrap();
        near.send(b"many", &[writer.as_fd(); MAX_DESCRIPTORS])
            .unwrap();
        near.send(b"none", &[]).unwrap();
        let too_many = [writer.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(near.send(b"more", &too_many), Err(Errno::TOOBIG));
        drop((near, writer));

        let mut buffer = [0; 16];
        let (n, descriptors) = far.receive(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..n], descriptors.len()),
            (&b"many"[..], MAX_DESCRIPTORS)
        );
        let (n, none) = far.receive(&mut buffer).unwrap();
        assert_eq!((&buffer[..n], none.len()), (&b"none"[..], 0));
        assert_eq!(far.receive(&mut buffer).unwrap().0, 0);
        // The pipe ends with the last of them: nothing has leaked.
        drop(descriptors);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_leaks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let counter = SeqpacketListener::bind(&dir.path().join("c")).unwrap();
        let near = SeqpacketSocket::connect(&dir.path().join("c"), PATIENCE)
            .unwrap()
            .unwrap();
        let far = counter.accept().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        near.send(&[7; 100], &[writer.as_fd()]).unwrap();
        drop(writer);
        assert_eq!(far.receive(&mut [0; 10]).err(), Some(Errno::MSGSIZE));
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        // Nothing more comes, and the wait has an end.
        far.set_timeout(Duration::from_millis(1)).unwrap();
        assert_eq!(far.receive(&mut [0; 10]).err(), Some(Errno::AGAIN));
    }

    #[test]
    fn a_path_belongs_to_who_bound_it_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counter");
        assert!(SeqpacketSocket::connect(&path, PATIENCE).unwrap().is_none());
        let first = SeqpacketListener::bind(&path).unwrap();
        let second = SeqpacketListener::bind(&path).unwrap();
        drop(first);
        // Whenever the first goes, it leaves the path alone.
        let near = SeqpacketSocket::connect(&path, PATIENCE).unwrap();
        assert!(near.is_some());
        second.accept().unwrap();
        second.close();
        assert_eq!(second.accept().err(), Some(Errno::INVAL));
        // What is left behind is nobody, and in nobody's way.
        assert!(path.exists());
        assert!(SeqpacketSocket::connect(&path, PATIENCE).is_ok_and(|c| c.is_none()));
        SeqpacketListener::bind(&path).unwrap();
    }
}
