//! The measurements of a run.

use std::collections::BTreeMap;

use super::costs::Cost;
use super::plan::Cell;
use crate::experiment::guests::configuration::Configuration;
use crate::experiment::guests::gate::Kept;
use crate::experiment::guests::guest::talk::{Counters, Sent};
use crate::experiment::stats;
use taut_netlab::link::counters::{LinkReport, Scheduling};

/// Throughput of a transfer in MB/s (10^6 bytes per second), measured in four ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// From the sender's first write until all bytes were acknowledged.
    pub(super) sender: f64,
    /// From the sender's `connect` until all bytes were acknowledged.
    pub(super) sender_handshake: f64,
    /// From the first byte that the receiving application could read to the last.
    pub(super) receiver: f64,
    /// From the sender's `connect` to the receiver's last byte.
    pub(super) receiver_handshake: f64,
    /// The longest pause between two reads of the acknowledged bytes, in seconds.
    pub(super) longest_pause: f64,
    /// Retransmitted segments.
    pub(super) repeated: u32,
    /// The smallest slow start threshold of the transfer's streams at the end, in segments; `None`
    /// while slow start continues.
    pub(super) ssthresh: Option<u32>,
    /// The counters of the sender's TCP during the transfer, if the sender is a guest.
    pub(super) counted: Option<Counters>,
}

// === impl Sample ===

impl Sample {
    /// Computes the throughput of simultaneous streams of `bytes` each. All times are on the host's
    /// clock.
    pub(super) fn of(bytes: usize, sent: &[Sent]) -> Self {
        let bytes = (bytes * sent.len()) as f64;
        let first = |time: fn(&Sent) -> u64| sent.iter().map(time).min().unwrap_or(0);
        let last = |time: fn(&Sent) -> u64| sent.iter().map(time).max().unwrap_or(0);
        // Bytes per microsecond are MB/s. (Clocks may differ by some microseconds.)
        let rate = |from: u64, to: u64| bytes / (to.saturating_sub(from).max(1) as f64 / 1e3);
        let (connect, acked) = (first(|s| s.connect), last(|s| s.acked));
        let all_read = last(|s| s.received.last);
        Self {
            sender: rate(first(|s| s.write), acked),
            sender_handshake: rate(connect, acked),
            receiver: rate(first(|s| s.received.first), all_read),
            receiver_handshake: rate(connect, all_read),
            longest_pause: last(|s| s.longest_pause) as f64 / 1e9,
            repeated: sent.iter().map(|s| s.repeated).sum(),
            ssthresh: sent.iter().filter_map(|s| s.ssthresh).min(),
            counted: sent.iter().find_map(|s| s.counted),
        }
    }
}

/// What a machine reports at its end.
pub(super) struct Ended {
    pub(super) kept: Vec<Kept>,
    pub(super) counters: Counters,
    pub(super) links: Vec<LinkReport>,
}

/// The key of a cell and configuration: the condition's name, the size in bytes, the configuration.
type Key = (String, usize, Configuration);

/// The number of transfers with each configuration below which a cell is not decided. Their rates have
/// several modes, one for each number of the scheduler's rounds, and few transfers may miss one.
pub(super) const LEAST: usize = 40;

/// All samples of a run.
#[derive(Default)]
pub(super) struct Measured {
    /// Conditions and sizes in order of appearance.
    pub(super) cells: Vec<Cell>,
    samples: BTreeMap<Key, Vec<Sample>>,
    /// Errors of slice lengths, in seconds.
    pub(super) off: Vec<f64>,
    pub(super) late: Vec<f64>,
    pub(super) real_time: bool,
    /// The counters of each machine's receiving guest.
    pub(super) counters: Vec<Counters>,
    pub(super) lost_after_early_ack: u64,
    /// A sentence for each machine that lost bytes after early ACKs.
    pub(super) broken: Vec<String>,
    /// The share of this machine's CPU time that its hypervisor took, if the kernel reports it.
    pub(super) steal: Option<f64>,
    /// A sentence for each failed transfer. The later transfers of the same block are left out.
    pub(super) failures: Vec<String>,
    /// The highest share of any machine.
    pub(super) stopped_share: f64,
    /// The number of deliveries by the links; `late_deliveries` counts the late ones.
    pub(super) deliveries: u64,
    pub(super) late_deliveries: u64,
    /// The costs of a packet.
    pub(super) costs: Vec<Cost>,
}

// === impl Measured ===

