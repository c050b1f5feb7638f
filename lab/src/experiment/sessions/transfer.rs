//! The contents of one session in each direction, and their comparison.
//!
//! ```text
//! client -> server   header: magic, number, both lengths, who ends first | `up` bytes
//! server -> client   `down` bytes | trailer: magic, number
//! ```
//!
//! Both ends generate every byte from the seed and the number, so the comparison needs no stored
//! copy. This module uses no sockets and no clock.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// The first bytes that the client sends in every session.
const HEADER_MAGIC: [u8; 8] = *b"tautsoak";
/// The first bytes of the server's trailer.
const TRAILER_MAGIC: [u8; 8] = *b"soakdone";
/// The length of the header.
pub(in crate::experiment) const HEADER: usize = 32;
/// The number of bytes that are compared at a time.
const STEP: usize = 16 << 10;

/// The end that closes its stream first. The other end closes only after it has seen the end of
/// that stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum First {
    Client,
    Server,
}

/// What determines all sessions of a run.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Traffic {
    /// The seed of sizes and contents.
    pub(in crate::experiment) seed: u64,
    /// The maximum number of bytes in one direction; at most 2^23.
    pub(in crate::experiment) longest: u64,
}

/// The plan of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) struct Transfer {
    /// The seed of the run.
    seed: u64,
    pub(in crate::experiment) number: u64,
    /// Bytes from client to server.
    pub(in crate::experiment) up: u64,
    /// Bytes from server to client.
    pub(in crate::experiment) down: u64,
    pub(in crate::experiment) first: First,
}

/// A direction of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum Way {
    Up,
    Down,
}

/// The bytes of one direction, generated on demand.
pub(in crate::experiment) struct Content {
    before: Vec<u8>,
    random: Pcg64Mcg,
    /// The number of bytes of the generator that are not used yet, in `word` and after it.
    left: u64,
    word: [u8; 8],
    /// The number of used bytes of `word`.
    used: usize,
    after: Vec<u8>,
}

/// Compares the received bytes with the expected ones.
pub(in crate::experiment) struct Comparison {
    expected: Content,
    arrived: u64,
    scratch: Vec<u8>,
}

/// How the received bytes differ from the sent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiment) enum Wrong {
    /// The stream ended in order after this many bytes, with this many missing.
    Short { arrived: u64, missing: u64 },
    /// A byte was changed at this offset, or up to 16 KiB after it.
    Different { at: u64 },
    /// There are more bytes than were sent.
    Long { expected: u64 },
    /// The client has received a trailer for a session that no server knows.
    Unknown,
}

// === impl Transfer ===

impl Transfer {
    /// Returns the transfer with this number.
    pub(in crate::experiment) fn of(traffic: Traffic, number: u64) -> Self {
        let Traffic { seed, longest } = traffic;
        let mut random = Pcg64Mcg::seed_from_u64(mix(seed, number, 0));
        let mut size = || {
            let unit = random.next_u64() as f64 / u64::MAX as f64;
            // Log-uniform over 1..=longest + 1, minus one.
            (((longest + 1) as f64).ln() * unit).exp() as u64 - 1
        };
        let (a, b) = (size(), size());
        let draw = random.next_u64();
        let (up, down) = match draw % 3 {
            0 => (a, 0),
            1 => (0, a),
            _ => (a, b),
        };
        let first = match draw >> 32 & 1 {
            0 => First::Client,
            _ => First::Server,
        };
        Self {
            seed,
            number,
            up,
            down,
            first,
        }
    }

    /// Returns the number that a header claims; [`Comparison`] checks the rest of the header.
    pub(in crate::experiment) fn number_in(header: &[u8; HEADER]) -> u64 {
        let mut number = [0; 8];
        number.copy_from_slice(&header[8..16]);
        u64::from_le_bytes(number)
    }

