//! The settings of a `[[relay.forward]]` for interception and clients' addresses.

use ipnet::IpNet;
use serde::Deserialize;
use toml::Spanned;

use super::field::{OneOrMany, parse};
use crate::access::identity::{Identity, ProxyVersion};
use crate::access::{Rule, SourcePrefix, Sources};
use crate::intercept::{Method, RULES_MAX, Taking};
use crate::net::addr::Listen;

type Mistake = (usize, String);

/// The connections that a transparent forward intercepts, and the destinations that it allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transparent {
    /// The destination ports; never empty.
    pub ports: Vec<u16>,
    /// The destination prefixes; empty: every address.
    pub destinations: Vec<IpNet>,
    /// The devices that the connections arrive on; empty: all but loopback.
    pub devices: Vec<String>,
    /// Allowed destinations; all others are refused.
    pub allow: Vec<Rule>,
    /// Exceptions from `allow`.
    pub deny: Vec<Rule>,
}

/// The interception settings of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterceptConfig {
    /// The mark of intercepted packets; never 0.
    pub mark: u32,
    /// The method; `None`: BPF, or nftables if the kernel rejects the BPF program.
    pub method: Option<Method>,
}

impl Default for InterceptConfig {
    fn default() -> Self {
        Self {
            mark: crate::intercept::MARK,
            method: None,
        }
    }
}

/// The fields as they are written.
pub(super) struct Written {
    pub(super) transparent: Option<Spanned<bool>>,
    pub(super) ports: Option<Spanned<Vec<u16>>>,
    pub(super) destinations: Option<Spanned<OneOrMany>>,
    pub(super) devices: Option<Spanned<OneOrMany>>,
    pub(super) allow: Option<Spanned<OneOrMany>>,
    pub(super) deny: Option<Spanned<OneOrMany>>,
}

impl Written {
    /// Returns the connections to intercept, if any. `at` is the offset of the forward's `listen`.
    pub(super) fn check(
        self,
        i: usize,
        at: usize,
        listen: &[Listen],
    ) -> Result<Option<Transparent>, Mistake> {
        if !self.transparent.as_ref().is_some_and(|t| *t.get_ref()) {
            let places = [&self.destinations, &self.devices, &self.allow, &self.deny];
            let stray = places.into_iter().flatten().map(|f| f.span().start);
            let stray = stray
                .chain(self.ports.iter().map(|f| f.span().start))
                .next();
            return match stray {
                None => Ok(None),
                Some(at) => Err((
                    at,
                    format!(
                        "relay.forward[{i}]: `ports`, `destinations`, `devices`, `allow` and `deny` say \
                         what is intercepted; they need `transparent = true`"
                    ),
                )),
            };
        }
        let ports_at = self.ports.as_ref().map_or(at, |p| p.span().start);
        let ports = self.ports.map(Spanned::into_inner).unwrap_or_default();
        let of_ports = |what: &str| (ports_at, format!("relay.forward[{i}].ports: {what}"));
        if ports.is_empty() {
            return Err(of_ports(
                "name the ports to be intercepted, such as [80, 443]",
            ));
        }
        if ports.contains(&0) {
            return Err(of_ports("nothing can connect to port 0"));
        }
        let own = listen.iter().map(Listen::port);
        if let Some(port) = own.into_iter().find(|port| ports.contains(port)) {
            return Err(of_ports(&format!(
                "{port} is also listened on; listen on a port that is not intercepted, so that \
                 connections to the listener itself can be told apart"
            )));
        }
        let taken = Transparent {
            ports,
            destinations: prefixes(self.destinations.as_ref(), i, "destinations")?,
            devices: self
                .devices
                .map_or_else(Vec::new, |d| d.into_inner().into_vec()),
            allow: list(self.allow.as_ref(), i, "allow")?,
            deny: list(self.deny.as_ref(), i, "deny")?,
        };
        if taken.allow.is_empty() {
            let message = format!(
                "relay.forward[{i}].allow: say where intercepted connections may go, such as \
                 [\"*:443\"] for every public address; without, all of them would be refused"
            );
            return Err((at, message));
        }
        for net in &taken.destinations {
            let of_family = |l: &Listen| {
                let mut addrs = l.addrs().into_iter();
                addrs.any(|addr| addr.is_ipv4() == net.addr().is_ipv4())
            };
            if !listen.iter().any(of_family) {
                let message = format!(
                    "relay.forward[{i}].destinations: {net} is of a family that this forward does not \
                     listen to"
                );
                return Err((at, message));
            }
        }
        let taking = taken.taking(Vec::new());
        if taking.rules() > RULES_MAX {
            let message = format!(
                "relay.forward[{i}]: {} combinations of ports, destinations and devices are too many, \
                 {RULES_MAX} is the most: write wider prefixes",
                taking.rules()
            );
            return Err((ports_at, message));
        }
        Ok(Some(taken))
    }
}

