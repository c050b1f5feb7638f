//! Judges what limits a connection: names a factor, a confidence and the causes.
//!
//! The kernel accounts for what holds a sender back at each moment: its application, the peer's
//! window or the send buffer ([`Shares`](crate::window::Shares)). That split is exact to a tick of
//! the kernel's clock; only the time attributed to the network needs inference. Each rule (in
//! `sending` and `receiving`) returns a finding: a factor, its *weight* (the share of the window's
//! time that it accounts for) and figures. The heaviest factor is the verdict. `render` turns a
//! verdict into English and JSON; no rule writes text.

mod factor;
mod finding;
mod gain;
mod host_drops;
mod receiving;
mod render;
mod sending;

use std::cmp::Reverse;
use std::net::SocketAddr;
use std::time::Duration;

use taut_sys::sock_diag::State;

pub use self::factor::{Confidence, Factor};
use self::finding::Finding;
pub use self::finding::{Cause, SignalInterval, Sizing};
pub use self::gain::Gain;
pub use self::render::Evidence;
pub(crate) use self::render::{enter, rate};
pub use crate::cpu_quota::CpuQuota;
pub use crate::host_drops::{Direction, DropPlace, HostDrop};
use crate::tcp_settings::TcpSettings;
use crate::window::Window;

/// The verdict on a connection: the factor that limits it, and the causes.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The factor that accounts for most of the time.
    pub factor: Factor,
    /// The confidence in that factor.
    pub confidence: Confidence,
    /// The share of the time that the factor accounts for, from 0 to 1.
    pub weight: f64,
    /// All factors that the rules found, each with its share of the time, from 0 to 1; the largest
    /// first.
    pub shares: Vec<(Factor, f64)>,
    /// The causes that the rules found, with figures.
    pub causes: Vec<Cause>,
    /// What the connection would carry without the factor; `None` if there is nothing to gain, or
    /// if nothing can be said.
    pub gain: Option<Gain>,
    /// The settings of the connection's namespace, on which the remedy depends.
    pub settings: TcpSettings,
    /// Address and port of this end and of the peer, which commands of the remedy name.
    pub ends: Option<(SocketAddr, SocketAddr)>,
}

/// Returns how much a person has to do about a connection with this limit: the larger, the more.
pub(crate) fn trouble((factor, confidence): (Factor, Confidence)) -> u8 {
    factor
        .trouble()
        .saturating_sub((confidence == Confidence::Unclear).into())
}

/// Returns a key that sorts connections: those with the most trouble first, and of these those that
/// carried most.
pub(crate) fn rank(verdict: Option<&Verdict>, carried: u64) -> (Reverse<Option<u8>>, Reverse<u64>) {
    let limit = verdict.map(|found| (found.factor, found.confidence));
    (Reverse(limit.map(trouble)), Reverse(carried))
}

/// Known facts about the machine and the network namespace. A field is `None` if the value is
/// unknown; rules that need it are then less specific.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The settings of the connection's namespace.
    pub settings: TcpSettings,
    /// The share of CPU time that a hypervisor took from this machine.
    pub steal: Option<f64>,
    /// The share of the time for which this machine was descheduled, measured by a sleeping thread.
    pub descheduled: Option<f64>,
    /// The CPU quota that stopped the application of this end.
    pub cpu_quota: Option<CpuQuota>,
    /// The packets of the connection that the kernel of this machine dropped in the window, most
    /// segments first.
    pub host_drops: Vec<HostDrop>,
    /// The time since the observation began from which they were counted.
    pub host_drops_since: Option<Duration>,
}

/// A verdict names only factors with more weight than this.
const LEAST: f64 = 0.1;
/// The minimum weight of a `likely` verdict.
const LIKELY: f64 = 0.5;
/// The minimum weight of a `sure` verdict. No other factor may have more than half the verdict's
/// weight.
const SURE: f64 = 0.75;
/// A sender with nothing to send for this share of the time is limited by its application, for sure:
/// above [`SURE`], with a margin for rounding.
const LITTLE_TO_SEND: f64 = 0.8;
/// The machine counts as descheduled only above this share of the time.
const LEAST_DESCHEDULED: f64 = 0.25;
/// The maximum weight of a finding that may be `likely` but never `sure`.
pub(crate) const LIKELY_MOST: f64 = 0.74;
/// A window counts as being as wide as its scale allows from this share of that width on. The
/// kernel rounds windows down.
const NEAR_SCALE: f64 = 0.9;

