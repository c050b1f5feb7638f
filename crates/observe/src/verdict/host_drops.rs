//! Attributes losses to the packets that the kernel of this machine dropped.

use super::finding::{Cause, Finding};
use super::{Context, Direction, DropPlace, Factor, HostDrop, LIKELY, LIKELY_MOST, is_handshake};
use crate::host_drops::NO_REASON;
use crate::window::Window;

/// Drops on this machine explain the losses of a connection if they are at least this share of them.
const MOST: f64 = 0.5;
/// The same if some of the losses may be of segments that were dropped before drops were counted.
const MOST_WITH_EARLIER: f64 = 0.25;
/// Drops that are more than this many times the losses are of packets that were not lost: a driver
/// frees what it has sent, or another host or guest uses the addresses of the connection.
const FAR: f64 = 2.0;
/// The minimum number of drops that explain anything if no segment counts as lost.
const SEVERAL: f64 = 5.0;
/// The minimum share of the segments whose drops matter to a sender. As few losses as this slow no
/// connection.
const MATTERS: f64 = 1e-4;
/// The minimum share of the segments whose drops matter if no segment counts as lost, or if only the
/// receiver is observed: it does not know whether anything else limits the sender.
const MATTERS_WITHOUT_LOSSES: f64 = 1e-3;

/// Attributes to drops on this machine the time that the rules attribute to losses, if most losses are
/// such drops; otherwise adds the drops to the evidence.
pub(super) fn attribute(
    findings: &mut Vec<Finding>,
    window: &Window<'_>,
    context: &Context,
    sends: bool,
) {
    let Some(dropped) = Dropped::of(window, context, sends) else {
        return;
    };
    let cause = dropped.cause();
    // What does not fit through a device of this machine is no other factor than what does not fit
    // through one elsewhere: its remedy is the same.
    let is_path_mtu = dropped.are_of(DropPlace::Mtu)
        && findings
            .iter()
            .any(|finding| finding.factor == Factor::PathMtu);
    let weight = match dropped.explains() && !is_path_mtu {
        true => take(findings, &dropped),
        false => 0.0,
    };
    if weight > 0.0 {
        findings.push(Finding::new(Factor::HostDrops, weight, cause));
        return;
    }
    let heaviest = findings.iter().max_by(|a, b| a.weight.total_cmp(&b.weight));
    let heaviest = heaviest.filter(|heaviest| may_be_evidence(heaviest.factor));
    if let Some(factor) = heaviest.map(|heaviest| heaviest.factor) {
        findings.push(Finding::new(factor, 0.0, cause));
    }
}

/// The drops that matter for a connection.
struct Dropped<'a> {
    drops: Vec<&'a HostDrop>,
    segments: f64,
    /// The segments that were lost; `None` at a receiver, which cannot tell.
    lost: Option<f64>,
    /// Those of them that cannot have been lost before the drops were counted.
    lost_later: f64,
    /// The segments that this end sent or received.
    all: f64,
}

/// Removes the findings that the drops explain. Returns their weight, with that of the time that no
/// rule has found a factor for.
fn take(findings: &mut Vec<Finding>, dropped: &Dropped<'_>) -> f64 {
    let total = findings.iter().map(|finding| finding.weight).sum::<f64>();
    let mut taken = (1.0 - total).max(0.0);
    findings.retain(|finding| {
        let is_taken = dropped.takes(finding.factor);
        if is_taken {
            taken += finding.weight;
        }
        !is_taken
    });
    match dropped.is_certain() {
        true => taken,
        false => taken.min(LIKELY_MOST),
    }
}

/// Removes the drops for which `is` holds if their sum is more than `most`.
fn retain_below(
    drops: &mut Vec<&HostDrop>,
    most: f64,
    sum: impl Fn(&[&HostDrop]) -> f64,
    is: impl Fn(&HostDrop) -> bool,
) {
    let these: Vec<_> = drops.iter().copied().filter(|drop| is(drop)).collect();
    if sum(&these) > most {
        drops.retain(|drop| !is(drop));
    }
}

/// Whether drops are evidence for a factor that they do not explain.
fn may_be_evidence(factor: Factor) -> bool {
    matches!(
        factor,
        Factor::Loss
            | Factor::Queue
            | Factor::RateLimit
            | Factor::Timeouts
            | Factor::PathMtu
            | Factor::Link
    )
}

