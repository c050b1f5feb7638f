//! Tests of sessions in virtual time.

use super::*;
use crate::forwarding::sim::{SimBuffers, SimLeg};

const ROOM: usize = 1 << 20;

struct Bench {
    session: Session<SimLeg>,
    io: SimBuffers,
    timeouts: Timeouts,
    start: Instant,
    now: Instant,
}

impl Bench {
    /// A session whose upstream leg is connecting.
    fn connecting() -> Self {
        let now = Instant::now();
        let timeouts = Timeouts {
            idle: None,
            first_byte: None,
            ..Timeouts::default()
        };
        let mut session = Session::new(SimLeg::default(), now);
        session.dialled(SimLeg::default(), now + timeouts.connect);
        Self {
            session,
            io: SimBuffers::new(Some(8), 4, 16),
            timeouts,
            start: now,
            now,
        }
    }

    /// A session with room on both legs.
    fn relaying() -> Self {
        let mut bench = Self::connecting();
        bench.report(Side::Client, |leg| leg.make_room(ROOM));
        bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
        assert_eq!(bench.drive(), Step::Wait);
        bench
    }

    fn leg(&self, side: Side) -> &SimLeg {
        match side {
            Side::Client => &self.session.client,
            Side::Upstream => self.session.upstream.as_ref().unwrap(),
        }
    }

    fn report(&mut self, side: Side, what: impl FnOnce(&SimLeg) -> Readiness) {
        let ready = what(self.leg(side));
        self.session.handle(side, ready);
    }

    fn drive(&mut self) -> Step {
        self.session.drive(self.now, &self.timeouts, &mut self.io)
    }

    /// Advances time to the session's next deadline and drives it.
    fn run_to_deadline(&mut self) -> Step {
        self.now = self
            .session
            .deadline(&self.timeouts)
            .expect("no deadline")
            .max(self.now);
        self.drive()
    }

    /// Drives the session at every deadline until it is over.
    fn run_to_the_end(&mut self) -> Step {
        for _ in 0..100_000 {
            match self.run_to_deadline() {
                Step::Wait | Step::Again => {}
                over => return over,
            }
        }
        panic!("the session never ends");
    }

    /// Returns, once, why the relay is taken for broken, and for how long it has been.
    fn fault(&mut self) -> Option<(Errno, Duration)> {
        let fault = self.session.take_relay_fault()?;
        Some((fault.error, self.now - fault.since))
    }

    fn passed(&self) -> Duration {
        self.now - self.start
    }
}

const SIDES: [(Side, Side, End); 2] = [
    (Side::Client, Side::Upstream, End::ClientReset),
    (Side::Upstream, Side::Client, End::UpstreamReset),
];

#[test]
fn an_idle_session_has_no_deadline_if_its_idle_time_is_not_limited() {
    let bench = Bench::relaying();
    assert_eq!(bench.session.deadline(&bench.timeouts), None);
}

#[test]
fn what_waits_is_looked_at_once_much_has_moved() {
    let mut bench = Bench::relaying();
    let little = vec![0; usize::try_from(BEGIN).unwrap() - 1];
    bench.report(Side::Client, |leg| leg.arrive(&little));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.session.deadline(&bench.timeouts), None);
    bench.report(Side::Client, |leg| leg.arrive(b"x"));
    assert_eq!(bench.drive(), Step::Wait);
    assert!(bench.session.deadline(&bench.timeouts).is_some());
    // Nothing more comes.
    assert_eq!(bench.run_to_deadline(), Step::Wait);
    assert_eq!(bench.session.deadline(&bench.timeouts), None);
}

#[test]
fn an_unanswered_connect_times_out() {
    let mut bench = Bench::connecting();
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.run_to_deadline(), Step::Redial(Errno::TIMEDOUT));
    assert_eq!(bench.passed(), bench.timeouts.connect);
}

