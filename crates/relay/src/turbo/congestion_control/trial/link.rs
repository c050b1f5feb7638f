//! A link with a queue that connections of `taut_pipe` and of a model of CUBIC share, packet by packet.

use std::collections::VecDeque;

use super::super::raw::{PipeAck, PipePace, PipeRound, PipeTerms, PipeTrial};
use super::{MSS, NO_LIMIT, WINDOW, run};

/// The bytes of a full segment on the link.
const PACKET: f64 = 1500.0;
/// The segments that one acknowledgement covers.
const STRETCH: u32 = 16;
/// The packets by which the room of a queue varies. Without that, and with clocks as exact as these, a full
/// queue hits the same flow again and again, which is a property of no real link (S. Floyd, V. Jacobson,
/// "On Traffic Phase Effects in Packet-Switched Gateways", 1992).
const PHASE: f64 = 8.0;
/// The gain of the smoothed round trip with each segment.
const SMOOTHING: f64 = 0.1;

/// A drop-tail link. Times are in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Bytes a second.
    pub(super) rate: f64,
    pub(super) rtt: f64,
    /// The bytes that the queue takes.
    pub(super) room: f64,
    /// The share of the segments that is lost wherever the queue is.
    pub(super) loss: f64,
}

/// A connection on the link.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    control: Control,
    /// When it ends.
    until: f64,
    next_send: f64,
    in_flight: u32,
    delivered: u32,
    lost: u32,
    srtt: f64,
    least_rtt: f64,
}

#[derive(Clone, Debug)]
enum Control {
    Cubic(Cubic),
    Pipe(Box<Pipe>),
}

/// The least of CUBIC (RFC 9438) that a competitor needs: no pacing, and slow start until a queue.
#[derive(Clone, Debug)]
struct Cubic {
    window: f64,
    slow_start: bool,
    plateau: f64,
    growing_from: f64,
    first: f64,
    reduced_at: u32,
}

/// A connection of `taut_pipe`, with the figures that the program for sockets has of it.
#[derive(Clone, Debug)]
struct Pipe {
    pace: PipePace,
    terms: PipeTerms,
    acked: u32,
    newly_lost: u32,
    delivery: f64,
    round_began: f64,
    round_delivered: u32,
    round_lost: u32,
    round_rtt: f64,
}

/// What a sender will learn of a segment, and when.
#[derive(Clone, Copy, Debug)]
struct Notice {
    at: f64,
    flow: usize,
    lost: bool,
    sent: f64,
    prior_delivered: u32,
}

/// Random numbers that are the same in every run.
#[derive(Debug)]
struct Phase(u64);

impl Phase {
    /// Returns a number from 0 to 1.
    fn next(&mut self) -> f64 {
        // The generator of MMIX (D. Knuth).
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}

/// Runs the flows for `seconds`. Returns the bytes a second that each delivered from `measured` on.
pub(super) fn share(link: Link, flows: &mut [Flow], measured: f64, seconds: f64) -> Vec<f64> {
    // All round trips are alike, so what is sent first is known first.
    let mut notices: VecDeque<Notice> = VecDeque::new();
    let mut free_at = 0.0_f64;
    let mut sent = 0_u64;
    let mut phase = Phase(0);
    let mut random = 0.0;
    let mut before = None;
    loop {
        let ready = flows.iter().enumerate().filter(|(_, flow)| flow.may_send());
        let sender = ready.min_by(|(_, a), (_, b)| a.next_send.total_cmp(&b.next_send));
        let send_at = sender.map_or(f64::INFINITY, |(_, flow)| flow.next_send);
        let heard_at = notices.front().map_or(f64::INFINITY, |notice| notice.at);
        let now = send_at.min(heard_at);
        if before.is_none() && now >= measured {
            before = Some(flows.iter().map(|flow| flow.delivered).collect::<Vec<_>>());
        }
        if now >= seconds {
            break;
        }
        if heard_at <= send_at {
            if let Some(notice) = notices.pop_front() {
                flows[notice.flow].on_notice(notice);
            }
            continue;
        }
        let Some((number, _)) = sender else { break };
        let flow = &mut flows[number];
        flow.on_send(now);
        sent += 1;
        let waits = (free_at - now).max(0.0);
        let overflows = waits * link.rate > link.room - PHASE * PACKET * phase.next();
        let leaves = now + waits + PACKET / link.rate;
        if !overflows {
            free_at = leaves;
        }
        // Evenly spread, and so the same in every run.
        random += link.loss;
        let lost = random >= 1.0;
        random -= f64::from(u8::from(lost));
        notices.push_back(Notice {
            at: leaves + link.rtt,
            flow: number,
            lost: overflows || lost,
            sent: now,
            prior_delivered: flow.delivered,
        });
    }
    assert!(sent > 0, "no flow has sent");
    let before = before.unwrap_or_else(|| vec![0; flows.len()]);
    let bytes = |flow: &Flow, before: u32| f64::from(flow.delivered - before) * f64::from(MSS);
    let flows = flows.iter().zip(before);
    flows
        .map(|(flow, before)| bytes(flow, before) / (seconds - measured))
        .collect()
}

// === impl Flow ===

impl Flow {
    /// A connection of CUBIC that sends from a time on.
    pub(super) fn cubic(from: f64, link: Link) -> Self {
        let cubic = Cubic {
            window: 10.0,
            slow_start: true,
            plateau: 0.0,
            growing_from: from,
            first: 10.0,
            reduced_at: 0,
        };
        Self::new(from, link, Control::Cubic(cubic))
    }

