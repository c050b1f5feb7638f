//! The admin page of `taut relay` in a browser.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::has_programs;

use crate::browser::{
    HOSTILE, assert_nothing_is_html, body, document, document_at, get, with_data,
};

/// A relay with the page, killed at the end.
pub(crate) struct Relay {
    child: Child,
    pub(crate) page: SocketAddr,
    pub(crate) listen: SocketAddr,
}

impl Relay {
    pub(crate) fn start(to: SocketAddr) -> Self {
        Self::start_with("control = \"off\"\n", &format!("to = \"{to}\"\n"))
    }

    /// Starts one with these lines in `[relay]`, and in its only forward.
    fn start_with(relay: &str, forward: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taut.toml");
        let config = format!(
            "[[relay.forward]]\nname = \"shop\"\nlisten = \"127.0.0.1:0\"\n{forward}\
             [relay]\nworkers = 1\nadmin = \"127.0.0.1:0\"\n{relay}"
        );
        fs::write(&path, config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_taut"))
            .args(["relay", "--config"])
            .arg(&path)
            .env_remove("TAUT_LOG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let (mut page, mut listen) = (None, None);
        while page.is_none() || listen.is_none() {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
            let after = |mark: &str| {
                let (_, rest) = line.split_once(mark)?;
                rest.split(['/', ' ', '\n']).next()?.parse().ok()
            };
            page = page.or_else(|| after("the admin page at http://"));
            listen = listen.or_else(|| after("listen="));
        }
        Self {
            child,
            page: page.unwrap(),
            listen: listen.unwrap(),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a key in `dir`, and returns the public one.
fn keygen(dir: &Path, name: &str) -> String {
    let mut keygen = Command::new(env!("CARGO_BIN_EXE_taut"));
    let made = keygen.args(["mesh", "keygen"]).arg(dir.join(name)).output();
    String::from_utf8(made.unwrap().stdout)
        .unwrap()
        .trim()
        .to_owned()
}

/// Returns what `taut mesh status --json` prints of the relay with this control socket.
fn mesh_status(control: &Path) -> Value {
    let mut status = Command::new(env!("CARGO_BIN_EXE_taut"));
    status.args(["mesh", "status", "--json", "--control"]);
    let output = status.arg(control).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[test]
fn the_page_shows_the_relay_in_a_browser_and_nothing_of_it_as_html() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Relay::start(server.local_addr().unwrap());
    let client = TcpStream::connect(relay.listen).unwrap();
    let _upstream = server.accept().unwrap();
    let client = client.local_addr().unwrap().to_string();
    // The state is as the page expects it.
    let said = get(relay.page, "/status.json", "localhost");
    let (head, state) = said.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("default-src 'none'"),
        "{head}"
    );
    let parsed: serde_json::Value = serde_json::from_str(state).unwrap();
    let id = parsed["sessions"][0]["id"].as_str().unwrap();
    assert_eq!(parsed["relay"]["sessions"], 1);
    // Every user of the machine can ask.
    assert!(!state.contains(&client), "{state}");
    let rebound = get(relay.page, "/status.json", "rebound.example");
    assert!(
        rebound.starts_with("HTTP/1.1 421") && !rebound.contains("shop"),
        "{rebound}"
    );

    if !has_programs(&["chromium"]) {
        return;
    }
    let shown = document(relay.page);
    for part in [">shop<", ">no open session<", "of"] {
        let expected = part != ">no open session<";
        assert_eq!(shown.contains(part), expected, "{part} in {shown}");
    }
    assert!(shown.contains(&format!(">{id}<")), "{shown}");
    assert!(!shown.contains(&client), "{shown}");
    // Without a mesh a relay has the name of its machine.
    let host = parsed["host"].as_str().unwrap();
    assert!(
        shown.contains(&format!("<title>Taut relay {host}</title>")),
        "{shown}"
    );

    // The same with names that are HTML, which no configuration of this relay could have.
    let state = state.replace("\"shop\"", &serde_json::to_string(HOSTILE).unwrap());
    let shown = document(with_data(relay.page, "/status.json", state));
    assert_nothing_is_html(&shown);
    // There is no mesh.
    for id in ["routes-section", "heat-section", "members-section"] {
        assert!(
            shown.contains(&format!("<section id=\"{id}\" hidden=\"\">")),
            "{shown}"
        );
    }
}

#[test]
fn the_page_shows_members_round_trip_times_and_routes_and_a_label_that_is_html_as_text() {
    enter_private_network();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = server.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let addresses = ["127.0.0.1:7440", "127.0.0.1:7441"];
    let mut members = String::new();
    for (name, address) in ["near", "far"].into_iter().zip(addresses) {
        let key = keygen(dir, name);
        members += &format!(
            "[[member]]\nname = \"{name}\"\nkeys = [\"{key}\"]\naddresses = [\"{address}\"]\n"
        );
    }
    // A label of `far`.
    members += &format!("site = '{HOSTILE}'\n");
    fs::write(dir.join("members"), members).unwrap();
    let start = |name: &str, address: &str, forward: &str| {
        let dir = dir.display();
        let mesh = format!(
            "control = \"{dir}/{name}.sock\"\n[relay.mesh]\nprivate_key_file = \"{dir}/{name}\"\n\
             members_file = \"{dir}/members\"\nlisten = \"{address}\"\nallow = [\"127.0.0.1/32:{}\"]\n",
            to.port()
        );
        Relay::start_with(&mesh, forward)
    };
    let _far = start("far", addresses[1], &format!("to = \"{to}\"\n"));
    let near = format!("via = \"auto\"\nto = \"{to}\"\n");
    let near = start("near", addresses[0], &near);
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        let status = mesh_status(&dir.join("near.sock"));
        let routed = status["routes"][0]["choice"] == json!(["near", "far"]);
        if routed && status["paths"].as_array().is_some_and(|all| all.len() == 2) {
            break status;
        }
        assert!(Instant::now() < deadline, "no route: {status}");
        std::thread::sleep(Duration::from_millis(20));
    };

    // Without a mesh there is nothing to show, which is no failure.
    let alone = Relay::start(to);
    let said = get(alone.page, "/mesh.json", "localhost");
    assert!(
        said.starts_with("HTTP/1.1 200") && said.ends_with("\r\n\r\nnull"),
        "{said}"
    );

    if !has_programs(&["chromium"]) {
        return;
    }
    let shown = document(near.page);
    for id in ["routes-section", "heat-section", "members-section"] {
        assert!(shown.contains(&format!("<section id=\"{id}\">")), "{shown}");
    }
    let why = status["routes"][0]["why"].as_str().unwrap();
    let (choice, _) = why.split_once(':').unwrap();
    for part in [
        format!("near → far → {to}, first byte after "),
        choice.to_owned(),
        "title=\"near to far: ".to_owned(),
        "title=\"far to near: ".to_owned(),
        ">this relay<".to_owned(),
        "class=\"good\">up<".to_owned(),
    ] {
        assert!(shown.contains(&part), "{part} in {shown}");
    }
    assert!(!shown.contains("not measured"), "{shown}");
    assert!(shown.contains("<title>Taut relay near</title>"), "{shown}");
    assert_nothing_is_html(&shown);
}

#[test]
fn what_is_broken_is_shown_with_the_remedy_of_the_log() {
    // A port at which nothing listens.
    let to = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .unwrap();
    let relay = Relay::start(to);
    let broken = format!("forward shop: {to} refuses connections; 1 session reset so far; ");
    let deadline = Instant::now() + Duration::from_secs(30);
    let _ = TcpStream::connect(relay.listen).unwrap();
    let message = loop {
        let state: Value = serde_json::from_str(&body(relay.page, "/status.json")).unwrap();
        if let Some(message) = state["relay"]["broken"][0]["message"].as_str() {
            break message.to_owned();
        }
        assert!(Instant::now() < deadline, "nothing is broken: {state}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(message.starts_with(&broken), "{message}");
    assert!(message.ends_with("check that the server runs and listens there"));
    if has_programs(&["chromium"]) {
        let shown = document(relay.page);
        assert!(
            shown.contains(&format!("<li>{message}<small>for ")),
            "{shown}"
        );
    }
}

#[test]
fn on_a_phone_only_the_heat_map_goes_on_beyond_the_screen_and_shows_it() {
    if !has_programs(&["chromium"]) {
        return;
    }
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Relay::start(server.local_addr().unwrap());
    let names: Vec<_> = (0..20).map(|number| format!("relay-{number}")).collect();
    let members = names.iter().map(|name| {
        json!({ "name": name, "state": "up", "pool_ready": 1, "sessions": 0, "sent": 0, "received": 0 })
    });
    let paths = names.iter().map(|to| {
        json!({ "from": "relay-0", "to": to, "rtt_ms": 7, "smoothed_ms": 8, "loss": 0, "age_s": 1 })
    });
    let mesh = json!({
        "members": members.collect::<Vec<_>>(), "paths": paths.collect::<Vec<_>>(), "routes": [],
    });
    let page = with_data(relay.page, "/mesh.json", mesh.to_string());
    let shown = document_at(page, 390);
    assert!(shown.contains("class=\"wide map more-right\""), "{shown}");
    assert_eq!(shown.matches("more-right").count(), 1, "{shown}");
    let shown = document_at(page, 2560);
    assert!(!shown.contains("more-right"), "{shown}");
}
