//! What each direction of a connection wants, from its instruments.
//!
//! Twice the bandwidth-delay product that it has shown, or is growing into: half of that is on its way, and the other half is what the
//! window grows into within the next round trip (Semke et al. 1998; thesis 2.5.2). For a sender twice the congestion window is the
//! least (thesis 5.4.1).

use std::time::Duration;

use taut_observe::window::Window;
use taut_sys::sock_diag::Memory;
use taut_sys::tcp_info::TcpInfo;

/// Payload on its way, beyond which the thesis gives no buffer (5.4.1), in bytes.
const WINDOW_MOST: u64 = 12_000_000;
/// A path that is longer may have as much on its way as this rate, in bytes a second, takes in its round trip.
const RATE: u64 = 125_000_000;
/// A window that grew by this much in the looks that there are will go on.
const GROWS: f64 = 1.3;
/// Of the window this share is used in each round trip when it is what limits.
const USED: f64 = 0.7;
/// For this share of the time, when it is the send buffer.
const FULL: f64 = 0.1;
/// What a byte of payload takes with the overhead of buffers, where it cannot be measured, and bounds of what is measured.
const OVERHEAD: f64 = 1.5;
const OVERHEAD_BOUNDS: (f64, f64) = (1.0, 8.0);
/// Bytes in a queue that are enough to measure that.
const ENOUGH: u32 = 64 << 10;

/// Which way data go, as seen from this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From here.
    Send,
    /// To here.
    Receive,
}

/// What one direction wants. Bytes with the overhead of buffers, but of [`Because`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Its buffer.
    pub has: u64,
    /// What is in it.
    pub queued: u64,
    /// In a smaller one there would be no room for what the peer has been promised room for, or already has sent.
    pub promised: u64,
    /// What a segment takes, of the largest that the path lets through.
    pub segment: u64,
    /// The buffer that it wants; zero: none beyond what is queued.
    pub wants: u64,
    /// The largest buffer that is of any use to it: more than it wants while it grows, or is held.
    pub most: u64,
    /// Somebody has set its buffer, so that the kernel does not size it; `None`: nobody says.
    pub is_fixed: Option<bool>,
    /// Its buffer is what limits it, as far as this end sees.
    pub is_held: bool,
    /// Why it wants that.
    pub because: Because,
}

/// What a demand comes from. Bytes of payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Because {
    /// Nothing went this way.
    Idle,
    /// A window of so much fills its path, or all that it has to send.
    Shown {
        /// The window.
        window: u64,
        /// The path's round trip.
        round_trip: Duration,
    },
    /// The window is still growing, or held by its buffer.
    Grows {
        /// The window.
        window: u64,
        /// The path's round trip.
        round_trip: Duration,
    },
}

/// The most that one connection may have on its way, in bytes of payload: 12 MB, and on paths of more than 96 ms what 1 Gbit/s takes in a round trip; or what
/// somebody has chosen, on all paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap(Option<u64>);

// === impl Cap ===

impl Cap {
    /// The same on all paths.
    pub fn chosen(window: u64) -> Self {
        Self(Some(window))
    }

    /// The widest window that is the same on all paths.
    pub fn window(self) -> u64 {
        self.0.unwrap_or(WINDOW_MOST)
    }

    /// The widest window of a path of this round trip.
    pub fn of(self, round_trip: Duration) -> u64 {
        self.0.unwrap_or_else(|| {
            let takes = RATE as f64 * round_trip.as_secs_f64();
            WINDOW_MOST.max(takes as u64)
        })
    }
}

/// What the direction wants; `None`: the kernel does not tell enough.
pub fn demand(window: &Window<'_>, direction: Direction, cap: Cap) -> Option<Demand> {
    match direction {
        Direction::Send => sending(window, cap),
        Direction::Receive => receiving(window, cap),
    }
}

fn sending(window: &Window<'_>, cap: Cap) -> Option<Demand> {
    let connection = &window.samples().last()?.connection;
    let memory = connection.memory?;
    let info = window.last();
    let mss = u64::from(info.snd_mss);
    let round_trip = info.min_rtt.or(info.rtt).unwrap_or_default();
    let is_held = window
        .shares()
        .is_some_and(|shares| shares.send_buffer > FULL);
    let because = if window.more(|info| info.bytes_acked) == 0 && connection.send_queue == 0 {
        Because::Idle
    } else {
        let rate = window
            .range(|info| info.delivery_rate)
            .map_or(0, |(_, most)| most);
        let carried = (rate as f64 * round_trip.as_secs_f64()) as u64;
        let cwnd = u64::from(info.snd_cwnd) * mss;
        let grew = f64::from(info.snd_cwnd) > f64::from(window.first().snd_cwnd) * GROWS;
        of(cwnd.max(carried), round_trip, grew || is_held, cap)
    };
    let overhead = overhead(memory.wmem_queued, connection.send_queue);
    Some(Demand {
        has: memory.sndbuf.into(),
        queued: memory.wmem_queued.into(),
        promised: promised(Direction::Send, &memory, info),
        segment: segment(info),
        wants: wants(because, overhead, cap),
        most: most(because, overhead, cap),
        is_fixed: connection.internals.map(|inside| inside.sndbuf_locked),
        is_held,
        because,
    })
}

