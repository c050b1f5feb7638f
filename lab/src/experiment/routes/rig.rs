//! A world with a relay in each city, a client and a server, and an entrance for each route.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::choice::{self, Predicted};
use super::option::{self, Mode, Route};
use super::sites::{self, Pair, QUEUE, Site, Stop};
use crate::experiment::{ExperimentError, Request};
use crate::peer::curl::{self, Digest, Times};
use crate::peer::relay::{self, METRICS, Member, PORT};
use crate::peer::{PeerError, Service, nginx};
use taut_netlab::link::counters::LinkReport;
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::BitsPerSecond;
use taut_netlab::world::{World, WorldBuilder, WorldError};

/// The port at which relays listen for each other.
const MESH_PORT: u16 = 7440;
/// The number of connections that a relay holds ready to each next relay.
const POOL: u32 = 2;
/// The name of the file on the server.
const FILE: &str = "file";
/// A delivery that is late by more than this disturbs a download.
const TOLERANCE: Duration = Duration::from_millis(5);

/// A world with its programs, which are dropped before it.
pub(super) struct Rig {
    entrances: BTreeMap<Route, SocketAddr>,
    /// The planner's routes, the choice first.
    pub(super) predicted: Vec<Predicted>,
    _relays: Vec<Service>,
    _server: Service,
    digest: Digest,
    world: World,
}

/// A download by a route.
pub(super) struct Download {
    pub(super) times: Times,
    /// Whether a link of the route delivered late during the download.
    pub(super) was_late: bool,
}

/// A rig that is being built.
struct Stage<'a> {
    world: &'a World,
    mode: Mode,
    taut: &'a Path,
    server: SocketAddr,
    /// Every route with a relay.
    routes: Vec<Route>,
}

// === impl Rig ===

impl Rig {
    /// Asks the planner about `pair`, builds a world with the links of its routes, and starts their relays.
    pub(super) fn build(
        pair: Pair,
        mode: Mode,
        sites: usize,
        request: &Request,
    ) -> Result<Self, ExperimentError> {
        let machine = ExperimentError::machine;
        let predicted =
            choice::routes(&request.taut, pair, sites).map_err(machine("run `taut mesh plan`"))?;
        let mut routes = match mode {
            Mode::Turbo => option::all(pair, sites),
            Mode::Cubic => option::thirds(pair, sites)
                .chain([option::baseline(pair)])
                .collect(),
        };
        let chosen = &predicted[0].route;
        if mode == Mode::Turbo && !routes.contains(chosen) {
            routes.push(chosen.clone());
        }
        let world = world(pair, &routes, request.seed)?;
        let dir = world.dir();
        let digest = file(dir, mode.size(), request.seed).map_err(machine("write the file"))?;
        let server = nginx::serve(world.host("server"), dir)?;
        let stage = Stage {
            world: &world,
            mode,
            taut: &request.taut,
            server: server.addr,
            routes: routes
                .into_iter()
                .filter(|route| !route.is_empty())
                .collect(),
        };
        let relays = stage.start()?;
        let mut entrances: BTreeMap<Route, SocketAddr> = (0..)
            .zip(&stage.routes)
            .map(|(number, route)| (route.clone(), stage.entrance(number, route[0])))
            .collect();
        if mode == Mode::Turbo {
            entrances.insert(Vec::new(), server.addr);
        }
        Ok(Self {
            entrances,
            predicted,
            _relays: relays,
            _server: server,
            digest,
            world,
        })
    }

    /// Returns every route with an entrance.
    pub(super) fn routes(&self) -> impl Iterator<Item = &Route> {
        self.entrances.keys()
    }

    /// Downloads the file by a route, and compares it with the server's.
    pub(super) fn download(&self, route: &Route) -> Result<Download, ExperimentError> {
        let entrance = self.entrances.get(route).copied();
        let entrance = entrance
            .ok_or_else(|| io::ErrorKind::NotFound.into())
            .map_err(ExperimentError::machine("find the entrance of a route"))?;
        let into = self.world.dir().join("download");
        let client = self.world.host("client");
        let before = self.reports(route)?;
        let times = curl::fetch(client, entrance, FILE, self.digest, &into)?;
        let after = self.reports(route)?;
        let was_late = before.iter().zip(&after).any(|(b, a)| a.since(b).overrun());
        Ok(Download { times, was_late })
    }

    /// Returns the counters of a route's links.
    fn reports(&self, route: &Route) -> Result<Vec<LinkReport>, WorldError> {
        let links = option::links(route).into_iter();
        links
            .map(|[a, b]| self.world.link_report(a.host(), b.host()))
            .collect()
    }
}

// === impl Stage ===

