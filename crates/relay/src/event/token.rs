//! The source of a poller event: a leg of a session, a listener, or a connection without a session.
//! A generation distinguishes the source from earlier users of the same slot.

use crate::outcome::session_end::Side;

/// The index of a session or connection in its slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Slot(pub(crate) u32);

/// The number of times that a slot has been reused. An event queued before its session ended must
/// not reach the next session in the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Generation(pub(crate) u32);

/// The source of a poller event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Waker,
    Listener(u32),
    Leg(Slot, Generation, Side),
    /// A connection at the mesh port that has not sent its hello.
    InboundConn(Slot, Generation),
    /// A connection to another relay that no session uses yet.
    Spare(Slot, Generation),
    /// A client's connection whose PROXY protocol header is incomplete.
    ProxyHeader(Slot, Generation),
    /// A client's connection whose TLS ClientHello is incomplete.
    ClientHello(Slot, Generation),
    /// A connection attempt besides the upstream leg of its session.
    Attempt(Slot, Generation),
}

const KIND_SHIFT: u32 = 60;
const GENERATION_SHIFT: u32 = 32;
const GENERATION_BITS: u32 = taut_mesh::dials::GENERATION_BITS;

// === impl Generation ===

impl Generation {
    pub(crate) fn next(self) -> Self {
        Self(self.0.wrapping_add(1) & ((1 << GENERATION_BITS) - 1))
    }
}

// === impl Token ===

impl Token {
    pub(crate) fn encode(self) -> u64 {
        let of = |kind: u64, slot: Slot, generation: Generation| {
            kind << KIND_SHIFT | u64::from(generation.0) << GENERATION_SHIFT | u64::from(slot.0)
        };
        match self {
            Self::Waker => 0,
            Self::Listener(i) => 1 << KIND_SHIFT | u64::from(i),
            Self::Leg(slot, generation, Side::Client) => of(2, slot, generation),
            Self::Leg(slot, generation, Side::Upstream) => of(3, slot, generation),
            Self::InboundConn(slot, generation) => of(4, slot, generation),
            Self::Spare(slot, generation) => of(5, slot, generation),
            Self::ProxyHeader(slot, generation) => of(6, slot, generation),
            Self::Attempt(slot, generation) => of(7, slot, generation),
            Self::ClientHello(slot, generation) => of(8, slot, generation),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the parts were made from 32 bits"
    )]
    pub(crate) fn decode(word: u64) -> Self {
        let slot = Slot(word as u32);
        let generation =
            Generation((word >> GENERATION_SHIFT) as u32 & ((1 << GENERATION_BITS) - 1));
        match word >> KIND_SHIFT {
            0 => Self::Waker,
            1 => Self::Listener(slot.0),
            2 => Self::Leg(slot, generation, Side::Client),
            3 => Self::Leg(slot, generation, Side::Upstream),
            4 => Self::InboundConn(slot, generation),
            5 => Self::Spare(slot, generation),
            6 => Self::ProxyHeader(slot, generation),
            7 => Self::Attempt(slot, generation),
            _ => Self::ClientHello(slot, generation),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_token_comes_back_as_it_went(slot: u32, generation in 0u32..1 << GENERATION_BITS) {
            for token in [
                Token::Waker,
                Token::Listener(slot),
                Token::Leg(Slot(slot), Generation(generation), Side::Client),
                Token::Leg(Slot(slot), Generation(generation), Side::Upstream),
                Token::InboundConn(Slot(slot), Generation(generation)),
                Token::Spare(Slot(slot), Generation(generation)),
                Token::ProxyHeader(Slot(slot), Generation(generation)),
                Token::Attempt(Slot(slot), Generation(generation)),
                Token::ClientHello(Slot(slot), Generation(generation)),
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
