//! Tests that the checker reports every violation and nothing else.

use super::history::REORDERED;
use super::*;

const FLOW: FlowId = FlowId {
    v6: false,
    behind: false,
    peer_port: 1000,
    guest_port: 80,
};
/// An initial sequence number close to the wraparound.
const ISN: u32 = u32::MAX - 2_000;
/// The peer's first byte.
const FIRST: u32 = ISN.wrapping_add(1);

struct Scenario {
    checker: Checker,
    now: Instant,
}

fn segment(seq: u32, ack: u32, len: u32) -> Segment {
    Segment {
        flow: FLOW,
        seq,
        ack,
        flags: ACK,
        window: 100,
        len,
        scale: None,
        stamps: Some((0, 0)),
        sound: true,
    }
}

impl Scenario {
    /// Returns a connection that the peer has opened; the guest advertises 100 << 7 bytes.
    fn new() -> Self {
        let mut made = Self {
            checker: Checker::default(),
            now: Instant::now(),
        };
        let syn = Segment {
            flags: SYN,
            scale: Some(7),
            stamps: Some((50, 0)),
            ..segment(ISN, 0, 0)
        };
        made.checker.peer_sends(&syn);
        made.checker.guest_got(&syn);
        let syn_ack = Segment {
            flags: SYN | ACK,
            scale: Some(7),
            stamps: Some((900, 50)),
            ..segment(4, FIRST, 0)
        };
        made.checker.guest_sends(&syn_ack, made.now);
        made.checker.peer_got(&syn_ack, made.now);
        made.peer_sends(0, 0, 51);
        made.guest_acks(0, 901, 51);
        made
    }

    fn peer_sends(&mut self, at: u32, len: u32, tsval: u32) {
        let sent = Segment {
            stamps: Some((tsval, 900)),
            ..segment(FIRST.wrapping_add(at), 5, len)
        };
        self.checker.peer_sends(&sent);
    }

    fn guest_got(&mut self, at: u32, len: u32) {
        let got = segment(FIRST.wrapping_add(at), 5, len);
        self.checker.guest_got(&got);
    }

    fn ack(at: u32, tsval: u32, tsecr: u32) -> Segment {
        Segment {
            stamps: Some((tsval, tsecr)),
            ..segment(5, FIRST.wrapping_add(at), 0)
        }
    }

    fn guest_acks(&mut self, at: u32, tsval: u32, tsecr: u32) {
        let ack = Self::ack(at, tsval, tsecr);
        self.checker.guest_sends(&ack, self.now);
        self.peer_got(&ack);
    }

    /// Returns an early ACK of the host, with the rest of the guest's first window.
    fn early(at: u32) -> Segment {
        Segment {
            window: 99_u16.saturating_sub((at >> 7) as u16),
            ..Self::ack(at, 901, 51)
        }
    }

    fn peer_got(&mut self, segment: &Segment) {
        self.checker.peer_got(segment, self.now);
    }

    #[track_caller]
    fn has(&self, violations: &[Violation]) {
        let seen = &self.checker.seen;
        assert_eq!(seen.violations, violations.len() as u64, "{seen:?}");
        for (told, violation) in seen.described.iter().zip(violations) {
            assert!(told.starts_with(&violation.to_string()), "{told}");
        }
    }
}

#[test]
fn what_the_design_allows_is_no_violation() {
    let mut made = Scenario::new();
    made.peer_sends(0, 1000, 51);
    made.peer_got(&Scenario::early(1000));
    made.peer_sends(1000, 5000, 51);
    made.peer_got(&Scenario::early(6000));
    made.guest_got(0, 1000);
    made.guest_got(1000, 5000);
    made.checker.settle();
    made.now += 10 * REORDERED;
    // `taut snoop` has ended, so the guest's own ACKs arrive unchanged.
    made.guest_acks(1000, 902, 51);
    made.now += 10 * REORDERED;
    made.guest_acks(6000, 903, 51);
    made.has(&[]);
    assert_eq!((made.checker.seen.data, made.checker.seen.early), (2, 2));
}

#[test]
fn an_acknowledgement_beyond_the_guests_edge_is_reported() {
    let mut made = Scenario::new();
    let mut early = Scenario::early(12_800);
    early.window = 0;
    made.peer_got(&early);
    made.has(&[]);
    early.ack = early.ack.wrapping_add(1);
    made.peer_got(&early);
    made.has(&[Violation::BeyondEdge(1), Violation::WindowBeyondEdge(1)]);
}

