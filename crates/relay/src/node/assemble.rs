//! Turns a configuration into the resources and the setup of the workers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use taut_mesh::members::{Member, MemberName, Members};
use taut_mesh::plan::{LegSettings, Options};
use taut_sys::Errno;
use taut_sys::privileges::{self, Capability};
use taut_sys::socket::{Keepalive, LegOptions, PathOptions, is_local};

use super::StartError;
use super::bind::{assign, bind};
use super::holdings::Holdings;
use super::kernel_tls::TlsPlace;
use super::look_ups::{named_relays, resolve_all};
use super::loops::find_loop;
use super::mesh::Identity;
use super::next_hop::{Locality, access, next_hop, original, read_own, send_proxy};
use crate::config::{Config, Forward, LegConfig, MeshConfig, Timeouts};
use crate::counters::forward::MESH;
use crate::counters::registry::Registry;
use crate::handover::Passed;
use crate::net::addr::names_of;
use crate::net::targets::Targets;
use crate::route::by_name::ByName;
use crate::route::listener::{NewListener, Purpose};
use crate::route::peer::Peer;
use crate::route::table::{Mesh, PassesOn, Route, Setup};
use crate::turbo::TurboStart;

/// The longest silence of a leg between relays before the first keepalive probe.
const MESH_KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

/// A configuration whose resources have all been acquired.
pub(super) struct Assembly {
    pub(super) setup: Setup,
    /// The listeners of each worker.
    pub(super) listeners: Vec<Vec<NewListener>>,
    pub(super) holdings: Holdings,
}

/// How the names of relays in a configuration are treated.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Each must be that of a member. Otherwise, those of relays that are no longer members are left out.
    pub(super) checked: bool,
    /// Relays that are left out.
    pub(super) drained: BTreeSet<MemberName>,
    /// The members; `None` to read their list.
    pub(super) members: Option<Arc<Members>>,
}

impl Names {
    /// Every relay must be a member, and none is left out.
    pub(super) fn checked() -> Self {
        Self {
            checked: true,
            drained: BTreeSet::new(),
            members: None,
        }
    }
}

