//! Runs the program on single packets and checks which exit counts each.
//!
//! The kernel runs the program for the test as if the packets had arrived at loopback.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::net::{IpAddr, SocketAddr};

use super::*;

const LISTENER: u32 = 7;
const WATCHED: [&str; 3] = ["192.0.2.1:80", "[2001:db8::1]:80", "0.0.0.0:443"];

const SYN: u8 = 0x02;
const TCP: u8 = 6;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

struct Bench {
    early_syn: EarlySyn,
}

impl Bench {
    fn new(events_per_second: u32) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test loads a BPF program and must run as root; `make test` does"
        );
        let listeners = WATCHED.iter();
        let watch = Watch {
            listeners: listeners
                .map(|addr| (addr.parse().expect("an address"), LISTENER))
                .collect(),
            intercepted: Vec::new(),
        };
        let early_syn = EarlySyn::load(Devices::AllUp, &watch, events_per_second).unwrap();
        Self { early_syn }
    }

    /// Runs the program on `frame` and returns the exit's name and the events.
    fn run(&mut self, frame: &[u8]) -> (&'static str, Vec<SynEvent>) {
        let before = self.early_syn.exits().unwrap();
        let mut out = vec![0; frame.len() + 64];
        let program = self.early_syn.object.program("early_syn").unwrap();
        let output = program
            .test_run(libbpf_rs::ProgramInput {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ..Default::default()
            })
            .unwrap();
        assert_eq!(output.return_value.cast_signed(), -1, "the packet goes on");
        assert_eq!(output.data.as_deref(), Some(frame), "and is not changed");
        let after = self.early_syn.exits().unwrap();
        let mut moved = before
            .iter()
            .zip(after.iter())
            .filter(|((_, before), (_, after))| before != after);
        let ((exit, _), _) = moved.next().expect("one exit is counted");
        assert!(moved.next().is_none(), "and only one");
        let mut events = Vec::new();
        self.early_syn.take(&mut events);
        (exit, events)
    }

    fn exit(&mut self, frame: &[u8]) -> &'static str {
        self.run(frame).0
    }
}

/// Returns a frame addressed to loopback.
fn frame(proto: u16, payload: &[u8]) -> Vec<u8> {
    [&[0; 12], &proto.to_be_bytes()[..], payload].concat()
}

fn tcp(from: u16, to: u16, flags: u8) -> Vec<u8> {
    let mut tcp = vec![0; 20];
    tcp[..2].copy_from_slice(&from.to_be_bytes());
    tcp[2..4].copy_from_slice(&to.to_be_bytes());
    tcp[12] = 5 << 4;
    tcp[13] = flags;
    tcp
}

/// Returns an IPv4 packet with `options` (a multiple of 4 bytes) and `fragment`, the 16 bits of
/// flags and fragment offset.
fn ipv4(to: &str, protocol: u8, options: &[u8], fragment: u16, payload: &[u8]) -> Vec<u8> {
    let words = 5 + options.len() / 4;
    let mut ip = vec![0; 20];
    ip[0] = 0x40 | words as u8;
    ip[2..4].copy_from_slice(&((words * 4 + payload.len()) as u16).to_be_bytes());
    ip[6..8].copy_from_slice(&fragment.to_be_bytes());
    ip[8] = 64;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&[198, 51, 100, 9]);
    let IpAddr::V4(to) = to.parse().unwrap() else {
        panic!("IPv4")
    };
    ip[16..].copy_from_slice(&to.octets());
    [&ip, options, payload].concat()
}

/// Returns an IPv6 packet whose next header is `next`.
fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0; 40];
    ip[0] = 0x60;
    ip[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    ip[6] = next;
    ip[7] = 64;
    let addr = |text: &str| match text.parse().unwrap() {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(_) => panic!("IPv6"),
    };
    ip[8..24].copy_from_slice(&addr("2001:db8:9::9"));
    ip[24..].copy_from_slice(&addr("2001:db8::1"));
    [ip, payload.to_vec()].concat()
}

/// Returns an extension header of `8 * (1 + more)` bytes.
fn extension(next: u8, more: u8, rest: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 8 * (1 + usize::from(more))];
    header[0] = next;
    header[1] = more;
    [&header, rest].concat()
}

fn syn_v4() -> Vec<u8> {
    frame(0x0800, &ipv4("192.0.2.1", TCP, &[], 0, &tcp(5000, 80, SYN)))
}

fn syn_v6() -> Vec<u8> {
    frame(0x86dd, &ipv6(TCP, &tcp(5000, 80, SYN)))
}

