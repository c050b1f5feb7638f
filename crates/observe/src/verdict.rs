//! What limits a connection: a factor, how sure that is, and why.
//!
//! Of who holds a sender back at each moment the kernel keeps account: its application, the peer's window or
//! the send buffer ([`Shares`](crate::window::Shares)). So the first cut is exact to a tick of the kernel's clock, and only what is left to the network has to be
//! inferred. Each rule (in `sending` and `receiving`) finds a factor and its *weight*: the share of the window's time
//! that it accounts for. The heaviest is the verdict.

mod receiving;
mod sending;
mod units;

use serde::Serialize;
use taut_sys::sock_diag::State;

use crate::window::Window;

/// What may limit a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Factor {
    /// No data went either way.
    Idle,
    /// The sending application has nothing more to send, or waits for answers.
    SenderApplication,
    /// The send buffer is full, and less than the path takes.
    SendBuffer,
    /// The receiving application reads slowly.
    ReceiverApplication,
    /// The receive buffer, and with it the window, is less than the path takes.
    ReceiveBuffer,
    /// The congestion window is still growing.
    SlowStart,
    /// Segments are lost, and not for want of room in a queue that is full.
    Loss,
    /// The path is full, and a long queue stands in it.
    Queue,
    /// The sender paces itself, as it was told.
    Pacing,
    /// Something on the way drops what is more than a rate.
    RateLimit,
    /// An end, or a machine on the way, is kept from its CPU again and again.
    Descheduled,
    /// Full segments do not get through.
    PathMtu,
    /// Nothing comes back, and time-outs pass.
    Timeouts,
    /// The path carries what it can: nothing is to be repaired.
    Link,
    /// It is decided at the other end, which sees more.
    Peer,
    /// None of these is found.
    Unclear,
}

/// How far a verdict is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// It accounts for less than half of the time, or for little more than another factor.
    Unclear,
    /// For half of it at least.
    Likely,
    /// For most of it, and nothing else comes near.
    Sure,
}

/// A figure that a verdict rests on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// In words, with the figures.
    pub text: String,
    /// The figures: names of RFC 4898 where it has one, values in bytes, seconds, segments or shares.
    pub figures: Vec<(&'static str, f64)>,
}

/// A verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What limits.
    pub factor: Factor,
    /// How sure that is.
    pub confidence: Confidence,
    /// The share of the time that it accounts for.
    pub weight: f64,
    /// Why.
    pub evidence: Vec<Evidence>,
    /// What would help; nothing where there is nothing to do.
    pub remedy: Option<String>,
}

/// What is known beside the connection itself. What is not known is `None`, and some rules say less.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    /// The most that the kernel gives a send buffer (`net.ipv4.tcp_wmem`, the third figure).
    pub wmem_max: Option<u64>,
    /// The most that it gives a receive buffer (`net.ipv4.tcp_rmem`, the third figure).
    pub rmem_max: Option<u64>,
    /// The share of its CPUs' time that a hypervisor took from this machine.
    pub steal: Option<f64>,
    /// The share of the time for which this machine was kept from its CPUs, as one who sleeps sees it.
    pub away: Option<f64>,
}

/// Whether evidence and remedy are put into words, which takes most of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Said,
    None,
}

/// A factor that a rule found.
#[derive(Debug)]
struct Finding {
    words: Words,
    factor: Factor,
    weight: f64,
    evidence: Vec<Evidence>,
    remedy: Option<String>,
}

/// The least weight of a factor that is named at all.
const LEAST: f64 = 0.1;
/// The least weight at which a factor is `likely`.
const LIKELY: f64 = 0.5;
/// The least weight at which it is `sure`, if no other factor has half as much.
const SURE: f64 = 0.75;
/// A machine that is away for less than this share of the time is not limited by that.
const AWAY: f64 = 0.25;
/// The most of what is `likely`, and never `sure`.
const LIKELY_MOST: f64 = 0.74;

/// What limits the connection in this window.
pub fn verdict(window: &Window<'_>, context: &Context) -> Verdict {
    judge(window, context, Words::Said)
}

/// The same in brief, and nothing of it in words.
pub fn limit(window: &Window<'_>, context: &Context) -> (Factor, Confidence) {
    let verdict = judge(window, context, Words::None);
    (verdict.factor, verdict.confidence)
}

