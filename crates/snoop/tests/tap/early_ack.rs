//! Which segments are acknowledged early, and how.

use taut_snoop::wire::{Config, Mode};

use crate::checker::tsecr;
use crate::conn::{Conn, Terms};
use crate::rig::{Checksum, Rig};

pub(crate) const ON: Config = Config {
    on: true,
    buf_size: 0,
    guest_rcvbuf: 0,
    start_early: false,
    ecn: false,
    ring: 0,
    sharing: 0,
    awake_ticks: 0,
    exposure: u32::MAX,
    exposure_ticks: u32::MAX,
    distrusted: 0,
    guest_mac: None,
    by_address: false,
    guest_ttl: 0,
    full: false,
};

/// Three segments are acknowledged while the guest does not read, each as the guest would.
fn three_segments(rig: &mut Rig, terms: Terms, len: usize) {
    let mut conn = Conn::new(terms);
    conn.open_and_prove(rig);
    let scale = terms.scale.unwrap_or(0);
    let edge = conn.guest_ack.wrapping_add(terms.window >> scale << scale);
    for _ in 0..3 {
        let data = conn.data(len);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), [conn.early(conn.peer_seq, edge)]);
    }
    assert_eq!(rig.at_guest().len(), 3);
    assert_eq!(rig.flow().mode, Mode::Active);
    assert_eq!(rig.flow().acked_segments, 3);
    rig.checker.settle();
}

#[test]
fn segments_in_order_are_acknowledged_as_by_the_guest() {
    for v6 in [false, true] {
        for checksum in [Checksum::Full, Checksum::Partial] {
            for timestamps in [false, true] {
                let mut rig = Rig::new(500, ON);
                (rig.v6, rig.checksum) = (v6, checksum);
                let terms = Terms {
                    timestamps,
                    ..Terms::default()
                };
                three_segments(&mut rig, terms, 1448);
            }
        }
    }
}

#[test]
fn a_frame_of_many_segments_gets_one_ack() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, ON);
        rig.v6 = v6;
        let terms = Terms {
            window: 200_000,
            ..Terms::default()
        };
        three_segments(&mut rig, terms, 60_000);
    }
}

#[test]
fn every_window_scale_and_segment_size_works() {
    for scale in 0..=14 {
        let mut rig = Rig::new(500, ON);
        let terms = Terms {
            scale: Some(scale),
            window: 65_535 << scale.min(4),
            ..Terms::default()
        };
        three_segments(&mut rig, terms, 1000);
    }
    for mss in [536, 1460, 4000, 8948] {
        let mut rig = Rig::new(500, ON);
        rig.mss = mss;
        let terms = Terms {
            mss: mss as u16,
            ..Terms::default()
        };
        three_segments(&mut rig, terms, mss);
    }
    let mut rig = Rig::new(500, ON);
    let terms = Terms {
        scale: None,
        ..Terms::default()
    };
    three_segments(&mut rig, terms, 1448);
}

#[test]
fn sequence_numbers_may_wrap() {
    for before in 0..6 {
        let mut rig = Rig::new(500, ON);
        let terms = Terms {
            peer_isn: 0u32.wrapping_sub(1448 * before + 3),
            guest_isn: u32::MAX,
            ..Terms::default()
        };
        three_segments(&mut rig, terms, 1448);
    }
}

#[test]
fn an_early_ack_echoes_the_segments_timestamp() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    for _ in 0..2 {
        let data = conn.data(1000);
        rig.peer_sends(&data);
        let [ack] = &rig.at_peer()[..] else {
            panic!("one acknowledgement for one segment")
        };
        assert_eq!(tsecr(&ack.options), Some(conn.peer_clock));
    }
}

#[test]
fn nothing_beyond_the_guests_right_edge_is_acknowledged() {
    let mut rig = Rig::new(500, ON);
    let terms = Terms {
        scale: None,
        window: 5000,
        ..Terms::default()
    };
    let mut conn = Conn::new(terms);
    conn.open_and_prove(&mut rig);
    let edge = conn.guest_ack + 5000;
    for _ in 0..3 {
        let data = conn.data(1448);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), [conn.early(conn.peer_seq, edge)]);
    }
    // 656 bytes are left.
    let data = conn.data(657);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.flow().mode, Mode::NoBuf);
    assert_eq!(rig.exits("beyond_window"), 1);
    assert_eq!(rig.at_guest().len(), 4, "it is the guest's to decide");
    rig.checker.settle();
}

