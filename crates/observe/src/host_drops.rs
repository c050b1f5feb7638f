//! Counts the packets of observed connections that the kernel of this machine drops, with reason,
//! function and device: a BPF program at the tracepoint `kfree_skb`.

mod place;
mod symbols;

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libbpf_rs::Link;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Enum;
use rustc_hash::FxHashMap;
use taut_bpf::{CEnum as _, CounterMap, Error, Map, Object, Open, bytes};

pub(crate) use self::place::NO_REASON;
pub use self::place::{Direction, DropPlace, HostDrop};
use self::place::{drops_copies, is_no_loss, short};
use self::raw::{DropsDirection, DropsExit};
use self::symbols::Symbols;
use crate::sanitize;

taut_bpf::bindings!(mod raw from "drops");

const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/drops.bpf.o"));

/// The programs, the best first. The first that the kernel accepts is loaded: the tracepoint has a
/// fourth argument since Linux 6.11.
const PROGRAMS: [&str; 2] = ["taut_dropped_with_socket", "taut_dropped"];
const CONFIG: &str = ".rodata.config";
/// The maximum number of connections that are followed. The drops of others are not counted.
const CONNECTIONS: usize = raw::DROPS_FOLLOWED as usize / 2;
/// The length of a tuple in bytes.
const TUPLE: usize = size_of::<raw::DropsTuple>();

/// The attached program and what it has counted.
pub(crate) struct HostDrops {
    followed: Map<raw::DropsTuple, raw::DropsEnds>,
    kinds: Map<raw::DropsKind, raw::DropsCount>,
    exits: CounterMap<DropsExit>,
    reasons: FxHashMap<u32, Box<str>>,
    /// The functions that dropped packets of connections that were reported, by address.
    functions: RefCell<FxHashMap<u64, Option<Box<str>>>>,
    hides_symbols: Cell<bool>,
    /// The connections that are followed, by cookie.
    connections: FxHashMap<u64, Connection>,
    /// The content of the map `followed`.
    ends: FxHashMap<[u8; TUPLE], (raw::DropsTuple, raw::DropsEnds)>,
    /// Whether `ends` may not be as `connections` wants it.
    is_stale: bool,
    /// The drops of each connection, by cookie.
    drops: FxHashMap<u64, Vec<(raw::DropsKind, raw::DropsCount)>>,
    /// The number of drops that were counted when `drops` was read.
    counted: u64,
    left_out: usize,
    /// Why the last update was not complete.
    problem: Option<String>,
    _link: Link,
}

/// A connection that is followed.
struct Connection {
    /// The addresses and ports of the packets that it sends.
    sent: raw::DropsTuple,
    /// The time since the observation began from which its drops are kept; `None` until they are.
    since: Option<Duration>,
}

/// A connection whose drops are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Followed {
    /// The socket's cookie.
    pub(crate) cookie: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Inode of its network namespace; 0 if it is unknown.
    pub(crate) netns: u32,
}

// === impl HostDrops ===

impl HostDrops {
    /// Loads and attaches the program.
    ///
    /// # Errors
    /// [`Error`]: without CAP_BPF and CAP_PERFMON, or a kernel without BTF or without reasons (before
    /// Linux 5.17).
    pub(crate) fn start() -> Result<Self, Error> {
        let reasons = reasons()?;
        let [best, older] = PROGRAMS;
        Self::load(best, &reasons).or_else(|error| {
            tracing::debug!(%error, "the socket of a dropped packet is not known");
            Self::load(older, &reasons)
        })
    }

    fn load(name: &'static str, reasons: &FxHashMap<u32, Box<str>>) -> Result<Self, Error> {
        let mut open = Open::new("taut_drops", PROGRAM)?;
        for mut program in open.programs() {
            let loads = program.name() == name;
            program.set_autoload(loads);
        }
        open.set_constant(CONFIG, &config(reasons))?;
        let object: Object = open.load()?;
        let link = object.program(name)?.attach();
        Ok(Self {
            followed: object.map("followed")?,
            kinds: object.map("kinds")?,
            exits: object.counters("exits")?,
            reasons: reasons.clone(),
            functions: RefCell::default(),
            hides_symbols: Cell::new(false),
            connections: FxHashMap::default(),
            ends: FxHashMap::default(),
            is_stale: false,
            drops: FxHashMap::default(),
            counted: 0,
            left_out: 0,
            problem: None,
            _link: link.map_err(Error::during("attach a BPF program"))?,
        })
    }

    /// Reads the drops that were counted until now, and follows these connections instead of those of
    /// the last call. The drops of connections that are not followed any more are kept until the next
    /// call. `scan` is the time since the observation began at which the scan began that found these
    /// connections.
    ///
    /// The drops of a connection are kept from the second call with it on: they then are of the same
    /// time as the losses from that scan on, whatever happened while it began to be followed.
    pub(crate) fn update(&mut self, all: impl Iterator<Item = Followed>, scan: Duration) {
        let updated = self.try_update(all, scan);
        self.problem = updated.err().map(|error| error.to_string());
    }

