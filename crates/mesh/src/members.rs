//! The members of a mesh: who exists, by which key it proves that, and where it is reached.

use std::collections::HashMap;
use std::sync::Arc;

mod signed;

use serde::Deserialize;

use crate::hello::{Target, TargetError};
use crate::identity::{PublicKey, PublicKeyError};
pub use crate::name::{MAX_NAME, MemberName, NameError};
pub use signed::{ListRefusal, MAX_MESH_KEYS, MAX_SIGNED, SignError, SignedError, Statement, sign};

/// The largest number of members.
pub const MAX_MEMBERS: usize = 4096;

/// The largest number of public keys of a member: the one in use and its successor or predecessor.
pub const MAX_KEYS: usize = 2;

/// The largest number of addresses of a member.
pub const MAX_ADDRESSES: usize = 8;

/// The highest price per GB.
pub const MAX_PRICE: f64 = 1e6;

/// The largest accepted size of a list of members, in bytes.
pub const MAX_FILE: u64 = 4 << 20;

/// A relay of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The name by which configurations and routes refer to it.
    pub name: MemberName,
    /// The keys that prove its identity: one, or two while a key is being replaced.
    pub keys: Vec<PublicKey>,
    /// The addresses of its mesh port, in the order in which they are tried. Empty if nobody dials it.
    pub addresses: Vec<Target>,
    /// The site that it is at, a label.
    pub site: Option<String>,
    /// The cloud that it is in, a label.
    pub cloud: Option<String>,
    /// The price of sending one GB from it.
    pub price: Option<Price>,
}

/// The price of sending one GB, in any currency: the planner only compares and adds prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price {
    /// In millionths, so that prices can be compared exactly.
    millionths: u64,
}

/// The members of a mesh, by name and by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    all: Vec<Arc<Member>>,
    by_name: HashMap<MemberName, usize>,
    by_key: HashMap<PublicKey, usize>,
    statement: Option<Statement>,
}

/// An error in a list of members.
#[derive(Debug, thiserror::Error)]
pub enum MembersError {
    /// The text is not TOML or has an unknown or missing field.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A member breaks a rule.
    #[error("member {name}: {fault}")]
    Member {
        /// The member's name.
        name: MemberName,
        /// The rule that it breaks.
        fault: MemberFault,
    },
    /// The list has too many members.
    #[error("{0} members; at most {MAX_MEMBERS} are allowed")]
    TooMany(usize),
}

