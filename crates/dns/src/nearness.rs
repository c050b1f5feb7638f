//! Which relays are near to which prefixes.
//!
//! Prefixes may lie within one another. They are flattened into ranges that do not overlap, so that a
//! look-up is one binary search. From the range follows the largest block around the client for which
//! the answer is the same. An authoritative server must name such a block to resolvers and must not let
//! two of them overlap (RFC 7871 section 7.2.1).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

/// The number of a relay, in the order of the configuration.
pub type RelayId = u16;

/// The round-trip time of a relay to a prefix.
pub type Measurement = (IpNet, RelayId, Duration);

/// The maximum number of prefixes, 100 MB of memory.
pub const MAX_PREFIXES: usize = 500_000;

/// The maximum number of relays that are kept for a prefix: the nearest. If all of them are down, the
/// relays of the enclosing prefix are tried, and then the fallback order.
pub const MAX_NEAR: usize = 8;

/// The number of no prefix.
const NOWHERE: u32 = u32::MAX;

/// The relays near to each prefix.
#[derive(Debug, Default)]
pub struct Nearness {
    v4: Ranges,
    v6: Ranges,
    prefixes: Vec<MeasuredPrefix>,
}

/// A prefix and its relays.
#[derive(Debug)]
pub struct MeasuredPrefix {
    /// The prefix.
    pub prefix: IpNet,
    /// The nearest relays with their round-trip times, the nearest first; at most [`MAX_NEAR`].
    pub relays: Vec<(RelayId, Duration)>,
    /// The number of the smallest prefix around this one.
    around: u32,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    nearness: &'a Nearness,
    number: u32,
    /// The length of the shortest prefix around the client in which every address has this result
    /// (SCOPE PREFIX-LENGTH of RFC 7871 section 6).
    pub scope: u8,
}

/// There are more prefixes than [`MAX_PREFIXES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are more than {MAX_PREFIXES} prefixes; measure to shorter prefixes")]
pub struct TooManyPrefixes;

/// Ranges of addresses of one family that do not overlap. Addresses stand at the upper end of 128 bits.
#[derive(Debug, Default)]
struct Ranges {
    /// The first address of each range. A range ends before the next.
    starts: Vec<u128>,
    /// The number of each range's longest prefix, or [`NOWHERE`].
    prefixes: Vec<u32>,
}

// === impl Nearness ===

impl Nearness {
    /// Builds the table from measured round-trip times. Of several times of one relay to one prefix,
    /// the shortest counts.
    ///
    /// # Errors
    /// [`TooManyPrefixes`].
    pub fn new(measured: impl IntoIterator<Item = Measurement>) -> Result<Self, TooManyPrefixes> {
        // Ordered by first address, and the shorter of two prefixes first: what encloses comes first.
        let mut prefixes = BTreeMap::<(bool, u128, u8), Vec<(RelayId, Duration)>>::new();
        for (prefix, relay, rtt) in measured {
            let (is_v6, first) = (prefix.addr().is_ipv6(), upper(prefix.network()));
            let key = (is_v6, first, prefix.prefix_len());
            if prefixes.len() >= MAX_PREFIXES && !prefixes.contains_key(&key) {
                return Err(TooManyPrefixes);
            }
            prefixes.entry(key).or_default().push((relay, rtt));
        }
        let mut nearness = Self::default();
        let (mut v4, mut v6) = (Sweep::default(), Sweep::default());
        for ((is_v6, first, len), mut relays) in prefixes {
            relays.sort_unstable_by_key(|&(relay, rtt)| (rtt, relay));
            let mut seen = Vec::with_capacity(MAX_NEAR);
            relays.retain(|&(relay, _)| {
                let is_new = seen.len() < MAX_NEAR && !seen.contains(&relay);
                if is_new {
                    seen.push(relay);
                }
                is_new
            });
            relays.shrink_to_fit();
            let sweep = if is_v6 { &mut v6 } else { &mut v4 };
            let number = u32::try_from(nearness.prefixes.len()).unwrap_or(NOWHERE);
            let around = sweep.enter(first, len, number);
            nearness.prefixes.push(MeasuredPrefix {
                prefix: prefix(is_v6, first, len),
                relays,
                around,
            });
        }
        nearness.v4 = v4.finish();
        nearness.v6 = v6.finish();
        Ok(nearness)
    }

