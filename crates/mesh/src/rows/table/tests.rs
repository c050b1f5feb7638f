use super::*;
use crate::rows::sim::*;
use crate::rows::{Key, OutsideEntry};

const SECOND: Duration = Duration::from_secs(1);

fn table(own: usize) -> Table {
    Table::new(&name(own), &members(4))
}

fn message(of: usize, row: Row, age: Duration) -> RowMessage {
    RowMessage::whole(id(of), &row.sign(&name(of), &key(of)), age)
}

#[test]
fn a_row_is_learnt_only_if_it_is_newer_and_its_relay_has_signed_it() {
    let (now, mut table) = (Instant::now(), table(0));
    let learn = |table: &mut Table, message| table.learn(message, now);
    assert_eq!(
        learn(&mut table, message(1, row(5, [0, 2], 20), SECOND)),
        Ok(Learned::News)
    );
    assert_eq!(
        learn(&mut table, message(1, row(5, [0], 1), SECOND)),
        Ok(Learned::Old)
    );
    assert_eq!(
        learn(&mut table, message(1, row(4, [0], 1), SECOND)),
        Ok(Learned::Old)
    );
    assert_eq!(table.row(id(1)).unwrap(), &row(5, [0, 2], 20));

    // Relay 2 speaks for relay 1, with its own signature or with that of another row.
    let forged = row(6, [0], 1).sign(&name(1), &key(2));
    let forged = RowMessage::whole(id(1), &forged, SECOND);
    assert_eq!(learn(&mut table, forged), Err(RowFault::Signature));
    let mut moved = message(2, row(7, [0], 1), SECOND);
    moved.origin = id(1);
    assert_eq!(learn(&mut table, moved), Err(RowFault::Signature));
    let mut changed = message(1, row(8, [0], 20), SECOND);
    changed.part.members[0].figure = figure(1);
    assert_eq!(learn(&mut table, changed), Err(RowFault::Signature));
    let mut stranger = message(9, row(8, [0], 20), SECOND);
    stranger.origin = id(9);
    assert_eq!(learn(&mut table, stranger), Err(RowFault::Stranger));
    assert_eq!(table.row(id(1)).unwrap().version, 5);
}

#[test]
fn a_row_that_has_become_too_old_is_forgotten_and_does_not_come_back() {
    let (start, mut table) = (Instant::now(), table(0));
    let old = message(1, row(5, [0], 20), 10 * SECOND);
    assert_eq!(table.learn(old.clone(), start), Ok(Learned::News));
    assert_eq!(table.age(id(1), start + SECOND), Some(11 * SECOND));
    let end = start + MAX_AGE - 10 * SECOND;
    assert_eq!(table.forget_old(end - SECOND), []);
    assert_eq!(table.forget_old(end), [name(1)]);
    assert_eq!(table.row(id(1)), None);
    assert_eq!(table.learn(old, end), Ok(Learned::Old));
    let too_old = message(1, row(6, [0], 20), MAX_AGE);
    assert_eq!(table.learn(too_old, end), Err(RowFault::TooOld));
}

#[test]
fn the_rows_of_a_member_that_is_removed_or_has_lost_a_key_are_dropped() {
    let (now, mut table) = (Instant::now(), table(0));
    for of in 1..4 {
        table
            .learn(message(of, row(5, [0], 20), SECOND), now)
            .unwrap();
    }
    let text = |i: usize, key: usize| {
        let (name, key) = (name(i), crate::rows::sim::key(key).public());
        format!("[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\n")
    };
    let list = [text(0, 0), text(1, 1), text(2, 99)].concat();
    table.adopt(&Members::parse(&list).unwrap());
    let left: Vec<_> = table.rows().map(|(name, _)| name.clone()).collect();
    assert_eq!(left, [name(1)]);
    let former = message(2, row(9, [0], 20), SECOND);
    assert_eq!(table.learn(former, now), Err(RowFault::Signature));
}

#[test]
fn a_relay_learns_that_a_newer_row_of_its_own_exists() {
    let (now, mut table) = (Instant::now(), table(0));
    table.publish(row(5, [1], 20).sign(&name(0), &key(0)), now);
    let before = message(0, row(9, [1], 20), SECOND);
    assert_eq!(table.learn(before, now), Ok(Learned::Own(9)));
    assert_eq!(table.row(id(0)).unwrap().version, 5);
}

#[test]
fn the_table_of_a_thousand_relays_fits_and_no_relay_takes_more_than_its_share() {
    let now = Instant::now();
    let list = members(1000);
    let mut table = Table::new(&name(0), &list);
    let full = |version| {
        let mut full = row(version, 0..1000, 20);
        let entry = |n: u32| OutsideEntry {
            key: Key::prefix(std::net::Ipv4Addr::from(n << 8).into()),
            figure: figure(5),
        };
        full.outside = (0..128).map(entry).collect();
        full
    };
    // One row stands for those of all: their sizes are the same.
    let of_one = message(1, full(1), SECOND);
    table.learn(of_one, now).unwrap();
    let bytes = table.bytes() + 998 * (full(1).memory() + 12 * 64 + 128);
    println!(
        "rows: the table of 1,000 relays takes {:.1} MiB",
        bytes as f64 / f64::from(1 << 20)
    );
    assert!(bytes < MAX_BYTES, "{bytes}");
    let mut large = full(2);
    large.outside = (0..1000_u32)
        .map(|n| OutsideEntry {
            key: Key::prefix(std::net::Ipv4Addr::from(n << 8).into()),
            figure: figure(5),
        })
        .collect();
    assert_eq!(
        table.learn(message(1, large, SECOND), now),
        Err(RowFault::TooLarge)
    );
}

#[test]
fn a_row_of_long_ago_is_not_learnt_however_young_a_member_in_between_makes_it_look() {
    let (now, mut table) = (Instant::now(), table(0));
    let wall = 1_800_000_000_000;
    table.set_time(wall);
    let lag = u64::try_from(MAX_CLOCK_LAG.as_millis()).unwrap();
    let replayed = message(1, row(wall - lag - 1, [0], 1), Duration::ZERO);
    assert_eq!(table.learn(replayed, now), Err(RowFault::Stale));
    assert_eq!(table.row(id(1)), None);
    let late = message(1, row(wall - lag, [0], 1), Duration::ZERO);
    assert_eq!(table.learn(late, now), Ok(Learned::News));
}
