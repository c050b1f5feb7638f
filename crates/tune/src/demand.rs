//! Computes the needs of each direction of a connection from its samples. Pure.
//!
//! A buffer should be twice the bandwidth-delay product that the connection has shown or is growing
//! into: one half holds the data in flight, and the window grows into the other half within the
//! next round trip (Semke et al. 1998; thesis 2.5.2). A sender needs at least twice its congestion
//! window (thesis 5.4.1).

use std::time::Duration;

use taut_observe::tcp_settings::TcpSettings;
use taut_observe::window::{Window, receiver_rtt};
use taut_sys::sock_diag::Connection;
use taut_sys::tcp_info::TcpInfo;

/// The widest window that the thesis gives a connection (5.4.1), in bytes of payload.
const MAX_WINDOW: u64 = 12_000_000;
/// A longer path may have more in flight: the amount that this rate, in bytes a second, carries in
/// a round trip.
const MAX_RATE: u64 = 125_000_000;
/// A window that grew by this factor within the samples is still growing.
const GROWTH: f64 = 1.3;
/// A receive window limits its connection if at least this share of it is used in each round trip.
const LIMITING_USE: f64 = 0.7;
/// A send buffer limits its connection if it is full for at least this share of the time.
const LIMITING_TIME: f64 = 0.1;
/// A window counts as being as wide as its scale allows from this share of that width on. The
/// kernel rounds windows down.
const AT_WIDEST: f64 = 0.9;
/// The memory that a byte of payload takes where it cannot be measured.
const OVERHEAD: f64 = 1.5;
/// The bounds of a measured overhead.
const OVERHEAD_BOUNDS: (f64, f64) = (1.0, 8.0);
/// The minimum number of queued bytes for measuring the overhead.
const MEASURABLE: u32 = 64 << 10;

/// The direction of data, as seen from this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From this host.
    Send,
    /// To this host.
    Receive,
}

/// The buffer and the needs of one direction of a connection, in bytes with overhead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The size of its buffer.
    pub size: u64,
    /// The bytes in its buffer.
    pub queued: u64,
    /// The bytes in its buffer, plus, at a receiver, the bytes that the offered window allows the
    /// peer to send. A smaller buffer would drop data.
    pub committed: u64,
    /// The memory of the largest segment that the path allows.
    pub segment: u64,
    /// The buffer that the direction needs; zero if it is idle.
    pub wanted: u64,
    /// The largest buffer that the direction could use. Larger than `wanted` while its window grows
    /// or its buffer limits it.
    pub useful: u64,
    /// Whether the buffer is locked, so that the kernel does not tune it; `None` if unknown.
    pub is_fixed: Option<bool>,
    /// Whether the kernel would tune the buffer if it were not locked: it tunes receive buffers only
    /// where `net.ipv4.tcp_moderate_rcvbuf` is on.
    pub is_tunable: bool,
    /// Whether the buffer limits the connection, as far as this end can tell.
    pub is_limiting: bool,
    /// The widest window that the window scale allows, in bytes of payload, for the connection's
    /// life (RFC 7323 2.3); `None` if it is unknown.
    pub widest: Option<u64>,
    /// Whether the offered window is as wide as the window scale allows.
    pub is_at_widest: bool,
    /// The reason for the demand.
    pub reason: Reason,
}

/// The reason for a demand, in bytes of payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// Nothing was sent in this direction.
    Idle,
    /// The window fills the path, or the application sends no more.
    Steady {
        /// The window.
        window: u64,
        /// The round-trip time of the path.
        round_trip: Duration,
    },
    /// The window is still growing, or is limited by the buffer.
    Growing {
        /// The window.
        window: u64,
        /// The round-trip time of the path.
        round_trip: Duration,
    },
}

/// The maximum that one connection may have in flight, in bytes of payload. By default 12 MB, or on
/// paths longer than 96 ms the amount that 1 Gbit/s carries in a round trip; alternatively a
/// configured window for all paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCap {
    configured: Option<u64>,
    /// The widest window that a connection's window scale allows.
    scaled: Option<u64>,
}

