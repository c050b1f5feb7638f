//! The part of a mesh from which automatic routes are chosen.

use std::sync::Arc;
use std::time::Duration;

use crate::members::{Member, Members};
use crate::name::MemberName;
use crate::plan::{Network, Path, Relay};
use crate::rows::{Figure, MemberId, Table};

/// The most relays of a choice. A network and the planner's terms take 16 bytes for each two of them,
/// 16.8 MB in all.
pub const MAX_PLANNED: usize = 1024;

/// The part of a mesh from which routes are chosen.
#[derive(Debug)]
pub struct Planned {
    /// The relays, and the paths between them.
    pub network: Network,
    /// The relays that are left out because there are more than [`MAX_PLANNED`].
    pub left_out: usize,
}

/// Returns the relays and the paths between them that sessions of `own` may take. A member without a row is
/// left out: no route leads on from it.
pub fn planned(own: &MemberName, members: &Members, table: &Table) -> Planned {
    let (chosen, left_out) = choose(own, members, table, MAX_PLANNED);
    let ids: Vec<_> = chosen.iter().map(|m| MemberId::of(&m.name)).collect();
    let relays = chosen.iter().map(|member| Relay::from_member(member));
    let mut network = Network::new(relays.collect());
    let own = MemberId::of(own);
    for (from, id) in (0..).zip(&ids) {
        let Some(row) = table.row(*id) else {
            continue;
        };
        for (to, other) in (0..).zip(&ids) {
            let entry = row
                .member(*other)
                .filter(|entry| *id == own || entry.passes);
            if let Some(entry) = entry.filter(|_| from != to) {
                network.set(from, to, path(entry.figure));
            }
        }
    }
    Planned { network, left_out }
}

/// Returns `own` and the members with rows, at most `most`, and the number of those left out: first the members
/// that `own` does not reach, then the farthest from it.
fn choose<'a>(
    own: &MemberName,
    members: &'a Members,
    table: &Table,
    most: usize,
) -> (Vec<&'a Arc<Member>>, usize) {
    let own_row = table.row(MemberId::of(own));
    let distance = |member: &Member| {
        let id = MemberId::of(&member.name);
        match member.name == *own {
            true => Some(Duration::ZERO),
            false => table.row(id).map(|_| {
                let entry = own_row.and_then(|row| row.member(id));
                entry.map_or(Duration::MAX, |entry| entry.figure.rtt())
            }),
        }
    };
    let with_rows = members.iter().filter_map(|m| Some((distance(m)?, m)));
    let mut chosen: Vec<_> = with_rows.collect();
    let left_out = chosen.len().saturating_sub(most);
    if left_out > 0 {
        chosen.sort_by_key(|(distance, _)| *distance);
        chosen.truncate(most);
    }
    (chosen.into_iter().map(|(_, m)| m).collect(), left_out)
}

/// Converts a measurement for the planner.
pub(super) fn path(figure: Figure) -> Path {
    Path::new(figure.rtt(), figure.loss(), None)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use crate::identity::PrivateKey;
    use crate::rows::{MemberEntry, Row, RowMessage};

    use super::*;

    const NAMES: [&str; 5] = ["near", "own", "far", "silent", "unreached"];

    fn name(i: usize) -> MemberName {
        NAMES[i].parse().unwrap()
    }

    /// Returns a mesh with rows of all but `silent`. `own` measures 10 ms to `near` and 90 ms to `far`.
    fn mesh() -> (Members, Table) {
        let keys: Vec<_> = (0..5)
            .map(|i| PrivateKey::from_seed(&[i + 1; 32]))
            .collect();
        let list = NAMES.iter().zip(&keys).map(|(name, key)| {
            let key = key.public();
            format!("[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\n")
        });
        let members = Members::parse(&list.collect::<String>()).unwrap();
        let (now, mut table) = (Instant::now(), Table::new(&name(1), &members));
        for i in [0, 1, 2, 4] {
            let measured: &[_] = if i == 1 {
                &[(0, 10), (2, 90), (3, 20)]
            } else {
                &[]
            };
            let mut entries: Vec<_> = measured
                .iter()
                .map(|&(to, ms)| {
                    let rtt = Duration::from_millis(ms);
                    MemberEntry {
                        id: MemberId::of(&name(to)),
                        figure: Figure::new(rtt, rtt, 0.0),
                        passes: true,
                    }
                })
                .collect();
            entries.sort_by_key(|entry| entry.id);
            let row = Row {
                version: 1,
                members: entries.into(),
                ..Row::default()
            };
            let signed = row.sign(&name(i), &keys[i]);
            if i == 1 {
                table.publish(signed, now);
            } else {
                let id = MemberId::of(&name(i));
                let message = RowMessage::whole(id, &signed, Duration::ZERO);
                table.learn(message, now).unwrap();
            }
        }
        (members, table)
    }

    #[test]
    fn routes_are_chosen_among_members_with_rows_only() {
        let (members, table) = mesh();
        let planned = planned(&name(1), &members, &table);
        let network = planned.network;
        assert_eq!((network.len(), planned.left_out), (4, 0));
        assert_eq!(network.find("silent"), None);
        let (own, far) = (network.find("own").unwrap(), network.find("far").unwrap());
        let rtt = network.path(own, far).rtt();
        assert_eq!(rtt, Some(Duration::from_millis(90)));
    }

    #[test]
    fn of_too_many_members_those_stay_that_are_nearest_to_this_relay() {
        let (members, table) = mesh();
        for (most, expected) in [
            (3, &["own", "near", "far"][..]),
            (2, &["own", "near"]),
            (1, &["own"]),
        ] {
            let (chosen, left_out) = choose(&name(1), &members, &table, most);
            let chosen: Vec<_> = chosen.iter().map(|m| m.name.as_str()).collect();
            assert_eq!((&chosen[..], left_out), (expected, 4 - most));
        }
    }
}