    /// Returns the bytes that the sender of `way` sends.
    pub(in crate::experiment) fn content(&self, way: Way) -> Content {
        let number = self.number.to_le_bytes();
        let (before, left, after) = match way {
            Way::Up => {
                let lengths = [self.up.to_le_bytes(), self.down.to_le_bytes()].concat();
                let mut header = [&HEADER_MAGIC[..], &number, &lengths].concat();
                // The lengths are below 2^23, so their last byte is free for this.
                header[HEADER - 1] = self.first as u8;
                (header, self.up, Vec::new())
            }
            Way::Down => (Vec::new(), self.down, [TRAILER_MAGIC, number].concat()),
        };
        let stream = 1 + way as u64;
        Content {
            before,
            random: Pcg64Mcg::seed_from_u64(mix(self.seed, self.number, stream)),
            left,
            word: [0; 8],
            used: 8,
            after,
        }
    }

    /// Returns the comparison for the receiver of `way`.
    pub(in crate::experiment) fn comparison(&self, way: Way) -> Comparison {
        Comparison {
            expected: self.content(way),
            arrived: 0,
            scratch: vec![0; STEP],
        }
    }
}

/// Returns a separate seed for each use of each number (SplitMix64's finaliser).
fn mix(seed: u64, number: u64, stream: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(number.wrapping_mul(4) + stream);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

// === impl Content ===

impl Content {
    /// Returns the number of bytes left.
    pub(in crate::experiment) fn left(&self) -> u64 {
        self.before.len() as u64 + self.left + self.after.len() as u64
    }

    /// Fills `into` with the next bytes and returns their number. It is less than the length of
    /// `into` only at the end.
    pub(in crate::experiment) fn fill(&mut self, into: &mut [u8]) -> usize {
        let mut done = take(&mut self.before, into);
        let content = (into.len() - done).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.generate(&mut into[done..done + content]);
        self.left -= content as u64;
        done += content;
        if self.left == 0 {
            done += take(&mut self.after, &mut into[done..]);
        }
        done
    }

    fn generate(&mut self, into: &mut [u8]) {
        let rest = (8 - self.used).min(into.len());
        let (head, body) = into.split_at_mut(rest);
        head.copy_from_slice(&self.word[self.used..self.used + rest]);
        self.used += rest;
        let mut words = body.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.random.next_u64().to_le_bytes());
        }
        let tail = words.into_remainder();
        if !tail.is_empty() {
            self.word = self.random.next_u64().to_le_bytes();
            self.used = tail.len();
            tail.copy_from_slice(&self.word[..self.used]);
        }
    }
}

/// Moves as many bytes as fit from the start of `from` to the start of `into`.
fn take(from: &mut Vec<u8>, into: &mut [u8]) -> usize {
    let n = from.len().min(into.len());
    into[..n].copy_from_slice(&from[..n]);
    from.drain(..n);
    n
}

// === impl Comparison ===

impl Comparison {
    /// Returns the number of bytes that are still missing.
    pub(in crate::experiment) fn missing(&self) -> u64 {
        self.expected.left()
    }

