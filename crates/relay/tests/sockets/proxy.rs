//! The PROXY protocol in both directions, with HAProxy and nginx.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use taut_mesh::proxy::{Command as Kind, Header, MAX_HEADER, Reader, Tlv};
use taut_relay::access::identity::{Identity, ProxyVersion};
use taut_relay::access::{SourcePrefix, Sources};
use taut_relay::config::{Config, Forward};
use taut_relay::net::addr::Destination;
use taut_relay::node::Node;
use taut_sys_testing::network::enter_private_network;
use taut_sys_testing::skip::has_programs;
use tempfile::TempDir;

use crate::PATIENCE;
use crate::rig::expect_reset;
use crate::wait::wait_until;

fn listen(port: u16) -> TcpListener {
    TcpListener::bind(("127.0.0.1", port)).unwrap()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Starts a relay from port 8000 to port 9000.
fn relay(identity: Identity) -> Node {
    let to = Destination {
        host: "127.0.0.1".to_owned(),
        port: 9000,
    };
    let mut forward = Forward::new(vec!["127.0.0.1:8000".parse().unwrap()], to);
    forward.identity = identity;
    let mut config = Config::new(vec![forward]);
    config.workers = Some(2);
    config.max_sessions = Some(64);
    Node::start(&config).unwrap()
}

/// A foreign process, until it is dropped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn identity(send: bool, accept_from: Option<&str>) -> Identity {
    let believed = |prefix: &str| {
        let prefix: SourcePrefix = prefix.parse().unwrap();
        Sources::new(Some(vec![prefix]), Vec::new()).unwrap()
    };
    Identity {
        borrow: false,
        send_proxy: send.then_some(ProxyVersion::V2),
        accept_proxy: accept_from.map(believed),
    }
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read_header(stream: &mut TcpStream) -> Header {
    let mut reader = Reader::new(MAX_HEADER);
    loop {
        let n = stream.read(reader.space()).unwrap();
        assert_ne!(n, 0, "the stream ended before the header did");
        if let Some(header) = reader.advance(n).unwrap() {
            return header;
        }
    }
}

fn assert_reset(mut stream: TcpStream) {
    let end = stream.read_to_end(&mut Vec::new());
    assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

fn header(client: &str, to: &str) -> Vec<u8> {
    let header = Header {
        command: Kind::Proxy,
        addresses: Some((client.parse().unwrap(), to.parse().unwrap())),
        tlvs: Vec::new(),
    };
    header.encode().unwrap()
}

#[test]
fn haproxy_in_front_and_nginx_behind_agree_on_the_clients_address() {
    if !has_programs(&["nginx", "haproxy", "curl"]) {
        return;
    }
    enter_private_network();
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(
        path("nginx.conf"),
        "daemon off; master_process off; pid nginx.pid; error_log stderr; events {}\n\
         http { access_log off; client_body_temp_path .; proxy_temp_path .; fastcgi_temp_path .;\n\
         uwsgi_temp_path .; scgi_temp_path .;\n\
         server { listen 127.0.0.1:9000 proxy_protocol; location / { return 200\n\
         \"$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_port\"; } } }\n",
    )
    .unwrap();
    std::fs::write(
        path("haproxy.cfg"),
        "defaults\n mode tcp\n timeout connect 30s\n timeout client 30s\n timeout server 30s\n\
         listen two\n bind 127.0.0.1:7000\n server relay 127.0.0.1:8000 send-proxy-v2\n\
         listen one\n bind 127.0.0.1:7001\n server relay 127.0.0.1:8000 send-proxy\n",
    )
    .unwrap();
    let mut nginx = Command::new("nginx");
    let nginx = nginx.args(["-p", &path(""), "-c", "nginx.conf"]);
    let _nginx = Peer(nginx.stdin(Stdio::null()).spawn().unwrap());
    wait_until("nginx", || folder.path().join("nginx.pid").exists());
    let node = relay(identity(true, Some("127.0.0.0/8")));
    let mut haproxy = Command::new("haproxy");
    let haproxy = haproxy.args(["-db", "-q", "-f", &path("haproxy.cfg")]);
    let _haproxy = Peer(haproxy.stderr(Stdio::null()).spawn().unwrap());
    wait_until("haproxy", || TcpStream::connect("127.0.0.1:7000").is_ok());
    let line = [
        "-sS",
        "--noproxy",
        "*",
        "--max-time",
        "30",
        "-w",
        "|%{local_port}",
    ];
    for front in [7000, 7001] {
        let page = format!("http://127.0.0.1:{front}/");
        let output = Command::new("curl").args(line).arg(page).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let (page, port) = said.split_once('|').unwrap();
        assert_eq!(
            page,
            format!("127.0.0.1 {port} {front}"),
            "{:?}",
            output.stderr
        );
    }
    assert_eq!(node.metrics().proxy_refused(), 0);
}

#[test]
fn a_silent_clients_header_reaches_a_server_that_speaks_first() {
    enter_private_network();
    let _node = relay(identity(true, None));
    let server = listen(9000);
    let mut client = connect(8000);
    let mut far = accept(&server);
    let told = read_header(&mut far).addresses.unwrap();
    assert_eq!(
        told,
        (client.local_addr().unwrap(), client.peer_addr().unwrap())
    );
    far.write_all(b"hello").unwrap();
    let mut said = [0; 5];
    client.read_exact(&mut said).unwrap();
    // A client that sends nothing: the header, and then the end.
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(far.read(&mut said).unwrap(), 0);
}

#[test]
fn a_header_in_pieces_is_read_and_not_a_byte_after_it() {
    enter_private_network();
    let node = relay(identity(true, Some("127.0.0.1")));
    let server = listen(9000);
    let two = header("[2001:db8::7]:700", "[2001:db8::8]:443");
    let one = b"PROXY TCP6 2001:db8::7 2001:db8::8 700 443\r\n".to_vec();
    let pieces = |sent: Vec<u8>| [1, 16, sent.len(), sent.len() + 4].map(|n| (sent.clone(), n));
    for (sent, pieces) in [two, one].into_iter().flat_map(pieces) {
        let mut client = connect(8000);
        client.set_nodelay(true).unwrap();
        let stream = [&sent[..], b"rest"].concat();
        for piece in stream.chunks(pieces) {
            client.write_all(piece).unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        let mut far = accept(&server);
        let told = read_header(&mut far).addresses.unwrap();
        assert_eq!(told.0, "[2001:db8::7]:700".parse().unwrap());
        assert_eq!(told.1, "[2001:db8::8]:443".parse().unwrap());
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"rest", "in pieces of {pieces}");
    }
    assert_eq!(node.metrics().proxy_refused(), 0);
}

#[test]
fn the_fields_of_a_header_are_passed_on_and_version_1_is_written_if_it_is_wanted() {
    enter_private_network();
    let server = listen(9000);
    // Longer than a read, as with a client's certificates.
    let certificates = [7; 14_000];
    let tlvs = [
        (0x02, &b"origin.example"[..]),
        (0xea, b"vpce-1"),
        (0xe0, &certificates),
        (0x03, b"...."),
    ];
    let tlv = |(kind, value): (u8, &[u8])| Tlv {
        kind,
        value: value.to_vec(),
    };
    let sent = Header {
        command: Kind::Proxy,
        addresses: Some((
            "192.0.2.7:700".parse().unwrap(),
            "192.0.2.8:443".parse().unwrap(),
        )),
        tlvs: tlvs.map(tlv).to_vec(),
    };
    let sent = sent.encode().unwrap();
    let through = |version: ProxyVersion| {
        let identity = Identity {
            send_proxy: Some(version),
            ..identity(true, Some("127.0.0.1"))
        };
        let _node = relay(identity);
        let mut client = connect(8000);
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut told = Vec::new();
        accept(&server).read_to_end(&mut told).unwrap();
        told
    };
    // With the checksum of this header, which is that of the other.
    assert_eq!(through(ProxyVersion::V2), sent);
    let line = b"PROXY TCP4 192.0.2.7 192.0.2.8 700 443\r\n";
    assert_eq!(through(ProxyVersion::V1), line);
}

#[test]
fn a_health_check_of_the_proxy_itself_is_its_own_client() {
    enter_private_network();
    let _node = relay(identity(true, Some("127.0.0.1")));
    let server = listen(9000);
    let mut client = connect(8000);
    let local = Header {
        command: Kind::Local,
        addresses: None,
        tlvs: Vec::new(),
    };
    client.write_all(&local.encode().unwrap()).unwrap();
    let told = read_header(&mut accept(&server)).addresses.unwrap();
    assert_eq!(told.0, client.local_addr().unwrap());
}

#[test]
fn an_untrusted_malformed_or_late_proxy_header_is_reset() {
    enter_private_network();
    let server = listen(9000);
    server.set_nonblocking(true).unwrap();
    let header = header("192.0.2.7:700", "192.0.2.8:443");
    {
        let node = relay(identity(false, Some("192.0.2.0/24")));
        expect_reset(([127, 0, 0, 1], 8000).into());
        assert_eq!(node.metrics().proxy_refused(), 1);
    }
    let node = relay(identity(false, Some("127.0.0.1")));
    // A client that speaks to the server directly, a malformed line, and a header of 64 KiB.
    for said in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
    ] {
        let mut client = connect(8000);
        client.write_all(said).unwrap();
        assert_reset(client);
    }
    // Half a header, and a client that closes in the middle of one.
    let mut slow = connect(8000);
    slow.write_all(&header[..20]).unwrap();
    let mut gone = connect(8000);
    gone.write_all(&header[..20]).unwrap();
    gone.shutdown(Shutdown::Write).unwrap();
    assert_reset(gone);
    assert_reset(slow);
    assert_eq!(node.metrics().proxy_refused(), 5);
    let text = node.metrics().encode().unwrap();
    for line in [
        "taut_relay_proxy_refused_total{cause=\"malformed\"} 2",
        "taut_relay_proxy_refused_total{cause=\"too_long\"} 1",
        "taut_relay_proxy_refused_total{cause=\"gone\"} 1",
        "taut_relay_proxy_refused_total{cause=\"timed_out\"} 1",
        "taut_relay_proxy_waiting 0",
    ] {
        assert!(
            text.lines().any(|l| l == line),
            "no line `{line}` in:\n{text}"
        );
    }
    assert_eq!(server.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}
