//! A guest and its peer, each a TAP at a bridge and both controlled by the test, which sees every
//! frame.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use etherparse::{PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
use taut_snoop::copies::Copies;
use taut_snoop::program::Program;
use taut_snoop::wire::{Config, Flow};
use taut_sys::netns::Netns;
use taut_sys::tap::{Tap, VnetHeader};

use crate::checker::Checker;

const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// An Ethernet type for experiments (IEEE 802, local): what comes after everything that was sent.
const MARKER: [u8; 2] = [0x88, 0xb5];

/// The maximum number of flows.
pub(crate) const FLOWS: u32 = 64;

/// Bytes of the ring buffer for copies.
const COPIES: u32 = 4 << 20;

/// Bytes of a VLAN's tag (IEEE 802.1Q).
const TAG: usize = 4;

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;
pub(crate) const URG: u8 = 0x20;
pub(crate) const ECE: u8 = 0x40;
pub(crate) const CWR: u8 = 0x80;

/// The state of a frame's checksum when it reaches the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// In the frame, and not verified.
    Full,
    /// To be completed by the sending device.
    Partial,
    /// In the frame, and wrong.
    Wrong,
}

/// A TCP segment, as sent and as seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) len: usize,
    pub(crate) ports: (u16, u16),
    /// The two bits of ECN (RFC 3168 5).
    pub(crate) ecn: u8,
    /// AE (RFC 9768).
    pub(crate) ae: bool,
}

/// Returns data that depends on the sequence number alone.
fn payload(seq: u32, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seq.wrapping_add(i as u32) % 251) as u8)
        .collect()
}

/// A redirected frame waits in the backlog of the sending CPU, which `ksoftirqd` may have to
/// process: frames from another CPU overtake it.
fn stay_on_this_cpu() {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
}

/// Waits until the kernel has emptied this CPU's backlog. (It has also processed those packets once
/// a process has the CPU again.)
fn wait_for_backlog() {
    let cpu = sched_getcpu();
    while backlog_of(cpu) > 0 {
        std::thread::yield_now();
    }
}

/// Returns the packets in a CPU's backlog, over all namespaces.
fn backlog_of(cpu: usize) -> u32 {
    let stat = std::fs::read_to_string("/proc/net/softnet_stat").unwrap();
    let lines = stat.lines().map(|line| {
        let fields = line.split_whitespace();
        let numbers = fields.map(|field| u32::from_str_radix(field, 16).unwrap());
        // The 12th is the backlog's length and the 13th whose it is, since Linux 5.10; more follow since.
        numbers.skip(11).take(2).collect::<Vec<_>>()
    });
    let mut of_cpu = lines.filter(|line| line[1] as usize == cpu);
    of_cpu.next().unwrap()[0]
}

pub(crate) struct Rig {
    netns: Netns,
    pub(crate) guest: Tap,
    pub(crate) peer: Tap,
    pub(crate) program: Option<Program>,
    /// Copies of early-acknowledged segments.
    pub(crate) copies: Option<Copies>,
    /// The test takes them out itself.
    pub(crate) keeps_copies: bool,
    pub(crate) v6: bool,
    /// The third byte of the peer's IPv4 address.
    pub(crate) peer_net: u8,
    /// The TTL and Ethernet address of the guest's frames.
    pub(crate) guest_ttl: u8,
    pub(crate) guest_mac: [u8; 6],
    /// Destination of frames for another host.
    pub(crate) to_mac: Option<[u8; 6]>,
    /// The tag of every frame.
    pub(crate) vlan: Option<u16>,
    pub(crate) checksum: Checksum,
    /// The size into which the device would cut a larger frame (GSO).
    pub(crate) mss: usize,
    pub(crate) checker: Checker,
}

// === impl Rig ===

impl Rig {
    /// Creates a guest with a ring of `ring` places, and the programs at its tap.
    pub(crate) fn new(ring: u32, config: Config) -> Self {
        let mut rig = Self::bare(ring);
        rig.checker = Checker::new(config.guest_rcvbuf > 0);
        rig.tc("qdisc replace dev guest root noqueue");
        rig.attach_anew(config);
        rig
    }

