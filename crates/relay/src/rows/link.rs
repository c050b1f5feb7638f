//! One row link: a connection between the mesh ports of two relays, from its first SYN.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use taut_mesh::channel::{Channel, sealed_len};
use taut_mesh::dialler::{Dialler, Ready};
use taut_mesh::identity::PrivateKey;
use taut_mesh::members::{Member, MemberName};
use taut_mesh::rows::{LinkId, MemberId};
use taut_mesh::tls::DialTls;
use taut_sys::Errno;
use taut_sys::epoll::Readiness;
use taut_sys::socket::Stream;

use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::read_records;
use crate::rows_mailbox::RowLink;

/// The time from the SYN to the end of the handshake.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The bytes that wait for the socket, at most. The other relay reads too slowly beyond.
const MAX_PENDING: usize = 256 << 10;

/// The reads of a link in a pass of the thread, so that no link delays the others or fills memory
/// without bound.
const READS_A_PASS: usize = 4;

/// How far a pass over a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// The socket has nothing more now.
    Drained,
    /// The socket may have more, and no event will report it.
    MoreToRead,
}

/// A row link.
pub(super) struct Link {
    pub(super) peer: MemberName,
    pub(super) id: MemberId,
    /// The address that this relay dialled; `None` if the other relay dialled.
    pub(super) dialled: Option<SocketAddr>,
    pub(super) stream: Stream,
    pub(super) state: State,
    pub(super) begun: Instant,
    /// The other relay has sent a frame, so that it knows row links.
    pub(super) heard: bool,
    /// Segments sent, and sent again, as of the last sample.
    pub(super) counted: (u32, u32),
    /// Bytes for the socket, from `sent` on.
    pending: Vec<u8>,
    sent: usize,
}

/// How far a link is.
pub(super) enum State {
    Connecting {
        tls: DialTls,
        trusted: bool,
    },
    Handshaking(Box<Dialler>),
    Open {
        channel: Option<Box<Channel>>,
        link: LinkId,
    },
    /// The handshake is complete.
    Ready {
        channel: Option<Box<Channel>>,
        early: Vec<u8>,
    },
}

// === impl Link ===

impl Link {
    /// Returns a link to a member whose connection has been begun.
    pub(super) fn dial(
        stream: Stream,
        to: SocketAddr,
        member: &Member,
        own: &PrivateKey,
        trusted: bool,
        now: Instant,
    ) -> Self {
        tracing::trace!(peer = %member.name, %to, "making a row link");
        let tls = DialTls::new(own, &member.keys);
        Self::new(
            stream,
            member.name.clone(),
            Some(to),
            State::Connecting { tls, trusted },
            now,
        )
    }

    /// Returns a link that another relay has made.
    pub(super) fn accept(from: RowLink, now: Instant) -> Self {
        let state = State::Ready {
            channel: from.channel.map(Box::new),
            early: from.early,
        };
        Self::new(from.stream, from.member, None, state, now)
    }

    fn new(
        stream: Stream,
        peer: MemberName,
        dialled: Option<SocketAddr>,
        state: State,
        begun: Instant,
    ) -> Self {
        Self {
            id: MemberId::of(&peer),
            peer,
            dialled,
            stream,
            state,
            begun,
            heard: false,
            counted: (0, 0),
            pending: Vec::new(),
            sent: 0,
        }
    }

    /// Returns the number of the link if it is open.
    pub(super) fn link(&self) -> Option<LinkId> {
        match self.state {
            State::Open { link, .. } => Some(link),
            _ => None,
        }
    }

