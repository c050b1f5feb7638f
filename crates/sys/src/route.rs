//! The routes of a network namespace: dump, change notifications, replacement (rtnetlink(7)).
//!
//! A route is the body of the kernel's message, a `struct rtmsg` and its attributes. This module
//! does not interpret it, so no attribute gets lost.

use std::os::fd::OwnedFd;

use netlink_packet_core::NetlinkBuffer;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, getsockname, recv,
    recvfrom, send, socket_with,
};

use crate::netlink::{
    ACK, ANSWER_TIMEOUT, DUMP, DUMP_INTERRUPTED, Message, NLMSG_DONE, NLMSG_ERROR, REPLACE,
    REQUEST, ROUTE, code,
};
use crate::{Errno, raw_sockopt};

/// linux/rtnetlink.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
/// The id of the main table.
pub const MAIN_TABLE: u8 = 254;
/// The bits of `RTNLGRP_IPV4_ROUTE` and `RTNLGRP_IPV6_ROUTE`.
const GROUPS: u32 = 1 << (7 - 1) | 1 << (11 - 1);

/// The size of the receive buffer in bytes; an answer of the kernel has 32 KiB or less.
const ANSWER_BUFFER: usize = 64 << 10;
/// Size of the socket buffer for notifications in bytes: room for some thousand changes that arrive
/// during a long dump.
const NOTIFICATION_BUFFER: usize = 4 << 20;
/// The maximum number of datagrams that one call of [`Routes::changes`] reads. The socket buffer
/// holds fewer. The limit stops root of an untrusted namespace from keeping the loop busy by
/// sending.
const MAX_DATAGRAMS: usize = 10_000;

/// The IP version of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A notification: a route was added, changed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChange<'a> {
    /// The route as it is now, or as it was before its removal.
    pub route: &'a [u8],
    /// Whether the route was removed.
    pub is_gone: bool,
    /// Whether [`Routes::replace`] of the same value caused the change.
    pub is_own: bool,
}

/// Reads and replaces the routes of the network namespace where it was opened. The namespace exists
/// while this value exists.
#[derive(Debug)]
pub struct Routes {
    requests: OwnedFd,
    notifications: OwnedFd,
    /// The port ID of `requests`, which notifications of its requests carry.
    own: u32,
    sequence: u32,
    answer: Vec<u8>,
}

// === impl Family ===

impl Family {
    /// Returns the family with this number, or `None` if it is neither IPv4 nor IPv6.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::V4, Self::V6]
            .into_iter()
            .find(|family| family.number() == number)
    }

    /// Returns `AF_INET` or `AF_INET6`.
    pub fn number(self) -> u8 {
        let number = match self {
            Self::V4 => libc::AF_INET,
            Self::V6 => libc::AF_INET6,
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "2 and 10"
        )]
        {
            number as u8
        }
    }
}

// === impl Routes ===