impl Transparent {
    /// Returns the interception rule for the bound listeners `listen`.
    pub(crate) fn taking(&self, listen: Vec<std::net::SocketAddr>) -> Taking {
        Taking {
            ports: self.ports.clone(),
            destinations: self.destinations.clone(),
            devices: self.devices.clone(),
            listen,
        }
    }
}

/// Returns whether `source` selects the client's address.
pub(super) fn borrow(source: Option<&Spanned<String>>, field: &str) -> Result<bool, Mistake> {
    let Some(source) = source else {
        return Ok(false);
    };
    match source.get_ref().as_str() {
        "client" => Ok(true),
        "relay" => Ok(false),
        other => {
            let message = format!("{field}: `{other}` is neither \"relay\" nor \"client\"");
            Err((source.span().start, message))
        }
    }
}

/// Returns how clients' addresses are learnt and passed on.
pub(super) fn identity(
    i: usize,
    source: Option<&Spanned<String>>,
    send_proxy: Option<&Spanned<SendProxy>>,
    accept_proxy: Option<&Spanned<bool>>,
    proxy_from: Option<&Spanned<OneOrMany>>,
) -> Result<Identity, Mistake> {
    let believed = prefixes(proxy_from, i, "proxy_from")?;
    let accepts = accept_proxy.filter(|a| *a.get_ref());
    let accept_proxy = match (accepts, believed.is_empty()) {
        (None, true) => None,
        (Some(at), true) => {
            let message = format!(
                "relay.forward[{i}].accept_proxy: name the senders that are believed in `proxy_from`, \
                 or every client could choose an address for itself"
            );
            return Err((at.span().start, message));
        }
        (None, false) => {
            let message = format!(
                "relay.forward[{i}].proxy_from: it names whose PROXY headers are believed, which needs \
                 `accept_proxy = true`"
            );
            return Err((proxy_from.map_or(0, |f| f.span().start), message));
        }
        (Some(at), false) => {
            let believed = believed.into_iter().map(SourcePrefix).collect();
            let sources = Sources::new(Some(believed), Vec::new()).map_err(|e| {
                let message = format!("relay.forward[{i}].proxy_from: {e}");
                (at.span().start, message)
            })?;
            Some(sources)
        }
    };
    Ok(Identity {
        borrow: borrow(source, &format!("relay.forward[{i}].source"))?,
        send_proxy: match send_proxy {
            Some(written) => proxy_version(written, &format!("relay.forward[{i}].send_proxy"))?,
            None => None,
        },
        accept_proxy,
    })
}

/// Whether a PROXY protocol header is sent, or its version.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected `true`, `false`, \"v1\" or \"v2\"")]
pub(super) enum SendProxy {
    Whether(bool),
    Version(String),
}

fn proxy_version(
    written: &Spanned<SendProxy>,
    field: &str,
) -> Result<Option<ProxyVersion>, Mistake> {
    match written.get_ref() {
        SendProxy::Whether(false) => Ok(None),
        SendProxy::Whether(true) => Ok(Some(ProxyVersion::V2)),
        SendProxy::Version(version) => match version.as_str() {
            "v1" => Ok(Some(ProxyVersion::V1)),
            "v2" => Ok(Some(ProxyVersion::V2)),
            other => {
                let message = format!("{field}: `{other}` is neither \"v1\" nor \"v2\"");
                Err((written.span().start, message))
            }
        },
    }
}

/// Parses a method.
pub(super) fn method(written: &Spanned<String>) -> Result<Method, Mistake> {
    match written.get_ref().as_str() {
        "bpf" => Ok(Method::Bpf),
        "nft" => Ok(Method::Nft),
        other => {
            let message = format!("relay.intercept_by: `{other}` is neither \"bpf\" nor \"nft\"");
            Err((written.span().start, message))
        }
    }
}

