//! One verdict from both ends of a connection.
//!
//! Each end knows for certain only what happens to it: the sender knows its application, its buffer and the
//! path, the receiver its application and its window. [`Report`] is what `taut why --json` printed at the
//! other end, [`Report::find`] joins a connection with it, and [`Joint::of`] takes from each verdict what
//! that end knows. Text from the other end is made safe for a terminal when it is read.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use taut_sys::sock_diag::Internals;

use crate::sanitize;
use crate::verdict::{Confidence, Factor, Verdict, confidence};

/// The connections of the other machine, as `taut why --json` reported them there.
#[derive(Debug, Default)]
pub struct Report {
    connections: Vec<Remote>,
    /// By this end's address and port there, then that of its peer.
    by_address: BTreeMap<(SocketAddr, SocketAddr), usize>,
    /// By where the sequence numbers begin that this end receives.
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
}

#[derive(Clone, Debug, Deserialize)]
struct RemoteEvidence {
    text: String,
}

/// The factors that one end finds.
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

/// An end of a connection, seen from this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// A line is no connection.
    #[error("line {line} is not of `taut why --json`: {problem}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What the parser says.
        problem: String,
    },
    /// There are more connections than [`CONNECTIONS_MAX`].
    #[error("it has more than {CONNECTIONS_MAX} connections; give `taut why` there a filter")]
    TooMany,
}

/// The maximum number of connections of a report.
pub const CONNECTIONS_MAX: usize = 100_000;

/// A claim of the sender's about the receiver that the receiver's own instruments deny counts this much.
const DENIED: f64 = 0.25;

/// The difference between two ends' bases: Linux counts the acknowledgement of a SYN as a byte at the end
/// that sent it first, and a FIN at both.
const BASES_DIFFER: u32 = 2;

// === impl Report ===

impl Report {
    /// Parses the lines of `taut why --json`. Lines that are no connections (they have no `local`) are left out.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn parse(text: &str) -> Result<Self, ReportError> {
        /// Every line is of this kind.
        #[derive(Deserialize)]
        struct Any {
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
            if serde_json::from_str::<Any>(line)
                .map_err(problem)?
                .local
                .is_none()
            {
                continue;
            }
            let mut remote: Remote = serde_json::from_str(line).map_err(problem)?;
            remote.sanitize();
            if report.connections.len() >= CONNECTIONS_MAX {
                return Err(ReportError::TooMany);
            }
            let key = (plain(remote.local), plain(remote.remote));
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

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Returns the other end of a connection of this machine. Sequence numbers decide where both ends know
    /// them; addresses and ports do otherwise.
    pub fn find(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        sequence: Option<SequenceBase>,
    ) -> Option<&Remote> {
        let by_address = self.by_address.get(&(plain(remote), plain(local)));
        let by_address = by_address.and_then(|index| self.connections.get(*index));
        let Some(here) = sequence else {
            return by_address;
        };
        if let Some(found) = by_address
            && found.sequence.is_none_or(|there| here.is_of_peer(there))
        {
            return Some(found);
        }
        let near = (0..=2 * BASES_DIFFER)
            .map(|i| here.sent.wrapping_sub(BASES_DIFFER).wrapping_add(i))
            .filter_map(|received| self.by_received.get(&received));
        let near = near
            .flatten()
            .filter_map(|index| self.connections.get(*index));
        let mut same =
            near.filter(|other| other.sequence.is_some_and(|there| here.is_of_peer(there)));
        // If two match, neither is taken.
        same.next().filter(|_| same.next().is_none())
    }
}

/// Returns an IPv4 address that is written as IPv6 as IPv4: which one an end shows depends on its socket.
fn plain(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V6(ip) => ip.to_canonical(),
        ip => ip,
    };
    SocketAddr::new(ip, addr.port())
}

// === impl Remote ===

impl Remote {
    /// Returns the process there, for a person.
    pub fn process(&self) -> Option<String> {
        let process = self.process.as_ref()?;
        Some(format!("{}, pid {}", process.name, process.pid))
    }

    /// Returns whether this is the factor of the verdict there.
    pub fn names(&self, factor: Factor) -> bool {
        let verdict = self.verdict.as_ref();
        verdict.is_some_and(|verdict| verdict.view.factor == factor)
    }

    /// Returns the factor there, for a person.
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