// === impl Demand ===

impl Demand {
    /// Returns the same demand in a namespace with these settings.
    pub(crate) fn in_namespace(self, direction: Direction, settings: TcpSettings) -> Self {
        let is_off =
            direction == Direction::Receive && settings.tunes_receive_buffers == Some(false);
        Self {
            is_tunable: !is_off,
            ..self
        }
    }
}

// === impl WindowCap ===

impl WindowCap {
    /// Caps all paths at this window.
    pub fn of(window: u64) -> Self {
        Self {
            configured: Some(window),
            scaled: None,
        }
    }

    /// Returns the same cap for a connection whose window scale allows windows up to `widest`.
    fn within(self, widest: Option<u64>) -> Self {
        Self {
            scaled: widest,
            ..self
        }
    }

    /// Whether the window was configured.
    pub(crate) fn is_configured(self) -> bool {
        self.configured.is_some()
    }

    /// Returns the widest window that is allowed on every path.
    pub fn window(self) -> u64 {
        self.configured.unwrap_or(MAX_WINDOW)
    }

    /// Returns the widest window of a path with this round-trip time.
    pub fn on_path(self, round_trip: Duration) -> u64 {
        let window = self
            .configured
            .unwrap_or_else(|| MAX_WINDOW.max(carried(round_trip)));
        window.min(self.scaled.unwrap_or(u64::MAX))
    }
}

/// Returns the bytes of payload that 1 Gbit/s carries in a round trip: what buffers are judged by.
pub fn carried(round_trip: Duration) -> u64 {
    (MAX_RATE as f64 * round_trip.as_secs_f64()) as u64
}

/// Computes the demand of one direction; `None` if the kernel does not report enough.
pub fn demand(window: &Window<'_>, direction: Direction, cap: WindowCap) -> Option<Demand> {
    match direction {
        Direction::Send => sending(window, cap),
        Direction::Receive => receiving(window, cap),
    }
}

/// Computes the demand of an idle direction; `None` if the kernel does not report its memory.
pub(crate) fn idle(connection: &Connection, direction: Direction) -> Option<Demand> {
    of_buffer(connection, connection.info.as_ref(), direction)
}

fn sending(window: &Window<'_>, cap: WindowCap) -> Option<Demand> {
    let connection = &window.samples().last()?.connection;
    let info = window.last();
    let buffer = of_buffer(connection, Some(info), Direction::Send)?;
    let cap = cap.within(buffer.widest);
    let mss = u64::from(info.snd_mss);
    let round_trip = info.min_rtt.or(info.rtt).unwrap_or_default();
    let is_limiting = window
        .shares()
        .is_some_and(|shares| shares.send_buffer > LIMITING_TIME);
    let reason = if window.more(|info| info.bytes_acked) == 0 && connection.send_queue == 0 {
        Reason::Idle
    } else {
        let rate = window
            .range(|info| info.delivery_rate)
            .map_or(0, |(_, highest)| highest);
        let carried = (rate as f64 * round_trip.as_secs_f64()) as u64;
        let cwnd = u64::from(info.snd_cwnd) * mss;
        let has_grown = f64::from(info.snd_cwnd) > f64::from(window.first().snd_cwnd) * GROWTH;
        capped(cwnd.max(carried), round_trip, has_grown || is_limiting, cap)
    };
    let overhead = overhead(buffer.queued, connection.send_queue);
    Some(Demand {
        wanted: wanted(reason, overhead, cap),
        useful: useful(reason, overhead, cap),
        is_limiting,
        reason,
        ..buffer
    })
}

