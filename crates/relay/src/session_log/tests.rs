use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use serde_json::Value;
use taut_sys::tcp_info::TcpInfo;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn record(n: u128) -> Box<SessionRecord> {
    Box::new(SessionRecord {
        version: "1.2.3",
        time: SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456),
        session: SessionId(n),
        forward: "web".into(),
        client: "192.0.2.1:1234".parse().unwrap(),
        listener: "[2001:db8::1]:443".parse().unwrap(),
        destination: Some("example.org:443".into()),
        address: Some("198.51.100.1:443".parse().unwrap()),
        relay: None,
        attempts: Some(1),
        cause: "complete",
        setup: Some(Duration::from_micros(1500)),
        total: Duration::from_secs(2),
        to_upstream: DirectionRecord {
            bytes: 10,
            first_byte: Some(Duration::from_micros(1600)),
            spliced: false,
        },
        to_client: DirectionRecord {
            bytes: 1 << 40,
            first_byte: None,
            spliced: true,
        },
        client_tcp: None,
        upstream_tcp: None,
    })
}

fn wait_for(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "it does not come");
        std::thread::yield_now();
    }
}

fn numbers(text: &str) -> Vec<u128> {
    let number = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        u128::from_str_radix(value["session"].as_str().unwrap(), 16).unwrap()
    };
    text.lines()
        .filter(|line| !line.is_empty())
        .map(number)
        .collect()
}

#[test]
fn a_record_is_one_line_with_every_field_and_its_unit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut record = record(0xabc);
    record.client_tcp = Some(TcpInfo::of(&client).unwrap());
    let line = serde_json::to_string(&record).unwrap();
    assert!(!line.contains('\n'));
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["time"], "2023-11-14T22:13:20.123456Z");
    assert_eq!(value["session"], "00000000000000000000000000000abc");
    assert_eq!(value["client"], "192.0.2.1:1234");
    assert_eq!(value["setup_us"], 1500);
    assert_eq!(value["total_us"], 2_000_000);
    assert_eq!(value["to_upstream"]["first_byte_us"], 1600);
    assert_eq!(value["to_client"]["bytes"], 1u64 << 40);
    assert_eq!(value["to_client"]["first_byte_us"], Value::Null);
    assert_eq!(value["upstream_tcp"], Value::Null);
    assert!(value["client_tcp"]["snd_cwnd"].as_u64().unwrap() > 0);

    // The documentation page must name every field.
    let page = include_str!("../../../../docs/relay-session-log.md");
    let mut fields: Vec<&String> = value.as_object().unwrap().keys().collect();
    for part in ["to_upstream", "client_tcp"] {
        fields.extend(value[part].as_object().unwrap().keys());
    }
    for field in fields {
        assert!(
            page.contains(&format!("`{field}`")),
            "`{field}` is not documented"
        );
    }
}

#[test]
fn a_wrong_clock_does_not_panic() {
    let mut record = record(1);
    for time in [
        SystemTime::UNIX_EPOCH - Duration::from_secs(1),
        SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40),
    ] {
        record.time = time;
        assert!(serde_json::to_string(&record).is_ok());
    }
}

#[test]
fn records_from_before_the_end_are_appended_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sessions.json");
    for part in 0..2u128 {
        let log = SessionLog::start(Target::File(path.clone()), CAPACITY).unwrap();
        let recorder = log.recorder();
        (part * 100..(part + 1) * 100).for_each(|n| recorder.record(record(n)));
        assert!(log.finish(PATIENCE));
        assert_eq!(recorder.counts().written, 100);
        // The record is too late, which is not an error.
        recorder.record(record(0));
        assert_eq!(recorder.counts().dropped, 1);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(numbers(&text), (0..200).collect::<Vec<_>>());
    let mode = std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap());
    assert_eq!(mode & 0o137, 0, "others may read it: {mode:o}");
}

