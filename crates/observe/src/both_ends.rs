//! One verdict from both ends of a connection.
//!
//! Each end knows for certain only what happens to it: the sender knows its application, its buffer
//! and the path, the receiver its application and its window. [`Report`] is what `taut why --json`
//! printed at the other end, [`Report::find`] finds a connection in it, and [`Joint::of`] takes
//! from each verdict what that end knows. Text from the other end is made safe for a terminal when
//! it is read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use taut_sys::sock_diag::{Connection, Internals};

use crate::owner::Process;
use crate::sanitize;
use crate::verdict::{Confidence, Factor, Gain, LIKELY_MOST, Verdict, confidence};

/// The connections of the other machine, as `taut why --json` reported them there.
#[derive(Debug, Default)]
pub struct Report {
    connections: Vec<Remote>,
    /// Indexes by [`Remote::local`] and [`Remote::remote`].
    by_address: BTreeMap<(SocketAddr, SocketAddr), usize>,
    /// Indexes by [`SequenceBase::received`].
    by_received: BTreeMap<u32, Vec<usize>>,
}

/// A connection as the other machine sees it. All other fields of its line are ignored.
#[derive(Clone, Debug, Deserialize)]
pub struct Remote {
    /// Address and port of that end.
    pub local: SocketAddr,
    /// Address and port of its peer, which network address translation may have changed.
    pub remote: SocketAddr,
    #[serde(default)]
    sequence: Option<SequenceBase>,
    #[serde(default)]
    process: Option<RemoteProcess>,
    verdict: Option<RemoteVerdict>,
}

#[derive(Clone, Debug, Deserialize)]
struct RemoteProcess {
    pid: u32,
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct RemoteVerdict {
    #[serde(flatten)]
    view: View,
    #[serde(default)]
    evidence: Vec<RemoteEvidence>,
    #[serde(default)]
    remedy: Option<String>,
    #[serde(default)]
    gain: Option<Gain>,
}

#[derive(Clone, Debug, Deserialize)]
struct RemoteEvidence {
    text: String,
}

/// The factors that one end finds, without their causes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct View {
    factor: Factor,
    confidence: Confidence,
    weight: f64,
    /// The share of the time that each factor accounts for.
    #[serde(default)]
    shares: BTreeMap<Factor, f64>,
}

/// Where a connection's sequence numbers begin, each way. Network address translation leaves them as they
/// are, so they identify a connection at both of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceBase {
    /// The oldest unacknowledged sequence number (SND.UNA of RFC 9293), less all bytes acknowledged.
    pub sent: u32,
    /// The next sequence number expected (RCV.NXT), less all bytes received.
    pub received: u32,
}

/// The verdict of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Joint {
    /// The factor that accounts for most of the time.
    pub factor: Factor,
    /// The confidence in that factor.
    pub confidence: Confidence,
    /// The share of the time that the factor accounts for, from 0 to 1.
    pub weight: f64,
    /// The end whose instruments show it.
    pub shown_by: End,
}

/// One of the two machines that a connection joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// This machine.
    Here,
    /// The other machine.
    There,
}

/// Why a report cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A line is not JSON, or lacks a field of a connection.
    #[error("line {line} is not of `taut why --json`: {problem}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The parser's error.
        problem: String,
    },
    /// There are more connections than [`CONNECTIONS_MAX`].
    #[error(
        "the report has more than {CONNECTIONS_MAX} connections; give `taut why` there a filter"
    )]
    TooMany,
}

/// The maximum number of connections of a report.
pub const CONNECTIONS_MAX: usize = 100_000;

/// The share that remains of a sender's finding about the receiver's application if the receiver's
/// own instruments deny it.
const DENIED: f64 = 0.25;

/// The maximum difference between the bases at both ends. Linux counts the acknowledgement of a SYN
/// as a byte at the end that sent the SYN first, and that of a FIN at both ends.
const BASE_DIFFERENCE_MAX: u32 = 2;

// === impl Report ===

