//! A forward as the file has it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;
use taut_mesh::members::MemberName;
use toml::Spanned;

use crate::net::addr::{Destination, Listen};

use super::{CHECK, MAX_NAME, MAX_ROUTES, MAX_SNI, MAX_TO, MAX_VIA, MESH};
use crate::config::field::{
    OneOrMany, TIME, Time, TimeOrOff, at_least_one, parse, set_time, set_time_or_off, sources,
};
use crate::config::path::PathKeys;
use crate::config::{Forward, ForwardTimeouts, HealthCheck, Named, ServerName, transparent};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ForwardSection {
    pub(super) name: Option<Spanned<String>>,
    // serde gives no span for the texts inside an untagged enum; the span of the list is used.
    pub(super) listen: Spanned<OneOrMany>,
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
    pub(super) via: Option<Spanned<OneOrMany>>,
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

impl ForwardSection {
    pub(super) fn check(self, i: usize) -> Result<Forward, (usize, String)> {
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
pub(super) struct Taken {
    names: Vec<(String, String)>,
    addrs: Vec<(SocketAddr, String)>,
}

// === impl Taken ===

impl Taken {
    /// Takes the name of a section, unless another section has it.
    pub(super) fn name(
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
    pub(super) fn listen(
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