#[test]
fn a_segment_that_the_ring_refuses_is_not_acknowledged() {
    let mut rig = Rig::new(8, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut acked = 0;
    for _ in 0..12 {
        let data = conn.data(1448);
        rig.peer_sends(&data);
        acked += rig.at_peer().len();
    }
    assert_eq!(rig.exits("ring_full"), 1, "the others are out of order");
    assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
    assert_eq!(rig.at_guest().len(), acked);
    rig.checker.settle();
    // The guest has acknowledged it, and the peer retransmits the lost one.
    let ack = conn.guest_acks(rig.flow().next_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    conn.peer_seq = ack.ack;
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    assert_eq!(rig.flow().mode, Mode::Active);
}

#[test]
fn many_small_segments_are_charged_as_full_ones() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut acked = 0;
    for _ in 0..100 {
        let data = conn.data(10);
        rig.peer_sends(&data);
        acked += rig.at_peer().len();
    }
    // An eighth more, and one.
    assert!(
        (45..=50).contains(&acked),
        "{acked} of 1.125 x 64000 / 1460"
    );
    assert_eq!(rig.exits("budget"), 1);
}

#[test]
fn a_window_is_acknowledged_to_its_last_byte() {
    for timestamps in [false, true] {
        let terms = Terms {
            timestamps,
            window: 1 << 20,
            ..Terms::default()
        };
        let full = if timestamps { 1448 } else { 1460 };
        let mut rig = Rig::new(1000, ON);
        let mut conn = Conn::new(terms);
        conn.open_and_prove(&mut rig);
        let edge = conn.guest_ack.wrapping_add(1 << 20);
        while conn.peer_seq != edge {
            let left = edge.wrapping_sub(conn.peer_seq) as usize;
            let data = conn.data(left.min(full));
            rig.peer_sends(&data);
            let acks = rig.at_peer();
            assert_eq!(acks.len(), 1, "{left} bytes before the edge");
        }
        rig.at_guest();
        rig.checker.settle();
    }
}

/// The overhead of small segments is released, even if the guest always has unacknowledged data.
#[test]
fn a_flow_that_is_never_idle_does_not_use_up_its_window() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut before = None;
    for round in 0..200 {
        let between = conn.peer_seq;
        for len in [1448, 100, 1448, 100] {
            let data = conn.data(len);
            rig.peer_sends(&data);
            assert_eq!(rig.at_peer().len(), 1, "round {round}");
        }
        rig.at_guest();
        // It is always a round behind. (A number that it repeats could mean that it lacks what follows.)
        if let Some(before) = before.replace(between) {
            let ack = conn.guest_acks(before);
            rig.guest_sends(&ack);
            rig.at_peer();
        }
    }
    rig.checker.settle();
}

#[test]
fn the_checksum_is_verified_for_every_length() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, ON);
        rig.v6 = v6;
        rig.mss = 9000;
        let terms = Terms {
            window: 1 << 20,
            mss: 100,
            ..Terms::default()
        };
        let mut conn = Conn::new(terms);
        conn.open_and_prove(&mut rig);
        for len in (1..9).chain(470..530).chain(990..1030).chain([1448, 8928]) {
            let data = conn.data(len);
            rig.peer_sends(&data);
            assert_eq!(rig.at_peer().len(), 1, "{len} bytes");
        }
        assert_eq!(rig.exits("checksum"), 0);
    }
}

#[test]
fn a_segment_whose_checksum_is_wrong_is_not_acknowledged() {
    for v6 in [false, true] {
        for len in [1, 512, 1447, 1448] {
            let mut rig = Rig::new(500, ON);
            rig.v6 = v6;
            let mut conn = Conn::new(Terms::default());
            conn.open_and_prove(&mut rig);
            rig.checksum = Checksum::Wrong;
            let data = conn.data(len);
            rig.peer_sends(&data);
            assert_eq!(rig.at_peer(), []);
            assert_eq!(rig.exits("checksum"), 1);
            assert_eq!(rig.flow().mode, Mode::UnexpectedSeq);
            // It is retransmitted, and this time arrives intact.
            rig.checksum = Checksum::Full;
            rig.empty_unread();
            rig.peer_sends(&data);
            assert_eq!(rig.at_peer().len(), 1);
            assert_eq!(rig.flow().mode, Mode::Active);
        }
    }
}

