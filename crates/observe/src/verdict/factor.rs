//! The factors that can limit a connection, and how far a verdict is to be trusted.

use serde::Serialize;

/// A factor that can limit a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
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
    /// The receive buffer, and with it the window, is smaller than the path's bandwidth-delay product.
    ReceiveBuffer,
    /// The congestion window is still growing.
    SlowStart,
    /// Segments are lost, and not because a queue is full.
    Loss,
    /// The path is full, and a long queue stands in it.
    Queue,
    /// The sender paces itself at a configured rate.
    Pacing,
    /// A policer on the path drops what exceeds its rate.
    RateLimit,
    /// One of the two ends, or a machine on the path, is repeatedly descheduled.
    Descheduled,
    /// Full segments do not get through.
    PathMtu,
    /// Nothing is answered, and retransmission timers expire.
    Timeouts,
    /// The path carries all that it can: there is nothing to repair.
    Link,
    /// The other end limits, and has the instruments that show how.
    Peer,
    /// No factor is recognised.
    Unclear,
}

/// How far a verdict is to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confidence {
    /// The factor accounts for less than half of the time, or for little more than another one.
    Unclear,
    /// The factor accounts for at least half of the time.
    Likely,
    /// The factor accounts for most of the time, and no other comes near.
    Sure,
}

// === impl Confidence ===

impl Confidence {
    /// Returns the name that JSON has.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sure => "sure",
            Self::Likely => "likely",
            Self::Unclear => "unclear",
        }
    }
}

// === impl Factor ===

impl Factor {
    /// All factors, in the order of [`Factor::index`].
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

    /// Returns the position in [`Factor::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the letter that stands for the factor in a history.
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
            Self::PathMtu => "pmtu",
            Self::Timeouts => "timeout",
            other => other.name(),
        }
    }

    /// Returns the name that JSON has.
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
}