#[test]
fn with_growth_it_may_be_beyond_by_what_was_stated() {
    let mut made = Scenario::new();
    made.checker.beyond = 500;
    let mut early = Scenario::early(12_800 + 500);
    early.window = 0;
    made.peer_got(&early);
    made.has(&[]);
    early.ack = early.ack.wrapping_add(1);
    made.peer_got(&early);
    made.has(&[Violation::BeyondEdge(1), Violation::WindowBeyondEdge(1)]);
}

#[test]
fn new_acknowledgements_beyond_an_edge_that_was_taken_back_are_reported_after_a_while() {
    let mut made = Scenario::new();
    made.guest_got(0, 9000);
    made.peer_got(&Scenario::early(5000));
    // The window is closed because the guest has dropped a segment.
    let closed = Segment {
        window: 0,
        ..Scenario::ack(1000, 902, 51)
    };
    made.checker.guest_sends(&closed, made.now);
    assert_eq!(made.checker.seen.retreats, 1);
    // This ACK was in flight when the window closed.
    made.peer_got(&Scenario::early(6000));
    made.has(&[]);
    made.now += 3 * REORDERED;
    // Earlier ACKs may be repeated.
    made.peer_got(&Scenario::early(6000));
    made.has(&[]);
    made.peer_got(&Scenario::early(6100));
    made.has(&[Violation::BeyondRetreat(5100)]);
}

#[test]
fn an_edge_that_was_taken_back_counts_again_when_it_is_offered_again() {
    let mut made = Scenario::new();
    made.guest_got(0, 9000);
    let closed = Segment {
        window: 0,
        ..Scenario::ack(0, 902, 51)
    };
    made.checker.guest_sends(&closed, made.now);
    made.now += 3 * REORDERED;
    made.guest_acks(0, 903, 51);
    let mut early = Scenario::early(9000);
    early.stamps = Some((903, 51));
    made.peer_got(&early);
    made.has(&[]);
}

#[test]
fn an_acknowledgement_for_a_receiver_behind_the_guest_is_reported() {
    let mut made = Scenario::new();
    let behind = FlowId {
        behind: true,
        ..FLOW
    };
    let watched = made.checker.flows.remove(&FLOW).unwrap();
    made.checker.flows.insert(behind, watched);
    let of = |segment: Segment| Segment {
        flow: behind,
        ..segment
    };
    made.checker.guest_got(&of(segment(FIRST, 5, 1000)));
    made.peer_got(&of(Scenario::early(1000)));
    made.has(&[Violation::ForReceiverBehind]);
    // The receiver's own ACK.
    let own = of(Scenario::ack(1000, 902, 51));
    made.checker.guest_sends(&own, made.now);
    made.peer_got(&own);
    made.has(&[Violation::ForReceiverBehind]);
}

#[test]
fn what_is_retransmitted_to_the_guest_is_no_violation() {
    let mut made = Scenario::new();
    made.guest_got(0, 3000);
    made.peer_got(&Scenario::early(3000));
    made.now += 3 * REORDERED;
    made.guest_got(0, 1500);
    made.guest_got(1500, 1500);
    made.guest_acks(3000, 902, 51);
    made.checker.settle();
    made.has(&[]);
}

#[test]
fn a_window_beyond_the_guests_is_reported() {
    let mut made = Scenario::new();
    let mut early = Scenario::early(128);
    early.window = 99;
    made.peer_got(&early);
    made.has(&[]);
    early.window = 100;
    made.peer_got(&early);
    made.has(&[Violation::WindowBeyondEdge(128)]);
}

#[test]
fn what_was_acknowledged_and_not_in_the_ring_is_reported_when_the_ring_is_empty() {
    let mut made = Scenario::new();
    made.peer_sends(0, 1000, 51);
    made.peer_sends(1000, 1000, 51);
    made.peer_sends(2000, 1000, 51);
    made.peer_got(&Scenario::early(3000));
    made.guest_got(0, 1000);
    // The second segment has not been in the ring.
    made.guest_got(2000, 1000);
    made.has(&[]);
    made.checker.settle();
    made.has(&[Violation::NotInRing(2000)]);
    // The violation is reported once.
    made.checker.settle();
    made.has(&[Violation::NotInRing(2000)]);
}

#[test]
fn segments_may_come_in_any_order_and_overlap() {
    let mut made = Scenario::new();
    made.guest_got(2000, 1000);
    made.guest_got(500, 1600);
    made.guest_got(2000, 1000);
    made.guest_got(0, 1000);
    made.peer_got(&Scenario::early(3000));
    made.checker.settle();
    made.has(&[]);
}

