//! The metrics of each forward and each peer.
//!
//! The first [`MAX_LABELS`] forwards and peers have series of their own; the others share the label
//! `other`. A cause that has not occurred at a forward has no series there.

use std::sync::PoisonError;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Count, Encoded, Level};
use crate::condition::Broken;
use crate::counters::counter::Counter;
use crate::counters::forward::ForwardCounters;
use crate::counters::peer::PeerCounters;
use crate::metrics::Metrics;
use crate::net::backend::Backend;
use crate::outcome::peer::PeerFailure;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;

/// The maximum number of forwards, and of peers, with series of their own.
pub(super) const MAX_LABELS: usize = 1000;

/// The label of the others.
const OTHER: &str = "other";

/// A cause's label, and its counter.
type Cause<C> = (&'static str, Box<dyn Fn(&C) -> &Counter>);

impl Metrics {
    /// Encodes the metrics of forwards and peers.
    pub(super) fn encode_scopes(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        self.encode_forwards(encoder)?;
        self.encode_peers(encoder)?;
        self.encode_addresses(encoder)?;
        self.encode_conditions(encoder)
    }

    fn encode_conditions(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let tracker = self.conditions.lock();
        let broken = tracker.unwrap_or_else(PoisonError::into_inner).broken();
        let help = "What is broken now, as in the log: 1 for each";
        let name = "taut_relay_broken";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for Broken { condition, .. } in broken.iter().take(MAX_LABELS) {
            let labels = [
                ("condition", condition.label()),
                ("subject", condition.subject()),
            ];
            Level(1).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn encode_forwards(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let forwards = self.scopes.forwards();
        let names = || forwards.iter().map(|f| &*f.name);
        type Of = fn(&ForwardCounters) -> &Counter;
        let values = |of: Of| labelled(names(), forwards.iter().map(move |f| f.sum(of)));

        let help = "Sessions open now, by forward";
        let name = "taut_relay_forward_sessions";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (forward, sessions) in values(|c| &c.sessions) {
            Level(sessions).encode(family.encode_family(&[("forward", forward)])?)?;
        }
        let counters: [(&str, &str, Of); 2] = [
            (
                "taut_relay_forward_queued",
                "Clients that had to wait for a place, by forward",
                |c| &c.queued,
            ),
            (
                "taut_relay_forward_queue_left",
                "Clients that reset their connection while they waited for a place, by forward",
                |c| &c.queue_left,
            ),
        ];
        for (name, help, of) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (forward, count) in values(of) {
                Count(count).encode(family.encode_family(&[("forward", forward)])?)?;
            }
        }
        let help = "Bytes forwarded, by forward and by the leg that they were written to";
        let name = "taut_relay_forward_bytes";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let legs: [(&str, Of); 2] = [
            ("upstream", |c| &c.upstream_bytes),
            ("client", |c| &c.client_bytes),
        ];
        for (leg, of) in legs {
            for (forward, bytes) in values(of) {
                let labels = [("forward", forward), ("leg", leg)];
                Count(bytes).encode(family.encode_family(&labels)?)?;
            }
        }
        let ends = End::ALL
            .iter()
            .copied()
            .map(|end| -> Cause<ForwardCounters> {
                (end.label(), Box::new(move |c| &c.ended[end.index()]))
            });
        let refusals = ClientRefusal::ALL.iter().copied();
        let refusals = refusals.map(|cause| -> Cause<ForwardCounters> {
            (cause.label(), Box::new(move |c| &c.refused[cause.index()]))
        });
        let others: [Cause<ForwardCounters>; 4] = [
            ("destination", Box::new(|c| &c.destination_refused)),
            ("no_route", Box::new(|c| &c.without_route)),
            ("proxy_header", Box::new(|c| &c.header_refused)),
            ("client_hello", Box::new(|c| &c.hello_refused)),
        ];
        for (name, help, causes) in [
            (
                "taut_relay_forward_ended",
                "Sessions that ended, by forward and cause",
                ends.collect::<Vec<_>>(),
            ),
            (
                "taut_relay_forward_refused",
                "Connections and sessions refused, by forward and cause",
                refusals.chain(others).collect(),
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (cause, of) in causes {
                let values = labelled(names(), forwards.iter().map(|f| f.sum(&of)));
                for (forward, count) in values.into_iter().filter(|(_, count)| *count > 0) {
                    let labels = [("forward", forward), ("cause", cause)];
                    Count(count).encode(family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }

    /// Encodes the addresses of the destinations of forwards. Those after [`MAX_LABELS`] have no series: a sum says
    /// nothing of what is up.
    fn encode_addresses(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let backends = self.backends.of_forwards();
        let backends = || backends.iter().take(MAX_LABELS);
        type Of = fn(&Backend) -> u64;
        let gauges: [(&str, &str, Of); 2] = [
            (
                "taut_relay_address_up",
                "Whether sessions go to an address of a destination: 0 if it is down or drained",
                |b| u64::from(b.outage().is_none() && !b.is_drained()),
            ),
            (
                "taut_relay_address_sessions",
                "Sessions open now at an address of a destination, those that are connecting included",
                |b| b.sessions().into(),
            ),
        ];
        for (name, help, of) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for backend in backends() {
                let address = backend.addr.0.to_string();
                let labels = [("address", address.as_str())];
                Level(of(backend)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn encode_peers(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let peers = self.scopes.peers();
        let names = || peers.iter().map(|p| p.name.as_str());
        type Of = fn(&PeerCounters) -> &Counter;
        let values = |of: Of| labelled(names(), peers.iter().map(move |p| p.sum(of)));

        let gauges: [(&str, &str, Of); 2] = [
            (
                "taut_relay_peer_sessions",
                "Sessions open now through another relay, by relay",
                |c| &c.sessions,
            ),
            (
                "taut_relay_peer_ready",
                "Connections to another relay that are ready for a session, by relay",
                |c| &c.ready,
            ),
        ];
        for (name, help, of) in gauges {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (peer, level) in values(of) {
                Level(level).encode(family.encode_family(&[("peer", peer)])?)?;
            }
        }
        let help = "Sessions reset because no connection to the relay could be had, by relay";
        let name = "taut_relay_peer_sessions_failed";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (peer, count) in values(|c| &c.sessions_failed) {
            Count(count).encode(family.encode_family(&[("peer", peer)])?)?;
        }
        let help = "Bytes of sessions sent to and received from another relay, by relay";
        let name = "taut_relay_peer_bytes";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let directions: [(&str, Of); 2] = [
            ("sent", |c| &c.sent_bytes),
            ("received", |c| &c.received_bytes),
        ];
        for (direction, of) in directions {
            for (peer, bytes) in values(of) {
                let labels = [("peer", peer), ("direction", direction)];
                Count(bytes).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Dials to another relay, by relay and result";
        let name = "taut_relay_peer_dials";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let failures = PeerFailure::ALL.iter().copied();
        let failures = failures.map(|failure| -> Cause<PeerCounters> {
            (
                failure.label(),
                Box::new(move |c| &c.failed[failure.index()]),
            )
        });
        let connected: Cause<PeerCounters> = ("connected", Box::new(|c| &c.dialled));
        for (outcome, of) in std::iter::once(connected).chain(failures) {
            for (peer, count) in labelled(names(), peers.iter().map(|p| p.sum(&of))) {
                let labels = [("peer", peer), ("outcome", outcome)];
                Count(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Pairs labels and values. The values of all labels after [`MAX_LABELS`] are added up.
fn labelled<'a>(
    labels: impl Iterator<Item = &'a str>,
    values: impl Iterator<Item = u64>,
) -> Vec<(&'a str, u64)> {
    let mut pairs: Vec<_> = labels.zip(values).collect();
    if pairs.len() > MAX_LABELS {
        let rest = pairs.drain(MAX_LABELS..).map(|(_, value)| value);
        let rest = rest.fold(0, u64::wrapping_add);
        pairs.push((OTHER, rest));
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_labels_is_bounded_and_no_value_is_lost() {
        let names: Vec<String> = (0..MAX_LABELS + 5).map(|i| format!("f{i}")).collect();
        let labels = || names.iter().map(String::as_str);
        let pairs = labelled(labels(), std::iter::repeat(2));
        assert_eq!(pairs.len(), MAX_LABELS + 1);
        assert_eq!(pairs[MAX_LABELS], (OTHER, 10));
        let few = labelled(labels().take(2), std::iter::repeat(1));
        assert_eq!(few, [("f0", 1), ("f1", 1)]);
    }

    #[test]
    fn forwards_and_peers_have_series_with_their_names() {
        let metrics = Metrics::of_nothing(2);
        let forward = metrics.scopes.forward("web");
        forward.worker(0).upstream_bytes.add(2);
        forward.worker(1).upstream_bytes.add(3);
        forward.worker(0).ended[End::ConnectRefused.index()].add(7);
        forward.worker(1).destination_refused.add(4);
        let peer = metrics.scopes.peer("fra1");
        peer.worker(0).received_bytes.add(9);
        peer.worker(0).failed[PeerFailure::Closed.index()].add(1);
        let text = metrics.encode().unwrap();
        for line in [
            "taut_relay_forward_sessions{forward=\"web\"} 0",
            "taut_relay_forward_bytes_total{forward=\"web\",leg=\"upstream\"} 5",
            "taut_relay_forward_ended_total{forward=\"web\",cause=\"connect_refused\"} 7",
            "taut_relay_forward_refused_total{forward=\"web\",cause=\"destination\"} 4",
            "taut_relay_peer_bytes_total{peer=\"fra1\",direction=\"received\"} 9",
            "taut_relay_peer_dials_total{peer=\"fra1\",outcome=\"closed\"} 1",
        ] {
            assert!(
                text.lines().any(|l| l == line),
                "no line `{line}` in:\n{text}"
            );
        }
        assert!(!text.contains("forward=\"web\",cause=\"complete\""));
    }
}
