//! Figures derived from the events of a connection, between two samples or since the first.

use taut_sys::sock_diag::Events;

/// The unit of times between signals, in seconds.
const TICK: f64 = 65_536e-9;

/// The events of a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventDelta(pub(crate) Events);

/// The distribution of a set of figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Number of figures.
    pub(crate) count: u32,
    /// Their mean.
    pub(crate) mean: f64,
    /// Their sample standard deviation; 0 for a single figure.
    pub(crate) deviation: f64,
}

// === impl EventDelta ===

impl EventDelta {
    /// Returns the events between two samples. The longest round trips and the fastest
    /// train are not differences, but those of the second sample.
    pub(crate) fn between(first: &Events, last: &Events) -> Self {
        Self(Events {
            rtts: last.rtts.wrapping_sub(first.rtts),
            rtt_sum: last.rtt_sum.saturating_sub(first.rtt_sum),
            rtt_most: last.rtt_most,
            rtt_most_recent: last.rtt_most_recent,
            trains: last.trains.wrapping_sub(first.trains),
            train_most_recent: last.train_most_recent,
            signals: last.signals.wrapping_sub(first.signals),
            fast_retransmits: last.fast_retransmits.wrapping_sub(first.fast_retransmits),
            signal_rtt_sum: last.signal_rtt_sum.saturating_sub(first.signal_rtt_sum),
            signal_cwnd_sum: last.signal_cwnd_sum.wrapping_sub(first.signal_cwnd_sum),
            signal_cwnd_squares: last
                .signal_cwnd_squares
                .wrapping_sub(first.signal_cwnd_squares),
            between: last.between.wrapping_sub(first.between),
            between_sum: last.between_sum.wrapping_sub(first.between_sum),
            between_squares: last.between_squares.wrapping_sub(first.between_squares),
            between_times: last.between_times.wrapping_sub(first.between_times),
            between_time_squares: last
                .between_time_squares
                .wrapping_sub(first.between_time_squares),
            between_products: last.between_products.wrapping_sub(first.between_products),
        })
    }

    /// Returns the mean round trip before a signal, in seconds.
    pub(crate) fn round_trip_at_signals(&self) -> Option<f64> {
        let signals = self.0.signals;
        (signals > 0).then(|| self.0.signal_rtt_sum.as_secs_f64() / f64::from(signals))
    }

    /// Returns the segments delivered from one signal to the next.
    pub(crate) fn intervals(&self) -> Option<Spread> {
        let of = &self.0;
        Spread::of(of.between, of.between_sum, of.between_squares)
    }

    /// Returns the rate between signals, in segments a second.
    pub(crate) fn rate(&self) -> f64 {
        let seconds = self.0.between_times as f64 * TICK;
        self.0.between_sum as f64 / seconds.max(TICK)
    }

    /// Returns the segments delivered from one signal to the next, with their deviation from the
    /// mean rate (the residual of a line through the origin).
    pub(crate) fn uneven(&self) -> Option<Spread> {
        let of = &self.0;
        if of.between < 2 || of.between_sum == 0 || of.between_times == 0 {
            return None;
        }
        let count = f64::from(of.between);
        let (sum, squares) = (of.between_sum as f64, of.between_squares as f64);
        let (times, products) = (of.between_times as f64, of.between_products as f64);
        let rate = sum / times;
        let residual =
            squares - 2.0 * rate * products + rate * rate * of.between_time_squares as f64;
        Some(Spread {
            count: of.between,
            mean: sum / count,
            deviation: (residual.max(0.0) / (count - 1.0)).sqrt(),
        })
    }

    /// Returns the congestion windows at the signals, in segments.
    pub(crate) fn windows(&self) -> Option<Spread> {
        let of = &self.0;
        Spread::of(of.signals, of.signal_cwnd_sum, of.signal_cwnd_squares)
    }
}

// === impl Spread ===

