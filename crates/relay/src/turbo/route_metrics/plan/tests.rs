use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use rtnetlink::packet_route::route::{RouteNextHop, RouteScope};

use super::*;

const MAIN: u32 = 254;

fn ip(i: u32) -> IpAddr {
    Ipv4Addr::from(0x0A00_0000 + i).into()
}

/// Returns a route through a gateway, in `table`, as the kernel reports it.
fn matched(table: u32, gateway: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = 8;
    message.header.protocol = RouteProtocol::Boot;
    message.header.kind = RouteType::Unicast;
    message.attributes = vec![
        RouteAttribute::Table(table),
        RouteAttribute::Destination(RouteAddress::Inet(Ipv4Addr::new(10, 0, 0, 0))),
        RouteAttribute::Gateway(ip(gateway).into()),
        RouteAttribute::Oif(7),
    ];
    message
}

fn copied(address: IpAddr, gateway: u32) -> RouteMessage {
    copy(address, &matched(MAIN, gateway), 1000).unwrap()
}

fn metrics(message: &RouteMessage) -> &[RouteMetric] {
    let metrics = message.attributes.iter().find_map(|a| match a {
        RouteAttribute::Metrics(metrics) => Some(metrics.as_slice()),
        _ => None,
    });
    metrics.unwrap()
}

#[test]
fn a_copy_leads_to_one_address_over_the_same_path_with_the_window() {
    let mut original = matched(MAIN, 1);
    original.header.scope = RouteScope::Link;
    let source = RouteAttribute::PrefSource(ip(9).into());
    original.attributes.push(source.clone());
    let mtu = RouteMetric::Mtu(1400);
    original
        .attributes
        .push(RouteAttribute::Metrics(vec![mtu.clone()]));
    let copy = copy(ip(5), &original, 1000).unwrap();
    assert!(is_ours(&copy));
    assert_eq!(address(&copy), Some(ip(5)));
    assert_eq!(copy.header.scope, RouteScope::Link);
    assert_eq!(copy.header.kind, RouteType::Unicast);
    for kept in [
        RouteAttribute::Gateway(ip(1).into()),
        RouteAttribute::Oif(7),
        source,
    ] {
        assert!(copy.attributes.contains(&kept), "{kept:?}");
    }
    assert_eq!(metrics(&copy), [mtu, RouteMetric::InitCwnd(1000)]);
}

#[test]
fn a_next_hop_object_is_named_by_its_number_alone() {
    let mut original = matched(MAIN, 1);
    original.header.flags = RouteFlags::Onlink;
    original.attributes.push(RouteAttribute::NhId(3));
    let copy = copy(ip(5), &original, 1000).unwrap();
    assert!(copy.attributes.contains(&RouteAttribute::NhId(3)));
    assert_eq!(copy.header.flags, RouteFlags::empty());
    let made_of =
        |a: &RouteAttribute| matches!(a, RouteAttribute::Gateway(_) | RouteAttribute::Oif(_));
    assert!(!copy.attributes.iter().any(made_of));
}

#[test]
fn of_several_next_hops_only_settable_attributes_are_copied() {
    let mut hop = RouteNextHop::default();
    hop.flags = RouteNextHopFlags::Onlink | RouteNextHopFlags::Linkdown;
    let mut original = matched(MAIN, 1);
    original.header.flags = RouteFlags::Linkdown;
    original
        .attributes
        .push(RouteAttribute::MultiPath(vec![hop.clone()]));
    let copy = copy(ip(5), &original, 1000).unwrap();
    assert_eq!(copy.header.flags, RouteFlags::empty());
    hop.flags = RouteNextHopFlags::Onlink;
    let hops = RouteAttribute::MultiPath(vec![hop]);
    assert!(copy.attributes.contains(&hops));
}

#[test]
fn addresses_not_routed_by_the_main_table_to_another_machine_are_left_alone() {
    for kind in [RouteType::Local, RouteType::Broadcast, RouteType::BlackHole] {
        let mut original = matched(MAIN, 1);
        original.header.kind = kind;
        assert_eq!(copy(ip(5), &original, 10), Err(Without::NotUnicast));
    }
    assert_eq!(
        copy(ip(5), &matched(51_820, 1), 10),
        Err(Without::OtherTable)
    );
}

#[test]
fn an_initial_window_of_the_administrator_stays() {
    let mut original = matched(MAIN, 1);
    let theirs = RouteAttribute::Metrics(vec![RouteMetric::InitCwnd(40)]);
    original.attributes.push(theirs);
    assert_eq!(copy(ip(5), &original, 10), Err(Without::HasWindow));
}

#[test]
fn addresses_that_cannot_be_another_machines_are_not_queried() {
    let (chosen, others) = choose(
        [
            "127.0.0.1",
            "::1",
            "0.0.0.0",
            "224.0.0.1",
            "ff02::1",
            "fe80::1",
        ]
        .map(|ip| ip.parse().unwrap()),
    );
    assert!(chosen.is_empty());
    assert_eq!(others, 0, "they are no relays to go without");
}

