//! The range of ports that the kernel chooses source ports from (net.ipv4.ip_local_port_range).

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

const SYSCTL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The time for which a range that was read counts as current.
const CURRENT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
struct Known {
    first: u16,
    last: u16,
    read_at: Instant,
}

thread_local! {
    // Threads may be in different network namespaces. Each remains in its own while it relays.
    static KNOWN: Cell<Option<Known>> = const { Cell::new(None) };
}

/// Returns whether the kernel may choose `port` as a source port.
pub(super) fn contains(port: u16) -> bool {
    let known = KNOWN
        .get()
        .filter(|known| known.read_at.elapsed() < CURRENT);
    let known = known.unwrap_or_else(|| {
        let range = read();
        let known = Known {
            first: *range.start(),
            last: *range.end(),
            read_at: Instant::now(),
        };
        KNOWN.set(Some(known));
        known
    });
    (known.first..=known.last).contains(&port)
}

/// Reads the range. Returns all ports if it cannot be read.
fn read() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string(SYSCTL).unwrap_or_default();
    parse(&text).unwrap_or(0..=u16::MAX)
}

fn parse(text: &str) -> Option<RangeInclusive<u16>> {
    let mut words = text.split_whitespace().map(str::parse);
    Some(words.next()?.ok()?..=words.next()?.ok()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_words() {
        assert_eq!(parse("32768\t60999\n").unwrap(), 32768..=60999);
        assert_eq!(parse("32768\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_source_port_that_the_kernel_has_chosen_is_in_the_range() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(contains(stream.local_addr().unwrap().port()));
    }
}
