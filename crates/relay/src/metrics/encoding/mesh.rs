//! The metrics of connections between relays.

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use taut_mesh::acceptor::Rejection;
use taut_mesh::members::MemberName;
use taut_mesh::onward::SessionRefusal;

use super::scopes::MAX_LABELS;
use super::{Count, Encoded, Level};
use crate::counters::counter::Counter;
use crate::counters::worker::WorkerMetrics;
use crate::metrics::Metrics;
use crate::outcome::kernel_tls::{ControlRecord, FallBack};
use crate::turbo::congestion_control::Leg;

impl Metrics {
    /// Encodes the metrics of the pools and the mesh port.
    pub(super) fn encode_mesh(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        type Of = fn(&WorkerMetrics) -> &Counter;
        let counters: [(&str, &str, Of); 25] = [
            (
                "taut_relay_pool_hits",
                "Sessions that found a connection ready",
                |w| &w.pool_hits,
            ),
            (
                "taut_relay_pool_misses",
                "Sessions for which a connection had to be dialled",
                |w| &w.pool_misses,
            ),
            (
                "taut_relay_pool_retries",
                "Connections dialled again because one from the pool was dead, or because the first dial failed",
                |w| &w.pool_retries,
            ),
            (
                "taut_relay_fall_backs",
                "Sessions that took their next route, or the direct path, because a relay or the destination could not be reached",
                |w| &w.fall_backs,
            ),
            (
                "taut_relay_routes_refused",
                "Sessions that were reset on an automatic route before the first byte of an answer",
                |w| &w.routes_refused,
            ),
            (
                "taut_relay_refusals_not_kept",
                "Of these, those that are not remembered because too many networks were refused",
                |w| &w.refusals_not_kept,
            ),
            (
                "taut_relay_pool_expired",
                "Unused connections closed because of their age",
                |w| &w.pool_expired,
            ),
            (
                "taut_relay_pool_dead",
                "Unused connections found to be dead",
                |w| &w.pool_dead,
            ),
            (
                "taut_relay_pool_withdrawn",
                "Unused connections that a draining relay gave up",
                |w| &w.pool_withdrawn,
            ),
            (
                "taut_relay_pool_surplus",
                "Connections closed at once because the sessions that they were dialled for had left and the pool was full",
                |w| &w.pool_surplus,
            ),
            (
                "taut_relay_pool_outgrown",
                "Unused connections closed because the relay at the other end needs twice their window",
                |w| &w.pool_outgrown,
            ),
            (
                "taut_relay_pool_dials_failed",
                "Dials to other relays that failed",
                |w| &w.pool_dials_failed,
            ),
            (
                "taut_relay_pool_dials_slow",
                "Dials to other relays that were unanswered for so long that the relay was marked as broken",
                |w| &w.pool_dials_slow,
            ),
            (
                "taut_relay_pool_dials_postponed",
                "Sessions for which no connection to another relay was dialled at once, because enough dials were in progress",
                |w| &w.pool_dials_postponed,
            ),
            (
                "taut_relay_pool_dials_outdated",
                "Connections to other relays that were closed because a key had changed during the handshake, and dialled again if still needed",
                |w| &w.pool_dials_outdated,
            ),
            (
                "taut_relay_pool_peers_rejected",
                "Relays dialled that could not prove that they belong to the mesh",
                |w| &w.pool_peers_rejected,
            ),
            (
                "taut_relay_mesh_accepted",
                "Connections accepted at the mesh port",
                |w| &w.mesh_accepted,
            ),
            (
                "taut_relay_mesh_evicted",
                "Connections without proof of a key that were closed to make room for others",
                |w| &w.mesh_evicted,
            ),
            (
                "taut_relay_mesh_undrained",
                "Connections without a session that were reset because their peers kept them while this relay drained",
                |w| &w.mesh_undrained,
            ),
            (
                "taut_relay_mesh_refused_full",
                "Connections at the mesh port that were closed because max_unproven of them had no proof of a key yet",
                |w| &w.mesh_refused_full,
            ),
            (
                "taut_relay_mesh_handshakes_postponed",
                "Times that a handshake at the mesh port waited until a worker had served its sessions",
                |w| &w.mesh_handshakes_postponed,
            ),
            (
                "taut_relay_mesh_ready_withdrawn",
                "Connections of other relays that were withdrawn because max_ready of them waited for a session",
                |w| &w.mesh_ready_withdrawn,
            ),
            (
                "taut_relay_mesh_hellos",
                "Sessions that other relays have asked for",
                |w| &w.mesh_hellos,
            ),
            (
                "taut_relay_tls_legs",
                "Legs of sessions to and from other relays with TLS",
                |w| &w.tls_legs,
            ),
            (
                "taut_relay_kernel_tls_legs",
                "Those of them whose keys went to the kernel",
                |w| &w.kernel_tls_legs,
            ),
        ];
        for (name, help, of) in counters {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            Count(self.sum(of)).encode(encoder)?;
        }
        let gauges: [(&str, &str, Of); 3] = [
            (
                "taut_relay_pool_ready",
                "Connections to other relays that are ready for use",
                |w| &w.pool_ready,
            ),
            (
                "taut_relay_mesh_unproven",
                "Connections at the mesh port that have not proven that they hold a key",
                |w| &w.mesh_unproven,
            ),
            (
                "taut_relay_mesh_ready",
                "Connections of other relays that wait to be used",
                |w| &w.mesh_ready,
            ),
        ];
        for (name, help, of) in gauges {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            Level(self.sum(of)).encode(encoder)?;
        }
        let help = "Connections at the mesh port that were closed, by cause";
        let name = "taut_relay_mesh_rejected";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for &rejection in Rejection::ALL {
            let count = Count(self.sum(|w| &w.mesh_rejected[rejection.index()]));
            count.encode(family.encode_family(&[("cause", rejection.label())])?)?;
        }
        let help = "Sessions of other relays that were refused, by cause";
        let name = "taut_relay_mesh_refused";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for &refusal in SessionRefusal::ALL {
            let count = Count(self.sum(|w| &w.mesh_refused[refusal.index()]));
            count.encode(family.encode_family(&[("cause", refusal.label())])?)?;
        }
        self.encode_kernel_tls(encoder)
    }

