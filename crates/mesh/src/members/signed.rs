//! Lists of members that the key of the mesh has signed.
//!
//! A signed list is text. Its first line has the signature, and the bytes after it are what is signed: a
//! statement about the list, and the list as the operator wrote it.
//!
//! ```text
//! #taut-members-1 <signature: Ed25519 (RFC 8032), 88 base64 characters>
//! serial = 1764039000
//! expires = "2026-02-23T00:00:00Z"
//!
//! [[member]]
//! name = "fra1"
//! ...
//! ```
//!
//! The first line is a comment in TOML, so a reader that ignores signatures can parse a signed list.
//! The whole list is signed, not its members one by one: otherwise the owner of the storage could bring back
//! a member that was removed, with its old and valid signature.

use std::time::SystemTime;

use base64ct::{Base64, Encoding};

use super::{File, Members, MembersError};
use crate::identity::{PrivateKey, PublicKey, SIGNATURE_LEN};

/// The start of the first line.
const MARK: &str = "#taut-members-1 ";

/// The context of a list's signature, so that a signature of another kind of message is not accepted for a list.
const CONTEXT: &str = "taut members 1";

/// The largest accepted size of a signed list, in bytes. etcd takes 1.5 MiB in a request by default.
pub const MAX_SIGNED: usize = 1 << 20;

/// The largest number of keys of a mesh: the one in use and its successor or predecessor.
pub const MAX_MESH_KEYS: usize = 2;

/// The signer's statement about a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The number of the list. A list with a lower number never takes the place of one with a higher number.
    pub serial: u64,
    /// The time after which the list should have been signed again. A relay goes on with an expired list,
    /// since it may be unable to obtain another, and reports it.
    pub expires: Option<SystemTime>,
    /// The list with this serial, or one after it, was meant to have less than half of the members of the
    /// lists before. `None`: no list was.
    pub smaller_since: Option<u64>,
}

/// The reason why a text is not a signed list of members.
#[derive(Debug, thiserror::Error)]
pub enum SignedError {
    /// The text is too long.
    #[error("{0} bytes; a signed list has at most {MAX_SIGNED}")]
    TooLong(usize),
    /// The text has no signature in its first line.
    #[error(
        "it is not signed: sign it with `taut mesh sign`, or remove relay.mesh.members_key to use a list without a signature"
    )]
    NotSigned,
    /// The signature is not one of these keys over these bytes.
    #[error(
        "its signature is not that of relay.mesh.members_key: it was signed by another key, or changed afterwards"
    )]
    Signature,
    /// The list has no serial.
    #[error("it has no serial; sign it again with `taut mesh sign`")]
    NoSerial,
    /// The time of expiry is malformed.
    #[error("expires: `{0}` is not a time such as \"2026-02-23T00:00:00Z\"")]
    Expires(String),
    /// The list has a mistake.
    #[error(transparent)]
    Members(#[from] MembersError),
}

/// The reason why a list cannot be signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    /// The list is signed already, or has a statement.
    #[error("it has a signature or a serial already: sign the list that it was made from")]
    AlreadySigned,
    /// The time of expiry cannot be written.
    #[error("the time of expiry is not between the years 1970 and 9999")]
    Expires,
    /// The list would not be accepted.
    #[error(transparent)]
    Unacceptable(#[from] SignedError),
}

/// The reason why a list does not take the place of another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListRefusal {
    /// A newer list is in use.
    #[error("its serial is {offered}, and the list in use has {held}")]
    Older {
        /// The serial of the refused list.
        offered: u64,
        /// The serial of the list in use.
        held: u64,
    },
    /// The list in use has the same serial.
    #[error(
        "it differs from the list in use, and both have serial {0}: sign it with a higher serial"
    )]
    SameSerial(u64),
    /// More than half of the members are gone.
    #[error(
        "it has {offered} members and the list in use has {held}: if that is intended, sign it again with `taut mesh sign --smaller`"
    )]
    Smaller {
        /// The number of members of the refused list.
        offered: usize,
        /// The number of members of the list in use.
        held: usize,
    },
}