/// Returns what limits the connection in this window.
pub fn verdict(window: &Window<'_>, context: &Context) -> Verdict {
    let findings = findings(window, context);
    let weights = weights(&findings);
    let (factor, confidence, weight) = heaviest(&findings, &weights);
    let mut shares: Vec<_> = Factor::ALL.iter().copied().zip(weights).collect();
    shares.retain(|(_, share)| *share > 0.0);
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let findings = findings.into_iter();
    let causes = findings.filter(|finding| finding.factor == factor);
    Verdict {
        factor,
        confidence,
        weight,
        gain: gain::gain(window, context, (factor, confidence), &shares),
        shares,
        causes: causes.map(|finding| finding.cause).collect(),
        settings: context.settings,
        ends: window.samples().last().map(|sample| {
            let connection = sample.connection;
            (connection.local, connection.remote)
        }),
    }
}

/// Returns the factor and the confidence of [`verdict`], without the causes.
pub fn limit(window: &Window<'_>, context: &Context) -> (Factor, Confidence) {
    if has_little_to_send(window, context) {
        return (Factor::SenderApplication, Confidence::Sure);
    }
    let findings = findings(window, context);
    let (factor, confidence, _) = heaviest(&findings, &weights(&findings));
    (factor, confidence)
}

/// Whether the sender had nothing to send for so much of the time that the rest cannot matter: the
/// other findings have no more weight than the rest of the time. This spares most connections the
/// rules, which read every sample.
fn has_little_to_send(window: &Window<'_>, context: &Context) -> bool {
    // They take weight from the application, or scale it.
    let is_alone = context.cpu_quota.is_none()
        && context.host_drops.is_empty()
        && context
            .descheduled
            .is_none_or(|share| share <= LEAST_DESCHEDULED);
    is_alone
        && !is_handshake(window)
        && sends(window) == Some(true)
        && window
            .shares()
            .is_some_and(|shares| shares.idle >= LITTLE_TO_SEND)
}

fn findings(window: &Window<'_>, context: &Context) -> Vec<Finding> {
    if is_handshake(window) {
        let mut findings = handshake(window).into_iter().collect();
        host_drops::attribute(&mut findings, window, context, true);
        return findings;
    }
    let sends = sends(window);
    let mut findings = match (sends, window.shares()) {
        (Some(true), Some(shares)) => sending::findings(window, shares, context),
        (Some(false), _) => receiving::findings(window, context),
        (Some(true), None) => Vec::new(),
        (None, _) => return vec![receiving::unread(window).unwrap_or_else(|| idle(window))],
    };
    host_drops::attribute(&mut findings, window, context, sends == Some(true));
    cpu_quota(&mut findings, context, sends == Some(true));
    descheduled(&mut findings, context, sends == Some(true));
    findings
}

/// Returns the weight of each factor, in the order of [`Factor::ALL`]: the sum over its findings.
fn weights(findings: &[Finding]) -> [f64; Factor::ALL.len()] {
    let mut weights = [0.0_f64; Factor::ALL.len()];
    for finding in findings {
        let weight = &mut weights[finding.factor.index()];
        *weight = (*weight + finding.weight).min(1.0);
    }
    weights
}

/// Returns the factor with the most weight, its confidence and its weight. On a tie, the first factor
/// wins.
fn heaviest(findings: &[Finding], weights: &[f64; Factor::ALL.len()]) -> (Factor, Confidence, f64) {
    let of = |factor: Factor| weights[factor.index()];
    let factors = findings.iter().map(|finding| finding.factor);
    let first = factors.min_by(|a, b| of(*b).total_cmp(&of(*a)));
    let Some(first) = first.filter(|first| of(*first) > LEAST) else {
        return (Factor::Unclear, Confidence::Unclear, 0.0);
    };
    let others = Factor::ALL
        .iter()
        .copied()
        .filter(|factor| *factor != first);
    let next = others.map(of).fold(0.0, f64::max);
    (first, confidence(of(first), next), of(first))
}

