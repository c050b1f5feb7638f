//! Attributes losses to the packets that the kernel of this machine dropped.

use super::finding::{Cause, Finding};
use super::{Context, Direction, DropPlace, Factor, HostDrop, LIKELY_MOST, is_handshake};
use crate::window::Window;

/// Drops on this machine explain the losses of a connection if they are at least this share of them.
const MOST: f64 = 0.5;
/// The minimum share of the segments whose drops matter to a sender. As few losses as this slow no
/// connection.
const MATTERS: f64 = 1e-4;
/// The minimum share of the arriving segments whose drops matter if only the receiver is observed. It
/// does not know whether anything else limits the sender.
const MATTERS_TO_RECEIVER: f64 = 1e-3;

/// Attributes to drops on this machine the time that the rules attribute to losses, if most losses are
/// such drops; otherwise adds the drops to the evidence.
pub(super) fn attribute(
    findings: &mut Vec<Finding>,
    window: &Window<'_>,
    context: &Context,
    sends: bool,
) {
    let Some(dropped) = Dropped::of(window, &context.host_drops, sends) else {
        return;
    };
    let cause = dropped.cause();
    let weight = match dropped.explains() {
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
    /// The segments that this end sent or received.
    all: f64,
    matters: f64,
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
    match dropped.lost {
        Some(_) => taken,
        None => taken.min(LIKELY_MOST),
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
    fn of(window: &Window<'_>, drops: &'a [HostDrop], sends: bool) -> Option<Self> {
        let is_handshake = is_handshake(window);
        // A lost acknowledgement is made up for by the next one, unless none comes through.
        let is_silent = is_handshake || window.last().retransmits > 0;
        let is_away = |drop: &&HostDrop| match sends {
            true => drop.direction == Direction::Sent,
            false => drop.direction == Direction::Received,
        };
        let of = |drop: &HostDrop| match is_silent {
            true => drop.segments(),
            false => drop.data_segments,
        };
        let relevant = drops.iter().filter(|drop| is_silent || is_away(drop));
        let drops: Vec<_> = relevant.filter(|drop| of(drop) > 0).collect();
        let segments = drops.iter().map(|drop| of(drop)).sum::<u64>();
        let lost = match is_handshake {
            true => u32::from(window.last().retransmits),
            false => window.repeated(),
        };
        let all = match sends {
            true => window.more_wrapping(|info| info.data_segs_out),
            false => window.more_wrapping(|info| info.data_segs_in),
        };
        (segments > 0).then_some(Self {
            drops,
            segments: segments as f64,
            lost: sends.then_some(lost.into()),
            all: all.into(),
            matters: match sends {
                true => MATTERS,
                false => MATTERS_TO_RECEIVER,
            },
        })
    }

    /// Whether most losses are such drops. The drops of a sender's own machine may be more than the losses
    /// that it counts: it sends a segment again that did not leave, and does not call it retransmitted.
    fn explains(&self) -> bool {
        self.segments >= self.lost.unwrap_or(0.0) * MOST
            && self.segments >= (self.all + self.segments) * self.matters
            && !self.are_freed_only()
    }

    /// Whether a driver frees all packets in this way once they are sent, without a reason.
    fn are_freed_only(&self) -> bool {
        let reasonless = self
            .drops
            .iter()
            .filter(|drop| drop.reason.as_ref() == "NOT_SPECIFIED");
        let reasonless = reasonless.map(|drop| drop.segments()).sum::<u64>() as f64;
        reasonless > self.segments / 2.0 && reasonless > 2.0 * self.lost.unwrap_or(0.0)
    }

    /// Whether the drops explain a finding. A queue that is too long is one whether or not it is on this
    /// machine.
    fn takes(&self, factor: Factor) -> bool {
        match factor {
            Factor::Loss | Factor::RateLimit | Factor::Timeouts | Factor::PathMtu => true,
            Factor::Peer => self.lost.is_none(),
            Factor::Queue => self
                .drops
                .first()
                .is_some_and(|drop| drop.place != DropPlace::Qdisc),
            _ => false,
        }
    }

    fn cause(&self) -> Cause {
        Cause::DroppedHere {
            dropped: self.segments,
            lost: self.lost.filter(|lost| *lost >= self.segments),
            drops: self.drops.iter().copied().cloned().collect(),
        }
    }
}
