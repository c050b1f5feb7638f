//! `taut mesh plan` as a process.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};

use serde_json::Value;
use taut_sys_testing::network::enter_private_network;
use tempfile::TempDir;

/// The route of pied-piper 3.3, with a relay in the middle of the cloud's leg that is a detour.
const RTT: &str = "\
near 192.0.2.0/24 32.7
far 198.51.100.0/24 26
near far 215     # the cloud's leg
middle near 150
middle far 140
192.0.2.0/24 198.51.100.0/24 273.7
";

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(TempDir::new().unwrap());
        files.write("rtt", RTT);
        files
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
    }

    fn plan(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
        command.args(["mesh", "plan", "--rtt", "rtt"]).args(args);
        command.current_dir(self.0.path()).output().unwrap()
    }

    fn text(&self, args: &[&str]) -> String {
        let output = self.plan(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[args, &["--json"]].concat())).unwrap()
    }

    fn error(&self, args: &[&str]) -> String {
        let output = self.plan(args);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

const ENDS: [&str; 4] = ["--from", "192.0.2.7", "--to", "198.51.100.0/24"];

#[test]
fn the_choice_is_explained_with_its_runners_up_and_what_would_change_it() {
    let text = Files::new().text(&ENDS);
    assert!(
        text.starts_with("from 192.0.2.7/32 to 198.51.100.0/24: near > far\n"),
        "{text}"
    );
    for expected in [
        "first byte after 306.8 ms",
        "client - near: round trip 32.7 ms, 1.0 MB in 197.1 ms: this leg governs the rate",
        "near > far           baseline",
        "near > middle > far",
        "direct",
        "What would change the choice:",
        "  near - far above 290.",
        "  without near: ",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    // The runner-up has the client's leg, too, so only the direct path gains when that gets longer.
    let rises = text
        .lines()
        .find(|line| line.contains("client - near above"));
    assert!(rises.unwrap().ends_with(": direct"), "{text}");
}

#[test]
fn the_loss_of_the_relay_that_a_session_comes_from_is_no_change_to_plan_for() {
    let text = Files::new().text(&["--from", "near", "--to", "198.51.100.0/24"]);
    assert!(text.contains("What would change the choice:"), "{text}");
    assert!(text.contains("  without far there is no route"), "{text}");
    assert!(!text.contains("without near"), "{text}");
}

#[test]
fn the_json_has_the_same_figures() {
    let plan = Files::new().json(&ENDS);
    let choice = &plan["routes"][0];
    assert_eq!(choice["relays"], serde_json::json!(["near", "far"]));
    assert_eq!(choice["kind"], "baseline");
    let first_byte = choice["first_byte_ms"].as_f64().unwrap();
    assert!((first_byte - 306.8).abs() < 0.01, "{first_byte}");
    assert_eq!(choice["legs"][0]["governs"], true);
    assert_eq!(plan["complete"], true);
    let kinds: Vec<_> = plan["routes"].as_array().unwrap().iter().collect();
    let three = kinds.iter().find(|r| r["kind"] == "three").unwrap();
    let gain = three["slowest_leg_gain"].as_f64().unwrap();
    assert!((gain - 215.0 / 150.0).abs() < 1e-6, "{gain}");
    let changes = plan["changes"].as_array().unwrap();
    assert!(changes.iter().any(|c| c["change"] == "relay_lost"));
    assert!(changes.iter().any(|c| c["change"] == "rtt_rises"));
}

#[test]
fn clouds_and_prices_come_from_the_list_of_members() {
    let files = Files::new();
    let member = |name: &str, seed: &str, cloud: &str, price: &str| {
        let key = files.0.path().join(seed);
        let keygen = Command::new(env!("CARGO_BIN_EXE_taut"))
            .args(["mesh", "keygen"])
            .arg(&key)
            .output()
            .unwrap();
        let key = String::from_utf8(keygen.stdout).unwrap();
        format!(
            "[[member]]\nname = \"{name}\"\nkeys = [\"{}\"]\ncloud = \"{cloud}\"\nprice = {price}\n",
            key.trim()
        )
    };
    let members = [
        member("near", "a", "one", "0.09"),
        member("far", "b", "two", "0.12"),
    ]
    .concat();
    files.write("members", &members);
    let with = |more: &[&str]| files.json(&[&ENDS[..], &["--members", "members"], more].concat());
    assert_eq!(with(&[])["routes"][0]["price_per_gb"], 0.21);
    let cheap = with(&["--max-price", "0.2"]);
    let routes = cheap["routes"].as_array().unwrap();
    assert!(
        routes
            .iter()
            .all(|r| r["price_per_gb"].as_f64().unwrap() <= 0.2)
    );
    // `near` alone knows no path to the destination.
    let one = with(&["--clouds", "one"]);
    assert_eq!(one["routes"].as_array().unwrap().len(), 1);
    assert_eq!(one["routes"][0]["kind"], "direct");
    let both = with(&["--clouds", "one,two"]);
    assert_eq!(both["routes"][0]["kind"], "baseline");
    let unknown = [&ENDS[..], &["--members", "members", "--clouds", "three"]].concat();
    let unknown = files.error(&unknown);
    assert!(
        unknown.contains("no member is in the cloud `three`; theirs are one, two"),
        "{unknown}"
    );
    // The relay that is not in the list is named, and not used.
    let output = files.plan(&[&ENDS[..], &["--members", "members"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("because members does not list: middle"),
        "{said}"
    );
}

#[test]
fn errors_say_what_to_do() {
    let files = Files::new();
    let unknown = files.error(&["--from", "203.0.113.1", "--to", "198.51.100.1"]);
    assert!(
        unknown.contains("no path from or to 203.0.113.1/32; add a line"),
        "{unknown}"
    );
    let place = files.error(&["--from", "a b", "--to", "near"]);
    assert!(
        place.contains("neither the name of a member nor a prefix"),
        "{place}"
    );
    assert!(files.error(&["--from", "near"]).contains("--to"));
    files.write("rtt", "near far\n");
    let line = files.error(&ENDS);
    assert!(line.contains("rtt: line 1: it has 2 words"), "{line}");
    let filter = files.error(&["--for", "dport x"]);
    assert!(
        filter.contains("rtt: line 1") || filter.contains("filter"),
        "{filter}"
    );
}

#[test]
fn running_connections_are_planned_for_by_their_measured_round_trips() {
    enter_private_network();
    // Connections of the machine to itself are not: no relay can shorten them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let filter = format!("dport {}", listener.local_addr().unwrap().port());
    let text = Files::new().text(&["--for", &filter]);
    assert_eq!(text, "0 connections: 0 would gain by a relay\n");
}