#[test]
fn no_window_is_wider_than_the_buffer() {
    let config = Config {
        buf_size: 10_000,
        ..ON
    };
    let mut rig = Rig::new(500, config);
    let terms = Terms {
        scale: None,
        ..Terms::default()
    };
    let mut conn = Conn::new(terms);
    let syn = conn.syn();
    rig.peer_sends(&syn);
    let syn_ack = conn.syn_ack();
    rig.guest_sends(&syn_ack);
    assert_eq!(rig.at_peer()[0].window, 10_000);
    rig.at_guest();
    let first = conn.data(100);
    rig.peer_sends(&first);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    let seen = rig.at_peer();
    assert_eq!((seen[0].ack, seen[0].window), (ack.ack, 10_000));
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer()[0].window, 10_000);
}

#[test]
fn growth_goes_beyond_the_guests_window_and_not_beyond_its_buffer() {
    let config = Config {
        guest_rcvbuf: 100_000,
        ..ON
    };
    let mut rig = Rig::new(500, config);
    let terms = Terms {
        window: 14_592,
        ..Terms::default()
    };
    let mut conn = Conn::new(terms);
    conn.open_and_prove(&mut rig);
    let from = conn.guest_ack;
    let mut told = 0;
    for _ in 0..100 {
        let data = conn.data(1448);
        rig.peer_sends(&data);
        let Some(ack) = rig.at_peer().pop() else {
            break;
        };
        told = ack.ack.wrapping_sub(from);
    }
    assert!(told > 14_592, "{told} bytes: no more than the window");
    assert!((90_000..=100_000).contains(&told), "{told} bytes");
}

#[test]
fn tags_of_vlans_stay_with_their_flows() {
    for (v6, checksum, len) in [
        (false, Checksum::Full, 1448),
        (true, Checksum::Partial, 1428),
        (false, Checksum::Partial, 20_000),
    ] {
        let mut rig = Rig::new(500, ON);
        rig.vlan = Some(5);
        (rig.v6, rig.checksum) = (v6, checksum);
        three_segments(&mut rig, Terms::default(), len);
        let flows = rig.program.as_ref().unwrap().flows().unwrap();
        assert_eq!(flows[0].0.vlan, Some(5));
    }
}

#[test]
fn a_frame_that_the_tap_gets_in_parts_is_not_acknowledged() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, ON);
        rig.v6 = v6;
        rig.guest.set_segmentation_offload(false).unwrap();
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        // Each part may be lost, and only the last one's result would be known.
        let data = conn.data(20_000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), []);
        assert_eq!(rig.exits("in_parts"), 1);
        assert_eq!(rig.at_guest().len(), 20_000usize.div_ceil(rig.mss));
        // The guest has not acknowledged it yet. The next one's cause is the same.
        let data = conn.data(20_000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), []);
        assert_eq!(rig.exits("in_parts"), 2);
        rig.at_guest();
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        rig.at_peer();
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), 1, "single segments are");
    }
}

#[test]
fn no_flow_gets_a_window_beyond_its_share_of_the_ring() {
    let mut rig = Rig::new(100, Config { ring: 40, ..ON });
    let terms = |port| Terms {
        scale: None,
        window: 10_000,
        mss: 1000,
        port,
        ..Terms::default()
    };
    // Alone: forty segments.
    let mut first = Conn::new(terms(5000));
    first.open_and_prove(&mut rig);
    first.terms.window = 65_535;
    let wider = first.guest_acks(first.peer_seq);
    rig.guest_sends(&wider);
    assert_eq!(rig.at_peer()[0].window, 40_000);
    let data = first.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer()[0].window, 39_000);
    rig.at_guest();
    // Of two each has twenty.
    rig.configure(Config {
        sharing: 2,
        ring: 40,
        ..ON
    });
    let mut second = Conn::new(terms(5001));
    second.open_and_prove(&mut rig);
    for _ in 0..2 {
        let data = second.data(1000);
        rig.peer_sends(&data);
    }
    rig.at_peer();
    let data = first.data(1000);
    rig.peer_sends(&data);
    assert_eq!(
        rig.at_peer()[0].window,
        38_000,
        "what was told is not taken back"
    );
    rig.at_guest();
    second.terms.window = 65_535;
    let wider = second.guest_acks(second.guest_ack + 1000);
    rig.guest_sends(&wider);
    let seen = rig.at_peer();
    assert_eq!((seen[0].ack, seen[0].window), (second.peer_seq, 19_000));
    // When the other has no more data there, it gets all of it.
    rig.configure(Config { ring: 40, ..ON });
    let data = second.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer()[0].window, 38_000);
}

