use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rustix::net::sockopt::set_socket_linger;
use taut_sys::sock_diag::DestroyedSockets;

use super::*;
use crate::scan::{Scope, Wants};
use crate::table::Retention;

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Reports(
    Vec<(Event, SocketAddr, Option<Factor>, Option<u64>)>,
    Vec<Option<Figures>>,
);

impl ReportSink for Reports {
    fn report(&mut self, report: &Report<'_>) {
        let connection = &report.tracked.last().connection;
        self.0.push((
            report.event,
            connection.local,
            report.verdict.as_ref().map(|verdict| verdict.factor),
            connection.info.as_ref().and_then(|info| info.bytes_acked),
        ));
        self.1.push(report.figures);
    }

    fn limited(&mut self, _: Option<&Process>, _: Factor, _: f64) {}
}

/// Returns the two ends of a connection that has carried some bytes.
fn connection(listener: &TcpListener, bytes: usize) -> (TcpStream, TcpStream) {
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(&vec![7; bytes]).unwrap();
    server.read_exact(&mut vec![0; bytes]).unwrap();
    (client, server)
}

fn watcher(port: u16) -> Watcher {
    watcher_with(port, Wants::default())
}

fn watcher_with(port: u16, wants: Wants) -> Watcher {
    let keep = Retention {
        connections: 100,
        samples: 6,
    };
    let filter = format!("dport {port}").parse().unwrap();
    Watcher::new(Observer::new(Scope::Own, keep, wants), filter)
}

/// Polls until this many ends were reported.
fn poll_until(watcher: &mut Watcher, reports: &mut Reports, ends: usize) {
    let began = Instant::now();
    let ended = |reports: &Reports| {
        reports
            .0
            .iter()
            .filter(|report| report.0 == Event::End)
            .count()
    };
    while ended(reports) < ends {
        assert!(began.elapsed() < PATIENCE, "{:?}", reports.0);
        watcher.poll_ends(reports);
        std::thread::yield_now();
    }
}

#[test]
fn each_end_is_reported_once_with_its_final_figures_scanned_before_or_not() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut watcher = watcher(listener.local_addr().unwrap().port());
    let mut reports = Reports::default();
    watcher.scan(&mut reports).unwrap();

    let (mut client, mut server) = connection(&listener, 1000);
    let seen = client.local_addr().unwrap();
    watcher.scan(&mut reports).unwrap();
    watcher.scan(&mut reports).unwrap();
    watcher.report_open(&mut reports);
    let idle = Some(Factor::Idle);
    assert_eq!(reports.0, [(Event::Open, seen, idle, Some(1001))]);
    client.write_all(&[7; 500]).unwrap();
    server.read_exact(&mut [0; 500]).unwrap();
    drop((client, server));
    poll_until(&mut watcher, &mut reports, 1);
    // A connection that opens and closes between two scans.
    let (client, server) = connection(&listener, 300);
    let short = client.local_addr().unwrap();
    drop((client, server));
    poll_until(&mut watcher, &mut reports, 2);
    for _ in 0..4 {
        watcher.scan(&mut reports).unwrap();
    }
    let (open, ends) = reports.0.split_at(1);
    assert_eq!(open[0].0, Event::Open);
    // The payload, the SYN and the FIN. The verdict is that of the scans.
    assert_eq!(
        ends,
        [
            (Event::End, seen, idle, Some(1502)),
            (Event::End, short, None, Some(302)),
        ]
    );
    let counts = watcher.counts();
    assert_eq!((counts.ended, counts.unseen, counts.unreported), (2, 1, 0));
    assert_eq!(reports.1[1..], [Some(Figures::End); 2]);
}

#[test]
fn an_end_without_the_kernels_report_has_its_counts_and_is_reported_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut watcher = watcher_with(listener.local_addr().unwrap().port(), Wants::ALL);
    let mut reports = Reports::default();
    let (mut client, mut server) = connection(&listener, 1000);
    let seen = client.local_addr().unwrap();
    watcher.scan(&mut reports).unwrap();
    watcher.scan(&mut reports).unwrap();
    client.write_all(&[7; 500]).unwrap();
    server.read_exact(&mut [0; 500]).unwrap();
    // The connection ends, but the kernel does not free the socket of an open descriptor.
    client.shutdown(Shutdown::Write).unwrap();
    drop(server);
    let began = Instant::now();
    while watcher.unlisted.is_empty() {
        assert!(began.elapsed() < PATIENCE, "it is still listed");
        watcher.scan(&mut reports).unwrap();
    }
    let missed = watcher.unlisted.values().next().unwrap().since;
    watcher.report_ends(missed + REPORT_WITHIN, &mut reports);
    assert_eq!(reports.0, [], "the kernel has two seconds to report it");
    let overdue = missed + REPORT_WITHIN + Duration::from_nanos(1);
    watcher.report_ends(overdue, &mut reports);
    let end = (Event::End, seen, Some(Factor::Idle), Some(1502));
    assert_eq!(reports.0, [end]);
    assert_eq!(reports.1, [Some(Figures::Counts)]);

    // The kernel's report comes when the descriptor is closed.
    let mut listening = DestroyedSockets::open().unwrap();
    drop(client);
    let mut is_freed = false;
    while !is_freed {
        assert!(began.elapsed() < PATIENCE, "its end is not reported");
        let each = |end: Connection| is_freed |= end.local == seen;
        listening.read(each).unwrap();
    }
    drop(connection(&listener, 10));
    poll_until(&mut watcher, &mut reports, 2);
    assert_ne!(reports.0[1].1, seen, "it is reported once");
    let counts = watcher.counts();
    assert_eq!((counts.ended, counts.unseen, counts.unreported), (2, 1, 1));
}

