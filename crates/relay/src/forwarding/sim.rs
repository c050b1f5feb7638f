//! Simulated legs that behave as TCP sockets do, controlled by the test. A read returns the bytes
//! that have arrived, a write takes the bytes that there is room for, `EAGAIN` has the kernel's
//! meaning, and an edge is reported only where the kernel reports one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use taut_sys::Errno;
use taut_sys::epoll::Readiness;

use crate::forwarding::backlog::{Buffer, Buffered};
use crate::forwarding::direction::{Buffers, Leg, Received, Scratch};
use crate::forwarding::user_timeout::Outstanding;

/// A pipe: segments in slots, as in the kernel.
#[derive(Debug, Default)]
pub(crate) struct SimPipe(RefCell<VecDeque<Vec<u8>>>);

/// Slots of a simulated pipe; few, so that it fills often.
const SLOTS: usize = 3;

#[derive(Debug, Default)]
pub(crate) struct SimLeg(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    /// Segments that have arrived and not been read.
    receive: VecDeque<Vec<u8>>,
    /// A FIN follows those segments.
    fin_arrived: bool,
    /// Reads stop before this offset (the urgent mark); splice does not pass it.
    urgent_in: Option<usize>,
    error: Option<Errno>,
    /// What the next read fails with; those behind it find nothing.
    unreadable: Option<Errno>,
    room: usize,
    /// The bytes that were written.
    sent: Vec<u8>,
    fin_sent: bool,
    acknowledged: usize,
    /// Written bytes that the peer's window has allowed out.
    let_out: usize,
    own_peer: bool,
    in_sockmap: bool,
    /// Only reads find what has arrived.
    hides_from_splice: bool,
    /// The peer acknowledges nothing.
    silent: bool,
    graceful: bool,
    of_mesh: bool,
    outstanding: Outstanding,
}

impl SimLeg {
    /// Puts the socket into a sockmap. After the next arrival, only reads find what has been received,
    /// earlier bytes included.
    pub(crate) fn enter_sockmap(&self) {
        self.0.borrow_mut().in_sockmap = true;
    }

    /// Delivers a segment from the peer.
    pub(crate) fn arrive(&self, segment: &[u8]) -> Readiness {
        let mut s = self.0.borrow_mut();
        s.receive.push_back(segment.to_vec());
        s.hides_from_splice = s.in_sockmap;
        drop(s);
        self.readiness(Readiness::DATA)
    }

    /// Marks the last byte that has arrived as urgent.
    pub(crate) fn mark_urgent(&self) -> Readiness {
        let mut s = self.0.borrow_mut();
        let queued: usize = s.receive.iter().map(Vec::len).sum();
        s.urgent_in = queued.checked_sub(1);
        Readiness::URGENT
    }

    /// Ends the peer's stream.
    pub(crate) fn end(&self) -> Readiness {
        self.0.borrow_mut().fin_arrived = true;
        Readiness::PEER_CLOSED
    }

    /// Breaks the connection with `error`.
    pub(crate) fn fail(&self, error: Errno) -> Readiness {
        self.0.borrow_mut().error = Some(error);
        Readiness::FAILED
    }

    /// Has something arrive that cannot be read, as a record that cannot be opened.
    pub(crate) fn spoil(&self, e: Errno) -> Readiness {
        self.0.borrow_mut().unreadable = Some(e);
        Readiness::DATA
    }

    /// Adds room for `n` more bytes.
    pub(crate) fn make_room(&self, n: usize) -> Readiness {
        self.0.borrow_mut().room += n;
        Readiness::ROOM
    }

    /// Acknowledges all written bytes.
    pub(crate) fn acknowledge(&self) {
        let mut s = self.0.borrow_mut();
        s.acknowledged = s.sent.len();
        s.let_out = s.sent.len();
    }

    /// Acknowledges `n` more written bytes.
    pub(crate) fn acknowledge_some(&self, n: usize) {
        let mut s = self.0.borrow_mut();
        s.acknowledged += n;
        s.let_out = s.let_out.max(s.acknowledged);
    }

    /// Sends all written bytes, of which the peer acknowledges none.
    pub(crate) fn let_out(&self) {
        let mut s = self.0.borrow_mut();
        s.let_out = s.sent.len();
    }

    /// Makes the connection one to itself.
    pub(crate) fn meet_itself(&self) {
        self.0.borrow_mut().own_peer = true;
    }

    /// Makes the peer one that acknowledges nothing.
    pub(crate) fn fall_silent(&self) {
        self.0.borrow_mut().silent = true;
    }

