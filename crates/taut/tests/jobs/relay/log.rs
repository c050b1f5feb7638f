//! What the log says when something breaks, and when it is well again.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;

use taut_sys_testing::network::enter_private_network;

use crate::relay::rig::{FORWARD, MeshFiles, PATIENCE, Running, address, operate, pair, server};

#[test]
fn a_reload_logs_only_what_changes() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = FORWARD.replace("127.0.0.1:0", "127.0.0.5:0");
    fs::write(file.path(), format!("{FORWARD}{other}")).unwrap();
    let mut relay = Running::with_config(file.path());
    relay.wait_for_log("listen=127.0.0.5:");
    fs::write(file.path(), FORWARD).unwrap();
    relay.signal(Signal::HUP);
    let said = relay.wait_for_log("has been read again");
    assert_eq!(said.matches("forwarding").count(), 1, "{said}");
    assert!(
        said.contains("no longer forwarding listen=127.0.0.5:"),
        "{said}"
    );
}

#[test]
fn a_dead_destination_is_one_warning_and_its_return_one_line_with_the_count() {
    enter_private_network();
    let to = address(8000);
    let mut relay = Running::start(to, &[]);
    let listen = relay.listen;
    let refused = |count| {
        for _ in 0..count {
            let mut client = TcpStream::connect(listen).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let error = client.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    };
    refused(1);
    let said = relay.wait_for_log("refuses connections");
    assert!(
        said.contains(&format!(
            "WARN forward {listen}: {to} refuses connections; 1 session reset"
        )),
        "{said}"
    );
    refused(4);
    let server = TcpListener::bind(to).unwrap();
    // Enough successes for a recovery even if the failures fall into the same second.
    let server = std::thread::spawn(move || {
        let mut held = Vec::new();
        while let Ok((mut far, _)) = server.accept() {
            if far.read(&mut [0; 4]).is_ok_and(|n| n == 4) {
                return;
            }
            held.push(far);
        }
    });
    let clients: Vec<_> = (0..40)
        .map(|_| TcpStream::connect(listen).unwrap())
        .collect();
    let said = relay.wait_for_log("accepts connections again");
    assert_eq!(said.matches("WARN").count(), 0, "{said}");
    assert!(said.contains("5 sessions were reset meanwhile"), "{said}");
    drop(clients);
    TcpStream::connect(listen)
        .unwrap()
        .write_all(b"stop")
        .unwrap();
    server.join().unwrap();
}

#[test]
fn clients_that_are_refused_are_one_warning_with_an_example() {
    enter_private_network();
    let file = tempfile::NamedTempFile::new().unwrap();
    let (other, dead) = (address(8080), address(8000));
    let text = format!(
        "{FORWARD}not_from = \"127.0.0.0/8\"\n[[relay.forward]]\nlisten = \"{other}\"\nto = \"{dead}\"\n"
    );
    fs::write(&file, text).unwrap();
    let mut relay = Running::with_config(file.path());
    let mut client = TcpStream::connect(relay.listen).unwrap();
    client.read(&mut [0]).unwrap_err();
    let said = relay.wait_for_log("refuses clients");
    let listen = relay.listen;
    let part = format!(
        "WARN forward {listen} refuses clients (source_denied); 1 client reset so far, the last from 127.0.0.1"
    );
    assert!(said.contains(&part), "{said}");
    for _ in 0..50 {
        let mut client = TcpStream::connect(listen).unwrap();
        client.read(&mut [0]).unwrap_err();
    }
    // What breaks later is reported by a later look at the counters of both.
    let mut client = TcpStream::connect(other).unwrap();
    client.read(&mut [0]).unwrap_err();
    let said = relay.wait_for_log(&format!("{dead} refuses connections"));
    assert!(!said.contains("refuses clients"), "{said}");
    relay.signal(Signal::TERM);
    let (_, said) = relay.end();
    assert!(!said.contains("refuses clients"), "{said}");
}

#[test]
fn a_closed_log_does_not_end_the_relay() {
    let (server, addr) = server();
    let mut relay = Running::start(addr, &[]);
    let (mut client, mut far) = pair(&relay, &server);
    relay.said = None;
    relay.signal(Signal::HUP);
    relay.signal(Signal::TERM);
    client.write_all(b"still").unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"still");
    drop(far);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    assert_eq!(relay.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_client_without_a_route_is_a_warning_that_blames_no_rule() {
    let files = MeshFiles::new();
    let control = files.dir.path().join("control");
    let config = fs::read_to_string(files.config()).unwrap();
    fs::write(
        files.config(),
        format!("[relay]\ncontrol = {control:?}\n{config}"),
    )
    .unwrap();
    let mut relay = Running::with_config(&files.config());
    // It sets the socket up before this line.
    relay.wait_for_log("next relay next");
    let (code, said) = operate(&control, &["drain", "--peer", "next"]);
    assert_eq!(code, Some(0), "{said}");
    let mut client = TcpStream::connect(relay.listen).unwrap();
    assert_eq!(
        client.read(&mut [0]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    let said = relay.wait_for_log("refuses clients (no_route)");
    assert!(
        said.contains("every relay of its routes is drained"),
        "{said}"
    );
    assert!(!said.contains("allow"), "{said}");
}

#[test]
fn a_next_relay_that_does_not_answer_is_a_warning_without_any_session() {
    let files = MeshFiles::new();
    let mut relay = Running::with_config(&files.config());
    let said = relay.wait_for_log("next relay");
    let part = "WARN next relay next refuses connections; 0 sessions reset";
    assert!(said.contains(part), "{said}");
}
