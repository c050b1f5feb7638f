//! `taut relay` on a host of a world.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::{PeerError, Service};
use crate::world::Host;

/// The port that a relay with one forward listens on.
pub const PORT: u16 = 8080;
/// Where a host's first relay serves its metrics; others take the ports after it.
pub const METRICS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// What a relay's configuration file says (`docs/relay.md`).
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// The only section.
    pub relay: Node,
}

/// `[relay]`.
#[derive(Clone, Debug, Serialize)]
pub struct Node {
    /// Where metrics are served.
    pub metrics: SocketAddr,
    /// `[[relay.forward]]`.
    #[serde(rename = "forward", skip_serializing_if = "Vec::is_empty")]
    pub forwards: Vec<Forward>,
}

/// `[[relay.forward]]`.
#[derive(Clone, Debug, Serialize)]
pub struct Forward {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where the session goes.
    pub to: SocketAddr,
    /// Congestion control towards clients; `None`: the kernel's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_congestion: Option<String>,
}

// === impl Forward ===

impl Forward {
    /// From `listen` to `to`, with the relay's defaults.
    pub fn new(listen: SocketAddr, to: SocketAddr) -> Self {
        Self {
            listen,
            to,
            client_congestion: None,
        }
    }
}

/// Relays what comes to `host` at [`PORT`] to `to`; `taut` is the binary.
///
/// # Errors
/// [`PeerError`].
pub fn relay(host: &Host, taut: &Path, to: SocketAddr, dir: &Path) -> Result<Service, PeerError> {
    let addr = SocketAddr::from((host.addr(), PORT));
    let node = Node {
        metrics: METRICS,
        forwards: vec![Forward::new(addr, to)],
    };
    start(host, taut, "relay", node, addr, dir)
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
    Service::start(host, &format!("taut-{name}"), command, addr, dir)
}

/// Sessions that the relay on this host says are open. To be called inside the host.
///
/// # Errors
/// The system's, or that the relay does not say.
pub fn open_sessions() -> io::Result<u64> {
    let said = scrape(METRICS)?;
    sum(&said, "taut_relay_sessions")
        .map(|sessions| sessions as u64)
        .ok_or_else(|| io::Error::other("the relay's metrics do not have taut_relay_sessions"))
}

/// What a relay says of itself at `metrics`.
fn scrape(metrics: SocketAddr) -> io::Result<String> {
    let mut scrape = TcpStream::connect(metrics)?;
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    scrape.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The values of the metric `name`, whatever its labels, added up; `None` where there is none.
fn sum(exposition: &str, name: &str) -> Option<f64> {
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
        let addr = SocketAddr::from(([10, 0, 0, 1], 8080));
        let mut bbr = Forward::new(addr, addr);
        bbr.client_congestion = Some("bbr".to_owned());
        let node = Node {
            metrics: METRICS,
            forwards: vec![Forward::new(addr, addr), bbr],
        };
        let text = toml::to_string(&Config { relay: node }).unwrap();
        assert_eq!(text.matches("[[relay.forward]]").count(), 2, "{text}");
        assert_eq!(
            text.matches("client_congestion = \"bbr\"").count(),
            1,
            "{text}"
        );
    }
}
