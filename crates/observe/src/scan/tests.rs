use std::net::{TcpListener, TcpStream};

use taut_sys_testing::network::enter_private_network;

use super::*;

/// Connections with the names of their namespaces.
type Read = Vec<(Arc<str>, Connection)>;

/// Reads all connections.
fn scan(scanner: &mut Scanner) -> Result<(Read, ScanSummary), ScanError> {
    scanner.find()?;
    let without_slot = scanner.begin(NonZeroU64::MIN);
    let mut scan = scanner.begin_walk(None, without_slot);
    let mut read = Vec::new();
    while let Some(mut batch) = scan.next()? {
        let mut changed = Changed::default();
        let mut list = batch.list.take().unwrap();
        while let Some(found) = list.next() {
            found.unwrap();
            changed.want(&list.details().unwrap().unwrap().0);
        }
        let netns = batch.netns.clone();
        let each = |connection| read.push((netns.clone(), connection));
        scan.read(batch, Some(changed), each)?;
    }
    Ok((read, scan.finish()))
}

#[test]
fn a_connection_is_found_in_its_own_namespace() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let local = client.local_addr().unwrap();
    for scope in [Scope::Own, Scope::Machine] {
        let (read, summary) = scan(&mut Scanner::new(scope, Wants::EVENTS)).unwrap();
        assert_eq!(summary.connections, read.len());
        let is_it = |(netns, c): &(Arc<str>, Connection)| &**netns == "-" && c.local == local;
        let found = read.iter().find(|found| is_it(found)).unwrap();
        assert!(found.1.internals.is_some());
    }
}

#[test]
fn a_ring_buffer_that_cannot_be_read_is_reported() {
    let mut scanner = Scanner::new(Scope::Own, Wants::ALL);
    let (_, summary) = scan(&mut scanner).unwrap();
    assert!(!summary.without_ends);
    scanner.ends = None;
    let (_, summary) = scan(&mut scanner).unwrap();
    assert!(summary.without_ends && !summary.without_events);
}

#[test]
fn an_unknown_namespace_is_an_error_that_names_it() {
    let mut scanner = Scanner::new(Scope::Named("taut-no-such".into()), Wants::default());
    let error = scan(&mut scanner).unwrap_err().to_string();
    assert!(error.contains("taut-no-such"), "{error}");
}

/// The inodes of the namespaces that a scan walks when it is time to.
fn walks(scanner: &mut Scanner, used: &[(&str, bool)]) -> FxHashSet<u64> {
    scanner.walked_at = None;
    let without_slot = scanner.begin(NonZeroU64::new(2).unwrap());
    assert_eq!(without_slot, Some(0));
    match scanner.walk(without_slot, || used.iter().copied().collect()) {
        Walk::Some(walked) => walked.inodes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_idle_namespace_is_entered_once() {
    // Connections that other tests open count as new ones here.
    enter_private_network();
    enters_once(Scanner::new(Scope::Machine, Wants::EVENTS));
    let mut scanner = Scanner::new(Scope::Machine, Wants::EVENTS);
    scanner.forbid_lists_of_slots();
    enters_once(scanner);
}

fn enters_once(mut scanner: Scanner) {
    let [idle, new] = [0, 1].map(|n| Space::new(&format!("taut-idle-{n}-{}", std::process::id())));
    let lists_slots = scanner.lists_slots();
    assert!(matches!(
        scanner.walk(Some(0), FxHashMap::default),
        Walk::All
    ));
    // Other tests' namespaces come and go.
    scanner.namespaces = vec![namespaces::own().unwrap(), idle.found()];
    scanner.found = Some(Instant::now());
    // Up to here, the programs have counted what others open on the machine.
    scanner.begin(NonZeroU64::MIN);
    scan(&mut scanner).unwrap();
    let [own, first] = [0, 1].map(|n| scanner.namespaces[n].id.inode());
    match scanner.walk(Some(0), FxHashMap::default) {
        Walk::None(_) if lists_slots => {}
        // A walk is not due, and no namespace has connections.
        Walk::Some(walked) if !lists_slots => assert_eq!(walked.inodes, FxHashSet::default()),
        other => panic!("{other:?}"),
    }
    assert_eq!(walks(&mut scanner, &[]), FxHashSet::from_iter([own]));
    // Those with a handshake are walked, and those with connections when all are read, or if they have no other list.
    let name = idle.0.as_str();
    assert_eq!(
        walks(&mut scanner, &[(name, true)]),
        FxHashSet::from_iter([own, first])
    );
    let used = walks(&mut scanner, &[(name, false)]);
    assert_eq!(used.contains(&first), !lists_slots);
    scanner.read_all = None;
    assert_eq!(
        walks(&mut scanner, &[(name, false)]),
        FxHashSet::from_iter([own, first])
    );
    assert_eq!(walks(&mut scanner, &[]), FxHashSet::from_iter([own]));
    // One that is known by another name by now may be any.
    scanner.walked_at = None;
    let renamed = || FxHashMap::from_iter([("pid:1", true)]);
    assert!(matches!(scanner.walk(Some(0), renamed), Walk::All));
    // A new one is walked, too.
    scanner.namespaces.push(new.found());
    let second = scanner.namespaces[2].id.inode();
    assert_eq!(
        walks(&mut scanner, &[]),
        FxHashSet::from_iter([own, second])
    );
    // A connection without a slot may be anywhere.
    scanner.walked_at = None;
    assert!(matches!(
        scanner.walk(Some(1), FxHashMap::default),
        Walk::All
    ));
}

/// A namespace that is deleted when the value is dropped.
struct Space(String);

impl Space {
    fn new(name: &str) -> Self {
        taut_sys::netns::Netns::create(name).unwrap();
        Self(name.to_owned())
    }

    fn found(&self) -> Namespace {
        namespaces::named(&self.0).unwrap()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = taut_sys::netns::Netns::delete(&self.0);
    }
}