    /// A connection of `taut_pipe` that starts at `rate`, bytes a second.
    pub(super) fn pipe(from: f64, link: Link, rate: f64) -> Self {
        let pipe = Pipe {
            pace: PipePace {
                rate: rate as u64,
                seeking: 1,
                ..PipePace::default()
            },
            terms: PipeTerms {
                start: rate as u64,
                limit: NO_LIMIT,
                window: WINDOW,
                ..PipeTerms::default()
            },
            acked: 0,
            newly_lost: 0,
            delivery: 0.0,
            round_began: from,
            round_delivered: 0,
            round_lost: 0,
            round_rtt: f64::INFINITY,
        };
        Self::new(from, link, Control::Pipe(Box::new(pipe)))
    }

    fn new(from: f64, link: Link, control: Control) -> Self {
        Self {
            control,
            until: f64::INFINITY,
            next_send: from,
            in_flight: 0,
            delivered: 0,
            lost: 0,
            srtt: link.rtt,
            // Known from the handshake, on an empty link.
            least_rtt: link.rtt,
        }
    }

    /// Limits the rate of a flow of `taut_pipe`, in bytes a second.
    pub(super) fn at_most(mut self, rate: f64) -> Self {
        if let Control::Pipe(pipe) = &mut self.control {
            pipe.terms.limit = rate as u64;
        }
        self
    }

    /// Ends the flow at this time.
    pub(super) fn until(self, until: f64) -> Self {
        Self { until, ..self }
    }

    /// Returns what the connection does, if it has `taut_pipe`.
    pub(super) fn pace(&self) -> Option<&PipePace> {
        match &self.control {
            Control::Pipe(pipe) => Some(&pipe.pace),
            Control::Cubic(_) => None,
        }
    }

    fn may_send(&self) -> bool {
        let window = match &self.control {
            Control::Cubic(cubic) => cubic.window,
            Control::Pipe(pipe) => pipe.window(self.least_rtt),
        };
        self.next_send < self.until && f64::from(self.in_flight) + 1.0 <= window
    }

    fn on_send(&mut self, now: f64) {
        self.in_flight += 1;
        self.next_send = match &self.control {
            Control::Cubic(_) => now,
            Control::Pipe(pipe) => now + f64::from(MSS) / pipe.pacing_rate(self.srtt),
        };
    }

    fn on_notice(&mut self, notice: Notice) {
        self.in_flight -= 1;
        // A flow that waited for its window sends now.
        self.next_send = self.next_send.max(notice.at.min(self.until));
        match notice.lost {
            true => self.lost += 1,
            false => {
                self.delivered += 1;
                let rtt = notice.at - notice.sent;
                self.srtt += SMOOTHING * (rtt - self.srtt);
            }
        }
        let (delivered, lost, srtt) = (self.delivered, self.lost, self.srtt);
        match &mut self.control {
            Control::Cubic(cubic) => cubic.on_notice(notice, delivered, srtt, self.least_rtt),
            Control::Pipe(pipe) => {
                pipe.note(notice);
                if pipe.acked >= STRETCH || pipe.newly_lost > 0 {
                    let flight = self.in_flight + pipe.acked + pipe.newly_lost;
                    pipe.on_ack(notice, delivered, flight, srtt, self.least_rtt);
                    pipe.on_round(notice, delivered, lost, self.least_rtt);
                }
            }
        }
    }
}

// === impl Cubic ===

impl Cubic {
    fn on_notice(&mut self, notice: Notice, delivered: u32, srtt: f64, least_rtt: f64) {
        let reduced_before = notice.prior_delivered.wrapping_sub(self.reduced_at) as i32 >= 0;
        if notice.lost {
            if reduced_before {
                let converging = self.window < self.plateau;
                self.plateau = self.window * if converging { 0.85 } else { 1.0 };
                self.leave_slow_start(notice.at, self.window * 0.7);
                self.reduced_at = delivered;
            }
            return;
        }
        if self.slow_start {
            self.window += 1.0;
            // HyStart (RFC 9406) sees the queue grow.
            if notice.at - notice.sent > least_rtt + (least_rtt / 8.0).clamp(0.004, 0.016) {
                self.plateau = self.window;
                self.leave_slow_start(notice.at, self.window);
            }
            return;
        }
        let grown = notice.at - self.growing_from;
        let plateau_at = ((self.plateau - self.first).max(0.0) / 0.4).cbrt();
        let cubic = 0.4 * (grown + least_rtt - plateau_at).powi(3) + self.plateau;
        let reno = self.first + 9.0 / 17.0 * grown / srtt;
        let target = cubic.max(reno).min(1.5 * self.window);
        self.window += (target - self.window).max(0.0) / self.window;
    }