fn receiving(window: &Window<'_>, cap: Cap) -> Option<Demand> {
    let connection = &window.samples().last()?.connection;
    let memory = connection.memory?;
    let info = window.last();
    // Who only receives sees round trips by what comes a window later; without timestamps they are as long as a window takes to fill.
    let round_trip = match (info.rcv_rtt, info.min_rtt) {
        (Some(seen), Some(least)) => seen.min(least),
        (seen, least) => seen.or(least).unwrap_or_default(),
    };
    let carried = window.received_rate() * round_trip.as_secs_f64();
    let offered = window.mean(|info: &TcpInfo| info.rcv_wnd.map(f64::from));
    let is_held = offered.is_some_and(|offered| offered > 0.0 && carried > offered * USED);
    let because = match window.more(|info| info.bytes_received) {
        0 => Because::Idle,
        _ => {
            // What the kernel saw the application take in a round trip.
            let taken = window
                .range(|info| Some(info.rcv_space))
                .map_or(0, |(_, most)| most);
            of((carried as u64).max(taken.into()), round_trip, is_held, cap)
        }
    };
    let overhead = overhead(memory.rmem_alloc, connection.recv_queue);
    Some(Demand {
        has: memory.rcvbuf.into(),
        queued: memory.rmem_alloc.into(),
        promised: promised(Direction::Receive, &memory, info),
        segment: segment(info),
        wants: wants(because, overhead, cap),
        most: most(because, overhead, cap),
        is_fixed: connection.internals.map(|inside| inside.rcvbuf_locked),
        is_held,
        because,
    })
}

fn of(window: u64, round_trip: Duration, grows: bool, cap: Cap) -> Because {
    let window = window.min(cap.of(round_trip));
    match grows {
        true => Because::Grows { window, round_trip },
        false => Because::Shown { window, round_trip },
    }
}

fn wants(because: Because, overhead: f64, cap: Cap) -> u64 {
    let payload = match because {
        Because::Idle => 0,
        Because::Shown { window, .. } => window.saturating_mul(2),
        // Twice what it will be by the next look, or soon after.
        Because::Grows { window, round_trip } => window
            .saturating_mul(4)
            .min(cap.of(round_trip).saturating_mul(2)),
    };
    (payload as f64 * overhead) as u64
}

fn most(because: Because, overhead: f64, cap: Cap) -> u64 {
    match because {
        Because::Idle | Because::Shown { .. } => wants(because, overhead, cap),
        Because::Grows { round_trip, .. } => {
            (cap.of(round_trip).saturating_mul(2) as f64 * overhead) as u64
        }
    }
}

/// What is queued, and at a receiver the window that it has offered, which is not taken back.
pub(crate) fn promised(direction: Direction, memory: &Memory, info: &TcpInfo) -> u64 {
    match direction {
        Direction::Send => memory.wmem_queued.into(),
        Direction::Receive => {
            let offered = f64::from(info.rcv_wnd.unwrap_or_default());
            u64::from(memory.rmem_alloc) + (offered * OVERHEAD) as u64
        }
    }
}

/// Of the largest that comes or goes, in bytes with overhead.
pub(crate) fn segment(info: &TcpInfo) -> u64 {
    let largest = info.advmss.max(info.rcv_mss).max(info.snd_mss);
    (f64::from(largest) * OVERHEAD) as u64
}

/// What a byte of payload takes, of a queue that holds so much with and without its overhead.
fn overhead(taken: u32, payload: u32) -> f64 {
    let (least, most) = OVERHEAD_BOUNDS;
    match payload {
        ENOUGH.. => (f64::from(taken) / f64::from(payload)).clamp(least, most),
        _ => OVERHEAD,
    }
}

#[cfg(test)]
mod tests {
    use taut_observe::window::Sample;
    use taut_sys::sock_diag::{Connection, Internals, State};

    use super::*;

    /// Two looks a second apart at a connection that has buffers of 1 MB, changed by `set`, which is told the look.
    fn looks(set: impl Fn(u32, &mut Connection, &mut TcpInfo)) -> Vec<Sample> {
        let look = |look: u32| {
            let mut info = TcpInfo::parse(&[0; 256]).unwrap();
            info.snd_mss = 1000;
            info.min_rtt = Some(Duration::from_millis(100));
            info.rcv_rtt = Some(Duration::from_millis(100));
            (info.bytes_acked, info.bytes_received) = (Some(0), Some(0));
            let mut connection = Connection {
                local: "192.0.2.1:1000".parse().unwrap(),
                remote: "192.0.2.2:2000".parse().unwrap(),
                cookie: 1,
                is_v6: false,
                interface: 0,
                state: State::Established,
                recv_queue: 0,
                send_queue: 0,
                uid: 0,
                inode: 1,
                memory: Some(Memory {
                    sndbuf: 1 << 20,
                    rcvbuf: 1 << 20,
                    ..Memory::default()
                }),
                congestion_control: None,
                cgroup: None,
                info: None,
                internals: Some(Internals::default()),
            };
            set(look, &mut connection, &mut info);
            connection.info = Some(info);
            Sample {
                at: Duration::from_secs(look.into()),
                connection,
            }
        };
        vec![look(0), look(1)]
    }

