//! A relay whose sockets an agent of another program has put into a sockhash. A program there passes
//! their data on, and then only reads find it: splice(2) does not.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path as File;
use std::process::Command;
use std::thread;

use libbpf_rs::{MapCore as _, MapFlags, MapType, Object, ObjectBuilder};
use taut_relay::outcome::session_end::End;
use taut_sys::sock_diag::SockDiag;

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

/// Starts the agent. `None` without a compiler, or if the kernel has no such map.
fn agent(folder: &File) -> Option<Object> {
    let [source, object] = ["agent.c", "agent.o"].map(|name| folder.join(name));
    std::fs::write(&source, AGENT).unwrap();
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-target", "bpf", "-c", "-o"]);
    let compiled = match clang.args([&object, &source]).status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        compiled => compiled.unwrap(),
    };
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

#[test]
fn bytes_of_sockets_that_an_agent_has_put_into_a_sockhash_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let Some(agent) = agent(folder.path()) else {
        println!("SKIPPED: there is no clang, or no sockhash in this kernel");
        return;
    };
    let map = agent.maps().find(|map| map.name() == "sockets").unwrap();
    for path in [Path::Copy, Path::Splice, Path::Both] {
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
        thread::scope(|s| {
            for (stream, bytes) in [(&client, &up), (&server, &down)] {
                let mut stream = stream.try_clone().unwrap();
                s.spawn(move || {
                    stream.write_all(bytes).unwrap();
                    end_writing(&stream);
                });
            }
            let reader = s.spawn(|| read_to_fin(&mut server));
            assert_same(&read_to_fin(&mut client), &down);
            assert_same(&reader.join().unwrap(), &up);
        });
        rig.expect_end(End::Complete);
    }
}