// === impl Dropped ===

impl<'a> Dropped<'a> {
    /// Returns `None` if nothing was dropped that matters.
    fn of(window: &Window<'_>, context: &'a Context, sends: bool) -> Option<Self> {
        let is_handshake = is_handshake(window);
        // Acknowledgements are cumulative, so a lost one matters only if all are lost.
        let is_silent = is_handshake || window.often(|info| info.retransmits > 0) > LIKELY;
        let is_away = |drop: &&HostDrop| match sends {
            true => drop.direction == Direction::Sent,
            false => drop.direction == Direction::Received,
        };
        let of = |drop: &HostDrop| match is_silent {
            true => drop.segments(),
            false => drop.data_segments,
        };
        let (lost, lost_later) = match is_handshake {
            true => [window.last().retransmits; 2].map(u32::from).into(),
            false => {
                let since = context.host_drops_since.unwrap_or_default();
                let repeated = window.repeated_since(since);
                (repeated.all, repeated.later)
            }
        };
        let all = match sends {
            true => window.more_wrapping(|info| info.data_segs_out),
            false => window.more_wrapping(|info| info.data_segs_in),
        };
        let lost = sends.then_some(f64::from(lost));
        let relevant = context
            .host_drops
            .iter()
            .filter(|drop| is_silent || is_away(drop));
        let mut drops: Vec<_> = relevant.filter(|drop| of(drop) > 0).collect();
        let sum = |drops: &[&HostDrop]| drops.iter().map(|drop| of(drop)).sum::<u64>() as f64;
        // A receiver does not know what was lost, but it is not more than what arrived.
        let most = lost.map_or(all.into(), |lost| FAR * lost);
        retain_below(&mut drops, most, sum, |drop| !drop.is_own);
        let most = FAR * lost.unwrap_or(0.0);
        retain_below(&mut drops, most, sum, |drop| &*drop.reason == NO_REASON);
        let segments = sum(&drops);
        (segments > 0.0).then_some(Self {
            drops,
            segments,
            lost,
            lost_later: lost_later.into(),
            all: all.into(),
        })
    }

    /// Whether most losses are such drops. The drops of a sender's own machine may be more than the losses
    /// that it counts: it sends a segment again that did not leave, and does not call it retransmitted.
    fn explains(&self) -> bool {
        let lost = self.lost.unwrap_or(0.0);
        let (matters, least) = match lost > 0.0 {
            true => (MATTERS, 1.0),
            false => (MATTERS_WITHOUT_LOSSES, SEVERAL),
        };
        self.segments >= self.most_losses()
            && self.segments >= least
            && self.segments >= (self.all + self.segments) * matters
    }

    /// Returns how many drops are most of the losses.
    fn most_losses(&self) -> f64 {
        let all = self.lost.unwrap_or(0.0);
        (self.lost_later * MOST).max(all * MOST_WITH_EARLIER)
    }

    /// Whether most losses certainly are such drops. Packets in another namespace may only have the
    /// addresses of the connection.
    fn is_certain(&self) -> bool {
        let here = self
            .drops
            .iter()
            .filter(|drop| drop.is_own || drop.netns.is_none());
        let here = here.map(|drop| drop.segments()).sum::<u64>() as f64;
        self.lost
            .is_some_and(|lost| lost > 0.0 && here >= self.most_losses())
    }

    /// Whether the drops explain a finding. Drops by a queueing discipline do not replace `queue`: the
    /// long queue is the problem, on this machine or not.
    fn takes(&self, factor: Factor) -> bool {
        match factor {
            Factor::Loss | Factor::RateLimit | Factor::Timeouts | Factor::PathMtu => true,
            Factor::Peer => self.lost.is_none(),
            Factor::Queue => !self.are_of(DropPlace::Qdisc),
            _ => false,
        }
    }

    /// Whether the first of the drops, the most frequent one, is of this place.
    fn are_of(&self, place: DropPlace) -> bool {
        self.drops.first().is_some_and(|drop| drop.place == place)
    }

    fn cause(&self) -> Cause {
        Cause::DroppedHere {
            dropped: self.segments,
            lost: self.lost.filter(|lost| *lost > 0.0),
            drops: self.drops.iter().copied().cloned().collect(),
        }
    }
}
