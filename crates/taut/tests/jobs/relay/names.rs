//! Destinations whose names cannot be looked up.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;
use std::process::Command;

use rustix::process::Signal;
use taut_sys_testing::network::enter_private_network;

use crate::relay::rig::{PATIENCE, Running, address, operate, pair, server};

#[test]
fn a_destination_without_an_address_keeps_the_relay_from_nothing_and_is_served_once_it_has_one() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (hosts, config, control) = (path("hosts"), path("taut.toml"), path("control"));
    fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    // Nothing answers there.
    fs::write(path("resolv.conf"), "nameserver 127.0.0.99\n").unwrap();
    let port = addr.port();
    let forward = |name: &str, listen: u16, to: &str| {
        let listen = address(listen);
        format!(
            "[[relay.forward]]\nname = \"{name}\"\nlisten = \"{listen}\"\nto = \"{to}:{port}\"\n"
        )
    };
    let head = format!("[relay]\ncontrol = {control:?}\n");
    let text = head + &forward("good", 8080, "127.0.0.1") + &forward("late", 8081, "late.test");
    fs::write(&config, &text).unwrap();

    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-ec"])
        .arg("mount --bind $1/hosts /etc/hosts; mount --bind $1/resolv.conf /etc/resolv.conf; exec $0 relay --config $2")
        .arg(env!("CARGO_BIN_EXE_taut"))
        .args([dir.path(), config.as_path()]);
    let mut relay = Running::run(&mut command);
    drop(pair(&relay, &server));
    let is_reset = || {
        let mut client = TcpStream::connect(address(8081)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    };
    is_reset();
    let said = relay.wait_for_log("cannot look up late.test");
    assert!(said.contains("sessions to it are reset"), "{said}");
    let (_, status) = operate(&control, &["status"]);
    let broken = format!("look_up late.test:{port}: no_address");
    assert!(status.contains(&broken), "{status}");

    // Another one does not keep it from a reload either.
    let text = text.replace("8080", "8082") + &forward("later", 8083, "later.test");
    fs::write(&config, &text).unwrap();
    let (code, said) = operate(&control, &["reload"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("cannot look up later.test"), "{said}");
    relay.listen = address(8082);
    drop(pair(&relay, &server));
    // If all are required, it does, and nothing changes.
    let required = "[relay]\nresolve_required = \"all\"\n";
    fs::write(&config, text.replace("[relay]\n", required)).unwrap();
    let (code, said) = operate(&control, &["reload"]);
    assert_eq!(code, Some(1), "{said}");
    drop(pair(&relay, &server));

    fs::write(&hosts, "127.0.0.1 localhost late.test\n").unwrap();
    relay.wait_for_log(&format!("late.test:{port} can be looked up again"));
    relay.listen = address(8081);
    drop(pair(&relay, &server));
    relay.signal(Signal::TERM);
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
}