    /// Continues as far as the connection allows, and appends what the other relay has sent on the
    /// open link to `received`. The bytes that came before it was open are in [`State::Ready`].
    pub(super) fn advance(
        &mut self,
        ready: Readiness,
        scratch: &mut Scratch<'_>,
        received: &mut Vec<u8>,
        now: Instant,
    ) -> Result<Advance, Errno> {
        if let State::Connecting { tls, trusted } = &self.state {
            if !ready.writable() {
                return Ok(Advance::Drained);
            }
            self.stream.take_error()?;
            if self.stream.is_its_own_peer() {
                return Err(Errno::CONNREFUSED);
            }
            if *trusted {
                self.make_ready(Ready::trusted())?;
                return Ok(Advance::MoreToRead);
            }
            let mut opening = Vec::new();
            let dialler = Dialler::new(tls, now, PATIENCE, &mut opening);
            self.state = State::Handshaking(Box::new(dialler.map_err(|_| Errno::PROTO)?));
            self.queue(&opening)?;
        }
        self.flush()?;
        if !ready.readable() {
            return Ok(Advance::Drained);
        }
        for _ in 0..READS_A_PASS {
            let partial = match &self.state {
                State::Handshaking(dialler) => dialler.partial(),
                State::Open { channel, .. } | State::Ready { channel, .. } => channel
                    .as_ref()
                    .map_or(&[][..], |channel| channel.partial()),
                State::Connecting { .. } => return Ok(Advance::Drained),
            };
            match read_records(&self.stream, partial, scratch) {
                Ok(len) => self.on_bytes(len, scratch, received, now)?,
                Err(Errno::AGAIN) => return Ok(Advance::Drained),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Advance::MoreToRead)
    }

    fn on_bytes(
        &mut self,
        len: usize,
        scratch: &mut Scratch<'_>,
        received: &mut Vec<u8>,
        now: Instant,
    ) -> Result<(), Errno> {
        let Scratch { plain, cipher } = scratch;
        let arrived = &mut cipher[..len];
        let mut reply = Vec::new();
        match &mut self.state {
            State::Connecting { .. } => return Err(Errno::PROTO),
            State::Handshaking(dialler) => {
                let outcome = dialler.receive(arrived, plain, now, &mut reply);
                self.queue(&reply)?;
                if outcome.map_err(|_| Errno::PROTO)? {
                    let before = std::mem::replace(
                        &mut self.state,
                        State::Ready {
                            channel: None,
                            early: Vec::new(),
                        },
                    );
                    let State::Handshaking(dialler) = before else {
                        return Err(Errno::PROTO);
                    };
                    self.make_ready(dialler.ready().ok_or(Errno::PROTO)?)?;
                }
                return Ok(());
            }
            State::Open { channel, .. } | State::Ready { channel, .. } => match channel {
                None => received.extend_from_slice(arrived),
                Some(channel) => {
                    let opened = channel.open(arrived, plain, &mut reply);
                    let opened = opened.map_err(|_| Errno::PROTO)?;
                    received.extend_from_slice(&plain[..opened.len]);
                    if opened.closed {
                        return Err(Errno::CONNRESET);
                    }
                }
            },
        }
        self.queue(&reply)
    }

    /// Sends the hello of a row link.
    fn make_ready(&mut self, ready: Ready) -> Result<(), Errno> {
        let (hello, channel) = ready.rows(&self.peer).map_err(|_| Errno::PROTO)?;
        self.state = State::Ready {
            channel: channel.map(Box::new),
            early: Vec::new(),
        };
        self.queue(&hello)
    }

    /// Makes a ready link an open one with this number, and returns what has already been received.
    pub(super) fn open(&mut self, link: LinkId) -> Vec<u8> {
        match &mut self.state {
            State::Ready { channel, early } => {
                let (channel, early) = (channel.take(), std::mem::take(early));
                self.state = State::Open { channel, link };
                early
            }
            _ => Vec::new(),
        }
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), Errno> {
        let State::Open { channel, .. } = &mut self.state else {
            return Ok(());
        };
        match channel {
            None => self.queue(frame),
            Some(channel) => {
                let mut sealed = vec![0; sealed_len(frame.len())];
                let len = channel.seal(frame, &mut sealed).map_err(|_| Errno::PROTO)?;
                self.queue(&sealed[..len])
            }
        }
    }

    fn queue(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.pending.extend_from_slice(bytes);
        self.flush()?;
        match self.pending.len() <= MAX_PENDING {
            true => Ok(()),
            false => Err(Errno::NOBUFS),
        }
    }

    /// Sends what waits, as far as the socket takes it.
    fn flush(&mut self) -> Result<(), Errno> {
        while self.sent < self.pending.len() {
            match self.stream.send(&self.pending[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.pending.drain(..self.sent);
        self.sent = 0;
        Ok(())
    }
}