    /// Likewise without programs, and with the kernel's default queueing discipline.
    pub(crate) fn bare(ring: u32) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        stay_on_this_cpu();
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let netns = Netns::create(&format!("taut-snoop-{}-{made}", std::process::id())).unwrap();
        let taps = netns.run(|| (Tap::create("guest").unwrap(), Tap::create("peer").unwrap()));
        let (guest, peer) = taps.unwrap();
        let mut rig = Self {
            netns,
            guest,
            peer,
            program: None,
            copies: None,
            keeps_copies: false,
            v6: false,
            peer_net: 0,
            guest_ttl: 64,
            guest_mac: GUEST_MAC,
            vlan: None,
            to_mac: None,
            checksum: Checksum::Full,
            mss: 1448,
            checker: Checker::new(false),
        };
        // In one batch, because a process is slow on an emulated processor.
        rig.ips(&format!(
            "link add bridge type bridge mcast_snooping 0
            link set guest addrgenmode none
            link set peer addrgenmode none
            link set guest mtu 9000 master bridge txqueuelen {ring} up
            link set peer mtu 9000 master bridge up
            link set bridge addrgenmode none
            link set bridge mtu 9000 up
            "
        ));
        // With br_netfilter the kernel's bridge would drop some test frames. Most hosts lack this
        // setting.
        rig.within(|| {
            for family in ["iptables", "ip6tables", "arptables"] {
                let _ =
                    std::fs::write(format!("/proc/sys/net/bridge/bridge-nf-call-{family}"), "0");
            }
        });
        // The bridge learns both addresses.
        rig.mark(true);
        rig.mark(false);
        rig
    }

    /// `ip` in the rig's namespace, with many lines.
    fn ips(&self, lines: &str) {
        let mut ip = Command::new("ip")
            .args(["-n", self.netns.name(), "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = ip.stdin.take().unwrap();
        input.write_all(lines.as_bytes()).unwrap();
        drop(input);
        assert!(ip.wait().unwrap().success(), "ip {lines}");
    }

    /// Runs `ip` in the rig's namespace and returns its output.
    pub(crate) fn ip(&self, line: &str) -> String {
        self.command("ip", line)
    }

    /// `tc` likewise.
    pub(crate) fn tc(&self, line: &str) -> String {
        self.command("tc", line)
    }

    /// Returns the queueing disciplines of the guest's tap. (clsact does not count, and stays if
    /// programs were attached by it.)
    pub(crate) fn queues(&self) -> String {
        let shown = self.tc("qdisc show dev guest");
        let queues = shown.lines().filter(|line| !line.contains("clsact"));
        queues.collect::<Vec<_>>().join("\n")
    }

    /// Returns the number of clsact filters at the guest's tap in each direction.
    pub(crate) fn filters(&self) -> (usize, usize) {
        let count = |point: &str| {
            let shown = self.tc(&format!("filter show dev guest {point}"));
            shown.lines().filter(|l| l.contains(" handle ")).count()
        };
        (count("ingress"), count("egress"))
    }

    fn command(&self, program: &str, line: &str) -> String {
        self.run(program, &line.split(' ').collect::<Vec<_>>())
    }

    /// Runs a program in the rig's namespace and returns its output.
    pub(crate) fn run(&self, program: &str, args: &[&str]) -> String {
        let mut command = Command::new(program);
        let output = command.args(["-n", self.netns.name()]).args(args).output();
        let output = output.unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {why}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns a folder of the rig's own, which need not exist.
    pub(crate) fn folder(&self) -> PathBuf {
        std::env::temp_dir().join(self.netns.name())
    }

    /// Runs `job` in the rig's namespace.
    pub(crate) fn within<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        self.netns.run(job).unwrap()
    }

    fn addrs(&self) -> (IpAddr, IpAddr) {
        match self.v6 {
            false => (
                Ipv4Addr::new(10, 8, 0, 1).into(),
                Ipv4Addr::new(10, 8, self.peer_net, 2).into(),
            ),
            true => (
                Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, 1).into(),
                Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0, 2).into(),
            ),
        }
    }

    /// Returns a segment's frame, with the device's header.
    pub(crate) fn frame(&self, from_guest: bool, segment: &Segment) -> Vec<u8> {
        let (guest, peer) = self.addrs();
        let (from, to) = match from_guest {
            true => (guest, peer),
            false => (peer, guest),
        };
        let (from_mac, to_mac) = match from_guest {
            true => (self.guest_mac, PEER_MAC),
            false => (PEER_MAC, self.guest_mac),
        };
        let ttl = if from_guest { self.guest_ttl } else { 64 };
        let mut tcp = TcpHeader::new(
            segment.ports.0,
            segment.ports.1,
            segment.seq,
            segment.window,
        );
        tcp.acknowledgment_number = segment.ack;
        tcp.fin = segment.flags & FIN != 0;
        tcp.syn = segment.flags & SYN != 0;
        tcp.rst = segment.flags & RST != 0;
        tcp.psh = segment.flags & PSH != 0;
        tcp.ack = segment.flags & ACK != 0;
        tcp.urg = segment.flags & URG != 0;
        tcp.ece = segment.flags & ECE != 0;
        tcp.cwr = segment.flags & CWR != 0;
        tcp.ns = segment.ae;
        tcp.set_options_raw(&segment.options).unwrap();
        let eth = PacketBuilder::ethernet2(from_mac, to_mac);
        let data = payload(segment.seq, segment.len);
        let mut frame = Vec::new();
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let builder = eth.ipv4(from.octets(), to.octets(), ttl);
                builder.tcp_header(tcp).write(&mut frame, &data).unwrap();
                frame[15] |= segment.ecn;
                let sum = internet_sum(&frame[14..24], 0) + internet_sum(&frame[26..34], 0);
                frame[24..26].copy_from_slice(&(!fold(sum)).to_be_bytes());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let builder = eth.ipv6(from.octets(), to.octets(), ttl);
                builder.tcp_header(tcp).write(&mut frame, &data).unwrap();
                frame[15] |= segment.ecn << 4;
            }
            _ => unreachable!(),
        }
        let l4 = if self.v6 { 54 } else { 34 };
        let mut vnet = VnetHeader::default();
        let headers = frame.len() - segment.len;
        if self.checksum == Checksum::Wrong {
            frame[l4 + 17] ^= 1;
        }
        if self.checksum == Checksum::Partial || segment.len > self.mss {
            vnet.flags = VnetHeader::NEEDS_CSUM;
            vnet.csum_start = l4 as u16;
            vnet.csum_offset = 16;
            let sum = fold(self.pseudo_sum(from_guest, frame.len() - l4));
            frame[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
        }
        if segment.len > self.mss {
            vnet.gso_type = if self.v6 {
                VnetHeader::GSO_TCPV6
            } else {
                VnetHeader::GSO_TCPV4
            };
            vnet.gso_size = self.mss as u16;
            vnet.hdr_len = headers as u16;
        }
        if let Some(vlan) = self.vlan {
            frame.splice(12..12, [0x81, 0, (vlan >> 8) as u8, vlan as u8]);
            vnet.csum_start += if vnet.csum_start > 0 { TAG as u16 } else { 0 };
            vnet.hdr_len += if vnet.hdr_len > 0 { TAG as u16 } else { 0 };
        }
        if let Some(mac) = self.to_mac {
            frame[..6].copy_from_slice(&mac);
        }
        let mut whole = vnet.to_bytes().to_vec();
        whole.extend(frame);
        whole
    }

    fn pseudo_sum(&self, from_guest: bool, len: usize) -> u64 {
        let (guest, peer) = self.addrs();
        let _ = from_guest;
        let sum = |address: IpAddr| match address {
            IpAddr::V4(v4) => internet_sum(&v4.octets(), 0),
            IpAddr::V6(v6) => internet_sum(&v6.octets(), 0),
        };
        sum(guest) + sum(peer) + 6 + len as u64
    }

    /// The peer sends, and the guest has not read yet.
    pub(crate) fn peer_sends(&mut self, segment: &Segment) {
        self.checker.peer_sends(segment);
        self.make_room();
        self.peer.write(&self.frame(false, segment)).unwrap();
    }

    /// Takes copies out of their ring buffer, so that there is always room.
    fn make_room(&self) {
        if let Some(copies) = &self.copies
            && !self.keeps_copies
        {
            copies.take();
        }
    }

    /// The guest sends.
    pub(crate) fn guest_sends(&mut self, segment: &Segment) {
        self.checker.guest_sends(segment);
        self.guest.write(&self.frame(true, segment)).unwrap();
    }

    /// Returns the guest's segments since the last call.
    pub(crate) fn at_guest(&mut self) -> Vec<Segment> {
        self.make_room();
        let seen = self.drain(true);
        self.checker.guest_got(&seen);
        seen
    }

    /// Returns the peer's segments since the last call, after all pending ones have arrived.
    pub(crate) fn at_peer(&mut self) -> Vec<Segment> {
        self.mark(true);
        let seen = self.drain(false);
        for segment in &seen {
            self.checker.peer_got(segment);
        }
        seen
    }

    /// Sends a frame that is not IP to the other end, after all earlier frames.
    fn mark(&mut self, from_guest: bool) {
        wait_for_backlog();
        let frame = marker(from_guest);
        match from_guest {
            true => self.guest.write(&frame).unwrap(),
            false => self.peer.write(&frame).unwrap(),
        }
    }

    /// The guest drops its frames unread.
    pub(crate) fn empty_unread(&self) {
        let mut buffer = vec![0; Tap::MAX_READ];
        while self.guest.read(&mut buffer).is_ok() {}
    }

    /// Returns the raw frames at the guest or the peer since the last call, without the device's
    /// header.
    pub(crate) fn frames_at(&mut self, guest: bool) -> Vec<Vec<u8>> {
        self.mark(!guest);
        let mut frames = Vec::new();
        self.each_frame(guest, |_, frame| frames.push(frame.to_vec()));
        frames.retain(|frame| frame[12..14] != MARKER);
        frames
    }

    fn drain(&self, guest: bool) -> Vec<Segment> {
        let mut seen = Vec::new();
        self.each_frame(guest, |vnet, frame| {
            seen.extend(self.parse(vnet, frame, !guest));
        });
        seen
    }

    fn each_frame(&self, guest: bool, mut job: impl FnMut(&VnetHeader, &[u8])) {
        let tap = if guest { &self.guest } else { &self.peer };
        let mut buffer = vec![0; Tap::MAX_READ];
        while let Ok(len) = tap.read(&mut buffer) {
            let vnet = VnetHeader::read(&buffer).unwrap();
            job(&vnet, &buffer[VnetHeader::LEN..len]);
        }
    }

    /// Parses a frame and asserts that its checksums are right.
    fn parse(&self, vnet: &VnetHeader, frame: &[u8], from_guest: bool) -> Option<Segment> {
        let mut frame = frame.to_vec();
        let mut vnet = *vnet;
        if let Some(vlan) = self.vlan
            && frame[12..14] == [0x81, 0]
        {
            let tag: Vec<u8> = frame.splice(12..16, []).collect();
            assert_eq!(u16::from_be_bytes([tag[2], tag[3]]) & 0xfff, vlan);
            vnet.csum_start = vnet.csum_start.saturating_sub(TAG as u16);
        }
        let frame = &frame[..];
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
            return None;
        };
        let l4 = if self.v6 { 54 } else { 34 };
        if !self.v6 {
            assert_eq!(
                fold(internet_sum(&frame[14..34], 0)),
                0xffff,
                "the IP header's sum"
            );
        }
        // Ethernet pads short frames.
        let end = match self.v6 {
            false => 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]])),
            true => 54 + usize::from(u16::from_be_bytes([frame[18], frame[19]])),
        };
        let pseudo = self.pseudo_sum(from_guest, end - l4);
        let field = u16::from_be_bytes([frame[l4 + 16], frame[l4 + 17]]);
        if vnet.flags & VnetHeader::NEEDS_CSUM != 0 {
            assert_eq!(usize::from(vnet.csum_start), l4, "where the sum starts");
            assert_eq!(field, fold(pseudo), "the pseudo-header's sum");
        } else {
            let sum = pseudo + internet_sum(&frame[l4..end], 0);
            assert_eq!(fold(sum), 0xffff, "the sum of {tcp:?}");
        }
        let header = tcp.to_header();
        let data = &frame[l4 + header.header_len()..end];
        assert_eq!(
            data,
            payload(header.sequence_number, data.len()),
            "the data at {}",
            header.sequence_number
        );
        Some(Segment {
            seq: header.sequence_number,
            ack: header.acknowledgment_number,
            flags: frame[l4 + 13],
            window: header.window_size,
            options: header.options.as_slice().to_vec(),
            len: data.len(),
            ports: (header.source_port, header.destination_port),
            ae: header.ns,
            ecn: match self.v6 {
                false => frame[15] & 3,
                true => frame[15] >> 4 & 3,
            },
        })
    }

    /// Returns the state of the only flow.
    pub(crate) fn flow(&self) -> Flow {
        let flows = self.program.as_ref().unwrap().flows().unwrap();
        assert_eq!(flows.len(), 1, "{flows:?}");
        flows[0].1
    }

    pub(crate) fn configure(&self, config: Config) {
        let program = self.program.as_ref().unwrap();
        program.configure(&config, Duration::MAX).unwrap();
    }

    /// Returns the packets that left the program towards the guest by this exit.
    pub(crate) fn exits(&self, label: &str) -> u64 {
        let program = self.program.as_ref().unwrap();
        program.to_guest().unwrap().of(label)
    }

    /// Detaches the programs.
    pub(crate) fn detach(&mut self) {
        self.program = None;
    }

    pub(crate) fn attach_anew(&mut self, config: Config) {
        let (program, copies) = self.within(|| {
            let copies = Copies::new(COPIES).unwrap();
            let mut program = Program::load(FLOWS, &copies).unwrap();
            program.configure(&config, Duration::MAX).unwrap();
            program.attach(index_of("guest")).unwrap();
            (program, copies)
        });
        (self.program, self.copies) = (Some(program), Some(copies));
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(program) = &self.program
        {
            // Shows the reason in the test's output.
            for (label, count) in program.to_guest().iter().flat_map(|e| e.iter()) {
                eprintln!("to guest: {label} {count}");
            }
            for (label, count) in program.from_guest().iter().flat_map(|e| e.iter()) {
                eprintln!("from guest: {label} {count}");
            }
            eprintln!("{:?}", program.flows());
        }
        let _ = std::fs::remove_dir_all(self.folder());
        let _ = Netns::delete(self.netns.name());
    }
}

/// Returns the coarse clock by which the programs tell the time.
fn coarse_clock() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns the programs' time in ticks of 2^20 ns.
pub(crate) fn ticks() -> u32 {
    (coarse_clock().as_nanos() >> 20) as u32
}

/// Waits until this time has passed for the programs: their clock may lag behind.
pub(crate) fn rest(time: Duration) {
    let until = coarse_clock() + time;
    while coarse_clock() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A frame that is not IP.
pub(crate) fn marker(from_guest: bool) -> Vec<u8> {
    let (from, to) = match from_guest {
        true => (GUEST_MAC, PEER_MAC),
        false => (PEER_MAC, GUEST_MAC),
    };
    let mut frame = VnetHeader::default().to_bytes().to_vec();
    for part in [&to[..], &from, &MARKER, &[0; 46]] {
        frame.extend(part);
    }
    frame
}

fn index_of(name: &str) -> u32 {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )
    .unwrap();
    rustix::net::netdevice::name_to_index(socket.as_fd(), name).unwrap()
}

/// Sums 16-bit words (RFC 1071) without folding.
pub(crate) fn internet_sum(bytes: &[u8], start: u64) -> u64 {
    bytes.chunks(2).fold(start, |sum, pair| {
        sum + u64::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))
    })
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
