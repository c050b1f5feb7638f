//! Addresses that make one peer look like many clients to `taut snoop`.
//!
//! `taut snoop` counts repaired flows per network of clients (a /24, a /48) and stops acknowledging
//! early for a network with three of them. With an address in a different network for each worker,
//! an experiment keeps getting early acknowledgements.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The networks of both guests and peers, one for each version of IP.
pub(super) const LANS: [&str; 2] = ["10.66.0.0/16", "fd66::/32"];
/// The prefix lengths of the addresses.
pub(super) const PREFIXES: [&str; 2] = ["16", "32 nodad"];

/// Returns the peer's address for a worker. There can be 100 workers.
pub(super) fn peer_addr(worker: u16, v6: bool) -> IpAddr {
    match v6 {
        false => Ipv4Addr::new(10, 66, 100 + worker as u8, 1).into(),
        true => Ipv6Addr::new(0xfd66, 0, 100 + worker, 0, 0, 0, 0, 1).into(),
    }
}

/// Returns the guest's address.
pub(super) fn guest_addr(v6: bool) -> IpAddr {
    match v6 {
        false => Ipv4Addr::new(10, 66, 0, 2).into(),
        true => Ipv6Addr::new(0xfd66, 0, 0, 0, 0, 0, 0, 2).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_workers_share_a_network() {
        let network = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => addr.octets()[..3].to_vec(),
            IpAddr::V6(addr) => addr.octets()[..6].to_vec(),
        };
        for v6 in [false, true] {
            let peers = (0..100).map(|worker| network(peer_addr(worker, v6)));
            let all: BTreeSet<_> = peers.chain([network(guest_addr(v6))]).collect();
            assert_eq!(all.len(), 101);
        }
    }
}
