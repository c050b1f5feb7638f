//! What is broken at a node, and since when: changes of state for the log.
//!
//! [`Tracker`] is pure: it gets totals of counters and the time, and returns the changes that are
//! worth a line of the log. [`message`] words them.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | conditions | [`MAX_CONDITIONS`] | further ones are not tracked |
//! | warnings of one condition | one a minute, of refused clients one in ten minutes, of an expiry one a day | the change is not logged; its count is added to the next warning |
//! | lines of all conditions | [`BURST`] at once, one in [`REFILL`] | a warning comes later; a recovery is not logged |

use std::sync::Arc;
use std::time::Duration;

use strum::IntoStaticStr;

pub(crate) mod message;
mod tracker;

use crate::counters::forward::MESH;

pub(crate) use tracker::{Broken, Change, Observation, Tracker};

/// The maximum number of tracked conditions.
pub(crate) const MAX_CONDITIONS: usize = 4096;

/// The number of lines that may be logged at once.
pub(crate) const BURST: u32 = 20;

/// The time after which one more line may be logged.
pub(crate) const REFILL: Duration = Duration::from_secs(3);

/// The time without an occurrence after which a condition has ended that no success can end.
const QUIET: Duration = Duration::from_secs(30);

/// Something that can be broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Condition {
    /// The one destination of a forward cannot be reached.
    Destination { forward: Arc<str>, to: Arc<str> },
    /// An address of a destination cannot be reached; sessions go to others, if there are any.
    Address { addr: String },
    /// Most of the destinations that clients or other relays ask for cannot be reached.
    Destinations { forward: Arc<str> },
    /// No connection to a peer can be had.
    Peer { peer: String },
    /// The look-up of a name fails.
    LookUp { name: String },
    /// Names are not looked up because too many are, in all, or for this member; `None`: for the relay itself.
    LookUpLimit { member: Option<String> },
    /// Clients are reset because `max_sessions` are open.
    MaxSessions,
    /// Clients are reset because their source has `max_sessions_per_source` open.
    SourceLimit,
    /// Clients are reset because their source opens more than `max_connects_per_source` a second.
    SourceRate,
    /// Connections to the mesh port are reset because their source opens more of them than it proves keys.
    UnprovenRate,
    /// Sessions are reset because this member has `max_sessions_per_member` open.
    MemberLimit { member: String },
    /// No more connections of other relays can wait for a session, and this member has the most.
    MaxReady { member: String },
    /// Connections cannot be accepted.
    Accept,
    /// Clients of a forward wait for a place, because all of `max_sessions` are taken.
    Queue { forward: Arc<str> },
    /// A forward refuses clients that its configuration does not admit.
    Refused { forward: Arc<str> },
    /// Connections at the mesh port do not complete the handshake.
    Handshakes,
    /// No server of etcd can be used.
    Etcd,
    /// The list of members in etcd is refused.
    MembersList,
    /// Another process has announced itself in etcd by the name of this relay.
    DuplicateName,
    /// The list of members or a certificate expires soon, or has expired.
    Expiry { what: &'static str },
}

/// How a condition ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// When most attempts succeed.
    Success,
    /// When it has not occurred for this long.
    Quiet(Duration),
}

// === impl Condition ===

impl Condition {
    /// Returns the label in metrics and in JSON.
    pub(crate) fn label(&self) -> &'static str {
        self.into()
    }

    /// Returns the name of the forward, peer, member or destination, or the address, that is affected; empty for the
    /// node.
    pub(crate) fn subject(&self) -> &str {
        match self {
            Self::Destination { forward, .. }
            | Self::Destinations { forward }
            | Self::Queue { forward }
            | Self::Refused { forward } => forward,
            Self::Address { addr } => addr,
            Self::Peer { peer } => peer,
            Self::MemberLimit { member } | Self::MaxReady { member } => member,
            Self::LookUp { name } => name,
            Self::LookUpLimit { member } => member.as_deref().unwrap_or_default(),
            Self::Expiry { what } => what,
            Self::MaxSessions
            | Self::SourceLimit
            | Self::SourceRate
            | Self::UnprovenRate
            | Self::Accept
            | Self::Handshakes
            | Self::Etcd
            | Self::MembersList
            | Self::DuplicateName => "",
        }
    }

    /// Returns the forward or the mesh port in words.
    fn place(&self) -> String {
        match self.subject() {
            MESH => "mesh port".to_owned(),
            name => format!("forward {name}"),
        }
    }

    fn recovery(&self) -> Recovery {
        match self {
            Self::Destination { .. }
            | Self::Address { .. }
            | Self::Destinations { .. }
            | Self::Peer { .. }
            | Self::LookUp { .. }
            | Self::Etcd
            | Self::MembersList
            | Self::DuplicateName => Recovery::Success,
            Self::LookUpLimit { .. }
            | Self::MaxSessions
            | Self::SourceLimit
            | Self::SourceRate
            | Self::UnprovenRate
            | Self::MemberLimit { .. }
            | Self::MaxReady { .. }
            | Self::Accept
            | Self::Queue { .. }
            | Self::Refused { .. }
            | Self::Handshakes
            | Self::Expiry { .. } => Recovery::Quiet(QUIET),
        }
    }

    /// Returns the number of failures in one round below which the condition does not begin.
    fn threshold(&self) -> u64 {
        match self {
            // One wrong address of one client is no outage.
            Self::Destinations { .. } => 10,
            _ => 1,
        }
    }

    /// Returns the time between two warnings.
    fn pause(&self) -> Duration {
        match self {
            // The Internet never stops trying.
            Self::Refused { .. }
            | Self::Handshakes
            | Self::SourceLimit
            | Self::SourceRate
            | Self::UnprovenRate => Duration::from_secs(600),
            Self::Expiry { .. } => Duration::from_secs(86_400),
            _ => Duration::from_secs(60),
        }
    }
}