#[test]
fn a_syn_to_a_watched_address_is_reported_with_its_ends() {
    let mut bench = Bench::new(u32::MAX);
    let (exit, events) = bench.run(&syn_v4());
    assert_eq!(exit, "emitted");
    let event = |client: &str, listener_addr: &str| SynEvent {
        client: client.parse::<SocketAddr>().unwrap(),
        listener_addr: listener_addr.parse::<SocketAddr>().unwrap(),
        listener: LISTENER,
    };
    assert_eq!(events, [event("198.51.100.9:5000", "192.0.2.1:80")]);
    let (exit, events) = bench.run(&syn_v6());
    assert_eq!(exit, "emitted");
    assert_eq!(events, [event("[2001:db8:9::9]:5000", "[2001:db8::1]:80")]);
}

#[test]
fn options_tags_and_extension_headers_do_not_hide_a_syn() {
    let syn = tcp(5000, 80, SYN);
    let v4 = ipv4("192.0.2.1", TCP, &[1; 40], 0, &syn);
    let tagged = |proto: u16, rest: &[u8]| [&[0, 7], &proto.to_be_bytes()[..], rest].concat();
    let mut bench = Bench::new(u32::MAX);
    for (name, frame) in [
        ("IPv4 options", frame(0x0800, &v4)),
        ("a tag", frame(0x8100, &tagged(0x0800, &v4))),
        (
            "two tags",
            frame(0x88a8, &tagged(0x8100, &tagged(0x0800, &v4))),
        ),
        (
            "hop-by-hop, destination, routing",
            frame(
                0x86dd,
                &ipv6(
                    HOP_BY_HOP,
                    &extension(
                        DESTINATION,
                        0,
                        &extension(ROUTING, 3, &extension(TCP, 2, &syn)),
                    ),
                ),
            ),
        ),
        (
            "ECN",
            frame(
                0x0800,
                &ipv4("192.0.2.1", TCP, &[], 0, &tcp(5000, 80, SYN | 0xc0)),
            ),
        ),
        // Longer than the linear part of a packet usually is.
        (
            "a long extension",
            frame(0x86dd, &ipv6(DESTINATION, &extension(TCP, 40, &syn))),
        ),
        ("data", [syn_v4(), vec![7; 1000]].concat()),
    ] {
        assert_eq!(bench.exit(&frame), "emitted", "{name}");
    }
}

#[test]
fn every_packet_that_is_not_a_watched_syn_has_an_exit_of_its_own() {
    let v4 = |payload: &[u8]| ipv4("192.0.2.1", TCP, &[], 0, payload);
    let syn = tcp(5000, 80, SYN);
    let with = |at: usize, value: u8| {
        let mut frame = syn_v4();
        frame[at] = value;
        frame
    };
    let chain = (0..7).fold(syn.clone(), |rest, i| {
        extension(if i == 0 { TCP } else { DESTINATION }, 0, &rest)
    });
    let mut stop_on_the_way = extension(TCP, 0, &syn);
    stop_on_the_way[3] = 1;
    let mut past_the_end = extension(TCP, 0, &syn);
    past_the_end[1] = 255;
    let mut cases = vec![
        ("not_tcp", "ARP", frame(0x0806, &[0; 28])),
        (
            "not_tcp",
            "UDP",
            frame(0x0800, &ipv4("192.0.2.1", 17, &[], 0, &syn)),
        ),
        ("not_tcp", "ICMPv6", frame(0x86dd, &ipv6(58, &syn))),
        (
            "not_tcp",
            "a third tag",
            frame(0x8100, &[0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0, 0, 0]),
        ),
        (
            "fragment",
            "first fragment",
            frame(0x0800, &ipv4("192.0.2.1", TCP, &[], 0x2000, &syn)),
        ),
        (
            "fragment",
            "later fragment",
            frame(0x0800, &ipv4("192.0.2.1", TCP, &[], 5, &syn)),
        ),
        (
            "fragment",
            "IPv6 fragment",
            frame(0x86dd, &ipv6(FRAGMENT, &extension(TCP, 0, &syn))),
        ),
        ("malformed", "header of 4 words", with(14, 0x44)),
        ("malformed", "version 5", with(14, 0x55)),
        (
            "malformed",
            "options that are not there",
            frame(0x0800, &{
                let mut ip = v4(&syn);
                ip[0] = 0x4f;
                ip
            }),
        ),
        ("malformed", "data offset 4", with(14 + 20 + 12, 0x40)),
        (
            "malformed",
            "IPv4 cut short",
            frame(0x0800, &v4(&syn)[..39]),
        ),
        ("malformed", "IPv6 cut short", syn_v6()[..14 + 59].to_vec()),
        (
            "malformed",
            "too many extensions",
            frame(0x86dd, &ipv6(DESTINATION, &chain)),
        ),
        (
            "malformed",
            "an extension past the end",
            frame(0x86dd, &ipv6(DESTINATION, &past_the_end)),
        ),
        (
            "not_local",
            "a stop on the way",
            frame(0x86dd, &ipv6(ROUTING, &stop_on_the_way)),
        ),
        (
            "not_watched",
            "another port",
            frame(0x0800, &v4(&tcp(5000, 81, SYN))),
        ),
        (
            "not_watched",
            "another address",
            frame(0x0800, &ipv4("192.0.2.2", TCP, &[], 0, &syn)),
        ),
        (
            "not_watched",
            "IPv4's any is not IPv6's",
            frame(0x86dd, &ipv6(TCP, &tcp(5000, 443, SYN))),
        ),
        ("other_host", "another MAC", with(0, 2)),
        (
            "other_host",
            "broadcast",
            [&[0xff; 6], &syn_v4()[6..]].concat(),
        ),
    ];
    for (flags, name) in [
        (0x12, "SYN-ACK"),
        (0x06, "SYN-RST"),
        (0x03, "SYN-FIN"),
        (0x10, "ACK"),
        (0x04, "RST"),
        (0, "nothing"),
    ] {
        cases.push(("not_syn", name, frame(0x0800, &v4(&tcp(5000, 80, flags)))));
    }
    let mut bench = Bench::new(u32::MAX);
    for (exit, name, frame) in cases {
        assert_eq!(bench.run(&frame), (exit, vec![]), "{name}");
    }
}

