use super::*;
use crate::window::tests::sample;

type Table = super::Table<u8>;
type Tracked = super::Tracked<u8>;

fn table(connections: usize) -> Table {
    Table::new(Retention {
        connections,
        samples: 3,
    })
}

fn scan(table: &mut Table, second: u64, cookies: &[u64]) -> Vec<u64> {
    table.begin(false);
    for &cookie in cookies {
        let mut connection = sample(0, |_| {}).connection;
        connection.cookie = cookie;
        table.add(&"-".into(), Duration::from_secs(second), connection);
    }
    let mut ended = Vec::new();
    table.end(|cookie, _| ended.push(cookie));
    ended.sort_unstable();
    ended
}

#[test]
fn a_connection_that_a_scan_does_not_find_has_ended() {
    let mut table = table(10);
    assert!(scan(&mut table, 0, &[1, 2, 3]).is_empty());
    assert_eq!(scan(&mut table, 1, &[2, 4]), [1, 3]);
    let mut cookies: Vec<_> = table.iter().map(|(cookie, _)| cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [2, 4]);
}

#[test]
fn the_table_keeps_no_more_than_its_limits() {
    let mut table = table(2);
    for second in 0..10 {
        scan(&mut table, second, &[1, 2, 3]);
        assert_eq!((table.iter().count(), table.left_out()), (2, 1));
    }
    assert_eq!(table.get(1).unwrap().samples.len(), 3);
    assert_eq!(
        table.get(1).unwrap().window().unwrap().elapsed(),
        Duration::from_secs(2)
    );
    assert_eq!(
        table.get(1).unwrap().step().unwrap().elapsed(),
        Duration::from_secs(1)
    );
}

/// A connection that has been idle since the first second.
fn silent(second: u64) -> Connection {
    let set = |info: &mut TcpInfo| {
        let since = Duration::from_secs(second);
        (info.last_data_sent, info.last_ack_recv) = (since, since);
        info.last_data_recv = since + Duration::from_secs(1);
        info.busy_time = Some(Duration::from_secs(7));
    };
    let mut connection = sample(0, set).connection;
    connection.cookie = 1;
    connection
}

#[test]
fn an_unchanged_connection_has_the_samples_that_reading_gives() {
    let (mut unchanged, mut read) = (table(10), table(10));
    for second in 0..9 {
        let at = Duration::from_secs(second);
        let first = unchanged.begin(false).get() - second;
        read.begin(false);
        let since = NonZeroU64::new(first).unwrap();
        match second {
            0 => {
                assert!(
                    !unchanged.reuse(&"-".into(), at, 1, since),
                    "it was never read"
                );
                unchanged.add(&"-".into(), at, silent(second));
            }
            _ => assert!(unchanged.reuse(&"-".into(), at, 1, since)),
        }
        // A second report in the same scan adds no sample.
        assert!(unchanged.reuse(&"-".into(), at, 1, since));
        read.add(&"-".into(), at, silent(second));
        let (one, other) = (unchanged.get(1).unwrap(), read.get(1).unwrap());
        assert_eq!(one.samples.all(), other.samples.all());
        assert_eq!(one.is_idle(), second > 0);
        for table in [&mut unchanged, &mut read] {
            table.end(|cookie, _| panic!("{cookie} has ended"));
        }
    }
    let number = unchanged.begin(false);
    let at = Duration::from_secs(9);
    assert!(
        !unchanged.reuse(&"-".into(), at, 1, number),
        "it has changed since"
    );
    unchanged.add(&"-".into(), at, silent(9));
    assert!(!unchanged.get(1).unwrap().is_idle());
}