    /// Returns a leg to a relay of the mesh.
    pub(crate) fn of_mesh() -> Self {
        let leg = Self::default();
        leg.0.borrow_mut().of_mesh = true;
        leg
    }

    /// Has the kernel retransmit what is unacknowledged, to no avail.
    pub(crate) fn retransmit(&self) {
        self.0.borrow_mut().outstanding.retransmits += 1;
    }

    pub(crate) fn is_graceful(&self) -> bool {
        self.0.borrow().graceful
    }

    pub(crate) fn sent(&self) -> Vec<u8> {
        self.0.borrow().sent.clone()
    }

    pub(crate) fn fin_sent(&self) -> bool {
        self.0.borrow().fin_sent
    }

    pub(crate) fn unread(&self) -> usize {
        self.0.borrow().receive.iter().map(Vec::len).sum()
    }

    fn readiness(&self, what: Readiness) -> Readiness {
        let s = self.0.borrow();
        if s.urgent_in.is_some() {
            Readiness::URGENT
        } else if s.fin_arrived {
            Readiness::PEER_CLOSED
        } else {
            what
        }
    }
}

impl State {
    /// Takes up to `max` bytes and stops at the urgent mark. If the mark is the very next byte,
    /// `past_mark` passes it, as recv(2) does and splice(2) does not.
    fn take(&mut self, max: usize, past_mark: bool) -> Option<Vec<u8>> {
        let mut max = max;
        match self.urgent_in {
            Some(0) if past_mark => {
                self.urgent_in = None;
            }
            Some(0) => return Some(Vec::new()),
            Some(n) => max = max.min(n),
            None => {}
        }
        let mut segment = self.receive.pop_front()?;
        if segment.len() > max {
            let rest = segment.split_off(max);
            self.receive.push_front(rest);
        }
        if let Some(n) = &mut self.urgent_in {
            *n -= segment.len();
        }
        Some(segment)
    }

    fn nothing_to_read(&mut self) -> Result<usize, Errno> {
        if let Some(e) = self.unreadable.take() {
            return Err(e);
        }
        match self.error {
            Some(e) => Err(e),
            None if self.fin_arrived => Ok(0),
            None => Err(Errno::AGAIN),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        if let Some(e) = self.error {
            return Err(e);
        }
        assert!(!self.fin_sent, "bytes after FIN");
        assert!(!bytes.is_empty(), "a write of nothing");
        let n = bytes.len().min(self.room);
        if n == 0 {
            return Err(Errno::AGAIN);
        }
        self.room -= n;
        self.sent.extend_from_slice(&bytes[..n]);
        Ok(n)
    }
}

impl Buffered for SimLeg {
    fn unread(&self) -> u64 {
        Self::unread(self) as u64
    }

    fn path(&self) -> (Duration, u64) {
        Default::default()
    }

    fn largest_window(&self) -> Option<u64> {
        None
    }

    fn limit_window(&self, _: u64) {}

    fn unlimit_window(&self) {}

    fn buffer(&self) -> Option<Buffer> {
        None
    }

    fn limit_buffer(&self, _: u64) -> bool {
        false
    }

    fn unlimit_buffer(&self, _: u64) {}

    fn limit_unsent(&self, _: u64) {}
}

impl Leg for SimLeg {
    type Pipe = SimPipe;

    fn recv(&mut self, scratch: &mut Scratch<'_>) -> Result<Received, Errno> {
        let mut s = self.0.borrow_mut();
        let buf = &mut *scratch.plain;
        let mut n = 0;
        // A read collects segments until the buffer is full or the mark is reached.
        while n < buf.len() {
            let at_mark = s.urgent_in == Some(0);
            if at_mark && n > 0 {
                break;
            }
            let Some(part) = s.take(buf.len() - n, true) else {
                break;
            };
            buf[n..n + part.len()].copy_from_slice(&part);
            n += part.len();
        }
        let len = if n > 0 { n } else { s.nothing_to_read()? };
        let more = len == buf.len();
        Ok(Received { len, more })
    }

