//! A relay whose sockets an agent of another program has put into a sockhash. A program there passes
//! their data on, and then only reads find it: splice(2) does not.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path as File;
use std::process::Command;
use std::thread;

use libbpf_rs::{MapCore, MapFlags, MapType, Object, ObjectBuilder};
use taut_relay::outcome::session_end::End;
use taut_sys::sock_diag::SockDiag;
use taut_sys::tcp_info::TcpInfo;
use taut_sys_testing::skip::{has_programs, skip};

use crate::rig::*;

/// A sockhash of type 18, whose program passes everything to the socket that it came for (SK_PASS).
const AGENT: &str = r#"
struct {
    int (*type)[18];
    int (*max_entries)[8];
    unsigned int *key;
    unsigned long long *value;
} sockets __attribute__((section(".maps"), used));
__attribute__((section("sk_skb/stream_verdict"), used)) int pass(void *skb) { return 1; }
char _license[] __attribute__((section("license"), used)) = "GPL";
"#;

/// Starts the agent. `None` if the kernel has no such map.
fn agent(folder: &File) -> Option<Object> {
    let [source, object] = ["agent.c", "agent.o"].map(|name| folder.join(name));
    std::fs::write(&source, AGENT).unwrap();
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-c", "-o"]);
    let compiled = clang.args([&object, &source]).status().unwrap();
    assert!(compiled.success());
    if !MapType::Sockhash.is_supported().unwrap() {
        return None;
    }
    let object = ObjectBuilder::default().open_file(object).unwrap();
    let object = object.load().unwrap();
    let map = object.maps().find(|map| map.name() == "sockets");
    let descriptor = map.unwrap().as_fd().as_raw_fd();
    let program = object.progs_mut().next().unwrap();
    program.attach_sockmap(descriptor).unwrap();
    Some(object)
}

/// Returns the number of this process's descriptor of a connection.
fn descriptor(local: SocketAddr, remote: SocketAddr) -> u64 {
    let mut inode = None;
    let found = SockDiag::open().unwrap().dump(|connection| {
        if (connection.local, connection.remote) == (local, remote) {
            inode = Some(connection.inode);
        }
    });
    found.unwrap();
    let link = format!("socket:[{}]", inode.unwrap());
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let name = descriptors.flatten().find(|descriptor| {
        std::fs::read_link(descriptor.path()).is_ok_and(|to| to.as_os_str() == &*link)
    });
    name.unwrap().file_name().to_str().unwrap().parse().unwrap()
}

/// Returns how often `got` goes back and repeats a part of `expected`; `None` if it differs in anything else.
fn repetitions(got: &[u8], expected: &[u8]) -> Option<usize> {
    let (mut at, mut count) = (0, 0);
    for (i, byte) in got.iter().enumerate() {
        if expected.get(at) != Some(byte) {
            let next = &got[i..got.len().min(i + 16)];
            at = (0..at)
                .rev()
                .find(|&back| expected[back..].starts_with(next))?;
            count += 1;
        }
        at += 1;
    }
    (at == expected.len()).then_some(count)
}

/// Sends a megabyte in each direction of a session after its two sockets have been put into `map`, and
/// returns whether both arrived as they were sent. Returns `false` if bytes were repeated, and no more than
/// their sender had retransmitted, so that it can be Linux's fault (docs/design/relay.md). Panics on any
/// other difference.
fn arrives(path: Path, map: &impl MapCore) -> bool {
    let rig = Rig::new(path);
    let (mut client, mut server) = rig.pair();
    client.write_all(b"before").unwrap();
    server.read_exact(&mut [0; 6]).unwrap();
    let legs = [
        (rig.relay_addr(), client.local_addr().unwrap()),
        (server.peer_addr().unwrap(), server.local_addr().unwrap()),
    ];
    for (key, (local, remote)) in (0u32..).zip(legs) {
        let value = descriptor(local, remote).to_ne_bytes();
        map.update(&key.to_ne_bytes(), &value, MapFlags::ANY)
            .unwrap();
    }
    let [up, down] = [1, 2].map(|seed| stream(1 << 20, seed));
    let senders = [&client, &server].map(|sender| sender.try_clone().unwrap());
    let got = thread::scope(|s| {
        for (mut sender, bytes) in senders.iter().zip([&up, &down]) {
            s.spawn(move || {
                sender.write_all(bytes).unwrap();
                end_writing(sender);
            });
        }
        let reader = s.spawn(|| read_to_fin(&mut server));
        let down = read_to_fin(&mut client);
        [reader.join().unwrap(), down]
    });
    rig.expect_end(End::Complete);
    let mut as_sent = true;
    for ((sender, sent), got) in senders.iter().zip([&up, &down]).zip(&got) {
        let count = repetitions(got, sent);
        if count == Some(0) {
            continue;
        }
        let retransmitted = TcpInfo::of(sender).unwrap().bytes_retrans.unwrap();
        if count.is_none() || (got.len() - sent.len()) as u64 > retransmitted {
            println!("retransmitted: {retransmitted} bytes");
            assert_same(got, sent);
        }
        as_sent = false;
    }
    as_sent
}

#[test]
fn only_repetitions_are_taken_for_repetitions() {
    let sent = stream(1000, 3);
    let [from, to] = [200, 700];
    assert_eq!(repetitions(&sent, &sent), Some(0));
    assert_eq!(
        repetitions(&[&sent[..to], &sent[from..]].concat(), &sent),
        Some(1)
    );
    assert_eq!(
        repetitions(&[&sent[..], &sent[to..]].concat(), &sent),
        Some(1)
    );
    assert_eq!(
        repetitions(&[&sent[..from], &sent[to..]].concat(), &sent),
        None
    );
    assert_eq!(repetitions(&sent[..to], &sent), None);
    assert_eq!(
        repetitions(&[&sent[..to], &[0; 20], &sent[to..]].concat(), &sent),
        None
    );
}

#[test]
fn bytes_of_sockets_that_an_agent_has_put_into_a_sockhash_arrive() {
    if !has_programs(&["clang"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let Some(agent) = agent(folder.path()) else {
        return skip("no sockhash in this kernel");
    };
    let map = agent.maps().find(|map| map.name() == "sockets").unwrap();
    for path in [Path::Copy, Path::Splice, Path::Both] {
        println!("path: {path:?}");
        assert!(
            (0..3).any(|_| arrives(path, &map)),
            "bytes were repeated three times"
        );
    }
}
