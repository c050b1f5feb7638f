//! One connection of a pool: its handshake, and what arrives while it is idle.

use std::net::SocketAddr;

use taut_mesh::dialler::{Dialler, Ready, Rejection};
use taut_mesh::identity::PublicKey;
use taut_sys::Errno;
use taut_sys::epoll::Readiness;
use taut_sys::socket::Stream;

use crate::counters::told::SegmentCounts;
use crate::forwarding::direction::Scratch;
use crate::forwarding::leg::{READS_MAX, read_records};
use crate::route::peer::Peer;

use super::{PoolTerms, Spare};

pub(super) struct Conn {
    pub(super) stream: Stream,
    pub(super) to: SocketAddr,
    pub(super) state: State,
    /// Its window, if that follows what the peer needs.
    pub(super) window: Option<u32>,
    /// Its segments that samples have counted.
    pub(super) segment_counts: SegmentCounts,
}

pub(super) enum State {
    Connecting,
    Handshaking(Box<Dialler>),
    Ready(Ready),
}

/// The progress of a connection's handshake.
pub(super) enum Progress {
    Waiting,
    /// The handshake has just been completed: the peer has proven this key, or is in a trusted network.
    Done(Option<PublicKey>),
    /// The peer is draining, and the connection was not used.
    Withdrawn,
    /// The peer has no room for the connection, which was not used.
    Full,
    /// The peer has proven none of its keys.
    NoKey,
}

// === impl Conn ===

impl Conn {
    /// Continues the handshake as far as the received bytes allow.
    pub(super) fn advance(
        &mut self,
        peer: &Peer,
        ready: Readiness,
        terms: &mut PoolTerms<'_>,
    ) -> Result<Progress, Errno> {
        if let State::Connecting = self.state {
            if !ready.writable() {
                return Ok(Progress::Waiting);
            }
            self.stream.take_error()?;
            if self.stream.is_its_own_peer() {
                return Err(Errno::CONNREFUSED);
            }
            if terms.mesh.trusts(self.to.ip()) {
                self.state = State::Ready(Ready::trusted());
                return Ok(Progress::Done(None));
            }
            let mut opening = Vec::new();
            let dialler = Dialler::new(&peer.tls, terms.now, terms.timeout, &mut opening);
            let dialler = dialler.map_err(|_| Errno::PROTO)?;
            self.send_whole(&opening)?;
            self.state = State::Handshaking(Box::new(dialler));
        }
        if !ready.readable() {
            return Ok(Progress::Waiting);
        }
        for _ in 0..READS_MAX {
            let partial = match &self.state {
                State::Connecting => return Ok(Progress::Waiting),
                State::Handshaking(dialler) => dialler.partial(),
                State::Ready(ready) => ready.partial(),
            };
            let len = match read_records(&self.stream, partial, &mut terms.scratch) {
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(Progress::Waiting),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e),
            };
            let Scratch { plain, cipher } = &mut terms.scratch;
            let arrived = &mut cipher[..len];
            let mut reply = Vec::new();
            let outcome = match &mut self.state {
                State::Connecting => return Err(Errno::PROTO),
                State::Handshaking(dialler) => {
                    dialler.receive(arrived, plain, terms.now, &mut reply)
                }
                State::Ready(ready) => ready.receive(arrived, plain).map(|()| false),
            };
            if !reply.is_empty() {
                self.send_whole(&reply)?;
            }
            match outcome {
                Ok(false) => {}
                Ok(true) => {
                    let handshaking = std::mem::replace(&mut self.state, State::Connecting);
                    let State::Handshaking(dialler) = handshaking else {
                        return Err(Errno::PROTO);
                    };
                    let ready = dialler.ready().ok_or(Errno::PROTO)?;
                    let key = ready.peer();
                    self.state = State::Ready(ready);
                    return Ok(Progress::Done(key));
                }
                Err(Rejection::Withdrawn) => return Ok(Progress::Withdrawn),
                Err(Rejection::Full) => return Ok(Progress::Full),
                // The peer closed an idle connection in order.
                Err(Rejection::ClosedEarly) => return Err(Errno::CONNRESET),
                Err(Rejection::UnknownKey) => return Ok(Progress::NoKey),
                Err(rejection) => {
                    tracing::debug!(peer = %peer.name, cause = rejection.label(), "{rejection}");
                    if rejection == Rejection::KeyRefused {
                        return Err(Errno::ACCESS);
                    }
                    terms.metrics.pool_peers_rejected.add(1);
                    return Err(Errno::PROTO);
                }
            }
        }
        // A handshake takes a few reads; a peer must not keep the worker.
        Err(Errno::PROTO)
    }

    /// Sends a whole message. A connection that has sent almost nothing has room in its send
    /// buffer.
    fn send_whole(&self, message: &[u8]) -> Result<(), Errno> {
        match self.stream.send(message) {
            Ok(n) if n == message.len() => Ok(()),
            Ok(_) => Err(Errno::NOBUFS),
            Err(e) => Err(e),
        }
    }

    pub(super) fn into_spare(self) -> Option<Spare> {
        match self.state {
            State::Ready(ready) => Some(Spare {
                stream: self.stream,
                ready,
            }),
            State::Connecting | State::Handshaking(_) => None,
        }
    }
}
