//! The section as written, and its conversion to a [`Config`].

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::rr::Name;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;
use taut_mesh::members::MemberName;
use taut_sys::listen::{Listen, ListenError};
use toml::Spanned;

use super::{Config, MAX_LISTEN, MAX_NAME_SERVERS, MAX_NAMES, MAX_RELAYS, Probe, RelayConfig};
use crate::nearness::RelayId;

/// A mistake: the offset in the text, and the field with what is wrong.
type Mistake = (usize, String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mesh {
    pub(super) dns: Option<Section>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    listen: Option<Spanned<OneOrMany>>,
    workers: Option<Spanned<u16>>,
    user: Option<String>,
    metrics: Option<Spanned<String>>,
    zone: Spanned<String>,
    contact: Option<Spanned<String>>,
    ttl: Option<Spanned<String>>,
    rtt_file: Option<PathBuf>,
    relay_control: Option<PathBuf>,
    relay_keep: Option<Spanned<String>>,
    probe_interval: Option<Spanned<String>>,
    probe_timeout: Option<Spanned<String>>,
    rate_limit: Option<Spanned<u32>>,
    unlimited: Option<Spanned<OneOrMany>>,
    name_server: Spanned<Vec<NameServerSection>>,
    relay: Spanned<Vec<RelaySection>>,
    name: Spanned<Vec<NameSection>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameServerSection {
    name: Spanned<String>,
    #[serde(default)]
    addresses: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RelaySection {
    name: Spanned<String>,
    addresses: Spanned<Vec<String>>,
    probe: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameSection {
    name: Spanned<String>,
    #[serde(default)]
    relays: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// The default port.
const LISTEN: &str = ":53";
/// The default of `ttl`: short, because resolvers go on leading clients to a dead relay for so long.
const TTL: Duration = Duration::from_secs(30);
const TTL_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// The default of `relay_keep`: round trips change little in an hour.
const RELAY_KEEP: Duration = Duration::from_secs(3600);
const RELAY_KEEP_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(7 * 24 * 3600);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_INTERVAL_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(3600);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const PROBE_TIMEOUT_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(60);
/// The default of `rate_limit`: several times what the resolvers of a large provider ask a small zone.
const RATE_LIMIT: u32 = 1000;

impl Section {
    pub(super) fn check(self) -> Result<Config, Mistake> {
        let zone = name(self.zone.get_ref(), None).map_err(|e| field(&self.zone, "zone", e))?;
        let contact = match &self.contact {
            Some(contact) => {
                mailbox(contact.get_ref()).map_err(|e| field(contact, "contact", e))?
            }
            None => {
                mailbox(&format!("hostmaster@{zone}")).map_err(|e| field(&self.zone, "zone", e))?
            }
        };
        let relays = relays(self.relay)?;
        let config = Config {
            listen: listen(self.listen)?,
            workers: match self.workers {
                Some(workers) if *workers.get_ref() == 0 => {
                    return Err(field(&workers, "workers", "must be at least 1".into()));
                }
                workers => workers.map(Spanned::into_inner),
            },
            user: self.user,
            metrics: match self.metrics {
                Some(text) => {
                    let parsed = text.get_ref().parse();
                    Some(parsed.map_err(|e: ListenError| field(&text, "metrics", e.to_string()))?)
                }
                None => None,
            },
            name_servers: name_servers(self.name_server, &zone)?,
            names: names(self.name, &zone, &relays)?,
            ttl: {
                let ttl = time(self.ttl, "ttl", TTL, TTL_RANGE)?;
                u32::try_from(ttl.as_secs()).unwrap_or(u32::MAX)
            },
            rtt_file: self.rtt_file,
            relay_control: self.relay_control,
            relay_keep: time(self.relay_keep, "relay_keep", RELAY_KEEP, RELAY_KEEP_RANGE)?,
            probe_interval: time(
                self.probe_interval,
                "probe_interval",
                PROBE_INTERVAL,
                PROBE_INTERVAL_RANGE,
            )?,
            probe_timeout: time(
                self.probe_timeout,
                "probe_timeout",
                PROBE_TIMEOUT,
                PROBE_TIMEOUT_RANGE,
            )?,
            rate_limit: match self.rate_limit.map_or(RATE_LIMIT, Spanned::into_inner) {
                0 => None,
                rate => Some(f64::from(rate)),
            },
            unlimited: unlimited(self.unlimited)?,
            zone,
            contact,
            relays,
        };
        // The names alone are known to be right now, not yet that they are in the zone and different.
        match config.zone(0) {
            Ok(_) => Ok(config),
            Err(error) => Err(field(&self.zone, "zone", format!("{error}"))),
        }
    }
}

fn field<T>(at: &Spanned<T>, name: &str, what: String) -> Mistake {
    (at.span().start, format!("mesh.dns.{name}: {what}"))
}

fn time(
    written: Option<Spanned<String>>,
    name: &str,
    default: Duration,
    range: std::ops::RangeInclusive<Duration>,
) -> Result<Duration, Mistake> {
    let Some(text) = written else {
        return Ok(default);
    };
    let [least, most] = [range.start(), range.end()].map(|d| humantime::format_duration(*d));
    match humantime::parse_duration(text.get_ref()) {
        Ok(time) if range.contains(&time) => Ok(time),
        _ => {
            let e = format!("write a duration from {least} to {most}, such as \"30s\"");
            Err(field(&text, name, e))
        }
    }
}

/// Parses a name. With a zone, `@` is the zone and a name without a dot at its end is below it.
fn name(text: &str, zone: Option<&Name>) -> Result<Name, String> {
    let absolute = match zone {
        Some(zone) if text == "@" => return Ok(zone.clone()),
        Some(zone) if !text.ends_with('.') => format!("{text}.{zone}"),
        None if !text.ends_with('.') => format!("{text}."),
        _ => text.to_owned(),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let parsed = Name::from_ascii(&absolute).ok();
    parsed
        .filter(|name| absolute.chars().all(plain) && !name.is_root())
        .map(|name| name.to_lowercase())
        .ok_or_else(|| format!("`{}` is not a domain name", text.escape_default()))
}

/// Converts a mail address to the name that stands for it in a SOA record (RFC 1035 section 8).
fn mailbox(text: &str) -> Result<Name, String> {
    let bad = || {
        let text = text.escape_default();
        format!("`{text}` is not a mail address, such as hostmaster@example.org")
    };
    let (user, domain) = text.split_once('@').ok_or_else(bad)?;
    let domain = name(domain, None)?;
    let user = Some(user.as_bytes()).filter(|user| !user.is_empty() && user.is_ascii());
    let labels = user.into_iter().chain(domain.iter());
    let parsed = Name::from_labels(labels).ok().filter(|_| user.is_some());
    parsed.ok_or_else(bad)
}

fn listen(written: Option<Spanned<OneOrMany>>) -> Result<Vec<Listen>, Mistake> {
    let (at, texts) = match written {
        None => (0, vec![LISTEN.to_owned()]),
        Some(written) => (
            written.span().start,
            match written.into_inner() {
                OneOrMany::One(text) => vec![text],
                OneOrMany::Many(texts) => texts,
            },
        ),
    };
    if texts.is_empty() || texts.len() > MAX_LISTEN {
        let e = format!("mesh.dns.listen: name from 1 to {MAX_LISTEN} addresses");
        return Err((at, e));
    }
    let addresses = texts.iter().map(|text| {
        let parsed = text.parse();
        parsed.map_err(|e: ListenError| (at, format!("mesh.dns.listen: {e}")))
    });
    addresses.collect()
}

fn unlimited(written: Option<Spanned<OneOrMany>>) -> Result<Vec<IpNet>, Mistake> {
    let Some(written) = written else {
        return Ok(Vec::new());
    };
    let at = written.span().start;
    let texts = match written.into_inner() {
        OneOrMany::One(text) => vec![text],
        OneOrMany::Many(texts) => texts,
    };
    let prefix = |text: &String| {
        text.parse().map(canonical).map_err(|_| {
            let text = text.escape_default();
            let e = format!("mesh.dns.unlimited: `{text}` is not a prefix, such as 10.0.0.0/8");
            (at, e)
        })
    };
    texts.iter().map(prefix).collect()
}

/// Returns the IPv4 prefix that an IPv4-mapped one stands for: a source is compared by its IPv4 address.
fn canonical(prefix: IpNet) -> IpNet {
    let mapped = |net: Ipv6Net| {
        let (ip, bits) = (
            net.addr().to_ipv4_mapped()?,
            net.prefix_len().checked_sub(96)?,
        );
        Ipv4Net::new(ip, bits).ok()
    };
    match prefix {
        IpNet::V6(net) => mapped(net).map_or(prefix, IpNet::V4),
        IpNet::V4(_) => prefix,
    }
}

fn name_servers(
    written: Spanned<Vec<NameServerSection>>,
    zone: &Name,
) -> Result<Vec<(Name, Vec<IpAddr>)>, Mistake> {
    let count = written.get_ref().len();
    if !(1..=MAX_NAME_SERVERS).contains(&count) {
        let e = format!("name from 1 to {MAX_NAME_SERVERS} servers of the zone");
        return Err(field(&written, "name_server", e));
    }
    let mut servers = Vec::with_capacity(count);
    for server in written.into_inner() {
        let parsed = name(server.name.get_ref(), Some(zone));
        let parsed = parsed.map_err(|e| field(&server.name, "name_server.name", e))?;
        let addresses = server.addresses.iter().map(|text| {
            let e = format!("`{}` is not an IP address", text.get_ref().escape_default());
            let address = text.get_ref().parse();
            address.map_err(|_| field(text, "name_server.addresses", e))
        });
        let addresses = addresses.collect::<Result<Vec<IpAddr>, _>>()?;
        let is_inside = zone.zone_of(&parsed);
        if is_inside == addresses.is_empty() {
            let e = match is_inside {
                true => format!("{parsed} is in the zone: write its `addresses`"),
                false => format!("{parsed} is not in the zone: leave its `addresses` out"),
            };
            return Err(field(&server.name, "name_server", e));
        }
        servers.push((parsed, addresses));
    }
    Ok(servers)
}

fn relays(written: Spanned<Vec<RelaySection>>) -> Result<Vec<RelayConfig>, Mistake> {
    let count = written.get_ref().len();
    if !(1..=MAX_RELAYS).contains(&count) {
        let e = format!("name from 1 to {MAX_RELAYS} relays");
        return Err(field(&written, "relay", e));
    }
    let mut relays = Vec::<RelayConfig>::with_capacity(count);
    let mut known = std::collections::HashSet::with_capacity(count);
    for relay in written.into_inner() {
        let parsed = relay.name.get_ref().parse::<MemberName>();
        let parsed = parsed.map_err(|e| field(&relay.name, "relay.name", e.to_string()))?;
        if !known.insert(parsed.as_str().to_owned()) {
            return Err(field(
                &relay.name,
                "relay.name",
                format!("`{parsed}` is listed twice"),
            ));
        }
        let (mut v4, mut v6) = (None, None);
        for text in relay.addresses.get_ref() {
            let twice = match text.parse() {
                Ok(IpAddr::V4(address)) => v4.replace(address).is_some(),
                Ok(IpAddr::V6(address)) => v6.replace(address).is_some(),
                Err(_) => {
                    let e = format!("`{}` is not an IP address", text.escape_default());
                    return Err(field(&relay.addresses, "relay.addresses", e));
                }
            };
            if twice {
                let e = "write one address of IPv4, one of IPv6, or both";
                return Err(field(&relay.addresses, "relay.addresses", e.into()));
            }
        }
        if v4.is_none() && v6.is_none() {
            let e = format!("{parsed} has no address");
            return Err(field(&relay.addresses, "relay.addresses", e));
        }
        let probe = match &relay.probe {
            Some(text) => Some(probe(text.get_ref()).map_err(|e| field(text, "relay.probe", e))?),
            None => None,
        };
        relays.push(RelayConfig {
            name: parsed.as_str().to_owned(),
            v4,
            v6,
            probe,
        });
    }
    Ok(relays)
}

/// Parses a probe: `ADDRESS:PORT` or `http://ADDRESS:PORT/PATH`.
fn probe(text: &str) -> Result<Probe, String> {
    let bad = || {
        format!(
            "`{}` is not ADDRESS:PORT, nor http://ADDRESS:PORT/PATH; names are not looked up",
            text.escape_default()
        )
    };
    let Some(rest) = text.strip_prefix("http://") else {
        return text.parse().map(Probe::Connect).map_err(|_| bad());
    };
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let address = address.parse().map_err(|_| bad())?;
    path.parse::<hyper::Uri>().map_err(|_| bad())?;
    Ok(Probe::Http {
        address,
        path: path.to_owned(),
    })
}

fn names(
    written: Spanned<Vec<NameSection>>,
    zone: &Name,
    relays: &[RelayConfig],
) -> Result<Vec<(Name, Vec<RelayId>)>, Mistake> {
    let count = written.get_ref().len();
    if !(1..=MAX_NAMES).contains(&count) {
        let e = format!("write from 1 to {MAX_NAMES} names");
        return Err(field(&written, "name", e));
    }
    let mut names = Vec::with_capacity(count);
    for section in written.into_inner() {
        let parsed = name(section.name.get_ref(), Some(zone));
        let parsed = parsed.map_err(|e| field(&section.name, "name.name", e))?;
        let ids = section.relays.iter().map(|text| {
            let at = relays
                .iter()
                .position(|relay| relay.name == *text.get_ref());
            let id = at.and_then(|at| RelayId::try_from(at).ok());
            id.ok_or_else(|| {
                let text_ = text.get_ref().escape_default();
                field(text, "name.relays", format!("there is no relay `{text_}`"))
            })
        });
        let mut ids = ids.collect::<Result<Vec<_>, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        names.push((parsed, ids));
    }
    Ok(names)
}
