//! Changes in words.

use std::time::Duration;

use bytesize::ByteSize;

use crate::actuate::setting;
use crate::demand::{Because, Demand, Direction};
use crate::plan::Change;
use crate::routes::scan;

fn size(bytes: u64) -> impl std::fmt::Display {
    ByteSize(bytes).display().iec()
}

fn buffer(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "send buffer",
        Direction::Receive => "receive buffer",
    }
}

/// What sets it.
fn option(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "SO_SNDBUF",
        Direction::Receive => "SO_RCVBUF",
    }
}

/// What is changed.
pub(crate) fn change(change: &Change) -> String {
    match change {
        Change::Free {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{} {} -> {}, and the kernel sizes it again, which {} had ended",
            buffer(*direction),
            size(demand.has),
            size(*to),
            option(*direction),
        ),
        Change::Widen {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{} {} -> {}, and it stays fixed, because nobody is known to have its socket",
            buffer(*direction),
            size(demand.has),
            size(*to)
        ),
        Change::Size {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{} {} -> {}, its share of the budget, where it stays until that is another",
            buffer(*direction),
            size(demand.has),
            size(*to)
        ),
        Change::Shrink {
            direction,
            demand,
            to,
            ..
        } => format!(
            "{} {} -> {}, until there is memory again",
            buffer(*direction),
            size(demand.has),
            size(*to)
        ),
        Change::Restore { direction, .. } => {
            format!("{} as it was before memory was short", buffer(*direction))
        }
        Change::Start { from, to } => format!(
            "{}, the third figure: {from} -> {to} ({} -> {})",
            setting(Direction::Send),
            size(*from),
            size(*to)
        ),
        Change::Maximum {
            direction,
            from,
            to,
        } => format!(
            "{}, the third figure: {from} -> {to} ({} -> {})",
            setting(*direction),
            size(*from),
            size(*to)
        ),
        Change::Setting {
            setting,
            interface,
            from,
            to,
        } => format!("{}: {from} -> {to}", setting.name(*interface)),
        Change::Route { name, from, to } => scan::change(name, *from, *to),
    }
}

/// Why it is changed.
pub(crate) fn because(change: &Change) -> String {
    match change {
        Change::Free { demand, .. } | Change::Widen { demand, .. } => held(demand),
        Change::Size { demand, .. } => uses(demand),
        Change::Shrink { .. } => "TCP has nearly as much memory as net.ipv4.tcp_mem gives it before it slows everyone, and nothing goes this way".to_owned(),
        Change::Restore { .. } => "TCP has less memory than net.ipv4.tcp_mem gives it again".to_owned(),
        Change::Start { .. } => "a connection that begins takes of what is left of the budget before it has been looked at".to_owned(),
        Change::Maximum {
            direction: Direction::Receive,
            ..
        } => "a connection's window scale is fixed by it when it begins, for as long as it lasts".to_owned(),
        Change::Maximum {
            direction: Direction::Send,
            ..
        } => "a sender has no more on its way than its buffer holds, whatever its window scale lets it have".to_owned(),
        Change::Setting { setting, .. } => setting.because().to_owned(),
        Change::Route { .. } => scan::BECAUSE.to_owned(),
    }
}

fn held(demand: &Demand) -> String {
    match demand.because {
        Because::Idle => "nothing goes this way".to_owned(),
        Because::Shown { window, round_trip } | Because::Grows { window, round_trip } => format!(
            "a window of {} in each round trip of {:.1} ms is all that it lets through, {}",
            size(window),
            round_trip.as_secs_f64() * 1e3,
            rate(window, round_trip)
        ),
    }
}

fn uses(demand: &Demand) -> String {
    let Demand {
        wants,
        is_held,
        because,
        ..
    } = demand;
    match because {
        Because::Idle => "nothing goes this way".to_owned(),
        Because::Shown { window, round_trip } | Because::Grows { window, round_trip } => format!(
            "a window of {} in each round trip of {:.1} ms{} wants {}",
            size(*window),
            round_trip.as_secs_f64() * 1e3,
            match (is_held, because) {
                (true, _) => ", held by its buffer,",
                (false, Because::Grows { .. }) => ", and growing,",
                (false, _) => "",
            },
            size(*wants)
        ),
    }
}

/// What is expected of it.
pub(crate) fn expected(change: &Change) -> String {
    match change {
        Change::Free { direction, .. } => format!(
            "it grows with what the path takes, up to the third figure of {}",
            setting(*direction)
        ),
        Change::Widen { .. } => "it carries as much as that lets through".to_owned(),
        Change::Size { to, demand, .. } => match (*to < demand.has, demand.because) {
            (true, Because::Idle) => {
                "it holds no more when it wakes up, until its share is another".to_owned()
            }
            (true, _) => "what it holds beyond that goes to others".to_owned(),
            (false, _) => "it grows into it, if its path takes it".to_owned(),
        },
        Change::Shrink { .. } => {
            "it takes no more when it wakes up, and those that carry something may have it"
                .to_owned()
        }
        Change::Restore { .. } => "it can fill its path again".to_owned(),
        Change::Start { .. } => "what begins at once fits into the budget".to_owned(),
        Change::Maximum {
            direction: Direction::Receive,
            ..
        } => "connections that begin from now on can fill longer paths".to_owned(),
        Change::Maximum {
            direction: Direction::Send,
            ..
        } => "senders can fill longer paths".to_owned(),
        Change::Setting { setting, .. } => setting.expected().to_owned(),
        Change::Route { from, to, .. } => scan::expected(*from, *to),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_said_with_its_reason_and_what_is_expected() {
        let of = Change::Free {
            cookie: 1,
            direction: Direction::Receive,
            demand: Demand {
                has: 131_072,
                queued: 0,
                promised: 0,
                segment: 0,
                wants: 1 << 20,
                most: 1 << 20,
                is_fixed: Some(true),
                is_held: true,
                because: Because::Grows {
                    window: 65_536,
                    round_trip: Duration::from_millis(100),
                },
            },
            to: 1 << 20,
        };
        assert_eq!(
            change(&of),
            "receive buffer 128.0 KiB -> 1.0 MiB, and the kernel sizes it again, which SO_RCVBUF had ended"
        );
        assert_eq!(
            because(&of),
            "a window of 64.0 KiB in each round trip of 100.0 ms is all that it lets through, 5.2 Mbit/s"
        );
        assert_eq!(
            expected(&of),
            "it grows with what the path takes, up to the third figure of net.ipv4.tcp_rmem"
        );
    }
}
