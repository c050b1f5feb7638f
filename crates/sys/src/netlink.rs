//! A builder of netlink messages, and a request that waits for its acknowledgement (netlink(7)).

use std::io;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, recv,
    send, socket_with,
};

/// Marks an attribute that contains attributes (NLA_F_NESTED).
const NESTED: u16 = 0x8000;
/// The bits of an attribute's kind that are no flags (NLA_TYPE_MASK).
const KIND: u16 = 0x3fff;

/// Links, addresses, qdiscs (NETLINK_ROUTE). The protocol number is 0, which rustix expresses as
/// `None`.
pub(crate) const ROUTE: Option<Protocol> = None;
/// nftables, among others (NETLINK_NETFILTER).
pub(crate) const NETFILTER: Option<Protocol> = Some(netlink::NETFILTER);

/// Request flags (linux/netlink.h).
pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const DUMP: u16 = 0x300;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const EXCL: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
pub(crate) const REPLACE: u16 = 0x100;

/// Flag of a dump that changed while it was read and may be incomplete (NLM_F_DUMP_INTR).
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;

/// Message types common to all netlink families.
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

/// The time limit for an answer. The kernel answers at once; the limit is only a safeguard.
pub(crate) const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// One or more netlink messages under construction.
#[derive(Default)]
pub(crate) struct Message(Vec<u8>);

/// A message from the kernel.
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

// === impl Message ===

impl Message {
    /// Returns the bytes to send.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends a message: a header, then the content that `body` appends.
    pub(crate) fn message(
        mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        body: impl FnOnce(Self) -> Self,
    ) -> Self {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 4]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(&flags.to_ne_bytes());
        self.0.extend_from_slice(&sequence.to_ne_bytes());
        self.0.extend_from_slice(&[0; 4]);
        let mut message = body(self);
        let length = u32::try_from(message.0.len() - start).expect("a probe's message is short");
        message.0[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        message
    }

    /// Appends bytes unchanged, such as a family's fixed header.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends an attribute.
    pub(crate) fn attribute(self, kind: u16, value: &[u8]) -> Self {
        self.put(kind, |m| m.raw(value))
    }

    /// Appends a string attribute with its terminating zero.
    pub(crate) fn name(self, kind: u16, value: &str) -> Self {
        self.put(kind, |m| m.raw(value.as_bytes()).raw(&[0]))
    }

    /// Appends an attribute that contains the attributes that `content` appends.
    pub(crate) fn nest(self, kind: u16, content: impl FnOnce(Self) -> Self) -> Self {
        self.put(kind | NESTED, content)
    }

    fn put(mut self, kind: u16, value: impl FnOnce(Self) -> Self) -> Self {
        let start = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        let mut message = value(self);
        let length = u16::try_from(message.0.len() - start).expect("a probe's attribute is short");
        message.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        message.0.resize(message.0.len().next_multiple_of(4), 0);
        message
    }

    /// Sends the messages to the kernel and waits for the acknowledgement of message `last`.
    ///
    /// # Errors
    /// The first error that the kernel reports for any of the messages.
    pub(crate) fn send(self, protocol: Option<Protocol>, last: u32) -> io::Result<()> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // A connected socket receives from the kernel only. Root of an untrusted namespace could
        // otherwise forge answers.
        connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        send(&socket, &self.0, SendFlags::empty())?;
        let mut buffer = [0; 8192];
        loop {
            let (length, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
            if acknowledges(&buffer[..length], last)? {
                return Ok(());
            }
        }
    }
}

/// Removes the first message from a datagram. Returns `None` if it is malformed.
pub(crate) fn next_message<'a>(datagram: &mut &'a [u8]) -> Option<Received<'a>> {
    let header = datagram.first_chunk::<16>()?;
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let word = |at: usize| -> [u8; 4] { std::array::from_fn(|byte| header[at + byte]) };
    let length = u32::from_ne_bytes(word(0)) as usize;
    let message = Received {
        kind: half(4),
        flags: half(6),
        sequence: u32::from_ne_bytes(word(8)),
        payload: datagram.get(16..length)?,
    };
    *datagram = datagram
        .get(length.next_multiple_of(4)..)
        .unwrap_or_default();
    Some(message)
}

/// Removes the first attribute from a list. Returns its kind and its value; `None` if it is malformed.
pub(crate) fn next_attribute<'a>(list: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let [a, b, c, d] = *list.first_chunk()?;
    let length = usize::from(u16::from_ne_bytes([a, b]));
    let value = list.get(4..length)?;
    *list = list.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((u16::from_ne_bytes([c, d]) & KIND, value))
}

