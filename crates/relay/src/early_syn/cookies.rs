//! Reads how many SYN cookies the kernel has sent. It sends them while a listener's queue is full
//! (`net.ipv4.tcp_syncookies`), which is the sign of a flood.

use std::io;

/// Returns the number of SYN cookies sent so far in the network namespace of the calling thread.
///
/// # Errors
/// If `/proc` is missing or does not count cookies.
pub fn read_syncookies_sent() -> io::Result<u64> {
    const NETSTAT: &str = "/proc/thread-self/net/netstat";
    let text = std::fs::read_to_string(NETSTAT)?;
    syncookies_sent(&text).ok_or_else(|| {
        io::Error::other(format!(
            "{NETSTAT} has no SyncookiesSent: this kernel is built without SYN cookies"
        ))
    })
}

/// Returns `SyncookiesSent` from the text of `/proc/net/netstat`: pairs of lines, names and then
/// values, each starting with the name of its group.
pub fn syncookies_sent(netstat: &str) -> Option<u64> {
    let mut of_tcp = netstat.lines().filter_map(|l| l.strip_prefix("TcpExt:"));
    let names = of_tcp.next()?.split_whitespace();
    let values = of_tcp.next()?.split_whitespace();
    let (_, value) = names
        .zip(values)
        .find(|(name, _)| *name == "SyncookiesSent")?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_found_by_its_name() {
        let text = "IpExt: InNoRoutes SyncookiesSent\nIpExt: 1 2\n\
                    TcpExt: EmbryonicRsts SyncookiesSent SyncookiesRecv\nTcpExt: 7 42 9\n";
        assert_eq!(syncookies_sent(text), Some(42));
    }

    #[test]
    fn netstat_text_without_the_counter_is_an_error() {
        for text in [
            "",
            "TcpExt: SyncookiesSent",
            "TcpExt: SyncookiesSent\n",
            "TcpExt: A SyncookiesSent\nTcpExt: 1\n",
            "TcpExt: SyncookiesSent\nTcpExt: many\n",
        ] {
            assert_eq!(syncookies_sent(text), None, "{text:?}");
        }
    }

    #[test]
    fn this_kernel_counts_its_cookies() {
        read_syncookies_sent().expect("Linux with SYN cookies");
    }
}
