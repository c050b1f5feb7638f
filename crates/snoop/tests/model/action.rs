//! The actions of a sequence. Each one works in any state, so that any may be removed from a
//! failing sequence.

use crate::draw::Draw;
use crate::setup::{Opening, Setup};

/// The length of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Hundredths of an MSS, plus bytes.
    Part(u8, u8),
    /// As much as the window allows, one frame at most.
    Window,
}

/// What happens to the peer's segment before the tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Arrives,
    Lost,
    /// It is delayed.
    Delayed,
    Twice,
}

/// An oddity of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Odd {
    Plain,
    Urgent,
    Cwr,
    Ece,
    Ae,
    Ect,
    Ce,
    Fin,
    NoAck,
    Unknown,
    /// It has an option of this kind.
    Kind(u8),
    NoTimestamps,
    /// Its timestamp is older by this much.
    OldClock(u16),
    OtherMac,
    WrongSum,
    /// The window field is random.
    Window(u16),
    Ttl(u8),
    /// A SACK block at this distance beyond the acknowledgment number, of this length.
    Sack(i16, u16),
}

/// One action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    PeerData {
        size: Size,
        push: bool,
        way: Way,
        odd: Odd,
    },
    /// Retransmits unacknowledged data, from this many bytes after its start.
    PeerAgain {
        skip: u16,
        size: Size,
        way: Way,
        odd: Odd,
    },
    /// A delayed segment arrives, or a duplicate of a sent one.
    PeerLate(u8),
    PeerCopy(u8),
    PeerAck(Odd),
    /// A keepalive before the acknowledged data, with a byte or without (RFC 9293 3.8.4).
    PeerKeepalive(bool),
    /// Data beyond the window by this many bytes.
    PeerProbe(u8),
    PeerFin,
    PeerReset(i16),
    /// The SYN again, or a new one.
    PeerSyn {
        moved: i32,
        ack: bool,
        odd: Odd,
    },
    /// Forged data, with numbers this far from the real ones.
    Forged {
        seq: i32,
        ack: i32,
        len: u16,
        clock: i32,
    },
    /// The next data reaches the guest on a path that the programs do not see.
    Unseen(Size),
    GuestTakes {
        count: u8,
        drops: bool,
    },
    GuestAcks(Odd),
    GuestRepeats(u8),
    GuestReads(u32),
    /// Its receive buffer gets this size (SO_RCVBUF), and it may shrink its window.
    GuestBuffer {
        bytes: u32,
        shrinks: bool,
    },
    /// It discards its out-of-order data.
    GuestDropsBeyond,
    /// Its data, which may be lost on the way to the peer.
    GuestData {
        len: u16,
        lost: bool,
        odd: Odd,
    },
    /// Retransmits data that the peer has not acknowledged.
    GuestAgain(u16),
    GuestFin,
    GuestReset,
    GuestSyn {
        ack: bool,
        odd: Odd,
    },
    /// The next early ACK waits until the guest has sent something.
    AckWaits,
    /// Pending early ACKs are lost on the way to the peer, or the next one is.
    AckLost,
    On(bool),
    /// The tap's share of the memory for copies is used up, or free again.
    Full(bool),
    Sharing(u8),
    /// User space takes the copies.
    CopiesTaken,
    /// Ticks of 2^20 ns.
    TimePasses(u16),
    /// The timestamps of peer and guest advance.
    ClocksTick(u16),
}

fn size(draw: &mut Draw) -> Size {
    match draw.below(12) {
        0 => Size::Part(0, 1),
        1 => Size::Part(0, draw.below(200) as u8),
        2 => Size::Part(79, 0),
        3 => Size::Part(80, 0),
        4 => Size::Window,
        5 => Size::Part(200, 0),
        _ => Size::Part(100, 0),
    }
}

/// How often oddities happen in a sequence.
#[derive(Clone, Copy, Debug)]
struct Mood {
    /// One in this many segments is odd.
    odd: u32,
    /// The ratio of arriving to lost segments.
    arrives: u32,
    /// A rare action is kept once in this many times.
    rare: u32,
}

const MOODS: [Mood; 4] = [
    Mood {
        odd: 300,
        arrives: 100,
        rare: 12,
    },
    Mood {
        odd: 80,
        arrives: 40,
        rare: 4,
    },
    Mood {
        odd: 25,
        arrives: 20,
        rare: 2,
    },
    Mood {
        odd: 10,
        arrives: 8,
        rare: 1,
    },
];

