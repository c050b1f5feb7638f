//! The addresses of relays, by which `taut_pipe` knows them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use taut_mesh::members::MemberName;

use crate::turbo::congestion_control::{Leg, LegStart};

/// The maximum number of addresses. Legs to further ones have the settings of `[relay.mesh]`, and no
/// figures of their own.
const MAX_ADDRESSES: usize = 4096;

/// A change of the settings of an address; `None`: it has the defaults.
type Change = (IpAddr, Option<LegStart>);

/// Relays by their addresses, and the settings that the addresses have. Pure.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// The relays with settings of their own.
    of_members: HashMap<MemberName, LegStart>,
    addresses: BTreeMap<IpAddr, Peer>,
    /// The settings in place.
    set: BTreeMap<IpAddr, LegStart>,
}

/// A relay that has an address.
#[derive(Clone, Debug)]
struct Peer {
    member: MemberName,
    /// Whether it has proven itself from there; else the address is only dialled.
    proven: bool,
}

impl Peers {
    /// Adopts another configuration. The addresses are the `dialled` ones from now on, and those from which
    /// members that are still `present` have proven themselves. Returns the changes to make.
    pub(super) fn adopt(
        &mut self,
        of_members: HashMap<MemberName, LegStart>,
        dialled: Vec<(MemberName, IpAddr)>,
        present: impl Fn(&MemberName) -> bool,
    ) -> Vec<Change> {
        self.of_members = of_members;
        let before = std::mem::take(&mut self.addresses);
        for (member, address) in dialled {
            let address = address.to_canonical();
            let known = before.get(&address);
            let proven = known.is_some_and(|peer| peer.proven && peer.member == member);
            self.note(address, Peer { member, proven });
        }
        for (address, peer) in before {
            let is_kept = peer.proven && present(&peer.member);
            if is_kept && !self.addresses.contains_key(&address) {
                self.note(address, peer);
            }
        }
        // Those that lose their settings first: they make room.
        let gone = self.set.keys();
        let gone = gone.filter(|address| !self.addresses.contains_key(address));
        let all: Vec<_> = gone.chain(self.addresses.keys()).copied().collect();
        all.into_iter().filter_map(|ip| self.change(ip)).collect()
    }

    /// Records that `member` has proven itself from this address. Returns the change to make.
    pub(super) fn proven(&mut self, member: &MemberName, address: IpAddr) -> Option<Change> {
        let peer = Peer {
            member: member.clone(),
            proven: true,
        };
        self.note(address, peer);
        self.change(address)
    }

    /// Records who has this address, if there is room.
    fn note(&mut self, address: IpAddr, peer: Peer) {
        if self.addresses.len() < MAX_ADDRESSES || self.addresses.contains_key(&address) {
            self.addresses.insert(address, peer);
        }
    }

    /// Returns the change that an address needs, and takes it for made.
    fn change(&mut self, address: IpAddr) -> Option<Change> {
        let peer = self.addresses.get(&address);
        let wanted = peer.and_then(|peer| self.of_members.get(&peer.member).copied());
        if self.set.get(&address).copied() == wanted {
            return None;
        }
        match wanted {
            Some(start) => self.set.insert(address, start),
            None => self.set.remove(&address),
        };
        Some((address, wanted))
    }

    /// Returns all addresses, each with the relay that has it.
    pub(super) fn addresses(&self) -> Vec<(MemberName, IpAddr)> {
        let all = self.addresses.iter();
        all.map(|(address, peer)| (peer.member.clone(), *address))
            .collect()
    }
}

