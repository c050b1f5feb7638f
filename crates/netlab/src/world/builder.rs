//! Describes a world and builds it.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use super::devices::{self, Device};
use super::plan::{self, Edge};
use super::record::Record;
use super::{Host, World, WorldError, sysctl};
use crate::interrupt;
use crate::link::LinkBackend;
use crate::link::running::{End, Link};
use crate::link::shape::LinkSpec;

/// A description of a world.
#[derive(Debug, Clone)]
pub struct WorldBuilder {
    name: String,
    hosts: Vec<String>,
    links: Vec<(String, String, LinkSpec)>,
    /// Host (`None`: every host), key and value.
    sysctls: Vec<(Option<String>, String, String)>,
    backend: LinkBackend,
    keeps_congestion_control: bool,
}

// === impl WorldBuilder ===

impl WorldBuilder {
    /// An empty description of a world called `name`.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            hosts: Vec::new(),
            links: Vec::new(),
            sysctls: Vec::new(),
            backend: LinkBackend::Auto,
            keeps_congestion_control: false,
        }
    }

    /// Adds a host. Its name has 1 to 11 lower-case letters, digits and hyphens.
    #[must_use]
    pub fn host(mut self, name: &str) -> Self {
        self.hosts.push(name.to_owned());
        self
    }

    /// Adds a link between the hosts `a` and `b`.
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

    /// Sets what carries the links; the default is [`LinkBackend::Auto`].
    #[must_use]
    pub fn backend(self, backend: LinkBackend) -> Self {
        Self { backend, ..self }
    }

    /// Leaves every host the machine's default congestion control, where other worlds have Cubic. Only
    /// then does building a world never change a setting of the machine: choosing a control that
    /// namespaces may not choose extends the machine's list of allowed ones for a moment.
    #[must_use]
    pub fn keep_congestion_control(self) -> Self {
        Self {
            keeps_congestion_control: true,
            ..self
        }
    }

    /// Removes the remains of dead worlds ([`World::sweep`]), then builds this one.
    ///
    /// # Errors
    /// If the description is invalid or the kernel rejects a part of it. What was created until then has
    /// been removed.
    pub fn build(self) -> Result<World, WorldError> {
        if let Some(why) = self.fault() {
            return Err(WorldError::Impossible {
                world: self.name,
                why,
            });
        }
        World::sweep().map_err(|e| self.error("remove the remains of dead worlds", e))?;
        let record = Record::create(&self.name).map_err(|e| self.error("create its record", e))?;
        let record = Arc::new(record);
        interrupt::register(&record);
        // From here on, dropping the world removes what has been created.
        let mut world = World {
            name: self.name.clone(),
            links: Vec::new(),
            hosts: Vec::new(),
            dir: record
                .create_dir()
                .map_err(|e| self.error("create its directory", e))?,
            record,
        };
        self.create_hosts(&mut world)?;
        let devices = self.create_links(&mut world)?;
        self.add_routes(&world, &devices)?;
        Ok(world)
    }

    fn create_hosts(&self, world: &mut World) -> Result<(), WorldError> {
        for (number, name) in self.hosts.iter().enumerate() {
            let netns = world.record.create_netns(name);
            let netns = netns.map_err(|e| self.error(&format!("create host {name}"), e))?;
            let links = self
                .links
                .iter()
                .filter(|(a, b, _)| a == name || b == name)
                .count();
            let forwarding = if links > 1 { sysctl::FORWARDING } else { &[] };
            // Before devices are created: they copy `conf.default` at that time.
            let settings = sysctl::DEFAULTS.iter().chain(forwarding).copied();
            let keeps = self.keeps_congestion_control;
            sysctl::set(
                &netns,
                settings.filter(|(key, _)| !(keeps && *key == sysctl::CONGESTION)),
            )?;
            world.hosts.push(Host {
                name: name.clone(),
                netns: Arc::new(netns),
                addresses: plan::host(number),
                devices: Vec::new(),
            });
        }
        Ok(())
    }

    fn create_links(&self, world: &mut World) -> Result<Vec<Vec<Device>>, WorldError> {
        let mut devices = vec![Vec::<Device>::new(); self.hosts.len()];
        for (link, (a, b, spec)) in self.links.iter().enumerate() {
            let mut ends = Vec::with_capacity(2);
            for (end, (own, far)) in [(a, b), (b, a)].into_iter().enumerate() {
                let host = self.number(own);
                let name = unused_name(far, &devices[host]);
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
                    // Unique: no host's name has a dot.
                    let middle = world.record.create_netns(&format!("link.{link}"));
                    let middle =
                        middle.map_err(|e| self.error("create the namespace of a link", e))?;
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

    fn add_routes(&self, world: &World, devices: &[Vec<Device>]) -> Result<(), WorldError> {
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
            // Last, because a setting of a device (net.ipv4.conf.to-server...) needs the device.
            let own = self.sysctls.iter().filter_map(|(to, key, value)| {
                let here = to.as_ref().is_none_or(|to| *to == host.name);
                here.then_some((key.as_str(), value.as_str()))
            });
            sysctl::set(&host.netns, own)?;
        }
        Ok(())
    }

    /// Returns why this description is invalid, or `None` if it is valid.
    fn fault(&self) -> Option<String> {
        let mut names = HashSet::new();
        for name in &self.hosts {
            if !is_host_name(name) {
                return Some(format!(
                    "{name:?} is not a host's name: use 1 to 11 lower-case letters, digits and hyphens"
                ));
            }
            if !names.insert(name) {
                return Some(format!("there are two hosts called {name}"));
            }
        }
        if self.hosts.len() > plan::MAX_HOSTS || self.links.len() > plan::MAX_LINKS {
            return Some(format!(
                "there are too many: a world has at most {} hosts and {} links",
                plan::MAX_HOSTS,
                plan::MAX_LINKS
            ));
        }
        for (a, b, spec) in &self.links {
            if let Some(unknown) = [a, b].into_iter().find(|name| !names.contains(name)) {
                return Some(format!(
                    "a link names {unknown}, which is not a host of this world"
                ));
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
        unknown.map(|(to, key, _)| {
            format!("{key} is set on {to:?}, which is not a host of this world")
        })
    }

    /// Returns the number of a host whose name has been checked.
    fn number(&self, name: &str) -> usize {
        self.hosts.iter().position(|host| host == name).unwrap_or(0)
    }

    fn error(&self, action: &str, source: io::Error) -> WorldError {
        WorldError::Make {
            world: self.name.clone(),
            action: action.to_owned(),
            source,
        }
    }
}

fn is_host_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=11).contains(&name.len()) && name.chars().all(letter)
}

/// Returns `to-PEER`, followed by a number from the second link to that peer on. A device's name has at
/// most 15 bytes.
fn unused_name(peer: &str, taken: &[Device]) -> String {
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
