//! A row: what one relay has measured, signed by it.

use crate::hello::Target;
use crate::identity::{PrivateKey, PublicKey, SIGNATURE_LEN};
use crate::members::MAX_MEMBERS;
use crate::name::MemberName;

use super::figure::{self, Figure};
use super::key::{Key, MemberId};

/// The largest number of prefixes and destinations in a row.
pub const MAX_OUTSIDE: usize = 1024;

/// The largest number of destinations that a relay asks others to measure.
pub const MAX_WANTED: usize = 16;

/// The context of a row's signature, so that a signature of another kind of message is none of a
/// row.
const CONTEXT: &str = "taut row 1";

/// The flags of a row.
mod flag {
    /// [`super::Row::by_member`].
    pub(super) const BY_MEMBER: u8 = 1;
}

/// The measurements of one relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Rises with every row of the same relay: the milliseconds since 1970 when it was made, or one
    /// more than before.
    pub version: u64,
    /// The relay allows members different destinations, so its entries for destinations are of
    /// single members ([`Key::destination`]).
    pub by_member: bool,
    /// The paths to other members, in the order of their IDs.
    pub members: Box<[MemberEntry]>,
    /// The paths to prefixes and destinations, in the order of their keys.
    pub outside: Box<[OutsideEntry]>,
    /// The destinations that the relay asks others to measure.
    pub wanted: Box<[Target]>,
}

/// The path to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// The member.
    pub id: MemberId,
    /// The path.
    pub figure: Figure,
    /// Whether the relay passes sessions of other members on to this one.
    pub passes: bool,
}

/// The path to a prefix or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideEntry {
    /// The prefix or destination.
    pub key: Key,
    /// The path.
    pub figure: Figure,
}

/// A row, and its relay's signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedRow {
    pub(super) row: Row,
    pub(super) signature: [u8; SIGNATURE_LEN],
}

// === impl Row ===

impl Row {
    /// Returns the path to a member.
    pub fn member(&self, id: MemberId) -> Option<&MemberEntry> {
        let place = self.members.binary_search_by_key(&id, |entry| entry.id);
        place.ok().map(|place| &self.members[place])
    }

    /// Returns the path to a prefix or destination.
    pub fn outside(&self, key: Key) -> Option<Figure> {
        let place = self.outside.binary_search_by_key(&key, |entry| entry.key);
        place.ok().map(|place| self.outside[place].figure)
    }

    /// Returns the path to `target` for sessions of `member`, if the relay allows it that.
    pub fn destination(&self, target: &Target, member: &MemberName) -> Option<Figure> {
        self.outside(Key::destination(target, self.by_member.then_some(member)))
    }

    /// Returns the row with the signature of its relay `name`.
    pub fn sign(self, name: &MemberName, key: &PrivateKey) -> SignedRow {
        let signature = key.sign(CONTEXT, &self.statement(name));
        SignedRow {
            row: self,
            signature,
        }
    }

    /// Appends the row without a signature.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let (members, outside) = (self.members.iter(), self.outside.iter());
        encode(self, members.copied(), outside.copied(), out);
    }

    /// Returns what the relay signs: its name and the whole row.
    fn statement(&self, name: &MemberName) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.memory());
        let name = name.as_str().as_bytes();
        // A name has at most 63 bytes.
        bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(name);
        self.encode(&mut bytes);
        bytes
    }

    /// Returns the memory that the row occupies, in bytes.
    pub(super) fn memory(&self) -> usize {
        let wanted = self.wanted.iter().map(|target| match target {
            Target::Addr(_) => 0,
            Target::Name { host, .. } => host.len(),
        });
        size_of::<Self>()
            + size_of_val(&*self.members)
            + size_of_val(&*self.outside)
            + size_of_val(&*self.wanted)
            + wanted.sum::<usize>()
    }
}

