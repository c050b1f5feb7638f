//! Sending whole frames to a device (packet(7)).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A socket that sends frames out of one device and receives nothing.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

// === impl PacketSocket ===

impl PacketSocket {
    /// A socket for the device with this number in the calling thread's network namespace, whose frames have
    /// this mark (`skb->mark`).
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW and CAP_NET_ADMIN, `ENODEV` if there is no such device.
    pub fn open(ifindex: u32, mark: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes numbers. Protocol 0 receives nothing.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has made this descriptor and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: `sockaddr_ll` is plain data for which all zeroes is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::sa_family_t;
        address.sll_ifindex = ifindex.cast_signed();
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel reads `size` bytes of `address`, which outlives the call.
        let done = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let size = size_of::<u32>() as libc::socklen_t;
        let value = (&raw const mark).cast();
        // SAFETY: the kernel reads `size` bytes of `mark`, which outlives the call.
        let done = unsafe {
            libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MARK, value, size)
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd })
    }

    /// Sends a frame, from its Ethernet header on.
    ///
    /// # Errors
    /// `ENOBUFS` if the device's queue is full, `EMSGSIZE` if the frame is longer than its MTU allows, `ENETDOWN`.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, frame, rustix::net::SendFlags::empty())?;
        Ok(())
    }
}
