//! `[relay.mesh]`: the node's part in a mesh of relays.

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use ipnet::IpNet;
use serde::Deserialize;
use taut_mesh::identity::PublicKey;
use taut_mesh::members::{MAX_MESH_KEYS, MemberName};
use taut_sys::socket::PathOptions;
use toml::Spanned;

use super::etcd::{EtcdConfig, EtcdSection};
use super::field::{
    CountOrOff, OneOrMany, TIME, Time, at_least_one, limit, parse, set_time, sources,
};
use super::limits::{InboundLimits, PoolLimits};
use super::path::PathKeys;
use crate::access::identity::ProxyVersion;
use crate::access::{Pattern, Rule, SourcePrefix, Sources};
use crate::net::addr::Listen;

/// The default limit of relays that a session may pass through, counted from the first. RFC 9110
/// sets no such limit for proxies; eight is more than any sensible route needs.
const HOP_LIMIT: u8 = 8;

/// A node's part in a mesh.
#[derive(Clone, Debug)]
pub struct MeshConfig {
    /// The file with this relay's private key.
    pub private_key_file: PathBuf,
    /// The file with the list of all relays of the mesh.
    pub members_file: PathBuf,
    /// The keys of the mesh, one of which must have signed the list of relays. Empty: the list has no
    /// signature, or it is not checked.
    pub members_key: Vec<PublicKey>,
    /// Where the signed list comes from besides its file.
    pub etcd: Option<EtcdConfig>,
    /// The addresses of the mesh port; empty: this node only dials.
    pub listen: Vec<Listen>,
    /// Relays that may connect, by their own addresses.
    pub sources: Sources,
    /// Destinations that sessions from other relays may reach.
    pub allow: Vec<Rule>,
    /// Exceptions from `allow`.
    pub deny: Vec<Rule>,
    /// Networks in which connections between relays need no TLS.
    pub trusted_networks: Vec<IpNet>,
    /// Relays that sessions from other relays may be forwarded to, besides those in the routes of
    /// forwards.
    pub peers: Vec<MemberName>,
    /// Sessions from other relays may be forwarded to every member.
    pub pass_to_all: bool,
    /// Whether paths are measured, and rows exchanged with other relays.
    pub measure: bool,
    /// The file in which the choices of automatic routes are kept for the next start; `None`: nowhere.
    pub routes_file: Option<PathBuf>,
    /// What single relays may do here.
    pub rules: Vec<PeerRule>,
    /// What happens to the sessions of a relay that is removed from the list.
    pub removed: Removed,
    /// The number of relays that a session may pass through.
    pub hop_limit: u8,
    /// The pool of ready connections.
    pub pool: PoolLimits,
    /// Limits of connections to the mesh port before they carry a session.
    pub inbound: InboundLimits,
    /// Legs to destinations use the client's address, as reported by the first relay, as their
    /// source.
    pub borrow: bool,
    /// Destinations to which legs begin with a PROXY protocol header of this version. The first that matches counts.
    /// Names match nothing, because a client may ask for their addresses.
    pub send_proxy: Vec<(ProxyVersion, Vec<Rule>)>,
    /// Congestion control of legs to destinations; `None`: the kernel's default.
    pub upstream_congestion: Option<String>,
    /// How packets to destinations are sent.
    pub path: PathOptions,
    /// Turbo start of legs between relays; `None`: off.
    pub turbo: Option<Turbo>,
    /// The keys of protected legs go to the kernel where it has TLS.
    pub kernel_tls: bool,
    /// Congestion control of legs between relays, as [`LegConfig::congestion`].
    pub congestion: Option<String>,
    /// The highest rate of such a leg in bytes a second; `None`: no limit.
    pub max_rate: Option<u64>,
    /// The kernel memory, in bytes, of legs whose windows are not configured; `None`: half of what the
    /// kernel has for TCP before it comes under pressure.
    pub window_budget: Option<u64>,
}

/// How connections between this relay and another are used for sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegConfig {
    /// Turbo start; `None`: off.
    pub turbo: Option<Turbo>,
    /// The kernel's congestion control. `None`: `taut_pipe` with turbo start, otherwise the kernel's
    /// default.
    pub congestion: Option<String>,
    /// The highest rate in bytes a second; `None`: no limit.
    pub max_rate: Option<u64>,
}

