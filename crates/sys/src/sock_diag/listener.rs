//! A socket that listens for TCP connections.

use std::net::SocketAddr;

use super::connection::Connection;

/// LISTEN in the kernel's numbers (net/tcp_states.h).
pub(super) const STATE: u8 = 10;

/// A socket that listens for TCP connections, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its address.
    pub local: SocketAddr,
    /// The cookie of the socket.
    pub cookie: u64,
    /// The inode of the socket; 0 if no process has it.
    pub inode: u32,
    /// The user that has made it.
    pub uid: u32,
    /// Its cgroup (Linux 5.9).
    pub cgroup: Option<u64>,
    /// Connections that wait to be accepted (`sk_ack_backlog`).
    pub waiting: u32,
    /// The maximum number of connections that wait: the less of listen(2)'s backlog and
    /// net.core.somaxconn at that call. One more than this fits.
    pub backlog: u32,
    /// Segments that were dropped (`sk_drops`): connection attempts, because no more could wait or for
    /// lack of memory, and what no listener can use, such as resets. It wraps around.
    pub drops: u32,
}

// === impl Listener ===

impl Listener {
    /// Parses the answer to a request for listeners. Returns `None` for other sockets.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        if *message.get(1)? != STATE {
            return None;
        }
        let socket = Connection::parse_ended(message)?;
        Some(Self {
            local: socket.local,
            cookie: socket.cookie,
            inode: socket.inode,
            uid: socket.uid,
            cgroup: socket.cgroup,
            waiting: socket.recv_queue,
            backlog: socket.send_queue,
            drops: socket.memory?.drops,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use std::net::TcpStream;
    use std::os::fd::{AsFd as _, OwnedFd};

    use rustix::net::{AddressFamily, SocketType, bind, connect, listen, socket};

    use super::*;
    use crate::sock_diag::SockDiag;

    fn listener_at(address: SocketAddr) -> Listener {
        let mut found = Vec::new();
        let stats = SockDiag::open()
            .unwrap()
            .listeners(|one| found.push(one))
            .unwrap();
        assert_eq!((stats.connections, stats.unknown), (found.len(), 0));
        found.retain(|one| one.local == address);
        found.pop().expect("it is listed")
    }

    /// Starts to connect, without waiting.
    fn dial(address: SocketAddr) -> OwnedFd {
        let dialler = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::io::ioctl_fionbio(&dialler, true).unwrap();
        let _ = connect(dialler.as_fd(), &address);
        dialler
    }

    #[test]
    fn a_full_accept_queue_and_what_it_drops_is_listed() {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&socket, 2).unwrap();
        let address = std::net::TcpListener::from(socket.try_clone().unwrap())
            .local_addr()
            .unwrap();
        let fresh = listener_at(address);
        assert_eq!((fresh.waiting, fresh.backlog, fresh.drops), (0, 2, 0));
        assert_ne!((fresh.inode, fresh.cookie), (0, 0));
        let fits: Vec<_> = (0..3)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        // Each SYN is dropped at once: loopback has no queue.
        let dropped: Vec<_> = (0..5).map(|_| dial(address)).collect();
        let full = listener_at(address);
        assert_eq!((full.waiting, full.backlog), (3, 2));
        assert!(full.drops >= 5, "{full:?}");
        assert_eq!(full.cookie, fresh.cookie);
        drop((fits, dropped));
    }
}