#[test]
fn a_connect_that_fails_says_why() {
    let mut bench = Bench::connecting();
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNREFUSED));
    assert_eq!(bench.drive(), Step::Redial(Errno::CONNREFUSED));
}

#[test]
fn the_next_address_starts_afresh() {
    let mut bench = Bench::connecting();
    bench.report(Side::Client, |leg| leg.arrive(b"early"));
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNREFUSED));
    assert_eq!(bench.drive(), Step::Redial(Errno::CONNREFUSED));
    bench
        .session
        .dialled(SimLeg::default(), bench.now + bench.timeouts.connect);
    assert_eq!(bench.drive(), Step::Wait);
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.leg(Side::Upstream).sent(), b"early");
}

#[test]
fn a_client_that_fails_while_connecting_ends_it() {
    let mut bench = Bench::connecting();
    bench.report(Side::Client, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Broken(End::ClientReset));
}

#[test]
fn a_leg_whose_peer_no_longer_answers_is_lost_not_reset() {
    let mut bench = Bench::relaying();
    bench.report(Side::Upstream, |leg| leg.fail(Errno::TIMEDOUT));
    assert_eq!(bench.drive(), Step::Broken(End::UpstreamLost));
}

#[test]
fn a_reset_waits_for_the_bytes_ahead_of_it_to_be_acknowledged() {
    for (dead, survivor, end) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(dead, |leg| leg.arrive(b"the last words"));
        bench.report(dead, |leg| leg.fail(Errno::CONNRESET));
        assert_eq!(bench.drive(), Step::Wait);
        assert_eq!(bench.leg(survivor).sent(), b"the last words");
        assert_eq!(bench.run_to_deadline(), Step::Wait);
        bench.leg(survivor).acknowledge();
        assert_eq!(bench.run_to_deadline(), Step::Broken(end));
        assert!(!bench.leg(survivor).fin_sent());
    }
}

#[test]
fn a_reset_without_bytes_ahead_of_it_goes_at_once() {
    for (dead, survivor, end) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(dead, |leg| leg.fail(Errno::CONNRESET));
        assert_eq!(bench.drive(), Step::Broken(end));
        assert!(!bench.leg(survivor).fin_sent());
    }
}

#[test]
fn a_reset_does_not_wait_for_more_of_a_leg_that_cannot_be_read() {
    let mut bench = Bench::relaying();
    bench.report(Side::Upstream, |upstream| upstream.spoil(Errno::PROTO));
    assert_eq!(bench.drive(), Step::Broken(End::UpstreamReset));
}

#[test]
fn a_survivor_that_takes_nothing_times_out() {
    for (dead, survivor, end) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(dead, |leg| leg.arrive(b"unwanted"));
        bench.report(dead, |leg| leg.fail(Errno::CONNRESET));
        assert_eq!(bench.drive(), Step::Wait);
        assert_eq!(bench.run_to_the_end(), Step::Broken(end));
        assert!(bench.passed() >= bench.timeouts.flush);
        assert!(bench.passed() < bench.timeouts.flush + 2 * LONGEST_LOOK);
        assert!(!bench.leg(survivor).fin_sent());
    }
}

#[test]
fn a_survivor_that_fails_too_ends_it() {
    for (dead, survivor, end) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(dead, |leg| leg.arrive(b"unwanted"));
        bench.report(dead, |leg| leg.fail(Errno::CONNRESET));
        assert_eq!(bench.drive(), Step::Wait);
        bench.report(survivor, |leg| leg.fail(Errno::CONNRESET));
        assert_eq!(bench.drive(), Step::Broken(end));
    }
}

#[test]
fn a_stream_that_was_complete_before_the_reset_keeps_its_fin() {
    for (dead, survivor, end) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(dead, |leg| leg.arrive(b"all of it"));
        bench.report(dead, SimLeg::end);
        assert_eq!(bench.drive(), Step::Wait);
        bench.report(dead, |leg| leg.fail(Errno::PIPE));
        assert_eq!(bench.drive(), Step::Wait);
        bench.leg(survivor).acknowledge();
        assert_eq!(bench.run_to_deadline(), Step::Broken(end));
        assert_eq!(bench.leg(survivor).sent(), b"all of it");
        assert!(bench.leg(survivor).fin_sent());
    }
}

