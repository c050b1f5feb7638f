//! Describes a change in English: the change itself, its reason, and its expected effect.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use taut_sys::plural::counted;

use crate::demand::{Demand, Direction, Reason};
use crate::plan::Change;
use crate::routes::metrics::Metrics;
use crate::sysctl::buffer_limits_name;

const IDLE: &str = "this direction of the connection is idle";

/// The setting without which the kernel enlarges no receive buffer.
const TUNE_RECEIVE: &str = "net.ipv4.tcp_moderate_rcvbuf";

/// Describes the change.
pub(crate) fn change(change: &Change) -> String {
    match change {
        Change::Unlock {
            direction,
            demand,
            to,
            ..
        } if !demand.is_tunable => resized(*direction, demand, *to),
        Change::Unlock {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{}, and the kernel tunes it again ({} had fixed it)",
            resized(*direction, demand, *to),
            option(*direction),
        ),
        Change::Enlarge {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{}, still fixed, because no process is known to have the socket",
            resized(*direction, demand, *to),
        ),
        Change::Resize {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{}, its share of the budget, fixed until the share changes",
            resized(*direction, demand, *to),
        ),
        Change::Shrink {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{}, until memory is no longer short",
            resized(*direction, demand, *to),
        ),
        Change::Reconnect {
            direction, demand, ..
        } => format!(
            "the {} is left at {}",
            buffer(*direction),
            size(demand.size)
        ),
        Change::Restore { direction, .. } => {
            format!(
                "{} back to its size from before memory was short",
                buffer(*direction)
            )
        }
        Change::StartMaximum { from, to } => maximum(Direction::Send, *from, *to),
        Change::Maximum {
            direction,
            from,
            to,
            ..
        } => maximum(*direction, *from, *to),
        Change::Setting {
            setting,
            interface,
            from,
            to,
        } => format!("{}: {from} -> {to}", setting.name(*interface)),
        Change::Route { key, from, to } => {
            let changed = to.among(Metrics {
                initcwnd: to.initcwnd.filter(|_| to.initcwnd != from.initcwnd),
                initrwnd: to.initrwnd.filter(|_| to.initrwnd != from.initrwnd),
            });
            format!("route {key}: {changed}")
        }
    }
}

/// Returns the reason for the change.
pub(crate) fn reason(change: &Change) -> String {
    match change {
        Change::Unlock { demand, .. } if !demand.is_tunable => format!(
            "{}, and the kernel enlarges no receive buffer while {TUNE_RECEIVE} is 0",
            limit(demand)
        ),
        Change::Unlock { demand, .. } | Change::Enlarge { demand, .. } => limit(demand),
        Change::Resize { demand, .. } => need(demand),
        Change::Shrink { .. } => format!(
            "TCP uses nearly as much memory as net.ipv4.tcp_mem allows before the kernel slows every connection, and {IDLE}"
        ),
        Change::Reconnect { demand, .. } => format!(
            "its window scale allows no window beyond {}: {}; the handshake fixed the scale, by the buffer that the \
             application had set or by the kernel's maximum",
            size(demand.widest.unwrap_or_default()),
            limit(demand)
        ),
        Change::Restore { .. } => {
            "TCP uses clearly less memory than net.ipv4.tcp_mem allows again".to_owned()
        }
        Change::StartMaximum { .. } => {
            "a new connection takes from the rest of the budget before its demand is known"
                .to_owned()
        }
        Change::Maximum {
            direction: Direction::Receive,
            ..
        } => "it fixes the window scale of a connection for good when the connection begins"
            .to_owned(),
        Change::Maximum {
            direction: Direction::Send,
            ..
        } => "a sender has no more in flight than its buffer holds, whatever its window scale allows"
            .to_owned(),
        Change::Setting { setting, .. } => setting.reason().to_owned(),
        Change::Route { .. } => "requested; without it, the kernel begins each connection with 10 segments (RFC 6928), whatever its path can carry".to_owned(),
    }
}

