//! For tests: relays, and rows as proptest draws them.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::identity::PrivateKey;
use crate::members::Members;
use crate::name::MemberName;

/// Returns the key of the `i`th relay of a test.
pub(crate) fn key(i: usize) -> PrivateKey {
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&(i as u64).to_be_bytes());
    PrivateKey::from_seed(&seed)
}

pub(crate) fn name(i: usize) -> MemberName {
    format!("r{i}").parse().unwrap()
}

pub(crate) fn id(i: usize) -> MemberId {
    MemberId::of(&name(i))
}

/// Returns a list of `n` relays.
pub(crate) fn members(n: usize) -> Members {
    let member = |i: usize| {
        let (name, key) = (name(i), key(i).public());
        format!(
            "[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\naddresses = [\"192.0.2.1:7440\"]\n"
        )
    };
    let list: Vec<_> = (0..n).map(member).collect();
    Members::parse(&list.concat()).unwrap()
}

pub(crate) fn figure(ms: u64) -> Figure {
    Figure::new(Duration::from_millis(ms), Duration::from_millis(ms), 0.0)
}

/// Returns the row of a relay with this path to each of the relays `to`.
pub(crate) fn row(version: u64, to: impl IntoIterator<Item = usize>, ms: u64) -> Row {
    let mut entries: Vec<_> = to
        .into_iter()
        .map(|to| MemberEntry {
            id: id(to),
            figure: figure(ms),
            passes: false,
        })
        .collect();
    entries.sort_by_key(|entry| entry.id);
    Row {
        version,
        members: entries.into(),
        ..Row::default()
    }
}

fn any_figure() -> impl Strategy<Value = Figure> {
    (0..1_600_000_u64, 0..1_600_000_u64, 0.0..0.3).prop_map(|(min, smoothed, loss)| {
        Figure::new(
            Duration::from_micros(min),
            Duration::from_micros(smoothed),
            loss,
        )
    })
}

pub(crate) fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        any::<std::net::Ipv4Addr>().prop_map(|ip| Key::prefix(ip.into())),
        any::<std::net::Ipv6Addr>().prop_map(|ip| Key::prefix(ip.into())),
        crate::sim::any_target().prop_map(|target| Key::destination(&target, None)),
    ]
}

/// Rows of a relay that measures some of twelve members and anything outside.
pub(crate) fn any_row() -> impl Strategy<Value = Row> {
    let member = (0_usize..12, any_figure(), any::<bool>());
    let members = prop::collection::vec(member, 0..12);
    let outside = prop::collection::btree_map(any_key(), any_figure(), 0..12);
    let wanted = prop::collection::vec(crate::sim::any_target(), 0..3);
    (1..u64::MAX / 2, any::<bool>(), members, outside, wanted).prop_map(
        |(version, by_member, members, outside, wanted)| {
            let members: std::collections::BTreeMap<_, _> = members
                .into_iter()
                .map(|(i, figure, passes)| (id(i), (figure, passes)))
                .collect();
            let entry = |(id, (figure, passes))| MemberEntry { id, figure, passes };
            Row {
                version,
                by_member,
                members: members.into_iter().map(entry).collect(),
                outside: outside
                    .into_iter()
                    .map(|(key, figure)| OutsideEntry { key, figure })
                    .collect(),
                wanted: wanted.into(),
            }
        },
    )
}
