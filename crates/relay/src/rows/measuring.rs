//! Measures the paths to members and destinations.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use taut_mesh::members::Member;
use taut_mesh::rows::{Key, MemberId};
use taut_sys::Errno;

use super::destinations::to_measure;
use super::probe::{ProbeResult, ProbeTarget};
use super::thread::{PROBE, Work};
use crate::rows_mailbox::{PathSample, SampledPath};

/// The interval at which the path to a member without a connection is measured: this, or so long
/// that no more than 3.3 handshakes a second are begun.
const PROBE_EVERY: Duration = Duration::from_secs(30);
const PROBE_EACH: Duration = Duration::from_millis(300);

/// The interval at which a member that cannot be reached is tried.
const RETRY_EVERY: Duration = Duration::from_secs(5);

/// The largest number of measurements of members that begin in a tick.
const PROBES_A_TICK: usize = 8;

impl Work {
    /// Samples the links from the kernel.
    pub(super) fn sample_links(&mut self) {
        for (_, link) in &mut self.links.all {
            let Some(info) = link.link().and_then(|_| link.stream.info().ok()) else {
                continue;
            };
            let (Some(smoothed), least) = (info.rtt, info.min_rtt) else {
                continue;
            };
            let least = least.unwrap_or(smoothed);
            self.own.sample(link.id, least, smoothed, self.now);
            let segments = (info.segs_out.unwrap_or(0), info.total_retrans);
            let (sent, lost) = (segments.0 - link.counted.0, segments.1 - link.counted.1);
            link.counted = segments;
            self.own.segments(link.id, sent, lost, self.now);
            self.own.set_down(link.id, false);
        }
    }

    pub(super) fn on_sample(&mut self, sample: PathSample) {
        let PathSample {
            path,
            least,
            smoothed,
            segments,
        } = sample;
        match path {
            SampledPath::Peer(name) => {
                let id = MemberId::of(&name);
                self.own.sample(id, least, smoothed, self.now);
                self.own.segments(id, segments.0, segments.1, self.now);
            }
            SampledPath::Outside(ip) => {
                let key = Key::prefix(ip);
                self.own
                    .sample_outside(key, least, smoothed, segments, self.now);
            }
        }
    }

    /// Measures the paths to members of which nothing has been heard for a while.
    pub(super) fn probe_members(&mut self) {
        let mesh = self.mesh.clone();
        let n = u32::try_from(mesh.local.members.iter().len()).unwrap_or(u32::MAX);
        let interval = PROBE_EVERY.max(PROBE_EACH.saturating_mul(n));
        let mut begun = 0;
        for member in mesh.local.members.iter() {
            let id = MemberId::of(&member.name);
            if member.name == mesh.local.name || member.addresses.is_empty() {
                continue;
            }
            let every = match self.own.is_down(id) {
                true => RETRY_EVERY,
                false => interval,
            };
            let since = |at: Instant| self.now.saturating_duration_since(at);
            let recent = self.probed.get(&id).is_some_and(|at| since(*at) < every);
            let measured = !self.own.is_down(id)
                && self.own.idle(id, self.now).is_some_and(|idle| idle < every);
            if recent || measured || self.links.to(&member.name).is_some() {
                continue;
            }
            if begun >= PROBES_A_TICK {
                break;
            }
            begun += 1;
            self.probe(member);
        }
    }

    /// Measures the path to a member, unless that is under way.
    pub(super) fn probe(&mut self, member: &Member) {
        let target = ProbeTarget::Member(MemberId::of(&member.name));
        if !self.probes.has_room() || self.probes.measures(target) {
            return;
        }
        self.probed.insert(MemberId::of(&member.name), self.now);
        let addresses = self.addresses_of(member);
        if let Some(to) = self
            .failed_probes
            .next(MemberId::of(&member.name), &addresses)
        {
            self.begin(target, to);
        }
    }

    pub(super) fn begin(&mut self, target: ProbeTarget, to: SocketAddr) {
        self.counts.probes += 1;
        let mut options = self.options();
        if let ProbeTarget::Destination(key) = target
            && !self.reaches_directly(key)
        {
            options.path = self.mesh.upstream.path.clone();
        }
        let token = |place: usize| PROBE | place as u64;
        let begun = self
            .probes
            .begin(target, to, &options, &self.poller, token, self.now);
        if let Err(error) = begun {
            self.on_measured(ProbeResult {
                target,
                to,
                outcome: Err(error),
            });
        }
    }

    /// Whether a destination is one that a forward of this relay reaches directly, not as the last relay of a mesh.
    fn reaches_directly(&self, key: Key) -> bool {
        let own = &self.mesh.local.name;
        let mut direct = self.setup.autos().into_iter().filter(|auto| auto.direct);
        direct.any(|auto| Key::destination(&auto.route.destination, Some(own)) == key)
    }