/// Returns the expected effect of the change.
pub(crate) fn expected(change: &Change) -> String {
    match change {
        Change::Unlock { demand, .. } if is_bounded_by_scale(demand) => format!(
            "it grows to the widest window that its window scale allows, {}: only a new connection can have a wider one",
            size(demand.widest.unwrap_or_default())
        ),
        Change::Unlock { demand, .. } if !demand.is_tunable => format!(
            "it can fill its path, in a buffer that stays at this size; with {TUNE_RECEIVE}=1 the kernel would size it"
        ),
        Change::Reconnect {
            needs: Some(setting),
            ..
        } => format!("none while {setting} is 0: with 1, a new connection can have a wider window"),
        Change::Reconnect { direction, .. } => format!(
            "a new connection can have a wider window, if its application does not set {} before it connects or listens",
            option(*direction)
        ),
        Change::Unlock { direction, .. } => format!(
            "it grows with what the path can use, up to the third value of {}",
            buffer_limits_name(*direction)
        ),
        Change::Enlarge { .. } => "the connection uses what the larger buffer allows".to_owned(),
        Change::Resize { to, demand, .. } => match (*to < demand.size, demand.reason) {
            (true, Reason::Idle) => {
                "it holds no more when it becomes active, until its share changes".to_owned()
            }
            (true, _) => "the memory beyond its share goes to others".to_owned(),
            (false, _) => "it grows into it if its path can use it".to_owned(),
        },
        Change::Shrink { .. } => {
            "it holds no more when it becomes active, and active connections can use the memory"
                .to_owned()
        }
        Change::Restore { .. } => "it can fill its path again".to_owned(),
        Change::StartMaximum { .. } => {
            "connections that begin at the same time fit into the budget".to_owned()
        }
        Change::Maximum {
            needs: Some(setting),
            ..
        } => format!("none while {setting} is 0: with 1, new connections can fill longer paths"),
        Change::Maximum {
            direction: Direction::Receive,
            ..
        } => "connections that begin from now on can fill longer paths".to_owned(),
        Change::Maximum {
            direction: Direction::Send,
            ..
        } => "senders can fill longer paths".to_owned(),
        Change::Setting { setting, .. } => setting.expected().to_owned(),
        Change::Route { from, to, .. } => initial_windows(*from, *to),
    }
}

/// Whether the window scale may end the growth soon: it allows at most four times the present
/// window.
fn is_bounded_by_scale(demand: &Demand) -> bool {
    let window = match demand.reason {
        Reason::Idle => return false,
        Reason::Steady { window, .. } | Reason::Growing { window, .. } => window,
    };
    demand.widest.is_some_and(|widest| widest / 4 <= window)
}

fn size(bytes: u64) -> impl fmt::Display {
    ByteSize(bytes).display().iec()
}

fn buffer(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "send buffer",
        Direction::Receive => "receive buffer",
    }
}

/// Returns the socket option with which an application fixes the buffer.
fn option(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "SO_SNDBUF",
        Direction::Receive => "SO_RCVBUF",
    }
}

fn resized(direction: Direction, demand: &Demand, to: u64) -> String {
    format!(
        "{} {} -> {}",
        buffer(direction),
        size(demand.size),
        size(to)
    )
}

fn maximum(direction: Direction, from: u64, to: u64) -> String {
    format!(
        "{}, the third value: {from} -> {to} ({} -> {})",
        buffer_limits_name(direction),
        size(from),
        size(to)
    )
}

/// Explains how the buffer limits its connection.
fn limit(demand: &Demand) -> String {
    match demand.reason {
        Reason::Idle => IDLE.to_owned(),
        Reason::Steady { window, round_trip } | Reason::Growing { window, round_trip } => format!(
            "it allows no more than a window of {} in each round trip of {:.1} ms, {}",
            size(window),
            round_trip.as_secs_f64() * 1e3,
            rate(window, round_trip)
        ),
    }
}

/// Explains the needs of the connection.
fn need(demand: &Demand) -> String {
    let Demand {
        wanted,
        is_limiting,
        reason,
        ..
    } = demand;
    match reason {
        Reason::Idle => IDLE.to_owned(),
        Reason::Steady { window, round_trip } | Reason::Growing { window, round_trip } => format!(
            "a window of {} in each round trip of {:.1} ms{} needs {}",
            size(*window),
            round_trip.as_secs_f64() * 1e3,
            match (is_limiting, reason) {
                (true, _) => ", limited by the buffer,",
                (false, Reason::Growing { .. }) => ", still growing,",
                (false, _) => "",
            },
            size(*wanted)
        ),
    }
}