fn receiving(window: &Window<'_>, cap: WindowCap) -> Option<Demand> {
    let connection = &window.samples().last()?.connection;
    let info = window.last();
    let buffer = of_buffer(connection, Some(info), Direction::Receive)?;
    let cap = cap.within(buffer.widest);
    // A host that only receives measures a round trip from the data that arrives one window later.
    // Without timestamps, the measurement includes the time to fill the window.
    let round_trip = match (receiver_rtt(info), info.min_rtt) {
        (Some(measured), Some(minimum)) => measured.min(minimum),
        (measured, minimum) => measured.or(minimum).unwrap_or_default(),
    };
    let carried = window.received_rate() * round_trip.as_secs_f64();
    let offered = window.mean(|info: &TcpInfo| info.rcv_wnd.map(f64::from));
    let is_limiting =
        offered.is_some_and(|offered| offered > 0.0 && carried > offered * LIMITING_USE);
    let is_at_widest = match (offered, buffer.widest) {
        (Some(offered), Some(widest)) => offered >= widest as f64 * AT_WIDEST,
        _ => false,
    };
    let reason = match window.more(|info| info.bytes_received) {
        0 => Reason::Idle,
        _ => {
            // The bytes that the application read in a round trip, as measured by the kernel.
            let read = window
                .range(|info| Some(info.rcv_space))
                .map_or(0, |(_, highest)| highest);
            capped(
                (carried as u64).max(read.into()),
                round_trip,
                is_limiting,
                cap,
            )
        }
    };
    let overhead = overhead(buffer.queued, connection.recv_queue);
    Some(Demand {
        wanted: wanted(reason, overhead, cap),
        useful: useful(reason, overhead, cap),
        is_limiting,
        is_at_widest,
        reason,
        ..buffer
    })
}

/// Returns a demand with the state of the buffer and no needs; `None` if the kernel does not report
/// its memory.
fn of_buffer(
    connection: &Connection,
    info: Option<&TcpInfo>,
    direction: Direction,
) -> Option<Demand> {
    let memory = connection.memory?;
    let internals = connection.internals;
    let (size, queued, is_fixed) = match direction {
        Direction::Send => (
            memory.sndbuf,
            memory.wmem_queued,
            internals.map(|internals| internals.sndbuf_locked),
        ),
        Direction::Receive => (
            memory.rcvbuf,
            memory.rmem_alloc,
            internals.map(|internals| internals.rcvbuf_locked),
        ),
    };
    // The peer may use an offered window at any time: TCP never takes it back.
    let offered = match direction {
        Direction::Send => 0,
        Direction::Receive => info.and_then(|info| info.rcv_wnd).unwrap_or_default(),
    };
    Some(Demand {
        size: size.into(),
        queued: queued.into(),
        committed: u64::from(queued) + (f64::from(offered) * OVERHEAD) as u64,
        segment: info.map_or(0, segment),
        wanted: 0,
        useful: 0,
        is_fixed,
        is_tunable: true,
        is_limiting: false,
        widest: info.map(|info| widest(info, direction)),
        is_at_widest: false,
        reason: Reason::Idle,
    })
}

/// Returns the widest window that can be advertised in this direction: 16 bits, shifted by the
/// scale that the handshake has fixed.
fn widest(info: &TcpInfo, direction: Direction) -> u64 {
    let scale = match (info.window_scales, direction) {
        (None, _) => 0,
        (Some((peers, _)), Direction::Send) => peers,
        (Some((_, own)), Direction::Receive) => own,
    };
    u64::from(u16::MAX) << scale
}

fn capped(window: u64, round_trip: Duration, is_growing: bool, cap: WindowCap) -> Reason {
    let window = window.min(cap.on_path(round_trip));
    match is_growing {
        true => Reason::Growing { window, round_trip },
        false => Reason::Steady { window, round_trip },
    }
}

fn wanted(reason: Reason, overhead: f64, cap: WindowCap) -> u64 {
    let payload = match reason {
        Reason::Idle => 0,
        Reason::Steady { window, .. } => window.saturating_mul(2),
        // Assumes that the window doubles by the next scan or soon after.
        Reason::Growing { window, round_trip } => window
            .saturating_mul(4)
            .min(cap.on_path(round_trip).saturating_mul(2)),
    };
    (payload as f64 * overhead) as u64
}

fn useful(reason: Reason, overhead: f64, cap: WindowCap) -> u64 {
    match reason {
        Reason::Idle | Reason::Steady { .. } => wanted(reason, overhead, cap),
        Reason::Growing { round_trip, .. } => {
            (cap.on_path(round_trip).saturating_mul(2) as f64 * overhead) as u64
        }
    }
}

