//! The session log of a node: which sessions are in it, and which are not.

use std::io::Write;
use std::path::Path;

use serde_json::Value;
use taut_relay::config::Config;
use taut_relay::session_log::Target;

use crate::rig::Path as DataPath;
use crate::rig::*;

fn log_to(path: &Path) -> impl Fn(&mut Config) {
    let target = Target::File(path.to_owned());
    move |config| config.session_log = Some(target.clone())
}

/// Returns the records of a file, once there are so many.
pub(crate) fn records(path: &Path, count: usize) -> Vec<Value> {
    let mut records = Vec::new();
    wait_until("the log's lines", || {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // The last line may be incomplete.
        let whole = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
        records = whole.map(|l| serde_json::from_str(l).unwrap()).collect();
        records.len() >= count
    });
    assert_eq!(records.len(), count, "{records:?}");
    records
}

#[test]
fn a_session_is_logged_when_it_has_ended_with_both_legs() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sessions.jsonl");
    let rig = Rig::with(DataPath::Both, log_to(&path));
    let (mut client, mut server) = rig.pair();
    let client_addr = client.local_addr().unwrap().to_string();
    let bytes = stream(4 << 20, 5);
    std::thread::scope(|s| {
        s.spawn(|| {
            client.write_all(&bytes).unwrap();
            end_writing(&client);
        });
        assert_same(&read_to_fin(&mut server), &bytes);
    });
    server.write_all(b"thanks").unwrap();
    drop(server);
    assert_eq!(read_to_fin(&mut client), b"thanks");

    let record = &records(&path, 1)[0];
    let to = rig.server.local_addr().unwrap().to_string();
    for (field, value) in [
        ("client", client_addr.as_str()),
        ("listener", &rig.relay_addr().to_string()),
        ("forward", &rig.relay_addr().to_string()),
        ("destination", &to),
        ("address", &to),
        ("cause", "complete"),
    ] {
        assert_eq!(record[field], value, "{field}: {record}");
    }
    assert_eq!(record["relay"], Value::Null);
    assert_eq!(record["attempts"], 1);
    assert_eq!(record["session"].as_str().unwrap().len(), 32);
    assert_eq!(record["to_upstream"]["bytes"], 4 << 20);
    assert_eq!(record["to_upstream"]["spliced"], true);
    assert_eq!(record["to_client"]["bytes"], 6);
    assert_eq!(record["to_client"]["spliced"], false);
    let time = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{record}"));
    let setup = time(&record["setup_us"]);
    let up = time(&record["to_upstream"]["first_byte_us"]);
    let down = time(&record["to_client"]["first_byte_us"]);
    assert!(setup <= up && up <= down && down <= time(&record["total_us"]));
    // SYN or FIN may be counted, so not more than a byte each besides.
    assert!(time(&record["client_tcp"]["bytes_received"]) >= 4 << 20);
    assert!(time(&record["upstream_tcp"]["bytes_acked"]) >= 4 << 20);
}

#[test]
fn a_failed_dial_is_logged_and_a_refused_client_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sessions.jsonl");
    let rig = Rig::with(DataPath::Both, |config| {
        log_to(&path)(config);
        config.max_sessions = Some(1);
        config.timeouts.queue = None;
    });
    let held = rig.pair();
    expect_reset(rig.relay_addr());
    drop(held);
    records(&path, 1);

    let Rig { node, server, .. } = rig;
    drop(server);
    expect_reset(node.listen_addrs()[0].0);
    let record = &records(&path, 2)[1];
    assert_eq!(record["cause"], "connect_refused");
    for nothing in ["address", "setup_us", "upstream_tcp"] {
        assert_eq!(record[nothing], Value::Null, "{nothing}: {record}");
    }
}

#[test]
fn a_rotated_log_continues_under_its_name_after_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sessions.jsonl");
    let old = dir.path().join("sessions.jsonl.1");
    let mut config = None;
    let rig = Rig::with(DataPath::Both, |c| {
        log_to(&path)(c);
        config = Some(c.clone());
    });
    drop(rig.pair());
    records(&path, 1);
    std::fs::rename(&path, &old).unwrap();
    rig.node.reload(&config.unwrap()).unwrap();
    wait_until("the new file", || path.exists());
    drop(rig.pair());
    records(&path, 1);
    records(&old, 1);
}

#[test]
fn queued_records_are_written_before_a_node_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sessions.jsonl");
    let rig = Rig::with(DataPath::Both, log_to(&path));
    let pairs: Vec<_> = (0..20).map(|_| rig.pair()).collect();
    let Rig { node, .. } = rig;
    drop(node);
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("\"cause\":\"stopped\"").count(), 20, "{text}");
    drop(pairs);
}