fn rate(window: u64, round_trip: Duration) -> String {
    let bits = 8.0 * window as f64 / round_trip.as_secs_f64().max(1e-6);
    match bits {
        bits if bits >= 1e9 => format!("{:.1} Gbit/s", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{:.0} kbit/s", bits / 1e3),
    }
}

fn initial_windows(from: Metrics, to: Metrics) -> String {
    let sends = to.initcwnd.filter(|_| to.initcwnd != from.initcwnd);
    let receives = to.initrwnd.filter(|_| to.initrwnd != from.initrwnd);
    let sends = sends.map(|count| {
        format!(
            "a connection over it sends up to {} in the first round trip",
            counted(count, "segment")
        )
    });
    let receives = receives.map(|count| {
        format!(
            "its peer may send up to {} in the first round trip, or 64 KiB if that is less",
            counted(count, "segment")
        )
    });
    let both: Vec<String> = sends.into_iter().chain(receives).collect();
    both.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use taut_observe::tcp_settings::TcpSettings;

    use crate::demand::WindowCap;
    use crate::plan::tests::limiting;
    use crate::plan::{raise_maximum, reconnect};

    #[test]
    fn a_change_is_reported_with_its_reason_and_its_expected_effect() {
        let of = Change::Unlock {
            cookie: 1,
            direction: Direction::Receive,
            demand: limiting(),
            to: 1 << 20,
        };
        assert_eq!(
            change(&of),
            "receive buffer 128.0 KiB -> 1.0 MiB, and the kernel tunes it again (SO_RCVBUF had fixed it)"
        );
        assert_eq!(
            reason(&of),
            "it allows no more than a window of 64.0 KiB in each round trip of 100.0 ms, 5.2 Mbit/s"
        );
        assert_eq!(
            expected(&of),
            "it grows with what the path can use, up to the third value of net.ipv4.tcp_rmem"
        );
    }

    #[test]
    fn growth_is_not_promised_beyond_the_window_scale() {
        let demand = Demand {
            widest: Some(131_070),
            ..limiting()
        };
        let (cookie, direction) = (1, Direction::Receive);
        let unlock = Change::Unlock {
            cookie,
            direction,
            demand,
            to: 393_210,
        };
        assert_eq!(
            expected(&unlock),
            "it grows to the widest window that its window scale allows, 128.0 KiB: only a new connection can have a wider one"
        );
        let reconnect = Change::Reconnect {
            cookie,
            direction,
            demand,
            needs: None,
        };
        assert!(
            reason(&reconnect)
                .starts_with("its window scale allows no window beyond 128.0 KiB: it allows")
        );
        assert!(expected(&reconnect).contains("if its application does not set SO_RCVBUF"));
    }

    #[test]
    fn nothing_is_promised_that_a_setting_prevents() {
        let demand = Demand {
            is_tunable: false,
            ..limiting()
        };
        let (cookie, direction) = (1, Direction::Receive);
        let enlarge = Change::Unlock {
            cookie,
            direction,
            demand,
            to: 36 << 20,
        };
        assert_eq!(change(&enlarge), "receive buffer 128.0 KiB -> 36.0 MiB");
        assert!(reason(&enlarge).ends_with("while net.ipv4.tcp_moderate_rcvbuf is 0"));
        assert!(!expected(&enlarge).contains("grows"));
        let settings = TcpSettings {
            tunes_receive_buffers: Some(false),
            ..TcpSettings::default()
        };
        let raised =
            raise_maximum(direction, 1 << 20, WindowCap::default(), 16 << 30, settings).unwrap();
        assert!(expected(&raised).starts_with("none while net.ipv4.tcp_moderate_rcvbuf is 0"));
        let settings = TcpSettings {
            scales_windows: Some(false),
            ..TcpSettings::default()
        };
        let at_widest = Demand {
            is_at_widest: true,
            ..limiting()
        };
        let reconnect = reconnect(cookie, direction, &at_widest, settings).unwrap();
        assert!(expected(&reconnect).starts_with("none while net.ipv4.tcp_window_scaling is 0"));
    }
}