#[test]
fn a_small_buffer_closes_no_open_window() {
    for scale in [7, 12, 14] {
        let config = Config {
            buf_size: 4096,
            ring: 8,
            sharing: 100,
            ..ON
        };
        let mut rig = Rig::new(500, config);
        let terms = Terms {
            scale: Some(scale),
            window: 1 << 20,
            ..Terms::default()
        };
        let mut conn = Conn::new(terms);
        conn.open_and_prove_narrowed(&mut rig);
        for _ in 0..20 {
            let data = conn.data(1000);
            rig.peer_sends(&data);
            let acks = rig.at_peer();
            assert!(acks[0].window > 0, "scale {scale}");
            rig.at_guest();
            let ack = conn.guest_acks(conn.peer_seq);
            rig.guest_sends(&ack);
            // (Without news it is dropped.)
            for ack in rig.at_peer() {
                assert!(ack.window > 0, "scale {scale}");
            }
        }
    }
}

#[test]
fn a_segment_that_the_guest_would_not_accept_is_not_acknowledged() {
    for odd in 0..4 {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        let mut data = conn.data(1000);
        match odd {
            0 => data.ack = conn.guest_seq + 1_000_000,
            1 => data.ack = conn.guest_seq.wrapping_sub(1 << 30),
            2 => data.ack = conn.guest_seq.wrapping_sub(1),
            _ => rig.to_mac = Some([2, 0, 0, 0, 0, 9]),
        }
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer(), [], "{odd}");
        assert_eq!(rig.exits("misdirected"), 1, "{odd}");
        rig.to_mac = None;
        data.ack = conn.guest_seq;
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), 1, "{odd}: the right one is");
    }
}

#[test]
fn a_super_frame_beyond_the_devices_limit_is_not_acknowledged() {
    let mut rig = Rig::new(500, ON);
    rig.ip("link set guest gso_max_size 16000");
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(20_000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.exits("in_parts"), 1);
}

#[test]
fn a_ring_of_millions_of_places_narrows_no_window() {
    // With segments of 1000, 32 bits wrap to 296 bytes.
    let mut rig = Rig::new(
        100,
        Config {
            ring: 4_294_968,
            ..ON
        },
    );
    let mut conn = Conn::new(Terms {
        scale: None,
        window: 10_000,
        mss: 1000,
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    conn.terms.window = 65_535;
    let wider = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&wider);
    assert_eq!(rig.at_peer(), [wider]);
}

#[test]
fn the_largest_segments_and_frames_work() {
    for v6 in [false, true] {
        let mut rig = Rig::new(500, ON);
        rig.v6 = v6;
        for device in ["guest", "peer", "bridge"] {
            rig.ip(&format!("link set {device} mtu 9200"));
        }
        rig.mss = 9000;
        let terms = Terms {
            mss: 9000,
            window: 1 << 20,
            ..Terms::default()
        };
        let mut conn = Conn::new(terms);
        conn.open_and_prove(&mut rig);
        let edge = conn.guest_ack + terms.window;
        // An MSS of 9000, and a frame (GSO) as long as the device takes it whole.
        let most = 65_535 - 14 - if v6 { 40 + 32 } else { 20 + 32 };
        for len in [9000, most, 9000] {
            let data = conn.data(len);
            rig.peer_sends(&data);
            assert_eq!(rig.at_peer(), [conn.early(conn.peer_seq, edge)], "{len}");
            assert_eq!(rig.at_guest(), [data]);
        }
        rig.checker.settle();
    }
}