impl Report {
    /// Parses the lines of `taut why --json`. Only lines of connections have a `local`; others are
    /// skipped.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn parse(text: &str) -> Result<Self, ReportError> {
        #[derive(Deserialize)]
        struct AnyLine {
            local: Option<serde::de::IgnoredAny>,
        }
        let mut report = Self::default();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let problem = |error: serde_json::Error| ReportError::Line {
                line: index + 1,
                problem: sanitize::text(error.to_string().as_bytes()),
            };
            let any: AnyLine = serde_json::from_str(line).map_err(problem)?;
            if any.local.is_none() {
                continue;
            }
            let mut remote: Remote = serde_json::from_str(line).map_err(problem)?;
            remote.sanitize();
            if report.connections.len() >= CONNECTIONS_MAX {
                return Err(ReportError::TooMany);
            }
            let key = (canonical(remote.local), canonical(remote.remote));
            report.by_address.insert(key, report.connections.len());
            if let Some(sequence) = remote.sequence {
                let same = report.by_received.entry(sequence.received).or_default();
                same.push(report.connections.len());
            }
            report.connections.push(remote);
        }
        Ok(report)
    }

    /// Returns the number of connections.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns the connections.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn connections(&self) -> &[Remote] {
        &self.connections
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Returns the other end of a connection of this machine. Sequence numbers decide if both ends
    /// know them, otherwise addresses and ports.
    pub fn find(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        sequence: Option<SequenceBase>,
    ) -> Option<&Remote> {
        let by_address = self.by_address.get(&(canonical(remote), canonical(local)));
        let by_address = by_address.and_then(|index| self.connections.get(*index));
        let Some(here) = sequence else {
            return by_address;
        };
        if let Some(found) = by_address
            && found.sequence.is_none_or(|there| here.is_of_peer(there))
        {
            return Some(found);
        }
        let near = here.received_of_peer();
        let near = near.filter_map(|received| self.by_received.get(&received));
        let near = near
            .flatten()
            .filter_map(|index| self.connections.get(*index));
        let mut matching =
            near.filter(|other| other.sequence.is_some_and(|there| here.is_of_peer(there)));
        // If two match, neither is certain.
        matching.next().filter(|_| matching.next().is_none())
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4: the form at an end depends on its socket's family.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V6(ip) => ip.to_canonical(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

// === impl Remote ===

impl Remote {
    /// Returns an end of a connection whose other end is on this machine, too.
    pub(crate) fn of_this_machine(
        connection: &Connection,
        process: Option<&Process>,
        verdict: &Verdict,
    ) -> Self {
        let evidence = verdict.evidence().into_iter();
        Self {
            local: connection.local,
            remote: connection.remote,
            sequence: connection.internals.as_ref().map(SequenceBase::of),
            process: process.map(|process| RemoteProcess {
                pid: process.pid,
                name: process.name.to_string(),
            }),
            verdict: Some(RemoteVerdict {
                view: View::of(verdict),
                evidence: evidence
                    .map(|evidence| RemoteEvidence {
                        text: evidence.text,
                    })
                    .collect(),
                remedy: verdict.remedy().map(Cow::into_owned),
                gain: verdict.gain,
            }),
        }
    }

    /// Returns the name and the pid of the process there.
    pub fn process(&self) -> Option<String> {
        let process = self.process.as_ref()?;
        Some(format!("{}, pid {}", process.name, process.pid))
    }

    /// Returns whether the verdict there names this factor.
    pub fn names(&self, factor: Factor) -> bool {
        let verdict = self.verdict.as_ref();
        verdict.is_some_and(|verdict| verdict.view.factor == factor)
    }

    /// Returns the name of the factor there, with a question mark if the verdict is not sure.
    pub fn factor(&self) -> String {
        self.verdict.as_ref().map_or_else(String::new, |verdict| {
            format!(
                "{}{}",
                verdict.view.factor.name(),
                verdict.view.confidence.doubt()
            )
        })
    }

    /// Returns the sentences that support the verdict there.
    pub fn evidence(&self) -> impl Iterator<Item = &str> {
        let evidence = self.verdict.iter().flat_map(|verdict| &verdict.evidence);
        evidence.map(|evidence| evidence.text.as_str())
    }

    /// Returns the remedy there.
    pub fn remedy(&self) -> Option<&str> {
        self.verdict.as_ref()?.remedy.as_deref()
    }

    /// Returns what the connection would carry without the factor of the verdict there.
    pub(crate) fn gain(&self) -> Option<Gain> {
        self.verdict.as_ref()?.gain
    }

    /// Returns whether both machines see the same addresses: nothing translates them in between.
    pub fn has_addresses(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        canonical(self.local) == canonical(remote) && canonical(self.remote) == canonical(local)
    }

    fn sanitize(&mut self) {
        let safe = |text: &mut String| *text = sanitize::text(text.as_bytes());
        if let Some(process) = &mut self.process {
            safe(&mut process.name);
        }
        if let Some(verdict) = &mut self.verdict {
            verdict
                .evidence
                .iter_mut()
                .for_each(|evidence| safe(&mut evidence.text));
            verdict.remedy.iter_mut().for_each(safe);
        }
    }
}

// === impl SequenceBase ===

impl SequenceBase {
    /// Returns the base of a connection of this machine.
    pub fn of(internals: &Internals) -> Self {
        Self {
            sent: internals.sent_base,
            received: internals.received_base,
        }
    }

    /// Returns what the peer may have received, if this is where it began.
    pub(crate) fn received_of_peer(self) -> impl Iterator<Item = u32> {
        let least = self.sent.wrapping_sub(BASE_DIFFERENCE_MAX);
        (0..=2 * BASE_DIFFERENCE_MAX).map(move |more| least.wrapping_add(more))
    }

    pub(crate) fn is_of_peer(self, peer: Self) -> bool {
        let near = |a: u32, b: u32| a.wrapping_sub(b).min(b.wrapping_sub(a)) <= BASE_DIFFERENCE_MAX;
        near(self.sent, peer.received) && near(self.received, peer.sent)
    }
}

// === impl View ===

impl View {
    fn of(verdict: &Verdict) -> Self {
        Self {
            factor: verdict.factor,
            confidence: verdict.confidence,
            weight: verdict.weight,
            shares: verdict.shares.iter().copied().collect(),
        }
    }
}

// === impl Joint ===

impl Joint {
    /// Returns the verdict of both ends. `sends`: this end is the sender. `None` if the other end has no
    /// verdict.
    pub fn of(here: &Verdict, sends: bool, there: &Remote) -> Option<Self> {
        let there = &there.verdict.as_ref()?.view;
        let here = View::of(here);
        Some(match sends {
            true => join((End::Here, &here), (End::There, there)),
            false => join((End::There, there), (End::Here, &here)),
        })
    }
}

/// Joins the views of the two ends.
fn join((sending, sender): (End, &View), (receiving, receiver): (End, &View)) -> Joint {
    let mut found = sender_findings(sender, receiver, sending);
    found.extend(receiver_findings(sender, receiver, receiving));
    // On a tie, the first one wins: the sender's, then the receiver's largest.
    let heaviest = found.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1));
    let Some(&(factor, weight, shown_by)) = heaviest else {
        return Joint {
            factor: Factor::Unclear,
            confidence: Confidence::Unclear,
            weight: 0.0,
            shown_by: sending,
        };
    };
    let others = found.iter().filter(|(other, ..)| *other != factor);
    let next = others.map(|(_, weight, _)| *weight).fold(0.0, f64::max);
    let mut confidence = confidence(weight, next);
    if sender.factor == factor && receiver.factor == factor {
        confidence = confidence.max(sender.confidence).max(receiver.confidence);
    }
    Joint {
        factor,
        confidence,
        weight,
        shown_by,
    }
}

