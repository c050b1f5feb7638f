//! Defines the changes and decides which ones a scan requires. Pure.
//!
//! The kernel continues to tune most buffers. A buffer that an application has fixed and that
//! limits its connection is unlocked, so that the kernel tunes it again. The kernel's maxima are
//! raised to the needs of long paths.

use taut_observe::tcp_settings::TcpSettings;

use crate::demand::{Demand, Direction, WindowCap};
use crate::profile::interface_name::InterfaceName;
use crate::profile::settings::Setting;
use crate::routes::message::RouteKey;
use crate::routes::metrics::Metrics;

/// The kernel's maximum for buffers, as a multiple of the widest window of most paths. (With a
/// maximum of 24 MB, 7.6 MB were in flight: the kernel accounts three times the payload of a
/// segment.)
const MAXIMUM_PER_WINDOW: u64 = 5;

/// The machine's memory, as a multiple of the kernel's maximum: a quarter of what TCP may use, by
/// default a sixteenth, before the kernel slows every connection; twice the kernel's own.
const MEMORY_PER_MAXIMUM: u64 = 64;

/// A change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Unlock a buffer that an application has fixed, so that the kernel tunes it again. Where the
    /// kernel tunes no such buffer, enlarge it to what its path can use.
    Unlock {
        /// The socket's cookie.
        cookie: u64,
        /// Which of its buffers.
        direction: Direction,
        /// The needs of the connection.
        demand: Demand,
        /// The size to start from, in bytes with overhead. From its present size the buffer would
        /// not grow: the kernel enlarges a receive buffer only when more is read in a round trip
        /// than ever before, and the small buffer itself prevents that.
        to: u64,
    },
    /// Enlarge a fixed buffer that stays fixed, because no process is known to have the socket.
    Enlarge {
        /// The socket's cookie.
        cookie: u64,
        /// Which of its buffers.
        direction: Direction,
        /// The needs of the connection.
        demand: Demand,
        /// The new size, in bytes with overhead.
        to: u64,
    },
    /// Give a buffer its share of the budget, and lock it there.
    Resize {
        /// The socket's cookie.
        cookie: u64,
        /// Which of its buffers.
        direction: Direction,
        /// The needs of the connection.
        demand: Demand,
        /// The new size, in bytes with overhead.
        to: u64,
    },
    /// Shrink an idle buffer while memory is short.
    Shrink {
        /// The socket's cookie.
        cookie: u64,
        /// Which of its buffers.
        direction: Direction,
        /// The state of the buffer.
        demand: Demand,
        /// The new size, in bytes with overhead.
        to: u64,
    },
    /// Change nothing, because the window is as wide as its scale allows: only a new connection can
    /// be faster.
    Reconnect {
        /// The socket's cookie.
        cookie: u64,
        /// Which of its buffers.
        direction: Direction,
        /// The needs of the connection.
        demand: Demand,
        /// A setting of the namespace that is 0, and without which a new connection is no faster.
        needs: Option<&'static str>,
    },
    /// Restore a buffer that was shrunk while memory was short.
    Restore {
        /// The socket's cookie.
        cookie: u64,
        /// Which of its buffers.
        direction: Direction,
    },
    /// Under a budget, bound the send buffers of new connections by the namespace's maximum.
    StartMaximum {
        /// The present maximum, in bytes.
        from: u64,
        /// The new maximum, in bytes.
        to: u64,
    },
    /// Raise a namespace's maximum for buffers: the third value of `tcp_rmem` or `tcp_wmem`.
    Maximum {
        /// The direction of the buffers: `tcp_rmem` or `tcp_wmem`.
        direction: Direction,
        /// The present maximum, in bytes.
        from: u64,
        /// The new maximum, in bytes.
        to: u64,
        /// A setting of the namespace that is 0, and without which the maximum has no effect.
        needs: Option<&'static str>,
    },
    /// Change a setting of a profile.
    Setting {
        /// The setting.
        setting: Setting,
        /// The name of the interface that the setting belongs to, if any.
        interface: Option<InterfaceName>,
        /// The present value.
        from: i64,
        /// The new value.
        to: i64,
    },
    /// Change the initial windows of connections over a route.
    Route {
        /// The route.
        key: RouteKey,
        /// Its present metrics.
        from: Metrics,
        /// Its new metrics.
        to: Metrics,
    },
}

// === impl Change ===

