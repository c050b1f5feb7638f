//! The keys of `[relay.mesh]` as the file has them.

use std::path::PathBuf;

use bytesize::ByteSize;
use serde::Deserialize;
use taut_mesh::members::MAX_MESH_KEYS;
use toml::Spanned;

use crate::access::identity::ProxyVersion;
use crate::access::{Pattern, Rule, SourcePrefix};

use super::{
    ALL, LEAST_BUDGET, LegConfig, MeshConfig, POOL_AGE, PeerRule, Removed, TURBO, Turbo, WINDOW,
};
use crate::config::etcd::EtcdSection;
use crate::config::field::{
    CountOrOff, OneOrMany, TIME, Time, at_least_one, limit, parse, set_time, sources,
};
use crate::config::limits::InboundLimits;
use crate::config::path::PathKeys;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct MeshSection {
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
    pub(in crate::config) user_timeout: Option<Spanned<Time>>,
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

impl MeshSection {
    /// Returns whether the section makes the node listen.
    pub(in crate::config) fn listens(&self) -> bool {
        self.listen.is_some()
    }

    /// Returns the checked section; `at` is the offset where it begins.
    pub(in crate::config) fn check(mut self, at: usize) -> Result<MeshConfig, (usize, String)> {
        let Some(private_key_file) = self.private_key_file.take() else {
            let message = "relay.mesh.private_key_file: a relay of a mesh proves its identity by a \
                           key; make one with `taut mesh keygen FILE` and name its file here";
            return Err((at, message.into()));
        };
        let Some(members_file) = self.members_file.take() else {
            let message = "relay.mesh.members_file: a mesh needs the list of its relays and their \
                           public keys, or anybody could send sessions through this relay";
            return Err((at, message.into()));
        };
        let mut mesh = MeshConfig::new(private_key_file, members_file);
        self.set_members(&mut mesh, at)?;
        self.set_access(&mut mesh)?;
        self.set_legs(&mut mesh)?;
        self.set_upstream(&mut mesh)?;
        self.set_pool(&mut mesh)?;
        self.set_inbound(&mut mesh)?;
        Ok(mesh)
    }

    /// Sets where the list of members comes from, and what becomes of former ones.
    fn set_members(&mut self, mesh: &mut MeshConfig, at: usize) -> Result<(), (usize, String)> {
        let members_key_at = self.members_key.as_ref().map_or(at, |key| key.span().start);
        mesh.members_key = list(self.members_key.take(), "members_key")?;
        if mesh.members_key.len() > MAX_MESH_KEYS {
            let message =
                format!("relay.mesh.members_key: at most {MAX_MESH_KEYS} keys are allowed");
            return Err((members_key_at, message));
        }
        if let Some(etcd) = self.etcd.take() {
            let at = etcd.span().start;
            if mesh.members_key.is_empty() {
                let message = "relay.mesh.etcd: the list in etcd must be signed, or anyone who can write to etcd \
                               could add a relay; name the public key of the mesh in relay.mesh.members_key";
                return Err((at, message.into()));
            }
            mesh.etcd = Some(etcd.into_inner().check(at)?);
        }
        mesh.removed = self.removed_members.unwrap_or_default();
        Ok(())
    }

    /// Sets who may connect, where sessions may go, and what is measured.
    fn set_access(&mut self, mesh: &mut MeshConfig) -> Result<(), (usize, String)> {
        mesh.listen = list(self.listen.take(), "listen")?;
        mesh.sources = sources(self.from.take(), self.not_from.take(), "relay.mesh")?;
        mesh.allow = list(self.allow.take(), "allow")?;
        mesh.deny = list(self.deny.take(), "deny")?;
        match self.peers.take() {
            Some(peers) if peers.get_ref().is(ALL) => mesh.pass_to_all = true,
            peers => mesh.peers = list(peers, "peers")?,
        }
        mesh.measure = self.measure.unwrap_or(mesh.measure);
        mesh.routes_file = self.routes_file.take();
        let trusted: Vec<SourcePrefix> = list(self.trusted_networks.take(), "trusted_networks")?;
        mesh.trusted_networks = trusted.into_iter().map(|p| p.0).collect();
        mesh.kernel_tls = self.kernel_tls.unwrap_or(mesh.kernel_tls);
        Ok(())
    }

    /// Sets how sessions from the mesh reach their destinations.
    fn set_upstream(&mut self, mesh: &mut MeshConfig) -> Result<(), (usize, String)> {
        mesh.upstream_congestion = self.upstream_congestion.take();
        let path = PathKeys {
            mark: self.upstream_mark.take(),
            dscp: self.upstream_dscp.take(),
            device: self.upstream_device.take(),
            address: self.upstream_address.take(),
        };
        mesh.path = path.check("relay.mesh")?;
        mesh.borrow =
            crate::config::transparent::borrow(self.source.as_ref(), "relay.mesh.source")?;
        if let Some(source) = self
            .source
            .take()
            .filter(|_| mesh.borrow && !mesh.path.sources.addrs().is_empty())
        {
            let message = "relay.mesh.source: `\"client\"` excludes `upstream_address`; remove one";
            return Err((source.span().start, message.into()));
        }
        mesh.send_proxy = vec![
            (
                ProxyVersion::V2,
                addresses(self.send_proxy.take(), "send_proxy")?,
            ),
            (
                ProxyVersion::V1,
                addresses(self.send_proxy_v1.take(), "send_proxy_v1")?,
            ),
        ];
        Ok(())
    }

    /// Sets the legs between relays, the rules for single peers, and how many relays a route has.
    fn set_legs(&mut self, mesh: &mut MeshConfig) -> Result<(), (usize, String)> {
        let keys = LegKeys {
            turbo: self.turbo,
            congestion_control: self.congestion_control.take(),
            rate: self.rate.take(),
            max_rate: self.max_rate.take(),
            window: self.window.take(),
        };
        let legs = keys.over(LegDefaults::default(), "relay.mesh")?;
        let leg = legs.clone().leg();
        (mesh.turbo, mesh.congestion, mesh.max_rate) = (leg.turbo, leg.congestion, leg.max_rate);
        mesh.window_budget = self.window_budget.take().map(budget_of).transpose()?;
        for (i, peer) in std::mem::take(&mut self.peer).into_iter().enumerate() {
            let at = peer.span().start;
            let rule = peer.into_inner().check(i, &legs)?;
            if mesh.rules.iter().any(|r| r.name == rule.name) {
                let message = format!("relay.mesh.peer[{i}].name: {} has rules already", rule.name);
                return Err((at, message));
            }
            mesh.rules.push(rule);
        }
        if let Some(limit) = self.hop_limit.take() {
            if *limit.get_ref() == 0 {
                let message = "relay.mesh.hop_limit: must be at least 1".into();
                return Err((limit.span().start, message));
            }
            mesh.hop_limit = limit.into_inner();
        }
        Ok(())
    }

    fn set_pool(&mut self, mesh: &mut MeshConfig) -> Result<(), (usize, String)> {
        let pool = &mut mesh.pool;
        let asked_min = self.pool_min;
        if let Some(max) = self.pool_max.take() {
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
            self.pool_max_age.take(),
            POOL_AGE,
            "mesh.pool_max_age",
        )?;
        set_time(
            &mut pool.patience,
            self.peer_patience.take(),
            TIME,
            "mesh.peer_patience",
        )?;
        Ok(())
    }

    fn set_inbound(&mut self, mesh: &mut MeshConfig) -> Result<(), (usize, String)> {
        let inbound = &mut mesh.inbound;
        for (slot, value, name) in [
            (
                &mut inbound.max_unproven,
                self.max_unproven.take(),
                "max_unproven",
            ),
            (&mut inbound.max_ready, self.max_ready.take(), "max_ready"),
        ] {
            let name = format!("mesh.{name}");
            *slot = at_least_one(value, &name)?.unwrap_or(*slot);
        }
        let rate = limit(
            self.max_connects_per_source.take(),
            "mesh.max_connects_per_source",
        )?;
        inbound.max_connects_per_source =
            rate.unwrap_or_else(|| InboundLimits::default_connects(inbound.max_unproven));
        inbound.max_sessions_per_member = at_least_one(
            self.max_sessions_per_member.take(),
            "mesh.max_sessions_per_member",
        )?;
        let times = &mut inbound.times;
        for (slot, value, name) in [
            (
                &mut times.handshake,
                self.handshake_timeout.take(),
                "mesh.handshake_timeout",
            ),
            (
                &mut times.hello,
                self.hello_timeout.take(),
                "mesh.hello_timeout",
            ),
            (
                &mut times.idle,
                self.idle_timeout.take(),
                "mesh.idle_timeout",
            ),
        ] {
            set_time(slot, value, TIME, name)?;
        }
        Ok(())
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
    pub(in crate::config) fn check(
        self,
        i: usize,
        legs: &LegDefaults,
    ) -> Result<PeerRule, (usize, String)> {
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