fn way(draw: &mut Draw, mood: Mood) -> Way {
    draw.weighted(&[
        (mood.arrives, Way::Arrives),
        (1, Way::Lost),
        (2, Way::Delayed),
        (1, Way::Twice),
    ])
}

fn peer_odd(draw: &mut Draw, mood: Mood) -> Odd {
    if !draw.once_in(mood.odd) {
        return Odd::Plain;
    }
    match draw.below(16) {
        0 => Odd::Urgent,
        1 => Odd::Cwr,
        2 => Odd::Ece,
        3 => Odd::Ae,
        4 => Odd::Ect,
        5 => Odd::Ce,
        6 => Odd::Fin,
        7 => Odd::NoAck,
        8 => Odd::Unknown,
        9 => Odd::Kind(draw.pick(&[19, 29, 30, 34])),
        10 => Odd::NoTimestamps,
        11 | 12 => Odd::OldClock(1 + draw.below(300) as u16),
        13 => Odd::OtherMac,
        14 => Odd::Window(draw.word() as u16),
        _ => Odd::WrongSum,
    }
}

fn guest_odd(draw: &mut Draw, mood: Mood) -> Odd {
    if !draw.once_in(mood.odd) {
        return Odd::Plain;
    }
    match draw.below(14) {
        0 => Odd::Urgent,
        1 => Odd::Cwr,
        2 => Odd::Ece,
        3 => Odd::NoAck,
        4 => Odd::Unknown,
        5 => Odd::Kind(draw.pick(&[19, 29, 30, 34])),
        6 => Odd::NoTimestamps,
        7 => Odd::OtherMac,
        8 => Odd::Ttl(draw.pick(&[63, 128, 64, 61])),
        9 | 10 => Odd::Sack(draw.below(6000) as i16 - 1000, 1 + draw.below(3000) as u16),
        _ => Odd::Window(draw.word() as u16),
    }
}

fn wild(draw: &mut Draw) -> i32 {
    let near = draw.below(4000).cast_signed() - 2000;
    match draw.below(4) {
        0 => 0,
        1 => near,
        2 => (1 << 24) + near,
        _ => draw.word().cast_signed(),
    }
}

/// Draws an action by weight.
fn any(draw: &mut Draw, mood: Mood) -> Action {
    use Action::*;
    let drawn = draw.below(100);
    // Actions that may end early ACKs.
    if drawn >= 94 && !draw.once_in(mood.rare) {
        return any(draw, mood);
    }
    match drawn {
        0..=33 => PeerData {
            size: size(draw),
            push: draw.once_in(3),
            way: way(draw, mood),
            odd: peer_odd(draw, mood),
        },
        34..=39 => PeerAgain {
            skip: if draw.once_in(3) {
                draw.word() as u16
            } else {
                0
            },
            size: size(draw),
            way: way(draw, mood),
            odd: peer_odd(draw, mood),
        },
        40..=42 => PeerLate(draw.word() as u8),
        43 => PeerAck(peer_odd(draw, mood)),
        44..=58 => GuestTakes {
            count: draw.pick(&[1, 1, 2, 3, 255]),
            drops: draw.once_in(8 * mood.rare),
        },
        59..=74 => GuestAcks(guest_odd(draw, mood)),
        75 => GuestRepeats(draw.word() as u8),
        76..=79 => GuestReads(draw.word() >> draw.within(8, 24)),
        80..=82 => GuestData {
            len: draw.below(600) as u16,
            lost: draw.once_in(4),
            odd: guest_odd(draw, mood),
        },
        83 => draw.pick(&[AckWaits, AckWaits, AckLost]),
        84 => GuestAgain(draw.below(600) as u16),
        85..=87 => CopiesTaken,
        88 | 89 => TimePasses(draw.pick(&[150, 150, 150, 1200])),
        90..=92 => ClocksTick(draw.below(100) as u16),
        93 => Sharing(draw.below(4) as u8),
        94 => Forged {
            seq: wild(draw),
            ack: wild(draw),
            len: draw.below(1400) as u16,
            clock: wild(draw),
        },
        95 => GuestBuffer {
            bytes: draw.word() >> draw.within(10, 31),
            shrinks: draw.once_in(2),
        },
        96 => match draw.below(3) {
            0 => PeerCopy(draw.word() as u8),
            1 => PeerKeepalive(draw.once_in(2)),
            _ => PeerProbe(draw.within(1, 3) as u8),
        },
        _ => rare(draw),
    }
}

