//! The page of a machine, `taut status --serve`: what it answers, and what a browser makes of it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use taut_sys_testing::skip::has_programs;

use crate::admin::Relay;
use crate::browser::{HOSTILE, ask, assert_nothing_is_html, body, document, get, with_data};

/// A process that serves the page.
struct Served {
    child: Child,
    page: SocketAddr,
}

impl Served {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_taut"))
            .args(["status", "--serve", "127.0.0.1:0"])
            .env_remove("TAUT_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let page = lines.find_map(|line| {
            let line = line.unwrap();
            let (_, rest) = line.split_once("the page of this machine at http://")?;
            rest.split('/').next()?.parse().ok()
        });
        Self {
            child,
            page: page.expect("it serves"),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the paths of all fields outside of lists.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        fields(value, &path, found);
        found.insert(path);
    }
}

#[test]
fn its_status_has_the_fields_that_the_command_prints() {
    let served = Served::start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    let printed = command.args(["status", "--json"]).output().unwrap().stdout;
    let [mut printed_fields, mut served_fields] = [BTreeSet::new(), BTreeSet::new()];
    let printed: Value = serde_json::from_slice(&printed).unwrap();
    fields(&printed, "", &mut printed_fields);
    let status = body(served.page, "/status.json");
    let status: Value = serde_json::from_str(&status).unwrap();
    fields(&status, "", &mut served_fields);
    assert_eq!(served_fields, printed_fields);
    assert!(printed_fields.contains(".connections.slow.count"));
    // What the page shows contains it.
    let machine: Value = serde_json::from_str(&body(served.page, "/machine.json")).unwrap();
    let mut shown = BTreeSet::new();
    fields(&machine["status"], "", &mut shown);
    shown.insert(".version".to_owned());
    assert_eq!(shown, printed_fields);
}

#[test]
fn only_its_own_files_are_read_by_names_of_this_machine() {
    let served = Served::start();
    let status = |method: &str, path: &str, host: &str| {
        let said = ask(served.page, method, path, host);
        let code = said.split(' ').nth(1).unwrap().to_owned();
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("default-src 'none'"), "{head}");
        (code.parse::<u16>().unwrap(), body.len())
    };
    for path in [
        "/",
        "/page.css",
        "/page.js",
        "/relay.js",
        "/mesh.js",
        "/machine.js",
    ] {
        assert_eq!(status("GET", path, "127.0.0.1:9460").0, 200, "{path}");
        // The head alone.
        assert_eq!(status("HEAD", path, "localhost"), (200, 0), "{path}");
    }
    for data in ["/status.json", "/machine.json", "/mesh.json"] {
        assert_eq!(status("GET", data, "rebound.example").0, 421, "{data}");
        assert_eq!(status("POST", data, "localhost").0, 405, "{data}");
    }
    for path in [
        "/metrics",
        "/../etc/passwd",
        "/status",
        "/page/machine.html",
    ] {
        assert_eq!(status("GET", path, "localhost").0, 404, "{path}");
    }
    // Without a relay at the default socket there is no mesh, or there is that of a relay that runs here.
    assert!(
        ["null", "{"]
            .iter()
            .any(|begin| body(served.page, "/mesh.json").starts_with(begin))
    );
}

#[test]
fn idle_connections_make_room_for_one_that_asks() {
    let served = Served::start();
    let idle: Vec<_> = (0..3 * 16)
        .map(|_| TcpStream::connect(served.page).unwrap())
        .collect();
    let said = get(served.page, "/", "localhost");
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    drop(idle);
}

#[test]
fn a_signal_ends_it_also_while_it_observes() {
    let mut served = Served::start();
    let mut asking = TcpStream::connect(served.page).unwrap();
    let request = "GET /status.json HTTP/1.1\r\nhost: localhost\r\n\r\n";
    asking.write_all(request.as_bytes()).unwrap();
    kill_process(Pid::from_child(&served.child), Signal::TERM).unwrap();
    let status = served.child.wait().unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn an_address_in_use_is_an_error_that_names_the_option() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    let output = command.args(["status", "--serve", &addr]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&addr) && said.contains("another address for --serve"),
        "{said}"
    );
}

#[test]
fn names_of_processes_jobs_and_relays_are_never_html() {
    if !has_programs(&["chromium"]) {
        return;
    }
    let served = Served::start();
    let shown = document(served.page);
    for part in ["<title>Taut on ", ">what limits them<", ">Jobs<"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }

    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Relay::start(server.local_addr().unwrap());
    let _client = TcpStream::connect(relay.listen).unwrap();
    let _upstream = server.accept().unwrap();
    let hostile = serde_json::to_string(HOSTILE).unwrap();
    let of_relay = body(relay.page, "/status.json").replace("\"shop\"", &hostile);
    let mut machine: Value = serde_json::from_str(&body(served.page, "/machine.json")).unwrap();
    machine["host"] = json!(HOSTILE);
    machine["relay"] = serde_json::from_str(&of_relay).unwrap();
    machine["relay"]["relay"]["name"] = json!(HOSTILE);
    machine["relay"]["relay"]["broken"] = json!([
        { "condition": "peer", "subject": HOSTILE, "cause": "", "seconds": 1, "affected": 0, "message": HOSTILE }
    ]);
    machine["status"]["jobs"] =
        json!([{ "name": "relay", "pid": 7, "well": false, "state": HOSTILE }]);
    machine["status"]["connections"]["unseen"] = json!(HOSTILE);
    machine["limits"]["top"] = json!([{
        "process": HOSTILE, "pid": 7, "container": HOSTILE, "local": HOSTILE, "peer": HOSTILE,
        "rates": { "sent": 1e6, "received": 0 }, "factor": "loss", "confidence": "sure", "trouble": 2,
        "words": HOSTILE, "evidence": HOSTILE, "remedy": HOSTILE,
    }]);
    machine["taps"] = json!([{
        "tap": HOSTILE, "state": HOSTILE, "why": HOSTILE, "flows": 1, "exposure": 0, "retransmitted": 1, "lost": 0
    }]);
    machine["tune"] = json!([{ "process": HOSTILE, "peer": HOSTILE, "what": HOSTILE }]);
    machine["guest"] = json!(HOSTILE);
    let shown = document(with_data(served.page, "/machine.json", machine.to_string()));
    assert_nothing_is_html(&shown);
    // Each place shows it: the title twice, the relay's heading, its broken condition, its forward twice, and so on.
    let times = shown.matches("&lt;script&gt;alert(2)").count();
    assert!(times >= 16, "{times} in {shown}");
    for part in [">1 segment<", ">8.0 Mbit/s<", "1 session of at most"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}
