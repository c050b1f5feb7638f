//! `taut watch` as a process: connections of real kernels in namespaces of their own.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use taut_sys_testing::network::enter_private_network;

use crate::host::Host;

const PATIENCE: Duration = Duration::from_secs(30);

/// `taut watch` until it is told to stop.
struct Watch(Child);

impl Watch {
    fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.arg("watch").args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Ends it as a service manager does.
    fn stop(&mut self) -> ExitStatus {
        let pid = Pid::from_raw(self.0.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        self.0.wait().unwrap()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All lines of all files.
fn lines(dir: &Path) -> Vec<Value> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        // The last may be half there while it is written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let each = whole
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        lines.extend(each);
    }
    lines
}

/// Waits until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < PATIENCE, "{what}: it does not come");
        std::thread::yield_now();
    }
}

/// Waits until it tells of an open connection: it looks.
fn looks(dir: &Path, local: SocketAddr) {
    let local = local.to_string();
    until("a look", || {
        lines(dir).iter().any(|line| line["local"] == *local)
    });
}

#[test]
fn every_connection_that_ends_is_written_once_however_many_come_and_go() {
    const MANY: usize = 2000;
    let host = Host::new("many");
    let listener = host.listener();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("records");
    let open = host.connection(&listener);
    let mut watch = Watch::start(&[
        "--netns",
        host.name(),
        "--interval",
        "100ms",
        "--open-every",
        "100ms",
        "--file-size",
        "500KB",
        "--keep",
        "1000",
        "--to",
        to.to_str().unwrap(),
    ]);
    looks(&to, open.0.local_addr().unwrap());

    let mut ended = BTreeSet::new();
    for _ in 0..MANY {
        let (mut client, mut server) = host.connection(&listener);
        client.write_all(&[7; 100]).unwrap();
        server.read_exact(&mut [0; 100]).unwrap();
        ended.insert(client.local_addr().unwrap().to_string());
        drop((client, server));
    }
    let ends = |lines: &[Value]| lines.iter().filter(|line| line["event"] == "end").count();
    until("both ends of each", || ends(&lines(&to)) >= 2 * MANY);
    assert!(watch.stop().success());

    let lines = lines(&to);
    assert_eq!(ends(&lines), 2 * MANY, "each once");
    let of_clients = lines
        .iter()
        .filter(|line| line["event"] == "end" && ended.contains(line["local"].as_str().unwrap()));
    // A segment that a busy machine acknowledges late is retransmitted.
    let sent = |line: &Value| {
        let count = |name: &str| line["instruments"][name].as_u64();
        Some(count("HCDataOctetsOut")? - count("OctetsRetrans")?)
    };
    let (whole, others): (Vec<_>, Vec<_>) =
        of_clients.partition(|line| sent(line) == Some(100) && line["figures"] != "scan");
    assert!(
        others.is_empty(),
        "without the figures of its end: {others:#?}"
    );
    let told: BTreeSet<_> = whole
        .iter()
        .map(|line| line["local"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(told, ended);
    // Most came and went between two scans.
    let unseen = |line: &&Value| line["event"] == "end" && line["seconds"].is_null();
    assert!(lines.iter().any(|line| unseen(&line)));
    for line in lines.iter().filter(unseen) {
        assert_eq!(line["process"]["pid"], std::process::id(), "{line}");
        assert!(line["lasted"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["phases"]["handshake"].is_number(), "{line}");
    }
    let files: Vec<_> = fs::read_dir(&to).unwrap().collect();
    assert!(files.len() > 1, "they were rotated");
    for file in files {
        let mode = file.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    }
}

#[test]
fn a_connection_that_was_seen_ends_with_its_owner_and_its_time() {
    let host = Host::new("seen");
    let listener = host.listener();
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = host.connection(&listener);
    let local = client.local_addr().unwrap();
    let mut watch = Watch::start(&[
        "--netns",
        host.name(),
        "--interval",
        "50ms",
        "--open-every",
        "50ms",
        "--to",
        dir.path().to_str().unwrap(),
        "sport",
        &local.port().to_string(),
    ]);
    until("its owner", || {
        let known = |line: &Value| {
            line["process"]["pid"] == std::process::id() && line["verdict"]["factor"] == "idle"
        };
        lines(dir.path()).iter().any(known)
    });
    drop((client, server));
    until("its end", || {
        lines(dir.path()).iter().any(|line| line["event"] == "end")
    });
    assert!(watch.stop().success());
    let lines = lines(dir.path());
    let end = lines.last().unwrap();
    assert_eq!(
        (&end["event"], &end["state"]),
        (&"end".into(), &"CLOSED".into())
    );
    assert_eq!(end["local"], *local.to_string());
    assert_eq!(end["process"]["pid"], std::process::id());
    assert!(end["seconds"].as_f64().unwrap() > 0.0);
    assert!(end["limited"]["idle"].as_f64().unwrap() > 0.0);
    assert!(lines.iter().all(|line| line["local"] == *local.to_string()));
}

#[test]
fn it_ends_by_itself_when_its_time_is_over_and_everything_is_written() {
    let host = Host::new("for");
    let listener = host.listener();
    let dir = tempfile::tempdir().unwrap();
    let args = ["--netns", host.name(), "--for", "2s", "--to"];
    let mut watch = Watch::start(&[&args[..], &[dir.path().to_str().unwrap()]].concat());
    let status = loop {
        drop(host.connection(&listener));
        if let Some(status) = watch.0.try_wait().unwrap() {
            break status;
        }
    };
    assert!(status.success());
    let text = fs::read_dir(dir.path())
        .unwrap()
        .map(|file| fs::read_to_string(file.unwrap().path()).unwrap())
        .collect::<String>();
    assert!(text.ends_with('\n'), "the last line is whole");
    assert!(lines(dir.path()).iter().any(|line| line["event"] == "end"));
}

#[test]
fn a_mistyped_directory_is_an_error_and_is_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let typo = dir.path().join("typo");
    let watch = Command::new(env!("CARGO_BIN_EXE_taut"))
        .args(["watch", "--to", typo.join("taut").to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8(watch.stderr).unwrap();
    assert_eq!(watch.status.code(), Some(2), "{said}");
    assert!(said.contains("typo does not exist"), "{said}");
    assert!(!typo.exists());
}

#[test]
fn scrapers_are_told_and_a_port_that_is_taken_is_said() {
    // The port stays free between the two jobs.
    enter_private_network();
    let host = Host::new("scrape");
    let listener = host.listener();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = port.local_addr().unwrap();
    let args = [
        "--netns",
        host.name(),
        "--interval",
        "50ms",
        "--metrics",
        &addr.to_string(),
    ];
    let mut taken = Watch::start(&args);
    assert_eq!(taken.0.wait().unwrap().code(), Some(1));
    drop(port);

    let mut watch = Watch::start(&args);
    let said = watch.0.stdout.take().unwrap();
    drop(host.connection(&listener));
    let scrape = || {
        let mut text = String::new();
        if let Ok(mut stream) = TcpStream::connect(addr) {
            let _ = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
            let _ = stream.read_to_string(&mut text);
        }
        text
    };
    // Before it looks first it hears of no end; what ends after is told.
    until("ends", || {
        drop(host.connection(&listener));
        let text = scrape();
        // Not every end comes with a round trip.
        text.contains("taut_watch_ended_total{factor=\"")
            && text.contains("taut_watch_rtt_seconds_bucket{le=\"")
    });
    // It ends when nobody reads any more.
    let mut said = BufReader::new(said);
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(serde_json::from_str::<Value>(&line).unwrap()["cookie"].is_u64());
    drop(said);
    until("its end", || {
        drop(host.connection(&listener));
        watch.0.try_wait().unwrap().is_some()
    });
    assert!(watch.0.wait().unwrap().success());
}

#[test]
fn a_disk_that_takes_nothing_loses_lines_and_nothing_else() {
    let host = Host::new("full");
    let listener = host.listener();
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("records");
    fs::create_dir(&to).unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(&to)
        .status();
    assert!(mount.unwrap().success());
    let _unmount = Unmount(&to);
    let open = host.connection(&listener);
    let mut watch = Watch::start(&[
        "--netns",
        host.name(),
        "--interval",
        "20ms",
        "--open-every",
        "20ms",
        "--to",
        to.to_str().unwrap(),
    ]);
    let full = || {
        fs::read_dir(&to)
            .unwrap()
            .map(|f| f.unwrap().metadata().unwrap().len())
            .sum::<u64>()
            >= 50_000
    };
    until("a full disk", full);
    // It goes on, and writes again when there is room.
    for file in fs::read_dir(&to).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    looks(&to, open.0.local_addr().unwrap());
    assert!(watch.stop().success());
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
