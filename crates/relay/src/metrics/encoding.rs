//! Encodes the metrics as OpenMetrics.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::Metrics;
use crate::counters::counter::Counter;
use crate::counters::histogram::{Histogram, Totals};
use crate::counters::log_limit;
use crate::counters::worker::WorkerMetrics;
use crate::intercept::Method;
use crate::net::names;
use crate::outcome::client_hello::HelloRefusal;
use crate::outcome::proxy::ProxyRefusal;
use crate::outcome::refusal::ClientRefusal;
use crate::outcome::session_end::End;

mod members;
mod mesh;
mod rows;
mod scopes;

type Encoded = Result<(), std::fmt::Error>;

struct Count(u64);

impl Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Encoded {
        encoder.encode_counter::<NoLabelSet, u64, u64>(&self.0, None)
    }
}

struct Level(u64);

impl Level {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Encoded {
        // The library's gauges are signed; no value exceeds i64.
        prometheus_client::metrics::gauge::ConstGauge::new(
            i64::try_from(self.0).unwrap_or(i64::MAX),
        )
        .encode(encoder)
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Encoded {
        let mut counter = |name, help, value: u64| -> Encoded {
            Count(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        counter(
            "taut_relay_accepted",
            "Connections accepted from clients",
            self.sum(|w| &w.accepted),
        )?;
        counter(
            "taut_relay_accept_errors",
            "Connections that could not be accepted because descriptors or memory were exhausted",
            self.sum(|w| &w.accept_failed),
        )?;
        counter(
            "taut_relay_pipe_misses",
            "Times a bulk transfer copied because no pipe was free",
            self.sum(|w| &w.pipe_misses),
        )?;
        counter(
            "taut_relay_backlogs_limited",
            "Times a direction began to limit its source's window because its sink was slower",
            self.sum(|w| &w.backlogs_limited),
        )?;
        counter(
            "taut_relay_pipes_refused",
            "Times the kernel refused a pipe",
            self.sum(|w| &w.pipes_refused),
        )?;

        let mut gauge = |name, help, value: u64| -> Encoded {
            Level(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge("taut_relay_sessions", "Sessions open now", self.sessions())?;
        gauge(
            "taut_relay_queued_clients",
            "Clients that wait for a place now, because all sessions of the relay or of their forward are open",
            self.queued() as u64,
        )?;
        gauge("taut_relay_pipes", "Pipes open now", self.pipes_open())?;
        gauge(
            "taut_relay_pipes_in_use",
            "Pipes that hold bytes now",
            self.pipes_in_use(),
        )?;

        self.encode_mesh(&mut encoder)?;
        self.encode_members(&mut encoder)?;
        self.encode_scopes(&mut encoder)?;
        self.encode_early(&mut encoder)?;
        self.encode_turbo(&mut encoder)?;
        self.encode_rows(&mut encoder)?;
        self.encode_dials(&mut encoder)?;
        self.encode_times(&mut encoder)?;
        self.encode_log(&mut encoder)?;
        self.encode_identity(&mut encoder)?;
        self.encode_hellos(&mut encoder)?;

        let (upstream, client) = self.bytes();
        let help = "Bytes forwarded, by the leg that they were written to";
        let mut family =
            encoder.encode_descriptor("taut_relay_bytes", help, None, MetricType::Counter)?;
        for (leg, bytes) in [("upstream", upstream), ("client", client)] {
            Count(bytes).encode(family.encode_family(&[("leg", leg)])?)?;
        }

        let help = "Connections reset before a session began, by cause";
        let mut family =
            encoder.encode_descriptor("taut_relay_refused", help, None, MetricType::Counter)?;
        for &cause in ClientRefusal::ALL {
            let count = Count(self.refused(cause));
            count.encode(family.encode_family(&[("cause", cause.label())])?)?;
        }

        let help = "Lines that were left out of the log because there were too many, by cause";
        let name = "taut_relay_log_lines_left_out";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for limit in log_limit::ALL {
            let count = Count(limit.left_out());
            count.encode(family.encode_family(&[("cause", limit.cause)])?)?;
        }

        let help = "Sessions that ended, by cause";
        let mut family =
            encoder.encode_descriptor("taut_relay_ended", help, None, MetricType::Counter)?;
        for &end in End::ALL {
            Count(self.ended(end)).encode(family.encode_family(&[("cause", end.label())])?)?;
        }
        Ok(())
    }
}

impl Metrics {
    /// Encodes the histograms.
    fn encode_times(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        type Of = fn(&WorkerMetrics) -> &Histogram;
        let totals = |of: Of| Totals::of(self.workers.iter().map(|w| of(w)));
        let kind = MetricType::Histogram;
        let help = "Time from SYN to a connected upstream leg (direct), or to a proven connection that was dialled because none was ready (mesh)";
        let name = "taut_relay_dial";
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        let legs: [(&str, Of); 2] = [("direct", |w| &w.dial_direct), ("mesh", |w| &w.dial_mesh)];
        for (leg, of) in legs {
            encode_histogram(totals(of), family.encode_family(&[("leg", leg)])?)?;
        }
        let others: [(&str, &str, Of); 3] = [
            (
                "taut_relay_queue",
                "Time that clients waited in the queue before their session began",
                |w| &w.queue,
            ),
            (
                "taut_relay_setup",
                "Time from accept until the upstream leg was ready",
                |w| &w.setup,
            ),
            (
                "taut_relay_first_byte",
                "Time from accept until the first byte was written to the client",
                |w| &w.first_byte,
            ),
        ];
        for (name, help, of) in others {
            let unit = Some(&Unit::Seconds);
            let encoder = encoder.encode_descriptor(name, help, unit, kind)?;
            encode_histogram(totals(of), encoder)?;
        }
        Ok(())
    }

    /// Encodes the metrics of connection attempts to addresses of destinations.
    fn encode_dials(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let help = "Connection attempts to addresses of destinations: one of each session at a time (own), and those besides (extra)";
        let name = "taut_relay_dials";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (i, kind) in ["own", "extra"].into_iter().enumerate() {
            let count = Count(self.sum(|w| &w.dials[i]));
            count.encode(family.encode_family(&[("kind", kind)])?)?;
        }
        let help = "Sessions that connected to a destination, by the place of the address in the order of the session's attempts";
        let name = "taut_relay_dials_won";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (i, place) in ["1", "2", "3", "later"].into_iter().enumerate() {
            let count = Count(self.sum(|w| &w.dials_won[i]));
            count.encode(family.encode_family(&[("place", place)])?)?;
        }
        let help = "Connection attempts put off because too many were in progress";
        let name = "taut_relay_dials_postponed";
        let postponed = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        Count(self.sum(|w| &w.dials_postponed)).encode(postponed)?;
        let help = "Connection attempts in progress besides one of each session";
        let name = "taut_relay_dials_extra";
        let extra = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        Level(self.sum(|w| &w.dials_extra_now)).encode(extra)?;
        let help = "Health checks of addresses of destinations, by result";
        let name = "taut_relay_checks";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        let (connected, failed) = self.backends.checks();
        for (outcome, count) in [("connected", connected), ("failed", failed)] {
            Count(count).encode(family.encode_family(&[("outcome", outcome)])?)?;
        }
        let help =
            "Addresses of destinations, by whether the last connection attempt or check failed";
        let name = "taut_relay_addresses";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let (alive, dead) = self.addresses();
        for (state, count) in [("alive", alive), ("dead", dead)] {
            Level(count).encode(family.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }

    /// Encodes the session log's metrics.
    fn encode_log(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let Some(log) = &self.log else {
            return Ok(());
        };
        let counts = log.counts();
        let help = "Records of the session log, by result";
        let name = "taut_relay_session_log_records";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (outcome, count) in [
            ("written", counts.written),
            ("dropped", counts.dropped),
            ("failed", counts.failed),
        ] {
            Count(count).encode(family.encode_family(&[("outcome", outcome)])?)?;
        }
        Ok(())
    }

    /// Encodes the metrics of interception and of PROXY protocol headers.
    fn encode_identity(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut counter = |name, help, value: u64| -> Encoded {
            Count(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
        };
        counter(
            "taut_relay_intercept_refused",
            "Intercepted connections reset because their destination is not allowed",
            self.sum(|w| &w.intercept_refused),
        )?;
        counter(
            "taut_relay_proxy_headers",
            "Connections that began with a PROXY protocol header",
            self.sum(|w| &w.proxy_headers),
        )?;
        let help = "Connections whose PROXY protocol header is incomplete";
        let name = "taut_relay_proxy_waiting";
        let waiting = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        Level(self.sum(|w| &w.proxy_waiting)).encode(waiting)?;
        let help =
            "Look-ups of names that were refused because too many ran, in all or of one relay";
        let name = "taut_relay_look_ups_refused";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (cause, count) in ["all", "party"].into_iter().zip(names::refused()) {
            Count(count).encode(family.encode_family(&[("cause", cause)])?)?;
        }
        let help =
            "Connections reset because they lack an accepted PROXY protocol header, by cause";
        let name = "taut_relay_proxy_refused";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for &why in ProxyRefusal::ALL {
            let count = Count(self.sum(|w| &w.proxy_refused[why.index()]));
            count.encode(family.encode_family(&[("cause", why.label())])?)?;
        }
        let Some((method, exits)) = self.intercept.get() else {
            return Ok(());
        };
        let help = "The interception method: 1 for the one in use";
        let name = "taut_relay_intercept_method";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (label, of) in [("bpf", Method::Bpf), ("nft", Method::Nft)] {
            let level = Level(u64::from(of == method));
            level.encode(family.encode_family(&[("method", label)])?)?;
        }
        if method == Method::Bpf {
            let help = "Packets that the program examined, by result";
            let name = "taut_relay_intercept_packets";
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (exit, count) in exits.iter() {
                Count(count).encode(family.encode_family(&[("exit", exit)])?)?;
            }
        }
        Ok(())
    }

    /// Encodes the metrics of clients whose destination depends on their TLS server name.
    fn encode_hellos(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let help = "TLS clients of forwards with server names, by what chose their destination";
        let name = "taut_relay_client_hellos";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (i, by) in ["name", "wildcard", "default"].into_iter().enumerate() {
            let count = Count(self.sum(|w| &w.hellos[i]));
            count.encode(family.encode_family(&[("by", by)])?)?;
        }
        let help = "Clients of forwards with server names that were reset, by cause";
        let name = "taut_relay_client_hellos_refused";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for &why in HelloRefusal::ALL {
            let count = Count(self.sum(|w| &w.hellos_refused[why.index()]));
            count.encode(family.encode_family(&[("cause", why.label())])?)?;
        }
        let help = "Connections whose TLS ClientHello is incomplete";
        let name = "taut_relay_client_hellos_waiting";
        let waiting = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        Level(self.sum(|w| &w.hellos_waiting)).encode(waiting)
    }

    /// Encodes the metrics of early SYN.
    fn encode_early(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        type Of = fn(&WorkerMetrics) -> &Counter;
        let counters: [(&str, &str, Of); 5] = [
            (
                "taut_relay_early_begun",
                "Upstream legs dialled when a client's SYN was seen",
                |w| &w.early_begun,
            ),
            (
                "taut_relay_early_joined",
                "Clients whose upstream leg had been dialled when they were accepted",
                |w| &w.early_joined,
            ),
            (
                "taut_relay_early_unused",
                "Upstream legs dialled early whose client did not come",
                |w| &w.early_unused,
            ),
            (
                "taut_relay_early_dialled_ahead",
                "SYNs for which a connection to another relay was dialled, because none could be spared",
                |w| &w.early_ahead,
            ),
            (
                "taut_relay_early_declined",
                "Admitted SYNs for which no upstream leg was dialled",
                |w| &w.early_declined,
            ),
        ];
        for (name, help, of) in counters {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            Count(self.sum(of)).encode(encoder)?;
        }
        let Some(table) = &self.early else {
            return Ok(());
        };
        let (pending, counts, exits) = table.counts();
        let help = "Clients whose SYN was admitted and who have not completed their handshake";
        let name = "taut_relay_early_pending";
        let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        Level(pending as u64).encode(gauge)?;
        let help = "SYNs that the program reported, by the limiter's decision";
        let name = "taut_relay_early_syns";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (verdict, count) in [
            ("admitted", counts.admitted),
            ("merged", counts.merged),
            ("late", counts.late),
            ("over_source_rate", counts.over_source_rate),
            ("over_destination_rate", counts.over_destination_rate),
            ("too_many_pending", counts.too_many_pending),
            ("cookies_active", counts.cookies_active),
        ] {
            Count(count).encode(family.encode_family(&[("verdict", verdict)])?)?;
        }
        let help = "Packets that the program examined, by result";
        let name = "taut_relay_early_packets";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (exit, count) in exits.iter().flat_map(|exits| exits.iter()) {
            Count(count).encode(family.encode_family(&[("exit", exit)])?)?;
        }
        Ok(())
    }
}

fn encode_histogram(totals: Totals, mut encoder: MetricEncoder<'_>) -> Encoded {
    let (sum, count) = (totals.seconds(), totals.count());
    encoder.encode_histogram::<NoLabelSet>(sum, count, &totals.bounded(), None)
}
