//! Figures as people read them.

/// Formats a rate, given in bytes a second, in bits a second.
pub(crate) fn rate(bytes: f64) -> String {
    let bits = bytes * 8.0;
    match bits {
        bits if bits >= 1e9 => format!("{:.2} Gbit/s", bits / 1e9),
        bits if bits >= 1e6 => format!("{:.1} Mbit/s", bits / 1e6),
        bits => format!("{:.1} kbit/s", bits / 1e3),
    }
}

pub(super) fn segments(count: f64) -> String {
    match count {
        1.0 => "a segment".to_owned(),
        count => format!("{count} segments"),
    }
}

pub(super) fn bytes(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1048576.0 => format!("{:.1} MiB", bytes / 1048576.0),
        bytes if bytes >= 1024.0 => format!("{:.0} KiB", bytes / 1024.0),
        bytes => format!("{bytes:.0} B"),
    }
}

pub(super) fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 0.001 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.0} us", seconds * 1e6),
    }
}

pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        percent if percent >= 10.0 => format!("{percent:.0} %"),
        percent => format!("{percent:.2} %"),
    }
}
