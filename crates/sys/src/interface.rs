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

/// Looks up the indices and flags of many interfaces through one socket, in the network namespace
/// where it was opened.
#[derive(Debug)]
pub struct InterfaceLookup(OwnedFd);

// === impl InterfaceLookup ===

impl InterfaceLookup {
    /// Opens a lookup for the calling thread's network namespace.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE`.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        Ok(Self(socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            flags,
            None,
        )?))
    }

    /// Returns the index of the interface with this name, or `None` if there is none.
    ///
    /// # Errors
    /// Those of netdevice(7), `SIOCGIFINDEX`.
    pub fn index(&self, name: &CStr) -> io::Result<Option<u32>> {
        let answer = self.ask(name, libc::SIOCGIFINDEX)?;
        // SAFETY: all bytes of the union are initialised, and any bytes are a valid integer.
        let index = answer.map(|answer| unsafe { answer.ifr_ifru.ifru_ifindex });
        Ok(index.and_then(|index| u32::try_from(index).ok()))
    }

    /// Returns the `IFF_` flags of the interface with this name, or `None` if there is none.
    ///
    /// # Errors
    /// Those of netdevice(7), `SIOCGIFFLAGS`.
    pub fn flags(&self, name: &CStr) -> io::Result<Option<u16>> {
        let answer = self.ask(name, libc::SIOCGIFFLAGS)?;
        // SAFETY: all bytes of the union are initialised, and any bytes are a valid integer.
        let flags = answer.map(|answer| unsafe { answer.ifr_ifru.ifru_flags });
        Ok(flags.map(i16::cast_unsigned))
    }

    /// Asks a question of netdevice(7) about the interface with this name.
    fn ask(&self, name: &CStr, question: libc::Ioctl) -> io::Result<Option<libc::ifreq>> {
        let name = name.to_bytes_with_nul();
        // No interface name is longer.
        if name.len() > libc::IF_NAMESIZE {
            return Ok(None);
        }
        // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
        let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, &from) in asked.ifr_name.iter_mut().zip(name) {
            *to = from as libc::c_char;
        }
        // SAFETY: the descriptor is open; the kernel reads and writes one `ifreq`, which outlives
        // the call.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), question, &raw mut asked) };
        if done < 0 {
            return none_or_error();
        }
        Ok(Some(asked))
    }
}

/// Returns whether the interface has settings for this IP version (`in_device`, `inet6_dev`). The
/// kernel drops the settings when the interface loses the protocol, and creates them with default
/// values when it gets the protocol back. Renaming the interface keeps them.
///
/// # Errors
/// The kernel's error, including that of a kernel built without the protocol.
pub fn has_family(index: u32, family: Family) -> io::Result<bool> {
    // `struct netconfmsg` with its padding.
    let header = [family.number(), 0, 0, 0];
    let request = Message::default().message(RTM_GETNETCONF, REQUEST | ACK, 1, |message| {
        let message = message.raw(&header);
        message.attribute(NETCONFA_IFINDEX, &index.to_ne_bytes())
    });
    match request.send(ROUTE, 1) {
        Ok(()) => Ok(true),
        Err(error) => match Errno::from_io_error(&error) {
            // EINVAL: the interface lacks the protocol. ENODEV: there is no such interface.
            Some(Errno::INVAL | Errno::NODEV) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Returns the name of the interface with this index, or `None` if there is none. A name may
/// contain any bytes.
///
/// # Errors
/// `EMFILE` or `ENFILE`: the C library needs a socket.
pub fn name(index: u32) -> io::Result<Option<CString>> {
    let mut buffer = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the library writes at most `IF_NAMESIZE` bytes, a terminating zero included, to
    // `buffer`, which outlives the call.
    let named = unsafe { libc::if_indextoname(index, buffer.as_mut_ptr().cast()) };
    if named.is_null() {
        return none_or_error();
    }
    let name = CStr::from_bytes_until_nul(&buffer).map_err(io::Error::other)?;
    Ok(Some(name.to_owned()))
}

/// Returns the index of the interface with this name, or `None` if there is none.
///
/// # Errors
/// Those of [`name`].
pub fn index(name: &CStr) -> io::Result<Option<u32>> {
    // SAFETY: `name` is zero-terminated and outlives the call; the library only reads it.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => none_or_error(),
        index => Ok(Some(index)),
    }
}

/// Interprets the last system error: either "no such interface" or a failure.
fn none_or_error<T>() -> io::Result<Option<T>> {
    let error = io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        // The C library reports ENXIO where the kernel reports ENODEV.
        Some(Errno::NXIO | Errno::NODEV) => Ok(None),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_found_by_index_and_by_name() {
        assert_eq!(index(c"lo").unwrap(), Some(1));
        assert_eq!(name(1).unwrap().as_deref(), Some(c"lo"));
    }

    #[test]
    fn one_socket_looks_up_many_names() {
        let interfaces = InterfaceLookup::open().unwrap();
        for _ in 0..2 {
            assert_eq!(interfaces.index(c"lo").unwrap(), Some(1));
            assert_eq!(interfaces.index(c"nobody-has-it").unwrap(), None);
            let longest = interfaces.index(c"a-name-that-is-longer-than-any");
            assert_eq!(longest.unwrap(), None);
            let flags = interfaces.flags(c"lo").unwrap().unwrap();
            assert_ne!(i32::from(flags) & libc::IFF_LOOPBACK, 0);
            assert_eq!(interfaces.flags(c"nobody-has-it").unwrap(), None);
        }
    }

    #[test]
    fn an_interface_has_a_protocol_or_lacks_it() {
        assert!(has_family(1, Family::V4).unwrap());
        assert!(!has_family(i32::MAX as u32, Family::V4).unwrap());
        assert!(!has_family(i32::MAX as u32, Family::V6).unwrap());
    }

    #[test]
    fn a_missing_interface_is_none_and_not_an_error() {
        assert_eq!(index(c"nobody-has-it").unwrap(), None);
        assert_eq!(name(0).unwrap(), None);
        assert_eq!(name(i32::MAX as u32).unwrap(), None);
    }
}
