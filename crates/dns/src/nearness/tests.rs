use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn table(lines: &[(&str, RelayId, u64)]) -> Nearness {
    let parse = |(net, relay, ms): &(&str, RelayId, u64)| {
        (net.parse().unwrap(), *relay, Duration::from_millis(*ms))
    };
    Nearness::new(lines.iter().map(parse)).unwrap()
}

fn nearest(table: &Nearness, client: &str) -> (Option<RelayId>, u8) {
    let found = table.find(client.parse().unwrap());
    let first = found.prefixes().next().map(|near| near.relays[0].0);
    (first, found.scope)
}

#[test]
fn the_longest_prefix_decides_and_its_scope_excludes_longer_ones() {
    let table = table(&[("10.0.0.0/8", 0, 5), ("10.1.2.0/24", 1, 5)]);
    assert_eq!(nearest(&table, "10.1.2.3"), (Some(1), 24));
    // 10.1.3.0 differs from 10.1.2.0 in the last bit of its /24.
    assert_eq!(nearest(&table, "10.1.3.1"), (Some(0), 24));
    assert_eq!(nearest(&table, "10.128.0.1"), (Some(0), 9));
    assert_eq!(nearest(&table, "11.0.0.1"), (None, 8));
    assert_eq!(nearest(&table, "2001:db8::1"), (None, 0));
}

#[test]
fn the_nearest_relay_of_a_prefix_comes_first_and_the_shortest_of_its_times_counts() {
    let table = table(&[
        ("192.0.2.0/24", 0, 30),
        ("192.0.2.0/24", 1, 20),
        ("192.0.2.0/24", 0, 10),
    ]);
    let found = table.find("192.0.2.1".parse().unwrap());
    let relays = &found.prefixes().next().unwrap().relays;
    let ms = Duration::from_millis;
    assert_eq!(relays, &[(0, ms(10)), (1, ms(20))]);
}

#[test]
fn the_enclosing_prefixes_follow_from_the_longest_to_the_shortest() {
    let table = table(&[
        ("2001:db8::/32", 0, 1),
        ("2001:db8:1::/48", 1, 1),
        ("::/0", 2, 1),
    ]);
    let found = table.find("2001:db8:1::5".parse().unwrap());
    let order: Vec<_> = found.prefixes().map(|near| near.relays[0].0).collect();
    assert_eq!(order, [1, 0, 2]);
}

#[test]
fn a_prefix_keeps_only_the_nearest_relays() {
    let net: IpNet = "192.0.2.0/24".parse().unwrap();
    let all = (0..100).map(|relay| (net, relay, Duration::from_millis(200 - u64::from(relay))));
    let table = Nearness::new(all).unwrap();
    let relays = &table.find(net.addr()).prefixes().next().unwrap().relays;
    assert_eq!(relays.len(), MAX_NEAR);
    assert_eq!(relays[0].0, 99);
}

/// A few prefixes close to one another, so that they enclose and touch each other.
fn prefixes() -> impl Strategy<Value = Vec<IpNet>> {
    let v4 = (0u32..16, 24u8..=32).prop_map(|(low, len)| {
        IpNet::new_assert(IpAddr::V4((0xc000_0200 | low << 2).into()), len).trunc()
    });
    let edge = (any::<bool>(), 0u8..=8).prop_map(|(high, len)| {
        let address: u32 = if high { u32::MAX } else { 0 };
        IpNet::new_assert(IpAddr::V4(address.into()), len).trunc()
    });
    let v6 = (0u128..16, 120u8..=128).prop_map(|(low, len)| {
        IpNet::new_assert(IpAddr::V6((0x2001_0db8 << 96 | low).into()), len).trunc()
    });
    vec(prop_oneof![4 => v4, 1 => edge, 2 => v6], 0..12)
}

proptest! {
    #[test]
    fn a_look_up_finds_what_a_search_of_all_prefixes_finds(
        prefixes in prefixes(),
        low in 0u32..80,
    ) {
        let all = prefixes.iter().enumerate();
        let all = all.map(|(i, net)| (*net, RelayId::try_from(i).unwrap(), Duration::from_millis(1)));
        let table = Nearness::new(all).unwrap();
        for client in [
            IpAddr::V4((0xc000_0200 + low).into()),
            IpAddr::V6((0x2001_0db8_u128 << 96 | u128::from(low)).into()),
        ] {
            let longest = |client: &IpAddr| {
                let around = prefixes.iter().filter(|net| net.contains(client));
                around.max_by_key(|net| net.prefix_len()).copied()
            };
            let found = table.find(client);
            prop_assert_eq!(found.prefixes().next().map(|near| near.prefix), longest(&client));
            // Every address of the scope has the same result, and the block twice as large has another.
            let block = IpNet::new_assert(client, found.scope).trunc();
            for same in [block.network(), block.broadcast()] {
                prop_assert_eq!(longest(&same), longest(&client));
            }
            prop_assert!(!prefixes.iter().any(|net| block.contains(net) && *net != block));
            if let Some(larger) = block.supernet() {
                let inside = prefixes.iter().any(|net| larger.contains(net) && !block.contains(net));
                let beyond = longest(&client).is_some_and(|net| !net.contains(&larger));
                prop_assert!(inside || beyond);
            }
        }
    }
}
