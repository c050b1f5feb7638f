//! The world, and the configuration of its relays.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use taut_mesh::identity::PublicKey;

use super::plan::{Line, Side};
use crate::peer::relay::{self, Forward, Member, Mesh, Node};
use crate::peer::{PeerError, Service};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{Host, World, WorldBuilder, WorldError};

/// The address at which the far relay listens for the near one.
const MESH_PORT: u16 = 7000;
/// The destination of sessions.
const SERVER_PORT: u16 = 9000;
/// The port of the trap. No authorized client connects to the trap, so every connection there is
/// the outsider's doing.
const TRAP_PORT: u16 = 9001;
/// The minimum number of connections that the near relay keeps ready.
const POOL: u32 = 8;
/// The relays' drain timeout, which bounds the duration of a stop.
pub(super) const DRAIN: Duration = Duration::from_secs(3);

/// A link: its ends, its one-way delay in ms, and its share of lost segments.
const LINKS: [(&str, &str, u64, f64); 4] = [
    ("client", "near", 2, 0.0),
    // Segments are lost where the relays have to repair losses fastest.
    ("near", "far", 10, 0.0005),
    ("far", "server", 1, 0.0),
    ("outsider", "far", 1, 0.0),
];
const RATE: BitsPerSecond = BitsPerSecond::giga(1);
const QUEUE: Bytes = Bytes::mega(4);

/// A member of the mesh without a relay. Its key makes the recordings that the outsider replays.
pub(super) const RECORDED: &str = "recorded";

/// The world without processes.
pub(super) struct Rig {
    pub(super) world: World,
    taut: PathBuf,
}

/// The part of a relay's configuration that changes while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Whether the configuration has the changed timeouts and a second forward.
    pub(super) changed: bool,
}

/// The configuration file.
#[derive(Serialize)]
struct Config {
    relay: Section,
}

#[derive(Serialize)]
struct Section {
    max_sessions: u32,
    connect_timeout: &'static str,
    half_closed_timeout: &'static str,
    flush_timeout: &'static str,
    drain_timeout: String,
    /// The time after which the relay probes a peer whose RST may have been lost.
    keepalive_idle: &'static str,
    #[serde(flatten)]
    node: Node,
}

// === impl Rig ===

impl Rig {
    pub(super) fn build(seed: u64, taut: &Path) -> Result<Self, WorldError> {
        let mut builder = WorldBuilder::new("soak");
        for host in ["client", "near", "far", "server", "outsider"] {
            // Enough ports for TIME_WAIT: two hundred connections per second between the same two
            // addresses, each for a minute. TIME_WAIT itself has to stay (RFC 9293 section 3.6.1):
            // without it, a peer whose last acknowledgement was lost is reset.
            builder =
                builder
                    .host(host)
                    .sysctl(host, "net.ipv4.ip_local_port_range", "16384 65535");
        }
        for (number, (a, b, delay, loss)) in (0_u64..).zip(LINKS) {
            let shape = Self::shape(delay, loss);
            let spec = LinkSpec::both(shape).seed(seed.wrapping_mul(8).wrapping_add(number));
            builder = builder.link(a, b, spec);
        }
        Ok(Self {
            world: builder.build()?,
            taut: taut.to_owned(),
        })
    }

    fn shape(delay: u64, loss: f64) -> Shape {
        Shape::delay(Duration::from_millis(delay))
            .rate(RATE)
            .queue(QUEUE)
            .loss(loss)
    }

    /// Describes the links for the environment of an outcome.
    pub(super) fn describe() -> impl Iterator<Item = (String, String)> {
        LINKS.into_iter().map(|(a, b, delay, loss)| {
            let text = format!(
                "{} ms round trip, {RATE}, loss {} %",
                2 * delay,
                100.0 * loss
            );
            (format!("{a}-{b}"), text)
        })
    }

    pub(super) fn host(&self, side: Side) -> &Host {
        self.world.host(side.name())
    }

    /// Returns the address for sessions.
    pub(super) fn entrance(&self) -> SocketAddr {
        SocketAddr::from((self.world.addr("near"), relay::PORT))
    }

    /// Returns the address of the second forward at `side`.
    pub(super) fn extra(&self, side: Side) -> SocketAddr {
        SocketAddr::from((self.host(side).addr(), relay::PORT + 1))
    }