/// `[[relay.mesh.peer]]`: what one relay may do here.
#[derive(Clone, Debug)]
pub struct PeerRule {
    /// The relay.
    pub name: MemberName,
    /// Destinations that its sessions may reach, instead of those of the mesh; `None`: those.
    pub allow: Option<Vec<Rule>>,
    /// Exceptions, besides those of the mesh.
    pub deny: Vec<Rule>,
    /// Clients that it may speak for; the default is all.
    pub clients: Sources,
    /// Legs between this relay and it; `None`: as those to others.
    pub leg: Option<LegConfig>,
}

/// What happens to the sessions of a relay that is removed from the list of members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Removed {
    /// They are reset at once.
    #[default]
    Reset,
    /// They end by themselves; no new ones begin.
    Drain,
}

/// Turbo start of legs between relays (pied-piper 3.2, improvement 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turbo {
    /// The initial rate of a leg, in bytes a second.
    pub rate: u64,
    /// Bytes that may be in flight on a new leg: its initial window and its socket buffers. `None`: they
    /// begin at [`INITIAL_WINDOW`] and follow what the peer needs.
    pub window: Option<u32>,
}

/// The window of a leg whose peer is not known to need more: 1 Gbit/s over 32 ms, or 150 Mbit/s over
/// 215 ms.
pub const INITIAL_WINDOW: u32 = 4 << 20;

impl Turbo {
    /// Returns the window of a leg to a peer of which nothing is known.
    pub fn initial_window(&self) -> u32 {
        self.window.unwrap_or(INITIAL_WINDOW)
    }
}

impl Default for Turbo {
    fn default() -> Self {
        Self {
            rate: 125_000_000,
            window: None,
        }
    }
}

impl MeshConfig {
    /// Returns the defaults with this private key and list of members: no mesh port and no allowed
    /// destinations.
    pub fn new(private_key_file: PathBuf, members_file: PathBuf) -> Self {
        Self {
            private_key_file,
            members_file,
            members_key: Vec::new(),
            etcd: None,
            listen: Vec::new(),
            sources: Sources::default(),
            allow: Vec::new(),
            deny: Vec::new(),
            trusted_networks: Vec::new(),
            peers: Vec::new(),
            pass_to_all: false,
            measure: true,
            routes_file: None,
            rules: Vec::new(),
            removed: Removed::default(),
            hop_limit: HOP_LIMIT,
            pool: PoolLimits::default(),
            inbound: InboundLimits::default(),
            borrow: false,
            send_proxy: Vec::new(),
            upstream_congestion: None,
            path: PathOptions::default(),
            turbo: Some(Turbo::default()),
            congestion: None,
            max_rate: None,
            window_budget: None,
            kernel_tls: true,
        }
    }

    /// Returns how connections to relays are used that have no settings of their own.
    pub fn leg(&self) -> LegConfig {
        LegConfig {
            turbo: self.turbo,
            congestion: self.congestion.clone(),
            max_rate: self.max_rate,
        }
    }

    /// Returns how connections between this relay and `member` are used.
    pub fn leg_to(&self, member: &MemberName) -> LegConfig {
        let rule = self.rules.iter().find(|rule| rule.name == *member);
        rule.and_then(|rule| rule.leg.clone())
            .unwrap_or_else(|| self.leg())
    }

    /// Returns whether legs to any relay have turbo start.
    pub fn wants_turbo(&self) -> bool {
        self.legs().any(|leg| leg.turbo.is_some())
    }

    /// Returns the default, and what relays with settings of their own have.
    pub(crate) fn legs(&self) -> impl Iterator<Item = LegConfig> {
        let own = self.rules.iter().filter_map(|rule| rule.leg.clone());
        std::iter::once(self.leg()).chain(own)
    }
}

// === impl LegConfig ===

impl LegConfig {
    /// Returns whether the windows of such legs follow what the peer needs.
    pub(crate) fn sizes_window(&self) -> bool {
        self.turbo.is_some_and(|turbo| turbo.window.is_none())
    }