impl Routes {
    /// Opens the calling thread's network namespace. [`Self::changes`] reports all changes from
    /// then on.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2).
    pub fn open() -> Result<Self, Errno> {
        let notifications = socket(GROUPS)?;
        // Without CAP_NET_ADMIN the buffer keeps its default size.
        let _ = sockopt::set_socket_recv_buffer_size_force(&notifications, NOTIFICATION_BUFFER);
        let requests = socket(0)?;
        // A connected socket receives from the kernel only. Root of an untrusted namespace could
        // otherwise forge answers.
        connect(&requests, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&requests, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        set_strict(&requests)?;
        let own = SocketAddrNetlink::try_from(getsockname(&requests)?)?.pid();
        Ok(Self {
            requests,
            notifications,
            own,
            sequence: 0,
            answer: vec![0; ANSWER_BUFFER],
        })
    }

    /// Calls `each` with every route of the main table while `goes_on` returns true. Returns
    /// `false` if the kernel flags the dump as incomplete.
    ///
    /// The kernel flags dumps of other objects but never those of routes. It resumes a dump by
    /// destination in IPv4, and by the number of routes already sent in IPv6. So if a route is
    /// added or removed meanwhile, unrelated routes may be missing or repeated; [`Self::changes`]
    /// reports whether that happened.
    ///
    /// # Errors
    /// `EAGAIN` if the kernel does not answer; `ETIMEDOUT` if `goes_on` returned false; `EMSGSIZE`
    /// if an answer exceeds the buffer.
    pub fn list(
        &mut self,
        family: Family,
        goes_on: impl Fn() -> bool,
        mut each: impl FnMut(&[u8]),
    ) -> Result<bool, Errno> {
        // `struct rtmsg`; the kernel reads family and table of a dump request.
        let mut asked = [0; 12];
        (asked[0], asked[4]) = (family.number(), MAIN_TABLE);
        self.sequence = self.sequence.wrapping_add(1);
        let request =
            Message::default().message(RTM_GETROUTE, REQUEST | DUMP, self.sequence, |message| {
                message.raw(&asked)
            });
        send(&self.requests, request.bytes(), SendFlags::empty())?;
        let mut is_whole = true;
        while goes_on() {
            let datagram = receive(&self.requests, &mut self.answer)?;
            let parsed = parse(datagram, self.sequence, |kind, flags, body| {
                is_whole &= flags & DUMP_INTERRUPTED == 0;
                // A kernel without this protocol may dump another one.
                if kind == RTM_NEWROUTE && body.first() == Some(&family.number()) {
                    each(body);
                }
            });
            match parsed {
                Ok(true) => return Ok(is_whole),
                Ok(false) => {}
                // The kernel has no such table or no such protocol.
                Err(Errno::NOENT | Errno::AFNOSUPPORT | Errno::OPNOTSUPP) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::TIMEDOUT)
    }

    /// Replaces the route with the same destination and priority (NLM_F_REPLACE without
    /// NLM_F_CREATE).
    ///
    /// # Errors
    /// `ENOENT` if there is no such route; `EPERM` without CAP_NET_ADMIN; otherwise the kernel's
    /// error if it rejects the route. The existing route is unchanged then.
    pub fn replace(&mut self, route: &[u8]) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = REQUEST | ACK | REPLACE;
        let request = Message::default().message(RTM_NEWROUTE, flags, self.sequence, |message| {
            message.raw(route)
        });
        send(&self.requests, request.bytes(), SendFlags::empty())?;
        loop {
            let datagram = receive(&self.requests, &mut self.answer)?;
            if parse(datagram, self.sequence, |_, _, _| {})? {
                return Ok(());
            }
        }
    }

    /// Calls `each` with every change since the last call, or since the value was opened, in the
    /// kernel's order. Returns `false` if changes were lost: the socket buffer overflowed, or more
    /// arrived than one call reads.
    ///
    /// # Errors
    /// Those of recvfrom(2).
    pub fn changes(&mut self, each: impl FnMut(RouteChange<'_>)) -> Result<bool, Errno> {
        self.read_changes(MAX_DATAGRAMS, each)
    }

    /// Reads up to `most` datagrams.
    fn read_changes(
        &mut self,
        most: usize,
        mut each: impl FnMut(RouteChange<'_>),
    ) -> Result<bool, Errno> {
        let mut is_whole = true;
        for _ in 0..most {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let (filled, whole, from) =
                match recvfrom(&self.notifications, &mut self.answer[..], flags) {
                    Ok((filled, whole, from)) => (filled, whole, from),
                    Err(Errno::AGAIN) => return Ok(is_whole),
                    Err(Errno::NOBUFS) => {
                        is_whole = false;
                        continue;
                    }
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(error),
                };
            // Root of the namespace may send to the multicast groups, too.
            let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            is_whole &= whole <= filled;
            let mut datagram = &self.answer[..filled];
            while let Ok(message) = NetlinkBuffer::new_checked(datagram) {
                let kind = message.message_type();
                if matches!(kind, RTM_NEWROUTE | RTM_DELROUTE) {
                    each(RouteChange {
                        route: message.payload(),
                        is_gone: kind == RTM_DELROUTE,
                        is_own: message.port_number() == self.own,
                    });
                }
                let length = (message.length() as usize).next_multiple_of(4);
                datagram = datagram.get(length..).unwrap_or_default();
            }
        }
        Ok(false)
    }
}

fn socket(groups: u32) -> Result<OwnedFd, Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        ROUTE,
    )?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// Makes dumps honour the requested table and omit the kernel's cached routes
/// (`NETLINK_GET_STRICT_CHK`, Linux 4.20).
fn set_strict(socket: &OwnedFd) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    raw_sockopt::set(socket, libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK, on)
}

fn receive<'a>(socket: &OwnedFd, room: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    loop {
        match recv(socket, &mut *room, RecvFlags::TRUNC) {
            Err(Errno::INTR) => {}
            Ok((filled, whole)) if whole > filled => return Err(Errno::MSGSIZE),
            Ok((filled, _)) => return Ok(&room[..filled]),
            Err(error) => return Err(error),
        }
    }
}

