//! Destinations whose names cannot be looked up.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use taut_sys_testing::network::enter_private_network;

use crate::relay::rig::{PATIENCE, Running, address, get, operate, pair, server, taut};

/// Returns a relay that takes `hosts` and `resolv.conf` of this directory for those of the system.
fn relay_with_files(dir: &Path, config: &Path) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-ec"])
        .arg("mount --bind $1/hosts /etc/hosts; mount --bind $1/resolv.conf /etc/resolv.conf; exec $0 relay --config $2")
        .arg(env!("CARGO_BIN_EXE_taut"))
        .args([dir, config]);
    command
}

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

    let mut relay = Running::run(&mut relay_with_files(dir.path(), &config));
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

#[test]
fn nothing_waits_for_a_reload_that_waits_for_a_resolver() {
    enter_private_network();
    let (server, addr) = server();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (config, control) = (path("taut.toml"), path("control"));
    fs::write(path("hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::write(path("resolv.conf"), "nameserver 127.0.0.99\n").unwrap();
    let resolver = UdpSocket::bind("127.0.0.99:53").unwrap();
    resolver.set_read_timeout(Some(PATIENCE)).unwrap();
    let metrics = address(9464);
    let text = format!(
        "[relay]\ncontrol = {control:?}\nmetrics = \"{metrics}\"\n\
         [[relay.forward]]\nlisten = \"127.0.0.1:0\"\nto = \"{addr}\"\n"
    );
    fs::write(&config, &text).unwrap();
    let mut relay = Running::run(&mut relay_with_files(dir.path(), &config));
    // It takes commands some time after it serves.
    while !control.exists() {
        std::thread::yield_now();
    }
    let names = (0..40).map(|i| format!("\"silent{i}.test:9\""));
    let names = names.collect::<Vec<_>>().join(", ");
    let listen = address(8080);
    let more = format!("[[relay.forward]]\nlisten = \"{listen}\"\nto = [{names}]\n");
    fs::write(&config, text + &more).unwrap();
    let mut reload = taut();
    let reload = reload.args(["reload", "--control"]).arg(&control);
    let mut reload = reload.stderr(Stdio::piped()).spawn().unwrap();
    // Its questions are there, and are not answered.
    resolver.recv(&mut [0; 512]).unwrap();
    let mut waits = |what: &str| assert_eq!(reload.try_wait().unwrap(), None, "{what}");
    assert!(get(metrics, "/healthz").starts_with("HTTP/1.1 200"));
    waits("/healthz");
    assert_eq!(operate(&control, &["status"]).0, Some(0));
    waits("status");
    let ip = Command::new("ip")
        .args(["address", "add", "10.66.0.1/32", "dev", "lo"])
        .status();
    assert!(ip.unwrap().success());
    relay.wait_for_log("addresses of this machine have changed");
    waits("the addresses of this machine");
    drop(pair(&relay, &server));
    relay.signal(Signal::TERM);
    let (code, said) = relay.end();
    assert_eq!(code, Some(0), "{said}");
    let _ = reload.wait();
}
