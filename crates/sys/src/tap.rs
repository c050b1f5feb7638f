//! TAP devices that prefix frames with a virtio-net header, so that GSO super-frames pass whole.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// A failed operation on a TAP device.
#[derive(Debug, thiserror::Error)]
#[error("tap {name}: {action}: {source}")]
pub struct TapError {
    name: String,
    action: &'static str,
    source: io::Error,
}

/// The header before each frame that is read from or written to the TAP: `struct virtio_net_hdr`,
/// in the machine's byte order (virtio 1.2, 5.1.6, legacy layout).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VnetHeader {
    /// [`VnetHeader::NEEDS_CSUM`], [`VnetHeader::DATA_VALID`] or 0.
    pub flags: u8,
    /// One of the `GSO_*` values, possibly combined with [`VnetHeader::GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of the frame before the TCP payload.
    pub hdr_len: u16,
    /// TCP payload of each segment, in bytes.
    pub gso_size: u16,
    /// With `NEEDS_CSUM`: offset in the frame where the checksum starts.
    pub csum_start: u16,
    /// With `NEEDS_CSUM`: offset of the checksum field after `csum_start`.
    pub csum_offset: u16,
}

// === impl VnetHeader ===

impl VnetHeader {
    /// Length of the encoded header, in bytes.
    pub const LEN: usize = 10;
    /// Flag: the checksum field holds only the pseudo-header's sum and must be completed.
    pub const NEEDS_CSUM: u8 = 1;
    /// Flag: the checksum has been verified.
    pub const DATA_VALID: u8 = 2;
    /// The frame is one packet.
    pub const GSO_NONE: u8 = 0;
    /// The frame is many TCP segments over IPv4.
    pub const GSO_TCPV4: u8 = 1;
    /// The frame is many TCP segments over IPv6.
    pub const GSO_TCPV6: u8 = 4;
    /// Added to the type: CWR is set, for the first segment only.
    pub const GSO_ECN: u8 = 0x80;

    /// Parses the header at the start of `bytes`. Returns `None` for fewer than [`Self::LEN`]
    /// bytes.
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

    /// Returns the encoded header.
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

/// An open TAP device. The kernel removes the device when this is dropped, unless it was made
/// [persistent](Tap::persist).
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
}

// === impl Tap ===

impl Tap {
    /// The longest read: a virtio-net header, an Ethernet header and 64 KiB of IP packet.
    pub const MAX_READ: usize = VnetHeader::LEN + 18 + 65_536;

    /// Creates a TAP device named `name` in the calling thread's network namespace. It accepts and
    /// delivers frames with partial checksums and TCP super-frames (IPv4, IPv6, ECN). Reads and
    /// writes do not block.
    ///
    /// # Errors
    /// If `/dev/net/tun` or CAP_NET_ADMIN is missing, or the name is taken or longer than 15 bytes.
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

        // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays zero: the kernel expects a C string.
        if name.is_empty() || name.len() >= request.ifr_name.len() {
            let source = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(failed("a device name must have 1 to 15 bytes", source));
        }
        for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            // The signedness of `c_char` depends on the architecture.
            *slot = byte as libc::c_char;
        }
        let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags =
            i16::try_from(kind).map_err(|_| failed("flags", io::ErrorKind::InvalidInput.into()))?;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })
            .map_err(|e| failed("could not create it (is the name free, are we root?)", e))?;

        let header_len = VnetHeader::LEN as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one `int`, which outlives the call.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header_len) })
            .map_err(|e| failed("could not set the length of its header", e))?;

        let tap = Self { fd };
        tap.set_segmentation_offload(true)
            .map_err(|e| failed("could not turn on checksum and segmentation offload", e))?;
        Ok(tap)
    }

    /// Makes the device persistent (TUNSETPERSIST) and closes it, so that another process can open
    /// it by name. It is then removed with its network namespace.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn persist(self) -> io::Result<()> {
        // SAFETY: TUNSETPERSIST takes its argument by value.
        check(unsafe {
            let yes: libc::c_ulong = 1;
            libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETPERSIST, yes)
        })
    }

    /// Sets whether the kernel delivers TCP super-frames whole or as single segments. Checksums may
    /// be partial in both cases.
    ///
    /// # Errors
    /// The kernel's error.
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

    /// Reads the next frame, header first, into `buffer` and returns its length.
    ///
    /// # Errors
    /// `WouldBlock` if no frame is waiting.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }

    /// Writes one frame, header first. The kernel takes all of it or none.
    ///
    /// # Errors
    /// `WouldBlock`, or the kernel's error if it rejects the frame.
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

/// Takes over a TAP device that another process has created with [`Tap::create`].
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
    fn an_encoded_header_parses_to_the_same_header() {
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
    fn a_truncated_header_is_none() {
        assert_eq!(VnetHeader::read(&[0; VnetHeader::LEN - 1]), None);
    }
}