fn rare(draw: &mut Draw) -> Action {
    use Action::*;
    match draw.below(12) {
        0 => PeerFin,
        1 => PeerReset(draw.pick(&[0, 0, 1, 500, -1, -500])),
        2 => PeerSyn {
            moved: draw.pick(&[0, 0, 1, 70_000, -3]),
            ack: draw.once_in(4),
            odd: damage(draw),
        },
        3 => GuestDropsBeyond,
        4 | 5 => GuestFin,
        6 => GuestReset,
        7 => GuestSyn {
            ack: !draw.once_in(3),
            odd: Odd::Plain,
        },
        8 => On(draw.once_in(2)),
        9 => Full(draw.once_in(2)),
        _ => Unseen(size(draw)),
    }
}

fn damage(draw: &mut Draw) -> Odd {
    draw.pick(&[Odd::Plain, Odd::WrongSum, Odd::OtherMac])
}

fn syn_odd(draw: &mut Draw) -> Odd {
    if !draw.once_in(12) {
        return Odd::Plain;
    }
    match draw.below(8) {
        0 => Odd::Unknown,
        1..=4 => Odd::Kind(draw.pick(&[19, 29, 30, 34])),
        5 => Odd::Ae,
        6 => Odd::Cwr,
        _ => Odd::Ece,
    }
}

/// Draws a sequence: its beginning, and then any actions.
pub(crate) fn sequence(draw: &mut Draw, setup: &Setup) -> Vec<Action> {
    use Action::*;
    let take = GuestTakes {
        count: 255,
        drops: false,
    };
    let syn = |draw: &mut Draw, ack| PeerSyn {
        moved: 0,
        ack,
        odd: syn_odd(draw),
    };
    let mut actions = match setup.opening {
        Opening::Server => vec![
            syn(draw, false),
            take,
            GuestSyn {
                ack: true,
                odd: syn_odd(draw),
            },
            PeerAck(Odd::Plain),
        ],
        Opening::Client => vec![
            GuestSyn {
                ack: false,
                odd: syn_odd(draw),
            },
            syn(draw, true),
            take,
            GuestAcks(Odd::Plain),
        ],
        Opening::Midflow if setup.earlier > 0 && draw.once_in(2) => {
            // Data is on its way that the guest offered to take before it was seen.
            let sent = PeerData {
                size: Size::Window,
                push: false,
                way: Way::Delayed,
                odd: Odd::Plain,
            };
            let mut actions = vec![sent; draw.within(1, 24) as usize];
            for _ in 0..draw.within(1, 4) {
                actions.extend([GuestAcks(Odd::Plain), ClocksTick(1)]);
                actions.extend(vec![PeerLate(0); draw.within(1, 12) as usize]);
                actions.extend([take, GuestReads(u32::MAX), GuestAcks(Odd::Plain)]);
            }
            actions
        }
        Opening::Midflow => vec![GuestAcks(Odd::Plain)],
    };
    if setup.opening == Opening::Client && draw.once_in(8) {
        // A corrupted one before the real one.
        let damaged = PeerSyn {
            moved: draw.pick(&[0, 4, -4, 1 << 20]),
            ack: true,
            odd: draw.pick(&[Odd::WrongSum, Odd::OtherMac]),
        };
        actions.insert(1, damaged);
    }
    if !draw.once_in(4) {
        // The guest confirms the connection.
        actions.push(PeerData {
            size: Size::Part(100, 0),
            push: true,
            way: Way::Arrives,
            odd: Odd::Plain,
        });
        actions.extend([take, GuestAcks(Odd::Plain)]);
    }
    if draw.once_in(12) {
        actions.remove(draw.below(actions.len() as u32) as usize);
    }
    let mood = draw.pick(&MOODS);
    let count = draw.within(8, 44);
    actions.extend((0..count).map(|_| any(draw, mood)));
    if draw.once_in(10) {
        ending(draw, &mut actions);
    }
    actions
}

/// Both ends close.
fn ending(draw: &mut Draw, actions: &mut Vec<Action>) {
    use Action::*;
    let take = GuestTakes {
        count: 255,
        drops: false,
    };
    let mut all = vec![GuestFin, PeerFin];
    if draw.once_in(2) {
        all.reverse();
    }
    for fin in all {
        actions.extend([fin, take, GuestAcks(Odd::Plain), PeerAck(Odd::Plain)]);
    }
    actions.extend([take, GuestAcks(Odd::Plain)]);
}
