//! The world, its relays, and their configuration.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use strum::IntoStaticStr;

use crate::peer::relay::{self, METRICS, Member, PORT};
use crate::peer::{PeerError, Service};
use taut_netlab::link::shape::{LinkSpec, Shape};
use taut_netlab::units::{BitsPerSecond, Bytes};
use taut_netlab::world::{Host, World, WorldBuilder, WorldError};

/// The port at which relays listen for each other.
const MESH_PORT: u16 = 7440;
/// The destination of sessions.
const SERVER_PORT: u16 = 9000;
/// The relays' drain timeout. It is longer than every session takes.
pub(super) const DRAIN: Duration = Duration::from_secs(10);
const RATE: BitsPerSecond = BitsPerSecond::giga(1);
const QUEUE: Bytes = Bytes::mega(4);

/// A link: its ends, and its one-way delay in ms. The second alternative is the longer way.
const LINKS: [(&str, &str, u64); 5] = [
    ("client", "near", 2),
    ("near", "first", 10),
    ("near", "second", 15),
    ("first", "server", 2),
    ("second", "server", 2),
];

/// A relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Relay {
    Near,
    First,
    Second,
}

/// The world without processes.
pub(super) struct Rig {
    pub(super) world: World,
    taut: PathBuf,
}

// === impl Relay ===

impl Relay {
    pub(super) const ALL: [Self; 3] = [Self::Near, Self::First, Self::Second];
    pub(super) const ALTERNATIVES: [Self; 2] = [Self::First, Self::Second];

    /// Returns the name of the relay and of its host.
    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

// === impl Rig ===

impl Rig {
    /// Builds the world, and writes the files of all relays.
    pub(super) fn build(seed: u64, taut: &Path) -> Result<Self, WorldError> {
        let mut builder = WorldBuilder::new("failover");
        for host in ["client", "near", "first", "second", "server"] {
            // Enough ports for TIME_WAIT: two hundred connections per second between the same two
            // addresses, each for a minute. TIME_WAIT itself has to stay (RFC 9293 section 3.6.1):
            // without it, a peer whose last acknowledgement was lost is reset.
            builder =
                builder
                    .host(host)
                    .sysctl(host, "net.ipv4.ip_local_port_range", "16384 65535");
        }
        for (number, (a, b, delay)) in (0_u64..).zip(LINKS) {
            let shape = Shape::delay(Duration::from_millis(delay))
                .rate(RATE)
                .queue(QUEUE);
            let spec = LinkSpec::both(shape).seed(seed.wrapping_mul(8).wrapping_add(number));
            builder = builder.link(a, b, spec);
        }
        Ok(Self {
            world: builder.build()?,
            taut: taut.to_owned(),
        })
    }

    /// Describes the links for the environment of an outcome.
    pub(super) fn describe() -> impl Iterator<Item = (String, String)> {
        LINKS.into_iter().map(|(a, b, delay)| {
            let text = format!("{} ms round trip, {RATE}", 2 * delay);
            (format!("{a}-{b}"), text)
        })
    }

    pub(super) fn host(&self, relay: Relay) -> &Host {
        self.world.host(relay.name())
    }

    /// Returns the address for sessions.
    pub(super) fn entrance(&self) -> SocketAddr {
        (self.world.addr("near"), PORT).into()
    }

    pub(super) fn server(&self) -> SocketAddr {
        (self.world.addr("server"), SERVER_PORT).into()
    }

    /// Writes the files of all relays.
    ///
    /// # Errors
    /// [`PeerError::Prepare`].
    pub(super) fn write_files(&self) -> Result<(), PeerError> {
        let members = Relay::ALL.map(|relay| {
            Ok::<_, PeerError>(Member {
                name: relay.name().to_owned(),
                keys: vec![relay::make_key(&self.key(relay))?],
                addresses: match relay {
                    Relay::Near => Vec::new(),
                    Relay::First | Relay::Second => vec![self.mesh_address(relay)],
                },
            })
        });
        let members: Vec<_> = members.into_iter().collect::<Result<_, _>>()?;
        relay::write_members(&self.members(), &members)?;
        let write = |relay| fs::write(self.config(relay), self.configuration(relay));
        let written = Relay::ALL.into_iter().try_for_each(write);
        written.map_err(|source| PeerError::Prepare {
            what: "the relays' configuration".into(),
            source,
        })
    }

    /// Returns the configuration of `relay`.
    fn configuration(&self, relay: Relay) -> String {
        let mut text = format!(
            "[relay]\n\
             metrics = \"{METRICS}\"\n\
             max_sessions_per_source = \"off\"\n\
             max_connects_per_source = \"off\"\n\
             drain_timeout = \"{DRAIN:?}\"\n\
             [relay.mesh]\n\
             private_key_file = \"{}\"\n\
             members_file = \"{}\"\n",
            self.key(relay).display(),
            self.members().display()
        );
        let server = self.server();
        text += &match relay {
            Relay::Near => format!(
                "[[relay.forward]]\n\
                 listen = \"{}\"\n\
                 via = [\"first\", \"second\"]\n\
                 to = \"{server}\"\n",
                self.entrance(),
            ),
            Relay::First | Relay::Second => format!(
                "listen = \"{}\"\n\
                 allow = \"{}/32:{SERVER_PORT}\"\n",
                self.mesh_address(relay),
                server.ip(),
            ),
        };
        text
    }

    fn config(&self, relay: Relay) -> PathBuf {
        self.file(&format!("{}.toml", relay.name()))
    }

    fn key(&self, relay: Relay) -> PathBuf {
        self.file(&format!("{}.key", relay.name()))
    }

    fn members(&self) -> PathBuf {
        self.file("members.toml")
    }

    fn mesh_address(&self, relay: Relay) -> SocketAddr {
        (self.host(relay).addr(), MESH_PORT).into()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.world.dir().join(name)
    }

    /// Starts `relay` as its `life`-th process, and waits until it serves.
    ///
    /// # Errors
    /// [`PeerError`].
    pub(super) fn start(&self, relay: Relay, life: u32) -> Result<Service, PeerError> {
        let mut command = Command::new(&self.taut);
        command.args(["relay", "--config"]).arg(self.config(relay));
        let (host, dir) = (self.host(relay), self.world.dir());
        // Waits for the metrics port. A connection to the entrance would be a session.
        let service = Service::start(host, &format!("taut-{life}"), command, METRICS, dir)?;
        let least = match relay {
            Relay::Near => 1,
            Relay::First | Relay::Second => 0,
        };
        relay::wait_for_pool(&service, host, METRICS, least)?;
        Ok(service)
    }

    /// Returns the number of sessions that `relay` carries.
    ///
    /// # Errors
    /// If its metrics cannot be read.
    pub(super) fn sessions(&self, relay: Relay) -> io::Result<u64> {
        let sessions = self.host(relay).run(relay::open_sessions);
        sessions.map_err(io::Error::other)?
    }
}