    /// Compares received bytes with the expected ones.
    pub(in crate::experiment) fn take(&mut self, mut bytes: &[u8]) -> Result<(), Wrong> {
        while !bytes.is_empty() {
            let step = bytes.len().min(STEP);
            let n = self.expected.fill(&mut self.scratch[..step]);
            if bytes[..n] != self.scratch[..n] {
                return Err(Wrong::Different { at: self.arrived });
            }
            self.arrived += n as u64;
            if n < step {
                return Err(Wrong::Long {
                    expected: self.arrived,
                });
            }
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Checks that an orderly end of the stream came after all bytes.
    pub(in crate::experiment) fn end(&self) -> Result<(), Wrong> {
        match self.missing() {
            0 => Ok(()),
            missing => Err(Wrong::Short {
                arrived: self.arrived,
                missing,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LONGEST: u64 = 4 << 20;

    fn traffic(seed: u64) -> Traffic {
        Traffic {
            seed,
            longest: LONGEST,
        }
    }

    fn whole(transfer: Transfer, way: Way) -> Vec<u8> {
        let mut content = transfer.content(way);
        let mut bytes = vec![0; usize::try_from(content.left()).unwrap()];
        assert_eq!(content.fill(&mut bytes), bytes.len());
        assert_eq!(content.left(), 0);
        bytes
    }

    fn with(up: u64, down: u64) -> Transfer {
        Transfer {
            up,
            down,
            ..Transfer::of(traffic(3), 8)
        }
    }

    #[test]
    fn a_run_has_every_kind_of_transfer_and_sizes_of_every_magnitude() {
        let all: Vec<_> = (0..3000).map(|n| Transfer::of(traffic(1), n)).collect();
        for first in [First::Client, First::Server] {
            for (up, down) in [(true, false), (false, true), (true, true)] {
                let found = all
                    .iter()
                    .filter(|t| t.first == first && (t.up > 0, t.down > 0) == (up, down));
                assert!(found.count() > 300, "{first:?} {up} {down}");
            }
        }
        assert!(all.iter().any(|t| t.up == 0 && t.down == 0));
        for magnitude in 0..6 {
            let range = 10_u64.pow(magnitude)..10_u64.pow(magnitude + 1);
            assert!(all.iter().any(|t| range.contains(&t.up)), "{range:?}");
        }
        assert!(all.iter().all(|t| t.up <= LONGEST && t.down <= LONGEST));
        assert_eq!(Transfer::of(traffic(1), 7), all[7]);
        assert_ne!(
            Transfer::of(traffic(2), 7).content(Way::Up).random,
            all[7].content(Way::Up).random
        );
    }

    #[test]
    fn a_header_says_which_transfer_it_is_of() {
        let bytes = whole(with(5, 0), Way::Up);
        assert_eq!(bytes.len(), HEADER + 5);
        let header = bytes[..HEADER].try_into().unwrap();
        assert_eq!(Transfer::number_in(&header), 8);
    }

    #[test]
    fn every_fault_is_seen_for_what_it_is() {
        let transfer = with(40_000, 30_000);
        for way in [Way::Up, Way::Down] {
            let bytes = whole(transfer, way);
            let check = |bytes: &[u8]| {
                let mut comparison = transfer.comparison(way);
                comparison.take(bytes).and_then(|()| comparison.end())
            };
            assert_eq!(check(&bytes), Ok(()));
            let short = Wrong::Short {
                arrived: bytes.len() as u64 - 1,
                missing: 1,
            };
            assert_eq!(check(&bytes[..bytes.len() - 1]), Err(short));
            let mut longer = bytes.clone();
            longer.push(0);
            let expected = bytes.len() as u64;
            assert_eq!(check(&longer), Err(Wrong::Long { expected }));
            // Covers lost and repeated parts as well as changed ones.
            let mut swapped = bytes.clone();
            swapped.swap(20_000, 20_001);
            let mut gap = bytes.clone();
            gap.drain(17_000..17_008);
            for damaged in [swapped, gap] {
                let at = STEP as u64;
                assert_eq!(check(&damaged), Err(Wrong::Different { at }));
            }
        }
    }

    #[test]
    fn another_sessions_bytes_are_wrong() {
        let (one, other) = (
            with(100, 100),
            Transfer {
                number: 9,
                ..with(100, 100)
            },
        );
        for way in [Way::Up, Way::Down] {
            let mut comparison = one.comparison(way);
            assert!(comparison.take(&whole(other, way)).is_err());
        }
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_makes_no_difference(
            up in 0_u64..70_000,
            sent in proptest::collection::vec(1_usize..20_000, 1..30),
            received in proptest::collection::vec(1_usize..20_000, 1..30),
        ) {
            let transfer = with(up, 0);
            let mut content = transfer.content(Way::Up);
            let mut bytes = Vec::new();
            for n in sent.iter().cycle() {
                let mut part = vec![0; *n];
                let n = content.fill(&mut part);
                bytes.extend_from_slice(&part[..n]);
                if content.left() == 0 {
                    break;
                }
            }
            prop_assert_eq!(&bytes, &whole(transfer, Way::Up));
            let mut comparison = transfer.comparison(Way::Up);
            let mut rest = &bytes[..];
            for n in received.iter().cycle() {
                let (part, after) = rest.split_at((*n).min(rest.len()));
                prop_assert_eq!(comparison.take(part), Ok(()));
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(comparison.end(), Ok(()));
        }
    }
}
