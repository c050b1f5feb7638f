//! The configuration file as written, and its conversion to a [`Config`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::Deserialize;
use serde::de::IgnoredAny;
use taut_mesh::members::MemberName;
use taut_mesh::rows::MAX_WANTED;
use toml::Spanned;

use super::field::{
    CountOrOff, OneOrMany, TIME, Time, TimeOrOff, at_least_one, limit, parse, set_time,
    set_time_or_off, sources,
};
use super::path::PathKeys;
use super::{
    Config, Control, Forward, ForwardTimeouts, Handover, HealthCheck, Named, ResolveRequired,
    ServerName, mesh, transparent,
};
use crate::early_syn::Devices;
use crate::net::addr::{Destination, Listen};
use crate::session_log;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) relay: Option<Section>,
    /// The sections of the other daemons, which the relay ignores.
    #[serde(rename = "snoop")]
    _snoop: Option<IgnoredAny>,
    #[serde(rename = "mesh")]
    _mesh: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    workers: Option<Spanned<u16>>,
    max_sessions: Option<Spanned<u32>>,
    max_sessions_per_source: Option<Spanned<CountOrOff>>,
    max_connects_per_source: Option<Spanned<CountOrOff>>,
    session_log: Option<PathBuf>,
    handover: Option<PathBuf>,
    control: Option<Spanned<PathBuf>>,
    user: Option<String>,
    metrics: Option<Spanned<String>>,
    admin: Option<Spanned<String>>,
    connect_timeout: Option<Spanned<Time>>,
    half_closed_timeout: Option<Spanned<Time>>,
    idle_timeout: Option<Spanned<TimeOrOff>>,
    first_byte_timeout: Option<Spanned<TimeOrOff>>,
    evict_after: Option<Spanned<TimeOrOff>>,
    queue_timeout: Option<Spanned<TimeOrOff>>,
    flush_timeout: Option<Spanned<Time>>,
    drain_timeout: Option<Spanned<Time>>,
    resolve_interval: Option<Spanned<Time>>,
    resolve_required: Option<Spanned<String>>,
    keepalive_idle: Option<Spanned<Time>>,
    user_timeout: Option<Spanned<Time>>,
    splice: Option<bool>,
    splice_after: Option<ByteSize>,
    pipe_size: Option<Spanned<ByteSize>>,
    max_pipes: Option<u32>,
    early_syn_devices: Option<OneOrMany>,
    intercept_mark: Option<Spanned<u32>>,
    intercept_by: Option<Spanned<String>>,
    nat64: Option<Spanned<OneOrMany>>,
    pub(super) mesh: Option<Spanned<mesh::MeshSection>>,
    #[serde(default)]
    pub(super) forward: Vec<ForwardSection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForwardSection {
    name: Option<Spanned<String>>,
    // serde gives no span for the texts inside an untagged enum; the span of the list is used.
    listen: Spanned<OneOrMany>,
    to: Option<Spanned<OneOrMany>>,
    sni: Option<Spanned<BTreeMap<String, Spanned<OneOrMany>>>>,
    check: Option<Spanned<Time>>,
    check_rise: Option<Spanned<u8>>,
    check_fall: Option<Spanned<u8>>,
    max_sessions: Option<Spanned<u32>>,
    connect_timeout: Option<Spanned<Time>>,
    half_closed_timeout: Option<Spanned<Time>>,
    idle_timeout: Option<Spanned<TimeOrOff>>,
    first_byte_timeout: Option<Spanned<TimeOrOff>>,
    evict_after: Option<Spanned<TimeOrOff>>,
    queue_timeout: Option<Spanned<TimeOrOff>>,
    transparent: Option<Spanned<bool>>,
    ports: Option<Spanned<Vec<u16>>>,
    destinations: Option<Spanned<OneOrMany>>,
    devices: Option<Spanned<OneOrMany>>,
    allow: Option<Spanned<OneOrMany>>,
    deny: Option<Spanned<OneOrMany>>,
    source: Option<Spanned<String>>,
    send_proxy: Option<Spanned<transparent::SendProxy>>,
    accept_proxy: Option<Spanned<bool>>,
    proxy_from: Option<Spanned<OneOrMany>>,
    via: Option<Spanned<OneOrMany>>,
    #[serde(default)]
    direct: bool,
    #[serde(default)]
    early_syn: bool,
    from: Option<Spanned<OneOrMany>>,
    not_from: Option<Spanned<OneOrMany>>,
    client_congestion: Option<String>,
    upstream_congestion: Option<String>,
    upstream_mark: Option<Spanned<u32>>,
    upstream_dscp: Option<Spanned<u8>>,
    upstream_device: Option<String>,
    upstream_address: Option<Spanned<OneOrMany>>,
}