fn judge(window: &Window<'_>, context: &Context, words: Words) -> Verdict {
    if let Some(handshake) = handshake(window, words) {
        return handshake;
    }
    let sends = sends(window);
    let mut findings = match (sends, window.shares()) {
        (Some(true), Some(shares)) => sending::findings(window, shares, context, words),
        (Some(false), _) => receiving::findings(window, context, words),
        (Some(true), None) => Vec::new(),
        (None, _) => {
            return receiving::unread(window, words).unwrap_or_else(|| idle(window, words));
        }
    };
    away(&mut findings, context, sends == Some(true), words);
    let mut findings = merged(findings);
    findings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let next = findings.get(1).map_or(0.0, |finding| finding.weight);
    let first = findings.into_iter().next();
    let Some(first) = first.filter(|first| first.weight > LEAST) else {
        return unclear(words);
    };
    let confidence = match first.weight {
        weight if weight >= SURE && next <= weight / 2.0 => Confidence::Sure,
        weight if weight >= LIKELY => Confidence::Likely,
        _ => Confidence::Unclear,
    };
    first.told(confidence)
}

/// What two rules find is one finding.
fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::with_capacity(findings.len());
    for finding in findings {
        match all.iter_mut().find(|other| other.factor == finding.factor) {
            Some(other) => {
                other.weight = (other.weight + finding.weight).min(1.0);
                other.evidence.extend(finding.evidence);
            }
            None => all.push(finding),
        }
    }
    all
}

/// While this machine is kept from its CPUs its applications seem to have nothing to send, and its peers not to
/// answer: what is found is of the rest of the time.
fn away(findings: &mut Vec<Finding>, context: &Context, sends: bool, words: Words) {
    let Some(away) = context.away.filter(|away| *away > AWAY) else {
        return;
    };
    // A quota of CPU time makes who sleeps late, too.
    let mut weight = away.min(LIKELY_MOST);
    // Round trips are longer for it, too.
    findings.retain(|finding| {
        let is_other = finding.factor != Factor::Descheduled;
        if !is_other {
            weight = weight.max(finding.weight.min(LIKELY_MOST));
        }
        is_other
    });
    // Of the rest of the time a part goes by in waiting for what came late, which nobody can tell from what they find.
    for finding in findings.iter_mut() {
        finding.weight *= (1.0 - away) * (1.0 - away);
    }
    let finding = Finding::new(words, Factor::Descheduled, weight)
        .because(
            || {
                let share = units::percent(away);
                format!("for {share} of the time this machine did not run: who slept woke late, with no other in the way")
            },
            &[("away", away)],
        );
    findings.push(finding.helps(match sends {
        true => "a larger share of CPU for this machine; on it: taut guest",
        false => "a larger share of CPU for this machine; on its host: taut snoop",
    }));
}

/// A connection that is not open yet: a SYN has no time-account.
fn handshake(window: &Window<'_>, words: Words) -> Option<Verdict> {
    let last = window.samples().last()?;
    if !matches!(last.connection.state, State::SynSent | State::SynRecv) {
        return None;
    }
    let again = f64::from(window.last().retransmits);
    if again == 0.0 {
        return Some(unclear(words));
    }
    let finding = Finding::new(words, Factor::Timeouts, 1.0)
        .because(
            || format!("the handshake was begun {again} times more, and nothing came back"),
            &[("CurTimeoutCount", again)],
        )
        .helps("see whether the peer is there, and what drops its packets (firewall, route)");
    Some(finding.told(Confidence::Sure))
}

/// Whether this end is the one that sends most; `None`: neither does, nor tries to.
fn sends(window: &Window<'_>) -> Option<bool> {
    let out = window.more(|info| info.bytes_acked);
    let came = window.more(|info| info.bytes_received);
    // What was sent and not acknowledged is a try.
    let tries =
        window.last().unacked > 0 || window.last().notsent_bytes.is_some_and(|bytes| bytes > 0);
    // And what is sent again and again is what matters, whatever came before.
    let again = window.last().retransmits > 0;
    match (out, came) {
        (0, 0) => tries.then_some(true),
        (out, came) => Some(again || out >= came),
    }
}

fn idle(window: &Window<'_>, words: Words) -> Verdict {
    let elapsed = window.elapsed().as_secs_f64();
    Finding::new(words, Factor::Idle, 1.0)
        .because(
            || format!("no data went either way for {elapsed:.1} s, and none is waiting"),
            &[("elapsed", elapsed)],
        )
        .told(Confidence::Sure)
}

fn unclear(words: Words) -> Verdict {
    Finding::new(words, Factor::Unclear, 0.0)
        .helps("watch it for longer, or at the other end")
        .told(Confidence::Unclear)
}

// === impl Confidence ===

impl Confidence {
    /// Its name, as it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sure => "sure",
            Self::Likely => "likely",
            Self::Unclear => "unclear",
        }
    }

    /// What follows a sentence that is not sure.
    pub fn doubt(self) -> &'static str {
        match self {
            Self::Sure => "",
            Self::Likely => " (likely)",
            Self::Unclear => " (not clear)",
        }
    }
}

