//! Access rules: which destinations a client may name, and which sources may connect.
//!
//! This module opens no sockets and looks up no names. [`Destinations`] checks a destination twice:
//! [`Destinations::check_name`] before its name is looked up, and [`Destinations::check_addr`] for
//! each address before the relay connects to it, because a name's owner can change the answer in
//! between (DNS rebinding). [`Sources`] checks the client's address.
//!
//! | bound | value | when it is reached |
//! |---|---|---|
//! | rules in a list | [`MAX_RULES`] | the list is refused |
//! | a name | 253 bytes, labels of 63 (RFC 1035 2.3.4) | [`DestinationVerdict::NotAName`] |
//!
//! Lists are searched linearly, once a session: 4096 rules take some tens of microseconds.

pub mod arrival_rate;
mod blocks;
mod destinations;
mod forms;
pub mod identity;
mod name;
mod nat64;
mod own;
mod rule;
pub mod session_quota;
pub(crate) mod source;
mod sources;
mod verdict;

pub use destinations::Destinations;
pub(crate) use name::host_name;
pub use nat64::{Nat64Error, Nat64Prefix};
pub use own::{MeshAddresses, OwnAddresses};
pub use rule::{Pattern, Ports, Rule, RuleError};
pub use sources::{SourcePrefix, SourceVerdict, Sources};
pub use verdict::DestinationVerdict;

/// Returns whether the relay may use `addr` as the source of a connection: it belongs to one host,
/// and a network can route answers to it.
pub(crate) fn may_be_borrowed(addr: std::net::IpAddr) -> bool {
    blocks::denied(addr).next().is_none()
}

/// The maximum number of rules in a list.
pub const MAX_RULES: usize = 4096;

/// A list has more than [`MAX_RULES`] rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a list of {0} rules is too long, {MAX_RULES} is the most: write wider prefixes")]
pub struct TooManyRules(pub usize);

pub(crate) fn bounded<T>(rules: Vec<T>) -> Result<Vec<T>, TooManyRules> {
    if rules.len() > MAX_RULES {
        return Err(TooManyRules(rules.len()));
    }
    Ok(rules)
}
