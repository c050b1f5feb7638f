//! The BPF program at the devices.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};
use taut_sys::bpf::tc::{AttachPoint, attach_tcx};

use super::rules::Rule;
use super::wire::{self, Exits};

/// The program, compiled by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/intercept.bpf.o"));

/// The program at work. Dropped, or when the process ends, it is gone from the devices.
pub(super) struct Program {
    links: BTreeMap<u32, OwnedFd>,
    rules: BTreeMap<Rule, SocketAddr>,
    object: Object,
}

/// Why the program cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel does not take it.
    #[error(
        "the kernel does not take the BPF program: {0} (it needs Linux 6.6 or newer, and CAP_BPF with \
         CAP_NET_ADMIN and CAP_PERFMON, or root)"
    )]
    Load(#[source] libbpf_rs::Error),
    /// The program is not the one that this code was written for.
    #[error("the BPF program has no {0} (a fault of the build: build it anew)")]
    Part(&'static str),
    /// It cannot be put on a device.
    #[error(
        "the BPF program cannot be attached to {device}: {source} (it needs tcx, Linux 6.6, and \
         CAP_NET_ADMIN)"
    )]
    Attach {
        /// The device.
        device: String,
        /// What the kernel says.
        source: std::io::Error,
    },
}

// === impl Program ===

impl Program {
    /// The program, on no device and without a rule.
    pub(super) fn load(mark: u32, borrows: bool) -> Result<Self, ProgramError> {
        // What libbpf has to say beside the error is for those who look for a fault.
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, |_, text| {
            tracing::debug!(target: "libbpf", "{}", text.trim_end());
        })));
        let mut open = ObjectBuilder::default()
            .name("taut_intercept")
            .and_then(|builder| builder.open_memory(PROGRAM))
            .map_err(ProgramError::Load)?;
        open.maps_mut()
            .find(|map| map.name() == ".rodata.config")
            .ok_or(ProgramError::Part("configuration"))?
            .set_initial_value(&wire::configuration(mark, borrows))
            .map_err(ProgramError::Load)?;
        Ok(Self {
            links: BTreeMap::new(),
            rules: BTreeMap::new(),
            object: open.load().map_err(ProgramError::Load)?,
        })
    }

    /// Puts these rules in place of those it has.
    pub(super) fn set_rules(
        &mut self,
        rules: BTreeMap<Rule, SocketAddr>,
    ) -> Result<(), ProgramError> {
        if rules == self.rules {
            return Ok(());
        }
        let map = map(&self.object, "rules")?;
        for rule in self.rules.keys().filter(|rule| !rules.contains_key(rule)) {
            map.delete(&wire::rule(rule)).map_err(ProgramError::Load)?;
        }
        for (rule, listener) in &rules {
            map.update(&wire::rule(rule), &wire::listener(*listener), MapFlags::ANY)
                .map_err(ProgramError::Load)?;
        }
        self.rules = rules;
        Ok(())
    }

    /// Puts it on these devices, and takes it off all others.
    ///
    /// # Errors
    /// Of the first that refused; it is on the others.
    pub(super) fn set_devices(
        &mut self,
        devices: &BTreeMap<u32, String>,
    ) -> Result<(), ProgramError> {
        self.links
            .retain(|ifindex, _| devices.contains_key(ifindex));
        let program = self
            .object
            .progs()
            .find(|p| p.name() == "intercept")
            .ok_or(ProgramError::Part("program `intercept`"))?;
        let mut result = Ok(());
        for (&ifindex, device) in devices {
            if self.links.contains_key(&ifindex) {
                continue;
            }
            match attach_tcx(program.as_fd(), ifindex, AttachPoint::Ingress) {
                Ok(link) => {
                    self.links.insert(ifindex, link);
                }
                Err(e) if result.is_ok() => {
                    let (device, source) = (device.clone(), e.into());
                    result = Err(ProgramError::Attach { device, source });
                }
                Err(_) => {}
            }
        }
        result
    }

    /// What it has counted.
    pub(super) fn exits(&self) -> Result<Exits, ProgramError> {
        let exits = map(&self.object, "exits")?;
        Exits::read(|exit| {
            let values = exits
                .lookup_percpu(&exit.to_ne_bytes(), MapFlags::ANY)
                .map_err(ProgramError::Load)?;
            let count = |bytes: &Vec<u8>| {
                let bytes = bytes.first_chunk().copied();
                bytes.map_or(0, u64::from_ne_bytes)
            };
            Ok(values.iter().flatten().map(count).sum())
        })
    }
}

fn map<'o>(object: &'o Object, name: &'static str) -> Result<libbpf_rs::Map<'o>, ProgramError> {
    object
        .maps()
        .find(|map| map.name() == name)
        .ok_or(ProgramError::Part(name))
}