#[test]
fn both_ends_complete_the_session_once_nothing_is_left_unsent() {
    let mut bench = Bench::relaying();
    bench.report(Side::Client, |leg| leg.arrive(b"question"));
    bench.report(Side::Client, SimLeg::end);
    bench.report(Side::Upstream, |leg| leg.arrive(b"answer"));
    bench.report(Side::Upstream, SimLeg::end);
    assert_eq!(bench.drive(), Step::Wait);
    bench.leg(Side::Client).acknowledge();
    assert_eq!(bench.run_to_deadline(), Step::Wait);
    bench.leg(Side::Upstream).acknowledge();
    assert_eq!(bench.run_to_deadline(), Step::Done(End::Complete));
}

#[test]
fn an_unread_tail_times_out() {
    let mut bench = Bench::relaying();
    bench.report(Side::Client, |leg| leg.arrive(b"question"));
    bench.report(Side::Client, SimLeg::end);
    bench.report(Side::Upstream, SimLeg::end);
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.run_to_the_end(), Step::Broken(End::HalfClosedTimeout));
    assert!(bench.passed() >= bench.timeouts.half_closed);
}

#[test]
fn a_half_closed_session_ends_when_nothing_moves_for_too_long() {
    let mut bench = Bench::relaying();
    // An hour of silence before the end of the stream does not count.
    bench.now += Duration::from_secs(3600);
    bench.report(Side::Client, SimLeg::end);
    assert_eq!(bench.drive(), Step::Wait);
    let half = bench.timeouts.half_closed / 2;
    bench.now += half;
    bench.report(Side::Upstream, |leg| leg.arrive(b"still here"));
    assert_eq!(bench.drive(), Step::Wait);
    bench.leg(Side::Client).acknowledge();
    bench.now += half + Duration::from_secs(1);
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(
        bench.run_to_deadline(),
        Step::Broken(End::HalfClosedTimeout)
    );
}

#[test]
fn a_tail_that_is_still_being_delivered_keeps_a_half_closed_session() {
    let mut bench = Bench::relaying();
    bench.report(Side::Upstream, |leg| leg.arrive(&[7; 100]));
    bench.report(Side::Upstream, SimLeg::end);
    assert_eq!(bench.drive(), Step::Wait);
    // The client acknowledges ten bytes in every period: slow, but not stalled.
    for _ in 0..9 {
        assert_eq!(bench.run_to_deadline(), Step::Wait);
        bench.leg(Side::Client).acknowledge_some(10);
    }
    assert_eq!(bench.run_to_deadline(), Step::Wait);
    // From now on the client acknowledges none.
    assert_eq!(
        bench.run_to_deadline(),
        Step::Broken(End::HalfClosedTimeout)
    );
}

#[test]
fn an_idle_session_ends_at_its_time_and_not_before() {
    let mut bench = Bench::relaying();
    let idle = Duration::from_secs(60);
    bench.timeouts.idle = Some(idle);
    let mut last = bench.now;
    // An occasional byte in either direction keeps the session open.
    for (i, side) in [Side::Client, Side::Upstream, Side::Client]
        .into_iter()
        .enumerate()
    {
        bench.now += idle - Duration::from_secs(1);
        last = bench.now;
        bench.report(side, |leg| leg.arrive(b"."));
        assert_eq!(bench.drive(), Step::Wait, "byte {i}");
        bench.leg(Side::Client).acknowledge();
        bench.leg(Side::Upstream).acknowledge();
    }
    assert_eq!(bench.run_to_the_end(), Step::Broken(End::IdleTimeout));
    assert_eq!(bench.now, last + idle);
}

