//! Renders a verdict in English and in JSON.

mod evidence;
mod host_drop;
mod remedy;
mod units;

use std::borrow::Cow;

use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};

pub(crate) use self::units::rate;
use super::finding::Cause;
use super::{Confidence, Factor, Gain, HostDrop, Verdict};
pub(crate) use host_drop::enter;

/// A sentence that supports a verdict, with its figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    /// The sentence, without a full stop.
    pub text: String,
    /// The figures by name, after RFC 4898 where it defines the figure. In bytes, seconds,
    /// segments, or shares from 0 to 1.
    pub figures: Vec<(&'static str, f64)>,
    /// The packets that the sentence says were dropped on this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop: Option<HostDrop>,
}

// === impl Verdict ===

impl Verdict {
    /// Returns the sentences that support the verdict.
    pub fn evidence(&self) -> Vec<Evidence> {
        self.causes.iter().flat_map(Cause::evidence).collect()
    }

    /// Returns a remedy, or `None` if there is nothing to do.
    pub fn remedy(&self) -> Option<Cow<'static, str>> {
        match (self.factor, self.causes.first()) {
            (Factor::Unclear, _) => Some("watch it for longer, or at the other end".into()),
            (_, cause) => cause?.remedy(&self.settings, self.ends),
        }
    }

    /// Returns the remedy without the addresses in its commands: the same for all connections that it
    /// helps.
    pub(crate) fn remedy_of_kind(&self) -> Option<Cow<'static, str>> {
        let cause = self.causes.first()?;
        cause.remedy(&self.settings, None)
    }
}

/// Serialises the share of each factor by the factor's name.
struct Shares<'a>(&'a [(Factor, f64)]);

impl Serialize for Shares<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(factor, share)| (factor.name(), share)))
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Verdict", 7)?;
        object.serialize_field("factor", &self.factor)?;
        object.serialize_field("confidence", &self.confidence)?;
        object.serialize_field("weight", &self.weight)?;
        object.serialize_field("shares", &Shares(&self.shares))?;
        object.serialize_field("evidence", &self.evidence())?;
        object.serialize_field("remedy", &self.remedy())?;
        object.serialize_field("gain", &self.gain)?;
        object.end()
    }
}

// === impl Confidence ===

impl Confidence {
    /// Returns the suffix of a sentence that is not sure.
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
    /// Returns the predicate of a sentence whose subject is the connection.
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
            Self::Pacing => "is limited by its configured pacing rate",
            Self::RateLimit => {
                "is limited by a policer on the path, which drops what exceeds its rate"
            }
            Self::Descheduled => "waits for a machine that is repeatedly descheduled",
            Self::CpuQuota => "is limited by the CPU quota of its application",
            Self::HostDrops => "is limited by packets that the kernel drops on this host",
            Self::PathMtu => "is limited by the path MTU: full segments do not get through",
            Self::Timeouts => "is limited by time-outs: nothing is answered",
            Self::Link => "uses all that the path can carry: there is nothing to repair",
            Self::Peer => "is limited at its other end, where the cause can be seen",
            Self::Unclear => "has no limit that is recognised",
        }
    }

    /// Returns subject and verb of a sentence whose object is the connection.
    fn limits(self) -> &'static str {
        match self {
            Self::SenderApplication => "the sending application limits",
            Self::SendBuffer => "the send buffer limits",
            Self::ReceiveBuffer => "the peer's window limits",
            Self::Loss => "loss on the path limits",
            Self::Pacing => "its configured pacing rate limits",
            Self::Link => "the link limits",
            _ => "another factor limits",
        }
    }
}

// === impl Gain ===

impl Gain {
    /// Returns the prediction as a sentence about the connection, without a full stop.
    pub fn sentence(&self) -> String {
        let rate = rate(self.rate);
        match self.next {
            Some(next) => format!(
                "without that it would carry about {rate}, and then {} it",
                next.limits()
            ),
            None => {
                format!("without that it would carry at least {rate}; how much more is not known")
            }
        }
    }
}

// === impl Evidence ===

impl Evidence {
    fn new(text: String, figures: &[(&'static str, f64)]) -> Self {
        Self {
            text,
            figures: figures.to_vec(),
            drop: None,
        }
    }
}