#[test]
fn the_end_of_the_peers_stream_has_a_number_too() {
    let mut made = Scenario::new();
    let mut fin = segment(FIRST, 5, 10);
    fin.flags |= super::super::segment::FIN;
    made.checker.guest_got(&fin);
    made.guest_acks(11, 902, 51);
    made.checker.settle();
    made.has(&[]);
    made.guest_acks(12, 902, 51);
    made.checker.settle();
    made.has(&[Violation::NotInRing(1)]);
}

#[test]
fn an_acknowledgement_that_goes_back_is_the_guests_own_or_reported() {
    let mut made = Scenario::new();
    made.guest_got(0, 3000);
    made.peer_got(&Scenario::early(3000));
    // An older ACK from another CPU's queue arrives later.
    made.peer_got(&Scenario::early(2000));
    made.has(&[]);
    made.now += REORDERED;
    made.peer_got(&Scenario::early(3000));
    made.now += REORDERED;
    made.guest_acks(1500, 901, 51);
    made.has(&[]);
    made.peer_got(&Scenario::early(2000));
    made.has(&[Violation::WentBack(1000)]);
}

#[test]
fn the_first_two_acknowledgements_may_be_out_of_order_too() {
    let mut made = Scenario::new();
    made.guest_got(0, 3000);
    made.checker.flows.get_mut(&FLOW).unwrap().told = None;
    made.peer_got(&Scenario::early(3000));
    made.peer_got(&Scenario::early(2000));
    made.has(&[]);
}

#[test]
fn a_sequence_number_beyond_the_guests_is_reported() {
    let mut made = Scenario::new();
    let mut early = Scenario::early(0);
    early.seq += 1;
    made.peer_got(&early);
    made.has(&[Violation::SequenceAhead(1)]);
}

#[test]
fn timestamps_that_are_missing_or_nobodys_are_reported() {
    let mut made = Scenario::new();
    made.peer_got(&Segment {
        stamps: None,
        ..Scenario::early(0)
    });
    made.peer_got(&Segment {
        stamps: Some((902, 51)),
        ..Scenario::early(0)
    });
    made.peer_got(&Segment {
        stamps: Some((901, 52)),
        ..Scenario::early(0)
    });
    let mut expected = vec![
        Violation::NoTimestamps,
        Violation::WrongTsval(902),
        Violation::WrongTsecr(52),
    ];
    made.has(&expected);
    // A peer would discard a timestamp that the guest has passed (RFC 7323 5.3).
    for tsval in [902, 903] {
        made.now += REORDERED;
        made.guest_acks(0, tsval, 51);
    }
    made.peer_got(&Segment {
        stamps: Some((900, 51)),
        ..Scenario::early(0)
    });
    expected.push(Violation::WrongTsval(900));
    made.has(&expected);
}

#[test]
fn a_wrong_checksum_is_reported_wherever_it_is_seen() {
    let mut made = Scenario::new();
    let wrong = Segment {
        sound: false,
        ..Scenario::early(0)
    };
    made.checker.peer_sends(&wrong);
    made.checker.guest_got(&wrong);
    made.checker.guest_sends(&wrong, made.now);
    made.checker.peer_got(&wrong, made.now);
    made.has(&[Violation::Checksum; 4]);
}

#[test]
fn ports_may_be_used_again() {
    let mut made = Scenario::new();
    made.peer_got(&Scenario::early(3000));
    made.guest_got(0, 3000);
    let syn = Segment {
        flags: SYN,
        scale: None,
        stamps: None,
        ..segment(77, 0, 0)
    };
    made.checker.peer_sends(&syn);
    let syn_ack = Segment {
        flags: SYN | ACK,
        stamps: None,
        ..segment(5000, 78, 0)
    };
    made.checker.guest_sends(&syn_ack, made.now);
    let mut early = segment(5001, 178, 0);
    early.stamps = None;
    early.window = 0;
    made.peer_got(&early);
    made.checker.guest_got(&Segment {
        stamps: None,
        ..segment(78, 5001, 100)
    });
    made.checker.settle();
    made.has(&[]);
    // Neither side scales its window after this.
    early.ack += 1;
    made.peer_got(&early);
    made.has(&[Violation::BeyondEdge(1), Violation::WindowBeyondEdge(1)]);
}

#[test]
fn a_flow_whose_beginning_was_not_seen_is_not_judged() {
    let mut made = Scenario::new();
    made.checker.begin_phase(0);
    made.peer_got(&Scenario::early(9000));
    made.checker.settle();
    made.has(&[]);
}
