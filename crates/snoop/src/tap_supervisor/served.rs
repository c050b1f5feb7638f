//! A served tap: its state, the trust in its peers, and retransmission to its guest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use taut_sys::packet::PacketSocket;
use taut_sys::plural::counted;

use super::{Counts, IDLE, IDLE_SHORT, LEASE, State, Status};
use crate::device::Device;
use crate::error::ProgramError;
use crate::foreign_hooks::Hooks;
use crate::frame::retransmission;
use crate::log_limits;
use crate::program::Program;
use crate::qmp::policy::{HoldReason, Restriction};
use crate::retransmit::{Due, News, Retained};
use crate::tap::Prepared;
use crate::trust::{REST, TIMES, Trust};
use crate::wire::{Bypass, Config, Flow, Key, Mode, Prefix};

/// The number of bytes acknowledged since the last scan from which a flow counts as a sharer of the
/// ring.
const MUCH: u64 = 64 * 1024;

/// The number of flows that a scan tries to remove from a table that is nearly full.
const EVICTION_TRIES: usize = 1024;

/// A served tap.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) device: Device,
    pub(super) state: State,
    /// Whether the user turned early ACKs off
    /// ([`TapSupervisor::turn_off`](super::TapSupervisor::turn_off)).
    pub(super) turned_off: bool,
    /// The state of the guest's machine that forbids early ACKs.
    pub(super) hold: Option<HoldReason>,
    /// The event after which early ACKs wait until the guest sends something, and the number of
    /// packets that the guest had sent before.
    pub(super) unheard: Option<(HoldReason, u64)>,
    pub(super) counts: Counts,
    pub(super) trust: Trust,
    /// The distrusted networks, as the programs know them.
    pub(super) distrusted: Vec<Prefix>,
    /// Whether the guest's copies fill its share of the memory.
    pub(super) full: bool,
    /// The guest's Ethernet address, if known.
    pub(super) guest_mac: Option<[u8; 6]>,
    /// Sends retransmissions to the guest.
    pub(super) socket: PacketSocket,
    /// Bytes acknowledged early for each flow, at the last scan.
    pub(super) acked: HashMap<Key, u64>,
    pub(super) sharing: u32,
    /// The time at which early ACKs stop unless there is another scan (CLOCK_MONOTONIC).
    pub(super) until: Duration,
    pub(super) program: Program,
    /// Dropped after the program: with a queue in front of the ring, there must be no early ACKs.
    #[expect(dead_code, reason = "it is held, and undone when it is dropped")]
    pub(super) prepared: Prepared,
}

// === impl Served ===

impl Served {
    pub(super) fn set(&mut self, config: Config, state: State) {
        let before = std::mem::replace(&mut self.state, state);
        if let Err(error) = self.configure(config) {
            tracing::error!(tap = %self.device.name, "{error}");
            self.state = before;
        }
    }

    pub(super) fn configure(&self, config: Config) -> Result<(), ProgramError> {
        let config = Config {
            on: self.state == State::On,
            ring: self.device.ring,
            sharing: self.sharing,
            distrusted: self.distrusted.len() as u32,
            guest_mac: self.guest_mac,
            full: self.full,
            ..config
        };
        self.program.configure(&config, self.until)
    }