    fn try_update(
        &mut self,
        all: impl Iterator<Item = Followed>,
        scan: Duration,
    ) -> Result<(), Error> {
        // What cannot be read does not keep connections from being followed.
        let read = self.read();
        if !self.is_stale && read.is_ok() {
            for connection in self.connections.values_mut() {
                connection.since.get_or_insert(scan);
            }
        }
        let mut before = std::mem::take(&mut self.connections);
        self.left_out = 0;
        let mut added = Vec::new();
        for one in all {
            let cookie = one.cookie;
            if let Some(connection) = before.remove(&cookie) {
                self.connections.insert(cookie, connection);
            } else {
                added.push(one);
            }
        }
        self.is_stale |= !before.is_empty() || !added.is_empty();
        for one in added {
            if self.connections.len() == CONNECTIONS {
                self.left_out += 1;
                continue;
            }
            let connection = Connection {
                sent: one.tuple(),
                since: None,
            };
            self.connections.insert(one.cookie, connection);
        }
        read.and(self.follow())
    }

    /// Makes the map `followed` that of the connections. Several may have the same addresses, in
    /// different network namespaces: the one that is followed already stays.
    fn follow(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.is_stale) {
            return Ok(());
        }
        let mut wanted = FxHashMap::<[u8; TUPLE], (raw::DropsTuple, raw::DropsEnds)>::default();
        for stays in [true, false] {
            for (cookie, Connection { sent, .. }) in &self.connections {
                for (tuple, is_sent) in [(*sent, true), (reversed(*sent), false)] {
                    let key = bytes(&tuple);
                    let known = self.ends.get(&key).copied().unwrap_or_default();
                    if (*end(&mut { known.1 }, is_sent) == *cookie) != stays {
                        continue;
                    }
                    let (_, ends) = wanted.entry(key).or_insert((tuple, Default::default()));
                    let end = end(ends, is_sent);
                    if *end == 0 {
                        *end = *cookie;
                    }
                }
            }
        }
        let mut result = Ok(());
        self.ends.retain(|key, (tuple, _)| {
            if wanted.contains_key(key) {
                return true;
            }
            let removed = self.followed.remove(tuple);
            let stays = removed.is_err();
            if let Err(error) = removed {
                result = Err(error);
            }
            stays
        });
        for (key, (tuple, ends)) in wanted {
            if self.ends.get(&key).is_some_and(|(_, known)| *known == ends) {
                continue;
            }
            match self.followed.insert(&tuple, &ends) {
                Ok(()) => {
                    self.ends.insert(key, (tuple, ends));
                }
                Err(error) => result = Err(error),
            }
        }
        self.is_stale = result.is_err();
        result
    }

    /// Reads what the program has counted, if it has counted more, and forgets the drops of connections
    /// that have ended or are not kept yet.
    fn read(&mut self) -> Result<(), Error> {
        let counted = self.exits.read()?.get(DropsExit::Counted);
        let all = std::mem::replace(&mut self.counted, counted);
        let mut ended = self
            .drops
            .keys()
            .filter(|key| !self.connections.contains_key(key));
        if counted == all && ended.next().is_none() {
            return Ok(());
        }
        self.drops.clear();
        for (kind, count) in self.kinds.entries()? {
            if self.since(kind.cookie).is_some() {
                self.drops
                    .entry(kind.cookie)
                    .or_default()
                    .push((kind, count));
            } else {
                self.kinds.remove(&kind)?;
            }
        }
        Ok(())
    }

    /// Returns the time since the observation began from which the drops of a connection are counted;
    /// `None` if they are not.
    pub(crate) fn since(&self, cookie: u64) -> Option<Duration> {
        self.connections.get(&cookie)?.since
    }

    /// Returns the drops of a connection, most segments first. `name_of` returns the name of a network
    /// namespace, given its inode, if it is not that of the connection.
    pub(crate) fn of(
        &self,
        cookie: u64,
        name_of: impl Fn(u32) -> Option<Box<str>>,
    ) -> Vec<HostDrop> {
        let all = self.drops.get(&cookie).map_or(&[][..], Vec::as_slice);
        self.name_functions(all);
        let mut drops: Vec<_> = all
            .iter()
            .filter_map(|(kind, count)| self.drop(kind, count, &name_of))
            .collect();
        drops.sort_by_key(|drop| std::cmp::Reverse(drop.segments()));
        drops
    }

    /// Looks up the names of functions that are new. A module may have been loaded since the last time,
    /// so the symbols are read again.
    fn name_functions(&self, drops: &[(raw::DropsKind, raw::DropsCount)]) {
        let mut functions = self.functions.borrow_mut();
        let all = drops.iter().map(|(kind, _)| kind.function);
        let new: Vec<_> = all
            .filter(|function| !functions.contains_key(function))
            .collect();
        if new.is_empty() {
            return;
        }
        let symbols = Symbols::read();
        self.hides_symbols.set(symbols.is_empty());
        let named = new
            .into_iter()
            .map(|address| (address, symbols.at(address).map(Into::into)));
        functions.extend(named);
    }

    /// Returns `None` if nothing was lost.
    fn drop(
        &self,
        kind: &raw::DropsKind,
        count: &raw::DropsCount,
        name_of: impl Fn(u32) -> Option<Box<str>>,
    ) -> Option<HostDrop> {
        let functions = self.functions.borrow();
        let function = functions.get(&kind.function).and_then(Option::as_deref);
        let reason = match self.reasons.get(&kind.reason) {
            Some(name) => name.clone(),
            // A module has reasons of its own.
            None => kind.reason.to_string().into(),
        };
        if drops_copies(function, &reason) {
            return None;
        }
        let device = count.device.split(|byte| *byte == 0).next();
        let device = device.filter(|name| !name.is_empty());
        Some(HostDrop {
            place: DropPlace::of(&reason, function),
            reason,
            function: function.map(Into::into),
            device: device.map(|name| sanitize::text(name).into()),
            netns: (kind.netns != 0).then(|| name_of(kind.netns)).flatten(),
            direction: match DropsDirection::from_raw(kind.direction)? {
                DropsDirection::Sent => Direction::Sent,
                DropsDirection::Received => Direction::Received,
            },
            is_own: kind.is_own != 0,
            enter: None,
            data_segments: count.data,
            other_segments: count.other,
        })
    }

    /// Returns why the drops that the last update read, or the connections that are followed since, are
    /// not all.
    pub(crate) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Whether the kernel hides the addresses of its functions. Drops without a reason are then not
    /// reported.
    pub(crate) fn hides_symbols(&self) -> bool {
        self.hides_symbols.get()
    }

    /// Returns the number of connections whose drops are not counted because there are too many.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns the number of packets that were dropped and not counted because there were too many kinds
    /// of drops.
    pub(crate) fn missed(&self) -> u64 {
        // A counter that cannot be read does not change either.
        self.exits
            .read()
            .map_or(0, |exits| exits.get(DropsExit::NoRoom))
    }
}

