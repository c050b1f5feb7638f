//! Jobs on a machine that has no IPv6.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;

use rustix::io::Errno;
use taut_sys_testing::faults::{self, Answer};
use taut_sys_testing::network::enter_private_network;

use crate::jobs::{PATIENCE, Running, until};

/// Starts a job for which the kernel has no IPv6.
fn start_without_ipv6(args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taut"));
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let (child, calls) = faults::spawn(command, &[libc::SYS_socket]).unwrap();
    thread::spawn(move || {
        while let Some(call) = calls.next().unwrap() {
            let is_ipv6 = call.arguments[0] == libc::AF_INET6 as u64;
            let answer = match is_ipv6 {
                true => Answer::Fail(Errno::AFNOSUPPORT),
                false => Answer::Perform,
            };
            calls.answer(&call, answer).unwrap();
        }
    });
    Running(child)
}

fn has_metrics(port: u16) -> bool {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)) else {
        return false;
    };
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = b"GET /metrics HTTP/1.0\r\nhost: x\r\n\r\n";
    let mut page = String::new();
    server.write_all(request).is_ok()
        && server.read_to_string(&mut page).is_ok()
        && page.contains("# EOF")
}

/// Returns whether the name server at this port answers over UDP.
fn answers_queries(port: u16) -> bool {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // www.steer.example.org, type A.
    let head = b"\0\x07\0\0\0\x01\0\0\0\0\0\0";
    let query = [
        head,
        &b"\x03www\x05steer\x07example\x03org\0\0\x01\0\x01"[..],
    ]
    .concat();
    socket.send(&query).is_ok() && socket.recv(&mut [0; 512]).is_ok()
}

#[test]
fn every_job_listens_to_a_bare_port_over_ipv4_on_a_machine_without_ipv6() {
    enter_private_network();
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (relay, dns) = (path("relay.toml"), path("dns.toml"));
    let config = "[relay]\nmetrics = \":9464\"\ncontrol = \"off\"\n\
                  [[relay.forward]]\nlisten = \":8080\"\nto = \"127.0.0.1:9464\"\n";
    fs::write(&relay, config).unwrap();
    let config = "[mesh.dns]\nzone = \"steer.example.org\"\nlisten = \":5353\"\nmetrics = \":9467\"\n\
                  [[mesh.dns.name_server]]\nname = \"ns1\"\naddresses = [\"192.0.2.53\"]\n\
                  [[mesh.dns.relay]]\nname = \"fra1\"\naddresses = [\"192.0.2.1\"]\n\
                  [[mesh.dns.name]]\nname = \"www\"\n";
    fs::write(&dns, config).unwrap();
    for (args, port) in [
        (&["relay", "--config", &relay][..], 9464),
        (&["mesh", "dns", "--config", &dns], 9467),
        (&["watch", "--metrics", ":9466"], 9466),
        (&["tune", "--metrics", ":9469"], 9469),
    ] {
        let mut job = start_without_ipv6(args);
        until(&format!("{args:?} serves its metrics"), || {
            assert_eq!(job.0.try_wait().unwrap(), None, "{args:?} has ended");
            has_metrics(port)
        });
        match args[0] {
            "relay" => assert!(has_metrics(8080), "through the forward"),
            "mesh" => assert!(answers_queries(5353)),
            _ => {}
        }
    }
}
