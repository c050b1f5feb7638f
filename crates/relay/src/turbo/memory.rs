//! The memory that the kernel has for TCP.

use std::fs;

/// The share of the machine's memory at which the kernel puts TCP under pressure by default.
const SHARE: u64 = 16;
/// What is assumed if the kernel shows neither bound.
const UNKNOWN: u64 = 512 << 20;

/// Returns the bytes at which the kernel comes under pressure: the second value of `tcp_mem`. Network
/// namespaces other than the first do not show it; its default is taken there.
pub(super) fn for_tcp() -> u64 {
    let tcp_mem = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok();
    let memory = fs::read_to_string("/proc/meminfo").ok();
    let pressure = tcp_mem.and_then(|text| pressure(&text));
    pressure
        .or_else(|| Some(total(&memory?)? / SHARE))
        .unwrap_or(UNKNOWN)
}

fn pressure(tcp_mem: &str) -> Option<u64> {
    let pages: u64 = tcp_mem.split_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(pressure("188034\t250714\t376068\n"), Some(250_714 * page));
        assert_eq!(
            total("MemTotal:       24576000 kB\nMemFree: 1 kB\n"),
            Some(24_576_000 << 10)
        );
        for bad in ["", "MemTotal: x kB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(total(bad), None, "{bad}");
        }
        assert_eq!(pressure("1 18446744073709551615 3"), None);
    }
}
