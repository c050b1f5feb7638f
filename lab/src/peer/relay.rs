//! `taut relay` on a host of a world.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};
use taut_mesh::identity::{PrivateKey, PublicKey};

use super::{PeerError, Service};
use taut_netlab::units::BitsPerSecond;
use taut_netlab::world::Host;

/// The port that a relay with one forward listens on.
pub const PORT: u16 = 8080;
/// Where a relay without the sandbox listens. Other relays have the ports between.
const PORT_WITHOUT_SANDBOX: u16 = 8090;
/// The metrics port of a host's first relay; other relays use the ports after it.
pub const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// How long a relay may take to fill its pool.
const POOL_LIMIT: Duration = Duration::from_secs(20);
/// The pause between two reads of the metrics.
const POOL_PAUSE: Duration = Duration::from_millis(50);

/// A relay's configuration file (`docs/reference/relay-keys.md`).
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// The configuration's only section.
    pub relay: Node,
}

/// The section `[relay]`.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// The address at which metrics are served.
    pub metrics: SocketAddr,
    /// The control socket, which is off: the default path is one for all relays of the machine, and the
    /// first of them gets it.
    control: &'static str,
    /// The limits of a source, which are off: the one client of a world opens all connections.
    max_sessions_per_source: &'static str,
    max_connects_per_source: &'static str,
    /// The section `[relay.mesh]`; `None` if the relay is in no mesh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mesh: Option<Mesh>,
    /// The sections `[[relay.forward]]`.
    #[serde(rename = "forward", skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
}

/// The section `[relay.mesh]`.
#[derive(Clone, Debug, Serialize)]
pub struct Mesh {
    /// The file of the relay's private key, from [`make_key`].
    pub private_key_file: PathBuf,
    /// The file of the list of members, from [`write_members`].
    pub members_file: PathBuf,
    /// The address for connections from other relays; `None` if the relay accepts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// The destinations of sessions from the mesh, as `PREFIX:PORT`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// The number of connections to keep ready to each next relay.
    pub pool_min: u32,
    /// Whether mesh legs skip slow start and have large windows.
    pub turbo: bool,
    /// The congestion control of mesh legs; `None` for the default of `turbo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub congestion_control: Option<String>,
    /// The rate at which mesh legs start, with `turbo`.
    #[serde(serialize_with = "as_tc_writes_it")]
    pub rate: BitsPerSecond,
    /// Whether the relay measures paths and exchanges rows. Most experiments count connections and
    /// descriptors, and need no routes.
    pub measure: bool,
}

/// The section `[[relay.forward]]`.
#[derive(Clone, Debug, Serialize)]
pub struct Forward {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The routes to try in order, each the names of its relays: `far`, `a > b`. Empty if the
    /// session goes to `to` directly.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    /// Whether a session goes to `to` directly if all routes fail.
    #[serde(skip_serializing_if = "is_false")]
    pub direct: bool,
    /// The session's destination.
    pub to: SocketAddr,
    /// Whether the upstream leg is opened at the client's SYN.
    #[serde(skip_serializing_if = "is_false")]
    pub early_syn: bool,
    /// The congestion control towards clients; `None` for the kernel's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_congestion: Option<String>,
}

// === impl Node ===

impl Node {
    /// Returns a relay with these forwards, and a part in a mesh or none.
    pub fn new(metrics: SocketAddr, mesh: Option<Mesh>, forwards: Vec<Forward>) -> Self {
        Self {
            metrics,
            control: "off",
            max_sessions_per_source: "off",
            max_connects_per_source: "off",
            mesh,
            forwards,
        }
    }
}

// === impl Forward ===

impl Forward {
    /// Returns a forward from `listen` to `to` with the relay's defaults.
    pub fn new(listen: SocketAddr, to: SocketAddr) -> Self {
        Self {
            listen,
            via: Vec::new(),
            direct: false,
            to,
            early_syn: false,
            client_congestion: None,
        }
    }
}

/// Relays connections that arrive on `host` at [`PORT`] to `to`. `taut` is the path of the binary.
///
/// # Errors
/// [`PeerError`].
pub fn relay(host: &Host, taut: &Path, to: SocketAddr, dir: &Path) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT));
    let node = Node::new(METRICS, None, vec![Forward::new(addr, to)]);
    start(host, taut, "relay", node, addr, dir)
}

/// Relays like [`relay`] beside it, without the sandbox.
///
/// # Errors
/// [`PeerError`].
pub fn relay_without_sandbox(
    host: &Host,
    taut: &Path,
    to: SocketAddr,
    dir: &Path,
) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT_WITHOUT_SANDBOX));
    let metrics = SocketAddr::new(METRICS.ip(), METRICS.port() + 1);
    let node = Node::new(metrics, None, vec![Forward::new(addr, to)]);
    let (name, more) = ("relay-no-sandbox", ["--no-sandbox"]);
    start_with(host, taut, name, node, addr, dir, &more)
}