/// The kernel's report of such a connection has found no room, because many ended at once.
#[test]
fn an_end_that_the_programs_alone_report_is_reported_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut watcher = watcher_with(listener.local_addr().unwrap().port(), Wants::ALL);
    let mut reports = Reports::default();
    watcher.scan(&mut reports).unwrap();
    // The filter does not match the first.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let (stranger, server) = connection(&other, 10);
    stranger.shutdown(Shutdown::Write).unwrap();
    drop(server);
    let (client, server) = connection(&listener, 1000);
    let seen = client.local_addr().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    drop(server);
    let began = Instant::now();
    let since = loop {
        assert!(began.elapsed() < PATIENCE, "the programs do not report it");
        watcher.poll_ends(&mut reports);
        let mut unfound = watcher.unfound.values();
        if let Some((_, since)) = unfound.find(|(ended, _)| ended.local == seen) {
            break *since;
        }
    };
    watcher.report_ends(since + REPORT_WITHIN, &mut reports);
    assert_eq!(reports.0, []);
    let overdue = since + REPORT_WITHIN + Duration::from_nanos(1);
    watcher.report_ends(overdue, &mut reports);
    assert_eq!(reports.0, [(Event::End, seen, None, None)]);
    assert_eq!(reports.1, [Some(Figures::Counts)]);
    // The kernel's own report comes after all.
    drop(client);
    drop(connection(&listener, 10));
    poll_until(&mut watcher, &mut reports, 2);
    assert_ne!(reports.0[1].1, seen, "it is reported once");
    let counts = watcher.counts();
    assert_eq!((counts.ended, counts.unseen, counts.unreported), (2, 2, 1));
    assert_eq!(counts.without_phases, 0);
}

#[test]
fn figures_that_the_kernel_has_cleared_are_not_reported_as_zero() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut watcher = watcher_with(listener.local_addr().unwrap().port(), Wants::ALL);
    let mut reports = Reports::default();
    let reset = |client: TcpStream| set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    watcher.scan(&mut reports).unwrap();
    let (mut client, mut server) = connection(&listener, 1000);
    watcher.scan(&mut reports).unwrap();
    client.write_all(&[7; 500]).unwrap();
    server.read_exact(&mut [0; 500]).unwrap();
    reset(client);
    poll_until(&mut watcher, &mut reports, 1);
    let (client, _server) = connection(&listener, 300);
    reset(client);
    poll_until(&mut watcher, &mut reports, 2);
    let acked: Vec<_> = reports.0.iter().map(|report| report.3).collect();
    assert_eq!(
        acked,
        [Some(1501), None],
        "tcp_info is known from scans alone"
    );
    assert_eq!(reports.1, [Some(Figures::Counts); 2]);
}

#[test]
fn a_connection_that_the_filter_does_not_match_is_not_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut watcher = watcher(listener.local_addr().unwrap().port());
    let mut reports = Reports::default();
    watcher.scan(&mut reports).unwrap();
    let stranger = connection(&other, 10);
    watcher.scan(&mut reports).unwrap();
    drop(stranger);
    drop(connection(&other, 10));
    drop(connection(&listener, 10));
    poll_until(&mut watcher, &mut reports, 1);
    for _ in 0..3 {
        watcher.scan(&mut reports).unwrap();
    }
    assert_eq!(reports.0.len(), 1, "{:?}", reports.0);
}

#[test]
fn the_longest_factor_is_the_one_with_most_time() {
    let mut life = Life::default();
    assert_eq!(life.longest(), None);
    life.limited[Factor::Queue.index()] = 1.0;
    life.limited[Factor::Loss.index()] = 2.0;
    assert_eq!(life.longest(), Some(Factor::Loss));
}