    pub(super) fn on_measured(&mut self, measured: ProbeResult) {
        match (measured.target, measured.outcome) {
            (ProbeTarget::Member(id), Ok((rtt, repeated))) => {
                self.own.sample(id, rtt, rtt, self.now);
                self.own.segments(id, 1 + repeated, repeated, self.now);
                self.failed_probes.worked(id);
                self.set_down(id, false);
            }
            (ProbeTarget::Member(id), Err(error)) => {
                self.counts.probes_failed += 1;
                if !is_of_this_machine(error) {
                    self.on_unanswered(id, measured.to);
                }
            }
            // A destination that was withdrawn during its measurement must not come back.
            (ProbeTarget::Destination(key), Ok((rtt, repeated))) => {
                if self.destinations.answered(key) {
                    let segments = (1 + repeated, repeated);
                    self.own.sample_outside(key, rtt, rtt, segments, self.now);
                }
            }
            (ProbeTarget::Destination(key), Err(error)) => {
                self.counts.probes_failed += 1;
                if !is_of_this_machine(error) && self.destinations.failed(key, self.now) {
                    self.own.forget(key);
                }
            }
        }
    }

    /// Tries the next address of a member. If none has answered, the member is down.
    fn on_unanswered(&mut self, id: MemberId, to: SocketAddr) {
        let members = &self.mesh.local.members;
        let member = self
            .table
            .name(id)
            .and_then(|name| members.by_name(name.as_str()));
        let Some(member) = member.cloned() else {
            return;
        };
        let addresses = self.addresses_of(&member);
        if self.failed_probes.failed(id, to, &addresses) {
            self.set_down(id, true);
        } else {
            self.probe(&member);
        }
    }

    pub(super) fn set_down(&mut self, id: MemberId, down: bool) {
        if self.own.is_down(id) != down {
            self.own.set_down(id, down);
            self.routes_may_differ();
        }
    }

    /// Measures peers to which the pools' dials have begun to fail.
    pub(super) fn notice_failed_dials(&mut self) {
        for peer in self.mesh.peers.clone() {
            let failed = (0..crate::outcome::peer::PeerFailure::ALL.len())
                .map(|i| peer.stats.sum(|c| &c.failed[i]))
                .sum::<u64>();
            let dialled = peer.stats.sum(|c| &c.dialled);
            let before = self.failures.insert(peer.name.clone(), (failed, dialled));
            let Some((failed_before, dialled_before)) = before else {
                continue;
            };
            if failed > failed_before
                && dialled == dialled_before
                && let Some(member) = self.mesh.local.members.by_name(peer.name.as_str()).cloned()
            {
                self.probe(&member);
            }
        }
    }

    /// Decides which destinations this relay measures: those that its own automatic routes lead to
    /// directly, and those that other relays ask for and may reach through this one.
    pub(super) fn choose_destinations(&mut self) {
        let mesh = self.mesh.clone();
        let by_member = !mesh.rules.is_empty();
        let autos = self.setup.autos();
        let name = &mesh.local.name;
        let direct = autos.iter().filter(|auto| auto.direct);
        let direct = direct.map(|auto| auto.route.destination.clone());
        let asked = self.table.rows().filter(|(of, _)| *of != name);
        let asked = asked.flat_map(|(of, row)| {
            let targets = row.wanted.iter();
            targets.map(move |target| (of.clone(), target.clone()))
        });
        let (mailbox, now) = (self.mailbox.clone(), self.now);
        let (wanted, refused) = to_measure(
            name,
            direct.collect(),
            asked.collect(),
            by_member,
            |of| mesh.access_of(of),
            |target| self.destination_names.of(target, &mailbox, now),
        );
        self.counts.destinations_refused = refused;
        self.measure_destinations(wanted);
        let targets = autos
            .iter()
            .map(|auto| auto.route.destination.clone())
            .collect();
        self.own.set_destinations(targets, by_member);
    }

    /// Measures these destinations and no others.
    pub(super) fn measure_destinations(&mut self, wanted: Vec<(Key, SocketAddr)>) {
        for key in self.destinations.adopt(wanted, self.now) {
            self.own.forget(key);
        }
    }

    /// Sends the SYNs that are due to destinations.
    pub(super) fn measure(&mut self) {
        for (key, addr) in self.destinations.due(self.now) {
            if self.probes.has_room() {
                self.begin(ProbeTarget::Destination(key), addr);
            }
        }
    }
}

/// Returns whether a measurement failed for a lack of resources on this machine, which shows nothing
/// about the other end.
fn is_of_this_machine(error: Errno) -> bool {
    matches!(
        error,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::ADDRNOTAVAIL
    )
}
