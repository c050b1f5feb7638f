//! The configuration file as written, and its conversion to a [`Config`].

mod forward;

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::Deserialize;
use taut_mesh::rows::MAX_WANTED;
use toml::Spanned;

use self::forward::{ForwardSection, Taken};
use super::field::{
    CountOrOff, OneOrMany, TIME, Time, TimeOrOff, at_least_one, limit, parse, set_time,
    set_time_or_off,
};
use super::{Config, Control, Forward, Handover, MeshConfig, ResolveRequired, mesh, transparent};
use crate::early_syn::Devices;
use crate::session_log;

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
    pub(super) fn check(mut self) -> Result<Config, (usize, String)> {
        let mut config = Config::new(Vec::with_capacity(self.forward.len()));
        self.set_node(&mut config)?;
        self.set_times(&mut config)?;
        self.set_data_path(&mut config)?;
        self.set_interception(&mut config)?;
        let mesh_at = self.set_mesh(&mut config)?;
        self.set_forwards(&mut config, mesh_at)?;
        Ok(config)
    }

    /// Sets the limits of the node, and what it offers besides forwarding.
    fn set_node(&mut self, config: &mut Config) -> Result<(), (usize, String)> {
        config.workers = at_least_one(self.workers.take(), "workers")?;
        config.max_sessions = at_least_one(self.max_sessions.take(), "max_sessions")?;
        config.max_sessions_per_source = limit(
            self.max_sessions_per_source.take(),
            "max_sessions_per_source",
        )?;
        if let Some(rate) = limit(
            self.max_connects_per_source.take(),
            "max_connects_per_source",
        )? {
            config.max_connects_per_source = rate;
        }
        config.session_log = self
            .session_log
            .take()
            .map(|path| match path.as_os_str() == "-" {
                true => session_log::Target::Stdout,
                false => session_log::Target::File(path),
            });
        if let Some(handover) = self.handover.take() {
            config.handover = match handover.as_os_str() == "off" {
                true => Handover::Off,
                false => Handover::At(handover),
            };
        }
        if let Some(control) = self.control.take() {
            config.control = match control.get_ref() {
                path if path.as_os_str() == "off" => Control::Off,
                path if path.is_absolute() => Control::At(path.clone()),
                _ => {
                    let message = "relay.control: write an absolute path, or \"off\"";
                    return Err((control.span().start, message.into()));
                }
            };
        }
        config.user = self.user.take();
        if let Some(metrics) = self.metrics.take() {
            let at = metrics.span().start;
            config.metrics = Some(parse(metrics.get_ref(), at, || "relay.metrics".to_owned())?);
        }
        if let Some(admin) = self.admin.take() {
            let at = admin.span().start;
            config.admin = Some(parse(admin.get_ref(), at, || "relay.admin".to_owned())?);
        }
        Ok(())
    }

    fn set_times(&mut self, config: &mut Config) -> Result<(), (usize, String)> {
        let t = &mut config.timeouts;
        set_time(
            &mut t.connect,
            self.connect_timeout.take(),
            TIME,
            "connect_timeout",
        )?;
        set_time(
            &mut t.half_closed,
            self.half_closed_timeout.take(),
            TIME,
            "half_closed_timeout",
        )?;
        set_time_or_off(&mut t.idle, self.idle_timeout.take(), "idle_timeout")?;
        let first_byte = self.first_byte_timeout.take();
        set_time_or_off(&mut t.first_byte, first_byte, "first_byte_timeout")?;
        set_time_or_off(&mut t.evict, self.evict_after.take(), "evict_after")?;
        set_time_or_off(&mut t.queue, self.queue_timeout.take(), "queue_timeout")?;
        set_time(
            &mut t.flush,
            self.flush_timeout.take(),
            TIME,
            "flush_timeout",
        )?;
        // A drain of 0 is allowed: the relay then stops at once.
        let drain = Duration::ZERO..=*TIME.end();
        set_time(
            &mut t.drain,
            self.drain_timeout.take(),
            drain,
            "drain_timeout",
        )?;
        set_time(
            &mut t.resolve,
            self.resolve_interval.take(),
            RESOLVE,
            "resolve_interval",
        )?;
        if let Some(required) = self.resolve_required.take() {
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
            set_time(
                &mut time,
                self.user_timeout.take(),
                USER_TIMEOUT,
                "user_timeout",
            )?;
            config.user_timeout = Some(time);
        }
        if let Some(idle) = self.keepalive_idle.take() {
            let seconds = idle.get_ref().0.as_secs();
            if !KEEPALIVE_IDLE.contains(&seconds) {
                let (least, most) = KEEPALIVE_IDLE.into_inner();
                let message = format!("relay.keepalive_idle: must be from {least} s to {most} s");
                return Err((idle.span().start, message));
            }
            config.keepalive.idle = Duration::from_secs(seconds);
        }
        Ok(())
    }

    fn set_data_path(&mut self, config: &mut Config) -> Result<(), (usize, String)> {
        let d = &mut config.data;
        if let Some(after) = self.splice_after.take() {
            d.splice_after = Some(after.as_u64());
        }
        if self.splice == Some(false) {
            d.splice_after = None;
        }
        if let Some(size) = self.pipe_size.take() {
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
        if let Some(max) = self.max_pipes.take() {
            d.max_pipes = max;
        }
        Ok(())
    }

    /// Sets early SYN, interception and the prefixes of NAT64.
    fn set_interception(&mut self, config: &mut Config) -> Result<(), (usize, String)> {
        if let Some(devices) = self.early_syn_devices.take() {
            config.early_syn.devices = Devices::Named(devices.into_vec());
        }
        if let Some(mark) = self.intercept_mark.take() {
            if *mark.get_ref() == 0 {
                let message = "relay.intercept_mark: must not be 0, which means no mark";
                return Err((mark.span().start, message.into()));
            }
            config.intercept.mark = mark.into_inner();
        }
        if let Some(method) = self.intercept_by.take() {
            config.intercept.method = Some(transparent::method(&method)?);
        }
        if let Some(prefixes) = self.nat64.take() {
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
        Ok(())
    }

    /// Sets the part in the mesh. Returns the offset where its section begins.
    fn set_mesh(&mut self, config: &mut Config) -> Result<usize, (usize, String)> {
        let Some(mesh) = self.mesh.take() else {
            return Ok(0);
        };
        let at = mesh.span().start;
        let mut mesh = mesh.into_inner();
        set_time(
            &mut config.timeouts.user,
            mesh.user_timeout.take(),
            USER_TIMEOUT,
            "mesh.user_timeout",
        )?;
        config.mesh = Some(mesh.check(at)?);
        Ok(at)
    }

    fn set_forwards(&mut self, config: &mut Config, mesh_at: usize) -> Result<(), (usize, String)> {
        let mut taken = Taken::default();
        if let Some(mesh) = &config.mesh {
            taken.listen(mesh_at, "relay.mesh", &mesh.listen)?;
        }
        for (i, forward) in std::mem::take(&mut self.forward).into_iter().enumerate() {
            let (at, name_at) = (forward.listen.span().start, forward.name.as_ref());
            let name_at = name_at.map_or(at, |name| name.span().start);
            let via_at = forward.via.as_ref().map(|via| via.span().start);
            if let (Some(at), None) = (via_at, &config.mesh) {
                let message = format!(
                    "relay.forward[{i}].via: there is no [relay.mesh] with the private key and the list of members"
                );
                return Err((at, message));
            }
            let forward = forward.check(i)?;
            if let (Some(at), Some(mesh)) = (via_at, &config.mesh) {
                check_via(&forward, i, mesh).map_err(|message| (at, message))?;
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
        Ok(())
    }
}

/// Checks the routes of forward `i` against the mesh.
///
/// # Errors
/// The description of a mistake.
fn check_via(forward: &Forward, i: usize, mesh: &MeshConfig) -> Result<(), String> {
    if forward.auto && !mesh.measure {
        return Err(format!(
            "relay.forward[{i}].via: automatic routes need measured paths; remove `measure = false` from \
             [relay.mesh], or name the relays"
        ));
    }
    let longest = forward.via.iter().map(Vec::len).max().unwrap_or_default();
    if longest > mesh.hop_limit.into() {
        return Err(format!(
            "relay.forward[{i}].via: a route has {longest} relays, and relay.mesh.hop_limit allows {}",
            mesh.hop_limit
        ));
    }
    Ok(())
}