#[test]
fn a_session_in_which_nobody_says_anything_ends_soon_and_one_byte_is_enough() {
    let limit = Duration::from_secs(5);
    let relaying = || {
        let mut bench = Bench::relaying();
        bench.timeouts.first_byte = Some(limit);
        bench.timeouts.idle = Some(limit * 100);
        bench
    };
    let mut silent = relaying();
    let start = silent.now;
    assert_eq!(silent.run_to_the_end(), Step::Broken(End::FirstByteTimeout));
    assert_eq!(silent.now, start + limit);
    for side in [Side::Client, Side::Upstream] {
        let mut bench = relaying();
        bench.now += limit / 2;
        bench.report(side, |leg| leg.arrive(b"."));
        assert_eq!(bench.drive(), Step::Wait);
        bench.leg(Side::Client).acknowledge();
        bench.leg(Side::Upstream).acknowledge();
        let last = bench.now;
        assert_eq!(bench.run_to_the_end(), Step::Broken(End::IdleTimeout));
        assert_eq!(bench.now, last + limit * 100);
    }
}

#[test]
fn what_the_relay_says_first_is_not_a_byte_of_a_peer() {
    let mut bench = Bench::connecting();
    bench.timeouts.first_byte = Some(Duration::from_secs(5));
    bench.session.introduce(b"PROXY UNKNOWN\r\n".to_vec());
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    assert!(bench.session.moved().0 > 0);
    bench.leg(Side::Upstream).acknowledge();
    assert_eq!(bench.run_to_the_end(), Step::Broken(End::FirstByteTimeout));
}

#[test]
fn what_was_read_of_a_client_before_the_session_is_a_byte_of_it() {
    let mut bench = Bench::connecting();
    bench.timeouts.first_byte = Some(Duration::from_secs(5));
    bench.timeouts.idle = Some(Duration::from_secs(60));
    bench.session.begin_with(b"ClientHello".to_vec());
    bench.session.introduce(b"PROXY UNKNOWN\r\n".to_vec());
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    bench.leg(Side::Upstream).acknowledge();
    assert_eq!(bench.run_to_the_end(), Step::Broken(End::IdleTimeout));
}

#[test]
fn a_session_whose_bytes_the_kernel_still_delivers_is_not_idle() {
    let mut bench = Bench::relaying();
    bench.timeouts.idle = Some(Duration::from_secs(60));
    bench.report(Side::Upstream, |leg| leg.arrive(&[7; 100]));
    assert_eq!(bench.drive(), Step::Wait);
    for _ in 0..9 {
        assert_eq!(bench.run_to_deadline(), Step::Wait);
        bench.leg(Side::Client).acknowledge_some(10);
    }
    assert_eq!(bench.run_to_deadline(), Step::Wait);
    assert_eq!(bench.run_to_deadline(), Step::Broken(End::IdleTimeout));
}

#[test]
fn a_session_that_moves_bytes_does_not_move_its_deadline() {
    let mut bench = Bench::relaying();
    bench.timeouts.idle = Some(Duration::from_secs(60));
    let alarm = bench.session.deadline(&bench.timeouts);
    bench.now += Duration::from_secs(1);
    bench.report(Side::Client, |leg| leg.arrive(b"."));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.session.deadline(&bench.timeouts), alarm);
}

#[test]
fn a_connection_to_itself_counts_as_refused() {
    let mut bench = Bench::connecting();
    bench.leg(Side::Upstream).meet_itself();
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Redial(Errno::CONNREFUSED));
}

#[test]
fn bytes_before_a_servers_reset_arrive_even_if_both_come_at_once() {
    let mut bench = Bench::connecting();
    bench.report(Side::Client, |leg| leg.make_room(ROOM));
    bench.leg(Side::Upstream).arrive(b"421 busy");
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.leg(Side::Client).sent(), b"421 busy");
    bench.leg(Side::Client).acknowledge();
    assert_eq!(bench.run_to_deadline(), Step::Broken(End::UpstreamReset));
    assert!(!bench.leg(Side::Client).fin_sent());
}