impl Change {
    /// Whether a buffer may hold more after the change than before.
    pub fn grows(&self) -> bool {
        match self {
            Self::Resize { demand, to, .. }
            | Self::Unlock { demand, to, .. }
            | Self::Enlarge { demand, to, .. } => *to > demand.size,
            Self::Shrink { .. } => false,
            Self::Restore { .. } => true,
            Self::Maximum { from, to, .. } | Self::StartMaximum { from, to } => to > from,
            Self::Setting { .. } | Self::Route { .. } | Self::Reconnect { .. } => false,
        }
    }
}

/// Returns the change that lets the kernel tune a buffer again, if the buffer is fixed and limits
/// its connection; or that enlarges one that the kernel does not tune, fixed or not, to `most` bytes
/// at most.
pub fn unlock(cookie: u64, direction: Direction, demand: &Demand, most: u64) -> Option<Change> {
    let is_untuned = demand
        .is_fixed
        .map(|is_fixed| is_fixed || !demand.is_tunable);
    let is_limiting = is_untuned == Some(true) && demand.is_limiting;
    let to = match demand.is_tunable {
        true => demand.wanted,
        // Nothing enlarges it later.
        false => demand.useful.min(most),
    };
    // The socket option has 31 bits, and the kernel doubles it.
    let to = to.min(u64::from(u32::MAX / 4));
    (is_limiting && to > demand.size).then_some(Change::Unlock {
        cookie,
        direction,
        demand: *demand,
        to,
    })
}

/// Returns the advice to reconnect, if the window limits the connection and is as wide as its scale
/// allows.
pub fn reconnect(
    cookie: u64,
    direction: Direction,
    demand: &Demand,
    settings: TcpSettings,
) -> Option<Change> {
    let is_capped = demand.is_limiting && demand.is_at_widest;
    is_capped.then_some(Change::Reconnect {
        cookie,
        direction,
        demand: *demand,
        needs: missing(direction, settings),
    })
}

/// Returns the setting that keeps the windows of new connections small, whatever their buffers may
/// hold.
fn missing(direction: Direction, settings: TcpSettings) -> Option<&'static str> {
    let is_off = |setting: Option<bool>| setting == Some(false);
    if is_off(settings.scales_windows) {
        return Some("net.ipv4.tcp_window_scaling");
    }
    let is_untuned = direction == Direction::Receive && is_off(settings.tunes_receive_buffers);
    is_untuned.then_some("net.ipv4.tcp_moderate_rcvbuf")
}

/// Returns the change that is possible without a process that has the socket. The buffer cannot be
/// unlocked, so it becomes as large as its path can use, up to `limit`.
pub fn without_owner(change: Change, limit: impl Fn(Direction) -> u32) -> Change {
    match change {
        Change::Unlock {
            cookie,
            direction,
            demand,
            to,
        } => Change::Enlarge {
            cookie,
            direction,
            demand,
            to: demand.useful.max(to).min(limit(direction).into()),
        },
        other => other,
    }
}

/// Returns the maximum that the kernel needs for this window, in bytes with overhead, on a machine with
/// `memory` bytes. One connection gets a part of the memory at most, unless the window is configured.
pub fn maximum_for(cap: WindowCap, memory: u64) -> u64 {
    let most = match cap.is_configured() {
        true => u64::MAX,
        false => memory / MEMORY_PER_MAXIMUM,
    };
    // The setting has 31 bits.
    cap.window()
        .saturating_mul(MAXIMUM_PER_WINDOW)
        .min(most)
        .min(i32::MAX as u64)
}

