//! The name of one socket, by which sock_diag finds it.

/// `struct inet_diag_sockid` of linux/inet_diag.h.
pub(super) const BYTES: usize = 48;

/// A socket's addresses and cookie, as the kernel has them: an IPv6 socket has IPv6 addresses, whoever its peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// This end's port.
    pub local_port: u16,
    /// The peer's.
    pub remote_port: u16,
    /// This end's address; of IPv4 the first four bytes.
    pub local: [u8; 16],
    /// The peer's.
    pub remote: [u8; 16],
    /// The device to which it is bound; 0: none.
    pub interface: u32,
    /// The kernel's name of the socket.
    pub cookie: u64,
}

// === impl SocketId ===

impl SocketId {
    pub(super) fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &self.local_port.to_be_bytes());
        put(2, &self.remote_port.to_be_bytes());
        put(4, &self.local);
        put(20, &self.remote);
        put(36, &self.interface.to_ne_bytes());
        // Its two words are the lower half and the upper one, on every machine.
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        put(40, &(self.cookie as u32).to_ne_bytes());
        put(44, &((self.cookie >> 32) as u32).to_ne_bytes());
        bytes
    }
}
