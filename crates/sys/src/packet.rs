//! Packet sockets that send whole frames (packet(7)).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::raw_sockopt;

/// A packet socket that sends frames through one device and receives none.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

// === impl PacketSocket ===

impl PacketSocket {
    /// Opens a socket for the device with this index in the calling thread's network namespace.
    /// Frames that it sends carry `mark` (`skb->mark`).
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW and CAP_NET_ADMIN, `ENODEV` if there is no such device.
    pub fn open(ifindex: u32, mark: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // Protocol 0: the socket receives no frames.
        // SAFETY: the call takes integers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just created this descriptor, which has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: `sockaddr_ll` is plain data for which all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::sa_family_t;
        address.sll_ifindex = ifindex.cast_signed();
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel reads `size` bytes of `address`, which outlives the call.
        let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        raw_sockopt::set(&fd, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
        Ok(Self { fd })
    }

    /// Sends a frame that starts with its Ethernet header.
    ///
    /// # Errors
    /// `ENOBUFS` if the device's queue is full, `EMSGSIZE` if the frame is longer than the MTU
    /// allows, `ENETDOWN`.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, frame, rustix::net::SendFlags::empty())?;
        Ok(())
    }
}
