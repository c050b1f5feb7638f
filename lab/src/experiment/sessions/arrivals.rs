//! When sessions start.

use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

/// Returns the start of each session within `load`: a Poisson process of `rate` sessions per second,
/// numbered from 0. The seed determines all of it.
pub(in crate::experiment) fn arrivals(
    seed: u64,
    rate: u32,
    load: Duration,
) -> impl Iterator<Item = (u64, Duration)> {
    let rate = f64::from(rate);
    let mut random = Pcg64Mcg::seed_from_u64(!seed);
    let mut at = 0.0;
    let gaps = std::iter::repeat_with(move || {
        let unit = (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        at -= (1.0 - unit).ln() / rate;
        Duration::from_secs_f64(at)
    });
    (0..).zip(gaps).take_while(move |(_, at)| *at < load)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Duration = Duration::from_secs(100);

    #[test]
    fn a_seed_is_a_sequence() {
        assert!(arrivals(1, 200, LOAD).eq(arrivals(1, 200, LOAD)));
        assert!(!arrivals(1, 200, LOAD).eq(arrivals(2, 200, LOAD)));
    }

    #[test]
    fn as_many_sessions_begin_as_the_rate_says() {
        let expected = LOAD.as_secs() as f64 * 200.0;
        let begun = arrivals(1, 200, LOAD).count() as f64;
        // Four standard deviations.
        assert!((begun - expected).abs() < 4.0 * expected.sqrt(), "{begun}");
        assert!(arrivals(1, 200, LOAD).map(|(_, at)| at).is_sorted());
    }
}
