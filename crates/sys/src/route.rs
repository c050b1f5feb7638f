//! The routes of a network namespace: listed, heard of when they change, and replaced (rtnetlink(7)).
//!
//! A route is here the body of the message that the kernel writes of it, a `struct rtmsg` and its attributes. This code knows nothing
//! of what is in it, so that nothing of it gets lost.

use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::time::Duration;

use netlink_packet_core::NetlinkBuffer;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, connect, getsockname, recv,
    recvfrom, send, socket_with,
};

use crate::Errno;
use crate::netlink::{
    ACK, DUMP, DUMP_INTERRUPTED, Message, NLMSG_DONE, NLMSG_ERROR, REPLACE, REQUEST, ROUTE, code,
};

/// linux/rtnetlink.h.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RT_TABLE_MAIN: u8 = 254;
/// The bits of `RTNLGRP_IPV4_ROUTE` and `RTNLGRP_IPV6_ROUTE`.
const GROUPS: u32 = 1 << (7 - 1) | 1 << (11 - 1);

/// Bytes of one answer; the kernel fills no more than 32 KiB.
const ROOM: usize = 64 << 10;
/// Of what is heard while a long list is read: some thousand changes.
const NOTIFICATION_BUFFER: usize = 4 << 20;
/// The kernel answers at once; this is against a kernel that does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// Datagrams that are read of what is heard, at one time. There is not room for so many: who is root in the namespace talks as fast as they are read.
const MAX_DATAGRAMS: usize = 10_000;

/// Of which protocol routes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What was heard: a route that is as it is told now, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteChange<'a> {
    /// It.
    pub route: &'a [u8],
    /// Whether it is gone.
    pub is_gone: bool,
    /// Whether it was [`Routes::replace`] that did it.
    pub is_own: bool,
}

/// Asks the kernel for the routes of the network namespace in which it was opened, which lives as long as this does.
#[derive(Debug)]
pub struct Routes {
    requests: OwnedFd,
    notifications: OwnedFd,
    /// The kernel's name of `requests`, which is in what is heard of its requests.
    own: u32,
    sequence: u32,
    answer: Vec<u8>,
}

// === impl Family ===

impl Family {
    /// The kernel's number of it.
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
    /// For the network namespace that the calling thread is in. What changes from now on is heard.
    ///
    /// # Errors
    /// The system's.
    pub fn open() -> Result<Self, Errno> {
        let notifications = socket(GROUPS)?;
        // Without the right to that it has the room that everybody has.
        let _ = sockopt::set_socket_recv_buffer_size_force(&notifications, NOTIFICATION_BUFFER);
        let requests = socket(0)?;
        // Then nobody but the kernel can answer. The namespace may be a stranger's, who is root there.
        connect(&requests, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&requests, Timeout::Recv, Some(PATIENCE))?;
        set_strict(&requests)?;
        let own = SocketAddrNetlink::try_from(getsockname(&requests)?)?.pid();
        Ok(Self {
            requests,
            notifications,
            own,
            sequence: 0,
            answer: vec![0; ROOM],
        })
    }

