//! Describing a world, and building it.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use super::devices::{self, Device};
use super::plan::{self, Edge};
use super::{Host, Record, World, WorldError, sysctl};
use crate::interrupt;
use crate::link::LinkBackend;
use crate::link::joint::{End, Link};
use crate::link::shape::LinkSpec;

/// A description of a world.
#[derive(Debug, Clone)]
pub struct WorldBuilder {
    name: String,
    hosts: Vec<String>,
    links: Vec<(String, String, LinkSpec)>,
    /// For one host, or for all.
    sysctls: Vec<(Option<String>, String, String)>,
    backend: LinkBackend,
}

// === impl WorldBuilder ===

impl WorldBuilder {
    /// A world called `name` with nothing in it.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            hosts: Vec::new(),
            links: Vec::new(),
            sysctls: Vec::new(),
            backend: LinkBackend::Auto,
        }
    }

    /// Adds a host. A name has 1 to 11 lower-case letters, digits and hyphens.
    #[must_use]
    pub fn host(mut self, name: &str) -> Self {
        self.hosts.push(name.to_owned());
        self
    }

    /// Joins two hosts, `a` and `b`, with a link.
    #[must_use]
    pub fn link(mut self, a: &str, b: &str, spec: LinkSpec) -> Self {
        self.links.push((a.to_owned(), b.to_owned(), spec));
        self
    }

    /// Sets a `net.*` sysctl of one host.
    #[must_use]
    pub fn sysctl(mut self, host: &str, key: &str, value: &str) -> Self {
        self.sysctls
            .push((Some(host.to_owned()), key.to_owned(), value.to_owned()));
        self
    }

    /// Sets a `net.*` sysctl of every host.
    #[must_use]
    pub fn sysctl_everywhere(mut self, key: &str, value: &str) -> Self {
        self.sysctls.push((None, key.to_owned(), value.to_owned()));
        self
    }

    /// Says what is to carry the links; [`LinkBackend::Auto`] unless told.
    #[must_use]
    pub fn backend(self, backend: LinkBackend) -> Self {
        Self { backend, ..self }
    }

    /// Sweeps up after dead worlds, then builds this one.
    ///
    /// # Errors
    /// When the description makes no sense, or the kernel refuses a part of it; whatever was made by
    /// then has been undone.
    pub fn build(self) -> Result<World, WorldError> {
        if let Some(why) = self.fault() {
            return Err(WorldError::Impossible {
                world: self.name,
                why,
            });
        }
        World::sweep().map_err(|e| self.could_not("sweep up after dead worlds", e))?;
        let record =
            Record::begin(&self.name).map_err(|e| self.could_not("begin its record", e))?;
        let record = Arc::new(record);
        interrupt::watch(&record);
        // From here on dropping the world undoes what there is of it.
        let mut world = World {
            name: self.name.clone(),
            links: Vec::new(),
            hosts: Vec::new(),
            dir: record
                .make_dir()
                .map_err(|e| self.could_not("make its directory", e))?,
            record,
        };
        self.make_hosts(&mut world)?;
        let devices = self.make_links(&mut world)?;
        self.make_ways(&world, &devices)?;
        Ok(world)
    }

    fn make_hosts(&self, world: &mut World) -> Result<(), WorldError> {
        for (number, name) in self.hosts.iter().enumerate() {
            let netns = world.record.make_netns(name);
            let netns = netns.map_err(|e| self.could_not(&format!("make host {name}"), e))?;
            let links = self
                .links
                .iter()
                .filter(|(a, b, _)| a == name || b == name)
                .count();
            let forwarding = if links > 1 { sysctl::FORWARDING } else { &[] };
            // Before there are devices, which take `conf.default` as it is when they are made.
            sysctl::set(&netns, sysctl::DEFAULTS.iter().chain(forwarding).copied())?;
            world.hosts.push(Host {
                name: name.clone(),
                netns: Arc::new(netns),
                addresses: plan::host(number),
                devices: Vec::new(),
            });
        }
        Ok(())
    }

    fn make_links(&self, world: &mut World) -> Result<Vec<Vec<Device>>, WorldError> {
        let mut devices = vec![Vec::<Device>::new(); self.hosts.len()];
        for (link, (a, b, spec)) in self.links.iter().enumerate() {
            let mut ends = Vec::with_capacity(2);
            for (end, (own, far)) in [(a, b), (b, a)].into_iter().enumerate() {
                let host = self.number(own);
                let name = free_name(far, &devices[host]);
                ends.push(End {
                    host,
                    device: name.clone(),
                });
                devices[host].push(Device {
                    name,
                    link,
                    end,
                    mtu: spec.mtu,
                });
            }
            let sides = [0, 1].map(|end| (world.hosts[ends[end].host].netns(), ends[end].clone()));
            let name = format!("{a}-{b}");
            let joint = match self.backend {
                LinkBackend::Auto | LinkBackend::User => Link::join(name, sides, spec)?,
                LinkBackend::Netem => {
                    // No host's name has a dot in it.
                    let middle = world.record.make_netns(&format!("link.{link}"));
                    let middle = middle.map_err(|e| self.could_not("make a link's middle", e))?;
                    sysctl::set(&middle, sysctl::MIDDLE.iter().copied())?;
                    Link::join_by_netem(name, sides, &middle, spec)?
                }
            };
            world.links.push(joint);
        }
        for (host, devices) in world.hosts.iter_mut().zip(&devices) {
            host.devices = devices.iter().map(|device| device.name.clone()).collect();
            devices::bring_up(&host.netns, host.addresses, devices)?;
        }
        Ok(devices)
    }

    fn make_ways(&self, world: &World, devices: &[Vec<Device>]) -> Result<(), WorldError> {
        let edges: Vec<Edge> = self
            .links
            .iter()
            .map(|(a, b, spec)| Edge {
                ends: [self.number(a), self.number(b)],
                round_trip: spec.a_to_b.delay + spec.b_to_a.delay,
            })
            .collect();
        for (number, host) in world.hosts.iter().enumerate() {
            let routes = plan::routes(self.hosts.len(), &edges, number);
            devices::add_routes(&host.netns, host.addresses, &devices[number], &routes)?;
            // Last, so that a setting of a device (net.ipv4.conf.to-server...) finds it.
            let own = self.sysctls.iter().filter_map(|(to, key, value)| {
                let here = to.as_ref().is_none_or(|to| *to == host.name);
                here.then_some((key.as_str(), value.as_str()))
            });
            sysctl::set(&host.netns, own)?;
        }
        Ok(())
    }

    /// What keeps this world from being, if anything does.
    fn fault(&self) -> Option<String> {
        let mut names = HashSet::new();
        for name in &self.hosts {
            if !is_name(name) {
                return Some(format!(
                    "a host's name has 1 to 11 lower-case letters, digits and hyphens, and {name:?} \
                     does not"
                ));
            }
            if !names.insert(name) {
                return Some(format!("there are two hosts called {name}"));
            }
        }
        if self.hosts.len() > plan::MAX_HOSTS || self.links.len() > plan::MAX_LINKS {
            return Some("there are more hosts or links than addresses for them".to_owned());
        }
        for (a, b, spec) in &self.links {
            if let Some(unknown) = [a, b].into_iter().find(|name| !names.contains(name)) {
                return Some(format!("a link names {unknown}, which is no host of it"));
            }
            if a == b {
                return Some(format!("a link joins {a} to itself"));
            }
            if let Some(why) = spec.fault() {
                return Some(format!("the link {a}-{b}: {why}"));
            }
        }
        let unknown = self
            .sysctls
            .iter()
            .find(|(to, ..)| to.as_ref().is_some_and(|to| !names.contains(to)));
        unknown.map(|(to, key, _)| format!("{key} is set on {to:?}, which is no host of it"))
    }

    /// The number of a host that is known to be there.
    fn number(&self, name: &str) -> usize {
        self.hosts.iter().position(|host| host == name).unwrap_or(0)
    }

    fn could_not(&self, action: &str, source: io::Error) -> WorldError {
        WorldError::Make {
            world: self.name.clone(),
            action: action.to_owned(),
            source,
        }
    }
}

fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=11).contains(&name.len()) && name.chars().all(letter)
}

/// `to-PEER`, with a number after it from the second link to that peer on; at most 15 bytes, the most
/// that a device's name may have.
fn free_name(peer: &str, taken: &[Device]) -> String {
    let plain = format!("to-{peer}");
    let numbered = (2..).map(|n| {
        let suffix = format!(".{n}");
        let room = plain.len().min(15 - suffix.len());
        format!("{}{suffix}", &plain[..room])
    });
    std::iter::once(plain.clone())
        .chain(numbered)
        .find(|name| taken.iter().all(|device| device.name != *name))
        .unwrap_or(plain)
}
