//! What a sequence begins with: two ends, a ring, and a configuration.

use crate::draw::Draw;
use crate::machine::RINGS;
use crate::peer::Terms;
use crate::reference::Config;
use crate::segment::{Ends, GUEST_MAC};
use crate::seq::Seq;

/// Never, in ticks and in bytes.
const NEVER: u32 = 0x7fff_ffff;

/// What `--exposure-time` is where there is one: longer than a sequence takes, and less than one of its long
/// pauses.
pub(crate) const EXPOSURE_TICKS: u32 = 1000;

/// How a connection comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Server,
    Client,
    /// The programs meet it in its middle.
    Midflow,
}

/// What a sequence begins with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) ends: Ends,
    /// Which tap, by the places of its ring.
    pub(crate) tap: usize,
    pub(crate) opening: Opening,
    pub(crate) peer: Terms,
    pub(crate) guest: Terms,
    /// Of the guest's receive buffer, bytes.
    pub(crate) buffer: u32,
    /// The guest takes back what it has offered.
    pub(crate) shrinks: bool,
    /// In mid-flow: bytes beyond its window that it has offered before, and still takes.
    pub(crate) earlier: u32,
    pub(crate) ttl: u8,
    pub(crate) config: Config,
    /// Guests' addresses are said.
    pub(crate) by_address: bool,
    /// The guest is taken to be awake whenever it was heard, so that ACKs are of several segments.
    pub(crate) awake: bool,
}

/// How the first byte's number is drawn: mostly so that a sequence wraps.
fn first(draw: &mut Draw) -> Seq {
    Seq(draw.number())
}

impl Setup {
    /// `number` tells sequences apart: each has ports of its own.
    pub(crate) fn draw(draw: &mut Draw, number: u32) -> Self {
        let mss = draw.weighted(&[
            (2, None),
            (4, Some(100)),
            (4, Some(256)),
            (2, Some(1000)),
            (2, Some(1448)),
        ]);
        let usual = draw.below(100) < 70;
        let scale = |draw: &mut Draw| match draw.below(8) {
            0 => None,
            1 => Some(draw.within(0, 20) as u8),
            _ => Some(draw.within(0, 14) as u8),
        };
        let clock =
            |draw: &mut Draw| (!draw.once_in(if usual { 12 } else { 3 })).then(|| first(draw));
        let peer = Terms {
            first: first(draw),
            scale: scale(draw),
            clock: clock(draw),
            mss,
            sack: true,
        };
        let guest = Terms {
            first: first(draw),
            scale: scale(draw),
            clock: clock(draw),
            mss,
            sack: !draw.once_in(5),
        };
        let segment = u32::from(mss.unwrap_or(536));
        let buffer = match draw.below(5) {
            0 => draw.within(1, 3) * segment,
            1 => draw.within(1, 30) * segment + draw.below(segment),
            2 => draw.within(0, 65_535),
            3 => 1 << draw.within(10, 22),
            _ => 64_000,
        };
        let ends = Ends {
            v6: draw.once_in(4),
            foreign: draw.once_in(16),
            guest_port: 1024 + (number % 60_000) as u16,
            peer_port: 1024 + (number / 60_000) as u16,
        };
        let by_address = draw.once_in(4);
        Self {
            ends,
            tap: draw.below(RINGS.len() as u32) as usize,
            opening: draw.weighted(&[
                (6, Opening::Server),
                (2, Opening::Client),
                (3, Opening::Midflow),
            ]),
            peer,
            guest,
            buffer,
            shrinks: draw.once_in(4),
            earlier: match draw.below(2) {
                0 => 0,
                _ => draw.within(1, 30) * segment,
            },
            ttl: draw.weighted(&[(40, 64), (8, 128), (8, 255), (1, 63), (1, 61)]),
            config: config(draw, &ends, by_address, segment),
            by_address,
            awake: false,
        }
    }
}

fn config(draw: &mut Draw, ends: &Ends, by_address: bool, segment: u32) -> Config {
    let grows = draw.once_in(6);
    let rcvbuf = draw.within(1, 60) * segment;
    Config {
        on: !draw.once_in(40),
        buffer: match draw.below(6) {
            0 => 4096 + draw.below(60_000),
            _ => 0,
        },
        guest_rcvbuf: if grows { rcvbuf } else { 0 },
        start_early: draw.once_in(4),
        ecn: draw.once_in(4),
        ring: if draw.once_in(4) {
            draw.within(1, 16)
        } else {
            0
        },
        sharing: draw.below(4),
        exposure: match draw.below(4) {
            0 | 1 => NEVER,
            2 => draw.within(1, 12) * segment,
            _ => draw.within(1, 8000),
        },
        exposure_ticks: match draw.below(2) {
            0 => NEVER,
            _ => EXPOSURE_TICKS,
        },
        guest_ttl: if draw.once_in(8) { 61 } else { 0 },
        guest_mac: draw.once_in(2).then_some(GUEST_MAC),
        foreign_address: by_address && ends.foreign,
        full: draw.once_in(60),
        distrusted: draw.once_in(40),
    }
}
