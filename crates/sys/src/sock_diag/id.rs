//! The identity that sock_diag uses to find one socket.

/// Size of `struct inet_diag_sockid` (linux/inet_diag.h).
pub(super) const BYTES: usize = 48;

/// The addresses and cookie of a socket in the kernel's form: an IPv6 socket has IPv6 addresses
/// even if its peer uses IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId {
    /// `AF_INET` or `AF_INET6`.
    pub family: u8,
    /// Local port.
    pub local_port: u16,
    /// Peer's port.
    pub remote_port: u16,
    /// Local address; an IPv4 address is in the first four bytes.
    pub local: [u8; 16],
    /// Peer's address, in the same form.
    pub remote: [u8; 16],
    /// Index of the device that the socket is bound to; 0 if it is not bound.
    pub interface: u32,
    /// Socket cookie.
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
        // Two words, lower half first, on machines of either byte order.
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        put(40, &(self.cookie as u32).to_ne_bytes());
        put(44, &((self.cookie >> 32) as u32).to_ne_bytes());
        bytes
    }
}
