//! The BPF program at the devices.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use taut_bpf::{CounterMap, Error, Map, Object, Open};
use taut_sys::bpf::tc::{AttachPoint, attach_tcx};
use taut_sys::privileges::{self, Capability};

use super::rules::{Matched, Rule};
use super::wire::{self, Exit, Exits, raw};

/// The program, compiled by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/intercept.bpf.o"));

/// The attached program. It is detached when this is dropped or the process ends.
pub(super) struct Program {
    links: BTreeMap<u32, OwnedFd>,
    rules: BTreeMap<Rule, Matched>,
    table: Map<raw::InterceptRule, raw::InterceptListener>,
    exits: CounterMap<Exit>,
    object: Object,
}

/// The reason why the program cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The kernel rejects the program.
    #[error("{0}{hint}", hint = load_hint(.0))]
    Load(#[from] Error),
    /// The program cannot be attached to a device.
    #[error(
        "the BPF program cannot be attached to {device}: {source}{hint}",
        hint = attach_hint(.source)
    )]
    Attach {
        /// The device.
        device: String,
        /// The kernel's error.
        source: std::io::Error,
    },
}

fn load_hint(source: &Error) -> String {
    let needed = [Capability::Bpf, Capability::NetAdmin, Capability::Perfmon];
    privileges::program_hint(
        source.kind() == libbpf_rs::ErrorKind::PermissionDenied,
        &needed,
        "the BPF program of an intercepting relay needs Linux 6.6 or newer",
    )
}

fn attach_hint(source: &std::io::Error) -> String {
    privileges::program_hint(
        source.kind() == std::io::ErrorKind::PermissionDenied,
        &[Capability::NetAdmin],
        "it needs tcx (Linux 6.6)",
    )
}

// === impl Program ===

impl Program {
    /// Loads the program without devices and rules.
    pub(super) fn load(mark: u32, borrows: bool) -> Result<Self, ProgramError> {
        let mut open = Open::new("taut_intercept", PROGRAM)?;
        open.set_constant(".rodata.config", &wire::configuration(mark, borrows))?;
        let object = open.load()?;
        Ok(Self {
            links: BTreeMap::new(),
            rules: BTreeMap::new(),
            table: object.map("rules")?,
            exits: object.counters("exits")?,
            object,
        })
    }

    /// Replaces the rules.
    pub(super) fn set_rules(&mut self, rules: BTreeMap<Rule, Matched>) -> Result<(), ProgramError> {
        if rules == self.rules {
            return Ok(());
        }
        for rule in self.rules.keys().filter(|rule| !rules.contains_key(rule)) {
            self.table.remove(&wire::rule(rule))?;
        }
        for (rule, matched) in &rules {
            self.table
                .insert(&wire::rule(rule), &wire::listener(matched.listener))?;
        }
        self.rules = rules;
        Ok(())
    }

    /// Attaches the program to `devices` and detaches it from all others.
    ///
    /// # Errors
    /// The error of the first device that failed; the program is attached to the other
    /// devices.
    pub(super) fn set_devices(
        &mut self,
        devices: &BTreeMap<u32, String>,
    ) -> Result<(), ProgramError> {
        self.links
            .retain(|ifindex, _| devices.contains_key(ifindex));
        let program = self.object.program("intercept")?;
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

    /// Returns the program's counters.
    pub(super) fn exits(&self) -> Result<Exits, ProgramError> {
        Ok(self.exits.read()?)
    }
}