#[test]
fn after_a_rotation_lines_go_to_the_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
    let log = SessionLog::start(Target::File(path.clone()), CAPACITY).unwrap();
    log.recorder().record(record(1));
    // The record is written without a request when the queue is empty.
    wait_for(|| log.counts().written == 1);
    std::fs::rename(&path, &old).unwrap();
    log.reopen();
    log.recorder().record(record(2));
    assert!(log.finish(PATIENCE));
    assert_eq!(numbers(&std::fs::read_to_string(&old).unwrap()), [1]);
    assert_eq!(numbers(&std::fs::read_to_string(&path).unwrap()), [2]);
}

#[test]
fn a_file_that_cannot_be_reopened_leaves_the_old_one_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let (inner, moved) = (dir.path().join("a"), dir.path().join("b"));
    std::fs::create_dir(&inner).unwrap();
    let log = SessionLog::start(Target::File(inner.join("log")), CAPACITY).unwrap();
    std::fs::rename(&inner, &moved).unwrap();
    log.reopen();
    log.recorder().record(record(3));
    assert!(log.finish(PATIENCE));
    assert_eq!(
        numbers(&std::fs::read_to_string(moved.join("log")).unwrap()),
        [3]
    );
}

#[test]
fn an_unopenable_path_is_reported_in_one_sentence() {
    let path = PathBuf::from("/nonexistent/sessions.json");
    let error = SessionLog::start(Target::File(path), 1)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot open the session log /nonexistent/sessions.json: "),
        "{error}"
    );
}

/// A writer that blocks in its first write until released.
struct Stuck {
    entered: SyncSender<()>,
    go_on: Receiver<()>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.entered.send(());
        let _ = self.go_on.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_blocked_writer_delays_no_worker() {
    let (entered, was_entered) = mpsc::sync_channel(1);
    let (let_go, go_on) = mpsc::channel();
    let sink = Sink::new(Box::new(Stuck { entered, go_on }), None);
    let log = SessionLog::with(sink, 4).unwrap();
    let recorder = log.recorder();
    recorder.record(record(0));
    was_entered.recv().unwrap();
    // The writer is blocked in its write: four records fit into the queue, the others do not.
    (0..10).for_each(|n| recorder.record(record(n)));
    assert_eq!(
        recorder.counts(),
        Counts {
            written: 0,
            dropped: 6,
            failed: 0
        }
    );
    // Neither a signal nor the end waits for the blocked writer.
    log.reopen();
    assert!(!log.finish(Duration::ZERO));
    drop(let_go);
    wait_for(|| recorder.counts().written == 5);
}

/// A disk with a limited number of free bytes, until it is cleared.
#[derive(Clone)]
struct Disk(Arc<Mutex<(usize, Vec<u8>)>>);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (room, held) = &mut *self.0.lock().unwrap();
        let n = bytes.len().min(*room);
        if n == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *room -= n;
        held.extend(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_loses_records_and_never_joins_two() {
    let line = serde_json::to_vec(&record(0)).unwrap().len() + 1;
    for room in 0..3 * line {
        let disk = Disk(Arc::new(Mutex::new((room, Vec::new()))));
        let mut sink = Sink::new(Box::new(disk.clone()), None);
        (0..3).for_each(|n| sink.add(&record(n)));
        let outcome = sink.flush();
        let fit = (room / line) as u64;
        assert_eq!((outcome.written, outcome.failed), (fit, 3 - fit));
        assert_eq!(sink.waiting(), 0);
        disk.0.lock().unwrap().0 = usize::MAX;
        sink.add(&record(9));
        assert_eq!(sink.flush().written, 1);

        let held = String::from_utf8(disk.0.lock().unwrap().1.clone()).unwrap();
        let whole: Vec<&str> = held
            .lines()
            .filter(|l| serde_json::from_str::<Value>(l).is_ok())
            .collect();
        let mut expected: Vec<u128> = (0..u128::from(fit)).collect();
        expected.push(9);
        // A line that lost only its newline counts as lost, but is still readable.
        let also_read = room % line == line - 1;
        if also_read {
            expected.insert(expected.len() - 1, u128::from(fit));
        }
        assert_eq!(
            numbers(&whole.join("\n")),
            expected,
            "room for {room} bytes"
        );
    }
}