/// Returns the factors that the sender contributes, with their weights.
fn sender_findings(sender: &View, receiver: &View, end: End) -> Vec<(Factor, f64, End)> {
    let denies = receiver.factor == Factor::Peer && receiver.confidence >= Confidence::Likely;
    let findings = sender.shares().filter_map(|(factor, weight)| match factor {
        Factor::Peer | Factor::Unclear => None,
        // The receiver knows how much data waits to be read. How much of its window is used it knows
        // only on average, also over the time in which the sender had no data.
        Factor::ReceiverApplication if denies => Some((factor, weight * DENIED, end)),
        // The receiver knows which of its own factors it is.
        _ if is_of_receiver(factor) && receiver.names_its_own() => None,
        // The kernel there says what the sender can only suppose.
        _ if may_be_host_drops(factor) && receiver.names_host_drops() => None,
        _ => Some((factor, weight, end)),
    });
    findings.collect()
}

/// Returns the factors that the receiver contributes, with their weights, the largest first.
fn receiver_findings(sender: &View, receiver: &View, end: End) -> Vec<(Factor, f64, End)> {
    let mut findings: Vec<_> = receiver
        .shares()
        .filter(|(factor, _)| is_of_receiver(*factor) || is_of_either(*factor))
        .map(|(factor, weight)| (factor, weight, end))
        .collect();
    findings.sort_by(|a, b| b.1.total_cmp(&a.1));
    // The sender's kernel has measured exactly for how long it waited for the receiver. That time
    // belongs to the receiver's largest factor, except that nobody waits for a window because of drops.
    let waited = sender.share_of(is_of_receiver);
    let mut of_window = findings
        .iter_mut()
        .filter(|(factor, ..)| *factor != Factor::HostDrops);
    if let Some((_, weight, _)) = of_window.next() {
        *weight = weight.max(waited.min(1.0));
    }
    if receiver.names_host_drops() {
        // The ends do not compare which segments these were.
        let lost = sender.share_of(may_be_host_drops).min(LIKELY_MOST);
        let mut drops = findings
            .iter_mut()
            .filter(|(factor, ..)| *factor == Factor::HostDrops);
        if let Some((_, weight, _)) = drops.next() {
            *weight = weight.max(lost);
        }
    }
    findings
}