/// Returns the memory of the largest segment in either direction, in bytes.
fn segment(info: &TcpInfo) -> u64 {
    let largest = info.advmss.max(info.rcv_mss).max(info.snd_mss);
    (f64::from(largest) * OVERHEAD) as u64
}

/// Returns the memory that a byte of payload takes, measured in a queue of `payload` bytes that
/// takes `taken` bytes.
fn overhead(taken: u64, payload: u32) -> f64 {
    let (lowest, highest) = OVERHEAD_BOUNDS;
    match payload {
        MEASURABLE.. => (taken as f64 / f64::from(payload)).clamp(lowest, highest),
        _ => OVERHEAD,
    }
}

#[cfg(test)]
mod tests {
    use taut_observe::window::Sample;
    use taut_sys::sock_diag::{Connection, Internals, Memory, State};

    use super::*;

    /// Returns two samples, a second apart, of a connection with buffers of 1 MB. `set` changes
    /// each sample and receives its index.
    fn samples(set: impl Fn(u32, &mut Connection, &mut TcpInfo)) -> Vec<Sample> {
        let sample = |index: u32| {
            let mut info = TcpInfo::parse(&[0; 256]).unwrap();
            info.snd_mss = 1000;
            info.window_scales = Some((14, 14));
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
                bbr: None,
                cgroup: None,
                info: None,
                internals: Some(Internals::default()),
            };
            set(index, &mut connection, &mut info);
            connection.info = Some(info);
            Sample {
                at: Duration::from_secs(index.into()),
                connection,
            }
        };
        vec![sample(0), sample(1)]
    }

    fn demand_with(samples: &[Sample], direction: Direction, cap: WindowCap) -> Demand {
        demand(&Window::of(samples).unwrap(), direction, cap).unwrap()
    }

    fn demand_of(samples: &[Sample], direction: Direction) -> Demand {
        demand_with(samples, direction, WindowCap::default())
    }

    #[test]
    fn a_sender_wants_twice_its_congestion_window() {
        let samples = samples(|index, _, info| {
            info.snd_cwnd = 500;
            info.bytes_acked = Some(u64::from(index) * 5_000_000);
        });
        let demand = demand_of(&samples, Direction::Send);
        assert_eq!(demand.wanted, 1_500_000);
        assert_eq!(
            (demand.size, demand.is_fixed, demand.is_limiting),
            (1 << 20, Some(false), false)
        );
        // The other direction is idle.
        assert_eq!(demand_of(&samples, Direction::Receive).wanted, 0);
    }

    #[test]
    fn a_path_that_has_carried_more_than_its_present_window_counts() {
        let samples = samples(|index, _, info| {
            info.snd_cwnd = 10;
            info.delivery_rate = Some(20_000_000 * u64::from(1 - index));
            info.bytes_acked = Some(u64::from(index));
        });
        let Reason::Steady { window, .. } = demand_of(&samples, Direction::Send).reason else {
            panic!("{samples:?}");
        };
        assert_eq!(window, 2_000_000);
    }

    #[test]
    fn a_connection_limited_by_its_buffer_needs_more_than_it_has_shown() {
        let samples = samples(|index, connection, info| {
            info.bytes_received = Some(u64::from(index) * 640_000);
            info.rcv_wnd = Some(65_000);
            connection.internals.as_mut().unwrap().rcvbuf_locked = true;
        });
        let demand = demand_of(&samples, Direction::Receive);
        assert!(demand.is_limiting && demand.is_fixed == Some(true));
        assert_eq!(demand.wanted, 4 * 64_000 * 3 / 2);
    }

    #[test]
    fn a_round_trip_in_ticks_does_not_hide_that_a_short_path_is_limited() {
        let samples = |measured: u64, has_timestamps: bool| {
            samples(|index, _, info| {
                info.min_rtt = Some(Duration::from_micros(1240));
                info.rcv_rtt = Some(Duration::from_micros(measured));
                info.timestamps = has_timestamps;
                info.bytes_received = Some(u64::from(index) * 53_000_000);
                info.rcv_wnd = Some(80_000);
            })
        };
        for measured in [1000, 1240, 3000] {
            assert!(
                demand_of(&samples(measured, true), Direction::Receive).is_limiting,
                "{measured}"
            );
        }
        // The host answered late when the connection was opened: more than a tick, or there are no ticks.
        assert!(!demand_of(&samples(500, false), Direction::Receive).is_limiting);
        assert!(!demand_of(&samples(200, true), Direction::Receive).is_limiting);
    }

    #[test]
    fn only_on_long_paths_does_a_connection_need_more_than_the_widest_window() {
        assert_eq!(
            WindowCap::default().on_path(Duration::from_millis(50)),
            12_000_000
        );
        assert_eq!(
            WindowCap::default().on_path(Duration::from_millis(200)),
            25_000_000
        );
        for (millis, most) in [(10, 36_000_000), (200, 75_000_000)] {
            let samples = samples(|index, _, info| {
                info.snd_cwnd = 100_000 * (index + 1);
                info.min_rtt = Some(Duration::from_millis(millis));
                info.bytes_acked = Some(u64::from(index));
            });
            assert_eq!(demand_of(&samples, Direction::Send).wanted, most);
            // A configured window applies to all paths.
            let chosen = demand_with(&samples, Direction::Send, WindowCap::of(1_000_000));
            assert_eq!((chosen.wanted, chosen.useful), (3_000_000, 3_000_000));
        }
    }

    #[test]
    fn an_idle_connection_needs_nothing_beyond_what_is_queued() {
        let samples = samples(|_, connection, info| {
            info.snd_cwnd = 500;
            connection.memory.as_mut().unwrap().rmem_alloc = 5000;
        });
        let demand = demand_of(&samples, Direction::Receive);
        assert_eq!(
            (demand.reason, demand.wanted, demand.queued),
            (Reason::Idle, 0, 5000)
        );
        assert_eq!(demand_of(&samples, Direction::Send).reason, Reason::Idle);
    }

    #[test]
    fn the_window_offered_to_the_peer_is_committed() {
        let samples = samples(|_, connection, info| {
            (info.rcv_wnd, info.advmss) = (Some(1_000_000), 1448);
            let memory = connection.memory.as_mut().unwrap();
            (memory.rmem_alloc, memory.wmem_queued) = (5000, 7000);
        });
        let receives = demand_of(&samples, Direction::Receive);
        assert_eq!((receives.committed, receives.segment), (1_505_000, 2172));
        assert_eq!(demand_of(&samples, Direction::Send).committed, 7000);
    }

    #[test]
    fn overhead_is_measured_where_enough_is_queued() {
        assert_eq!(overhead(300_000, 100_000), 3.0);
        assert_eq!(overhead(u64::from(u32::MAX), 100_000), 8.0);
        assert_eq!(overhead(10, 100_000), 1.0);
        assert_eq!(overhead(300, 100), OVERHEAD);
    }

    #[test]
    fn no_window_is_wanted_beyond_what_the_window_scale_allows() {
        let samples = samples(|index, connection, info| {
            info.bytes_received = Some(u64::from(index) * 1_310_000);
            (info.rcv_wnd, info.window_scales) = (Some(131_000), Some((9, 1)));
            connection.internals.as_mut().unwrap().rcvbuf_locked = true;
        });
        let demand = demand_of(&samples, Direction::Receive);
        assert_eq!(demand.widest, Some(131_070));
        assert!(demand.is_limiting && demand.is_at_widest);
        assert_eq!((demand.wanted, demand.useful), (393_210, 393_210));
    }

    #[test]
    fn without_window_scaling_the_widest_window_has_sixteen_bits() {
        let samples = samples(|index, _, info| {
            (info.window_scales, info.snd_cwnd) = (None, 500);
            info.bytes_acked = Some(u64::from(index) * 5_000_000);
        });
        let demand = demand_of(&samples, Direction::Send);
        assert_eq!((demand.widest, demand.is_at_widest), (Some(65_535), false));
        assert_eq!(demand.wanted, 196_605);
    }
}
