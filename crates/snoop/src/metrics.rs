//! Encodes the OpenMetrics exposition.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::log_limits;
use crate::protocol::TapStatus;

/// The state of all taps at one moment.
#[derive(Debug)]
struct Snapshot(Vec<TapStatus>);

/// Values of the label `state` of `taut_snoop_tap_state`.
const STATES: [&str; 4] = ["on", "draining", "off", "unfit"];

/// Values of the label `mode` of `taut_snoop_flows`.
const MODES: [&str; 6] = [
    "SYN",
    "UNPROVEN",
    "ACTIVE",
    "UNEXPECTED_SEQ",
    "NO_BUF",
    "BYPASS",
];

/// A counter's name, help text and value.
type Counter = (&'static str, &'static str, fn(&TapStatus) -> u64);

const COUNTERS: [Counter; 5] = [
    (
        "taut_snoop_repaired_flows",
        "Flows in which the guest lacked early-acknowledged data, which was then retransmitted",
        |tap| tap.repaired,
    ),
    (
        "taut_snoop_retransmitted_segments",
        "Segments retransmitted to the guest",
        |tap| tap.retransmitted,
    ),
    (
        "taut_snoop_not_retransmitted_segments",
        "Segments that could not be retransmitted when due",
        |tap| tap.not_sent,
    ),
    (
        "taut_snoop_lost_after_early_ack",
        "Flows in which the guest never took early-acknowledged data",
        |tap| tap.lost_after_early_ack,
    ),
    (
        "taut_snoop_evicted_flows",
        "Flows that were removed because newer ones needed their places",
        |tap| tap.evicted,
    ),
];

