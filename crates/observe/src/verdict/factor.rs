//! The factors that can limit a connection, and the confidence of a verdict.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// A factor that can limit a connection.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
#[serde(rename_all = "kebab-case")]
pub enum Factor {
    /// No data was sent or received.
    Idle,
    /// The sending application has nothing more to send, or waits for answers.
    SenderApplication,
    /// The send buffer is full, and smaller than the path's bandwidth-delay product.
    SendBuffer,
    /// The receiving application reads slowly.
    ReceiverApplication,
    /// The receive buffer, and with it the window, is smaller than the path's bandwidth-delay
    /// product.
    ReceiveBuffer,
    /// The congestion window is still growing.
    SlowStart,
    /// Segments are lost for another reason than a full queue.
    Loss,
    /// The path is full and has a long standing queue.
    Queue,
    /// The sender paces itself at a configured rate.
    Pacing,
    /// A policer on the path drops traffic above its rate.
    RateLimit,
    /// One of the two ends, or a machine on the path, is repeatedly descheduled.
    Descheduled,
    /// A CPU quota stops the application at this end.
    CpuQuota,
    /// The kernel of this machine drops packets of the connection.
    HostDrops,
    /// Full segments do not get through.
    PathMtu,
    /// The peer acknowledges nothing, and retransmission timers expire.
    Timeouts,
    /// The connection uses all of the path's capacity: there is nothing to repair.
    Link,
    /// The other end limits the connection; only the instruments there show how.
    Peer,
    /// No rule detected a factor, or another version of Taut reported one that is unknown here.
    #[serde(other)]
    Unclear,
}

/// The confidence of a verdict.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The factor accounts for less than half of the time.
    Unclear,
    /// The factor accounts for at least half of the time.
    Likely,
    /// The factor accounts for at least three quarters of the time, and every other factor has at
    /// most half its weight.
    Sure,
}

// === impl Confidence ===

impl Confidence {
    /// Returns the name used in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

// === impl Factor ===

impl Factor {
    /// All factors, in the order of [`Factor::index`].
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the position in [`Factor::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns how much a person has to do about a connection that the factor limits: 3 if it does not
    /// work, 2 if something on this host or on the path makes it slow, 1 if that depends on an
    /// application or the other end, and 0 if nothing is wrong.
    pub fn trouble(self) -> u8 {
        match self {
            Self::HostDrops | Self::PathMtu | Self::Timeouts => 3,
            Self::SendBuffer
            | Self::ReceiveBuffer
            | Self::Loss
            | Self::Queue
            | Self::RateLimit
            | Self::Descheduled
            | Self::CpuQuota => 2,
            Self::SenderApplication
            | Self::ReceiverApplication
            | Self::SlowStart
            | Self::Pacing
            | Self::Peer
            | Self::Unclear => 1,
            Self::Idle | Self::Link => 0,
        }
    }

    /// Returns the letter that represents the factor in a history.
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
            Self::CpuQuota => 'c',
            Self::HostDrops => 'h',
            Self::PathMtu => 'm',
            Self::Timeouts => 't',
            Self::Link => '=',
            Self::Peer => '>',
            Self::Unclear => '?',
        }
    }

    /// Returns a name of at most eight letters, for narrow columns.
    pub fn short(self) -> &'static str {
        match self {
            Self::SenderApplication => "app-snd",
            Self::SendBuffer => "sndbuf",
            Self::ReceiverApplication => "app-rcv",
            Self::ReceiveBuffer => "rcvbuf",
            Self::SlowStart => "slow-st",
            Self::RateLimit => "limiter",
            Self::Descheduled => "no-cpu",
            Self::CpuQuota => "quota",
            Self::HostDrops => "drops",
            Self::PathMtu => "pmtu",
            Self::Timeouts => "timeout",
            other => other.name(),
        }
    }

    /// Returns the name used in JSON.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
