//! Two relays with two paths between them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::PollFlags;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::world::{World, WorldBuilder};
use taut_relay::turbo::route_metrics::{Job, PROTOCOL, RouteMetrics, Status, TABLE};
use taut_sys::socket::{Keepalive, LegOptions, Listener, Stream};
use tokio::sync::Notify;

pub(crate) use crate::PATIENCE;
use crate::poll::wait_for;
pub(crate) use crate::wait::wait_until;

/// The initial window that tests ask for, in segments.
pub(crate) const SEGMENTS: u32 = 1381;

pub(crate) struct Relays {
    pub(crate) world: World,
}

/// Routes that a test has requested, and how to request others.
pub(crate) struct Routes {
    /// Dropping it removes the routes.
    _routes: RouteMetrics,
    wanted: Arc<Mutex<Vec<IpAddr>>>,
    changed: Arc<Notify>,
    pub(crate) status: Arc<Status>,
}

// === impl Relays ===

impl Relays {
    /// `near` and `far`, with paths through `left` and `right`.
    pub(crate) fn new(name: &str) -> Self {
        Self::with_delay(name, Duration::from_millis(1))
    }

    /// Like `new`, with `delay` per link and direction.
    pub(crate) fn with_delay(name: &str, delay: Duration) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network namespaces and must run as root; `make test` does"
        );
        let link = LinkSpec::both(Shape::delay(delay));
        let mut world = WorldBuilder::new(name)
            .host("near")
            .host("left")
            .host("right")
            .host("far");
        for (a, b) in [
            ("near", "left"),
            ("near", "right"),
            ("left", "far"),
            ("right", "far"),
        ] {
            world = world.link(a, b, link);
        }
        Self {
            world: world.build().unwrap(),
        }
    }

    /// The far relay's addresses.
    pub(crate) fn far(&self) -> [IpAddr; 2] {
        let far = self.world.host("far");
        [far.addr().into(), far.addr6().into()]
    }

    /// Runs `ip` at a host and returns its output.
    pub(crate) fn ip(&self, host: &str, line: &str) -> String {
        let netns = self.world.host(host).netns().name();
        let mut ip = Command::new("ip");
        let output = ip
            .args(["-n", netns])
            .args(line.split(' '))
            .output()
            .unwrap();
        // For `ip` an empty table is an error.
        let why = String::from_utf8_lossy(&output.stderr);
        let ok = output.status.success() || why.contains("table does not exist");
        assert!(ok, "ip {line}: {why}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns every rule of ours and all routes in our table, at near.
    pub(crate) fn traces(&self) -> Vec<String> {
        let mut traces = Vec::new();
        for family in ["-4", "-6"] {
            let rules = self.ip("near", &format!("{family} rule show"));
            let ours = format!("lookup {TABLE}");
            let rules = rules.lines().filter(|line| line.contains(&ours));
            traces.extend(rules.map(str::to_owned));
            let line = format!("{family} route show table {TABLE}");
            traces.extend(self.ip("near", &line).lines().map(str::to_owned));
        }
        traces
    }

    /// Returns the route that near's TCP takes to `address`.
    pub(crate) fn route(&self, address: IpAddr) -> String {
        let get = format!("route get fibmatch {address} ipproto tcp");
        self.ip("near", &get)
    }

    /// Returns how near reaches far, over IPv4 and over IPv6: `via GATEWAY dev DEVICE`.
    pub(crate) fn ways(&self) -> [[String; 2]; 2] {
        ["-4", "-6"].map(|family| {
            let routes = self.ip("near", &format!("{family} route show"));
            let ways = routes.lines().filter_map(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                let via = words.iter().position(|word| *word == "via")?;
                Some(words.get(via..via + 4)?.join(" "))
            });
            let ways: BTreeSet<_> = ways.collect();
            let ways: Vec<_> = ways.into_iter().collect();
            ways.try_into().unwrap()
        })
    }

    /// Returns near's device of a route.
    pub(crate) fn device(&self, route: &str) -> String {
        let mut words = route.split_whitespace().skip_while(|word| *word != "dev");
        words.nth(1).unwrap().to_owned()
    }

    /// Requests routes to these addresses, at near.
    pub(crate) fn routes(&self, wanted: &[IpAddr]) -> Routes {
        let wanted = Arc::new(Mutex::new(wanted.to_vec()));
        let (changed, status) = (Arc::new(Notify::new()), Arc::new(Status::default()));
        let job = Job {
            segments: SEGMENTS,
            wanted: Box::new({
                let wanted = wanted.clone();
                move || wanted.lock().unwrap().clone()
            }),
            changed: changed.clone(),
            status: status.clone(),
        };
        let near = self.world.host("near");
        let start = || RouteMetrics::start(job);
        Routes {
            _routes: near.run(start).unwrap().unwrap(),
            wanted,
            changed,
            status,
        }
    }

    /// Makes far listen.
    pub(crate) fn listen(&self, address: IpAddr, port: u16) -> Listener {
        let addr = SocketAddr::new(address, port);
        let listen = || Listener::bind(addr, 16, &options("cubic"));
        self.world.host("far").run(listen).unwrap().unwrap()
    }

    /// Connects near to `listener`; returns both ends.
    pub(crate) fn connect(&self, listener: &Listener, congestion: &str) -> (Stream, Stream) {
        let addr = listener.local_addr().unwrap();
        let connect = || Stream::connect(addr, &options(congestion));
        let near = self.world.host("near").run(connect).unwrap().unwrap();
        wait_for(&near, PollFlags::OUT);
        near.take_error().unwrap();
        wait_for(listener, PollFlags::IN);
        let (far, _) = listener.accept().unwrap();
        (near, far)
    }
}

// === impl Routes ===

impl Routes {
    /// Requests these from now on.
    pub(crate) fn want(&self, wanted: &[IpAddr]) {
        *self.wanted.lock().unwrap() = wanted.to_vec();
        self.changed.notify_one();
    }
}

fn options(congestion: &str) -> LegOptions {
    let keepalive = Keepalive {
        idle: Duration::from_secs(60),
        interval: Duration::from_secs(15),
        probes: 4,
    };
    LegOptions {
        congestion: Some(congestion.to_owned()),
        ..LegOptions::new(keepalive)
    }
}

/// Returns a route of ours, as `ip` shows it.
pub(crate) fn is_ours(route: &str) -> bool {
    let proto = format!("proto {PROTOCOL}");
    let window = format!("initcwnd {SEGMENTS}");
    route.contains(&proto) && route.contains(&window)
}