/// Acquires the resources of `config` that `before` does not hold. Dropping the result releases
/// them.
pub(super) fn assemble(
    config: &Config,
    workers: usize,
    turbo: &Arc<TurboStart>,
    before: &Holdings,
    registry: &Registry,
    inherited: &mut Vec<Passed>,
    names: &Names,
) -> Result<Assembly, StartError> {
    let identity = match &config.mesh {
        Some(mesh) => {
            let place = TlsPlace::of(config);
            Some(match &names.members {
                None => Identity::load(mesh, &place)?,
                Some(members) => Identity::with_members(mesh, &place, members.clone())?,
            })
        }
        None => None,
    };
    if let (Some(identity), Some(mesh), Some(running)) = (&identity, &config.mesh, before.mesh()) {
        identity.replaces(&running.local.members, mesh)?;
    }
    let mut next = before.successor();
    read_own(&next.own).map_err(StartError::Addresses)?;
    let relays = match &identity {
        Some(identity) => match names.checked {
            true => identity.dialled(config)?,
            false => identity.still_dialled(config),
        },
        None => Vec::new(),
    };
    let relays = relays.into_iter();
    let relays = relays.filter(|relay| !names.drained.contains(&relay.name));
    let relays = relays.collect();
    let needed = match names.checked {
        true => named_relays(config),
        // A list of members is adopted as it is: a name must not keep a relay from being revoked.
        false => Vec::new(),
    };
    let resolved = resolve_all(config, relays, &needed, names.checked, before)?;
    let legs = legs_of(config, names.checked)?;
    let mesh_legs = mesh_legs_of(config, turbo)?;
    let peers = match &identity {
        Some(identity) => peers_of(
            resolved.relays,
            identity,
            &mesh_legs,
            &named_relays(config),
            before,
            registry,
            &mut next,
        ),
        None => Vec::new(),
    };
    let mut listeners: Vec<Vec<NewListener>> = (0..workers).map(|_| Vec::new()).collect();
    let mut routes = Vec::new();
    for ((forward, mut targets), legs) in config.forwards.iter().zip(resolved.forwards).zip(legs) {
        let (client, upstream) = legs;
        let options = Arc::new(upstream.clone());
        let transparent = forward.transparent.is_some();
        let (listen, opened) = bind(
            &forward.listen,
            workers,
            &client,
            before,
            &mut next,
            transparent,
            inherited,
        )?;
        let own = targets.drain(..forward.to.len().min(targets.len()));
        let own = own.collect();
        let main = match &forward.transparent {
            None => next_hop(forward, &forward.to, own, &options, &peers, before),
            Some(transparent) => original(
                forward,
                transparent,
                &listen,
                upstream,
                &peers,
                &Locality {
                    own: &next.own,
                    relays: &next.relays,
                    nat64: &config.nat64,
                },
            )?,
        };
        let name = match &forward.name {
            Some(name) => name.clone(),
            None => listen.first().map_or_else(String::new, |l| l.0.to_string()),
        };
        let stats = registry.forward(&name);
        let route = |destination: Arc<str>, next_hop, by_name| Route {
            id: 0,
            stats: stats.clone(),
            destination,
            listen: listen.clone(),
            early_syn: forward.early_syn,
            sources: forward.sources.clone(),
            next_hop,
            by_name,
            identity: forward.identity.clone(),
            check: forward.check,
            max_sessions: forward.max_sessions,
            timeouts: forward.timeouts,
        };
        let named: Vec<_> = forward
            .sni
            .iter()
            .map(|(name, to)| {
                let own = targets.drain(..to.len().min(targets.len()));
                let next_hop = next_hop(forward, to, own.collect(), &options, &peers, before);
                let route = route(names_of(to).into(), next_hop, None);
                (name.clone(), Arc::new(route))
            })
            .collect();
        let by_name = (!named.is_empty()).then(|| ByName::new(named, !forward.to.is_empty()));
        let destination = match &forward.to[..] {
            [] if by_name.is_some() => "by server name".into(),
            [] => "where clients want to go".into(),
            to => names_of(to).into(),
        };
        let route = route(destination, main, by_name);
        let route = before.route(route, &mut next);
        let purpose = Purpose::Forward(route.clone());
        assign(&mut listeners, opened, &purpose, &client);
        routes.push(route);
    }
    let mesh = match (&config.mesh, identity) {
        (Some(mesh), Some(identity)) => {
            let options = TurboStart::listening(&mesh_legs.default, &mesh.leg());
            let (listen, opened) = bind(
                &mesh.listen,
                workers,
                &options,
                before,
                &mut next,
                false,
                inherited,
            )?;
            assign(&mut listeners, opened, &Purpose::Mesh, &options);
            let locality = Locality {
                own: &next.own,
                relays: &next.relays,
                nat64: &config.nat64,
            };
            let (access, rules) = access(mesh, &locality)?;
            let passes = match mesh.pass_to_all {
                true => PassesOn::All,
                false => PassesOn::To(named_relays(config)),
            };
            Some(Arc::new(Mesh {
                local: identity.local,
                key: identity.key,
                measure: mesh.measure,
                passes,
                plan: Options {
                    legs: planned_leg(&mesh.leg()),
                    ..Options::default()
                },
                planned_legs: planned_legs(mesh),
                routes_file: mesh.routes_file.clone(),
                trusted: mesh.trusted_networks.clone(),
                hop_limit: mesh.hop_limit,
                pool: mesh.pool,
                inbound: mesh.inbound,
                sources: mesh.sources.clone(),
                access,
                rules,
                removed: mesh.removed,
                upstream: Arc::new(mesh_upstream(config, mesh, names.checked)?),
                turbo: turbo.clone(),
                sizes_window: mesh_legs.sizes_window,
                legs: mesh_legs.of_members,
                borrow: mesh.borrow,
                send_proxy: send_proxy(mesh)?,
                listen,
                peers,
                stats: registry.forward(MESH),
            }))
        }
        _ => None,
    };
    if let Some((i, to)) = find_loop(&routes)
        // A transparent forward has no destination of its own to compare.
        && config.forwards[i].destinations().next().is_some()
    {
        return Err(StartError::looped(&to));
    }
    let setup = Setup {
        timeouts: Arc::new(config.timeouts),
        timeouts_of_mesh: Arc::new(Timeouts {
            first_byte: None,
            ..config.timeouts
        }),
        routes,
        mesh,
    };
    Ok(Assembly {
        setup,
        listeners,
        holdings: next,
    })
}

