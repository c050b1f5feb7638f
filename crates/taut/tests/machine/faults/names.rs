//! Queries to `taut mesh dns`, and what is right as their answer.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::rig::Machine;

use super::{PATIENCE, TRAFFIC};

/// How long a client waits for an answer that a fault may have taken.
const LOST: Duration = Duration::from_millis(30);

/// The addresses of the only relay that the name has.
const ADDRESS: [u8; 4] = [192, 0, 2, 1];

/// Writes the configuration of a server at `listen`. Returns its path.
pub(super) fn configure(dir: &Path, listen: SocketAddr) -> String {
    let path = dir.join("names.toml");
    let text = format!(
        "[mesh.dns]\nzone = \"steer.example.org\"\nlisten = \"{listen}\"\nworkers = 2\nrate_limit = 0\n\
         [[mesh.dns.name_server]]\nname = \"ns1\"\naddresses = [\"{}\"]\n\
         [[mesh.dns.relay]]\nname = \"fra1\"\naddresses = [\"192.0.2.1\"]\n\
         [[mesh.dns.name]]\nname = \"www\"\n",
        listen.ip()
    );
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Asks over UDP and TCP until `is_enough`. Returns how many queries were answered, and how many not.
pub(super) fn ask(machine: &Machine, to: SocketAddr, is_enough: impl Fn() -> bool) -> [u64; 2] {
    let mut outcomes = [0; 2];
    let until = Instant::now() + TRAFFIC;
    let mut id = 0_u16;
    while !is_enough() && Instant::now() < until {
        id = id.wrapping_add(1);
        let answer = match id % 4 {
            0 => over_tcp(machine, to, id, LOST * 10),
            _ => over_udp(machine, to, id, LOST),
        };
        match answer {
            Some(answer) => {
                assert_right(&answer, id);
                outcomes[0] += 1;
            }
            None => outcomes[1] += 1,
        }
    }
    outcomes
}

/// Checks that the server answers as before.
pub(super) fn assert_recovered(machine: &Machine, to: SocketAddr) {
    for over in [over_udp, over_tcp] {
        let until = Instant::now() + PATIENCE;
        let answer = loop {
            if let Some(answer) = over(machine, to, 7, LOST * 100) {
                break answer;
            }
            assert!(Instant::now() < until, "no answer after the faults");
        };
        assert_right(&answer, 7);
        assert_eq!(answer[3] & 0x0f, 0, "{answer:?}");
    }
}

/// Checks that an answer is the relay's address, or says that the server has failed (SERVFAIL).
fn assert_right(answer: &[u8], id: u16) {
    assert_eq!(answer[..2], id.to_be_bytes(), "{answer:?}");
    let (code, answers) = (answer[3] & 0x0f, answer[7]);
    if code == 2 {
        return;
    }
    assert_eq!((code, answers), (0, 1), "{answer:?}");
    // The record of the answer follows the question, and its data is its end; what follows are other records.
    let end = 12 + QUESTION.len() + 16;
    assert_eq!(answer[end - 4..end], ADDRESS, "{answer:?}");
}

/// www.steer.example.org, A, IN.
const QUESTION: &[u8] = b"\x03www\x05steer\x07example\x03org\0\0\x01\0\x01";

fn query(id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let mut query = vec![high, low, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    query.extend(QUESTION);
    query
}

fn over_udp(machine: &Machine, to: SocketAddr, id: u16, wait: Duration) -> Option<Vec<u8>> {
    let socket = machine.host.0.run(|| UdpSocket::bind("127.0.0.1:0"));
    let socket = socket.unwrap().unwrap();
    socket.set_read_timeout(Some(wait)).unwrap();
    socket.connect(to).ok()?;
    socket.send(&query(id)).ok()?;
    let mut part = vec![0; 1500];
    let length = socket.recv(&mut part).ok()?;
    part.truncate(length);
    Some(part)
}

fn over_tcp(machine: &Machine, to: SocketAddr, id: u16, wait: Duration) -> Option<Vec<u8>> {
    let stream = machine.host.0.run(|| TcpStream::connect_timeout(&to, wait));
    let mut stream = stream.unwrap().ok()?;
    stream.set_read_timeout(Some(wait)).unwrap();
    let query = query(id);
    let mut message = u16::try_from(query.len()).unwrap().to_be_bytes().to_vec();
    message.extend(query);
    stream.write_all(&message).ok()?;
    let mut length = [0; 2];
    stream.read_exact(&mut length).ok()?;
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}
