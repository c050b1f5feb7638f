//! The server's counters, and their exposition.

use std::fmt;

use hickory_proto::op::ResponseCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::answer::{By, Reply, Transport};
use crate::cookie::Proof;

/// One label, whose name is the field's.
macro_rules! label {
    ($name:ident { $($field:ident),+ }) => {
        #[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
        pub(crate) struct $name {
            $(pub(crate) $field: String,)+
        }
    };
}

label!(TransportLabel { transport });
label!(CodeLabel { code });
label!(CauseLabel { cause });
label!(SteeredLabel { relay, by });
label!(RelayLabel { relay });
label!(ProofLabel { proof });

/// The response codes that answers have, for counters that need no look-up.
const CODES: [(ResponseCode, &str); 7] = [
    (ResponseCode::NoError, "noerror"),
    (ResponseCode::NXDomain, "nxdomain"),
    (ResponseCode::Refused, "refused"),
    (ResponseCode::FormErr, "formerr"),
    (ResponseCode::NotImp, "notimp"),
    (ResponseCode::BADVERS, "badvers"),
    (ResponseCode::ServFail, "servfail"),
];

/// What cookies prove.
const PROOFS: [(Proof, &str); 3] = [
    (Proof::New, "new"),
    (Proof::Proven, "proven"),
    (Proof::Invalid, "invalid"),
];

/// The counters of the whole server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    udp: Counter,
    tcp: Counter,
    codes: [Counter; CODES.len()],
    too_large: Counter,
    over_rate: Counter,
    pub(crate) not_a_query: Counter,
    pub(crate) rate_limited: Counter,
    pub(crate) not_sent: Counter,
    subnets: Counter,
    blind: Counter,
    pub(crate) tcp_connections: Gauge,
    pub(crate) tcp_refused: Counter,
    pub(crate) tcp_displaced: Counter,
    pub(crate) tcp_timed_out: Counter,
    pub(crate) rtts: Gauge,
    pub(crate) rtt_file_errors: Counter,
    pub(crate) relay_errors: Counter,
    pub(crate) relay_age: Gauge,
    cookies: [Counter; 3],
    pub(crate) spared: Counter,
    steered: Family<SteeredLabel, Counter>,
    up: Family<RelayLabel, Gauge>,
    probes_failed: Family<RelayLabel, Counter>,
}