/// Returns the default socket options of a leg outside the mesh.
fn plain_leg(config: &Config) -> LegOptions {
    LegOptions {
        user_timeout: config.user_timeout,
        ..LegOptions::new(config.keepalive)
    }
}

/// Returns the socket options of a leg outside the mesh with this congestion control, after checking that
/// the kernel accepts them.
fn outer_leg(config: &Config, congestion: Option<&String>) -> Result<LegOptions, StartError> {
    let options = LegOptions {
        congestion: congestion.cloned(),
        ..plain_leg(config)
    };
    accepted(&options)?;
    Ok(options)
}

/// Checks that the kernel accepts the congestion control of a leg.
fn accepted(options: &LegOptions) -> Result<(), StartError> {
    options.probe().map_err(|e| StartError::Congestion {
        name: options.congestion.clone().unwrap_or_default(),
        source: e.into(),
    })
}

/// The socket options of legs between relays.
struct MeshLegs {
    default: LegOptions,
    /// Those of relays with settings of their own.
    of_members: HashMap<MemberName, LegOptions>,
    /// Whether windows follow what the peers need.
    sizes_window: bool,
    /// The same, of relays with settings of their own.
    members_size_window: HashMap<MemberName, bool>,
}

/// Returns the socket options of legs between relays, after checking that the kernel accepts them.
fn mesh_legs_of(config: &Config, turbo: &TurboStart) -> Result<MeshLegs, StartError> {
    let Some(mesh) = &config.mesh else {
        return Ok(MeshLegs {
            default: LegOptions::new(config.keepalive),
            of_members: HashMap::new(),
            sizes_window: false,
            members_size_window: HashMap::new(),
        });
    };
    turbo.prepare(mesh);
    let options = |leg: &LegConfig| {
        let options = turbo.options(mesh_keepalive(config), leg);
        accepted(&options)?;
        Ok::<_, StartError>(options)
    };
    let of_members =
        own_legs(mesh).map(|(name, leg)| options(leg).map(|options| (name.clone(), options)));
    Ok(MeshLegs {
        of_members: of_members.collect::<Result<_, _>>()?,
        default: options(&mesh.leg())?,
        sizes_window: mesh.leg().sizes_window(),
        members_size_window: own_legs(mesh)
            .map(|(name, leg)| (name.clone(), leg.sizes_window()))
            .collect(),
    })
}

/// Returns the keepalive parameters of legs between relays. A firewall on the path may have forgotten a leg that
/// carries no session, and the first session on it would pay for that.
fn mesh_keepalive(config: &Config) -> Keepalive {
    const PROBES: u32 = 3;
    // The range of TCP_KEEPINTVL.
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(32_767));
    let interval = (config.timeouts.user / PROBES).clamp(least, most);
    Keepalive {
        idle: config.keepalive.idle.min(MESH_KEEPALIVE_IDLE),
        interval,
        probes: PROBES,
    }
}

/// Returns the legs to relays with settings of their own.
fn own_legs(mesh: &MeshConfig) -> impl Iterator<Item = (&MemberName, &LegConfig)> {
    let rules = mesh.rules.iter();
    rules.filter_map(|rule| Some((&rule.name, rule.leg.as_ref()?)))
}

/// Returns how the planner sees a leg.
fn planned_leg(leg: &LegConfig) -> LegSettings {
    let rate = leg.turbo.map_or(0, |turbo| turbo.rate);
    LegSettings {
        turbo: leg.turbo.is_some(),
        rate: rate.min(leg.max_rate.unwrap_or(rate)).saturating_mul(8),
        window: leg.turbo.map(|turbo| turbo.initial_window().into()),
    }
}

/// Returns how the planner sees the legs to members with settings of their own.
fn planned_legs(mesh: &MeshConfig) -> HashMap<MemberName, LegSettings> {
    let own = mesh.rules.iter().filter(|rule| rule.leg.is_some());
    own.map(|rule| (rule.name.clone(), planned_leg(&mesh.leg_to(&rule.name))))
        .collect()
}

/// Returns the socket options of legs to destinations of sessions from the mesh. `checked`: after checking that the
/// kernel accepts them.
fn mesh_upstream(
    config: &Config,
    mesh: &MeshConfig,
    checked: bool,
) -> Result<LegOptions, StartError> {
    if checked {
        check_path("relay.mesh", &mesh.path, &plain_leg(config))?;
    }
    Ok(LegOptions {
        path: mesh.path.clone(),
        ..outer_leg(config, mesh.upstream_congestion.as_ref())?
    })
}