/// Whether drops at the receiver look so to the sender.
fn may_be_host_drops(factor: Factor) -> bool {
    matches!(factor, Factor::Loss | Factor::RateLimit | Factor::Timeouts)
}

/// Whether only the receiver's instruments show the factor for certain.
fn is_of_receiver(factor: Factor) -> bool {
    matches!(factor, Factor::ReceiverApplication | Factor::ReceiveBuffer)
}

/// Whether either end can have the factor, and only the instruments of that end show it for certain.
fn is_of_either(factor: Factor) -> bool {
    matches!(
        factor,
        Factor::Descheduled | Factor::CpuQuota | Factor::HostDrops
    )
}

// === impl View ===

impl View {
    /// Returns the factors with their shares, from 0 to 1.
    fn shares(&self) -> impl Iterator<Item = (Factor, f64)> {
        // An older version reports no shares.
        let only = self.shares.is_empty().then_some((self.factor, self.weight));
        let all = self
            .shares
            .iter()
            .map(|(factor, weight)| (*factor, *weight));
        let valid = |weight: f64| match weight.is_nan() {
            true => 0.0,
            false => weight.clamp(0.0, 1.0),
        };
        all.chain(only)
            .map(move |(factor, weight)| (factor, valid(weight)))
    }

    /// Returns the share of the time that these factors account for.
    fn share_of(&self, is: impl Fn(Factor) -> bool) -> f64 {
        let these = self.shares().filter(|(factor, _)| is(*factor));
        these.map(|(_, weight)| weight).sum()
    }

    /// Whether the verdict is that the kernel of that machine drops packets.
    fn names_host_drops(&self) -> bool {
        self.factor == Factor::HostDrops && self.confidence >= Confidence::Likely
    }

    /// Whether the verdict of a receiver is about the receiver itself.
    fn names_its_own(&self) -> bool {
        let is_own = is_of_receiver(self.factor) || self.factor == Factor::CpuQuota;
        is_own && self.confidence >= Confidence::Likely
    }
}

#[cfg(test)]
mod tests;