impl Spread {
    fn of(count: u32, sum: u64, squares: u64) -> Option<Self> {
        if count == 0 {
            return None;
        }
        let of = f64::from(count);
        let mean = sum as f64 / of;
        let variance = (squares as f64 / of - mean * mean).max(0.0);
        let sample = of / (of - 1.0).max(1.0);
        Some(Self {
            count,
            mean,
            deviation: (variance * sample).sqrt(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_the_figures() {
        // 2, 4, 6.
        let spread = Spread::of(3, 12, 56).unwrap();
        assert!((spread.mean - 4.0).abs() < 1e-12);
        assert!((spread.deviation - 2.0).abs() < 1e-12);
        assert_eq!(Spread::of(0, 0, 0), None);
        assert_eq!(Spread::of(1, 7, 49).unwrap().deviation, 0.0);
    }

    #[test]
    fn a_steady_rate_is_even_however_far_apart_signals_are() {
        let of = |pairs: &[(u64, u64)]| {
            let sum = |figure: fn(&(u64, u64)) -> u64| pairs.iter().map(figure).sum();
            let events = Events {
                between: pairs.len() as u32,
                between_sum: sum(|p| p.0),
                between_squares: sum(|p| p.0 * p.0),
                between_times: sum(|p| p.1),
                between_time_squares: sum(|p| p.1 * p.1),
                between_products: sum(|p| p.0 * p.1),
                ..Events::default()
            };
            EventDelta(events).uneven().map(|uneven| uneven.deviation)
        };
        assert!(of(&[(10, 1000), (20, 2000), (5, 500)]).unwrap() < 1e-6);
        // 10 below the mean of 20, and 10 above.
        let uneven = of(&[(10, 1000), (30, 1000)]).unwrap();
        assert!((uneven - 200_f64.sqrt()).abs() < 1e-9);
        assert_eq!(of(&[(10, 1000)]), None);
        let events = Events {
            between_sum: 2_000_000,
            between_times: 1000,
            ..Events::default()
        };
        // 1000 times 65.5 us.
        assert!((EventDelta(events).rate() - 2e6 / 65.536e-3).abs() < 1e-3);
        assert_eq!(of(&[(0, 1000), (0, 1000)]), None);
    }

    #[test]
    fn a_delta_is_the_difference_of_the_counts() {
        let millis = Duration::from_millis;
        let first = Events {
            rtts: u32::MAX,
            rtt_sum: millis(100),
            signals: 3,
            signal_rtt_sum: millis(30),
            signal_cwnd_sum: u64::MAX,
            between: 2,
            between_sum: 100,
            between_squares: 5000,
            between_times: u64::MAX,
            between_time_squares: 7,
            between_products: 9,
            ..Events::default()
        };
        let last = Events {
            rtts: 3,
            rtt_sum: millis(180),
            signals: 5,
            signal_rtt_sum: millis(90),
            signal_cwnd_sum: 19,
            signal_cwnd_squares: 202,
            between: 4,
            between_sum: 300,
            between_squares: 25_000,
            between_times: 19,
            between_time_squares: 207,
            between_products: 2009,
            ..Events::default()
        };
        let delta = EventDelta::between(&first, &last);
        assert_eq!((delta.0.rtts, delta.0.rtt_sum), (4, millis(80)));
        assert_eq!(delta.round_trip_at_signals(), Some(0.03));
        assert_eq!(delta.intervals().unwrap().mean, 100.0);
        let of = &delta.0;
        assert_eq!(
            (
                of.between_times,
                of.between_time_squares,
                of.between_products
            ),
            (20, 200, 2000)
        );
        // 9 and 11.
        let windows = delta.windows().unwrap();
        assert_eq!((windows.count, windows.mean), (2, 10.0));
        assert!((windows.deviation - 2.0_f64.sqrt()).abs() < 1e-12);
        let nothing = EventDelta::between(&last, &last);
        assert_eq!(nothing.round_trip_at_signals(), None);
        assert_eq!((nothing.intervals(), nothing.windows()), (None, None));
    }
}