    fn peek(&self) -> Result<Option<bool>, Errno> {
        let mut s = self.0.borrow_mut();
        if !s.receive.is_empty() {
            return Ok(Some(true));
        }
        match s.nothing_to_read() {
            Ok(_) => Ok(Some(false)),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn send(&mut self, bytes: &[u8], _: &mut [u8]) -> Result<usize, Errno> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    fn prepare_splice(&mut self) -> Result<bool, Errno> {
        Ok(true)
    }

    fn fill(&mut self, pipe: &SimPipe, max: usize) -> Result<usize, Errno> {
        let (mut s, mut slots) = (self.0.borrow_mut(), pipe.0.borrow_mut());
        let mut n = 0;
        if s.hides_from_splice {
            return Err(Errno::AGAIN);
        }
        while slots.len() < SLOTS {
            match s.take(max - n, false) {
                // splice at the urgent mark returns 0 once FIN has arrived behind it, and EAGAIN
                // before.
                Some(part) if part.is_empty() && n == 0 && !s.fin_arrived => {
                    return Err(Errno::AGAIN);
                }
                Some(part) if part.is_empty() => return Ok(n),
                Some(part) => {
                    n += part.len();
                    slots.push_back(part);
                }
                None if n > 0 => return Ok(n),
                None => return s.nothing_to_read(),
            }
        }
        if n > 0 { Ok(n) } else { Err(Errno::AGAIN) }
    }

    fn drain(&mut self, pipe: &SimPipe, len: usize) -> Result<usize, Errno> {
        let (mut s, mut slots) = (self.0.borrow_mut(), pipe.0.borrow_mut());
        let held: usize = slots.iter().map(Vec::len).sum();
        assert!(
            len <= held,
            "asking for more than the pipe holds corks the last segment"
        );
        let Some(slot) = slots.front_mut() else {
            return Err(Errno::AGAIN);
        };
        let n = s.write(slot)?;
        slot.drain(..n);
        if slot.is_empty() {
            slots.pop_front();
        }
        Ok(n)
    }

    fn shutdown_write(&mut self) -> Result<(), Errno> {
        let mut s = self.0.borrow_mut();
        assert!(!s.fin_sent, "a second FIN");
        s.fin_sent = true;
        Ok(())
    }

    fn ends_with_fin(&self) -> bool {
        true
    }

    fn take_error(&self) -> Result<(), Errno> {
        // As with SO_ERROR, the connection then reads as ended.
        let mut s = self.0.borrow_mut();
        match s.error.take() {
            Some(e) => {
                s.fin_arrived = true;
                Err(e)
            }
            None => Ok(()),
        }
    }

    fn unacknowledged(&self) -> usize {
        let s = self.0.borrow();
        s.sent.len() - s.acknowledged
    }

    fn unsent(&self) -> usize {
        let s = self.0.borrow();
        s.sent.len() - s.let_out
    }

    fn held(&self) -> usize {
        0
    }

    fn is_unanswered(&self, _: Duration) -> bool {
        self.0.borrow().silent
    }

    fn is_of_mesh(&self) -> bool {
        self.0.borrow().of_mesh
    }

    fn outstanding(&self) -> Option<Outstanding> {
        let s = self.0.borrow();
        (s.sent.len() > s.acknowledged).then_some(s.outstanding)
    }

    fn is_its_own_peer(&self) -> bool {
        self.0.borrow().own_peer
    }

    fn end_gracefully(&self) {
        self.0.borrow_mut().graceful = true;
    }
}

/// Buffers that count their pipes; a pipe must come back empty.
pub(crate) struct SimBuffers {
    pub(crate) splice_after: Option<u64>,
    pub(crate) pipes: usize,
    pub(crate) lent: usize,
    scratch: Vec<u8>,
}

impl SimBuffers {
    pub(crate) fn new(splice_after: Option<u64>, pipes: usize, scratch: usize) -> Self {
        Self {
            splice_after,
            pipes,
            lent: 0,
            scratch: vec![0; scratch],
        }
    }
}

impl Buffers for SimBuffers {
    type Pipe = SimPipe;

    fn take_pipe(&mut self) -> Option<SimPipe> {
        (self.lent < self.pipes).then(|| {
            self.lent += 1;
            SimPipe::default()
        })
    }

    fn give_back(&mut self, pipe: SimPipe) {
        assert!(
            pipe.0.borrow().is_empty(),
            "a pipe came back with bytes in it"
        );
        self.lent -= 1;
    }

    fn empty(&mut self, pipe: &SimPipe, len: usize) -> Box<[u8]> {
        let bytes: Vec<u8> = pipe.0.borrow_mut().drain(..).flatten().collect();
        assert_eq!(bytes.len(), len);
        bytes.into()
    }

    fn scratch(&mut self) -> Scratch<'_> {
        Scratch {
            plain: &mut self.scratch,
            cipher: &mut [],
        }
    }

    fn splice_after(&self) -> Option<u64> {
        self.splice_after
    }
}