    pub(super) fn server(&self) -> SocketAddr {
        SocketAddr::from((self.world.addr("server"), SERVER_PORT))
    }

    pub(super) fn trap(&self) -> SocketAddr {
        SocketAddr::from((self.world.addr("server"), TRAP_PORT))
    }

    pub(super) fn mesh_port(&self) -> SocketAddr {
        SocketAddr::from((self.world.addr("far"), MESH_PORT))
    }

    /// Cuts or restores a link.
    pub(super) fn cut(&self, line: Line, is_cut: bool) {
        let (a, b, ..) = LINKS[line as usize];
        self.world.cut(a, b, is_cut);
    }

    /// Returns the file with the private key of a member.
    pub(super) fn key_file(&self, member: &str) -> PathBuf {
        self.world.dir().join(format!("{member}.key"))
    }

    /// Returns the file with the list of members that the relay of `side` reads.
    pub(super) fn members_file(&self, side: Side) -> PathBuf {
        self.world
            .dir()
            .join(format!("{}-members.toml", side.name()))
    }

    /// Returns the entry of the relay of `side` in a list of members.
    pub(super) fn member(&self, side: Side, keys: Vec<PublicKey>) -> Member {
        Member {
            name: side.name().to_owned(),
            keys,
            addresses: match side {
                Side::Near => Vec::new(),
                Side::Far => vec![self.mesh_port()],
            },
        }
    }

    /// Writes the configuration of `side`; the file is replaced atomically.
    pub(super) fn write_config(&self, side: Side, settings: Settings) -> io::Result<()> {
        let relay = self.section(side, settings);
        let text = toml::to_string(&Config { relay }).map_err(io::Error::other)?;
        let file = self.config_file(side);
        let new = file.with_extension("new");
        fs::write(&new, text)?;
        fs::rename(new, file)
    }

    fn config_file(&self, side: Side) -> PathBuf {
        self.world.dir().join(format!("{}.toml", side.name()))
    }

    fn section(&self, side: Side, settings: Settings) -> Section {
        let mut mesh = Mesh {
            private_key_file: self.key_file(side.name()),
            members_file: self.members_file(side),
            listen: None,
            allow: Vec::new(),
            pool_min: POOL,
            turbo: true,
            congestion_control: None,
            rate: RATE,
            measure: false,
        };
        let mut forwards = Vec::new();
        match side {
            Side::Near => forwards.push(Forward {
                via: vec![Side::Far.name().to_owned()],
                early_syn: true,
                ..Forward::new(self.entrance(), self.server())
            }),
            Side::Far => {
                mesh.listen = Some(self.mesh_port());
                mesh.allow = [SERVER_PORT, TRAP_PORT]
                    .map(|port| format!("{}/32:{port}", self.world.addr("server")))
                    .to_vec();
            }
        }
        if settings.changed {
            forwards.push(Forward::new(self.extra(side), self.server()));
        }
        let pick = |plain, changed| if settings.changed { changed } else { plain };
        Section {
            max_sessions: 8_192,
            connect_timeout: pick("5s", "6s"),
            half_closed_timeout: pick("15s", "14s"),
            flush_timeout: pick("10s", "9s"),
            drain_timeout: format!("{DRAIN:?}"),
            keepalive_idle: "5s",
            node: Node::new(relay::METRICS, Some(mesh), forwards),
        }
    }

    /// Starts the relay of `side` as its `life`-th process, and waits until the relay serves.
    pub(super) fn start(&self, side: Side, life: u32) -> Result<Service, PeerError> {
        let mut command = Command::new(&self.taut);
        command
            .arg("relay")
            .arg("--config")
            .arg(self.config_file(side));
        let (host, dir) = (self.host(side), self.world.dir());
        // Waits for the metrics port, which opens first. A connection to the entrance would be a
        // session without a header.
        let name = format!("taut-{life}");
        let service = Service::start(host, &name, command, relay::METRICS, dir)?;
        let least = match (side, life) {
            (Side::Near, 0) => 1,
            // A relay without a pool is ready once its metrics can be read. Under load, sessions
            // take the connections of a pool before they count as ready.
            _ => 0,
        };
        relay::wait_for_pool(&service, host, relay::METRICS, least)?;
        Ok(service)
    }
}

// === impl Side ===

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Near, Self::Far];

    /// Returns the name of the relay's host.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}
