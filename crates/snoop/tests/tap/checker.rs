//! Watches both sides of the tap for an early ACK that is not backed by the guest's ring and
//! window.

use std::collections::BTreeMap;

use crate::rig::{ACK, FIN, SYN, Segment};

/// A flow, observed from outside: the peer must get no ACK that the guest could not have sent.
#[derive(Default)]
pub(crate) struct Checker {
    flows: BTreeMap<u16, Watched>,
    grows: bool,
}

#[derive(Default)]
struct Watched {
    /// The end of the guest's data up to the first hole.
    in_ring: u32,
    /// Data beyond a hole: starts and ends.
    beyond: Vec<(u32, u32)>,
    /// The guest's right edge, from its own ACKs.
    edge: u32,
    scale: u32,
    /// The last ACK that the peer got.
    told: Option<u32>,
    known: bool,
    vm_snd: u32,
    tsval: u32,
}

// === impl Checker ===

impl Checker {
    pub(crate) fn new(grows: bool) -> Self {
        Self {
            grows,
            ..Self::default()
        }
    }

    pub(crate) fn peer_sends(&mut self, segment: &Segment) {
        let flow = self.flows.entry(segment.ports.1).or_default();
        if segment.flags & SYN != 0 {
            flow.in_ring = segment.seq.wrapping_add(1);
        }
    }

    /// Data that left the ring was in it.
    pub(crate) fn guest_got(&mut self, seen: &[Segment]) {
        for segment in seen {
            let flow = self.flows.entry(segment.ports.1).or_default();
            flow.arrived(segment);
        }
    }

    pub(crate) fn guest_sends(&mut self, segment: &Segment) {
        let flow = self.flows.entry(segment.ports.0).or_default();
        let mut shift = flow.scale;
        if segment.flags & SYN != 0 {
            flow.scale = scale(&segment.options).unwrap_or(0);
            shift = 0;
        }
        if segment.flags & ACK != 0 {
            flow.edge = segment.ack.wrapping_add(u32::from(segment.window) << shift);
            flow.known = true;
        }
        let end = segment.seq.wrapping_add(segment.len as u32);
        if flow.vm_snd.wrapping_sub(end).cast_signed() < 0 || segment.flags & SYN != 0 {
            flow.vm_snd = end.wrapping_add(u32::from(segment.flags & (SYN | FIN) != 0));
        }
        flow.tsval = tsval(&segment.options).unwrap_or(flow.tsval);
    }

    /// An ACK beyond the guest's window, or lower than an earlier one, is a defect. (Whether the
    /// data is in the ring shows when the guest empties it: see [`Checker::settle`].)
    pub(crate) fn peer_got(&mut self, segment: &Segment) {
        let flow = self.flows.entry(segment.ports.0).or_default();
        if segment.flags & ACK == 0 || segment.flags & SYN != 0 {
            return;
        }
        assert!(flow.known, "acknowledged for a guest that has said nothing");
        let over = segment.ack.wrapping_sub(flow.edge).cast_signed();
        assert!(
            self.grows || over <= 0,
            "{} bytes acknowledged beyond the guest's right edge",
            over
        );
        flow.told = Some(match flow.told {
            Some(told) if told.wrapping_sub(segment.ack).cast_signed() > 0 => told,
            _ => segment.ack,
        });
    }

    /// The guest has emptied its ring: all acknowledged data must have been there.
    pub(crate) fn settle(&self) {
        for flow in self.flows.values() {
            let Some(told) = flow.told else { continue };
            let missing = told.wrapping_sub(flow.in_ring).cast_signed();
            assert!(
                missing <= 0,
                "{missing} bytes acknowledged that were not in the ring"
            );
        }
    }
}

// === impl Watched ===

impl Watched {
    fn arrived(&mut self, segment: &Segment) {
        let end = segment.seq.wrapping_add(segment.len as u32);
        self.beyond.push((segment.seq, end));
        let not_after = |a: u32, b: u32| a.wrapping_sub(b).cast_signed() <= 0;
        while let Some(next) = self
            .beyond
            .iter()
            .position(|(from, to)| not_after(*from, self.in_ring) && !not_after(*to, self.in_ring))
        {
            self.in_ring = self.beyond.swap_remove(next).1;
        }
    }
}

fn option(options: &[u8], kind: u8) -> Option<&[u8]> {
    let mut rest = options;
    loop {
        match *rest {
            [] | [0, ..] => return None,
            [1, ..] => rest = &rest[1..],
            [k, size, ..] if k == kind => return rest.get(2..usize::from(size)),
            [_, size, ..] => rest = rest.get(usize::from(size.max(2))..)?,
            [_] => return None,
        }
    }
}

pub(crate) fn scale(options: &[u8]) -> Option<u32> {
    option(options, 3).map(|bytes| u32::from(bytes[0]).min(14))
}

pub(crate) fn tsval(options: &[u8]) -> Option<u32> {
    option(options, 8).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

pub(crate) fn tsecr(options: &[u8]) -> Option<u32> {
    option(options, 8).map(|b| u32::from_be_bytes([b[4], b[5], b[6], b[7]]))
}
