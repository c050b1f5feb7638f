//! A client and a relay, each in a namespace of its own, with a link between them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use taut_relay::early_syn::{self, Devices, EarlySyn, SynEvent};
use taut_sys::epoll::{Interest, Poller};
use taut_sys::netns::Netns;

pub(crate) use crate::PATIENCE;

/// The name of the link at both its ends.
pub(crate) const LINK: &str = "wire";
/// The relay's addresses; the client's end in 1.
pub(crate) const RELAY: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(crate) const RELAY6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2);

/// The number under which listeners are watched.
pub(crate) const LISTENER: u32 = 7;

pub(crate) struct Net {
    pub(crate) client: Netns,
    pub(crate) relay: Netns,
    /// The number of the relay's end of the link, unique on this machine.
    pub(crate) ifindex: u32,
}

// === impl Net ===

impl Net {
    pub(crate) fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let name = |end: &str| format!("taut-syn-{pid}-{made}-{end}");
        let net = Self {
            client: Netns::create(&name("client")).unwrap(),
            relay: Netns::create(&name("relay")).unwrap(),
            // Process numbers end at 2^22.
            ifindex: (1 << 30) + pid * 16 + made,
        };
        assert!(made < 16, "device numbers are shared out for 16");
        let other = net.client.name();
        net.ip(
            &net.relay,
            &format!(
                "link add {LINK} index {} type veth peer name {LINK} netns {other}",
                net.ifindex
            ),
        );
        for (netns, end, other) in [(&net.client, 1, 2), (&net.relay, 2, 1)] {
            // A kernel worker makes an end listen for neighbour solicitations: on a busy machine later than a neighbour
            // asks.
            let neighbour = format!("lladdr 02:00:00:00:09:0{other} dev {LINK} nud permanent");
            for line in [
                format!("link set {LINK} address 02:00:00:00:09:0{end}"),
                format!("address add 10.9.0.{end}/24 dev {LINK}"),
                format!("address add fd09::{end}/64 dev {LINK} nodad"),
                "link set lo up".to_owned(),
                format!("link set {LINK} up"),
                format!("neigh add 10.9.0.{other} {neighbour}"),
                format!("neigh add fd09::{other} {neighbour}"),
            ] {
                net.ip(netns, &line);
            }
        }
        net
    }

    /// Runs `ip` in a namespace.
    pub(crate) fn ip(&self, netns: &Netns, line: &str) {
        let mut ip = Command::new("ip");
        let output = ip
            .args(["-n", netns.name()])
            .args(line.split(' '))
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {line}: {why}");
    }

    pub(crate) fn listen(&self, addr: impl Into<SocketAddr>) -> TcpListener {
        let addr = addr.into();
        let bind = || TcpListener::bind(addr);
        self.relay.run(bind).unwrap().unwrap()
    }

    pub(crate) fn connect(&self, addr: SocketAddr) -> TcpStream {
        let connect = || TcpStream::connect_timeout(&addr, PATIENCE);
        self.client.run(connect).unwrap().unwrap()
    }

    /// How many TCP sockets of a namespace `ss` finds in `state`.
    pub(crate) fn sockets(&self, netns: &Netns, state: &str) -> usize {
        let output = Command::new("ss")
            .args(["-N", netns.name(), "-Htn", "state", state])
            .output()
            .unwrap();
        assert!(output.status.success(), "ss: {output:?}");
        String::from_utf8_lossy(&output.stdout).lines().count()
    }

    /// Returns how many packets the relay's end of the link has dropped: those that came while the queue that
    /// devices of a CPU share was full.
    pub(crate) fn dropped(&self) -> u32 {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let devices = self.relay.run(read).unwrap();
        let link = |line: &str| Some(line.trim().strip_prefix(LINK)?.to_owned());
        let link = devices.lines().find_map(link).unwrap();
        // Behind the colon: bytes, packets, errors and drops of what was received.
        link.split_whitespace().nth(4).unwrap().parse().unwrap()
    }

    /// Watches for SYNs to `addrs` on the link.
    pub(crate) fn watch(&self, addrs: &[SocketAddr]) -> Watch {
        self.watch_on(Devices::Named(vec![LINK.to_owned()]), addrs, u32::MAX)
    }

    pub(crate) fn watch_on(&self, devices: Devices, addrs: &[SocketAddr], ceiling: u32) -> Watch {
        let listeners = addrs.iter().map(|addr| (*addr, LISTENER)).collect();
        let watch = early_syn::Watch {
            listeners,
            intercepted: Vec::new(),
        };
        let attach = || EarlySyn::attach(devices, &watch, ceiling);
        Watch(self.relay.run(attach).unwrap().unwrap())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for netns in [&self.client, &self.relay] {
            let _ = Netns::delete(netns.name());
        }
    }
}

pub(crate) struct Watch(pub(crate) EarlySyn);

// === impl Watch ===

impl Watch {
    /// Waits for `count` events, and returns all there are then.
    pub(crate) fn events(&mut self, count: usize) -> Vec<SynEvent> {
        let poller = Poller::new().unwrap();
        poller.add(self.0.poll_fd(), 0, Interest::Read).unwrap();
        let mut events = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while events.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "only {events:?} of {count} came");
            poller.wait(Some(left), &mut Vec::new()).unwrap();
            self.0.take(&mut events);
        }
        events
    }
}

/// Returns the event of the connection whose client end is `stream`.
pub(crate) fn event_of(stream: &TcpStream) -> SynEvent {
    SynEvent {
        client: stream.local_addr().unwrap(),
        listener_addr: stream.peer_addr().unwrap(),
        listener: LISTENER,
    }
}
