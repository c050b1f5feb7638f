//! Interception rules in the form that the kernel compares. Pure functions.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// The maximum number of rules: ports times destinations times devices, summed over the forwards
/// (`RULES_MAX` of the program).
pub const RULES_MAX: usize = 4096;

/// The connections that one forward intercepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taking {
    /// The destination ports; never empty.
    pub ports: Vec<u16>,
    /// The destination prefixes; empty: every address.
    pub destinations: Vec<IpNet>,
    /// The devices that the connections arrive on; empty: all but loopback.
    pub devices: Vec<String>,
    /// The listeners that get the connections, one for each intercepted family.
    pub listen: Vec<SocketAddr>,
}

/// A rule of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    /// 0: any device.
    pub(crate) ifindex: u32,
    pub(crate) port: u16,
    pub(crate) destination: IpNet,
}

// === impl Taking ===

impl Taking {
    /// Returns the destinations, each with the listener of its family.
    pub(crate) fn destinations(&self) -> Vec<(IpNet, SocketAddr)> {
        let every = [
            IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
            IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
        ];
        let asked = match self.destinations.is_empty() {
            true => &every[..],
            false => &self.destinations[..],
        };
        let with_listener = |net: &IpNet| {
            let of_family = |l: &&SocketAddr| l.is_ipv4() == matches!(net, IpNet::V4(_));
            Some((net.trunc(), *self.listen.iter().find(of_family)?))
        };
        asked.iter().filter_map(with_listener).collect()
    }

    /// Returns whether a connection to `addr` is intercepted. A connection to the listener's own
    /// address is not.
    pub(crate) fn covers(&self, addr: SocketAddr) -> bool {
        let ip: IpAddr = addr.ip().to_canonical();
        self.ports.contains(&addr.port())
            && self.destinations().iter().any(|(net, _)| net.contains(&ip))
    }

    /// Returns the number of rules that these connections take.
    pub(crate) fn rules(&self) -> usize {
        self.ports.len() * self.destinations.len().max(2) * self.devices.len().max(1)
    }
}

/// What a rule stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matched {
    /// The place of the forward's [`Taking`] in the list.
    pub(crate) taking: usize,
    /// The listener that gets the connections.
    pub(crate) listener: SocketAddr,
}

/// Returns all rules with what they stand for; of two equal rules, the first wins. `index` returns
/// the interface index of a device, or `None` if the device does not exist.
pub(crate) fn rules_of(
    takings: &[Taking],
    index: impl Fn(&str) -> Option<u32>,
) -> BTreeMap<Rule, Matched> {
    let mut rules = BTreeMap::new();
    for (i, taking) in takings.iter().enumerate() {
        let devices: Vec<u32> = match taking.devices.is_empty() {
            true => vec![0],
            false => taking.devices.iter().filter_map(|d| index(d)).collect(),
        };
        for (destination, listener) in taking.destinations() {
            for &port in &taking.ports {
                for &ifindex in &devices {
                    let rule = Rule {
                        ifindex,
                        port,
                        destination,
                    };
                    let matched = Matched {
                        taking: i,
                        listener,
                    };
                    rules.entry(rule).or_insert(matched);
                }
            }
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taking(ports: &[u16], destinations: &[&str], devices: &[&str], listen: &[&str]) -> Taking {
        Taking {
            ports: ports.to_vec(),
            destinations: destinations.iter().map(|d| d.parse().unwrap()).collect(),
            devices: devices.iter().map(|d| (*d).to_owned()).collect(),
            listen: listen.iter().map(|l| l.parse().unwrap()).collect(),
        }
    }

    fn matched(taking: usize, listener: &str) -> Matched {
        Matched {
            taking,
            listener: listener.parse().unwrap(),
        }
    }

    fn index(name: &str) -> Option<u32> {
        ["a", "b"]
            .iter()
            .position(|n| *n == name)
            .map(|i| i as u32 + 1)
    }

    #[test]
    fn every_destination_of_the_listeners_families_is_intercepted() {
        let both = taking(&[80], &[], &[], &["0.0.0.0:1", "[::]:1"]);
        assert_eq!(rules_of(&[both], index).len(), 2);
        let v4 = taking(&[80], &[], &[], &["0.0.0.0:1"]);
        let rules = rules_of(&[v4], index);
        let rule = Rule {
            ifindex: 0,
            port: 80,
            destination: "0.0.0.0/0".parse().unwrap(),
        };
        assert_eq!(
            rules.into_iter().collect::<Vec<_>>(),
            [(rule, matched(0, "0.0.0.0:1"))]
        );
    }

    #[test]
    fn missing_devices_have_no_rule_and_do_not_become_any() {
        let gone = taking(&[80], &[], &["c"], &["0.0.0.0:1"]);
        assert!(rules_of(&[gone], index).is_empty());
        let half = taking(&[80, 443], &["192.0.2.0/24"], &["a", "c"], &["0.0.0.0:1"]);
        assert_eq!(half.rules(), 2 * 2 * 2);
        assert_eq!(rules_of(&[half], index).len(), 2);
    }

    #[test]
    fn of_two_forwards_with_the_same_rule_the_first_gets_it() {
        let first = taking(&[80], &["192.0.2.0/24"], &[], &["0.0.0.0:1"]);
        let second = taking(&[80], &["192.0.2.0/24"], &[], &["0.0.0.0:2"]);
        let rules = rules_of(&[first, second], index);
        assert_eq!(
            rules.into_values().collect::<Vec<_>>(),
            [matched(0, "0.0.0.0:1")]
        );
    }

    #[test]
    fn connections_to_the_listener_itself_are_not_covered() {
        let taking = taking(
            &[80],
            &["192.0.2.0/24"],
            &[],
            &["10.0.0.1:8080", "[::]:8080"],
        );
        for (addr, covered) in [
            ("192.0.2.7:80", true),
            ("[::ffff:192.0.2.7]:80", true),
            ("192.0.2.7:8080", false),
            ("10.0.0.1:8080", false),
            ("10.0.0.1:80", false),
        ] {
            assert_eq!(taking.covers(addr.parse().unwrap()), covered, "{addr}");
        }
    }
}
