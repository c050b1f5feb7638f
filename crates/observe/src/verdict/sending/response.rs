//! The rate that a congestion control reaches at a loss rate.

use super::control;
use super::lost::{LOSS_MATTERS, MATHIS, is_without_queue};
use crate::window::Window;

/// The window of CUBIC on a path of one second with a loss rate of one, in segments, for its
/// constants C of 0.4 and beta of 0.7 (RFC 9438 5.1).
const CUBIC: f64 = 1.054;
/// The minimum number of retransmitted segments from which a loss rate follows.
const LOST_LEAST: u32 = 5;

/// Returns the rate at this connection's loss rate and round trip, in bytes a second. `None` if too
/// few segments were lost, if a queue dropped them (its path is then full at times, and has no loss
/// rate of its own), or if the congestion control does not react to losses.
pub(in super::super) fn rate(window: &Window<'_>) -> Option<f64> {
    let loss = window.loss();
    let is_measured = window.repeated() >= LOST_LEAST && loss >= LOSS_MATTERS;
    if !is_measured || !is_without_queue(window) || control::is_model_based(window) {
        return None;
    }
    let rtt = window.mean_seconds(|info| info.rtt)?;
    let rto = window.mean_seconds(|info| Some(info.rto))?;
    let mss = f64::from(window.last().snd_mss);
    let has_cubic = window.samples().last().is_some_and(|sample| {
        let name = sample.connection.congestion_control;
        name.is_some_and(|name| name.as_str().starts_with("cubic"))
    });
    let cubic = if has_cubic { cubic(loss, rtt) } else { 0.0 };
    let segments = reno(loss, rtt, rto).max(cubic);
    Some(segments * mss)
}

/// Returns the rate of Reno in segments a second, time-outs included: equation 30 of Padhye,
/// Firoiu, Towsley and Kurose ("Modeling TCP throughput", 1998), for one acknowledgement per
/// segment. With few losses it is that of Mathis et al. (1997).
fn reno(loss: f64, rtt: f64, rto: f64) -> f64 {
    let recovery = rtt * loss.sqrt() / MATHIS;
    let timeouts = rto * f64::min(1.0, 3.0 * (3.0 * loss / 8.0).sqrt());
    1.0 / (recovery + timeouts * loss * (1.0 + 32.0 * loss * loss))
}

/// Returns the rate of CUBIC in segments a second, where it is faster than Reno (RFC 9438 5.1).
fn cubic(loss: f64, rtt: f64) -> f64 {
    CUBIC * (rtt / loss).powf(0.75) / rtt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_are_those_of_the_papers() {
        // RFC 9438, table 1: with a round trip of 0.1 s and a loss rate of 1e-4, CUBIC has an
        // average window of 187 segments.
        assert!((cubic(1e-4, 0.1) * 0.1 - 187.0).abs() < 2.0);
        // Mathis: 1.22 / (0.1 * sqrt(1e-4)) segments a second, when time-outs do not matter.
        assert!((reno(1e-4, 0.1, 0.0) - 1220.0).abs() < 1.0);
        // 14.2 ms for the round trips, and 2.95 ms for the time-outs.
        assert!((reno(0.03, 0.1, 0.3) - 58.3).abs() < 0.2);
    }
}