    fn leave_slow_start(&mut self, now: f64, window: f64) {
        self.slow_start = false;
        self.window = window.max(2.0);
        self.first = self.window;
        self.growing_from = now;
    }
}

// === impl Pipe ===

impl Pipe {
    fn window(&self, least_rtt: f64) -> f64 {
        if self.pace.competing == 1 {
            return f64::from(self.pace.window);
        }
        let bytes = (2.0 * self.rate() * least_rtt).max(f64::from(self.terms.window));
        bytes / f64::from(MSS)
    }

    fn rate(&self) -> f64 {
        self.pace.rate.min(self.terms.limit) as f64
    }

    fn pacing_rate(&self, srtt: f64) -> f64 {
        match self.pace.competing {
            1 => f64::from(self.pace.window) * f64::from(MSS) * 1.25 / srtt,
            _ => self.rate(),
        }
    }

    /// Collects what one acknowledgement says.
    fn note(&mut self, notice: Notice) {
        match notice.lost {
            true => self.newly_lost += 1,
            false => {
                self.acked += 1;
                self.round_rtt = self.round_rtt.min(notice.at - notice.sent);
            }
        }
    }

    fn on_ack(&mut self, notice: Notice, delivered: u32, flight: u32, srtt: f64, least_rtt: f64) {
        let ack = PipeAck {
            now_us: micros(notice.at).into(),
            acked: self.acked,
            lost: self.newly_lost,
            delivered,
            prior_delivered: notice.prior_delivered,
            flight,
            rtt_us: micros(srtt),
            least_rtt_us: micros(least_rtt),
            ..PipeAck::default()
        };
        let trial = PipeTrial {
            pace: self.pace,
            ack,
            ..PipeTrial::default()
        };
        self.pace = run("pipe_ack", &trial).pace;
        self.acked = 0;
        self.newly_lost = 0;
        let since = f64::from(delivered - notice.prior_delivered) * f64::from(MSS);
        self.delivery = self.delivery.max(since / (notice.at - notice.sent));
    }

    fn on_round(&mut self, notice: Notice, delivered: u32, lost: u32, least_rtt: f64) {
        let in_round = delivered - self.round_delivered;
        if notice.prior_delivered < self.round_delivered || in_round < 256 {
            return;
        }
        let seconds = notice.at - self.round_began;
        let round = PipeRound {
            delivery: self.delivery as u64,
            leg_delivery: (f64::from(in_round) * f64::from(MSS) / seconds) as u64,
            own_delivery: (f64::from(in_round) * f64::from(MSS) / seconds) as u64,
            delivered: in_round,
            lost: lost - self.round_lost,
            rtt_us: micros(self.round_rtt.min(1000.0)),
            least_rtt_us: micros(least_rtt),
            mss: MSS,
            ..PipeRound::default()
        };
        let trial = PipeTrial {
            pace: self.pace,
            round,
            terms: self.terms,
            ..PipeTrial::default()
        };
        let done = run("pipe_decide", &trial);
        self.pace = done.pace;
        if done.decision.learn != 0 {
            self.terms.known = done.decision.learn;
        }
        self.round_began = notice.at;
        self.round_delivered = delivered;
        self.round_lost = lost;
        self.round_rtt = f64::INFINITY;
        self.delivery = 0.0;
    }
}

fn micros(seconds: f64) -> u32 {
    (seconds * 1e6) as u32
}
