//! Divides the time of a connection into phases.

use std::time::Duration;

use strum::{IntoStaticStr, VariantArray};

use crate::bpf_iter::EndRecord;

/// Segments that may be sent before the first acknowledgement (RFC 6928).
const INITIAL_WINDOW: u32 = 10;

/// A part of a connection's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum Phase {
    /// From the first segment to the end of the handshake.
    Handshake,
    /// Data was in flight that fits into the initial window: only the round trip limits it.
    RoundTrip,
    /// Data was in flight, and the congestion window had not yet filled the path.
    SlowStart,
    /// Data was in flight after slow start.
    Path,
    /// From a loss to the end of its recovery.
    Loss,
    /// The peer's window held the sender back.
    ReceiveWindow,
    /// The send buffer held the sender back.
    SendBuffer,
    /// The peer's data was arriving. Only the peer can tell what limited it.
    Receiving,
    /// Nothing was in flight, and nothing arrived for longer than a retransmission time-out: it was
    /// an application's turn, at either end.
    Waiting,
}

/// The time of each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases([Duration; Phase::ALL.len()]);

// === impl Phase ===

impl Phase {
    /// All phases, in the order of their report.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the name used in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the words used in a sentence.
    pub fn words(self) -> &'static str {
        match self {
            Self::RoundTrip => "round trips of the first window",
            Self::SlowStart => "slow start",
            Self::Path => "the path after slow start",
            Self::ReceiveWindow => "the peer's window",
            Self::SendBuffer => "the send buffer",
            Self::Waiting => "waiting for an application",
            other => other.name(),
        }
    }
}

// === impl Phases ===

impl Phases {
    /// Divides the time of a connection: all of it if the connection was followed from its
    /// beginning, otherwise only the time with data in flight.
    pub(crate) fn of(end: &EndRecord) -> Self {
        let mut phases = Self::default();
        let open = end.since_established.unwrap_or_default();
        let is_followed = end.flags.followed;
        phases.add(
            Phase::Handshake,
            match (end.since_opened, end.since_established) {
                (Some(all), established) => all.saturating_sub(established.unwrap_or_default()),
                (None, Some(_)) if is_followed => end.handshake,
                _ => Duration::ZERO,
            },
        );
        // The kernel counts in ticks, so a short time may exceed the connection's duration.
        let busy = if is_followed {
            end.busy.min(open)
        } else {
            end.busy
        };
        let mut left = busy;
        let mut take = |phase, time: Duration| {
            let time = time.min(left);
            left -= time;
            phases.add(phase, time);
        };
        take(Phase::ReceiveWindow, end.rwnd_limited);
        take(Phase::SendBuffer, end.sndbuf_limited);
        take(Phase::Loss, end.recovering);
        let network = match (end.signals, end.is_below_ssthresh) {
            (0, true) if end.data_segs_out <= INITIAL_WINDOW => Phase::RoundTrip,
            (0, true) => Phase::SlowStart,
            _ => Phase::Path,
        };
        phases.add(network, left);
        if is_followed {
            let quiet = open.saturating_sub(busy);
            let arriving = end.receiving.min(quiet);
            phases.add(Phase::Receiving, arriving);
            phases.add(Phase::Waiting, quiet - arriving);
        }
        phases
    }

    /// Returns the time of a phase.
    pub fn get(&self, phase: Phase) -> Duration {
        self.0[phase as usize]
    }

    fn add(&mut self, phase: Phase, time: Duration) {
        let sum = &mut self.0[phase as usize];
        *sum = sum.saturating_add(time);
    }

    /// Adds those of another connection.
    pub(super) fn add_all(&mut self, other: &Self) {
        for &phase in Phase::ALL {
            self.add(phase, other.get(phase));
        }
    }

    /// Returns the sum of all phases.
    pub fn total(&self) -> Duration {
        let times = self.0.iter();
        times.fold(Duration::ZERO, |sum, time| sum.saturating_add(*time))
    }

    /// Returns the phases with their shares of the total, the longest first, without empty ones.
    pub fn shares(&self) -> Vec<(Phase, f64)> {
        let total = self.total().as_secs_f64();
        let each = Phase::ALL
            .iter()
            .filter(|phase| !self.get(**phase).is_zero());
        let mut shares: Vec<_> = each
            .map(|phase| (*phase, self.get(*phase).as_secs_f64() / total))
            .collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::record;
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn an_upload_spends_its_time_in_the_handshake_slow_start_and_losses() {
        let mut end = record();
        (end.busy, end.recovering, end.data_segs_out) = (ms(70), ms(30), 50);
        let phases = Phases::of(&end);
        let times = |phase| phases.get(phase);
        assert_eq!(times(Phase::Handshake), ms(20));
        assert_eq!(times(Phase::Loss), ms(30));
        assert_eq!(times(Phase::SlowStart), ms(40));
        assert_eq!(times(Phase::Waiting), ms(10));
        assert_eq!(phases.shares()[0].0, Phase::SlowStart);
    }

    #[test]
    fn a_download_is_receiving_and_a_request_of_one_window_takes_its_round_trip() {
        let mut end = record();
        (end.busy, end.data_segs_out) = (ms(20), 1);
        end.receiving = ms(50);
        let phases = Phases::of(&end);
        assert_eq!(phases.get(Phase::RoundTrip), ms(20));
        assert_eq!(phases.get(Phase::Receiving), ms(50));
        assert_eq!(phases.get(Phase::Waiting), ms(10));
    }

    proptest! {
        #[test]
        fn the_phases_of_a_connection_add_up_to_its_life(
            times in prop::array::uniform7(0u64..1000), signals in 0u32..2, segments in 0u32..40
        ) {
            let mut end = record();
            let [handshake, open, busy, rwnd, sndbuf, lost, receiving] = times.map(ms);
            end.since_opened = Some(handshake + open);
            end.since_established = Some(open);
            (end.busy, end.rwnd_limited, end.sndbuf_limited) = (busy, rwnd, sndbuf);
            (end.recovering, end.receiving) = (lost, receiving);
            (end.signals, end.data_segs_out) = (signals, segments);
            prop_assert_eq!(Phases::of(&end).total(), handshake + open);
        }
    }
}