/// The range of `resolve`. More frequent look-ups would burden the resolver to no purpose.
const RESOLVE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=*TIME.end();
/// The largest number of prefixes of a NAT64.
const MAX_NAT64: usize = 16;
/// The range of keepalive times that the kernel accepts, in whole seconds.
const KEEPALIVE_IDLE: std::ops::RangeInclusive<u64> = 1..=32_767;
/// The range of both `user_timeout`. The kernel counts it in milliseconds, in 31 bits.
const USER_TIMEOUT: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 86_400);
/// The maximum length of a forward's name.
const MAX_NAME: usize = 64;
/// The name that metrics and logs use for the mesh port.
const MESH: &str = "mesh";
/// The maximum number of relays in a route: those that fit into a hello, and the first.
const MAX_VIA: usize = 8;
/// The maximum number of destinations of a forward.
const MAX_TO: usize = 64;
/// The maximum number of server names of a forward.
const MAX_SNI: usize = 1024;
/// The range of `check`. More frequent checks would burden the destinations to no purpose.
const CHECK: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=*TIME.end();
/// The maximum number of routes of a forward.
const MAX_ROUTES: usize = 8;
/// The range of pipe sizes: from one page to fs.pipe-max-size on a stock kernel.
const PIPE_SIZE: std::ops::RangeInclusive<u64> = (4 << 10)..=(1 << 20);