    /// Returns whether such legs use `taut_pipe`, if the kernel accepts it.
    pub(crate) fn wants_pipe(&self) -> bool {
        self.turbo.is_some() && self.congestion.is_none()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MeshSection {
    private_key_file: Option<PathBuf>,
    members_file: Option<PathBuf>,
    members_key: Option<Spanned<OneOrMany>>,
    etcd: Option<Spanned<EtcdSection>>,
    trusted_networks: Option<Spanned<OneOrMany>>,
    kernel_tls: Option<bool>,
    removed_members: Option<Removed>,
    #[serde(default)]
    peer: Vec<Spanned<PeerSection>>,
    listen: Option<Spanned<OneOrMany>>,
    from: Option<Spanned<OneOrMany>>,
    not_from: Option<Spanned<OneOrMany>>,
    allow: Option<Spanned<OneOrMany>>,
    deny: Option<Spanned<OneOrMany>>,
    peers: Option<Spanned<OneOrMany>>,
    measure: Option<bool>,
    routes_file: Option<PathBuf>,
    hop_limit: Option<Spanned<u8>>,
    pool_min: Option<u32>,
    pool_max: Option<Spanned<u32>>,
    pool_max_age: Option<Spanned<Time>>,
    peer_patience: Option<Spanned<Time>>,
    pub(super) user_timeout: Option<Spanned<Time>>,
    max_unproven: Option<Spanned<u32>>,
    max_connects_per_source: Option<Spanned<CountOrOff>>,
    max_ready: Option<Spanned<u32>>,
    max_sessions_per_member: Option<Spanned<u32>>,
    handshake_timeout: Option<Spanned<Time>>,
    hello_timeout: Option<Spanned<Time>>,
    idle_timeout: Option<Spanned<Time>>,
    source: Option<Spanned<String>>,
    send_proxy: Option<Spanned<OneOrMany>>,
    send_proxy_v1: Option<Spanned<OneOrMany>>,
    upstream_congestion: Option<String>,
    upstream_mark: Option<Spanned<u32>>,
    upstream_dscp: Option<Spanned<u8>>,
    upstream_device: Option<String>,
    upstream_address: Option<Spanned<OneOrMany>>,
    turbo: Option<bool>,
    congestion_control: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    max_rate: Option<Spanned<String>>,
    window: Option<Spanned<ByteSize>>,
    window_budget: Option<Spanned<ByteSize>>,
}

/// The keys of a leg, in `[relay.mesh]` and in `[[relay.mesh.peer]]`. (serde cannot flatten a section
/// that denies unknown keys.)
struct LegKeys {
    turbo: Option<bool>,
    congestion_control: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    max_rate: Option<Spanned<String>>,
    window: Option<Spanned<ByteSize>>,
}

/// A leg's settings with those that are without effect, because they are defaults for peers.
#[derive(Clone)]
struct LegDefaults {
    on: bool,
    turbo: Turbo,
    /// `None`: the default; `turbo` or the name of one of the kernel's controls.
    congestion: Option<String>,
    max_rate: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerSection {
    name: Spanned<String>,
    allow: Option<Spanned<OneOrMany>>,
    deny: Option<Spanned<OneOrMany>>,
    clients: Option<Spanned<OneOrMany>>,
    turbo: Option<bool>,
    congestion_control: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    max_rate: Option<Spanned<String>>,
    window: Option<Spanned<ByteSize>>,
}

/// The value of `peers` that stands for all members.
const ALL: &str = "*";

/// The name of `taut_pipe` in the configuration.
const TURBO: &str = "turbo";

/// The range of `pool_age`. The dialler replaces a connection before the acceptor's limit ends it.
const POOL_AGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// The range of windows that the kernel accepts both as congestion window and as buffer, within
/// reason.
pub(crate) const WINDOW: std::ops::RangeInclusive<u64> = (64 << 10)..=(256 << 20);

/// The smallest `window_budget`.
const LEAST_BUDGET: u64 = 16 << 20;

impl MeshSection {
    /// Returns whether the section makes the node listen.
    pub(super) fn listens(&self) -> bool {
        self.listen.is_some()
    }

    /// Returns the checked section; `at` is the offset where it begins.
    pub(super) fn check(self, at: usize) -> Result<MeshConfig, (usize, String)> {
        let Some(private_key_file) = self.private_key_file else {
            let message = "relay.mesh.private_key_file: a relay of a mesh proves its identity by a \
                           key; make one with `taut mesh keygen FILE` and name its file here";
            return Err((at, message.into()));
        };
        let Some(members_file) = self.members_file else {
            let message = "relay.mesh.members_file: a mesh needs the list of its relays and their \
                           public keys, or anybody could send sessions through this relay";
            return Err((at, message.into()));
        };
        let mut mesh = MeshConfig::new(private_key_file, members_file);
        let members_key_at = self.members_key.as_ref().map_or(at, |key| key.span().start);
        mesh.members_key = list(self.members_key, "members_key")?;
        if mesh.members_key.len() > MAX_MESH_KEYS {
            let message =
                format!("relay.mesh.members_key: at most {MAX_MESH_KEYS} keys are allowed");
            return Err((members_key_at, message));
        }
        if let Some(etcd) = self.etcd {
            let at = etcd.span().start;
            if mesh.members_key.is_empty() {
                let message = "relay.mesh.etcd: the list in etcd must be signed, or anyone who can write to etcd \
                               could add a relay; name the public key of the mesh in relay.mesh.members_key";
                return Err((at, message.into()));
            }
            mesh.etcd = Some(etcd.into_inner().check(at)?);
        }
        mesh.listen = list(self.listen, "listen")?;
        mesh.sources = sources(self.from, self.not_from, "relay.mesh")?;
        mesh.allow = list(self.allow, "allow")?;
        mesh.deny = list(self.deny, "deny")?;
        match self.peers {
            Some(peers) if peers.get_ref().is(ALL) => mesh.pass_to_all = true,
            peers => mesh.peers = list(peers, "peers")?,
        }
        mesh.measure = self.measure.unwrap_or(mesh.measure);
        mesh.routes_file = self.routes_file;
        let trusted: Vec<SourcePrefix> = list(self.trusted_networks, "trusted_networks")?;
        mesh.trusted_networks = trusted.into_iter().map(|p| p.0).collect();
        mesh.kernel_tls = self.kernel_tls.unwrap_or(mesh.kernel_tls);
        mesh.removed = self.removed_members.unwrap_or_default();
        mesh.upstream_congestion = self.upstream_congestion;
        let path = PathKeys {
            mark: self.upstream_mark,
            dscp: self.upstream_dscp,
            device: self.upstream_device,
            address: self.upstream_address,
        };
        mesh.path = path.check("relay.mesh")?;
        let keys = LegKeys {
            turbo: self.turbo,
            congestion_control: self.congestion_control,
            rate: self.rate,
            max_rate: self.max_rate,
            window: self.window,
        };
        let legs = keys.over(LegDefaults::default(), "relay.mesh")?;
        let leg = legs.clone().leg();
        (mesh.turbo, mesh.congestion, mesh.max_rate) = (leg.turbo, leg.congestion, leg.max_rate);
        mesh.window_budget = self.window_budget.map(budget_of).transpose()?;
        for (i, peer) in self.peer.into_iter().enumerate() {
            let at = peer.span().start;
            let rule = peer.into_inner().check(i, &legs)?;
            if mesh.rules.iter().any(|r| r.name == rule.name) {
                let message = format!("relay.mesh.peer[{i}].name: {} has rules already", rule.name);
                return Err((at, message));
            }
            mesh.rules.push(rule);
        }
        if let Some(limit) = self.hop_limit {
            if *limit.get_ref() == 0 {
                let message = "relay.mesh.hop_limit: must be at least 1".into();
                return Err((limit.span().start, message));
            }
            mesh.hop_limit = limit.into_inner();
        }

        mesh.borrow = super::transparent::borrow(self.source.as_ref(), "relay.mesh.source")?;
        if let Some(source) = self
            .source
            .filter(|_| mesh.borrow && !mesh.path.sources.addrs().is_empty())
        {
            let message = "relay.mesh.source: `\"client\"` excludes `upstream_address`; remove one";
            return Err((source.span().start, message.into()));
        }
        mesh.send_proxy = vec![
            (ProxyVersion::V2, addresses(self.send_proxy, "send_proxy")?),
            (
                ProxyVersion::V1,
                addresses(self.send_proxy_v1, "send_proxy_v1")?,
            ),
        ];

        let pool = &mut mesh.pool;
        let asked_min = self.pool_min;
        if let Some(max) = self.pool_max {
            pool.max = *max.get_ref();
            let min = asked_min.unwrap_or(0);
            if min > pool.max {
                let message = format!("relay.mesh.pool_max: must be at least pool_min ({min})");
                return Err((max.span().start, message));
            }
        }
        pool.min = asked_min.unwrap_or(pool.min).min(pool.max);
        set_time(
            &mut pool.max_age,
            self.pool_max_age,
            POOL_AGE,
            "mesh.pool_max_age",
        )?;
        set_time(
            &mut pool.patience,
            self.peer_patience,
            TIME,
            "mesh.peer_patience",
        )?;

        let inbound = &mut mesh.inbound;
        for (slot, value, name) in [
            (&mut inbound.max_unproven, self.max_unproven, "max_unproven"),
            (&mut inbound.max_ready, self.max_ready, "max_ready"),
        ] {
            let name = format!("mesh.{name}");
            *slot = at_least_one(value, &name)?.unwrap_or(*slot);
        }
        let rate = limit(self.max_connects_per_source, "mesh.max_connects_per_source")?;
        inbound.max_connects_per_source =
            rate.unwrap_or_else(|| InboundLimits::default_connects(inbound.max_unproven));
        inbound.max_sessions_per_member =
            at_least_one(self.max_sessions_per_member, "mesh.max_sessions_per_member")?;
        let times = &mut inbound.times;
        for (slot, value, name) in [
            (
                &mut times.handshake,
                self.handshake_timeout,
                "mesh.handshake_timeout",
            ),
            (&mut times.hello, self.hello_timeout, "mesh.hello_timeout"),
            (&mut times.idle, self.idle_timeout, "mesh.idle_timeout"),
        ] {
            set_time(slot, value, TIME, name)?;
        }

        Ok(mesh)
    }
}

// === impl LegDefaults ===

impl Default for LegDefaults {
    fn default() -> Self {
        Self {
            on: true,
            turbo: Turbo::default(),
            congestion: None,
            max_rate: None,
        }
    }
}

impl LegDefaults {
    fn leg(self) -> LegConfig {
        LegConfig {
            turbo: self.on.then_some(self.turbo),
            congestion: self.congestion.filter(|name| name != TURBO),
            max_rate: self.max_rate,
        }
    }
}

// === impl LegKeys ===

impl LegKeys {
    fn is_empty(&self) -> bool {
        self.turbo.is_none()
            && self.congestion_control.is_none()
            && self.rate.is_none()
            && self.max_rate.is_none()
            && self.window.is_none()
    }

    /// Returns the settings of `section`: these keys over `defaults`.
    fn over(self, defaults: LegDefaults, section: &str) -> Result<LegDefaults, (usize, String)> {
        let mut legs = defaults;
        legs.on = self.turbo.unwrap_or(legs.on);
        if let Some(rate) = self.rate {
            legs.turbo.rate = rate_of(&rate, &format!("{section}.rate"))?;
        }
        if let Some(rate) = self.max_rate {
            legs.max_rate = Some(rate_of(&rate, &format!("{section}.max_rate"))?);
        }
        if let Some(window) = self.window {
            let bytes = window.get_ref().as_u64();
            let fits = u32::try_from(bytes)
                .ok()
                .filter(|_| WINDOW.contains(&bytes));
            legs.turbo.window = Some(fits.ok_or_else(|| {
                let message = format!(
                    "{section}.window: `{}` is not from 64 KiB to 256 MiB",
                    window.get_ref()
                );
                (window.span().start, message)
            })?);
        }
        if let Some(name) = self.congestion_control {
            let at = name.span().start;
            let name = name.into_inner();
            if name == TURBO && !legs.on {
                let message = format!(
                    "{section}.congestion_control: `turbo` needs `turbo = true`; name another one, or remove it"
                );
                return Err((at, message));
            }
            legs.congestion = Some(name);
        }
        Ok(legs)
    }
}

fn budget_of(budget: Spanned<ByteSize>) -> Result<u64, (usize, String)> {
    let bytes = budget.get_ref().as_u64();
    if bytes < LEAST_BUDGET {
        let message = format!(
            "relay.mesh.window_budget: `{}` is less than 16 MiB, which a few connections need",
            budget.get_ref()
        );
        return Err((budget.span().start, message));
    }
    Ok(bytes)
}

fn rate_of(rate: &Spanned<String>, field: &str) -> Result<u64, (usize, String)> {
    bytes_per_second(rate.get_ref()).ok_or_else(|| {
        let message = format!(
            "{field}: `{}` is not a rate such as \"1gbit\" or \"200mbit\"",
            rate.get_ref()
        );
        (rate.span().start, message)
    })
}

impl PeerSection {
    fn check(self, i: usize, legs: &LegDefaults) -> Result<PeerRule, (usize, String)> {
        let field = |name: &str| format!("peer[{i}].{name}");
        let name = parse(self.name.get_ref(), self.name.span().start, || {
            format!("relay.mesh.{}", field("name"))
        })?;
        let allow = self.allow.map(|allow| list(Some(allow), &field("allow")));
        let keys = LegKeys {
            turbo: self.turbo,
            congestion_control: self.congestion_control,
            rate: self.rate,
            max_rate: self.max_rate,
            window: self.window,
        };
        let leg = match keys.is_empty() {
            true => None,
            false => Some(
                keys.over(legs.clone(), &format!("relay.mesh.peer[{i}]"))?
                    .leg(),
            ),
        };
        Ok(PeerRule {
            name,
            allow: allow.transpose()?,
            deny: list(self.deny, &field("deny"))?,
            clients: sources(self.clients, None, &format!("relay.mesh.peer[{i}].clients"))?,
            leg,
        })
    }
}

/// Parses a list of texts.
fn list<T>(field: Option<Spanned<OneOrMany>>, name: &str) -> Result<Vec<T>, (usize, String)>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    let Some(field) = field else {
        return Ok(Vec::new());
    };
    let at = field.span().start;
    let texts = field.into_inner().into_vec();
    let texts = texts.iter().enumerate();
    texts
        .map(|(i, text)| parse(text, at, || format!("relay.mesh.{name}[{i}]")))
        .collect()
}

/// Parses the destinations that begin with a PROXY protocol header. A client that asks for the address of a name
/// would get around a rule for the name, and could write a header of its own.
fn addresses(field: Option<Spanned<OneOrMany>>, name: &str) -> Result<Vec<Rule>, (usize, String)> {
    let at = field.as_ref().map_or(0, |field| field.span().start);
    let rules: Vec<Rule> = list(field, name)?;
    let is_name = |rule: &&Rule| matches!(rule.pattern, Pattern::Name(_) | Pattern::Below(_));
    match rules.iter().find(is_name) {
        Some(rule) => Err((
            at,
            format!(
                "relay.mesh.{name}: `{rule}` is a name, and a client that asks for its address would reach it \
                 without a header, or with one of its own; list the addresses, such as `192.0.2.7:443`"
            ),
        )),
        None => Ok(rules),
    }
}

/// Parses a rate as tc(8) does: a number and `kbit`, `mbit` or `gbit`.
fn bytes_per_second(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let (figure, bits) = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)]
        .iter()
        .find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)))?;
    let figure: f64 = figure.trim().parse().ok()?;
    let bytes = figure * bits / 8.0;
    // From 8 kbit/s to 1 Tbit/s.
    if !(1e3..=1.25e11).contains(&bytes) {
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range has been checked"
    )]
    Some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_tc_does() {
        assert_eq!(bytes_per_second("1gbit"), Some(125_000_000));
        assert_eq!(bytes_per_second("2.5 Gbit"), Some(312_500_000));
        assert_eq!(bytes_per_second("100mbit"), Some(12_500_000));
        for bad in [
            "", "1", "gbit", "-1gbit", "nangbit", "infgbit", "0mbit", "1e9gbit",
        ] {
            assert_eq!(bytes_per_second(bad), None, "{bad}");
        }
    }
}