/// Returns `list` with this statement and the signature of `key`.
///
/// # Errors
/// [`SignError`], among others if `list` is not a list of members.
pub fn sign(list: &str, statement: &Statement, key: &PrivateKey) -> Result<String, SignError> {
    let file = File::parse(list).map_err(SignedError::from)?;
    if list.starts_with(MARK) || file.has_statement() {
        return Err(SignError::AlreadySigned);
    }
    let mut body = format!("serial = {}\n", statement.serial);
    if let Some(expires) = statement.expires {
        let year_10000 = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_800);
        if !(SystemTime::UNIX_EPOCH..year_10000).contains(&expires) {
            return Err(SignError::Expires);
        }
        let expires = humantime::format_rfc3339_seconds(expires);
        body += &format!("expires = \"{expires}\"\n");
    }
    if let Some(since) = statement.smaller_since {
        body += &format!("smaller_since = {since}\n");
    }
    body += "\n";
    body += list;
    let signature = key.sign(CONTEXT, body.as_bytes());
    let signed = format!("{MARK}{}\n{body}", Base64::encode_string(&signature));
    Members::parse_signed(&signed, &[key.public()])?;
    Ok(signed)
}

impl Members {
    /// Parses a list of members that one of `keys` has signed. The signature is checked before anything
    /// else is read.
    ///
    /// # Errors
    /// [`SignedError`], at the first fault.
    pub fn parse_signed(text: &str, keys: &[PublicKey]) -> Result<Self, SignedError> {
        if text.len() > MAX_SIGNED {
            return Err(SignedError::TooLong(text.len()));
        }
        let first_line = text.strip_prefix(MARK).and_then(|t| t.split_once('\n'));
        let (signature, body) = first_line.ok_or(SignedError::NotSigned)?;
        let mut bytes = [0; SIGNATURE_LEN];
        match Base64::decode(signature, &mut bytes) {
            Ok(decoded) if decoded.len() == SIGNATURE_LEN => {}
            _ => return Err(SignedError::NotSigned),
        }
        let is_signed_by = |key: &PublicKey| key.verifies(CONTEXT, body.as_bytes(), &bytes);
        if !keys.iter().any(is_signed_by) {
            return Err(SignedError::Signature);
        }
        let file = File::parse(body)?;
        let statement = Statement {
            serial: file.serial.ok_or(SignedError::NoSerial)?,
            expires: file.expires.as_deref().map(time).transpose()?,
            smaller_since: file.smaller_since,
        };
        let mut members = file.members()?;
        members.statement = Some(statement);
        Ok(members)
    }

    /// Returns what the signer says about the list. `None` if the signature was not checked.
    pub fn statement(&self) -> Option<&Statement> {
        self.statement.as_ref()
    }

    /// Returns whether the list has expired at `now`.
    pub fn has_expired(&self, now: SystemTime) -> bool {
        let expires = self.statement.as_ref().and_then(|s| s.expires);
        expires.is_some_and(|expires| expires <= now)
    }

    /// Decides whether this list may take the place of `held`, without the word of an operator at the relay.
    ///
    /// # Errors
    /// [`ListRefusal`] if this list is older, or has lost more than half of the members and its signer has
    /// not said that this is intended. Storage that was emptied, and a tool that failed, look like that.
    pub fn may_replace(&self, held: &Self) -> Result<(), ListRefusal> {
        let serial = |members: &Self| members.statement.as_ref().map(|s| s.serial);
        let held_serial = serial(held);
        if let (Some(offered), Some(held_serial)) = (serial(self), held_serial) {
            if offered < held_serial {
                return Err(ListRefusal::Older {
                    offered,
                    held: held_serial,
                });
            }
            if offered == held_serial && self != held {
                return Err(ListRefusal::SameSerial(offered));
            }
        }
        let meant = self.statement.as_ref().and_then(|s| s.smaller_since);
        let is_meant = meant.is_some_and(|since| since > held_serial.unwrap_or(0));
        if self.all.len() * 2 < held.all.len() && !is_meant {
            return Err(ListRefusal::Smaller {
                offered: self.all.len(),
                held: held.all.len(),
            });
        }
        Ok(())
    }
}

fn time(text: &str) -> Result<SystemTime, SignedError> {
    let start = text.chars().take(32).collect();
    humantime::parse_rfc3339(text).map_err(|_| SignedError::Expires(start))
}

#[cfg(test)]
mod tests;