impl Stage<'_> {
    /// Starts the relays from the server towards the client, and waits for their pools.
    fn start(&self) -> Result<Vec<Service>, PeerError> {
        let used: BTreeSet<Site> = self.routes.iter().flatten().copied().collect();
        self.write_files(&used)?;
        // A relay dials its next relays at once; if they do not listen yet, it dials again only
        // after a pause. So relays with fewer next relays start first.
        let mut order: Vec<Site> = used.iter().copied().collect();
        order.sort_by_key(|&site| self.next(site).len());
        let mut relays = Vec::new();
        for &site in &order {
            let host = self.world.host(sites::name(site));
            let mut command = Command::new(self.taut);
            command
                .args(["relay", "--config"])
                .arg(self.file(site, "toml"));
            relays.push((
                site,
                Service::start(host, "taut", command, METRICS, self.world.dir())?,
            ));
        }
        for (site, service) in &relays {
            let host = self.world.host(sites::name(*site));
            let ready = POOL * self.next(*site).len() as u32;
            relay::wait_for_pool(service, host, METRICS, ready)?;
        }
        Ok(relays.into_iter().map(|(_, service)| service).collect())
    }

    fn write_files(&self, used: &BTreeSet<Site>) -> Result<(), PeerError> {
        let member = |&site: &Site| {
            Ok::<_, PeerError>(Member {
                name: sites::name(site).to_owned(),
                keys: vec![relay::make_key(&self.file(site, "key"))?],
                addresses: vec![self.address(site, MESH_PORT)],
            })
        };
        let members: Vec<Member> = used.iter().map(member).collect::<Result<_, _>>()?;
        relay::write_members(&self.members(), &members)?;
        let write = |site: &Site| fs::write(self.file(*site, "toml"), self.configuration(*site));
        used.iter()
            .try_for_each(write)
            .map_err(|source| PeerError::Prepare {
                what: "the relays' configuration".into(),
                source,
            })
    }

    fn configuration(&self, site: Site) -> String {
        let mut text = format!(
            "[relay]\n\
             metrics = \"{METRICS}\"\n\
             max_sessions_per_source = \"off\"\n\
             max_connects_per_source = \"off\"\n\
             [relay.mesh]\n\
             private_key_file = \"{}\"\n\
             members_file = \"{}\"\n\
             listen = \"{}\"\n\
             allow = \"{}/32:{}\"\n\
             pool_min = {POOL}\n\
             turbo = {}\n\
             measure = false\n\
             peers = {:?}\n",
            self.file(site, "key").display(),
            self.members().display(),
            self.address(site, MESH_PORT),
            self.server.ip(),
            self.server.port(),
            self.mode == Mode::Turbo,
            self.next(site)
                .into_iter()
                .map(sites::name)
                .collect::<Vec<_>>(),
        );
        for (number, route) in (0..).zip(&self.routes) {
            if route[0] != site {
                continue;
            }
            let _ = write!(
                text,
                "[[relay.forward]]\n\
                 listen = \"{}\"\n\
                 to = \"{}\"\n\
                 early_syn = true\n",
                self.entrance(number, site),
                self.server
            );
            if route.len() > 1 {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "via = [\"{}\"]", option::label(&route[1..]));
            }
        }
        text
    }

    /// Returns the relays that come after this one in some route.
    fn next(&self, site: Site) -> BTreeSet<Site> {
        let legs = self.routes.iter().flat_map(|route| route.windows(2));
        let after = legs.filter(|leg| leg[0] == site);
        after.map(|leg| leg[1]).collect()
    }

    fn entrance(&self, number: u16, site: Site) -> SocketAddr {
        self.address(site, PORT + number)
    }

    fn address(&self, site: Site, port: u16) -> SocketAddr {
        (self.world.addr(sites::name(site)), port).into()
    }

    fn members(&self) -> std::path::PathBuf {
        self.world.dir().join("members.toml")
    }

    fn file(&self, site: Site, extension: &str) -> std::path::PathBuf {
        let name = format!("{}.{extension}", sites::name(site));
        self.world.dir().join(name)
    }
}

/// Builds a world with the links of these routes, and no others, because each link has a thread.
fn world(pair: Pair, routes: &[Route], seed: u64) -> Result<World, WorldError> {
    let mut builder = WorldBuilder::new("routes").host("client").host("server");
    let relays: BTreeSet<Site> = routes.iter().flatten().copied().collect();
    for site in relays {
        builder = builder.host(sites::name(site));
    }
    let links: BTreeSet<[Stop; 2]> = routes.iter().flat_map(|r| option::links(r)).collect();
    for (number, [a, b]) in (0_u64..).zip(links) {
        let (rtt, rate) = pair.path(a, b);
        let spec = spec(rtt, rate, seed.wrapping_mul(256) + number);
        builder = builder.link(a.host(), b.host(), spec);
    }
    builder.build()
}

fn spec(rtt: Duration, rate: BitsPerSecond, seed: u64) -> LinkSpec {
    let shape = Shape::delay(rtt / 2)
        .rate(rate)
        .queue(QUEUE)
        .tolerance(TOLERANCE);
    LinkSpec::both(shape).seed(seed)
}

/// Writes the file that the server serves.
fn file(dir: &Path, size: usize, seed: u64) -> io::Result<Digest> {
    let www = dir.join("www");
    fs::create_dir(&www)?;
    let mut bytes = vec![0; size];
    Pcg64Mcg::seed_from_u64(seed).fill_bytes(&mut bytes);
    let path = www.join(FILE);
    fs::write(&path, bytes)?;
    Digest::of(&path)
}
