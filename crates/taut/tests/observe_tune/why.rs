//! `taut why` on connections with both ends on this machine, and on several with the same verdict.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::host::Host;
use crate::observe::{my_name, until_told};

fn why(host: &Host, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["why", "--for", "500ms", "--netns", host.name()]);
    let command = command.args(args).stdin(Stdio::null());
    command.env_remove("TAUT_LOG").output().unwrap()
}

fn text(host: &Host, args: &[&str]) -> String {
    String::from_utf8(why(host, args).stdout).unwrap()
}

/// A connection whose writer waits, because nobody reads. Ends with this.
struct Stalled {
    receiver: Option<TcpStream>,
    writes: Option<JoinHandle<()>>,
}

impl Stalled {
    fn new(host: &Host, listener: &std::net::TcpListener) -> Self {
        let (mut client, server) = host.connection(listener);
        Self {
            receiver: Some(server),
            writes: Some(std::thread::spawn(move || {
                while client.write_all(&[7; 65536]).is_ok() {}
            })),
        }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        drop(self.receiver.take());
        let _ = self.writes.take().map(JoinHandle::join);
    }
}

#[test]
fn both_ends_of_one_machine_are_one_paragraph_whichever_is_asked_about() {
    let host = Host::new("why-both");
    let listener = host.listener();
    let _stalled = Stalled::new(&host, &listener);
    let server = listener.local_addr().unwrap();
    let (to, from) = (
        format!("dport {}", server.port()),
        format!("sport {}", server.port()),
    );
    let verdict = "  is limited by the receiving application, which reads slowly\n";
    for (filter, arrow) in [("", "->"), (&*to, "->"), (&*from, "<-")] {
        let said = until_told(|| text(&host, &[filter]), |said| said.contains(verdict));
        let heads: Vec<_> = said.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(
            heads.iter().filter(|line| line.contains(arrow)).count(),
            1,
            "{said}"
        );
        assert_eq!(said.matches(", both ends here").count(), 1, "{said}");
        let at_server = format!("\n  at {server}: receiver-application\n");
        assert!(said.contains(&at_server), "{said}");
        assert!(!said.contains("other end"), "{said}");
    }
    let json = String::from_utf8(why(&host, &["--json", &to]).stdout).unwrap();
    let record: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(
        (json.lines().count(), &record["both_ends"]["shown_by"]),
        (1, &"there".into())
    );
}

#[test]
fn connections_with_the_same_verdict_are_one_paragraph() {
    let host = Host::new("why-same");
    let listener = host.listener();
    let _stalled: Vec<_> = (0..5).map(|_| Stalled::new(&host, &listener)).collect();
    let server = listener.local_addr().unwrap();
    let filter = format!("sport {}", server.port());
    let each = "\n  each is limited by the receiving application";
    let said = until_told(|| text(&host, &[&filter]), |said| said.contains(each));
    assert!(said.starts_with("5 connections in "), "{said}");
    let all = format!("\n5 connections of {} at {server} ", my_name());
    assert!(said.contains(&all), "{said}");
    assert_eq!(said.matches("receiving application").count(), 1, "{said}");
}

#[test]
fn what_there_is_instead_is_named() {
    let host = Host::new("why-none");
    let listener = host.listener();
    let _stalled = Stalled::new(&host, &listener);
    let said = text(&host, &["dport 1"]);
    assert!(
        said.contains("no such connection") && said.contains("; open here: "),
        "{said}"
    );
}

#[test]
fn a_report_without_any_of_the_connections_is_an_error() {
    let host = Host::new("why-with");
    let listener = host.listener();
    let _stalled = Stalled::new(&host, &listener);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("far.json");
    std::fs::write(
        &file,
        "{\"local\":\"192.0.2.1:1\",\"remote\":\"192.0.2.2:2\"}\n",
    )
    .unwrap();
    let filter = format!("dport {}", listener.local_addr().unwrap().port());
    let output = why(&host, &["--with", file.to_str().unwrap(), &filter]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("its connections (1) are none of those here (1)"),
        "{said}"
    );
}

#[test]
fn other_ends_take_no_room_from_what_is_asked_about() {
    let host = Host::new("why-room");
    let listener = host.listener();
    let _stalled = Stalled::new(&host, &listener);
    let server = listener.local_addr().unwrap();
    let filter = format!("dport {}", server.port());
    let args = ["--json", "--connections", "1", &filter];
    let remote = || {
        let json = String::from_utf8(why(&host, &args).stdout).unwrap();
        let record: Value = serde_json::from_str(json.lines().next().unwrap_or("null")).unwrap();
        record["remote"].clone()
    };
    until_told(remote, |remote| *remote == server.to_string());
}

/// Uploads for half a second while `taut why` observes, and then receives a short answer. Returns what
/// it says of the end that uploads.
fn upload(host: &Host) -> String {
    let listener = host.listener();
    let filter = format!("dport {}", listener.local_addr().unwrap().port());
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command.args(["why", "--for", "1500ms", "--netns", host.name(), &filter]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut command = command.spawn().unwrap();
    let (mut client, mut serving) = host.connection(&listener);
    let reads = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        let mut left = 400 << 16;
        while left > 0 {
            left -= serving.read(&mut bytes[..left.min(1 << 16)]).unwrap();
        }
        serving.write_all(&[7; 60_000]).unwrap();
    });
    for _ in 0..400 {
        client.write_all(&[7; 1 << 16]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    reads.join().unwrap();
    client.read_exact(&mut [0; 60_000]).unwrap();
    drop(client);
    let said = std::io::read_to_string(command.stdout.take().unwrap()).unwrap();
    assert!(command.wait().unwrap().success());
    said
}

#[test]
fn an_ended_connection_has_the_direction_of_most_of_its_data() {
    let host = Host::new("why-ended");
    // At least two scans have to find it.
    let said = until_told(|| upload(&host), |said| said.contains(", has ended\n"));
    let head = said
        .lines()
        .find(|line| line.ends_with(", has ended"))
        .unwrap();
    assert!(head.contains(" -> "), "{said}");
}
