//! How long a leg of a route takes to carry a file, after its first byte.
//!
//! All times are in milliseconds.

use super::path::Path;
use super::{LegSettings, Options};

/// The payload of a full segment: an MTU of 1,500 without the headers of IPv4, TCP and its
/// timestamps.
const SEGMENT: f64 = 1448.0;

/// Returns the time from the first byte to the last of `options.size` bytes on a leg that begins
/// like any connection: to a client, to a destination, or on the direct path.
///
/// The window begins at `options.initial_window` and doubles each round trip (RFC 5681, 3.1) until
/// the leg's steady rate is reached: the least of the path's rate, the peer's window per round
/// trip, and what the loss allows. The time is continuous in the round trip and grows at most in
/// proportion to it.
pub(super) fn plain(path: Path, options: &Options) -> f64 {
    let rtt = f64::from(path.rtt_ms());
    let size = options.size as f64;
    let rate = bytes_per_ms(path.rate())
        .min(options.end_window as f64 / rtt)
        .min(loss_bound(rtt, path.loss()));
    let (mut window, mut left, mut time) = (options.initial_window.max(1) as f64, size, 0.0);
    while window < rate * rtt && left > window {
        left -= window;
        time += rtt;
        window *= 2.0;
    }
    time + left / rate
}

/// Returns the same for a leg between two relays with these settings. With turbo start it sends at
/// the rate of its settings or the path's, whichever is less, from its first byte (pied-piper 3.2),
/// at most a window a round trip. A lost segment does not lower its rate; if one is lost, it
/// arrives one round trip later.
pub(super) fn mesh(path: Path, settings: LegSettings, options: &Options) -> f64 {
    if !settings.turbo {
        return plain(path, options);
    }
    let rtt = f64::from(path.rtt_ms());
    let size = options.size as f64;
    let rate =
        bytes_per_ms(path.rate()).min(bytes_per_ms(Some(settings.rate))) * (1.0 - path.loss());
    let window = settings
        .window
        .map_or(f64::INFINITY, |window| window as f64);
    let some_lost = 1.0 - (1.0 - path.loss()).powf((size / SEGMENT).ceil());
    let sent = if size <= window {
        size / rate
    } else {
        window / rate + (size - window) / rate.min(window / rtt)
    };
    sent + some_lost * rtt
}

/// Returns the rate of CUBIC at this loss, in bytes per millisecond (RFC 9438, 5.1): the larger of
/// its own average window and Reno's, which is the bound of Mathis et al. (1997).
fn loss_bound(rtt_ms: f64, loss: f64) -> f64 {
    if loss <= 0.0 {
        return f64::INFINITY;
    }
    let cubic = 1.054 * ((rtt_ms / 1e3) / loss).powf(0.75);
    let reno = (1.5 / loss).sqrt();
    cubic.max(reno) * SEGMENT / rtt_ms
}

fn bytes_per_ms(rate: Option<u64>) -> f64 {
    rate.map_or(f64::INFINITY, |bits| bits as f64 / 8e3)
}
