//! Turns a configuration into the resources and the setup of the workers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use taut_mesh::members::{Member, MemberName, Members};
use taut_mesh::plan::Options;
use taut_sys::socket::LegOptions;

use super::bind::Binder;
use super::error::StartError;
use super::holdings::Holdings;
use super::kernel_tls::TlsPlace;
use super::legs::{MeshLegs, legs_of, mesh_legs_of, mesh_upstream, planned_leg, planned_legs};
use super::look_ups::{named_relays, resolve_all};
use super::loops::find_loop;
use super::mesh::Identity;
use super::next_hop::{Locality, access, next_hop, original, read_own, send_proxy};
use crate::config::{Config, Forward, MeshConfig, Timeouts};
use crate::counters::forward::MESH;
use crate::counters::registry::Registry;
use crate::handover::Passed;
use crate::net::addr::{Destination, names_of};
use crate::net::targets::Targets;
use crate::route::by_name::ByName;
use crate::route::listener::{NewListener, Purpose};
use crate::route::peer::Peer;
use crate::route::table::{Mesh, PassesOn, Route, Setup};
use crate::turbo::TurboStart;

/// A configuration whose resources have all been acquired.
pub(super) struct Assembly {
    pub(super) setup: Setup,
    /// The listeners of each worker.
    pub(super) listeners: Vec<Vec<NewListener>>,
    pub(super) holdings: Holdings,
    /// Inherited sockets at addresses that are not in the configuration.
    pub(super) unused: Vec<Passed>,
}

/// Which relays of a configuration are used, and how strictly their names are checked.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// Every named relay must be a member. If unset, names of former members are ignored.
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

    /// Returns the members that the node connects to.
    fn relays(&self, config: &Config, identity: &Identity) -> Result<Vec<Arc<Member>>, StartError> {
        let mut relays = match self.checked {
            true => identity.dialled(config)?,
            false => identity.still_dialled(config),
        };
        relays.retain(|relay| !self.drained.contains(&relay.name));
        Ok(relays)
    }

    /// Returns the relays that are looked up before the configuration is adopted; none if names are
    /// unchecked, so that no look-up can delay the revocation of a relay.
    fn needed(&self, config: &Config) -> Vec<MemberName> {
        match self.checked {
            true => named_relays(config),
            false => Vec::new(),
        }
    }
}

/// Acquires what `config` needs and `before` does not hold. Dropping the result releases it.
///
/// # Errors
/// [`StartError`]; everything that was acquired has been released then.
pub(super) fn assemble(
    config: &Config,
    workers: usize,
    turbo: &Arc<TurboStart>,
    before: &Holdings,
    registry: &Registry,
    inherited: Vec<Passed>,
    names: &Names,
) -> Result<Assembly, StartError> {
    let identity = identity_of(config, before, names)?;
    let next = before.successor();
    read_own(&next.own).map_err(StartError::Addresses)?;
    let relays = match &identity {
        Some(identity) => names.relays(config, identity)?,
        None => Vec::new(),
    };
    let resolved = resolve_all(config, relays, &names.needed(config), names.checked, before)?;
    let legs = legs_of(config, names.checked)?;
    let mesh_legs = mesh_legs_of(config, turbo)?;
    let mut assembler = Assembler {
        config,
        turbo,
        before,
        registry,
        checked: names.checked,
        binder: Binder::new(workers, before, inherited),
        peers: Vec::new(),
        next,
    };
    if let Some(identity) = &identity {
        assembler.add_peers(resolved.relays, identity, &mesh_legs);
    }
    let forwards = config.forwards.iter().zip(resolved.forwards).zip(legs);
    let routes = forwards.map(|((forward, targets), legs)| assembler.route(forward, targets, legs));
    let routes = routes.collect::<Result<Vec<_>, _>>()?;
    let mesh = match (&config.mesh, identity) {
        (Some(mesh), Some(identity)) => Some(assembler.mesh(mesh, identity, mesh_legs)?),
        _ => None,
    };
    if let Some((i, to)) = find_loop(&routes)
        // A transparent forward has no configured destination to report.
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
        mesh: mesh.map(Arc::new),
    };
    let (listeners, unused) = assembler.binder.finish();
    Ok(Assembly {
        setup,
        listeners,
        holdings: assembler.next,
        unused,
    })
}

/// Reads the node's identity in the mesh; `None` without a mesh.
fn identity_of(
    config: &Config,
    before: &Holdings,
    names: &Names,
) -> Result<Option<Identity>, StartError> {
    let Some(mesh) = &config.mesh else {
        return Ok(None);
    };
    let place = TlsPlace::of(config);
    let identity = match &names.members {
        None => Identity::load(mesh, &place)?,
        Some(members) => Identity::with_members(mesh, &place, members.clone())?,
    };
    if let Some(running) = before.mesh() {
        identity.replaces(&running.local.members, mesh)?;
    }
    Ok(Some(identity))
}