/// A session whose streams have both ended, with an unsent tail for the client.
fn lingering() -> Bench {
    let mut bench = Bench::relaying();
    bench.report(Side::Client, SimLeg::end);
    bench.report(Side::Upstream, |leg| leg.arrive(b"tail"));
    bench.report(Side::Upstream, SimLeg::end);
    assert_eq!(bench.drive(), Step::Wait);
    bench
}

#[test]
fn complete_streams_outlive_the_process() {
    let bench = lingering();
    assert!(bench.leg(Side::Client).is_graceful());
    assert!(bench.leg(Side::Upstream).is_graceful());
    assert_eq!(bench.session.stop(), Step::Done(End::Complete));
    let open = Bench::relaying();
    assert!(!open.leg(Side::Client).is_graceful());
    assert_eq!(open.session.stop(), Step::Broken(End::Stopped));
}

#[test]
fn a_client_that_resets_before_its_tail_is_out_is_counted_as_that() {
    let mut bench = lingering();
    assert_eq!(bench.run_to_deadline(), Step::Wait);
    bench.report(Side::Client, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Done(End::ClientReset));
}

#[test]
fn a_stopped_reader_keeps_no_pipe() {
    let mut bench = Bench::connecting();
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    // Room for the copied beginning only.
    bench.report(Side::Client, |leg| leg.make_room(10));
    bench.report(Side::Upstream, |leg| leg.arrive(&[1; 8]));
    assert_eq!(bench.drive(), Step::Wait);
    bench.report(Side::Upstream, |leg| leg.arrive(&[2; 8]));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.io.lent, 1);
    for _ in 0..3 {
        if bench.session.deadline(&bench.timeouts).is_some() {
            assert_eq!(bench.run_to_deadline(), Step::Wait);
        }
    }
    assert_eq!(bench.io.lent, 0);
    bench.report(Side::Client, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    let expected = [[1; 8], [2; 8]].concat();
    assert_eq!(bench.leg(Side::Client).sent(), expected);
}

/// A session whose upstream leg came from the pool.
fn joined() -> Bench {
    let mut bench = Bench::connecting();
    bench.report(Side::Client, |leg| leg.make_room(ROOM));
    bench.session.awaits(bench.now + bench.timeouts.connect);
    bench.session.joined(SimLeg::default(), true, bench.now);
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    bench
}

#[test]
fn a_connection_that_was_dead_when_it_was_taken_is_replaced_and_nothing_is_lost() {
    let mut bench = joined();
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Redial(Errno::CONNRESET));
    assert!(bench.session.is_waiting());
    bench.report(Side::Client, |leg| leg.arrive(b"request"));
    bench.session.awaits(bench.now + bench.timeouts.connect);
    assert_eq!(bench.drive(), Step::Wait);
    bench.session.joined(SimLeg::default(), false, bench.now);
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.leg(Side::Upstream).sent(), b"request");
}

#[test]
fn bytes_that_were_read_before_the_session_go_to_the_replacement_of_a_dead_connection() {
    let mut bench = Bench::connecting();
    bench.report(Side::Client, |leg| leg.make_room(ROOM));
    bench.session.awaits(bench.now + bench.timeouts.connect);
    bench.session.introduce(b"hello".to_vec());
    bench.session.joined(SimLeg::default(), true, bench.now);
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Redial(Errno::CONNRESET));
    bench.session.joined(SimLeg::default(), false, bench.now);
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.leg(Side::Upstream).sent(), b"hello");
}

#[test]
fn a_connection_that_dies_after_a_byte_went_into_it_is_not_replaced() {
    let mut bench = joined();
    bench.report(Side::Client, |leg| leg.arrive(b"request"));
    assert_eq!(bench.drive(), Step::Wait);
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Broken(End::UpstreamReset));
}