/// Starts a relay called `name` on `host`, and waits until it accepts connections at `addr`.
///
/// # Errors
/// [`PeerError`].
pub fn start(
    host: &Host,
    taut: &Path,
    name: &str,
    node: Node,
    addr: SocketAddr,
    dir: &Path,
) -> Result<Service, PeerError> {
    start_with(host, taut, name, node, addr, dir, &[])
}

fn start_with(
    host: &Host,
    taut: &Path,
    name: &str,
    node: Node,
    addr: SocketAddr,
    dir: &Path,
    options: &[&str],
) -> Result<Service, PeerError> {
    let config = dir.join(format!("taut-{name}-{}.toml", host.name()));
    let text = toml::to_string(&Config { relay: node });
    text.map_err(io::Error::other)
        .and_then(|text| fs::write(&config, text))
        .map_err(|source| PeerError::Prepare {
            what: "a relay's configuration".into(),
            source,
        })?;
    let mut command = Command::new(taut);
    command.arg("relay").arg("--config").arg(&config);
    command.args(options);
    Service::start(host, &format!("taut-{name}"), command, addr, dir)
}

/// A relay in the list of members (`members_file`).
#[derive(Clone, Debug, Serialize)]
pub struct Member {
    /// The name that routes use.
    pub name: String,
    /// Its public key; two while one replaces the other.
    #[serde(serialize_with = "as_texts")]
    pub keys: Vec<PublicKey>,
    /// The addresses of its mesh port; empty if no relay dials it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<SocketAddr>,
}

/// Writes a new private key to `file` and returns its public key. Only the file's owner can read
/// the file; an existing file is not replaced.
///
/// # Errors
/// [`PeerError::Prepare`].
pub fn make_key(file: &Path) -> Result<PublicKey, PeerError> {
    let make = || {
        let mut seed = [0; 32];
        let filled = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        if filled < seed.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        PrivateKey::create(file, &seed).map_err(io::Error::other)
    };
    let key = make().map_err(|source| PeerError::Prepare {
        what: "a relay's private key".into(),
        source,
    })?;
    Ok(key.public())
}

/// Writes a list of members to `file`. An existing file is replaced atomically.
///
/// # Errors
/// [`PeerError::Prepare`].
pub fn write_members(file: &Path, members: &[Member]) -> Result<(), PeerError> {
    #[derive(Serialize)]
    struct List<'a> {
        member: &'a [Member],
    }
    let write = || {
        let text = toml::to_string(&List { member: members }).map_err(io::Error::other)?;
        let new = file.with_extension("new");
        fs::write(&new, text)?;
        // A relay refuses a list that other users can change, which depends on the umask.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(new, file)
    };
    write().map_err(|source| PeerError::Prepare {
        what: "a list of members".into(),
        source,
    })
}

/// Waits until `relay` has at least `least` pooled connections to next relays. Its metrics are at
/// `metrics` on `host`.
///
/// # Errors
/// [`PeerError::NotServing`] after [`POOL_LIMIT`], or if the metrics cannot be read.
pub fn wait_for_pool(
    relay: &Service,
    host: &Host,
    metrics: SocketAddr,
    least: u32,
) -> Result<(), PeerError> {
    let deadline = Instant::now() + POOL_LIMIT;
    loop {
        let said = host.run(|| scrape(metrics))?;
        let ready = match &said {
            Ok(said) => sum(said, "taut_relay_pool_ready"),
            Err(_) => None,
        };
        if ready.is_some_and(|ready| ready >= f64::from(least)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let how = match (said, ready) {
                (Err(e), _) => format!("its metrics at {metrics} cannot be read ({e})"),
                (Ok(_), None) => "its metrics lack taut_relay_pool_ready".to_owned(),
                (Ok(_), Some(ready)) => {
                    format!("its pool has {ready} of {least} connections after {POOL_LIMIT:?}")
                }
            };
            return Err(relay.not_serving(how));
        }
        std::thread::sleep(POOL_PAUSE);
    }
}

/// Returns the number of open sessions of the relay on this host. Must be called in the host's
/// namespace.
///
/// # Errors
/// The system's error, or that the metrics lack the figure.
pub fn open_sessions() -> io::Result<u64> {
    let said = scrape(METRICS)?;
    sum(&said, "taut_relay_sessions")
        .map(|sessions| sessions as u64)
        .ok_or_else(|| io::Error::other("the relay's metrics lack taut_relay_sessions"))
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// Formats a rate as tc(8) and `[relay.mesh]` read it: `1gbit`, `25mbit`.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn as_tc_writes_it<S: Serializer>(rate: &BitsPerSecond, to: S) -> Result<S::Ok, S::Error> {
    let text = match rate.0 {
        n if n % 1_000_000_000 == 0 => format!("{}gbit", n / 1_000_000_000),
        n if n % 1_000_000 == 0 => format!("{}mbit", n / 1_000_000),
        n => format!("{n}bit"),
    };
    to.serialize_str(&text)
}

fn as_texts<S: Serializer>(keys: &[PublicKey], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(keys.iter().map(PublicKey::to_string))
}