/// A configuration whose resources are being acquired.
struct Assembler<'a> {
    config: &'a Config,
    turbo: &'a Arc<TurboStart>,
    before: &'a Holdings,
    registry: &'a Registry,
    /// See [`Names::checked`].
    checked: bool,
    binder: Binder<'a>,
    /// The relays that connections are made to.
    peers: Vec<Arc<Peer>>,
    /// The resources that the new configuration holds.
    next: Holdings,
}

// === impl Assembler ===

impl Assembler<'_> {
    /// Adds the relays that this node dials, with their addresses.
    fn add_peers(
        &mut self,
        relays: Vec<(Arc<Member>, Vec<Arc<Targets>>)>,
        identity: &Identity,
        legs: &MeshLegs,
    ) {
        let named = named_relays(self.config);
        for (member, targets) in relays {
            let name = &member.name;
            let is_named = named.contains(name);
            let (options, sizes_window) = legs.to(name);
            self.peers.push(self.before.peer(Peer {
                id: self.next.peer_id(name),
                name: name.clone(),
                is_named,
                kept: Arc::new(AtomicBool::new(is_named)),
                keys: identity.keys_with(&member),
                targets,
                tls: identity.dial_tls(&member),
                options: options.clone(),
                sizes_window,
                stats: self.registry.peer(name.as_str()),
            }));
        }
    }

    /// Binds a forward's addresses and returns its route. `targets`: those of the default
    /// destinations, then those of each server name, in order.
    fn route(
        &mut self,
        forward: &Forward,
        mut targets: Vec<Arc<Targets>>,
        (client, upstream): (LegOptions, LegOptions),
    ) -> Result<Arc<Route>, StartError> {
        let options = Arc::new(upstream.clone());
        let transparent = forward.transparent.is_some();
        let binder = &mut self.binder;
        let bound = binder.bind(&forward.listen, &client, transparent, &mut self.next)?;
        let listen = &bound.listen;
        let (peers, before) = (&self.peers, self.before);
        let mut to_next_hop = |to: &[Destination]| {
            let own = targets.drain(..to.len().min(targets.len()));
            next_hop(forward, to, own.collect(), &options, peers, before)
        };
        let main = match &forward.transparent {
            None => to_next_hop(&forward.to),
            // It has no destinations of its own.
            Some(transparent) => {
                let locality = self.locality();
                original(forward, transparent, listen, upstream, peers, &locality)?
            }
        };
        let name = match &forward.name {
            Some(name) => name.clone(),
            None => listen.first().map_or_else(String::new, |l| l.0.to_string()),
        };
        let stats = self.registry.forward(&name);
        let route = |destination: Arc<str>, next_hop, by_name| Route {
            // Assigned by `Holdings::route`; the routes of server names keep 0.
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
        let named = forward.sni.iter().map(|(name, to)| {
            let route = route(names_of(to).into(), to_next_hop(to), None);
            (name.clone(), Arc::new(route))
        });
        let named: Vec<_> = named.collect();
        let by_name = (!named.is_empty()).then(|| ByName::new(named, !forward.to.is_empty()));
        let destination = match &forward.to[..] {
            [] if by_name.is_some() => "by server name".into(),
            [] => "where clients want to go".into(),
            to => names_of(to).into(),
        };
        let route = before.route(route(destination, main, by_name), &mut self.next);
        self.binder
            .assign(bound, &Purpose::Forward(route.clone()), &client);
        Ok(route)
    }

    /// Binds the mesh port and returns the node's part in the mesh.
    fn mesh(
        &mut self,
        mesh: &MeshConfig,
        identity: Identity,
        legs: MeshLegs,
    ) -> Result<Mesh, StartError> {
        let options = TurboStart::listening(&legs.default, &mesh.leg());
        let binder = &mut self.binder;
        let bound = binder.bind(&mesh.listen, &options, false, &mut self.next)?;
        let listen = bound.listen.clone();
        self.binder.assign(bound, &Purpose::Mesh, &options);
        let (access, rules) = access(mesh, &self.locality())?;
        let passes = match mesh.pass_to_all {
            true => PassesOn::All,
            false => PassesOn::To(named_relays(self.config)),
        };
        Ok(Mesh {
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
            upstream: Arc::new(mesh_upstream(self.config, mesh, self.checked)?),
            turbo: self.turbo.clone(),
            sizes_window: legs.sizes_window,
            legs: legs.of_members,
            borrow: mesh.borrow,
            send_proxy: send_proxy(mesh)?,
            listen,
            peers: self.peers.clone(),
            stats: self.registry.forward(MESH),
        })
    }

    /// Returns the addresses and prefixes that the checks of destinations need.
    fn locality(&self) -> Locality<'_> {
        Locality {
            own: &self.next.own,
            relays: &self.next.relays,
            nat64: &self.config.nat64,
        }
    }
}
