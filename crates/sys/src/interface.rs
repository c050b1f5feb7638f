//! Network interfaces of the calling thread's namespace, by index and by name.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::Errno;
use crate::netlink::{ACK, Message, REQUEST, ROUTE};
use crate::route::Family;

/// linux/rtnetlink.h, linux/netconf.h.
const RTM_GETNETCONF: u16 = 82;
const NETCONFA_IFINDEX: u16 = 1;

/// Asks for many interfaces of the network namespace in which it was opened, through one socket.
#[derive(Debug)]
pub struct InterfaceLookup(OwnedFd);

// === impl InterfaceLookup ===

impl InterfaceLookup {
    /// For the network namespace that the calling thread is in.
    ///
    /// # Errors
    /// The system's: no descriptors are left.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        Ok(Self(socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            flags,
            None,
        )?))
    }

    /// The index of the interface that has this name now. `None`: there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn index(&self, name: &CStr) -> io::Result<Option<u32>> {
        let name = name.to_bytes_with_nul();
        // Longer than any is.
        if name.len() > libc::IF_NAMESIZE {
            return Ok(None);
        }
        // SAFETY: `struct ifreq` has only numbers in it, all of which may be zero.
        let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, &from) in asked.ifr_name.iter_mut().zip(name) {
            *to = from as libc::c_char;
        }
        // SAFETY: the descriptor is open, and the kernel reads and writes one `struct ifreq`, which lives until the call returns.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut asked) };
        if done < 0 {
            return none();
        }
        // SAFETY: all bytes of it were set, and any value is a number.
        let index = unsafe { asked.ifr_ifru.ifru_ifindex };
        Ok(u32::try_from(index).ok())
    }
}

/// Whether the kernel has anything of this protocol for the interface: without it has no settings of it, and when it has it anew they are new. An
/// interface that is being called otherwise keeps it.
///
/// # Errors
/// The system's, and a kernel's without that protocol.
pub fn has_family(index: u32, family: Family) -> io::Result<bool> {
    // `struct netconfmsg`, with what fills it up.
    let header = [family.number(), 0, 0, 0];
    let request = Message::default().message(RTM_GETNETCONF, REQUEST | ACK, 1, |message| {
        let message = message.raw(&header);
        message.attribute(NETCONFA_IFINDEX, &index.to_ne_bytes())
    });
    match request.ask(ROUTE, 1) {
        Ok(()) => Ok(true),
        Err(error) => match Errno::from_io_error(&error) {
            // Kernels say the first of an interface without it, and the second of none.
            Some(Errno::INVAL | Errno::NODEV) => Ok(false),
            _ => Err(error),
        },
    }
}

/// What the interface with this index is called now: bytes of its owner's choice. `None`: there is none.
///
/// # Errors
/// The system's: no descriptors are left to ask with.
pub fn name(index: u32) -> io::Result<Option<CString>> {
    let mut buffer = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the library writes at most `IF_NAMESIZE` bytes, a zero among them, to `buffer`, which lives until the call returns.
    let named = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr().cast()) };
    if named.is_null() {
        return none();
    }
    let name = CStr::from_bytes_until_nul(&buffer).map_err(io::Error::other)?;
    Ok(Some(name.to_owned()))
}

/// The index of the interface that has this name now. `None`: there is none.
///
/// # Errors
/// As of [`name`].
pub fn index(name: &CStr) -> io::Result<Option<u32>> {
    // SAFETY: `name` ends with a zero and lives until the call returns; the library only reads it.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => none(),
        index => Ok(Some(index)),
    }
}

/// The last call found nothing, or failed.
fn none<T>() -> io::Result<Option<T>> {
    let error = io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        // The C libraries say NXIO where the kernel says NODEV.
        Some(Errno::NXIO | Errno::NODEV) => Ok(None),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_known_by_index_and_by_name() {
        assert_eq!(index(c"lo").unwrap(), Some(1));
        assert_eq!(name(1).unwrap().as_deref(), Some(c"lo"));
    }

    #[test]
    fn many_are_asked_for_through_one_socket() {
        let interfaces = InterfaceLookup::open().unwrap();
        for _ in 0..2 {
            assert_eq!(interfaces.index(c"lo").unwrap(), Some(1));
            assert_eq!(interfaces.index(c"nobody-has-it").unwrap(), None);
            let longest = interfaces.index(c"a-name-that-is-longer-than-any");
            assert_eq!(longest.unwrap(), None);
        }
    }

    #[test]
    fn a_protocol_is_there_or_it_is_not() {
        assert!(has_family(1, Family::V4).unwrap());
        assert!(!has_family(i32::MAX as u32, Family::V4).unwrap());
        assert!(!has_family(i32::MAX as u32, Family::V6).unwrap());
    }

    #[test]
    fn none_is_none_and_no_failure() {
        assert_eq!(index(c"nobody-has-it").unwrap(), None);
        assert_eq!(name(0).unwrap(), None);
        assert_eq!(name(i32::MAX as u32).unwrap(), None);
    }
}