/// Returns the figures of each relay that has any, over all its addresses, in the order of names.
pub(super) fn figures(
    addresses: Vec<(MemberName, IpAddr)>,
    of: impl Fn(IpAddr) -> Option<Leg>,
) -> Vec<(MemberName, Leg)> {
    let mut all: BTreeMap<String, (MemberName, Leg)> = BTreeMap::new();
    for (member, address) in addresses {
        let Some(leg) = of(address) else {
            continue;
        };
        all.entry(member.as_str().to_owned())
            .and_modify(|(_, sum)| {
                sum.rate = sum.rate.max(leg.rate);
                sum.window = sum.window.max(leg.window);
                sum.active += leg.active;
            })
            .or_insert((member, leg));
    }
    all.into_values().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests {
    use super::*;

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn name(name: &str) -> MemberName {
        name.parse().unwrap()
    }

    fn start(rate: u64) -> LegStart {
        LegStart {
            rate,
            ..LegStart::default()
        }
    }

    #[test]
    fn only_what_differs_is_changed() {
        let mut peers = Peers::default();
        let of = |rate| HashMap::from([(name("far"), start(rate))]);
        let dialled = || vec![(name("far"), ip(1)), (name("other"), ip(2))];
        assert_eq!(
            peers.adopt(of(1), dialled(), |_| true),
            [(ip(1), Some(start(1)))]
        );
        assert_eq!(peers.adopt(of(1), dialled(), |_| true), []);
        assert_eq!(
            peers.adopt(of(2), dialled(), |_| true),
            [(ip(1), Some(start(2)))]
        );
        assert_eq!(
            peers.proven(&name("far"), ip(3)),
            Some((ip(3), Some(start(2))))
        );
        assert_eq!(peers.proven(&name("far"), ip(3)), None);
        // Another relay has the address now.
        assert_eq!(peers.proven(&name("other"), ip(3)), Some((ip(3), None)));
        assert_eq!(
            peers.adopt(HashMap::new(), dialled(), |_| true),
            [(ip(1), None)]
        );
    }

    #[test]
    fn the_figures_of_a_relay_are_those_of_all_its_addresses() {
        let addresses = vec![
            (name("far"), ip(1)),
            (name("far"), ip(2)),
            (name("idle"), ip(3)),
        ];
        let leg = |address| {
            let (rate, active) = match address {
                a if a == ip(1) => (Some(5), 2),
                a if a == ip(2) => (None, 3),
                _ => return None,
            };
            Some(Leg {
                rate,
                window: 7,
                active,
            })
        };
        let all = Leg {
            rate: Some(5),
            window: 7,
            active: 5,
        };
        assert_eq!(figures(addresses, leg), [(name("far"), all)]);
    }

    #[test]
    fn addresses_of_the_past_are_forgotten_when_another_configuration_is_adopted() {
        let mut peers = Peers::default();
        let of = || HashMap::from([(name("far"), start(1)), (name("gone"), start(2))]);
        let dialled = |last| vec![(name("far"), ip(last))];
        peers.adopt(of(), dialled(1), |_| true);
        peers.proven(&name("far"), ip(3));
        peers.proven(&name("gone"), ip(4));
        // It is dialled elsewhere, and the other is no member any more.
        let changes = peers.adopt(of(), dialled(2), |member| *member == name("far"));
        let expected = [(ip(1), None), (ip(4), None), (ip(2), Some(start(1)))];
        assert_eq!(changes, expected);
        let known = [(name("far"), ip(2)), (name("far"), ip(3))];
        assert_eq!(peers.addresses(), known);
        // An address from which it has proven itself stays when it is not dialled any more.
        peers.proven(&name("far"), ip(2));
        peers.adopt(of(), dialled(2), |_| true);
        assert_eq!(peers.adopt(of(), Vec::new(), |_| true), []);
        assert_eq!(peers.addresses(), known);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let mut peers = Peers::default();
        for i in 0..=u32::try_from(MAX_ADDRESSES).unwrap() {
            peers.proven(&name("far"), IpAddr::from(i.to_be_bytes()));
        }
        assert_eq!(peers.addresses.len(), MAX_ADDRESSES);
        // Those that are dialled come first.
        let dialled = vec![(name("other"), ip(1))];
        peers.adopt(HashMap::new(), dialled, |_| true);
        assert_eq!(peers.addresses.len(), MAX_ADDRESSES);
        assert_eq!(peers.addresses[&ip(1)].member, name("other"));
    }
}
