//! Figures in words.

use std::time::Duration;

/// A rate in bytes a second, as networks count it.
pub(super) fn rate(bytes: f64) -> String {
    let bits = bytes * 8.0;
    match bits {
        bits if bits >= 1e9 => format!("{:.2} Gbit/s", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{:.1} kbit/s", bits / 1e3),
    }
}

/// An amount in bytes.
pub(super) fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1048576.0 => format!("{:.1} MiB", bytes / 1048576.0),
        bytes if bytes >= 1024.0 => format!("{:.0} KiB", bytes / 1024.0),
        bytes => format!("{bytes:.0} B"),
    }
}

/// A time in seconds.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 0.001 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

/// A share.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        percent if percent >= 10.0 => format!("{percent:.0} %"),
        percent => format!("{percent:.2} %"),
    }
}

/// In seconds.
pub(super) fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}
