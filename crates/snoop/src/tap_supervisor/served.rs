//! A tap that is served: its state, the trust in its peers, and what is retransmitted to its guest.

use std::collections::HashMap;
use std::time::Duration;

use taut_sys::packet::PacketSocket;

use super::{Counts, IDLE, IDLE_SHORT, LEASE, State, Status};
use crate::device::Device;
use crate::frame::retransmission;
use crate::program::{FILTER_PRIORITY, Program, ProgramError};
use crate::qmp::policy::{HoldReason, Restriction};
use crate::retransmit::{Due, News, Retained};
use crate::tap::{self, Prepared};
use crate::trust::{REST, TIMES, Trust};
use crate::wire::{Bypass, Config, Flow, Key, Mode, Prefix};

/// A flow of which so many bytes were acknowledged between two looks has its share of the ring.
const MUCH: u64 = 64 * 1024;

/// A tap that is served.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) device: Device,
    pub(super) state: State,
    /// Somebody has asked for no early ACKs ([`TapSupervisor::turn_off`](super::TapSupervisor::turn_off)).
    pub(super) turned_off: bool,
    /// The guest's machine is in a state that allows none.
    pub(super) hold: Option<HoldReason>,
    /// Something has happened to it, and the guest, of which so many packets were seen then, has sent none since.
    pub(super) unheard: Option<(HoldReason, u64)>,
    pub(super) counts: Counts,
    pub(super) trust: Trust,
    /// The networks that the programs have been told not to trust.
    pub(super) distrusted: Vec<Prefix>,
    /// When it became unfit because several networks were.
    pub(super) unfit_since: Option<Duration>,
    /// As much is retained for the guest as its share allows.
    pub(super) full: bool,
    /// The guest's Ethernet address, if it is known.
    pub(super) guest_mac: Option<[u8; 6]>,
    /// What is sent to the guest again goes this way.
    pub(super) socket: PacketSocket,
    /// Bytes that were acknowledged for each flow, at the last look.
    pub(super) acked: HashMap<Key, u64>,
    pub(super) sharing: u32,
    /// After this, by CLOCK_MONOTONIC, nothing is acknowledged unless somebody has looked.
    pub(super) until: Duration,
    pub(super) program: Program,
    /// Dropped after the program: with a queue before the ring no promise may be made.
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

    /// Whether the guest's processors are known to be stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.hold == Some(HoldReason::Stopped)
    }

    /// Why the guest's machine allows no early ACKs.
    fn why_held(&self) -> Option<HoldReason> {
        self.hold.or(self.unheard.map(|(why, _)| why))
    }

    pub(super) fn restrict(&mut self, config: Config, restriction: Restriction) {
        let before = self.why_held();
        self.hold = restriction.hold;
        if let Some(why) = restriction.until_heard {
            // It may come back with another network device, and another Ethernet address.
            let heard = self.program.forget_source().and_then(|()| self.heard());
            match heard {
                Ok(heard) => self.unheard = Some((why, heard)),
                Err(error) => tracing::warn!(tap = %self.device.name, "{error}"),
            }
        }
        self.keep_hold(config, before);
    }

    /// Stops early ACKs while the guest's machine allows none, and has them go on when it does.
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

    /// Packets that the guest itself has sent.
    fn heard(&self) -> Result<u64, ProgramError> {
        let ways = self.program.from_guest()?;
        let own = ways
            .iter()
            .filter(|(way, _)| !["ours", "leftover"].contains(way));
        Ok(own.map(|(_, count)| count).sum())
    }

    pub(super) fn watch(&mut self, config: Config, now: Duration) {
        self.until = now + LEASE;
        let watched = self.watch_flows(config, now);
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

    /// With a queue or a filter before the ring, what is said to be delivered may not be.
    pub(super) fn look_before_the_ring(&mut self, config: Config, device: &Device) {
        if self.state != State::On {
            return;
        }
        let name = &device.name;
        let own = self.program.egress_links();
        let why = if device.has_queue() {
            format!(
                "`tc qdisc replace dev {name} root noqueue`, for there is a queue before the ring"
            )
        } else {
            match tap::is_filtered(device, own, FILTER_PRIORITY) {
                Ok(false) => return,
                Ok(true) => {
                    "its other filters are gone, for they may take what has been acknowledged"
                        .to_owned()
                }
                Err(error) => {
                    tracing::warn!(tap = %name, "{error}");
                    return;
                }
            }
        };
        tracing::warn!(tap = %name, "nothing is promised until {why}, and `taut snoop --on {name}`");
        self.set(config, State::Unfit(format!("until {why}")));
    }

    fn watch_flows(&mut self, config: Config, now: Duration) -> Result<(), ProgramError> {
        let flows = self.program.flows()?;
        for (_, flow) in &flows {
            self.counts.exposure_most = self.counts.exposure_most.max(flow.exposed_most);
        }
        self.apply_distrust(config, now)?;
        if self
            .unfit_since
            .is_some_and(|since| now.saturating_sub(since) > REST)
        {
            self.unfit_since = None;
            tracing::info!(tap = %self.device.name, "segments are acknowledged early again");
            self.set(config, State::On);
        }
        if self.state == State::On
            && self.guest_mac.is_none()
            && self.program.sees_several_macs()?
        {
            let name = self.device.name.clone();
            self.become_unfit(
                config,
                format!(
                    "frames of several Ethernet addresses come from {name}, so that endpoints may be behind the guest: \
                     name the guest's own with `--guest-mac {name}=ADDRESS`"
                ),
            );
        }
        self.sharing = self.sharers(&flows);
        if self.state == State::Draining && owed(&flows) == 0 {
            tracing::info!(tap = %self.device.name, "drained: nothing is owed");
            self.state = State::Off;
        }
        for (key, flow) in &flows {
            let idle = now.saturating_sub(Duration::from_nanos(flow.seen_ns));
            if idle > patience(flow) {
                self.program.forget(key)?;
            }
        }
        Ok(())
    }

    /// Tells the programs which peers are distrusted, if these are others than before.
    fn apply_distrust(&mut self, config: Config, now: Duration) -> Result<(), ProgramError> {
        let distrusted: Vec<_> = self.trust.distrusted(now).into_iter().collect();
        if distrusted == self.distrusted {
            return Ok(());
        }
        self.program.distrust(&distrusted)?;
        let added = distrusted.iter().filter(|p| !self.distrusted.contains(p));
        for network in added {
            tracing::warn!(
                tap = %self.device.name,
                "the guest lacked bytes of {TIMES} flows from {network} that were acknowledged early; for {} minutes nothing \
                 from there is acknowledged early",
                REST.as_secs() / 60
            );
            for (key, flow) in self.program.flows()? {
                let bypassed = matches!(flow.mode, Mode::Bypass(_));
                if !bypassed && Prefix::of(key.peer.ip()) == *network {
                    self.program.leave(&key, Bypass::DistrustedPeer)?;
                }
            }
        }
        self.distrusted = distrusted;
        self.configure(config)?;
        if self.distrusted.len() >= TIMES && self.state == State::On {
            self.become_unfit(
                config,
                format!(
                    "the guest drops what it has offered to take (look for TCPRcvQDrop in `nstat -a` there); nothing is \
                     acknowledged early for it for {} minutes",
                    REST.as_secs() / 60
                ),
            );
            self.unfit_since = Some(now);
        }
        Ok(())
    }

    fn become_unfit(&mut self, config: Config, why: String) {
        tracing::warn!(tap = %self.device.name, "{why}");
        self.set(config, State::Unfit(why));
    }

    /// Sends what is due of a flow, and tells what there is to tell.
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
                tracing::warn!(
                    %tap, flow = %key, bytes,
                    "the guest lacks bytes that were acknowledged early; they are being retransmitted to it"
                );
                self.counts.repaired += 1;
                // A client can make a doubt by itself, and not what the guest says of its window.
                if flow.mode != Mode::Bypass(Bypass::Doubt) {
                    self.trust.repaired(Prefix::of(key.peer.ip()), now);
                }
                let left = match flow.mode {
                    Mode::Bypass(_) => Ok(()),
                    _ => self.program.leave(key, Bypass::Contradicted),
                };
                if let Err(error) = left.and_then(|()| self.apply_distrust(config, now)) {
                    tracing::warn!(%tap, "{error}");
                }
            }
            Some(News::Repaired) => {
                tracing::info!(%tap, flow = %key, "the guest has everything that was acknowledged early");
            }
            Some(News::Lost(bytes)) => {
                tracing::error!(
                    %tap, flow = %key, bytes,
                    "lost after early ACK: the guest has not taken these bytes for a quarter of an hour"
                );
                self.counts.lost += 1;
                if let Err(error) = self.program.leave(key, Bypass::LostAfterEarlyAck) {
                    tracing::warn!(%tap, "{error}");
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
                    tracing::debug!(%tap, flow = %key, %error, "a segment cannot be retransmitted now");
                    self.counts.not_sent += 1;
                }
            }
        }
    }

    /// Flows that fill the ring: of which much was acknowledged since the last look.
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

    pub(super) fn status(&self, retained: usize) -> Result<Status, ProgramError> {
        Ok(Status {
            retained,
            tap: self.device.name.clone(),
            index: self.device.index,
            state: self.state.clone(),
            held: self.why_held().map(HoldReason::phrase),
            ring: self.device.ring,
            counts: self.counts,
            distrusted: self.distrusted.clone(),
            to_guest: self.program.to_guest()?,
            from_guest: self.program.from_guest()?,
            flows: self.program.flows()?,
        })
    }
}

/// Bytes that senders believe a guest to have, or may come to, and that it has not taken.
pub(super) fn owed(flows: &[(Key, Flow)]) -> u64 {
    // What was lost will not be taken.
    let lost = Mode::Bypass(Bypass::LostAfterEarlyAck);
    let open = flows.iter().filter(|(_, flow)| flow.mode != lost);
    open.map(|(_, flow)| u64::from(flow.owed())).sum()
}

fn patience(flow: &Flow) -> Duration {
    match flow.mode {
        // What is outstanding is not forgotten, however long the guest is stopped.
        mode if flow.exposure() > 0 && mode != Mode::Bypass(Bypass::LostAfterEarlyAck) => {
            Duration::MAX
        }
        // A SYN that nobody answers, or that nobody meant (a flood of them would fill the table).
        Mode::Syn
        | Mode::Unproven
        | Mode::Bypass(
            Bypass::Closing | Bypass::LostAfterEarlyAck | Bypass::Doubt | Bypass::Contradicted,
        ) => IDLE_SHORT,
        _ => IDLE,
    }
}
