//! The socket options of legs, and whether the kernel accepts them.

use std::collections::HashMap;
use std::time::Duration;

use taut_mesh::members::MemberName;
use taut_mesh::plan::LegSettings;
use taut_sys::Errno;
use taut_sys::privileges::{self, Capability};
use taut_sys::socket::{Keepalive, LegOptions, PathOptions, is_local};

use super::error::StartError;
use crate::config::{Config, Forward, LegConfig, MeshConfig};
use crate::turbo::TurboStart;

/// The longest silence of a leg between relays before the first keepalive probe.
const MESH_KEEPALIVE_IDLE: Duration = Duration::from_secs(15);

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
pub(super) struct MeshLegs {
    pub(super) default: LegOptions,
    /// The options for relays with settings of their own.
    pub(super) of_members: HashMap<MemberName, LegOptions>,
    /// Whether windows follow what the peers need.
    pub(super) sizes_window: bool,
    /// Whether windows follow what relays with settings of their own need.
    members_size_window: HashMap<MemberName, bool>,
}

// === impl MeshLegs ===

impl MeshLegs {
    /// Returns the options of the legs to a relay, and whether its windows follow what it needs.
    pub(super) fn to(&self, name: &MemberName) -> (&LegOptions, bool) {
        let options = self.of_members.get(name).unwrap_or(&self.default);
        let sizes_window = self.members_size_window.get(name);
        (options, sizes_window.copied().unwrap_or(self.sizes_window))
    }
}

/// Returns the socket options of legs between relays, after checking that the kernel accepts them.
pub(super) fn mesh_legs_of(config: &Config, turbo: &TurboStart) -> Result<MeshLegs, StartError> {
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
pub(super) fn planned_leg(leg: &LegConfig) -> LegSettings {
    let rate = leg.turbo.map_or(0, |turbo| turbo.rate);
    LegSettings {
        turbo: leg.turbo.is_some(),
        rate: rate.min(leg.max_rate.unwrap_or(rate)).saturating_mul(8),
        window: leg.turbo.map(|turbo| turbo.initial_window().into()),
    }
}

/// Returns how the planner sees the legs to members with settings of their own.
pub(super) fn planned_legs(mesh: &MeshConfig) -> HashMap<MemberName, LegSettings> {
    let own = mesh.rules.iter().filter(|rule| rule.leg.is_some());
    own.map(|rule| (rule.name.clone(), planned_leg(&mesh.leg_to(&rule.name))))
        .collect()
}

/// Returns the socket options of legs to destinations of sessions from the mesh. `checked`: after checking that the
/// kernel accepts them.
pub(super) fn mesh_upstream(
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