/// Appends a row with these entries instead of its own.
pub(super) fn encode(
    row: &Row,
    members: impl ExactSizeIterator<Item = MemberEntry>,
    outside: impl ExactSizeIterator<Item = OutsideEntry>,
    out: &mut Vec<u8>,
) {
    // The lengths are bounded, see `decode`.
    let count = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    out.extend_from_slice(&row.version.to_be_bytes());
    out.push(if row.by_member { flag::BY_MEMBER } else { 0 });
    out.extend_from_slice(&count(members.len()));
    for entry in members {
        out.extend_from_slice(&entry.id.0);
        entry.figure.encode(entry.passes, out);
    }
    out.extend_from_slice(&count(outside.len()));
    for entry in outside {
        out.extend_from_slice(&entry.key.bytes());
        entry.figure.encode(false, out);
    }
    out.push(u8::try_from(row.wanted.len()).unwrap_or(u8::MAX));
    for target in &row.wanted {
        let text = target.to_string();
        // A target has at most 253 + 6 bytes; one that is longer than the length byte allows is
        // left out.
        let len = u8::try_from(text.len()).unwrap_or(0);
        out.push(len);
        out.extend_from_slice(&text.as_bytes()[..usize::from(len)]);
    }
}

/// Decodes a row, or, with `gone`, one that may have entries that are gone. Returns `None` unless
/// encoding the result gives the same bytes.
pub(super) fn decode(bytes: &[u8], gone: bool) -> Option<Row> {
    let mut rest = bytes;
    let version = u64::from_be_bytes(take(&mut rest)?);
    let [flags] = take(&mut rest)?;
    if flags & !flag::BY_MEMBER != 0 {
        return None;
    }
    let allowed = |figure: Figure| gone || !figure.is_gone();
    let mut members = Vec::new();
    for _ in 0..count(&mut rest, MAX_MEMBERS)? {
        let id = MemberId(take(&mut rest)?);
        let (figure, passes) = Figure::decode(take::<{ figure::LEN }>(&mut rest)?);
        members.push(Some(MemberEntry { id, figure, passes }).filter(|e| allowed(e.figure))?);
    }
    let mut outside = Vec::new();
    for _ in 0..count(&mut rest, MAX_OUTSIDE)? {
        let key = Key::decode(take(&mut rest)?)?;
        let (figure, false) = Figure::decode(take::<{ figure::LEN }>(&mut rest)?) else {
            return None;
        };
        outside.push(Some(OutsideEntry { key, figure }).filter(|e| allowed(e.figure))?);
    }
    if !members.is_sorted_by(|a, b| a.id < b.id) || !outside.is_sorted_by(|a, b| a.key < b.key) {
        return None;
    }
    let [wanted_len] = take(&mut rest)?;
    if usize::from(wanted_len) > MAX_WANTED {
        return None;
    }
    let mut wanted: Vec<Target> = Vec::new();
    for _ in 0..wanted_len {
        let [len] = take(&mut rest)?;
        let (text, after) = rest.split_at_checked(usize::from(len))?;
        rest = after;
        let text = str::from_utf8(text).ok()?;
        let target: Target = text.parse().ok()?;
        // An address can be written in several ways.
        wanted.push(Some(target).filter(|target| target.to_string() == text)?);
    }
    rest.is_empty().then(|| Row {
        version,
        by_member: flags & flag::BY_MEMBER != 0,
        members: members.into(),
        outside: outside.into(),
        wanted: wanted.into(),
    })
}

fn count(bytes: &mut &[u8], max: usize) -> Option<usize> {
    let count = usize::from(u16::from_be_bytes(take(bytes)?));
    (count <= max).then_some(count)
}

/// Takes `N` bytes from the start of `bytes`.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

// === impl SignedRow ===

impl SignedRow {
    /// Returns the row.
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// Returns whether the relay `name` has signed the row with one of these keys.
    pub fn is_of(&self, name: &MemberName, keys: &[PublicKey]) -> bool {
        let statement = self.row.statement(name);
        keys.iter()
            .any(|key| key.verifies(CONTEXT, &statement, &self.signature))
    }
}