    /// Returns whether the guest's processors are known to be stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.hold == Some(HoldReason::Stopped)
    }

    /// Returns the reason why the guest's machine allows no early ACKs.
    fn why_held(&self) -> Option<HoldReason> {
        self.hold.or(self.unheard.map(|(why, _)| why))
    }

    pub(super) fn restrict(&mut self, config: Config, restriction: Restriction) {
        let before = self.why_held();
        self.hold = restriction.hold;
        if let Some(why) = restriction.until_heard {
            // The guest may come back with another network device and Ethernet address.
            let heard = self.program.forget_source().and_then(|()| self.heard());
            match heard {
                Ok(heard) => self.unheard = Some((why, heard)),
                Err(error) => tracing::warn!(tap = %self.device.name, "{error}"),
            }
        }
        self.keep_hold(config, before);
    }

    /// Stops early ACKs while the guest's machine allows none, and resumes them afterwards.
    fn keep_hold(&mut self, config: Config, before: Option<HoldReason>) {
        let held = self.why_held();
        if let Some(why) = held
            && before != held
        {
            tracing::info!(tap = %self.device.name, "no early ACKs: {}", why.phrase());
        }
        match (held, &self.state) {
            (Some(_), State::On) => self.set(config, State::Draining),
            (None, State::Draining | State::Off) if !self.turned_off => {
                tracing::info!(tap = %self.device.name, "early ACKs again: the guest runs");
                self.set(config, State::On);
            }
            _ => {}
        }
    }

    /// Returns the number of packets that the guest itself has sent.
    fn heard(&self) -> Result<u64, ProgramError> {
        let ways = self.program.from_guest()?;
        let own = ways
            .iter()
            .filter(|(way, _)| !["ours", "leftover"].contains(way));
        Ok(own.map(|(_, count)| count).sum())
    }

    /// `retained`: the copies of all taps.
    pub(super) fn watch(&mut self, config: Config, retained: &Retained, now: Duration) {
        self.until = now + LEASE;
        let watched = self.watch_flows(config, retained, now);
        let before = self.why_held();
        if let Some((_, heard)) = self.unheard
            && self.heard().is_ok_and(|now| now > heard)
        {
            self.unheard = None;
        }
        self.keep_hold(config, before);
        if let Err(error) = watched.and_then(|()| self.configure(config)) {
            tracing::warn!(tap = %self.device.name, "{error}");
        }
    }

    /// Makes the tap unfit if a queue is in front of the ring, where a frame may be lost after its ACK,
    /// or programs of others see its packets.
    pub(super) fn look_before_the_ring(
        &mut self,
        config: Config,
        device: &Device,
        hooks: &mut Hooks,
    ) {
        if self.state != State::On {
            return;
        }
        let name = &device.name;
        let own = self.program.links();
        let why = if device.has_queue() {
            format!(
                "there is a queue before the ring: run `tc qdisc replace dev {name} root noqueue`"
            )
        } else {
            match hooks.take(device, own) {
                Ok(None) => return,
                Ok(Some(hook)) => hook.sentence(name),
                Err(error) => {
                    if let Some(line) = log_limits::HOOKS.line(Instant::now()) {
                        tracing::warn!(tap = %name, left_out = line.left_out, "{error}");
                    }
                    return;
                }
            }
        };
        tracing::warn!(tap = %name, "no early ACKs: {why}. Afterwards run `taut snoop --on {name}`");
        self.set(config, State::Unfit(why));
    }

    /// Follows the device's name: the tap is the same one.
    pub(super) fn rename(&mut self, name: &str) {
        if self.device.name != name {
            tracing::info!(tap = %self.device.name, "renamed to {name}");
            name.clone_into(&mut self.device.name);
        }
    }

    fn watch_flows(
        &mut self,
        config: Config,
        retained: &Retained,
        now: Duration,
    ) -> Result<(), ProgramError> {
        let flows = self.program.flows()?;
        for (_, flow) in &flows {
            self.counts.exposure_most = self.counts.exposure_most.max(flow.exposed_most);
        }
        self.apply_distrust(config, now)?;
        if self.state == State::On
            && self.guest_mac.is_none()
            && self.program.sees_several_macs()?
        {
            let name = self.device.name.clone();
            let why = format!(
                "frames from several Ethernet addresses come from {name}, so endpoints may be behind the guest; name the guest's own \
                 address with `--guest-mac {name}=ADDRESS`"
            );
            tracing::warn!(tap = %name, "{why}");
            self.set(config, State::Unfit(why));
        }
        self.sharing = self.sharers(&flows);
        self.end_draining(&flows, retained);
        for (key, flow) in &flows {
            let idle = now.saturating_sub(Duration::from_nanos(flow.seen_ns));
            if idle > idle_limit(flow) {
                self.program.forget(key)?;
            }
        }
        self.keep_room(flows)
    }

    /// Removes the oldest idle flows if the table is nearly full. The programs do so for each new flow,
    /// but they do not search the whole table.
    fn keep_room(&self, mut flows: Vec<(Key, Flow)>) -> Result<(), ProgramError> {
        let places = self.program.places();
        if flows.len() <= places - places / 8 {
            return Ok(());
        }
        flows.sort_unstable_by_key(|(_, flow)| flow.seen_ns);
        let mut excess = flows.len() - (places - places / 4);
        let all_taken = flows.iter().filter(|(_, flow)| flow.exposure() == 0);
        for (key, _) in all_taken.take(EVICTION_TRIES) {
            if excess == 0 {
                break;
            }
            excess -= usize::from(self.program.evict(key)?);
        }
        Ok(())
    }

    /// Updates the programs' map of distrusted networks if it changed.
    fn apply_distrust(&mut self, config: Config, now: Duration) -> Result<(), ProgramError> {
        let distrusted: Vec<_> = self.trust.distrusted(now).into_iter().collect();
        if distrusted == self.distrusted {
            return Ok(());
        }
        self.program.distrust(&distrusted)?;
        let added = distrusted.iter().filter(|p| !self.distrusted.contains(p));
        for network in added {
            if let Some(line) = log_limits::DISTRUST.line(Instant::now()) {
                tracing::warn!(
                    tap = %self.device.name, left_out = line.left_out,
                    "the guest lacked early-acknowledged bytes of {TIMES} flows from {network}; no early ACKs for that network for {} \
                     minutes",
                    REST.as_secs() / 60
                );
            }
            for (key, flow) in self.program.flows()? {
                let bypassed = matches!(flow.mode, Mode::Bypass(_));
                if !bypassed && Prefix::of(key.peer.ip()) == *network {
                    self.program.bypass(&key, Bypass::DistrustedPeer)?;
                }
            }
        }
        self.distrusted = distrusted;
        self.configure(config)
    }

    /// Sends a flow's due retransmissions, and logs and counts its news.
    pub(super) fn act(
        &mut self,
        key: &Key,
        flow: &Flow,
        due: &Due,
        retained: &Retained,
        config: Config,
        now: Duration,
    ) {
        let tap = self.device.name.clone();
        self.counts.exposure_most = self.counts.exposure_most.max(flow.exposed_most);
        match due.news {
            Some(News::Lacks(bytes)) => {
                if let Some(line) = log_limits::LACKS.line(Instant::now()) {
                    tracing::warn!(
                        %tap, flow = %key, bytes, left_out = line.left_out,
                        "the guest lacks early-acknowledged bytes; retransmitting them"
                    );
                }
                self.counts.repaired += 1;
                // A client can cause a doubt by itself, but cannot forge the guest's statement
                // about its window.
                if flow.mode == Mode::Bypass(Bypass::Contradicted) {
                    self.trust.contradicted(Prefix::of(key.peer.ip()), now);
                }
                if let Err(error) = self.apply_distrust(config, now) {
                    log_not_bypassed(&tap, &error);
                }
            }
            Some(News::Repaired) => {
                if let Some(line) = log_limits::REPAIRED.line(Instant::now()) {
                    tracing::info!(
                        %tap, flow = %key, left_out = line.left_out,
                        "the guest now has everything that was acknowledged early"
                    );
                }
            }
            Some(News::Lost(bytes)) => {
                if let Some(line) = log_limits::LOST.line(Instant::now()) {
                    tracing::error!(
                        %tap, flow = %key, bytes, left_out = line.left_out,
                        "lost after early ACK: the guest has not taken these bytes for 15 minutes"
                    );
                }
                self.counts.lost += 1;
                if let Err(error) = self.program.bypass(key, Bypass::LostAfterEarlyAck) {
                    log_not_bypassed(&tap, &error);
                }
            }
            None => {}
        }
        let id = (self.device.index, *key);
        for (number, range) in &due.segments {
            let Some(copy) = retained.copy(&id, *number) else {
                continue;
            };
            match self.socket.send(&retransmission(copy, range, flow)) {
                Ok(()) => self.counts.retransmitted += 1,
                Err(error) => {
                    tracing::debug!(%tap, flow = %key, %error, "cannot retransmit a segment now");
                    self.counts.not_sent += 1;
                }
            }
        }
    }

    /// Returns the number of flows that share the ring: those with much early-acknowledged data
    /// since the last scan.
    fn sharers(&mut self, flows: &[(Key, Flow)]) -> u32 {
        let acked: HashMap<_, _> = flows
            .iter()
            .map(|(key, flow)| (*key, flow.acked_bytes))
            .collect();
        let much = acked.iter().filter(|(key, now)| {
            let before = self.acked.get(key).copied().unwrap_or(0);
            now.saturating_sub(before) >= MUCH
        });
        let sharing = much.count() as u32;
        self.acked = acked;
        sharing
    }

    /// Returns the number of flows whose data the guest refuses, once it has everything else.
    pub(super) fn drained(&mut self, retained: &Retained) -> Result<Option<u64>, ProgramError> {
        let flows = self.program.flows()?;
        self.end_draining(&flows, retained);
        let has_all = self.owed_of(&flows, retained) == 0;
        Ok(has_all.then(|| self.refused(&flows, retained)))
    }

    /// A tap that is draining is off as soon as the guest has everything.
    fn end_draining(&mut self, flows: &[(Key, Flow)], retained: &Retained) {
        if self.state != State::Draining || self.owed_of(flows, retained) > 0 {
            return;
        }
        let except = match self.refused(flows, retained) {
            0 => String::new(),
            flows => format!(
                ", except in {} whose data it refuses",
                counted(flows, "flow")
            ),
        };
        tracing::info!(
            tap = %self.device.name,
            "drained: the guest has everything that was acknowledged early{except}"
        );
        self.state = State::Off;
    }

    fn owed_of(&self, flows: &[(Key, Flow)], retained: &Retained) -> u64 {
        owed(flows, |key, flow| self.is_refused(key, flow, retained))
    }

    fn is_refused(&self, key: &Key, flow: &Flow, retained: &Retained) -> bool {
        retained.is_refused(&(self.device.index, *key), flow.begun)
    }

    /// Returns the number of flows whose data the guest refuses.
    fn refused(&self, flows: &[(Key, Flow)], retained: &Retained) -> u64 {
        let refused = flows
            .iter()
            .filter(|(key, flow)| self.is_refused(key, flow, retained));
        refused.count() as u64
    }

    pub(super) fn status(&self, retained: &Retained) -> Result<Status, ProgramError> {
        let flows = self.program.flows()?;
        Ok(Status {
            retained: retained.bytes_of(self.device.index),
            refused: self.refused(&flows, retained),
            evicted: self.program.evicted()?,
            tap: self.device.name.clone(),
            index: self.device.index,
            state: self.state.clone(),
            held: self.why_held().map(HoldReason::phrase),
            ring: self.device.ring,
            counts: self.counts,
            distrusted: self.distrusted.clone(),
            to_guest: self.program.to_guest()?,
            from_guest: self.program.from_guest()?,
            flows,
        })
    }
}