#[test]
fn a_value_is_derived_once_while_all_samples_are_alike() {
    let mut table = table(10);
    let at = Duration::from_secs;
    let first = table.begin(false);
    table.add(&"-".into(), at(0), silent(0));
    let derived = |table: &Table, value| table.get(1).unwrap().derived(|| value);
    assert_eq!(derived(&table, Some(1)), Some(1));
    assert_eq!(
        derived(&table, Some(2)),
        Some(2),
        "the connection has only one sample"
    );
    for second in 1..4 {
        table.end(|_, _| {});
        table.begin(false);
        assert!(table.reuse(&"-".into(), at(second), 1, first));
    }
    assert_eq!(derived(&table, None), None);
    assert_eq!(derived(&table, Some(3)), Some(3));
    assert_eq!(derived(&table, Some(4)), Some(3));
    table.end(|_, _| {});
    table.begin(false);
    table.add(&"-".into(), at(4), silent(4));
    assert_eq!(derived(&table, Some(5)), Some(5));
}

#[test]
fn a_connection_that_may_exist_stays_unchanged() {
    let mut table = table(10);
    let netns: Arc<str> = "-".into();
    table.begin(false);
    for cookie in [1, 2, 3] {
        let mut connection = silent(0);
        connection.cookie = cookie;
        if cookie == 1 {
            // The peer's handshake is not complete.
            connection.info = None;
        }
        table.add(&netns, Duration::ZERO, connection);
    }
    table.end(|_, _| {});
    table.begin(false);
    table.keep_handshakes();
    table.keep(2);
    table.keep(9);
    assert_eq!(table.missing().count(), 1);
    let mut ended = Vec::new();
    table.end(|cookie, _| ended.push(cookie));
    assert_eq!(ended, [3]);
    assert_eq!(table.get(2).unwrap().samples.len(), 1);
}

#[test]
fn a_connection_without_room_is_counted_while_unchanged_and_read_when_there_is_room() {
    let mut table = table(1);
    let netns: Arc<str> = "-".into();
    let connection = |cookie| {
        let mut connection = silent(0);
        connection.cookie = cookie;
        connection
    };
    let first = table.begin(false);
    table.add(&netns, Duration::ZERO, connection(1));
    table.add(&netns, Duration::ZERO, connection(2));
    assert_eq!(table.left_out(), 1);
    table.end(|_, _| {});
    table.begin(false);
    for _ in 0..2 {
        assert!(table.reuse(&netns, Duration::ZERO, 1, first));
        assert!(table.reuse(&netns, Duration::ZERO, 2, first));
    }
    assert_eq!(table.left_out(), 1);
    table.end(|_, _| {});
    // The connection has changed and is read; then the list contains it a second time.
    let number = table.begin(false);
    assert!(table.reuse(&netns, Duration::ZERO, 1, first));
    assert!(!table.reuse(&netns, Duration::ZERO, 2, number));
    for _ in 0..2 {
        table.add(&netns, Duration::ZERO, connection(2));
        assert_eq!(table.left_out(), 1);
    }
    assert!(table.reuse(&netns, Duration::ZERO, 2, number));
    assert_eq!(table.left_out(), 1);
    table.end(|_, _| {});
    table.begin(false);
    assert!(
        !table.reuse(&netns, Duration::ZERO, 2, first),
        "there is room"
    );
    table.add(&netns, Duration::ZERO, connection(2));
    table.end(|_, _| {});
    assert!(table.get(2).is_some() && table.skipped.is_empty());
}

#[test]
fn a_scan_that_replaces_another_adds_one_sample_each() {
    let netns: Arc<str> = "-".into();
    let mut table = table(10);
    let at = Duration::from_secs;
    let of = |table: &mut Table, cookie, second| {
        let mut connection = silent(second);
        connection.cookie = cookie;
        table.add(&netns, at(second), connection);
    };
    let first = table.begin(false);
    for cookie in [1, 2, 3] {
        of(&mut table, cookie, 0);
    }
    table.end(|_, _| {});
    // The abandoned scan has found connection 1 unchanged and has read connections 2 and 3.
    table.begin(false);
    assert!(table.reuse(&"-".into(), at(1), 1, first));
    of(&mut table, 2, 1);
    of(&mut table, 3, 1);
    let again = table.begin(true);
    assert_eq!(table.missing().count(), 3);
    // Before the second attempt, connection 1 changes and connection 3 ends.
    assert!(!table.reuse(&"-".into(), at(2), 1, again));
    of(&mut table, 1, 2);
    assert!(table.reuse(&"-".into(), at(2), 2, first));
    assert_eq!(table.missing().count(), 1);
    let mut ended = Vec::new();
    table.end(|cookie, _| ended.push(cookie));
    assert_eq!(ended, [3]);
    let times = |cookie| {
        let samples = table.get(cookie).unwrap().samples.all();
        samples
            .iter()
            .map(|sample| sample.at.as_secs())
            .collect::<Vec<_>>()
    };
    assert_eq!((times(1), times(2)), (vec![0, 2], vec![0, 1]));
}