/// The counters of one relay.
#[derive(Clone, Debug)]
pub(crate) struct RelayMetrics {
    subnet: Counter,
    resolver: Counter,
    fallback: Counter,
    pub(crate) up: Gauge,
    pub(crate) probes_failed: Counter,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("taut_dns");
        let queries = Family::<TransportLabel, Counter>::default();
        registry.register("queries", "Messages received", queries.clone());
        let answers = Family::<CodeLabel, Counter>::default();
        registry.register("answers", "Answers, by response code", answers.clone());
        let truncated = Family::<CauseLabel, Counter>::default();
        registry.register(
            "truncated",
            "Answers over UDP that only send the resolver to TCP, because they would be larger than \
             the query allows (size) or its network is over its rate (rate)",
            truncated.clone(),
        );
        let dropped = Family::<CauseLabel, Counter>::default();
        registry.register(
            "dropped",
            "Messages without an answer: no query, over the rate, or not sent by the kernel",
            dropped.clone(),
        );
        let subnets = registered(
            &mut registry,
            "subnets",
            "Queries that name the client's subnet",
        );
        let blind = registered(
            &mut registry,
            "blind",
            "Answers with a relay that is down, because all relays of the name are",
        );
        let refused = registered(
            &mut registry,
            "tcp_refused",
            "TCP connections closed because too many of the same network were open",
        );
        let displaced = registered(
            &mut registry,
            "tcp_displaced",
            "TCP connections closed for newer ones, because they were idle longest of too many",
        );
        let timed_out = registered(
            &mut registry,
            "tcp_timed_out",
            "TCP connections closed because the client was too slow, or they were too old",
        );
        let tcp_connections = Gauge::default();
        registry.register(
            "tcp_connections",
            "TCP connections open now",
            tcp_connections.clone(),
        );
        let rtts = Gauge::default();
        registry.register("rtts", "Round-trip times to prefixes", rtts.clone());
        let rtt_file_errors = registered(
            &mut registry,
            "rtt_file_errors",
            "Times that the file of round-trip times could not be read",
        );
        let relay_errors = registered(
            &mut registry,
            "relay_errors",
            "Times that the relay on this machine could not be asked for round-trip times",
        );
        let relay_age = Gauge::default();
        registry.register(
            "relay_age_seconds",
            "Time since the relay on this machine confirmed its round-trip times; -1: they are not known",
            relay_age.clone(),
        );
        relay_age.set(-1);
        let cookies = Family::<ProofLabel, Counter>::default();
        registry.register(
            "cookies",
            "Queries with a DNS cookie, by what it proves",
            cookies.clone(),
        );
        let spared = registered(
            &mut registry,
            "spared",
            "Queries over UDP that were answered beyond the rate, because their cookie proves the address",
        );
        let steered = Family::default();
        registry.register(
            "steered",
            "Answers with the address of a relay, by what the choice rests on",
            steered.clone(),
        );
        let up = Family::default();
        registry.register("relay_up", "Whether a relay is up", up.clone());
        let probes_failed = Family::default();
        registry.register(
            "probes_failed",
            "Failed probes of a relay",
            probes_failed.clone(),
        );
        let transport = |name: &str| {
            let transport = name.to_owned();
            queries.get_or_create_owned(&TransportLabel { transport })
        };
        let cause = |family: &Family<CauseLabel, Counter>, name: &str| {
            let cause = name.to_owned();
            family.get_or_create_owned(&CauseLabel { cause })
        };
        Self {
            udp: transport("udp"),
            tcp: transport("tcp"),
            codes: CODES.map(|(_, code)| {
                let code = code.to_owned();
                answers.get_or_create_owned(&CodeLabel { code })
            }),
            too_large: cause(&truncated, "size"),
            over_rate: cause(&truncated, "rate"),
            not_a_query: cause(&dropped, "not_a_query"),
            rate_limited: cause(&dropped, "rate"),
            not_sent: cause(&dropped, "send"),
            subnets,
            blind,
            tcp_connections,
            tcp_refused: refused,
            tcp_displaced: displaced,
            tcp_timed_out: timed_out,
            rtts,
            rtt_file_errors,
            relay_errors,
            relay_age,
            cookies: PROOFS.map(|(_, proof)| {
                let proof = proof.to_owned();
                cookies.get_or_create_owned(&ProofLabel { proof })
            }),
            spared,
            steered,
            up,
            probes_failed,
            registry,
        }
    }

    /// Counts what became of a query.
    pub(crate) fn count(&self, transport: Transport, reply: &Reply, relays: &[RelayMetrics]) {
        match transport {
            Transport::Tcp => self.tcp.inc(),
            Transport::Udp | Transport::UdpTruncated => self.udp.inc(),
        };
        let Some(code) = reply.code else {
            self.not_a_query.inc();
            return;
        };
        if let Some(at) = CODES.iter().position(|(known, _)| *known == code) {
            self.codes[at].inc();
        }
        if reply.subnet {
            self.subnets.inc();
        }
        if let Some(at) = PROOFS
            .iter()
            .position(|(proof, _)| Some(*proof) == reply.cookie)
        {
            self.cookies[at].inc();
        }
        match (reply.truncated, transport) {
            (true, Transport::UdpTruncated) => _ = self.over_rate.inc(),
            (true, _) => _ = self.too_large.inc(),
            (false, _) => {}
        }
        if let Some(choice) = reply.choice {
            if choice.blind {
                self.blind.inc();
            }
            if let Some(relay) = relays.get(usize::from(choice.relay)) {
                relay.by(choice.by).inc();
            }
        }
    }

    /// Counts a query over UDP without an answer because of the rate.
    pub(crate) fn count_rate_limited(&self) {
        self.udp.inc();
        self.rate_limited.inc();
    }

    /// Returns the number of queries that were over the rate.
    pub(crate) fn over_rate(&self) -> u64 {
        self.rate_limited.get() + self.over_rate.get()
    }

    /// Returns the counters of a relay.
    pub(crate) fn relay(&self, name: &str) -> RelayMetrics {
        let relay = name.to_owned();
        let steered = |by: By| {
            let (relay, by) = (relay.clone(), by.label().to_owned());
            self.steered
                .get_or_create_owned(&SteeredLabel { relay, by })
        };
        RelayMetrics {
            subnet: steered(By::Subnet),
            resolver: steered(By::Resolver),
            fallback: steered(By::Fallback),
            up: self.up.get_or_create_owned(&RelayLabel {
                relay: relay.clone(),
            }),
            probes_failed: self
                .probes_failed
                .get_or_create_owned(&RelayLabel { relay }),
        }
    }

    /// Forgets the counters of a relay that the configuration does not have any more.
    pub(crate) fn forget(&self, name: &str) {
        let relay = name.to_owned();
        for by in [By::Subnet, By::Resolver, By::Fallback] {
            let (relay, by) = (relay.clone(), by.label().to_owned());
            self.steered.remove(&SteeredLabel { relay, by });
        }
        self.up.remove(&RelayLabel {
            relay: relay.clone(),
        });
        self.probes_failed.remove(&RelayLabel { relay });
    }

    /// Encodes all counters as OpenMetrics.
    ///
    /// # Errors
    /// The library's error.
    pub(crate) fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

fn registered(registry: &mut Registry, name: &str, help: &str) -> Counter {
    let counter = Counter::default();
    registry.register(name, help, counter.clone());
    counter
}

// === impl RelayMetrics ===

impl RelayMetrics {
    fn by(&self, by: By) -> &Counter {
        match by {
            By::Subnet => &self.subnet,
            By::Resolver => &self.resolver,
            By::Fallback => &self.fallback,
        }
    }
}
