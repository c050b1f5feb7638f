//! The metrics of measured paths, and of the exchange of rows.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::scopes::MAX_LABELS;
use super::{Count, Encoded, Level};
use crate::metrics::Metrics;
use crate::rows_mailbox::PeerFigure;

impl Metrics {
    /// Encodes what is known of the paths to the first [`MAX_LABELS`] relays, and what that has cost.
    pub(super) fn encode_rows(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let Some(rows) = &self.rows else {
            return Ok(());
        };
        let published = rows.published();
        type Of = fn(&PeerFigure) -> f64;
        let gauges: [(&str, &str, Of); 3] = [
            (
                "taut_relay_peer_rtt_seconds",
                "Least round-trip time to a relay in the last minutes",
                |peer| peer.figure.rtt().as_secs_f64(),
            ),
            (
                "taut_relay_peer_smoothed_rtt_seconds",
                "Smoothed round-trip time to a relay",
                |peer| peer.figure.smoothed().as_secs_f64(),
            ),
            (
                "taut_relay_peer_loss_ratio",
                "Share of the segments to a relay that were lost",
                |peer| peer.figure.loss(),
            ),
        ];
        for (name, help, of) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for peer in published.peers.iter().take(MAX_LABELS) {
                let labels = [("peer", peer.name.as_str())];
                let series: MetricEncoder<'_> = family.encode_family(&labels)?;
                ConstGauge::new(of(peer)).encode(series)?;
            }
        }
        let traffic = published.traffic;
        let counters = [
            (
                "taut_relay_rows_sent_bytes",
                "Bytes sent on row links",
                traffic.sent,
            ),
            (
                "taut_relay_rows_received_bytes",
                "Bytes received on row links",
                traffic.received,
            ),
            (
                "taut_relay_rows_sent",
                "Rows sent, whole or changes",
                traffic.rows_sent,
            ),
            (
                "taut_relay_rows_news",
                "Rows received that were new",
                traffic.news,
            ),
            (
                "taut_relay_rows_known",
                "Rows received that were known",
                traffic.known,
            ),
            (
                "taut_relay_rows_refused",
                "Rows received and not accepted",
                traffic.refused,
            ),
            (
                "taut_relay_probes",
                "Handshakes made to measure a path",
                published.probes,
            ),
            (
                "taut_relay_probes_failed",
                "Those of them that were not answered",
                published.probes_failed,
            ),
        ];
        for (name, help, value) in counters {
            Count(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Counter,
            )?)?;
        }
        let gauges = [
            (
                "taut_relay_rows",
                "Relays whose rows are known, this one included",
                published.rows,
            ),
            (
                "taut_relay_rows_bytes",
                "Memory of these rows",
                published.bytes,
            ),
            (
                "taut_relay_row_links",
                "Relays with which rows are exchanged directly",
                published.links,
            ),
            (
                "taut_relay_destinations_refused",
                "Destinations that other relays asked this relay to measure and that `allow` refuses",
                published.destinations_refused,
            ),
            (
                "taut_relay_routes_left_out",
                "Relays whose rows are known and from which no automatic route is chosen, because they are too many",
                published.left_out,
            ),
        ];
        for (name, help, value) in gauges {
            Level(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?)?;
        }
        Ok(())
    }
}