fn log_not_bypassed(tap: &str, error: &ProgramError) {
    if let Some(line) = log_limits::BYPASS.line(Instant::now()) {
        tracing::warn!(%tap, left_out = line.left_out, "{error}");
    }
}

/// Returns the number of bytes that guests have yet to take and that were acknowledged early, or
/// are held for the next early ACK. Lost and refused bytes will never be taken.
fn owed(flows: &[(Key, Flow)], is_refused: impl Fn(&Key, &Flow) -> bool) -> u64 {
    let lost = Mode::Bypass(Bypass::LostAfterEarlyAck);
    let open = flows
        .iter()
        .filter(|(key, flow)| flow.mode != lost && !is_refused(key, flow));
    open.map(|(_, flow)| u64::from(flow.owed())).sum()
}

fn idle_limit(flow: &Flow) -> Duration {
    match flow.mode {
        // A flow with outstanding data is kept, however long the guest is stopped.
        mode if flow.exposure() > 0 && mode != Mode::Bypass(Bypass::LostAfterEarlyAck) => {
            Duration::MAX
        }
        // The SYN is unanswered or forged; a flood of such SYNs would fill the table.
        Mode::Syn
        | Mode::Unproven
        | Mode::Bypass(
            Bypass::Closing | Bypass::LostAfterEarlyAck | Bypass::Doubt | Bypass::Contradicted,
        ) => IDLE_SHORT,
        _ => IDLE,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic fails the test")]

    use super::*;

    #[test]
    fn what_the_guest_will_never_take_is_not_waited_for() {
        let known = Flow::decode(&crate::wire::raw::SnoopFlow::default()).unwrap();
        let flow = |port, mode| {
            let key = Key {
                guest: ([10, 0, 0, 1], 80).into(),
                peer: ([10, 0, 0, 2], port).into(),
                vlan: None,
            };
            let (next_seq, acked_seq) = (1000, 1000);
            (
                key,
                Flow {
                    mode,
                    next_seq,
                    acked_seq,
                    ..known
                },
            )
        };
        let flows = [
            flow(1, Mode::Active),
            flow(2, Mode::Bypass(Bypass::LostAfterEarlyAck)),
            flow(3, Mode::Bypass(Bypass::Closing)),
        ];
        assert_eq!(owed(&flows, |_, _| false), 2000);
        assert_eq!(owed(&flows, |key, _| key.peer.port() == 3), 1000);
    }
}