/// Returns the change that raises a namespace's maximum, if it is too low. A maximum is never
/// lowered.
pub fn raise_maximum(
    direction: Direction,
    from: u64,
    cap: WindowCap,
    memory: u64,
    settings: TcpSettings,
) -> Option<Change> {
    let to = maximum_for(cap, memory);
    (from < to).then_some(Change::Maximum {
        direction,
        from,
        to,
        needs: missing(direction, settings),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::demand::Reason;

    const MEMORY: u64 = 16 << 30;

    /// The demand of a buffer of 128 KiB that its application has fixed, and that limits its
    /// connection.
    pub(crate) fn limiting() -> Demand {
        Demand {
            size: 128 << 10,
            queued: 0,
            committed: 0,
            segment: 0,
            wanted: 1 << 20,
            useful: 1 << 20,
            is_fixed: Some(true),
            is_tunable: true,
            is_limiting: true,
            widest: None,
            is_at_widest: false,
            reason: Reason::Growing {
                window: 64 << 10,
                round_trip: Duration::from_millis(100),
            },
        }
    }

    #[test]
    fn a_fixed_buffer_that_limits_its_connection_is_unlocked() {
        let fixed = limiting();
        let to = |demand: Demand| match unlock(1, Direction::Receive, &demand, u64::MAX) {
            Some(Change::Unlock { to, .. }) => Some(to),
            _ => None,
        };
        assert_eq!(to(fixed), Some(1 << 20));
        // What the kernel does not tune gets no more than a maximum would allow on this machine.
        let untuned = Demand {
            is_tunable: false,
            useful: 64 << 20,
            ..fixed
        };
        let bounded = unlock(1, Direction::Receive, &untuned, 8 << 20);
        assert!(matches!(bounded, Some(Change::Unlock { to, .. }) if to == 8 << 20));
        assert_eq!(
            to(Demand {
                is_limiting: false,
                ..fixed
            }),
            None
        );
        assert_eq!(
            to(Demand {
                is_fixed: Some(false),
                ..fixed
            }),
            None
        );
        // It is unknown whether the buffer is fixed.
        assert_eq!(
            to(Demand {
                is_fixed: None,
                ..fixed
            }),
            None
        );
        assert_eq!(
            to(Demand {
                wanted: 128 << 10,
                ..fixed
            }),
            None
        );
        assert_eq!(
            to(Demand {
                wanted: u64::MAX,
                ..fixed
            }),
            Some((1 << 30) - 1)
        );
    }

    #[test]
    fn where_the_kernel_tunes_no_receive_buffer_any_that_limits_gets_what_its_path_can_use() {
        let settings = TcpSettings {
            tunes_receive_buffers: Some(false),
            ..TcpSettings::default()
        };
        let demand = Demand {
            useful: 3 << 20,
            ..limiting()
        };
        for is_fixed in [true, false] {
            let change = |direction| {
                let demand = Demand {
                    is_fixed: Some(is_fixed),
                    ..demand
                };
                unlock(
                    1,
                    direction,
                    &demand.in_namespace(direction, settings),
                    u64::MAX,
                )
            };
            let Some(Change::Unlock { to, .. }) = change(Direction::Receive) else {
                panic!("{is_fixed}");
            };
            assert_eq!(to, 3 << 20);
            // The kernel tunes send buffers all the same.
            let sends =
                matches!(change(Direction::Send), Some(Change::Unlock { to, .. }) if to == 1 << 20);
            assert_eq!(sends, is_fixed);
        }
    }

    #[test]
    fn only_a_new_connection_helps_one_at_its_widest_window() {
        let demand = Demand {
            size: 400_000,
            wanted: 393_210,
            widest: Some(131_070),
            is_at_widest: true,
            ..limiting()
        };
        assert_eq!(unlock(1, Direction::Receive, &demand, u64::MAX), None);
        assert!(reconnect(1, Direction::Receive, &demand, TcpSettings::default()).is_some());
        let wider = Demand {
            is_at_widest: false,
            ..demand
        };
        assert_eq!(
            reconnect(1, Direction::Receive, &wider, TcpSettings::default()),
            None
        );
    }

    #[test]
    fn one_connection_gets_a_part_of_a_small_machine() {
        let default = WindowCap::default();
        for (memory, most) in [
            (512 << 20, 8 << 20),
            (2 << 30, 32 << 20),
            (MEMORY, 60_000_000),
        ] {
            assert_eq!(maximum_for(default, memory), most);
        }
        assert_eq!(
            maximum_for(WindowCap::of(12_000_000), 512 << 20),
            60_000_000
        );
    }

    #[test]
    fn maxima_are_raised_and_never_lowered() {
        assert_eq!(
            raise_maximum(
                Direction::Send,
                4 << 20,
                WindowCap::default(),
                MEMORY,
                TcpSettings::default()
            ),
            Some(Change::Maximum {
                direction: Direction::Send,
                from: 4 << 20,
                to: 60_000_000,
                needs: None,
            })
        );
        assert_eq!(
            raise_maximum(
                Direction::Receive,
                64 << 20,
                WindowCap::default(),
                MEMORY,
                TcpSettings::default()
            ),
            None
        );
        let cap = WindowCap::of(u64::MAX);
        assert!(matches!(
            raise_maximum(
                Direction::Receive,
                64 << 20,
                cap,
                MEMORY,
                TcpSettings::default()
            ),
            Some(Change::Maximum {
                to: 0x7fff_ffff,
                ..
            })
        ));
    }
}