impl std::fmt::Debug for HostDrops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostDrops").finish_non_exhaustive()
    }
}

// === impl Followed ===

impl Followed {
    /// Returns the addresses and ports of the packets that it sends.
    fn tuple(self) -> raw::DropsTuple {
        let octets = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
        let (local, remote) = (self.local, self.remote);
        raw::DropsTuple {
            from: octets(local.ip()),
            to: octets(remote.ip()),
            from_port: local.port().into(),
            to_port: remote.port().into(),
            netns: match is_loopback(local.ip()) || is_loopback(remote.ip()) {
                true => self.netns,
                false => 0,
            },
        }
    }
}

/// Returns the tuple of the packets in the other direction.
fn reversed(tuple: raw::DropsTuple) -> raw::DropsTuple {
    raw::DropsTuple {
        from: tuple.to,
        to: tuple.from,
        from_port: tuple.to_port,
        to_port: tuple.from_port,
        ..tuple
    }
}

/// Returns the end that sends the packets, or the one that receives them.
fn end(ends: &mut raw::DropsEnds, is_sent: bool) -> &mut u64 {
    match is_sent {
        true => &mut ends.from,
        false => &mut ends.to,
    }
}

/// Returns the kernel's reasons by number.
fn reasons() -> Result<FxHashMap<u32, Box<str>>, Error> {
    let btf = Btf::from_vmlinux().map_err(Error::during("read the kernel's types (BTF)"))?;
    let all = btf.type_by_name::<Enum<'_>>("skb_drop_reason");
    let all = all.ok_or(Error::Missing {
        kind: "type",
        name: "skb_drop_reason",
    })?;
    let named = all.iter().filter_map(|reason| {
        let name = reason.name?.to_str()?;
        Some((u32::try_from(reason.value).ok()?, short(name).into()))
    });
    Ok(named.collect())
}

/// Returns the program's configuration: it ignores the reasons for which nothing is lost.
fn config(reasons: &FxHashMap<u32, Box<str>>) -> raw::DropsConfig {
    let mut config = raw::DropsConfig::default();
    let ignored = reasons.iter().filter(|(_, name)| is_no_loss(name));
    for (reason, _) in ignored {
        if let Some(word) = config.ignored.get_mut(*reason as usize / 64) {
            *word |= 1 << (reason % 64);
        }
    }
    config
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]
mod tests;