impl Section {
    /// Returns the checked configuration, or the offset and the description of a mistake.
    pub(super) fn check(self) -> Result<Config, (usize, String)> {
        let mut config = Config::new(Vec::with_capacity(self.forward.len()));
        config.workers = at_least_one(self.workers, "workers")?;
        config.max_sessions = at_least_one(self.max_sessions, "max_sessions")?;
        config.max_sessions_per_source =
            limit(self.max_sessions_per_source, "max_sessions_per_source")?;
        if let Some(rate) = limit(self.max_connects_per_source, "max_connects_per_source")? {
            config.max_connects_per_source = rate;
        }
        config.session_log = self.session_log.map(|path| match path.as_os_str() == "-" {
            true => session_log::Target::Stdout,
            false => session_log::Target::File(path),
        });
        if let Some(handover) = self.handover {
            config.handover = match handover.as_os_str() == "off" {
                true => Handover::Off,
                false => Handover::At(handover),
            };
        }
        if let Some(control) = self.control {
            config.control = match control.get_ref() {
                path if path.as_os_str() == "off" => Control::Off,
                path if path.is_absolute() => Control::At(path.clone()),
                _ => {
                    let message = "relay.control: write an absolute path, or \"off\"";
                    return Err((control.span().start, message.into()));
                }
            };
        }
        config.user = self.user;
        if let Some(metrics) = self.metrics {
            let at = metrics.span().start;
            config.metrics = Some(parse(metrics.get_ref(), at, || "relay.metrics".to_owned())?);
        }
        if let Some(admin) = self.admin {
            let at = admin.span().start;
            config.admin = Some(parse(admin.get_ref(), at, || "relay.admin".to_owned())?);
        }

        let t = &mut config.timeouts;
        set_time(
            &mut t.connect,
            self.connect_timeout,
            TIME,
            "connect_timeout",
        )?;
        set_time(
            &mut t.half_closed,
            self.half_closed_timeout,
            TIME,
            "half_closed_timeout",
        )?;
        set_time_or_off(&mut t.idle, self.idle_timeout, "idle_timeout")?;
        let first_byte = self.first_byte_timeout;
        set_time_or_off(&mut t.first_byte, first_byte, "first_byte_timeout")?;
        set_time_or_off(&mut t.evict, self.evict_after, "evict_after")?;
        set_time_or_off(&mut t.queue, self.queue_timeout, "queue_timeout")?;
        set_time(&mut t.flush, self.flush_timeout, TIME, "flush_timeout")?;
        // A drain of 0 is allowed: the relay then stops at once.
        let drain = Duration::ZERO..=*TIME.end();
        set_time(&mut t.drain, self.drain_timeout, drain, "drain_timeout")?;
        set_time(
            &mut t.resolve,
            self.resolve_interval,
            RESOLVE,
            "resolve_interval",
        )?;
        if let Some(required) = self.resolve_required {
            config.resolve_required = match required.get_ref().as_str() {
                "any" => ResolveRequired::Any,
                "all" => ResolveRequired::All,
                "none" => ResolveRequired::None,
                _ => {
                    let message = "relay.resolve_required: write \"any\", \"all\" or \"none\"";
                    return Err((required.span().start, message.into()));
                }
            };
        }
        if self.user_timeout.is_some() {
            let mut time = Duration::ZERO;
            set_time(&mut time, self.user_timeout, USER_TIMEOUT, "user_timeout")?;
            config.user_timeout = Some(time);
        }
        if let Some(idle) = self.keepalive_idle {
            let seconds = idle.get_ref().0.as_secs();
            if !KEEPALIVE_IDLE.contains(&seconds) {
                let (least, most) = KEEPALIVE_IDLE.into_inner();
                let message = format!("relay.keepalive_idle: must be from {least} s to {most} s");
                return Err((idle.span().start, message));
            }
            config.keepalive.idle = Duration::from_secs(seconds);
        }

        let d = &mut config.data;
        if let Some(after) = self.splice_after {
            d.splice_after = Some(after.as_u64());
        }
        if self.splice == Some(false) {
            d.splice_after = None;
        }
        if let Some(size) = self.pipe_size {
            let bytes = size.get_ref().as_u64();
            if !PIPE_SIZE.contains(&bytes) {
                let message = format!(
                    "relay.pipe_size: `{}` is not from 4 KiB to 1 MiB",
                    size.get_ref()
                );
                return Err((size.span().start, message));
            }
            d.pipe_size = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        if let Some(max) = self.max_pipes {
            d.max_pipes = max;
        }

        if let Some(devices) = self.early_syn_devices {
            config.early_syn.devices = Devices::Named(devices.into_vec());
        }
        if let Some(mark) = self.intercept_mark {
            if *mark.get_ref() == 0 {
                let message = "relay.intercept_mark: must not be 0, which means no mark";
                return Err((mark.span().start, message.into()));
            }
            config.intercept.mark = mark.into_inner();
        }
        if let Some(method) = self.intercept_by {
            config.intercept.method = Some(transparent::method(&method)?);
        }
        if let Some(prefixes) = self.nat64 {
            let at = prefixes.span().start;
            let prefixes = prefixes.into_inner().into_vec();
            if prefixes.len() > MAX_NAT64 {
                let message = format!("relay.nat64: at most {MAX_NAT64} prefixes are allowed");
                return Err((at, message));
            }
            let prefixes = prefixes.iter().enumerate();
            let prefixes =
                prefixes.map(|(i, text)| parse(text, at, || format!("relay.nat64[{i}]")));
            config.nat64 = prefixes.collect::<Result<_, _>>()?;
        }
        let mesh_at = self.mesh.as_ref().map_or(0, |mesh| mesh.span().start);
        if let Some(mesh) = self.mesh {
            let mut mesh = mesh.into_inner();
            set_time(
                &mut config.timeouts.user,
                mesh.user_timeout.take(),
                USER_TIMEOUT,
                "mesh.user_timeout",
            )?;
            config.mesh = Some(mesh.check(mesh_at)?);
        }
        let mut taken = Taken::default();
        if let Some(mesh) = &config.mesh {
            taken.listen(mesh_at, "relay.mesh", &mesh.listen)?;
        }
        for (i, forward) in self.forward.into_iter().enumerate() {
            let (at, name_at) = (forward.listen.span().start, forward.name.as_ref());
            let name_at = name_at.map_or(at, |name| name.span().start);
            let via_at = forward.via.as_ref().map(|via| via.span().start);
            if let (Some(at), None) = (via_at, &config.mesh) {
                let message = format!(
                    "relay.forward[{i}].via: there is no [relay.mesh] with the private key and the \
                     list of members"
                );
                return Err((at, message));
            }
            let forward = forward.check(i)?;
            let measures = config.mesh.as_ref().is_none_or(|mesh| mesh.measure);
            if let Some(at) = via_at.filter(|_| forward.auto && !measures) {
                let message = format!(
                    "relay.forward[{i}].via: automatic routes need measured paths; remove `measure = false` \
                     from [relay.mesh], or name the relays"
                );
                return Err((at, message));
            }
            let hop_limit = config.mesh.as_ref().map_or(u8::MAX, |mesh| mesh.hop_limit);
            let longest = forward.via.iter().map(Vec::len).max().unwrap_or_default();
            if let Some(at) = via_at.filter(|_| longest > hop_limit.into()) {
                let message = format!(
                    "relay.forward[{i}].via: a route has {longest} relays, and relay.mesh.hop_limit allows {hop_limit}"
                );
                return Err((at, message));
            }
            let section = format!("relay.forward[{i}]");
            taken.name(name_at, &section, forward.name.as_deref())?;
            taken.listen(at, &section, &forward.listen)?;
            config.forwards.push(forward);
        }
        let autos = config.forwards.iter().filter(|forward| forward.auto);
        let autos = autos.flat_map(Forward::destinations).count();
        if autos > MAX_WANTED {
            let message = format!(
                "relay.forward: {autos} destinations have `via = \"auto\"`; at most {MAX_WANTED} are measured"
            );
            return Err((0, message));
        }
        Ok(config)
    }
}

impl ForwardSection {
    fn check(self, i: usize) -> Result<Forward, (usize, String)> {
        let to = match self.to {
            Some(to) => destinations(to, &format!("relay.forward[{i}].to"))?,
            None => Vec::new(),
        };
        let sni = match self.sni {
            Some(sni) => server_names(sni, i)?,
            None => Vec::new(),
        };
        let timeouts = ForwardTimeouts {
            connect: forward_time(self.connect_timeout, "connect_timeout", i)?,
            half_closed: forward_time(self.half_closed_timeout, "half_closed_timeout", i)?,
            idle: forward_time_or_off(self.idle_timeout, "idle_timeout", i)?,
            first_byte: forward_time_or_off(self.first_byte_timeout, "first_byte_timeout", i)?,
            evict: forward_time_or_off(self.evict_after, "evict_after", i)?,
            queue: forward_time_or_off(self.queue_timeout, "queue_timeout", i)?,
        };
        let check = health_check(self.check, self.check_rise, self.check_fall, i)?;
        let listen_at = self.listen.span().start;
        let listen = self.listen.into_inner().into_vec();
        if listen.is_empty() {
            let message = format!("relay.forward[{i}].listen: no address to listen on");
            return Err((listen_at, message));
        }
        let listen = listen
            .iter()
            .enumerate()
            .map(|(j, addr)| {
                parse(addr, listen_at, || {
                    format!("relay.forward[{i}].listen[{j}]")
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let auto = self.via.as_ref().is_some_and(|via| via.get_ref().is(AUTO));
        let via = match self.via {
            Some(via) if !auto => routes(via, i)?,
            _ => Vec::new(),
        };
        let identity = transparent::identity(
            i,
            self.source.as_ref(),
            self.send_proxy.as_ref(),
            self.accept_proxy.as_ref(),
            self.proxy_from.as_ref(),
        )?;
        let transparent = transparent::Written {
            transparent: self.transparent,
            ports: self.ports,
            destinations: self.destinations,
            devices: self.devices,
            allow: self.allow,
            deny: self.deny,
        };
        let path = PathKeys {
            mark: self.upstream_mark,
            dscp: self.upstream_dscp,
            device: self.upstream_device,
            address: self.upstream_address,
        };
        let forward = Forward {
            path: path.check(&format!("relay.forward[{i}]"))?,
            name: self.name.map(|name| forward_name(name, i)).transpose()?,
            transparent: transparent.check(i, listen_at, &listen)?,
            listen,
            to,
            sni,
            check,
            identity,
            auto,
            via,
            direct: self.direct,
            early_syn: self.early_syn,
            sources: sources(self.from, self.not_from, &format!("relay.forward[{i}]"))?,
            max_sessions: at_least_one(self.max_sessions, &format!("forward[{i}].max_sessions"))?,
            timeouts,
            client_congestion: self.client_congestion,
            upstream_congestion: self.upstream_congestion,
        };
        match forward.contradiction() {
            None => Ok(forward),
            Some(what) => Err((listen_at, format!("relay.forward[{i}]{what}"))),
        }
    }
}

/// Parses a time limit of `forward[i]`.
fn forward_time(
    value: Option<Spanned<Time>>,
    key: &str,
    i: usize,
) -> Result<Option<Duration>, (usize, String)> {
    if value.is_none() {
        return Ok(None);
    }
    let mut time = Duration::ZERO;
    set_time(&mut time, value, TIME, &format!("forward[{i}].{key}"))?;
    Ok(Some(time))
}

/// Parses a time limit of `forward[i]` that may be `"off"`.
fn forward_time_or_off(
    value: Option<Spanned<TimeOrOff>>,
    key: &str,
    i: usize,
) -> Result<Option<Option<Duration>>, (usize, String)> {
    if value.is_none() {
        return Ok(None);
    }
    let mut time = None;
    set_time_or_off(&mut time, value, &format!("forward[{i}].{key}"))?;
    Ok(Some(time))
}

/// Parses `forward[i].check`, `check_rise` and `check_fall`.
fn health_check(
    interval: Option<Spanned<Time>>,
    rise: Option<Spanned<u8>>,
    fall: Option<Spanned<u8>>,
    i: usize,
) -> Result<Option<HealthCheck>, (usize, String)> {
    let counts = [("check_rise", &rise), ("check_fall", &fall)];
    for (key, count) in counts {
        let Some(count) = count else { continue };
        let what = match (&interval, *count.get_ref()) {
            (None, _) => "needs `check`, the interval of the health checks",
            (_, 0) => "must be at least 1",
            _ => continue,
        };
        return Err((
            count.span().start,
            format!("relay.forward[{i}].{key}: {what}"),
        ));
    }
    if interval.is_none() {
        return Ok(None);
    }
    let mut time = Duration::ZERO;
    set_time(&mut time, interval, CHECK, &format!("forward[{i}].check"))?;
    let default = HealthCheck::every(time);
    Ok(Some(HealthCheck {
        rise: rise.map_or(default.rise, Spanned::into_inner),
        fall: fall.map_or(default.fall, Spanned::into_inner),
        ..default
    }))
}

/// Parses the destinations of a forward. `field` is their key.
fn destinations(to: Spanned<OneOrMany>, field: &str) -> Result<Vec<Destination>, (usize, String)> {
    let at = to.span().start;
    let texts = match to.into_inner() {
        OneOrMany::One(one) => return Ok(vec![parse(&one, at, || field.to_owned())?]),
        OneOrMany::Many(many) => many,
    };
    if texts.is_empty() || texts.len() > MAX_TO {
        return Err((
            at,
            format!("{field}: must name from 1 to {MAX_TO} destinations"),
        ));
    }
    let texts = texts.iter().enumerate();
    texts
        .map(|(j, text)| parse(text, at, || format!("{field}[{j}]")))
        .collect()
}

/// Parses the server names of `forward[i].sni` and their destinations.
fn server_names(
    sni: Spanned<BTreeMap<String, Spanned<OneOrMany>>>,
    i: usize,
) -> Result<Vec<Named>, (usize, String)> {
    let at = sni.span().start;
    let sni = sni.into_inner();
    if sni.is_empty() || sni.len() > MAX_SNI {
        let message = format!("relay.forward[{i}].sni: must name from 1 to {MAX_SNI} servers");
        return Err((at, message));
    }
    let mut names: Vec<Named> = Vec::with_capacity(sni.len());
    for (text, to) in sni {
        let field = format!("relay.forward[{i}].sni.\"{text}\"");
        let at = to.span().start;
        let name: ServerName = parse(&text, at, || format!("relay.forward[{i}].sni"))?;
        if names.iter().any(|(known, _)| *known == name) {
            return Err((at, format!("{field}: the name is listed twice")));
        }
        names.push((name, destinations(to, &field)?));
    }
    Ok(names)
}

/// The names and addresses that the sections so far have taken.
#[derive(Default)]
struct Taken {
    names: Vec<(String, String)>,
    addrs: Vec<(SocketAddr, String)>,
}

// === impl Taken ===

impl Taken {
    /// Takes the name of a section, unless another section has it.
    fn name(
        &mut self,
        at: usize,
        section: &str,
        name: Option<&str>,
    ) -> Result<(), (usize, String)> {
        let Some(name) = name else { return Ok(()) };
        if let Some((_, other)) = self.names.iter().find(|(taken, _)| taken == name) {
            let message = format!("{section}.name: `{name}` is the name of {other} already");
            return Err((at, message));
        }
        self.names.push((name.to_owned(), section.to_owned()));
        Ok(())
    }

    /// Takes the addresses of a section, unless another one listens there. Port 0 is a new port each
    /// time.
    fn listen(
        &mut self,
        at: usize,
        section: &str,
        listen: &[Listen],
    ) -> Result<(), (usize, String)> {
        for (j, listen) in listen.iter().enumerate() {
            for addr in listen.addrs().into_iter().filter(|a| a.port() != 0) {
                let field = format!("{section}.listen[{j}]");
                if let Some((_, other)) = self.addrs.iter().find(|(taken, _)| *taken == addr) {
                    let message = format!(
                        "{field}: {addr} is in {other} already; an address can have one forward"
                    );
                    return Err((at, message));
                }
                self.addrs.push((addr, field));
            }
        }
        Ok(())
    }
}

/// Checks the name of `forward[i]`. It is a label in metrics and an argument of commands.
fn forward_name(name: Spanned<String>, i: usize) -> Result<String, (usize, String)> {
    let text = name.get_ref();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(is_plain) || text == MESH {
        let message = format!(
            "relay.forward[{i}].name: `{}` is not a name of 1 to {MAX_NAME} letters, digits, `-`, `_` \
             and `.`, other than `{MESH}`",
            text.escape_default()
        );
        return Err((name.span().start, message));
    }
    Ok(name.into_inner())
}

/// The value of `via` for routes by measurement.
const AUTO: &str = "auto";

/// Parses the routes of `forward[i].via`: alternatives in order, each the names of its relays.
fn routes(via: Spanned<OneOrMany>, i: usize) -> Result<Vec<Vec<MemberName>>, (usize, String)> {
    let at = via.span().start;
    let texts = via.into_inner().into_vec();
    if texts.is_empty() || texts.len() > MAX_ROUTES {
        let message = format!("relay.forward[{i}].via: must name from 1 to {MAX_ROUTES} routes");
        return Err((at, message));
    }
    let route = |(j, text): (usize, &String)| {
        let field = || format!("relay.forward[{i}].via[{j}]");
        let relays: Vec<&str> = text.split('>').map(str::trim).collect();
        if relays.len() > MAX_VIA {
            let message = format!("{}: a route has at most {MAX_VIA} relays", field());
            return Err((at, message));
        }
        let twice = (1..relays.len()).find(|k| relays[..*k].contains(&relays[*k]));
        if let Some(k) = twice {
            let name = relays[k].escape_default();
            let message = format!("{}: the route passes `{name}` twice", field());
            return Err((at, message));
        }
        let relays = relays.into_iter().map(|name| parse(name, at, field));
        relays.collect()
    };
    let routes = texts.iter().enumerate().map(route);
    let routes: Vec<Vec<MemberName>> = routes.collect::<Result<_, _>>()?;
    match (1..routes.len()).find(|j| routes[..*j].contains(&routes[*j])) {
        Some(j) => Err((
            at,
            format!("relay.forward[{i}].via[{j}]: this route is there already"),
        )),
        None => Ok(routes),
    }
}
