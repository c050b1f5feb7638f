//! What the poller reports: which session and leg, told from those that had its place before.

use crate::end::Side;

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
}

const KIND_SHIFT: u32 = 62;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_BITS: u32 = 30;

// === impl Generation ===

impl Generation {
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & ((1 << GENERATION_BITS) - 1))
    }
}

// === impl Token ===

impl Token {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Self::Waker => 0,
            Self::Listener(i) => 1 << KIND_SHIFT | u64::from(i),
            Self::Leg(place, generation, side) => {
                let kind = if side == Side::Client { 2 } else { 3 };
                kind << KIND_SHIFT
                    | u64::from(generation.0) << GENERATION_SHIFT
                    | u64::from(place.0)
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the parts were made from 32 bits"
    )]
    pub(crate) fn decode(word: u64) -> Self {
        let low = word as u32;
        let leg = |side| {
            let generation = (word >> GENERATION_SHIFT) as u32 & ((1 << GENERATION_BITS) - 1);
            Self::Leg(Place(low), Generation(generation), side)
        };
        match word >> KIND_SHIFT {
            0 => Self::Waker,
            1 => Self::Listener(low),
            2 => leg(Side::Client),
            _ => leg(Side::Onward),
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
