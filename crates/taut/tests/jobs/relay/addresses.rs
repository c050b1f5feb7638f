//! A destination with several addresses: which of them is down, and how many sessions each has.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use serde_json::Value;
use taut_sys_testing::network::enter_private_network;

use crate::relay::rig::{PATIENCE, Running, address, get, operate};

#[test]
fn an_address_that_is_down_is_named_everywhere_and_a_drained_one_gets_no_session() {
    enter_private_network();
    let dir = tempfile::tempdir().unwrap();
    let (config, control) = (dir.path().join("taut.toml"), dir.path().join("control"));
    let metrics = address(9464);
    let text = format!(
        "[relay]\ncontrol = {control:?}\nmetrics = \"{metrics}\"\n[[relay.forward]]\nname = \"web\"\n\
         listen = \"127.0.0.1:8080\"\ncheck = \"100ms\"\n\
         to = [\"127.0.0.1:9000\", \"127.0.0.1:9001\", \"127.0.0.1:9002\"]\n"
    );
    fs::write(&config, text).unwrap();
    let _servers = [9000, 9001].map(|port| TcpListener::bind(address(port)).unwrap());
    let mut relay = Running::with_config(&config);
    relay.wait_for_log("address 127.0.0.1:9002 refuses connections");

    let status = || operate(&control, &["status"]).1;
    let until = |what: &str| {
        let began = Instant::now();
        while !status().contains(what) {
            assert!(began.elapsed() < PATIENCE, "no `{what}` in: {}", status());
        }
    };
    let said = status();
    for part in [
        "\n    127.0.0.1:9000: up; 0 sessions\n",
        "\n    127.0.0.1:9002: down for ",
        "\n  address 127.0.0.1:9002: connect_refused, for ",
    ] {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
    let (_, json) = operate(&control, &["status", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let first = &json["status"]["forwards"][0]["addresses"][0];
    assert_eq!(first["address"], "127.0.0.1:9002", "{json}");
    assert_eq!(first["state"], "down", "{json}");
    let page = get(metrics, "/metrics");
    for line in [
        "taut_relay_address_up{address=\"127.0.0.1:9000\"} 1",
        "taut_relay_address_up{address=\"127.0.0.1:9002\"} 0",
        "taut_relay_broken{condition=\"address\",subject=\"127.0.0.1:9002\"} 1",
    ] {
        assert!(page.lines().any(|l| l == line), "no `{line}` in: {page}");
    }

    let drain = |address: &str, more: &[&str]| {
        let args = [&["drain", "--address", address], more].concat();
        operate(&control, &args)
    };
    let (code, said) = drain("127.0.0.1:9000", &[]);
    assert_eq!(code, Some(0), "{said}");
    let connect = |_| TcpStream::connect(relay.listen).unwrap();
    let _clients: Vec<_> = (0..6).map(connect).collect();
    until("127.0.0.1:9001: up; 6 sessions");
    until("127.0.0.1:9000: drained; 0 sessions");
    assert_eq!(drain("127.0.0.1:9000", &["--undo"]).0, Some(0));
    let _more: Vec<_> = (0..6).map(connect).collect();
    until("127.0.0.1:9000: up; 6 sessions");
    let (code, said) = drain("127.0.0.1:9003", &[]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no forward has the address"), "{said}");

    let _third = TcpListener::bind(address(9002)).unwrap();
    relay.wait_for_log("address 127.0.0.1:9002 accepts connections again");
    until("nothing is broken");
}