#[test]
fn namespaces_are_those_in_which_the_last_scan_has_found_a_connection_kept_or_not() {
    let mut table = table(1);
    table.begin(false);
    table.skip(&"skipped".into(), 7);
    assert_eq!(table.begin(false).get(), 2);
    assert_eq!(
        table.namespaces(true),
        FxHashMap::from_iter([("skipped", false)])
    );
    let since = NonZeroU64::MIN;
    assert!(table.reuse(&"renamed".into(), Duration::ZERO, 7, since));
    table.begin(false);
    assert_eq!(
        table.namespaces(true),
        FxHashMap::from_iter([("renamed", false)])
    );
    assert!(table.namespaces(false).is_empty());
    table.begin(false);
    assert!(table.namespaces(true).is_empty());
}

#[test]
fn a_skipped_connection_is_not_read_again_until_it_changes() {
    let mut table = table(10);
    let first = table.begin(false);
    table.skip(&"-".into(), 7);
    table.end(|_, _| {});
    for _ in 0..2 {
        table.begin(false);
        assert!(table.reuse(&"-".into(), Duration::ZERO, 7, first));
        table.end(|_, _| {});
        assert!(table.get(7).is_none());
    }
    let number = table.begin(false);
    assert!(!table.reuse(&"-".into(), Duration::ZERO, 7, number));
    let mut connection = silent(0);
    connection.cookie = 7;
    table.add(&"-".into(), Duration::ZERO, connection);
    assert!(table.reuse(&"-".into(), Duration::ZERO, 7, number));
    table.end(|_, _| {});
    assert!(table.get(7).is_some() && table.skipped.is_empty());
    // A skipped connection is forgotten once a scan does not find it.
    table.begin(false);
    table.skip(&"-".into(), 8);
    table.end(|_, _| {});
    table.begin(false);
    table.end(|_, _| {});
    assert!(table.skipped.is_empty());
}

#[test]
fn ended_connections_take_no_room_from_new_ones() {
    let mut table = table(2);
    scan(&mut table, 0, &[1, 2]);
    assert_eq!(scan(&mut table, 1, &[3, 4]), [1, 2]);
    assert_eq!((table.iter().count(), table.left_out()), (2, 0));
}

#[test]
fn a_connection_that_is_listed_twice_counts_once() {
    let mut table = table(10);
    scan(&mut table, 0, &[1, 1]);
    assert_eq!(table.get(1).unwrap().samples.len(), 1);
    assert!(table.get(1).unwrap().window().is_none());
}

#[test]
fn an_end_that_the_kernel_has_cleared_changes_no_figure() {
    let of = |segs, acked| {
        sample(segs, |info| {
            info.segs_out = Some(segs as u32);
            info.bytes_acked = Some(acked);
        })
    };
    let acked = |tracked: &Tracked| tracked.last().info().unwrap().bytes_acked;
    let mut tracked = Tracked::only("-".into(), of(9, 700));
    let mut finish = |segs, acked| {
        let end = of(segs, acked);
        tracked.finish(end.at, Some(end.connection), None)
    };
    assert_eq!(finish(12, 900), Figures::End);
    assert_eq!(finish(0, 0), Figures::Scan);
    assert_eq!(acked(&tracked), Some(900));
}