/// Encodes an exposition of these taps in OpenMetrics' text format.
///
/// # Errors
/// The library's error.
pub(crate) fn encode(taps: Vec<TapStatus>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot(taps)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

// === impl Snapshot ===

impl Snapshot {
    /// Encodes a family with a figure for each label value of each tap.
    fn family<'t, L: AsRef<str> + 't>(
        &'t self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        label: &str,
        figures: impl Fn(&'t TapStatus) -> Vec<(L, Figure)>,
    ) -> fmt::Result {
        let kind = match self.0.first().map(&figures).unwrap_or_default().first() {
            Some((_, Figure::Level(_))) => MetricType::Gauge,
            _ => MetricType::Counter,
        };
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for tap in &self.0 {
            for (value, figure) in figures(tap) {
                let labels = [("tap", &*tap.tap), (label, value.as_ref())];
                figure.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    /// Encodes a family with one figure per tap.
    fn each(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        unit: Option<&Unit>,
        kind: MetricType,
        figure: impl Fn(&TapStatus) -> Figure,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
        for tap in &self.0 {
            figure(tap).encode(family.encode_family(&[("tap", &*tap.tap)])?)?;
        }
        Ok(())
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) = (
            "taut_snoop_log_lines_left_out",
            "Lines that were left out of the log because there were too many, by cause",
        );
        let mut left_out = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for limit in log_limits::ALL {
            let labels = [("cause", limit.cause)];
            Figure::Count(limit.left_out()).encode(left_out.encode_family(&labels)?)?;
        }
        let exits = |counts: &[(String, u64)]| -> Vec<(String, Figure)> {
            let figure = |(exit, count): &(String, u64)| (exit.clone(), Figure::Count(*count));
            counts.iter().map(figure).collect()
        };
        self.family(
            &mut encoder,
            (
                "taut_snoop_to_guest",
                "Packets towards the guest, by exit of the program",
            ),
            "exit",
            |tap| exits(&tap.to_guest),
        )?;
        self.family(
            &mut encoder,
            (
                "taut_snoop_from_guest",
                "Packets from the guest, by exit of the program",
            ),
            "exit",
            |tap| exits(&tap.from_guest),
        )?;
        self.family(
            &mut encoder,
            (
                "taut_snoop_tap_state",
                "1 for the tap's current state, 0 for others",
            ),
            "state",
            |tap| {
                let is =
                    |state: &&'static str| (*state, Figure::Level(u64::from(tap.state == *state)));
                STATES.iter().map(is).collect()
            },
        )?;
        self.family(
            &mut encoder,
            ("taut_snoop_flows", "Tracked flows, by FL_MODE"),
            "mode",
            |tap| {
                let of = |mode: &&'static str| {
                    let flows = tap.flows.iter().filter(|flow| flow.mode == *mode);
                    (*mode, Figure::Level(flows.count() as u64))
                };
                MODES.iter().map(of).collect()
            },
        )?;
        let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
        self.each(
            &mut encoder,
            (
                "taut_snoop_exposure",
                "Bytes acknowledged early and not yet by the guest",
            ),
            Some(&Unit::Bytes),
            gauge,
            |tap| {
                let exposure = tap.flows.iter().map(|flow| u64::from(flow.exposure));
                Figure::Level(exposure.sum())
            },
        )?;
        self.each(
            &mut encoder,
            (
                "taut_snoop_exposure_most",
                "Maximum bytes of one flow that were acknowledged early and not yet by the guest",
            ),
            Some(&Unit::Bytes),
            gauge,
            |tap| Figure::Level(u64::from(tap.exposure_most)),
        )?;
        self.each(
            &mut encoder,
            (
                "taut_snoop_retained",
                "Bytes of copies retained until the guest acknowledges them",
            ),
            Some(&Unit::Bytes),
            gauge,
            |tap| Figure::Level(tap.retained),
        )?;
        self.each(
            &mut encoder,
            (
                "taut_snoop_refused_flows",
                "Flows whose early-acknowledged data the guest sees and does not take",
            ),
            None,
            gauge,
            |tap| Figure::Level(tap.refused),
        )?;
        for (name, help, figure) in COUNTERS {
            self.each(&mut encoder, (name, help), None, counter, |tap| {
                Figure::Count(figure(tap))
            })?;
        }
        Ok(())
    }
}

enum Figure {
    Count(u64),
    Level(u64),
}

// === impl Figure ===

impl Figure {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => encoder
                .encode_counter::<prometheus_client::encoding::NoLabelSet, u64, u64>(count, None),
            // This library's gauges are signed; no level exceeds `i64::MAX`.
            Self::Level(level) => prometheus_client::metrics::gauge::ConstGauge::new(
                i64::try_from(*level).unwrap_or(i64::MAX),
            )
            .encode(encoder),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use super::*;
    use crate::protocol::FlowStatus;

    fn tap() -> TapStatus {
        TapStatus {
            tap: "vnet0".into(),
            state: "on".into(),
            why: None,
            ring: 500,
            lost_after_early_ack: 2,
            exposure: 1448,
            exposure_most: 9000,
            retained: 1514,
            repaired: 3,
            retransmitted: 4,
            not_sent: 5,
            refused: 6,
            evicted: 9,
            distrusted: Vec::new(),
            to_guest: vec![("acked".into(), 7)],
            from_guest: vec![("passed".into(), 8)],
            flows: vec![FlowStatus {
                peer: ([10, 0, 0, 2], 5000).into(),
                guest: ([10, 0, 0, 1], 80).into(),
                mode: "ACTIVE".into(),
                bypass: None,
                exposure: 1448,
                exposure_most: 9000,
                acked_segments: 7,
                acked_bytes: 10_000,
                suppressed: 0,
                lifted: 0,
            }],
        }
    }

    #[test]
    fn every_figure_of_a_tap_is_exposed() {
        let text = encode(vec![tap()]).unwrap();
        for line in [
            "taut_snoop_to_guest_total{tap=\"vnet0\",exit=\"acked\"} 7",
            "taut_snoop_from_guest_total{tap=\"vnet0\",exit=\"passed\"} 8",
            "taut_snoop_tap_state{tap=\"vnet0\",state=\"on\"} 1",
            "taut_snoop_tap_state{tap=\"vnet0\",state=\"off\"} 0",
            "taut_snoop_flows{tap=\"vnet0\",mode=\"ACTIVE\"} 1",
            "taut_snoop_flows{tap=\"vnet0\",mode=\"BYPASS\"} 0",
            "taut_snoop_exposure_bytes{tap=\"vnet0\"} 1448",
            "taut_snoop_exposure_most_bytes{tap=\"vnet0\"} 9000",
            "taut_snoop_retained_bytes{tap=\"vnet0\"} 1514",
            "taut_snoop_repaired_flows_total{tap=\"vnet0\"} 3",
            "taut_snoop_retransmitted_segments_total{tap=\"vnet0\"} 4",
            "taut_snoop_not_retransmitted_segments_total{tap=\"vnet0\"} 5",
            "taut_snoop_lost_after_early_ack_total{tap=\"vnet0\"} 2",
            "taut_snoop_refused_flows{tap=\"vnet0\"} 6",
            "taut_snoop_evicted_flows_total{tap=\"vnet0\"} 9",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn without_taps_the_exposition_is_empty_and_valid() {
        assert!(encode(Vec::new()).unwrap().ends_with("# EOF\n"));
    }
}
