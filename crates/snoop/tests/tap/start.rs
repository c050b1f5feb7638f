//! How a flow begins: by its handshake, or in its middle.

use std::time::Duration;

use taut_snoop::wire::{Bypass, Config, Mode};

use crate::checker::tsval;
use crate::conn::{Conn, Terms};
use crate::early_ack::ON;
use crate::rig::{FLOWS, Rig, rest};

const EARLY: Config = Config {
    start_early: true,
    ..ON
};

#[test]
fn before_the_guest_confirms_the_connection_there_are_no_early_acks() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open(&mut rig);
    for _ in 0..5 {
        let data = conn.data(1448);
        rig.peer_sends(&data);
    }
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.flow().mode, Mode::Unproven);
    let seen = rig.at_guest();
    assert_eq!(seen.len(), 5);
    // Its first ACK confirms the connection, and the data it covers.
    let two = conn.guest_acks(seen[2].seq);
    rig.guest_sends(&two);
    assert_eq!(rig.at_peer(), [two]);
    let all = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&all);
    rig.at_peer();
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    assert_eq!(rig.flow().mode, Mode::Active);
    rig.at_guest();
    rig.checker.settle();
}

/// The accept queue is full: the guest drops the end of the handshake and the data with it.
#[test]
fn data_that_a_full_accept_queue_dropped_is_not_acknowledged_later() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open(&mut rig);
    let first = conn.data(1000);
    rig.peer_sends(&first);
    for _ in 0..7 {
        let lost = conn.data(1000);
        rig.peer_sends(&lost);
    }
    rig.empty_unread();
    // The peer retransmits the first segment, and this time there is room.
    rig.peer_sends(&first);
    assert_eq!(rig.at_peer(), []);
    rig.at_guest();
    let ack = conn.guest_acks(first.seq + 1000);
    rig.guest_sends(&ack);
    assert_eq!(rig.at_peer(), [ack]);
    rig.checker.settle();
}

#[test]
fn only_the_guest_confirms_a_connection() {
    // Out of order, without timestamps, beyond the window: and then the first.
    for strange in 0..3 {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        conn.open(&mut rig);
        let first = conn.data(1000);
        let mut other = conn.data(1000);
        match strange {
            0 => {}
            1 => (other.seq, other.options) = (first.seq, Vec::new()),
            _ => (other.seq, other.len) = (first.seq, 65_000),
        }
        rig.peer_sends(&other);
        rig.peer_sends(&first);
        assert_eq!(rig.at_peer(), [], "{strange}");
        assert_eq!(rig.flow().mode, Mode::Unproven);
    }
}

#[test]
fn a_guest_that_opens_connections_is_served_too() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    let mut syn = conn.syn_ack();
    (syn.flags, syn.ack) = (crate::rig::SYN, 0);
    rig.guest_sends(&syn);
    let mut syn_ack = conn.syn();
    (syn_ack.flags, syn_ack.ack) = (crate::rig::SYN | crate::rig::ACK, conn.guest_seq);
    // A forged answer comes first.
    let mut forged = syn_ack.clone();
    (forged.ack, forged.seq) = (conn.guest_seq + 7, 99);
    rig.peer_sends(&forged);
    rig.peer_sends(&syn_ack);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let data = conn.data(1000);
    rig.peer_sends(&data);
    let seen = rig.at_peer();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].ack, conn.peer_seq);
}

#[test]
fn a_forged_syn_or_reset_changes_no_flow() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let mut syn = conn.data(0);
    (syn.flags, syn.seq, syn.ack, syn.options) =
        (crate::rig::SYN, 0x7777_7777, 0, conn.syn_options(false));
    rig.peer_sends(&syn);
    let mut reset = conn.data(0);
    (reset.flags, reset.seq) = (crate::rig::RST, 0x7777_7777);
    rig.peer_sends(&reset);
    // A challenge (RFC 5961 4.2).
    let challenge = conn.guest_acks(conn.guest_ack);
    rig.guest_sends(&challenge);
    rig.at_peer();
    rig.at_guest();
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    assert_eq!(rig.flow().mode, Mode::Active);
}