#[test]
fn a_replacement_that_dies_too_ends_the_session() {
    let mut bench = joined();
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Redial(Errno::CONNRESET));
    bench.session.joined(SimLeg::default(), false, bench.now);
    bench.report(Side::Upstream, |leg| leg.fail(Errno::CONNRESET));
    assert_eq!(bench.drive(), Step::Broken(End::UpstreamReset));
}

#[test]
fn a_connection_that_never_comes_times_out() {
    let mut bench = Bench::connecting();
    bench.session.awaits(bench.now + bench.timeouts.connect);
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.run_to_deadline(), Step::Redial(Errno::TIMEDOUT));
}

#[test]
fn a_relay_that_acknowledges_nothing_is_left_while_no_byte_of_the_session_has_gone_to_it() {
    let patience = Duration::from_secs(1);
    let mut bench = joined();
    bench.session.expect_answer(patience, bench.now);
    bench.report(Side::Upstream, |leg| {
        leg.fall_silent();
        leg.make_room(ROOM)
    });
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(
        bench.session.deadline(&bench.timeouts),
        Some(bench.now + patience)
    );
    bench.now += patience;
    assert_eq!(bench.drive(), Step::Redial(Errno::TIMEDOUT));
    assert_eq!(bench.fault(), Some((Errno::TIMEDOUT, patience)));
    assert!(bench.session.is_waiting());
}

#[test]
fn a_relay_that_acknowledges_nothing_keeps_a_session_whose_bytes_have_gone_to_it() {
    let patience = Duration::from_secs(1);
    let mut bench = joined();
    bench.session.expect_answer(patience, bench.now);
    bench.report(Side::Client, |leg| leg.arrive(b"request"));
    bench.report(Side::Upstream, |leg| {
        leg.fall_silent();
        leg.make_room(ROOM)
    });
    bench.now += patience;
    assert_eq!(bench.drive(), Step::Wait);
    // The worker hears of it, once.
    assert_eq!(bench.fault(), Some((Errno::TIMEDOUT, patience)));
    assert_eq!(bench.fault(), None);
}

#[test]
fn the_close_of_the_last_leg_sends_its_fin_if_nothing_waits_ahead_of_it() {
    for (first, last, _) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(first, |leg| leg.arrive(b"question"));
        bench.report(last, |leg| leg.arrive(b"answer"));
        assert_eq!(bench.drive(), Step::Wait);
        // Both peers have read everything, and the first to end its stream has its FIN forwarded.
        bench.leg(first).acknowledge();
        bench.leg(last).acknowledge();
        bench.report(first, SimLeg::end);
        assert_eq!(bench.drive(), Step::Wait);
        assert!(bench.leg(last).fin_sent());
        bench.report(last, SimLeg::end);
        assert_eq!(bench.drive(), Step::Done(End::Complete));
        // FIN is left to the close, which must then not reset.
        assert!(!bench.leg(first).fin_sent());
        assert!(bench.leg(first).is_graceful());
    }
}

#[test]
fn a_fin_does_not_wait_for_the_tail_ahead_of_it() {
    for (first, last, _) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(last, |leg| leg.arrive(b"answer"));
        bench.report(first, SimLeg::end);
        assert_eq!(bench.drive(), Step::Wait);
        bench.report(last, SimLeg::end);
        assert_eq!(bench.drive(), Step::Wait);
        assert!(bench.leg(first).fin_sent());
        bench.leg(first).acknowledge();
        assert_eq!(bench.run_to_deadline(), Step::Done(End::Complete));
    }
}

#[test]
fn the_leg_whose_stream_ended_first_is_not_closed_with_unsent_bytes() {
    for (first, last, _) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(first, |leg| leg.arrive(b"question"));
        bench.report(first, SimLeg::end);
        assert_eq!(bench.drive(), Step::Wait);
        bench.report(last, SimLeg::end);
        assert_eq!(bench.drive(), Step::Wait);
        assert!(bench.leg(last).is_graceful());
        bench.leg(last).acknowledge();
        assert_eq!(bench.run_to_deadline(), Step::Done(End::Complete));
    }
}

