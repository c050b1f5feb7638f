//! The metrics of the list of members and of etcd.

use std::time::{Instant, SystemTime};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::{Count, Encoded, Level};
use crate::etcd::{EtcdState, ListState};
use crate::metrics::Metrics;

impl Metrics {
    /// Encodes the metrics of the list of members. Without a mesh there are none.
    pub(super) fn encode_members(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let state = self.list.state();
        let Some(members) = state.members else {
            return Ok(());
        };
        let help = "Members of the mesh, this relay included";
        let gauge =
            encoder.encode_descriptor("taut_relay_members", help, None, MetricType::Gauge)?;
        Level(members).encode(gauge)?;
        if let Some(serial) = state.serial {
            let help = "Serial of the signed list of members";
            let name = "taut_relay_members_serial";
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            Level(serial).encode(gauge)?;
        }
        let help = "Lists of members that were refused, by cause";
        let name = "taut_relay_members_refused";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (cause, count) in ListState::REFUSALS.into_iter().zip(state.refused) {
            Count(count).encode(family.encode_family(&[("cause", cause)])?)?;
        }
        encode_expiries(&state, encoder)?;
        match state.follows {
            true => encode_etcd(&state.etcd, encoder),
            false => Ok(()),
        }
    }
}

fn encode_expiries(state: &ListState, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
    let now = SystemTime::now();
    let help =
        "Time until the list of members or a certificate expires; negative: since it has expired";
    let name = "taut_relay_expires";
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (what, at) in state.expiries() {
        let left = match at.duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(since) => -since.duration().as_secs_f64(),
        };
        ConstGauge::new(left).encode(family.encode_family(&[("what", what)])?)?;
    }
    Ok(())
}

fn encode_etcd(etcd: &EtcdState, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
    let mut gauge = |name, help, value: u64| -> Encoded {
        Level(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    };
    gauge(
        "taut_relay_etcd_connected",
        "1 while etcd can be used",
        u64::from(etcd.is_connected),
    )?;
    gauge(
        "taut_relay_etcd_present",
        "Relays that have announced themselves in etcd",
        etcd.present.len() as u64,
    )?;
    if let Some(at) = etcd.last_read {
        let help = "Time since the list of members was last read from etcd";
        let name = "taut_relay_etcd_read_age";
        let unit = Some(&Unit::Seconds);
        let age = Instant::now().saturating_duration_since(at).as_secs_f64();
        ConstGauge::new(age).encode(encoder.encode_descriptor(
            name,
            help,
            unit,
            MetricType::Gauge,
        )?)?;
    }
    let mut counter = |name, help, value: u64| -> Encoded {
        Count(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
    };
    counter(
        "taut_relay_etcd_reads",
        "Times that the list of members was read from etcd",
        etcd.reads,
    )?;
    counter(
        "taut_relay_etcd_changes",
        "Changes of the list that etcd reported",
        etcd.changes,
    )?;
    counter(
        "taut_relay_etcd_announced",
        "Times that this relay announced itself in etcd",
        etcd.announced,
    )?;
    counter(
        "taut_relay_etcd_announcements_failed",
        "Times that this relay could not announce itself in etcd, or read which relays have",
        etcd.announcements_failed,
    )?;
    counter(
        "taut_relay_etcd_duplicates",
        "Times that another process had the name of this relay in etcd",
        etcd.duplicates,
    )?;
    let help = "Watches that etcd ended, by cause";
    let name = "taut_relay_etcd_watches_ended";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (cause, count) in ["compacted", "other"].into_iter().zip(etcd.watches_ended) {
        Count(count).encode(family.encode_family(&[("cause", cause)])?)?;
    }
    let help = "Failures to use a server of etcd, by cause";
    let name = "taut_relay_etcd_failures";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (cause, count) in ListState::FAILURES.into_iter().zip(etcd.failures) {
        Count(count).encode(family.encode_family(&[("cause", cause)])?)?;
    }
    Ok(())
}