/// Returns the error code at the start of a payload, or `None` if it is not an error.
pub(crate) fn code(payload: &[u8]) -> Option<Errno> {
    let code = i32::from_ne_bytes(payload.get(..4)?.try_into().ok()?);
    // The kernel's error codes lie between -4095 and -1.
    (-4095..0)
        .contains(&code)
        .then(|| Errno::from_raw_os_error(-code))
}

/// Returns whether a datagram from the kernel acknowledges message `last`.
///
/// # Errors
/// The first error in the datagram.
fn acknowledges(mut datagram: &[u8], last: u32) -> io::Result<bool> {
    const HEADER: usize = 16;
    let word =
        |bytes: &[u8], at: usize| -> Option<[u8; 4]> { bytes.get(at..at + 4)?.try_into().ok() };
    while let (Some(length), Some(kind), Some(sequence)) =
        (word(datagram, 0), word(datagram, 4), word(datagram, 8))
    {
        let length = u32::from_ne_bytes(length) as usize;
        if u16::from_ne_bytes([kind[0], kind[1]]) == NLMSG_ERROR
            && let Some(code) = word(datagram, HEADER)
        {
            match i32::from_ne_bytes(code) {
                0 if u32::from_ne_bytes(sequence) == last => return Ok(true),
                0 => {}
                code => return Err(io::Error::from_raw_os_error(-code)),
            }
        }
        let next = length.max(HEADER).next_multiple_of(4).min(datagram.len());
        datagram = &datagram[next..];
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_padded_but_its_length_field_excludes_the_padding() {
        let message = Message::default().name(1, "lo");
        assert_eq!(message.0.len(), 8);
        assert_eq!(message.0[..2], 7u16.to_ne_bytes());
    }

    #[test]
    fn messages_and_attributes_are_read_as_they_are_written() {
        let message = Message::default().message(20, DUMP_INTERRUPTED, 7, |message| {
            message
                .attribute(1, &[1, 2, 3])
                .nest(2, |nested| nested.raw(&[9; 4]))
        });
        let message = message.message(3, 0, 8, |message| message);
        let mut datagram = message.bytes();
        let first = next_message(&mut datagram).unwrap();
        assert_eq!(
            (first.kind, first.flags, first.sequence),
            (20, DUMP_INTERRUPTED, 7)
        );
        let mut list = first.payload;
        assert_eq!(next_attribute(&mut list), Some((1, &[1, 2, 3][..])));
        assert_eq!(next_attribute(&mut list), Some((2, &[9; 4][..])));
        assert_eq!((list.len(), next_attribute(&mut list)), (0, None));
        let second = next_message(&mut datagram).unwrap();
        assert_eq!(
            (second.kind, second.sequence, second.payload.len()),
            (3, 8, 0)
        );
        assert!(datagram.is_empty());
    }

    #[test]
    fn lengths_outside_the_data_are_malformed() {
        for length in [0u32, 15, 21, u32::MAX] {
            let mut datagram = [length.to_ne_bytes(), [0; 4], [0; 4], [0; 4], [0; 4]].concat();
            assert!(next_message(&mut &datagram[..]).is_none(), "{length}");
            datagram.truncate(15);
            assert!(next_message(&mut &datagram[..]).is_none(), "{length}");
        }
        for length in [0u16, 3, 9, u16::MAX] {
            let list = [length.to_ne_bytes(), [0; 2], [0; 2], [0; 2]].concat();
            assert!(next_attribute(&mut &list[..]).is_none(), "{length}");
            assert!(next_attribute(&mut &list[..3]).is_none(), "{length}");
        }
    }

    #[test]
    fn the_first_error_of_a_batch_is_returned() {
        let reply = |sequence, code: i32| {
            Message::default().message(2, 0, sequence, |m| m.raw(&code.to_ne_bytes()))
        };
        let mut datagram = reply(1, 0).0;
        assert!(!acknowledges(&datagram, 2).unwrap());
        datagram.extend(reply(2, -libc::ENOENT).0);
        let error = acknowledges(&datagram, 2).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        assert!(acknowledges(&reply(2, 0).0, 2).unwrap());
    }

    #[test]
    fn a_truncated_datagram_acknowledges_nothing() {
        assert!(!acknowledges(&[1, 2, 3], 1).unwrap());
    }
}