#[test]
fn bytes_in_flight_do_not_keep_a_session_whose_close_resets_neither_leg() {
    for (first, last, _) in SIDES {
        let mut bench = Bench::relaying();
        bench.report(first, |leg| leg.arrive(b"question"));
        bench.report(first, SimLeg::end);
        assert_eq!(bench.drive(), Step::Wait);
        // Sent, but not acknowledged: the kernel goes on with it after an orderly close.
        bench.leg(last).let_out();
        bench.report(last, SimLeg::end);
        assert_eq!(bench.drive(), Step::Done(End::Complete));
        assert!(bench.leg(last).is_graceful());
        assert!(bench.leg(first).is_graceful());
    }
}

/// A session between two relays of the mesh, whose hello has been acknowledged.
fn between_relays() -> Bench {
    let mut bench = Bench::connecting();
    bench.session = Session::new(SimLeg::of_mesh(), bench.now);
    bench.session.joined(SimLeg::of_mesh(), true, bench.now);
    bench.report(Side::Client, |leg| leg.make_room(ROOM));
    bench.report(Side::Upstream, |leg| leg.make_room(ROOM));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.session.deadline(&bench.timeouts), None);
    bench
}

#[test]
fn a_relay_that_no_longer_acknowledges_loses_its_sessions_after_the_user_timeout() {
    for (silent, other, end) in [
        (Side::Client, Side::Upstream, End::ClientLost),
        (Side::Upstream, Side::Client, End::UpstreamLost),
    ] {
        let mut bench = between_relays();
        bench.now += Duration::from_secs(3600);
        let sent_at = bench.now;
        bench.report(other, |leg| leg.arrive(b"is anybody there?"));
        assert_eq!(bench.drive(), Step::Wait);
        let end_of_session = loop {
            bench.leg(silent).retransmit();
            match bench.run_to_deadline() {
                Step::Wait => {}
                over => break over,
            }
        };
        assert_eq!(end_of_session, Step::Broken(end));
        let user = bench.timeouts.user;
        let took = bench.now - sent_at;
        assert!(took >= user && took <= user + user / CHECKS, "{took:?}");
        let is_upstream = silent == Side::Upstream;
        assert_eq!(bench.fault().is_some(), is_upstream);
    }
}

#[test]
fn a_relay_that_acknowledges_late_keeps_its_sessions() {
    let mut bench = between_relays();
    bench.report(Side::Client, |leg| leg.arrive(b"is anybody there?"));
    assert_eq!(bench.drive(), Step::Wait);
    while bench.passed() + bench.timeouts.user / CHECKS < bench.timeouts.user {
        bench.leg(Side::Upstream).retransmit();
        assert_eq!(bench.run_to_deadline(), Step::Wait);
    }
    bench.leg(Side::Upstream).acknowledge();
    assert_eq!(bench.run_to_deadline(), Step::Wait);
    // Nothing is left to watch.
    assert_eq!(bench.session.deadline(&bench.timeouts), None);
}

#[test]
fn the_user_timeout_of_relays_does_not_end_sessions_whose_reader_pauses() {
    // Bytes are outstanding for an hour, and the kernel has nothing to retransmit.
    let mut bench = between_relays();
    bench.report(Side::Client, |leg| leg.arrive(b"read this later"));
    assert_eq!(bench.drive(), Step::Wait);
    while bench.passed() < Duration::from_secs(3600) {
        assert_eq!(bench.run_to_deadline(), Step::Wait);
    }
    // Nor do those of clients and servers, for which the kernel decides.
    let mut bench = Bench::relaying();
    bench.report(Side::Client, |leg| leg.arrive(b"is anybody there?"));
    assert_eq!(bench.drive(), Step::Wait);
    assert_eq!(bench.session.deadline(&bench.timeouts), None);
}
