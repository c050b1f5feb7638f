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
    addresses: BTreeMap<IpAddr, MemberName>,
    /// The settings in place.
    set: BTreeMap<IpAddr, LegStart>,
}

impl Peers {
    /// Adopts another configuration. Returns the changes to make.
    pub(super) fn adopt(
        &mut self,
        of_members: HashMap<MemberName, LegStart>,
        dialled: Vec<(MemberName, IpAddr)>,
    ) -> Vec<Change> {
        self.of_members = of_members;
        for (member, address) in dialled {
            self.note(&member, address.to_canonical());
        }
        let all: Vec<_> = self.addresses.keys().copied().collect();
        all.into_iter().filter_map(|ip| self.change(ip)).collect()
    }

    /// Records that `member` has this address. Returns the change to make.
    pub(super) fn proven(&mut self, member: &MemberName, address: IpAddr) -> Option<Change> {
        if !self.note(member, address) {
            return None;
        }
        self.change(address)
    }

    /// Records that `member` has this address, and returns whether that is new.
    fn note(&mut self, member: &MemberName, address: IpAddr) -> bool {
        let known = self.addresses.get(&address);
        let is_new =
            known != Some(member) && (known.is_some() || self.addresses.len() < MAX_ADDRESSES);
        if is_new {
            self.addresses.insert(address, member.clone());
        }
        is_new
    }

    /// Returns the change that an address needs, and takes it for made.
    fn change(&mut self, address: IpAddr) -> Option<Change> {
        let member = self.addresses.get(&address)?;
        let wanted = self.of_members.get(member).copied();
        if self.set.get(&address).copied() == wanted {
            return None;
        }
        match wanted {
            Some(start) => self.set.insert(address, start),
            None => self.set.remove(&address),
        };
        Some((address, wanted))
    }

    /// Returns the figures of each relay that has any, over all its addresses.
    pub(super) fn figures(&self, of: impl Fn(IpAddr) -> Option<Leg>) -> Vec<(MemberName, Leg)> {
        let mut all: BTreeMap<&str, (&MemberName, Leg)> = BTreeMap::new();
        for (address, member) in &self.addresses {
            let Some(leg) = of(*address) else {
                continue;
            };
            let sum = all.entry(member.as_str()).or_insert((member, leg));
            if !std::ptr::eq(sum.0, member) {
                sum.1.rate = sum.1.rate.max(leg.rate);
                sum.1.window = sum.1.window.max(leg.window);
                sum.1.active += leg.active;
            }
        }
        let all = all.into_values();
        all.map(|(member, leg)| (member.clone(), leg)).collect()
    }
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
        assert_eq!(peers.adopt(of(1), dialled()), [(ip(1), Some(start(1)))]);
        assert_eq!(peers.adopt(of(1), dialled()), []);
        assert_eq!(peers.adopt(of(2), dialled()), [(ip(1), Some(start(2)))]);
        assert_eq!(
            peers.proven(&name("far"), ip(3)),
            Some((ip(3), Some(start(2))))
        );
        assert_eq!(peers.proven(&name("far"), ip(3)), None);
        // Another relay has the address now.
        assert_eq!(peers.proven(&name("other"), ip(3)), Some((ip(3), None)));
        assert_eq!(peers.adopt(HashMap::new(), dialled()), [(ip(1), None)]);
    }

    #[test]
    fn the_figures_of_a_relay_are_those_of_all_its_addresses() {
        let mut peers = Peers::default();
        let dialled = vec![
            (name("far"), ip(1)),
            (name("far"), ip(2)),
            (name("idle"), ip(3)),
        ];
        peers.adopt(HashMap::new(), dialled);
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
        assert_eq!(peers.figures(leg), [(name("far"), all)]);
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        let mut peers = Peers::default();
        for i in 0..=u32::try_from(MAX_ADDRESSES).unwrap() {
            peers.proven(&name("far"), IpAddr::from(i.to_be_bytes()));
        }
        assert_eq!(peers.addresses.len(), MAX_ADDRESSES);
    }
}