fn prefixes(
    field: Option<&Spanned<OneOrMany>>,
    i: usize,
    name: &str,
) -> Result<Vec<IpNet>, Mistake> {
    let prefixes: Vec<SourcePrefix> = list(field, i, name)?;
    Ok(prefixes.into_iter().map(|p| p.0).collect())
}

fn list<T>(field: Option<&Spanned<OneOrMany>>, i: usize, name: &str) -> Result<Vec<T>, Mistake>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let Some(field) = field else {
        return Ok(Vec::new());
    };
    let at = field.span().start;
    let texts = match field.get_ref() {
        OneOrMany::One(one) => std::slice::from_ref(one),
        OneOrMany::Many(many) => many.as_slice(),
    };
    let texts = texts.iter().enumerate();
    texts
        .map(|(j, text)| parse(text, at, || format!("relay.forward[{i}].{name}[{j}]")))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::Config;

    fn parse(forward: &str) -> Result<Config, String> {
        let text = format!("[[relay.forward]]\n{forward}");
        Config::parse(&text, Path::new("taut.toml")).map_err(|e| e.to_string())
    }

    const LEAST: &str =
        "transparent = true\nlisten = \":8443\"\nports = [80, 443]\nallow = \"*:*\"\n";

    #[test]
    fn the_least_transparent_forward_has_ports_and_says_where_they_may_go() {
        let config = parse(LEAST).unwrap();
        let forward = &config.forwards[0];
        assert!(forward.to.is_empty());
        let taken = forward.transparent.as_ref().unwrap();
        assert_eq!(taken.ports, [80, 443]);
        assert!(taken.destinations.is_empty() && taken.devices.is_empty());
        assert!(!forward.identity.borrow);
    }

    #[test]
    fn every_field_is_read() {
        let config = parse(&format!(
            "{LEAST}destinations = [\"203.0.113.0/24\", \"2001:db8::/32\"]\ndevices = \"eth1\"\n\
             deny = [\"203.0.113.9:*\"]\nsource = \"client\"\nsend_proxy = true\n\
             early_syn = true\n"
        ))
        .unwrap();
        let forward = &config.forwards[0];
        let taken = forward.transparent.as_ref().unwrap();
        assert_eq!(taken.destinations.len(), 2);
        assert_eq!(taken.devices, ["eth1"]);
        assert_eq!(taken.deny.len(), 1);
        assert!(forward.identity.borrow && forward.identity.send_proxy.is_some());
        assert!(forward.early_syn);
    }

    #[test]
    fn a_mistake_says_what_is_missing() {
        let plain = "listen = \":1\"\nto = \"x:1\"\n";
        for (forward, part) in [
            (
                "transparent = true\nlisten = \":1\"\nports = [80]\n".to_owned(),
                "allow: say where",
            ),
            (
                "transparent = true\nlisten = \":1\"\nallow = \"*:*\"\n".to_owned(),
                "ports: name the ports",
            ),
            (LEAST.replace("8443", "443"), "443 is also listened on"),
            (format!("{LEAST}to = \"x:1\"\n"), "`to` and `transparent`"),
            (
                format!("{LEAST}accept_proxy = true\nproxy_from = \"::1\"\n"),
                "accept_proxy",
            ),
            (
                LEAST.replace(":8443", "10.0.0.1:8443") + "destinations = \"2001:db8::/32\"\n",
                "of a family",
            ),
            (
                format!("{plain}ports = [80]\n"),
                "they need `transparent = true`",
            ),
            (
                format!("{plain}accept_proxy = true\n"),
                "every client could choose",
            ),
            (
                format!("{plain}proxy_from = \"::1\"\n"),
                "needs `accept_proxy = true`",
            ),
            (
                format!("{plain}source = \"me\"\n"),
                "neither \"relay\" nor \"client\"",
            ),
            (
                "listen = \":1\"\n".to_owned(),
                "relay.forward[0].to: set the destination",
            ),
        ] {
            let error = parse(&forward).unwrap_err();
            assert!(error.contains(part), "no `{part}` in {error}");
        }
    }
}