    fn capped(looks: &[Sample], direction: Direction, cap: Cap) -> Demand {
        demand(&Window::of(looks).unwrap(), direction, cap).unwrap()
    }

    fn of(looks: &[Sample], direction: Direction) -> Demand {
        capped(looks, direction, Cap::default())
    }

    #[test]
    fn a_sender_wants_twice_its_congestion_window() {
        let looks = looks(|look, _, info| {
            info.snd_cwnd = 500;
            info.bytes_acked = Some(u64::from(look) * 5_000_000);
        });
        let demand = of(&looks, Direction::Send);
        assert_eq!(demand.wants, 1_500_000);
        assert_eq!(
            (demand.has, demand.is_fixed, demand.is_held),
            (1 << 20, Some(false), false)
        );
        // The other way nothing goes.
        assert_eq!(of(&looks, Direction::Receive).wants, 0);
    }

    #[test]
    fn a_path_that_has_carried_more_than_its_window_takes_now_is_known() {
        let looks = looks(|look, _, info| {
            info.snd_cwnd = 10;
            info.delivery_rate = Some(20_000_000 * u64::from(1 - look));
            info.bytes_acked = Some(u64::from(look));
        });
        let Because::Shown { window, .. } = of(&looks, Direction::Send).because else {
            panic!("{looks:?}");
        };
        assert_eq!(window, 2_000_000);
    }

    #[test]
    fn who_is_held_by_his_buffer_wants_more_than_he_has_shown() {
        let looks = looks(|look, connection, info| {
            info.bytes_received = Some(u64::from(look) * 640_000);
            info.rcv_wnd = Some(65_000);
            connection.internals.as_mut().unwrap().rcvbuf_locked = true;
        });
        let demand = of(&looks, Direction::Receive);
        assert!(demand.is_held && demand.is_fixed == Some(true));
        assert_eq!(demand.wants, 4 * 64_000 * 3 / 2);
    }

    #[test]
    fn nobody_wants_more_than_the_widest_window_but_on_longer_paths() {
        assert_eq!(Cap::default().of(Duration::from_millis(50)), 12_000_000);
        assert_eq!(Cap::default().of(Duration::from_millis(200)), 25_000_000);
        for (millis, most) in [(10, 36_000_000), (200, 75_000_000)] {
            let looks = looks(|look, _, info| {
                info.snd_cwnd = 100_000 * (look + 1);
                info.min_rtt = Some(Duration::from_millis(millis));
                info.bytes_acked = Some(u64::from(look));
            });
            assert_eq!(of(&looks, Direction::Send).wants, most);
            // Who has chosen has chosen.
            let chosen = capped(&looks, Direction::Send, Cap::chosen(1_000_000));
            assert_eq!((chosen.wants, chosen.most), (3_000_000, 3_000_000));
        }
    }

    #[test]
    fn who_is_idle_wants_nothing_beyond_what_is_queued() {
        let looks = looks(|_, connection, info| {
            info.snd_cwnd = 500;
            connection.memory.as_mut().unwrap().rmem_alloc = 5000;
        });
        let demand = of(&looks, Direction::Receive);
        assert_eq!(
            (demand.because, demand.wants, demand.queued),
            (Because::Idle, 0, 5000)
        );
        assert_eq!(of(&looks, Direction::Send).because, Because::Idle);
    }

    #[test]
    fn what_the_peer_may_send_is_promised_to_it() {
        let looks = looks(|_, connection, info| {
            (info.rcv_wnd, info.advmss) = (Some(1_000_000), 1448);
            let memory = connection.memory.as_mut().unwrap();
            (memory.rmem_alloc, memory.wmem_queued) = (5000, 7000);
        });
        let receives = of(&looks, Direction::Receive);
        assert_eq!((receives.promised, receives.segment), (1_505_000, 2172));
        assert_eq!(of(&looks, Direction::Send).promised, 7000);
    }

    #[test]
    fn overhead_is_measured_where_there_is_enough() {
        assert_eq!(overhead(300_000, 100_000), 3.0);
        assert_eq!(overhead(u32::MAX, 100_000), 8.0);
        assert_eq!(overhead(10, 100_000), 1.0);
        assert_eq!(overhead(300, 100), OVERHEAD);
    }
}
