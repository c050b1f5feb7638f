//! What the poller reports: which session and leg, or which connection that is not yet part of a
//! session, told from those that had its place before.

use crate::outcome::session_end::Side;

/// A place among a worker's sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(pub(crate) u32);

/// How often a place has been taken; a report that was on its way when its session ended must
/// not reach the next one in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Generation(pub(crate) u32);

/// What the poller reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Waker,
    Listener(u32),
    Leg(Place, Generation, Side),
    /// A connection at the mesh port that has not said its hello.
    Arrival(Place, Generation),
    /// A connection to another relay that no session uses yet.
    Spare(Place, Generation),
    /// A client's connection whose PROXY protocol header is not whole.
    Preface(Place, Generation),
}

const KIND_SHIFT: u32 = 61;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_BITS: u32 = 29;

// === impl Generation ===

impl Generation {
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & ((1 << GENERATION_BITS) - 1))
    }
}

// === impl Token ===

impl Token {
    pub(crate) fn encode(self) -> u64 {
        let of = |kind: u64, place: Place, generation: Generation| {
            kind << KIND_SHIFT | u64::from(generation.0) << GENERATION_SHIFT | u64::from(place.0)
        };
        match self {
            Self::Waker => 0,
            Self::Listener(i) => 1 << KIND_SHIFT | u64::from(i),
            Self::Leg(place, generation, Side::Client) => of(2, place, generation),
            Self::Leg(place, generation, Side::Onward) => of(3, place, generation),
            Self::Arrival(place, generation) => of(4, place, generation),
            Self::Spare(place, generation) => of(5, place, generation),
            Self::Preface(place, generation) => of(6, place, generation),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the parts were made from 32 bits"
    )]
    pub(crate) fn decode(word: u64) -> Self {
        let place = Place(word as u32);
        let generation =
            Generation((word >> GENERATION_SHIFT) as u32 & ((1 << GENERATION_BITS) - 1));
        match word >> KIND_SHIFT {
            0 => Self::Waker,
            1 => Self::Listener(place.0),
            2 => Self::Leg(place, generation, Side::Client),
            3 => Self::Leg(place, generation, Side::Onward),
            4 => Self::Arrival(place, generation),
            5 => Self::Spare(place, generation),
            _ => Self::Preface(place, generation),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_token_comes_back_as_it_went(place: u32, generation in 0u32..1 << GENERATION_BITS) {
            for token in [
                Token::Waker,
                Token::Listener(place),
                Token::Leg(Place(place), Generation(generation), Side::Client),
                Token::Leg(Place(place), Generation(generation), Side::Onward),
                Token::Arrival(Place(place), Generation(generation)),
                Token::Spare(Place(place), Generation(generation)),
                Token::Preface(Place(place), Generation(generation)),
            ] {
                prop_assert_eq!(Token::decode(token.encode()), token);
            }
        }
    }

    #[test]
    fn generations_stay_within_their_bits() {
        let last = Generation((1 << GENERATION_BITS) - 1);
        assert_eq!(last.next(), Generation(0));
    }
}