    /// Encodes the metrics of legs whose TLS could be, or is, in the kernel.
    fn encode_kernel_tls(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let help =
            "Legs with TLS whose keys the kernel did not get when splice was to begin, by cause";
        let name = "taut_relay_kernel_tls_fall_backs";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for &cause in FallBack::ALL {
            let count = Count(self.sum(|w| &w.kernel_tls_fall_backs[cause.index()]));
            count.encode(family.encode_family(&[("cause", cause.label())])?)?;
        }
        let help = "Bytes spliced from and to legs whose TLS is in the kernel";
        let name = "taut_relay_kernel_tls_bytes";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let received = Count(self.sum(|w| &w.kernel_tls_received));
        received.encode(family.encode_family(&[("direction", "received")])?)?;
        let sent = Count(self.sum(|w| &w.kernel_tls_sent));
        sent.encode(family.encode_family(&[("direction", "sent")])?)?;
        let help = "Records without data on legs whose TLS is in the kernel, by kind";
        let name = "taut_relay_kernel_tls_records";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for &kind in ControlRecord::ALL {
            let count = Count(self.sum(|w| &w.kernel_tls_records[kind.index()]));
            count.encode(family.encode_family(&[("kind", kind.label())])?)?;
        }
        Ok(())
    }

    /// Encodes the metrics of `taut_pipe`, or of the routes that replace it.
    pub(super) fn encode_turbo(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        if self.turbo.route_segments().is_some() {
            let mut gauge = |name, help, value: u64| -> Encoded {
                Level(value).encode(encoder.encode_descriptor(
                    name,
                    help,
                    None,
                    MetricType::Gauge,
                )?)
            };
            gauge(
                "taut_relay_route_metrics",
                "Addresses of other relays whose route has an initial window",
                self.routes.in_place(),
            )?;
            gauge(
                "taut_relay_route_metrics_without",
                "Addresses of other relays without such a route",
                self.routes.without(),
            )?;
        }
        encode_legs(&self.turbo.legs(), encoder)?;
        self.encode_windows(encoder)?;
        let Some(counters) = self.turbo.counters() else {
            return Ok(());
        };
        let help = "Events of the congestion control of legs between relays";
        let name = "taut_relay_pipe_events";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (event, count) in counters.iter() {
            Count(count).encode(family.encode_family(&[("event", event)])?)?;
        }
        Ok(())
    }
}