#[test]
fn the_first_are_chosen_and_the_others_counted_each_once() {
    let most = u32::try_from(MAX_ADDRESSES).unwrap();
    let wanted = (0..most + 3).rev().map(ip);
    let again = [ip(0), ip(0), ip(most)];
    let (chosen, others) = choose(wanted.chain(again));
    assert_eq!(chosen, (3..most + 3).map(ip).collect());
    assert_eq!(others, 3);
}

#[test]
fn an_address_that_is_mapped_into_ipv6_is_the_ipv4_one() {
    let mapped = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
    let (chosen, _) = choose([mapped.into()]);
    assert_eq!(chosen, [ip_of("192.0.2.1")].into());
}

fn ip_of(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_foreign_route_in_our_table_is_neither_replaced_nor_removed() {
    let mut theirs = copied(ip(5), 1);
    theirs.header.protocol = RouteProtocol::Static;
    let copies = [(ip(5), copied(ip(5), 1))].into();
    let plan = plan(&copies, &BTreeMap::new(), &[theirs]);
    assert_eq!(plan.occupied, [ip(5)]);
    assert!(plan.put.is_empty() && plan.remove.is_empty());
}

/// A simulation of the kernel's table, which applies changes.
#[derive(Clone, Debug, PartialEq)]
struct Kernel(Vec<RouteMessage>);

impl Kernel {
    fn apply(&mut self, plan: &Plan) {
        for address in &plan.remove {
            self.delete(*address);
        }
        for (address, route) in &plan.put {
            self.delete(*address);
            self.0.push(route.clone());
        }
    }

    fn delete(&mut self, of: IpAddr) {
        let before = self.0.len();
        self.0.retain(|r| !(is_ours(r) && address(r) == Some(of)));
        assert!(before - self.0.len() <= 1);
    }

    fn foreign(&self) -> Vec<RouteMessage> {
        self.0.iter().filter(|r| !is_ours(r)).cloned().collect()
    }
}

/// Generates routes to a few addresses, each ours or a foreign one, in our table or in main.
fn tables() -> impl Strategy<Value = Kernel> {
    let route = (
        0..8_u32,
        1..4_u32,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    proptest::collection::btree_map(0..8_u32, route, 0..8).prop_map(|routes| {
        type Parts = (u32, (u32, u32, bool, bool, bool));
        let route = |(to, (_, gateway, ours, in_main, v6)): Parts| {
            let to: IpAddr = match v6 {
                true => Ipv6Addr::from(0xFD00_u128 << 112 | u128::from(to)).into(),
                false => ip(to),
            };
            let mut route = copied(to, gateway);
            if !ours {
                route.header.protocol = RouteProtocol::Static;
            }
            if in_main {
                route
                    .attributes
                    .retain(|a| !matches!(a, RouteAttribute::Table(_)));
                route.attributes.push(RouteAttribute::Table(MAIN));
            }
            route
        };
        Kernel(routes.into_iter().map(route).collect())
    })
}

fn copies() -> impl Strategy<Value = BTreeMap<IpAddr, RouteMessage>> {
    proptest::collection::btree_map((0..8_u32).prop_map(ip), 1..4_u32, 0..8).prop_map(|all| {
        let copy = |(to, gateway)| (to, copied(to, gateway));
        all.into_iter().map(copy).collect()
    })
}

proptest! {
    #[test]
    fn whatever_there_is_only_ours_change_and_they_become_what_is_wanted(
        before in tables(), wanted in copies(), put_before in copies(),
    ) {
        let mut kernel = before.clone();
        let decided = plan(&wanted, &put_before, &before.0);
        kernel.apply(&decided);
        prop_assert_eq!(kernel.foreign(), before.foreign());
        prop_assert!(decided.put.len() <= wanted.len());
        for (address, _) in &decided.put {
            prop_assert!(wanted.contains_key(address));
        }
        // Each address has our route, or a foreign route instead.
        for (wanted, copy) in &wanted {
            let here = |r: &&RouteMessage| address(r) == Some(*wanted) && table(r) == TABLE;
            let there: Vec<_> = kernel.0.iter().filter(here).collect();
            prop_assert_eq!(there.len(), 1);
            prop_assert_eq!(is_ours(there[0]), !decided.occupied.contains(wanted));
            // A route that was not requested in this form has been added now.
            if is_ours(there[0]) && put_before.get(wanted) != Some(copy) {
                prop_assert_eq!(there[0], copy);
            }
        }
        for route in kernel.0.iter().filter(|r| is_ours(r)) {
            prop_assert!(wanted.contains_key(&address(route).unwrap()));
        }

        // A second plan changes nothing.
        let again = plan(&wanted, &wanted, &kernel.0);
        prop_assert!(again.put.is_empty() && again.remove.is_empty(), "{again:?}");
    }

    #[test]
    fn no_more_are_chosen_than_the_limit(wanted in proptest::collection::vec(0..2000_u32, 0..1500)) {
        let different: BTreeSet<_> = wanted.iter().copied().collect();
        let (chosen, others) = choose(wanted.into_iter().map(ip));
        prop_assert!(chosen.len() <= MAX_ADDRESSES);
        prop_assert_eq!(chosen.len() + others, different.len());
    }
}