/// A rule that a member breaks.
#[derive(Debug, thiserror::Error)]
pub enum MemberFault {
    /// Another member has the same name.
    #[error("another member has the same name")]
    SameName,
    /// Another member has the same key.
    #[error("member {0} has the same key; every relay needs its own")]
    SameKey(MemberName),
    /// The member has the same key twice.
    #[error("it has the same key twice")]
    RepeatedKey,
    /// The member has no key, or too many.
    #[error("it has {0} keys; one is needed, and two are allowed while one is being replaced")]
    Keys(usize),
    /// A key is malformed.
    #[error("keys: {0}")]
    Key(#[from] PublicKeyError),
    /// The member has too many addresses.
    #[error("it has {0} addresses; at most {MAX_ADDRESSES} are allowed")]
    Addresses(usize),
    /// An address is malformed.
    #[error("addresses: {0}")]
    Address(#[from] TargetError),
    /// The price is malformed.
    #[error("price: {0} is not a price; it must be a number from 0 to {MAX_PRICE}")]
    Price(f64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    serial: Option<u64>,
    expires: Option<String>,
    smaller_since: Option<u64>,
    #[serde(default)]
    member: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: MemberName,
    keys: Vec<String>,
    #[serde(default)]
    addresses: Vec<String>,
    site: Option<String>,
    cloud: Option<String>,
    price: Option<f64>,
}

// === impl Price ===

impl Price {
    /// Returns the price per GB, to a millionth. `None` if it is not a number from 0 to [`MAX_PRICE`].
    pub fn new(per_gb: f64) -> Option<Self> {
        (0.0..=MAX_PRICE).contains(&per_gb).then(|| Self {
            millionths: (per_gb * 1e6).round() as u64,
        })
    }

    /// Returns the price per GB.
    pub fn per_gb(self) -> f64 {
        self.millionths as f64 / 1e6
    }
}

// === impl Members ===

impl Members {
    /// Parses a list of members, in TOML: an array of tables `member`, each with `name`, `keys` and,
    /// optionally, `addresses`, `site`, `cloud` and `price`. The signature of a signed list is not checked, and
    /// its statement is left out; see [`Members::parse_signed`].
    ///
    /// # Errors
    /// [`MembersError`], at the first fault.
    pub fn parse(text: &str) -> Result<Self, MembersError> {
        File::parse(text)?.members()
    }

    /// Creates the list of these members.
    ///
    /// # Errors
    /// [`MembersError`], at the first fault.
    pub fn new(all: Vec<Member>) -> Result<Self, MembersError> {
        if all.len() > MAX_MEMBERS {
            return Err(MembersError::TooMany(all.len()));
        }
        let mut members = Self::default();
        for member in all {
            let name = member.name.clone();
            members
                .add(member)
                .map_err(|fault| MembersError::Member { name, fault })?;
        }
        Ok(members)
    }

    fn add(&mut self, member: Member) -> Result<(), MemberFault> {
        if !(1..=MAX_KEYS).contains(&member.keys.len()) {
            return Err(MemberFault::Keys(member.keys.len()));
        }
        if member.addresses.len() > MAX_ADDRESSES {
            return Err(MemberFault::Addresses(member.addresses.len()));
        }
        let place = self.all.len();
        if self.by_name.insert(member.name.clone(), place).is_some() {
            return Err(MemberFault::SameName);
        }
        for key in &member.keys {
            if let Some(other) = self.by_key.insert(*key, place) {
                return Err(match self.all.get(other) {
                    Some(other) => MemberFault::SameKey(other.name.clone()),
                    None => MemberFault::RepeatedKey,
                });
            }
        }
        self.all.push(Arc::new(member));
        Ok(())
    }

    /// Returns the member of this name.
    pub fn by_name(&self, name: &str) -> Option<&Arc<Member>> {
        self.by_name.get(name).map(|&place| &self.all[place])
    }

    /// Returns the member that this key belongs to.
    pub fn by_key(&self, key: &PublicKey) -> Option<&Arc<Member>> {
        self.by_key.get(key).map(|&place| &self.all[place])
    }

    /// Returns all members, in the order of the list.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Member>> {
        self.all.iter()
    }
}

// === impl File ===

impl File {
    fn parse(text: &str) -> Result<Self, MembersError> {
        Ok(toml::from_str(text)?)
    }

    /// Returns whether the file says something about the list, as a signed one does.
    fn has_statement(&self) -> bool {
        self.serial.is_some() || self.expires.is_some() || self.smaller_since.is_some()
    }

    fn members(self) -> Result<Members, MembersError> {
        let members = self.member.into_iter().map(|entry| {
            let name = entry.name.clone();
            entry
                .check()
                .map_err(|fault| MembersError::Member { name, fault })
        });
        Members::new(members.collect::<Result<_, _>>()?)
    }
}

// === impl Entry ===

impl Entry {
    fn check(self) -> Result<Member, MemberFault> {
        Ok(Member {
            name: self.name,
            keys: self
                .keys
                .iter()
                .map(|k| k.parse())
                .collect::<Result<_, _>>()?,
            addresses: self
                .addresses
                .iter()
                .map(|a| a.parse())
                .collect::<Result<_, _>>()?,
            site: self.site,
            cloud: self.cloud,
            price: self
                .price
                .map(|price| Price::new(price).ok_or(MemberFault::Price(price)))
                .transpose()?,
        })
    }
}

#[cfg(test)]
mod tests;
