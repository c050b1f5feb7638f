//! Finds forwards that lead back to themselves. Their connections would loop until the node is
//! full.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::net::addr::{ListenAddr, UpstreamAddr};

/// The addresses where a forward's connections arrive, and those where they go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge<'a> {
    pub(crate) listen: &'a [ListenAddr],
    pub(crate) upstream: &'a [UpstreamAddr],
}

/// Returns the index of the first forward whose connections can return to it through the node's own
/// listeners. `is_local` returns whether an address belongs to this machine.
///
/// A forward to another forward of the same node is not a loop if the second leads out of the node.
pub(crate) fn find(forwards: &[Edge<'_>], is_local: impl Fn(IpAddr) -> bool) -> Option<usize> {
    let returns = |start: &usize| returns(forwards, *start, forwards[*start].upstream, &is_local);
    (0..forwards.len()).find(returns)
}

/// Returns whether connections of the forward `start` that go to one of `first` can return to it. `is_local` is asked
/// for these addresses, and for all of the forwards that they reach.
pub(crate) fn returns(
    forwards: &[Edge<'_>],
    start: usize,
    first: &[UpstreamAddr],
    is_local: impl Fn(IpAddr) -> bool,
) -> bool {
    let leads_to = |upstream: &[UpstreamAddr], to: usize| {
        let listen = forwards[to].listen;
        let reaches_any = |addr: &UpstreamAddr| {
            let mut listen = listen.iter();
            listen.any(|listen| reaches(addr.0, listen.0, &is_local))
        };
        upstream.iter().any(reaches_any)
    };
    let mut seen = vec![false; forwards.len()];
    let mut open = vec![first];
    while let Some(upstream) = open.pop() {
        for next in (0..forwards.len()).filter(|&next| leads_to(upstream, next)) {
            if next == start {
                return true;
            }
            if !std::mem::replace(&mut seen[next], true) {
                open.push(forwards[next].upstream);
            }
        }
    }
    false
}

/// Returns whether connecting to `upstream` arrives at `listen`.
fn reaches(upstream: SocketAddr, listen: SocketAddr, is_local: impl Fn(IpAddr) -> bool) -> bool {
    if upstream.port() != listen.port() {
        return false;
    }
    // Linux connects to IPv4-mapped addresses over IPv4; the unspecified address is this host.
    let upstream = match upstream.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    let listen = listen.ip().to_canonical();
    upstream == listen
        || listen.is_unspecified() && listen.is_ipv4() == upstream.is_ipv4() && is_local(upstream)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the loop among forwards written as (listen, to). 10.0.0.1 and loopback belong to this
    /// machine.
    fn found(forwards: &[(&str, &str)]) -> Option<usize> {
        let addrs: Vec<_> = forwards
            .iter()
            .map(|(listen, to)| {
                (
                    [ListenAddr(listen.parse().unwrap())],
                    [UpstreamAddr(to.parse().unwrap())],
                )
            })
            .collect();
        let edges: Vec<_> = addrs
            .iter()
            .map(|(listen, upstream)| Edge { listen, upstream })
            .collect();
        find(&edges, |ip| {
            ip.is_loopback() || ip == IpAddr::from([10, 0, 0, 1])
        })
    }

    #[test]
    fn a_forward_to_its_own_listener_is_a_loop_however_it_is_written() {
        for (listen, to) in [
            ("127.0.0.1:70", "127.0.0.1:70"),
            ("0.0.0.0:70", "10.0.0.1:70"),
            ("127.0.0.1:70", "[::ffff:127.0.0.1]:70"),
            ("127.0.0.1:70", "0.0.0.0:70"),
            ("[::1]:70", "[::]:70"),
            ("[::]:70", "[::1]:70"),
        ] {
            assert_eq!(found(&[(listen, to)]), Some(0), "{listen} -> {to}");
        }
    }

    #[test]
    fn a_forward_elsewhere_is_not_a_loop() {
        for (listen, to) in [
            ("127.0.0.1:70", "127.0.0.1:71"),
            ("0.0.0.0:70", "10.0.0.2:70"),
            ("127.0.0.1:70", "10.0.0.1:70"),
            ("0.0.0.0:70", "[::1]:70"),
        ] {
            assert_eq!(found(&[(listen, to)]), None, "{listen} -> {to}");
        }
    }

    #[test]
    fn only_the_new_addresses_of_a_destination_are_looked_for_on_this_machine() {
        let addr = |text: &str| text.parse().unwrap();
        let listen = [ListenAddr(addr("0.0.0.0:70"))];
        let upstream: Vec<_> = (1..=200)
            .map(|last| UpstreamAddr(SocketAddr::from(([192, 0, 2, last], 70))))
            .collect();
        let edges = [Edge {
            listen: &listen,
            upstream: &upstream,
        }];
        let asked = std::cell::Cell::new(0);
        let is_local = |ip: IpAddr| {
            asked.set(asked.get() + 1);
            ip == IpAddr::from([10, 0, 0, 1])
        };
        assert!(!returns(&edges, 0, &upstream[..2], is_local));
        assert_eq!(asked.get(), 2);
        assert!(returns(
            &edges,
            0,
            &[UpstreamAddr(addr("10.0.0.1:70"))],
            is_local
        ));
    }

    #[test]
    fn a_chain_that_leads_out_is_not_a_loop_and_a_cycle_is() {
        let chain = [
            ("127.0.0.1:70", "127.0.0.1:71"),
            ("127.0.0.1:71", "10.0.0.2:22"),
        ];
        assert_eq!(found(&chain), None);
        let circle = [
            ("127.0.0.1:69", "127.0.0.1:70"),
            ("127.0.0.1:70", "127.0.0.1:71"),
            ("127.0.0.1:71", "127.0.0.1:70"),
        ];
        assert_eq!(found(&circle), Some(1));
    }
}