    /// Returns whether its addresses are those that this machine sees.
    pub fn has_addresses(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        plain(self.local) == plain(remote) && plain(self.remote) == plain(local)
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
    /// Returns that of a connection of this machine.
    pub fn of(internals: &Internals) -> Self {
        Self {
            sent: internals.sent_base,
            received: internals.received_base,
        }
    }

    fn is_of_peer(self, peer: Self) -> bool {
        let near = |a: u32, b: u32| a.wrapping_sub(b).min(b.wrapping_sub(a)) <= BASES_DIFFER;
        near(self.sent, peer.received) && near(self.received, peer.sent)
    }
}

// === impl Joint ===

impl Joint {
    /// Returns the verdict of both ends. `sends`: this end is the sender. `None` if the other end has no
    /// verdict.
    pub fn of(here: &Verdict, sends: bool, there: &Remote) -> Option<Self> {
        let there = &there.verdict.as_ref()?.view;
        let here = View {
            factor: here.factor,
            confidence: here.confidence,
            weight: here.weight,
            shares: here.shares.iter().copied().collect(),
        };
        let (mut joint, is_receiver) = match sends {
            true => join(&here, there),
            false => join(there, &here),
        };
        joint.shown_by = match is_receiver != sends {
            true => End::Here,
            false => End::There,
        };
        Some(joint)
    }
}

/// Joins the views of sender and receiver. Returns also whether the receiver shows the factor.
fn join(sender: &View, receiver: &View) -> (Joint, bool) {
    let claimed: f64 = sender
        .shares()
        .filter(|(f, _)| is_of_receiver(*f))
        .map(|(_, w)| w)
        .sum();
    let claimed = claimed.min(1.0);
    let denies = receiver.factor == Factor::Peer && receiver.confidence >= Confidence::Likely;
    let mut found: Vec<(Factor, f64, bool)> = Vec::new();
    for (factor, weight) in sender.shares() {
        match factor {
            Factor::Peer | Factor::Unclear => {}
            _ if is_of_receiver(factor) && denies => found.push((factor, weight * DENIED, false)),
            // The receiver knows which of the two it is.
            _ if is_of_receiver(factor) && receiver.names_its_own() => {}
            _ => found.push((factor, weight, false)),
        }
    }
    let own = receiver.shares();
    let is_own = |factor| is_of_receiver(factor) || is_of_either(factor);
    let own = own.filter(|(factor, _)| is_own(*factor));
    let mut own: Vec<_> = own.collect();
    own.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (index, (factor, weight)) in own.into_iter().enumerate() {
        // What the sender's kernel counted as waiting for the receiver is exact. It is the time of what
        // limits the receiver most.
        let exact = if index == 0 { claimed } else { 0.0 };
        found.push((factor, weight.max(exact), true));
    }
    let agreed = |factor| sender.factor == factor && receiver.factor == factor;
    let weight_of = |factor: Factor| {
        let of = found.iter().filter(|(f, ..)| *f == factor);
        of.map(|(_, weight, _)| *weight).fold(0.0, f64::max)
    };
    // Of two with the same weight the sender's, and then the receiver's first.
    let heaviest = found
        .iter()
        .rev()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .copied();
    let Some((factor, weight, by_receiver)) = heaviest else {
        let unclear = Joint {
            factor: Factor::Unclear,
            confidence: Confidence::Unclear,
            weight: 0.0,
            shown_by: End::Here,
        };
        return (unclear, false);
    };
    let others = Factor::ALL.into_iter().filter(|other| *other != factor);
    let next = others.map(weight_of).fold(0.0, f64::max);
    let mut confidence = confidence(weight, next);
    if agreed(factor) {
        confidence = confidence.max(sender.confidence).max(receiver.confidence);
    }
    let joint = Joint {
        factor,
        confidence,
        weight,
        shown_by: End::Here,
    };
    (joint, by_receiver)
}

/// Whether only the receiver's instruments show the factor for certain.
fn is_of_receiver(factor: Factor) -> bool {
    matches!(factor, Factor::ReceiverApplication | Factor::ReceiveBuffer)
}

/// Whether the instruments of the end at which the factor is show it.
fn is_of_either(factor: Factor) -> bool {
    matches!(factor, Factor::Descheduled | Factor::CpuQuota)
}

// === impl View ===

impl View {
    /// Returns the factors with their shares, from 0 to 1.
    fn shares(&self) -> impl Iterator<Item = (Factor, f64)> {
        let only = self.shares.is_empty().then_some((self.factor, self.weight));
        let all = self
            .shares
            .iter()
            .map(|(factor, weight)| (*factor, *weight));
        let valid = |weight: f64| {
            if weight.is_nan() {
                0.0
            } else {
                weight.clamp(0.0, 1.0)
            }
        };
        all.chain(only)
            .map(move |(factor, weight)| (factor, valid(weight)))
    }

    fn names_its_own(&self) -> bool {
        let is_own = is_of_receiver(self.factor) || self.factor == Factor::CpuQuota;
        is_own && self.confidence >= Confidence::Likely
    }
}

#[cfg(test)]
mod tests;