#[test]
fn events_past_the_ceiling_are_counted_and_not_reported() {
    let mut bench = Bench::new(0);
    assert_eq!(bench.run(&syn_v4()), ("over_ceiling", vec![]));
    // The program's second may end while the loop runs.
    let mut bench = Bench::new(10);
    let start = std::time::Instant::now();
    let events: usize = (0..1000).map(|_| bench.run(&syn_v4()).1.len()).sum();
    let seconds = start.elapsed().as_secs() as usize + 2;
    assert!((10..=10 * seconds).contains(&events), "{events} events");
    let exits = bench.early_syn.exits().unwrap();
    assert_eq!(exits.get(Exit::Emitted), events as u64);
    assert_eq!(exits.get(Exit::OverCeiling), 1000 - events as u64);
}

#[test]
fn an_unread_ring_fills_up_and_the_rest_is_counted() {
    let mut bench = Bench::new(u32::MAX);
    let flood = |early_syn: &EarlySyn| {
        let program = early_syn.object.program("early_syn").unwrap();
        let input = libbpf_rs::ProgramInput {
            data_in: Some(&syn_v4()),
            repeat: 10_000,
            ..Default::default()
        };
        program.test_run(input).unwrap();
        early_syn.exits().unwrap()
    };
    let exits = flood(&bench.early_syn);
    // The ring of 256 KiB holds records of 64 bytes: an event of 56 and a ring header of 8.
    assert!(
        (4000..=4096).contains(&exits.get(Exit::Emitted)),
        "{exits:?}"
    );
    assert_eq!(exits.get(Exit::Emitted) + exits.get(Exit::RingFull), 10_000);
    let mut events = Vec::new();
    assert_eq!(bench.early_syn.take(&mut events), TAKE_MAX);
    while bench.early_syn.take(&mut events) > 0 {}
    assert_eq!(events.len() as u64, exits.get(Exit::Emitted));
    // The ring has room again.
    assert_eq!(bench.exit(&syn_v4()), "emitted");
}

/// Not a test: prints the program's cost per packet. `cargo test -p taut-relay --release --
/// --ignored --nocapture the_cost_of_the_program_per_packet`
#[test]
#[ignore = "it measures"]
fn the_cost_of_the_program_per_packet() {
    let bench = Bench::new(u32::MAX);
    let data = frame(
        0x0800,
        &ipv4("192.0.2.1", TCP, &[], 0, &tcp(5000, 80, 0x10)),
    );
    for (name, frame) in [("a segment of a connection", data), ("a SYN", syn_v4())] {
        let program = bench.early_syn.object.program("early_syn").unwrap();
        let input = libbpf_rs::ProgramInput {
            data_in: Some(&frame),
            repeat: 1_000_000,
            ..Default::default()
        };
        println!("{name}: {:?}", program.test_run(input).unwrap().duration);
    }
}