/// Reads the relay's metrics at `metrics`. Must be called in the relay's namespace.
pub(crate) fn scrape(metrics: SocketAddr) -> io::Result<String> {
    let mut scrape = TcpStream::connect(metrics)?;
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    scrape.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Sums the values of the metric `name`, which may include labels as they are written, over all
/// other labels; `None` if the metric is missing.
pub(crate) fn sum(exposition: &str, name: &str) -> Option<f64> {
    exposition
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = match rest.strip_prefix('{') {
                Some(labelled) => labelled.rsplit_once("} ")?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.split(' ').next()?.parse::<f64>().ok()
        })
        .reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use taut_mesh::members::Members;

    use super::*;

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_over_its_namesakes() {
        let said = "HTTP/1.1 200 OK\r\n\r\n# TYPE pool gauge\npool{peer=\"a\"} 3\n\
                    pool{peer=\"b } 9\"} 4\npool_misses 7\nother 1\n# EOF\n";
        assert_eq!(sum(said, "pool"), Some(7.0));
        assert_eq!(sum(said, "other"), Some(1.0));
        assert_eq!(sum(said, "absent"), None);
    }

    #[test]
    fn what_is_not_said_is_not_in_the_file() {
        let text = written(None, vec![Forward::new(addr(1), addr(2))]);
        let expected = "[relay]\nmetrics = \"127.0.0.1:9464\"\ncontrol = \"off\"\nmax_sessions_per_source = \"off\"\n\
                        max_connects_per_source = \"off\"\n\n[[relay.forward]]\n\
                        listen = \"10.0.0.1:8080\"\nto = \"10.0.0.2:8080\"\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_mesh_is_written_as_its_documentation_has_it() {
        let mesh = Mesh {
            private_key_file: "/w/near.key".into(),
            members_file: "/w/members.toml".into(),
            listen: Some(addr(2)),
            allow: vec!["10.0.0.3/32:80".to_owned()],
            pool_min: 4,
            turbo: false,
            congestion_control: Some("cubic".to_owned()),
            rate: BitsPerSecond::giga(1),
            measure: false,
        };
        let forward = Forward {
            via: vec!["a > b".to_owned(), "far".to_owned()],
            direct: true,
            early_syn: true,
            client_congestion: Some("bbr".to_owned()),
            ..Forward::new(addr(1), addr(3))
        };
        let text = written(Some(mesh), vec![forward]);
        let table: toml::Table = toml::from_str(&text).unwrap();
        let expected: toml::Table = toml::from_str(
            r#"
            [relay]
            metrics = "127.0.0.1:9464"
            control = "off"
            max_sessions_per_source = "off"
            max_connects_per_source = "off"
            [relay.mesh]
            private_key_file = "/w/near.key"
            members_file = "/w/members.toml"
            listen = "10.0.0.2:8080"
            allow = ["10.0.0.3/32:80"]
            pool_min = 4
            turbo = false
            congestion_control = "cubic"
            rate = "1gbit"
            measure = false
            [[relay.forward]]
            listen = "10.0.0.1:8080"
            via = ["a > b", "far"]
            direct = true
            to = "10.0.0.3:8080"
            early_syn = true
            client_congestion = "bbr"
            "#,
        )
        .unwrap();
        assert_eq!(table, expected, "{text}");
    }

    #[test]
    fn a_relay_accepts_a_new_key_and_the_list_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["near", "far"].map(|name| dir.path().join(name));
        let keys = files.each_ref().map(|file| make_key(file).unwrap());
        assert_ne!(keys[0], keys[1]);
        assert_eq!(PrivateKey::load(&files[0]).unwrap().public(), keys[0]);
        assert!(make_key(&files[0]).is_err(), "an old key is never replaced");

        let list = dir.path().join("members.toml");
        let near = Member {
            name: "near".to_owned(),
            keys: keys.to_vec(),
            addresses: Vec::new(),
        };
        write_members(&list, &[near]).unwrap();
        let read = Members::parse(&fs::read_to_string(&list).unwrap()).unwrap();
        assert_eq!(read.by_name("near").unwrap().keys, keys);
        let far = Member {
            name: "far".to_owned(),
            keys: vec![keys[1]],
            addresses: vec![addr(2), addr(3)],
        };
        write_members(&list, &[far]).unwrap();
        let read = Members::parse(&fs::read_to_string(&list).unwrap()).unwrap();
        let far = read.by_name("far").unwrap();
        assert_eq!(far.keys, [keys[1]]);
        let addresses: Vec<String> = far.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.2:8080", "10.0.0.3:8080"]);
        assert!(read.by_name("near").is_none(), "the list was replaced");
        let mode = fs::metadata(&list).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0);
    }

    fn addr(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 8080))
    }

    fn written(mesh: Option<Mesh>, forwards: Vec<Forward>) -> String {
        let relay = Node::new(METRICS, mesh, forwards);
        toml::to_string(&Config { relay }).unwrap()
    }
}