    /// Returns the number of prefixes.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Returns whether nothing has been measured.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Finds the longest prefix around `client`.
    pub fn find(&self, client: IpAddr) -> Found<'_> {
        let ranges = if client.is_ipv6() { &self.v6 } else { &self.v4 };
        let (number, scope) = ranges.find(upper(client));
        Found {
            nearness: self,
            number,
            scope,
        }
    }
}

// === impl Found ===

impl<'a> Found<'a> {
    /// Returns the prefixes around the client, the longest first.
    pub fn prefixes(self) -> impl Iterator<Item = &'a MeasuredPrefix> {
        let at = |number: u32| self.nearness.prefixes.get(number as usize);
        std::iter::successors(at(self.number), move |number| at(number.around))
    }
}

// === impl Ranges ===

impl Ranges {
    fn find(&self, address: u128) -> (u32, u8) {
        let after = self.starts.partition_point(|start| *start <= address);
        let Some(at) = after.checked_sub(1) else {
            return (NOWHERE, 0);
        };
        // The block must be longer than what the client has in common with either neighbouring range.
        let apart =
            |other: u128| u8::try_from((address ^ other).leading_zeros() + 1).unwrap_or(128);
        let below = self.starts[at].checked_sub(1).map_or(0, apart);
        let above = self.starts.get(after).map_or(0, |next| apart(*next));
        (self.prefixes[at], below.max(above))
    }
}

/// Builds [`Ranges`] from prefixes in order.
#[derive(Default)]
struct Sweep {
    ranges: Ranges,
    /// The last address and the number of each prefix around the current address, the longest last.
    open: Vec<(u128, u32)>,
}

// === impl Sweep ===

impl Sweep {
    /// Adds a prefix and returns the number of the smallest prefix around it.
    fn enter(&mut self, first: u128, len: u8, number: u32) -> u32 {
        if self.ranges.starts.is_empty() {
            self.begin_range(0, NOWHERE);
        }
        while self.open.last().is_some_and(|(last, _)| *last < first) {
            self.leave();
        }
        let around = self.innermost();
        self.begin_range(first, number);
        let last = first | u128::MAX.checked_shr(len.into()).unwrap_or(0);
        self.open.push((last, number));
        around
    }

    fn finish(mut self) -> Ranges {
        while !self.open.is_empty() {
            self.leave();
        }
        self.ranges.starts.shrink_to_fit();
        self.ranges.prefixes.shrink_to_fit();
        self.ranges
    }

    fn leave(&mut self) {
        let Some((last, _)) = self.open.pop() else {
            return;
        };
        if let Some(next) = last.checked_add(1) {
            self.begin_range(next, self.innermost());
        }
    }

    fn innermost(&self) -> u32 {
        self.open.last().map_or(NOWHERE, |(_, number)| *number)
    }

    /// Begins a range at `start`. A range that would be empty is replaced.
    fn begin_range(&mut self, start: u128, number: u32) {
        let Ranges { starts, prefixes } = &mut self.ranges;
        if starts.last() == Some(&start) {
            starts.pop();
            prefixes.pop();
        }
        if prefixes.last() != Some(&number) {
            starts.push(start);
            prefixes.push(number);
        }
    }
}

/// Returns the address at the upper end of 128 bits.
fn upper(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

fn prefix(is_v6: bool, first: u128, len: u8) -> IpNet {
    let address = match is_v6 {
        true => IpAddr::V6(first.into()),
        false => IpAddr::V4(u32::try_from(first >> 96).unwrap_or(0).into()),
    };
    IpNet::new_assert(address, len)
}

#[cfg(test)]
mod tests;
