//! Converts a peer's address to a key of the table of known rates.

use std::net::IpAddr;

/// Returns `struct pipe_peer`: sixteen bytes in network order. An IPv4 peer has the same key when
/// it is reached through an IPv6 socket (RFC 4291 2.5.5.2).
pub(super) fn key(peer: IpAddr) -> [u8; 16] {
    match peer {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_peer_has_one_key_however_it_is_reached() {
        let plain = key("10.1.2.3".parse().expect("an address"));
        assert_eq!(plain, key("::ffff:10.1.2.3".parse().expect("an address")));
        assert_eq!(plain[10..], [0xFF, 0xFF, 10, 1, 2, 3]);
    }
}