    /// Hands over every route of the main table, as long as it `goes_on`. `false`: the kernel says that the list is not whole.
    ///
    /// It says so of other lists, and of those of routes never: it goes on where it was by the destination in IPv4, and in IPv6 by how many routes it has told of,
    /// so that some that nobody has touched are missing, or are told twice, where another came or went. Whether one did is [Self::changes].
    ///
    /// # Errors
    /// `EAGAIN`: the kernel does not answer. `ETIMEDOUT`: it did not go on for so long. `EMSGSIZE`: the kernel answers with more than it may.
    pub fn list(
        &mut self,
        family: Family,
        goes_on: impl Fn() -> bool,
        mut each: impl FnMut(&[u8]),
    ) -> Result<bool, Errno> {
        // `struct rtmsg`; of a list only the table is read.
        let mut asked = [0; 12];
        (asked[0], asked[4]) = (family.number(), RT_TABLE_MAIN);
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
                // A kernel without this protocol may tell of another.
                if kind == RTM_NEWROUTE && body.first() == Some(&family.number()) {
                    each(body);
                }
            });
            match parsed {
                Ok(true) => return Ok(is_whole),
                Ok(false) => {}
                // There is no such table, or no such protocol.
                Err(Errno::NOENT | Errno::AFNOSUPPORT | Errno::OPNOTSUPP) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::TIMEDOUT)
    }

    /// Puts this route in the place of the one that has its destination and its priority. It makes none where none is.
    ///
    /// # Errors
    /// `ENOENT`: there is none. `EPERM` without CAP_NET_ADMIN. Else the kernel does not take the route, and the one that is there stays.
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

    /// Hands over what was heard since it was called the last time, or since this was opened, in the kernel's order. `false`: it was more than there was room for, or more than is
    /// read at one time, and some is not told.
    ///
    /// # Errors
    /// The system's.
    pub fn changes(&mut self, each: impl FnMut(RouteChange<'_>)) -> Result<bool, Errno> {
        self.read_changes(MAX_DATAGRAMS, each)
    }

    /// Of no more than so many datagrams.
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
            // Who is root in the namespace may say something, too.
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

/// A list is then of what was asked for only: one table, and no route that the kernel has for itself (`NETLINK_GET_STRICT_CHK`, Linux 4.20).
fn set_strict(socket: &OwnedFd) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    // SAFETY: the kernel reads `size_of::<c_int>()` bytes of `on`, which lives until the call returns.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_NETLINK,
            libc::NETLINK_GET_STRICT_CHK,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
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

/// Hands over kind, flags and body of each message of a datagram that answers `sequence`. `true`: it was the last.
///
/// # Errors
/// The kernel's; `EBADMSG` for what is no netlink message.
fn parse(
    mut datagram: &[u8],
    sequence: u32,
    mut each: impl FnMut(u16, u16, &[u8]),
) -> Result<bool, Errno> {
    while !datagram.is_empty() {
        let message = NetlinkBuffer::new_checked(datagram).map_err(|_| Errno::BADMSG)?;
        let length = (message.length() as usize).next_multiple_of(4);
        datagram = datagram.get(length..).unwrap_or_default();
        // Of a list that was given up.
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
    fn a_list_has_routes_of_its_family_only() {
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
    fn what_somebody_else_says_is_not_believed_and_not_read_without_end() {
        let name = format!("taut-sys-{}-heard", std::process::id());
        let netns = Netns::create(&name).unwrap();
        let open = || (Routes::open().unwrap(), socket(0).unwrap());
        let opened = netns.run(open);
        Netns::delete(&name).unwrap();
        let (mut routes, talks) = opened.unwrap();
        let text = message(RTM_NEWROUTE, 1, &[2; 12]);
        for _ in 0..5 {
            let to = SocketAddrNetlink::new(0, GROUPS);
            // The kernel itself, to whom it goes too, does not take it.
            sendto(&talks, &text, SendFlags::empty(), &to).unwrap();
        }
        let mut read_changes = |most| routes.read_changes(most, |heard| panic!("{heard:?}"));
        assert_eq!(read_changes(3), Ok(false));
        assert_eq!(read_changes(3), Ok(true));
    }

    /// A message about `sequence`, as the kernel would send it.
    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let message = Message::default().message(kind, 0, sequence, |message| message.raw(body));
        message.bytes().to_vec()
    }

    #[test]
    fn an_end_is_told_from_an_error_and_from_another_lists() {
        let parsed = |datagram: &[u8]| parse(datagram, 1, |_, _, _| {});
        let (yes, no) = (0i32.to_ne_bytes(), (-libc::EPERM).to_ne_bytes());
        assert_eq!(parsed(&message(NLMSG_DONE, 1, &yes)), Ok(true));
        assert_eq!(parsed(&message(NLMSG_ERROR, 1, &yes)), Ok(true));
        assert_eq!(parsed(&message(NLMSG_ERROR, 9, &no)), Ok(false));
        assert_eq!(parsed(&message(NLMSG_ERROR, 1, &no)), Err(Errno::PERM));
        assert_eq!(parsed(&message(NLMSG_DONE, 1, &no)), Err(Errno::PERM));
    }

    #[test]
    fn bytes_that_are_cut_or_changed_anywhere_do_no_harm() {
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