/// Checks that the kernel accepts the legs of `[relay.mesh]`.
pub(super) fn check_mesh_legs(config: &Config) -> Result<(), StartError> {
    let Some(mesh) = &config.mesh else {
        return Ok(());
    };
    mesh_upstream(config, mesh, true)?;
    let named = mesh.legs().filter_map(|leg| leg.congestion);
    named
        .into_iter()
        .try_for_each(|name| outer_leg(config, Some(&name)).map(drop))
}

/// Returns the socket options of each forward's legs. `checked`: after checking that the kernel accepts them.
pub(super) fn legs_of(
    config: &Config,
    checked: bool,
) -> Result<Vec<(LegOptions, LegOptions)>, StartError> {
    let leg = |congestion: &Option<String>| outer_leg(config, congestion.as_ref());
    let legs = |f: &Forward| {
        let upstream = LegOptions {
            path: f.path.clone(),
            ..leg(&f.upstream_congestion)?
        };
        if checked {
            check_path("relay.forward", &f.path, &plain_leg(config))?;
        }
        Ok((leg(&f.client_congestion)?, upstream))
    };
    config.forwards.iter().map(legs).collect()
}

/// Checks that the kernel accepts the way in which packets to a destination are sent.
fn check_path(
    section: &'static str,
    path: &PathOptions,
    plain: &LegOptions,
) -> Result<(), StartError> {
    let refused = |what, hint: fn(&std::io::Error) -> String| {
        move |source: Errno| {
            let source = source.into();
            let hint = hint(&source);
            StartError::Path {
                section,
                what,
                source,
                hint,
            }
        }
    };
    let only = |path: PathOptions| LegOptions {
        path,
        ..plain.clone()
    };
    let mark = PathOptions {
        mark: path.mark,
        ..PathOptions::default()
    };
    let needs = |error: &_| privileges::hint(error, &[Capability::NetAdmin]);
    only(mark)
        .probe()
        .map_err(refused("upstream_mark", needs))?;
    let device = PathOptions {
        device: path.device.clone(),
        ..PathOptions::default()
    };
    let shows = |_: &_| "; `ip link` shows the devices".to_owned();
    only(device)
        .probe()
        .map_err(refused("upstream_device", shows))?;
    match path.sources.addrs().iter().find(|ip| !is_local(**ip)) {
        None => Ok(()),
        Some(_) => Err(refused("upstream_address", |_| {
            "; `ip address` shows the addresses of this machine".to_owned()
        })(Errno::ADDRNOTAVAIL)),
    }
}

fn peers_of(
    relays: Vec<(Arc<Member>, Vec<Arc<Targets>>)>,
    identity: &Identity,
    legs: &MeshLegs,
    named: &[MemberName],
    before: &Holdings,
    registry: &Registry,
    next: &mut Holdings,
) -> Vec<Arc<Peer>> {
    let peer = |(member, targets): (Arc<Member>, Vec<Arc<Targets>>)| {
        let is_named = named.contains(&member.name);
        before.peer(Peer {
            id: next.peer_id(&member.name),
            name: member.name.clone(),
            is_named,
            kept: Arc::new(AtomicBool::new(is_named)),
            keys: identity.keys_with(&member),
            targets,
            tls: identity.dial_tls(&member),
            options: legs
                .of_members
                .get(&member.name)
                .unwrap_or(&legs.default)
                .clone(),
            sizes_window: legs
                .members_size_window
                .get(&member.name)
                .copied()
                .unwrap_or(legs.sizes_window),
            stats: registry.peer(member.name.as_str()),
        })
    };
    relays.into_iter().map(peer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_accepts_the_keepalive_of_any_user_timeout() {
        for seconds in [1, 10, 3 * 32_767, 24 * 86_400] {
            let mut config = Config::new(Vec::new());
            config.timeouts.user = Duration::from_secs(seconds);
            let keepalive = mesh_keepalive(&config);
            assert!(accepted(&LegOptions::new(keepalive)).is_ok(), "{seconds} s");
            // A firewall that has forgotten a ready connection is found within 15 s and the probes, whatever the rest says.
            assert!(keepalive.idle <= Duration::from_secs(15));
        }
    }
}
