//! Sockets from the service manager, taken in a child process because a process takes them once.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use taut_sys::activation;
use taut_sys::socket::{Keepalive, LegOptions, Listener};

/// Runs the ignored test below with `socket` as descriptor 3 and returns its output.
fn activated(socket: OwnedFd, variables: &str) -> String {
    let script = format!("{variables} exec \"$0\" \"$@\" 3<&0");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "activation::the_other_process",
            "--ignored",
            "--nocapture",
        ])
        .stdin(Stdio::from(socket))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

const VARIABLES: &str = "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web";

#[test]
#[ignore = "the child process of the tests below"]
fn the_other_process() {
    match activation::take() {
        Err(e) => println!("error: {e}"),
        Ok(sockets) => {
            println!("sockets: {}", sockets.len());
            assert!(activation::take().unwrap().is_empty());
            for socket in sockets {
                println!("{} {}", socket.name, socket.addr);
                let options = LegOptions::new(Keepalive {
                    idle: Duration::from_secs(60),
                    interval: Duration::from_secs(15),
                    probes: 4,
                });
                let listener = Listener::from_fd(socket.fd, &options).unwrap();
                let (stream, _) = listener.accept().unwrap();
                stream.send(b"hello").unwrap();
                stream.end_gracefully();
            }
        }
    }
}

#[test]
fn a_connection_that_arrived_before_the_process_is_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut early = TcpStream::connect(addr).unwrap();
    let said = activated(listener.into(), VARIABLES);
    assert!(said.contains(&format!("web {addr}\n")), "{said}");
    let mut reply = String::new();
    early.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "hello");
    let _ = early.write_all(b"bye");
}

#[test]
fn sockets_for_another_process_are_left_alone() {
    for variables in ["LISTEN_PID=1 LISTEN_FDS=1", "LISTEN_FDS=1", "LISTEN_PID=$$"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let said = activated(listener.into(), variables);
        assert!(said.contains("sockets: 0\n"), "{variables}: {said}");
    }
}

#[test]
fn a_descriptor_that_is_not_a_listening_tcp_socket_is_an_error() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let said = activated(udp.into(), VARIABLES);
    assert!(
        said.contains("error: descriptor 3 from the service manager, named `web`, is not"),
        "{said}"
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert!(activated(stream.into(), VARIABLES).contains("ListenStream="));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(activated(file.into(), VARIABLES).contains("ListenStream="));
}

#[test]
fn variables_that_contradict_themselves_are_an_error() {
    for variables in [
        "LISTEN_PID=x LISTEN_FDS=1",
        "LISTEN_PID=$$ LISTEN_FDS=-1",
        "LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=a:b",
        "LISTEN_PID=$$ LISTEN_FDS=400000000",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let said = activated(listener.into(), variables);
        assert!(
            said.contains("error: the service manager"),
            "{variables}: {said}"
        );
    }
}