impl Measured {
    pub(super) fn add(&mut self, cell: &Cell, configuration: Configuration, sample: Sample) {
        let same = |known: &&Cell| known.condition == cell.condition && known.size == cell.size;
        if !self.cells.iter().any(|known| same(&known)) {
            self.cells.push(*cell);
        }
        let key = (cell.condition.to_string(), cell.size, configuration);
        self.samples.entry(key).or_default().push(sample);
    }

    pub(super) fn end(&mut self, ended: Ended) {
        self.real_time = true;
        for kept in ended.kept {
            self.real_time &= kept.scheduling == Scheduling::RealTime;
            self.off.extend(kept.off);
            self.late.extend(kept.late);
        }
        self.counters.push(ended.counters);
        for direction in ended
            .links
            .iter()
            .flat_map(|link| [link.a_to_b, link.b_to_a])
        {
            self.deliveries += direction.path.deliveries;
            self.late_deliveries += direction.path.late;
        }
    }

    /// Returns one figure of all samples of a cell.
    pub(super) fn samples(
        &self,
        cell: &Cell,
        configuration: Configuration,
        figure: fn(&Sample) -> f64,
    ) -> Vec<f64> {
        let key = (cell.condition.to_string(), cell.size, configuration);
        let samples = self.samples.get(&key).into_iter().flatten();
        samples.map(figure).collect()
    }

    /// Returns the median throughput at the sender, in the data phase.
    pub(super) fn median(&self, cell: &Cell, configuration: Configuration) -> Option<f64> {
        stats::median(&self.samples(cell, configuration, |s| s.sender))
    }

    /// Returns whether a cell has enough transfers: whether the 90 % interval of each configuration's
    /// ratio to `tuned` is narrow, and each has [`LEAST`] transfers.
    pub(super) fn is_decided(&self, cell: &Cell) -> bool {
        let samples = |of| self.samples(cell, of, |s| s.sender);
        let tuned = samples(Configuration::Tuned);
        Configuration::ALL.into_iter().all(|configuration| {
            let own = samples(configuration);
            own.len().min(tuned.len()) >= LEAST && stats::is_narrow(&own, &tuned)
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Sample> {
        self.samples.values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Plan;
    use super::*;
    use crate::experiment::Form;
    use crate::experiment::Request;
    use crate::experiment::guests::guest::talk::Received;

    fn sent(at: u64) -> Sent {
        Sent {
            connect: at,
            write: at + 1_000_000,
            acked: at + 3_000_000,
            longest_pause: 100_000,
            repeated: 1,
            ssthresh: None,
            counted: None,
            received: Received {
                accepted: at,
                first: at + 2_000_000,
                last: at + 4_000_000,
                bytes: 1_000,
                digest: [0; 32],
            },
        }
    }

    #[test]
    fn a_rate_is_bytes_over_the_time_of_its_phase() {
        let sample = Sample::of(1_000_000, &[sent(7)]);
        assert_eq!(sample.sender, 500.0);
        assert_eq!(sample.receiver, 500.0);
        assert_eq!(sample.receiver_handshake, 250.0);
        assert!((sample.sender_handshake - 1_000.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_cell_is_decided_when_all_its_ratios_are_narrow() {
        let plan = Plan::of(&Request::of_test(Form::Quick));
        let cell = plan.parts[0].blocks[0].transfers[0].0;
        let mut measured = Measured::default();
        let mut add = |configuration, rates: &[f64]| {
            for rate in rates.iter().cycle().take(LEAST) {
                let mut sample = Sample::of(1, &[sent(0)]);
                sample.sender = *rate;
                measured.add(&cell, configuration, sample);
            }
            measured.is_decided(&cell)
        };
        for configuration in Configuration::ALL {
            let is_last = Some(&configuration) == Configuration::ALL.last();
            assert!(!add(configuration, &[0.2, 0.6]) || is_last);
        }
        // The median of two modes that are equally frequent is anywhere between them.
        assert!(!add(Configuration::Snoop, &[0.2, 0.6]));
        for configuration in Configuration::ALL {
            add(configuration, &[0.6, 0.6, 0.6, 0.6]);
        }
        assert!(add(Configuration::Tuned, &[0.6]));
    }

    #[test]
    fn streams_at_once_count_from_the_first_to_the_last() {
        let mut other = sent(2_000_000);
        other.ssthresh = Some(60);
        let sample = Sample::of(1_000_000, &[sent(0), other]);
        assert_eq!(sample.sender, 500.0);
        assert_eq!((sample.repeated, sample.ssthresh), (2, Some(60)));
    }
}
