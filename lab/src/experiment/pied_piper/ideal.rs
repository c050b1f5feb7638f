//! Lower bounds of download times on this route, and a download's distance from them. All times are
//! in seconds.

use super::download::Size;
use super::route;

/// Returns the time to the first byte of the ideal pipe of pied-piper 3.1 (figure 5a): the request
/// passes through directly and the response returns, in one round trip of the whole route.
pub(super) fn first_byte() -> f64 {
    route::rtt().as_secs_f64()
}

/// Returns the ideal pipe's time for a whole file: the round trip, and the time that the file's
/// bytes take at the rate of the slowest link. The headers that any transport adds are not counted,
/// because the result is a bound.
pub(super) fn total(size: Size) -> f64 {
    let slowest = route::LEGS.iter().map(|leg| leg.rate().0).min();
    let slowest = slowest.unwrap_or(u64::MAX);
    first_byte() + size.bytes() as f64 * 8.0 / slowest as f64
}

/// Returns the least time to the first byte for a client that uses TCP without TFO: its handshake
/// with the near relay, and the ideal pipe's time.
pub(super) fn first_byte_floor() -> f64 {
    (route::LEGS[0].rtt() + route::rtt()).as_secs_f64()
}

/// A download's distance from the ideal pipe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Distance {
    /// The time beyond the ideal time, in milliseconds.
    pub(super) over_ms: f64,
    /// The time as a multiple of the ideal time.
    pub(super) times: f64,
}

impl Distance {
    pub(super) fn of(measured: f64, size: Size) -> Self {
        let ideal = total(size);
        Self {
            over_ms: (measured - ideal) * 1e3,
            times: measured / ideal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_ideal_is_one_round_trip_and_the_bytes_at_the_slowest_links_rate() {
        assert!(close(first_byte(), 0.2737));
        // 10 MB take 0.8 s at 100 Mbit/s.
        assert!(close(total(Size::Mb10), 1.0737), "{}", total(Size::Mb10));
        assert!(close(total(Size::Kb10), 0.2745));
    }

    #[test]
    fn the_floor_has_a_handshake_with_the_near_relay_besides() {
        assert!(close(first_byte_floor(), 0.3064));
    }

    #[test]
    fn the_ideal_itself_is_at_no_distance() {
        let none = Distance::of(total(Size::Mb1), Size::Mb1);
        assert!(close(none.over_ms, 0.0) && close(none.times, 1.0));
        let twice = Distance::of(2.0 * total(Size::Mb1), Size::Mb1);
        assert!(close(twice.over_ms, 353.7) && close(twice.times, 2.0));
    }
}
