//! A row as it travels: whole, or what has changed since a version that the receiver has.
//!
//! The signature is always that of the whole row, so a relay that has only received changes can
//! send the whole row to a third one.

use std::time::Duration;

use super::figure::Figure;
use super::history::Changed;
use super::key::MemberId;
use super::row::{self, MemberEntry, OutsideEntry, Row, SignedRow, take};
use crate::identity::SIGNATURE_LEN;

/// A row in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMessage {
    /// The relay whose row it is.
    pub origin: MemberId,
    /// The time since the origin made the row, without the time that it was in transit.
    pub age: Duration,
    /// The version before which nothing has changed that the message does not have; 0 for a whole
    /// row.
    pub base: u64,
    /// The row; with a base, only the entries that have changed.
    pub(super) part: Row,
    pub(super) signature: [u8; SIGNATURE_LEN],
}

/// Bytes that are no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message is not a row, or not written as relays write one")]
pub struct MessageError;

// === impl RowMessage ===

impl RowMessage {
    /// Returns the whole row.
    pub fn whole(origin: MemberId, signed: &SignedRow, age: Duration) -> Self {
        Self {
            origin,
            age,
            base: 0,
            part: signed.row.clone(),
            signature: signed.signature,
        }
    }

    /// Returns what has changed since the version `base`.
    pub(super) fn changes(
        origin: MemberId,
        signed: &SignedRow,
        age: Duration,
        base: u64,
        changed: &Changed,
    ) -> Self {
        let row = &signed.row;
        let member = |&id: &MemberId| {
            let gone = MemberEntry {
                id,
                figure: Figure::GONE,
                passes: false,
            };
            row.member(id).copied().unwrap_or(gone)
        };
        let outside = |&key| OutsideEntry {
            key,
            figure: row.outside(key).unwrap_or(Figure::GONE),
        };
        Self {
            origin,
            age,
            base,
            part: Row {
                version: row.version,
                by_member: row.by_member,
                members: changed.members.iter().map(member).collect(),
                outside: changed.outside.iter().map(outside).collect(),
                wanted: row.wanted.clone(),
            },
            signature: signed.signature,
        }
    }

    /// Returns the version of the row.
    pub fn version(&self) -> u64 {
        self.part.version
    }

    /// Returns the whole row: with a base, `held` with the changes.
    pub(super) fn apply(self, held: Option<&Row>) -> SignedRow {
        let row = match held.filter(|_| self.base > 0) {
            None => self.part,
            Some(held) => Row {
                members: merge(&held.members, &self.part.members, |e| e.id, |e| e.figure),
                outside: merge(&held.outside, &self.part.outside, |e| e.key, |e| e.figure),
                ..self.part
            },
        };
        SignedRow {
            row,
            signature: self.signature,
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let age = u32::try_from(self.age.as_millis()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(self.part.memory() + SIGNATURE_LEN + 16);
        bytes.extend_from_slice(&self.origin.0);
        bytes.extend_from_slice(&age.to_be_bytes());
        bytes.extend_from_slice(&self.base.to_be_bytes());
        bytes.extend_from_slice(&self.signature);
        self.part.encode(&mut bytes);
        bytes
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`MessageError`] if it is not one, or not what [`RowMessage::encode`] writes.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, MessageError> {
        let mut head = || {
            let origin = MemberId(take(&mut bytes)?);
            let age = Duration::from_millis(u32::from_be_bytes(take(&mut bytes)?).into());
            let base = u64::from_be_bytes(take(&mut bytes)?);
            let signature: [u8; SIGNATURE_LEN] = take(&mut bytes)?;
            Some((origin, age, base, signature))
        };
        let (origin, age, base, signature) = head().ok_or(MessageError)?;
        let part = row::decode(bytes, base > 0).ok_or(MessageError)?;
        Ok(Self {
            origin,
            age,
            base,
            part,
            signature,
        })
    }
}

/// Returns `held` with the entries of `changes` instead of its own, without those that are gone.
/// All are in the order of their keys.
fn merge<T: Copy, K: Ord>(
    held: &[T],
    changes: &[T],
    key: impl Fn(&T) -> K,
    figure: impl Fn(&T) -> Figure,
) -> Box<[T]> {
    let mut merged = Vec::with_capacity(held.len() + changes.len());
    let mut changes = changes.iter().peekable();
    for entry in held {
        while let Some(change) = changes.next_if(|change| key(change) < key(entry)) {
            merged.push(*change);
        }
        merged.push(*changes.next_if(|c| key(c) == key(entry)).unwrap_or(entry));
    }
    merged.extend(changes);
    merged.retain(|entry| !figure(entry).is_gone());
    merged.into()
}

#[cfg(test)]
mod tests;