/// Returns the confidence in a factor of this weight, if the next one has weight `next`.
pub(crate) fn confidence(weight: f64, next: f64) -> Confidence {
    match weight {
        weight if weight >= SURE && next <= weight / 2.0 => Confidence::Sure,
        weight if weight >= LIKELY => Confidence::Likely,
        _ => Confidence::Unclear,
    }
}

/// Attributes to a CPU quota the time for which it stopped this end's application, as far as the rules
/// attribute that time to the application: a quota that stops an application whose data is already
/// in the send buffer limits nothing.
fn cpu_quota(findings: &mut Vec<Finding>, context: &Context, sends: bool) {
    let Some(quota) = &context.cpu_quota else {
        return;
    };
    let application = match sends {
        true => Factor::SenderApplication,
        false => Factor::ReceiverApplication,
    };
    let all = weights(findings)[application.index()];
    let weight = all.min(quota.stopped);
    if weight <= 0.0 {
        return;
    }
    let own = findings.iter_mut();
    for finding in own.filter(|finding| finding.factor == application) {
        finding.weight *= (all - weight) / all;
    }
    let cause = Cause::QuotaUsedUp {
        stopped: quota.stopped,
        cpus: quota.cpus,
        file: quota.file.clone(),
    };
    findings.push(Finding::new(Factor::CpuQuota, weight, cause));
}

/// Adds a finding for a descheduled machine and scales the other findings down. While this machine
/// is descheduled, its applications seem to have nothing to send and its peers seem not to answer,
/// so the other findings describe the rest of the time only.
fn descheduled(findings: &mut Vec<Finding>, context: &Context, sends: bool) {
    let Some(share) = context
        .descheduled
        .filter(|share| *share > LEAST_DESCHEDULED)
    else {
        return;
    };
    // The share is not certain: whatever else delays timers also makes sleeping threads wake late.
    let mut weight = share.min(LIKELY_MOST);
    // Gaps also lengthen round trips, so a rule may already have found this factor.
    findings.retain(|finding| {
        let is_other = finding.factor != Factor::Descheduled;
        if !is_other {
            weight = weight.max(finding.weight.min(LIKELY_MOST));
        }
        is_other
    });
    // In part of the remaining time the connection waits for packets that the gap delayed. The
    // other findings cannot tell that part from the rest, hence the square.
    for finding in findings.iter_mut() {
        finding.weight *= (1.0 - share) * (1.0 - share);
    }
    let cause = Cause::MachineDescheduled { share, sends };
    findings.push(Finding::new(Factor::Descheduled, weight, cause));
}

/// Whether the connection is still in its handshake, for which the kernel keeps no time accounts.
fn is_handshake(window: &Window<'_>) -> bool {
    let last = window.samples().last();
    last.is_some_and(|last| matches!(last.connection.state, State::SynSent | State::SynRecv))
}

fn handshake(window: &Window<'_>) -> Option<Finding> {
    let retransmits = f64::from(window.last().retransmits);
    let cause = Cause::HandshakeUnanswered { retransmits };
    (retransmits > 0.0).then(|| Finding::new(Factor::Timeouts, 1.0, cause))
}

/// Returns whether this end sends at least as much as it receives. `None` if it transfers no data
/// and has none queued.
pub(crate) fn sends(window: &Window<'_>) -> Option<bool> {
    let sent = window.more(|info| info.bytes_acked);
    let received = window.more(|info| info.bytes_received);
    let has_unsent =
        window.last().unacked > 0 || window.last().notsent_bytes.is_some_and(|bytes| bytes > 0);
    // A pending retransmission outweighs the data that was received earlier.
    let retransmits = window.last().retransmits > 0;
    match (sent, received) {
        (0, 0) => has_unsent.then_some(true),
        (sent, received) => Some(retransmits || sent >= received),
    }
}

/// Returns the widest window, in bytes, that a connection with this window scale can offer for its
/// life (RFC 7323 2.3); `None` means that the ends do not scale windows.
fn widest_window(scale: Option<u8>) -> f64 {
    f64::from(u16::MAX) * f64::from(scale.unwrap_or(0)).exp2()
}

fn idle(window: &Window<'_>) -> Finding {
    let elapsed = window.elapsed().as_secs_f64();
    Finding::new(Factor::Idle, 1.0, Cause::NoData { elapsed })
}

#[cfg(test)]
mod tests;