// === impl Factor ===

impl Factor {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Idle,
        Self::SenderApplication,
        Self::SendBuffer,
        Self::ReceiverApplication,
        Self::ReceiveBuffer,
        Self::SlowStart,
        Self::Loss,
        Self::Queue,
        Self::Pacing,
        Self::RateLimit,
        Self::Descheduled,
        Self::PathMtu,
        Self::Timeouts,
        Self::Link,
        Self::Peer,
        Self::Unclear,
    ];

    /// Its place in [`Factor::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// A letter, for a history.
    pub fn letter(self) -> char {
        match self {
            Self::Idle => '.',
            Self::SenderApplication => 'a',
            Self::SendBuffer => 's',
            Self::ReceiverApplication => 'r',
            Self::ReceiveBuffer => 'w',
            Self::SlowStart => 'g',
            Self::Loss => 'l',
            Self::Queue => 'q',
            Self::Pacing => 'p',
            Self::RateLimit => 'x',
            Self::Descheduled => 'd',
            Self::PathMtu => 'm',
            Self::Timeouts => 't',
            Self::Link => '=',
            Self::Peer => '>',
            Self::Unclear => '?',
        }
    }

    /// Its name where there is little room.
    pub fn short(self) -> &'static str {
        match self {
            Self::SenderApplication => "app-snd",
            Self::SendBuffer => "sndbuf",
            Self::ReceiverApplication => "app-rcv",
            Self::ReceiveBuffer => "rcvbuf",
            Self::SlowStart => "slow-st",
            Self::RateLimit => "limiter",
            Self::Descheduled => "no-cpu",
            Self::PathMtu => "pmtu",
            Self::Timeouts => "timeout",
            other => other.name(),
        }
    }

    /// Its name, as it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::SenderApplication => "sender-application",
            Self::SendBuffer => "send-buffer",
            Self::ReceiverApplication => "receiver-application",
            Self::ReceiveBuffer => "receive-buffer",
            Self::SlowStart => "slow-start",
            Self::Loss => "loss",
            Self::Queue => "queue",
            Self::Pacing => "pacing",
            Self::RateLimit => "rate-limit",
            Self::Descheduled => "descheduled",
            Self::PathMtu => "path-mtu",
            Self::Timeouts => "timeouts",
            Self::Link => "link",
            Self::Peer => "peer",
            Self::Unclear => "unclear",
        }
    }

    /// In a sentence that begins with the connection.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Idle => "is idle",
            Self::SenderApplication => "is limited by the sending application",
            Self::SendBuffer => "is limited by the send buffer",
            Self::ReceiverApplication => {
                "is limited by the receiving application, which reads slowly"
            }
            Self::ReceiveBuffer => "is limited by the receive buffer",
            Self::SlowStart => "is limited by slow start: its congestion window is still growing",
            Self::Loss => "is limited by loss on the path",
            Self::Queue => "fills the path, and a long queue stands in it",
            Self::Pacing => "is limited by the pacing rate that was set for it",
            Self::RateLimit => "is limited by a rate limiter on the way, which drops what is more",
            Self::Descheduled => "waits for a machine that is kept from its CPU again and again",
            Self::PathMtu => "is limited by the path MTU: full segments do not get through",
            Self::Timeouts => "is limited by time-outs: nothing comes back",
            Self::Link => "carries what the path can: nothing is to be repaired",
            Self::Peer => "is limited at its other end, which has the answer",
            Self::Unclear => "is limited by nothing that is recognised",
        }
    }
}

impl Finding {
    fn new(words: Words, factor: Factor, weight: f64) -> Self {
        Self {
            words,
            factor,
            weight: weight.clamp(0.0, 1.0),
            evidence: Vec::new(),
            remedy: None,
        }
    }

    fn because(mut self, text: impl FnOnce() -> String, figures: &[(&'static str, f64)]) -> Self {
        if self.words == Words::Said {
            self.evidence.push(Evidence {
                text: text(),
                figures: figures.to_vec(),
            });
        }
        self
    }

    fn told(self, confidence: Confidence) -> Verdict {
        Verdict {
            factor: self.factor,
            confidence,
            weight: self.weight,
            evidence: self.evidence,
            remedy: self.remedy,
        }
    }

    fn helps(self, remedy: &str) -> Self {
        self.helps_with(|| remedy.to_owned())
    }

    fn helps_with(mut self, remedy: impl FnOnce() -> String) -> Self {
        if self.words == Words::Said {
            self.remedy = Some(remedy());
        }
        self
    }
}

#[cfg(test)]
mod tests;
