//! Measures the relays' resources: descriptors, pipes, sessions, memory, and BPF objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use taut_sys::bpf::Object;

use super::plan::Side;
use super::rig::Rig;
use crate::experiment::sessions::ends::Run;
use crate::peer::relay;

/// The pause between two readings of memory.
const SAMPLE: Duration = Duration::from_millis(500);
/// The pause between two checks whether a relay is at rest.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a relay may take to free everything after the load: its longest timeout for a vanished
/// peer, and some more.
const REST: Duration = Duration::from_secs(45);

/// The resources of a relay at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Holding {
    pub(super) sessions: f64,
    pub(super) pipes_in_use: f64,
    /// Connections at the mesh port that have not authenticated yet.
    unproven: f64,
    /// Pipes, empty or not.
    pipes: f64,
    /// Pooled connections to other relays that wait for a session.
    pool_ready: f64,
    /// Pooled connections from other relays that wait for a session.
    mesh_ready: f64,
    /// Descriptors other than those of sessions, pipes and pooled connections. Their number does
    /// not change with the load.
    pub(super) descriptors: f64,
}

/// The resident memory of one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) side: Side,
    pub(super) process: u32,
    /// The memory in bytes.
    pub(super) resident: f64,
    pub(super) descriptors: f64,
}

/// The relays' running processes.
#[derive(Debug, Default)]
pub(super) struct Processes(Mutex<[Option<u32>; 2]>);

/// A flag that is set when no more samples are needed.
#[derive(Debug, Default)]
pub(super) struct Enough {
    is_enough: Mutex<bool>,
    changed: Condvar,
}

// === impl Holding ===

impl Holding {
    /// Reads the resources of the relay of `side`, whose process id is `process`.
    pub(super) fn of(rig: &Rig, side: Side, process: u32) -> io::Result<Self> {
        let said = rig.host(side).run(|| relay::scrape(relay::METRICS));
        let said = said.map_err(io::Error::other)??;
        let figure = |name: &str| {
            relay::sum(&said, name)
                .ok_or_else(|| io::Error::other(format!("the relay's metrics lack {name}")))
        };
        let sessions = figure("taut_relay_sessions")?;
        let unproven = figure("taut_relay_mesh_unproven")?;
        let pipes = figure("taut_relay_pipes")?;
        let pool_ready = figure("taut_relay_pool_ready")?;
        let mesh_ready = figure("taut_relay_mesh_ready")?;
        let accounted = 2.0 * (sessions + pipes) + unproven + pool_ready + mesh_ready;
        Ok(Self {
            sessions,
            pipes_in_use: figure("taut_relay_pipes_in_use")?,
            unproven,
            pipes,
            pool_ready,
            mesh_ready,
            descriptors: descriptors(process)? - accounted,
        })
    }

    /// Returns the relay's resources at rest, or at the latest after [`REST`]. The relay is at rest
    /// when two successive readings are equal, it has no session, and it has no more descriptors
    /// than `idle`.
    pub(super) fn at_rest(
        rig: &Rig,
        side: Side,
        process: u32,
        idle: Option<&Self>,
    ) -> io::Result<Self> {
        let deadline = Instant::now() + REST;
        let mut last = Self::of(rig, side, process)?;
        loop {
            std::thread::sleep(POLL_INTERVAL);
            let now = Self::of(rig, side, process)?;
            let rests = now.sessions + now.pipes_in_use + now.unproven == 0.0
                && idle.is_none_or(|idle| now.descriptors <= idle.descriptors);
            if (rests && now == last) || Instant::now() > deadline {
                return Ok(now);
            }
            last = now;
        }
    }
}

/// Returns the counters of the relay of `side` that are not 0: those of session ends, pool, mesh
/// port and early connections.
pub(super) fn counters(rig: &Rig, side: Side) -> io::Result<String> {
    let said = rig.host(side).run(|| relay::scrape(relay::METRICS));
    let said = said.map_err(io::Error::other)??;
    let told = ["ended", "pool", "mesh", "early"].map(|group| format!("taut_relay_{group}_"));
    let counters = said.lines().filter_map(|line| {
        let is_told = told.iter().any(|group| line.starts_with(group));
        (is_told && !line.ends_with(" 0")).then(|| line.trim_start_matches("taut_relay_"))
    });
    Ok(counters.collect::<Vec<_>>().join(", "))
}