impl Metrics {
    /// Encodes the windows of legs between relays that follow what the peers need.
    fn encode_windows(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        if !self.turbo.sizes_windows() {
            return Ok(());
        }
        let windows = self.turbo.window_status();
        let gauges = [
            (
                "taut_relay_window_budget_bytes",
                "Kernel memory that connections between relays should not exceed",
                windows.budget,
            ),
            (
                "taut_relay_window_used_bytes",
                "Kernel memory of connections between relays",
                windows.used,
            ),
            (
                "taut_relay_window_promised_bytes",
                "Sum of what the windows of connections between relays exceed 4 MiB by",
                windows.promised,
            ),
        ];
        for (name, help, value) in gauges {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            Level(value).encode(encoder)?;
        }
        let name = "taut_relay_windows_refused";
        let help = "Windows granted that were smaller than the relay at the other end needs, because of the budget";
        let encoder_of_refused =
            encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        Count(windows.refused).encode(encoder_of_refused)?;
        let name = "taut_relay_peer_granted_window_bytes";
        let help = "Window of the next connection with a relay";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (member, window) in windows.peers.iter().take(MAX_LABELS) {
            let window = Level(u64::from(*window));
            window.encode(family.encode_family(&[("peer", member.as_str())])?)?;
        }
        Ok(())
    }
}

/// Encodes what `taut_pipe` knows of the legs to the first [`MAX_LABELS`] relays.
fn encode_legs(legs: &[(MemberName, Leg)], encoder: &mut DescriptorEncoder<'_>) -> Encoded {
    type OfLeg = fn(&Leg) -> u64;
    let gauges: [(&str, &str, OfLeg); 3] = [
        (
            "taut_relay_peer_rate_bytes",
            "Bytes a second that were found to reach a relay, over all connections to it; 0 if unknown",
            |leg| leg.rate.unwrap_or(0),
        ),
        (
            "taut_relay_peer_window_bytes",
            "Congestion window of a connection to a relay, as last measured",
            |leg| u64::from(leg.window),
        ),
        (
            "taut_relay_peer_connections",
            "Connections with data under way to a relay",
            |leg| u64::from(leg.active),
        ),
    ];
    for (name, help, of) in gauges {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (member, leg) in legs.iter().take(MAX_LABELS) {
            Level(of(leg)).encode(family.encode_family(&[("peer", member.as_str())])?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use prometheus_client::collector::Collector;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Debug)]
    struct Legs(Vec<(MemberName, Leg)>);

    impl Collector for Legs {
        fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Encoded {
            encode_legs(&self.0, &mut encoder)
        }
    }

    #[test]
    fn the_number_of_series_of_legs_is_bounded() {
        let leg = Leg {
            rate: None,
            window: 1,
            active: 2,
        };
        let legs = (0..MAX_LABELS + 5).map(|i| (format!("r{i}").parse().unwrap(), leg));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Legs(legs.collect())));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let series = text.lines().filter(|line| line.contains("{peer="));
        assert_eq!(series.count(), 3 * MAX_LABELS);
        assert!(text.contains("{peer=\"r0\"} 0\n"), "an unknown rate is 0");
    }
}