/// Calls `each` with type, flags and body of each message of a datagram that answers `sequence`.
/// Returns whether it was the last datagram.
///
/// # Errors
/// The error that the kernel reports; `EBADMSG` for a malformed message.
fn parse(
    mut datagram: &[u8],
    sequence: u32,
    mut each: impl FnMut(u16, u16, &[u8]),
) -> Result<bool, Errno> {
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(|_| Errno::BADMSG)?;
        let length = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
        // This answers a request that was abandoned.
        if message.sequence_number() != sequence {
            continue;
        }
        match message.message_type() {
            NLMSG_DONE | NLMSG_ERROR => {
                return match code(message.payload()) {
                    Some(error) => Err(error),
                    None => Ok(true),
                };
            }
            kind => each(kind, message.flags(), message.payload()),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use rustix::net::sendto;

    use super::*;
    use crate::netns::Netns;

    #[test]
    fn a_dump_has_routes_of_its_family_only() {
        let mut routes = Routes::open().unwrap();
        for family in [Family::V4, Family::V6] {
            let is_whole = routes.list(
                family,
                || true,
                |route| {
                    assert_eq!(route.first(), Some(&family.number()));
                    assert!(route.len() >= 12);
                },
            );
            is_whole.unwrap();
        }
    }

    #[test]
    fn messages_of_another_process_are_ignored_and_not_read_without_end() {
        let name = format!("taut-sys-{}-heard", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let open = || (Routes::open().unwrap(), socket(0).unwrap());
        let opened = netns.run(open);
        Netns::delete(&name).unwrap();
        let (mut routes, sender) = opened.unwrap();
        let text = message(RTM_NEWROUTE, 1, &[2; 12]);
        for _ in 0..5 {
            let to = SocketAddrNetlink::new(0, GROUPS);
            // The message also goes to the kernel, which rejects it.
            sendto(&sender, &text, SendFlags::empty(), &to).unwrap();
        }
        let mut read_changes = |most| routes.read_changes(most, |heard| panic!("{heard:?}"));
        assert_eq!(read_changes(3), Ok(false));
        assert_eq!(read_changes(3), Ok(true));
    }

    /// Returns a message about `sequence`, as the kernel would send it.
    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let message = Message::default().message(kind, 0, sequence, |message| message.raw(body));
        message.bytes().to_vec()
    }

    #[test]
    fn the_end_of_a_dump_differs_from_an_error_and_from_another_dumps_end() {
        let parsed = |datagram: &[u8]| parse(datagram, 1, |_, _, _| {});
        let (yes, no) = (0i32.to_ne_bytes(), (-libc::EPERM).to_ne_bytes());
        assert_eq!(parsed(&message(NLMSG_DONE, 1, &yes)), Ok(true));
        assert_eq!(parsed(&message(NLMSG_ERROR, 1, &yes)), Ok(true));
        assert_eq!(parsed(&message(NLMSG_ERROR, 9, &no)), Ok(false));
        assert_eq!(parsed(&message(NLMSG_ERROR, 1, &no)), Err(Errno::PERM));
        assert_eq!(parsed(&message(NLMSG_DONE, 1, &no)), Err(Errno::PERM));
    }

    #[test]
    fn truncated_or_changed_bytes_do_no_harm() {
        let mut datagram = message(RTM_NEWROUTE, 1, &[2; 40]);
        datagram.extend(message(NLMSG_DONE, 1, &[0; 4]));
        let mut bodies = 0;
        let end = parse(&datagram, 1, |kind, _, body| {
            assert_eq!((kind, body), (RTM_NEWROUTE, &[2; 40][..]));
            bodies += 1;
        });
        assert_eq!((end, bodies), (Ok(true), 1));
        for at in 0..datagram.len() {
            let _ = parse(&datagram[..at], 1, |_, _, _| {});
            for value in [0, 1, 3, 0x7f, 0xff] {
                let mut changed = datagram.clone();
                changed[at] = value;
                let _ = parse(&changed, 1, |_, _, _| {});
            }
        }
    }
}