/// Returns the descriptors of a process by kind: `socket`, `pipe`, `anon_inode:[eventpoll]`.
pub(super) fn kinds(process: u32) -> io::Result<BTreeMap<String, usize>> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        // The descriptor was closed after it was listed.
        if let Ok(target) = fs::read_link(entry?.path()) {
            let target = target.to_string_lossy().into_owned();
            // The number in `socket:[1234]` identifies the socket; drop it.
            let kind = target
                .split(":[")
                .next()
                .map_or(target.clone(), str::to_owned);
            *kinds.entry(kind).or_default() += 1;
        }
    }
    Ok(kinds)
}

/// Returns the number of TCP connections that this host has accepted, from the kernel's counters:
/// also those that no program has taken yet. Must be called in the host's namespace.
pub(super) fn accepted() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/snmp")?;
    passive_opens(&text).ok_or_else(|| io::Error::other("/proc/net/snmp lacks PassiveOpens"))
}

/// Returns `PassiveOpens` of a text in the format of `/proc/net/snmp`: a line of names, and a line
/// of values.
fn passive_opens(snmp: &str) -> Option<u64> {
    let mut tcp = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (tcp.next()?, tcp.next()?);
    let place = names.split(' ').position(|name| name == "PassiveOpens")?;
    values.split(' ').nth(place)?.parse().ok()
}

/// Returns the number of descriptors of a process.
fn descriptors(process: u32) -> io::Result<f64> {
    Ok(fs::read_dir(format!("/proc/{process}/fd"))?.count() as f64)
}

/// Returns the resident memory of a process, in bytes.
fn resident(process: u32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/statm"))?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let pages: u64 = pages.ok_or(io::ErrorKind::InvalidData)?;
    Ok((pages * rustix::param::page_size() as u64) as f64)
}

/// Returns the BPF programs and maps that a process refers to.
pub(super) fn bpf_objects(process: u32) -> io::Result<BTreeSet<Object>> {
    let entries = fs::read_dir(format!("/proc/{process}/fdinfo"))?;
    // The descriptor was closed after it was listed.
    let texts = entries.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    Ok(texts.filter_map(|text| Object::of_fdinfo(&text)).collect())
}

// === impl Processes ===

impl Processes {
    pub(super) fn set(&self, side: Side, process: Option<u32>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[side as usize] = process;
    }

    fn running(&self) -> impl Iterator<Item = (Side, u32)> + use<> {
        let now = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sides = Side::BOTH.into_iter().zip(now);
        sides.filter_map(|(side, process)| Some((side, process?)))
    }

    /// Samples the relays' memory until `enough` is set.
    pub(super) fn sample(&self, run: &Run, enough: &Enough) -> Vec<Sample> {
        let mut samples = Vec::new();
        loop {
            for (side, process) in self.running() {
                // A process that has just been killed has no memory.
                if let (Ok(resident), Ok(descriptors)) = (resident(process), descriptors(process)) {
                    samples.push(Sample {
                        at: run.now(),
                        side,
                        process,
                        resident,
                        descriptors,
                    });
                }
            }
            if enough.within(SAMPLE) {
                return samples;
            }
        }
    }
}

// === impl Enough ===

impl Enough {
    pub(super) fn say(&self) {
        *self
            .is_enough
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits for the flag for up to `time`; returns whether it is set.
    fn within(&self, time: Duration) -> bool {
        let is_enough = self
            .is_enough
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(is_enough, time, |is| !*is);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_connections_are_read_from_the_line_of_tcp() {
        let text = "Ip: Forwarding PassiveOpens\nIp: 1 2\n\
                    Tcp: ActiveOpens PassiveOpens AttemptFails\nTcp: 3 4 5\n";
        assert_eq!(passive_opens(text), Some(4));
        assert_eq!(passive_opens("Tcp: ActiveOpens\nTcp: 3\n"), None);
        accepted().unwrap();
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let process = std::process::id();
        assert!(resident(process).unwrap() > 1e6);
        let before = descriptors(process).unwrap();
        let file = fs::File::open("/proc/self/statm").unwrap();
        assert!(descriptors(process).unwrap() >= 3.0, "{before}");
        drop(file);
    }
}
