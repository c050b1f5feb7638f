//! TAP devices that carry whole GSO frames, each behind a virtio-net header.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// What went wrong with which TAP device.
#[derive(Debug, thiserror::Error)]
#[error("tap {name}: {action}: {source}")]
pub struct TapError {
    name: String,
    action: &'static str,
    source: io::Error,
}

/// The header that the kernel puts before each frame it hands over and wants before each it is given:
/// `struct virtio_net_hdr`, in the machine's byte order (virtio 1.2, 5.1.6, legacy layout).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHeader {
    /// [`VnetHeader::NEEDS_CSUM`] or [`VnetHeader::DATA_VALID`].
    pub flags: u8,
    /// One of the `GSO_*` values, perhaps with [`VnetHeader::GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of the frame before the TCP payload.
    pub hdr_len: u16,
    /// Bytes of TCP payload in each segment.
    pub gso_size: u16,
    /// With `NEEDS_CSUM`: where in the frame to start summing.
    pub csum_start: u16,
    /// With `NEEDS_CSUM`: where, after `csum_start`, the sum goes.
    pub csum_offset: u16,
}

// === impl VnetHeader ===

impl VnetHeader {
    /// Length on the wire between us and the kernel, in bytes.
    pub const LEN: usize = 10;
    /// Flag: the checksum field holds the pseudo-header's sum; the rest is to be added.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: the checksum has been verified.
    pub const DATA_VALID: u8 = 2;
    /// The frame is one packet.
    pub const GSO_NONE: u8 = 0;
    /// The frame is many TCP segments over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// The frame is many TCP segments over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// Added to the type: CWR is set, and belongs to the first segment only.
    pub const GSO_ECN: u8 = 0x80;

    /// Reads a header off the front of `bytes`; `None` when there are fewer than [`Self::LEN`].
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let b = bytes.first_chunk::<{ Self::LEN }>()?;
        let word = |at: usize| u16::from_ne_bytes([b[at], b[at + 1]]);
        Some(Self {
            flags: b[0],
            gso_type: b[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        })
    }

    /// The header as the kernel wants it.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = self.flags;
        b[1] = self.gso_type;
        b[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        b[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        b[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        b[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        b
    }
}

/// An open TAP device; it vanishes when this is dropped, unless it has been made to [stay](Tap::stay).
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
}

// === impl Tap ===

impl Tap {
    /// The longest read: a header, an Ethernet header and 64 KiB of IP packet.
    pub const MAX_READ: usize = VnetHeader::LEN + 18 + 65_536;

    /// Makes a TAP called `name` in the calling thread's network namespace. It takes and gives
    /// frames with partial checksums and TCP super-frames (IPv4, IPv6, ECN), and never blocks.
    ///
    /// # Errors
    /// When `/dev/net/tun` is missing, the name is taken or longer than 15 bytes, or CAP_NET_ADMIN is.
    pub fn create(name: &str) -> Result<Self, TapError> {
        let failed = |action, source| TapError {
            name: name.to_owned(),
            action,
            source,
        };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(|e| {
            failed(
                "could not open /dev/net/tun (load the module: modprobe tun)",
                e.into(),
            )
        })?;

        // SAFETY: `ifreq` is plain data for which all zeroes is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // One byte stays zero: the kernel's names are C strings.
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            let source = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(failed("a device's name has 1 to 15 bytes", source));
        }
        for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            // (A C char is signed here and unsigned there.)
            *slot = byte as libc::c_char;
        }
        let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags =
            i16::try_from(kind).map_err(|_| failed("flags", io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
            .map_err(|e| failed("could not make it (is the name free, are we root?)", e))?;

        let header_len = VnetHeader::LEN as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one `int` through the pointer.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header_len) })
            .map_err(|e| failed("could not set its header's length", e))?;

        let tap = Self { fd };
        tap.set_segmentation_offload(true)
            .map_err(|e| failed("could not turn on checksum and segmentation offload", e))?;
        Ok(tap)
    }

    /// Leaves the device in its network namespace when this is dropped, so that another process can open
    /// it by its name. It then goes with the namespace.
    ///
    /// # Errors
    /// The system's.
    pub fn stay(self) -> io::Result<()> {
        // SAFETY: TUNSETPERSIST takes its argument by value.
        check(unsafe {
            let yes: libc::c_ulong = 1;
            libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETPERSIST, yes)
        })
    }

    /// Whether it is given TCP super-frames whole, or their segments one by one. Checksums may be
    /// partial either way.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_segmentation_offload(&self, whole: bool) -> io::Result<()> {
        let segmentation = libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let offload = libc::TUN_F_CSUM | if whole { segmentation } else { 0 };
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        check(unsafe {
            libc::ioctl(
                self.fd.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(offload),
            )
        })
    }

    /// Takes the next frame, header first, into `buffer` and returns its length.
    ///
    /// # Errors
    /// `WouldBlock` when there is none.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }

    /// Hands the kernel one frame, header first. The kernel takes all of it or none.
    ///
    /// # Errors
    /// `WouldBlock`, or the kernel's reason for refusing the frame.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.fd, frame)?;
        Ok(())
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A TAP that another process has made and handed on, as [`Tap::create`] makes them.
impl From<OwnedFd> for Tap {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<Tap> for OwnedFd {
    fn from(tap: Tap) -> Self {
        tap.fd
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        let header = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: VnetHeader::GSO_TCPV6 | VnetHeader::GSO_ECN,
            hdr_len: 86,
            gso_size: 1428,
            csum_start: 54,
            csum_offset: 16,
        };
        assert_eq!(VnetHeader::read(&header.to_bytes()), Some(header));
    }

    #[test]
    fn a_short_header_is_no_header() {
        assert_eq!(VnetHeader::read(&[0; VnetHeader::LEN - 1]), None);
    }
}