#[test]
fn a_forged_timestamp_stops_no_flow() {
    for data in [0, 1000] {
        let mut rig = Rig::new(500, ON);
        let mut conn = Conn::new(Terms::default());
        conn.open_and_prove(&mut rig);
        let mut forged = conn.data(0);
        (forged.len, forged.seq) = (data, forged.seq.wrapping_add(1 << 30));
        let clock = conn.peer_clock;
        conn.peer_clock = clock.wrapping_add(i32::MAX as u32);
        forged.options = conn.options(false);
        conn.peer_clock = clock;
        rig.peer_sends(&forged);
        rig.at_guest();
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), 1);
    }
}

#[test]
fn data_from_the_guest_confirms_the_connection() {
    let mut rig = Rig::new(500, ON);
    let mut conn = Conn::new(Terms::default());
    conn.open(&mut rig);
    let greeting = conn.guest_data(20);
    rig.guest_sends(&greeting);
    assert_eq!(rig.at_peer(), [greeting]);
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn start_early_acknowledges_the_first_segment_of_one_handshake_at_a_time() {
    let mut rig = Rig::new(500, EARLY);
    let mut first = Conn::new(Terms::default());
    let mut second = Conn::new(Terms {
        port: 5001,
        ..Terms::default()
    });
    first.open(&mut rig);
    second.open(&mut rig);
    let data = second.data(1448);
    rig.peer_sends(&data);
    assert_eq!(
        rig.at_peer(),
        [],
        "another is before it in the accept queue"
    );
    let data = first.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    rig.at_guest();
    // Both connections exist now, so the next one is alone.
    for conn in [&mut first, &mut second] {
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
    }
    rig.at_peer();
    let mut third = Conn::new(Terms {
        port: 5002,
        ..Terms::default()
    });
    third.open(&mut rig);
    let data = third.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    rig.at_guest();
    rig.checker.settle();
}

#[test]
fn a_repeated_syn_ack_is_one_handshake() {
    let mut rig = Rig::new(500, EARLY);
    let mut conn = Conn::new(Terms::default());
    let syn = conn.syn();
    rig.peer_sends(&syn);
    let syn_ack = conn.syn_ack();
    rig.guest_sends(&syn_ack);
    rig.guest_sends(&syn_ack);
    assert_eq!(rig.at_peer().len(), 2);
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let mut next = Conn::new(Terms {
        port: 5001,
        ..Terms::default()
    });
    next.open(&mut rig);
    let data = next.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn in_mid_flow_early_acks_wait_for_a_known_window() {
    let mut rig = Rig::new(500, ON);
    rig.detach();
    let terms = Terms {
        window: 64_000,
        scale: Some(7),
        ..Terms::default()
    };
    let mut conn = Conn::new(terms);
    conn.open_and_prove(&mut rig);
    rig.attach_anew(ON);
    // 64000 >> 7 is 500: the known lower bound of the window is 500 bytes.
    let mut early = 0;
    for _ in 0..40 {
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        assert_eq!(rig.at_peer(), [ack]);
        for _ in 0..4 {
            let data = conn.data(1448);
            rig.peer_sends(&data);
            early += rig.at_peer().len();
        }
        rig.at_guest();
        rig.checker.settle();
    }
    assert!(early > 0, "its scale was never found out");
    assert_eq!(rig.flow().mode, Mode::Active);
}

#[test]
fn in_mid_flow_there_are_no_early_acks_before_the_guest_is_heard() {
    let mut rig = Rig::new(500, ON);
    rig.detach();
    let mut conn = Conn::new(Terms {
        scale: None,
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    rig.attach_anew(ON);
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    assert_eq!(rig.exits("no_flow"), 1);
    // And a window without scale is known at once.
    rig.at_guest();
    // A pure ACK may end the handshake of a connection that finds no place.
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer(), []);
    rig.at_guest();
    let ack = conn.guest_acks(conn.peer_seq);
    rig.guest_sends(&ack);
    rig.at_peer();
    let data = conn.data(1448);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
}

#[test]
fn a_short_connection_frees_its_place() {
    let mut rig = Rig::new(500, EARLY);
    for port in 5000..5003 {
        let mut conn = Conn::new(Terms {
            port,
            ..Terms::default()
        });
        conn.open(&mut rig);
        let data = conn.data(1448);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), 1, "port {port}");
        // The sender finishes before the guest sends anything.
        let mut fin = conn.data(0);
        fin.flags |= crate::rig::FIN;
        rig.peer_sends(&fin);
        rig.at_guest();
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        rig.at_peer();
    }
}
#[test]
fn in_mid_flow_the_guests_timestamps_may_start_anywhere() {
    // A TSval may start anywhere (RFC 7323 5.4), and signed comparison with 0 is no order.
    for clock in [700, 0x7fff_ff00, 0x8000_0001, 0xffff_ff00] {
        let mut rig = Rig::new(500, ON);
        rig.detach();
        let mut conn = Conn::new(Terms {
            scale: None,
            ..Terms::default()
        });
        conn.guest_clock = clock;
        conn.open_and_prove(&mut rig);
        rig.attach_anew(ON);
        let ack = conn.guest_data(1);
        rig.guest_sends(&ack);
        rig.at_peer();
        let data = conn.data(1448);
        rig.peer_sends(&data);
        let [early] = &rig.at_peer()[..] else {
            panic!("one acknowledgement for one segment")
        };
        assert_eq!(tsval(&early.options), tsval(&ack.options), "{clock}");
    }
}

#[test]
fn in_mid_flow_nothing_grows() {
    let grows = Config {
        guest_rcvbuf: 1 << 20,
        ..ON
    };
    let mut rig = Rig::new(500, ON);
    rig.detach();
    let mut conn = Conn::new(Terms {
        window: 256_000,
        scale: Some(7),
        ..Terms::default()
    });
    conn.open_and_prove(&mut rig);
    rig.attach_anew(grows);
    let mut acked = 0;
    for _ in 0..40 {
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        let edge = ack.ack.wrapping_add(256_000);
        rig.at_peer();
        for _ in 0..20 {
            let data = conn.data(1448);
            rig.peer_sends(&data);
            for early in rig.at_peer() {
                // By the sender's scale.
                let told = early.ack.wrapping_add(u32::from(early.window) << 7);
                let over = told.wrapping_sub(edge).cast_signed();
                assert!(over <= 0, "told {over} bytes beyond what the guest offers");
                acked += 1;
            }
        }
        rig.at_guest();
        rig.checker.settle();
    }
    assert!(acked > 0, "nothing was tried");
}

/// A connection in mid-flow, in which the guest's window has no scale and the guest has sent a byte.
fn unscaled_midflow(rig: &mut Rig) -> Conn {
    rig.detach();
    let mut conn = Conn::new(Terms {
        scale: None,
        window: 6000,
        ..Terms::default()
    });
    conn.open_and_prove(rig);
    rig.attach_anew(ON);
    let word = conn.guest_data(1);
    rig.guest_sends(&word);
    rig.at_peer();
    conn
}

#[test]
fn in_mid_flow_what_the_guest_offered_before_it_was_seen_shows_no_scale() {
    let mut rig = Rig::new(500, ON);
    let mut conn = unscaled_midflow(&mut rig);
    // Sent by a window that the guest has retracted since, and that it still takes.
    let echo = conn.guest_clock - 1;
    for _ in 0..6 {
        for _ in 0..10 {
            let clock = std::mem::replace(&mut conn.guest_clock, echo);
            let data = conn.data(1000);
            conn.guest_clock = clock;
            rig.peer_sends(&data);
        }
        rig.at_guest();
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        rig.at_peer();
    }
    let edge = conn.guest_ack.wrapping_add(6000);
    assert_eq!(rig.flow().rcv_edge, edge, "by its scale, which is none");
    for _ in 0..8 {
        let data = conn.data(1000);
        rig.peer_sends(&data);
    }
    let told = rig.at_peer().iter().map(|ack| ack.ack).max().unwrap();
    assert!(edge.wrapping_sub(told).cast_signed() >= 0);
}

#[test]
fn in_mid_flow_no_scale_is_larger_than_those_in_the_guests_syns() {
    let mut rig = Rig::new(500, ON);
    let mut conn = unscaled_midflow(&mut rig);
    let mut other = Conn::new(Terms {
        scale: Some(1),
        port: 5001,
        ..Terms::default()
    });
    other.open(&mut rig);
    for _ in 0..6 {
        // The sender ignores the guest's window, and the guest takes all of it.
        for _ in 0..20 {
            let data = conn.data(1000);
            rig.peer_sends(&data);
        }
        rig.at_guest();
        let ack = conn.guest_acks(conn.peer_seq);
        rig.guest_sends(&ack);
        rig.at_peer();
    }
    let flows = rig.program.as_ref().unwrap().flows().unwrap();
    let (_, flow) = flows
        .iter()
        .find(|(key, _)| key.peer.port() == 5000)
        .unwrap();
    assert_eq!(flow.rcv_edge, conn.guest_ack.wrapping_add(6000 << 1));
}

#[test]
fn in_mid_flow_a_retracted_window_ends_early_acks() {
    let mut rig = Rig::new(500, ON);
    let mut conn = unscaled_midflow(&mut rig);
    conn.terms.window = 0;
    let shut = conn.guest_acks(conn.guest_ack);
    rig.guest_sends(&shut);
    assert_eq!(rig.at_peer(), [shut]);
    assert_eq!(rig.flow().mode, Mode::Bypass(Bypass::Retracted));
}

/// A flow with a packet within a tenth of a second is not idle.
const RECENT: Duration = Duration::from_millis(120);

/// Anyone can have a listener of the guest answer SYNs.
#[test]
fn idle_flows_make_room_for_new_ones() {
    let mut rig = Rig::new(500, ON);
    let flows = |rig: &Rig| rig.program.as_ref().unwrap().flows().unwrap().len();
    for port in 0..FLOWS as u16 {
        let mut unproven = Conn::new(Terms {
            port: 10_000 + port,
            ..Terms::default()
        });
        unproven.open(&mut rig);
    }
    assert_eq!(flows(&rig), FLOWS as usize, "the table is full");
    rest(RECENT);
    let mut conn = Conn::new(Terms::default());
    conn.open_and_prove(&mut rig);
    let data = conn.data(1000);
    rig.peer_sends(&data);
    assert_eq!(rig.at_peer().len(), 1);
    assert_eq!(flows(&rig), FLOWS as usize);
}

/// So do the connections that a load balancer's checks reset.
#[test]
fn flows_that_clients_have_reset_make_room_for_new_ones() {
    let mut rig = Rig::new(500, ON);
    for port in 0..2 * FLOWS as u16 {
        if port == FLOWS as u16 {
            rest(RECENT);
        }
        let mut conn = Conn::new(Terms {
            port: 10_000 + port,
            ..Terms::default()
        });
        conn.open_and_prove(&mut rig);
        let data = conn.data(1000);
        rig.peer_sends(&data);
        assert_eq!(rig.at_peer().len(), 1, "connection {port}");
        let mut reset = conn.data(0);
        reset.flags = crate::rig::RST;
        rig.peer_sends(&reset);
        rig.empty_unread();
    }
}
